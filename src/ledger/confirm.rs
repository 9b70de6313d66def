//! When to store the delivered position, and what may be confirmed to Postgres.
//!
//! Two rules. Nothing is confirmed that is not stored (P1), so that the slot is never ahead of the store and a slot
//! that is was moved by somebody else. And storing costs something, so it is done on progress at most every
//! [`PROGRESS_INTERVAL`], and for keepalives alone at most every [`IDLE_INTERVAL`], after a look at the catalog.

use std::time::Duration;

use crate::position::{Lsn, Position};

/// How long delivered events wait to be stored. It is the replay after a crash: short, yet a tenth of a second of
/// events shares one stored record.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// How long an idle outbox holds back what its neighbours write. At a busy 100 MB/s that is half a gigabyte of WAL,
/// and each store of an idle relay costs a record and a catalog query.
pub const IDLE_INTERVAL: Duration = Duration::from_secs(5);

/// What should be stored now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Nothing.
    Nothing,
    /// This position: events were delivered.
    Progress(Position),
    /// This position, if a look at the catalog begun *now* finds the outbox published: only keepalives came, and
    /// Postgres sends keepalives for a table it no longer publishes, too (P8).
    Idle(Position),
}

/// See the module's documentation. Times are since any fixed instant.
#[derive(Debug)]
pub struct Confirm {
    stored: Position,
    /// Whether a store (or the catalog look before it) is under way.
    busy: bool,
    /// Events delivered when the last store began.
    events_at_last: u64,
    last_begun: Duration,
}

impl Confirm {
    /// `stored` is what the store holds at `now`.
    pub fn new(stored: Position, now: Duration) -> Self {
        Confirm { stored, busy: false, events_at_last: 0, last_begun: now }
    }

    /// What to store, given the delivered position and how many events were delivered in all.
    ///
    /// `hurry` skips the intervals: the relay is about to leave.
    pub fn due(&self, delivered: Position, events: u64, now: Duration, hurry: bool) -> Due {
        if self.busy || delivered == self.stored {
            return Due::Nothing;
        }
        let waited = now.saturating_sub(self.last_begun);
        if events > self.events_at_last {
            let due = hurry || waited >= PROGRESS_INTERVAL;
            return if due { Due::Progress(delivered) } else { Due::Nothing };
        }
        let due = hurry || waited >= IDLE_INTERVAL;
        if due { Due::Idle(delivered) } else { Due::Nothing }
    }

    /// When [`Confirm::due`] may next say something other than nothing, if anything is waiting for the clock.
    pub fn wake_at(&self, delivered: Position, events: u64) -> Option<Duration> {
        if self.busy || delivered == self.stored {
            return None;
        }
        let interval = if events > self.events_at_last { PROGRESS_INTERVAL } else { IDLE_INTERVAL };
        Some(self.last_begun + interval)
    }

    /// A store of what [`Confirm::due`] said begins.
    pub fn begun(&mut self, events: u64, now: Duration) {
        debug_assert!(!self.busy, "one store at a time");
        self.busy = true;
        self.events_at_last = events;
        self.last_begun = now;
    }

    /// The store is durable: from here on its end may be confirmed.
    pub fn stored(&mut self, position: Position) {
        debug_assert!(position.is_at_or_after(&self.stored), "P1: {position} is behind {}", self.stored);
        self.busy = false;
        if position.is_at_or_after(&self.stored) {
            self.stored = position;
        }
    }

    /// The store under way will not be heard of: it may have happened or not, and nothing is built on it.
    pub fn abandoned(&mut self) {
        self.busy = false;
    }

    /// Whether a store is under way.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// What the store holds.
    pub fn stored_position(&self) -> Position {
        self.stored
    }

    /// What may be confirmed to Postgres: a commit end, never inside a transaction.
    pub fn confirmable(&self) -> Lsn {
        self.stored.end_lsn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(lsn: u64) -> Position {
        Position::at(Lsn::new(lsn))
    }

    #[test]
    fn only_a_stored_position_is_confirmed() {
        let mut confirm = Confirm::new(at(10), Duration::ZERO);
        let now = Duration::from_secs(1);
        assert_eq!(confirm.due(at(20), 1, now, false), Due::Progress(at(20)));
        confirm.begun(1, now);
        assert_eq!(confirm.confirmable(), Lsn::new(10));
        assert_eq!(confirm.due(at(30), 9, now * 99, true), Due::Nothing, "one store at a time");
        assert_eq!(confirm.wake_at(at(30), 9), None);
        confirm.stored(at(20));
        assert_eq!(confirm.confirmable(), Lsn::new(20));
    }

    #[test]
    fn progress_is_stored_soon_and_keepalives_seldom() {
        let confirm = Confirm::new(at(10), Duration::ZERO);
        assert_eq!(confirm.due(at(20), 1, PROGRESS_INTERVAL / 2, false), Due::Nothing);
        assert_eq!(confirm.due(at(20), 1, PROGRESS_INTERVAL, false), Due::Progress(at(20)));
        assert_eq!(confirm.due(at(20), 0, PROGRESS_INTERVAL, false), Due::Nothing);
        assert_eq!(confirm.due(at(20), 0, IDLE_INTERVAL, false), Due::Idle(at(20)));
        assert_eq!(confirm.due(at(20), 0, Duration::ZERO, true), Due::Idle(at(20)));
        assert_eq!(confirm.wake_at(at(20), 0), Some(IDLE_INTERVAL));
        assert_eq!(confirm.wake_at(at(10), 0), None);
    }

    #[test]
    fn a_position_inside_a_transaction_is_stored_and_not_confirmed() {
        let mut confirm = Confirm::new(at(10), Duration::ZERO);
        let partial = crate::position::Partial { commit_lsn: Lsn::new(50), index: 3 };
        confirm.begun(3, Duration::ZERO);
        confirm.stored(Position { end_lsn: Lsn::new(10), partial: Some(partial) });
        assert_eq!(confirm.confirmable(), Lsn::new(10));
        assert_eq!(confirm.stored_position().partial, Some(partial));
    }
}
