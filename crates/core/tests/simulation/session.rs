//! Sessions of the relay, one after another, as `Sessions` says with the time of the model.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use walrelay_core::config::OnError;
use walrelay_core::error::{Error, Kind};
use walrelay_core::event::BaseTypes;
use walrelay_core::left::Left;
use walrelay_core::position::{Lsn, Position};
use walrelay_core::publisher::delivered_before::DeliveredBefore;
use walrelay_core::publisher::parked_index::RetryMemory;
use walrelay_core::publisher::pipeline::Pipeline;
use walrelay_core::publisher::quarantine::Quarantine;
use walrelay_core::publisher::{IntakeClosed, Publisher};
use walrelay_core::recovery::TableTask;
use walrelay_core::sessions::{Ended, Next, ProducerAfter, Sessions, TableReason};
use walrelay_core::stream_record::StreamRecord;
use walrelay_core::table_read::TableRead;
use walrelay_core::turn::{Look, StandBy};
use walrelay_core::watch::{RequeueDetector, RetentionLimit};
use walrelay_spec::trace::Step;

use super::broker::{Producer, Shared};
use super::health::Health;
use super::plan::{Fault, Path};
use super::server::{Seen, Sent, TABLE_OID};
use super::table::Reading;
use super::turns::StandStill;
use super::world::{World, epoch, take_in_told};

/// The longest wait for the next session, unless a topic refuses.
pub(super) const LONGEST: Duration = Duration::from_secs(15);
/// The longest wait for acks before the table is read.
pub(super) const DRAIN: Duration = Duration::from_secs(10);
/// The topic of positions, which refuses none.
const POSITIONS: &str = "positions";
/// How much of the log the slot may retain.
const RETAINED_MAX: u64 = 1_200;

/// What a process of the relay knows beside its pipeline.
#[derive(Default)]
pub(super) struct Process {
    sessions: Sessions,
    pause: Option<Pause>,
    pub(super) open: Option<Open>,
    /// A read of the table that waits for acks.
    draining: Option<Draining>,
    has_streamed: bool,
    pub(super) left: Left,
    /// Knowledge of rejected events, while no pipeline runs.
    pub(super) quarantine: Quarantine,
    pub(super) health: Health,
    pub(super) stand_still: Option<StandStill>,
    /// Whether the server ended its session, which it has not seen yet.
    pub(super) is_cut: bool,
}

struct Draining {
    why: TableReason,
    until: Duration,
}

/// What it does between two sessions.
enum Pause {
    Waits { until: Duration },
    StandsBy(StandBy),
}

/// A session that is open.
pub(super) struct Open {
    since: Duration,
    /// What a stream stores.
    pub(super) record: StreamRecord,
    /// A snapshot, while the end of the log is asked for.
    pub(super) snapshot: Option<Seen>,
    /// Whether the catalogs are to be looked at.
    pub(super) looks: bool,
    /// An idle position, which is stored after a look.
    pub(super) idle: Option<Position>,
    retention: RetentionLimit,
    requeued: Option<RequeueDetector>,
    /// Up to where rows were marked when the look for pending rows began that is under way.
    looks_since: Option<Position>,
}

impl Process {
    pub(super) fn of(relay: String) -> Process {
        Process {
            left: Left::of(relay),
            ..Process::default()
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether it waits after a failure.
    pub(super) fn waits(&self) -> bool {
        matches!(self.pause, Some(Pause::Waits { .. }))
    }

    /// The record of a stream that is open.
    pub(super) fn record(&mut self) -> Option<&mut StreamRecord> {
        Some(&mut self.open.as_mut()?.record)
    }

    /// Whether a session, or one that is to open, waits for acks.
    pub(super) fn takes_acks(&self) -> bool {
        self.is_open() || self.draining.is_some()
    }
}

impl World {
    pub(super) fn is_open(&self) -> bool {
        self.relay.process.is_open()
    }

    pub(super) fn takes_acks(&self) -> bool {
        self.relay.process.takes_acks()
    }

    pub(super) fn publisher(&mut self) -> Option<&mut Publisher<Producer>> {
        match (&mut self.relay.reading, &mut self.relay.pipeline) {
            (Some(reading), _) => Some(&mut reading.read.publisher),
            (None, Some(pipeline)) => Some(&mut pipeline.publisher),
            (None, None) => None,
        }
    }

    /// A session opens where one is due, and takes in one message or row where it has room.
    pub(super) fn receive(&mut self) {
        if !self.is_open() {
            if !self.may_open() {
                return;
            }
            if let Err(error) = self.open() {
                return self.interrupted(error);
            }
        }
        if let Err(error) = self.take_in() {
            self.interrupted(error);
        }
    }

    fn may_open(&mut self) -> bool {
        let at_work = self.at_work();
        let may = match &mut self.relay.process.pause {
            None => true,
            Some(Pause::Waits { until }) => *until <= self.now,
            Some(Pause::StandsBy(stand_by)) => match stand_by.look(at_work, self.now) {
                Look::Open => {
                    let next = self.relay.process.sessions.ended(Ended::Again, false);
                    assert_eq!(next, Next::Open);
                    self.relay.process.health.standing_by(false);
                    true
                }
                Look::Wait | Look::Check => {
                    self.relay.process.health.standing_by(true);
                    self.waits_for(at_work);
                    false
                }
            },
        };
        if may {
            self.relay.process.pause = None;
        }
        may
    }

    /// Opens a session, unless it still waits for acks.
    fn open(&mut self) -> Result<(), Error> {
        let draining = self.relay.process.draining.take();
        if self.is_transactional() && self.relay.pipeline.is_some() {
            // Every session has a producer of its own.
            self.replace_producer();
        }
        if self.server.is_away(self.now) {
            return Err(Error::new(Kind::PostgresUnreachable, "the model is away"));
        }
        self.look_at_catalogs()?;
        if self.relay.pipeline.is_none() && self.broker.lock().unwrap().down {
            return Err(Error::new(Kind::BusUnreachable, "the model is down"));
        }
        let (why, until) = match draining {
            Some(Draining { why, until }) => (Some(why), Some(until)),
            None => (self.relay.process.sessions.table_instead(), None),
        };
        if self.server.is_held(self.now) {
            self.relay.process.sessions.lost_table();
            if self.server.is_taken() {
                self.note(Step::StoodBy {
                    relay: self.relay.number,
                });
            }
            return Err(Error::new(Kind::SlotActive, "another session has it"));
        }
        self.take_turn();
        let limit = self.now + self.relay.process.left.turn.last_acks_timeout();
        let until = until.map_or(limit, |until| until.min(limit));
        match why.or_else(|| self.table_instead()) {
            Some(why) => self.open_table(why, until),
            None => self.open_stream(),
        }
    }

    fn open_table(&mut self, why: TableReason, until: Duration) -> Result<(), Error> {
        let is_drained = match &mut self.relay.pipeline {
            Some(pipeline) => {
                pipeline.publisher.retry_pending()?;
                pipeline.publisher.is_drained()
            }
            None => true,
        };
        if !is_drained && self.now < until {
            self.relay.process.draining = Some(Draining { why, until });
            return Ok(());
        }
        if !is_drained {
            return Err(Error::new(Kind::BusUnreachable, "acks do not come"));
        }
        self.leave_pipeline();
        let mut start = self.table_start(&why)?;
        let mut publisher = self.publisher_at(Position::default());
        publisher.judge.quarantine = self.relay.process.quarantine.take_over();
        let left = &mut self.relay.process.left;
        let delivered = left.tell(&mut start, &why);
        publisher.write_backs = std::mem::take(&mut left.write_backs).at_table();
        if let Some(tables) = &self.tables {
            publisher.begin_look();
            publisher.judge.parking.begin(tables.index());
        }
        self.relay.reading = Some(Reading::new(publisher, start, delivered, self.now));
        self.server.own();
        self.note(Step::Reads {
            relay: self.relay.number,
        });
        self.opened();
        let read = &self.relay.reading.as_ref().unwrap().read;
        let polls = matches!(read.task, TableTask::Poll(_));
        self.begin_reports(!polls);
        self.reached.count(Path::TableRead, 1);
        Ok(())
    }

    fn open_stream(&mut self) -> Result<(), Error> {
        let was_reading = self.stored.catch_up.is_some();
        self.stored = self.stream_start();
        if was_reading {
            self.note_store(&self.stored);
            self.note_end_of_store(self.relay.number, true);
        }
        self.relay.process.left.stored(self.stored.clone());
        if self.relay.process.left.turn.is_past() {
            let was_running = self.relay.pipeline.is_some();
            self.replace_producer();
            self.relay.process.left.open();
            if was_running {
                self.reached.count(Path::CameBack, 1);
                return Err(Error::new(Kind::SlotActive, "another relay was at work"));
            }
        }
        let begins = self.relay.pipeline.is_none();
        if begins {
            self.relay.pipeline = Some(self.next_pipeline());
        }
        self.server.connect();
        self.expect_again();
        self.note_stream(begins);
        let pipeline = self.relay.pipeline.as_mut().unwrap();
        let is_inside = pipeline.publisher.ledger.received().partial.is_some();
        pipeline.reconnected();
        pipeline.set_synchronous(pipeline.is_synchronous())?;
        if let Some(tables) = &self.tables {
            pipeline.publisher.begin_look();
            pipeline.publisher.judge.parking.begin(tables.index());
        }
        self.relay.process.has_streamed = true;
        self.opened();
        self.begin_reports(true);
        self.reached
            .count(Path::ResumedInsideATransaction, u64::from(is_inside));
        Ok(())
    }

    fn opened(&mut self) {
        let resumed = self.relay.process.sessions.opened();
        self.reached
            .count(Path::TriedOften, u64::from(resumed.tries > 3));
        let has_limit = self.faults.has(Fault::OverBudget);
        self.relay.process.open = Some(Open {
            since: self.now,
            record: StreamRecord::new(self.stored.clone()),
            snapshot: None,
            looks: true,
            idle: None,
            retention: RetentionLimit::new(has_limit.then_some(RETAINED_MAX), true),
            requeued: RequeueDetector::of(&self.setup().outboxes),
            looks_since: None,
        });
    }

    /// One message of the stream, or one row of the table.
    fn take_in(&mut self) -> Result<(), Error> {
        if self.relay.reading.is_some() {
            return self.read_on();
        }
        let Some(pipeline) = self
            .relay
            .pipeline
            .as_mut()
            .filter(|_| self.relay.process.open.is_some())
        else {
            return Ok(());
        };
        if self.stored.catch_up.is_some() {
            // Some of what is on its way is stored before.
            if pipeline.is_settled() || self.random.u8(0..8) == 0 {
                self.reached.count(Path::ReadAltered, 1);
                self.session_done(Ended::Again);
            }
            return Ok(());
        }
        if !self.server.is_connected() {
            return Err(Error::new(Kind::PostgresUnreachable, "the server ended it"));
        }
        let may_fail = self.faults.has(Fault::BrokerDown);
        read_tail(pipeline, &self.broker, may_fail, &mut self.random);
        pipeline.publisher.retry_pending()?;
        pipeline.look(self.now, false);
        let closed = pipeline.publisher.intake_closed();
        let is_full = closed == Some(IntakeClosed::InFlightBytes);
        self.reached.count(Path::BytesFull, u64::from(is_full));
        if closed.is_some() {
            return Ok(());
        }
        let broker = &self.broker;
        let lacks_topic = |event| broker.lock().unwrap().lacks_topic(event);
        let sent = self.server.send(&lacks_topic, &mut self.random);
        match sent {
            None => Ok(()),
            Some(Sent::Keepalive { wal_end }) => {
                self.relay.process.health.received(wal_end);
                pipeline.keepalive(wal_end);
                Ok(())
            }
            Some(Sent::Data { wal_start, body }) => {
                self.relay.process.health.received(wal_start);
                let ledger = &pipeline.publisher.ledger;
                let has_room = ledger.in_flight_bytes() < self.limits.bytes;
                let next = ledger.next();
                let taken = pipeline.data(wal_start, &body, epoch() + self.now);
                let is_event = pipeline.publisher.ledger.next() != next;
                assert!(
                    has_room || !is_event,
                    "P4: an event is taken in beyond the limit"
                );
                taken.map(|_| ())
            }
        }
    }

    /// A relay that streams measures slot and log, and leaves the stream where commits wait for too
    /// long.
    pub(super) fn watch(&mut self) {
        if self.streaming().is_some() && self.random.u8(0..4) == 0 {
            self.measure();
        }
        let Some(pipeline) = self.streaming() else {
            return;
        };
        if pipeline.is_synchronous() {
            let confirmed = pipeline.confirmable();
            self.send_status(confirmed);
        }
        let now = self.now;
        let Some(pipeline) = self.streaming() else {
            return;
        };
        if let Err(error) = pipeline.look_at_held_commits(now) {
            self.reached.count(Path::StreamLeft, 1);
            self.interrupted(error);
        }
    }

    /// The pipeline of a stream that the server has not ended.
    fn streaming(&mut self) -> Option<&mut Pipeline<Producer>> {
        let streams = self.relay.reading.is_none() && self.server.is_connected();
        self.relay.pipeline.as_mut().filter(|_| streams)
    }

    /// A relay that streams measures slot and log. It drops a slot that is over its limit.
    pub(super) fn measure(&mut self) {
        let end = self.server.end();
        let retained_bytes = end.bytes_since(self.server.confirmed);
        let waits = self.server.is_synchronous();
        let is_over = self.faults.has(Fault::OverBudget) && retained_bytes > RETAINED_MAX;
        let Some(pipeline) = self.streaming() else {
            return;
        };
        let begins = waits && !pipeline.is_synchronous();
        let is_set = pipeline.set_synchronous(waits);
        let may_drop = pipeline.knows_published();
        self.reached.count(Path::CommitsWait, u64::from(begins));
        self.may_lack_marks |= begins;
        let process = &mut self.relay.process;
        let (over, _) = process
            .open
            .as_mut()
            .unwrap()
            .retention
            .judge(retained_bytes);
        process.health.measured(end, waits, over);
        process.health.retains(is_over);
        if let Err(error) = is_set {
            self.interrupted(error);
        } else if is_over && may_drop {
            self.session_done(Ended::OverBudget);
        }
    }

    /// A look for pending rows begins, or ends.
    pub(super) fn look_for_pending(&mut self) {
        if self.relay.reading.is_some() || !self.server.is_connected() {
            return;
        }
        let (Some(pipeline), Some(open)) = (&self.relay.pipeline, &mut self.relay.process.open)
        else {
            return;
        };
        let Some(settled) = open.looks_since.take() else {
            let publisher = &pipeline.publisher;
            let marked = publisher.write_backs.marked(publisher.ledger.delivered());
            open.looks_since = Some(marked);
            return;
        };
        let rows = self.pending().collect();
        let lsn = self.server.end();
        let open = self.relay.process.open.as_mut().unwrap();
        let Some(requeued) = &mut open.requeued else {
            return;
        };
        let mut asked = requeued.looked(rows, lsn, &settled);
        let pipeline = self.relay.pipeline.as_ref().unwrap();
        asked.retain(|row| !pipeline.publisher.judge.parking.holds_row(row));
        if !asked.is_empty() {
            self.session_done(Ended::Asked(asked));
        }
    }

    // Ends of sessions.

    /// The session, or the attempt to open one, ended with an error.
    pub(super) fn interrupted(&mut self, error: Error) {
        self.end_session(Some(&error));
        match self.relay.process.sessions.interrupted(error, false) {
            Ok(next) => self.follow(next),
            Err(error) => self.ended(&error),
        }
    }

    /// The session ended, and nothing failed.
    pub(super) fn session_done(&mut self, how: Ended) {
        self.end_session(None);
        let next = self.relay.process.sessions.ended(how, false);
        self.follow(next);
    }

    fn follow(&mut self, next: Next) {
        let error = match next {
            Next::Open => return,
            Next::StandBy(_) => {
                self.reached.count(Path::StoodBy, 1);
                self.relay.process.pause = Some(Pause::StandsBy(StandBy::new(self.now)));
                return;
            }
            Next::TryAgain(error) => error,
            Next::DropSlot => {
                self.drop_slot();
                return;
            }
            Next::Leave | Next::LeaveWithoutAcks(_) => panic!("{next:?}"),
        };
        self.relay.process.health.failed(&error);
        let quarantine = match &mut self.relay.pipeline {
            Some(pipeline) => &mut pipeline.publisher.judge.quarantine,
            None => &mut self.relay.process.quarantine,
        };
        let retry = self.relay.process.sessions.failed(
            &error,
            quarantine,
            &self.delivery,
            POSITIONS,
            epoch() + self.now,
            self.random.f64(),
        );
        let retry = match retry {
            Ok(retry) => retry,
            Err(error) => return self.ended(&error),
        };
        self.relay.process.health.tries_again(&error, &retry);
        match retry.topic {
            None => assert!(retry.wait <= LONGEST, "P9: it waits for {:?}", retry.wait),
            Some(topic) if topic.wait.is_none() => self.reached.count(Path::TopicGivenUp, 1),
            Some(_) => self.reached.count(Path::TopicTried, 1),
        }
        match retry.producer {
            ProducerAfter::Keep => {}
            ProducerAfter::Replace | ProducerAfter::End => self.replace_producer(),
        }
        let until = self.now + retry.wait;
        self.relay.process.pause = Some(Pause::Waits { until });
    }

    /// The relay drops the slot, unless another one has it by now.
    fn drop_slot(&mut self) {
        if self.server.is_away(self.now) || self.server.is_held(self.now) {
            return;
        }
        self.server.lose_slot(false, &mut self.random);
        self.note(Step::SlotLost);
        self.relay.process.sessions.slot_dropped();
        self.reached.count(Path::SlotDropped, 1);
    }

    fn end_session(&mut self, error: Option<&Error>) {
        let is_lost = error.is_some_and(|it| it.kind() == Kind::PostgresUnreachable);
        let has_lease = self.server.is_owner() && !is_lost;
        if self.is_open() && self.relay.reading.is_none() {
            self.end_reports();
        }
        self.server.disconnect();
        self.end_pass();
        self.end_store();
        let open = self.relay.process.open.take();
        let since = open.as_ref().map_or(self.now, |it| it.since);
        let lasted = self.now - since;
        if let Some(reading) = self.relay.reading.take() {
            self.relay
                .process
                .sessions
                .table_ended(lasted, error.is_none());
            self.end_reading(reading, error, has_lease);
        } else if let Some(open) = open {
            let has_stored = open.record.stored.position != self.stored.position;
            self.relay.process.sessions.stream_ended(lasted, has_stored);
        }
        self.note(Step::SessionEnded {
            relay: self.relay.number,
        });
    }

    /// A store that nobody waits for any more may have happened.
    pub(super) fn end_store(&mut self) {
        if let Some(stored) = self.relay.storing.take() {
            let happens = self.random.bool();
            if happens {
                self.stored = stored;
                self.broker.lock().unwrap().commit();
            }
            self.note_end_of_store(self.relay.number, happens);
        }
    }

    /// The read of the table ended.
    fn end_reading(&mut self, mut reading: Reading, error: Option<&Error>, has_lease: bool) {
        let goes_on = |error: &Error| !error.kind().ends_producer() && !error.kind().halts();
        if error.is_some_and(goes_on) {
            self.drain(&mut reading.read.publisher);
            reading.read.advance_to_last();
            let may_store = reading.read.may_store_at_end(has_lease) && self.random.bool();
            if may_store && matches!(reading.read.must_store(), Ok(true)) {
                self.store_at_end(&mut reading.read);
            }
        }
        let mut read = reading.read;
        let health = &mut self.relay.process.health;
        health.closed(self.now, &read.publisher, Lsn::default());
        self.count_of(&read.publisher);
        let is_clean =
            read.publisher.is_drained() && !error.is_some_and(|error| error.kind().ends_producer());
        if error.is_some() {
            read.interrupt();
        }
        self.relay.process.quarantine = std::mem::take(&mut read.publisher.judge.quarantine);
        let left = &mut self.relay.process.left;
        read.leave(left, error.is_some());
        let is_open = read.publisher.transaction.is_open();
        if !is_clean || is_open {
            self.broker.lock().unwrap().producer_gone(&mut self.random);
        }
    }

    fn store_at_end(&mut self, read: &mut TableRead<Producer>) {
        self.stored = read.stored.clone();
        self.broker.lock().unwrap().commit();
        self.note_store(&read.stored);
        self.note_end_of_store(self.relay.number, true);
        self.note_stored();
        self.relay.process.left.stored(read.stored.clone());
        read.was_stored();
    }

    /// The producer is well: what it has need not be sent again.
    fn drain(&mut self, publisher: &mut Publisher<Producer>) {
        for _ in 0..50 {
            if publisher.is_drained() || publisher.retry_pending().is_err() {
                return;
            }
            let mut broker = self.broker.lock().unwrap();
            let acked = broker.ack_one(&mut self.random);
            broker.own.told.extend(acked);
            drop(broker);
            self.note_taken(false);
            if take_in_told(publisher).is_err() {
                return;
            }
        }
    }

    /// The relay ends at what only a person can mend, who mends it and starts another.
    fn ended(&mut self, error: &Error) {
        assert_eq!(self.mode.on_error, OnError::Stop, "it ended: {error}");
        self.reached.count(Path::Stopped, 1);
        let is_unroutable = error.kind() == Kind::Event;
        self.reached
            .count(Path::Unroutable, u64::from(is_unroutable));
        self.kill();
        self.broker.lock().unwrap().mend();
    }

    // Producers.

    /// The producer is finished. A new one starts behind what was delivered, not behind what was
    /// stored.
    pub(super) fn replace_producer(&mut self) {
        if self.leave_pipeline() {
            let mut broker = self.broker.lock().unwrap();
            // Another relay may have had the turn since that was sent.
            let is_stale = broker.own.is_stale;
            broker.own.is_stale |=
                self.relay.process.left.turn.is_past() && !broker.is_transactional();
            broker.producer_gone(&mut self.random);
            broker.own.is_stale = is_stale;
        }
    }

    /// Whether there was one. What it knew is left to the next session.
    pub(super) fn leave_pipeline(&mut self) -> bool {
        let Some(mut pipeline) = self.relay.pipeline.take() else {
            return false;
        };
        self.count_of(&pipeline.publisher);
        let process = &mut self.relay.process;
        process.left.ended(&mut pipeline);
        process.quarantine = std::mem::take(&mut pipeline.publisher.judge.quarantine);
        true
    }

    /// The relay is killed with -9.
    pub(super) fn kill(&mut self) {
        self.end_store();
        if let Some(reading) = self.relay.reading.take() {
            self.count_of(&reading.read.publisher);
            self.reached.count(Path::KilledAtTheTable, 1);
        }
        if let Some(pipeline) = self.relay.pipeline.take() {
            self.count_of(&pipeline.publisher);
        }
        self.broker
            .lock()
            .unwrap()
            .producer_killed(&mut self.random);
        self.server.disconnect();
        self.end_pass();
        self.note(Step::Killed {
            relay: self.relay.number,
        });
        self.relay.process = Process::of(self.random.u64(..).to_string());
        self.relay.upkeep.memory = RetryMemory::default();
    }

    pub(super) fn count_of(&mut self, publisher: &Publisher<Producer>) {
        let counts = publisher.counts;
        let reached = &mut self.reached;
        reached.count(Path::DeliveredBefore, counts.delivered_before);
        reached.count(Path::Skipped, counts.skipped);
        reached.count(Path::Parked, counts.parked);
        reached.count(Path::Unroutable, counts.failed[0]);
    }

    fn publisher_at(&self, start: Position) -> Publisher<Producer> {
        let sink = Producer(Arc::clone(&self.broker));
        let mut publisher = Publisher::new(&self.setup(), start, sink).expect("a publisher");
        let server = &self.server.identity;
        publisher.set_origin(&server.system_identifier, server.timeline);
        publisher
    }

    /// The pipeline of a producer that begins.
    fn next_pipeline(&mut self) -> Pipeline<Producer> {
        let stored = self.stored.position;
        let is_inside = stored.partial.is_some() && !self.relay.process.has_streamed;
        self.reached
            .count(Path::RestartedInsideATransaction, u64::from(is_inside));
        let setup = self.setup();
        let sink = Producer(Arc::clone(&self.broker));
        let process = &mut self.relay.process;
        let published = self.stored.published.clone();
        let made = process
            .left
            .begin(&setup, stored, published, sink, self.now);
        let mut pipeline = made.expect("a pipeline");
        pipeline.publisher.judge.quarantine = process.quarantine.take_over();
        let table_oids = HashMap::from([(TABLE_OID, 0)]);
        pipeline
            .assembler
            .set_catalog(table_oids, BaseTypes::default());
        let server = &self.server.identity;
        let publisher = &mut pipeline.publisher;
        publisher.set_origin(&server.system_identifier, server.timeline);
        pipeline
    }

    /// Makes the publisher find what a process published and did not store.
    fn expect_again(&mut self) {
        let is_in_doubt = self.relay.process.left.turn.take_doubt();
        if !is_in_doubt || !self.mode.reads_tails {
            return;
        }
        let publisher = &mut self.relay.pipeline.as_mut().unwrap().publisher;
        let outboxes = &publisher.setup.outboxes;
        let stored = self.stored.position;
        let before =
            DeliveredBefore::new(outboxes, &self.server.identity, stored, self.server.end());
        publisher.judge.before = before.map(Box::new);
    }
}

/// The tail that is waited for is read, or cannot be.
fn read_tail(
    pipeline: &mut Pipeline<Producer>,
    broker: &Shared,
    may_fail: bool,
    random: &mut fastrand::Rng,
) {
    let Some(before) = &mut pipeline.publisher.judge.before else {
        return;
    };
    match before.unread() {
        Some(mut tail) if random.u8(0..10) > 0 || !may_fail => {
            broker.lock().unwrap().read(&mut tail);
            before.read(tail, false);
        }
        Some(tail) if random.bool() => before.unreadable(&tail.topic),
        Some(_) | None => {}
    }
}
