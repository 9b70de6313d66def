//! How long something has waited to be confirmed, told from looks that follow each other. Pure.
//!
//! Postgres keeps no time for a place in its log, and `pg_stat_replication.flush_lag` is that of what was confirmed
//! last: it stands still while nothing is confirmed, which is when it matters. What can be known is when an end of the
//! log was first seen, and that the relay has not confirmed it since.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::position::Lsn;

/// Ends kept; where there are more the answer may be too small, never too large. Two hours of looks, one per two seconds.
const ENDS_MAX: usize = 3_600;

/// The ends of the log that were seen, each with when it was first seen; those that are confirmed are forgotten.
#[derive(Debug, Default)]
pub struct Looks(VecDeque<(Instant, Lsn)>);

impl Looks {
    /// Takes in that the log ended at `end` and was confirmed to `confirmed`, and says how long the oldest of what is
    /// not confirmed has waited *at least*. `None`: it was not seen before, and may have waited for any time.
    pub fn look(&mut self, now: Instant, confirmed: Lsn, end: Lsn) -> Option<Duration> {
        if self.0.back().is_some_and(|(_, last)| *last > end) {
            // Another server answers, and what was seen was of another log.
            self.0.clear();
        }
        let first = self.0.is_empty();
        if self.0.back().is_none_or(|(_, last)| *last < end) && self.0.len() < ENDS_MAX {
            self.0.push_back((now, end));
        }
        let waits = self.0.iter().find(|(_, end)| *end > confirmed).copied();
        // The newest stays, to tell the next look that there was one.
        while self.0.len() > 1 && self.0.front().is_some_and(|(_, end)| *end <= confirmed) {
            self.0.pop_front();
        }
        match waits {
            None => Some(Duration::ZERO),
            Some(_) if first => None,
            Some((since, _)) => Some(now.saturating_duration_since(since)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of these looks says: seconds, confirmed, end of the log.
    fn looks(given: &[(u64, u64, u64)]) -> Vec<Option<u64>> {
        let (began, mut looks) = (Instant::now(), Looks::default());
        let at = |seconds| began + Duration::from_secs(seconds);
        let look = |(seconds, confirmed, end): &(u64, u64, u64)| {
            looks.look(at(*seconds), Lsn::new(*confirmed), Lsn::new(*end)).map(|waited| waited.as_secs())
        };
        given.iter().map(look).collect()
    }

    #[test]
    fn one_look_tells_nothing_unless_everything_is_confirmed() {
        assert_eq!(looks(&[(0, 90, 100)]), [None]);
        assert_eq!(looks(&[(0, 100, 100)]), [Some(0)]);
    }

    #[test]
    fn the_wait_grows_while_nothing_is_confirmed() {
        assert_eq!(looks(&[(0, 90, 100), (5, 90, 100), (60, 90, 400)]), [None, Some(5), Some(60)]);
    }

    #[test]
    fn what_is_confirmed_counts_no_longer_and_what_came_later_counts_from_when_it_was_seen() {
        let given = [(0, 90, 100), (5, 95, 200), (9, 100, 300), (12, 200, 300), (13, 300, 300), (20, 300, 400)];
        assert_eq!(looks(&given), [None, Some(5), Some(4), Some(3), Some(0), Some(0)]);
        assert_eq!(looks(&[(0, 100, 100), (2, 100, 100), (4, 100, 200), (9, 100, 300)])[3], Some(5));
    }

    #[test]
    fn a_log_that_goes_back_is_another_one_and_looked_at_anew() {
        assert_eq!(looks(&[(0, 90, 100), (5, 40, 50), (7, 40, 60)]), [None, None, Some(2)]);
    }

    #[test]
    fn a_relay_that_keeps_up_with_a_busy_server_has_no_lag() {
        let given: Vec<_> = (0..10_000).map(|look| (2 * look, 100 * look, 100 * (look + 1))).collect();
        assert!(looks(&given)[1..].iter().all(|waited| *waited == Some(0)));
    }

    #[test]
    fn memory_is_bounded_and_the_answer_is_rather_too_small() {
        let began = Instant::now();
        let mut looks = Looks::default();
        for look in 0..10_000 {
            looks.look(began + Duration::from_secs(look), Lsn::new(1), Lsn::new(10 + look));
        }
        assert_eq!(looks.0.len(), ENDS_MAX);
        let now = began + Duration::from_secs(10_000);
        assert_eq!(looks.look(now, Lsn::new(1), Lsn::new(20_000)), Some(Duration::from_secs(10_000)));
        assert_eq!(looks.look(now, Lsn::new(12_000), Lsn::new(20_000)), Some(Duration::ZERO));
    }
}
