//! Reads the topic once, from its beginning to the end it has now. Blocks; meant for a thread of its own.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};

use super::{ASK_TIMEOUT, PARTITION};
use crate::error::{Error, Kind, Result};
use crate::sink::close_aside;
pub(super) use crate::sink::consumer::Quiet;
use crate::sink::consumer::heals;
use crate::sink::faults::{self, Subject};
use crate::sink::options::Options;

/// librdkafka wants a group even where nobody joins one; nothing is ever committed in its name.
const GROUP: &str = "walrelay-state-reader";

/// Reading gives up after this long without a record or an answer.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// A consumer that reads one partition for one purpose and leaves no trace.
pub(super) fn consumer(options: Options) -> Result<BaseConsumer<Quiet>> {
    crate::sink::consumer::consumer(options, GROUP)
}

/// The newest value under `key` below the partition's end at the time of the call; a tombstone is none.
pub(super) fn newest(options: Options, topic: &str, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let consumer = consumer(options)?;
    let read = read(&consumer, topic, key);
    close_aside(consumer);
    read
}

fn read(consumer: &BaseConsumer<Quiet>, topic: &str, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let fault = |error: &KafkaError| explain(error, topic);
    let (low, high) = extent(consumer, topic).map_err(|error| fault(&error))?;
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
fn extent(consumer: &BaseConsumer<Quiet>, topic: &str) -> Result<(i64, i64), KafkaError> {
    use RDKafkaErrorCode as Code;
    let unheard_of = [
        Code::UnknownTopicOrPartition,
        Code::UnknownTopic,
        Code::UnknownPartition,
        Code::LeaderNotAvailable,
        Code::NotLeaderForPartition,
    ];
    let until = Instant::now() + ASK_TIMEOUT;
    loop {
        match consumer.fetch_watermarks(topic, PARTITION, ASK_TIMEOUT) {
            Err(error) if Instant::now() < until && unheard_of.contains(&crate::sink::code(&error)) => {
                tracing::debug!(topic, %error, "asking again where the topic of positions ends");
                std::thread::sleep(Duration::from_millis(100));
            }
            extent => return extent,
        }
    }
}

/// An error of a client in the operator's words.
pub(super) fn explain(error: &KafkaError, topic: &str) -> Error {
    let code = crate::sink::code(error);
    let error = faults::explain(code, Subject { topic: Some(topic), ..Subject::default() });
    if error.kind() != Kind::TopicRefused {
        return error;
    }
    // No event waits for it.
    let refused = Error::new(Kind::KafkaRefused, error.cause());
    if code != RDKafkaErrorCode::TopicAuthorizationFailed {
        return match error.what_to_do() {
            Some(remedy) => refused.remedy(remedy),
            None => refused,
        };
    }
    refused.remedy(format!(
        "grant what the position needs: kafka-acls --add --allow-principal User:… --operation Read --operation Write \
         --operation Describe --topic {topic}"
    ))
}
