//! What is done to rows once their events were acked or given up: which, and in which order.

use std::sync::Arc;

use super::Outlet;
use crate::config::delivery::max_attempts;
use crate::config::{OutboxConfig, SlotName};
use crate::event::{Event, Place, RowId, Shown};
use crate::position::Lsn;
use crate::sink::Sink;
use crate::upkeep::parked::Parked;
use crate::upkeep::{Batch, Failure};

/// What is done to the row of an event that is delivered.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) place: Place,
    pub(super) outcome: Outcome,
    /// The transaction that wrote it.
    pub(super) xid: Option<u32>,
}

/// What has become of an event, and is to be written to its row or kept beside it.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    /// The broker has it.
    Acked(RowId),
    /// It was given up.
    Failed(RowId, Failure),
    /// It waits.
    Parked(Arc<Parked>),
}

/// What is done to the rows of an outbox.
#[derive(Debug)]
pub(super) struct Settles {
    /// What it is called.
    pub(super) name: String,
    /// The columns its records are made of.
    pub(super) columns: Vec<String>,
    /// Whether rows are marked or deleted once they were acked.
    pub(super) acked: bool,
    /// Whether rows say for themselves that they are pending.
    pub(super) pending: bool,
    /// What is done to rows whose events are given up.
    pub(super) failed: Failed,
    /// Whether rows are marked whose events were tried and wait.
    pub(super) waiting: bool,
    /// The place of the column with how often an event may be tried.
    max_attempts: Option<usize>,
    /// Whether it was said that one holds no number.
    told: bool,
}

/// What is done to rows whose events are given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    Nothing,
    /// What is done to all others.
    SameAsAcked,
    Marked,
}

impl Settles {
    pub(super) fn of(outbox: &OutboxConfig) -> Settles {
        let failed = match (outbox.upkeep.mark_failed.is_some(), outbox.upkeep.delete) {
            (true, _) => Failed::Marked,
            (false, true) => Failed::SameAsAcked,
            (false, false) => Failed::Nothing,
        };
        Settles {
            name: outbox.source.to_string(),
            columns: outbox.columns.clone(),
            acked: outbox.upkeep.writes(),
            pending: outbox.upkeep.pending.is_some(),
            failed,
            waiting: outbox.upkeep.mark_waiting.is_some(),
            max_attempts: outbox.max_attempts.as_deref().and_then(|column| outbox.place(column)),
            told: false,
        }
    }

    /// How often `event` may be tried, where it says so itself.
    #[inline]
    pub(super) fn max_attempts(&mut self, event: &Event<'_>, slot: &SlotName) -> Option<u32> {
        let text = event.row.get(self.max_attempts?)?;
        let max = max_attempts(text);
        if max.is_none() && !std::mem::replace(&mut self.told, true) {
            let (outbox, row) = (self.name.as_str(), Shown::of(event.id()));
            tracing::warn!(%slot, outbox, %row, "outbox.columns.max_attempts has no whole number; such rows are tried as all others");
        }
        max
    }
}

impl<S: Sink> Outlet<S> {
    /// Takes up to `max` rows to be marked or deleted, in the order of their events; and whether those are all there are so
    /// far. Until [`Outlet::settled`] says otherwise they count as not done.
    pub fn settle(&mut self, max: usize) -> (Batch, bool) {
        debug_assert!(self.settling.is_empty(), "one batch at a time");
        self.settling.extend(self.kept.drain(..max.min(self.kept.len())));
        let all = self.kept.is_empty();
        let mut batch = Batch::default();
        for Kept { outcome, xid, .. } in &self.settling {
            match outcome {
                Outcome::Acked(row) => batch.acked.push(row.clone()),
                Outcome::Failed(row, failure) => batch.failed.push((row.clone(), failure.clone())),
                Outcome::Parked(event) => {
                    batch.parked.push(Arc::clone(event));
                    let is_marked = self.outboxes.get(event.row.outbox).is_some_and(|settles| settles.waiting);
                    if event.tried().is_none() || !is_marked {
                        // Nothing is written to its row.
                        continue;
                    }
                }
            }
            batch.xids.extend(xid);
        }
        batch.xids.dedup();
        (batch, all)
    }

    /// What was taken is done, or has to be done again.
    pub fn settled(&mut self, done: bool) {
        let of = |kept: &Kept| if let Outcome::Parked(event) = &kept.outcome { event.bytes() } else { 0 };
        if done {
            self.parked_bytes -= self.settling.iter().map(of).sum::<usize>();
        }
        for row in self.settling.drain(..).rev().filter(|_| !done) {
            self.kept.push_front(row);
        }
    }

    /// Whether rows of delivered events wait to be marked or deleted.
    pub fn has_unsettled(&self) -> bool {
        !self.kept.is_empty() || !self.settling.is_empty()
    }

    /// Whether a batch of them could begin now.
    pub fn has_settleable(&self) -> bool {
        self.settling.is_empty() && !self.kept.is_empty()
    }

    /// How many events of the open transaction, which is that at `commit_lsn`, are delivered, and marked where rows are.
    pub fn settled_index(&self, commit_lsn: Lsn) -> u64 {
        let delivered = self.ledger.delivered().delivered_of(commit_lsn);
        let waiting = self.settling.first().or(self.kept.front());
        waiting.map_or(delivered, |first| first.place.index.min(delivered))
    }
}
