//! Which partition a key belongs to, as Java clients have it, and how many partitions librdkafka knows of each topic.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rdkafka::producer::Partitioner;

/// No count: no partition has this many before it.
const UNKNOWN: i32 = -1;

/// librdkafka's partitioner: asked of each record without a partition of its own, on whichever thread knows first how
/// many partitions its topic has. What it was told is there for the sink to read, which cannot ask librdkafka.
///
/// One word of memory and one name per topic that was produced to; librdkafka keeps more of each.
#[derive(Debug)]
pub(super) struct Placement {
    counts: Mutex<HashMap<String, i32>>,
    /// Goes up with every change to `counts`.
    version: AtomicU64,
    /// What the record being sent is expected to find: where it does, there is nothing to note.
    expected: AtomicI32,
    /// Where a record without a key goes, counted modulo the partitions.
    turn: AtomicI32,
}

impl Placement {
    pub(super) fn new() -> Self {
        Placement {
            counts: Mutex::default(),
            version: AtomicU64::new(0),
            expected: AtomicI32::new(UNKNOWN),
            turn: AtomicI32::new(0),
        }
    }

    /// The next record to be sent is for a topic of `count` partitions, and has this hash.
    pub(super) fn expect(&self, count: Option<i32>, hash: u32) {
        self.turn.store(positive(hash), Ordering::Relaxed);
        self.expected.store(count.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    /// How many partitions the topic has, if librdkafka has said so.
    pub(super) fn count(&self, topic: &str) -> Option<i32> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).get(topic).copied()
    }

    /// Changes with any count.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn note(&self, topic: &str, count: i32) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.insert(topic.to_owned(), count) != Some(count) {
            self.version.fetch_add(1, Ordering::Release);
        }
    }
}

impl Partitioner for Placement {
    fn partition(&self, topic: &str, key: Option<&[u8]>, count: i32, _available: impl Fn(i32) -> bool) -> i32 {
        if self.expected.load(Ordering::Relaxed) != count {
            self.note(topic, count);
        }
        // Also where the leader is away: the order of a key is worth the wait.
        match key {
            Some(key) => partition(hash(key), count),
            None => self.turn.load(Ordering::Relaxed).checked_rem(count).unwrap_or(0),
        }
    }
}

/// Which of `count` partitions a key with this hash belongs to.
pub(crate) fn partition(hash: u32, count: i32) -> i32 {
    positive(hash).checked_rem(count).unwrap_or(0)
}

/// Java's `Utils.toPositive`.
fn positive(hash: u32) -> i32 {
    i32::try_from(hash & 0x7fff_ffff).unwrap_or(0)
}

/// Murmur2 as `org.apache.kafka.common.utils.Utils` has it, which is where Java clients put their keys.
pub(crate) fn hash(key: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    let mut words = key.chunks_exact(4);
    let length = u32::try_from(key.len()).unwrap_or(u32::MAX);
    let mut hash = words.by_ref().fold(SEED ^ length, |hash, word| {
        let word = word.try_into().map_or(0, u32::from_le_bytes).wrapping_mul(M);
        hash.wrapping_mul(M) ^ (word ^ (word >> 24)).wrapping_mul(M)
    });
    let rest = words.remainder();
    if !rest.is_empty() {
        let tail = rest.iter().rev().fold(0, |tail, byte| tail << 8 | u32::from(*byte));
        hash = (hash ^ tail).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_hash_as_javas_do() {
        // The vectors of Kafka's own UtilsTest.testMurmur2, and the empty key.
        let vectors: [(&[u8], i32); 7] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
            (b"", 0x106e_08d9),
        ];
        for (key, expected) in vectors {
            assert_eq!(hash(key), expected.cast_unsigned(), "{}", String::from_utf8_lossy(key));
        }
    }

    #[test]
    fn a_count_is_noted_once_and_again_when_it_changes() {
        let placement = Placement::new();
        let ask = |count| placement.partition("t", Some(b"abc"), count, |_| true);
        assert_eq!((placement.count("t"), placement.version()), (None, 0));
        assert_eq!(ask(6), partition(hash(b"abc"), 6));
        assert_eq!((placement.count("t"), placement.version()), (Some(6), 1));
        placement.expect(Some(6), 0);
        ask(6);
        assert_eq!(placement.version(), 1);
        ask(7);
        assert_eq!((placement.count("t"), placement.version()), (Some(7), 2));
    }

    #[test]
    fn a_record_without_a_key_goes_where_it_was_expected() {
        let placement = Placement::new();
        for hash in [0, 5, 6, u32::MAX] {
            placement.expect(Some(6), hash);
            assert_eq!(placement.partition("t", None, 6, |_| true), partition(hash, 6));
        }
    }
}
