//! The relay: one task that owns the position, and everything it needs to come back from what fails.
//!
//! Two lives are nested. A *producer's* life ([`pipeline::Pipeline`]) begins behind the delivered position and ends with the
//! first delivery that fails. Inside it, a *session* begins with a connection to Postgres and ends with it; the next
//! one goes on where the last stopped, so that losing Postgres sends nothing twice.

use std::sync::Arc;

use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::telemetry::Telemetry;

mod alarm;
mod checks;
pub mod delivered_before;
pub(crate) mod drain;
mod fence;
mod fitness;
mod jobs;
mod lease;
mod outage;
mod parked_index;
pub mod pipeline;
mod producer;
mod published_rows;
pub mod publisher;
pub mod quarantine;
mod read_pacer;
mod recovery;
mod replication;
mod report;
mod retention;
mod retrying;
mod session;
mod slot;
mod stall_watchdog;
pub mod stop;
mod store;
mod stream_reader;
mod supervisor;
mod table;
mod table_loop;
mod transaction;
mod watch;
mod write_back;

use self::stop::{Stop, StopSignal};
use self::supervisor::Relay;

/// Relays until told to stop or until a person has to act.
///
/// What was acked and stored when it returns is confirmed, unless Postgres could not be told.
///
/// # Errors
/// Everything that [halts](Kind::halts), and [`Kind::ShutdownTimeout`] where a stop left events not acked. Faults
/// that heal are retried here with back-off and never returned.
pub async fn run(config: Config, telemetry: Telemetry, mut stop: StopSignal) -> Result<()> {
    let retention = config.clone();
    let mut relay = Relay::new(config, telemetry)?;
    let known = Arc::clone(&relay.known);
    let result = tokio::select! {
        biased;
        result = Box::pin(relay.run(&mut stop)) => result,
        () = retention::keep(&retention, &known) => Err(Error::new(Kind::Bug, "the retention came to an end")),
    };
    if stop.asked() < Stop::Now {
        relay.producer.end().await;
    }
    if let Err(error) = &result {
        relay.telemetry.health.halted(&error.to_string());
        relay.telemetry.metrics.error(error.kind());
    }
    result
}
