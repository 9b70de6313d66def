//! Reads what has to be known of a table, and has Postgres check the SQL of the configuration.

use serde::Deserialize;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Statement};

use crate::config::OutboxConfig;
use crate::error::{Error, Kind, Result};
use crate::poll::select::{self, Selection, Which};
use crate::poll::table::{Order, TableFacts};
use crate::postgres::catalog::{Column, Table};
use crate::postgres::query::{Param, QUERY_TIMEOUT, QueryError, bounded, one_json};
use crate::postgres::quote::quoted;

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

    #[test]
    fn an_expression_that_is_a_column_is_known_as_one() {
        let plain = Column::of("seq", "int8");
        let quoted = Column { written: "\"null\"".to_owned(), ..Column::of("null", "int8") };
        assert!(is_named_by(&plain, " seq ") && is_named_by(&plain, "\"seq\"") && is_named_by(&quoted, "\"null\""));
        assert!(!is_named_by(&plain, "seq + 1") && !is_named_by(&quoted, "null"));
    }
}
