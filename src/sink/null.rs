//! A sink that keeps nothing: to measure the path before the bus.

use walrelay_core::error::Result;
use walrelay_core::ledger::Ticket;
use walrelay_core::route::Record;
use walrelay_core::sink::{Delivery, EnqueueError, Sink};

use super::BusSink;
use crate::config::Config;

/// Keeps nothing and acks each record as it comes.
#[derive(Debug, Default)]
pub struct NullSink {
    taken: Vec<Ticket>,
}

impl Sink for NullSink {
    fn enqueue(&mut self, _: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        self.taken.push(ticket);
        Ok(())
    }

    async fn deliveries(&mut self, into: &mut Vec<Delivery>) {
        if self.taken.is_empty() {
            std::future::pending().await
        }
        into.extend(self.taken.drain(..).map(Delivery::Acked));
    }
}

impl BusSink for NullSink {
    fn connect(_: &Config) -> Result<NullSink> {
        Ok(NullSink::default())
    }
}
