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
use std::time::{Duration, Instant};

pub(crate) use self::compare::{Comparison, Counts, Delivered, Example, Findings, Outbox};
use crate::sink::kafka::options::Options;
use crate::sink::kafka::topic_reader::{
    Isolation, OffsetRanges, TopicReader, TopicRecord, offsets,
};
use walrelay_core::error::Result;
use walrelay_core::route::REPLAY_HEADER;

/// How soon a topic that does not exist is looked for again.
const PAUSE: Duration = Duration::from_millis(300);

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

/// Reads topics into a [`Comparison`], without consumer group and commits. Blocks: it needs a
/// thread of its own.
pub(crate) struct RecordReader {
    reader: TopicReader,
    id_headers: Vec<String>,
    /// The earliest time of the records to read, in milliseconds since the Unix epoch.
    since_ms: Option<i64>,
    /// The topics that do not exist.
    pub(crate) absent: Vec<String>,
    /// The topics whose first records are deleted.
    pub(crate) cut: Vec<String>,
}

impl RecordReader {
    /// `options` are those of [`Options::reader`]. `id_headers` name the headers that may carry an
    /// event's id; the first one that a record has counts. With `since_ms`, the reader skips
    /// records with an earlier timestamp, where the broker has an offset for the time.
    pub(crate) fn new(
        options: Options,
        id_headers: Vec<String>,
        since_ms: Option<i64>,
    ) -> Result<RecordReader> {
        let reader = TopicReader::open(options, Isolation::ReadCommitted, None)?;
        Ok(RecordReader {
            reader,
            id_headers,
            since_ms,
            absent: Vec::new(),
            cut: Vec::new(),
        })
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
            let begin = self.begin(topic, deadline)?;
            let mut reading = Reading {
                topic,
                number: at + 1,
                topics: topics.len(),
                records: 0,
                of: offsets(&begin),
            };
            let mut take = |into: &mut Comparison, record: Option<&TopicRecord<'_>>| {
                if let Some(record) = record {
                    into.record(topic, &delivered(record, &self.id_headers));
                    reading.records += 1;
                    reading.of = reading.of.max(reading.records);
                }
                say(&reading);
            };
            take(comparison, None);
            let next = self.reader.follow(topic, begin, &mut |record| {
                take(comparison, record.as_ref());
                let is_over = comparison.owed(topic) == 0 || Instant::now() >= deadline;
                if is_over {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })?;
            let rest = self
                .reader
                .read_on(topic, &next, &mut |record| take(comparison, Some(&record)))?;
            self.absent.extend(rest.is_empty().then(|| topic.clone()));
        }
        Ok(())
    }

    /// The partitions of `topic`, each from its first record to compare. Waits until `deadline` for
    /// a topic that does not exist.
    fn begin(&mut self, topic: &str, deadline: Instant) -> Result<OffsetRanges> {
        let mut spans = self.reader.spans(topic)?;
        while spans.is_empty() && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
            spans = self.reader.spans(topic)?;
        }
        let begin = match self.since_ms {
            None => spans.clone(),
            Some(since_ms) => self.reader.since(topic, spans.clone(), since_ms)?,
        };
        // The deleted records may be of the time in question.
        let is_cut = spans.iter().any(|(id, span)| {
            let has_records = self.since_ms.is_none() || !span.is_empty();
            span.start > 0
                && has_records
                && begin.get(id).is_some_and(|begin| begin.start == span.start)
        });
        self.cut.extend(is_cut.then(|| topic.to_owned()));
        Ok(begin)
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
