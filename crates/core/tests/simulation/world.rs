//! Server, broker, store and relay in one place, and the dice that say what happens next.

use std::collections::{HashMap, HashSet};
use std::future::Future as _;
use std::pin::pin;
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use walrelay_core::config::{
    DeliveryConfig, EventSource, Guarantee, OnError, OutboxConfig, TransactionConfig,
};
use walrelay_core::event::RowId;
use walrelay_core::ledger::Limits;
use walrelay_core::ledger::confirm::Due;
use walrelay_core::parked::Batch;
use walrelay_core::position::{Lsn, Position, ServerIdentity};
use walrelay_core::publisher::Setup;
use walrelay_core::publisher::delivered_before::DeliveredBefore;
use walrelay_core::publisher::parked_index::RetryMemory;
use walrelay_core::publisher::pipeline::Pipeline;
use walrelay_core::sink::Delivery;

use super::broker::{Broker, Logged, Producer, Shared};
use super::parked::{Pass, Retried, Tables};
use super::server::{PREFIX, Sent, Server, Transaction, id, is_id_shared};

/// Which faults the dice may choose.
#[derive(Debug, Clone, Copy)]
pub(super) struct Faults {
    pub(super) disconnect: bool,
    pub(super) server_crash: bool,
    pub(super) delivery_failure: bool,
    pub(super) relay_kill: bool,
    pub(super) broker_down: bool,
}

impl Faults {
    pub(super) const NONE: Faults = Faults {
        disconnect: false,
        server_crash: false,
        delivery_failure: false,
        relay_kill: false,
        broker_down: false,
    };
    pub(super) const ALL: Faults = Faults {
        disconnect: true,
        server_crash: true,
        delivery_failure: true,
        relay_kill: true,
        broker_down: true,
    };

    /// Some kinds, others for each seed: a frequent fault can hide what a rare one does.
    pub(super) fn some(seed: u64) -> Faults {
        let mut random = fastrand::Rng::with_seed(seed);
        Faults {
            disconnect: random.bool(),
            server_crash: random.bool(),
            delivery_failure: random.bool(),
            relay_kill: random.bool(),
            broker_down: random.bool(),
        }
    }
}

/// See the module's documentation.
pub(super) struct World {
    random: fastrand::Rng,
    faults: Faults,
    now: Duration,
    server: Server,
    broker: Shared,
    /// What the store holds, and what is being written to it.
    stored: Position,
    storing: Option<Position>,
    pipeline: Option<Pipeline<Producer>>,
    reached: Reached,
    /// Whether a process that begins looks for what topics have.
    reads_tails: bool,
    /// Where rows are marked and events are parked.
    parks: Option<Parks>,
}

/// What Postgres has beside the log, and what the relay does there.
struct Parks {
    tables: Tables,
    /// A batch that is being written.
    writing: Option<Batch>,
    pass: Option<Pass>,
    memory: RetryMemory,
}

/// How often the paths the simulation is for were taken.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Reached {
    resumed_inside_a_transaction: u64,
    restarted_inside_a_transaction: u64,
    queue_full: u64,
    slot_went_back: u64,
    failed_delivery: u64,
    shared_id: u64,
    /// Events that the topic had, and were not published again.
    delivered_before: u64,
    /// On a bus that refuses each record for itself.
    refused: u64,
    dead_letters: u64,
    pub(super) retried: Retried,
}

impl Reached {
    pub(super) fn add(&mut self, world: &World) {
        let other = world.reached;
        self.resumed_inside_a_transaction += other.resumed_inside_a_transaction;
        self.restarted_inside_a_transaction += other.restarted_inside_a_transaction;
        self.queue_full += world.broker.lock().unwrap().full;
        self.refused += world.broker.lock().unwrap().refused;
        self.dead_letters += other.dead_letters;
        self.delivered_before += other.delivered_before;
        self.retried.add(other.retried);
        self.slot_went_back += other.slot_went_back;
        self.failed_delivery += other.failed_delivery;
        let shared = |transaction: &&Transaction| {
            transaction
                .events
                .iter()
                .any(|(_, version)| is_id_shared(*version))
        };
        self.shared_id += world.server.log.iter().filter(shared).count() as u64;
    }

    pub(super) fn all_of_lanes(&self) -> bool {
        self.refused > 0 && self.dead_letters > 0 && self.queue_full > 0
    }

    pub(super) fn all_of_tails(&self) -> bool {
        self.delivered_before > 0
    }

    pub(super) fn all(&self) -> bool {
        self.resumed_inside_a_transaction > 0
            && self.restarted_inside_a_transaction > 0
            && self.queue_full > 0
            && self.slot_went_back > 0
            && self.failed_delivery > 0
            && self.shared_id > 0
    }
}

impl World {
    pub(super) fn new(seed: u64, faults: Faults) -> Self {
        let server = Server::new();
        let stored = Position::at(server.confirmed);
        World {
            random: fastrand::Rng::with_seed(seed),
            faults,
            now: Duration::ZERO,
            server,
            broker: Arc::new(Mutex::new(Broker::default())),
            stored,
            storing: None,
            pipeline: None,
            reached: Reached::default(),
            reads_tails: false,
            parks: None,
        }
    }

    /// The same where events that cannot be delivered are parked, and rows are marked.
    pub(super) fn that_parks(seed: u64, faults: Faults, lanes: bool) -> Self {
        let world = match lanes {
            true => World::on_lanes(seed, faults),
            false => World::new(seed, faults),
        };
        World {
            parks: Some(Parks {
                tables: Tables::default(),
                writing: None,
                pass: None,
                memory: RetryMemory::default(),
            }),
            ..world
        }
    }

    /// The same where events and position are committed together.
    pub(super) fn exactly_once(seed: u64, faults: Faults) -> Self {
        World {
            broker: Arc::new(Mutex::new(Broker::transactional())),
            ..World::new(seed, faults)
        }
    }

    /// The same on a bus that refuses each record for itself.
    pub(super) fn on_lanes(seed: u64, faults: Faults) -> Self {
        World {
            broker: Arc::new(Mutex::new(Broker::with_lanes())),
            ..World::new(seed, faults)
        }
    }

    /// The same where what topics have is not published again.
    pub(super) fn that_reads_tails(self) -> Self {
        World {
            reads_tails: true,
            ..self
        }
    }

    fn is_transactional(&self) -> bool {
        self.broker.lock().unwrap().is_transactional()
    }

    fn setup(&self) -> Setup {
        let mut setup = setup();
        if self.reads_tails {
            for outbox in &mut setup.outboxes {
                outbox.route.id_header = Some("id".to_owned());
                outbox.route.position_header = Some("position".to_owned());
            }
        }
        if self.parks.is_some() {
            setup.delivery.on_error = OnError::Park;
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
        let time = Duration::from_millis(self.random.u64(0..200));
        self.passes(time);
        if self.parks.is_some() && self.random.u8(0..3) == 0 {
            self.step_of_parks();
            self.check_promises();
            return;
        }
        match self.random.u32(0..100) {
            0..12 => self.write(),
            12..16 => self.server.write_elsewhere(&mut self.random),
            16..18 => self.server.checkpoint(),
            18..55 => self.receive(),
            55..75 => self.ack(),
            75..90 => self.store(),
            90..94 => self.confirm(),
            94 if self.faults.disconnect => self.disconnect(),
            95 if self.faults.server_crash => {
                let before = self.server.confirmed;
                self.disconnect();
                self.server.crash();
                self.reached.slot_went_back += u64::from(self.server.confirmed < before);
            }
            96 if self.faults.delivery_failure => self.fail_delivery(),
            97 if self.faults.relay_kill => self.kill(),
            98 if self.faults.broker_down => {
                let mut broker = self.broker.lock().unwrap();
                broker.down = !broker.down;
            }
            _ => {}
        }
        self.check_promises();
    }

    fn write(&mut self) {
        let before = self.server.log.len();
        self.server.write(&mut self.random);
        if self.parks.is_none() {
            return;
        }
        let mut broker = self.broker.lock().unwrap();
        for event in self.server.log[before..].iter().flat_map(|it| &it.events) {
            if self.random.u8(0..10) == 0 {
                broker.unfit.insert(*event);
            }
        }
    }

    fn disconnect(&mut self) {
        self.server.disconnect();
        self.end_pass();
    }

    // Marks and parked events.

    fn step_of_parks(&mut self) {
        match self.random.u8(0..24) {
            0 => {
                let mut broker = self.broker.lock().unwrap();
                broker.unfit.retain(|_| self.random.bool());
            }
            1..4 => {
                let parks = self.parks.as_mut().unwrap();
                parks.tables.operate(&mut self.random);
            }
            4..10 => self.write_back(),
            _ => self.retry(),
        }
    }

    /// A batch that is being written ends, or one that is due begins.
    fn write_back(&mut self) {
        let (Some(parks), Some(pipeline)) = (&mut self.parks, &mut self.pipeline) else {
            return;
        };
        let write_backs = &mut pipeline.publisher.write_backs;
        let Some(batch) = parks.writing.take() else {
            parks.writing = write_backs.begin(self.random.usize(1..4));
            return;
        };
        let outcome = self.random.u8(0..6);
        if outcome > 0 {
            parks.tables.commit(&batch);
        }
        if outcome > 1 {
            write_backs.finish();
        } else {
            // It was refused, or nobody knows.
            write_backs.abandon();
        }
    }

    /// A pass of retries begins, or goes on.
    fn retry(&mut self) {
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
                let (pass, report) =
                    Pass::begin(&mut parks.tables, stored, &mut self.reached.retried);
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
            &mut self.reached.retried,
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
            self.write_back();
            self.retry();
            self.receive();
            self.ack();
            self.store();
            self.confirm();
            self.check_promises();
            let last = self
                .server
                .log
                .last()
                .map_or(Lsn::ZERO, |transaction| transaction.end_lsn);
            let settled = self.pipeline.as_ref().is_some_and(Pipeline::is_settled);
            let has_parked = self.parks.as_ref().is_some_and(|it| it.tables.has_parked());
            let is_caught_up = self.server.is_caught_up() && self.server.confirmed >= last;
            if settled && is_caught_up && !has_parked {
                return;
            }
        }
        panic!(
            "it did not settle: {} transactions, confirmed {}, stored {}, pipeline {:?}",
            self.server.log.len(),
            self.server.confirmed,
            self.stored,
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
            let start = self.stored;
            self.reached.restarted_inside_a_transaction += u64::from(start.partial.is_some());
            self.server.disconnect();
            self.pipeline = Some(self.process(start));
        }
        let pipeline = self.pipeline.as_mut().unwrap();
        if !self.server.is_connected() {
            self.server.connect();
            self.reached.resumed_inside_a_transaction +=
                u64::from(pipeline.publisher.ledger.received().partial.is_some());
            // A store nobody waited for any more may have happened.
            if self.random.bool() {
                self.stored = self.storing.unwrap_or(self.stored);
            }
            self.storing = None;
            pipeline.reconnected();
            if let Some(parks) = &self.parks {
                pipeline.publisher.begin_look();
                pipeline.publisher.judge.parking.begin(parks.tables.index());
            }
        }
        read_tail(pipeline, &self.broker, &mut self.random);
        pipeline.publisher.retry_pending().unwrap();
        pipeline.look(self.now, false);
        if !pipeline.publisher.has_room() {
            return;
        }
        match self.server.send(&mut self.random) {
            None => {}
            Some(Sent::Keepalive { wal_end }) => pipeline.keepalive(wal_end),
            Some(Sent::Data { wal_start, body }) => {
                pipeline.data(wal_start, &body, epoch() + self.now).unwrap();
            }
        }
    }

    /// The pipeline of a new producer.
    fn pipeline(&self, start: Position) -> Pipeline<Producer> {
        let sink = Producer(Arc::clone(&self.broker));
        let made = Pipeline::new(&self.setup(), start, self.stored, None, sink, self.now);
        let mut pipeline = made.expect("a pipeline");
        let server = origin();
        let publisher = &mut pipeline.publisher;
        publisher.set_origin(&server.system_identifier, server.timeline);
        pipeline
    }

    /// The pipeline of a process that begins.
    fn process(&self, start: Position) -> Pipeline<Producer> {
        let mut pipeline = self.pipeline(start);
        if self.reads_tails {
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
        self.reached.failed_delivery += u64::from(failed.is_some());
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
        let before = pipeline.publisher.counts.dead_lettered;
        let delivered = pipeline.publisher.delivered();
        self.reached.dead_letters += pipeline.publisher.counts.dead_lettered - before;
        if delivered.is_err() {
            if is_transactional {
                self.kill();
                return;
            }
            // The producer is finished. A new one starts behind what was delivered, not behind what
            // was stored.
            let start = pipeline.publisher.ledger.delivered();
            let write_backs = std::mem::take(&mut pipeline.publisher.write_backs);
            let mut quarantine = std::mem::take(&mut pipeline.publisher.judge.quarantine);
            self.lose_producer();
            let mut pipeline = self.pipeline(start);
            pipeline.publisher.write_backs = write_backs.behind(self.stored);
            if self.parks.is_some() {
                pipeline.publisher.judge.quarantine = quarantine.take_over();
            }
            self.pipeline = Some(pipeline);
        }
    }

    /// The relay is killed with -9.
    fn kill(&mut self) {
        // What was being stored may have made it.
        if let Some(position) = self.storing.filter(|_| self.random.bool()) {
            self.stored = position;
            self.broker.lock().unwrap().commit();
        }
        self.lose_producer();
        if let Some(parks) = &mut self.parks {
            parks.memory = RetryMemory::default();
        }
    }

    fn lose_producer(&mut self) {
        let before = self
            .pipeline
            .as_ref()
            .map(|it| it.publisher.counts.delivered_before);
        self.reached.delivered_before += before.unwrap_or_default();
        self.broker.lock().unwrap().producer_gone(&mut self.random);
        self.storing = None;
        self.pipeline = None;
        self.disconnect();
    }

    /// A store under way ends, or one that is due begins.
    fn store(&mut self) {
        let Some(pipeline) = self.pipeline.as_mut() else {
            return;
        };
        if let Some(position) = self.storing.take() {
            self.stored = position;
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
            self.storing = Some(position);
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
            confirmed <= self.stored.end_lsn,
            "P1: confirmed {confirmed} past stored {}",
            self.stored
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
        for transaction in &self.server.log {
            let owed = match transaction.end_lsn <= self.stored.end_lsn {
                true => transaction.events.len(),
                false => usize::try_from(self.stored.delivered_of(transaction.commit_lsn)).unwrap(),
            };
            for event in transaction.events.iter().take(owed) {
                assert!(
                    delivered.contains(event),
                    "P1: stored {} past {event:?}, which nobody has",
                    self.stored
                );
                if let Some(Parks { tables, .. }) = &self.parks {
                    let row = row_of(*event);
                    let is_written = row.is_none_or(|row| tables.is_marked(&row));
                    assert!(
                        is_written || tables.parked().contains(event),
                        "P13: stored {} past {event:?}, which is not marked",
                        self.stored
                    );
                }
            }
        }
    }

    fn logged_once(&self) -> HashSet<Logged> {
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
        let committed: HashSet<Logged> = self
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
        let dropped = dropped.unwrap_or_default();
        let given: HashSet<Logged> = delivered.union(&dropped).copied().collect();
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
                assert!(
                    version <= previous + 1 || !dropped.is_empty(),
                    "P2: {aggregate}-{version} follows the copy of {aggregate}-{previous}"
                );
            }
            assert_eq!(last, newest, "P2: the newest event of a key comes last");
        }
        assert!(self.broker.lock().unwrap().is_empty());
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
        // What a gapless producer fails is no refusal of a record.
        delivery: DeliveryConfig {
            on_error: OnError::DeadLetter,
            dead_letter_topic: "dead".to_owned(),
            ..DeliveryConfig::default()
        },
    }
}
