//! What is counted. Everything the relay touches per event is one plain atomic, held by name: no label is looked up on
//! the way, and callers may add a batch at a time.
//!
//! [`Metrics::new`] is the table of all metrics: field, name and help. Dashboards and alerts are written against the names,
//! so none is ever renamed. As exposed they begin with `walrelay_`, and counters end in `_total`.
//!
//! Labels have fixed values only. No topic, aggregate or key is ever one: a row could make as many as it likes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeGaugeValue, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Metric, Registry};

use super::{IntakeClosed, Side};
use crate::clock::now_us;
use crate::decode::Other;
use crate::error::Kind;
use crate::position::Lsn;

/// Upper bounds of the histograms, in seconds: fine where a healthy relay is, coarse where it is not.
const SECONDS: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0];

/// No commit time: nothing is unacked.
const NO_COMMIT_TIME: i64 = i64::MIN;

/// Metrics that differ by one label: its name and its value.
type ByLabel<V, M> = Family<[(&'static str, V); 1], M>;

/// All metrics of one relay. Clones share them.
///
/// `inc_by` and `set` on counters and gauges are wait-free; `observe` on a histogram takes a short lock.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    pub(crate) received_bytes: Counter,
    pub(crate) received_messages: Counter,
    pub(crate) decoded_messages: Counter,
    pub(crate) assembled_events: Counter,
    pub(crate) routed_events: Counter,
    pub(crate) enqueued_events: Counter,
    pub(crate) acked_events: Counter,
    pub(crate) dead_lettered_events: Counter,
    pub(crate) skipped_events: Counter,
    pub(crate) parked_events: Counter,
    pub(crate) unparked_events: Counter,
    pub(crate) dropped_events: Counter,
    pub(crate) waiting_events: Gauge,
    pub(crate) waiting_again_events: Counter,
    pub(crate) delivered_before_events: Counter,
    pub(crate) acked_bytes: Counter,
    pub(crate) in_flight_events: Gauge,
    pub(crate) in_flight_bytes: Gauge,
    pub(crate) queue_full: Counter,
    pub(crate) keepalives: Counter,
    pub(crate) status_updates: Counter,
    pub(crate) positions_stored: Counter,
    committed_transactions: Counter,
    pub(crate) given_up_transactions: Counter,
    committed_events: Counter,
    transaction_commit_seconds: Histogram,
    pub(crate) catalog_checks: Counter,
    pub(super) standing_by: Gauge,
    pub(crate) reads_table: Gauge,
    pub(crate) oldest_transaction_seconds: Gauge,
    pub(crate) oldest_transaction_pid: Gauge,
    commit_to_ack_seconds: Histogram,
    retries: ByLabel<&'static str, Counter>,
    reconnects: ByLabel<&'static str, Counter>,
    connection_state: ByLabel<&'static str, Gauge>,
    intake_closed: ByLabel<&'static str, Gauge>,
    ignored_messages: ByLabel<&'static str, Counter>,
    errors: ByLabel<String, Counter>,
    /// End of the last WAL data received.
    pub received_lsn: LsnGauge,
    /// End of the stored position.
    pub stored_lsn: LsnGauge,
    /// What Postgres was told.
    pub confirmed_lsn: LsnGauge,
    /// The end of WAL the server last mentioned.
    pub server_wal_end_lsn: LsnGauge,
    /// The slot's `restart_lsn`: behind it WAL is kept, even where everything is confirmed and a transaction is open.
    pub slot_restart_lsn: LsnGauge,
    /// In microseconds since the Unix epoch.
    oldest_unacked_commit_us: Arc<AtomicI64>,
    started: Instant,
}

/// A position in the log.
#[derive(Debug, Clone, Default)]
pub struct LsnGauge(Arc<AtomicU64>);

impl LsnGauge {
    /// Sets the position.
    pub fn set(&self, lsn: Lsn) {
        self.0.store(lsn.as_u64(), Ordering::Relaxed);
    }

    /// The position as a number of bytes; `None` before one is set.
    fn bytes(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|bytes| *bytes != 0)
    }
}

/// A gauge that is computed when somebody looks. What is not known yet is left out rather than shown as 0.
#[derive(Debug)]
struct Computed<N> {
    of: Metrics,
    value: fn(&Metrics) -> Option<N>,
}

impl<N: EncodeGaugeValue> EncodeMetric for Computed<N> {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        match (self.value)(&self.of) {
            Some(value) => ConstGauge::new(value).encode(encoder),
            None => Ok(()),
        }
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }

    fn is_empty(&self) -> bool {
        (self.value)(&self.of).is_none()
    }
}

/// The registry while metrics are put into it.
struct Registering(Registry);

impl Registering {
    fn add<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.with(name, help, M::default())
    }

    fn with<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    /// All of `values` are exposed from the start.
    fn by_label<M>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: &[&'static str],
    ) -> ByLabel<&'static str, M>
    where
        M: Metric + Clone + Default + TypedMetric,
    {
        let family: ByLabel<&'static str, M> = self.add(name, help);
        for value in values {
            drop(family.get_or_create(&[(label, *value)]));
        }
        family
    }
}

const SIDE: &str = "side";
const OPERATION: &str = "op";
const REASON: &str = "reason";

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let mut all = Registering(Registry::with_prefix("walrelay"));
        let sides = Side::ALL.map(Side::name);
        let operations =
            [Other::Update, Other::Delete, Other::Truncate, Other::Type, Other::Origin, Other::LogicalMessage]
                .map(operation);
        let mut metrics = Metrics {
            received_bytes: all.add("received_bytes", "Bytes read from the replication stream"),
            received_messages: all.add("received_messages", "WAL data messages read from the replication stream"),
            decoded_messages: all.add("decoded_messages", "pgoutput messages decoded"),
            assembled_events: all.add("assembled_events", "Outbox events above the position"),
            routed_events: all.add("routed_events", "Events that were given topic and key"),
            enqueued_events: all.add("enqueued_events", "Records handed to the Kafka client"),
            acked_events: all.add("acked_events", "Records the broker acknowledged"),
            dead_lettered_events: all.add("dead_lettered_events", "Events that went to the topic of dead letters"),
            skipped_events: all.add("skipped_events", "Events that were given up and went nowhere"),
            parked_events: all.add("parked_events", "Events that began to wait in the table of parked events"),
            unparked_events: all.add("unparked_events", "Events that waited there and were delivered"),
            dropped_events: all.add("dropped_events", "Events that waited there and were dropped as was asked"),
            waiting_events: all.add("waiting_events", "Events in the table of parked events"),
            waiting_again_events: all.add("waiting_again_events", "Rows of ids that wait already"),
            delivered_before_events: all.add("delivered_before_events", "Events that were in their topics already"),
            acked_bytes: all.add("acked_bytes", "Bytes of key, value and headers the broker acknowledged"),
            in_flight_events: all.add("in_flight_events", "Records enqueued and not acknowledged"),
            in_flight_bytes: all.add("in_flight_bytes", "Bytes in those, as kafka.max_in_flight_bytes counts them"),
            queue_full: all.add("queue_full", "Times reading stopped because too much was in flight"),
            keepalives: all.add("keepalives", "Keepalives from Postgres"),
            status_updates: all.add("status_updates", "Status updates sent to Postgres"),
            positions_stored: all.add("positions_stored", "Positions stored"),
            committed_transactions: all.add("committed_transactions", "Kafka transactions committed"),
            given_up_transactions: all.add("given_up_transactions", "Kafka transactions given up"),
            committed_events: all.add("committed_events", "Events in committed Kafka transactions"),
            transaction_commit_seconds: all.with(
                "transaction_commit_seconds",
                "Time a commit in Kafka takes",
                seconds(),
            ),
            catalog_checks: all.add("catalog_checks", "Checks of publication, table and slot while running"),
            standing_by: all.add("standing_by", "1 while another relay is at work"),
            reads_table: all.add("reads_table", "1 while rows are read from the table"),
            oldest_transaction_seconds: all
                .add("oldest_transaction_seconds", "How long the oldest transaction on the server has been open"),
            oldest_transaction_pid: all.add("oldest_transaction_pid", "Its process id, 0 for none"),
            commit_to_ack_seconds: all.with(
                "commit_to_ack_seconds",
                "Time from the commit in Postgres to the broker's acknowledgement",
                seconds(),
            ),
            retries: all.by_label("retries", "Failed attempts that are repeated", SIDE, &sides),
            reconnects: all.by_label("reconnects", "Connections made again", SIDE, &sides),
            connection_state: all.by_label("connection_state", "1 while connected", SIDE, &sides),
            intake_closed: all.by_label(
                "intake_closed",
                "1 for the reason for which no event is taken in",
                REASON,
                &IntakeClosed::ALL.map(IntakeClosed::name),
            ),
            ignored_messages: all.by_label(
                "ignored_messages",
                "Messages that carry no event, by operation",
                OPERATION,
                &operations,
            ),
            errors: all.add("errors", "Errors by kind, healed or not"),
            received_lsn: LsnGauge::default(),
            stored_lsn: LsnGauge::default(),
            confirmed_lsn: LsnGauge::default(),
            server_wal_end_lsn: LsnGauge::default(),
            slot_restart_lsn: LsnGauge::default(),
            oldest_unacked_commit_us: Arc::new(AtomicI64::new(NO_COMMIT_TIME)),
            started: Instant::now(),
            // Metrics that are computed have no use for it.
            registry: Arc::default(),
        };
        let mut of_bytes =
            |name, help, value| all.0.register(name, help, Computed::<u64> { of: metrics.clone(), value });
        of_bytes("received_lsn", "End of the WAL received, as a byte position", |of| of.received_lsn.bytes());
        of_bytes("stored_lsn", "End of the stored position, as a byte position", |of| of.stored_lsn.bytes());
        of_bytes("confirmed_lsn", "What Postgres was told, as a byte position", |of| of.confirmed_lsn.bytes());
        of_bytes("server_wal_end_lsn", "The server's end of WAL, as a byte position", |of| {
            of.server_wal_end_lsn.bytes()
        });
        of_bytes("slot_restart_lsn", "The slot's restart_lsn, as a byte position", |of| of.slot_restart_lsn.bytes());
        of_bytes("lag_bytes", "Bytes of WAL from what is confirmed to the server's end", Metrics::lag_bytes);
        of_bytes("retained_wal_bytes", "Bytes of WAL that the slot keeps", Metrics::retained_wal_bytes);
        let mut of_seconds =
            |name, help, value| all.0.register(name, help, Computed::<f64> { of: metrics.clone(), value });
        of_seconds("lag_seconds", "Seconds since the commit of the oldest event not acknowledged", |of| {
            Some(of.lag_seconds(now_us()))
        });
        of_seconds("uptime_seconds", "Seconds since the start", |of| Some(of.started.elapsed().as_secs_f64()));
        all.0.register("build", "The program that runs", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        metrics.registry = Arc::new(all.0);
        metrics
    }

    /// The text a scraper reads, in the OpenMetrics format.
    ///
    /// # Errors
    /// Only where memory for the text cannot be had; nothing is shown by halves.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// A Kafka transaction of so many events was committed, which took so long.
    pub fn transaction(&self, events: u64, took: Duration) {
        self.committed_transactions.inc();
        self.committed_events.inc_by(events);
        self.transaction_commit_seconds.observe(took.as_secs_f64());
    }

    /// One more attempt that failed and will be repeated after a pause.
    pub fn retry(&self, side: Side) {
        self.retries.get_or_create(&[(SIDE, side.name())]).inc();
    }

    /// One more connection made after the first.
    pub fn reconnect(&self, side: Side) {
        self.reconnects.get_or_create(&[(SIDE, side.name())]).inc();
    }

    /// Whether an end is connected.
    pub fn connection(&self, side: Side, up: bool) {
        self.connection_state.get_or_create(&[(SIDE, side.name())]).set(i64::from(up));
    }

    /// Why no event is taken in now, if none is.
    pub fn intake_closed(&self, why: Option<IntakeClosed>) {
        for reason in IntakeClosed::ALL {
            self.intake_closed.get_or_create(&[(REASON, reason.name())]).set(i64::from(why == Some(reason)));
        }
    }

    /// Further messages that carry no event. Not for the path of every message.
    pub fn ignored(&self, other: Other, messages: u64) {
        self.ignored_messages.get_or_create(&[(OPERATION, operation(other))]).inc_by(messages);
    }

    /// One more error, whatever became of it. Not for the path of every event.
    pub fn error(&self, kind: Kind) {
        self.errors.get_or_create(&[("kind", snake_case(&format!("{kind:?}")))]).inc();
    }

    /// Commit time of the oldest event not acked, in microseconds since the Unix epoch; `None` when there is none.
    pub fn set_oldest_unacked_commit(&self, committed_at_us: Option<i64>) {
        self.oldest_unacked_commit_us.store(committed_at_us.unwrap_or(NO_COMMIT_TIME), Ordering::Relaxed);
    }

    /// Bytes of WAL from what is confirmed to the server's end; `None` before both are known.
    pub fn lag_bytes(&self) -> Option<u64> {
        self.server_wal_end()?.checked_sub(self.confirmed_lsn.bytes()?).or(Some(0))
    }

    /// Bytes of WAL the slot keeps; `None` before both ends of it are known.
    pub fn retained_wal_bytes(&self) -> Option<u64> {
        self.server_wal_end()?.checked_sub(self.slot_restart_lsn.bytes()?).or(Some(0))
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
        self.server_wal_end_lsn.bytes().max(self.received_lsn.bytes())
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

fn micros_to_seconds(micros: i64) -> f64 {
    micros as f64 / 1e6
}

fn operation(other: Other) -> &'static str {
    match other {
        Other::Update => "update",
        Other::Delete => "delete",
        Other::Truncate => "truncate",
        Other::Type => "type",
        Other::Origin => "origin",
        Other::LogicalMessage => "message",
    }
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
        metrics.received_lsn.set(Lsn::new(900));
        metrics.stored_lsn.set(Lsn::new(500));
        metrics.confirmed_lsn.set(Lsn::new(400));
        metrics.server_wal_end_lsn.set(Lsn::new(1000));
        metrics.slot_restart_lsn.set(Lsn::new(100));
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
