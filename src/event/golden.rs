//! What real servers sent, message by message: `tests/golden/scenario.sql` says what was done to them.
//!
//! A line of a capture is the LSN and the bytes in hexadecimal. What each message came to is in the snapshot beside it.

use std::fmt::Write;

use super::replay::outbox;
use super::*;
use crate::config::{EventSource, OutboxConfig};
use crate::decode::{self, Message, Value};
use crate::position::Position;

const CAPTURES: [(&str, &[u8]); 5] = [
    ("pgoutput-14", include_bytes!("../../tests/golden/pgoutput-14.txt")),
    ("pgoutput-15", include_bytes!("../../tests/golden/pgoutput-15.txt")),
    ("pgoutput-16", include_bytes!("../../tests/golden/pgoutput-16.txt")),
    ("pgoutput-17", include_bytes!("../../tests/golden/pgoutput-17.txt")),
    ("pgoutput-18", include_bytes!("../../tests/golden/pgoutput-18.txt")),
];

fn messages(capture: &[u8]) -> Vec<(Lsn, Vec<u8>)> {
    let lines = std::str::from_utf8(capture).unwrap().lines();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let message = |line: &str| {
        let (lsn, hex) = line.split_once(' ').unwrap();
        assert_eq!(hex.len() % 2, 0, "a capture with half a byte");
        (lsn.parse().unwrap(), hex.as_bytes().chunks(2).map(byte).collect())
    };
    lines.map(message).collect()
}

/// A message in one line; values of a row as far as they are short.
fn line(message: &Message<'_>) -> String {
    match message {
        Message::Insert(insert) => {
            let value = |value| match value {
                Value::Null => "NULL".to_owned(),
                Value::Unchanged => "unchanged".to_owned(),
                Value::Text(text) => Shown::of(text).to_string(),
                Value::Binary(bytes) => format!("{bytes:?}"),
            };
            let values: Vec<_> = insert.tuple.values().map(value).collect();
            format!("Insert into {}: {}", insert.relation, values.join(", "))
        }
        Message::Relation(relation) => {
            let columns = relation.columns.iter().map(|column| format!("{} {}", column.name, column.type_oid));
            let columns: Vec<_> = columns.collect();
            format!("Relation {} {}.{}: {}", relation.oid, relation.schema, relation.table, columns.join(", "))
        }
        Message::Begin(_) | Message::Commit(_) | Message::Logical(_) | Message::Other(_) => format!("{message:?}"),
    }
}

/// The steps of the table in `outbox`, up to the first error.
fn steps<'a>(outbox: &OutboxConfig, messages: &'a [(Lsn, Vec<u8>)]) -> (Assembler, Vec<Result<Step<'a>, EventError>>) {
    let mut assembler = Assembler::new(std::slice::from_ref(outbox), Position::default());
    let mut steps = Vec::new();
    for (wal_start, bytes) in messages {
        let step = assembler.feed(bytes, *wal_start);
        let stop = step.is_err();
        steps.push(step);
        if stop {
            break;
        }
    }
    (assembler, steps)
}

/// Aggregate type, id, payload.
fn events<'a>(steps: &'a [Result<Step<'_>, EventError>]) -> Vec<(&'a str, &'a str, Option<&'a str>)> {
    let text = |bytes| std::str::from_utf8(bytes).unwrap();
    let event = |step: &'a Result<Step<'_>, EventError>| match step {
        Ok(Step::Event(event)) => {
            Some((event.row.get(1).map_or("", text), text(event.id()), event.row.get(3).map(text)))
        }
        _ => None,
    };
    steps.iter().filter_map(event).collect()
}

#[test]
fn what_each_major_sent_comes_to_what_it_did() {
    for (name, capture) in CAPTURES {
        let messages = messages(capture);
        let (_, steps) = steps(&outbox(), &messages);
        let mut text = String::new();
        for (number, (wal_start, bytes)) in messages.iter().enumerate() {
            writeln!(text, "{wal_start} {}", line(&decode::decode(bytes).unwrap())).unwrap();
            match steps.get(number) {
                None | Some(Ok(Step::Nothing)) => {}
                Some(Ok(Step::Event(event))) => writeln!(text, "    => Event, {}", event.place).unwrap(),
                Some(Ok(step)) => writeln!(text, "    => {step:?}").unwrap(),
                Some(Err(error)) => writeln!(text, "    => {error}").unwrap(),
            }
        }
        insta::with_settings!({ snapshot_path => "../../tests/golden", prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!(name, text);
        });
    }
}

#[test]
fn every_major_delivers_the_same_committed_inserts_in_the_same_order() {
    let first = r#"{"name": "Zoë \"q\" € \\ /", "amount": 12.50, "nested": {"a": null}}"#;
    let expected = [
        ("order", "01", Some(first)),
        ("кунде", "02", None),
        ("order", "03", Some("{}")),
        ("order", "04", Some("4")),
        ("order", "06", Some("[6]")),
        ("order", "08", Some("8")),
        ("order", "09", Some(r#"{"a": 1, "b": 1}"#)),
        ("order", "10", Some(r#"{ "b":1,  "a":1 }"#)),
    ]
    .map(|(aggregate_type, id, payload)| (aggregate_type, format!("00000000-0000-0000-0000-0000000000{id}"), payload));
    for (name, capture) in CAPTURES {
        let messages = messages(capture);
        let (assembler, steps) = steps(&outbox(), &messages);
        let events = events(&steps);
        let expected: Vec<_> = expected.iter().map(|(t, id, payload)| (*t, id.as_str(), *payload)).collect();
        assert_eq!(events, expected, "{name}");
        assert_eq!(assembler.ignored(), Ignored { updates: 4, deletes: 3, truncates: 1, messages: 0 }, "{name}");
        match steps.last() {
            Some(Err(EventError::ColumnMissing { column, .. })) => assert_eq!(column, "payload", "{name}"),
            other => panic!("{name}: the row behind the rename came to {other:?}"),
        }
    }
}

#[test]
fn rows_of_partitions_are_events_of_their_root() {
    let outbox = OutboxConfig { source: EventSource::Table("parts".parse().unwrap()), ..outbox() };
    for (name, capture) in CAPTURES {
        let messages = messages(capture);
        let (_, steps) = steps(&outbox, &messages);
        assert!(steps.iter().all(Result::is_ok), "{name}: {:?}", steps.last());
        let events: Vec<_> =
            events(&steps).into_iter().map(|(t, id, payload)| (t, id, payload.map_or(0, str::len))).collect();
        assert_eq!(
            events,
            [("low", "1", 1), ("high", "150", 0), ("low", "2", 3200), ("low", "3", 0), ("low", "4", 8)],
            "{name}"
        );
    }
}

#[test]
fn a_crash_behind_any_message_of_a_capture_loses_and_repeats_nothing() {
    let outbox = OutboxConfig { source: EventSource::Table("parts".parse().unwrap()), ..outbox() };
    for (name, capture) in CAPTURES {
        let messages = messages(capture);
        let (_, all) = steps(&outbox, &messages);
        let all = events(&all);
        for until in 0..=messages.len() {
            let (_, before) = steps(&outbox, &messages[..until]);
            let resume = replay::position_after(
                Position::default(),
                &before.iter().flatten().cloned().collect::<Vec<_>>(),
                usize::MAX,
            );
            let mut assembler = Assembler::new(std::slice::from_ref(&outbox), resume);
            let after: Vec<_> = messages.iter().map(|(lsn, bytes)| assembler.feed(bytes, *lsn)).collect();
            assert!(after.iter().all(Result::is_ok), "{name} at {until}: {after:?}");
            assert_eq!([events(&before), events(&after)].concat(), all, "{name} at {until}");
        }
    }
}
