//! Compares a table with its topics: rows without a record, rows with several, and records in the wrong order.
//!
//! [`Comparison`] takes rows first and then records, and returns the findings. [`RecordReader`] reads topics to their
//! ends, repeatedly while records are missing.
//!
//! Memory holds id, key and order of each compared row, and no record, except records whose id no row has. This is
//! about 120 bytes for each row (for a moment twice that, while the map grows) and 80 for each key. Ids and keys that
//! are neither UUIDs nor integers also take the bytes of their text. No payload is kept.

mod compare;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

pub(crate) use self::compare::{Comparison, Counts, Delivered, Example, Findings, Outbox};
use crate::error::Result;
use crate::route::REPLAY_HEADER;
use crate::sink::kafka::options::Options;
use crate::sink::kafka::topic_reader::{Isolation, OffsetRanges, TopicReader, TopicRecord};

/// The pause between two reads of topics that lack records.
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

/// Reads topics into a [`Comparison`], without consumer group and commits. Blocks: it needs a thread of its own.
pub(crate) struct RecordReader {
    reader: TopicReader,
    id_headers: Vec<String>,
    /// The earliest time of the records to read, in milliseconds since the Unix epoch.
    since_ms: Option<i64>,
    /// By topic and partition, the offset after the last record that was read.
    read: BTreeMap<String, BTreeMap<i32, i64>>,
    cut: BTreeSet<String>,
}

impl RecordReader {
    /// `options` are those of [`Options::reader`]. `id_headers` name the headers that may carry an event's id; the
    /// first one that a record has counts. With `since_ms`, the reader skips records with an earlier timestamp, where
    /// the broker has an offset for the time.
    pub(crate) fn new(options: Options, id_headers: Vec<String>, since_ms: Option<i64>) -> Result<RecordReader> {
        let reader = TopicReader::open(options, Isolation::ReadCommitted, None)?;
        Ok(RecordReader { reader, id_headers, since_ms, read: BTreeMap::new(), cut: BTreeSet::new() })
    }

    /// Reads every topic of `comparison` up to the end that it has at the start of its read. Then reads the topics with
    /// missing records again, until `deadline`. Records that are missing afterwards were not there at the deadline.
    pub(crate) fn read(
        &mut self,
        comparison: &mut Comparison,
        deadline: Instant,
        say: &mut dyn FnMut(&Reading<'_>),
    ) -> Result<()> {
        let topics: Vec<String> = comparison.topics().map(str::to_owned).collect();
        let mut left: Vec<&String> = topics.iter().collect();
        loop {
            let is_last = Instant::now() >= deadline;
            for (at, topic) in left.iter().enumerate() {
                let begun = Reading { topic, number: at + 1, topics: left.len(), records: 0, of: 0 };
                self.topic(begun, comparison, say)?;
            }
            left.retain(|topic| comparison.owed(topic) > 0);
            if left.is_empty() || is_last {
                return Ok(());
            }
            std::thread::sleep(PAUSE.min(deadline.saturating_duration_since(Instant::now())));
        }
    }

    /// The topics that do not exist, and the read topics whose first records are deleted.
    pub(crate) fn absent_and_cut(&self) -> (Vec<String>, Vec<String>) {
        let absent = self.read.iter().filter(|(_, partitions)| partitions.is_empty()).map(|(topic, _)| topic.clone());
        (absent.collect(), self.cut.iter().cloned().collect())
    }

    fn topic(
        &mut self,
        mut reading: Reading<'_>,
        into: &mut Comparison,
        say: &mut dyn FnMut(&Reading<'_>),
    ) -> Result<()> {
        let topic = reading.topic;
        let read = self.read.get(topic).cloned().unwrap_or_default();
        let spans = self.unread(topic, &read)?;
        reading.of = spans.values().map(|span| u64::try_from(span.end - span.start).unwrap_or_default()).sum();
        self.reader.read(topic, &spans, &mut |message| {
            into.record(topic, &self.delivered(&message));
            reading.records += 1;
            say(&reading);
            ControlFlow::Continue(())
        })?;
        let ends = spans.into_iter().map(|(id, span)| (id, span.end));
        self.read.entry(topic.to_owned()).or_default().extend(ends);
        Ok(())
    }

    /// The offsets of `topic` after those in `read`, up to its present ends.
    fn unread(&mut self, topic: &str, read: &BTreeMap<i32, i64>) -> Result<OffsetRanges> {
        let mut spans = self.reader.spans(topic)?;
        let mut fresh = spans.clone();
        fresh.retain(|id, _| !read.contains_key(id));
        if let Some(since_ms) = self.since_ms {
            fresh = self.reader.since(topic, fresh, since_ms)?;
        }
        for (id, span) in &mut spans {
            let Some(begin) = fresh.get(id).map(|fresh| fresh.start) else {
                span.start = read.get(id).copied().unwrap_or(span.start).min(span.end);
                continue;
            };
            let may_lack_records = self.since_ms.is_none() || !span.is_empty();
            if span.start > 0 && begin == span.start && may_lack_records {
                self.cut.insert(topic.to_owned());
            }
            span.start = begin;
        }
        Ok(spans)
    }

    fn delivered<'m>(&self, message: &TopicRecord<'m>) -> Delivered<'m> {
        let headers = message.headers.as_deref().unwrap_or_default();
        let value = |name: &str| headers.iter().find(|(found, _)| *found == name);
        Delivered {
            partition: message.partition,
            offset: message.offset,
            key: message.key,
            id: self.id_headers.iter().find_map(|name| value(name)?.1),
            is_replay: value(REPLAY_HEADER).is_some(),
        }
    }
}
