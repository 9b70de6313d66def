//! P4: memory is bounded by bytes in flight, whatever the size of a transaction.

use std::time::Duration;

use crate::support::seed::from_environment;
use crate::support::servers::{Kafka, Postgres};
use crate::support::wait::eventually;
use crate::support::world::World;

const ARRIVAL: Duration = Duration::from_secs(240);
const BUDGET: &str = "[sink]\nmax_in_flight_bytes = \"8MiB\"\n";

/// The budget in flight, the producer's copies and bookkeeping of it, and the program itself.
const RESIDENT_BYTES_MAX: u64 = 96 << 20;

/// Rows of a transaction, and how many of them are acked when the relay is killed.
const ROWS: i64 = 80_000;
const HALF: u32 = 40_000;

/// One transaction over 500 aggregates, larger as a whole than the relay may ever be.
fn commit_at_once(world: &World, rows: u64) {
    let kind = world.kind(0);
    world.sql().run(&format!(
        "insert into outbox select gen_random_uuid(), '{kind}', '{kind}-' || n % 500, 'Changed',
            jsonb_build_object('v', n, 'of', '{kind}-' || n % 500, 'filling', repeat('x', 800))
         from generate_series(1, {rows}) n"
    ));
}

#[test]
fn a_large_transaction_is_relayed_in_bounded_memory() {
    let rows = from_environment("WALRELAY_TEST_ROWS", 120_000);
    let world = World::new();
    let mut relay = world.run().config_file(BUDGET).start();
    relay.wait_ready();
    commit_at_once(&world, rows);
    let goal = i64::try_from(rows).unwrap();
    eventually(
        "all rows arrive",
        ARRIVAL,
        || world.delivered(),
        |records| *records >= goal,
    );
    let peak = relay.process.resident_peak_bytes().unwrap();
    eprintln!("{rows} rows in one transaction: {} MiB at most", peak >> 20);
    assert!(peak < RESIDENT_BYTES_MAX, "{} MiB resident", peak >> 20);
    let findings = world.check();
    findings.assert_sound();
    assert_eq!(findings.duplicates, 0);
    world.wait_confirmed(ARRIVAL);
}

/// A record in librdkafka's queue costs more than a small event has bytes.
#[test]
fn small_events_in_flight_to_a_frozen_broker_stay_within_the_memory_limit() {
    const LIMIT: u64 = 16 << 20;
    let kafka = Kafka::never_fenced();
    let world = World::on(Postgres::shared(), kafka.brokers());
    let mut relay = world.run().start();
    relay.wait_ready();
    world.emit(&world.sql(), "first");
    world.wait_confirmed(ARRIVAL);
    let before = relay.process.memory_bytes("VmRSS:").unwrap();
    kafka.freeze();
    let kind = world.kind(0);
    world.sql().run(&format!(
        "insert into outbox select gen_random_uuid(), '{kind}', '{kind}-' || n % 500, 'Changed',
            jsonb_build_object('v', n, 'of', '{kind}-' || n % 500)
         from generate_series(1, 150000) n"
    ));
    let in_flight = || relay.metric("walrelay_in_flight_events").unwrap_or(0.0);
    let in_flight_bytes = || relay.metric("walrelay_in_flight_bytes").unwrap_or(0.0);
    eventually("no more is taken in", ARRIVAL, in_flight_bytes, |bytes| {
        *bytes >= LIMIT as f64
    });
    let grown = relay.process.memory_bytes("VmRSS:").unwrap() - before;
    let each = grown as f64 / in_flight();
    eprintln!(
        "{} events in flight: {} MiB more, {each:.0} bytes each",
        in_flight(),
        grown >> 20
    );
    kafka.thaw();
    let goal = 150_001;
    eventually(
        "all rows arrive",
        ARRIVAL,
        || world.delivered(),
        |records| *records >= goal,
    );
    let peak = relay.process.resident_peak_bytes().unwrap();
    assert!(peak < RESIDENT_BYTES_MAX, "{} MiB resident", peak >> 20);
    assert!(
        grown < LIMIT + LIMIT / 4,
        "{} MiB for the bytes in flight",
        grown >> 20
    );
    assert_eq!(world.check().duplicates, 0);
}

#[test]
fn a_relay_killed_inside_a_transaction_resumes_inside_it() {
    let world = World::new();
    let mut relay = world
        .run()
        .config_file(BUDGET)
        .killed_at("acked", HALF)
        .start();
    relay.wait_ready();
    let before = world.confirmed();
    commit_at_once(&world, ROWS.unsigned_abs());
    relay.wait_killed();
    // What was in flight beyond is a small part of the rest.
    let at_kill = world.delivered();
    assert!(
        (i64::from(HALF)..ROWS).contains(&at_kill),
        "{at_kill} of {ROWS}"
    );
    assert!(world.confirmed() < world.wal() && world.confirmed() >= before);

    let _relay = world.relay();
    eventually(
        "all of it has arrived",
        ARRIVAL,
        || world.check(),
        |findings| findings.lost.is_empty(),
    );
    let findings = world.check();
    findings.assert_sound();
    eprintln!(
        "killed at {at_kill} of {ROWS}, {} copies",
        findings.duplicates
    );
    assert!(
        i64::try_from(findings.duplicates).unwrap() < at_kill,
        "it began at the start of the transaction again: {} copies",
        findings.duplicates
    );
}
