//! The readiness of the relay, shared by what tells it and what shows it; and the remedies of the
//! reasons.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::Bus;
use walrelay_core::error::{NextCommand, Remedy};
use walrelay_core::readiness::{NotReady, Readiness, Side, ToDo};

const BLOCKED_FIX: &str = "see walrelay_intake_closed and the last warnings of the log, and what \
                           blocks walrelay in Postgres: \
     select pid, pg_blocking_pids(pid) from pg_stat_activity where application_name like \
     'walrelay%'";

/// The remedy for [`NotReady::Stalled`]. Without events in flight, the relay does not wait for the
/// bus.
pub(crate) fn stalled_fix(bus: Bus, in_flight_events: i64) -> Remedy {
    match (in_flight_events > 0, bus.refuses_each) {
        (false, _) => BLOCKED_FIX.into(),
        (true, false) => bus.stalled.into(),
        (true, true) => Remedy::from(
            "if the log has record_refused or record_delayed, do what its fix says; if not, ",
        )
        .and(bus.stalled),
    }
}

/// The remedy for [`NotReady::WalNotSent`].
pub(crate) fn wal_not_sent_fix() -> Remedy {
    Remedy::from(
        "a standby that synchronized_standby_slots names may be away, for which Postgres holds \
         events back: see it with `",
    )
    .and(NextCommand::new("doctor"))
    .and("`; or the server decodes a large transaction: select * from pg_stat_replication_slots")
}

/// The remedy for [`NotReady::OverBudget`].
pub(crate) const HELD_BACK: &str = "end a transaction that has been open for long, else remove \
                                    what keeps events \
     from the bus: docs/explanation/recovery.md";

/// The health of a relay, which the relay writes and the HTTP server reads. Clones share it; no
/// call blocks for long.
#[derive(Debug, Clone)]
pub struct HealthHandle(Arc<Mutex<Readiness>>);

impl HealthHandle {
    /// A health without reports: not ready. `bus`: the name of the bus, for texts.
    pub fn new(bus: &'static str, ready_within: Duration) -> Self {
        HealthHandle(Arc::new(Mutex::new(Readiness::new(bus, ready_within))))
    }

    /// A report of the relay's loop: see [`Readiness::report`].
    pub fn report(&self, to_do: ToDo) -> Option<NotReady> {
        self.0.lock().report(Instant::now(), to_do)
    }

    /// An end was connected or lost.
    pub fn connection(&self, side: Side, up: bool) {
        self.0.lock().connection(side, up);
    }

    /// Tells of a reason: see [`Readiness::tell`].
    pub fn tell(&self, reason: NotReady) {
        self.0.lock().tell(reason);
    }

    /// Withdraws a reason: see [`Readiness::withdraw`].
    pub fn withdraw(&self, code: &'static str) {
        self.0.lock().withdraw(code);
    }

    /// The reason why the relay is not ready now; `None` if it is ready.
    pub(crate) fn not_ready(&self) -> Option<NotReady> {
        self.0.lock().not_ready(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_of_a_stall_asks_for_a_refused_record_where_single_ones_are_refused() {
        let kafka = Bus::default();
        let other = Bus {
            refuses_each: true,
            ..kafka
        };
        let of = |bus, in_flight| stalled_fix(bus, in_flight).to_string();
        assert_eq!(of(kafka, 1), Remedy::from(kafka.stalled).to_string());
        let fix = of(other, 1);
        assert!(
            fix.contains("record_refused") && fix.ends_with(kafka.stalled),
            "{fix}"
        );
        assert!(of(other, 0).contains("pg_blocking_pids"));
    }
}
