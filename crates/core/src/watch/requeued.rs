//! Which rows were set to pending again.

use std::collections::HashSet;

use crate::config::{OutboxConfig, SlotName};
use crate::error::Error;
use crate::event::RowId;
use crate::position::{Lsn, Position};

/// Rows that somebody set to pending again while the slot serves.
///
/// A row is pending until the slot has delivered it and it was marked. So one look says nothing. A
/// row that was pending when the log was at some LSN, and *still* is after everything up to there
/// was delivered and marked, was set to pending again.
#[derive(Debug, Default)]
pub struct RequeueDetector {
    /// Pending rows, and the end of the log after they were looked at.
    seen: Option<(HashSet<RowId>, Lsn)>,
    warned: bool,
}

impl RequeueDetector {
    /// None where rows do not say that they are pending.
    pub fn of(outboxes: &[OutboxConfig]) -> Option<RequeueDetector> {
        outboxes
            .iter()
            .any(|outbox| outbox.upkeep.pending.is_some())
            .then(RequeueDetector::default)
    }

    /// Logs that a look failed, the first time.
    pub fn warn(&mut self, slot: &SlotName, error: &Error) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(event = "pending_search_failed", %slot, %error,
                "the search for pending rows failed; an index may help");
        }
    }

    /// These rows are `pending`, and the log was at `lsn` after that look; everything up to
    /// `settled` was delivered and marked *before* it. Gives the rows that are to be published
    /// again.
    pub fn looked(&mut self, pending: Vec<RowId>, lsn: Lsn, settled: &Position) -> Vec<RowId> {
        let Some((seen, reached)) = &self.seen else {
            self.seen = (!pending.is_empty()).then(|| (pending.into_iter().collect(), lsn));
            return Vec::new();
        };
        if settled.end_lsn < *reached {
            // The slot has not reached the first look, which still counts.
            return Vec::new();
        }
        let still: Vec<RowId> = pending
            .iter()
            .filter(|row| seen.contains(*row))
            .cloned()
            .collect();
        self.seen =
            (still.is_empty() && !pending.is_empty()).then(|| (pending.into_iter().collect(), lsn));
        still
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(ids: &[&str]) -> Vec<RowId> {
        ids.iter()
            .map(|id| RowId::new(0, std::iter::once(id.as_bytes())))
            .collect()
    }

    #[test]
    fn a_row_still_pending_after_the_position_passed_the_first_look_is_requeued() {
        let mut again = RequeueDetector::default();
        let at = |lsn| Position::at(Lsn::new(lsn));
        let mut look =
            |ids: &[&str], lsn, settled| again.looked(rows(ids), Lsn::new(lsn), &at(settled));
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
