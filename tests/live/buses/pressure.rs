//! P4, P5: what a server that is away does not take waits in Postgres, and not in memory.

use super::{Fate, Lab, TestBus, TestServer, ready};
use crate::support::relay::{EXIT, Relay};
use crate::support::wait::eventually;
use crate::support::world::ARRIVAL;

const BYTES: f64 = (1 << 20) as f64;
const EVENTS: f64 = 300.0;
/// For what is in flight, its copies and bookkeeping: half of what waits.
const GROWN_BYTES_MAX: u64 = 8 << 20;

/// Commits so many events of so many bytes over 200 aggregates at once.
fn commit<B: TestBus>(lab: &Lab<B>, events: u32, bytes: u32) {
    let kind = lab.world.kind(0);
    lab.world.sql().run(&format!(
        "select emit('{kind}', '{kind}-' || n % 200, {bytes}) from generate_series(1, {events}) n"
    ));
}

/// Waits until intake is closed for this reason.
#[track_caller]
fn wait_closed(relay: &Relay, reason: &str) {
    let sample = format!("walrelay_intake_closed{{reason=\"{reason}\"}}");
    let closed = || relay.metric(&sample);
    eventually("intake is closed", ARRIVAL, closed, |closed| {
        *closed == Some(1.0)
    });
}

pub(super) fn a_backlog_for_a_server_that_is_away_closes_intake_and_is_bounded<B: TestServer>() {
    let Some(mut lab) = Lab::<B>::new(Fate::Frozen) else {
        return;
    };
    let limits = "[sink]\nmax_in_flight_bytes = \"1MiB\"\n";
    let mut relay = ready(&lab.run(limits));
    commit(&lab, 200, 20);
    lab.all_delivered();
    let before = relay.process.memory_bytes("VmRSS:").expect("it runs");
    lab.bus.freeze();
    commit(&lab, 4_000, 4_000);
    wait_closed(&relay, "in_flight_bytes");
    let in_flight = relay.metric("walrelay_in_flight_bytes");
    assert!(in_flight < Some(1.1 * BYTES), "{in_flight:?}");
    lab.bus.thaw();
    lab.all_delivered();
    let peak = relay.process.resident_peak_bytes().expect("it runs");
    let grown = peak.saturating_sub(before);
    eprintln!(
        "{}: {} MiB more than {} MiB for 16 MB behind 1 MiB",
        B::NAME,
        grown >> 20,
        before >> 20
    );
    assert!(grown < GROWN_BYTES_MAX, "{} MiB more", grown >> 20);
    lab.world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());

    let limits = "[sink]\nmax_in_flight_events = 300\n";
    let mut relay = ready(&lab.run(limits));
    lab.bus.freeze();
    commit(&lab, 2_000, 20);
    wait_closed(&relay, "in_flight_events");
    let in_flight = relay.metric("walrelay_in_flight_events");
    assert_eq!(in_flight, Some(EVENTS));
    lab.bus.thaw();
    lab.all_delivered();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
