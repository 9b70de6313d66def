//! How long a relay that Postgres counts as a synchronous standby holds up commits of all sessions.

use std::time::Duration;

use crate::error::{Error, Kind};
use crate::position::Lsn;

/// How long it may hold up commits without an ack.
const HELD_MAX: Duration = Duration::from_secs(3);

/// Since when it has confirmed and acked nothing while it holds up commits.
#[derive(Debug, Default)]
pub(crate) struct HeldCommits {
    acked: u64,
    confirmed: Lsn,
    since: Option<Duration>,
}

impl HeldCommits {
    /// Whether it has held up commits for too long. `holds` says whether it holds up any.
    pub(crate) fn is_too_long(
        &mut self,
        holds: bool,
        acked: u64,
        confirmed: Lsn,
        now: Duration,
    ) -> bool {
        let moved = acked > self.acked || confirmed > self.confirmed;
        self.acked = acked;
        self.confirmed = confirmed;
        if moved || !holds {
            self.since = None;
            return false;
        }
        now.saturating_sub(*self.since.get_or_insert(now)) >= HELD_MAX
    }

    /// The reason to leave the stream. `all_acked` says that the bus owes nothing.
    pub(crate) fn error(all_acked: bool) -> Error {
        let (kind, missing) = match all_acked {
            true => (
                Kind::PostgresUnreachable,
                "nothing that was acked was parked or stored",
            ),
            false => (Kind::BusUnreachable, "no event was acked"),
        };
        let seconds = HELD_MAX.as_secs();
        let cause = format!(
            "Postgres counts this relay as a synchronous standby, and for {seconds} s {missing}: \
             leaving the stream, so that commits wait for other standbys alone"
        );
        Error::new(kind, cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_relay_without_progress_holds_up_commits_for_too_long() {
        let mut held = HeldCommits::default();
        let lsn = Lsn::new;
        let at = Duration::from_secs;
        assert!(
            (0..9).all(|second| !held.is_too_long(false, 0, lsn(1), at(second))),
            "none waits"
        );
        assert!(
            (10..19).all(|second| !held.is_too_long(true, second, lsn(1), at(second))),
            "events are acked"
        );
        assert!(
            (20..29).all(|second| !held.is_too_long(true, 19, lsn(second), at(second))),
            "it confirms"
        );
        assert!(
            (30..39).all(|second| !held.is_too_long(false, 19, lsn(29), at(second))),
            "none waits any more"
        );
        let late = |held: &mut HeldCommits, second| held.is_too_long(true, 19, lsn(29), at(second));
        assert!(!late(&mut held, 40) && !late(&mut held, 42) && late(&mut held, 43));
        assert_eq!(HeldCommits::error(false).kind(), Kind::BusUnreachable);
        assert_eq!(
            HeldCommits::error(true).kind(),
            Kind::PostgresUnreachable,
            "the producer stays"
        );
    }
}
