//! The topic, read from its beginning to the end it has. Blocks; meant for a thread of its own.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::metadata::MetadataPartition;
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{Offset, TopicPartitionList};

use super::letter::{At, Incoming};
use crate::error::{Error, Kind, Result};
use crate::sink::close_aside;
use crate::sink::consumer::{heals, is_young};
use crate::sink::faults::{self, Subject};
use crate::sink::options::Options;
use crate::sink::reading::{self, Listening};

/// librdkafka wants a group even where nobody joins one; nothing is ever committed in its name.
const GROUP: &str = "walrelay-dead-letters";
/// How long a question may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(15);
/// Reading gives up after this long without a record or an end.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);
/// How soon a partition without a leader is asked for again.
const LEADER_PAUSE: Duration = Duration::from_millis(100);

/// By partition, the offsets to read.
pub type Spans = BTreeMap<i32, Range<i64>>;

/// Reads one topic. In memory are the 16 MiB that are fetched ahead, and a record.
pub struct Reader {
    /// There until it is dropped.
    client: Option<BaseConsumer<Listening>>,
    topic: String,
    spans: Spans,
}

impl Reader {
    /// Looks at `topic`, which ends for this reader where it ends now. `None` where there is no such topic.
    ///
    /// # Errors
    /// [`Kind::Config`] where no client can be made of `options`, which are those of [`Options::reader`];
    /// [`Kind::KafkaUnreachable`] and [`Kind::KafkaRefused`].
    pub fn open(options: Options, topic: &str) -> Result<Option<Reader>> {
        let client = reading::reader(options, GROUP)?;
        let mut reader = Reader { client: Some(client), topic: topic.to_owned(), spans: Spans::new() };
        Ok(reader.look()?.then_some(reader))
    }

    /// All that is in the topic.
    pub fn spans(&self) -> &Spans {
        &self.spans
    }

    fn client(&self) -> Result<&BaseConsumer<Listening>> {
        self.client.as_ref().ok_or_else(|| Error::new(Kind::Bug, "the reader of dead letters was closed"))
    }

    fn explain(&self, error: &KafkaError) -> Error {
        match self.client() {
            Ok(client) => reading::explain(client, error, &self.topic),
            Err(closed) => closed,
        }
    }

    fn look(&mut self) -> Result<bool> {
        use RDKafkaErrorCode as Code;
        let asked = self.client()?.fetch_metadata(Some(&self.topic), ASK_TIMEOUT);
        let metadata = asked.map_err(|error| self.explain(&error))?;
        let Some(found) = metadata.topics().iter().find(|found| found.name() == self.topic) else { return Ok(false) };
        match found.error().map(Code::from) {
            None => {}
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::LeaderNotAvailable) => return Ok(false),
            Some(code) => {
                let subject = Subject { topic: Some(&self.topic), ..Subject::default() };
                return Err(faults::explain(code, subject));
            }
        }
        for id in found.partitions().iter().map(MetadataPartition::id) {
            let span = self.span(id)?;
            self.spans.insert(id, span);
        }
        Ok(!self.spans.is_empty())
    }

    /// Where a partition begins and ends. One that came into being this moment has a leader the next.
    fn span(&self, id: i32) -> Result<Range<i64>> {
        let until = Instant::now() + ASK_TIMEOUT;
        loop {
            match self.client()?.fetch_watermarks(&self.topic, id, ASK_TIMEOUT) {
                Err(error) if is_young(&error) && Instant::now() < until => std::thread::sleep(LEADER_PAUSE),
                Err(error) => return Err(self.explain(&error)),
                Ok((low, end)) => return Ok(low..end),
            }
        }
    }

    /// What of the topic may be as young as `since_ms`, in milliseconds since the Unix epoch, as far as the broker can
    /// tell.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn since(&self, since_ms: i64) -> Result<Spans> {
        let mut spans = self.spans.clone();
        let mut asked = TopicPartitionList::new();
        for id in spans.keys() {
            let added = asked.add_partition_offset(&self.topic, *id, Offset::Offset(since_ms.max(0)));
            added.map_err(|error| self.explain(&error))?;
        }
        let found = self.client()?.offsets_for_times(asked, ASK_TIMEOUT).map_err(|error| self.explain(&error))?;
        let begin = |element: &TopicPartitionListElem<'_>| match element.offset() {
            Offset::Offset(offset) => Some((element.partition(), offset)),
            // None is as young.
            Offset::End => Some((element.partition(), i64::MAX)),
            Offset::Beginning | Offset::Stored | Offset::Invalid | Offset::OffsetTail(_) => None,
        };
        for (id, begin) in found.elements().iter().filter_map(begin) {
            if let Some(span) = spans.get_mut(&id) {
                *span = begin.clamp(span.start, span.end)..span.end;
            }
        }
        Ok(spans)
    }

    /// Reads `spans`, each in its order, until `take` says that it is enough.
    ///
    /// # Errors
    /// [`Kind::KafkaUnreachable`] and [`Kind::KafkaRefused`].
    pub fn read(&self, spans: &Spans, take: &mut dyn FnMut(&Incoming<'_>) -> ControlFlow<()>) -> Result<()> {
        let mut left: Spans =
            spans.iter().filter(|(_, span)| !span.is_empty()).map(|(id, span)| (*id, span.clone())).collect();
        if left.is_empty() {
            return Ok(());
        }
        let client = self.client()?;
        let mut assignment = TopicPartitionList::new();
        for (id, span) in &left {
            let added = assignment.add_partition_offset(&self.topic, *id, Offset::Offset(span.start));
            added.map_err(|error| self.explain(&error))?;
        }
        client.assign(&assignment).map_err(|error| self.explain(&error))?;
        let mut heard = Instant::now();
        while !left.is_empty() {
            if heard.elapsed() > SILENCE_TIMEOUT {
                let (topic, seconds) = (&self.topic, SILENCE_TIMEOUT.as_secs());
                let cause = format!("topic {topic} could not be read to its end: nothing came for {seconds} s");
                return Err(reading::refusal(client).unwrap_or_else(|| Error::new(Kind::KafkaUnreachable, cause)));
            }
            let (id, next) = match client.poll(POLL) {
                None => continue,
                Some(Ok(message)) => {
                    let (id, offset) = (message.partition(), message.offset());
                    if left.get(&id).is_some_and(|span| span.contains(&offset)) && take(&incoming(&message)).is_break()
                    {
                        break;
                    }
                    (id, offset.saturating_add(1))
                }
                // The last offsets may hold nothing that can be read: compacted away, or a transaction's end.
                Some(Err(KafkaError::PartitionEOF(id))) => (id, i64::MAX),
                Some(Err(error)) if heals(&error) => {
                    tracing::debug!(topic = self.topic, %error, "reading");
                    continue;
                }
                Some(Err(error)) => return Err(self.explain(&error)),
            };
            heard = Instant::now();
            if let Some(span) = left.get_mut(&id) {
                span.start = span.start.max(next);
                if span.is_empty() {
                    left.remove(&id);
                }
            }
        }
        client.unassign().map_err(|error| self.explain(&error))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            close_aside(client);
        }
    }
}

fn incoming<'m>(message: &'m BorrowedMessage<'_>) -> Incoming<'m> {
    Incoming {
        at: At { partition: message.partition(), offset: message.offset() },
        time_ms: message.timestamp().to_millis(),
        key: message.key(),
        value: message.payload(),
        headers: reading::headers(message),
    }
}
