//! docs/how-to/map-columns.md: its configurations for CloudEvents, of Kafka and of webhooks, read
//! with the official SDK for Python.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

#[cfg(feature = "webhook")]
use super::webhook::{OK, Post, Receiver};
use crate::support::servers::{Kafka, Postgres};
use crate::support::topic::Record;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

const MAPPING: &str = include_str!("../../docs/how-to/map-columns.md");
const IDS: [&str; 3] = [
    "0a4bc6a5-7a94-4d3b-8d5a-3a1f4a6b0001",
    "0a4bc6a5-7a94-4d3b-8d5a-3a1f4a6b0002",
    "0a4bc6a5-7a94-4d3b-8d5a-3a1f4a6b0003",
];

/// Payloads as they are inserted.
const DATA: [&str; 3] = [
    r#"{"größe": 12.50, "nested": {"a": null}}"#,
    r#"[1, "zwei", true]"#,
    r#""text""#,
];

/// The two configurations, structured and binary.
fn documented() -> [String; 2] {
    let (_, section) = MAPPING.split_once("## CloudEvents").expect("a section");
    let mut blocks = section
        .split("```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next());
    [blocks.next(), blocks.next()].map(|block| block.expect("a configuration").to_owned())
}

/// A world with the column of times, and a slot for this configuration.
fn world(brokers: &str, config: &str) -> World {
    let world = World::bare(Postgres::shared(), brokers);
    let sql = world.sql();
    sql.run("alter table outbox add column created_at timestamptz");
    world.command("setup").config_file(config).succeed();
    world
}

/// Commits [`DATA`] for this aggregate.
fn insert(world: &World, aggregate: &str) {
    for (id, data) in IDS.iter().zip(DATA) {
        world.sql().run(&format!(
            "insert into outbox values ('{id}', '{}', '{aggregate}', 'OrderPlaced', '{data}', \
             '2024-05-06 07:08:09.5+02')",
            world.kind(0)
        ));
    }
}

/// What the relay makes of [`DATA`] with a configuration.
fn relayed(config: &str) -> Vec<Record> {
    let world = world(Kafka::shared().brokers(), config);
    insert(&world, "k-1");
    let mut relay = world.run().config_file(config).start();
    relay.wait_ready();
    eventually(
        "the rows arrive",
        ARRIVAL,
        || world.delivered(),
        |count| *count == DATA.len() as i64,
    );
    world.records(0)
}

/// A record as the reader takes it.
fn of_record(record: &Record) -> Value {
    let text =
        |bytes: &Option<Vec<u8>>| String::from_utf8(bytes.clone().expect("bytes")).expect("UTF-8");
    let headers: serde_json::Map<_, _> = record
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), text(value).into()))
        .collect();
    json!({ "headers": headers, "key": text(&record.key), "value": text(&record.value) })
}

/// What the SDK reads in these lines: one object each, with the attributes and the data.
fn read_by_the_sdk(lines: &[Value]) -> Vec<Value> {
    let mut reader = Command::new("scripts/read-cloudevents")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("scripts/read-cloudevents");
    let mut stdin = reader.stdin.take().expect("its input");
    for line in lines {
        writeln!(stdin, "{line}").expect("it reads");
    }
    drop(stdin);
    let output = reader.wait_with_output().expect("its end");
    assert!(
        output.status.success(),
        "the SDK refuses what was relayed, see above"
    );
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    lines
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

/// The events of [`DATA`], as the SDK is to read them.
fn expected(mode: &str, more: &Value) -> Vec<Value> {
    let event = |(id, data): (&&str, &str)| {
        let mut event = json!({
            "mode": mode,
            "specversion": "1.0",
            "id": id,
            "source": "/shop/orders",
            "type": "com.example.OrderPlaced",
            "time": "2024-05-06T05:08:09.500000+00:00",
            "datacontenttype": "application/json",
            "data": serde_json::from_str::<Value>(data).expect(data),
        });
        let attributes = event.as_object_mut().expect("an object");
        attributes.extend(more.as_object().cloned().unwrap_or_default());
        event
    };
    IDS.iter().zip(DATA).map(event).collect()
}

#[test]
fn the_documented_configurations_make_cloudevents_that_the_official_sdk_reads() {
    let [structured, binary] = documented();
    for (config, mode) in [(structured, "structured"), (binary, "binary")] {
        let lines: Vec<Value> = relayed(&config).iter().map(of_record).collect();
        let expected = expected(mode, &json!({"partitionkey": "k-1"}));
        assert_eq!(read_by_the_sdk(&lines), expected, "{mode} mode");
    }
}

/// <https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md>
#[cfg(feature = "webhook")]
#[test]
fn webhooks_carry_cloudevents_in_both_modes_of_the_binding_for_http() {
    /// Blank, quotation mark, percent sign and non-ASCII text are to be encoded.
    const SUBJECT: &str = "k 1/\"50%\" gr\u{f6}\u{df}e \u{20ac}";
    const ENCODED: &str = "k%201/%2250%25%22%20gr%C3%B6%C3%9Fe%20%E2%82%AC";
    let [structured, binary] = documented();
    let structured = structured
        .replace("+json\"", "+json; charset=UTF-8\"")
        .replace("data = ", "subject = \"{aggregateid}\"\ndata = ");
    let binary = binary.replace("ce_", "ce-") + "ce-subject = \"{aggregateid}\"\n";
    for (config, mode) in [(structured, "structured"), (binary, "binary")] {
        let (receiver, port) = Receiver::listen(|_| OK);
        let world = world("", &config);
        insert(&world, SUBJECT);
        let run = world.command("run").config_file(&config);
        let mut relay = run
            .option("--sink", "webhook")
            .variable("WALRELAY_WEBHOOK_URL", &format!("http://127.0.0.1:{port}/"))
            .start();
        relay.wait_ready();
        let kept = || receiver.kept().len();
        eventually("the rows arrive", ARRIVAL, kept, |kept| *kept == DATA.len());
        let posts = receiver.kept();
        for post in &posts {
            let named = |start: &str| post.headers.keys().any(|name| name.starts_with(start));
            let content_type = post.headers["content-type"].as_str();
            if mode == "structured" {
                assert_eq!(content_type, "application/cloudevents+json; charset=UTF-8");
                assert!(!named("ce-"), "{post:?}");
                continue;
            }
            assert_eq!(content_type, "application/json");
            assert_eq!(post.headers["ce-subject"], ENCODED);
            assert!(!named("ce-datacontenttype") && !named("ce_"), "{post:?}");
            let is_printable = |value: &String| value.bytes().all(|byte| byte.is_ascii_graphic());
            let attributes = post.headers.iter();
            let mut attributes = attributes.filter(|(name, _)| name.starts_with("ce-"));
            assert!(attributes.all(|(_, value)| is_printable(value)), "{post:?}");
        }
        let line = |post: &Post| {
            let body = String::from_utf8(post.body.clone()).expect("UTF-8");
            json!({"headers": post.headers, "value": body})
        };
        let lines: Vec<Value> = posts.iter().map(line).collect();
        let expected = expected(mode, &json!({"subject": SUBJECT}));
        assert_eq!(read_by_the_sdk(&lines), expected, "{mode} mode");
    }
}
