//! Marks or deletes the rows of acked events, and reads and writes the parked events in the same
//! session.

use std::collections::{BTreeSet, HashSet};
use std::str;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use futures_util::future::try_join_all;
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use tokio::time::{Instant, timeout};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, ToStatement};

use crate::config::Config;
use crate::postgres::query::{QueryError, bounded, takes_writes};
use crate::postgres::quote::quote_literal;
use crate::postgres::sql::{Ended, SqlSession};
use crate::upkeep::parked::{DOING, DROPPED, INDEX, ParkedTable};
use crate::upkeep::writer::{Writer, Written, asks_by_pending, writer};
use crate::upkeep::{ANSWER_TIMEOUT, DatabaseIdentity, LOCK_TIMEOUT, bound, connect_at};
use walrelay_core::config::OutboxConfig;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::event::RowId;
use walrelay_core::parked::{AggregateHead, Batch, Failure, Limit, ParkedRef, ParkedRow, Parking};
use walrelay_core::snapshot::Snapshot;

/// Rows of one statement, which takes a fraction of a second.
const ROWS_PER_STATEMENT: usize = 2_000;
/// The attempts of a transaction that another session blocks.
const ATTEMPTS: u32 = 5;
/// The lock timeout of [`Marker::impatient`].
const MOMENT: Duration = Duration::from_millis(250);
/// How long [`Marker::sees`] waits, and the pause before its next look.
const UNSEEN_MAX: Duration = Duration::from_millis(250);
const UNSEEN_PAUSE: Duration = Duration::from_millis(5);
/// The pause after the first attempt, doubled after each further attempt.
const PAUSE: Duration = Duration::from_millis(50);

/// Marks or deletes acked rows, in a session of its own.
#[derive(Debug)]
pub struct Marker {
    session: SqlSession,
    /// The database of the session, and of each one that is opened in its stead.
    pub(crate) database: DatabaseIdentity,
    outboxes: Vec<OutboxConfig>,
    /// By the outbox's index; see [`Marker::writer`].
    writers: Vec<OnceCell<Writer>>,
    parked: Option<ParkedTable>,
    attempts: u32,
    /// Whether a cancelled call can have left a transaction open. Locked by each use of the
    /// session.
    open: Mutex<bool>,
}

struct Part<'a> {
    writer: &'a Writer,
    written: &'a Written,
    rows: Vec<Outcome<'a>>,
}

impl Part<'_> {
    /// Writes to these rows, and returns their number.
    async fn write(&self, client: &Client) -> Result<u64, QueryError> {
        let Part {
            writer,
            written,
            rows,
        } = self;
        let mut keys = vec![Vec::new(); *writer.key_values.end()];
        for Outcome { row, .. } in rows {
            let mut values = row.values();
            for column in &mut keys {
                let value = values.next().map(|value| text(written, value)).transpose();
                column.push(value.map_err(QueryError::refused)?);
            }
        }
        let failures = || rows.iter().filter_map(|row| row.failure);
        let causes: Vec<&str> = failures().map(|failure| failure.cause.as_str()).collect();
        let classes: Vec<&str> = failures().map(|failure| failure.class).collect();
        let attempts: Vec<i32> = failures()
            .map(|of| i32::try_from(of.attempts).unwrap_or(i32::MAX))
            .collect();
        let waits_ms: Vec<Option<i64>> = rows.iter().map(|row| row.retry_in_ms).collect();
        let mut values: Vec<&(dyn ToSql + Sync)> =
            keys.iter().map(|key| key as &(dyn ToSql + Sync)).collect();
        if !causes.is_empty() {
            values.extend([
                &causes as &(dyn ToSql + Sync),
                &classes,
                &attempts,
                &waits_ms,
            ]);
        }
        let answer = bounded(
            &written.doing,
            ANSWER_TIMEOUT,
            client.query(&written.statement, &values),
        )
        .await;
        let answer = answer.map_err(|failed| self.explained(failed))?;
        let mut numbers = HashSet::with_capacity(answer.len());
        for row in &answer {
            let read = || {
                Ok((
                    row.try_get::<_, i64>(0)?,
                    row.try_get::<_, Option<bool>>(1)?,
                ))
            };
            let (number, is_pending) =
                read().map_err(|error| QueryError::of(&written.doing, &error))?;
            if is_pending == Some(true) {
                return Err(QueryError::refused(writer.leaves_pending(written)));
            }
            if !numbers.insert(number) {
                return Err(QueryError::refused(writer.not_one_row(written)));
            }
        }
        Ok(answer.len() as u64)
    }

    fn explained(&self, failed: QueryError) -> QueryError {
        let error = self.writer.explained(self.written, &failed);
        failed.with(error)
    }
}

/// A row, and the failure of its event.
#[derive(Debug, Clone, Copy)]
struct Outcome<'a> {
    row: &'a RowId,
    failure: Option<&'a Failure>,
    retry_in_ms: Option<i64>,
}

impl Marker {
    /// As [`Marker::connect`], with the parking of this configuration.
    pub(crate) async fn of(config: &Config, identity: &DatabaseIdentity) -> Result<Option<Marker>> {
        Marker::connect(config, Parking::of(&config.delivery), identity).await
    }

    /// Opens a session in this database, where the outboxes of this configuration are, and prepares
    /// the statements; none where no outbox is written to.
    ///
    /// Checks statements, columns and privileges. Changes nothing, and no trigger fires. The
    /// session looks names up in `pg_catalog` alone, so functions of the operator's own need their
    /// schema in `outbox.mark`.
    ///
    /// # Errors
    /// [`Kind::Config`] for an `outbox.mark` that Postgres rejects, or that would move rows to
    /// another partition and so publish them again; [`Kind::PostgresRefused`] with the `GRANT` for
    /// a missing privilege; [`Kind::Publication`] for a missing table or id column, and for a
    /// publication that prevents writes to rows; [`Kind::PostgresUnreachable`] where the session
    /// leads to another database; those of connecting.
    pub async fn connect(
        config: &Config,
        parking: Parking,
        identity: &DatabaseIdentity,
    ) -> Result<Option<Marker>> {
        let Config {
            source, outboxes, ..
        } = config;
        if !writes_any(outboxes, parking) {
            return Ok(None);
        }
        let database = source.upkeep.as_ref().unwrap_or(&source.database);
        let name = format!("walrelay {} upkeep", source.slot);
        let session = connect_at(database, &name, identity).await?;
        let client = session.client();
        bound(client).await?;
        let parked = ParkedTable::open(client, &source.slot, outboxes, parking).await?;
        let marker = Marker {
            session,
            database: identity.clone(),
            outboxes: outboxes.clone(),
            writers: outboxes.iter().map(|_| OnceCell::new()).collect(),
            parked,
            attempts: ATTEMPTS,
            open: Mutex::new(false),
        };
        for outbox in 0..outboxes.len() {
            match marker.writer(outbox).await {
                // A change of the table holds its lock, and its commit can wait for this relay.
                Err(error) if error.kind() == Kind::PostgresUnwritable => {
                    tracing::warn!(event = "table_locked", slot = %source.slot, %error,
                        "another session has the table locked; \
                         rows are written to once the lock is released");
                }
                checked => drop(checked?),
            }
        }
        Ok(Some(marker))
    }

    /// As [`Marker::of`], for a caller with other rows to write: the lock timeout is short, and
    /// there is one attempt.
    pub(crate) async fn impatient(
        config: &Config,
        identity: &DatabaseIdentity,
    ) -> Result<Option<Marker>> {
        const DOING: &str = "bounding waits for locks";
        let Some(marker) = Marker::of(config, identity).await? else {
            return Ok(None);
        };
        let name = quote_literal(&format!("walrelay {} retries", config.source.slot))?;
        let bound = format!(
            "set application_name = {name}; set lock_timeout = {}",
            MOMENT.as_millis()
        );
        bounded(
            DOING,
            ANSWER_TIMEOUT,
            marker.session.client().batch_execute(&bound),
        )
        .await?;
        Ok(Some(Marker {
            attempts: 1,
            ..marker
        }))
    }

    /// Errors: those of [`takes_writes`].
    pub(crate) async fn takes_writes(&self) -> Result<()> {
        Ok(takes_writes(self.session.client()).await?)
    }

    /// The statements for an outbox, prepared when they are asked for first; none for an outbox
    /// without writes.
    ///
    /// # Errors
    /// [`Kind::PostgresUnwritable`] while another session has the table locked; otherwise those of
    /// [`Marker::connect`].
    async fn writer(&self, outbox: usize) -> Result<Option<&Writer>> {
        let (Some(config), Some(prepared)) = (self.outboxes.get(outbox), self.writers.get(outbox))
        else {
            return Ok(None);
        };
        let Some(table) = config.source.table().filter(|_| config.upkeep.writes_any()) else {
            return Ok(None);
        };
        let prepare = || writer(self.session.client(), config, table, self.parked.is_some());
        match prepared.get_or_try_init(prepare).await {
            Err(error) if error.kind() == Kind::PostgresUnreachable && !self.is_closed() => {
                Err(error.with_kind(Kind::PostgresUnwritable))
            }
            prepared => prepared.map(Some),
        }
    }

    /// Marks or deletes these rows, in one transaction, and returns the number of written rows.
    ///
    /// Durable on this server when it returns. Missing rows are no error, nor are rows of outboxes
    /// without writes. A row whose key or id has changed since is not written. A transaction that
    /// locks of other sessions block is tried again for at most some twenty seconds;
    /// [`Marker::impatient`] does not try again. After an error nothing was written, unless the
    /// connection broke during the commit; a repetition is safe as far as the assignments are. Safe
    /// to cancel: the next call, or the server after a minute, ends an open transaction.
    ///
    /// # Errors
    /// [`Kind::PostgresUnwritable`] where the server refuses the write, or other sessions kept
    /// their locks; once that is mended, a repetition succeeds. [`Kind::PostgresUnreachable`] for a
    /// lost connection, and where the table changed: connect again. [`Kind::Event`] for an id that
    /// is not UTF-8; [`Kind::Config`] where the mark leaves rows pending.
    pub async fn settle(&self, batch: &Batch) -> Result<u64> {
        let moves = !batch.parked.is_empty()
            || !batch.unparked.is_empty()
            || !batch.failed_again.is_empty();
        let mut open = self.open.lock().await;
        self.end_left_over(&mut open).await?;
        let parts = self.parts(batch).await?;
        if parts.is_empty() && !moves {
            return Ok(0);
        }
        let mut attempt = 1;
        let mut pause = PAUSE;
        loop {
            let failed = match self.attempt(&mut open, &parts, batch).await {
                Ok(count) => return Ok(count),
                Err(failed) if failed.is_passing() => failed,
                Err(failed) => return Err(failed.of_write().into()),
            };
            if attempt == self.attempts {
                let times = if attempt > 1 {
                    format!(", {attempt} times in a row")
                } else {
                    String::new()
                };
                return Err(Error::new(
                    Kind::PostgresUnwritable,
                    format!("{}{times}", failed.error().cause()),
                )
                .remedy("see in pg_stat_activity who holds locks on these rows for long"));
            }
            tracing::debug!(attempt, error = %failed.error(), "another session was in the way; \
                trying again");
            tokio::time::sleep(pause).await;
            attempt += 1;
            pause *= 2;
        }
    }

    /// Whether other sessions see these transactions, for which it waits a moment.
    ///
    /// The slot delivers a commit as soon as it is in the WAL. Other sessions see it a little
    /// later, or much later where the commit waits for a standby: until then there is no row to
    /// mark. The standby may be the relay, which has to write something else first.
    ///
    /// # Errors
    /// Those of the session.
    pub async fn sees(&self, xids: &[u32]) -> Result<bool> {
        const DOING: &str = "looking whether others see the rows";
        const SQL: &str = "select pg_catalog.pg_current_snapshot()::text";
        if xids.is_empty() {
            return Ok(true);
        }
        let until = Instant::now() + UNSEEN_MAX;
        let (_turn, client) = self.client().await?;
        loop {
            let answer = bounded(DOING, ANSWER_TIMEOUT, client.query_one(SQL, &[])).await;
            let text = answer?
                .try_get::<_, String>(0)
                .map_err(|error| QueryError::of(DOING, &error))?;
            let snapshot = text.parse::<Snapshot>();
            let snapshot = snapshot.map_err(|error| {
                Error::new(Kind::PostgresUnfit, format!("while {DOING}: {error}"))
            })?;
            if xids.iter().all(|xid| snapshot.sees(snapshot.widen(*xid))) {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            tokio::time::sleep(UNSEEN_PAUSE).await;
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.session.client().is_closed()
    }

    /// Waits for the end of the session. Safe to cancel and to call again.
    pub fn closed(&self) -> impl Future<Output = Ended> + Send + 'static {
        self.session.closed()
    }

    /// All parked events.
    ///
    /// # Errors
    /// Those of the connection, and of a table that is gone or forbidden.
    pub async fn waiting(&self) -> Result<Vec<ParkedRef>> {
        let Some(table) = &self.parked else {
            return Ok(Vec::new());
        };
        table.drop_orphans(self.client().await?.1).await?;
        // Somebody may have removed events by hand, or an earlier session.
        table.seen.store(0, Ordering::Relaxed);
        let (_turn, client) = self.client().await?;
        // There may be many, so that their rows are not kept.
        let all = async {
            let slot: &(dyn ToSql + Sync) = &table.slot;
            let rows = client.query_raw(INDEX, [slot]).await?;
            let read = rows
                .map_ok(|row| table.waiting(&row))
                .try_collect::<Vec<_>>()
                .await?;
            Ok(read)
        };
        let read = bounded(DOING, ANSWER_TIMEOUT, all).await?;
        Ok(read
            .into_iter()
            .filter_map(Result::transpose)
            .collect::<Result<_, _>>()?)
    }

    /// The first event of each aggregate that is due for a retry, `limit` at most, without those in
    /// `except`.
    pub async fn due(&self, limit: i64, except: &[i64]) -> Result<Vec<AggregateHead>> {
        let Some(table) = &self.parked else {
            return Ok(Vec::new());
        };
        let (turn, client) = self.client().await?;
        table.replan(client).await?;
        table.look_at_new(client).await?;
        drop(turn);
        self.parked_rows(&table.due, &[&table.slot, &limit, &except], |table, row| {
            table.head(row)
        })
        .await
    }

    /// Events of an aggregate from `head` on, in their order, at least one and at most `limit`.
    /// Without its key the head alone.
    ///
    /// # Errors
    /// As [`Marker::waiting`], and for a row of the table that makes no event.
    pub async fn held(&self, head: &AggregateHead, limit: Limit) -> Result<Vec<ParkedRow>> {
        let Some(table) = &self.parked else {
            return Ok(Vec::new());
        };
        let name = table
            .outboxes
            .get(head.outbox)
            .map(String::as_str)
            .unwrap_or_default();
        let bytes = i64::try_from(limit.bytes).unwrap_or(i64::MAX);
        let values: [&(dyn ToSql + Sync); 6] = [
            &table.slot,
            &name,
            &head.key,
            &head.id,
            &limit.events,
            &bytes,
        ];
        self.parked_rows(&table.events, &values, |table, row| {
            table.held(row, head.outbox).map(Some)
        })
        .await
    }

    /// Outboxes in which a row that is set to pending requests a retry of its parked event, with
    /// their index.
    pub(crate) fn asked_by_pending(&self) -> impl Iterator<Item = (usize, &str)> {
        let names = self.parked.iter().flat_map(|table| &table.outboxes);
        names
            .zip(&self.outboxes)
            .enumerate()
            .filter(|(_, (_, config))| asks_by_pending(&config.upkeep))
            .map(|(index, (name, _))| (index, name.as_str()))
    }

    /// Requests a retry of parked events of outbox `index` whose rows were set to pending; returns
    /// their number. Errors: as [`Marker::waiting`], and those of `outbox.pending`.
    pub(crate) async fn ask_for_pending(&self, index: usize, outbox: &str) -> Result<u64> {
        const DOING: &str = "looking for rows that wait and are pending";
        let Some(table) = &self.parked else {
            return Ok(0);
        };
        let (_turn, client) = self.client().await?;
        let writer = self.writer(index).await?;
        let Some(ask) = writer.and_then(|writer| writer.ask.as_ref()) else {
            return Ok(0);
        };
        Ok(bounded(
            DOING,
            ANSWER_TIMEOUT,
            client.execute(ask, &[&table.slot, &outbox]),
        )
        .await?)
    }

    /// Parked events that an operator asked to drop, without those in `except`: id, event, and
    /// failure.
    pub async fn dropped(
        &self,
        limit: i64,
        except: &[i64],
    ) -> Result<Vec<(i64, ParkedRef, Failure)>> {
        let Some(table) = &self.parked else {
            return Ok(Vec::new());
        };
        self.parked_rows(DROPPED, &[&table.slot, &limit, &except], |table, row| {
            table.dropped_event(row)
        })
        .await
    }

    /// The results of `read` for the rows of a query of the table of parked events.
    async fn parked_rows<T>(
        &self,
        query: &(impl ToStatement + ?Sized + Sync),
        values: &[&(dyn ToSql + Sync)],
        read: impl Fn(&ParkedTable, &Row) -> Result<Option<T>, QueryError>,
    ) -> Result<Vec<T>> {
        let Some(table) = &self.parked else {
            return Ok(Vec::new());
        };
        let (_turn, client) = self.client().await?;
        let rows = bounded(DOING, ANSWER_TIMEOUT, client.query(query, values)).await?;
        Ok(rows
            .iter()
            .filter_map(|row| read(table, row).transpose())
            .collect::<Result<_, _>>()?)
    }

    /// The number of events of outboxes that are not configured that [`Marker::waiting`] dropped
    /// since the last call.
    pub(crate) fn take_dropped(&self) -> u64 {
        self.parked
            .as_ref()
            .map_or(0, |table| table.dropped.swap(0, Ordering::Relaxed))
    }

    /// Whether the session answers soon, after an error of another call. One whose commit waits
    /// for a standby does not.
    pub(crate) async fn answers(&self) -> bool {
        let asked = async {
            let (_turn, client) = self.client().await.ok()?;
            client.batch_execute("select 1").await.ok()
        };
        matches!(timeout(LOCK_TIMEOUT, asked).await, Ok(Some(())))
    }

    /// The session, without an open transaction, for as long as the guard is held.
    async fn client(&self) -> Result<(MutexGuard<'_, bool>, &Client), QueryError> {
        let mut turn = self.open.lock().await;
        self.end_left_over(&mut turn).await?;
        Ok((turn, self.session.client()))
    }

    /// The writes to each table, rows in the order of their keys, so that two sessions that mark
    /// the same rows do not deadlock.
    async fn parts<'a>(&'a self, batch: &'a Batch) -> Result<Vec<Part<'a>>> {
        let is_written = |outbox: usize| {
            self.outboxes
                .get(outbox)
                .is_some_and(|it| it.upkeep.writes())
        };
        let acked: Vec<_> = batch
            .acked
            .iter()
            .filter(|row| is_written(row.outbox))
            .map(|row| Outcome {
                row,
                failure: None,
                retry_in_ms: None,
            })
            .collect();
        let outcome = |row, failure, retry_in_ms| Outcome {
            row,
            failure: Some(failure),
            retry_in_ms,
        };
        let failed: Vec<_> = batch
            .failed
            .iter()
            .map(|(row, failure)| outcome(row, failure, None))
            .collect();
        let parked = batch
            .waiting
            .iter()
            .filter_map(|event| Some(outcome(&event.row, event.tried()?, event.retry_in_ms)));
        let again = batch
            .failed_again
            .iter()
            .map(|event| outcome(&event.row, &event.failure, event.retry_in_ms));
        let waiting: Vec<_> = parked.chain(again).collect();
        let all = [&acked, &failed, &waiting].into_iter().flatten();
        let written: BTreeSet<usize> = all.map(|outcome| outcome.row.outbox).collect();
        let mut parts = Vec::new();
        for index in written {
            let Some(writer) = self.writer(index).await? else {
                continue;
            };
            for (written, rows) in [
                (&writer.acked, &acked),
                (&writer.failed, &failed),
                (&writer.waiting, &waiting),
            ] {
                if let Some(written) = written {
                    parts.extend(written_to(writer, index, written, rows));
                }
            }
        }
        Ok(parts)
    }

    async fn attempt(
        &self,
        open: &mut MutexGuard<'_, bool>,
        parts: &[Part<'_>],
        batch: &Batch,
    ) -> Result<u64, QueryError> {
        let client = self.session.client();
        **open = true;
        let written = self.transaction(parts, batch).await;
        if let Err(QueryError::Refused { .. }) = &written {
            bounded(
                "giving up a transaction",
                ANSWER_TIMEOUT,
                client.batch_execute("rollback"),
            )
            .await?;
        }
        **open = false;
        written
    }

    async fn transaction(&self, parts: &[Part<'_>], batch: &Batch) -> Result<u64, QueryError> {
        let client = self.session.client();
        let begin = match batch.on_standbys() {
            true => "begin isolation level read committed; set local synchronous_commit = on",
            false => "begin isolation level read committed",
        };
        bounded(
            "beginning a transaction",
            ANSWER_TIMEOUT,
            client.batch_execute(begin),
        )
        .await?;
        let mut count = 0;
        for part in parts {
            count += part.write(client).await?;
        }
        if let Some(table) = &self.parked {
            moved(client, table, batch).await?;
        }
        let last = parts.last();
        let doing = last.map_or("committing what was written to the outbox", |part| {
            &part.written.doing
        });
        let committed = bounded(doing, ANSWER_TIMEOUT, client.batch_execute("commit")).await;
        committed.map_err(|failed| match last {
            Some(part) => part.explained(failed),
            None => failed,
        })?;
        Ok(count)
    }

    /// Ends the transaction of a cancelled call.
    async fn end_left_over(&self, open: &mut MutexGuard<'_, bool>) -> Result<(), QueryError> {
        if **open {
            bounded(
                "giving up a transaction",
                ANSWER_TIMEOUT,
                self.session.client().batch_execute("rollback"),
            )
            .await?;
            **open = false;
        }
        Ok(())
    }
}

fn writes_any(outboxes: &[OutboxConfig], parking: Parking) -> bool {
    parking != Parking::Off || outboxes.iter().any(|outbox| outbox.upkeep.writes_any())
}

/// The writes of one statement to rows of outbox `index`.
fn written_to<'a>(
    writer: &'a Writer,
    index: usize,
    written: &'a Written,
    rows: &[Outcome<'a>],
) -> Vec<Part<'a>> {
    let mut of: Vec<Outcome<'a>> = rows
        .iter()
        .filter(|outcome| outcome.row.outbox == index)
        .copied()
        .collect();
    // An event that was written, or parked, before its table had the columns of the key has no key.
    let all = of.len();
    of.retain(|outcome| writer.key_values.contains(&outcome.row.values().count()));
    if of.len() < all {
        let rows = all - of.len();
        let table = &writer.table;
        tracing::warn!(event = "rows_left_unmarked", %table, rows,
            "while {}: rows are left as they are, for their events were written before the table \
             had the columns that \
             name a row", written.doing);
    }
    of.sort_by(|one, other| one.row.key.cmp(&other.row.key));
    of.dedup_by(|row, before| row.row.key == before.row.key);
    of.chunks(ROWS_PER_STATEMENT)
        .map(|rows| Part {
            writer,
            written,
            rows: rows.to_vec(),
        })
        .collect()
}

/// Writes the changes of the parked events. Each statement is sent when it is polled first, so that
/// all are sent in their order before the first answer. The error is that of the first failed
/// statement: in a transaction, later ones have no effect.
async fn moved(client: &Client, table: &ParkedTable, batch: &Batch) -> Result<(), QueryError> {
    for events in together(&batch.parked, |event| event.bytes()) {
        table.replan(client).await?;
        try_join_all(events.iter().map(|event| table.park(client, event))).await?;
    }
    for events in together(&batch.failed_again, |event| event.failure.cause.len()) {
        try_join_all(events.iter().map(|event| table.failed(client, event))).await?;
    }
    if batch.unparked.is_empty() {
        Ok(())
    } else {
        table.remove(client, &batch.unparked).await
    }
}

fn text<'a>(written: &Written, id: &'a [u8]) -> Result<&'a str> {
    str::from_utf8(id).map_err(|_| {
        let cause = format!(
            "while {}: a value of a row's key is not UTF-8, and Postgres cannot be asked for it",
            written.doing
        );
        Error::new(Kind::Event, cause)
            .remedy("give the database an encoding that UTF-8 can represent")
    })
}

/// Statements that are sent together, and their bytes.
const TOGETHER: usize = 256;
const TOGETHER_BYTES: usize = 1 << 20;

/// Cuts `items`, in their order, into parts that may be sent together.
fn together<T>(items: &[T], bytes: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    let mut left = items;
    std::iter::from_fn(move || {
        let mut sum = 0_usize;
        let fits = left.iter().take(TOGETHER).take_while(|item| {
            let is_first = sum == 0;
            sum = sum.saturating_add(bytes(item).max(1));
            is_first || sum <= TOGETHER_BYTES
        });
        let (next, rest) = left.split_at_checked(fits.count())?;
        left = rest;
        (!next.is_empty()).then_some(next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::cell::RefCell;

    #[test]
    fn items_are_divided_in_order_into_groups_of_bounded_size() {
        let lengths = |items: &[usize]| -> Vec<usize> {
            let cut: Vec<_> = together(items, |bytes| *bytes).collect();
            assert_eq!(cut.concat(), items);
            cut.iter().map(|items| items.len()).collect()
        };
        assert_eq!(lengths(&[]), [0; 0]);
        assert_eq!(lengths(&[0; TOGETHER * 2 + 1]), [TOGETHER, TOGETHER, 1]);
        let half = TOGETHER_BYTES / 2;
        let more = TOGETHER_BYTES * 2;
        assert_eq!(lengths(&[half, half, 1]), [2, 1]);
        assert_eq!(
            lengths(&[more, more, half, usize::MAX, 0]),
            [1, 1, 1, 1, 1],
            "one goes, however large"
        );
    }

    /// Is answered when it is polled a second time.
    async fn asked(
        number: usize,
        sent: &RefCell<Vec<usize>>,
        answer: Result<(), usize>,
    ) -> Result<(), usize> {
        sent.borrow_mut().push(number);
        tokio::task::yield_now().await;
        sent.borrow_mut().push(number + 10);
        answer
    }

    #[tokio::test]
    async fn statements_are_sent_in_order_before_any_answer_and_the_first_error_counts() {
        let sent = RefCell::default();
        assert_eq!(
            try_join_all((0..3).map(|number| asked(number, &sent, Ok(())))).await,
            Ok(vec![(); 3])
        );
        assert_eq!(sent.take(), [0, 1, 2, 10, 11, 12]);
        let answer = |number| if number == 0 { Ok(()) } else { Err(number) };
        assert_eq!(
            try_join_all((0..TOGETHER).map(|number| asked(number, &sent, answer(number)))).await,
            Err(1)
        );
        assert!(sent.take().iter().copied().take(TOGETHER).eq(0..TOGETHER));
    }
}
