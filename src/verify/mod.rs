//! Compares a table with its topics: rows without a record, rows with several, and records in the wrong order.
//!
//! [`Comparison`] takes rows first, then records, and has the outcome. [`RecordReader`] reads topics to their ends as often as it
//! takes.
//!
//! Of a row, its id, key and place in the order are kept; of a record nothing, unless no row has its id. So memory
//! grows with the rows that are compared: some 120 bytes for each, twice that for a moment while the map of them grows,
//! some 80 for each key, and the text of ids and keys that are neither UUIDs nor whole numbers. No payload is kept.

mod compare;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

pub(crate) use self::compare::{Comparison, Counts, Delivered, Example, Findings, Outbox};
use crate::error::Result;
use crate::route::REPLAY_HEADER;
use crate::sink::kafka::options::Options;
use crate::sink::kafka::topic_reader::{Isolation, Message, Spans, TopicReader};

/// Between two looks for what has not arrived yet.
const PAUSE: Duration = Duration::from_millis(300);

/// Takes the progress: the topic, its number of how many, and its records so far.
pub(crate) type Progress<'p> = &'p mut dyn FnMut(&str, usize, usize, u64);

/// Reads topics into a [`Comparison`]. It is in no consumer group, commits nothing and makes no topic. Blocks; meant for a
/// thread of its own.
pub(crate) struct RecordReader {
    reader: TopicReader,
    id_headers: Vec<String>,
    /// Where to begin in time, in milliseconds since the Unix epoch.
    since_ms: Option<i64>,
    /// By topic and partition, the offset behind what was read.
    read: BTreeMap<String, BTreeMap<i32, i64>>,
    cut: BTreeSet<String>,
}

impl RecordReader {
    /// `options` are those of [`Options::reader`]; `id_headers` name the headers that may carry an event's id, of which
    /// the first that a record has counts. With `since_ms`, records with an earlier timestamp are left out where
    /// the broker can tell.
    pub(crate) fn new(options: Options, id_headers: Vec<String>, since_ms: Option<i64>) -> Result<RecordReader> {
        let reader = TopicReader::open(options, Isolation::ReadCommitted, None)?;
        Ok(RecordReader { reader, id_headers, since_ms, read: BTreeMap::new(), cut: BTreeSet::new() })
    }

    /// Reads every topic of `comparison` to the end it has when its turn comes; then, until `deadline`, again those to
    /// which a row is owed. What is owed afterwards was not there when the deadline had passed.
    pub(crate) fn read(
        &mut self,
        comparison: &mut Comparison,
        deadline: Instant,
        progress: Progress<'_>,
    ) -> Result<()> {
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
    pub(crate) fn absent_and_cut(&self) -> (Vec<String>, Vec<String>) {
        let absent = self.read.iter().filter(|(_, partitions)| partitions.is_empty()).map(|(topic, _)| topic.clone());
        (absent.collect(), self.cut.iter().cloned().collect())
    }

    /// Reads what came to `topic` since it was read last.
    fn topic(&mut self, topic: &str, into: &mut Comparison, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let read = self.read.get(topic).cloned().unwrap_or_default();
        let spans = self.unread(topic, &read)?;
        let mut records = 0;
        self.reader.read(topic, &spans, &mut |message| {
            into.record(topic, &self.delivered(&message));
            records += 1;
            progress(records);
            ControlFlow::Continue(())
        })?;
        let ends = spans.into_iter().map(|(id, span)| (id, span.end));
        self.read.entry(topic.to_owned()).or_default().extend(ends);
        Ok(())
    }

    /// What of `topic` is behind the offsets in `read`, up to the ends it has now.
    fn unread(&mut self, topic: &str, read: &BTreeMap<i32, i64>) -> Result<Spans> {
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

    fn delivered<'m>(&self, message: &Message<'m>) -> Delivered<'m> {
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
