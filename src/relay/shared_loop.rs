//! The part of both loops that does not depend on the source of events.
//!
//! [`super::replication`] streams the slot, [`super::table_loop`] reads a table. Each is one
//! `biased` select that yields an input, and a method that handles the input. [`SharedLoop::next`]
//! comes before the source in both, and after the ends of jobs, which only the stream has.
//! [`SharedLoop::handle`] handles its inputs. They are, most urgent first:
//!
//! 1. a stop: nothing else matters more;
//! 2. the clock: status updates are never late, whatever else is going on (P5);
//! 3. deliveries: they make room, so they come before what takes it;
//! 4. the end of a batch of write-backs, and results of retries of parked events;
//! 5. the end of the SQL session: it hears of a shutdown of Postgres first (P7);
//! 6. the connection to the bus.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::Fuse;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::Config;
use crate::postgres::sql;
use crate::relay::outage;
use crate::relay::retrying::Retrying;
use crate::relay::stall_watchdog::StallWatchdog;
use crate::relay::stop::{Stop, StopSignal};
use crate::relay::store::Known;
use crate::sink::{AnySink, BusSink as _};
use crate::source::control::{Control, OldTransaction};
use crate::telemetry::health::{stalled_fix, wal_not_sent_fix};
use crate::telemetry::otel::Spans;
use crate::telemetry::{Flow, Metrics, Telemetry};
use crate::upkeep::{DatabaseIdentity, Marker};
use walrelay_core::clock::now_us;
use walrelay_core::error::{Disposition, Error, Kind, Result};
use walrelay_core::failpoint;
use walrelay_core::parked::CLASSES;
use walrelay_core::publisher::parked_index::RetryReport;
use walrelay_core::publisher::{Counts, Publisher};
use walrelay_core::readiness::{NotReady, Streamed, ToDo};
use walrelay_core::sessions::{Ended, RefusedWrites};
use walrelay_core::sink::Connection;

/// How often metrics and health are updated: often enough for a person, seldom enough to cost
/// nothing.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);
/// How often events are counted by topic, of which there may be thousands, where pages are served.
const FLOWS_INTERVAL: Duration = Duration::from_secs(1);
/// How soon a record is offered again to a full sink if no delivery comes first.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(5);
const TOPICS_MAX: usize = 12;
/// How long a transaction may be open before the relay warns of it.
const LONG_OPEN_SECONDS: i64 = 60;

#[derive(Clone)]
pub(super) struct Process<'a> {
    pub(super) config: &'a Config,
    pub(super) telemetry: &'a Telemetry,
    pub(super) watchdog: &'a StallWatchdog,
    pub(super) stop: StopSignal,
}

/// Why the loop ends, and until when it waits for acks.
pub(super) struct Leaving {
    pub(super) until: Instant,
    pub(super) with: Result<Ended>,
}

/// The session for write-backs.
enum WriteSession {
    Open(Arc<Marker>),
    /// A batch failed: the session may be read-only for good, lost, or have statements of a table
    /// that has changed. The next batch opens another one, in this database.
    Failed(DatabaseIdentity),
}

/// The end of a batch of write-backs.
pub(super) struct BatchEnd {
    marker: Arc<Marker>,
    /// Whether it is written: other sessions may not see the rows yet.
    is_written: bool,
    /// Whether it marks rows: events that are parked alone say nothing of marks.
    marks_rows: bool,
}

/// An input that does not depend on the source.
pub(super) enum SharedInput {
    Stop,
    Clock,
    Deliveries,
    WrittenBack(Result<BatchEnd>),
    Retried(RetryReport),
    Control(sql::Ended),
    /// Whether the bus answers; an error where the producer will deliver nothing any more.
    Bus(Result<Connection>),
}

/// The last report.
struct Reported {
    counts: Counts,
    /// Events that were written back.
    written: u64,
    next_flows: Instant,
}

pub(super) struct SharedLoop<'a> {
    pub(super) process: Process<'a>,
    /// The session that holds the slot's or the table's lease.
    pub(super) control: Fuse<Job<sql::Ended>>,
    bus: BusWatch,
    session: Option<WriteSession>,
    writing_back: Fuse<Job<Result<BatchEnd>>>,
    pub(super) refused_writes: RefusedWrites,
    pub(super) retrying: Retrying,
    pub(super) leaving: Option<Leaving>,
    stop_heard: bool,
    reported: Reported,
    pub(super) next_report: Instant,
    /// The instant that times inside the publisher are since.
    pub(super) epoch: Instant,
}

impl<'a> SharedLoop<'a> {
    pub(super) fn new(
        publisher: &mut Publisher<AnySink>,
        control: &Control,
        marker: Option<Arc<Marker>>,
        known: &Known,
        epoch: Instant,
        process: Process<'a>,
    ) -> Self {
        let Process {
            config,
            telemetry,
            watchdog,
            ..
        } = process;
        publisher
            .batches
            .tell(telemetry.spans.as_ref().map(Spans::taker));
        telemetry
            .metrics
            .dropped_events
            .inc_by(marker.as_ref().map_or(0, |marker| marker.take_dropped()));
        let database = marker.as_ref().map(|marker| marker.database.clone());
        SharedLoop {
            control: fused(control.closed()),
            bus: BusWatch::new(&publisher.sink, telemetry),
            session: marker.map(WriteSession::Open),
            writing_back: Fuse::terminated(),
            refused_writes: RefusedWrites::default(),
            retrying: Retrying::new(
                config,
                known,
                database,
                &telemetry.metrics,
                Some(watchdog.beside()),
            ),
            leaving: None,
            stop_heard: false,
            reported: Reported {
                counts: publisher.counts,
                written: publisher.write_backs.written,
                next_flows: Instant::now(),
            },
            next_report: Instant::now(),
            epoch,
            process,
        }
    }

    /// Waits for the next input: of deliveries where the loop `delivers`, of retries where it
    /// `retries`. Safe to cancel.
    pub(super) async fn next(
        &mut self,
        publisher: &mut Publisher<AnySink>,
        wake: Instant,
        delivers: bool,
        retries: bool,
    ) -> SharedInput {
        let next_stop = if self.stop_heard {
            Stop::Now
        } else {
            Stop::Drain
        };
        tokio::select! {
            biased;
            () = self.process.stop.at_least(next_stop) => SharedInput::Stop,
            () = tokio::time::sleep_until(wake) => SharedInput::Clock,
            () = publisher.receive_deliveries(), if delivers => SharedInput::Deliveries,
            done = &mut self.writing_back => SharedInput::WrittenBack(done),
            tried = self.retrying.next(), if retries => SharedInput::Retried(tried),
            end = &mut self.control => SharedInput::Control(end),
            answers = self.bus.changed() => SharedInput::Bus(answers),
        }
    }

    pub(super) fn handle(
        &mut self,
        input: SharedInput,
        publisher: &mut Publisher<AnySink>,
    ) -> Result<()> {
        let Process {
            config, telemetry, ..
        } = self.process;
        match input {
            SharedInput::Stop => {
                telemetry.health.tell(NotReady::Stopping);
                let at_once = std::mem::replace(&mut self.stop_heard, true)
                    || self.process.stop.asked() == Stop::Now;
                let grace = if at_once {
                    Duration::ZERO
                } else {
                    config.shutdown.timeout
                };
                self.leave(publisher, grace, Ok(Ended::Stopped));
            }
            SharedInput::Clock => {}
            SharedInput::Deliveries => self.delivered(publisher)?,
            // The next batch may have events to park, which those rows wait for.
            SharedInput::WrittenBack(Ok(BatchEnd {
                marker,
                is_written: false,
                ..
            })) => {
                self.session = Some(WriteSession::Open(marker));
                publisher.write_backs.abandon();
                if self.refused_writes.gives_way {
                    let what = "other sessions do not see rows of published events yet, which are \
                                to be marked";
                    return Err(Error::new(Kind::PostgresUnreachable, what));
                }
            }
            SharedInput::WrittenBack(Ok(BatchEnd {
                marker,
                is_written: true,
                marks_rows,
            })) => {
                self.session = Some(WriteSession::Open(marker));
                telemetry
                    .metrics
                    .written_back(publisher.write_backs.finish());
                if marks_rows || publisher.write_backs.is_empty() {
                    outage::write_taken(self.refused_writes.succeeded(), config, telemetry);
                }
                failpoint::reached("marked");
            }
            SharedInput::WrittenBack(Err(error)) => self.refused_write_back(error, publisher)?,
            SharedInput::Retried(tried) => {
                publisher.judge.parking.retried(tried, &config.source.slot)
            }
            SharedInput::Control(end) => return Err(end.error().clone()),
            SharedInput::Bus(connection) => {
                let connection = connection?;
                telemetry.bus(&connection);
                let fault = match connection {
                    Connection::Up => None,
                    Connection::Blocked(error) => Some(error),
                    Connection::Down { cause, .. } => Some(Error::new(Kind::BusUnreachable, cause)),
                    Connection::Refused(error) => Some(error),
                };
                fault.iter().for_each(|error| telemetry.failed(error));
            }
        }
        Ok(())
    }

    /// A batch of write-backs failed. Its events are never published again: the batch is tried
    /// again, for as long as it takes. Errors: `error`, where the session ends with it.
    fn refused_write_back(
        &mut self,
        error: Error,
        publisher: &mut Publisher<AnySink>,
    ) -> Result<()> {
        if error.kind().halts() {
            // Nothing is marked any more, and nothing waits for a mark.
            publisher.write_backs.refuse();
            return Err(error);
        }
        // Commits that wait for a park wait for other standbys alone once the stream is left. So
        // the back-off below is that of marks, and no park waits for it.
        let holds_up_commits = publisher.write_backs.parks_alone() && self.leaving.is_none();
        publisher.write_backs.abandon();
        if self.refused_writes.gives_way || holds_up_commits {
            return Err(error);
        }
        if let Some(WriteSession::Open(marker)) = &self.session {
            self.session = Some(WriteSession::Failed(marker.database.clone()));
        }
        let Process {
            config, telemetry, ..
        } = self.process;
        let now = Instant::now().into_std();
        let refusal = self
            .refused_writes
            .refused(error.kind(), now, fastrand::f64());
        let events = publisher.write_backs.len();
        outage::write_refused(&error, refusal, events, config, telemetry);
        if self.leaving.is_some() {
            publisher.write_backs.refuse();
            let slot = &config.source.slot;
            tracing::warn!(event = "write_back_left", %slot, events, %error,
                "rows of published events are not written; if this relay stops now, the next one \
                 publishes them again");
        }
        Ok(())
    }

    /// A position is stored.
    pub(super) fn stored(&self, publisher: &mut Publisher<AnySink>) {
        let Telemetry {
            metrics, health, ..
        } = self.process.telemetry;
        metrics.positions_stored.inc();
        if publisher
            .judge
            .quarantine
            .topics
            .took(&self.process.config.state.topic)
        {
            publisher.counts.topics_taking += 1;
        }
        if !self.refused_writes.is_any() {
            health.withdraw("postgres_unwritable");
        }
    }

    /// Ends intake; what is in flight has this long to be acked. The first reason stays.
    pub(super) fn leave(
        &mut self,
        publisher: &mut Publisher<AnySink>,
        grace: Duration,
        with: Result<Ended>,
    ) {
        publisher.forget_unread();
        let until = Instant::now() + grace;
        match &mut self.leaving {
            Some(leaving) => leaving.until = leaving.until.min(until),
            None => self.leaving = Some(Leaving { until, with }),
        }
    }

    /// Begins to mark or delete up to `max` rows of delivered events, where that is configured.
    pub(super) fn begin_write_back(&mut self, publisher: &mut Publisher<AnySink>, max: usize) {
        let Some(session) = &self.session else { return };
        let is_due = self.refused_writes.may_try(Instant::now().into_std())
            || publisher.write_backs.commits_wait();
        if !is_due && self.leaving.is_none() {
            return;
        }
        let Some(batch) = publisher.write_backs.begin(max) else {
            return;
        };
        let opened = match session {
            WriteSession::Open(marker) => Ok(Arc::clone(marker)),
            WriteSession::Failed(database) => Err((self.process.config.clone(), database.clone())),
        };
        let marks_rows = batch.marks_rows();
        self.writing_back = fused(async move {
            failpoint::reached("marking");
            let marker = match opened {
                Ok(marker) => marker,
                Err((config, database)) => reopened(&config, &database).await?,
            };
            let is_written = marker.sees(&batch.xids).await?;
            if is_written {
                marker.settle(&batch).await?;
            }
            Ok(BatchEnd {
                marker,
                is_written,
                marks_rows,
            })
        });
    }

    /// Takes in delivery reports, as [`Publisher::delivered`], and measures how long events took.
    pub(super) fn delivered(&self, publisher: &mut Publisher<AnySink>) -> Result<()> {
        let taken_in = publisher.delivered();
        let metrics = &self.process.telemetry.metrics;
        let now_us = now_us();
        for committed_at_us in publisher.ledger.finished.drain(..) {
            metrics.observe_commit_to_ack(committed_at_us, now_us);
        }
        taken_in
    }

    /// Updates metrics and health.
    pub(super) fn report(
        &mut self,
        publisher: &mut Publisher<AnySink>,
        streamed: Streamed,
        now: Instant,
    ) {
        self.next_report = now + REPORT_INTERVAL;
        let telemetry = self.process.telemetry;
        let counts = publisher.counts;
        let before = std::mem::replace(&mut self.reported.counts, counts);
        if counts.acked > before.acked && telemetry.metrics.acked_events.get() == 0 {
            let slot = &self.process.config.source.slot;
            let events = counts.acked - before.acked;
            tracing::info!(event = "first_events_acked", %slot, events, "the first events of this \
                run are acked");
        }
        report_counts(telemetry, counts, before);
        let waits_since_us = [
            publisher.write_backs.oldest_commit_us(),
            publisher.ledger.oldest_commit_us(),
            streamed.unsent_since_us,
        ];
        telemetry
            .metrics
            .set_oldest_unacked_commit(waits_since_us.into_iter().flatten().min());
        report_levels(&telemetry.metrics, publisher);
        if let Some(error) = publisher.sink.take_refusal() {
            telemetry.failed(&error);
        }
        self.report_flows(publisher, now);
        let written = publisher.write_backs.written;
        let wrote = std::mem::replace(&mut self.reported.written, written) < written;
        let moved = counts.acked > before.acked || wrote;
        let to_do = ToDo::of(publisher, moved, streamed);
        if let Some(reason) = telemetry.health.report(to_do) {
            self.warn(reason);
        }
        report_events(&telemetry.metrics, publisher);
    }

    /// Shows the busiest topics to those who watch.
    fn report_flows(&mut self, publisher: &mut Publisher<AnySink>, now: Instant) {
        let flows = &self.process.telemetry.flows;
        if flows.receiver_count() == 0 || self.reported.next_flows > now {
            return;
        }
        self.reported.next_flows = now + FLOWS_INTERVAL;
        let topics = publisher.sink.busiest_topics(TOPICS_MAX).into_iter();
        let busiest = topics.map(|(topic, events)| Flow {
            name: format!("Topic {topic}"),
            events,
        });
        flows.send_replace(busiest.collect());
    }

    /// Logs that events wait, for this reason.
    fn warn(&self, reason: NotReady) {
        let telemetry = self.process.telemetry;
        let slot = &self.process.config.source.slot;
        let error = if let NotReady::WalNotSent(_) = reason {
            let error = Error::new(Kind::PostgresUnreachable, reason).remedy(wal_not_sent_fix());
            tracing::warn!(event = "wal_not_sent", %slot, %error, fix = error.what_to_do(),
                "Postgres sends no WAL");
            error
        } else {
            let fix = stalled_fix(telemetry.bus, telemetry.metrics.in_flight_events.get());
            let error = Error::new(Kind::BusUnreachable, reason).remedy(fix);
            tracing::warn!(event = "stalled", %slot, %error, fix = error.what_to_do(), "no event \
                is acked");
            error
        };
        telemetry.failed(&error);
    }
}

/// A new session for write-backs, in this database, after one that could write.
async fn reopened(config: &Config, database: &DatabaseIdentity) -> Result<Arc<Marker>> {
    let refused = |error: Error| match error.kind().disposition() {
        Disposition::Halt => error.with_kind(Kind::PostgresUnwritable),
        Disposition::Retry | Disposition::RetryThenGiveUp | Disposition::GiveUp => error,
    };
    let marker = Marker::of(config, database).await.map_err(refused)?;
    marker
        .map(Arc::new)
        .ok_or_else(|| Error::new(Kind::Bug, "write-backs are due, and none are configured"))
}

/// Adds what was counted since `before` to the metrics.
pub(super) fn report_counts(telemetry: &Telemetry, counts: Counts, before: Counts) {
    let metrics = &telemetry.metrics;
    metrics
        .decoded_messages
        .inc_by(counts.decoded - before.decoded);
    metrics
        .assembled_events
        .inc_by(counts.assembled - before.assembled);
    metrics.routed_events.inc_by(counts.routed - before.routed);
    metrics
        .enqueued_events
        .inc_by(counts.enqueued - before.enqueued);
    metrics.acked_events.inc_by(counts.acked - before.acked);
    metrics
        .acked_bytes
        .inc_by(counts.acked_bytes - before.acked_bytes);
    metrics
        .dead_lettered_events
        .inc_by(counts.dead_lettered - before.dead_lettered);
    metrics
        .skipped_events
        .inc_by(counts.skipped - before.skipped);
    metrics.parked_events.inc_by(counts.parked - before.parked);
    metrics
        .waiting_again_events
        .inc_by(counts.waiting_again - before.waiting_again);
    metrics
        .delivered_before_events
        .inc_by(counts.delivered_before - before.delivered_before);
    metrics
        .queue_full
        .inc_by(counts.queue_full - before.queue_full);
    for (class, (failed, before)) in CLASSES
        .into_iter()
        .zip(counts.failed.into_iter().zip(before.failed))
    {
        if failed > before {
            metrics.failed_attempts(class, failed - before);
        }
    }
    if counts.dead_lettered > before.dead_lettered {
        telemetry.health.withdraw("dead_letters_refused");
    }
    if counts.topics_taking > before.topics_taking {
        telemetry.health.withdraw("topic_refused");
    }
}

/// How much waits for acks and writes by now, and how the bus answers.
fn report_levels(metrics: &Metrics, publisher: &mut Publisher<AnySink>) {
    let ledger = &publisher.ledger;
    let levels = [
        (&metrics.write_back_due_events, publisher.write_backs.len()),
        (&metrics.in_flight_events, ledger.in_flight_events()),
        (&metrics.in_flight_bytes, ledger.in_flight_bytes()),
        (&metrics.waiting_events, publisher.judge.parking.count),
    ];
    for (gauge, level) in levels {
        gauge.set(i64::try_from(level).unwrap_or(i64::MAX));
    }
    let throttle = publisher.sink.throttle();
    metrics
        .broker_throttle_seconds
        .set(throttle.unwrap_or_default().as_secs_f64());
    metrics
        .partition_changes
        .inc_by(publisher.sink.take_partition_changes());
    metrics.intake_closed(
        publisher
            .intake_closed()
            .map(|why| why.of_quota(throttle.is_some())),
    );
    metrics
        .broker_round_trip_seconds
        .set(publisher.sink.round_trip().map(|time| time.as_secs_f64()));
}

/// What became of events since the last report, per outbox.
fn report_events(metrics: &Metrics, publisher: &mut Publisher<AnySink>) {
    for (outbox, router) in publisher.setup.outboxes.iter().zip(&mut publisher.routers) {
        metrics.outbox_events(
            &outbox.source.to_string(),
            std::mem::take(&mut router.events),
        );
    }
    for rows in &mut publisher.judge.rows {
        metrics.copied_rows(&rows.outbox, std::mem::take(&mut rows.copied));
    }
}

/// The transaction of another session that has been open for longest.
#[derive(Debug, Default)]
pub(super) struct OldestTransaction {
    /// The backend of the last warning.
    logged: Option<i32>,
}

impl OldestTransaction {
    /// Updates the metrics, and warns once of one that is open for long.
    pub(super) fn report(&mut self, telemetry: &Telemetry, oldest: Option<&OldTransaction>) {
        let pid = oldest.and_then(|oldest| oldest.pid).unwrap_or_default();
        let open_seconds = oldest
            .and_then(|oldest| oldest.open_seconds)
            .unwrap_or_default();
        telemetry.metrics.oldest_transaction_pid.set(pid.into());
        telemetry
            .metrics
            .oldest_transaction_seconds
            .set(open_seconds);
        if open_seconds < LONG_OPEN_SECONDS {
            self.logged = None;
        } else if self.logged.replace(pid) != Some(pid) {
            let application = oldest
                .and_then(|oldest| oldest.application.as_deref())
                .unwrap_or_default();
            tracing::warn!(
                event = "old_transaction_found",
                pid,
                open_seconds,
                application,
                "a transaction has been open for long; the server retains WAL for it"
            );
        }
    }
}

struct BusWatch {
    connection: watch::Receiver<Connection>,
    /// Why the producer will deliver nothing any more: once.
    unusable: Fuse<Job<Error>>,
}

impl BusWatch {
    fn new(sink: &AnySink, telemetry: &Telemetry) -> BusWatch {
        let mut connection = sink.watch_connection();
        let handle = sink.handle();
        telemetry.bus(&connection.borrow_and_update());
        BusWatch {
            connection,
            unusable: fused(async move { handle.unusable().await }),
        }
    }

    /// Waits for a change, and says whether the bus answers. Safe to cancel.
    /// Errors: the bus refuses the producer for good: once.
    async fn changed(&mut self) -> Result<Connection> {
        tokio::select! {
            biased;
            error = &mut self.unusable => Err(error),
            changed = self.connection.changed() => {
                if changed.is_err() {
                    // The producer is gone, which its deliveries report.
                    std::future::pending::<()>().await;
                }
                Ok(self.connection.borrow_and_update().clone())
            }
        }
    }
}

pub(super) type Job<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The job, which ends once: a further wait for it does not end.
fn fused<T>(job: impl Future<Output = T> + Send + 'static) -> Fuse<Job<T>> {
    let job: Job<T> = Box::pin(job);
    job.fuse()
}

/// The output of a future that is ready without waiting.
pub(crate) async fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = future => Some(done),
        () = std::future::ready(()) => None,
    }
}

/// Waits until the relay was told to stop this long ago, or to leave at once.
pub(super) async fn stop_is_due(stop: &mut StopSignal, grace: Duration) {
    let mut at_once = stop.clone();
    stop.at_least(Stop::Drain).await;
    tokio::select! {
        () = at_once.at_least(Stop::Now) => {}
        () = tokio::time::sleep(grace) => {}
    }
}
