//! [`Sink`] on librdkafka. Nothing outside of this module knows librdkafka.
//!
//! | file | contents |
//! |---|---|
//! | `producer` | librdkafka's producers, their probes, transactions, a handle for the position |
//! | `context` | librdkafka's callbacks: delivery reports, errors, log lines |
//! | `partitions` | the partition of a key, and why the first record of a partition travels alone |
//! | `options`, `properties` | librdkafka's properties, and those that an operator may not set |
//! | `faults` | the error for each code of librdkafka |
//! | `topic_reader` | readers of topics, and the client that creates topics |
//! | `cluster` | what the brokers say about themselves and about topics, for `walrelay doctor` |
//! | `survey` | the checks of `walrelay doctor` |
//! | `native` | calls of librdkafka that its crate has not: all `unsafe` code |

pub(crate) mod cluster;
mod context;
pub(crate) mod faults;
pub(crate) mod native;
pub(crate) mod options;
pub(crate) mod partitions;
pub(crate) mod producer;
pub(crate) mod properties;
pub(super) mod survey;
pub(crate) mod topic_reader;

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer as _;
use tokio::sync::watch;
use tokio::time::Instant;

use context::{Context, Failure, Life, Reports, Shared, opaque};
use faults::Subject;
use native::{Metadata, TopicMetadata};
use options::{Options, Transactional};
use partitions::{Destination, Openings, Waiting, hash};
use producer::{Inner, Probe, Producer};
use topic_reader::{TopicReader, off_runtime};

use crate::config::{Config, KafkaConfig};
use crate::sink::{BusSink, SinkHandle, TailReader};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::ledger::Ticket;
use walrelay_core::route::{OwnedRecord, Record};
use walrelay_core::sink::{Connection, Delivery, EnqueueError, Sink};

/// The most bytes that Kafka adds to a record that is sent alone: a batch header and the lengths
/// around key and value. <https://kafka.apache.org/documentation/#recordbatch>
const RECORD_OVERHEAD_BYTES: usize = 61 + 40;
/// Lengths around a header's name and value, at most.
const HEADER_OVERHEAD_BYTES: usize = 10;

/// A failure brings others with it. They are collected for this long, so that the one that says
/// most comes first.
const COLLECTING: Duration = Duration::from_millis(100);

/// How long brokers have to say whether they know a topic. The events wait for it.
const TOPIC_TIMEOUT: Duration = Duration::from_secs(10);

/// How long [`KafkaSink::close`] waits for librdkafka's threads, which may be inside a call of the
/// operating system.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The producer, with the thread that polls it and the task that asks whether Kafka answers. Made
/// in a Tokio runtime.
pub struct KafkaSink {
    inner: Arc<Inner>,
    openings: Openings,
    /// Counts records without a key, which go to each partition in turn.
    turn: u32,
    /// Swapped with the vectors the polling thread fills, so that no report allocates.
    spare: Reports,
    failures: Vec<Failure>,
    report_failures_at: Option<Instant>,
}

impl KafkaSink {
    /// Makes the producer. Connects in the background.
    ///
    /// # Errors
    /// [`Kind::Config`]: a property is refused, or librdkafka cannot work with one.
    pub fn connect(config: &KafkaConfig) -> Result<KafkaSink> {
        served_before(
            config,
            Options::producer(config).and_then(Self::with_options),
        )
    }

    /// The same for asking on behalf of another: it does not log what it finds.
    pub(crate) fn for_asking(config: &KafkaConfig) -> Result<KafkaSink> {
        Self::with_options(Options {
            quiet: true,
            ..Options::producer(config)?
        })
    }

    /// Makes a producer that writes in transactions. When it returns, no older producer of this id
    /// can write any more, and what it left open is committed or given up for good: read where to
    /// go on *after* that.
    ///
    /// # Errors
    /// As [`KafkaSink::connect`]; of the coordinator, [`Kind::BusUnreachable`] or
    /// [`Kind::BusRefused`].
    pub async fn transactional(config: &KafkaConfig, of: &Transactional) -> Result<KafkaSink> {
        let sink = served_before(
            config,
            Options::transactional(config, of).and_then(Self::with_options),
        )?;
        let inner = Arc::clone(&sink.inner);
        tokio::select! {
            done = off_runtime(move || inner.init_transactions()) => done?,
            refusal = sink.inner.shared.tracker.unusable() => return Err(refusal),
        }
        sink.inner.same_cluster()?;
        Ok(sink)
    }

    fn with_options(options: Options) -> Result<KafkaSink> {
        let shared = Arc::new(Shared::new(options.quiet, options.cluster_id.clone()));
        let inner = Arc::new(Inner::new(Context::new(shared, options))?);
        tokio::spawn(Probe::new(&inner).run());
        Ok(KafkaSink {
            inner,
            openings: Openings::new(Instant::now()),
            turn: 0,
            spare: Reports::default(),
            failures: Vec::new(),
            report_failures_at: None,
        })
    }

    /// A handle for records that are not events.
    pub fn producer(&self) -> Producer {
        Producer::of(&self.inner)
    }

    /// The ids of the brokers, as any of them tells. Errors are those of [`KafkaSink::missing`].
    pub(crate) async fn brokers(&self, timeout: Duration) -> Result<Vec<i32>> {
        Ok(self.metadata(timeout).await?.brokers)
    }

    async fn metadata(&self, timeout: Duration) -> Result<Metadata> {
        let inner = Arc::clone(&self.inner);
        tokio::select! {
            answer = off_runtime(move || inner.metadata(None, timeout)) => answer,
            refusal = self.inner.shared.tracker.unusable() => Err(refusal),
        }
    }

    /// Appends the deliveries; false where there were none.
    fn take_reports(&mut self, into: &mut Vec<Delivery>) -> bool {
        mem::swap(&mut self.spare, &mut *self.inner.shared.reports.lock());
        if let Some(first) = self.spare.acked.first()
            && let Err(error) = self.inner.same_cluster()
        {
            // Nobody knows which cluster has them.
            into.push(Delivery::Failed(*first, error));
            self.spare = Reports::default();
            return true;
        }
        let mut any = !self.spare.acked.is_empty() || !self.spare.refused.is_empty();
        self.openings.at(Instant::now());
        for opened in self.openings.acked(&self.spare.acked) {
            self.release(opened);
        }
        into.extend(self.spare.acked.drain(..).map(Delivery::Acked));
        for failure in mem::take(&mut self.spare.refused) {
            into.push(Delivery::Refused(
                failure.ticket,
                self.explain(&failure, true),
            ));
        }
        self.failures.append(&mut self.spare.failed);
        if !self.failures.is_empty() {
            let now = Instant::now();
            if *self.report_failures_at.get_or_insert(now + COLLECTING) <= now {
                any = true;
                self.report_failures(into);
            }
        }
        any
    }

    /// Sends the records that wait for what was opened, as far as their partitions are open.
    fn release(&mut self, opened: Destination) {
        if self.inner.shared.has_ended() {
            return;
        }
        let context = self.inner.client.context();
        self.openings
            .release(opened, &context.partitioner, |waiting, destination| {
                context.partitioner.expect(destination.count, waiting.hash);
                waiting.record.with_record(|record| {
                    let sent = self.inner.send_event(record, waiting.ticket);
                    if let Err(error) = &sent {
                        self.inner.shared.advance(Life::Failed);
                        self.failures
                            .push(context.failure(record, waiting.ticket, error));
                    }
                    sent.is_ok()
                })
            });
    }

    /// Reports the failure first that stops the relay; of a batch that was refused for its size,
    /// the largest record first.
    fn report_failures(&mut self, into: &mut Vec<Delivery>) {
        self.failures.sort_by_key(|failure| {
            let kind = faults::kind(failure.code);
            let says_most = kind.halts() || kind == Kind::TopicRefused;
            (
                !says_most,
                std::cmp::Reverse(failure.record_bytes),
                failure.ticket,
            )
        });
        for failure in mem::take(&mut self.failures) {
            into.push(Delivery::Failed(
                failure.ticket,
                self.explain(&failure, false),
            ));
        }
    }

    fn explain(&self, failure: &Failure, alone: bool) -> Error {
        let of = Subject::of_record(&failure.topic, failure.partition, failure.record_bytes);
        let timestamp_columns = self.inner.options().timestamp_columns.as_str();
        let subject = Subject {
            alone,
            time_ms: failure.time_ms,
            timestamp_columns,
            ..of
        };
        let error = faults::explain(failure.code, subject);
        let is_plain = error.kind().halts() || error.kind() == Kind::TopicRefused;
        let error = if is_plain {
            error
        } else {
            self.inner.fatal(subject).unwrap_or(error)
        };
        match &failure.label {
            Some(label) => error.of_row(label),
            None => error,
        }
    }

    /// Refuses a record that can never be sent. The hash that chooses the record's partition,
    /// otherwise.
    fn admit(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<u32, EnqueueError> {
        if self.inner.shared.has_ended() {
            return Err(EnqueueError::Finished);
        }
        let limit_bytes = self.inner.options().message_max_bytes;
        fits_client(record, limit_bytes).map_err(EnqueueError::Refused)?;
        opaque(ticket, false).map_err(EnqueueError::Refused)?;
        self.inner.shared.sends_to(record.topic);
        Ok(record.key.map_or_else(
            || {
                self.turn = self.turn.wrapping_add(1);
                self.turn
            },
            hash,
        ))
    }

    fn refused(&self, error: &KafkaError, record: &Record<'_>) -> EnqueueError {
        let subject = Subject {
            topic: Some(record.topic),
            partition: record.partition,
            ..Subject::default()
        };
        EnqueueError::Refused(self.inner.refusal(error, subject))
    }
}

/// Whether a topic exists of which a broker says this: one that is being made has no leader yet.
fn is_young(code: RDKafkaErrorCode) -> bool {
    code == RDKafkaErrorCode::LeaderNotAvailable
}

/// `error`, unless it says of a topic that it does not exist, and a broker knows it by now, or none
/// answers. librdkafka says that of a topic of which no broker told in time: nobody refused
/// anything, and the events are sent again.
async fn unless_there(error: Error, config: &KafkaConfig) -> Error {
    let Some(topic) = error
        .topic()
        .filter(|_| faults::is_of_missing_topic(&error))
    else {
        return error;
    };
    let asked = async {
        let sink = KafkaSink::for_asking(config)?;
        let missing = sink.missing(&[topic], TOPIC_TIMEOUT).await;
        sink.close().await;
        missing
    };
    match asked.await {
        Ok(missing) if missing.is_empty() => Error::new(
            Kind::BusUnreachable,
            format!("topic {topic} exists, and no broker told of it in time"),
        ),
        Err(away) if away.kind() == Kind::BusUnreachable => away,
        Ok(_) | Err(_) => error,
    }
}

/// `made`, where the error of a configuration that has served before is one that heals: only the
/// files that it names can be others, and somebody may be replacing them one after the other.
fn served_before(config: &KafkaConfig, made: Result<KafkaSink>) -> Result<KafkaSink> {
    made.map_err(|error| match (error.kind(), &config.cluster_id) {
        (Kind::Config, Some(_)) => error.with_kind(Kind::BusUnreachable),
        _ => error,
    })
}

/// The size of a record that is sent alone: key, value, headers and what Kafka adds, at most.
fn record_bytes(record: &Record<'_>) -> usize {
    record.bytes() + record.headers.len() * HEADER_OVERHEAD_BYTES + RECORD_OVERHEAD_BYTES
}

/// Whether librdkafka takes a record of this size, with its `message.max.bytes`.
fn fits_client(record: &Record<'_>, limit_bytes: usize) -> Result<()> {
    let topic = record.topic;
    let record_bytes = record_bytes(record);
    if record_bytes <= limit_bytes {
        return Ok(());
    }
    let cause = format!(
        "a record for topic {topic} has {record_bytes} bytes, more than message.max.bytes, \
         {limit_bytes}"
    );
    Err(Error::new(Kind::RecordTooLarge, cause).remedy(format!(
        "raise message.max.bytes of the Kafka properties and max.message.bytes of topic {topic}, \
         or keep large payloads \
         out of the outbox with a CHECK"
    )))
}

impl Sink for KafkaSink {
    fn enqueue(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        let hash = self.admit(record, ticket)?;
        let partitioner = &self.inner.client.context().partitioner;
        let given = record.partition;
        let Some(destination) = self
            .openings
            .destination(record.topic, hash, given, partitioner)
        else {
            let waiting = Waiting {
                ticket,
                hash,
                given,
                record: OwnedRecord::of(record),
            };
            self.openings.wait(record.topic, waiting);
            return Ok(());
        };
        partitioner.expect(destination.count, hash);
        let Err(error) = self.inner.send_event(record, ticket) else {
            self.openings.sent(destination, ticket, partitioner);
            return Ok(());
        };
        Err(self.refused(&error, record))
    }

    fn enqueue_apart(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        if self.inner.is_transactional() {
            // Only what belongs to a transaction may be seen.
            return self.enqueue(record, ticket);
        }
        let hash = self.admit(record, ticket)?;
        self.inner
            .send_apart(record, ticket, hash)
            .map_err(|error| self.refused(&error, record))
    }

    async fn deliveries(&mut self, into: &mut Vec<Delivery>) {
        while !self.take_reports(into) {
            let woken = self.inner.shared.wake.notified();
            match self
                .report_failures_at
                .filter(|_| !self.failures.is_empty())
            {
                None => woken.await,
                // Elapsed or woken: what matters is what lies there now.
                Some(at) => tokio::time::timeout_at(at, woken).await.unwrap_or_default(),
            }
        }
    }
}

impl BusSink for KafkaSink {
    /// librdkafka's message and list of headers with what its allocator adds, and a ticket. From
    /// `rd_kafka_msg_t` and `rd_kafka_header_t`, and as measured with two headers.
    const RECORD_COST_BYTES: usize = 512;

    fn connect(config: &Config) -> Result<KafkaSink> {
        KafkaSink::connect(&config.kafka)
    }

    fn for_asking(config: &Config) -> Result<KafkaSink> {
        KafkaSink::for_asking(&config.kafka)
    }

    async fn transactional(config: &Config, of: &Transactional) -> Result<KafkaSink> {
        KafkaSink::transactional(&config.kafka, of).await
    }

    fn tails(config: &Config) -> Result<Option<Box<dyn TailReader>>> {
        let reader = TopicReader::of_tails(Options::reader(&config.kafka)?)?;
        Ok(Some(Box::new(reader)))
    }

    async fn judged(error: Error, config: &Config) -> Error {
        unless_there(error, &config.kafka).await
    }

    fn reduce_batches(config: &mut Config, record_bytes: usize) -> Option<(usize, &'static str)> {
        const HOW: &str = "set the Kafka property batch.size below max.message.bytes of the topic";
        Some((
            options::reduce_batches(&mut config.kafka, record_bytes)?,
            HOW,
        ))
    }

    fn is_internal(topic: &str) -> bool {
        faults::is_internal(topic)
    }

    fn expect_cluster(config: &mut Config, id: Option<String>) {
        config.kafka.cluster_id = id;
    }

    fn handle(&self) -> SinkHandle {
        SinkHandle::of(self.producer())
    }

    fn round_trip(&self) -> Option<Duration> {
        let micros = self.inner.shared.pace.round_trip_us.load(Ordering::Relaxed);
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    fn throttle(&self) -> Option<Duration> {
        self.inner.shared.pace.throttle()
    }

    fn take_partition_changes(&self) -> u64 {
        self.inner.client.context().partitioner.take_changes()
    }

    fn watch_connection(&self) -> watch::Receiver<Connection> {
        self.inner.shared.tracker.subscribe()
    }

    fn busiest_topics(&self, max: usize) -> Vec<(&str, u64)> {
        self.openings.busiest(max)
    }

    async fn missing(&self, topics: &[&str], timeout: Duration) -> Result<Vec<String>> {
        let metadata = self.metadata(timeout).await?;
        let is_it = |known: &TopicMetadata, topic: &str| {
            known.name == topic && known.error.is_none_or(is_young)
        };
        let exists = |topic: &str| metadata.topics.iter().any(|known| is_it(known, topic));
        Ok(topics
            .iter()
            .filter(|topic| !exists(topic))
            .map(|topic| (*topic).to_owned())
            .collect())
    }

    async fn close(self) {
        let mut gone = self.inner.gone.subscribe();
        drop(self);
        // The sender is never used: the only change is its end.
        if tokio::time::timeout(CLOSE_TIMEOUT, gone.changed())
            .await
            .is_err()
        {
            tracing::warn!(
                event = "producer_close_delayed",
                "the Kafka producer is still being freed"
            );
        }
    }
}

impl Drop for KafkaSink {
    fn drop(&mut self) {
        Arc::clone(&self.inner).retire();
    }
}

#[cfg(test)]
mod tests;
