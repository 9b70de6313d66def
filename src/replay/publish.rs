//! The rows that were found, sent and acked.
//!
//! What is waited for, most urgent first: a stop; the clock, which tells a person how far it is; deliveries; what Kafka
//! refuses; and, while there is room (P4), the next row.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::Instant;

use super::{Replay, Table};
use crate::clock::now_us;
use crate::config::{DeliveryConfig, OutboxConfig, Upkeep};
use crate::error::{Error, Kind, Result};
use crate::event::{Place, Polled, Via};
use crate::poll::select::rows;
use crate::poll::{PolledRow, Rows, Selection, Which};
use crate::position::{Lsn, Position};
use crate::relay::publisher::{Publisher, Setup};
use crate::relay::stop::{Stop, StopSignal};
use crate::sink::{Connection, Delivery, KafkaSink};

/// How often a record that found the producer full is offered again, where nothing else happens.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// How often a person may be told how far it is.
const TELL_INTERVAL: Duration = Duration::from_secs(1);
/// How long acks of what is in flight are waited for where no more rows can be had.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Rows taken before everything else gets its turn.
const ROWS_PER_TURN: usize = 256;

/// How far it has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Published {
    /// Rows that were taken.
    pub taken: u64,
    /// Rows that the broker acked.
    pub acked: u64,
    /// The last row that was acked with all before it: its table and its id.
    pub up_to: Option<(String, String)>,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All rows are acked.
    All,
    /// It was told to stop.
    Stopped,
}

/// A row in flight.
struct Waiting {
    /// Which of the rows it is, from 0.
    number: u64,
    /// Its table, as an index.
    table: usize,
    id: String,
}

struct Publishing<'r> {
    publisher: Publisher<KafkaSink>,
    tables: &'r [Table<'r>],
    lsn: Lsn,
    total: u64,
    deliveries: Vec<Delivery>,
    /// Rows in flight, in their order: as many as may be.
    waiting: VecDeque<Waiting>,
    published: Published,
    stop: StopSignal,
    grace: Duration,
    leaving: Option<Instant>,
    unusable: Pin<Box<dyn Future<Output = Error> + Send>>,
}

impl Replay<'_> {
    /// Publishes the rows that [`Replay::survey`] found, and waits until all are acked. Also tells how far it came, however
    /// it ended. `say` is told now and then: how far, of how many, and whether Kafka answers.
    ///
    /// In memory is what may be in flight (`kafka.max_in_flight_bytes`), and what [`Reader::rows`](crate::poll::Reader::rows)
    /// says. A stop takes no more rows and waits for acks for as long as `log.shutdown_timeout` says, a second leaves at once.
    ///
    /// # Errors
    /// Of the session and the producer; a row that cannot be produced. Nothing behind it is taken, and what was in flight
    /// may be published.
    pub async fn publish(
        &mut self,
        sink: KafkaSink,
        stop: StopSignal,
        say: &mut dyn FnMut(&Published, u64, bool),
    ) -> (Published, Result<Ended>) {
        let config = self.config;
        // Nothing is done to the rows.
        let untouched = |outbox: &OutboxConfig| OutboxConfig { upkeep: Upkeep::default(), ..outbox.clone() };
        // Whoever asks for it sees what cannot be delivered.
        let (outboxes, delivery) = (config.outboxes.iter().map(untouched).collect(), DeliveryConfig::default());
        let setup = Setup { outboxes, delivery, ..Setup::of(config) };
        let producer = sink.producer();
        let mut publisher = match Publisher::new(&setup, Position::default(), sink) {
            Ok(publisher) => publisher,
            Err(error) => return (Published::default(), Err(error)),
        };
        publisher.set_origin(&self.origin.0, self.origin.1);
        // To the ledger it is one transaction, and it is never over: nothing is to be confirmed.
        let begun = publisher.ledger.begin(self.lsn).map_err(|error| Error::new(Kind::Bug, error));
        let mut publishing = Publishing {
            publisher,
            tables: &self.tables,
            lsn: self.lsn,
            total: self.total,
            deliveries: Vec::new(),
            waiting: VecDeque::new(),
            published: Published::default(),
            stop,
            grace: config.process.shutdown_timeout,
            leaving: None,
            unusable: Box::pin(async move { producer.unusable().await }),
        };
        let ended = match begun {
            Ok(()) => publishing.all(&self.reader, say).await,
            Err(error) => Err(error),
        };
        if ended.as_ref().is_err_and(|error| error.kind() != Kind::KafkaUnreachable) {
            publishing.publisher.drain(Instant::now() + DRAIN_TIMEOUT).await;
        }
        publishing.note();
        let Publishing { publisher, published, stop, .. } = publishing;
        if stop.asked() < Stop::Now {
            publisher.sink.close().await;
        }
        (published, ended)
    }
}

impl Publishing<'_> {
    async fn all(&mut self, reader: &crate::poll::Reader, say: &mut dyn FnMut(&Published, u64, bool)) -> Result<Ended> {
        for (at, table) in self.tables.iter().enumerate() {
            let selection = Selection::of(Which::Where(&table.condition));
            let rows = reader.rows(&rows(&table.facts, table.outbox, &selection)?).await?;
            if self.table(at, rows, &mut table.polled()?, say).await? == Ended::Stopped {
                return Ok(Ended::Stopped);
            }
        }
        Ok(Ended::All)
    }

    async fn table(
        &mut self,
        at: usize,
        mut rows: Rows,
        polled: &mut Polled,
        say: &mut dyn FnMut(&Published, u64, bool),
    ) -> Result<Ended> {
        let (mut ended, mut next_tell) = (false, Instant::now() + TELL_INTERVAL);
        loop {
            self.publisher.retry_pending()?;
            self.note();
            let (now, drained) = (Instant::now(), self.publisher.is_drained());
            if let Some(until) = self.leaving
                && (drained || until <= now)
            {
                return Ok(Ended::Stopped);
            }
            if ended && drained {
                return Ok(Ended::All);
            }
            if next_tell <= now {
                next_tell = now + TELL_INTERVAL;
                say(&self.published, self.total, self.publisher.sink.connection() == Connection::Up);
            }
            let room = !ended && self.leaving.is_none() && self.publisher.has_room();
            let retry = self.publisher.is_pending().then_some(now + RETRY_INTERVAL);
            let wake = [retry, self.leaving].into_iter().flatten().fold(next_tell, Instant::min);
            let asked = if self.leaving.is_some() { Stop::Now } else { Stop::Drain };
            tokio::select! {
                biased;
                () = self.stop.at_least(asked) => {
                    let grace = if self.stop.asked() == Stop::Now { Duration::ZERO } else { self.grace };
                    self.leaving = Some(Instant::now() + grace);
                }
                () = tokio::time::sleep_until(wake) => {}
                () = self.publisher.next_deliveries(&mut self.deliveries) => self.publisher.delivered(&mut self.deliveries)?,
                error = &mut self.unusable => return Err(error),
                row = rows.next(), if room => {
                    let (mut next, mut left) = (row?, ROWS_PER_TURN);
                    ended = next.is_none();
                    while let Some(row) = next.take() {
                        self.take(at, &row, polled)?;
                        left -= 1;
                        if left == 0 || !self.publisher.has_room() {
                            break;
                        }
                        // What is there already, without waiting.
                        tokio::select! {
                            biased;
                            row = rows.next() => {
                                next = row?;
                                ended = next.is_none();
                            }
                            () = std::future::ready(()) => {}
                        }
                    }
                }
            }
        }
    }

    fn take(&mut self, at: usize, row: &PolledRow, polled: &mut Polled) -> Result<()> {
        let Some(table) = self.tables.get(at) else { return Ok(()) };
        let (number, id) = (self.published.taken, row.id().to_owned());
        let place = Place { commit_lsn: self.lsn, index: number, via: Via::Replay };
        let event = polled.event(place, table.number, row.values());
        let mut event = event.map_err(|(column, fault)| {
            let column = table.outbox.columns.get(column).map(String::as_str).unwrap_or_default();
            Error::new(Kind::Event, format!("a row of table {}: column {column} {fault}", table.facts.name))
        })?;
        event.committed_at_us = now_us();
        self.publisher.publish(&event)?;
        self.published.taken += 1;
        self.waiting.push_back(Waiting { number, table: at, id });
        Ok(())
    }

    /// Notes what was acked.
    fn note(&mut self) {
        self.published.acked = self.publisher.counts().acked;
        let delivered = self.publisher.completed_of(self.lsn);
        while self.waiting.front().is_some_and(|waiting| waiting.number < delivered)
            && let Some(Waiting { table, id, .. }) = self.waiting.pop_front()
        {
            let table = self.tables.get(table).map(|table| table.facts.name.to_string());
            self.published.up_to = table.map(|table| (table, id));
        }
    }
}
