//! What the relay decides, without I/O: messages, keepalives, deliveries and stores in; positions out.
//!
//! The loop in `pump` feeds it and carries out what it says. The seeded simulation in `tests/simulation.rs`
//! feeds it with a model of Postgres and of Kafka instead.

use std::collections::HashMap;
use std::time::Duration;

use crate::config::{OutboxConfig, SlotName};
use crate::error::{Error, Kind, Result};
use crate::event::{Assembler, BaseTypes, Event, Ignored, Place, Shown, Step};
use crate::failpoint;
use crate::ledger::confirm::{Confirm, Due};
use crate::ledger::{Ledger, LedgerError, Limits};
use crate::position::{Lsn, Position};
use crate::route::{OwnedRecord, Record, Router};
use crate::sink::{Delivery, EnqueueError, Sink};

/// What became of one message from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It was taken in, and there may be room for more.
    Done,
    /// It was taken in, and described a table: the catalog should be looked at.
    Relation,
}

/// A record the sink had no room for, kept whole because its message is gone from the receive buffer.
#[derive(Debug)]
struct Pending {
    record: OwnedRecord,
    place: Place,
    row: Shown,
}

/// Counts since the core began, for the metrics.
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

/// One producer's life: from the position it began at to the last ack it got.
#[derive(Debug)]
pub struct Core<S> {
    slot: SlotName,
    assembler: Assembler,
    /// One for each outbox.
    routers: Vec<Router>,
    ledger: Ledger,
    confirm: Confirm,
    sink: S,
    pending: Option<Pending>,
    counts: Counts,
}

impl<S: Sink> Core<S> {
    /// Begins behind `start`; `stored` is what the store holds at `now`, a time since any fixed instant.
    ///
    /// # Errors
    /// The route needs a column that the outbox does not list.
    pub fn new(setup: &Setup, start: Position, stored: Position, sink: S, now: Duration) -> Result<Self> {
        let routers = setup.outboxes.iter().map(Router::new).collect::<Result<_, _>>();
        let routers = routers.map_err(|error| Error::new(Kind::Bug, error))?;
        Ok(Core {
            slot: setup.slot.clone(),
            assembler: Assembler::new(&setup.outboxes, start),
            routers,
            ledger: Ledger::new(start, setup.limits),
            confirm: Confirm::new(stored, now),
            sink,
            pending: None,
            counts: Counts::default(),
        })
    }

    /// A new connection to the server begins: it sends again what was not confirmed, and what was taken in is dropped.
    pub fn reconnected(&mut self) {
        self.assembler.resume_at(self.ledger.received());
        // It was not enqueued, so the server sends its event again.
        self.pending = None;
        self.confirm.abandoned();
    }

    /// Events come from this server and timeline from here on.
    pub fn set_origin(&mut self, system_identifier: &str, timeline: u32) {
        self.routers.iter_mut().for_each(|router| router.set_origin(system_identifier, timeline));
    }

    /// The tables with these OIDs are these outboxes by now, and columns are of these types.
    pub fn set_catalog(&mut self, table_oids: HashMap<u32, usize>, base_types: BaseTypes) {
        self.assembler.set_catalog(table_oids, base_types);
    }

    /// Whether another message may be taken in (P4, P5).
    pub fn has_room(&self) -> bool {
        self.pending.is_none() && self.ledger.has_room()
    }

    /// Takes in one pgoutput message. Call only with room.
    ///
    /// # Errors
    /// The event cannot be decoded, routed or produced (P3), or the stream contradicts itself. Nothing of it was
    /// enqueued, and the core takes no further messages.
    pub fn data(&mut self, wal_start: Lsn, body: &[u8]) -> Result<Taken> {
        debug_assert!(self.has_room(), "P4: taken in without room");
        self.counts.decoded += 1;
        match self.assembler.feed(body, wal_start).map_err(|error| error.into_error(&self.slot))? {
            Step::Nothing => {}
            Step::Begin { commit_lsn } => self.ledger.begin(commit_lsn).map_err(contradiction)?,
            Step::Commit { commit_lsn, end_lsn } => {
                self.ledger.commit(commit_lsn, end_lsn).map_err(contradiction)?;
            }
            Step::Event(event) => {
                self.counts.assembled += 1;
                failpoint::reached("assembled");
                let router = self.routers.get_mut(event.outbox).ok_or_else(no_such_outbox)?;
                let routed = router.route(&event).map_err(|error| error.into_error(&self.slot))?;
                routed.with_record(|record| {
                    if offer(&mut self.sink, &mut self.ledger, record, &event)? {
                        self.counts.enqueued += 1;
                    } else {
                        self.counts.queue_full += 1;
                        let (record, row) = (OwnedRecord::of(record), Shown::of(event.id()));
                        self.pending = Some(Pending { record, place: event.place, row });
                    }
                    Ok::<(), Error>(())
                })?;
            }
            Step::Relation { outbox, .. } => return Ok(if outbox { Taken::Relation } else { Taken::Done }),
        }
        Ok(Taken::Done)
    }

    /// The server has sent everything that commits below `wal_end`.
    pub fn keepalive(&mut self, wal_end: Lsn) {
        self.ledger.keepalive(wal_end);
    }

    /// Offers the record the sink had no room for once more. Nothing else is offered before it (P2).
    pub fn retry_pending(&mut self) -> Result<()> {
        let Some(pending) = self.pending.take() else { return Ok(()) };
        let offered = pending.record.with_record(|record| match self.sink.enqueue(record, self.ledger.next()) {
            Ok(()) => {
                self.counts.enqueued += 1;
                self.ledger.enqueued(bytes_of(record), pending.place.committed_at_us).map_err(contradiction)?;
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

    /// What should be stored now; see [`Confirm::due`].
    pub fn due(&self, now: Duration, hurry: bool) -> Due {
        self.confirm.due(self.ledger.delivered(), self.counts.acked, now, hurry)
    }

    /// When to ask [`Core::due`] again, if time alone will change its answer.
    pub fn wake_at(&self) -> Option<Duration> {
        self.confirm.wake_at(self.ledger.delivered(), self.counts.acked)
    }

    /// A store of what was due begins.
    pub fn store_begun(&mut self, now: Duration) {
        self.confirm.begun(self.counts.acked, now);
    }

    /// The store has it.
    pub fn stored(&mut self, position: Position) {
        self.confirm.stored(position);
    }

    /// The store that was begun will not happen.
    pub fn store_abandoned(&mut self) {
        self.confirm.abandoned();
    }

    /// What may be confirmed to Postgres.
    pub fn confirmable(&self) -> Lsn {
        self.confirm.confirmable()
    }

    /// What the store is known to hold.
    pub fn stored_position(&self) -> Position {
        self.confirm.stored_position()
    }

    /// Whether everything taken in is acked, stored, and so confirmable.
    pub fn is_settled(&self) -> bool {
        self.is_drained() && !self.confirm.is_busy() && self.ledger.delivered() == self.confirm.stored_position()
    }

    /// Whether everything taken in is acked.
    pub fn is_drained(&self) -> bool {
        self.pending.is_none() && self.ledger.in_flight_events() == 0
    }

    /// The ledger, to look at.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Commit times of transactions delivered since the last call, microseconds since the Unix epoch.
    pub fn take_finished(&mut self) -> std::vec::Drain<'_, i64> {
        self.ledger.take_finished()
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Messages seen and passed over, by operation.
    pub fn ignored(&self) -> Ignored {
        self.assembler.ignored()
    }

    /// The sink, to be closed; whatever was not acked is not delivered.
    pub fn into_sink(self) -> S {
        self.sink
    }

    /// The sink, to look at.
    pub fn sink(&self) -> &S {
        &self.sink
    }
}

/// Hands `record` to the sink; false where the sink is full.
fn offer<S: Sink>(sink: &mut S, ledger: &mut Ledger, record: &Record<'_>, event: &Event<'_>) -> Result<bool> {
    match sink.enqueue(record, ledger.next()) {
        Ok(()) => {
            failpoint::reached("enqueued");
            ledger.enqueued(bytes_of(record), event.place.committed_at_us).map_err(contradiction)?;
            Ok(true)
        }
        Err(EnqueueError::Full) => Ok(false),
        Err(EnqueueError::Refused(error)) => {
            Err(error.of_row(Shown::of(event.id())).of_event(event.place.commit_lsn, event.place.index))
        }
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

/// The stream contradicts itself or us: nothing it says may be confirmed any more.
fn contradiction(error: LedgerError) -> Error {
    Error::new(Kind::Bug, format_args!("the stream of changes contradicts itself: {error}"))
        .remedy("nothing was confirmed past this point; start again, and report it with the log if it comes back")
}
