//! Whose turn it is: one relay of a slot is at work, and others stand by.
//!
//! Postgres says who has the slot, or the lease on the table. The store says who had it last: a
//! relay that takes over stores its id before it publishes anything. So a relay that finds its own
//! id there knows that no other one was at work.

use std::mem::take;
use std::time::Duration;

/// The wait of a stand-by between two looks at who is at work, to which up to as much is added, so
/// that two of them do not come in step.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// How often it is found out whether a stand-by could take over.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// How long acks of what a stream left in flight are waited for before the table is read.
const LAST_ACKS_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest standstill of a process that keeps its turn, where the server ends a session after
/// `silence`: the last message is at most a third of `silence` older than it.
pub fn bearable(silence: Duration) -> Duration {
    silence * 2 / 3
}

/// Who has the slot, or the lease on the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtWork {
    /// The last session of this process, which the server has not ended yet.
    Own,
    /// Somebody who is no relay has the lease.
    Stranger,
    /// Another relay streams.
    Streams,
    /// Another relay reads the table.
    Reads,
}

/// What a stand-by does after a look at who is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Open a session.
    Open,
    /// Look again after [`StandBy::wait`].
    Wait,
    /// Find out whether this relay could take over, which is told if not; and wait.
    Check,
}

/// A relay that waits until no other one is at work. Times are since any fixed instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandBy {
    next_check: Duration,
}

impl StandBy {
    /// It begins at `now`.
    pub fn new(now: Duration) -> StandBy {
        StandBy {
            next_check: now + CHECK_INTERVAL,
        }
    }

    /// What follows a look at `now`, which found this.
    pub fn look(&mut self, at_work: Option<AtWork>, now: Duration) -> Look {
        let is_due = self.next_check <= now;
        match at_work {
            None => Look::Open,
            // It keeps no relay from the slot: that is tried again.
            Some(AtWork::Stranger) if is_due => Look::Open,
            Some(_) if is_due => {
                self.next_check = now + CHECK_INTERVAL;
                Look::Check
            }
            Some(_) => Look::Wait,
        }
    }

    /// The wait before the next look. `chance`: from 0 to 1, at random.
    pub fn wait(chance: f64) -> Duration {
        LOOK_INTERVAL.mul_f64(1.0 + chance)
    }
}

/// Knows whether another relay was at work since the last session of this process.
///
/// The other one may have published copies of what this one delivered. So later events of their
/// keys have to come again behind them (P2).
#[derive(Debug)]
pub struct Turn {
    /// Whether nothing counts that this process delivered.
    is_past: bool,
    /// Whether topics may have what comes again.
    is_in_doubt: bool,
}

impl Default for Turn {
    fn default() -> Self {
        Turn {
            is_past: false,
            // An earlier process may have been killed.
            is_in_doubt: true,
        }
    }
}

impl Turn {
    /// The slot or the lease is had. `counts`: the process itself stored what is stored.
    ///
    /// Whether all that the process knows still counts. If not, its id has to be stored before
    /// anything is published.
    pub(crate) fn resume(&mut self, counts: bool) -> bool {
        self.is_past |= !counts;
        self.is_in_doubt |= self.is_past;
        !self.is_past
    }

    /// A stand-by sees this at work. Whether it gives way, and abandons what it has in flight: the
    /// other relay publishes that.
    pub fn sees(&mut self, at_work: AtWork) -> bool {
        // Nothing counts that this process delivered: one that streams may store nothing.
        self.is_past |= at_work == AtWork::Streams;
        matches!(at_work, AtWork::Streams | AtWork::Reads)
    }

    /// Whether another relay was at work, or may have been.
    pub fn is_past(&self) -> bool {
        self.is_past
    }

    /// How long acks of what a stream left in flight are waited for before the table is read: not
    /// at all where another relay was at work.
    pub fn last_acks_timeout(&self) -> Duration {
        match self.is_past {
            true => Duration::ZERO,
            false => LAST_ACKS_TIMEOUT,
        }
    }

    /// A session opens, and goes on from what is stored. Whether nothing else counts.
    pub(crate) fn open(&mut self) -> bool {
        take(&mut self.is_past)
    }

    /// Topics may have what comes again: the next stream looks there.
    pub fn doubt(&mut self) {
        self.is_in_doubt = true;
    }

    /// A stream begins. Whether it looks in the topics.
    pub fn take_doubt(&mut self) -> bool {
        take(&mut self.is_in_doubt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A turn after the first session.
    fn turn() -> Turn {
        let mut turn = Turn::default();
        assert!(turn.take_doubt(), "an earlier one was killed");
        turn
    }

    #[test]
    fn what_a_process_knows_counts_until_another_relay_took_over() {
        for counts in [true, false] {
            let mut turn = turn();
            assert_eq!(turn.resume(counts), counts);
            assert_eq!(turn.open(), !counts);
            assert_eq!(turn.take_doubt(), !counts);
            assert!(turn.resume(true), "from here on it is ours");
        }
    }

    #[test]
    fn a_stand_by_gives_way_to_a_relay_and_waits_for_no_stranger() {
        let sees = |at_work| {
            let mut turn = turn();
            (turn.sees(at_work), turn.is_past())
        };
        assert_eq!(sees(AtWork::Streams), (true, true));
        assert_eq!(sees(AtWork::Reads), (true, false), "it stores its id first");
        assert_eq!(sees(AtWork::Own), (false, false));
        assert_eq!(sees(AtWork::Stranger), (false, false));
        let looks = |at_work| {
            let mut stand_by = StandBy::new(Duration::ZERO);
            let times = [0, 5, 9, 10].map(Duration::from_secs);
            times.map(|now| stand_by.look(at_work, now))
        };
        assert_eq!(looks(None), [Look::Open; 4]);
        let waits = [Look::Wait, Look::Check, Look::Wait, Look::Check];
        assert_eq!(looks(Some(AtWork::Reads)), waits);
        let tries = [Look::Wait, Look::Open, Look::Open, Look::Open];
        assert_eq!(looks(Some(AtWork::Stranger)), tries);
    }

    #[test]
    fn what_does_not_count_is_not_forgotten_by_a_session_that_fails_to_open() {
        let mut turn = turn();
        assert!(!turn.resume(false));
        assert!(!turn.resume(true), "its id was stored, and no more");
        assert!(turn.open());
        assert!(turn.resume(true));
    }
}
