//! The one producer: owned by the sink, borrowed by whoever else has a record to deliver through it.

use std::ffi::CStr;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, Producer as _, PurgeConfig};
use tokio::sync::{oneshot, watch};

use super::apart::Apart;
use super::bootstrap;
use super::connection::{Connection, Tracker};
use super::context::{Shared, code};
use super::faults::{self, Subject};
use super::polled::Polled;
use super::transaction::Transaction;
use crate::error::{Error, Kind, Result};

/// How long a full queue is left alone before the same record is offered again.
pub(super) const FULL_RETRY: Duration = Duration::from_millis(1);

/// What is waited for an answer at first, before looking whether anybody still wants it.
const FIRST_SLICE: Duration = Duration::from_millis(500);

/// librdkafka's producer and what belongs to it.
pub(super) struct Inner {
    pub(super) client: Polled,
    pub(super) shared: Arc<Shared>,
    pub(super) tracker: Arc<Tracker>,
    pub(super) closing: Arc<AtomicBool>,
    pub(super) last_error: Arc<Mutex<String>>,
    /// Dropped when the producer is gone.
    pub(super) gone: watch::Sender<()>,
    /// Where records are sent in transactions.
    pub(super) transaction: Option<Transaction>,
    /// Where records go that may be refused, once there was one.
    pub(super) apart: Apart,
}

impl Inner {
    /// Hands one record to librdkafka, which copies it.
    pub(super) fn send(&self, record: BaseRecord<'_, [u8], [u8], usize>) -> Result<(), KafkaError> {
        self.begin_transaction()?;
        self.counted(|| self.client.send(record))
    }

    /// A record is counted first: its report can come before `send` returns.
    pub(super) fn counted(&self, send: impl FnOnce() -> Result<(), KafkaError>) -> Result<(), KafkaError> {
        self.shared.outstanding.fetch_add(1, Ordering::Relaxed);
        send().inspect_err(|_| {
            self.shared.outstanding.fetch_sub(1, Ordering::Relaxed);
        })
    }

    /// The fatal error this producer ended with, if it did.
    pub(super) fn fatal(&self, subject: Subject<'_>) -> Option<Error> {
        let (code, reason) = self.client.client().fatal_error()?;
        Some(faults::explain(code, subject).because(self.client.context().redactor.clean(&reason)))
    }

    /// What a failed `send` means for this record.
    pub(super) fn refusal(&self, error: &KafkaError, subject: Subject<'_>) -> Error {
        if matches!(error, KafkaError::Nul(_)) {
            return Error::new(Kind::Record, "a topic name holds a NUL character").remedy("correct the aggregate type");
        }
        let code = faults::of_record(code(error), subject.partition.is_some());
        self.fatal(subject).or_else(|| self.doubt(error)).unwrap_or_else(|| faults::explain(code, subject))
    }

    /// Asks any broker for the metadata of one topic, or of all there are. Blocks.
    pub(super) fn metadata(&self, topic: Option<&str>, timeout: Duration) -> Result<rdkafka::metadata::Metadata> {
        let metadata = self.fetch_metadata(topic, timeout).map_err(|error| {
            let last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let code = code(&error);
            let because = if last.is_empty() { code.to_string() } else { last };
            match self.tracker.now() {
                Connection::Refused(error) => error,
                Connection::Up | Connection::Down { .. } => {
                    Error::new(Kind::KafkaUnreachable, format!("no Kafka broker answers: {because}"))
                        .remedy(faults::REACH)
                }
            }
        })?;
        // One that has just started, or was fenced, knows of none. Nobody could be sent anything.
        if metadata.brokers().is_empty() {
            let what = "a Kafka broker answers, and knows of none that is ready, itself included";
            return Err(Error::new(Kind::KafkaUnreachable, what).remedy("look at the log of Kafka's controllers"));
        }
        self.tracker.up();
        Ok(metadata)
    }

    /// See [`Producer::give_up`].
    pub(super) fn give_up(&self) -> Option<usize> {
        let records = Some(self.shared.outstanding.load(Ordering::Relaxed)).filter(|records| *records > 0)?;
        self.shared.failed.store(true, Ordering::Release);
        self.client.purge(PurgeConfig::default().queue().inflight().non_blocking());
        self.apart.purge();
        Some(records)
    }

    /// Whether librdkafka knows of no broker of the cluster: none has answered yet, or all are forgotten.
    pub(super) fn knows_no_broker(&self) -> bool {
        bootstrap::knows_no_broker(self.client.client()) || self.apart.knows_no_broker()
    }

    /// Has librdkafka ask these servers for the cluster again.
    pub(super) fn add_servers(&self, servers: &CStr) {
        bootstrap::add(self.client.client(), servers);
        self.apart.add_servers(servers);
    }

    /// In slices, because nothing interrupts librdkafka and closing waits for the end of one. Each is twice as long as
    /// the one before: an answer that takes long still has the time.
    fn fetch_metadata(
        &self,
        topic: Option<&str>,
        timeout: Duration,
    ) -> Result<rdkafka::metadata::Metadata, KafkaError> {
        let deadline = Instant::now() + timeout;
        let mut slice = FIRST_SLICE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = self.client.client().fetch_metadata(topic, slice.min(left));
            if answer.is_ok() || slice >= left || self.closing.load(Ordering::Relaxed) {
                return answer;
            }
            slice *= 2;
        }
    }
}

/// Ends a producer on a thread of its own: gives up what is queued or in flight, then frees it.
///
/// Requests on the wire may still be written by the broker: they extend what it has of this producer without a gap.
pub(super) fn retire(inner: Arc<Inner>) {
    inner.closing.store(true, Ordering::Relaxed);
    let end = move || {
        inner.abort_transaction();
        inner.client.purge(PurgeConfig::default().queue().inflight());
        inner.apart.purge();
        let mut inner = inner;
        loop {
            // Others hold it for the length of one call; freeing it blocks, so it has to happen here.
            match Arc::try_unwrap(inner) {
                Ok(last) => return drop(last),
                Err(shared) => inner = shared,
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    if let Err(error) = std::thread::Builder::new().name("kafka-close".to_owned()).spawn(end) {
        tracing::warn!(%error, "no thread to close the producer on; closing it here");
    }
}

/// What became of a record, for whoever waits for it.
type Reply = oneshot::Receiver<Result<()>>;

/// A handle on the sink's producer for records that are not events: the position. Cheap to clone.
///
/// It does not keep the producer alive: when the sink is closed or dropped, it fails with [`Kind::KafkaUnreachable`].
#[derive(Clone)]
pub struct Producer {
    pub(super) inner: Weak<Inner>,
    pub(super) tracker: Arc<Tracker>,
}

impl Producer {
    /// Delivers one record and waits for the broker's ack, as long as that takes.
    ///
    /// A cancelled call leaves the record on its way.
    ///
    /// # Errors
    /// Why it was not delivered; the table in [`faults`] says what kind that is.
    pub async fn deliver(&self, topic: &str, partition: i32, key: &[u8], value: &[u8]) -> Result<()> {
        let reply = self.sent(topic, partition, key, value).await?;
        reply.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Hands one record to librdkafka, once there is room; the receiver is told what became of it.
    pub(super) async fn sent(&self, topic: &str, partition: i32, key: &[u8], value: &[u8]) -> Result<Reply> {
        loop {
            match self.offer(topic, partition, key, value)? {
                Some(reply) => return Ok(reply),
                None => tokio::time::sleep(FULL_RETRY).await,
            }
        }
    }

    /// The producer, unless it was closed.
    pub(super) fn alive(&self) -> Result<Arc<Inner>> {
        self.inner.upgrade().filter(|inner| !inner.closing.load(Ordering::Relaxed)).ok_or_else(closed)
    }

    /// Gives up everything that Kafka has not acked, and says how many records that was; none where there were none. The
    /// producer takes no more from here on, and is good for nothing but to be closed.
    ///
    /// What the operating system has been handed already goes its way, and may still be written by a broker.
    pub fn give_up(&self) -> Option<usize> {
        self.inner.upgrade()?.give_up()
    }

    /// Waits until Kafka has refused us for some seconds on end, and says why.
    pub async fn unusable(&self) -> Error {
        self.tracker.unusable().await
    }

    /// `None`: the queue is full.
    fn offer(&self, topic: &str, partition: i32, key: &[u8], value: &[u8]) -> Result<Option<Reply>> {
        let inner = self.alive()?;
        inner.shared.sends_to(topic);
        let (opaque, reply) = inner.shared.await_one();
        let record = BaseRecord::with_opaque_to(topic, opaque).partition(partition).key(key).payload(value);
        let Err(error) = inner.send(record) else { return Ok(Some(reply)) };
        inner.shared.forget(opaque);
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull) {
            return Ok(None);
        }
        let record_bytes = Some(key.len() + value.len());
        Err(inner.refusal(
            &error,
            Subject { topic: Some(topic), partition: Some(partition), record_bytes, ..Subject::default() },
        ))
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Producer")
    }
}

pub(super) fn closed() -> Error {
    Error::new(Kind::KafkaUnreachable, "the Kafka producer was closed")
}
