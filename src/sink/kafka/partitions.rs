//! The partitions of each topic: how many librdkafka knows of, and why the first record of each
//! travels alone.
//!
//! A broker that knows nothing of a producer takes its records from any sequence number on. While a
//! request is under way, librdkafka makes the next one of the same partition, and after a fatal
//! error (a record was refused, here or elsewhere) it sends that request although the one before it
//! failed: `rd_kafka_broker_produce_toppars` takes none back once the producer id is no longer
//! valid. Such a broker then has an event without the one before it. Once a record is acked the
//! broker knows the producer, and refuses what does not follow. Kafka's side of it: KIP-360, and
//! `ProducerAppendInfo.checkSequence`.
//!
//! So a partition is opened by one record, and the next ones wait here for its ack: one round trip
//! per partition and producer. Records of other partitions do not wait. A waiting record counts as
//! enqueued, and towards the limits.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::producer::Partitioner;
use tokio::time::Instant;

use walrelay_core::ledger::Ticket;
use walrelay_core::route::OwnedRecord;

/// Which of `count` partitions a key with this hash belongs to, as Java clients have it
/// (`Utils.toPositive`).
pub(crate) fn partition(hash: u32, count: i32) -> i32 {
    i32::try_from(hash & 0x7fff_ffff)
        .unwrap_or(0)
        .checked_rem(count)
        .unwrap_or(0)
}

/// Murmur2 as `org.apache.kafka.common.utils.Utils` has it, which is where Java clients put their
/// keys.
pub(crate) fn hash(key: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    let mut words = key.chunks_exact(4);
    let length = u32::try_from(key.len()).unwrap_or(u32::MAX);
    let mut hash = words.by_ref().fold(SEED ^ length, |hash, word| {
        let word = word
            .try_into()
            .map_or(0, u32::from_le_bytes)
            .wrapping_mul(M);
        hash.wrapping_mul(M) ^ (word ^ (word >> 24)).wrapping_mul(M)
    });
    let rest = words.remainder();
    if !rest.is_empty() {
        let tail = rest
            .iter()
            .rev()
            .fold(0, |tail, byte| tail << 8 | u32::from(*byte));
        hash = (hash ^ tail).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// librdkafka's partitioner: asked of each record without a partition of its own, on whichever
/// thread knows first how many partitions its topic has. The sink, which cannot ask librdkafka,
/// reads the counts here.
///
/// One word of memory and one name per topic that was produced to; librdkafka keeps more of each.
#[derive(Debug, Default)]
pub(super) struct KeyPartitioner {
    counts: Mutex<Counts>,
    /// Goes up with every change to `counts`.
    version: AtomicU64,
    /// The count that the sink knows for the record being sent, 0 where it knows none: nothing is
    /// noted where it is the same.
    expected: AtomicI32,
    /// Where a record without a key goes, counted modulo the partitions.
    turn: AtomicU32,
    /// Topics that got another number of partitions.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct Counts {
    by_topic: HashMap<String, i32>,
    /// Topics that got a count or another one since this was taken.
    news: Vec<String>,
}

impl KeyPartitioner {
    /// The next record to be sent is for a topic of `count` partitions, and has this hash.
    pub(super) fn expect(&self, count: Option<i32>, hash: u32) {
        self.turn.store(hash, Ordering::Relaxed);
        self.expected
            .store(count.unwrap_or_default(), Ordering::Relaxed);
    }

    pub(super) fn count(&self, topic: &str) -> Option<i32> {
        self.counts.lock().by_topic.get(topic).copied()
    }

    /// The topics that got a count or another one since the last call, with it.
    fn take_news(&self) -> Vec<(String, i32)> {
        let mut counts = self.counts.lock();
        let news = std::mem::take(&mut counts.news);
        news.into_iter()
            .filter_map(|topic| {
                let count = counts.by_topic.get(&topic).copied()?;
                Some((topic, count))
            })
            .collect()
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn note(&self, topic: &str, count: i32) {
        let mut counts = self.counts.lock();
        let before = counts.by_topic.insert(topic.to_owned(), count);
        if before == Some(count) {
            return;
        }
        counts.news.push(topic.to_owned());
        self.version.fetch_add(1, Ordering::Release);
        if let Some(before) = before {
            self.changes.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                event = "partitions_changed",
                topic,
                before,
                now = count,
                fix = "let consumers finish the records of before: an event may be read before an \
                       older one of its key",
                "the topic has another number of partitions: events of most keys go to another one \
                 from here on"
            );
        }
    }

    /// How often a topic got another number of partitions since this was asked last.
    pub(super) fn take_changes(&self) -> u64 {
        self.changes.swap(0, Ordering::Relaxed)
    }
}

impl Partitioner for KeyPartitioner {
    fn partition(
        &self,
        topic: &str,
        key: Option<&[u8]>,
        count: i32,
        _available: impl Fn(i32) -> bool,
    ) -> i32 {
        if self.expected.load(Ordering::Relaxed) != count {
            self.note(topic, count);
        }
        // Also where the leader is away: the order of a key is worth the wait.
        match key {
            Some(key) => partition(hash(key), count),
            None => partition(self.turn.load(Ordering::Relaxed), count),
        }
    }
}

/// How long after its last record a partition counts as known to the broker. Brokers forget a
/// producer after `producer.id.expiration.ms`, a day by default; opening again costs nothing to a
/// partition that was idle so long.
const KNOWN_FOR: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// The broker may know nothing of this producer.
    Closed,
    /// One record is on its way.
    Opening,
    /// The broker has acked a record; when the last one was sent.
    Open(Instant),
}

#[derive(Debug)]
struct Partition {
    state: State,
    /// Records for it, while it is opened.
    waiting: Vec<Waiting>,
}

impl Partition {
    fn closed() -> Partition {
        Partition {
            state: State::Closed,
            waiting: Vec::new(),
        }
    }
}

#[derive(Debug, Default)]
struct Topic {
    name: String,
    /// How many partitions there are, once librdkafka has told.
    count: Option<i32>,
    /// One for each partition that was met.
    partitions: Vec<Partition>,
    /// Whether a record is on its way that was sent without knowing how many there are.
    unplaced: bool,
    /// Records of which nobody knows the partition. While there are some, all others wait behind
    /// them.
    waiting: Vec<Waiting>,
    sent: u64,
}

impl Topic {
    /// The partition of a record, once that is known.
    fn place(&mut self, hash: u32, given: Option<i32>) -> Option<usize> {
        let place = given.or_else(|| self.count.map(|count| partition(hash, count)))?;
        let place = usize::try_from(place).ok()?;
        // librdkafka is not asked where a given partition is, and so does not tell how many there
        // are.
        if place >= self.partitions.len() {
            self.partitions.resize_with(place + 1, Partition::closed);
        }
        Some(place)
    }

    /// Puts the record behind those that it may not overtake.
    fn wait(&mut self, waiting: Waiting) {
        let is_placed = !self.unplaced && self.waiting.is_empty();
        let place = is_placed.then(|| self.place(waiting.hash, waiting.given));
        match place
            .flatten()
            .and_then(|place| self.partitions.get_mut(place))
        {
            Some(partition) => partition.waiting.push(waiting),
            None => self.waiting.push(waiting),
        }
    }

    /// Takes over another number of partitions: what waits for one may belong to another.
    fn counts(&mut self, count: i32) {
        if self
            .count
            .replace(count)
            .is_some_and(|before| before != count)
        {
            let placed = self
                .partitions
                .iter_mut()
                .flat_map(|partition| partition.waiting.drain(..));
            self.waiting.extend(placed);
            self.waiting.sort_unstable_by_key(|waiting| waiting.ticket);
        }
    }
}

/// A record that waits for its partition to be opened.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) ticket: Ticket,
    pub(super) hash: u32,
    /// The partition that was chosen by the row, if one was.
    pub(super) given: Option<i32>,
    pub(super) record: OwnedRecord,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Destination {
    topic: usize,
    /// None while librdkafka has not told how many partitions there are.
    partition: Option<usize>,
    /// Partitions of the topic, where they are known.
    pub(super) count: Option<i32>,
}

/// Which partitions are open to a producer, and the records that wait for the others.
#[derive(Debug)]
pub(super) struct Openings {
    names: HashMap<String, usize>,
    topics: Vec<Topic>,
    /// Records that open a partition, until they are acked.
    firsts: HashMap<Ticket, Destination>,
    /// The partitioner's version that `topics` has.
    version: u64,
    now: Instant,
}

impl Openings {
    pub(super) fn new(now: Instant) -> Self {
        Openings {
            names: HashMap::new(),
            topics: Vec::new(),
            firsts: HashMap::new(),
            version: 0,
            now,
        }
    }

    /// Sets the time. The sink does so when it takes acks, and not for each record.
    pub(super) fn at(&mut self, now: Instant) {
        self.now = now;
    }

    /// Where a record for `topic` goes; none while the first record of its partition is on its way.
    ///
    /// `given` is a partition that was chosen by the row; without it the hash of the key chooses.
    pub(super) fn destination(
        &mut self,
        topic: &str,
        hash: u32,
        given: Option<i32>,
        partitioner: &KeyPartitioner,
    ) -> Option<Destination> {
        self.refresh(partitioner);
        let index = match self.names.get(topic) {
            Some(index) => *index,
            None => {
                let index = self.topics.len();
                self.names.insert(topic.to_owned(), index);
                self.topics.push(Topic {
                    name: topic.to_owned(),
                    count: partitioner.count(topic),
                    ..Topic::default()
                });
                index
            }
        };
        self.destination_in(index, hash, given)
    }

    fn destination_in(
        &mut self,
        index: usize,
        hash: u32,
        given: Option<i32>,
    ) -> Option<Destination> {
        let known = self.topics.get_mut(index)?;
        if known.unplaced || !known.waiting.is_empty() {
            return None;
        }
        let place = known.place(hash, given);
        let partition = place.and_then(|place| known.partitions.get(place));
        let is_opening = partition.is_some_and(|partition| partition.state == State::Opening);
        (!is_opening).then_some(Destination {
            topic: index,
            partition: place,
            count: known.count,
        })
    }

    /// The record has no destination yet: it is sent by a later release.
    pub(super) fn wait(&mut self, topic: &str, waiting: Waiting) {
        let topic = self
            .names
            .get(topic)
            .and_then(|index| self.topics.get_mut(*index));
        if let Some(topic) = topic {
            topic.wait(waiting);
        }
    }

    /// Offers those that wait for what was `opened` to `send`, in order, as far as their partitions
    /// are open. Where one cannot be sent, none behind it ever is.
    pub(super) fn release(
        &mut self,
        opened: Destination,
        partitioner: &KeyPartitioner,
        mut send: impl FnMut(&Waiting, Destination) -> bool,
    ) {
        self.refresh(partitioner);
        let Some(topic) = self.topics.get_mut(opened.topic) else {
            return;
        };
        let of_topic = std::mem::take(&mut topic.waiting);
        let of_partition = opened
            .partition
            .and_then(|partition| topic.partitions.get_mut(partition))
            .map(|partition| std::mem::take(&mut partition.waiting));
        // What waits for a partition came before what waits for all of them.
        let waiting = of_partition.into_iter().flatten().chain(of_topic);
        for next in waiting {
            self.refresh(partitioner);
            match self.destination_in(opened.topic, next.hash, next.given) {
                None => {
                    if let Some(topic) = self.topics.get_mut(opened.topic) {
                        topic.wait(next);
                    }
                }
                Some(destination) if send(&next, destination) => {
                    self.sent(destination, next.ticket, partitioner)
                }
                Some(_) => break,
            }
        }
    }

    pub(super) fn sent(
        &mut self,
        destination: Destination,
        ticket: Ticket,
        partitioner: &KeyPartitioner,
    ) {
        let Some(topic) = self.topics.get_mut(destination.topic) else {
            return;
        };
        topic.sent += 1;
        // A count that has just changed may have placed it elsewhere.
        let is_placed = partitioner.version() == self.version
            || partitioner.count(&topic.name) == destination.count;
        let partition = destination.partition.filter(|_| is_placed);
        match partition.and_then(|partition| topic.partitions.get_mut(partition)) {
            Some(partition) => match &mut partition.state {
                State::Open(last) if self.now.duration_since(*last) < KNOWN_FOR => {
                    *last = self.now;
                    return;
                }
                state @ (State::Closed | State::Opening | State::Open(_)) => {
                    *state = State::Opening;
                }
            },
            None => topic.unplaced = true,
        }
        self.firsts.insert(
            ticket,
            Destination {
                partition,
                ..destination
            },
        );
    }

    /// The `max` topics that most records were sent to, and how many, most first.
    pub(super) fn busiest<'a>(&'a self, max: usize) -> Vec<(&'a str, u64)> {
        let sent = |index: &usize| self.topics.get(*index).map_or(0, |topic| topic.sent);
        let mut topics: Vec<_> = self
            .names
            .iter()
            .map(|(name, index)| (name.as_str(), sent(index)))
            .collect();
        let most_first = |(name, sent): &(&'a str, u64)| (Reverse(*sent), *name);
        if max < topics.len() {
            topics.select_nth_unstable_by_key(max, most_first);
            topics.truncate(max);
        }
        topics.sort_unstable_by_key(most_first);
        topics
    }

    /// These were acked. Gives what was opened by that, for which something may be released.
    pub(super) fn acked(&mut self, tickets: &[Ticket]) -> Vec<Destination> {
        let mut opened = Vec::new();
        if self.firsts.is_empty() {
            return opened;
        }
        for destination in tickets
            .iter()
            .filter_map(|ticket| self.firsts.remove(ticket))
        {
            let Some(topic) = self.topics.get_mut(destination.topic) else {
                continue;
            };
            match destination
                .partition
                .map(|partition| topic.partitions.get_mut(partition))
            {
                Some(Some(partition)) => partition.state = State::Open(self.now),
                Some(None) => {}
                None => topic.unplaced = false,
            }
            opened.push(destination);
        }
        opened
    }

    /// Takes over how many partitions the topics have, where that has changed.
    fn refresh(&mut self, partitioner: &KeyPartitioner) {
        let version = partitioner.version();
        if version == self.version {
            return;
        }
        self.version = version;
        for (name, count) in partitioner.take_news() {
            // A topic that is made again is another one, which nobody tells: what it takes without
            // an offset counts for nothing.
            if let Some(topic) = self
                .names
                .get(&name)
                .and_then(|index| self.topics.get_mut(*index))
            {
                topic.counts(count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use walrelay_core::route::Record;

    const TOPIC: &str = "t";

    struct Lab {
        openings: Openings,
        partitioner: KeyPartitioner,
        sent: u64,
    }

    impl Lab {
        /// librdkafka knows of a topic with `count` partitions.
        fn with(count: i32) -> Lab {
            let lab = Lab {
                openings: Openings::new(Instant::now()),
                partitioner: KeyPartitioner::default(),
                sent: 0,
            };
            lab.told(count);
            lab
        }

        fn told(&self, count: i32) {
            self.partitioner
                .partition(TOPIC, Some(b""), count, |_| true);
        }

        /// Sends a record with this hash, unless it has to wait.
        fn send(&mut self, hash: u32) -> Option<Ticket> {
            let destination = self
                .openings
                .destination(TOPIC, hash, None, &self.partitioner)?;
            let ticket = Ticket(self.sent);
            self.sent += 1;
            self.openings.sent(destination, ticket, &self.partitioner);
            Some(ticket)
        }

        /// Sends a record with this hash, or has it wait.
        fn enqueue(&mut self, hash: u32, ticket: u64) -> bool {
            let destination = self
                .openings
                .destination(TOPIC, hash, None, &self.partitioner);
            match destination {
                Some(destination) => {
                    self.openings
                        .sent(destination, Ticket(ticket), &self.partitioner)
                }
                None => {
                    let record = OwnedRecord::of(&Record {
                        topic: TOPIC,
                        ..Record::default()
                    });
                    self.openings.wait(
                        TOPIC,
                        Waiting {
                            ticket: Ticket(ticket),
                            hash,
                            given: None,
                            record,
                        },
                    );
                }
            }
            destination.is_some()
        }

        /// Acks, and gives what was released.
        fn ack(&mut self, ticket: u64) -> Vec<u64> {
            let mut released = Vec::new();
            for opened in self.openings.acked(&[Ticket(ticket)]) {
                self.openings
                    .release(opened, &self.partitioner, |waiting, _| {
                        released.push(waiting.ticket.0);
                        true
                    });
            }
            released
        }
    }

    #[test]
    fn the_second_record_of_a_partition_waits_for_the_ack_of_the_first() {
        let mut lab = Lab::with(6);
        let first = lab.send(1).expect("the first goes");
        assert!(
            lab.send(1).is_none() && lab.send(7).is_none(),
            "the same partition"
        );
        let other = lab.send(2).expect("another partition");
        lab.openings.acked(&[other]);
        assert!(lab.send(1).is_none());
        lab.openings.acked(&[first]);
        for _ in 0..3 {
            assert!(
                lab.send(1).is_some() && lab.send(2).is_some(),
                "open from now on"
            );
        }
    }

    #[test]
    fn the_busiest_topics_come_most_records_first_and_by_name() {
        let mut openings = Openings::new(Instant::now());
        let partitioner = KeyPartitioner::default();
        for (sent, topic) in [(1, "e"), (3, "c"), (2, "d"), (3, "b"), (5, "a")] {
            for ticket in 0..sent {
                // Each record to a partition of its own, so that none waits.
                let partition = i32::try_from(ticket).ok();
                let destination = openings
                    .destination(topic, 0, partition, &partitioner)
                    .unwrap();
                openings.sent(destination, Ticket(ticket), &partitioner);
            }
        }
        assert_eq!(openings.busiest(3), [("a", 5), ("b", 3), ("c", 3)]);
        assert_eq!(openings.busiest(9).last(), Some(&("e", 1)));
        assert_eq!(openings.busiest(0), []);
    }

    #[test]
    fn a_given_partition_is_opened_without_a_known_partition_count() {
        let mut lab = Lab::with(6);
        lab.partitioner = KeyPartitioner::default();
        let send = |lab: &mut Lab, ticket, partition| {
            let destination =
                lab.openings
                    .destination(TOPIC, 0, Some(partition), &lab.partitioner)?;
            lab.openings
                .sent(destination, Ticket(ticket), &lab.partitioner);
            Some(())
        };
        assert!(
            send(&mut lab, 0, 4).is_some()
                && send(&mut lab, 1, 4).is_none()
                && send(&mut lab, 1, 0).is_some()
        );
        lab.openings.acked(&[Ticket(0)]);
        assert!(
            send(&mut lab, 2, 4).is_some()
                && send(&mut lab, 3, 4).is_some()
                && send(&mut lab, 4, 0).is_none()
        );
    }

    #[test]
    fn a_partition_that_was_idle_for_long_is_opened_again() {
        let mut lab = Lab::with(1);
        let first = lab.send(0).expect("the first goes");
        lab.openings.acked(&[first]);
        let start = lab.openings.now;
        lab.openings.at(start + KNOWN_FOR / 2);
        assert!(lab.send(0).is_some() && lab.send(0).is_some());
        lab.openings.at(start + KNOWN_FOR * 2);
        let again = lab.send(0).expect("the first goes");
        assert!(lab.send(0).is_none(), "and alone");
        lab.openings.acked(&[again]);
        assert!(lab.send(0).is_some() && lab.send(0).is_some());
    }

    #[test]
    fn partitions_that_are_added_are_opened_and_the_others_stay_open() {
        let mut lab = Lab::with(1);
        let first = lab.send(0).expect("the first goes");
        lab.openings.acked(&[first]);
        lab.told(2);
        assert!(lab.send(0).is_some() && lab.send(0).is_some());
        assert!(lab.send(1).is_some());
        assert!(lab.send(1).is_none());
    }

    #[test]
    fn a_record_placed_by_an_older_partition_count_delays_later_ones() {
        let mut lab = Lab::with(1);
        let first = lab.send(0).expect("the first goes");
        lab.openings.acked(&[first]);
        let destination = lab
            .openings
            .destination(TOPIC, 1, None, &lab.partitioner)
            .expect("open");
        lab.told(2);
        lab.openings.sent(destination, Ticket(9), &lab.partitioner);
        assert!(lab.send(0).is_none() && lab.send(1).is_none());
        lab.openings.acked(&[Ticket(9)]);
        assert!(lab.send(0).is_some() && lab.send(0).is_some());
    }

    #[test]
    fn waiting_records_are_released_in_order_and_delay_no_other_partition() {
        let mut lab = Lab::with(2);
        assert!(lab.enqueue(0, 0), "opens one partition");
        assert!(!lab.enqueue(0, 1) && !lab.enqueue(2, 2), "wait for it");
        assert!(lab.enqueue(1, 3), "opens the other");
        assert!(!lab.enqueue(1, 4) && !lab.enqueue(0, 5));
        assert_eq!(lab.ack(3), [4], "and not what waits elsewhere");
        assert!(lab.enqueue(1, 6), "nothing waits there any more");
        assert_eq!(lab.ack(0), [1, 2, 5]);
        assert!(lab.enqueue(0, 7));
    }

    #[test]
    fn a_record_that_waits_is_not_overtaken_where_partitions_are_added() {
        let mut lab = Lab::with(1);
        assert!(lab.enqueue(0, 0));
        assert!(!lab.enqueue(1, 1) && !lab.enqueue(0, 2));
        lab.told(2);
        assert!(!lab.enqueue(1, 3), "its partition is another one now");
        assert_eq!(lab.ack(0), [1, 2]);
        assert_eq!(lab.ack(1), [3]);
    }

    #[test]
    fn what_waits_for_a_partition_waits_for_a_record_of_an_older_count_too() {
        let mut lab = Lab::with(2);
        assert!(lab.enqueue(0, 0));
        assert!(!lab.enqueue(0, 1));
        let destination = lab
            .openings
            .destination(TOPIC, 1, None, &lab.partitioner)
            .expect("another partition");
        lab.told(3);
        lab.openings.sent(destination, Ticket(2), &lab.partitioner);
        assert!(!lab.enqueue(0, 3));
        assert_eq!(lab.ack(0), [0_u64; 0]);
        assert_eq!(lab.ack(2), [1, 3]);
    }

    #[test]
    fn a_topic_does_not_wait_where_another_one_becomes_known() {
        let mut lab = Lab::with(2);
        let destination = lab
            .openings
            .destination(TOPIC, 1, None, &lab.partitioner)
            .expect("a partition");
        lab.partitioner.partition("u", Some(b""), 9, |_| true);
        lab.openings.sent(destination, Ticket(0), &lab.partitioner);
        assert!(!lab.enqueue(1, 1) && lab.enqueue(0, 2));
    }

    #[test]
    fn records_waiting_for_an_unknown_topic_open_its_partitions_one_by_one() {
        let mut lab = Lab::with(2);
        lab.partitioner = KeyPartitioner::default();
        assert!(lab.enqueue(0, 0));
        assert!((1..5).all(|ticket| !lab.enqueue(u32::try_from(ticket).unwrap() % 2, ticket)));
        lab.told(2);
        assert_eq!(lab.ack(0), [1, 2], "the first of each");
        assert_eq!(lab.ack(2), [4]);
        assert_eq!(lab.ack(1), [3]);
    }
}
