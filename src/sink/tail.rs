//! Reads the newest records of a topic, further and further back, while there are some that somebody looks for. Blocks;
//! meant for a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{Offset, TopicPartitionList};

use super::close_aside;
use super::consumer::{Quiet, Sees, consumer, heals, is_young};
use super::faults::{self, Subject};
use super::options::Options;
use crate::error::{Error, Kind, Result};
use crate::route::Record;

/// librdkafka wants a group even where nobody joins one; nothing is ever committed in its name.
const GROUP: &str = "walrelay-tail-reader";

/// The first look at a partition: more than one gets of a relay between two stores, and a single fetch.
const WINDOW: i64 = 1_000;
/// How much larger each further look is.
const GROWTH: i64 = 4;
/// Offsets looked at, in all partitions together: half of what may be in flight by default, and a second's reading.
pub const RECORDS_MAX: i64 = 50_000;
/// Bytes of records looked at: large records must not make a start wait for long.
const BYTES_MAX: usize = 64 << 20;
/// Records that are fetched ahead, in KiB: they are memory beside what is in flight.
const AHEAD_KIB: &str = "8192";
/// How long one call of librdkafka waits for a record.
const POLL: Duration = Duration::from_millis(100);

/// How soon a partition without a leader is asked for again.
const LEADER_PAUSE: Duration = Duration::from_millis(100);

/// Shows `take` the newest records of every partition of `topic` that are committed, at most [`RECORDS_MAX`] of them, and is
/// told of each whether it is one of those looked for. Those of a partition are shown in windows that go back, each window
/// in order, until the older half of one has none that is looked for: others may write in between. A topic that does not
/// exist has no records. Nothing is created or committed.
///
/// # Errors
/// [`Kind::KafkaRefused`] where the topic may not be read; [`Kind::KafkaUnreachable`] where it could not be by `deadline`.
/// What was shown until then stays true.
pub fn read_back(
    mut options: Options,
    topic: &str,
    deadline: Instant,
    take: &mut dyn FnMut(&Record<'_>) -> bool,
) -> Result<()> {
    options.client.set("queued.max.messages.kbytes", AHEAD_KIB);
    let consumer = consumer(options, GROUP, Sees::Committed)?;
    let read = Tail { consumer: &consumer, topic, deadline, bytes: 0 }.read(take);
    close_aside(consumer);
    read
}

struct Tail<'t> {
    consumer: &'t BaseConsumer<Quiet>,
    topic: &'t str,
    deadline: Instant,
    /// Bytes shown so far.
    bytes: usize,
}

/// A partition, and what of it was looked at.
#[derive(Debug)]
struct Partition {
    id: i32,
    low: i64,
    /// Everything from here on was looked at.
    from: i64,
    /// Where the window ends that is looked at now, and how far one has come in it.
    to: i64,
    next: i64,
    /// The oldest record in the window that was looked for.
    oldest: Option<i64>,
    enough: bool,
}

impl Partition {
    /// A window of it was looked at, if there was one.
    fn looked_at(&mut self) {
        let middle = self.from + (self.to - self.from) / 2;
        self.enough |= self.oldest.is_none_or(|oldest| oldest >= middle);
    }
}

impl Tail<'_> {
    fn read(mut self, take: &mut dyn FnMut(&Record<'_>) -> bool) -> Result<()> {
        let mut partitions = self.partitions()?;
        let (mut window, mut left) = (WINDOW, RECORDS_MAX);
        while let Some(looked_at) = look_back(&mut partitions, window, left) {
            self.window(&mut partitions, take)?;
            partitions.iter_mut().for_each(Partition::looked_at);
            if self.bytes > BYTES_MAX {
                return Ok(());
            }
            left -= looked_at;
            window = window.saturating_mul(GROWTH);
        }
        Ok(())
    }

    /// Which partitions there are, and where they begin and end.
    fn partitions(&self) -> Result<Vec<Partition>> {
        use RDKafkaErrorCode as Code;
        let metadata = self.consumer.fetch_metadata(Some(self.topic), self.left()?);
        let metadata = metadata.map_err(|error| self.explain(&error))?;
        let Some(found) = metadata.topics().iter().find(|found| found.name() == self.topic) else {
            return Ok(Vec::new());
        };
        match found.error().map(Code::from) {
            None => {}
            Some(
                Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::LeaderNotAvailable | Code::InvalidTopic,
            ) => {
                return Ok(Vec::new());
            }
            Some(code) => return Err(self.explain(&KafkaError::MetadataFetch(code))),
        }
        found.partitions().iter().map(|found| self.partition(found.id())).collect()
    }

    /// One that came into being this moment, or whose broker went away, has a leader the next.
    fn partition(&self, id: i32) -> Result<Partition> {
        loop {
            let left = self.left()?;
            match self.consumer.fetch_watermarks(self.topic, id, left) {
                Ok((low, high)) => {
                    return Ok(Partition {
                        id,
                        low,
                        from: high,
                        to: high,
                        next: high,
                        oldest: None,
                        enough: low >= high,
                    });
                }
                Err(error) if is_young(&error) => std::thread::sleep(LEADER_PAUSE.min(left)),
                Err(error) => return Err(self.explain(&error)),
            }
        }
    }

    /// Shows what lies in the window of every partition.
    fn window(&mut self, partitions: &mut [Partition], take: &mut dyn FnMut(&Record<'_>) -> bool) -> Result<()> {
        let mut assignment = TopicPartitionList::new();
        for partition in partitions.iter().filter(|partition| partition.next < partition.to) {
            assignment
                .add_partition_offset(self.topic, partition.id, Offset::Offset(partition.next))
                .map_err(|error| self.explain(&error))?;
        }
        self.consumer.assign(&assignment).map_err(|error| self.explain(&error))?;
        while partitions.iter().any(|partition| partition.next < partition.to) && self.bytes <= BYTES_MAX {
            let left = self.left()?;
            match self.consumer.poll(POLL.min(left)) {
                None => {}
                Some(Ok(message)) => {
                    let (id, offset) = (message.partition(), message.offset());
                    // What lies behind the window was looked at already.
                    let Some(partition) = partitions.iter_mut().find(|of| of.id == id && of.next <= offset) else {
                        continue;
                    };
                    if offset >= partition.to {
                        partition.next = partition.to;
                        continue;
                    }
                    partition.next = offset + 1;
                    self.bytes += message.payload_len() + message.key_len();
                    if shown(&message, take) {
                        partition.oldest.get_or_insert(offset);
                    }
                }
                // The last offsets may hold nothing that can be read: compacted away, or a transaction's end.
                Some(Err(KafkaError::PartitionEOF(id))) => {
                    partitions.iter_mut().filter(|of| of.id == id).for_each(|of| of.next = of.to);
                }
                Some(Err(error)) if heals(&error) => tracing::debug!(topic = self.topic, %error, "reading a tail"),
                Some(Err(error)) => return Err(self.explain(&error)),
            }
        }
        self.consumer.unassign().map_err(|error| self.explain(&error))
    }

    /// The time that is left.
    fn left(&self) -> Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let late = || Error::new(Kind::KafkaUnreachable, format!("topic {} could not be read in time", self.topic));
        if left.is_zero() { Err(late()) } else { Ok(left) }
    }

    fn explain(&self, error: &KafkaError) -> Error {
        let code = faults::of_known(super::code(error));
        let subject = Subject { topic: Some(self.topic), ..Subject::default() };
        let explained = faults::explain(code, subject);
        if code != RDKafkaErrorCode::TopicAuthorizationFailed {
            return explained;
        }
        explained.remedy(format!(
            "grant what reading needs: kafka-acls --add --allow-principal User:… --operation Read --operation Describe \
             --topic {}",
            self.topic
        ))
    }
}

/// Moves every partition that is not done one window back, as far as that is `left` for all; `None` when nothing is to be
/// looked at any more.
fn look_back(partitions: &mut [Partition], window: i64, left: i64) -> Option<i64> {
    let open = |partition: &Partition| !partition.enough && partition.from > partition.low;
    let count = partitions.iter().filter(|partition| open(partition)).count();
    let window = window.min(left / i64::try_from(count).ok().filter(|count| *count > 0)?);
    if window <= 0 {
        return None;
    }
    let mut looked_at = 0;
    for partition in partitions.iter_mut() {
        // One that is done has nothing left to come.
        partition.to = partition.from;
        if open(partition) {
            partition.from = partition.low.max(partition.to - window);
            looked_at += partition.to - partition.from;
        }
        (partition.next, partition.oldest) = (partition.from, None);
    }
    Some(looked_at)
}

fn shown(message: &BorrowedMessage<'_>, take: &mut dyn FnMut(&Record<'_>) -> bool) -> bool {
    // rdkafka panics where the name of a header is not UTF-8, and anybody may write into a shared topic.
    let headers = catch_unwind(AssertUnwindSafe(|| {
        let all = message.headers().into_iter().flat_map(Headers::iter);
        all.map(|header| (header.key, header.value)).collect::<Vec<_>>()
    }));
    let Ok(headers) = headers else { return false };
    let (topic, partition) = (message.topic(), Some(message.partition()));
    let (key, value, headers) = (message.key(), message.payload(), headers.as_slice());
    take(&Record { topic, key, value, headers, partition, timestamp_ms: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(id: i32, low: i64, high: i64) -> Partition {
        Partition { id, low, from: high, to: high, next: high, oldest: None, enough: low >= high }
    }

    fn windows(partitions: &[Partition]) -> Vec<(i64, i64)> {
        partitions.iter().map(|partition| (partition.next, partition.to)).collect()
    }

    #[test]
    fn a_partition_is_done_when_the_older_half_of_a_window_has_nothing_that_is_looked_for() {
        for (oldest, enough) in [(None, true), (Some(9_500), true), (Some(9_499), false), (Some(9_000), false)] {
            let mut one = [partition(0, 0, 10_000)];
            look_back(&mut one, 1_000, 50_000);
            one[0].oldest = oldest;
            one[0].looked_at();
            assert_eq!(one[0].enough, enough, "{oldest:?}");
        }
    }

    #[test]
    fn each_window_ends_where_the_last_began_until_one_was_enough_or_the_beginning_is_reached() {
        let mut all = [partition(0, 0, 10_000), partition(1, 9_500, 10_000), partition(2, 7, 7)];
        assert_eq!(look_back(&mut all, 1_000, 50_000), Some(1_500));
        assert_eq!(windows(&all), [(9_000, 10_000), (9_500, 10_000), (7, 7)]);
        assert_eq!(look_back(&mut all, 4_000, 48_500), Some(4_000));
        assert_eq!(windows(&all), [(5_000, 9_000), (9_500, 9_500), (7, 7)]);
        all[0].enough = true;
        assert_eq!(look_back(&mut all, 16_000, 44_500), None);
    }

    #[test]
    fn all_partitions_together_stay_below_the_bound() {
        let mut all: Vec<_> = (0..1_000).map(|id| partition(id, 0, 1_000_000)).collect();
        let (mut left, mut window) = (RECORDS_MAX, WINDOW);
        while let Some(looked_at) = look_back(&mut all, window, left) {
            left -= looked_at;
            window *= GROWTH;
        }
        assert_eq!(left, 0);
        assert!(all.iter().all(|partition| partition.from == 999_950));
    }
}
