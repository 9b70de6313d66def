//! What the brokers say about themselves, about topics, and about the rights of this client. Asks only; creates nothing.

use std::ffi::{CString, c_char};
use std::ptr::null_mut;
use std::time::Duration;

use rdkafka::admin::{ConfigResource, ResourceSpecifier};
use rdkafka::bindings;
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::util::get_rdkafka_version;

use super::faults::{self, Subject};
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

#[derive(Debug, Default)]
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
        let described = describe(admin.0.inner(), topics, broker)?;
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
                        Ok(described) => Topic::Exists(described.with(settings)),
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
    fn with(self, settings: Option<&ConfigResource>) -> Description {
        let of = |name| value(settings?, name);
        Description {
            message_max_bytes: of("max.message.bytes").and_then(|value| value.parse().ok()),
            in_sync_min: of("min.insync.replicas").and_then(|value| value.parse().ok()),
            cleanup_policy: of("cleanup.policy"),
            ..self
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

/// A topic, or why a broker does not describe it.
type Answer = Result<Description, RDKafkaErrorCode>;

/// Describes topics, with the operations that this client may do on them, in the order of `topics`.
#[expect(unsafe_code, reason = "the rdkafka crate has no safe call for these functions of librdkafka")]
fn describe<C: ClientContext>(
    client: &Client<C>,
    topics: &[String],
    broker: i32,
) -> Result<Vec<Answer>, RDKafkaErrorCode> {
    let names = topics.iter().map(|topic| CString::new(topic.as_str())).collect::<Result<Vec<_>, _>>();
    let names = names.map_err(|_| RDKafkaErrorCode::InvalidTopic)?;
    let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let timeout_ms = i32::try_from(ADMIN_TIMEOUT.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the handle is valid while the client is borrowed, and may be used by any thread. Names, options, queue and
    // event are this function's, and are valid until they are destroyed, once each, at the end. librdkafka copies names and
    // options, and `answers` copies what the event lends.
    unsafe {
        let handle = client.native_ptr();
        let queue = bindings::rd_kafka_queue_new(handle);
        let asked = bindings::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
        let kind = bindings::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
        let options = bindings::rd_kafka_AdminOptions_new(handle, kind);
        bindings::rd_kafka_AdminOptions_set_request_timeout(options, timeout_ms, null_mut(), 0);
        bindings::rd_kafka_AdminOptions_set_broker(options, broker, null_mut(), 0);
        bindings::rd_kafka_error_destroy(bindings::rd_kafka_AdminOptions_set_include_authorized_operations(options, 1));
        bindings::rd_kafka_DescribeTopics(handle, asked, options, queue);
        // librdkafka keeps to its own time-out.
        let event = bindings::rd_kafka_queue_poll(queue, timeout_ms.saturating_mul(2));
        let answers = if event.is_null() { Err(RDKafkaErrorCode::OperationTimedOut) } else { answers(event) };
        bindings::rd_kafka_event_destroy(event);
        bindings::rd_kafka_AdminOptions_destroy(options);
        bindings::rd_kafka_TopicCollection_destroy(asked);
        bindings::rd_kafka_queue_destroy(queue);
        answers
    }
}

#[expect(unsafe_code, reason = "the rdkafka crate has no safe call for these functions of librdkafka")]
unsafe fn answers(event: *mut bindings::rd_kafka_event_t) -> Result<Vec<Answer>, RDKafkaErrorCode> {
    use bindings::rd_kafka_AclOperation_t as Operation;
    // SAFETY: the caller lends a valid event, which owns all that is read here. Counts are those of the arrays.
    unsafe {
        let code = RDKafkaErrorCode::from(bindings::rd_kafka_event_error(event));
        let result = bindings::rd_kafka_event_DescribeTopics_result(event);
        if code != RDKafkaErrorCode::NoError || result.is_null() {
            return Err(code);
        }
        let (mut count, mut partitions, mut replicas, mut operations) = (0, 0, 0, 0);
        let topics = bindings::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        let answer = |number| {
            let topic = *topics.add(number);
            let error = bindings::rd_kafka_TopicDescription_error(topic);
            if !error.is_null() {
                return Err(bindings::rd_kafka_error_code(error).into());
            }
            let first = bindings::rd_kafka_TopicDescription_partitions(topic, &raw mut partitions);
            if partitions > 0 {
                bindings::rd_kafka_TopicPartitionInfo_replicas(*first, &raw mut replicas);
            }
            let leader = |number| bindings::rd_kafka_TopicPartitionInfo_leader(*first.add(number));
            let leaderless = (0..partitions).filter(|number| leader(*number).is_null()).count();
            let allowed = bindings::rd_kafka_TopicDescription_authorized_operations(topic, &raw mut operations);
            // As numbers: a newer librdkafka may know operations that the bindings do not.
            let allowed = allowed.cast::<u32>();
            let may = |operation: Operation| {
                allowed.is_null() || (0..operations).any(|number| *allowed.add(number) == operation as u32)
            };
            let may_read = may(Operation::RD_KAFKA_ACL_OPERATION_READ);
            let may_write = may(Operation::RD_KAFKA_ACL_OPERATION_WRITE);
            Ok(Description { partitions, leaderless, replicas, may_read, may_write, ..Description::default() })
        };
        Ok((0..count).map(answer).collect())
    }
}
