//! Whose turn it is: one relay of a slot is at work, and others stand by.
//!
//! Postgres says who has the slot, or the lease on the table. The store says who had it last: a
//! relay that takes over stores its id before it publishes anything. So a relay that finds its own
//! id there knows that no other one was at work.

use std::mem::take;
use std::time::Duration;

/// The longest standstill of a process that keeps its turn, where the server ends a session after
/// `silence`: the last message is at most a third of `silence` older than it.
pub fn bearable(silence: Duration) -> Duration {
    silence * 2 / 3
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

    /// Another relay streams: nothing counts that this process delivered, until a session opens.
    pub fn lose(&mut self) {
        self.is_past = true;
    }

    /// Whether another relay was at work, or may have been.
    pub fn is_past(&self) -> bool {
        self.is_past
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
    fn what_does_not_count_is_not_forgotten_by_a_session_that_fails_to_open() {
        let mut turn = turn();
        assert!(!turn.resume(false));
        assert!(!turn.resume(true), "its id was stored, and no more");
        assert!(turn.open());
        assert!(turn.resume(true));
    }
}
