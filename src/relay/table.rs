//! Work on the table: what a slot does not have is caught up with before it is streamed, or the table is polled.
//!
//! Catching up and polling are one thing. There is what is known to be published, and a snapshot of now; rows of
//! transactions that are in the second and not in the first are read in their order, and once they are acked the second
//! takes the place of the first. With a slot the snapshot is the one it begins with, so that the slot has the rest.
//!
//! Before anything is done that cannot be done again, what is meant is stored: whoever finds that goes on with it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::{Config, Mode};
use crate::error::{Error, Kind, Result};
use crate::event::{RowId, Via};
use crate::failpoint;
use crate::ledger::trail::{Pair, Published};
use crate::poll::select::{Selection, count, rows};
use crate::poll::{Began, Reader, TableFacts, Which, table_facts};
use crate::position::{Lsn, Position};
use crate::postgres::quote::{quote_ident, quote_literal};
use crate::relay::fitness::{can_have_slot, can_poll, fits};
use crate::relay::lease::{Lease, TableTask};
use crate::relay::publisher::{Publisher, Setup};
use crate::relay::quarantine::Quarantine;
use crate::relay::recovery::{RecoveryPlan, which};
use crate::relay::replication::Ended;
use crate::relay::report::OldestTransaction;
use crate::relay::slot::{SlotCreation, make_slot};
use crate::relay::stop::{Stop, StopSignal};
use crate::relay::table_loop::{Query, Read, TableLoop};
use crate::relay::watch::{Process, lease_lost};
use crate::sink::AnySink;
use crate::snapshot::Snapshot;
use crate::source::control::Control;
use crate::state::{CatchUp, Rows};
use crate::telemetry::{Side, Telemetry};
use crate::upkeep::Marker;
use crate::upkeep::parked::Waiting;
use crate::upkeep::parked::none_left_behind;

/// How long an idle poller may go without storing where it stands: it is nothing but a newer snapshot.
const IDLE_STORE: Duration = Duration::from_secs(10);
/// How often a poller looks whether there can be a slot by now.
const SLOT_INTERVAL: Duration = Duration::from_secs(10);
/// How often the transactions of others are looked at.
const MEASURE_INTERVAL: Duration = Duration::from_secs(5);
/// Empty looks at the table until the poller calls it idle.
const IDLE_AFTER: u32 = 20;

/// A table that is read, and which outbox it is.
struct OutboxTable {
    number: usize,
    facts: TableFacts,
}

/// Does what `lease` was taken for, without rows that are known to be `delivered`. Gives the sink back where the producer
/// is still good, and says whether anything was stored.
pub(super) async fn run(
    lease: Lease,
    sink: AnySink,
    delivered: Vec<RowId>,
    quarantine: &mut Quarantine,
    process: Process<'_>,
) -> (Option<AnySink>, bool, Result<Ended>) {
    let Process { config, telemetry, watchdog, stop } = process.clone();
    let mut publisher = match Publisher::new(&Setup::of(config), Position::default(), sink) {
        Ok(publisher) => publisher,
        Err(error) => return (None, false, Err(error)),
    };
    publisher.quarantine = quarantine.take_over();
    publisher.set_origin(&lease.stored.server.system_identifier, lease.stored.server.timeline);
    let source = &config.source;
    let Opened { marker, waiting, reader, tables } = match watchdog.throughout(open(config, &lease.task)).await {
        Ok(opened) => opened,
        Err(error) => {
            *quarantine = std::mem::take(&mut publisher.quarantine);
            return (Some(publisher.sink), false, Err(error));
        }
    };
    publisher.set_parked(waiting);
    if !matches!(lease.task, TableTask::Poll(_)) {
        telemetry.connected(Side::Postgres, true);
    }
    telemetry.metrics.reads_table.set(1);
    let Lease { control, store, stored, task, notified, facts, sink: _ } = lease;
    let delivered = delivered.into_iter().collect();
    let reading = TableLoop::new(publisher, store, stored, marker, delivered, &control, process);
    let mut work = Work { reading, reader, tables, config, telemetry, stop, major: facts.server.major() };
    let done = match task {
        TableTask::MakeSlot(plan) => Box::pin(watchdog.throughout(work.make_slot(plan, facts.slot.is_some()))).await,
        TableTask::GoOn => Box::pin(watchdog.throughout(work.go_on())).await,
        TableTask::Again(asked) => Box::pin(watchdog.throughout(work.again(&asked))).await,
        TableTask::Poll(why) => {
            let of_tables = config.outboxes.iter().filter_map(|outbox| outbox.source.table());
            facts.unlogged(of_tables).for_each(|table| {
                tracing::warn!(slot = %source.slot, "table {table} is unlogged: a crash of the server empties it, and \
                    unpublished rows are lost: alter table {table} set logged");
            });
            Box::pin(watchdog.throughout(work.poll(&why, facts.slot.is_some(), &control, notified))).await
        }
    };
    // Where it ended ill the lease may be gone, and what is tried now would come behind what is newer.
    if done.is_err() || watchdog.throughout(work.reading.finish_retrying()).await.is_err() {
        work.reading.drop_retrying();
    }
    work.reading.tell(Instant::now());
    work.reading.count_given_up();
    telemetry.metrics.reads_table.set(0);
    // In flight is only what an error left there: it counts as not delivered, and that producer must not deliver it later.
    let (clean, begun) = (work.reading.publisher.is_drained(), work.reading.has_saved());
    *quarantine = std::mem::take(&mut work.reading.publisher.quarantine);
    let sink = work.reading.publisher.sink;
    let dead = matches!(&done, Err(error) if error.kind().ends_producer());
    if clean && !dead {
        return (Some(sink), begun, done);
    }
    sink.close().await;
    (None, begun, done)
}

/// The tables, and who reads them and writes to their rows.
struct Opened {
    marker: Option<Arc<Marker>>,
    waiting: Vec<Waiting>,
    reader: Reader,
    tables: Vec<OutboxTable>,
}

async fn open(config: &Config, task: &TableTask) -> Result<Opened> {
    let source = &config.source;
    let reader = Reader::connect(&source.database, &format!("walrelay/{}/reader", source.slot)).await?;
    let mut tables = Vec::new();
    for (number, outbox) in config.outboxes.iter().enumerate().filter(|(_, outbox)| outbox.source.table().is_some()) {
        let facts = table_facts(reader.client(), outbox).await?;
        fits(&facts, outbox, task, config)?;
        if config.delivery.transactions.is_some() && facts.xid_column.is_none() {
            tracing::warn!(slot = %source.slot, table = %facts.name, "rows do not tell their transaction: rows that are \
                read again after a crash may be published twice: alter table {} add column xid xid8 not null \
                 default pg_current_xact_id()", facts.name);
        }
        tables.push(OutboxTable { number, facts });
    }
    // Behind the tables, so that a setting Postgres does not take is named.
    let marker = Marker::of(config).await?;
    none_left_behind(reader.client(), config).await?;
    // The order in which they are read, whatever the configuration's is next time.
    tables.sort_by_key(|table| table.facts.oid);
    let waiting = match &marker {
        Some(marker) => marker.waiting().await?,
        None => Vec::new(),
    };
    Ok(Opened { marker: marker.map(Arc::new), waiting, reader, tables })
}

struct Work<'a> {
    reading: TableLoop<'a>,
    reader: Reader,
    tables: Vec<OutboxTable>,
    config: &'a Config,
    telemetry: &'a Telemetry,
    stop: StopSignal,
    major: u32,
}

impl Work<'_> {
    /// Makes the slot, and catches up with what is before it.
    async fn make_slot(&mut self, plan: Box<RecoveryPlan>, is_there: bool) -> Result<Ended> {
        let slot = &self.config.source.slot;
        let (cause, rows) = (&plan.cause, named(&plan.rows));
        // The first one, or one behind a poller: nothing went wrong.
        match (self.reading.stored.position == Position::default(), is_there) {
            (true, false) => tracing::info!(%slot, cause, rows, "making the slot"),
            (true, true) => tracing::info!(%slot, cause, rows, "making the slot anew"),
            (false, _) => tracing::warn!(%slot, cause, rows, "making the slot anew"),
        }
        plan.notes.iter().for_each(|note| tracing::warn!(%slot, "{note}"));
        let mut plan = plan;
        let begun = self.reading.stored.catch_up.as_ref().and_then(|catch_up| catch_up.until.clone());
        if let Some(until) = begun.filter(|_| plan.finishes) {
            let Began { wal_end: lsn, flushed, .. } = begin(&self.reader, &self.tables, None).await?;
            self.reading.stored.published = plan.published.take();
            if self.read(lsn, Some(&until), false).await?.is_none() {
                return Ok(Ended::Stopped);
            }
            self.reader.end().await?;
            let floor = self.floor(&until);
            let before = self.reading.stored.published.as_ref();
            plan.published = Some(published(until, lsn, Some(flushed), floor, before));
            plan.rows = Rows::Unpublished;
        }
        let stored = &mut self.reading.stored;
        // Where it stood means nothing to the slot that is to come.
        stored.position = Position::default();
        stored.published = plan.published;
        stored.catch_up = Some(CatchUp::new(plan.rows, None));
        self.reading.save().await?;
        failpoint::reached("intended");
        let config = self.config;
        let tables = self.tables.iter().filter_map(|table| Some((&table.facts, config.outboxes.get(table.number)?)));
        let may_give_way = can_poll(tables, config);
        let made =
            make_slot(config, self.major, is_there, may_give_way, self.reader.client(), self.telemetry, &mut self.stop)
                .await?;
        let (wal, made) = match made {
            SlotCreation::Slot(wal, made) => (wal, made),
            SlotCreation::Stopped => return Ok(Ended::Stopped),
            SlotCreation::Held(waits) => return Ok(Ended::Held(format!("a slot would have to wait for {waits}"))),
        };
        failpoint::reached("slot-made");
        let snapshot = begin(&self.reader, &self.tables, Some(&made.snapshot)).await?.snapshot;
        drop(wal);
        let tables: Vec<_> = self.tables.iter().map(|table| &table.facts).collect();
        if let Some(rewritten) = self.reader.rewritten(&tables).await? {
            let cause = format!("table {} was rewritten while the slot was created; creating it again", rewritten.name);
            return Err(Error::new(Kind::PostgresUnreachable, cause));
        }
        self.reading.stored.position = Position::at(made.consistent_point);
        if let Some(catch_up) = &mut self.reading.stored.catch_up {
            catch_up.until = Some(snapshot.clone());
        }
        self.reading.save().await?;
        tracing::info!(%slot, begins = %made.consistent_point, "the slot is made");
        self.catch_up(snapshot, made.consistent_point, false).await
    }

    /// Goes on with catching up: the snapshot is gone, and what is behind the last row is read.
    async fn go_on(&mut self) -> Result<Ended> {
        let until = self.reading.stored.catch_up.as_ref().and_then(|catch_up| catch_up.until.clone());
        let Some(until) = until else { return Err(Error::new(Kind::Bug, "there is nothing to go on with")) };
        tracing::info!(slot = %self.config.source.slot, "continuing the read of the table");
        begin(&self.reader, &self.tables, None).await?;
        let begins = self.reading.stored.position.end_lsn;
        self.catch_up(until, begins, true).await
    }

    async fn catch_up(&mut self, until: Snapshot, lsn: Lsn, again: bool) -> Result<Ended> {
        let began = Instant::now();
        let resumed = again.then_some(&until);
        let Some(read) = self.read(lsn, resumed, true).await? else { return Ok(Ended::Stopped) };
        self.reader.end().await?;
        let floor = self.floor(&until);
        self.reading.stored.catch_up = None;
        let before = self.reading.stored.published.take();
        self.reading.stored.published = Some(published(until, lsn, None, floor, before.as_ref()));
        self.reading.save().await?;
        failpoint::reached("caught-up");
        let slot = &self.config.source.slot;
        let seconds = (began.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        tracing::info!(%slot, rows = read, seconds, "the table is read; the slot has the rest");
        Ok(Ended::Again)
    }

    /// Publishes rows again that are pending again. What the slot has still to deliver is not among them.
    async fn again(&mut self, asked: &[RowId]) -> Result<Ended> {
        for OutboxTable { number, facts } in &self.tables {
            let outbox = self.config.outboxes.get(*number);
            let Some((outbox, pending)) = outbox.and_then(|outbox| Some((outbox, outbox.upkeep.pending.as_ref()?)))
            else {
                continue;
            };
            let is_row = |row: &RowId| {
                let values = outbox.key_columns().zip(row.values());
                let values = values.map(|(column, value)| {
                    Ok(format!("{} = {}", quote_ident(column)?, quote_literal(&String::from_utf8_lossy(value))?))
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
            let query = Query { sql: &sql, total: None, facts, outbox: *number, lsn, via: Via::Replay };
            let read = self.reading.table(&self.reader, &query).await?;
            if read == Read::Stopped {
                return Ok(Ended::Stopped);
            }
            self.reader.end().await?;
        }
        tracing::info!(slot = %self.config.source.slot, rows = asked.len(), "rows that were pending again are published");
        Ok(Ended::Again)
    }

    /// Polls until told to stop, or until there can be a slot.
    async fn poll(&mut self, why: &str, is_there: bool, control: &Control, notified: Arc<Notify>) -> Result<Ended> {
        let (slot, source) = (&self.config.source.slot, &self.config.source);
        tracing::info!(%slot, why, "reading the table instead of a slot");
        if is_there {
            tracing::warn!(%slot, "a slot of this name exists, and retains WAL that no relay reads: select \
                pg_drop_replication_slot('{slot}')");
        }
        let mut oldest = OldestTransaction::default();
        let mut measured_at = Instant::now();
        let (mut empty, mut stored_at, mut is_first) = (0_u32, Instant::now(), true);
        let (mut looked_at, mut held_by) = (Instant::now(), None);
        loop {
            self.reading.retry_waiting().await;
            let Began { snapshot: now, wal_end: lsn, flushed } = begin(&self.reader, &self.tables, None).await?;
            let resumed = self.reading.stored.catch_up.as_ref().and_then(|catch_up| catch_up.until.clone());
            if resumed.is_none() {
                // Where it is the first time, what was configured for that.
                let rows = self.reading.stored.catch_up.take().map_or(Rows::Unpublished, |catch_up| catch_up.rows);
                let until = Some(now.clone());
                self.reading.stored.catch_up = Some(CatchUp::new(rows, until));
            }
            if std::mem::take(&mut is_first) {
                // What is left out now stays left out, whoever goes on.
                self.reading.save().await?;
                self.telemetry.connected(Side::Postgres, true);
            }
            let until = resumed.clone().unwrap_or(now);
            self.reading.look_up_to(&until);
            let Some(read) = self.read(lsn, resumed.as_ref(), false).await? else { return Ok(Ended::Stopped) };
            self.reader.end().await?;
            let floor = self.floor(&until);
            self.reading.stored.catch_up = None;
            // The log was not beyond this when an earlier snapshot was taken, either.
            let before = self.reading.stored.published.take();
            self.reading.stored.published = Some(published(until, lsn, Some(flushed), floor, before.as_ref()));
            if read > 0 || stored_at.elapsed() >= IDLE_STORE || self.reading.is_waited_for() {
                stored_at = Instant::now();
                self.reading.save().await?;
            }
            self.reading.looked();
            self.reading.tell(Instant::now());
            if measured_at.elapsed() >= MEASURE_INTERVAL {
                measured_at = Instant::now();
                let measured = control.wal_position().await?;
                oldest.tell(self.telemetry, measured.oldest_transaction.as_ref());
            }
            empty = if read > 0 { 0 } else { empty.saturating_add(1) };
            let idle = empty > IDLE_AFTER;
            let wait = if idle { source.poll.idle_interval.duration() } else { source.poll.interval.duration() };
            if source.mode != Mode::Poll && looked_at.elapsed() >= SLOT_INTERVAL {
                looked_at = Instant::now();
                let oldest = control.wal_position().await?.oldest_transaction.map(|oldest| oldest.pid);
                // Making a slot waits for whoever is under way, and nothing is published meanwhile. Who is there at one look
                // only does not count.
                let before = held_by.replace(oldest);
                let waits = oldest.is_some() && before.is_none_or(|before| before == oldest);
                if !waits && can_have_slot(self.reader.client(), self.config).await? {
                    self.reading.save().await?;
                    return Ok(Ended::Again);
                }
            }
            // What the slot delivered is read once at most; whoever asks for it again means it.
            self.reading.forget_delivered();
            if self.is_stopped_within(wait, &notified).await? {
                self.reading.save().await?;
                return Ok(Ended::Stopped);
            }
        }
    }

    /// Waits this long, or until there is said to be a new row. Whether the relay was told to stop.
    async fn is_stopped_within(&mut self, wait: Duration, notified: &Notify) -> Result<bool> {
        tokio::select! {
            biased;
            () = self.stop.at_least(Stop::Drain) => Ok(true),
            end = self.reading.lease.ended() => Err(lease_lost(end)),
            () = notified.notified() => Ok(false),
            () = tokio::time::sleep(wait) => Ok(false),
        }
    }

    /// What is not known to be published once everything up to `until` was read.
    fn floor(&self, until: &Snapshot) -> Option<Snapshot> {
        let stored = &self.reading.stored;
        match (stored.catch_up.as_ref().map(|catch_up| &catch_up.rows), &stored.published) {
            // All of them were asked for, and all were read.
            (Some(Rows::All), _) | (Some(Rows::Unpublished), None) => None,
            (Some(Rows::Unpublished) | None, Some(before)) => before.floor.clone(),
            // Some were left out.
            (Some(Rows::None | Rows::Pending | Rows::Since(_)) | None, _) => Some(until.clone()),
        }
    }

    /// Reads what is to be read of each table, and gives the number of rows; `None` where the relay was told to stop.
    /// `resumed` is the snapshot this was begun with, where that is not the transaction's own.
    async fn read(&mut self, lsn: Lsn, resumed: Option<&Snapshot>, counted: bool) -> Result<Option<u64>> {
        let mut read = 0;
        for OutboxTable { number, facts } in &self.tables {
            let Some(outbox) = self.config.outboxes.get(*number) else { continue };
            let Some(catch_up) = &mut self.reading.stored.catch_up else { continue };
            if facts.oid < catch_up.table_oid {
                continue;
            }
            // Rows that say for themselves whether they are pending are all behind nothing.
            let decides = outbox.upkeep.says_for_itself();
            let order = facts.ordered_by();
            let same = facts.oid == catch_up.table_oid && order == catch_up.order;
            let after = catch_up.after.take_if(|_| same && !decides);
            (catch_up.table_oid, catch_up.order, catch_up.after) = (facts.oid, order, after.clone());
            let rows_wanted = catch_up.rows.clone();
            let known = self.reading.stored.published.clone();
            let Some(which) = which(&rows_wanted, known.as_ref(), outbox) else { continue };
            let selection = Selection { which, until: resumed, after: after.as_ref(), limit: None };
            let total = match counted {
                true => {
                    let sql = count(facts, outbox, &selection)?;
                    Some(tokio::select! {
                        biased;
                        () = self.stop.at_least(Stop::Drain) => return Ok(None),
                        end = self.reading.lease.ended() => return Err(lease_lost(end)),
                        counted = self.reader.count(&sql) => counted?,
                    })
                }
                false => None,
            };
            if let Some(total) = total {
                tracing::info!(slot = %self.config.source.slot, table = %facts.name, rows = total, "reading the table");
            }
            let (sql, before) = (rows(facts, outbox, &selection)?, self.reading.publisher.counts().assembled);
            let query = Query { sql: &sql, total, facts, outbox: *number, lsn, via: Via::Table };
            match self.reading.table(&self.reader, &query).await? {
                Read::All => read += self.reading.publisher.counts().assembled - before,
                Read::Stopped => return Ok(None),
            }
        }
        Ok(Some(read))
    }
}

/// Begins a transaction that reads these tables.
async fn begin(reader: &Reader, tables: &[OutboxTable], adopt: Option<&str>) -> Result<Began> {
    reader.begin(adopt, &tables.iter().map(|table| &table.facts).collect::<Vec<_>>()).await
}

/// Everything `snapshot` sees is published, but for what `floor` sees; the log was at `lsn`, and on disk up to there, after
/// it was taken. Transactions that are known `before` to be published and that it does not see yet are so still.
fn published(
    snapshot: Snapshot,
    lsn: Lsn,
    flushed: Option<Lsn>,
    floor: Option<Snapshot>,
    before: Option<&Published>,
) -> Published {
    let also = before.into_iter().flat_map(|before| &before.also).copied().filter(|xid| !snapshot.sees(*xid)).collect();
    Published { pair: Pair { snapshot, lsn }, also, floor, flushed, earlier: Vec::new() }
}

fn named(rows: &Rows) -> String {
    match rows {
        Rows::All => "all".to_owned(),
        Rows::None => "none".to_owned(),
        Rows::Pending => "pending".to_owned(),
        Rows::Since(time) => format!("since {time}"),
        Rows::Unpublished => "those that were not published".to_owned(),
    }
}
