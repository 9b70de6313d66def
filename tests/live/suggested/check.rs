//! docs/reference/configuration.md: `walrelay config check`: against the database as it is, with
//! the row that is there.

use serde_json::json;

use super::Seen;
use crate::live::doctor::Checks;
use crate::support::relay::RelayCommand;
use crate::support::servers::{Nats, Postfix, Postgres, Rabbitmq};
use crate::support::world::ARRIVAL;

const DEBEZIUM: &str = "create table outbox (id uuid primary key, aggregatetype text, aggregateid \
                        text, type text, payload jsonb)";
const ID: &str = "0a0b2b1e-7a64-4a51-8b64-51a6d6d3f001";

/// A table and a configuration of it with these lines more.
fn seen(ddl: &str, more: &str) -> (Seen, String) {
    let seen = Seen::new("outbox", ddl);
    let toml = format!(
        "[database]\nurl = '{}'\n[slot]\nname = '{}'\n[outbox]\ntable = '{}'\n[kafka]\nbrokers = \
         '{}'\n{more}",
        seen.world.database_url, seen.world.name, seen.table, seen.world.brokers
    );
    (seen, toml)
}

/// Exit code, standard output, standard error.
fn ends(command: &RelayCommand) -> (Option<i32>, String, String) {
    let output = command.output();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn config_check_accepts_an_empty_table_before_setup() {
    let (seen, toml) = seen(DEBEZIUM, "");
    let (code, said, told) = ends(&seen.check(&toml));
    assert_eq!(code, Some(0), "{told}");
    assert!(
        said.contains("row          none: the table is empty\n"),
        "{said}"
    );
    assert!(said.contains("not sent     type\n"), "{said}");
    // The command can be pasted.
    let slot = &seen.world.name;
    let creates = format!(" --slot {slot}` creates it");
    let found = said.lines().find(|line| line.ends_with(&creates)).unwrap();
    assert!(
        found.contains("is not there yet: `walrelay setup --config /"),
        "{found}"
    );
    // A check of doctor, with what mends it.
    assert!(
        said.contains("no column gives their order")
            && said.contains("\n  fix        set outbox.order_by"),
        "{said}"
    );
}

#[test]
fn config_check_refuses_what_run_refuses_with_the_same_code() {
    let (seen, toml) = seen(DEBEZIUM, "");
    let refused = |toml: &str, expected: i32, words: &str| {
        let (code, _, told) = ends(&seen.check(toml));
        assert_eq!(code, Some(expected), "{told}");
        assert!(told.contains(words), "{told}");
    };
    let unknown = format!("{toml}[route]\nkey = '{{agregateid}}'");
    let there_are = format!(
        "table {} has no column agregateid; it has id, aggregatetype, aggregateid, type, payload",
        seen.table
    );
    refused(&unknown, 15, &there_are);
    refused(
        &toml.replace(".outbox'", ".outbocks'"),
        15,
        "there is no table",
    );
    refused(&toml.replace("brokers", "broker"), 2, "kafka.broker");

    RelayCommand::new("setup").config_file(&toml).succeed();
    let publication = format!("walrelay_{}", seen.world.name);
    seen.sql.run(&format!(
        "alter publication {publication} set table outbox where (id is not null)"
    ));
    seen.sql.run(&format!(
        "insert into outbox values ('{ID}', 'order', 'o-1', 'Placed', '{{}}')"
    ));
    let (code, said, told) = ends(&seen.check(&toml));
    assert_eq!(code, Some(15), "{told}");
    assert!(
        told.contains("filters rows") && said.contains("topic      outbox.event.order\n"),
        "{said}{told}"
    );
    RelayCommand::new("teardown")
        .config_file(&toml)
        .flag("--yes")
        .flag("--force")
        .succeed();
}

/// No server is asked what its client knows.
#[test]
fn config_check_and_doctor_try_what_each_bus_can_never_take() {
    let ddl = DEBEZIUM.replace("payload jsonb", "payload jsonb, created_at timestamptz");
    let (seen, toml) = seen(&ddl, "");
    seen.sql.run(&format!(
        "insert into outbox values ('{ID}', 'order', 'a', E'T\\n' || repeat('x', 255), '1', now())"
    ));
    for (kind, lines, cause) in [
        (
            "nats",
            "[nats]\nservers = '127.0.0.1:1'\n[route.headers]\ntype = '{type}'",
            "has a value that NATS cannot carry",
        ),
        (
            "rabbitmq",
            "[rabbitmq]\nservers = '127.0.0.1:1'\n[route.headers]\ntype = '{type}'",
            "has more than 255 bytes",
        ),
        (
            "webhook",
            "[webhook]\nurl = 'http://127.0.0.1:1/'\n[route.headers]\ntype = '{type}'",
            "has a value with a line break",
        ),
        (
            "smtp",
            "[smtp]\nhost = '127.0.0.1'\nport = 1\ntls = 'off'\nfrom = 'a@b.c'\n[route]\n\
             timestamp = 'created_at'\n[route.headers]\nTo = '{aggregateid}'",
            "no address",
        ),
    ] {
        let lines = format!("{toml}[sink]\nkind = '{kind}'\n{lines}\n");
        let (code, said, told) = ends(&seen.check(&lines));
        assert_eq!(code, Some(21), "{kind}: {said}{told}");
        assert!(told.contains(cause) && told.contains(ID), "{kind}: {told}");
        assert!(!told.contains("is not encrypted"), "{told}");
        let parks = seen.check(&lines).option("--on-error", "park");
        assert_eq!(ends(&parks).0, Some(0), "{kind}");
        let doctor = RelayCommand::new("doctor").config_file(&lines);
        let checks = Checks::of(&doctor);
        checks.has("record", "warning", cause, "");
        checks.has("bus", "wrong", "", "check that");
        if kind == "nats" {
            let given_up = "delivery.on_error says what becomes of such events";
            let parks = Checks::of(&doctor.option("--on-error", "park"));
            parks.has("record", "ok", given_up, "");
        }
    }
}

/// Also without a row, and whatever becomes of events that cannot be delivered.
#[test]
fn settings_that_make_no_client_or_no_record_are_refused_by_each_command() {
    let (seen, toml) = seen(DEBEZIUM, "[delivery]\non_error = 'park'\n");
    let setup = RelayCommand::new("setup").config_file(&toml);
    setup.succeed();
    for (kind, lines, cause) in [
        (
            "webhook",
            "[webhook]\nurl = 'http://127.0.0.1:1/'\nauthorization_file = '/nowhere'",
            "/nowhere cannot be read",
        ),
        (
            "rabbitmq",
            "[rabbitmq]\nservers = '127.0.0.1:1'\n[route.headers]\nCC = 'other'",
            "route.headers.CC of ",
        ),
        (
            "nats",
            "[nats]\nservers = '127.0.0.1:1'\n[route.headers]\nNats-Rollup = '{type}'",
            "route.headers.Nats-Rollup of ",
        ),
    ] {
        let lines = format!("{toml}[sink]\nkind = '{kind}'\n{lines}\n");
        let run = RelayCommand::new("run").config_file(&lines);
        for command in [seen.check(&lines), run] {
            let (code, _, told) = ends(&command);
            assert_eq!(code, Some(2), "{kind}: {told}");
            assert!(told.contains(cause), "{kind}: {told}");
        }
        let checks = Checks::of(&RelayCommand::new("doctor").config_file(&lines));
        checks.has("configuration", "wrong", cause, "");
        checks.has("rows", "ok", "no row is there", "");
        assert_eq!(checks.code, 2);
    }
    let teardown = RelayCommand::new("teardown").config_file(&toml);
    teardown.flag("--yes").flag("--force").succeed();
}

/// `doctor` compares the largest record with what a server tells of its limits.
#[test]
fn doctor_says_the_size_of_a_record_beside_the_limit_of_the_server() {
    let ddl = DEBEZIUM.replace("payload jsonb", "payload jsonb, created_at timestamptz");
    let (seen, toml) = seen(&ddl, "");
    seen.sql.run(&format!(
        "insert into outbox values ('{ID}', 'order', 'a@example.org', 'T',
             to_jsonb(repeat('x', 5000)), now())"
    ));
    let doctor = |kind: &str, lines: &str| {
        let lines = format!("{toml}[sink]\nkind = '{kind}'\n{lines}\n");
        Checks::of(&RelayCommand::new("doctor").config_file(&lines))
    };
    let admin = json!({});
    if let Some(nats) = Nats::configured("max_payload: 4096", &admin) {
        let checks = doctor("nats", &format!("[nats]\nservers = '{}'", nats.address));
        checks.has("record", "warning", "of 4.0 KiB", "raise max_payload");
    }
    if let Some(nats) = Nats::start() {
        let checks = doctor("nats", &format!("[nats]\nservers = '{}'", nats.address));
        checks.has(
            "record",
            "ok",
            "is fit for NATS: it has 5.0 KiB, of 1.0 MiB",
            "",
        );
    }
    if let Some(postfix) = Postfix::start("message_size_limit = 8000") {
        let lines = format!(
            "[smtp]\nhost = '127.0.0.1'\nport = {}\ntls = 'off'\nfrom = 'a@example.org'\n[route]\n\
             timestamp = 'created_at'\n[route.headers]\nTo = '{{aggregateid}}'\n",
            postfix.port
        );
        let checks = doctor("smtp", &lines);
        checks.has("record", "ok", " KiB, of 7.8 KiB", "");
        seen.sql
            .run("update outbox set payload = to_jsonb(repeat('x', 10000))");
        let checks = doctor("smtp", &lines);
        checks.has(
            "record",
            "warning",
            "mail server takes 8000",
            "raise the server's limit",
        );
    }
    if let Some(rabbitmq) = Rabbitmq::shared() {
        let checks = doctor(
            "rabbitmq",
            &format!("[rabbitmq]\nservers = '{}'", rabbitmq.address),
        );
        checks.has("record", "ok", "its headers have ", "");
    }
}

#[test]
fn a_bus_elsewhere_without_tls_is_a_risk() {
    let (seen, toml) = seen(DEBEZIUM, "");
    for (kind, lines, server) in [
        (
            "nats",
            "servers = 'tls://a, nats://b.example:1'\ntoken = 't'",
            "nats://b.example:1",
        ),
        ("rabbitmq", "servers = 'amqps://a, b.example'", "b.example"),
        ("webhook", "url = 'http://b.example/canary'", "b.example"),
    ] {
        let lines = format!("{toml}[sink]\nkind = '{kind}'\n[{kind}]\n{lines}\n");
        let (code, said, told) = ends(&seen.check(&lines).flag("--offline"));
        assert_eq!(code, Some(0), "{kind}: {told}");
        let risk = format!("the connection to {server} is not encrypted");
        assert!(told.contains(&risk), "{kind}: {told}");
        assert!(
            !told.contains("canary") && !said.contains("canary"),
            "{told}"
        );
    }
}

#[test]
fn config_check_of_a_poller_speaks_of_no_slot() {
    let ddl = DEBEZIUM.replace("payload jsonb", "payload jsonb, is_sent bool not null");
    let (seen, toml) = seen(&ddl, "");
    let polled = seen
        .check(&toml)
        .option("--mode", "poll")
        .variable("WALRELAY_OUTBOX_PENDING", "not is_sent")
        .variable("WALRELAY_OUTBOX_MARK", "is_sent = true")
        .variable("WALRELAY_OUTBOX_ORDER_BY", "id");
    let (code, said, told) = ends(&polled);
    assert_eq!(code, Some(0), "{said}{told}");
    assert!(
        said.contains("the table, without publication and slot\n"),
        "{said}"
    );
    assert!(!said.contains("walrelay setup"), "{said}");
}

#[test]
fn config_check_refuses_invalid_sql_and_reads_its_columns() {
    let more = "[outbox]\ntable = 'TABLE'\npending = \"status = 'NEW'\"\nmark = \"status = 'SENT', \
                sent_at = now()\"\n";
    let (seen, toml) = seen(
        &format!(
            "{DEBEZIUM}; alter table outbox add status text default 'NEW', add sent_at timestamptz"
        ),
        "",
    );
    let toml = toml
        .replace("[outbox]\n", "")
        .replace(&format!("table = '{}'\n", seen.table), "")
        + &more.replace("TABLE", &seen.table);
    let (code, said, told) = ends(&seen.check(&toml));
    assert_eq!(code, Some(0), "{told}");
    assert!(
        said.contains("used         id, aggregatetype, aggregateid, payload, status, sent_at\n"),
        "{said}"
    );
    for (right, wrong, key) in [
        (
            "pending = \"status =",
            "pending = \"statuss =",
            "outbox.pending",
        ),
        ("mark = \"status =", "mark = \"statuss =", "outbox.mark"),
        (
            "mark = \"status = 'SENT', sent_at = now()\"",
            "mark = \"status = \"",
            "outbox.mark",
        ),
        (
            "pending = \"",
            "order_by = \"no_such\"\npending = \"",
            "outbox.order_by",
        ),
    ] {
        let (code, said, told) = ends(&seen.check(&toml.replace(right, wrong)));
        assert_eq!(code, Some(2), "{wrong}: {told}");
        assert!(
            told.contains(key) && said.contains("row          none"),
            "{said}{told}"
        );
    }
}

#[test]
fn config_check_refuses_an_unroutable_row_in_the_relays_words() {
    let (seen, toml) = seen(DEBEZIUM, "[state]\nstore = 'slot'\n");
    RelayCommand::new("setup").config_file(&toml).succeed();
    seen.sql.run(&format!(
        "insert into outbox values ('{ID}', null, 'o-1', 'Placed', '{{}}')"
    ));
    let (code, said, told) = ends(&seen.check(&toml));
    let problem = "column aggregatetype is NULL, and template \"outbox.event.{aggregatetype}\" \
                   needs it for the topic";
    assert_eq!(code, Some(20), "{told}");
    assert!(
        told.starts_with(&format!(
            "error: row \"{ID}\": {problem}\nfix: `run` stops at such a row. "
        )),
        "{told}"
    );
    assert!(
        said.contains(&format!(
            "row          \"{ID}\", the last in the table's file: cannot be routed\n"
        )),
        "{said}"
    );
    let mut relay = RelayCommand::new("run").config_file(&toml).start();
    assert_eq!(relay.wait_exit(ARRIVAL), Some(20), "{}", relay.log());
    assert!(relay.log().contains(problem), "{}", relay.log());
    RelayCommand::new("teardown")
        .config_file(&toml)
        .flag("--yes")
        .flag("--force")
        .succeed();
}

#[test]
fn config_check_shows_the_newest_or_the_selected_row() {
    let (seen, toml) = seen(
        &format!("{DEBEZIUM}; alter table outbox add created_at timestamptz"),
        "",
    );
    let other = ID.replace("001", "002");
    seen.sql.run(&format!(
        "insert into outbox values ('{other}', 'order', 'new', 'T', '{{\"n\": \"canary\"}}', \
         '2026-01-02'),
           ('{ID}', 'order', 'old', 'T', '{{}}', '2026-01-01')"
    ));
    let (code, said, told) = ends(&seen.check(&toml));
    assert_eq!(code, Some(0), "{told}");
    assert!(
        said.contains(&format!("\"{other}\", the newest by created_at, goes to\n")),
        "{said}"
    );
    assert!(
        said.contains("key        new\n")
            && said.contains("body       (15 bytes) {\"n\": \"canary\"}\n"),
        "{said}"
    );
    let (_, said, _) = ends(&seen.check(&toml).flag("--no-body"));
    assert!(
        said.contains("body       (15 bytes)\n") && !said.contains("canary"),
        "{said}"
    );

    let (code, said, told) = ends(&seen.check(&toml).option("--id", ID));
    assert_eq!(code, Some(0), "{told}");
    assert!(
        said.contains("the row with this id") && said.contains("key        old\n"),
        "{said}"
    );
    for (id, words) in [
        ("0a0b2b1e-7a64-4a51-8b64-51a6d6d3f009", "no row of"),
        ("'; drop table x", "this cannot be a value"),
    ] {
        let (code, _, told) = ends(&seen.check(&toml).option("--id", id));
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains(words), "{told}");
    }
    seen.sql.run("create table heir () inherits (outbox)");
    let (code, _, told) = ends(&seen.check(&toml));
    assert_eq!(code, Some(15), "{told}");
    assert!(
        told.contains("heir): neither stream nor scan sees their rows"),
        "{told}"
    );
}

#[test]
fn config_check_finds_the_newest_row_by_an_index() {
    let (seen, toml) = seen(
        &format!("{DEBEZIUM}; alter table outbox add created_at timestamptz"),
        "",
    );
    seen.sql.run(
        "create index on outbox (created_at);
         insert into outbox select gen_random_uuid(), 'order', n::text, 'T', '{}',
            now() + n * interval '1 s' from generate_series(1, 20000) n",
    );
    seen.sql.run("analyze outbox");
    let scans = "select seq_scan from pg_stat_user_tables where relid = 'outbox'::regclass";
    let before = seen.sql.statistic(scans);
    let (code, said, told) = ends(&seen.check(&toml));
    assert_eq!(code, Some(0), "{told}");
    assert!(said.contains("the newest by created_at"), "{said}");
    assert_eq!(seen.sql.statistic(scans), before, "the whole table is read");
}

#[test]
fn config_check_without_select_checks_the_rest() {
    let (seen, toml) = seen(DEBEZIUM, "");
    let role = format!("relay_{}", seen.world.name);
    seen.sql.run(&format!(
        "create role {role} login replication; insert into outbox values ('{ID}', 'a', 'b', 'c', \
         '{{}}')"
    ));
    let url = Postgres::shared().url_as(&role, &seen.world.name);
    let toml = toml.replace(&seen.world.database_url, &url);
    let (code, said, told) = ends(&seen.check(&toml));
    assert_eq!(code, Some(0), "{told}");
    assert!(
        said.contains("not read: the role has no SELECT on the table"),
        "{said}"
    );
    let (code, _, told) = ends(&seen.check(&toml).option("--id", ID));
    assert_eq!(code, Some(11), "{told}");
    seen.sql.run(&format!("drop role {role}"));
}

#[test]
fn config_check_offline_connects_to_nothing() {
    let (seen, toml) = seen(DEBEZIUM, "");
    let nowhere = toml.replace(
        &seen.world.database_url,
        "postgres://relay@localhost:1/shop",
    );
    let (code, said, told) = ends(&seen.check(&nowhere).flag("--offline"));
    assert_eq!((code, said.contains("[route]")), (Some(0), true), "{said}");
    assert!(
        told.contains("with --offline the database was not looked at")
            && !said.contains("--offline"),
        "{told}"
    );
    assert_eq!(ends(&seen.check(&nowhere)).0, Some(10));
    let unsaid = toml.replace("url =", "# url =");
    let (code, said, told) = ends(&seen.check(&unsaid));
    assert_eq!((code, said.contains("[route]")), (Some(0), true), "{told}");
    assert!(
        told.contains("no database is configured, so nothing was connected to"),
        "{told}"
    );
    assert_eq!(ends(&seen.check(&unsaid).flag("--json")).0, Some(2));
}

#[test]
fn a_file_in_the_working_directory_is_found_and_set_is_over_it() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("walrelay.toml"),
        "[slot]\nname = 'found'\nnmae = 'x'\n",
    )
    .unwrap();
    let chdir = format!("--chdir={}", folder.path().display());
    let check = RelayCommand::new("config")
        .flag("check")
        .flag("--offline")
        .under_env(&chdir);
    let (code, _, told) = ends(&check);
    assert!(
        code == Some(2) && told.contains("error: ./walrelay.toml:3: slot.nmae does not exist"),
        "{told}"
    );
    std::fs::write(
        folder.path().join("walrelay.toml"),
        "[slot]\nname = 'found'\n",
    )
    .unwrap();
    let (code, said, told) = ends(
        &check
            .flag("--set=kafka.brokers=b:9092")
            .flag("--set=route.topic=all"),
    );
    assert_eq!(code, Some(0), "{told}");
    for line in [
        "name = \"found\"  # ./walrelay.toml:2",
        "topic = \"all\"  # --set",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
}

#[test]
fn config_check_works_on_every_major() {
    for &major in Postgres::majors() {
        let postgres = Postgres::private(major, &[]);
        let seen = Seen::on(&postgres, "outbox", DEBEZIUM);
        let toml = seen.suggested();
        RelayCommand::new("setup").config_file(&toml).succeed();
        seen.sql.run(&format!(
            "insert into outbox values ('{ID}', 'order', 'o-1', 'Placed', '{{}}')"
        ));
        let (code, said, told) = ends(&seen.check(&toml));
        assert_eq!(code, Some(0), "Postgres {major}: {told}");
        assert!(
            said.contains("  key        o-1\n") && said.contains("header     type: Placed\n"),
            "{said}"
        );
    }
}

#[test]
fn config_check_shows_values_as_the_stream_has_them() {
    let columns = "truth bool, fixed char(5), net inet, due interval, at timestamptz, on_day date, \
                   ratio float8, bits bytea, many text[]";
    let headers: Vec<String> = columns
        .split(", ")
        .map(|column| column.split(' ').next().unwrap())
        .map(|name| format!("{name} = '{{{name}}}'\n"))
        .collect();
    let more = format!(
        "[route]\ntopic = 'TOPIC'\n[route.headers]\n{}",
        headers.concat()
    );
    let (seen, toml) = seen(
        &format!(
            "create table outbox (id int primary key, aggregateid text, payload json, {columns})"
        ),
        &more,
    );
    let toml = toml.replace("TOPIC", &seen.world.name);
    let name = &seen.world.name;
    for setting in [
        "bytea_output = 'escape'",
        "datestyle = 'German, DMY'",
        "timezone = 'Asia/Kolkata'",
        "extra_float_digits = -5",
        "intervalstyle = 'iso_8601'",
        "client_encoding = 'LATIN1'",
    ] {
        seen.sql
            .run(&format!("alter database {name} set {setting}"));
    }
    let insert = "insert into outbox values (1, 'grün', '{ \"b\":1,  \"a\":\"ü\" }', true, 'ab', \
         '10.0.0.1', '1 day 2 hours',
        '2026-03-04 05:06:07.5+01', '2026-03-04', 0.1::float8 / 3, '\\x00ff', array['a', null, 'b \
        c'])";
    let record = seen.relayed(&toml, insert);
    let header = |name: &str| record.header(name);
    assert_eq!(
        (
            header("truth").as_str(),
            header("fixed").as_str(),
            header("net").as_str()
        ),
        ("t", "ab   ", "10.0.0.1")
    );
    assert_eq!(
        (header("at").as_str(), header("bits").as_str()),
        ("2026-03-04 04:06:07.5+00", "\\x00ff")
    );
    assert_eq!(record.value_text(), "{ \"b\":1,  \"a\":\"ü\" }");
}
