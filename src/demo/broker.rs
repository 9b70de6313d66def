//! Where the demo's topics live: a mock cluster in this process, or brokers the user names.

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

use crate::error::{Error, Kind, Result};

const ADMIN_TIMEOUT: Duration = Duration::from_secs(20);

type Cluster = MockCluster<'static, DefaultProducerContext>;
type Act = Box<dyn FnOnce(&Cluster) + Send>;

/// A mock cluster on a thread of its own, because it may not leave the thread it was made on. It keeps everything in
/// this process's memory, at most 5 MB for each partition, and listens on the loopback interface only.
#[derive(Debug)]
pub struct MockBroker {
    brokers: String,
    /// `None` only while dropping.
    acts: Option<mpsc::Sender<Act>>,
    thread: Option<JoinHandle<()>>,
}

impl MockBroker {
    /// Starts one with this many brokers.
    ///
    /// # Errors
    /// [`Kind::Prerequisite`] where it does not start.
    pub fn start(brokers: i32) -> Result<Self> {
        let (acts, incoming) = mpsc::channel::<Act>();
        let (started, outcome) = mpsc::channel();
        let thread = std::thread::Builder::new().name("mock-kafka".to_owned()).spawn(move || {
            let cluster = match MockCluster::new(brokers) {
                Ok(cluster) => cluster,
                Err(error) => return drop(started.send(Err(error))),
            };
            drop(started.send(Ok(cluster.bootstrap_servers())));
            while let Ok(act) = incoming.recv() {
                act(&cluster);
            }
        });
        let failed = |error: String| Error::new(Kind::Prerequisite, format!("the mock Kafka does not start: {error}"));
        let thread = thread.map_err(|error| failed(error.to_string()))?;
        let outcome = outcome.recv().map_err(|error| failed(error.to_string()))?;
        let brokers = outcome.map_err(|error| failed(error.to_string()))?;
        Ok(MockBroker { brokers, acts: Some(acts), thread: Some(thread) })
    }

    /// `bootstrap.servers`.
    pub fn brokers(&self) -> &str {
        &self.brokers
    }

    /// Does something to the cluster, such as taking a broker down, and waits for it.
    ///
    /// # Errors
    /// [`Kind::Bug`] where its thread is gone.
    pub fn with<T: Send + 'static>(&self, act: impl FnOnce(&Cluster) -> T + Send + 'static) -> Result<T> {
        let gone = || Error::new(Kind::Bug, "the mock Kafka's thread is gone");
        let (reply, answer) = mpsc::channel();
        let act: Act = Box::new(move |cluster| drop(reply.send(act(cluster))));
        self.acts.as_ref().and_then(|acts| acts.send(act).ok()).ok_or_else(gone)?;
        answer.recv().map_err(|_| gone())
    }
}

impl Drop for MockBroker {
    fn drop(&mut self) {
        drop(self.acts.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// The demo's broker and the topics it made there.
pub(super) struct Broker {
    mock: Option<MockBroker>,
    brokers: String,
    topics: Vec<String>,
}

impl Broker {
    /// Uses the brokers named, or a mock cluster.
    pub(super) fn new(named: Option<&str>) -> Result<Self> {
        let mock = if named.is_none() { Some(MockBroker::start(1)?) } else { None };
        let brokers = mock.as_ref().map(MockBroker::brokers).or(named).unwrap_or_default().to_owned();
        Ok(Broker { mock, brokers, topics: Vec::new() })
    }

    /// `bootstrap.servers`.
    pub(super) fn brokers(&self) -> &str {
        &self.brokers
    }

    /// Whether it lives in this process.
    pub(super) fn is_mock(&self) -> bool {
        self.mock.is_some()
    }

    /// Creates the topics, which do not exist.
    ///
    /// # Errors
    /// [`Kind::KafkaUnreachable`] and [`Kind::KafkaRefused`], naming the topic.
    pub(super) async fn create_topics(&mut self, topics: Vec<String>, partitions: i32) -> Result<()> {
        // Noted first: an interruption may leave some of them created.
        self.topics.clone_from(&topics);
        if let Some(mock) = &self.mock {
            for topic in topics.clone() {
                let created = mock.with(move |cluster| cluster.create_topic(&topic, partitions, 1))?;
                created.map_err(|error| Error::new(Kind::Prerequisite, format!("the mock Kafka: {error}")))?;
            }
        } else {
            let new = topics.iter().map(|topic| NewTopic::new(topic, partitions, TopicReplication::Fixed(-1)));
            let new: Vec<_> = new.collect();
            let outcomes = self.admin()?.create_topics(&new, &admin_options()).await;
            for outcome in outcomes.map_err(|error| unreachable(&self.brokers, &error))? {
                outcome.map_err(|(topic, code)| refused("created", &topic, code))?;
            }
        }
        Ok(())
    }

    /// Deletes the topics it made on brokers that outlive it.
    ///
    /// # Errors
    /// As for creating; the topics that are left are named.
    pub(super) async fn delete_topics(&mut self) -> Result<()> {
        let topics = std::mem::take(&mut self.topics);
        if self.is_mock() || topics.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        let outcomes = self.admin()?.delete_topics(&names, &admin_options()).await;
        for outcome in outcomes.map_err(|error| unreachable(&self.brokers, &error))? {
            outcome.map_err(|(topic, code)| refused("deleted", &topic, code))?;
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

fn unreachable(brokers: &str, error: &rdkafka::error::KafkaError) -> Error {
    Error::new(Kind::KafkaUnreachable, format!("Kafka at {brokers}: {error}"))
        .remedy("see whether --brokers names a broker that can be reached from here, or leave it out")
}

fn refused(what: &str, topic: &str, code: RDKafkaErrorCode) -> Error {
    Error::new(Kind::KafkaRefused, format!("the topic {topic:?} could not be {what}: {code}"))
        .remedy("allow this client to create and delete topics, or leave out --brokers")
}
