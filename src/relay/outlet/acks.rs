//! What the broker said of what was enqueued.

use tokio::time::Instant;

use super::{Outlet, contradiction};
use crate::error::{Disposition, Result};
use crate::failpoint;
use crate::sink::{Delivery, Sink};

impl<S: Sink> Outlet<S> {
    /// Waits for acks of what is in flight, until `until` or the producer fails.
    pub async fn drain(&mut self, until: Instant) {
        let mut deliveries = Vec::new();
        while !self.is_drained() {
            let waited = tokio::time::timeout_at(until, self.next_deliveries(&mut deliveries)).await;
            let taken = self.delivered(&mut deliveries).and_then(|()| self.retry_pending());
            if waited.is_err() || taken.is_err() {
                return;
            }
        }
    }

    /// Takes in what the broker said.
    ///
    /// # Errors
    /// The first failure, with the event it happened to. Every ack beside it was taken in; the producer is finished. One of an
    /// event that can be given up heals: the next producer finds out which it is.
    pub fn delivered(&mut self, deliveries: &mut Vec<Delivery>) -> Result<()> {
        let mut failure = None;
        self.giving_up.limit(deliveries);
        // What was acked is cleared of suspicion before anything is suspected.
        let (mut refused, is_on) = (Vec::new(), self.giving_up.is_on());
        for delivery in deliveries.drain(..) {
            match delivery {
                Delivery::Acked(ticket) => {
                    failpoint::reached("acked");
                    self.acked_apart(ticket);
                    let bytes = self.ledger.acked(ticket).map_err(contradiction)?;
                    self.counts.acked_bytes += bytes as u64;
                    self.counts.acked += 1;
                }
                Delivery::Refused(ticket, error) => {
                    if let Err(error) = self.refused_apart(ticket, error) {
                        failure.get_or_insert(error);
                    }
                }
                Delivery::Failed(ticket, error) => {
                    if is_on && error.kind().disposition() == Disposition::GiveUp {
                        refused.push((ticket, error.clone()));
                    }
                    if let Some(told) = self.giving_up.refused_by_topic(&error) {
                        failure.get_or_insert(told);
                        continue;
                    }
                    let found = self.ledger.whereabouts(ticket);
                    failure.get_or_insert_with(|| match found {
                        Some(at) => error.of_event(at.commit_lsn, at.index),
                        None => error,
                    });
                }
            }
        }
        self.giving_up.acked_below(self.ledger.next_undelivered());
        if self.giving_up.delivery.transactions.is_none() {
            self.count_given_up();
        }
        match failure {
            None => Ok(()),
            Some(failure) => Err(self.giving_up.judge(refused, failure)),
        }
    }

    /// Whether everything taken in is acked.
    pub fn is_drained(&self) -> bool {
        self.pending.is_none() && self.ledger.in_flight_events() == 0
    }
}
