//! What becomes of an event that cannot be delivered, where the relay is not to stop for it.

use tokio::time::Instant;

use super::settling::{Failed, Outcome};
use super::{InFlight, Outlet, Pending, contradiction, no_such_outbox};
use crate::config::{DeliveryConfig, OnError};
use crate::error::{Disposition, Error, Kind, Result};
use crate::event::{Event, Place, Shown};
use crate::ledger::Ticket;
use crate::relay::poison::{EventId, Poison, Verdict};
use crate::route::dead_letter::Reason;
use crate::route::{OwnedRecord, Record};
use crate::sink::Sink;
use crate::upkeep::Failure;

/// How events are given up, and what is known of them.
#[derive(Debug)]
pub(super) struct GivingUp {
    pub(super) delivery: DeliveryConfig,
    pub(super) poison: Poison,
}

/// What becomes of an event that is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Instead {
    /// Its dead letter is sent.
    DeadLetter,
    /// Its dead letter is sent once more.
    DeadLetterAgain,
    /// Nothing is sent.
    Skipped,
}

/// A record that the broker refused.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) ticket: Ticket,
    /// Its event, where such events are given up.
    pub(super) id: Option<EventId>,
    pub(super) error: Error,
}

/// An event that is given up, as far as its record does not tell.
#[derive(Debug, Clone, Copy)]
pub(super) struct GivenUp {
    pub(super) place: Place,
    pub(super) committed_at_us: i64,
    /// Its ticket, where it was sent and refused.
    pub(super) ticket: Option<Ticket>,
}

impl GivingUp {
    pub(super) fn new(delivery: &DeliveryConfig) -> GivingUp {
        GivingUp { delivery: delivery.clone(), poison: Poison::default() }
    }

    /// Why an event for `topic` is given up now, if it is: its topic was tried as often as it may be.
    pub(super) fn refusal(&mut self, topic: &str, max_attempts: Option<u32>, now: Instant) -> Option<Error> {
        let retry = self.delivery.retry.within(max_attempts);
        self.poison.refusal(topic, now, |attempts| attempts > retry.attempts)
    }

    /// Whether events are given up at all.
    pub(super) fn is_on(&self) -> bool {
        self.delivery.on_error != OnError::Stop
    }

    /// Whether this event, where events are given up, has to be in flight alone.
    #[inline]
    pub(super) fn suspects(&self, id: Option<&EventId>, record: &Record<'_>) -> bool {
        id.is_some_and(|id| self.poison.is_suspect(id, record))
    }

    /// What follows from `failure`, the first that was told, where these were `refused`.
    pub(super) fn judge(&mut self, refused: &[Refusal], failure: Error) -> Error {
        let Some(first) = refused.first() else { return failure };
        let cause = format!("the broker refused a record; finding out which: {}", first.error);
        if refused.len() > 1 {
            self.poison.with_others();
        }
        let mut judged = true;
        for Refusal { ticket, id, error } in refused {
            judged &= id.as_ref().is_some_and(|id| self.poison.refused(*ticket, id, error));
        }
        if judged { Error::new(Kind::KafkaUnreachable, cause) } else { self.dead_letter_refused(&failure) }
    }

    /// A topic refuses records: where events wait for that, those for it do from now on. What follows then heals.
    pub(super) fn refused_by_topic(&mut self, error: &Error) -> Option<Error> {
        let topic = error.topic().filter(|_| self.delivery.on_error == OnError::Park)?;
        self.poison.refuse_once(topic, error);
        Some(Error::new(Kind::KafkaUnreachable, format!("parking events for topic {topic}: {error}")))
    }

    /// A record that had waited was refused before it was sent.
    pub(super) fn refused_later(&mut self, id: EventId, error: Error) -> Error {
        match self.poison.condemn(id, error.clone()) {
            true => Error::new(Kind::KafkaUnreachable, format!("giving an event up: {error}")),
            false => self.dead_letter_refused(&error),
        }
    }

    fn dead_letter_refused(&self, error: &Error) -> Error {
        let topic = &self.delivery.dead_letter_topic;
        match error.kind().disposition() {
            Disposition::GiveUp => {}
            // It takes none at all, and somebody can heal that.
            Disposition::RetryThenGiveUp => return error.clone().of_topic(topic),
            Disposition::Retry | Disposition::Halt => return error.clone(),
        }
        Error::new(error.kind(), format!("a dead letter was refused: {error}")).remedy(format!(
            "give topic {topic} a larger max.message.bytes and no compaction, name another one in delivery.dead_letter_topic, or \
             set delivery.on_error to stop"
        ))
    }
}

impl<S: Sink> Outlet<S> {
    /// Gives `event` up as the configuration says; `record` is what it comes to, with an empty topic where it has none.
    #[cold]
    pub(super) fn give_up(
        &mut self,
        event: &Event<'_>,
        id: EventId,
        record: OwnedRecord,
        verdict: &Verdict,
    ) -> Result<()> {
        if self.giving_up.delivery.on_error == OnError::Park {
            return self.park(event, id, &record, &verdict.error);
        }
        let of = GivenUp { place: event.place, committed_at_us: event.committed_at_us, ticket: None };
        self.dead_letter_or_skip(&of, id, record, verdict)
    }

    /// The same where events do not wait.
    pub(super) fn dead_letter_or_skip(
        &mut self,
        event: &GivenUp,
        id: EventId,
        record: OwnedRecord,
        verdict: &Verdict,
    ) -> Result<()> {
        let settles = self.outboxes.get(id.row.outbox).ok_or_else(no_such_outbox)?;
        let (class, cause, attempts) = (verdict.error.kind().class(), verdict.error.cause(), verdict.error.attempts());
        let written = match settles.failed {
            Failed::Nothing => None,
            Failed::SameAsAcked => Some(Outcome::Acked(id.row.clone())),
            Failed::Marked => {
                Some(Outcome::Failed(id.row.clone(), Failure { class, cause: cause.to_owned(), attempts }))
            }
        };
        let (outbox, row) = (settles.name.as_str(), Shown::of(id.row.id()));
        let topic = &self.giving_up.delivery.dead_letter_topic;
        let dead_lettered = self.giving_up.delivery.on_error == OnError::DeadLetter;
        let outcome = if dead_lettered { "dead-letter" } else { "skip" };
        let again = dead_lettered && self.giving_up.poison.give_up(&id, verdict);
        if again {
            tracing::debug!(slot = %self.slot, outbox, row = %row, "sending a dead letter again");
        } else {
            tracing::warn!(slot = %self.slot, outbox, row = %row, place = %event.place, class, cause, outcome, "an event was given up");
        }
        if dead_lettered {
            let (slot, place) = (&self.slot, event.place);
            let reason = Reason { slot, outbox, row: id.row.id(), place, class, cause, attempts };
            let letter = record.into_dead_letter(topic, &reason);
            let record = if verdict.without_value { letter.without_value() } else { letter };
            let instead = Some(if again { Instead::DeadLetterAgain } else { Instead::DeadLetter });
            let sent = InFlight { id: Some(id), instead, ..self.unsent(place, event.committed_at_us, written) };
            let refused =
                self.offer(Pending { record, event: sent, row, alone: None, unread: None, ticket: event.ticket })?;
            let Some((pending, error)) = refused else { return Ok(()) };
            if error.kind() != Kind::RecordTooLarge {
                return Err(self.giving_up.dead_letter_refused(&error));
            }
            // What is too large for the producer is so in any topic.
            let record = pending.record.without_value();
            return match self.offer(Pending { record, ..pending })? {
                None => Ok(()),
                Some((_, error)) => Err(self.giving_up.dead_letter_refused(&error)),
            };
        }
        self.giving_up.poison.forget(&id);
        let instead = Some(Instead::Skipped);
        self.done(event.ticket, InFlight { instead, ..self.unsent(event.place, event.committed_at_us, written) })
    }

    /// An event of which no record is sent, as far as its outcome goes.
    pub(super) fn unsent(&self, place: Place, committed_at_us: i64, outcome: Option<Outcome>) -> InFlight {
        InFlight { place, committed_at_us, xid: self.xid, outcome, id: None, max_attempts: None, instead: None }
    }

    /// Nothing of an event goes to Kafka, or nothing more where it has a ticket; what is to be written of it holds the
    /// position back until it is.
    pub(super) fn done(&mut self, ticket: Option<Ticket>, event: InFlight) -> Result<()> {
        let ticket = match ticket {
            Some(ticket) => {
                if let Some(known) = self.ledger.event_mut(ticket) {
                    *known = event.needed();
                }
                ticket
            }
            None => {
                let ticket = self.ledger.next();
                self.ledger.enqueued(0, event.committed_at_us, event.needed()).map_err(contradiction)?;
                ticket
            }
        };
        self.ledger.acked(ticket).map_err(contradiction)?;
        self.release();
        Ok(())
    }
}
