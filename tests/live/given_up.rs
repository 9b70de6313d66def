//! P3: an event that cannot be delivered is given up the way that was asked for, alone, and
//! everything else arrives in order.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::relay::{EXIT, Relay, RelayCommand};
use crate::support::seed::from_environment;
use crate::support::servers::kafka::PARTITIONS;
use crate::support::sql::Sql;
use crate::support::topic::{self, Record};
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

/// Bytes the broker takes in a record of topic 0.
const BROKER_MAX: &str = "200000";

/// A topic of dead letters of this test's own.
fn dead_letters(world: &World) -> String {
    format!("{}.dead", world.name)
}

fn giving_up(world: &World, on_error: &str) -> RelayCommand {
    let file = format!(
        "[delivery]\ndead_letter_topic = {:?}\n",
        dead_letters(world)
    );
    world
        .run()
        .option("--on-error", on_error)
        .config_file(&file)
}

/// An event nobody takes, of an aggregate of `workload`, whose others are well: it has no version,
/// and does not count.
fn poison(sql: &Sql, aggregate_type: &str, payload: &str) -> String {
    let insert = format!(
        "insert into outbox (id, aggregatetype, aggregateid, type, payload)
         values (gen_random_uuid(), {aggregate_type}, 'a1', 'Bad', {payload}) returning id::text"
    );
    sql.rows(&insert, &[])[0].get(0)
}

/// One of each class: no topic, no topic's name, more than the producer sends, more than the broker
/// takes.
fn one_of_each(world: &World, sql: &Sql) -> Vec<(String, &'static str)> {
    let kind = format!("'{}'", world.kind(0));
    vec![
        (poison(sql, "null", "'{}'"), "unroutable"),
        (poison(sql, "'not a topic'", "'{\"why\": 7}'"), "unroutable"),
        (
            poison(sql, &kind, "to_jsonb(repeat('x', 2000000))"),
            "too-large",
        ),
        // Hexadecimal noise, so that no compression brings it below the limit.
        (
            poison(
                sql,
                &kind,
                "(select jsonb_agg(md5(n::text)) from generate_series(1, 12000) n)",
            ),
            "too-large",
        ),
    ]
}

fn world() -> World {
    let world = World::new();
    topic::create(
        &world.brokers,
        &world.topic(0),
        PARTITIONS,
        &[("max.message.bytes", BROKER_MAX)],
    );
    world
}

/// Writes that many events with poison among them, and waits until all the others have arrived.
fn among_others(world: &World, relay: &mut Relay, events: u64) -> Vec<(String, &'static str)> {
    let writers = world.workload(&Plan {
        writers: 4,
        pause: Duration::ZERO,
        ..Plan::default()
    });
    let sql = world.sql();
    let mut bad = Vec::new();
    for _ in 0..3 {
        writers.wait_for(events / 4);
        bad.extend(one_of_each(world, &sql));
    }
    writers.wait_for(events / 4);
    writers.stop();
    let findings = world.assert_all_good_delivered();
    eprintln!("{} copies", findings.duplicates);
    assert_eq!(
        relay
            .metric("walrelay_errors_total{kind=\"event\"}")
            .unwrap_or_default(),
        0.0,
        "it never stopped"
    );
    bad
}

#[test]
fn undeliverable_events_become_dead_letters_and_others_arrive_in_order() {
    let world = world();
    topic::create(&world.brokers, &dead_letters(&world), 1, &[]);
    let mut relay = giving_up(&world, "dead-letter").start();
    relay.wait_ready();
    let bad = among_others(
        &world,
        &mut relay,
        from_environment("WALRELAY_TEST_EVENTS", 6_000),
    );
    let letters = || topic::read(&world.brokers, &dead_letters(&world));
    eventually(
        "all dead letters are there",
        ARRIVAL,
        || ids(&letters()).len(),
        |count| *count >= bad.len(),
    );
    let letters = letters();
    assert_eq!(
        ids(&letters),
        bad.iter().map(|(id, _)| id.clone()).collect()
    );
    for letter in &letters {
        let (id, class) = bad
            .iter()
            .find(|(id, _)| *id == letter.header("id"))
            .expect("one of the bad");
        assert_eq!(
            (
                letter.header("walrelay-error-class"),
                letter.header("walrelay-row-id")
            ),
            ((*class).into(), id.clone())
        );
        assert_eq!(
            (
                letter.header("walrelay-outbox"),
                letter.header("walrelay-slot")
            ),
            ("public.outbox".into(), world.name.clone())
        );
        assert!(
            letter.header("walrelay-error").len() > 20
                && letter.header("walrelay-original-position").contains(":")
        );
        assert!(relay.log().contains(id));
    }
    let count = relay
        .metric("walrelay_dead_lettered_events_total")
        .unwrap_or_default();
    assert!(count >= 12.0, "{count}");
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

fn ids(letters: &[Record]) -> BTreeSet<String> {
    letters.iter().map(|letter| letter.header("id")).collect()
}

#[test]
fn skipped_events_are_counted_and_logged_and_others_arrive_in_order() {
    let world = world();
    let mut relay = giving_up(&world, "skip").start();
    relay.wait_ready();
    let bad = among_others(&world, &mut relay, 4_000);
    world.wait_confirmed();
    let log = relay.log();
    for (id, _) in &bad {
        assert!(
            log.lines()
                .any(|line| line.contains(id) && line.contains("an event was given up")),
            "{id}"
        );
    }
    assert!(
        relay
            .metric("walrelay_skipped_events_total")
            .unwrap_or_default()
            >= 12.0
    );
    assert_eq!(topic::count(&world.brokers, &dead_letters(&world)), 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_relay_killed_among_undeliverable_events_loses_no_other() {
    let world = world();
    topic::create(&world.brokers, &dead_letters(&world), 1, &[]);
    let writers = world.workload(&Plan {
        writers: 4,
        ..Plan::default()
    });
    let sql = world.sql();
    let mut bad = Vec::new();
    for _ in 0..6 {
        let mut relay = giving_up(&world, "dead-letter").start();
        relay.wait_ready();
        bad.extend(one_of_each(&world, &sql));
        writers.wait_for(fastrand::u64(10..400));
        relay.kill_hard();
    }
    let mut relay = giving_up(&world, "dead-letter").start();
    relay.wait_ready();
    writers.stop();
    world.assert_all_good_delivered();
    let letters = || ids(&topic::read(&world.brokers, &dead_letters(&world)));
    eventually("all dead letters are there", ARRIVAL, letters, |found| {
        *found == bad.iter().map(|(id, _)| id.clone()).collect()
    });
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
