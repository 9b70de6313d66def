//! docs/reference/doctor.md: `walrelay doctor` names each fault of both ends with its remedy, and
//! changes nothing.

use std::collections::BTreeSet;
use std::process::Command;

use rdkafka::consumer::Consumer as _;
use serde_json::Value;

use crate::live::remedies::statements;
use crate::support::relay::RelayCommand;
use crate::support::servers::kafka::Listener;
use crate::support::servers::postgres::STANDBY_SLOT;
use crate::support::servers::{Kafka, Postgres, free_port};
use crate::support::topic;
use crate::support::wait::{LIMIT, eventually};
use crate::support::world::{ARRIVAL, World};

/// The checks of one call, and its exit code.
#[derive(Debug)]
pub(super) struct Checks {
    all: Vec<Value>,
    pub(super) code: i32,
}

impl Checks {
    #[track_caller]
    pub(super) fn of(doctor: &RelayCommand) -> Checks {
        let output = doctor.clone().flag("--json").output();
        let text = String::from_utf8_lossy(&output.stdout);
        let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
            panic!(
                "{error}: {text}\n{}",
                String::from_utf8_lossy(&output.stderr)
            )
        });
        Checks {
            all: report["checks"].as_array().unwrap().clone(),
            code: output.status.code().unwrap(),
        }
    }

    /// The remedy of a check with this state, and texts with these parts.
    #[track_caller]
    pub(super) fn has(&self, check: &str, state: &str, found: &str, fix: &str) -> String {
        let text = |check: &Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
        let is_it = |it: &&Value| {
            it["check"] == check
                && it["state"] == state
                && text(it, "found").contains(found)
                && text(it, "fix").contains(fix)
        };
        let it = self.all.iter().find(is_it);
        text(
            it.unwrap_or_else(|| {
                panic!("no {check} {state}: {found:?} {fix:?} in {:#?}", self.all)
            }),
            "fix",
        )
    }

    fn states(&self) -> Vec<(&str, &str)> {
        self.all
            .iter()
            .map(|it| (it["check"].as_str().unwrap(), it["state"].as_str().unwrap()))
            .collect()
    }
}

fn doctor(world: &World) -> RelayCommand {
    world.command("doctor").option("--brokers", &world.brokers)
}

/// What a command could have created in the database, and the topics that belong to the world.
fn traces(world: &World) -> (String, BTreeSet<String>) {
    let catalogs = "select concat_ws(' ',
        (select string_agg(oid || relname, ' ' order by oid) from pg_class where relkind <> 't'),
        (select string_agg(p::text, ' ' order by oid) from pg_publication p),
        (select string_agg(concat_ws(',', slot_name, confirmed_flush_lsn), ' ') from \
        pg_replication_slots),
        (select string_agg(r::text, ' ') from pg_db_role_setting r),
        (select string_agg(o::text, ' ') from outbox o))";
    let metadata = topic::consumer(&world.brokers)
        .fetch_metadata(None, LIMIT)
        .unwrap();
    let names = metadata
        .topics()
        .iter()
        .map(|topic| topic.name().to_owned());
    (
        world.sql().text(catalogs),
        names.filter(|name| name.contains(&world.name)).collect(),
    )
}

#[test]
fn a_good_setup_is_ok_and_a_look_at_it_leaves_no_trace() {
    let settings = [
        ("max_slot_wal_keep_size", "8GB"),
        ("max_replication_slots", "1"),
        ("idle_replication_slot_timeout", "1d"),
    ];
    let postgres = Postgres::private(18, &settings);
    let world = World::keeping_on(&postgres, Kafka::shared().brokers());
    world.setup();
    let sql = world.sql();
    let full = Checks::of(&doctor(&World::keeping_on(
        &postgres,
        Kafka::shared().brokers(),
    )));
    full.has(
        "server",
        "wrong",
        "all replication slots are in use",
        "raise max_replication_slots",
    );
    world.emit(&sql, "a");
    let state_topic = format!("state.{}", world.name);
    let with_state = |command: RelayCommand| command.variable("WALRELAY_STATE_TOPIC", &state_topic);
    let doctor = with_state(doctor(&world));
    let setting = "idle_replication_slot_timeout = '0';\nselect pg_reload_conf(); -- ";
    let fix = Checks::of(&doctor).has(
        "wal-retention",
        "warning",
        "when walrelay is away for 1d",
        setting,
    );
    fix.lines().for_each(|line| sql.run(line));
    eventually(
        "the setting is in force",
        ARRIVAL,
        || Checks::of(&doctor).code,
        |code| *code == 0,
    );
    let before = traces(&world);
    let checks = Checks::of(&doctor);
    assert_eq!(checks.code, 0, "{:#?}", checks.all);
    checks.has("slot", "ok", "no relay streams from the slot", "");
    checks.has("position", "ok", "no position is stored", "");
    checks.has("topic", "ok", "the brokers create it", "");
    checks.has("topic", "ok", "the relay creates it", "");
    assert_eq!(traces(&world), before);

    let mut relay = with_state(world.run()).start();
    relay.wait_ready();
    world.wait_confirmed();
    let checks = Checks::of(&doctor);
    let expected = [
        "configuration",
        "postgres",
        "server",
        "role",
        "table",
        "slot",
        "wal-retention",
        "standby-slots",
        "publication",
        "synchronous",
        "clock",
        "recovery",
        "rows",
        "upkeep",
        "bus",
        "kafka-version",
        "topic",
        "topic-rights",
        "record-size",
        "topic",
        "topic-rights",
        "position",
    ];
    assert_eq!(
        checks.states(),
        expected.map(|name| (name, "ok")),
        "{:#?}",
        checks.all
    );
    assert_eq!(checks.code, 0);
    let table = doctor.succeed();
    let columns: BTreeSet<_> = table
        .lines()
        .filter_map(|line| line.find("  topic-rights"))
        .collect();
    assert!(
        columns.len() == 1 && table.ends_with("22 ok, 0 warnings, 0 wrong\n"),
        "{table}"
    );
    assert_eq!(relay.terminate(ARRIVAL), Some(0));

    // The slot is lost.
    postgres.alter("max_slot_wal_keep_size", "1MB");
    eventually(
        "the slot is lost",
        ARRIVAL,
        || {
            sql.run(
                "insert into noise select n, repeat('x', 2000) from generate_series(1, 5000) \
                     n; select pg_switch_wal(); checkpoint",
            );
            world.slot("wal_status")
        },
        |status| status == "lost",
    );
    let checks = Checks::of(&doctor);
    assert_eq!(checks.code, 1, "{:#?}", checks.all);
    checks.has(
        "slot",
        "warning",
        "is lost",
        &format!("--slot {}` publishes what was not published", world.name),
    );
    checks.has("position", "warning", "is lost", "");
    let checks = Checks::of(&doctor.clone().option("--on-slot-loss", "stop"));
    checks.has(
        "position",
        "wrong",
        "slot.on_loss is stop",
        "--on-slot-loss recover",
    );
    assert_eq!(checks.code, 14, "{:#?}", checks.all);
    let checks = Checks::of(&doctor.option("--state-store", "slot"));
    checks.has("slot", "wrong", "is lost", "");
    assert_eq!(checks.code, 14, "{:#?}", checks.all);

    // What is stored is of another server.
    let other = World::new();
    let checks =
        Checks::of(&with_state(self::doctor(&other)).variable("WALRELAY_STATE_KEY", &world.name));
    checks.has(
        "position",
        "wrong",
        "was stored for the server with system identifier",
        "--adopt-slot",
    );
    assert_eq!(checks.code, 16, "{:#?}", checks.all);
}

#[test]
fn the_risks_of_retained_wal_and_of_a_failover_are_gone_once_their_remedies_are_pasted() {
    let primary = Postgres::private(17, &[]);
    let world = World::keeping_on(&primary, Kafka::shared().brokers());
    let standby = Postgres::standby_of(&primary);
    world.publish();
    let sql = world.sql();
    let create = |options: &str| {
        format!(
            "select pg_create_logical_replication_slot('{}', 'pgoutput'{options})",
            world.name
        )
    };
    sql.run(&create(""));
    // Nobody receives from this one.
    sql.run("select pg_create_physical_replication_slot('abandoned')");
    let active = || sql.number("select count(*) from pg_replication_slots where active");
    eventually("the standby streams", ARRIVAL, active, |active| {
        *active == 1
    });
    let checks = Checks::of(&doctor(&world));
    let each_line = |fix: &str| fix.lines().for_each(|line| sql.run(line));
    each_line(&checks.has(
        "wal-retention",
        "warning",
        "max_slot_wal_keep_size is -1",
        "MB';\nselect pg_reload_conf(); -- ",
    ));
    let fix = checks.has(
        "standby-slots",
        "warning",
        "failover off",
        "replication=database",
    );
    // A transaction since the slot was made, so that its copy is not ready at once.
    world.emit(&sql, "a");
    let (_, line) = fix.split_once("then: ").unwrap();
    let address = primary.address();
    let (host, port) = address.rsplit_once(':').unwrap();
    let psql = |line: &str| {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", line])
            .env("PGHOST", host)
            .env("PGPORT", port)
            .env("PGUSER", "postgres");
        shell.output().unwrap()
    };
    if psql("psql --version").status.success() {
        let altered = psql(line);
        assert!(
            altered.status.success(),
            "{line}: {}",
            String::from_utf8_lossy(&altered.stderr)
        );
    } else {
        sql.run(&format!(
            "select pg_drop_replication_slot('{}')",
            world.name
        ));
        sql.run(&create(", false, false, true"));
    }
    let checks = Checks::of(&doctor(&world));
    checks.has("wal-retention", "ok", "MB of WAL behind", "");
    let setting = format!(
        "synchronized_standby_slots = '{STANDBY_SLOT}';\nselect pg_reload_conf(); -- delivery then \
         waits"
    );
    each_line(&checks.has(
        "standby-slots",
        "warning",
        "synchronized_standby_slots is empty",
        &setting,
    ));
    eventually(
        "the setting is in force",
        ARRIVAL,
        || Checks::of(&doctor(&world)),
        |checks| checks.code == 0,
    );
    // A slot without a standby holds all events back.
    primary.alter(
        "synchronized_standby_slots",
        &format!("{STANDBY_SLOT}, abandoned"),
    );
    let fix = Checks::of(&doctor(&world)).has(
        "standby-slots",
        "warning",
        "abandoned, from which no standby",
        &setting,
    );
    each_line(&fix);
    eventually(
        "the setting is in force",
        ARRIVAL,
        || Checks::of(&doctor(&world)),
        |checks| checks.code == 0,
    );

    let copies = format!(
        "select count(*) from pg_replication_slots where slot_name = '{}' and temporary",
        world.name
    );
    let temporary = || standby.sql().number(&copies);
    eventually(
        "the standby begins a copy of the slot",
        ARRIVAL,
        temporary,
        |copies| *copies == 1,
    );
    let doctor = doctor(&world).option(
        "--database-url",
        &primary.url_of_either(&standby, &world.name),
    );
    let fix = Checks::of(&doctor).has("standby-slots", "warning", "is not ready", "on the primary");
    let _relay = world.relay();
    let pasted = || {
        world.emit(&sql, "a");
        sql.run(&fix);
        temporary()
    };
    eventually("the copy is ready", ARRIVAL, pasted, |copies| *copies == 0);
    Checks::of(&doctor).has("standby-slots", "ok", "survives a promotion", "");
}

#[test]
fn each_fault_of_postgres_and_of_a_record_is_named_with_its_remedy() {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    let sql = world.sql();
    let name = &world.name;
    sql.run("alter table outbox set unlogged");
    let checks = Checks::of(&doctor(&world));
    checks.has(
        "table",
        "wrong",
        "is unlogged",
        "alter table public.outbox set logged",
    );
    checks.has(
        "slot",
        "wrong",
        "neither replication slot",
        "`walrelay setup --",
    );
    assert!(
        !checks
            .states()
            .iter()
            .any(|(check, _)| *check == "publication"),
        "the slot's line names it: {checks:?}"
    );
    checks.has(
        "recovery",
        "warning",
        "no column gives their order",
        "outbox.order_by",
    );
    assert_eq!(checks.code, 15);

    sql.run("alter table outbox set logged");
    world.publish();
    let checks = Checks::of(&doctor(&world));
    checks.has(
        "slot",
        "warning",
        "there is no replication slot",
        &format!("--slot {name}` publishes what was not published"),
    );
    checks.has("position", "ok", "nothing was relayed before", "");
    assert_eq!(checks.code, 1, "{:#?}", checks.all);
    let warned = doctor(&world).output();
    assert_eq!(
        String::from_utf8_lossy(&warned.stderr),
        "",
        "a warning is no error"
    );

    let misspelt = doctor(&world)
        .option("--table", "public.outbxo")
        .option("--set", "outbox.pending=true");
    let checks = Checks::of(&misspelt.option("--set", "outbox.columns.payload=body"));
    let fix = checks.has(
        "table",
        "wrong",
        "there is no table public.outbxo",
        "check schema",
    );
    assert!(!fix.contains("--create-table"), "{fix}");
    let depends = ["recovery", "rows", "upkeep"];
    assert!(
        !checks
            .states()
            .iter()
            .any(|(check, _)| depends.contains(check)),
        "told twice: {:#?}",
        checks.all
    );

    world.setup();
    sql.run(&format!(
        "alter publication walrelay_{name} drop table outbox; create role {name} login"
    ));
    // A record that its topic does not take, and a topic that would delete the position.
    let settings = [("max.message.bytes", "1000"), ("min.insync.replicas", "2")];
    topic::create(&world.brokers, &world.topic(0), 1, &settings);
    topic::create(&world.brokers, &format!("state.{name}"), 1, &[]);
    sql.run(&format!("select emit('{}', 'a', 3000)", world.kind(0)));
    let checks =
        Checks::of(&doctor(&world).variable("WALRELAY_STATE_TOPIC", &format!("state.{name}")));
    let brokers = format!("kafka-configs --bootstrap-server {} --alter", world.brokers);
    checks.has("topic", "wrong", "cleanup.policy=delete", &brokers);
    checks.has(
        "topic",
        "warning",
        "min.insync.replicas is 2, and the topic has 1 replica",
        &brokers,
    );
    checks.has(
        "publication",
        "wrong",
        "is not in publication",
        "add table public.outbox",
    );
    checks.has(
        "wal-retention",
        "warning",
        "max_slot_wal_keep_size is -1",
        "alter system set",
    );
    checks.has(
        "record-size",
        "wrong",
        "max.message.bytes is 1000",
        "raise max.message.bytes of topic",
    );
    assert_eq!(checks.code, 15);
    sql.run(&format!(
        "alter publication walrelay_{name} add table outbox"
    ));
    assert_eq!(Checks::of(&doctor(&world)).code, 21);
    let compressed = doctor(&world).variable("WALRELAY_KAFKA_PROPERTY_COMPRESSION_TYPE", "zstd");
    Checks::of(&compressed).has(
        "record-size",
        "warning",
        "unless compression",
        "raise max.message.bytes",
    );

    let mistyped = doctor(&world).variable("WALRELAY_OUTBOX_FAILED", "stat = 'FAILED'");
    Checks::of(&mistyped).has(
        "upkeep",
        "wrong",
        "column \"stat\" does not exist",
        "failed = ",
    );

    // A role without any right.
    let url = Postgres::shared().url_as(name, name);
    let checks = Checks::of(&doctor(&world).option("--database-url", &url));
    checks.has(
        "role",
        "wrong",
        "may not use replication slots",
        &format!("alter role \"{name}\" replication;"),
    );
    checks.has("rows", "warning", "sizes of records are not known", "");
    checks.has(
        "recovery",
        "warning",
        "the role has no right to",
        "grant select on public.outbox",
    );
    assert_eq!(checks.code, 11);
    sql.run(&format!("drop role {name}"));

    // Nobody listens at either end.
    let nobody = format!("127.0.0.1:{}", free_port());
    let url = format!("postgres://postgres@{nobody}/{name}");
    let checks = Checks::of(
        &doctor(&world)
            .option("--database-url", &url)
            .option("--brokers", &nobody),
    );
    checks.has("postgres", "wrong", &nobody, "check that the server runs");
    checks.has(
        "bus",
        "wrong",
        "no Kafka broker answers",
        "check that the brokers run",
    );
    assert_eq!(checks.code, 10);
    let checks = Checks::of(&doctor(&world).option("--brokers", &nobody));
    assert_eq!(checks.code, 30, "{:#?}", checks.all);
}

#[test]
fn each_statement_of_doctor_mends_what_it_is_printed_for() {
    let world = World::keeping();
    world.setup();
    let sql = world.sql();
    world.emit(&sql, "a");
    let publication = format!("walrelay_{}", world.name);
    let doctor = doctor(&world);
    for (breaks, check, state, found) in [
        (
            "alter publication $p set (publish = 'update')",
            "publication",
            "wrong",
            "without inserts",
        ),
        (
            "alter publication $p drop table outbox",
            "publication",
            "wrong",
            "is not in publication",
        ),
        (
            "alter publication $p set table outbox where (id is not null)",
            "publication",
            "wrong",
            "filters rows",
        ),
        (
            "alter publication $p set table outbox (id, type)",
            "table",
            "wrong",
            "publishes only (id, type)",
        ),
        (
            "drop publication $p; create publication $p for all tables",
            "publication",
            "warning",
            "without a primary key or replica identity fails in the application",
        ),
        (
            "alter table outbox alter column payload type oid using lo_from_bytea(0, \
             convert_to(payload::text, 'UTF8'))",
            "table",
            "wrong",
            "is of type oid",
        ),
        (
            "alter table outbox alter column payload type text using lo_from_bytea(0, \
             payload)::text",
            "rows",
            "warning",
            "has the numbers of large objects",
        ),
        (
            "alter table outbox drop constraint outbox_pkey; \
             alter table outbox alter column id drop not null",
            "table",
            "warning",
            "column \"id\" may be NULL",
        ),
    ] {
        sql.run(&breaks.replace("$p", &publication));
        let fix = Checks::of(&doctor).has(check, state, found, "");
        sql.run(fix.split("; -- ").next().unwrap());
        let checks = Checks::of(&doctor);
        let is_it = |it: &&Value| it["found"].as_str().unwrap().contains(found);
        assert!(
            !checks.all.iter().any(|it| is_it(&it)),
            "{fix} does not mend {breaks}: {:#?}",
            checks.all
        );
    }
    assert_eq!(
        sql.text("select payload::jsonb ->> 'v' is not null from outbox"),
        "true"
    );
}

#[test]
fn run_and_doctor_end_alike_where_slot_and_publication_are_gone_and_a_position_is_stored() {
    let world = World::keeping();
    world.setup();
    let mut relay = world.relay();
    world.emit(&world.sql(), "a");
    world.wait_confirmed();
    assert_eq!(relay.terminate(ARRIVAL), Some(0));
    world.drop_slot();
    world
        .sql()
        .run(&format!("drop publication walrelay_{}", world.name));
    world.emit(&world.sql(), "a");
    let checks = Checks::of(&doctor(&world));
    checks.has(
        "slot",
        "wrong",
        "neither replication slot",
        "` makes both; a relay with a stored position then publishes",
    );
    let mut relay = world.run().start();
    assert_eq!(
        (checks.code, relay.wait_exit(ARRIVAL)),
        (14, Some(14)),
        "{}",
        relay.log()
    );
    // The remedy.
    world.setup();
    let _relay = world.relay();
    // No snapshot may have seen the last event before.
    assert!(world.assert_all_delivered().duplicates <= 1);
}

#[test]
fn missing_topics_and_rights_are_named_with_the_commands_that_mend_them() {
    let login =
        "org.apache.kafka.common.security.plain.PlainLoginModule required user_relay=\"relay\";";
    let settings = vec![
        ("sasl.enabled.mechanisms", "PLAIN".to_owned()),
        ("plain.sasl.jaas.config", login.to_owned()),
    ];
    let kafka = Kafka::guarded_with(
        &[Listener {
            name: "NAMED",
            protocol: "SASL_PLAINTEXT",
            settings,
        }],
        "auto.create.topics.enable=false\ntransaction.max.timeout.ms=5000\n",
    );
    let world = World::on(Postgres::shared(), kafka.brokers());
    for kind in 0..2 {
        topic::create(&world.brokers, &world.topic(kind), 1, &[]);
    }
    kafka.allow_writing("relay", &world.topic(0));
    kafka.allow_writing("somebody", &world.topic(1));
    let sql = world.sql();
    for kind in 0..3 {
        world.emit_to(&sql, kind, "a");
    }
    let user = [
        ("SECURITY_PROTOCOL", "SASL_PLAINTEXT"),
        ("SASL_MECHANISM", "PLAIN"),
        ("SASL_USERNAME", "relay"),
        ("SASL_PASSWORD", "relay"),
    ];
    let set = |doctor: RelayCommand, (name, value)| {
        doctor.variable(&format!("WALRELAY_KAFKA_PROPERTY_{name}"), value)
    };
    let doctor = user.into_iter().fold(
        doctor(&world).option("--brokers", &kafka.brokers_of("NAMED")),
        set,
    );
    let doctor = doctor.option("--on-error", "dead-letter");
    let before = traces(&world);
    let checks = Checks::of(&doctor);
    let [written, denied, missing] = [0, 1, 2].map(|kind| world.topic(kind));
    checks.has(
        "topic-rights",
        "warning",
        &written,
        &format!(
            "--allow-principal User:relay --operation Read --operation Describe --topic {written}"
        ),
    );
    checks.has(
        "topic-rights",
        "wrong",
        &denied,
        &format!("--operation Write --operation Describe --topic {denied}"),
    );
    let create = format!(
        "kafka-topics --bootstrap-server {} --create",
        kafka.brokers_of("NAMED")
    );
    checks.has(
        "topic",
        "wrong",
        &missing,
        &format!("{create} --topic {missing}"),
    );
    checks.has(
        "topic",
        "wrong",
        "dead-letter topic walrelay-dead-letters does not exist",
        &create,
    );
    checks.has("topic", "ok", "the relay creates it", "");
    assert_eq!(checks.code, 31, "{:#?}", checks.all);
    let once = Checks::of(&doctor.clone().option("--guarantee", "exactly-once"));
    once.has(
        "transactional-id",
        "wrong",
        "transaction.max.timeout.ms is 5000",
        "delivery.transaction_timeout",
    );
    once.has("topic-rights", "ok", "", "");
    assert_eq!(traces(&world), before);

    let wrong = doctor
        .clone()
        .variable("WALRELAY_KAFKA_PROPERTY_SASL_PASSWORD", "wrong");
    let checks = Checks::of(&wrong);
    checks.has(
        "bus",
        "wrong",
        "Kafka refuses our credentials",
        "sasl.password",
    );
    assert_eq!(checks.code, 31);
}

#[test]
fn tables_that_the_role_may_not_make_are_named_with_sql_that_makes_them() {
    let world = World::keeping();
    let postgres = Postgres::shared();
    world.setup();
    let sql = world.sql();
    let role = format!("{}_relay", world.name);
    sql.run(&format!(
        "create role {role} login replication; grant select on outbox to {role}; alter table \
         outbox add column created_at timestamptz default now()"
    ));
    let as_role = |command: RelayCommand| {
        let command = command.option("--database-url", &postgres.url_as(&role, &world.name));
        command.config_file("[delivery]\non_error = 'park'\n[state]\nstore = 'postgres'\n")
    };
    for table in ["walrelay.position", "walrelay.parked"] {
        let lacking = format!("there is no table {table}, and this role may not create it");
        let fix = Checks::of(&as_role(doctor(&world))).has(
            "upkeep",
            "wrong",
            &lacking,
            "grant usage on schema walrelay",
        );
        sql.run(statements(&fix));
    }
    Checks::of(&as_role(doctor(&world))).has(
        "upkeep",
        "ok",
        "the role may do what is configured",
        "",
    );
    let keeping = |command: RelayCommand| as_role(command).option("--set", "outbox.retention=7d");
    let fix = Checks::of(&keeping(doctor(&world))).has(
        "upkeep",
        "wrong",
        "permission denied for table outbox",
        "grant select, update, delete on ",
    );
    let cleanup = as_role(world.command("cleanup")).option("--older-than", "7d");
    assert_eq!(
        cleanup.clone().flag("--dry-run").output().status.code(),
        Some(11)
    );
    sql.run(statements(&fix));
    assert_eq!(Checks::of(&keeping(doctor(&world))).code, 1);
    let mut relay = as_role(world.run()).start();
    relay.wait_ready();
    assert_eq!(relay.terminate(ARRIVAL), Some(0), "{}", relay.log());
    sql.run(&format!("drop owned by {role}; drop role {role}"));
}

#[test]
fn a_server_that_takes_no_writes_is_named_where_the_configuration_needs_some() {
    let world = World::keeping();
    world.setup();
    let sql = world.sql();
    sql.run("alter table outbox add column created_at timestamptz default now()");
    let read_only = format!(
        "alter database {} {{}} default_transaction_read_only",
        world.name
    );
    sql.run(&format!("{} = on", read_only.replace("{}", "set")));
    let parks = |command: RelayCommand| {
        command.config_file("[delivery]\non_error = 'park'\n[state]\nstore = 'postgres'\n")
    };
    for keys in ["outbox.delete=acked", "outbox.retention=7d"] {
        let checks = Checks::of(&doctor(&world).option("--set", keys));
        checks.has(
            "upkeep",
            "wrong",
            "the server takes no writes",
            "reset default_",
        );
        assert_eq!(checks.code, 10, "{keys}");
    }
    Checks::of(&doctor(&world)).has("upkeep", "ok", "the role may do", "");
    let checks = Checks::of(&parks(doctor(&world)));
    checks.has(
        "upkeep",
        "wrong",
        "the server takes no writes",
        "reset default_",
    );
    assert_eq!(checks.code, 10);

    // The relay waits for it.
    let mut relay = parks(world.run()).start();
    let log = || relay.log().matches("in a read-only transaction").count();
    eventually("it is told", ARRIVAL, log, |count| *count > 0);
    sql.run(&read_only.replace("{}", "reset"));
    relay.wait_ready();
    assert!(!relay.log().contains("streaming again"), "{}", relay.log());
    assert_eq!(relay.terminate(ARRIVAL), Some(0), "{}", relay.log());
}
