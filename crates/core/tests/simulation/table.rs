//! The relay at the table: it reads the rows that no slot sends, and makes a slot for the rest.
//!
//! The program's `relay/table.rs` and `table_loop.rs` do the same with SQL. The core says which step
//! is next, which rows are read, what of them is published and what is stored.

use std::collections::VecDeque;
use std::time::Duration;

use walrelay_core::catch_up::{Key, Rows, Which};
use walrelay_core::config::OutboxConfig;
use walrelay_core::error::Error;
use walrelay_core::event::{Polled, RowId, Via};
use walrelay_core::position::Lsn;
use walrelay_core::published_versions::{PublishedVersions, RowVersion};
use walrelay_core::publisher::Publisher;
use walrelay_core::recovery::{TableStart, TableTask};
use walrelay_core::sessions::Ended;
use walrelay_core::snapshot::Snapshot;
use walrelay_core::stored::Stored;
use walrelay_core::table_read::{
    HandOver, Scan, ScanStep, TableRead, TableRow, TableStep, Untaken,
};

use walrelay_spec::trace::Step;

use super::broker::Producer;
use super::plan::Path;
use super::server::{Row, TABLE_OID, columns, row_of};
use super::world::{World, epoch};

/// Rows between two places where a killed relay can go on.
const CHECKPOINT_ROWS: u64 = 3;

/// A session at the table.
pub(super) struct Reading {
    pub(super) read: TableRead<Producer>,
    hand_over: HandOver,
    query: Option<Query>,
}

/// A query that was begun.
struct Query {
    /// Those that it has still to give.
    rows: VecDeque<Row>,
    lsn: Lsn,
}

/// A row, and the values of its columns.
struct Given {
    row: Row,
    values: Vec<Option<String>>,
}

impl TableRow for Given {
    fn values(&self) -> impl ExactSizeIterator<Item = Option<&[u8]>> {
        let values = self.values.iter();
        values.map(|value| value.as_deref().map(str::as_bytes))
    }

    fn key(&self, _: &OutboxConfig) -> Key {
        self.row.key()
    }

    /// None was copied, or has a savepoint.
    fn version(&self) -> Option<RowVersion> {
        None
    }
}

impl Reading {
    pub(super) fn new(
        publisher: Publisher<Producer>,
        start: TableStart,
        delivered: Vec<RowId>,
        now: Duration,
    ) -> Reading {
        let delivered = delivered.into_iter().collect();
        let found = PublishedVersions::default();
        Reading {
            read: TableRead::new(publisher, start, delivered, found, CHECKPOINT_ROWS),
            hand_over: HandOver::new(true, now),
            query: None,
        }
    }

    pub(super) fn scans(&self) -> bool {
        self.query.is_some()
    }
}

fn failed(untaken: Untaken) -> Error {
    match untaken {
        Untaken::Failed(error) => error,
        Untaken::Unfit { column, fault } => panic!("{column} {fault}"),
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
        if reading.query.is_some() {
            return self.scan();
        }
        match reading.read.next(self.now)? {
            TableStep::WriteBack => {}
            TableStep::Store => return self.save(),
            TableStep::Finish(until) => {
                self.reached.count(Path::ReadFinished, 1);
                self.begin_scan(until, self.server.end());
            }
            TableStep::MakeSlot => self.make_slot(),
            TableStep::CatchUp(until) => {
                self.reached.count(
                    Path::ReadResumed,
                    u64::from(reading.read.task == TableTask::GoOn),
                );
                let lsn = reading.read.stored.position.end_lsn;
                self.begin_scan(until, lsn);
            }
            TableStep::BeginPoll => self.begin_poll()?,
            TableStep::Poll(poll) => {
                self.reached.count(Path::Polled, 1);
                self.relay.process.health.has_postgres();
                let begun = reading.read.stored.begun_until();
                self.begin_scan(begun.expect("a snapshot"), poll.lsn);
            }
            TableStep::Again(_) => self.begin_scan(self.server.snapshot(), self.server.end()),
            TableStep::End => self.session_done(Ended::Again),
        }
        Ok(())
    }

    /// The slot is made, or given up where its creation waits for too long.
    fn make_slot(&mut self) {
        let waits = self.server.oldest_running().is_some() && self.random.u8(0..4) == 0;
        let waited = Duration::from_secs(self.random.u64(0..20));
        if waits && HandOver::gives_way(self.server.has_keys, waited) {
            self.server.drop_slot();
            self.note(Step::SlotLost);
            self.reached.count(Path::SlotHeld, 1);
            self.session_done(Ended::Held("the model waits for long".to_owned()));
            return;
        }
        let (begins, snapshot) = self.server.make_slot(&mut self.random);
        self.note_slot(Some(self.relay.number));
        let reading = self.relay.reading.as_mut().unwrap();
        reading.read.slot_made(begins, snapshot);
    }

    /// A poll begins, unless a slot can take over.
    fn begin_poll(&mut self) -> Result<(), Error> {
        self.look_at_catalogs()?;
        let Reading {
            read, hand_over, ..
        } = self.relay.reading.as_mut().unwrap();
        if read.kept.is_some() && hand_over.is_due(self.now) {
            let oldest = self.server.oldest_running();
            if hand_over.looked(oldest, self.now) && !self.server.forbids(self.now) {
                self.reached.count(Path::HandedOver, 1);
                read.hand_over();
                return Ok(());
            }
        }
        let end = self.server.end();
        read.begin_poll(&self.server.snapshot(), end, end, self.now);
        Ok(())
    }

    fn begin_scan(&mut self, until: Snapshot, lsn: Lsn) {
        let reading = self.relay.reading.as_mut().unwrap();
        let is_of_asked = reading.read.task.gives_way();
        let stored = &mut reading.read.stored;
        let outbox = &reading.read.publisher.setup.outboxes[0];
        let columns = columns(outbox);
        let polled = Polled::new(outbox, columns).unwrap();
        let order = Some("payload".to_owned());
        let catch_up = stored.catch_up.as_mut();
        let after = catch_up.and_then(|it| it.begin_table(TABLE_OID, order, outbox));
        let rows = match &stored.catch_up {
            Some(catch_up) => &catch_up.rows,
            None => &Rows::None,
        };
        let known = stored.published.as_ref();
        let which = match is_of_asked {
            true => Which::Where("the row was set to pending again"),
            false => rows.which(known, outbox).expect("some rows"),
        };
        let tables = self.tables.as_ref();
        let is_pending = |id: &RowId| tables.is_some_and(|tables| !tables.is_marked(id));
        let task = &reading.read.task;
        let is_asked = |id: &RowId| matches!(task, TableTask::Again(rows) if rows.contains(id));
        let is_wanted = |row: &Row| match which {
            Which::All => true,
            Which::Pending => row_of(row.event, true).is_some_and(|id| is_pending(&id)),
            Which::Where(_) => {
                let id = row_of(row.event, true);
                id.is_some_and(|id| is_asked(&id) && is_pending(&id))
            }
            // None was copied, or has a savepoint.
            Which::Unpublished { snapshot, also, .. } => {
                !snapshot.sees(row.xid) && !also.contains(&row.xid)
            }
            Which::Since(_) => panic!("{which:?}"),
        };
        let after = after.as_ref();
        let is_left = |row: &Row| until.sees(row.xid) && after.is_none_or(|key| row.is_after(key));
        let rows = self.server.rows();
        let rows: VecDeque<Row> = rows.filter(|row| is_wanted(row) && is_left(row)).collect();
        if which == Which::Pending {
            let is_marked = |row: &Row| row_of(row.event, true).is_some_and(|id| !is_pending(&id));
            let is_stored = |row: &Row| known.is_some_and(|it| it.has(Some(row.xid)));
            let unstored = self.server.rows();
            let unstored = unstored.filter(|row| is_marked(row) && !is_stored(row));
            self.marked_unstored.extend(unstored.map(|row| row.event.0));
        }
        let scan = Scan {
            outbox: 0,
            polled,
            lsn,
            via: if is_of_asked { Via::Replay } else { Via::Table },
            published: None,
        };
        reading.read.begin(scan).unwrap();
        let asked = rows.iter().filter(|_| is_of_asked);
        let asked: Vec<_> = asked.map(|row| row.event).collect();
        reading.query = Some(Query { rows, lsn });
        self.reached.count(Path::RequeuedRead, asked.len() as u64);
        asked.into_iter().for_each(|event| self.assert_asked(event));
    }

    /// A row is taken, or progress is stored, or all is read and published.
    fn scan(&mut self) -> Result<(), Error> {
        let reading = self.relay.reading.as_mut().unwrap();
        let read = &mut reading.read;
        read.publisher.retry_pending()?;
        match read.look(self.now) {
            ScanStep::Wait => {}
            ScanStep::Store => self.save()?,
            ScanStep::Done => {
                self.scanned();
                return Ok(());
            }
        }
        let reading = self.relay.reading.as_mut().unwrap();
        let read = &mut reading.read;
        if self.relay.storing.is_some() || !read.has_room() {
            return Ok(());
        }
        let Some(row) = reading.query.as_mut().unwrap().rows.pop_front() else {
            return read.take(None::<&Given>, 0, epoch()).map_err(failed);
        };
        let has_topic = !self.broker.lock().unwrap().lacks_topic(row.event);
        let outbox = &read.publisher.setup.outboxes[0];
        let values = outbox.columns.iter();
        let values = values.map(|column| row.value(column, has_topic)).collect();
        let given = Given { row, values };
        let before = read.counts().sent;
        let taken = read.take(Some(&given), 0, epoch() + self.now);
        taken.map_err(failed)?;
        let was_left_out = read.counts().sent == before;
        self.reached.count(Path::LeftOut, u64::from(was_left_out));
        Ok(())
    }

    /// All rows of a scan are published.
    fn scanned(&mut self) {
        let reading = self.relay.reading.as_mut().unwrap();
        reading.read.end().unwrap();
        let lsn = reading.query.take().unwrap().lsn;
        if reading.read.task.gives_way() {
            self.session_done(Ended::Again);
        } else {
            reading.read.is_read(lsn, None, self.now);
        }
    }

    /// A store of progress begins.
    pub(super) fn save(&mut self) -> Result<(), Error> {
        let read = &self.relay.reading.as_ref().unwrap().read;
        if read.must_store()? {
            self.note_store(&read.stored);
            self.relay.storing = Some(read.stored.clone());
        }
        Ok(())
    }

    /// The store has the progress.
    pub(super) fn saved(&mut self, stored: Stored) {
        let read = &mut self.relay.reading.as_mut().unwrap().read;
        self.relay.process.left.stored(stored);
        read.was_stored();
    }
}
