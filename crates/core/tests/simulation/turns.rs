//! Relays of one slot, of which one acts at each step.
//!
//! The server knows which one has the slot, or the lease on the table. A relay that stands still
//! does not act until it goes on; its records arrive all the same, and the server ends its session.

use std::time::Duration;

use walrelay_core::error::{Error, Kind};
use walrelay_core::publisher::pipeline::Pipeline;
use walrelay_core::stored::Stored;
use walrelay_core::turn::{AtWork, bearable};
use walrelay_spec::trace::Step;

use super::broker::Producer;
use super::plan::{Fault, Path};
use super::session::Process;
use super::table::Reading;
use super::upkeep::Upkeep;
use super::world::{World, take_in_told};

/// The silence after which the server ends a session.
const SILENCE: Duration = Duration::from_secs(3);

/// A relay: its process, and what the session has that is open.
pub(super) struct Relay {
    /// Its number for the server.
    pub(super) number: usize,
    pub(super) process: Process,
    /// What it streams into.
    pub(super) pipeline: Option<Pipeline<Producer>>,
    /// What it does at the table.
    pub(super) reading: Option<Reading>,
    /// What is being written to the store.
    pub(super) storing: Option<Stored>,
    pub(super) upkeep: Upkeep,
}

impl Relay {
    pub(super) fn of(number: usize) -> Relay {
        Relay {
            number,
            process: Process::of(number.to_string()),
            pipeline: None,
            reading: None,
            storing: None,
            upkeep: Upkeep::default(),
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
    /// Another relay acts from here on.
    pub(super) fn switch_to(&mut self, other: usize) {
        std::mem::swap(&mut self.relay, &mut self.others[other]);
        self.server.acting = self.relay.number;
        self.broker.lock().unwrap().switch_to(other);
        self.notice_cut();
    }

    /// Each relay acts in turn. Those that wait are in a row.
    pub(super) fn switch(&mut self) {
        if !self.others.is_empty() {
            self.switch_to(0);
            self.others.rotate_left(1);
            self.broker.lock().unwrap().rotate();
        }
    }

    /// One of the relays acts, unless it stands still.
    pub(super) fn choose_relay(&mut self) {
        let relays = 1 + self.others.len();
        let at = self.random.usize(0..relays);
        let at = if self.stands_still() && relays > 1 {
            at.max(1)
        } else {
            at
        };
        if at > 0 {
            self.switch_to(at - 1);
        }
    }

    pub(super) fn stands_still(&self) -> bool {
        self.relay.process.stand_still.is_some()
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
        self.relay.process.stand_still = Some(StandStill {
            since: self.now,
            until,
        });
    }

    /// The relay stands still, or goes on.
    pub(super) fn stands(&mut self) -> (&'static str, Option<Fault>) {
        let Some(StandStill { since, until }) = self.relay.process.stand_still else {
            return ("goes on", None);
        };
        if self.now < until {
            return ("stands still", None);
        }
        self.check_silent(since);
        self.relay.process.stand_still = None;
        self.server.is_heard();
        if self.now - since <= bearable(SILENCE) {
            self.notice_cut();
            return ("goes on", None);
        }
        self.relay.process.is_cut = false;
        self.end_store();
        let mut broker = self.broker.lock().unwrap();
        let gives_up = !broker.is_empty();
        if gives_up {
            broker.give_up(&mut self.random);
        }
        drop(broker);
        self.interrupted(Error::new(Kind::PostgresUnreachable, "it stood still"));
        if gives_up {
            self.relay.process.left.turn.doubt();
            self.replace_producer();
        }
        ("stood still", Some(Fault::StoodStill))
    }

    /// Both go on, and what is on its way arrives.
    pub(super) fn go_on(&mut self) {
        for _ in 0..=self.others.len() {
            if let Some(stand_still) = &mut self.relay.process.stand_still {
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
        for other in &mut self.others {
            other.process.is_cut = other.process.is_open();
        }
    }

    fn notice_cut(&mut self) {
        if !self.stands_still() && std::mem::take(&mut self.relay.process.is_cut) {
            self.lose_connection();
        }
    }

    /// The bus takes what another relay sent.
    pub(super) fn ack_other(&mut self) {
        if self.others.is_empty() {
            return;
        }
        let other = self.random.usize(0..self.others.len());
        let mut broker = self.broker.lock().unwrap();
        match self.random.u8(0..4) {
            0 => broker.arrive(),
            1 => {
                broker.switch_to(other);
                let acked = broker.ack_one(&mut self.random);
                broker.own.told.extend(acked);
                broker.switch_to(other);
            }
            _ => {}
        }
    }

    /// The relay that acts has the slot or the lease, and reads what is stored.
    pub(super) fn take_turn(&mut self) {
        // What was under way has happened by now, or never will.
        for at in 0..self.others.len() {
            self.end_store_of_other(at);
        }
        let mut broker = self.broker.lock().unwrap();
        let took_over = broker.own.is_stale;
        let was_fenced = broker.take_turn();
        self.reached.count(Path::Fenced, u64::from(was_fenced));
        drop(broker);
        let left = &mut self.relay.process.left;
        let stored = &mut self.stored;
        if !left.resume(Some(stored), &self.server.identity) {
            stored.relay.clone_from(&left.relay);
            left.stored(stored.clone());
        }
        self.reached.count(Path::TookOver, u64::from(took_over));
        self.note(Step::TurnTaken {
            relay: self.relay.number,
        });
    }

    /// What another relay was writing is written, or is not.
    fn end_store_of_other(&mut self, at: usize) {
        let other = &mut self.others[at];
        if let Some(stored) = other.storing.take() {
            let happens = self.random.bool();
            if happens {
                self.reached.count(Path::StoredLate, 1);
                self.stored = stored;
                let mut broker = self.broker.lock().unwrap();
                broker.switch_to(at);
                broker.commit();
                broker.switch_to(at);
            }
            let number = other.number;
            self.note_end_of_store(number, happens);
        }
        let other = &mut self.others[at];
        if let Some(tables) = &mut self.tables {
            let mut broker = self.broker.lock().unwrap();
            other.upkeep.end(tables, &mut broker, &mut self.random);
        }
    }

    /// Who a stand-by sees at work.
    pub(super) fn at_work(&self) -> Option<AtWork> {
        if !self.server.is_held(self.now) {
            None
        } else if !self.server.is_taken() {
            Some(AtWork::Own)
        } else if self.server.is_streamed() {
            Some(AtWork::Streams)
        } else {
            Some(AtWork::Reads)
        }
    }

    /// A stand-by sees this at work.
    pub(super) fn waits_for(&mut self, at_work: Option<AtWork>) {
        let turn = &mut self.relay.process.left.turn;
        if !at_work.is_some_and(|at_work| turn.sees(at_work)) {
            return;
        }
        let has_in_flight = |pipeline: &mut Pipeline<Producer>| {
            take_in_told(&mut pipeline.publisher).is_err() || !pipeline.publisher.is_drained()
        };
        if self.relay.pipeline.as_mut().is_some_and(has_in_flight) {
            self.reached.count(Path::GaveWay, 1);
            self.replace_producer();
        }
    }
}
