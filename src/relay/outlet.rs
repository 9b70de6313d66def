//! The way of an event into Kafka and of its ack back, without I/O of its own: route, enqueue, count.
//!
//! Every source of events uses it: the stream through [`super::core::Core`], rows of the table through
//! `reading`. One at a time has the sink, so that no two sources publish at once (P2).

use std::collections::VecDeque;

use tokio::time::Instant;

use crate::config::{Config, OutboxConfig, SlotName};
use crate::error::{Error, Kind, Result};
use crate::event::{Event, Place, Shown};
use crate::failpoint;
use crate::ledger::{Ledger, LedgerError, Limits};
use crate::position::{Lsn, Position};
use crate::route::{OwnedRecord, Record, Router};
use crate::sink::{Delivery, EnqueueError, Sink, Ticket};

/// A record the sink had no room for, kept whole because its message is gone from the receive buffer.
#[derive(Debug)]
struct Pending {
    record: OwnedRecord,
    place: Place,
    committed_at_us: i64,
    row: Shown,
    kept: Option<(RowId, Option<u32>)>,
}

/// A row that is marked or deleted once its ticket is delivered, and the transaction that wrote it.
type Kept = (Ticket, RowId, Option<u32>);

/// A row by its outbox and its id as text: what is done to it once it was acked.
pub type RowId = (usize, Vec<u8>);

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
}

impl Setup {
    /// What is configured.
    pub fn of(config: &Config) -> Setup {
        let limits = Limits { events: config.kafka.max_in_flight_events, bytes: config.kafka.max_in_flight_bytes };
        Setup { slot: config.source.slot.clone(), outboxes: config.outboxes.clone(), limits }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Outlet<S> {
    slot: SlotName,
    /// One for each outbox.
    routers: Vec<Router>,
    /// Of each outbox: whether its rows are marked or deleted once they were acked.
    writes: Vec<bool>,
    ledger: Ledger,
    sink: S,
    pending: Option<Pending>,
    /// Rows to be marked or deleted once their ticket is delivered, in the order of their tickets.
    kept: VecDeque<Kept>,
    /// Those of them that are being marked or deleted now.
    settling: Vec<Kept>,
    /// The transaction that events are of, by the lower half of its id; none for rows that are read from the table.
    xid: Option<u32>,
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
            writes: setup.outboxes.iter().map(|outbox| outbox.upkeep.writes()).collect(),
            ledger: Ledger::new(start, setup.limits),
            sink,
            pending: None,
            kept: VecDeque::new(),
            settling: Vec::new(),
            xid: None,
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
        // It was not enqueued, so the server sends its event again.
        self.pending = None;
    }

    /// Whether another event may be taken in (P4, P5): rows that wait to be marked count, too.
    pub fn has_room(&self) -> bool {
        let waiting = self.kept.len() + self.settling.len();
        self.pending.is_none() && self.ledger.has_room() && waiting < self.ledger.limits().events
    }

    /// Routes `event` and hands it to the sink. Call only with room.
    ///
    /// # Errors
    /// It cannot be routed, or the sink refuses it for good (P3). Nothing was enqueued.
    pub fn publish(&mut self, event: &Event<'_>) -> Result<()> {
        self.counts.assembled += 1;
        failpoint::reached("assembled");
        let router = self.routers.get_mut(event.outbox).ok_or_else(no_such_outbox)?;
        let routed = router.route(event).map_err(|error| error.into_error(&self.slot))?;
        let is_kept = self.writes.get(event.outbox).copied().unwrap_or_default();
        let kept = is_kept.then(|| ((event.outbox, event.id().to_vec()), self.xid));
        routed.with_record(|record| match self.sink.enqueue(record, self.ledger.next()) {
            Ok(()) => {
                failpoint::reached("enqueued");
                self.counts.enqueued += 1;
                self.kept.extend(kept.map(|(row, xid)| (self.ledger.next(), row, xid)));
                self.ledger.enqueued(bytes_of(record), event.committed_at_us).map_err(contradiction)
            }
            Err(EnqueueError::Full) => {
                self.counts.queue_full += 1;
                let (record, row) = (OwnedRecord::of(record), Shown::of(event.id()));
                self.pending =
                    Some(Pending { record, place: event.place, committed_at_us: event.committed_at_us, row, kept });
                Ok(())
            }
            Err(EnqueueError::Refused(error)) => {
                Err(error.of_row(Shown::of(event.id())).of_event(event.place.commit_lsn, event.place.index))
            }
        })
    }

    /// Offers the record the sink had no room for once more. Nothing else is offered before it (P2).
    pub fn retry_pending(&mut self) -> Result<()> {
        let Some(mut pending) = self.pending.take() else { return Ok(()) };
        let offered = pending.record.with_record(|record| match self.sink.enqueue(record, self.ledger.next()) {
            Ok(()) => {
                self.counts.enqueued += 1;
                self.kept.extend(pending.kept.take().map(|(row, xid)| (self.ledger.next(), row, xid)));
                self.ledger.enqueued(bytes_of(record), pending.committed_at_us).map_err(contradiction)?;
                Ok(true)
            }
            Err(EnqueueError::Full) => Ok(false),
            Err(EnqueueError::Refused(error)) => {
                let row = pending.row.clone();
                Err(error.of_row(row).of_event(pending.place.commit_lsn, pending.place.index))
            }
        })?;
        self.pending = (!offered).then_some(pending);
        Ok(())
    }

    /// Whether a record waits for room in the sink.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Waits for deliveries. Safe to cancel.
    pub async fn next_deliveries(&mut self, into: &mut Vec<Delivery>) {
        self.sink.deliveries(into).await;
    }

    /// Waits for acks of what is in flight, until `until` or the producer fails.
    pub async fn drain(&mut self, until: Instant) {
        let mut deliveries = Vec::new();
        while !self.is_drained() {
            let waited = tokio::time::timeout_at(until, self.next_deliveries(&mut deliveries)).await;
            let taken = self.delivered(&mut deliveries).and_then(|()| self.retry_pending());
            if waited.is_err() || taken.is_err() {
                return;
            }
        }
    }

    /// Takes in what the broker said.
    ///
    /// # Errors
    /// The first failure, with the event it happened to. Every ack beside it was taken in; the producer is finished.
    pub fn delivered(&mut self, deliveries: &mut Vec<Delivery>) -> Result<()> {
        let mut failure = None;
        for delivery in deliveries.drain(..) {
            match delivery {
                Delivery::Acked(ticket) => {
                    failpoint::reached("acked");
                    let bytes = self.ledger.acked(ticket).map_err(contradiction)?;
                    self.counts.acked_bytes += bytes as u64;
                    self.counts.acked += 1;
                }
                Delivery::Failed(ticket, error) => {
                    let found = self.ledger.whereabouts(ticket);
                    failure.get_or_insert_with(|| match found {
                        Some(at) => error.of_event(at.commit_lsn, at.index),
                        None => error,
                    });
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Takes up to `max` rows to be marked or deleted, in the order of their acks, none before one that was not acked; and
    /// whether those are all there are so far; and the transactions that wrote them. Until [`Outlet::settled`] says otherwise they count as not done.
    pub fn settle(&mut self, max: usize) -> (Vec<RowId>, Vec<u32>, bool) {
        debug_assert!(self.settling.is_empty(), "one batch at a time");
        while self.settling.len() < max
            && self.has_delivered_row()
            && let Some(row) = self.kept.pop_front()
        {
            self.settling.push(row);
        }
        let all = !self.has_delivered_row();
        let mut xids: Vec<u32> = self.settling.iter().filter_map(|(.., xid)| *xid).collect();
        xids.dedup();
        (self.settling.iter().map(|(_, row, _)| row.clone()).collect(), xids, all)
    }

    /// What was taken is done, or has to be done again.
    pub fn settled(&mut self, done: bool) {
        for row in self.settling.drain(..).rev().filter(|_| !done) {
            self.kept.push_front(row);
        }
    }

    /// Whether rows wait to be marked or deleted, acked or not.
    pub fn has_unsettled(&self) -> bool {
        !self.kept.is_empty() || !self.settling.is_empty()
    }

    /// Whether a batch of them could begin now.
    pub fn has_settleable(&self) -> bool {
        self.settling.is_empty() && self.has_delivered_row()
    }

    fn has_delivered_row(&self) -> bool {
        self.kept.front().is_some_and(|(ticket, ..)| self.ledger.is_delivered(*ticket))
    }

    /// How many events of the open transaction, which is that at `commit_lsn`, are delivered, and marked where rows are.
    pub fn settled_index(&self, commit_lsn: Lsn) -> u64 {
        let delivered = self.ledger.delivered().delivered_of(commit_lsn);
        let waiting =
            self.settling.first().or(self.kept.front()).and_then(|(ticket, ..)| self.ledger.whereabouts(*ticket));
        waiting.map_or(delivered, |first| first.index.min(delivered))
    }

    /// Whether everything taken in is acked.
    pub fn is_drained(&self) -> bool {
        self.pending.is_none() && self.ledger.in_flight_events() == 0
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The ledger, to be told of transactions.
    pub fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// The slot, for errors.
    pub fn slot(&self) -> &SlotName {
        &self.slot
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Counts a message.
    pub fn decoded(&mut self) {
        self.counts.decoded += 1;
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
