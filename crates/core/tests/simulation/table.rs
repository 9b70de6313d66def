//! The relay at the table: it reads the rows that no slot sends, and makes a slot for the rest.
//!
//! The program's `relay/table.rs` and `table_loop.rs` do the same with SQL. Which rows are read,
//! and what is published after them, is the core's.

use std::collections::{HashSet, VecDeque};

use walrelay_core::catch_up::{CatchUp, Checkpoints, Read, Rows, Which};
use walrelay_core::error::{Error, Kind};
use walrelay_core::event::{Place, Polled, RowId, Via};
use walrelay_core::position::{Lsn, Position};
use walrelay_core::publisher::Publisher;
use walrelay_core::recovery::{RecoveryPlan, TableStart, TableTask};
use walrelay_core::sessions::Ended;
use walrelay_core::snapshot::Snapshot;
use walrelay_core::stored::Stored;

use super::broker::{Logged, Producer};
use super::plan::Path;
use super::server::{Row, columns, row_of};
use super::world::{World, epoch};

/// Rows between two places where a killed relay can go on.
const CHECKPOINT_ROWS: u64 = 3;

/// A session at the table.
pub(super) struct Reading {
    pub(super) publisher: Publisher<Producer>,
    /// How far it is; what of it the store has.
    pub(super) stored: Stored,
    kept: Option<Stored>,
    stage: Stage,
    /// Whether write-backs of an earlier session come before all else.
    writes_first: bool,
    /// Where a slot is made.
    plan: Option<Box<RecoveryPlan>>,
    /// The version of the publication when the session began.
    publication_version: String,
    /// Rows that are published, whatever else is known.
    pub(super) delivered: HashSet<RowId>,
    scan: Option<Scan>,
    /// Rows that were set to pending again.
    asked: HashSet<RowId>,
}

/// What is to be done next. Each is stored before the next one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// An interrupted read is finished without its slot.
    Finish,
    Intend,
    MakeSlot,
    CatchUp,
    /// No slot can be made: all new rows are read, and so on.
    Poll,
    /// Rows that were set to pending again are read.
    Asked,
    Done,
}

/// To the ledger, all rows are one transaction.
struct Scan {
    rows: VecDeque<Row>,
    polled: Polled,
    read: Read,
    via: Via,
    commit_lsn: Lsn,
    sent: u64,
    checkpoints: Checkpoints,
}

impl Reading {
    pub(super) fn new(
        publisher: Publisher<Producer>,
        start: TableStart,
        publication_version: String,
    ) -> Reading {
        let mut asked = HashSet::new();
        let (stage, plan) = match start.task {
            TableTask::MakeSlot(plan) if plan.finishes => (Stage::Finish, Some(plan)),
            TableTask::MakeSlot(plan) => (Stage::Intend, Some(plan)),
            TableTask::GoOn => (Stage::CatchUp, None),
            TableTask::Poll(_) => (Stage::Poll, None),
            TableTask::Again(rows) => {
                asked.extend(rows);
                (Stage::Asked, None)
            }
        };
        Reading {
            writes_first: !publisher.write_backs.is_empty(),
            publisher,
            kept: None,
            stage,
            plan,
            publication_version,
            delivered: HashSet::new(),
            scan: None,
            asked,
            stored: start.stored,
        }
    }

    pub(super) fn is_of_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// The next session publishes no delivered row again: its write-backs come first.
    pub(super) fn advance_to_delivered(&mut self) {
        if let Some(scan) = &mut self.scan {
            scan.checkpoints.note_last();
        }
        self.advance_to(self.publisher.ledger.delivered());
    }

    /// Notes the last checkpoint up to `position`.
    fn advance_to(&mut self, position: Position) {
        let (Some(scan), Some(catch_up)) = (&mut self.scan, &mut self.stored.catch_up) else {
            return;
        };
        let count = position.delivered_of(scan.commit_lsn);
        scan.checkpoints.reached(count, &mut catch_up.after);
    }

    /// Everything that the scan's snapshot sees is read.
    fn is_read(&mut self, scan: Scan) {
        let rows = self.stored.catch_up.take().map(|catch_up| catch_up.rows);
        let before = self.stored.published.take();
        self.stored.published = Some(scan.read.published(rows.as_ref(), before));
    }
}

impl World {
    /// One thing happens to the session at the table.
    pub(super) fn read_on(&mut self) -> Result<(), Error> {
        // It waits for its store.
        if self.relay.storing.is_some() {
            return Ok(());
        }
        let reading = self.relay.reading.as_mut().unwrap();
        reading.writes_first &= !reading.publisher.write_backs.is_empty();
        if reading.writes_first {
            return Ok(());
        }
        if reading.scan.is_some() {
            return self.scan();
        }
        // An earlier session may have read more than it could store.
        match reading.stage {
            Stage::Finish if reading.kept.is_none() => {
                // The old position means nothing to the new slot.
                reading.stored.position = Position::default();
                reading.stored.published = reading.plan.as_mut().unwrap().published.take();
                return self.save();
            }
            Stage::CatchUp if reading.kept.is_none() => {
                self.reached.count(Path::ReadResumed, 1);
                return self.save();
            }
            Stage::Finish => {
                let until = reading.stored.catch_up.as_ref().unwrap().until.clone();
                let lsn = self.server.end();
                self.reached.count(Path::ReadFinished, 1);
                self.begin_scan(until.unwrap(), lsn);
            }
            Stage::Intend => {
                reading.stored.position = Position::default();
                let plan = reading.plan.take().unwrap();
                reading.stored.published = plan.published;
                let version = &reading.publication_version;
                reading.stored.publication_version.clone_from(version);
                reading.stored.catch_up = Some(CatchUp::new(plan.rows, None));
                reading.stage = Stage::MakeSlot;
                return self.save();
            }
            Stage::MakeSlot => {
                let (begins, snapshot) = self.server.make_slot(&mut self.random);
                reading.stored.position = Position::at(begins);
                reading.stored.catch_up.as_mut().unwrap().until = Some(snapshot);
                reading.stage = Stage::CatchUp;
                return self.save();
            }
            Stage::CatchUp => {
                let until = reading.stored.catch_up.as_ref().unwrap().until.clone();
                let lsn = reading.stored.position.end_lsn;
                self.begin_scan(until.unwrap(), lsn);
            }
            Stage::Poll => return self.poll(),
            Stage::Asked => {
                let lsn = self.server.end();
                self.begin_scan(self.server.snapshot(), lsn);
            }
            Stage::Done => self.session_done(Ended::Again),
        }
        Ok(())
    }

    /// A poll begins, unless a slot can take over.
    fn poll(&mut self) -> Result<(), Error> {
        let reading = self.relay.reading.as_mut().unwrap();
        let has_polled = reading.stored.catch_up.is_none() && reading.kept.is_some();
        if has_polled && !self.server.forbids(self.now) && self.random.bool() {
            self.reached.count(Path::HandedOver, 1);
            self.session_done(Ended::Again);
            return Ok(());
        }
        let begun = reading.stored.catch_up.take();
        let rows = begun
            .as_ref()
            .map_or(Rows::Unpublished, |it| it.rows.clone());
        let until = begun.as_ref().and_then(|it| it.until.clone());
        let until = until.unwrap_or_else(|| self.server.snapshot());
        let catch_up = begun.filter(|it| it.until.is_some());
        let catch_up = catch_up.unwrap_or_else(|| CatchUp::new(rows, Some(until.clone())));
        reading.stored.catch_up = Some(catch_up);
        if reading.kept.is_none() {
            // Rows that are left out now stay left out.
            return self.save();
        }
        self.reached.count(Path::Polled, 1);
        let lsn = self.server.end();
        self.begin_scan(until, lsn);
        Ok(())
    }

    fn begin_scan(&mut self, until: Snapshot, lsn: Lsn) {
        let reading = self.relay.reading.as_ref().unwrap();
        let outbox = &reading.publisher.setup.outboxes[0];
        let catch_up = reading.stored.catch_up.as_ref();
        let known = reading.stored.published.as_ref();
        let which = match catch_up {
            Some(catch_up) => catch_up.rows.which(known, outbox).expect("some rows"),
            None => Which::Where("the row was set to pending"),
        };
        let tables = self.tables.as_ref();
        let is_pending = |id: &RowId| tables.is_some_and(|tables| !tables.is_marked(id));
        let is_wanted = |row: &Row| match which {
            Which::All => true,
            Which::Pending => row_of(row.event, true).is_some_and(|id| is_pending(&id)),
            Which::Where(_) => {
                let id = row_of(row.event, true);
                id.is_some_and(|id| reading.asked.contains(&id) && is_pending(&id))
            }
            // None was copied, or has a savepoint.
            Which::Unpublished { snapshot, also, .. } => {
                !snapshot.sees(row.xid) && !also.contains(&row.xid)
            }
            Which::Since(_) => panic!("{which:?}"),
        };
        let after = catch_up.and_then(|it| it.after.as_ref());
        let is_left = |row: &Row| until.sees(row.xid) && after.is_none_or(|key| row.is_after(key));
        let rows = self.server.rows();
        let rows: VecDeque<Row> = rows.filter(|row| is_wanted(row) && is_left(row)).collect();
        self.has_read_pending |= which == Which::Pending;
        if reading.is_of_asked() {
            self.reached.count(Path::RequeuedRead, rows.len() as u64);
            rows.iter().for_each(|row| self.assert_asked(row.event));
        }
        let reading = self.relay.reading.as_mut().unwrap();
        let outbox = &reading.publisher.setup.outboxes[0];
        let commit_lsn = lsn.max(reading.publisher.ledger.received().end_lsn);
        reading.publisher.ledger.begin(commit_lsn).unwrap();
        reading.scan = Some(Scan {
            rows,
            polled: Polled::new(outbox, columns(outbox)).unwrap(),
            read: Read {
                until,
                lsn,
                flushed: None,
                savepoints: None,
            },
            via: if reading.is_of_asked() {
                Via::Replay
            } else {
                Via::Table
            },
            commit_lsn,
            sent: 0,
            checkpoints: Checkpoints::default(),
        });
    }

    /// A row is taken, or progress is stored, or all is read and published.
    fn scan(&mut self) -> Result<(), Error> {
        let reading = self.relay.reading.as_mut().unwrap();
        let publisher = &mut reading.publisher;
        publisher.retry_pending()?;
        let is_drained = publisher.is_drained();
        publisher.transaction.look(false, true, self.now);
        let is_due = publisher.transaction.is_due(false);
        let is_used = publisher.transaction.is_used();
        let completed = publisher.completed();
        reading.advance_to(completed);
        let scan = reading.scan.as_mut().unwrap();
        let is_written = reading.publisher.write_backs.is_empty();
        if scan.rows.is_empty() && is_drained && is_written {
            let end_lsn = Lsn::new(scan.commit_lsn.as_u64() + 1);
            let ledger = &mut reading.publisher.ledger;
            ledger.commit(scan.commit_lsn, end_lsn).unwrap();
            let scan = reading.scan.take().unwrap();
            if reading.stage == Stage::Asked {
                reading.stage = Stage::Done;
                return Ok(());
            }
            reading.is_read(scan);
            if reading.stage == Stage::Finish {
                let plan = reading.plan.as_mut().unwrap();
                plan.published = reading.stored.published.clone();
                plan.rows = Rows::Unpublished;
                reading.stage = Stage::Intend;
                return Ok(());
            }
            if reading.stage == Stage::Poll {
                reading.delivered.clear();
            } else {
                reading.stage = Stage::Done;
            }
            return self.save();
        }
        if is_due && is_drained && !scan.rows.is_empty() {
            // The stored position is that after the last row in the transaction.
            scan.checkpoints.note_last();
            reading.advance_to(completed);
            return self.save();
        }
        if !is_used && scan.sent > 0 && self.random.u8(0..4) == 0 {
            return self.save();
        }
        if !reading.publisher.has_room() {
            return Ok(());
        }
        let Some(row) = scan.rows.pop_front() else {
            return Ok(());
        };
        let event: Logged = row.event;
        let place = Place {
            commit_lsn: scan.commit_lsn,
            index: scan.sent,
            via: scan.via,
        };
        let has_topic = !self.broker.lock().unwrap().lacks_topic(event);
        let columns = &reading.publisher.setup.outboxes[0].columns;
        let value = |column: &String| row.value(column, has_topic);
        let values: Vec<_> = columns.iter().map(value).collect();
        let values = values
            .iter()
            .map(|value| value.as_deref().map(str::as_bytes));
        let event = scan.polled.event(place, 0, values).unwrap();
        if reading.delivered.contains(&event.row_id()) {
            self.reached.count(Path::LeftOut, 1);
            return Ok(());
        }
        reading.publisher.publish(&event, epoch() + self.now)?;
        scan.sent += 1;
        scan.checkpoints.took(scan.sent, row.key(), CHECKPOINT_ROWS);
        Ok(())
    }

    /// A store of progress begins.
    fn save(&mut self) -> Result<(), Error> {
        let reading = self.relay.reading.as_mut().unwrap();
        let transaction = &mut reading.publisher.transaction;
        if reading.kept.as_ref() == Some(&reading.stored) && !transaction.is_open() {
            return Ok(());
        }
        if transaction.is_used() && !reading.publisher.is_drained() {
            let what = "rows of a transaction of the bus are not acked";
            return Err(Error::new(Kind::BusUnreachable, what));
        }
        self.relay.storing = Some(reading.stored.clone());
        Ok(())
    }

    /// The store has the progress.
    pub(super) fn saved(&mut self, stored: Stored) {
        let reading = self.relay.reading.as_mut().unwrap();
        self.relay.process.left.stored(stored.clone());
        reading.publisher.committed();
        reading.kept = Some(stored);
    }
}
