//! What the loop tells the metrics and the health, as differences since the last time.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock::now_us;
use crate::decode::Other;
use crate::event::Ignored;
use crate::position::Lsn;
use crate::relay::pipeline::Pipeline;
use crate::relay::publisher::Counts;
use crate::sink::Sink;
use crate::source::control::OldTransaction;
use crate::telemetry::Telemetry;

/// How often the numbers are brought up to date: often enough for a person, seldom enough to cost nothing.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// What was reported so far.
pub(super) struct Report {
    counts: Counts,
    ignored: Ignored,
    confirmed: Lsn,
    /// What the server was last told to be confirmed.
    pub(super) told: Lsn,
    pub(super) next: Instant,
    /// Bytes and messages read since the last report, and keepalives among them.
    pub(super) received_bytes: u64,
    pub(super) received_messages: u64,
    pub(super) keepalives: u64,
    pub(super) status_updates: u64,
    pub(super) server_wal_end: Lsn,
    pub(super) oldest: OldestTransaction,
}

impl Report {
    /// Begins with what `pipeline` has counted before this session.
    pub(super) fn new<S: Sink>(pipeline: &Pipeline<S>) -> Self {
        Report {
            counts: pipeline.publisher.counts(),
            ignored: pipeline.ignored(),
            confirmed: pipeline.confirmable(),
            told: Lsn::ZERO,
            next: Instant::now(),
            received_bytes: 0,
            received_messages: 0,
            keepalives: 0,
            status_updates: 0,
            server_wal_end: Lsn::ZERO,
            oldest: OldestTransaction::default(),
        }
    }

    /// Tells `telemetry` what has changed.
    pub(super) fn tell<S: Sink>(
        &mut self,
        pipeline: &mut Pipeline<S>,
        received: Lsn,
        telemetry: &Telemetry,
        now: Instant,
    ) {
        self.next = now + REPORT_INTERVAL;
        let (metrics, counts, before) = (&telemetry.metrics, pipeline.publisher.counts(), self.counts);
        metrics.received_bytes.inc_by(std::mem::take(&mut self.received_bytes));
        metrics.received_messages.inc_by(std::mem::take(&mut self.received_messages));
        metrics.keepalives.inc_by(std::mem::take(&mut self.keepalives));
        metrics.status_updates.inc_by(std::mem::take(&mut self.status_updates));
        tell_counts(telemetry, counts, before);
        self.counts = counts;
        let (ignored, seen) = (pipeline.ignored(), self.ignored);
        metrics.ignored(Other::Update, ignored.updates.saturating_sub(seen.updates));
        metrics.ignored(Other::Delete, ignored.deletes.saturating_sub(seen.deletes));
        metrics.ignored(Other::Truncate, ignored.truncates.saturating_sub(seen.truncates));
        metrics.ignored(Other::LogicalMessage, ignored.messages.saturating_sub(seen.messages));
        self.ignored = ignored;
        let ledger = &pipeline.publisher.ledger;
        metrics.in_flight_events.set(i64::try_from(ledger.in_flight_events()).unwrap_or(i64::MAX));
        metrics.in_flight_bytes.set(i64::try_from(ledger.in_flight_bytes()).unwrap_or(i64::MAX));
        metrics.waiting_events.set(i64::try_from(pipeline.publisher.parking.count()).unwrap_or(i64::MAX));
        metrics.intake_closed(pipeline.publisher.intake_closed());
        metrics.set_oldest_unacked_commit(ledger.oldest_commit_us());
        metrics.received_lsn.set(received);
        metrics.server_wal_end_lsn.set(self.server_wal_end);
        metrics.stored_lsn.set(pipeline.stored_position().end_lsn);
        if !self.told.is_zero() {
            metrics.confirmed_lsn.set(self.told);
        }
        let progressed = counts.acked > before.acked || pipeline.confirmable() > self.confirmed;
        self.confirmed = pipeline.confirmable();
        telemetry.health.report(!pipeline.publisher.is_drained(), progressed);
        let now_us = now_us();
        for committed_at_us in pipeline.publisher.ledger.take_finished() {
            telemetry.metrics.observe_commit_to_ack(committed_at_us, now_us);
        }
    }
}

/// Tells `telemetry` what was counted since `before`.
pub(super) fn tell_counts(telemetry: &Telemetry, counts: Counts, before: Counts) {
    let metrics = &telemetry.metrics;
    metrics.decoded_messages.inc_by(counts.decoded - before.decoded);
    metrics.assembled_events.inc_by(counts.assembled - before.assembled);
    metrics.routed_events.inc_by(counts.assembled - before.assembled);
    metrics.enqueued_events.inc_by(counts.enqueued - before.enqueued);
    metrics.acked_events.inc_by(counts.acked - before.acked);
    metrics.acked_bytes.inc_by(counts.acked_bytes - before.acked_bytes);
    metrics.dead_lettered_events.inc_by(counts.dead_lettered - before.dead_lettered);
    metrics.skipped_events.inc_by(counts.skipped - before.skipped);
    metrics.parked_events.inc_by(counts.parked - before.parked);
    metrics.waiting_again_events.inc_by(counts.waiting_again - before.waiting_again);
    metrics.delivered_before_events.inc_by(counts.delivered_before - before.delivered_before);
    metrics.queue_full.inc_by(counts.queue_full - before.queue_full);
    if counts.dead_lettered > before.dead_lettered {
        telemetry.health.dead_letters_refused(None);
    }
    if counts.topics_taking > before.topics_taking {
        telemetry.health.topic_refused(None);
    }
}

/// How long a transaction may be open before a person is told.
const LONG: i64 = 60;

/// The transaction of another session that has been open for longest.
#[derive(Debug, Default)]
pub(super) struct OldestTransaction {
    /// The backend that was logged, because its transaction has been open for long.
    logged: Option<i32>,
}

impl OldestTransaction {
    /// Tells `telemetry` of it, and logs a long one once.
    pub(super) fn tell(&mut self, telemetry: &Telemetry, oldest: Option<&OldTransaction>) {
        let pid = oldest.and_then(|oldest| oldest.pid).unwrap_or_default();
        let open_seconds = oldest.and_then(|oldest| oldest.open_seconds).unwrap_or_default();
        telemetry.metrics.oldest_transaction_pid.set(pid.into());
        telemetry.metrics.oldest_transaction_seconds.set(open_seconds);
        if open_seconds < LONG {
            self.logged = None;
        } else if self.logged.replace(pid) != Some(pid) {
            let application = oldest.and_then(|oldest| oldest.application.as_deref()).unwrap_or_default();
            tracing::warn!(
                pid,
                open_seconds,
                application,
                "a transaction has been open for long; the server retains WAL for it"
            );
        }
    }
}
