//! Reads topics as they are now, and creates topics for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier,
    TopicReplication, TopicResult,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{Offset, TopicPartitionList};
use walrelay_lab::kafka;
pub(crate) use walrelay_lab::kafka::close;
use walrelay_lab::verify::{Delivered, fingerprint};

use super::wait::{self, LIMIT};

const PATIENCE: Duration = LIMIT;
/// The time limit of all clients for one administrative request.
const ADMIN_PATIENCE: Duration = Duration::from_secs(100);

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Record {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
    /// The time of the append at the broker, in milliseconds since the Unix epoch.
    pub(crate) appended_at_ms: i64,
}

impl Record {
    /// A header's value as text; empty without such a header.
    pub(crate) fn header(&self, name: &str) -> String {
        let value = self
            .headers
            .iter()
            .find(|(found, _)| found == name)
            .and_then(|(_, value)| value.as_deref());
        String::from_utf8_lossy(value.unwrap_or_default()).into_owned()
    }

    /// The key as text; empty without a key.
    pub(crate) fn key_text(&self) -> String {
        String::from_utf8_lossy(self.key.as_deref().unwrap_or_default()).into_owned()
    }

    /// The value as text; empty without a value.
    pub(crate) fn value_text(&self) -> String {
        String::from_utf8_lossy(self.value.as_deref().unwrap_or_default()).into_owned()
    }
}

/// The present time in milliseconds since the Unix epoch. A broker on this machine has the same
/// clock.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("a time after 1970");
    i64::try_from(since.as_millis()).expect("a time")
}

/// Records of a topic in the form of the checker, each with the id of its event.
pub(crate) fn delivered(
    topic: &str,
    records: impl IntoIterator<Item = Record>,
    id: impl Fn(&Record) -> String,
) -> Vec<Delivered> {
    let topic: Arc<str> = topic.into();
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into();
    let of = |record: Record| Delivered {
        topic: Arc::clone(&topic),
        partition: record.partition,
        offset: record.offset,
        id: Some(id(&record))
            .filter(|id| !id.is_empty())
            .map(String::into_boxed_str),
        key: record.key.as_ref().map(text),
        payload: fingerprint(record.value.as_deref()),
        arrived_at_us: record.appended_at_ms * 1_000,
    };
    records.into_iter().map(of).collect()
}

pub(crate) fn consumer(brokers: &str) -> BaseConsumer {
    kafka::consumer(brokers).expect("a consumer")
}

/// Idle clients for reuse, which already know their brokers.
static IDLE: Mutex<BTreeMap<String, Vec<BaseConsumer>>> = Mutex::new(BTreeMap::new());

fn idle() -> MutexGuard<'static, BTreeMap<String, Vec<BaseConsumer>>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time limit for one client to find its broker. A client that asked a fenced broker gets
/// metadata without any broker, and never finds one again; the next client does.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);

/// A client, and the partitions with their first offsets and those after their last. Empty without
/// the topic.
fn reader(brokers: &str, topic: &str) -> (BaseConsumer, Vec<(i32, i64, i64)>) {
    let mut last = None;
    let found = wait::until(PATIENCE, || {
        let known = idle().get_mut(brokers).and_then(Vec::pop);
        let consumer = known.unwrap_or_else(|| consumer(brokers));
        match ends(&consumer, topic) {
            Ok(ends) => Some((consumer, ends)),
            Err(error) => {
                last = Some(error);
                close(consumer);
                None
            }
        }
    });
    found.unwrap_or_else(|| {
        panic!("no offsets of {topic} from {brokers} within {PATIENCE:?}: {last:?}")
    })
}

/// All partitions, or an error: partitions of a new topic, or of a broker that stopped, have no
/// leader for a moment.
fn ends(consumer: &BaseConsumer, topic: &str) -> KafkaResult<Vec<(i32, i64, i64)>> {
    let metadata = consumer.fetch_metadata(Some(topic), CLIENT_PATIENCE)?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return Ok(Vec::new());
    };
    match found.error().map(RDKafkaErrorCode::from) {
        None => {}
        Some(RDKafkaErrorCode::UnknownTopicOrPartition) => return Ok(Vec::new()),
        Some(code) => return Err(KafkaError::MetadataFetch(code)),
    }
    // Two requests for all partitions. `offsets_for_times` accepts these special offsets in place
    // of times.
    let offsets = |of: Offset| {
        let mut asked = TopicPartitionList::new();
        for partition in found.partitions() {
            asked.add_partition_offset(topic, partition.id(), of)?;
        }
        consumer.offsets_for_times(asked, CLIENT_PATIENCE)
    };
    let lows = offsets(Offset::Beginning)?;
    let highs = offsets(Offset::End)?;
    let offset = |list: &TopicPartitionList, partition| {
        let found = list
            .find_partition(topic, partition)
            .expect("a partition that was asked for");
        found.error()?;
        let Offset::Offset(offset) = found.offset() else {
            return Err(KafkaError::OffsetFetch(
                RDKafkaErrorCode::OffsetNotAvailable,
            ));
        };
        Ok(offset)
    };
    let of = |partition: i32| {
        Ok((
            partition,
            offset(&lows, partition)?,
            offset(&highs, partition)?,
        ))
    };
    found
        .partitions()
        .iter()
        .map(|partition| of(partition.id()))
        .collect()
}

/// The partitions of the topic with their first offsets and the offsets after their last ones.
fn extent(brokers: &str, topic: &str) -> Vec<(i32, i64, i64)> {
    let (consumer, ends) = reader(brokers, topic);
    idle().entry(brokers.to_owned()).or_default().push(consumer);
    ends
}

/// The number of offsets in the topic: that of its records, unless it has transactions. 0 without
/// the topic.
pub(crate) fn count(brokers: &str, topic: &str) -> i64 {
    extent(brokers, topic)
        .iter()
        .map(|(_, low, high)| high - low)
        .sum()
}

/// The partitions with their first and last offsets, or the error.
pub(crate) fn offsets(brokers: &str, topic: &str) -> String {
    let consumer = consumer(brokers);
    let offsets = ends(&consumer, topic);
    close(consumer);
    offsets.map_or_else(|error| error.to_string(), |ends| format!("{ends:?}"))
}

/// The number of partitions; 0 if the topic does not exist.
pub(crate) fn partitions(brokers: &str, topic: &str) -> usize {
    extent(brokers, topic).len()
}

/// All committed records up to the present high watermarks, by partition and offset.
pub(crate) fn read(brokers: &str, topic: &str) -> Vec<Record> {
    read_whole(brokers, topic).1
}

/// The same, after the number of partitions.
pub(crate) fn read_whole(brokers: &str, topic: &str) -> (usize, Vec<Record>) {
    let mut records = Vec::new();
    let partitions = each(brokers, topic, |message| records.push(record(message)));
    records.sort_by_key(|record| (record.partition, record.offset));
    (partitions, records)
}

/// Calls `take` with each of these records, ordered within a partition. Returns the number of
/// partitions.
fn each(brokers: &str, topic: &str, mut take: impl FnMut(&BorrowedMessage<'_>)) -> usize {
    let (consumer, mut ends) = reader(brokers, topic);
    let partitions = ends.len();
    ends.retain(|(_, low, high)| high > low);
    let mut assignment = TopicPartitionList::new();
    for (partition, _, _) in &ends {
        assignment
            .add_partition_offset(topic, *partition, Offset::Beginning)
            .expect("an offset");
    }
    // Partitions that are not read up to their ends. The end of a transaction has an offset and is
    // not a record, so the end of a partition counts, too.
    let mut left: BTreeSet<i32> = ends.iter().map(|(partition, _, _)| *partition).collect();
    if !left.is_empty() {
        consumer.assign(&assignment).expect("assign");
    }
    while !left.is_empty() {
        let message = consumer
            .poll(PATIENCE)
            .unwrap_or_else(|| panic!("{topic}: the ends of {left:?} did not come"));
        let message = match message {
            Ok(message) => message,
            Err(KafkaError::PartitionEOF(partition)) => {
                left.remove(&partition);
                continue;
            }
            // After the loss of a broker, the client finds the next leader by itself.
            Err(KafkaError::MessageConsumption(RDKafkaErrorCode::BrokerTransportFailure)) => {
                continue;
            }
            Err(error) => panic!("{topic}: {error}"),
        };
        let end = ends
            .iter()
            .find(|(partition, _, _)| *partition == message.partition());
        // A record that was appended meanwhile is after the end.
        if let Some((partition, _, high)) = end {
            if message.offset() < *high {
                take(&message);
            }
            if message.offset() >= *high - 1 {
                left.remove(partition);
            }
        }
    }
    close(consumer);
    partitions
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let headers = message.headers().map_or_else(Vec::new, |headers| {
        headers
            .iter()
            .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
            .collect()
    });
    Record {
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers,
        appended_at_ms: message.timestamp().to_millis().unwrap_or(-1),
    }
}

/// The answer to an administrative request. A client that found no broker is replaced by another.
fn answered<T>(
    brokers: &str,
    request: impl AsyncFn(&AdminClient<DefaultClientContext>) -> KafkaResult<T>,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let mut last = None;
    let answer = wait::until(ADMIN_PATIENCE, || {
        let admin = kafka::admin(brokers).expect("an admin client");
        let answer =
            runtime.block_on(async { tokio::time::timeout(PATIENCE, request(&admin)).await });
        close(admin);
        match answer {
            Ok(Ok(answer)) => Some(answer),
            Ok(Err(error)) => {
                last = Some(error);
                None
            }
            Err(_) => None,
        }
    });
    answer.unwrap_or_else(|| panic!("no answer from {brokers} within {ADMIN_PATIENCE:?}: {last:?}"))
}

/// Creates a topic with the default number of replicas, and waits until its partitions have
/// leaders.
pub(crate) fn create(brokers: &str, topic: &str, partitions: i32, settings: &[(&str, &str)]) {
    create_all(brokers, &[topic], partitions, settings);
}

/// The same with several topics.
pub(crate) fn create_all(
    brokers: &str,
    topics: &[&str],
    partitions: i32,
    settings: &[(&str, &str)],
) {
    let new = topics
        .iter()
        .map(|topic| NewTopic::new(topic, partitions, TopicReplication::Fixed(-1)));
    make(brokers, new.collect(), settings);
}

/// Deletes a topic, and waits until the brokers no longer know it.
pub(crate) fn delete(brokers: &str, topic: &str) {
    delete_all(brokers, &[topic]);
}

/// The same with several topics.
pub(crate) fn delete_all(brokers: &str, topics: &[&str]) {
    let deleted = answered(brokers, async |admin| {
        admin.delete_topics(topics, &AdminOptions::new()).await
    });
    let gone = |deleted: &TopicResult| {
        matches!(
            deleted,
            Ok(_) | Err((_, RDKafkaErrorCode::UnknownTopicOrPartition))
        )
    };
    assert!(deleted.iter().all(gone), "{deleted:?}");
    for topic in topics {
        super::wait::eventually(
            "it is gone",
            PATIENCE,
            || partitions(brokers, topic),
            |found| *found == 0,
        );
    }
}

/// Adds partitions to a topic until it has so many, and waits until they have leaders.
pub(crate) fn grow(brokers: &str, topic: &str, to: usize) {
    let new = NewPartitions::new(topic, to);
    let grown = answered(brokers, async |admin| {
        admin.create_partitions([&new], &AdminOptions::new()).await
    });
    // A first request without an answer may have added them.
    let there = |grown: &TopicResult| {
        matches!(grown, Ok(_) | Err((_, RDKafkaErrorCode::InvalidPartitions)))
    };
    assert!(grown.iter().all(there), "{grown:?}");
    super::wait::eventually(
        "they have leaders",
        PATIENCE,
        || partitions(brokers, topic),
        |found| *found == to,
    );
}

pub(crate) fn alter(brokers: &str, topic: &str, settings: &[(&str, &str)]) {
    let altered = settings.iter().fold(
        AlterConfig::new(ResourceSpecifier::Topic(topic)),
        |altered, (name, value)| altered.set(name, value),
    );
    let done = answered(brokers, async |admin| {
        admin.alter_configs([&altered], &AdminOptions::new()).await
    });
    assert!(done.iter().all(Result::is_ok), "{done:?}");
}

/// Creates a topic with one partition on each of `nodes`, which may repeat a node.
pub(crate) fn create_on(brokers: &str, topic: &str, nodes: &[i32], settings: &[(&str, &str)]) {
    let replicas: Vec<&[i32]> = nodes.chunks(1).collect();
    let partitions = i32::try_from(nodes.len()).expect("a count of partitions");
    let new = NewTopic::new(topic, partitions, TopicReplication::Variable(&replicas));
    make(brokers, vec![new], settings);
}

fn make<'a>(brokers: &str, mut new: Vec<NewTopic<'a>>, settings: &[(&'a str, &'a str)]) {
    for (name, value) in settings {
        new = new.into_iter().map(|new| new.set(name, value)).collect();
    }
    let made = answered(brokers, async |admin| {
        admin.create_topics(&new, &AdminOptions::new()).await
    });
    // A first request without an answer may have created it.
    let there =
        |made: &TopicResult| matches!(made, Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)));
    assert!(made.iter().all(there), "{made:?}");
    for new in new {
        let expected = usize::try_from(new.num_partitions).expect("a count of partitions");
        super::wait::eventually(
            "it has leaders",
            PATIENCE,
            || partitions(brokers, new.name),
            |found| *found == expected,
        );
    }
}
