//! [`Sink`] on a bus that answers for each record: [`Lanes`] keep the order of each key, and a
//! [`LaneBus`] sends one record.
//!
//! While the bus is away nothing is sent but a probe, with back-off. Records wait in their lanes.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, LocalBoxFuture};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::config::{Bus, Config, SinkKind};
use crate::sink::connection::Tracker;
use crate::sink::kafka::producer::Producer;
use crate::sink::{Admission, BusChecks, BusHandle, BusSink, ReadTopics, SinkHandle};
use crate::survey::{BUS, Largest, Seen, Survey, TOPIC};
use walrelay_core::config::OutboxConfig;
use walrelay_core::error::{Disposition, Error, Kind, Result};
use walrelay_core::lanes::{AttemptId, Lanes, Outcome};
use walrelay_core::ledger::Ticket;
use walrelay_core::route::{OwnedRecord, Record};
use walrelay_core::sink::{Connection, Delivery, EnqueueError, Sink};

/// A lost connection is followed by a probe at once. This is the pause before the next one, doubled
/// up to [`PAUSE_MAX`] while no record is answered.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long a command waits for an answer: for several servers in turn.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// How often it is logged that records wait.
const DELAY_LOG: Duration = Duration::from_secs(10);

/// A bus that takes one record at a time and answers for each.
pub trait LaneBus: std::fmt::Debug + Send + Sync + Sized + 'static {
    /// The row of the bus in `config::sink_kind`.
    const KIND: SinkKind;

    /// Makes the client. Connects to nothing.
    fn new(config: &Config) -> Result<Self>;

    /// See [`BusChecks::reader`].
    fn reader(_: &Config) -> Result<Option<Box<dyn ReadTopics>>> {
        Ok(None)
    }

    /// What makes connections weaker than they look: see [`BusChecks::weaknesses`].
    fn weakness(config: &Config) -> Option<String>;

    /// How many records may be on their way.
    fn sent_max(&self) -> usize;

    /// Errors: the bus can never take this record. Nothing is sent of it.
    fn check(&self, record: &Record<'_>) -> Result<()>;

    /// Errors: no record can have this topic.
    fn check_topic(&self, _topic: &str) -> Result<()> {
        Ok(())
    }

    /// `value` is none where records differ in it. Errors: no record can have this header.
    fn check_header(&self, name: &str, value: Option<&[u8]>) -> Result<()>;

    /// Finds out whether the bus answers. Sends no record. Bounds the time by itself.
    fn probe(&self) -> impl Future<Output = Result<(), Away>> + Send;

    /// What the bus says without being asked, where it says anything.
    fn watch_server(&self) -> watch::Receiver<ServerState> {
        watch::channel(ServerState::Ready).1
    }

    /// The size of a record beside the limit that the present server tells, after a probe that was
    /// answered; none where it tells none. Errors: the server does not take the record.
    fn size(&self, _: &OwnedRecord) -> impl Future<Output = Result<Option<String>>> {
        std::future::ready(Ok(None))
    }

    /// Looks for what records of these topics need there, after a probe that was answered. Creates
    /// nothing.
    fn needs(&self, _topics: &[&str]) -> impl Future<Output = Vec<Need>> {
        std::future::ready(Vec::new())
    }

    /// Sends a record and waits for the answer. Bounds the time by itself, and sends no record
    /// twice. Where the future is dropped, nobody counts the answer any more.
    fn send(&self, record: &OwnedRecord) -> impl Future<Output = Answer> + Send;
}

/// What a server says of itself.
#[derive(Debug, Clone)]
pub enum ServerState {
    /// It takes records, as far as is known.
    Ready,
    /// It asks its clients to wait, for this reason.
    Blocked(String),
    /// The present connection ended.
    Lost(Away),
}

/// What records need on a bus.
#[derive(Debug)]
pub struct Need {
    pub name: String,
    /// What there is, or why a record would be refused.
    pub found: Result<String>,
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
    /// The bus has no room for it: the record waits without a limit.
    Full(Error),
    /// It cannot be sent, which nobody was asked: the bus may be away all the same.
    Unfit(Error),
    /// There was no answer: the record may have arrived or not.
    Away(Away),
}

/// Why a bus takes no records at all.
#[derive(Debug, Clone)]
pub enum Away {
    /// Nobody answers, or the connection was lost.
    Unreachable(String),
    /// The bus answers and refuses this client: credentials, TLS.
    Unusable(Error),
}

impl Away {
    pub(super) fn into_error(self, reach: &'static str) -> Error {
        match self {
            Away::Unreachable(cause) => Error::new(Kind::BusUnreachable, cause).remedy(reach),
            Away::Unusable(error) => error,
        }
    }
}

/// What a handle shares with its sink.
#[derive(Debug)]
struct Life {
    tracker: Tracker,
    abandoned: CancellationToken,
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

impl BusHandle for Life {
    fn abandon(&self) -> Option<usize> {
        let records = self.outstanding.load(Ordering::Relaxed);
        if records == 0 {
            return None;
        }
        self.abandoned.cancel();
        Some(records)
    }

    fn unusable(&self) -> BoxFuture<'_, Error> {
        Box::pin(self.tracker.unusable())
    }

    fn cluster_id(&self) -> BoxFuture<'_, Result<Option<String>>> {
        Box::pin(async { Ok(None) })
    }

    fn producer(&self) -> Option<Producer> {
        None
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
    Attempt { id: AttemptId, answer: Answer },
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
    refusal: Option<Error>,
    server: watch::Receiver<ServerState>,
    life: Arc<Life>,
}

impl<B: LaneBus> LaneSink<B> {
    fn make(config: &Config, is_quiet: bool) -> Result<LaneSink<B>> {
        let bus = made::<B>(config)?;
        let lanes = Lanes::new(bus.sent_max(), config.sink.max_in_flight_events);
        let life = Life {
            tracker: Tracker::new(B::KIND.bus(), is_quiet),
            abandoned: CancellationToken::new(),
            outstanding: AtomicUsize::new(0),
        };
        let mut sink = LaneSink {
            server: bus.watch_server(),
            bus: Arc::new(bus),
            lanes,
            running: JoinSet::new(),
            state: State::Paused(Instant::now()),
            pause: Duration::ZERO,
            told_delay_at: None,
            refusal: None,
            life: Arc::new(life),
        };
        sink.start();
        Ok(sink)
    }

    fn is_abandoned(&self) -> bool {
        self.life.abandoned.is_cancelled()
    }

    /// Checks a record, puts it into its lane, and sends what may be sent now.
    fn put(
        &mut self,
        record: &Record<'_>,
        enqueue: impl FnOnce(&mut Lanes) -> Result<(), EnqueueError>,
    ) -> Result<(), EnqueueError> {
        if self.is_abandoned() {
            return Err(EnqueueError::Finished);
        }
        self.bus.check(record).map_err(EnqueueError::Refused)?;
        enqueue(&mut self.lanes)?;
        self.count();
        self.start();
        Ok(())
    }

    /// Sends what may be sent now.
    fn start(&mut self) {
        let now = Instant::now();
        match self.state {
            State::Open => {
                while let Some(attempt) = self.lanes.next(now.into_std()) {
                    let bus = Arc::clone(&self.bus);
                    let abandoned = self.life.abandoned.clone();
                    // A task moves its future several times, and this one is large.
                    self.running.spawn(Box::pin(async move {
                        // A process that stood still may have lost the slot: it sends no more.
                        let sent = abandoned.run_until_cancelled(bus.send(&attempt.record));
                        let stopped = || Answer::Away(Away::Unreachable("abandoned".to_owned()));
                        Ended::Attempt {
                            id: attempt.id,
                            answer: sent.await.unwrap_or_else(stopped),
                        }
                    }));
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
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => return,
            },
        };
        let now = Instant::now().into_std();
        match ended {
            Ended::Probe(Ok(())) => {
                // A refusal ends with an answer to a record.
                if !matches!(self.life.tracker.now(), Connection::Refused(_)) {
                    self.life.tracker.up();
                }
                self.state = State::Open;
                self.told();
            }
            Ended::Probe(Err(away)) => self.away(&away),
            Ended::Attempt { id, answer } => self.judge(id, answer, now),
        }
        self.count();
    }

    fn judge(&mut self, id: AttemptId, answer: Answer, now: std::time::Instant) {
        let outcome = match answer {
            Answer::Acked => {
                self.answered();
                Outcome::Acked
            }
            Answer::Refused { error, after } => {
                self.answered();
                self.tell_delay(&error);
                Outcome::Refused { error, after }
            }
            Answer::Full(error) => {
                self.answered();
                self.tell_delay(&error);
                Outcome::Full(error)
            }
            Answer::Unfit(error) => Outcome::Refused { error, after: None },
            Answer::Away(away) => return self.unanswered(id, &away, now),
        };
        self.lanes.ended(id, outcome, now);
    }

    fn unanswered(&mut self, id: AttemptId, away: &Away, now: std::time::Instant) {
        let error = away.clone().into_error(B::KIND.bus().reach);
        let of_record = matches!(away, Away::Unreachable(_)).then(|| error.clone());
        if self.lanes.unknown(id, of_record, now) {
            self.tell_delay(&error);
        } else if self.state == State::Open {
            // Attempts that began before the bus was away say nothing new.
            self.away(away);
        }
    }

    fn answered(&mut self) {
        self.pause = Duration::ZERO;
        self.life.tracker.up();
    }

    /// Keeps the error of a record that is tried again. One that waits in its lane is reported to
    /// nobody.
    fn tell_delay(&mut self, error: &Error) {
        if error.kind().halts() {
            return;
        }
        self.refusal = Some(error.clone());
        let now = Instant::now();
        let is_told = self.told_delay_at.is_some_and(|at| now - at < DELAY_LOG);
        if error.kind().disposition() == Disposition::Retry && !is_told {
            self.told_delay_at = Some(now);
            tracing::warn!(event = "record_delayed", %error, fix = error.what_to_do(),
                "{} does not take a record now; it waits, with the later ones of its key",
                B::KIND.bus().name);
        }
    }

    fn away(&mut self, away: &Away) {
        self.life.told(away);
        self.state = State::Paused(Instant::now() + self.pause);
        self.pause = (self.pause * 2).clamp(PAUSE, PAUSE_MAX);
    }

    /// The server said something, or a probe of it was answered.
    fn told(&mut self) {
        let Bus { name, stalled, .. } = B::KIND.bus();
        let said = self.server.borrow_and_update().clone();
        match said {
            ServerState::Ready => self.life.tracker.blocked(None),
            ServerState::Blocked(cause) => {
                let cause = format!("{name} takes no records for now: {cause}");
                let error = Error::new(Kind::BusUnreachable, cause).remedy(stalled);
                self.life.tracker.blocked(Some(error));
            }
            ServerState::Lost(away) if self.state == State::Open => self.away(&away),
            ServerState::Lost(_) => {}
        }
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
        self.put(record, |lanes| lanes.enqueue(record, ticket))
    }

    fn enqueue_apart(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        self.put(record, |lanes| lanes.enqueue_apart(record, ticket))
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
            if self.is_abandoned() {
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
                Ok(()) = self.server.changed() => self.told(),
                () = life.abandoned.cancelled() => {}
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
        SinkHandle(Some(Arc::clone(&self.life) as Arc<dyn BusHandle>))
    }

    fn watch_connection(&self) -> watch::Receiver<Connection> {
        self.life.tracker.subscribe()
    }

    fn take_refusal(&mut self) -> Option<Error> {
        self.refusal.take()
    }

    /// A server that restarts can refuse a client for a moment: it is asked again until that has
    /// lasted.
    async fn missing(&self, _: &[&str], limit: Duration) -> Result<Vec<String>> {
        let tracker = &self.life.tracker;
        let answered = async {
            let mut pause = PAUSE;
            loop {
                match probed(&*self.bus, limit).await {
                    Ok(()) => {
                        tracker.up();
                        return Ok(Vec::new());
                    }
                    Err(away) => {
                        self.life.told(&away);
                        if matches!(away, Away::Unreachable(_)) {
                            return Err(away.into_error(B::KIND.bus().reach));
                        }
                    }
                }
                sleep(pause).await;
                pause *= 2;
            }
        };
        tokio::select! {
            biased;
            error = tracker.unusable() => Err(error),
            answered = answered => answered,
        }
    }

    async fn close(mut self) {
        self.running.shutdown().await;
    }
}

/// The client. Errors: the settings make none, or the bus can never take what they give each
/// record.
fn made<B: LaneBus>(config: &Config) -> Result<B> {
    let bus = B::new(config)?;
    for OutboxConfig { source, route, .. } in &config.outboxes {
        let of = |key: &str, checked: Result<()>| {
            checked.map_err(|error| {
                let of_source = format!("{key} of {source}");
                let error = error.with_kind(Kind::Config).about(of_source);
                // A header of [route.headers] has a remedy.
                match key.starts_with("route.headers") {
                    true => error,
                    false => error.remedy(format!("give {key} another value")),
                }
            })
        };
        if let Some(topic) = route.topic.constant() {
            of("route.topic", bus.check_topic(&topic))?;
        }
        for (key, name) in [
            ("route.id_header", &route.id_header),
            ("route.position_header", &route.position_header),
        ] {
            if let Some(name) = name {
                of(key, bus.check_header(name, None))?;
            }
        }
        for (name, template) in &route.headers {
            let value = template.constant();
            let checked = bus.check_header(name, value.as_deref().map(str::as_bytes));
            of(&format!("route.headers.{name}"), checked)?;
        }
    }
    Ok(bus)
}

/// Probes a bus, and waits no longer than `limit` for it.
async fn probed<B: LaneBus>(bus: &B, limit: Duration) -> Result<(), Away> {
    let name = B::KIND.bus().name;
    let silent = || format!("{name} does not answer within {} s", limit.as_secs());
    let answer = timeout(limit, bus.probe()).await;
    answer.unwrap_or_else(|_| Err(Away::Unreachable(silent())))
}

/// What `doctor` and `config check` ask: whether the settings make a client, and whether the bus
/// answers.
pub(crate) struct LaneChecks<B>(PhantomData<fn() -> B>);

impl<B> LaneChecks<B> {
    pub(super) const NEW: LaneChecks<B> = LaneChecks(PhantomData);
}

impl<B: LaneBus> BusChecks for LaneChecks<B> {
    fn weaknesses(&self, config: &Config) -> Vec<String> {
        B::weakness(config).into_iter().collect()
    }

    fn admission(&self, config: &Config) -> Result<Admission> {
        let bus = made::<B>(config)?;
        Ok(Box::new(move |record| bus.check(record)))
    }

    fn reader(&self, config: &Config) -> Result<Option<Box<dyn ReadTopics>>> {
        B::reader(config)
    }

    fn survey<'a>(
        &self,
        config: &'a Config,
        seen: &'a Seen,
        survey: &'a mut Survey,
    ) -> LocalBoxFuture<'a, Option<String>> {
        Box::pin(async move {
            look::<B>(config, seen, survey).await;
            None
        })
    }
}

async fn look<B: LaneBus>(config: &Config, seen: &Seen, survey: &mut Survey) {
    let Bus { name, reach, .. } = B::KIND.bus();
    let bus = match made::<B>(config) {
        Ok(bus) => bus,
        Err(error) => return survey.wrong("configuration", "", &error),
    };
    let address = config.bus_address().unwrap_or_default();
    let answered = probed(&bus, ANSWER_LIMIT).await;
    for (topic, largest) in &seen.topics {
        let Some(Largest {
            row,
            record,
            admitted,
            ..
        }) = largest
        else {
            continue;
        };
        let judged = match admitted {
            Ok(()) if answered.is_ok() => bus.size(record).await,
            admitted => admitted.clone().map(|()| None),
        };
        let fits = match &judged {
            Ok(Some(size)) => format!("that of row {row} is fit for {name}: {size}"),
            _ => format!("that of row {row} is fit for {name}, its limits of size aside"),
        };
        let judged = judged.map(drop).map_err(|error| error.of_row(row));
        survey.of_rows("record", topic, judged, config.delivery.on_error, &fits);
    }
    match answered.map_err(|away| away.into_error(reach)) {
        Ok(()) => survey.ok(BUS, address, format!("{name} answers")),
        Err(error) => return survey.wrong(BUS, address, &error),
    }
    let topics: Vec<&str> = seen.topics.keys().map(String::as_str).collect();
    for Need { name, found } in bus.needs(&topics).await {
        match found {
            Ok(found) => survey.ok(TOPIC, name, found),
            Err(error) => survey.wrong(TOPIC, name, &error),
        }
    }
}

#[cfg(test)]
#[cfg(all(
    feature = "nats",
    feature = "rabbitmq",
    feature = "smtp",
    feature = "webhook"
))]
mod tests {
    use super::*;
    use crate::config::Settings;
    use crate::sink::{AnySink, checks};

    /// With these lines more, of which a mail has its recipient and its author.
    fn config(kind: &str, lines: &str) -> Config {
        let of_mails = match kind {
            "smtp" => "smtp.from = 'a@b.c'\nroute.timestamp = 'at'\nroute.headers.To = '{to}'\n",
            _ => "",
        };
        let text = format!(
            "database.url = 'postgres://u@h/d'\nslot.name = 's'\nsink.kind = '{kind}'\n\
             nats.servers = '127.0.0.1:1'\nrabbitmq.servers = '127.0.0.1:1'\n\
             webhook.url = 'http://127.0.0.1:1/'\nsmtp.host = '127.0.0.1'\n\
             delivery.on_error = 'park'\n{of_mails}{lines}"
        );
        Settings::of(&text).unwrap().config(false).unwrap()
    }

    #[tokio::test]
    async fn what_a_bus_can_take_of_no_event_is_refused_at_the_start_with_its_key() {
        let long = format!("route.headers.type = '{}'", "x".repeat(256));
        let rabbitmq = [
            "route.headers.CC = 'q'",
            "route.headers.bcc = '{type}'",
            "route.id_header = 'CC'",
            "route.topic = 'amq.gen'",
            &long,
        ];
        let nats = [
            "route.headers.Nats-Rollup = '{type}'",
            "route.headers.x = \"a\\nb\"",
            "route.topic = 'a..b'",
        ];
        let webhook = [
            "route.headers.Host = '{type}'",
            "route.headers.x = \"a\\nb\"",
            "route.id_header = 'webhook-id'",
        ];
        let smtp = [
            "route.headers.Sender = '{type}'",
            "route.headers.eventType = '{type}'",
            "route.headers.X- = '{type}'",
            "route.headers.Cc = 'nobody'",
            "route.headers.Subject = \"a\\nb\"",
            "route.headers.from = '{type}'",
            "route.headers.Subject = '{type}'\nsmtp.value = 'message'",
        ];
        let of = [
            ("rabbitmq", &rabbitmq[..]),
            ("nats", &nats),
            ("webhook", &webhook),
            ("smtp", &smtp),
        ];
        for (kind, lines) in of
            .iter()
            .flat_map(|(kind, each)| each.iter().map(|lines| (*kind, *lines)))
        {
            let config = config(kind, lines);
            let checked = checks(config.sink.kind).admission(&config).err();
            let started = AnySink::connect(&config).err();
            for error in [checked, started] {
                let error = error.unwrap_or_else(|| panic!("{kind} {lines}"));
                assert_eq!(error.kind(), Kind::Config, "{kind} {lines}");
                let key = lines.split(" = ").next().unwrap();
                let start = format!("{key} of public.outbox: ");
                assert!(error.to_string().starts_with(&start), "{kind}: {error}");
            }
        }
    }

    #[tokio::test]
    async fn what_a_bus_can_take_of_some_event_is_no_fault_of_the_settings() {
        for (kind, lines) in [
            ("rabbitmq", "route.headers.type = '{type}'"),
            ("nats", "route.headers.x = '{type}'\nroute.topic = 'a.b'"),
            ("webhook", "route.headers.ce-type = '{type}'"),
            (
                "smtp",
                "route.headers.Subject = '{type}'\nroute.headers.X-Shop = 'a'",
            ),
        ] {
            let config = config(kind, lines);
            assert!(
                checks(config.sink.kind).admission(&config).is_ok(),
                "{kind}"
            );
        }
    }
}
