//! Logs, metrics, health and the status page of a running relay, and what is sent to OpenTelemetry
//! and systemd.
//!
//! The relay reports to [`Metrics`] and [`HealthHandle`]. Nothing here waits for the relay, so its
//! pages answer while it is stalled.

pub(crate) mod doing;
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

use failures::Failures;
pub use health::HealthHandle;
pub use metrics::Metrics;
use otel::Spans;
pub(crate) use page::Page;
use tokio::sync::watch;

use crate::config::Bus;
use walrelay_core::error::Error;
use walrelay_core::publisher::IntakeClosed;
use walrelay_core::readiness::{NotReady, Side};
use walrelay_core::sink::Connection;

/// The name of a variant, as the command line has it.
fn name_of<T: Copy + Into<&'static str>>(value: &T) -> String {
    let name: &str = (*value).into();
    name.to_owned()
}

/// The sample of `/metrics` that is 1 while this is the reason.
pub(crate) fn intake_sample(why: IntakeClosed) -> String {
    format!("walrelay_intake_closed{{reason=\"{}\"}}", name_of(&why))
}

/// The sample that is 1 while the bus asks all its clients to wait.
pub(crate) const BUS_BLOCKED: &str = "walrelay_bus_blocked";

/// The sample that is 1 while this side is connected.
pub(crate) fn connection_sample(side: Side) -> String {
    format!("walrelay_connection_state{{side=\"{}\"}}", side.name())
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
    /// For texts.
    pub(crate) bus: Bus,
    pub(crate) failures: Failures,
    /// The events of the busiest topics, for the status page.
    pub(crate) flows: watch::Sender<Vec<Flow>>,
    /// The server processes of relays that stand by, as far as the role may see them, for the
    /// status page.
    pub(crate) stand_by_pids: watch::Sender<Vec<i32>>,
    /// Takes spans of batches; none without a collector.
    pub(crate) spans: Option<Spans>,
}

impl Telemetry {
    /// New metrics, and a health that is not ready until the relay reports.
    /// Texts name this bus.
    pub fn new(bus: Bus, ready_within: Duration) -> Self {
        Telemetry {
            metrics: Metrics::new(),
            health: HealthHandle::new(bus.name, ready_within),
            bus,
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
        self.metrics
            .set_ready(self.health.not_ready().map(|reason| reason.code()));
        self.metrics.encode()
    }

    /// The active relay, if this one stands by; `None` while this one is active or tries to be.
    pub fn standing_by(&self, holder: Option<String>) {
        self.metrics.set_standing_by(holder.is_some());
        if let Some(holder) = holder {
            self.metrics.stands_by();
            self.health.tell(NotReady::StandingBy(holder));
        } else {
            self.health.withdraw("standing_by");
        }
    }

    /// The bus was connected or lost, or asks to wait, or no longer does.
    pub(crate) fn bus(&self, connection: &Connection) {
        self.connected(Side::Bus, connection.answers());
        let is_blocked = matches!(connection, Connection::Blocked(_));
        self.metrics.bus_blocked.set(is_blocked.into());
    }

    /// An end was connected or lost.
    pub fn connected(&self, side: Side, up: bool) {
        self.metrics.connection(side, up);
        self.health.connection(side, up);
    }
}
