//! Server, broker, store and relay in one place, and the dice that say what happens next.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt::Write as _;
use std::future::Future as _;
use std::hash::{Hash as _, Hasher as _};
use std::pin::pin;
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use walrelay_core::config::{
    DeliveryConfig, EventSource, Guarantee, OnError, OutboxConfig, TransactionConfig,
};
use walrelay_core::error::{Disposition, Error};
use walrelay_core::event::{BaseTypes, RowId};
use walrelay_core::ledger::Limits;
use walrelay_core::ledger::confirm::Due;
use walrelay_core::ledger::trail::{Pair, Published};
use walrelay_core::parked::Batch;
use walrelay_core::position::{Lsn, Position, ServerIdentity};

use walrelay_core::publisher::delivered_before::DeliveredBefore;
use walrelay_core::publisher::parked_index::RetryMemory;
use walrelay_core::publisher::pipeline::Pipeline;
use walrelay_core::publisher::{IntakeClosed, Setup};
use walrelay_core::sink::Delivery;
use walrelay_core::snapshot::Snapshot;

use super::broker::{Broker, LETTERS, Logged, Producer, Shared};
use super::parked::{Pass, Tables};
use super::plan::{Bus, Fault, Faults, Mode, Path, Plan, Promise, Reached};
use super::server::{PREFIX, Sent, Server, TABLE_OID, Transaction, id, is_id_shared};

/// Steps that are told of a failure.
const TOLD: usize = 40;

/// See the module's documentation.
pub(super) struct World {
    /// Gives each step dice of its own, so that what one step draws shifts no other.
    dice: fastrand::Rng,
    random: fastrand::Rng,
    mode: Mode,
    faults: Faults,
    limits: Limits,
    now: Duration,
    server: Server,
    broker: Shared,
    /// What the store holds, and what is being written to it.
    stored: Stored,
    storing: Option<Stored>,
    /// A snapshot, while the end of the log is asked for.
    snapshot: Option<Snapshot>,
    pipeline: Option<Pipeline<Producer>>,
    reached: Reached,
    /// Where rows are marked and events are parked.
    parks: Option<Parks>,
    trace: DefaultHasher,
    last: VecDeque<Told>,
}

/// A record of the store.
#[derive(Debug, Clone)]
struct Stored {
    position: Position,
    published: Option<Published>,
}

/// A step, for people.
#[derive(Debug, Clone, Copy)]
struct Told {
    number: u64,
    what: &'static str,
    stored: Position,
    confirmed: Lsn,
    in_flight: usize,
}

/// What Postgres has beside the log, and what the relay does there.
#[derive(Default)]
struct Parks {
    tables: Tables,
    /// A batch that is being written.
    writing: Option<Batch>,
    pass: Option<Pass>,
    memory: RetryMemory,
}

impl World {
    pub(super) fn new(plan: &Plan) -> Self {
        let Plan {
            seed, mode, faults, ..
        } = plan;
        let server = Server::new();
        let mut dice = fastrand::Rng::with_seed(*seed);
        let broker = match mode.bus {
            Bus::Gapless => Broker::default(),
            Bus::Transactional => Broker::transactional(),
            Bus::Lanes => Broker::with_lanes(),
        };
        // Of those that can be given up more is kept.
        let each = if mode.on_error == OnError::Stop {
            0
        } else {
            512
        };
        let is_small = dice.u8(0..3) == 0;
        let stored = Stored {
            position: Position::at(server.confirmed),
            published: Some(Published::at(Pair {
                snapshot: server.snapshot(),
                lsn: server.confirmed,
            })),
        };
        World {
            random: dice.fork(),
            dice,
            mode: *mode,
            faults: faults.clone(),
            limits: Limits {
                events: 6,
                bytes: if is_small { 4 * (each + 100) } else { 1 << 20 },
                each: 100,
            },
            now: Duration::ZERO,
            server,
            broker: Arc::new(Mutex::new(broker)),
            stored,
            storing: None,
            snapshot: None,
            pipeline: None,
            reached: Reached::default(),
            parks: (mode.on_error == OnError::Park).then(Parks::default),
            trace: DefaultHasher::new(),
            last: VecDeque::new(),
        }
    }

    /// What was reached.
    pub(super) fn reached(&mut self) -> Reached {
        self.count_of_producer();
        let mut reached = self.reached.clone();
        let broker = self.broker.lock().unwrap();
        reached.count(Path::QueueFull, broker.full);
        reached.count(Path::DeadLetter, broker.letters.len() as u64);
        reached.count(Path::BatchRefused, broker.batches_refused);
        reached.count(Path::RefusedAlone, broker.refused_alone);
        let is_shared = |transaction: &&Transaction| {
            let mut events = transaction.events.iter();
            events.any(|(_, version)| is_id_shared(*version))
        };
        let log = &self.server.log;
        reached.count(Path::SharedId, log.iter().filter(is_shared).count() as u64);
        let renamed = log.iter().filter(|it| it.has_renamed_rows());
        reached.count(Path::EarlierName, renamed.count() as u64);
        reached
    }

    /// What steps and their results were.
    pub(super) fn trace(&self) -> u64 {
        self.trace.finish()
    }

    pub(super) fn last_steps(&self) -> String {
        let mut text = "the last steps:".to_owned();
        for told in &self.last {
            let Told {
                number,
                what,
                stored,
                confirmed,
                in_flight,
            } = told;
            write!(
                text,
                "\n{number:4} {what}: stored {stored}, confirmed {confirmed}, {in_flight} in flight"
            )
            .unwrap();
        }
        text
    }

    fn tell(&mut self, what: &'static str) {
        let ledger = self.pipeline.as_ref().map(|it| &it.publisher.ledger);
        let told = Told {
            number: self.reached.steps,
            what,
            stored: self.stored.position,
            confirmed: self.server.confirmed,
            in_flight: ledger.map_or(0, |ledger| ledger.in_flight_events()),
        };
        if self.last.len() == TOLD {
            self.last.pop_front();
        }
        self.last.push_back(told);
        let visible = self
            .broker
            .lock()
            .unwrap()
            .visible()
            .map(<[Logged]>::len)
            .sum::<usize>();
        let output = (what, told.stored.end_lsn.as_u64(), told.confirmed.as_u64());
        (output, told.in_flight, visible).hash(&mut self.trace);
    }

    pub(super) fn is_transactional(&self) -> bool {
        self.broker.lock().unwrap().is_transactional()
    }

    fn setup(&self) -> Setup {
        let mut setup = setup();
        setup.limits = self.limits;
        setup.delivery.on_error = self.mode.on_error;
        if self.mode.reads_tails {
            for outbox in &mut setup.outboxes {
                outbox.route.id_header = Some("id".to_owned());
                outbox.route.position_header = Some("position".to_owned());
            }
        }
        if self.parks.is_some() {
            setup.outboxes[0].upkeep.mark = Some("published = true".to_owned());
        }
        if self.is_transactional() {
            let interval = Duration::from_millis(300);
            let timeout = Duration::from_secs(3);
            setup.delivery.guarantee = Guarantee::ExactlyOnce;
            setup.delivery.transaction = TransactionConfig {
                id_prefix: "simulated-".to_owned(),
                max_events: 4,
                interval,
                timeout,
            };
        }
        setup
    }

    /// One thing happens.
    pub(super) fn step(&mut self) {
        self.random = self.dice.fork();
        // Waits are shortened at random.
        fastrand::seed(self.dice.u64(..));
        let time = Duration::from_millis(self.random.u64(0..200));
        self.passes(time);
        let at_stake = self.at_stake();
        let before = self.of_broker();
        let (what, fault) = self.one_thing();
        self.reached.steps += 1;
        self.tell(what);
        let [refused, held_up] = self.of_broker();
        let fault = fault
            .or((refused > before[0]).then_some(Fault::Refusal))
            .or((held_up > before[1]).then_some(Fault::BrokerDown));
        if let Some(fault) = fault {
            *self.reached.faults.entry(fault).or_default() += 1;
            for promise in at_stake {
                *self.reached.at_stake.entry((promise, fault)).or_default() += 1;
            }
        }
        self.check_promises();
    }

    /// Refusals, and times that nothing was taken.
    fn of_broker(&self) -> [u64; 2] {
        let broker = self.broker.lock().unwrap();
        [
            broker.refused_alone + broker.batches_refused + broker.refused.len() as u64,
            broker.held_up,
        ]
    }

    /// What happened, and the fault that took effect.
    fn one_thing(&mut self) -> (&'static str, Option<Fault>) {
        if self.parks.is_some() && self.random.u8(0..3) == 0 {
            return self.step_of_parks();
        }
        let has = |fault| self.faults.has(fault);
        let took = |is_effective: bool, fault| is_effective.then_some(fault);
        let is_connected = self.server.is_connected();
        match self.random.u32(0..100) {
            0..12 => self.write(),
            12..16 => self.server.write_elsewhere(&mut self.random),
            16..18 => self.server.checkpoint(),
            18..55 => {
                self.receive();
                return ("receive", None);
            }
            55..75 => {
                self.ack();
                return ("ack", None);
            }
            75..90 => {
                self.store();
                return ("store", None);
            }
            90..94 => {
                self.confirm();
                return ("confirm", None);
            }
            94 if has(Fault::Disconnect) => {
                self.disconnect();
                return ("disconnect", took(is_connected, Fault::Disconnect));
            }
            95 if has(Fault::ServerCrash) => {
                let before = self.server.confirmed;
                self.disconnect();
                self.server.crash();
                let went_back = self.server.confirmed < before;
                self.reached.count(Path::SlotWentBack, u64::from(went_back));
                return (
                    "server crash",
                    took(is_connected || went_back, Fault::ServerCrash),
                );
            }
            96 if has(Fault::DeliveryFailure) => {
                let is_empty = self.broker.lock().unwrap().is_empty();
                self.fail_delivery();
                return ("delivery failure", took(!is_empty, Fault::DeliveryFailure));
            }
            97 if has(Fault::RelayKill) => {
                let was_there = self.pipeline.is_some();
                self.kill();
                return ("kill", took(was_there, Fault::RelayKill));
            }
            98 if has(Fault::BrokerDown) => {
                let mut broker = self.broker.lock().unwrap();
                broker.down = !broker.down;
                return ("broker down or up", None);
            }
            99 => {
                let mut broker = self.broker.lock().unwrap();
                broker.unfit.retain(|_| self.random.bool());
                return ("causes mended", None);
            }
            _ => return ("nothing", None),
        }
        ("write", None)
    }

    /// Promises that a wrong rule could break now.
    fn at_stake(&self) -> Vec<Promise> {
        let mut promises = Vec::new();
        let position = self.stored.position;
        let unstored = self.server.log.iter().rev();
        let unstored = unstored.take_while(|it| it.end_lsn > position.end_lsn);
        let mut keys = [0; 4];
        for (aggregate, _) in unstored.flat_map(|it| &it.events) {
            keys[usize::from(*aggregate)] += 1;
        }
        let mut put = |is_so: bool, promise| {
            if is_so {
                promises.push(promise);
            }
        };
        put(keys.iter().any(|count| *count > 1), Promise::P2);
        put(!self.broker.lock().unwrap().unfit.is_empty(), Promise::P3);
        if let Some(pipeline) = &self.pipeline {
            let publisher = &pipeline.publisher;
            let received = publisher.ledger.received();
            put(!position.is_at_or_after(&received), Promise::P1);
            put(!publisher.has_room(), Promise::P4);
            put(!pipeline.trail.wants_pair(), Promise::P12);
            put(!publisher.write_backs.is_empty(), Promise::P13);
            put(publisher.transaction.is_open(), Promise::P14);
        }
        promises
    }

    fn write(&mut self) {
        let before = self.server.log.len();
        self.server.write(&mut self.random);
        let mut broker = self.broker.lock().unwrap();
        for event in self.server.log[before..].iter().flat_map(|it| &it.events) {
            let is_unfit = self.random.u8(0..10) == 0;
            if is_unfit && self.faults.has(Fault::Refusal) {
                broker.unfit.insert(*event);
            }
        }
    }

    fn disconnect(&mut self) {
        self.server.disconnect();
        self.end_pass();
    }

    // Marks and parked events.

    fn step_of_parks(&mut self) -> (&'static str, Option<Fault>) {
        match self.random.u8(0..24) {
            0 => {
                let mut broker = self.broker.lock().unwrap();
                broker.unfit.retain(|_| self.random.bool());
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
    fn write_back(&mut self, may_fail: bool) -> bool {
        let (Some(parks), Some(pipeline)) = (&mut self.parks, &mut self.pipeline) else {
            return false;
        };
        let write_backs = &mut pipeline.publisher.write_backs;
        let Some(batch) = parks.writing.take() else {
            parks.writing = write_backs.begin(self.random.usize(1..4));
            return false;
        };
        let outcome = self.random.u8(0..6);
        let outcome = if may_fail { outcome } else { 2 };
        if outcome > 0 {
            parks.tables.commit(&batch);
        }
        if outcome > 1 {
            write_backs.finish();
        } else {
            // It was refused, or nobody knows.
            write_backs.abandon();
        }
        outcome <= 1
    }

    /// A pass of retries begins, or goes on.
    fn retry(&mut self, may_fail: bool) {
        let (Some(parks), Some(pipeline)) = (&mut self.parks, &mut self.pipeline) else {
            return;
        };
        if !self.server.is_connected() {
            return;
        }
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
            &broker.unfit,
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
    fn end_pass(&mut self) {
        let Some(parks) = &mut self.parks else {
            return;
        };
        let mut broker = self.broker.lock().unwrap();
        if let Some(pass) = parks.pass.take() {
            let landed = pass.gone(&broker.unfit, &mut self.random);
            broker.took(&landed);
        }
        if let Some(batch) = parks.writing.take().filter(|_| self.random.bool()) {
            parks.tables.commit(&batch);
        }
    }

    fn passes(&mut self, time: Duration) {
        self.now += time;
        self.broker.lock().unwrap().passes(time);
    }

    /// Faults stop, and everything that was written has to arrive and be confirmed.
    pub(super) fn settle(&mut self) {
        self.broker.lock().unwrap().down = false;
        self.broker.lock().unwrap().unfit.clear();
        for _ in 0..2_000 {
            self.passes(Duration::from_secs(6));
            if let Some(parks) = &mut self.parks {
                parks.tables.retry_all();
            }
            self.random = self.dice.fork();
            self.write_back(false);
            self.retry(false);
            self.receive();
            self.ack();
            self.store();
            self.confirm();
            self.tell("settle");
            self.check_promises();
            let settled = self.pipeline.as_ref().is_some_and(Pipeline::is_settled);
            let has_parked = self.parks.as_ref().is_some_and(|it| it.tables.has_parked());
            // P6: an idle relay confirms the end of the log, whoever wrote it.
            let last = self.server.end();
            let is_caught_up = self.server.is_caught_up() && self.server.confirmed >= last;
            if settled && is_caught_up && !has_parked {
                return;
            }
        }
        panic!(
            "it did not settle: {} transactions, confirmed {}, stored {}, pipeline {:?}",
            self.server.log.len(),
            self.server.confirmed,
            self.stored.position,
            self.pipeline
                .as_ref()
                .map(|pipeline| (pipeline.is_settled(), &pipeline.publisher.ledger))
        );
    }

    /// The relay connects where it must, and takes in one message where it has room.
    fn receive(&mut self) {
        if self.is_transactional() && !self.server.is_connected() && self.pipeline.is_some() {
            // Every session has a producer of its own.
            self.kill();
        }
        if self.pipeline.is_none() {
            let start = self.stored.position;
            let is_inside = start.partial.is_some();
            let path = Path::RestartedInsideATransaction;
            self.reached.count(path, u64::from(is_inside));
            self.server.disconnect();
            self.pipeline = Some(self.process(start));
        }
        let pipeline = self.pipeline.as_mut().unwrap();
        if !self.server.is_connected() {
            self.server.connect();
            let is_inside = pipeline.publisher.ledger.received().partial.is_some();
            let path = Path::ResumedInsideATransaction;
            self.reached.count(path, u64::from(is_inside));
            // A store nobody waited for any more may have happened.
            if let Some(stored) = self.storing.take().filter(|_| self.random.bool()) {
                self.stored = stored;
            }
            pipeline.reconnected();
            if let Some(parks) = &self.parks {
                pipeline.publisher.begin_look();
                pipeline.publisher.judge.parking.begin(parks.tables.index());
            }
        }
        read_tail(pipeline, &self.broker, &mut self.random);
        if let Err(error) = pipeline.publisher.retry_pending() {
            return self.ended(&error);
        }
        pipeline.look(self.now, false);
        let closed = pipeline.publisher.intake_closed();
        let is_full = closed == Some(IntakeClosed::InFlightBytes);
        self.reached.count(Path::BytesFull, u64::from(is_full));
        if closed.is_some() {
            return;
        }
        match self.server.send(&mut self.random) {
            None => {}
            Some(Sent::Keepalive { wal_end }) => pipeline.keepalive(wal_end),
            Some(Sent::Data { wal_start, body }) => {
                let ledger = &pipeline.publisher.ledger;
                let has_room = ledger.in_flight_bytes() < self.limits.bytes;
                let next = ledger.next();
                let taken = pipeline.data(wal_start, &body, epoch() + self.now);
                let is_event = pipeline.publisher.ledger.next() != next;
                assert!(
                    has_room || !is_event,
                    "P4: an event is taken in beyond the limit"
                );
                if let Err(error) = taken {
                    self.ended(&error);
                }
            }
        }
    }

    /// The relay ends at an event that cannot be delivered, until somebody mends the cause.
    fn ended(&mut self, error: &Error) {
        assert_eq!(self.mode.on_error, OnError::Stop, "it ended: {error}");
        self.reached.count(Path::Stopped, 1);
        self.kill();
        self.broker.lock().unwrap().unfit.clear();
    }

    /// The pipeline of a new producer.
    fn pipeline(&self, start: Position, published: Option<Published>) -> Pipeline<Producer> {
        let sink = Producer(Arc::clone(&self.broker));
        let stored = self.stored.position;
        let made = Pipeline::new(&self.setup(), start, stored, published, sink, self.now);
        let mut pipeline = made.expect("a pipeline");
        let table_oids = HashMap::from([(TABLE_OID, 0)]);
        pipeline
            .assembler
            .set_catalog(table_oids, BaseTypes::default());
        let server = origin();
        let publisher = &mut pipeline.publisher;
        publisher.set_origin(&server.system_identifier, server.timeline);
        pipeline
    }

    /// The pipeline of a process that begins.
    fn process(&self, start: Position) -> Pipeline<Producer> {
        let mut pipeline = self.pipeline(start, self.stored.published.clone());
        if self.mode.reads_tails {
            let outboxes = &pipeline.publisher.setup.outboxes;
            let before = DeliveredBefore::new(outboxes, &origin(), start, self.server.end());
            pipeline.publisher.judge.before = before.map(Box::new);
        }
        pipeline
    }

    fn ack(&mut self) {
        let mut deliveries = Vec::new();
        for _ in 0..self.random.usize(1..4) {
            deliveries.extend(self.broker.lock().unwrap().ack_one(&mut self.random));
        }
        self.deliver(deliveries);
    }

    fn fail_delivery(&mut self) {
        let failed = self.broker.lock().unwrap().fail_one(&mut self.random);
        self.deliver(failed.into_iter().collect());
    }

    fn deliver(&mut self, deliveries: Vec<Delivery>) {
        let is_transactional = self.is_transactional();
        let Some(pipeline) = self.pipeline.as_mut() else {
            return;
        };
        self.broker.lock().unwrap().told = deliveries;
        let told = pin!(pipeline.publisher.receive_deliveries())
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(told.is_ready());
        if let Err(error) = pipeline.publisher.delivered() {
            if error.kind().disposition() != Disposition::Retry {
                return self.ended(&error);
            }
            if is_transactional {
                self.kill();
                return;
            }
            // The producer is finished. A new one starts behind what was delivered, not behind what
            // was stored.
            let start = pipeline.publisher.ledger.delivered();
            let published = pipeline.trail.published(&start).cloned();
            let write_backs = std::mem::take(&mut pipeline.publisher.write_backs);
            let mut quarantine = std::mem::take(&mut pipeline.publisher.judge.quarantine);
            self.lose_producer();
            let mut pipeline = self.pipeline(start, published);
            pipeline.publisher.write_backs = write_backs.behind(self.stored.position);
            pipeline.publisher.judge.quarantine = quarantine.take_over();
            self.pipeline = Some(pipeline);
        }
    }

    /// The relay is killed with -9.
    fn kill(&mut self) {
        // What was being stored may have made it.
        if let Some(stored) = self.storing.take().filter(|_| self.random.bool()) {
            self.stored = stored;
            self.broker.lock().unwrap().commit();
        }
        self.lose_producer();
        if let Some(parks) = &mut self.parks {
            parks.memory = RetryMemory::default();
        }
    }

    fn lose_producer(&mut self) {
        self.count_of_producer();
        self.broker.lock().unwrap().producer_gone(&mut self.random);
        self.storing = None;
        self.pipeline = None;
        self.disconnect();
    }

    fn count_of_producer(&mut self) {
        let Some(pipeline) = &self.pipeline else {
            return;
        };
        let counts = pipeline.publisher.counts;
        self.reached
            .count(Path::DeliveredBefore, counts.delivered_before);
        self.reached.count(Path::Skipped, counts.skipped);
        self.reached.count(Path::Parked, counts.parked);
    }

    /// A store under way ends, or one that is due begins.
    fn store(&mut self) {
        let Some(pipeline) = self.pipeline.as_mut() else {
            return;
        };
        if let Some(stored) = self.storing.take() {
            let position = stored.position;
            let pair = |stored: &Stored| stored.published.as_ref().map(|it| it.pair.clone());
            let is_new = pair(&stored) != pair(&self.stored);
            self.reached.count(Path::Snapshot, u64::from(is_new));
            self.stored = stored;
            let mut broker = self.broker.lock().unwrap();
            assert!(
                !broker.is_transactional() || broker.is_empty(),
                "P14: events are on their way behind {position}"
            );
            broker.commit();
            pipeline.stored(position);
            return;
        }
        if let Due::Progress(position) | Due::Idle(position) = pipeline.due(self.now, false) {
            pipeline.store_begun(self.now);
            pipeline.publisher.transaction.committing = true;
            let published = pipeline.trail.published(&position).cloned();
            self.storing = Some(Stored {
                position,
                published,
            });
        }
        // The end of the log is read some time after the snapshot.
        if let Some(snapshot) = self.snapshot.take() {
            pipeline.trail.took(snapshot, self.server.end());
        } else if pipeline.trail.wants_pair() && self.server.is_connected() {
            self.snapshot = Some(self.server.snapshot());
        }
    }

    fn confirm(&mut self) {
        if let Some(pipeline) = &self.pipeline {
            self.server.status(pipeline.confirmable());
        }
    }

    /// P1 at every step: what is confirmed is stored, and what is stored is in the log.
    fn check_promises(&self) {
        let confirmed = self.server.confirmed;
        assert!(
            confirmed <= self.stored.position.end_lsn,
            "P1: confirmed {confirmed} past stored {}",
            self.stored.position
        );
        let mut delivered = self.logged_once();
        if let Some(Parks { tables, .. }) = &self.parks {
            let is_given =
                |event: &Logged| delivered.contains(event) || tables.dropped.contains(event);
            for event in self.server.log.iter().flat_map(|it| &it.events) {
                let row = row_of(*event);
                let is_marked = row.is_some_and(|row| tables.is_marked(&row));
                assert!(!is_marked || is_given(event), "P13: {event:?} is marked");
            }
            delivered.extend(tables.parked());
            delivered.extend(&tables.dropped);
        }
        delivered.extend(self.given_up());
        for transaction in &self.server.log {
            let is_stored = transaction.end_lsn <= self.stored.position.end_lsn;
            if let Some(published) = &self.stored.published
                && !transaction.events.is_empty()
            {
                let is_published = published.has(Some(transaction.xid));
                assert!(
                    is_stored || !is_published,
                    "P12: {} is taken for published",
                    transaction.xid
                );
                assert!(
                    !is_stored || is_published,
                    "P12: {} is forgotten, and would be published again",
                    transaction.xid
                );
            }
            let owed = match is_stored {
                true => transaction.events.len(),
                false => usize::try_from(self.stored.position.delivered_of(transaction.commit_lsn))
                    .unwrap(),
            };
            for event in transaction.events.iter().take(owed) {
                assert!(
                    delivered.contains(event),
                    "P1: stored {} past {event:?}, which nobody has",
                    self.stored.position
                );
                if let Some(Parks { tables, .. }) = &self.parks {
                    let row = row_of(*event);
                    let is_written = row.is_none_or(|row| tables.is_marked(&row));
                    assert!(
                        is_written || tables.parked().contains(event),
                        "P13: stored {} past {event:?}, which is not marked",
                        self.stored.position
                    );
                }
            }
        }
    }

    /// Events of which nothing is sent: those that were refused, and no others.
    fn given_up(&self) -> BTreeSet<Logged> {
        match self.mode.on_error {
            OnError::Skip => self.broker.lock().unwrap().refused.clone(),
            OnError::Stop | OnError::DeadLetter | OnError::Park => BTreeSet::new(),
        }
    }

    fn logged_once(&self) -> BTreeSet<Logged> {
        self.broker
            .lock()
            .unwrap()
            .visible()
            .flatten()
            .copied()
            .collect()
    }

    /// I1 to I3: every committed event is there, nothing else is, and first occurrences are in
    /// version order.
    pub(super) fn check_delivery(&self) {
        let committed: BTreeSet<Logged> = self
            .server
            .log
            .iter()
            .flat_map(|it| it.events.iter().copied())
            .collect();
        let delivered = self.logged_once();
        let dropped = self
            .parks
            .as_ref()
            .map(|parks| parks.tables.dropped.clone());
        let mut dropped = dropped.unwrap_or_default();
        dropped.extend(self.given_up());
        let given: BTreeSet<Logged> = delivered.union(&dropped).copied().collect();
        assert_eq!(committed.difference(&given).count(), 0, "lost");
        assert_eq!(delivered.difference(&committed).count(), 0, "phantom");
        for log in self.broker.lock().unwrap().visible() {
            let mut newest: HashMap<u8, u64> = HashMap::new();
            let mut last: HashMap<u8, u64> = HashMap::new();
            for &(aggregate, version) in log {
                let before = newest.entry(aggregate).or_default();
                let missing =
                    (*before + 1..version).find(|it| !dropped.contains(&(aggregate, *it)));
                assert_eq!(missing, None, "P2: {aggregate}-{version} came before it");
                *before = version.max(*before);
                let previous = last.insert(aggregate, version).unwrap_or_default();
                let missing =
                    (previous + 1..version).find(|it| !dropped.contains(&(aggregate, *it)));
                assert_eq!(
                    missing,
                    None,
                    "P2: {aggregate}-{version} follows the copy of {aggregate}-{previous}: {:?}",
                    log.iter()
                        .filter(|it| it.0 == aggregate)
                        .collect::<Vec<_>>()
                );
            }
            assert_eq!(last, newest, "P2: the newest event of a key comes last");
        }
        let broker = self.broker.lock().unwrap();
        let unasked: Vec<_> = broker.letters.difference(&broker.refused).collect();
        assert!(
            unasked.is_empty(),
            "P3: {unasked:?} were given up, and not refused"
        );
        assert!(broker.is_empty());
    }

    pub(super) fn duplicates(&self) -> usize {
        let distinct = self.logged_once().len();
        self.broker
            .lock()
            .unwrap()
            .visible()
            .map(<[Logged]>::len)
            .sum::<usize>()
            - distinct
    }
}

/// The tail that is waited for is read, or cannot be.
fn read_tail(pipeline: &mut Pipeline<Producer>, broker: &Shared, random: &mut fastrand::Rng) {
    let Some(before) = &mut pipeline.publisher.judge.before else {
        return;
    };
    match before.unread() {
        Some(mut tail) if random.u8(0..10) > 0 => {
            broker.lock().unwrap().read(&mut tail);
            before.read(tail, false);
        }
        Some(tail) if random.bool() => before.unreadable(&tail.topic),
        Some(_) | None => {}
    }
}

/// Where the time of the model begins.
pub(super) fn epoch() -> Instant {
    static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);
    *EPOCH
}

fn origin() -> ServerIdentity {
    ServerIdentity {
        system_identifier: "7".to_owned(),
        timeline: 1,
    }
}

/// The row of an event that has one to mark, which no other event has.
fn row_of((aggregate, version): Logged) -> Option<RowId> {
    let is_alone = !is_id_shared(version) && !is_id_shared(version + 1);
    let has_row = aggregate % 3 != 0 && is_alone;
    has_row.then(|| RowId::new(0, std::iter::once(id(aggregate, version).as_bytes())))
}

fn setup() -> Setup {
    // Columns and route are those of the table.
    let messages = OutboxConfig {
        source: EventSource::Messages(PREFIX.to_owned()),
        ..OutboxConfig::default()
    };
    Setup {
        slot: "simulated".parse().unwrap(),
        outboxes: vec![OutboxConfig::default(), messages],
        limits: Limits {
            events: 6,
            bytes: 1 << 20,
            each: 0,
        },
        delivery: DeliveryConfig {
            dead_letter_topic: LETTERS.to_owned(),
            ..DeliveryConfig::default()
        },
    }
}
