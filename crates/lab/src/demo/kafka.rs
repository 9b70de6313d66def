//! The demo's Kafka: a mock cluster in this process, or brokers the user names; and a consumer that
//! reads the topics of a run from their beginnings to their ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication, TopicResult};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::task::{JoinHandle, spawn_blocking};
use walrelay_core::clock::now_us;
use walrelay_core::error::{Error, Kind, Result};

use crate::kafka::{admin, close, consumer};
use crate::verify::{Delivered, Topics, fingerprint};

const PARTITIONS: i32 = 6;

/// How long brokers have for an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// The demo's brokers and topics. Topics on brokers that outlive the run are deleted after it.
pub(super) struct Broker {
    /// The client of a mock cluster, which ends with it. The cluster keeps everything in this
    /// process's memory, at most 5 MB for each partition, and listens on the loopback interface
    /// only.
    mock: Option<BaseProducer>,
    pub(super) brokers: String,
    topics: Vec<Arc<str>>,
}

impl Broker {
    pub(super) fn new(named: Option<&str>, topics: Vec<Arc<str>>) -> Result<Self> {
        if let Some(brokers) = named {
            return Ok(Broker {
                mock: None,
                brokers: brokers.to_owned(),
                topics,
            });
        }
        let failed = |error| {
            Error::new(
                Kind::Prerequisite,
                format!("the mock Kafka does not start: {error}"),
            )
        };
        let mock: BaseProducer = ClientConfig::new()
            .set("test.mock.num.brokers", "1")
            .create()
            .map_err(failed)?;
        let none = || failed(KafkaError::MockCluster(RDKafkaErrorCode::Fail));
        let cluster = mock.client().mock_cluster().ok_or_else(none)?;
        topics
            .iter()
            .try_for_each(|topic| cluster.create_topic(topic, PARTITIONS, 1))
            .map_err(failed)?;
        let brokers = cluster.bootstrap_servers();
        drop(cluster);
        Ok(Broker {
            mock: Some(mock),
            brokers,
            topics,
        })
    }

    /// Creates the topics where the brokers are named: the mock cluster has its topics from the
    /// start.
    pub(super) async fn create_topics(&self) -> Result<()> {
        let new = |topic| NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(-1));
        let new: Vec<_> = self.topics.iter().map(|topic| new(topic)).collect();
        self.administer(async |admin, _, options| admin.create_topics(&new, options).await)
            .await
    }

    /// Deletes the topics where the brokers are named, also where the run ended before it had made
    /// them.
    pub(super) async fn delete_topics(&self) -> Result<()> {
        self.administer(async |admin, topics, options| admin.delete_topics(topics, options).await)
            .await
    }

    async fn administer(
        &self,
        ask: impl AsyncFnOnce(
            &AdminClient<DefaultClientContext>,
            &[&str],
            &AdminOptions,
        ) -> KafkaResult<Vec<TopicResult>>,
    ) -> Result<()> {
        if self.mock.is_some() {
            return Ok(());
        }
        let client = admin(&self.brokers).map_err(unusable)?;
        let topics: Vec<&str> = self.topics.iter().map(|topic| &**topic).collect();
        let options = AdminOptions::new()
            .request_timeout(Some(ANSWER))
            .operation_timeout(Some(ANSWER));
        let answers = ask(&client, &topics, &options).await;
        close(client);
        for answer in answers.map_err(unreachable)? {
            match answer {
                // A first request without an answer may have done it.
                Ok(_)
                | Err((
                    _,
                    RDKafkaErrorCode::TopicAlreadyExists
                    | RDKafkaErrorCode::UnknownTopicOrPartition,
                )) => {}
                Err((topic, code)) => {
                    return Err(
                        Error::new(Kind::BusRefused, format!("topic {topic}: {code}")).remedy(
                            "allow this client to create and delete topics, or leave out --brokers",
                        ),
                    );
                }
            }
        }
        Ok(())
    }
}

fn unusable(error: KafkaError) -> Error {
    Error::new(Kind::Config, format!("librdkafka makes no client: {error}"))
}

fn unreachable(error: KafkaError) -> Error {
    Error::new(Kind::BusUnreachable, format!("asking Kafka: {error}")).remedy(
        "see whether --brokers names a broker that can be reached from here, or leave it out",
    )
}

/// The header with the event's id.
pub(super) const ID_HEADER: &str = "id";

/// A reader of the topics at work, on a thread of its own. Dropping it stops it.
pub(super) struct Consumer {
    records: Arc<AtomicU64>,
    /// Asks for all records up to the present ends. Without this sender the thread ends.
    finish: oneshot::Sender<()>,
    read: JoinHandle<Result<Topics>>,
}

impl Consumer {
    pub(super) fn start(broker: &Broker) -> Result<Self> {
        let records = Arc::new(AtomicU64::new(0));
        let mut reader = Reader::new(broker, Arc::clone(&records))?;
        let (finish, finished) = oneshot::channel();
        let read = spawn_blocking(move || {
            let read = reader.read(finished);
            close(reader.client);
            read.map(|()| reader.topics)
        });
        Ok(Consumer {
            records,
            finish,
            read,
        })
    }

    pub(super) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Waits until this many records were read, or until no record has come for the time of
    /// `quiet`.
    pub(super) async fn read_at_least(&self, records: u64, quiet: Duration) {
        let mut last = (self.records(), Instant::now());
        while self.records() < records && last.1.elapsed() <= quiet {
            if self.records() != last.0 {
                last = (self.records(), Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Reads on to the present ends of the topics, and returns all records. The caller has stopped
    /// all producers.
    pub(super) async fn finish(self) -> Result<Topics> {
        // A thread that has ended says why.
        self.finish.send(()).ok();
        self.read
            .await
            .map_err(|error| Error::new(Kind::Bug, format!("the consumer's thread: {error}")))?
    }
}

struct Reader {
    client: BaseConsumer,
    names: Vec<Arc<str>>,
    records: Arc<AtomicU64>,
    topics: Topics,
    /// The offsets behind the records read so far.
    next: BTreeMap<(Arc<str>, i32), i64>,
}

impl Reader {
    fn new(broker: &Broker, records: Arc<AtomicU64>) -> Result<Self> {
        let client = consumer(&broker.brokers).map_err(unusable)?;
        let mut assignment = TopicPartitionList::new();
        for topic in &broker.topics {
            for partition in 0..PARTITIONS {
                assignment
                    .add_partition_offset(topic, partition, Offset::Offset(0))
                    .map_err(unusable)?;
            }
        }
        client.assign(&assignment).map_err(unusable)?;
        let partitions = broker
            .topics
            .iter()
            .map(|topic| (Arc::clone(topic), PARTITIONS))
            .collect();
        let topics = Topics {
            partitions,
            ..Topics::default()
        };
        Ok(Reader {
            client,
            names: broker.topics.clone(),
            records,
            topics,
            next: BTreeMap::new(),
        })
    }

    /// Reads from the beginnings to the ends that the topics have when `finished` asks for them.
    fn read(&mut self, mut finished: oneshot::Receiver<()>) -> Result<()> {
        loop {
            match finished.try_recv() {
                Err(TryRecvError::Empty) => _ = self.take_one(),
                Err(TryRecvError::Closed) => return Ok(()),
                Ok(()) => break,
            }
        }
        for topic in &self.names {
            for partition in 0..PARTITIONS {
                let (_, end) = self
                    .client
                    .fetch_watermarks(topic, partition, ANSWER)
                    .map_err(unreachable)?;
                self.topics.ends.insert((Arc::clone(topic), partition), end);
            }
        }
        let mut heard = Instant::now();
        let behind = |reader: &Reader| {
            reader
                .topics
                .ends
                .iter()
                .any(|(of, end)| reader.next.get(of).copied().unwrap_or(0) < *end)
        };
        // The checker counts what was not read.
        while behind(self) && heard.elapsed() < ANSWER {
            if self.take_one().is_some() {
                heard = Instant::now();
            }
        }
        Ok(())
    }

    /// Waits a moment for a record; none where none came. librdkafka repeats what failed.
    fn take_one(&mut self) -> Option<()> {
        let message = self.client.poll(Duration::from_millis(100))?.ok()?;
        let topic = self.names.iter().find(|name| &***name == message.topic())?;
        self.next.insert(
            (Arc::clone(topic), message.partition()),
            message.offset().saturating_add(1),
        );
        self.topics
            .records
            .push(delivered(&message, Arc::clone(topic)));
        self.records.fetch_add(1, Ordering::Relaxed);
        Some(())
    }
}

fn delivered(message: &BorrowedMessage<'_>, topic: Arc<str>) -> Delivered {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into();
    let id = message
        .headers()
        .and_then(|headers| headers.iter().find(|header| header.key == ID_HEADER));
    Delivered {
        topic,
        partition: message.partition(),
        offset: message.offset(),
        id: id.and_then(|header| header.value).map(text),
        key: message.key().map(text),
        payload: fingerprint(message.payload()),
        arrived_at_us: now_us(),
    }
}
