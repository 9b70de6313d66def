//! The relay as a whole: sessions one after another, the producer, stand-by, the table, back-off
//! and the end.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_postgres::Client;

use crate::config::{Config, StoreKind};
use crate::postgres::replication::WalSession;
use crate::postgres::sql::SqlSession;
use crate::relay::producer::RelayProducer;
use crate::relay::session::{Lease, Opened, Session};
use crate::relay::shared_loop::{Process, report_counts};
use crate::relay::stall_watchdog::StallWatchdog;
use crate::relay::stop::{Stop, StopSignal};
use crate::relay::store::{Knowledge, Known};
use crate::relay::{drain, outage, replication, table};
use crate::sink::{AnySink, BusSink as _};
use crate::source::lease::{Holder, holder};
use crate::source::row_key;
use crate::telemetry::Telemetry;
use crate::upkeep::parked::none_left_behind;
use walrelay_core::config::{OnError, OutboxConfig, ReadTails, SlotName};
use walrelay_core::readiness::{NotReady, Side};

use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::left::Left;
use walrelay_core::printable::counted;

use walrelay_core::publisher::delivered_before::DeliveredBefore;
use walrelay_core::publisher::pipeline::Pipeline;
use walrelay_core::sessions::{Ended, Next, ProducerAfter, Retry, Sessions, TableReason};
use walrelay_core::turn::{AtWork, Look, StandBy};

/// How long the bus has to answer before the slot is taken: a relay that cannot deliver leaves it
/// to one that can.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Relay {
    sessions: Sessions,
    /// How often a batch was too large, and none of its records.
    in_vain: u64,
    pub(super) producer: RelayProducer,
    /// Warnings that were logged: each once, not at each try.
    warned: HashSet<String>,
    pub(super) known: Known,
    /// Whether the last session confirmed to Postgres all that may be confirmed.
    is_all_confirmed: bool,
    /// Of the last stream of this process.
    walsender_pid: Option<i32>,
    config: Config,
    pub(super) telemetry: Telemetry,
}

impl Relay {
    pub(super) fn new(config: Config, telemetry: Telemetry) -> Result<Relay> {
        // The keys of the standard library's maps are other ones in each process.
        let relay = RandomState::new().hash_one(std::process::id());
        let known = Arc::new(Knowledge {
            left: Mutex::new(Left::of(format!("{relay:016x}"))),
            ..Knowledge::default()
        });
        Ok(Relay {
            sessions: Sessions::default(),
            in_vain: 0,
            producer: RelayProducer::new(
                StallWatchdog::start(config.source.wal_sender_timeout)?,
                Arc::clone(&known),
            ),
            warned: HashSet::new(),
            is_all_confirmed: true,
            walsender_pid: None,
            known,
            config,
            telemetry,
        })
    }

    pub(super) async fn run(&mut self, stop: &mut StopSignal) -> Result<()> {
        let mut next = Next::Open;
        loop {
            next = match next {
                Next::Open => {
                    let ended = Box::pin(self.one_session(stop)).await;
                    self.after(ended, stop)?
                }
                Next::DropSlot => {
                    self.drop_slot().await;
                    Next::Open
                }
                Next::StandBy(error) => {
                    tracing::debug!(%error, "standing by");
                    let stood_by = Box::pin(self.stand_by(stop)).await;
                    self.after(stood_by.map(|()| Ended::Again), stop)?
                }
                Next::TryAgain(error) => self.try_again(error, stop).await?,
                Next::Leave => return self.leave(stop).await,
                Next::LeaveWithoutAcks(error) => {
                    let acked = self.producer.is_drained();
                    if !acked {
                        drain::tell_failed(&error);
                    }
                    return self.left(acked);
                }
            };
        }
    }

    /// What follows the end of a session or of a stand-by. Errors: what ends the relay.
    fn after(&mut self, ended: Result<Ended>, stop: &StopSignal) -> Result<Next> {
        let is_stopping = stop.asked() != Stop::No;
        let error = match ended {
            Ok(how) => return Ok(self.sessions.ended(how, is_stopping)),
            Err(error) => error,
        };
        let in_vain = self.producer.newest_quarantine().in_vain;
        let is_batch = std::mem::replace(&mut self.in_vain, in_vain) < in_vain;
        let error = outage::with_smaller_batches(error, is_batch, &mut self.config);
        self.sessions
            .interrupted(error, is_stopping)
            .map_err(|error| outage::halting(error, &self.config))
    }

    /// Deals with the producer of a session that failed, and waits. Errors: what ends the relay.
    async fn try_again(&mut self, error: Error, stop: &mut StopSignal) -> Result<Next> {
        let error = until_stopped(stop, error.clone(), AnySink::judged(error, &self.config)).await;
        let retry = self.failed(&error)?;
        match retry.producer {
            ProducerAfter::Keep => {}
            ProducerAfter::Replace => self.producer.replace(&self.config).await,
            ProducerAfter::End => self.retire().await,
        }
        tokio::select! {
            biased;
            () = stop.at_least(Stop::Drain) => Ok(Next::Leave),
            () = tokio::time::sleep(retry.wait) => Ok(Next::Open),
        }
    }

    /// How to try again after `error`, which is told. Errors: `error`, where the relay stops
    /// instead.
    fn failed(&mut self, error: &Error) -> Result<Retry> {
        outage::count(error, &self.telemetry);
        let retry = self.sessions.failed(
            error,
            self.producer.newest_quarantine(),
            &self.config.delivery,
            &self.config.state.topic,
            Instant::now().into_std(),
            fastrand::f64(),
        )?;
        outage::tell(error, &retry, &self.config, &self.telemetry);
        Ok(retry)
    }

    /// From connecting to Postgres until the connection, the producer or the relay ends.
    async fn one_session(&mut self, stop: &mut StopSignal) -> Result<Ended> {
        let is_abandoned = self.producer.watchdog.take_abandoned();
        if is_abandoned {
            self.known.left.lock().turn.doubt();
        }
        if self.is_transactional() {
            // Every session fences, and goes on from what is committed.
            self.retire().await;
        } else if is_abandoned {
            self.producer.replace(&self.config).await;
        }
        if self.producer.handle().is_none() && !self.is_transactional() {
            self.producer.begin(AnySink::connect(&self.config)?);
        }
        tokio::select! {
            () = stop.at_least(Stop::Drain) => return Ok(Ended::Stopped),
            named = self.name_rows() => named?,
        }
        let opened = tokio::select! {
            () = stop.at_least(Stop::Drain) => return Ok(Ended::Stopped),
            opened = self.open() => opened?,
        };
        match opened {
            Opened::Stream(session) => Box::pin(self.stream(*session, stop)).await,
            Opened::Table(why) => Box::pin(self.at_table(why, stop)).await,
        }
    }

    /// Checks the bus and Postgres, and begins to stream where the slot has everything.
    async fn open(&mut self) -> Result<Opened> {
        let Config {
            delivery, source, ..
        } = &self.config;
        let dead_letters = Some(delivery.dead_letter_topic.as_str())
            .filter(|_| delivery.on_error == OnError::DeadLetter);
        let needed: Vec<_> = dead_letters.into_iter().collect();
        let missing = self
            .producer
            .missing(&self.config, &needed, CHECK_TIMEOUT)
            .await?;
        let mut warn = warn_once(&mut self.warned, &source.slot);
        let bus = self.config.sink.kind.bus();
        missing
            .iter()
            .for_each(|topic| warn(bus.no_dead_letters(topic)));
        if let Some(why) = self.sessions.table_instead() {
            return Ok(Opened::Table(why));
        }
        Box::pin(Session::open(
            &self.config,
            self.producer.handle(),
            &self.known,
            &mut warn,
        ))
        .await
    }

    /// The pipeline that continues where `session` begins.
    fn enter(&mut self, session: &mut Session) -> Result<Box<Pipeline<AnySink>>> {
        if let Some(sink) = session.start.sink.take() {
            self.producer.begin(sink);
        }
        self.config.state.adopt_slot = false;
        let cluster_id = session.start.record.stored.cluster_id.clone();
        AnySink::expect_cluster(&mut self.config, cluster_id);
        let start = session.start.record.stored.position;
        let published = session.start.record.stored.published.clone();
        let mut pipeline = self.producer.enter(&self.config, start, published)?;
        pipeline.reconnected();
        let server = &session.start.record.stored.server;
        pipeline
            .publisher
            .set_origin(&server.system_identifier, server.timeline);
        pipeline.assembler.set_catalog(
            std::mem::take(&mut session.table_oids),
            std::mem::take(&mut session.base_types),
        );
        pipeline.publisher.begin_look();
        pipeline
            .publisher
            .judge
            .parking
            .begin(std::mem::take(&mut session.start.waiting));
        if self.known.left.lock().turn.take_doubt() {
            self.expect_again(&mut pipeline, session);
        }
        Ok(pipeline)
    }

    /// Relays what the slot sends until the connection, the producer or the relay ends.
    async fn stream(&mut self, mut session: Session, stop: &StopSignal) -> Result<Ended> {
        let again = self.walsender_pid.replace(session.walsender_pid).is_some();
        if again {
            self.telemetry.metrics.reconnect(Side::Postgres);
        }
        let mut pipeline = self.enter(&mut session)?;
        self.telemetry.connected(Side::Postgres, true);
        let start = session.start.record.stored.position;
        outage::streaming(self.sessions.opened().tries, again, start, &self.config);
        let stored = pipeline.confirm.stored_position();
        let began = Instant::now();
        self.producer
            .watchdog
            .guard(pipeline.publisher.sink.handle());
        let process = Process {
            config: &self.config,
            telemetry: &self.telemetry,
            watchdog: &self.producer.watchdog,
            stop: stop.clone(),
        };
        let ended = replication::run(
            &mut pipeline,
            session,
            &self.known,
            self.producer.epoch,
            process,
        )
        .await;
        let has_stored = pipeline.confirm.stored_position() != stored;
        self.sessions.stream_ended(began.elapsed(), has_stored);
        self.producer.leave(pipeline);
        // Another relay may have the slot from here on.
        self.known.stored.send_replace(None);
        self.telemetry.metrics.session_ended();
        self.telemetry.health.withdraw("over_budget");
        self.telemetry.health.withdraw("synchronous_standby");
        self.is_all_confirmed = matches!(ended, Ok(Ended::Stopped));
        ended
    }

    /// Finds what names the rows of each table. A pipeline that knew other names starts over.
    async fn name_rows(&mut self) -> Result<()> {
        let Config {
            source, delivery, ..
        } = &self.config;
        let mut outboxes = self.config.outboxes.clone();
        let session = SqlSession::connect(
            &source.database,
            &format!("walrelay/{}/row-key", source.slot),
        )
        .await?;
        row_key::find(session.client(), source, delivery, &mut outboxes).await?;
        let key = |outbox: &OutboxConfig| (outbox.columns.clone(), outbox.row_key.clone());
        let is_same = outboxes
            .iter()
            .map(key)
            .eq(self.config.outboxes.iter().map(key));
        self.config.outboxes = outboxes;
        if !is_same {
            self.producer.forget_rows(&self.config).await;
            self.sessions.names_changed();
        }
        Ok(())
    }

    /// Makes the publisher find events that an earlier process, or this one before it stood still,
    /// published and did not store.
    fn expect_again(&self, pipeline: &mut Pipeline<AnySink>, session: &Session) {
        // Events that are committed with their position do not come again.
        if self.config.delivery.read_tails == ReadTails::Never || self.is_transactional() {
            return;
        }
        let stored = &session.start.record.stored;
        let outboxes = &self.config.outboxes;
        match DeliveredBefore::new(
            outboxes,
            &stored.server,
            stored.position,
            session.start.wal_end,
        ) {
            Some(before) => pipeline.publisher.judge.before = Some(Box::new(before)),
            None => tracing::info!(event = "id_headers_missing", slot = %self.config.source.slot,
                "records have no headers that identify their event (route.id_header, \
                 route.position_header): events that \
                 were published before a crash may be published again"),
        }
    }

    // Exactly once: each session has a producer of its own.

    fn is_transactional(&self) -> bool {
        self.config.delivery.transactions().is_some()
    }

    /// Ends a session's own producer. Nothing of it counts but what is committed.
    async fn retire(&mut self) {
        if self
            .producer
            .running()
            .is_some_and(|pipeline| pipeline.publisher.transaction.is_open())
        {
            self.telemetry.metrics.given_up_transactions.inc();
        }
        self.producer.end().await;
    }

    // The table, before a slot is streamed or instead.

    /// Drops the slot, so that the server can remove its WAL. The stored position tells what was
    /// published.
    async fn drop_slot(&mut self) {
        let source = &self.config.source;
        let dropped = async {
            WalSession::connect(&source.database, source)
                .await?
                .drop_slot()
                .await
        };
        match dropped.await {
            Ok(()) => {
                tracing::warn!(event = "slot_dropped", slot = %source.slot,
                    "the slot is dropped; the relay creates it again after it has read the table");
                self.sessions.slot_dropped();
            }
            Err(error) => tracing::warn!(event = "slot_drop_failed", slot = %source.slot, %error,
                "the slot could not be dropped"),
        }
    }

    /// The lease on the table; none where the relay was told to stop.
    async fn take_lease(
        &mut self,
        why: &TableReason,
        stop: &mut StopSignal,
    ) -> Result<Option<Lease>> {
        let producer = self.producer.handle();
        let mut warn = warn_once(&mut self.warned, &self.config.source.slot);
        let lease = tokio::select! {
            () = stop.at_least(Stop::Drain) => return Ok(None),
            lease = Lease::take(&self.config, producer, why, &self.known, &mut warn) => lease,
        };
        if lease
            .as_ref()
            .is_err_and(|error| error.kind() == Kind::SlotActive)
        {
            self.sessions.lost_table();
        }
        lease.map(Some)
    }

    /// Reads the table: before a slot is streamed, or instead.
    async fn at_table(&mut self, why: TableReason, stop: &mut StopSignal) -> Result<Ended> {
        // First the lease: what a stream left in flight must not follow what another relay reads.
        let Some(mut lease) = self.take_lease(&why, stop).await? else {
            return Ok(Ended::Stopped);
        };
        // It is enough that the bus may take long.
        self.producer.watchdog.release();
        self.end_stream(stop).await?;
        if let Some(sink) = lease.sink.take() {
            self.producer.begin(sink);
        }
        let sink = self.producer.take_sink()?;
        let delivered = self.known.left.lock().tell(&mut lease.start, &why);
        AnySink::expect_cluster(&mut self.config, lease.start.stored.cluster_id.clone());
        outage::at_table(self.sessions.opened(), &self.config);
        let began = Instant::now();
        self.producer.watchdog.guard(sink.handle());
        let process = Process {
            config: &self.config,
            telemetry: &self.telemetry,
            watchdog: &self.producer.watchdog,
            stop: stop.clone(),
        };
        let quarantine = &mut self.producer.quarantine;
        let (sink, begun, ended) =
            Box::pin(table::run(lease, sink, delivered, quarantine, process)).await;
        self.producer.watchdog.release();
        match sink {
            // It takes nothing any more.
            Some(sink) if self.producer.watchdog.take_abandoned() => sink.close().await,
            Some(sink) => self.producer.begin(sink),
            None => {}
        }
        self.known.stored.send_replace(None);
        self.telemetry.metrics.session_ended();
        if begun {
            // From here on, the stored position counts.
            self.config.state.adopt_slot = false;
        }
        self.sessions.table_ended(began.elapsed(), ended.is_ok());
        self.is_all_confirmed = ended.is_ok();
        ended
    }

    /// Waits for acks of what a stream left in flight, but not if another relay was at work since.
    async fn end_stream(&mut self, stop: &mut StopSignal) -> Result<()> {
        let Some(pipeline) = self.producer.running_mut() else {
            return Ok(());
        };
        let limit = self.known.left.lock().turn.last_acks_timeout();
        let until = Instant::now() + limit;
        let before = pipeline.publisher.counts;
        let drained = drain::drain(&mut pipeline.publisher, until, stop).await;
        report_counts(&self.telemetry, pipeline.publisher.counts, before);
        if !drained? {
            let what = match limit.is_zero() {
                true => "another relay was at work; reading the table without the last acks",
                false => "acks do not come; reading the table without them",
            };
            return Err(Error::new(Kind::BusUnreachable, what));
        }
        Ok(())
    }

    // Stand-by: another relay has the slot, or its table.

    /// Waits until no relay has the slot or the table, or until told to stop. Logs each holder
    /// once.
    ///
    /// As soon as another relay is seen there, what this one has in flight is abandoned.
    async fn stand_by(&mut self, stop: &mut StopSignal) -> Result<()> {
        let source = self.config.source.clone();
        let mut waited_for: Option<Holder> = None;
        let waiting = async {
            // Some other reason than a holder must not make it spin.
            tokio::time::sleep(StandBy::wait(0.0)).await;
            let name = format!("walrelay/{}/stand-by", source.slot);
            let sql = SqlSession::connect(&source.database, &name).await?;
            none_left_behind(sql.client(), &self.config).await?;
            let began = Instant::now();
            let mut stand_by = StandBy::new(began.elapsed());
            let mut is_logged = false;
            loop {
                let found = holder(sql.client(), &source.slot).await?;
                let at_work = found.as_ref().map(|it| it.at_work(self.walsender_pid));
                let look = stand_by.look(at_work, began.elapsed());
                if look == Look::Open {
                    return Ok(());
                }
                if waited_for != found {
                    if let (Some(holder), Some(at_work)) = (&found, at_work) {
                        self.waits_for(holder, at_work).await;
                    }
                    waited_for = found;
                }
                if look == Look::Check {
                    is_logged = self.is_unfit(sql.client(), is_logged).await;
                }
                tokio::time::sleep(StandBy::wait(fastrand::f64())).await;
            }
        };
        let ended = tokio::select! {
            () = stop.at_least(Stop::Drain) => Ok(()),
            ended = waiting => ended,
        };
        if waited_for.is_some() {
            self.telemetry.standing_by(None);
        }
        ended
    }

    /// Whether a take-over would end this relay now, which is logged unless it
    /// `is_logged`.
    async fn is_unfit(&self, client: &Client, is_logged: bool) -> bool {
        let Err(error) = none_left_behind(client, &self.config).await else {
            return false;
        };
        if error.kind().halts() && !is_logged {
            let slot = &self.config.source.slot;
            let fix = error.what_to_do();
            tracing::warn!(event = "take_over_blocked", %slot, %error, fix,
                "this stand-by could not take over now: it would stop with this error");
        }
        is_logged || error.kind().halts()
    }

    async fn waits_for(&mut self, holder: &Holder, at_work: AtWork) {
        self.telemetry.standing_by(Some(holder.to_string()));
        let slot = &self.config.source.slot;
        match at_work {
            AtWork::Own => tracing::info!(event = "own_session_awaited", %slot, %holder,
                "the server still has this relay's last session, and ends it after \
                 wal_sender_timeout"),
            AtWork::Stranger => {
                holder
                    .intruder()
                    .into_iter()
                    .for_each(warn_once(&mut self.warned, slot));
            }
            AtWork::Streams | AtWork::Reads => {
                // The other relay writes what this one could not.
                self.telemetry.health.withdraw("postgres_unwritable");
                tracing::info!(event = "standing_by", %slot, %holder,
                    "standing by: another relay is at work");
            }
        }
        let gives_way = self.known.left.lock().turn.sees(at_work);
        if gives_way && self.producer.has_in_flight().await {
            tracing::warn!(
                event = "records_dropped",
                "records that the bus has not acked are dropped: the other relay publishes them"
            );
            self.producer.replace(&self.config).await;
        }
    }

    // The end of a relay that was told to stop.

    /// Ends a relay that was told to stop, and waits for acks that no session waited for, because
    /// Postgres was away.
    async fn leave(&mut self, stop: &mut StopSignal) -> Result<()> {
        let until = stop.since().unwrap_or_else(Instant::now) + self.config.shutdown.timeout;
        let acked = match self.producer.running_mut() {
            // A session that ended because of the stop has waited.
            Some(pipeline)
                if !self.is_all_confirmed
                    && !pipeline.publisher.is_drained()
                    && stop.asked() == Stop::Drain =>
            {
                self.telemetry.health.tell(NotReady::Stopping);
                let in_flight = pipeline.publisher.ledger.in_flight_events();
                tracing::info!(
                    event = "stopping_without_postgres",
                    in_flight,
                    "stopping without Postgres: waiting for acks"
                );
                drain::drain(&mut pipeline.publisher, until, stop).await?
            }
            Some(_) | None => self.producer.is_drained(),
        };
        self.left(acked)
    }

    /// The result of a stop: an error where events were left in flight.
    fn left(&self, acked: bool) -> Result<()> {
        let running = self.producer.running();
        let left = running.map_or(0, |pipeline| {
            pipeline.publisher.ledger.in_flight_events()
                + usize::from(pipeline.publisher.is_pending())
        });
        let settled = running.is_some_and(Pipeline::is_settled);
        // The slot alone remembers nothing it was not told.
        let remembered =
            self.is_all_confirmed || settled && self.config.state.store != StoreKind::Slot;
        let slot = &self.config.source.slot;
        if acked {
            if remembered {
                tracing::info!(event = "stopped", "stopped: everything received was acked");
            } else {
                tracing::info!(
                    event = "stopped",
                    "stopped: nothing is in flight; events that are not confirmed are sent again \
                     at the next start"
                );
            }
            return Ok(());
        }
        let untold = if remembered {
            ""
        } else {
            ", and not every acked event confirmed"
        };
        let events = counted(left as u64, "event");
        let cause = format!("stopped with {events} of slot {slot} not acked{untold}");
        Err(Error::new(Kind::ShutdownTimeout, cause)
            .remedy("nothing is lost: events that are not confirmed are sent at the next start"))
    }
}

/// What is `found` out about `error`; a stop does not wait for that.
async fn until_stopped(
    stop: &mut StopSignal,
    error: Error,
    found: impl Future<Output = Error>,
) -> Error {
    tokio::select! {
        biased;
        () = stop.at_least(Stop::Drain) => error,
        found = found => found,
    }
}

/// Logs each warning the first time.
fn warn_once<'a>(
    warned: &'a mut HashSet<String>,
    slot: &'a SlotName,
) -> impl FnMut(String) + Send + 'a {
    move |warning| {
        if warned.insert(warning.clone()) {
            tracing::warn!(event = "start_check_warned", %slot, "{warning}");
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
