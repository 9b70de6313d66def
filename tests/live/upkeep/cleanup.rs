//! P13: `walrelay cleanup`: what is published and old goes, and nothing else, and nobody notices.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use walrelay::upkeep::cleanup::{Sweeper, old_partitions};
use walrelay_core::ledger::trail::{Pair, Published};
use walrelay_core::position::Lsn;

use super::{database, runtime, settings};
use crate::support::relay::{RelayCommand, last_words, told};
use crate::support::sql::Sql;
use crate::support::wait::{LIMIT, eventually};
use crate::support::world::World;

/// Columns of an outbox, with the times of its rows.
const COLUMNS: &str =
    "id bigint generated always as identity, aggregatetype text, aggregateid text, type text, \
     payload jsonb,
     created_at timestamptz not null default now()";

fn old(sql: &Sql, count: u32) {
    sql.run(&insert(count));
}

/// Rows of eight days ago, a second apart.
fn insert(count: u32) -> String {
    format!(
        "insert into outbox (aggregatetype, created_at)
         select 'a', now() - interval '8 days' + n * interval '1 second' from generate_series(1, \
         {count}) n"
    )
}

/// What a relay stores once everything that ended until now is published.
fn publish_all(world: &World, also: &str) {
    let sql = world.sql();
    sql.run(
        "create schema if not exists walrelay; create table if not exists walrelay.position \
             (key text primary key, value jsonb not null, updated_at timestamptz not null)",
    );
    sql.run(&format!(
        "delete from walrelay.position;
         insert into walrelay.position
         select '{slot}', jsonb_build_object(
            'version', 3, 'written_at', now()::text, 'walrelay', '0.1.0',
            'system_identifier', (select system_identifier::text from pg_control_system()),
            'timeline', (select timeline_id from pg_control_checkpoint()),
            'slot', '{slot}', 'position', jsonb_build_object('end_lsn', \
            pg_current_wal_insert_lsn()::text),
            'publication_oid', 1, 'table_oids', jsonb_build_array('outbox'::regclass::oid::bigint),
            'published', jsonb_build_object(
                'snapshot', pg_current_snapshot()::text, 'lsn', pg_current_wal_insert_lsn()::text, \
                'also', '{also}'::jsonb
            )), now()",
        slot = world.name
    ));
}

/// Waits until no transaction of another test, in another database, is older than these rows.
fn wait_for_elder(sql: &Sql) {
    let youngest = "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint - \
                    max(xmin::text::bigint) from outbox";
    eventually(
        "what was under way before is over",
        Duration::from_secs(60),
        || sql.number(youngest),
        |ahead| *ahead > 0,
    );
}

fn cleanup(world: &World) -> RelayCommand {
    let stored = world
        .command("cleanup")
        .option("--state-store", "postgres")
        .option("--brokers", "127.0.0.1:9");
    stored
        .option("--older-than", "7d")
        .option("--pause", "0s")
        .flag("--json")
        .flag("--yes")
}

#[track_caller]
fn answer(command: &RelayCommand) -> Value {
    let mut answer: Value = serde_json::from_str(&command.succeed()).unwrap();
    answer["tables"][0].take()
}

#[test]
fn unpublished_rows_are_kept_at_any_age() {
    let world = database(&format!(
        "create table outbox ({COLUMNS}, xid xid8 default pg_current_xact_id())"
    ));
    let sql = world.sql();
    let late = world.sql();
    let listed = world.sql();
    sql.run("create index on outbox (created_at)");
    sql.run("create table side (id int)");
    old(&sql, 2_500);
    // Published, and too young.
    sql.run("insert into outbox (aggregatetype) values ('young')");
    // Two under way while the pair is taken: one is delivered all the same, and one is not.
    // Savepoints and all.
    late.run(&format!(
        "begin; insert into side values (1); savepoint a; {}; release a",
        insert(3)
    ));
    listed.run(&format!(
        "begin; insert into side values (2); savepoint a; {}; release a",
        insert(4)
    ));
    let xid = listed.text("select pg_current_xact_id()");
    publish_all(&world, &format!("[{xid}]"));
    late.run("commit");
    listed.run("commit");
    old(&sql, 5);

    let counted = answer(&cleanup(&world).flag("--dry-run"));
    assert_eq!(
        (&counted["rows_deleted"], &counted["rows_unpublished"]),
        (&2_504.into(), &8.into()),
        "{counted}"
    );
    assert_eq!(sql.number("select count(*) from outbox"), 2_513);
    let swept = answer(&cleanup(&world));
    assert_eq!(
        (&swept["rows_deleted"], &swept["rows_unpublished"]),
        (&2_504.into(), &8.into()),
        "{swept}"
    );
    assert_eq!(
        (&swept["rows_left"], &swept["published_by"]),
        (&0.into(), &"xid".into())
    );
    assert_eq!(sql.number("select count(*) from outbox"), 9);
    assert_eq!(
        sql.number("select count(*) from outbox where aggregatetype = 'young'"),
        1
    );

    // Without the column, only what had ended before the oldest that was under way is known to be
    // published.
    sql.run("alter table outbox drop column xid");
    wait_for_elder(&sql);
    late.run(&format!(
        "begin; insert into side values (3); savepoint a; {}; release a",
        insert(3)
    ));
    old(&sql, 20);
    publish_all(&world, "[]");
    late.run("commit");
    let swept = answer(&cleanup(&world));
    assert_eq!(
        (&swept["rows_deleted"], &swept["rows_unpublished"]),
        (&8.into(), &23.into()),
        "{swept}"
    );
    assert_eq!(swept["published_by"], "xmin");
    wait_for_elder(&sql);
    publish_all(&world, "[]");
    assert_eq!(answer(&cleanup(&world))["rows_deleted"], 23);
    assert!(
        world
            .command("cleanup")
            .option("--older-than", "7d")
            .flag("--help")
            .succeed()
            .contains("Exit codes")
    );
}

#[test]
fn without_evidence_of_publication_no_row_is_deleted() {
    let world = database(&format!("create table outbox ({COLUMNS})"));
    let sql = world.sql();
    old(&sql, 10);
    let refused = |command: RelayCommand, code: i32, word: &str| {
        let output = command.output();
        let text = told(&output.stderr);
        let (error, fix) = last_words(&text);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(error.contains(word) && fix.starts_with("fix: "), "{text}");
        assert_eq!(sql.number("select count(*) from outbox"), 10);
    };
    refused(cleanup(&world), 16, "age alone");
    refused(
        cleanup(&world).option("--state-store", "slot"),
        16,
        "age alone",
    );
    publish_all(&world, "[]");
    let store = |change: &str| {
        publish_all(&world, "[]");
        sql.run(&format!("update walrelay.position set value = {change}"));
    };
    store("value - 'published'");
    refused(cleanup(&world), 16, "does not say");
    store("value || '{\"table_oids\": [1]}'");
    refused(cleanup(&world), 16, "not about the table");
    store("value || '{\"system_identifier\": \"1\"}'");
    refused(cleanup(&world), 16, "another server");
    store("value || '{\"timeline\": 77}'");
    refused(cleanup(&world), 16, "timeline 77");
    store("value || '{\"catch_up\": {\"rows\": \"all\", \"until\": null}}'");
    refused(cleanup(&world), 16, "still being read");
    store("value");
    let no_age = world
        .command("cleanup")
        .option("--state-store", "postgres")
        .option("--brokers", "127.0.0.1:9");
    refused(no_age, 2, "no retention");
    sql.run("alter table outbox rename created_at to at");
    refused(cleanup(&world), 2, "time of its row");
    refused(cleanup(&world).option("--table", "gone"), 15, "no table");
}

#[test]
fn pending_decides_deletion_without_a_stored_position() {
    let schema = include_str!("../../../examples/wallet-outbox/schema.sql");
    let world = database(schema);
    let sql = world.sql();
    sql.run(
        "alter table outbox alter sent drop not null;
         insert into outbox (event_type, payload, created_at, sent)
         select 'A', '', now() at time zone 'UTC' - interval '2 days', (array[true, false, \
         null])[n % 3 + 1]
         from generate_series(0, 29) n",
    );
    let toml = format!(
        "[slot]\nname = \"{}\"\n[outbox]\npending = \"outbox.sent = false\"\nmark = \"sent = \
         true\"\nretention = \"1d\"\n\
         [route]\ntopic = \"a\"\nkey = \"{{event_type}}\"\n",
        world.name
    );
    let command = RelayCommand::new("cleanup")
        .option("--database-url", &world.database_url)
        .config_file(&toml);
    let swept = answer(&command.clone().flag("--json").flag("--yes"));
    assert_eq!(
        (&swept["rows_deleted"], &swept["rows_unpublished"]),
        (&10.into(), &20.into()),
        "{swept}"
    );
    let table = command.option("--older-than", "3d").succeed();
    assert!(
        table.starts_with(
            "table          older than  before (UTC)         deleted  partitions dropped"
        ),
        "{table}"
    );
    assert_eq!(sql.number("select count(*) from outbox"), 20);
}

#[test]
fn locked_rows_are_kept_and_writers_are_not_blocked() {
    let world = database(&format!(
        "create table outbox ({COLUMNS}, xid xid8 default pg_current_xact_id())"
    ));
    let sql = world.sql();
    let holder = world.sql();
    sql.run("create index on outbox (created_at); alter table outbox add primary key (id)");
    old(&sql, 20_000);
    publish_all(&world, "[]");
    holder.run(
        "begin; update outbox set type = 'held' where id in (1, 7, 5000); lock table outbox in row \
         exclusive mode",
    );
    let stop = AtomicBool::new(false);
    let writes = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _stopped = crate::support::wait::Stopped(&stop);
        scope.spawn(|| {
            let sql = world.sql();
            while !stop.load(Ordering::Relaxed) {
                sql.run(
                    "insert into outbox (aggregatetype) values ('new'); update outbox set type = \
                     'x' where id = 20000",
                );
                writes.fetch_add(1, Ordering::Relaxed);
            }
        });
        eventually(
            "it writes",
            LIMIT,
            || writes.load(Ordering::Relaxed),
            |writes| *writes > 0,
        );
        // It ends beside a session that has what every writer takes of the table: it asks for
        // nothing that would block one.
        let swept = answer(&cleanup(&world).option("--batch-rows", "500"));
        stop.store(true, Ordering::Relaxed);
        // The one that is updated could be a copy, until the relay stores that it is published.
        let of = |key: &str| swept[key].as_u64().unwrap();
        let kept = of("rows_left") + of("rows_unpublished");
        assert!(
            of("rows_deleted") + kept == 20_000 && (3..=4).contains(&kept),
            "{swept}"
        );
    });
    holder.run("commit");
    publish_all(&world, "[]");
    assert_eq!(answer(&cleanup(&world))["rows_left"], 0);
    assert_eq!(
        sql.number("select count(*) from outbox where aggregatetype = 'a'"),
        0
    );
    assert_eq!(
        sql.number("select count(*) from outbox"),
        i64::try_from(writes.into_inner()).unwrap()
    );
}

/// A partition for each of the last days and the next.
fn partitioned() -> World {
    let world = database(&format!(
        "create table outbox ({COLUMNS}, xid xid8 default pg_current_xact_id()) partition by range \
         (created_at);
         create index on outbox (created_at);
         do $$ begin for day in -12..2 loop
            execute format('create table %I partition of outbox for values from (%L) to (%L)',
                'p' || day + 12, current_date + day, current_date + day + 1);
         end loop; end $$"
    ));
    world.sql().run(
        "insert into outbox (aggregatetype, created_at)
         select 'a', current_date + interval '30 minutes' + n * interval '1 day' from \
         generate_series(-12, 2) n,
         generate_series(1, 10)",
    );
    world
}

#[test]
fn partitions_of_published_rows_are_dropped() {
    let world = partitioned();
    let sql = world.sql();
    let late = world.sql();
    late.run(
        "begin; insert into outbox (aggregatetype, created_at) values ('late', current_date - 10)",
    );
    publish_all(&world, "[]");
    late.run("commit");
    let counted = answer(&cleanup(&world).flag("--dry-run"));
    assert_eq!(
        (
            counted["partitions"].as_array().unwrap().len(),
            &counted["rows_dropped"]
        ),
        (4, &40.into()),
        "{counted}"
    );
    let swept = answer(&cleanup(&world));
    let names = ["p0", "p1", "p3", "p4"].map(|name| Value::from(format!("\"public\".\"{name}\"")));
    assert_eq!(swept["partitions"], Value::from(names.to_vec()), "{swept}");
    assert_eq!(
        (&swept["rows_dropped"], &swept["rows_unpublished"]),
        (&40.into(), &1.into()),
        "{swept}"
    );
    assert_eq!(
        sql.number("select count(*) from pg_inherits where inhparent = 'outbox'::regclass"),
        11
    );
    assert_eq!(
        sql.number("select count(*) from pg_class where relname in ('p0', 'p1', 'p3', 'p4')"),
        0
    );
    assert_eq!(
        sql.text("select string_agg(aggregatetype, ' ') from p2"),
        "late"
    );

    // Beside a default partition nothing is detached without a lock on everything: rows go one by
    // one.
    sql.run("create table rest partition of outbox default");
    publish_all(&world, "[]");
    let swept = answer(&cleanup(&world));
    assert_eq!(
        (
            &swept["rows_deleted"],
            swept["partitions"].as_array().unwrap().len()
        ),
        (&1.into(), 0),
        "{swept}"
    );
    assert_eq!(sql.number("select count(*) from p2"), 0);
}

/// Postgres would compile a plan with so many partitions, which takes longer than a statement may.
#[test]
fn rows_of_many_partitions_are_deleted_one_by_one_without_compiling() {
    let world = database(&format!(
        "create table outbox ({COLUMNS}, xid xid8 default pg_current_xact_id()) partition by range \
         (created_at);
         create index on outbox (created_at);
         create table rest partition of outbox default;
         do $$ begin for day in -198..0 loop
            execute format('create table %I partition of outbox for values from (%L) to (%L)',
                'p' || day + 198, current_date + day, current_date + day + 1);
         end loop; end $$;
         create table compiled (jit text);
         create function notes() returns trigger language plpgsql as
         $$ begin insert into public.compiled values (current_setting('jit')); return old; end $$;
         create trigger notes before delete on outbox for each row execute function notes();
         insert into outbox (aggregatetype, created_at)
         select 'a', now() - interval '1 hour' - n * interval '1 day' from generate_series(0, 198) \
         n, generate_series(1, 10)"
    ));
    let sql = world.sql();
    assert_eq!(
        sql.text("select current_setting('jit')"),
        "on",
        "as it is where nobody sets it"
    );
    publish_all(&world, "[]");
    let swept = answer(&cleanup(&world));
    assert_eq!(
        (&swept["rows_deleted"], &swept["partitions"]),
        (&1_920.into(), &Value::Array(vec![])),
        "{swept}"
    );
    assert_eq!(sql.number("select count(*) from outbox"), 70);
    assert_eq!(
        sql.text("select string_agg(distinct jit, ' ') || ' ' || count(*) from compiled"),
        "off 1920"
    );
}

#[test]
fn cleanup_shows_what_goes_and_asks_before_it_deletes() {
    let world = partitioned();
    let sql = world.sql();
    // A row of a partition that stays.
    sql.run(
        "insert into outbox (aggregatetype, created_at) values ('a', now() - interval '7 days \
             1 second')",
    );
    publish_all(&world, "[]");
    let stored = world
        .command("cleanup")
        .option("--state-store", "postgres")
        .option("--brokers", "127.0.0.1:9");
    let cleanup = stored.option("--older-than", "7d");
    let rows = || sql.number("select count(*) from outbox");
    let before = rows();

    let unasked = cleanup.output();
    let shown = String::from_utf8(unasked.stdout).unwrap();
    let told = told(&unasked.stderr);
    assert_eq!((unasked.status.code(), rows()), (Some(2), before), "{told}");
    assert!(
        shown.contains("before (UTC)")
            && shown.contains("\npartitions to drop\n  \"public\".\"p0\"\n"),
        "{shown}"
    );
    assert!(last_words(&told).1.contains("--yes"), "{told}");
    let dry_run = cleanup.clone().flag("--dry-run").succeed();
    assert_eq!(
        (dry_run.contains("\"public\".\"p0\""), rows()),
        (true, before),
        "{dry_run}"
    );

    let refused = cleanup.at_terminal("n");
    let terminal = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(
        (refused.status.code(), rows()),
        (Some(2), before),
        "{terminal}"
    );
    assert!(
        terminal.contains("Delete ")
            && terminal.contains(" partitions with ")
            && terminal.contains("? [y/N] "),
        "{terminal}"
    );
    let agreed = cleanup.at_terminal("y");
    let terminal = String::from_utf8(agreed.stderr).unwrap();
    assert_eq!(agreed.status.code(), Some(0), "{terminal}");
    let left = rows();
    assert!(
        left < before && sql.number("select count(*) from pg_class where relname = 'p0'") == 0,
        "{terminal}"
    );

    // Nothing is left to ask about.
    assert!(cleanup.succeed().contains("partitions dropped"));
    assert_eq!(rows(), left);
}

/// docs/reference/configuration.md.
#[test]
fn a_bar_at_the_terminal_shows_how_many_rows_are_deleted() {
    let world = database(&format!(
        "create table outbox ({COLUMNS}, xid xid8 default pg_current_xact_id())"
    ));
    let sql = world.sql();
    sql.run("create index on outbox (created_at)");
    let stored = world
        .command("cleanup")
        .option("--state-store", "postgres")
        .option("--brokers", "127.0.0.1:9");
    // Fifty pauses: longer than a command that shows no bar.
    let cleanup = stored
        .option("--older-than", "7d")
        .option("--batch-rows", "400")
        .option("--pause", "50ms");
    let shown = |command: RelayCommand| {
        old(&sql, 20_000);
        publish_all(&world, "[]");
        let output = command.flag("--yes").at_terminal("");
        let terminal = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{terminal}");
        assert_eq!(sql.number("select count(*) from outbox"), 0, "{terminal}");
        terminal
    };
    let terminal = shown(cleanup.clone().variable("NO_COLOR", "1"));
    assert!(
        terminal.contains("/20,000 rows of public.outbox deleted, "),
        "{terminal:?}"
    );
    let (_, last) = terminal
        .rsplit_once("\x1b[2K")
        .expect("a line that was cleared");
    assert_eq!(last.trim(), "", "{terminal:?}");
    let terminal = shown(cleanup.flag("--json"));
    assert_eq!(terminal.trim(), "", "{terminal:?}");
}

#[test]
fn a_row_inserted_during_a_drop_keeps_its_partition() {
    let world = partitioned();
    let sql = world.sql();
    let toml = "[route]\ntopic = \"a\"\nkey = \"{id}\"\n[outbox]\ntable = \"outbox\"\n";
    let outbox = settings(&world.database_url, toml)
        .outboxes()
        .unwrap()
        .remove(0);
    let runtime = runtime();
    let published = Published::at(Pair {
        snapshot: sql.text("select pg_current_snapshot()").parse().unwrap(),
        lsn: Lsn::new(1),
    });
    let (client, connection) = runtime
        .block_on(tokio_postgres::connect(
            &world.database_url,
            tokio_postgres::NoTls,
        ))
        .unwrap();
    runtime.spawn(connection);
    let old = runtime.block_on(async {
        client
            .batch_execute("set timezone = 'UTC'; set search_path = ''")
            .await
            .unwrap();
        let retention = Duration::from_secs(7 * 24 * 3600);
        let sweeper = Sweeper::look(&client, &outbox, retention)
            .await
            .unwrap()
            .unwrap();
        let old = old_partitions(&client, &sweeper, Some(&published), false)
            .await
            .unwrap();
        (sweeper, old)
    });
    let (sweeper, partitions) = old;
    assert_eq!(partitions.len(), 5);
    sql.run("insert into outbox (aggregatetype, created_at) values ('came', current_date - 12)");
    let dropped = |number: usize| {
        runtime.block_on(partitions[number].drop(&client, &sweeper, Some(&published)))
    };
    assert_eq!(
        dropped(0),
        Ok(Err("1 rows came that are not published".to_owned()))
    );
    assert_eq!(
        sql.number("select count(*) from outbox where aggregatetype = 'came'"),
        1
    );

    // What somebody else's view stands on is not dropped, and comes back, too.
    sql.run("create view seen as select id from p1");
    assert!(dropped(1).unwrap().is_err());
    assert_eq!(
        sql.number("select count(*) from pg_inherits where inhparent = 'outbox'::regclass"),
        15
    );

    // Detached half-way by somebody who gave up waiting: it is finished.
    let reader = world.sql();
    reader.run("begin; select count(*) from outbox");
    assert!(sql.try_run("set statement_timeout = '2s'").is_ok());
    assert!(
        sql.try_run("alter table outbox detach partition p2 concurrently")
            .is_err()
    );
    reader.run("commit");
    let again = runtime
        .block_on(old_partitions(&client, &sweeper, Some(&published), false))
        .unwrap();
    let half = again
        .iter()
        .find(|partition| partition.name.contains("p2"))
        .unwrap();
    assert_eq!(
        runtime.block_on(half.drop(&client, &sweeper, Some(&published))),
        Ok(Ok(()))
    );
    assert_eq!(
        sql.number("select count(*) from pg_class where relname = 'p2'"),
        0
    );
}
