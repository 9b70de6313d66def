//! Which session comes next, and after which wait.
//!
//! A relay has one session after another: it streams from the slot, or reads the table. In between
//! it waits, or stands by while another relay is at work. [`Sessions`] is told how each session
//! ended, and says what is next. The program opens sessions, waits, and logs.

use std::time::{Duration, Instant};

use crate::config::{DeliveryConfig, OnError};
use crate::error::{Error, Kind, Result};
use crate::event::RowId;
use crate::publisher::quarantine::{Quarantine, Topics};

/// The first wait: a server that is restarted may be back within a second.
const FIRST: Duration = Duration::from_millis(50);
/// The factor from each wait to the next. For Postgres a wait comes to less than a tenth of the
/// time since the first, so that the end of a restart of some seconds is noticed within half of
/// one. A try of the bus costs a producer, and a server that refuses writes takes none before
/// somebody has mended something.
const RESTART_FACTOR: f64 = 1.07;
const FACTOR: f64 = 2.0;
/// The longest wait: an operator who has mended something does not wait longer than this for the
/// relay to notice.
const LONGEST: Duration = Duration::from_secs(15);
/// A session that lasted this long was a good one, and the next outage is another.
const LASTED: Duration = Duration::from_secs(10);
/// So many lost connections in a row are no accident.
const PASSING_TRIES: u32 = 3;

/// How a session ended well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The relay was told to stop, and did what it could.
    Stopped,
    /// Postgres shuts down; it will be back.
    ServerShutDown,
    /// The task is done: the next session opens, which may be of another kind.
    Again,
    /// These rows are to be published again.
    Asked(Vec<RowId>),
    /// The slot retains more WAL than its limit, and is to be dropped.
    OverBudget,
    /// Transactions hold up the creation of the slot, for this reason: the table is polled
    /// meanwhile.
    Held(String),
}

/// Why the table is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableReason {
    /// The slot does not have everything, or there is none.
    Gap,
    /// Somebody set these rows to pending again.
    Asked(Vec<RowId>),
    /// There can be no slot, or none is wanted; in a few words.
    Poll(String),
}

/// What the relay does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Open a session.
    Open,
    /// Drop the slot, call [`Sessions::slot_dropped`] if that succeeded, and open a session.
    DropSlot,
    /// Wait until no other relay is at work; why one seems to be.
    StandBy(Error),
    /// Call [`Sessions::failed`] with this error, and wait as long as it says.
    TryAgain(Error),
    /// Wait for acks of what is in flight, and leave.
    Leave,
    /// Leave: with this error the producer is finished, and nothing more is acked.
    LeaveWithoutAcks(Error),
}

/// What becomes of the producer of a session that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProducerAfter {
    /// The next session goes on with it.
    Keep,
    /// Another one starts behind the delivered position.
    Replace,
    /// It ends before the wait, and aborts an open transaction: consumers do not wait for the next
    /// session, which gets a producer of its own.
    End,
}

/// Which records a topic refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Events. Once no attempt is left, they are given up.
    Events,
    /// Dead letters. Nothing else can be done with them, so there is no last attempt.
    DeadLetters,
    /// Stored positions. No event is refused, so none can be given up.
    Positions,
}

/// A topic that refused a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicRefusal {
    /// Which records it refuses.
    pub of: Refused,
    /// How often it refused one in a row.
    pub tries: u32,
    /// The wait before the next attempt; none if no attempt is left.
    pub wait: Option<Duration>,
}

/// How the relay tries again after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// The wait before the next session.
    pub wait: Duration,
    /// How often it failed in a row, this time included.
    pub tries: u32,
    /// Whether the error before was of another kind, or there was none: one log line tells each
    /// (P9).
    pub is_new: bool,
    /// What becomes of the producer.
    pub producer: ProducerAfter,
    /// Where a topic refused a record.
    pub topic: Option<TopicRefusal>,
}

/// What preceded a session that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resumed {
    /// The last error; none where the session before ended well.
    pub after: Option<Kind>,
    /// How often it failed in a row.
    pub tries: u32,
}

/// Exponential back-off with jitter, so that relays that lost the same server do not come back in
/// step.
#[derive(Debug, Default)]
struct Backoff {
    tries: u32,
    /// The last wait, before a part of it was taken off.
    full: Duration,
}

impl Backoff {
    /// The wait before the next try after this error: longer each time up to 15 s, of which a
    /// part, at most half, is taken off. `chance`: from 0 to 1, at random.
    fn next_wait(&mut self, error: Kind, chance: f64) -> Duration {
        let may_restart = error == Kind::PostgresUnreachable;
        let factor = if may_restart { RESTART_FACTOR } else { FACTOR };
        self.full = self.full.mul_f64(factor).clamp(FIRST, LONGEST);
        self.tries = self.tries.saturating_add(1);
        self.full.mul_f64(0.5 + chance / 2.0)
    }
}

/// Knows why the table is read next, and how often sessions failed in a row.
#[derive(Debug, Default)]
pub struct Sessions {
    /// Why the table is read next, although there may be a slot.
    table: Option<TableReason>,
    backoff: Backoff,
    /// The kind of the last error, until a session is open.
    last_error: Option<Kind>,
    /// How often something was learned of events that the broker refuses.
    learned: u64,
}

impl Sessions {
    /// What follows a session that ended well. `is_stopping`: the relay was told to stop.
    pub fn ended(&mut self, how: Ended, is_stopping: bool) -> Next {
        if is_stopping {
            return Next::Leave;
        }
        match how {
            Ended::Stopped => return Next::Leave,
            Ended::ServerShutDown => {
                let error = Error::new(Kind::PostgresUnreachable, "Postgres is shutting down");
                return Next::TryAgain(error);
            }
            Ended::OverBudget => return Next::DropSlot,
            Ended::Asked(rows) => self.table = Some(TableReason::Asked(rows)),
            Ended::Held(why) => self.table = Some(TableReason::Poll(why)),
            Ended::Again => {}
        }
        Next::Open
    }

    /// What follows an error. Errors: `error`, where only a person can mend it.
    pub fn interrupted(&self, error: Error, is_stopping: bool) -> Result<Next> {
        let kind = error.kind();
        if kind.halts() {
            return Err(error);
        }
        Ok(match (is_stopping, kind) {
            (true, kind) if kind.ends_producer() => Next::LeaveWithoutAcks(error),
            (true, _) => Next::Leave,
            (false, Kind::SlotActive) => Next::StandBy(error),
            (false, _) => Next::TryAgain(error),
        })
    }

    /// How to try again after `error`. A topic that was tried often enough is noted in
    /// `quarantine`: its events are given up from now on. `position_topic`: where positions are
    /// stored. `chance`: from 0 to 1, at random.
    ///
    /// Errors: `error`, where a topic was tried often enough, and the relay stops instead.
    pub fn failed(
        &mut self,
        error: &Error,
        quarantine: &mut Quarantine,
        delivery: &DeliveryConfig,
        position_topic: &str,
        now: Instant,
        chance: f64,
    ) -> Result<Retry> {
        // The next producer need not wait where this one ended to find out which event the broker
        // refuses.
        let learned = quarantine.learned();
        if std::mem::replace(&mut self.learned, learned) < learned {
            self.backoff = Backoff::default();
        }
        let kind = error.kind();
        let wait = self.backoff.next_wait(kind, chance);
        let topics = &mut quarantine.topics;
        let refused = |topic| {
            let of = Refused::of(topic, delivery, position_topic);
            of.after(topic, error, topics, delivery, now, chance)
        };
        let topic = error.topic().map(refused).transpose()?;
        Ok(Retry {
            wait: topic.map_or(wait, |topic| topic.wait.unwrap_or_default()),
            tries: self.backoff.tries,
            is_new: self.last_error.replace(kind) != Some(kind),
            producer: if delivery.transactions().is_some() {
                ProducerAfter::End
            } else if kind.ends_producer() {
                ProducerAfter::Replace
            } else {
                ProducerAfter::Keep
            },
            topic,
        })
    }

    /// Why the table is read in the next session, if it is. A request for rows is given once: what
    /// is still pending is found again, and the slot is not held up.
    pub fn table_instead(&mut self) -> Option<TableReason> {
        match self.table {
            Some(TableReason::Asked(_)) => self.table.take(),
            _ => self.table.clone(),
        }
    }

    /// Other columns name the rows: a request for rows means nothing any more.
    pub fn names_changed(&mut self) {
        self.table
            .take_if(|why| matches!(why, TableReason::Asked(_)));
    }

    /// The slot was dropped for what it retained.
    pub fn slot_dropped(&mut self) {
        let why = "the slot retained more WAL than its limit".to_owned();
        self.table = Some(TableReason::Poll(why));
    }

    /// Another relay has the table, and decides what is read.
    pub fn lost_table(&mut self) {
        self.table = None;
    }

    /// The stream or the table is open.
    pub fn opened(&mut self) -> Resumed {
        Resumed {
            after: self.last_error.take(),
            tries: self.backoff.tries,
        }
    }

    /// A read of the table ended that lasted so long; `is_done`: without an error.
    pub fn table_ended(&mut self, lasted: Duration, is_done: bool) {
        if is_done {
            self.table = None;
        }
        self.stream_ended(lasted, is_done);
    }

    /// A stream ended that lasted so long; `has_stored`: its position moved. After a session of use
    /// the next error begins another back-off.
    pub fn stream_ended(&mut self, lasted: Duration, has_stored: bool) {
        if has_stored || lasted > LASTED {
            self.backoff = Backoff::default();
        }
    }
}

impl Refused {
    fn of(topic: &str, delivery: &DeliveryConfig, position_topic: &str) -> Refused {
        if delivery.on_error == OnError::DeadLetter && topic == delivery.dead_letter_topic {
            Refused::DeadLetters
        } else if topic == position_topic {
            Refused::Positions
        } else {
            Refused::Events
        }
    }

    /// When `topic`, which refused a record, is tried again.
    fn after(
        self,
        topic: &str,
        error: &Error,
        topics: &mut Topics,
        delivery: &DeliveryConfig,
        now: Instant,
        chance: f64,
    ) -> Result<TopicRefusal> {
        let max_attempts = match self {
            Refused::Events => error.max_attempts,
            Refused::DeadLetters | Refused::Positions => Some(u32::MAX),
        };
        let retry = delivery.retry.within(max_attempts);
        let (tries, wait) = topics.refused(topic, &retry, now, chance);
        if wait.is_none() && self == Refused::Events {
            if delivery.on_error == OnError::Stop {
                return Err(error.clone());
            }
            topics.give_up(topic, error.clone(), delivery.retry.cap);
        }
        Ok(TopicRefusal {
            of: self,
            tries,
            wait,
        })
    }
}

/// A write-back that Postgres refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteRefusal {
    /// Until the next attempt.
    pub wait: Duration,
    /// How often one was refused in a row.
    pub tries: u32,
    /// A connection that is lost may be back at once, or the session ends with it.
    pub is_passing: bool,
    /// Whether it is to be told: each series of refusals is told once.
    pub is_new: bool,
}

/// Write-backs that Postgres refuses. They are tried again within the session, which holds slot or
/// lease: another relay would publish their events once more.
#[derive(Debug, Default)]
pub struct RefusedWrites {
    backoff: Backoff,
    next_try: Option<Instant>,
    is_told: bool,
    /// Whether a refusal ends the session: what it does is tried once.
    pub gives_way: bool,
}

impl RefusedWrites {
    /// Whether the last write was refused.
    pub fn is_any(&self) -> bool {
        self.backoff.tries > 0
    }

    /// Whether the next attempt is due.
    pub fn may_try(&self, now: Instant) -> bool {
        self.next_try.is_none_or(|next| next <= now)
    }

    /// Write-backs were refused. `chance`: from 0 to 1, at random.
    pub fn refused(&mut self, kind: Kind, now: Instant, chance: f64) -> WriteRefusal {
        let wait = self.backoff.next_wait(Kind::PostgresUnwritable, chance);
        self.next_try = Some(now + wait);
        let tries = self.backoff.tries;
        let is_passing = kind == Kind::PostgresUnreachable && tries < PASSING_TRIES;
        let is_new = !is_passing && !std::mem::replace(&mut self.is_told, true);
        WriteRefusal {
            wait,
            tries,
            is_passing,
            is_new,
        }
    }

    /// A write-back succeeded. How often one was refused before, where that was told.
    pub fn succeeded(&mut self) -> Option<u32> {
        let tries = std::mem::take(&mut self.backoff).tries;
        std::mem::take(&mut self.is_told).then_some(tries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: Kind) -> Error {
        Error::new(kind, "it failed")
    }

    fn failed(sessions: &mut Sessions, error: &Error, delivery: &DeliveryConfig) -> Result<Retry> {
        let quarantine = &mut Quarantine::default();
        sessions.failed(
            error,
            quarantine,
            delivery,
            "positions",
            Instant::now(),
            0.5,
        )
    }

    #[test]
    fn waits_grow_to_the_longest_and_start_over() {
        for (error, tries) in [
            (Kind::BusUnreachable, 10),
            (Kind::PostgresUnwritable, 10),
            (Kind::PostgresUnreachable, 90),
        ] {
            let mut random = fastrand::Rng::with_seed(1);
            let mut backoff = Backoff::default();
            let mut wait = || backoff.next_wait(error, random.f64());
            let waits: Vec<_> = (0..2 * tries).map(|_| wait()).collect();
            assert!(waits.first().is_some_and(|wait| *wait <= FIRST));
            let bounds = FIRST / 2..=LONGEST;
            assert!(waits.iter().all(|wait| bounds.contains(wait)));
            assert!(waits.iter().skip(tries).all(|wait| *wait >= LONGEST / 2));
        }
    }

    #[test]
    fn a_postgres_that_was_away_for_some_seconds_is_tried_within_half_of_one() {
        for away_ms in (100..5_000).step_by(50) {
            let mut random = fastrand::Rng::with_seed(away_ms);
            let mut backoff = Backoff::default();
            let away = Duration::from_millis(away_ms);
            let mut tried = Duration::ZERO;
            while tried < away {
                tried += backoff.next_wait(Kind::PostgresUnreachable, random.f64());
            }
            let late = tried - away;
            assert!(
                late <= Duration::from_millis(500),
                "{late:?} after {away:?}"
            );
        }
    }

    #[test]
    fn an_end_decides_what_is_next() {
        let rows = Vec::new;
        for (how, next, table) in [
            (Ended::Again, Next::Open, None),
            (Ended::OverBudget, Next::DropSlot, None),
            (
                Ended::Asked(rows()),
                Next::Open,
                Some(TableReason::Asked(rows())),
            ),
            (
                Ended::Held("held".to_owned()),
                Next::Open,
                Some(TableReason::Poll("held".to_owned())),
            ),
            (Ended::Stopped, Next::Leave, None),
        ] {
            let mut sessions = Sessions::default();
            assert_eq!(sessions.ended(how.clone(), true), Next::Leave, "{how:?}");
            assert_eq!(sessions.table_instead(), None, "{how:?}");
            assert_eq!(sessions.ended(how.clone(), false), next, "{how:?}");
            assert_eq!(sessions.table_instead(), table, "{how:?}");
        }
        let mut sessions = Sessions::default();
        let next = sessions.ended(Ended::ServerShutDown, false);
        assert!(matches!(next, Next::TryAgain(_)), "{next:?}");
        assert_eq!(sessions.ended(Ended::ServerShutDown, true), Next::Leave);
    }

    #[test]
    fn an_error_decides_what_is_next() {
        let sessions = Sessions::default();
        let next = |kind, is_stopping| sessions.interrupted(error(kind), is_stopping).ok();
        let again = |kind| Some(Next::TryAgain(error(kind)));
        for (kind, running, stopping) in [
            (
                Kind::SlotActive,
                Some(Next::StandBy(error(Kind::SlotActive))),
                Some(Next::Leave),
            ),
            (
                Kind::PostgresUnreachable,
                again(Kind::PostgresUnreachable),
                Some(Next::Leave),
            ),
            (
                Kind::BusUnreachable,
                again(Kind::BusUnreachable),
                Some(Next::LeaveWithoutAcks(error(Kind::BusUnreachable))),
            ),
            (Kind::SlotUnusable, None, None),
        ] {
            assert_eq!(next(kind, false), running, "{kind:?}");
            assert_eq!(next(kind, true), stopping, "{kind:?}");
        }
    }

    #[test]
    fn a_request_for_rows_is_tried_once_and_a_poll_until_it_is_done() {
        let mut sessions = Sessions::default();
        let asked = |sessions: &mut Sessions| sessions.ended(Ended::Asked(Vec::new()), false);
        asked(&mut sessions);
        assert!(sessions.table_instead().is_some());
        assert_eq!(sessions.table_instead(), None);
        asked(&mut sessions);
        sessions.names_changed();
        assert_eq!(sessions.table_instead(), None);

        sessions.slot_dropped();
        sessions.names_changed();
        sessions.table_ended(LASTED, false);
        assert!(matches!(
            sessions.table_instead(),
            Some(TableReason::Poll(_))
        ));
        sessions.table_ended(Duration::ZERO, true);
        assert_eq!(sessions.table_instead(), None);
        sessions.slot_dropped();
        sessions.lost_table();
        assert_eq!(sessions.table_instead(), None);
    }

    #[test]
    fn an_outage_is_told_once_and_ends_with_a_session_of_use() {
        let delivery = DeliveryConfig::default();
        let away = error(Kind::PostgresUnreachable);
        let mut sessions = Sessions::default();
        let fail = |sessions: &mut Sessions| failed(sessions, &away, &delivery).unwrap();
        assert!(fail(&mut sessions).is_new);
        let again = fail(&mut sessions);
        assert_eq!((again.is_new, again.tries), (false, 2));
        assert_eq!(again.producer, ProducerAfter::Keep);
        let resumed = sessions.opened();
        assert_eq!((resumed.after, resumed.tries), (Some(away.kind()), 2));
        sessions.stream_ended(Duration::ZERO, false);
        let third = fail(&mut sessions);
        assert_eq!((third.is_new, third.tries), (true, 3));
        for (lasted, has_stored) in [(Duration::ZERO, true), (2 * LASTED, false)] {
            sessions.stream_ended(lasted, has_stored);
            assert_eq!(fail(&mut sessions).tries, 1);
        }
    }

    #[test]
    fn a_producer_is_replaced_by_what_ends_it_and_lasts_for_one_transactional_session() {
        let mut delivery = DeliveryConfig::default();
        let mut sessions = Sessions::default();
        let gone = error(Kind::BusUnreachable);
        let retry = failed(&mut sessions, &gone, &delivery).unwrap();
        assert_eq!(retry.producer, ProducerAfter::Replace);
        delivery.guarantee = crate::config::Guarantee::ExactlyOnce;
        let away = error(Kind::PostgresUnreachable);
        let retry = failed(&mut sessions, &away, &delivery).unwrap();
        assert_eq!(retry.producer, ProducerAfter::End);
    }

    #[test]
    fn a_topic_is_given_up_after_its_last_attempt_unless_nothing_else_can_be_done() {
        let mut delivery = DeliveryConfig::default();
        delivery.retry.attempts = 0;
        delivery.on_error = OnError::DeadLetter;
        let letters = delivery.dead_letter_topic.clone();
        let sessions = &mut Sessions::default();
        let refused = |topic: &str| error(Kind::TopicRefused).of_topic(topic);
        for (topic, of, is_last) in [
            ("orders", Refused::Events, true),
            (&letters, Refused::DeadLetters, false),
            ("positions", Refused::Positions, false),
        ] {
            let retry = failed(sessions, &refused(topic), &delivery).unwrap();
            let refusal = retry.topic.unwrap();
            assert_eq!(refusal.of, of);
            assert_eq!(refusal.wait.is_none(), is_last, "{topic}");
            assert_eq!(retry.wait, refusal.wait.unwrap_or_default());
        }
        delivery.on_error = OnError::Stop;
        assert!(failed(sessions, &refused("orders"), &delivery).is_err());
        let retry = failed(sessions, &refused("positions"), &delivery).unwrap();
        assert!(retry.topic.unwrap().wait.is_some());
    }

    #[test]
    fn refused_writes_wait_and_are_told_once() {
        let mut writes = RefusedWrites::default();
        let now = Instant::now();
        assert!(writes.may_try(now) && !writes.is_any());
        let passing: Vec<_> = (1..PASSING_TRIES)
            .map(|_| writes.refused(Kind::PostgresUnreachable, now, 1.0))
            .collect();
        assert!(passing.iter().all(|of| of.is_passing && !of.is_new));
        assert!(writes.refused(Kind::PostgresUnreachable, now, 1.0).is_new);
        let last = writes.refused(Kind::PostgresUnwritable, now, 1.0);
        assert!(!last.is_new && !last.is_passing);
        assert!(!writes.may_try(now) && writes.may_try(now + last.wait));
        assert_eq!(writes.succeeded(), Some(last.tries));
        assert_eq!(writes.succeeded(), None);
        assert!(!writes.is_any());
    }
}
