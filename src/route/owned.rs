//! A record that outlives the message it was made of.

use super::Record;
use super::dead_letter::{
    ATTEMPTS_HEADER, CLASS_HEADER, ERROR_HEADER, OMITTED_HEADER, OUTBOX_HEADER, PARTITION_HEADER, PLACE_HEADER,
    ROW_HEADER, Reason, SLOT_HEADER, TIMESTAMP_HEADER, TOPIC_HEADER,
};

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

    /// Hands the record to `take`.
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

    /// The dead letter of this record: key, value and headers as they are, behind them those that say why. Its topic is
    /// empty where the row has none. Its time is when it is produced: one the row chose may be what is wrong with it, or
    /// so old that the letter would be deleted at once.
    #[must_use]
    pub fn into_dead_letter(mut self, topic: &str, reason: &Reason<'_>) -> OwnedRecord {
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

    /// The same without its value, and a header that says how large that was.
    #[must_use]
    pub fn without_value(mut self) -> OwnedRecord {
        if let Some(value) = self.value.take() {
            self.headers.push((OMITTED_HEADER.to_owned(), Some(value.len().to_string().into())));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_the_same_record() {
        let headers: &[(&str, Option<&[u8]>)] = &[("a", Some(b"1")), ("b", None)];
        let record =
            Record { topic: "t", key: Some(b""), value: None, headers, partition: Some(3), timestamp_ms: Some(4) };
        OwnedRecord::of(&record).with_record(|copy| assert_eq!(copy, &record));
    }
}
