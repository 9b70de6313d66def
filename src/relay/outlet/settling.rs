//! What is done to rows once their events were acked or given up: which, and in which order.

use std::sync::Arc;

use super::Outlet;
use crate::config::OutboxConfig;
use crate::position::Lsn;
use crate::sink::{Sink, Ticket};
use crate::upkeep::parked::Parked;
use crate::upkeep::{Batch, Failure, RowId};

/// What is done to a row once its ticket is delivered, and the transaction that wrote it.
pub(super) type Kept = (Ticket, Outcome, Option<u32>);

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
    /// What is done to rows whose events are given up.
    pub(super) failed: Failed,
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
            failed,
        }
    }
}

impl<S: Sink> Outlet<S> {
    /// Takes up to `max` rows to be marked or deleted, in the order of their acks, none before one that was not acked; and
    /// whether those are all there are so far. Until [`Outlet::settled`] says otherwise they count as not done.
    pub fn settle(&mut self, max: usize) -> (Batch, bool) {
        debug_assert!(self.settling.is_empty(), "one batch at a time");
        while self.settling.len() < max
            && self.has_delivered_row()
            && let Some(row) = self.kept.pop_front()
        {
            self.settling.push(row);
        }
        let all = !self.has_delivered_row();
        let mut batch = Batch::default();
        for (_, outcome, xid) in &self.settling {
            match outcome {
                Outcome::Acked(row) => batch.acked.push(row.clone()),
                Outcome::Failed(row, failure) => batch.failed.push((row.clone(), failure.clone())),
                Outcome::Parked(event) => {
                    batch.parked.push(Arc::clone(event));
                    // Nothing is written to its row.
                    continue;
                }
            }
            batch.xids.extend(xid);
        }
        batch.xids.dedup();
        (batch, all)
    }

    /// What was taken is done, or has to be done again.
    pub fn settled(&mut self, done: bool) {
        let of = |outcome: &Outcome| if let Outcome::Parked(event) = outcome { event.bytes() } else { 0 };
        if done {
            self.parked_bytes -= self.settling.iter().map(|(_, outcome, _)| of(outcome)).sum::<usize>();
        }
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
}
