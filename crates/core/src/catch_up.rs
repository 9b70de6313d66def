//! Rows that are read from the *table*: before a slot is streamed, or instead.
//!
//! There is what is known to be published, and a snapshot of now. Rows of transactions that are in
//! the second and not in the first are read in their order. Once they are acked, the second takes
//! the place of the first.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::config::{CopiedRows, OutboxConfig};
use crate::ledger::trail::{Pair, Published};
use crate::position::Lsn;
use crate::snapshot::Snapshot;

/// Rows that have to be read from the table before the slot is streamed, and how far that has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatchUp {
    /// Which rows.
    pub rows: Rows,
    /// Transactions beyond this snapshot are the slot's. None: the slot was not made yet.
    pub until: Option<Snapshot>,
    /// OID of the table that is under way; those with smaller ones are done. 0: none is.
    #[serde(default)]
    pub table_oid: u32,
    /// The order of its rows: with another order, the row below has no meaning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// The row of it up to which all are published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Key>,
}

impl CatchUp {
    /// None of these rows was read.
    pub fn new(rows: Rows, until: Option<Snapshot>) -> CatchUp {
        CatchUp {
            rows,
            until,
            table_oid: 0,
            order: None,
            after: None,
        }
    }

    /// The table with this OID is under way, in this order. Gives the row of it up to which all are
    /// published.
    pub fn begin_table(
        &mut self,
        table_oid: u32,
        order: Option<String>,
        outbox: &OutboxConfig,
    ) -> Option<Key> {
        // Rows that say for themselves whether they are pending are all behind nothing.
        let decides = outbox.upkeep.says_for_itself();
        let is_same = table_oid == self.table_oid && order == self.order;
        self.after.take_if(|_| !is_same || decides);
        self.table_oid = table_oid;
        self.order = order;
        self.after.clone()
    }
}

/// The rows of the tables that are to be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rows {
    /// All rows.
    All,
    /// No row.
    None,
    /// Rows for which `outbox.pending` holds.
    Pending,
    /// Rows with this time or a later one.
    Since(String),
    /// Rows that `published` does not have.
    Unpublished,
}

impl Rows {
    /// Which rows of this outbox's table are read; `None`: no row.
    pub fn which<'a>(
        &'a self,
        published: Option<&'a Published>,
        outbox: &OutboxConfig,
    ) -> Option<Which<'a>> {
        match self {
            Rows::None => None,
            Rows::All => Some(Which::All),
            Rows::Pending => Some(Which::Pending),
            Rows::Since(time) => Some(Which::Since(time)),
            // The rows themselves show which are pending.
            Rows::Unpublished if outbox.upkeep.pending.is_some() => Some(Which::Pending),
            // Rows of acked events are deleted: those that are left were not acked.
            Rows::Unpublished if outbox.upkeep.delete => Some(Which::All),
            Rows::Unpublished => Some(match published {
                None => Which::All,
                Some(known) => {
                    // Skipped are rows whose column has a published transaction.
                    let skips = outbox.upkeep.copied_rows == CopiedRows::Skip;
                    let copies = (!skips).then(|| Copies::of(known));
                    Which::Unpublished {
                        snapshot: &known.pair.snapshot,
                        also: &known.also,
                        copies,
                    }
                }
            }),
        }
    }
}

/// The choice of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which<'a> {
    /// All rows.
    All,
    /// Rows for which `outbox.pending` holds.
    Pending,
    /// Rows with this time or a later one, in the text form of Postgres.
    Since(&'a str),
    /// Rows of transactions that the snapshot does not see.
    Unpublished {
        /// The snapshot.
        snapshot: &'a Snapshot,
        /// Published transactions that the snapshot does not see. Used only where a column has the
        /// transaction.
        also: &'a [u64],
        /// Also rows with the transaction of another row that are not published.
        copies: Option<Copies<'a>>,
    },
    /// Rows for which this SQL condition holds. The caller has quoted every part that an operator
    /// did not write as SQL.
    Where(&'a str),
}

/// Which rows with the transaction of another row are not published.
///
/// The column of such a row says that it is published, and `xmin` is of a transaction that
/// `snapshot` may not see. Rows of savepoints look like that, too, but for those of transactions
/// that had ended before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copies<'a> {
    /// Copies that it sees are published.
    pub snapshot: &'a Snapshot,
    /// A transaction that this sees has no savepoint among those that `snapshot` may not see.
    pub before: Option<&'a Snapshot>,
    /// Published savepoints.
    pub savepoints: &'a [u64],
    /// All rows with this `xmin` or a later one: the caller knows which of them it has published.
    pub all_from: Option<u64>,
}

impl<'a> Copies<'a> {
    /// By what is known to be published.
    pub fn of(published: &'a Published) -> Copies<'a> {
        Copies {
            snapshot: published.copies(),
            before: published.before.as_ref(),
            savepoints: &published.savepoints,
            all_from: None,
        }
    }
}

/// The place of a row in the order, in the text form of Postgres.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The value of the order; `None` where it is NULL, or the table has no order.
    pub order: Option<String>,
    /// The id, which orders rows of the same order.
    pub id: String,
    /// The rest of the row key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rest: Vec<String>,
}

/// Rows of a read after which a killed relay can go on, once all rows up to them are published.
#[derive(Debug, Default)]
pub struct Checkpoints {
    noted: VecDeque<(u64, Key)>,
    /// The row that was taken last, unless it is one of them.
    last: Option<(u64, Key)>,
}

impl Checkpoints {
    /// A row was taken; `number` counts them from 1, and one of `every` is a checkpoint.
    pub fn took(&mut self, number: u64, key: Key, every: u64) {
        self.last = Some((number, key));
        if number.is_multiple_of(every) {
            self.note_last();
        }
    }

    /// The row that was taken last is a checkpoint.
    pub fn note_last(&mut self) {
        self.noted.extend(self.last.take());
    }

    /// The first `count` rows are published: moves `after` to the last checkpoint among them.
    pub fn reached(&mut self, count: u64, after: &mut Option<Key>) {
        let reached = self.noted.partition_point(|(number, _)| *number <= count);
        for (_, key) in self.noted.drain(..reached) {
            *after = Some(key);
        }
    }
}

/// A read of the tables that has come to its end.
#[derive(Debug)]
pub struct Read {
    /// Rows that it sees were read, and are published but for those that were left out.
    pub until: Snapshot,
    /// The end of the log after the snapshot.
    pub lsn: Lsn,
    /// How far the log was on disk.
    pub flushed: Option<Lsn>,
    /// Where the `xmin` of rows was not compared, the published savepoints since it was. Copied
    /// rows may be left that `until` sees.
    pub savepoints: Option<Vec<u64>>,
}

impl Read {
    /// What is published from here on. `rows`: which of them were read, where that was not all that
    /// `before` did not have.
    pub fn published(self, rows: Option<&Rows>, before: Option<Published>) -> Published {
        let floor = match (rows, &before) {
            // All of them were asked for, and all were read.
            (Some(Rows::All), _) | (Some(Rows::Unpublished), None) => None,
            (Some(Rows::Unpublished) | None, Some(before)) => before.floor.clone(),
            // Some were left out.
            (Some(Rows::None | Rows::Pending | Rows::Since(_)) | None, _) => {
                Some(self.until.clone())
            }
        };
        let pair = Pair {
            snapshot: self.until,
            lsn: self.lsn,
        };
        let mut published = Published {
            floor,
            flushed: self.flushed,
            ..Published::at(pair)
        };
        if let Some(before) = before {
            match self.savepoints {
                None => published.before = before.before(&published.pair.snapshot),
                Some(savepoints) => {
                    published.copies = Some(before.copies().clone());
                    published.before = before.before;
                    published.savepoints = savepoints;
                }
            }
            // Published transactions that `until` does not see yet are so still.
            published.also = before.also;
            published.also_end = before.also_end;
            published.forgotten = before.forgotten;
            published.earlier = before.pair.before(before.earlier);
            published.trim();
        }
        published
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_keeps_up_to_where_the_transactions_beside_its_snapshot_were_committed() {
        let snapshot = |text: &str| text.parse::<Snapshot>().unwrap();
        let pair = Pair {
            snapshot: snapshot("10:10:"),
            lsn: Lsn::new(100),
        };
        let before = Published {
            also: vec![15],
            also_end: Some(Lsn::new(140)),
            ..Published::at(pair)
        };
        let read = Read {
            until: snapshot("12:12:"),
            lsn: Lsn::new(130),
            flushed: None,
            savepoints: None,
        };
        let published = read.published(Some(&Rows::Unpublished), Some(before));
        assert_eq!(published.also_end, Some(Lsn::new(140)));
        let promoted = published.until(Lsn::new(140)).unwrap();
        assert_eq!((promoted.also, promoted.forgotten), (vec![15], None));
    }
}
