//! Event to record: topic, key, headers, value.

/// What is handed to the sink; borrowed, because the sink copies it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Record<'a> {
    /// The topic: never empty, only characters Kafka allows.
    pub topic: &'a str,
    /// The key; `None` is a record without a key, an empty one is a key.
    pub key: Option<&'a [u8]>,
    /// The value; `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    /// Headers, in order.
    pub headers: &'a [(&'a str, Option<&'a [u8]>)],
}
