//! A model of one topic of three partitions, and of two producers on it: a gapless one, and one of
//! a bus that refuses each record for itself.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use walrelay_core::error::{Error, Kind};
use walrelay_core::lanes::{Attempt, Lanes, Outcome};
use walrelay_core::ledger::Ticket;
use walrelay_core::publisher::delivered_before::Tail;
use walrelay_core::route::{OwnedRecord, Record};
use walrelay_core::sink::{Delivery, EnqueueError, Sink};

const PARTITIONS: usize = 3;
/// Records one producer's queue holds.
const QUEUE: usize = 5;
/// Records that may be on their way to a bus that refuses each.
const SENT: usize = 3;

/// One event as it stands in the log: aggregate and version.
pub(super) type Logged = (u8, u64);

/// The topic's log, and the queue of the producer that lives.
#[derive(Debug, Default)]
pub(super) struct Broker {
    log: [Vec<Logged>; PARTITIONS],
    queues: [VecDeque<(Ticket, Logged)>; PARTITIONS],
    /// No broker takes anything while it is down.
    pub(super) down: bool,
    /// Times the queue was full.
    pub(super) full: u64,
    /// Records that were refused for themselves.
    pub(super) refused: u64,
    /// What was offered for each event.
    offered: HashMap<Logged, OwnedRecord>,
    /// Events that are refused until somebody mends the cause.
    pub(super) unfit: HashSet<Logged>,
    /// What the producer is told next.
    pub(super) told: Vec<Delivery>,
    /// How much of each log is committed, where producers have transactions.
    committed: Option<[usize; PARTITIONS]>,
    /// Where the bus refuses each record for itself.
    lanes: Option<LaneBus>,
}

#[derive(Debug)]
struct LaneBus {
    lanes: Lanes,
    on_their_way: Vec<Attempt>,
    now: Instant,
}

impl LaneBus {
    fn new(now: Instant) -> LaneBus {
        LaneBus {
            lanes: Lanes::new(SENT, QUEUE),
            on_their_way: Vec::new(),
            now,
        }
    }

    /// One of the records that are on their way.
    fn take_one(&mut self, random: &mut fastrand::Rng) -> Option<Attempt> {
        while let Some(attempt) = self.lanes.next(self.now) {
            self.on_their_way.push(attempt);
        }
        let count = self.on_their_way.len();
        (count > 0).then(|| self.on_their_way.swap_remove(random.usize(..count)))
    }

    fn ended(&mut self, attempt: &Attempt, outcome: Outcome) -> Option<Delivery> {
        self.lanes.ended(attempt.id, outcome, self.now);
        self.told()
    }

    fn told(&mut self) -> Option<Delivery> {
        let mut told = Vec::new();
        self.lanes.take_deliveries(&mut told);
        told.pop()
    }
}

fn logged(record: &Record<'_>) -> Logged {
    let text = |bytes: Option<&[u8]>| std::str::from_utf8(bytes.unwrap()).unwrap().to_owned();
    (
        text(record.key).parse().unwrap(),
        text(record.value).parse().unwrap(),
    )
}

fn unfit() -> Error {
    Error::new(Kind::Record, "the model refuses it until it is mended")
}

pub(super) type Shared = Arc<Mutex<Broker>>;

impl Broker {
    /// With producers that have transactions.
    pub(super) fn transactional() -> Broker {
        Broker {
            committed: Some([0; PARTITIONS]),
            ..Broker::default()
        }
    }

    /// With a bus that refuses each record for itself.
    pub(super) fn with_lanes() -> Broker {
        Broker {
            lanes: Some(LaneBus::new(Instant::now())),
            ..Broker::default()
        }
    }

    pub(super) fn passes(&mut self, time: Duration) {
        if let Some(bus) = &mut self.lanes {
            bus.now += time;
        }
    }

    /// Nobody knows whether it was taken.
    fn may_append(&mut self, attempt: &Attempt, random: &mut fastrand::Rng) {
        let is_fit = !self.unfit.contains(&attempt.record.with_record(logged));
        if is_fit && random.bool() {
            self.append(attempt);
        }
    }

    fn append(&mut self, attempt: &Attempt) {
        let logged = attempt.record.with_record(logged);
        self.log[usize::from(logged.0) % PARTITIONS].push(logged);
    }

    pub(super) fn is_transactional(&self) -> bool {
        self.committed.is_some()
    }

    /// Everything that was sent arrives, and becomes visible.
    pub(super) fn commit(&mut self) {
        if let Some(committed) = &mut self.committed {
            for ((queue, log), committed) in
                self.queues.iter_mut().zip(&mut self.log).zip(committed)
            {
                log.extend(queue.drain(..).map(|(_, logged)| logged));
                *committed = log.len();
            }
        }
    }

    /// Another producer fences the last one: what that had open nobody will see.
    fn abort(&mut self) {
        for (log, committed) in self
            .log
            .iter_mut()
            .zip(self.committed.into_iter().flatten())
        {
            log.truncate(committed);
        }
    }

    /// What readers see of each partition.
    pub(super) fn visible(&self) -> impl Iterator<Item = &[Logged]> {
        let lengths = self
            .committed
            .unwrap_or_else(|| self.log.each_ref().map(Vec::len));
        self.log
            .iter()
            .zip(lengths)
            .map(|(log, length)| &log[..length])
    }

    /// Reads the tail of a topic, in windows that go back.
    pub(super) fn read(&self, tail: &mut Tail) {
        for log in &self.log {
            let mut to = log.len();
            let mut window = 2;
            while to > 0 {
                let from = to.saturating_sub(window);
                for (offset, event) in (0..).zip(log).take(to).skip(from) {
                    let Some(record) = self.offered.get(event) else {
                        continue;
                    };
                    if record.topic == tail.topic {
                        record.with_record(|record| tail.take(record, offset));
                    }
                }
                to = from;
                window *= 2;
            }
        }
    }

    /// A producer of retries sent these.
    pub(super) fn took(&mut self, events: &[Logged]) {
        for event in events {
            self.log[usize::from(event.0) % PARTITIONS].push(*event);
        }
    }

    /// The broker takes the oldest record of a partition and says so.
    pub(super) fn ack_one(&mut self, random: &mut fastrand::Rng) -> Option<Delivery> {
        let partition = random.usize(0..PARTITIONS);
        if self.down {
            return None;
        }
        if let Some(bus) = &mut self.lanes {
            let attempt = bus.take_one(random)?;
            if self.unfit.contains(&attempt.record.with_record(logged)) {
                self.refused += 1;
                let error = unfit();
                return bus.ended(&attempt, Outcome::Refused { error, after: None });
            }
            let told = bus.ended(&attempt, Outcome::Acked);
            self.append(&attempt);
            return told;
        }
        let (ticket, logged) = self.queues[partition].pop_front()?;
        self.log[partition].push(logged);
        Some(Delivery::Acked(ticket))
    }

    /// The oldest record of a partition fails, and with it the producer: nobody can tell whether it
    /// is in the log.
    pub(super) fn fail_one(&mut self, random: &mut fastrand::Rng) -> Option<Delivery> {
        if self.lanes.is_some() {
            return self.refuse_one(random);
        }
        let partition = random.usize(0..PARTITIONS);
        let (ticket, logged) = self.queues[partition].pop_front()?;
        if random.bool() {
            self.log[partition].push(logged);
        } else {
            // Gapless: what lies behind a record that did not arrive does not arrive either.
            self.queues[partition].clear();
        }
        Some(Delivery::Failed(
            ticket,
            Error::new(Kind::BusUnreachable, "the model failed it"),
        ))
    }

    /// The bus refuses a record, for now or for good, or nobody knows what became of it.
    fn refuse_one(&mut self, random: &mut fastrand::Rng) -> Option<Delivery> {
        let bus = self.lanes.as_mut()?;
        if random.u8(0..4) == 0 {
            bus.lanes.all_unknown();
            for attempt in std::mem::take(&mut bus.on_their_way) {
                self.may_append(&attempt, random);
            }
            return None;
        }
        let attempt = bus.take_one(random)?;
        if random.u8(0..4) == 0 {
            let lost = Error::new(Kind::BusUnreachable, "the model loses the connection");
            bus.lanes.unknown(attempt.id, Some(lost), bus.now);
            let told = bus.told();
            self.may_append(&attempt, random);
            return told;
        }
        let kind = random.choice([Kind::Record, Kind::TopicRefused, Kind::BusUnreachable])?;
        self.refused += 1;
        let after = random.bool().then_some(Duration::from_secs(2));
        let error = Error::new(kind, "the model refuses it");
        bus.ended(&attempt, Outcome::Refused { error, after })
    }

    /// The producer is gone: what was on the wire may still land, in order.
    pub(super) fn producer_gone(&mut self, random: &mut fastrand::Rng) {
        for (queue, log) in self.queues.iter_mut().zip(&mut self.log) {
            let landed = if self.down {
                0
            } else {
                random.usize(0..=queue.len())
            };
            log.extend(queue.drain(..).take(landed).map(|(_, logged)| logged));
        }
        self.abort();
        if let Some(bus) = &mut self.lanes {
            let gone = std::mem::replace(bus, LaneBus::new(bus.now));
            for attempt in &gone.on_their_way {
                self.may_append(attempt, random);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
            && self.lanes.as_ref().is_none_or(|bus| bus.lanes.is_empty())
    }
}

/// The producer's side of [`Broker`].
#[derive(Debug)]
pub(super) struct Producer(pub Shared);

impl Sink for Producer {
    fn enqueue(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        let mut broker = self.0.lock().unwrap();
        if let Some(bus) = &mut broker.lanes {
            let taken = bus.lanes.enqueue(record, ticket);
            broker.full += u64::from(taken.is_err());
            return taken;
        }
        let logged = logged(record);
        if broker.unfit.contains(&logged) {
            return Err(EnqueueError::Refused(unfit()));
        }
        broker.offered.insert(logged, OwnedRecord::of(record));
        if broker.queues.iter().map(VecDeque::len).sum::<usize>() >= QUEUE {
            broker.full += 1;
            return Err(EnqueueError::Full);
        }
        broker.queues[usize::from(logged.0) % PARTITIONS].push_back((ticket, logged));
        Ok(())
    }

    fn refuses_each(&self) -> bool {
        self.0.lock().unwrap().lanes.is_some()
    }

    fn retry(&mut self, refused: Ticket, wait: Duration) {
        let mut broker = self.0.lock().unwrap();
        let bus = broker.lanes.as_mut().unwrap();
        bus.lanes.retry(refused, bus.now + wait);
    }

    fn withdraw(&mut self, refused: Ticket) -> Vec<(Ticket, Arc<OwnedRecord>)> {
        let mut broker = self.0.lock().unwrap();
        broker.lanes.as_mut().unwrap().lanes.withdraw(refused)
    }

    async fn deliveries(&mut self, into: &mut Vec<Delivery>) {
        into.append(&mut self.0.lock().unwrap().told);
    }
}
