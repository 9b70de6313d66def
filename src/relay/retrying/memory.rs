//! What is remembered of events that wait for as long as the process lives: what became of a try and could not be written
//! down, and what stands in the way of which. No I/O.
//!
//! What Kafka has acked is not sent again because its row is locked, and an aggregate that something stands in the way of
//! comes again after a pause, behind all others.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::event::{Place, RowId};
use crate::upkeep::Failure;
use crate::upkeep::parked::Waiting;

/// After the first time that something stood in the way, and twice as long after each more.
const PAUSE: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// What nobody came back to for this long is gone.
const KEPT: Duration = Duration::from_secs(600);

/// See the module's documentation. Events go by the row of `walrelay.parked`.
#[derive(Debug, Default)]
pub(in crate::relay) struct Memory {
    done: HashMap<i64, Done>,
    hindered: HashMap<Who, Blocked>,
    leaving: HashMap<i64, (Waiting, Left)>,
}

/// How an event leaves the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    Delivered,
    Dropped,
}

/// What something may stand in the way of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Who {
    /// An event, and so all that wait behind it.
    Event(i64),
    /// Looking for rows of this outbox that are pending again.
    Pending(String),
}

/// The event that was tried: a table that was made anew counts from 1 again.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Done {
    row: RowId,
    place: Place,
    how: How,
}

/// What came of a try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum How {
    /// Kafka has it.
    Sent,
    /// It failed, and is tried again then, or when somebody asks: whoever has written to its row of the table since then did.
    Failed { failure: Failure, again: Option<Instant>, version: String },
}

#[derive(Debug)]
struct Blocked {
    until: Instant,
    pause: Duration,
    is_told: bool,
}

impl Memory {
    /// This came of a try.
    pub(super) fn done(&mut self, id: i64, row: &RowId, place: Place, how: How) {
        self.done.insert(id, Done { row: row.clone(), place, how });
    }

    /// What came of the last try of this version, where that is not written down.
    pub(super) fn how(&self, id: i64, row: &RowId, place: Place, now: &str) -> Option<&How> {
        let done = self.done.get(&id).filter(|done| done.row == *row && done.place == place)?;
        Some(&done.how).filter(|how| match how {
            How::Sent => true,
            How::Failed { version, .. } => version == now,
        })
    }

    /// Whether Kafka has the event of `row`.
    pub(super) fn is_sent(&self, id: i64, row: &RowId) -> bool {
        self.done.get(&id).is_some_and(|done| done.row == *row && done.how == How::Sent)
    }

    /// It is being taken from the table. Until that is known to be done, or not, it may be either.
    pub(super) fn leaves(&mut self, id: i64, waiting: Waiting, how: Left) {
        self.leaving.insert(id, (waiting, how));
    }

    /// Events of which that is not known.
    pub(super) fn leaving(&self) -> Vec<(i64, Waiting, Left)> {
        self.leaving.iter().map(|(id, (waiting, how))| (*id, waiting.clone(), *how)).collect()
    }

    /// Whether there are any.
    pub(super) fn is_any_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// It is still in the table.
    pub(super) fn stays(&mut self, id: i64) {
        self.leaving.remove(&id);
    }

    /// It is written down.
    pub(super) fn written(&mut self, id: i64) {
        self.done.remove(&id);
        self.leaving.remove(&id);
        self.hindered.remove(&Who::Event(id));
    }

    /// Something stands in its way: gives the pause, and whether a person is to be told, of what `tells`, because none was.
    pub(super) fn hinder(&mut self, who: Who, now: Instant, tells: bool) -> (Duration, bool) {
        let new = Blocked { until: now, pause: PAUSE / 2, is_told: false };
        let hindered = self.hindered.entry(who).or_insert(new);
        hindered.pause = (hindered.pause * 2).min(PAUSE_MAX);
        hindered.until = now + hindered.pause;
        let is_news = tells && !hindered.is_told;
        hindered.is_told |= tells;
        (hindered.pause, is_news)
    }

    /// Nothing does.
    pub(super) fn unhinder(&mut self, who: &Who) {
        self.hindered.remove(who);
    }

    /// Whether it is left alone for now.
    pub(super) fn rests(&self, who: &Who, now: Instant) -> bool {
        self.hindered.get(who).is_some_and(|hindered| hindered.until > now)
    }

    /// Events that are left alone for now.
    pub(super) fn resting(&mut self, now: Instant) -> Vec<i64> {
        self.hindered.retain(|_, hindered| hindered.until + KEPT > now);
        let resting = self.hindered.iter().filter(|(_, hindered)| hindered.until > now);
        resting.filter_map(|(who, _)| if let Who::Event(id) = who { Some(*id) } else { None }).collect()
    }

    /// Whether something stood in its way, if it does not any more.
    pub(super) fn was_hindered(&self, id: i64) -> bool {
        self.hindered.contains_key(&Who::Event(id))
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
    fn what_came_of_a_try_is_remembered_of_that_event_until_it_is_written_down() {
        let (mut memory, row) = (Memory::default(), RowId { outbox: 0, key: b"a".to_vec() });
        memory.done(1, &row, place(0), How::Sent);
        assert_eq!(memory.how(1, &row, place(0), "7"), Some(&How::Sent));
        assert_eq!(memory.how(1, &row, place(0), "8"), Some(&How::Sent), "whatever is asked now");
        assert!(memory.is_sent(1, &row) && !memory.is_sent(2, &row));
        // Another event of a table that was made anew.
        assert_eq!(memory.how(1, &RowId { outbox: 0, key: b"b".to_vec() }, place(0), "7"), None);
        assert_eq!(memory.how(1, &row, place(1), "7"), None);
        let failure = Failure { class: "refused", cause: "no".to_owned(), attempts: 2 };
        memory.done(1, &row, place(0), How::Failed { failure, again: None, version: "7".to_owned() });
        assert!(!memory.is_sent(1, &row) && memory.how(1, &row, place(0), "7").is_some());
        assert_eq!(memory.how(1, &row, place(0), "8"), None, "somebody asked for a try since then");
        memory.written(1);
        assert_eq!(memory.how(1, &row, place(0), "7"), None);
    }

    #[test]
    fn what_leaves_the_table_is_in_doubt_until_it_is_known_to_stay_or_to_be_gone() {
        let mut memory = Memory::default();
        let waiting =
            |id: u8| Waiting { row: RowId { outbox: 0, key: vec![id] }, place: place(0), key: None, refused_by: None };
        memory.leaves(1, waiting(1), Left::Dropped);
        memory.leaves(2, waiting(2), Left::Delivered);
        memory.stays(2);
        assert_eq!(memory.leaving(), [(1, waiting(1), Left::Dropped)]);
        memory.written(1);
        assert!(!memory.is_any_leaving());
    }

    #[test]
    fn what_something_stands_in_the_way_of_rests_longer_each_time_and_is_told_of_once() {
        let (mut memory, mut now) = (Memory::default(), Instant::now());
        let mut pauses = Vec::new();
        for round in 0..6 {
            let (pause, is_new) = memory.hinder(Who::Event(1), now, true);
            assert_eq!((is_new, memory.resting(now)), (round == 0, vec![1]));
            now += pause;
            assert!(memory.resting(now).is_empty() && memory.was_hindered(1));
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
        let pending = Who::Pending("outbox".to_owned());
        memory.hinder(pending.clone(), now, true);
        assert!(memory.rests(&pending, now) && memory.resting(now).is_empty());
        memory.unhinder(&pending);
        memory.written(1);
        assert!(!memory.rests(&pending, now) && !memory.was_hindered(1));
        assert!(!memory.hinder(Who::Event(2), now, false).1 && memory.hinder(Who::Event(2), now, true).1);
        assert!(memory.resting(now + 2 * KEPT).is_empty() && !memory.was_hindered(2));
    }
}
