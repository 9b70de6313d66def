//! Marks and parked events of the relay, beside its session.

use walrelay_core::error::Kind;
use walrelay_core::parked::Batch;
use walrelay_core::publisher::parked_index::RetryMemory;
use walrelay_core::sessions::RefusedWrites;

use super::parked::{Pass, Tables};
use super::plan::{Fault, Path};
use super::session::LONGEST;
use super::world::{World, epoch};

/// What Postgres has beside the log, and what the relay does there.
#[derive(Default)]
pub(super) struct Parks {
    pub(super) tables: Tables,
    /// A batch that is being written.
    writing: Option<Batch>,
    pass: Option<Pass>,
    pub(super) memory: RetryMemory,
    refused_writes: RefusedWrites,
}

impl World {
    pub(super) fn step_of_parks(&mut self) -> (&'static str, Option<Fault>) {
        match self.random.u8(0..24) {
            0 => {
                self.broker.lock().unwrap().mend_some(&mut self.random);
                ("causes mended", None)
            }
            1..4 => {
                let parks = self.parks.as_mut().unwrap();
                parks.tables.operate(&mut self.random);
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
        let Some(parks) = &mut self.parks else {
            return false;
        };
        let publisher = match (&mut self.relay.reading, &mut self.relay.pipeline) {
            (Some(reading), _) => &mut reading.publisher,
            (None, Some(pipeline)) => &mut pipeline.publisher,
            (None, None) => return false,
        };
        let write_backs = &mut publisher.write_backs;
        let Some(batch) = parks.writing.take() else {
            if parks.refused_writes.may_try(now) {
                parks.writing = write_backs.begin(batch_max);
            }
            return false;
        };
        let outcome = self.random.u8(0..6);
        let outcome = if may_fail { outcome } else { 2 };
        if outcome > 0 {
            parks.tables.commit(&batch);
        }
        if outcome > 1 {
            write_backs.finish();
            parks.refused_writes.succeeded();
        } else {
            // It was refused, or nobody knows.
            write_backs.abandon();
            let kinds = [Kind::PostgresUnwritable, Kind::PostgresUnreachable];
            let kind = kinds[usize::from(outcome)];
            let refused = parks.refused_writes.refused(kind, now, self.random.f64());
            assert!(refused.wait <= LONGEST, "P9: {refused:?}");
            let often = u64::from(refused.tries > 2);
            self.reached.count(Path::WritesRefused, often);
        }
        outcome <= 1
    }

    /// A pass of retries begins, or goes on.
    pub(super) fn retry(&mut self, may_fail: bool) {
        let (Some(parks), Some(pipeline)) = (&mut self.parks, &mut self.relay.pipeline) else {
            return;
        };
        if !self.server.is_connected() {
            return;
        }
        let refused = self.broker.lock().unwrap().untaken();
        let slot = pipeline.publisher.setup.slot.clone();
        let parking = &mut pipeline.publisher.judge.parking;
        let Some(pass) = &mut parks.pass else {
            if parking.is_any() {
                let stored = pipeline.confirm.stored_position();
                let (pass, report) = Pass::begin(&mut parks.tables, stored, &mut self.reached);
                parks.pass = Some(pass);
                parking.retried(report, &slot);
            }
            return;
        };
        let mut broker = self.broker.lock().unwrap();
        if broker.down {
            return;
        }
        let step = pass.step(
            &mut parks.tables,
            &refused,
            &mut parks.memory,
            &mut self.reached,
            may_fail,
            &mut self.random,
        );
        broker.took(&step.appended);
        parking.retried(step.report, &slot);
        if step.is_over {
            parks.pass = None;
        }
    }

    /// The session of a pass ends.
    pub(super) fn end_pass(&mut self) {
        let Some(parks) = &mut self.parks else {
            return;
        };
        let mut broker = self.broker.lock().unwrap();
        if let Some(pass) = parks.pass.take() {
            let landed = pass.gone(&broker.untaken(), &mut self.random);
            broker.took(&landed);
        }
        if let Some(batch) = parks.writing.take().filter(|_| self.random.bool()) {
            parks.tables.commit(&batch);
        }
        parks.refused_writes = RefusedWrites::default();
    }
}
