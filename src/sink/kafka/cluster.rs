//! The brokers' description of themselves, of topics, and of the rights of this client. Creates nothing.

use std::time::Duration;

use rdkafka::admin::{ConfigResource, ResourceSpecifier};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::util::get_rdkafka_version;

use super::faults::{self, Subject};
use super::native::{Answer, Described, describe};
use super::options::Options;
use super::topic_reader::{ADMIN_TIMEOUT, HIDDEN, TopicAdmin};
use crate::config::KafkaConfig;
use crate::error::{Error, Result};

/// The brokers, as one of them describes the cluster. Settings are known where the client may see them.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// librdkafka's version, and what is known of that of the brokers.
    pub versions: String,
    /// `auto.create.topics.enable`.
    pub creates_topics: Option<bool>,
    /// `transaction.max.timeout.ms`.
    transaction_max_ms: Option<u128>,
    /// In the order in which they were asked for.
    pub topics: Vec<Topic>,
}

#[derive(Debug)]
pub(crate) enum Topic {
    Exists(Description),
    /// It does not exist. Whether the brokers would create it for this client.
    Missing(Result<()>),
    Refused(Error),
}

#[derive(Debug)]
pub(crate) struct Description {
    pub partitions: usize,
    /// Partitions without a leader: they take no record.
    pub leaderless: usize,
    /// Replicas of the first partition.
    pub replicas: usize,
    /// Whether this client may read the topic, and write to it. Brokers before 2.3 do not tell.
    pub may_read: bool,
    pub may_write: bool,
    /// `max.message.bytes`; none where the client may not see the topic's settings.
    pub message_max_bytes: Option<usize>,
    /// `min.insync.replicas`, likewise.
    pub in_sync_min: Option<usize>,
    /// `cleanup.policy`, likewise.
    pub cleanup_policy: Option<String>,
}

impl Cluster {
    /// Asks `broker` about itself and these topics, of which no two may be the same, with three questions whatever their
    /// number. Blocks; for a thread of its own in a Tokio runtime.
    pub(crate) fn read(config: &KafkaConfig, broker: i32, topics: &[String]) -> Result<Cluster> {
        let admin = TopicAdmin::open(&Options::reader(config)?)?;
        let cluster = Cluster::ask(&admin, broker, topics);
        admin.close();
        cluster.map_err(|code| faults::explain(code, Subject::default()))
    }

    fn ask(admin: &TopicAdmin, broker: i32, topics: &[String]) -> Result<Cluster, RDKafkaErrorCode> {
        let described = describe(admin.0.inner(), topics, broker, ADMIN_TIMEOUT)?;
        let missing = topics.iter().zip(&described).filter(|(_, answer)| is_missing(answer));
        let missing: Vec<&str> = missing.map(|(topic, _)| topic.as_str()).collect();
        let mut creations = admin.may_create(&missing).into_iter();
        let mut asked = vec![ResourceSpecifier::Broker(broker)];
        asked.extend(topics.iter().map(|topic| ResourceSpecifier::Topic(topic)));
        let settings = admin.settings(&asked, Some(broker));
        let (settings, why) = settings.map_or_else(|why| (Vec::new(), why), |all| (all, HIDDEN.to_owned()));
        let mut settings = settings.iter();
        let of_broker = settings.next().filter(|settings| !settings.entries.is_empty());
        let of = |name| value(of_broker?, name);
        // Brokers have this setting up to 3.9.
        let of_brokers = of("inter.broker.protocol.version").unwrap_or_else(|| match of_broker {
            Some(_) => "4.0 or newer".to_owned(),
            None => format!("not known, because {why}"),
        });
        Ok(Cluster {
            versions: format!("librdkafka {}; protocol of the brokers: {of_brokers}", get_rdkafka_version().1),
            creates_topics: of("auto.create.topics.enable").map(|value| value == "true"),
            transaction_max_ms: of("transaction.max.timeout.ms").and_then(|value| value.parse().ok()),
            topics: topics
                .iter()
                .zip(described)
                .map(|(name, answer)| {
                    let settings = settings.next();
                    match answer {
                        Ok(described) => Topic::Exists(Description::of(&described, settings)),
                        Err(_) if is_missing(&answer) => Topic::Missing(creations.next().unwrap_or(Ok(()))),
                        Err(code) => Topic::Refused(faults::explain(code, of_topic(name))),
                    }
                })
                .collect(),
        })
    }

    /// Whether the brokers keep a transaction open for this long, as far as they tell.
    pub(crate) fn allows_transaction(&self, timeout: Duration) -> Result<()> {
        let Some(max) = self.transaction_max_ms.filter(|max| timeout.as_millis() > *max) else { return Ok(()) };
        let error = faults::explain(RDKafkaErrorCode::InvalidTransactionTimeout, Subject::default());
        Err(error.because(format_args!("transaction.max.timeout.ms is {max}")))
    }
}

fn is_missing(answer: &Answer) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(answer, Err(Code::UnknownTopicOrPartition | Code::UnknownTopic))
}

impl Description {
    fn of(described: &Described, settings: Option<&ConfigResource>) -> Description {
        let of = |name| value(settings?, name);
        let Described { partitions, leaderless, replicas, may_read, may_write } = *described;
        Description {
            partitions,
            leaderless,
            replicas,
            may_read,
            may_write,
            message_max_bytes: of("max.message.bytes").and_then(|value| value.parse().ok()),
            in_sync_min: of("min.insync.replicas").and_then(|value| value.parse().ok()),
            cleanup_policy: of("cleanup.policy"),
        }
    }

    /// Whether topic `name` takes a record of this size.
    pub(crate) fn takes(&self, name: &str, record_bytes: usize) -> Result<()> {
        let Some(limit) = self.message_max_bytes.filter(|limit| record_bytes > *limit) else { return Ok(()) };
        let subject = Subject { record_bytes: Some(record_bytes), ..of_topic(name) };
        let error = faults::explain(RDKafkaErrorCode::MessageSizeTooLarge, subject);
        Err(error.because(format_args!("max.message.bytes is {limit}")))
    }
}

pub(crate) fn no_topic(topic: &str) -> Error {
    faults::explain(RDKafkaErrorCode::UnknownTopicOrPartition, of_topic(topic))
}

/// The error for a topic that this client may not write to.
pub(crate) fn may_not_write(topic: &str) -> Error {
    faults::explain(RDKafkaErrorCode::TopicAuthorizationFailed, of_topic(topic))
}

fn of_topic(topic: &str) -> Subject<'_> {
    Subject { topic: Some(topic), alone: true, ..Subject::default() }
}

fn value(settings: &ConfigResource, name: &str) -> Option<String> {
    settings.get(name)?.value.clone()
}
