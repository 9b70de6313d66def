//! P3: a burst of different events that the broker refuses costs a few producers in all, whatever
//! becomes of them, and all others arrive.

use std::time::{Duration, Instant};

use crate::support::relay::{EXIT, Relay, RelayCommand};
use crate::support::seed::from_environment;
use crate::support::servers::kafka::PARTITIONS;
use crate::support::sql::Sql;
use crate::support::topic;
use crate::support::wait::{LIMIT, eventually};
use crate::support::world::World;

/// How long the burst may take.
const BURST: Duration = LIMIT;
/// How many are refused, and how many good events come with each.
const REFUSED: u64 = 50;
/// How many sizes they have.
const SIZES: u64 = 7;

/// The first batch that each partition refuses finishes a producer, if its records are no suspects
/// yet. So does a record that is smaller than all that were refused before.
fn finished_max() -> f64 {
    f64::from(PARTITIONS) + SIZES as f64
}

/// Noise that no compression brings below what the broker takes in a record of topic 0.
const LARGE: &str =
    "(select jsonb_agg(md5(random()::text)) from generate_series(1, 1000 + 200 * $n) n)";

/// Topic 0 takes no record of more than 20 kB.
fn world() -> World {
    let world = World::keeping();
    world.setup();
    topic::create(
        &world.brokers,
        &world.topic(0),
        PARTITIONS,
        &[("max.message.bytes", "20000")],
    );
    topic::create(&world.brokers, &dead_letters(&world), 1, &[]);
    world
}

fn dead_letters(world: &World) -> String {
    format!("{}.dead", world.name)
}

fn run(world: &World, on_error: &str) -> RelayCommand {
    // Small enough for the topic, or batches of good events would be refused for their size.
    let batches = "[kafka.properties]\n\"batch.size\" = \"16000\"\n";
    let file = format!(
        "[delivery]\ndead_letter_topic = {:?}\n{batches}",
        dead_letters(world)
    );
    world
        .run()
        .option("--on-error", on_error)
        .config_file(&file)
}

/// Commits good events with one that is refused after each so many, each of an aggregate of its
/// own.
fn write(world: &World, sql: &Sql) {
    let good = from_environment("WALRELAY_TEST_EVENTS", 5_000) / REFUSED;
    let kind = world.kind(0);
    for number in 0..REFUSED {
        let large = LARGE.replace("$n", &(number % SIZES).to_string());
        sql.run(&format!(
            "begin;
             select emit('{kind}', 'good-' || n % 40, 20) from generate_series(1, {}) n;
             insert into outbox (id, aggregatetype, aggregateid, type, payload)
             values (gen_random_uuid(), '{kind}', 'bad-{number}', 'Bad', {large});
             select emit('{kind}', 'good-' || n % 40, 20) from generate_series(1, {}) n;
             commit",
            good / 2,
            good - good / 2
        ));
    }
}

/// Writes them while the relay is stopped, and waits until all good ones have arrived and
/// `given_up` says that all others were. How many are refused together does not depend on how soon
/// each is written.
fn burst(world: &World, run: &RelayCommand, given_up: impl Fn(&Relay) -> bool) -> Relay {
    let sql = world.sql();
    let mut relay = run.start();
    world.emit(&sql, "first");
    world.assert_all_delivered();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    write(world, &sql);
    let mut relay = run.start();
    relay.wait_ready();
    let began = Instant::now();
    let committed = world.committed();
    eventually("all are given up", BURST, || given_up(&relay), |done| *done);
    let good = committed - i64::try_from(REFUSED).unwrap();
    eventually(
        "all others have arrived",
        BURST,
        || world.delivered(),
        |count| *count >= good,
    );
    let took = began.elapsed();
    let findings = world.assert_all_good_delivered();
    eprintln!(
        "{REFUSED} of {committed} refused: {took:?}, {} copies",
        findings.duplicates
    );
    let finished = relay
        .metric("walrelay_retries_total{side=\"bus\"}")
        .unwrap_or_default();
    assert!(
        finished <= finished_max(),
        "{finished} producers for {REFUSED} events"
    );
    relay
}

fn metric(relay: &Relay, name: &str) -> bool {
    relay.metric(name).unwrap_or_default() >= REFUSED as f64
}

#[test]
fn a_burst_of_dead_letters_replaces_few_producers() {
    let world = world();
    let run = run(&world, "dead-letter");
    let mut relay = burst(&world, &run, |relay| {
        metric(relay, "walrelay_dead_lettered_events_total")
    });
    let letters = topic::read(&world.brokers, &dead_letters(&world));
    assert_eq!(letters.len() as u64, REFUSED);
    assert!(
        letters
            .iter()
            .all(|letter| letter.header("walrelay-error-class") == "too-large")
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_burst_of_skipped_events_replaces_few_producers() {
    let world = world();
    let run = run(&world, "skip");
    let mut relay = burst(&world, &run, |relay| {
        metric(relay, "walrelay_skipped_events_total")
    });
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

fn is_parked(mode: &str) {
    let world = world();
    let run = run(&world, "park").option("--mode", mode);
    let all = i64::try_from(REFUSED).unwrap();
    let mut relay = burst(&world, &run, |_| world.number_parked() >= all);
    assert_eq!(world.number_parked(), all, "nothing else waits");
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_burst_of_parked_events_replaces_few_producers() {
    is_parked("slot");
}

#[test]
fn a_burst_of_events_parked_by_a_poller_replaces_few_producers() {
    is_parked("poll");
}

/// A topic that takes no batch as large as those the relay makes by itself, and every record that
/// comes.
fn takes_small_batches(on_error: &str) {
    let world = world();
    let sql = world.sql();
    let kind = world.kind(0);
    // Of these it takes one step to what the topic takes.
    let batches = "[kafka.properties]\n\"batch.size\" = \"125000\"\n";
    let file = format!(
        "[delivery]\ndead_letter_topic = {:?}\n{batches}",
        dead_letters(&world)
    );
    let finished = |relay: &Relay| {
        relay
            .metric("walrelay_retries_total{side=\"bus\"}")
            .unwrap_or_default()
    };
    // All of it is there at once, and what is there at once goes out together.
    sql.run(&format!(
        "select emit('{kind}', 'good-' || n % 40, 200) from generate_series(1, 6000) n"
    ));
    let mut relay = world
        .run()
        .option("--on-error", on_error)
        .config_file(&file)
        .start();
    world.assert_all_delivered();
    eventually(
        "a producer is finished",
        BURST,
        || finished(&relay),
        |count| *count > 0.0,
    );
    assert!(
        relay
            .log()
            .contains("the broker refuses batches for their size"),
        "{}",
        relay.log()
    );
    // By now it knows.
    let known = finished(&relay);
    sql.run(&format!(
        "select emit('{kind}', 'good-' || n % 40, 200) from generate_series(1, 6000) n"
    ));
    world.assert_all_delivered();
    assert_eq!(finished(&relay), known, "{}", relay.log());
    assert_eq!(topic::count(&world.brokers, &dead_letters(&world)), 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn batches_shrink_until_the_topic_accepts_them() {
    takes_small_batches("stop");
}

#[test]
fn batches_shrink_before_events_are_given_up() {
    takes_small_batches("dead-letter");
}

/// Keys that the broker refuses, and that the producer does.
const KEYS: [u64; 2] = [33_000, 3_000_000];

#[test]
fn an_event_with_a_key_that_is_too_large_is_given_up_and_its_dead_letter_shortened() {
    for on_error in ["dead-letter", "skip"] {
        let world = World::new();
        for topic in [world.topic(0), dead_letters(&world)] {
            topic::create(
                &world.brokers,
                &topic,
                PARTITIONS,
                &[("max.message.bytes", "20000")],
            );
        }
        let mut relay = run(&world, on_error).start();
        relay.wait_ready();
        let sql = world.sql();
        sql.run("alter table outbox alter aggregateid type text");
        for bytes in KEYS {
            let key = format!(
                "(select string_agg(md5(n::text), '') from generate_series(1, {bytes} / 32 + 1) n)"
            );
            sql.run(&format!(
                "insert into outbox (id, aggregatetype, aggregateid, type, payload)
                 values (gen_random_uuid(), '{}', left({key}, {bytes}), 'Bad', '{{}}')",
                world.kind(0)
            ));
            world.emit(&sql, "good");
        }
        // A producer that is replaced may publish them twice.
        eventually(
            "the good ones arrive",
            LIMIT,
            || world.delivered(),
            |count| *count >= KEYS.len() as i64,
        );
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
        let mut shortened: Vec<_> = topic::read(&world.brokers, &dead_letters(&world))
            .iter()
            .map(|letter| {
                (
                    letter.header("walrelay-shortened"),
                    letter.key_text().len(),
                    letter.value.is_some(),
                )
            })
            .collect();
        shortened.sort();
        shortened.dedup();
        let of = |bytes: u64| (format!("key={bytes}"), 1_024, false);
        let mut expected = if on_error == "skip" {
            Vec::new()
        } else {
            KEYS.map(of).to_vec()
        };
        expected.sort();
        assert_eq!(shortened, expected);
    }
}
