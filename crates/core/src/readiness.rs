//! Whether the relay is ready, and why not (P9). It is computed for an instant, from the reports of
//! the relay.
//!
//! *Ready* means: the relay delivers, or it has nothing to deliver as far as the server's WAL
//! tells. Each reason why it is not ready is a [`NotReady`]. `/readyz`, the metrics, the status
//! page, systemd and `walrelay status` use this one definition.
//!
//! The relay tells of most reasons, and withdraws them: [`Readiness::tell`]. The others follow from
//! its connections and reports. It delivers while there is an ack or a confirmed LSN within
//! `ready_within`. Where nothing is in flight, the server must send the WAL that it has: see
//! [`ToDo`].

use std::collections::BTreeMap;
use std::mem::discriminant;
use std::time::{Duration, Instant};

use crate::config::unit::human_bytes;
use crate::error::Error;
use crate::publisher::Publisher;
use crate::sink::Sink;

/// After so long without work, the refusal of a record or a dead letter is forgotten: its row is
/// gone from the table.
const GONE: Duration = Duration::from_secs(10);
/// A longer time without a report is no part of a stall.
const REPORTED_WITHIN: Duration = Duration::from_secs(1);
/// Their codes.
const REFUSALS: [&str; 2] = ["dead_letters_refused", "topic_refused"];

/// One of the two ends that the relay connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The source.
    Postgres,
    /// The bus.
    Bus,
}

impl Side {
    /// Both ends, in the order of their metrics.
    pub const ALL: [Side; 2] = [Side::Postgres, Side::Bus];

    /// The end that failed with `error`.
    pub fn of(error: &Error) -> Side {
        if error.kind().ends_producer() {
            Side::Bus
        } else {
            Side::Postgres
        }
    }

    /// The value of the label.
    pub const fn name(self) -> &'static str {
        match self {
            Side::Postgres => "postgres",
            Side::Bus => "bus",
        }
    }
}

/// The reason why the relay is not ready, in the order of precedence. `Display` is one line for
/// people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// The relay stopped for this cause, and an operator has to act. HTTP shows the cause, which
    /// must hold no payload and no secret.
    #[error("halted: {0}")]
    Halted(String),
    /// The relay was told to stop.
    #[error("told to stop")]
    Stopping,
    /// This other relay has the slot or the table, until this one has, or tries to.
    #[error("standing by: {0}")]
    StandingBy(String),
    /// The relay has not been connected to both ends yet.
    #[error("not connected to both ends yet")]
    Starting,
    /// This topic refuses dead letters, which blocks all later events, until the topic takes one.
    #[error("topic {0} takes no dead letters, and everything behind them waits")]
    DeadLettersRefused(String),
    /// This topic refuses records, which blocks all events, until the topic takes one, or its
    /// events are given up.
    #[error(
        "topic {0} refuses records, and everything waits for it; the log says why, and what to do"
    )]
    TopicRefused(String),
    /// Postgres refuses what the relay writes: marks, deletes, parked events or the position. Until
    /// a write succeeds.
    #[error("Postgres refuses what the relay writes: {0}")]
    Unwritable(Error),
    /// The relay has lost the connection to this end, which is called so.
    #[error("not connected to {1}")]
    Disconnected(Side, &'static str),
    /// Postgres counts the relay as a synchronous standby; the SQL that mends it.
    #[error(
        "commits of all sessions wait for this relay, which Postgres counts as a synchronous \
         standby"
    )]
    SynchronousStandby(String),
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
    pub const CODES: [&str; 14] = [
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

/// What the stream did since the last report. A loop without a stream reports the default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Streamed {
    /// The LSN that may be confirmed moved.
    pub confirmed: bool,
    /// The server sent WAL.
    pub sent: bool,
    /// When WAL was seen on the server that has not arrived, in Unix microseconds.
    pub unsent_since_us: Option<i64>,
}

impl ToDo {
    /// What `publisher` has to do. `moved`: an event was acked or written back since the last
    /// report.
    pub fn of<S: Sink>(publisher: &Publisher<S>, moved: bool, streamed: Streamed) -> ToDo {
        // No consumer sees events of an open transaction.
        let has_events = !publisher.is_drained()
            || publisher.transaction.is_open()
            || !publisher.write_backs.is_empty();
        match (has_events, streamed.unsent_since_us) {
            (true, _) => ToDo::Events {
                progressed: moved || streamed.confirmed,
            },
            (false, Some(_)) => ToDo::Wal {
                progressed: streamed.sent,
            },
            (false, None) => ToDo::Nothing,
        }
    }
}

/// What the relay told, and when. Holds at most one reason for each of [`NotReady::CODES`].
#[derive(Debug)]
pub struct Readiness {
    /// The name of the bus, for texts.
    bus: &'static str,
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

impl Readiness {
    /// A relay that is not ready, as it has reported nothing. `bus`: the name of the bus, for
    /// texts.
    pub fn new(bus: &'static str, ready_within: Duration) -> Self {
        Readiness {
            bus,
            ready_within,
            connected: [false; 2],
            was_connected: false,
            waiting: None,
            heard_at: None,
            idle_since: None,
            told: BTreeMap::new(),
        }
    }

    /// An end was connected or lost.
    pub fn connection(&mut self, side: Side, up: bool) {
        let [postgres, bus] = &mut self.connected;
        match side {
            Side::Postgres => *postgres = up,
            Side::Bus => *bus = up,
        }
        // Without a session, no work says nothing.
        self.idle_since.take_if(|_| !up);
        self.was_connected |= self.connected == [true; 2];
    }

    /// Tells of a reason, which counts until it is withdrawn. A new reason needs nothing else than
    /// its variant and code.
    pub fn tell(&mut self, reason: NotReady) {
        self.withdraw(reason.code());
        self.told.insert(reason.code(), reason);
    }

    /// Withdraws the reason with this code, where it was told.
    pub fn withdraw(&mut self, code: &'static str) {
        debug_assert!(NotReady::CODES.contains(&code), "{code}");
        if REFUSALS.contains(&code) {
            self.idle_since = None;
        }
        self.told.remove(code);
    }

    /// A report of the relay's loop at `now`.
    ///
    /// Call it several times in `ready_within`, also while idle: silence counts as a stall. Gives
    /// [`NotReady::Stalled`] or [`NotReady::WalNotSent`] where that was not the reason at the last
    /// report.
    pub fn report(&mut self, now: Instant, to_do: ToDo) -> Option<NotReady> {
        let waits =
            |reason: &NotReady| matches!(reason, NotReady::Stalled(_) | NotReady::WalNotSent(_));
        let last = self.heard_at.and_then(|at| self.not_ready(at));
        let waited = last.as_ref().is_some_and(waits);
        // Nothing is taken in between two sessions.
        let gap = self.heard_at.map(|at| now.saturating_duration_since(at));
        let silence = gap.unwrap_or_default().saturating_sub(REPORTED_WITHIN);
        self.heard_at = Some(now);
        // From one kind of work to the other, something was sent, or delivered.
        let is_same = |(before, _): &(ToDo, _)| discriminant(before) == discriminant(&to_do);
        let since = self
            .waiting
            .filter(is_same)
            .map(|(_, since)| since + silence);
        self.waiting = match to_do {
            ToDo::Nothing => None,
            ToDo::Events { progressed: false } | ToDo::Wal { progressed: false } => {
                Some((to_do, since.unwrap_or(now)))
            }
            ToDo::Events { .. } | ToDo::Wal { .. } => Some((to_do, now)),
        };
        let has_events = matches!(to_do, ToDo::Events { .. });
        self.idle_since = (!has_events).then(|| self.idle_since.unwrap_or(now));
        if self
            .idle_since
            .is_some_and(|since| now.saturating_duration_since(since) > GONE)
        {
            self.told.retain(|code, _| !REFUSALS.contains(code));
        }
        self.not_ready(now)
            .filter(|reason| !waited && waits(reason))
    }

    /// The reason why the relay is not ready at the instant `now`; `None` if it is ready.
    pub fn not_ready(&self, now: Instant) -> Option<NotReady> {
        let overdue = |since: Instant| {
            let age = now.saturating_duration_since(since);
            (age > self.ready_within).then_some(age)
        };
        let ends = Side::ALL.into_iter().zip(["Postgres", self.bus]);
        let lost = ends.zip(self.connected).filter(|(_, up)| !up);
        let waits = self.waiting.and_then(|(to_do, since)| {
            overdue(since).map(|age| match to_do {
                ToDo::Wal { .. } => NotReady::WalNotSent(age),
                ToDo::Events { .. } | ToDo::Nothing => NotReady::Stalled(age),
            })
        });
        let reasons = self.told.values().cloned();
        let reasons = reasons.chain((!self.was_connected).then_some(NotReady::Starting));
        let reasons = reasons
            .chain(lost.map(|((side, name), _)| NotReady::Disconnected(side, name)))
            .chain(waits);
        let reasons = reasons.chain(self.heard_at.and_then(overdue).map(NotReady::Silent));
        reasons
            .min_by_key(NotReady::precedence)
            .or(self.heard_at.is_none().then_some(NotReady::Starting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DeliveryConfig, Guarantee};
    use crate::error::Kind;
    use crate::position::Position;
    use crate::publisher::tests::{AckingBus, setup};

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

    fn connected() -> (Readiness, Instant) {
        let mut relay = Readiness::new("Kafka", WITHIN);
        relay.connection(Side::Postgres, true);
        relay.connection(Side::Bus, true);
        (relay, Instant::now())
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
        let mut relay = Readiness::new("Kafka", WITHIN);
        relay.report(start, ToDo::Nothing);
        assert_eq!(relay.not_ready(start), Some(NotReady::Starting));
        relay.connection(Side::Postgres, true);
        assert_eq!(relay.not_ready(start), Some(NotReady::Starting));
        relay.connection(Side::Bus, true);
        assert_eq!(relay.not_ready(start), None);
        let (unheard, now) = connected();
        assert_eq!(unheard.not_ready(now), Some(NotReady::Starting));
    }

    #[test]
    fn refused_dead_letters_make_the_relay_unready_until_one_is_accepted_or_none_left() {
        let (mut relay, start) = connected();
        let at = |second| start + seconds(second);
        let refused = || Some(NotReady::DeadLettersRefused("dead".to_owned()));
        relay.tell(refused().unwrap());
        // Between two attempts there is no work for a moment.
        for second in 0..60 {
            relay.report(
                at(second),
                if second % 10 == 0 {
                    events(true)
                } else {
                    ToDo::Nothing
                },
            );
            assert_eq!(relay.not_ready(at(second)), refused());
        }
        relay.withdraw("dead_letters_refused");
        assert_eq!(relay.not_ready(at(60)), None);
        relay.tell(refused().unwrap());
        for second in 60..=70 {
            relay.report(at(second), ToDo::Nothing);
        }
        assert_eq!(relay.not_ready(at(70)), refused());
        relay.report(at(71), ToDo::Nothing);
        assert_eq!(relay.not_ready(at(71)), None);
    }

    #[test]
    fn a_refusing_topic_makes_the_relay_unready_between_and_during_attempts() {
        let (mut relay, start) = connected();
        let refused = || Some(NotReady::TopicRefused("orders".to_owned()));
        relay.tell(refused().unwrap());
        for second in 0..60 {
            let now = start + seconds(second);
            let is_tried = second % 20 < 10;
            relay.connection(Side::Bus, is_tried);
            if is_tried {
                relay.report(now, events(second % 20 == 0));
            }
            assert_eq!(relay.not_ready(now), refused());
        }
        relay.withdraw("topic_refused");
        assert_eq!(relay.not_ready(start).unwrap().code(), "bus_disconnected");
    }

    #[test]
    fn an_idle_relay_that_reports_stays_ready_and_a_silent_one_does_not() {
        let (mut relay, start) = connected();
        for second in (0..3600).step_by(10) {
            let now = start + seconds(second);
            relay.report(now, ToDo::Nothing);
            assert_eq!(relay.not_ready(now), None);
        }
        assert_eq!(relay.not_ready(start + seconds(3590) + WITHIN), None);
        assert_eq!(
            relay.not_ready(start + seconds(3591) + WITHIN),
            Some(NotReady::Silent(seconds(31)))
        );
    }

    #[test]
    fn a_relay_with_events_in_flight_and_no_acks_is_stalled_despite_its_reports() {
        let (mut relay, start) = connected();
        relay.report(start, events(true));
        for second in 1..=30 {
            assert_eq!(relay.report(start + seconds(second), events(false)), None);
        }
        let stalled = NotReady::Stalled(seconds(31));
        let news = relay.report(start + seconds(31), events(false));
        assert_eq!(news, Some(stalled));
        assert_eq!(relay.not_ready(start + WITHIN), None);
        assert_eq!(
            relay.not_ready(start + seconds(31)),
            Some(NotReady::Stalled(seconds(31)))
        );
        let told_once = relay.report(start + seconds(31), events(false));
        assert_eq!(told_once, None);
        relay.report(start + seconds(32), events(true));
        assert_eq!(
            relay.not_ready(start + seconds(32)),
            None,
            "an ack ends the stall"
        );

        // The next stall begins with the work, not with the last ack before it.
        relay.report(start + seconds(33), ToDo::Nothing);
        let work = start + seconds(1000);
        relay.report(work, events(false));
        assert_eq!(relay.not_ready(work + WITHIN), None);
        assert!(matches!(
            relay.not_ready(work + WITHIN + WITHIN),
            Some(NotReady::Stalled(_))
        ));
    }

    #[test]
    fn a_server_that_sends_nothing_of_its_wal_makes_the_relay_unready_until_it_goes_on() {
        let (mut relay, start) = connected();
        let wal = |relay: &mut Readiness, second, progressed| {
            relay.report(start + seconds(second), ToDo::Wal { progressed });
        };
        for second in 0..60 {
            wal(&mut relay, second, true);
            assert_eq!(
                relay.not_ready(start + seconds(second)),
                None,
                "it decodes WAL of other tables"
            );
        }
        (60..=90).for_each(|second| wal(&mut relay, second, false));
        assert_eq!(
            relay.not_ready(start + seconds(90)),
            Some(NotReady::WalNotSent(seconds(31)))
        );
        wal(&mut relay, 91, true);
        assert_eq!(relay.not_ready(start + seconds(91)), None);
        (92..=130).for_each(|second| wal(&mut relay, second, false));
        relay.report(start + seconds(131), events(true));
        assert_eq!(
            relay.not_ready(start + seconds(131)),
            None,
            "events arrived"
        );
    }

    #[test]
    fn a_stall_begins_anew_with_work_of_the_other_kind_and_with_postgres() {
        let (mut relay, start) = connected();
        let at = |second| start + seconds(second);
        let wal = ToDo::Wal { progressed: false };
        (0..=40).for_each(|second| _ = relay.report(at(second), wal));
        assert_eq!(relay.report(at(41), events(false)), None, "some was sent");
        assert_eq!(relay.not_ready(at(41)), None);
        (42..=72).for_each(|second| _ = relay.report(at(second), events(false)));
        let stalled = NotReady::Stalled(seconds(31));
        assert_eq!(relay.not_ready(at(72)), Some(stalled));
        relay.report(at(73), wal);
        assert_eq!(relay.not_ready(at(73)), None, "the events are delivered");

        relay.report(at(74), events(false));
        relay.connection(Side::Postgres, false);
        relay.connection(Side::Postgres, true);
        let news = relay.report(at(200), events(false));
        assert_eq!(news, None, "acks of that time are taken in from now on");
        // Connections that are lost again and again end no stall.
        let ended = (201..=240).filter_map(|second| {
            relay.connection(Side::Postgres, second % 7 != 0);
            relay.report(at(second), events(false))
        });
        assert_eq!(ended.count(), 1);
    }

    #[test]
    fn acked_events_wait_until_their_transaction_is_committed() {
        let setup = setup(DeliveryConfig {
            guarantee: Guarantee::ExactlyOnce,
            ..DeliveryConfig::default()
        });
        let sink = AckingBus::default();
        let mut publisher = Publisher::new(&setup, Position::default(), sink).unwrap();
        let to_do = |of: &Publisher<_>| ToDo::of(of, false, Streamed::default());
        assert_eq!(to_do(&publisher), ToDo::Nothing);
        publisher.transaction.enqueued();
        assert!(publisher.is_drained());
        assert_eq!(to_do(&publisher), events(false));
        publisher.committed();
        assert_eq!(to_do(&publisher), ToDo::Nothing);
    }

    #[test]
    fn a_refusal_is_not_forgotten_while_no_session_is_open() {
        let (mut relay, start) = connected();
        relay.tell(NotReady::TopicRefused("orders".to_owned()));
        relay.report(start, ToDo::Nothing);
        for side in Side::ALL {
            relay.connection(side, false);
            relay.connection(side, true);
            relay.report(start + seconds(11), ToDo::Nothing);
            let reason = relay.not_ready(start + seconds(11));
            assert_eq!(reason.map(|it| it.code()), Some("topic_refused"));
        }
    }

    #[test]
    fn a_disconnect_a_stand_by_a_stop_and_a_halt_each_make_the_relay_unready() {
        let (mut relay, now) = connected();
        relay.report(now, ToDo::Nothing);
        relay.connection(Side::Bus, false);
        assert_eq!(
            relay.not_ready(now),
            Some(NotReady::Disconnected(Side::Bus, "Kafka"))
        );
        relay.connection(Side::Bus, true);
        assert_eq!(relay.not_ready(now), None);
        relay.tell(NotReady::StandingBy("backend pid 7".to_owned()));
        assert_eq!(
            relay.not_ready(now).map(|reason| reason.code()),
            Some("standing_by")
        );
        relay.withdraw("standing_by");
        assert_eq!(relay.not_ready(now), None);
        relay.tell(NotReady::Stopping);
        assert_eq!(relay.not_ready(now), Some(NotReady::Stopping));
        relay.tell(NotReady::Halted("the slot is gone".to_owned()));
        assert_eq!(
            relay.not_ready(now).map(|reason| reason.to_string()),
            Some("halted: the slot is gone".to_owned())
        );
    }
}
