//! Event to record: topic, key, headers, value.
//!
//! By default what Debezium's Outbox Event Router makes of a row: the topic is a prefix and the aggregate type as it
//! stands, the key is the aggregate id, the event's id is a header, and the value is the payload's text. Topic, key and
//! further headers are templates over the row's columns.

pub(crate) mod dead_letter;
mod router;

pub use dead_letter::OwnedRecord;
pub use router::{REPLAY_HEADER, Router};

/// What is handed to the sink; borrowed, because the sink copies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record<'a> {
    /// The topic: never empty, only characters Kafka allows.
    pub topic: &'a str,
    /// The key; `None` is a record without a key, an empty one is a key.
    pub key: Option<&'a [u8]>,
    /// The value; `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    /// Headers, in order.
    pub headers: &'a [(&'a str, Option<&'a [u8]>)],
    /// The partition; `None` leaves it to the key.
    pub partition: Option<i32>,
    /// Milliseconds since the Unix epoch; `None` is when it is produced.
    pub timestamp_ms: Option<i64>,
}
