//! Events that cannot be delivered yet begin to wait, and those behind them.

use std::sync::Arc;

use super::parking::Parking;
use super::settling::Outcome;
use super::{Outlet, no_such_outbox};
use crate::error::{Disposition, Error, Result};
use crate::event::{Event, Place, RowId, Shown, Via};
use crate::ledger::Ticket;
use crate::relay::poison::EventId;
use crate::relay::retrying::Tried;
use crate::route::{OwnedRecord, Record};
use crate::sink::Sink;
use crate::upkeep::Failure;
use crate::upkeep::parked::{Parked, Waiting};

/// Why an event that can be routed is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behind {
    /// It waits already: it came again.
    Itself,
    /// One of its aggregate waits.
    Aggregate,
    /// Its topic takes no records.
    Topic,
}

impl Parking {
    pub(super) fn behind(&self, row: &RowId, place: &Place, record: &Record<'_>) -> Option<Behind> {
        if self.holds(row, place) {
            return Some(Behind::Itself);
        }
        if self.is_blocked(row.outbox, record.key, place) {
            return Some(Behind::Aggregate);
        }
        self.is_refusing(record.topic).then_some(Behind::Topic)
    }
}

impl<S: Sink> Outlet<S> {
    /// These events wait in the table, by what it says now that no other relay writes to it.
    pub fn set_waiting(&mut self, waiting: Vec<Waiting>) {
        let under_way: Vec<Waiting> = self.under_way().map(waiting_as).collect();
        self.parking.begin(waiting, under_way);
    }

    /// Events that are on their way to the table.
    fn under_way(&self) -> impl Iterator<Item = &Parked> {
        let delivered = self.settling.iter().chain(&self.kept).map(|kept| &kept.outcome);
        let in_flight = self.ledger.events().flatten().filter_map(|event| event.outcome.as_ref());
        delivered.chain(in_flight).filter_map(|outcome| match outcome {
            Outcome::Parked(event) => Some(&**event),
            Outcome::Acked(_) | Outcome::Failed(..) => None,
        })
    }

    /// For the comparison with what is read of the table from now on.
    pub fn census(&self) -> u64 {
        self.parking.census(self.under_way().map(|event| (&event.row, &event.place)))
    }

    /// What was in the table after this census: whatever else was counted in it waits no more. It was taken away by a pass
    /// that could not say so, by another relay, or by hand.
    fn compare_waiting(&mut self, census: u64, table: &[Waiting]) {
        let gone = self.parking.compare(census, table);
        if gone > 0 {
            tracing::info!(slot = %self.slot, events = gone, "events that waited are in walrelay.parked no more; what was behind them goes on");
        }
    }

    /// Some events wait no more, some topics take records, and the table was looked at.
    pub(in crate::relay) fn tried(&mut self, Tried { released, accepting, table }: &Tried) {
        accepting.iter().for_each(|topic| self.parking.accepts(topic));
        released.iter().for_each(|waiting| self.parking.release(waiting));
        if let Some((census, table)) = table {
            self.compare_waiting(*census, table);
        }
    }

    /// How many events wait.
    pub fn waiting(&self) -> usize {
        self.parking.count()
    }

    /// Whether an event of this row waits.
    pub fn is_waiting(&self, row: &RowId) -> bool {
        self.parking.holds_row(row)
    }

    /// `event` cannot be delivered, and waits; what comes of its aggregate from now on waits behind it.
    pub(super) fn park(&mut self, event: &Event<'_>, id: EventId, record: &OwnedRecord, error: &Error) -> Result<()> {
        let settles = self.outboxes.get_mut(event.outbox).ok_or_else(no_such_outbox)?;
        let max_attempts = settles.max_attempts(event, &self.slot);
        let parked = Parked::of(event, &settles.columns, None, None);
        self.park_kept(parked, id, (max_attempts, None), record, error)
    }

    /// The same of an event that may be tried so often, that was taken in under `ticket`, if it was, and of which this is kept.
    pub(super) fn park_kept(
        &mut self,
        mut parked: Parked,
        id: EventId,
        (max_attempts, ticket): (Option<u32>, Option<Ticket>),
        record: &OwnedRecord,
        error: &Error,
    ) -> Result<()> {
        self.giving_up.poison.forget(&id);
        if self.parking.holds(&parked.row, &parked.place) {
            self.came_again(&parked.row, &parked.place)?;
            return self.done(ticket, self.unsent(parked.place, parked.committed_at_us, None));
        }
        let (class, cause) = (error.kind().class(), error.cause());
        let row = &parked.row;
        let (slot, name) = (&self.slot, self.outboxes.get(row.outbox).ok_or_else(no_such_outbox)?.name.as_str());
        tracing::warn!(
            %slot, outbox = name, row = %Shown::of(row.id()), place = %parked.place, class, cause, outcome = "park",
            "an event cannot be delivered, and waits"
        );
        let why = Failure { class, cause: cause.to_owned(), attempts: 1 };
        record.with_record(|record| {
            parked.key = record.key.map(<[u8]>::to_vec);
            parked.topic = Some(record.topic.to_owned()).filter(|topic| !topic.is_empty());
        });
        self.begin_to_wait(parked, (max_attempts, ticket), Some((why, error.kind().disposition())))
    }

    /// `event` could be delivered, were it not for what waits.
    #[cold]
    pub(super) fn wait_behind(
        &mut self,
        event: &Event<'_>,
        of: (Option<Vec<u8>>, String),
        behind: Behind,
    ) -> Result<()> {
        let settles = self.outboxes.get_mut(event.outbox).ok_or_else(no_such_outbox)?;
        let max_attempts = settles.max_attempts(event, &self.slot);
        let (key, topic) = of;
        let why = match behind {
            Behind::Itself => {
                self.came_again(&event.row_id(), &event.place)?;
                return self.done(None, self.unsent(event.place, event.committed_at_us, None));
            }
            Behind::Aggregate => None,
            Behind::Topic => {
                let cause = format!("topic {topic} takes no records: behind one that was tried");
                // It was not tried, and that costs it no try.
                let why = Failure { class: crate::error::Kind::TopicRefused.class(), cause, attempts: 0 };
                Some((why, Disposition::RetryThenGiveUp))
            }
        };
        let topic = Some(topic).filter(|topic| !topic.is_empty());
        let parked = Parked::of(event, &settles.columns, key, topic);
        self.begin_to_wait(parked, (max_attempts, None), why)
    }

    /// An event that waits came again. Where its row key alone says so, it could be another, and that is counted and told.
    fn came_again(&mut self, row: &RowId, place: &Place) -> Result<()> {
        let settles = self.outboxes.get(row.outbox).ok_or_else(no_such_outbox)?;
        // Rows of such a table are pending while their events wait, and are found with each look.
        let is_usual = settles.pending && place.via == Via::Table;
        if is_usual || self.parking.holds_surely(row, place) {
            return Ok(());
        }
        self.counts.waiting_again += 1;
        let (slot, outbox, row_id) = (&self.slot, settles.name.as_str(), Shown::of(row.id()));
        if place.via == Via::Replay || self.parking.is_first_again(row.outbox) {
            tracing::warn!(
                %slot, outbox, row = %row_id, %place,
                "a row came whose event waits already, by its row key, and is not published now; more of them are counted"
            );
        } else {
            tracing::debug!(%slot, outbox, row = %row_id, %place, "a row came whose event waits already");
        }
        Ok(())
    }

    fn begin_to_wait(
        &mut self,
        mut parked: Parked,
        (max_attempts, ticket): (Option<u32>, Option<Ticket>),
        why: Option<(Failure, Disposition)>,
    ) -> Result<()> {
        if let Some((why, disposition)) = why {
            if disposition == Disposition::RetryThenGiveUp {
                let wait = self.giving_up.delivery.retry.within(max_attempts).wait(why.attempts, fastrand::f64());
                parked.retry_in_ms = wait.map(|wait| i64::try_from(wait.as_millis()).unwrap_or(i64::MAX));
            }
            parked.why = Some(why);
        }
        self.parking.park(waiting_as(&parked)).map_err(|error| {
            error.of_row(Shown::of(parked.row.id())).of_event(parked.place.commit_lsn, parked.place.index)
        })?;
        self.counts.parked += 1;
        self.parked_bytes += parked.bytes();
        let (place, committed_at_us) = (parked.place, parked.committed_at_us);
        self.done(ticket, self.unsent(place, committed_at_us, Some(Outcome::Parked(Arc::new(parked)))))
    }
}

fn waiting_as(event: &Parked) -> Waiting {
    let is_refused = event.why.as_ref().is_some_and(|why| why.class == crate::error::Kind::TopicRefused.class());
    let refused_by = event.topic.clone().filter(|_| is_refused);
    Waiting { row: event.row.clone(), place: event.place, key: event.key.clone(), refused_by }
}
