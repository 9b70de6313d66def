//! Whether rows stay in the table, which is what everything can be recovered from.
//!
//! Some applications delete an event in the transaction that inserts it: the slot delivers it all the same, and the table
//! is always empty. That is well as long as the slot is there. Whoever does so should know what it costs.

use std::collections::HashMap;

use crate::event::RowId;

/// So many rows in a row that are gone make one sure.
const GONE_MAX: u32 = 3;

/// See the module's documentation. No I/O: the caller looks.
#[derive(Debug, Default)]
pub(super) struct RowsPersist {
    /// An event that was new at the last look: by now its row is visible to everybody, if there is one.
    waiting: Option<RowId>,
    /// By outbox: rows in a row that were gone.
    gone: HashMap<usize, u32>,
}

impl RowsPersist {
    /// The row to look for now; `newest` is that of an event that came lately, and is looked for the next time.
    pub(super) fn due(&mut self, newest: Option<RowId>) -> Option<RowId> {
        let due = self.waiting.take();
        self.waiting = newest.filter(|newest| due.as_ref() != Some(newest));
        due
    }

    /// The row was there, or was not, or nobody may know. Says whether it is now sure that rows do not stay.
    pub(super) fn found(&mut self, outbox: usize, kept: Option<bool>) -> bool {
        let gone = self.gone.entry(outbox).or_default();
        match kept {
            Some(true) => *gone = 0,
            Some(false) => *gone = gone.saturating_add(1),
            None => {}
        }
        *gone == GONE_MAX && kept == Some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_looked_for_a_while_after_its_event_and_once() {
        let (mut kept, row) = (RowsPersist::default(), |id: u8| Some(RowId { outbox: 0, key: vec![id] }));
        assert_eq!(kept.due(row(1)), None);
        assert_eq!(kept.due(row(1)), row(1));
        assert_eq!(kept.due(row(1)), None);
        assert_eq!(kept.due(None), row(1));
        assert_eq!(kept.due(None), None);
    }

    #[test]
    fn rows_that_are_gone_three_times_in_a_row_are_told_of_once() {
        let mut kept = RowsPersist::default();
        let mut found = |answers: &[Option<bool>]| answers.iter().filter(|answer| kept.found(0, **answer)).count();
        assert_eq!(found(&[Some(false), Some(false), Some(true), Some(false), None, Some(false)]), 0);
        assert_eq!(found(&[Some(false), Some(false), Some(false)]), 1);
    }
}
