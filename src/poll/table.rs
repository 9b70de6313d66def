//! What has to be known of the table to read its rows.

use serde::Deserialize;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Statement};

use crate::config::{OutboxConfig, TableName};
use crate::decode;
use crate::error::{Error, Kind, Result};
use crate::poll::select::{self, Selection, Which};
use crate::postgres::catalog::{Column, Table};
use crate::postgres::query::{Param, QUERY_TIMEOUT, QueryError, bounded, one_json};
use crate::postgres::quote::{quote_ident, quoted};

/// An outbox table as it is now, as far as reading its rows goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFacts {
    /// Its OID.
    pub oid: u32,
    /// Its name.
    pub name: TableName,
    /// The outbox's columns, in that order; a column of a domain has the type under it.
    pub columns: Vec<decode::Column>,
    /// The columns that name a row, the id first.
    pub key: Vec<KeyColumn>,
    /// The column with the transaction that inserted the row: an `xid8` that defaults to `pg_current_xact_id()`.
    pub xid_column: Option<String>,
    /// Whether that is never NULL.
    pub xid_not_null: bool,
    /// What rows are ordered by before the id.
    pub order: Option<Order>,
    /// The column with the event's time: a timestamp, or a date where it is configured.
    pub time: Option<String>,
    /// Whether the role may read what it has to. Where it may not look into the table's schema, the configured order is
    /// not among the facts.
    pub may_select: bool,
    /// Whether it may read the whole table, `xmin` with it, and so lock it against rewriting.
    pub may_lock: bool,
    /// Whether it has partitions.
    pub is_partitioned: bool,
}

/// A column that names a row, with others or alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyColumn {
    /// Its name.
    pub name: String,
    /// Its type, as SQL writes it; of a domain the type under it.
    pub type_name: String,
    /// Whether it is compared as text: its own type is not one that Postgres itself orders.
    pub as_text: bool,
    /// Whether it is never NULL.
    pub not_null: bool,
}

impl KeyColumn {
    fn of(column: &Column) -> KeyColumn {
        KeyColumn {
            name: column.name.clone(),
            type_name: column.base_type.clone(),
            as_text: !column.is_ordered,
            not_null: column.not_null,
        }
    }

    /// As what Postgres itself compares.
    pub(super) fn comparable(&self) -> Result<String> {
        let name = quote_ident(&self.name)?;
        Ok(if self.as_text { format!("{name}::text collate \"C\"") } else { name })
    }

    /// The type of that.
    pub(super) fn comparable_type(&self) -> &str {
        if self.as_text { "text" } else { &self.type_name }
    }
}

/// What rows are ordered by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// One SQL expression.
    pub sql: String,
    /// Its type, as SQL writes it; of a domain the type under it.
    pub type_name: String,
    /// Whether it is known to be never NULL.
    pub not_null: bool,
    /// Whether it was found in the catalog, not configured.
    pub is_found: bool,
}

impl Order {
    fn of(column: &Column) -> Result<Order> {
        let (sql, type_name) = (quote_ident(&column.name)?, column.base_type.clone());
        Ok(Order { sql, type_name, not_null: column.not_null, is_found: true })
    }
}

impl TableFacts {
    /// What rows are read in the order of, as SQL: a place that was noted in another order is none in this one.
    pub fn ordered_by(&self) -> Option<String> {
        let order = self.order.as_ref().map(|order| order.sql.clone());
        let rest = self.key.iter().skip(1).map(|column| quoted(&column.name));
        let all: Vec<String> = order.into_iter().chain(rest).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// What the catalogs alone say of `table`.
    ///
    /// # Errors
    /// [`Kind::Publication`] for what is no table, and for columns that are not there; [`Kind::Config`] for a time column that
    /// has no time.
    pub(super) fn found(table: &Table, name: &TableName, outbox: &OutboxConfig) -> Result<TableFacts> {
        if !table.is_table() {
            return Err(Error::new(Kind::Publication, format_args!("{name} is not a table"))
                .remedy("name the table that events are inserted into"));
        }
        let column = |wanted: &String| table.needed_column(name, wanted);
        let columns = outbox.columns.iter().map(|name| column(name).map(as_streamed)).collect::<Result<_>>()?;
        let id = column(&outbox.id)?;
        let key = outbox.index_columns().map(|name| column(name).map(KeyColumn::of)).collect::<Result<_>>()?;
        let xid = table.xid_column();
        let counter = table.counters().find(|column| column.is_integer());
        let order = counter.or_else(|| Some(id).filter(|id| id.is_integer()));
        Ok(TableFacts {
            oid: table.oid,
            name: name.clone(),
            columns,
            key,
            xid_column: xid.map(|column| column.name.clone()),
            xid_not_null: xid.is_some_and(|column| column.not_null),
            order: order.map(Order::of).transpose()?,
            time: time(table, name, outbox)?,
            may_select: true,
            may_lock: table.may_select,
            is_partitioned: table.is_partitioned(),
        })
    }
}

/// A column as the stream describes it, and the relay sees it: without its domain.
pub fn as_streamed(column: &Column) -> decode::Column {
    decode::Column { name: column.name.clone(), type_oid: column.base_oid, type_modifier: column.type_modifier }
}

fn time(table: &Table, name: &TableName, outbox: &OutboxConfig) -> Result<Option<String>> {
    let Some(wanted) = &outbox.upkeep.time else {
        return Ok(table.time_column().map(|column| column.name.clone()));
    };
    let refuse = |cause: String| {
        Err(Error::new(Kind::Config, format_args!("outbox.time: {cause}"))
            .remedy("name a column of type timestamptz, timestamp or date, or leave it out"))
    };
    match table.column(wanted) {
        None => refuse(format!("table {name} has no column {wanted}")),
        Some(column) if column.is_timestamp() || column.base == "date" => Ok(Some(wanted.clone())),
        Some(column) => refuse(format!("column {wanted} of {name} is of type {}", column.base_type)),
    }
}

/// What to do where nothing tells the order of an aggregate's events, and somebody has to.
pub const NEEDS_ORDER: &str = "set outbox.order_by to a column that goes up from event to event of an aggregate: a version, a \
                               sequence, the time of the insert (clock_timestamp(), not now())";

const TYPE_SQL: &str = include_str!("../../sql/poll/type.sql");
const DOING: &str = "reading the outbox table's description";

const ORDER_REMEDY: &str = "write one SQL expression over the table's columns, such as order_by = \"seq\", without ASC or \
                            DESC; types and functions outside pg_catalog need their schema";
const PENDING_REMEDY: &str = "write one SQL condition over the table's columns, such as pending = \"status = 'NEW'\"; types \
                              and functions outside pg_catalog need their schema";

#[derive(Debug, Deserialize)]
struct TypeFacts {
    name: String,
    is_ordered: bool,
}

/// Reads the catalogs and has Postgres check the SQL of the configuration. Reads no rows; each question takes ten
/// seconds at most.
///
/// # Errors
/// [`Kind::Config`] for an outbox of messages, and settings that do not fit the table, with Postgres' words;
/// [`Kind::Publication`] where there is no such table or column; what the session gives. A missing privilege is none:
/// it is among the facts.
pub async fn table_facts(client: &Client, outbox: &OutboxConfig) -> Result<TableFacts> {
    let Some(name) = outbox.source.table() else {
        let cause = format!("{} are in no table, and rows of a table are to be read", outbox.source);
        return Err(Error::new(Kind::Config, cause).remedy("messages come through a slot only: set source.mode"));
    };
    let table = Table::needed(client, name).await?;
    let mut facts = TableFacts::found(&table, name, outbox)?;
    let from = select::from(&facts)?;
    if let Some(sql) = &outbox.upkeep.order_by {
        facts.order = configured_order(client, &table, &from, sql).await?;
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

/// The configured order; none where the role may not even look.
async fn configured_order(client: &Client, table: &Table, from: &str, sql: &str) -> Result<Option<Order>> {
    // In WHERE it can be no aggregate, window function or set either.
    let asked = format!("select ({sql}) from {from} where ({sql}) is not null");
    let Some(statement) = prepare(client, &asked, "outbox.order_by", ORDER_REMEDY).await? else { return Ok(None) };
    let type_oid = match statement.columns() {
        [column] if *column.type_() != Type::RECORD => column.type_().oid(),
        _ => {
            let cause = format!("outbox.order_by: {sql} is more than one expression");
            return Err(Error::new(Kind::Config, cause).remedy(ORDER_REMEDY));
        }
    };
    let params: [Param<'_>; 1] = [(&type_oid, Type::OID)];
    let of: TypeFacts = one_json(client, DOING, TYPE_SQL, &params).await?;
    if !of.is_ordered {
        let cause = format!("outbox.order_by: {sql} is of type {}, which Postgres itself does not order", of.name);
        return Err(Error::new(Kind::Config, cause)
            .remedy("cast it to a type that it does, such as order_by = \"number::text\""));
    }
    let not_null = table.columns.iter().any(|column| column.not_null && is_named_by(column, sql));
    Ok(Some(Order { sql: sql.to_owned(), type_name: of.name, not_null, is_found: false }))
}

/// Has Postgres read a statement with SQL of `setting` in it; none where a privilege is missing for that.
async fn prepare(client: &Client, sql: &str, setting: &str, remedy: &str) -> Result<Option<Statement>> {
    let doing = format!("checking {setting}");
    let failed = match bounded(&doing, QUERY_TIMEOUT, client.prepare(sql)).await {
        Ok(statement) if statement.params().is_empty() => return Ok(Some(statement)),
        Ok(_) => {
            let cause = format!("{setting} has parameters such as $1, and nothing is put in for them");
            return Err(Error::new(Kind::Config, cause).remedy("write values where the parameters are"));
        }
        Err(failed) => failed,
    };
    match failed.sqlstate() {
        Some("42501") => Ok(None),
        Some(_) if is_about_sql(&failed) => Err(Error::new(Kind::Config, failed.error().cause()).remedy(remedy)),
        Some(_) | None => Err(failed.into()),
    }
}

/// What Postgres says of SQL it cannot take: syntax and names, values, and what is not supported.
fn is_about_sql(failed: &QueryError) -> bool {
    failed.sqlstate().is_some_and(|sqlstate| ["42", "22", "0A"].iter().any(|class| sqlstate.starts_with(class)))
}

/// Asks for the plans of what will be asked for: that checks every privilege, of columns and functions too, and reads no
/// row.
async fn may_select(client: &Client, facts: &TableFacts, outbox: &OutboxConfig) -> Result<bool> {
    let none = "3:3:".parse().map_err(|error| Error::new(Kind::Bug, error))?;
    let mut all = vec![Which::Unpublished { snapshot: &none, also: &[] }];
    all.extend(outbox.upkeep.pending.as_ref().map(|_| Which::Pending));
    all.extend(facts.time.as_ref().map(|_| Which::Since("-infinity")));
    let doing = if outbox.upkeep.order_by.is_some() { "checking outbox.order_by" } else { DOING };
    for which in all {
        let sql = format!("explain {}", select::rows(facts, outbox, &Selection::of(which))?);
        match bounded(doing, QUERY_TIMEOUT, client.batch_execute(&sql)).await {
            Ok(()) => {}
            Err(failed) if failed.sqlstate() == Some("42501") => return Ok(false),
            // What stands there on its own and not behind ORDER BY, such as a constant.
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

    use crate::config::Upkeep;

    fn facts_of(columns: Vec<Column>, upkeep: &Upkeep) -> Result<TableFacts> {
        let table = Table { kind: "r".to_owned(), columns, ..Table::default() };
        let outbox = OutboxConfig { columns: vec!["id".to_owned()], upkeep: upkeep.clone(), ..OutboxConfig::default() };
        TableFacts::found(&table, &TableName::debezium(), &outbox)
    }

    fn facts(columns: Vec<Column>) -> TableFacts {
        facts_of(columns, &Upkeep::default()).unwrap()
    }

    #[test]
    fn rows_are_ordered_by_what_counts_them() {
        let identity = |name| Column { is_identity: true, not_null: true, ..Column::of(name, "int8") };
        let default = |name, base, sql| Column::of(name, base).with_default(sql);
        let serial = |name| default(name, "int4", "nextval('public.s'::regclass)");
        let id = |base| Column::of("id", base);
        for (columns, expected) in [
            (vec![id("int8"), serial("n"), identity("se\"q")], Some(("\"se\"\"q\"", "bigint", true))),
            (vec![id("int8"), serial("n")], Some(("\"n\"", "integer", false))),
            (vec![id("int4"), Column::of("n", "int8")], Some(("\"id\"", "integer", false))),
            (vec![id("uuid"), Column::of("n", "int8")], None),
            // A number that is made of nothing in order, and a text that is.
            (vec![id("uuid"), default("n", "int8", "1"), default("t", "text", "nextval('s')::text")], None),
        ] {
            let facts = facts(columns);
            let found =
                facts.order.as_ref().map(|order| (order.sql.as_str(), order.type_name.as_str(), order.not_null));
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn the_time_is_a_column_of_a_usual_name_or_the_one_that_is_named() {
        let all = || {
            vec![
                Column::of("id", "uuid"),
                Column::of("created", "timestamptz"),
                Column::of("created_at", "text"),
                Column::of("occurred_at", "timestamptz"),
                Column::of("day", "date"),
            ]
        };
        let named = |name: &str| facts_of(all(), &Upkeep { time: Some(name.to_owned()), ..Upkeep::default() });
        assert_eq!(facts(all()).time.as_deref(), Some("occurred_at"));
        assert_eq!(named("day").unwrap().time.as_deref(), Some("day"));
        assert_eq!(facts(vec![Column::of("id", "uuid"), Column::of("timestamp", "date")]).time, None);
        for (name, what) in
            [("created_at", "outbox.time: column created_at of public.outbox is of type text"), ("x", "no column x")]
        {
            let error = named(name).unwrap_err();
            assert_eq!(error.kind(), Kind::Config);
            assert!(error.cause().contains(what), "{error}");
        }
    }

    #[test]
    fn a_missing_column_and_what_is_no_table_are_refused() {
        let error = facts_of(vec![Column::of("number", "int8")], &Upkeep::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::Publication);
        assert_eq!(error.cause(), "table public.outbox has no column id; it has number");
        let view = Table { kind: "v".to_owned(), columns: vec![Column::of("id", "uuid")], ..Table::default() };
        let error = TableFacts::found(&view, &TableName::debezium(), &OutboxConfig::default()).unwrap_err();
        assert_eq!((error.kind(), error.cause()), (Kind::Publication, "public.outbox is not a table"));
    }

    #[test]
    fn an_expression_that_is_a_column_is_known_as_one() {
        let plain = Column::of("seq", "int8");
        let quoted = Column { written: "\"null\"".to_owned(), ..Column::of("null", "int8") };
        assert!(is_named_by(&plain, " seq ") && is_named_by(&plain, "\"seq\"") && is_named_by(&quoted, "\"null\""));
        assert!(!is_named_by(&plain, "seq + 1") && !is_named_by(&quoted, "null"));
    }
}
