//! docs/how-to/replay.md: `walrelay replay`: rows once more, by what they are asked for, and
//! nothing else.

use serde_json::Value;

use crate::support::relay::{EXIT, RelayCommand, last_words, told};
use crate::support::servers::{Kafka, Postgres, free_port};
use crate::support::sql::Sql;
use crate::support::topic::Record;
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

fn replay(world: &World) -> RelayCommand {
    world.command("replay").option("--brokers", &world.brokers)
}

/// A world without a relay, whose rows are numbered and have a time: each an hour after the one
/// before, from noon.
fn numbered(aggregates: &[&str]) -> (World, Sql, Vec<String>) {
    let world = World::keeping();
    let sql = world.sql();
    aggregates
        .iter()
        .for_each(|aggregate| world.emit(&sql, &aggregate.replace('\'', "''")));
    sql.run(
        "alter table outbox add created_at timestamptz;
         update outbox set created_at = '2026-03-01 11:00Z'::timestamptz + seq * interval '1 hour'",
    );
    let ids = sql
        .rows("select id::text from outbox order by seq", &[])
        .iter()
        .map(|row| row.get(0))
        .collect();
    (world, sql, ids)
}

/// Its exit code, the JSON it printed, and its words.
#[track_caller]
fn ran(replay: &RelayCommand) -> (i32, Value, String) {
    let output = replay.clone().flag("--json").output();
    let words = told(&output.stderr);
    let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code().unwrap(), json, words)
}

fn ids(records: &[Record]) -> Vec<String> {
    records.iter().map(|record| record.header("id")).collect()
}

/// The rows with what wrote them, to show that nothing changed.
fn rows(sql: &Sql) -> String {
    sql.text("select string_agg(o::text || o.xmin::text, ' ' order by seq) from outbox o")
}

#[test]
fn a_dry_run_lists_the_rows_and_publishes_nothing() {
    let (world, sql, ids) = numbered(&["a", "b", "a"]);
    let before = rows(&sql);
    // Kafka is not even asked.
    let nowhere = format!("127.0.0.1:{}", free_port());
    let dry = replay(&world)
        .option("--brokers", &nowhere)
        .option("--where", "true")
        .flag("--dry-run");
    let (code, json, words) = ran(&dry);
    assert_eq!(
        (code, &json["rows"], &json["published"]),
        (0, &3.into(), &0.into()),
        "{words}"
    );
    let table = &json["tables"][0];
    assert_eq!(
        (&table["first"], &table["last"]),
        (&ids[0].clone().into(), &ids[2].clone().into())
    );
    assert_eq!(
        (&table["from"], &table["to"]),
        (
            &"2026-03-01 12:00:00+00".into(),
            &"2026-03-01 14:00:00+00".into()
        )
    );
    assert_eq!(table["topics"][world.topic(0)], 3);
    let text = dry.succeed();
    assert!(
        text.ends_with("\nDry run: nothing was published.\n"),
        "{text}"
    );
    assert!(
        text.contains(&ids[0]) && text.contains(&world.topic(0)) && !text.contains("xxxx"),
        "{text}"
    );
    assert_eq!((world.delivered(), rows(&sql)), (0, before));
}

#[test]
fn rows_are_selected_by_id_aggregate_time_and_condition_in_order() {
    let (world, sql, ids_of) = numbered(&["a", "b", "a", "a", "it's \\ \"b\""]);
    let before = rows(&sql);
    let id = |number: usize| ids_of[number - 1].clone();
    let sure = || replay(&world).flag("--yes");
    let mut published = 0;
    let mut expect = |command: RelayCommand, expected: &[usize]| {
        let (code, json, words) = ran(&command);
        assert_eq!(
            (code, &json["published"]),
            (0, &expected.len().into()),
            "{words}"
        );
        let last = expected.last().map(|number| id(*number)).unwrap();
        assert_eq!(json["up_to"]["id"], last.as_str(), "{json}");
        let records = world.records(0);
        let mut new = records.clone();
        new.sort_by_key(|record| record.appended_at_ms);
        let mut found = ids(&new.split_off(published));
        let mut expected: Vec<String> = expected.iter().map(|number| id(*number)).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        published = records.len();
    };
    expect(sure().option("--id", &id(2)), &[2]);
    expect(
        sure().option("--id", &id(4)).flag(&id(1).to_uppercase()),
        &[1, 4],
    );
    expect(sure().option("--aggregate", "it's \\ \"b\""), &[5]);
    expect(sure().option("--aggregate", "a").flag("b"), &[1, 2, 3, 4]);
    expect(
        sure()
            .option("--since", "2026-03-01 13:00")
            .option("--until", "2026-03-01 15:00"),
        &[2, 3],
    );
    expect(
        sure().option("--where", "seq % 2 = 1 or type is null"),
        &[1, 3, 5],
    );
    expect(
        sure()
            .option("--where", "seq < 3 or seq > 3")
            .option("--aggregate", "a"),
        &[1, 4],
    );

    let records = world.records(0);
    assert!(
        records
            .iter()
            .all(|record| record.header("walrelay-replay") == "1")
    );
    for record in &records {
        let key = sql.text(&format!(
            "select aggregateid from outbox where id = '{}'",
            record.header("id")
        ));
        assert_eq!(record.key_text(), key);
        assert!(
            record.header("walrelay-position").contains(":t"),
            "{}",
            record.header("walrelay-position")
        );
    }
    // Records of one key are in one partition, by offset: of each run in the table's order,
    // whatever that of the command line.
    let of_a: Vec<_> = records
        .iter()
        .filter(|record| record.key_text() == "a")
        .cloned()
        .collect();
    assert_eq!(ids(&of_a), [1, 4, 1, 3, 4, 3, 1, 3, 1, 4].map(id));
    assert_eq!(rows(&sql), before, "nothing in the table changed");
}

#[test]
fn a_replay_beside_a_relay_is_not_counted_as_duplicates() {
    let world = World::keeping();
    world.setup();
    let relay = world.relay();
    let writers = world.workload(&Plan::default());
    writers.wait_for(200);
    // Marks are for what the relay publishes.
    let (code, json, words) = ran(&replay(&world).option("--where", "seq <= 100").flag("--yes"));
    assert_eq!(code, 0, "{words}");
    let replayed = json["published"].as_u64().unwrap();
    assert!(replayed > 0, "{json}");
    writers.wait_for(300);
    writers.stop();
    let rows = world.committed();
    let arrived = rows + i64::try_from(replayed).unwrap();
    eventually(
        "all rows and the replayed",
        ARRIVAL,
        || world.delivered(),
        |records| *records == arrived,
    );
    assert!(relay.is_ready());
    world.wait_confirmed();

    let verify = world
        .command("verify")
        .option("--brokers", &world.brokers)
        .flag("--no-duplicates");
    let (code, json, words) = ran(&verify.option("--grace", "0s"));
    assert_eq!(
        (code, &json["total"]["replayed"]),
        (0, &replayed.into()),
        "{words}"
    );
}

#[test]
fn a_replay_marks_no_row_and_reads_several_tables() {
    let (world, sql, ids) = numbered(&["a", "b"]);
    sql.run(
        "alter table outbox add state text not null default 'NEW';
         create table other (number bigint generated always as identity primary key, aggregateid \
         text, payload text);
         insert into other (aggregateid, payload) values ('a', 'x'), ('z', 'y')",
    );
    let config = format!(
        "[[outbox]]\ntable = \"outbox\"\npending = \"state = 'NEW'\"\nmark = \"state = 'SENT'\"\n\
         [[outbox]]\ntable = \"other\"\ncolumns.id = \"number\"\nroute.topic = \"{0}\"\nroute.key \
         = \"{{number}}\"\n\
         [[outbox]]\nmessage_prefix = \"shop\"\nroute.topic = \"{0}\"\n",
        world.topic(1)
    );
    let sure = || replay(&world).config_file(&config).flag("--yes");
    let (code, json, words) = ran(&sure().option("--aggregate", "a"));
    assert_eq!((code, &json["published"]), (0, &2.into()), "{words}");
    assert!(
        json["notes"]
            .to_string()
            .contains("compares column aggregateid of public.other"),
        "{json}"
    );
    assert!(
        json["notes"].to_string().contains("leave no rows behind"),
        "{json}"
    );
    assert_eq!((world.records(0).len(), world.records(1).len()), (1, 1));
    // An id that one table cannot have is that of another.
    let (code, json, words) = ran(&sure().option("--id", "2").flag(&ids[1]).flag("3"));
    assert_eq!((code, &json["published"]), (0, &2.into()), "{words}");
    assert!(
        json["notes"]
            .to_string()
            .contains("3 ids were given, and 2 rows found"),
        "{json}"
    );
    let (code, json, words) = ran(&sure().option("--aggregate", "a").option("--table", "other"));
    assert_eq!((code, &json["published"]), (0, &1.into()), "{words}");
    let (code, _, words) = ran(&sure().option("--aggregate", "a").option("--table", "third"));
    assert!(
        code == 2 && words.contains("none of the outboxes is public.third"),
        "{words}"
    );
    assert_eq!(
        sql.number("select count(*) from outbox where state = 'NEW'"),
        2
    );
}

#[test]
fn hostile_values_in_conditions_are_quoted() {
    let (world, sql, ids) = numbered(&["a"]);
    let before = rows(&sql);
    let sure = || replay(&world).flag("--yes");
    for value in [
        "' or true or '' = '",
        "') or (true",
        "\\'; drop table outbox; --",
        "\"",
        "$1",
        "",
        "x\ny",
        "ü",
    ] {
        for flag in ["--id", "--aggregate"] {
            let (code, _, words) = ran(&sure().option(flag, value));
            assert_eq!(code, 1, "{flag} {value}: {words}");
        }
        let (code, _, words) = ran(&sure().option("--since", value));
        assert_eq!(code, 2, "--since {value}: {words}");
    }
    for sql in [
        "true; drop table outbox",
        "true -- ",
        "true) or (true",
        "true] or array[true",
        "seq, 1",
        "nothing = 1",
        "seq",
        "seq = 'x'",
        "id = $1",
        "count(*) > 0",
        "",
        "(select",
    ] {
        let (code, _, words) = ran(&sure().option("--where", sql).option("--id", &ids[0]));
        assert_eq!(code, 2, "{sql}: {words}");
        assert!(last_words(&words).0.contains("--where"), "{sql}: {words}");
    }
    // What would write is stopped by the server.
    sql.run(
        "create function public.harm() returns boolean language sql volatile as 'delete from \
             public.outbox returning true'",
    );
    let (code, _, words) = ran(&sure().option("--where", "public.harm()"));
    assert!(code != 0 && words.contains("read-only"), "{code}: {words}");
    assert_eq!((world.delivered(), rows(&sql)), (0, before));
}

#[test]
fn an_unroutable_row_ends_a_replay_before_it_publishes() {
    let (world, sql, ids) = numbered(&["a", "a"]);
    let nowhere = format!("127.0.0.1:{}", free_port());
    let all = || replay(&world).option("--where", "true");
    for (command, code, said) in [
        // Nobody is there to be asked.
        (all(), 2, "there is no terminal to ask at"),
        (
            replay(&world).option("--aggregate", "nobody").flag("--yes"),
            1,
            "no row matches",
        ),
        (
            all().option("--brokers", &nowhere).flag("--yes"),
            30,
            "Kafka",
        ),
        (
            all().option("--table", "public.nothing").flag("--yes"),
            15,
            "public.nothing",
        ),
        (
            all().option("--database-url", &format!("postgres://nobody@{nowhere}/x")),
            10,
            "Postgres",
        ),
        (
            all().config_file("[outbox]\nmessage_prefix = \"shop\"\n"),
            2,
            "messages",
        ),
        (replay(&world), 2, "--where"),
        (replay(&world).option("--until", "1h"), 2, "--since"),
        (
            replay(&world)
                .option("--since", "1h")
                .option("--until", "2h"),
            2,
            "is not later",
        ),
    ] {
        let (found, _, words) = ran(&command);
        assert!(
            found == code && words.contains(said),
            "{found}, not {code}: {words}"
        );
    }
    // One row without a way: none is published, and it is named.
    sql.run(
        "insert into outbox (id, payload) values ('00000000-0000-0000-0000-00000000000a', \
             '{\"v\": \"canary\"}')",
    );
    let (code, json, words) = ran(&all().flag("--yes"));
    assert_eq!((code, &json["unroutable"]), (20, &1.into()), "{words}");
    assert!(
        json["unroutable_rows"].to_string().contains("00000000000a"),
        "{json}"
    );
    assert!(!json.to_string().contains("canary") && !words.contains("canary"));
    assert_eq!(world.delivered(), 0);
    // A row alone needs no order, several do.
    sql.run("alter table outbox drop seq, drop created_at");
    let (code, _, words) = ran(&all().flag("--yes"));
    assert!(code == 2 && words.contains("outbox.order_by"), "{words}");
    let (code, _, words) = ran(&replay(&world).option("--since", "1h"));
    assert!(
        code == 2 && words.contains("no column of public.outbox"),
        "{words}"
    );
    let (code, _, words) = ran(&replay(&world).option("--id", &ids[0]).flag("--yes"));
    assert_eq!((code, world.delivered()), (0, 1), "{words}");
}

#[test]
fn a_replay_reports_its_progress_and_the_rejected_row() {
    let (world, sql, ids) = numbered(&["a", "b", "c"]);
    let output = replay(&world)
        .option("--id", &ids[0])
        .flag("--yes")
        .output();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success()
            && text.starts_with("outbox ")
            && text.ends_with("Published 1 row again.\n"),
        "{text}"
    );

    sql.run("update outbox set payload = to_jsonb(repeat('x', 2000000)) where seq = 2");
    let (code, json, words) = ran(&replay(&world).option("--where", "true").flag("--yes"));
    assert_eq!(
        (code, &json["published"], &json["up_to"]["id"]),
        (21, &1.into(), &ids[0].clone().into()),
        "{words}"
    );
    assert!(
        words.contains("1 of 3 rows were published; all up to row") && words.contains(&ids[1]),
        "{words}"
    );
    assert!(!words.contains("xxxx") && !json.to_string().contains("xxxx"));
    assert_eq!(world.delivered(), 2);
}

#[test]
fn a_stopped_replay_reports_the_count_and_the_last_row() {
    let world = World::keeping_on(Postgres::shared(), Kafka::shared().brokers());
    let sql = world.sql();
    const ROWS: i64 = 30_000;
    sql.run(&format!(
        "insert into outbox (id, aggregatetype, aggregateid, type, payload)
             select gen_random_uuid(), '{}', 'a', 'Changed', '{{}}' from generate_series(1, \
             {ROWS})",
        world.kind(0)
    ));
    let slow = replay(&world)
        .config_file("[sink]\nmax_in_flight_events = 1\n")
        .option("--where", "true")
        .flag("--yes");
    let mut running = slow.start();
    eventually(
        "some are published",
        ARRIVAL,
        || world.delivered(),
        |records| *records >= 20,
    );
    assert_eq!(running.terminate(EXIT), Some(3), "{}", running.log());
    let log = running.log();
    let (error, fix) = last_words(&log);
    let published = world.delivered();
    assert!(published < ROWS, "{published}");
    let id = sql.text(&format!("select id from outbox where seq = {published}"));
    assert!(
        error.contains(&format!(
            "told to stop: {published} of {ROWS} rows were published"
        )),
        "{error}"
    );
    assert!(
        error.contains(&id) && fix.contains("--where"),
        "{error}\n{fix}"
    );
}
