//! The loop of one session of the slot.
//!
//! Before the inputs of [`SharedLoop`], the loop waits for the end of a job: a position that is
//! stored counts before the end of its session does. After them, it waits for the socket: always
//! for writing, for reading only while there is room (P4).

use std::time::Duration;

use futures_util::future::FusedFuture as _;
use tokio::time::Instant;

use crate::postgres::sql;
use crate::relay::drain::DRAIN_TIMEOUT;
use crate::relay::jobs::{Done, Jobs};
use crate::relay::session::Session;
use crate::relay::shared_loop::{
    OldestTransaction, Process, RETRY_INTERVAL, SharedInput, SharedLoop,
};
use crate::relay::stop::Stop;
use crate::relay::store::{AnyStore, Known};
use crate::relay::stream_reader::{Readiness, StreamReader};
use crate::sink::AnySink;
use crate::source::control::{PendingRow, WalPosition};
use crate::source::synchronous::Synchronous;
use crate::source::watch::Look;
use crate::source::{Io, Status, WalMessage, judge_notice};
use crate::telemetry::health::HELD_BACK;
use walrelay_core::clock::now_us;
use walrelay_core::decode::Other;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::event::{Ignored, RowId};
use walrelay_core::failpoint;
use walrelay_core::ledger::confirm::Due;
use walrelay_core::position::{Lsn, Position};
use walrelay_core::publisher::Publisher;
use walrelay_core::publisher::pipeline::{Pipeline, Taken};
use walrelay_core::readiness::{NotReady, Streamed};
use walrelay_core::sessions::Ended;
use walrelay_core::stream_record::PairUse;
use walrelay_core::watch::{RequeueDetector, RetentionLimit, RowsPersist};

/// How long a shutdown of Postgres is held up for acks: it ends within a second or two of the last
/// (P7).
const SERVER_SHUTDOWN_GRACE: Duration = Duration::from_millis(1_500);
/// How long the last status may take to reach the server.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a finished producer has to say of which record it died.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Messages taken in before everything else gets its turn: some 200 kB, a millisecond's work.
const MESSAGES_PER_TURN: usize = 512;

enum Input {
    Shared(SharedInput),
    Job(Box<Done>),
    Socket(Result<Io>),
    Dry,
}

/// Relays through `session` until it, the producer or the relay ends.
/// Errors: why the session ended. The pipeline stays usable for the next one unless the error is
/// the producer's.
pub(super) async fn run(
    pipeline: &mut Pipeline<AnySink>,
    mut session: Session,
    known: &Known,
    epoch: Instant,
    process: Process<'_>,
) -> Result<Ended> {
    let now = Instant::now();
    let config = process.config;
    let marker = session.marker.take();
    let mut this = ReplicationLoop {
        shared: SharedLoop::new(
            &mut pipeline.publisher,
            &session.control,
            marker,
            known,
            epoch,
            process,
        ),
        statistics: Statistics {
            ignored: pipeline.assembler.ignored(),
            confirmed: pipeline.confirmable(),
            ..Statistics::default()
        },
        jobs: Jobs::new(now),
        catalog_unsound: false,
        requeued: RequeueDetector::of(&config.outboxes),
        rows_persist: RowsPersist::default(),
        retention: config.source.retention_limit(),
        pipeline,
        session,
    };
    // What the session before knew counts until the first measurement.
    this.set_synchronous(this.pipeline.is_synchronous())?;
    // It was altered while no relay looked.
    if this.session.fingerprints.iter().any(|now| {
        now.publication_version() != Some(this.session.start.record.publication_version())
    }) {
        this.jobs.look_soon();
    }
    let ended = this.run().await;
    this.finish(&ended).await;
    ended
}

struct ReplicationLoop<'a> {
    shared: SharedLoop<'a>,
    pipeline: &'a mut Pipeline<AnySink>,
    session: Session,
    statistics: Statistics,
    jobs: Jobs,
    /// Whether a look found the outbox changed or not published.
    catalog_unsound: bool,
    /// None where rows do not say that they are pending.
    requeued: Option<RequeueDetector>,
    rows_persist: RowsPersist,
    retention: RetentionLimit,
}

/// Counts of the stream since the last report, and the values of the last report.
#[derive(Default)]
struct Statistics {
    ignored: Ignored,
    /// The LSN that might be confirmed at the last report.
    confirmable: Lsn,
    /// The LSN that the last status update confirmed.
    confirmed: Lsn,
    server_wal_end: Lsn,
    /// The LSN of the newest message, and that at the last report. After a restart the server reads
    /// from before the confirmed LSN, so it is not the received LSN that tells whether the server
    /// goes on.
    sent: Lsn,
    sent_before: Lsn,
    unsent: Option<Unsent>,
    oldest: OldestTransaction,
    /// Whether the log tells that the stored position is ahead of the slot.
    is_covered_logged: bool,
}

/// The end of the server's WAL at a measurement, from which on something had not arrived.
struct Unsent {
    end: Lsn,
    since_us: i64,
}

impl ReplicationLoop<'_> {
    /// Ends the retries and the stream, with a last status update.
    async fn finish(mut self, ended: &Result<Ended>) {
        let asked = self.shared.process.stop.asked();
        match ended {
            // The slot is ours as long as the stream is not ended.
            Ok(how) if *how != Ended::ServerShutDown && asked < Stop::Now => {
                self.shared.retrying.finish(asked).await
            }
            Ok(_) | Err(_) => self.shared.retrying.abandon().await,
        }
        self.report(Instant::now());
        self.pipeline.publisher.forget_unread();
        let confirmed = self.pipeline.confirmable();
        let timeout = match self.shared.process.stop.asked() {
            Stop::Now => Duration::ZERO,
            Stop::No | Stop::Drain => FINISH_TIMEOUT,
        };
        let stream = self.session.stream.wal;
        let last = Status {
            received: stream.received(),
            confirmed,
            reply_requested: false,
        };
        match stream.finish(last, Instant::now() + timeout).await {
            Ok(()) => self.pipeline.publisher.batches.confirmed(confirmed),
            Err(error) => {
                tracing::debug!(%error, "the last status update may not have reached the server")
            }
        }
        failpoint::reached("confirmed");
    }

    async fn run(&mut self) -> Result<Ended> {
        loop {
            let gathers = self.session.stream.gathers(self.reads());
            if !gathers && let Err(error) = self.take_in() {
                self.halt(error)?;
            }
            let received = self.pipeline.publisher.ledger.received().end_lsn;
            if let Some((_, error)) = self
                .session
                .vanished
                .take_if(|(until, _)| *until <= received)
            {
                self.halt(error)?;
            }
            let now = Instant::now();
            let since = now - self.shared.epoch;
            let rest = self
                .session
                .stream
                .pacer
                .rests_until(now, self.pipeline.publisher.counts.assembled);
            let follows = self.session.stream.has_more || gathers || rest.is_some();
            self.pipeline.look(since, follows);
            self.begin_jobs(now);
            let feedback = self.tell_server(now)?;
            if self.shared.next_report <= now {
                self.report(now);
                let held = self.pipeline.look_at_held_commits(since);
                if let Err(error) = held
                    && self.shared.leaving.is_none()
                {
                    let slot = &self.shared.process.config.source.slot;
                    tracing::error!(event = "stream_left", %slot, %error, "leaving the stream, \
                        and trying again");
                    return Err(error);
                }
            }
            let may_look = self.may_look();
            let left_over = self.pipeline.has_left_over(since, may_look);
            if let Some(leaving) = self
                .shared
                .leaving
                .take_if(|leaving| leaving.until <= now || !left_over)
            {
                return leaving.with;
            }
            if self.session.stream.is_busy(rest.is_some()) {
                // This loop may find every input ready, and all other tasks share the thread.
                tokio::task::yield_now().await;
            }
            let input = self
                .next_input(self.wake_at(now, feedback), rest, gathers)
                .await;
            self.shared.process.watchdog.beat()?;
            if let Input::Shared(SharedInput::Deliveries) = input {
                // On failure the producer is finished, and nothing that waits for it would come to
                // an end.
                self.shared.delivered(&mut self.pipeline.publisher)?;
            } else if let Err(error) = self.handle(input).await {
                self.halt(error)?;
            }
        }
    }

    /// Takes in messages that were read, as far as there is room (P4).
    fn take_in(&mut self) -> Result<()> {
        let now = Instant::now().into_std();
        let StreamReader {
            wal,
            has_more,
            noticed,
            ..
        } = &mut self.session.stream;
        // Also where intake has ended: nothing of what is left is for the next turn.
        *has_more = false;
        self.pipeline.publisher.retry_pending()?;
        if self.shared.leaving.is_some() {
            return Ok(());
        }
        for _ in 0..MESSAGES_PER_TURN {
            if !self.pipeline.publisher.has_room() {
                return Ok(());
            }
            let Some(message) = wal.next(self.pipeline.assembler.open_transaction())? else {
                return Ok(());
            };
            failpoint::reached("received");
            self.shared
                .process
                .telemetry
                .metrics
                .received_messages
                .inc();
            match message {
                WalMessage::Data {
                    wal_start,
                    wal_end,
                    body,
                    ..
                } => {
                    *noticed = None;
                    self.statistics.server_wal_end = self.statistics.server_wal_end.max(wal_end);
                    self.statistics.sent = wal_end;
                    if self.pipeline.data(wal_start, body, now)? == Taken::Relation {
                        self.jobs.look_soon();
                    }
                }
                WalMessage::Keepalive { wal_end, .. } => {
                    self.shared.process.telemetry.metrics.keepalives.inc();
                    self.statistics.server_wal_end = self.statistics.server_wal_end.max(wal_end);
                    self.statistics.sent = wal_end;
                    self.pipeline.keepalive(wal_end);
                }
                WalMessage::Notice(notice) if noticed.as_ref() == Some(&notice) => {}
                WalMessage::Notice(notice) => {
                    judge_notice(&notice, &self.shared.process.config.source)?;
                    *noticed = Some(notice);
                }
                WalMessage::ParameterStatus { name, value } => {
                    tracing::debug!(name, value, "a setting changed")
                }
                WalMessage::CopyDone => {
                    return Err(Error::new(
                        Kind::PostgresUnreachable,
                        "Postgres ended the stream",
                    ));
                }
            }
        }
        *has_more = true;
        Ok(())
    }

    /// Begins the jobs that are due, of each kind one at a time.
    fn begin_jobs(&mut self, now: Instant) {
        let config = self.shared.process.config;
        let since = now - self.shared.epoch;
        let is_leaving = self.shared.leaving.is_some();
        let record = &self.session.start.record;
        match record.due(self.pipeline, since, is_leaving) {
            Due::Nothing => {}
            Due::Progress(position) => {
                self.pipeline.store_begun(since);
                self.begin_store(position);
            }
            Due::Idle(position) if !self.jobs.is_looking() && self.may_look() => {
                self.pipeline.store_begun(since);
                self.shared.process.telemetry.metrics.catalog_checks.inc();
                self.jobs
                    .begin_look(&self.session, config, Some(position), now);
            }
            Due::Idle(_) => {}
        }
        let publisher = &mut self.pipeline.publisher;
        self.shared.begin_write_back(publisher, usize::MAX);
        if !is_leaving && !publisher.write_backs.refused {
            self.shared.retrying.begin_due(publisher, now);
        }
        self.jobs
            .begin_tail(config, publisher.judge.before.as_deref());
        if !self.may_look() {
            return;
        }
        if self.requeued.is_some() && !is_leaving {
            let every = config.source.poll.pending_interval;
            let publisher = &self.pipeline.publisher;
            let marked = publisher.write_backs.marked(publisher.ledger.delivered());
            self.jobs.begin_watch(&self.session, marked, every, now);
        }
        if self.session.start.record.wants_pair(&self.pipeline.trail) {
            self.jobs
                .begin_pair(&self.session, self.pipeline.publisher.counts.acked, now);
        }
        if self.jobs.begin_due(&self.session, config, now) {
            self.shared.process.telemetry.metrics.catalog_checks.inc();
        }
    }

    /// Answers the server where that is due, and says when to look again.
    /// Errors: the server fell silent (P5).
    fn tell_server(&mut self, now: Instant) -> Result<Instant> {
        let reads = self.reads();
        let confirmed = self.pipeline.confirmable();
        if let Some(until) = self.session.stream.wal.answer(now, confirmed, reads)? {
            return Ok(until);
        }
        self.shared.process.telemetry.metrics.status_updates.inc();
        self.statistics.confirmed = confirmed;
        self.pipeline.publisher.batches.confirmed(confirmed);
        Ok(now)
    }

    fn reads(&self) -> bool {
        self.shared.leaving.is_none() && self.pipeline.publisher.has_room()
    }

    /// Waits for the next input, the end of a `rest` included. While the reader gathers, a dry
    /// socket is an input, too.
    async fn next_input(&mut self, wake: Instant, rest: Option<Instant>, gathers: bool) -> Input {
        let room = self.reads();
        let Readiness {
            reads,
            has_more,
            delivers,
        } = self.session.stream.prepare(room, rest.is_some());
        tokio::select! {
            biased;
            // A job ends once each time that it is begun, so jobs hold up nothing.
            done = self.jobs.next() => Input::Job(Box::new(done)),
            input = self.shared.next(&mut self.pipeline.publisher, wake, delivers, true) => {
                Input::Shared(input)
            }
            () = self.session.stream.alarm.at(rest.unwrap_or(wake)), if rest.is_some() => {
                Input::Shared(SharedInput::Clock)
            }
            io = self.session.stream.wal.ready_io(reads) => Input::Socket(io),
            () = std::future::ready(()), if has_more => Input::Shared(SharedInput::Clock),
            () = std::future::ready(()), if gathers && rest.is_none() => Input::Dry,
        }
    }

    /// When to look at the clock again: `feedback` says for itself.
    fn wake_at(&self, now: Instant, feedback: Instant) -> Instant {
        // A job that is overdue and waits for something else than the clock must not make the loop
        // spin.
        let soon = now + RETRY_INTERVAL;
        let store = self
            .pipeline
            .wake_at()
            .map(|since| (self.shared.epoch + since).max(soon));
        let retry = self.pipeline.publisher.is_pending().then_some(soon);
        let leave = self.shared.leaving.as_ref().map(|leaving| leaving.until);
        let jobs = self.jobs.wake_at().map(|next| next.max(soon));
        let due = feedback.min(self.shared.next_report);
        [store, retry, leave, jobs]
            .into_iter()
            .flatten()
            .fold(due, Instant::min)
    }

    async fn handle(&mut self, input: Input) -> Result<()> {
        match input {
            Input::Shared(SharedInput::Control(sql::Ended::Shutdown(_))) => {
                tracing::info!(
                    event = "postgres_shutting_down",
                    "Postgres is shutting down: waiting for acks, then closing the stream"
                );
                self.leave(SERVER_SHUTDOWN_GRACE, Ok(Ended::ServerShutDown));
            }
            Input::Shared(input) => self.shared.handle(input, &mut self.pipeline.publisher)?,
            Input::Job(done) => self.job_done(*done).await?,
            Input::Socket(Ok(io)) => {
                self.shared
                    .process
                    .telemetry
                    .metrics
                    .received_bytes
                    .inc_by(io.received_bytes as u64);
                self.session
                    .stream
                    .was_read(io, self.pipeline.publisher.counts.assembled);
            }
            Input::Socket(Err(error)) => return Err(self.last_read(error)),
            Input::Dry => self.session.stream.is_dry(),
        }
        Ok(())
    }

    async fn job_done(&mut self, done: Done) -> Result<()> {
        let answered = match done {
            Done::Stored(store, position, result) => {
                return self.stored(store, position, result).await;
            }
            Done::Looked(result, then_store) => self.looked_at_catalog(result, then_store),
            Done::Measured(result) => result.and_then(|measured| self.measured(&measured)),
            Done::Kept(result, outbox) => result.map(|found| self.looked_for_row(found, outbox)),
            Done::Paired(result) => {
                result.map(|taken| match self.session.start.record.took(taken) {
                    PairUse::Published(pair) => {
                        self.jobs.paired_at = self.pipeline.publisher.counts.acked;
                        self.pipeline.trail.took(pair.snapshot, pair.lsn);
                    }
                    PairUse::Look => self.jobs.look_soon(),
                    PairUse::Nothing => {}
                })
            }
            Done::Pending(Ok((rows, lsn)), settled) => {
                self.looked_for_pending(rows, lsn, &settled);
                Ok(())
            }
            // A table that is read through each time takes too long, and must not hold up the
            // stream.
            Done::Pending(Err(error), _) => {
                if let Some(requeued) = &mut self.requeued {
                    requeued.warn(&self.shared.process.config.source.slot, &error);
                }
                self.jobs.put_off_watch(Instant::now());
                Ok(())
            }
            Done::Tail(read) => {
                let slot = &self.shared.process.config.source.slot;
                let before = self.pipeline.publisher.judge.before.as_deref_mut();
                self.jobs.tail_read(read, slot, before);
                Ok(())
            }
        };
        // The end of the session is an input of its own: only that tells a shutdown of Postgres
        // from a lost connection (P7).
        if self.session.control.is_over() {
            Ok(())
        } else {
            answered
        }
    }

    async fn stored(
        &mut self,
        store: AnyStore,
        position: Position,
        result: Result<()>,
    ) -> Result<()> {
        let took = store.took;
        self.session.start.store = Some(store);
        if let Err(error) = result {
            let error = Box::pin(why_not_stored(&mut self.pipeline.publisher, error)).await;
            if error.kind().halts() {
                // Nothing more can be stored, so there is nothing to wait for.
                self.leave(Duration::ZERO, Err(error));
                return Ok(());
            }
            return Err(error);
        }
        self.shared.stored(&mut self.pipeline.publisher);
        failpoint::reached("stored");
        if self.session.start.record.reads_table() {
            self.leave(
                self.shared.process.config.shutdown.timeout,
                Ok(Ended::Again),
            );
        }
        if let Some(events) = self.pipeline.stored(position) {
            self.shared
                .process
                .telemetry
                .metrics
                .transaction(events, took);
        }
        Ok(())
    }

    /// Stores `then_store` where the outbox is published as it was.
    fn looked_at_catalog(
        &mut self,
        result: Result<Look>,
        then_store: Option<Position>,
    ) -> Result<()> {
        let config = self.shared.process.config;
        let knows_published = self.pipeline.trail.is_known();
        let judged =
            result.and_then(|look| self.session.judge_look(&look, config, knows_published));
        self.catalog_unsound |= judged.is_err();
        if let Ok(true) = judged {
            self.jobs.paired_at = u64::MAX;
        }
        // Where events came meanwhile, they are committed with a position behind them.
        if then_store.is_some()
            && (judged.is_err() || self.pipeline.publisher.transaction.is_open())
        {
            self.pipeline.confirm.abandoned();
        } else if let Some(position) = then_store {
            self.begin_store(position);
        }
        judged.map(drop)
    }

    fn begin_store(&mut self, position: Position) {
        let published = self.pipeline.storing(position);
        self.jobs
            .begin_store(&mut self.session, position, published);
    }

    fn looked_for_pending(&mut self, rows: Vec<PendingRow>, lsn: Lsn, settled: &Position) {
        let Some(requeued) = &mut self.requeued else {
            return;
        };
        let row_id =
            |(outbox, key): PendingRow| RowId::new(outbox, key.iter().map(String::as_bytes));
        let mut asked = requeued.looked(rows.into_iter().map(row_id).collect(), lsn, settled);
        // Parked events are pending as well.
        asked.retain(|row| !self.pipeline.publisher.judge.parking.holds_row(row));
        if !asked.is_empty() {
            let slot = &self.shared.process.config.source.slot;
            let rows = asked.len();
            tracing::info!(event = "pending_rows_found", %slot, rows, "rows are pending again; \
                publishing them again");
            self.leave(
                self.shared.process.config.shutdown.timeout,
                Ok(Ended::Asked(asked)),
            );
        }
    }

    /// `found` says whether the row of an event that was delivered a while ago is in its table;
    /// none where the role may not look.
    fn looked_for_row(&mut self, found: Option<bool>, outbox: usize) {
        let Some(of) = self.shared.process.config.outboxes.get(outbox) else {
            return;
        };
        if self.rows_persist.found(outbox, found) {
            self.session.stream_only(of);
        } else if found == Some(true) {
            self.session.rows_stay(of);
        }
    }

    fn measured(&mut self, measured: &WalPosition) -> Result<()> {
        self.statistics.server_wal_end = self.statistics.server_wal_end.max(measured.wal_end);
        let received = self.session.stream.wal.received();
        if self
            .statistics
            .unsent
            .as_ref()
            .is_none_or(|unsent| unsent.end <= received)
        {
            self.statistics.unsent = Some(Unsent {
                end: measured.wal_end,
                since_us: now_us(),
            });
        }
        self.statistics.oldest.report(
            self.shared.process.telemetry,
            measured.oldest_transaction.as_ref(),
        );
        if let Some(retained) = measured.retained_bytes() {
            self.judge_retained(retained);
        }
        self.judge_synchronous(&measured.synchronous)?;
        if let Some(restart_lsn) = measured.slot.as_ref().and_then(|slot| slot.restart_lsn) {
            self.shared
                .process
                .telemetry
                .metrics
                .slot_restart_lsn
                .set(restart_lsn);
        }
        // Whether the row of an event that was delivered a while ago is in its table.
        let outboxes = &self.shared.process.config.outboxes;
        let newest = self.pipeline.begun.newest().filter(|row| {
            outboxes
                .get(row.outbox)
                .is_some_and(|of| of.source.table().is_some() && !of.upkeep.delete)
        });
        if let Some(row) = self.rows_persist.due(newest)
            && let Some(of) = outboxes.get(row.outbox)
        {
            self.jobs.begin_kept(&self.session, of, &row);
        }
        Ok(())
    }

    /// Takes in messages that were read before the connection failed: the server may have sent the
    /// reason.
    fn last_read(&mut self, error: Error) -> Error {
        loop {
            match self.take_in() {
                Err(better) => return better,
                Ok(()) if self.session.stream.has_more => {}
                Ok(()) => return error,
            }
        }
    }

    fn judge_retained(&mut self, retained: u64) {
        let (reason, news) = self.retention.judge(retained);
        if let Some(news) = news {
            let metrics = &self.shared.process.telemetry.metrics;
            tracing::warn!(event = "retained_wal_grown",
                slot = %self.shared.process.config.source.slot,
                oldest_transaction_pid = metrics.oldest_transaction_pid.get(),
                oldest_transaction_seconds = metrics.oldest_transaction_seconds.get(),
                fix = HELD_BACK, "{news}");
        }
        let health = &self.shared.process.telemetry.health;
        let Some(reason) = reason else {
            return health.withdraw("over_budget");
        };
        health.tell(reason);
        if self.shared.leaving.is_none()
            && self.session.may_give_up
            && self.pipeline.knows_published()
        {
            self.leave(Duration::ZERO, Ok(Ended::OverBudget));
        }
    }

    /// Says whether commits of all sessions wait for this relay.
    /// Errors: as [`Pipeline::set_synchronous`].
    fn judge_synchronous(&mut self, found: &Synchronous) -> Result<()> {
        let is_synchronous = found.counts_relay();
        let health = &self.shared.process.telemetry.health;
        if is_synchronous {
            health.tell(NotReady::SynchronousStandby(found.remedy()));
        } else {
            health.withdraw("synchronous_standby");
        }
        if is_synchronous == self.pipeline.is_synchronous() {
            return Ok(());
        }
        let is_set = self.set_synchronous(is_synchronous);
        let slot = &self.shared.process.config.source.slot;
        if is_synchronous {
            let error = found.fault(slot);
            let state = found.state.as_deref().unwrap_or_default();
            let fix = found.remedy().replace('\n', " ");
            tracing::error!(event = "synchronous_standby", %slot, %error, fix, state,
                "commits wait for this relay");
            self.shared.process.telemetry.failed(&error);
        } else {
            tracing::info!(event = "synchronous_standby_ended", %slot, "commits wait for this \
                relay no longer");
        }
        is_set
    }

    /// Errors: as [`Pipeline::set_synchronous`].
    fn set_synchronous(&mut self, is_synchronous: bool) -> Result<()> {
        self.session.stream.wal.set_synchronous(is_synchronous);
        let metrics = &self.shared.process.telemetry.metrics;
        metrics.synchronous_standby.set(i64::from(is_synchronous));
        self.pipeline.set_synchronous(is_synchronous)
    }

    /// Whether a look at the catalogs can tell anything, and so whether keepalives may still be
    /// stored.
    fn may_look(&self) -> bool {
        !self.shared.control.is_terminated() && !self.catalog_unsound
    }

    /// Ends intake where `error` halts. Earlier events are acked, stored and confirmed before the
    /// relay stops (P3). Errors: `error` itself, where it heals or where there is nothing to wait
    /// for.
    fn halt(&mut self, error: Error) -> Result<()> {
        if !error.kind().halts() {
            return Err(error);
        }
        if self.shared.leaving.is_none() && !self.pipeline.publisher.is_drained() {
            tracing::error!(event = "halting", %error, "stopping: waiting for acks of earlier \
                                                        events");
        }
        let timeout = self.shared.process.config.shutdown.timeout;
        // The bus refuses the client for a while already, and acks little more.
        let acks_little = error.kind() == Kind::BusRefused;
        let grace = if acks_little {
            timeout.min(DRAIN_TIMEOUT)
        } else {
            timeout
        };
        self.leave(grace, Err(error));
        Ok(())
    }

    fn leave(&mut self, grace: Duration, with: Result<Ended>) {
        self.shared.leave(&mut self.pipeline.publisher, grace, with);
    }

    fn report(&mut self, now: Instant) {
        let pipeline = &mut *self.pipeline;
        let statistics = &mut self.statistics;
        let metrics = &self.shared.process.telemetry.metrics;
        let ignored = pipeline.assembler.ignored();
        let before = std::mem::replace(&mut statistics.ignored, ignored);
        for (operation, now, before) in [
            (Other::Insert, ignored.inserts, before.inserts),
            (Other::Update, ignored.updates, before.updates),
            (Other::Delete, ignored.deletes, before.deletes),
            (Other::Truncate, ignored.truncates, before.truncates),
            (Other::LogicalMessage, ignored.messages, before.messages),
        ] {
            metrics.ignored(operation, now.saturating_sub(before));
        }
        let covered = ignored.covered.saturating_sub(before.covered);
        metrics.covered_events.inc_by(covered);
        if covered > 0 && !std::mem::replace(&mut statistics.is_covered_logged, true) {
            let position = self.session.start.record.stored.position;
            tracing::info!(event = "events_covered", slot = %self.shared.process.config.source.slot,
                %position,
                "the slot sends events from before the stored position, which counts them as \
                 delivered: they are not published");
        }
        let received = self.session.stream.wal.received();
        metrics.received_lsn.set(received);
        metrics.server_wal_end_lsn.set(statistics.server_wal_end);
        metrics
            .stored_lsn
            .set(pipeline.confirm.stored_position().end_lsn);
        if !statistics.confirmed.is_zero() {
            metrics.confirmed_lsn.set(statistics.confirmed);
        }
        let confirmable = pipeline.confirmable();
        let confirmed = std::mem::replace(&mut statistics.confirmable, confirmable) < confirmable;
        let unsent = statistics
            .unsent
            .as_ref()
            .filter(|unsent| unsent.end > received);
        let streamed = Streamed {
            confirmed,
            sent: std::mem::replace(&mut statistics.sent_before, statistics.sent)
                != statistics.sent,
            unsent_since_us: unsent.map(|unsent| unsent.since_us),
        };
        self.shared.report(&mut pipeline.publisher, streamed, now);
    }
}

/// A store that failed with its producer says less than the failure of the record that ended the
/// producer.
async fn why_not_stored(publisher: &mut Publisher<AnySink>, error: Error) -> Error {
    let until = Instant::now() + LAST_WORDS;
    loop {
        if tokio::time::timeout_at(until, publisher.receive_deliveries())
            .await
            .is_err()
        {
            return error;
        }
        if let Err(better) = publisher.delivered() {
            return better;
        }
    }
}
