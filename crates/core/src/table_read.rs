//! A session that reads tables: what it does next, which rows of a scan are published, how far that
//! has come, and what of it is stored before what. No I/O: the program makes the slot, queries,
//! writes rows back and stores.
//!
//! Which rows a query gives is in [`crate::catch_up`], and why a table is read in
//! [`crate::recovery`].

use std::collections::HashSet;
use std::mem::{replace, take};
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
use crate::recovery::{TableStart, TableTask};
use crate::sink::Sink;
use crate::snapshot::Snapshot;
use crate::stored::Stored;

/// How often progress is stored: events since then come again after a crash.
const STORE_INTERVAL: Duration = Duration::from_millis(250);
/// How long an idle poller may go without storing its snapshot.
const IDLE_STORE: Duration = Duration::from_secs(10);
/// How often a poller compares the `xmin` of every row at most, and the part of its time that this
/// may take: no index has `xmin`, so that each of these scans reads the whole table.
const XMIN_INTERVAL: Duration = Duration::from_secs(1);
const XMIN_SHARE: u32 = 50;
/// How often a poller looks whether there can be a slot by now.
const SLOT_INTERVAL: Duration = Duration::from_secs(10);
/// How long the creation of the slot may wait where the table can be polled instead.
const CREATION_MAX: Duration = Duration::from_secs(10);

/// What a session at the table does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableStep {
    /// Write back what an earlier session left: its rows would be read as pending.
    WriteBack,
    /// Store [`TableRead::stored`], and call [`TableRead::was_stored`].
    Store,
    /// Read what an interrupted read left, whose slot is gone, up to this snapshot, and call
    /// [`TableRead::is_read`].
    Finish(Snapshot),
    /// Make the slot, and call [`TableRead::slot_made`].
    MakeSlot,
    /// Read up to this snapshot, where the slot begins, and call [`TableRead::is_read`].
    CatchUp(Snapshot),
    /// Take a snapshot, and call [`TableRead::begin_poll`]; or [`TableRead::hand_over`], where
    /// there can be a slot.
    BeginPoll,
    /// Read as this says, and call [`TableRead::is_read`].
    Poll(Poll),
    /// Read these rows again. The session ends behind that.
    Again(Vec<RowId>),
    /// End the session: a slot has the rest, or can be made for it.
    End,
}

/// One of the reads of a poller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poll {
    /// The snapshot of an earlier session that had begun it; none where it is the one just taken.
    pub resumed: Option<Snapshot>,
    /// Whether the `xmin` of all rows is compared.
    pub scan: PollScan,
    /// The end of the log after the snapshot was taken.
    pub lsn: Lsn,
    /// How far the log was on disk then.
    pub flushed: Lsn,
    began: Duration,
    sent: u64,
}

/// When a poller hands over to a slot.
#[derive(Debug)]
pub struct HandOver {
    /// None: never.
    next_look: Option<Duration>,
    /// What a slot would have waited for at the last look. None: there was no look.
    held_by: Option<OldestPid>,
}

/// The backend of the oldest open transaction, where one is open. A prepared one has no backend.
pub type OldestPid = Option<Option<i32>>;

impl HandOver {
    /// A poller begins at `now`, and hands over if it `may_stream`.
    pub fn new(may_stream: bool, now: Duration) -> HandOver {
        HandOver {
            next_look: may_stream.then_some(now + SLOT_INTERVAL),
            held_by: None,
        }
    }

    /// Whether to look for what [`HandOver::looked`] takes.
    pub fn is_due(&self, now: Duration) -> bool {
        self.next_look.is_some_and(|at| at <= now)
    }

    /// Whether nothing holds up a slot, after a look at the oldest open transaction. The poller
    /// hands over then, if the server has what a slot needs.
    pub fn looked(&mut self, oldest: OldestPid, now: Duration) -> bool {
        self.next_look = Some(now + SLOT_INTERVAL);
        // The creation of a slot waits for open transactions, and nothing is published meanwhile.
        // One look is not enough.
        let before = self.held_by.replace(oldest);
        !(oldest.is_some() && before.is_none_or(|before| before == oldest))
    }

    /// Whether a slot whose creation has `waited` is given up: the table is polled instead, if it
    /// `can_be_polled`.
    pub fn gives_way(can_be_polled: bool, waited: Duration) -> bool {
        can_be_polled && waited >= CREATION_MAX
    }
}

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
    /// What the session is for.
    pub task: TableTask,
    /// What follows, once what was done before is stored.
    step: TableStep,
    /// Rows that are published, whatever else is known.
    pub delivered: HashSet<RowId>,
    /// Row versions that a poller has published.
    pub published: PublishedVersions,
    progress: Option<Progress>,
    checkpoint_rows: u64,
    next_store: Duration,
    next_idle_store: Duration,
    next_xmin_scan: Duration,
}

impl<S: Sink> TableRead<S> {
    /// A session begins as `start` says. After one of `checkpoint_rows` rows a killed relay can go
    /// on.
    pub fn new(
        publisher: Publisher<S>,
        start: TableStart,
        delivered: HashSet<RowId>,
        published: PublishedVersions,
        checkpoint_rows: u64,
    ) -> TableRead<S> {
        TableRead {
            publisher,
            stored: start.stored,
            kept: None,
            task: start.task,
            step: TableStep::WriteBack,
            delivered,
            published,
            progress: None,
            checkpoint_rows,
            next_store: Duration::ZERO,
            next_idle_store: Duration::ZERO,
            next_xmin_scan: Duration::ZERO,
        }
    }

    // What precedes a scan.

    /// What is next at `now`. Errors: those of [`TableRead::must_store`].
    pub fn next(&mut self, now: Duration) -> Result<TableStep> {
        if self.step == TableStep::WriteBack && self.publisher.write_backs.is_empty() {
            self.begin_task();
        }
        let must_store = match &self.step {
            // The store has what it begins with.
            TableStep::WriteBack | TableStep::Again(_) => false,
            // From time to time, and after rows.
            TableStep::BeginPoll => self.kept.is_some() && self.next_idle_store <= now,
            // Rows that are left out now stay left out, also for the next relay.
            TableStep::Poll(_) => self.kept.is_none(),
            // An earlier session may have read more than it could store.
            TableStep::Finish(_)
            | TableStep::MakeSlot
            | TableStep::CatchUp(_)
            | TableStep::Store
            | TableStep::End => true,
        };
        if must_store && self.must_store()? {
            self.next_idle_store = now + IDLE_STORE;
            return Ok(TableStep::Store);
        }
        Ok(self.step.clone())
    }

    fn begin_task(&mut self) {
        let begun = self.stored.begun_until();
        self.step = match (&self.task, begun) {
            (TableTask::MakeSlot(plan), Some(until)) if plan.finishes => {
                // Once a row is published, no slot may go on from what was stored before: the old
                // position means nothing to the new slot.
                self.stored.position = Position::default();
                self.stored.published.clone_from(&plan.published);
                TableStep::Finish(until)
            }
            (TableTask::MakeSlot(plan), _) => {
                self.stored.published.clone_from(&plan.published);
                plan.intend(plan.rows.clone(), &mut self.stored);
                TableStep::MakeSlot
            }
            (TableTask::GoOn, Some(until)) => TableStep::CatchUp(until),
            (TableTask::GoOn, None) => TableStep::End,
            (TableTask::Poll(_), _) => TableStep::BeginPoll,
            (TableTask::Again(rows), _) => TableStep::Again(rows.clone()),
        };
    }

    /// The slot `begins` there, and has all that `snapshot` does not see.
    pub fn slot_made(&mut self, begins: Lsn, snapshot: Snapshot) {
        self.stored.position = Position::at(begins);
        if let Some(catch_up) = &mut self.stored.catch_up {
            catch_up.until = Some(snapshot.clone());
        }
        self.step = TableStep::CatchUp(snapshot);
    }

    /// A poll begins at `now`, with this snapshot. After that, the end of the log was at `lsn`, and
    /// on disk up to `flushed`.
    pub fn begin_poll(&mut self, snapshot: &Snapshot, lsn: Lsn, flushed: Lsn, now: Duration) {
        let scan = match self.next_xmin_scan <= now {
            true => PollScan::Xmin,
            false => PollScan::Column,
        };
        // It finds no row by an `xmin` below that of the last scan that compared all of them.
        let published = self.stored.published.as_ref();
        let oldest = published.map(|published| published.copies().xmin());
        self.published.begin(scan, oldest.unwrap_or_default());
        let resumed = self.stored.begun_until();
        if resumed.is_none() {
            let catch_up = &mut self.stored.catch_up;
            // Where it is the first time, what was configured for that.
            let first = catch_up.take().map(|first| first.rows);
            let rows = first.unwrap_or(Rows::Unpublished);
            *catch_up = Some(CatchUp::new(rows, Some(snapshot.clone())));
        }
        self.step = TableStep::Poll(Poll {
            resumed,
            scan,
            lsn,
            flushed,
            began: now,
            sent: 0,
        });
    }

    /// There can be a slot by now, which is better than polling.
    pub fn hand_over(&mut self) {
        self.step = TableStep::End;
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
        self.advance_to(self.publisher.completed());
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

    /// Notes the last checkpoint that is delivered, and marked where rows are; the last row that was
    /// taken is one.
    pub fn advance_to_last(&mut self) {
        if let Some(progress) = &mut self.progress {
            progress.checkpoints.note_last();
        }
        self.advance_to(self.publisher.completed());
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
        if let TableStep::Poll(poll) = &mut self.step {
            poll.sent += counts.sent;
        }
        Ok(counts.sent)
    }

    /// The scan ends before its last row. The next session publishes no delivered row again: its
    /// write-backs come first.
    pub fn interrupt(&mut self) {
        self.advance_to_last();
        self.advance_to(self.publisher.ledger.delivered());
        self.progress = None;
    }

    /// Everything that the snapshot of this step sees was read by `now`, and is published but for
    /// what was left out. After that snapshot was taken, the end of the log was at `lsn`, and on
    /// disk up to `flushed`.
    pub fn is_read(&mut self, lsn: Lsn, flushed: Option<Lsn>, now: Duration) {
        let Some(CatchUp {
            rows,
            until: Some(until),
            ..
        }) = self.stored.catch_up.take()
        else {
            return;
        };
        // Rows that the slot delivered are left out of the first read only; later they are
        // requested again, or others with these ids.
        self.delivered.clear();
        let step = replace(&mut self.step, TableStep::End);
        let before = self.stored.published.take();
        let mut savepoints = None;
        if let TableStep::Poll(poll) = &step {
            // Rows that the process before this one read are not remembered.
            if poll.resumed.is_none() {
                self.published.end(until.xmax());
            }
            // Without the scan of `xmin`, copied rows may be left that the snapshot sees.
            savepoints = before
                .as_ref()
                .filter(|_| poll.scan == PollScan::Column)
                .map(|before| self.published.savepoints(&before.savepoints));
        }
        let read = Read {
            until,
            lsn,
            flushed,
            savepoints,
        };
        self.stored.published = Some(read.published(Some(&rows), before));
        match (step, &self.task) {
            (TableStep::Finish(_), TableTask::MakeSlot(plan)) => {
                plan.intend(Rows::Unpublished, &mut self.stored);
                self.step = TableStep::MakeSlot;
            }
            (TableStep::Poll(poll), _) => self.polled(&poll, now),
            _ => {}
        }
    }

    fn polled(&mut self, poll: &Poll, now: Duration) {
        if poll.scan == PollScan::Xmin && poll.resumed.is_none() {
            let took = now.saturating_sub(poll.began);
            self.next_xmin_scan = poll.began + took.saturating_mul(XMIN_SHARE).max(XMIN_INTERVAL);
        }
        if poll.sent > 0 {
            self.next_idle_store = now;
        }
        self.step = TableStep::BeginPoll;
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

    /// Leaves what this session could not write to the next one.
    pub fn leave(&mut self, left: &mut Left, has_failed: bool) {
        // What was read is known by its progress; in a transaction, once that is committed.
        let transaction = &self.publisher.transaction;
        if !transaction.is_used() || self.kept.as_ref() == Some(&self.stored) {
            left.inside = take(&mut self.delivered).into_iter().collect();
        }
        if self.publisher.transaction.is_used() {
            // Nothing counts but what is committed.
            return;
        }
        left.write_backs = take(&mut self.publisher.write_backs);
        if has_failed {
            let gives_way = self.task.gives_way();
            left.table_failed(&self.stored, take(&mut self.published), gives_way);
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
    use crate::publisher::write_back::{WriteBack, WriteBacks};
    use crate::recovery::RecoveryPlan;
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
        read.begin_poll(&now, Lsn::ZERO, Lsn::ZERO, Duration::ZERO);
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

    fn reading(guarantee: Guarantee, task: TableTask, stored: Stored) -> TableRead<AckingBus> {
        let setup = Setup {
            refuses_each: guarantee == Guarantee::AtLeastOnce,
            ..setup(DeliveryConfig {
                guarantee,
                ..DeliveryConfig::default()
            })
        };
        let publisher = Publisher::new(&setup, Position::default(), AckingBus::default());
        let start = TableStart {
            task,
            stored,
            is_altered: false,
            notes: Vec::new(),
        };
        let found = PublishedVersions::default();
        TableRead::new(publisher.unwrap(), start, HashSet::new(), found, 1)
    }

    fn polling() -> TableTask {
        TableTask::Poll("no slot".to_owned())
    }

    /// The next step, before which `stored` is stored.
    fn stores(read: &mut TableRead<AckingBus>, now: Duration) -> TableStep {
        assert_eq!(read.next(now).unwrap(), TableStep::Store);
        read.was_stored();
        read.next(now).unwrap()
    }

    fn snapshot(text: &str) -> Snapshot {
        text.parse().unwrap()
    }

    #[test]
    fn each_step_of_a_lost_slot_is_stored_before_the_next() {
        let plan = RecoveryPlan {
            rows: Rows::All,
            published: None,
            publication_version: "2".to_owned(),
            finishes: true,
            cause: "the slot is lost".to_owned(),
            notes: Vec::new(),
        };
        let begun = Stored {
            catch_up: Some(CatchUp::new(Rows::All, Some(snapshot("9:9:")))),
            ..stored(1, 50)
        };
        let task = TableTask::MakeSlot(Box::new(plan));
        let mut read = reading(Guarantee::AtLeastOnce, task, begun);
        let now = Duration::ZERO;
        let step = stores(&mut read, now);
        assert_eq!(step, TableStep::Finish(snapshot("9:9:")));
        // No slot goes on from there.
        assert!(read.stored.is_polled());
        read.is_read(Lsn::new(60), None, now);
        assert_eq!(stores(&mut read, now), TableStep::MakeSlot);
        let catch_up = read.stored.catch_up.clone().unwrap();
        assert_eq!(catch_up, CatchUp::new(Rows::Unpublished, None));
        assert_eq!(read.stored.outboxes.publication_version, "2");
        read.slot_made(Lsn::new(70), snapshot("12:12:"));
        let step = stores(&mut read, now);
        assert_eq!(step, TableStep::CatchUp(snapshot("12:12:")));
        assert_eq!(read.stored.position, Position::at(Lsn::new(70)));
        read.is_read(Lsn::new(70), None, now);
        assert_eq!(stores(&mut read, now), TableStep::End);
        let published = read.stored.published.unwrap();
        assert_eq!(published.pair.snapshot, snapshot("12:12:"));
        assert_eq!(read.stored.catch_up, None);
    }

    #[test]
    fn a_poller_stores_before_its_first_rows_and_then_from_time_to_time_and_at_the_end() {
        let mut read = reading(Guarantee::AtLeastOnce, polling(), stored(1, 0));
        let poll = |read: &mut TableRead<AckingBus>, xmax: u64, now: Duration| {
            assert_eq!(read.next(now).unwrap(), TableStep::BeginPoll);
            let taken = snapshot(&format!("{xmax}:{xmax}:"));
            read.begin_poll(&taken, Lsn::new(xmax), Lsn::new(xmax), now);
        };
        let scans = |step: &TableStep, scan: PollScan| matches!(step, TableStep::Poll(poll) if poll.scan == scan);
        let second = Duration::from_secs(1);
        poll(&mut read, 20, Duration::ZERO);
        let step = stores(&mut read, Duration::ZERO);
        assert!(scans(&step, PollScan::Xmin));
        // A scan that compares all rows takes a small part of the time.
        read.is_read(Lsn::new(20), None, second);
        poll(&mut read, 30, second * 9);
        let step = read.next(second * 9).unwrap();
        assert!(scans(&step, PollScan::Column));
        read.is_read(Lsn::new(30), None, second * 9);
        assert!(matches!(
            stores(&mut read, second * 10),
            TableStep::BeginPoll
        ));
        poll(&mut read, 40, second * 50);
        let step = read.next(second * 50).unwrap();
        assert!(scans(&step, PollScan::Xmin));
        read.is_read(Lsn::new(40), None, second * 50);
        assert!(matches!(
            stores(&mut read, second * 50),
            TableStep::BeginPoll
        ));
        poll(&mut read, 50, second * 51);
        read.is_read(Lsn::new(50), None, second * 51);
        read.hand_over();
        assert_eq!(stores(&mut read, second * 51), TableStep::End);
    }

    #[test]
    fn rows_are_written_back_before_any_is_read() {
        let mut read = reading(Guarantee::AtLeastOnce, polling(), stored(1, 0));
        let row = RowId::new(0, std::iter::once(b"1".as_slice()));
        let acked = WriteBack::Acked(row);
        let write_backs = &mut read.publisher.write_backs;
        write_backs.push(Position::default(), acked, None, 0);
        assert_eq!(read.next(Duration::ZERO).unwrap(), TableStep::WriteBack);
        read.publisher.write_backs = WriteBacks::default();
        assert_eq!(read.next(Duration::ZERO).unwrap(), TableStep::BeginPoll);
    }

    /// P14: the position would be committed without them.
    #[test]
    fn nothing_is_stored_while_rows_of_a_transaction_are_not_acked() {
        let mut read = reading(Guarantee::ExactlyOnce, polling(), stored(1, 0));
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
        let pair = crate::ledger::trail::Pair {
            snapshot: "20:20:".parse().unwrap(),
            lsn: Lsn::new(50),
        };
        let known = Stored {
            published: Some(Published::at(pair)),
            ..stored(1, 0)
        };
        let mut read = reading(Guarantee::AtLeastOnce, polling(), known);
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

    #[test]
    fn delivered_rows_are_known_until_the_table_is_read() {
        let row = RowId::new(0, std::iter::once(b"a".as_slice()));
        for (is_read, has_failed, expected) in [
            (false, false, 1),
            (false, true, 1),
            (true, false, 0),
            (true, true, 0),
        ] {
            let plan = RecoveryPlan {
                rows: Rows::Unpublished,
                published: None,
                publication_version: "2".to_owned(),
                finishes: false,
                cause: "the slot is lost".to_owned(),
                notes: Vec::new(),
            };
            let task = TableTask::MakeSlot(Box::new(plan));
            let mut read = reading(Guarantee::AtLeastOnce, task, stored(1, 1));
            read.delivered.insert(row.clone());
            let mut left = Left::of("a".to_owned());
            left.inside.push(row.clone());
            assert_eq!(read.next(Duration::ZERO).unwrap(), TableStep::Store);
            read.was_stored();
            if is_read {
                read.slot_made(Lsn::new(8), "5:5:".parse().unwrap());
                read.is_read(Lsn::new(8), None, Duration::ZERO);
            }
            // The creation of the slot waits, and the table is polled next.
            read.leave(&mut left, has_failed);
            assert_eq!(left.inside.len(), expected, "{is_read} {has_failed}");
        }
    }

    #[test]
    fn a_poller_hands_over_once_no_transaction_holds_up_a_slot() {
        let mut looked_at = Duration::ZERO;
        let mut hand_over = HandOver::new(true, looked_at);
        let pid = |pid| Some(Some(pid));
        for (oldest, expected) in [
            // Nobody knows how long it has been open.
            (pid(1), false),
            (pid(1), false),
            // They are short.
            (pid(2), true),
            (None, true),
            (pid(3), true),
            // A prepared one.
            (Some(None), true),
            (Some(None), false),
        ] {
            let now = looked_at + SLOT_INTERVAL;
            assert!(!hand_over.is_due(now - Duration::from_millis(1)));
            assert!(hand_over.is_due(now));
            assert_eq!(hand_over.looked(oldest, now), expected, "{oldest:?}");
            looked_at = now;
        }
        let polls = HandOver::new(false, Duration::ZERO);
        assert!(!polls.is_due(Duration::MAX));
    }

    #[test]
    fn a_slot_whose_creation_waits_is_given_up_where_the_table_can_be_polled() {
        let short = CREATION_MAX - Duration::from_millis(1);
        assert!(!HandOver::gives_way(true, short));
        assert!(HandOver::gives_way(true, CREATION_MAX));
        assert!(!HandOver::gives_way(false, Duration::MAX));
    }
}
