//! Which dead letters are resolved: a marker behind a dead letter has its outcome.

use std::collections::HashMap;
use std::fmt;

use super::{At, Header};
use crate::route::dead_letter::SLOT_HEADER;
use crate::route::{OwnedRecord, Record};

/// Header of a marker: the outcome of the dead letter, `retried` or `dropped`.
pub(crate) const SETTLED_HEADER: &str = "walrelay-settled";
/// Which dead letter: `PARTITION:OFFSET`.
pub(crate) const SETTLED_LETTER_HEADER: &str = "walrelay-settled-letter";
/// When, as RFC 3339 has it.
pub(crate) const SETTLED_AT_HEADER: &str = "walrelay-settled-at";

/// The outcome of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was sent to its topic, and is there.
    Retried,
    /// Nobody wants it.
    Dropped,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Retried => "retried",
            Outcome::Dropped => "dropped",
        })
    }
}

/// A record that resolves a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marker {
    pub letter: At,
    /// What became of it.
    pub outcome: Outcome,
    /// When, as the marker says.
    pub when: Option<String>,
}

impl Marker {
    /// The marker at `at` with these headers; `None` where the record is none. A marker stands behind its dead letter,
    /// in the same partition.
    pub(crate) fn of(at: At, headers: &[Header<'_>]) -> Option<Marker> {
        let text = |name: &str| std::str::from_utf8(headers.iter().find(|(found, _)| *found == name)?.1?).ok();
        let outcome = match text(SETTLED_HEADER)? {
            "retried" => Outcome::Retried,
            "dropped" => Outcome::Dropped,
            _ => return None,
        };
        let letter: At = text(SETTLED_LETTER_HEADER)?.parse().ok()?;
        let is_behind = letter.partition == at.partition && letter.offset < at.offset;
        is_behind.then(|| Marker { letter, outcome, when: text(SETTLED_AT_HEADER).map(str::to_owned) })
    }

    /// The record of the marker, for the topic of the dead letter: with the key of the dead letter and no value.
    pub(crate) fn record(&self, topic: &str, key: Option<&[u8]>, slot: Option<&[u8]>) -> OwnedRecord {
        let (outcome, letter) = (self.outcome.to_string(), self.letter.to_string());
        let mut headers: Vec<Header<'_>> =
            vec![(SETTLED_HEADER, Some(outcome.as_bytes())), (SETTLED_LETTER_HEADER, Some(letter.as_bytes()))];
        headers.extend(self.when.as_ref().map(|when| (SETTLED_AT_HEADER, Some(when.as_bytes()))));
        headers.extend(slot.map(|slot| (SLOT_HEADER, Some(slot))));
        let partition = Some(self.letter.partition);
        OwnedRecord::of(&Record { topic, key, value: None, headers: &headers, partition, timestamp_ms: None })
    }
}

/// Offsets that share a piece of memory.
const CHUNK: i64 = 4096;
/// Words of a bit for each of them.
const WORDS: usize = CHUNK as usize / u64::BITS as usize;

#[derive(Debug, Clone)]
struct Chunk {
    settled: [u64; WORDS],
    dropped: [u64; WORDS],
}

/// Resolved dead letters. Two bits for each record of a stretch of 4096 in which any is: 256 KiB for a million.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settled(HashMap<(i32, i64), Box<Chunk>>);

impl Settled {
    /// Takes a marker. Of several markers for a dead letter the last counts.
    pub(crate) fn take(&mut self, marker: &Marker) {
        let Some((chunk, word, bit)) = place(marker.letter) else { return };
        let empty = || Box::new(Chunk { settled: [0; WORDS], dropped: [0; WORDS] });
        let chunk = self.0.entry(chunk).or_insert_with(empty);
        if let (Some(settled), Some(dropped)) = (chunk.settled.get_mut(word), chunk.dropped.get_mut(word)) {
            *settled |= bit;
            match marker.outcome {
                Outcome::Dropped => *dropped |= bit,
                Outcome::Retried => *dropped &= !bit,
            }
        }
    }

    /// The outcome of the dead letter at `at`, if it is resolved.
    pub(crate) fn outcome(&self, at: At) -> Option<Outcome> {
        let (chunk, word, bit) = place(at)?;
        let chunk = self.0.get(&chunk)?;
        let has = |words: &[u64; WORDS]| words.get(word).is_some_and(|word| word & bit != 0);
        let outcome = if has(&chunk.dropped) { Outcome::Dropped } else { Outcome::Retried };
        has(&chunk.settled).then_some(outcome)
    }
}

/// The chunk, the word in it and the bit in that.
fn place(at: At) -> Option<((i32, i64), usize, u64)> {
    let inside = usize::try_from(at.offset.rem_euclid(CHUNK)).ok()?;
    let bits = u64::BITS as usize;
    Some(((at.partition, at.offset.div_euclid(CHUNK)), inside / bits, 1 << (inside % bits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> At {
        text.parse().unwrap()
    }

    #[test]
    fn a_marker_reads_back_and_has_key_and_partition_of_its_letter() {
        let when = Some("2026-03-01T12:00:00Z".to_owned());
        let marker = Marker { letter: at("3:17"), outcome: Outcome::Dropped, when };
        marker.record("dead", Some(b"k"), Some(b"s")).with_record(|record| {
            assert_eq!((record.topic, record.key, record.value), ("dead", Some(&b"k"[..]), None));
            assert_eq!((record.partition, record.headers.last()), (Some(3), Some(&(SLOT_HEADER, Some(&b"s"[..])))));
            assert_eq!(Marker::of(at("3:18"), record.headers), Some(marker.clone()));
            // A record in front of the dead letter, or elsewhere, is no marker.
            for elsewhere in ["3:17", "3:2", "2:18"] {
                assert_eq!(Marker::of(at(elsewhere), record.headers), None);
            }
        });
    }

    #[test]
    fn hostile_markers_are_none() {
        for (outcome, letter) in
            [("burnt", "0:1"), ("retried", "0"), ("retried", "-1:0"), ("retried", "0:-5"), ("", ""), ("retried", "1:0")]
        {
            let headers: [Header<'_>; 2] =
                [(SETTLED_HEADER, Some(outcome.as_bytes())), (SETTLED_LETTER_HEADER, Some(letter.as_bytes()))];
            assert_eq!(Marker::of(at("0:9"), &headers), None, "{outcome} {letter}");
        }
        assert_eq!(Marker::of(at("0:9"), &[(SETTLED_HEADER, None), (SETTLED_LETTER_HEADER, Some(b"\xff"))]), None);
    }

    #[test]
    fn the_last_marker_of_a_letter_counts_and_neighbours_are_left_alone() {
        let mut settled = Settled::default();
        let mut take = |letter: &str, outcome| settled.take(&Marker { letter: at(letter), outcome, when: None });
        take("0:63", Outcome::Retried);
        take("0:4096", Outcome::Dropped);
        take("1:0", Outcome::Dropped);
        take("1:0", Outcome::Retried);
        take("7:9223372036854775806", Outcome::Retried);
        let outcome = |text| settled.outcome(at(text));
        assert_eq!((outcome("0:63"), outcome("0:4096")), (Some(Outcome::Retried), Some(Outcome::Dropped)));
        assert_eq!(
            (outcome("1:0"), outcome("7:9223372036854775806")),
            (Some(Outcome::Retried), Some(Outcome::Retried))
        );
        for none in ["0:62", "0:64", "0:4095", "0:4097", "1:63", "2:63", "7:0"] {
            assert_eq!(outcome(none), None, "{none}");
        }
    }

    #[test]
    fn a_million_settled_letters_take_little_memory() {
        let mut settled = Settled::default();
        for offset in 0..1_000_000 {
            settled.take(&Marker { letter: At { partition: 0, offset }, outcome: Outcome::Retried, when: None });
        }
        assert!(settled.0.len() * size_of::<Chunk>() < 256 << 10);
    }
}
