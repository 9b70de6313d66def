//! P4: memory is bounded by bytes in flight, whatever the size of a transaction. `buses/memory.rs`
//! has the same of servers that take nothing.

use crate::support::seed::from_environment;
use crate::support::wait::grown;
use crate::support::world::World;

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
    grown("all rows arrive", goal, || world.delivered());
    let peak = relay.process.resident_peak_bytes().unwrap();
    eprintln!("{rows} rows in one transaction: {} MiB at most", peak >> 20);
    assert!(peak < RESIDENT_BYTES_MAX, "{} MiB resident", peak >> 20);
    let findings = world.check();
    findings.assert_sound();
    assert_eq!(findings.duplicates, 0);
    world.wait_confirmed();
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
    let findings = world.assert_all_good_delivered();
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
