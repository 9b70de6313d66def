//! Rows of a table into Kafka: one query's rows, routed, enqueued, acked, marked, and how far that has come stored.
//!
//! What is waited for, most urgent first: a stop; the clock, which stores progress and tells the metrics; deliveries; a
//! batch of marks; the lease; what Kafka refuses; and, while there is room (P4), the next row.

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::now_us;
use crate::error::{Error, Kind, Result};
use crate::event::{Fault, Place, Polled, RowId, Via};
use crate::failpoint;
use crate::poll::{Key, PolledRow, Reader, Rows, TableFacts};
use crate::position::Lsn;
use crate::postgres::quote::quoted;
use crate::relay::drain::drain;
use crate::relay::published_rows::PublishedRows;
use crate::relay::publisher::{Counts, Publisher, contradiction};
use crate::relay::replication::RETRY_INTERVAL;
use crate::relay::report::{REPORT_INTERVAL, tell_counts};
use crate::relay::retrying::Retrying;
use crate::relay::stop::Stop;
use crate::relay::store::AnyStore;
use crate::relay::watch::{ControlWatch, KafkaWatch, Process, at_once, end_of, lease_lost, told_to_leave};
use crate::sink::AnySink;
use crate::snapshot::Snapshot;
use crate::source::control::{Control, ControlEnd};
use crate::state::Stored;
use crate::telemetry::Side;
use crate::upkeep::Marker;

/// How long what was delivered waits to be stored: what comes again after a crash.
const STORE_INTERVAL: Duration = Duration::from_millis(250);
/// How often a person is told how far it has come.
const TELL_INTERVAL: Duration = Duration::from_secs(5);
/// Rows between two places a crashed relay can go on from.
const CHECKPOINT_ROWS: u64 = 100;
/// How long acks of what is in flight are waited for where the table cannot be read on.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Rows that are marked or deleted in one transaction.
const WRITE_BACK_ROWS: usize = 1_000;
/// Rows taken before everything else gets its turn.
const ROWS_PER_TURN: usize = 256;

/// How a scan ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// All rows were published.
    All,
    /// The relay was told to stop.
    Stopped,
}

type WritingBack = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// What reads, and what it needs for as long as it does.
pub(super) struct TableLoop<'a> {
    pub(super) publisher: Publisher<AnySink>,
    pub(super) store: AnyStore,
    /// What is stored, and what is to be stored next.
    pub(super) stored: Stored,
    /// What the store is known to hold.
    kept: Option<Stored>,
    marker: Option<Arc<Marker>>,
    retrying: Retrying,
    /// Rows that are read and were delivered by the slot.
    delivered: HashSet<RowId>,
    /// Rows a poller has published and may find again, and those it has just found.
    found: PublishedRows,
    process: Process<'a>,
    /// The session that holds the lease on the table.
    pub(super) lease: ControlWatch,
    kafka: KafkaWatch,
    counts: Counts,
    next_store: Instant,
    next_report: Instant,
    /// The instant that times inside the publisher are since.
    epoch: Instant,
}

/// The rows of a table that are to be published.
#[derive(Clone, Copy)]
pub(super) struct Query<'q> {
    pub(super) sql: &'q str,
    /// How many rows there are, where that is known.
    pub(super) total: Option<u64>,
    pub(super) facts: &'q TableFacts,
    /// The outbox of the table.
    pub(super) outbox: usize,
    /// Where the log was when the table is read.
    pub(super) lsn: Lsn,
    pub(super) via: Via,
}

/// One table's rows on their way.
struct Scan {
    rows: Rows,
    polled: Polled,
    /// The name of the table, for messages.
    table: String,
    outbox: usize,
    /// To the ledger, all rows are one transaction: this one.
    commit_lsn: Lsn,
    via: Via,
    /// Whether the last row was read.
    ended: bool,
    /// Until when acks are waited for, once the relay was told to stop.
    leaving: Option<Instant>,
    /// Rows taken, those of them that were published, and how many there are, where that is known.
    read: u64,
    sent: u64,
    total: Option<u64>,
    /// Rows after which all before them are published, by their number.
    checkpoints: VecDeque<(u64, Key)>,
    /// The row that was taken last, unless it is one of them.
    last: Option<(u64, Key)>,
    writing_back: Option<WritingBack>,
    next_tell: Instant,
}

impl Scan {
    /// Checks that all rows were read.
    fn whole(&self) -> Result<()> {
        match self.total.filter(|total| *total != self.read) {
            None => Ok(()),
            Some(total) => {
                let cause = format!("{} rows of table {} were read, and there are {total}", self.read, self.table);
                Err(Error::new(Kind::Bug, cause))
            }
        }
    }
}

/// What happened.
enum Input {
    Stop,
    Clock,
    Deliveries,
    WrittenBack(Result<()>),
    LeaseLost(ControlEnd),
    /// Kafka answers, or does not; an error where nothing is to be expected of the producer any more.
    Kafka(Result<bool>),
    /// A row, or the end of them.
    Row(Result<Option<PolledRow>>),
}

impl<'a> TableLoop<'a> {
    pub(super) fn new(
        publisher: Publisher<AnySink>,
        store: AnyStore,
        stored: Stored,
        marker: Option<Arc<Marker>>,
        delivered: HashSet<RowId>,
        control: &Control,
        process: Process<'a>,
    ) -> Self {
        let (now, Process { config, telemetry, watchdog, .. }) = (Instant::now(), process.clone());
        telemetry.metrics.dropped_events.inc_by(marker.as_ref().map_or(0, |marker| marker.take_dropped()));
        TableLoop {
            retrying: Retrying::new(config, store.known(), Some(watchdog.beside())),
            counts: publisher.counts(),
            kafka: KafkaWatch::new(&publisher.sink, telemetry),
            publisher,
            store,
            kept: None,
            stored,
            marker,
            delivered,
            found: PublishedRows::default(),
            process,
            lease: ControlWatch::new(control),
            next_store: now,
            next_report: now,
            epoch: now,
        }
    }

    /// Publishes the rows of `query`.
    ///
    /// When it returns well, all of them are acked, and marked where rows are marked. Progress is stored on the way if
    /// something is being caught up with.
    ///
    /// # Errors
    /// Of the sessions, the producer and the store; a row that cannot be routed or produced. What was acked before is
    /// stored where that is possible.
    pub(super) async fn table(&mut self, reader: &Reader, query: &Query<'_>) -> Result<Read> {
        let Query { sql, total, facts, outbox: number, lsn, via } = *query;
        let outbox = self.process.config.outboxes.get(number).ok_or_else(|| Error::new(Kind::Bug, "no such outbox"))?;
        let polled = Polled::new(outbox, facts.columns.clone())
            .map_err(|column| Error::new(Kind::Publication, format!("table {} has no column {column}", facts.name)))?;
        let commit_lsn = lsn.max(self.publisher.ledger.received().end_lsn);
        self.publisher.ledger.begin(commit_lsn).map_err(contradiction)?;
        let mut scan = Scan {
            rows: reader.rows(sql).await?,
            polled,
            table: facts.name.to_string(),
            outbox: number,
            commit_lsn,
            via,
            ended: false,
            leaving: None,
            read: 0,
            sent: 0,
            total,
            checkpoints: VecDeque::new(),
            last: None,
            writing_back: None,
            next_tell: Instant::now() + TELL_INTERVAL,
        };
        let read = self.pass(&mut scan).await;
        scan.checkpoints.extend(scan.last.take());
        if read.is_err() {
            self.drop_retrying();
        }
        if let Err(error) = &read
            && !error.kind().ends_producer()
        {
            // The producer is well: what it has need not be sent again.
            drop(drain(&mut self.publisher, Instant::now() + DRAIN_TIMEOUT, &mut self.process.stop).await);
            self.advance(&mut scan);
            if let Err(error) = self.save().await {
                tracing::debug!(%error, "progress could not be stored");
            }
        }
        self.advance(&mut scan);
        if read.as_ref().is_ok_and(|read| *read == Read::All) {
            let end_lsn = Lsn::new(commit_lsn.as_u64() + 1);
            self.publisher.ledger.commit(commit_lsn, end_lsn).map_err(contradiction)?;
        }
        self.tell(Instant::now());
        read
    }

    async fn pass(&mut self, scan: &mut Scan) -> Result<Read> {
        loop {
            self.publisher.retry_pending()?;
            let now = Instant::now();
            self.begin_write_back(scan);
            self.advance(scan);
            if self.next_report <= now {
                self.tell(now);
            }
            if scan.next_tell <= now {
                self.log_progress(scan, now);
            }
            let drained = self.publisher.is_drained() && self.publisher.write_backs.is_empty();
            if scan.leaving.is_some_and(|until| drained || until <= now) {
                self.save_to_last(scan).await?;
                return if drained { Ok(Read::Stopped) } else { Err(self.late()) };
            }
            if scan.ended && drained && scan.leaving.is_none() {
                return scan.whole().map(|()| Read::All);
            }
            if self.is_full(scan, now) {
                // What is stored is what stands behind the last row that is committed with it.
                self.save_to_last(scan).await?;
            } else if !self.publisher.transaction.is_used() && self.next_store <= now && scan.sent > 0 {
                self.next_store = now + STORE_INTERVAL;
                self.save().await?;
            }
            let input = self.next_input(scan, now).await;
            self.handle(scan, input).await?;
        }
    }

    /// Waits for whatever comes first; the order is in the module's documentation.
    async fn next_input(&mut self, scan: &mut Scan, now: Instant) -> Input {
        let room = !scan.ended && scan.leaving.is_none() && self.publisher.has_room();
        let retry = self.publisher.is_pending().then_some(now + RETRY_INTERVAL);
        let store = match self.publisher.transaction.is_used() {
            true => self.publisher.transaction.wake_at(false).map(|since| self.epoch + since),
            false => (scan.sent > 0).then_some(self.next_store),
        };
        let wake = [retry, scan.leaving, store].into_iter().flatten().fold(self.next_report, Instant::min);
        let asked = if scan.leaving.is_some() { Stop::Now } else { Stop::Drain };
        tokio::select! {
            biased;
            () = self.process.stop.at_least(asked) => Input::Stop,
            () = tokio::time::sleep_until(wake) => Input::Clock,
            () = self.publisher.receive_deliveries() => Input::Deliveries,
            done = end_of(&mut scan.writing_back) => Input::WrittenBack(done),
            end = self.lease.ended() => Input::LeaseLost(end),
            answers = self.kafka.changed() => Input::Kafka(answers),
            row = scan.rows.next(), if room => Input::Row(row),
        }
    }

    async fn handle(&mut self, scan: &mut Scan, input: Input) -> Result<()> {
        match input {
            Input::Clock => {}
            Input::Stop => {
                let grace = match self.process.stop.asked() {
                    Stop::Now => Duration::ZERO,
                    Stop::No | Stop::Drain => self.process.config.process.shutdown_timeout,
                };
                self.process.telemetry.health.stopping();
                scan.leaving = Some(Instant::now() + grace);
            }
            Input::Deliveries => self.publisher.delivered()?,
            Input::WrittenBack(done) => {
                scan.writing_back = None;
                match done {
                    Ok(()) => self.publisher.write_backs.finish(),
                    Err(_) => self.publisher.write_backs.abandon(),
                }
                done?;
                failpoint::reached("marked");
            }
            Input::LeaseLost(end) => return Err(lease_lost(end)),
            Input::Kafka(answers) => self.process.telemetry.connected(Side::Kafka, answers?),
            Input::Row(row) => self.take_rows(scan, row?).await?,
        }
        Ok(())
    }

    /// Takes `row`, and others that are there already.
    async fn take_rows(&mut self, scan: &mut Scan, row: Option<PolledRow>) -> Result<()> {
        let (mut next, mut left) = (Some(row), ROWS_PER_TURN);
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

    /// One row on its way.
    fn take(&mut self, scan: &mut Scan, row: &PolledRow) -> Result<()> {
        let outbox =
            self.process.config.outboxes.get(scan.outbox).ok_or_else(|| Error::new(Kind::Bug, "no such outbox"))?;
        let place = Place { commit_lsn: scan.commit_lsn, index: scan.sent, via: scan.via };
        let event = scan.polled.event(place, scan.outbox, row.values());
        let mut event = match event {
            Ok(event) => event,
            Err((column, fault)) => return Err(self.unfit(scan, column, fault)),
        };
        scan.read += 1;
        failpoint::reached("read");
        // Without a row key, another row could be taken for this one.
        if event.row.has_key() && (row.is_by_xmin() || !self.delivered.is_empty()) {
            let row_id = event.row_id();
            if self.delivered.contains(&row_id) || row.is_by_xmin() && !self.found.is_new(&row_id) {
                return Ok(());
            }
        }
        event.committed_at_us = now_us();
        self.publisher.publish(&event)?;
        scan.sent += 1;
        scan.last = Some((scan.sent, row.key(outbox)));
        if scan.sent.is_multiple_of(CHECKPOINT_ROWS) {
            scan.checkpoints.extend(scan.last.take());
        }
        Ok(())
    }

    fn begin_write_back(&mut self, scan: &mut Scan) {
        if let Some(marker) = &self.marker
            && let Some(batch) = self.publisher.write_backs.begin(WRITE_BACK_ROWS, self.publisher.ledger.delivered())
        {
            let marker = Arc::clone(marker);
            scan.writing_back = Some(Box::pin(async move {
                failpoint::reached("marking");
                marker.settle(&batch).await.map(|_| ())
            }));
        }
    }

    fn log_progress(&self, scan: &mut Scan, now: Instant) {
        scan.next_tell = now + TELL_INTERVAL;
        let acked = scan.sent.saturating_sub(self.publisher.ledger.in_flight_events() as u64);
        let (slot, table, rows) = (&self.process.config.source.slot, &scan.table, scan.read);
        tracing::info!(%slot, table, rows, acked, of = scan.total, "reading the table");
    }

    /// A poller looks at what is there up to this snapshot.
    pub(super) fn look_up_to(&mut self, until: &Snapshot) {
        let published = self.stored.published.as_ref().map(|published| published.pair.snapshot.xmin());
        self.found.begin(until.xmax(), published.unwrap_or_default());
    }

    /// What it found is published.
    pub(super) fn looked(&mut self) {
        self.found.end();
    }

    /// No row counts as delivered by the slot any more.
    pub(super) fn forget_delivered(&mut self) {
        self.delivered.clear();
    }

    /// Tells metrics and health.
    pub(super) fn tell(&mut self, now: Instant) {
        self.next_report = now + REPORT_INTERVAL;
        let (counts, before) = (self.publisher.counts(), self.counts);
        tell_counts(self.process.telemetry, counts, before);
        self.retrying.count(&self.process.telemetry.metrics);
        self.counts = counts;
        let (events, bytes) = (self.publisher.ledger.in_flight_events(), self.publisher.ledger.in_flight_bytes());
        self.process.telemetry.metrics.in_flight_events.set(i64::try_from(events).unwrap_or(i64::MAX));
        self.process.telemetry.metrics.in_flight_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.process.telemetry.metrics.intake_closed(self.publisher.intake_closed());
        self.process
            .telemetry
            .metrics
            .waiting_events
            .set(i64::try_from(self.publisher.parking.count()).unwrap_or(i64::MAX));
        self.process.telemetry.health.report(!self.publisher.is_drained(), counts.acked > before.acked);
        let now_us = now_us();
        for committed_at_us in self.publisher.ledger.take_finished() {
            self.process.telemetry.metrics.observe_commit_to_ack(committed_at_us, now_us);
        }
    }

    fn late(&self) -> Error {
        let (left, slot) = (self.publisher.ledger.in_flight_events(), &self.process.config.source.slot);
        let cause = format!("stopped with {left} rows of slot {slot} not acked");
        Error::new(Kind::ShutdownTimeout, cause).remedy("nothing is lost: they are read again at the next start")
    }

    fn unfit(&self, scan: &Scan, column: usize, fault: Fault) -> Error {
        let (slot, row, table) = (&self.process.config.source.slot, scan.read, &scan.table);
        let name = self.process.config.outboxes.get(scan.outbox).and_then(|outbox| outbox.columns.get(column));
        let name = name.map(|name| quoted(name)).unwrap_or_default();
        let cause = format!("slot {slot}: row {row} of those read from table {table}: column {name} {fault}");
        let which = if fault == Fault::Null { format!(" (where {name} is null)") } else { String::new() };
        Error::new(Kind::Event, cause)
            .remedy(format!("correct the row in the table{which}, or delete it, and start the relay again"))
    }

    /// Whether rows are to be committed now: they are enough for a transaction, and all of them are acked.
    fn is_full(&mut self, scan: &Scan, now: Instant) -> bool {
        // More rows are on their way until the last was read, and what the last one says of all is stored with it.
        self.publisher.transaction.look(false, true, now - self.epoch);
        !scan.ended && self.publisher.is_drained() && self.publisher.transaction.is_due(false)
    }

    /// Notes the last checkpoint that is delivered, and marked where rows are.
    fn advance(&mut self, scan: &mut Scan) {
        let Some(catch_up) = &mut self.stored.catch_up else { return };
        let delivered = self.publisher.ledger.delivered();
        let completed = self.publisher.write_backs.completed_of(delivered, scan.commit_lsn);
        while scan.checkpoints.front().is_some_and(|(number, _)| *number <= completed)
            && let Some((_, key)) = scan.checkpoints.pop_front()
        {
            catch_up.after = Some(key);
        }
    }

    /// Stores what is to be stored, up to the last row that was taken.
    async fn save_to_last(&mut self, scan: &mut Scan) -> Result<()> {
        scan.checkpoints.extend(scan.last.take());
        self.advance(scan);
        self.save().await
    }

    /// Stores what is to be stored.
    pub(super) async fn save(&mut self) -> Result<()> {
        if self.kept.as_ref() == Some(&self.stored) && !self.publisher.transaction.is_open() {
            return Ok(());
        }
        if self.publisher.transaction.is_used() && !self.publisher.is_drained() {
            let what = "rows of a Kafka transaction are not acked; aborting it, and reading them again";
            return Err(Error::new(Kind::KafkaUnreachable, what));
        }
        failpoint::reached("progress");
        tokio::select! {
            stored = self.store.store(&self.stored) => stored?,
            end = self.lease.ended() => return Err(lease_lost(end)),
            () = told_to_leave(&mut self.process.stop, self.process.config.process.shutdown_timeout) => {
                let cause = format!("stopped before the progress of slot {} was stored", self.process.config.source.slot);
                return Err(Error::new(Kind::ShutdownTimeout, cause)
                    .remedy("nothing is lost: rows after the stored progress are read at the next start"));
            }
        }
        self.process.telemetry.metrics.positions_stored.inc();
        self.kept = Some(self.stored.clone());
        if let Some(events) = self.publisher.committed() {
            self.process.telemetry.metrics.transaction(events, self.store.took);
        }
        Ok(())
    }

    /// Nothing more is read. What of it is not committed never will be.
    pub(super) fn count_given_up(&self) {
        if self.publisher.transaction.is_open() {
            self.process.telemetry.metrics.given_up_transactions.inc();
        }
    }

    /// Whether anything was stored.
    pub(super) fn has_saved(&self) -> bool {
        self.kept.is_some()
    }

    /// Events that waited and were delivered wait no more, and those that are due are tried. Between two looks: a row that was
    /// seen pending before it was marked is not to be published again.
    pub(super) async fn retry_waiting(&mut self) {
        while let Some(tried) = at_once(self.retrying.next()).await {
            self.publisher.parking.retried(tried, &self.process.config.source.slot);
        }
        self.retrying.begin_due(&mut self.publisher, Instant::now());
    }

    /// Whether events wait that are tried once it is stored how far all is published.
    pub(super) fn is_waited_for(&self) -> bool {
        self.publisher.parking.count() > 0 && self.store.known().borrow().is_none()
    }

    /// What is being tried of events that wait comes to its end, as long as nobody else may try them.
    ///
    /// # Errors
    /// Somebody may.
    pub(super) async fn finish_retrying(&mut self) -> Result<()> {
        if self.process.stop.asked() == Stop::Now {
            return Ok(());
        }
        tokio::select! {
            biased;
            end = self.lease.ended() => Err(lease_lost(end)),
            () = self.retrying.finish() => Ok(()),
        }
    }

    /// What is being tried of events that wait is given up at once: somebody else may try them.
    pub(super) fn drop_retrying(&mut self) {
        self.retrying = Retrying::new(self.process.config, self.store.known(), None);
    }
}
