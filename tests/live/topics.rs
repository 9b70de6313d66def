//! P3: topics that no record may go to, topics and headers that are walrelay's own, and a topic of
//! dead letters that is not there.

use serde_json::Value;

use super::parked::NO_TOPICS;
use crate::support::relay::{EXIT, Relay, RelayCommand, last_words};
use crate::support::servers::kafka::Listener;
use crate::support::servers::{Kafka, Postgres};
use crate::support::sql::Sql;
use crate::support::topic;
use crate::support::wait::{eventually, none_lost};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

/// A topic the broker takes no records for, whoever sends them.
const INTERNAL: &str = "__consumer_offsets";

fn dead(world: &World) -> String {
    format!("dead.{}", world.name)
}

/// A relay with short retries, whose rows name their topics themselves unless they are of this
/// test's own kinds.
fn run(world: &World, on_error: &str, lines: &str) -> RelayCommand {
    let file = format!(
        "[route]\ntopic = \"{{aggregatetype|match('(t.*)', 'outbox.event.$1')}}\"\n{lines}
         [delivery]\ndead_letter_topic = {:?}\nretry_attempts = 2\nretry_base = \"200ms\"\n\
         retry_cap = \"1s\"\nretry_jitter_percent = 0
         {NO_TOPICS}",
        dead(world)
    );
    world
        .run()
        .option("--on-error", on_error)
        .config_file(&file)
}

/// Commits an event of aggregate `key` for this topic, or for none, and gives its id.
fn row(sql: &Sql, aggregate_type: Option<&str>, key: &str, payload: &str) -> String {
    let insert = "insert into outbox (id, aggregatetype, aggregateid, type, payload)
         values (gen_random_uuid(), $1, $2, 'Any', $3::text::jsonb) returning id::text";
    sql.rows(insert, &[&aggregate_type, &key, &payload])[0].get(0)
}

/// Lines of the log with this message.
fn told(relay: &Relay, message: &str) -> Vec<Value> {
    let log = relay.log();
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines
        .filter(|line| {
            line["message"]
                .as_str()
                .is_some_and(|text| text.contains(message))
        })
        .collect()
}

fn letters(world: &World) -> Vec<(String, String)> {
    let of = |letter: &topic::Record| (letter.header("id"), letter.header("walrelay-error-class"));
    topic::read(&world.brokers, &dead(world))
        .iter()
        .map(of)
        .collect()
}

#[test]
fn a_skipped_event_is_logged_and_counted_once_while_another_topic_refuses() {
    let world = World::new();
    let mut relay = run(&world, "skip", "").start();
    relay.wait_ready();
    let sql = world.sql();
    sql.run(&format!(
        "insert into outbox (id, aggregatetype, aggregateid, type, payload)
         select gen_random_uuid(), 'team-{}-' || n % 2, n, 'Any', '{{}}' from generate_series(1, \
         8) n",
        world.name
    ));
    let counted = || relay.metric("walrelay_skipped_events_total");
    eventually("all are skipped", ARRIVAL, counted, |count| {
        *count == Some(8.0)
    });
    world.wait_confirmed();
    assert_eq!(
        told(&relay, "an event was given up").len(),
        8,
        "{}",
        relay.log()
    );
    assert_eq!(counted(), Some(8.0));
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// A row of an internal topic among good ones: those arrive, and what has become of the row is
/// told.
fn internal(on_error: &str, guarantee: &str) -> (World, Relay, String) {
    let world = World::new();
    topic::create(&world.brokers, &world.topic(0), 2, &[]);
    topic::create(&world.brokers, &dead(&world), 1, &[]);
    let mut relay = run(&world, on_error, "")
        .option("--guarantee", guarantee)
        .start();
    relay.wait_ready();
    let sql = world.sql();
    world.emit(&sql, "before");
    let id = row(&sql, Some(INTERNAL), "bad", "{}");
    world.emit(&sql, "behind");
    world.assert_all_good_delivered();
    world.wait_confirmed();
    assert!(relay.is_ready(), "{:?}", relay.readiness());
    (world, relay, id)
}

#[test]
fn a_row_for_an_internal_topic_of_kafka_is_a_dead_letter() {
    for guarantee in ["at-least-once", "exactly-once"] {
        let (world, mut relay, id) = internal("dead-letter", guarantee);
        assert_eq!(
            letters(&world),
            [(id, "rejected".to_owned())],
            "{guarantee}"
        );
        let counted = || relay.metric("walrelay_dead_lettered_events_total");
        eventually("it is counted", ARRIVAL, counted, |count| {
            *count == Some(1.0)
        });
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    }
}

#[test]
fn a_row_for_an_internal_topic_of_kafka_is_skipped() {
    let (_world, mut relay, id) = internal("skip", "at-least-once");
    let [line] = &told(&relay, "an event was given up")[..] else {
        panic!("{}", relay.log())
    };
    assert!(
        line["row"].as_str().unwrap().contains(&id)
            && line["cause"].as_str().unwrap().contains(INTERNAL),
        "{line}"
    );
    let counted = || relay.metric("walrelay_skipped_events_total");
    eventually("it is counted", ARRIVAL, counted, |count| {
        *count == Some(1.0)
    });
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_row_for_an_internal_topic_of_kafka_is_parked() {
    let (world, mut relay, id) = internal("park", "at-least-once");
    let parked = || {
        world.sql().text(
            "select coalesce(string_agg(convert_from(row_id, 'utf8') || ' ' || class, '; '), '') \
             from walrelay.parked",
        )
    };
    eventually("it waits", ARRIVAL, parked, |parked| {
        *parked == format!("{id} rejected")
    });
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_row_for_an_internal_topic_of_kafka_stops_the_relay() {
    let world = World::new();
    let mut relay = run(&world, "stop", "").start();
    relay.wait_ready();
    let id = row(&world.sql(), Some(INTERNAL), "bad", "{}");
    assert_eq!(relay.wait_exit(EXIT), Some(21));
    let log = relay.log();
    let (error, fix) = last_words(&log);
    assert!(
        error.contains(&id) && error.contains(INTERNAL) && fix.contains("Kafka's own"),
        "{error}\n{fix}"
    );
}

#[test]
fn a_missing_dead_letter_topic_blocks_the_relay_until_it_is_created() {
    waits_for_the_topic_of_dead_letters("at-least-once", "slot");
}

#[test]
fn a_missing_dead_letter_topic_blocks_exactly_once_until_it_is_created() {
    waits_for_the_topic_of_dead_letters("exactly-once", "slot");
}

#[test]
fn a_missing_dead_letter_topic_blocks_a_poller_until_it_is_created() {
    waits_for_the_topic_of_dead_letters("at-least-once", "poll");
}

fn waits_for_the_topic_of_dead_letters(guarantee: &str, mode: &str) {
    let world = World::keeping();
    world.setup();
    for kind in 0..2 {
        topic::create(&world.brokers, &world.topic(kind), 2, &[]);
    }
    let run = run(&world, "dead-letter", "")
        .option("--guarantee", guarantee)
        .option("--mode", mode);
    let mut relay = run.start();
    relay.wait_ready();
    let missing = told(&relay, "does not exist, or this Kafka user");
    assert!(
        missing.len() == 1
            && missing[0]["message"]
                .as_str()
                .unwrap()
                .contains(&dead(&world)),
        "{}",
        relay.log()
    );

    let sql = world.sql();
    world.emit(&sql, "before");
    let bad: Vec<String> = (0..3).map(|_| row(&sql, None, "bad", "{}")).collect();
    for _ in 0..20 {
        world.emit_to(&sql, 1, "behind");
    }
    let refused = || told(&relay, "the dead-letter topic refuses a dead letter");
    let lines = eventually(
        "it is tried again and again",
        3 * ARRIVAL,
        refused,
        |lines| lines.len() >= 6,
    );
    let waits: Vec<u64> = lines
        .iter()
        .take(6)
        .map(|line| {
            line["wait_ms"]
                .to_string()
                .trim_matches('"')
                .parse()
                .unwrap()
        })
        .collect();
    assert_eq!(waits, [200, 400, 800, 1_000, 1_000, 1_000]);
    let create = format!(
        "kafka-topics --bootstrap-server {} --create --topic {}",
        world.brokers,
        dead(&world)
    );
    assert!(
        lines[0]["fix"].as_str().unwrap().contains(&create),
        "{lines:?}"
    );
    assert!(
        missing[0]["message"].as_str().unwrap().contains(&create),
        "{missing:?}"
    );
    let (status, why) = relay.readiness().unwrap();
    assert!(
        status == 503 && why.contains("dead_letters_refused") && why.contains(&dead(&world)),
        "{status}: {why}"
    );
    assert_eq!(
        relay
            .metric("walrelay_dead_lettered_events_total")
            .unwrap_or_default(),
        0.0
    );

    topic::create(&world.brokers, &dead(&world), 1, &[]);
    eventually(
        "all letters are there",
        ARRIVAL,
        || letters(&world).len(),
        |count| *count >= 3,
    );
    assert_eq!(
        told(&relay, "an event was given up").len(),
        3,
        "each is told of once"
    );
    world.assert_all_good_delivered();
    if mode == "slot" {
        world.wait_confirmed();
    }
    relay.wait_ready();
    let expected: Vec<_> = bad
        .into_iter()
        .map(|id| (id, "unroutable".to_owned()))
        .collect();
    assert_eq!(letters(&world), expected);
    let counted = || relay.metric("walrelay_dead_lettered_events_total");
    eventually("each is counted once", ARRIVAL, counted, |count| {
        *count == Some(3.0)
    });
    // What was sent behind a letter that was refused came once more, and not with each try.
    assert!(
        world.records(1).len() <= 40,
        "{} records",
        world.records(1).len()
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_deleted_topic_makes_the_relay_unready_until_it_is_created_again() {
    let world = World::new();
    topic::create(&world.brokers, &world.topic(0), 1, &[]);
    let own = format!("own.{}", world.name);
    topic::create(&world.brokers, &own, 2, &[]);
    let mut relay = run(&world, "stop", "")
        .variable("WALRELAY_DELIVERY_RETRY_ATTEMPTS", "1000")
        .start();
    relay.wait_ready();
    let sql = world.sql();
    row(&sql, Some(&own), "a", "{}");
    eventually(
        "the first is there",
        ARRIVAL,
        || topic::read(&world.brokers, &own).len(),
        |count| *count == 1,
    );
    topic::delete(&world.brokers, &own);
    let id = row(&sql, Some(&own), "a", "{}");
    world.emit(&sql, "behind");
    let refused = || told(&relay, "a topic refuses records");
    eventually("it is tried again", ARRIVAL, refused, |lines| {
        !lines.is_empty()
    });
    let tries = || {
        let (status, why) = relay.readiness().expect("an answer");
        assert!(
            status == 503 && why.contains("\"topic_refused\"") && why.contains(&own),
            "{status}: {why}"
        );
        refused().len()
    };
    eventually("it is tried three times more", ARRIVAL, tries, |tries| {
        *tries >= 4
    });
    topic::create(&world.brokers, &own, 2, &[]);
    let ids = || {
        topic::read(&world.brokers, &own)
            .iter()
            .map(|record| record.header("id"))
            .collect::<Vec<_>>()
    };
    eventually("it is there", ARRIVAL, ids, |ids| *ids == [id.clone()]);
    world.assert_all_good_delivered();
    relay.wait_ready();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_dead_letter_keeps_its_value_after_its_topic_was_deleted() {
    for guarantee in ["at-least-once", "exactly-once"] {
        let world = World::new();
        topic::create(&world.brokers, &world.topic(0), 1, &[]);
        topic::create(&world.brokers, &dead(&world), 1, &[]);
        let mut relay = run(&world, "dead-letter", "")
            .option("--guarantee", guarantee)
            .start();
        relay.wait_ready();
        let sql = world.sql();
        let of_row = |payload: &str| row(&sql, Some("no topic"), "bad", payload);
        of_row(r#"{"number": 1}"#);
        eventually(
            "the first is there",
            ARRIVAL,
            || letters(&world).len(),
            |count| *count == 1,
        );
        topic::delete(&world.brokers, &dead(&world));
        let mut ids = vec![of_row(r#"{"number": 2}"#)];
        let refused = || told(&relay, "the dead-letter topic refuses a dead letter").len();
        eventually("it is not delivered", ARRIVAL, refused, |lines| *lines >= 1);
        ids.push(of_row(r#"{"number": 3}"#));
        topic::create(&world.brokers, &dead(&world), 1, &[]);
        let letters = || topic::read(&world.brokers, &dead(&world));
        let letters = eventually("both are there", 2 * ARRIVAL, letters, |letters| {
            letters.len() >= 2
        });
        for letter in &letters {
            let omitted = letter.header("walrelay-omitted-value-bytes");
            assert!(
                letter.value.is_some() && omitted.is_empty(),
                "{guarantee}: {letter:?}"
            );
        }
        let rows: Vec<_> = letters
            .iter()
            .map(|letter| letter.header("walrelay-row-id"))
            .collect();
        assert_eq!(rows, ids, "{guarantee}");
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    }
}

/// A Kafka whose users have to say who they are, and may do what nobody else was given the right
/// to.
fn guarded() -> Kafka {
    let login =
        "org.apache.kafka.common.security.plain.PlainLoginModule required user_relay=\"relay\";";
    let settings = vec![
        ("sasl.enabled.mechanisms", "PLAIN".to_owned()),
        ("plain.sasl.jaas.config", login.to_owned()),
    ];
    Kafka::guarded(&[Listener {
        name: "NAMED",
        protocol: "SASL_PLAINTEXT",
        settings,
    }])
}

/// A relay as the user `relay`.
fn named(run: RelayCommand, kafka: &Kafka, guarantee: &str) -> Relay {
    let user = [
        ("SECURITY_PROTOCOL", "SASL_PLAINTEXT"),
        ("SASL_MECHANISM", "PLAIN"),
        ("SASL_USERNAME", "relay"),
        ("SASL_PASSWORD", "relay"),
    ];
    let run = run
        .option("--brokers", &kafka.brokers_of("NAMED"))
        .option("--guarantee", guarantee);
    let set = |run: RelayCommand, (name, value)| {
        run.variable(&format!("WALRELAY_KAFKA_PROPERTY_{name}"), value)
    };
    let mut relay = user.into_iter().fold(run, set).start();
    relay.wait_ready();
    relay
}

#[test]
fn a_topic_without_write_access_is_named_and_resumed_after_a_grant() {
    let kafka = guarded();
    for guarantee in ["at-least-once", "exactly-once"] {
        let world = World::on(Postgres::shared(), kafka.brokers());
        for topic in [world.topic(0), world.topic(1), dead(&world)] {
            topic::create(&world.brokers, &topic, 1, &[]);
        }
        for denied in [world.topic(1), dead(&world)] {
            kafka.allow_writing("somebody", &denied);
        }
        let mut relay = named(run(&world, "dead-letter", ""), &kafka, guarantee);
        let sql = world.sql();
        world.emit(&sql, "before");
        let id = row(&sql, Some(world.kind(1)), "denied", "{}");
        world.emit(&sql, "behind");
        let refused = || told(&relay, "the dead-letter topic refuses a dead letter");
        let lines = eventually(
            "there is no right to write letters",
            ARRIVAL,
            refused,
            |lines| lines.len() >= 2,
        );
        let error = lines[0]["error"].as_str().unwrap();
        let fix = lines[0]["fix"].as_str().unwrap();
        assert!(
            error.contains("may not use the topic") && fix.contains(&dead(&world)),
            "{guarantee}: {error}, {fix}"
        );
        assert_eq!(
            told(&relay, "a topic refuses records").len(),
            3,
            "{guarantee}: as often as is configured"
        );
        kafka.allow_writing("relay", &dead(&world));
        eventually(
            "the letter is there",
            ARRIVAL,
            || letters(&world),
            |letters| !letters.is_empty(),
        );
        assert_eq!(letters(&world), [(id, "refused".to_owned())], "{guarantee}");
        world.assert_all_good_delivered();
        world.wait_confirmed();
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    }
}

#[test]
fn rows_cannot_use_walrelays_own_headers_and_topics() {
    let world = World::new();
    topic::create(&world.brokers, &world.topic(0), 1, &[]);
    topic::create(&world.brokers, &dead(&world), 1, &[]);
    let mut relay = run(&world, "dead-letter", "headers_from = \"{payload}\"\n").start();
    relay.wait_ready();
    let sql = world.sql();
    let forged = r#"{"walrelay-replay": "1", "WALRELAY-settled": "replayed",
                     "walrelay-settled-letter": "0:0", "tenant": "a"}"#;
    for _ in 0..2 {
        row(&sql, Some(world.kind(0)), "a", forged);
    }
    let own = [dead(&world), "walrelay-state".to_owned()]
        .map(|topic| row(&sql, Some(&topic), "a", forged));
    let last = row(&sql, None, "a", forged);
    eventually(
        "all letters are there",
        ARRIVAL,
        || letters(&world).len(),
        |count| *count >= 3,
    );
    let expected: Vec<_> = own
        .into_iter()
        .chain([last])
        .map(|id| (id, "unroutable".to_owned()))
        .collect();
    assert_eq!(letters(&world), expected);
    let records = world.records(0);
    for record in &records {
        let names: Vec<_> = record
            .headers
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(names, ["id", "walrelay-position", "tenant"]);
    }
    assert_eq!(records.len(), 2);
    let left_out = told(&relay, "are reserved; such headers of rows are omitted");
    assert!(
        left_out.len() == 1 && left_out[0]["outbox"] == "public.outbox",
        "{left_out:?}"
    );
    let classes: Vec<_> = letters(&world)
        .into_iter()
        .map(|(_, class)| class)
        .collect();
    assert_eq!(classes, ["unroutable"; 3]);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_topic_that_is_created_again_under_load_gets_all_that_follows_in_order() {
    for guarantee in ["at-least-once", "exactly-once"] {
        let world = World::new().with_kinds(1);
        let topic = world.topic(0);
        topic::create(&world.brokers, &topic, 2, &[]);
        let run = run(&world, "stop", "").variable("WALRELAY_DELIVERY_RETRY_ATTEMPTS", "1000");
        let mut relay = run.option("--guarantee", guarantee).start();
        relay.wait_ready();
        let writers = world.workload(&Plan::default());
        writers.wait_for(200);
        topic::delete(&world.brokers, &topic);
        topic::create(&world.brokers, &topic, 2, &[]);
        let before = world
            .sql()
            .text("select string_agg(id::text, ' ') from outbox");
        writers.wait_for(200);
        writers.stop();
        // What the first topic had acked went with it.
        let went = |lost: &String| before.contains(lost.split(' ').next().unwrap_or_default());
        none_lost(|| {
            let mut found = world.check();
            found.lost.retain(|lost| !went(lost));
            found
        });
        world.wait_confirmed();
        assert_eq!(
            relay.terminate(EXIT),
            Some(0),
            "{guarantee}: {}",
            relay.log()
        );
    }
}
