//! librdkafka's producer: owned by the sink, and lent to the position store.
//!
//! `rdkafka`'s own `ThreadedProducer` polls for 100 ms at a time, idle or not. In the last
//! millisecond of each poll it asks the clock without a pause, which takes a hundredth of a core.
//! Here a producer is polled only while records are in flight. A producer with transactions is
//! polled always: the relay has to hear of a connection that breaks under a commit before the next
//! transaction begins (see [`Doubt`]).
//!
//! In transactions, records and the position after them become visible together. Of two producers
//! with one transactional id only the younger may write. A transaction begins with the first record
//! after a commit. Each fault of a transaction ends its producer, and so does each possible fault:
//! librdkafka does not have KIP-890, so a commit that was sent twice can end a *later* transaction
//! of the same producer (see `Doubt`). The next producer ends the transaction of the previous one,
//! and continues after the committed position.
//!
//! Records that the broker may refuse are sent apart: through a second producer, one at a time. To
//! the first producer a refusal is the end, because records behind the refused one may be on their
//! way. With the second nothing is: a record is sent when nothing else is in flight, and nothing is
//! sent before it is reported. So a refusal leaves no gap, and librdkafka goes on with a new epoch.
//! The order of such a record among others is kept by waiting, not by sequence numbers.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, Producer as _, PurgeConfig};
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;

use super::context::{Context, Doubt, Life, Shared, opaque};
use super::faults::{self, Subject, code};
use super::native::{
    Metadata, ProducerClient as Client, Sender, add_servers, cluster_id, knows_no_broker, metadata,
};
use super::options::Options;
use super::topic_reader::off_runtime;
use crate::sink::BusHandle;
use futures_util::future::BoxFuture;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::failpoint;
use walrelay_core::ledger::Ticket;
use walrelay_core::route::Record;
use walrelay_core::sink::Connection;

/// How long one poll waits for reports. Nothing interrupts it, and dropping the producer waits for
/// its end.
const POLL: Duration = Duration::from_millis(100);
/// How often a client that has no record on its way is polled for errors.
const LOOK: Duration = Duration::from_millis(100);
/// The first time-out of a question for metadata, before a look whether anybody still wants them.
const METADATA_FIRST_SLICE: Duration = Duration::from_millis(500);
/// The time-out of a question to the coordinator, before a look whether anybody still wants the
/// answer.
const COORDINATOR_SLICE: Duration = Duration::from_secs(1);
/// How long a coordinator has to end what another producer left open: longer than an election of
/// it.
const INIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two looks whether every record of a transaction is acked: a small part of what a commit
/// takes.
const FLUSH_PAUSE: Duration = Duration::from_millis(1);
/// How long giving up an open transaction may take. The next producer does it otherwise, or the
/// coordinator in its time.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

/// The refusal of a record that would begin a transaction while a request of an earlier one may
/// come late.
const DOUBTFUL: RDKafkaErrorCode = RDKafkaErrorCode::State;

/// librdkafka's producer, whose reports go to its [`Context`] on a thread. A drop abandons what was
/// not acked, and waits for it.
pub(super) struct PolledProducer {
    sender: Sender,
    client: Arc<Client>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PolledProducer {
    fn new(context: Context) -> Result<PolledProducer, KafkaError> {
        let always = context.options.transactional.is_some();
        let config = context.options.client.clone();
        let client: Arc<Client> = Arc::new(config.create_with_context(context)?);
        let ends = Arc::new(AtomicBool::new(false));
        let polled = Arc::clone(&client);
        let told = Arc::clone(&ends);
        let thread = thread::Builder::new()
            .name("kafka-poll".to_owned())
            .spawn(move || poll(&polled, always, &told))
            .map_err(|error| {
                KafkaError::ClientCreation(format!("no thread can be started: {error}"))
            })?;
        Ok(PolledProducer {
            sender: Sender::new(Arc::clone(&client)),
            client,
            ends,
            thread: Some(thread),
        })
    }

    /// Hands one record to librdkafka, which copies it. The record is counted first: its report can
    /// come at once.
    fn send(&self, record: &Record<'_>, opaque: usize) -> Result<(), KafkaError> {
        let outstanding = &self.context().shared.outstanding.records;
        outstanding.fetch_add(1, Ordering::Relaxed);
        self.sender.send(record, opaque).inspect_err(|_| {
            outstanding.fetch_sub(1, Ordering::Relaxed);
        })?;
        self.wake();
        Ok(())
    }

    fn wake(&self) {
        self.thread
            .iter()
            .for_each(|thread| thread.thread().unpark());
    }
}

impl Deref for PolledProducer {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for PolledProducer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.wake();
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            tracing::error!(
                event = "producer_thread_panicked",
                "the thread that polls a Kafka producer has panicked"
            );
        }
    }
}

/// A wake-up before the look at what is on its way is not lost: it ends the next pause at once.
fn poll(client: &Client, always: bool, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        // Errors and other events of librdkafka are counted among them once they are there.
        if always || client.in_flight_count() > 0 {
            client.poll(POLL);
        } else {
            thread::park_timeout(LOOK);
        }
    }
}

/// librdkafka's producers and their shared state, until both are freed.
pub(super) struct Inner {
    pub(super) client: PolledProducer,
    pub(super) shared: Arc<Shared>,
    /// Whether a transaction is open, where records are sent in transactions.
    in_transaction: Mutex<bool>,
    /// The second producer, made with the first record that may be refused.
    apart: Mutex<Option<PolledProducer>>,
    /// Dropped when the producer is gone.
    pub(super) gone: watch::Sender<()>,
}

impl Inner {
    pub(super) fn new(context: Context) -> Result<Inner> {
        let shared = Arc::clone(&context.shared);
        let options = context.options.clone();
        let client =
            PolledProducer::new(context).map_err(|error| options.creation_error(&error))?;
        let in_transaction = Mutex::default();
        let apart = Mutex::default();
        let gone = watch::Sender::new(());
        Ok(Inner {
            client,
            shared,
            in_transaction,
            apart,
            gone,
        })
    }

    pub(super) fn options(&self) -> &Options {
        &self.client.context().options
    }

    pub(super) fn is_transactional(&self) -> bool {
        self.options().transactional.is_some()
    }

    /// Hands the record of an event to librdkafka, which copies it.
    pub(super) fn send_event(&self, record: &Record<'_>, ticket: Ticket) -> Result<(), KafkaError> {
        self.send(record, opaque_of(record, ticket)?)
    }

    /// Hands the record of an event, whose key has this hash, to the second producer.
    pub(super) fn send_apart(
        &self,
        record: &Record<'_>,
        ticket: Ticket,
        hash: u32,
    ) -> Result<(), KafkaError> {
        let opaque = opaque_of(record, ticket)?;
        let mut apart = self.apart.lock();
        let client = match apart.take() {
            Some(client) => client,
            None => PolledProducer::new(self.client.context().apart())?,
        };
        client.context().partitioner.expect(None, hash);
        let sent = client.send(record, opaque);
        *apart = Some(client);
        sent
    }

    fn send(&self, record: &Record<'_>, opaque: usize) -> Result<(), KafkaError> {
        if self.is_transactional() {
            self.begin_transaction()?;
        }
        self.client.send(record, opaque)
    }

    /// The meaning of a failed `send` for this record.
    pub(super) fn refusal(&self, error: &KafkaError, subject: Subject<'_>) -> Error {
        if matches!(error, KafkaError::Nul(_)) {
            return Error::new(Kind::Record, "a topic name holds a NUL character")
                .remedy("correct the aggregate type");
        }
        if let Some(fatal) = self.fatal(subject) {
            return fatal;
        }
        let code = faults::of_record(code(error), subject.partition.is_some());
        if let Some(doubt) = self.shared.doubt.get().filter(|_| code == DOUBTFUL) {
            let what = format!(
                "{doubt}, and something of this producer may come late; the next transaction is \
                 another one's"
            );
            return Error::new(Kind::BusUnreachable, what);
        }
        faults::explain(code, subject)
    }

    /// The fatal error this producer ended with, if it did.
    pub(super) fn fatal(&self, subject: Subject<'_>) -> Option<Error> {
        let (code, reason) = self.client.client().fatal_error()?;
        Some(faults::explain(code, subject).because(self.options().redactor.clean(&reason)))
    }

    fn begin_transaction(&self) -> Result<(), KafkaError> {
        let mut is_open = self.in_transaction.lock();
        if !*is_open {
            if self.shared.doubt.get().is_some() {
                return Err(KafkaError::MessageProduction(DOUBTFUL));
            }
            self.client.begin_transaction()?;
            *is_open = true;
        }
        Ok(())
    }

    /// Fences every older producer of this id and waits for the end of what it left open. Blocks.
    pub(super) fn init_transactions(&self) -> Result<()> {
        let deadline = Instant::now() + INIT_TIMEOUT;
        loop {
            let Err(error) = self.client.init_transactions(COORDINATOR_SLICE) else {
                return Ok(());
            };
            let goes_on = matches!(&error, KafkaError::Transaction(error) if error.is_retriable());
            if !goes_on || Instant::now() > deadline || self.shared.is_closing() {
                let id = self
                    .options()
                    .transactional
                    .as_ref()
                    .map_or("", |of| &of.id);
                return Err(self
                    .transaction_error(&error)
                    .about(format_args!("transactional id {id}")));
            }
        }
    }

    /// Waits for the acks of the transaction's records, then commits. Blocks.
    ///
    /// On an error the producer takes no further records: the outcome of the transaction is not
    /// known.
    fn commit_transaction(&self) -> Result<()> {
        let of = self.options().transactional.as_ref();
        let deadline = Instant::now()
            + of.ok_or_else(|| Error::new(Kind::Bug, "no transactions here"))?
                .timeout;
        let mut asked_at = None;
        let committed = loop {
            let waited = self.client.flush(Duration::ZERO).and_then(|()| {
                let now = Instant::now();
                asked_at.get_or_insert(now);
                self.client.commit_transaction(
                    deadline
                        .saturating_duration_since(now)
                        .min(COORDINATOR_SLICE),
                )
            });
            match waited {
                Ok(()) => break Ok(()),
                Err(error)
                    if Instant::now() > deadline
                        || self.shared.has_ended()
                        || !is_under_way(&error) =>
                {
                    break Err(error);
                }
                // The library's own wait looks ten times a second.
                Err(KafkaError::Flush(_)) => thread::sleep(FLUSH_PAUSE),
                // The commit goes on, and is waited for again. Only librdkafka itself sends it
                // again: see `Doubt`.
                Err(_) => {}
            }
        };
        if let Err(error) = committed {
            self.shared.advance(Life::Failed);
            return Err(self
                .transaction_error(&error)
                .about("the transaction is not known to be committed"));
        }
        self.shared
            .note_doubt(asked_at.and_then(|asked_at| Doubt::of_commit(asked_at.elapsed())));
        *self.in_transaction.lock() = false;
        Ok(())
    }

    fn transaction_error(&self, error: &KafkaError) -> Error {
        let transactional_id = self
            .options()
            .transactional
            .as_ref()
            .map(|of| of.id.as_str());
        let subject = Subject {
            transactional_id,
            ..Subject::default()
        };
        if let Some(fatal) = self.fatal(subject) {
            return fatal;
        }
        let mut explained = faults::explain(code(error), subject);
        if let KafkaError::Transaction(error) = error {
            explained = explained.because(self.options().redactor.clean(&error.string()));
        }
        let reason = self
            .shared
            .tracker
            .reason()
            .filter(|_| !self.shared.tracker.is_up());
        reason.into_iter().fold(explained, Error::because)
    }

    /// Asks any broker for the metadata of one topic, or of all there are. Blocks.
    pub(super) fn metadata(&self, topic: Option<&str>, timeout: Duration) -> Result<Metadata> {
        let metadata = self.fetch_metadata(topic, timeout).map_err(|error| {
            match self.shared.tracker.now() {
                Connection::Refused(error) => error,
                Connection::Up | Connection::Blocked(_) | Connection::Down { .. } => {
                    let because = self
                        .shared
                        .tracker
                        .reason()
                        .unwrap_or_else(|| error.to_string());
                    Error::new(
                        Kind::BusUnreachable,
                        format!("no Kafka broker answers: {because}"),
                    )
                    .remedy(faults::REACH)
                }
            }
        })?;
        // A broker that has just started, or was fenced, knows of none. No record could be sent to
        // any.
        if metadata.brokers.is_empty() {
            let what = "a Kafka broker answers, and knows of none that is ready, itself included";
            return Err(Error::new(Kind::BusUnreachable, what)
                .remedy("look at the log of Kafka's controllers"));
        }
        self.same_cluster()?;
        self.shared.tracker.up();
        Ok(metadata)
    }

    /// Whether the cluster that answers is the one of before, as far as brokers tell. Call it
    /// before an ack counts. Errors: [`Kind::PositionMismatch`]: it is another one, or was. The
    /// producer is finished.
    pub(super) fn same_cluster(&self) -> Result<()> {
        let home = &self.shared.home;
        let checked =
            home.check(cluster_id(self.client.client()))
                .and_then(|()| match &*self.apart.lock() {
                    Some(apart) => home.check(cluster_id(apart.client())),
                    None => Ok(()),
                });
        checked.inspect_err(|error| {
            self.shared.advance(Life::Failed);
            self.shared.tracker.refused(error.clone());
        })
    }

    /// The id of the cluster; none where its brokers do not tell. Blocks until one has answered.
    fn cluster_id(&self) -> Result<Option<String>> {
        self.same_cluster()?;
        if self.shared.home.id().is_none() {
            self.metadata(None, ANSWER_TIMEOUT)?;
        }
        Ok(self.shared.home.id().cloned())
    }

    /// In slices, because nothing interrupts librdkafka and closing waits for the end of one. Each
    /// is twice as long as the one before: an answer that takes long still has the time.
    fn fetch_metadata(
        &self,
        topic: Option<&str>,
        timeout: Duration,
    ) -> Result<Metadata, RDKafkaErrorCode> {
        let deadline = Instant::now() + timeout;
        let mut slice = METADATA_FIRST_SLICE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = metadata(self.client.client(), topic, slice.min(left));
            if answer.is_ok() || slice >= left || self.shared.is_closing() {
                return answer;
            }
            slice *= 2;
        }
    }

    /// Whether one of the producers knows of no broker of the cluster.
    pub(super) fn knows_no_broker(&self) -> bool {
        knows_no_broker(self.client.client())
            || self
                .apart
                .lock()
                .as_ref()
                .is_some_and(|apart| knows_no_broker(apart.client()))
    }

    /// Has librdkafka ask the bootstrap servers for the cluster again.
    fn add_servers(&self) {
        let servers = &self.options().servers;
        add_servers(self.client.client(), servers);
        self.apart
            .lock()
            .iter()
            .for_each(|apart| add_servers(apart.client(), servers));
    }

    fn purge(&self) {
        let all = || PurgeConfig::default().queue().inflight().non_blocking();
        self.client.purge(all());
        self.apart
            .lock()
            .iter()
            .for_each(|client| client.purge(all()));
    }

    /// Ends the producer on a thread of its own: abandons what is queued or in flight, then frees
    /// it.
    ///
    /// Requests on the wire may still be written by the broker: they extend what it has of this
    /// producer without a gap.
    pub(super) fn retire(self: Arc<Inner>) {
        self.shared.advance(Life::Closing);
        let mut inner = self;
        let end = move || {
            if *inner.in_transaction.lock()
                && let Err(error) = inner.client.abort_transaction(ABORT_TIMEOUT)
            {
                tracing::debug!(%error, "an open transaction was left to whoever comes next");
            }
            inner.purge();
            loop {
                // Others hold it for the length of one call; freeing it blocks, so it has to happen
                // here.
                match Arc::try_unwrap(inner) {
                    Ok(last) => return drop(last),
                    Err(shared) => inner = shared,
                }
                thread::sleep(Duration::from_millis(10));
            }
        };
        if let Err(error) = thread::Builder::new()
            .name("kafka-close".to_owned())
            .spawn(end)
        {
            tracing::warn!(event = "thread_creation_failed", %error,
                "no thread to close the producer on; closing it here");
        }
    }
}

/// How often a broker is asked while none answers.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How often the probe looks whether brokers are known and records are acked.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A broker is asked after so long without a report, while records are in flight.
const SILENT: Duration = Duration::from_secs(5);
/// The same while none is in flight: the answer may hold every topic of the cluster.
const IDLE: Duration = Duration::from_secs(60);
/// How long the answer may take. Closing waits for it; a connection that takes longer is there the
/// next time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause before the bootstrap servers are given a second time. Each pause is twice as long as
/// the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause. librdkafka keeps each list it is given: some 200 KB in a day.
const LONGEST_PAUSE: Duration = Duration::from_secs(32);

/// Looks after a producer, in a task: whether a broker answers, and whether one is known. Holds the
/// producer while looking.
///
/// librdkafka reports no connection that was made; of recovery see [`knows_no_broker`].
pub(super) struct Probe {
    inner: Weak<Inner>,
    shared: Arc<Shared>,
    /// When a delivery was last reported, or a broker asked.
    heard: Instant,
    /// When the servers may be given again, while no broker is known.
    next_add: Instant,
    pause: Duration,
}

impl Probe {
    pub(super) fn new(inner: &Arc<Inner>) -> Probe {
        let shared = Arc::clone(&inner.shared);
        let inner = Arc::downgrade(inner);
        let now = Instant::now();
        Probe {
            inner,
            shared,
            heard: now,
            next_add: now + FIRST_PAUSE,
            pause: FIRST_PAUSE,
        }
    }

    pub(super) async fn run(mut self) {
        let mut is_suspected = true;
        while let Some(inner) = self
            .inner
            .upgrade()
            .filter(|inner| !inner.shared.is_closing())
        {
            self.look(inner, is_suspected).await;
            let pause = if self.shared.tracker.is_up() {
                LOOK_EVERY
            } else {
                ASK_EVERY
            };
            is_suspected = tokio::time::timeout(pause, self.shared.suspicion.notified())
                .await
                .is_ok();
        }
    }

    async fn look(&mut self, inner: Arc<Inner>, is_suspected: bool) {
        let knows_no_broker = inner.knows_no_broker();
        self.give_servers(&inner, knows_no_broker);
        let reported = self
            .shared
            .outstanding
            .reported
            .swap(false, Ordering::Relaxed);
        let in_flight = self.shared.outstanding.records.load(Ordering::Relaxed) > 0;
        let is_silent = !reported && self.heard.elapsed() >= if in_flight { SILENT } else { IDLE };
        let is_doubtful =
            is_suspected || is_silent || knows_no_broker || !self.shared.tracker.is_up();
        if is_doubtful {
            let looked = off_runtime(move || {
                // One topic, where there is one: a cluster may have very many.
                let topic = inner.shared.topic.get().map(String::as_str);
                let Err(error) = inner.metadata(topic, ANSWER_TIMEOUT) else {
                    return Ok(());
                };
                let tracker = &inner.shared.tracker;
                let options = inner.options();
                if !(tracker.is_up()
                    && tracker.reason().is_none()
                    && answers_anew(&options.client, topic))
                {
                    inner.client.context().is_down(error.to_string());
                }
                Ok(())
            });
            looked.await.unwrap_or_default();
        }
        if is_doubtful || reported {
            self.heard = Instant::now();
        }
    }

    /// Gives librdkafka its bootstrap servers where it has forgotten them.
    fn give_servers(&mut self, inner: &Inner, knows_no_broker: bool) {
        let now = Instant::now();
        if !knows_no_broker {
            self.next_add = now;
            self.pause = FIRST_PAUSE;
        } else if self.next_add <= now {
            inner.add_servers();
            self.next_add = now + self.pause;
            self.pause = LONGEST_PAUSE.min(self.pause * 2);
        }
    }
}

/// Whether a broker answers over a new connection. One that throttles a client lets the requests
/// wait that come over the connections of before, and answers others: it is not away.
fn answers_anew(config: &ClientConfig, topic: Option<&str>) -> bool {
    let mut config = config.clone();
    config.remove("transactional.id");
    config
        .set("enable.idempotence", "false")
        .set("enable.gapless.guarantee", "false")
        .set("statistics.interval.ms", "0");
    let client: Result<BaseProducer, KafkaError> = config.create();
    client.is_ok_and(|client| metadata(client.client(), topic, ANSWER_TIMEOUT).is_ok())
}

fn opaque_of(record: &Record<'_>, ticket: Ticket) -> Result<usize, KafkaError> {
    opaque(ticket, record.partition.is_some()).map_err(|_| KafkaError::Canceled)
}

/// Whether the flush or the commit is still being done.
fn is_under_way(error: &KafkaError) -> bool {
    let is_timeout = code(error) == RDKafkaErrorCode::OperationTimedOut;
    let goes_on = matches!(error, KafkaError::Transaction(error) if error.is_retriable());
    is_timeout && (goes_on || matches!(error, KafkaError::Flush(_)))
}

type Reply = oneshot::Receiver<Result<()>>;

/// A handle on the sink's producer for records that are not events: the position. Cheap to clone.
///
/// It does not keep the producer alive: when the sink is closed or dropped, it fails with
/// [`Kind::BusUnreachable`].
#[derive(Debug, Clone)]
pub struct Producer {
    inner: Weak<Inner>,
    shared: Arc<Shared>,
}

impl Producer {
    pub(super) fn of(inner: &Arc<Inner>) -> Producer {
        Producer {
            inner: Arc::downgrade(inner),
            shared: Arc::clone(&inner.shared),
        }
    }

    /// Delivers one record and waits for the broker's ack, as long as that takes.
    ///
    /// A cancelled call leaves the record on its way.
    pub async fn deliver(
        &self,
        topic: &str,
        partition: i32,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let reply = self.sent(topic, partition, key, value)?;
        reply.await.unwrap_or_else(|_| Err(closed()))?;
        self.alive()?.same_cluster()
    }

    /// Whether records become visible by [`Producer::commit`] only.
    pub fn is_transactional(&self) -> bool {
        self.inner
            .upgrade()
            .is_some_and(|inner| inner.is_transactional())
    }

    /// Sends one record behind all others of the open transaction and commits them together. Send
    /// nothing else meanwhile.
    ///
    /// # Errors
    /// It is not known to be committed. The producer is finished: what was committed has to be
    /// read.
    pub async fn commit(
        &self,
        topic: &str,
        partition: i32,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let reply = self.sent(topic, partition, key, value)?;
        failpoint::reached("committing");
        let inner = self.alive()?;
        let committed = spawn_blocking(move || inner.commit_transaction());
        committed
            .await
            .map_err(|error| Error::new(Kind::Bug, error))??;
        reply.await.unwrap_or_else(|_| Err(closed()))?;
        self.alive()?.same_cluster()
    }

    /// Hands one record to librdkafka; the receiver is told what became of it.
    fn sent(&self, topic: &str, partition: i32, key: &[u8], value: &[u8]) -> Result<Reply> {
        let inner = self.alive()?;
        self.shared.sends_to(topic);
        let (opaque, reply) = self.shared.awaited.begin();
        let record = Record {
            topic,
            partition: Some(partition),
            key: Some(key),
            value: Some(value),
            ..Record::default()
        };
        inner.send(&record, opaque).map_err(|error| {
            self.shared.awaited.end(opaque);
            inner.refusal(
                &error,
                Subject::of_record(topic, partition, key.len() + value.len()),
            )
        })?;
        Ok(reply)
    }

    /// The producer, unless it was closed.
    fn alive(&self) -> Result<Arc<Inner>> {
        self.inner
            .upgrade()
            .filter(|_| !self.shared.is_closing())
            .ok_or_else(closed)
    }
}

fn closed() -> Error {
    Error::new(Kind::BusUnreachable, "the Kafka producer was closed")
}

impl BusHandle for Producer {
    /// Gives up everything that Kafka has not acked, and says how many records that was; none where
    /// there were none. The producer takes no more from here on, and is good for nothing but to be
    /// closed.
    ///
    /// Requests that the operating system has may still be written by a broker.
    fn abandon(&self) -> Option<usize> {
        let inner = self.inner.upgrade()?;
        let records = Some(self.shared.outstanding.records.load(Ordering::Relaxed))
            .filter(|records| *records > 0)?;
        self.shared.advance(Life::Failed);
        inner.purge();
        Some(records)
    }

    fn unusable(&self) -> BoxFuture<'_, Error> {
        Box::pin(async { self.shared.tracker.unusable().await })
    }

    /// The id of the cluster; none where its brokers do not tell.
    /// Errors: [`Kind::PositionMismatch`]: it is another one than before. Those of a question for
    /// metadata.
    fn cluster_id(&self) -> BoxFuture<'_, Result<Option<String>>> {
        Box::pin(async {
            let inner = self.alive()?;
            off_runtime(move || inner.cluster_id()).await
        })
    }

    fn producer(&self) -> Option<Producer> {
        Some(self.clone())
    }
}
