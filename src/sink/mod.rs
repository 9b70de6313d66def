//! Where records go: what a sink is, and the one there is, Kafka.

use std::future::Future;
use std::time::Instant;

pub mod kafka;
mod partitioning;

pub use kafka::KafkaSink;
pub use kafka::options::Transactional;
pub use kafka::producer::Producer;
pub(crate) use partitioning::{hash, partition};

use crate::error::Error;
use crate::ledger::Ticket;
use crate::route::Record;

/// What a record with two headers costs in memory beside its own bytes until it is acked: librdkafka's message and list of
/// headers with what its allocator adds, and a ticket. From `rd_kafka_msg_t` and `rd_kafka_header_t`, and as measured.
pub const RECORD_COST_BYTES: usize = 512;

/// Topics of Kafka's own. To a transaction the brokers deny them like those one has no right to.
const INTERNAL_TOPICS: [&str; 3] = ["__consumer_offsets", "__transaction_state", "__share_group_state"];

/// Whether it is one of Kafka's own, which take no records from anybody.
pub(crate) fn is_internal(topic: &str) -> bool {
    INTERNAL_TOPICS.contains(&topic)
}

/// Whether Kafka answers, as far as anybody knows.
///
/// Records are never given up because of it: they wait in the queue. Whether to wait or to stop is the reader's choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Connection {
    /// A broker answers.
    Up,
    /// None does.
    Down {
        /// Since when.
        since: Instant,
        /// The last thing librdkafka said about it.
        cause: String,
    },
    /// A broker answers and refuses us: credentials, TLS. librdkafka goes on trying, so this can end by itself.
    Refused(Error),
}

/// What became of one record.
#[derive(Debug)]
pub enum Delivery {
    /// The broker has it, as durably as `acks=all` makes it.
    Acked(Ticket),
    /// It was sent apart, and the broker refuses it for what it is. The producer goes on.
    Refused(Ticket, Error),
    /// It was not delivered, or nobody can tell. The producer is finished: nothing behind this record may count.
    Failed(Ticket, Error),
}

/// A record was not taken.
#[derive(Debug)]
pub enum EnqueueError {
    /// The queue is full. Offer the *same* record again after the next delivery; nothing else before it.
    Full,
    /// It can never be taken: too large, invalid topic. The producer goes on.
    Refused(Error),
    /// The producer is finished: an earlier record was not delivered, and the next deliveries say which and why.
    Finished,
}

/// Takes records in order and says later which of them the broker has.
///
/// One task enqueues. Records of one key reach the log in the order they were enqueued, gapless: once one fails, none
/// behind it is delivered. Dropping a sink leaves what was not acked undelivered, or delivered without anybody knowing:
/// never counted as delivered.
pub trait Sink: Send {
    /// Takes one record, copying it. Never blocks.
    ///
    /// # Errors
    /// [`EnqueueError`]; the record was not taken.
    fn enqueue(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError>;

    /// The same for a record that the broker may refuse: where that is all that happens, nothing else comes to its end. Call
    /// only with nothing in flight, and enqueue nothing before it is reported. A sink that cannot send apart sends as always.
    fn enqueue_apart(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        self.enqueue(record, ticket)
    }

    /// Waits until there is something to report and appends it to `into`, in no particular order across partitions.
    /// After [`EnqueueError::Full`] it returns within a millisecond even with nothing appended: offer the record again.
    /// Of several failures the first appended is the one that says most. Safe to cancel.
    fn deliveries(&mut self, into: &mut Vec<Delivery>) -> impl Future<Output = ()> + Send;
}
