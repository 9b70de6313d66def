//! A model of the rows of an outbox and of `walrelay.parked`, of the operator who asks for retries
//! and drops, and of the session that retries.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use walrelay_core::event::RowId;
use walrelay_core::parked::{AggregateHead, BEHIND, Batch, ParkedEvent, ParkedRef, ParkedRow};
use walrelay_core::position::Position;
use walrelay_core::publisher::parked_index::{RetryMemory, RetryReport};
use walrelay_core::publisher::retry_walk::{RetryWalk, WalkStep, is_stored};

use super::broker::Logged;
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

    fn read(&self, walk: &RetryWalk) -> Vec<ParkedRow> {
        let limit = walk.limit(BYTES);
        let from = self.rows.range(walk.head.id..);
        let is_of = |id: &i64, row: &Parked| match &walk.head.key {
            Some(key) => row.event.key.as_ref() == Some(key),
            None => *id == walk.head.id,
        };
        let of = from.filter(|(id, row)| is_of(id, row));
        let row = |(id, row): (&i64, &Parked)| ParkedRow {
            id: *id,
            event: row.event.clone(),
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
    /// That of the server then.
    pub(super) timeline: u32,
    due: Vec<AggregateHead>,
    walk: Option<RetryWalk>,
    /// What is on its way, and how much of it the bus has.
    sent: Option<Sent>,
}

#[derive(Debug)]
struct Sent {
    held: Vec<ParkedRow>,
    acked: usize,
    was_acked: bool,
}

/// What a step of a pass gives to the relay.
#[derive(Debug, Default)]
pub(super) struct PassStep {
    pub(super) report: RetryReport,
    /// Events that are in the log from now on, in this order.
    pub(super) appended: Vec<Logged>,
    pub(super) is_over: bool,
}

impl Pass {
    /// Begins with what is to be dropped.
    pub(super) fn begin(
        tables: &mut Tables,
        stored: Position,
        timeline: u32,
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
            timeline,
            due: tables.due(),
            walk: None,
            sent: None,
        };
        (pass, report)
    }

    /// One thing happens to it.
    pub(super) fn step(
        &mut self,
        tables: &mut Tables,
        refused: &BTreeSet<Logged>,
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
        let Some(sent) = &mut self.sent else {
            let held = walk.read(tables.read(walk), &self.stored, memory);
            let Some(first) = held.first() else {
                self.walk = None;
                return PassStep::default();
            };
            let was_acked = memory.is_acked(first.id, first.event.place);
            reached.count(Path::Remembered, u64::from(was_acked));
            let acked = if was_acked { held.len() } else { 0 };
            self.sent = Some(Sent {
                held,
                acked,
                was_acked,
            });
            return PassStep::default();
        };
        let is_refused = |held: &ParkedRow| refused.contains(&logged(&held.event));
        if let Some(next) = sent.held.get(sent.acked).filter(|next| !is_refused(next)) {
            memory.acked(next.id, next.event.place);
            sent.acked += 1;
            return PassStep {
                appended: vec![logged(&next.event)],
                ..PassStep::default()
            };
        }
        self.settle(tables, memory, reached, may_fail, random)
    }

    /// Writes down what became of the events that were sent.
    fn settle(
        &mut self,
        tables: &mut Tables,
        memory: &mut RetryMemory,
        reached: &mut Reached,
        may_fail: bool,
        random: &mut fastrand::Rng,
    ) -> PassStep {
        let (Some(Sent { held, acked, .. }), Some(mut walk)) = (self.sent.take(), self.walk.take())
        else {
            return PassStep::default();
        };
        let done = &held[..acked];
        let batch = Batch::delivered(done);
        match random.u8(0..8) {
            0 | 1 if !may_fail => tables.commit(&batch),
            // A lock is in the way: the walk ends.
            0 => return PassStep::default(),
            // The connection is lost, and nobody knows about the commit: the pass ends.
            1 => {
                if random.bool() {
                    tables.commit(&batch);
                }
                return PassStep {
                    is_over: true,
                    ..PassStep::default()
                };
            }
            _ => tables.commit(&batch),
        }
        done.iter().for_each(|held| memory.written(held.id));
        reached.count(Path::Retried, done.len() as u64);
        // A batch may be refused as a whole.
        let is_certain = held.len() == 1 || random.bool();
        let refused = (acked < held.len()).then_some(is_certain);
        match walk.sent(&held, acked, refused) {
            WalkStep::Read => self.walk = Some(walk),
            WalkStep::End => {}
            WalkStep::Failed => {
                reached.count(Path::RetryFailed, 1);
                let row = tables.rows.get_mut(&held[acked].id).unwrap();
                row.asked = None;
                row.is_due = random.bool();
                row.attempts += 1;
            }
        }
        let released = done.iter().map(|held| ParkedRef::of(&held.event)).collect();
        PassStep {
            report: RetryReport {
                released,
                ..RetryReport::default()
            },
            ..PassStep::default()
        }
    }

    /// Its session or its process ends: what is on its way may still land.
    pub(super) fn gone(
        self,
        refused: &BTreeSet<Logged>,
        random: &mut fastrand::Rng,
    ) -> Vec<Logged> {
        let Some(Sent {
            held,
            acked,
            was_acked: false,
        }) = self.sent
        else {
            return Vec::new();
        };
        let landed = random.usize(acked..=held.len());
        let events = held[acked..landed].iter().map(|held| logged(&held.event));
        events
            .take_while(|event| !refused.contains(event))
            .collect()
    }
}
