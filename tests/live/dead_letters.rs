//! P3, docs/how-to/handle-undelivered-events.md: `walrelay dead-letters`: what was given up is listed, sent again and settled, and nothing else
//! is touched.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::support::relay::{EXIT, RelayCommand, last_words, told};
use crate::support::servers::kafka::PARTITIONS;
use crate::support::servers::{Kafka, Postgres, free_port};
use crate::support::sql::Sql;
use crate::support::topic::{self, Record};
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

/// What topic 0 takes at first.
const SMALL: &str = "2000";

fn dead(world: &World) -> String {
    format!("{}.dead", world.name)
}

fn config(world: &World) -> String {
    format!("[delivery]\ndead_letter_topic = {:?}\n", dead(world))
}

/// One of the commands, with what it needs.
fn letters(world: &World, command: &str) -> RelayCommand {
    let all = RelayCommand::new("dead-letters").flag(command).option("--slot", &world.name);
    all.option("--brokers", &world.brokers).config_file(&config(world))
}

/// Its exit code, the JSON it printed, and its words.
#[track_caller]
fn ran(command: &RelayCommand) -> (i32, Value, String) {
    let output = command.clone().flag("--json").output();
    let words = told(&output.stderr);
    assert!(!words.contains("panicked"), "{words}");
    let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code().unwrap(), json, words)
}

/// The same of one that succeeds.
#[track_caller]
fn well(command: &RelayCommand) -> Value {
    let (code, json, words) = ran(command);
    assert_eq!(code, 0, "{words}");
    json
}

fn at(record: &Record) -> String {
    format!("{}:{}", record.partition, record.offset)
}

fn ids(records: &[Record]) -> Vec<String> {
    records.iter().map(|record| record.header("id")).collect()
}

/// A row of aggregate `key`; of a `size` in hexadecimal noise, so that no compression brings it below a limit.
fn row(world: &World, sql: &Sql, key: &str, size: u32) -> String {
    let insert = format!(
        "insert into outbox (id, aggregatetype, aggregateid, type, payload) values (gen_random_uuid(), '{}', '{key}', 'Big',
         (select jsonb_agg(md5(random()::text)) from generate_series(1, {size} / 32 + 1))) returning id::text",
        world.kind(0)
    );
    sql.rows(&insert, &[])[0].get(0)
}

#[test]
fn dead_letters_are_listed_shown_retried_and_resolved() {
    let world = World::new();
    topic::create(&world.brokers, &world.topic(0), PARTITIONS, &[("max.message.bytes", SMALL)]);
    topic::create(&world.brokers, &dead(&world), 3, &[]);
    let mut relay = world.run().option("--on-error", "dead-letter").config_file(&config(&world)).start();
    relay.wait_ready();
    let sql = world.sql();
    let well_id = row(&world, &sql, "a", 20);
    let of_a: Vec<String> = (0..3).map(|_| row(&world, &sql, "a", 9_000)).collect();
    let of_b = row(&world, &sql, "b", 9_000);
    let unroutable = "insert into outbox (id, aggregateid, payload) values (gen_random_uuid(), 'a', '\"canary\"')
         returning id::text";
    let lost: String = sql.rows(unroutable, &[])[0].get(0);
    let read = || topic::read(&world.brokers, &dead(&world));
    let expected: BTreeSet<String> = of_a.iter().chain([&of_b, &lost]).cloned().collect();
    eventually(
        "all letters are there",
        ARRIVAL,
        || ids(&read()).into_iter().collect(),
        |found: &BTreeSet<_>| *found == expected,
    );
    world.wait_confirmed(ARRIVAL);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    let all = read();
    let count = u64::try_from(all.len()).unwrap();
    let with = |test: &dyn Fn(&Record) -> bool| all.iter().filter(|record| test(record)).count() as u64;
    // A letter that was in flight while the relay looked for the one that was refused may be there twice.
    let of_lost = with(&|letter| letter.header("id") == lost);
    let delivered = world.delivered();

    // Listed: all of them, without a payload.
    let list = || letters(&world, "list");
    let json = well(&list());
    assert_eq!(
        (&json["matched"], &json["classes"]["unroutable"], &json["foreign"]),
        (&count.into(), &of_lost.into(), &0.into())
    );
    let listed: BTreeSet<&str> =
        json["events"].as_array().unwrap().iter().filter_map(|it| it["row_id"].as_str()).collect();
    assert_eq!(listed, expected.iter().map(String::as_str).collect());
    let text = list().succeed();
    eprintln!("{text}");
    assert!(
        text.starts_with("age ") && text.contains(&of_b) && text.contains("too-large") && !text.contains("canary"),
        "{text}"
    );
    assert!(text.contains(&format!("{count} dead letters: ")), "{text}");

    // By what is asked for.
    let matched = |command: RelayCommand| well(&command)["matched"].as_u64().unwrap();
    assert_eq!(matched(list().option("--id", &of_b)), with(&|letter| letter.header("id") == of_b));
    assert_eq!(matched(list().option("--aggregate", "a")), with(&|letter| letter.key_text() == "a"));
    assert_eq!(matched(list().option("--class", "unroutable")), of_lost);
    assert_eq!(matched(list().option("--topic", &world.topic(0))), count - of_lost);
    assert_eq!(matched(list().option("--outbox", "public.outbox")), count);
    assert_eq!(matched(list().flag(&at(&all[0]))), 1);
    assert_eq!(matched(list().option("--since", "1h").option("--limit", "1")), count);
    assert_eq!(matched(list().option("--slot", "another").flag("--all-slots")), count);
    for (none, said) in [
        (list().option("--older-than", "1h"), "all conditions"),
        (list().option("--slot", "another").option("--id", &lost), "--all-slots"),
        (list().option("--id", "' or true"), "all conditions"),
        (list().option("--outbox", "public.other"), "all conditions"),
        (letters(&world, "show").flag("2:99999"), "all conditions"),
    ] {
        let (code, _, words) = ran(&none);
        assert!(code == 1 && words.contains(said), "{code}: {words}");
    }

    // Shown: with the payload only where that is asked for.
    let letter = all.iter().find(|record| record.header("id") == lost).unwrap();
    let show = || letters(&world, "show").flag(&at(letter));
    let text = show().succeed();
    eprintln!("{text}");
    assert!(text.contains(&lost) && text.contains("unroutable") && !text.contains("canary"), "{text}");
    assert!(show().flag("--payload").succeed().contains("canary"));
    let json = well(&letters(&world, "show").option("--id", &lost).flag("--payload"));
    assert_eq!((&json["events"][0]["letter"], &json["events"][0]["settled"]), (&at(letter).into(), &Value::Null));
    assert!(json["events"][0]["value"].as_str().unwrap().contains("canary"), "{json}");

    // Nothing happens where nobody says yes, nothing is named, or it is a dry run.
    topic::alter(&world.brokers, &world.topic(0), &[("max.message.bytes", "1000000")]);
    let retry = || letters(&world, "retry");
    for (command, code, said) in [
        (retry(), 2, "no condition selects dead letters"),
        (retry().flag("--all").option("--id", &of_b), 2, "--all"),
        (retry().flag("--all"), 2, "no terminal"),
        (retry().flag("--all").flag("--dry-run"), 0, ""),
        (letters(&world, "drop").flag("--all"), 2, "no terminal"),
        (letters(&world, "drop").flag("--all").flag("--dry-run"), 0, ""),
        (retry().option("--id", &lost).flag("--yes"), 20, "has a record to send; nothing was sent"),
    ] {
        let (found, _, words) = ran(&command);
        assert!(found == code && words.contains(said), "{found}, not {code}: {words}");
    }
    let (_, _, words) = ran(&retry().option("--id", &lost).flag("--yes"));
    assert!(last_words(&words).1.contains("walrelay replay --config"), "{words}");
    assert!(retry().flag("--all").flag("--dry-run").succeed().ends_with("Dry run: nothing was changed.\n"));
    assert_eq!((read().len(), world.delivered()), (all.len(), delivered));

    // Sent again: in order, to where the relay sends the key, as they were.
    let json = well(&retry().option("--aggregate", "a").option("--class", "too-large").flag("--yes"));
    let sent = with(&|letter| of_a.contains(&letter.header("id")));
    assert_eq!((&json["sent"], &json["newly_settled"]), (&sent.into(), &sent.into()));
    let records = world.records(0);
    let (first, again) = (&records[0], &records[usize::try_from(delivered).unwrap()..]);
    assert_eq!(first.header("id"), well_id);
    let came: Vec<String> = ids(again).into_iter().fold(Vec::new(), |mut firsts, id| {
        if !firsts.contains(&id) {
            firsts.push(id);
        }
        firsts
    });
    assert_eq!(came, of_a, "in order");
    for record in again {
        assert_eq!((record.key_text().as_str(), record.partition), ("a", first.partition));
        let payload = sql.text(&format!("select payload::text from outbox where id = '{}'", record.header("id")));
        assert_eq!(record.value_text(), payload);
        let names: Vec<&str> = record.headers.iter().map(|(name, _)| name.as_str()).collect();
        let before: Vec<&str> = first.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [&before[..], &["walrelay-replay"]].concat());
    }

    // Settled: by markers beside the letters, which are left out from now on.
    let markers = read().into_iter().filter(|record| !record.header("walrelay-settled").is_empty());
    let markers: Vec<Record> = markers.collect();
    assert_eq!(markers.len() as u64, sent);
    for marker in &markers {
        let named = marker.header("walrelay-settled-letter");
        let letter = all.iter().find(|letter| at(letter) == named).unwrap();
        assert_eq!((marker.partition, &marker.key, &marker.value), (letter.partition, &letter.key, &None));
        assert_eq!(
            (marker.header("walrelay-settled"), marker.header("walrelay-slot")),
            ("retried".into(), world.name.clone())
        );
        assert!(marker.header("walrelay-settled-at").ends_with('Z'));
    }
    assert_eq!(matched(list()), count - sent);
    assert_eq!(matched(list().flag("--all")), count);
    let settled = letters(&world, "show").option("--id", &of_a[1]).succeed();
    assert!(settled.contains("retried at 2"), "{settled}");
    let (code, _, words) = ran(&retry().option("--id", &of_a[1]).flag("--yes"));
    assert!(code == 1 && words.contains("resolved already"), "{words}");

    // What cannot be sent is left, and can be dropped.
    let output = retry().flag("--all").flag("--yes").output();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("no record to send") && text.contains(&lost), "{text}");
    assert!(ids(&world.records(0)).contains(&of_b));
    let json = well(&letters(&world, "drop").option("--id", &lost).flag("--yes"));
    assert_eq!((&json["sent"], &json["newly_settled"]), (&0.into(), &of_lost.into()));
    assert_eq!(well(&list())["settled"], count);
    let text = list().succeed();
    assert!(text.contains("unresolved") && text.contains("--all"), "{text}");
    assert!(list().flag("--all").succeed().contains("dropped"));
}

/// A letter as a relay writes it.
fn letter(world: &World, id: &str, key: &str, topic: &str) -> Record {
    let header = |name: &str, value: &str| (name.to_owned(), Some(value.as_bytes().to_vec()));
    Record {
        partition: 0,
        offset: 0,
        key: Some(key.as_bytes().to_vec()),
        value: Some(format!("value of {id}").into_bytes()),
        headers: vec![
            header("id", id),
            header("walrelay-error-class", "rejected"),
            header("walrelay-error", "the broker found the record invalid"),
            header("walrelay-attempts", "1"),
            header("walrelay-original-topic", topic),
            header("walrelay-slot", &world.name),
            header("walrelay-outbox", "public.outbox"),
            header("walrelay-row-id", id),
            header("walrelay-original-position", "0/10:2"),
        ],
        appended_at_ms: 0,
    }
}

/// A topic of letters of this test's making, and a topic they go to.
fn made(letters: impl Fn(&World) -> Vec<Record>) -> World {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    topic::create(&world.brokers, &world.topic(0), PARTITIONS, &[]);
    topic::create(&world.brokers, &dead(&world), 3, &[]);
    topic::append(&world.brokers, &dead(&world), &letters(&world));
    world
}

#[test]
fn a_retry_of_dead_letters_that_is_killed_loses_none() {
    const LETTERS: usize = 4_000;
    let numbers: Vec<usize> = (0..LETTERS).collect();
    let world = made(|world| {
        let letter =
            |number: &usize| letter(world, &format!("{number:05}"), &format!("k{}", number % 17), &world.topic(0));
        numbers.iter().map(letter).collect()
    });
    let retry = |in_flight: &str| {
        let file = format!("{}[kafka]\nmax_in_flight_events = {in_flight}\n", config(&world));
        letters(&world, "retry").config_file(&file).flag("--all").flag("--yes")
    };
    let all = i64::try_from(LETTERS).unwrap();
    // A stop leaves nothing half done.
    let mut running = retry("4").start();
    eventually("some are sent", ARRIVAL, || world.delivered(), |records| *records >= 50);
    assert_eq!(running.terminate(EXIT), Some(3), "{}", running.log());
    let stopped = world.delivered();
    assert!(running.log().contains(&format!("{stopped} were sent and {stopped} resolved")), "{}", running.log());
    assert_eq!(well(&letters(&world, "list"))["settled"], stopped);

    let mut running = retry("20").start();
    eventually("more are sent", ARRIVAL, || world.delivered(), |records| *records >= stopped + 100);
    running.kill_hard();
    let killed = world.delivered();
    assert!(killed < all, "{killed}");
    let json = well(&retry("1000"));
    let copies = world.delivered() - all;
    eprintln!("{killed} before it was killed, {copies} copies, {} at last", json["sent"]);
    assert!((0..=20).contains(&copies), "{copies}");
    let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for record in world.records(0) {
        let (id, came) = (record.header("id"), by_key.entry(record.key_text()).or_default());
        if !came.contains(&id) {
            came.push(id);
        }
    }
    assert_eq!(by_key.values().map(Vec::len).sum::<usize>(), LETTERS);
    assert!(by_key.values().all(|ids| ids.is_sorted()), "the order of each key");
    let (code, json, _) = ran(&letters(&world, "list"));
    assert_eq!((code, &json["settled"]), (0, &all.into()));
}

#[test]
fn a_rejected_dead_letter_is_named_and_delivered_ones_are_resolved() {
    let world = made(|world| {
        let mut records: Vec<Record> =
            (0..5).map(|number| letter(world, &number.to_string(), "k", &world.topic(0))).collect();
        records[3].value = Some(vec![b'x'; 600_000]);
        records
    });
    topic::alter(&world.brokers, &world.topic(0), &[("max.message.bytes", SMALL)]);
    let retry = letters(&world, "retry").flag("--all").flag("--yes");
    let file = format!("{}[kafka.properties]\n\"message.max.bytes\" = \"500000\"\n", config(&world));
    let refused =
        topic::read(&world.brokers, &dead(&world)).into_iter().find(|record| record.header("id") == "3").unwrap();
    // By the producer, then by the broker.
    let (code, json, words) = ran(&retry.clone().config_file(&file));
    assert_eq!((code, &json["sent"], &json["newly_settled"]), (21, &3.into(), &3.into()), "{words}");
    assert!(words.contains(&format!("dead letter {}: ", at(&refused))) && !words.contains("xxxx"), "{words}");
    let (code, _, words) = ran(&retry);
    assert!(code == 21 && words.contains(&format!("dead letter {}: ", at(&refused))), "{code}: {words}");
    topic::alter(&world.brokers, &world.topic(0), &[("max.message.bytes", "1000000")]);
    well(&retry);
    assert_eq!(ids(&world.records(0)), ["0", "1", "2", "3", "4"]);
}

#[test]
fn foreign_and_hostile_records_in_the_dead_letter_topic_are_harmless() {
    let header = |name: &str, value: &[u8]| (name.to_owned(), Some(value.to_vec()));
    let world = made(|world| {
        let plain = |headers: Vec<(String, Option<Vec<u8>>)>| Record {
            headers,
            value: Some(b"canary".to_vec()),
            ..letter(world, "x", "k", "t")
        };
        let class = || header("walrelay-error-class", b"rejected");
        let slot = || header("walrelay-slot", world.name.as_bytes());
        vec![
            letter(world, "good", "k", &world.topic(0)),
            // Nothing of ours.
            plain(Vec::new()),
            plain(vec![header("walrelay-error", b"no class")]),
            plain(vec![("walrelay-error-class".to_owned(), None)]),
            // Markers of nothing, of themselves, of what is to come, of elsewhere.
            plain(vec![header("walrelay-settled", b"burnt"), header("walrelay-settled-letter", b"0:0")]),
            plain(vec![
                header("walrelay-settled", b"retried"),
                header("walrelay-settled-letter", b"0:99999999999999999"),
            ]),
            plain(vec![header("walrelay-settled", b"retried"), header("walrelay-settled-letter", b"-1:-1")]),
            // Letters that say anything.
            plain(vec![
                header("walrelay-error-class", b"\xff\x1b[2J\n"),
                header("walrelay-error", &[0xfe; 5_000]),
                slot(),
            ]),
            plain(vec![class(), header("walrelay-attempts", b"-7"), header("walrelay-row-id", b"\0\xff"), slot()]),
            plain(vec![class(), header("walrelay-original-topic", dead(world).as_bytes()), slot()]),
            plain(vec![class(), header("walrelay-original-topic", b"walrelay-state"), slot()]),
            plain(vec![class(), header("walrelay-original-topic", b"../etc"), slot()]),
            plain(vec![class(), header("walrelay-original-topic", &vec![b'y'; 400_000]), slot()]),
            plain(vec![class(), header("walrelay-omitted-value-bytes", b"-1"), slot()]),
            plain(vec![class(), header("walrelay-slot", b"another")]),
        ]
    });
    let json = well(&letters(&world, "list"));
    assert_eq!((&json["matched"], &json["foreign"], &json["other_slots"]), (&8.into(), &6.into(), &1.into()), "{json}");
    assert!(json.to_string().len() < 20_000 && !json.to_string().contains("canary"));
    let text = letters(&world, "list").flag("--all-slots").succeed();
    assert!(
        !text.contains('\u{1b}') && text.contains("6 records in topic") && text.lines().all(|line| line.len() < 5_000),
        "{text}"
    );
    for record in topic::read(&world.brokers, &dead(&world)) {
        let show = letters(&world, "show").flag(&at(&record)).flag("--all-slots").output();
        assert!(matches!(show.status.code(), Some(0 | 1)) && !show.stdout.contains(&0x1b), "{show:?}");
    }
    let json = well(&letters(&world, "retry").flag("--all").flag("--yes"));
    assert_eq!((&json["sent"], &json["unsendable"]), (&1.into(), &7.into()), "{json}");
    assert_eq!(ids(&world.records(0)), ["good"]);
    let json = well(&letters(&world, "drop").flag("--all").flag("--all-slots").flag("--yes"));
    assert_eq!(json["newly_settled"], 8, "{json}");
    let (code, json, _) = ran(&letters(&world, "list").flag("--all-slots"));
    assert_eq!((code, &json["settled"], &json["matched"]), (0, &9.into(), &0.into()));
}

#[test]
fn a_missing_dead_letter_topic_or_broker_is_reported() {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    let (code, _, words) = ran(&letters(&world, "list"));
    assert!(code == 1 && words.contains("does not exist"), "{code}: {words}");
    for command in ["retry", "drop"] {
        let (code, _, words) = ran(&letters(&world, command).flag("--all").flag("--yes"));
        assert!(code == 1 && words.contains("does not exist"), "{code}: {words}");
    }
    let (code, _, words) = ran(&letters(&world, "show").flag("0:0"));
    assert!(code == 1 && words.contains("does not exist"), "{code}: {words}");
    assert_eq!(topic::count(&world.brokers, &dead(&world)), 0, "and none was made");
    let nowhere = format!("127.0.0.1:{}", free_port());
    let (code, _, words) = ran(&letters(&world, "list").option("--brokers", &nowhere));
    assert!(code == 30 && words.contains("Kafka"), "{code}: {words}");
    let (code, _, words) = ran(&letters(&world, "list").option("--since", "yesterday"));
    assert!(code == 2 && words.contains("--since"), "{code}: {words}");
}
