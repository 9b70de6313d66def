//! What an event costs in allocations, from a message of the slot to its ack: the same on every
//! machine, unlike time. Counted on the thread of the one loop; what librdkafka allocates by itself
//! is not.

use std::collections::BTreeMap;

use rdkafka::mocking::MockCluster;
use walrelay::config::KafkaConfig;
use walrelay::sink::KafkaSink;
use walrelay_core::config::{DeliveryConfig, OutboxConfig};
use walrelay_core::ledger::Limits;
use walrelay_core::position::{Lsn, Position};
use walrelay_core::publisher::Setup;
use walrelay_core::publisher::pipeline::Pipeline;

use crate::support::pgoutput;
use crate::support::wait::LIMIT;

/// Allocations of one event, in hundredths. Where this goes up, say in the commit what it buys;
/// where it goes down, lower it.
const HUNDREDTHS_PER_EVENT: u64 = 0;
const SLACK: u64 = 10;
/// Batches of acks differ from round to round, and each takes a few: the round with the fewest
/// counts.
const ROUNDS: usize = 5;

const TABLE_OID: u32 = 16_384;
const PER_TRANSACTION: u64 = 100;
const TRANSACTIONS: u64 = 50;

/// A stream of transactions that goes on where it was left.
struct Stream {
    wal: u64,
    row: u64,
}

impl Stream {
    /// Messages of so many transactions, with their LSNs.
    fn next(&mut self, transactions: u64) -> Vec<(Lsn, Vec<u8>)> {
        let mut messages = Vec::new();
        for _ in 0..transactions {
            let commit = self.wal + 8_000;
            let end = self.wal + 8_064;
            messages.push((Lsn::new(commit), pgoutput::begin(commit, 7)));
            for at in 0..PER_TRANSACTION {
                self.row += 1;
                let id = format!("00000000-0000-4000-8000-{:012}", self.row);
                let payload = format!(r#"{{"seq": {}, "note": "{}"}}"#, self.row, "n".repeat(270));
                let values = [
                    &id,
                    "order",
                    &format!("aggregate-{}", self.row % 1_000),
                    "OrderCreated",
                    &payload,
                ];
                messages.push((
                    Lsn::new(self.wal + at * 80),
                    pgoutput::insert(TABLE_OID, &values),
                ));
            }
            messages.push((Lsn::new(end), pgoutput::commit(commit, end)));
            self.wal = end;
        }
        messages
    }
}

/// Takes the messages in, and waits until everything is acked.
async fn relay(pipeline: &mut Pipeline<KafkaSink>, messages: &[(Lsn, Vec<u8>)]) {
    for (wal_start, body) in messages {
        pipeline
            .data(*wal_start, body, std::time::Instant::now())
            .unwrap();
    }
    let acked = async {
        while pipeline.publisher.ledger.in_flight_events() > 0 {
            pipeline.publisher.receive_deliveries().await;
            pipeline.publisher.delivered().unwrap();
        }
    };
    tokio::time::timeout(LIMIT, acked)
        .await
        .expect("not all was acked in time");
    pipeline.publisher.ledger.finished.clear();
}

/// The allocations of an event of this outbox, in hundredths. OpenTelemetry is off.
fn hundredths_per_event(outbox: OutboxConfig) -> u64 {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("outbox.event.order", 6, 1).unwrap();
    let kafka = KafkaConfig {
        brokers: cluster.bootstrap_servers(),
        properties: BTreeMap::new(),
        id_headers: vec!["id".to_owned()],
        ..KafkaConfig::default()
    };
    let setup = Setup {
        slot: "counted".parse().unwrap(),
        outboxes: vec![outbox],
        limits: Limits {
            events: 100_000,
            bytes: 64 << 20,
            each: 0,
        },
        delivery: DeliveryConfig::default(),
        refuses_each: false,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _in_it = runtime.enter();
    let sink = KafkaSink::connect(&kafka).unwrap();
    let start = Position::at(Lsn::new(1_000));
    let mut pipeline =
        Pipeline::new(&setup, start, start, None, sink, std::time::Duration::ZERO).unwrap();
    pipeline.publisher.set_origin("7000000000000000000", 1);
    let columns = ["id", "aggregatetype", "aggregateid", "type", "payload"].map(|name| (name, 25));
    let mut stream = Stream { wal: 1_000, row: 0 };

    // Partitions are opened, and buffers grow to what they need.
    let mut first = stream.next(TRANSACTIONS);
    first.insert(1, (Lsn::ZERO, pgoutput::relation(TABLE_OID, &columns)));
    runtime.block_on(relay(&mut pipeline, &first));

    let counted = (0..ROUNDS).map(|_| {
        let messages = stream.next(TRANSACTIONS);
        allocation_counter::measure(|| runtime.block_on(relay(&mut pipeline, &messages)))
            .count_total
    });
    counted.min().unwrap() * 100 / (TRANSACTIONS * PER_TRANSACTION)
}

#[test]
fn an_event_costs_as_many_allocations_as_it_did() {
    let hundredths = hundredths_per_event(OutboxConfig::default());
    assert!(
        hundredths.abs_diff(HUNDREDTHS_PER_EVENT) <= SLACK,
        "an event costs {}.{:02} allocations, and {}.{:02} are committed in tests/allocations.rs",
        hundredths / 100,
        hundredths % 100,
        HUNDREDTHS_PER_EVENT / 100,
        HUNDREDTHS_PER_EVENT % 100,
    );
}

#[test]
fn a_trace_context_costs_what_another_header_costs_without_a_collector() {
    let with_header = |name: &str| {
        let mut outbox = OutboxConfig::default();
        let context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        outbox
            .route
            .headers
            .push((name.to_owned(), context.parse().unwrap()));
        hundredths_per_event(outbox)
    };
    let trace = with_header("traceparent");
    let other = with_header("tracestates");
    assert!(
        trace.abs_diff(other) <= SLACK,
        "{trace} and {other} hundredths"
    );
}
