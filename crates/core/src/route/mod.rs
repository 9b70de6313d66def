//! Turns an event into a record: topic, key, headers, value.
//!
//! The defaults are those of Debezium's Outbox Event Router. The topic is a prefix and the
//! unchanged aggregate type, and the key is the aggregate id. The event's id is a header, and the
//! value is the payload's text. Topic, key and further headers are templates over the row's
//! columns.

pub mod dead_letter;
mod router;

pub use dead_letter::OwnedRecord;
pub use router::REPLAY_HEADER;
pub use router::Router;

/// A record for the sink. It borrows, because the sink copies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record<'a> {
    /// The topic: not empty, and only with characters that the bus allows.
    pub topic: &'a str,
    /// The key; `None` is a record without a key, which differs from an empty key.
    pub key: Option<&'a [u8]>,
    /// The value; `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    /// Headers, in order.
    pub headers: &'a [(&'a str, Option<&'a [u8]>)],
    /// The partition; `None` selects the partition by the key.
    pub partition: Option<i32>,
    /// Milliseconds since the Unix epoch; `None` selects the time of production.
    pub timestamp_ms: Option<i64>,
}

impl Record<'_> {
    /// The bytes of key, value and headers. They count against the limit on bytes in flight.
    pub fn bytes(&self) -> usize {
        let length = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
        let headers: usize = self
            .headers
            .iter()
            .map(|(name, value)| name.len() + length(*value))
            .sum();
        length(self.key) + length(self.value) + headers
    }
}
