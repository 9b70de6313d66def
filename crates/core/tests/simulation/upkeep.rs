//! Marks and parked events of the relay, beside its session.

use walrelay_core::error::Kind;
use walrelay_core::parked::Batch;
use walrelay_core::publisher::parked_index::RetryMemory;
use walrelay_core::publisher::retry_batch::Retries;
use walrelay_core::sessions::RefusedWrites;

use walrelay_core::event::RowId;

use super::broker::Broker;
use super::parked::{Pass, Tables};
use super::plan::{Fault, Path};
use super::server::row_of;
use super::session::LONGEST;
use super::world::{World, epoch};

/// What a relay does with rows and parked events.
#[derive(Default)]
pub(super) struct Upkeep {
    /// A batch that is being written.
    writing: Option<Batch>,
    pass: Option<Pass>,
    pub(super) memory: RetryMemory,
    refused_writes: RefusedWrites,
}

impl World {
    /// Rows that a query finds pending.
    pub(super) fn pending(&self) -> impl Iterator<Item = RowId> {
        let tables = self.tables.as_ref().filter(|_| self.mode.has_pending);
        let snapshot = self.server.snapshot();
        let rows = self.server.rows().filter(move |row| snapshot.sees(row.xid));
        let rows = rows.filter_map(|row| row_of(row.event, true));
        rows.filter(move |row| tables.is_some_and(|tables| !tables.is_marked(row)))
    }

    /// Somebody sets a row to pending again. Whether there is one.
    pub(super) fn set_to_pending(&mut self) -> bool {
        let tables = self.tables.as_mut().unwrap();
        let rows = self.server.rows().filter_map(|row| {
            let id = row_of(row.event, true)?;
            tables.is_marked(&id).then_some((row.event, id))
        });
        let chosen = self.random.choice(rows.collect::<Vec<_>>());
        if let Some((event, row)) = &chosen {
            tables.set_to_pending(*event, row);
        }
        chosen.is_some()
    }

    pub(super) fn step_of_upkeep(&mut self) -> (&'static str, Option<Fault>) {
        match self.random.u8(0..24) {
            0 => {
                self.broker.lock().unwrap().mend_some(&mut self.random);
                ("causes mended", None)
            }
            1..4 => {
                let tables = self.tables.as_mut().unwrap();
                tables.operate(&mut self.random);
                ("asked", None)
            }
            4..10 => {
                let may_fail = self.faults.has(Fault::WriteLost);
                let is_lost = self.write_back(may_fail);
                ("write back", is_lost.then_some(Fault::WriteLost))
            }
            _ => {
                self.retry(self.faults.has(Fault::WriteLost));
                ("retry", None)
            }
        }
    }

    /// A batch that is being written ends, or one that is due begins. Whether it failed, or nobody
    /// knows.
    pub(super) fn write_back(&mut self, may_fail: bool) -> bool {
        if !self.is_open() {
            return false;
        }
        let (now, batch_max) = (epoch() + self.now, self.random.usize(1..4));
        let Some(tables) = &mut self.tables else {
            return false;
        };
        let upkeep = &mut self.relay.upkeep;
        let publisher = match (&mut self.relay.reading, &mut self.relay.pipeline) {
            (Some(reading), _) => &mut reading.read.publisher,
            (None, Some(pipeline)) => &mut pipeline.publisher,
            (None, None) => return false,
        };
        let write_backs = &mut publisher.write_backs;
        let Some(batch) = upkeep.writing.take() else {
            if upkeep.refused_writes.may_try(now) {
                upkeep.writing = write_backs.begin(batch_max);
            }
            return false;
        };
        let snapshot = self.server.snapshot();
        let is_seen = |xid: &u32| snapshot.sees(snapshot.widen(*xid));
        if !batch.xids.iter().all(is_seen) {
            write_backs.abandon();
            self.reached.count(Path::RowsUnseen, 1);
            return false;
        }
        if batch.on_standbys() && self.server.is_synchronous() {
            // Its commit waits for this relay.
            upkeep.writing = Some(batch);
            return false;
        }
        let outcome = self.random.u8(0..6);
        let outcome = if may_fail { outcome } else { 2 };
        if outcome > 0 {
            tables.commit(&batch);
        }
        if outcome > 1 {
            write_backs.finish();
            if (batch.marks_rows() || write_backs.is_empty())
                && upkeep.refused_writes.succeeded().is_some()
            {
                self.relay.process.health.writes();
            }
        } else {
            // It was refused, or nobody knows.
            write_backs.abandon();
            let kinds = [Kind::PostgresUnwritable, Kind::PostgresUnreachable];
            let kind = kinds[usize::from(outcome)];
            let refused = upkeep.refused_writes.refused(kind, now, self.random.f64());
            assert!(refused.wait <= LONGEST, "P9: {refused:?}");
            let health = &mut self.relay.process.health;
            health.write_refused(kind, refused.is_passing);
            let often = u64::from(refused.tries > 2);
            self.reached.count(Path::WritesRefused, often);
        }
        outcome <= 1
    }

    /// A pass of retries begins, or goes on.
    pub(super) fn retry(&mut self, may_fail: bool) {
        let (Some(tables), Some(pipeline)) = (&mut self.tables, &mut self.relay.pipeline) else {
            return;
        };
        let upkeep = &mut self.relay.upkeep;
        if !self.server.is_connected() {
            return;
        }
        let setup = &pipeline.publisher.setup;
        let slot = setup.slot.clone();
        let parking = &mut pipeline.publisher.judge.parking;
        let Some(pass) = &mut upkeep.pass else {
            if parking.is_any() {
                let stored = pipeline.confirm.stored_position();
                let retries = Retries::new(setup.clone(), self.server.identity.clone());
                let (pass, report) = Pass::begin(tables, stored, retries, &mut self.reached);
                upkeep.pass = Some(pass);
                parking.retried(report, &slot);
            }
            return;
        };
        let mut broker = self.broker.lock().unwrap();
        if broker.down {
            return;
        }
        let step = pass.step(
            tables,
            &mut broker,
            &mut upkeep.memory,
            &mut self.reached,
            may_fail,
            &mut self.random,
        );
        parking.retried(step.report, &slot);
        if step.is_over
            && let Some(pass) = upkeep.pass.take()
        {
            pass.gone(&mut broker, &mut self.random);
        }
    }

    /// The session of a pass ends.
    pub(super) fn end_pass(&mut self) {
        if let Some(tables) = &mut self.tables {
            let mut broker = self.broker.lock().unwrap();
            self.relay.upkeep.end(tables, &mut broker, &mut self.random);
        }
    }
}

impl Upkeep {
    /// Whether the last write-back was refused.
    pub(super) fn is_refused(&self) -> bool {
        self.refused_writes.is_any()
    }

    /// What was being written never happens.
    pub(super) fn promoted(&mut self) {
        self.writing = None;
    }

    /// The session ends. What was under way has happened, or never will.
    pub(super) fn end(
        &mut self,
        tables: &mut Tables,
        broker: &mut Broker,
        random: &mut fastrand::Rng,
    ) {
        if let Some(pass) = self.pass.take() {
            pass.gone(broker, random);
        }
        if let Some(batch) = self.writing.take().filter(|_| random.bool()) {
            tables.commit(&batch);
        }
        self.refused_writes = RefusedWrites::default();
    }
}
