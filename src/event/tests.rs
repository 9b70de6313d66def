//! Events for tests, captures of real servers, and crashes against a synthetic log.

use std::fmt::Write;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::error::EventError;
use super::row::Mapping;
use super::*;
use crate::config::{EventSource, OutboxConfig};
use crate::decode::{Message, Value, decode, wire};
use crate::position::{Partial, Position};

pub(crate) const COLUMNS: [&str; 5] = ["id", "aggregatetype", "aggregateid", "type", "payload"];

/// The default columns of table `public.outbox`.
pub(crate) fn outbox() -> OutboxConfig {
    OutboxConfig { source: EventSource::Table("outbox".parse().unwrap()), ..OutboxConfig::default() }
}

/// One row of a table, as a message.
pub(crate) struct Lab {
    mapping: Arc<Mapping>,
    insert: Vec<u8>,
}

impl Lab {
    /// A row with these values of a table with these columns, all of type `text`.
    pub(crate) fn new(outbox: &OutboxConfig, columns: &[&str], values: &[Option<&str>]) -> Lab {
        const TEXT: u32 = 25;
        Lab::of_type(TEXT, outbox, columns, values)
    }

    /// All of the columns have this type.
    pub(crate) fn of_type(type_oid: u32, outbox: &OutboxConfig, columns: &[&str], values: &[Option<&str>]) -> Lab {
        Lab::of_types(&vec![type_oid; columns.len()], outbox, columns, values)
    }

    pub(crate) fn of_types(types: &[u32], outbox: &OutboxConfig, columns: &[&str], values: &[Option<&str>]) -> Lab {
        let described = wire::relation(1, "public", "outbox", columns);
        let Ok(Message::Relation(mut relation)) = decode(&described) else { panic!("not a relation") };
        for (column, of) in relation.columns.iter_mut().zip(types) {
            column.type_oid = *of;
        }
        let mapping = Arc::new(Mapping::new(outbox, &relation).unwrap());
        let values: Vec<_> =
            values.iter().map(|value| value.map_or(Value::Null, |text| Value::Text(text.as_bytes()))).collect();
        Lab { mapping, insert: wire::insert(1, &values) }
    }

    /// The row as the event at index 3 of the transaction at 0/64.
    pub(crate) fn event(&self) -> Event<'_> {
        let Ok(Message::Insert(insert)) = decode(&self.insert) else { panic!("not an insert") };
        let place = Place { commit_lsn: Lsn::new(0x64), index: 3, via: Via::Slot };
        Event { place, committed_at_us: 0, xid: None, outbox: 0, row: Row::new(insert.tuple, &self.mapping) }
    }
}

// What real servers sent, message by message: `tests/golden/scenario.sql` says what was done to them. A line of a capture is the
// LSN and the bytes in hexadecimal. The snapshot beside it has the result of each message.
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
fn steps<'a>(outbox: &OutboxConfig, messages: &'a [(Lsn, Vec<u8>)]) -> Vec<Result<Step<'a>, EventError>> {
    let mut assembler = Assembler::new(std::slice::from_ref(outbox), Position::default());
    let mut failed = false;
    let steps = messages.iter().map(|(wal_start, bytes)| assembler.feed(bytes, *wal_start));
    steps.take_while(|step| !std::mem::replace(&mut failed, step.is_err())).collect()
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
fn rows_of_partitions_are_events_of_their_root() {
    let outbox = OutboxConfig { source: EventSource::Table("parts".parse().unwrap()), ..outbox() };
    for (name, capture) in CAPTURES {
        let messages = messages(capture);
        let mut events = Vec::new();
        for step in steps(&outbox, &messages) {
            if let Step::Event(event) = step.unwrap() {
                let text = |place| String::from_utf8(event.row.get(place).unwrap_or_default().to_vec()).unwrap();
                events.push((text(1), text(0), text(3).len()));
            }
        }
        let expected = [("low", "1", 1), ("high", "150", 0), ("low", "2", 3200), ("low", "3", 0), ("low", "4", 8)];
        let expected = expected.map(|(kind, id, payload_bytes)| (kind.to_owned(), id.to_owned(), payload_bytes));
        assert_eq!(events, expected, "{name}");
    }
}

// Crashes against a synthetic log: whatever the rows' own LSNs are, every event comes exactly once (P1).
const OUTBOX: u32 = 16_384;
const ELSEWHERE: u32 = 16_385;

/// What a row of the synthetic log is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Event,
    Elsewhere,
    Update,
    Redescribed,
}

/// Where a row claims to stand.
#[derive(Debug, Clone, Copy)]
enum RowLsn {
    Zero,
    SameAsBefore,
    /// Anywhere below its commit: also below transactions that committed while this one was open.
    Share(u8),
}

#[derive(Debug, Clone)]
struct Transaction {
    rows: Vec<(Kind, RowLsn)>,
    /// Bytes between the end of the last commit record and the start of this one; there may be none.
    gap: u64,
    commit_bytes: u64,
}

fn transactions() -> impl Strategy<Value = Vec<Transaction>> {
    let kind = prop_oneof![
        6 => Just(Kind::Event), 1 => Just(Kind::Elsewhere), 1 => Just(Kind::Update), 1 => Just(Kind::Redescribed),
    ];
    let row_lsn = prop_oneof![Just(RowLsn::Zero), Just(RowLsn::SameAsBefore), any::<u8>().prop_map(RowLsn::Share)];
    let transaction = (vec((kind, row_lsn), 0..6), prop_oneof![Just(0), 1..500_u64], 1..60_u64)
        .prop_map(|(rows, gap, commit_bytes)| Transaction { rows, gap, commit_bytes });
    vec(transaction, 1..8)
}

/// One message of the log, and the end of the transaction it belongs to.
struct Sent {
    wal_start: Lsn,
    bytes: Vec<u8>,
    transaction_end: Lsn,
}

/// The log as the server sends it, and the events in it in order: their ids and places.
fn log(transactions: &[Transaction]) -> (Vec<Sent>, Vec<(String, Lsn, u64)>) {
    let (mut sent, mut events) = (Vec::new(), Vec::new());
    let mut end = 1_000_u64;
    for (xid, transaction) in (1_u32..).zip(transactions) {
        let commit_lsn = end + transaction.gap;
        end = commit_lsn + transaction.commit_bytes;
        let mut push = |wal_start: u64, bytes: Vec<u8>| {
            sent.push(Sent { wal_start: Lsn::new(wal_start), bytes, transaction_end: Lsn::new(end) });
        };
        push(0, wire::begin(commit_lsn, i64::from(xid), xid));
        let (mut row_lsn, mut index) = (0, 0);
        for (kind, row) in &transaction.rows {
            row_lsn = match row {
                RowLsn::Zero => 0,
                RowLsn::SameAsBefore => row_lsn,
                RowLsn::Share(share) => commit_lsn * u64::from(*share) / 256,
            };
            match kind {
                Kind::Event => {
                    let id = format!("event-{}", events.len());
                    let values = [Value::Text(id.as_bytes()), Value::Text(b"t"), Value::Null, Value::Null, Value::Null];
                    push(row_lsn, wire::insert(OUTBOX, &values));
                    events.push((id, Lsn::new(commit_lsn), index));
                    index += 1;
                }
                Kind::Elsewhere => push(row_lsn, wire::insert(ELSEWHERE, &[Value::Null])),
                Kind::Update => push(row_lsn, wire::update(OUTBOX, &[Value::Null], &[Value::Null])),
                Kind::Redescribed => push(0, wire::relation(OUTBOX, "public", "outbox", &COLUMNS)),
            }
        }
        push(commit_lsn, wire::commit(commit_lsn, end, i64::from(xid)));
    }
    (sent, events)
}

/// What acks amount to, kept in the simplest way: every step up to the crash, the first `acked` events of them acked.
fn position_after(resume: Position, steps: &[Step<'_>], mut acked: usize) -> Position {
    let mut position = resume;
    let mut whole = true;
    for step in steps {
        match step {
            Step::Event(event) if acked > 0 => {
                acked -= 1;
                let Place { commit_lsn, index, .. } = event.place;
                position.partial = Some(Partial { commit_lsn, index: index + 1 });
            }
            Step::Event(_) => whole = false,
            Step::Commit { end_lsn, .. } if whole => position = Position::at(*end_lsn),
            Step::Commit { .. } | Step::Nothing | Step::Begin { .. } | Step::Relation { .. } => {}
        }
    }
    position
}

/// A session: the server starts after a confirmed commit, or any earlier one, and describes tables again.
fn session<'a>(sent: &'a [Sent], from: Lsn, descriptions: &'a [Vec<u8>]) -> Vec<(&'a [u8], Lsn)> {
    let messages = sent.iter().filter(|sent| sent.transaction_end > from);
    let described = descriptions.iter().map(|bytes| (bytes.as_slice(), Lsn::ZERO));
    described.chain(messages.map(|sent| (sent.bytes.as_slice(), sent.wal_start))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn every_event_comes_exactly_once_whatever_crashes_and_wherever_rows_stand(
        transactions in transactions(),
        // Each: where it crashes, how many of the events seen are acked, how far back the server starts, whether a
        // keepalive moved the position into the gap behind the last commit, whether the process survived.
        crashes in vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>(),
             any::<bool>()),
            0..4,
        ),
    ) {
        let (sent, events) = log(&transactions);
        let descriptions = [
            wire::relation(ELSEWHERE, "public", "elsewhere", &["id"]),
            wire::relation(OUTBOX, "public", "outbox", &COLUMNS),
        ];
        let mut delivered: Vec<(String, Lsn, u64)> = Vec::new();
        let mut resume = Position::default();
        let mut server_from = Lsn::ZERO;
        let mut assembler = Assembler::new(&[outbox()], resume);
        for crash in crashes.iter().map(Some).chain([None]) {
            let messages = session(&sent, server_from, &descriptions);
            let until = crash.map_or(messages.len(), |(at, ..)| at.index(messages.len() + 1));
            let steps: Vec<Step<'_>> = messages[..until]
                .iter()
                .map(|(bytes, wal_start)| assembler.feed(bytes, *wal_start).unwrap())
                .collect();
            let came = steps.iter().filter_map(|step| {
                let Step::Event(event) = step else { return None };
                let id = String::from_utf8(event.id().to_vec()).unwrap();
                Some((id, event.place.commit_lsn, event.place.index))
            });
            let came: Vec<_> = came.collect();
            let Some((_, acked, back, idle, survived)) = crash else {
                delivered.extend(came);
                continue;
            };
            let acked = acked.index(came.len() + 1);
            delivered.extend(came.into_iter().take(acked));
            resume = position_after(resume, &steps, acked);
            if *idle && resume.partial.is_none() {
                // Anything up to the next commit record is a boundary a keepalive may name.
                let gap = transactions.iter().scan(1_000, |end, transaction| {
                    let gap = (*end, *end + transaction.gap);
                    *end = gap.1 + transaction.commit_bytes;
                    Some(gap)
                });
                let next = gap.into_iter().find(|(from, _)| resume.end_lsn == Lsn::new(*from));
                resume = Position::at(next.map_or(resume.end_lsn, |(_, to)| Lsn::new(to)));
            }
            let confirmed: Vec<Lsn> =
                sent.iter().map(|sent| sent.transaction_end).filter(|end| *end <= resume.end_lsn).collect();
            server_from = if confirmed.is_empty() { Lsn::ZERO } else { *back.get(&confirmed) };
            if *survived {
                assembler.resume_at(resume);
            } else {
                assembler = Assembler::new(&[outbox()], resume);
            }
        }
        prop_assert_eq!(delivered, events);
    }

    #[test]
    fn a_damaged_log_is_an_error_or_comes_to_steps_and_never_panics(
        transactions in transactions(),
        damage in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 0..6),
        end_lsn in 0..3_000_u64,
        partial in proptest::option::of((0..3_000_u64, 1..4_u64)),
    ) {
        let (sent, _) = log(&transactions);
        let described = [wire::relation(OUTBOX, "public", "outbox", &COLUMNS)];
        let mut messages: Vec<Vec<u8>> =
            described.into_iter().chain(sent.into_iter().map(|sent| sent.bytes)).collect();
        for (which, at, byte, lost) in damage {
            if lost {
                messages.remove(which.index(messages.len()));
            } else {
                let message: &mut Vec<u8> = which.get_mut(&mut messages);
                *at.get_mut(message.as_mut_slice()) = byte;
            }
            if messages.is_empty() {
                break;
            }
        }
        let partial = partial.map(|(bytes, index)| Partial { commit_lsn: Lsn::new(end_lsn + bytes), index });
        let mut assembler = Assembler::new(&[outbox()], Position { end_lsn: Lsn::new(end_lsn), partial });
        let mut inside = None;
        for message in &messages {
            match assembler.feed(message, Lsn::ZERO) {
                Ok(Step::Begin { commit_lsn, .. }) => inside = Some((commit_lsn, 0)),
                Ok(Step::Commit { commit_lsn, end_lsn }) => {
                    prop_assert_eq!(inside.take().map(|(begun, _)| begun), Some(commit_lsn));
                    prop_assert!(end_lsn > commit_lsn);
                }
                Ok(Step::Event(event)) => {
                    let Some((commit_lsn, least)) = &mut inside else { panic!("an event outside a transaction") };
                    prop_assert_eq!(event.place.commit_lsn, *commit_lsn);
                    prop_assert!(event.place.index >= *least, "an index came twice");
                    *least = event.place.index + 1;
                }
                Ok(Step::Nothing | Step::Relation { .. }) => {}
                Err(error) => {
                    let error = error.into_error(&"orders".parse().unwrap());
                    prop_assert!(error.cause().starts_with("slot orders: ") && error.what_to_do().is_some());
                    break;
                }
            }
        }
    }
}
