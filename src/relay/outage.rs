//! Outages: whether the relay tries again, how long it waits before, and how small batches have to
//! be.

use std::time::Duration;

use tokio::time::Instant;

use crate::config::Config;
use crate::sink::{AnySink, BusSink as _};
use crate::telemetry::{Side, Telemetry};
use walrelay_core::config::{OnError, OutboxConfig};
use walrelay_core::error::{Error, Kind, NextCommand, Remedy, Result};
use walrelay_core::position::Position;
use walrelay_core::publisher::quarantine::Quarantine;

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

/// Exponential back-off with jitter, so that relays that lost the same server do not come back in
/// step.
#[derive(Debug)]
struct Backoff {
    tries: u32,
    /// The last wait, before a part of it was taken off.
    full: Duration,
    random: fastrand::Rng,
}

impl Backoff {
    fn new() -> Backoff {
        Backoff {
            tries: 0,
            full: Duration::ZERO,
            random: fastrand::Rng::new(),
        }
    }

    /// The wait before the next try after this error: longer each time up to 15 s, of which a
    /// random half is taken off.
    fn next_wait(&mut self, error: Kind) -> Duration {
        let may_restart = matches!(error, Kind::PostgresUnreachable | Kind::SlotActive);
        let factor = if may_restart { RESTART_FACTOR } else { FACTOR };
        self.full = self.full.mul_f64(factor).clamp(FIRST, LONGEST);
        self.tries = self.tries.saturating_add(1);
        self.full.mul_f64(0.5 + self.random.f64() / 2.0)
    }

    fn start_over(&mut self) {
        self.tries = 0;
        self.full = Duration::ZERO;
    }
}

#[derive(Debug)]
pub(super) struct Outage {
    backoff: Backoff,
    /// The kind of the current outage in the log: one line per state, not per try (P9).
    reported: Option<Kind>,
    /// How often something was learned of events that the broker refuses.
    learned: u64,
    /// How often it was a batch that was too large, and none of its records.
    in_vain: u64,
}

impl Outage {
    pub(super) fn new() -> Outage {
        Outage {
            backoff: Backoff::new(),
            reported: None,
            learned: 0,
            in_vain: 0,
        }
    }

    /// The next error begins another outage.
    pub(super) fn is_over(&mut self) {
        self.backoff.start_over();
    }

    /// Decides whether `error` halts the relay, and gives it back where the relay tries again.
    ///
    /// Where a record was called too large that may only have been in a batch that is, the next
    /// batches are smaller, by `config`, and the relay tries again. Errors: `error`, where it
    /// halts.
    pub(super) fn judge(
        &mut self,
        error: Error,
        quarantine: &Quarantine,
        config: &mut Config,
    ) -> Result<Error> {
        let in_vain = quarantine.in_vain;
        let is_batch = std::mem::replace(&mut self.in_vain, in_vain) < in_vain;
        let is_record = error.kind() == Kind::RecordTooLarge;
        let record_bytes = error
            .record_bytes
            .filter(|_| is_record)
            .or_else(|| is_batch.then_some(0));
        let reduced =
            record_bytes.and_then(|record_bytes| AnySink::reduce_batches(config, record_bytes));
        if let Some((batch_bytes, how)) = reduced {
            tracing::warn!(event = "batches_reduced", slot = %config.source.slot, batch_bytes,
                %error,
                "the broker refuses batches for their size; sending smaller ones (to avoid this, \
                 {how})");
            if is_record {
                return Ok(Error::new(
                    Kind::BusUnreachable,
                    format!("trying smaller batches: {error}"),
                ));
            }
        }
        if error.kind().halts() {
            Err(halting(error, config))
        } else {
            Ok(error)
        }
    }

    /// Reports an outage once, and says how long to wait before the next try: not at all where a
    /// topic was tried often enough, and its events are given up from now on. Errors: `error`,
    /// where a topic was tried often enough, and the relay stops instead.
    pub(super) fn failed(
        &mut self,
        error: &Error,
        quarantine: &mut Quarantine,
        config: &Config,
        telemetry: &Telemetry,
    ) -> Result<Duration> {
        // The next producer need not wait where this one ended to find out which event the broker
        // refuses.
        if std::mem::replace(&mut self.learned, quarantine.learned()) < quarantine.learned() {
            self.backoff.start_over();
        }
        let side = if error.kind().ends_producer() {
            Side::Bus
        } else {
            Side::Postgres
        };
        let wait = self.backoff.next_wait(error.kind());
        telemetry.metrics.retry(side);
        telemetry.failed(error);
        if error.kind() == Kind::TopicRefused {
            telemetry
                .metrics
                .failed_attempts(Kind::TopicRefused.class(), 1);
        }
        telemetry.connected(side, false);
        if error.kind() == Kind::PostgresUnwritable {
            telemetry.health.unwritable(Some(error.clone()));
        }
        let slot = &config.source.slot;
        if let Some(topic) = error.topic() {
            self.reported = Some(error.kind());
            return refused_by(topic, error, quarantine, config, telemetry);
        }
        if self.reported.replace(error.kind()) == Some(error.kind()) {
            tracing::debug!(%slot, %error, tries = self.backoff.tries, wait_ms = wait.as_millis(),
                "still failing");
        } else {
            let event = match side {
                Side::Bus => "producer_failed",
                Side::Postgres if error.kind() == Kind::PostgresUnwritable => "write_refused",
                Side::Postgres => "postgres_disconnected",
            };
            tracing::warn!(event, %slot, %error, fix = error.what_to_do(), "interrupted; retrying \
                with back-off");
        }
        Ok(wait)
    }

    pub(super) fn streaming(&mut self, start: Position, config: &Config) {
        let again = match self.reported.take() {
            Some(Kind::TopicRefused) => ", to try the topic again",
            Some(_) => " again",
            None => "",
        };
        let slot = &config.source.slot;
        let tries = self.backoff.tries;
        tracing::info!(event = "streaming", %slot, tries, position = %start, "streaming{again}");
    }

    pub(super) fn at_table(&mut self, config: &Config) {
        if self.reported.take().is_some() {
            tracing::info!(event = "table_read_resumed", slot = %config.source.slot,
                tries = self.backoff.tries,
                "at the table again");
        }
    }
}

/// `error`, which ends the relay. One of an event says how to give that up, in whatever mode the
/// relay runs.
fn halting(error: Error, config: &Config) -> Error {
    if !error.is_of_event || config.delivery.on_error != OnError::Stop {
        return error;
    }
    let mut run = NextCommand::new("run")
        .option("slot", &config.source.slot)
        .option("on-error", "skip");
    // Without that, the row would be pending for ever.
    let is_open = |outbox: &&OutboxConfig| {
        let of = &outbox.upkeep;
        of.mark_failed.is_none() && (of.pending.is_some() || of.mark.is_some())
    };
    let open = config.outboxes.iter().find(is_open);
    let before = match open.map(|outbox| &outbox.upkeep.mark) {
        None => String::new(),
        Some(Some(mark)) if config.outboxes.len() == 1 => {
            let value = format!("outbox.mark_failed={mark}").replace('\'', r"'\''");
            run = run.option("set", format_args!("'{value}'"));
            String::new()
        }
        Some(_) => "set outbox.mark_failed to what makes a row no longer pending, and ".to_owned(),
    };
    let known = error
        .any_remedy()
        .unwrap_or_else(|| Remedy::from("see what the error names"));
    let fix = Remedy::from("nothing was skipped, and nothing behind this event is delivered. ")
        .and(known)
        .and(format!(
            ". To give it up instead, {before}start the relay once as `"
        ))
        .and(run)
        .and(format!(
            "` until it logs event_given_up. With {} in place of skip, the event is kept",
            if config.sink.kind.capabilities().dead_letters {
                "park or dead-letter"
            } else {
                "park, for that and all later starts,"
            }
        ));
    error.remedy(fix)
}

/// So many lost connections in a row are no accident.
const PASSING_TRIES: u32 = 3;

/// Write-backs that Postgres refuses. They are tried again within the session, which holds slot or
/// lease: another relay would publish their events once more.
#[derive(Debug)]
pub(super) struct RefusedWrites {
    backoff: Backoff,
    next_try: Instant,
    is_told: bool,
    /// Whether a refusal ends the session: what it does is tried once.
    pub(super) gives_way: bool,
}

impl RefusedWrites {
    pub(super) fn new() -> RefusedWrites {
        RefusedWrites {
            backoff: Backoff::new(),
            next_try: Instant::now(),
            is_told: false,
            gives_way: false,
        }
    }

    /// Whether the last write was refused.
    pub(super) fn is_any(&self) -> bool {
        self.backoff.tries > 0
    }

    pub(super) fn may_try(&self, now: Instant) -> bool {
        self.next_try <= now
    }

    /// The write-backs of `events` were refused: tells it once.
    pub(super) fn refused(
        &mut self,
        error: &Error,
        events: usize,
        config: &Config,
        telemetry: &Telemetry,
    ) {
        let wait = self.backoff.next_wait(Kind::PostgresUnwritable);
        self.next_try = Instant::now() + wait;
        telemetry.metrics.retry(Side::Postgres);
        telemetry.failed(error);
        let slot = &config.source.slot;
        let tries = self.backoff.tries;
        // A connection that is lost may be back at once, or the session ends with it.
        let is_passing = error.kind() == Kind::PostgresUnreachable && tries < PASSING_TRIES;
        if !is_passing {
            telemetry.health.unwritable(Some(error.clone()));
        }
        if is_passing || std::mem::replace(&mut self.is_told, true) {
            tracing::debug!(%slot, %error, tries, events, wait_ms = wait.as_millis(), "write-backs \
                are refused");
            return;
        }
        tracing::warn!(event = "write_back_refused", %slot, events, %error,
            fix = error.what_to_do(),
            "Postgres refuses to mark, delete or park rows of published events; trying again with \
             back-off");
    }

    /// A write-back succeeded.
    pub(super) fn are_over(&mut self, config: &Config, telemetry: &Telemetry) {
        if std::mem::take(&mut self.is_told) {
            tracing::info!(event = "write_back_resumed", slot = %config.source.slot,
                tries = self.backoff.tries,
                "rows of published events are written again");
            telemetry.health.unwritable(None);
        }
        self.backoff.start_over();
    }
}

/// `topic` refused a record, which is tried again in place. Gives the wait before that.
fn refused_by(
    topic: &str,
    error: &Error,
    quarantine: &mut Quarantine,
    config: &Config,
    telemetry: &Telemetry,
) -> Result<Duration> {
    let slot = &config.source.slot;
    let delivery = &config.delivery;
    // There is nothing else to be done with a dead letter.
    let is_of_letters =
        delivery.on_error == OnError::DeadLetter && topic == delivery.dead_letter_topic;
    // No event is refused by it, and so none can be given up.
    let is_of_position = topic == config.state.topic;
    let max_attempts = if is_of_letters || is_of_position {
        Some(u32::MAX)
    } else {
        error.max_attempts
    };
    let retry = delivery.retry.within(max_attempts);
    let (tries, wait) =
        quarantine
            .topics
            .refused(topic, &retry, Instant::now().into_std(), fastrand::f64());
    let wait_ms = wait.map(|wait| wait.as_millis());
    if is_of_letters {
        let fix = error.what_to_do();
        tracing::warn!(event = "dead_letter_refused", %slot, topic, %error, fix, tries, wait_ms,
            "the dead-letter topic refuses a dead letter; all events wait until it accepts one");
        telemetry
            .health
            .dead_letters_refused(Some(topic.to_owned()));
        return Ok(wait.unwrap_or_default());
    }
    if is_of_position {
        tracing::warn!(event = "position_refused", %slot, topic, %error, fix = error.what_to_do(),
            tries, wait_ms,
            "the topic of the positions refuses this one; events are not published again for it");
        telemetry.health.topic_refused(Some(topic.to_owned()));
        return Ok(wait.unwrap_or_default());
    }
    if wait.is_none() && delivery.on_error == OnError::Stop {
        return Err(error.clone());
    }
    telemetry
        .health
        .topic_refused(wait.map(|_| topic.to_owned()));
    tracing::warn!(event = "topic_refused", %slot, %error, fix = error.what_to_do(), tries, wait_ms,
        "a topic refuses records");
    if wait.is_none() {
        quarantine
            .topics
            .give_up(topic, error.clone(), delivery.retry.cap);
    }
    Ok(wait.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_longest_and_start_over() {
        for (error, tries) in [
            (Kind::BusUnreachable, 10),
            (Kind::PostgresUnwritable, 10),
            (Kind::PostgresUnreachable, 90),
        ] {
            let mut backoff = Backoff {
                tries: 0,
                full: Duration::ZERO,
                random: fastrand::Rng::with_seed(1),
            };
            let waits: Vec<_> = (0..2 * tries).map(|_| backoff.next_wait(error)).collect();
            assert!(waits.first().is_some_and(|wait| *wait <= FIRST));
            assert!(
                waits
                    .iter()
                    .all(|wait| (FIRST / 2..=LONGEST).contains(wait))
            );
            assert!(waits.iter().skip(tries).all(|wait| *wait >= LONGEST / 2));
            backoff.start_over();
            assert!(backoff.next_wait(error) <= FIRST);
        }
    }

    #[test]
    fn a_postgres_that_was_away_for_some_seconds_is_tried_within_half_of_one() {
        for away_ms in (100..5_000).step_by(50) {
            let mut backoff = Backoff {
                tries: 0,
                full: Duration::ZERO,
                random: fastrand::Rng::with_seed(away_ms),
            };
            let away = Duration::from_millis(away_ms);
            let mut tried = Duration::ZERO;
            while tried < away {
                tried += backoff.next_wait(Kind::PostgresUnreachable);
            }
            assert!(
                tried - away <= Duration::from_millis(500),
                "{:?} after {away:?}",
                tried - away
            );
        }
    }
}
