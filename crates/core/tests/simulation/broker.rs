//! A model of one topic of three partitions, and of two producers on it: a gapless one, and one of
//! a bus that refuses each record for itself.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use walrelay_core::error::{Error, Kind};
use walrelay_core::lanes::{Attempt, Lanes, Outcome};
use walrelay_core::ledger::Ticket;
use walrelay_core::parked::ParkedEvent;
use walrelay_core::publisher::delivered_before::Tail;
use walrelay_core::route::{OwnedRecord, Record};
use walrelay_core::sink::{Delivery, EnqueueError, Sink};

use super::journal::Journal;
use super::server::{TOPIC, TOPIC_COLUMN};
use super::world::epoch;

const PARTITIONS: usize = 3;
/// Records one producer's queue holds.
pub(super) const QUEUE: usize = 5;
/// Records that may be on their way to a bus that refuses each.
const SENT: usize = 3;
/// Records that a broker takes or refuses together.
const BATCH: usize = 3;
/// The topic of dead letters.
pub(super) const LETTERS: &str = "dead";

/// One event as it stands in the log: aggregate and version.
pub(super) type Logged = (u8, u64);

/// A record in the log.
#[derive(Debug, Clone)]
pub(super) struct Landed {
    pub(super) event: Logged,
    /// As it was sent.
    record: Arc<OwnedRecord>,
}

impl Landed {
    /// What its record says.
    fn timeline(&self) -> Option<&str> {
        let headers = &self.record.headers;
        let (_, place) = headers.iter().find(|(name, _)| name == "position")?;
        std::str::from_utf8(place.as_deref()?)
            .unwrap()
            .split(':')
            .nth(1)
    }
}

/// The topic's log, and the queue of the producer of the relay that acts.
#[derive(Debug, Default)]
pub(super) struct Broker {
    log: [Vec<Landed>; PARTITIONS],
    /// The producer of the relay that acts, and those of the others.
    pub(super) own: Client,
    others: Vec<Client>,
    /// No broker takes anything while it is down.
    pub(super) down: bool,
    /// Times the queue was full.
    pub(super) full: u64,
    /// Events that were refused for themselves: no others may be given up.
    pub(super) refused: BTreeSet<Logged>,
    /// Events whose dead letters were taken.
    pub(super) letters: BTreeSet<Logged>,
    /// Times that a batch was refused for one of its records.
    pub(super) batches_refused: u64,
    /// Times that the producer went on after a refusal.
    pub(super) refused_alone: u64,
    /// Times that nothing was taken, because the broker is down.
    pub(super) held_up: u64,
    /// Events that are refused until somebody mends the cause.
    pub(super) unfit: BTreeSet<Logged>,
    /// Events whose rows have no topic until somebody mends that.
    pub(super) unroutable: BTreeSet<Logged>,
    /// Times that a row was sent without its topic.
    pub(super) topics_lacked: u64,
    /// Whether the topic refuses whatever is sent to it, how often it did.
    pub(super) topic_refuses: bool,
    pub(super) topic_refusals: u64,
    /// The topic of events.
    topic: String,
    /// How much of each log is committed, where producers have transactions.
    committed: Option<[usize; PARTITIONS]>,
    /// What producers sent that are gone, in order.
    arriving: VecDeque<Arriving>,
    /// Copies that landed after another relay had the turn, by partition and place there.
    late: BTreeSet<(usize, usize)>,
    /// Whether what lands is to land later.
    is_on_the_wire: bool,
    pub(super) journal: Journal,
}

/// What a relay's producer has.
#[derive(Debug, Default)]
pub(super) struct Client {
    /// The number of the relay.
    relay: usize,
    queues: [VecDeque<Queued>; PARTITIONS],
    /// The record that was sent apart from others.
    apart: Option<Ticket>,
    /// Whether a record failed, and the producer takes no other.
    is_finished: bool,
    /// What the producer is told next.
    pub(super) told: Vec<Delivery>,
    /// Whether an event of it was taken, which the relay is told.
    pub(super) took: bool,
    /// Where the bus refuses each record for itself.
    lanes: Option<LaneBus>,
    /// Whether another relay has had the turn since this producer began.
    pub(super) is_stale: bool,
}

impl Client {
    fn with_lanes() -> Client {
        Client {
            lanes: Some(LaneBus::new(epoch())),
            ..Client::default()
        }
    }
}

/// A record that no producer waits for.
#[derive(Debug)]
struct Arriving {
    queued: Queued,
    is_stale: bool,
}

/// A record on its way.
#[derive(Debug)]
struct Queued {
    ticket: Ticket,
    event: Logged,
    is_letter: bool,
    record: Arc<OwnedRecord>,
}

impl Queued {
    fn of(record: Arc<OwnedRecord>, ticket: Ticket) -> Queued {
        Queued {
            ticket,
            event: record.with_record(logged),
            is_letter: record.topic == LETTERS,
            record,
        }
    }
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

/// Whether an unfit event is refused by the broker, and not by its client.
fn is_late((aggregate, version): Logged) -> bool {
    (u64::from(aggregate) + version).is_multiple_of(2)
}

/// Aggregate and version of a record's event.
pub(super) fn logged(record: &Record<'_>) -> Logged {
    let text = |bytes: Option<&[u8]>| std::str::from_utf8(bytes.unwrap()).unwrap().to_owned();
    let value = text(record.value);
    // A dead letter of an event without a topic has its columns.
    let version = value.parse().unwrap_or_else(|_| {
        let row: serde_json::Value = serde_json::from_str(&value).unwrap();
        row["payload"].as_str().unwrap().parse().unwrap()
    });
    (text(record.key).parse().unwrap(), version)
}

/// Why the bus refuses an event.
pub(super) fn unfit() -> Error {
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
            own: Client::with_lanes(),
            ..Broker::default()
        }
    }

    /// Whether the row of an event has no topic: it may be given up then.
    pub(super) fn lacks_topic(&mut self, event: Logged) -> bool {
        let lacks = self.unroutable.contains(&event);
        if lacks {
            self.topics_lacked += 1;
            self.refused.insert(event);
        }
        lacks
    }

    /// Events that a client refuses before it sends them.
    pub(super) fn refused_by_client(&self) -> BTreeSet<Logged> {
        let is_early = |event: &&Logged| self.own.lanes.is_none() && !is_late(**event);
        self.unfit.iter().filter(is_early).copied().collect()
    }

    /// Why the bus refuses the record of a retry, if it does.
    pub(super) fn refusal_of_retry(&self, record: &OwnedRecord) -> Option<Error> {
        if self.topic_refuses && record.topic == self.topic {
            return Some(self.topic_refused());
        }
        let is_unfit = self.unfit.contains(&record.with_record(logged));
        is_unfit.then(unfit)
    }

    fn topic_refused(&self) -> Error {
        let error = Error::new(Kind::TopicRefused, "the topic of the model refuses all");
        error.of_topic(&self.topic)
    }

    pub(super) fn has_lanes(&self) -> bool {
        self.own.lanes.is_some()
    }

    /// What was kept of an event, with its topic, unless its row has none.
    pub(super) fn mended(&self, event: Logged, mut kept: ParkedEvent) -> ParkedEvent {
        let topic = kept.columns.iter_mut().find(|it| it.name == TOPIC_COLUMN);
        let text = topic.map(|column| &mut column.text);
        if let Some(text) = text.filter(|_| !self.unroutable.contains(&event)) {
            text.get_or_insert_with(|| TOPIC.as_bytes().to_vec());
        }
        kept
    }

    /// Whether any event cannot be published.
    pub(super) fn has_untaken(&self) -> bool {
        !self.unfit.is_empty() || !self.unroutable.is_empty()
    }

    /// Somebody mends some causes.
    pub(super) fn mend_some(&mut self, random: &mut fastrand::Rng) {
        self.unfit.retain(|_| random.bool());
        self.unroutable.retain(|_| random.bool());
    }

    /// Somebody mends all causes.
    pub(super) fn mend(&mut self) {
        self.unfit.clear();
        self.unroutable.clear();
        self.topic_refuses = false;
    }

    pub(super) fn passes(&mut self, time: Duration) {
        let clients = self.others.iter_mut().chain([&mut self.own]);
        for bus in clients.filter_map(|it| it.lanes.as_mut()) {
            bus.now += time;
        }
    }

    /// Each of these relays has a producer.
    pub(super) fn shared_by(mut self, relays: usize) -> Broker {
        let client = || match self.own.lanes {
            Some(_) => Client::with_lanes(),
            None => Client::default(),
        };
        let others = (1..relays).map(|relay| Client { relay, ..client() });
        self.others = others.collect();
        self
    }

    /// Another relay acts.
    pub(super) fn switch_to(&mut self, other: usize) {
        std::mem::swap(&mut self.own, &mut self.others[other]);
    }

    pub(super) fn rotate(&mut self) {
        self.others.rotate_left(1);
    }

    /// The relay that acts has the turn. Whether that fenced what another one had open.
    pub(super) fn take_turn(&mut self) -> bool {
        self.own.is_stale = false;
        self.arriving.iter_mut().for_each(|it| it.is_stale = true);
        self.others.iter_mut().for_each(|it| it.is_stale = true);
        if self.others.is_empty() || self.committed.is_none() {
            return false;
        }
        self.arriving.clear();
        self.own.is_finished = false;
        let mut was_open = false;
        for other in &mut self.others {
            let queues = std::mem::take(&mut other.queues);
            was_open |= !queues.iter().all(VecDeque::is_empty);
            other.is_finished = true;
        }
        self.abort();
        was_open
    }

    /// What a producer that is gone had sent arrives.
    pub(super) fn arrive(&mut self) {
        if let Some(Arriving { queued, is_stale }) = self.arriving.pop_front() {
            let own = std::mem::replace(&mut self.own.is_stale, is_stale);
            self.land(queued);
            self.own.is_stale = own;
        }
    }

    pub(super) fn is_arriving(&self) -> bool {
        !self.arriving.is_empty()
    }

    /// Whether the record at this place came late.
    pub(super) fn is_late(&self, partition: usize, at: usize) -> bool {
        self.late.contains(&(partition, at))
    }

    /// Aggregates of which a record came late.
    pub(super) fn that_came_late(&self) -> BTreeSet<u8> {
        let late = self.late.iter();
        let landed = late.map(|(partition, at)| &self.log[*partition][*at]);
        landed.map(|it| it.event.0).collect()
    }

    /// Nobody knows whether it was taken.
    fn may_append(&mut self, attempt: &Attempt, random: &mut fastrand::Rng) {
        let is_taken = random.bool();
        if !self.is_unfit(attempt) && is_taken {
            self.append(attempt);
        }
    }

    fn is_unfit(&self, attempt: &Attempt) -> bool {
        let is_letter = attempt.record.topic == LETTERS;
        !is_letter && self.unfit.contains(&attempt.record.with_record(logged))
    }

    fn append(&mut self, attempt: &Attempt) {
        self.land(Queued::of(Arc::clone(&attempt.record), Ticket(0)));
    }

    /// A record is in the log from now on.
    fn land(
        &mut self,
        Queued {
            event,
            is_letter,
            record,
            ..
        }: Queued,
    ) {
        if is_letter {
            self.letters.insert(event);
        } else if self.committed.is_none() && !self.is_on_the_wire {
            self.journal.landed(event);
        }
        let partition = usize::from(event.0) % PARTITIONS;
        if self.own.is_stale {
            self.late.insert((partition, self.log[partition].len()));
        }
        self.log[partition].push(Landed { event, record });
    }

    pub(super) fn is_transactional(&self) -> bool {
        self.committed.is_some()
    }

    /// Everything that was sent arrives, and becomes visible.
    pub(super) fn commit(&mut self) {
        if let Some(before) = self.committed {
            for queued in self
                .own
                .queues
                .each_mut()
                .map(std::mem::take)
                .into_iter()
                .flatten()
            {
                self.land(queued);
            }
            self.committed = Some(self.log.each_ref().map(Vec::len));
            for (log, before) in self.log.iter().zip(before) {
                for landed in &log[before..] {
                    self.journal.landed(landed.event);
                }
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
        let log = &self.log;
        self.late
            .retain(|(partition, at)| *at < log[*partition].len());
    }

    /// The client drops its queue, and takes nothing more.
    pub(super) fn give_up(&mut self, random: &mut fastrand::Rng) {
        self.producer_killed(random);
        self.own.is_finished = true;
    }

    /// What readers see of each partition.
    pub(super) fn visible(&self) -> impl Iterator<Item = &[Landed]> {
        let lengths = self
            .committed
            .unwrap_or_else(|| self.log.each_ref().map(Vec::len));
        self.log
            .iter()
            .zip(lengths)
            .map(|(log, length)| &log[..length])
    }

    /// Events that the log has as those of two timelines.
    pub(super) fn on_two_timelines(&self) -> u64 {
        let landed = self.log.iter().flatten();
        let told = landed.filter_map(|it| Some((it.event, it.timeline()?)));
        let told: BTreeSet<_> = told.collect();
        let events: BTreeSet<_> = told.iter().map(|(event, _)| *event).collect();
        (told.len() - events.len()) as u64
    }

    /// Reads the tail of a topic, in windows that go back.
    pub(super) fn read(&self, tail: &mut Tail) {
        for log in &self.log {
            let mut to = log.len();
            let mut window = 2;
            while to > 0 {
                let from = to.saturating_sub(window);
                let records = (0..).zip(log.iter().map(|it| &it.record));
                for (offset, record) in records.take(to).skip(from) {
                    if record.topic == tail.topic {
                        record.with_record(|record| tail.take(record, offset));
                    }
                }
                to = from;
                window *= 2;
            }
        }
    }

    /// A producer of retries sent this.
    pub(super) fn took(&mut self, record: Arc<OwnedRecord>) {
        let event = record.with_record(logged);
        self.log[usize::from(event.0) % PARTITIONS].push(Landed { event, record });
    }

    /// The broker takes the oldest record of a partition, or refuses the batch that it is in, and
    /// says so.
    pub(super) fn ack_one(&mut self, random: &mut fastrand::Rng) -> Vec<Delivery> {
        let partition = random.usize(0..PARTITIONS);
        let is_split = random.bool();
        if self.down {
            self.held_up += u64::from(!self.is_empty());
            return Vec::new();
        }
        if let Some(bus) = &mut self.own.lanes {
            let Some(attempt) = bus.take_one(random) else {
                return Vec::new();
            };
            let is_unfit = self.is_unfit(&attempt);
            let outcome = match is_unfit {
                true => Outcome::Refused {
                    error: unfit(),
                    after: None,
                },
                false => Outcome::Acked,
            };
            if is_unfit {
                self.refused.insert(attempt.record.with_record(logged));
                self.refused_alone += 1;
            } else {
                self.own.took |= attempt.record.topic != LETTERS;
                self.append(&attempt);
            }
            let bus = self.own.lanes.as_mut().unwrap();
            return bus.ended(&attempt, outcome).into_iter().collect();
        }
        if self.topic_refuses && self.own.queues[partition].iter().any(|it| !it.is_letter) {
            return self.refuse_topic(partition);
        }
        let queue = &self.own.queues[partition];
        let is_unfit = |it: &Queued| !it.is_letter && self.unfit.contains(&it.event);
        let unfit = queue.iter().take(BATCH).position(is_unfit);
        match unfit {
            Some(at) if at == 0 || !is_split => return self.refuse_batch(partition, at, random),
            Some(_) | None => {}
        }
        let Some(queued) = self.own.queues[partition].pop_front() else {
            return Vec::new();
        };
        let ticket = queued.ticket;
        self.own.took |= !queued.is_letter;
        self.land(queued);
        vec![Delivery::Acked(ticket)]
    }

    /// The topic of events refuses what it is sent, and the producer is finished.
    fn refuse_topic(&mut self, partition: usize) -> Vec<Delivery> {
        self.topic_refusals += 1;
        self.own.is_finished = true;
        let error = self.topic_refused();
        let queued = std::mem::take(&mut self.own.queues[partition]);
        let events = queued.iter().filter(|it| !it.is_letter);
        let failed = events.map(|it| Delivery::Failed(it.ticket, error.clone()));
        failed.collect()
    }

    /// A broker says the same of each record of a batch, and the producer is finished, unless the
    /// record was sent apart.
    fn refuse_batch(
        &mut self,
        partition: usize,
        unfit_at: usize,
        random: &mut fastrand::Rng,
    ) -> Vec<Delivery> {
        let queue = &mut self.own.queues[partition];
        let size = random.usize(unfit_at + 1..=BATCH.max(unfit_at + 1));
        let goes_on = random.bool();
        let queued: Vec<Queued> = queue.drain(..).collect();
        self.refused.insert(queued[unfit_at].event);
        let is_apart = self.own.apart == Some(queued[unfit_at].ticket);
        if is_apart && goes_on {
            self.refused_alone += 1;
            return vec![Delivery::Refused(queued[0].ticket, unfit())];
        }
        self.own.is_finished = true;
        self.batches_refused += u64::from(size > 1 && queued.len() > 1);
        // Gapless: what lies behind does not arrive either.
        // Dead letters are in another topic.
        let batch = queued.iter().take(size).filter(|it| !it.is_letter);
        batch
            .map(|it| Delivery::Failed(it.ticket, unfit()))
            .collect()
    }

    /// The oldest record of a partition fails, and with it the producer: nobody can tell whether it
    /// is in the log.
    pub(super) fn fail_one(&mut self, random: &mut fastrand::Rng) -> Option<Delivery> {
        if self.own.lanes.is_some() {
            return self.refuse_one(random);
        }
        let partition = random.usize(0..PARTITIONS);
        let queued = self.own.queues[partition].pop_front()?;
        let is_unfit = !queued.is_letter && self.unfit.contains(&queued.event);
        let ticket = queued.ticket;
        if random.bool() && !is_unfit {
            self.land(queued);
        } else {
            // Gapless: what lies behind a record that did not arrive does not arrive either.
            self.own.queues[partition].clear();
        }
        self.own.is_finished = true;
        Some(Delivery::Failed(
            ticket,
            Error::new(Kind::BusUnreachable, "the model failed it"),
        ))
    }

    /// The bus refuses a record, for now or for good, or nobody knows what became of it.
    fn refuse_one(&mut self, random: &mut fastrand::Rng) -> Option<Delivery> {
        let bus = self.own.lanes.as_mut()?;
        if random.u8(0..4) == 0 {
            let lost = std::mem::take(&mut bus.on_their_way);
            for attempt in &lost {
                bus.lanes.unknown(attempt.id, None, bus.now);
            }
            for attempt in lost {
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
        // A dead letter that is refused for good ends the relay.
        let is_letter = attempt.record.topic == LETTERS;
        let kind = if is_letter {
            Kind::BusUnreachable
        } else {
            kind
        };
        if kind != Kind::BusUnreachable {
            self.refused.insert(attempt.record.with_record(logged));
        }
        self.refused_alone += 1;
        let after = random.bool().then_some(Duration::from_secs(2));
        let error = Error::new(kind, "the model refuses it");
        bus.ended(&attempt, Outcome::Refused { error, after })
    }

    /// The producer is gone: what was on the wire may still land, in order.
    pub(super) fn producer_gone(&mut self, random: &mut fastrand::Rng) {
        let is_unfit =
            |it: &Queued, unfit: &BTreeSet<Logged>| !it.is_letter && unfit.contains(&it.event);
        for partition in 0..PARTITIONS {
            let queue = std::mem::take(&mut self.own.queues[partition]);
            let landed = random.usize(0..=queue.len());
            let landed = if self.down { 0 } else { landed };
            for queued in queue.into_iter().take(landed) {
                if is_unfit(&queued, &self.unfit) {
                    break;
                }
                self.land(queued);
            }
        }
        self.own.apart = None;
        self.own.is_finished = false;
        self.own.told.clear();
        self.own.took = false;
        if !self.own.is_stale {
            self.abort();
        }
        if let Some(bus) = &mut self.own.lanes {
            let gone = std::mem::replace(bus, LaneBus::new(bus.now));
            for attempt in &gone.on_their_way {
                self.may_append(attempt, random);
            }
        }
    }

    /// The same, and where another relay is there, it may land at any time.
    pub(super) fn producer_killed(&mut self, random: &mut fastrand::Rng) {
        let is_stale = self.own.is_stale;
        let before = self.log.each_ref().map(Vec::len);
        self.is_on_the_wire = !self.others.is_empty();
        self.producer_gone(random);
        self.is_on_the_wire = false;
        if self.others.is_empty() || self.committed.is_some() {
            return;
        }
        for (partition, before) in before.into_iter().enumerate() {
            let landed = self.log[partition].split_off(before);
            self.late
                .retain(|(of, at)| *of != partition || *at < before);
            self.arriving.extend(landed.into_iter().map(|it| Arriving {
                queued: Queued::of(it.record, Ticket(0)),
                is_stale,
            }));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.own.queues.iter().all(VecDeque::is_empty)
            && self
                .own
                .lanes
                .as_ref()
                .is_none_or(|bus| bus.lanes.is_empty())
    }
}

/// The producer's side of [`Broker`].
#[derive(Debug)]
pub(super) struct Producer(pub Shared);

impl Sink for Producer {
    fn enqueue(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        let mut broker = self.0.lock().unwrap();
        if broker.own.is_finished {
            return Err(EnqueueError::Finished);
        }
        if let Some(bus) = &mut broker.own.lanes {
            let taken = bus.lanes.enqueue(record, ticket);
            broker.full += u64::from(taken.is_err());
            if taken.is_ok() && record.topic != LETTERS {
                let relay = broker.own.relay;
                broker.journal.enqueued(relay, logged(record));
            }
            return taken;
        }
        let queued = Queued::of(Arc::new(OwnedRecord::of(record)), ticket);
        let event = queued.event;
        if broker.unfit.contains(&event) && !queued.is_letter && !is_late(event) {
            broker.refused.insert(event);
            broker.refused_alone += 1;
            return Err(EnqueueError::Refused(unfit()));
        }
        if !queued.is_letter {
            record.topic.clone_into(&mut broker.topic);
        }
        if broker.own.queues.iter().map(VecDeque::len).sum::<usize>() >= QUEUE {
            broker.full += 1;
            return Err(EnqueueError::Full);
        }
        // Of an earlier ledger, which counted tickets by itself.
        broker.own.apart.take_if(|apart| *apart == ticket);
        if !queued.is_letter {
            let relay = broker.own.relay;
            broker.journal.enqueued(relay, event);
        }
        broker.own.queues[usize::from(event.0) % PARTITIONS].push_back(queued);
        Ok(())
    }

    fn enqueue_apart(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        self.enqueue(record, ticket)?;
        self.0.lock().unwrap().own.apart = Some(ticket);
        Ok(())
    }

    fn retry(&mut self, refused: Ticket, wait: Duration) {
        let mut broker = self.0.lock().unwrap();
        let bus = broker.own.lanes.as_mut().unwrap();
        bus.lanes.retry(refused, bus.now + wait);
    }

    fn withdraw(&mut self, refused: Ticket) -> Vec<(Ticket, Arc<OwnedRecord>)> {
        let mut broker = self.0.lock().unwrap();
        let bus = broker.own.lanes.as_mut();
        bus.map_or_else(Vec::new, |bus| bus.lanes.withdraw(refused))
    }

    async fn deliveries(&mut self, into: &mut Vec<Delivery>) {
        into.append(&mut self.0.lock().unwrap().own.told);
    }
}
