//! The demo's Kafka: a mock cluster in this process, or brokers the user names; and a consumer that reads the topics of a
//! run from their beginnings to their ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::task::JoinHandle;

use super::verify::{Delivered, Topics, fingerprint};
use crate::clock::now_us;
use crate::error::{Error, Kind, Result};

const PARTITIONS: i32 = 6;

const ADMIN_TIMEOUT: Duration = Duration::from_secs(20);

/// The demo's brokers and topics. Topics on brokers that outlive the run are deleted after it.
pub(super) struct Broker {
    /// The client of a mock cluster, which ends with it. The cluster keeps everything in this process's memory, at most
    /// 5 MB for each partition, and listens on the loopback interface only.
    mock: Option<BaseProducer>,
    pub(super) brokers: String,
    pub(super) topics: Vec<String>,
}

impl Broker {
    pub(super) fn new(named: Option<&str>, topics: Vec<String>) -> Result<Self> {
        if let Some(brokers) = named {
            return Ok(Broker { mock: None, brokers: brokers.to_owned(), topics });
        }
        let failed = |error| Error::new(Kind::Prerequisite, format!("the mock Kafka does not start: {error}"));
        let mock: BaseProducer = ClientConfig::new().set("test.mock.num.brokers", "1").create().map_err(failed)?;
        let none = || failed(KafkaError::MockCluster(RDKafkaErrorCode::Fail));
        let cluster = mock.client().mock_cluster().ok_or_else(none)?;
        topics.iter().try_for_each(|topic| cluster.create_topic(topic, PARTITIONS, 1)).map_err(failed)?;
        let brokers = cluster.bootstrap_servers();
        drop(cluster);
        Ok(Broker { mock: Some(mock), brokers, topics })
    }

    /// Creates the topics where the brokers are named: the mock cluster has its topics from the start.
    pub(super) async fn create_topics(&self) -> Result<()> {
        if self.mock.is_some() {
            return Ok(());
        }
        let new = self.topics.iter().map(|topic| NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(-1)));
        let new: Vec<_> = new.collect();
        let outcomes = self.admin()?.create_topics(&new, &admin_options()).await;
        for outcome in outcomes.map_err(|error| unreachable(&self.brokers, &error))? {
            outcome.map_err(|(topic, code)| refused("created", &topic, code))?;
        }
        Ok(())
    }

    pub(super) async fn delete_topics(&self) -> Result<()> {
        if self.mock.is_some() {
            return Ok(());
        }
        let names: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        let outcomes = self.admin()?.delete_topics(&names, &admin_options()).await;
        for outcome in outcomes.map_err(|error| unreachable(&self.brokers, &error))? {
            match outcome {
                // The run ended before it had made the topic.
                Ok(_) | Err((_, RDKafkaErrorCode::UnknownTopicOrPartition)) => {}
                Err((topic, code)) => return Err(refused("deleted", &topic, code)),
            }
        }
        Ok(())
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>> {
        let client = ClientConfig::new().set("bootstrap.servers", &self.brokers).create();
        client.map_err(|error| unreachable(&self.brokers, &error))
    }
}

fn admin_options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(ADMIN_TIMEOUT)).operation_timeout(Some(ADMIN_TIMEOUT))
}

fn unreachable(brokers: &str, error: &KafkaError) -> Error {
    Error::new(Kind::KafkaUnreachable, format!("Kafka at {brokers}: {error}"))
        .remedy("see whether --brokers names a broker that can be reached from here, or leave it out")
}

fn refused(what: &str, topic: &str, code: RDKafkaErrorCode) -> Error {
    Error::new(Kind::KafkaRefused, format!("the topic {topic:?} could not be {what}: {code}"))
        .remedy("allow this client to create and delete topics, or leave out --brokers")
}

/// The header with the event's id.
pub(super) const ID_HEADER: &str = "id";

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

/// A consumer at work, on a thread of its own. It is in no consumer group and commits nothing. Dropping it stops it.
pub(super) struct Consumer {
    shared: Arc<Shared>,
    reader: JoinHandle<Result<Topics>>,
}

#[derive(Debug, Default)]
struct Shared {
    records: AtomicU64,
    finish: AtomicBool,
    abandon: AtomicBool,
}

impl Consumer {
    pub(super) fn start(brokers: &str, topics: &[String]) -> Result<Self> {
        let failed = |error| Error::new(Kind::Prerequisite, format!("the consumer does not start: {error}"));
        let client: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            // The client requires a group, and this reader joins none.
            .set("group.id", "walrelay-reader")
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest")
            .set("allow.auto.create.topics", "false")
            // The arrival stands for the ack in the latencies: fetches must not add to them.
            .set("fetch.wait.max.ms", "10")
            .set("fetch.error.backoff.ms", "20")
            .create()
            .map_err(failed)?;
        let topics: Vec<Arc<str>> = topics.iter().map(|topic| topic.as_str().into()).collect();
        let places = topics.iter().flat_map(|topic| (0..PARTITIONS).map(|partition| (Arc::clone(topic), partition)));
        let next: BTreeMap<_, _> = places.map(|place| (place, 0)).collect();
        let mut list = TopicPartitionList::new();
        for (topic, partition) in next.keys() {
            list.add_partition_offset(topic, *partition, Offset::Beginning).map_err(failed)?;
        }
        client.assign(&list).map_err(failed)?;
        let partitions = topics.into_iter().map(|topic| (topic, PARTITIONS)).collect();
        let shared = Arc::new(Shared::default());
        let topics = Topics { partitions, ..Topics::default() };
        let reader = Reader { client, shared: Arc::clone(&shared), topics, next };
        Ok(Consumer { shared, reader: tokio::task::spawn_blocking(|| reader.run()) })
    }

    pub(super) fn records(&self) -> u64 {
        self.shared.records.load(Ordering::Relaxed)
    }

    /// Waits until this many records were read, or until no record has come for the time of `quiet`.
    pub(super) async fn read_at_least(&self, records: u64, quiet: Duration) {
        let mut last = (self.records(), Instant::now());
        while self.records() < records && last.1.elapsed() <= quiet {
            if self.records() != last.0 {
                last = (self.records(), Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Reads on to the present ends of the topics, and returns all records. The caller has stopped all producers.
    pub(super) async fn finish(mut self) -> Result<Topics> {
        self.shared.finish.store(true, Ordering::Relaxed);
        let read = (&mut self.reader).await;
        read.map_err(|error| Error::new(Kind::Bug, format!("the consumer's thread: {error}")))?
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.shared.abandon.store(true, Ordering::Relaxed);
    }
}

struct Reader {
    client: BaseConsumer,
    shared: Arc<Shared>,
    topics: Topics,
    next: BTreeMap<(Arc<str>, i32), i64>,
}

impl Reader {
    fn run(mut self) -> Result<Topics> {
        while !self.shared.finish.load(Ordering::Relaxed) {
            if self.is_abandoned() {
                return Ok(self.topics);
            }
            self.poll();
        }
        self.read_to_the_ends().map_err(|error| {
            Error::new(Kind::KafkaUnreachable, format!("reading the topics to their ends: {error}"))
        })?;
        Ok(self.topics)
    }

    fn is_abandoned(&self) -> bool {
        self.shared.abandon.load(Ordering::Relaxed)
    }

    /// Takes one record, if one comes soon. Errors are those of connections, which the client makes again.
    fn poll(&mut self) {
        let Some(Ok(message)) = self.client.poll(POLL) else { return };
        let is_its = |place: &(Arc<str>, i32)| *place.0 == *message.topic() && place.1 == message.partition();
        let Some((place, next)) = self.next.iter_mut().find(|(place, _)| is_its(place)) else { return };
        *next = message.offset() + 1;
        self.topics.records.push(delivered(&message, Arc::clone(&place.0)));
        self.shared.records.fetch_add(1, Ordering::Relaxed);
    }

    fn read_to_the_ends(&mut self) -> Result<(), KafkaError> {
        for (topic, partition) in self.next.keys() {
            let (_, end) = self.client.fetch_watermarks(topic, *partition, REQUEST_TIMEOUT)?;
            self.topics.ends.insert((Arc::clone(topic), *partition), end);
        }
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        let is_behind = |reader: &Reader| {
            reader.topics.ends.iter().any(|(place, end)| reader.next.get(place).is_none_or(|next| next < end))
        };
        // The checker counts what is missing at the deadline.
        while is_behind(self) && Instant::now() <= deadline && !self.is_abandoned() {
            self.poll();
        }
        Ok(())
    }
}

fn delivered(message: &BorrowedMessage<'_>, topic: Arc<str>) -> Delivered {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into();
    let id = message.headers().and_then(|headers| headers.iter().find(|header| header.key == ID_HEADER)?.value);
    Delivered {
        topic,
        partition: message.partition(),
        offset: message.offset(),
        id: id.map(text),
        key: message.key().map(text),
        payload: fingerprint(message.payload()),
        arrived_at_us: now_us(),
    }
}
