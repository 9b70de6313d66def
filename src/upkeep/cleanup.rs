//! Deletes rows that are published and older than the retention, without blocking other sessions.

use std::time::Duration;

use tokio_postgres::{Client, Row};

use crate::config::{OutboxConfig, TableName};
use crate::error::{Error, Kind, Result};
use crate::failpoint;
use crate::ledger::trail::Published;
use crate::postgres::catalog::{Column, Table};
use crate::postgres::query::{QueryError, bounded};
use crate::postgres::quote::{quote_ident, quote_literal, quote_own_rows, quote_table, quoted as quoted_name};
use crate::upkeep::published::Basis;
use crate::upkeep::{ANSWER_TIMEOUT, bound};

/// How often a batch is tried that another session blocks, such as a change of the table.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);
/// Rows that are locked already are looked up one by one. The planner takes reading all partitions for cheaper.
const BY_PLACE: &str = "set enable_hashjoin = off; set enable_mergejoin = off";

/// A table and what of it may go.
#[derive(Debug, Clone)]
pub struct Sweeper {
    /// The table.
    pub name: TableName,
    /// What the catalogs say of it.
    pub table: Table,
    /// What tells whether a row is published.
    pub basis: Basis,
    /// Column with the row's time.
    pub time: String,
    /// Rows are kept for this long.
    pub retention: Duration,
    time_type: String,
}

/// What one batch did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Swept {
    /// Rows that were to go and were free.
    pub found: u64,
    /// Those that went.
    pub deleted: u64,
    /// The time of the last of them, as text: where the next batch begins.
    pub last: Option<String>,
}

/// Rows that are older than the retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// Published.
    pub published: u64,
    /// Not published, or not known to be: they stay, whatever their age.
    pub unpublished: u64,
}

impl Sweeper {
    /// Looks at an outbox's table; none where the outbox is no table. Changes nothing but settings of the session, which is
    /// for [`sweep`] then, and [`bound`].
    ///
    /// # Errors
    /// [`Kind::Config`] where no column has the rows' time; [`Kind::Publication`] where there is no such table; those of
    /// the connection.
    pub async fn look(client: &Client, outbox: &OutboxConfig, retention: Duration) -> Result<Option<Sweeper>> {
        let Some(name) = outbox.source.table() else { return Ok(None) };
        const DOING: &str = "preparing to delete rows by their places";
        bounded(DOING, ANSWER_TIMEOUT, client.batch_execute(BY_PLACE)).await?;
        let table = Table::needed(client, name).await?;
        let basis = Basis::of(outbox, &table);
        let column = time_of(name, outbox.upkeep.time.as_deref(), &table)?;
        let (time, time_type) = (column.name.clone(), column.base.sql.clone());
        Ok(Some(Sweeper { name: name.clone(), basis, time, time_type, retention, table }))
    }

    /// Whether batches have to read the whole table, because nothing finds its old rows.
    pub fn reads_all(&self) -> bool {
        !self.table.column(&self.time).is_some_and(|column| column.leads_index)
    }

    /// Rows older than the retention, in SQL.
    fn is_old(&self) -> Result<String> {
        let (time, seconds) = (quote_ident(&self.time)?, self.retention.as_secs_f64());
        let time_type = &self.time_type;
        Ok(format!("{time} < (pg_catalog.now() - pg_catalog.make_interval(secs => {seconds}))::{time_type}"))
    }

    /// Counts what is older than the retention. Reads all of it.
    ///
    /// # Errors
    /// As [`sweep`].
    pub async fn count(&self, client: &Client, published: Option<&Published>) -> Result<Counted> {
        let doing = format!("counting old rows of {}", self.name);
        let (table, is_old) = (quote_own_rows(&self.name, self.table.is_partitioned())?, self.is_old()?);
        let condition = self.basis.condition(&self.name, published)?;
        let sql = format!(
            "select count(*) filter (where {condition}), count(*) filter (where {condition} is not true) \
             from {table} where {is_old}"
        );
        // As long as it takes: it holds no locks that matter to anybody.
        let row = self.unbounded(client, &doing, &sql).await?;
        let number = |column: usize| row.try_get::<_, i64>(column).map(i64::unsigned_abs).unwrap_or_default();
        Ok(Counted { published: number(0), unpublished: number(1) })
    }

    /// The one row of a statement that may take as long as it takes, alone in its session.
    async fn unbounded(&self, client: &Client, doing: &str, sql: &str) -> Result<Row> {
        let explain = |failed: QueryError| self.explained(doing, &failed);
        let limit = "set statement_timeout = 0";
        bounded(doing, ANSWER_TIMEOUT, client.batch_execute(limit)).await.map_err(explain)?;
        let row = client.query_one(sql, &[]).await.map_err(|error| QueryError::of(doing, &error));
        bound(client).await?;
        row.map_err(explain)
    }

    /// Why the server refused what was `done`, where the session goes on.
    fn refusal(&self, doing: &str, done: Result<(), QueryError>) -> Result<Option<String>> {
        match done {
            Ok(()) => Ok(None),
            Err(QueryError::Refused { error, .. }) => Ok(Some(error.cause().to_owned())),
            Err(failed) => Err(self.explained(doing, &failed)),
        }
    }

    /// Why rows could not be counted or deleted.
    fn explained(&self, doing: &str, failed: &QueryError) -> Error {
        let error = failed.error();
        let Some(sqlstate) = failed.sqlstate() else { return error.clone() };
        let (name, schema, role) = (&self.name, quoted_name(self.name.schema()), quoted_name(&self.table.role));
        let is_pending = matches!(self.basis, Basis::Pending(_));
        match (sqlstate, sqlstate.get(..2).unwrap_or_default()) {
            ("42501", _) => Error::new(Kind::PostgresRefused, error.cause()).remedy(format!(
                "grant usage on schema {schema} to {role}; grant select, update, delete on {} to {role}; (update, because \
                 rows are locked first)",
                quote_table(name).unwrap_or_else(|_| name.to_string())
            )),
            ("42P01" | "3F000", _) => Error::new(Kind::Publication, error.cause()),
            (_, "22") if is_pending => {
                let cause = format!("while {doing}: outbox.pending does not work out for a row (SQLSTATE {sqlstate})");
                Error::new(Kind::Config, cause).remedy("try the condition in a query of such rows")
            }
            (_, "42") if is_pending => {
                let cause = format!("outbox.pending of table {name} cannot be used: {}", error.cause());
                Error::new(Kind::Config, cause).remedy("write it as it would stand behind WHERE")
            }
            (_, "23") => Error::new(Kind::Publication, error.cause())
                .remedy("other tables refer to these rows: give their foreign keys an on delete, or clean them up first"),
            _ => error.clone(),
        }
    }
}

/// Deletes one batch of up to `batch_rows` rows that are published and older than the retention, oldest first, in a
/// transaction of its own; begins at the time `after`, which is the last batch's. There is more while as many were found.
///
/// Locked rows are left for a later batch. For a session that is [`bound`]. `published` is what
/// is true of this table on this server; in doubt give none. Memory: a number and a time.
///
/// # Errors
/// [`Kind::PositionMismatch`] where nothing says what is published; [`Kind::PostgresRefused`] with the `GRANT`;
/// [`Kind::Config`] for an `outbox.pending` Postgres does not take; [`Kind::Publication`] where other tables hold on to
/// the rows; those of the connection, and [`Kind::PostgresUnreachable`] where somebody locks the whole table.
pub async fn sweep(
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
            Err(failed) if failed.is_passing() && attempt < ATTEMPTS => {
                attempt += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Err(failed) => return Err(sweeper.explained(&doing, &failed)),
        }
    };
    failpoint::reached("swept");
    let number = |column: usize| row.try_get::<_, i64>(column).map(i64::unsigned_abs).unwrap_or_default();
    Ok(Swept { found: number(0), deleted: number(1), last: row.try_get(2).unwrap_or_default() })
}

/// Locks first, by place: a row is judged again once it is locked, and one that changed meanwhile is not found by the delete.
/// Its time says nothing new to the delete, but in which partitions to look.
fn batch(sweeper: &Sweeper, published: Option<&Published>, after: Option<&str>, batch_rows: u32) -> Result<String> {
    let (table, time, is_old) = (
        quote_own_rows(&sweeper.name, sweeper.table.is_partitioned())?,
        quote_ident(&sweeper.time)?,
        sweeper.is_old()?,
    );
    let condition = sweeper.basis.condition(&sweeper.name, published)?;
    let begin = match after {
        Some(after) => format!(" and {time} >= {}::{}", quote_literal(after)?, sweeper.time_type),
        None => String::new(),
    };
    Ok(format!(
        "with doomed as materialized (\
         select tableoid as doomed_part, ctid as doomed_place, {time} as doomed_time from {table} \
         where {is_old}{begin} and {condition} order by {time} limit {batch_rows} for update skip locked), \
         gone as (delete from {table} as t using doomed where t.ctid = doomed_place and t.tableoid = doomed_part \
         and t.{time} = doomed_time and t.{is_old} returning 1) \
         select (select count(*) from doomed), (select count(*) from gone), (select max(doomed_time)::text from doomed)"
    ))
}

fn time_of<'t>(name: &TableName, configured: Option<&str>, table: &'t Table) -> Result<&'t Column> {
    if let Some(configured) = configured {
        table.needed_column(name, configured)?;
    }
    table.time_of(name, configured)?.ok_or_else(|| {
        Error::new(Kind::Config, format!("no column of {name} is known to have the time of its row"))
            .remedy("name a column with timestamps with outbox.time")
    })
}

const PARTITIONS: &str = include_str!("../../sql/upkeep/partitions.sql");
/// How long detaching waits for transactions that use the table. After a timeout the partition is half detached, and the
/// next run finishes that.
const DETACH_TIMEOUT: Duration = Duration::from_secs(60);

/// A partition whose every row is older than the retention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its name as SQL takes it.
    pub name: String,
    /// Rows, all published; none where some are not, or it cannot be dropped.
    pub rows: Option<u64>,
    /// Why it stays, and its rows are deleted one by one.
    pub stays: Option<String>,
    bounds: String,
    is_detaching: bool,
}

/// The partitions that end before the retention begins, oldest first. Reads their rows, changes nothing. Empty for a table
/// that is not partitioned by ranges of its time column.
///
/// None can be dropped while the table `is_polled` and what is `published` is known by snapshots: a row that is written into one while it
/// is detached is not read, and the next snapshot sees it.
///
/// # Errors
/// As [`sweep`].
pub async fn old_partitions(
    client: &Client,
    sweeper: &Sweeper,
    published: Option<&Published>,
    is_polled: bool,
) -> Result<Vec<Partition>> {
    let doing = format!("looking at the partitions of {}", sweeper.name);
    let (oid, seconds) = (i64::from(sweeper.table.oid), sweeper.retention.as_secs_f64());
    let rows = bounded(&doing, ANSWER_TIMEOUT, client.query(PARTITIONS, &[&oid, &sweeper.time, &seconds])).await;
    let rows = rows.map_err(|failed| sweeper.explained(&doing, &failed))?;
    let bug = |error: tokio_postgres::Error| Error::new(Kind::Bug, format!("while {doing}: {error}"));
    let mut partitions = Vec::new();
    for row in &rows {
        let text = |column: &str| row.try_get::<_, String>(column).map_err(bug);
        let is = |column: &str| row.try_get::<_, bool>(column).map_err(bug);
        let name = format!("{}.{}", quote_ident(&text("schema")?)?, quote_ident(&text("name")?)?);
        let (bounds, is_detaching) = (text("bounds")?, is("detaching")?);
        let mut partition = Partition { name, rows: None, stays: None, bounds, is_detaching };
        if !is("owned")? {
            partition.stays = Some("only the owner of the table can drop it".to_owned());
        } else if is_polled && published.is_some() && !partition.is_detaching {
            partition.stays =
                Some("the table is polled, and a row that is written meanwhile would not be read".to_owned());
        } else if is("has_default")? && !partition.is_detaching {
            partition.stays =
                Some("beside a default partition none can be detached without locking the table".to_owned());
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
    /// The question whether something holds it, under the name the operator's condition may use.
    fn question(&self, sweeper: &Sweeper, published: Option<&Published>) -> Result<String> {
        let (old, condition) = (sweeper.is_old()?, sweeper.basis.condition(&sweeper.name, published)?);
        let (name, alias) = (&self.name, quote_ident(sweeper.name.table())?);
        Ok(format!(
            "select count(*), count(*) filter (where ({old} and {condition}) is not true) from {name} as {alias}"
        ))
    }

    async fn count(&self, client: &Client, sweeper: &Sweeper, published: Option<&Published>) -> Result<(u64, u64)> {
        let doing = format!("counting rows of partition {}", self.name);
        let row = sweeper.unbounded(client, &doing, &self.question(sweeper, published)?).await?;
        let number = |column: usize| row.try_get::<_, i64>(column).map(i64::unsigned_abs).unwrap_or_default();
        Ok((number(0), number(1)))
    }

    /// Detaches and drops it. Waits up to a minute for transactions that use the table, which nobody else waits for. A row
    /// that was written into it meanwhile brings it back into its table; then, and where somebody is in the way, the
    /// answer is why it stays. For a session that is [`bound`].
    ///
    /// A process that dies between the two leaves a table of its own, with what was in the partition.
    ///
    /// # Errors
    /// As [`sweep`]; and where it can be neither dropped nor attached again, with the statement.
    pub async fn drop(
        &self,
        client: &Client,
        sweeper: &Sweeper,
        published: Option<&Published>,
    ) -> Result<Result<(), String>> {
        let (name, table) = (&self.name, quote_table(&sweeper.name)?);
        let how = if self.is_detaching { "finalize" } else { "concurrently" };
        let doing = format!("detaching partition {name}");
        let patience = format!("set lock_timeout = {}; set statement_timeout = 0", DETACH_TIMEOUT.as_millis());
        let patient = bounded(&doing, ANSWER_TIMEOUT, client.batch_execute(&patience)).await;
        patient.map_err(|failed| sweeper.explained(&doing, &failed))?;
        // Alone in its message: it is refused within a transaction, and two statements of a message are one.
        let detached = client.batch_execute(&format!("alter table {table} detach partition {name} {how}")).await;
        bound(client).await?;
        let detached = detached.map_err(|error| QueryError::of(&doing, &error));
        if let Some(stays) = sweeper.refusal(&doing, detached)? {
            return Ok(Err(stays));
        }
        failpoint::reached("detached");
        let Some(stays) = self.dropped(client, sweeper, published).await? else { return Ok(Ok(())) };
        let doing = format!("attaching partition {name} again, because {stays}");
        let attach = format!("alter table {table} attach partition {name} {}", self.bounds);
        match bounded(&doing, ANSWER_TIMEOUT, client.batch_execute(&attach)).await {
            Ok(()) => Ok(Err(stays)),
            Err(failed) => Err(sweeper.explained(&doing, &failed).remedy(format!("{attach};"))),
        }
    }

    /// Drops the detached table, unless a row came that is not published; gives why the table stays.
    async fn dropped(
        &self,
        client: &Client,
        sweeper: &Sweeper,
        published: Option<&Published>,
    ) -> Result<Option<String>> {
        let (name, question) = (&self.name, self.question(sweeper, published)?);
        let doing = format!("dropping partition {name}");
        let run =
            async |sql: &str| sweeper.refusal(&doing, bounded(&doing, ANSWER_TIMEOUT, client.batch_execute(sql)).await);
        let mut stays = run(&format!("begin; lock table {name}; set local statement_timeout = 0")).await?;
        if stays.is_none() {
            // The table is detached: no other session waits, however long the count takes.
            let unpublished = client.query_one(&question, &[]).await.and_then(|row| row.try_get::<_, i64>(1));
            stays = match unpublished {
                Ok(0) => run(&format!("drop table {name}; commit")).await?,
                Ok(unpublished) => Some(format!("{unpublished} rows came that are not published")),
                Err(error) => sweeper.refusal(&doing, Err(QueryError::of(&doing, &error)))?,
            };
        }
        if stays.is_some() {
            let rolled_back = bounded(&doing, ANSWER_TIMEOUT, client.batch_execute("rollback")).await;
            rolled_back.map_err(|failed| sweeper.explained(&doing, &failed))?;
        }
        Ok(stays)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(columns: &[(&str, &str)]) -> Table {
        let column =
            |(name, base): &(&str, &str)| Column { leads_index: *name == "created_at", ..Column::of(name, base) };
        Table { kind: "r".to_owned(), columns: columns.iter().map(column).collect(), ..Table::default() }
    }

    #[test]
    fn the_time_of_a_row_is_a_timestamp_that_is_named_or_known() {
        let name: TableName = "outbox".parse().unwrap();
        let columns = table(&[
            ("timestamp", "timestamptz"),
            ("created_at", "int8"),
            ("occurred_at", "timestamp"),
            ("day", "date"),
        ]);
        let found =
            |given| time_of(&name, given, &columns).map(|column| (column.name.clone(), column.base.sql.clone()));
        assert_eq!(found(None).unwrap(), ("occurred_at".to_owned(), "timestamp without time zone".to_owned()));
        assert_eq!(found(Some("day")).unwrap().1, "date");
        assert_eq!(found(Some("created_at")).unwrap_err().kind(), Kind::Config);
        assert_eq!(found(Some("gone")).unwrap_err().kind(), Kind::Publication);
        assert_eq!(time_of(&name, None, &table(&[("day", "date")])).unwrap_err().kind(), Kind::Config);
    }

    #[test]
    fn a_batch_takes_what_is_old_and_published_and_free() {
        let table = table(&[("created_at", "timestamp")]);
        let mut sweeper = Sweeper {
            name: "outbox".parse().unwrap(),
            table,
            basis: Basis::Pending("sent = false".to_owned()),
            time: "created_at".to_owned(),
            retention: Duration::from_millis(1_500),
            time_type: "timestamp without time zone".to_owned(),
        };
        assert!(!sweeper.reads_all());
        let old =
            "\"created_at\" < (pg_catalog.now() - pg_catalog.make_interval(secs => 1.5))::timestamp without time zone";
        let sql = batch(&sweeper, None, Some("2026-01-02'"), 7).unwrap();
        for part in [
            "tableoid as doomed_part, ctid as doomed_place, \"created_at\" as doomed_time from only \"public\".\"outbox\" where ",
            old,
            " and \"created_at\" >= '2026-01-02'''::timestamp without time zone and ((sent = false) is false) order by \
             \"created_at\" limit 7 for update skip locked)",
            &format!("and t.\"created_at\" = doomed_time and t.{old} returning 1)"),
        ] {
            assert!(sql.contains(part), "{part}\n{sql}");
        }
        sweeper.basis = Basis::Xmin;
        assert_eq!(batch(&sweeper, None, None, 7).unwrap_err().kind(), Kind::PositionMismatch);
        sweeper.time = "x".to_owned();
        assert!(sweeper.reads_all());
    }
}
