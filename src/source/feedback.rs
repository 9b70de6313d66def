//! When to send a status, and when a silent server is dead. Pure arithmetic on a monotonic clock.
//!
//! A walsender ends the session after `wal_sender_timeout` without a status. It sends keepalives at
//! half of it, even while it skips changes of other tables. While it shuts down, it requests a
//! reply after each reply.

use std::time::Duration;

use tokio::time::Instant;

use walrelay_core::error::{Error, Kind};
use walrelay_core::position::Lsn;

/// The longest time between two statuses, for `pg_stat_replication` and the lag.
const INTERVAL_MAX: Duration = Duration::from_secs(10);
/// The shortest time between two statuses that report progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// The shortest time between requested replies without progress.
const REPLY_INTERVAL: Duration = Duration::from_millis(10);
const TIMEOUT_BOUNDS: (Duration, Duration) = (
    Duration::from_millis(100),
    Duration::from_secs(24 * 60 * 60),
);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send a status, then call [`Feedback::sent`].
    Send {
        /// Whether the server shall send a keepalive.
        reply_requested: bool,
    },
    /// Nothing is due before this time.
    Wait(Instant),
    /// The server is dead: silent for this long, without an answer to a request.
    Dead { silence: Duration },
}

/// The error of a server that was silent for this long.
pub(crate) fn dead(silence: Duration) -> Error {
    let silence_ms = silence.as_millis();
    let cause =
        format!("Postgres has sent nothing for {silence_ms} ms, although a reply was requested");
    Error::new(Kind::PostgresUnreachable, cause)
}

/// The times of the last status and of the last bytes from the server.
#[derive(Debug, Clone)]
pub(crate) struct Feedback {
    timeout: Duration,
    interval: Duration,
    sent: Option<Sent>,
    heard_at: Instant,
    /// The time of the first request in the present silence.
    asked_at: Option<Instant>,
    /// Whether the server has requested a reply.
    pub(super) reply_due: bool,
    reading: bool,
    /// Whether commits of other sessions wait for statuses.
    pub(super) is_synchronous: bool,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Instant,
    confirmed: Lsn,
}

impl Feedback {
    /// For a stream that starts `now` under this `wal_sender_timeout`, and is not read yet.
    pub(crate) fn new(wal_sender_timeout: Duration, now: Instant) -> Self {
        let timeout = wal_sender_timeout.clamp(TIMEOUT_BOUNDS.0, TIMEOUT_BOUNDS.1);
        Feedback {
            timeout,
            interval: (timeout / 3).min(INTERVAL_MAX),
            sent: None,
            heard_at: now,
            asked_at: None,
            reply_due: false,
            reading: false,
            is_synchronous: false,
        }
    }

    /// Bytes arrived, of any kind: a part of a large message counts, too.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard_at = self.heard_at.max(now);
        self.asked_at = None;
    }

    /// Reading stops or goes on (P5). While it is stopped, silence says nothing, and the kernel
    /// watches what is sent.
    pub(crate) fn set_reading(&mut self, reading: bool, now: Instant) {
        if reading && !self.reading {
            self.heard(now);
        }
        self.reading = reading;
    }

    /// A status was handed to the socket, with what [`Feedback::action`] asked for.
    pub(crate) fn sent(&mut self, now: Instant, confirmed: Lsn, reply_requested: bool) {
        self.sent = Some(Sent { at: now, confirmed });
        self.reply_due = false;
        if reply_requested {
            self.asked_at = self.asked_at.or(Some(now));
        }
    }

    /// The action that is due `now`, with this confirmed LSN.
    pub(crate) fn action(&self, now: Instant, confirmed: Lsn) -> Action {
        let silence = now.saturating_duration_since(self.heard_at);
        let dead_at = self.dead_at();
        if dead_at.is_some_and(|dead_at| now >= dead_at) {
            return Action::Dead { silence };
        }
        let status_at = self.status_at(confirmed).map_or(now, |at| at.max(now));
        let ask_at = self.ask_at();
        if status_at <= now || ask_at.is_some_and(|ask_at| now >= ask_at) {
            return Action::Send {
                reply_requested: self.reading && silence >= self.timeout / 2,
            };
        }
        Action::Wait(
            [ask_at, dead_at]
                .into_iter()
                .flatten()
                .fold(status_at, Instant::min),
        )
    }

    /// The time of the next status; `None` is at once.
    fn status_at(&self, confirmed: Lsn) -> Option<Instant> {
        let sent = self.sent?;
        let progress = confirmed > sent.confirmed;
        match (self.reply_due, progress) {
            (true, true) => None,
            (false, true) if self.is_synchronous => None,
            (true, false) => Some(sent.at + REPLY_INTERVAL),
            (false, true) => Some(sent.at + PROGRESS_INTERVAL.min(self.interval)),
            (false, false) => Some(sent.at + self.interval),
        }
    }

    /// The time to request a keepalive, unless one is requested.
    fn ask_at(&self) -> Option<Instant> {
        (self.reading && self.asked_at.is_none()).then(|| self.heard_at + self.timeout / 2)
    }

    /// The whole timeout after the last bytes, and half after the request: a process that stood
    /// still reads the socket first.
    fn dead_at(&self) -> Option<Instant> {
        let asked_at = self.asked_at.filter(|_| self.reading)?;
        Some((self.heard_at + self.timeout).max(asked_at + self.timeout / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(12);

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// A stream that started at the instant given back, whose first status has gone out then.
    fn started() -> (Feedback, Instant) {
        let start = Instant::now();
        let mut feedback = Feedback::new(TIMEOUT, start);
        feedback.set_reading(true, start);
        assert_eq!(
            feedback.action(start, Lsn::ZERO),
            Action::Send {
                reply_requested: false
            }
        );
        feedback.sent(start, Lsn::ZERO, false);
        (feedback, start)
    }

    #[test]
    fn a_status_goes_out_at_a_third_of_the_timeout_and_at_least_every_ten_seconds() {
        let (feedback, start) = started();
        assert_eq!(
            feedback.action(start, Lsn::ZERO),
            Action::Wait(start + ms(4000))
        );
        assert_eq!(
            feedback.action(start + ms(4000), Lsn::ZERO),
            Action::Send {
                reply_requested: false
            }
        );
        let mut slow = Feedback::new(Duration::from_secs(600), start);
        slow.sent(start, Lsn::ZERO, false);
        assert_eq!(
            slow.action(start, Lsn::ZERO),
            Action::Wait(start + ms(10_000))
        );
    }

    #[test]
    fn progress_is_reported_every_100_ms() {
        let (mut feedback, start) = started();
        assert_eq!(
            feedback.action(start + ms(30), Lsn::new(5)),
            Action::Wait(start + ms(100))
        );
        assert_eq!(
            feedback.action(start + ms(100), Lsn::new(5)),
            Action::Send {
                reply_requested: false
            }
        );
        feedback.sent(start + ms(100), Lsn::new(5), false);
        assert_eq!(
            feedback.action(start + ms(100), Lsn::new(5)),
            Action::Wait(start + ms(4100))
        );
    }

    #[test]
    fn while_commits_wait_for_it_progress_is_reported_at_once() {
        let (mut feedback, start) = started();
        feedback.is_synchronous = true;
        assert_eq!(
            feedback.action(start, Lsn::new(5)),
            Action::Send {
                reply_requested: false
            }
        );
        assert_eq!(
            feedback.action(start, Lsn::ZERO),
            Action::Wait(start + ms(4000))
        );
    }

    #[test]
    fn a_requested_reply_goes_out_at_once_and_repeated_ones_are_limited() {
        let (mut feedback, start) = started();
        let mut now = start + ms(1000);
        let mut replies = 0;
        while now < start + ms(2000) {
            feedback.heard(now);
            feedback.reply_due = true;
            if let Action::Send { .. } = feedback.action(now, Lsn::ZERO) {
                replies += 1;
                feedback.sent(now, Lsn::ZERO, false);
            }
            now += Duration::from_micros(50);
        }
        assert_eq!(replies, 100);
        feedback.reply_due = true;
        assert_eq!(
            feedback.action(now, Lsn::new(1)),
            Action::Send {
                reply_requested: false
            },
            "with progress"
        );
    }

    #[test]
    fn a_silent_server_is_asked_at_half_the_timeout_and_dead_at_its_end() {
        let (mut feedback, start) = started();
        feedback.sent(start + ms(4000), Lsn::ZERO, false);
        assert_eq!(
            feedback.action(start + ms(5999), Lsn::ZERO),
            Action::Wait(start + ms(6000))
        );
        assert_eq!(
            feedback.action(start + ms(6000), Lsn::ZERO),
            Action::Send {
                reply_requested: true
            }
        );
        feedback.sent(start + ms(6000), Lsn::ZERO, true);
        assert_eq!(
            feedback.action(start + ms(6000), Lsn::ZERO),
            Action::Wait(start + ms(10_000))
        );
        assert_eq!(
            feedback.action(start + ms(10_000), Lsn::ZERO),
            Action::Send {
                reply_requested: true
            }
        );
        feedback.sent(start + ms(10_000), Lsn::ZERO, true);
        assert_eq!(
            feedback.action(start + ms(11_999), Lsn::ZERO),
            Action::Wait(start + ms(12_000))
        );
        assert_eq!(
            feedback.action(start + ms(12_000), Lsn::ZERO),
            Action::Dead { silence: TIMEOUT }
        );
    }

    #[test]
    fn a_message_from_the_server_restarts_the_timeout() {
        let (mut feedback, start) = started();
        feedback.sent(start + ms(6000), Lsn::ZERO, true);
        feedback.heard(start + ms(11_999));
        assert_eq!(
            feedback.action(start + ms(12_000), Lsn::ZERO),
            Action::Send {
                reply_requested: false
            }
        );
        feedback.sent(start + ms(12_000), Lsn::ZERO, false);
        assert_eq!(
            feedback.action(start + ms(12_000), Lsn::ZERO),
            Action::Wait(start + ms(16_000))
        );
    }

    #[test]
    fn a_process_that_stood_still_asks_a_silent_server_before_a_time_out() {
        let (mut feedback, start) = started();
        let woken = start + Duration::from_secs(3600);
        assert_eq!(
            feedback.action(woken, Lsn::ZERO),
            Action::Send {
                reply_requested: true
            }
        );
        feedback.sent(woken, Lsn::ZERO, true);
        assert_eq!(
            feedback.action(woken + ms(10), Lsn::ZERO),
            Action::Wait(woken + ms(4000))
        );
        assert!(matches!(
            feedback.action(woken + ms(6000), Lsn::ZERO),
            Action::Dead { .. }
        ));
    }

    #[test]
    fn while_reading_is_stopped_statuses_go_out_and_the_server_is_not_dead() {
        let (mut feedback, start) = started();
        feedback.set_reading(false, start);
        let mut now = start;
        for _ in 0..200 {
            now += ms(4000);
            assert_eq!(
                feedback.action(now, Lsn::ZERO),
                Action::Send {
                    reply_requested: false
                }
            );
            feedback.sent(now, Lsn::ZERO, false);
        }
        feedback.set_reading(true, now);
        assert_eq!(
            feedback.action(now, Lsn::ZERO),
            Action::Wait(now + ms(4000))
        );
    }

    #[test]
    fn the_timeout_is_bounded() {
        let start = Instant::now();
        for timeout in [Duration::ZERO, Duration::MAX] {
            let mut feedback = Feedback::new(timeout, start);
            feedback.sent(start, Lsn::ZERO, false);
            assert!(matches!(feedback.action(start, Lsn::ZERO), Action::Wait(at) if at > start));
        }
    }
}
