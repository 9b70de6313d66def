//! Events that the broker may refuse: sent with nothing else in flight, and given up where they stand if they are.

use super::giving_up::{GivenUp, GivingUp};
use super::{InFlight, Outlet, Pending};
use crate::config::OnError;
use crate::error::{Error, Result};
use crate::event::{Event, Shown};
use crate::ledger::Ticket;
use crate::relay::outlet::bytes_of;
use crate::relay::poison::{Like, Verdict};
use crate::route::OwnedRecord;
use crate::sink::{EnqueueError, Sink};
use crate::upkeep::parked::Parked;

/// What is kept of an event that may be refused, beside its record.
#[derive(Debug)]
pub(super) struct Alone {
    /// What waits of it then, where such events wait.
    parked: Option<Box<Parked>>,
}

/// An event in flight that may be refused.
#[derive(Debug)]
pub(super) struct InFlightAlone {
    pub(super) ticket: Ticket,
    record: OwnedRecord,
    kept: Alone,
}

impl GivingUp {
    /// What has to be kept of `event`, of an outbox with these columns, to send it alone.
    pub(super) fn alone(&self, event: &Event<'_>, columns: &[String]) -> Alone {
        let waits = self.delivery.on_error == OnError::Park;
        Alone { parked: waits.then(|| Box::new(Parked::of(event, columns, None, None))) }
    }
}

impl<S: Sink> Outlet<S> {
    /// Sends what may be refused: nothing is in flight.
    pub(super) fn offer_apart(&mut self, mut pending: Pending) -> Result<Option<(Pending, Error)>> {
        let Some(kept) = pending.alone.take() else { return self.offer(pending) };
        let ticket = self.ledger.next();
        let sent = pending.record.with_record(|record| {
            let sent = self.sink.enqueue_apart(record, ticket);
            if sent.is_ok() {
                self.giving_up.poison.sent_to(record.topic, ticket);
            }
            sent.map(|()| (bytes_of(record), Like::of(record)))
        });
        match sent {
            Ok((bytes, like)) => {
                self.giving_up.poison.sent_alone(ticket, like);
                self.enqueued(bytes, pending.event)?;
                self.apart = Some(InFlightAlone { ticket, record: pending.record, kept });
                Ok(None)
            }
            Err(EnqueueError::Full | EnqueueError::Finished) => {
                self.pending = Some(Pending { alone: Some(kept), ..pending });
                Ok(None)
            }
            Err(EnqueueError::Refused(error)) => Ok(Some((pending, error))),
        }
    }

    /// Sends the dead letter of an event that was refused under `ticket`, and has it still.
    pub(super) fn offer_again(&mut self, pending: Pending, ticket: Ticket) -> Result<Option<(Pending, Error)>> {
        match pending.record.with_record(|record| self.sink.enqueue(record, ticket)) {
            Ok(()) => {
                if let Some(event) = self.ledger.event_mut(ticket) {
                    *event = pending.event.needed();
                }
                Ok(None)
            }
            Err(EnqueueError::Full | EnqueueError::Finished) => {
                self.pending = Some(pending);
                Ok(None)
            }
            Err(EnqueueError::Refused(error)) => Ok(Some((pending, error))),
        }
    }

    /// The event that was in flight alone is refused, and given up.
    ///
    /// # Errors
    /// It cannot be given up.
    #[cold]
    pub(super) fn refused_apart(&mut self, ticket: Ticket, error: Error) -> Result<()> {
        let Some(apart) = self.apart.take_if(|apart| apart.ticket == ticket) else { return Ok(()) };
        let Some(event) = self.ledger.event_mut(ticket).and_then(Option::take) else { return Ok(()) };
        let InFlightAlone { record, kept, .. } = apart;
        let InFlight { place, committed_at_us, id, max_attempts, .. } = *event;
        let Some(id) = id else { return Err(error.of_event(place.commit_lsn, place.index)) };
        self.giving_up.poison.refused_alone(ticket, &id, &error);
        if let Some(parked) = kept.parked {
            return self.park_kept(*parked, id, (max_attempts, Some(ticket)), &record, &error);
        }
        let error = error.of_row(Shown::of(id.row.id()));
        let of = GivenUp { place, committed_at_us, ticket: Some(ticket) };
        self.dead_letter_or_skip(&of, id, record, &Verdict { error, without_value: false })
    }
}
