//! P14: with `guarantee = "exactly-once"`, who reads what is committed sees every event once and in
//! order, whatever fails.

mod faults;
mod rate;
mod table;

use std::time::Duration;

use walrelay_core::failpoint::{POINTS, TRANSACTION_POINTS};
use walrelay_lab::verify::Findings;

use crate::support::relay::{EXIT, Relay, RelayCommand};
use crate::support::seed::{from_environment, generator};
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

fn run(world: &World) -> RelayCommand {
    world.run().option("--guarantee", "exactly-once")
}

fn relay(world: &World) -> Relay {
    let mut relay = run(world).start();
    relay.wait_ready();
    relay
}

/// Every row arrived, and none twice.
#[track_caller]
fn assert_once(world: &World) -> Findings {
    let findings = world.assert_all_delivered();
    assert_eq!(findings.duplicates, 0, "events came twice");
    findings
}

#[test]
fn exactly_once_delivers_each_event_once_across_a_restart() {
    let world = World::new();
    let mut first = relay(&world);
    let writers = world.workload(&Plan::default());
    writers.wait_for(200);
    // A busy broker takes long to create the topics, and a stop does not wait for that.
    let delivered = || world.delivered();
    eventually("some are delivered", ARRIVAL, delivered, |records| {
        *records > 0
    });
    let status = first
        .asked_by(world.command("status"))
        .flag("--json")
        .output()
        .stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    assert_eq!(status["guarantee"], "exactly-once", "{status}");
    assert_eq!(first.terminate(EXIT), Some(0), "{}", first.log());
    writers.wait_for(50);
    let mut second = relay(&world);
    writers.wait_for(50);
    writers.stop();
    assert_once(&world);
    world.wait_confirmed();
    let count = |name: &str| {
        second
            .metric(&format!("walrelay_{name}"))
            .unwrap_or_default()
    };
    assert!(
        count("committed_transactions_total") > 0.0
            && count("transaction_commit_seconds_count") > 0.0
    );
    eventually(
        "all that is acked is committed",
        ARRIVAL,
        || count("committed_events_total"),
        |committed| *committed == count("acked_events_total"),
    );
    assert_eq!(second.terminate(EXIT), Some(0), "{}", second.log());
}

#[test]
fn exactly_once_delivers_each_event_once_across_kills_under_load() {
    let world = World::new();
    let writers = world.workload(&Plan {
        writers: 6,
        ..Plan::default()
    });
    let mut chance = generator("exactly once");
    for round in 0..from_environment("WALRELAY_TEST_RESTARTS", 5) {
        let mut relay = relay(&world);
        std::thread::sleep(Duration::from_millis(chance.u64(0..1_500)));
        writers.wait_for(chance.u64(1..60));
        relay.kill_hard();
        if round % 3 == 2 {
            writers.wait_for(chance.u64(1..200));
        }
    }
    let mut relay = relay(&world);
    writers.stop();
    assert_once(&world);
    world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn exactly_once_delivers_each_event_once_across_a_kill_at_each_failpoint() {
    let world = World::new();
    let mut chance = generator("exactly once, points");
    // At its end there is nothing left to bring.
    for point in POINTS
        .into_iter()
        .chain(TRANSACTION_POINTS)
        .filter(|point| *point != "confirmed")
    {
        let passings = match point {
            "received" | "assembled" | "enqueued" | "acked" => chance.u32(0..=300),
            _ => chance.u32(0..=6),
        };
        eprintln!("killed at {point} after {passings} passings");
        let writers = world.workload(&Plan {
            writers: 3,
            aggregates: 8,
            ..Plan::default()
        });
        run(&world).killed_at(point, passings).start().wait_killed();
        writers.wait_for(5);
        writers.stop();
    }
    let mut relay = relay(&world);
    assert_once(&world);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// Rows of one transaction, of many aggregates, each with a version.
fn one_transaction(world: &World, rows: u32) {
    let kind = world.kind(0);
    world.sql().run(&format!(
        "select emit('{kind}', 'a' || n % 7, 20) from generate_series(1, {rows}) n"
    ));
}

#[test]
fn a_postgres_transaction_over_several_kafka_transactions_resumes_inside() {
    let world = World::new();
    let small = "[delivery]\ntransaction_max_events = 500\n";
    one_transaction(&world, 5_000);
    for passings in [1, 3, 2] {
        run(&world)
            .config_file(small)
            .killed_at("committing", passings)
            .start()
            .wait_killed();
    }
    let mut relay = run(&world).config_file(small).start();
    relay.wait_ready();
    assert_once(&world);
    let stored = || relay.metric("walrelay_positions_stored_total");
    eventually("it is not one transaction", ARRIVAL, stored, |stored| {
        *stored >= Some(4.0)
    });
    world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn settings_that_exclude_exactly_once_are_refused_with_a_remedy() {
    let world = World::new();
    let mut relay = run(&world).option("--state-store", "postgres").start();
    assert_eq!(relay.wait_exit(EXIT), Some(2));
    assert!(
        relay.log().contains("set state.store to kafka"),
        "{}",
        relay.log()
    );
}
