//! What is in the topics, against what was committed: lost, duplicated, out of order, and when each
//! record was appended.

use std::collections::HashMap;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::{Offset, TopicPartitionList};

use crate::support::topic;
use crate::support::wait::until;

/// What topics hold of rows that were numbered from 1 on. Of each row the first record counts.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// By number, when it was first appended, in ms since the Unix epoch; at index 0 is nobody. 0
    /// for none.
    pub(crate) appended_at_ms: Vec<i64>,
    pub(crate) records: u64,
    pub(crate) duplicated: u64,
    /// First records that came after a later one of their aggregate.
    pub(crate) out_of_order: u64,
    pub(crate) lost: u64,
}

impl Verdict {
    /// What keeps the run from counting; empty where nothing does.
    pub(crate) fn fault(&self, duplicates_count: bool) -> String {
        let mut faults = Vec::new();
        let mut say = |count: u64, what: &str| {
            if count > 0 {
                faults.push(format!("{count} {what}"));
            }
        };
        say(self.lost, "lost");
        say(self.out_of_order, "out of order");
        say(
            if duplicates_count { self.duplicated } else { 0 },
            "duplicated",
        );
        faults.join(", ")
    }

    /// Takes a record in; `newest` has the greatest number of each key.
    fn take(&mut self, message: &BorrowedMessage<'_>, newest: &mut HashMap<Vec<u8>, u64>) {
        self.records += 1;
        let topic = message.topic();
        let Some(number) = message.payload().and_then(numbered) else {
            panic!("{topic}: a record without a number");
        };
        let slot = usize::try_from(number)
            .ok()
            .and_then(|number| self.appended_at_ms.get_mut(number));
        let slot = slot.unwrap_or_else(|| panic!("{topic}: there is no row {number}"));
        if *slot != 0 {
            self.duplicated += 1;
            return;
        }
        *slot = message.timestamp().to_millis().unwrap_or(-1);
        let key = message.key().unwrap_or_default();
        match newest.get_mut(key) {
            Some(newest) if *newest > number => self.out_of_order += 1,
            Some(newest) => *newest = number,
            None => {
                newest.insert(key.to_vec(), number);
            }
        }
    }

    /// All times of appending, sorted.
    pub(crate) fn sorted_ms(&self) -> Vec<i64> {
        let mut times: Vec<i64> = self
            .appended_at_ms
            .iter()
            .copied()
            .filter(|ms| *ms > 0)
            .collect();
        times.sort_unstable();
        times
    }
}

/// How long a broker is asked again.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it may take for one answer.
const ASKED: Duration = Duration::from_secs(10);

/// Topics, as they are now. All their partitions are there from the beginning.
pub(crate) struct Log {
    /// Until it is dropped.
    consumer: Option<BaseConsumer>,
    /// All partitions, each at its end.
    ends: TopicPartitionList,
}

impl Log {
    pub(crate) fn of(brokers: &str, topics: &[String]) -> Log {
        let consumer = topic::consumer(brokers);
        let only = topics.first().filter(|_| topics.len() == 1);
        let metadata = until(PATIENCE, || {
            consumer
                .fetch_metadata(only.map(String::as_str), ASKED)
                .ok()
        });
        let metadata = metadata.expect("an answer of the broker");
        let mut ends = TopicPartitionList::new();
        for topic in metadata.topics() {
            if topics.iter().any(|known| known == topic.name()) {
                for partition in topic.partitions() {
                    ends.add_partition(topic.name(), partition.id());
                }
            }
        }
        ends.set_all_offsets(Offset::End).expect("offsets");
        Log {
            consumer: Some(consumer),
            ends,
        }
    }

    fn consumer(&self) -> &BaseConsumer {
        self.consumer.as_ref().expect("a client")
    }

    /// How many records there are now.
    pub(crate) fn count(&self) -> u64 {
        self.highs().values().flat_map(HashMap::values).sum()
    }

    /// What is behind the last record of each partition that has any, by topic and number.
    fn highs(&self) -> HashMap<String, HashMap<i32, u64>> {
        let answer = until(PATIENCE, || {
            let answer = self
                .consumer()
                .offsets_for_times(self.ends.clone(), ASKED)
                .ok()?;
            let is_known = |offset| matches!(offset, Offset::Offset(_));
            let elements = answer.elements();
            elements
                .iter()
                .all(|it| is_known(it.offset()))
                .then_some(answer)
        });
        let mut highs: HashMap<String, HashMap<i32, u64>> = HashMap::new();
        for element in answer.expect("ends of partitions").elements() {
            let high = element
                .offset()
                .to_raw()
                .and_then(|raw| u64::try_from(raw).ok());
            if let Some(high @ 1..) = high {
                let of_topic = highs.entry(element.topic().to_owned()).or_default();
                of_topic.insert(element.partition(), high);
            }
        }
        highs
    }

    /// Calls `take` with each record up to the present ends, in order within a partition.
    fn each(&self, mut take: impl FnMut(&BorrowedMessage<'_>)) {
        let mut left = self.highs();
        let mut assigned = TopicPartitionList::new();
        for (topic, partitions) in &left {
            for partition in partitions.keys() {
                assigned.add_partition(topic, *partition);
            }
        }
        assigned
            .set_all_offsets(Offset::Beginning)
            .expect("offsets");
        self.consumer().assign(&assigned).expect("assign");
        while !left.is_empty() {
            let message = self.consumer().poll(PATIENCE);
            let message = match message.unwrap_or_else(|| panic!("not all came of {left:?}")) {
                Ok(message) => message,
                Err(KafkaError::PartitionEOF(_)) => continue,
                Err(error) => panic!("{error}"),
            };
            let Some(partitions) = left.get_mut(message.topic()) else {
                continue;
            };
            let Some(high) = partitions.get(&message.partition()) else {
                continue;
            };
            take(&message);
            if message.offset().unsigned_abs() + 1 >= *high {
                partitions.remove(&message.partition());
                if partitions.is_empty() {
                    left.remove(message.topic());
                }
            }
        }
        self.consumer().unassign().expect("unassign");
    }

    /// Reads all of it. `rows` is the greatest number there can be, and `is_row` says which numbers
    /// are rows.
    pub(crate) fn read(&self, rows: u64, is_row: impl Fn(usize) -> bool) -> Verdict {
        let rows = usize::try_from(rows).expect("a number of rows");
        let mut verdict = Verdict {
            appended_at_ms: vec![0; rows + 1],
            records: 0,
            duplicated: 0,
            out_of_order: 0,
            lost: 0,
        };
        let mut newest: HashMap<Vec<u8>, u64> = HashMap::new();
        self.each(|message| verdict.take(message, &mut newest));
        let missing = |(number, ms): (usize, &i64)| *ms == 0 && is_row(number);
        verdict.lost = verdict
            .appended_at_ms
            .iter()
            .enumerate()
            .skip(1)
            .filter(|of| missing(*of))
            .count() as u64;
        verdict
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Some(consumer) = self.consumer.take() {
            topic::close(consumer);
        }
    }
}

/// The number in a payload, wherever its format has put it: the digits behind `seq`.
fn numbered(payload: &[u8]) -> Option<u64> {
    let at = payload.windows(3).position(|window| window == b"seq")? + 3;
    number(payload.get(at..)?)
}

/// The first number in `text`.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    let digits = text
        .iter()
        .skip_while(|byte| !byte.is_ascii_digit())
        .take_while(|byte| byte.is_ascii_digit());
    digits
        .copied()
        .try_fold(None, |number: Option<u64>, digit| {
            Some(Some(
                number
                    .unwrap_or(0)
                    .checked_mul(10)?
                    .checked_add(u64::from(digit - b'0'))?,
            ))
        })?
}
