//! Clients beside the producer: readers of topics, in no consumer group, and one that creates
//! topics. All calls block; meant for a thread of its own in a Tokio runtime.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication, TopicResult};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Headers as _, Message as _};
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{Offset, TopicPartitionList};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::context::{reason_in, write_log};
use super::faults::{self, Subject, code};
use super::native::{self, Resource, Settings};
use super::options::Options;
use super::properties::Redactor;
use crate::sink::{Extent, ReadTopics, Step, TailReader, TakeRecord};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::route::Record;

/// How long one question to the brokers may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(15);
/// Longer than any question takes by its own deadline.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(90);
/// How long one answer of the admin client may take.
pub(super) const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Reading gives up after this long without a record or the end of a partition.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long one call of librdkafka waits for a record.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);
/// How soon a topic that does not exist is looked for again.
const ABSENT_PAUSE: Duration = Duration::from_millis(300);
/// How soon a partition without a leader is asked for again.
const LEADER_PAUSE: Duration = Duration::from_millis(100);
const FETCH_WAIT: &str = "fetch.wait.max.ms";
/// How long a fetch waits for a record at the broker, and with it each question that follows it on
/// the connection.
const FETCH_WAIT_MS: &str = "50";
/// The same where nothing is followed.
const TAIL_FETCH_WAIT_MS: &str = "1";
/// librdkafka wants the name of a group even where nobody joins one; nothing is ever committed in
/// its name.
const GROUP: &str = "walrelay-reader";
/// Records that are fetched ahead, in KiB. A relay holds them beside what is in flight.
const AHEAD_KIB: &str = "8192";

/// Runs `work`, which blocks, off the runtime, for [`ANSWER_MAX`] at most.
///
/// Deadlines of librdkafka are times of day: a clock that is set back by an hour puts them off by
/// an hour (<https://github.com/confluentinc/librdkafka/issues/2145>). Nothing sets the clock of
/// this one. A thread waits for `work` until it ends.
pub(crate) async fn off_runtime<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::time::timeout(ANSWER_MAX, spawn_blocking(work)).await {
        Ok(done) => done.map_err(|error| Error::new(Kind::Bug, error))?,
        Err(_) => Err(
            Error::new(Kind::BusUnreachable, "the Kafka client stands still")
                .remedy("see whether the clock of this host was set back"),
        ),
    }
}

/// By partition, the offsets to read.
pub(crate) type OffsetRanges = BTreeMap<i32, Range<i64>>;

/// The number of offsets: at least that of the records.
fn offsets(spans: &OffsetRanges) -> u64 {
    spans
        .values()
        .map(|span| u64::try_from(span.end.saturating_sub(span.start)).unwrap_or_default())
        .sum()
}

type Header<'m> = (&'m str, Option<&'m [u8]>);

/// A record as it is read back.
#[derive(Debug)]
pub struct TopicRecord<'m> {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) key: Option<&'m [u8]>,
    pub(crate) value: Option<&'m [u8]>,
    /// In order; `None` where a name is not UTF-8, which Kafka allows and rdkafka panics on.
    pub(crate) headers: Option<Vec<Header<'m>>>,
}

impl<'m> TopicRecord<'m> {
    fn of(message: &'m BorrowedMessage<'_>) -> TopicRecord<'m> {
        let read = |headers: &'m BorrowedHeaders| {
            headers
                .iter()
                .map(|header| (header.key, header.value))
                .collect()
        };
        TopicRecord {
            partition: message.partition(),
            offset: message.offset(),
            key: message.key(),
            value: message.payload(),
            headers: message.headers().map_or(Some(Vec::new()), |found| {
                catch_unwind(AssertUnwindSafe(|| read(found))).ok()
            }),
        }
    }
}

/// A topic and its cluster, as the metadata have them.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) brokers: Vec<i32>,
    /// Ids of the topic's partitions; none where there is no such topic.
    pub(crate) partitions: Vec<i32>,
    /// Replicas of the first partition.
    pub(crate) replicas: usize,
}

/// Which records a reader sees, and where a partition ends for that reader.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Isolation {
    /// Those before the first transaction that is open.
    ReadCommitted,
    ReadUncommitted,
}

/// Reads topics. Up to 8 MiB of records are fetched ahead.
pub(crate) struct TopicReader {
    /// Set until the reader is dropped.
    client: Option<BaseConsumer<Listening>>,
    /// The time by which all reading has to be done.
    deadline: Option<Instant>,
}

impl TopicReader {
    /// Makes a reader, which is in no group, commits nothing and creates no topic. `options` are
    /// those of [`Options::reader`]. Without a `deadline`, a question may take 15 s, and reading
    /// gives up after 30 s of silence.
    pub(crate) fn open(
        mut options: Options,
        isolation: Isolation,
        deadline: Option<Instant>,
    ) -> Result<TopicReader> {
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
        if options.client.get(FETCH_WAIT).is_none() {
            options.client.set(FETCH_WAIT, FETCH_WAIT_MS);
        }
        let client = options
            .client
            .create_with_context(Listening::new(options.redactor.clone()));
        Ok(TopicReader {
            client: Some(client.map_err(|error| options.creation_error(&error))?),
            deadline,
        })
    }

    /// A reader for [`TailReader`]. The question about the next topic follows the last fetch of the
    /// one before, which therefore waits for no record.
    pub(super) fn of_tails(mut options: Options) -> Result<TopicReader> {
        options.client.set(FETCH_WAIT, TAIL_FETCH_WAIT_MS);
        TopicReader::open(options, Isolation::ReadCommitted, None)
    }

    /// The topic's partitions and replicas, and the brokers. Does not create the topic.
    pub(crate) fn layout(&self, topic: &str) -> Result<Layout> {
        use RDKafkaErrorCode as Code;
        let timeout = self.time_left(topic, ASK_TIMEOUT)?;
        let asked = native::metadata(self.client()?.client(), Some(topic), timeout);
        let metadata =
            asked.map_err(|code| self.explain(&KafkaError::MetadataFetch(code), topic))?;
        let mut layout = Layout {
            brokers: metadata.brokers,
            partitions: Vec::new(),
            replicas: 0,
        };
        let Some(found) = metadata.topics.iter().find(|found| found.name == topic) else {
            return Ok(layout);
        };
        match found.error {
            None => {
                layout.partitions = found
                    .partitions
                    .iter()
                    .map(|partition| partition.id)
                    .collect();
                layout.replicas = found
                    .partitions
                    .first()
                    .map_or(0, |partition| partition.replicas);
                Ok(layout)
            }
            // A topic that is being made has no leader yet, and no partition.
            Some(
                Code::UnknownTopicOrPartition
                | Code::UnknownTopic
                | Code::LeaderNotAvailable
                | Code::InvalidTopic,
            ) => Ok(layout),
            Some(code) => Err(self.explain(&KafkaError::MetadataFetch(code), topic)),
        }
    }

    /// The partitions of `topic`, from their first offset to the end they have now; none where
    /// there is no such topic.
    pub(crate) fn spans(&self, topic: &str) -> Result<OffsetRanges> {
        self.spans_of(topic, &self.layout(topic)?.partitions)
    }

    /// Where a partition of a topic begins and ends.
    pub(crate) fn span(&self, topic: &str, partition: i32) -> Result<Range<i64>> {
        let spans = self.spans_of(topic, &[partition])?;
        spans
            .into_values()
            .next()
            .ok_or_else(|| Error::new(Kind::Bug, "a partition has no span"))
    }

    /// Where these partitions begin and end. A broker that does not know one or its leader yet is
    /// asked again.
    fn spans_of(&self, topic: &str, partitions: &[i32]) -> Result<OffsetRanges> {
        use RDKafkaErrorCode as Code;
        let until = self
            .deadline
            .unwrap_or_else(|| Instant::now() + ASK_TIMEOUT);
        loop {
            let timeout = self.time_left(topic, ASK_TIMEOUT)?;
            let error = match watermarks(self.client()?, topic, partitions, timeout) {
                Ok(spans) => return Ok(spans),
                Err(error) => error,
            };
            let is_unknown = matches!(
                code(&error),
                Code::UnknownTopicOrPartition | Code::UnknownTopic
            );
            if Instant::now() >= until || !(is_young(&error) || is_unknown) {
                return Err(self.explain(&error, topic));
            }
            tracing::debug!(topic, %error, "asking again where the partitions end");
            std::thread::sleep(LEADER_PAUSE);
        }
    }

    /// The part of `spans` that may be as young as `since_ms`, in milliseconds since the Unix
    /// epoch, by the brokers' answers.
    pub(crate) fn since(
        &self,
        topic: &str,
        mut spans: OffsetRanges,
        since_ms: i64,
    ) -> Result<OffsetRanges> {
        if spans.is_empty() {
            return Ok(spans);
        }
        let mut asked = TopicPartitionList::new();
        for id in spans.keys() {
            let added = asked.add_partition_offset(topic, *id, Offset::Offset(since_ms.max(0)));
            added.map_err(|error| self.explain(&error, topic))?;
        }
        let found = self
            .client()?
            .offsets_for_times(asked, self.time_left(topic, ASK_TIMEOUT)?);
        for element in found
            .map_err(|error| self.explain(&error, topic))?
            .elements()
        {
            let begin = match element.offset() {
                Offset::Offset(offset) => offset,
                // No record is as young.
                Offset::End => i64::MAX,
                Offset::Beginning | Offset::Stored | Offset::Invalid | Offset::OffsetTail(_) => {
                    continue;
                }
            };
            if let Some(span) = spans.get_mut(&element.partition()) {
                span.start = begin.clamp(span.start, span.end);
            }
        }
        Ok(spans)
    }

    /// Reads `spans`, each in order, until `take` breaks. Some offsets are compacted away, or mark
    /// the end of a transaction.
    pub(crate) fn read(
        &self,
        topic: &str,
        spans: &OffsetRanges,
        take: &mut dyn FnMut(TopicRecord<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut left = spans.clone();
        left.retain(|_, span| !span.is_empty());
        if left.is_empty() {
            return Ok(());
        }
        self.assign(topic, &left)?;
        let mut heard = Instant::now();
        while !left.is_empty() {
            if heard.elapsed() > SILENCE_TIMEOUT {
                let seconds = SILENCE_TIMEOUT.as_secs();
                let cause = format!(
                    "topic {topic} could not be read to its end: nothing came for {seconds} s"
                );
                return Err(self
                    .client()?
                    .context()
                    .why(Error::new(Kind::BusUnreachable, cause)));
            }
            let (id, next) = match self.hear(topic)? {
                Heard::Nothing => continue,
                Heard::Record(message) => {
                    let id = message.partition();
                    let offset = message.offset();
                    let is_asked_for = left.get(&id).is_some_and(|span| span.contains(&offset));
                    if is_asked_for && take(TopicRecord::of(&message)).is_break() {
                        break;
                    }
                    (id, offset.saturating_add(1))
                }
                // The last offsets may hold nothing that can be read.
                Heard::End(id) => (id, i64::MAX),
            };
            heard = Instant::now();
            if let Some(span) = left.get_mut(&id) {
                span.start = span.start.max(next);
                if span.is_empty() {
                    left.remove(&id);
                }
            }
        }
        self.client()?
            .unassign()
            .map_err(|error| self.explain(&error, topic))
    }

    /// Reads on from the first offsets of `spans`, beyond their ends, until `take` breaks. `take`
    /// gets each record as it comes, and nothing where none has come for 100 ms or at the end of a
    /// partition. Returns where it has stopped.
    fn follow(
        &self,
        topic: &str,
        mut spans: OffsetRanges,
        take: &mut dyn FnMut(Option<TopicRecord<'_>>) -> ControlFlow<()>,
    ) -> Result<OffsetRanges> {
        self.assign(topic, &spans)?;
        loop {
            let heard = self.hear(topic)?;
            let message = if let Heard::Record(message) = &heard {
                Some(message)
            } else {
                None
            };
            if let Some(message) = message
                && let Some(span) = spans.get_mut(&message.partition())
            {
                span.start = message.offset().saturating_add(1);
            }
            if take(message.map(TopicRecord::of)).is_break() {
                break;
            }
        }
        // A question to a broker waits behind each fetch that is under way.
        self.client()?
            .unassign()
            .map_err(|error| self.explain(&error, topic))?;
        Ok(spans)
    }

    /// Reads the partitions of `topic`, each from its start in `from`, to the ends they have now.
    /// Returns what that was.
    fn read_on(
        &self,
        topic: &str,
        from: &OffsetRanges,
        take: &mut dyn FnMut(TopicRecord<'_>),
    ) -> Result<OffsetRanges> {
        let mut spans = self.spans(topic)?;
        for (id, span) in &mut spans {
            span.start = from
                .get(id)
                .map_or(span.start, |from| from.start.clamp(span.start, span.end));
        }
        self.read(topic, &spans, &mut |record| {
            take(record);
            ControlFlow::Continue(())
        })?;
        Ok(spans)
    }

    fn assign(&self, topic: &str, spans: &OffsetRanges) -> Result<()> {
        let explain = |error| self.explain(&error, topic);
        let mut assignment = TopicPartitionList::new();
        for (id, span) in spans {
            assignment
                .add_partition_offset(topic, *id, Offset::Offset(span.start))
                .map_err(explain)?;
        }
        self.client()?.assign(&assignment).map_err(explain)
    }

    /// Waits for the next record of the topic that was assigned last.
    fn hear(&self, topic: &str) -> Result<Heard<'_>> {
        match self.client()?.poll(self.time_left(topic, POLL_TIMEOUT)?) {
            None => Ok(Heard::Nothing),
            // It was fetched before this topic was assigned.
            Some(Ok(message)) if message.topic() != topic => Ok(Heard::Nothing),
            Some(Ok(message)) => Ok(Heard::Record(message)),
            Some(Err(KafkaError::PartitionEOF(id))) => Ok(Heard::End(id)),
            Some(Err(error)) if heals(&error) => {
                tracing::debug!(topic, %error, "reading");
                Ok(Heard::Nothing)
            }
            Some(Err(error)) => Err(self.explain(&error, topic)),
        }
    }

    fn client(&self) -> Result<&BaseConsumer<Listening>> {
        self.client
            .as_ref()
            .ok_or_else(|| Error::new(Kind::Bug, "the reader of a topic was closed"))
    }

    /// The time until the deadline, `limit` at most.
    fn time_left(&self, topic: &str, limit: Duration) -> Result<Duration> {
        let Some(deadline) = self.deadline else {
            return Ok(limit);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let error = Error::new(
                Kind::BusUnreachable,
                format!("topic {topic} could not be read in time"),
            );
            return Err(self.client()?.context().why(error));
        }
        Ok(left.min(limit))
    }

    /// The error in the operator's words. Where nothing answers, a broker may have said why.
    fn explain(&self, error: &KafkaError, topic: &str) -> Error {
        let code = faults::of_known(code(error));
        if code == RDKafkaErrorCode::TopicAuthorizationFailed {
            return faults::may_not_read(topic);
        }
        let explained = about(topic, code);
        match &self.client {
            Some(client) if faults::kind(code) == Kind::BusUnreachable => {
                client.context().why(explained)
            }
            Some(_) | None => explained,
        }
    }
}

impl ReadTopics for TopicReader {
    fn read_topic(
        &mut self,
        topic: &str,
        since_ms: Option<i64>,
        take: &mut dyn FnMut(Step<'_>) -> ControlFlow<()>,
    ) -> Result<Extent> {
        let mut spans = self.spans(topic)?;
        while spans.is_empty() && take(Step::Nothing).is_continue() {
            std::thread::sleep(ABSENT_PAUSE);
            spans = self.spans(topic)?;
        }
        let begin = match since_ms {
            None => spans.clone(),
            Some(since_ms) => self.since(topic, spans.clone(), since_ms)?,
        };
        // The deleted records may be of the time in question.
        let is_cut = spans.iter().any(|(id, span)| {
            let has_records = since_ms.is_none() || !span.is_empty();
            span.start > 0
                && has_records
                && begin.get(id).is_some_and(|begin| begin.start == span.start)
        });
        let mut next = begin.clone();
        if take(Step::Begin(offsets(&begin))).is_continue() {
            next = self.follow(topic, begin, &mut |record| {
                take(record.as_ref().map_or(Step::Nothing, Step::Record))
            })?;
        }
        let rest = self.read_on(topic, &next, &mut |record| {
            // It is read to its end.
            let _read_on = take(Step::Record(&record));
        })?;
        Ok(Extent {
            is_absent: rest.is_empty(),
            is_cut,
        })
    }
}

/// Where these partitions begin and end. There are two requests to each broker, however many
/// partitions it has: each may have to wait behind a fetch of this client.
fn watermarks<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    topic: &str,
    partitions: &[i32],
    timeout: Duration,
) -> KafkaResult<OffsetRanges> {
    if partitions.is_empty() {
        return Ok(OffsetRanges::new());
    }
    let begins = edges(client, topic, partitions, Offset::Beginning, timeout)?;
    let ends = edges(client, topic, partitions, Offset::End, timeout)?;
    // Retention may delete records between the two answers.
    Ok(begins
        .into_iter()
        .zip(ends.into_values())
        .map(|((id, begin), end)| (id, begin.min(end)..end))
        .collect())
}

/// The first or the last offset of each partition.
fn edges<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    topic: &str,
    partitions: &[i32],
    edge: Offset,
    timeout: Duration,
) -> KafkaResult<BTreeMap<i32, i64>> {
    let mut asked = TopicPartitionList::new();
    for id in partitions {
        asked.add_partition_offset(topic, *id, edge)?;
    }
    let answered = client.offsets_for_times(asked, timeout)?;
    let offset = |element: &TopicPartitionListElem<'_>| match (element.error(), element.offset()) {
        (Err(error), _) => Err(error),
        (Ok(()), Offset::Offset(offset)) => Ok((element.partition(), offset)),
        // The answer had no such partition.
        (Ok(()), _) => Err(KafkaError::OffsetFetch(RDKafkaErrorCode::UnknownPartition)),
    };
    answered.elements().iter().map(offset).collect()
}

/// Ends a Kafka client on a thread of its own. Closing a consumer waits for librdkafka's threads,
/// and those were seen to wait for ever (confluentinc/librdkafka#3470, #4884). The caller does not
/// wait with them, unless no thread can be had.
fn close_aside<C: Send + 'static>(client: C) {
    let started = std::thread::Builder::new()
        .name("kafka-close".to_owned())
        .spawn(move || drop(client));
    if let Err(error) = started {
        tracing::debug!(%error, "a Kafka client was closed without a thread of its own");
    }
}

impl Drop for TopicReader {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            close_aside(client);
        }
    }
}

/// Logs what librdkafka says, and keeps why a broker refuses the client or does not answer.
pub(super) struct Listening {
    redactor: Redactor,
    refusal: Mutex<Option<Error>>,
    reason: Mutex<Option<String>>,
}

impl Listening {
    fn new(redactor: Redactor) -> Listening {
        Listening {
            redactor,
            refusal: Mutex::default(),
            reason: Mutex::default(),
        }
    }

    /// The refusal of a broker, if one has refused the client; else `error`, with the last reason
    /// of librdkafka.
    fn why(&self, error: Error) -> Error {
        let refusal = self.refusal.lock().clone();
        refusal.unwrap_or_else(|| {
            self.reason
                .lock()
                .clone()
                .into_iter()
                .fold(error, Error::because)
        })
    }
}

impl ClientContext for Listening {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        if let Some(reason) = reason_in(facility, text) {
            *self.reason.lock() = Some(self.redactor.clean(reason));
        }
        write_log(&self.redactor, level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let reason = self.redactor.clean(reason);
        tracing::debug!(target: "librdkafka", "{reason}");
        let code = code(&error);
        let refused = (faults::kind(code) == Kind::BusRefused)
            .then(|| faults::explain(code, Subject::default()));
        let refused = refused.or_else(|| faults::certificate_refusal(&reason));
        if refused.is_some() {
            *self.refusal.lock() = refused;
        }
    }
}

impl ConsumerContext for Listening {}

/// What one wait for a record brings.
enum Heard<'m> {
    Record(BorrowedMessage<'m>),
    /// The end that this partition has now.
    End(i32),
    Nothing,
}

/// Whether librdkafka goes on by itself. Errors of a group do not matter to a client that is in
/// none.
fn heals(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    let about_group = [
        Code::GroupAuthorizationFailed,
        Code::NotCoordinator,
        Code::CoordinatorNotAvailable,
        Code::CoordinatorLoadInProgress,
    ];
    let passing = [
        Code::BrokerTransportFailure,
        Code::AllBrokersDown,
        Code::Resolve,
        Code::OperationTimedOut,
    ];
    about_group.contains(&code(error)) || passing.contains(&code(error)) || is_young(error)
}

/// Whether a partition that was seen has no leader yet, or another one by now.
fn is_young(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code(error),
        Code::LeaderNotAvailable | Code::NotLeaderForPartition | Code::UnknownPartition
    )
}

/// Why settings are not known. The client library keeps a refusal to itself and leaves the settings
/// out.
pub(super) const HIDDEN: &str = "the Kafka user may not see its settings (DescribeConfigs)";

fn admin_options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(ADMIN_TIMEOUT))
}

fn by_default<'t>(topics: &[&'t str], partitions: i32) -> Vec<NewTopic<'t>> {
    topics
        .iter()
        .map(|topic| NewTopic::new(topic, partitions, TopicReplication::Fixed(-1)))
        .collect()
}

fn about(topic: &str, code: RDKafkaErrorCode) -> Error {
    faults::explain(
        code,
        Subject {
            topic: Some(topic),
            ..Subject::default()
        },
    )
}

fn no_answer(topic: &str) -> Error {
    Error::new(
        Kind::BusUnreachable,
        format!("no answer to the creation of topic {topic}"),
    )
}

/// Creates and deletes topics, and asks for their settings. Close it with [`TopicAdmin::close`].
pub(crate) struct TopicAdmin(pub(super) AdminClient<Listening>);

impl TopicAdmin {
    /// `options` are those of [`Options::reader`].
    pub(crate) fn open(options: &Options) -> Result<TopicAdmin> {
        let context = Listening::new(options.redactor.clone());
        let client = options.client.create_with_context(context);
        client
            .map(TopicAdmin)
            .map_err(|error| options.creation_error(&error))
    }

    /// Creates a topic with one partition. False where the topic exists: another client may have
    /// been faster.
    pub(crate) fn create(
        &self,
        topic: &str,
        replicas: usize,
        settings: &[(&str, &str)],
    ) -> Result<bool> {
        let replication = TopicReplication::Fixed(i32::try_from(replicas).unwrap_or(1));
        let new = settings.iter().fold(
            NewTopic::new(topic, 1, replication),
            |new, (name, value)| new.set(name, value),
        );
        let created = self.ask_to_create(std::slice::from_ref(&new), false);
        created
            .into_iter()
            .next()
            .unwrap_or_else(|| Err(no_answer(topic)))
    }

    /// Whether the brokers would create each of these topics for this client, with their defaults.
    /// Creates nothing.
    pub(crate) fn may_create(&self, topics: &[&str]) -> Vec<Result<()>> {
        let asked = self.ask_to_create(&by_default(topics, -1), true);
        asked.into_iter().map(|created| created.map(drop)).collect()
    }

    /// The answers in the order of `new`.
    fn ask_to_create(&self, new: &[NewTopic<'_>], only_asks: bool) -> Vec<Result<bool>> {
        if new.is_empty() {
            return Vec::new();
        }
        let options = admin_options()
            .operation_timeout(Some(ADMIN_TIMEOUT))
            .validate_only(only_asks);
        let created = Handle::current().block_on(self.0.create_topics(new, &options));
        let answer = |topic: &str| {
            let results = created
                .as_ref()
                .map_err(|error| about(topic, code(error)))?;
            let of = |result: &TopicResult| match result {
                Ok(name) => (name == topic).then_some(Ok(true)),
                Err((name, RDKafkaErrorCode::TopicAlreadyExists)) => {
                    (name == topic).then_some(Ok(false))
                }
                Err((name, code)) => (name == topic).then(|| Err(about(topic, *code))),
            };
            results
                .iter()
                .find_map(of)
                .unwrap_or_else(|| Err(no_answer(topic)))
        };
        new.iter().map(|topic| answer(topic.name)).collect()
    }

    /// A setting of a topic, or why it is not known. Without the id of a `broker` the controller is
    /// asked, if it can be reached.
    pub(crate) fn setting(
        &self,
        topic: &str,
        name: &str,
        broker: Option<i32>,
    ) -> Result<String, String> {
        let described = self.settings(&[Resource::Topic(topic)], broker)?;
        let entry = described
            .first()
            .and_then(|settings| settings.get(name).cloned());
        entry.ok_or_else(|| HIDDEN.to_owned())
    }

    /// All visible settings of these topics and of one broker at most, in their order, or why they
    /// are not known.
    pub(super) fn settings(
        &self,
        resources: &[Resource<'_>],
        broker: Option<i32>,
    ) -> Result<Vec<Settings>, String> {
        native::settings(self.0.inner(), resources, broker, ADMIN_TIMEOUT)
            .map_err(|code| code.to_string())
    }

    pub(crate) fn close(self) {
        close_aside(self.0);
    }
}

/// The first look at a partition: more than one gets of a relay between two stores, and a single
/// fetch.
const WINDOW: i64 = 1_000;
/// How much larger each further look is.
const GROWTH: i64 = 4;
/// Offsets looked at, in all partitions together: half of what may be in flight by default, and a
/// second's reading.
use walrelay_core::publisher::delivered_before::READ_BACK_RECORDS_MAX as RECORDS_MAX;
/// Bytes of records looked at: large records must not make a start wait for long.
const BYTES_MAX: usize = 64 << 20;

impl TailReader for TopicReader {
    /// The newest records of every partition that are committed, at most [`RECORDS_MAX`] of them;
    /// `take` says of each whether it is one of those looked for. Those of a partition are shown in
    /// windows that go back, each window in order, until the older half of one has none that is
    /// looked for: others may write in between. A topic that does not exist has no records. Nothing
    /// is created or committed. Errors: [`Kind::BusRefused`] or `TopicRefused` where the topic may
    /// not be read; `BusUnreachable` where it could not be by `deadline`. Records that were shown
    /// until then count.
    fn read_tail(
        &mut self,
        topic: &str,
        deadline: Instant,
        take: &mut TakeRecord<'_>,
    ) -> Result<()> {
        self.deadline = Some(deadline);
        let mut partitions: Vec<Partition> = self
            .spans(topic)?
            .into_iter()
            .map(|(id, span)| Partition::new(id, span))
            .collect();
        let mut window = WINDOW;
        let mut left = RECORDS_MAX;
        let mut bytes = 0;
        while let Some(looked_at) = look_back(&mut partitions, window, left) {
            let spans: OffsetRanges = partitions
                .iter()
                .map(|partition| (partition.id, partition.from..partition.to))
                .collect();
            self.read(topic, &spans, &mut |message| {
                let key = message.key;
                let value = message.value;
                bytes += value.map_or(0, <[u8]>::len) + key.map_or(0, <[u8]>::len);
                if let Some(headers) = &message.headers
                    && take(
                        &Record {
                            topic,
                            key,
                            value,
                            headers,
                            partition: Some(message.partition),
                            timestamp_ms: None,
                        },
                        message.offset,
                    )
                    && let Some(partition) = partitions
                        .iter_mut()
                        .find(|partition| partition.id == message.partition)
                {
                    partition.oldest.get_or_insert(message.offset);
                }
                if bytes > BYTES_MAX {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
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
        Partition {
            id,
            low: span.start,
            from: span.end,
            to: span.end,
            oldest: None,
            enough: span.is_empty(),
        }
    }

    /// A window of it was looked at, if there was one.
    fn looked_at(&mut self) {
        let middle = self.from + (self.to - self.from) / 2;
        self.enough |= self.oldest.is_none_or(|oldest| oldest >= middle);
    }
}

/// Moves each partition that is not done one window back, `left` offsets in all; `None` when
/// nothing is left to look at.
fn look_back(partitions: &mut [Partition], window: i64, left: i64) -> Option<i64> {
    let open = |partition: &Partition| !partition.enough && partition.from > partition.low;
    let count = partitions
        .iter()
        .filter(|partition| open(partition))
        .count();
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

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

    use rdkafka::ClientConfig;
    use rdkafka::Statistics;
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

    fn partition(id: i32, low: i64, high: i64) -> Partition {
        Partition::new(id, low..high)
    }

    fn windows(partitions: &[Partition]) -> Vec<(i64, i64)> {
        partitions
            .iter()
            .map(|partition| (partition.from, partition.to))
            .collect()
    }

    /// Counts the requests for offsets, by the statistics of librdkafka.
    #[derive(Default)]
    struct Counting {
        statistics: AtomicUsize,
        asked: AtomicI64,
    }

    impl ClientContext for Counting {
        fn stats(&self, statistics: Statistics) {
            let asked = statistics
                .brokers
                .values()
                .filter_map(|broker| broker.req.get("ListOffsets"));
            self.asked.store(asked.sum(), Ordering::Relaxed);
            self.statistics.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl ConsumerContext for Counting {}

    #[test]
    fn the_ends_of_all_partitions_of_a_broker_are_asked_for_at_once() {
        const PARTITIONS: i32 = 100;
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("t", PARTITIONS, 1).unwrap();
        let servers = cluster.bootstrap_servers();
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", &servers)
            .create()
            .unwrap();
        producer
            .send(BaseRecord::<(), str>::to("t").partition(7).payload("x"))
            .unwrap();
        producer.flush(ASK_TIMEOUT).unwrap();
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", servers)
            .set("group.id", GROUP)
            .set("statistics.interval.ms", "20");
        let client: BaseConsumer<Counting> =
            config.create_with_context(Counting::default()).unwrap();
        let spans = watermarks(
            &client,
            "t",
            &(0..PARTITIONS).collect::<Vec<_>>(),
            ASK_TIMEOUT,
        )
        .unwrap();
        let expected = (0..PARTITIONS).map(|id| (id, 0..i64::from(id == 7)));
        assert_eq!(spans, expected.collect());
        let seen = client.context().statistics.load(Ordering::Relaxed);
        let until = Instant::now() + ASK_TIMEOUT;
        // The next statistics may have been made before the last request.
        while client.context().statistics.load(Ordering::Relaxed) < seen + 2
            && Instant::now() < until
        {
            client.poll(POLL_TIMEOUT);
        }
        assert_eq!(client.context().asked.load(Ordering::Relaxed), 2);
        let unknown = watermarks(&client, "t", &[0, PARTITIONS], ASK_TIMEOUT).unwrap_err();
        assert!(
            is_young(&unknown) || code(&unknown) == RDKafkaErrorCode::UnknownTopicOrPartition,
            "{unknown}"
        );
    }

    #[test]
    fn a_partition_is_done_when_the_older_half_of_a_window_has_no_match() {
        for (oldest, enough) in [
            (None, true),
            (Some(9_500), true),
            (Some(9_499), false),
            (Some(9_000), false),
        ] {
            let mut one = [partition(0, 0, 10_000)];
            look_back(&mut one, 1_000, 50_000);
            one[0].oldest = oldest;
            one[0].looked_at();
            assert_eq!(one[0].enough, enough, "{oldest:?}");
        }
    }

    #[test]
    fn each_window_ends_where_the_previous_one_began_until_a_partition_is_done() {
        let mut all = [
            partition(0, 0, 10_000),
            partition(1, 9_500, 10_000),
            partition(2, 7, 7),
        ];
        assert_eq!(look_back(&mut all, 1_000, 50_000), Some(1_500));
        assert_eq!(windows(&all), [(9_000, 10_000), (9_500, 10_000), (7, 7)]);
        assert_eq!(look_back(&mut all, 4_000, 48_500), Some(4_000));
        assert_eq!(windows(&all), [(5_000, 9_000), (9_500, 9_500), (7, 7)]);
        all[0].enough = true;
        assert_eq!(look_back(&mut all, 16_000, 44_500), None);
    }

    #[test]
    fn the_number_of_records_read_from_all_partitions_is_bounded() {
        let mut all: Vec<_> = (0..1_000).map(|id| partition(id, 0, 1_000_000)).collect();
        let mut left = RECORDS_MAX;
        let mut window = WINDOW;
        while let Some(looked_at) = look_back(&mut all, window, left) {
            left -= looked_at;
            window *= GROWTH;
        }
        assert_eq!(left, 0);
        assert!(all.iter().all(|partition| partition.from == 999_950));
    }

    #[test]
    fn one_reader_reads_the_tails_of_topics_one_after_the_other() {
        let cluster = MockCluster::new(1).unwrap();
        let brokers = cluster.bootstrap_servers();
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", &brokers)
            .create()
            .unwrap();
        for (topic, values) in [("a", &["1", "2"][..]), ("b", &[]), ("c", &["3"])] {
            cluster.create_topic(topic, 2, 1).unwrap();
            for value in values {
                producer
                    .send(BaseRecord::<(), str>::to(topic).partition(1).payload(value))
                    .unwrap();
            }
        }
        producer.flush(ASK_TIMEOUT).unwrap();
        let config = crate::config::KafkaConfig {
            brokers,
            ..Default::default()
        };
        let mut reader = TopicReader::of_tails(Options::reader(&config).unwrap()).unwrap();
        for (topic, values) in [("c", "3"), ("b", ""), ("a", "12"), ("c", "3")] {
            let mut found = String::new();
            reader
                .read_tail(topic, Instant::now() + ASK_TIMEOUT, &mut |record, _| {
                    assert_eq!(record.topic, topic);
                    found += std::str::from_utf8(record.value.unwrap()).unwrap();
                    true
                })
                .unwrap();
            assert_eq!(found, values);
        }
    }
}
