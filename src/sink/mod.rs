//! The sinks. The relay knows [`Sink`], [`BusSink`] and [`AnySink`]; another bus is a folder beside
//! `kafka` or `webhook`, a line of `buses!` below, and a row in `config::sink_kind`.

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, LocalBoxFuture};
use strum::VariantArray as _;
use tokio::sync::watch;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::ledger::Ticket;
use walrelay_core::route::{OwnedRecord, Record};
use walrelay_core::sink::{Connection, Delivery, EnqueueError, Sink};

use crate::config::{Config, SinkKind};
use crate::survey::{BUS, Seen, Survey};

pub(crate) mod connection;
pub(crate) mod kafka;
#[cfg(any(
    feature = "nats",
    feature = "rabbitmq",
    feature = "smtp",
    feature = "webhook"
))]
mod lanes;
#[cfg(any(
    feature = "nats",
    feature = "rabbitmq",
    feature = "smtp",
    feature = "webhook"
))]
mod login;
#[cfg(feature = "nats")]
mod nats;
mod null;
#[cfg(any(feature = "nats", feature = "rabbitmq"))]
mod present;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "smtp")]
mod smtp;
mod stdout;
#[cfg(feature = "webhook")]
mod webhook;

pub use kafka::KafkaSink;
pub(crate) use kafka::native::linked_libraries;
pub use kafka::options::Transactional;
pub use kafka::producer::Producer;
pub(crate) use kafka::properties::check_properties;
pub use kafka::topic_reader::TopicRecord;
pub(crate) use null::NullSink;
pub use stdout::StdoutSink;
pub(crate) use stdout::{json_of, printed};

/// Takes one of the newest records of a topic, with its offset in its partition, and says whether
/// it looks for this one.
pub type TakeRecord<'a> = dyn FnMut(&Record<'_>, i64) -> bool + 'a;

/// Reads the ends of topics, one after the other. Blocks.
pub trait TailReader: Send {
    /// Shows `take` the newest records of `topic`, until `deadline`.
    fn read_tail(
        &mut self,
        topic: &str,
        deadline: Instant,
        take: &mut TakeRecord<'_>,
    ) -> Result<()>;
}

/// Reads the topics of a bus: joins no group, and changes nothing. Blocks.
pub trait ReadTopics: Send {
    /// Gives `take` the records of a topic, those of a partition in their order: from those of
    /// `since_ms` on, in milliseconds since the Unix epoch, until `take` breaks, and from there to
    /// the end that the topic has then. A topic that is not there is waited for until `take`
    /// breaks.
    fn read_topic(
        &mut self,
        topic: &str,
        since_ms: Option<i64>,
        take: &mut dyn FnMut(Step<'_>) -> ControlFlow<()>,
    ) -> Result<Extent>;
}

/// What [`ReadTopics`] comes to.
pub enum Step<'a> {
    /// The topic is there, with at least so many places for records.
    Begin(u64),
    /// The next one.
    Record(&'a TopicRecord<'a>),
    /// None has come for a moment.
    Nothing,
}

/// What is known of a topic that was read.
#[derive(Debug)]
pub struct Extent {
    pub(crate) is_absent: bool,
    /// Whether records at its beginning are deleted that may be asked for.
    pub(crate) is_cut: bool,
}

/// A sink of this process for one bus. What a bus has not is as the defaults say.
pub trait BusSink: Sink + Sized {
    /// Memory for a record beside its own bytes, from its enqueueing to its ack.
    const RECORD_COST_BYTES: usize = 64;

    /// Makes the sink. Connects in the background.
    fn connect(config: &Config) -> Result<Self>;

    /// The same for asking on behalf of another: it does not log what it finds.
    fn for_asking(config: &Config) -> Result<Self> {
        Self::connect(config)
    }

    /// Makes a sink that writes in transactions, where no older one of this id can write any more.
    fn transactional(_: &Config, _: &Transactional) -> impl Future<Output = Result<Self>> + Send {
        async { Err(Error::new(Kind::Bug, "transactions of a bus without any")) }
    }

    /// A reader of what topics hold at a start; none where a bus cannot tell.
    fn tails(_: &Config) -> Result<Option<Box<dyn TailReader>>> {
        Ok(None)
    }

    /// `error`, unless nobody refused anything: then the error to try again after.
    fn judged(error: Error, _: &Config) -> impl Future<Output = Error> + Send {
        async { error }
    }

    /// Makes `config` send smaller batches, where a record of `record_bytes` may only have been in
    /// a batch that is too large. Gives the bytes of a batch, and how to avoid this.
    fn reduce_batches(_: &mut Config, _record_bytes: usize) -> Option<(usize, &'static str)> {
        None
    }

    /// Whether the topic takes no records from anybody.
    fn is_internal(_topic: &str) -> bool {
        false
    }

    /// Makes sinks of `config` count no ack of another cluster than this one.
    fn expect_cluster(_: &mut Config, _id: Option<String>) {}

    /// A handle; none of a sink that could neither be away nor refuse us.
    fn handle(&self) -> SinkHandle {
        SinkHandle(None)
    }

    /// Whether the bus answers, to be woken at each change.
    fn watch_connection(&self) -> watch::Receiver<Connection> {
        watch::channel(Connection::Up).1
    }

    /// The `max` topics that got most records from this sink, and how many, most first; none where
    /// the bus does not tell.
    fn busiest_topics(&self, _max: usize) -> Vec<(&str, u64)> {
        Vec::new()
    }

    /// The average time that the slowest server took to answer requests of late, where the client
    /// reports it.
    fn round_trip(&self) -> Option<Duration> {
        None
    }

    /// The average time for which a server made requests wait for a quota of late, where one did.
    fn throttle(&self) -> Option<Duration> {
        None
    }

    /// How often a topic got another number of partitions since this was asked last.
    fn take_partition_changes(&self) -> u64 {
        0
    }

    /// The last refusal of a record that is tried again, since this was asked last. Other records
    /// go on meanwhile.
    fn take_refusal(&mut self) -> Option<Error> {
        None
    }

    /// Asks which of `topics` are not there. Creates none. With no topic it asks whether the bus
    /// answers: a relay takes its slot after that.
    ///
    /// # Errors
    /// [`Kind::BusUnreachable`], [`Kind::BusRefused`].
    fn missing(
        &self,
        _topics: &[&str],
        _timeout: Duration,
    ) -> impl Future<Output = Result<Vec<String>>> + Send {
        async { Ok(Vec::new()) }
    }

    /// Gives up what was not acked and frees the sink. Dropping does the same without waiting for
    /// the end.
    fn close(self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// See [`BusChecks::admission`].
pub(crate) type Admission = Box<dyn Fn(&Record<'_>) -> Result<()>>;

/// What a bus tells commands before anything is sent. What a bus has not is as the defaults say.
pub(crate) trait BusChecks: Sync {
    /// What makes connections weaker than they look, without secrets.
    fn weaknesses(&self, _: &Config) -> Vec<String> {
        Vec::new()
    }

    /// The placeholders in commands of the bus's tools, each with what replaces it.
    fn placeholders(&self, _: &Config) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// The size of a record, as the bus counts it.
    fn record_bytes(&self, record: &Record<'_>) -> usize {
        record.bytes()
    }

    /// What tells of a record whether the bus can ever take it, as far as its client knows.
    /// Connects to nothing. Errors: the settings make no client.
    fn admission(&self, _: &Config) -> Result<Admission> {
        Ok(Box::new(|_| Ok(())))
    }

    /// Reads topics. None where nothing is read back from the bus.
    fn reader(&self, _: &Config) -> Result<Option<Box<dyn ReadTopics>>> {
        Ok(None)
    }

    /// Adds the checks of the bus. Gives the id of the cluster, if a server tells.
    fn survey<'a>(
        &self,
        config: &'a Config,
        _: &'a Seen,
        survey: &'a mut Survey,
    ) -> LocalBoxFuture<'a, Option<String>> {
        let kind: &str = config.sink.kind.into();
        survey.ok(BUS, "", format!("none to ask: sink.kind is {kind}"));
        Box::pin(async { None })
    }
}

/// The warning about connections to a server elsewhere without TLS. `setting` tells how to have it.
fn not_encrypted(kind: SinkKind, server: &str, setting: &str) -> String {
    let name = kind.bus().name;
    format!(
        "{name}: the connection to {server} is not encrypted, and nobody knows who answers: see \
         {setting}"
    )
}

/// Of a sink of this process.
struct NoChecks;

impl BusChecks for NoChecks {}

/// What a handle can do: see [`SinkHandle`].
pub trait BusHandle: Send + Sync + std::fmt::Debug {
    /// Abandons all records that were not acked, and says how many records that was; none where
    /// there were none, and then the sink goes on. Otherwise it takes no more, and reports a
    /// failure.
    fn abandon(&self) -> Option<usize>;
    /// Waits until the bus has refused us for some seconds on end, and says why.
    fn unusable(&self) -> BoxFuture<'_, Error>;
    /// The id of the cluster of servers; none where they do not tell.
    fn cluster_id(&self) -> BoxFuture<'_, Result<Option<String>>>;
    /// The producer, for a position that is kept in topics.
    fn producer(&self) -> Option<Producer>;
}

/// A handle on a sink, which one task owns. Cheap to clone; does not keep the sink alive.
#[derive(Debug, Clone)]
pub struct SinkHandle(Option<Arc<dyn BusHandle>>);

impl SinkHandle {
    pub(crate) fn of(handle: impl BusHandle + 'static) -> SinkHandle {
        SinkHandle(Some(Arc::new(handle)))
    }

    /// Abandons all records that were not acked, and says how many records that was; none where
    /// there were none.
    pub(crate) fn abandon(&self) -> Option<usize> {
        self.0.as_ref()?.abandon()
    }

    /// Waits until the bus has refused us for some seconds on end, and says why.
    pub(crate) async fn unusable(&self) -> Error {
        match &self.0 {
            Some(handle) => handle.unusable().await,
            None => std::future::pending().await,
        }
    }

    /// The id of the cluster of servers; none where they do not tell, or there is none.
    /// Errors: it is another one than before; no server answers.
    pub(crate) async fn cluster_id(&self) -> Result<Option<String>> {
        match &self.0 {
            Some(handle) => handle.cluster_id().await,
            None => Ok(None),
        }
    }

    /// The producer, for a position that is kept in topics.
    pub(crate) fn producer(&self) -> Result<Producer> {
        let producer = self.0.as_ref().and_then(|handle| handle.producer());
        producer.ok_or_else(|| {
            Error::new(
                Kind::Bug,
                "the position is kept in topics of a bus that has none",
            )
        })
    }
}

/// Makes [`AnySink`], [`checks`], and what calls the sink of one (`on!`) or the type of a kind
/// (`of!`). A line has the sink and the [`BusChecks`] of a kind.
macro_rules! buses {
    ($d:tt $($([$feature:literal])? $kind:ident($sink:ty, $checks:expr)),+ $(,)?) => {
        /// The sink of `sink.kind`.
        pub enum AnySink {
            $(
                $(#[cfg(feature = $feature)])?
                #[doc = concat!("That of `SinkKind::", stringify!($kind), "`.")]
                $kind(Box<$sink>),
            )+
        }

        /// What the bus of `sink.kind` tells.
        pub(crate) fn checks(kind: SinkKind) -> &'static dyn BusChecks {
            match kind {
                $($(#[cfg(feature = $feature)])? SinkKind::$kind => &$checks,)+
            }
        }

        macro_rules! on {
            ($d any:expr, $d sink:ident => $d call:expr) => {
                match $d any {
                    $($(#[cfg(feature = $feature)])? AnySink::$kind($d sink) => $d call,)+
                }
            };
        }

        macro_rules! of {
            ($d kind:expr, $d bus:ident => $d call:expr) => {
                match $d kind {
                    $($(#[cfg(feature = $feature)])? SinkKind::$kind => {
                        type $d bus = $sink;
                        $d call
                    })+
                }
            };
        }

        $(
            $(#[cfg(feature = $feature)])?
            impl From<$sink> for AnySink {
                fn from(sink: $sink) -> AnySink {
                    AnySink::$kind(Box::new(sink))
                }
            }
        )+
    };
}

buses! { $
    Kafka(KafkaSink, kafka::survey::KafkaChecks),
    ["nats"] Nats(nats::NatsSink, lanes::LaneChecks::<nats::Nats>::NEW),
    ["rabbitmq"] Rabbitmq(
        rabbitmq::RabbitmqSink,
        lanes::LaneChecks::<rabbitmq::Rabbitmq>::NEW
    ),
    ["smtp"] Smtp(smtp::SmtpSink, lanes::LaneChecks::<smtp::Smtp>::NEW),
    ["webhook"] Webhook(webhook::WebhookSink, lanes::LaneChecks::<webhook::Webhook>::NEW),
    Stdout(StdoutSink, NoChecks),
    Null(NullSink, NoChecks),
}

impl Sink for AnySink {
    #[inline]
    fn enqueue(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        on!(self, sink => sink.enqueue(record, ticket))
    }

    fn enqueue_apart(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        on!(self, sink => sink.enqueue_apart(record, ticket))
    }

    fn retry(&mut self, refused: Ticket, wait: Duration) {
        on!(self, sink => sink.retry(refused, wait));
    }

    fn withdraw(&mut self, refused: Ticket) -> Vec<(Ticket, Arc<OwnedRecord>)> {
        on!(self, sink => sink.withdraw(refused))
    }

    async fn deliveries(&mut self, into: &mut Vec<Delivery>) {
        on!(self, sink => sink.deliveries(into).await)
    }
}

impl BusSink for AnySink {
    fn connect(config: &Config) -> Result<AnySink> {
        of!(config.sink.kind, Of => <Of as BusSink>::connect(config).map(AnySink::from))
    }

    fn for_asking(config: &Config) -> Result<AnySink> {
        of!(config.sink.kind, Of => <Of as BusSink>::for_asking(config).map(AnySink::from))
    }

    async fn transactional(config: &Config, id: &Transactional) -> Result<AnySink> {
        of!(config.sink.kind, Of => {
            <Of as BusSink>::transactional(config, id).await.map(AnySink::from)
        })
    }

    fn tails(config: &Config) -> Result<Option<Box<dyn TailReader>>> {
        of!(config.sink.kind, Of => Of::tails(config))
    }

    async fn judged(error: Error, config: &Config) -> Error {
        of!(config.sink.kind, Of => Of::judged(error, config).await)
    }

    fn reduce_batches(config: &mut Config, record_bytes: usize) -> Option<(usize, &'static str)> {
        of!(config.sink.kind, Of => Of::reduce_batches(config, record_bytes))
    }

    fn is_internal(topic: &str) -> bool {
        SinkKind::VARIANTS
            .iter()
            .any(|kind| of!(kind, Of => Of::is_internal(topic)))
    }

    fn expect_cluster(config: &mut Config, id: Option<String>) {
        of!(config.sink.kind, Of => Of::expect_cluster(config, id))
    }

    fn handle(&self) -> SinkHandle {
        on!(self, sink => sink.handle())
    }

    fn watch_connection(&self) -> watch::Receiver<Connection> {
        on!(self, sink => BusSink::watch_connection(sink.as_ref()))
    }

    fn busiest_topics(&self, max: usize) -> Vec<(&str, u64)> {
        on!(self, sink => sink.busiest_topics(max))
    }

    fn round_trip(&self) -> Option<Duration> {
        on!(self, sink => sink.round_trip())
    }

    fn throttle(&self) -> Option<Duration> {
        on!(self, sink => sink.throttle())
    }

    fn take_partition_changes(&self) -> u64 {
        on!(self, sink => sink.take_partition_changes())
    }

    fn take_refusal(&mut self) -> Option<Error> {
        on!(self, sink => sink.take_refusal())
    }

    async fn missing(&self, topics: &[&str], timeout: Duration) -> Result<Vec<String>> {
        on!(self, sink => BusSink::missing(sink.as_ref(), topics, timeout).await)
    }

    async fn close(self) {
        on!(self, sink => BusSink::close(*sink).await)
    }
}

impl AnySink {
    pub(crate) fn is_up(&self) -> bool {
        self.watch_connection().borrow().answers()
    }
}

/// Memory for a record of this kind of sink beside its own bytes.
pub(crate) fn record_cost_bytes(kind: SinkKind) -> usize {
    of!(kind, Of => Of::RECORD_COST_BYTES)
}
