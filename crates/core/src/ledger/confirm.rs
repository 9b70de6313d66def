//! When to store the delivered position, and which position may be confirmed to Postgres.
//!
//! There are two rules. Only a stored position is confirmed (P1), so the slot is never ahead of the
//! store; a slot that is ahead was moved by another program. Storing costs work, so progress is
//! stored at most every [`PROGRESS_INTERVAL`]. A keepalive alone is stored at most every
//! [`IDLE_INTERVAL`], after a check of the catalog.

use std::time::Duration;

use crate::position::{Lsn, Position};

/// The least time between two stores while events are delivered. After a crash, about as much is
/// published again. A tenth of a second of events shares one stored record.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// The least time between two stores for keepalives alone, which retains the WAL of other tables.
/// At 100 MB/s of WAL that is half a gigabyte. Each store of an idle relay costs a record and a
/// catalog query.
pub(crate) const IDLE_INTERVAL: Duration = Duration::from_secs(5);

/// The least time between any two stores while commits of other sessions wait for the confirmed
/// LSN. A position that is stored in Postgres makes WAL itself, and so the next keepalive.
pub(crate) const SYNCHRONOUS_INTERVAL: Duration = Duration::from_millis(20);

/// The position to store now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Nothing.
    Nothing,
    /// Events were delivered: store this position.
    Progress(Position),
    /// Only keepalives came: store this position, if a catalog check that begins *now* finds the
    /// outbox published. Postgres also sends keepalives for a table that it no longer publishes
    /// (P8).
    Idle(Position),
}

/// Decides when to store; see the module's documentation. Times are since any fixed instant.
#[derive(Debug)]
pub struct Confirm {
    stored: Position,
    /// The last position that the store was given, which it may have.
    last: Position,
    /// Whether a store, or the catalog check before it, is under way.
    busy: bool,
    /// The number of delivered events when the last store began.
    events_at_last: u64,
    last_begun: Duration,
    /// Whether commits of other sessions wait for the confirmed LSN.
    is_synchronous: bool,
}

impl Confirm {
    /// `stored` is the position in the store at `now`.
    pub fn new(stored: Position, now: Duration) -> Self {
        Confirm {
            stored,
            last: stored,
            busy: false,
            events_at_last: 0,
            last_begun: now,
            is_synchronous: false,
        }
    }

    /// The position to store, given the delivered position and the total number of delivered
    /// events. None is before one that the store was given: the delivered position goes back where
    /// it waits again for rows that are to be marked.
    ///
    /// `hurry` skips the intervals, for a relay that stops.
    pub fn due(&self, delivered: Position, events: u64, now: Duration, hurry: bool) -> Due {
        let Some(next) = self.next(delivered) else {
            return Due::Nothing;
        };
        let waited = now.saturating_sub(self.last_begun);
        if !hurry && waited < self.interval(events) {
            return Due::Nothing;
        }
        if events > self.events_at_last {
            Due::Progress(next)
        } else {
            Due::Idle(next)
        }
    }

    /// The next position to store, if one can be.
    fn next(&self, delivered: Position) -> Option<Position> {
        let next = self.last.later_of(delivered);
        (!self.busy && !self.stored.is_at_or_after(&next)).then_some(next)
    }

    fn interval(&self, events: u64) -> Duration {
        match (self.is_synchronous, events > self.events_at_last) {
            (true, _) => SYNCHRONOUS_INTERVAL,
            (false, true) => PROGRESS_INTERVAL,
            (false, false) => IDLE_INTERVAL,
        }
    }

    /// Whether commits of other sessions wait for the confirmed LSN.
    pub fn set_synchronous(&mut self, is_synchronous: bool) {
        self.is_synchronous = is_synchronous;
    }

    /// The earliest time at which [`Confirm::due`] can return a position; `None` if it does not
    /// depend on the clock.
    pub fn wake_at(&self, delivered: Position, events: u64) -> Option<Duration> {
        self.next(delivered)?;
        Some(self.last_begun + self.interval(events))
    }

    /// A store of the position from [`Confirm::due`] begins; the caller begins no other before it
    /// ends.
    pub fn begun(&mut self, events: u64, now: Duration) {
        debug_assert!(!self.busy, "one store at a time");
        self.busy = true;
        self.events_at_last = events;
        self.last_begun = now;
    }

    /// The store is given `position`.
    pub fn storing(&mut self, position: Position) {
        debug_assert!(
            position.is_at_or_after(&self.last),
            "P12: {position} is behind {}",
            self.last
        );
        self.last = self.last.later_of(position);
    }

    /// The store is durable: the end LSN of its position may be confirmed.
    pub fn stored(&mut self, position: Position) {
        debug_assert!(
            position.is_at_or_after(&self.stored),
            "P1: {position} is behind {}",
            self.stored
        );
        self.busy = false;
        self.stored = self.stored.later_of(position);
    }

    /// Abandons the store under way, whose result stays unknown. The stored position is unchanged.
    pub fn abandoned(&mut self) {
        self.busy = false;
    }

    /// Whether a store is under way.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// The position in the store.
    pub fn stored_position(&self) -> Position {
        self.stored
    }

    /// The LSN that may be confirmed to Postgres: a commit end, never inside a transaction.
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
        confirm.storing(at(20));
        assert_eq!(confirm.confirmable(), Lsn::new(10));
        assert_eq!(
            confirm.due(at(30), 9, now * 99, true),
            Due::Nothing,
            "one store at a time"
        );
        assert_eq!(confirm.wake_at(at(30), 9), None);
        confirm.stored(at(20));
        assert_eq!(confirm.confirmable(), Lsn::new(20));
    }

    #[test]
    fn progress_is_stored_soon_and_keepalives_seldom() {
        let confirm = Confirm::new(at(10), Duration::ZERO);
        assert_eq!(
            confirm.due(at(20), 1, PROGRESS_INTERVAL / 2, false),
            Due::Nothing
        );
        assert_eq!(
            confirm.due(at(20), 1, PROGRESS_INTERVAL, false),
            Due::Progress(at(20))
        );
        assert_eq!(
            confirm.due(at(20), 0, PROGRESS_INTERVAL, false),
            Due::Nothing
        );
        assert_eq!(
            confirm.due(at(20), 0, IDLE_INTERVAL, false),
            Due::Idle(at(20))
        );
        assert_eq!(
            confirm.due(at(20), 0, Duration::ZERO, true),
            Due::Idle(at(20))
        );
        assert_eq!(confirm.wake_at(at(20), 0), Some(IDLE_INTERVAL));
        assert_eq!(confirm.wake_at(at(10), 0), None);
    }

    #[test]
    fn while_commits_wait_for_the_confirmed_lsn_every_position_is_stored_soon() {
        let mut confirm = Confirm::new(at(10), Duration::ZERO);
        confirm.set_synchronous(true);
        for events in [0, 1] {
            assert_eq!(
                confirm.due(at(20), events, SYNCHRONOUS_INTERVAL / 2, false),
                Due::Nothing
            );
            assert_ne!(
                confirm.due(at(20), events, SYNCHRONOUS_INTERVAL, false),
                Due::Nothing
            );
            assert_eq!(confirm.wake_at(at(20), events), Some(SYNCHRONOUS_INTERVAL));
        }
        assert_eq!(
            confirm.due(at(5), 1, IDLE_INTERVAL, true),
            Due::Nothing,
            "it never goes back"
        );
    }

    #[test]
    fn no_position_follows_a_later_one_that_may_be_stored() {
        let mut confirm = Confirm::new(at(10), Duration::ZERO);
        let now = IDLE_INTERVAL;
        confirm.begun(1, now);
        confirm.storing(at(30));
        confirm.abandoned();
        let due = |confirm: &Confirm| confirm.due(at(20), 1, 2 * now, false);
        assert_eq!(due(&confirm), Due::Idle(at(30)));
        assert!(confirm.wake_at(at(20), 1).is_some());
        confirm.begun(1, 2 * now);
        confirm.storing(at(30));
        confirm.stored(at(30));
        assert_eq!(due(&confirm), Due::Nothing);
    }

    #[test]
    fn a_position_inside_a_transaction_is_stored_and_not_confirmed() {
        let mut confirm = Confirm::new(at(10), Duration::ZERO);
        let partial = crate::position::Partial {
            commit_lsn: Lsn::new(50),
            index: 3,
        };
        let inside = Position {
            end_lsn: Lsn::new(10),
            partial: Some(partial),
        };
        confirm.begun(3, Duration::ZERO);
        confirm.stored(inside);
        assert_eq!(confirm.confirmable(), Lsn::new(10));
        assert_eq!(confirm.stored_position().partial, Some(partial));
    }
}
