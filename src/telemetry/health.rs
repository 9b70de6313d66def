//! Readiness of the relay (P9). Does no I/O: it is computed for an instant, from the reports of the
//! relay.
//!
//! *Ready* means: the relay delivers, or it has nothing to deliver as far as the server's WAL
//! tells. Each reason why it is not ready is a [`NotReady`]. `/readyz`, the metrics, the status
//! page, systemd and `walrelay status` use this one definition.
//!
//! The relay tells of most reasons, and withdraws them: [`Health::tell`]. The others follow from
//! its connections and reports. It delivers while there is an ack or a confirmed LSN within
//! `ready_within`. Where nothing is in flight, the server must send the WAL that it has: see
//! [`ToDo`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Side;
use crate::config::Bus;
use walrelay_core::config::unit::human_bytes;
use walrelay_core::error::{Error, NextCommand, Remedy};

/// After so long without work, the refusal of a record or a dead letter is forgotten: its row is
/// gone from the table.
const GONE: Duration = Duration::from_secs(10);

/// The reason why the relay is not ready, in the order of precedence. `Display` is one line for
/// people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// The relay stopped for this cause, and an operator has to act.
    #[error("halted: {0}")]
    Halted(String),
    /// The relay was told to stop.
    #[error("told to stop")]
    Stopping,
    /// This other relay has the slot or the table.
    #[error("standing by: {0}")]
    StandingBy(String),
    /// The relay has not been connected to both ends yet.
    #[error("not connected to both ends yet")]
    Starting,
    /// Postgres counts the relay as a synchronous standby; the SQL that mends it.
    #[error(
        "commits of all sessions wait for this relay, which Postgres counts as a synchronous \
         standby"
    )]
    SynchronousStandby(String),
    /// This topic refuses dead letters, which blocks all later events.
    #[error("topic {0} takes no dead letters, and everything behind them waits")]
    DeadLettersRefused(String),
    /// This topic refuses records, which blocks all events.
    #[error(
        "topic {0} refuses records, and everything waits for it; the log says why, and what to do"
    )]
    TopicRefused(String),
    /// Postgres refuses what the relay writes: marks, deletes, parked events or the position.
    #[error("Postgres refuses what the relay writes: {0}")]
    Unwritable(Error),
    /// The relay has lost the connection to this end, which is called so.
    #[error("not connected to {1}")]
    Disconnected(Side, &'static str),
    /// The slot retains more WAL than allowed: the retained bytes, and the allowed ones.
    #[error("the slot retains {} of WAL, and its limit is {}", human_bytes(*.0), human_bytes(*.1))]
    OverBudget(u64, u64),
    /// Events are in flight, and nothing was acked or confirmed for this long.
    #[error("events wait, and none was acked for {} s", .0.as_secs())]
    Stalled(Duration),
    /// The server has WAL that the relay lacks, and has sent nothing of it for this long.
    #[error("Postgres has WAL for the slot, and has sent nothing of it for {} s", .0.as_secs())]
    WalNotSent(Duration),
    /// The relay's loop has reported nothing for this long.
    #[error("the relay's loop has reported nothing for {} s", .0.as_secs())]
    Silent(Duration),
}

impl NotReady {
    /// All codes, in the order of precedence: a reason hides those behind it.
    pub(crate) const CODES: [&str; 14] = [
        "halted",
        "stopping",
        "standing_by",
        "starting",
        "dead_letters_refused",
        "topic_refused",
        "postgres_unwritable",
        "postgres_disconnected",
        "bus_disconnected",
        "synchronous_standby",
        "over_budget",
        "stalled",
        "wal_not_sent",
        "silent",
    ];

    /// A stable word for scripts: one of [`NotReady::CODES`].
    pub const fn code(&self) -> &'static str {
        match self {
            NotReady::Halted(_) => "halted",
            NotReady::Stopping => "stopping",
            NotReady::StandingBy(_) => "standing_by",
            NotReady::Starting => "starting",
            NotReady::DeadLettersRefused(_) => "dead_letters_refused",
            NotReady::TopicRefused(_) => "topic_refused",
            NotReady::Unwritable(_) => "postgres_unwritable",
            NotReady::Disconnected(Side::Postgres, _) => "postgres_disconnected",
            NotReady::Disconnected(Side::Bus, _) => "bus_disconnected",
            NotReady::SynchronousStandby(_) => "synchronous_standby",
            NotReady::OverBudget(..) => "over_budget",
            NotReady::Stalled(_) => "stalled",
            NotReady::WalNotSent(_) => "wal_not_sent",
            NotReady::Silent(_) => "silent",
        }
    }

    fn precedence(&self) -> usize {
        NotReady::CODES
            .iter()
            .position(|code| *code == self.code())
            .unwrap_or_default()
    }
}

const BLOCKED_FIX: &str = "see walrelay_intake_closed and the last warnings of the log, and what \
                           blocks walrelay in Postgres: \
     select pid, pg_blocking_pids(pid) from pg_stat_activity where application_name like \
     'walrelay%'";

/// The remedy for [`NotReady::Stalled`]. Without events in flight, the relay does not wait for the
/// bus.
pub(crate) fn stalled_fix(bus: Bus, in_flight_events: i64) -> Remedy {
    match (in_flight_events > 0, bus.refuses_each) {
        (false, _) => BLOCKED_FIX.into(),
        (true, false) => bus.stalled.into(),
        (true, true) => Remedy::from(
            "if the log has record_refused or record_delayed, do what its fix says; if not, ",
        )
        .and(bus.stalled),
    }
}

/// The remedy for [`NotReady::WalNotSent`].
pub(crate) fn wal_not_sent_fix() -> Remedy {
    Remedy::from(
        "a standby that synchronized_standby_slots names may be away, for which Postgres holds \
         events back: see it with `",
    )
    .and(NextCommand::new("doctor"))
    .and("`; or the server decodes a large transaction: select * from pg_stat_replication_slots")
}

/// The remedy for [`NotReady::OverBudget`].
pub(crate) const HELD_BACK: &str = "end a transaction that has been open for long, else remove \
                                    what keeps events \
     from the bus: docs/explanation/recovery.md";

/// What the relay has to do, as its loop sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToDo {
    /// There is nothing to deliver.
    Nothing,
    /// Events are in flight.
    Events {
        /// There was an ack or a confirmed LSN since the last report.
        progressed: bool,
    },
    /// Nothing is in flight, and the server has WAL that the relay lacks.
    Wal {
        /// The server has sent some since the last report.
        progressed: bool,
    },
}

#[derive(Debug, Default)]
struct Health {
    /// For texts.
    bus: Bus,
    ready_within: Duration,
    connected: [bool; 2],
    was_connected: bool,
    /// What the last report said, and since when there is no progress.
    waiting: Option<(ToDo, Instant)>,
    heard_at: Option<Instant>,
    idle_since: Option<Instant>,
    /// By its code, what the relay told and has not withdrawn.
    told: BTreeMap<&'static str, NotReady>,
}

impl Health {
    /// Tells of a reason; `None` withdraws the one with this code. Nothing else is needed for a new
    /// reason than its variant and code, and a method of [`HealthHandle`] that calls this.
    fn tell(&mut self, code: &'static str, reason: Option<NotReady>) {
        match reason {
            Some(reason) => self.told.insert(code, reason),
            None => self.told.remove(code),
        };
    }

    fn report(&mut self, now: Instant, to_do: ToDo) {
        self.heard_at = Some(now);
        let since = self.waiting.map(|(_, since)| since);
        self.waiting = match to_do {
            ToDo::Nothing => None,
            ToDo::Events { progressed: false } | ToDo::Wal { progressed: false } => {
                Some((to_do, since.unwrap_or(now)))
            }
            ToDo::Events { .. } | ToDo::Wal { .. } => Some((to_do, now)),
        };
        let has_events = matches!(to_do, ToDo::Events { .. });
        let idle_since = (!has_events).then(|| self.idle_since.unwrap_or(now));
        self.idle_since = idle_since;
        if idle_since.is_some_and(|since| now.saturating_duration_since(since) > GONE) {
            self.tell("dead_letters_refused", None);
            self.tell("topic_refused", None);
        }
    }

    /// The reason why the relay is not ready at the instant `now`; `None` if it is ready.
    fn not_ready(&self, now: Instant) -> Option<NotReady> {
        let overdue = |since: Instant| {
            let age = now.saturating_duration_since(since);
            (age > self.ready_within).then_some(age)
        };
        let lost = Side::ALL
            .into_iter()
            .zip(self.connected)
            .filter(|(_, up)| !up);
        let waits = self.waiting.and_then(|(to_do, since)| {
            overdue(since).map(|age| match to_do {
                ToDo::Wal { .. } => NotReady::WalNotSent(age),
                ToDo::Events { .. } | ToDo::Nothing => NotReady::Stalled(age),
            })
        });
        let reasons = self.told.values().cloned();
        let reasons = reasons.chain((!self.was_connected).then_some(NotReady::Starting));
        let reasons = reasons
            .chain(lost.map(|(side, _)| NotReady::Disconnected(side, side.name_of(self.bus))))
            .chain(waits);
        let reasons = reasons.chain(self.heard_at.and_then(overdue).map(NotReady::Silent));
        reasons
            .min_by_key(NotReady::precedence)
            .or(self.heard_at.is_none().then_some(NotReady::Starting))
    }
}

/// The health of a relay, which the relay writes and the HTTP server reads. Clones share it; no
/// call blocks for long.
#[derive(Debug, Clone)]
pub struct HealthHandle(Arc<Mutex<Health>>);

impl HealthHandle {
    /// A health without reports: not ready.
    pub fn new(ready_within: Duration) -> Self {
        HealthHandle(Arc::new(Mutex::new(Health {
            ready_within,
            ..Health::default()
        })))
    }

    /// Texts name this bus.
    pub(crate) fn set_bus(&self, bus: Bus) {
        self.health().bus = bus;
    }

    /// A report of the relay's loop.
    ///
    /// Call it several times in `ready_within`, also while idle: silence counts as a stall. Gives
    /// [`NotReady::Stalled`] or [`NotReady::WalNotSent`] where that was not the reason at the last
    /// report.
    pub fn report(&self, to_do: ToDo) -> Option<NotReady> {
        let mut health = self.health();
        let now = Instant::now();
        let waits =
            |reason: &NotReady| matches!(reason, NotReady::Stalled(_) | NotReady::WalNotSent(_));
        let waited = health
            .heard_at
            .and_then(|at| health.not_ready(at))
            .as_ref()
            .is_some_and(waits);
        health.report(now, to_do);
        health
            .not_ready(now)
            .filter(|reason| !waited && waits(reason))
    }

    /// An end was connected or lost.
    pub fn connection(&self, side: Side, up: bool) {
        let mut health = self.health();
        let [postgres, bus] = &mut health.connected;
        match side {
            Side::Postgres => *postgres = up,
            Side::Bus => *bus = up,
        }
        health.was_connected |= health.connected == [true; 2];
    }

    /// The bytes of WAL that the slot retains, and the allowed bytes; `None` within the budget.
    pub fn over_budget(&self, bytes: Option<(u64, u64)>) {
        let reason = bytes.map(|(retained, max)| NotReady::OverBudget(retained, max));
        self.health().tell("over_budget", reason);
    }

    /// The SQL that mends it where commits wait for this relay; `None` where they do not.
    pub(crate) fn synchronous_standby(&self, remedy: Option<String>) {
        self.health().tell(
            "synchronous_standby",
            remedy.map(NotReady::SynchronousStandby),
        );
    }

    /// The topic that refuses dead letters; `None` once it has taken one.
    pub fn dead_letters_refused(&self, topic: Option<String>) {
        let mut health = self.health();
        health.tell(
            "dead_letters_refused",
            topic.map(NotReady::DeadLettersRefused),
        );
        health.idle_since = None;
    }

    /// The topic that refuses records and so blocks all events; `None` once it takes one, or its
    /// events are given up.
    pub fn topic_refused(&self, topic: Option<String>) {
        let mut health = self.health();
        health.tell("topic_refused", topic.map(NotReady::TopicRefused));
        health.idle_since = None;
    }

    /// The refusal of what the relay writes to Postgres; `None` once a write has succeeded.
    pub(crate) fn unwritable(&self, error: Option<Error>) {
        self.health()
            .tell("postgres_unwritable", error.map(NotReady::Unwritable));
    }

    /// The active relay, if this one stands by; `None` while this one is active or tries to be.
    pub fn standing_by(&self, holder: Option<String>) {
        self.health()
            .tell("standing_by", holder.map(NotReady::StandingBy));
    }

    /// The relay was told to stop and is draining.
    pub fn stopping(&self) {
        self.health().tell("stopping", Some(NotReady::Stopping));
    }

    /// The relay stopped, and an operator has to act. HTTP shows `cause`, which must hold no
    /// payload and no secret.
    pub fn halted(&self, cause: &str) {
        self.health()
            .tell("halted", Some(NotReady::Halted(cause.to_owned())));
    }

    /// The reason why the relay is not ready now; `None` if it is ready.
    pub(crate) fn not_ready(&self) -> Option<NotReady> {
        self.health().not_ready(Instant::now())
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        // A panic elsewhere can leave one of several assignments undone. The next report repeats
        // it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use walrelay_core::error::Kind;

    const WITHIN: Duration = Duration::from_secs(30);

    #[test]
    fn every_reason_has_a_code_that_is_exposed() {
        let text = || String::from("x");
        let reasons = [
            NotReady::Halted(text()),
            NotReady::Stopping,
            NotReady::StandingBy(text()),
            NotReady::Starting,
            NotReady::DeadLettersRefused(text()),
            NotReady::TopicRefused(text()),
            NotReady::Unwritable(Error::new(Kind::PostgresUnwritable, "x")),
            NotReady::Disconnected(Side::Postgres, "Postgres"),
            NotReady::Disconnected(Side::Bus, "Kafka"),
            NotReady::SynchronousStandby(text()),
            NotReady::OverBudget(2, 1),
            NotReady::Stalled(WITHIN),
            NotReady::WalNotSent(WITHIN),
            NotReady::Silent(WITHIN),
        ];
        assert_eq!(reasons.map(|reason| reason.code()), NotReady::CODES);
    }

    #[test]
    fn the_remedy_of_a_stall_asks_for_a_refused_record_where_single_ones_are_refused() {
        let kafka = Bus::default();
        let other = Bus {
            refuses_each: true,
            ..kafka
        };
        let of = |bus, in_flight| stalled_fix(bus, in_flight).to_string();
        assert_eq!(of(kafka, 1), Remedy::from(kafka.stalled).to_string());
        let fix = of(other, 1);
        assert!(
            fix.contains("record_refused") && fix.ends_with(kafka.stalled),
            "{fix}"
        );
        assert!(of(other, 0).contains("pg_blocking_pids"));
    }

    fn connected() -> (HealthHandle, Instant) {
        let health = HealthHandle::new(WITHIN);
        health.connection(Side::Postgres, true);
        health.connection(Side::Bus, true);
        (health, Instant::now())
    }

    fn reason(health: &HealthHandle, now: Instant) -> Option<NotReady> {
        health.health().not_ready(now)
    }

    /// The report of a loop with events in flight.
    const fn events(progressed: bool) -> ToDo {
        ToDo::Events { progressed }
    }

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_relay_is_not_ready_before_both_connections_and_its_first_report() {
        let start = Instant::now();
        let health = HealthHandle::new(WITHIN);
        health.health().report(start, ToDo::Nothing);
        assert_eq!(reason(&health, start), Some(NotReady::Starting));
        health.connection(Side::Postgres, true);
        assert_eq!(reason(&health, start), Some(NotReady::Starting));
        health.connection(Side::Bus, true);
        assert_eq!(reason(&health, start), None);
        let (unheard, now) = connected();
        assert_eq!(reason(&unheard, now), Some(NotReady::Starting));
    }

    #[test]
    fn refused_dead_letters_make_the_relay_unready_until_one_is_accepted_or_none_left() {
        let (health, start) = connected();
        let at = |second| start + seconds(second);
        let refused = || Some(NotReady::DeadLettersRefused("dead".to_owned()));
        health.dead_letters_refused(Some("dead".to_owned()));
        // Between two attempts there is no work for a moment.
        for second in 0..60 {
            health.health().report(
                at(second),
                if second % 10 == 0 {
                    events(true)
                } else {
                    ToDo::Nothing
                },
            );
            assert_eq!(reason(&health, at(second)), refused());
        }
        health.dead_letters_refused(None);
        assert_eq!(reason(&health, at(60)), None);
        health.dead_letters_refused(Some("dead".to_owned()));
        (60..=70).for_each(|second| health.health().report(at(second), ToDo::Nothing));
        assert_eq!(reason(&health, at(70)), refused());
        health.health().report(at(71), ToDo::Nothing);
        assert_eq!(reason(&health, at(71)), None);
    }

    #[test]
    fn a_refusing_topic_makes_the_relay_unready_between_and_during_attempts() {
        let (health, start) = connected();
        let refused = || Some(NotReady::TopicRefused("orders".to_owned()));
        health.topic_refused(Some("orders".to_owned()));
        for second in 0..60 {
            let now = start + seconds(second);
            let is_tried = second % 20 < 10;
            health.connection(Side::Bus, is_tried);
            if is_tried {
                health.health().report(now, events(second % 20 == 0));
            }
            assert_eq!(reason(&health, now), refused());
        }
        health.topic_refused(None);
        assert_eq!(reason(&health, start).unwrap().code(), "bus_disconnected");
    }

    #[test]
    fn an_idle_relay_that_reports_stays_ready_and_a_silent_one_does_not() {
        let (health, start) = connected();
        for second in (0..3600).step_by(10) {
            let now = start + seconds(second);
            health.health().report(now, ToDo::Nothing);
            assert_eq!(reason(&health, now), None);
        }
        assert_eq!(reason(&health, start + seconds(3590) + WITHIN), None);
        assert_eq!(
            reason(&health, start + seconds(3591) + WITHIN),
            Some(NotReady::Silent(seconds(31)))
        );
    }

    #[test]
    fn a_relay_with_events_in_flight_and_no_acks_is_stalled_despite_its_reports() {
        let (health, start) = connected();
        health.health().report(start, events(true));
        for second in 1..=31 {
            health
                .health()
                .report(start + seconds(second), events(false));
        }
        assert_eq!(reason(&health, start + WITHIN), None);
        assert_eq!(
            reason(&health, start + seconds(31)),
            Some(NotReady::Stalled(seconds(31)))
        );
        health.health().report(start + seconds(32), events(true));
        assert_eq!(
            reason(&health, start + seconds(32)),
            None,
            "an ack ends the stall"
        );

        // The next stall begins with the work, not with the last ack before it.
        health.health().report(start + seconds(33), ToDo::Nothing);
        let work = start + seconds(1000);
        health.health().report(work, events(false));
        assert_eq!(reason(&health, work + WITHIN), None);
        assert!(matches!(
            reason(&health, work + WITHIN + WITHIN),
            Some(NotReady::Stalled(_))
        ));
    }

    #[test]
    fn a_server_that_sends_nothing_of_its_wal_makes_the_relay_unready_until_it_goes_on() {
        let (health, start) = connected();
        let wal = |second, progressed| {
            health
                .health()
                .report(start + seconds(second), ToDo::Wal { progressed })
        };
        for second in 0..60 {
            wal(second, true);
            assert_eq!(
                reason(&health, start + seconds(second)),
                None,
                "it decodes WAL of other tables"
            );
        }
        (60..=90).for_each(|second| wal(second, false));
        assert_eq!(
            reason(&health, start + seconds(90)),
            Some(NotReady::WalNotSent(seconds(31)))
        );
        wal(91, true);
        assert_eq!(reason(&health, start + seconds(91)), None);
        (92..=130).for_each(|second| wal(second, false));
        health.health().report(start + seconds(131), events(true));
        assert_eq!(
            reason(&health, start + seconds(131)),
            None,
            "events arrived"
        );
    }

    #[test]
    fn a_disconnect_a_stand_by_a_stop_and_a_halt_each_make_the_relay_unready() {
        let (health, now) = connected();
        health.health().report(now, ToDo::Nothing);
        health.connection(Side::Bus, false);
        assert_eq!(
            reason(&health, now),
            Some(NotReady::Disconnected(Side::Bus, "Kafka"))
        );
        health.connection(Side::Bus, true);
        assert_eq!(reason(&health, now), None);
        health.standing_by(Some("backend pid 7, streams".to_owned()));
        assert_eq!(
            reason(&health, now).map(|reason| reason.code()),
            Some("standing_by")
        );
        health.standing_by(None);
        assert_eq!(reason(&health, now), None);
        health.stopping();
        assert_eq!(reason(&health, now), Some(NotReady::Stopping));
        health.halted("the slot is gone");
        assert_eq!(
            reason(&health, now).map(|reason| reason.to_string()),
            Some("halted: the slot is gone".to_owned())
        );
    }
}
