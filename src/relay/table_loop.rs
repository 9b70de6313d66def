//! The loop of one scan of a table: rows are routed, enqueued, acked and written back, and progress
//! is stored.
//!
//! Beside what [`SharedLoop`] waits for, and after it: the next row, while there is room (P4).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FusedFuture as _;
use tokio::time::Instant;

use crate::poll::{PolledRow, Reader, RowStream, TableFacts};
use crate::postgres::quote::quoted;
use crate::relay::drain::{DRAIN_TIMEOUT, drain};
use crate::relay::shared_loop::{
    Process, RETRY_INTERVAL, SharedInput, SharedLoop, at_once, stop_is_due,
};
use crate::relay::stop::Stop;
use crate::relay::store::AnyStore;
use crate::sink::AnySink;
use crate::source::control::Control;
use crate::upkeep::Marker;
use walrelay_core::clock::now_us;
use walrelay_core::config::OutboxConfig;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::event::{Fault, Polled, Via};
use walrelay_core::failpoint;
use walrelay_core::ledger::trail::Published;
use walrelay_core::position::Lsn;
use walrelay_core::readiness::Streamed;
use walrelay_core::sessions::Ended;
use walrelay_core::table_read::{Scan, ScanCounts, ScanStep, TableRead, Untaken};

const TELL_INTERVAL: Duration = Duration::from_secs(5);
/// Rows that are marked or deleted in one transaction.
const WRITE_BACK_ROWS: usize = 1_000;
/// Rows taken before everything else gets its turn.
pub(crate) const ROWS_PER_TURN: usize = 256;

/// Publishes the rows of tables, one scan after another.
pub(super) struct TableLoop<'a> {
    pub(super) shared: SharedLoop<'a>,
    pub(super) read: TableRead<AnySink>,
    store: AnyStore,
}

/// A table that is read, and which outbox it is.
pub(super) struct OutboxTable<'c> {
    pub(super) number: usize,
    pub(super) outbox: &'c OutboxConfig,
    pub(super) facts: TableFacts,
}

/// A scan, and how it is queried and told.
pub(super) struct Query<'q> {
    pub(super) sql: String,
    /// The number of rows, where that is known.
    pub(super) total: Option<u64>,
    pub(super) table: &'q OutboxTable<'q>,
    pub(super) scan: Scan,
}

struct Rows<'q> {
    table: &'q OutboxTable<'q>,
    total: Option<u64>,
    stream: RowStream,
    next_progress_log: Instant,
}

impl OutboxTable<'_> {
    /// A scan of it: see the fields of [`Scan`].
    pub(super) fn scan(&self, lsn: Lsn, via: Via, published: Option<Published>) -> Result<Scan> {
        let polled = Polled::new(self.outbox, self.facts.columns.clone());
        let polled = polled.map_err(|column| {
            let what = format!("table {} has no column {column}", self.facts.name);
            Error::new(Kind::Publication, what)
        })?;
        Ok(Scan {
            outbox: self.number,
            polled,
            lsn,
            via,
            published,
        })
    }
}

impl Rows<'_> {
    fn judge_total(&self, read: u64) -> Result<()> {
        match self.total.filter(|total| *total != read) {
            None => Ok(()),
            Some(total) => {
                let cause = format!(
                    "{read} rows of table {} were read, and there are {total}",
                    self.table.facts.name
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
        mut read: TableRead<AnySink>,
        store: AnyStore,
        marker: Option<Arc<Marker>>,
        control: &Control,
        process: Process<'a>,
    ) -> Self {
        let now = Instant::now();
        let publisher = &mut read.publisher;
        TableLoop {
            shared: SharedLoop::new(publisher, control, marker, &store.known, now, process),
            read,
            store,
        }
    }

    /// The time as the core counts it.
    pub(super) fn now(&self) -> Duration {
        self.shared.epoch.elapsed()
    }

    /// Publishes the rows of `query`, and gives how many they are; none where the relay was told to
    /// stop.
    ///
    /// When it returns well, all are acked, and marked where rows are. Progress is stored where
    /// something is caught up with. Errors: of sessions, producer and store; a row that cannot be
    /// routed or produced. Progress is stored where possible.
    pub(super) async fn table(&mut self, reader: &Reader, query: Query<'_>) -> Result<Option<u64>> {
        self.read.begin(query.scan)?;
        let began = Instant::now();
        let mut rows = Rows {
            table: query.table,
            total: query.total,
            stream: reader.rows(&query.sql).await?,
            next_progress_log: Instant::now() + TELL_INTERVAL,
        };
        let done = match self.pass(&mut rows).await {
            Ok(true) => {
                let sent = self.read.end()?;
                let metrics = &self.shared.process.telemetry.metrics;
                let seconds = began.elapsed().as_secs_f64();
                metrics.table_scan_seconds.observe(seconds);
                Ok(Some(sent))
            }
            Ok(false) => {
                self.read.interrupt();
                Ok(None)
            }
            Err(error) => {
                self.shared.retrying.abandon().await;
                if !error.kind().ends_producer() && !error.kind().halts() {
                    // The producer is well: what it has need not be sent again.
                    let until = Instant::now() + DRAIN_TIMEOUT;
                    let stop = &mut self.shared.process.stop;
                    drop(drain(&mut self.read.publisher, until, stop).await);
                    self.read.advance_to_last();
                    if self
                        .read
                        .may_store_at_end(!self.shared.control.is_terminated())
                        && let Err(error) = self.save().await
                    {
                        tracing::debug!(%error, "progress could not be stored");
                    }
                }
                self.read.interrupt();
                Err(error)
            }
        };
        self.report(Instant::now());
        done
    }

    /// Publishes all rows. Whether it did; else the relay was told to stop.
    async fn pass(&mut self, rows: &mut Rows<'_>) -> Result<bool> {
        loop {
            self.read.publisher.retry_pending()?;
            let now = Instant::now();
            self.shared
                .begin_write_back(&mut self.read.publisher, WRITE_BACK_ROWS);
            if self.shared.next_report <= now {
                self.report(now);
            }
            if rows.next_progress_log <= now {
                self.log_progress(rows, now);
            }
            let is_drained = self.read.is_drained();
            if self
                .shared
                .leaving
                .take_if(|leaving| is_drained || leaving.until <= now)
                .is_some()
            {
                self.read.advance_to_last();
                self.save().await?;
                return if is_drained {
                    Ok(false)
                } else {
                    Err(self.late_error())
                };
            }
            match self.read.look(now - self.shared.epoch) {
                ScanStep::Done if self.shared.leaving.is_none() => {
                    return rows.judge_total(self.read.counts().read).map(|()| true);
                }
                ScanStep::Store => self.save().await?,
                ScanStep::Done | ScanStep::Wait => {}
            }
            match self.next_input(rows, now).await {
                Input::Shared(input) => self.shared.handle(input, &mut self.read.publisher)?,
                Input::Row(row) => self.take_rows(rows, row?).await?,
            }
        }
    }

    async fn next_input(&mut self, rows: &mut Rows<'_>, now: Instant) -> Input {
        let leave = self.shared.leaving.as_ref().map(|leaving| leaving.until);
        let room = leave.is_none() && self.read.has_room();
        let is_pending = self.read.publisher.is_pending();
        let retry = is_pending.then_some(now + RETRY_INTERVAL);
        let store = self.read.wake_at().map(|since| self.shared.epoch + since);
        let wake = [retry, leave, store]
            .into_iter()
            .flatten()
            .fold(self.shared.next_report, Instant::min);
        tokio::select! {
            biased;
            // Parked events are retried between two scans: see `retry_parked`.
            input = self.shared.next(&mut self.read.publisher, wake, true, false) => {
                Input::Shared(input)
            }
            row = rows.stream.next(), if room => Input::Row(row),
        }
    }

    /// Takes `row`, and others that are ready.
    async fn take_rows(&mut self, rows: &mut Rows<'_>, row: Option<PolledRow>) -> Result<()> {
        let mut next = Some(row);
        let mut left = ROWS_PER_TURN;
        while let Some(row) = next.take() {
            let now = Instant::now().into_std();
            let taken = self.read.take(row.as_ref(), now_us(), now);
            taken.map_err(|untaken| match untaken {
                Untaken::Failed(error) => error,
                Untaken::Unfit { column, fault } => self.unfit_error(rows, &column, fault),
            })?;
            left -= 1;
            if left == 0 || !self.read.has_room() {
                break;
            }
            next = at_once(rows.stream.next()).await.transpose()?;
        }
        Ok(())
    }

    fn log_progress(&self, rows: &mut Rows<'_>, now: Instant) {
        rows.next_progress_log = now + TELL_INTERVAL;
        let in_flight = self.read.publisher.ledger.in_flight_events() as u64;
        let ScanCounts { read, sent } = self.read.counts();
        let acked = sent.saturating_sub(in_flight);
        let slot = &self.shared.process.config.source.slot;
        let table = &rows.table.facts.name;
        tracing::info!(event = "reading_table", %slot, %table, rows = read, acked,
            of = rows.total, "reading the table");
    }

    pub(super) fn report(&mut self, now: Instant) {
        self.shared
            .report(&mut self.read.publisher, Streamed::default(), now);
    }

    fn late_error(&self) -> Error {
        let left = self.read.publisher.ledger.in_flight_events();
        let slot = &self.shared.process.config.source.slot;
        let cause = format!("stopped with {left} rows of slot {slot} not acked");
        Error::new(Kind::ShutdownTimeout, cause)
            .remedy("nothing is lost: they are read again at the next start")
    }

    fn unfit_error(&self, rows: &Rows<'_>, column: &str, fault: Fault) -> Error {
        let slot = &self.shared.process.config.source.slot;
        let row = self.read.counts().read;
        let table = &rows.table.facts.name;
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

    /// Leaves what this session could not write to the next one.
    pub(super) fn leave_behind(&mut self, failed: bool) {
        self.read.leave(&mut self.store.known.left.lock(), failed);
    }

    /// Writes back what an earlier session left: before that, its rows would be read as pending.
    /// Gives how the session ends where it does: the relay was told to stop.
    pub(super) async fn write_left(&mut self) -> Result<Option<Ended>> {
        while !self.read.publisher.write_backs.is_empty() {
            let now = Instant::now();
            self.shared
                .begin_write_back(&mut self.read.publisher, WRITE_BACK_ROWS);
            if self.shared.next_report <= now {
                self.report(now);
            }
            let leave = self.shared.leaving.as_ref().map(|leaving| leaving.until);
            if leave.is_some_and(|until| until <= now) || self.read.publisher.write_backs.refused {
                return Ok(Some(Ended::Stopped));
            }
            let wake = leave.map_or(self.shared.next_report, |until| {
                until.min(self.shared.next_report)
            });
            let input = self
                .shared
                .next(&mut self.read.publisher, wake, true, false)
                .await;
            self.shared.handle(input, &mut self.read.publisher)?;
        }
        let is_stopping = self.shared.leaving.is_some();
        Ok(is_stopping.then_some(Ended::Stopped))
    }

    pub(super) async fn save(&mut self) -> Result<()> {
        if !self.read.must_store()? {
            return Ok(());
        }
        self.read.publisher.batches.seal();
        failpoint::reached("progress");
        let config = self.shared.process.config;
        tokio::select! {
            biased;
            end = &mut self.shared.control => return Err(end.error().clone()),
            stored = self.store.store(&self.read.stored) => stored?,
            () = stop_is_due(&mut self.shared.process.stop, config.shutdown.timeout) => {
                let slot = &config.source.slot;
                let cause = format!("stopped before the progress of slot {slot} was stored");
                return Err(Error::new(Kind::ShutdownTimeout, cause)
                    .remedy("nothing is lost: rows after the stored progress are read at the next \
                             start"));
            }
        }
        self.shared.stored(&mut self.read.publisher);
        self.read.publisher.batches.stored();
        if let Some(events) = self.read.was_stored() {
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
        if self.read.publisher.transaction.is_open() {
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
                .handle(SharedInput::Retried(report), &mut self.read.publisher)?;
        }
        self.shared
            .retrying
            .begin_due(&mut self.read.publisher, Instant::now());
        Ok(())
    }

    /// Whether parked events wait until it is stored that all else is published.
    pub(super) fn parked_wait(&self) -> bool {
        self.read.publisher.judge.parking.is_any() && self.store.known.stored.borrow().is_none()
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
