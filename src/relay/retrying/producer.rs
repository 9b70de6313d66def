//! The producer of the retries: sends a batch, and waits for its acks.

use std::pin::pin;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use crate::config::Config;
use crate::relay::setup::setup_of;
use crate::relay::stall_watchdog::StallGuard;
use crate::sink::{AnySink, BusSink as _};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::parked::ParkedRow;
use walrelay_core::position::ServerIdentity;
use walrelay_core::publisher::retry_batch::{Retries, RetryBatch, RetryResult};
use walrelay_core::sink::Sink as _;

/// How long acks are waited for: a topic that does not exist is known to be missing after a twelfth
/// of it.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct RetryProducer<'a> {
    config: &'a Config,
    /// Gives the producer up should the process stand still.
    beside: Option<&'a StallGuard>,
    sink: Option<AnySink>,
    pub(super) retries: Retries,
}

impl<'a> RetryProducer<'a> {
    pub(super) fn new(
        config: &'a Config,
        server: ServerIdentity,
        beside: Option<&'a StallGuard>,
    ) -> RetryProducer<'a> {
        RetryProducer {
            config,
            beside,
            sink: None,
            retries: Retries::new(setup_of(config), server),
        }
    }

    /// Sends these events up to the first that cannot be sent, and waits for the acks.
    /// Errors: those of [`Retries::batch`].
    pub(super) async fn send(&mut self, events: &[ParkedRow]) -> Result<RetryResult> {
        let mut batch = self.retries.batch(events)?;
        let gone = self.send_batch(&mut batch).await.err();
        let result = self.retries.end(batch, gone);
        if !result.keeps_producer
            && let Some(sink) = self.sink.take()
        {
            sink.close().await;
        }
        Ok(result)
    }

    async fn send_batch(&mut self, batch: &mut RetryBatch) -> Result<()> {
        if batch.is_over() {
            return Ok(());
        }
        let until = Instant::now() + SEND_TIMEOUT;
        let sink = match &mut self.sink {
            Some(sink) => sink,
            none => {
                let config = self.config.clone();
                // Files are read for it, and all other tasks share the thread.
                let made = spawn_blocking(move || AnySink::connect(&config)).await;
                none.insert(made.map_err(|error| Error::new(Kind::Bug, error))??)
            }
        };
        if let Some(beside) = self.beside {
            beside.guard(Some(sink.handle()));
            // Only what is in a queue is given up, and nothing is put there without this.
            beside.check()?;
        }
        let handle = sink.handle();
        let mut unusable = pin!(handle.unusable());
        let mut deliveries = Vec::new();
        loop {
            batch.enqueue(sink);
            if batch.is_over() {
                return Ok(());
            }
            tokio::select! {
                biased;
                error = &mut unusable => return Err(error),
                told = timeout_at(until, sink.deliveries(&mut deliveries)) => {
                    let what = "the bus did not ack parked events";
                    told.map_err(|_| Error::new(Kind::BusUnreachable, what))?;
                }
            }
            batch.delivered(deliveries.drain(..), sink);
        }
    }

    pub(super) async fn end(self) {
        if let Some(sink) = self.sink {
            sink.close().await;
        }
    }
}
