//! Publishes events: routes them, enqueues their records, takes in the acks, and gives up what cannot be delivered.
//!
//! Every source of events uses it: the stream through [`super::pipeline::Pipeline`], rows of a table through `table_loop` and
//! `replay`. One source at a time has the sink, so that no two publish at once (P2). It does no I/O of its own.
//!
//! 1. [`Publisher::publish`] routes an event and enqueues its record under the next ticket of the ledger. Where the sink has
//!    no room, or the record has to travel alone, the record is *pending* and intake is closed.
//! 2. [`Publisher::delivered`] takes in acks. The ledger releases events in order once all before them are acked.
//! 3. What is to be written to the row of a released event waits in `WriteBacks`.
//!
//! An event that cannot be delivered becomes a dead letter, is skipped, or is parked, as `delivery.on_error` says. All
//! three hold the position back like a record: the dead letter until its ack, the parked event until it is in its table.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use crate::config::{Config, DeliveryConfig, OnError, OutboxConfig, SlotName};
use crate::error::{Disposition, Error, Kind, Result};
use crate::event::{Event, Place, Shown};
use crate::failpoint;
use crate::ledger::{Ledger, LedgerError, Limits, Ticket};
use crate::position::{Lsn, Position};
use crate::relay::delivered_before::{DeliveredBefore, Verdict as Before};
use crate::relay::parked_index::{BlockedBy, ParkedIndex};
use crate::relay::quarantine::{EventId, Quarantine, Verdict};
use crate::relay::transaction::Transaction;
use crate::relay::write_back::{RowPolicy, WriteBack, WriteBacks};
use crate::route::dead_letter::Reason;
use crate::route::{OwnedRecord, Record, Router};
use crate::sink::{Delivery, EnqueueError, RECORD_COST_BYTES, Sink};
use crate::telemetry::IntakeClosed;
use crate::upkeep::Failure;
use crate::upkeep::parked::{Parked, Waiting};

/// What does not change while a relay lives.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The slot, for errors.
    pub slot: SlotName,
    /// Which rows are events, and what records they become.
    pub outboxes: Vec<OutboxConfig>,
    /// What may be in flight.
    pub limits: Limits,
    /// What becomes of events that cannot be delivered.
    pub delivery: DeliveryConfig,
}

impl Setup {
    /// The set-up that `config` asks for.
    pub fn of(config: &Config) -> Setup {
        let (events, bytes) = (config.kafka.max_in_flight_events, config.kafka.max_in_flight_bytes);
        let limits = Limits { events, bytes, each: RECORD_COST_BYTES };
        let (slot, delivery) = (config.source.slot.clone(), config.delivery.clone());
        Setup { slot, outboxes: config.outboxes.clone(), limits, delivery }
    }
}

/// Counts since the publisher began, for the metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages decoded.
    pub decoded: u64,
    /// Events assembled that were not delivered before.
    pub assembled: u64,
    /// Records enqueued.
    pub enqueued: u64,
    /// Records acked.
    pub acked: u64,
    /// Bytes of their keys, values and headers.
    pub acked_bytes: u64,
    /// Times the sink was full.
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
}

/// An event until it is delivered, as far as more has to be known of it than its ticket. The ledger carries it.
#[derive(Debug)]
pub struct InFlight {
    place: Place,
    committed_at_us: i64,
    /// The transaction that wrote its row, by the lower half of its id; none for rows that are read from the table.
    xid: Option<u32>,
    /// What is written to its row once it is delivered.
    write_back: Option<WriteBack>,
    /// The event, where those that the broker refuses are given up.
    id: Option<EventId>,
    /// How often it may be tried, where its row says so.
    max_attempts: Option<u32>,
    /// What becomes of it, where it is given up.
    instead: Option<Instead>,
    /// Its record and what is parked of it, where it travels alone because the broker may refuse it.
    isolated: Option<(OwnedRecord, Isolated)>,
    /// Its topic, where that refused the record before.
    refusing: Option<String>,
}

impl InFlight {
    /// An event of which nothing more is known.
    fn new(place: Place, committed_at_us: i64, xid: Option<u32>) -> InFlight {
        InFlight {
            place,
            committed_at_us,
            xid,
            write_back: None,
            id: None,
            max_attempts: None,
            instead: None,
            isolated: None,
            refusing: None,
        }
    }

    /// Nothing has to be known of most events.
    fn needed(self) -> Option<Box<InFlight>> {
        let InFlight { write_back, id, max_attempts, instead, isolated, refusing, .. } = &self;
        let is_needed = write_back.is_some()
            || id.is_some()
            || max_attempts.is_some()
            || instead.is_some()
            || isolated.is_some()
            || refusing.is_some();
        is_needed.then(|| Box::new(self))
    }

    /// Why nothing may be enqueued behind it, if nothing may.
    fn closes_intake(&self) -> Option<IntakeClosed> {
        if self.isolated.is_some() {
            return Some(IntakeClosed::IsolatedRecord);
        }
        // What would be sent behind it would be sent again and again.
        (self.instead == Some(Instead::DeadLetterAgain)).then_some(IntakeClosed::DeadLetter)
    }
}

/// What becomes of an event that is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instead {
    /// Its dead letter is sent.
    DeadLetter,
    /// Its dead letter is sent once more.
    DeadLetterAgain,
    /// Nothing is sent.
    Skipped,
}

/// What is kept of an event that travels alone, beside its record.
#[derive(Debug)]
struct Isolated {
    /// What is parked should the broker refuse it, where such events are parked.
    parked: Option<Box<Parked>>,
}

/// A record that is not enqueued yet, kept whole because its message is gone from the receive buffer.
#[derive(Debug)]
struct Pending {
    record: OwnedRecord,
    event: InFlight,
    row: Shown,
    why: PendingFor,
    /// Its ticket, where it has one: it is the dead letter of an event that was refused.
    ticket: Option<Ticket>,
}

/// What a pending record waits for.
#[derive(Debug)]
enum PendingFor {
    /// Room in the sink.
    Room,
    /// That nothing is in flight: the broker may refuse it.
    Isolation(Isolated),
    /// The tail of its topic, which says whether it was delivered before, to this outbox; then for what is inside.
    Tail(usize, Option<Isolated>),
}

/// A record that the broker refused.
#[derive(Debug)]
struct Refusal {
    ticket: Ticket,
    error: Error,
}

/// An event that is given up, as far as its record does not tell.
#[derive(Debug, Clone, Copy)]
struct GivenUp {
    place: Place,
    committed_at_us: i64,
    xid: Option<u32>,
    /// Its ticket, where it was sent and refused.
    ticket: Option<Ticket>,
    max_attempts: Option<u32>,
}

/// What the route and the state of its topic make of an event.
enum Decision {
    Enqueued,
    Pending(Pending),
    DeliveredBefore(InFlight),
    GiveUp(OwnedRecord, Verdict),
    Wait { key: Option<Vec<u8>>, topic: String, behind: BlockedBy },
}

/// An outbox: how its events become records, and what is written to its rows.
#[derive(Debug)]
struct Outbox {
    router: Router,
    rows: RowPolicy,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Publisher<S> {
    /// For errors.
    pub(super) slot: SlotName,
    delivery: DeliveryConfig,
    outboxes: Vec<Outbox>,
    /// What is in flight.
    pub ledger: Ledger<Option<Box<InFlight>>>,
    /// Where records go.
    pub sink: S,
    pending: Option<Pending>,
    /// Where events are committed together with the position behind them.
    pub transaction: Transaction,
    /// Events that are delivered and not committed: what is known of them counts when they come again.
    uncommitted: Vec<InFlight>,
    /// What is to be written to the rows of delivered events.
    pub(crate) write_backs: WriteBacks,
    /// What is known of events that the broker refuses.
    pub(super) quarantine: Quarantine,
    /// Which events are parked.
    pub(super) parking: ParkedIndex,
    /// What an earlier process may have published, while its events come again.
    pub(super) before: Option<Box<DeliveredBefore>>,
    /// What the broker said and was not taken in yet.
    deliveries: Vec<Delivery>,
    pub(super) counts: Counts,
}

impl<S: Sink> Publisher<S> {
    /// Begins behind `start`.
    ///
    /// # Errors
    /// The route needs a column that the outbox does not list.
    pub fn new(setup: &Setup, start: Position, sink: S) -> Result<Self> {
        let outbox = |outbox| match Router::new(outbox) {
            Ok(router) => Ok(Outbox { router, rows: RowPolicy::of(outbox) }),
            Err(error) => Err(Error::new(Kind::Bug, error)),
        };
        Ok(Publisher {
            slot: setup.slot.clone(),
            delivery: setup.delivery.clone(),
            outboxes: setup.outboxes.iter().map(outbox).collect::<Result<_>>()?,
            ledger: Ledger::new(start, setup.limits),
            sink,
            pending: None,
            transaction: Transaction::new(setup.delivery.transactions.clone()),
            uncommitted: Vec::new(),
            write_backs: WriteBacks::new(start),
            quarantine: Quarantine::default(),
            parking: ParkedIndex::default(),
            before: None,
            deliveries: Vec::new(),
            counts: Counts::default(),
        })
    }

    /// Events come from this server and timeline from here on.
    pub fn set_origin(&mut self, system_identifier: &str, timeline: u32) {
        self.outboxes.iter_mut().for_each(|outbox| outbox.router.set_origin(system_identifier, timeline));
    }

    /// A new connection to the server begins, and sends again what was not taken in.
    pub(super) fn reconnected(&mut self) {
        // What has no ticket was not taken in, so the server sends its event again.
        self.pending.take_if(|pending| pending.ticket.is_none());
        self.write_backs.abandon();
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        Counts {
            topics_taking: self.quarantine.topics.taking(),
            waiting_again: self.parking.waiting_again(),
            ..self.counts
        }
    }

    /// Why no event may be taken in, if none may (P4, P5). Where several reasons hold, the first one counts.
    pub fn intake_closed(&self) -> Option<IntakeClosed> {
        if let Some(pending) = &self.pending {
            return Some(match &pending.why {
                PendingFor::Tail(..) => IntakeClosed::TopicTail,
                PendingFor::Isolation(_) => IntakeClosed::IsolatedRecord,
                PendingFor::Room => IntakeClosed::QueueFull,
            });
        }
        if let Some(Some(newest)) = self.ledger.newest()
            && let Some(why) = newest.closes_intake()
        {
            return Some(why);
        }
        let (limits, events) = (self.ledger.limits(), self.ledger.in_flight_events());
        if events >= limits.events {
            return Some(IntakeClosed::InFlightEvents);
        }
        if self.ledger.in_flight_bytes() >= limits.bytes {
            return Some(IntakeClosed::InFlightBytes);
        }
        if events + self.write_backs.len() >= limits.events {
            return Some(IntakeClosed::WriteBack);
        }
        if self.write_backs.parked_bytes() >= limits.bytes {
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
    /// The event cannot be routed, or the sink refuses it for good, and such events are not given up (P3). Nothing was
    /// enqueued.
    pub fn publish(&mut self, event: &Event<'_>) -> Result<()> {
        self.counts.assembled += 1;
        failpoint::reached("assembled");
        let id = (self.delivery.on_error != OnError::Stop).then(|| EventId::of(event));
        let Outbox { router, rows } = self.outboxes.get_mut(event.outbox).ok_or_else(no_such_outbox)?;
        let max_attempts = rows.max_attempts(event, &self.slot);
        let routed = match router.route(event) {
            Ok(routed) => routed,
            Err(error) => {
                let error = error.into_error(&self.slot);
                let Some(id) = id else { return Err(error) };
                let record = router.unrouted(event);
                return self.give_up(event, id, record, &Verdict { error, without_value: false });
            }
        };
        if let Some(header) = routed.left_out() {
            warn_of_left_out(event, header, &rows.outbox, &self.slot);
        }
        let decision = routed.with_record(|record| {
            if let Some(verdict) = id.as_ref().and_then(|id| self.quarantine.verdict(id)) {
                return Ok(Decision::GiveUp(OwnedRecord::of(record), verdict.clone()));
            }
            if self.parking.is_any()
                && let Some(EventId { row, .. }) = &id
                && let Some(behind) = self.parking.behind(row, &event.place, record)
            {
                let (key, topic) = (record.key.map(<[u8]>::to_vec), record.topic.to_owned());
                return Ok(Decision::Wait { key, topic, behind });
            }
            let retry = self.delivery.retry.within(max_attempts);
            let topics = &mut self.quarantine.topics;
            if id.is_some()
                && let Some(error) = topics.given_up(record.topic, |attempts| attempts > retry.attempts)
            {
                return Ok(Decision::GiveUp(OwnedRecord::of(record), Verdict { error, without_value: false }));
            }
            let isolated = id.as_ref().is_some_and(|id| self.quarantine.is_suspect(id, record)).then(|| {
                let parks = self.delivery.on_error == OnError::Park;
                Isolated { parked: parks.then(|| Box::new(Parked::of(event, &rows.columns, None, None))) }
            });
            let in_flight = InFlight::new(event.place, event.committed_at_us, event.xid);
            let sent = InFlight { write_back: rows.on_acked(event), id: id.clone(), max_attempts, ..in_flight };
            let pending = |event_in_flight, why| {
                let (record, row) = (OwnedRecord::of(record), Shown::of(event.id()));
                Ok(Decision::Pending(Pending { record, event: event_in_flight, row, why, ticket: None }))
            };
            match self.before.as_mut().map(|before| before.judge(event.place, event.outbox, record)) {
                None | Some(Before::Publish) => {}
                Some(Before::Delivered) => return Ok(Decision::DeliveredBefore(sent)),
                Some(Before::Unread) => return pending(sent, PendingFor::Tail(event.outbox, isolated)),
            }
            if let Some(isolated) = isolated {
                return pending(sent, PendingFor::Isolation(isolated));
            }
            let ticket = self.ledger.next();
            match self.sink.enqueue(record, ticket) {
                Ok(()) => {
                    failpoint::reached("enqueued");
                    let sent = InFlight { refusing: self.quarantine.topics.refusing(record.topic), ..sent };
                    self.counts.enqueued += 1;
                    self.transaction.enqueued();
                    self.ledger
                        .enqueued(bytes_of(record), event.committed_at_us, sent.needed())
                        .map_err(contradiction)?;
                    Ok(Decision::Enqueued)
                }
                // Which record finished the producer is said with the deliveries.
                Err(full @ (EnqueueError::Full | EnqueueError::Finished)) => {
                    self.counts.queue_full += u64::from(matches!(full, EnqueueError::Full));
                    pending(sent, PendingFor::Room)
                }
                Err(EnqueueError::Refused(error)) => {
                    if id.is_some() && error.kind().disposition() == Disposition::GiveUp {
                        return Ok(Decision::GiveUp(OwnedRecord::of(record), Verdict { error, without_value: false }));
                    }
                    Err(error.of_row(Shown::of(event.id())).of_event(event.place.commit_lsn, event.place.index))
                }
            }
        })?;
        match decision {
            Decision::Enqueued => Ok(()),
            Decision::Pending(pending) => {
                let offer = matches!(pending.why, PendingFor::Isolation(_));
                self.pending = Some(pending);
                if offer { self.retry_pending() } else { Ok(()) }
            }
            Decision::DeliveredBefore(event) => {
                self.counts.delivered_before += 1;
                self.done(None, event)
            }
            Decision::GiveUp(record, verdict) => match id {
                Some(id) => self.give_up(event, id, record, &verdict),
                None => Err(verdict.error),
            },
            Decision::Wait { key, topic, behind } => self.wait_behind(event, key, topic, behind),
        }
    }

    /// Offers the pending record to the sink once more. No other record is offered before it (P2).
    ///
    /// # Errors
    /// Those of [`Publisher::publish`].
    pub fn retry_pending(&mut self) -> Result<()> {
        let Some(mut pending) = self.pending.take() else { return Ok(()) };
        if let (PendingFor::Tail(outbox, isolated), Some(before)) = (&mut pending.why, &mut self.before) {
            let (place, outbox) = (pending.event.place, *outbox);
            match pending.record.with_record(|record| before.judge(place, outbox, record)) {
                Before::Publish => pending.why = isolated.take().map_or(PendingFor::Room, PendingFor::Isolation),
                Before::Delivered => {
                    self.counts.delivered_before += 1;
                    return self.done(None, pending.event);
                }
                Before::Unread => {
                    self.pending = Some(pending);
                    return Ok(());
                }
            }
        }
        let Some((Pending { event, row, .. }, error)) = self.offer(pending)? else { return Ok(()) };
        let InFlight { place, id, .. } = event;
        let error = error.of_row(row).of_event(place.commit_lsn, place.index);
        let Some(id) = id.filter(|_| error.kind().disposition() == Disposition::GiveUp) else { return Err(error) };
        // It is given up when it comes again.
        Err(match self.quarantine.reject(id, error.clone()) {
            true => Error::new(Kind::KafkaUnreachable, format!("giving an event up: {error}")),
            false => dead_letter_refused(&error, &self.delivery.dead_letter_topic),
        })
    }

    /// Whether a record is pending.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Offers a record to the sink, and keeps it where there is no room. Gives the record back where the sink refuses it.
    fn offer(&mut self, mut pending: Pending) -> Result<Option<(Pending, Error)>> {
        let isolated = match std::mem::replace(&mut pending.why, PendingFor::Room) {
            PendingFor::Isolation(isolated) | PendingFor::Tail(_, Some(isolated)) => Some(isolated),
            PendingFor::Room | PendingFor::Tail(_, None) => None,
        };
        if let Some(isolated) = isolated {
            return self.offer_isolated(pending, isolated);
        }
        let ticket = pending.ticket.unwrap_or(self.ledger.next());
        let enqueued = pending.record.with_record(|record| {
            self.sink.enqueue(record, ticket)?;
            pending.event.refusing = self.quarantine.topics.refusing(record.topic);
            Ok(bytes_of(record))
        });
        match enqueued {
            Ok(bytes) if pending.ticket.is_none() => self.enqueued(bytes, pending.event)?,
            Ok(_) => self.ledger.set_event(ticket, pending.event.needed()),
            Err(EnqueueError::Full | EnqueueError::Finished) => self.pending = Some(pending),
            Err(EnqueueError::Refused(error)) => return Ok(Some((pending, error))),
        }
        Ok(None)
    }

    /// The same for a record that the broker may refuse: it waits until nothing is in flight.
    fn offer_isolated(&mut self, mut pending: Pending, isolated: Isolated) -> Result<Option<(Pending, Error)>> {
        let ticket = self.ledger.next();
        let sent = match self.ledger.in_flight_events() {
            0 => pending.record.with_record(|record| {
                self.sink.enqueue_apart(record, ticket)?;
                pending.event.refusing = self.quarantine.topics.refusing(record.topic);
                Ok(bytes_of(record))
            }),
            _ => Err(EnqueueError::Full),
        };
        match sent {
            Ok(bytes) => {
                let isolated = Some((pending.record, isolated));
                self.enqueued(bytes, InFlight { isolated, ..pending.event })?;
                Ok(None)
            }
            Err(EnqueueError::Full | EnqueueError::Finished) => {
                self.pending = Some(Pending { why: PendingFor::Isolation(isolated), ..pending });
                Ok(None)
            }
            Err(EnqueueError::Refused(error)) => Ok(Some((pending, error))),
        }
    }

    /// A record was enqueued under the ledger's next ticket.
    fn enqueued(&mut self, bytes: usize, event: InFlight) -> Result<()> {
        self.counts.enqueued += 1;
        self.transaction.enqueued();
        self.ledger.enqueued(bytes, event.committed_at_us, event.needed()).map_err(contradiction)
    }

    // Acks in.

    /// Waits for what the broker says. Safe to cancel.
    pub async fn receive_deliveries(&mut self) {
        self.sink.deliveries(&mut self.deliveries).await;
    }

    /// Takes in what the broker said.
    ///
    /// # Errors
    /// The first failure, with the event it happened to. Every ack beside it was taken in; the producer is finished. A
    /// failure of an event that can be given up heals: the next producer finds out which event it is.
    pub fn delivered(&mut self) -> Result<()> {
        let mut deliveries = std::mem::take(&mut self.deliveries);
        let mut failure = None;
        self.write_backs.note(self.ledger.delivered());
        limit_attempts(&mut deliveries, &self.ledger);
        let (mut refused, on_error) = (Vec::new(), self.delivery.on_error);
        let (gives_up, parks) = (on_error != OnError::Stop, on_error == OnError::Park);
        for delivery in deliveries.drain(..) {
            match delivery {
                Delivery::Acked(ticket) => {
                    failpoint::reached("acked");
                    let bytes = self.ledger.acked(ticket).map_err(contradiction)?;
                    self.counts.acked_bytes += bytes as u64;
                    self.counts.acked += 1;
                }
                Delivery::Refused(ticket, error) => {
                    if let Err(error) = self.refused_isolated(ticket, error) {
                        failure.get_or_insert(error);
                    }
                }
                Delivery::Failed(ticket, error) => {
                    if gives_up && error.kind().disposition() == Disposition::GiveUp {
                        refused.push(Refusal { ticket, error: error.clone() });
                    }
                    if parks && let Some(topic) = error.topic() {
                        // Events for it are parked from here on, and what follows then heals.
                        self.quarantine.topics.give_up_next(topic, error.clone());
                        let cause = format!("parking events for topic {topic}: {error}");
                        failure.get_or_insert(Error::new(Kind::KafkaUnreachable, cause));
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
        // Its room is used again.
        self.deliveries = deliveries;
        self.release();
        match failure {
            None => Ok(()),
            Some(failure) => Err(self.judge_refused(&refused, failure)),
        }
    }

    /// Whether everything taken in is acked.
    pub fn is_drained(&self) -> bool {
        self.pending.is_none() && self.ledger.in_flight_events() == 0
    }

    /// What follows for events that are delivered by now, oldest first.
    fn release(&mut self) {
        while let Some(event) = self.ledger.take_delivered() {
            let Some(mut event) = event else { continue };
            if let Some((record, _)) = event.isolated.take() {
                record.with_record(|record| self.quarantine.took_isolated(record));
            }
            if let Some(write_back) = event.write_back.take() {
                self.write_backs.push(event.place, write_back, event.xid);
            }
            if self.transaction.is_used() {
                self.uncommitted.push(*event);
            } else {
                self.finish(&event);
            }
        }
    }

    /// This event does not come again.
    fn finish(&mut self, event: &InFlight) {
        if let Some(topic) = &event.refusing {
            self.quarantine.topics.took(topic);
        }
        if let Some(id) = &event.id {
            self.quarantine.delivered(id);
        }
        match event.instead {
            None => {}
            Some(Instead::DeadLetter | Instead::DeadLetterAgain) => self.counts.dead_lettered += 1,
            Some(Instead::Skipped) => self.counts.skipped += 1,
        }
    }

    /// No record, or no further one, is sent of an event. What is to be written of it holds the position back.
    fn done(&mut self, ticket: Option<Ticket>, event: InFlight) -> Result<()> {
        self.write_backs.note(self.ledger.delivered());
        let ticket = match ticket {
            Some(ticket) => {
                self.ledger.set_event(ticket, event.needed());
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

    /// The transaction of Kafka is committed: what was acked will not come again. Gives the number of events in it; none
    /// where there are no transactions.
    pub(super) fn committed(&mut self) -> Option<u64> {
        for event in std::mem::take(&mut self.uncommitted) {
            self.finish(&event);
        }
        self.transaction.is_used().then(|| self.transaction.committed())
    }

    /// Up to where every event is delivered, and written back where rows are.
    pub(super) fn completed(&self) -> Position {
        self.write_backs.completed(self.ledger.delivered())
    }

    // Events that come again after a crash. Those that were published count as delivered, and are not published again.

    /// Everything that commits below `lsn` was sent: what was published before may have come to its end.
    #[inline]
    pub(super) fn sent_below(&mut self, lsn: Lsn) {
        if self.before.take_if(|before| before.is_over(lsn)).is_some() {
            let events = self.counts.delivered_before;
            if events > 0 {
                tracing::info!(slot = %self.slot, events, "events that their topics already had were not published again");
            }
        }
    }

    /// Drops an event that waits for a tail: the server sends it again to the next session.
    pub(super) fn forget_unread(&mut self) {
        self.pending.take_if(|pending| matches!(pending.why, PendingFor::Tail(..)));
    }

    // Refusals: which event the broker refused, and what follows.

    /// What follows from `failure`, the first that was told, where these were `refused`.
    fn judge_refused(&mut self, refused: &[Refusal], failure: Error) -> Error {
        let Some(first) = refused.first() else { return failure };
        let cause = format!("the broker refused a record; looking for it: {}", first.error);
        if refused.len() > 1 {
            self.quarantine.with_others();
        }
        let mut judged = true;
        for Refusal { ticket, error } in refused {
            let event = self.ledger.event(*ticket).and_then(Option::as_deref);
            judged &= event.is_some_and(|event| {
                let isolated = event.isolated.as_ref().map(|(record, _)| record);
                event.id.as_ref().is_some_and(|id| self.quarantine.refused(id, isolated, error))
            });
        }
        if judged {
            Error::new(Kind::KafkaUnreachable, cause)
        } else {
            dead_letter_refused(&failure, &self.delivery.dead_letter_topic)
        }
    }

    /// The event that travelled alone is refused, and given up.
    ///
    /// # Errors
    /// It cannot be given up.
    #[cold]
    fn refused_isolated(&mut self, ticket: Ticket, error: Error) -> Result<()> {
        let known = self.ledger.event_mut(ticket);
        let Some(event) = known.and_then(|known| known.take_if(|event| event.isolated.is_some())) else {
            return Ok(());
        };
        let InFlight { place, committed_at_us, xid, id, max_attempts, isolated, .. } = *event;
        let (Some(id), Some((record, Isolated { parked }))) = (id, isolated) else {
            return Err(error.of_event(place.commit_lsn, place.index));
        };
        self.quarantine.refused_isolated(&id, &record, &error);
        let of = GivenUp { place, committed_at_us, xid, ticket: Some(ticket), max_attempts };
        if let Some(parked) = parked {
            return self.park(*parked, &of, id, &record, &error);
        }
        let error = error.of_row(Shown::of(id.row.id()));
        self.dead_letter_or_skip(&of, id, record, &Verdict { error, without_value: false })
    }

    /// Gives `event` up as the configuration says; `record` is what it comes to, with an empty topic where it has none.
    #[cold]
    fn give_up(&mut self, event: &Event<'_>, id: EventId, record: OwnedRecord, verdict: &Verdict) -> Result<()> {
        let rows = &mut self.outboxes.get_mut(event.outbox).ok_or_else(no_such_outbox)?.rows;
        let max_attempts = rows.max_attempts(event, &self.slot);
        let Event { place, committed_at_us, xid, .. } = *event;
        let of = GivenUp { place, committed_at_us, xid, ticket: None, max_attempts };
        if self.delivery.on_error == OnError::Park {
            let parked = Parked::of(event, &rows.columns, None, None);
            return self.park(parked, &of, id, &record, &verdict.error);
        }
        self.dead_letter_or_skip(&of, id, record, verdict)
    }

    fn dead_letter_or_skip(
        &mut self,
        event: &GivenUp,
        id: EventId,
        record: OwnedRecord,
        verdict: &Verdict,
    ) -> Result<()> {
        let rows = &self.outboxes.get(id.row.outbox).ok_or_else(no_such_outbox)?.rows;
        let (class, cause, attempts) = (verdict.error.kind().class(), verdict.error.cause(), verdict.error.attempts);
        let write_back = rows.on_failed(&id.row, Failure { class, cause: cause.to_owned(), attempts });
        let unsent = InFlight { write_back, ..InFlight::new(event.place, event.committed_at_us, event.xid) };
        let (outbox, row, place) = (rows.outbox.as_str(), Shown::of(id.row.id()), event.place);
        let dead_letters = self.delivery.on_error == OnError::DeadLetter;
        let outcome = if dead_letters { "dead-letter" } else { "skip" };
        let again = dead_letters && self.quarantine.give_up(&id, verdict);
        if again {
            tracing::debug!(slot = %self.slot, outbox, row = %row, "sending a dead letter again");
        } else {
            tracing::warn!(slot = %self.slot, outbox, row = %row, %place, class, cause, outcome, "an event was given up");
        }
        if !dead_letters {
            self.quarantine.forget(&id);
            return self.done(event.ticket, InFlight { instead: Some(Instead::Skipped), ..unsent });
        }
        let reason = Reason { slot: &self.slot, outbox, row: id.row.id(), place, class, cause, attempts };
        let letter = record.into_dead_letter(&self.delivery.dead_letter_topic, &reason);
        let record = if verdict.without_value { letter.without_value() } else { letter };
        let instead = Some(if again { Instead::DeadLetterAgain } else { Instead::DeadLetter });
        let sent = InFlight { id: Some(id), instead, ..unsent };
        let pending = Pending { record, event: sent, row, why: PendingFor::Room, ticket: event.ticket };
        let Some((pending, error)) = self.offer(pending)? else { return Ok(()) };
        if error.kind() != Kind::RecordTooLarge {
            return Err(dead_letter_refused(&error, &self.delivery.dead_letter_topic));
        }
        // What is too large for the producer is so in any topic.
        let record = pending.record.without_value();
        match self.offer(Pending { record, ..pending })? {
            None => Ok(()),
            Some((_, error)) => Err(dead_letter_refused(&error, &self.delivery.dead_letter_topic)),
        }
    }

    // Parked events: those that cannot be delivered yet, and those behind them.

    /// These events are parked, by what the table says now that no other relay writes to it.
    pub(super) fn set_parked(&mut self, waiting: Vec<Waiting>) {
        let under_way: Vec<Waiting> = self.parking_under_way().map(waiting_as).collect();
        self.parking.begin(waiting, under_way);
    }

    /// Events that are on their way to the table.
    fn parking_under_way(&self) -> impl Iterator<Item = &Parked> {
        let in_flight = self.ledger.events().flatten().filter_map(|event| event.write_back.as_ref()?.parked());
        self.write_backs.parked().chain(in_flight)
    }

    /// For the comparison with what is read of the table from now on.
    pub(super) fn census(&self) -> u64 {
        self.parking.census(self.parking_under_way().map(|event| (&event.row, &event.place)))
    }

    /// An event cannot be delivered, and is parked; what comes of its aggregate from now on is parked behind it.
    fn park(
        &mut self,
        mut parked: Parked,
        of: &GivenUp,
        id: EventId,
        record: &OwnedRecord,
        error: &Error,
    ) -> Result<()> {
        self.quarantine.forget(&id);
        if self.parking.holds(&parked.row, &parked.place) {
            let rows = &self.outboxes.get(parked.row.outbox).ok_or_else(no_such_outbox)?.rows;
            self.parking.came_again(&parked.row, &parked.place, rows, &self.slot);
            return self.done(of.ticket, InFlight::new(parked.place, parked.committed_at_us, of.xid));
        }
        let (class, cause) = (error.kind().class(), error.cause());
        let outbox = &self.outboxes.get(parked.row.outbox).ok_or_else(no_such_outbox)?.rows.outbox;
        tracing::warn!(
            slot = %self.slot, outbox, row = %Shown::of(parked.row.id()), place = %parked.place, class, cause, outcome = "park",
            "an event cannot be delivered, and is parked"
        );
        record.with_record(|record| {
            parked.key = record.key.map(<[u8]>::to_vec);
            parked.topic = Some(record.topic.to_owned()).filter(|topic| !topic.is_empty());
        });
        let why = Failure { class, cause: cause.to_owned(), attempts: 1 };
        self.begin_to_wait(parked, of, Some((why, error.kind().disposition())))
    }

    /// `event` could be delivered, were it not for what waits.
    #[cold]
    fn wait_behind(&mut self, event: &Event<'_>, key: Option<Vec<u8>>, topic: String, behind: BlockedBy) -> Result<()> {
        let Event { place, committed_at_us, xid, .. } = *event;
        let why = match behind {
            BlockedBy::Itself => {
                let rows = &self.outboxes.get(event.outbox).ok_or_else(no_such_outbox)?.rows;
                self.parking.came_again(&event.row_id(), &place, rows, &self.slot);
                return self.done(None, InFlight::new(place, committed_at_us, xid));
            }
            BlockedBy::Aggregate => None,
            BlockedBy::Topic => {
                let cause = format!("topic {topic} refuses records; this event was not tried");
                // It was not tried, and that costs it no try.
                let why = Failure { class: Kind::TopicRefused.class(), cause, attempts: 0 };
                Some((why, Disposition::RetryThenGiveUp))
            }
        };
        let rows = &mut self.outboxes.get_mut(event.outbox).ok_or_else(no_such_outbox)?.rows;
        let max_attempts = rows.max_attempts(event, &self.slot);
        let topic = Some(topic).filter(|topic| !topic.is_empty());
        let parked = Parked::of(event, &rows.columns, key, topic);
        self.begin_to_wait(parked, &GivenUp { place, committed_at_us, xid, ticket: None, max_attempts }, why)
    }

    fn begin_to_wait(&mut self, mut parked: Parked, of: &GivenUp, why: Option<(Failure, Disposition)>) -> Result<()> {
        if let Some((why, disposition)) = why {
            if disposition == Disposition::RetryThenGiveUp {
                let wait = self.delivery.retry.within(of.max_attempts).wait(why.attempts, fastrand::f64());
                parked.retry_in_ms = wait.map(|wait| i64::try_from(wait.as_millis()).unwrap_or(i64::MAX));
            }
            parked.why = Some(why);
        }
        self.parking.park(waiting_as(&parked)).map_err(|error| {
            error.of_row(Shown::of(parked.row.id())).of_event(parked.place.commit_lsn, parked.place.index)
        })?;
        self.counts.parked += 1;
        self.write_backs.expect(&parked);
        let rows = &self.outboxes.get(parked.row.outbox).ok_or_else(no_such_outbox)?.rows;
        let write_back = rows.on_parked(parked);
        let in_flight = InFlight::new(of.place, of.committed_at_us, of.xid);
        let event = InFlight { write_back: Some(write_back), ..in_flight };
        self.done(of.ticket, event)
    }
}

/// Says in each failure how often the first event that its topic refused may be tried.
fn limit_attempts(deliveries: &mut [Delivery], ledger: &Ledger<Option<Box<InFlight>>>) {
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
            let event = ledger.event(*ticket).and_then(Option::as_deref);
            let max = event.and_then(|event| event.max_attempts);
            error.max_attempts = max;
        }
    }
}

/// What follows where the dead-letter topic refuses a record.
fn dead_letter_refused(error: &Error, topic: &str) -> Error {
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

/// What is kept in memory of a parked event.
fn waiting_as(event: &Parked) -> Waiting {
    let is_refused = event.why.as_ref().is_some_and(|why| why.class == Kind::TopicRefused.class());
    let refused_by = event.topic.clone().filter(|_| is_refused);
    Waiting { row: event.row.clone(), place: event.place, key: event.key.clone(), refused_by }
}

/// What a record counts against the limit on bytes in flight.
fn bytes_of(record: &Record<'_>) -> usize {
    let length = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
    let headers: usize = record.headers.iter().map(|(name, value)| name.len() + length(*value)).sum();
    length(record.key) + length(record.value) + headers
}

/// The record of `event` goes without a header of its row, because the name of that header is walrelay's own.
#[cold]
fn warn_of_left_out(event: &Event<'_>, header: &str, outbox: &str, slot: &SlotName) {
    /// Outboxes that were warned of: whoever writes such headers writes them into every row, and producers come and go.
    static WARNED: Mutex<BTreeSet<(String, String)>> = Mutex::new(BTreeSet::new());
    let of = (slot.to_string(), outbox.to_owned());
    if WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(of) {
        let (row, header) = (Shown::of(event.id()), Shown::of(header.as_bytes()));
        tracing::warn!(
            %slot, outbox, %row, %header,
            "names of headers that begin with walrelay- are reserved; such headers of rows are omitted (logged once for \
             each outbox; rename the headers)"
        );
    }
}

/// The assembler counts outboxes as the configuration does.
#[cold]
fn no_such_outbox() -> Error {
    Error::new(Kind::Bug, "an event is from an outbox that is not configured")
}

/// The source contradicts itself or us: nothing it says may be confirmed any more.
pub(super) fn contradiction(error: LedgerError) -> Error {
    Error::new(Kind::Bug, format_args!("the stream of changes contradicts itself: {error}")).remedy(
        "nothing was confirmed past this point; start walrelay again, and report the error with the log if it returns",
    )
}
