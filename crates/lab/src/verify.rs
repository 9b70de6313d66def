//! Checks that every committed event arrived: once, whole, in order and in its place. Pure, and
//! strict: doubt counts against the run. The caller stops the writers and reads the topics to their
//! ends first: events that are committed between the two readings look lost, or like phantoms.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// A row of the outbox, which should arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The event's id.
    pub id: Box<str>,
    /// The topic it belongs into.
    pub topic: Arc<str>,
    /// The aggregate: the record's key.
    pub aggregate: Box<str>,
    /// Its place among the events of the aggregate, in commit order.
    pub version: i64,
    /// [`fingerprint`] of the payload.
    pub payload: u64,
    /// Commit time by the server's clock, microseconds since the Unix epoch, where the server keeps
    /// it.
    pub committed_at_us: Option<i64>,
}

/// A record of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// Text of the header with the event's id.
    pub id: Option<Box<str>>,
    /// The key, as text.
    pub key: Option<Box<str>>,
    /// [`fingerprint`] of the value.
    pub payload: u64,
    /// When the consumer had it, or the broker, microseconds since the Unix epoch.
    pub arrived_at_us: i64,
}

/// The records of the topics.
#[derive(Debug, Clone, Default)]
pub struct Topics {
    /// All records.
    pub records: Vec<Delivered>,
    /// Number of partitions by topic.
    pub partitions: BTreeMap<Arc<str>, i32>,
    /// Offset behind the last record, by topic and partition, where records begin at 0. A hole
    /// below it is a record nobody saw, and the run cannot be judged.
    pub ends: BTreeMap<(Arc<str>, i32), i64>,
}

/// Stands for a payload, so that it need not be kept: equal for equal bytes, within one process.
pub fn fingerprint(payload: Option<&[u8]>) -> u64 {
    let mut hasher = DefaultHasher::new();
    payload.hash(&mut hasher);
    hasher.finish()
}

/// The defects, without payloads. A run without faults has none; one with faults may have
/// duplicates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Committed, never delivered: the id, and in brackets which event it is.
    #[serde(serialize_with = "count")]
    pub lost: Vec<String>,
    /// Records beyond the first of an event.
    #[serde(rename = "duplicated")]
    pub duplicates: usize,
    /// First deliveries behind a later version of the same aggregate: the id of that one, and of
    /// the event.
    #[serde(serialize_with = "count")]
    pub out_of_order: Vec<(String, String)>,
    /// Delivered, never committed: the id, empty for none.
    #[serde(serialize_with = "count")]
    pub phantom: Vec<String>,
    /// Ids of records in another topic or partition than the event's type and key call for.
    #[serde(rename = "wrong_partition", serialize_with = "count")]
    pub misplaced: Vec<String>,
    /// Ids of records whose key or value differs from the row.
    #[serde(serialize_with = "count")]
    pub altered: Vec<String>,
    /// Offsets that exist and were not read.
    pub unread: usize,
}

impl Findings {
    /// Whether there is no defect, duplicates aside.
    pub(crate) fn is_sound(&self) -> bool {
        Findings {
            duplicates: 0,
            ..self.clone()
        } == Findings::default()
    }

    /// For tests.
    ///
    /// # Panics
    /// With the defects, unless there are none.
    #[track_caller]
    pub fn assert_sound(&self) {
        assert!(self.is_sound(), "{}", self.examples(5).join("\n"));
    }

    /// The first of each kind, in words.
    pub fn examples(&self, of_each: usize) -> Vec<String> {
        let some = |what: &'static str, ids: &[String]| {
            ids.iter()
                .take(of_each)
                .map(|id| format!("{what}: event {id}"))
                .collect::<Vec<_>>()
        };
        let disorder = self.out_of_order.iter().take(of_each);
        let disorder = disorder
            .map(|(later, event)| format!("out of order: event {event} came behind {later}"));
        let kinds = [
            ("lost", &self.lost),
            ("phantom", &self.phantom),
            ("misplaced", &self.misplaced),
        ];
        let mut examples: Vec<String> = kinds
            .into_iter()
            .flat_map(|(what, ids)| some(what, ids))
            .collect();
        examples.extend(disorder.chain(some("altered", &self.altered)));
        examples.extend(
            (self.duplicates > 0).then(|| format!("duplicated: {} records", self.duplicates)),
        );
        examples.extend((self.unread > 0).then(|| format!("not read: {} records", self.unread)));
        examples
    }
}

/// The outcome.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Verdict {
    /// Committed events.
    pub committed: u64,
    /// Of those, how many arrived.
    pub delivered: u64,
    /// The defects.
    #[serde(flatten)]
    pub findings: Findings,
    /// Half of the events took at most this from their commit's time to a reader of the topic, in
    /// milliseconds: an upper bound of the time from commit to ack. None where the server does not
    /// keep commit times.
    pub commit_to_ack_p50_ms: Option<f64>,
    /// 99 of 100 events took at most this.
    pub commit_to_ack_p99_ms: Option<f64>,
}

/// The latency that this share of events (0.0 to 1.0) does not exceed, in milliseconds.
fn latency_ms(ascending_us: &[i64], share: f64) -> Option<f64> {
    let last = ascending_us.len().checked_sub(1)?;
    let rank = (share.clamp(0.0, 1.0) * ascending_us.len() as f64).ceil() as usize;
    let micros = ascending_us.get(rank.saturating_sub(1).min(last))?;
    Some(*micros as f64 / 1000.0)
}

/// Compares the records with the committed events. Records may come in any order: that of their
/// offsets counts.
pub fn verify(committed: &[Committed], topics: &Topics) -> Verdict {
    let rows: HashMap<&str, &Committed> = committed.iter().map(|row| (&*row.id, row)).collect();
    let mut findings = Findings::default();
    let mut latencies_us = Vec::new();
    let mut records: Vec<&Delivered> = topics.records.iter().collect();
    records.sort_unstable_by_key(|record| (&record.topic, record.partition, record.offset));
    let mut seen: HashSet<&str> = HashSet::with_capacity(rows.len());
    let mut newest: HashMap<(&str, &str), &Committed> = HashMap::new();
    for record in &records {
        let id = record.id.as_deref().unwrap_or_default();
        let Some(row) = rows.get(id) else {
            findings.phantom.push(id.to_owned());
            continue;
        };
        let place = topics
            .partitions
            .get(&row.topic)
            .map(|count| partition(row.aggregate.as_bytes(), *count));
        let is_placed = record.topic == row.topic && place == Some(record.partition);
        if !is_placed {
            findings.misplaced.push(id.to_owned());
        }
        if record.payload != row.payload || record.key.as_deref() != Some(&*row.aggregate) {
            findings.altered.push(id.to_owned());
        }
        if !seen.insert(id) {
            findings.duplicates += 1;
            continue;
        }
        // Offsets of different partitions have no order, so a misplaced record is only that.
        if is_placed {
            let before = newest.entry((&row.topic, &row.aggregate)).or_insert(row);
            if row.version < before.version {
                findings
                    .out_of_order
                    .push((before.id.to_string(), id.to_owned()));
            } else {
                *before = row;
            }
        }
        latencies_us.extend(
            row.committed_at_us
                .map(|at_us| record.arrived_at_us.saturating_sub(at_us).max(0)),
        );
    }
    let lost = committed.iter().filter(|row| !seen.contains(&*row.id));
    findings.lost = lost
        .map(|row| format!("{} (version {} of {})", row.id, row.version, row.aggregate))
        .collect();
    findings.unread = unread(&records, topics);
    latencies_us.sort_unstable();
    Verdict {
        committed: committed.len() as u64,
        delivered: seen.len() as u64,
        findings,
        commit_to_ack_p50_ms: latency_ms(&latencies_us, 0.50),
        commit_to_ack_p99_ms: latency_ms(&latencies_us, 0.99),
    }
}

/// The partition where Java clients put a key: Murmur2, as `org.apache.kafka.common.utils.Utils`
/// has it. The program's own is not asked: a fault in it is to be found.
fn partition(key: &[u8], count: i32) -> i32 {
    const SEED: u32 = 0x9747_b28c;
    const FACTOR: u32 = 0x5bd1_e995;
    let mut hash = SEED ^ key.len() as u32;
    for word in key.chunks(4) {
        let number = word
            .iter()
            .rev()
            .fold(0, |number: u32, byte| number << 8 | u32::from(*byte));
        if word.len() < 4 {
            hash = (hash ^ number).wrapping_mul(FACTOR);
        } else {
            let mixed = number.wrapping_mul(FACTOR);
            hash = hash.wrapping_mul(FACTOR) ^ (mixed ^ mixed >> 24).wrapping_mul(FACTOR);
        }
    }
    hash = (hash ^ hash >> 13).wrapping_mul(FACTOR);
    let positive = (hash ^ hash >> 15) & 0x7fff_ffff;
    positive.cast_signed().checked_rem(count).unwrap_or(0)
}

/// Offsets below the ends that nobody read. `records` is sorted.
fn unread(records: &[&Delivered], topics: &Topics) -> usize {
    let mut read: BTreeMap<(&str, i32), HashSet<i64>> = BTreeMap::new();
    for record in records {
        read.entry((&record.topic, record.partition))
            .or_default()
            .insert(record.offset);
    }
    let missing = topics.ends.iter().map(|((topic, partition), end)| {
        let read = read.get(&(&**topic, *partition)).map_or(0, HashSet::len);
        usize::try_from(*end).unwrap_or(0).saturating_sub(read)
    });
    missing.sum()
}

fn count<T, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    list.len().serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTITIONS: i32 = 6;

    fn row(aggregate: &str, version: i64) -> Committed {
        Committed {
            id: format!("{aggregate}/{version}").into(),
            topic: "outbox.event.order".into(),
            aggregate: aggregate.into(),
            version,
            payload: fingerprint(Some(format!("{aggregate} {version}").as_bytes())),
            committed_at_us: Some(1_000_000),
        }
    }

    fn rows() -> Vec<Committed> {
        ["order-1", "order-2", "order-3"]
            .iter()
            .flat_map(|of| (1..=4).map(|version| row(of, version)))
            .collect()
    }

    /// Delivers the rows in the order given, each where it belongs.
    fn deliver<'a>(rows: impl IntoIterator<Item = &'a Committed>) -> Topics {
        let mut topics = Topics::default();
        topics
            .partitions
            .insert("outbox.event.order".into(), PARTITIONS);
        for row in rows {
            let partition = partition(row.aggregate.as_bytes(), PARTITIONS);
            let end = topics
                .ends
                .entry((row.topic.clone(), partition))
                .or_default();
            topics.records.push(Delivered {
                topic: row.topic.clone(),
                partition,
                offset: *end,
                id: Some(row.id.clone()),
                key: Some(row.aggregate.clone()),
                payload: row.payload,
                arrived_at_us: 1_005_000,
            });
            *end += 1;
        }
        topics
    }

    #[test]
    fn each_defect_is_found_for_what_it_is() {
        let rows = rows();
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let lost = || ids(&["order-1/1 (version 1 of order-1)"]);
        let out_of_order = || vec![("order-1/2".to_owned(), "order-1/1".to_owned())];
        let mut swapped = rows.clone();
        swapped.swap(0, 1);
        let changed = |change: fn(&mut Topics)| {
            let mut topics = deliver(&rows);
            change(&mut topics);
            topics
        };
        let none = Findings::default;
        for (what, topics, expected) in [
            (
                "read in another order",
                changed(|topics| topics.records.reverse()),
                none(),
            ),
            (
                "never arrived",
                deliver(&rows[1..]),
                Findings {
                    lost: lost(),
                    ..none()
                },
            ),
            (
                "arrived again",
                deliver(rows.iter().chain(&rows[..2])),
                Findings {
                    duplicates: 2,
                    ..none()
                },
            ),
            (
                "a later version first",
                deliver(&swapped),
                Findings {
                    out_of_order: out_of_order(),
                    ..none()
                },
            ),
            (
                "a later version first, and the right order behind it",
                deliver(swapped.iter().chain(&rows[..4])),
                Findings {
                    out_of_order: out_of_order(),
                    duplicates: 4,
                    ..none()
                },
            ),
            (
                "never committed",
                deliver(rows.iter().chain([&row("order-9", 1)])),
                Findings {
                    phantom: ids(&["order-9/1"]),
                    ..none()
                },
            ),
            (
                "without an id",
                changed(|topics| topics.records[0].id = None),
                Findings {
                    phantom: ids(&[""]),
                    lost: lost(),
                    ..none()
                },
            ),
            (
                "in another partition or topic than its key and type call for",
                changed(|topics| {
                    topics.ends.clear();
                    topics.records[3].partition += 1;
                    topics.records[7].topic = "outbox.event.invoice".into();
                }),
                Findings {
                    misplaced: ids(&["order-2/4", "order-1/4"]),
                    ..none()
                },
            ),
            (
                "key or value differ from the row",
                changed(|topics| {
                    topics.records[0].payload = fingerprint(None);
                    topics.records[1].key = None;
                }),
                Findings {
                    altered: ids(&["order-1/1", "order-1/2"]),
                    ..none()
                },
            ),
            (
                "nobody read it, and no event is missing",
                {
                    let mut topics = deliver(rows.iter().chain(&rows[11..]));
                    topics.records.pop();
                    topics
                },
                Findings {
                    unread: 1,
                    ..none()
                },
            ),
        ] {
            let verdict = verify(&rows, &topics);
            assert_eq!(verdict.findings, expected, "{what}");
            assert_eq!(
                verdict.findings.is_sound(),
                Findings {
                    duplicates: 0,
                    ..expected
                } == none(),
                "{what}"
            );
            let delivered = 12 - verdict.findings.lost.len() as u64;
            assert_eq!(
                (verdict.committed, verdict.delivered),
                (12, delivered),
                "{what}"
            );
        }
        let examples = verify(&rows, &deliver(&rows[1..])).findings.examples(5);
        assert_eq!(examples, ["lost: event order-1/1 (version 1 of order-1)"]);
        assert_eq!(
            verify(&rows, &deliver(&rows)).commit_to_ack_p50_ms,
            Some(5.0)
        );
        assert_ne!(fingerprint(None), fingerprint(Some(b"")));
    }

    #[test]
    fn percentiles_take_the_nearest_rank() {
        let ascending_us: Vec<i64> = (1..=100).map(|ms| ms * 1000).collect();
        let found = [0.0, 0.5, 0.99, 1.0].map(|share| latency_ms(&ascending_us, share).unwrap());
        assert_eq!(found, [1.0, 50.0, 99.0, 100.0]);
        assert_eq!(latency_ms(&[], 0.5), None);
    }

    #[test]
    fn keys_are_where_java_clients_put_them() {
        // Hashes that Java's `Utils.murmur2` has given.
        for (key, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("abc", 479_470_107),
            ("", 275_646_681),
        ] {
            assert_eq!(
                partition(key.as_bytes(), 1_000),
                (hash & 0x7fff_ffff) % 1_000,
                "{key:?}"
            );
        }
    }
}
