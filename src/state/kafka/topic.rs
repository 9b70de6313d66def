//! Makes sure that the topic can keep a position. Blocks; meant for a thread of its own.

use std::time::{Duration, Instant};

use crate::error::{Error, Kind, Result};
use crate::sink::kafka::admin::TopicAdmin;
use crate::sink::kafka::options::Options;
use crate::sink::kafka::topic_reader::{Isolation, Layout, TopicReader};

/// How long a topic that was created may stay unknown to the brokers.
const KNOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Replicas of a topic we create, where there are as many brokers.
const REPLICAS_MAX: usize = 3;

/// Small segments and an eager cleaner keep the topic short, so that a start reads little.
const SETTINGS: &[(&str, &str)] =
    &[("cleanup.policy", "compact"), ("segment.bytes", "16777216"), ("min.cleanable.dirty.ratio", "0.1")];

/// Creates the topic where it is missing; otherwise says whether it is fit.
pub(super) fn prepare(options: Options, topic: &str) -> Result<()> {
    let admin = TopicAdmin::open(&options)?;
    let prepared = TopicReader::open(options, Isolation::ReadCommitted, None)
        .and_then(|reader| create_missing(&admin, &reader, topic));
    admin.close();
    prepared
}

fn create_missing(admin: &TopicAdmin, reader: &TopicReader, topic: &str) -> Result<()> {
    let mut seen = look(reader, topic)?;
    if seen.partitions.is_empty() {
        create(admin, topic, seen.brokers.len())?;
    }
    let deadline = Instant::now() + KNOWN_TIMEOUT;
    while seen.partitions.is_empty() {
        if Instant::now() >= deadline {
            let cause = format!("topic {topic} was created and no broker knows of it");
            return Err(Error::new(Kind::KafkaUnreachable, cause));
        }
        std::thread::sleep(Duration::from_millis(100));
        seen = look(reader, topic)?;
    }
    verify(admin, topic, &seen)
}

/// Whether there is such a topic.
pub(super) fn exists(options: Options, topic: &str) -> Result<bool> {
    let reader = TopicReader::open(options, Isolation::ReadCommitted, None)?;
    Ok(!look(&reader, topic)?.partitions.is_empty())
}

fn look(reader: &TopicReader, topic: &str) -> Result<Layout> {
    reader.layout(topic).map_err(|error| {
        if error.kind() != Kind::TopicRefused {
            return error;
        }
        // No event waits for the topic.
        error.with_kind(Kind::KafkaRefused).remedy(format!(
            "grant what the position needs: kafka-acls --add --allow-principal User:… --operation Read --operation Write \
             --operation Describe --topic {topic}"
        ))
    })
}

fn create(admin: &TopicAdmin, topic: &str, brokers: usize) -> Result<()> {
    let replicas = brokers.clamp(1, REPLICAS_MAX);
    let in_sync = (replicas >= 3).then_some(("min.insync.replicas", "2"));
    let settings: Vec<_> = SETTINGS.iter().copied().chain(in_sync).collect();
    let created = admin.create(topic, replicas, &settings).map_err(|known| {
        if known.kind() == Kind::KafkaUnreachable {
            return known;
        }
        let cause = format!("the topic that keeps the position cannot be created: {known}");
        let settings: String = SETTINGS.iter().map(|(name, value)| format!(" --config {name}={value}")).collect();
        Error::new(known.kind(), cause).remedy(format!(
            "create it as a user who may: kafka-topics --create --topic {topic} --partitions 1 --replication-factor \
             {replicas}{settings}"
        ))
    })?;
    if created {
        tracing::info!(topic, replicas, "created the topic that keeps the position");
    }
    Ok(())
}

fn verify(admin: &TopicAdmin, topic: &str, seen: &Layout) -> Result<()> {
    let partitions = seen.partitions.len();
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
    match admin.setting(topic, "cleanup.policy", seen.brokers.first().copied()) {
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
