//! Whose turn it is: one relay of a slot is at work, and others stand by.
//!
//! Postgres says who has the slot, or the lease on the table. [`Turn`] says whether another relay
//! was at work in between, or another server answers: then nothing counts that this one delivered,
//! and topics may have what comes again.

use std::time::Duration;

/// The longest standstill of a process that keeps its turn, where the server ends a session after
/// `silence`: the last message is at most a third of `silence` older than it.
pub fn bearable(silence: Duration) -> Duration {
    silence * 2 / 3
}

/// Knows whether another relay was at work, by what is stored (`T`) and by whom this one waited for.
///
/// The other one may have published copies of what this one delivered. So later events of their keys
/// have to come again behind them (P2).
#[derive(Debug)]
pub struct Turn<T> {
    /// What the store took last of this process, and what it may have taken since: that is not
    /// known after a lost connection.
    held: Vec<T>,
    /// Whether nothing counts that this process delivered: another relay was seen that streams, or
    /// stored. Until a session opens, which takes it.
    pub is_past: bool,
    /// Whether topics may have what comes again, for which the next stream looks.
    pub is_in_doubt: bool,
}

impl<T> Default for Turn<T> {
    fn default() -> Self {
        Turn {
            held: Vec::new(),
            is_past: false,
            // An earlier process may have been killed.
            is_in_doubt: true,
        }
    }
}

impl<T: Clone + PartialEq> Turn<T> {
    /// A store begins. Unless its end is told, nobody knows whether it took `stored`.
    pub fn stores(&mut self, stored: &T) {
        self.held.push(stored.clone());
    }

    /// The store refused what it was to take.
    pub fn refused(&mut self) {
        self.held.pop();
    }

    /// The store took `stored`.
    pub fn stored(&mut self, stored: &T) {
        self.held = vec![stored.clone()];
    }

    /// The slot or the lease is had, and the store has `loaded`. Whether all that this process knows
    /// still counts. `is_here`: a record is of the server that answers.
    pub fn resume(&mut self, loaded: Option<&T>, is_here: impl Fn(&T) -> bool) -> bool {
        let is_held = loaded.is_none_or(|loaded| self.held.contains(loaded));
        self.is_past |= !is_held || !self.held.iter().all(is_here);
        if self.is_past {
            self.is_in_doubt = true;
            self.held = Vec::from_iter(loaded.cloned());
        }
        !self.is_past
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::take;

    /// The relay of a process that stored 1, and perhaps 2.
    fn stored_1_and_perhaps_2() -> Turn<u8> {
        let mut turn = Turn::default();
        turn.stored(&1);
        turn.stores(&2);
        turn.stores(&3);
        turn.refused();
        assert!(take(&mut turn.is_in_doubt) && !take(&mut turn.is_in_doubt));
        turn
    }

    #[test]
    fn what_a_process_knows_counts_until_another_relay_stored() {
        for (loaded, counts) in [
            (None, true),
            (Some(1), true),
            (Some(2), true),
            (Some(3), false),
        ] {
            let mut turn = stored_1_and_perhaps_2();
            assert_eq!(turn.resume(loaded.as_ref(), |_| true), counts, "{loaded:?}");
            assert_eq!(take(&mut turn.is_past), !counts, "{loaded:?}");
            assert_eq!(take(&mut turn.is_in_doubt), !counts, "{loaded:?}");
            assert!(
                turn.resume(loaded.as_ref(), |_| true),
                "from here on it is ours"
            );
        }
    }

    #[test]
    fn what_was_delivered_before_a_failover_does_not_count_on_the_new_timeline() {
        // P1: the old primary was at 2, the new one branched off at 1: its commits below 2 are new
        // events.
        let mut turn = stored_1_and_perhaps_2();
        assert!(!turn.resume(Some(&1), |held| *held == 1));
        assert!(take(&mut turn.is_past) && take(&mut turn.is_in_doubt));
    }

    #[test]
    fn what_a_process_knows_does_not_count_once_another_relay_was_seen() {
        let mut turn = stored_1_and_perhaps_2();
        turn.is_past = true;
        assert!(!turn.resume(Some(&1), |_| true));
        assert!(take(&mut turn.is_past) && take(&mut turn.is_in_doubt));
        assert!(turn.resume(Some(&1), |_| true));
    }
}
