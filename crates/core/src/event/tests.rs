//! Captures of real servers, whole and damaged.

use std::fmt::Write;

use walrelay_fuzz::fuzz;

use super::error::EventError;
use super::*;
use crate::config::{EventSource, OutboxConfig};
use crate::decode::{Message, Value, decode};
use crate::position::{Partial, Position};
use crate::testing::outbox;

// What real servers sent, message by message: `tests/golden/scenario.sql` says what was done to
// them. A line of a capture is the LSN and the bytes in hexadecimal. The snapshot beside it has the
// result of each message.
const CAPTURES: [(&str, &[u8]); 5] = [
    (
        "pgoutput-14",
        include_bytes!("../../tests/golden/pgoutput-14.txt"),
    ),
    (
        "pgoutput-15",
        include_bytes!("../../tests/golden/pgoutput-15.txt"),
    ),
    (
        "pgoutput-16",
        include_bytes!("../../tests/golden/pgoutput-16.txt"),
    ),
    (
        "pgoutput-17",
        include_bytes!("../../tests/golden/pgoutput-17.txt"),
    ),
    (
        "pgoutput-18",
        include_bytes!("../../tests/golden/pgoutput-18.txt"),
    ),
];

fn messages(capture: &[u8]) -> Vec<(Lsn, Vec<u8>)> {
    let lines = std::str::from_utf8(capture).unwrap().lines();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let message = |line: &str| {
        let (lsn, hex) = line.split_once(' ').unwrap();
        assert_eq!(hex.len() % 2, 0, "a capture with half a byte");
        (
            lsn.parse().unwrap(),
            hex.as_bytes().chunks(2).map(byte).collect(),
        )
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
            let columns = relation
                .columns
                .iter()
                .map(|column| format!("{} {}", column.name, column.type_oid));
            let columns: Vec<_> = columns.collect();
            format!(
                "Relation {} {}.{}: {}",
                relation.oid,
                relation.schema,
                relation.table,
                columns.join(", ")
            )
        }
        Message::Begin(_) | Message::Commit(_) | Message::Logical(_) | Message::Other(_) => {
            format!("{message:?}")
        }
    }
}

/// The steps of the table in `outbox`, up to the first error.
fn steps<'a>(
    outbox: &OutboxConfig,
    messages: &'a [(Lsn, Vec<u8>)],
) -> Vec<Result<Step<'a>, EventError>> {
    let mut assembler = Assembler::new(std::slice::from_ref(outbox), Position::default());
    let mut failed = false;
    let steps = messages
        .iter()
        .map(|(wal_start, bytes)| assembler.feed(bytes, *wal_start));
    steps
        .take_while(|step| !std::mem::replace(&mut failed, step.is_err()))
        .collect()
}

#[test]
fn what_each_major_sent_comes_to_what_it_did() {
    for (name, capture) in CAPTURES {
        let messages = messages(capture);
        let steps = steps(&outbox(), &messages);
        let mut text = String::new();
        for (number, (wal_start, bytes)) in messages.iter().enumerate() {
            writeln!(text, "{wal_start} {}", line(&decode(bytes).unwrap())).unwrap();
            match steps.get(number) {
                None | Some(Ok(Step::Nothing)) => {}
                Some(Ok(Step::Event(event))) => {
                    writeln!(text, "    => Event, {}", event.place).unwrap()
                }
                Some(Ok(step)) => writeln!(text, "    => {step:?}").unwrap(),
                Some(Err(error)) => writeln!(text, "    => {error}").unwrap(),
            }
        }
        let snapshot = format!("{}/tests/golden/{name}.snap", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("WALRELAY_TEST_UPDATE").is_some() {
            std::fs::write(&snapshot, &text).unwrap();
        }
        let expected = std::fs::read_to_string(&snapshot).unwrap();
        assert_eq!(
            text, expected,
            "{name}; WALRELAY_TEST_UPDATE=1 writes {snapshot}"
        );
    }
}

#[test]
fn rows_of_partitions_are_events_of_their_root() {
    let outbox = OutboxConfig {
        source: EventSource::Table("parts".parse().unwrap()),
        ..outbox()
    };
    for (name, capture) in CAPTURES {
        let messages = messages(capture);
        let mut events = Vec::new();
        for step in steps(&outbox, &messages) {
            if let Step::Event(event) = step.unwrap() {
                let text = |place| {
                    String::from_utf8(event.row.get(place).unwrap_or_default().to_vec()).unwrap()
                };
                events.push((text(1), text(0), text(3).len()));
            }
        }
        let expected = [
            ("low", "1", 1),
            ("high", "150", 0),
            ("low", "2", 3200),
            ("low", "3", 0),
            ("low", "4", 8),
        ];
        let expected = expected
            .map(|(kind, id, payload_bytes)| (kind.to_owned(), id.to_owned(), payload_bytes));
        assert_eq!(events, expected, "{name}");
    }
}

/// A position, and messages with their LSNs.
struct Stream {
    position: Position,
    messages: Vec<(Lsn, Vec<u8>)>,
}

impl Stream {
    fn written(&self) -> Vec<u8> {
        let partial = self.position.partial;
        let mut bytes = self.position.end_lsn.as_u64().to_be_bytes().to_vec();
        bytes.extend(
            partial
                .map_or(0, |partial| partial.commit_lsn.as_u64())
                .to_be_bytes(),
        );
        bytes.push(partial.map_or(0, |partial| u8::try_from(partial.index).unwrap()));
        for (wal_start, message) in &self.messages {
            bytes.extend(wal_start.as_u64().to_be_bytes());
            bytes.extend(u16::try_from(message.len()).unwrap().to_be_bytes());
            bytes.extend(message);
        }
        bytes
    }

    /// Of any bytes; a message may be cut.
    fn read(mut bytes: &[u8]) -> Option<Stream> {
        let end_lsn = Lsn::new(take_u64(&mut bytes)?);
        let commit_lsn = Lsn::new(take_u64(&mut bytes)?);
        let index = u64::from(*bytes.split_off_first()?);
        let partial = (index > 0).then_some(Partial { commit_lsn, index });
        let mut messages = Vec::new();
        while let Some(wal_start) = take_u64(&mut bytes) {
            let length = bytes.split_off(..2).unwrap_or_default();
            let length = length
                .iter()
                .fold(0, |length, byte| length << 8 | usize::from(*byte));
            let message = bytes.split_off(..length.min(bytes.len()));
            messages.push((Lsn::new(wal_start), message.unwrap_or_default().to_vec()));
        }
        let position = Position { end_lsn, partial };
        Some(Stream { position, messages })
    }
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.split_off(..8)?.try_into().ok()?))
}

/// Each transaction of the captures, behind the descriptions of tables before it: from the
/// beginning, from the transaction on, and from within it.
fn streams() -> Vec<Vec<u8>> {
    let mut streams = Vec::new();
    for (_, capture) in CAPTURES {
        let mut described = Vec::new();
        let mut open = Vec::new();
        for message in messages(capture) {
            let tag = message.1[0];
            let wal_start = message.0;
            if tag == b'R' {
                described.push(message.clone());
            }
            open.push(message);
            if tag != b'C' {
                continue;
            }
            let mut messages = described.clone();
            messages.append(&mut open);
            let partial = Partial {
                commit_lsn: wal_start,
                index: 1,
            };
            for (end_lsn, partial) in [
                (Lsn::ZERO, None),
                (wal_start, None),
                (Lsn::new(1), Some(partial)),
            ] {
                let position = Position { end_lsn, partial };
                let messages = messages.clone();
                streams.push(Stream { position, messages }.written());
            }
        }
    }
    streams
}

#[test]
fn fuzzed_streams() {
    fuzz("streams of pgoutput", 256 << 10, &streams(), |bytes| {
        let Some(Stream { position, messages }) = Stream::read(bytes) else {
            return;
        };
        let mut assembler = Assembler::new(&[outbox()], position);
        let mut inside = None;
        for (wal_start, message) in &messages {
            match assembler.feed(message, *wal_start) {
                Ok(Step::Begin { commit_lsn, .. }) => inside = Some((commit_lsn, 0)),
                Ok(Step::Commit {
                    commit_lsn,
                    end_lsn,
                }) => {
                    assert_eq!(inside.take().map(|(begun, _)| begun), Some(commit_lsn));
                    assert!(end_lsn > commit_lsn);
                }
                Ok(Step::Event(event)) => {
                    let Some((commit_lsn, least)) = &mut inside else {
                        panic!("an event outside a transaction")
                    };
                    assert_eq!(event.place.commit_lsn, *commit_lsn);
                    assert!(event.place.index >= *least, "an index came twice");
                    *least = event.place.index + 1;
                }
                Ok(Step::Nothing | Step::Relation { .. } | Step::OtherTable { .. }) => {}
                Err(error) => {
                    let error = error.into_error(&"orders".parse().unwrap());
                    assert!(error.cause().starts_with("slot orders: "));
                    assert!(error.what_to_do().is_some());
                    break;
                }
            }
        }
    });
}
