//! The loop of one session: everything that can happen comes in as an [`Input`], one at a time.
//!
//! What is waited for, most urgent first, and why in this order:
//!
//! 1. a stop: nothing else matters more;
//! 2. the clock: status updates are never late, whatever else is going on (P5);
//! 3. deliveries: they make room, so they come before what takes it;
//! 4. a store, a look at the catalog, a measurement, or a try of events that wait, that has come to its end;
//! 5. the SQL session: it hears of a shutdown of Postgres first (P7);
//! 6. what is to be told of Kafka;
//! 7. the socket: always for writing, for reading only while there is room (P4).

mod outcome;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::event::RowId;
use crate::failpoint;
use crate::ledger::confirm::Due;
use crate::relay::again::Again;
use crate::relay::alarm::Alarm;
use crate::relay::budget::Budget;
use crate::relay::core::{Core, Taken};
use crate::relay::jobs::{Done, Jobs};
use crate::relay::kept::Kept;
use crate::relay::pace::Pace;
use crate::relay::pulse::Pulse;
use crate::relay::report::Report;
use crate::relay::retention::Known;
use crate::relay::retrying::{Retrying, Tried};
use crate::relay::session::Session;
use crate::relay::stop::{Stop, StopSignal};
use crate::sink::kafka::KafkaSink;
use crate::sink::{Connection, Delivery, Producer};
use crate::source::control::ControlEnd;
use crate::source::feedback::{Action, Feedback};
use crate::source::{Io, Notice, Status, WalMessage, WalSource, notice};
use crate::telemetry::{Side, Telemetry};

/// How long a shutdown of Postgres is held up for acks: it ends within a second or two of the last (P7).
const SERVER_SHUTDOWN_GRACE: Duration = Duration::from_millis(1_500);
/// How long the last status may take to reach the server.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a finished producer has to say of which record it died.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How soon a record is offered again to a full sink if no delivery comes first.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Messages taken in before everything else gets its turn: some 200 kB, a millisecond's work.
const MESSAGES_PER_TURN: usize = 512;

/// How a session ended well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// The relay was told to stop, and did what it could.
    Stopped,
    /// Postgres shuts down; it will be back.
    ServerShutDown,
    /// What was to be done is done, and what comes next is of another kind.
    Again,
    /// These rows are to be published again.
    Asked(Vec<RowId>),
    /// The slot kept more log than it may, and is to be given up.
    OverBudget,
    /// Somebody holds up the making of the slot, for this long reason: the table is polled meanwhile.
    Held(String),
}

/// What happened.
enum Input {
    Stop,
    Clock,
    Deliveries,
    Job(Box<Done>),
    /// Events that waited were tried.
    Retried(Tried),
    Control(ControlEnd),
    /// Kafka answers, or does not.
    Kafka(Connection),
    /// Kafka refuses us and goes on doing so.
    Unusable(Error),
    Socket(Result<Io>),
    /// There is nothing more to be read just now.
    Dry,
}

/// Why the loop is on its way out, and until when it waits for acks.
struct Leaving {
    until: Instant,
    with: Result<Ended>,
}

/// Relays through `session` until it, the producer or the relay ends.
///
/// # Errors
/// Why the session ended. The core stays usable for the next one unless the error is the producer's.
pub(super) async fn run(
    core: &mut Core<KafkaSink>,
    session: Session,
    (known, epoch): (&Known, Instant),
    (config, telemetry, pulse, stop): (&Config, &Telemetry, &Pulse, StopSignal),
) -> Result<Ended> {
    let now = Instant::now();
    let mut pump = Pump {
        feedback: Feedback::new(config.source.wal_sender_timeout, now),
        report: Report::new(core),
        deliveries: Vec::new(),
        leaving: None,
        stop_heard: false,
        jobs: Jobs::new(now),
        retrying: Retrying::new(config, known, Some(pulse.beside())),
        kafka: core.sink().watch_connection(),
        unusable: Box::pin(unusable(core.sink().producer())),
        control_end: Box::pin(session.control.closed()),
        control_ended: false,
        catalog_unsound: false,
        unmarkable: false,
        pulse,
        watches_pending: config.outboxes.iter().any(|outbox| outbox.upkeep.pending.is_some()),
        again: Again::default(),
        watch_told: false,
        budget: Budget::new(&config.source),
        long_told: None,
        kept: Kept::default(),
        paired_at: u64::MAX,
        noticed: None,
        backlog: false,
        pace: Pace::new(now),
        alarm: Alarm::new(),
        core,
        session,
        config,
        telemetry,
        epoch,
        stop,
    };
    telemetry.connected(Side::Kafka, *pump.kafka.borrow_and_update() == Connection::Up);
    telemetry.metrics.dropped_events.inc_by(pump.session.marker.as_ref().map_or(0, |marker| marker.take_dropped()));
    let ended = pump.run().await;
    match &ended {
        // The slot is ours as long as the stream is not ended.
        Ok(how) if *how != Ended::ServerShutDown && pump.stop.asked() < Stop::Now => pump.retrying.finish().await,
        Ok(_) | Err(_) => pump.retrying.give_up().await,
    }
    pump.retrying.count(&telemetry.metrics);
    pump.report.tell(pump.core, pump.session.stream.received(), telemetry, Instant::now());
    pump.core.forget_unread();
    let (confirmed, at_once) = (pump.core.confirmable(), pump.stop.asked() == Stop::Now);
    let stream = pump.session.stream;
    let deadline = Instant::now() + if at_once { Duration::ZERO } else { FINISH_TIMEOUT };
    let last = Status { received: stream.received(), confirmed, reply_requested: false };
    if let Err(error) = stream.finish(last, deadline).await {
        tracing::debug!(%error, "the last status update may not have reached the server");
    }
    failpoint::reached("confirmed");
    ended
}

struct Pump<'a> {
    core: &'a mut Core<KafkaSink>,
    session: Session,
    config: &'a Config,
    telemetry: &'a Telemetry,
    epoch: Instant,
    stop: StopSignal,
    feedback: Feedback,
    report: Report,
    deliveries: Vec<Delivery>,
    leaving: Option<Leaving>,
    stop_heard: bool,
    jobs: Jobs,
    retrying: Retrying,
    kafka: watch::Receiver<Connection>,
    unusable: Pin<Box<dyn Future<Output = Error> + Send>>,
    control_end: Pin<Box<dyn Future<Output = ControlEnd> + Send>>,
    control_ended: bool,
    /// Whether the outbox was found not to be published as it was.
    catalog_unsound: bool,
    /// Whether rows were refused to be marked or deleted for good.
    unmarkable: bool,
    pulse: &'a Pulse,
    /// Whether rows say that they are pending, and which were.
    watches_pending: bool,
    again: Again,
    watch_told: bool,
    budget: Budget,
    /// The transaction a person was told of, because it has been open for long.
    long_told: Option<i32>,
    kept: Kept,
    /// Events acked when the last snapshot was taken.
    paired_at: u64,
    /// What the server last said beside the changes, since the last change: one that waits for a standby repeats itself.
    noticed: Option<Notice>,
    /// Whether messages were left in the buffer for the next turn.
    backlog: bool,
    pace: Pace,
    /// Ends a rest.
    alarm: Alarm,
}

impl Pump<'_> {
    async fn run(&mut self) -> Result<Ended> {
        loop {
            let gathers = self.gathers();
            if !gathers && let Err(error) = self.take_in() {
                self.halt(error)?;
            }
            let received = self.core.ledger().received().end_lsn;
            if let Some((_, error)) = self.session.vanished.take_if(|(until, _)| *until <= received) {
                self.halt(error)?;
            }
            let now = Instant::now();
            let rest = self.pace.rests_until(now, self.core.counts().assembled);
            self.core.look(now - self.epoch, self.backlog || gathers || rest.is_some());
            self.begin_jobs(now);
            let feedback = self.tell_server(now)?;
            if self.report.next <= now {
                self.report.tell(self.core, self.session.stream.received(), self.telemetry, now);
            }
            let left_over = self.has_left_over();
            if let Some(leaving) = self.leaving.take_if(|leaving| leaving.until <= now || !left_over) {
                return leaving.with;
            }
            if self.backlog || rest.is_none() && self.pace.is_backlog() {
                // Nothing in this loop may have to wait for anything, and everybody else shares the thread.
                tokio::task::yield_now().await;
            }
            let input = self.next_input(self.wake_at(now, feedback), rest, gathers).await;
            self.pulse.beat()?;
            if let Input::Deliveries = input {
                // On failure the producer is finished, and nothing that waits for it would come to an end.
                self.core.delivered(&mut self.deliveries)?;
            } else if let Err(error) = self.handle(input).await {
                self.halt(error)?;
            }
        }
    }

    /// Takes in what was read, as far as there is room (P4).
    fn take_in(&mut self) -> Result<()> {
        // Also where intake has ended: nothing of what is left is for the next turn.
        self.backlog = false;
        self.core.retry_pending()?;
        if self.leaving.is_some() {
            return Ok(());
        }
        for _ in 0..MESSAGES_PER_TURN {
            if !self.core.has_room() {
                return Ok(());
            }
            let Some(message) = self.session.stream.next()? else { return Ok(()) };
            failpoint::reached("received");
            self.report.received_messages += 1;
            match message {
                WalMessage::Data { wal_start, wal_end, body, .. } => {
                    self.noticed = None;
                    self.report.server_wal_end = self.report.server_wal_end.max(wal_end);
                    if self.core.data(wal_start, body)? == Taken::Relation {
                        self.jobs.ask_look();
                    }
                }
                WalMessage::Keepalive { wal_end, reply_requested } => {
                    self.report.keepalives += 1;
                    self.report.server_wal_end = self.report.server_wal_end.max(wal_end);
                    self.core.keepalive(wal_end);
                    if reply_requested {
                        self.feedback.reply_requested();
                    }
                }
                WalMessage::Notice(notice) if self.noticed.as_ref() == Some(&notice) => {}
                WalMessage::Notice(notice) => {
                    notice::judge(&notice, &self.config.source)?;
                    self.noticed = Some(notice);
                }
                WalMessage::ParameterStatus { name, value } => tracing::debug!(name, value, "a setting changed"),
                WalMessage::CopyDone => {
                    return Err(Error::new(Kind::PostgresUnreachable, "Postgres ended the stream"));
                }
            }
        }
        self.backlog = true;
        Ok(())
    }

    /// Whether what was read waits for more of it: fewer and larger heaps make fewer and larger batches for Kafka. Not where
    /// there is no room for more: that the socket is dry could not be told then.
    fn gathers(&mut self) -> bool {
        let buffered = self.session.stream.buffered_bytes();
        self.reads() && !self.backlog && self.pace.gathers(Instant::now(), buffered)
    }

    /// Begins a store or a look at the catalog where one is due and none is under way.
    fn begin_jobs(&mut self, now: Instant) {
        let since = now - self.epoch;
        let hurry = self.leaving.is_some();
        match self.core.due(since, hurry) {
            Due::Nothing => {}
            Due::Progress(position) => {
                self.core.store_begun(since);
                self.core.commit_begun();
                let published = self.core.published(&position);
                self.jobs.begin_store(&mut self.session, position, published);
            }
            Due::Idle(position) if !self.jobs.is_looking() && self.may_look() => {
                self.core.store_begun(since);
                self.telemetry.metrics.catalog_checks.inc();
                self.jobs.begin_look(&self.session, Some(position), now);
            }
            Due::Idle(_) => {}
        }
        if let Some(marker) = &self.session.marker
            && !self.jobs.is_settling()
            && !self.unmarkable
            && let Some(batch) = self.core.settle(usize::MAX)
        {
            self.jobs.begin_settle(marker, batch);
        }
        if self.leaving.is_none() && !self.unmarkable {
            self.retrying.begin_due(self.core.waiting(), || self.core.census(), now);
        }
        if self.watches_pending && self.may_look() && self.leaving.is_none() {
            let every = self.config.source.poll.pending_interval;
            self.jobs.begin_watch(&self.session, self.core.settled_position(), every, now);
        }
        self.jobs.begin_tail(&self.config.kafka, || self.core.unread());
        // Nothing came since the last one: it says all there is to say.
        if self.may_look() && self.core.wants_pair() && self.core.counts().acked != self.paired_at {
            self.jobs.begin_pair(&self.session, now);
        }
        if self.may_look() && self.jobs.begin_due(&self.session, now) {
            self.telemetry.metrics.catalog_checks.inc();
        }
    }

    /// Puts a status update into the socket's way where one is due, and says when to look again.
    ///
    /// # Errors
    /// The server fell silent (P5).
    fn tell_server(&mut self, now: Instant) -> Result<Instant> {
        self.feedback.set_reading(self.reads(), now);
        let confirmed = self.core.confirmable();
        match self.feedback.action(now, confirmed) {
            Action::Wait(until) => Ok(until),
            Action::Send { reply_requested } => {
                failpoint::reached("confirming");
                self.report.status_updates += 1;
                let received = self.session.stream.received();
                self.report.told = confirmed;
                self.session.stream.queue_status(Status { received, confirmed, reply_requested });
                self.feedback.sent(now, confirmed, reply_requested);
                Ok(now)
            }
            Action::Dead { silence } => Err(Error::new(
                Kind::PostgresUnreachable,
                format_args!(
                    "Postgres has been silent for {} ms, and was asked for a sign of life",
                    silence.as_millis()
                ),
            )),
        }
    }

    /// Whether more may be read (P4).
    fn reads(&self) -> bool {
        self.leaving.is_none() && self.core.has_room()
    }

    /// Waits for whatever comes first, the end of a `rest` included; the order is in the module's documentation. While what
    /// was read is gathered, that there is no more of it is news, too.
    async fn next_input(&mut self, wake: Instant, rest: Option<Instant>, gathers: bool) -> Input {
        let room = self.reads();
        let backlog = room && self.backlog;
        // What waits in the socket keeps the walsender waiting. There is room for it beside what was left for this turn.
        let reads =
            room && rest.is_none() && (!backlog || self.pace.reads_beside(self.session.stream.buffered_bytes()));
        if !reads || self.pace.is_backlog() {
            self.session.stream.unwatch();
        }
        if reads && !backlog {
            self.pace.ready(Instant::now());
        }
        // Where more is read in a moment, and there is room for it, deliveries can wait for that: one wake-up instead of many.
        let delivers = reads || !room || !self.pace.is_backlog();
        let next_stop = if self.stop_heard { Stop::Now } else { Stop::Drain };
        tokio::select! {
            biased;
            () = self.stop.at_least(next_stop) => Input::Stop,
            () = tokio::time::sleep_until(wake) => Input::Clock,
            () = self.alarm.at(rest.unwrap_or(wake)), if rest.is_some() => Input::Clock,
            () = self.core.next_deliveries(&mut self.deliveries), if delivers => Input::Deliveries,
            done = self.jobs.next() => Input::Job(Box::new(done)),
            tried = self.retrying.next() => Input::Retried(tried),
            end = &mut self.control_end, if !self.control_ended => Input::Control(end),
            error = &mut self.unusable => Input::Unusable(error),
            connection = kafka_changed(&mut self.kafka) => Input::Kafka(connection),
            io = self.session.stream.ready_io(reads) => Input::Socket(io),
            () = std::future::ready(()), if backlog => Input::Clock,
            () = std::future::ready(()), if gathers && rest.is_none() => Input::Dry,
        }
    }

    /// When to look at the clock again: `feedback` says for itself.
    fn wake_at(&self, now: Instant, feedback: Instant) -> Instant {
        // What is overdue and waits for something else than the clock must not spin it.
        let soon = now + RETRY_INTERVAL;
        let store = self.core.wake_at().map(|since| (self.epoch + since).max(soon));
        let retry = self.core.is_pending().then_some(soon);
        let leave = self.leaving.as_ref().map(|leaving| leaving.until);
        let due = feedback.min(self.report.next).min(self.jobs.wake_at().max(soon));
        [store, retry, leave].into_iter().flatten().fold(due, Instant::min)
    }
}

/// What has become of the connection to Kafka.
async fn kafka_changed(kafka: &mut watch::Receiver<Connection>) -> Connection {
    if kafka.changed().await.is_err() {
        // The producer is gone, which deliveries tell.
        std::future::pending::<()>().await;
    }
    kafka.borrow_and_update().clone()
}

/// Why nothing is to be expected of this producer any more.
async fn unusable(producer: Producer) -> Error {
    producer.unusable().await
}
