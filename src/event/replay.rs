//! Crashes against a synthetic log: whatever the rows' own LSNs are, every event comes exactly once (P1).

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::config::{EventSource, OutboxConfig};
use crate::decode::{Value, wire};
use crate::position::{Partial, Position};

pub(crate) const COLUMNS: [&str; 5] = ["id", "aggregatetype", "aggregateid", "type", "payload"];

/// The default columns of table `public.outbox`.
pub(crate) fn outbox() -> OutboxConfig {
    OutboxConfig { source: EventSource::Table("outbox".parse().unwrap()), ..OutboxConfig::default() }
}

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
pub(crate) fn position_after(resume: Position, steps: &[Step<'_>], mut acked: usize) -> Position {
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

/// A session: the server starts behind a commit it was told of, or any earlier one, and describes tables anew.
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
