//! P4: while a server takes nothing, the bytes in flight bound the memory, whatever the size of an
//! event.

use std::time::Duration;

use super::{Fate, Lab, TestServer, ready};
use crate::support::relay::Relay;
use crate::support::wait::eventually;

const DELIVERED: Duration = Duration::from_secs(240);

/// The bytes in flight, the client's copies and bookkeeping of them, and the program itself.
const RESIDENT_BYTES_MAX: u64 = 96 << 20;

/// A relay that has delivered an event, and that now waits for a server, however long that takes.
#[track_caller]
fn waiting<B: TestServer>(lab: &mut Lab<B>, lines: &str) -> Relay {
    let relay = ready(&lab.bus.patient(lab.run(lines)));
    lab.world.emit(&lab.world.sql(), "first");
    lab.all_delivered();
    lab.bus.freeze();
    relay
}

#[track_caller]
fn wait_full(relay: &Relay, limit: u64) {
    let in_flight = || relay.metric("walrelay_in_flight_bytes").unwrap_or(0.0);
    eventually("no more is taken in", DELIVERED, in_flight, |bytes| {
        *bytes >= limit as f64
    });
}

#[track_caller]
fn all_is_well<B: TestServer>(mut lab: Lab<B>, relay: &Relay) {
    lab.bus.thaw();
    let rows = lab.world.committed();
    let count = || lab.count();
    eventually("as many records as rows", DELIVERED, count, |count| {
        *count >= rows
    });
    let found = lab.all_delivered();
    let peak = relay.process.resident_peak_bytes().expect("it runs");
    eprintln!("{}: {} MiB at most", B::NAME, peak >> 20);
    assert!(peak < RESIDENT_BYTES_MAX, "{} MiB resident", peak >> 20);
    assert_eq!(found.duplicates, 0, "{}", relay.log());
}

/// A record in the queue of a client costs more than a small event has bytes.
pub(super) fn small_events_for_a_frozen_server_stay_within_the_memory_limit<B: TestServer>() {
    const LIMIT: u64 = 16 << 20;
    let Some(mut lab) = Lab::<B>::new(Fate::Frozen) else {
        return;
    };
    let relay = waiting(&mut lab, "");
    let before = relay.process.memory_bytes("VmRSS:").expect("it runs");
    let kind = lab.world.kind(0);
    lab.world.sql().run(&format!(
        "insert into outbox select gen_random_uuid(), '{kind}', '{kind}-' || n % 500, 'Changed',
            jsonb_build_object('v', n, 'of', '{kind}-' || n % 500)
         from generate_series(1, 25000) n"
    ));
    wait_full(&relay, LIMIT);
    let grown = relay.process.memory_bytes("VmRSS:").expect("it runs");
    let grown = grown.saturating_sub(before);
    let events = relay.metric("walrelay_in_flight_events").unwrap_or(1.0);
    eprintln!(
        "{}: {events} events in flight: {} MiB more, {:.0} bytes each",
        B::NAME,
        grown >> 20,
        grown as f64 / events
    );
    all_is_well(lab, &relay);
    assert!(
        grown < LIMIT + LIMIT / 4,
        "{} MiB for the bytes in flight",
        grown >> 20
    );
}

/// One transaction, larger as a whole than the relay may ever be.
pub(super) fn large_events_for_a_frozen_server_stay_within_the_memory_limit<B: TestServer>() {
    const LIMIT: u64 = 8 << 20;
    let Some(mut lab) = Lab::<B>::new(Fate::Frozen) else {
        return;
    };
    let relay = waiting(&mut lab, "[sink]\nmax_in_flight_bytes = \"8MiB\"\n");
    let kind = lab.world.kind(0);
    lab.world.sql().run(&format!(
        "select emit('{kind}', '{kind}-' || n % 50, 200000) from generate_series(1, 480) n"
    ));
    // One event more may not fit.
    wait_full(&relay, LIMIT - (1 << 20));
    all_is_well(lab, &relay);
}
