//! Reads topics between known offsets, in no consumer group. Blocks; meant for a thread of its own.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Headers as _, Message as _};
use rdkafka::metadata::{MetadataBroker, MetadataPartition};
use rdkafka::{Offset, TopicPartitionList};

use super::client::close_aside;
use super::faults::{self, Subject, code};
use super::log_lines;
use super::options::Options;
use super::properties::Redactor;
use crate::error::{Error, Kind, Result};

/// How long one question to the brokers may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(15);
/// Reading gives up after this long without a record or the end of a partition.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long one call of librdkafka waits for a record.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);
/// How soon a partition without a leader is asked for again.
const LEADER_PAUSE: Duration = Duration::from_millis(100);
/// librdkafka wants the name of a group even where nobody joins one; nothing is ever committed in its name.
const GROUP: &str = "walrelay-reader";
/// Records that are fetched ahead, in KiB. A relay holds them beside what is in flight.
const AHEAD_KIB: &str = "8192";

/// By partition, the offsets to read.
pub(crate) type Spans = BTreeMap<i32, Range<i64>>;

/// A header's name and value.
pub(crate) type Header<'m> = (&'m str, Option<&'m [u8]>);

/// One record of a topic.
#[derive(Debug)]
pub(crate) struct Message<'m> {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    /// Milliseconds since the Unix epoch, where the record has a time.
    pub(crate) time_ms: Option<i64>,
    pub(crate) key: Option<&'m [u8]>,
    pub(crate) value: Option<&'m [u8]>,
    /// In order; `None` where a name is not UTF-8, which Kafka allows and rdkafka panics on.
    pub(crate) headers: Option<Vec<Header<'m>>>,
}

impl<'m> Message<'m> {
    fn of(message: &'m BorrowedMessage<'_>) -> Message<'m> {
        let read = |headers: &'m BorrowedHeaders| headers.iter().map(|header| (header.key, header.value)).collect();
        Message {
            partition: message.partition(),
            offset: message.offset(),
            time_ms: message.timestamp().to_millis(),
            key: message.key(),
            value: message.payload(),
            headers: message
                .headers()
                .map_or(Some(Vec::new()), |found| catch_unwind(AssertUnwindSafe(|| read(found))).ok()),
        }
    }
}

/// A topic and its cluster, as the metadata have them.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Ids of the brokers.
    pub(crate) brokers: Vec<i32>,
    /// Ids of the topic's partitions; none where there is no such topic.
    pub(crate) partitions: Vec<i32>,
    /// Replicas of the first partition.
    pub(crate) replicas: usize,
}

/// Which records a reader sees, and where a partition ends for that reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isolation {
    /// Those before the first transaction that is open.
    ReadCommitted,
    /// All.
    ReadUncommitted,
}

/// Reads topics. Up to 8 MiB of records are fetched ahead.
pub(crate) struct TopicReader {
    /// There until the reader is dropped.
    client: Option<BaseConsumer<Listening>>,
    /// When all of the reading has to be done.
    deadline: Option<Instant>,
}

impl TopicReader {
    /// Makes a reader, which is in no group, commits nothing and creates no topic. `options` are those of
    /// [`Options::reader`]. Without a `deadline`, a question to the brokers may take 15 s, and reading gives up after 30 s
    /// of silence.
    ///
    /// # Errors
    /// [`Kind::Config`] where no client can be made.
    pub(crate) fn open(mut options: Options, isolation: Isolation, deadline: Option<Instant>) -> Result<TopicReader> {
        let level = match isolation {
            Isolation::ReadCommitted => "read_committed",
            Isolation::ReadUncommitted => "read_uncommitted",
        };
        options
            .client
            .set("group.id", GROUP)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("isolation.level", level)
            .set("enable.partition.eof", "true")
            // Retention may delete the first records of a span while they are read.
            .set("auto.offset.reset", "earliest")
            .set("allow.auto.create.topics", "false")
            .set("queued.max.messages.kbytes", AHEAD_KIB);
        let client = options.client.create_with_context(Listening::new(options.redactor.clone()));
        Ok(TopicReader { client: Some(client.map_err(|error| options.creation_error(&error))?), deadline })
    }

    /// The topic's partitions and replicas, and the brokers. Does not create the topic.
    ///
    /// # Errors
    /// [`Kind::KafkaUnreachable`], [`Kind::KafkaRefused`] and [`Kind::TopicRefused`].
    pub(crate) fn layout(&self, topic: &str) -> Result<Layout> {
        use RDKafkaErrorCode as Code;
        let asked = self.client()?.fetch_metadata(Some(topic), self.time_left(topic, ASK_TIMEOUT)?);
        let metadata = asked.map_err(|error| self.explain(&error, topic))?;
        let brokers = metadata.brokers().iter().map(MetadataBroker::id).collect();
        let mut layout = Layout { brokers, partitions: Vec::new(), replicas: 0 };
        let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else { return Ok(layout) };
        match found.error().map(Code::from) {
            None => {
                layout.partitions = found.partitions().iter().map(MetadataPartition::id).collect();
                layout.replicas = found.partitions().first().map_or(0, |partition| partition.replicas().len());
                Ok(layout)
            }
            // A topic that is being made has no leader yet, and no partition.
            Some(
                Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::LeaderNotAvailable | Code::InvalidTopic,
            ) => Ok(layout),
            Some(code) => Err(self.explain(&KafkaError::MetadataFetch(code), topic)),
        }
    }

    /// The partitions of `topic`, from their first offset to the end they have now; none where there is no such topic.
    pub(crate) fn spans(&self, topic: &str) -> Result<Spans> {
        self.layout(topic)?.partitions.into_iter().map(|id| Ok((id, self.span(topic, id)?))).collect()
    }

    /// Where a partition of a topic that exists begins and ends. A broker that does not know the partition or its leader
    /// yet is asked again.
    pub(crate) fn span(&self, topic: &str, partition: i32) -> Result<Range<i64>> {
        use RDKafkaErrorCode as Code;
        let until = self.deadline.unwrap_or_else(|| Instant::now() + ASK_TIMEOUT);
        loop {
            let timeout = self.time_left(topic, ASK_TIMEOUT)?;
            let error = match self.client()?.fetch_watermarks(topic, partition, timeout) {
                Ok((low, high)) => return Ok(low..high),
                Err(error) => error,
            };
            let is_unknown = matches!(code(&error), Code::UnknownTopicOrPartition | Code::UnknownTopic);
            if Instant::now() >= until || !(is_young(&error) || is_unknown) {
                return Err(self.explain(&error, topic));
            }
            tracing::debug!(topic, partition, %error, "asking again where a partition ends");
            std::thread::sleep(LEADER_PAUSE);
        }
    }

    /// What of `spans` may be as young as `since_ms`, in milliseconds since the Unix epoch, as far as the brokers can tell.
    pub(crate) fn since(&self, topic: &str, mut spans: Spans, since_ms: i64) -> Result<Spans> {
        if spans.is_empty() {
            return Ok(spans);
        }
        let mut asked = TopicPartitionList::new();
        for id in spans.keys() {
            let added = asked.add_partition_offset(topic, *id, Offset::Offset(since_ms.max(0)));
            added.map_err(|error| self.explain(&error, topic))?;
        }
        let found = self.client()?.offsets_for_times(asked, self.time_left(topic, ASK_TIMEOUT)?);
        for element in found.map_err(|error| self.explain(&error, topic))?.elements() {
            let begin = match element.offset() {
                Offset::Offset(offset) => offset,
                // No record is as young.
                Offset::End => i64::MAX,
                Offset::Beginning | Offset::Stored | Offset::Invalid | Offset::OffsetTail(_) => continue,
            };
            if let Some(span) = spans.get_mut(&element.partition()) {
                span.start = begin.clamp(span.start, span.end);
            }
        }
        Ok(spans)
    }

    /// Reads `spans`, each in order, until `take` breaks. A span may hold fewer records than offsets: some are compacted
    /// away, and some mark the end of a transaction.
    pub(crate) fn read(
        &self,
        topic: &str,
        spans: &Spans,
        take: &mut dyn FnMut(Message<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut left = spans.clone();
        left.retain(|_, span| !span.is_empty());
        if left.is_empty() {
            return Ok(());
        }
        let client = self.client()?;
        let mut assignment = TopicPartitionList::new();
        for (id, span) in &left {
            let added = assignment.add_partition_offset(topic, *id, Offset::Offset(span.start));
            added.map_err(|error| self.explain(&error, topic))?;
        }
        client.assign(&assignment).map_err(|error| self.explain(&error, topic))?;
        let mut heard = Instant::now();
        while !left.is_empty() {
            if heard.elapsed() > SILENCE_TIMEOUT {
                let seconds = SILENCE_TIMEOUT.as_secs();
                let cause = format!("topic {topic} could not be read to its end: nothing came for {seconds} s");
                return Err(refusal(client).unwrap_or_else(|| Error::new(Kind::KafkaUnreachable, cause)));
            }
            let (id, next) = match client.poll(self.time_left(topic, POLL_TIMEOUT)?) {
                None => continue,
                // It was fetched before this topic was assigned.
                Some(Ok(message)) if message.topic() != topic => continue,
                Some(Ok(message)) => {
                    let (id, offset) = (message.partition(), message.offset());
                    let is_asked_for = left.get(&id).is_some_and(|span| span.contains(&offset));
                    if is_asked_for && take(Message::of(&message)).is_break() {
                        break;
                    }
                    (id, offset.saturating_add(1))
                }
                // The last offsets may hold nothing that can be read.
                Some(Err(KafkaError::PartitionEOF(id))) => (id, i64::MAX),
                Some(Err(error)) if heals(&error) => {
                    tracing::debug!(topic, %error, "reading");
                    continue;
                }
                Some(Err(error)) => return Err(self.explain(&error, topic)),
            };
            heard = Instant::now();
            if let Some(span) = left.get_mut(&id) {
                span.start = span.start.max(next);
                if span.is_empty() {
                    left.remove(&id);
                }
            }
        }
        client.unassign().map_err(|error| self.explain(&error, topic))
    }

    fn client(&self) -> Result<&BaseConsumer<Listening>> {
        self.client.as_ref().ok_or_else(|| Error::new(Kind::Bug, "the reader of a topic was closed"))
    }

    /// What is left until the deadline, `limit` at most.
    fn time_left(&self, topic: &str, limit: Duration) -> Result<Duration> {
        let Some(deadline) = self.deadline else { return Ok(limit) };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::new(Kind::KafkaUnreachable, format!("topic {topic} could not be read in time")));
        }
        Ok(left.min(limit))
    }

    /// The error in the operator's words. Where nothing answers, a broker may have said why.
    fn explain(&self, error: &KafkaError, topic: &str) -> Error {
        let code = faults::of_known(code(error));
        let explained = faults::explain(code, Subject { topic: Some(topic), ..Subject::default() });
        if code == RDKafkaErrorCode::TopicAuthorizationFailed {
            return explained.remedy(format!(
                "grant what reading needs: kafka-acls --add --allow-principal User:… --operation Read --operation Describe \
                 --topic {topic}"
            ));
        }
        if faults::kind(code) != Kind::KafkaUnreachable {
            return explained;
        }
        self.client.as_ref().and_then(refusal).unwrap_or(explained)
    }
}

impl Drop for TopicReader {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            close_aside(client);
        }
    }
}

/// Logs what librdkafka says, and keeps why a broker refuses the client.
pub(super) struct Listening {
    redactor: Redactor,
    refusal: Mutex<Option<Error>>,
}

impl Listening {
    pub(super) fn new(redactor: Redactor) -> Listening {
        Listening { redactor, refusal: Mutex::new(None) }
    }
}

impl ClientContext for Listening {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        log_lines::write(&self.redactor, level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let reason = self.redactor.clean(reason);
        tracing::debug!(target: "librdkafka", "{reason}");
        let code = code(&error);
        let refused = (faults::kind(code) == Kind::KafkaRefused).then(|| faults::explain(code, Subject::default()));
        let refused = refused.or_else(|| faults::certificate_refusal(&reason));
        if let (Some(refused), Ok(mut refusal)) = (refused, self.refusal.lock()) {
            *refusal = Some(refused);
        }
    }
}

impl ConsumerContext for Listening {}

/// Why a broker refuses the client, if one has said so.
fn refusal(client: &BaseConsumer<Listening>) -> Option<Error> {
    client.context().refusal.lock().ok().and_then(|refusal| refusal.clone())
}

/// Whether librdkafka goes on by itself. Errors of a group do not matter to a client that is in none.
fn heals(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    let about_group = [
        Code::GroupAuthorizationFailed,
        Code::NotCoordinator,
        Code::CoordinatorNotAvailable,
        Code::CoordinatorLoadInProgress,
    ];
    let passing = [Code::BrokerTransportFailure, Code::AllBrokersDown, Code::Resolve, Code::OperationTimedOut];
    about_group.contains(&code(error)) || passing.contains(&code(error)) || is_young(error)
}

/// Whether a partition that was seen has no leader yet, or another one by now.
fn is_young(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(code(error), Code::LeaderNotAvailable | Code::NotLeaderForPartition | Code::UnknownPartition)
}
