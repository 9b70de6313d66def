//! Whether each relay is ready: told and asked as by the program's loops, and what it has to be.
//!
//! `src/relay/` and `src/telemetry/` tell the core's `Readiness` the same at the same points.

use std::time::Duration;

use walrelay_core::error::{Error, Kind};
use walrelay_core::position::Lsn;
use walrelay_core::publisher::{Counts, Publisher};
use walrelay_core::readiness::{NotReady, Readiness, Side, Streamed, ToDo};
use walrelay_core::sessions::{Refused, Retry};

use super::broker::Producer;
use super::plan::{Path, Reached};
use super::turns::Relay;
use super::world::{SETTLES_BY, World, epoch};

/// As `http.ready_within`, for the time that a schedule takes.
const READY_WITHIN: Duration = Duration::from_secs(3);
/// How often a session reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);
/// After so long without work, a refusal counts no more.
const GONE: Duration = Duration::from_secs(10);
/// Times that each relay acts once everything has settled.
const TURNS_AT_END: usize = 12;

/// What a process of the relay says of itself.
pub(super) struct Health {
    readiness: Readiness,
    session: Option<Session>,
    truth: Truth,
    /// What it said last.
    said: Option<&'static str>,
}

/// What an open session compares from one report to the next.
struct Session {
    counts: Counts,
    written: u64,
    confirmable: Lsn,
    /// The newest message, and that at the last report.
    sent: Lsn,
    sent_before: Lsn,
    received: Lsn,
    /// The end of the log at a measurement, from which on something had not arrived.
    unsent: Option<Lsn>,
    next_report: Duration,
}

/// What the model knows, and the contract says of it.
#[derive(Default)]
struct Truth {
    is_stopping: bool,
    stands_by: bool,
    /// Whether each end is there, and whether both were at once.
    postgres: bool,
    bus: bool,
    had_both: bool,
    /// Whether the topic of events refused one, and whether it took one since.
    is_refused: bool,
    took_one: bool,
    idle_since: Option<Duration>,
    /// Whether Postgres refused a write, and took none since.
    is_unwritable: bool,
    is_synchronous: bool,
    is_over_budget: bool,
    /// Whether events wait, or the rest of the log; and since when none moves.
    has_events: bool,
    waits_since: Option<Duration>,
    reported_at: Option<Duration>,
    acked_at: Duration,
    /// When the last session ended.
    closed_at: Duration,
}

impl Default for Health {
    fn default() -> Self {
        Health {
            readiness: Readiness::new("bus", READY_WITHIN),
            session: None,
            truth: Truth::default(),
            said: None,
        }
    }
}

impl Truth {
    /// Whether the topic has to be named as one that refuses; none where either is right.
    fn names_topic(&self) -> Option<bool> {
        match (self.is_refused, self.took_one) {
            (false, _) => Some(false),
            (true, false) => Some(true),
            // The refused events may be on their way, or come again with the next session.
            (true, true) => None,
        }
    }

    /// The reason behind that of a topic.
    fn reason(&self, now: Duration) -> Option<&'static str> {
        let is_still = |since: Duration| now - since > READY_WITHIN;
        let waits = self.waits_since.is_some_and(is_still);
        let reasons = [
            (self.is_unwritable, "postgres_unwritable"),
            (!self.postgres, "postgres_disconnected"),
            (!self.bus, "bus_disconnected"),
            (self.is_synchronous, "synchronous_standby"),
            (self.is_over_budget, "over_budget"),
            (waits && self.has_events, "stalled"),
            (waits, "wal_not_sent"),
        ];
        let mut reasons = reasons.into_iter();
        reasons.find_map(|(is_so, code)| is_so.then_some(code))
    }

    fn expected(&self, now: Duration, names_topic: bool) -> Option<&'static str> {
        if self.is_stopping {
            Some("stopping")
        } else if self.stands_by {
            Some("standing_by")
        } else if !self.had_both {
            Some("starting")
        } else if names_topic {
            Some("topic_refused")
        } else {
            self.reason(now)
        }
    }
}

impl Health {
    fn connection(&mut self, side: Side, up: bool) {
        self.readiness.connection(side, up);
        let truth = &mut self.truth;
        match side {
            Side::Postgres => truth.postgres = up,
            Side::Bus => truth.bus = up,
        }
        truth.had_both |= truth.postgres && truth.bus;
        truth.idle_since.take_if(|_| !up);
    }

    /// The producer says whether the bus answers, where that has changed.
    fn bus_answers(&mut self, up: bool) {
        if self.truth.bus != up {
            self.connection(Side::Bus, up);
        }
    }

    /// Postgres serves the session.
    pub(super) fn has_postgres(&mut self) {
        self.connection(Side::Postgres, true);
    }

    /// The session's loop begins.
    pub(super) fn opened(
        &mut self,
        now: Duration,
        publisher: &Publisher<Producer>,
        confirmable: Lsn,
    ) {
        self.session = Some(Session {
            counts: publisher.counts,
            written: publisher.write_backs.written,
            confirmable,
            sent: Lsn::default(),
            sent_before: Lsn::default(),
            received: Lsn::default(),
            unsent: None,
            next_report: now,
        });
    }

    /// What the slot retains is over its limit, or not.
    pub(super) fn retains(&mut self, is_over: bool) {
        self.truth.is_over_budget = is_over;
    }

    /// A message of the stream has arrived.
    pub(super) fn received(&mut self, lsn: Lsn) {
        if let Some(session) = &mut self.session {
            session.sent = lsn;
            session.received = session.received.max(lsn);
        }
    }

    /// The log ended here at a measurement, and `over` is said of what the slot retains.
    pub(super) fn measured(&mut self, end: Lsn, is_synchronous: bool, over: Option<NotReady>) {
        let session = self.session.as_mut().unwrap();
        let received = session.received;
        if session.unsent.is_none_or(|unsent| unsent <= received) {
            session.unsent = Some(end);
        }
        self.truth.is_synchronous = is_synchronous;
        match is_synchronous {
            true => {
                let fix = "the SQL of the model".to_owned();
                self.readiness.tell(NotReady::SynchronousStandby(fix));
            }
            false => self.readiness.withdraw("synchronous_standby"),
        }
        match over {
            Some(reason) => self.readiness.tell(reason),
            None => self.readiness.withdraw("over_budget"),
        }
    }

    /// The broker took events of this relay, which is told.
    pub(super) fn acked(&mut self, now: Duration) {
        self.truth.acked_at = now;
    }

    /// No report is made until then.
    fn put_off(&mut self, until: Duration) {
        if let Some(session) = &mut self.session {
            session.next_report = until;
        }
    }

    /// Acks are waited for before the table is read. They are counted as in a report.
    pub(super) fn drains(&mut self, counts: Counts, before: Counts) {
        if self.session.is_none() && counts.topics_taking > before.topics_taking {
            self.readiness.withdraw("topic_refused");
        }
    }

    /// The topic took an event for good.
    pub(super) fn topic_took(&mut self) {
        self.truth.took_one = true;
    }

    /// A report of the session's loop.
    fn report(&mut self, now: Duration, publisher: &Publisher<Producer>, confirmable: Lsn) {
        let session = self.session.as_mut().unwrap();
        let before = std::mem::replace(&mut session.counts, publisher.counts);
        let counts = publisher.counts;
        if counts.topics_taking > before.topics_taking {
            self.readiness.withdraw("topic_refused");
        }
        let written = publisher.write_backs.written;
        let wrote = std::mem::replace(&mut session.written, written) < written;
        let moved = counts.acked > before.acked || wrote;
        let confirmed = std::mem::replace(&mut session.confirmable, confirmable) < confirmable;
        let unsent = session.unsent.filter(|unsent| *unsent > session.received);
        let streamed = Streamed {
            confirmed,
            sent: std::mem::replace(&mut session.sent_before, session.sent) != session.sent,
            unsent_since_us: unsent.map(|_| 0),
        };
        let to_do = ToDo::of(publisher, moved, streamed);
        self.readiness.report(epoch() + now, to_do);
        let in_flight = publisher.ledger.in_flight_events() + publisher.write_backs.len();
        // No consumer sees what is not committed.
        let is_uncommitted = publisher.transaction.is_open();
        let has_events = in_flight > 0 || publisher.is_pending() || is_uncommitted;
        let truth = &mut self.truth;
        let before = std::mem::replace(&mut truth.has_events, has_events);
        let moves = match (before, has_events) {
            (true, true) => moved || confirmed,
            (false, false) => streamed.sent,
            // Some came, or the last ones are delivered.
            (false, true) | (true, false) => true,
        };
        let waits = truth.has_events || unsent.is_some();
        // Without a session, nothing is taken in.
        let gap = now - truth.reported_at.replace(now).unwrap_or(now);
        let silence = gap.saturating_sub(Duration::from_secs(1));
        let since = truth.waits_since.map(|since| since + silence);
        let since = since.filter(|_| !moves);
        truth.waits_since = waits.then(|| since.unwrap_or(now));
        let idle = (!truth.has_events).then(|| truth.idle_since.unwrap_or(now));
        truth.idle_since = idle;
        truth.is_refused &= idle.is_none_or(|since| now - since <= GONE);
    }

    /// The session's loop ends, after its last report.
    pub(super) fn closed(
        &mut self,
        now: Duration,
        publisher: &Publisher<Producer>,
        confirmable: Lsn,
    ) {
        self.report(now, publisher, confirmable);
        self.session = None;
        self.readiness.withdraw("over_budget");
        self.readiness.withdraw("synchronous_standby");
        let truth = &mut self.truth;
        truth.is_over_budget = false;
        truth.is_synchronous = false;
        truth.closed_at = now;
    }

    /// A session, or an attempt to open one, failed.
    pub(super) fn failed(&mut self, error: &Error) {
        let side = Side::of(error);
        self.readiness.connection(side, false);
        if side == Side::Bus {
            self.readiness.connection(Side::Postgres, true);
        }
        if error.kind() == Kind::PostgresUnwritable {
            self.readiness.tell(NotReady::Unwritable(error.clone()));
        }
        let is_of_bus = matches!(error.kind(), Kind::BusUnreachable | Kind::TopicRefused);
        let truth = &mut self.truth;
        // Each session asks Postgres first.
        truth.postgres = is_of_bus;
        truth.bus &= !is_of_bus;
        truth.is_unwritable |= error.kind() == Kind::PostgresUnwritable;
        truth.idle_since = None;
    }

    /// How the relay tries again.
    pub(super) fn tries_again(&mut self, error: &Error, retry: &Retry) {
        let (Some(topic), Some(refusal)) = (error.topic(), retry.topic) else {
            return;
        };
        assert_eq!(refusal.of, Refused::Events, "the model refuses no others");
        match refusal.wait {
            Some(_) => self
                .readiness
                .tell(NotReady::TopicRefused(topic.to_owned())),
            None => self.readiness.withdraw("topic_refused"),
        }
        let truth = &mut self.truth;
        truth.is_refused = refusal.wait.is_some();
        truth.took_one = false;
        truth.idle_since = None;
    }

    /// Write-backs were refused.
    pub(super) fn write_refused(&mut self, kind: Kind, is_passing: bool) {
        if !is_passing {
            let error = Error::new(kind, "the model refuses it");
            self.readiness.tell(NotReady::Unwritable(error));
            self.truth.is_unwritable = true;
        }
    }

    /// Postgres took a write.
    pub(super) fn writes(&mut self) {
        self.readiness.withdraw("postgres_unwritable");
        self.truth.is_unwritable = false;
    }

    /// A stand-by sees another relay at work, or its wait is over.
    pub(super) fn standing_by(&mut self, holder: bool) {
        self.truth.stands_by = holder;
        match holder {
            true => {
                let holder = "a relay of the model".to_owned();
                self.readiness.tell(NotReady::StandingBy(holder));
                // The other relay writes what this one could not.
                self.writes();
            }
            false => self.readiness.withdraw("standing_by"),
        }
    }

    /// It is told to stop.
    fn stops(&mut self) {
        self.readiness.tell(NotReady::Stopping);
        self.truth.is_stopping = true;
    }

    fn code(&self, now: Duration) -> Option<&'static str> {
        let reason = self.readiness.not_ready(epoch() + now);
        reason.map(|reason| reason.code())
    }

    /// P9: `/readyz` says what is so.
    fn check(&mut self, now: Duration, reached: &mut Reached) {
        let code = self.code(now);
        let truth = &self.truth;
        let names_topic = truth.names_topic();
        let names_topic = names_topic.unwrap_or(code == Some("topic_refused"));
        let expected = truth.expected(now, names_topic);
        assert_eq!(
            code, expected,
            "P9: readiness at {now:?}: refused {} took {} events {} idle {:?}",
            truth.is_refused, truth.took_one, truth.has_events, truth.idle_since
        );
        assert!(
            code != Some("stalled") || now - truth.acked_at >= READY_WITHIN,
            "P9: it is stalled, and delivers"
        );
        if self.said != code
            && let Some(code) = code
        {
            reached.count(Path::NotReady(code), 1);
        }
        self.said = code;
    }
}

impl Relay {
    /// What a stream may confirm; nothing at the table.
    fn confirmable(&self) -> Lsn {
        let pipeline = self.pipeline.as_ref().filter(|_| self.reading.is_none());
        pipeline.map_or(Lsn::default(), |pipeline| pipeline.confirmable())
    }

    /// What publishes for an open session.
    fn publishes(&self) -> Option<&Publisher<Producer>> {
        let streams = self.pipeline.as_ref().map(|it| &it.publisher);
        let reads = self.reading.as_ref().map(|it| &it.read.publisher);
        reads.or(streams)
    }

    fn with_publisher(&mut self, then: impl FnOnce(&mut Health, &Publisher<Producer>, Lsn)) {
        let confirmable = self.confirmable();
        let mut health = std::mem::take(&mut self.process.health);
        then(&mut health, self.publishes().unwrap(), confirmable);
        self.process.health = health;
    }

    /// The reports up to `now`.
    fn reports(&mut self, now: Duration, is_up: bool, reached: &mut Reached) {
        while let Some(session) = &mut self.process.health.session
            && session.next_report <= now
        {
            let at = session.next_report;
            session.next_report += REPORT_INTERVAL;
            self.with_publisher(|health, publisher, confirmable| {
                health.bus_answers(is_up);
                health.report(at, publisher, confirmable);
            });
            self.process.health.check(at, reached);
        }
    }

    /// A relay that has no session says why, or has lost it just now.
    fn check_closed(&mut self, now: Duration, reached: &mut Reached) {
        let waits = self.process.waits();
        let health = &mut self.process.health;
        if waits || health.truth.stands_by {
            health.check(now, reached);
        } else if now - health.truth.closed_at > READY_WITHIN {
            assert_ne!(health.code(now), None, "P9: it is ready without a session");
        }
    }
}

impl World {
    fn relays(&mut self) -> impl Iterator<Item = &mut Relay> {
        let relays = [&mut self.relay].into_iter().chain(&mut self.others);
        relays.map(|relay| &mut **relay)
    }

    /// Loops report as time passes. One that stands still reports nothing.
    pub(super) fn report(&mut self) {
        let now = self.now;
        let is_up = !self.broker.lock().unwrap().down;
        let mut reached = std::mem::take(&mut self.reached);
        for relay in self.relays() {
            if relay.process.stand_still.is_some() {
                relay.process.health.put_off(now);
                continue;
            }
            relay.reports(now, is_up, &mut reached);
            if !relay.process.is_open() {
                relay.check_closed(now, &mut reached);
            }
        }
        self.reached = reached;
    }

    /// The session that is open begins to report. `is_connected`: with Postgres.
    pub(super) fn begin_reports(&mut self, is_connected: bool) {
        let now = self.now;
        let is_up = !self.broker.lock().unwrap().down;
        self.relay.with_publisher(|health, publisher, confirmable| {
            if is_connected {
                health.has_postgres();
            }
            health.opened(now, publisher, confirmable);
            health.connection(Side::Bus, is_up);
        });
    }

    /// The last report of a session.
    pub(super) fn end_reports(&mut self) {
        let now = self.now;
        self.relay.with_publisher(|health, publisher, confirmable| {
            health.closed(now, publisher, confirmable);
        });
    }

    /// The relay is told to stop.
    pub(super) fn stops(&mut self) {
        let health = &mut self.relay.process.health;
        health.stops();
        health.check(self.now, &mut self.reached);
    }

    /// A process that stood still for long was not ready.
    pub(super) fn check_silent(&mut self, since: Duration) {
        if self.now - since > READY_WITHIN + REPORT_INTERVAL {
            let code = self.relay.process.health.code(self.now);
            assert_ne!(code, None, "P9: it is ready, and stands still");
            let is_silent = u64::from(code == Some("silent"));
            self.reached.count(Path::NotReady("silent"), is_silent);
        }
    }

    /// Once everything has settled, the relay at work is ready, and the others stand by.
    pub(super) fn check_ready(&mut self) {
        for _ in 0..TURNS_AT_END * self.mode.relays {
            self.passes(SETTLES_BY);
            self.random = self.dice.fork();
            self.switch();
            self.receive();
            self.measure();
        }
        let now = self.now;
        for relay in self.relays() {
            let code = relay.process.health.code(now);
            let expected = (!relay.process.is_open()).then_some("standing_by");
            assert_eq!(code, expected, "P9: relay {} in the end", relay.number);
        }
    }
}
