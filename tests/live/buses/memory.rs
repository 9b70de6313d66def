//! P4: while a server takes nothing, the bytes in flight bound the memory, whatever the size of an
//! event.

use std::time::Duration;

use super::{Fate, Lab, TestServer, ready};
use crate::support::relay::Relay;
use crate::support::wait::{eventually, grown};

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

fn in_flight(relay: &Relay, what: &str) -> f64 {
    let sample = format!("walrelay_in_flight_{what}");
    relay.metric(&sample).unwrap_or_default()
}

#[track_caller]
fn all_is_well<B: TestServer>(mut lab: Lab<B>, relay: &Relay) {
    lab.bus.thaw();
    let rows = lab.world.committed();
    let count = || lab.count();
    grown("as many records as rows", rows, count);
    let found = lab.all_delivered();
    let peak = relay.process.resident_peak_bytes().expect("it runs");
    eprintln!("{}: {} MiB at most", B::NAME, peak >> 20);
    assert!(peak < RESIDENT_BYTES_MAX, "{} MiB resident", peak >> 20);
    assert_eq!(found.duplicates, 0, "{}", relay.log());
}

/// A record in the queue of a client costs more than a small event has bytes.
pub(super) fn small_events_for_a_frozen_server_stay_within_the_memory_limit<B: TestServer>() {
    const LIMIT: u64 = 16 << 20;
    const BATCH: u32 = 5_000;
    let Some(mut lab) = Lab::<B>::new(Fate::Frozen) else {
        return;
    };
    let relay = waiting(&mut lab, "");
    let before = relay.process.memory_bytes("VmRSS:").expect("it runs");
    let kind = lab.world.kind(0);
    let mut committed = 0;
    let mut is_full = false;
    while !is_full {
        lab.world.sql().run(&format!(
            "insert into outbox select gen_random_uuid(), '{kind}', '{kind}-' || n % 500, 'Changed',
                jsonb_build_object('v', n, 'of', '{kind}-' || n % 500)
             from generate_series({committed} + 1, {committed} + {BATCH}) n"
        ));
        committed += BATCH;
        let taken = || ["events", "bytes"].map(|what| in_flight(&relay, what));
        let [_, bytes] = eventually("they are taken in", DELIVERED, taken, |[events, bytes]| {
            *events >= f64::from(committed) || *bytes >= LIMIT as f64
        });
        is_full = bytes >= LIMIT as f64;
    }
    let grown = relay.process.memory_bytes("VmRSS:").expect("it runs");
    let grown = grown.saturating_sub(before);
    let events = in_flight(&relay, "events");
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
    let full = (LIMIT - (1 << 20)) as f64;
    let bytes = || in_flight(&relay, "bytes");
    eventually("no more is taken in", DELIVERED, bytes, |bytes| {
        *bytes >= full
    });
    all_is_well(lab, &relay);
}
