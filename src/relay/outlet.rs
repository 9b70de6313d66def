//! The way of an event into Kafka and of its ack back, without I/O of its own: route, enqueue, count.
//!
//! Every source of events uses it: the stream through [`super::core::Core`], rows of the table through
//! `reading`. One at a time has the sink, so that no two sources publish at once (P2).

mod acks;
mod again;
mod apart;
mod giving_up;
mod left_out;
mod parking;
mod settling;
mod waiting;

use std::collections::VecDeque;

use tokio::time::Instant;

use crate::config::{Config, DeliveryConfig, OutboxConfig, SlotName};
use crate::error::{Disposition, Error, Kind, Result};
use crate::event::{Event, Place, Shown};
use crate::failpoint;
use crate::ledger::{Ledger, LedgerError, Limits, Ticket};
use crate::position::Position;
use crate::relay::delivered_before::{DeliveredBefore, Verdict as Before};
use crate::relay::outlet::apart::{Alone, InFlightAlone};
use crate::relay::outlet::giving_up::{GivingUp, Instead};
use crate::relay::outlet::parking::Parking;
use crate::relay::outlet::settling::{Kept, Outcome, Settles};
use crate::relay::poison::{EventId, Poison, Verdict};
use crate::route::{OwnedRecord, Record, Router};
use crate::sink::{Delivery, EnqueueError, RECORD_COST_BYTES, Sink};

/// A record that is not enqueued yet, kept whole because its message is gone from the receive buffer.
#[derive(Debug)]
struct Pending {
    record: OwnedRecord,
    event: InFlight,
    row: Shown,
    /// It waits until nothing is in flight, because it may be one the broker refuses.
    alone: Option<Alone>,
    /// Its ticket, where it has one: it is the dead letter of an event that was refused.
    ticket: Option<Ticket>,
    /// Its outbox, while nobody knows whether it was delivered before: the tail of its topic has to be read first.
    unread: Option<usize>,
}

/// What has to be known of an event until it is delivered: the ledger carries it.
#[derive(Debug)]
pub struct InFlight {
    place: Place,
    committed_at_us: i64,
    /// The transaction that wrote its row, by the lower half of its id; none for rows that are read from the table.
    xid: Option<u32>,
    /// What is written to its row once it is delivered.
    outcome: Option<Outcome>,
    /// The event, where those that the broker refuses are given up.
    id: Option<EventId>,
    /// How often it may be tried, where it says so itself.
    max_attempts: Option<u32>,
    /// What becomes of it, where it is given up.
    instead: Option<Instead>,
}

impl InFlight {
    /// Nothing has to be known of most events.
    fn needed(self) -> Option<Box<InFlight>> {
        let InFlight { outcome, id, max_attempts, instead, .. } = &self;
        let is_needed = outcome.is_some() || id.is_some() || max_attempts.is_some() || instead.is_some();
        is_needed.then(|| Box::new(self))
    }
}

/// Counts since the outlet began, for the metrics.
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
    /// Events that were given up and do not come again: those that are in the topic of dead letters, and those that went nowhere.
    pub dead_lettered: u64,
    /// See above.
    pub skipped: u64,
    /// Events that began to wait, because they could not be delivered or behind one that could not.
    pub parked: u64,
    /// Events that wait already and came again, as far as their ids tell.
    pub waiting_again: u64,
    /// Events that an earlier process had published.
    pub delivered_before: u64,
    /// Topics that refused a record and took one since.
    pub topics_taking: u64,
}

/// What does not change while a relay lives.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The slot, for errors.
    pub slot: SlotName,
    /// What is an event, and what record it becomes.
    pub outboxes: Vec<OutboxConfig>,
    /// What may be in flight.
    pub limits: Limits,
    /// What becomes of events that cannot be delivered.
    pub delivery: DeliveryConfig,
}

impl Setup {
    /// What is configured.
    pub fn of(config: &Config) -> Setup {
        let (events, bytes) = (config.kafka.max_in_flight_events, config.kafka.max_in_flight_bytes);
        let limits = Limits { events, bytes, each: RECORD_COST_BYTES };
        let (slot, delivery) = (config.source.slot.clone(), config.delivery.clone());
        Setup { slot, outboxes: config.outboxes.clone(), limits, delivery }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Outlet<S> {
    slot: SlotName,
    /// One for each outbox.
    routers: Vec<Router>,
    /// One for each outbox.
    outboxes: Vec<Settles>,
    ledger: Ledger<Option<Box<InFlight>>>,
    sink: S,
    pending: Option<Pending>,
    /// The event that is in flight alone, because the broker may refuse it.
    apart: Option<InFlightAlone>,
    /// Rows to be marked or deleted, of events that are delivered, in their order.
    kept: VecDeque<Kept>,
    /// Those of them that are being marked or deleted now.
    settling: Vec<Kept>,
    /// The transaction that events are of, by the lower half of its id; none for rows that are read from the table.
    xid: Option<u32>,
    giving_up: GivingUp,
    parking: Parking,
    /// Of events on their way to the table of those that wait.
    parked_bytes: usize,
    /// What an earlier process may have published, while its events come again.
    before: Option<Box<DeliveredBefore>>,
    /// Events that are delivered and not committed: what is known of them counts when they come again.
    uncommitted: Vec<InFlight>,
    counts: Counts,
}

impl<S: Sink> Outlet<S> {
    /// Begins behind `start`.
    ///
    /// # Errors
    /// The route needs a column that the outbox does not list.
    pub fn new(setup: &Setup, start: Position, sink: S) -> Result<Self> {
        let routers = setup.outboxes.iter().map(Router::new).collect::<Result<_, _>>();
        let routers = routers.map_err(|error| Error::new(Kind::Bug, error))?;
        Ok(Outlet {
            slot: setup.slot.clone(),
            routers,
            outboxes: setup.outboxes.iter().map(Settles::of).collect(),
            ledger: Ledger::new(start, setup.limits),
            sink,
            pending: None,
            apart: None,
            kept: VecDeque::new(),
            settling: Vec::new(),
            xid: None,
            giving_up: GivingUp::new(&setup.delivery),
            parking: Parking::default(),
            parked_bytes: 0,
            before: None,
            uncommitted: Vec::new(),
            counts: Counts::default(),
        })
    }

    /// Events come from this server and timeline from here on.
    pub fn set_origin(&mut self, system_identifier: &str, timeline: u32) {
        self.routers.iter_mut().for_each(|router| router.set_origin(system_identifier, timeline));
    }

    /// Events are of this transaction from here on.
    pub fn set_transaction(&mut self, xid: u32) {
        self.xid = Some(xid);
    }

    /// A new connection sends again what was not taken in.
    pub fn reconnected(&mut self) {
        // What has no ticket was not taken in, so the server sends its event again.
        self.pending.take_if(|pending| pending.ticket.is_none());
    }

    /// Whether another event may be taken in (P4, P5): rows that wait to be marked count, too.
    pub fn has_room(&self) -> bool {
        let waiting = self.ledger.in_flight_events() + self.kept.len() + self.settling.len();
        self.pending.is_none()
            && self.ledger.has_room()
            && waiting < self.ledger.limits().events
            && self.parked_bytes < self.ledger.limits().bytes
            && !self.giving_up.poison.is_alone()
            && !self.holds()
    }

    /// Whether a dead letter is in flight that was refused before: what would be sent behind it would be sent again and again.
    fn holds(&self) -> bool {
        let newest = self.ledger.events().next_back().and_then(Option::as_ref);
        newest.is_some_and(|event| event.instead == Some(Instead::DeadLetterAgain))
    }

    /// Routes `event` and hands it to the sink, or gives it up. Call only with room.
    ///
    /// # Errors
    /// It cannot be routed, or the sink refuses it for good, and such events are not given up (P3). Nothing was enqueued.
    pub fn publish(&mut self, event: &Event<'_>) -> Result<()> {
        self.counts.assembled += 1;
        failpoint::reached("assembled");
        let id = self.giving_up.is_on().then(|| EventId::of(event));
        let verdict = id.as_ref().and_then(|id| self.giving_up.poison.verdict(id)).cloned();
        let router = self.routers.get_mut(event.outbox).ok_or_else(no_such_outbox)?;
        let settles = self.outboxes.get_mut(event.outbox).ok_or_else(no_such_outbox)?;
        let max_attempts = settles.max_attempts(event, &self.slot);
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
            left_out::tell(event, header, &settles.name, &self.slot);
        }
        if let (Some(verdict), Some(id)) = (verdict, &id) {
            let record = routed.with_record(OwnedRecord::of);
            return self.give_up(event, id.clone(), record, &verdict);
        }
        if self.parking.is_any()
            && let Some(EventId { row, .. }) = &id
            && let Some(behind) = routed.with_record(|record| self.parking.behind(row, &event.place, record))
        {
            let key = routed.with_record(|record| record.key.map(<[u8]>::to_vec));
            let topic = routed.with_record(|record| record.topic.to_owned());
            return self.wait_behind(event, (key, topic), behind);
        }
        if self.giving_up.poison.has_refusing()
            && let Some(error) =
                routed.with_record(|record| self.giving_up.refusal(record.topic, max_attempts, Instant::now()))
            && let Some(id) = id
        {
            let record = routed.with_record(OwnedRecord::of);
            return self.give_up(event, id, record, &Verdict { error, without_value: false });
        }
        let outcome = settles.acked.then(|| Outcome::Acked(event.row_id()));
        let (place, committed_at_us, xid) = (event.place, event.committed_at_us, self.xid);
        let sent = InFlight { place, committed_at_us, xid, outcome, id, max_attempts, instead: None };
        let pending = |record: &Record<'_>, sent, alone, unread| {
            let row = Shown::of(event.id());
            Some(Pending { record: OwnedRecord::of(record), event: sent, row, alone, unread, ticket: None })
        };
        let suspect = routed.with_record(|record| self.giving_up.suspects(sent.id.as_ref(), record));
        let alone = suspect.then(|| self.giving_up.alone(event, &settles.columns));
        if let Some(before) = &mut self.before {
            match routed.with_record(|record| before.judge(event.place, event.outbox, record)) {
                Before::Publish => {}
                Before::Delivered => return self.delivered_before(sent),
                Before::Unread => {
                    self.pending = routed.with_record(|record| pending(record, sent, alone, Some(event.outbox)));
                    return Ok(());
                }
            }
        }
        if alone.is_some() {
            self.pending = routed.with_record(|record| pending(record, sent, alone, None));
            return self.retry_pending();
        }
        let refused = routed.with_record(|record| match self.sink.enqueue(record, self.ledger.next()) {
            Ok(()) => {
                failpoint::reached("enqueued");
                let bytes = bytes_of(record);
                self.giving_up.poison.sent_to(record.topic, self.ledger.next());
                self.counts.enqueued += 1;
                self.ledger.enqueued(bytes, committed_at_us, sent.needed()).map_err(contradiction)?;
                Ok(None)
            }
            // Which one finished the producer is told with the deliveries.
            Err(full @ (EnqueueError::Full | EnqueueError::Finished)) => {
                self.counts.queue_full += u64::from(matches!(full, EnqueueError::Full));
                self.pending = pending(record, sent, None, None);
                Ok(None)
            }
            Err(EnqueueError::Refused(error)) => match sent.id {
                Some(id) if error.kind().disposition() == Disposition::GiveUp => {
                    Ok(Some((id, OwnedRecord::of(record), error)))
                }
                _ => Err(error.of_row(Shown::of(event.id())).of_event(event.place.commit_lsn, event.place.index)),
            },
        })?;
        match refused {
            Some((id, record, error)) => self.give_up(event, id, record, &Verdict { error, without_value: false }),
            None => Ok(()),
        }
    }

    /// Offers the record that is not enqueued yet once more. Nothing else is offered before it (P2).
    pub fn retry_pending(&mut self) -> Result<()> {
        let Some(pending) = self.pending.take() else { return Ok(()) };
        let Some(pending) = self.not_delivered_before(pending)? else { return Ok(()) };
        let Some((pending, error)) = self.offer(pending)? else { return Ok(()) };
        let InFlight { place, id, .. } = pending.event;
        let error = error.of_row(pending.row).of_event(place.commit_lsn, place.index);
        match id {
            Some(id) if error.kind().disposition() == Disposition::GiveUp => {
                Err(self.giving_up.refused_later(id, error))
            }
            _ => Err(error),
        }
    }

    /// Offers a record to the sink, and keeps it for later where there is no room. Gives it back where it can never be taken.
    fn offer(&mut self, pending: Pending) -> Result<Option<(Pending, Error)>> {
        if pending.alone.is_some() && self.ledger.in_flight_events() > 0 {
            self.pending = Some(pending);
            return Ok(None);
        }
        if pending.alone.is_some() {
            return self.offer_apart(pending);
        }
        if let Some(ticket) = pending.ticket {
            return self.offer_again(pending, ticket);
        }
        let ticket = self.ledger.next();
        let bytes = pending.record.with_record(|record| {
            self.sink.enqueue(record, ticket)?;
            self.giving_up.poison.sent_to(record.topic, ticket);
            Ok(bytes_of(record))
        });
        match bytes {
            Ok(bytes) => self.enqueued(bytes, pending.event)?,
            Err(EnqueueError::Full | EnqueueError::Finished) => self.pending = Some(pending),
            Err(EnqueueError::Refused(error)) => return Ok(Some((pending, error))),
        }
        Ok(None)
    }

    /// A record was enqueued under the ledger's next ticket.
    fn enqueued(&mut self, bytes: usize, event: InFlight) -> Result<()> {
        self.counts.enqueued += 1;
        self.ledger.enqueued(bytes, event.committed_at_us, event.needed()).map_err(contradiction)
    }

    /// Whether a record waits for room in the sink.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Waits for deliveries. Safe to cancel.
    pub async fn next_deliveries(&mut self, into: &mut Vec<Delivery>) {
        self.sink.deliveries(into).await;
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger<Option<Box<InFlight>>> {
        &self.ledger
    }

    /// The ledger, to be told of transactions.
    pub fn ledger_mut(&mut self) -> &mut Ledger<Option<Box<InFlight>>> {
        &mut self.ledger
    }

    /// The slot, for errors.
    pub fn slot(&self) -> &SlotName {
        &self.slot
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        Counts { topics_taking: self.giving_up.poison.taken(), ..self.counts }
    }

    /// Counts a message.
    pub fn decoded(&mut self) {
        self.counts.decoded += 1;
    }

    /// What was acked is committed, and will not come again.
    pub fn committed(&mut self) {
        self.giving_up.poison.acked_below(self.ledger.next_undelivered());
        for event in std::mem::take(&mut self.uncommitted) {
            self.finish(&event);
        }
    }

    /// What is known of events that the broker refuses, from the last producer.
    pub fn remember(&mut self, poison: Poison) {
        self.giving_up.poison = poison;
        self.giving_up.poison.begin();
    }

    /// That, to look at.
    pub fn poison(&self) -> &Poison {
        &self.giving_up.poison
    }

    /// The same, for the next one.
    pub fn take_poison(&mut self) -> Poison {
        std::mem::take(&mut self.giving_up.poison)
    }

    /// The sink, to be closed or given to the next; whatever was not acked is not delivered.
    pub fn into_sink(self) -> S {
        self.sink
    }

    /// The sink, to look at.
    pub fn sink(&self) -> &S {
        &self.sink
    }
}

/// What a record counts against the limit on bytes in flight.
fn bytes_of(record: &Record<'_>) -> usize {
    let length = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
    let headers: usize = record.headers.iter().map(|(name, value)| name.len() + length(*value)).sum();
    length(record.key) + length(record.value) + headers
}

/// The assembler counts outboxes as the configuration does.
#[cold]
fn no_such_outbox() -> Error {
    Error::new(Kind::Bug, "an event is from an outbox that is not configured")
}

/// The source contradicts itself or us: nothing it says may be confirmed any more.
pub(super) fn contradiction(error: LedgerError) -> Error {
    Error::new(Kind::Bug, format_args!("the stream of changes contradicts itself: {error}"))
        .remedy("nothing was confirmed past this point; start again, and report it with the log if it comes back")
}
