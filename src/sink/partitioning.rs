//! Which partition a key belongs to, as Java clients have it.

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
}
