//! What is remembered of parked events for as long as the process lives. No I/O.
//!
//! An event that Kafka has acked is not sent again while its row is locked. An aggregate that is blocked is retried after a
//! pause, behind all others.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::event::{Place, RowId};

/// After the first time that something stood in the way, and twice as long after each more.
const PAUSE: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// What nobody came back to for this long is gone.
const KEPT: Duration = Duration::from_secs(600);

/// See the module's documentation. Events go by the row of `walrelay.parked`.
#[derive(Debug, Default)]
pub(in crate::relay) struct Memory {
    /// Events that Kafka has, and that may still be in the table.
    acked: HashMap<i64, Acked>,
    blocked: HashMap<Who, Blocked>,
}

/// What something may stand in the way of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Who {
    /// An event, and so all that wait behind it.
    Event(i64),
    /// Looking for rows of this outbox that are pending again.
    Pending(String),
}

/// The event that was acked: a table that was made anew counts from 1 again.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Acked {
    row: RowId,
    place: Place,
}

#[derive(Debug)]
struct Blocked {
    until: Instant,
    pause: Duration,
    is_told: bool,
}

impl Memory {
    /// Kafka has this event.
    pub(super) fn acked(&mut self, id: i64, row: &RowId, place: Place) {
        self.acked.insert(id, Acked { row: row.clone(), place });
    }

    /// Whether Kafka has this event.
    pub(super) fn is_acked(&self, id: i64, row: &RowId, place: Place) -> bool {
        self.acked.get(&id).is_some_and(|acked| acked.row == *row && acked.place == place)
    }

    /// What became of the event is written down.
    pub(super) fn written(&mut self, id: i64) {
        self.acked.remove(&id);
        self.blocked.remove(&Who::Event(id));
    }

    /// Something stands in its way: gives the pause, and whether a person is to be told, of what `tells`, because none was.
    pub(super) fn block(&mut self, who: Who, now: Instant, tells: bool) -> (Duration, bool) {
        let new = Blocked { until: now, pause: PAUSE / 2, is_told: false };
        let blocked = self.blocked.entry(who).or_insert(new);
        blocked.pause = (blocked.pause * 2).min(PAUSE_MAX);
        blocked.until = now + blocked.pause;
        let is_news = tells && !blocked.is_told;
        blocked.is_told |= tells;
        (blocked.pause, is_news)
    }

    /// Nothing does.
    pub(super) fn unblock(&mut self, who: &Who) {
        self.blocked.remove(who);
    }

    /// Whether it is left alone for now.
    pub(super) fn rests(&self, who: &Who, now: Instant) -> bool {
        self.blocked.get(who).is_some_and(|blocked| blocked.until > now)
    }

    /// Events that are left alone for now.
    pub(super) fn resting(&mut self, now: Instant) -> Vec<i64> {
        self.blocked.retain(|_, blocked| blocked.until + KEPT > now);
        let resting = self.blocked.iter().filter(|(_, blocked)| blocked.until > now);
        resting.filter_map(|(who, _)| if let Who::Event(id) = who { Some(*id) } else { None }).collect()
    }

    /// Whether something stood in its way, if it does not any more.
    pub(super) fn was_blocked(&self, id: i64) -> bool {
        self.blocked.contains_key(&Who::Event(id))
    }

    /// Nothing waits.
    pub(super) fn clear(&mut self) {
        *self = Memory::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Via;
    use crate::position::Lsn;

    fn place(index: u64) -> Place {
        Place { commit_lsn: Lsn::new(7), index, via: Via::Slot }
    }

    #[test]
    fn an_acked_event_is_remembered_until_that_is_written_down() {
        let (mut memory, row) = (Memory::default(), RowId { outbox: 0, key: b"a".to_vec() });
        memory.acked(1, &row, place(0));
        assert!(memory.is_acked(1, &row, place(0)) && !memory.is_acked(2, &row, place(0)));
        // Another event of a table that was made anew.
        assert!(!memory.is_acked(1, &RowId { outbox: 0, key: b"b".to_vec() }, place(0)));
        assert!(!memory.is_acked(1, &row, place(1)));
        memory.written(1);
        assert!(!memory.is_acked(1, &row, place(0)));
    }

    #[test]
    fn what_something_stands_in_the_way_of_rests_longer_each_time_and_is_told_of_once() {
        let (mut memory, mut now) = (Memory::default(), Instant::now());
        let mut pauses = Vec::new();
        for round in 0..6 {
            let (pause, is_new) = memory.block(Who::Event(1), now, true);
            assert_eq!((is_new, memory.resting(now)), (round == 0, vec![1]));
            now += pause;
            assert!(memory.resting(now).is_empty() && memory.was_blocked(1));
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
        let pending = Who::Pending("outbox".to_owned());
        memory.block(pending.clone(), now, true);
        assert!(memory.rests(&pending, now) && memory.resting(now).is_empty());
        memory.unblock(&pending);
        memory.written(1);
        assert!(!memory.rests(&pending, now) && !memory.was_blocked(1));
        assert!(!memory.block(Who::Event(2), now, false).1 && memory.block(Who::Event(2), now, true).1);
        assert!(memory.resting(now + 2 * KEPT).is_empty() && !memory.was_blocked(2));
    }
}
