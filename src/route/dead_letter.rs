//! Dead letters: the records for the dead-letter topic in place of records that cannot be delivered.

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

#[derive(Debug, Clone, Copy)]
pub(crate) struct Reason<'a> {
    pub(crate) slot: &'a SlotName,
    /// The table's name, or that of the messages.
    pub(crate) outbox: &'a str,
    pub(crate) row: &'a [u8],
    pub(crate) place: Place,
    pub(crate) class: &'a str,
    pub(crate) cause: &'a str,
    pub(crate) attempts: u32,
}

/// A copy of a [`Record`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedRecord {
    pub(super) topic: String,
    pub(super) key: Option<Vec<u8>>,
    pub(super) value: Option<Vec<u8>>,
    pub(super) headers: Vec<(String, Option<Vec<u8>>)>,
    pub(super) partition: Option<i32>,
    pub(super) timestamp_ms: Option<i64>,
}

impl OwnedRecord {
    /// Copies `record`.
    pub fn of(record: &Record<'_>) -> Self {
        let headers = record.headers.iter().map(|(name, value)| ((*name).to_owned(), value.map(<[u8]>::to_vec)));
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
        let headers: Vec<_> = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref())).collect();
        take(&Record {
            topic: &self.topic,
            key: self.key.as_deref(),
            value: self.value.as_deref(),
            headers: &headers,
            partition: self.partition,
            timestamp_ms: self.timestamp_ms,
        })
    }

    /// The dead letter of this record: its key, value and headers, and then the headers with the reason. The record's
    /// topic may be empty, if the row gives none. The time of the dead letter is that of its production. The row's own
    /// time may be the fault, or so old that retention would delete the dead letter at once.
    #[must_use]
    pub(crate) fn into_dead_letter(mut self, topic: &str, reason: &Reason<'_>) -> OwnedRecord {
        let original = std::mem::replace(&mut self.topic, topic.to_owned());
        let (partition, timestamp_ms) = (self.partition.take(), self.timestamp_ms.take());
        let mut header = |name: &str, value: Vec<u8>| self.headers.push((name.to_owned(), Some(value)));
        header(CLASS_HEADER, reason.class.into());
        header(ERROR_HEADER, reason.cause.into());
        header(ATTEMPTS_HEADER, reason.attempts.to_string().into());
        if !original.is_empty() {
            header(TOPIC_HEADER, original.into());
        }
        header(SLOT_HEADER, reason.slot.as_str().into());
        header(OUTBOX_HEADER, reason.outbox.into());
        header(ROW_HEADER, reason.row.to_vec());
        header(PLACE_HEADER, format!("{}:{}", reason.place.commit_lsn, reason.place.index).into());
        if let Some(partition) = partition {
            header(PARTITION_HEADER, partition.to_string().into());
        }
        if let Some(timestamp_ms) = timestamp_ms {
            header(TIMESTAMP_HEADER, timestamp_ms.to_string().into());
        }
        self
    }

    /// Removes the value, and adds a header with its size.
    #[must_use]
    pub(crate) fn without_value(mut self) -> OwnedRecord {
        if let Some(value) = self.value.take() {
            self.headers.push((OMITTED_HEADER.to_owned(), Some(value.len().to_string().into())));
        }
        self
    }
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
        let place = Place { commit_lsn: Lsn::new(0x10), index: 2, via: Via::Slot };
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
            let expected = Record { topic: "dead", headers: &expected, partition: None, timestamp_ms: None, ..record };
            assert_eq!(*sent, expected);
        });
        letter.without_value().with_record(|sent| {
            let omitted = ("walrelay-omitted-value-bytes", Some(&b"3"[..]));
            assert_eq!((sent.value, sent.headers.last()), (None, Some(&omitted)));
        });
    }

    #[test]
    fn an_owned_copy_equals_its_record() {
        let headers: &[(&str, Option<&[u8]>)] = &[("a", Some(b"1")), ("b", None)];
        let record =
            Record { topic: "t", key: Some(b""), value: None, headers, partition: Some(3), timestamp_ms: Some(4) };
        OwnedRecord::of(&record).with_record(|copy| assert_eq!(copy, &record));
    }
}
