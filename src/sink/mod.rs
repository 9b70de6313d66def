//! The sinks. The relay knows [`Sink`] and [`AnySink`]; another bus is a folder beside `kafka` and a variant here.

use std::time::{Duration, Instant};

use tokio::sync::watch;

pub(crate) mod kafka;
mod stdout;

pub use kafka::KafkaSink;
pub(crate) use kafka::connection::other_cluster;
pub use kafka::options::Transactional;
pub(crate) use kafka::options::reduce_batches;
pub(crate) use kafka::partitions::{hash, partition};
pub use kafka::producer::Producer;
pub(crate) use kafka::unless_there;
pub use stdout::StdoutSink;
pub(crate) use stdout::{json_of, printed};

use crate::config::{Config, SinkKind};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::ledger::Ticket;
use walrelay_core::route::Record;
use walrelay_core::sink::{Connection, Delivery, EnqueueError, Sink};

/// Memory for a record with two headers beside its own bytes until it is acked: librdkafka's message and list of headers
/// with what its allocator adds, and a ticket. From `rd_kafka_msg_t` and `rd_kafka_header_t`, and as measured.
pub(crate) const RECORD_COST_BYTES: usize = 512;

/// Kafka's own topics, which take no records from anybody. Brokers deny them to a transaction as without a right.
const INTERNAL_TOPICS: [&str; 3] = ["__consumer_offsets", "__transaction_state", "__share_group_state"];

pub(crate) fn is_internal(topic: &str) -> bool {
    INTERNAL_TOPICS.contains(&topic)
}

/// The sink of `sink.kind`.
pub enum AnySink {
    /// Kafka.
    Kafka(Box<KafkaSink>),
    /// Standard output.
    Stdout(StdoutSink),
    /// Nowhere.
    Null(NullSink),
}

/// A handle on a sink, which one task owns. Cheap to clone; does not keep the sink alive.
#[derive(Debug, Clone)]
pub enum SinkHandle {
    /// Kafka's producer.
    Kafka(Producer),
    /// Nothing that could be away, or refuse us.
    Local,
}

impl AnySink {
    /// Makes the sink. Connects in the background.
    pub fn connect(config: &Config) -> Result<AnySink> {
        Ok(match config.sink {
            SinkKind::Kafka => AnySink::from(KafkaSink::connect(&config.kafka)?),
            SinkKind::Stdout => AnySink::Stdout(StdoutSink::open()),
            SinkKind::Null => AnySink::Null(NullSink::default()),
        })
    }

    /// The same for asking on behalf of another: it does not log what it finds.
    pub(crate) fn for_asking(config: &Config) -> Result<AnySink> {
        match config.sink {
            SinkKind::Kafka => Ok(AnySink::from(KafkaSink::for_asking(&config.kafka)?)),
            SinkKind::Stdout | SinkKind::Null => AnySink::connect(config),
        }
    }

    /// Makes a sink that writes in transactions, where no older one of this id can write any more.
    pub(crate) async fn transactional(config: &Config, of: &Transactional) -> Result<AnySink> {
        match config.sink {
            SinkKind::Kafka => Ok(AnySink::from(KafkaSink::transactional(&config.kafka, of).await?)),
            SinkKind::Stdout | SinkKind::Null => Err(Error::new(Kind::Bug, "transactions without Kafka")),
        }
    }

    fn kafka(&self) -> Option<&KafkaSink> {
        match self {
            AnySink::Kafka(sink) => Some(sink),
            AnySink::Stdout(_) | AnySink::Null(_) => None,
        }
    }

    pub(crate) fn handle(&self) -> SinkHandle {
        self.kafka().map_or(SinkHandle::Local, |sink| SinkHandle::Kafka(sink.producer()))
    }

    pub(crate) fn is_up(&self) -> bool {
        *self.watch_connection().borrow() == Connection::Up
    }

    /// Whether the bus answers, to be woken at each change.
    pub(crate) fn watch_connection(&self) -> watch::Receiver<Connection> {
        self.kafka().map_or_else(|| watch::channel(Connection::Up).1, KafkaSink::watch_connection)
    }

    /// The `max` topics that got most records from this sink, and how many, most first; none where the bus does not tell.
    pub(crate) fn busiest_topics(&self, max: usize) -> Vec<(&str, u64)> {
        self.kafka().map_or_else(Vec::new, |sink| sink.busiest_topics(max))
    }

    /// The average time that the slowest broker took to answer requests of late, where librdkafka reports it.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.kafka()?.round_trip()
    }

    /// The average time for which a broker made requests wait for a quota of late, where one did.
    pub(crate) fn throttle(&self) -> Option<Duration> {
        self.kafka()?.throttle()
    }

    /// How often a topic got another number of partitions since this was asked last.
    pub(crate) fn take_partition_changes(&self) -> u64 {
        self.kafka().map_or(0, KafkaSink::take_partition_changes)
    }

    /// Asks which of `topics` are not there. Creates none.
    pub(crate) async fn missing(&self, topics: &[&str], timeout: Duration) -> Result<Vec<String>> {
        match self.kafka() {
            Some(sink) => sink.missing(topics, timeout).await,
            None => Ok(Vec::new()),
        }
    }

    /// Gives up what was not acked and frees the sink. Dropping does the same without waiting for the end.
    pub(crate) async fn close(self) {
        if let AnySink::Kafka(sink) = self {
            sink.close().await;
        }
    }
}

/// Shows `take` the newest records of `topic`; see [`kafka::topic_reader::read_back`]. Blocks.
pub(crate) fn read_back(
    config: &Config,
    topic: &str,
    deadline: Instant,
    take: &mut dyn FnMut(&Record<'_>) -> bool,
) -> Result<()> {
    match config.sink {
        SinkKind::Kafka => {
            let options = kafka::options::Options::reader(&config.kafka)?;
            kafka::topic_reader::read_back(options, topic, deadline, take)
        }
        SinkKind::Stdout | SinkKind::Null => Ok(()),
    }
}

impl From<KafkaSink> for AnySink {
    fn from(sink: KafkaSink) -> AnySink {
        AnySink::Kafka(Box::new(sink))
    }
}

impl Sink for AnySink {
    #[inline]
    fn enqueue(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        match self {
            AnySink::Kafka(sink) => sink.enqueue(record, ticket),
            AnySink::Stdout(sink) => sink.enqueue(record, ticket),
            AnySink::Null(sink) => sink.enqueue(record, ticket),
        }
    }

    fn enqueue_apart(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        match self {
            AnySink::Kafka(sink) => sink.enqueue_apart(record, ticket),
            AnySink::Stdout(sink) => sink.enqueue_apart(record, ticket),
            AnySink::Null(sink) => sink.enqueue_apart(record, ticket),
        }
    }

    async fn deliveries(&mut self, into: &mut Vec<Delivery>) {
        match self {
            AnySink::Kafka(sink) => sink.deliveries(into).await,
            AnySink::Stdout(sink) => sink.deliveries(into).await,
            AnySink::Null(sink) => sink.deliveries(into).await,
        }
    }
}

impl SinkHandle {
    /// Gives up everything that was not acked, and says how many records that was; none where there were none.
    pub(crate) fn give_up(&self) -> Option<usize> {
        match self {
            SinkHandle::Kafka(producer) => producer.give_up(),
            SinkHandle::Local => None,
        }
    }

    /// Waits until the bus has refused us for some seconds on end, and says why.
    pub(crate) async fn unusable(&self) -> Error {
        match self {
            SinkHandle::Kafka(producer) => producer.unusable().await,
            SinkHandle::Local => std::future::pending().await,
        }
    }

    /// The id of the cluster of brokers; none where they do not tell, or there is none.
    /// Errors: it is another one than before; no broker answers.
    pub(crate) async fn cluster_id(&self) -> Result<Option<String>> {
        match self {
            SinkHandle::Kafka(producer) => producer.cluster_id().await,
            SinkHandle::Local => Ok(None),
        }
    }

    /// The producer, for a position that is kept in Kafka.
    pub(crate) fn kafka(self) -> Result<Producer> {
        match self {
            SinkHandle::Kafka(producer) => Ok(producer),
            SinkHandle::Local => Err(Error::new(Kind::Bug, "a position in Kafka, and events elsewhere")),
        }
    }
}

/// Keeps nothing and acks each record as it comes: to measure the path before the bus.
#[derive(Debug, Default)]
pub struct NullSink {
    taken: Vec<Ticket>,
}

impl Sink for NullSink {
    fn enqueue(&mut self, _: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        self.taken.push(ticket);
        Ok(())
    }

    async fn deliveries(&mut self, into: &mut Vec<Delivery>) {
        if self.taken.is_empty() {
            std::future::pending().await
        }
        into.extend(self.taken.drain(..).map(Delivery::Acked));
    }
}
