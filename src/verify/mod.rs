//! Compares a table with its topics: rows without a record, rows with several, and records in the
//! wrong order.
//!
//! [`Comparison`] takes rows first and then records, and returns the findings. [`RecordReader`]
//! reads topics to their ends, and waits while records are missing.
//!
//! Memory holds id, key and order of each compared row, and no record, except records whose id no
//! row has. This is about 120 bytes for each row (for a moment twice that, while the map grows) and
//! 80 for each key. Ids and keys that are neither UUIDs nor integers also take the bytes of their
//! text. No payload is kept.

mod compare;

use std::ops::ControlFlow;
use std::time::Instant;

pub(crate) use self::compare::{Comparison, Counts, Delivered, Example, Findings, Outbox};
use crate::sink::{Extent, ReadTopics, Step, TopicRecord};
use walrelay_core::error::Result;
use walrelay_core::route::REPLAY_HEADER;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading<'t> {
    pub topic: &'t str,
    /// The number of the topic, from 1.
    pub number: usize,
    pub topics: usize,
    pub records: u64,
    /// The offsets of the topic that are read, at least as many as its records.
    pub of: u64,
}

/// Reads topics into a [`Comparison`]. Blocks: it needs a thread of its own.
pub(crate) struct RecordReader {
    topics: Box<dyn ReadTopics>,
    id_headers: Vec<String>,
    /// The earliest time of the records to read, in milliseconds since the Unix epoch.
    since_ms: Option<i64>,
    /// The topics that do not exist.
    pub(crate) absent: Vec<String>,
    /// The topics whose first records are deleted.
    pub(crate) cut: Vec<String>,
}

impl RecordReader {
    /// `id_headers` name the headers that may carry an event's id; the first one that a record has
    /// counts. With `since_ms`, the reader skips records with an earlier timestamp, where the bus
    /// tells where they end.
    pub(crate) fn new(
        topics: Box<dyn ReadTopics>,
        id_headers: Vec<String>,
        since_ms: Option<i64>,
    ) -> RecordReader {
        RecordReader {
            topics,
            id_headers,
            since_ms,
            absent: Vec::new(),
            cut: Vec::new(),
        }
    }

    /// Reads every topic of `comparison`: waits until `deadline` for missing records, and then
    /// reads to the end that the topic has. Records that are missing afterwards were not there at
    /// the deadline.
    pub(crate) fn read(
        &mut self,
        comparison: &mut Comparison,
        deadline: Instant,
        say: &mut dyn FnMut(&Reading<'_>),
    ) -> Result<()> {
        let mut topics: Vec<String> = comparison.topics().map(str::to_owned).collect();
        topics.sort_unstable();
        for (at, topic) in topics.iter().enumerate() {
            let mut reading = Reading {
                topic,
                number: at + 1,
                topics: topics.len(),
                records: 0,
                of: 0,
            };
            let id_headers = &self.id_headers;
            let mut take = |step: Step<'_>| {
                match step {
                    Step::Begin(of) => reading.of = of,
                    Step::Record(record) => {
                        comparison.record(topic, &delivered(record, id_headers));
                        reading.records += 1;
                        reading.of = reading.of.max(reading.records);
                    }
                    Step::Nothing => {}
                }
                say(&reading);
                if comparison.owed(topic) == 0 || Instant::now() >= deadline {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            let Extent { is_absent, is_cut } =
                self.topics.read_topic(topic, self.since_ms, &mut take)?;
            self.absent.extend(is_absent.then(|| topic.clone()));
            self.cut.extend(is_cut.then(|| topic.clone()));
        }
        Ok(())
    }
}

fn delivered<'m>(record: &TopicRecord<'m>, id_headers: &[String]) -> Delivered<'m> {
    let headers = record.headers.as_deref().unwrap_or_default();
    let value = |name: &str| headers.iter().find(|(found, _)| *found == name);
    Delivered {
        partition: record.partition,
        offset: record.offset,
        key: record.key,
        id: id_headers.iter().find_map(|name| value(name)?.1),
        is_replay: value(REPLAY_HEADER).is_some(),
    }
}
