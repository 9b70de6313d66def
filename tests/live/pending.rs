//! docs/explanation/undeliverable-events.md, P7: `walrelay pending` and `tail` show what a relay
//! would publish, and consume nothing.

use serde_json::Value;

use crate::support::relay::{EXIT, Relay, RelayCommand, last_words, told};
use crate::support::servers::{Kafka, Postgres};
use crate::support::sql::Sql;
use crate::support::wait::{LIMIT, eventually};
use crate::support::world::{ARRIVAL, World};

fn pending(world: &World) -> RelayCommand {
    world
        .command("pending")
        .option("--brokers", &world.brokers)
        .flag("--json")
}

#[track_caller]
fn report(command: &RelayCommand) -> Value {
    let text = command.succeed();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The records among lines of output.
fn records(text: &str) -> Vec<Value> {
    let lines = text.lines().filter(|line| line.starts_with("{\"topic\":"));
    lines
        .map(|line| serde_json::from_str(line).expect("a JSON object"))
        .collect()
}

fn ids(records: &[Value]) -> Vec<&str> {
    records
        .iter()
        .map(|record| record["headers"]["id"].as_str().expect("an id"))
        .collect()
}

/// The ids of rows, in the order in which they were written.
#[track_caller]
fn written(sql: &Sql, condition: &str) -> Vec<String> {
    let rows = format!("select id::text from outbox where {condition} order by ctid");
    sql.rows(&rows, &[]).iter().map(|row| row.get(0)).collect()
}

/// Waits until a tail has its slot: it prints what commits from then on.
#[track_caller]
fn wait_following(sql: &Sql) {
    let slots = "select count(*) from pg_replication_slots where temporary and database = \
                 current_database() \
                 and confirmed_flush_lsn is not null";
    eventually(
        "a tail has its slot",
        ARRIVAL,
        || sql.number(slots),
        |slots| *slots == 1,
    );
}

/// Waits until the tail that has its slot prints.
#[track_caller]
fn wait_printing(world: &World, sql: &Sql, tail: &Relay) {
    world.emit(sql, "a");
    eventually(
        "it is printed",
        ARRIVAL,
        || records(&tail.log()).len(),
        |printed| *printed == 1,
    );
}

#[test]
fn pending_events_are_counted_and_printed_and_a_later_relay_delivers_them() {
    let world = World::new();
    let sql = world.sql();
    for (kind, aggregate) in [(0, "a"), (0, "b"), (1, "a"), (0, "a"), (1, "c")] {
        world.emit_to(&sql, kind, aggregate);
    }
    sql.run(
        "begin; select emit('rolled back', 'x', 20); rollback; insert into noise select n, 'x' \
             from generate_series(1, 50) n",
    );
    let confirmed = world.confirmed();
    let found = report(&pending(&world).option("--show", "2"));
    assert_eq!(
        (&found["events"], &found["complete"], &found["unroutable"]),
        (&5.into(), &true.into(), &0.into())
    );
    let groups = found["groups"].as_array().expect("groups");
    let of_group = |group: &Value| {
        (
            group["topic"].clone(),
            group["aggregate_type"].clone(),
            group["events"].clone(),
        )
    };
    let expected = [(0, 3), (1, 2)]
        .map(|(kind, events)| (world.topic(kind), world.kind(kind).to_owned(), events));
    let expected: [(Value, Value, Value); 2] =
        expected.map(|(topic, kind, events)| (topic.into(), kind.into(), events.into()));
    assert_eq!(groups.iter().map(of_group).collect::<Vec<_>>(), expected);
    let of_records: i64 = groups
        .iter()
        .filter_map(|group| group["bytes"].as_i64())
        .sum();
    assert!(of_records > 200 && found["bytes"] == of_records, "{found}");
    assert!(
        found["oldest_age_seconds"].as_i64() < Some(600) && found["oldest_at"].is_string(),
        "{found}"
    );
    let all = written(&sql, "true");
    let shown = found["shown"].as_array().expect("shown");
    assert_eq!(
        shown.iter().map(|shown| &shown["id"]).collect::<Vec<_>>(),
        all[..2].iter().collect::<Vec<_>>()
    );
    assert_eq!(
        (&shown[1]["aggregate_id"], &shown[1]["type"]),
        (&"b".into(), &"Changed".into())
    );
    assert!(
        shown[0]["xid"].is_u64() && shown[0]["index"] == 0 && shown[0].get("payload").is_none(),
        "{}",
        shown[0]
    );
    assert!(
        !found.to_string().contains("filling"),
        "the payload is secret: {found}"
    );
    let payload =
        report(&pending(&world).option("--show", "1").flag("--payload"))["shown"][0]["payload"]
            .clone();
    assert!(
        payload
            .as_str()
            .is_some_and(|payload| payload.contains("filling")),
        "{payload}"
    );

    // Without brokers the stored position is not known, and everything in the slot is counted.
    let table = world.command("pending").succeed();
    assert!(
        table.contains("\nevents  5\n") && table.contains("note: the stored position is not known"),
        "{table}"
    );

    let tail = |options: &[&str]| {
        let command = world.command("tail").option("--brokers", &world.brokers);
        let options = options.iter();
        records(
            &options
                .fold(command, |command, option| command.flag(option))
                .succeed(),
        )
    };
    assert_eq!(ids(&tail(&[])), all);
    assert_eq!(ids(&tail(&["-n", "3"])), all[..3]);
    assert_eq!(
        ids(&tail(&["--aggregate", "a"])),
        written(&sql, "aggregateid = 'a'")
    );
    let of_kind = written(
        &sql,
        &format!("aggregatetype = '{}' and aggregateid <> 'b'", world.kind(0)),
    );
    assert_eq!(
        ids(&tail(&[
            "--topic",
            &world.topic(0),
            "--aggregate",
            "a",
            "c",
            "--type",
            "Changed"
        ])),
        of_kind
    );
    assert!(tail(&["--type", "Removed"]).is_empty());
    let unread = world.command("tail").unread_output();
    assert_eq!(
        unread.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&unread.stderr)
    );

    assert_eq!(world.confirmed(), confirmed, "nothing is consumed");
    let printed = tail(&[]);
    let mut relay = world.relay();
    let findings = world.assert_all_delivered();
    assert_eq!((findings.duplicates, world.delivered()), (0, 5));
    let positions = |record: &Value| {
        record["headers"]["walrelay-position"]
            .as_str()
            .map(str::to_owned)
    };
    let mut positions: Vec<_> = printed.iter().filter_map(positions).collect();
    let mut published: Vec<_> = (0..2)
        .flat_map(|kind| world.records(kind))
        .map(|record| record.header("walrelay-position"))
        .collect();
    positions.sort();
    published.sort();
    assert_eq!(
        positions, published,
        "the records are those that a relay publishes"
    );

    // While a relay has the slot.
    for command in ["pending", "tail"] {
        let output = world
            .command(command)
            .option("--brokers", &world.brokers)
            .output();
        assert_eq!(output.status.code(), Some(13), "{command}");
        let told = told(&output.stderr);
        let (error, fix) = last_words(&told);
        assert!(error.contains("is in use"), "{error}");
        assert!(
            fix.contains("`walrelay status ") && fix.contains("; `walrelay tail "),
            "{fix}"
        );
    }
    world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0));
    let empty = report(&pending(&world));
    assert_eq!(
        (&empty["events"], &empty["oldest_at"]),
        (&0.into(), &Value::Null),
        "{empty}"
    );

    // What takes long to read is announced.
    let amount = || told(&pending(&world).output().stderr);
    assert!(!amount().contains("WAL to read"), "{}", amount());
    sql.run(
        "select pg_logical_emit_message(false, 'filling', repeat('x', 1000000)) from \
             generate_series(1, 40)",
    );
    let told = amount();
    let mib = told
        .split_once("the slot has ")
        .and_then(|(_, rest)| rest.split_once(" MiB of WAL to read, of all tables"));
    let mib: f64 = mib
        .and_then(|(mib, _)| mib.parse().ok())
        .unwrap_or_else(|| panic!("{told}"));
    assert!(mib >= 30.0, "{told}");
}

#[test]
fn an_event_that_stops_the_relay_is_named_and_delivered_events_are_left_out() {
    let world = World::new();
    let sql = world.sql();
    let mut relay = world.run().option("--state-store", "postgres").start();
    relay.wait_ready();
    world.emit(&sql, "a");
    world.assert_all_delivered();
    world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0));
    world.emit(&sql, "b");
    // As a relay that was killed between storing and confirming.
    let stored = "update walrelay.position set value = jsonb_set(value, '{position,end_lsn}', \
                  to_jsonb(pg_current_wal_insert_lsn()::text))";
    sql.run(stored);
    sql.run("select emit('not a topic', 'c', 20)");
    world.emit(&sql, "d");
    let pending = pending(&world)
        .option("--state-store", "postgres")
        .option("--show", "9");
    let found = report(&pending);
    assert_eq!(
        (&found["events"], &found["unroutable"], &found["notes"]),
        (&2.into(), &1.into(), &Value::Array(vec![]))
    );
    let [first, second] = [0, 1].map(|at| &found["shown"][at]);
    assert_eq!(
        (&first["aggregate_id"], &second["aggregate_id"]),
        (&"c".into(), &"d".into())
    );
    assert!(
        first["error"]
            .as_str()
            .is_some_and(|error| error.contains("other characters than")),
        "{first}"
    );
    let tail = world
        .command("tail")
        .option("--brokers", &world.brokers)
        .option("--state-store", "postgres")
        .output();
    let printed = String::from_utf8_lossy(&tail.stdout);
    let told = String::from_utf8_lossy(&tail.stderr);
    assert_eq!(
        (tail.status.code(), ids(&records(&printed))),
        (Some(0), vec![second["id"].as_str().unwrap()])
    );
    assert!(
        told.contains("warning: this event cannot be routed"),
        "{told}"
    );

    // A relay of another server's position would stop, and pending counts all.
    sql.run(
        "update walrelay.position set value = jsonb_set(value, '{system_identifier}', '\"7\"')",
    );
    let found = report(&pending);
    assert_eq!(found["events"], 3);
    assert!(
        found["notes"][0]
            .as_str()
            .is_some_and(|note| note.contains("does not fit")),
        "{found}"
    );
}

#[test]
fn a_tail_follows_beside_a_relay_that_loses_nothing() {
    let world = World::new();
    let sql = world.sql();
    let mut relay = world.relay();
    world.emit(&sql, "before");
    let mut tail = world.command("tail").flag("--follow").start();
    wait_following(&sql);
    for number in 0..40 {
        world.emit_to(&sql, number % 3, ["a", "b"][number % 2]);
    }
    let followed = || records(&tail.log());
    let printed = eventually("all are printed", ARRIVAL, followed, |printed| {
        printed.len() >= 40
    });
    assert_eq!(ids(&printed), written(&sql, "aggregateid <> 'before'"));
    let told = "following the outboxes of slot";
    assert_eq!(tail.log().matches(told).count(), 1, "{}", tail.log());
    // The slot of the tail does not keep WAL.
    let goal = world.flushed();
    let confirmed = "select (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint from \
                     pg_replication_slots \
                     where temporary and database = current_database()";
    eventually(
        "the tail is confirmed",
        ARRIVAL,
        || sql.number(confirmed),
        |confirmed| *confirmed >= goal,
    );
    tail.process.signal("INT");
    assert_eq!(tail.wait_exit(EXIT), Some(0), "{}", tail.log());
    let slots = "select count(*) from pg_replication_slots where database = current_database()";
    eventually(
        "the temporary slot is gone",
        ARRIVAL,
        || sql.number(slots),
        |slots| *slots == 1,
    );

    let mut last = world
        .command("tail")
        .flag("-f")
        .option("-n", "1")
        .option("--aggregate", "z")
        .start();
    wait_following(&sql);
    world.emit(&sql, "a");
    world.emit(&sql, "z");
    assert_eq!(last.wait_exit(EXIT), Some(0), "{}", last.log());
    assert_eq!(
        ids(&records(&last.log())),
        written(&sql, "aggregateid = 'z'")
    );
    world.assert_all_delivered();
    world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn unpublished_rows_of_a_polled_table_are_counted_or_refused() {
    let world = World::keeping();
    let sql = world.sql();
    let pending = pending(&world).option("--mode", "poll");
    world.emit(&sql, "a");
    let refused = pending.output();
    let told = told(&refused.stderr);
    assert_eq!(refused.status.code(), Some(16), "{told}");
    assert!(last_words(&told).1.contains("walrelay verify"), "{told}");
    let mut relay = world.run().option("--mode", "poll").start();
    relay.wait_ready();
    world.assert_all_delivered();
    // Not before: a relay that is stopped within its first scan finishes that at its next start.
    eventually(
        "the end of the first scan is stored",
        ARRIVAL,
        || pending.output().status.code(),
        |code| *code == Some(0),
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    (0..3).for_each(|_| world.emit(&sql, "b"));
    let found = report(&pending);
    assert_eq!(
        (&found["events"], &found["groups"][0]["outbox"]),
        (&3.into(), &"public.outbox".into()),
        "{found}"
    );

    // The table says it itself.
    sql.run(
        "alter table outbox add column status text; update outbox set status = 'NEW' where \
             aggregateid = 'a'",
    );
    let config = "[outbox]\npending = \"status = 'NEW'\"\nmark = \"status = 'SENT'\"\n";
    assert_eq!(report(&pending.clone().config_file(config))["events"], 1);
    let tail = world.command("tail").option("--mode", "poll").output();
    assert_eq!(
        tail.status.code(),
        Some(14),
        "{}",
        String::from_utf8_lossy(&tail.stderr)
    );
}

/// P7.
#[test]
fn a_tail_names_the_transactions_that_it_waits_for() {
    let world = World::new();
    let writer = world.sql();
    writer.run("begin; select txid_current()");
    let pid = writer.number("select pg_backend_pid()");
    let mut tail = world.command("tail").flag("--follow").start();
    let waits = format!("waiting for pid {pid} (");
    eventually(
        "it names the transaction",
        ARRIVAL,
        || tail.log(),
        |log| log.contains(&waits),
    );
    let mut early = world.command("tail").flag("--follow").start();
    eventually(
        "another waits, too",
        ARRIVAL,
        || early.log(),
        |log| log.contains(&waits),
    );
    assert_eq!(early.terminate(EXIT), Some(0), "{}", early.log());
    writer.run("rollback");
    wait_following(&writer);
    wait_printing(&world, &writer, &tail);
    assert_eq!(tail.terminate(EXIT), Some(0), "{}", tail.log());
}

#[test]
fn a_tail_does_not_delay_a_fast_shutdown_of_postgres() {
    let postgres = Postgres::private(17, &[]);
    let world = World::on(&postgres, Kafka::shared().brokers());
    let sql = world.sql();
    let tail = world
        .command("tail")
        .flag("--follow")
        .variable("WALRELAY_SLOT_WAL_SENDER_TIMEOUT", "300s");
    let mut tail = tail.start();
    wait_following(&sql);
    wait_printing(&world, &sql, &tail);
    postgres.stop_fast(LIMIT);
    assert_eq!(tail.wait_exit(EXIT), Some(10), "{}", tail.log());
}

/// P12: a slot that was made again lacks what a relay then reads from the table.
#[test]
fn pending_tells_that_rows_of_the_table_come_first_where_the_slot_was_made_again() {
    let world = World::keeping();
    world.setup();
    let sql = world.sql();
    let mut relay = world.relay();
    world.emit(&sql, "a");
    world.assert_all_delivered();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    world.emit(&sql, "a");
    world.drop_slot();
    let name = &world.name;
    let make = format!("select pg_create_logical_replication_slot('{name}', 'pgoutput')");
    sql.run(&make);
    let found = report(&pending(&world));
    let notes = found["notes"].to_string();
    assert!(
        found["events"] == 0 && notes.contains("a relay first reads rows of the table"),
        "{found}"
    );
}
