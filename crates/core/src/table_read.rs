//! A session that reads tables: which rows of a scan are published, how far that has come, and what
//! of it is stored. No I/O: the program makes the slot, queries, writes rows back and stores.
//!
//! Which rows a query gives is in [`crate::catch_up`], and why a table is read in
//! [`crate::recovery`].

use std::collections::HashSet;
use std::mem::take;
use std::time::{Duration, Instant};

use crate::catch_up::{CatchUp, Checkpoints, Key, Read, Rows};
use crate::config::OutboxConfig;
use crate::error::{Error, Kind, Result};
use crate::event::{Fault, Place, Polled, RowId, Via};
use crate::failpoint;
use crate::ledger::trail::Published;
use crate::left::Left;
use crate::position::{Lsn, Position};
use crate::published_versions::{PollScan, PublishedVersions, RowVersion};
use crate::publisher::{Publisher, contradiction};
use crate::recovery::RecoveryPlan;
use crate::sink::Sink;
use crate::snapshot::Snapshot;
use crate::stored::Stored;

/// How often progress is stored: events since then come again after a crash.
const STORE_INTERVAL: Duration = Duration::from_millis(250);

/// A row that a query gave.
pub trait TableRow {
    /// The values of the outbox's columns, in their order; `None` is NULL.
    fn values(&self) -> impl ExactSizeIterator<Item = Option<&[u8]>>;

    /// Its place in the order.
    fn key(&self, outbox: &OutboxConfig) -> Key;

    /// Which transaction wrote it, where its column does not tell.
    fn version(&self) -> Option<RowVersion>;
}

/// Why a row was not taken.
#[derive(Debug)]
pub enum Untaken {
    /// A value cannot be read.
    Unfit {
        /// Its column.
        column: String,
        /// What is wrong with it.
        fault: Fault,
    },
    /// It cannot be routed or produced.
    Failed(Error),
}

/// A query for rows of one table.
#[derive(Debug)]
pub struct Scan {
    /// The number of the outbox.
    pub outbox: usize,
    /// Makes events of rows.
    pub polled: Polled,
    /// The end of the log when the table is read.
    pub lsn: Lsn,
    /// How rows come.
    pub via: Via,
    /// What is known to be published, where rows are chosen by that.
    pub published: Option<Published>,
}

/// Rows of a scan.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScanCounts {
    /// Those that the query gave.
    pub read: u64,
    /// Those of them that were published.
    pub sent: u64,
}

/// What is due in a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanStep {
    /// Nothing: rows and acks are waited for.
    Wait,
    /// Progress is to be stored.
    Store,
    /// All rows were read, are acked, and are written back where rows are.
    Done,
}

/// A scan that is under way. To the ledger, all its rows are one transaction.
struct Progress {
    scan: Scan,
    commit_lsn: Lsn,
    is_ended: bool,
    counts: ScanCounts,
    checkpoints: Checkpoints,
}

/// See the module's documentation. Times are since any fixed instant.
pub struct TableRead<S: Sink> {
    /// What publishes the rows.
    pub publisher: Publisher<S>,
    /// How far it is.
    pub stored: Stored,
    /// What of it the store has; none before the first store of the session.
    pub kept: Option<Stored>,
    /// Rows that are published, whatever else is known.
    pub delivered: HashSet<RowId>,
    /// Row versions that a poller has published.
    pub published: PublishedVersions,
    progress: Option<Progress>,
    checkpoint_rows: u64,
    next_store: Duration,
}

impl<S: Sink> TableRead<S> {
    /// A session begins with what is `stored`. After one of `checkpoint_rows` rows a killed relay
    /// can go on.
    pub fn new(
        publisher: Publisher<S>,
        stored: Stored,
        delivered: HashSet<RowId>,
        published: PublishedVersions,
        checkpoint_rows: u64,
    ) -> TableRead<S> {
        TableRead {
            publisher,
            stored,
            kept: None,
            delivered,
            published,
            progress: None,
            checkpoint_rows,
            next_store: Duration::ZERO,
        }
    }

    // What precedes a scan.

    /// An interrupted read is to be finished without its slot. Once a row is published, no slot may
    /// go on from what was stored before: this is stored first.
    pub fn finish_first(&mut self, plan: &mut RecoveryPlan) {
        // The old position means nothing to the new slot.
        self.stored.position = Position::default();
        self.stored.published = plan.published.take();
    }

    /// That read is finished, and `plan` is for the rest.
    pub fn finished(&mut self, plan: &mut RecoveryPlan) {
        plan.published.clone_from(&self.stored.published);
        plan.rows = Rows::Unpublished;
    }

    /// A slot is to be made, which is stored before that.
    pub fn intend(&mut self, plan: RecoveryPlan, publication_version: String) {
        self.stored.position = Position::default();
        self.stored.published = plan.published;
        self.stored.publication_version = publication_version;
        self.stored.catch_up = Some(CatchUp::new(plan.rows, None));
    }

    /// The slot `begins` there, and has all that `snapshot` does not see. That is stored before a
    /// row is read.
    pub fn slot_made(&mut self, begins: Lsn, snapshot: Snapshot) {
        self.stored.position = Position::at(begins);
        if let Some(catch_up) = &mut self.stored.catch_up {
            catch_up.until = Some(snapshot);
        }
    }

    /// A poll begins. Gives the snapshot of one that was interrupted, which goes on; else it reads
    /// up to `now`.
    pub fn begin_poll(&mut self, now: &Snapshot, scan: PollScan) -> Option<Snapshot> {
        // It finds no row by an `xmin` below that of the last scan that compared all of them.
        let published = self.stored.published.as_ref();
        let oldest = published.map(|published| published.copies().xmin());
        self.published.begin(scan, oldest.unwrap_or_default());
        let begun = self.stored.begun_until();
        if begun.is_none() {
            let catch_up = &mut self.stored.catch_up;
            // Where it is the first time, what was configured for that.
            let first = catch_up.take().map(|first| first.rows);
            let rows = first.unwrap_or(Rows::Unpublished);
            *catch_up = Some(CatchUp::new(rows, Some(now.clone())));
        }
        begun
    }

    // Scans.

    /// Begins a scan, behind the last one. Errors: the log went back.
    pub fn begin(&mut self, scan: Scan) -> Result<()> {
        let commit_lsn = scan.lsn.max(self.publisher.ledger.received().end_lsn);
        self.publisher
            .ledger
            .begin(commit_lsn)
            .map_err(contradiction)?;
        self.progress = Some(Progress {
            scan,
            commit_lsn,
            is_ended: false,
            counts: ScanCounts::default(),
            checkpoints: Checkpoints::default(),
        });
        Ok(())
    }

    /// Whether the next row may be taken (P4).
    pub fn has_room(&self) -> bool {
        let scans = self.progress.as_ref().is_some_and(|it| !it.is_ended);
        scans && self.publisher.has_room()
    }

    /// How far the scan is.
    pub fn counts(&self) -> ScanCounts {
        let progress = self.progress.as_ref();
        progress.map_or(ScanCounts::default(), |it| it.counts)
    }

    /// Publishes the next row, unless it is published; none follows the last one.
    pub fn take(
        &mut self,
        row: Option<&impl TableRow>,
        committed_at_us: i64,
        now: Instant,
    ) -> Result<(), Untaken> {
        let Some(progress) = &mut self.progress else {
            return Ok(());
        };
        let Some(row) = row else {
            progress.is_ended = true;
            return Ok(());
        };
        let Progress { scan, counts, .. } = progress;
        let place = Place {
            commit_lsn: progress.commit_lsn,
            index: counts.sent,
            via: scan.via,
        };
        let event = scan.polled.event(place, scan.outbox, row.values());
        let mut event = event.map_err(|(column, fault)| Untaken::Unfit { column, fault })?;
        counts.read += 1;
        failpoint::reached("read");
        // Without a row key, another row could be taken for this one.
        if !self.delivered.is_empty()
            && event.row.has_key()
            && self.delivered.contains(&event.row_id())
        {
            return Ok(());
        }
        let Some(outbox) = self.publisher.setup.outboxes.get(scan.outbox) else {
            return Ok(());
        };
        let says_for_itself = outbox.upkeep.says_for_itself();
        if let Some(version) = row.version().filter(|_| !says_for_itself) {
            if !self.published.is_new(version) {
                return Ok(());
            }
            let published = scan.published.as_ref();
            if published.is_some_and(|published| published.has(version.xid)) {
                if self.published.is_rewritten(version) {
                    return Ok(());
                }
                if let Some(rows) = self.publisher.judge.rows.get_mut(event.outbox) {
                    rows.copied(&event, &self.publisher.setup.slot);
                }
            }
        }
        event.committed_at_us = committed_at_us;
        let published = self.publisher.publish(&event, now);
        published.map_err(Untaken::Failed)?;
        counts.sent += 1;
        if let Some(outbox) = self.publisher.setup.outboxes.get(scan.outbox) {
            let key = row.key(outbox);
            let every = self.checkpoint_rows;
            progress.checkpoints.took(counts.sent, key, every);
        }
        Ok(())
    }

    /// Whether all that was taken is acked, and written back where rows are.
    pub fn is_drained(&self) -> bool {
        self.publisher.is_drained() && self.publisher.write_backs.is_over()
    }

    /// What is due at `now`.
    pub fn look(&mut self, now: Duration) -> ScanStep {
        self.advance();
        let Some(progress) = &self.progress else {
            return ScanStep::Done;
        };
        let is_ended = progress.is_ended;
        if is_ended && self.is_drained() {
            return ScanStep::Done;
        }
        // More rows are on their way until the last was read, and what the last one says of all is
        // stored with it.
        self.publisher.transaction.look(false, true, now);
        if !is_ended && self.publisher.is_drained() && self.publisher.transaction.is_due(false) {
            // The stored position is that after the last row in the transaction.
            self.advance_to_last();
            return ScanStep::Store;
        }
        if self.store_at().is_none_or(|at| now < at) {
            return ScanStep::Wait;
        }
        self.next_store = now + STORE_INTERVAL;
        ScanStep::Store
    }

    /// When progress is stored next; with transactions of the bus, their end says.
    fn store_at(&self) -> Option<Duration> {
        let is_used = self.publisher.transaction.is_used();
        (self.counts().sent > 0 && !is_used).then_some(self.next_store)
    }

    /// When [`TableRead::look`] has something due although nothing happens.
    pub fn wake_at(&self) -> Option<Duration> {
        let transaction = &self.publisher.transaction;
        match transaction.is_used() {
            true => transaction.wake_at(false),
            false => self.store_at(),
        }
    }

    /// Notes the last checkpoint that is delivered, and marked where rows are.
    fn advance(&mut self) {
        self.advance_to(self.publisher.completed());
    }

    /// As [`TableRead::advance`], with the last row that was taken as a checkpoint.
    pub fn advance_to_last(&mut self) {
        if let Some(progress) = &mut self.progress {
            progress.checkpoints.note_last();
        }
        self.advance();
    }

    /// Notes the last checkpoint up to `position`.
    fn advance_to(&mut self, position: Position) {
        let (Some(progress), Some(catch_up)) = (&mut self.progress, &mut self.stored.catch_up)
        else {
            return;
        };
        let count = position.delivered_of(progress.commit_lsn);
        progress.checkpoints.reached(count, &mut catch_up.after);
    }

    /// The scan is done. Gives how many of its rows were published. Errors: not all of them are.
    pub fn end(&mut self) -> Result<u64> {
        self.advance_to_last();
        let Some(Progress {
            commit_lsn, counts, ..
        }) = self.progress.take()
        else {
            return Ok(0);
        };
        let end_lsn = Lsn::new(commit_lsn.as_u64() + 1);
        let ledger = &mut self.publisher.ledger;
        ledger.commit(commit_lsn, end_lsn).map_err(contradiction)?;
        Ok(counts.sent)
    }

    /// The scan ends before its last row. The next session publishes no delivered row again: its
    /// write-backs come first.
    pub fn interrupt(&mut self) {
        self.advance_to_last();
        self.advance_to(self.publisher.ledger.delivered());
        self.progress = None;
    }

    /// Everything that `until` sees was read, and is published but for what was left out. The log
    /// was at `lsn`, and on disk up to `flushed`, after that snapshot was taken. Without the scan
    /// of `xmin`, copied rows may be left that it sees.
    pub fn is_read(&mut self, until: Snapshot, lsn: Lsn, flushed: Option<Lsn>, scan: PollScan) {
        let before = self.stored.published.take();
        let savepoints = before
            .as_ref()
            .filter(|_| scan == PollScan::Column)
            .map(|before| self.published.savepoints(&before.savepoints));
        let read = Read {
            until,
            lsn,
            flushed,
            savepoints,
        };
        let rows = self.stored.catch_up.take().map(|catch_up| catch_up.rows);
        self.stored.published = Some(read.published(rows.as_ref(), before));
    }

    // Stores.

    /// Whether there is something to store. Errors: of the rows of a transaction of the bus not all
    /// are acked.
    pub fn must_store(&self) -> Result<bool> {
        let transaction = &self.publisher.transaction;
        if self.kept.as_ref() == Some(&self.stored) && !transaction.is_open() {
            return Ok(false);
        }
        if transaction.is_used() && !self.publisher.is_drained() {
            let what = "rows of a transaction of the bus are not acked; aborting it, and reading \
                        them again";
            return Err(Error::new(Kind::BusUnreachable, what));
        }
        Ok(true)
    }

    /// Whether progress may be stored where a scan failed. Without the lease, another relay may
    /// store.
    pub fn may_store_at_end(&self, has_lease: bool) -> bool {
        has_lease && self.progress.is_some()
    }

    /// It is stored. Gives the number of events that were committed with it, where that is so.
    pub fn was_stored(&mut self) -> Option<u64> {
        self.kept = Some(self.stored.clone());
        self.publisher.committed()
    }

    /// Leaves what this session could not write to the next one. `gives_way`: requested rows were
    /// read, and a stream is next.
    pub fn leave(&mut self, left: &mut Left, has_failed: bool, gives_way: bool) {
        if self.publisher.transaction.is_used() {
            // Nothing counts but what is committed.
            return;
        }
        left.write_backs = take(&mut self.publisher.write_backs);
        if has_failed {
            let found = take(&mut self.published);
            left.table_failed(&self.stored, found, gives_way);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::config::{DeliveryConfig, Guarantee};
    use crate::decode::RelationColumn;
    use crate::published_versions::TableFile;
    use crate::publisher::Setup;
    use crate::publisher::tests::{AckingBus, setup, stored};
    use crate::testing::{COLUMNS, outbox};

    struct Versioned(RowVersion);

    impl TableRow for Versioned {
        fn values(&self) -> impl ExactSizeIterator<Item = Option<&[u8]>> {
            let values = ["a", "order", "1", "placed", "{}"];
            values.map(|value| Some(value.as_bytes())).into_iter()
        }

        fn key(&self, _: &OutboxConfig) -> Key {
            Key {
                order: None,
                id: "a".to_owned(),
                rest: Vec::new(),
            }
        }

        fn version(&self) -> Option<RowVersion> {
            Some(self.0)
        }
    }

    fn file(filenode: u32, changed_by: u64) -> TableFile {
        TableFile {
            oid: 5,
            filenode,
            changed_by,
        }
    }

    fn scan() -> Scan {
        let column = |name: &str| RelationColumn {
            name: name.to_owned(),
            type_oid: 25,
            type_modifier: -1,
        };
        Scan {
            outbox: 0,
            polled: Polled::new(&outbox(), COLUMNS.map(column).to_vec()).unwrap(),
            lsn: Lsn::new(100),
            via: Via::Table,
            published: None,
        }
    }

    /// The outcomes of versions with this transaction in their column and this `xmin`: whether each
    /// is published.
    fn poll(read: &mut TableRead<AckingBus>, versions: &[(Option<u64>, u64)]) -> Vec<bool> {
        let now = "40:40:".parse().unwrap();
        read.begin_poll(&now, PollScan::Xmin);
        let scan = Scan {
            published: read.stored.published.clone(),
            ..scan()
        };
        read.begin(scan).unwrap();
        let take = |(xid, xmin): &(Option<u64>, u64)| {
            let row = Versioned(RowVersion {
                xid: *xid,
                xmin: *xmin,
            });
            let before = read.counts().sent;
            read.take(Some(&row), 0, Instant::now()).unwrap();
            read.counts().sent > before
        };
        let outcomes = versions.iter().map(take).collect();
        let publisher = &mut read.publisher;
        let mut context = Context::from_waker(Waker::noop());
        let told = pin!(publisher.receive_deliveries()).poll(&mut context);
        assert!(told.is_ready());
        publisher.delivered().unwrap();
        read.take(None::<&Versioned>, 0, Instant::now()).unwrap();
        assert_eq!(read.look(Duration::ZERO), ScanStep::Done);
        read.end().unwrap();
        read.published.end(now.xmax());
        outcomes
    }

    /// P14: the position would be committed without them.
    #[test]
    fn nothing_is_stored_while_rows_of_a_transaction_are_not_acked() {
        let setup = Setup {
            refuses_each: false,
            ..setup(DeliveryConfig {
                guarantee: Guarantee::ExactlyOnce,
                ..DeliveryConfig::default()
            })
        };
        let publisher = Publisher::new(&setup, Position::default(), AckingBus::default());
        let found = PublishedVersions::default();
        let known = stored(1, 0);
        let mut read = TableRead::new(publisher.unwrap(), known, HashSet::new(), found, 1);
        assert!(read.must_store().unwrap());
        read.begin(scan()).unwrap();
        let row = Versioned(RowVersion {
            xid: None,
            xmin: 25,
        });
        read.take(Some(&row), 0, Instant::now()).unwrap();
        assert_eq!(read.must_store().unwrap_err().kind(), Kind::BusUnreachable);
    }

    #[test]
    fn a_version_is_published_once_and_a_copy_is_told_unless_its_table_was_rewritten() {
        let setup = setup(DeliveryConfig::default());
        let publisher = Publisher::new(&setup, Position::default(), AckingBus::default());
        let pair = crate::ledger::trail::Pair {
            snapshot: "20:20:".parse().unwrap(),
            lsn: Lsn::new(50),
        };
        let known = Stored {
            published: Some(Published::at(pair)),
            ..stored(1, 0)
        };
        let found = PublishedVersions::default();
        let mut read = TableRead::new(publisher.unwrap(), known, HashSet::new(), found, 1);
        read.published.looked_at(vec![file(1, 9)]);
        // A new row; a copy of a published one; one of a savepoint that is new.
        let versions = [(Some(25), 25), (Some(15), 30), (Some(26), 27)];
        assert_eq!(poll(&mut read, &versions), [true, true, true]);
        assert_eq!(read.publisher.judge.rows[0].copied, 1);
        assert_eq!(poll(&mut read, &versions), [false, false, false]);
        // A rewrite gives each row another `xmin`.
        assert!(read.published.looked_at(vec![file(2, 35)]));
        let versions = [(Some(15), 34), (Some(15), 36)];
        assert_eq!(poll(&mut read, &versions), [false, true]);
        assert_eq!(read.publisher.judge.rows[0].copied, 2);
    }
}
