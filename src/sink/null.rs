//! [`Sink`] that keeps nothing: to measure what comes before the bus.

use super::{Delivery, EnqueueError, Sink};
use crate::ledger::Ticket;
use crate::route::Record;

/// Acks each record as it comes.
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
