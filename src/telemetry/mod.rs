//! Logs, metrics and health: what an operator sees of a running relay.
//!
//! The relay tells [`Metrics`] and [`HealthHandle`] what happens; nothing here asks it anything, so a stalled relay still
//! answers.

pub mod health;
pub mod http;
pub mod logging;
pub mod metrics;

mod connection;

use std::time::Duration;

pub use health::{HealthHandle, NotReady, Readiness};
pub use metrics::Metrics;

/// One of the two ends the relay is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Where events come from.
    Postgres,
    /// Where they go.
    Kafka,
}

impl Side {
    /// Both, in the order of their metrics.
    pub const ALL: [Side; 2] = [Side::Postgres, Side::Kafka];

    /// The label's value, and the word in a sentence.
    pub const fn name(self) -> &'static str {
        match self {
            Side::Postgres => "postgres",
            Side::Kafka => "kafka",
        }
    }
}

/// What the relay is handed: where to count and where to report. Clones share everything.
#[derive(Debug, Clone)]
pub struct Telemetry {
    /// Counters and gauges.
    pub metrics: Metrics,
    /// What readiness is computed from.
    pub health: HealthHandle,
}

impl Telemetry {
    /// Fresh metrics, and a health that is not ready until it is told otherwise.
    pub fn new(ready_within: Duration) -> Self {
        Telemetry { metrics: Metrics::new(), health: HealthHandle::new(ready_within) }
    }

    /// Another relay is at work, and this is who; none where this one is, or tries to be.
    pub fn standing_by(&self, holder: Option<String>) {
        self.metrics.standing_by.set(i64::from(holder.is_some()));
        self.health.standing_by(holder);
    }

    /// One end was connected or lost.
    pub fn connected(&self, side: Side, up: bool) {
        self.metrics.connection(side, up);
        self.health.connection(side, up);
    }
}
