//! docs/reference/privileges.md: what `setup` and `teardown` print of the statements that they run,
//! or would run.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::relay::{EXIT, RelayCommand, last_words, told};
use crate::support::servers::Postgres;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

/// Slots and publications of the world.
fn objects(world: &World) -> i64 {
    world.sql().number(&format!(
        "select (select count(*) from pg_replication_slots where slot_name = '{0}')
              + (select count(*) from pg_publication where pubname = 'walrelay_{0}')",
        world.name
    ))
}

/// A name that is no subject of NATS would be parked there, each time.
#[test]
fn the_table_that_setup_creates_takes_only_types_that_make_a_topic_of_each_bus() {
    let world = World::bare(Postgres::shared(), "");
    let sql = world.sql();
    sql.run("drop table outbox");
    let setup = world.command("setup").option("--mode", "poll");
    setup.flag("--create-table").succeed();
    let insert = |kind: &str| {
        sql.try_run(&format!(
            "insert into outbox (aggregatetype, aggregateid) values ('{kind}', 'a')"
        ))
    };
    for kind in ["order", "Order.v1", "a-b_c.d"] {
        assert!(insert(kind).is_ok(), "{kind}");
    }
    for kind in [
        "",
        "a..b",
        ".a",
        "a.",
        ".",
        "a b",
        "a*",
        "a\n",
        &"x".repeat(201),
    ] {
        let refused = insert(kind).unwrap_err();
        let constraint = refused.as_db_error().and_then(|error| error.constraint());
        assert_eq!(
            constraint,
            Some("aggregatetype_fits_a_topic_name"),
            "{kind:?}"
        );
    }
}

#[test]
fn a_dry_run_of_teardown_prints_a_script_that_drops_slot_and_publication() {
    let world = World::new();
    let script = world.command("teardown").flag("--dry-run").succeed();
    let drops = [
        format!(
            "select pg_catalog.pg_drop_replication_slot('{}');",
            world.name
        ),
        format!("drop publication \"walrelay_{}\";", world.name),
    ];
    assert!(
        script.ends_with(&format!(
            "\\set ON_ERROR_STOP on\n{}\n{}\n",
            drops[0], drops[1]
        )),
        "{script}"
    );
    assert_eq!(objects(&world), 2);

    // While a relay streams, it ends as teardown does.
    let mut relay = world.relay();
    let refused = world.command("teardown").flag("--dry-run").output();
    let words = told(&refused.stderr);
    assert_eq!(
        (refused.status.code(), refused.stdout.len()),
        (Some(13), 0),
        "{words}"
    );
    assert!(last_words(&words).1.contains("--force"), "{words}");
    let script = world
        .command("teardown")
        .flag("--dry-run")
        .flag("--force")
        .succeed();
    assert!(
        script.contains("select pg_catalog.pg_terminate_backend("),
        "{script}"
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());

    eventually(
        "the slot is free",
        EXIT,
        || world.walsender(),
        |pid| *pid == 0,
    );
    let sql = world.sql();
    drops.iter().for_each(|statement| sql.run(statement));
    let script = world.command("teardown").flag("--dry-run").succeed();
    assert!(script.ends_with("-- Nothing to do.\n"), "{script}");
}

#[test]
fn a_teardown_takes_the_table_of_its_setup_and_leaves_the_publication_of_another_slot() {
    let world = World::new();
    let sql = world.sql();
    sql.run("create table other (like outbox including all)");
    let slot = format!("{}_other", world.name);
    let of_slot = |command: &str| world.command(command).option("--slot", &slot);
    of_slot("setup").option("--table", "other").succeed();
    // What it has to relay is of its table.
    sql.run(&format!(
        "insert into other values (gen_random_uuid(), '{}', 'a', 'T', '{{}}')",
        world.kind(0)
    ));
    let teardown = of_slot("teardown").option("--table", "other").flag("--yes");
    let waits = teardown.output();
    let words = told(&waits.stderr);
    assert_eq!(waits.status.code(), Some(14), "{words}");
    assert!(words.contains("unrelayed"), "{words}");
    let of_another = teardown
        .clone()
        .flag("--force")
        .option("--publication", &format!("walrelay_{}", world.name))
        .output();
    let words = told(&of_another.stderr);
    assert_eq!(of_another.status.code(), Some(15), "{words}");
    assert!(words.contains("the name of another slot's"), "{words}");
    teardown.flag("--force").succeed();
    assert_eq!(objects(&world), 2);
}

/// The steps of a report, each with whether it is done.
fn steps(report: &Value) -> Vec<(&str, bool)> {
    let steps = report["steps"].as_array().expect("steps").iter();
    steps
        .map(|step| {
            (
                step["step"].as_str().expect("a step"),
                step["done"].as_bool().expect("done"),
            )
        })
        .collect()
}

#[test]
fn setup_and_teardown_report_their_steps_as_data() {
    let world = World::bare(Postgres::shared(), "127.0.0.1:9");
    let slot = &world.name;
    let run = |command: RelayCommand| {
        serde_json::from_str::<Value>(&command.succeed()).expect("a report")
    };
    let [publication, creates] = [
        format!("creating publication walrelay_{slot}"),
        format!("creating slot {slot}"),
    ];
    let planned = run(world.command("setup").flag("--json").flag("--dry-run"));
    assert_eq!(
        steps(&planned),
        [(publication.as_str(), false), (creates.as_str(), false)],
        "{planned}"
    );
    assert_eq!(
        (&planned["dry_run"], &planned["present"][0], objects(&world)),
        (&true.into(), &"table public.outbox exists".into(), 0)
    );
    let made = run(world.command("setup").flag("--json"));
    assert_eq!(
        (steps(&made), objects(&world)),
        (
            vec![(publication.as_str(), true), (creates.as_str(), true)],
            2
        ),
        "{made}"
    );
    assert_eq!(made["steps"][0]["sql"], planned["steps"][0]["sql"]);
    let yaml = world.command("setup").option("--output", "yaml").succeed();
    assert!(
        yaml.starts_with("dry_run: false\nsteps: []\npresent:\n- "),
        "{yaml}"
    );

    // The slot is dropped before the publication's step fails.
    let sql = world.sql();
    sql.run(
        "create function refuse() returns event_trigger language plpgsql as $$ begin raise \
             'not now'; end $$",
    );
    sql.run(
        "create event trigger refuse on ddl_command_start when tag in ('DROP PUBLICATION') execute \
         function refuse()",
    );
    let failed = world
        .command("teardown")
        .flag("--json")
        .flag("--yes")
        .output();
    let report: Value = serde_json::from_slice(&failed.stdout).expect("a report");
    let [drops, unpublishes] = [
        format!("dropping slot {slot}"),
        format!("dropping publication walrelay_{slot}"),
    ];
    assert_eq!(
        steps(&report),
        [(drops.as_str(), true), (unpublishes.as_str(), false)],
        "{report}"
    );
    assert!(
        !failed.status.success() && told(&failed.stderr).contains("not now"),
        "{failed:?}"
    );
    sql.run("drop event trigger refuse");
    let dropped = run(world.command("teardown").flag("--json").flag("--yes"));
    assert_eq!(
        (steps(&dropped), objects(&world)),
        (vec![(unpublishes.as_str(), true)], 0),
        "{dropped}"
    );
    assert_eq!(steps(&run(world.command("teardown").flag("--json"))), []);
}

#[test]
fn a_forced_teardown_ends_the_session_of_a_relay() {
    let world = World::new();
    let mut relay = world.relay();
    relay.process.signal("STOP");
    let dropped = world
        .command("teardown")
        .flag("--force")
        .flag("--yes")
        .succeed();
    assert!(
        dropped.contains("select pg_catalog.pg_terminate_backend("),
        "{dropped}"
    );
    assert_eq!(objects(&world), 0, "{dropped}");
    relay.kill_hard();
}

#[test]
fn setup_doctor_and_run_print_the_index_that_pending_needs_and_it_serves() {
    const ORDINARY: &str = "alter table outbox add published_at timestamptz";
    const PARTITIONED: &str = "drop table outbox; create table outbox (id uuid, aggregatetype \
                               text, aggregateid text,
            type text, payload jsonb, seq bigserial, published_at timestamptz, day int, primary \
            key (id, day))
            partition by list (day);
        create table day_1 partition of outbox for values in (1);
        create table others partition of outbox default partition by list (day);
        create table day_2 partition of others for values in (2)";
    const TEXT: &str = "no index serves outbox.pending of table public.outbox";
    for table in [ORDINARY, PARTITIONED] {
        let world = World::keeping();
        let sql = world.sql();
        sql.run(table);
        let toml =
            "[outbox]\npending = \"published_at is null\"\nmark = \"published_at = now()\"\n";
        let pending = |command: &str| world.command(command).config_file(toml);
        let setup = pending("setup").flag("--dry-run").output();
        let printed = String::from_utf8(setup.stdout).unwrap();
        let run = pending("run").option("--brokers", &world.brokers);
        pending("setup").succeed();
        let relay = run.clone().start();
        eventually(
            "it is warned",
            ARRIVAL,
            || relay.log().matches(TEXT).count(),
            |count| *count == 1,
        );
        drop(relay);
        let doctor = pending("doctor").option("--brokers", &world.brokers);
        let words = String::from_utf8(doctor.output().stdout).unwrap();
        assert!(
            printed.contains(TEXT) && words.contains(TEXT),
            "{printed}{words}"
        );

        // As pasted into psql.
        let start = printed.find(TEXT).unwrap();
        let lines = printed[start..]
            .lines()
            .skip(1)
            .map(|line| line.trim_start_matches("--").trim());
        let script = lines
            .take_while(|line| line.contains("create index"))
            .collect::<Vec<_>>()
            .join("\n");
        let psql = Command::new("psql")
            .args(["-X", "-v", "ON_ERROR_STOP=1", &world.database_url])
            .arg("-f")
            .arg("-")
            .stdin(Stdio::piped())
            .spawn();
        let mut psql = psql.expect("psql");
        psql.stdin
            .take()
            .unwrap()
            .write_all(script.as_bytes())
            .unwrap();
        assert!(psql.wait().unwrap().success(), "{script}");
        assert!(
            !String::from_utf8(doctor.output().stdout)
                .unwrap()
                .contains(TEXT),
            "{script}"
        );
        let valid = "select count(*) from pg_index where indpred is not null and indisvalid";
        assert_eq!(sql.number(valid), if table == ORDINARY { 1 } else { 4 });
        let mut relay = run.start();
        relay.wait_ready();
        assert!(!relay.log().contains(TEXT), "{}", relay.log());
    }
}
