//! The end of a relay that was told to stop.

use tokio::time::Instant;

use super::{Life, Relay, drain};
use crate::config::StoreKind;
use crate::error::{Error, Kind, Result};
use crate::relay::stop::{Stop, StopSignal};

impl Relay {
    /// A stop ends here. What a session did not wait for because Postgres went away, or was away, is waited for now.
    pub(super) async fn leave(&mut self, stop: &mut StopSignal) -> Result<()> {
        let until = stop.since().unwrap_or_else(Instant::now) + self.config.process.shutdown_timeout;
        let acked = match &mut self.life {
            // A session that ended because of the stop has waited.
            Some(Life::Running(pipeline))
                if !self.told && !pipeline.publisher.is_drained() && stop.asked() == Stop::Drain =>
            {
                self.telemetry.health.stopping();
                let in_flight = pipeline.publisher.ledger.in_flight_events();
                tracing::info!(in_flight, "stopping without Postgres: waiting for acks all the same");
                drain::drain(pipeline, until, stop).await?
            }
            Some(Life::Running(_) | Life::New(..)) | None => self.is_drained(),
        };
        self.left(acked)
    }

    /// Whether nothing is in flight. What a producer had that was given up is not counted.
    pub(super) fn is_drained(&self) -> bool {
        match &self.life {
            // What is acked and not committed is not there for anybody.
            Some(Life::Running(pipeline)) => {
                pipeline.publisher.is_drained() && !pipeline.publisher.has_open_transaction()
            }
            Some(Life::New(..)) | None => true,
        }
    }

    /// The last word: well where nothing was left in flight.
    pub(super) fn left(&self, acked: bool) -> Result<()> {
        let (left, settled) = match &self.life {
            Some(Life::Running(pipeline)) => (
                pipeline.publisher.ledger.in_flight_events() + usize::from(pipeline.publisher.is_pending()),
                pipeline.is_settled(),
            ),
            Some(Life::New(..)) | None => (0, false),
        };
        // The slot alone remembers nothing it was not told.
        let remembered = self.told || settled && self.config.state.store != StoreKind::Slot;
        let slot = &self.config.source.slot;
        if acked {
            if remembered {
                tracing::info!("stopped: everything received was acked");
            } else {
                tracing::info!(
                    "stopped: nothing is in flight; what Postgres could not be told of is sent (again) at the next start"
                );
            }
            return Ok(());
        }
        let untold = if remembered { "" } else { ", and Postgres not told of all that were" };
        let events = if left == 1 { "1 event".to_owned() } else { format!("{left} events") };
        let cause = format!("stopped with {events} of slot {slot} not acked{untold}");
        Err(Error::new(Kind::ShutdownTimeout, cause)
            .remedy("nothing is lost: what was not confirmed is sent (again) at the next start"))
    }
}
