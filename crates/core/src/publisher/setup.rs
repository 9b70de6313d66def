//! The configuration of a publisher, and what follows from it for an event that fails.

use std::time::Duration;

use super::in_flight::{InFlight, Pending};
use super::quarantine::EventId;
use crate::clock::millis;
use crate::config::{DeliveryConfig, OnError, OutboxConfig, SlotName};
use crate::error::{Disposition, Error, NextCommand, Remedy};
use crate::event::{Event, Place, Shown};
use crate::ledger::Limits;
use crate::parked::{Failure, ParkedEvent};
use crate::route::dead_letter::Reason;
use crate::route::{OwnedRecord, Record};

/// The configuration of a publisher.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The slot, for errors.
    pub slot: SlotName,
    /// Which rows are events, and what records they become.
    pub outboxes: Vec<OutboxConfig>,
    /// The limits of events in flight.
    pub limits: Limits,
    /// The reaction to events that cannot be delivered.
    pub delivery: DeliveryConfig,
    /// Whether the bus refuses one record at any time and takes others.
    pub refuses_each: bool,
}

impl Setup {
    pub(super) fn columns(&self, outbox: usize) -> &[String] {
        self.outboxes
            .get(outbox)
            .map(|outbox| outbox.columns.as_slice())
            .unwrap_or_default()
    }

    /// `event` as it is parked, where events that are given up are parked.
    pub(super) fn parks(&self, event: &Event<'_>) -> Option<Box<ParkedEvent>> {
        (self.delivery.on_error == OnError::Park)
            .then(|| Box::new(ParkedEvent::of(event, self.columns(event.outbox))))
    }

    /// What to do about an event that `error` keeps from its topic, after what the configuration
    /// says was done with it.
    pub(super) fn fix_of_given_up(&self, id: &EventId, error: &Error) -> Option<String> {
        let of_command = |name| {
            NextCommand::new(name)
                .option("slot", &self.slot)
                .option("id", typed(id.row.id()))
        };
        let outbox = self.outboxes.get(id.row.outbox);
        // The row of an event that is given up is deleted, too, unless it is marked.
        let deletes =
            |outbox: &&OutboxConfig| outbox.upkeep.delete && outbox.upkeep.mark_failed.is_none();
        let has_row = outbox.is_some_and(|outbox| outbox.source.table().is_some())
            && outbox.filter(deletes).is_none();
        let is_searched = outbox.is_some_and(|outbox| outbox.upkeep.pending.is_some());
        let then = match self.delivery.on_error {
            OnError::Park => {
                let or_replay = if has_row {
                    " (once its row was corrected, drop it and replay the row instead)"
                } else {
                    ""
                };
                let again = if error.kind().disposition() == Disposition::RetryThenGiveUp {
                    "then the relay tries the event again; to have that at once, or after its last \
                     attempt: "
                        .to_owned()
                } else {
                    format!(
                        "then start the relay again if its settings were changed, and have the \
                         event tried again, as it was{or_replay}: "
                    )
                };
                Remedy::from(again).and(of_command("parked retry"))
            }
            OnError::DeadLetter | OnError::Skip | OnError::Stop if has_row && is_searched => {
                Remedy::from(
                    "then update its row to what outbox.pending selects, corrected where it is at \
                     fault: the relay publishes it",
                )
            }
            OnError::DeadLetter | OnError::Skip | OnError::Stop if has_row => {
                let row = "then publish its row, corrected where it is at fault, if it is still \
                           in the table: ";
                Remedy::from(row).and(of_command("replay"))
            }
            OnError::DeadLetter => Remedy::from(
                "then produce the dead letter to its topic with a tool of the bus: see \
                 docs/explanation/undeliverable-events.md",
            ),
            OnError::Skip | OnError::Stop => Remedy::from("then write the event again"),
        };
        let cause = error.any_remedy().or_else(|| error.kind().remedy())?;
        Some(Remedy::joined([cause, then]).to_string())
    }

    /// How long a record that its bus refuses alone waits before it is sent again, which is logged;
    /// none where its event is given up.
    pub(super) fn wait_of_refused(
        &self,
        event: Option<&InFlight>,
        error: &Error,
    ) -> Option<Duration> {
        if error.kind().disposition() != Disposition::RetryThenGiveUp {
            return None;
        }
        let max_attempts = event.and_then(|event| event.max_attempts);
        let retry = self.delivery.retry.within(max_attempts);
        let is_dead_letter = event.is_some_and(|event| event.instead.is_some());
        let failed = match self.delivery.on_error {
            // The next attempts are made from the table of parked events.
            OnError::Park => return None,
            // Nothing replaces a dead letter.
            _ if is_dead_letter => error.attempts.min(retry.attempts),
            OnError::DeadLetter | OnError::Skip | OnError::Stop => error.attempts,
        };
        let wait = retry
            .wait(failed, fastrand::f64())
            .filter(|_| self.refuses_each)?
            .max(error.retry_after.unwrap_or_default());
        let row = event.and_then(|event| Some(Shown::of(event.id.as_ref()?.row.id())));
        let row = row.as_ref().map(tracing::field::display);
        tracing::warn!(event = "record_refused", slot = %self.slot, row,
            attempts = error.attempts, retry_in_ms = millis(wait), %error,
            fix = error.what_to_do(),
            "the bus refuses a record, which is tried again; later ones of its key wait");
        Some(wait)
    }

    /// The error for a dead letter that is refused with `error`.
    pub(super) fn dead_letter_refused(&self, error: &Error) -> Error {
        let topic = &self.delivery.dead_letter_topic;
        match error.kind().disposition() {
            Disposition::GiveUp => {}
            // It takes none at all, and somebody can heal that.
            Disposition::RetryThenGiveUp => return error.clone().of_topic(topic),
            Disposition::Retry | Disposition::Halt => return error.clone(),
        }
        Error::new(error.kind(), format!("a dead letter was refused: {error}")).remedy(format!(
            "give topic {topic} a larger max.message.bytes and no compaction, name another one in \
             delivery.dead_letter_topic, or set delivery.on_error to stop"
        ))
    }

    /// The record of `event`, which is not enqueued yet.
    pub(super) fn keep(&self, event: &Event<'_>, known: InFlight, record: &Record<'_>) -> Pending {
        let row = Shown::of(event.id());
        let event = InFlight {
            parks: self.parks(event),
            ..known
        };
        Pending::new(OwnedRecord::of(record), event, row)
    }

    /// Why the event `id` of `outbox` is given up, for logs and for its dead letter.
    pub(super) fn reason<'r>(
        &'r self,
        outbox: &'r str,
        id: &'r EventId,
        place: Place,
        failure: &'r Failure,
    ) -> Reason<'r> {
        Reason {
            slot: &self.slot,
            outbox,
            row: id.row.id(),
            place,
            class: failure.class,
            cause: &failure.cause,
            attempts: failure.attempts,
        }
    }
}

/// An id as it is typed in a shell; one that would have to be quoted is left open.
fn typed(id: &[u8]) -> &str {
    let is_plain = |id: &&str| {
        id.len() <= 100
            && id.starts_with(|first: char| first.is_ascii_alphanumeric())
            && id
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    std::str::from_utf8(id)
        .ok()
        .filter(is_plain)
        .unwrap_or("ID")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::publisher::tests::setup;
    use crate::testing::{COLUMNS, Lab};

    /// What is said of an event that was given up, for which `error` is the reason.
    fn fix(on_error: OnError, error: &Error, change: impl FnOnce(&mut Setup)) -> String {
        let mut setup = setup(DeliveryConfig {
            on_error,
            ..DeliveryConfig::default()
        });
        change(&mut setup);
        let values = ["7", "order", "1", "placed", "{}"].map(Some);
        let lab = Lab::new(&setup.outboxes[0], &COLUMNS, &values);
        let fix = setup.fix_of_given_up(&EventId::of(&lab.event()), error);
        fix.unwrap()
    }

    /// A retry is made with the settings of the relay, and one of a topic that refuses by itself.
    #[test]
    fn a_parked_event_is_tried_again_by_the_relay() {
        let too_large = Error::new(Kind::RecordTooLarge, "1 MB").remedy("raise message.max.bytes");
        assert_eq!(
            fix(OnError::Park, &too_large, |_| {}),
            "raise message.max.bytes; then start the relay again if its settings were changed, \
             and have the event tried again, as it was (once its row was corrected, drop it and \
             replay the row instead): walrelay parked retry --slot orders --id 7"
        );
        let deletes = |setup: &mut Setup| setup.outboxes[0].upkeep.delete = true;
        assert!(!fix(OnError::Park, &too_large, deletes).contains("replay"));
        let refused = Error::new(Kind::TopicRefused, "no such topic").remedy("create it");
        assert_eq!(
            fix(OnError::Park, &refused, |_| {}),
            "create it; then the relay tries the event again; to have that at once, or after its \
             last attempt: walrelay parked retry --slot orders --id 7"
        );
    }

    #[test]
    fn a_row_that_is_published_again_is_corrected_first_where_it_is_at_fault() {
        let error = Error::new(Kind::Event, "no topic").remedy("correct the route");
        for on_error in [OnError::DeadLetter, OnError::Skip] {
            assert_eq!(
                fix(on_error, &error, |_| {}),
                "correct the route; then publish its row, corrected where it is at fault, if it is \
                 still in the table: walrelay replay --slot orders --id 7"
            );
            let pending = |setup: &mut Setup| {
                setup.outboxes[0].upkeep.pending = Some("sent is null".to_owned());
            };
            assert_eq!(
                fix(on_error, &error, pending),
                "correct the route; then update its row to what outbox.pending selects, corrected \
                 where it is at fault: the relay publishes it"
            );
        }
    }
}
