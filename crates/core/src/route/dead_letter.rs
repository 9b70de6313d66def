//! Dead letters: the records for the dead-letter topic in place of records that cannot be
//! delivered.

use super::Record;
use crate::config::SlotName;
use crate::event::Place;

pub(crate) const CLASS_HEADER: &str = "walrelay-error-class";
pub(crate) const ERROR_HEADER: &str = "walrelay-error";
/// The number of attempts, in decimal.
pub(crate) const ATTEMPTS_HEADER: &str = "walrelay-attempts";
/// Absent if the row gives no topic.
pub(crate) const TOPIC_HEADER: &str = "walrelay-original-topic";
pub(crate) const SLOT_HEADER: &str = "walrelay-slot";
/// The table, or the messages, of the event.
pub(crate) const OUTBOX_HEADER: &str = "walrelay-outbox";
pub(crate) const ROW_HEADER: &str = "walrelay-row-id";
/// `COMMIT_LSN:INDEX`.
pub(crate) const PLACE_HEADER: &str = "walrelay-original-position";
/// Present if the row chose its partition.
pub(crate) const PARTITION_HEADER: &str = "walrelay-original-partition";
/// Present if the row chose the record's time: milliseconds since the Unix epoch.
pub(crate) const TIMESTAMP_HEADER: &str = "walrelay-original-timestamp";
/// Present if the dead letter omits the value: its bytes, in decimal.
pub(crate) const OMITTED_HEADER: &str = "walrelay-omitted-value-bytes";
/// Present if the dead letter has only the beginning of its key or of a header, or lacks a header:
/// `key` or the header's name, `=` and the original bytes, separated by commas.
pub(crate) const SHORTENED_HEADER: &str = "walrelay-shortened";
/// What is kept of the key, and of a header, of a dead letter that is too large.
const KEPT_BYTES: usize = 1_024;
/// What is kept of all headers of it. Further ones are left out.
const HEADERS_BYTES: usize = 16 * KEPT_BYTES;

/// Why an event is a dead letter, for its headers.
#[derive(Debug, Clone, Copy)]
pub struct Reason<'a> {
    /// The slot.
    pub slot: &'a SlotName,
    /// The table's name, or that of the messages.
    pub outbox: &'a str,
    /// The id of its row.
    pub row: &'a [u8],
    /// The place of the event.
    pub place: Place,
    /// The class of the failure.
    pub class: &'a str,
    /// The cause.
    pub cause: &'a str,
    /// The number of attempts.
    pub attempts: u32,
}

/// A copy of a [`Record`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedRecord {
    /// The topic.
    pub topic: String,
    /// The key; none of an event without an aggregate.
    pub key: Option<Vec<u8>>,
    /// The value; none is a tombstone.
    pub value: Option<Vec<u8>>,
    /// The headers, in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// The partition, where the row says it.
    pub partition: Option<i32>,
    /// The timestamp, in milliseconds since the Unix epoch, where the row says it.
    pub timestamp_ms: Option<i64>,
}

impl OwnedRecord {
    /// Copies `record`.
    pub fn of(record: &Record<'_>) -> Self {
        let headers = record
            .headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.map(<[u8]>::to_vec)));
        OwnedRecord {
            topic: record.topic.to_owned(),
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            headers: headers.collect(),
            partition: record.partition,
            timestamp_ms: record.timestamp_ms,
        }
    }

    /// Calls `take` with the record.
    pub fn with_record<T>(&self, take: impl FnOnce(&Record<'_>) -> T) -> T {
        let headers: Vec<_> = self
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_deref()))
            .collect();
        take(&Record {
            topic: &self.topic,
            key: self.key.as_deref(),
            value: self.value.as_deref(),
            headers: &headers,
            partition: self.partition,
            timestamp_ms: self.timestamp_ms,
        })
    }

    /// The dead letter of this record: its key, value and headers, and then the headers with the
    /// reason. The record's topic may be empty, if the row gives none. The time of the dead letter
    /// is that of its production. The row's own time may be the fault, or so old that retention
    /// would delete the dead letter at once.
    #[must_use]
    pub(crate) fn into_dead_letter(mut self, topic: &str, reason: &Reason<'_>) -> OwnedRecord {
        let original = std::mem::replace(&mut self.topic, topic.to_owned());
        let partition = self.partition.take();
        let timestamp_ms = self.timestamp_ms.take();
        let mut header =
            |name: &str, value: Vec<u8>| self.headers.push((name.to_owned(), Some(value)));
        header(CLASS_HEADER, reason.class.into());
        header(ERROR_HEADER, reason.cause.into());
        header(ATTEMPTS_HEADER, reason.attempts.to_string().into());
        if !original.is_empty() {
            header(TOPIC_HEADER, original.into());
        }
        header(SLOT_HEADER, reason.slot.as_str().into());
        header(OUTBOX_HEADER, reason.outbox.into());
        header(ROW_HEADER, reason.row.to_vec());
        header(
            PLACE_HEADER,
            format!("{}:{}", reason.place.commit_lsn, reason.place.index).into(),
        );
        if let Some(partition) = partition {
            header(PARTITION_HEADER, partition.to_string().into());
        }
        if let Some(timestamp_ms) = timestamp_ms {
            header(TIMESTAMP_HEADER, timestamp_ms.to_string().into());
        }
        self
    }

    /// Whether [`OwnedRecord::reduced`] makes it smaller.
    pub(crate) fn is_reducible(&self) -> bool {
        let is_long =
            |bytes: &Option<Vec<u8>>| bytes.as_ref().is_some_and(|bytes| bytes.len() > KEPT_BYTES);
        self.value.is_some()
            || is_long(&self.key)
            || self.headers.iter().any(|(_, value)| is_long(value))
            || self.headers.iter().map(header_bytes).sum::<usize>() > HEADERS_BYTES + KEPT_BYTES
    }

    /// Removes the value, and what is large of key and headers. Headers with the sizes are added.
    #[must_use]
    pub(crate) fn reduced(mut self) -> OwnedRecord {
        let mut shortened = Vec::new();
        let mut shorten = |name: &str, bytes: &mut Vec<u8>| {
            if bytes.len() > KEPT_BYTES {
                shortened.push(format!("{name}={}", bytes.len()));
                bytes.truncate(KEPT_BYTES);
            }
        };
        self.key.iter_mut().for_each(|key| shorten("key", key));
        for (name, value) in &mut self.headers {
            value.iter_mut().for_each(|value| shorten(name, value));
        }
        // The reason comes last, and is kept.
        let mut left = HEADERS_BYTES;
        let mut kept: Vec<_> = Vec::with_capacity(self.headers.len());
        for header in self.headers.into_iter().rev() {
            match left.checked_sub(header_bytes(&header)) {
                Some(rest) => {
                    left = rest;
                    kept.push(header);
                }
                None => shortened.push(format!(
                    "{}={}",
                    header.0,
                    header.1.map_or(0, |value| value.len())
                )),
            }
        }
        kept.reverse();
        self.headers = kept;
        if let Some(value) = self.value.take() {
            self.headers.push((
                OMITTED_HEADER.to_owned(),
                Some(value.len().to_string().into()),
            ));
        }
        if !shortened.is_empty() {
            let mut names = shortened.join(",").into_bytes();
            names.truncate(KEPT_BYTES);
            self.headers
                .push((SHORTENED_HEADER.to_owned(), Some(names)));
        }
        self
    }
}

fn header_bytes((name, value): &(String, Option<Vec<u8>>)) -> usize {
    name.len() + value.as_ref().map_or(0, Vec::len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Via;
    use crate::position::Lsn;

    #[test]
    fn a_dead_letter_is_the_record_with_headers_that_name_the_reason() {
        let headers: &[(&str, Option<&[u8]>)] = &[("id", Some(b"7"))];
        let record = Record {
            topic: "orders",
            key: Some(b"k"),
            value: Some(b"xyz"),
            headers,
            partition: Some(3),
            timestamp_ms: Some(4),
        };
        let slot = "s".parse().unwrap();
        let place = Place {
            commit_lsn: Lsn::new(0x10),
            index: 2,
            via: Via::Slot,
        };
        let reason = Reason {
            slot: &slot,
            outbox: "public.outbox",
            row: b"7",
            place,
            class: "rejected",
            cause: "large",
            attempts: 1,
        };
        let expected: [(&str, Option<&[u8]>); 11] = [
            ("id", Some(b"7")),
            ("walrelay-error-class", Some(b"rejected")),
            ("walrelay-error", Some(b"large")),
            ("walrelay-attempts", Some(b"1")),
            ("walrelay-original-topic", Some(b"orders")),
            ("walrelay-slot", Some(b"s")),
            ("walrelay-outbox", Some(b"public.outbox")),
            ("walrelay-row-id", Some(b"7")),
            ("walrelay-original-position", Some(b"0/10:2")),
            ("walrelay-original-partition", Some(b"3")),
            ("walrelay-original-timestamp", Some(b"4")),
        ];
        let letter = OwnedRecord::of(&record).into_dead_letter("dead", &reason);
        letter.with_record(|sent| {
            let expected = Record {
                topic: "dead",
                headers: &expected,
                partition: None,
                timestamp_ms: None,
                ..record
            };
            assert_eq!(*sent, expected);
        });
        assert!(letter.is_reducible());
        let letter = letter.reduced();
        assert!(!letter.is_reducible());
        letter.with_record(|sent| {
            let omitted = ("walrelay-omitted-value-bytes", Some(&b"3"[..]));
            assert_eq!((sent.value, sent.headers.last()), (None, Some(&omitted)));
        });
    }

    #[test]
    fn a_dead_letter_keeps_the_reason_and_the_beginning_of_key_and_headers_that_are_too_large() {
        let slot = "s".parse().unwrap();
        let place = Place {
            commit_lsn: Lsn::new(0x10),
            index: 2,
            via: Via::Slot,
        };
        for bytes in [1, 1_024, 2_700, 33_000, 3_000_000] {
            let large = vec![b'x'; bytes];
            let many: Vec<(String, Option<Vec<u8>>)> = (0..40)
                .map(|number| (format!("h{number}"), Some(large.clone())))
                .collect();
            let headers: Vec<(&str, Option<&[u8]>)> = many
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_deref()))
                .collect();
            let record = Record {
                topic: "t",
                key: Some(&large),
                headers: &headers,
                ..Record::default()
            };
            let row = &*large;
            let class = "too-large";
            let cause = "large";
            let reason = Reason {
                slot: &slot,
                outbox: "o",
                row,
                place,
                class,
                cause,
                attempts: 1,
            };
            let letter = OwnedRecord::of(&record).into_dead_letter("dead", &reason);
            assert_eq!(letter.is_reducible(), bytes > 1_000, "{bytes}");
            let letter = letter.reduced();
            assert!(!letter.is_reducible(), "{bytes}");
            letter.with_record(|sent| {
                let header = |name: &str| {
                    sent.headers
                        .iter()
                        .find(|(found, _)| *found == name)
                        .and_then(|(_, value)| *value)
                };
                assert_eq!(sent.key, Some(&large[..bytes.min(1_024)]));
                assert_eq!(
                    (header(CLASS_HEADER), header(PLACE_HEADER)),
                    (Some(&b"too-large"[..]), Some(&b"0/10:2"[..]))
                );
                assert!(sent.bytes() < 20_000, "{}", sent.bytes());
                let shortened =
                    String::from_utf8_lossy(header(SHORTENED_HEADER).unwrap_or_default())
                        .into_owned();
                assert_eq!(
                    shortened.starts_with(&format!("key={bytes},h0={bytes},")),
                    bytes > 1_024,
                    "{shortened}"
                );
            });
        }
    }

    #[test]
    fn an_owned_copy_equals_its_record() {
        let headers: &[(&str, Option<&[u8]>)] = &[("a", Some(b"1")), ("b", None)];
        let record = Record {
            topic: "t",
            key: Some(b""),
            value: None,
            headers,
            partition: Some(3),
            timestamp_ms: Some(4),
        };
        OwnedRecord::of(&record).with_record(|copy| assert_eq!(copy, &record));
    }
}
