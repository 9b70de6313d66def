//! Publishes events: routes them, enqueues their records, takes in the acks, and gives up what
//! cannot be delivered.
//!
//! Every source of events uses it: the stream through [`pipeline::Pipeline`], rows of a table
//! through `TableRead`, and `replay`. One source at a time has the sink, so that no two publish at
//! once (P2). It does no I/O of its own.
//!
//! 1. [`Publisher::publish`] routes an event and enqueues its record under the next ticket of the
//!    ledger. Where the sink has no room, or the record has to be isolated, the record is *pending*
//!    and intake is closed.
//! 2. [`Publisher::delivered`] takes in acks. The ledger releases events in order once all before
//!    them are acked.
//! 3. `WriteBacks` has what is to be written to the rows of released events.
//!
//! An event that cannot be delivered becomes a dead letter, is skipped, or is parked, as
//! `delivery.on_error` says. All three hold the position back like a record: the dead letter until
//! its ack, the parked event until it is in its table.

mod batches;
mod context;
pub mod delivered_before;
mod held_commits;
mod in_flight;
mod intake;
pub mod judge;
pub mod parked_index;
pub mod pipeline;
pub mod quarantine;
pub mod retry_batch;
pub mod retry_walk;
mod setup;
pub mod transaction;
pub mod write_back;

pub use batches::{Batch, EndedBatches};
pub use in_flight::InFlight;
pub use intake::IntakeClosed;
pub use setup::Setup;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::clock::millis;
use crate::config::OnError;
use crate::error::{Disposition, Error, Kind, Result};
use crate::event::{Event, Shown, Via};
use crate::failpoint;
use crate::ledger::{Ledger, LedgerError, Ticket};
use crate::parked::{CLASSES, Failure, ParkedEvent, ParkedRef};
use crate::position::Position;
use crate::publisher::batches::Batches;
use crate::publisher::context::Context;
use crate::publisher::delivered_before::Verdict as Before;
use crate::publisher::in_flight::{Instead, Pending};
use crate::publisher::judge::{Decision, Judge, no_such_outbox};
use crate::publisher::quarantine::Verdict;
use crate::publisher::transaction::Transaction;
use crate::publisher::write_back::WriteBacks;
use crate::route::{OwnedRecord, Record, Router};
use crate::sink::{Delivery, EnqueueError, Sink};
use crate::trace::TraceContext;

/// Counts since the publisher began, for the metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages decoded.
    pub decoded: u64,
    /// Events assembled that were not delivered before.
    pub assembled: u64,
    /// Events that have a record: topic, key, headers and value.
    pub routed: u64,
    /// Records enqueued.
    pub enqueued: u64,
    /// Records acked.
    pub acked: u64,
    /// Bytes of their keys, values and headers.
    pub acked_bytes: u64,
    /// Times an event reached a limit of what may be in flight, which closes intake.
    pub queue_full: u64,
    /// Events whose dead letters are delivered.
    pub dead_lettered: u64,
    /// Events that were given up without a dead letter.
    pub skipped: u64,
    /// Events that were parked, because they could not be delivered or behind one that could not.
    pub parked: u64,
    /// Events that are parked and came again, as far as their row keys tell.
    pub waiting_again: u64,
    /// Events that an earlier process had published.
    pub delivered_before: u64,
    /// Topics that refused a record and took one since.
    pub topics_taking: u64,
    /// Attempts to deliver an event that failed, by class: see [`CLASSES`].
    pub failed: [u64; CLASSES.len()],
}

impl Counts {
    fn attempt_failed(&mut self, class: &str) {
        for (known, failed) in CLASSES.iter().zip(&mut self.failed) {
            *failed += u64::from(*known == class);
        }
    }

    /// An event is given up for the first time. Attempts at a topic that refuses are counted where
    /// it refused.
    fn given_up(&mut self, class: &str) {
        if class != Kind::TopicRefused.class() {
            self.attempt_failed(class);
        }
    }

    /// This event does not come again, and its topic takes records.
    fn finished(&mut self, event: &InFlight, judge: &mut Judge) {
        self.topics_taking += u64::from(judge.finished(event));
        match event.instead {
            None => {}
            Some(Instead::DeadLetter | Instead::DeadLetterAgain) => self.dead_lettered += 1,
            Some(Instead::Nothing) => self.skipped += 1,
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Publisher<S> {
    /// The configuration.
    pub setup: Setup,
    /// By outbox: how records are made.
    pub routers: Vec<Router>,
    /// What is done with events.
    pub judge: Judge,
    /// Events in flight.
    pub ledger: Ledger<Option<Box<InFlight>>>,
    /// Where records go.
    pub sink: S,
    pending: Option<Pending>,
    /// Where events are committed together with the position behind them.
    pub transaction: Transaction<InFlight>,
    /// Writes to the rows of delivered events.
    pub write_backs: WriteBacks,
    /// Delivery reports that were not taken in yet.
    deliveries: Vec<Delivery>,
    /// Counts since it began.
    pub counts: Counts,
    /// The batches, for spans.
    pub batches: Batches,
}

impl<S: Sink> Publisher<S> {
    /// Begins behind `start`. The error is that of [`Router::new`].
    pub fn new(setup: &Setup, start: Position, sink: S) -> Result<Self> {
        let router = |outbox| Router::new(outbox).map_err(|error| Error::new(Kind::Bug, error));
        Ok(Publisher {
            setup: setup.clone(),
            routers: setup.outboxes.iter().map(router).collect::<Result<_>>()?,
            judge: Judge::new(setup),
            ledger: Ledger::new(start, setup.limits, InFlight::kept_bytes),
            sink,
            pending: None,
            transaction: Transaction::new(setup.delivery.transactions().cloned()),
            write_backs: WriteBacks::default(),
            deliveries: Vec::new(),
            counts: Counts::default(),
            batches: Batches::default(),
        })
    }

    /// Events come from this server and timeline from here on.
    pub fn set_origin(&mut self, system_identifier: &str, timeline: u32) {
        self.routers
            .iter_mut()
            .for_each(|router| router.set_origin(system_identifier, timeline));
    }

    /// Why no event may be taken in, if none may (P4, P5). Where several reasons hold, the first
    /// one counts.
    pub fn intake_closed(&self) -> Option<IntakeClosed> {
        if let Some(pending) = &self.pending {
            return Some(match (pending.unread_tail, pending.is_isolated) {
                (Some(_), _) => IntakeClosed::TopicTail,
                (None, true) => IntakeClosed::IsolatedRecord,
                (None, false) => IntakeClosed::QueueFull,
            });
        }
        if let Some(Some(newest)) = self.ledger.events().next_back()
            && let Some(why) = newest.closes_intake()
        {
            return Some(why);
        }
        let limits = self.ledger.limits;
        let events = self.ledger.in_flight_events();
        if !self.ledger.has_room() {
            let is_events = events >= limits.events;
            return Some(if is_events {
                IntakeClosed::InFlightEvents
            } else {
                IntakeClosed::InFlightBytes
            });
        }
        if events + self.write_backs.len() >= limits.events {
            return Some(IntakeClosed::WriteBack);
        }
        if self.write_backs.parked_bytes >= limits.bytes {
            return Some(IntakeClosed::ParkedBytes);
        }
        (!self.transaction.takes()).then_some(IntakeClosed::Transaction)
    }

    /// Whether an event may be taken in (P4, P5).
    #[inline]
    pub fn has_room(&self) -> bool {
        self.intake_closed().is_none()
    }

    // Events in.

    /// Routes `event` and hands its record to the sink, or gives the event up. Call only with room.
    ///
    /// # Errors
    /// The event cannot be routed, or the sink refuses it, and such events are not given up (P3).
    /// Nothing was enqueued.
    pub fn publish(&mut self, event: &Event<'_>, now: Instant) -> Result<()> {
        self.counts.assembled += 1;
        failpoint::reached("assembled");
        let Some(mut known) = self.judge.read(event, &self.setup)? else {
            return self.done(InFlight::of(event));
        };
        // A routed record borrows its router, and everything else is needed for it.
        let mut routers = std::mem::take(&mut self.routers);
        let published = match routers.get_mut(event.outbox) {
            None => Err(no_such_outbox()),
            Some(router) => match router.route(event) {
                Ok(routed) => {
                    self.counts.routed += 1;
                    if let Some(header) = routed.left_out() {
                        warn_of_left_out(event, header, &self.setup);
                    }
                    routed.with_record(|record| self.publish_record(event, known, record, now))
                }
                Err(error) => {
                    let record = router.unrouted(event);
                    let error = error.into_error(&self.setup.slot, known.id.is_none());
                    known.parks = self.setup.parks(event);
                    self.give_up(known, record, &Verdict::of(error))
                }
            },
        };
        self.routers = routers;
        published
    }

    fn publish_record(
        &mut self,
        event: &Event<'_>,
        mut known: InFlight,
        record: &Record<'_>,
        now: Instant,
    ) -> Result<()> {
        match self.judge.admit(event, &known, record, &self.setup, now) {
            Decision::Enqueue => match self.enqueue(record, &mut known, false) {
                Ok(bytes) => {
                    failpoint::reached("enqueued");
                    if self.setup.refuses_each {
                        known.parks = self.setup.parks(event);
                    }
                    self.enqueued(bytes, known)
                }
                Err(EnqueueError::Refused(error)) => {
                    self.refused_at_once(self.setup.keep(event, known, record), error)
                }
                // Which record finished the producer is said with the deliveries.
                Err(EnqueueError::Full | EnqueueError::Finished) => {
                    self.pending = Some(self.setup.keep(event, known, record));
                    Ok(())
                }
            },
            Decision::Keep {
                is_isolated,
                unread_tail,
            } => {
                self.pending = Some(Pending {
                    is_isolated,
                    unread_tail,
                    ..self.setup.keep(event, known, record)
                });
                if unread_tail.is_some() {
                    Ok(())
                } else {
                    self.retry_pending()
                }
            }
            Decision::DeliveredBefore => {
                self.counts.delivered_before += 1;
                self.done(known)
            }
            Decision::GiveUp(verdict) => {
                known.parks = self.setup.parks(event);
                self.give_up(known, OwnedRecord::of(record), &verdict)
            }
            Decision::Park { is_behind } => {
                let why = (!is_behind).then(|| Failure::untried(record.topic));
                let parked = ParkedEvent::of(event, self.setup.columns(event.outbox));
                self.park(parked, &known, record, why, None)
            }
        }
    }

    /// Offers the pending record to the sink once more. No other record is offered before it (P2).
    pub fn retry_pending(&mut self) -> Result<()> {
        let Some(mut pending) = self.pending.take() else {
            return Ok(());
        };
        match self.judge.judge_again(&pending) {
            Before::Publish => {}
            Before::Delivered => {
                self.counts.delivered_before += 1;
                return self.done(pending.event);
            }
            Before::Unread => {
                self.pending = Some(pending);
                return Ok(());
            }
        }
        pending.unread_tail = None;
        // An event of its aggregate may be parked since.
        let key = pending.record.key.as_deref();
        if let Some(parked) = self.judge.parks_behind(&mut pending.event, key) {
            let Pending { record, event, .. } = pending;
            return record.with_record(|record| self.park(*parked, &event, record, None, None));
        }
        self.offer(pending)
    }

    /// Whether a record is pending.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Offers a record to the sink, and keeps it where there is no room.
    fn offer(&mut self, mut pending: Pending) -> Result<()> {
        let Pending {
            record,
            event,
            is_isolated,
            ..
        } = &mut pending;
        match record.with_record(|record| self.enqueue(record, event, *is_isolated)) {
            Ok(bytes) => {
                let Pending {
                    record,
                    mut event,
                    is_isolated,
                    ..
                } = pending;
                let may_be_refused = is_isolated || self.setup.refuses_each;
                event.parks.take_if(|_| !may_be_refused);
                self.enqueued(
                    bytes,
                    InFlight {
                        isolated: is_isolated.then_some(record),
                        ..event
                    },
                )
            }
            Err(EnqueueError::Full | EnqueueError::Finished) => {
                self.pending = Some(pending);
                Ok(())
            }
            Err(EnqueueError::Refused(error)) => self.refused_at_once(pending, error),
        }
    }

    /// The sink refuses the record: its event is given up. A dead letter that is too large goes
    /// without what is large in it. Errors: such events are not given up (P3), or that was the dead
    /// letter.
    #[cold]
    fn refused_at_once(&mut self, mut pending: Pending, error: Error) -> Result<()> {
        let event = &pending.event;
        if event.instead.is_some() {
            if error.kind() != Kind::RecordTooLarge || !pending.record.is_reducible() {
                return Err(self.setup.dead_letter_refused(&error));
            }
            // A record that is too large for the producer is too large in any topic.
            pending.record = pending.record.reduced();
            return self.offer(pending);
        }
        if event.id.is_some() && error.kind().disposition() == Disposition::GiveUp {
            return self.give_up(pending.event, pending.record, &Verdict::of(error));
        }
        let trace = pending
            .record
            .with_record(|record| trace_of(event.context.as_deref(), record));
        let trace_id = trace.map(|trace| trace.hex_id());
        Err(of_trace(error.of_row(pending.row), trace_id).about(event.place))
    }

    /// Hands a record to the sink, an isolated one once nothing is in flight. Gives the bytes it
    /// counts.
    fn enqueue(
        &mut self,
        record: &Record<'_>,
        event: &mut InFlight,
        is_isolated: bool,
    ) -> Result<usize, EnqueueError> {
        let ticket = event.ticket.unwrap_or(self.ledger.next());
        match is_isolated {
            true if self.ledger.in_flight_events() > 0 => return Err(EnqueueError::Full),
            true => self.sink.enqueue_apart(record, ticket)?,
            false => self.sink.enqueue(record, ticket)?,
        }
        event.refusing = self.judge.quarantine.topics.refusing(record.topic);
        let bytes = record.bytes();
        if event.ticket.is_none() {
            self.batches.enqueued(ticket, event.place, bytes, || {
                trace_of(event.context.as_deref(), record)
            });
        }
        Ok(bytes)
    }

    fn enqueued(&mut self, bytes: usize, event: InFlight) -> Result<()> {
        if let Some(ticket) = event.ticket {
            self.ledger.set_event(ticket, event.needed());
            return Ok(());
        }
        self.counts.enqueued += 1;
        self.transaction.enqueued();
        let parked = event.parks.as_ref().filter(|_| self.setup.refuses_each);
        let bytes = bytes + parked.map_or(0, |parked| parked.bytes());
        self.ledger
            .enqueued(bytes, event.committed_at_us, event.needed())
            .map_err(contradiction)?;
        self.counts.queue_full += u64::from(!self.ledger.has_room());
        Ok(())
    }

    // Acks in.

    /// Waits for delivery reports. Safe to cancel.
    pub async fn receive_deliveries(&mut self) {
        self.sink.deliveries(&mut self.deliveries).await;
    }

    /// Takes in delivery reports.
    ///
    /// # Errors
    /// The first failure, with the event it happened to. Every ack beside it was taken in; the
    /// producer is finished. A failure of an event that can be given up heals: the next producer
    /// finds out which event it is. Where it halts, nothing is sent any more, and acks of what is
    /// in flight may be awaited.
    pub fn delivered(&mut self) -> Result<()> {
        let mut deliveries = std::mem::take(&mut self.deliveries);
        let mut failure = None;
        for delivery in &deliveries {
            match delivery {
                Delivery::Acked(ticket) => {
                    failpoint::reached("acked");
                    let parks = self.setup.refuses_each.then(|| {
                        let event = self.ledger.event_mut(*ticket)?.as_mut()?;
                        event.parks.take()
                    });
                    let parked_bytes = parks.flatten().map_or(0, |parks| parks.bytes());
                    let bytes = self.ledger.acked(*ticket).map_err(contradiction)?;
                    self.counts.acked_bytes += bytes.saturating_sub(parked_bytes) as u64;
                    self.counts.acked += 1;
                }
                Delivery::Refused(ticket, error) => {
                    if let Err(error) = self.refused(*ticket, error.clone()) {
                        failure.get_or_insert(error);
                    }
                }
                Delivery::Failed(ticket, error) => {
                    self.batches.failed(*ticket, None, error);
                    let parks = self.setup.delivery.on_error == OnError::Park;
                    let error = if let Some(topic) = error.topic().filter(|_| parks) {
                        // Events for it are parked from here on, and what follows then heals.
                        let topics = &mut self.judge.quarantine.topics;
                        if topics.give_up_next(topic, error.clone()) {
                            self.counts.attempt_failed(error.kind().class());
                        }
                        error.bus_again(format_args!("parking events for topic {topic}"))
                    } else if let Some(at) = self.ledger.whereabouts(*ticket) {
                        error.clone().about(at)
                    } else {
                        error.clone()
                    };
                    failure.get_or_insert(error);
                }
            }
        }
        self.release();
        let failure = failure.map_or(Ok(()), |failure| {
            let judge = &mut self.judge;
            Err(judge.judge_failed(&deliveries, failure, &self.ledger, &self.setup))
        });
        if failure.as_ref().is_err_and(|error| error.kind().halts()) {
            // What waits for room may be of the refused record's key.
            self.pending = None;
        }
        // The buffer is used again.
        deliveries.clear();
        self.deliveries = deliveries;
        failure
    }

    /// Whether everything taken in is acked.
    pub fn is_drained(&self) -> bool {
        self.pending.is_none() && self.ledger.in_flight_events() == 0
    }

    /// Handles events that are delivered by now, oldest first.
    fn release(&mut self) {
        self.batches.acked(Ticket(
            self.ledger.next().0 - self.ledger.in_flight_events() as u64,
        ));
        while let Some((before, event)) = self.ledger.take_delivered() {
            let Some(mut event) = event else { continue };
            if let Some(record) = event.isolated.take() {
                record.with_record(|record| self.judge.quarantine.took_isolated(record));
            }
            event.parks = None;
            if let Some(write_back) = event.write_back.take() {
                self.write_backs
                    .push(before, write_back, event.xid, event.committed_at_us);
            }
            if self.transaction.is_used() {
                self.transaction.uncommitted.push(*event);
            } else {
                self.counts.finished(&event, &mut self.judge);
            }
        }
    }

    /// No record, or no further one, is sent of an event. Its write-back holds the position back.
    fn done(&mut self, event: InFlight) -> Result<()> {
        let ticket = event.ticket.unwrap_or(self.ledger.next());
        match event.ticket {
            Some(ticket) => self.ledger.set_event(ticket, event.needed()),
            None => self
                .ledger
                .enqueued(0, event.committed_at_us, event.needed())
                .map_err(contradiction)?,
        }
        self.ledger.acked(ticket).map_err(contradiction)?;
        self.release();
        Ok(())
    }

    /// The transaction of the bus is committed: what was acked will not come again. Gives the
    /// number of its events, if one is used.
    pub fn committed(&mut self) -> Option<u64> {
        for event in std::mem::take(&mut self.transaction.uncommitted) {
            self.counts.finished(&event, &mut self.judge);
        }
        self.transaction
            .is_used()
            .then(|| self.transaction.committed())
    }

    /// Up to where every event is delivered, and written back where rows are.
    pub fn completed(&self) -> Position {
        self.write_backs.completed(self.ledger.delivered())
    }

    /// Drops a pending record whose topic's tail is not read: the server sends its event again to
    /// the next session.
    pub fn forget_unread(&mut self) {
        self.pending
            .take_if(|pending| pending.unread_tail.is_some());
    }

    // Refusals: which event the broker refused, and what follows.

    /// This record is refused, and the sink goes on: it was isolated, or the sink refuses each for
    /// itself. The event is tried again, or given up; those of its key behind it are parked with
    /// it, or sent.
    #[cold]
    fn refused(&mut self, ticket: Ticket, error: Error) -> Result<()> {
        if error.kind() == Kind::TopicRefused {
            self.counts.attempt_failed(error.kind().class());
        }
        let known = self.ledger.event(ticket).and_then(Option::as_deref);
        if let Some(wait) = self.setup.wait_of_refused(known, &error) {
            self.sink.retry(ticket, wait);
            return Ok(());
        }
        let Some(at) = self.ledger.whereabouts(ticket) else {
            return Ok(());
        };
        let known = self.ledger.event_mut(ticket).and_then(Option::take);
        let mut event = *known.unwrap_or_default();
        event.ticket = Some(ticket);
        let isolated = event.isolated.take();
        let mut withdrawn = self.sink.withdraw(ticket).into_iter();
        let first = || Some(Arc::unwrap_or_clone(withdrawn.next()?.1));
        let (Some(id), Some(record)) = (&event.id, isolated.clone().or_else(first)) else {
            let mut error = error.about(at);
            error.is_of_event = true;
            // It was tried as often as is configured.
            return Err(match error.kind().disposition() {
                Disposition::RetryThenGiveUp => error.with_kind(Kind::BusRefused),
                Disposition::Retry | Disposition::GiveUp | Disposition::Halt => error,
            });
        };
        if let Some(record) = &isolated {
            self.judge.quarantine.refused_isolated(id, record, &error);
        }
        let row = Shown::of(id.row.id());
        if event.instead.is_some() {
            self.refused_at_once(Pending::new(record, event, row), error)?;
        } else {
            self.give_up(event, record, &Verdict::of(error.of_row(row)))?;
        }
        // Records that were behind it, of its key, are parked, too, or sent.
        for (ticket, record) in withdrawn {
            let event = self.ledger.event_mut(ticket).and_then(Option::as_mut);
            let key = record.key.as_deref();
            if let Some(event) = event
                && let Some(parked) = self.judge.parks_behind(event, key)
            {
                let event = InFlight {
                    ticket: Some(ticket),
                    ..std::mem::take(event)
                };
                record.with_record(|record| self.park(*parked, &event, record, None, None))?;
            } else {
                let sent = record.with_record(|record| self.sink.enqueue(record, ticket));
                let bug = |_| Error::new(Kind::Bug, "the sink does not take a record that it had");
                sent.map_err(bug)?;
            }
        }
        Ok(())
    }

    /// Gives an event up as the configuration says; `record` is what it comes to, with an empty
    /// topic where it has none.
    #[cold]
    fn give_up(
        &mut self,
        mut event: InFlight,
        record: OwnedRecord,
        verdict: &Verdict,
    ) -> Result<()> {
        let error = &verdict.error;
        let ticket = event.ticket.unwrap_or(self.ledger.next());
        self.batches.failed(ticket, Some(event.place), error);
        let trace = record.with_record(|record| trace_of(event.context.as_deref(), record));
        let trace_id = trace.map(|trace| trace.hex_id());
        let Some(id) = event.id.take() else {
            return Err(of_trace(error.clone(), trace_id));
        };
        let failure = Failure::of(error);
        if let Some(mut parked) = event.parks.take() {
            self.judge.quarantine.forget(&id);
            let is_retried = error.kind().disposition() == Disposition::RetryThenGiveUp;
            parked.retry_in_ms = error.retry_after.filter(|_| is_retried).map(millis);
            // The attempts of a topic are none of this event.
            let mut why = failure;
            if !self.setup.refuses_each {
                why.attempts = 1;
            }
            let why = Some(why);
            let fix = self.setup.fix_of_given_up(&id, error);
            return record.with_record(|record| self.park(*parked, &event, record, why, fix));
        }
        debug_assert_ne!(
            self.setup.delivery.on_error,
            OnError::Park,
            "P3: skipped in place of parked"
        );
        let judge = &mut self.judge;
        let rows = judge.rows.get(id.row.outbox).ok_or_else(no_such_outbox)?;
        let reason = self.setup.reason(&rows.outbox, &id, event.place, &failure);
        let columns = event.context.as_ref().and_then(|context| context.columns());
        let again = judge.quarantine.give_up(&id, verdict);
        let instead = Instead::of(self.setup.delivery.on_error, again);
        if again {
            instead.log_again(&reason, trace_id, columns);
        } else {
            self.counts.given_up(failure.class);
            let fix = self.setup.fix_of_given_up(&id, error);
            instead.log(&reason, trace_id, columns, fix);
        }
        let topic = &self.setup.delivery.dead_letter_topic;
        let letter = (instead != Instead::Nothing).then(|| record.into_dead_letter(topic, &reason));
        // Of two rows of a table with the same id, each is judged by itself.
        if letter.is_none() && event.place.via != Via::Slot {
            judge.quarantine.forget(&id);
        }
        let row = Shown::of(id.row.id());
        let event = InFlight {
            write_back: rows.on_failed(&id.row, failure),
            id: Some(id),
            instead: Some(instead),
            ..event.without_record()
        };
        match letter {
            None => self.done(event),
            Some(letter) if verdict.without_value => {
                self.offer(Pending::new(letter.reduced(), event, row))
            }
            Some(letter) => self.offer(Pending::new(letter, event, row)),
        }
    }

    // Parked events: those that cannot be delivered yet, and those behind them.

    /// The table of parked events is read from here on. Events on their way there are parked, too.
    pub fn begin_look(&mut self) {
        let in_flight = self
            .ledger
            .events()
            .flatten()
            .filter_map(|event| event.write_back.as_ref()?.parked());
        let under_way = self
            .write_backs
            .parked()
            .chain(in_flight)
            .map(ParkedRef::of);
        self.judge.parking.begin_look(under_way.collect());
    }

    /// Parks an event: `why`, unless it is parked behind an earlier one. Later events of its
    /// aggregate are parked behind it.
    #[cold]
    fn park(
        &mut self,
        mut parked: ParkedEvent,
        event: &InFlight,
        record: &Record<'_>,
        why: Option<Failure>,
        fix: Option<String>,
    ) -> Result<()> {
        let judge = &mut self.judge;
        let rows = judge
            .rows
            .get(parked.row.outbox)
            .ok_or_else(no_such_outbox)?;
        let outbox = &rows.outbox;
        let slot = &self.setup.slot;
        let place = parked.place;
        if judge.parking.holds(&parked.row, &place) {
            let is_unsure = judge.parking.came_again(&parked.row, &place, rows, slot);
            self.counts.waiting_again += u64::from(is_unsure);
            return self.done(event.without_record());
        }
        parked.key = record.key.map(<[u8]>::to_vec);
        parked.topic = Some(record.topic.to_owned()).filter(|topic| !topic.is_empty());
        parked.why = why;
        let row = Shown::of(parked.row.id());
        let waiting = ParkedRef::of(&parked);
        if judge.parking.is_delivered(&waiting) {
            tracing::debug!(%slot, outbox, %row, %place, "a refused duplicate of a delivered event \
                is left out: later events of its aggregate are parked");
            self.counts.delivered_before += 1;
            return self.done(InFlight {
                write_back: event.write_back.clone(),
                ..event.without_record()
            });
        }
        if let Some(Failure { class, cause, .. }) = parked.tried() {
            self.counts.given_up(class);
            let columns = event.context.as_ref().and_then(|context| context.columns());
            let trace_id = trace_of(event.context.as_deref(), record).map(|trace| trace.hex_id());
            tracing::warn!(event = "event_parked", %slot, outbox, %row, trace_id, columns, %place,
                class, cause,
                outcome = "park", fix, "an event cannot be delivered, and is parked");
        }
        if let Some(why) = &parked.why
            && waiting.refused_by.is_some()
        {
            let wait = self
                .setup
                .delivery
                .retry
                .within(event.max_attempts)
                .wait(why.attempts, fastrand::f64());
            let asked_ms = parked.retry_in_ms.unwrap_or_default();
            parked.retry_in_ms = wait.map(|wait| millis(wait).max(asked_ms));
        }
        judge
            .parking
            .park(waiting)
            .map_err(|error| error.of_row(row).about(place))?;
        self.counts.parked += 1;
        self.write_backs.expect(&parked);
        let write_back = Some(rows.on_parked(parked));
        self.done(InFlight {
            write_back,
            ..event.without_record()
        })
    }
}

/// The trace of an event: of its column, else of its record's header.
fn trace_of(context: Option<&Context>, record: &Record<'_>) -> Option<TraceContext> {
    context
        .and_then(|context| context.trace)
        .or_else(|| TraceContext::of_headers(record.headers))
}

/// `error`, which ends the relay, with the trace of its event.
fn of_trace(error: Error, trace_id: Option<String>) -> Error {
    trace_id.into_iter().fold(error, |error, trace_id| {
        error.about(format_args!("trace {trace_id}"))
    })
}

/// The record of `event` goes without a header of its row, because the name of that header is
/// walrelay's own.
#[cold]
fn warn_of_left_out(event: &Event<'_>, header: &str, Setup { slot, outboxes, .. }: &Setup) {
    /// Outboxes with a warning: a writer of such headers writes them into every row, and a producer
    /// does not live long.
    static WARNED: Mutex<BTreeSet<(String, String)>> = Mutex::new(BTreeSet::new());
    let outbox = outboxes
        .get(event.outbox)
        .map(|outbox| outbox.source.to_string())
        .unwrap_or_default();
    if WARNED.lock().insert((slot.to_string(), outbox.clone())) {
        let row = Shown::of(event.id());
        let header = Shown::of(header.as_bytes());
        tracing::warn!(event = "header_omitted", %slot, outbox, %row, %header,
            "names of headers that begin with walrelay- are reserved; such headers of rows are \
             omitted (logged once for \
             each outbox; rename the headers)");
    }
}

/// The source contradicts itself or us: nothing it says may be confirmed any more.
pub fn contradiction(error: LedgerError) -> Error {
    Error::new(
        Kind::Bug,
        format_args!("the stream of changes contradicts itself: {error}"),
    )
    .remedy(
        "nothing was confirmed past this point; start walrelay again, and report the error with \
         the log if it returns",
    )
}

#[cfg(test)]
pub(crate) mod tests;
