//! How far reading has come, and how that is stored: beside the rows, or committed with them.

use tokio::time::Instant;

use super::{Passage, Reading};
use crate::error::{Error, Kind, Result};
use crate::failpoint;
use crate::position::Lsn;
use crate::relay::waiting::{end_of, lease_lost, told_to_leave};

impl Reading<'_> {
    /// Whether rows are to be committed now: they are enough for a transaction, and all of them are acked.
    pub(super) fn is_full(&mut self, passage: &Passage, now: Instant) -> bool {
        // More rows are on their way until the last was read, and what the last one says of all is stored with it.
        self.publisher.look(false, true, now - self.epoch);
        !passage.ended && self.publisher.is_commit_due(false)
    }

    /// Notes the last checkpoint that is delivered, and marked where rows are.
    pub(super) fn advance(&mut self, passage: &mut Passage, commit_lsn: Lsn) {
        let Some(catch_up) = &mut self.stored.catch_up else { return };
        let delivered = self.publisher.completed_of(commit_lsn);
        while passage.checkpoints.front().is_some_and(|(number, _)| *number <= delivered)
            && let Some((_, key)) = passage.checkpoints.pop_front()
        {
            catch_up.after = Some(key);
        }
    }

    /// Stores what is to be stored.
    pub(in crate::relay) async fn save(&mut self) -> Result<()> {
        if self.kept.as_ref() == Some(&self.stored) && !self.publisher.has_open_transaction() {
            return Ok(());
        }
        if self.publisher.is_transactional() && !self.publisher.is_drained() {
            let what = "rows of a transaction are not acked; giving it up, and reading them again";
            return Err(Error::new(Kind::KafkaUnreachable, what));
        }
        failpoint::reached("progress");
        tokio::select! {
            stored = self.store.store(&self.stored) => stored?,
            end = end_of(&mut self.lease_end) => {
                self.lease_end = None;
                return Err(lease_lost(end));
            }
            () = told_to_leave(&mut self.stop, self.config.process.shutdown_timeout) => {
                let cause = format!("stopped before the progress of slot {} was stored", self.config.source.slot);
                return Err(Error::new(Kind::ShutdownTimeout, cause)
                    .remedy("nothing is lost: what was not stored is read (again) at the next start"));
            }
        }
        self.telemetry.metrics.positions_stored.inc();
        self.kept = Some(self.stored.clone());
        if let Some(events) = self.publisher.committed() {
            self.telemetry.metrics.transaction(events, self.store.took);
        }
        Ok(())
    }

    /// Nothing more is read. What of it is not committed never will be.
    pub(in crate::relay) fn count_given_up(&self) {
        if self.publisher.has_open_transaction() {
            self.telemetry.metrics.given_up_transactions.inc();
        }
    }

    /// Whether anything was stored.
    pub(in crate::relay) fn has_saved(&self) -> bool {
        self.kept.is_some()
    }
}
