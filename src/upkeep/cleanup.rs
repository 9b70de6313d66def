//! Deletes rows that are published and older than the retention, without blocking other sessions.
//! In doubt a row is not published.

use std::time::Duration;

use serde::Deserialize;
use tokio_postgres::{Client, Row};

use crate::poll::copied;
use crate::postgres::fault::{is_about_policy, sees_all_rows};
use crate::postgres::query::{QueryError, bounded, one_json, one_text, takes_writes};
use crate::postgres::quote::{
    quote_ident, quote_literal, quote_own_rows, quote_table, quoted as quoted_name,
};
use crate::postgres::table;
use crate::source::preflight::system_identifier;
use crate::upkeep::{ANSWER_TIMEOUT, bound};
use walrelay_core::catalog::{Column, Table};
use walrelay_core::catch_up::Copies;
use walrelay_core::config::{CopiedRows, OutboxConfig, TableName};
use walrelay_core::error::{Error, Kind, NextCommand, Remedy, Result};
use walrelay_core::failpoint;
use walrelay_core::ledger::trail::Published;
use walrelay_core::position::Lsn;
use walrelay_core::snapshot::Snapshot;
use walrelay_core::stored::Stored;

/// The attempts of a batch that another session blocks.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);
/// Without this the planner reads all partitions to find the locked rows.
const BY_PLACE: &str = "set enable_hashjoin = off; set enable_mergejoin = off";

/// The retention of a table.
#[derive(Debug, Clone)]
pub struct Sweeper {
    pub(crate) name: TableName,
    /// The table's description in the catalogs.
    pub table: Table,
    /// The evidence that a row is published.
    pub basis: Basis,
    /// The column with the row's time.
    pub time: String,
    /// Rows are kept for this long.
    pub retention: Duration,
    /// Rows are old if their time is before this, as text in UTC.
    pub before: String,
    time_type: String,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Swept {
    /// Old and published rows that no other session had locked.
    pub found: u64,
    pub deleted: u64,
    /// The latest time among the found rows, as text: the next batch begins there.
    pub last: Option<String>,
}

/// Rows that are older than the retention.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    pub(crate) published: u64,
    /// Rows that are not known to be published. They stay, whatever their age.
    pub unpublished: u64,
}

impl Sweeper {
    /// Reads the table's description, and the time before which rows are old; none for messages.
    /// Changes only session settings.
    ///
    /// # Errors
    /// [`Kind::Config`] where no column has the time; [`Kind::Publication`] where there is no
    /// table; those of the connection.
    pub async fn look(
        client: &Client,
        outbox: &OutboxConfig,
        retention: Duration,
    ) -> Result<Option<Sweeper>> {
        let Some(name) = outbox.source.table() else {
            return Ok(None);
        };
        const DOING: &str = "preparing to delete rows by their places";
        bounded(DOING, ANSWER_TIMEOUT, client.batch_execute(BY_PLACE)).await?;
        let table = table::needed(client, name).await?;
        let basis = Basis::of(outbox, &table);
        let column = time_of(name, outbox.upkeep.time.as_deref(), &table)?;
        let time = column.name.clone();
        let time_type = column.base.sql.clone();
        let seconds = retention.as_secs_f64();
        let before = format!(
            "select (pg_catalog.now() - pg_catalog.make_interval(secs => {seconds}))::text"
        );
        let before = one_text(client, "asking for the time", &before, &[])
            .await?
            .unwrap_or_default();
        Ok(Some(Sweeper {
            name: name.clone(),
            basis,
            time,
            time_type,
            retention,
            before,
            table,
        }))
    }

    /// As [`Sweeper::look`]. Errors: also those that a deletion of old rows has at once, but for a
    /// lock of another session: [`Kind::PostgresRefused`] with the `GRANT`;
    /// [`Kind::PostgresUnwritable`] where the server takes no writes.
    pub(crate) async fn look_to_delete(
        client: &Client,
        outbox: &OutboxConfig,
        retention: Duration,
    ) -> Result<Option<Sweeper>> {
        let Some(sweeper) = Sweeper::look(client, outbox, retention).await? else {
            return Ok(None);
        };
        takes_writes(client).await?;
        let of = quote_own_rows(&sweeper.name, sweeper.table.is_partitioned())?;
        let is_old = sweeper.is_old()?;
        let explain = format!(
            "explain with doomed as (select from {of} where {is_old} for update) delete from {of} \
             as t using doomed where t.{is_old}"
        );
        let doing = format!("deleting old rows of {}", sweeper.name);
        match bounded(&doing, ANSWER_TIMEOUT, client.batch_execute(&explain)).await {
            Err(failed) if !failed.is_passing() => Err(sweeper.explained(&doing, &failed)),
            Ok(()) | Err(_) => Ok(Some(sweeper)),
        }
    }

    /// Whether batches read the whole table, because no index begins with the time.
    pub(crate) fn reads_all(&self) -> bool {
        !self
            .table
            .column(&self.time)
            .is_some_and(|column| column.indexed.leads_index)
    }

    /// The remedy for a batch that takes too long.
    fn too_slow(&self) -> Remedy {
        if self.reads_all() {
            let time = quoted_name(&self.time);
            return format!(
                "create an index that begins with {time}: without it, each batch reads \
                            the whole table"
            )
            .into();
        }
        if self.table.is_partitioned() {
            return Remedy::from(
                "let the table's owner clean up, and give the table no default partition: old \
                 partitions are then \
                 dropped whole",
            );
        }
        Remedy::from("delete fewer rows at a time: ")
            .and(NextCommand::new("cleanup").option("batch-rows", 100))
    }

    fn is_old(&self) -> Result<String> {
        let time = quote_ident(&self.time)?;
        let before = quote_literal(&self.before)?;
        Ok(format!(
            "{time} < {before}::timestamptz::{}",
            self.time_type
        ))
    }

    /// Counts the rows older than the retention. Reads all of them.
    pub async fn count(&self, client: &Client, published: Option<&Published>) -> Result<Counted> {
        let doing = format!("counting old rows of {}", self.name);
        let table = quote_own_rows(&self.name, self.table.is_partitioned())?;
        let is_old = self.is_old()?;
        let condition = self.basis.condition(&self.name, published)?;
        let sql = format!(
            "select count(*) filter (where {condition}), count(*) filter (where {condition} is not \
             true) \
             from {table} where {is_old}"
        );
        // No time limit: the statement blocks neither reads nor writes.
        let row = self.unbounded(client, &doing, &sql).await?;
        Ok(Counted {
            published: number(&row, 0),
            unpublished: number(&row, 1),
        })
    }

    /// The one row of a statement without a time limit.
    async fn unbounded(&self, client: &Client, doing: &str, sql: &str) -> Result<Row> {
        self.run(client, doing, "set statement_timeout = 0").await?;
        let row = client.query_one(sql, &[]).await;
        bound(client).await?;
        row.map_err(|error| self.explained(doing, &QueryError::of(doing, &error)))
    }

    async fn run(&self, client: &Client, doing: &str, sql: &str) -> Result<()> {
        let done = bounded(doing, ANSWER_TIMEOUT, client.batch_execute(sql)).await;
        done.map_err(|failed| self.explained(doing, &failed))
    }

    /// The cause, if the server refused the statement and the session can still be used. Any other
    /// failure is an error.
    fn refusal(&self, doing: &str, done: Result<(), QueryError>) -> Result<Option<String>> {
        match done {
            Ok(()) => Ok(None),
            Err(QueryError::Refused { error, .. }) => Ok(Some(error.cause().to_owned())),
            Err(failed) => Err(self.explained(doing, &failed)),
        }
    }

    fn explained(&self, doing: &str, failed: &QueryError) -> Error {
        let error = failed.error();
        let Some(sqlstate) = failed.sqlstate() else {
            return error.clone();
        };
        let name = &self.name;
        let schema = quoted_name(self.name.schema());
        let role = quoted_name(&self.table.role);
        let is_pending = matches!(self.basis, Basis::Pending(_));
        match (sqlstate, sqlstate.get(..2).unwrap_or_default()) {
            ("42501", _) if is_about_policy(error) => error.clone().remedy(sees_all_rows(&role)),
            ("42501", _) => Error::new(Kind::PostgresRefused, error.cause()).remedy(format!(
                "grant usage on schema {schema} to {role}; grant select, update, delete on {} to \
                 {role}; -- update, because \
                 rows are locked first",
                quote_table(name).unwrap_or_else(|_| name.to_string())
            )),
            ("42P01" | "3F000", _) => Error::new(Kind::Publication, error.cause()),
            ("55P03", _) => error.clone().remedy(
                "see in pg_stat_activity who holds a lock on the \
                                                  table for long",
            ),
            (_, "22") if is_pending => {
                let cause = format!(
                    "while {doing}: outbox.pending does not work out for a row \
                                     (SQLSTATE {sqlstate})"
                );
                Error::new(Kind::Config, cause).remedy("try the condition in a query of such rows")
            }
            (_, "42") if is_pending => {
                let cause = format!(
                    "outbox.pending of table {name} cannot be used: {}",
                    error.cause()
                );
                Error::new(Kind::Config, cause).remedy("write it as it would stand behind WHERE")
            }
            (_, "23") => Error::new(Kind::Publication, error.cause()).remedy(
                "other tables refer to these rows: give their foreign keys an on delete, \
                         or clean them up first",
            ),
            _ => error.clone(),
        }
    }
}

/// Deletes up to `batch_rows` rows that are published and older than the retention, oldest first,
/// in one transaction. It begins at `after`, the latest time of the previous batch. If it finds
/// `batch_rows` rows, there may be more.
///
/// Leaves locked rows for a later batch. The session must be [`bound`], and `published` that of
/// this table and server. Errors: [`Kind::PositionMismatch`] where the published rows are not
/// known; [`Kind::PostgresRefused`] with the `GRANT`; [`Kind::Config`] for an invalid
/// `outbox.pending`; [`Kind::Publication`] where other tables refer to the rows;
/// [`Kind::PostgresUnreachable`] where another session locks the whole table; those of the
/// connection.
async fn sweep(
    client: &Client,
    sweeper: &Sweeper,
    published: Option<&Published>,
    after: Option<&str>,
    batch_rows: u32,
) -> Result<Swept> {
    let doing = format!("deleting old rows of {}", sweeper.name);
    let sql = batch(sweeper, published, after, batch_rows)?;
    let mut attempt = 1;
    let row = loop {
        match bounded(&doing, ANSWER_TIMEOUT, client.query_one(&sql, &[])).await {
            Ok(row) => break row,
            Err(failed) if is_too_slow(client, &failed) => {
                return Err(failed.error().clone().remedy(sweeper.too_slow()));
            }
            Err(failed) if failed.is_passing() && attempt < ATTEMPTS => {
                attempt += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Err(failed) => return Err(sweeper.explained(&doing, &failed)),
        }
    };
    failpoint::reached("swept");
    Ok(Swept {
        found: number(&row, 0),
        deleted: number(&row, 1),
        last: row.try_get(2).unwrap_or_default(),
    })
}

/// Sweeps until nothing is left, with a pause between two batches, and tells `each` what one
/// deleted. Errors: those of [`sweep`].
pub(crate) async fn sweep_all(
    client: &Client,
    sweeper: &Sweeper,
    published: Option<&Published>,
    batch_rows: u32,
    pause: Duration,
    mut each: impl FnMut(u64),
) -> Result<()> {
    let mut after = None::<String>;
    loop {
        let swept = sweep(client, sweeper, published, after.as_deref(), batch_rows).await?;
        each(swept.deleted);
        if swept.found < u64::from(batch_rows) {
            return Ok(());
        }
        after = swept.last;
        tokio::time::sleep(pause).await;
    }
}

fn number(row: &Row, column: usize) -> u64 {
    row.try_get::<_, i64>(column)
        .map(i64::unsigned_abs)
        .unwrap_or_default()
}

/// Whether a time limit ended the statement, which would take as long the next time.
fn is_too_slow(client: &Client, failed: &QueryError) -> bool {
    match failed {
        QueryError::Broken(_) => !client.is_closed(),
        QueryError::Refused { .. } | QueryError::ShuttingDown(_) => {
            failed.sqlstate() == Some("57014")
        }
    }
}

/// Locks rows first, by `ctid`: Postgres checks the condition again after the lock, and the delete
/// does not find a row that changed. The time limits the partitions that the delete reads.
fn batch(
    sweeper: &Sweeper,
    published: Option<&Published>,
    after: Option<&str>,
    batch_rows: u32,
) -> Result<String> {
    let table = quote_own_rows(&sweeper.name, sweeper.table.is_partitioned())?;
    let time = quote_ident(&sweeper.time)?;
    let is_old = sweeper.is_old()?;
    let condition = sweeper.basis.condition(&sweeper.name, published)?;
    let begin = match after {
        Some(after) => format!(
            " and {time} >= {}::{}",
            quote_literal(after)?,
            sweeper.time_type
        ),
        None => String::new(),
    };
    Ok(format!(
        "with doomed as materialized (\
         select tableoid as doomed_part, ctid as doomed_place, {time} as doomed_time from {table} \
         where {is_old}{begin} and {condition} order by {time} limit {batch_rows} for update skip \
         locked), \
         gone as (delete from {table} as t using doomed where t.ctid = doomed_place and t.tableoid \
         = doomed_part \
         and t.{time} = doomed_time and t.{is_old} returning 1) \
         select (select count(*) from doomed), (select count(*) from gone), (select \
         max(doomed_time)::text from doomed)"
    ))
}

fn time_of<'t>(name: &TableName, configured: Option<&str>, table: &'t Table) -> Result<&'t Column> {
    if let Some(configured) = configured {
        table.needed_column(name, configured)?;
    }
    table.time_of(name, configured)?.ok_or_else(|| {
        Error::new(
            Kind::Config,
            format!("no column of {name} is known to have the time of its row"),
        )
        .remedy("name a column with timestamps with outbox.time")
    })
}

const PARTITIONS: &str = include_str!("../../sql/upkeep/partitions.sql");
/// The limit for a detach, which waits for transactions that use the table. The next run completes
/// a half detached one.
const DETACH_TIMEOUT: Duration = Duration::from_secs(60);

/// A partition whose every row is older than the retention.
#[derive(Debug, Clone)]
pub struct Partition {
    /// The quoted name.
    pub name: String,
    /// The number of rows where all are published and the partition can be dropped.
    pub rows: Option<u64>,
    /// The reason why its rows are deleted in batches instead.
    pub stays: Option<String>,
    bounds: String,
    is_detaching: bool,
}

/// Partitions that end before the retention begins, oldest first. Empty for a table not partitioned
/// by ranges of its time.
///
/// None can be dropped while the table `is_polled` and `published` rows are known by snapshots: a
/// row that is written into a partition while it is detached is not read, and the next snapshot
/// sees it.
pub async fn old_partitions(
    client: &Client,
    sweeper: &Sweeper,
    published: Option<&Published>,
    is_polled: bool,
) -> Result<Vec<Partition>> {
    let doing = format!("looking at the partitions of {}", sweeper.name);
    let oid = i64::from(sweeper.table.oid);
    let rows = bounded(
        &doing,
        ANSWER_TIMEOUT,
        client.query(PARTITIONS, &[&oid, &sweeper.time, &sweeper.before]),
    )
    .await;
    let rows = rows.map_err(|failed| sweeper.explained(&doing, &failed))?;
    let bug =
        |error: tokio_postgres::Error| Error::new(Kind::Bug, format!("while {doing}: {error}"));
    let mut partitions = Vec::new();
    for row in &rows {
        let text = |column: &str| row.try_get::<_, String>(column).map_err(bug);
        let is = |column: &str| row.try_get::<_, bool>(column).map_err(bug);
        let name = format!(
            "{}.{}",
            quote_ident(&text("schema")?)?,
            quote_ident(&text("name")?)?
        );
        let bounds = text("bounds")?;
        let is_detaching = is("detaching")?;
        let mut partition = Partition {
            name,
            rows: None,
            stays: None,
            bounds,
            is_detaching,
        };
        if !is("owned")? {
            partition.stays = Some("only the owner of the table can drop it".to_owned());
        } else if is_polled && published.is_some() && !partition.is_detaching {
            partition.stays = Some(
                "the table is polled, and a row that is written meanwhile would not be read"
                    .to_owned(),
            );
        } else if is("has_default")? && !partition.is_detaching {
            partition.stays = Some(
                "beside a default partition none can be detached without locking the table"
                    .to_owned(),
            );
        } else {
            let (all, unpublished) = partition.count(client, sweeper, published).await?;
            match unpublished {
                0 => partition.rows = Some(all),
                _ => partition.stays = Some(format!("{unpublished} of its rows are not published")),
            }
        }
        partitions.push(partition);
    }
    Ok(partitions)
}

impl Partition {
    /// Counts all rows and the rows that must stay, under the name that the operator's condition
    /// may use.
    fn question(&self, sweeper: &Sweeper, published: Option<&Published>) -> Result<String> {
        let old = sweeper.is_old()?;
        let condition = sweeper.basis.condition(&sweeper.name, published)?;
        let name = &self.name;
        let alias = quote_ident(sweeper.name.table())?;
        Ok(format!(
            "select count(*), count(*) filter (where ({old} and {condition}) is not true) from \
             {name} as {alias}"
        ))
    }

    async fn count(
        &self,
        client: &Client,
        sweeper: &Sweeper,
        published: Option<&Published>,
    ) -> Result<(u64, u64)> {
        let doing = format!("counting rows of partition {}", self.name);
        let row = sweeper
            .unbounded(client, &doing, &self.question(sweeper, published)?)
            .await?;
        Ok((number(&row, 0), number(&row, 1)))
    }

    /// Detaches and drops the partition. Waits up to a minute for transactions that use the table,
    /// without blocking others. After a row was written meanwhile, it is attached again; then, and
    /// where another session blocks, the result is the reason.
    ///
    /// A process that dies between the two leaves a separate table with the rows.
    ///
    /// # Errors
    /// As [`sweep`]; and where it can be neither dropped nor attached again, with the statement.
    pub async fn drop(
        &self,
        client: &Client,
        sweeper: &Sweeper,
        published: Option<&Published>,
    ) -> Result<Result<(), String>> {
        let name = &self.name;
        let table = quote_table(&sweeper.name)?;
        let how = if self.is_detaching {
            "finalize"
        } else {
            "concurrently"
        };
        let doing = format!("detaching partition {name}");
        let patience = format!(
            "set lock_timeout = {}; set statement_timeout = 0",
            DETACH_TIMEOUT.as_millis()
        );
        sweeper.run(client, &doing, &patience).await?;
        // Alone in its message: it is refused within a transaction, and two statements of a message
        // are one.
        let detached = client
            .batch_execute(&format!(
                "alter table {table} detach partition {name} {how}"
            ))
            .await;
        bound(client).await?;
        let detached = detached.map_err(|error| QueryError::of(&doing, &error));
        if let Some(stays) = sweeper.refusal(&doing, detached)? {
            return Ok(Err(stays));
        }
        failpoint::reached("detached");
        let Some(stays) = self.dropped(client, sweeper, published).await? else {
            return Ok(Ok(()));
        };
        let doing = format!("attaching partition {name} again, because {stays}");
        let attach = format!(
            "alter table {table} attach partition {name} {}",
            self.bounds
        );
        let attached = sweeper.run(client, &doing, &attach).await;
        attached
            .map(|()| Err(stays))
            .map_err(|error| error.remedy(format!("{attach};")))
    }

    /// Drops the detached table, unless it has a row that is not published; returns the reason
    /// where it stays.
    async fn dropped(
        &self,
        client: &Client,
        sweeper: &Sweeper,
        published: Option<&Published>,
    ) -> Result<Option<String>> {
        let name = &self.name;
        let question = self.question(sweeper, published)?;
        let doing = format!("dropping partition {name}");
        let run = async |sql: &str| {
            sweeper.refusal(
                &doing,
                bounded(&doing, ANSWER_TIMEOUT, client.batch_execute(sql)).await,
            )
        };
        let mut stays = run(&format!(
            "begin; lock table {name}; set local statement_timeout = 0"
        ))
        .await?;
        if stays.is_none() {
            // The table is detached: no other session waits, however long the count takes.
            let unpublished = client
                .query_one(&question, &[])
                .await
                .and_then(|row| row.try_get::<_, i64>(1));
            stays = match unpublished {
                Ok(0) => run(&format!("drop table {name}; commit")).await?,
                Ok(unpublished) => Some(format!("{unpublished} rows came that are not published")),
                Err(error) => sweeper.refusal(&doing, Err(QueryError::of(&doing, &error)))?,
            };
        }
        if stays.is_some() {
            sweeper.run(client, &doing, "rollback").await?;
        }
        Ok(stays)
    }
}

/// The evidence that a row is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Basis {
    /// The row does not satisfy this `outbox.pending`.
    Pending(String),
    /// The transaction that inserted the row, in a column.
    Xid {
        /// The column.
        column: String,
        /// Whether copied rows are skipped; else `xmin` decides for them.
        skips: bool,
    },
    /// The transaction that wrote the row last, as far as Postgres keeps it.
    Xmin,
}

impl Basis {
    /// The most exact basis that `table` has.
    pub fn of(outbox: &OutboxConfig, table: &Table) -> Basis {
        match (&outbox.upkeep.pending, table.xid_column()) {
            (Some(pending), _) => Basis::Pending(pending.clone()),
            (None, Some(column)) => {
                let skips = outbox.upkeep.copied_rows == CopiedRows::Skip;
                Basis::Xid {
                    column: column.name.clone(),
                    skips,
                }
            }
            (None, None) => Basis::Xmin,
        }
    }

    /// Whether it needs the stored state of a relay.
    pub(crate) fn needs_published(&self) -> bool {
        !matches!(self, Basis::Pending(_))
    }

    /// The name in the output of `walrelay cleanup`.
    pub fn word(&self) -> &'static str {
        match self {
            Basis::Pending(_) => "pending",
            Basis::Xid { .. } => "xid",
            Basis::Xmin => "xmin",
        }
    }

    /// The condition, true for published rows; false or NULL for others.
    ///
    /// # Errors
    /// [`Kind::PositionMismatch`] where `published` is necessary and missing.
    pub fn condition(&self, table: &TableName, published: Option<&Published>) -> Result<String> {
        let needed = || published.ok_or_else(|| unknown(table));
        match self {
            // Rows for which the condition is NULL stay.
            Basis::Pending(pending) => Ok(format!("(({pending}) is false)")),
            Basis::Xid { column, skips } => {
                let published = needed()?;
                let column = quote_ident(column)?;
                let snapshot = quote_literal(&published.pair.snapshot.to_string())?;
                let also: Vec<String> = published.also.iter().map(u64::to_string).collect();
                let mut seen = format!(
                    "pg_catalog.pg_visible_in_snapshot({column}, {snapshot}::pg_snapshot) or \
                     {column} = any ('{{{}}}'::xid8[])",
                    also.join(",")
                );
                if !skips {
                    let is_copied = copied(&column, &published.also, Copies::of(published))?;
                    seen = format!("({seen}) and ({is_copied}) is not true");
                }
                Ok(match &published.floor {
                    // A row whose column is NULL may be older than the floor, and updated since: it
                    // does not count.
                    Some(floor) => {
                        let floor = quote_literal(&floor.to_string())?;
                        format!(
                            "(({seen}) and not pg_catalog.pg_visible_in_snapshot({column}, \
                             {floor}::pg_snapshot))"
                        )
                    }
                    // A row that is older than the transaction in its column has that of another
                    // server.
                    None => format!(
                        "({seen} or ({column} is null or {column} > ({WRITTEN_BY})::text::xid8) \
                         and {})",
                        by_xmin(&published.pair.snapshot)
                    ),
                })
            }
            Basis::Xmin => {
                let published = needed()?;
                if published.floor.is_some() {
                    return Err(from_before(table));
                }
                Ok(format!("({})", by_xmin(&published.pair.snapshot)))
            }
        }
    }
}

/// `xmin` has the lower half of an id. The greatest assigned id with this half is the row's or a
/// later one, and a savepoint's id is greater than its transaction's. So a row can appear newer
/// than it is, never older.
fn by_xmin(published: &Snapshot) -> String {
    format!("{WRITTEN_BY} < {}", published.xmin())
}

/// The greatest assigned id with the lower half that `xmin` has. Separate queries, which Postgres
/// evaluates once and not for each row.
const WRITTEN_BY: &str = "(select \
     pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint) - \
     (((select pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint) - \
     xmin::text::bigint) \
     & 4294967295)";

/// `xmin` does not distinguish rows that were updated since from rows that were inserted since.
fn from_before(table: &TableName) -> Error {
    let cause = format!(
        "which rows of {table} are published is not known: some are from before its slot, and no \
         column tells the \
         transaction that inserted a row"
    );
    Error::new(Kind::PositionMismatch, cause).remedy(
        Remedy::from("add one, for the rows that come: `")
            .and(NextCommand::new("setup").flag("add-xid-column"))
            .and(
                "`; or set outbox.pending, if a column of the table says which rows are published",
            ),
    )
}

fn unknown(table: &TableName) -> Error {
    let cause = format!(
        "which rows of {table} are published is not known: nothing is stored that says so, and age \
         alone does not"
    );
    Error::new(Kind::PositionMismatch, cause).remedy(
        "keep the position with state.store = \"kafka\" or \"postgres\", and let `walrelay run` \
         relay for a moment; or set \
         outbox.pending, if a column of the table says it",
    )
}

const SERVER: &str = include_str!("../../sql/upkeep/server.sql");

#[derive(Debug, Clone, Deserialize)]
struct Here {
    may_read_control: bool,
    #[serde(skip)]
    system_identifier: Option<String>,
    timeline: u32,
    wal_end: Lsn,
}

/// The published rows of the table with this OID, by the stored state of a relay.
/// Errors: [`Kind::PositionMismatch`] for another server, timeline or table, or while rows are
/// still being read; of the connection.
pub(crate) async fn published_of(
    client: &Client,
    stored: Stored,
    table_oid: u32,
) -> Result<Published> {
    let here: Here = one_json(client, "asking which server this is", SERVER, &[]).await?;
    let system_identifier = system_identifier(client, here.may_read_control).await?;
    judge(
        &Here {
            system_identifier,
            ..here
        },
        stored,
        table_oid,
    )
}

fn judge(here: &Here, stored: Stored, table_oid: u32) -> Result<Published> {
    const RELAY: &str =
        "let `walrelay run` relay for a moment: what it stores then is about this server";
    let mismatch = |cause: String, remedy: Remedy| {
        let cause = format!("which rows are published is not known: {cause}");
        Err(Error::new(Kind::PositionMismatch, cause).remedy(remedy))
    };
    let server = &stored.server;
    if here
        .system_identifier
        .as_ref()
        .is_some_and(|here| *here != server.system_identifier)
    {
        return mismatch(
            format!(
                "what is stored is about another server ({})",
                server.system_identifier
            ),
            RELAY.into(),
        );
    }
    if here.timeline != server.timeline {
        let cause = format!(
            "what is stored is about timeline {}, the server is on {}",
            server.timeline, here.timeline
        );
        return mismatch(cause, RELAY.into());
    }
    if here.wal_end < stored.position.end_lsn {
        let cause = format!(
            "the server is at {}, behind what is stored ({})",
            here.wal_end, stored.position.end_lsn
        );
        return mismatch(cause, RELAY.into());
    }
    if !stored.outboxes.table_oids.contains(&table_oid) {
        let cause = format!("what is stored is not about the table with OID {table_oid}");
        return mismatch(
            cause,
            "let `walrelay run` relay this table first; a recreated table is another one".into(),
        );
    }
    if stored.catch_up.is_some() {
        let cause = "rows are still being read from the table".to_owned();
        return mismatch(
            cause,
            Remedy::from("let `walrelay run` finish reading them, see ")
                .and(NextCommand::new("status")),
        );
    }
    match stored.published {
        Some(published) => Ok(published),
        None => mismatch("what is stored does not say".to_owned(), RELAY.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use walrelay_core::stored::Outboxes;
    use walrelay_core::testing::{column_of, with_default};

    use walrelay_core::catch_up::{CatchUp, Rows};
    use walrelay_core::ledger::trail::Pair;
    use walrelay_core::position::Position;
    use walrelay_core::position::ServerIdentity;

    #[test]
    fn a_table_without_a_time_has_no_retention() {
        let name: TableName = "outbox".parse().unwrap();
        assert_eq!(
            time_of(&name, None, &table(vec![column_of("day", "date")]))
                .unwrap_err()
                .kind(),
            Kind::Config
        );
    }

    fn table(columns: Vec<Column>) -> Table {
        Table {
            kind: "r".to_owned(),
            columns,
            ..Table::default()
        }
    }

    fn published() -> Published {
        let pair = Pair {
            snapshot: "10:20:10,14".parse().unwrap(),
            lsn: Lsn::new(1),
        };
        Published {
            also: vec![14, 22],
            ..Published::at(pair)
        }
    }

    #[test]
    fn published_rows_are_found_by_pending_or_else_the_xid_column_or_else_xmin() {
        let filled = |name, base| with_default(column_of(name, base), "pg_current_xact_id()");
        let mut outbox = OutboxConfig::default();
        let with = table(vec![
            column_of("x", "xid8"),
            filled("y", "xid8"),
            filled("xid", "xid8"),
        ]);
        assert_eq!(
            Basis::of(&outbox, &with),
            Basis::Xid {
                column: "xid".to_owned(),
                skips: false
            }
        );
        assert_eq!(
            Basis::of(&outbox, &table(vec![column_of("xid", "xid8")])),
            Basis::Xmin
        );
        assert_eq!(
            Basis::of(&outbox, &table(vec![filled("xid", "int8")])),
            Basis::Xmin
        );
        outbox.upkeep.pending = Some("a or b".to_owned());
        assert_eq!(
            Basis::of(&outbox, &with),
            Basis::Pending("a or b".to_owned())
        );
    }

    #[test]
    fn rows_from_before_the_slot_count_as_published_only_with_an_xid_column() {
        let name: TableName = "outbox".parse().unwrap();
        let condition =
            |basis: Basis, published: &Published| basis.condition(&name, Some(published));
        let by_xid = condition(
            Basis::Xid {
                column: "x\"y".to_owned(),
                skips: false,
            },
            &published(),
        )
        .unwrap();
        let copied = "= any ('{14,22}'::xid8[])) and (xmin <> \"x\"\"y\"::xid and ";
        assert!(
            by_xid.contains(copied) && by_xid.contains("\"x\"\"y\" is null or"),
            "{by_xid}"
        );
        let since = Published {
            floor: Some("5:6:".parse().unwrap()),
            ..published()
        };
        let by_xid = condition(
            Basis::Xid {
                column: "x".to_owned(),
                skips: true,
            },
            &since,
        )
        .unwrap();
        let unseen = "and not pg_catalog.pg_visible_in_snapshot(\"x\", '5:6:'";
        assert!(
            !by_xid.contains("is null") && by_xid.contains(unseen),
            "{by_xid}"
        );
        assert_eq!(
            condition(Basis::Xmin, &since).unwrap_err().kind(),
            Kind::PositionMismatch
        );
        assert_eq!(
            Basis::Xmin.condition(&name, None).unwrap_err().kind(),
            Kind::PositionMismatch
        );
    }

    fn stored() -> Stored {
        Stored {
            server: ServerIdentity {
                system_identifier: "7000".to_owned(),
                timeline: 2,
            },
            slot: "orders".to_owned(),
            relay: String::new(),
            position: Position::at(Lsn::new(100)),
            outboxes: Outboxes {
                publication_oid: 10,
                table_oids: vec![5, 6],
                ..Outboxes::default()
            },
            cluster_id: None,
            published: Some(published()),
            stream_only: Vec::new(),
            catch_up: None,
        }
    }

    #[test]
    fn a_stored_position_counts_only_for_its_own_server_and_tables() {
        let here = |system: Option<&str>, timeline, wal_end| Here {
            may_read_control: system.is_some(),
            system_identifier: system.map(str::to_owned),
            timeline,
            wal_end: Lsn::new(wal_end),
        };
        let right = here(Some("7000"), 2, 100);
        assert!(judge(&right, stored(), 6).is_ok());
        assert!(judge(&here(None, 2, 100), stored(), 5).is_ok());
        let reading = CatchUp::new(Rows::All, None);
        for (here, stored, table_oid) in [
            (&here(Some("7001"), 2, 100), stored(), 5),
            (&here(Some("7000"), 3, 100), stored(), 5),
            (&here(Some("7000"), 2, 99), stored(), 5),
            (&right, stored(), 7),
            (
                &right,
                Stored {
                    published: None,
                    ..stored()
                },
                5,
            ),
            (
                &right,
                Stored {
                    catch_up: Some(reading),
                    ..stored()
                },
                5,
            ),
        ] {
            let error = judge(here, stored, table_oid).unwrap_err();
            assert!(
                error.kind() == Kind::PositionMismatch && error.what_to_do().is_some(),
                "{error}"
            );
        }
    }
}
