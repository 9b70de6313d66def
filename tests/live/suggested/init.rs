//! docs/reference/configuration.md: `walrelay config init`: the five tables of `examples/`, and
//! shapes the field has beside them.

use serde_json::json;

use super::Seen;
use crate::live::rabbitmq::client::{Client, Queue};
use crate::support::relay::RelayCommand;
use crate::support::servers::{Nats, Postgres, Rabbitmq};
use crate::support::topic::Record;
use crate::support::wait::eventually;
use crate::support::world::ARRIVAL;

/// Topic, key and headers that were asked for, of one row that is relayed with the file as it was
/// suggested.
#[track_caller]
fn served(name: &str, ddl: &str, insert: &str) -> (String, Record) {
    let seen = Seen::new(name, ddl);
    let toml = seen.suggested();
    let record = seen.relayed(&toml, &insert.replace("WORLD", &seen.world.name));
    (toml, record)
}

#[track_caller]
fn assert_lines(toml: &str, lines: &[&str]) {
    for line in lines {
        assert!(
            toml.lines().any(|found| found == *line),
            "no {line} in\n{toml}"
        );
    }
}

#[test]
fn config_init_serves_the_tables_of_the_examples() {
    let (toml, record) = served(
        "email_outbox",
        include_str!("../../../examples/email-outbox/schema.sql"),
        "insert into memos (id, department_code, title, memo_number_prefix)
           values ('0a0b2b1e-7a64-4a51-8b64-51a6d6d3f001', 'D', 'T', 'P');
         insert into email_outbox (memo_id, event_type, payload, recipient_email, notification_type)
           values ('0a0b2b1e-7a64-4a51-8b64-51a6d6d3f001', 'MEMO', '{\"a\": 1}', 'a@b.c', 'N')",
    );
    assert_lines(
        &toml,
        &[
            "id = \"id\"",
            "payload = \"payload\"",
            "key = \"{memo_id}\"",
            "timestamp = \"meta_created_at\"",
        ],
    );
    assert_eq!(record.key_text(), "0a0b2b1e-7a64-4a51-8b64-51a6d6d3f001");
    assert_eq!(
        (
            record.value_text().as_str(),
            record.header("event_type").as_str()
        ),
        ("{\"a\": 1}", "MEMO")
    );

    let (toml, record) = served(
        "outbox_events",
        include_str!("../../../examples/outbox-events/schema.sql"),
        "insert into outbox_events (id, aggregate_id, aggregate_type, event_type, event_data, \
         metadata, status, version, created_at)
           values (gen_random_uuid(), 'user-1', 'WORLD', 'user.created', '{}', '{\"source\": \
               \"s\"}', 'pending', 1, now())",
    );
    assert_lines(
        &toml,
        &[
            "topic = \"outbox.event.{aggregate_type|topic}\"",
            "payload = \"event_data\"",
        ],
    );
    assert_eq!(
        (
            record.key_text().as_str(),
            record.header("metadata").as_str()
        ),
        ("user-1", "{\"source\": \"s\"}")
    );

    let (toml, record) = served(
        "outbox",
        include_str!("../../../examples/outbox-published/schema.sql"),
        "insert into outbox (id, aggregate_id, event_type, event_data, metadata, created_at)
           values (gen_random_uuid(), 'p-1', 'ProductCreated', '{}', '{}', now())",
    );
    assert_lines(
        &toml,
        &["key = \"{aggregate_id}\"", "# timestamp = \"created_at\""],
    );
    assert_eq!(
        (
            record.key_text().as_str(),
            record.header("event_type").as_str()
        ),
        ("p-1", "ProductCreated")
    );

    let (toml, record) = served(
        "outbox",
        include_str!("../../../examples/wallet-outbox/schema.sql"),
        "insert into outbox (event_type, payload, correlation_id, created_at) values \
         ('walletCredited', 'text', 'c-1', now())",
    );
    assert_lines(&toml, &["id = \"id\"", "key = \"{correlation_id}\""]);
    assert_eq!(
        (record.key_text().as_str(), record.value_text().as_str()),
        ("c-1", "text")
    );
    assert_eq!(
        (
            record.header("id").as_str(),
            record.header("correlation_id").as_str()
        ),
        ("1", "c-1")
    );

    let (toml, record) = served(
        "billing_events",
        include_str!("../../../examples/billing-events/schema.sql"),
        "insert into billing_events (id, subject, tenant_id, resource_id, payload)
           values ('01J', 'WORLD.invoice/paid', 't-1', 'i-1', '{ \"a\":1 }')",
    );
    assert_lines(
        &toml,
        &[
            "topic = \"{subject|topic}\"",
            "key = \"{resource_id}\"",
            "timestamp = \"created_at\"",
        ],
    );
    assert_eq!(
        (
            record.value_text().as_str(),
            record.header("tenant_id").as_str()
        ),
        ("{ \"a\":1 }", "t-1")
    );
}

const OF_A_BUS: &str = "create table outbox (id uuid primary key, aggregatetype text not null,
    aggregateid text not null, type text, payload jsonb)";

#[test]
fn config_init_writes_a_file_for_each_bus() {
    let seen = Seen::new("outbox", OF_A_BUS);
    for (kind, address) in [
        ("nats", "servers = \"localhost:4222\""),
        ("rabbitmq", "servers = \"localhost:5672\""),
        ("rabbitmq", "exchange = \"events\""),
        ("webhook", "url = \"http://localhost:8080/{topic}\""),
        ("stdout", "kind = \"stdout\""),
    ] {
        let toml = seen.init().option("--sink", kind).succeed();
        assert_lines(&toml, &[&format!("kind = \"{kind}\""), address]);
        assert!(!toml.contains("afka"), "{toml}");
        assert_eq!(toml.contains("SET THIS"), kind != "stdout", "{toml}");
        seen.check(&toml).succeed();
    }
    let help = RelayCommand::new("config").flag("init").flag("--help");
    let help = help.succeed();
    assert!(
        help.contains("- rabbitmq:") && !help.contains("- smtp:"),
        "{help}"
    );
    assert!(help.contains("docs/reference/smtp.md"), "{help}");
    let refused = seen.init().option("--set", "sink.kind=smtp").output();
    assert_eq!(refused.status.code(), Some(2));
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(told.contains("docs/reference/smtp.md"), "{told}");
}

/// The file as it is suggested, but for the server's address, relays an event to what the page of
/// the bus has created.
#[track_caller]
fn relayed_by(seen: &Seen, toml: &str, count: impl FnMut() -> i64) {
    RelayCommand::new("setup").config_file(toml).succeed();
    let id = "0a0b2b1e-7a64-4a51-8b64-51a6d6d3f001";
    seen.sql.run(&format!(
        "insert into outbox values ('{id}', 'order', 'a', 'Placed', '1')"
    ));
    let mut relay = RelayCommand::new("run").config_file(toml).start();
    eventually("the event", ARRIVAL, count, |count| *count == 1);
    assert_eq!(relay.terminate(ARRIVAL), Some(0), "{}", relay.log());
    RelayCommand::new("teardown")
        .config_file(toml)
        .flag("--yes")
        .flag("--force")
        .succeed();
}

#[test]
fn the_file_of_config_init_works_with_nats() {
    let Some(nats) = Nats::start() else { return };
    let seen = Seen::new("outbox", OF_A_BUS);
    nats.add_stream("EVENTS", &["outbox.event.>"], json!({}));
    let toml = seen.init().option("--sink", "nats").succeed();
    let toml = toml.replace("localhost:4222", &nats.address);
    relayed_by(&seen, &toml, || nats.count("EVENTS"));
}

/// docs/reference/rabbitmq.md
#[test]
fn the_file_of_config_init_works_with_rabbitmq() {
    let Some(rabbitmq) = Rabbitmq::shared() else {
        return;
    };
    let seen = Seen::new("outbox", OF_A_BUS);
    let vhost = seen.world.name.as_str();
    rabbitmq.add_vhost(vhost);
    let mut client = Client::new(&rabbitmq.address, vhost);
    client.declare_exchange("events", false);
    client.declare_queue("invoices", Queue::Quorum);
    client.bind("invoices", "events", "outbox.event.#");
    let toml = seen.init().option("--sink", "rabbitmq").succeed();
    let toml = toml.replace("localhost:5672", &rabbitmq.address);
    let toml = format!("{toml}vhost = \"{vhost}\"\n");
    relayed_by(&seen, &toml, || client.waiting("invoices").into());
}

#[test]
fn config_init_serves_quoted_names_in_camel_case() {
    let seen = Seen::new(
        "\"Out Box\"",
        "create table \"Out Box\" (\"eventId\" uuid primary key, \"aggregateType\" text not null,
           \"aggregateId\" uuid not null, \"eventType\" text not null, \"eventData\" jsonb not null,
           \"occurredOnUtc\" timestamp not null, \"traceParent\" text, \"say \"\"hi\"\"\" text)",
    );
    let toml = seen.suggested();
    assert_lines(
        &toml,
        &[
            "timestamp = \"occurredOnUtc\"",
            "\"traceparent\" = \"{traceParent}\"",
        ],
    );
    let insert = format!(
        "insert into \"Out Box\" values (gen_random_uuid(), '{}::Order', gen_random_uuid(), \
         'Placed', '[]',
           '2026-03-04 05:06:07.5', '00-ab-cd-01')",
        seen.world.name
    );
    let record = seen.relayed(&toml, &insert);
    assert_eq!(
        (
            record.value_text().as_str(),
            record.header("traceparent").as_str()
        ),
        ("[]", "00-ab-cd-01")
    );
}

#[test]
fn config_init_serves_a_bytea_payload_and_a_numeric_id() {
    let (toml, record) = served(
        "events",
        "create table events (seq bigint generated always as identity primary key, stream_id text \
         not null,
           type text not null, body bytea not null, schema_version int not null default 3)",
        "insert into events (stream_id, type, body) values ('s-1', 'Moved', '\\x00ff0a')",
    );
    assert_lines(
        &toml,
        &[
            "id = \"seq\"",
            "key = \"{stream_id}\"",
            "payload = \"body\"",
        ],
    );
    assert_eq!(record.value.as_deref(), Some(&b"\x00\xff\n"[..]));
    assert_eq!(record.header("schema_version"), "3");
}

#[test]
fn config_init_serves_enums_and_domains_over_domains() {
    let (toml, record) = served(
        "outbox",
        "create type kind as enum ('Order', 'Customer of ours'); create domain reference as text \
         check (value <> '');
         create domain nested as reference; create domain document as jsonb not null;
         create table outbox (id reference primary key, entity_type kind not null, entity_id \
         nested not null,
           event_name varchar(40) not null, document document, partition smallint, recorded_at \
           timestamptz default now())",
        "insert into outbox values ('e-1', 'Customer of ours', 'c-1', 'Renamed', '{\"b\": 2}', 1)",
    );
    assert_lines(
        &toml,
        &[
            "topic = \"outbox.event.{entity_type|topic}\"",
            "key = \"{entity_id}\"",
            "partition = \"partition\"",
        ],
    );
    assert_eq!(
        (record.key_text().as_str(), record.value_text().as_str()),
        ("c-1", "{\"b\": 2}")
    );
    assert_eq!((record.partition, record.header("id").as_str()), (1, "e-1"));
}

#[test]
fn config_init_serves_a_partitioned_table() {
    let (toml, record) = served(
        "outbox",
        "create table outbox (id uuid, created_at timestamptz not null, aggregatetype text not null,
           aggregateid text not null, type text not null, payload jsonb, primary key (id, \
           created_at))
           partition by range (created_at);
         create table outbox_old partition of outbox for values from (minvalue) to ('2026-01-01');
         create table outbox_new partition of outbox for values from ('2026-01-01') to (maxvalue)",
        "insert into outbox values (gen_random_uuid(), '2026-05-06', 'WORLD', 'a-1', 'T', '{}')",
    );
    assert!(
        toml.contains("consumers drop duplicates by it: check it."),
        "{toml}"
    );
    assert_lines(&toml, &["id = \"id\"", "timestamp = \"created_at\""]);
    assert_eq!(
        (record.key_text().as_str(), record.header("type").as_str()),
        ("a-1", "T")
    );
}

#[test]
fn config_init_warns_that_a_table_without_an_aggregate_has_no_order() {
    let (toml, record) = served(
        "jobs_outbox",
        "create table jobs_outbox (id bigserial primary key, payload text, sum int generated \
         always as (1 + 1) stored)",
        "insert into jobs_outbox (payload) values ('x')",
    );
    assert_lines(&toml, &["key = \"\""]);
    assert!(
        toml.contains("NO ORDER") && toml.contains("sum (generated"),
        "{toml}"
    );
    assert_eq!(
        (record.key, record.value.as_deref()),
        (None, Some(&b"x"[..]))
    );
}

#[test]
fn config_init_foretells_what_setup_refuses() {
    let ddl = "create unlogged table outbox (id uuid primary key, aggregate_id bytea not null, \
               payload xml, xid int,
                 walrelay_xid text)";
    let seen = Seen::new("outbox", ddl);
    let output = seen.init().output();
    let toml = String::from_utf8(output.stdout).unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{told}");
    assert_lines(
        &toml,
        &["key = \"{aggregate_id}\"", "payload = \"payload\""],
    );
    assert!(told.contains("by its name, as the text \\x…"), "{told}");
    assert!(
        !told.contains("setup --config walrelay.toml --add-xid-column"),
        "{told}"
    );
    let setup = |flags: &[&str]| {
        let command = RelayCommand::new("setup")
            .config_file(&toml)
            .option("--database-url", &seen.world.database_url);
        let output = flags
            .iter()
            .fold(command, |command, flag| command.flag(flag))
            .output();
        let refusal = String::from_utf8(output.stderr).unwrap();
        let error = refusal
            .lines()
            .find_map(|line| line.strip_prefix("error: "))
            .unwrap_or_default()
            .to_owned();
        assert!(
            output.status.code() == Some(15) && told.contains(&error),
            "{refusal}\n{told}"
        );
        assert!(
            toml.replace("\n# ", " ").contains(&error),
            "{refusal}\n{toml}"
        );
    };
    setup(&[]);
    seen.sql.run("alter table outbox set logged");
    setup(&["--add-xid-column"]);
}

#[test]
fn config_init_lists_the_columns_and_overwrites_no_file() {
    let seen = Seen::new(
        "outbox",
        "create table outbox (id uuid primary key, payload jsonb, status text)",
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("walrelay.toml").display().to_string();
    let output = seen.init().option("--output", &path).output();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{told}"
    );
    assert!(
        told.contains("status   text   not sent  what a dispatcher notes down"),
        "{told}"
    );
    assert!(
        told.contains(&format!("walrelay config check --config {path}")),
        "{told}"
    );
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(
        written.contains("payload = \"payload\"") && written.contains("SET THIS"),
        "{written}"
    );

    let refused = seen.init().option("--output", &path).output();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(
        String::from_utf8(refused.stderr)
            .unwrap()
            .contains("exists")
    );
    seen.init()
        .option("--output", &path)
        .flag("--force")
        .succeed();

    let json: serde_json::Value =
        serde_json::from_str(&seen.init().flag("--json").succeed()).unwrap();
    assert_eq!(json["toml"], written.as_str());
    assert_eq!(json["columns"][2]["column"], "status");
    assert_eq!(json["columns"][0]["used_for"][0], "event id");
}

#[test]
fn config_init_refuses_an_unsuitable_table_with_its_columns() {
    let seen = Seen::new(
        "outbox",
        "create table outbox (id uuid primary key, name text, n int);
         create view shown as select * from outbox;
         create table parts (id int primary key, payload text) partition by range (id);
         create table part_one partition of parts for values from (0) to (10)",
    );
    let said = |table: &str, code: i32, words: &str| {
        let output = seen.init().option("--table", table).output();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), output.stdout.as_slice()),
            (Some(code), &b""[..]),
            "{table}: {told}"
        );
        assert!(told.contains(words), "{table}: {told}");
    };
    said(
        &seen.table,
        15,
        "looks like the payload: json, jsonb, xml, bytea or text that is called so; it has id \
         (uuid), name (text), n",
    );
    said(
        "outbocks",
        15,
        &format!(
            "there is no table public.outbocks in database {}",
            seen.world.name
        ),
    );
    said("outbocks", 15, &seen.table);
    said(&format!("{}.shown", seen.world.name), 15, "is not a table");
    said(
        &format!("{}.part_one", seen.world.name),
        15,
        "is a partition of",
    );
    said("a.b.c", 2, "is not a table name");

    let init = RelayCommand::new("config")
        .flag("init")
        .option("--database-url", &seen.world.database_url);
    let unnamed = init.output();
    let told = String::from_utf8(unnamed.stderr).unwrap();
    assert_eq!(unnamed.status.code(), Some(2), "{told}");
    assert!(
        told.contains("no table is named") && told.contains(&seen.table),
        "{told}"
    );
    let elsewhere = Postgres::shared().url("not_a_database");
    let refused = init
        .option("--table", "outbox")
        .option("--database-url", &elsewhere)
        .output();
    assert_eq!(refused.status.code(), Some(11), "{refused:?}");
}
