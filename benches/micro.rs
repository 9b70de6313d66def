//! The steps of one event that need no server: decoding and assembling, routing, the ledger. In
//! nanoseconds, by `cargo bench -p walrelay-benches --bench micro`; `tests/allocations.rs` watches
//! what does not depend on the machine.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what cannot be set up cannot be measured, and ends the run"
)]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use walrelay_core::config::OutboxConfig;
use walrelay_core::event::{Assembler, Step};
use walrelay_core::ledger::{Ledger, Limits, Ticket};
use walrelay_core::position::{Lsn, Position};
use walrelay_core::route::Router;

#[path = "../crates/core/tests/simulation/pgoutput.rs"]
mod pgoutput;

const TABLE_OID: u32 = 16_384;
const EVENTS: u64 = 100;
const COMMIT: u64 = 100_000;

/// A transaction of [`EVENTS`] rows of some 300 bytes.
fn transaction() -> Vec<Vec<u8>> {
    let columns = ["id", "aggregatetype", "aggregateid", "type", "payload"].map(|name| (name, 25));
    let mut messages = vec![
        pgoutput::begin(COMMIT, 7),
        pgoutput::relation(TABLE_OID, &columns),
    ];
    for row in 0..EVENTS {
        let payload = format!(r#"{{"seq": {row}, "note": "{}"}}"#, "n".repeat(270));
        let id = format!("00000000-0000-4000-8000-{row:012}");
        let aggregate = format!("aggregate-{}", row % 10);
        messages.push(pgoutput::insert(
            TABLE_OID,
            &[&id, "order", &aggregate, "OrderCreated", &payload],
        ));
    }
    messages.push(pgoutput::commit(COMMIT, COMMIT + 64));
    messages
}

fn assembler() -> Assembler {
    Assembler::new(&[OutboxConfig::default()], Position::at(Lsn::new(1_000)))
}

fn decode(criterion: &mut Criterion) {
    let messages = transaction();
    let mut group = criterion.benchmark_group("decode");
    group.throughput(Throughput::Elements(EVENTS));
    group.bench_function("and assemble", |bencher| {
        bencher.iter_batched_ref(
            assembler,
            |assembler| {
                for message in &messages {
                    black_box(assembler.feed(message, Lsn::new(1)).expect("a message"));
                }
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

fn route(criterion: &mut Criterion) {
    let messages = transaction();
    let mut assembler = assembler();
    let mut router = Router::new(&OutboxConfig::default()).expect("a router");
    router.set_origin("7000000000000000000", 1);
    for message in &messages[..2] {
        assembler.feed(message, Lsn::new(1)).expect("a message");
    }
    let Ok(Step::Event(event)) = assembler.feed(&messages[2], Lsn::new(1)) else {
        panic!("an event")
    };
    let mut group = criterion.benchmark_group("route");
    group.throughput(Throughput::Elements(1));
    group.bench_function("to a record", |bencher| {
        bencher.iter(|| {
            router
                .route(&event)
                .map(|routed| routed.with_record(|record| black_box(record.headers.len())))
                .is_ok()
        });
    });
    group.finish();
}

fn ledger(criterion: &mut Criterion) {
    let limits = Limits {
        events: 1_000,
        bytes: 1 << 20,
        each: 0,
    };
    let mut group = criterion.benchmark_group("ledger");
    group.throughput(Throughput::Elements(EVENTS));
    group.bench_function("enqueued to acked", |bencher| {
        bencher.iter_batched_ref(
            || Ledger::new(Position::at(Lsn::new(1_000)), limits, |_| 0),
            |ledger| {
                ledger.begin(Lsn::new(COMMIT)).expect("a transaction");
                for _ in 0..EVENTS {
                    ledger.enqueued(350, 0, ()).expect("room");
                }
                ledger
                    .commit(Lsn::new(COMMIT), Lsn::new(COMMIT + 64))
                    .expect("its end");
                for ticket in 0..EVENTS {
                    ledger.acked(Ticket(ticket)).expect("a ticket");
                }
                black_box(ledger.delivered());
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

criterion_group!(benches, decode, route, ledger);
criterion_main!(benches);
