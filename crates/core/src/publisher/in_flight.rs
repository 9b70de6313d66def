//! An event between its routing and its delivery.

use tracing::field::DisplayValue;

use super::context::Context;
use super::intake::IntakeClosed;
use super::quarantine::EventId;
use super::write_back::WriteBack;
use crate::config::OnError;
use crate::event::{Event, Place, Shown};
use crate::ledger::Ticket;
use crate::parked::ParkedEvent;
use crate::route::OwnedRecord;
use crate::route::dead_letter::Reason;

/// An event until its delivery. The ledger has it where more than place and times is needed.
#[derive(Debug, Default)]
pub struct InFlight {
    pub(super) place: Place,
    pub(super) committed_at_us: i64,
    /// The transaction that wrote its row, by the lower half of its id; none for rows that are read
    /// from the table.
    pub(super) xid: Option<u32>,
    /// Its ticket, where its record was sent and refused.
    pub(super) ticket: Option<Ticket>,
    /// The write to its row after the delivery.
    pub(super) write_back: Option<WriteBack>,
    /// The event, where those that the broker refuses are given up.
    pub(super) id: Option<EventId>,
    /// How often it may be tried, where its row says so.
    pub(super) max_attempts: Option<u32>,
    /// The replacement for its record, where the event is given up.
    pub(super) instead: Option<Instead>,
    /// Its record, where it is isolated because the broker may refuse it.
    pub(super) isolated: Option<OwnedRecord>,
    /// The event as it is parked, should it be given up.
    pub(super) parks: Option<Box<ParkedEvent>>,
    /// Its topic, where that refused the record before.
    pub(super) refusing: Option<String>,
    /// Its context in log lines and spans.
    pub(super) context: Option<Box<Context>>,
}

/// Memory for an [`InFlight`] and the texts in it.
const KEPT_BYTES: usize = 512;

impl InFlight {
    /// Memory for what is kept of an event from its ack to its delivery: something, where its row
    /// is written to later, or where the bus could have refused it.
    #[expect(
        clippy::ref_option,
        reason = "the ledger lends what it has of an event"
    )]
    pub(super) fn kept_bytes(event: &Option<Box<InFlight>>) -> usize {
        event.as_ref().map_or(0, |_| KEPT_BYTES)
    }

    /// An event of which nothing is written and no record is sent.
    pub(super) fn of(event: &Event<'_>) -> InFlight {
        InFlight {
            place: event.place,
            committed_at_us: event.committed_at_us,
            xid: event.xid,
            ..InFlight::default()
        }
    }

    /// The same event, of which no record of its own is sent any more.
    pub(super) fn without_record(&self) -> InFlight {
        let InFlight {
            place,
            committed_at_us,
            xid,
            ticket,
            ..
        } = *self;
        InFlight {
            place,
            committed_at_us,
            xid,
            ticket,
            context: self.context.clone(),
            ..InFlight::default()
        }
    }

    /// Of most events nothing has to be kept.
    pub(super) fn needed(self) -> Option<Box<InFlight>> {
        let InFlight {
            write_back,
            id,
            max_attempts,
            instead,
            isolated,
            parks,
            refusing,
            ..
        } = &self;
        let is_needed = write_back.is_some()
            || id.is_some()
            || max_attempts.is_some()
            || instead.is_some()
            || isolated.is_some()
            || parks.is_some()
            || refusing.is_some();
        is_needed.then(|| Box::new(self))
    }

    /// Why nothing may be enqueued behind it, if nothing may.
    pub(super) fn closes_intake(&self) -> Option<IntakeClosed> {
        if self.isolated.is_some() {
            return Some(IntakeClosed::IsolatedRecord);
        }
        // Records behind it would be sent again with each further attempt.
        (self.instead == Some(Instead::DeadLetterAgain)).then_some(IntakeClosed::DeadLetter)
    }
}

/// The replacement for the record of an event that is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Instead {
    DeadLetter,
    DeadLetterAgain,
    Nothing,
}

impl Instead {
    /// `again`: the event was given up before, and came again.
    pub(super) fn of(on_error: OnError, again: bool) -> Instead {
        match on_error {
            OnError::DeadLetter if again => Instead::DeadLetterAgain,
            OnError::DeadLetter => Instead::DeadLetter,
            OnError::Park | OnError::Skip | OnError::Stop => Instead::Nothing,
        }
    }

    /// The word in logs.
    pub(super) fn outcome(self) -> &'static str {
        match self {
            Instead::DeadLetter | Instead::DeadLetterAgain => "dead-letter",
            Instead::Nothing => "skip",
        }
    }

    /// Logs that an event is given up.
    pub(super) fn log(
        self,
        reason: &Reason<'_>,
        trace_id: Option<String>,
        columns: Option<DisplayValue<&str>>,
        fix: Option<String>,
    ) {
        let Reason {
            slot,
            outbox,
            place,
            class,
            cause,
            ..
        } = *reason;
        let row = Shown::of(reason.row);
        let outcome = self.outcome();
        tracing::warn!(event = "event_given_up", %slot, outbox, %row, trace_id, columns, %place,
            class, cause, outcome, fix, "an event was given up");
    }

    /// Logs that an event that was given up came again.
    pub(super) fn log_again(
        self,
        reason: &Reason<'_>,
        trace_id: Option<String>,
        columns: Option<DisplayValue<&str>>,
    ) {
        let Reason { slot, outbox, .. } = *reason;
        let row = Shown::of(reason.row);
        let outcome = self.outcome();
        tracing::debug!(%slot, outbox, %row, trace_id, columns, outcome, "an event that was given \
            up came again");
    }
}

/// A record that is not enqueued yet, kept whole because its message is gone from the receive
/// buffer.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) record: OwnedRecord,
    pub(super) event: InFlight,
    pub(super) row: Shown,
    /// Whether it is to be sent with nothing else in flight, because the broker may refuse it.
    pub(super) is_isolated: bool,
    /// The outbox, while the tail of the topic has to be read: it says whether the event was
    /// delivered before.
    pub(super) unread_tail: Option<usize>,
}

impl Pending {
    /// It may be sent beside others.
    pub(super) fn new(record: OwnedRecord, event: InFlight, row: Shown) -> Pending {
        Pending {
            record,
            event,
            row,
            is_isolated: false,
            unread_tail: None,
        }
    }
}
