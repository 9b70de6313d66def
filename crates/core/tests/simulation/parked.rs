//! A model of the rows of an outbox and of `walrelay.parked`, of the operator who asks for retries
//! and drops, and of the session that retries.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

use walrelay_core::error::{Error, Kind};
use walrelay_core::event::RowId;
use walrelay_core::ledger::Ticket;
use walrelay_core::parked::{AggregateHead, BEHIND, Batch, ParkedEvent, ParkedRef, ParkedRow};
use walrelay_core::position::Position;
use walrelay_core::publisher::parked_index::{RetryMemory, RetryReport};
use walrelay_core::publisher::retry_batch::{Refusal, Retries, RetryBatch};
use walrelay_core::publisher::retry_walk::{RetryWalk, WalkStep, is_stored};
use walrelay_core::route::{OwnedRecord, Record};
use walrelay_core::sink::{Delivery, EnqueueError, Sink};

use super::broker::{Broker, Logged, QUEUE, logged as sent, unfit};
use super::plan::{Path, Reached};

/// Of a read of an aggregate's events.
const BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Retry,
    Drop,
}

#[derive(Debug, Clone)]
struct Parked {
    event: ParkedEvent,
    class: String,
    attempts: u32,
    asked: Option<Asked>,
    /// Whether its time has come, without a request.
    is_due: bool,
}

/// What Postgres has.
#[derive(Debug, Default, Clone)]
pub(super) struct Tables {
    rows: BTreeMap<i64, Parked>,
    next_id: i64,
    marked: HashSet<RowId>,
    /// Events that were parked at some time.
    pub(super) ever: BTreeSet<Logged>,
    pub(super) dropped: BTreeSet<Logged>,
    /// Rows that were set to pending again, and were not marked since.
    pub(super) pending_again: HashSet<RowId>,
    /// How often rows were set to pending again.
    pub(super) requeued: BTreeMap<Logged, usize>,
    /// Whether a commit waits for the standby.
    pub(super) waits: bool,
}

/// Aggregate and version of an event.
fn logged(event: &ParkedEvent) -> Logged {
    let number = |bytes: Option<&[u8]>| {
        let text = std::str::from_utf8(bytes.unwrap()).unwrap();
        text.parse::<u64>().unwrap()
    };
    (
        u8::try_from(number(event.key.as_deref())).unwrap(),
        number(event.text("payload")),
    )
}

impl Tables {
    pub(super) fn has_parked(&self) -> bool {
        !self.rows.is_empty()
    }

    pub(super) fn parked(&self) -> BTreeSet<Logged> {
        self.rows.values().map(|row| logged(&row.event)).collect()
    }

    /// What a session loads when it begins.
    pub(super) fn index(&self) -> Vec<ParkedRef> {
        self.rows
            .values()
            .map(|row| ParkedRef::of(&row.event))
            .collect()
    }

    pub(super) fn is_marked(&self, row: &RowId) -> bool {
        self.marked.contains(row)
    }

    /// Somebody sets the row of an event to pending.
    pub(super) fn set_to_pending(&mut self, event: Logged, row: &RowId) {
        self.marked.remove(row);
        self.pending_again.insert(row.clone());
        *self.requeued.entry(event).or_default() += 1;
        self.waits = true;
    }

    /// A standby is promoted that has these.
    pub(super) fn promote(&mut self, there: &Tables) {
        let ever = std::mem::take(&mut self.ever);
        let requeued = std::mem::take(&mut self.requeued);
        *self = Tables {
            ever,
            requeued,
            ..there.clone()
        };
    }

    /// The transaction of a batch commits.
    pub(super) fn commit(&mut self, batch: &Batch) {
        self.waits |= batch.on_standbys();
        self.marked.extend(batch.acked.iter().cloned());
        batch
            .acked
            .iter()
            .for_each(|row| _ = self.pending_again.remove(row));
        for event in &batch.parked {
            let is_same =
                |row: &Parked| row.event.row == event.row && row.event.place == event.place;
            if self.rows.values().any(is_same) {
                continue;
            }
            let why = event.why.as_ref();
            let parked = Parked {
                event: (**event).clone(),
                class: why.map_or(BEHIND, |why| why.class).to_owned(),
                attempts: why.map_or(0, |why| why.attempts),
                asked: None,
                is_due: why.is_none() || event.retry_in_ms.is_some(),
            };
            self.ever.insert(logged(event));
            self.rows.insert(self.next_id, parked);
            self.next_id += 1;
        }
        for id in &batch.unparked {
            self.rows.remove(id);
        }
        for failed in &batch.failed_again {
            if let Some(row) = self.rows.get_mut(&failed.id) {
                row.attempts = failed.failure.attempts;
                row.class = failed.failure.class.to_owned();
                row.asked = None;
                row.is_due = failed.retry_in_ms.is_some();
            }
        }
    }

    /// An operator asks for something.
    pub(super) fn operate(&mut self, random: &mut fastrand::Rng) {
        let asked = match random.bool() {
            true => Asked::Drop,
            false => Asked::Retry,
        };
        let ids: Vec<i64> = self.rows.keys().copied().collect();
        let Some(id) = random.choice(ids) else {
            return;
        };
        let id = match asked {
            Asked::Drop => id,
            // Of the aggregate, whichever was named.
            Asked::Retry => self.first_of(id),
        };
        self.rows.get_mut(&id).unwrap().asked = Some(asked);
        self.waits = true;
    }

    /// A retry is asked for of what nobody wants to be dropped.
    pub(super) fn retry_all(&mut self) {
        for row in self.rows.values_mut() {
            row.asked.get_or_insert(Asked::Retry);
        }
    }

    fn first_of(&self, id: i64) -> i64 {
        let key = &self.rows[&id].event.key;
        let mut same = self.rows.iter().filter(|(_, row)| row.event.key == *key);
        *same.next().unwrap().0
    }

    fn due(&self) -> Vec<AggregateHead> {
        let is_due = |(id, row): &(&i64, &Parked)| {
            let is_wanted = row.asked == Some(Asked::Retry) || row.asked.is_none() && row.is_due;
            is_wanted && self.first_of(**id) == **id
        };
        let head = |(id, row): (&i64, &Parked)| AggregateHead {
            id: *id,
            outbox: row.event.row.outbox,
            key: None,
            is_asked: row.asked.is_some(),
        };
        self.rows.iter().filter(is_due).map(head).collect()
    }

    /// Whoever mends a row without a topic mends what was kept of it, too.
    fn read(&self, walk: &RetryWalk, broker: &Broker) -> Vec<ParkedRow> {
        let limit = walk.limit(BYTES);
        let from = self.rows.range(walk.head.id..);
        let is_of = |id: &i64, row: &Parked| match &walk.head.key {
            Some(key) => row.event.key.as_ref() == Some(key),
            None => *id == walk.head.id,
        };
        let of = from.filter(|(id, row)| is_of(id, row));
        let row = |(id, row): (&i64, &Parked)| ParkedRow {
            id: *id,
            event: broker.mended(logged(&row.event), row.event.clone()),
            class: row.class.clone(),
            error: None,
            attempts: row.attempts,
            is_dropped: row.asked == Some(Asked::Drop),
            version: String::new(),
        };
        of.map(row)
            .take(usize::try_from(limit.events).unwrap())
            .collect()
    }
}

/// A pass of retries: it sends, and writes what became of that.
#[derive(Debug)]
pub(super) struct Pass {
    /// As it was known when the pass began.
    stored: Position,
    retries: Retries,
    client: RetryClient,
    due: Vec<AggregateHead>,
    walk: Option<RetryWalk>,
    /// The events that are sent, and their batch.
    batch: Option<(Vec<ParkedRow>, RetryBatch)>,
}

/// What a step of a pass gives to the relay.
#[derive(Debug, Default)]
pub(super) struct PassStep {
    pub(super) report: RetryReport,
    pub(super) is_over: bool,
}

impl PassStep {
    fn over() -> PassStep {
        PassStep {
            is_over: true,
            ..PassStep::default()
        }
    }
}

/// What a pass came to with a batch.
struct Ended {
    held: Vec<ParkedRow>,
    /// How many of them the bus has, from the first on.
    done: usize,
    refusal: Result<Option<Refusal>, Error>,
}

impl Pass {
    /// Begins with what is to be dropped.
    pub(super) fn begin(
        tables: &mut Tables,
        stored: Position,
        retries: Retries,
        reached: &mut Reached,
    ) -> (Pass, RetryReport) {
        let asked = |row: &&Parked| row.asked == Some(Asked::Drop);
        let mut report = RetryReport::default();
        let mut batch = Batch::default();
        for (id, row) in tables.rows.iter().filter(|(_, row)| asked(row)) {
            if !is_stored(row.event.place, &stored) {
                reached.count(Path::AskedEarly, 1);
                continue;
            }
            batch.unparked.push(*id);
            batch.acked.push(row.event.row.clone());
            tables.dropped.insert(logged(&row.event));
            report.released.push(ParkedRef::of(&row.event));
        }
        reached.count(Path::Dropped, batch.unparked.len() as u64);
        tables.commit(&batch);
        let pass = Pass {
            stored,
            retries,
            client: RetryClient::default(),
            due: tables.due(),
            walk: None,
            batch: None,
        };
        (pass, report)
    }

    /// One thing happens to it.
    pub(super) fn step(
        &mut self,
        tables: &mut Tables,
        broker: &mut Broker,
        memory: &mut RetryMemory,
        reached: &mut Reached,
        may_fail: bool,
        random: &mut fastrand::Rng,
    ) -> PassStep {
        let Some(walk) = &mut self.walk else {
            self.walk = self.due.pop().map(RetryWalk::new);
            return PassStep {
                is_over: self.walk.is_none(),
                ..PassStep::default()
            };
        };
        let Some((held, mut batch)) = self.batch.take() else {
            let held = walk.read(tables.read(walk, broker), &self.stored, memory);
            let Some(first) = held.first() else {
                self.walk = None;
                return PassStep::default();
            };
            if memory.is_acked(first.id, first.event.place) {
                reached.count(Path::Remembered, 1);
                let ended = Ended {
                    done: held.len(),
                    held,
                    refusal: Ok(None),
                };
                return self.settle(ended, tables, memory, reached, may_fail, random);
            }
            let batch = self.retries.batch(&held).expect("a batch");
            self.batch = Some((held, batch));
            return PassStep::default();
        };
        self.client.begin(broker);
        batch.enqueue(&mut self.client);
        if !batch.is_over() {
            self.client.step(broker, random);
            let told = std::mem::take(&mut self.client.told);
            batch.delivered(told.into_iter(), &mut self.client);
        }
        let is_gone = may_fail && random.u8(0..40) == 0;
        if !is_gone && !batch.is_over() {
            self.batch = Some((held, batch));
            return PassStep::default();
        }
        let gone = || Error::new(Kind::BusUnreachable, "the model loses the producer");
        let result = self.retries.end(batch, is_gone.then(gone));
        memory.sent(&held, &result.acked);
        if !result.keeps_producer {
            self.client.gone(broker, random);
        }
        let ended = Ended {
            done: result.done(),
            held,
            refusal: result.ended,
        };
        self.settle(ended, tables, memory, reached, may_fail, random)
    }

    /// Writes down what became of the events that were sent.
    fn settle(
        &mut self,
        Ended {
            held,
            done,
            refusal,
        }: Ended,
        tables: &mut Tables,
        memory: &mut RetryMemory,
        reached: &mut Reached,
        may_fail: bool,
        random: &mut fastrand::Rng,
    ) -> PassStep {
        let mut walk = self.walk.take().expect("a walk");
        let delivered = &held[..done];
        let batch = Batch::delivered(delivered);
        match random.u8(0..8) {
            0 | 1 if !may_fail => tables.commit(&batch),
            // A lock is in the way: the walk ends.
            0 => return PassStep::default(),
            // The connection is lost, and nobody knows about the commit: the pass ends.
            1 => {
                if random.bool() {
                    tables.commit(&batch);
                }
                return PassStep::over();
            }
            _ => tables.commit(&batch),
        }
        delivered.iter().for_each(|held| memory.written(held.id));
        reached.count(Path::Retried, delivered.len() as u64);
        let released = delivered.iter().map(|held| ParkedRef::of(&held.event));
        let step = PassStep {
            report: RetryReport {
                released: released.collect(),
                ..RetryReport::default()
            },
            is_over: refusal.is_err(),
        };
        let Ok(refusal) = refusal else {
            reached.count(Path::RetryAway, 1);
            return step;
        };
        let is_inside = done > 0 && refusal.is_some();
        reached.count(Path::RetryFailedInside, u64::from(is_inside));
        let is_certain = refusal.as_ref().map(|refusal| refusal.is_certain);
        match (walk.sent(&held, done, is_certain), refusal) {
            (WalkStep::Read, _) => self.walk = Some(walk),
            (WalkStep::Failed, Some(refusal)) => {
                reached.count(Path::RetryFailed, 1);
                let failed = self.retries.failed(&held[done], &refusal.error);
                let batch = Batch {
                    failed_again: vec![failed],
                    ..Batch::default()
                };
                tables.commit(&batch);
            }
            (WalkStep::Failed | WalkStep::End, _) => {}
        }
        step
    }

    /// Its session or its process ends: what is on its way may still land.
    pub(super) fn gone(mut self, broker: &mut Broker, random: &mut fastrand::Rng) {
        self.client.gone(broker, random);
    }
}

/// The producer of a pass, and what of its records the bus has not.
#[derive(Debug, Default)]
struct RetryClient {
    queue: VecDeque<(Ticket, Arc<OwnedRecord>)>,
    apart: Option<Ticket>,
    is_finished: bool,
    /// Events that the client itself refuses.
    unfit: BTreeSet<Logged>,
    told: Vec<Delivery>,
}

impl RetryClient {
    fn begin(&mut self, broker: &Broker) {
        self.unfit = broker.refused_by_client();
    }

    /// The bus takes the oldest record, or refuses it.
    fn step(&mut self, broker: &mut Broker, random: &mut fastrand::Rng) {
        let Some((ticket, record)) = self.queue.front() else {
            return;
        };
        let ticket = *ticket;
        let Some(error) = broker.refusal_of_retry(record) else {
            broker.took(Arc::clone(record));
            self.queue.pop_front();
            self.told.push(Delivery::Acked(ticket));
            return;
        };
        let goes_on = self.apart == Some(ticket) && (broker.has_lanes() || random.bool());
        if goes_on && error.topic().is_none() {
            self.told.push(Delivery::Refused(ticket, error));
            return;
        }
        self.is_finished = true;
        let failed = self.queue.drain(..);
        let failed = failed.map(|(ticket, _)| Delivery::Failed(ticket, error.clone()));
        self.told.extend(failed);
    }

    /// What is on its way may still land, in order. Another producer follows.
    fn gone(&mut self, broker: &mut Broker, random: &mut fastrand::Rng) {
        let landed = random.usize(0..=self.queue.len());
        for (_, record) in self.queue.drain(..).take(landed) {
            if broker.refusal_of_retry(&record).is_some() {
                break;
            }
            broker.took(record);
        }
        *self = RetryClient::default();
    }
}

impl Sink for RetryClient {
    fn enqueue(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        if self.is_finished {
            return Err(EnqueueError::Finished);
        }
        if self.unfit.contains(&sent(record)) {
            return Err(EnqueueError::Refused(unfit()));
        }
        if self.queue.len() >= QUEUE {
            return Err(EnqueueError::Full);
        }
        let record = Arc::new(OwnedRecord::of(record));
        self.queue.push_back((ticket, record));
        Ok(())
    }

    fn enqueue_apart(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        self.enqueue(record, ticket)?;
        self.apart = Some(ticket);
        Ok(())
    }

    fn withdraw(&mut self, refused: Ticket) -> Vec<(Ticket, Arc<OwnedRecord>)> {
        let at = self.queue.iter().position(|(ticket, _)| *ticket == refused);
        let behind = self.queue.split_off(at.expect("a refused record"));
        behind.into()
    }

    async fn deliveries(&mut self, into: &mut Vec<Delivery>) {
        into.append(&mut self.told);
    }
}
