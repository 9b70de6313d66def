//! Outages, as logs, metrics and health tell them. [`walrelay_core::sessions`] decides.

use crate::config::Config;
use crate::sink::{AnySink, BusSink as _};
use crate::telemetry::Telemetry;
use walrelay_core::config::{OnError, OutboxConfig};
use walrelay_core::error::{Error, Kind, NextCommand, Remedy};
use walrelay_core::position::Position;
use walrelay_core::readiness::{NotReady, Side};
use walrelay_core::sessions::{Refused, Resumed, Retry, TopicRefusal, WriteRefusal};

/// The error to go on with.
///
/// Where a record was called too large that may only have been in a batch that is (`is_batch`:
/// each record was taken alone), the next batches are smaller, by `config`, and the relay tries
/// again.
pub(super) fn with_smaller_batches(error: Error, is_batch: bool, config: &mut Config) -> Error {
    let is_record = error.kind() == Kind::RecordTooLarge;
    let record_bytes = error.record_bytes.filter(|_| is_record);
    let record_bytes = record_bytes.or_else(|| is_batch.then_some(0));
    let reduced =
        record_bytes.and_then(|record_bytes| AnySink::reduce_batches(config, record_bytes));
    let Some((batch_bytes, how)) = reduced else {
        return error;
    };
    tracing::warn!(event = "batches_reduced", slot = %config.source.slot, batch_bytes, %error,
        "the broker refuses batches for their size; sending smaller ones (to avoid this, {how})");
    if !is_record {
        return error;
    }
    error.bus_again("trying smaller batches")
}

/// An error that did not halt the relay, before it is known how to try again.
pub(super) fn count(error: &Error, telemetry: &Telemetry) {
    let side = Side::of(error);
    telemetry.metrics.retry(side);
    telemetry.failed(error);
    if error.kind() == Kind::TopicRefused {
        telemetry
            .metrics
            .failed_attempts(Kind::TopicRefused.class(), 1);
    }
    telemetry.connected(side, false);
    if side == Side::Bus {
        // A session asks Postgres first.
        telemetry.connected(Side::Postgres, true);
    }
    if error.kind() == Kind::PostgresUnwritable {
        telemetry.health.tell(NotReady::Unwritable(error.clone()));
    }
}

/// Reports an outage, once for each kind of error, and each refusal by a topic.
pub(super) fn tell(error: &Error, retry: &Retry, config: &Config, telemetry: &Telemetry) {
    let slot = &config.source.slot;
    if let (Some(topic), Some(refusal)) = (error.topic(), retry.topic) {
        refused_by(topic, error, refusal, config, telemetry);
        return;
    }
    let Retry { wait, tries, .. } = *retry;
    if !retry.is_new {
        tracing::debug!(%slot, %error, tries, wait_ms = wait.as_millis(), "still failing");
        return;
    }
    let event = match Side::of(error) {
        Side::Bus => "producer_failed",
        Side::Postgres if error.kind() == Kind::PostgresUnwritable => "write_refused",
        Side::Postgres => "postgres_disconnected",
    };
    let fix = error.what_to_do();
    tracing::warn!(event, %slot, %error, fix, "interrupted; retrying with back-off");
}

/// `topic` refused a record, which is tried again in place, or given up where no attempt is left.
fn refused_by(
    topic: &str,
    error: &Error,
    refusal: TopicRefusal,
    config: &Config,
    telemetry: &Telemetry,
) {
    let slot = &config.source.slot;
    let TopicRefusal { of, tries, wait } = refusal;
    let wait_ms = wait.map(|wait| wait.as_millis());
    let fix = error.what_to_do();
    let health = &telemetry.health;
    let name = topic.to_owned();
    match of {
        Refused::DeadLetters => {
            tracing::warn!(event = "dead_letter_refused", %slot, topic, %error, fix, tries, wait_ms,
                "the dead-letter topic refuses a dead letter; all events wait until it accepts \
                 one");
            health.tell(NotReady::DeadLettersRefused(name));
        }
        Refused::Positions => {
            tracing::warn!(event = "position_refused", %slot, topic, %error, fix, tries, wait_ms,
                "the topic of the positions refuses this one; events are not published again for \
                 it");
            health.tell(NotReady::TopicRefused(name));
        }
        Refused::Events => {
            if wait.is_some() {
                health.tell(NotReady::TopicRefused(name));
            } else {
                health.withdraw("topic_refused");
            }
            tracing::warn!(event = "topic_refused", %slot, %error, fix, tries, wait_ms,
                "a topic refuses records");
        }
    }
}

/// The relay streams, for the first time or `again`.
pub(super) fn streaming(tries: u32, again: bool, start: Position, config: &Config) {
    let again = if again { " again" } else { "" };
    let slot = &config.source.slot;
    tracing::info!(event = "streaming", %slot, tries, position = %start, "streaming{again}");
}

pub(super) fn at_table(resumed: Resumed, config: &Config) {
    if resumed.after.is_some() {
        tracing::info!(event = "table_read_resumed", slot = %config.source.slot,
            tries = resumed.tries, "at the table, after an interruption");
    }
}

/// The write-backs of `events` were refused.
pub(super) fn write_refused(
    error: &Error,
    refusal: WriteRefusal,
    events: usize,
    config: &Config,
    telemetry: &Telemetry,
) {
    telemetry.metrics.retry(Side::Postgres);
    telemetry.failed(error);
    if !refusal.is_passing {
        telemetry.health.tell(NotReady::Unwritable(error.clone()));
    }
    let slot = &config.source.slot;
    if !refusal.is_new {
        let WriteRefusal { wait, tries, .. } = refusal;
        tracing::debug!(%slot, %error, tries, events, wait_ms = wait.as_millis(),
            "write-backs are refused");
        return;
    }
    tracing::warn!(event = "write_back_refused", %slot, events, %error, fix = error.what_to_do(),
        "Postgres refuses to mark, delete or park rows of published events; trying again with \
         back-off");
}

/// A write-back succeeded after so many refusals, where those were told.
pub(super) fn write_taken(refusals: Option<u32>, config: &Config, telemetry: &Telemetry) {
    if let Some(tries) = refusals {
        tracing::info!(event = "write_back_resumed", slot = %config.source.slot, tries,
            "rows of published events are written again");
        telemetry.health.withdraw("postgres_unwritable");
    }
}

/// `error`, which ends the relay. One of an event says how to give that up, in whatever mode the
/// relay runs.
pub(super) fn halting(error: Error, config: &Config) -> Error {
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
    let fix = Remedy::from("nothing was skipped: the next start goes on with this event. ")
        .and(known)
        .and(format!(
            ". To give it up instead, {before}start the relay once as `"
        ))
        .and(run)
        .and(format!(
            "` until it logs event_given_up. With {} for that and all later starts, the event is \
             kept",
            if config.sink.kind.capabilities().dead_letters {
                "dead-letter in place of skip, or with park"
            } else {
                "park in place of skip,"
            }
        ));
    error.remedy(fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::supervisor::tests::config;

    /// A later start with another `delivery.on_error` is refused while an event is parked, and some
    /// buses have acked records behind the one that is refused.
    #[test]
    fn the_recipe_of_a_stop_says_how_long_to_park_and_claims_nothing_of_later_events() {
        let error = Error::new(Kind::RecordTooLarge, "too large").remedy("raise the limit");
        let fix = halting(error.clone(), &config("stop"))
            .what_to_do()
            .unwrap();
        assert!(
            fix.starts_with("nothing was skipped: the next start goes on with this event. raise")
                && fix.contains(" run --slot orders --on-error skip` until it logs"),
            "{fix}"
        );
        assert!(
            fix.ends_with(
                "With dead-letter in place of skip, or with park for that and all later starts, \
                 the event is kept"
            ),
            "{fix}"
        );
        assert_eq!(halting(error.clone(), &config("park")), error);
    }
}
