//! Makes sure that the topic can keep a position. Blocks; meant for a thread of its own.

use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;

use super::ASK_TIMEOUT;
use super::reader::GROUP;
use crate::error::{Error, Kind, Result};
use crate::sink::close_aside;
use crate::sink::faults::{self, Subject};
use crate::sink::options::Options;
use crate::sink::topic_reader::{Isolation, Listening, consumer};

/// Replicas of a topic we create, where there are as many brokers.
const REPLICAS_MAX: usize = 3;

/// Small segments and an eager cleaner keep the topic short, so that a start reads little.
const SETTINGS: &[(&str, &str)] =
    &[("cleanup.policy", "compact"), ("segment.bytes", "16777216"), ("min.cleanable.dirty.ratio", "0.1")];

/// Creates the topic where it is missing; otherwise says whether it is fit.
pub(super) fn prepare(options: Options, topic: &str) -> Result<()> {
    let admin: AdminClient<Listening> = options
        .client
        .create_with_context(Listening::new(options.redactor.clone()))
        .map_err(|error| options.creation_error(&error))?;
    let consumer = consumer(options, GROUP, Isolation::ReadCommitted)?;
    let prepared = create_missing(&admin, &consumer, topic);
    close_aside((admin, consumer));
    prepared
}

fn create_missing(admin: &AdminClient<Listening>, consumer: &BaseConsumer<Listening>, topic: &str) -> Result<()> {
    let seen = look(consumer, topic)?;
    if seen.partitions.is_some() {
        return verify(admin, topic, &seen);
    }
    create(admin, topic, seen.brokers.len())?;
    let deadline = Instant::now() + ASK_TIMEOUT;
    loop {
        let seen = look(consumer, topic)?;
        if seen.partitions.is_some() {
            return verify(admin, topic, &seen);
        }
        if Instant::now() >= deadline {
            let cause = format!("topic {topic} was created and no broker knows of it");
            return Err(Error::new(Kind::KafkaUnreachable, cause));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Whether there is such a topic.
pub(super) fn exists(options: Options, topic: &str) -> Result<bool> {
    let consumer = consumer(options, GROUP, Isolation::ReadCommitted)?;
    let seen = look(&consumer, topic);
    close_aside(consumer);
    Ok(seen?.partitions.is_some())
}

/// What the metadata says.
struct Seen {
    /// Ids of the brokers.
    brokers: Vec<i32>,
    /// `None`: there is no such topic.
    partitions: Option<usize>,
    replicas: usize,
}

/// Asks for one topic without creating it.
fn look(consumer: &BaseConsumer<Listening>, topic: &str) -> Result<Seen> {
    let metadata: Metadata =
        consumer.fetch_metadata(Some(topic), ASK_TIMEOUT).map_err(|error| explain(&error, topic))?;
    let brokers = metadata.brokers().iter().map(rdkafka::metadata::MetadataBroker::id).collect();
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return Ok(Seen { brokers, partitions: None, replicas: 0 });
    };
    match found.error().map(RDKafkaErrorCode::from) {
        None | Some(RDKafkaErrorCode::NoError | RDKafkaErrorCode::LeaderNotAvailable) => {
            let replicas = found.partitions().first().map_or(0, |partition| partition.replicas().len());
            Ok(Seen { brokers, partitions: Some(found.partitions().len()).filter(|count| *count > 0), replicas })
        }
        Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
            Ok(Seen { brokers, partitions: None, replicas: 0 })
        }
        Some(code) => Err(explain(&KafkaError::MetadataFetch(code), topic)),
    }
}

fn create(admin: &AdminClient<Listening>, topic: &str, brokers: usize) -> Result<()> {
    let replicas = brokers.clamp(1, REPLICAS_MAX);
    let mut new = NewTopic::new(topic, 1, TopicReplication::Fixed(i32::try_from(replicas).unwrap_or(1)));
    for (name, value) in SETTINGS {
        new = new.set(name, value);
    }
    if replicas >= 3 {
        new = new.set("min.insync.replicas", "2");
    }
    let options = AdminOptions::new().request_timeout(Some(ASK_TIMEOUT)).operation_timeout(Some(ASK_TIMEOUT));
    let created = tokio::runtime::Handle::current().block_on(admin.create_topics([&new], &options));
    let results = created.map_err(|error| explain(&error, topic))?;
    match results.into_iter().next() {
        Some(Ok(_)) => {
            tracing::info!(topic, replicas, "created the topic that keeps the position");
            Ok(())
        }
        // Somebody was faster; what they made is looked at next.
        Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Ok(()),
        Some(Err((_, code))) => {
            let known = faults::explain(code, Subject { topic: Some(topic), ..Subject::default() });
            let cause = format!("the topic that keeps the position cannot be created: {known}");
            let settings: String = SETTINGS.iter().map(|(name, value)| format!(" --config {name}={value}")).collect();
            Err(Error::new(known.kind(), cause).remedy(format!(
                "create it as a user who may: kafka-topics --create --topic {topic} --partitions 1 --replication-factor \
                 {replicas}{settings}"
            )))
        }
        None => Err(Error::new(Kind::KafkaUnreachable, format!("no answer to the creation of topic {topic}"))),
    }
}

fn verify(admin: &AdminClient<Listening>, topic: &str, seen: &Seen) -> Result<()> {
    let partitions = seen.partitions.unwrap_or_default();
    if partitions != 1 {
        let cause = format!("topic {topic} has {partitions} partitions; a position needs a topic with one");
        return Err(Error::new(Kind::KafkaRefused, cause)
            .remedy("configure another state topic: walrelay creates it with one partition"));
    }
    if seen.replicas < REPLICAS_MAX.min(seen.brokers.len()) {
        tracing::warn!(
            topic,
            replicas = seen.replicas,
            brokers = seen.brokers.len(),
            "the topic that keeps the position has few replicas"
        );
    }
    match cleanup_policy(admin, topic, seen.brokers.first().copied()) {
        Ok(policy) if policy.split(',').any(|part| part.trim() == "compact") => Ok(()),
        Ok(policy) => {
            let cause = format!("topic {topic} has cleanup.policy={policy}: it would delete the position one day");
            Err(Error::new(Kind::KafkaRefused, cause).remedy(format!(
                "kafka-configs --alter --entity-type topics --entity-name {topic} --add-config cleanup.policy=compact"
            )))
        }
        Err(why) => {
            tracing::warn!(
                topic,
                why,
                "cannot see whether the topic is compacted; make sure that cleanup.policy=compact"
            );
            Ok(())
        }
    }
}

/// The policy, or why it is not known. Any broker knows; asked by default is the controller, which may be out of reach.
fn cleanup_policy(admin: &AdminClient<Listening>, topic: &str, broker: Option<i32>) -> Result<String, String> {
    let options = AdminOptions::new().request_timeout(Some(ASK_TIMEOUT)).broker_id(broker);
    let resource = ResourceSpecifier::Topic(topic);
    let asked = admin.describe_configs([&resource], &options);
    let code = |error: KafkaError| crate::sink::code(&error).to_string();
    let results = tokio::runtime::Handle::current().block_on(asked).map_err(code)?;
    let described = results.into_iter().next().and_then(Result::ok);
    let entry = described.as_ref().and_then(|described| described.get("cleanup.policy"));
    // The client library keeps a refusal to itself and leaves the settings out.
    let hidden = || "the Kafka user may not see its settings (DescribeConfigs)".to_owned();
    entry.and_then(|entry| entry.value.clone()).ok_or_else(hidden)
}

/// An error of a client in the operator's words.
fn explain(error: &KafkaError, topic: &str) -> Error {
    let code = faults::of_known(crate::sink::code(error));
    let error = faults::explain(code, Subject { topic: Some(topic), ..Subject::default() });
    if error.kind() != Kind::TopicRefused {
        return error;
    }
    // No event waits for the topic.
    let refused = error.with_kind(Kind::KafkaRefused);
    if code != RDKafkaErrorCode::TopicAuthorizationFailed {
        return refused;
    }
    refused.remedy(format!(
        "grant what the position needs: kafka-acls --add --allow-principal User:… --operation Read --operation Write \
         --operation Describe --topic {topic}"
    ))
}
