//! The metrics of a relay. A metric that changes with each event is one plain atomic in a named field, without a label
//! lookup. Callers may add a batch at a time.
//!
//! The table `metrics!` has the counted metrics, [`Metrics::new`] the computed ones. Names are never renamed:
//! dashboards and alerts use them. Exposed names begin with `walrelay_`, and counters end in `_total`.
//!
//! Labels have fixed values only, never a topic, aggregate or key: rows could create any number of them.

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

/// Upper bounds of the histograms, in seconds. They are fine in the range of a healthy relay.
const SECONDS: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0];

/// Instead of a commit time: all events are acked.
const NO_COMMIT_TIME: i64 = i64::MIN;

/// Metrics that differ by one label: its name and its value.
type ByLabel<V, M> = Family<[(&'static str, V); 1], M>;

/// Defines [`Metrics`]: a field for each line of the table, registered under the name of the field.
macro_rules! metrics {
    ($($visibility:vis $name:ident: $kind:ty = $make:ident, $help:literal;)*) => {
        /// All metrics of one relay. Clones share them.
        ///
        /// `inc_by` and `set` on counters and gauges are wait-free; `observe` on a histogram takes a short lock.
        #[derive(Debug, Clone)]
        pub struct Metrics {
            $(#[doc = $help] $visibility $name: $kind,)*
            /// In microseconds since the Unix epoch.
            oldest_unacked_commit_us: Arc<AtomicI64>,
            started: Instant,
            registry: Arc<Registry>,
        }

        impl Registering {
            fn metrics(&mut self) -> Metrics {
                Metrics {
                    $($name: self.$make(stringify!($name), $help),)*
                    oldest_unacked_commit_us: Arc::new(AtomicI64::new(NO_COMMIT_TIME)),
                    started: Instant::now(),
                    registry: Arc::default(),
                }
            }
        }
    };
}

metrics! {
    pub received_lsn: LsnGauge = plain, "End of the WAL received, as a byte position";
    pub stored_lsn: LsnGauge = plain, "End of the stored position, as a byte position";
    pub confirmed_lsn: LsnGauge = plain, "What Postgres was told, as a byte position";
    pub server_wal_end_lsn: LsnGauge = plain, "The server's end of WAL, as a byte position";
    pub slot_restart_lsn: LsnGauge = plain, "The slot's restart_lsn, as a byte position";
    pub(crate) received_bytes: Counter = plain, "Bytes read from the replication stream";
    pub(crate) received_messages: Counter = plain, "WAL data messages read from the replication stream";
    pub(crate) decoded_messages: Counter = plain, "pgoutput messages decoded";
    pub(crate) assembled_events: Counter = plain, "Outbox events above the position";
    pub(crate) routed_events: Counter = plain, "Events that were given topic and key";
    pub(crate) enqueued_events: Counter = plain, "Records handed to the Kafka client";
    pub(crate) acked_events: Counter = plain, "Records the broker acknowledged";
    pub(crate) dead_lettered_events: Counter = plain, "Events that became dead letters";
    pub(crate) skipped_events: Counter = plain, "Events that were skipped";
    pub(crate) parked_events: Counter = plain, "Events that were parked";
    pub(crate) unparked_events: Counter = plain, "Parked events that were delivered";
    pub(crate) dropped_events: Counter = plain, "Parked events that an operator dropped";
    pub(crate) waiting_events: Gauge = plain, "Events that are parked now";
    pub(crate) waiting_again_events: Counter = plain, "Rows that came again while their events are parked";
    pub(crate) delivered_before_events: Counter = plain, "Events that their topics already had";
    pub(crate) acked_bytes: Counter = plain, "Bytes of key, value and headers the broker acknowledged";
    pub(crate) in_flight_events: Gauge = plain, "Records enqueued and not acknowledged";
    pub(crate) in_flight_bytes: Gauge = plain, "Bytes in those, as kafka.max_in_flight_bytes counts them";
    pub(crate) queue_full: Counter = plain, "Times reading stopped because too much was in flight";
    pub(crate) keepalives: Counter = plain, "Keepalives from Postgres";
    pub(crate) status_updates: Counter = plain, "Status updates sent to Postgres";
    pub(crate) positions_stored: Counter = plain, "Positions stored";
    committed_transactions: Counter = plain, "Kafka transactions committed";
    pub(crate) given_up_transactions: Counter = plain, "Kafka transactions given up";
    committed_events: Counter = plain, "Events in committed Kafka transactions";
    transaction_commit_seconds: Histogram = in_seconds, "Time a commit in Kafka takes";
    pub(crate) catalog_checks: Counter = plain, "Checks of publication, table and slot while running";
    pub(super) standing_by: Gauge = plain, "1 while another relay is at work";
    pub(crate) reads_table: Gauge = plain, "1 while rows are read from the table";
    pub(crate) oldest_transaction_seconds: Gauge = plain, "How long the oldest transaction on the server has been open";
    pub(crate) oldest_transaction_pid: Gauge = plain, "Its process id, 0 for none";
    commit_to_ack_seconds: Histogram = in_seconds, "Time from the commit in Postgres to the broker's acknowledgement";
    retries: ByLabel<&'static str, Counter> = by_side, "Failed attempts that are repeated";
    reconnects: ByLabel<&'static str, Counter> = by_side, "Connections made again";
    connection_state: ByLabel<&'static str, Gauge> = by_side, "1 while connected";
    intake_closed: ByLabel<&'static str, Gauge> = by_reason, "1 for the reason for which no event is taken in";
    ignored_messages: ByLabel<&'static str, Counter> = by_operation, "Messages that carry no event, by operation";
    errors: ByLabel<String, Counter> = plain, "Errors by kind, healed or not";
}

/// An LSN; not exposed before it is set.
#[derive(Debug, Clone, Default)]
pub struct LsnGauge(Arc<AtomicU64>);

impl LsnGauge {
    /// Sets the LSN.
    pub fn set(&self, lsn: Lsn) {
        self.0.store(lsn.as_u64(), Ordering::Relaxed);
    }

    /// The LSN as a number of bytes; `None` before it is set.
    fn bytes(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|bytes| *bytes != 0)
    }
}

impl EncodeMetric for LsnGauge {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        self.bytes().map_or(Ok(()), |bytes| ConstGauge::new(bytes).encode(encoder))
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }

    fn is_empty(&self) -> bool {
        self.bytes().is_none()
    }
}

/// A gauge that is computed at each scrape. An unknown value is not exposed.
#[derive(Debug)]
struct Computed<N> {
    of: Metrics,
    value: fn(&Metrics) -> Option<N>,
}

impl<N: EncodeGaugeValue> EncodeMetric for Computed<N> {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        (self.value)(&self.of).map_or(Ok(()), |value| ConstGauge::new(value).encode(encoder))
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }

    fn is_empty(&self) -> bool {
        (self.value)(&self.of).is_none()
    }
}

struct Registering(Registry);

impl Registering {
    fn plain<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.register(name, help, M::default())
    }

    fn in_seconds(&mut self, name: &str, help: &str) -> Histogram {
        self.register(name, help, Histogram::new(SECONDS))
    }

    fn by_side<M: Metric + Clone + Default + TypedMetric>(
        &mut self,
        name: &str,
        help: &str,
    ) -> ByLabel<&'static str, M> {
        self.by_label(name, help, SIDE, &Side::ALL.map(Side::name))
    }

    fn by_reason(&mut self, name: &str, help: &str) -> ByLabel<&'static str, Gauge> {
        self.by_label(name, help, REASON, &IntakeClosed::ALL.map(IntakeClosed::name))
    }

    fn by_operation(&mut self, name: &str, help: &str) -> ByLabel<&'static str, Counter> {
        let operations =
            [Other::Update, Other::Delete, Other::Truncate, Other::Type, Other::Origin, Other::LogicalMessage];
        self.by_label(name, help, OPERATION, &operations.map(operation))
    }

    /// Exposes all of `values` from the start.
    fn by_label<M: Metric + Clone + Default + TypedMetric>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: &[&'static str],
    ) -> ByLabel<&'static str, M> {
        let family: ByLabel<&'static str, M> = self.plain(name, help);
        for value in values {
            drop(family.get_or_create(&[(label, *value)]));
        }
        family
    }

    fn register<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    fn computed<N>(&mut self, name: &str, help: &str, of: &Metrics, value: fn(&Metrics) -> Option<N>)
    where
        N: EncodeGaugeValue + fmt::Debug + Send + Sync + 'static,
    {
        self.0.register(name, help, Computed { of: of.clone(), value });
    }
}

const SIDE: &str = "side";
const OPERATION: &str = "op";
const REASON: &str = "reason";

impl Metrics {
    /// All metrics, at zero.
    pub fn new() -> Self {
        let mut all = Registering(Registry::with_prefix("walrelay"));
        let mut metrics = all.metrics();
        let distance = "Bytes of WAL from what is confirmed to the server's end";
        all.computed("lag_bytes", distance, &metrics, Metrics::lag_bytes);
        all.computed("retained_wal_bytes", "Bytes of WAL that the slot keeps", &metrics, Metrics::retained_wal_bytes);
        let oldest = "Seconds since the commit of the oldest event not acknowledged";
        all.computed("lag_seconds", oldest, &metrics, |of| Some(of.lag_seconds(now_us())));
        let uptime = "Seconds since the start";
        all.computed("uptime_seconds", uptime, &metrics, |of| Some(of.started.elapsed().as_secs_f64()));
        all.0.register("build", "The program that runs", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        metrics.registry = Arc::new(all.0);
        metrics
    }

    /// The metrics in the OpenMetrics text format.
    ///
    /// # Errors
    /// Only without memory for the text; the result is never partial.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Counts a committed Kafka transaction, its events and the time of its commit.
    pub fn transaction(&self, events: u64, took: Duration) {
        self.committed_transactions.inc();
        self.committed_events.inc_by(events);
        self.transaction_commit_seconds.observe(took.as_secs_f64());
    }

    /// Counts a failed attempt that is repeated after a back-off.
    pub fn retry(&self, side: Side) {
        self.retries.get_or_create(&[(SIDE, side.name())]).inc();
    }

    /// Counts a connection after the first one.
    pub fn reconnect(&self, side: Side) {
        self.reconnects.get_or_create(&[(SIDE, side.name())]).inc();
    }

    /// Sets whether an end is connected.
    pub fn connection(&self, side: Side, up: bool) {
        self.connection_state.get_or_create(&[(SIDE, side.name())]).set(i64::from(up));
    }

    /// Sets the reason for which intake is closed; `None` if it is open.
    pub fn intake_closed(&self, why: Option<IntakeClosed>) {
        for reason in IntakeClosed::ALL {
            self.intake_closed.get_or_create(&[(REASON, reason.name())]).set(i64::from(why == Some(reason)));
        }
    }

    /// Counts messages without an event. Not for the path of every message.
    pub fn ignored(&self, other: Other, messages: u64) {
        self.ignored_messages.get_or_create(&[(OPERATION, operation(other))]).inc_by(messages);
    }

    /// Counts an error, whatever its consequence. Not for the path of every event.
    pub fn error(&self, kind: Kind) {
        self.errors.get_or_create(&[("kind", snake_case(&format!("{kind:?}")))]).inc();
    }

    /// Sets the commit time of the oldest event that is not acked, in Unix microseconds; `None` if all are acked.
    pub fn set_oldest_unacked_commit(&self, committed_at_us: Option<i64>) {
        self.oldest_unacked_commit_us.store(committed_at_us.unwrap_or(NO_COMMIT_TIME), Ordering::Relaxed);
    }

    /// Bytes of WAL from the confirmed LSN to the server's end; `None` before both are known.
    pub fn lag_bytes(&self) -> Option<u64> {
        self.server_wal_end()?.checked_sub(self.confirmed_lsn.bytes()?).or(Some(0))
    }

    /// Bytes of WAL that the slot retains; `None` before both ends are known.
    pub fn retained_wal_bytes(&self) -> Option<u64> {
        self.server_wal_end()?.checked_sub(self.slot_restart_lsn.bytes()?).or(Some(0))
    }

    /// Seconds from the commit of the oldest event that is not acked to `now_us` (Unix microseconds); 0 if all are
    /// acked.
    pub fn lag_seconds(&self, now_us: i64) -> f64 {
        match self.oldest_unacked_commit_us.load(Ordering::Relaxed) {
            NO_COMMIT_TIME => 0.0,
            committed_at_us => micros_to_seconds(now_us.saturating_sub(committed_at_us).max(0)),
        }
    }

    /// Records the ack at `now_us` of an event that was committed at `committed_at_us`; both are Unix microseconds.
    pub fn observe_commit_to_ack(&self, committed_at_us: i64, now_us: i64) {
        self.commit_to_ack_seconds.observe(micros_to_seconds(now_us.saturating_sub(committed_at_us).max(0)));
    }

    /// The server's end of WAL, at least the received LSN.
    fn server_wal_end(&self) -> Option<u64> {
        self.server_wal_end_lsn.bytes().max(self.received_lsn.bytes())
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
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
    fn counters_increase_and_labels_have_their_fixed_values() {
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
    fn lag_and_retained_wal_are_separate_metrics_and_absent_while_unknown() {
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
