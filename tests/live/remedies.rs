//! P9: what an error says to do, done: the commands in it are run as they stand, and then there is
//! no error.

use super::doctor::Checks;
use super::upkeep::database;
use crate::support::relay::{Relay, RelayCommand, last_words};
use crate::support::servers::{Kafka, Postgres};
use crate::support::sql::Sql;
use crate::support::topic;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

/// A world that is set up, and a relay that has confirmed an event of it.
fn relaying() -> (World, Sql, Relay) {
    let world = World::keeping();
    world.create_topics();
    world.setup();
    let relay = world.relay();
    let sql = world.sql();
    world.emit(&sql, "a");
    world.wait_confirmed();
    (world, sql, relay)
}

/// Ends `relay` with `code`, and gives what it said.
#[track_caller]
fn refused(command: &RelayCommand, code: i32) -> (String, String) {
    let output = command.output();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{told}");
    let (error, remedy) = last_words(&told);
    (error.to_owned(), remedy.to_owned())
}

/// The commands in `remedy`, one after the other; nobody is there to be asked.
#[track_caller]
fn pasted(remedy: &str) -> Vec<String> {
    let is_command = |rest: &&str| {
        rest.split_once(' ')
            .is_some_and(|(_, flags)| flags.starts_with("--"))
    };
    let commands = remedy.split("walrelay ").skip(1).filter(is_command);
    let commands: Vec<&str> = commands
        .filter_map(|rest| rest.split(['`', ',', ';']).next())
        .collect();
    assert!(!commands.is_empty(), "nothing to paste in {remedy}");
    let run = |text: &&str| {
        let mut words = text.split_whitespace().map(|word| word.trim_matches('\''));
        let name = words.next().unwrap();
        let mut command = words.fold(RelayCommand::new(name), |command, word| command.flag(word));
        if name == "teardown" {
            command = command.flag("--yes");
        }
        command.succeed()
    };
    commands.iter().map(run).collect()
}

/// The SQL in `remedy`, as somebody marks it to paste it: from its first verb to the end of the
/// sentence, with a remark.
#[track_caller]
pub(super) fn statements(remedy: &str) -> &str {
    const VERBS: [&str; 6] = ["alter ", "begin;", "create ", "drop ", "grant ", "select "];
    let start = VERBS.iter().filter_map(|verb| remedy.find(verb)).min();
    let sql = &remedy[start.unwrap_or_else(|| panic!("no SQL in {remedy}"))..];
    let sql = sql.split(". ").next().unwrap_or(sql);
    sql.split("; `").next().unwrap_or(sql)
}

#[test]
fn a_table_that_streams_nothing_is_mended_by_the_sql_of_its_remedy() {
    let world = World::keeping();
    let sql = world.sql();
    sql.run("alter table outbox set unlogged");
    sql.run(statements(&refused(&world.run(), 15).1));
    world.setup();
    world.relay();

    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    let sql = world.sql();
    let name = &world.name;
    sql.run(
        "drop table outbox;
         create table outbox (id bigint, aggregatetype text, aggregateid text, type text, payload \
         text)
             partition by list (type);
         create table outbox_t partition of outbox for values in ('T')",
    );
    sql.run(&format!(
        "create publication walrelay_{name} for table outbox with (publish = 'insert')"
    ));
    sql.run(&format!(
        "select pg_create_logical_replication_slot('{name}', 'pgoutput')"
    ));
    // The position of one table is none for another.
    let of = |table: &str| {
        world
            .run()
            .option("--table", table)
            .option("--state-store", "slot")
    };
    let started = |table: &str| {
        let mut relay = of(table).start();
        relay.wait_ready();
        sql.run(&format!(
            "insert into outbox values (1, '{}', 'a', 'T', '{{}}')",
            world.kind(0)
        ));
        world.wait_confirmed();
        assert_eq!(relay.terminate(ARRIVAL), Some(0), "{}", relay.log());
        world.delivered()
    };
    let (error, remedy) = refused(&of("public.outbox"), 15);
    assert!(error.contains("under the names of partitions"), "{error}");
    sql.run(statements(&remedy));
    sql.run("alter table outbox_t set unlogged");
    let (error, remedy) = refused(&of("public.outbox"), 15);
    assert!(
        error.contains("partition public.outbox_t of public.outbox is unlogged"),
        "{error}"
    );
    sql.run(statements(&remedy));
    assert_eq!(started("public.outbox"), 1);
    let (error, remedy) = refused(&of("public.outbox_t"), 15);
    assert!(error.contains("public.outbox_t is a partition"), "{error}");
    sql.run(statements(&remedy));
    assert_eq!(started("public.outbox_t"), 2);
}

#[test]
fn all_commands_say_the_same_of_a_slot_that_was_dropped_and_it_loses_nothing() {
    let (world, sql, mut relay) = relaying();
    assert_eq!(relay.terminate(ARRIVAL), Some(0));
    world.drop_slot();
    world.emit(&sql, "a");
    let with_brokers = |name| world.command(name).option("--brokers", &world.brokers);
    let checks = Checks::of(&with_brokers("doctor"));
    let said = [
        refused(&world.command("status"), 14).1,
        refused(&with_brokers("pending"), 14).1,
        checks.has("slot", "warning", "there is no replication slot", ""),
    ];
    for remedy in said {
        let of = |command: &str, to: &str| {
            let (from, rest) = remedy.split_at(remedy.find(command).expect("the command"));
            let (flags, rest) = rest.split_once('`').expect("the end of the command");
            assert!(
                flags.contains(&world.name) && rest.starts_with(to),
                "{remedy}"
            );
            from.to_owned()
        };
        let again = " publishes what was not published, and makes the slot again, where \
                     slot.on_loss and what is stored let it; else it says why not; a first relay \
                     needs `walrelay setup ";
        let before = of("walrelay run ", again);
        assert!(before.ends_with("check the name; `"), "{remedy}");
        of("walrelay setup ", "");
    }
    checks.has(
        "position",
        "warning",
        "the relay makes the slot",
        "a relay that runs does that, else `walrelay run`",
    );
    let _relay = world.relay();
    assert_eq!(world.assert_all_delivered().duplicates, 0);
}

#[test]
fn the_grants_that_a_clean_up_prints_are_enough_for_it() {
    let world = World::bare(Postgres::shared(), "127.0.0.1:9");
    let sql = world.sql();
    let role = format!("{}_cleaner", world.name);
    sql.run(&format!(
        "create schema \"Shop\"; create role {role} login;
         create table \"Shop\".outbox (id bigint, aggregatetype text, aggregateid text, type text, \
                        payload text,
             created_at timestamptz default now(), sent boolean)"
    ));
    let file =
        "[outbox]\ntable = '\"Shop\".outbox'\npending = \"not sent\"\nmark = \"sent = true\"\n";
    let cleanup = world.command("cleanup").option(
        "--database-url",
        &Postgres::shared().url_as(&role, &world.name),
    );
    let cleanup = cleanup
        .config_file(file)
        .option("--older-than", "1d")
        .flag("--yes");
    for may_read in [false, true] {
        sql.run(&format!("drop owned by {role}"));
        if may_read {
            sql.run(&format!(
                "grant usage on schema \"Shop\" to {role}; grant select on \
                              \"Shop\".outbox to {role}"
            ));
        }
        sql.run(
            "insert into \"Shop\".outbox (id, created_at, sent) values (1, now() - interval '2 \
                 days', true)",
        );
        let (_, remedy) = refused(&cleanup, 11);
        sql.run(statements(&remedy));
        cleanup.succeed();
        assert_eq!(sql.number("select count(*) from \"Shop\".outbox"), 0);
    }
    sql.run(&format!("drop owned by {role}; drop role {role}"));
}

#[test]
fn the_command_that_the_log_prints_for_an_event_that_was_given_up_delivers_it() {
    let world = World::keeping();
    world.setup();
    let sql = world.sql();
    let topic = world.topic(0);
    topic::create(&world.brokers, &topic, 1, &[]);
    let file = format!(
        "[database]\nurl = '{}'\n[kafka]\nbrokers = '{}'\n[delivery]\ndead_letter_topic = \
         '{}.dead'\n",
        world.database_url, world.brokers, world.name
    );
    for (on_error, named) in [
        ("park", "parked retry"),
        ("dead-letter", "replay"),
        ("skip", "replay"),
    ] {
        topic::alter(&world.brokers, &topic, &[("max.message.bytes", "1000")]);
        let mut relay = world
            .run()
            .config_file(&file)
            .option("--on-error", on_error)
            .start();
        relay.wait_ready();
        // Hexadecimal noise, so that no compression brings it below the limit.
        let insert = format!(
            "insert into outbox (id, aggregatetype, aggregateid, type, payload) values \
             (gen_random_uuid(), '{}', 'bad',
             'Bad', (select jsonb_agg(md5(random()::text)) from generate_series(1, 200) n)) \
             returning id::text",
            world.kind(0)
        );
        let bad: String = sql.rows(&insert, &[])[0].get(0);
        let fix = || {
            let log = relay.log();
            let lines = log
                .lines()
                .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
            let mut fixes = lines.filter_map(|line| Some(line["fix"].as_str()?.to_owned()));
            fixes.find(|fix| fix.contains(&bad)).unwrap_or_default()
        };
        let fix = eventually("the log names the event", ARRIVAL, fix, |fix| {
            !fix.is_empty()
        });
        let (_, line) = fix
            .split_once("walrelay ")
            .unwrap_or_else(|| panic!("{fix}"));
        assert!(
            line.starts_with(named) && fix.contains("max.message.bytes"),
            "{fix}"
        );
        topic::alter(&world.brokers, &topic, &[("max.message.bytes", "1000000")]);
        // Nobody is there to be asked. The line names the file with the database and the brokers.
        command(line).flag("--yes").succeed();
        let has_it = || {
            world
                .records(0)
                .iter()
                .any(|record| record.header("id") == bad)
        };
        eventually("it is delivered", ARRIVAL, has_it, |has_it| *has_it);
        assert_eq!(relay.terminate(ARRIVAL), Some(0), "{}", relay.log());
    }
}

#[test]
fn a_dropped_publication_is_repaired_by_its_remedy() {
    let (world, sql, mut relay) = relaying();
    assert_eq!(relay.terminate(ARRIVAL), Some(0));
    sql.run(&format!("drop publication walrelay_{}", world.name));
    world.emit(&sql, "a");
    let (error, remedy) = refused(&world.run(), 15);
    assert!(
        error.contains(&format!("there is no publication walrelay_{}", world.name)),
        "{error}"
    );
    // Where another one publishes the table, the name may be wrong, and the slot well.
    sql.run(&format!(
        "create publication \"Other {}\" for table outbox",
        world.name
    ));
    let instead = refused(&world.run(), 15).1;
    let first = format!(
        "name one that publishes the table with --publication: Other {}; or ",
        world.name
    );
    assert!(instead.contains(&first), "{instead}");
    sql.run(&format!("drop publication \"Other {}\"", world.name));
    pasted(&remedy);
    let mut relay = world.relay();
    world.emit(&sql, "a");
    world.wait_confirmed();
    // No snapshot may have seen the last event before.
    let duplicates = world.assert_all_delivered().duplicates;
    assert!(duplicates <= 1, "{}", relay.log());
    assert_eq!(relay.terminate(ARRIVAL), Some(0));
    // And with setup's own words.
    sql.run(&format!("drop publication walrelay_{}", world.name));
    world.emit(&sql, "a");
    pasted(&refused(&world.command("setup"), 15).1);
    let _relay = world.relay();
    world.wait_confirmed();
    assert!(world.assert_all_delivered().duplicates <= 2);
}

#[test]
fn a_publication_that_is_dropped_before_the_first_position_loses_nothing() {
    let world = World::keeping();
    world.setup();
    let sql = world.sql();
    for _ in 0..3 {
        world.emit(&sql, "a");
    }
    sql.run(&format!("drop publication walrelay_{}", world.name));
    let remedy = refused(&world.run(), 15).1;
    let start = "a first one with --backlog all";
    assert!(remedy.ends_with(start), "{remedy}");
    pasted(&remedy);
    let _relay = world.run().option("--backlog", "all").start();
    assert_eq!(world.assert_all_delivered().duplicates, 0);
}

#[test]
fn a_publication_that_the_stream_misses_is_repaired_by_its_remedy() {
    let (world, sql, mut relay) = relaying();
    sql.run(&format!(
        "alter publication walrelay_{0} rename to other_{0}",
        world.name
    ));
    world.emit(&sql, "a");
    assert_eq!(relay.wait_exit(ARRIVAL), Some(15), "{}", relay.log());
    let log = relay.log();
    let (_, remedy) = last_words(&log);
    let (commands, start) = remedy
        .split_once("walrelay run")
        .unwrap_or_else(|| panic!("{remedy}"));
    assert!(
        start.contains("reads from the table what was not published"),
        "{remedy}"
    );
    pasted(commands);
    let _relay = world.relay();
    // No snapshot may have seen the last event before.
    assert!(world.assert_all_delivered().duplicates <= 1);
}

#[test]
fn a_dropped_table_is_repaired_by_its_remedy() {
    let world = World::new();
    world.sql().run("drop table outbox");
    let (error, remedy) = refused(&world.run(), 15);
    assert!(error.contains("there is no table public.outbox"), "{error}");
    let told = pasted(&remedy).concat();
    assert!(
        told.contains("add table \"public\".\"outbox\"") && !told.contains("--backlog"),
        "{told}"
    );
    let _relay = world.relay();
    world.emit(&world.sql(), "a");
    world.wait_confirmed();
    assert_eq!(world.assert_all_delivered().duplicates, 0);
}

/// The words of the command between backticks after `lead`, as a shell reads them.
#[track_caller]
fn command_after(remedy: &str, lead: &str) -> RelayCommand {
    let (_, rest) = remedy
        .split_once(&format!("{lead}`walrelay "))
        .unwrap_or_else(|| panic!("{remedy}"));
    command(rest.split('`').next().unwrap())
}

/// The words of `line` behind `walrelay`, as a shell reads them.
fn command(line: &str) -> RelayCommand {
    let mut words = vec![String::new()];
    let mut is_quoted = false;
    for char in line.chars() {
        match char {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            _ => words.last_mut().unwrap().push(char),
        }
    }
    let mut words = words.iter();
    let command = RelayCommand::new(words.next().unwrap());
    words.fold(command, |command, word| command.flag(word))
}

#[test]
fn an_event_that_stops_the_relay_is_given_up_by_one_recipe_in_each_mode() {
    // No topic; and more than the producer sends.
    for (mode, kind, payload, code) in [
        ("slot", "null", "'{}'", 20),
        ("poll", "$1", "to_jsonb(repeat('x', 2000000))", 21),
    ] {
        let world = World::keeping();
        let sql = world.sql();
        sql.run("alter table outbox add published_at timestamptz");
        world.setup();
        let file =
            "[outbox]\nmark = \"published_at = now()\"\npending = \"published_at is null\"\n";
        let run = world
            .run()
            .config_file(file)
            .option("--mode", mode)
            .option("--backlog", "pending");
        let kind = kind.replace("$1", &format!("'{}'", world.kind(0)));
        let insert = format!(
            "insert into outbox (id, aggregatetype, aggregateid, type, payload)
             values (gen_random_uuid(), {kind}, 'bad', 'Bad', {payload}) returning id::text"
        );
        world.emit(&sql, "a");
        let bad: String = sql.rows(&insert, &[])[0].get(0);
        world.emit(&sql, "a");
        let (error, remedy) = refused(&run, code);
        assert!(error.contains(&bad), "{error}");
        let mut relay = command_after(&remedy, "start the relay once as ").start();
        eventually(
            "it is given up",
            ARRIVAL,
            || relay.log(),
            |log| log.contains("event_given_up"),
        );
        let log = relay.log();
        assert!(
            log.contains("update its row to what outbox.pending selects")
                && !log.contains("walrelay replay")
                && !log.contains("nothing was skipped"),
            "{log}"
        );
        world.assert_all_good_delivered();
        let open = || sql.number("select count(*) from outbox where published_at is null");
        eventually("no row is pending", ARRIVAL, open, |open| *open == 0);
        assert_eq!(relay.terminate(ARRIVAL), Some(0));
        // And it does not come again.
        let mut relay = run.start();
        relay.wait_ready();
        world.emit(&sql, "a");
        world.assert_all_good_delivered();
        assert_eq!(relay.terminate(ARRIVAL), Some(0), "{}", relay.log());
    }
}

#[test]
fn a_missing_slot_and_publication_are_repaired_by_their_remedy() {
    let world = World::keeping();
    let (error, remedy) = refused(&world.run(), 14);
    assert!(
        error.contains(&format!(
            "nor publication walrelay_{0} in database {0}",
            world.name
        )),
        "{error}"
    );
    pasted(&remedy);
    world.relay();
}

#[test]
fn wal_level_and_replication_rights_are_repaired_by_their_remedies() {
    let postgres = Postgres::private(18, &[("wal_level", "replica")]);
    let world = World::bare(&postgres, Kafka::shared().brokers());
    let sql = world.sql();
    let role = format!("{}_owner", world.name);
    sql.run(&format!(
        "create role {role} login; alter table outbox owner to {role}; grant all on schema public \
         to {role};
         alter table outbox add column seq bigint generated always as identity"
    ));
    let url = postgres.url_as(&role, &world.name);
    let run = world
        .run()
        .option("--database-url", &url)
        .option("--mode", "poll");
    let (error, remedy) = refused(&run, 2);
    assert!(
        error.contains("cannot be polled")
            && remedy.contains("--table 'public.outbox' --mode poll"),
        "{remedy}"
    );

    let setup = world.command("setup").option("--database-url", &url);
    let (_, remedy_of_slot) = refused(&setup.clone().flag("--add-xid-column"), 12);
    assert!(remedy_of_slot.contains("--mode poll"), "{remedy_of_slot}");
    let dry_run = setup
        .clone()
        .flag("--add-xid-column")
        .flag("--dry-run")
        .output();
    assert_eq!(dry_run.status.code(), Some(12), "as without --dry-run");
    let script = String::from_utf8(dry_run.stdout).unwrap();
    let place = |what: &str| {
        script
            .find(what)
            .unwrap_or_else(|| panic!("no {what} in\n{script}"))
    };
    assert!(
        place("add column \"xid\"") < place("\ncreate publication"),
        "{script}"
    );
    assert!(
        place("\ncreate publication") < place("pg_create_logical_replication_slot"),
        "{script}"
    );
    let (error, _) = refused(&setup.clone().option("--mode", "poll"), 15);
    assert!(error.contains("cannot be polled"), "{error}");

    pasted(&remedy);
    let mut relay = run.start();
    relay.wait_ready();
    world.emit(&sql, "a");
    eventually(
        "it is delivered",
        ARRIVAL,
        || world.delivered(),
        |records| *records == 1,
    );
    assert_eq!(relay.terminate(ARRIVAL), Some(0), "{}", relay.log());

    sql.run("drop table outbox");
    let made = setup
        .option("--mode", "poll")
        .flag("--create-table")
        .succeed();
    assert!(
        made.contains("table public.outbox created") && made.contains(" --mode poll"),
        "{made}"
    );
    assert!(!made.contains("publication"), "{made}");
    assert_eq!(
        sql.number("select count(*) from pg_index where indrelid = 'outbox'::regclass"),
        3
    );
}

#[test]
fn setup_warns_of_a_table_that_cannot_replace_its_slot() {
    let bare = "create table outbox (id uuid, aggregatetype text, aggregateid text, type text, \
                payload jsonb)";
    let world = database(bare);
    let setup = world.command("setup");
    let told = setup.succeed();
    assert!(
        told.contains("warning: table public.outbox has no identity or serial column"),
        "{told}"
    );
    assert!(
        told.contains("\nwarning: no column of table public.outbox has the transaction"),
        "{told}"
    );
    assert!(told.contains("otherwise add --backlog all"), "{told}");
    let ordered = setup
        .flag("--add-xid-column")
        .variable("WALRELAY_OUTBOX_ORDER_BY", "aggregateid");
    assert!(!ordered.succeed().contains("warning: "));
    world.command("teardown").flag("--yes").succeed();
    world.sql().run("drop table outbox");
    let told = world.command("setup").flag("--create-table").succeed();
    assert!(
        !told.contains("warning: ") && !told.contains("--backlog"),
        "{told}"
    );
    world.command("teardown").flag("--yes").succeed();
}
