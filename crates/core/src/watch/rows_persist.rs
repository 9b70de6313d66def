//! Whether rows stay in their table.

use std::collections::HashMap;

use crate::event::RowId;

/// So many rows in a row are gone where rows do not stay.
const GONE_MAX: u32 = 3;

/// Whether rows stay in the table, which is what everything can be recovered from.
///
/// Some applications delete an event in the transaction that inserts it: the slot delivers it all
/// the same, and the table is always empty. If the slot is lost, such events are lost with it, and
/// the relay warns of that.
#[derive(Debug, Default)]
pub struct RowsPersist {
    /// The row of an event that was new at the last look. Once a later event came, other sessions
    /// see it, if it exists. Only where commits wait for a standby it may be the other way round.
    waiting: Option<RowId>,
    /// By outbox: rows in a row that were gone.
    gone: HashMap<usize, u32>,
}

impl RowsPersist {
    /// The row to look for now, once; `newest` is the row to look for when another event came.
    pub fn due(&mut self, newest: Option<RowId>) -> Option<RowId> {
        let due = std::mem::replace(&mut self.waiting, newest);
        due.filter(|due| self.waiting.as_ref() != Some(due))
    }

    /// Whether it is now sure that rows do not stay; `kept` is none where the role may not look.
    pub fn found(&mut self, outbox: usize, kept: Option<bool>) -> bool {
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
    fn the_row_of_an_event_is_looked_up_once_when_another_event_came() {
        let mut kept = RowsPersist::default();
        let row = |id: u8| {
            Some(RowId {
                outbox: 0,
                key: vec![id],
            })
        };
        assert_eq!(kept.due(row(1)), None);
        assert_eq!(kept.due(row(1)), None, "its commit may wait for a standby");
        assert_eq!(kept.due(row(2)), row(1));
        assert_eq!(kept.due(None), row(2));
        assert_eq!(kept.due(None), None);
    }

    #[test]
    fn rows_missing_at_three_looks_in_succession_are_reported_once() {
        let mut kept = RowsPersist::default();
        let mut found = |answers: &[Option<bool>]| {
            answers
                .iter()
                .filter(|answer| kept.found(0, **answer))
                .count()
        };
        assert_eq!(
            found(&[
                Some(false),
                Some(false),
                Some(true),
                Some(false),
                None,
                Some(false)
            ]),
            0
        );
        assert_eq!(found(&[Some(false), Some(false), Some(false)]), 1);
    }
}
