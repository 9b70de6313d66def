//! What the relay decides, without I/O: messages, keepalives, deliveries and stores in; positions out.
//!
//! The loop in `pump` feeds it and carries out what it says. The seeded simulation in `tests/simulation.rs`
//! feeds it with a model of Postgres and of Kafka instead.

use std::collections::HashMap;
use std::time::Duration;

use crate::error::Result;
use crate::event::{Assembler, BaseTypes, Ignored, RowId, Step};
use crate::ledger::Ledger;
use crate::ledger::confirm::{Confirm, Due};
use crate::ledger::trail::{Published, Trail};
use crate::position::{Lsn, Position};
use crate::relay::begun::Begun;
use crate::relay::delivered_before::{DeliveredBefore, Tail};
pub use crate::relay::outlet::{Counts, Setup};
use crate::relay::outlet::{InFlight, Outlet, contradiction};
use crate::relay::poison::Poison;
use crate::relay::retrying::Tried;
use crate::relay::transaction::Transaction;
use crate::sink::{Delivery, Sink};
use crate::snapshot::Snapshot;
use crate::upkeep::Batch;
use crate::upkeep::parked::Waiting;

/// What became of one message from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It was taken in, and there may be room for more.
    Done,
    /// It was taken in, and described a table: the catalog should be looked at.
    Relation,
}

/// One producer's life: from the position it began at to the last ack it got.
#[derive(Debug)]
pub struct Core<S> {
    assembler: Assembler,
    outlet: Outlet<S>,
    confirm: Confirm,
    trail: Trail,
    begun: Begun,
    /// Tickets there were before the open transaction.
    before_open: u64,
    /// Up to where everything was delivered, and marked where rows are marked.
    settled: Position,
    /// What [`Core::settle`] gave out will have settled.
    settling: Option<Position>,
    /// Where events are committed together with the position behind them.
    transaction: Option<Transaction>,
}

impl<S: Sink> Core<S> {
    /// Begins behind `start`; `stored` is what the store holds at `now`, a time since any fixed instant, and `published`
    /// what is known of the tables.
    ///
    /// # Errors
    /// The route needs a column that the outbox does not list.
    pub fn new(
        setup: &Setup,
        start: Position,
        stored: Position,
        published: Option<Published>,
        sink: S,
        now: Duration,
    ) -> Result<Self> {
        Ok(Core {
            assembler: Assembler::new(&setup.outboxes, start),
            outlet: Outlet::new(setup, start, sink)?,
            confirm: Confirm::new(stored, now),
            trail: Trail::new(published),
            begun: Begun::default(),
            before_open: 0,
            settled: start,
            settling: None,
            transaction: setup.delivery.transactions.as_ref().map(Transaction::new),
        })
    }

    /// A new connection to the server begins: it sends again what was not confirmed, and what was taken in is dropped.
    pub fn reconnected(&mut self) {
        self.assembler.resume_at(self.outlet.ledger().received());
        self.outlet.reconnected();
        self.settle_abandoned();
        self.confirm.abandoned();
    }

    /// Events come from this server and timeline from here on.
    pub fn set_origin(&mut self, system_identifier: &str, timeline: u32) {
        self.outlet.set_origin(system_identifier, timeline);
    }

    /// The tables with these OIDs are these outboxes by now, and columns are of these types.
    pub fn set_catalog(&mut self, table_oids: HashMap<u32, usize>, base_types: BaseTypes) {
        self.assembler.set_catalog(table_oids, base_types);
    }

    /// Whether another message may be taken in (P4, P5).
    pub fn has_room(&self) -> bool {
        let enqueued = self.outlet.counts().enqueued;
        self.outlet.has_room() && self.transaction.as_ref().is_none_or(|transaction| transaction.takes(enqueued))
    }

    /// Everything that came was taken in, as far as there was room; `follows`, where more is known to come. Where events
    /// are committed together, this is when it is decided that they are enough.
    pub fn look(&mut self, now: Duration, follows: bool) {
        let (enqueued, inside) = (self.outlet.counts().enqueued, self.is_inside());
        if let Some(transaction) = &mut self.transaction {
            transaction.look(enqueued, (inside, follows), now);
        }
    }

    /// Whether events were enqueued that become visible with a position that is not stored yet.
    pub fn has_open_transaction(&self) -> bool {
        let enqueued = self.outlet.counts().enqueued;
        self.transaction.as_ref().is_some_and(|transaction| transaction.is_open(enqueued))
    }

    /// Whether a transaction of Postgres is under way, and an event of it was taken in.
    fn is_inside(&self) -> bool {
        self.outlet.ledger().received().partial.is_some()
    }

    /// Takes in one pgoutput message. Call only with room.
    ///
    /// # Errors
    /// The event cannot be decoded, routed or produced (P3), or the stream contradicts itself. Nothing of it was
    /// enqueued, and the core takes no further messages.
    pub fn data(&mut self, wal_start: Lsn, body: &[u8]) -> Result<Taken> {
        debug_assert!(self.has_room(), "P4: taken in without room");
        self.note_settled();
        self.outlet.decoded();
        let step = self.assembler.feed(body, wal_start);
        match step.map_err(|error| error.into_error(self.outlet.slot()))? {
            Step::Nothing => {}
            Step::Begin { commit_lsn, xid } => {
                self.outlet.ledger_mut().begin(commit_lsn).map_err(contradiction)?;
                self.trail.begin(xid);
                self.outlet.set_transaction(xid);
                self.outlet.sent_below(commit_lsn);
                self.begun.begin(commit_lsn);
                self.before_open = self.outlet.counts().assembled;
            }
            Step::Commit { commit_lsn, end_lsn } => {
                self.outlet.ledger_mut().commit(commit_lsn, end_lsn).map_err(contradiction)?;
                self.trail.commit(end_lsn, self.outlet.counts().assembled > self.before_open);
            }
            Step::Event(event) => {
                self.begun.event(&event);
                self.outlet.publish(&event)?;
            }
            Step::Relation { outbox, .. } => return Ok(if outbox { Taken::Relation } else { Taken::Done }),
        }
        Ok(Taken::Done)
    }

    /// The server has sent everything that commits below `wal_end`.
    pub fn keepalive(&mut self, wal_end: Lsn) {
        self.note_settled();
        self.outlet.ledger_mut().keepalive(wal_end);
        self.outlet.sent_below(wal_end);
    }

    /// See [`Outlet::retry_pending`].
    ///
    /// # Errors
    /// As there.
    pub fn retry_pending(&mut self) -> Result<()> {
        self.note_settled();
        self.outlet.retry_pending()
    }

    /// Whether a record waits for room in the sink.
    pub fn is_pending(&self) -> bool {
        self.outlet.is_pending()
    }

    /// Waits for deliveries. Safe to cancel.
    pub async fn next_deliveries(&mut self, into: &mut Vec<Delivery>) {
        self.outlet.next_deliveries(into).await;
    }

    /// See [`Outlet::delivered`].
    ///
    /// # Errors
    /// As there.
    pub fn delivered(&mut self, deliveries: &mut Vec<Delivery>) -> Result<()> {
        self.note_settled();
        self.outlet.delivered(deliveries)
    }

    /// Rows to be marked or deleted now, if there are any: they were acked, and so was all before them.
    pub fn settle(&mut self, max: usize) -> Option<Batch> {
        if !self.outlet.has_settleable() {
            return None;
        }
        let delivered = self.outlet.ledger().delivered();
        let (batch, all) = self.outlet.settle(max);
        self.settling = all.then_some(delivered);
        Some(batch)
    }

    /// What was given out is done, and durable.
    pub fn settled(&mut self) {
        self.outlet.settled(true);
        self.settled = self.settling.take().unwrap_or(self.settled);
        self.note_settled();
    }

    /// It is not known to be done: it is given out again.
    pub fn settle_abandoned(&mut self) {
        self.outlet.settled(false);
        self.settling = None;
    }

    /// Whether no row waits to be marked or deleted.
    pub fn is_marked(&self) -> bool {
        !self.outlet.has_unsettled()
    }

    /// Whether a pair should be taken: see [`Trail`].
    pub fn wants_pair(&self) -> bool {
        self.trail.wants_pair()
    }

    /// A pair was taken.
    pub fn took_pair(&mut self, snapshot: Snapshot, lsn: Lsn) {
        self.trail.took(snapshot, lsn);
    }

    /// What is known of the tables at `position`, which is delivered.
    pub fn published(&mut self, position: &Position) -> Option<Published> {
        self.trail.published(position).cloned()
    }

    /// Events of the transaction the delivered position is inside of, as far as they are known to be delivered.
    pub fn delivered_inside(&self) -> Vec<RowId> {
        self.begun.delivered(&self.outlet.ledger().delivered())
    }

    /// The same, as far as they are known to be stored.
    pub fn stored_inside(&self) -> Vec<RowId> {
        self.begun.delivered(&self.confirm.stored_position())
    }

    /// What is known of the transaction under way, for the next core, which goes on in the middle of it.
    pub(super) fn take_begun(&mut self) -> Begun {
        std::mem::take(&mut self.begun)
    }

    /// See [`Core::take_begun`].
    pub(super) fn resume_begun(&mut self, begun: Begun) {
        self.begun = begun;
    }

    /// The event that was taken in last, where it is known.
    pub fn newest(&self) -> Option<RowId> {
        self.begun.newest()
    }

    /// Up to where everything is delivered, and marked where rows are marked.
    pub fn settled_position(&self) -> Position {
        if self.outlet.has_unsettled() { self.settled } else { self.outlet.ledger().delivered() }
    }

    /// What should be stored now; see [`Confirm::due`].
    ///
    /// Where events are committed together, that is what stands behind the last event of the transaction, and nothing
    /// before every event in it is acked.
    pub fn due(&self, now: Duration, hurry: bool) -> Due {
        let enqueued = self.outlet.counts().enqueued;
        if let Some(transaction) = self.transaction.as_ref().filter(|transaction| transaction.is_open(enqueued)) {
            let due = transaction.is_due(enqueued, hurry) && self.is_drained() && !self.confirm.is_busy();
            return if due { Due::Progress(self.settled_position()) } else { Due::Nothing };
        }
        self.confirm.due(self.settled_position(), self.events_delivered(), now, hurry)
    }

    /// Events that moved the position, by whoever they were published.
    fn events_delivered(&self) -> u64 {
        self.outlet.counts().acked + self.outlet.counts().delivered_before
    }

    /// Before another row waits to be marked: all up to here does not.
    fn note_settled(&mut self) {
        if !self.outlet.has_unsettled() {
            self.settled = self.outlet.ledger().delivered();
        }
    }

    /// When to ask [`Core::due`] again, if time alone will change its answer.
    pub fn wake_at(&self) -> Option<Duration> {
        if self.has_open_transaction() {
            return self.transaction.as_ref().and_then(|transaction| transaction.wake_at(self.is_inside()));
        }
        self.confirm.wake_at(self.settled_position(), self.events_delivered())
    }

    /// A store of what was due begins.
    pub fn store_begun(&mut self, now: Duration) {
        self.confirm.begun(self.events_delivered(), now);
    }

    /// The position itself is on its way, with every event that was enqueued: none may be enqueued behind it.
    pub fn commit_begun(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.commit_begun();
        }
    }

    /// The store has it. Gives the events that were committed with it, where events are.
    pub fn stored(&mut self, position: Position) -> Option<u64> {
        self.confirm.stored(position);
        let enqueued = self.outlet.counts().enqueued;
        let events = self.transaction.as_mut()?.committed(enqueued);
        self.outlet.committed();
        Some(events)
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
        let stored = self.confirm.stored_position();
        let unsettled = self.outlet.has_unsettled() || self.confirm.is_busy();
        self.is_drained() && !unsettled && self.outlet.ledger().delivered() == stored
    }

    /// Whether everything taken in is acked, and what of it is marked is stored.
    pub fn is_stored_as_far_as_marked(&self) -> bool {
        self.is_drained() && !self.confirm.is_busy() && self.settled_position() == self.confirm.stored_position()
    }

    /// Whether everything taken in is acked.
    pub fn is_drained(&self) -> bool {
        self.outlet.is_drained()
    }

    /// The ledger, to look at.
    pub fn ledger(&self) -> &Ledger<Option<Box<InFlight>>> {
        self.outlet.ledger()
    }

    /// Commit times of transactions delivered since the last call, microseconds since the Unix epoch.
    pub fn take_finished(&mut self) -> std::vec::Drain<'_, i64> {
        self.outlet.ledger_mut().take_finished()
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        self.outlet.counts()
    }

    /// Messages seen and passed over, by operation.
    pub fn ignored(&self) -> Ignored {
        self.assembler.ignored()
    }

    /// See [`Outlet::set_waiting`].
    pub fn set_waiting(&mut self, waiting: Vec<Waiting>) {
        self.outlet.set_waiting(waiting);
    }

    /// See [`Outlet::tried`].
    pub(super) fn tried(&mut self, tried: &Tried) {
        self.outlet.tried(tried);
    }

    /// See [`Outlet::census`].
    pub fn census(&self) -> u64 {
        self.outlet.census()
    }

    /// See [`Outlet::waiting`].
    pub fn waiting(&self) -> usize {
        self.outlet.waiting()
    }

    /// See [`Outlet::is_waiting`].
    pub fn is_waiting(&self, row: &RowId) -> bool {
        self.outlet.is_waiting(row)
    }

    /// See [`Outlet::expect_again`].
    pub fn expect_again(&mut self, before: DeliveredBefore) {
        self.outlet.expect_again(before);
    }

    /// See [`Outlet::unread`].
    pub fn unread(&self) -> Option<Tail> {
        self.outlet.unread()
    }

    /// See [`Outlet::tail_read`].
    pub fn tail_read(&mut self, topic: &str, tail: Option<Tail>, failed: bool) {
        self.outlet.tail_read(topic, tail, failed);
    }

    /// See [`Outlet::forget_unread`].
    pub fn forget_unread(&mut self) {
        self.outlet.forget_unread();
    }

    /// See [`Outlet::remember`].
    pub fn remember(&mut self, poison: Poison) {
        self.outlet.remember(poison);
    }

    /// See [`Outlet::poison`].
    pub fn poison(&self) -> &Poison {
        self.outlet.poison()
    }

    /// See [`Outlet::take_poison`].
    pub fn take_poison(&mut self) -> Poison {
        self.outlet.take_poison()
    }

    /// The sink, to be closed; whatever was not acked is not delivered.
    pub fn into_sink(self) -> S {
        self.outlet.into_sink()
    }

    /// The sink, to look at.
    pub fn sink(&self) -> &S {
        self.outlet.sink()
    }
}
