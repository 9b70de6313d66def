//! Captures of real servers, whole and damaged.

use std::fmt::Write;

use proptest::collection::vec;
use proptest::prelude::*;

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

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_capture_is_an_error_or_comes_to_steps_and_never_panics(
        which in any::<prop::sample::Index>(),
        damage in vec(
            (
                any::<prop::sample::Index>(),
                any::<prop::sample::Index>(),
                any::<u8>(),
                any::<bool>(),
            ),
            0..30,
        ),
        resume in proptest::option::of(any::<prop::sample::Index>()),
        partial in proptest::option::of((0..3_000_u64, 1..4_u64)),
    ) {
        let mut messages = messages(which.get(&CAPTURES).1);
        let end_lsn = resume.map_or(Lsn::ZERO, |resume| resume.get(&messages).0);
        for (which, at, byte, lost) in damage {
            if lost {
                messages.remove(which.index(messages.len()));
            } else {
                *at.get_mut(which.get_mut(&mut messages).1.as_mut_slice()) = byte;
            }
        }
        let partial = partial.map(|(bytes, index)| Partial {
            commit_lsn: Lsn::new(end_lsn.as_u64() + bytes),
            index,
        });
        let mut assembler = Assembler::new(&[outbox()], Position { end_lsn, partial });
        let mut inside = None;
        for (wal_start, message) in &messages {
            match assembler.feed(message, *wal_start) {
                Ok(Step::Begin { commit_lsn, .. }) => inside = Some((commit_lsn, 0)),
                Ok(Step::Commit { commit_lsn, end_lsn }) => {
                    prop_assert_eq!(inside.take().map(|(begun, _)| begun), Some(commit_lsn));
                    prop_assert!(end_lsn > commit_lsn);
                }
                Ok(Step::Event(event)) => {
                    let Some((commit_lsn, least)) = &mut inside else { panic!("an event outside a \
                        transaction") };
                    prop_assert_eq!(event.place.commit_lsn, *commit_lsn);
                    prop_assert!(event.place.index >= *least, "an index came twice");
                    *least = event.place.index + 1;
                }
                Ok(Step::Nothing | Step::Relation { .. } | Step::OtherTable { .. }) => {}
                Err(error) => {
                    let error = error.into_error(&"orders".parse().unwrap());
                    prop_assert!(error.cause().starts_with("slot orders: "));
                    prop_assert!(error.what_to_do().is_some());
                    break;
                }
            }
        }
    }
}
