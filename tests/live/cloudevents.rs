//! docs/how-to/map-columns.md: its configurations for CloudEvents, read with the official SDK for
//! Python.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

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

/// What the relay makes of [`DATA`] with a configuration.
fn relayed(config: &str) -> Vec<Record> {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    let sql = world.sql();
    sql.run("alter table outbox add column created_at timestamptz");
    world.command("setup").config_file(config).succeed();
    for (id, data) in IDS.iter().zip(DATA) {
        sql.run(&format!(
            "insert into outbox values ('{id}', '{}', 'k-1', 'OrderPlaced', '{data}', '2024-05-06 \
             07:08:09.5+02')",
            world.kind(0)
        ));
    }
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

/// What the SDK reads in the records: one object each, with the attributes and the data.
fn read_by_the_sdk(records: &[Record]) -> Vec<Value> {
    let text =
        |bytes: &Option<Vec<u8>>| String::from_utf8(bytes.clone().expect("bytes")).expect("UTF-8");
    let mut reader = Command::new("scripts/read-cloudevents")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("scripts/read-cloudevents");
    let mut stdin = reader.stdin.take().expect("its input");
    for record in records {
        let headers: serde_json::Map<_, _> = record
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), text(value).into()))
            .collect();
        let line =
            json!({ "headers": headers, "key": text(&record.key), "value": text(&record.value) });
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

#[test]
fn the_documented_configurations_make_cloudevents_that_the_official_sdk_reads() {
    let [structured, binary] = documented();
    for (config, mode) in [(structured, "structured"), (binary, "binary")] {
        let events = read_by_the_sdk(&relayed(&config));
        let expected: Vec<Value> = IDS
            .iter()
            .zip(DATA)
            .map(|(id, data)| {
                json!({
                    "mode": mode,
                    "specversion": "1.0",
                    "id": id,
                    "source": "/shop/orders",
                    "type": "com.example.OrderPlaced",
                    "time": "2024-05-06T05:08:09.500000+00:00",
                    "datacontenttype": "application/json",
                    "partitionkey": "k-1",
                    "data": serde_json::from_str::<Value>(data).expect(data),
                })
            })
            .collect();
        assert_eq!(events, expected, "{mode} mode");
    }
}
