//! The events of the transaction that is under way, by their rows: should its slot go in the middle of it, those that were
//! delivered are not read from the table again.

use crate::event::{Event, RowId};
use crate::position::{Lsn, Position};

/// Bytes of row ids that are kept. Of a larger transaction nothing is known, and all of it comes again.
const BYTES_MAX: usize = 256 * 1024;

/// See the module's documentation. Allocates nothing once it has grown to the size of a transaction.
#[derive(Debug, Default)]
pub(super) struct OpenTransaction {
    commit_lsn: Lsn,
    ids: Vec<u8>,
    /// The outbox of each event, and where its row id ends.
    ends: Vec<(usize, usize)>,
    is_unknown: bool,
}

impl OpenTransaction {
    /// A transaction begins, or goes on after a lost connection.
    pub(super) fn begin(&mut self, commit_lsn: Lsn) {
        if self.commit_lsn != commit_lsn {
            self.commit_lsn = commit_lsn;
            self.ids.clear();
            self.ends.clear();
            self.is_unknown = false;
        }
    }

    /// This event of it was taken in.
    #[inline]
    pub(super) fn event(&mut self, event: &Event<'_>) {
        self.row(event.place.index, event.outbox, |ids| event.row.write_key(ids));
    }

    #[inline]
    fn row(&mut self, index: u64, outbox: usize, write_key: impl FnOnce(&mut Vec<u8>)) {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        if index < self.ends.len() {
            // It was taken in, and comes again after a lost connection.
            self.ends.truncate(index);
            self.ids.truncate(self.ends.last().map_or(0, |(_, end)| *end));
        } else if index > self.ends.len() {
            // The first ones were delivered before this process was.
            self.is_unknown = true;
        }
        if self.is_unknown {
            return;
        }
        let before = self.ids.len();
        write_key(&mut self.ids);
        if self.ids.len() > BYTES_MAX {
            self.ids.truncate(before);
            self.is_unknown = true;
        } else {
            self.ends.push((outbox, self.ids.len()));
        }
    }

    /// The event that was taken in last.
    pub(super) fn newest(&self) -> Option<RowId> {
        let (outbox, end) = *self.ends.last()?;
        let start = self.ends.len().checked_sub(2).and_then(|at| self.ends.get(at)).map_or(0, |(_, end)| *end);
        Some(RowId { outbox, key: self.ids.get(start..end)?.to_vec() })
    }

    /// The events of the transaction that `position` is inside of and that are delivered; none where they are not known.
    ///
    /// A relay that was started inside of it has not seen its first ones.
    pub(super) fn delivered(&self, position: &Position) -> Vec<RowId> {
        let index = usize::try_from(position.delivered_of(self.commit_lsn)).unwrap_or(usize::MAX);
        if self.is_unknown || index > self.ends.len() {
            return Vec::new();
        }
        let mut start = 0;
        let id = |&(outbox, end): &(usize, usize)| {
            let key = self.ids.get(start..end).unwrap_or_default().to_vec();
            start = end;
            RowId { outbox, key }
        };
        self.ends.iter().take(index).map(id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::Partial;

    fn row(outbox: usize, id: &[u8]) -> RowId {
        RowId::new(outbox, std::iter::once(id))
    }

    fn put(begun: &mut OpenTransaction, index: u64, outbox: usize, id: &[u8]) {
        begun.row(index, outbox, |ids| ids.extend_from_slice(id));
    }

    fn inside(commit_lsn: u64, index: u64) -> Position {
        Position { end_lsn: Lsn::new(5), partial: Some(Partial { commit_lsn: Lsn::new(commit_lsn), index }) }
    }

    #[test]
    fn what_was_delivered_of_the_open_transaction_is_known_across_connections() {
        let mut begun = OpenTransaction::default();
        begun.begin(Lsn::new(10));
        put(&mut begun, 0, 0, b"a");
        put(&mut begun, 1, 1, b"bc");
        begun.begin(Lsn::new(10));
        put(&mut begun, 2, 0, b"x");
        // It was not sent, and comes again.
        put(&mut begun, 2, 0, b"d");
        assert_eq!(begun.delivered(&inside(10, 2)), [row(0, b"a"), row(1, b"bc")]);
        assert_eq!(begun.delivered(&inside(10, 3)).len(), 3);
        // Of another transaction, and of one of which more is delivered than was seen.
        assert!(begun.delivered(&inside(20, 2)).is_empty());
        assert!(begun.delivered(&inside(10, 4)).is_empty());
        assert!(begun.delivered(&Position::at(Lsn::new(5))).is_empty());
        begun.begin(Lsn::new(20));
        assert!(begun.delivered(&inside(20, 1)).is_empty());
        // A process that was started inside of it does not know its first ones.
        put(&mut begun, 1, 0, b"b");
        assert!(begun.delivered(&inside(20, 1)).is_empty());
    }

    #[test]
    fn of_a_huge_transaction_nothing_is_kept() {
        let mut begun = OpenTransaction::default();
        begun.begin(Lsn::new(10));
        let id = vec![b'x'; BYTES_MAX / 2];
        (0..3).for_each(|index| put(&mut begun, index, 0, &id));
        assert!(begun.delivered(&inside(10, 1)).is_empty());
        assert_eq!(begun.ids.len(), BYTES_MAX);
    }
}
