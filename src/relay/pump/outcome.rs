//! What follows from each [`Input`], and how the loop comes to its end.

use std::time::Duration;

use tokio::time::Instant;

use super::{Ended, Input, LAST_WORDS, Leaving, Pump, SERVER_SHUTDOWN_GRACE};
use crate::error::{Error, Result};
use crate::event::RowId;
use crate::failpoint;
use crate::ledger::confirm::Due;
use crate::relay::budget::Verdict;
use crate::relay::delivered_before::Tail;
use crate::relay::jobs::Done;
use crate::relay::report::tell_oldest;
use crate::relay::stop::Stop;
use crate::sink::Connection;
use crate::source::WalSource as _;
use crate::source::catalog::compare;
use crate::source::control::{ControlEnd, PendingRow};
use crate::telemetry::Side;

impl Pump<'_> {
    pub(super) async fn handle(&mut self, input: Input) -> Result<()> {
        match input {
            Input::Stop => {
                self.telemetry.health.stopping();
                let at_once = std::mem::replace(&mut self.stop_heard, true) || self.stop.asked() == Stop::Now;
                let grace = if at_once { Duration::ZERO } else { self.config.process.shutdown_timeout };
                self.leave(grace, Ok(Ended::Stopped));
                Ok(())
            }
            Input::Clock | Input::Deliveries => Ok(()),
            Input::Dry => {
                self.pace.dry(Instant::now(), self.session.stream.buffered_bytes());
                Ok(())
            }
            Input::Job(done) => self.job_done(*done).await,
            Input::Retried(tried) => {
                self.retrying.count(&self.telemetry.metrics);
                self.pipeline.publisher.tried(&tried);
                Ok(())
            }
            Input::Control(end) => self.control_ended(end),
            Input::Kafka(connection) => {
                self.telemetry.connected(Side::Kafka, connection == Connection::Up);
                Ok(())
            }
            Input::Unusable(error) => {
                self.unusable = Box::pin(std::future::pending());
                Err(error)
            }
            Input::Socket(result) => {
                let read = match result {
                    Ok(io) => io.received_bytes,
                    Err(error) => return Err(self.last_read(error)),
                };
                if read > 0 {
                    self.report.received_bytes += read as u64;
                    let now = Instant::now();
                    self.feedback.heard(now);
                    let buffered = self.session.stream.buffered_bytes();
                    self.pace.read(now, (read, buffered), self.pipeline.publisher.counts().assembled);
                }
                Ok(())
            }
        }
    }

    async fn job_done(&mut self, done: Done) -> Result<()> {
        match done {
            Done::Stored(store, position, result) => {
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
                self.telemetry.metrics.positions_stored.inc();
                failpoint::reached("stored");
                if let Some(events) = self.pipeline.stored(position) {
                    self.telemetry.metrics.transaction(events, took);
                }
            }
            Done::Looked(result, then_store) => {
                let judged = result.and_then(|now| {
                    let mut both = self.session.fingerprints.iter().zip(&now);
                    both.try_for_each(|(before, now)| compare(before, now))
                });
                if judged.is_err() {
                    self.catalog_unsound = true;
                    if then_store.is_some() {
                        self.pipeline.store_abandoned();
                    }
                }
                judged?;
                if then_store.is_some() && self.pipeline.publisher.has_open_transaction() {
                    // Events came meanwhile, which are committed with a position behind them.
                    self.pipeline.store_abandoned();
                } else if let Some(position) = then_store {
                    self.pipeline.publisher.commit_begun();
                    let published = self.pipeline.trail.published(&position).cloned();
                    self.jobs.begin_store(&mut self.session, position, published);
                }
            }
            Done::Pending(looked, settled) => {
                let (rows, lsn) = match looked {
                    Ok(looked) => looked,
                    // A table that is read through each time takes too long, and must not hold up the stream.
                    Err(error) => {
                        if !std::mem::replace(&mut self.watch_told, true) {
                            let slot = &self.config.source.slot;
                            tracing::warn!(%slot, %error, "pending rows cannot be looked for; an index would help");
                        }
                        self.jobs.put_off_watch(Instant::now());
                        return Ok(());
                    }
                };
                let row_id = |(outbox, key): PendingRow| RowId::new(outbox, key.iter().map(String::as_bytes));
                let rows = rows.into_iter().map(row_id).collect();
                let mut asked = self.again.looked(rows, lsn, &settled);
                // They are pending because they wait.
                asked.retain(|row| !self.pipeline.publisher.parking.holds_row(row));
                if !asked.is_empty() {
                    let rows = asked.len();
                    tracing::info!(slot = %self.config.source.slot, rows, "rows are pending again; publishing them again");
                    self.leave(self.config.process.shutdown_timeout, Ok(Ended::Asked(asked)));
                }
            }
            Done::Kept(found, outbox) => {
                let found = found?;
                if let Some(of) = self.config.outboxes.get(outbox) {
                    match self.kept.found(outbox, found) {
                        true => self.session.stream_only(of),
                        false if found == Some(true) => self.session.rows_stay(of),
                        false => {}
                    }
                }
            }
            Done::Settled(result) => {
                if let Err(error) = result {
                    self.pipeline.publisher.write_back_ended(false);
                    // Nothing is marked any more, and nothing that waits for a mark is waited for.
                    self.unmarkable = error.kind().halts();
                    return Err(error);
                }
                self.pipeline.publisher.write_back_ended(true);
                failpoint::reached("marked");
            }
            Done::Paired(pair) => {
                let (snapshot, lsn) = pair?;
                self.paired_at = self.pipeline.publisher.counts().acked;
                self.pipeline.trail.took(snapshot, lsn);
            }
            Done::Tail(topic, tail, result) => {
                let (slot, records) = (&self.config.source.slot, tail.as_ref().map_or(0, Tail::count));
                tracing::debug!(%slot, topic, records, "looked for what was published before");
                if let Err(error) = &result {
                    let fix = error.what_to_do();
                    tracing::warn!(
                        %slot, topic, %error, fix,
                        "what is in the topic cannot be read: events that were published before a crash may come again"
                    );
                }
                self.pipeline.publisher.tail_read(&topic, tail, result.is_err());
            }
            Done::Measured(result) => {
                let measured = result?;
                self.report.server_wal_end = self.report.server_wal_end.max(measured.wal_end);
                if let Some(retained) = measured.retained_bytes() {
                    self.judge_retained(retained);
                }
                tell_oldest(self.telemetry, measured.oldest_transaction.as_ref(), &mut self.long_told);
                if let Some(restart_lsn) = measured.slot.and_then(|slot| slot.restart_lsn) {
                    self.telemetry.metrics.set_slot_restart_lsn(restart_lsn);
                }
                self.begin_kept();
            }
        }
        Ok(())
    }

    /// What was read before the connection failed is taken in as far as there is room: the server may have said why.
    fn last_read(&mut self, error: Error) -> Error {
        loop {
            match self.take_in() {
                Err(better) => return better,
                Ok(()) if self.backlog => {}
                Ok(()) => return error,
            }
        }
    }

    /// The slot keeps this much log.
    fn judge_retained(&mut self, retained: u64) {
        let (verdict, news) = self.budget.judge(retained);
        if let Some(news) = news {
            tracing::warn!(slot = %self.config.source.slot, "{news}");
        }
        self.telemetry.health.over_budget(match verdict {
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
            let of = self.config.outboxes.get(row.outbox);
            of.is_some_and(|of| of.source.table().is_some() && !of.upkeep.delete)
        });
        let Some(row) = self.kept.due(newest) else { return };
        let Some(outbox) = self.config.outboxes.get(row.outbox) else { return };
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
            let deliveries = self.pipeline.publisher.next_deliveries(&mut self.deliveries);
            if tokio::time::timeout_at(until, deliveries).await.is_err() {
                return error;
            }
            if let Err(better) = self.pipeline.publisher.delivered(&mut self.deliveries) {
                return better;
            }
        }
    }

    /// The SQL session is gone: Postgres shuts down, or this connection broke.
    fn control_ended(&mut self, end: ControlEnd) -> Result<()> {
        self.control_ended = true;
        match end {
            ControlEnd::ServerShuttingDown => {
                tracing::info!("Postgres is shutting down: waiting for acks, then letting it go");
                self.leave(SERVER_SHUTDOWN_GRACE, Ok(Ended::ServerShutDown));
                Ok(())
            }
            ControlEnd::Lost(error) => Err(error),
        }
    }

    /// Whether something received still has to be acked, stored or confirmed.
    pub(super) fn has_left_over(&self) -> bool {
        let only_keepalives = matches!(self.pipeline.due(self.epoch.elapsed(), true), Due::Idle(_));
        !(self.pipeline.is_settled()
            || self.unmarkable && self.pipeline.is_stored_as_far_as_written_back()
            || !self.may_look() && self.pipeline.publisher.is_drained() && only_keepalives)
    }

    /// Whether a look at the catalogs can tell anything, and so whether keepalives may still be stored.
    pub(super) fn may_look(&self) -> bool {
        !self.control_ended && !self.catalog_unsound
    }

    /// A person has to act. What came before is sound: it is acked, stored and confirmed before the relay stops (P3).
    ///
    /// # Errors
    /// `error` itself, where it heals or where there is nothing to wait for.
    pub(super) fn halt(&mut self, error: Error) -> Result<()> {
        if !error.kind().halts() {
            return Err(error);
        }
        if self.leaving.is_none() && !self.pipeline.publisher.is_drained() {
            tracing::error!(%error, "stopping: waiting for acks of what came before");
        }
        self.leave(self.config.process.shutdown_timeout, Err(error));
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
