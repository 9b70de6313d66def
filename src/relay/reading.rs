//! Rows of a table into Kafka: one query's rows, routed, enqueued, acked, marked, and how far that has come stored.
//!
//! What is waited for, most urgent first: a stop; the clock, which stores progress and tells the metrics; deliveries; a
//! batch of marks; the lease; what Kafka refuses; and, while there is room (P4), the next row.

mod progress;
mod waiting;

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::now_us;
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::event::{Fault, Place, Polled, RowId, Via};
use crate::failpoint;
use crate::poll::{Key, PolledRow, Reader, Rows, TableFacts};
use crate::position::Lsn;
use crate::postgres::quote::quoted;
use crate::relay::found::Found;
use crate::relay::publisher::{Counts, Publisher, contradiction};
use crate::relay::pulse::Beside;
use crate::relay::pump::RETRY_INTERVAL;
use crate::relay::report::{REPORT_INTERVAL, tell_counts};
use crate::relay::retrying::Retrying;
use crate::relay::session::AnyStore;
use crate::relay::stop::{Stop, StopSignal};
use crate::relay::waiting::{at_once, end_of, lease_lost};
use crate::sink::kafka::KafkaSink;
use crate::sink::{Connection, Delivery};
use crate::snapshot::Snapshot;
use crate::source::control::{Control, ControlEnd};
use crate::state::Stored;
use crate::telemetry::{Side, Telemetry};
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
const SETTLE_ROWS: usize = 1_000;
/// Rows taken before everything else gets its turn.
const ROWS_PER_TURN: usize = 256;

/// How a reading ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// All rows were published.
    All,
    /// The relay was told to stop.
    Stopped,
}

type Settling = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// What reads, and what it needs for as long as it does.
pub(super) struct Reading<'a> {
    pub(super) publisher: Publisher<KafkaSink>,
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
    found: Found,
    config: &'a Config,
    telemetry: &'a Telemetry,
    stop: StopSignal,
    /// None once it was heard.
    lease_end: Option<Pin<Box<dyn Future<Output = ControlEnd> + Send>>>,
    kafka: watch::Receiver<Connection>,
    unusable: Pin<Box<dyn Future<Output = Error> + Send>>,
    deliveries: Vec<Delivery>,
    counts: Counts,
    next_store: Instant,
    next_report: Instant,
    /// The instant that times inside the publisher are since.
    epoch: Instant,
}

/// One table's rows on their way.
struct Passage {
    rows: Rows,
    ended: bool,
    /// Rows taken, those of them that were published, and how many there are, where that is known.
    read: u64,
    sent: u64,
    total: Option<u64>,
    /// Rows after which all before them are published, by their number.
    checkpoints: VecDeque<(u64, Key)>,
    /// The row that was taken last, unless it is one of them.
    last: Option<(u64, Key)>,
    settling: Option<Settling>,
    next_tell: Instant,
}

impl<'a> Reading<'a> {
    pub(super) fn new(
        publisher: Publisher<KafkaSink>,
        store: AnyStore,
        stored: Stored,
        (marker, delivered): (Option<Arc<Marker>>, HashSet<RowId>),
        (config, telemetry, stop): (&'a Config, &'a Telemetry, StopSignal),
        (control, beside): (&Control, Beside),
    ) -> Self {
        let (now, producer) = (Instant::now(), publisher.sink.producer());
        let mut kafka = publisher.sink.watch_connection();
        telemetry.connected(Side::Kafka, *kafka.borrow_and_update() == Connection::Up);
        telemetry.metrics.dropped_events.inc_by(marker.as_ref().map_or(0, |marker| marker.take_dropped()));
        Reading {
            retrying: Retrying::new(config, store.known(), Some(beside)),
            counts: publisher.counts(),
            publisher,
            store,
            kept: None,
            stored,
            marker,
            delivered,
            found: Found::default(),
            config,
            telemetry,
            stop,
            lease_end: Some(Box::pin(control.closed())),
            kafka,
            unusable: Box::pin(async move { producer.unusable().await }),
            deliveries: Vec::new(),
            next_store: now,
            next_report: now,
            epoch: now,
        }
    }

    /// Publishes the rows of `sql`, which are those of `facts` and outbox `number`, read when the log was at `lsn`.
    ///
    /// When it returns well, all of them are acked, and marked where rows are marked. Progress is stored on the way if
    /// something is being caught up with.
    ///
    /// # Errors
    /// Of the sessions, the producer and the store; a row that cannot be routed or produced. What was acked before is
    /// stored where that is possible.
    pub(super) async fn table(
        &mut self,
        (reader, sql, total): (&Reader, &str, Option<u64>),
        facts: &TableFacts,
        (number, lsn, via): (usize, Lsn, Via),
    ) -> Result<Read> {
        let outbox = self.config.outboxes.get(number).ok_or_else(|| Error::new(Kind::Bug, "no such outbox"))?;
        let mut polled = Polled::new(outbox, facts.columns.clone())
            .map_err(|column| Error::new(Kind::Publication, format!("table {} has no column {column}", facts.name)))?;
        let commit_lsn = lsn.max(self.publisher.ledger.received().end_lsn);
        self.publisher.ledger.begin(commit_lsn).map_err(contradiction)?;
        let now = Instant::now();
        let mut passage = Passage {
            rows: reader.rows(sql).await?,
            ended: false,
            read: 0,
            sent: 0,
            total,
            checkpoints: VecDeque::new(),
            last: None,
            settling: None,
            next_tell: now + TELL_INTERVAL,
        };
        let read = self.pass(&mut passage, &mut polled, &facts.name.to_string(), (number, commit_lsn, via)).await;
        passage.checkpoints.extend(passage.last.take());
        if read.is_err() {
            self.drop_retrying();
        }
        if let Err(error) = &read
            && !error.kind().ends_producer()
        {
            // The producer is well: what it has need not be sent again.
            self.publisher.drain(Instant::now() + DRAIN_TIMEOUT).await;
            self.advance(&mut passage, commit_lsn);
            if let Err(error) = self.save().await {
                tracing::debug!(%error, "progress could not be stored");
            }
        }
        self.advance(&mut passage, commit_lsn);
        if read.as_ref().is_ok_and(|read| *read == Read::All) {
            let end_lsn = Lsn::new(commit_lsn.as_u64() + 1);
            self.publisher.ledger.commit(commit_lsn, end_lsn).map_err(contradiction)?;
        }
        self.tell(Instant::now());
        read
    }

    async fn pass(
        &mut self,
        passage: &mut Passage,
        polled: &mut Polled,
        table: &str,
        (number, commit_lsn, via): (usize, Lsn, Via),
    ) -> Result<Read> {
        let mut leaving: Option<Instant> = None;
        loop {
            self.publisher.retry_pending()?;
            let now = Instant::now();
            if let Some(marker) = &self.marker
                && let Some(batch) = self.publisher.begin_write_back(SETTLE_ROWS)
            {
                let marker = Arc::clone(marker);
                passage.settling = Some(Box::pin(async move {
                    failpoint::reached("marking");
                    marker.settle(&batch).await.map(|_| ())
                }));
            }
            self.advance(passage, commit_lsn);
            if self.next_report <= now {
                self.tell(now);
            }
            if passage.next_tell <= now {
                passage.next_tell = now + TELL_INTERVAL;
                let (rows, acked) =
                    (passage.read, passage.sent.saturating_sub(self.publisher.ledger.in_flight_events() as u64));
                tracing::info!(slot = %self.config.source.slot, table, rows, acked, of = passage.total, "reading the table");
            }
            let drained = self.publisher.is_drained() && self.publisher.is_written_back();
            if passage.ended && drained && leaving.is_none() {
                if let Some(total) = passage.total.filter(|total| *total != passage.read) {
                    let cause = format!("{} rows of table {table} were read, and there are {total}", passage.read);
                    return Err(Error::new(Kind::Bug, cause));
                }
                return Ok(Read::All);
            }
            if leaving.is_some_and(|until| drained || until <= now) {
                passage.checkpoints.extend(passage.last.take());
                self.advance(passage, commit_lsn);
                self.save().await?;
                return if drained { Ok(Read::Stopped) } else { Err(self.late()) };
            }
            if self.is_full(passage, now) {
                // What is stored is what stands behind the last row that is committed with it.
                passage.checkpoints.extend(passage.last.take());
                self.advance(passage, commit_lsn);
                self.save().await?;
            } else if !self.publisher.is_transactional() && self.next_store <= now && passage.sent > 0 {
                self.next_store = now + STORE_INTERVAL;
                self.save().await?;
            }
            let room = !passage.ended && leaving.is_none() && self.publisher.has_room();
            let retry = self.publisher.is_pending().then_some(now + RETRY_INTERVAL);
            let store = match self.publisher.is_transactional() {
                true => self.publisher.look_at(false).map(|since| self.epoch + since),
                false => (passage.sent > 0).then_some(self.next_store),
            };
            let wake = [retry, leaving, store].into_iter().flatten().fold(self.next_report, Instant::min);
            let asked = if leaving.is_some() { Stop::Now } else { Stop::Drain };
            tokio::select! {
                biased;
                () = self.stop.at_least(asked) => {
                    let grace = match self.stop.asked() {
                        Stop::Now => Duration::ZERO,
                        Stop::No | Stop::Drain => self.config.process.shutdown_timeout,
                    };
                    self.telemetry.health.stopping();
                    leaving = Some(Instant::now() + grace);
                }
                () = tokio::time::sleep_until(wake) => {}
                () = self.publisher.next_deliveries(&mut self.deliveries) => self.publisher.delivered(&mut self.deliveries)?,
                done = end_of(&mut passage.settling) => {
                    passage.settling = None;
                    self.publisher.write_back_ended(done.is_ok());
                    done?;
                    failpoint::reached("marked");
                }
                end = end_of(&mut self.lease_end) => {
                    self.lease_end = None;
                    return Err(lease_lost(end));
                }
                error = &mut self.unusable => return Err(error),
                changed = self.kafka.changed(), if leaving.is_none() => {
                    if changed.is_ok() {
                        let up = *self.kafka.borrow_and_update() == Connection::Up;
                        self.telemetry.connected(Side::Kafka, up);
                    }
                }
                row = passage.rows.next(), if room => {
                    let (mut next, mut left) = (Some(row?), ROWS_PER_TURN);
                    while let Some(row) = next.take() {
                        let Some(row) = row else {
                            passage.ended = true;
                            break;
                        };
                        self.take(passage, polled, &row, table, (number, commit_lsn, via))?;
                        left -= 1;
                        if left == 0 || !self.publisher.has_room() {
                            break;
                        }
                        next = at_once(passage.rows.next()).await.transpose()?;
                    }
                }
            }
        }
    }

    /// One row on its way.
    fn take(
        &mut self,
        passage: &mut Passage,
        polled: &mut Polled,
        row: &PolledRow,
        table: &str,
        (number, commit_lsn, via): (usize, Lsn, Via),
    ) -> Result<()> {
        let outbox = self.config.outboxes.get(number).ok_or_else(|| Error::new(Kind::Bug, "no such outbox"))?;
        let place = Place { commit_lsn, index: passage.sent, via };
        let event = polled.event(place, number, row.values());
        let mut event = event.map_err(|(column, fault)| self.unfit(table, (passage.read, number), column, fault))?;
        passage.read += 1;
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
        passage.sent += 1;
        passage.last = Some((passage.sent, row.key(outbox)));
        if passage.sent.is_multiple_of(CHECKPOINT_ROWS) {
            passage.checkpoints.extend(passage.last.take());
        }
        Ok(())
    }

    /// Waits for the end of the session that holds the lease.
    pub(super) async fn lease_end(&mut self) -> ControlEnd {
        let end = end_of(&mut self.lease_end).await;
        self.lease_end = None;
        end
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
        tell_counts(self.telemetry, counts, before);
        self.retrying.count(&self.telemetry.metrics);
        self.counts = counts;
        let (events, bytes) = (self.publisher.ledger.in_flight_events(), self.publisher.ledger.in_flight_bytes());
        self.telemetry.metrics.in_flight_events.set(i64::try_from(events).unwrap_or(i64::MAX));
        self.telemetry.metrics.in_flight_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.telemetry.metrics.waiting_events.set(i64::try_from(self.publisher.parking.count()).unwrap_or(i64::MAX));
        self.telemetry.health.report(!self.publisher.is_drained(), counts.acked > before.acked);
        let now_us = now_us();
        for committed_at_us in self.publisher.ledger.take_finished() {
            self.telemetry.metrics.observe_commit_to_ack(committed_at_us, now_us);
        }
    }

    fn late(&self) -> Error {
        let (left, slot) = (self.publisher.ledger.in_flight_events(), &self.config.source.slot);
        let cause = format!("stopped with {left} rows of slot {slot} not acked");
        Error::new(Kind::ShutdownTimeout, cause).remedy("nothing is lost: they are read again at the next start")
    }

    fn unfit(&self, table: &str, (row, outbox): (u64, usize), column: usize, fault: Fault) -> Error {
        let slot = &self.config.source.slot;
        let name = self.config.outboxes.get(outbox).and_then(|outbox| outbox.columns.get(column));
        let name = name.map(|name| quoted(name)).unwrap_or_default();
        let cause = format!("slot {slot}: row {row} of those read from table {table}: column {name} {fault}");
        let which = if fault == Fault::Null { format!(" (where {name} is null)") } else { String::new() };
        Error::new(Kind::Event, cause)
            .remedy(format!("correct the row in the table{which}, or delete it, and start the relay again"))
    }
}
