//! What is done with an event: published, kept until more is known, given up, parked, or nothing.

use std::time::Instant;

use super::delivered_before::{DeliveredBefore, Verdict as Before};
use super::in_flight::{InFlight, Pending};
use super::parked_index::ParkedIndex;
use super::quarantine::{EventId, Quarantine, Verdict};
use super::setup::Setup;
use super::write_back::RowPolicy;
use crate::config::{CopiedRows, OnError, SlotName};
use crate::error::{Disposition, Error, Kind, Result};
use crate::event::{Event, Shown};
use crate::ledger::Ledger;
use crate::parked::ParkedEvent;
use crate::route::Record;
use crate::sink::Delivery;

/// What is known of events beside the ledger: their rows, what the bus refused, what is parked,
/// and what was delivered before.
#[derive(Debug)]
pub struct Judge {
    /// By outbox: what is written to rows.
    pub rows: Vec<RowPolicy>,
    /// Events and topics that the bus refuses.
    pub quarantine: Quarantine,
    /// The parked events.
    pub parking: ParkedIndex,
    /// Events that an earlier process may have published, while they come again.
    pub before: Option<Box<DeliveredBefore>>,
}

/// What is done with a routed event.
pub(super) enum Decision {
    Enqueue,
    /// Its record waits, and intake is closed.
    Keep {
        /// Nothing else is in flight with it: the bus may refuse it.
        is_isolated: bool,
        /// The outbox, while the tail of the topic has to be read.
        unread_tail: Option<usize>,
    },
    DeliveredBefore,
    GiveUp(Verdict),
    Park {
        /// Another event of its aggregate is parked before it.
        is_behind: bool,
    },
}

impl Judge {
    pub(super) fn new(setup: &Setup) -> Judge {
        Judge {
            rows: setup.outboxes.iter().map(RowPolicy::of).collect(),
            quarantine: Quarantine::default(),
            parking: ParkedIndex::default(),
            before: None,
        }
    }

    /// What its row says of an event; none where a copied row is skipped.
    ///
    /// # Errors
    /// The row was copied, and `outbox.copied_rows` is `stop`.
    pub(super) fn read(&mut self, event: &Event<'_>, setup: &Setup) -> Result<Option<InFlight>> {
        let rows = self.rows.get_mut(event.outbox).ok_or_else(no_such_outbox)?;
        if event.is_copied() {
            rows.copied(event, &setup.slot);
            match rows.upkeep.copied_rows {
                CopiedRows::Publish => {}
                CopiedRows::Skip => return Ok(None),
                CopiedRows::Stop => return Err(stops_at_copy(event, &setup.slot)),
            }
        }
        Ok(Some(InFlight {
            write_back: rows.on_acked(event),
            id: (setup.delivery.on_error != OnError::Stop).then(|| EventId::of(event)),
            max_attempts: rows.max_attempts(event, &setup.slot),
            context: rows.context.read(event),
            ..InFlight::of(event)
        }))
    }

    /// What is done with a routed event.
    pub(super) fn admit(
        &mut self,
        event: &Event<'_>,
        known: &InFlight,
        record: &Record<'_>,
        setup: &Setup,
        now: Instant,
    ) -> Decision {
        let mut is_isolated = false;
        if let Some(id) = &known.id {
            if let Some(verdict) = self.quarantine.verdict(id) {
                return Decision::GiveUp(verdict.clone());
            }
            let parking = &self.parking;
            if parking.is_any() {
                let is_behind = parking.is_blocked(event.outbox, record.key, &event.place);
                let is_refused = !setup.refuses_each && parking.is_refusing(record.topic);
                if is_behind || is_refused || parking.holds(&id.row, &event.place) {
                    return Decision::Park { is_behind };
                }
            }
            let retry = setup.delivery.retry.within(known.max_attempts);
            let is_often = |attempts| attempts > retry.attempts;
            let topics = &mut self.quarantine.topics;
            if let Some(error) = topics.given_up(record.topic, now, is_often) {
                return Decision::GiveUp(Verdict::of(error));
            }
            is_isolated = self.quarantine.is_suspect(id, record);
        }
        let before = self.before.as_mut();
        let verdict = before.map(|before| before.judge(event.place, event.outbox, record));
        let unread_tail = match verdict {
            Some(Before::Delivered) => return Decision::DeliveredBefore,
            Some(Before::Unread) => Some(event.outbox),
            Some(Before::Publish) | None => None,
        };
        if !is_isolated && unread_tail.is_none() {
            return Decision::Enqueue;
        }
        Decision::Keep {
            is_isolated,
            unread_tail,
        }
    }

    /// Whether the event of a kept record was delivered before.
    pub(super) fn judge_again(&mut self, pending: &Pending) -> Before {
        let Some((outbox, before)) = pending.unread_tail.zip(self.before.as_mut()) else {
            return Before::Publish;
        };
        let place = pending.event.place;
        let record = &pending.record;
        record.with_record(|record| before.judge(place, outbox, record))
    }

    /// Takes what is parked of an event out of it, where an event of its aggregate is parked since
    /// it was admitted.
    pub(super) fn parks_behind(
        &self,
        event: &mut InFlight,
        key: Option<&[u8]>,
    ) -> Option<Box<ParkedEvent>> {
        let parking = &self.parking;
        let parks = &mut event.parks;
        parks.take_if(|it| parking.is_blocked(it.row.outbox, key, &it.place))
    }

    /// The error for `failure`, the first of these `deliveries`, which finished the producer. Where
    /// events are given up, it is known from now on what to do when the refused ones come again.
    pub(super) fn judge_failed(
        &mut self,
        deliveries: &[Delivery],
        mut failure: Error,
        ledger: &Ledger<Option<Box<InFlight>>>,
        setup: &Setup,
    ) -> Error {
        let gives_up = setup.delivery.on_error != OnError::Stop;
        let refused = deliveries.iter().filter_map(|delivery| match delivery {
            Delivery::Failed(ticket, error) => Some((ticket, error)),
            Delivery::Acked(_) | Delivery::Refused(..) => None,
        });
        // How often the topic may refuse it, where the row of the first event that it refused says
        // so.
        let topic = failure.topic();
        let of_topic = refused
            .clone()
            .filter(|(_, error)| topic.is_some() && error.topic() == topic);
        let first = of_topic.map(|(ticket, _)| *ticket).min();
        failure.max_attempts =
            first.and_then(|ticket| ledger.event(ticket)?.as_deref()?.max_attempts);
        let is_given_up =
            |error: &Error| gives_up && error.kind().disposition() == Disposition::GiveUp;
        let refused: Vec<_> = refused.filter(|(_, error)| is_given_up(error)).collect();
        let Some((_, first)) = refused.first() else {
            return failure;
        };
        let cause = format!("the bus refused a record; looking for it: {first}");
        if refused.len() > 1 {
            self.quarantine.with_others();
        }
        let mut judged = true;
        for (ticket, error) in refused {
            let event = ledger.event(*ticket).and_then(Option::as_deref);
            judged &= event.is_some_and(|event| {
                let id = event.id.as_ref();
                id.is_some_and(|id| self.quarantine.refused(id, event.isolated.as_ref(), error))
            });
        }
        if judged {
            Error::new(Kind::BusUnreachable, cause)
                .remedy("wait: the log names the refused event and its remedy")
        } else {
            setup.dead_letter_refused(&failure)
        }
    }

    /// This event does not come again. Whether its topic takes records again.
    pub(super) fn finished(&mut self, event: &InFlight) -> bool {
        let topic = event.refusing.as_ref();
        let takes_again = topic.is_some_and(|topic| self.quarantine.topics.took(topic));
        if let Some(id) = &event.id {
            self.quarantine.delivered(id);
        }
        takes_again
    }
}

#[cold]
fn stops_at_copy(event: &Event<'_>, slot: &SlotName) -> Error {
    let cause = format!(
        "slot {slot}: the row was copied: transaction {} wrote it, and its transaction column has \
         another one; \
         outbox.copied_rows is stop",
        event.xid.unwrap_or_default()
    );
    let error = Error::new(Kind::Event, cause).remedy(
        "set outbox.copied_rows to \"publish\" where such rows are events, or to \"skip\" where \
         their events are \
         published already",
    );
    error.of_row(Shown::of(event.id())).about(event.place)
}

/// The assembler counts outboxes as the configuration does.
#[cold]
pub(super) fn no_such_outbox() -> Error {
    Error::new(
        Kind::Bug,
        "an event is from an outbox that is not configured",
    )
}
