//! [`Sink`] on a bus that answers for each record: [`Lanes`] keep the order of each key, and a
//! [`LaneBus`] sends one record.
//!
//! While the bus is away nothing is sent but a probe, with back-off. Records wait in their lanes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use crate::config::{Bus, Config, SinkKind};
use crate::sink::connection::Tracker;
use crate::sink::kafka::producer::Producer;
use crate::sink::{BusHandle, BusSink, SinkHandle};
use walrelay_core::error::{Disposition, Error, Kind, Result};
use walrelay_core::lanes::{AttemptId, Lanes, Outcome};
use walrelay_core::ledger::Ticket;
use walrelay_core::route::{OwnedRecord, Record};
use walrelay_core::sink::{Connection, Delivery, EnqueueError, Sink};

/// The pause before the first probe of a bus that is away, doubled up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How often it is logged that records wait.
const DELAY_LOG: Duration = Duration::from_secs(10);

/// A bus that takes one record at a time and answers for each.
pub trait LaneBus: std::fmt::Debug + Send + Sync + Sized + 'static {
    /// The row of the bus in `config::sink_kind`.
    const KIND: SinkKind;

    /// Makes the client. Connects to nothing.
    fn new(config: &Config) -> Result<Self>;

    /// How many records may be on their way.
    fn sent_max(&self) -> usize;

    /// Errors: the bus can never take this record. Nothing is sent of it.
    fn check(&self, record: &Record<'_>) -> Result<()>;

    /// Finds out whether the bus answers. Sends no record. Bounds the time by itself.
    fn probe(&self) -> impl Future<Output = Result<(), Away>> + Send;

    /// Sends a record and waits for the answer. Bounds the time by itself, and sends no record
    /// twice. Where the future is dropped, nobody counts the answer any more.
    fn send(&self, record: &OwnedRecord) -> impl Future<Output = Answer> + Send;
}

/// What a bus says to one record.
#[derive(Debug)]
pub enum Answer {
    /// The bus has it.
    Acked,
    /// The bus refuses this record. `after` is the wait that the bus asks for.
    Refused {
        error: Error,
        after: Option<Duration>,
    },
    /// There was no answer: the record may have arrived or not.
    Away(Away),
}

/// Why a bus takes no records at all.
#[derive(Debug)]
pub enum Away {
    /// Nobody answers, or the connection was lost.
    Unreachable(String),
    /// The bus answers and refuses this client: credentials, TLS.
    Unusable(Error),
}

/// What a handle shares with its sink.
#[derive(Debug)]
struct Life {
    tracker: Tracker,
    is_given_up: AtomicBool,
    given_up: Notify,
    outstanding: AtomicUsize,
}

impl Life {
    fn told(&self, away: &Away) {
        match away {
            Away::Unreachable(cause) => self.tracker.down(cause.clone()),
            Away::Unusable(error) => self.tracker.refused(error.clone()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Records are sent.
    Open,
    /// A probe is on its way.
    Probing,
    /// The next probe is sent then.
    Paused(Instant),
}

enum Ended {
    Attempt(AttemptId, Answer),
    Probe(Result<(), Away>),
}

/// See the module's documentation. Made in a Tokio runtime, which runs a task for each record that
/// is on its way. Dropping it ends them.
#[derive(Debug)]
pub struct LaneSink<B> {
    bus: Arc<B>,
    lanes: Lanes,
    running: JoinSet<Ended>,
    state: State,
    pause: Duration,
    told_delay_at: Option<Instant>,
    life: Arc<Life>,
}

impl<B: LaneBus> LaneSink<B> {
    fn make(config: &Config, is_quiet: bool) -> Result<LaneSink<B>> {
        let bus = B::new(config)?;
        let lanes = Lanes::new(bus.sent_max(), config.sink.max_in_flight_events);
        let life = Life {
            tracker: Tracker::new(B::KIND.bus(), is_quiet),
            is_given_up: AtomicBool::new(false),
            given_up: Notify::new(),
            outstanding: AtomicUsize::new(0),
        };
        let mut sink = LaneSink {
            bus: Arc::new(bus),
            lanes,
            running: JoinSet::new(),
            state: State::Paused(Instant::now()),
            pause: PAUSE,
            told_delay_at: None,
            life: Arc::new(life),
        };
        sink.start();
        Ok(sink)
    }

    fn is_given_up(&self) -> bool {
        self.life.is_given_up.load(Ordering::Acquire)
    }

    /// Sends what may be sent now.
    fn start(&mut self) {
        let now = Instant::now();
        match self.state {
            State::Open => {
                while let Some(attempt) = self.lanes.next(now.into_std()) {
                    let bus = Arc::clone(&self.bus);
                    self.running.spawn(async move {
                        let answer = bus.send(&attempt.record).await;
                        Ended::Attempt(attempt.id, answer)
                    });
                }
            }
            State::Paused(until) if until <= now => {
                self.state = State::Probing;
                let bus = Arc::clone(&self.bus);
                self.running
                    .spawn(async move { Ended::Probe(bus.probe().await) });
            }
            State::Probing | State::Paused(_) => {}
        }
    }

    fn ended(&mut self, ended: Result<Ended, JoinError>) {
        let ended = match ended {
            Ok(ended) => ended,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        let now = Instant::now().into_std();
        match ended {
            Ended::Probe(Ok(())) => {
                self.life.tracker.up();
                self.state = State::Open;
            }
            Ended::Probe(Err(away)) => self.away(&away),
            Ended::Attempt(id, Answer::Away(away)) => {
                self.lanes.ended(id, Outcome::Unknown, now);
                // Attempts that began before the bus was away say nothing new.
                if self.state == State::Open {
                    self.away(&away);
                }
            }
            Ended::Attempt(id, Answer::Acked) => {
                self.pause = PAUSE;
                self.lanes.ended(id, Outcome::Acked, now);
            }
            Ended::Attempt(id, Answer::Refused { error, after }) => {
                self.pause = PAUSE;
                self.tell_delay(&error);
                self.lanes.ended(id, Outcome::Refused { error, after }, now);
            }
        }
        self.count();
    }

    /// A record that waits in its lane is reported to nobody.
    fn tell_delay(&mut self, error: &Error) {
        let now = Instant::now();
        let is_told = self.told_delay_at.is_some_and(|at| now - at < DELAY_LOG);
        if error.kind().disposition() == Disposition::Retry && !is_told {
            self.told_delay_at = Some(now);
            tracing::warn!(event = "record_delayed", %error,
                "{} asks to wait with a record; others go on", B::KIND.bus().name);
        }
    }

    fn away(&mut self, away: &Away) {
        self.life.told(away);
        self.state = State::Paused(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    fn count(&self) {
        self.life
            .outstanding
            .store(self.lanes.len(), Ordering::Relaxed);
    }

    fn wake_at(&self) -> Option<Instant> {
        match self.state {
            State::Open => self.lanes.wake_at().map(Instant::from_std),
            State::Probing => None,
            State::Paused(until) => Some(until),
        }
    }
}

impl<B: LaneBus> Sink for LaneSink<B> {
    fn enqueue(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        if self.is_given_up() {
            return Err(EnqueueError::Finished);
        }
        self.bus.check(record).map_err(EnqueueError::Refused)?;
        self.lanes.enqueue(record, ticket)?;
        self.count();
        self.start();
        Ok(())
    }

    fn refuses_each(&self) -> bool {
        true
    }

    fn retry(&mut self, refused: Ticket, wait: Duration) {
        let at = Instant::now() + wait;
        self.lanes.retry(refused, at.into_std());
    }

    fn withdraw(&mut self, refused: Ticket) -> Vec<(Ticket, Arc<OwnedRecord>)> {
        let withdrawn = self.lanes.withdraw(refused);
        self.count();
        withdrawn
    }

    async fn deliveries(&mut self, into: &mut Vec<Delivery>) {
        loop {
            while let Some(ended) = self.running.try_join_next() {
                self.ended(ended);
            }
            if self.is_given_up() {
                self.running.abort_all();
                let Some(ticket) = self.lanes.oldest() else {
                    return std::future::pending().await;
                };
                let error = Error::new(Kind::BusUnreachable, "the relay gave up its records");
                into.push(Delivery::Failed(ticket, error));
                return;
            }
            self.start();
            if self.lanes.has_deliveries() {
                self.lanes.take_deliveries(into);
                return;
            }
            let wake_at = self.wake_at();
            let life = Arc::clone(&self.life);
            let woken = async {
                match wake_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(ended) = self.running.join_next() => self.ended(ended),
                () = woken => {}
                () = life.given_up.notified() => {}
            }
        }
    }
}

impl<B: LaneBus> BusSink for LaneSink<B> {
    /// The copy in the lane, and the task that sends it.
    const RECORD_COST_BYTES: usize = 1_024;

    fn connect(config: &Config) -> Result<LaneSink<B>> {
        LaneSink::make(config, false)
    }

    fn for_asking(config: &Config) -> Result<LaneSink<B>> {
        LaneSink::make(config, true)
    }

    fn handle(&self) -> SinkHandle {
        SinkHandle::of(Handle(Arc::clone(&self.life)))
    }

    fn watch_connection(&self) -> watch::Receiver<Connection> {
        self.life.tracker.subscribe()
    }

    async fn missing(&self, _: &[&str], limit: Duration) -> Result<Vec<String>> {
        let Bus { name, reach, .. } = B::KIND.bus();
        let silent = || format!("{name} does not answer within {} s", limit.as_secs());
        let answer = timeout(limit, self.bus.probe()).await;
        match answer.unwrap_or_else(|_| Err(Away::Unreachable(silent()))) {
            Ok(()) => {
                self.life.tracker.up();
                Ok(Vec::new())
            }
            Err(away) => {
                self.life.told(&away);
                Err(match away {
                    Away::Unreachable(cause) => {
                        Error::new(Kind::BusUnreachable, cause).remedy(reach)
                    }
                    Away::Unusable(error) => error,
                })
            }
        }
    }

    async fn close(mut self) {
        self.running.shutdown().await;
    }
}

#[derive(Debug)]
struct Handle(Arc<Life>);

impl BusHandle for Handle {
    fn give_up(&self) -> Option<usize> {
        let records = self.0.outstanding.load(Ordering::Relaxed);
        if records == 0 {
            return None;
        }
        self.0.is_given_up.store(true, Ordering::Release);
        self.0.given_up.notify_one();
        Some(records)
    }

    fn unusable(&self) -> BoxFuture<'_, Error> {
        Box::pin(self.0.tracker.unusable())
    }

    fn cluster_id(&self) -> BoxFuture<'_, Result<Option<String>>> {
        Box::pin(async { Ok(None) })
    }

    fn producer(&self) -> Option<Producer> {
        None
    }
}
