//! What Debezium's Outbox Event Router put on the wire, byte for byte, against what becomes of the same rows with the
//! same configuration, imported.
//!
//! `tests/debezium` has it all as files: `connectors`, as given to Debezium; `rows`, as Postgres printed them; `records`,
//! as they were in Kafka's log, with 8 partitions to a topic; and `differences.json`, each of which is a row of the table in
//! `docs/moving-from-debezium.md`.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value as Json;

use crate::config::Config;
use crate::config::file::ConfigFile;
use crate::config::layers::{Environment, Flags, Settings};
use crate::event::tests::Lab;
use crate::import::import;
use crate::route::{Record, Router};
use crate::sink::{hash, partition};

const PARTITIONS: i32 = 8;

/// A column: name, type and its modifier.
type Column = (String, u32, i32);

#[derive(Deserialize)]
struct Rows {
    columns: Vec<Column>,
    rows: Vec<Vec<Option<String>>>,
}

/// Bytes that are no text are `{"hex": "…"}`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Captured {
    topic: String,
    /// Without a key Debezium's producer chooses for itself.
    partition: Option<i32>,
    /// `None` is the time of the processing.
    timestamp: Option<i64>,
    key: Json,
    value: Json,
    headers: Vec<(String, Json)>,
}

/// A difference that stays, and why.
#[derive(Debug, Deserialize)]
struct Difference {
    case: String,
    /// `record` (one has it and the other has not), `topic`, `partition`, `timestamp`, `key`, `value`, `headers` (their
    /// names), or `header NAME`.
    part: String,
    /// The start of a row in the documentation's table.
    because: String,
    /// What we have instead, by the end of the row's id.
    ours: BTreeMap<String, Json>,
}

fn read(path: &str) -> String {
    let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn cases() -> Vec<String> {
    let folder = format!("{}/tests/debezium/connectors", env!("CARGO_MANIFEST_DIR"));
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().to_string_lossy().into_owned();
    let mut names: Vec<_> = std::fs::read_dir(folder).unwrap().map(name).collect();
    names.sort();
    names.iter().map(|name| name.trim_end_matches(".properties").to_owned()).collect()
}

/// What `walrelay run` makes of the connector's configuration.
fn configured(case: &str, connector: &str) -> Config {
    let imported = import(case, connector).unwrap();
    let file = ConfigFile::new("walrelay.toml", &imported.toml);
    let mut flags = Flags::new();
    flags.insert("kafka.brokers", "kafka:9092".to_owned());
    Settings::new(&flags, &Environment::new(), Some(&file)).unwrap().config(false).unwrap()
}

fn json(bytes: Option<&[u8]>) -> Json {
    match bytes.map(std::str::from_utf8) {
        None => Json::Null,
        Some(Ok(text)) => Json::from(text),
        Some(Err(_)) => {
            let hexadecimal: String = bytes.unwrap_or_default().iter().map(|byte| format!("{byte:02x}")).collect();
            serde_json::json!({ "hex": hexadecimal })
        }
    }
}

fn ours(record: &Record<'_>) -> Captured {
    Captured {
        topic: record.topic.to_owned(),
        partition: record.partition.or_else(|| record.key.map(|key| partition(hash(key), PARTITIONS))),
        timestamp: record.timestamp_ms,
        key: json(record.key),
        value: json(record.value),
        headers: record.headers.iter().map(|(name, value)| ((*name).to_owned(), json(*value))).collect(),
    }
}

/// The event's id, in whatever form the header has.
fn id_of(record: &Captured) -> String {
    let header = record.headers.iter().find(|(name, _)| name == "id").unwrap().1.as_str().unwrap();
    match serde_json::from_str::<Json>(header) {
        Ok(Json::String(id)) => id,
        Ok(Json::Object(with_schema)) => with_schema["payload"].as_str().unwrap().to_owned(),
        _ => header.to_owned(),
    }
}

/// What Debezium says of itself is in no record of ours, whatever the case.
fn is_of_debezium(name: &str) -> bool {
    name.starts_with("__debezium.context.")
}

/// The parts in which the two differ, each with what we have.
fn differing(captured: &Captured, ours: &Captured) -> Vec<(String, Json)> {
    let headers: Vec<_> = captured.headers.iter().filter(|(name, _)| !is_of_debezium(name)).collect();
    let names = |headers: &[&(String, Json)]| headers.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let our_headers: Vec<_> = ours.headers.iter().collect();
    let mut parts = vec![
        ("topic".to_owned(), captured.topic == ours.topic, Json::from(ours.topic.as_str())),
        // Of a record without a key it means nothing.
        (
            "partition".to_owned(),
            captured.key.is_null() || captured.partition == ours.partition,
            Json::from(ours.partition),
        ),
        ("timestamp".to_owned(), captured.timestamp == ours.timestamp, Json::from(ours.timestamp)),
        ("key".to_owned(), captured.key == ours.key, ours.key.clone()),
        ("value".to_owned(), captured.value == ours.value, ours.value.clone()),
        ("headers".to_owned(), names(&headers) == names(&our_headers), Json::from(names(&our_headers))),
    ];
    for ((name, captured), (_, ours)) in headers.into_iter().zip(our_headers) {
        parts.push((format!("header {name}"), captured == ours, ours.clone()));
    }
    parts.into_iter().filter(|(_, same, _)| !same).map(|(part, _, ours)| (part, ours)).collect()
}

/// Every difference of a case: part, the row's id, and what we have.
fn differences(case: &str) -> Vec<(String, String, Json)> {
    let connector = read(&format!("tests/debezium/connectors/{case}.properties"));
    let config = configured(case, &connector);
    let rows: Rows = serde_json::from_str(&read(&format!(
        "tests/debezium/rows/{}.json",
        config.outboxes[0].source.table().unwrap().table()
    )))
    .unwrap();
    let lines = read(&format!("tests/debezium/records/{case}.jsonl"));
    let captured = lines.lines().map(|line| serde_json::from_str::<Captured>(line).unwrap());
    let mut captured: BTreeMap<String, Captured> = captured.map(|record| (id_of(&record), record)).collect();
    let names: Vec<&str> = rows.columns.iter().map(|(name, ..)| name.as_str()).collect();
    let types: Vec<_> = rows.columns.iter().map(|(_, oid, modifier)| (*oid, *modifier)).collect();
    let mut router = Router::new(&config.outboxes[0]).unwrap();
    let mut found = Vec::new();
    for row in &rows.rows {
        let values: Vec<_> = row.iter().map(Option::as_deref).collect();
        let lab = Lab::of_modified(&types, &config.outboxes[0], &names, &values);
        let event = lab.event();
        let id = values[0].unwrap();
        let routed = router.route(&event).map(|routed| routed.with_record(ours));
        match (captured.remove(id), routed) {
            (Some(captured), Ok(ours)) => {
                let parts = differing(&captured, &ours).into_iter();
                found.extend(parts.map(|(part, ours)| (part, id.to_owned(), ours)));
            }
            (None, Ok(_)) => found.push(("record".to_owned(), id.to_owned(), Json::from("sent"))),
            // Both end here.
            (None, Err(_)) if !connector.contains("errors.tolerance=all") => break,
            (_, Err(_)) => found.push(("record".to_owned(), id.to_owned(), Json::from("stops"))),
        }
    }
    found.extend(captured.into_keys().map(|id| ("record".to_owned(), id, Json::from("none"))));
    found
}

/// How many cases there were when the last was captured: nothing is compared where there is nothing.
const CASES_MIN: usize = 38;

#[test]
fn every_record_is_debeziums_or_differs_as_documented() {
    let listed: Vec<Difference> = serde_json::from_str(&read("tests/debezium/differences.json")).unwrap();
    let cases = cases();
    assert!(cases.len() >= CASES_MIN, "{cases:?}");
    let mut found: BTreeMap<(String, String), BTreeMap<String, Json>> = BTreeMap::new();
    for case in &cases {
        for (part, id, ours) in differences(case) {
            let end = id.get(id.len().saturating_sub(2)..).unwrap().to_owned();
            found.entry((case.clone(), part)).or_default().insert(end, ours);
        }
    }
    let documented = read("docs/moving-from-debezium.md");
    let mut expected = BTreeMap::new();
    for difference in listed {
        let row = format!("\n| {} ", difference.because);
        assert!(
            documented.contains(&row),
            "{}: no row of the table begins with {:?}",
            difference.case,
            difference.because
        );
        let place = (difference.case, difference.part);
        assert!(expected.insert(place.clone(), difference.ours).is_none(), "{place:?} is there twice");
    }
    let places: BTreeSet<_> = found.keys().chain(expected.keys()).cloned().collect();
    for place in places {
        let (found, expected) = (found.get(&place), expected.get(&place));
        let shown = |found: Option<&BTreeMap<String, Json>>| serde_json::to_string(&found).unwrap();
        assert_eq!(found, expected, "{place:?}: found\n{}\nand expected\n{}", shown(found), shown(expected));
    }
}
