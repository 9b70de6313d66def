//! The loop of one scan of a table: rows are routed, enqueued, acked and written back, and progress
//! is stored.
//!
//! Beside what [`SharedLoop`] waits for, and after it: the next row, while there is room (P4).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::poll::{PolledRow, Reader, RowStream, TableFacts};
use crate::postgres::quote::quoted;
use crate::relay::drain::{DRAIN_TIMEOUT, drain};
use crate::relay::shared_loop::{
    Process, RETRY_INTERVAL, SharedInput, SharedLoop, Streamed, at_once, stop_is_due,
};
use crate::relay::stop::Stop;
use crate::relay::store::AnyStore;
use crate::sink::AnySink;
use crate::source::control::Control;
use crate::upkeep::Marker;
use walrelay_core::catch_up::Checkpoints;
use walrelay_core::clock::now_us;
use walrelay_core::config::OutboxConfig;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::event::{Fault, Place, Polled, RowId, Via};
use walrelay_core::failpoint;
use walrelay_core::ledger::trail::Published;
use walrelay_core::position::{Lsn, Position};
use walrelay_core::published_versions::{PollScan, PublishedVersions};
use walrelay_core::publisher::{Publisher, contradiction};
use walrelay_core::stored::Stored;

/// How often progress is stored: events since then come again after a crash.
const STORE_INTERVAL: Duration = Duration::from_millis(250);
const TELL_INTERVAL: Duration = Duration::from_secs(5);
/// Rows between two places a crashed relay can go on from.
const CHECKPOINT_ROWS: u64 = 100;
/// Rows that are marked or deleted in one transaction.
const WRITE_BACK_ROWS: usize = 1_000;
/// Rows taken before everything else gets its turn.
pub(crate) const ROWS_PER_TURN: usize = 256;

/// Publishes the rows of tables, one scan after another.
pub(super) struct TableLoop<'a> {
    pub(super) shared: SharedLoop<'a>,
    pub(super) publisher: Publisher<AnySink>,
    store: AnyStore,
    pub(super) stored: Stored,
    /// The value that the store is known to hold.
    pub(super) kept: Option<Stored>,
    /// Rows that the slot delivered.
    pub(super) delivered: HashSet<RowId>,
    pub(super) published: PublishedVersions,
    next_store: Instant,
}

/// A table that is read, and which outbox it is.
pub(super) struct OutboxTable<'c> {
    pub(super) number: usize,
    pub(super) outbox: &'c OutboxConfig,
    pub(super) facts: TableFacts,
}

#[derive(Clone, Copy)]
pub(super) struct Query<'q> {
    pub(super) sql: &'q str,
    /// The number of rows, where that is known.
    pub(super) total: Option<u64>,
    pub(super) table: &'q OutboxTable<'q>,
    /// The end of the log when the table is read.
    pub(super) lsn: Lsn,
    pub(super) via: Via,
    /// What is known to be published, where rows are chosen by that.
    pub(super) published: Option<&'q Published>,
}

struct Scan<'q> {
    query: Query<'q>,
    rows: RowStream,
    polled: Polled,
    /// To the ledger, all rows are one transaction: this one.
    commit_lsn: Lsn,
    ended: bool,
    /// Rows read, and those of them that were published.
    read: u64,
    sent: u64,
    checkpoints: Checkpoints,
    next_progress_log: Instant,
}

impl Scan<'_> {
    fn judge_total(&self) -> Result<()> {
        match self.query.total.filter(|total| *total != self.read) {
            None => Ok(()),
            Some(total) => {
                let cause = format!(
                    "{} rows of table {} were read, and there are {total}",
                    self.read, self.query.table.facts.name
                );
                Err(Error::new(Kind::Bug, cause))
            }
        }
    }
}

enum Input {
    Shared(SharedInput),
    Row(Result<Option<PolledRow>>),
}

impl<'a> TableLoop<'a> {
    pub(super) fn new(
        mut publisher: Publisher<AnySink>,
        store: AnyStore,
        stored: Stored,
        marker: Option<Arc<Marker>>,
        delivered: HashSet<RowId>,
        control: &Control,
        process: Process<'a>,
    ) -> Self {
        let now = Instant::now();
        TableLoop {
            shared: SharedLoop::new(&mut publisher, control, marker, &store.known, now, process),
            publisher,
            store,
            stored,
            kept: None,
            delivered,
            published: PublishedVersions::default(),
            next_store: now,
        }
    }

    /// Publishes the rows of `query`, and gives how many they are; none where the relay was told to
    /// stop.
    ///
    /// When it returns well, all are acked, and marked where rows are. Progress is stored where
    /// something is caught up with. Errors: of sessions, producer and store; a row that cannot be
    /// routed or produced. Progress is stored where possible.
    pub(super) async fn table(
        &mut self,
        reader: &Reader,
        query: &Query<'_>,
    ) -> Result<Option<u64>> {
        let Query {
            sql,
            table: OutboxTable { facts, outbox, .. },
            lsn,
            ..
        } = *query;
        let polled = Polled::new(outbox, facts.columns.clone()).map_err(|column| {
            Error::new(
                Kind::Publication,
                format!("table {} has no column {column}", facts.name),
            )
        })?;
        let commit_lsn = lsn.max(self.publisher.ledger.received().end_lsn);
        self.publisher
            .ledger
            .begin(commit_lsn)
            .map_err(contradiction)?;
        let began = Instant::now();
        let mut scan = Scan {
            query: *query,
            rows: reader.rows(sql).await?,
            polled,
            commit_lsn,
            ended: false,
            read: 0,
            sent: 0,
            checkpoints: Checkpoints::default(),
            next_progress_log: Instant::now() + TELL_INTERVAL,
        };
        let read = self.pass(&mut scan).await;
        scan.checkpoints.note_last();
        if let Err(error) = &read {
            self.shared.retrying.abandon().await;
            if !error.kind().ends_producer() && !error.kind().halts() {
                // The producer is well: what it has need not be sent again.
                let until = Instant::now() + DRAIN_TIMEOUT;
                drop(drain(&mut self.publisher, until, &mut self.shared.process.stop).await);
                self.advance(&mut scan);
                if let Err(error) = self.save().await {
                    tracing::debug!(%error, "progress could not be stored");
                }
            }
        }
        self.advance(&mut scan);
        if read.is_err() {
            // The next session publishes no delivered row again: its write-backs come first.
            self.advance_to(self.publisher.ledger.delivered(), &mut scan);
        }
        if let Ok(Some(_)) = read {
            let end_lsn = Lsn::new(commit_lsn.as_u64() + 1);
            self.publisher
                .ledger
                .commit(commit_lsn, end_lsn)
                .map_err(contradiction)?;
            self.shared
                .process
                .telemetry
                .metrics
                .table_scan_seconds
                .observe(began.elapsed().as_secs_f64());
        }
        self.report(Instant::now());
        read
    }

    async fn pass(&mut self, scan: &mut Scan<'_>) -> Result<Option<u64>> {
        loop {
            self.publisher.retry_pending()?;
            let now = Instant::now();
            self.shared
                .begin_write_back(&mut self.publisher, WRITE_BACK_ROWS);
            self.advance(scan);
            if self.shared.next_report <= now {
                self.report(now);
            }
            if scan.next_progress_log <= now {
                self.log_progress(scan, now);
            }
            let write_backs = &self.publisher.write_backs;
            let drained =
                self.publisher.is_drained() && (write_backs.is_empty() || write_backs.refused);
            if self
                .shared
                .leaving
                .take_if(|leaving| drained || leaving.until <= now)
                .is_some()
            {
                self.save_to_last(scan).await?;
                return if drained {
                    Ok(None)
                } else {
                    Err(self.late_error())
                };
            }
            if scan.ended && drained && self.shared.leaving.is_none() {
                return scan.judge_total().map(|()| Some(scan.sent));
            }
            if self.is_full(scan, now) {
                // The stored position is that after the last row in the transaction.
                self.save_to_last(scan).await?;
            } else if !self.publisher.transaction.is_used()
                && self.next_store <= now
                && scan.sent > 0
            {
                self.next_store = now + STORE_INTERVAL;
                self.save().await?;
            }
            match self.next_input(scan, now).await {
                Input::Shared(input) => self.shared.handle(input, &mut self.publisher)?,
                Input::Row(row) => self.take_rows(scan, row?).await?,
            }
        }
    }

    async fn next_input(&mut self, scan: &mut Scan<'_>, now: Instant) -> Input {
        let leave = self.shared.leaving.as_ref().map(|leaving| leaving.until);
        let room = !scan.ended && leave.is_none() && self.publisher.has_room();
        let retry = self.publisher.is_pending().then_some(now + RETRY_INTERVAL);
        let store = match self.publisher.transaction.is_used() {
            true => self
                .publisher
                .transaction
                .wake_at(false)
                .map(|since| self.shared.epoch + since),
            false => (scan.sent > 0).then_some(self.next_store),
        };
        let wake = [retry, leave, store]
            .into_iter()
            .flatten()
            .fold(self.shared.next_report, Instant::min);
        tokio::select! {
            biased;
            // Parked events are retried between two scans: see `retry_parked`.
            input = self.shared.next(&mut self.publisher, wake, true, false) => {
                Input::Shared(input)
            }
            row = scan.rows.next(), if room => Input::Row(row),
        }
    }

    /// Takes `row`, and others that are ready.
    async fn take_rows(&mut self, scan: &mut Scan<'_>, row: Option<PolledRow>) -> Result<()> {
        let mut next = Some(row);
        let mut left = ROWS_PER_TURN;
        while let Some(row) = next.take() {
            let Some(row) = row else {
                scan.ended = true;
                break;
            };
            self.take(scan, &row)?;
            left -= 1;
            if left == 0 || !self.publisher.has_room() {
                break;
            }
            next = at_once(scan.rows.next()).await.transpose()?;
        }
        Ok(())
    }

    fn take(&mut self, scan: &mut Scan<'_>, row: &PolledRow) -> Result<()> {
        let place = Place {
            commit_lsn: scan.commit_lsn,
            index: scan.sent,
            via: scan.query.via,
        };
        let event = scan
            .polled
            .event(place, scan.query.table.number, row.values());
        let mut event = match event {
            Ok(event) => event,
            Err((column, fault)) => return Err(self.unfit_error(scan, &column, fault)),
        };
        scan.read += 1;
        failpoint::reached("read");
        // Without a row key, another row could be taken for this one.
        if !self.delivered.is_empty()
            && event.row.has_key()
            && self.delivered.contains(&event.row_id())
        {
            return Ok(());
        }
        if let Some(version) = row
            .version()
            .filter(|_| !scan.query.table.outbox.upkeep.says_for_itself())
        {
            if !self.published.is_new(version) {
                return Ok(());
            }
            if scan
                .query
                .published
                .is_some_and(|published| published.has(version.xid))
            {
                if self.published.is_rewritten(version) {
                    return Ok(());
                }
                if let Some(rows) = self.publisher.judge.rows.get_mut(event.outbox) {
                    rows.copied(&event, &self.shared.process.config.source.slot);
                }
            }
        }
        event.committed_at_us = now_us();
        self.publisher.publish(&event, Instant::now().into_std())?;
        scan.sent += 1;
        scan.checkpoints
            .took(scan.sent, row.key(scan.query.table.outbox), CHECKPOINT_ROWS);
        Ok(())
    }

    fn log_progress(&self, scan: &mut Scan<'_>, now: Instant) {
        scan.next_progress_log = now + TELL_INTERVAL;
        let acked = scan
            .sent
            .saturating_sub(self.publisher.ledger.in_flight_events() as u64);
        let slot = &self.shared.process.config.source.slot;
        let table = &scan.query.table.facts.name;
        let rows = scan.read;
        tracing::info!(event = "reading_table", %slot, %table, rows, acked, of = scan.query.total,
            "reading the table");
    }

    /// A poller begins a scan, which finds no row by an `xmin` below that of the last scan that
    /// compared all of them.
    pub(super) fn begin_poll(&mut self, scan: PollScan) {
        let oldest = self
            .stored
            .published
            .as_ref()
            .map(|published| published.copies().xmin());
        self.published.begin(scan, oldest.unwrap_or_default());
    }

    pub(super) fn report(&mut self, now: Instant) {
        self.shared
            .report(&mut self.publisher, Streamed::default(), now);
    }

    fn late_error(&self) -> Error {
        let left = self.publisher.ledger.in_flight_events();
        let slot = &self.shared.process.config.source.slot;
        let cause = format!("stopped with {left} rows of slot {slot} not acked");
        Error::new(Kind::ShutdownTimeout, cause)
            .remedy("nothing is lost: they are read again at the next start")
    }

    fn unfit_error(&self, scan: &Scan<'_>, column: &str, fault: Fault) -> Error {
        let slot = &self.shared.process.config.source.slot;
        let row = scan.read;
        let table = &scan.query.table.facts.name;
        let name = quoted(column);
        let cause = format!(
            "slot {slot}: row {row} of those read from table {table}: column {name} {fault}"
        );
        let which = if fault == Fault::Null {
            format!(" (where {name} is null)")
        } else {
            String::new()
        };
        Error::new(Kind::Event, cause).remedy(format!(
            "correct the row in the table{which}, or delete it, and start the relay again"
        ))
    }

    /// Whether rows are to be committed now: enough for a transaction, and all of them acked.
    fn is_full(&mut self, scan: &Scan<'_>, now: Instant) -> bool {
        // More rows are on their way until the last was read, and what the last one says of all is
        // stored with it.
        self.publisher
            .transaction
            .look(false, true, now - self.shared.epoch);
        !scan.ended && self.publisher.is_drained() && self.publisher.transaction.is_due(false)
    }

    /// Notes the last checkpoint that is delivered, and marked where rows are.
    fn advance(&mut self, scan: &mut Scan<'_>) {
        self.advance_to(self.publisher.completed(), scan);
    }

    /// Notes the last checkpoint up to `position`.
    fn advance_to(&mut self, position: Position, scan: &mut Scan<'_>) {
        let Some(catch_up) = &mut self.stored.catch_up else {
            return;
        };
        let count = position.delivered_of(scan.commit_lsn);
        scan.checkpoints.reached(count, &mut catch_up.after);
    }

    /// Leaves what this session could not write to the next one.
    pub(super) fn leave_behind(&mut self, failed: bool) {
        if self.publisher.transaction.is_used() {
            // Nothing counts but what is committed.
            return;
        }
        let mut left = self.store.known.left.lock();
        left.write_backs = std::mem::take(&mut self.publisher.write_backs);
        if failed {
            let found = std::mem::take(&mut self.published);
            left.table_failed(&self.stored, found, self.shared.refused_writes.gives_way);
        }
    }

    /// Writes back what an earlier session left: before that, its rows would be read as pending.
    /// Says whether it is done; else the relay was told to stop.
    pub(super) async fn write_left(&mut self) -> Result<bool> {
        while !self.publisher.write_backs.is_empty() {
            let now = Instant::now();
            self.shared
                .begin_write_back(&mut self.publisher, WRITE_BACK_ROWS);
            if self.shared.next_report <= now {
                self.report(now);
            }
            let leave = self.shared.leaving.as_ref().map(|leaving| leaving.until);
            if leave.is_some_and(|until| until <= now) || self.publisher.write_backs.refused {
                return Ok(false);
            }
            let wake = leave.map_or(self.shared.next_report, |until| {
                until.min(self.shared.next_report)
            });
            let input = self
                .shared
                .next(&mut self.publisher, wake, true, false)
                .await;
            self.shared.handle(input, &mut self.publisher)?;
        }
        Ok(self.shared.leaving.is_none())
    }

    /// Stores progress up to the last row that was taken.
    async fn save_to_last(&mut self, scan: &mut Scan<'_>) -> Result<()> {
        scan.checkpoints.note_last();
        self.advance(scan);
        self.save().await
    }

    pub(super) async fn save(&mut self) -> Result<()> {
        if self.kept.as_ref() == Some(&self.stored) && !self.publisher.transaction.is_open() {
            return Ok(());
        }
        if self.publisher.transaction.is_used() && !self.publisher.is_drained() {
            let what = "rows of a transaction of the bus are not acked; aborting it, and reading \
                        them again";
            return Err(Error::new(Kind::BusUnreachable, what));
        }
        self.publisher.batches.seal();
        failpoint::reached("progress");
        let config = self.shared.process.config;
        tokio::select! {
            stored = self.store.store(&self.stored) => stored?,
            end = &mut self.shared.control => return Err(end.error().clone()),
            () = stop_is_due(&mut self.shared.process.stop, config.shutdown.timeout) => {
                let slot = &config.source.slot;
                let cause = format!("stopped before the progress of slot {slot} was stored");
                return Err(Error::new(Kind::ShutdownTimeout, cause)
                    .remedy("nothing is lost: rows after the stored progress are read at the next \
                             start"));
            }
        }
        self.shared.stored(&mut self.publisher);
        self.kept = Some(self.stored.clone());
        self.publisher.batches.stored();
        if let Some(events) = self.publisher.committed() {
            self.shared
                .process
                .telemetry
                .metrics
                .transaction(events, self.store.took);
        }
        Ok(())
    }

    /// Counts a transaction of the bus that is open when nothing more is read: it is never
    /// committed.
    pub(super) fn count_abandoned(&self) {
        if self.publisher.transaction.is_open() {
            self.shared
                .process
                .telemetry
                .metrics
                .given_up_transactions
                .inc();
        }
    }

    /// Takes in results of retries of parked events, and begins those that are due. Between two
    /// scans: a row that was read as pending before it was marked must not be published again.
    pub(super) async fn retry_parked(&mut self) -> Result<()> {
        while let Some(report) = at_once(self.shared.retrying.next()).await {
            self.shared
                .handle(SharedInput::Retried(report), &mut self.publisher)?;
        }
        self.shared
            .retrying
            .begin_due(&mut self.publisher, Instant::now());
        Ok(())
    }

    /// Whether parked events wait until it is stored that all else is published.
    pub(super) fn must_store(&self) -> bool {
        self.publisher.judge.parking.is_any() && self.store.known.stored.borrow().is_none()
    }

    /// Waits for retries of parked events that are under way, as long as no other relay may retry
    /// them.
    pub(super) async fn finish_retries(&mut self) -> Result<()> {
        let asked = self.shared.process.stop.asked();
        if asked == Stop::Now {
            return Ok(());
        }
        tokio::select! {
            biased;
            end = &mut self.shared.control => Err(end.error().clone()),
            () = self.shared.retrying.finish(asked) => Ok(()),
        }
    }
}
