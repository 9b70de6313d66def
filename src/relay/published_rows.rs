//! Rows a poller finds more than once.
//!
//! Of a row that does not tell its transaction only `xmin` is known, and it is found as long as some transaction from
//! before it is under way (see [`crate::poll`]). Who has published it once does not do so at each look.

use std::collections::HashMap;

use crate::event::RowId;

/// Rows remembered; of more, some are published again.
const ROWS_MAX: usize = 100_000;

/// See the module's documentation. No I/O.
#[derive(Debug, Default)]
pub(super) struct PublishedRows {
    /// Those that are published, and below which transaction they were written.
    published: HashMap<RowId, u64>,
    /// Those of this look.
    looked: Vec<RowId>,
    /// Below which transaction everything is that this look finds; none while nobody polls.
    xmax: Option<u64>,
}

impl PublishedRows {
    /// Another look, at rows of transactions below `xmax`, which finds none below `xmin` any more.
    pub(super) fn begin(&mut self, xmax: u64, xmin: u64) {
        self.looked.clear();
        self.xmax = Some(xmax);
        self.published.retain(|_, below| *below > xmin);
    }

    /// Whether this row is to be published.
    pub(super) fn is_new(&mut self, row: &RowId) -> bool {
        if self.xmax.is_none() {
            return true;
        }
        let is_new = !self.published.contains_key(row);
        if is_new && self.published.len() + self.looked.len() < ROWS_MAX {
            self.looked.push(row.clone());
        }
        is_new
    }

    /// What was found is published.
    pub(super) fn end(&mut self) {
        let below = self.xmax.unwrap_or_default();
        self.published.extend(self.looked.drain(..).map(|row| (row, below)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_new_until_a_look_that_found_it_came_to_its_end() {
        let (mut found, row) = (PublishedRows::default(), RowId::new(0, std::iter::once(&b"7"[..])));
        assert!(found.is_new(&row) && found.is_new(&row), "nobody polls");
        found.begin(20, 10);
        assert!(found.is_new(&row));
        // That look failed.
        found.begin(21, 10);
        assert!(found.is_new(&row));
        found.end();
        found.begin(30, 20);
        assert!(!found.is_new(&row), "it may be of transaction 20");
        found.begin(40, 21);
        assert!(found.published.is_empty());
    }
}
