//! P3, P8: rows that no record can be made of, and tables that no events can be read from: one line
//! says which, and what to do.

use crate::support::relay::{EXIT, Relay, last_words};
use crate::support::servers::kafka::PARTITIONS;
use crate::support::servers::{Kafka, Postgres};
use crate::support::topic;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

/// Exit codes of `src/error.rs`.
const CONFIG: i32 = 2;
const PUBLICATION: i32 = 15;
const EVENT: i32 = 20;
const RECORD: i32 = 21;

/// No primary key and no replica identity: inserts need neither.
const TABLE: &str = "drop table outbox;
    create table outbox (id text, topic text, key text, body text, place int, at timestamptz, meta \
    text,
        twice text generated always as (key || key) stored)";

/// A configuration with these lines in it.
fn config(columns: &str, route: &str, format: &str) -> String {
    format!(
        "[outbox.columns]\npayload = \"body\"\n{columns}\n[route]\ntopic = \"{{topic}}\"\nkey = \
         \"{{key}}\"\n{route}\n{format}\n"
    )
}

/// `walrelay setup` for that table.
fn setup(world: &World) {
    world
        .command("setup")
        .config_file(&config("", "", ""))
        .succeed();
}

/// A row between two good ones.
struct Bad {
    route: &'static str,
    format: &'static str,
    /// What is other than in a good row: column and SQL expression.
    changed: (&'static str, &'static str),
    exit: i32,
    /// What one line has to say beside the row's id.
    says: [&'static str; 2],
}

fn bad(changed: (&'static str, &'static str), says: [&'static str; 2]) -> Bad {
    Bad {
        route: "",
        format: "",
        changed,
        exit: EVENT,
        says,
    }
}

fn rows() -> Vec<Bad> {
    let topic = |expression, problem| bad(("topic", expression), [problem, "CHECK on the column"]);
    let place = |expression| Bad {
        route: "partition = \"place\"",
        ..bad(
            ("place", expression),
            [
                "column place is not the number of a partition",
                "nothing was skipped",
            ],
        )
    };
    let at = |expression| Bad {
        route: "timestamp = \"at\"",
        ..bad(
            ("at", expression),
            ["column at is not a time since 1970", "nothing was skipped"],
        )
    };
    let envelope = |template: &'static str, changed, says| Bad {
        format: template,
        ..bad(changed, says)
    };
    let header = |template: &'static str, changed, says| Bad {
        route: template,
        ..bad(changed, says)
    };
    let json = ["column body is not JSON", "keep such rows out"];
    vec![
        topic("null", "column topic is NULL"),
        topic("''", "which is empty"),
        topic("'a b'", "holds other characters than a-z"),
        topic("'a/b'", "holds other characters than a-z"),
        topic("'größe'", "holds other characters than a-z"),
        topic("'.'", "a name that no topic may have"),
        topic("'..'", "a name that no topic may have"),
        topic(
            "repeat('x', 250)",
            "has 250 bytes, and a topic may have 249",
        ),
        place("-1"),
        place("100000"),
        at("'infinity'"),
        at("'1969-12-31 23:59:59+00'"),
        envelope(
            "[format.envelope]\ndata = \"{body|json}\"",
            ("body", "'{\"torn\": '"),
            json,
        ),
        envelope(
            "[format.envelope]\ndata = \"{body.member}\"",
            ("body", "'not JSON'"),
            json,
        ),
        envelope(
            "[format.envelope]\nat = \"{at|rfc3339}\"",
            ("at", "'-infinity'"),
            ["column at is not a timestamp", "keep such rows out"],
        ),
        header(
            "headers.tenant = \"{meta.tenant}\"",
            ("meta", "'{]'"),
            ["column meta is not JSON", "keep such rows out"],
        ),
        Bad {
            route: "partition = \"place\"",
            exit: RECORD,
            ..bad(
                ("place", "99"),
                [
                    "the topic has no such partition",
                    "correct the column that `partition` in [route] names",
                ],
            )
        },
    ]
}

/// It ends with this exit code; the line with the error says all but the last of these, the one
/// behind it the last.
#[track_caller]
fn assert_ends(mut relay: Relay, exit: i32, says: &[&str]) {
    let code = relay.wait_exit(EXIT);
    assert_eq!(
        code,
        Some(exit),
        "instead of saying {says:?}:\n{}",
        relay.log()
    );
    let log = relay.log();
    let (error, fix) = last_words(&log);
    let (remedy, causes) = says.split_last().expect("a cause and a remedy");
    assert!(
        causes.iter().all(|cause| error.contains(cause)),
        "not {causes:?}: {error}"
    );
    assert!(fix.contains(remedy), "not {remedy:?}: {fix}");
}

#[test]
fn an_unroutable_row_is_named_with_its_column_and_a_remedy() {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    let sql = world.sql();
    sql.run(TABLE);
    setup(&world);
    topic::create(&world.brokers, &world.topic(0), PARTITIONS, &[]);
    let insert = |id: &str, changed: (&str, &str)| {
        let topic = format!("'{}'", world.topic(0));
        let columns = [
            ("topic", topic.as_str()),
            ("key", "'k'"),
            ("body", "'{\"n\": 1}'"),
            ("at", "now()"),
        ];
        let columns: Vec<_> = columns
            .iter()
            .filter(|(name, _)| *name != changed.0)
            .chain([&changed])
            .collect();
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let values: Vec<&str> = columns.iter().map(|(_, value)| *value).collect();
        sql.run(&format!(
            "insert into outbox (id, {}) values ('{id}', {})",
            names.join(", "),
            values.join(", ")
        ));
    };
    // Each bad row is passed over as its error says, here with the position in the slot alone.
    for (number, row) in rows().into_iter().enumerate() {
        let good = format!("good-{number}");
        let id = format!("bad-{number}");
        insert(&good, ("meta", "'{}'"));
        insert(&id, row.changed);
        let config = config("", row.route, row.format);
        let relay = world
            .run()
            .config_file(&config)
            .option("--state-store", "slot")
            .start();
        let id = if row.exit == EVENT {
            format!("row \"{id}\"")
        } else {
            id
        };
        assert_ends(relay, row.exit, &[&id, row.says[0], row.says[1]]);
        sql.run(&format!(
            "select pg_replication_slot_advance('{}', pg_current_wal_lsn())",
            world.name
        ));
    }
    let arrived: Vec<String> = world
        .records(0)
        .iter()
        .map(|record| record.header("id"))
        .collect();
    let good: Vec<String> = (0..rows().len())
        .map(|number| format!("good-{number}"))
        .collect();
    assert!(
        good.iter().all(|id| arrived.contains(id)) && arrived.iter().all(|id| good.contains(id)),
        "{arrived:?}"
    );
}

#[test]
fn a_streamed_row_with_a_null_id_is_named_by_its_place() {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    world.sql().run(TABLE);
    setup(&world);
    world.sql().run(&format!(
        "insert into outbox (topic, key, body) values ('{}', 'k', '1')",
        world.topic(0)
    ));
    let relay = world.run().config_file(&config("", "", "")).start();
    let says = [
        "event at index 0 of the transaction at ",
        "column id of public.outbox is NULL",
        "NOT NULL",
    ];
    assert_ends(relay, EVENT, &says);
}

#[test]
fn a_polled_row_with_a_null_id_is_named_by_its_column() {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    world.sql().run(TABLE);
    world.sql().run(
        "alter table outbox add primary key (place), alter place add generated always as identity",
    );
    world
        .sql()
        .run("insert into outbox (topic, key, body) values ('t', 'k', '1')");
    let upkeep =
        "[outbox]\norder_by = \"place\"\npending = \"body = '1'\"\nmark = \"body = '2'\"\n";
    let relay = world
        .run()
        .config_file(&config("", "", upkeep))
        .option("--mode", "poll")
        .start();
    assert_ends(
        relay,
        EVENT,
        &["column \"id\" is NULL", "where \"id\" is null"],
    );
}

#[test]
fn invalid_sql_in_a_setting_ends_the_relay_before_the_first_mark() {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    world.sql().run(TABLE);
    world
        .sql()
        .run("alter table outbox add primary key (place)");
    for pending in ["1", "count(*) > 0", "body = $1"] {
        let upkeep = format!(
            "[outbox]\norder_by = \"place\"\npending = \"{pending}\"\nmark = \"body = '2'\"\n"
        );
        let relay = world
            .run()
            .config_file(&config("", "", &upkeep))
            .option("--mode", "poll")
            .start();
        assert_ends(relay, CONFIG, &["outbox.pending", "fix: "]);
    }
}

#[test]
fn an_unlogged_table_and_a_view_are_refused_before_a_slot_exists() {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    world
        .sql()
        .run("create view shown as select * from outbox; alter table outbox set unlogged");
    assert_ends(
        world.run().start(),
        PUBLICATION,
        &["public.outbox is unlogged", "set logged"],
    );
    assert_ends(
        world.run().option("--table", "shown").start(),
        PUBLICATION,
        &["public.shown is a view", "inserted into"],
    );
}

#[test]
fn a_table_or_publication_with_a_fault_is_refused_at_start() {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    let sql = world.sql();
    sql.run(TABLE);
    setup(&world);
    let starts =
        |columns: &str, route: &str| world.run().config_file(&config(columns, route, "")).start();
    assert_ends(
        starts("id = \"event_id\"", ""),
        PUBLICATION,
        &[
            "public.outbox has no column event_id; it has id, topic, key, body",
            "which column holds what",
        ],
    );
    assert_ends(
        starts("", "headers.twice = \"{twice}\""),
        PUBLICATION,
        &[
            "column twice of public.outbox is generated",
            "map a column that is stored",
        ],
    );
    let publication = format!("walrelay_{}", world.name);
    sql.run(&format!(
        "alter publication {publication} drop table outbox"
    ));
    assert_ends(
        starts("", ""),
        PUBLICATION,
        &[
            "public.outbox is not in publication",
            "dropped and created again since",
            "reads them from the table",
        ],
    );
    sql.run("drop table outbox; create view outbox as select 1 as id");
    assert_ends(
        starts("", ""),
        PUBLICATION,
        &["public.outbox is a view", "name the table"],
    );
    sql.run("drop view outbox");
    assert_ends(
        starts("", ""),
        PUBLICATION,
        &[
            "there is no table public.outbox",
            "check schema, name and database",
        ],
    );
}

#[test]
fn text_that_is_not_utf_8_stops_the_relay_for_every_mapping() {
    let postgres = Postgres::shared();
    // The one encoding in which a server takes any bytes for text, and one with a byte that is no
    // character.
    for (encoding, bad, said) in [
        (
            "SQL_ASCII",
            "E'm\\xff'",
            "invalid byte sequence for encoding",
        ),
        ("WIN1252", "chr(129)", "has no equivalent in encoding"),
    ] {
        let world = World::bare(postgres, Kafka::shared().brokers());
        let name = &world.name;
        postgres.sql().run(&format!("drop database {name}"));
        postgres.sql().run(&format!(
            "create database {name} template template0 encoding '{encoding}' lc_collate 'C' \
             lc_ctype 'C'"
        ));
        let sql = world.sql();
        sql.run("create table outbox (id text, topic text, key text, body text, meta text)");
        setup(&world);
        let insert = |id: &str, meta: &str| {
            let topic = world.topic(0);
            sql.run(&format!(
                "insert into outbox values ('{id}', '{topic}', 'größe', 'b', {meta})"
            ));
        };
        insert("good", "'größe'");
        insert("bad", bad);
        insert("behind", "'größe'");
        // It is the server that refuses, and it names neither row nor place.
        let run = world
            .run()
            .config_file(&config("", "headers.meta = \"{meta}\"", ""));
        let mut relay = run.start();
        assert_eq!(relay.wait_exit(EXIT), Some(EVENT), "{}", relay.log());
        let log = relay.log();
        let (error, remedy) = last_words(&log);
        assert!(
            error.contains(said) && error.contains("in the transaction at "),
            "{error}"
        );
        let records = world.records(0);
        assert_eq!(
            (
                records.len(),
                records[0].key_text(),
                records[0].header("meta")
            ),
            (1, "größe".into(), "größe".into())
        );
        // And its remedy.
        let (_, statement) = remedy.split_once("stop the relay, ").unwrap();
        let (statement, _) = statement
            .split_once(", and start once with --adopt-slot")
            .unwrap();
        sql.run(statement);
        let mut relay = run.flag("--adopt-slot").start();
        let arrived = || world.records(0).len();
        eventually("what is behind it arrives", EXIT, arrived, |count| {
            *count == 2
        });
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    }
}

#[test]
fn every_form_of_insert_is_relayed_and_rolled_back_rows_are_not() {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    let sql = world.sql();
    let kind = world.kind(0);
    // No key, and another way to number rows.
    sql.run(
        "drop table outbox; create table outbox (id bigint generated always as identity, \
         aggregatetype text,
             aggregateid text, type text, payload text, length int generated always as \
             (length(payload)) stored)",
    );
    world.setup();
    let _relay = world.relay();
    let insert = |payload: &str| {
        let columns = "aggregatetype, aggregateid, type, payload";
        format!("insert into outbox ({columns}) values ('{kind}', 'a', 'T', '{payload}')")
    };
    // Inserted and deleted at once, with what another transaction left.
    sql.run(&format!(
        "begin; {}; delete from outbox; commit",
        insert("deleted at once")
    ));
    sql.run(&format!(
        "begin; {}; savepoint s; {}; rollback to s; {}; savepoint t; {}; release t; commit",
        insert("before"),
        insert("taken back"),
        insert("after"),
        insert("released")
    ));
    sql.run(&format!("begin; {}; rollback", insert("taken back")));
    sql.run(&format!(
        "copy outbox (aggregatetype, aggregateid, type, payload) from program
             'printf \"{kind}\\ta\\tT\\tcopied 1\\n{kind}\\ta\\tT\\tcopied 2\\n\"'"
    ));
    sql.run(&format!(
        "insert into outbox (aggregatetype, aggregateid, type, payload)
         select '{kind}', 'a', 'T', n::text from generate_series(1, 3000) n"
    ));
    sql.run("delete from outbox");

    let mut expected: Vec<String> = [
        "deleted at once",
        "before",
        "after",
        "released",
        "copied 1",
        "copied 2",
    ]
    .map(str::to_owned)
    .to_vec();
    expected.extend((1..=3000).map(|number| number.to_string()));
    eventually(
        "they arrive",
        ARRIVAL,
        || world.delivered(),
        |count| *count >= expected.len() as i64,
    );
    world.wait_confirmed();
    let arrived: Vec<String> = world
        .records(0)
        .iter()
        .map(|record| record.value_text())
        .collect();
    assert_eq!(arrived, expected);
}
