//! Server, broker, store and relay in one place, and the dice that say what happens next.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::future::Future as _;
use std::hash::{Hash as _, Hasher as _};
use std::pin::pin;
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use walrelay_core::config::{
    DeliveryConfig, EventSource, Guarantee, OnError, OutboxConfig, RetryConfig, TransactionConfig,
};
use walrelay_core::error::{Error, Kind};
use walrelay_core::ledger::Limits;
use walrelay_core::ledger::confirm::Due;
use walrelay_core::position::{Lsn, Position};
use walrelay_core::publisher::pipeline::Pipeline;
use walrelay_core::publisher::{Publisher, Setup};
use walrelay_core::sessions::Ended;
use walrelay_core::sink::Delivery;
use walrelay_core::stored::Stored;
use walrelay_core::stream_record::PairUse;
use walrelay_spec::trace::Step;

use super::broker::{Broker, LETTERS, Logged, Producer, Shared};
use super::parked::Tables;
use super::plan::{Bus, Fault, Faults, Mode, Path, Plan, Reached};
use super::promises::is_of_table;
use super::server::{PREFIX, Server, Transaction, is_id_shared, row_of};
use super::session::{DRAIN, LONGEST, Process};
use super::start::stored_at_first;
use super::turns::Relay;

/// Steps that are told of a failure.
const TOLD: usize = 40;

/// Acks that a relay waits for that is told to stop.
const STOP_STEPS: usize = 100;

/// The time of a step once faults have stopped.
pub(super) const SETTLES_BY: Duration = Duration::from_secs(6);

/// See the module's documentation.
pub(super) struct World {
    /// Gives each step dice of its own, so that what one step draws shifts no other.
    pub(super) dice: fastrand::Rng,
    pub(super) random: fastrand::Rng,
    pub(super) mode: Mode,
    pub(super) faults: Faults,
    pub(super) limits: Limits,
    pub(super) delivery: DeliveryConfig,
    pub(super) now: Duration,
    pub(super) server: Server,
    pub(super) broker: Shared,
    /// What the store holds.
    pub(super) stored: Stored,
    /// What a standby has of it, where the store is in Postgres. Until one is promoted.
    stored_there: Option<Stored>,
    /// What a standby has of marks and parked events.
    tables_there: Option<Tables>,
    /// Events whose rows were marked on a server that is no more.
    pub(super) unmarked: BTreeSet<Logged>,
    /// Whether positions did not wait for marks for a while, as commits waited for them.
    pub(super) may_lack_marks: bool,
    /// What the store has as published in whole.
    pub(super) published: BTreeSet<Logged>,
    /// Events that no server has any more.
    pub(super) gone: BTreeSet<Logged>,
    /// Whether the store knew of more than a standby had that was promoted: which rows are
    /// published may be forgotten.
    pub(super) may_forget: bool,
    /// Whether the publication was altered. Left-out rows come late, and others come again.
    pub(super) is_altered: bool,
    /// Aggregates with rows that did not come again when those were read that said that they were
    /// pending: they were marked, and not stored as published.
    pub(super) marked_unstored: BTreeSet<u8>,
    /// Where nothing else fails: how often each event was published by then that does not come
    /// again at an alteration, since a snapshot from before saw it.
    pub(super) finished: BTreeMap<Logged, usize>,
    /// The relay that acts, and the others.
    pub(super) relay: Box<Relay>,
    pub(super) others: Vec<Box<Relay>>,
    pub(super) reached: Reached,
    /// Where rows are marked and events are parked.
    pub(super) tables: Option<Tables>,
    trace: DefaultHasher,
    last: VecDeque<Told>,
}

/// A step, for people.
#[derive(Debug, Clone, Copy)]
struct Told {
    number: u64,
    relay: usize,
    what: &'static str,
    stored: Position,
    confirmed: Lsn,
    in_flight: usize,
}

impl World {
    pub(super) fn new(plan: &Plan) -> Self {
        let Plan {
            seed, mode, faults, ..
        } = plan;
        // Messages are in no table.
        let reads_table =
            mode.has_pending || Fault::OF_TABLE.iter().any(|fault| faults.has(*fault));
        let server = Server::new(!reads_table);
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
        let broker = broker.shared_by(mode.relays);
        let stored = stored_at_first(&server);
        let may_be = faults.has(Fault::Failover) && mode.bus != Bus::Transactional;
        let is_in_postgres = may_be && dice.bool();
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
            delivery: delivery(*mode),
            now: Duration::ZERO,
            stored_there: Some(stored.clone()).filter(|_| is_in_postgres),
            stored,
            server,
            broker: Arc::new(Mutex::new(broker)),
            published: BTreeSet::new(),
            gone: BTreeSet::new(),
            may_forget: false,
            is_altered: false,
            marked_unstored: BTreeSet::new(),
            finished: BTreeMap::new(),
            relay: Box::new(Relay::of(0)),
            others: (1..mode.relays).map(Relay::of).map(Box::new).collect(),
            reached: Reached::default(),
            tables: mode.marks().then(Tables::default),
            tables_there: mode.marks().then(Tables::default),
            unmarked: BTreeSet::new(),
            may_lack_marks: false,
            trace: DefaultHasher::new(),
            last: VecDeque::new(),
        }
    }

    /// What was reached.
    pub(super) fn reached(&mut self) -> Reached {
        if let Some(pipeline) = self.relay.pipeline.take() {
            self.count_of(&pipeline.publisher);
        }
        let mut reached = self.reached.clone();
        let broker = self.broker.lock().unwrap();
        reached.count(Path::QueueFull, broker.full);
        reached.count(Path::DeadLetter, broker.letters.len() as u64);
        reached.count(Path::BatchRefused, broker.batches_refused);
        reached.count(Path::RefusedAlone, broker.refused_alone);
        reached.count(Path::CameLate, broker.that_came_late().len() as u64);
        let is_shared = |transaction: &&Transaction| {
            let mut events = transaction.events.iter();
            events.any(|(_, version)| is_id_shared(*version))
        };
        reached.count(Path::OnTwoTimelines, broker.on_two_timelines());
        let log = &self.server.log;
        reached.count(Path::SharedId, log.iter().filter(is_shared).count() as u64);
        let renamed = log.iter().filter(|it| it.has_renamed_rows());
        reached.count(Path::EarlierName, renamed.count() as u64);
        let is_in_part = |it: &&Transaction| !it.left_out.is_empty() && it.sent().next().is_some();
        let in_part = log.iter().filter(is_in_part);
        reached.count(Path::SentInPart, in_part.count() as u64);
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
                relay,
                what,
                stored,
                confirmed,
                in_flight,
            } = told;
            write!(
                text,
                "\n{number:4} {relay} {what}: stored {stored}, confirmed {confirmed}, {in_flight} in flight"
            )
            .unwrap();
        }
        text
    }

    fn tell(&mut self, what: &'static str) {
        let publisher = self.publisher();
        let in_flight = publisher.map_or(0, |it| it.ledger.in_flight_events());
        let told = Told {
            number: self.reached.steps,
            relay: self.server.acting,
            what,
            stored: self.stored.position,
            confirmed: self.server.confirmed,
            in_flight,
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
            .map(<[_]>::len)
            .sum::<usize>();
        let output = (what, told.stored.end_lsn.as_u64(), told.confirmed.as_u64());
        (output, told.in_flight, visible).hash(&mut self.trace);
    }

    pub(super) fn is_transactional(&self) -> bool {
        self.broker.lock().unwrap().is_transactional()
    }

    /// Whether no event may be seen twice. A killed relay does not know which rows of an open
    /// transaction it committed, should the slot be lost.
    pub(super) fn is_exact(&self) -> bool {
        self.is_transactional() && !self.server.has_keys
    }

    pub(super) fn setup(&self) -> Setup {
        let mut table = OutboxConfig::default();
        let mut outboxes = Vec::new();
        if self.server.has_keys {
            table.name_rows_by(&["payload".to_owned()], None);
        } else {
            // Columns and route are those of the table.
            outboxes.push(OutboxConfig {
                source: EventSource::Messages(PREFIX.to_owned()),
                ..OutboxConfig::default()
            });
        }
        outboxes.insert(0, table);
        if self.mode.reads_tails {
            for outbox in &mut outboxes {
                outbox.route.id_header = Some("id".to_owned());
                outbox.route.position_header = Some("position".to_owned());
            }
        }
        if self.tables.is_some() {
            outboxes[0].upkeep.mark = Some("published = true".to_owned());
        }
        if self.mode.has_pending {
            outboxes[0].upkeep.pending = Some("not published".to_owned());
        }
        Setup {
            slot: "simulated".parse().unwrap(),
            outboxes,
            limits: self.limits,
            delivery: self.delivery.clone(),
            refuses_each: self.mode.bus == Bus::Lanes,
        }
    }

    /// One thing happens.
    pub(super) fn step(&mut self) {
        self.random = self.dice.fork();
        // Waits are shortened at random.
        fastrand::seed(self.dice.u64(..));
        self.choose_relay();
        let others = || self.others.iter().map(|other| &other.process);
        let is_open = self.is_open() || others().any(Process::is_open);
        let takes_acks = self.takes_acks() || others().any(Process::takes_acks);
        let longest = match (is_open, takes_acks) {
            (true, _) => 200,
            // A bus that acks at all does so in time.
            (false, true) => 20,
            // Nobody waits for a relay that waits.
            (false, false) => 2_000,
        };
        let time = Duration::from_millis(self.random.u64(0..longest));
        self.passes(time);
        self.server.commits_appear(&mut self.random);
        let at_stake = self.at_stake();
        let before = self.that_were_met();
        let (what, fault) = if self.stands_still() {
            self.stands()
        } else {
            self.watch();
            if self.mode.has_pending && self.random.u8(0..8) == 0 {
                self.look_for_pending();
            }
            self.one_thing()
        };
        self.note_commits();
        self.end_wait();
        self.reached.steps += 1;
        self.tell(what);
        let after = self.that_were_met();
        let met = before
            .iter()
            .zip(&after)
            .map(|((fault, before), (_, after))| (before < after).then_some(*fault));
        let fault = met.flatten().next().or(fault);
        if let Some(fault) = fault {
            *self.reached.faults.entry(fault).or_default() += 1;
            for promise in at_stake {
                *self.reached.at_stake.entry((promise, fault)).or_default() += 1;
            }
        }
        self.check_promises();
    }

    /// How often the relay met each fault of the bus and of events, a slot over its limit, and
    /// catalogs that it could not read.
    fn that_were_met(&self) -> [(Fault, u64); 6] {
        let times = |path| self.reached.paths.get(&path).copied().unwrap_or_default();
        let broker = self.broker.lock().unwrap();
        let refused = broker.refused_alone + broker.batches_refused + broker.refused.len() as u64;
        [
            (Fault::TopicRefused, broker.topic_refusals),
            (Fault::Unroutable, broker.topics_lacked),
            (Fault::Refusal, refused),
            (Fault::BrokerDown, broker.held_up),
            (Fault::OverBudget, times(Path::SlotDropped)),
            (Fault::CatalogUnread, times(Path::LookFailed)),
        ]
    }

    /// What happened, and the fault that took effect.
    fn one_thing(&mut self) -> (&'static str, Option<Fault>) {
        if self.tables.is_some() && self.random.u8(0..3) == 0 {
            return self.step_of_upkeep();
        }
        let has = |fault| self.faults.has(fault);
        let took = |is_effective: bool, fault| is_effective.then_some(fault);
        match self.random.u32(0..100) {
            0..12 => self.write(),
            12..16 => self.server.write_elsewhere(&mut self.random),
            16..18 => {
                self.server.checkpoint();
                self.note(Step::SlotFlushed);
            }
            18..55 => {
                self.receive();
                return ("receive", None);
            }
            55..75 => {
                self.ack();
                return ("ack", None);
            }
            75..90 => {
                self.store(false);
                return ("store", None);
            }
            90..93 => {
                self.confirm();
                return ("confirm", None);
            }
            94 if has(Fault::Disconnect) => {
                let is_open = self.is_open();
                self.lose_connection();
                return ("disconnect", took(is_open, Fault::Disconnect));
            }
            95 if has(Fault::ServerCrash) => {
                let is_open = self.is_open();
                let before = self.server.confirmed;
                let away = Duration::from_millis(self.random.u64(0..3_000));
                self.server.crash(self.now + away, &mut self.random);
                self.note(Step::ServerCrashed);
                self.lose_connections();
                let went_back = self.server.confirmed < before;
                self.reached.count(Path::SlotWentBack, u64::from(went_back));
                return (
                    "server crash",
                    took(is_open || went_back, Fault::ServerCrash),
                );
            }
            96 if has(Fault::DeliveryFailure) => {
                let is_empty = self.broker.lock().unwrap().is_empty();
                self.fail_delivery();
                return ("delivery failure", took(!is_empty, Fault::DeliveryFailure));
            }
            97 if has(Fault::RelayKill) => {
                let was_there = self.relay.pipeline.is_some() || self.relay.reading.is_some();
                self.kill();
                return ("kill", took(was_there, Fault::RelayKill));
            }
            93 | 98 => return self.outage(),
            99 => {
                self.broker.lock().unwrap().mend_some(&mut self.random);
                return ("causes mended", None);
            }
            _ => return ("nothing", None),
        }
        ("write", None)
    }

    /// Something is away for a while, or for good.
    fn outage(&mut self) -> (&'static str, Option<Fault>) {
        let kinds = [
            Fault::BrokerDown,
            Fault::TopicRefused,
            Fault::SlotActive,
            Fault::SlotLost,
            Fault::StoodStill,
            Fault::NoReplication,
            Fault::Failover,
            Fault::Altered,
            Fault::Synchronous,
            Fault::Stop,
            Fault::Requeued,
            Fault::CatalogUnread,
            Fault::HeldBack,
        ];
        let is_possible = |fault: &Fault| {
            self.faults.has(*fault)
                && (*fault != Fault::TopicRefused || self.mode.has_topic_refusals())
                && (*fault != Fault::StoodStill || self.mode.has_stand_by())
                && (*fault != Fault::Requeued || self.mode.has_pending)
        };
        let chosen = kinds.into_iter().filter(is_possible);
        let chosen = self.random.choice(chosen.collect::<Vec<_>>());
        match chosen {
            Some(Fault::TopicRefused) => {
                let mut broker = self.broker.lock().unwrap();
                broker.topic_refuses = !broker.topic_refuses;
                ("topic refuses or not", None)
            }
            Some(Fault::StoodStill) => {
                self.stand_still();
                ("begins to stand still", None)
            }
            Some(Fault::SlotActive) => {
                let held = Duration::from_millis(self.random.u64(0..5_000));
                self.server.hold(self.now + held);
                self.lose_connections();
                ("slot held", chosen)
            }
            Some(Fault::NoReplication) => {
                let forbidden = Duration::from_millis(self.random.u64(0..10_000));
                self.server.forbid(self.now + forbidden);
                ("may not replicate", chosen)
            }
            Some(Fault::CatalogUnread) => {
                let locked = Duration::from_millis(self.random.u64(0..10_000));
                self.server.lock_catalogs(self.now + locked);
                ("catalogs locked", None)
            }
            Some(Fault::HeldBack) => {
                let held_back = Duration::from_millis(self.random.u64(0..10_000));
                self.server.hold_back(self.now + held_back);
                ("held back", chosen)
            }
            Some(Fault::SlotLost) => {
                let is_made_again = self.random.bool();
                self.server.lose_slot(is_made_again, &mut self.random);
                self.note(Step::SlotLost);
                if is_made_again {
                    self.note_slot(None);
                }
                self.lose_connections();
                ("slot lost", chosen)
            }
            Some(Fault::Failover) => {
                self.fail_over();
                ("failover", chosen)
            }
            Some(Fault::Stop) => {
                let was_streaming = self.stop();
                ("told to stop", chosen.filter(|_| was_streaming))
            }
            Some(Fault::Requeued) => {
                let was_marked = self.set_to_pending();
                ("set to pending", chosen.filter(|_| was_marked))
            }
            Some(Fault::Synchronous) => {
                let waits = Duration::from_millis(self.random.u64(0..60_000));
                self.server.waits_for_relay(self.now + waits);
                let is_streamed = self.server.is_streamed();
                ("commits wait", chosen.filter(|_| is_streamed))
            }
            Some(Fault::Altered) => {
                self.is_altered = true;
                // What is published again is more than what was left out.
                self.may_forget = true;
                let has_left_out = self.server.alter_publication(&mut self.random);
                ("publication altered", chosen.filter(|_| has_left_out))
            }
            Some(Fault::BrokerDown) => {
                let mut broker = self.broker.lock().unwrap();
                broker.down = !broker.down;
                ("broker down or up", None)
            }
            Some(fault) => panic!("{fault:?} has no outage"),
            None => ("nothing", None),
        }
    }

    fn write(&mut self) {
        let before = self.server.log.len();
        self.server.write(&mut self.random);
        let mut broker = self.broker.lock().unwrap();
        for event in self.server.log[before..].iter().flat_map(|it| &it.events) {
            match self.random.u8(0..20) {
                0 | 1 if self.faults.has(Fault::Refusal) => _ = broker.unfit.insert(*event),
                2 if self.faults.has(Fault::Unroutable) => _ = broker.unroutable.insert(*event),
                _ => {}
            }
        }
        drop(broker);
        if self.faults.has(Fault::Failover) && self.server.replicate(&mut self.random) {
            self.replicated();
        }
    }

    /// A commit ends that waited for the standby to have it.
    fn end_wait(&mut self) {
        let waits = |tables: &mut Tables| std::mem::take(&mut tables.waits);
        if self.tables.as_mut().is_some_and(waits) {
            self.server.reaches_standby();
            self.replicated();
        }
    }

    /// The standby has all that was written.
    fn replicated(&mut self) {
        if let Some(stored) = &mut self.stored_there {
            stored.clone_from(&self.stored);
        }
        self.tables_there.clone_from(&self.tables);
    }

    /// The standby is promoted, and the relays come to it.
    fn fail_over(&mut self) {
        self.broker.lock().unwrap().journal.is_over = true;
        let away = Duration::from_millis(self.random.u64(0..10_000));
        if self.mode.parks() {
            let stored = self.stored_there.as_ref().unwrap_or(&self.stored);
            self.server.keeps_slot(stored.position.end_lsn);
        }
        let keeps_slot = self.mode.parks();
        let lost = self
            .server
            .promote(self.now + away, keeps_slot, &mut self.random);
        let switch = self.server.end();
        // Not mended: one that goes back, also a second time, forgets that rows are read again of a
        // transaction of which it has a part.
        let reads_table = is_of_table(&self.stored);
        let forgets = |there: &Stored| reads_table && there.position.partial.is_some();
        let there = self.stored_there.take();
        if let Some(stored) = there.filter(|it| !forgets(it)) {
            self.reached
                .count(Path::StoreWentBack, u64::from(self.stored != stored));
            self.stored = stored;
            self.relay.storing = None;
            self.others.iter_mut().for_each(|it| it.storing = None);
        }
        self.promote_tables();
        let knows_more = |stored: &Stored| {
            let published = stored.published.as_ref();
            published.is_some_and(|it| it.pair.lsn > switch || it.also_end > Some(switch))
        };
        let is_storing = |relay: &Relay| relay.storing.as_ref().is_some_and(knows_more);
        let others = self.others.iter().any(|it| is_storing(it));
        self.may_forget |= knows_more(&self.stored) || is_storing(&self.relay) || others;
        let is_behind = self.stored.position.end_lsn > switch && !lost.is_empty();
        self.reached
            .count(Path::Promoted, u64::from(!lost.is_empty()));
        self.reached
            .count(Path::PromotedBehind, u64::from(is_behind));
        let lacks_slot = u64::from(!self.server.has_slot);
        self.reached.count(Path::PromotedWithoutSlot, lacks_slot);
        self.gone.extend(lost.into_iter().flat_map(|it| it.events));
        self.published.clear();
        self.lose_connections();
    }

    /// Marks and parked events are those of the standby.
    fn promote_tables(&mut self) {
        let (Some(tables), Some(there)) = (&mut self.tables, &self.tables_there) else {
            return;
        };
        self.relay.upkeep.promoted();
        self.others.iter_mut().for_each(|it| it.upkeep.promoted());
        let has_keys = self.server.has_keys;
        let is_unmarked = |event: &&Logged| {
            let row = row_of(**event, has_keys);
            row.is_some_and(|row| tables.is_marked(&row) && !there.is_marked(&row))
        };
        let events = self.server.log.iter().flat_map(|it| &it.events);
        let unmarked: Vec<_> = events.filter(is_unmarked).copied().collect();
        self.reached
            .count(Path::MarksWentBack, unmarked.len() as u64);
        self.unmarked.extend(unmarked);
        tables.promote(there);
    }

    pub(super) fn lose_connection(&mut self) {
        if !self.is_open() {
            return;
        }
        if self.relay.reading.is_none() && self.random.bool() {
            self.session_done(Ended::ServerShutDown);
        } else {
            let error = Error::new(Kind::PostgresUnreachable, "the model cut it");
            self.interrupted(error);
        }
    }

    pub(super) fn passes(&mut self, time: Duration) {
        self.now += time;
        self.broker.lock().unwrap().passes(time);
        self.server.passes(self.now);
        self.report();
    }

    /// Faults stop, and everything that was written has to arrive and be confirmed.
    pub(super) fn settle(&mut self) {
        self.broker.lock().unwrap().down = false;
        self.broker.lock().unwrap().mend();
        self.server.mend(&mut self.random);
        self.go_on();
        // The acks of a record that waits for the tail of its topic are waited for in vain.
        let opens_by = self.now + LONGEST + DRAIN + LONGEST + SETTLES_BY;
        let mut has_opened = false;
        for _ in 0..2_000 * self.mode.relays {
            let is_draining = self.takes_acks() && !self.is_open();
            self.passes(if is_draining {
                Duration::from_millis(10)
            } else {
                SETTLES_BY
            });
            if let Some(tables) = &mut self.tables {
                tables.retry_all();
            }
            self.random = self.dice.fork();
            self.switch();
            self.write_back(false);
            self.retry(false);
            self.look_for_pending();
            self.receive();
            has_opened |= self.is_open();
            assert!(has_opened || self.now < opens_by, "P9: no session opens");
            self.ack();
            self.store(false);
            self.confirm();
            self.tell("settle");
            self.check_promises();
            let settled = self
                .relay
                .pipeline
                .as_ref()
                .is_some_and(Pipeline::is_settled);
            let has_parked = self.tables.as_ref().is_some_and(Tables::has_parked);
            // P6: an idle relay confirms the end of the log, whoever wrote it.
            let last = self.server.end();
            let is_confirmed = self.server.confirmed >= last;
            let version = self.server.seen().publication_version;
            let is_read = self.stored.catch_up.is_none();
            let is_known = is_read && self.stored.outboxes.publication_version == version;
            let is_caught_up = self.server.is_caught_up() && is_confirmed && is_known;
            if settled && is_caught_up && !has_parked && self.pending().next().is_none() {
                return;
            }
        }
        panic!(
            "it did not settle: {} transactions, confirmed {}, stored {}, pipeline {:?}",
            self.server.log.len(),
            self.server.confirmed,
            self.stored.position,
            self.relay
                .pipeline
                .as_ref()
                .map(|pipeline| (pipeline.is_settled(), &pipeline.publisher.ledger))
        );
    }

    fn ack(&mut self) {
        let mut deliveries = Vec::new();
        for _ in 0..self.random.usize(1..4) {
            deliveries.extend(self.broker.lock().unwrap().ack_one(&mut self.random));
        }
        self.ack_other();
        if !deliveries.is_empty() {
            self.server.moves();
        }
        let is_acked = |it: &Delivery| matches!(it, Delivery::Acked(_));
        if self.is_open() && deliveries.iter().any(is_acked) {
            self.relay.process.health.acked(self.now);
        }
        self.deliver(deliveries);
    }

    fn fail_delivery(&mut self) {
        let failed = self.broker.lock().unwrap().fail_one(&mut self.random);
        self.deliver(failed.into_iter().collect());
    }

    /// What the producer is told is taken in by the session, or by the next one.
    fn deliver(&mut self, deliveries: Vec<Delivery>) {
        self.broker.lock().unwrap().own.told.extend(deliveries);
        if !self.takes_acks() {
            return;
        }
        if self.publisher().is_none() {
            return;
        }
        self.note_taken(false);
        let publisher = self.publisher().unwrap();
        let before = publisher.counts;
        let taken = take_in_told(publisher);
        let counts = publisher.counts;
        self.relay.process.health.drains(counts, before);
        if let Err(error) = taken {
            self.interrupted(error);
        }
    }

    /// The topic took an event, as far as the producer is told. In a transaction, it counts once
    /// that is committed.
    pub(super) fn note_taken(&mut self, is_committed: bool) {
        let mut broker = self.broker.lock().unwrap();
        let counts = is_committed || !broker.is_transactional();
        if counts && std::mem::take(&mut broker.own.took) {
            self.relay.process.health.topic_took();
        }
    }

    /// A position is stored.
    pub(super) fn note_stored(&mut self) {
        self.note_taken(true);
        if !self.relay.upkeep.is_refused() {
            self.relay.process.health.writes();
        }
    }

    /// A store under way ends, or one that is due begins; in a `hurry`, where the relay stops.
    fn store(&mut self, hurry: bool) {
        if self.relay.reading.is_some() {
            if let Some(stored) = self.relay.storing.take() {
                self.stored = stored.clone();
                self.broker.lock().unwrap().commit();
                self.note_end_of_store(self.relay.number, true);
                self.reached.count(Path::Snapshot, 1);
                self.saved(stored);
                self.note_stored();
            }
            return;
        }
        let is_open = self.is_open();
        let Some(pipeline) = self.relay.pipeline.as_mut().filter(|_| is_open) else {
            return;
        };
        if let Some(stored) = self.relay.storing.take() {
            let position = stored.position;
            self.relay.process.left.stored(stored.clone());
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
            drop(broker);
            self.note_end_of_store(self.relay.number, true);
            self.note_stored();
            return;
        }
        let record = self.relay.process.record().unwrap();
        let due = record.due(pipeline, self.now, hurry);
        match due {
            Due::Progress(position) => {
                pipeline.store_begun(self.now);
                self.begin_store(position);
            }
            Due::Idle(position) => {
                pipeline.store_begun(self.now);
                let open = self.relay.process.open.as_mut().unwrap();
                open.idle = Some(position);
            }
            Due::Nothing => {}
        }
        self.ask();
    }

    fn begin_store(&mut self, position: Position) {
        let pipeline = self.relay.pipeline.as_mut().unwrap();
        let published = pipeline.storing(position);
        let record = self.relay.process.record().unwrap();
        let stored = record.at(position, published);
        self.note_store(&stored);
        self.relay.storing = Some(stored);
    }

    /// The catalogs cannot be read, if so.
    pub(super) fn look_at_catalogs(&mut self) -> Result<(), Error> {
        if !self.server.hides_catalogs(self.now) {
            return Ok(());
        }
        self.reached.count(Path::LookFailed, 1);
        let what = "the catalogs of the model are locked";
        Err(Error::new(Kind::PostgresUnreachable, what))
    }

    /// A pair is taken, or the catalogs are looked at. What fails of it ends the session.
    fn ask(&mut self) {
        if !self.server.is_connected() {
            return;
        }
        if let Err(error) = self.try_to_ask() {
            self.interrupted(error);
        }
    }

    fn try_to_ask(&mut self) -> Result<(), Error> {
        let pipeline = self.relay.pipeline.as_mut().unwrap();
        let open = self.relay.process.open.as_mut().unwrap();
        let record = &mut open.record;
        if let Some(seen) = open.snapshot.take() {
            let taken = self.server.pair(seen);
            match record.took(taken) {
                PairUse::Published(pair) => pipeline.trail.took(pair.snapshot, pair.lsn),
                PairUse::Look => open.looks = true,
                PairUse::Nothing => {}
            }
        } else if record.wants_pair(&pipeline.trail) {
            self.look_at_catalogs()?;
            let open = self.relay.process.open.as_mut().unwrap();
            open.snapshot = Some(self.server.seen());
        }
        let open = self.relay.process.open.as_mut().unwrap();
        let idle = open.idle.take();
        let looks = std::mem::take(&mut open.looks) || idle.is_some();
        if looks || self.random.u8(0..16) == 0 {
            if let Err(error) = self.look_at_catalogs() {
                let pipeline = self.relay.pipeline.as_mut().unwrap();
                if idle.is_some() {
                    pipeline.confirm.abandoned();
                    self.reached.count(Path::IdleAbandoned, 1);
                }
                return Err(error);
            }
            let open = self.relay.process.open.as_mut().unwrap();
            let record = &mut open.record;
            let version = self.server.seen().publication_version;
            if version != record.publication_version() && !record.reads_table() {
                record.altered(version, self.server.take_xid());
                self.note_finished();
            }
        }
        let Some(position) = idle else {
            return Ok(());
        };
        // Where events came meanwhile, they are committed with a position behind them.
        let pipeline = self.relay.pipeline.as_mut().unwrap();
        if pipeline.publisher.transaction.is_open() {
            pipeline.confirm.abandoned();
        } else {
            self.begin_store(position);
        }
        Ok(())
    }

    /// A relay that is at work is told to stop: it takes in no more, waits for acks for a while,
    /// and ends. Whether one was.
    fn stop(&mut self) -> bool {
        if self.is_open() && self.relay.reading.is_some() {
            let may_end = self.mode.may_end_at_table();
            if may_end {
                self.stops();
                self.stop_at_table();
            }
            return may_end;
        }
        let is_streaming = |world: &World| {
            world.is_open() && world.relay.reading.is_none() && world.server.is_connected()
        };
        if !is_streaming(self) {
            return false;
        }
        self.stops();
        for _ in 0..STOP_STEPS {
            if !is_streaming(self) {
                break;
            }
            let pipeline = self.relay.pipeline.as_ref().unwrap();
            if self.relay.storing.is_none() && !pipeline.has_left_over(self.now, true) {
                self.confirm();
                self.reached.count(Path::StoppedWell, 1);
                break;
            }
            self.ack();
            self.write_back(false);
            self.store(true);
        }
        self.kill();
        true
    }

    /// The relay at the table is told to stop: it waits for acks for a while, stores how far it is
    /// in a scan, and ends.
    fn stop_at_table(&mut self) {
        for _ in 0..STOP_STEPS {
            let Some(reading) = &mut self.relay.reading else {
                break;
            };
            if reading.read.publisher.retry_pending().is_err() {
                break;
            }
            if self.relay.storing.is_none() && reading.scans() && reading.read.is_drained() {
                reading.read.advance_to_last();
                self.reached.count(Path::StoppedAtTable, 1);
                if self.save().is_ok() {
                    self.store(true);
                }
                break;
            }
            self.ack();
            self.write_back(false);
            self.store(true);
        }
        self.kill();
    }

    fn confirm(&mut self) {
        let Some(pipeline) = self.relay.pipeline.as_ref().filter(|_| self.is_open()) else {
            return;
        };
        let confirmed = pipeline.confirmable();
        let stored = self.stored.position;
        assert!(
            confirmed <= stored.end_lsn,
            "P1: confirmed {confirmed} past stored {stored}"
        );
        self.send_status(confirmed);
    }

    pub(super) fn send_status(&mut self, confirmed: Lsn) {
        let before = self.server.confirmed;
        self.server.status(confirmed);
        if self.server.confirmed > before {
            let relay = self.relay.number;
            self.note_place(Position::at(confirmed), |place| Step::Confirmed {
                relay,
                place,
            });
        }
    }
}

/// What the producer is told is taken in.
pub(super) fn take_in_told(publisher: &mut Publisher<Producer>) -> Result<(), Error> {
    let told = pin!(publisher.receive_deliveries()).poll(&mut Context::from_waker(Waker::noop()));
    assert!(told.is_ready());
    publisher.delivered()
}

/// Where the time of the model begins.
pub(super) fn epoch() -> Instant {
    static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);
    *EPOCH
}

fn delivery(mode: Mode) -> DeliveryConfig {
    let mut delivery = DeliveryConfig {
        on_error: mode.on_error,
        dead_letter_topic: LETTERS.to_owned(),
        // Attempts end within a schedule.
        retry: RetryConfig {
            attempts: 3,
            base: Duration::from_millis(200),
            cap: Duration::from_secs(2),
            ..RetryConfig::default()
        },
        ..DeliveryConfig::default()
    };
    if mode.bus == Bus::Transactional {
        delivery.guarantee = Guarantee::ExactlyOnce;
        delivery.transaction = TransactionConfig {
            id_prefix: "simulated-".to_owned(),
            max_events: 4,
            interval: Duration::from_millis(300),
            timeout: Duration::from_secs(3),
        };
    }
    delivery
}
