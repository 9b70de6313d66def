//! Where the demo's topics live: a mock cluster in this process, or brokers the user names.

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::mocking::MockCluster;

use crate::error::{Error, Kind, Result};

/// Partitions of each topic.
pub(super) const PARTITIONS: i32 = 6;

const ADMIN_TIMEOUT: Duration = Duration::from_secs(20);

/// A mock cluster on a thread of its own, because it may not leave the thread it was made on. It keeps everything in
/// this process's memory, at most 5 MB for each partition, and listens on the loopback interface only.
struct Mock {
    /// `None` only while dropping: the thread ends with it.
    alive: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Mock {
    /// Starts it with these topics, and returns its `bootstrap.servers`.
    ///
    /// # Errors
    /// [`Kind::Prerequisite`] where it does not start.
    fn start(topics: Vec<String>) -> Result<(Mock, String)> {
        let (alive, dropped) = mpsc::channel::<()>();
        let (started, outcome) = mpsc::channel();
        let make = move || {
            let cluster = MockCluster::new(1)?;
            topics.iter().try_for_each(|topic| cluster.create_topic(topic, PARTITIONS, 1))?;
            Ok::<_, KafkaError>(cluster)
        };
        let thread = std::thread::Builder::new().name("mock-kafka".to_owned()).spawn(move || {
            let cluster = make();
            drop(started.send(cluster.as_ref().map(MockCluster::bootstrap_servers).map_err(KafkaError::clone)));
            // Nothing is ever sent: this waits until the other end is dropped.
            dropped.recv().unwrap_or_default();
        });
        let failed = |error: String| Error::new(Kind::Prerequisite, format!("the mock Kafka does not start: {error}"));
        let thread = thread.map_err(|error| failed(error.to_string()))?;
        let mock = Mock { alive: Some(alive), thread: Some(thread) };
        let outcome = outcome.recv().map_err(|error| failed(error.to_string()))?;
        Ok((mock, outcome.map_err(|error| failed(error.to_string()))?))
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        drop(self.alive.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// The demo's brokers and topics. Topics on brokers that outlive the run are deleted after it.
pub(super) struct Broker {
    mock: Option<Mock>,
    brokers: String,
    topics: Vec<String>,
}

impl Broker {
    /// Uses the brokers named, or a mock cluster.
    ///
    /// # Errors
    /// [`Kind::Prerequisite`] where the mock cluster does not start.
    pub(super) fn new(named: Option<&str>, topics: Vec<String>) -> Result<Self> {
        let (mock, brokers) = match named {
            Some(brokers) => (None, brokers.to_owned()),
            None => {
                let (mock, brokers) = Mock::start(topics.clone())?;
                (Some(mock), brokers)
            }
        };
        Ok(Broker { mock, brokers, topics })
    }

    /// `bootstrap.servers`.
    pub(super) fn brokers(&self) -> &str {
        &self.brokers
    }

    pub(super) fn topics(&self) -> &[String] {
        &self.topics
    }

    /// Creates the topics where the brokers are named: the mock cluster has its topics from the start.
    ///
    /// # Errors
    /// [`Kind::KafkaUnreachable`] and [`Kind::KafkaRefused`], with the topic's name.
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

    /// Deletes the topics on brokers that outlive the run.
    ///
    /// # Errors
    /// As for creating; the topics that are left are named.
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
