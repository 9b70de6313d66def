//! The metrics of a relay. A metric that changes with each event is one plain atomic in a named
//! field, without a label lookup. Callers may add a batch at a time.
//!
//! The table `metrics!` has the counted metrics, [`Metrics::new`] the computed ones. Names are
//! never renamed: dashboards and alerts use them. Exposed names begin with `walrelay_`, and
//! counters end in `_total`.
//!
//! Labels have fixed values, or values of the configuration, such as an outbox. None is a topic,
//! aggregate or key: rows could create any number of them.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{EncodeGaugeValue, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};
use serde::Deserialize;
use strum::VariantArray;

use super::name_of;
use super::process::Process;
use crate::config::SourceConfig;
use crate::sink::linked_libraries;
use walrelay_core::clock::now_us;
use walrelay_core::decode::Other;
use walrelay_core::error::Kind;
use walrelay_core::parked::{BEHIND, CLASSES};
use walrelay_core::position::Lsn;
use walrelay_core::publisher::IntakeClosed;
use walrelay_core::readiness::{NotReady, Side};

/// Upper bounds of the histograms, in seconds. They are fine in the range of a healthy relay.
const SECONDS: [f64; 17] = [
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0,
    300.0,
];

/// Instead of a commit time: all events are acked and written back.
const NO_COMMIT_TIME: i64 = i64::MIN;

/// The values of `invalidation_reason`.
const INVALIDATIONS: [&str; 4] = [
    "wal_removed",
    "rows_removed",
    "wal_level_insufficient",
    "idle_timeout",
];

const WAL_STATUSES: [&str; 4] = ["reserved", "extended", "unreserved", "lost"];

/// Metrics that differ by one label: its name and its value.
type ByLabel<V, M> = Family<[(&'static str, V); 1], M>;

/// Defines [`Metrics`]: a field for each line of the table, registered under the name of the field.
macro_rules! metrics {
    ($($visibility:vis $name:ident: $kind:ty = $make:ident, $help:literal;)*) => {
        /// All metrics of one relay. Clones share them.
        ///
        /// `inc_by` and `set` on counters and gauges are wait-free; `observe` on a histogram takes
        /// a short lock.
        #[derive(Debug, Clone)]
        pub struct Metrics {
            $(#[doc = $help] $visibility $name: $kind,)*
            /// In microseconds since the Unix epoch.
            oldest_unacked_commit_us: Arc<AtomicI64>,
            started: Instant,
            registries: Vec<Arc<Registry>>,
        }

        impl Registering {
            fn metrics(&mut self) -> Metrics {
                Metrics {
                    $($name: self.$make(stringify!($name), $help),)*
                    oldest_unacked_commit_us: Arc::new(AtomicI64::new(NO_COMMIT_TIME)),
                    started: Instant::now(),
                    registries: Vec::new(),
                }
            }
        }
    };
}

metrics! {
    relay_info: Family<Vec<(&'static str, String)>, Gauge> = of_slot, "What this process relays";
    pub confirmed_lsn: LsnGauge = of_slot, "What Postgres was told, as a byte position";
    pub server_wal_end_lsn: LsnGauge = of_slot, "The server's end of WAL, as a byte position";
    pub slot_restart_lsn: LsnGauge = of_slot, "The slot's restart_lsn, as a byte position";
    slot_active: OptionalGauge = of_slot, "1 while a relay streams from the slot";
    slot_wal_status: ByLabel<&'static str, Gauge> = of_slot, "1 for the slot's wal_status";
    slot_safe_wal_bytes: OptionalGauge = of_slot, "Bytes that can be written before the slot may \
                                                   be lost";
    slot_spilled_bytes: OptionalGauge = of_slot, "Bytes that the server wrote to disk to decode \
                                                  large transactions";
    slot_inactive_seconds: OptionalGauge = of_slot, "How long no relay has streamed from the slot";
    slot_invalidated: ByLabel<&'static str, Gauge> = of_slot, "1 for the reason for which the slot \
        is lost";
    pub(crate) clock_difference_seconds: OptionalGauge = of_slot, "By how much the server's clock \
        is ahead of this host's";
    pub(crate) waiting_events: Gauge = of_slot, "Events that are parked now";
    oldest_parked_seconds: OptionalGauge = of_slot, "How long the oldest parked event has been \
                                                     parked";
    unpublished_rows: ByLabel<String, Gauge> = of_slot, "Rows that are pending, up to a limit";
    failed_rows: ByLabel<String, Gauge> = of_slot, "Rows that satisfy outbox.failed, up to a limit";
    ready: Gauge = plain, "1 while the relay is ready";
    not_ready: ByLabel<&'static str, Gauge> = plain, "1 for the reason for which the relay is not \
                                                      ready";
    pub received_lsn: LsnGauge = plain, "End of the WAL received, as a byte position";
    pub stored_lsn: LsnGauge = plain, "End of the stored position, as a byte position";
    pub(crate) received_bytes: Counter = plain, "Bytes read from the replication stream";
    pub(crate) received_messages: Counter = plain, "WAL data messages read from the replication \
                                                    stream";
    pub(crate) decoded_messages: Counter = plain, "pgoutput messages decoded";
    pub(crate) assembled_events: Counter = plain, "Outbox events above the position";
    pub(crate) routed_events: Counter = plain, "Events that were given topic and key";
    pub(crate) enqueued_events: Counter = plain, "Records handed to the client of the bus";
    pub(crate) acked_events: Counter = plain, "Records that the bus acked";
    pub(crate) dead_lettered_events: Counter = plain, "Events that became dead letters";
    pub(crate) skipped_events: Counter = plain, "Events that were skipped";
    pub(crate) parked_events: Counter = plain, "Events that were parked";
    pub(crate) unparked_events: Counter = plain, "Parked events that were delivered";
    pub(crate) dropped_events: Counter = plain, "Parked events that an operator dropped";
    pub(crate) waiting_again_events: Counter = plain, "Rows that came again while their events are \
                                                       parked";
    pub(crate) delivered_before_events: Counter = plain, "Events that came again and were \
                                                          delivered before";
    pub(crate) covered_events: Counter = plain, "Events that the stored position covers";
    pub(crate) acked_bytes: Counter = plain, "Bytes of key, value and headers that the bus \
                                              acknowledged";
    pub(crate) in_flight_events: Gauge = plain, "Records enqueued and not acknowledged";
    pub(crate) in_flight_bytes: Gauge = plain, "Bytes in those, as sink.max_in_flight_bytes counts \
                                                them";
    pub(crate) write_back_due_events: Gauge = plain, "Events that are delivered and not written \
                                                      back";
    pub(crate) queue_full: Counter = plain, "Times reading stopped because too much was in flight";
    pub(crate) keepalives: Counter = plain, "Keepalives from Postgres";
    pub(crate) status_updates: Counter = plain, "Status updates sent to Postgres";
    pub(crate) positions_stored: Counter = plain, "Positions stored";
    pub(crate) dropped_spans: Counter = plain, "Spans of batches that the collector did not get";
    committed_transactions: Counter = plain, "Transactions of the bus committed";
    pub(crate) given_up_transactions: Counter = plain, "Transactions of the bus given up";
    committed_events: Counter = plain, "Events in committed transactions of the bus";
    transaction_commit_seconds: Histogram = in_seconds, "Time a commit of the bus takes";
    pub(crate) catalog_checks: Counter = plain, "Checks of publication, table and slot while \
                                                 running";
    pub(super) standing_by: Gauge = plain, "1 while another relay is at work";
    take_overs: Counter = plain, "Times this relay had stood by and went to work";
    pub(crate) reads_table: Gauge = plain, "1 while rows are read from the table";
    pub(crate) table_scan_seconds: Histogram = in_seconds, "Time from a query of a table to the \
        ack of its last row";
    outbox_events: ByLabel<String, Counter> = plain, "Events of each outbox that were routed";
    copied_rows: ByLabel<String, Counter> = plain, "Rows with the transaction of another row";
    pub(crate) synchronous_standby: Gauge = plain, "Whether commits of all sessions wait for this \
                                                    relay, as for a standby";
    pub(crate) oldest_transaction_seconds: Gauge = plain, "How long the oldest transaction on the \
                                                           server has been open";
    pub(crate) oldest_transaction_pid: Gauge = plain, "Its process id, 0 for none";
    commit_to_ack_seconds: Histogram = in_seconds, "Time from the commit in Postgres to the \
                                                    broker's acknowledgement";
    retries: ByLabel<&'static str, Counter> = plain, "Failed attempts that are repeated";
    reconnects: ByLabel<&'static str, Counter> = plain, "Connections made again";
    connection_state: ByLabel<&'static str, Gauge> = of_slot, "1 while connected";
    pub(super) bus_blocked: Gauge = plain, "1 while the bus asks all its clients to wait";
    intake_closed: ByLabel<String, Gauge> = plain, "1 for the reason for which no event is taken \
                                                    in";
    ignored_messages: ByLabel<String, Counter> = plain, "Messages that carry no event, by \
                                                         operation";
    errors: ByLabel<String, Counter> = of_slot, "Errors by kind, healed or not";
    failed_attempts: ByLabel<&'static str, Counter> = plain, "Failed attempts to deliver an event, \
        by class";
    written_back_rows: ByLabel<&'static str, Counter> = plain, "Rows written to, by what became of \
        their events";
    pub(crate) cleaned_up_rows: Counter = plain, "Old rows that were deleted";
    clean_up_success_timestamp_seconds: OptionalGauge = plain, "When a clean-up last ended well, \
        or the first one was due";
    pub(crate) broker_round_trip_seconds: OptionalGauge = plain, "Average time from a request to a \
        broker to its answer";
    pub(crate) broker_throttle_seconds: Gauge<f64, AtomicU64> = plain, "Average time that a broker \
        made requests wait for a quota";
    pub(crate) partition_changes: Counter = plain, "Times a topic got another number of partitions";
}

/// The state of a slot at one moment, as `sql/status.sql` shows it; none where a value is not
/// known.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct SlotState {
    /// None: the slot does not exist.
    pub kind: Option<String>,
    /// Whether a relay streams from the slot.
    pub active: Option<bool>,
    /// The session of a relay that reads the table: nobody needs to stream from the slot then.
    pub table_reader_pid: Option<i32>,
    /// Sessions of relays that stand by, as far as the role may see them.
    pub stand_by_pids: Vec<i32>,
    /// `pg_replication_slots.wal_status`.
    pub wal_status: Option<String>,
    /// Bytes that can still be written before the slot may be lost.
    pub safe_wal_bytes: Option<i64>,
    /// `pg_stat_replication_slots.spill_bytes`: since the statistics were reset.
    pub spill_bytes: Option<i64>,
    /// The time without a relay, from Postgres 17 on.
    pub inactive_seconds: Option<f64>,
    /// As in `pg_replication_slots`.
    pub invalidation_reason: Option<String>,
    /// The slot's confirmed LSN.
    pub confirmed_lsn: Option<Lsn>,
    /// The slot's restart LSN.
    pub restart_lsn: Option<Lsn>,
    /// The end of the server's WAL.
    #[serde(rename = "current_lsn")]
    pub wal_end: Option<Lsn>,
}

/// Rows of an outbox that are counted.
#[derive(Debug, Clone, Copy)]
pub enum RowState {
    /// They satisfy `outbox.pending`.
    Unpublished,
    /// They satisfy `outbox.failed`.
    Failed,
}

/// A gauge that is not exposed while its value is unknown.
#[derive(Debug, Clone)]
pub struct OptionalGauge(Arc<AtomicU64>);

impl Default for OptionalGauge {
    fn default() -> Self {
        OptionalGauge(Arc::new(AtomicU64::new(f64::NAN.to_bits())))
    }
}

impl OptionalGauge {
    /// Sets the value; `None` if it is unknown.
    pub fn set(&self, value: Option<f64>) {
        self.0
            .store(value.unwrap_or(f64::NAN).to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> Option<f64> {
        Some(f64::from_bits(self.0.load(Ordering::Relaxed))).filter(|value| !value.is_nan())
    }
}

impl EncodeMetric for OptionalGauge {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        self.value()
            .map_or(Ok(()), |value| ConstGauge::new(value).encode(encoder))
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }

    fn is_empty(&self) -> bool {
        self.value().is_none()
    }
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
        self.bytes()
            .map_or(Ok(()), |bytes| ConstGauge::new(bytes).encode(encoder))
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

/// The metrics of a slot, which `walrelay exporter` serves too, and those of a relay alone.
struct Registering {
    slot: Registry,
    relay: Registry,
}

impl Registering {
    fn of_slot<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        let metric = M::default();
        self.slot.register(name, help, metric.clone());
        metric
    }

    fn plain<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.register(name, help, M::default())
    }

    fn in_seconds(&mut self, name: &str, help: &str) -> Histogram {
        self.register(name, help, Histogram::new(SECONDS))
    }

    fn register<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.relay.register(name, help, metric.clone());
        metric
    }
}

/// Creates the metrics of all of `values`, so that each is exposed from the start.
fn create_all<V, M>(
    family: &ByLabel<V, M>,
    label: &'static str,
    values: impl IntoIterator<Item = V>,
) where
    V: Clone + Hash + Eq,
    M: Default,
{
    values
        .into_iter()
        .for_each(|value| drop(family.get_or_create(&[(label, value)])));
}

const SIDE: &str = "side";
const OPERATION: &str = "op";
const REASON: &str = "reason";
const STATUS: &str = "status";
const CLASS: &str = "class";
const OUTCOME: &str = "outcome";
const KIND: &str = "kind";
const OUTBOX: &str = "outbox";

/// The outcomes of events whose rows were written to.
const OUTCOMES: [&str; 3] = ["acked", "failed", "parked"];

impl Metrics {
    /// All metrics, at zero.
    pub fn new() -> Self {
        let registry = || Registry::with_prefix("walrelay");
        let mut all = Registering {
            slot: registry(),
            relay: registry(),
        };
        let mut metrics = all.metrics();
        metrics.create_labelled();
        let relayed = metrics.clone();
        let computed = |value| Computed {
            of: relayed.clone(),
            value,
        };
        let distance = "Bytes of WAL from what is confirmed to the server's end";
        all.slot
            .register("lag_bytes", distance, computed(Metrics::lag_bytes));
        let kept = "Bytes of WAL that the slot keeps";
        all.slot.register(
            "retained_wal_bytes",
            kept,
            computed(Metrics::retained_wal_bytes),
        );
        let computed = |value| Computed {
            of: relayed.clone(),
            value,
        };
        let oldest = "Seconds since the commit of the oldest event not acknowledged";
        all.relay.register(
            "lag_seconds",
            oldest,
            computed(|of| Some(of.lag_seconds(now_us()))),
        );
        let uptime = "Seconds since the start";
        all.slot.register(
            "uptime_seconds",
            uptime,
            computed(|of| Some(of.started.elapsed().as_secs_f64())),
        );
        let commit = (
            "commit",
            option_env!("WALRELAY_COMMIT")
                .unwrap_or_default()
                .to_owned(),
        );
        let [client, _] = linked_libraries();
        let build = [
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            client,
            commit,
        ];
        all.slot
            .register("build", "The program that runs", Info::new(build));
        let mut process = Registry::default();
        process.register_collector(Box::new(Process::default()));
        metrics.registries = [process, all.slot, all.relay].map(Arc::new).into();
        metrics
    }

    fn create_labelled(&self) {
        let sides = Side::ALL.map(Side::name);
        create_all(&self.retries, SIDE, sides);
        create_all(&self.reconnects, SIDE, sides);
        create_all(&self.connection_state, SIDE, sides);
        create_all(&self.slot_wal_status, STATUS, WAL_STATUSES);
        create_all(&self.slot_invalidated, REASON, INVALIDATIONS);
        create_all(&self.not_ready, REASON, NotReady::CODES);
        create_all(
            &self.intake_closed,
            REASON,
            IntakeClosed::VARIANTS.iter().map(name_of),
        );
        create_all(
            &self.ignored_messages,
            OPERATION,
            Other::VARIANTS.iter().map(name_of),
        );
        create_all(&self.errors, KIND, Kind::VARIANTS.iter().map(name_of));
        create_all(
            &self.failed_attempts,
            CLASS,
            CLASSES.into_iter().filter(|class| *class != BEHIND),
        );
        create_all(&self.written_back_rows, OUTCOME, OUTCOMES);
    }

    /// The metrics of a slot without those of a relay, at zero.
    pub(crate) fn of_slot() -> Self {
        let mut metrics = Metrics::new();
        metrics.registries.pop();
        metrics.connection_state.remove(&[(SIDE, Side::Bus.name())]);
        metrics
    }

    pub(super) fn is_of_relay(&self) -> bool {
        self.registries.len() > 2
    }

    /// The metrics in the OpenMetrics text format.
    ///
    /// # Errors
    /// Only without memory for the text; the result is never partial.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        for registry in &self.registries {
            encode_registry(&mut text, registry)?;
        }
        encode_eof(&mut text)?;
        Ok(text)
    }

    /// Names what this process relays; `guarantee` is empty for a process that delivers nothing.
    pub(crate) fn relays(&self, source: &SourceConfig, guarantee: &str) {
        let mode = name_of(&source.mode);
        let labels = [
            ("slot", source.slot.as_str()),
            ("database", &source.database.database),
            ("publication", &source.publication),
            ("mode", &mode),
            ("guarantee", guarantee),
        ];
        self.relay_info
            .get_or_create(&labels.map(|(name, value)| (name, value.to_owned())).into())
            .set(1);
    }

    /// Sets what the server shows of the slot. A relay that streams knows the positions better, and
    /// keeps its own.
    pub(crate) fn set_slot(&self, state: &SlotState) {
        let active = state.active.filter(|_| state.table_reader_pid.is_none());
        self.slot_active
            .set(active.map(|active| f64::from(u8::from(active))));
        for status in WAL_STATUSES {
            self.slot_wal_status
                .get_or_create(&[(STATUS, status)])
                .set((state.wal_status.as_deref() == Some(status)).into());
        }
        self.slot_safe_wal_bytes
            .set(state.safe_wal_bytes.map(|bytes| bytes as f64));
        self.slot_spilled_bytes
            .set(state.spill_bytes.map(|bytes| bytes as f64));
        self.slot_inactive_seconds.set(state.inactive_seconds);
        for reason in INVALIDATIONS {
            let is_it = state.invalidation_reason.as_deref() == Some(reason);
            self.slot_invalidated
                .get_or_create(&[(REASON, reason)])
                .set(is_it.into());
        }
        if !self.is_streaming() {
            self.confirmed_lsn
                .set(state.confirmed_lsn.unwrap_or_default());
            self.slot_restart_lsn
                .set(state.restart_lsn.unwrap_or_default());
            self.server_wal_end_lsn
                .set(state.wal_end.unwrap_or_default());
        }
    }

    /// Sets the number of parked events, and the age of the oldest; `None` where it is unknown. A
    /// relay at work knows the number better, and keeps its own.
    pub(crate) fn set_parked(&self, events: Option<i64>, oldest_seconds: Option<f64>) {
        self.oldest_parked_seconds.set(oldest_seconds);
        if !self.is_streaming() && self.reads_table.get() == 0 {
            self.waiting_events.set(events.unwrap_or_default());
        }
    }

    pub(crate) fn is_streaming(&self) -> bool {
        self.received_lsn.bytes().is_some()
    }

    /// Counts routed events of an outbox.
    pub(crate) fn outbox_events(&self, outbox: &str, events: u64) {
        self.outbox_events
            .get_or_create(&[(OUTBOX, outbox.to_owned())])
            .inc_by(events);
    }

    /// Counts rows of an outbox that have the transaction of another row.
    pub(crate) fn copied_rows(&self, outbox: &str, rows: u64) {
        self.copied_rows
            .get_or_create(&[(OUTBOX, outbox.to_owned())])
            .inc_by(rows);
    }

    /// Takes in whether another relay is at work. A relay that stood by before tries to take over.
    pub(super) fn set_standing_by(&self, stands_by: bool) {
        if self.standing_by.set(stands_by.into()) == 1 && !stands_by {
            self.take_overs.inc();
        }
    }

    /// A session ended: nobody measures what it measured.
    pub(crate) fn session_ended(&self) {
        self.received_lsn.set(Lsn::default());
        self.oldest_transaction_seconds.set(0);
        self.oldest_transaction_pid.set(0);
        self.synchronous_standby.set(0);
    }

    /// Another relay is at work: it has the events, and deletes old rows.
    pub(super) fn stands_by(&self) {
        self.set_oldest_unacked_commit(None);
        self.in_flight_events.set(0);
        self.in_flight_bytes.set(0);
        self.write_back_due_events.set(0);
        self.intake_closed(None);
        self.stored_lsn.set(Lsn::default());
        self.clean_up_success_timestamp_seconds.set(None);
        self.broker_round_trip_seconds.set(None);
        self.broker_throttle_seconds.set(0.0);
    }

    /// The relay deletes old rows from now on. An age without a clean-up counts from here.
    pub(crate) fn clean_up_begins(&self, now_us: i64) {
        if self.clean_up_success_timestamp_seconds.is_empty() {
            self.cleaned_up(now_us);
        }
    }

    pub(crate) fn cleaned_up(&self, now_us: i64) {
        self.clean_up_success_timestamp_seconds
            .set(Some(micros_to_seconds(now_us)));
    }

    /// Sets the number of such rows of an outbox; `None` if it is unknown.
    pub(crate) fn set_rows(&self, rows: RowState, outbox: &str, count: Option<i64>) {
        let family = match rows {
            RowState::Unpublished => &self.unpublished_rows,
            RowState::Failed => &self.failed_rows,
        };
        let labels = [(OUTBOX, outbox.to_owned())];
        match count {
            Some(count) => drop(family.get_or_create(&labels).set(count)),
            None => drop(family.remove(&labels)),
        }
    }

    /// Sets the reason for which the relay is not ready; `None` if it is ready.
    pub(super) fn set_ready(&self, why_not: Option<&'static str>) {
        self.ready.set(why_not.is_none().into());
        for code in NotReady::CODES {
            self.not_ready
                .get_or_create(&[(REASON, code)])
                .set((why_not == Some(code)).into());
        }
    }

    /// Counts failed attempts to deliver events. Not for the path of every event.
    pub(crate) fn failed_attempts(&self, class: &'static str, attempts: u64) {
        self.failed_attempts
            .get_or_create(&[(CLASS, class)])
            .inc_by(attempts);
    }

    /// Counts rows that were written to: of events that were acked, that failed, and that were
    /// parked.
    pub(crate) fn written_back(&self, rows: [u64; 3]) {
        for (outcome, rows) in OUTCOMES.into_iter().zip(rows) {
            self.written_back_rows
                .get_or_create(&[(OUTCOME, outcome)])
                .inc_by(rows);
        }
    }

    /// Counts a committed transaction of the bus, its events and the time of its commit.
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
        self.connection_state
            .get_or_create(&[(SIDE, side.name())])
            .set(i64::from(up));
    }

    /// Sets the reason for which intake is closed; `None` if it is open.
    pub(crate) fn intake_closed(&self, why: Option<IntakeClosed>) {
        for reason in IntakeClosed::VARIANTS {
            self.intake_closed
                .get_or_create(&[(REASON, name_of(reason))])
                .set(i64::from(why == Some(*reason)));
        }
    }

    /// Counts messages without an event. Not for the path of every message.
    pub fn ignored(&self, other: Other, messages: u64) {
        self.ignored_messages
            .get_or_create(&[(OPERATION, name_of(&other))])
            .inc_by(messages);
    }

    /// Counts an error, whatever its consequence. Not for the path of every event.
    pub fn error(&self, kind: Kind) {
        self.errors
            .get_or_create(&[(KIND, kind.name().to_owned())])
            .inc();
    }

    /// Sets the commit time of the oldest event that is not acked or not written back, in Unix
    /// microseconds; `None` if there is none.
    pub(crate) fn set_oldest_unacked_commit(&self, committed_at_us: Option<i64>) {
        self.oldest_unacked_commit_us
            .store(committed_at_us.unwrap_or(NO_COMMIT_TIME), Ordering::Relaxed);
    }

    /// Bytes of WAL from the confirmed LSN to the server's end; `None` before both are known.
    pub fn lag_bytes(&self) -> Option<u64> {
        self.server_wal_end()?
            .checked_sub(self.confirmed_lsn.bytes()?)
            .or(Some(0))
    }

    /// Bytes of WAL that the slot retains; `None` before both ends are known.
    pub(crate) fn retained_wal_bytes(&self) -> Option<u64> {
        self.server_wal_end()?
            .checked_sub(self.slot_restart_lsn.bytes()?)
            .or(Some(0))
    }

    /// Seconds from the commit of the oldest event that is not acked or not written back to
    /// `now_us` (Unix microseconds); 0 if there is none.
    pub fn lag_seconds(&self, now_us: i64) -> f64 {
        match self.oldest_unacked_commit_us.load(Ordering::Relaxed) {
            NO_COMMIT_TIME => 0.0,
            committed_at_us => micros_to_seconds(now_us.saturating_sub(committed_at_us).max(0)),
        }
    }

    /// Records the ack at `now_us` of an event that was committed at `committed_at_us`; both are
    /// Unix microseconds.
    pub(crate) fn observe_commit_to_ack(&self, committed_at_us: i64, now_us: i64) {
        self.commit_to_ack_seconds.observe(micros_to_seconds(
            now_us.saturating_sub(committed_at_us).max(0),
        ));
    }

    /// The server's end of WAL, at least the received LSN.
    fn server_wal_end(&self) -> Option<u64> {
        self.server_wal_end_lsn
            .bytes()
            .max(self.received_lsn.bytes())
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

    /// Each sample has this value, or does not exist.
    #[track_caller]
    fn assert_samples(metrics: &Metrics, expected: &[(&str, Option<f64>)]) {
        let samples = samples(&metrics.encode().unwrap());
        for (sample, value) in expected {
            assert_eq!(samples.get(*sample), value.as_ref(), "{sample}");
        }
    }

    #[test]
    fn counters_increase_and_labels_have_their_fixed_values() {
        let metrics = Metrics::new();
        metrics.received_lsn.set(Lsn::new(900));
        metrics.stored_lsn.set(Lsn::new(500));
        metrics.confirmed_lsn.set(Lsn::new(400));
        metrics.server_wal_end_lsn.set(Lsn::new(1000));
        metrics.slot_restart_lsn.set(Lsn::new(100));
        metrics.error(Kind::BusUnreachable);
        metrics.observe_commit_to_ack(1_000_000, 1_020_000);
        metrics.acked_events.inc_by(7);
        metrics.clone().acked_events.inc_by(1);
        metrics.retry(Side::Bus);
        metrics.connection(Side::Postgres, true);
        metrics.ignored(Other::Delete, 1);
        assert_samples(
            &metrics,
            &[
                ("walrelay_acked_events_total", Some(8.0)),
                ("walrelay_lag_bytes", Some(600.0)),
                ("walrelay_retained_wal_bytes", Some(900.0)),
                (r#"walrelay_retries_total{side="bus"}"#, Some(1.0)),
                (r#"walrelay_retries_total{side="postgres"}"#, Some(0.0)),
                (r#"walrelay_connection_state{side="postgres"}"#, Some(1.0)),
                (r#"walrelay_ignored_messages_total{op="delete"}"#, Some(1.0)),
                (
                    r#"walrelay_errors_total{kind="bus_unreachable"}"#,
                    Some(1.0),
                ),
                (
                    r#"walrelay_commit_to_ack_seconds_bucket{le="0.02"}"#,
                    Some(1.0),
                ),
                (
                    r#"walrelay_commit_to_ack_seconds_bucket{le="0.01"}"#,
                    Some(0.0),
                ),
            ],
        );
    }

    #[test]
    fn every_kind_reason_and_class_is_exposed_from_the_start_and_no_unknown_lag() {
        let metrics = Metrics::new();
        metrics.set_ready(Some("standing_by"));
        assert_samples(
            &metrics,
            &[
                (r#"walrelay_errors_total{kind="slot_unusable"}"#, Some(0.0)),
                (
                    r#"walrelay_failed_attempts_total{class="too-large"}"#,
                    Some(0.0),
                ),
                (
                    r#"walrelay_written_back_rows_total{outcome="failed"}"#,
                    Some(0.0),
                ),
                (r#"walrelay_slot_wal_status{status="lost"}"#, Some(0.0)),
                (r#"walrelay_not_ready{reason="standing_by"}"#, Some(1.0)),
                (r#"walrelay_not_ready{reason="stalled"}"#, Some(0.0)),
                ("walrelay_ready", Some(0.0)),
                ("walrelay_lag_bytes", None),
                ("walrelay_retained_wal_bytes", None),
            ],
        );
    }

    #[test]
    fn an_exporter_exposes_the_process_and_nothing_of_a_relay() {
        let metrics = Metrics::of_slot();
        let absent = [
            "walrelay_ready",
            "walrelay_lag_seconds",
            r#"walrelay_connection_state{side="bus"}"#,
        ];
        assert_samples(&metrics, &absent.map(|sample| (sample, None)));
        let exposed = samples(&metrics.encode().unwrap());
        assert!(
            exposed["process_resident_memory_bytes"] > 1e6 && exposed["process_open_fds"] > 2.0
        );
        assert!(exposed["process_cpu_seconds_total"] >= 0.0);
    }

    #[test]
    fn the_positions_are_those_of_the_server_except_while_this_relay_streams() {
        let metrics = Metrics::new();
        let lsn = |bytes| Some(Lsn::new(bytes));
        let of_server = SlotState {
            restart_lsn: lsn(100),
            wal_end: lsn(700),
            ..SlotState::default()
        };
        metrics.set_slot(&of_server);
        metrics.set_parked(Some(3), Some(60.0));
        assert_eq!(
            (metrics.retained_wal_bytes(), metrics.waiting_events.get()),
            (Some(600), 3)
        );

        metrics.received_lsn.set(Lsn::new(900));
        metrics.oldest_transaction_seconds.set(60);
        metrics.set_slot(&of_server);
        metrics.server_wal_end_lsn.set(Lsn::new(1_000));
        metrics.waiting_events.set(4);
        metrics.set_slot(&of_server);
        metrics.set_parked(Some(3), None);
        assert_eq!(
            (metrics.retained_wal_bytes(), metrics.waiting_events.get()),
            (Some(900), 4)
        );

        metrics.session_ended();
        metrics.set_slot(&SlotState::default());
        assert_eq!(
            (
                metrics.retained_wal_bytes(),
                metrics.oldest_transaction_seconds.get()
            ),
            (None, 0)
        );
    }

    #[test]
    fn a_stand_by_has_no_lag_and_no_age_of_a_clean_up() {
        const CLEANED_UP: &str = "walrelay_clean_up_success_timestamp_seconds";
        let telemetry = crate::telemetry::Telemetry::new(
            crate::config::Bus::default(),
            Duration::from_secs(30),
        );
        let metrics = &telemetry.metrics;
        metrics.clean_up_begins(1_000_000);
        metrics.clean_up_begins(2_000_000);
        assert_samples(metrics, &[(CLEANED_UP, Some(1.0))]);
        metrics.cleaned_up(3_000_000);
        metrics.set_oldest_unacked_commit(Some(1));
        metrics.in_flight_events.set(5);
        metrics.in_flight_bytes.set(50);
        metrics.intake_closed(Some(IntakeClosed::QueueFull));

        telemetry.standing_by(Some("backend pid 7, streams".to_owned()));
        telemetry.standing_by(None);
        assert_samples(
            metrics,
            &[
                (CLEANED_UP, None),
                ("walrelay_lag_seconds", Some(0.0)),
                ("walrelay_in_flight_events", Some(0.0)),
                ("walrelay_in_flight_bytes", Some(0.0)),
                (r#"walrelay_intake_closed{reason="queue_full"}"#, Some(0.0)),
            ],
        );
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

    /// All metrics with every value known, so that each is exposed.
    fn known() -> Metrics {
        let metrics = Metrics::new();
        let lsn = Lsn::new(1);
        let one = Some(1);
        let state = SlotState {
            safe_wal_bytes: one,
            spill_bytes: one,
            inactive_seconds: Some(1.0),
            active: Some(true),
            confirmed_lsn: Some(lsn),
            restart_lsn: Some(lsn),
            wal_end: Some(lsn),
            ..SlotState::default()
        };
        metrics.set_slot(&state);
        metrics.set_parked(one, Some(1.0));
        metrics.received_lsn.set(lsn);
        metrics.stored_lsn.set(lsn);
        metrics.clock_difference_seconds.set(Some(1.0));
        metrics.outbox_events("", 1);
        metrics.copied_rows("", 1);
        metrics.set_rows(RowState::Unpublished, "", one);
        metrics.set_rows(RowState::Failed, "", one);
        metrics.relay_info.get_or_create(&Vec::new()).set(1);
        metrics.clean_up_success_timestamp_seconds.set(Some(1.0));
        metrics.broker_round_trip_seconds.set(Some(1.0));
        metrics
    }

    #[test]
    fn every_metric_is_documented_with_its_type() {
        let text = known().encode().unwrap();
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let exposed: BTreeMap<String, &str> = types
            .map(|described| {
                let (name, kind) = described.split_once(' ').unwrap();
                let ending = match kind {
                    "counter" => "_total",
                    "info" => "_info",
                    _ => "",
                };
                (format!("{name}{ending}"), kind)
            })
            .collect();
        let page = include_str!("../../docs/reference/metrics.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let documented: BTreeMap<String, &str> = rows
            .map(|row| {
                let mut cells = row.split(" | ");
                let name = cells.next().unwrap().split(['{', '`']).next().unwrap();
                (name.to_owned(), cells.next().unwrap().trim())
            })
            .collect();
        assert_eq!(documented, exposed);
    }
}
