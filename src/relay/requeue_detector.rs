//! Rows that somebody set to pending again while the slot serves.
//!
//! A row is pending until the slot has delivered it and it was marked. So what is pending says nothing, and what *still* is
//! does: a row that was pending when the log was at some place, and is pending after everything up to there was
//! delivered and marked, was set to pending by somebody who wants it published again.

use std::collections::HashSet;

use crate::config::{Config, SlotName};
use crate::error::Error;
use crate::event::RowId;
use crate::position::{Lsn, Position};

/// Rows that are looked at in one go.
pub(super) const ROWS_MAX: usize = 500;

/// See the module's documentation. No I/O: the caller looks.
#[derive(Debug, Default)]
pub(super) struct RequeueDetector {
    /// Rows that were pending, and where the log was after they were looked at.
    seen: Option<(HashSet<RowId>, Lsn)>,
    /// Whether a look that failed was logged.
    warned: bool,
}

impl RequeueDetector {
    /// None where rows do not say that they are pending.
    pub(super) fn of(config: &Config) -> Option<RequeueDetector> {
        config.outboxes.iter().any(|outbox| outbox.upkeep.pending.is_some()).then(RequeueDetector::default)
    }

    /// Logs that a look failed, the first time.
    pub(super) fn warn(&mut self, slot: &SlotName, error: &Error) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(%slot, %error, "the search for pending rows failed; an index may help");
        }
    }

    /// These rows are pending, and the log was at `lsn` after that was looked at; everything up to `settled` was delivered
    /// and marked *before* it was. Gives the rows that are to be published again.
    pub(super) fn looked(&mut self, pending: Vec<RowId>, lsn: Lsn, settled: &Position) -> Vec<RowId> {
        let Some((seen, reached)) = &self.seen else {
            self.seen = (!pending.is_empty()).then(|| (pending.into_iter().collect(), lsn));
            return Vec::new();
        };
        if settled.end_lsn < *reached {
            // The slot is not there yet: the first look is still the one that counts.
            return Vec::new();
        }
        let still: Vec<RowId> = pending.iter().filter(|row| seen.contains(*row)).cloned().collect();
        self.seen = (still.is_empty() && !pending.is_empty()).then(|| (pending.into_iter().collect(), lsn));
        still
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(ids: &[&str]) -> Vec<RowId> {
        ids.iter().map(|id| RowId::new(0, std::iter::once(id.as_bytes()))).collect()
    }

    #[test]
    fn what_is_pending_still_after_the_slot_passed_it_was_set_again() {
        let (mut again, at) = (RequeueDetector::default(), |lsn| Position::at(Lsn::new(lsn)));
        let mut look = |ids: &[&str], lsn, settled| again.looked(rows(ids), Lsn::new(lsn), &at(settled));
        assert_eq!(look(&["a", "b"], 100, 50), []);
        // Not there yet, however often it is looked at.
        assert_eq!(look(&["a", "b", "c"], 120, 99), []);
        // "b" was marked, "c" came later.
        assert_eq!(look(&["a", "c"], 130, 100), rows(&["a"]));
        assert_eq!(look(&["c"], 140, 135), []);
        assert_eq!(look(&[], 150, 140), []);
        assert_eq!(look(&["d"], 160, 150), []);
        assert_eq!(look(&[], 170, 160), []);
    }
}
