//! Reads the topic once, from its beginning to the end it has now. Blocks; meant for a thread of its own.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};

use super::{ASK_TIMEOUT, PARTITION};
use crate::error::{Error, Kind, Result};
use crate::sink::close_aside;
pub(super) use crate::sink::consumer::{Quiet, Sees};
use crate::sink::consumer::{heals, is_young};
use crate::sink::faults::{self, Subject};
use crate::sink::options::Options;

/// librdkafka wants a group even where nobody joins one; nothing is ever committed in its name.
const GROUP: &str = "walrelay-state-reader";

/// Reading gives up after this long without a record or an answer.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// How often it is looked whether transactions of others have ended.
const OPEN_RETRY: Duration = Duration::from_millis(20);

/// A consumer that reads one partition for one purpose and leaves no trace.
pub(super) fn consumer(options: Options, sees: Sees) -> Result<BaseConsumer<Quiet>> {
    crate::sink::consumer::consumer(options, GROUP, sees)
}

/// The newest value under `key` below the partition's end at the time of the call; a tombstone is none.
pub(super) fn newest(options: Options, topic: &str, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let everything = consumer(options.clone(), Sees::All)?;
    let end = watermarks(&everything, topic).map_err(|error| explain(&error, topic));
    close_aside(everything);
    let (_, end) = end?;
    let consumer = consumer(options, Sees::Committed)?;
    let read = read(&consumer, topic, key, end);
    close_aside(consumer);
    read
}

/// Where the partition begins, and where it ends for readers of what is committed, once that is at least `end`.
///
/// Relays share the topic. What one has committed behind a transaction that another has open is hidden until that ends,
/// and an older record of ours is not to be taken for the newest.
fn extent(consumer: &BaseConsumer<Quiet>, topic: &str, end: i64) -> Result<(i64, i64)> {
    let began = Instant::now();
    let mut told = false;
    loop {
        let (low, high) = watermarks(consumer, topic).map_err(|error| explain(&error, topic))?;
        if high >= end {
            return Ok((low, high));
        }
        if began.elapsed() > SILENCE_TIMEOUT {
            let cause =
                format!("topic {topic} could not be read: somebody has a transaction open in it at offset {high}");
            return Err(Error::new(Kind::KafkaUnreachable, cause)
                .remedy(format!(
                    "it ends by its timeout, unless Kafka has lost it (KAFKA-20734): kafka-transactions.sh find-hanging lists \
                     such transactions, and kafka-transactions.sh abort --topic {topic} --partition {PARTITION} --start-offset \
                     {high} ends this one; see docs/exactly-once.md"
                )));
        }
        if !std::mem::replace(&mut told, true) {
            tracing::info!(topic, "somebody has a transaction open in the topic of the positions; waiting for its end");
        }
        std::thread::sleep(OPEN_RETRY);
    }
}

fn read(consumer: &BaseConsumer<Quiet>, topic: &str, key: &[u8], end: i64) -> Result<Option<Vec<u8>>> {
    let fault = |error: &KafkaError| explain(error, topic);
    let (low, high) = extent(consumer, topic, end)?;
    if low >= high {
        return Ok(None);
    }
    let mut assignment = TopicPartitionList::new();
    assignment
        .add_partition_offset(topic, PARTITION, Offset::Offset(low))
        .and_then(|()| consumer.assign(&assignment))
        .map_err(|error| fault(&error))?;
    let mut newest = None;
    let mut heard = Instant::now();
    while heard.elapsed() < SILENCE_TIMEOUT {
        match consumer.poll(Duration::from_millis(100)) {
            None => {}
            Some(Ok(message)) => {
                heard = Instant::now();
                if message.offset() < high && message.key() == Some(key) {
                    newest = message.payload().map(<[u8]>::to_vec);
                }
                if message.offset() >= high - 1 {
                    return Ok(newest);
                }
            }
            // The last offsets may hold nothing that can be read: compacted away, or a transaction's end.
            Some(Err(KafkaError::PartitionEOF(_))) => return Ok(newest),
            Some(Err(error)) if heals(&error) => tracing::debug!(topic, %error, "reading the position"),
            Some(Err(error)) => return Err(fault(&error)),
        }
    }
    let seconds = SILENCE_TIMEOUT.as_secs();
    Err(Error::new(Kind::KafkaUnreachable, format!("topic {topic} could not be read: nothing came for {seconds} s")))
}

/// The first offset and the one behind the last. The topic was seen a moment ago: a broker that does not know of it, or of its
/// leader, has yet to learn what another has told.
fn watermarks(consumer: &BaseConsumer<Quiet>, topic: &str) -> Result<(i64, i64), KafkaError> {
    use RDKafkaErrorCode as Code;
    let is_unheard_of = |error: &KafkaError| {
        is_young(error) || matches!(crate::sink::code(error), Code::UnknownTopicOrPartition | Code::UnknownTopic)
    };
    let until = Instant::now() + ASK_TIMEOUT;
    loop {
        match consumer.fetch_watermarks(topic, PARTITION, ASK_TIMEOUT) {
            Err(error) if Instant::now() < until && is_unheard_of(&error) => {
                tracing::debug!(topic, %error, "asking again where the topic of positions ends");
                std::thread::sleep(Duration::from_millis(100));
            }
            found => return found,
        }
    }
}

/// An error of a client in the operator's words.
pub(super) fn explain(error: &KafkaError, topic: &str) -> Error {
    let code = faults::of_known(crate::sink::code(error));
    let error = faults::explain(code, Subject { topic: Some(topic), ..Subject::default() });
    if error.kind() != Kind::TopicRefused {
        return error;
    }
    // No event waits for it.
    let refused = error.with_kind(Kind::KafkaRefused);
    if code != RDKafkaErrorCode::TopicAuthorizationFailed {
        return refused;
    }
    refused.remedy(format!(
        "grant what the position needs: kafka-acls --add --allow-principal User:… --operation Read --operation Write \
         --operation Describe --topic {topic}"
    ))
}
