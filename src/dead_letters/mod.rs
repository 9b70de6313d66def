//! Reads, retries and resolves the dead letters of a topic.
//!
//! | file | its content |
//! |---|---|
//! | here | one record of the topic: a dead letter, a marker, or a foreign record |
//! | [`scan`] | the filter; reads markers first, then dead letters |
//! | [`resolver`] | sends dead letters to their own topics, and writes their markers |
//!
//! Kafka cannot delete a single record. So a marker resolves a dead letter: a later record in the same partition, with
//! the same key and no value. Markers are read first, and memory holds a byte for each dead letter. Dead letters are
//! read one by one and never held; those to send are read once more.
//!
//! Any client may have written a record, so no record is trusted (P11).

pub(crate) mod resolver;
pub(crate) mod scan;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

pub(crate) use resolver::{Progress, Resolver};
pub(crate) use scan::{Counts, DeadLetterFilter, DeadLetterScope, Say, Scan};

pub(crate) use crate::replay::SendEnd;
pub(crate) use crate::sink::kafka::topic_reader::Header;

use crate::config::is_topic;
use crate::route::dead_letter::{
    CLASS_HEADER, OMITTED_HEADER, PARTITION_HEADER, SHORTENED_HEADER, SLOT_HEADER, TIMESTAMP_HEADER, TOPIC_HEADER,
};
use crate::route::{OwnedRecord, REPLAY_HEADER, Record};
use crate::sink::kafka::topic_reader::TopicRecord;

/// Header of a marker: the outcome of the dead letter, `retried` or `dropped`.
const SETTLED_HEADER: &str = "walrelay-settled";
/// The resolved dead letter: `PARTITION:OFFSET`.
const SETTLED_LETTER_HEADER: &str = "walrelay-settled-letter";
/// The time of the resolution, in the form of RFC 3339.
const SETTLED_AT_HEADER: &str = "walrelay-settled-at";

/// The place of a record, written `PARTITION:OFFSET`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct At {
    pub partition: i32,
    pub offset: i64,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.partition, self.offset)
    }
}

impl FromStr for At {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<At, Self::Err> {
        let parsed = text.split_once(':').and_then(|(partition, offset)| {
            let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let (partition, offset) = Some((partition, offset)).filter(|(one, other)| digits(one) && digits(other))?;
            Some(At { partition: partition.parse().ok()?, offset: offset.parse().ok()? })
        });
        parsed.ok_or("write it as PARTITION:OFFSET, such as 0:17")
    }
}

#[derive(Debug)]
pub(crate) enum Entry<'r> {
    DeadLetter(DeadLetter<'r>),
    Marker(Marker),
    /// Not written by walrelay.
    Foreign,
}

impl<'r> Entry<'r> {
    /// Classifies `record`. The headers with the reason begin with the last header that has a class.
    pub(crate) fn of(record: &'r TopicRecord<'r>) -> Entry<'r> {
        let Some(headers) = &record.headers else { return Entry::Foreign };
        let begins = headers.iter().rposition(|(name, value)| *name == CLASS_HEADER && value.is_some());
        match begins.and_then(|begins| headers.split_at_checked(begins)) {
            Some((original, reasons)) => Entry::DeadLetter(DeadLetter { record, original, reasons }),
            // A dead letter never resolves another one, whatever headers the original record had.
            None => Marker::of(At { partition: record.partition, offset: record.offset }, headers)
                .map_or(Entry::Foreign, Entry::Marker),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The record is in its own topic.
    Retried,
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marker {
    pub letter: At,
    pub outcome: Outcome,
    /// The time of the resolution, as the marker states it.
    pub when: Option<String>,
}

impl Marker {
    /// The marker at `at` with these headers, if it is one. A marker follows its dead letter, in the same partition.
    fn of(at: At, headers: &[Header<'_>]) -> Option<Marker> {
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

    /// The record of the marker for the topic of the dead letter: with the dead letter's key and no value.
    fn record(&self, topic: &str, key: Option<&[u8]>, slot: Option<&[u8]>) -> OwnedRecord {
        let (outcome, letter) = (self.outcome.to_string(), self.letter.to_string());
        let mut headers: Vec<Header<'_>> =
            vec![(SETTLED_HEADER, Some(outcome.as_bytes())), (SETTLED_LETTER_HEADER, Some(letter.as_bytes()))];
        headers.extend(self.when.as_ref().map(|when| (SETTLED_AT_HEADER, Some(when.as_bytes()))));
        headers.extend(slot.map(|slot| (SLOT_HEADER, Some(slot))));
        let partition = Some(self.letter.partition);
        OwnedRecord::of(&Record { topic, key, value: None, headers: &headers, partition, timestamp_ms: None })
    }
}

#[derive(Debug)]
pub(crate) struct DeadLetter<'r> {
    pub(crate) record: &'r TopicRecord<'r>,
    /// The headers of the record that could not be delivered.
    pub(crate) original: &'r [Header<'r>],
    reasons: &'r [Header<'r>],
}

/// The reason for which a dead letter cannot be sent unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unsendable {
    #[error("the row made no topic")]
    NoTopic,
    /// The header does not name a valid topic, or names a reserved one.
    #[error("what it names as its topic is none that it may go to")]
    Topic,
    #[error("its value was too large to be taken along")]
    NoValue,
}

impl<'r> DeadLetter<'r> {
    pub(crate) fn at(&self) -> At {
        At { partition: self.record.partition, offset: self.record.offset }
    }

    /// The value of a header with the reason; none if the header is missing.
    pub(crate) fn reason(&self, name: &str) -> Option<&'r [u8]> {
        self.reasons.iter().find(|(found, _)| *found == name)?.1
    }

    /// The same as text.
    pub(crate) fn text(&self, name: &str) -> Option<Cow<'r, str>> {
        self.reason(name).map(String::from_utf8_lossy)
    }

    pub(crate) fn number<N: FromStr>(&self, name: &str) -> Option<N> {
        std::str::from_utf8(self.reason(name)?).ok()?.parse().ok()
    }

    pub(crate) fn class(&self) -> Cow<'r, str> {
        self.text(CLASS_HEADER).unwrap_or_default()
    }

    /// The topic to which it can be sent unchanged. It must not be one of `reserved`.
    pub(crate) fn sendable(&self, reserved: &[String]) -> Result<Cow<'r, str>, Unsendable> {
        let topic = self.text(TOPIC_HEADER).ok_or(Unsendable::NoTopic)?;
        if !is_topic(&topic) || reserved.iter().any(|reserved| *reserved == *topic) {
            return Err(Unsendable::Topic);
        }
        if self.reason(OMITTED_HEADER).is_some() || self.reason(SHORTENED_HEADER).is_some() {
            return Err(Unsendable::NoValue);
        }
        Ok(topic)
    }

    /// The original record, for `topic`, with the header of a replay.
    fn record(&self, topic: &str) -> OwnedRecord {
        let mut headers = self.original.to_vec();
        if !headers.iter().any(|(name, _)| *name == REPLAY_HEADER) {
            headers.push((REPLAY_HEADER, Some(b"1")));
        }
        OwnedRecord::of(&Record {
            topic,
            key: self.record.key,
            value: self.record.value,
            headers: &headers,
            partition: self.number(PARTITION_HEADER).filter(|partition: &i32| *partition >= 0),
            timestamp_ms: self.number(TIMESTAMP_HEADER).filter(|time_ms: &i64| *time_ms >= 0),
        })
    }

    fn bytes(&self) -> usize {
        let all = self.original.iter().chain(self.reasons);
        let headers: usize = all.map(|(name, value)| name.len() + value.map_or(0, <[u8]>::len)).sum();
        headers + self.record.key.map_or(0, <[u8]>::len) + self.record.value.map_or(0, <[u8]>::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::dead_letter::{ATTEMPTS_HEADER, ERROR_HEADER, OUTBOX_HEADER, PLACE_HEADER, ROW_HEADER};

    pub(super) fn incoming<'m>(at: &str, headers: &[Header<'m>]) -> TopicRecord<'m> {
        let At { partition, offset } = at.parse().unwrap();
        let headers = Some(headers.to_vec());
        TopicRecord { partition, offset, time_ms: Some(5), key: Some(b"k"), value: Some(b"v"), headers }
    }

    pub(super) fn dead_letter<'r>(record: &'r TopicRecord<'r>) -> DeadLetter<'r> {
        match Entry::of(record) {
            Entry::DeadLetter(letter) => letter,
            other @ (Entry::Marker(_) | Entry::Foreign) => panic!("{other:?}"),
        }
    }

    const REASONS: [Header<'static>; 6] = [
        (CLASS_HEADER, Some(b"too-large")),
        (ERROR_HEADER, Some(b"large")),
        (ATTEMPTS_HEADER, Some(b"2")),
        (TOPIC_HEADER, Some(b"orders")),
        (SLOT_HEADER, Some(b"s")),
        (ROW_HEADER, Some(b"7")),
    ];

    fn at(text: &str) -> At {
        text.parse().unwrap()
    }

    #[test]
    fn a_partition_and_offset_are_parsed_and_invalid_text_is_refused() {
        assert_eq!(at("3:17"), At { partition: 3, offset: 17 });
        for text in ["", "3", ":", "3:", ":3", "-1:0", "0:-1", "+1:2", "0:1:2", "0:99999999999999999999", "a:b"] {
            assert!(text.parse::<At>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_dead_letter_contains_its_reasons_and_the_original_record() {
        let own: [Header<'_>; 3] = [("id", Some(b"7")), (SLOT_HEADER, Some(b"its own")), ("empty", None)];
        let record = incoming("1:9", &[&own[..], &REASONS[..]].concat());
        let letter = dead_letter(&record);
        assert_eq!((letter.at().to_string().as_str(), &*letter.class()), ("1:9", "too-large"));
        assert_eq!(
            (letter.text(SLOT_HEADER).as_deref(), letter.number::<u32>(ATTEMPTS_HEADER), letter.reason(ROW_HEADER)),
            (Some("s"), Some(2), Some(&b"7"[..]))
        );
        assert_eq!(
            (letter.text(OUTBOX_HEADER), letter.text(PLACE_HEADER), letter.number::<u64>(OMITTED_HEADER)),
            (None, None, None)
        );
        assert_eq!(&*letter.sendable(&[]).unwrap(), "orders");
        letter.record("orders").with_record(|record| {
            let expected = [&own[..], &[(REPLAY_HEADER, Some(&b"1"[..]))]].concat();
            assert_eq!((record.topic, record.key, record.value), ("orders", Some(&b"k"[..]), Some(&b"v"[..])));
            assert_eq!((record.headers, record.partition, record.timestamp_ms), (&expected[..], None, None));
        });
    }

    #[test]
    fn a_record_sent_again_has_the_partition_and_timestamp_of_its_row() {
        let replayed: [Header<'_>; 1] = [(REPLAY_HEADER, Some(b"1"))];
        for (partition, time, expected) in
            [("3", "4", (Some(3), Some(4))), ("-3", "99999999999999999999", (None, None))]
        {
            let more = [(PARTITION_HEADER, Some(partition.as_bytes())), (TIMESTAMP_HEADER, Some(time.as_bytes()))];
            let record = incoming("0:0", &[&replayed[..], &REASONS[..], &more[..]].concat());
            dead_letter(&record).record("t").with_record(|record| {
                assert_eq!((record.partition, record.timestamp_ms), expected);
                assert_eq!(record.headers, replayed);
            });
        }
    }

    #[test]
    fn a_dead_letter_that_cannot_be_sent_again_names_the_reason() {
        let sendable = |headers: &[Header<'_>]| {
            let record = incoming("0:0", headers);
            dead_letter(&record).sendable(&["dead".to_owned()]).map(|topic| topic.into_owned())
        };
        let class: Header<'_> = (CLASS_HEADER, Some(b"x"));
        let to = |topic: &'static [u8]| [class, (TOPIC_HEADER, Some(topic))];
        assert_eq!(sendable(&[class]), Err(Unsendable::NoTopic));
        for topic in [&b"dead"[..], b"", b"a b", b"\xff", b"..", &[b'x'; 250]] {
            let headers = [class, (TOPIC_HEADER, Some(topic))];
            assert_eq!(sendable(&headers), Err(Unsendable::Topic), "{topic:?}");
        }
        let omitted = [&to(b"t")[..], &[(OMITTED_HEADER, Some(&b"no number"[..]))]].concat();
        assert_eq!(sendable(&omitted), Err(Unsendable::NoValue));
        assert_eq!(sendable(&to(b"t")), Ok("t".to_owned()));
    }

    #[test]
    fn a_dead_letter_with_the_headers_of_a_marker_is_not_a_marker() {
        let forged: [Header<'_>; 2] = [(SETTLED_HEADER, Some(b"dropped")), (SETTLED_LETTER_HEADER, Some(b"0:3"))];
        assert!(matches!(Entry::of(&incoming("0:9", &forged)), Entry::Marker(_)));
        let record = incoming("0:9", &[&forged[..], &REASONS[..]].concat());
        assert_eq!(dead_letter(&record).original, forged);
    }

    #[test]
    fn a_record_without_a_class_is_foreign_and_invalid_headers_are_ignored() {
        let foreign = |headers: Option<Vec<Header<'_>>>| {
            let record = TopicRecord { headers, ..incoming("0:0", &[]) };
            matches!(Entry::of(&record), Entry::Foreign)
        };
        assert!(foreign(None) && foreign(Some(Vec::new())) && foreign(Some(vec![("id", Some(b"7"))])));
        assert!(foreign(Some(vec![(CLASS_HEADER, None)])));
        let huge = vec![b'9'; 1 << 20];
        let hostile: Vec<Header<'_>> = vec![
            (CLASS_HEADER, Some(b"\xff\x00\x1b[2J")),
            (ATTEMPTS_HEADER, Some(b"-1")),
            (OMITTED_HEADER, Some(&huge)),
            (ROW_HEADER, None),
            (SLOT_HEADER, Some(b"\xc3")),
        ];
        let record = TopicRecord { key: None, value: None, time_ms: None, ..incoming("0:0", &hostile) };
        let letter = dead_letter(&record);
        assert_eq!(
            (letter.number::<u32>(ATTEMPTS_HEADER), letter.number::<u64>(OMITTED_HEADER), letter.reason(ROW_HEADER)),
            (None, None, None)
        );
        assert_eq!((&*letter.class(), letter.text(SLOT_HEADER).as_deref()), ("\u{fffd}\0\u{1b}[2J", Some("\u{fffd}")));
    }

    #[test]
    fn a_marker_parses_back_and_has_the_key_and_partition_of_its_dead_letter() {
        let when = Some("2026-03-01T12:00:00Z".to_owned());
        let marker = Marker { letter: at("3:17"), outcome: Outcome::Dropped, when };
        marker.record("dead", Some(b"k"), Some(b"s")).with_record(|record| {
            assert_eq!((record.topic, record.key, record.value), ("dead", Some(&b"k"[..]), None));
            assert_eq!((record.partition, record.headers.last()), (Some(3), Some(&(SLOT_HEADER, Some(&b"s"[..])))));
            assert_eq!(Marker::of(at("3:18"), record.headers), Some(marker.clone()));
            // A record before the dead letter, or in another partition, is not a marker.
            for elsewhere in ["3:17", "3:2", "2:18"] {
                assert_eq!(Marker::of(at(elsewhere), record.headers), None);
            }
        });
        for (outcome, letter) in
            [("burnt", "0:1"), ("retried", "0"), ("retried", "-1:0"), ("retried", "0:-5"), ("", ""), ("retried", "1:0")]
        {
            let headers =
                [(SETTLED_HEADER, Some(outcome.as_bytes())), (SETTLED_LETTER_HEADER, Some(letter.as_bytes()))];
            assert_eq!(Marker::of(at("0:9"), &headers), None, "{outcome} {letter}");
        }
        assert_eq!(Marker::of(at("0:9"), &[(SETTLED_HEADER, None), (SETTLED_LETTER_HEADER, Some(b"\xff"))]), None);
    }
}
