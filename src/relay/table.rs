//! Work on the table: what a slot does not have is caught up with before it is streamed, or the
//! table is polled.
//!
//! [`TableRead`] of the core says which step is next, and what is stored before it. Which rows are
//! read is in [`walrelay_core::catch_up`]. Here are the queries, the slot, and the waits.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::config::{Config, Mode};
use crate::poll::select::{Selection, count, rows};
use crate::poll::{Began, Reader, all_table_facts};
use crate::postgres::fault::{self, While};
use crate::postgres::quote::{quote_ident, quote_literal};
use crate::postgres::replication::{NewSlot, WalSession};
use crate::relay::jobs::LOOK_INTERVAL;
use crate::relay::recovery::{can_poll, fits};
use crate::relay::session::Lease;
use crate::relay::setup::setup_of;
use crate::relay::shared_loop::{OldestTransaction, Process};
use crate::relay::stop::{Stop, StopSignal};
use crate::relay::table_loop::{OutboxTable, Query, TableLoop};
use crate::sink::{AnySink, BusSink as _};
use crate::source::control::{Control, OldTransaction};
use crate::source::preflight::{self, Facts};
use crate::source::watch::Fingerprint;
use crate::telemetry::Telemetry;
use crate::upkeep::Marker;
use crate::upkeep::parked::none_left_behind;
use walrelay_core::catch_up::{Rows, Which};
use walrelay_core::clock::now_us;
use walrelay_core::error::{Error, Kind, NextCommand, Result};
use walrelay_core::event::{RowId, Via};
use walrelay_core::failpoint;
use walrelay_core::parked::ParkedRef;
use walrelay_core::position::{Lsn, Position};
use walrelay_core::published_versions::PollScan;
use walrelay_core::publisher::Publisher;
use walrelay_core::publisher::quarantine::Quarantine;
use walrelay_core::readiness::{Side, ToDo};
use walrelay_core::recovery::{RecoveryPlan, TableTask};
use walrelay_core::sessions::Ended;
use walrelay_core::snapshot::Snapshot;
use walrelay_core::table_read::{HandOver, Poll, TableRead, TableStep};

const WAITS: &str = include_str!("../../sql/waits.sql");

/// Rows between two places a crashed relay can go on from.
const CHECKPOINT_ROWS: u64 = 100;
/// How often the transactions of others are looked at.
const MEASURE_INTERVAL: Duration = Duration::from_secs(5);
/// Empty scans until the poller calls the table idle.
const IDLE_AFTER: u32 = 20;
/// How often metrics and the log say which transactions the creation of the slot waits for.
const SLOT_MEASURE_INTERVAL: Duration = Duration::from_secs(1);
const SLOT_LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Does what `lease` was taken for, without rows that are known to be `delivered`. Gives the sink
/// back where the producer is still good, and says whether anything was stored.
pub(super) async fn run(
    lease: Lease,
    sink: AnySink,
    delivered: Vec<RowId>,
    quarantine: &mut Quarantine,
    process: Process<'_>,
) -> (Option<AnySink>, bool, Result<Ended>) {
    let Process {
        config,
        telemetry,
        watchdog,
        stop,
    } = process.clone();
    let Opened {
        marker,
        waiting,
        reader,
        tables,
    } = match watchdog.throughout(open(config, &lease)).await {
        Ok(opened) => opened,
        Err(error) => return (Some(sink), false, Err(error)),
    };
    let mut publisher = match publisher_for(&lease, sink, quarantine, config) {
        Ok(publisher) => publisher,
        Err(error) => return (None, false, Err(error)),
    };
    publisher.judge.parking.begin(waiting);
    let mut found = std::mem::take(&mut lease.store.known.left.lock().found);
    if !matches!(lease.start.task, TableTask::Poll(_)) {
        telemetry.connected(Side::Postgres, true);
    }
    telemetry.metrics.reads_table.set(1);
    let Lease {
        control,
        store,
        start,
        notified,
        facts,
        ..
    } = lease;
    // Another process may have read the table since.
    found.remembers_from = None;
    let is_first = start.stored.position == Position::default();
    let delivered = delivered.into_iter().collect();
    let read = TableRead::new(publisher, start, delivered, found, CHECKPOINT_ROWS);
    let mut reading = TableLoop::new(read, store, marker, &control, process);
    reading.shared.refused_writes.gives_way = reading.read.task.gives_way();
    let mut work = Work {
        reading,
        reader,
        tables,
        control,
        notified,
        facts,
        config,
        telemetry,
        stop,
    };
    let done = Box::pin(watchdog.throughout(work.run(is_first))).await;
    Box::pin(work.finish(done, quarantine)).await
}

/// The publisher of this work on the table.
fn publisher_for(
    lease: &Lease,
    sink: AnySink,
    quarantine: &mut Quarantine,
    config: &Config,
) -> Result<Publisher<AnySink>> {
    let mut publisher = Publisher::new(&setup_of(config), Position::default(), sink)?;
    publisher.judge.quarantine = quarantine.take_over();
    let server = &lease.start.stored.server;
    publisher.set_origin(&server.system_identifier, server.timeline);
    let write_backs = std::mem::take(&mut lease.store.known.left.lock().write_backs);
    publisher.write_backs = write_backs.at_table();
    publisher.begin_look();
    Ok(publisher)
}

/// The sessions that read the tables and write to their rows.
struct Opened<'c> {
    marker: Option<Arc<Marker>>,
    waiting: Vec<ParkedRef>,
    reader: Reader,
    tables: Vec<OutboxTable<'c>>,
}

async fn open<'c>(config: &'c Config, lease: &Lease) -> Result<Opened<'c>> {
    let source = &config.source;
    let reader = Reader::connect(
        &source.database,
        &format!("walrelay/{}/reader", source.slot),
    )
    .await?;
    let mut tables = Vec::new();
    let of_tables = config
        .outboxes
        .iter()
        .enumerate()
        .filter(|(_, outbox)| outbox.source.table().is_some());
    for (facts, (number, outbox)) in all_table_facts(reader.client(), &config.outboxes)
        .await?
        .into_iter()
        .zip(of_tables)
    {
        fits(&facts, outbox, &lease.start.task, config)?;
        if config.delivery.transactions().is_some() && facts.xid_column.is_none() {
            tracing::warn!(event = "xid_column_missing", slot = %source.slot, table = %facts.name,
                "rows do not tell their transaction: rows that are read again after a crash may be \
                 published twice: alter table {} add column xid xid8 not null \
                 default pg_current_xact_id()",
                facts.name);
        }
        tables.push(OutboxTable {
            number,
            outbox,
            facts,
        });
    }
    // Behind the tables, so that a setting Postgres does not take is named.
    let marker = Marker::of(config, &lease.database).await?;
    none_left_behind(reader.client(), config).await?;
    // The order in which they are read, whatever the configuration's is next time.
    tables.sort_by_key(|table| table.facts.oid);
    let waiting = match &marker {
        Some(marker) => marker.waiting().await?,
        None => Vec::new(),
    };
    Ok(Opened {
        marker: marker.map(Arc::new),
        waiting,
        reader,
        tables,
    })
}

struct Work<'a> {
    reading: TableLoop<'a>,
    reader: Reader,
    tables: Vec<OutboxTable<'a>>,
    control: Control,
    /// A notification says that there are new rows.
    notified: Arc<Notify>,
    facts: Facts,
    config: &'a Config,
    telemetry: &'a Telemetry,
    stop: StopSignal,
}

impl Work<'_> {
    /// The result of [`run`], where the task ended as `done` says.
    async fn finish(
        mut self,
        done: Result<Ended>,
        quarantine: &mut Quarantine,
    ) -> (Option<AnySink>, bool, Result<Ended>) {
        let watchdog = self.reading.shared.process.watchdog;
        // After an error the lease may be gone, and retries would come behind newer events.
        if done.is_err()
            || watchdog
                .throughout(self.reading.finish_retries())
                .await
                .is_err()
        {
            self.reading.shared.retrying.abandon().await;
        }
        self.reading.report(Instant::now());
        self.reading.leave_behind(done.is_err());
        self.reading.count_abandoned();
        self.telemetry.metrics.reads_table.set(0);
        // In flight is only what an error left there: it counts as not delivered, and that producer
        // must not deliver it later.
        let mut read = self.reading.read;
        let clean = read.publisher.is_drained();
        let begun = read.kept.is_some();
        *quarantine = std::mem::take(&mut read.publisher.judge.quarantine);
        let sink = read.publisher.sink;
        let dead = matches!(&done, Err(error) if error.kind().ends_producer());
        if clean && !dead {
            return (Some(sink), begun, done);
        }
        sink.close().await;
        (None, begun, done)
    }

    /// Does one step of [`TableRead::next`] after another. `is_first`: no slot was streamed before.
    async fn run(&mut self, is_first: bool) -> Result<Ended> {
        let mut is_told = false;
        let may_stream = self.config.source.mode != Mode::Poll;
        let mut looks = Looks::new(HandOver::new(may_stream, self.reading.now()));
        // Whether the reader has the slot's own snapshot.
        let mut is_made = false;
        loop {
            let now = self.reading.now();
            let step = self.reading.read.next(now)?;
            if step != TableStep::WriteBack && !std::mem::replace(&mut is_told, true) {
                let task = &self.reading.read.task;
                log_task(task, is_first, &self.facts, self.config);
            }
            let ended = match step {
                TableStep::WriteBack => self.reading.write_left().await?,
                TableStep::Store => self.reading.save().await.map(|()| None)?,
                TableStep::Finish(until) => self.finish_begun(&until).await?,
                TableStep::MakeSlot => {
                    is_made = true;
                    Box::pin(self.make_slot()).await?
                }
                TableStep::CatchUp(until) => self.catch_up(&until, is_made).await?,
                TableStep::BeginPoll => self.begin_poll(&mut looks).await?,
                TableStep::Poll(poll) => self.poll(&poll, &mut looks).await?,
                TableStep::Again(asked) => Some(self.again(&asked).await?),
                TableStep::End => Some(Ended::Again),
            };
            if let Some(ended) = ended {
                return Ok(ended);
            }
        }
    }

    /// Makes the slot. Gives how the session ends, where it does.
    async fn make_slot(&mut self) -> Result<Option<Ended>> {
        failpoint::reached("intended");
        let tables = self.tables.iter().map(|table| (&table.facts, table.outbox));
        let can_be_polled = can_poll(tables, self.config);
        let (wal, made) = match self.create_slot(can_be_polled).await? {
            SlotCreation::Slot(wal, made) => (wal, made),
            SlotCreation::Stopped => return Ok(Some(Ended::Stopped)),
            SlotCreation::Held(waits) => {
                let why = format!("a slot would have to wait for {waits}");
                return Ok(Some(Ended::Held(why)));
            }
        };
        failpoint::reached("slot-made");
        let snapshot = begin(&self.reader, &self.tables, Some(&made.snapshot))
            .await?
            .snapshot;
        drop(wal);
        let tables: Vec<_> = self.tables.iter().map(|table| &table.facts).collect();
        if let Some(rewritten) = self.reader.rewritten(&tables).await? {
            let cause = format!(
                "table {} was rewritten while the slot was created; creating it again",
                rewritten.name
            );
            return Err(Error::new(Kind::PostgresUnreachable, cause));
        }
        let begins = made.consistent_point;
        self.reading.read.slot_made(begins, snapshot);
        self.reading.save().await?;
        tracing::info!(event = "slot_created", slot = %self.config.source.slot,
            %begins, "the slot is made");
        Ok(None)
    }

    /// Finishes an interrupted read without its slot. Gives how the session ends, where it does.
    async fn finish_begun(&mut self, until: &Snapshot) -> Result<Option<Ended>> {
        let began = begin(&self.reader, &self.tables, None).await?;
        let lsn = began.wal_end;
        let read = self.read(lsn, Some(until), PollScan::Xmin, Total::Unknown);
        if read.await?.is_none() {
            return Ok(Some(Ended::Stopped));
        }
        self.is_read(lsn, Some(began.flushed)).await?;
        Ok(None)
    }

    /// Drops the slot where there is one, and creates it.
    ///
    /// It takes as long as open transactions, or ten seconds where the table `can_be_polled`. An
    /// incomplete slot goes with its session. Errors: those of the session; [`Kind::SlotActive`]
    /// where somebody streams from the slot that is there.
    async fn create_slot(&mut self, can_be_polled: bool) -> Result<SlotCreation> {
        let telemetry = self.telemetry;
        let observer = self.reader.client();
        let source = &self.config.source;
        let mut wal = WalSession::connect(&source.database, source).await?;
        if self.facts.slot.is_some() {
            match wal.drop_slot().await {
                // Somebody was faster.
                Err(error) if error.kind() == Kind::SlotUnusable => {}
                dropped => dropped?,
            }
        }
        let pid = wal.backend_pid().await?;
        let began = Instant::now();
        let began_us = now_us();
        let mut look =
            tokio::time::interval_at(began + SLOT_MEASURE_INTERVAL, SLOT_MEASURE_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tell_at = began + SLOT_LOG_INTERVAL;
        let made = {
            let making = wal.create_slot(self.facts.server.major());
            tokio::pin!(making);
            loop {
                tokio::select! {
                    biased;
                    () = self.stop.at_least(Stop::Drain) => break Err(SlotCreation::Stopped),
                    made = &mut making => break Ok(made?),
                    _ = look.tick() => {
                        let Waits { text, oldest } = waits(observer, pid).await?;
                        // Nothing is published meanwhile: that is lag, and after a while no
                        // readiness.
                        telemetry.metrics.set_oldest_unacked_commit(Some(began_us));
                        telemetry.health.report(ToDo::Events { progressed: false });
                        OldestTransaction::default().report(telemetry, Some(&oldest));
                        if HandOver::gives_way(can_be_polled, began.elapsed()) {
                            break Err(SlotCreation::Held(text));
                        }
                        if tell_at <= Instant::now() {
                            tell_at = Instant::now() + SLOT_LOG_INTERVAL;
                            tracing::warn!(event = "slot_creation_waiting", slot = %source.slot,
                                waits = text,
                                "creating the slot: Postgres waits for transactions to end");
                        }
                    }
                }
            }
        };
        telemetry.metrics.set_oldest_unacked_commit(None);
        telemetry.health.report(ToDo::Nothing);
        match made {
            Ok(made) => Ok(SlotCreation::Slot(wal, made)),
            Err(abandoned) => {
                // Its session would go on waiting, and leave a slot behind.
                let ended = observer
                    .query_typed(
                        "select pg_catalog.pg_terminate_backend($1)",
                        &[(&pid, Type::INT4)],
                    )
                    .await;
                ended
                    .map_err(|error| fault::query("giving up a slot that is being made", &error))?;
                Ok(abandoned)
            }
        }
    }

    /// Reads up to where the slot begins, after the last row that was published. Where the slot is
    /// not `made` in this session, its snapshot is gone. Gives how the session ends, where it does.
    async fn catch_up(&mut self, until: &Snapshot, is_made: bool) -> Result<Option<Ended>> {
        let slot = &self.config.source.slot;
        if !is_made {
            tracing::info!(event = "table_read_resumed", %slot, "continuing the read of the table");
            begin(&self.reader, &self.tables, None).await?;
        }
        let began = Instant::now();
        let lsn = self.reading.read.stored.position.end_lsn;
        let resumed = (!is_made).then_some(until);
        let read = self.read(lsn, resumed, PollScan::Xmin, Total::Counted);
        let Some(read) = read.await? else {
            return Ok(Some(Ended::Stopped));
        };
        self.is_read(lsn, None).await?;
        self.reading.save().await?;
        failpoint::reached("caught-up");
        let seconds = (began.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        tracing::info!(event = "table_read", %slot, rows = read, seconds, "the table is read; the \
            slot has the rest");
        Ok(None)
    }

    /// Publishes rows again that are pending again. Rows that the slot has still to deliver are not
    /// among them.
    async fn again(&mut self, asked: &[RowId]) -> Result<Ended> {
        for table @ OutboxTable {
            number,
            outbox,
            facts,
        } in &self.tables
        {
            let Some(pending) = &outbox.upkeep.pending else {
                continue;
            };
            let is_row = |row: &RowId| {
                let values = outbox.key_columns().zip(row.values());
                let values = values.map(|(column, value)| {
                    Ok(format!(
                        "{} = {}",
                        quote_ident(column)?,
                        quote_literal(&String::from_utf8_lossy(value))?
                    ))
                });
                Ok(values.collect::<Result<Vec<_>>>()?.join(" and "))
            };
            let of_table = asked.iter().filter(|row| row.outbox == *number).map(is_row);
            let of_table = of_table.collect::<Result<Vec<_>>>()?;
            if of_table.is_empty() {
                continue;
            }
            let condition = format!("({pending}\n) and ({})", of_table.join(" or "));
            let lsn = begin(&self.reader, &self.tables, None).await?.wal_end;
            let sql = rows(facts, outbox, &Selection::of(Which::Where(&condition)))?;
            let query = Query {
                sql,
                total: None,
                table,
                scan: table.scan(lsn, Via::Replay, None)?,
            };
            if self.reading.table(&self.reader, query).await?.is_none() {
                return Ok(Ended::Stopped);
            }
            self.reader.end().await?;
        }
        tracing::info!(event = "pending_rows_published", slot = %self.config.source.slot,
            rows = asked.len(),
            "rows that were pending again are published");
        Ok(Ended::Again)
    }

    /// Waits for the time of the next poll, and takes its snapshot; or hands over, where there can
    /// be a slot. Gives how the session ends, where it does.
    async fn begin_poll(&mut self, looks: &mut Looks) -> Result<Option<Ended>> {
        if let Some(read) = looks.read.take() {
            self.reading.report(Instant::now());
            self.look_if_due(looks).await?;
            if self.can_make_slot(looks).await? {
                self.reading.read.hand_over();
                return Ok(None);
            }
            looks.empty = match read {
                0 => looks.empty.saturating_add(1),
                _ => 0,
            };
            let poll = &self.config.source.poll;
            let wait = match looks.empty > IDLE_AFTER {
                true => poll.idle_interval,
                false => poll.interval,
            };
            if self.is_stopped_within(wait).await? {
                self.reading.save().await?;
                return Ok(Some(Ended::Stopped));
            }
        }
        self.reading.retry_parked().await?;
        let now = begin(&self.reader, &self.tables, None).await?;
        let at = self.reading.now();
        let read = &mut self.reading.read;
        read.begin_poll(&now.snapshot, now.wal_end, now.flushed, at);
        Ok(None)
    }

    /// Reads rows that are new. Gives how the session ends, where it does.
    async fn poll(&mut self, poll: &Poll, looks: &mut Looks) -> Result<Option<Ended>> {
        self.telemetry.connected(Side::Postgres, true);
        if poll.scan == PollScan::Xmin {
            self.look_at_files().await?;
        }
        let resumed = poll.resumed.as_ref();
        let read = self.read(poll.lsn, resumed, poll.scan, Total::Unknown);
        let Some(read) = read.await? else {
            return Ok(Some(Ended::Stopped));
        };
        looks.read = Some(read);
        // The log was not beyond this when an earlier snapshot was taken, either.
        self.is_read(poll.lsn, Some(poll.flushed)).await?;
        if self.reading.parked_wait() {
            self.reading.save().await?;
        }
        Ok(None)
    }

    /// Whether a slot can be made by now, and would not have to wait for open transactions.
    async fn can_make_slot(&mut self, looks: &mut Looks) -> Result<bool> {
        let now = self.reading.now();
        if !looks.hand_over.is_due(now) {
            return Ok(false);
        }
        let oldest = self.control.wal_position().await?.oldest_transaction;
        let is_free = looks.hand_over.looked(oldest.map(|oldest| oldest.pid), now);
        Ok(is_free && can_have_slot(self.reader.client(), self.config).await?)
    }

    /// Looks at the catalogs and at the transactions of others, from time to time.
    async fn look_if_due(&mut self, looks: &mut Looks) -> Result<()> {
        if looks.next_catalog <= Instant::now() {
            looks.next_catalog = Instant::now() + LOOK_INTERVAL;
            let look = self.control.check_catalog(Vec::new()).await?;
            // Where inserts go to other tables, polling finds none of them (P8).
            look.now.iter().try_for_each(Fingerprint::keeps_rows)?;
        }
        if looks.measured_at.elapsed() >= MEASURE_INTERVAL {
            looks.measured_at = Instant::now();
            let measured = self.control.wal_position().await?;
            looks
                .oldest
                .report(self.telemetry, measured.oldest_transaction.as_ref());
        }
        Ok(())
    }

    /// Looks whether a table was rewritten since the last scan of `xmin`.
    async fn look_at_files(&mut self) -> Result<()> {
        let tables: Vec<_> = self.tables.iter().map(|table| &table.facts).collect();
        let files = self.reader.table_files(&tables).await?;
        if self.reading.read.published.looked_at(files) {
            let verify = NextCommand::new("verify");
            tracing::warn!(event = "table_rewritten", slot = %self.config.source.slot,
                "a table was rewritten: of rows that were copied into it just before, those whose \
                 transaction column has a published transaction are not published: `{verify}` \
                 finds them");
        }
        Ok(())
    }

    /// Waits this long, or for a notification, and reports meanwhile: silence counts as a stall.
    /// Whether the relay was told to stop.
    async fn is_stopped_within(&mut self, wait: Duration) -> Result<bool> {
        let until = Instant::now() + wait;
        loop {
            let wake = until.min(self.reading.shared.next_report);
            tokio::select! {
                biased;
                () = self.stop.at_least(Stop::Drain) => return Ok(true),
                end = &mut self.reading.shared.control => return Err(end.error().clone()),
                () = self.notified.notified() => return Ok(false),
                () = tokio::time::sleep_until(wake) => {}
            }
            if wake == until {
                return Ok(false);
            }
            self.reading.report(wake);
        }
    }

    /// The reader's transaction ends: see [`TableRead::is_read`].
    async fn is_read(&mut self, lsn: Lsn, flushed: Option<Lsn>) -> Result<()> {
        self.reader.end().await?;
        let now = self.reading.now();
        self.reading.read.is_read(lsn, flushed, now);
        Ok(())
    }

    /// Reads what is to be read of each table, and gives the number of rows; `None` where the relay
    /// was told to stop. `resumed` is the snapshot this was begun with, where that is not the
    /// transaction's own.
    async fn read(
        &mut self,
        lsn: Lsn,
        resumed: Option<&Snapshot>,
        scan: PollScan,
        total: Total,
    ) -> Result<Option<u64>> {
        let mut read = 0;
        for table @ OutboxTable { outbox, facts, .. } in &self.tables {
            let Some(catch_up) = &mut self.reading.read.stored.catch_up else {
                continue;
            };
            if facts.oid < catch_up.table_oid {
                continue;
            }
            let after = catch_up.begin_table(facts.oid, facts.ordered_by(), outbox);
            let rows_wanted = catch_up.rows.clone();
            let known = self.reading.read.stored.published.clone();
            let Some(mut which) = rows_wanted.which(known.as_ref(), outbox) else {
                continue;
            };
            if let Which::Unpublished { copies, .. } = &mut which {
                copies.take_if(|_| scan == PollScan::Column);
                if let Some(copies) = copies {
                    copies.all_from = self.reading.read.published.remembers_from;
                }
            }
            let is_by_known = matches!(which, Which::Unpublished { .. });
            let selection = Selection {
                which,
                until: resumed,
                after: after.as_ref(),
                limit: None,
            };
            let total = match total {
                Total::Counted => {
                    let sql = count(facts, outbox, &selection)?;
                    Some(tokio::select! {
                        biased;
                        () = self.stop.at_least(Stop::Drain) => return Ok(None),
                        end = &mut self.reading.shared.control => return Err(end.error().clone()),
                        counted = self.reader.count(&sql) => counted?,
                    })
                }
                Total::Unknown => None,
            };
            if let Some(total) = total {
                let slot = &self.config.source.slot;
                let table = &facts.name;
                tracing::info!(event = "reading_table", %slot, %table, rows = total, "reading the \
                    table");
            }
            let sql = rows(facts, outbox, &selection)?;
            let known = known.filter(|_| is_by_known);
            let query = Query {
                sql,
                total,
                table,
                scan: table.scan(lsn, Via::Table, known)?,
            };
            let Some(sent) = self.reading.table(&self.reader, query).await? else {
                return Ok(None);
            };
            read += sent;
        }
        Ok(Some(read))
    }
}

/// Says what the session does at the table.
fn log_task(task: &TableTask, is_first: bool, facts: &Facts, config: &Config) {
    match task {
        TableTask::MakeSlot(plan) => log_plan(plan, is_first, facts, config),
        TableTask::Poll(why) => log_poll(why, facts, config),
        TableTask::GoOn | TableTask::Again(_) => {}
    }
}

fn log_plan(plan: &RecoveryPlan, is_first: bool, facts: &Facts, config: &Config) {
    let slot = &config.source.slot;
    let cause = &plan.cause;
    let rows = description(&plan.rows);
    // The first one, or one behind a poller: nothing went wrong.
    let making = if is_first && facts.slot.is_none() {
        "making"
    } else {
        "recreating"
    };
    if is_first {
        tracing::info!(event = "slot_creation_started", %slot, cause, rows,
            "{making} the slot");
    } else {
        tracing::warn!(event = "slot_creation_started", %slot, cause, rows,
            "{making} the slot");
    }
    plan.notes
        .iter()
        .for_each(|note| tracing::warn!(event = "recovery_noted", %slot, "{note}"));
}

fn log_poll(why: &str, facts: &Facts, config: &Config) {
    let slot = &config.source.slot;
    tracing::info!(event = "polling", %slot, why, "reading the table instead of a slot");
    let tables = config.outboxes.iter();
    let tables = tables.filter_map(|outbox| outbox.source.table());
    facts.unlogged(tables).for_each(|table| {
        tracing::warn!(event = "table_unlogged", %slot,
            "table {table} is unlogged: a crash of the server empties it, and unpublished rows \
             are lost: alter table {table} set logged");
    });
    if facts.slot.is_some() {
        tracing::warn!(event = "slot_unused", %slot,
            "a slot of this name exists, and retains WAL that no relay reads: select \
             pg_drop_replication_slot('{slot}')");
    }
}

async fn begin(reader: &Reader, tables: &[OutboxTable<'_>], adopt: Option<&str>) -> Result<Began> {
    reader
        .begin(
            adopt,
            &tables.iter().map(|table| &table.facts).collect::<Vec<_>>(),
        )
        .await
}

fn description(rows: &Rows) -> String {
    match rows {
        Rows::All => "all".to_owned(),
        Rows::None => "none".to_owned(),
        Rows::Pending => "pending".to_owned(),
        Rows::Since(time) => format!("since {time}"),
        Rows::Unpublished => "those that were not published".to_owned(),
    }
}

/// Whether rows are counted, and their number is logged, before they are read.
#[derive(Clone, Copy)]
enum Total {
    Counted,
    Unknown,
}

/// The last poll, and the last looks at what is beside its rows.
struct Looks {
    /// The rows of the last poll.
    read: Option<u64>,
    /// The polls in a row that found none.
    empty: u32,
    /// When the catalogs are looked at next.
    next_catalog: Instant,
    measured_at: Instant,
    oldest: OldestTransaction,
    hand_over: HandOver,
}

impl Looks {
    fn new(hand_over: HandOver) -> Looks {
        let now = Instant::now();
        Looks {
            read: None,
            empty: 0,
            next_catalog: now,
            measured_at: now,
            oldest: OldestTransaction::default(),
            hand_over,
        }
    }
}

enum SlotCreation {
    /// The session's next command ends the exported snapshot.
    Slot(WalSession, NewSlot),
    Stopped,
    /// Postgres waits for these transactions, and the table is polled meanwhile.
    Held(String),
}

/// The open transactions that a new slot waits for.
pub(crate) struct Waits {
    /// All of them, for people.
    pub(crate) text: String,
    oldest: OldTransaction,
}

/// What the session `pid`, which makes a slot, waits for.
pub(crate) async fn waits(observer: &Client, pid: i32) -> Result<Waits> {
    let act = While::Querying("asking what the slot waits for");
    let rows = observer
        .query_typed(WAITS, &[(&pid, Type::INT4)])
        .await
        .map_err(|error| fault::sql(act, &error))?;
    let mut oldest = None;
    let told = rows.iter().map(|row| {
        let text = |column: &str| {
            row.try_get::<_, Option<String>>(column)
                .ok()
                .flatten()
                .unwrap_or_default()
        };
        let pid = row.try_get::<_, i32>("pid").unwrap_or_default();
        let open_seconds = row.try_get::<_, Option<i64>>("age_seconds").ok().flatten();
        let is_prepared = !text("prepared").is_empty();
        oldest.get_or_insert(OldTransaction {
            pid: (!is_prepared).then_some(pid),
            open_seconds,
            application: Some(text("application")),
        });
        if is_prepared {
            return format!("prepared transactions {}", text("prepared"));
        }
        let age = open_seconds.map_or("for an unknown time".to_owned(), |age| {
            format!("for {age} s")
        });
        format!(
            "pid {pid} ({} as {}), open {age}",
            text("application"),
            text("role")
        )
    });
    let text = told.collect::<Vec<_>>().join("; ");
    Ok(Waits {
        text,
        oldest: oldest.unwrap_or_default(),
    })
}

/// Whether the server could serve a slot by now, and there is a publication for it.
async fn can_have_slot(client: &tokio_postgres::Client, config: &Config) -> Result<bool> {
    let server = preflight::server(client).await?;
    let sql = "select pg_catalog.count(*) from pg_catalog.pg_publication where pubname = $1";
    let act = While::Querying("looking for the publication");
    let row = client
        .query_typed(sql, &[(&config.source.publication, Type::TEXT)])
        .await;
    let row = row.map_err(|error| fault::sql(act, &error))?;
    let is_published = row
        .first()
        .and_then(|row| row.try_get::<_, i64>(0).ok())
        .is_some_and(|count| count > 0);
    Ok(is_published && preflight::judge_server(&server).is_ok())
}
