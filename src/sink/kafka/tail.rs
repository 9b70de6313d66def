//! Reads the newest records of a topic, further and further back, while there are some that somebody looks for. Blocks;
//! meant for a thread of its own.

use std::ops::{ControlFlow, Range};
use std::time::Instant;

use super::options::Options;
use super::topic_reader::{Isolation, Message, Spans, TopicReader};
use crate::error::Result;
use crate::route::Record;

/// The first look at a partition: more than one gets of a relay between two stores, and a single fetch.
const WINDOW: i64 = 1_000;
/// How much larger each further look is.
const GROWTH: i64 = 4;
/// Offsets looked at, in all partitions together: half of what may be in flight by default, and a second's reading.
pub const RECORDS_MAX: i64 = 50_000;
/// Bytes of records looked at: large records must not make a start wait for long.
const BYTES_MAX: usize = 64 << 20;
/// Shows `take` the newest records of every partition of `topic` that are committed, at most [`RECORDS_MAX`] of them, and is
/// told of each whether it is one of those looked for. Those of a partition are shown in windows that go back, each window
/// in order, until the older half of one has none that is looked for: others may write in between. A topic that does not
/// exist has no records. Nothing is created or committed.
///
/// # Errors
/// [`Kind::KafkaRefused`](crate::error::Kind) or `TopicRefused` where the topic may not be read; `KafkaUnreachable` where it
/// could not be by `deadline`. What was shown until then stays true.
pub fn read_back(
    options: Options,
    topic: &str,
    deadline: Instant,
    take: &mut dyn FnMut(&Record<'_>) -> bool,
) -> Result<()> {
    let reader = TopicReader::open(options, Isolation::ReadCommitted, Some(deadline))?;
    let spans = reader.spans(topic)?;
    let mut partitions: Vec<Partition> = spans.into_iter().map(|(id, span)| Partition::new(id, span)).collect();
    let (mut window, mut left, mut bytes) = (WINDOW, RECORDS_MAX, 0);
    while let Some(looked_at) = look_back(&mut partitions, window, left) {
        let spans: Spans = partitions.iter().map(|partition| (partition.id, partition.from..partition.to)).collect();
        reader.read(topic, &spans, &mut |message| {
            bytes += message.value.map_or(0, <[u8]>::len) + message.key.map_or(0, <[u8]>::len);
            if shown(topic, &message, take)
                && let Some(partition) = partitions.iter_mut().find(|partition| partition.id == message.partition)
            {
                partition.oldest.get_or_insert(message.offset);
            }
            if bytes > BYTES_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if bytes > BYTES_MAX {
            return Ok(());
        }
        partitions.iter_mut().for_each(Partition::looked_at);
        left -= looked_at;
        window = window.saturating_mul(GROWTH);
    }
    Ok(())
}

/// A partition, and what of it was looked at.
#[derive(Debug)]
struct Partition {
    id: i32,
    low: i64,
    /// Everything from here on was looked at.
    from: i64,
    /// Where the window ends that is looked at now.
    to: i64,
    /// The oldest record in the window that was looked for.
    oldest: Option<i64>,
    enough: bool,
}

impl Partition {
    fn new(id: i32, span: Range<i64>) -> Partition {
        Partition { id, low: span.start, from: span.end, to: span.end, oldest: None, enough: span.is_empty() }
    }

    /// A window of it was looked at, if there was one.
    fn looked_at(&mut self) {
        let middle = self.from + (self.to - self.from) / 2;
        self.enough |= self.oldest.is_none_or(|oldest| oldest >= middle);
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
        partition.oldest = None;
    }
    Some(looked_at)
}

fn shown(topic: &str, message: &Message<'_>, take: &mut dyn FnMut(&Record<'_>) -> bool) -> bool {
    let Some(headers) = &message.headers else { return false };
    let (key, value, partition) = (message.key, message.value, Some(message.partition));
    take(&Record { topic, key, value, headers, partition, timestamp_ms: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(id: i32, low: i64, high: i64) -> Partition {
        Partition::new(id, low..high)
    }

    fn windows(partitions: &[Partition]) -> Vec<(i64, i64)> {
        partitions.iter().map(|partition| (partition.from, partition.to)).collect()
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
