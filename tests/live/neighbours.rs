//! docs/reference/privileges.md: what sessions of walrelay do to other sessions of the
//! application's database.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::doctor::Checks;
use crate::support::relay::{EXIT, Relay, RelayCommand, last_words, told};
use crate::support::servers::{Kafka, Postgres};
use crate::support::sql::Sql;
use crate::support::wait::{LIMIT, eventually, until};
use crate::support::world::{ARRIVAL, World};

/// Backends of walrelay that wait for a lock.
const WAITING: &str = "select count(*) from pg_stat_activity where datname = current_database()
                       and application_name like 'walrelay%' and wait_event_type = 'Lock'";

const COMMITTING: &str = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'
                          and query like 'alter table%'";

/// A table that is marked, with the position in Postgres: what the relay writes itself.
const MARKED: &str = r#"
[outbox]
pending = "published_at is null"
mark = "published_at = now()"
retention = "1h"

[state]
store = "postgres"
"#;

#[track_caller]
fn marked(postgres: &Postgres, brokers: &str) -> World {
    let world = World::keeping_on(postgres, brokers);
    world.create_topics();
    world.sql().run(
        "alter table outbox add published_at timestamptz, add created_at timestamptz \
                     default now(); create table other (n int)",
    );
    world.setup();
    world
}

#[test]
fn a_locked_table_leaves_no_backend_of_a_session_that_has_ended() {
    let world = marked(Postgres::shared(), Kafka::shared().brokers());
    let relay = world.run().config_file(MARKED);
    let mut running = vec![relay.start()];
    running[0].wait_ready();
    let polls = world
        .run()
        .config_file(MARKED)
        .option("--mode", "poll")
        .option("--slot", "polls");
    let reads = |command: &str| world.command(command).config_file(MARKED);
    let commands = [
        polls,
        relay,
        reads("exporter"),
        reads("status"),
        reads("setup").flag("--dry-run"),
        reads("cleanup").flag("--dry-run"),
        reads("doctor").option("--brokers", &world.brokers),
        reads("verify").option("--brokers", &world.brokers),
        reads("replay")
            .option("--brokers", &world.brokers)
            .option("--id", "1"),
    ];
    let locker = world.sql();
    let watcher = world.sql();
    world.emit(&locker, "a");
    world.wait_confirmed();
    locker.run("set idle_in_transaction_session_timeout = '300s'");
    locker.run("begin");
    world.emit(&locker, "b");
    locker.run("lock table outbox in access exclusive mode");
    running.extend(commands.iter().map(RelayCommand::start));
    eventually(
        "most of them wait",
        LIMIT,
        || watcher.number(WAITING),
        |waiting| *waiting >= 4,
    );
    // They end as a process does that is killed: nobody asks the server to cancel anything.
    running.iter_mut().for_each(Relay::kill_hard);
    eventually(
        "nobody waits any more",
        LIMIT,
        || watcher.number(WAITING),
        |waiting| *waiting == 0,
    );
    locker.run("rollback");
}

/// Commits of other tables, one after the other: forty of them would take minutes where each waits
/// for a status.
#[track_caller]
fn commits_end(world: &World, relay: &Relay) {
    let url = world.database_url.clone();
    let commits = std::thread::spawn(move || {
        let sql = Sql::connect(&url);
        (0..40).for_each(|_| sql.run("insert into other values (1)"));
    });
    let ended = until(LIMIT, || commits.is_finished().then_some(()));
    assert!(ended.is_some(), "commits wait:\n{}", relay.log());
    commits.join().unwrap();
}

/// Runs each line of a remedy that is SQL.
fn pasted(world: &World, remedy: &str) {
    remedy.lines().for_each(|line| world.sql().run(line));
}

/// The relay says that commits wait for it, on every side.
#[track_caller]
fn assert_named(world: &World, relay: &Relay) -> String {
    let readiness = || relay.readiness().map(|(_, body)| body).unwrap_or_default();
    eventually("it is not ready", LIMIT, readiness, |body| {
        body.contains("synchronous_standby")
            && body.contains("alter system set synchronous_standby_names")
    });
    let line = |log: &String| {
        log.lines()
            .any(|line| line.contains(r#""event":"synchronous_standby""#))
    };
    eventually("the log has it", LIMIT, || relay.log(), line);
    assert!(
        relay
            .log()
            .lines()
            .any(|line| line.contains(r#""level":"ERROR""#)),
        "{}",
        relay.log()
    );
    assert_eq!(relay.metric("walrelay_synchronous_standby"), Some(1.0));
    // Each has the remedy as one line that can be pasted.
    let status = relay.asked_by(world.command("status")).output();
    let status = String::from_utf8_lossy(&status.stderr).into_owned();
    for text in [status, relay.log()] {
        assert!(
            text.contains("'; select pg_reload_conf(); -- no standby"),
            "{text}"
        );
    }
    // A relay starts nevertheless.
    let check = RelayCommand::new("config")
        .flag("check")
        .option("--slot", &world.name)
        .option("--database-url", &world.database_url)
        .option("--brokers", &world.brokers);
    let checks = Checks::of(&check);
    checks.has("synchronous", "warning", "counts the relay", "alter system");
    assert_eq!(checks.code, 0);
    let doctor = world.command("doctor").option("--brokers", &world.brokers);
    Checks::of(&doctor).has(
        "synchronous",
        "wrong",
        "counts the relay",
        "alter system set synchronous_standby_names",
    )
}

/// Marks that are refused are tried ever less often, each time in one session. Events to park do
/// not wait for them.
#[track_caller]
fn marks_that_are_refused_hold_up_no_park(postgres: &Postgres, world: &World, relay: &Relay) {
    let sql = world.sql();
    sql.run(
        "create function refuse() returns trigger language plpgsql as $$ begin
           raise exception using errcode = '53100'; end $$;
         create trigger refuse before update on outbox for each row when (new.published_at is not \
         null)
           execute function refuse()",
    );
    world.emit(&sql, "a");
    let waits = || {
        let log = relay.log();
        let lines = log
            .lines()
            .filter(|line| line.contains("write-backs are refused"));
        let wait = |line: &str| {
            serde_json::from_str::<Value>(line).ok()?["wait_ms"]
                .to_string()
                .trim_matches('"')
                .parse()
                .ok()
        };
        lines.filter_map(wait).max().unwrap_or(0)
    };
    eventually("they are refused again", LIMIT, waits, |wait_ms| {
        *wait_ms > 0
    });
    // The commit waits for another standby, too, and nobody sees its row.
    postgres.alter("synchronous_standby_names", "2 (*)");
    let writer = std::thread::spawn({
        let url = world.database_url.clone();
        let kind = world.kind(0).to_owned();
        move || Sql::connect(&url).run(&format!("select emit('{kind}', 'a', 20)"))
    });
    let look = "select coalesce(string_agg(extract(epoch from backend_start) || ' ' || \
                extract(epoch from query_start), ' '), '')
         from pg_stat_activity
         where application_name like 'walrelay % upkeep' and query like '%pg_current_snapshot%'";
    let mut sessions = BTreeSet::new();
    let mut seconds = BTreeSet::new();
    let looked = || {
        if let Some((session, second)) = sql.text(look).split_once(' ') {
            sessions.insert(session.to_owned());
            seconds.insert(second.split('.').next().unwrap_or_default().to_owned());
        }
        seconds.len()
    };
    eventually(
        "it looks for the row for more than a second",
        LIMIT,
        looked,
        |seconds| *seconds >= 3,
    );
    assert!(
        sessions.len() <= 2,
        "each look had a session of its own: {sessions:?}"
    );
    postgres.alter("synchronous_standby_names", "*");
    writer.join().unwrap();

    eventually(
        "the next try is a while away",
        3 * LIMIT,
        waits,
        |wait_ms| *wait_ms >= 9_000,
    );
    let began = Instant::now();
    sql.run(
        "insert into outbox (id, aggregateid, payload) values (gen_random_uuid(), 'lost', '1')",
    );
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}\n{}",
        began.elapsed(),
        relay.log()
    );
    assert_eq!(world.number_parked(), 1);
    for told in ["write_back_resumed", "pending_rows_found"] {
        assert!(!relay.log().contains(told), "{}", relay.log());
    }
    sql.run(
        "create or replace function refuse() returns trigger language plpgsql as $$ begin
           return new; end $$",
    );
    let unmarked = "select count(*) from outbox where published_at is null";
    eventually(
        "rows are marked",
        LIMIT,
        || sql.number(unmarked),
        |rows| *rows == 1,
    );
    sql.run("delete from outbox where published_at is null; delete from walrelay.parked");
}

/// The commit of the change waits for a standby, with the table locked, and no other standby comes.
#[test]
fn a_relay_starts_on_a_table_whose_change_waits_for_it() {
    let postgres = Postgres::private(17, &[]);
    let world = marked(&postgres, Kafka::shared().brokers());
    let marks = world.run().config_file(MARKED);
    let mut relay = marks.start();
    relay.wait_ready();
    world.emit(&world.sql(), "a");
    world.wait_confirmed();
    relay.kill_hard();
    postgres.alter("synchronous_standby_names", "*");
    let url = world.database_url.clone();
    let change = std::thread::spawn(move || Sql::connect(&url).run("alter table outbox add n int"));
    let waiting = || postgres.sql().number(COMMITTING);
    eventually("the change waits", LIMIT, waiting, |count| *count == 1);
    let mut relay = marks.start();
    let ended = until(LIMIT, || change.is_finished().then_some(()));
    assert!(ended.is_some(), "the change waits:\n{}", relay.log());
    change.join().unwrap();
    // It is not ready while commits wait for it.
    postgres.alter("synchronous_standby_names", "");
    relay.wait_ready();
    world.emit(&world.sql(), "a");
    world.wait_confirmed();
    world.assert_all_delivered();
    let unmarked = || {
        let sql = "select count(*) from outbox where published_at is null";
        world.sql().number(sql)
    };
    eventually("rows are marked", ARRIVAL, unmarked, |rows| *rows == 0);
}

#[test]
fn a_relay_that_is_a_synchronous_standby_lets_commits_end_and_says_so() {
    let postgres = Postgres::private(17, &[("logical_decoding_work_mem", "64kB")]);
    let (proxy, brokers) = Kafka::shared().behind_proxy();
    let world = marked(&postgres, &brokers);
    let sql = world.sql();
    sql.run("create table seen (settings text)");
    sql.run(
        "create function see() returns trigger language plpgsql as $$ begin
           insert into public.seen select pg_catalog.string_agg(pg_catalog.current_setting(name), \
           ' ' order by name)
           from pg_catalog.pg_settings where name in ('jit', 'row_security', 'synchronous_commit');
           return new; end $$;
         create trigger see after update on outbox for each row execute function see()",
    );
    sql.run("alter table outbox add waits boolean");
    let parks = world.run().config_file(MARKED).option("--on-error", "park");
    let parks = parks
        .option("--set", "outbox.mark_failed=published_at = now()")
        .option("--log", "walrelay=debug");
    let mut relay = parks
        .option("--set", "outbox.mark_waiting=waits = true")
        .start();
    relay.wait_ready();
    world.emit(&sql, "a");
    world.wait_confirmed();
    // As Patroni does when the last standby goes, while everything runs.
    postgres.alter("synchronous_standby_names", "*");
    let remedy = assert_named(&world, &relay);
    commits_end(&world, &relay);
    sql.run("insert into other select generate_series(1, 10000)");
    (0..3).for_each(|_| world.emit(&sql, "a"));
    let unmarked = || sql.number("select count(*) from outbox where published_at is null");
    eventually("rows are marked", ARRIVAL, unmarked, |rows| *rows == 0);
    assert_eq!(
        world.assert_all_delivered().duplicates,
        0,
        "{}",
        relay.log()
    );
    assert_eq!(
        sql.text("select distinct settings from seen"),
        "off off local"
    );
    // Its commit waits until the second one is parked, and the mark of the first one waits for the
    // commit.
    let writer = std::thread::spawn({
        let url = world.database_url.clone();
        let kind = world.kind(0).to_owned();
        move || {
            let lost = "insert into outbox (id, aggregateid, payload) values (gen_random_uuid(), \
                        'lost', '1')";
            Sql::connect(&url).run(&format!(
                "begin; select emit('{kind}', 'a', 20); {lost}; commit"
            ));
        }
    });
    let marked = || sql.number("select count(*) from outbox where published_at is not null");
    let rows = 1 + 3 + 1;
    eventually("it is marked", ARRIVAL, marked, |marked| *marked == rows);
    writer.join().unwrap();
    assert_eq!((unmarked(), world.number_parked()), (1, 1));
    sql.run("delete from outbox where published_at is null; delete from walrelay.parked");
    marks_that_are_refused_hold_up_no_park(&postgres, &world, &relay);

    // Without Kafka it would hold up each commit.
    proxy.refuse();
    proxy.cut();
    let writer = std::thread::spawn({
        let url = world.database_url.clone();
        let kind = world.kind(0).to_owned();
        move || Sql::connect(&url).run(&format!("select emit('{kind}', 'a', 20)"))
    });
    eventually(
        "it leaves the stream",
        LIMIT,
        || world.walsender(),
        |pid| *pid == 0,
    );
    eventually(
        "the log has it",
        LIMIT,
        || relay.log(),
        |log| log.contains(r#""event":"stream_left""#),
    );
    proxy.resume();
    world.wait_streaming();
    writer.join().unwrap();
    world.assert_all_delivered();
    pasted(&world, &remedy);
    eventually("it is ready", LIMIT, || relay.is_ready(), |ready| *ready);
    let synchronous = || relay.metric("walrelay_synchronous_standby");
    eventually("it says so", LIMIT, synchronous, |value| {
        *value == Some(0.0)
    });
    let spilled = || relay.metric("walrelay_slot_spilled_bytes");
    eventually(
        "what decoding wrote to disk is shown",
        LIMIT,
        spilled,
        |bytes| *bytes > Some(0.0),
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());

    // A server that waits for a standby sends nothing, so `pending` would read for ever.
    sql.run("select pg_create_physical_replication_slot('absent')");
    postgres.alter("synchronized_standby_slots", "absent");
    world.emit(&sql, "a");
    let pending = world
        .command("pending")
        .config_file(MARKED)
        .option("--brokers", &brokers);
    let told = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let late = pending.clone().option("--timeout", "1s").output();
    assert!(
        late.status.code() == Some(10) && told(&late).contains("--timeout"),
        "{}",
        told(&late)
    );
    let mut pending = pending.option("--timeout", "300s").start();
    let reader = world.wait_streaming();
    let mut relay = world.run().config_file(MARKED).start();
    assert_eq!(pending.wait_exit(EXIT), Some(13), "{}", pending.log());
    relay.wait_ready();
    assert_ne!(world.wait_streaming(), reader);
}

/// A role of this database's name with these attributes, and the URL for it.
fn role(world: &World, name: &str, attributes: &str) -> (String, String) {
    let role = format!("{}_{name}", world.name);
    world
        .sql()
        .run(&format!("create role {role} login {attributes}"));
    let url = Postgres::shared().url_as(&role, &world.name);
    (role, url)
}

#[test]
fn the_oldest_transaction_is_named_also_where_its_age_may_not_be_seen() {
    let world = World::keeping();
    world.setup();
    let (role, url) = role(&world, "reader", "");
    let open = world.sql();
    open.run("begin; select pg_current_xact_id()");
    let status = world.command("status").option("--database-url", &url);
    eventually(
        "the status names it",
        LIMIT,
        || String::from_utf8_lossy(&status.output().stdout).into_owned(),
        |told| {
            told.lines().any(|line| {
                line.starts_with("oldest xid") && line.ends_with("age not shown (needs pg_monitor)")
            })
        },
    );
    let doctor = world.command("doctor").option("--brokers", &world.brokers);
    let pid = open.number("select pg_backend_pid()");
    let held = format!("; oldest open transaction: backend pid {pid}");
    let as_role = doctor.option("--database-url", &url);
    let asked = || String::from_utf8_lossy(&as_role.output().stdout).into_owned();
    assert!(asked().contains(&held), "{}", asked());
    open.run("rollback");
    world.sql().run(&format!("drop role {role}"));
}

#[test]
fn a_slow_start_says_what_it_waits_for() {
    let world = World::keeping();
    world.setup();
    let locker = world.sql();
    locker.run("alter table outbox add column published boolean not null default false");
    locker.run("begin; lock table outbox in access exclusive mode");
    let pid = locker.number("select pg_backend_pid()");
    let pending = world
        .run()
        .option("--set", "outbox.pending=not published")
        .option("--set", "outbox.mark=published = true");
    let mut relay = pending.start();
    let lock = format!("a lock that pid {pid} has");
    eventually(
        "it names the lock",
        ARRIVAL,
        || relay.log(),
        |log| log.contains(&lock),
    );
    locker.run("rollback");
    relay.wait_ready();
    let log = relay.log();
    assert_eq!(log.matches("start_waits").count(), 1, "{log}");
    assert!(!log.contains("streaming again"), "{log}");
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());

    // Somebody listens there, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let mut relay = world.run().option("--brokers", &address).start();
    eventually(
        "it names the bus",
        ARRIVAL,
        || relay.log(),
        |log| log.contains(r#""waits_for":"Postgres or Kafka""#),
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// The advisory lock of a slot, as any role can compute it.
fn lease(slot: &str) -> String {
    let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    format!(
        "{}, {}",
        0x7772_6c79,
        slot.bytes().fold(0x811c_9dc5, hash).cast_signed()
    )
}

#[test]
fn a_stranger_with_the_lease_keeps_no_relay_from_the_slot_and_is_named() {
    let world = World::keeping();
    world.setup();
    let (role, url) = role(&world, "stranger", "");
    let stranger = Sql::connect(&url);
    stranger.run(&format!("select pg_advisory_lock({})", lease(&world.name)));
    let warned = |log: &String| {
        log.lines()
            .any(|line| line.contains("WARN") && line.contains(&role))
    };
    let mut relay = world.relay();
    world.emit(&world.sql(), "a");
    world.assert_all_delivered();
    assert!(warned(&relay.log()), "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    // A relay that reads the table needs it, and says who has it and what to do.
    let mut poller = world.run().option("--mode", "poll").start();
    eventually(
        "the poller names the stranger",
        LIMIT,
        || poller.log(),
        warned,
    );
    let log = poller.log();
    let fix = log
        .split("select pg_terminate_backend(")
        .nth(1)
        .and_then(|rest| rest.split(')').next());
    world.sql().run(&format!(
        "select pg_terminate_backend({})",
        fix.expect("a remedy")
    ));
    poller.wait_ready();
    world.sql().run(&format!("drop role {role}"));
}

#[test]
fn a_policy_that_hides_rows_is_an_error_whose_remedy_mends_it() {
    let world = marked(Postgres::shared(), Kafka::shared().brokers());
    let (role, url) = role(&world, "relay", "replication");
    let sql = world.sql();
    sql.run(&format!(
        "grant select, update, delete on outbox to {role}; alter table outbox enable \
                      row level security"
    ));
    sql.run(&format!(
        "create policy mine on outbox using (aggregateid = 'mine'); grant create on database {} to \
         {role}",
        world.name
    ));
    let relay = world
        .run()
        .config_file(MARKED)
        .option("--database-url", &url);
    let cleanup = world
        .command("cleanup")
        .config_file(MARKED)
        .option("--database-url", &url)
        .flag("--yes");
    for command in [&relay, &cleanup] {
        let output = command.output();
        let told = told(&output.stderr);
        assert_eq!(output.status.code(), Some(11), "{told}");
        let (error, fix) = last_words(&told);
        assert!(
            error.contains("row-level security") && fix.contains(&format!("{role}\" bypassrls;")),
            "{told}"
        );
    }
    let doctor = world
        .command("doctor")
        .config_file(MARKED)
        .option("--database-url", &url);
    let doctor = doctor.option("--brokers", &world.brokers);
    sql.run(&Checks::of(&doctor).has("upkeep", "wrong", "row-level security", "bypassrls"));
    let mut relay = relay.start();
    relay.wait_ready();
    world.emit(&sql, "other");
    let unmarked = || sql.number("select count(*) from outbox where published_at is null");
    eventually("the row is marked", ARRIVAL, unmarked, |rows| *rows == 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
