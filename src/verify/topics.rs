//! Topics, read to their ends as often as it takes. Blocks; meant for a thread of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::{Offset, TopicPartitionList};

use super::compare::{Comparison, Delivered};
use crate::error::{Error, Kind, Result};
use crate::route::REPLAY_HEADER;
use crate::sink::consumer::{heals, is_young};
use crate::sink::faults::{self, Subject};
use crate::sink::options::Options;
use crate::sink::reading::{self, Listening};

/// librdkafka wants a group even where nobody joins one; nothing is ever committed in its name.
const GROUP: &str = "walrelay-verify";
/// How long a question may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(15);
/// Reading gives up after this long without a record or an end.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);
/// Between two looks for what has not arrived yet.
const PAUSE: Duration = Duration::from_millis(300);

/// Is told how far it is: the topic, which of how many it is, and the records of it so far.
pub type Progress<'p> = &'p mut dyn FnMut(&str, usize, usize, u64);

/// A partition, and how far it was read.
#[derive(Debug, Default)]
struct Partition {
    next: i64,
    end: i64,
}

/// Reads topics into a [`Comparison`]. It is in no consumer group, commits nothing and makes no topic.
pub struct Reader {
    client: BaseConsumer<Listening>,
    id_headers: Vec<String>,
    /// Where to begin in time, in milliseconds since the Unix epoch.
    since_ms: Option<i64>,
    read: BTreeMap<String, BTreeMap<i32, Partition>>,
    cut: BTreeSet<String>,
}

impl Reader {
    /// `options` are those of [`Options::reader`]; `id_headers` name the headers that may carry an event's id, of which
    /// the first that a record has counts. With `since_ms`, records with an earlier timestamp are left out where
    /// the broker can tell.
    ///
    /// # Errors
    /// [`Kind::Config`] where no client can be made.
    pub fn new(options: Options, id_headers: Vec<String>, since_ms: Option<i64>) -> Result<Reader> {
        let client = reading::reader(options, GROUP)?;
        Ok(Reader { client, id_headers, since_ms, read: BTreeMap::new(), cut: BTreeSet::new() })
    }

    /// Reads every topic of `comparison` to the end it has when its turn comes; then, until `deadline`, again those to
    /// which a row is owed. What is owed afterwards was not there when the deadline had passed.
    ///
    /// # Errors
    /// [`Kind::KafkaUnreachable`] and [`Kind::KafkaRefused`].
    pub fn read(&mut self, comparison: &mut Comparison, deadline: Instant, progress: Progress<'_>) -> Result<()> {
        let topics: Vec<String> = comparison.topics().map(str::to_owned).collect();
        let mut left: Vec<&String> = topics.iter().collect();
        loop {
            let is_last = Instant::now() >= deadline;
            for (at, topic) in left.iter().enumerate() {
                self.topic(topic, comparison, &mut |records| progress(topic, at + 1, left.len(), records))?;
            }
            left.retain(|topic| comparison.owed(topic) > 0);
            if left.is_empty() || is_last {
                return Ok(());
            }
            std::thread::sleep(PAUSE.min(deadline.saturating_duration_since(Instant::now())));
        }
    }

    /// Topics that do not exist, and those whose first records are gone, as far as they were read.
    pub fn absent_and_cut(&self) -> (Vec<String>, Vec<String>) {
        let absent = self.read.iter().filter(|(_, partitions)| partitions.is_empty()).map(|(topic, _)| topic.clone());
        (absent.collect(), self.cut.iter().cloned().collect())
    }

    fn topic(&mut self, topic: &str, into: &mut Comparison, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let mut partitions = self.read.remove(topic).unwrap_or_default();
        self.look(topic, &mut partitions)?;
        let read = self.read_to_ends(topic, &mut partitions, into, progress);
        self.read.insert(topic.to_owned(), partitions);
        read
    }

    /// Which partitions there are, and where they end now.
    fn look(&mut self, topic: &str, partitions: &mut BTreeMap<i32, Partition>) -> Result<()> {
        use RDKafkaErrorCode as Code;
        let metadata =
            self.client.fetch_metadata(Some(topic), ASK_TIMEOUT).map_err(|error| self.explain(&error, topic))?;
        let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else { return Ok(()) };
        match found.error().map(Code::from) {
            None => {}
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::LeaderNotAvailable) => return Ok(()),
            Some(code) => return Err(faults::explain(code, Subject { topic: Some(topic), ..Subject::default() })),
        }
        let ids: Vec<i32> = found.partitions().iter().map(rdkafka::metadata::MetadataPartition::id).collect();
        let fresh: Vec<i32> = ids.iter().copied().filter(|id| !partitions.contains_key(id)).collect();
        let begins = self.begins(topic, &fresh)?;
        for id in ids {
            let (low, end) = self.watermarks(topic, id)?;
            let begin = begins.get(&id).copied().map_or(low, |begin| begin.max(low));
            if low > 0 && begin == low && !partitions.contains_key(&id) {
                self.cut.insert(topic.to_owned());
            }
            partitions.entry(id).or_insert(Partition { next: begin, end }).end = end;
        }
        Ok(())
    }

    /// Where a partition begins and ends. One that came into being this moment has a leader the next.
    fn watermarks(&self, topic: &str, id: i32) -> Result<(i64, i64)> {
        let until = Instant::now() + ASK_TIMEOUT;
        loop {
            match self.client.fetch_watermarks(topic, id, ASK_TIMEOUT) {
                Err(error) if is_young(&error) && Instant::now() < until => std::thread::sleep(LEADER_PAUSE),
                answer => return answer.map_err(|error| self.explain(&error, topic)),
            }
        }
    }

    /// Where partitions begin in time; nothing for those that begin at their beginning.
    fn begins(&self, topic: &str, partitions: &[i32]) -> Result<BTreeMap<i32, i64>> {
        let Some(since_ms) = self.since_ms.filter(|_| !partitions.is_empty()) else { return Ok(BTreeMap::new()) };
        let mut asked = TopicPartitionList::new();
        for id in partitions {
            asked
                .add_partition_offset(topic, *id, Offset::Offset(since_ms))
                .map_err(|error| self.explain(&error, topic))?;
        }
        let found = self.client.offsets_for_times(asked, ASK_TIMEOUT).map_err(|error| self.explain(&error, topic))?;
        let begin = |element: &rdkafka::topic_partition_list::TopicPartitionListElem<'_>| match element.offset() {
            Offset::Offset(offset) => Some((element.partition(), offset)),
            // None is as young.
            Offset::End => Some((element.partition(), i64::MAX)),
            Offset::Beginning | Offset::Stored | Offset::Invalid | Offset::OffsetTail(_) => None,
        };
        Ok(found.elements().iter().filter_map(begin).collect())
    }

    fn read_to_ends(
        &self,
        topic: &str,
        partitions: &mut BTreeMap<i32, Partition>,
        into: &mut Comparison,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut assignment = TopicPartitionList::new();
        let mut left = 0;
        for (id, partition) in partitions.iter_mut() {
            partition.next = partition.next.min(partition.end.max(0));
            if partition.next < partition.end {
                left += 1;
                assignment
                    .add_partition_offset(topic, *id, Offset::Offset(partition.next))
                    .map_err(|error| self.explain(&error, topic))?;
            }
        }
        if left == 0 {
            return Ok(());
        }
        self.client.assign(&assignment).map_err(|error| self.explain(&error, topic))?;
        let mut heard = Instant::now();
        let mut records = 0;
        while left > 0 {
            if heard.elapsed() > SILENCE_TIMEOUT {
                let seconds = SILENCE_TIMEOUT.as_secs();
                let cause = format!("topic {topic} could not be read to its end: nothing came for {seconds} s");
                return Err(reading::refusal(&self.client).unwrap_or_else(|| Error::new(Kind::KafkaUnreachable, cause)));
            }
            let (id, next) = match self.client.poll(POLL) {
                None => continue,
                // What was fetched for another topic, or lies behind the end, is not asked for.
                Some(Ok(message)) if message.topic() != topic => continue,
                Some(Ok(message)) => {
                    let (id, offset) = (message.partition(), message.offset());
                    let known = partitions.get(&id);
                    if known.is_some_and(|partition| (partition.next..partition.end).contains(&offset)) {
                        into.record(topic, &self.delivered(&message));
                        records += 1;
                        progress(records);
                    }
                    (id, offset + 1)
                }
                // The last offsets may hold nothing that can be read: compacted away, or a transaction's end.
                Some(Err(KafkaError::PartitionEOF(id))) => (id, i64::MAX),
                Some(Err(error)) if heals(&error) => {
                    tracing::debug!(topic, %error, "reading");
                    continue;
                }
                Some(Err(error)) => return Err(self.explain(&error, topic)),
            };
            heard = Instant::now();
            let Some(partition) = partitions.get_mut(&id) else { continue };
            if partition.next < partition.end {
                partition.next = next.clamp(partition.next, partition.end);
                left -= usize::from(partition.next >= partition.end);
            }
        }
        self.client.unassign().map_err(|error| self.explain(&error, topic))
    }

    fn delivered<'m>(&self, message: &'m BorrowedMessage<'_>) -> Delivered<'m> {
        let headers = reading::headers(message).unwrap_or_default();
        let value = |name: &str| headers.iter().find(|(found, _)| *found == name);
        Delivered {
            partition: message.partition(),
            offset: message.offset(),
            key: message.key(),
            id: self.id_headers.iter().find_map(|name| value(name)?.1),
            is_replay: value(REPLAY_HEADER).is_some(),
        }
    }

    fn explain(&self, error: &KafkaError, topic: &str) -> Error {
        reading::explain(&self.client, error, topic)
    }
}

/// How soon a partition without a leader is asked for again.
const LEADER_PAUSE: Duration = Duration::from_millis(100);
