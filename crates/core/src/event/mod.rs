//! Messages to events: which row, of which transaction, at which place in it.
//!
//! The [`Assembler`] holds one transaction's header and the tables' column positions, never a row
//! (P4). The place of an event is counted from commit records only: a row's own LSN may be shared,
//! zero, or below a confirmed one (P1).

mod assemble;
mod error;
mod row;

#[cfg(test)]
mod tests;

use std::fmt;

pub use assemble::{Assembler, BaseTypes, Ignored};
pub use error::{Fault, Shown};
#[cfg(any(test, feature = "testing"))]
pub(crate) use row::Mapping;
pub use row::{Polled, Row, RowId};

use crate::position::Lsn;

/// The place of an event: its transaction, and its index in it. With the server's identity it names
/// the event for ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// LSN of the transaction's commit record.
    pub commit_lsn: Lsn,
    /// Index among the outbox events of the transaction, from 0.
    pub index: u64,
    /// The way by which it was read.
    pub via: Via,
}

/// The way by which an event was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Via {
    /// From the slot.
    #[default]
    Slot,
    /// From the table: the LSN is the end of the WAL at that time, the index counts the rows.
    Table,
    /// From the table, for a replay.
    Replay,
}

impl Place {
    /// Whether two events with one id are one event that came twice, as far as their places tell.
    /// By the slot an event has one place for ever. A row that is read was committed before, and
    /// has another place each time.
    pub(crate) fn is_same_event(&self, other: &Place) -> bool {
        match (self.via == Via::Slot, other.via == Via::Slot) {
            (true, true) => (self.commit_lsn, self.index) == (other.commit_lsn, other.index),
            (true, false) => self.commit_lsn < other.commit_lsn,
            (false, true) => other.commit_lsn < self.commit_lsn,
            (false, false) => true,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.via {
            Via::Slot => write!(
                f,
                "event at index {} of the transaction at {}",
                self.index, self.commit_lsn
            ),
            Via::Table | Via::Replay => {
                write!(
                    f,
                    "row {} of those read from the table at {}",
                    self.index, self.commit_lsn
                )
            }
        }
    }
}

/// One row of an outbox table, or one message, with its place in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event<'a> {
    /// Its place.
    pub place: Place,
    /// Commit time, microseconds since the Unix epoch.
    pub committed_at_us: i64,
    /// The transaction that wrote its row, by the lower half of its id; none for rows that are read
    /// from the table.
    pub xid: Option<u32>,
    /// Which of the configured outboxes it is from, by index.
    pub outbox: usize,
    /// Its values; the one in place 0 is the event's id, and never NULL.
    pub row: Row<'a>,
}

impl Event<'_> {
    /// The event's id.
    pub fn id(&self) -> &[u8] {
        self.row.get(0).unwrap_or_default()
    }

    /// Whether the row has the transaction of another row: it was copied, moved or restored with
    /// that column. The column has the id of the top transaction, and so has the stream.
    #[inline]
    pub fn is_copied(&self) -> bool {
        let wrote = self.xid.map(u64::from);
        // The stream has the lower half of an id.
        wrote
            .zip(self.row.xid())
            .is_some_and(|(wrote, told)| wrote != told & u64::from(u32::MAX))
    }

    /// The identity of its row.
    pub fn row_id(&self) -> RowId {
        let mut key = Vec::new();
        self.row.write_key(&mut key);
        RowId {
            outbox: self.outbox,
            key,
        }
    }
}

/// The result of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<'a> {
    /// No event, or one that was delivered before.
    Nothing,
    /// A transaction begins that is not covered by the position.
    Begin {
        /// LSN of its commit record.
        commit_lsn: Lsn,
        /// The lower half of its id.
        xid: u32,
    },
    /// An event that is not covered by the position.
    Event(Event<'a>),
    /// The transaction ends. Comes for every transaction for which `Begin` came, also one without
    /// events.
    Commit {
        /// LSN of its commit record.
        commit_lsn: Lsn,
        /// End of its commit record.
        end_lsn: Lsn,
    },
    /// The description of a table, and whether it is an outbox. The catalog should be read again.
    Relation {
        /// The table's OID.
        oid: u32,
        /// Whether it is an outbox table.
        outbox: bool,
    },
    /// The first row of a table that is no outbox, and not covered by the position. Its rows are no
    /// events.
    OtherTable {
        /// The table's name.
        name: String,
    },
}
