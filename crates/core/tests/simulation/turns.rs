//! Two relays of one slot: one acts at each step, and the other one is absent meanwhile.
//!
//! The server knows which one has the slot, or the lease on the table. A relay that stands still is
//! absent until it goes on; its records arrive all the same, and the server ends its session.

use std::time::Duration;

use walrelay_core::error::{Error, Kind};
use walrelay_core::publisher::pipeline::Pipeline;
use walrelay_core::snapshot::Snapshot;
use walrelay_core::turn::bearable;

use super::broker::Producer;
use super::plan::{Fault, Path};
use super::session::Process;
use super::table::Reading;
use super::world::{Stored, World, take_in_told};

/// The silence after which the server ends a session.
const SILENCE: Duration = Duration::from_secs(3);

/// What the relay has that does not act.
#[derive(Default)]
pub(super) struct Absent {
    pub(super) process: Process,
    pipeline: Option<Pipeline<Producer>>,
    reading: Option<Reading>,
    storing: Option<Stored>,
    snapshot: Option<Snapshot>,
}

impl Absent {
    pub(super) fn of(relay: String) -> Absent {
        Absent {
            process: Process::of(relay),
            ..Absent::default()
        }
    }
}

/// A process that is stopped, or gets no CPU time.
#[derive(Debug, Clone, Copy)]
pub(super) struct StandStill {
    since: Duration,
    until: Duration,
}

impl World {
    /// The other relay acts from here on.
    pub(super) fn switch(&mut self) {
        let Some(absent) = &mut self.absent else {
            return;
        };
        std::mem::swap(&mut self.process, &mut absent.process);
        std::mem::swap(&mut self.pipeline, &mut absent.pipeline);
        std::mem::swap(&mut self.reading, &mut absent.reading);
        std::mem::swap(&mut self.storing, &mut absent.storing);
        std::mem::swap(&mut self.snapshot, &mut absent.snapshot);
        self.server.switch();
        self.broker.lock().unwrap().switch();
        self.notice_cut();
    }

    /// One of two relays acts, unless it stands still.
    pub(super) fn choose_relay(&mut self) {
        if self.absent.is_some() && (self.stands_still() || self.random.bool()) {
            self.switch();
        }
    }

    pub(super) fn stands_still(&self) -> bool {
        self.process.stand_still.is_some()
    }

    pub(super) fn stand_still(&mut self) {
        if !self.is_open() {
            return;
        }
        let part = |of: Duration, random: &mut fastrand::Rng| of.mul_f64(random.f64());
        let until = self.now + part(2 * SILENCE, &mut self.random);
        // Since its last message.
        let silent = part(SILENCE / 3, &mut self.random);
        self.server.falls_silent(self.now + SILENCE - silent);
        self.process.stand_still = Some(StandStill {
            since: self.now,
            until,
        });
    }

    /// The relay stands still, or goes on.
    pub(super) fn stands(&mut self) -> (&'static str, Option<Fault>) {
        let Some(StandStill { since, until }) = self.process.stand_still else {
            return ("goes on", None);
        };
        if self.now < until {
            return ("stands still", None);
        }
        self.process.stand_still = None;
        self.server.is_heard();
        if self.now - since <= bearable(SILENCE) {
            self.notice_cut();
            return ("goes on", None);
        }
        self.process.is_cut = false;
        self.end_store();
        let mut broker = self.broker.lock().unwrap();
        let gives_up = !broker.is_empty();
        if gives_up {
            broker.give_up(&mut self.random);
        }
        drop(broker);
        self.interrupted(Error::new(Kind::PostgresUnreachable, "it stood still"));
        if gives_up {
            self.process.turn.is_in_doubt = true;
            self.replace_producer();
        }
        ("stood still", Some(Fault::StoodStill))
    }

    /// Both go on, and what is on its way arrives.
    pub(super) fn go_on(&mut self) {
        for _ in 0..2 {
            if let Some(stand_still) = &mut self.process.stand_still {
                stand_still.until = self.now;
                self.stands();
            }
            self.switch();
        }
        while self.broker.lock().unwrap().is_arriving() {
            self.broker.lock().unwrap().arrive();
        }
    }

    /// The server ended every session.
    pub(super) fn lose_connections(&mut self) {
        self.lose_connection();
        if let Some(absent) = &mut self.absent {
            absent.process.is_cut = absent.process.is_open();
        }
    }

    fn notice_cut(&mut self) {
        if !self.stands_still() && std::mem::take(&mut self.process.is_cut) {
            self.lose_connection();
        }
    }

    /// The bus takes what an absent relay sent.
    pub(super) fn ack_absent(&mut self) {
        if self.absent.is_none() {
            return;
        }
        let mut broker = self.broker.lock().unwrap();
        match self.random.u8(0..4) {
            0 => broker.arrive(),
            1 => {
                broker.switch();
                let acked = broker.ack_one(&mut self.random);
                broker.told.extend(acked);
                broker.switch();
            }
            _ => {}
        }
    }

    /// The relay that acts has the slot or the lease, and reads what is stored.
    pub(super) fn take_turn(&mut self) {
        let mut broker = self.broker.lock().unwrap();
        let mut took_over = false;
        if let Some(absent) = &mut self.absent {
            // A store under way has happened by now, or never will.
            if let Some(stored) = absent.storing.take().filter(|_| self.random.bool()) {
                self.reached.count(Path::StoredLate, 1);
                self.stored = stored;
                broker.switch();
                broker.commit();
                broker.switch();
            }
            took_over = broker.is_stale;
            let was_fenced = broker.take_turn();
            self.reached.count(Path::Fenced, u64::from(was_fenced));
        }
        drop(broker);
        let process = &mut self.process;
        let last_relay = &mut self.stored.relay;
        if !process.turn.resume(&process.relay, Some(last_relay), true) {
            process.left.forget();
            last_relay.clone_from(&process.relay);
        }
        self.reached.count(Path::TookOver, u64::from(took_over));
    }

    /// A stand-by sees who has the slot or the lease.
    pub(super) fn waits_for(&mut self) {
        if !self.server.is_taken() {
            return;
        }
        let has_in_flight = |pipeline: &mut Pipeline<Producer>| {
            take_in_told(&mut pipeline.publisher).is_err() || !pipeline.publisher.is_drained()
        };
        if self.pipeline.as_mut().is_some_and(has_in_flight) {
            self.reached.count(Path::GaveWay, 1);
            self.replace_producer();
        }
    }
}
