//! A record that outlives the message it was made of.

use super::Record;

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
