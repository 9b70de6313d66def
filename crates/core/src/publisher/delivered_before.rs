//! Events that an earlier process published beyond its stored position: the relay does not publish
//! them again.
//!
//! While events come again that were committed before this process had the slot, each is compared
//! with the newest records of its topic. Skipped is only an event whose record is there as it would
//! be published now: same key, value and headers, and with them the event's id and its place on
//! this server and timeline. "At or below the greatest position" would not do: topics are shared,
//! and the position of another slot's relay says nothing of this one's events.
//!
//! Records are remembered by what hashes to 64 bits under random keys, and only those at or above
//! the stored position: some hundred bytes each, at most 100,000 (P4). A copy of an old event never
//! comes last where a newer one is skipped (P2): the relay publishes again any event that it did
//! not find there, and with it everything behind it of the same key. An event that has an older one
//! of its key behind it in the topic counts as not found.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use crate::config::OutboxConfig;
use crate::event::{Place, Via};
use crate::position::ServerIdentity;
use crate::position::{Lsn, Position};
use crate::route::Record;

/// Newest records that are read of one topic.
pub const READ_BACK_RECORDS_MAX: i64 = 50_000;
/// Records remembered, of all topics together: a few megabytes.
const REMEMBERED_MAX: usize = 2 * READ_BACK_RECORDS_MAX as usize;

/// Topics that are read at most: each makes the start wait for a moment, and rows make topics.
const TOPICS_MAX: usize = 100;

/// The decision on an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is to be published.
    Publish,
    /// Its record is in its topic.
    Delivered,
    /// The tail of its topic has to be read first: see [`DeliveredBefore::unread`].
    Unread,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct DeliveredBefore {
    seen_by: Seer,
    /// Whether records of an outbox have headers for the event's id and place.
    outboxes: Vec<bool>,
    topics: HashMap<String, Records>,
    remembered: usize,
    unread: Option<String>,
    /// Whether topics are read at all.
    reads: bool,
}

/// Records that may be published again, by what their keys hash to, in the order of their places.
type Records = HashMap<u64, Vec<Found>>;

/// A record in a topic.
#[derive(Debug, Clone, Copy)]
struct Found {
    commit_lsn: Lsn,
    index: u64,
    hash: u64,
    offset: i64,
}

impl Found {
    fn place(&self) -> (Lsn, u64) {
        (self.commit_lsn, self.index)
    }
}

/// The records of a key, in any order.
#[derive(Debug, Default)]
struct OfKey {
    found: Vec<Found>,
    /// Where the newest record of a stored event is.
    stored_at: Option<i64>,
}

impl OfKey {
    /// Those that have no older event behind them, in the order of their places.
    fn not_overtaken(self) -> Vec<Found> {
        let OfKey {
            mut found,
            stored_at,
        } = self;
        found.sort_unstable_by_key(|found| Reverse(found.offset));
        let mut least: Option<(Lsn, u64)> = None;
        found.retain(|found| {
            let counts =
                Some(found.offset) > stored_at && least.is_none_or(|least| found.place() <= least);
            least = Some(least.map_or(found.place(), |least| least.min(found.place())));
            counts
        });
        found.reverse();
        found.shrink_to_fit();
        found
    }
}

/// Knows a record again, and which records could be of events that come again.
#[derive(Debug, Clone)]
struct Seer {
    /// How the place of an event begins on this server and timeline.
    origin: String,
    position_headers: Vec<String>,
    stored: Position,
    /// Whatever commits at or behind it was not published before.
    until: Lsn,
    hashes: RandomState,
}

/// The content of a tail, while it is read.
#[derive(Debug)]
pub struct Tail {
    /// The topic.
    pub topic: String,
    seen_by: Seer,
    records: HashMap<u64, OfKey>,
    /// How many records could be of events that come again.
    pub count: usize,
    left: usize,
}

impl DeliveredBefore {
    /// Events behind `stored` come again. Those that commit at or behind `until`, the end of the
    /// log when the slot became ours, do not: no relay had them before. None where no outbox has
    /// headers for an event's id and place.
    pub fn new(
        outboxes: &[OutboxConfig],
        server: &ServerIdentity,
        stored: Position,
        until: Lsn,
    ) -> Option<DeliveredBefore> {
        let tells = |outbox: &OutboxConfig| {
            outbox.route.id_header.is_some() && outbox.route.position_header.is_some()
        };
        let mut position_headers: Vec<_> = outboxes
            .iter()
            .filter_map(|outbox| outbox.route.position_header.clone())
            .collect();
        position_headers.sort();
        position_headers.dedup();
        let origin = format!("{}:{}:", server.system_identifier, server.timeline);
        let outboxes: Vec<_> = outboxes.iter().map(tells).collect();
        outboxes.contains(&true).then(|| DeliveredBefore {
            seen_by: Seer {
                origin,
                position_headers,
                stored,
                until,
                hashes: RandomState::new(),
            },
            outboxes,
            topics: HashMap::new(),
            remembered: 0,
            unread: None,
            reads: true,
        })
    }

    /// Whether no event that commits at or behind `lsn` was published before.
    pub fn is_over(&self, lsn: Lsn) -> bool {
        lsn >= self.seen_by.until
    }

    /// Decides on the event at `place` with this record. The answer holds until a tail is read.
    pub fn judge(&mut self, place: Place, outbox: usize, record: &Record<'_>) -> Verdict {
        let tells = self.outboxes.get(outbox).copied().unwrap_or_default();
        if place.via != Via::Slot || !tells {
            return Verdict::Publish;
        }
        let Some(records) = self.topics.get_mut(record.topic) else {
            if !self.reads || self.topics.len() >= TOPICS_MAX {
                return Verdict::Publish;
            }
            self.unread = Some(record.topic.to_owned());
            return Verdict::Unread;
        };
        if records.is_empty() {
            return Verdict::Publish;
        }
        let key = self.seen_by.key(record, place.commit_lsn, place.index);
        let hash = self.seen_by.hash(record);
        let is_there = |of_key: &Vec<Found>| {
            let found = of_key.binary_search_by_key(&(place.commit_lsn, place.index), Found::place);
            found.is_ok_and(|found| of_key.get(found).is_some_and(|found| found.hash == hash))
        };
        if records.get(&key).is_some_and(is_there) {
            return Verdict::Delivered;
        }
        // Behind what is published again nothing of its key is skipped.
        records.remove(&key);
        Verdict::Publish
    }

    /// To be filled with the tail of the topic of the pending event.
    pub fn unread(&self) -> Option<Tail> {
        self.unread.as_deref().map(|topic| self.tail(topic))
    }

    fn tail(&self, topic: &str) -> Tail {
        let left = REMEMBERED_MAX.saturating_sub(self.remembered);
        let topic = topic.to_owned();
        let seen_by = self.seen_by.clone();
        Tail {
            topic,
            seen_by,
            records: HashMap::new(),
            count: 0,
            left,
        }
    }

    /// A tail was read, or as much of it as could be. After one that `failed` no further one is
    /// read.
    pub fn read(&mut self, tail: Tail, failed: bool) {
        self.remembered += tail.count;
        self.reads &= !failed;
        self.unread.take_if(|unread| *unread == tail.topic);
        let records = tail.records.into_iter();
        let records = records.map(|(key, of_key)| (key, of_key.not_overtaken()));
        let records = records.filter(|(_, found)| !found.is_empty());
        self.topics.insert(tail.topic, records.collect());
    }

    /// The tail of this topic cannot be read, and no further one is.
    pub fn unreadable(&mut self, topic: &str) {
        let tail = self.tail(topic);
        self.read(tail, true);
    }
}

impl Tail {
    /// Takes in the record at `offset` of its partition, and says whether it could be of an event
    /// that comes again, which need not be one of ours.
    pub fn take(&mut self, record: &Record<'_>, offset: i64) -> bool {
        let Some((commit_lsn, index)) = self.seen_by.place(record) else {
            return false;
        };
        let is_stored = self.seen_by.stored.has(commit_lsn, index);
        let again = !is_stored && commit_lsn < self.seen_by.until && self.count < self.left;
        if again || is_stored && self.records.len() < self.left {
            let key = self.seen_by.key(record, commit_lsn, index);
            let of_key = self.records.entry(key).or_default();
            if again {
                let hash = self.seen_by.hash(record);
                of_key.found.push(Found {
                    commit_lsn,
                    index,
                    hash,
                    offset,
                });
                self.count += 1;
            } else {
                of_key.stored_at = of_key.stored_at.max(Some(offset));
            }
        }
        again
    }
}

impl Seer {
    /// The place of an event of the slot, on this server and timeline.
    fn place(&self, record: &Record<'_>) -> Option<(Lsn, u64)> {
        let is_position = |name: &str| self.position_headers.iter().any(|header| header == name);
        let (_, value) = record.headers.iter().find(|(name, _)| is_position(name))?;
        let place = std::str::from_utf8((*value)?)
            .ok()?
            .strip_prefix(&self.origin)?;
        let (lsn, index) = place.split_once(':')?;
        Some((lsn.parse().ok()?, index.parse().ok()?))
    }

    /// Stands for the key of the event at this place. Events without one have no order, and each
    /// has a key of its own.
    fn key(&self, record: &Record<'_>, commit_lsn: Lsn, index: u64) -> u64 {
        match record.key {
            Some(key) => self.hashes.hash_one(key),
            None => self.hashes.hash_one((commit_lsn, index)),
        }
    }

    fn hash(&self, record: &Record<'_>) -> u64 {
        self.hashes
            .hash_one((record.key, record.value, record.headers))
    }
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz;

    use super::*;
    use crate::testing::outbox;

    fn origin() -> ServerIdentity {
        ServerIdentity {
            system_identifier: "7".to_owned(),
            timeline: 1,
        }
    }

    const START: Position = Position::at(Lsn::new(100));

    fn before() -> DeliveredBefore {
        DeliveredBefore::new(&[outbox()], &origin(), START, Lsn::new(900)).unwrap()
    }

    fn place(commit_lsn: u64, index: u64) -> Place {
        Place {
            commit_lsn: Lsn::new(commit_lsn),
            index,
            via: Via::Slot,
        }
    }

    /// Hands over the record of this event.
    fn with_record<T>(
        origin: &str,
        place: Place,
        content: Content<'_>,
        take: impl FnOnce(&Record<'_>) -> T,
    ) -> T {
        let (key, id, value) = content;
        let position = format!("{origin}{}:{}", place.commit_lsn, place.index);
        let headers = [
            ("id", Some(id.as_bytes())),
            ("walrelay-position", Some(position.as_bytes())),
        ];
        let key = key.map(str::as_bytes);
        let value = Some(value.as_bytes());
        take(&Record {
            topic: "t",
            key,
            value,
            headers: &headers,
            ..Record::default()
        })
    }

    /// Key, id and value.
    type Content<'c> = (Option<&'c str>, &'c str, &'c str);

    fn judge(before: &mut DeliveredBefore, place: Place, content: Content<'_>) -> Verdict {
        with_record("7:1:", place, content, |record| {
            before.judge(place, 0, record)
        })
    }

    /// The tail of the topic has these events.
    fn read(before: &mut DeliveredBefore, events: &[(Place, Content<'_>)]) -> usize {
        let mut tail = before.tail("t");
        for (offset, (place, content)) in (0..).zip(events) {
            with_record("7:1:", *place, *content, |record| tail.take(record, offset));
        }
        let count = tail.count;
        before.read(tail, false);
        count
    }

    const A: Content<'static> = (Some("a"), "1", "{}");

    #[test]
    fn a_tail_is_read_once_and_its_events_are_not_published_again() {
        let mut before = before();
        assert_eq!(judge(&mut before, place(200, 0), A), Verdict::Unread);
        assert_eq!(before.unread().unwrap().topic, "t");
        assert_eq!(read(&mut before, &[(place(200, 0), A)]), 1);
        assert!(before.unread().is_none());
        // As often as it is asked: a session may break in between, and the event come once more.
        let verdicts = [200, 200, 300].map(|lsn| judge(&mut before, place(lsn, 0), A));
        assert_eq!(
            verdicts,
            [Verdict::Delivered, Verdict::Delivered, Verdict::Publish]
        );
    }

    #[test]
    fn only_an_identical_record_counts_as_delivered() {
        let (key, id, value) = A;
        let others: &[Content<'_>] = &[
            (Some("b"), id, value),
            (key, "2", value),
            (key, id, "{ }"),
            (None, id, value),
        ];
        for content in others {
            let mut before = before();
            read(&mut before, &[(place(200, 0), *content)]);
            assert_eq!(
                judge(&mut before, place(200, 0), A),
                Verdict::Publish,
                "{content:?}"
            );
        }
        // P3: the greatest position in the topic, written for another slot, says nothing of what
        // lies below it.
        let mut before = before();
        read(&mut before, &[(place(800, 0), (Some("b"), "9", value))]);
        assert_eq!(judge(&mut before, place(200, 0), A), Verdict::Publish);
    }

    #[test]
    fn records_of_another_server_or_timeline_and_table_rows_are_ignored() {
        for origin in ["7:2:", "8:1:", "77:1:", "", "7:1:t", "7:1:0/0:"] {
            let mut tail = before().tail("t");
            let again = with_record(origin, place(200, 0), A, |record| tail.take(record, 0));
            assert_eq!((tail.count, again), (0, false), "{origin}");
        }
        let mut before = before();
        let from_table = Place {
            via: Via::Table,
            ..place(200, 0)
        };
        assert_eq!(judge(&mut before, from_table, A), Verdict::Publish);
        assert!(before.unread().is_none());
    }

    #[test]
    fn after_an_event_is_published_again_no_later_one_of_its_key_is_skipped() {
        let mut before = before();
        // The tail that was read begins behind the first event of "a", and behind one without a
        // key.
        let later = (Some("a"), "2", "{}");
        let b = (Some("b"), "3", "{}");
        let keyless = (None, "4", "{}");
        read(
            &mut before,
            &[
                (place(300, 0), later),
                (place(400, 0), b),
                (place(500, 0), keyless),
            ],
        );
        for (commit_lsn, content, verdict) in [
            (200, A, Verdict::Publish),
            (210, (None, "0", "{}"), Verdict::Publish),
            (300, later, Verdict::Publish),
            (400, b, Verdict::Delivered),
            (500, keyless, Verdict::Delivered),
        ] {
            assert_eq!(
                judge(&mut before, place(commit_lsn, 0), content),
                verdict,
                "{commit_lsn}"
            );
        }
    }

    #[test]
    fn an_event_with_an_older_one_of_its_key_behind_it_is_published_again() {
        let second = (Some("a"), "2", "{}");
        let b = (Some("b"), "3", "{}");
        let mut before = before();
        // A relay published two of "a", and another was killed after the first one of them.
        let events = [
            (place(200, 0), A),
            (place(300, 0), second),
            (place(310, 0), b),
            (place(400, 0), (Some("c"), "4", "{}")),
            (place(200, 0), A),
            // A copy of one that is stored.
            (place(90, 0), (Some("c"), "0", "{}")),
        ];
        assert_eq!(read(&mut before, &events), 5);
        for (commit_lsn, content, verdict) in [
            (200, A, Verdict::Delivered),
            (300, second, Verdict::Publish),
            (310, b, Verdict::Delivered),
            (400, (Some("c"), "4", "{}"), Verdict::Publish),
        ] {
            assert_eq!(judge(&mut before, place(commit_lsn, 0), content), verdict);
        }
    }

    #[test]
    fn only_events_between_the_stored_position_and_the_start_are_remembered() {
        let partial = crate::position::Partial {
            commit_lsn: Lsn::new(200),
            index: 2,
        };
        let stored = Position {
            partial: Some(partial),
            ..START
        };
        let before = DeliveredBefore::new(&[outbox()], &origin(), stored, Lsn::new(900)).unwrap();
        let mut tail = before.tail("t");
        let mut take = |place| with_record("7:1:", place, A, |record| tail.take(record, 0));
        let again = [(99, 7), (200, 1), (200, 2), (899, 0), (900, 0)]
            .map(|(lsn, index)| take(place(lsn, index)));
        assert_eq!(again, [false, false, true, true, false]);
        assert_eq!(tail.count, 2);
        assert!(!before.is_over(Lsn::new(899)) && before.is_over(Lsn::new(900)));
    }

    #[test]
    fn the_number_of_remembered_events_is_bounded() {
        let mut before = before();
        let mut tail = before.tail("t");
        for number in 0..REMEMBERED_MAX as u64 + 10 {
            with_record("7:1:", place(200, number), A, |record| tail.take(record, 0));
        }
        assert_eq!(tail.count, REMEMBERED_MAX);
        before.read(tail, false);
        assert_eq!(read(&mut before, &[(place(200, 0), A)]), 0);
    }

    #[test]
    fn no_tail_is_read_without_a_position_header_or_after_a_failure() {
        let mut without = outbox();
        without.route.position_header = None;
        assert!(
            DeliveredBefore::new(&[without.clone()], &origin(), START, Lsn::new(900)).is_none()
        );
        let mut mixed =
            DeliveredBefore::new(&[without, outbox()], &origin(), START, Lsn::new(900)).unwrap();
        assert_eq!(judge(&mut mixed, place(200, 0), A), Verdict::Publish);

        let mut before = before();
        before.unreadable("other");
        assert_eq!(judge(&mut before, place(200, 0), A), Verdict::Publish);
    }

    #[test]
    fn fuzzed_positions_of_records() {
        let corpus = [
            "7:1:0/C8:0",
            "7:1:FFFFFFFF/FFFFFFFF:18446744073709551615",
            "8:2:0/1:t",
        ];
        let before = before();
        fuzz("position headers of records", 64 << 10, &corpus, |bytes| {
            let mut tail = before.tail("t");
            let record = Record {
                topic: "t",
                key: Some(bytes),
                headers: &[("walrelay-position", Some(bytes))],
                ..Record::default()
            };
            for offset in [0, i64::MAX] {
                let _again = tail.take(&record, offset);
            }
            assert!(tail.count <= 2);
        });
    }
}
