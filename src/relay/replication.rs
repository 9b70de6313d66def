//! The loop of one session: everything that can happen comes in as an [`Input`], one at a time.
//!
//! What is waited for, most urgent first, and why in this order:
//!
//! 1. a stop: nothing else matters more;
//! 2. the clock: status updates are never late, whatever else is going on (P5);
//! 3. deliveries: they make room, so they come before what takes it;
//! 4. a store, a look at the catalog, a measurement, or a try of events that wait, that has come to its end;
//! 5. the SQL session: it hears of a shutdown of Postgres first (P7);
//! 6. what is to be told of Kafka;
//! 7. the socket: always for writing, for reading only while there is room (P4).

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, Kind, Result};
use crate::event::RowId;
use crate::failpoint;
use crate::ledger::confirm::Due;
use crate::position::{Lsn, Position};
use crate::relay::checks::{Checks, Verdict};
use crate::relay::delivered_before::Tail;
use crate::relay::jobs::{Done, Jobs};
use crate::relay::pipeline::{Pipeline, Taken};
use crate::relay::report::Report;
use crate::relay::retention::Known;
use crate::relay::retrying::{RetryReport, Retrying};
use crate::relay::session::Session;
use crate::relay::stop::Stop;
use crate::relay::store::AnyStore;
use crate::relay::stream_reader::{Readiness, StreamReader};
use crate::relay::watch::{ControlWatch, KafkaWatch, Process};
use crate::sink::AnySink;
use crate::source::catalog::{Fingerprint, compare, notice};
use crate::source::control::{ControlEnd, PendingRow, WalPosition};
use crate::source::{Io, Status, WalMessage, judge_notice};
use crate::telemetry::Side;

/// How long a shutdown of Postgres is held up for acks: it ends within a second or two of the last (P7).
const SERVER_SHUTDOWN_GRACE: Duration = Duration::from_millis(1_500);
/// How long the last status may take to reach the server.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a finished producer has to say of which record it died.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How soon a record is offered again to a full sink if no delivery comes first.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Messages taken in before everything else gets its turn: some 200 kB, a millisecond's work.
const MESSAGES_PER_TURN: usize = 512;

/// How a session ended well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// The relay was told to stop, and did what it could.
    Stopped,
    /// Postgres shuts down; it will be back.
    ServerShutDown,
    /// What was to be done is done, and what comes next is of another kind.
    Again,
    /// These rows are to be published again.
    Asked(Vec<RowId>),
    /// The slot kept more log than it may, and is to be given up.
    OverBudget,
    /// Somebody holds up the making of the slot, for this long reason: the table is polled meanwhile.
    Held(String),
}

/// What happened.
enum Input {
    Stop,
    Clock,
    Deliveries,
    Job(Box<Done>),
    /// Events that waited were tried.
    Retried(RetryReport),
    Control(ControlEnd),
    /// Kafka answers, or does not; an error where nothing is to be expected of the producer any more.
    Kafka(Result<bool>),
    Socket(Result<Io>),
    /// There is nothing more to be read just now.
    Dry,
}

/// Why the loop is on its way out, and until when it waits for acks.
struct Leaving {
    until: Instant,
    with: Result<Ended>,
}

/// Relays through `session` until it, the producer or the relay ends.
///
/// # Errors
/// Why the session ended. The pipeline stays usable for the next one unless the error is the producer's.
pub(super) async fn run(
    pipeline: &mut Pipeline<AnySink>,
    session: Session,
    known: &Known,
    epoch: Instant,
    process: Process<'_>,
) -> Result<Ended> {
    let (now, Process { config, telemetry, watchdog, .. }) = (Instant::now(), process.clone());
    let mut this = ReplicationLoop {
        report: Report::new(pipeline),
        leaving: None,
        stop_heard: false,
        jobs: Jobs::new(now),
        retrying: Retrying::new(config, known, Some(watchdog.beside())),
        kafka: KafkaWatch::new(&pipeline.publisher.sink, telemetry),
        control: ControlWatch::new(&session.control),
        checks: Checks::new(config),
        pipeline,
        session,
        epoch,
        process,
    };
    telemetry.metrics.dropped_events.inc_by(this.session.marker.as_ref().map_or(0, |marker| marker.take_dropped()));
    let ended = this.run().await;
    match &ended {
        // The slot is ours as long as the stream is not ended.
        Ok(how) if *how != Ended::ServerShutDown && this.process.stop.asked() < Stop::Now => {
            this.retrying.finish().await
        }
        Ok(_) | Err(_) => this.retrying.give_up().await,
    }
    this.retrying.count(&telemetry.metrics);
    this.report.tell(this.pipeline, this.session.stream.wal.received(), telemetry, Instant::now());
    this.pipeline.publisher.forget_unread();
    let (confirmed, at_once) = (this.pipeline.confirmable(), this.process.stop.asked() == Stop::Now);
    let stream = this.session.stream.wal;
    let deadline = Instant::now() + if at_once { Duration::ZERO } else { FINISH_TIMEOUT };
    let last = Status { received: stream.received(), confirmed, reply_requested: false };
    if let Err(error) = stream.finish(last, deadline).await {
        tracing::debug!(%error, "the last status update may not have reached the server");
    }
    failpoint::reached("confirmed");
    ended
}

struct ReplicationLoop<'a> {
    pipeline: &'a mut Pipeline<AnySink>,
    session: Session,
    process: Process<'a>,
    epoch: Instant,
    report: Report,
    leaving: Option<Leaving>,
    stop_heard: bool,
    jobs: Jobs,
    retrying: Retrying,
    kafka: KafkaWatch,
    control: ControlWatch,
    checks: Checks,
}

impl ReplicationLoop<'_> {
    async fn run(&mut self) -> Result<Ended> {
        loop {
            let gathers = self.session.stream.gathers(self.reads());
            if !gathers && let Err(error) = self.take_in() {
                self.halt(error)?;
            }
            let received = self.pipeline.publisher.ledger.received().end_lsn;
            if let Some((_, error)) = self.session.vanished.take_if(|(until, _)| *until <= received) {
                self.halt(error)?;
            }
            let now = Instant::now();
            let rest = self.session.stream.rests_until(now, self.pipeline.publisher.counts().assembled);
            self.pipeline.look(now - self.epoch, self.session.stream.has_more || gathers || rest.is_some());
            self.begin_jobs(now);
            let feedback = self.tell_server(now)?;
            if self.report.next <= now {
                self.report.tell(self.pipeline, self.session.stream.wal.received(), self.process.telemetry, now);
            }
            let left_over = self.has_left_over();
            if let Some(leaving) = self.leaving.take_if(|leaving| leaving.until <= now || !left_over) {
                return leaving.with;
            }
            if self.session.stream.is_busy(rest.is_some()) {
                // Nothing in this loop may have to wait for anything, and everybody else shares the thread.
                tokio::task::yield_now().await;
            }
            let input = self.next_input(self.wake_at(now, feedback), rest, gathers).await;
            self.process.watchdog.beat()?;
            if let Input::Deliveries = input {
                // On failure the producer is finished, and nothing that waits for it would come to an end.
                self.pipeline.publisher.delivered()?;
            } else if let Err(error) = self.handle(input).await {
                self.halt(error)?;
            }
        }
    }

    /// Takes in what was read, as far as there is room (P4).
    fn take_in(&mut self) -> Result<()> {
        let StreamReader { wal, feedback, has_more, noticed, .. } = &mut self.session.stream;
        // Also where intake has ended: nothing of what is left is for the next turn.
        *has_more = false;
        self.pipeline.publisher.retry_pending()?;
        if self.leaving.is_some() {
            return Ok(());
        }
        for _ in 0..MESSAGES_PER_TURN {
            if !self.pipeline.publisher.has_room() {
                return Ok(());
            }
            let Some(message) = wal.next()? else { return Ok(()) };
            failpoint::reached("received");
            self.report.received_messages += 1;
            match message {
                WalMessage::Data { wal_start, wal_end, body, .. } => {
                    *noticed = None;
                    self.report.server_wal_end = self.report.server_wal_end.max(wal_end);
                    if self.pipeline.data(wal_start, body)? == Taken::Relation {
                        self.jobs.ask_look();
                    }
                }
                WalMessage::Keepalive { wal_end, reply_requested } => {
                    self.report.keepalives += 1;
                    self.report.server_wal_end = self.report.server_wal_end.max(wal_end);
                    self.pipeline.keepalive(wal_end);
                    if reply_requested {
                        feedback.reply_requested();
                    }
                }
                WalMessage::Notice(notice) if noticed.as_ref() == Some(&notice) => {}
                WalMessage::Notice(notice) => {
                    judge_notice(&notice, &self.process.config.source)?;
                    *noticed = Some(notice);
                }
                WalMessage::ParameterStatus { name, value } => tracing::debug!(name, value, "a setting changed"),
                WalMessage::CopyDone => {
                    return Err(Error::new(Kind::PostgresUnreachable, "Postgres ended the stream"));
                }
            }
        }
        *has_more = true;
        Ok(())
    }

    /// Begins a store or a look at the catalog where one is due and none is under way.
    fn begin_jobs(&mut self, now: Instant) {
        let since = now - self.epoch;
        let hurry = self.leaving.is_some();
        match self.pipeline.due(since, hurry) {
            Due::Nothing => {}
            Due::Progress(position) => {
                self.pipeline.store_begun(since);
                self.begin_store(position);
            }
            Due::Idle(position) if !self.jobs.is_looking() && self.may_look() => {
                self.pipeline.store_begun(since);
                self.process.telemetry.metrics.catalog_checks.inc();
                self.jobs.begin_look(&self.session, Some(position), now);
            }
            Due::Idle(_) => {}
        }
        let delivered = self.pipeline.publisher.ledger.delivered();
        if let Some(marker) = &self.session.marker
            && let Some(batch) = self.pipeline.publisher.write_backs.begin(usize::MAX, delivered)
        {
            self.jobs.begin_write_back(marker, batch);
        }
        if self.leaving.is_none() && !self.pipeline.publisher.write_backs.is_refused() {
            self.retrying.begin_due(self.pipeline.publisher.parking.count(), || self.pipeline.publisher.census(), now);
        }
        if self.checks.requeued.is_some() && self.may_look() && self.leaving.is_none() {
            let every = self.process.config.source.poll.pending_interval.duration();
            self.jobs.begin_watch(&self.session, self.pipeline.publisher.completed(), every, now);
        }
        self.jobs.begin_tail(self.process.config, || self.pipeline.publisher.before.as_ref()?.unread());
        if self.may_look() && self.pipeline.trail.wants_pair() {
            self.jobs.begin_pair(&self.session, self.pipeline.publisher.counts().acked, now);
        }
        if self.may_look() && self.jobs.begin_due(&self.session, now) {
            self.process.telemetry.metrics.catalog_checks.inc();
        }
    }

    /// Answers the server where that is due, and says when to look again.
    ///
    /// # Errors
    /// The server fell silent (P5).
    fn tell_server(&mut self, now: Instant) -> Result<Instant> {
        let (reads, confirmed) = (self.reads(), self.pipeline.confirmable());
        if let Some(until) = self.session.stream.answer(now, confirmed, reads)? {
            return Ok(until);
        }
        self.report.status_updates += 1;
        self.report.told = confirmed;
        Ok(now)
    }

    /// Whether more may be read (P4).
    fn reads(&self) -> bool {
        self.leaving.is_none() && self.pipeline.publisher.has_room()
    }

    /// Waits for whatever comes first, the end of a `rest` included; the order is in the module's documentation. While what
    /// was read is gathered, that there is no more of it is news, too.
    async fn next_input(&mut self, wake: Instant, rest: Option<Instant>, gathers: bool) -> Input {
        let room = self.reads();
        let Readiness { reads, has_more, delivers } = self.session.stream.prepare(room, rest.is_some());
        let next_stop = if self.stop_heard { Stop::Now } else { Stop::Drain };
        tokio::select! {
            biased;
            () = self.process.stop.at_least(next_stop) => Input::Stop,
            () = tokio::time::sleep_until(wake) => Input::Clock,
            () = self.session.stream.alarm.at(rest.unwrap_or(wake)), if rest.is_some() => Input::Clock,
            () = self.pipeline.publisher.receive_deliveries(), if delivers => Input::Deliveries,
            done = self.jobs.next() => Input::Job(Box::new(done)),
            tried = self.retrying.next() => Input::Retried(tried),
            end = self.control.ended() => Input::Control(end),
            answers = self.kafka.changed() => Input::Kafka(answers),
            io = self.session.stream.wal.ready_io(reads) => Input::Socket(io),
            () = std::future::ready(()), if has_more => Input::Clock,
            () = std::future::ready(()), if gathers && rest.is_none() => Input::Dry,
        }
    }

    /// When to look at the clock again: `feedback` says for itself.
    fn wake_at(&self, now: Instant, feedback: Instant) -> Instant {
        // What is overdue and waits for something else than the clock must not spin it.
        let soon = now + RETRY_INTERVAL;
        let store = self.pipeline.wake_at().map(|since| (self.epoch + since).max(soon));
        let retry = self.pipeline.publisher.is_pending().then_some(soon);
        let leave = self.leaving.as_ref().map(|leaving| leaving.until);
        let due = feedback.min(self.report.next).min(self.jobs.wake_at().max(soon));
        [store, retry, leave].into_iter().flatten().fold(due, Instant::min)
    }

    async fn handle(&mut self, input: Input) -> Result<()> {
        match input {
            Input::Stop => {
                self.process.telemetry.health.stopping();
                let at_once = std::mem::replace(&mut self.stop_heard, true) || self.process.stop.asked() == Stop::Now;
                let grace = if at_once { Duration::ZERO } else { self.process.config.process.shutdown_timeout };
                self.leave(grace, Ok(Ended::Stopped));
                Ok(())
            }
            Input::Clock | Input::Deliveries => Ok(()),
            Input::Dry => {
                self.session.stream.is_dry();
                Ok(())
            }
            Input::Job(done) => self.job_done(*done).await,
            Input::Retried(tried) => {
                self.retrying.count(&self.process.telemetry.metrics);
                self.pipeline.publisher.parking.retried(&tried, &self.process.config.source.slot);
                Ok(())
            }
            Input::Control(end) => self.control_ended(end),
            Input::Kafka(answers) => {
                self.process.telemetry.connected(Side::Kafka, answers?);
                Ok(())
            }
            Input::Socket(result) => {
                let io = match result {
                    Ok(io) => io,
                    Err(error) => return Err(self.last_read(error)),
                };
                self.report.received_bytes += io.received_bytes as u64;
                self.session.stream.was_read(io, self.pipeline.publisher.counts().assembled);
                Ok(())
            }
        }
    }

    async fn job_done(&mut self, done: Done) -> Result<()> {
        match done {
            Done::Stored(store, position, result) => self.stored(store, position, result).await?,
            Done::Looked(result, then_store) => self.looked_at_catalog(result, then_store)?,
            Done::Pending(Ok((rows, lsn)), settled) => self.looked_for_pending(rows, lsn, &settled),
            // A table that is read through each time takes too long, and must not hold up the stream.
            Done::Pending(Err(error), _) => {
                if let Some(requeued) = &mut self.checks.requeued {
                    requeued.warn(&self.process.config.source.slot, &error);
                }
                self.jobs.put_off_watch(Instant::now());
            }
            Done::Kept(found, outbox) => self.looked_for_row(found?, outbox),
            Done::WrittenBack(Ok(())) => {
                self.pipeline.publisher.write_backs.finish();
                failpoint::reached("marked");
            }
            Done::WrittenBack(Err(error)) => {
                let write_backs = &mut self.pipeline.publisher.write_backs;
                // Where it halts, nothing is marked any more, and nothing that waits for a mark is waited for.
                if error.kind().halts() {
                    write_backs.refuse()
                } else {
                    write_backs.abandon()
                }
                return Err(error);
            }
            Done::Paired(pair) => {
                let (snapshot, lsn) = pair?;
                self.jobs.paired(self.pipeline.publisher.counts().acked);
                self.pipeline.trail.took(snapshot, lsn);
            }
            Done::Tail(topic, tail, result) => self.tail_read(&topic, tail, result),
            Done::Measured(result) => self.measured(&result?),
        }
        Ok(())
    }

    async fn stored(&mut self, store: AnyStore, position: Position, result: Result<()>) -> Result<()> {
        let took = store.took;
        self.session.store = Some(store);
        if let Err(error) = result {
            let error = Box::pin(self.why_not_stored(error)).await;
            if error.kind().halts() {
                // Nothing more can be stored, so there is nothing to wait for.
                self.leave(Duration::ZERO, Err(error));
                return Ok(());
            }
            return Err(error);
        }
        self.process.telemetry.metrics.positions_stored.inc();
        failpoint::reached("stored");
        if let Some(events) = self.pipeline.stored(position) {
            self.process.telemetry.metrics.transaction(events, took);
        }
        Ok(())
    }

    /// `then_store` is what is to be stored where the outbox is published as it was.
    fn looked_at_catalog(&mut self, result: Result<Vec<Fingerprint>>, then_store: Option<Position>) -> Result<()> {
        let judged = result.and_then(|now| {
            for (before, now) in self.session.fingerprints.iter_mut().zip(now) {
                compare(before, &now)?;
                if let Some(altered) = notice(before, &now) {
                    tracing::warn!(slot = %self.process.config.source.slot, "{altered}");
                }
            }
            Ok(())
        });
        self.checks.catalog_unsound |= judged.is_err();
        // Where events came meanwhile, they are committed with a position behind them.
        if then_store.is_some() && (judged.is_err() || self.pipeline.publisher.transaction.is_open()) {
            self.pipeline.store_abandoned();
        } else if let Some(position) = then_store {
            self.begin_store(position);
        }
        judged
    }

    fn begin_store(&mut self, position: Position) {
        self.pipeline.publisher.transaction.commit_begun();
        let published = self.pipeline.trail.published(&position).cloned();
        self.jobs.begin_store(&mut self.session, position, published);
    }

    fn looked_for_pending(&mut self, rows: Vec<PendingRow>, lsn: Lsn, settled: &Position) {
        let Some(requeued) = &mut self.checks.requeued else { return };
        let row_id = |(outbox, key): PendingRow| RowId::new(outbox, key.iter().map(String::as_bytes));
        let mut asked = requeued.looked(rows.into_iter().map(row_id).collect(), lsn, settled);
        // Parked events are pending as well.
        asked.retain(|row| !self.pipeline.publisher.parking.holds_row(row));
        if !asked.is_empty() {
            let rows = asked.len();
            tracing::info!(slot = %self.process.config.source.slot, rows, "rows are pending again; publishing them again");
            self.leave(self.process.config.process.shutdown_timeout, Ok(Ended::Asked(asked)));
        }
    }

    /// The row of an event that was delivered a while ago is in its table, or is not, or nobody may know.
    fn looked_for_row(&mut self, found: Option<bool>, outbox: usize) {
        let Some(of) = self.process.config.outboxes.get(outbox) else { return };
        if self.checks.rows_persist.found(outbox, found) {
            self.session.stream_only(of);
        } else if found == Some(true) {
            self.session.rows_stay(of);
        }
    }

    fn tail_read(&mut self, topic: &str, tail: Option<Tail>, result: Result<()>) {
        let (slot, records) = (&self.process.config.source.slot, tail.as_ref().map_or(0, Tail::count));
        tracing::debug!(%slot, topic, records, "looked for what was published before");
        if let Err(error) = &result {
            let fix = error.what_to_do();
            tracing::warn!(
                %slot, topic, %error, fix,
                "the topic cannot be read: events that were published before a crash may be published again"
            );
        }
        match (&mut self.pipeline.publisher.before, tail) {
            (Some(before), Some(tail)) => before.read(tail, result.is_err()),
            (Some(before), None) => before.unreadable(topic),
            (None, _) => {}
        }
    }

    fn measured(&mut self, measured: &WalPosition) {
        self.report.server_wal_end = self.report.server_wal_end.max(measured.wal_end);
        if let Some(retained) = measured.retained_bytes() {
            self.judge_retained(retained);
        }
        self.report.oldest.tell(self.process.telemetry, measured.oldest_transaction.as_ref());
        if let Some(restart_lsn) = measured.slot.as_ref().and_then(|slot| slot.restart_lsn) {
            self.process.telemetry.metrics.slot_restart_lsn.set(restart_lsn);
        }
        self.begin_kept();
    }

    /// What was read before the connection failed is taken in as far as there is room: the server may have said why.
    fn last_read(&mut self, error: Error) -> Error {
        loop {
            match self.take_in() {
                Err(better) => return better,
                Ok(()) if self.session.stream.has_more => {}
                Ok(()) => return error,
            }
        }
    }

    /// The slot keeps this much log.
    fn judge_retained(&mut self, retained: u64) {
        let (verdict, news) = self.checks.retention.judge(retained);
        if let Some(news) = news {
            tracing::warn!(slot = %self.process.config.source.slot, "{news}");
        }
        self.process.telemetry.health.over_budget(match verdict {
            Verdict::Over { retained, max } => Some((retained, max)),
            Verdict::Within | Verdict::GiveUp => None,
        });
        // Without that, nobody would know what was published.
        let stored = self.pipeline.stored_position();
        if verdict == Verdict::GiveUp
            && self.leaving.is_none()
            && self.session.may_give_up
            && self.pipeline.trail.published(&stored).is_some()
        {
            self.leave(Duration::ZERO, Ok(Ended::OverBudget));
        }
    }

    /// Looks whether the row of an event that was delivered a while ago is in its table.
    fn begin_kept(&mut self) {
        let newest = self.pipeline.begun.newest().filter(|row| {
            let of = self.process.config.outboxes.get(row.outbox);
            of.is_some_and(|of| of.source.table().is_some() && !of.upkeep.delete)
        });
        let Some(row) = self.checks.rows_persist.due(newest) else { return };
        let Some(outbox) = self.process.config.outboxes.get(row.outbox) else { return };
        let values = row.values().map(|value| String::from_utf8(value.to_vec()));
        let key = outbox.key_columns().cloned().zip(values).map(|(column, value)| Some((column, value.ok()?)));
        if let Some(table) = outbox.source.table().cloned()
            && let Some(key) = key.collect()
        {
            self.jobs.begin_kept(&self.session, row.outbox, table, key);
        }
    }

    /// A store that failed with its producer says less than the record that ended the producer, which comes at once.
    async fn why_not_stored(&mut self, error: Error) -> Error {
        let until = Instant::now() + LAST_WORDS;
        loop {
            if tokio::time::timeout_at(until, self.pipeline.publisher.receive_deliveries()).await.is_err() {
                return error;
            }
            if let Err(better) = self.pipeline.publisher.delivered() {
                return better;
            }
        }
    }

    /// The SQL session is gone: Postgres shuts down, or this connection broke.
    fn control_ended(&mut self, end: ControlEnd) -> Result<()> {
        match end {
            ControlEnd::ServerShuttingDown => {
                tracing::info!("Postgres is shutting down: waiting for acks, then closing the stream");
                self.leave(SERVER_SHUTDOWN_GRACE, Ok(Ended::ServerShutDown));
                Ok(())
            }
            ControlEnd::Lost(error) => Err(error),
        }
    }

    /// Whether something received still has to be acked, stored or confirmed.
    fn has_left_over(&self) -> bool {
        let only_keepalives = matches!(self.pipeline.due(self.epoch.elapsed(), true), Due::Idle(_));
        !(self.pipeline.is_settled()
            || self.pipeline.publisher.write_backs.is_refused() && self.pipeline.is_stored_as_far_as_written_back()
            || !self.may_look() && self.pipeline.publisher.is_drained() && only_keepalives)
    }

    /// Whether a look at the catalogs can tell anything, and so whether keepalives may still be stored.
    fn may_look(&self) -> bool {
        !self.control.is_over() && !self.checks.catalog_unsound
    }

    /// A person has to act. What came before is sound: it is acked, stored and confirmed before the relay stops (P3).
    ///
    /// # Errors
    /// `error` itself, where it heals or where there is nothing to wait for.
    fn halt(&mut self, error: Error) -> Result<()> {
        if !error.kind().halts() {
            return Err(error);
        }
        if self.leaving.is_none() && !self.pipeline.publisher.is_drained() {
            tracing::error!(%error, "stopping: waiting for acks of earlier events");
        }
        self.leave(self.process.config.process.shutdown_timeout, Err(error));
        Ok(())
    }

    /// Intake ends; what is in flight gets until then. A reason that is there already stays.
    fn leave(&mut self, grace: Duration, with: Result<Ended>) {
        self.pipeline.publisher.forget_unread();
        let until = Instant::now() + grace;
        match &mut self.leaving {
            Some(leaving) => leaving.until = leaving.until.min(until),
            None => self.leaving = Some(Leaving { until, with }),
        }
    }
}
