//! [`Sink`] on librdkafka. Nothing outside of this module knows librdkafka.
//!
//! | file | what is in it |
//! |---|---|
//! | [`producer`] | the producer, its transactions, and a handle on it for the position |
//! | `client`, `context` | librdkafka's clients and their threads; what librdkafka calls back into |
//! | `partitions` | how many there are, and why the first record of each travels alone |
//! | [`options`], [`properties`] | what librdkafka is told, and what nobody may tell it |
//! | [`faults`], `log_lines` | error code to what becomes of the relay; what only librdkafka's log says |
//! | `tracker`, `probe` | whether Kafka answers; the thread that asks |
//! | `topic_reader`, [`tail`] | reading: topics between known offsets, and the newest records of a topic |
//! | `admin` | creating topics, and their settings |

pub(crate) mod admin;
mod client;
mod context;
pub mod faults;
mod log_lines;
pub mod options;
mod partitions;
mod probe;
pub mod producer;
pub mod properties;
pub mod tail;
pub(crate) mod topic_reader;
mod tracker;

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer as _;
use tokio::sync::watch;
use tokio::time::Instant;

use context::{Context, Failure, Reports, Shared, opaque};
use faults::{Subject, code};
use options::{Options, Transactional};
use partitions::{Openings, Release, Waiting};
use probe::Probe;
use producer::{FULL_RETRY, Inner, Producer};

use super::{Connection, Delivery, EnqueueError, Sink, hash};
use crate::config::KafkaConfig;
use crate::error::{Error, Kind, Result};
use crate::ledger::Ticket;
use crate::route::{OwnedRecord, Record};

/// What Kafka adds to a record that travels alone, at most: a batch header and the lengths around key and value.
/// <https://kafka.apache.org/documentation/#recordbatch>
const RECORD_OVERHEAD_BYTES: usize = 61 + 40;
/// Lengths around a header's name and value, at most.
const HEADER_OVERHEAD_BYTES: usize = 10;

/// A failure brings others with it. They are collected for this long, so that the one that says most comes first.
const SETTLE: Duration = Duration::from_millis(100);

/// How long [`KafkaSink::close`] waits for librdkafka's threads, which may be inside a call of the operating system.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The producer. Made in a Tokio runtime; holds one polling thread and one that looks whether Kafka answers.
pub struct KafkaSink {
    inner: Arc<Inner>,
    openings: Openings<OwnedRecord>,
    /// Counts records without a key, which go to each partition in turn.
    turn: u32,
    /// Swapped with the vectors the polling thread fills, so that no report allocates.
    spare: Reports,
    failures: Vec<Failure>,
    report_failures_at: Option<Instant>,
    full: bool,
}

impl KafkaSink {
    /// Makes the producer. Connects in the background: see [`KafkaSink::connection`] and [`KafkaSink::missing`].
    ///
    /// # Errors
    /// [`Kind::Config`]: a property is refused, or librdkafka cannot work with one.
    pub fn connect(config: &KafkaConfig) -> Result<KafkaSink> {
        Self::with_options(Options::producer(config)?)
    }

    /// The same for asking on behalf of another: it does not log what it finds.
    ///
    /// # Errors
    /// As [`KafkaSink::connect`].
    pub fn for_asking(config: &KafkaConfig) -> Result<KafkaSink> {
        Self::with_options(Options { quiet: true, ..Options::producer(config)? })
    }

    /// Makes a producer that writes in transactions. When it returns, no older producer of this id can write any more,
    /// and what it left open is committed or given up for good: read where to go on *after* that.
    ///
    /// # Errors
    /// As [`KafkaSink::connect`]; [`Kind::KafkaUnreachable`] where no coordinator answers; [`Kind::KafkaRefused`] where it
    /// refuses us.
    pub async fn transactional(config: &KafkaConfig, of: &Transactional) -> Result<KafkaSink> {
        let sink = Self::with_options(Options::transactional(config, of)?)?;
        let inner = Arc::clone(&sink.inner);
        let init = tokio::task::spawn_blocking(move || inner.init_transactions());
        tokio::select! {
            done = init => done.map_err(|error| Error::new(Kind::Bug, error))??,
            refusal = sink.inner.shared.tracker.unusable() => return Err(refusal),
        }
        Ok(sink)
    }

    fn with_options(options: Options) -> Result<KafkaSink> {
        let (suspicion, suspected) = std::sync::mpsc::sync_channel(1);
        let shared = Arc::new(Shared::new(options.quiet));
        let inner = Arc::new(Inner::new(Context::new(shared, options, suspicion))?);
        let probe = Probe::new(&inner, suspected);
        std::thread::Builder::new()
            .name("kafka-probe".to_owned())
            .spawn(move || probe.run())
            .map_err(|error| Error::new(Kind::Prerequisite, format!("no thread can be started: {error}")))?;
        Ok(KafkaSink {
            inner,
            openings: Openings::new(Instant::now()),
            turn: 0,
            spare: Reports::default(),
            failures: Vec::new(),
            report_failures_at: None,
            full: false,
        })
    }

    /// A handle for records that are not events.
    pub fn producer(&self) -> Producer {
        Producer::of(&self.inner)
    }

    /// Whether Kafka answers.
    pub fn connection(&self) -> Connection {
        self.inner.shared.tracker.now()
    }

    /// The same, to be woken at each change.
    pub fn watch_connection(&self) -> watch::Receiver<Connection> {
        self.inner.shared.tracker.subscribe()
    }

    /// Asks any broker which of `topics` the cluster does not have, or hides from this user. Creates none.
    ///
    /// # Errors
    /// [`Kind::KafkaUnreachable`] when none answers within `timeout`; [`Kind::KafkaRefused`] when one refuses us.
    pub async fn missing(&self, topics: &[&str], timeout: Duration) -> Result<Vec<String>> {
        let inner = Arc::clone(&self.inner);
        let asked = tokio::task::spawn_blocking(move || inner.metadata(None, timeout));
        let metadata = tokio::select! {
            answer = asked => answer.map_err(|error| Error::new(Kind::Bug, error))??,
            refusal = self.inner.shared.tracker.unusable() => return Err(refusal),
        };
        let exists =
            |topic: &str| metadata.topics().iter().any(|known| known.name() == topic && known.error().is_none());
        Ok(topics.iter().filter(|topic| !exists(topic)).map(|topic| (*topic).to_owned()).collect())
    }

    /// Gives up what was not acked and frees the producer. Dropping does the same without waiting for the end.
    pub async fn close(self) {
        let mut gone = self.inner.gone.subscribe();
        drop(self);
        // The sender is never used: the only change is its end.
        if tokio::time::timeout(CLOSE_TIMEOUT, gone.changed()).await.is_err() {
            tracing::warn!("the Kafka producer is still being freed");
        }
    }

    /// Moves what is to be reported; whether there was anything.
    fn take_reports(&mut self, into: &mut Vec<Delivery>) -> bool {
        mem::swap(&mut self.spare, &mut *self.inner.shared.reports());
        let mut any = !self.spare.acked.is_empty() || !self.spare.refused.is_empty();
        self.openings.at(Instant::now());
        let releasable = self.openings.acked(&self.spare.acked);
        self.release(releasable);
        into.extend(self.spare.acked.drain(..).map(Delivery::Acked));
        for failure in mem::take(&mut self.spare.refused) {
            into.push(Delivery::Refused(failure.ticket, self.explain(&failure, true)));
        }
        self.failures.append(&mut self.spare.failed);
        if !self.failures.is_empty() {
            let now = Instant::now();
            if *self.report_failures_at.get_or_insert(now + SETTLE) <= now {
                any = true;
                self.report_failures(into);
            }
        }
        any
    }

    /// Sends what waits in these topics, as far as it can go.
    fn release(&mut self, topics: Vec<usize>) {
        if topics.is_empty() || self.inner.shared.failed.load(Ordering::Acquire) {
            return;
        }
        let context = self.inner.client.context();
        let partitioner = &context.partitioner;
        for topic in topics {
            self.openings.release(topic, partitioner, |waiting, destination| {
                partitioner.expect(destination.count, waiting.hash);
                let sent = waiting.record.with_record(|record| self.inner.send_event(record, waiting.ticket));
                match sent {
                    Ok(()) => Release::Sent,
                    Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull) => Release::Full,
                    Err(error) => {
                        self.inner.shared.failed.store(true, Ordering::Release);
                        let failure = |record: &Record<'_>| Failure {
                            ticket: waiting.ticket,
                            code: faults::of_record(code(&error), record.partition.is_some()),
                            topic: record.topic.to_owned(),
                            partition: record.partition.unwrap_or(-1),
                            record_bytes: record.value.map_or(0, <[u8]>::len) + record.key.map_or(0, <[u8]>::len),
                            label: record.headers.first().and_then(|(name, value)| context.label_in(name, *value)),
                        };
                        self.failures.push(waiting.record.with_record(failure));
                        Release::Failed
                    }
                }
            });
        }
        self.full |= self.openings.is_held_up();
    }

    /// What stops the relay first; of a batch that was refused for its size, the largest record first.
    fn report_failures(&mut self, into: &mut Vec<Delivery>) {
        self.failures.sort_by_key(|failure| {
            let kind = faults::kind(failure.code);
            let says_most = kind.halts() || kind == Kind::TopicRefused;
            (!says_most, std::cmp::Reverse(failure.record_bytes), failure.ticket)
        });
        for failure in mem::take(&mut self.failures) {
            into.push(Delivery::Failed(failure.ticket, self.explain(&failure, false)));
        }
    }

    fn explain(&self, failure: &Failure, alone: bool) -> Error {
        let subject = Subject { alone, ..failure.subject() };
        let error = faults::explain(failure.code, subject);
        let is_plain = error.kind().halts() || error.kind() == Kind::TopicRefused;
        let error = if is_plain { error } else { self.inner.fatal(subject).unwrap_or(error) };
        match &failure.label {
            Some(label) => error.of_row(label),
            None => error,
        }
    }

    /// Refuses a record that can never be sent. The hash that chooses the record's partition, otherwise.
    fn admit(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<u32, EnqueueError> {
        if self.inner.shared.failed.load(Ordering::Acquire) {
            return Err(EnqueueError::Finished);
        }
        if let Some(error) = self.too_large(record) {
            return Err(EnqueueError::Refused(error));
        }
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
        let subject = Subject { topic: Some(record.topic), partition: record.partition, ..Subject::default() };
        EnqueueError::Refused(self.inner.refusal(error, subject))
    }

    fn too_large(&self, record: &Record<'_>) -> Option<Error> {
        let headers = record.headers.iter();
        let headers: usize =
            headers.map(|(name, value)| name.len() + value.map_or(0, <[u8]>::len) + HEADER_OVERHEAD_BYTES).sum();
        let size =
            record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len) + headers + RECORD_OVERHEAD_BYTES;
        let limit = self.inner.options().message_max_bytes;
        (size > limit).then(|| {
            let cause = format!("a record for topic {} has {size} bytes, more than message.max.bytes, {limit}", record.topic);
            Error::new(Kind::RecordTooLarge, cause).remedy(format!(
                "raise message.max.bytes of the Kafka properties and max.message.bytes of topic {}, or keep large payloads \
                 out of the outbox with a CHECK",
                record.topic
            ))
        })
    }
}

impl Sink for KafkaSink {
    fn enqueue(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        let hash = self.admit(record, ticket)?;
        let partitioner = &self.inner.client.context().partitioner;
        let given = record.partition;
        let Some(destination) = self.openings.destination(record.topic, hash, given, partitioner) else {
            let waiting = Waiting { ticket, hash, given, record: OwnedRecord::of(record) };
            self.openings.wait(record.topic, waiting);
            return Ok(());
        };
        partitioner.expect(destination.count, hash);
        let Err(error) = self.inner.send_event(record, ticket) else {
            self.openings.sent(destination, ticket, partitioner);
            return Ok(());
        };
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull) {
            self.full = true;
            return Err(EnqueueError::Full);
        }
        Err(self.refused(&error, record))
    }

    fn enqueue_apart(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        if self.inner.is_transactional() {
            // Only what belongs to a transaction may be seen.
            return self.enqueue(record, ticket);
        }
        let hash = self.admit(record, ticket)?;
        self.inner.send_apart(record, ticket, hash).map_err(|error| self.refused(&error, record))
    }

    async fn deliveries(&mut self, into: &mut Vec<Delivery>) {
        loop {
            if self.take_reports(into) {
                self.full = false;
                return;
            }
            let now = Instant::now();
            let full_until = self.full.then(|| now + FULL_RETRY);
            let wake_at = [full_until, self.report_failures_at.filter(|_| !self.failures.is_empty())];
            let woken = self.inner.shared.wake.notified();
            match wake_at.into_iter().flatten().min() {
                None => woken.await,
                Some(at) => {
                    // Elapsed or woken: what matters is what lies there now.
                    let elapsed = tokio::time::timeout_at(at, woken).await.is_err();
                    if elapsed && full_until == Some(at) {
                        self.full = false;
                        self.take_reports(into);
                        return;
                    }
                }
            }
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
