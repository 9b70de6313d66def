//! What the broker said of what was enqueued.

use tokio::time::Instant;

use std::collections::HashMap;

use super::giving_up::{Instead, Refusal};
use super::settling::Kept;
use super::{InFlight, Outlet, contradiction};
use crate::error::{Disposition, Result};
use crate::failpoint;
use crate::ledger::Ticket;
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
        self.limit(deliveries);
        // What was acked is cleared of suspicion before anything is suspected.
        let (mut refused, is_on) = (Vec::new(), self.giving_up.is_on());
        for delivery in deliveries.drain(..) {
            match delivery {
                Delivery::Acked(ticket) => {
                    failpoint::reached("acked");
                    self.apart.take_if(|apart| apart.ticket == ticket);
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
                        let id = self.event(ticket).and_then(|event| event.id.clone());
                        refused.push(Refusal { ticket, id, error: error.clone() });
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
        let below = self.ledger.next_undelivered();
        match self.giving_up.delivery.transactions {
            // What is not committed comes again, and what is known of it counts then.
            Some(_) => self.giving_up.poison.clear_alone(below),
            None => self.giving_up.poison.acked_below(below),
        }
        self.release();
        match failure {
            None => Ok(()),
            Some(failure) => Err(self.giving_up.judge(&refused, failure)),
        }
    }

    fn event(&self, ticket: Ticket) -> Option<&InFlight> {
        self.ledger.event(ticket).and_then(Option::as_deref)
    }

    /// What follows for events that are delivered by now, oldest first.
    pub(super) fn release(&mut self) {
        while let Some(event) = self.ledger.take_delivered() {
            let Some(mut event) = event else { continue };
            if let Some(outcome) = event.outcome.take() {
                self.kept.push_back(Kept { place: event.place, outcome, xid: event.xid });
            }
            match self.giving_up.delivery.transactions {
                Some(_) => self.uncommitted.push(*event),
                None => self.finish(&event),
            }
        }
    }

    /// This event does not come again.
    pub(super) fn finish(&mut self, event: &InFlight) {
        if let Some(id) = &event.id {
            self.giving_up.poison.delivered(id);
        }
        match event.instead {
            None => {}
            Some(Instead::DeadLetter | Instead::DeadLetterAgain) => self.counts.dead_lettered += 1,
            Some(Instead::Skipped) => self.counts.skipped += 1,
        }
    }

    /// Says in each failure how often the first event that its topic refused may be tried.
    fn limit(&self, deliveries: &mut [Delivery]) {
        let mut first: HashMap<String, Ticket> = HashMap::new();
        for delivery in deliveries.iter() {
            if let Delivery::Failed(ticket, error) = delivery
                && let Some(topic) = error.topic()
            {
                let of = first.entry(topic.to_owned()).or_insert(*ticket);
                *of = (*of).min(*ticket);
            }
        }
        if first.is_empty() {
            return;
        }
        for delivery in deliveries {
            if let Delivery::Failed(_, error) = delivery
                && let Some(ticket) = error.topic().and_then(|topic| first.get(topic))
            {
                let max = self.event(*ticket).and_then(|event| event.max_attempts);
                *error = error.clone().within(max);
            }
        }
    }

    /// Whether everything taken in is acked.
    pub fn is_drained(&self) -> bool {
        self.pending.is_none() && self.ledger.in_flight_events() == 0
    }
}
