//! Publishes rows of the outbox once more, on request.
//!
//! [`RowFilter`] becomes a condition that Postgres has checked. [`Replay::survey`] reads and routes
//! every row and sends none; [`Replay::publish`] sends the same rows. Both read in one transaction,
//! so that exactly the confirmed rows are sent. Nothing in the database changes, no position is
//! stored and no lease is taken, so a relay can run meanwhile. A replayed event therefore arrives
//! after newer ones of its aggregate. It has the header
//! [`REPLAY_HEADER`](walrelay_core::route::REPLAY_HEADER).

mod filter;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use tokio_postgres::Client;

pub(crate) use self::filter::RowFilter;
use crate::config::{Config, SourceConfig};
use crate::poll::select::{extent, rows};
use crate::poll::{NEEDS_ORDER, PolledRow, Reader, RowStream, Selection, TableFacts, table_facts};
use crate::postgres::fault;
use crate::postgres::quote::{quote_ident, quote_literal, quote_own_rows, quoted};
use crate::postgres::replication::WalSession;
use crate::relay::drain::{DRAIN_TIMEOUT, drain};
use crate::relay::stop::{Stop, StopSignal};
use crate::relay::{RETRY_INTERVAL, setup_of};
use crate::sink::{AnySink, BusSink as _};
use crate::source::control::timeline;
use crate::source::preflight::inspect;
use crate::upkeep::parked::may_look;
use walrelay_core::catch_up::Which;
use walrelay_core::clock::now_us;
use walrelay_core::config::{DeliveryConfig, OutboxConfig, SlotName, Upkeep};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::event::{Event, Place, Polled, Via};
use walrelay_core::position::{Lsn, Position};
use walrelay_core::publisher::{Publisher, Setup};
use walrelay_core::route::Router;
use walrelay_core::table_read::TableRow as _;

/// The greatest number of reported rows that cannot be routed.
const EXAMPLES_MAX: usize = 10;

const TELL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Table<'c> {
    number: usize,
    outbox: &'c OutboxConfig,
    facts: TableFacts,
    condition: String,
}

impl Table<'_> {
    fn polled(&self) -> Result<Polled> {
        let columns = self.facts.columns.clone();
        Polled::new(self.outbox, columns).map_err(|column| {
            Error::new(
                Kind::Publication,
                format!("table {} has no column {column}", self.facts.name),
            )
        })
    }

    /// The event of a row, or the fault of the row.
    fn event<'a>(
        &self,
        polled: &'a mut Polled,
        place: Place,
        row: &PolledRow,
    ) -> Result<Event<'a>, String> {
        polled
            .event(place, self.number, row.values())
            .map_err(|(column, fault)| format!("column {column} {fault}"))
    }
}

#[derive(Debug)]
pub(crate) struct Replay<'c> {
    config: &'c Config,
    reader: Reader,
    tables: Vec<Table<'c>>,
    /// System identifier and timeline, for the position header.
    origin: (String, u32),
    /// The end of the WAL when the rows were read.
    lsn: Lsn,
    total: u64,
    notes: Vec<String>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Survey {
    pub rows: u64,
    pub unroutable: u64,
    pub tables: Vec<FoundRows>,
    pub unroutable_rows: Vec<Unroutable>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct FoundRows {
    pub outbox: String,
    pub rows: u64,
    /// The order of the rows before the id, as SQL.
    pub order: Option<String>,
    /// The id of the first row in that order.
    pub first: Option<String>,
    pub last: Option<String>,
    /// The earliest time, if the table has a time column.
    pub from: Option<String>,
    pub to: Option<String>,
    pub topics: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Unroutable {
    pub outbox: String,
    pub id: String,
    pub why: String,
}

impl Survey {
    pub(crate) fn topics(&self) -> Vec<&str> {
        let mut topics: Vec<&str> = self
            .tables
            .iter()
            .flat_map(|found| found.topics.keys().map(String::as_str))
            .collect();
        topics.sort_unstable();
        topics.dedup();
        topics
    }

    fn unroutable(&mut self, outbox: &str, id: &str, why: String) {
        self.unroutable += 1;
        if self.unroutable_rows.len() < EXAMPLES_MAX {
            self.unroutable_rows.push(Unroutable {
                outbox: outbox.to_owned(),
                id: id.to_owned(),
                why,
            });
        }
    }
}

fn orderless(table: &str, count: u64) -> Error {
    let cause = format!(
        "{count} rows of table {table} are asked for, and nothing tells the order of an \
         aggregate's events: it has no \
         identity or serial column"
    );
    Error::new(Kind::Config, cause).remedy(format!(
        "{NEEDS_ORDER}; or replay one row at a time with --id"
    ))
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct ReplayProgress {
    #[serde(skip)]
    pub taken: u64,
    #[serde(rename = "published")]
    pub acked: u64,
    /// The last row that is acked together with all rows before it.
    pub up_to: Option<UpTo>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct UpTo {
    pub outbox: String,
    pub id: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendEnd {
    All,
    Stopped,
}

/// The turns of a loop that sends records and takes acks: each ends with a stop, a report, or the
/// time to offer a record again.
pub(crate) struct Turns {
    stop: StopSignal,
    /// The time limit for records in flight after a stop.
    grace: Duration,
    /// The deadline for records in flight, after the last record was sent.
    pub(crate) leaving: Option<Instant>,
    next_tell: Instant,
}

impl Turns {
    pub(crate) fn new(stop: StopSignal, grace: Duration) -> Turns {
        Turns {
            stop,
            grace,
            leaving: None,
            next_tell: Instant::now() + TELL_INTERVAL,
        }
    }

    /// Whether the loop has to end: the deadline has passed, or nothing is in flight (`idle`).
    pub(crate) fn has_to_leave(&self, idle: bool) -> bool {
        self.leaving
            .is_some_and(|until| idle || until <= Instant::now())
    }

    /// Whether the loop ends at once, without an orderly end.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.stop.asked() == Stop::Now
    }

    pub(crate) fn is_time_to_tell(&mut self) -> bool {
        let now = Instant::now();
        let is_time = self.next_tell <= now;
        if is_time {
            self.next_tell = now + TELL_INTERVAL;
        }
        is_time
    }

    /// Waits for the next turn. With `retry`, a record is to be offered to a full producer again.
    /// Safe to cancel.
    pub(crate) async fn next(&mut self, retry: bool) {
        let retry = retry.then(|| Instant::now() + RETRY_INTERVAL);
        let wake = [retry, self.leaving]
            .into_iter()
            .flatten()
            .fold(self.next_tell, Instant::min);
        let asked = if self.leaving.is_some() {
            Stop::Now
        } else {
            Stop::Drain
        };
        tokio::select! {
            biased;
            () = self.stop.at_least(asked) => {
                let grace = if self.is_abandoned() { Duration::ZERO } else { self.grace };
                self.leaving = Some(Instant::now() + grace);
            }
            () = tokio::time::sleep_until(wake) => {}
        }
    }
}

impl<'c> Replay<'c> {
    /// Reads the facts of the tables of `config`, has Postgres check `wanted`, and begins the
    /// transaction for all rows. From here on the server refuses changes by the session of
    /// `reader`. Errors: [`Kind::Config`], with the flag, for a condition that does not fit a
    /// table, and where no outbox is a table; [`Kind::PostgresRefused`] where the role may not read
    /// a table; those of [`table_facts`] and of the session.
    pub(crate) async fn open(
        config: &'c Config,
        reader: Reader,
        wanted: &RowFilter,
    ) -> Result<Replay<'c>> {
        let client = reader.client();
        let unchanged = client
            .batch_execute("set default_transaction_read_only = on")
            .await;
        unchanged.map_err(|error| fault::query("preparing to read", &error))?;
        let origin = origin(client, config).await?;
        let mut tables = Vec::new();
        let mut notes = Vec::new();
        for (number, outbox) in config.outboxes.iter().enumerate() {
            if outbox.source.table().is_none() {
                notes.push(format!(
                    "{} leave no rows behind, and none are replayed",
                    outbox.source
                ));
                continue;
            }
            let mut facts = table_facts(client, outbox).await?;
            // `verify` finds rows of tables that inherit missing: no stream has them.
            facts.with_children = true;
            if !facts.may_select {
                return Err(unreadable(&facts, &config.source));
            }
            let condition = wanted.condition(client, &facts, outbox, &mut notes).await?;
            tables.push(Table {
                number,
                outbox,
                facts,
                condition,
            });
        }
        if tables.is_empty() {
            let cause = "all outboxes are messages, which leave no row behind to be replayed";
            return Err(Error::new(Kind::Config, cause).remedy("replay an outbox that is a table"));
        }
        let lsn = reader
            .begin(
                None,
                &tables.iter().map(|table| &table.facts).collect::<Vec<_>>(),
            )
            .await?
            .wal_end;
        notes.extend(notes_of_parked(&reader, &config.source.slot, &tables).await?);
        Ok(Replay {
            config,
            reader,
            tables,
            origin,
            lsn,
            total: 0,
            notes,
        })
    }

    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Reads and routes all rows. Calls `say` for each row with the table, the number of rows so
    /// far, and their total.
    ///
    /// Holds one row, and a count for each topic.
    /// Errors: [`Kind::Config`] for several rows of a table without an order; those of the session.
    pub(crate) async fn survey(&mut self, say: &mut dyn FnMut(&str, u64, u64)) -> Result<Survey> {
        let mut survey = Survey::default();
        for table in &self.tables {
            let facts = &table.facts;
            let outbox = table.outbox;
            let selection = Selection::of(Which::Where(&table.condition));
            let (count, from, to) = self
                .reader
                .extent(&extent(facts, outbox, &selection)?)
                .await?;
            let order = facts.order.as_ref().map(|order| order.sql.clone());
            let name = facts.name.to_string();
            let mut found = FoundRows {
                outbox: name.clone(),
                rows: count,
                order,
                from,
                to,
                ..FoundRows::default()
            };
            if count > 1 && found.order.is_none() {
                return Err(orderless(&name, count));
            }
            if count > 0 {
                let mut rows = self.reader.rows(&rows(facts, outbox, &selection)?).await?;
                let mut router =
                    Router::new(outbox).map_err(|unknown| Error::new(Kind::Bug, unknown))?;
                let mut polled = table.polled()?;
                let mut read = 0;
                while let Some(row) = rows.next().await? {
                    read += 1;
                    let id = row.id().to_owned();
                    let place = Place {
                        commit_lsn: Lsn::ZERO,
                        index: 0,
                        via: Via::Replay,
                    };
                    let topic = table.event(&mut polled, place, &row).and_then(|event| {
                        let routed = router
                            .route(&event)
                            .map_err(|error| error.problem.to_string())?;
                        Ok(routed.with_record(|record| record.topic.to_owned()))
                    });
                    match topic {
                        Ok(topic) => *found.topics.entry(topic).or_default() += 1,
                        Err(why) => survey.unroutable(&name, &id, why),
                    }
                    found.first.get_or_insert_with(|| id.clone());
                    found.last = Some(id);
                    say(&name, read, count);
                }
            }
            survey.rows += found.rows;
            survey.tables.push(found);
        }
        self.total = survey.rows;
        Ok(survey)
    }

    /// Publishes the rows that [`Replay::survey`] found, and waits until all are acked. Returns the
    /// progress also with an error. Calls `say` about once a second with the progress, the total,
    /// and whether the bus answers.
    ///
    /// Memory holds the records in flight (`sink.max_in_flight_bytes`) and the rows that
    /// [`Reader::rows`] names. A stop takes no more rows, and waits for acks at most for
    /// `shutdown.timeout`; a second stop ends at once. Errors: those of session and producer; a row
    /// that cannot be produced. No later row is taken; those in flight may be published.
    pub(crate) async fn publish(
        &mut self,
        sink: AnySink,
        stop: StopSignal,
        say: &mut dyn FnMut(&ReplayProgress, u64, bool),
    ) -> (ReplayProgress, Result<SendEnd>) {
        let config = self.config;
        // The rows are not written to.
        let untouched = |outbox: &OutboxConfig| OutboxConfig {
            upkeep: Upkeep::default(),
            ..outbox.clone()
        };
        // The command itself reports a row that cannot be delivered.
        let outboxes = config.outboxes.iter().map(untouched).collect();
        let delivery = DeliveryConfig::default();
        let setup = Setup {
            outboxes,
            delivery,
            ..setup_of(config)
        };
        let producer = sink.handle();
        // For the ledger, all rows are one transaction that never ends: nothing is to be confirmed.
        let publisher =
            Publisher::new(&setup, Position::default(), sink).and_then(|mut publisher| {
                publisher.set_origin(&self.origin.0, self.origin.1);
                publisher
                    .ledger
                    .begin(self.lsn)
                    .map_err(|error| Error::new(Kind::Bug, error))?;
                Ok(publisher)
            });
        let publisher = match publisher {
            Ok(publisher) => publisher,
            Err(error) => return (ReplayProgress::default(), Err(error)),
        };
        let mut publishing = Publishing {
            publisher,
            tables: &self.tables,
            lsn: self.lsn,
            total: self.total,
            in_flight: VecDeque::new(),
            published: ReplayProgress::default(),
            turns: Turns::new(stop, config.shutdown.timeout),
            unusable: Box::pin(async move { producer.unusable().await }),
        };
        let ended = publishing.all(&self.reader, say).await;
        if ended
            .as_ref()
            .is_err_and(|error| error.kind() != Kind::BusUnreachable)
        {
            let until = Instant::now() + DRAIN_TIMEOUT;
            drop(drain(&mut publishing.publisher, until, &mut publishing.turns.stop).await);
        }
        publishing.note();
        if !publishing.turns.is_abandoned() {
            publishing.publisher.sink.close().await;
        }
        (publishing.published, ended)
    }
}

struct RowInFlight {
    /// The number of the row among all rows, from 0.
    number: u64,
    table: usize,
    id: String,
}

struct Publishing<'r> {
    publisher: Publisher<AnySink>,
    tables: &'r [Table<'r>],
    lsn: Lsn,
    total: u64,
    /// Rows in flight, in their order. The limits on events in flight bound their number.
    in_flight: VecDeque<RowInFlight>,
    published: ReplayProgress,
    turns: Turns,
    unusable: Pin<Box<dyn Future<Output = Error> + Send>>,
}

impl Publishing<'_> {
    async fn all(
        &mut self,
        reader: &Reader,
        say: &mut dyn FnMut(&ReplayProgress, u64, bool),
    ) -> Result<SendEnd> {
        for (at, table) in self.tables.iter().enumerate() {
            let selection = Selection::of(Which::Where(&table.condition));
            let rows = reader
                .rows(&rows(&table.facts, table.outbox, &selection)?)
                .await?;
            if self.table(at, rows, &mut table.polled()?, say).await? == SendEnd::Stopped {
                return Ok(SendEnd::Stopped);
            }
        }
        Ok(SendEnd::All)
    }

    async fn table(
        &mut self,
        at: usize,
        mut rows: RowStream,
        polled: &mut Polled,
        say: &mut dyn FnMut(&ReplayProgress, u64, bool),
    ) -> Result<SendEnd> {
        let mut ended = false;
        loop {
            self.publisher.retry_pending()?;
            self.note();
            let drained = self.publisher.is_drained();
            if self.turns.has_to_leave(drained) {
                return Ok(SendEnd::Stopped);
            }
            if ended && drained {
                return Ok(SendEnd::All);
            }
            if self.turns.is_time_to_tell() {
                say(&self.published, self.total, self.publisher.sink.is_up());
            }
            let room = !ended && self.turns.leaving.is_none() && self.publisher.has_room();
            let retry = self.publisher.is_pending();
            tokio::select! {
                biased;
                () = self.turns.next(retry) => {}
                () = self.publisher.receive_deliveries() => self.publisher.delivered()?,
                error = &mut self.unusable => return Err(error),
                row = rows.next(), if room => match row? {
                    Some(row) => self.take(at, &row, polled)?,
                    None => ended = true,
                }
            }
        }
    }

    fn take(&mut self, at: usize, row: &PolledRow, polled: &mut Polled) -> Result<()> {
        let Some(table) = self.tables.get(at) else {
            return Ok(());
        };
        let number = self.published.taken;
        let id = row.id().to_owned();
        let place = Place {
            commit_lsn: self.lsn,
            index: number,
            via: Via::Replay,
        };
        let mut event = table.event(polled, place, row).map_err(|fault| {
            Error::new(
                Kind::Event,
                format!("a row of table {}: {fault}", table.facts.name),
            )
        })?;
        event.committed_at_us = now_us();
        self.publisher.publish(&event, std::time::Instant::now())?;
        self.published.taken += 1;
        self.in_flight.push_back(RowInFlight {
            number,
            table: at,
            id,
        });
        Ok(())
    }

    fn note(&mut self) {
        self.published.acked = self.publisher.counts.acked;
        let delivered = self.publisher.completed().delivered_of(self.lsn);
        while self
            .in_flight
            .front()
            .is_some_and(|row| row.number < delivered)
            && let Some(RowInFlight { table, id, .. }) = self.in_flight.pop_front()
        {
            let table = self
                .tables
                .get(table)
                .map(|table| table.facts.name.to_string());
            self.published.up_to = table.map(|outbox| UpTo { outbox, id });
        }
    }
}

fn unreadable(facts: &TableFacts, source: &SourceConfig) -> Error {
    let cause = format!(
        "rows have to be read from table {}, and the role may not",
        facts.name
    );
    let remedy = format!(
        "grant select on {} to {};",
        facts.name,
        quoted(&source.database.user)
    );
    Error::new(Kind::PostgresRefused, cause).remedy(remedy)
}

/// The system identifier and timeline of the server. Without the right to read the identifier, it
/// is empty.
async fn origin(client: &Client, config: &Config) -> Result<(String, u32)> {
    let source = &config.source;
    let facts = inspect(client, source, &config.outboxes).await?;
    if facts.server.in_recovery {
        let cause = "the server is a standby, which cannot say what its rows are from";
        return Err(Error::new(Kind::PostgresUnreachable, cause).remedy("name the primary"));
    }
    match facts.system_identifier {
        Some(system_identifier) => Ok((system_identifier, timeline(client).await?)),
        None if facts.server.may_replicate => {
            let server = WalSession::connect(&source.database, source)
                .await?
                .identify_system()
                .await?;
            Ok((server.system_identifier, server.timeline))
        }
        None => Ok((String::new(), timeline(client).await?)),
    }
}

/// Notes rows whose events are parked, if the role may read that table. Published now, such events
/// arrive twice, and before other parked events of their aggregates. For use inside the reader's
/// transaction.
async fn notes_of_parked(
    reader: &Reader,
    slot: &SlotName,
    tables: &[Table<'_>],
) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    if !may_look(reader.client()).await? {
        return Ok(notes);
    }
    for table in tables {
        let slot = quote_literal(slot.as_str())?;
        let outbox = quote_literal(&table.outbox.source.to_string())?;
        let waiting = format!(
            "select w.row_id from walrelay.parked w where w.slot = {slot} and w.outbox = {outbox}"
        );
        if reader
            .count(&format!("select count(*) from ({waiting} limit 1) of"))
            .await?
            == 0
        {
            continue;
        }
        let from = quote_own_rows(&table.facts.name, table.facts.with_children)?;
        let id = quote_ident(&table.outbox.names.id)?;
        let condition = &table.condition;
        let count = reader
            .count(&format!(
                "select count(*) from {from} where ({condition}\n) and \
                 pg_catalog.convert_to({id}::text, 'UTF8') in ({waiting})"
            ))
            .await?;
        if count > 0 {
            notes.push(format!(
                "events of {count} of these rows of {} are parked: they are published now, before \
                 what waits of their \
                 aggregates, and again when their turn comes, unless walrelay parked drop gives \
                 them up",
                table.facts.name
            ));
        }
    }
    Ok(notes)
}
