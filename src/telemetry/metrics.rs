//! What is counted. Everything the relay touches per event is one plain atomic, held by name: no label is looked up on
//! the way, and callers may add a batch at a time.
//!
//! Labels have fixed values only. No topic, aggregate or key is ever one: a row could make as many as it likes.

mod registry;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::Side;
use super::ignored::Ignored;
use crate::decode::Other;
use crate::error::Kind;
use crate::position::Lsn;

/// Upper bounds of the commit-to-ack histogram, in seconds: fine where a healthy relay is, coarse where it is not.
const COMMIT_TO_ACK_SECONDS: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0];

/// No commit time: nothing is unacked.
const NO_COMMIT_TIME: i64 = i64::MIN;

/// All metrics of one relay. A clone is one `Arc`.
#[derive(Clone)]
pub struct Metrics(Arc<Shared>);

struct Shared {
    instruments: Arc<Instruments>,
    registry: Registry,
}

impl Deref for Metrics {
    type Target = Instruments;

    fn deref(&self) -> &Instruments {
        &self.0.instruments
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

/// The instruments themselves: `inc_by`, `set` and `observe` on them are wait-free, but for `observe`, which takes a
/// short lock.
#[derive(Debug)]
pub struct Instruments {
    /// Bytes off the replication socket.
    pub received_bytes: Counter,
    /// WAL data messages off the replication socket.
    pub received_messages: Counter,
    /// pgoutput messages decoded.
    pub decoded_messages: Counter,
    /// Events put together, above the position.
    pub assembled_events: Counter,
    /// Events that became records.
    pub routed_events: Counter,
    /// Records librdkafka took.
    pub enqueued_events: Counter,
    /// Records the broker acknowledged.
    pub acked_events: Counter,
    /// Events that went to the topic of dead letters instead.
    pub dead_lettered_events: Counter,
    /// Events that were given up and went nowhere.
    pub skipped_events: Counter,
    /// Events that began to wait in the table of parked events.
    pub parked_events: Counter,
    /// Events that waited there and were delivered.
    pub unparked_events: Counter,
    /// Events that waited there and were dropped, because somebody asked for that.
    pub dropped_events: Counter,
    /// Events that wait there now.
    pub waiting_events: Gauge,
    /// Events that wait there already and came again, as far as their ids tell.
    pub waiting_again_events: Counter,
    /// Events that were in their topics already when they came again.
    pub delivered_before_events: Counter,
    /// Bytes of key, value and headers in those that were acknowledged.
    pub acked_bytes: Counter,
    /// Events enqueued and not acked.
    pub in_flight_events: Gauge,
    /// Bytes in those, as `kafka.max_in_flight_bytes` counts them.
    pub in_flight_bytes: Gauge,
    /// Times the producer's queue or our own budget was full and reading stopped.
    pub queue_full: Counter,
    /// Keepalives from the server.
    pub keepalives: Counter,
    /// Status updates to the server.
    pub status_updates: Counter,
    /// Positions stored durably.
    pub positions_stored: Counter,
    /// Kafka transactions that were committed.
    pub committed_transactions: Counter,
    /// Kafka transactions that were begun and given up.
    pub given_up_transactions: Counter,
    /// Events in those that were committed.
    pub committed_events: Counter,
    /// Seconds from the request to commit one to the answer.
    pub commit_seconds: Histogram,
    /// Looks at the catalog while running.
    pub catalog_checks: Counter,
    /// 1 while another relay is at work and this one waits to take over.
    pub standing_by: Gauge,
    /// 1 while rows are read from the table, 0 while they come from the slot.
    pub reads_table: Gauge,
    /// How long the oldest transaction with an id has been open.
    pub oldest_transaction_seconds: Gauge,
    /// Its process id; 0 where there is none.
    pub oldest_transaction_pid: Gauge,
    /// Seconds from the transaction's commit, by the server's clock, to the broker's ack, by ours.
    pub commit_to_ack_seconds: Histogram,
    retries: BySide<Counter>,
    reconnects: BySide<Counter>,
    connections: BySide<Gauge>,
    ignored: Ignored,
    errors: Family<ErrorLabels, Counter>,
    received_lsn: AtomicU64,
    stored_lsn: AtomicU64,
    confirmed_lsn: AtomicU64,
    server_wal_end_lsn: AtomicU64,
    slot_restart_lsn: AtomicU64,
    oldest_unacked_commit_us: AtomicI64,
    started: Instant,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SideLabels {
    side: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    kind: String,
}

/// One metric for each end, looked up once.
#[derive(Debug)]
struct BySide<M> {
    family: Family<SideLabels, M>,
    postgres: M,
    kafka: M,
}

impl<M: Clone + Default> BySide<M> {
    fn new() -> Self {
        let family = Family::<SideLabels, M>::default();
        let child = |side: Side| family.get_or_create_owned(&SideLabels { side: side.name() });
        BySide { postgres: child(Side::Postgres), kafka: child(Side::Kafka), family }
    }

    fn of(&self, side: Side) -> &M {
        match side {
            Side::Postgres => &self.postgres,
            Side::Kafka => &self.kafka,
        }
    }
}

impl Instruments {
    fn new() -> Self {
        Instruments {
            received_bytes: Counter::default(),
            received_messages: Counter::default(),
            decoded_messages: Counter::default(),
            assembled_events: Counter::default(),
            routed_events: Counter::default(),
            enqueued_events: Counter::default(),
            acked_events: Counter::default(),
            dead_lettered_events: Counter::default(),
            skipped_events: Counter::default(),
            parked_events: Counter::default(),
            unparked_events: Counter::default(),
            dropped_events: Counter::default(),
            waiting_events: Gauge::default(),
            waiting_again_events: Counter::default(),
            delivered_before_events: Counter::default(),
            acked_bytes: Counter::default(),
            in_flight_events: Gauge::default(),
            in_flight_bytes: Gauge::default(),
            queue_full: Counter::default(),
            keepalives: Counter::default(),
            status_updates: Counter::default(),
            positions_stored: Counter::default(),
            committed_transactions: Counter::default(),
            given_up_transactions: Counter::default(),
            committed_events: Counter::default(),
            commit_seconds: Histogram::new(COMMIT_TO_ACK_SECONDS),
            catalog_checks: Counter::default(),
            standing_by: Gauge::default(),
            reads_table: Gauge::default(),
            oldest_transaction_seconds: Gauge::default(),
            oldest_transaction_pid: Gauge::default(),
            commit_to_ack_seconds: Histogram::new(COMMIT_TO_ACK_SECONDS),
            retries: BySide::new(),
            reconnects: BySide::new(),
            connections: BySide::new(),
            ignored: Ignored::new(),
            errors: Family::default(),
            received_lsn: AtomicU64::new(0),
            stored_lsn: AtomicU64::new(0),
            confirmed_lsn: AtomicU64::new(0),
            server_wal_end_lsn: AtomicU64::new(0),
            slot_restart_lsn: AtomicU64::new(0),
            oldest_unacked_commit_us: AtomicI64::new(NO_COMMIT_TIME),
            started: Instant::now(),
        }
    }

    /// A Kafka transaction of so many events was committed, which took so long.
    pub fn transaction(&self, events: u64, took: Duration) {
        self.committed_transactions.inc();
        self.committed_events.inc_by(events);
        self.commit_seconds.observe(took.as_secs_f64());
    }

    /// One more attempt that failed and will be repeated after a pause.
    pub fn retry(&self, side: Side) {
        self.retries.of(side).inc();
    }

    /// One more connection made after the first.
    pub fn reconnect(&self, side: Side) {
        self.reconnects.of(side).inc();
    }

    /// Whether an end is connected.
    pub fn connection(&self, side: Side, up: bool) {
        self.connections.of(side).set(i64::from(up));
    }

    /// One more message that carries no event.
    pub fn ignored(&self, other: Other, messages: u64) {
        self.ignored.of(other).inc_by(messages);
    }

    /// One more error, whatever became of it. Not for the path of every event.
    pub fn error(&self, kind: Kind) {
        self.errors.get_or_create(&ErrorLabels { kind: snake_case(&format!("{kind:?}")) }).inc();
    }

    /// End of the last WAL data received.
    pub fn set_received_lsn(&self, lsn: Lsn) {
        self.received_lsn.store(lsn.as_u64(), Ordering::Relaxed);
    }

    /// End of the stored position.
    pub fn set_stored_lsn(&self, lsn: Lsn) {
        self.stored_lsn.store(lsn.as_u64(), Ordering::Relaxed);
    }

    /// What Postgres was told.
    pub fn set_confirmed_lsn(&self, lsn: Lsn) {
        self.confirmed_lsn.store(lsn.as_u64(), Ordering::Relaxed);
    }

    /// The end of WAL the server last mentioned.
    pub fn set_server_wal_end_lsn(&self, lsn: Lsn) {
        self.server_wal_end_lsn.store(lsn.as_u64(), Ordering::Relaxed);
    }

    /// The slot's `restart_lsn`: behind it WAL is kept, even where everything is confirmed and a transaction is open.
    pub fn set_slot_restart_lsn(&self, lsn: Lsn) {
        self.slot_restart_lsn.store(lsn.as_u64(), Ordering::Relaxed);
    }

    /// Commit time of the oldest event not acked, in microseconds since the Unix epoch; `None` when there is none.
    pub fn set_oldest_unacked_commit(&self, committed_at_us: Option<i64>) {
        self.oldest_unacked_commit_us.store(committed_at_us.unwrap_or(NO_COMMIT_TIME), Ordering::Relaxed);
    }

    /// Bytes of WAL from what is confirmed to the server's end; `None` before both are known.
    pub fn lag_bytes(&self) -> Option<u64> {
        self.server_wal_end()?.checked_sub(load(&self.confirmed_lsn)?).or(Some(0))
    }

    /// Bytes of WAL the slot keeps; `None` before both ends of it are known.
    pub fn retained_wal_bytes(&self) -> Option<u64> {
        self.server_wal_end()?.checked_sub(load(&self.slot_restart_lsn)?).or(Some(0))
    }

    /// Seconds since the commit of the oldest unacked event at `now_us` (microseconds since the Unix epoch); 0 when
    /// everything is acked.
    pub fn lag_seconds(&self, now_us: i64) -> f64 {
        match self.oldest_unacked_commit_us.load(Ordering::Relaxed) {
            NO_COMMIT_TIME => 0.0,
            committed_at_us => micros_to_seconds(now_us.saturating_sub(committed_at_us).max(0)),
        }
    }

    /// One event was acked at `now_us`, committed at `committed_at_us` (both microseconds since the Unix epoch).
    pub fn observe_commit_to_ack(&self, committed_at_us: i64, now_us: i64) {
        self.commit_to_ack_seconds.observe(micros_to_seconds(now_us.saturating_sub(committed_at_us).max(0)));
    }

    /// The server's end of WAL, which lies nowhere below what was received from it.
    fn server_wal_end(&self) -> Option<u64> {
        load(&self.server_wal_end_lsn).max(load(&self.received_lsn))
    }
}

fn micros_to_seconds(micros: i64) -> f64 {
    micros as f64 / 1e6
}

fn load(lsn: &AtomicU64) -> Option<u64> {
    Some(lsn.load(Ordering::Relaxed)).filter(|bytes| *bytes != 0)
}

fn snake_case(camel: &str) -> String {
    let mut snake = String::with_capacity(camel.len() + 4);
    for (index, character) in camel.char_indices() {
        if character.is_uppercase() && index > 0 {
            snake.push('_');
        }
        snake.extend(character.to_lowercase());
    }
    snake
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let instruments = Arc::new(Instruments::new());
        let registry = registry::registry(&instruments);
        Metrics(Arc::new(Shared { instruments, registry }))
    }

    /// The text a scraper reads, in the OpenMetrics format.
    ///
    /// # Errors
    /// Only where memory for the text cannot be had; nothing is shown by halves.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.0.registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn samples(text: &str) -> BTreeMap<String, f64> {
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.rsplit_once(' ').unwrap())
            .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
            .collect()
    }

    fn full() -> Metrics {
        let metrics = Metrics::new();
        metrics.set_received_lsn(Lsn::new(900));
        metrics.set_stored_lsn(Lsn::new(500));
        metrics.set_confirmed_lsn(Lsn::new(400));
        metrics.set_server_wal_end_lsn(Lsn::new(1000));
        metrics.set_slot_restart_lsn(Lsn::new(100));
        metrics.error(Kind::KafkaUnreachable);
        metrics.observe_commit_to_ack(1_000_000, 1_020_000);
        metrics
    }

    #[test]
    fn every_name_appears_once_and_carries_the_prefix() {
        let text = full().encode().unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
            let name = line.split(' ').nth(2).unwrap();
            assert!(name.starts_with("walrelay_"), "{line}");
            assert!(seen.insert(name.to_owned()), "{name} is described twice");
        }
        let names = include_str!("names.rs");
        let constants: Vec<_> = names.lines().filter_map(|line| line.split('"').nth(1)).skip(1).collect();
        assert_eq!(constants.len(), seen.len(), "{constants:?}\n{seen:?}");
        for name in constants {
            assert!(seen.contains(&format!("walrelay_{name}")), "{name} is not exposed");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn counters_count_and_labels_have_their_fixed_values() {
        let metrics = full();
        metrics.acked_events.inc_by(7);
        metrics.clone().acked_events.inc_by(1);
        metrics.retry(Side::Kafka);
        metrics.connection(Side::Postgres, true);
        metrics.ignored(Other::Delete, 1);
        let samples = samples(&metrics.encode().unwrap());
        assert_eq!(samples["walrelay_acked_events_total"], 8.0);
        assert_eq!(samples[r#"walrelay_retries_total{side="kafka"}"#], 1.0);
        assert_eq!(samples[r#"walrelay_retries_total{side="postgres"}"#], 0.0);
        assert_eq!(samples[r#"walrelay_connection_state{side="postgres"}"#], 1.0);
        assert_eq!(samples[r#"walrelay_ignored_messages_total{op="delete"}"#], 1.0);
        assert_eq!(samples[r#"walrelay_errors_total{kind="kafka_unreachable"}"#], 1.0);
        assert_eq!(samples[r#"walrelay_commit_to_ack_seconds_bucket{le="0.02"}"#], 1.0);
        assert_eq!(samples[r#"walrelay_commit_to_ack_seconds_bucket{le="0.01"}"#], 0.0);
    }

    #[test]
    fn confirmed_lag_and_retained_wal_are_two_things_and_absent_while_unknown() {
        let unknown = samples(&Metrics::new().encode().unwrap());
        assert!(!unknown.contains_key("walrelay_lag_bytes"));
        assert!(!unknown.contains_key("walrelay_retained_wal_bytes"));
        let known = samples(&full().encode().unwrap());
        assert_eq!(known["walrelay_lag_bytes"], 600.0);
        assert_eq!(known["walrelay_retained_wal_bytes"], 900.0);
    }

    #[test]
    fn lag_in_seconds_is_zero_when_all_is_acked_and_never_negative() {
        let metrics = Metrics::new();
        assert_eq!(metrics.lag_seconds(5_000_000), 0.0);
        metrics.set_oldest_unacked_commit(Some(2_000_000));
        assert_eq!(metrics.lag_seconds(5_000_000), 3.0);
        assert_eq!(metrics.lag_seconds(1_000_000), 0.0, "clocks differ");
        metrics.set_oldest_unacked_commit(None);
        assert_eq!(metrics.lag_seconds(5_000_000), 0.0);
    }
}
