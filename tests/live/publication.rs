//! P8: publication and table altered under way, and session settings that change the text of a
//! value.

use std::time::Duration;

use super::remedies::statements;
use crate::support::relay::{EXIT, Relay, last_words};
use crate::support::servers::{Kafka, Postgres};
use crate::support::sql::Sql;
use crate::support::wait::{LIMIT, eventually, throughout};
use crate::support::world::{ARRIVAL, World};

/// The catalog is looked at every half minute at least.
const NOTICED: Duration = LIMIT;
const PUBLICATION: Option<i32> = Some(15);

/// A relay that has delivered one event.
fn running(world: &World) -> Relay {
    let relay = world.relay();
    world.emit(&world.sql(), "a");
    world.wait_confirmed();
    assert_eq!(world.delivered(), 1);
    relay
}

/// The `xmax` of the snapshot that counts, where the position is in Postgres.
fn stored_xmax(sql: &Sql) -> i64 {
    sql.number(
        "select coalesce(max(pg_snapshot_xmax((value->'published'->>'snapshot')::pg_snapshot)
             ::text::bigint), 0) from walrelay.position",
    )
}

/// The relay stops for its publication after `change`, and confirms nothing of what is written
/// after it.
#[track_caller]
fn assert_noticed(world: &World, mut relay: Relay, change: &str) -> String {
    let sql = world.sql();
    sql.run(change);
    let changed_at = world.wal();
    world.emit(&sql, "a");
    let code = relay.wait_exit(NOTICED);
    assert_eq!(code, PUBLICATION, "after {change}:\n{}", relay.log());
    assert!(
        world.confirmed() <= changed_at,
        "confirmed an event nobody published, after {change}"
    );
    relay.log()
}

/// The same, and what the relay prints mends it: the SQL, then `walrelay replay`, then a start.
#[track_caller]
fn assert_mended(world: &World, relay: Relay, change: &str) {
    let log = assert_noticed(world, relay, change);
    let (_, remedy) = last_words(&log);
    assert!(
        remedy.contains("`walrelay replay --") && remedy.contains("` publishes them"),
        "{remedy}"
    );
    world.sql().run(statements(remedy));
    let replay = world
        .command("replay")
        .option("--brokers", &world.brokers)
        .option("--where", "true")
        .flag("--yes");
    replay.succeed();
    let run = world.run();
    let mut relay = if remedy.contains("--adopt-slot") {
        run.flag("--adopt-slot")
    } else {
        run
    }
    .start();
    relay.wait_ready();
    world.emit(&world.sql(), "a");
    eventually(
        "every row has arrived",
        ARRIVAL,
        || world.check().lost.len(),
        |lost| *lost == 0,
    );
}

#[test]
fn a_dropped_publication_is_noticed_on_every_major() {
    for &major in Postgres::majors() {
        eprintln!("Postgres {major}");
        let postgres = Postgres::private(major, &[]);
        let world = World::on(&postgres, Kafka::shared().brokers());
        let relay = running(&world);
        assert_noticed(
            &world,
            relay,
            &format!("drop publication walrelay_{}", world.name),
        );
    }
}

#[test]
fn committed_rows_are_delivered_on_every_major() {
    for &major in Postgres::majors() {
        eprintln!("Postgres {major}");
        let postgres = Postgres::private(major, &[]);
        let world = World::on(&postgres, Kafka::shared().brokers());
        let _relay = running(&world);
        let sql = world.sql();
        for n in 0..20 {
            world.emit(&sql, &format!("a{}", n % 3));
        }
        assert_eq!(world.assert_all_delivered().duplicates, 0);
    }
}

#[test]
fn a_publication_recreated_while_no_relay_runs_is_noticed() {
    let world = World::new();
    let mut relay = running(&world);
    assert_eq!(relay.terminate(EXIT), Some(0));
    let sql = world.sql();
    let name = &world.name;
    sql.run(&format!("drop publication walrelay_{name}"));
    // Not in the log's eyes: whatever commits here is published to nobody.
    world.emit(&sql, "a");
    sql.run(&format!(
        "create publication walrelay_{name} for table outbox with (publish = 'insert')"
    ));
    let mut relay = world.run().start();
    let code = relay.wait_exit(NOTICED);
    assert!(matches!(code, Some(15 | 16)), "{code:?}\n{}", relay.log());
}

#[test]
fn a_table_dropped_and_recreated_is_noticed() {
    let world = World::keeping();
    world.setup();
    let relay = running(&world);
    let change = "begin; create table copied (like outbox including all); drop table outbox;
        alter table copied rename to outbox; commit";
    assert_mended(&world, relay, change);
}

#[test]
fn a_table_removed_from_the_publication_is_noticed() {
    let world = World::keeping();
    world.setup();
    let relay = running(&world);
    assert_mended(
        &world,
        relay,
        &format!(
            "alter publication walrelay_{} drop table outbox",
            world.name
        ),
    );
}

#[test]
fn a_row_filter_is_noticed() {
    let world = World::keeping();
    world.setup();
    let relay = running(&world);
    let change = format!(
        "alter publication walrelay_{} set table outbox where (aggregateid <> 'a')",
        world.name
    );
    assert_mended(&world, relay, &change);
}

#[test]
fn a_relay_refuses_to_start_with_a_row_filter() {
    let world = World::new();
    let change = format!(
        "alter publication walrelay_{} set table outbox where (aggregateid <> 'a')",
        world.name
    );
    world.sql().run(&change);
    let mut relay = world.run().start();
    assert_eq!(relay.wait_exit(NOTICED), PUBLICATION, "{}", relay.log());
}

#[test]
fn database_and_role_settings_change_no_record() {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    let sql = world.sql();
    sql.run("alter table outbox alter payload type bytea using null, alter aggregateid type text");
    world.setup();
    let insert = |key: &str| {
        let kind = world.kind(0);
        world.sql().run(&format!(
            "insert into outbox values (gen_random_uuid(), '{kind}', '{key}', 'T', \
                           '\\x00ff27225c0a')"
        ));
    };
    let mut relay = world.relay();
    insert("plain");
    eventually(
        "it arrives",
        ARRIVAL,
        || world.delivered(),
        |records| *records == 1,
    );
    assert_eq!(relay.terminate(EXIT), Some(0));

    let name = &world.name;
    for setting in [
        "bytea_output = 'escape'",
        "datestyle = 'German, DMY'",
        "timezone = 'Asia/Kolkata'",
    ] {
        sql.run(&format!("alter database {name} set {setting}"));
    }
    sql.run(&format!(
        "alter database {name} set client_encoding = 'LATIN1'"
    ));
    sql.run(&format!(
        "alter database {name} set extra_float_digits = -5"
    ));
    let _relay = world.relay();
    insert("grün-ключ");
    eventually(
        "it arrives",
        ARRIVAL,
        || world.delivered(),
        |records| *records == 2,
    );
    let records = world.records(0);
    assert_eq!(records[0].value, records[1].value);
    assert!(
        records
            .iter()
            .any(|record| record.key.as_deref() == Some("grün-ключ".as_bytes()))
    );
}

#[test]
fn one_of_two_memberships_may_go_while_the_other_publishes_the_rows() {
    let world = World::keeping();
    world.create_topics();
    let sql = world.sql();
    let of = &world.name;
    world.setup();
    sql.run(&format!(
        "alter publication walrelay_{of} add tables in schema public"
    ));
    let run = world.run().option("--state-store", "postgres");
    let mut relay = run.start();
    relay.wait_ready();
    sql.run(&format!(
        "alter publication walrelay_{of} drop table outbox"
    ));
    let stored = || {
        world.emit(&sql, "a");
        sql.number("select jsonb_array_length(value->'membership_oids') from walrelay.position")
    };
    eventually(
        "what is stored has one of them",
        ARRIVAL,
        stored,
        |memberships| *memberships == 1,
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    // The table was not taken out and added again.
    let mut relay = run.start();
    relay.wait_ready();
    world.emit(&sql, "a");
    assert_eq!(
        world.assert_all_delivered().duplicates,
        0,
        "{}",
        relay.log()
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn rows_of_a_time_without_inserts_are_read_from_the_table() {
    let world = World::keeping();
    world.create_topics();
    world.setup();
    let mut relay = world.relay();
    let sql = world.sql();
    let of = &world.name;
    let flip = |aggregate: &str| {
        sql.run(&format!(
            "alter publication walrelay_{of} set (publish = 'update')"
        ));
        (0..7).for_each(|_| world.emit(&sql, aggregate));
        sql.run(&format!(
            "alter publication walrelay_{of} set (publish = 'insert')"
        ));
    };
    world.emit(&sql, "before");
    world.wait_confirmed();
    // A relay that looks while inserts are off stops. This one is killed before it looks.
    relay.kill_hard();
    flip("away");
    world.emit(&sql, "after");
    let mut relay = world.relay();
    // Those that the slot sent come again.
    let at_most_two = |relay: &Relay| {
        let duplicates = world.assert_all_delivered().duplicates;
        assert!(duplicates <= 2, "{duplicates}: {}", relay.log());
    };
    at_most_two(&relay);
    assert!(
        relay.log().contains("publication_altered"),
        "{}",
        relay.log()
    );
    assert_eq!(relay.terminate(EXIT), Some(0));

    // A relay that is not to read the table stops instead.
    flip("stops");
    let mut relay = world.run().option("--on-slot-loss", "stop").start();
    assert_eq!(relay.wait_exit(NOTICED), PUBLICATION, "{}", relay.log());
    let mut relay = world.relay();
    at_most_two(&relay);
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn rows_of_transactions_that_span_an_alteration_are_read_from_the_table() {
    let world = World::keeping();
    world.create_topics();
    world.setup();
    let mut relay = running(&world);
    relay.kill_hard();
    let sql = world.sql();
    let [ended, open] = [(); 2].map(|()| world.sql());
    let emit = |session: &Sql, aggregate: &str| world.emit(session, aggregate);
    // One transaction has ended by the time of the look, and one is open. The slot sends the first
    // and the last row of each.
    for (session, aggregate) in [(&ended, "ended"), (&open, "open")] {
        session.run("begin");
        emit(session, aggregate);
    }
    sql.run(&format!(
        "alter publication walrelay_{} set (publish = 'update')",
        world.name
    ));
    emit(&ended, "ended");
    emit(&open, "open");
    // One begins while the publication is altered back, so that no snapshot tells of it.
    let [altering, late] = [(); 2].map(|()| world.sql());
    altering.run("begin");
    altering.run(&format!(
        "alter publication walrelay_{} set (publish = 'insert')",
        world.name
    ));
    late.run("begin");
    emit(&late, "late");
    altering.run("commit");
    emit(&ended, "ended");
    emit(&open, "open");
    ended.run("commit");
    let relay = world.relay();
    eventually(
        "the relay has seen the alteration",
        ARRIVAL,
        || relay.log(),
        |log| log.contains("publication_altered"),
    );
    emit(&sql, "after");
    eventually(
        "the slot has sent what it sends",
        ARRIVAL,
        || world.delivered(),
        |records| *records >= 4,
    );
    open.run("commit");
    late.run("commit");
    // They come late, and others again.
    eventually(
        "every row has arrived",
        ARRIVAL,
        || world.check().lost.len(),
        |lost| *lost == 0,
    );
}

/// The commit of the alteration waits for a standby that does not come, and later ones do not wait.
/// The slot heeds it, and no snapshot sees it.
#[test]
fn rows_that_a_snapshot_sees_before_the_alteration_that_left_them_out_are_published() {
    let postgres = Postgres::without_its_standby(17);
    let world = World::keeping_on(&postgres, Kafka::shared().brokers());
    world.create_topics();
    let config = format!(
        "[[outbox]]
         table = \"outbox\"
         [[outbox]]
         message_prefix = \"shop\"
         route.topic = \"{}-messages\"
         route.key = \"{{aggregateid}}\"",
        world.name
    );
    world.command("setup").config_file(&config).succeed();
    let run = world
        .run()
        .config_file(&config)
        .option("--state-store", "postgres");
    let mut relay = run.start();
    relay.wait_ready();
    let sql = world.sql();
    // It is delivered, whatever the publication says.
    let message = || {
        sql.run(
            r#"select pg_logical_emit_message(true, 'shop', '{"aggregateid": "a", "payload": 1}')"#,
        )
    };
    world.emit(&sql, "a");
    message();
    world.wait_confirmed();
    let publish = |what: &str| {
        format!(
            "alter publication walrelay_{} set (publish = '{what}')",
            world.name
        )
    };
    let url = world.database_url.clone();
    let update = publish("update");
    let alteration = std::thread::spawn(move || {
        let session = Sql::connect(&url);
        session.run("set synchronous_commit = on");
        session.run(&update);
    });
    let altering = || {
        sql.number(
            "select coalesce(max(backend_xid::text::bigint), 0) from pg_stat_activity
             where wait_event = 'SyncRep' and query like 'alter publication%'",
        )
    };
    let altering = eventually("the alteration waits", LIMIT, altering, |xid| *xid > 0);
    (0..3).for_each(|_| world.emit(&sql, "a"));
    message();
    world.wait_confirmed();
    // A snapshot would see the rows, and count once the next position is stored.
    throughout("none is stored", Duration::from_secs(2), || {
        message();
        stored_xmax(&sql) <= altering
    });
    // A relay that sees a publication without inserts stops.
    relay.kill_hard();
    postgres.alter("synchronous_standby_names", "");
    alteration.join().unwrap();
    sql.run(&publish("insert"));
    let mut relay = run.start();
    let lost = || world.check().lost.len();
    eventually("every row has arrived", ARRIVAL, lost, |lost| *lost == 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// Snapshots list no savepoints. Row and membership are rows of different catalogs.
#[test]
fn no_snapshot_counts_while_a_savepoint_alters_the_publication_on_each_catalog() {
    for major in [14, 18] {
        let postgres = Postgres::private(major, &[]);
        let world = World::keeping_on(&postgres, Kafka::shared().brokers());
        world.create_topics();
        world.setup();
        let mut relay = world.run().option("--state-store", "postgres").start();
        relay.wait_ready();
        let sql = world.sql();
        let altering = world.sql();
        let stored = || {
            world.emit(&sql, "a");
            stored_xmax(&sql)
        };
        for change in ["set (publish = 'update')", "drop table outbox"] {
            altering.run(&format!(
                "begin; savepoint one; alter publication walrelay_{} {change}",
                world.name
            ));
            let began = sql.number("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint");
            throughout("none is stored", Duration::from_millis(1_200), || {
                stored() <= began
            });
            altering.run("rollback");
            eventually("one is stored", ARRIVAL, stored, |xmax| *xmax > began);
        }
        assert_eq!(
            world.assert_all_delivered().duplicates,
            0,
            "{}",
            relay.log()
        );
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    }
}

#[test]
fn tables_that_inherit_and_rules_that_replace_inserts_are_noticed_and_named() {
    let world = World::keeping();
    world.setup();
    let sql = world.sql();
    let kind = world.kind(0);
    let into = |table: &str, n: i64| {
        sql.run(&format!(
            "insert into {table} (id, aggregatetype, aggregateid, payload, seq) overriding system \
             value
             values (gen_random_uuid(), '{kind}', 'c', '{{\"v\": {n}}}', {n})"
        ));
    };
    let stops = |mut relay: Relay, cause: &str, remedy: &str| {
        assert_eq!(
            relay.wait_exit(NOTICED),
            PUBLICATION,
            "{cause}: {}",
            relay.log()
        );
        let log = relay.log();
        let (error, fix) = last_words(&log);
        assert!(
            error.contains(cause) && fix.contains(remedy),
            "{cause}, {remedy}: {log}"
        );
        statements(fix).to_owned()
    };
    let relay = running(&world);
    sql.run("create table child () inherits (outbox)");
    into("child", 1000);
    world.emit(&sql, "a");
    let remedy = "alter table public.child no inherit public.outbox";
    stops(
        relay,
        "tables inherit from public.outbox (public.child)",
        remedy,
    );
    let pasted = stops(
        world.run().start(),
        "tables inherit from public.outbox (public.child)",
        remedy,
    );

    // What a SELECT finds is what `verify` goes by, and `replay` publishes it.
    let verify = world
        .command("verify")
        .option("--brokers", &world.brokers)
        .option("--grace", "0s")
        .flag("--json");
    let missing = || {
        let json: serde_json::Value = serde_json::from_slice(&verify.output().stdout).unwrap();
        json["total"]["missing"].as_u64()
    };
    // The relay may have stopped before the last event came.
    let left = u64::try_from(2 - world.delivered()).expect("two events beside the child's");
    assert_eq!(missing(), Some(1 + left));
    let replay = world
        .command("replay")
        .option("--brokers", &world.brokers)
        .option("--where", "seq = 1000");
    replay.flag("--yes").succeed();
    assert_eq!(missing(), Some(left));
    sql.run(&pasted);

    let relay = world.relay();
    sql.run("create function same() returns trigger language plpgsql as 'begin return new; end'");
    sql.run("create trigger defaults before insert on outbox for each row execute function same()");
    world.emit(&sql, "a");
    let told = || {
        relay
            .log()
            .matches("a trigger runs before each insert of a row (defaults on public.outbox)")
            .count()
    };
    eventually("the trigger is named", ARRIVAL, told, |count| *count == 1);
    assert!(relay.is_ready(), "{}", relay.log());

    sql.run("create table aside (like outbox)");
    sql.run(
        "create rule moves as on insert to outbox where new.type = 'X' do instead insert into \
             aside select new.*",
    );
    world.emit(&sql, "a");
    sql.run(&stops(
        relay,
        "rules of public.outbox replace an insert",
        "drop rule moves on public.outbox",
    ));

    sql.run("create access method other type table handler heap_tableam_handler");
    sql.run("alter table outbox set access method other");
    sql.run(&stops(
        world.run().start(),
        "has the access method other",
        "set access method heap",
    ));
    world.relay();
    // A poller reads any access method, and no child.
    sql.run("create table child_2 () inherits (outbox)");
    let polls = world.run().option("--mode", "poll");
    let cause = "tables inherit from public.outbox (public.child_2)";
    sql.run(&stops(
        polls.start(),
        cause,
        "alter table public.child_2 no inherit",
    ));
    polls.start().wait_ready();
}

#[test]
fn rows_of_a_table_that_joined_the_publication_are_counted_and_named_once() {
    let world = World::new();
    let sql = world.sql();
    let relay = running(&world);
    sql.run(&format!(
        "create table orders (n int); alter publication walrelay_{} add table orders",
        world.name
    ));
    sql.run("insert into orders select generate_series(1, 5)");
    let counted = || relay.metric("walrelay_ignored_messages_total{op=\"insert\"}");
    eventually("they are counted", ARRIVAL, counted, |inserts| {
        *inserts == Some(5.0)
    });
    sql.run("insert into orders values (6)");
    eventually("it is counted", ARRIVAL, counted, |inserts| {
        *inserts == Some(6.0)
    });
    let log = relay.log();
    assert_eq!(log.matches("other_table_found").count(), 1, "{log}");
    assert!(log.contains("public.orders"), "{log}");
}

#[test]
fn start_and_recovery_read_the_catalogs_of_all_outboxes_together() {
    let settings = [("log_statement", "all"), ("log_replication_commands", "on")];
    let postgres = Postgres::private(15, &settings);
    let log = postgres.data().with_file_name("postgres.log");
    let logged = || std::fs::read_to_string(&log).unwrap();
    let started_with = |outboxes: usize| {
        let world = World::keeping_on(&postgres, Kafka::shared().brokers());
        let names = (0..outboxes)
            .map(|n| format!("outbox_{n}"))
            .collect::<Vec<_>>();
        names.iter().for_each(|name| {
            world
                .sql()
                .run(&format!("create table {name} (like outbox including all)"))
        });
        let toml: String = names
            .iter()
            .map(|name| format!("[[outbox]]\ntable = \"public.{name}\"\n"))
            .collect();
        world.command("setup").config_file(&toml).succeed();
        let before = logged().len();
        let mut relay = world
            .run()
            .config_file(&toml)
            .option("--backlog", "all")
            .start();
        relay.wait_ready();
        // A stream without events soon reads the catalogs again, to store its position.
        let text = logged().split_off(before);
        let start = text.find("START_REPLICATION SLOT").unwrap();
        // The first lines of sql/source/catalog.sql and sql/table.sql.
        let queries = [
            "-- The publication, the outbox tables",
            "-- A table by schema",
        ];
        queries.map(|first| text[..start].matches(first).count())
    };
    let with_one = started_with(1);
    assert_ne!(with_one[0], 0);
    assert_eq!(started_with(6), with_one);
}
