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
use crate::event::Via;
use crate::failpoint;
use crate::ledger::trail::{Pair, Published};
use crate::poll::select::{Selection, count, rows};
use crate::poll::{Reader, TableFacts, Which};
use crate::position::{Lsn, Position};
use crate::postgres::quote::{quote_ident, quote_literal};
use crate::postgres::replication::WalSession;
use crate::relay::fitness::{can_have_slot, fits};
use crate::relay::lease::Lease;
use crate::relay::outlet::{Outlet, RowId, Setup};
use crate::relay::poison::Poison;
use crate::relay::pump::Ended;
use crate::relay::reading::{Read, Reading};
use crate::relay::recovery::{Plan, says_for_itself, which};
use crate::relay::report::tell_oldest;
use crate::relay::slot::make_slot;
use crate::relay::stop::{Stop, StopSignal};
use crate::relay::waiting::{lease_lost, stood_still};
use crate::sink::kafka::KafkaSink;
use crate::snapshot::Snapshot;
use crate::source::control::Control;
use crate::state::{CatchUp, Rows};
use crate::telemetry::{Side, Telemetry};
use crate::upkeep::Marker;

/// What is to be done.
pub(super) enum Task {
    /// Make the slot, and read these rows first.
    MakeSlot(Plan),
    /// Go on with rows that were begun with.
    GoOn,
    /// Publish these rows again.
    Again(Vec<RowId>),
    /// Poll.
    Poll {
        /// Why, in a few words.
        why: String,
        /// Whether the slot that is there is dropped first.
        drops_slot: bool,
    },
}

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
    sink: KafkaSink,
    (delivered, poison): (Vec<RowId>, &mut Poison),
    (config, telemetry, stop): (&Config, &Telemetry, StopSignal),
) -> (Option<KafkaSink>, bool, Result<Ended>) {
    let mut outlet = match Outlet::new(&Setup::of(config), Position::default(), sink) {
        Ok(outlet) => outlet,
        Err(error) => return (None, false, Err(error)),
    };
    outlet.remember(std::mem::take(poison));
    outlet.set_origin(&lease.stored.server.system_identifier, lease.stored.server.timeline);
    let source = &config.source;
    let opened = async {
        let marker = Marker::connect(&source.database, &source.slot, &config.outboxes).await?;
        let reader = Reader::connect(&source.database, &format!("walrelay/{}/reader", source.slot)).await?;
        let mut tables = Vec::new();
        for (number, outbox) in config.outboxes.iter().enumerate().filter(|(_, outbox)| outbox.source.table().is_some())
        {
            let facts = TableFacts::read(reader.client(), outbox).await?;
            fits(&facts, outbox, &lease.task, config)?;
            tables.push(OutboxTable { number, facts });
        }
        // The order in which they are read, whatever the configuration's is next time.
        tables.sort_by_key(|table| table.facts.oid);
        Ok::<_, Error>((marker.map(Arc::new), reader, tables))
    };
    let (marker, reader, tables) = match opened.await {
        Ok(opened) => opened,
        Err(error) => {
            *poison = outlet.take_poison();
            return (Some(outlet.into_sink()), false, Err(error));
        }
    };
    telemetry.connected(Side::Postgres, true);
    telemetry.metrics.reads_table.set(1);
    let Lease { control, store, stored, task, notified, facts } = lease;
    let delivered = delivered.into_iter().collect();
    let reading = Reading::new(outlet, store, stored, (marker, delivered), (config, telemetry, stop.clone(), &control));
    let mut work = Work { reading, reader, tables, config, telemetry, stop, major: facts.server.major() };
    let done = match task {
        Task::MakeSlot(plan) => Box::pin(work.make_slot(plan, facts.slot.is_some())).await,
        Task::GoOn => Box::pin(work.go_on()).await,
        Task::Again(asked) => Box::pin(work.again(&asked)).await,
        Task::Poll { why, drops_slot } => {
            let is_there = facts.slot.is_some();
            Box::pin(work.poll(&why, (is_there, is_there && drops_slot), &control, notified)).await
        }
    };
    work.reading.tell(Instant::now());
    telemetry.metrics.reads_table.set(0);
    // In flight is only what an error left there: it counts as not delivered, and that producer must not deliver it later.
    let (clean, begun) = (work.reading.outlet.is_drained(), work.reading.has_saved());
    *poison = work.reading.outlet.take_poison();
    let sink = work.reading.outlet.into_sink();
    let dead = matches!(&done, Err(error) if error.kind() == Kind::KafkaUnreachable);
    if clean && !dead {
        return (Some(sink), begun, done);
    }
    sink.close().await;
    (None, begun, done)
}

struct Work<'a> {
    reading: Reading<'a>,
    reader: Reader,
    tables: Vec<OutboxTable>,
    config: &'a Config,
    telemetry: &'a Telemetry,
    stop: StopSignal,
    major: u32,
}

impl Work<'_> {
    /// Makes the slot, and catches up with what is before it.
    async fn make_slot(&mut self, plan: Plan, is_there: bool) -> Result<Ended> {
        let slot = &self.config.source.slot;
        tracing::warn!(%slot, cause = plan.cause, rows = named(&plan.rows), "making the slot anew");
        plan.notes.iter().for_each(|note| tracing::warn!(%slot, "{note}"));
        let mut plan = plan;
        let begun = self.reading.stored.catch_up.as_ref().and_then(|catch_up| catch_up.until.clone());
        if let Some(until) = begun.filter(|_| plan.finishes) {
            let (_, lsn) = self.reader.begin(None).await?;
            self.reading.stored.published = plan.published.take();
            if self.read(lsn, Some(&until), false).await?.is_none() {
                return Ok(Ended::Stopped);
            }
            self.reader.end().await?;
            let floor = self.floor(&until);
            (plan.rows, plan.published) = (Rows::Unpublished, Some(published(until, lsn, floor)));
        }
        let stored = &mut self.reading.stored;
        // Where it stood means nothing to the slot that is to come.
        stored.position = Position::default();
        stored.published = plan.published;
        stored.catch_up = Some(CatchUp::new(plan.rows, None));
        self.reading.save().await?;
        failpoint::reached("intended");
        let made = make_slot(self.config, self.major, is_there, self.reader.client(), &mut self.stop).await?;
        let Some((wal, made)) = made else { return Ok(Ended::Stopped) };
        failpoint::reached("slot-made");
        let (snapshot, _) = self.reader.begin(Some(&made.snapshot)).await?;
        drop(wal);
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
        tracing::info!(slot = %self.config.source.slot, "going on with the rows of the table");
        self.reader.begin(None).await?;
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
        self.reading.stored.published = Some(published(until, lsn, floor));
        self.reading.save().await?;
        failpoint::reached("caught-up");
        let (slot, seconds) = (&self.config.source.slot, began.elapsed().as_secs_f64());
        tracing::info!(%slot, rows = read, seconds = format!("{seconds:.1}"), "caught up with the table; the slot has the rest");
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
            let ids = asked.iter().filter(|(outbox, _)| outbox == number).map(|(_, id)| String::from_utf8_lossy(id));
            let ids = ids.map(|id| quote_literal(&id)).collect::<Result<Vec<_>>>()?;
            if ids.is_empty() {
                continue;
            }
            let condition = format!("({pending}\n) and {} in ({})", quote_ident(&outbox.id)?, ids.join(", "));
            let (_, lsn) = self.reader.begin(None).await?;
            let sql = rows(facts, outbox, &Selection::of(Which::Where(&condition)))?;
            let read = self.reading.table((&self.reader, &sql, None), facts, (*number, lsn, Via::Replay)).await?;
            if read == Read::Stopped {
                return Ok(Ended::Stopped);
            }
            self.reader.end().await?;
        }
        tracing::info!(slot = %self.config.source.slot, rows = asked.len(), "published again what was pending again");
        Ok(Ended::Again)
    }

    /// Polls until told to stop, or until there can be a slot.
    async fn poll(
        &mut self,
        why: &str,
        (is_there, drops_slot): (bool, bool),
        control: &Control,
        notified: Arc<Notify>,
    ) -> Result<Ended> {
        let (slot, source) = (&self.config.source.slot, &self.config.source);
        tracing::info!(%slot, why, "reading the table instead of a slot");
        if is_there && !drops_slot {
            tracing::warn!(%slot, "there is a slot of this name, which keeps log for nobody: select pg_drop_replication_slot('{slot}')");
        }
        if drops_slot {
            // From here on what is stored is all that tells what was published.
            self.reading.save().await?;
            WalSession::connect(&source.database, source).await?.drop_slot().await?;
            tracing::warn!(%slot, "the slot is dropped; it is made anew once the table is caught up with");
        }
        let mut long_told = None;
        let mut measured_at = Instant::now();
        let (mut empty, mut stored_at) = (0_u32, Instant::now());
        let (mut looked_at, mut held_by) = (Instant::now(), None);
        loop {
            let (now, lsn) = self.reader.begin(None).await?;
            let resumed = self.reading.stored.catch_up.as_ref().and_then(|catch_up| catch_up.until.clone());
            if resumed.is_none() {
                // Where it is the first time, what was configured for that.
                let rows = self.reading.stored.catch_up.take().map_or(Rows::Unpublished, |catch_up| catch_up.rows);
                let until = Some(now.clone());
                self.reading.stored.catch_up = Some(CatchUp::new(rows, until));
            }
            let Some(read) = self.read(lsn, resumed.as_ref(), false).await? else { return Ok(Ended::Stopped) };
            self.reader.end().await?;
            let until = resumed.unwrap_or(now);
            let floor = self.floor(&until);
            self.reading.stored.catch_up = None;
            // The log was not beyond this when an earlier snapshot was taken, either.
            self.reading.stored.published = Some(published(until, lsn, floor));
            if read > 0 || stored_at.elapsed() >= IDLE_STORE {
                stored_at = Instant::now();
                self.reading.save().await?;
            }
            self.reading.tell(Instant::now());
            if measured_at.elapsed() >= MEASURE_INTERVAL {
                measured_at = Instant::now();
                let measured = control.wal_position().await?;
                tell_oldest(self.telemetry, measured.oldest_transaction.as_ref(), &mut long_told);
            }
            empty = if read > 0 { 0 } else { empty.saturating_add(1) };
            let wait = if empty > IDLE_AFTER { source.poll.idle_interval } else { source.poll.interval };
            if source.mode != Mode::Poll && looked_at.elapsed() >= SLOT_INTERVAL {
                looked_at = Instant::now();
                let oldest = control.wal_position().await?.oldest_transaction.map(|oldest| oldest.pid);
                // Making a slot waits for whoever is under way, and nothing is published meanwhile.
                let waits = oldest.is_some_and(|pid| pid.is_none() || held_by == Some(pid));
                held_by = oldest;
                if !waits && can_have_slot(self.reader.client(), self.config).await? {
                    self.reading.save().await?;
                    return Ok(Ended::Again);
                }
            }
            // What the slot delivered is read once at most; whoever asks for it again means it.
            self.reading.forget_delivered();
            let paused_at = Instant::now();
            tokio::select! {
                biased;
                () = self.stop.at_least(Stop::Drain) => {
                    self.reading.save().await?;
                    return Ok(Ended::Stopped);
                }
                end = self.reading.lease_end() => return Err(lease_lost(end)),
                () = notified.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
            if paused_at.elapsed() > wait + source.wal_sender_timeout {
                return Err(stood_still());
            }
            self.reading.awake();
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
            let decides = says_for_itself(outbox);
            let order = facts.order.as_ref().map(|order| order.sql.clone());
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
                        end = self.reading.lease_end() => return Err(lease_lost(end)),
                        counted = self.reader.count(&sql) => counted?,
                    })
                }
                false => None,
            };
            if let Some(total) = total {
                tracing::info!(slot = %self.config.source.slot, table = %facts.name, rows = total, "reading the table");
            }
            let (sql, before) = (rows(facts, outbox, &selection)?, self.reading.outlet.counts().assembled);
            let place = (*number, lsn, Via::Table);
            match self.reading.table((&self.reader, &sql, total), facts, place).await? {
                Read::All => read += self.reading.outlet.counts().assembled - before,
                Read::Stopped => return Ok(None),
            }
        }
        Ok(Some(read))
    }
}

/// Everything `snapshot` sees is published, but for what `floor` sees; the log was at `lsn` after it was taken.
fn published(snapshot: Snapshot, lsn: Lsn, floor: Option<Snapshot>) -> Published {
    Published { pair: Pair { snapshot, lsn }, also: Vec::new(), floor, earlier: Vec::new() }
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
