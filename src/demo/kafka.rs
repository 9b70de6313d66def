//! The demo's Kafka: a mock cluster in this process, or brokers the user names; and a consumer that
//! reads the topics of a run from their beginnings to their ends.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, Producer as _};
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::task::{JoinHandle, spawn_blocking};

use super::verify::{Delivered, Topics, fingerprint};
use crate::config::KafkaConfig;
use crate::sink::kafka::options::Options;
use crate::sink::kafka::topic_reader::{Isolation, TopicAdmin, TopicReader, TopicRecord};
use walrelay_core::clock::now_us;
use walrelay_core::error::{Error, Kind, Result};

const PARTITIONS: i32 = 6;

/// The demo's brokers and topics. Topics on brokers that outlive the run are deleted after it.
pub(super) struct Broker {
    /// The client of a mock cluster, which ends with it. The cluster keeps everything in this
    /// process's memory, at most 5 MB for each partition, and listens on the loopback interface
    /// only.
    mock: Option<BaseProducer>,
    pub(super) brokers: String,
    topics: Vec<String>,
}

impl Broker {
    pub(super) fn new(named: Option<&str>, topics: Vec<String>) -> Result<Self> {
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
        self.administer(|admin, topics| admin.create_all(topics, PARTITIONS))
            .await
    }

    /// Deletes the topics where the brokers are named, also where the run ended before it had made
    /// them.
    pub(super) async fn delete_topics(&self) -> Result<()> {
        self.administer(TopicAdmin::delete).await
    }

    async fn administer(
        &self,
        ask: impl FnOnce(&TopicAdmin, &[&str]) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        if self.mock.is_some() {
            return Ok(());
        }
        let options = self.options()?;
        let topics = self.topics.clone();
        let asked = spawn_blocking(move || {
            let admin = TopicAdmin::open(&options)?;
            let done = ask(
                &admin,
                &topics.iter().map(String::as_str).collect::<Vec<_>>(),
            );
            admin.close();
            done
        });
        let done = asked
            .await
            .map_err(|error| Error::new(Kind::Bug, format!("asking Kafka: {error}")))?;
        done.map_err(|error| {
            if error.kind() == Kind::BusUnreachable {
                return error.remedy(
                    "see whether --brokers names a broker that can be reached from here, \
                             or leave it out",
                );
            }
            error
                .with_kind(Kind::BusRefused)
                .remedy("allow this client to create and delete topics, or leave out --brokers")
        })
    }

    fn options(&self) -> Result<Options> {
        Options::reader(&KafkaConfig {
            brokers: self.brokers.clone(),
            properties: BTreeMap::new(),
            id_headers: Vec::new(),
            ..KafkaConfig::default()
        })
        .map(Options::impatient)
    }
}

/// The header with the event's id.
pub(super) const ID_HEADER: &str = "id";

/// A reader of each topic at work, on threads of their own. Dropping it stops them.
pub(super) struct Consumer {
    records: Arc<AtomicU64>,
    readers: Vec<TopicThread>,
}

struct TopicThread {
    /// Asks for all records up to the present end. Without this sender the thread ends.
    finish: oneshot::Sender<()>,
    read: JoinHandle<Result<Topics>>,
}

impl Consumer {
    pub(super) fn start(broker: &Broker) -> Result<Self> {
        let records = Arc::default();
        let start = |topic: &String| {
            let reader = TopicReader::open(broker.options()?, Isolation::ReadCommitted, None)?;
            let topic = Arc::from(topic.as_str());
            let records = Arc::clone(&records);
            let (finish, finished) = oneshot::channel();
            Ok(TopicThread {
                finish,
                read: spawn_blocking(move || read(&reader, &topic, finished, &records)),
            })
        };
        let readers = broker.topics.iter().map(start).collect::<Result<_>>()?;
        Ok(Consumer { records, readers })
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
        let mut all = Topics::default();
        for TopicThread { finish, read } in self.readers {
            // A thread that has ended says why.
            finish.send(()).ok();
            let read = read.await.map_err(|error| {
                Error::new(Kind::Bug, format!("the consumer's thread: {error}"))
            })??;
            all.records.extend(read.records);
            all.partitions.extend(read.partitions);
            all.ends.extend(read.ends);
        }
        Ok(all)
    }
}

/// Reads a topic from its beginning to the end that it has when `finished` asks for it.
fn read(
    reader: &TopicReader,
    topic: &Arc<str>,
    mut finished: oneshot::Receiver<()>,
    records: &AtomicU64,
) -> Result<Topics> {
    let mut topics = Topics::default();
    topics.partitions.insert(Arc::clone(topic), PARTITIONS);
    let take = |topics: &mut Topics, record: &TopicRecord<'_>| {
        topics.records.push(delivered(record, Arc::clone(topic)));
        records.fetch_add(1, Ordering::Relaxed);
    };
    let mut is_wanted = false;
    let beginnings = (0..PARTITIONS).map(|partition| (partition, 0..0)).collect();
    let next = reader.follow(topic, beginnings, &mut |record| {
        record.iter().for_each(|record| take(&mut topics, record));
        match finished.try_recv() {
            Err(TryRecvError::Empty) => ControlFlow::Continue(()),
            asked => {
                is_wanted = asked.is_ok();
                ControlFlow::Break(())
            }
        }
    })?;
    if is_wanted {
        let rest = reader.read_on(topic, &next, &mut |record| take(&mut topics, &record))?;
        topics.ends = rest
            .into_iter()
            .map(|(partition, span)| ((Arc::clone(topic), partition), span.end))
            .collect();
    }
    Ok(topics)
}

fn delivered(record: &TopicRecord<'_>, topic: Arc<str>) -> Delivered {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into();
    let id = record
        .headers
        .iter()
        .flatten()
        .find(|(name, _)| *name == ID_HEADER);
    Delivered {
        topic,
        partition: record.partition,
        offset: record.offset,
        id: id.and_then(|(_, value)| *value).map(text),
        key: record.key.map(text),
        payload: fingerprint(record.value),
        arrived_at_us: now_us(),
    }
}
