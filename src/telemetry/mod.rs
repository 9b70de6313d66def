//! Logs, metrics, health and the status page of a running relay, and what is sent to OpenTelemetry and systemd.
//!
//! The relay reports to [`Metrics`] and [`HealthHandle`]. Nothing here waits for the relay, so its pages answer while
//! it is stalled.

mod doing;
pub(crate) mod failures;
pub mod health;
pub mod http;
pub mod logging;
pub mod metrics;
pub(crate) mod otel;
mod page;
mod process;
pub(crate) mod service_manager;

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use failures::Failures;
pub use health::{HealthHandle, NotReady};
pub use metrics::Metrics;
use otel::span::Spans;
pub(crate) use page::Page;
use tokio::sync::watch;

use crate::error::Error;

/// One of the two ends that the relay connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The source.
    Postgres,
    /// The sink.
    Kafka,
}

impl Side {
    /// Both ends, in the order of their metrics.
    pub const ALL: [Side; 2] = [Side::Postgres, Side::Kafka];

    /// The value of the label, also for use in a sentence.
    pub const fn name(self) -> &'static str {
        match self {
            Side::Postgres => "postgres",
            Side::Kafka => "kafka",
        }
    }
}

/// The reason for which intake is closed, in the order of their precedence, with its words for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum IntakeClosed {
    /// The tail of a topic has to be read first: it shows whether the event was published before a crash.
    #[value(help = "the relay reads the end of a topic, to find events published before a crash")]
    TopicTail,
    /// An isolated record is in flight, or the next record is to be isolated.
    #[value(help = "the relay sends one record alone, because the broker may reject it")]
    IsolatedRecord,
    /// The sink accepts no record now: standard output is behind, or the producer has failed and will be replaced.
    #[value(help = "the sink accepts no record now")]
    QueueFull,
    /// A dead letter that was refused before is in flight.
    #[value(help = "the relay tries a dead letter again")]
    DeadLetter,
    /// As many events as `kafka.max_in_flight_events` allows are in flight.
    #[value(help = "kafka.max_in_flight_events is reached")]
    InFlightEvents,
    /// As many bytes as `kafka.max_in_flight_bytes` allows are in flight.
    #[value(help = "kafka.max_in_flight_bytes is reached")]
    InFlightBytes,
    /// One of the two limits is reached, and a broker makes this client wait for its quota.
    #[value(help = "the quota of this client in Kafka is used up")]
    Throttled,
    /// As many delivered events as may be in flight are still to be marked, deleted or parked.
    #[value(help = "the relay marks, deletes or parks rows first")]
    WriteBack,
    /// As many bytes of events as may be in flight are still to be written to `walrelay.parked`.
    #[value(help = "parked events wait for the write to walrelay.parked")]
    ParkedBytes,
    /// The Kafka transaction is full or old enough; its acks and its commit are outstanding.
    #[value(help = "a Kafka transaction commits")]
    Transaction,
}

impl IntakeClosed {
    /// The sample of `/metrics` that is 1 while this is the reason.
    pub(crate) fn sample(self) -> String {
        format!("walrelay_intake_closed{{reason=\"{}\"}}", name_of(&self))
    }

    /// The reason where a broker throttles this client, or does not: then the limits are reached because of that.
    pub(crate) fn of_quota(self, is_throttled: bool) -> IntakeClosed {
        let is_limit = matches!(self, IntakeClosed::InFlightEvents | IntakeClosed::InFlightBytes);
        if is_limit && is_throttled { IntakeClosed::Throttled } else { self }
    }

    /// The reason for people.
    pub(crate) fn words(self) -> String {
        self.to_possible_value().and_then(|value| value.get_help().map(ToString::to_string)).unwrap_or_default()
    }
}

/// The name of a variant, as the command line has it.
fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The events of a topic. A new producer counts from 0.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    /// Such as `Topic orders`.
    pub(crate) name: String,
    pub(crate) events: u64,
}

/// Metrics and health of one relay. Clones share everything.
#[derive(Debug, Clone)]
pub struct Telemetry {
    /// Counters and gauges.
    pub metrics: Metrics,
    /// The reports for readiness.
    pub health: HealthHandle,
    pub(crate) failures: Failures,
    /// The events of the busiest topics, for the status page.
    pub(crate) flows: watch::Sender<Vec<Flow>>,
    /// The server processes of relays that stand by, as far as the role may see them, for the status page.
    pub(crate) stand_by_pids: watch::Sender<Vec<i32>>,
    /// Takes spans of batches; none without a collector.
    pub(crate) spans: Option<Spans>,
}

impl Telemetry {
    /// New metrics, and a health that is not ready until the relay reports.
    pub fn new(ready_within: Duration) -> Self {
        Telemetry {
            metrics: Metrics::new(),
            health: HealthHandle::new(ready_within),
            failures: Failures::default(),
            flows: watch::Sender::default(),
            stand_by_pids: watch::Sender::default(),
            spans: None,
        }
    }

    /// Counts an error, whatever its consequence, and keeps it for the status page.
    pub(crate) fn failed(&self, error: &Error) {
        self.metrics.error(error.kind());
        self.failures.keep(error);
    }

    /// As [`Metrics::encode`], with the readiness of this instant.
    ///
    /// # Errors
    /// Those of [`Metrics::encode`].
    pub fn encode(&self) -> Result<String, fmt::Error> {
        self.metrics.set_ready(self.health.not_ready().map(|reason| reason.code()));
        self.metrics.encode()
    }

    /// The active relay, if this one stands by; `None` while this one is active or tries to be.
    pub fn standing_by(&self, holder: Option<String>) {
        self.metrics.set_standing_by(holder.is_some());
        if holder.is_some() {
            self.metrics.stands_by();
        }
        self.health.standing_by(holder);
    }

    /// An end was connected or lost.
    pub fn connected(&self, side: Side, up: bool) {
        self.metrics.connection(side, up);
        self.health.connection(side, up);
    }
}
