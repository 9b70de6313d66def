//! What becomes of an event that cannot be delivered, where the relay is not to stop for it.

use std::collections::{HashMap, VecDeque};

use tokio::time::Instant;

use super::settling::{Failed, Outcome};
use super::{About, Outlet, Pending, contradiction, no_such_outbox};
use crate::config::{DeliveryConfig, OnError};
use crate::error::{Disposition, Error, Kind, Result};
use crate::event::{Event, Place, Shown};
use crate::relay::poison::{EventId, Poison, Verdict};
use crate::route::dead_letter::Reason;
use crate::route::{OwnedRecord, Record};
use crate::sink::{Delivery, Sink, Ticket};
use crate::upkeep::Failure;

/// How events are given up, and what is known of them.
#[derive(Debug)]
pub(super) struct GivingUp {
    pub(super) delivery: DeliveryConfig,
    pub(super) poison: Poison,
    /// How often events in flight may be tried, of those that say so, by ascending ticket.
    limits: VecDeque<(Ticket, u32)>,
    /// Events that are given up, by ascending ticket, until they do not come again; whether each is a dead letter.
    given_up: VecDeque<(Ticket, bool)>,
    /// Whether a dead letter is in flight that was refused before: what would be sent behind it would be sent again and again.
    holds: bool,
}

/// What of an event is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sends {
    /// Its record.
    Record,
    /// Its dead letter.
    Letter,
    /// Its dead letter, once more.
    LetterAgain,
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
        let (limits, given_up) = (VecDeque::new(), VecDeque::new());
        GivingUp { delivery: delivery.clone(), poison: Poison::default(), limits, given_up, holds: false }
    }

    /// This of an event was enqueued that may be tried so often.
    #[inline]
    pub(super) fn sent(&mut self, ticket: Ticket, sends: Sends, max_attempts: Option<u32>) {
        self.limits.extend(max_attempts.map(|max| (ticket, max)));
        if sends != Sends::Record {
            self.given_up.push_back((ticket, true));
            self.holds = sends == Sends::LetterAgain;
        }
    }

    /// Whether nothing is to be sent before something else is acked.
    #[inline]
    pub(super) fn holds(&self) -> bool {
        self.holds || self.poison.is_alone()
    }

    /// Says in each failure how often the first event that its topic refused may be tried.
    pub(super) fn limit(&self, deliveries: &mut [Delivery]) {
        if self.limits.is_empty() {
            return;
        }
        let mut first: HashMap<String, Ticket> = HashMap::new();
        for delivery in deliveries.iter() {
            if let Delivery::Failed(ticket, error) = delivery
                && let Some(topic) = error.topic()
            {
                let of = first.entry(topic.to_owned()).or_insert(*ticket);
                *of = (*of).min(*ticket);
            }
        }
        for delivery in deliveries {
            if let Delivery::Failed(_, error) = delivery
                && let Some(ticket) = error.topic().and_then(|topic| first.get(topic))
            {
                let at = self.limits.binary_search_by_key(ticket, |(sent, _)| *sent).ok();
                let max = at.and_then(|at| self.limits.get(at)).map(|(_, max)| *max);
                *error = error.clone().within(max);
            }
        }
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

    /// Everything up to this ticket was acked. What is not committed comes again, and what is known of it counts then.
    pub(super) fn acked_below(&mut self, ticket: Ticket) {
        self.limits.drain(..self.limits.partition_point(|(sent, _)| *sent < ticket));
        self.holds &= self.given_up.back().is_some_and(|(sent, _)| *sent >= ticket);
        match self.delivery.transactions {
            Some(_) => self.poison.clear_alone(ticket),
            None => self.poison.acked_below(ticket),
        }
    }

    /// Whether this event, where events are given up, has to be in flight alone.
    #[inline]
    pub(super) fn suspects(&self, id: Option<&EventId>, record: &Record<'_>) -> bool {
        id.is_some_and(|id| self.poison.is_suspect(id, record))
    }

    /// What follows from `failure`, the first that was told, where these were `refused`.
    pub(super) fn judge(&mut self, refused: Vec<(Ticket, Error)>, failure: Error) -> Error {
        let Some((_, first)) = refused.first() else { return failure };
        let cause = format!("the broker refused a record; finding out which: {}", first.cause());
        if refused.len() > 1 {
            self.poison.with_others();
        }
        let judged = refused.iter().fold(true, |judged, (ticket, error)| self.poison.refused(*ticket, error) && judged);
        if judged { Error::new(Kind::KafkaUnreachable, cause) } else { self.dead_letter_refused(&failure) }
    }

    /// A topic refuses records: where events wait for that, those for it do from now on. What follows then heals.
    pub(super) fn refused_by_topic(&mut self, error: &Error) -> Option<Error> {
        let topic = error.topic().filter(|_| self.delivery.on_error == OnError::Park)?;
        self.poison.refuse_once(topic, error);
        Some(Error::new(Kind::KafkaUnreachable, format!("parking events for topic {topic}: {}", error.cause())))
    }

    /// A record that had waited was refused before it was sent.
    pub(super) fn refused_later(&mut self, id: EventId, error: Error) -> Error {
        match self.poison.condemn(id, error.clone()) {
            true => Error::new(Kind::KafkaUnreachable, format!("giving an event up: {}", error.cause())),
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
        Error::new(error.kind(), format!("a dead letter was refused: {}", error.cause())).remedy(format!(
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
        let kept = match settles.failed {
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
            let (committed_at_us, max_attempts) = (event.committed_at_us, None);
            let sends = if again { Sends::LetterAgain } else { Sends::Letter };
            let about = About { place, committed_at_us, kept, id: Some(id), max_attempts, sends };
            let refused =
                self.offer(Pending { record, about, row, alone: None, unread: None, ticket: event.ticket })?;
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
        self.giving_up.given_up.push_back((event.ticket.unwrap_or(self.ledger.next()), false));
        match event.ticket {
            Some(ticket) => self.done_with(ticket, kept),
            None => self.done_without_kafka(kept, event.committed_at_us),
        }?;
        if self.giving_up.delivery.transactions.is_none() {
            self.count_given_up();
        }
        Ok(())
    }

    /// Counts the events that were given up and do not come again, because all before them is delivered.
    pub(super) fn count_given_up(&mut self) {
        let below = self.ledger.next_undelivered();
        let done = self.giving_up.given_up.partition_point(|(ticket, _)| *ticket < below);
        for (_, is_letter) in self.giving_up.given_up.drain(..done) {
            *(if is_letter { &mut self.counts.dead_lettered } else { &mut self.counts.skipped }) += 1;
        }
    }

    /// Nothing of an event goes to Kafka; what is to be written of it holds the position back until it is.
    pub(super) fn done_without_kafka(&mut self, kept: Option<Outcome>, committed_at_us: i64) -> Result<()> {
        let ticket = self.ledger.next();
        self.ledger.enqueued(0, committed_at_us).map_err(contradiction)?;
        self.done_with(ticket, kept)
    }

    /// The event with this ticket is done with, but for what is to be written of it.
    pub(super) fn done_with(&mut self, ticket: Ticket, kept: Option<Outcome>) -> Result<()> {
        self.kept.extend(kept.map(|outcome| (ticket, outcome, self.xid)));
        self.ledger.acked(ticket).map_err(contradiction)?;
        Ok(())
    }
}
