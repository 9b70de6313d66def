//! The session that reads rows, one at a time, and the facts of their table.

use std::future::poll_fn;
use std::pin::Pin;

use futures_core::Stream;
use serde::Deserialize;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow, SimpleQueryStream, Statement};

use crate::conninfo::ConnInfo;
use crate::poll::select::{Order, Selection, TableFacts, from, rows, written_by};
use crate::postgres::fault::{self, While, is_about_policy};
use crate::postgres::query::{Param, QUERY_TIMEOUT, QueryError, bounded, one_json};
use crate::postgres::quote::{quote_ident, quote_literal, quote_table, quoted};
use crate::postgres::sql::SqlSession;
use crate::postgres::table;
use walrelay_core::catalog::{Column, Table, no_table};
use walrelay_core::catch_up::{Copies, Key, Which};
use walrelay_core::config::{OutboxConfig, TableName, tables_of};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::position::Lsn;
use walrelay_core::published_versions::{RowVersion, TableFile};
use walrelay_core::snapshot::Snapshot;
use walrelay_core::table_read::TableRow;

/// The columns after the outbox's at the end of each row.
const OWN_COLUMNS: usize = 3;
const READING: &str = "reading rows of the outbox table";
const BEGINNING: &str = "beginning to read the outbox table";
/// The errors for an exported snapshot that ended with its session: a missing file, up to 15 and
/// from 16 on, or a missing process. From `ImportSnapshot` and `SetTransactionSnapshot` in
/// `snapmgr.c`.
const SNAPSHOT_GONE: [&str; 3] = ["22023", "42704", "55000"];

/// The start of a read transaction.
#[derive(Debug, Clone)]
pub struct Began {
    /// The transaction's snapshot.
    pub snapshot: Snapshot,
    /// The end of the WAL, read after the snapshot: each transaction that it sees has its commit
    /// record below.
    pub wal_end: Lsn,
    /// The end of the flushed WAL, which survives a crash of the server.
    pub flushed: Lsn,
}

/// A session that reads tables.
///
/// Values have the same text as in the stream: settings and output functions of types are the same
/// as of `pgoutput`.
#[derive(Debug)]
pub struct Reader {
    session: SqlSession,
}

impl Reader {
    /// Opens the session.
    pub async fn connect(info: &ConnInfo, application_name: &str) -> Result<Reader> {
        let session = SqlSession::connect(info, application_name).await?;
        session.allow_long_statements().await?;
        Ok(Reader { session })
    }

    /// The client, for statements outside of the transaction.
    pub fn client(&self) -> &Client {
        self.session.client()
    }

    /// Begins a read-only transaction, with the exported snapshot `adopt` where there is one. Until
    /// [`Reader::end`], vacuum keeps the rows that it sees, and these tables are not rewritten:
    /// after a rewrite, an older snapshot sees no rows. After an error a transaction may be open:
    /// end it, or drop the reader.
    ///
    /// # Errors
    /// [`Kind::PostgresUnreachable`] without an answer, on a standby, and where the exported
    /// snapshot has ended; those of the session.
    pub async fn begin(&self, adopt: Option<&str>, tables: &[&TableFacts]) -> Result<Began> {
        let mut sql = "begin isolation level repeatable read, read only; ".to_owned();
        if let Some(exported) = adopt {
            sql.push_str(&format!(
                "set transaction snapshot {}; ",
                quote_literal(exported)?
            ));
        }
        // Before the statement that takes the snapshot: a lock takes none.
        for facts in tables.iter().filter(|facts| facts.may_lock) {
            sql.push_str(&format!(
                "lock table {} in access share mode; ",
                from(facts)?
            ));
        }
        // The server takes the transaction's snapshot before it evaluates the first expression.
        sql.push_str(
            "select pg_catalog.pg_current_snapshot()::text, \
             case when not pg_catalog.pg_is_in_recovery() then \
             pg_catalog.pg_current_wal_insert_lsn()::text end, \
             case when not pg_catalog.pg_is_in_recovery() then \
             pg_catalog.pg_current_wal_flush_lsn()::text end",
        );
        let messages = bounded(BEGINNING, QUERY_TIMEOUT, self.client().simple_query(&sql))
            .await
            .map_err(|failed| {
                let is_gone = failed
                    .sqlstate()
                    .is_some_and(|sqlstate| SNAPSHOT_GONE.contains(&sqlstate));
                // The session that exported the snapshot was cut off; its slot is gone, or is being
                // created again.
                if adopt.is_some() && is_gone {
                    return Error::new(Kind::PostgresUnreachable, failed.error().cause());
                }
                failed.into()
            })?;
        let row = messages
            .iter()
            .find_map(as_row)
            .ok_or_else(|| fault::protocol(While::Querying(BEGINNING), "no row"))?;
        let text = |at| row.try_get(at).ok().flatten();
        let Some(wal_end) = text(1) else {
            let cause = format!("while {BEGINNING}: the server is a standby");
            return Err(Error::new(Kind::PostgresUnreachable, cause).remedy(
                "if no failover is under way, connect to the primary, for example with \
                 target_session_attrs=read-write",
            ));
        };
        let unread = |what: &str| {
            fault::protocol(
                While::Querying(BEGINNING),
                format_args!("{what} cannot be read"),
            )
        };
        let snapshot = text(0).unwrap_or_default();
        let snapshot = snapshot
            .parse()
            .map_err(|_| unread(&format!("its snapshot {snapshot:.200}")))?;
        let read = |text: &str| {
            text.parse::<Lsn>()
                .map_err(|_| unread("the end of its log"))
        };
        Ok(Began {
            snapshot,
            wal_end: read(wal_end)?,
            flushed: read(text(2).unwrap_or_default())?,
        })
    }

    /// The table that was rewritten since an exported snapshot, which sees none of its rows.
    /// Requires locks on the tables.
    pub(crate) async fn rewritten<'t>(
        &self,
        tables: &[&'t TableFacts],
    ) -> Result<Option<&'t TableFacts>> {
        for facts in tables {
            // Compares the snapshot's file with the present one. A table that is newer than the
            // snapshot has no rows in it.
            let sql = format!(
                "select pg_catalog.count(*) from pg_catalog.pg_class c where c.relkind = 'r' and \
                 pg_catalog.pg_relation_filenode(c.oid) is distinct from c.relfilenode and (c.oid \
                 = {oid} or c.oid in \
                 (select relid from pg_catalog.pg_partition_tree({oid})))",
                oid = facts.oid
            );
            if self.count(&sql).await? > 0 {
                return Ok(Some(*facts));
            }
        }
        Ok(None)
    }

    /// The files of these tables and of their partitions.
    pub(crate) async fn table_files(&self, tables: &[&TableFacts]) -> Result<Vec<TableFile>> {
        const DOING: &str = "looking at the files of the outbox table";
        let oids = tables
            .iter()
            .map(|facts| facts.oid.to_string())
            .collect::<Vec<_>>()
            .join(",");
        let oids = format!("'{{{oids}}}'::oid[]");
        let sql = format!(
            "select coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('oid', \
             c.oid::bigint, \
             'filenode', c.relfilenode::bigint, 'changed_by', greatest({written_by}::bigint, 0))), \
             '[]')::text \
             from pg_catalog.pg_class c where c.relkind = 'r' and (c.oid = any ({oids}) or c.oid \
             in \
             (select p.relid from pg_catalog.unnest({oids}) t, pg_catalog.pg_partition_tree(t) p))",
            written_by = written_by()
        );
        Ok(one_json(self.client(), DOING, &sql, &[]).await?)
    }

    /// The result of [`count`](crate::poll::select::count), without a time limit. To cancel, drop
    /// this and the reader.
    pub async fn count(&self, sql: &str) -> Result<u64> {
        Ok(self.extent(sql).await?.0)
    }

    /// The result of [`extent`](crate::poll::select::extent), likewise.
    pub async fn extent(&self, sql: &str) -> Result<(u64, Option<String>, Option<String>)> {
        let doing = "counting rows of the outbox table";
        let counted = self
            .client()
            .simple_query(sql)
            .await
            .map_err(|error| fault::query(doing, &error))?;
        let row = counted.iter().find_map(as_row);
        let text = |at| row.and_then(|row| row.try_get(at).ok().flatten());
        let count = text(0).and_then(|text: &str| text.parse().ok());
        let count = count.ok_or_else(|| fault::protocol(While::Querying(doing), "no number"))?;
        Ok((
            count,
            text(1).map(str::to_owned),
            text(2).map(str::to_owned),
        ))
    }

    /// Runs the statement of [`rows`]. The server waits while no row is taken.
    ///
    /// Beside the taken row, memory holds at most five reads from the socket: one being parsed, two
    /// in the channel before it, one that waits for the channel, and one being read. Each has some
    /// ten kilobytes, or up to twice one larger row.
    ///
    /// The next statement waits for the end of the rows. To stop early, drop the reader.
    ///
    /// # Errors
    /// [`Kind::PostgresUnreachable`] where the session is over. The first row has an error of the
    /// statement.
    pub async fn rows(&self, sql: &str) -> Result<RowStream> {
        let stream = self
            .client()
            .simple_query_raw(sql)
            .await
            .map_err(|error| failed(&error))?;
        Ok(RowStream {
            stream: Some(Box::pin(stream)),
        })
    }

    /// Ends the transaction, also after an error.
    pub async fn end(&self) -> Result<()> {
        let doing = "ending to read the outbox table";
        Ok(bounded(doing, QUERY_TIMEOUT, self.client().batch_execute("commit")).await?)
    }
}

fn as_row(message: &SimpleQueryMessage) -> Option<&SimpleQueryRow> {
    if let SimpleQueryMessage::Row(row) = message {
        Some(row)
    } else {
        None
    }
}

fn failed(error: &tokio_postgres::Error) -> Error {
    fault::query(READING, error)
}

/// The rows of one statement.
pub struct RowStream {
    /// None after the last row, and after an error.
    stream: Option<Pin<Box<SimpleQueryStream>>>,
}

impl RowStream {
    /// The next row; none after the last, and after an error. Safe to cancel: no row is lost.
    pub async fn next(&mut self) -> Result<Option<PolledRow>> {
        while let Some(stream) = &mut self.stream {
            match poll_fn(|context| stream.as_mut().poll_next(context)).await {
                Some(Ok(SimpleQueryMessage::Row(row))) => {
                    let row = PolledRow::checked(row);
                    if row.is_err() {
                        self.stream = None;
                    }
                    return row.map(Some);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    self.stream = None;
                    return Err(failed(&error));
                }
                None => self.stream = None,
            }
        }
        Ok(None)
    }
}

/// A row of the table.
pub struct PolledRow(SimpleQueryRow);

impl PolledRow {
    fn checked(row: SimpleQueryRow) -> Result<PolledRow> {
        if row.len() <= OWN_COLUMNS {
            return Err(fault::protocol(
                While::Querying(READING),
                "a row without columns",
            ));
        }
        (0..row.len())
            .try_for_each(|at| row.try_get(at).map(drop))
            .map_err(|error| failed(&error))?;
        Ok(PolledRow(row))
    }

    /// The event's id; empty where it is NULL.
    pub fn id(&self) -> &str {
        self.text(0).unwrap_or_default()
    }

    fn at_end(&self, count: usize) -> Option<&str> {
        self.0.len().checked_sub(count).and_then(|at| self.text(at))
    }

    fn text(&self, at: usize) -> Option<&str> {
        self.0.try_get(at).ok().flatten()
    }
}

impl TableRow for PolledRow {
    fn values(&self) -> impl ExactSizeIterator<Item = Option<&[u8]>> {
        (0..self.0.len().saturating_sub(OWN_COLUMNS)).map(|at| self.text(at).map(str::as_bytes))
    }

    fn key(&self, outbox: &OutboxConfig) -> Key {
        let mut values = outbox
            .key_places()
            .iter()
            .map(|place| self.text(*place).unwrap_or_default().to_owned());
        let id = values.next().unwrap_or_default();
        Key {
            order: self.at_end(3).map(str::to_owned),
            id,
            rest: values.collect(),
        }
    }

    /// Where its `xmin` is not the transaction in its column: such rows may be found again.
    fn version(&self) -> Option<RowVersion> {
        let xmin = self.at_end(1)?.parse().ok()?;
        Some(RowVersion {
            xid: self.at_end(2).and_then(|xid| xid.parse().ok()),
            xmin,
        })
    }
}

const TYPE_SQL: &str = include_str!("../../sql/poll/type.sql");
const DESCRIBING: &str = "reading the outbox table's description";

const ORDER_REMEDY: &str = "write one SQL expression over the table's columns, such as order_by = \
                            \"seq\", without ASC or \
                            DESC; types and functions outside pg_catalog need their schema";
const PENDING_REMEDY: &str = "write one SQL condition over the table's columns, such as pending = \
                              \"status = 'NEW'\"; types \
                              and functions outside pg_catalog need their schema";

#[derive(Debug, Deserialize)]
struct TypeFacts {
    name: String,
    is_ordered: bool,
}

/// Reads the catalogs and has Postgres check the SQL of the configuration. Reads no rows; each
/// statement takes ten seconds at most.
///
/// # Errors
/// [`Kind::Config`] for an outbox of messages, and for settings that do not fit the table;
/// [`Kind::Publication`] for a missing table or column; those of the session. A missing privilege
/// is a fact, and no error.
pub async fn table_facts(client: &Client, outbox: &OutboxConfig) -> Result<TableFacts> {
    let Some(name) = outbox.source.table() else {
        let cause = format!(
            "{} are in no table, and rows of a table are to be read",
            outbox.source
        );
        return Err(Error::new(Kind::Config, cause)
            .remedy("messages come through a slot only: set source.mode"));
    };
    let table = table::needed(client, name).await?;
    facts_of(client, outbox, name, &table).await
}

/// As [`table_facts`], for the outboxes that are tables, in their order. Reads the catalogs in one
/// statement.
pub(crate) async fn all_table_facts(
    client: &Client,
    outboxes: &[OutboxConfig],
) -> Result<Vec<TableFacts>> {
    let names: Vec<_> = tables_of(outboxes).map(|(_, name)| name).collect();
    let mut facts = Vec::with_capacity(names.len());
    let found = table::read_all(client, &names).await?;
    for ((outbox, name), table) in tables_of(outboxes).zip(found) {
        let table = table.ok_or_else(|| no_table(name, "this database", None))?;
        facts.push(facts_of(client, outbox, name, &table).await?);
    }
    Ok(facts)
}

async fn facts_of(
    client: &Client,
    outbox: &OutboxConfig,
    name: &TableName,
    table: &Table,
) -> Result<TableFacts> {
    let mut facts = TableFacts::found(table, name, outbox)?;
    let from = from(&facts)?;
    if let Some(sql) = &outbox.upkeep.order_by {
        facts.order = configured_order(client, table, &from, sql).await?;
        facts.may_select &= facts.order.is_some();
    }
    if let Some(sql) = &outbox.upkeep.pending {
        let asked = format!("select 1 from {from} where ({sql})");
        let prepared = prepare(client, &asked, "outbox.pending", PENDING_REMEDY).await?;
        facts.may_select &= prepared.is_some();
    }
    facts.may_select = facts.may_select && may_select(client, &facts, outbox).await?;
    Ok(facts)
}

/// Rows whose transaction column has a transaction that this server did not have yet: they are of
/// another server.
#[derive(Debug, Clone)]
pub(crate) struct RestoredRows {
    pub(crate) cause: String,
    /// The statement that marks those of now as published.
    pub(crate) fix: String,
}

/// Looks for such rows, for as long as the session's `statement_timeout`.
pub(crate) async fn restored_rows(
    session: &SqlSession,
    facts: &TableFacts,
) -> Result<Option<RestoredRows>> {
    const DOING: &str = "looking for rows of another server";
    let Some(xid) = &facts.xid_column else {
        return Ok(None);
    };
    let column = quote_ident(xid)?;
    let from = from(facts)?;
    let id = facts
        .key
        .first()
        .map(|id| quote_ident(&id.name))
        .transpose()?;
    let id = id.map_or("null".to_owned(), |id| format!("{id}::text"));
    let sql = format!(
        "select count(*), min({id}), pg_snapshot_xmin(pg_current_snapshot())::text::bigint & \
         4294967295 from {from} \
         where {column} >= pg_snapshot_xmax(pg_current_snapshot())"
    );
    let found = session
        .texts(&sql)
        .await
        .map_err(|error| fault::query(DOING, &error))?;
    let Some([Some(rows), id, Some(oldest)]) = found.first().map(Vec::as_slice) else {
        return Ok(None);
    };
    if rows == "0" {
        return Ok(None);
    }
    let example = id
        .as_ref()
        .map(|id| format!(", such as the one with id {id:.100}"))
        .unwrap_or_default();
    let cause = format!(
        "table {}: the {xid} of {rows} rows{example} is of another server: xmin decides whether \
         they are published",
        facts.name
    );
    let fix = format!(
        "update {} set {column} = '2' where {column} >= pg_snapshot_xmax(pg_current_snapshot()) \
         and \
         age(xmin) > age('{oldest}'::xid);",
        quote_table(&facts.name)?
    );
    Ok(Some(RestoredRows { cause, fix }))
}

/// The configured order; none without the privilege to use it.
async fn configured_order(
    client: &Client,
    table: &Table,
    from: &str,
    sql: &str,
) -> Result<Option<Order>> {
    // In WHERE it can be no aggregate, window function or set either.
    let asked = format!("select ({sql}) from {from} where ({sql}) is not null");
    let Some(statement) = prepare(client, &asked, "outbox.order_by", ORDER_REMEDY).await? else {
        return Ok(None);
    };
    let type_oid = match statement.columns() {
        [column] if *column.type_() != Type::RECORD => column.type_().oid(),
        _ => {
            let cause = format!("outbox.order_by: {sql} is more than one expression");
            return Err(Error::new(Kind::Config, cause).remedy(ORDER_REMEDY));
        }
    };
    let params: [Param<'_>; 1] = [(&type_oid, Type::OID)];
    let of: TypeFacts = one_json(client, DESCRIBING, TYPE_SQL, &params).await?;
    if !of.is_ordered {
        let cause = format!(
            "outbox.order_by: {sql} is of type {}, which Postgres itself does not order",
            of.name
        );
        return Err(Error::new(Kind::Config, cause)
            .remedy("cast it to a type that it does, such as order_by = \"number::text\""));
    }
    let not_null = table
        .columns
        .iter()
        .any(|column| column.not_null && is_named_by(column, sql));
    Ok(Some(Order {
        sql: sql.to_owned(),
        type_name: of.name,
        not_null,
        is_found: false,
    }))
}

/// Has Postgres check a statement with the SQL of `setting`; none without the privilege to run it.
async fn prepare(
    client: &Client,
    sql: &str,
    setting: &str,
    remedy: &str,
) -> Result<Option<Statement>> {
    let doing = format!("checking {setting}");
    let failed = match bounded(&doing, QUERY_TIMEOUT, client.prepare(sql)).await {
        Ok(statement) if statement.params().is_empty() => return Ok(Some(statement)),
        Ok(_) => {
            let cause =
                format!("{setting} has parameters such as $1, and nothing is put in for them");
            return Err(
                Error::new(Kind::Config, cause).remedy("write values where the parameters are")
            );
        }
        Err(failed) => failed,
    };
    match failed.sqlstate() {
        Some("42501") => Ok(None),
        Some(_) if is_about_sql(&failed) => {
            Err(Error::new(Kind::Config, failed.error().cause()).remedy(remedy))
        }
        Some(_) | None => Err(failed.into()),
    }
}

/// Whether Postgres refused the SQL itself: syntax, names, values, or an unsupported feature.
fn is_about_sql(failed: &QueryError) -> bool {
    failed.sqlstate().is_some_and(|sqlstate| {
        ["42", "22", "0A"]
            .iter()
            .any(|class| sqlstate.starts_with(class))
    })
}

/// Explains the statements that will be run: that checks every privilege, of columns and functions
/// too, and reads no row.
async fn may_select(client: &Client, facts: &TableFacts, outbox: &OutboxConfig) -> Result<bool> {
    let none = "3:3:"
        .parse()
        .map_err(|error| Error::new(Kind::Bug, error))?;
    let mut all = vec![Which::Unpublished {
        snapshot: &none,
        also: &[],
        copies: Some(Copies {
            snapshot: &none,
            before: None,
            savepoints: &[],
            all_from: None,
        }),
    }];
    all.extend(outbox.upkeep.pending.as_ref().map(|_| Which::Pending));
    all.extend(facts.time.as_ref().map(|_| Which::Since("-infinity")));
    let doing = if outbox.upkeep.order_by.is_some() {
        "checking outbox.order_by"
    } else {
        DESCRIBING
    };
    for which in all {
        let sql = format!("explain {}", rows(facts, outbox, &Selection::of(which))?);
        match bounded(doing, QUERY_TIMEOUT, client.batch_execute(&sql)).await {
            Ok(()) => {}
            // Rows that a policy hides are refused with this state, too, and no right would help.
            Err(failed)
                if failed.sqlstate() == Some("42501") && !is_about_policy(failed.error()) =>
            {
                return Ok(false);
            }
            // An expression that Postgres takes alone and not behind ORDER BY, such as a constant.
            Err(failed) if outbox.upkeep.order_by.is_some() && is_about_sql(&failed) => {
                return Err(Error::new(Kind::Config, failed.error().cause()).remedy(ORDER_REMEDY));
            }
            Err(failed) => return Err(failed.into()),
        }
    }
    Ok(true)
}

/// Whether `sql` is the column and nothing else.
fn is_named_by(column: &Column, sql: &str) -> bool {
    sql.trim() == column.written || sql.trim() == quoted(&column.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use walrelay_core::testing::column_of;

    #[test]
    fn an_expression_that_only_names_a_column_is_recognized() {
        let plain = column_of("seq", "int8");
        let quoted = Column {
            written: "\"null\"".to_owned(),
            ..column_of("null", "int8")
        };
        assert!(
            is_named_by(&plain, " seq ")
                && is_named_by(&plain, "\"seq\"")
                && is_named_by(&quoted, "\"null\"")
        );
        assert!(!is_named_by(&plain, "seq + 1") && !is_named_by(&quoted, "null"));
    }
}
