//! Events that the broker may refuse: sent with nothing else in flight, and given up where they stand if they are.

use super::giving_up::{GivenUp, GivingUp};
use super::{About, Outlet, Pending, enqueued};
use crate::config::OnError;
use crate::error::{Error, Result};
use crate::event::{Event, Shown};
use crate::relay::outlet::bytes_of;
use crate::relay::poison::{Like, Verdict};
use crate::route::OwnedRecord;
use crate::sink::{EnqueueError, Sink, Ticket};
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
    ticket: Ticket,
    record: OwnedRecord,
    about: About,
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
                let Pending { record, about, .. } = pending;
                let (place, committed_at_us, id) = (about.place, about.committed_at_us, about.id.clone());
                // What is written of it is known once it is acked, or refused.
                let in_flight = About {
                    place,
                    committed_at_us,
                    kept: None,
                    id,
                    max_attempts: about.max_attempts,
                    sends: about.sends,
                };
                let of = (in_flight, bytes, self.xid, Some(like));
                enqueued(&mut self.counts, &mut self.kept, &mut self.giving_up, &mut self.ledger, of)?;
                self.apart = Some(InFlightAlone { ticket, record, about, kept });
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
                self.kept.extend(pending.about.kept.map(|outcome| (ticket, outcome, self.xid)));
                self.giving_up.sent(ticket, pending.about.sends, None);
                if let Some(id) = pending.about.id {
                    self.giving_up.poison.sent(ticket, id, None);
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

    /// The broker has this record. Where it was in flight alone, what is to be written of it is known now.
    #[inline]
    pub(super) fn acked_apart(&mut self, ticket: Ticket) {
        if let Some(InFlightAlone { about, .. }) = self.apart.take_if(|apart| apart.ticket == ticket) {
            self.kept.extend(about.kept.map(|outcome| (ticket, outcome, self.xid)));
        }
    }

    /// The event that was in flight alone is refused, and given up.
    ///
    /// # Errors
    /// It cannot be given up.
    #[cold]
    pub(super) fn refused_apart(&mut self, ticket: Ticket, error: Error) -> Result<()> {
        let Some(apart) = self.apart.take_if(|apart| apart.ticket == ticket) else { return Ok(()) };
        let InFlightAlone { record, about, kept, .. } = apart;
        self.giving_up.poison.refused_alone(ticket, &error);
        let Some(id) = about.id else { return Err(error.of_event(about.place.commit_lsn, about.place.index)) };
        if let Some(parked) = kept.parked {
            return self.park_kept(*parked, id, (about.max_attempts, Some(ticket)), &record, &error);
        }
        let error = error.of_row(Shown::of(id.row.id()));
        let of = GivenUp { place: about.place, committed_at_us: about.committed_at_us, ticket: Some(ticket) };
        self.dead_letter_or_skip(&of, id, record, &Verdict { error, without_value: false })
    }
}
