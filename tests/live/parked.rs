//! P3, P2: an event that cannot be delivered waits, and all behind it of its aggregate, while
//! everything else arrives in order and the slot keeps no log for it.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::support::relay::{EXIT, RelayCommand, told};
use crate::support::seed::{from_environment, generator};
use crate::support::servers::kafka::PARTITIONS;
use crate::support::sql::Sql;
use crate::support::topic;
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

/// Aggregates that come to wait; finding each out takes some producers.
const ROUNDS: u32 = 2;
/// The exit code of a stop that leaves an event in flight.
const SHUTDOWN_TIMEOUT: i32 = 3;
/// How long everything that waits may take to be delivered while more comes.
const DRAINED: Duration = Duration::from_secs(150);
/// Pause of writers while what waits is delivered: it ends, although more comes.
const SLOWLY: Duration = Duration::from_millis(40);

/// Emits an event that is larger than [`small`] lets the broker take, compressed or not.
const LARGE: &str = "
    create function emit_large(kind text, aggregate_ text) returns text language sql as $$
        insert into counter values (aggregate_) on conflict do nothing;
        update counter set version = version + 1 where aggregate = aggregate_;
        insert into outbox (id, aggregatetype, aggregateid, type, payload)
        select gen_random_uuid(), kind, aggregate_, 'Large', jsonb_build_object('v', c.version, \
        'of', aggregate_,
            'filling', (select string_agg(md5(n::text), '') from generate_series(1, 12000) n))
        from counter c where c.aggregate = aggregate_ returning id::text
    $$";

/// Topic 0 takes no record of more than 200 kB.
pub(super) fn small() -> World {
    let world = World::new();
    world.sql().run(LARGE);
    topic::create(
        &world.brokers,
        &world.topic(0),
        PARTITIONS,
        &[("max.message.bytes", "200000")],
    );
    world
}

fn parking(world: &World) -> RelayCommand {
    world.run().option("--on-error", "park")
}

/// One of the commands on what waits.
pub(super) fn command(world: &World, name: &str) -> RelayCommand {
    RelayCommand::new("parked")
        .flag(name)
        .option("--slot", &world.name)
        .option("--database-url", &world.database_url)
}

/// Its exit code, the JSON it printed, and its words.
#[track_caller]
fn ran(command: &RelayCommand) -> (i32, Value, String) {
    let output = command.clone().flag("--json").output();
    let words = told(&output.stderr);
    assert!(!words.contains("panicked"), "{words}");
    (
        output.status.code().unwrap(),
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null),
        words,
    )
}

/// The same of one that succeeds.
#[track_caller]
fn well(command: &RelayCommand) -> Value {
    let (code, json, words) = ran(command);
    assert_eq!(code, 0, "{words}");
    json
}

/// Ids of the events that wait, each with its class.
fn parked(sql: &Sql) -> BTreeSet<(String, String)> {
    let rows = sql.rows(
        "select convert_from(row_id, 'UTF8'), class from walrelay.parked",
        &[],
    );
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn large(sql: &Sql, world: &World, aggregate: u32) -> String {
    sql.text(&format!(
        "select emit_large('{0}', '{0}-{aggregate}')",
        world.kind(0)
    ))
}

/// Every row that has not arrived waits. One that has may wait as well: a copy, after a crash.
fn all_others_arrived(world: &World, sql: &Sql) {
    let differs = || {
        let lost: BTreeSet<String> = world
            .check()
            .lost
            .iter()
            .filter_map(|lost| lost.split(' ').next())
            .map(str::to_owned)
            .collect();
        let waits: BTreeSet<String> = parked(sql).into_iter().map(|(id, _)| id).collect();
        lost.difference(&waits).cloned().collect::<Vec<_>>()
    };
    eventually("all others have arrived", DRAINED, differs, Vec::is_empty);
}

/// Events of an aggregate that wait in another order than that of their places.
fn misplaced(sql: &Sql) -> Vec<String> {
    let rows = sql.rows(
        "select format('%s: %s:%s behind %s:%s, %s %s', convert_from(key, 'UTF8'), commit_lsn, \
         index, l, i, class, parked_at) from (
             select *, lag(commit_lsn) over w as l, lag(index) over w as i from walrelay.parked
             window w as (partition by key order by id)) of
         where (commit_lsn, index) < (l, i)",
        &[],
    );
    rows.iter().map(|row| row.get(0)).collect()
}

/// Several too large events among many others, the relay killed now and then; then the topic takes
/// them.
fn waits_and_goes_on(mode: &[&str]) {
    let world = small();
    let sql = world.sql();
    let mut chance = generator("parked");
    sql.run(
        "alter table outbox add seq bigint generated always as identity, add xid xid8 default \
         pg_current_xact_id()",
    );
    let run = || {
        mode.chunks(2).fold(parking(&world), |run, option| {
            run.option(option[0], option[1])
        })
    };
    let start = || run().start();
    let writers = world.workload(&Plan {
        writers: 4,
        aggregates: 12,
        ..Plan::default()
    });
    let events = from_environment("WALRELAY_TEST_EVENTS", 6_000);
    let mut bad = BTreeSet::new();
    let mut relay = start();
    relay.wait_ready();
    for round in 0..ROUNDS {
        bad.insert(large(&sql, &world, round));
        bad.insert(large(&sql, &world, round));
        writers.wait_for(events / 40 + chance.u64(..events / 40));
        relay.kill_hard();
        relay = start();
        relay.wait_ready();
        writers.wait_for(events / 40);
    }
    // In the middle of everything, and neither do new ones of the others wait.
    writers.wait_for(events / 4);
    writers.stop();
    all_others_arrived(&world, &sql);
    let findings = world.check();
    assert_eq!(
        (findings.out_of_order, findings.misplaced),
        (vec![], vec![])
    );
    assert_eq!(misplaced(&sql), Vec::<String>::new());
    let waiting = parked(&sql);
    // The first of each aggregate was tried; the second large one waits behind it.
    let tried: BTreeSet<&String> = waiting
        .iter()
        .filter(|(_, class)| class == "too-large")
        .map(|(id, _)| id)
        .collect();
    assert!(
        tried.len() == ROUNDS as usize && tried.iter().all(|id| bad.contains(*id)),
        "{tried:?} of {bad:?}"
    );
    assert!(
        waiting.len() > 2 * ROUNDS as usize,
        "others wait behind them: {}",
        waiting.len()
    );
    let gauge = || relay.metric("walrelay_waiting_events").unwrap_or_default();
    eventually("it says how many wait", ARRIVAL, gauge, |count| {
        *count == waiting.len() as f64
    });
    if mode.is_empty() {
        world.wait_confirmed();
    }

    // Killed between the ack of what waited and the moment that is written down, and once more
    // while it delivers.
    relay.kill_hard();
    topic::alter(
        &world.brokers,
        &world.topic(0),
        &[("max.message.bytes", "1000000")],
    );
    command(&world, "retry")
        .flag("--all")
        .flag("--yes")
        .succeed();
    let left = waiting.len() as i64;
    run().killed_at("retried", 0).start().wait_killed();
    let writers = world.workload(&Plan {
        writers: 2,
        aggregates: 12,
        pause: SLOWLY,
        ..Plan::default()
    });
    let mut relay = start();
    eventually(
        "some are delivered",
        DRAINED,
        || world.number_parked(),
        |count| *count < left,
    );
    relay.kill_hard();
    let mut relay = start();
    relay.wait_ready();
    writers.wait_for(50);
    eventually(
        "all are delivered",
        DRAINED,
        || world.number_parked(),
        |count| *count == 0,
    );
    writers.wait_for(50);
    writers.stop();
    world.assert_all_delivered();
    eventually(
        "none waits",
        ARRIVAL,
        || relay.metric("walrelay_waiting_events"),
        |count| *count == Some(0.0),
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn parked_too_large_events_keep_their_aggregates_order_across_kills() {
    waits_and_goes_on(&[]);
}

#[test]
fn a_poller_parks_undeliverable_events_and_keeps_their_aggregates_order() {
    waits_and_goes_on(&["--mode", "poll"]);
}

#[test]
fn dropping_a_parked_event_releases_its_aggregate() {
    let world = World::new();
    let sql = world.sql();
    let mut relay = parking(&world).start();
    relay.wait_ready();
    let kind = world.kind(0);
    // No topic has this name, and what comes behind it has one.
    sql.run(&format!(
        "select emit('not a topic', 'a', 20); select emit('{kind}', 'a', 20); select \
         emit('{kind}', 'b', 20)"
    ));
    eventually(
        "two wait",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 2,
    );
    eventually(
        "the other does not",
        ARRIVAL,
        || world.delivered(),
        |count| *count == 1,
    );
    // Whoever does not look at what waits would let later events overtake it.
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    for mode in ["slot", "auto"] {
        let mut relay = world.run().option("--mode", mode).start();
        assert_eq!(relay.wait_exit(ARRIVAL), Some(2), "{}", relay.log());
        assert!(relay.log().contains("2 events of slot"), "{}", relay.log());
    }
    let mut relay = parking(&world).start();
    relay.wait_ready();
    command(&world, "drop")
        .option("--class", "unroutable")
        .flag("--yes")
        .succeed();
    eventually(
        "none waits",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 0,
    );
    world.emit(&sql, "a");
    eventually(
        "what was behind it is there",
        ARRIVAL,
        || world.delivered(),
        |count| *count == 3,
    );
    let versions: Vec<String> = world
        .records(0)
        .iter()
        .filter(|record| record.key_text() == "a")
        .map(|record| record.value_text())
        .collect();
    assert!(
        versions.len() == 2 && versions[0].contains("\"v\": 2") && versions[1].contains("\"v\": 3"),
        "{versions:?}"
    );
    assert!(
        relay.log().contains("is dropped, as an operator asked"),
        "{}",
        relay.log()
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// Topics are not made by whoever writes to them, and it does not take long to find out.
pub(super) const NO_TOPICS: &str = "[kafka.properties]\n\"allow.auto.create.topics\" = \
                                    \"false\"\n\"topic.metadata.propagation.max.ms\" = \"1000\"\n";

#[test]
fn events_for_a_missing_topic_are_retried_until_it_is_created() {
    let world = World::new();
    let sql = world.sql();
    for there in [1, 2] {
        topic::create(&world.brokers, &world.topic(there), PARTITIONS, &[]);
    }
    let file = format!("[delivery]\nretry_base = \"300ms\"\nretry_cap = \"1s\"\n{NO_TOPICS}");
    let mut relay = parking(&world).config_file(&file).start();
    relay.wait_ready();
    let writers = world.workload(&Plan {
        writers: 2,
        aggregates: 6,
        pause: SLOWLY,
        ..Plan::default()
    });
    let attempts = || {
        sql.number("select coalesce(max(attempts), 0) from walrelay.parked where class = 'refused'")
    };
    eventually(
        "it is tried again by itself",
        ARRIVAL,
        attempts,
        |attempts| *attempts >= 2,
    );
    // The other topic is not held up by that.
    let there = world.delivered();
    eventually(
        "others arrive",
        ARRIVAL,
        || world.delivered(),
        |count| *count > there + 50,
    );
    topic::create(&world.brokers, &world.topic(0), PARTITIONS, &[]);
    eventually(
        "none waits",
        DRAINED,
        || world.number_parked(),
        |count| *count == 0,
    );
    writers.wait_for(50);
    writers.stop();
    world.assert_all_delivered();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_stop_during_the_first_try_at_a_missing_topic_does_not_wait_for_acks() {
    let world = World::new();
    let file = "[kafka.properties]\n\"allow.auto.create.topics\" = \"false\"\n";
    let run = parking(&world).config_file(file);
    let mut relay = run.option("--shutdown-timeout", "300s").start();
    relay.wait_ready();
    world.emit(&world.sql(), "a");
    eventually(
        "it is in flight",
        ARRIVAL,
        || relay.metric("walrelay_in_flight_events"),
        |n| *n == Some(1.0),
    );
    // Less than half of what it would wait for acks.
    assert_eq!(
        relay.terminate(EXIT),
        Some(SHUTDOWN_TIMEOUT),
        "{}",
        relay.log()
    );
    topic::create(&world.brokers, &world.topic(0), PARTITIONS, &[]);
    let _relay = world.relay();
    world.assert_all_delivered();
}

#[test]
fn a_missing_topic_stops_the_relay_after_the_last_attempt() {
    let world = World::new();
    let file = format!("[delivery]\nretry_attempts = 2\nretry_base = \"200ms\"\n{NO_TOPICS}");
    let mut relay = world.run().config_file(&file).start();
    relay.wait_ready();
    world.emit(&world.sql(), "a");
    assert_eq!(relay.wait_exit(ARRIVAL), Some(31), "{}", relay.log());
    assert_eq!(
        relay.log().matches("a topic refuses records").count(),
        2,
        "{}",
        relay.log()
    );
    // In time, it goes on.
    let file = format!("[delivery]\nretry_base = \"200ms\"\n{NO_TOPICS}");
    let mut relay = world.run().config_file(&file).start();
    relay.wait_ready();
    eventually(
        "it is tried",
        ARRIVAL,
        || relay.log(),
        |log| log.contains("a topic refuses records"),
    );
    topic::create(&world.brokers, &world.topic(0), PARTITIONS, &[]);
    world.assert_all_delivered();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn parked_events_are_listed_shown_retried_and_dropped() {
    let world = small();
    let sql = world.sql();
    let (code, _, words) = ran(&command(&world, "list"));
    assert!(
        code == 0 && words.contains("this database has no table walrelay.parked"),
        "{words}"
    );
    let mut relay = parking(&world).start();
    relay.wait_ready();
    let first = large(&sql, &world, 1);
    let emitted = |kind: &str, aggregate: &str| {
        let version = sql.number(&format!("select emit('{kind}', '{aggregate}', 20)"));
        sql.text(&format!(
            "select id::text from outbox where aggregateid = '{aggregate}' and payload ->> 'v' = \
             '{version}'"
        ))
    };
    let aggregate = format!("{}-1", world.kind(0));
    let behind: Vec<String> = (0..3).map(|_| emitted(world.kind(0), &aggregate)).collect();
    let other = large(&sql, &world, 2);
    let lost = emitted("not a topic", "c");
    eventually(
        "six wait",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 6,
    );

    // Listed: what holds up an aggregate, and all that are behind it if wanted. No payload.
    let json = well(&command(&world, "list"));
    let row_ids = |json: &Value| -> Vec<String> {
        json["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["row_id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(row_ids(&json), [first.clone(), other.clone(), lost.clone()]);
    assert_eq!(
        (
            &json["matched"],
            &json["aggregates"],
            &json["classes"]["behind"]
        ),
        (&6.into(), &3.into(), &3.into())
    );
    assert_eq!(
        (&json["events"][0]["behind"], &json["events"][0]["attempts"]),
        (&3.into(), &1.into())
    );
    assert!(!json.to_string().contains("filling"), "{json}");
    assert_eq!(
        row_ids(&well(&command(&world, "list").flag("--all"))).len(),
        6
    );
    assert_eq!(
        row_ids(&well(&command(&world, "list").option("--id", &behind[1]))),
        behind[1..2]
    );
    assert_eq!(
        row_ids(&well(
            &command(&world, "list").option("--class", "unroutable")
        )),
        [lost.as_str()]
    );
    assert_eq!(
        row_ids(&well(
            &command(&world, "list").option("--topic", &world.topic(0))
        ))
        .len(),
        2
    );
    assert_eq!(
        row_ids(&well(
            &command(&world, "list").option("--outbox", "public.outbox")
        ))
        .len(),
        3
    );
    let of = |name: &str| command(&world, name).option("--aggregate", &aggregate);
    assert_eq!(well(&of("list"))["matched"], 4);
    assert_eq!(
        ran(&command(&world, "list").option("--older-than", "1h")).0,
        1
    );
    let since = command(&world, "list").option("--since", "1h");
    assert_eq!(well(&since)["matched"], 6);
    assert_eq!(ran(&since.option("--until", "2h")).0, 2);
    let text = command(&world, "list").succeed();
    eprintln!("{text}");
    assert!(
        text.contains("on request")
            && text.contains("6 events of 3 aggregates: 3 behind, 2 too-large"),
        "{text}"
    );

    let status = relay.asked_by(world.command("status"));
    let json: Value =
        serde_json::from_str(&status.clone().flag("--json").succeed()).expect("a report");
    assert!(
        json["parked_events"] == 6 && json["oldest_parked_seconds"].is_number(),
        "{json}"
    );
    assert!(
        status.succeed().contains("6 events, the oldest for "),
        "{}",
        status.succeed()
    );

    // Shown: sizes, and values only if they are asked for.
    let show = command(&world, "show").flag(&first);
    let text = show.succeed();
    eprintln!("{text}");
    assert!(
        text.contains("0 before it, and 3 behind it")
            && text.contains("payload")
            && !text.contains("filling"),
        "{text}"
    );
    let json = well(&show);
    let payload = |json: &Value| {
        let columns = json["events"][0]["columns"].as_array().unwrap().clone();
        columns
            .into_iter()
            .find(|column| column["name"] == "payload")
            .unwrap()
    };
    assert!(
        payload(&json)["bytes"].as_i64().unwrap() > 200_000 && payload(&json)["value"].is_null()
    );
    assert!(
        payload(&well(&show.clone().flag("--payload")))["value"]
            .as_str()
            .unwrap()
            .contains("filling")
    );
    let json = well(&of("show"));
    assert_eq!(
        (row_ids(&json).len(), &json["matched"], &json["slot"]),
        (4, &4.into(), &world.name.clone().into())
    );
    assert_eq!(
        row_ids(&well(&command(&world, "list").flag(&behind[1]))),
        behind[1..2]
    );
    assert_eq!(ran(&command(&world, "show").flag("none")).0, 1);

    // Asked for nothing, for everything and something, without a terminal, and only to look:
    // nothing is changed.
    let asked = || {
        sql.number("select count(*) from walrelay.parked where asked is not null or attempts > 1")
    };
    assert_eq!(ran(&command(&world, "drop")).0, 2);
    assert_eq!(ran(&of("retry").flag("--all")).0, 2);
    assert_eq!(ran(&of("drop")).0, 2);
    let json = well(&of("drop").flag("--dry-run"));
    assert_eq!(
        (&json["matched"], &json["asked"], &json["dry_run"]),
        (&4.into(), &0.into(), &true.into())
    );
    let json = well(&of("retry").flag("--dry-run"));
    assert_eq!(
        (&json["relay_runs"], &json["ask"]),
        (&true.into(), &"retry".into())
    );
    let text = of("retry").flag("--dry-run").succeed();
    assert!(text.ends_with("Dry run: nothing was changed.\n"), "{text}");
    assert_eq!((asked(), world.number_parked()), (0, 6));

    // Tried again, the attempts counted, by the first of its aggregate whichever was named.
    let json = well(
        &command(&world, "retry")
            .option("--id", &behind[2])
            .flag("--yes"),
    );
    assert_eq!((&json["asked"], &json["waiting"]), (&1.into(), &4.into()));
    let attempts = || {
        sql.number(&format!(
            "select attempts from walrelay.parked where convert_from(row_id, 'UTF8') = '{first}'"
        ))
    };
    eventually("it was tried again", ARRIVAL, attempts, |attempts| {
        *attempts == 2
    });
    assert_eq!(world.number_parked(), 6);

    // What is dropped is exactly what was named, and what is behind it arrives; with no relay, once
    // there is one.
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    let words = command(&world, "drop")
        .option("--id", &first)
        .flag("--yes")
        .succeed();
    assert!(
        words.contains("the relay never delivers")
            && words.contains("the next one carries this out"),
        "{words}"
    );
    // A request to drop is taken back by name only.
    let json = well(&command(&world, "retry").flag("--all").flag("--yes"));
    assert_eq!((&json["asked"], &json["waiting"]), (&2.into(), &2.into()));
    let by_name = command(&world, "retry").option("--id", &first);
    assert_eq!(well(&by_name.flag("--dry-run"))["waiting"], 4);
    assert!(command(&world, "list").succeed().contains("drop requested"));
    let mut relay = parking(&world).start();
    eventually(
        "others wait",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 2,
    );
    eventually(
        "those behind are there",
        ARRIVAL,
        || world.delivered(),
        |count| *count == 3,
    );
    topic::alter(
        &world.brokers,
        &world.topic(0),
        &[("max.message.bytes", "1000000")],
    );
    let json = well(&command(&world, "retry").flag("--all").flag("--yes"));
    assert_eq!(
        (&json["asked"], &json["relay_runs"]),
        (&2.into(), &true.into())
    );
    eventually(
        "it is delivered",
        ARRIVAL,
        || world.delivered(),
        |count| *count == 4,
    );
    eventually(
        "one waits",
        ARRIVAL,
        || parked(&sql),
        |parked| parked.iter().all(|(id, _)| *id == lost),
    );
    well(&command(&world, "drop").flag("--all").flag("--yes"));
    eventually(
        "none waits",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 0,
    );
    let (code, json, _) = ran(&command(&world, "list"));
    assert_eq!(
        (code, &json["matched"], &json["events"]),
        (0, &0.into(), &Value::Array(vec![]))
    );
    let text = command(&world, "list").succeed();
    assert_eq!(
        text,
        format!("No events of slot {} are parked.\n", world.name)
    );
    assert_eq!(
        ran(&command(&world, "list").option("--class", "refused")).0,
        1
    );
    assert_eq!(
        ran(&command(&world, "drop").flag("--all").flag("--yes")).0,
        1
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
