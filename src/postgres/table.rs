//! Reads how the catalogs describe a table. Reads no row of the table.

use tokio_postgres::Client;
use tokio_postgres::types::Type;
use walrelay_core::catalog::{Table, no_table};
use walrelay_core::config::TableName;
use walrelay_core::error::Result;

use crate::postgres::query::{Param, one_text, parsed};

const TABLE: &str = include_str!("../../sql/table.sql");

/// Reads `name` within [`QUERY_TIMEOUT`](crate::postgres::query::QUERY_TIMEOUT); none where there
/// is no such relation.
pub(crate) async fn read(client: &Client, name: &TableName) -> Result<Option<Table>> {
    let mut found = read_all(client, &[name]).await?;
    Ok(found.pop().flatten())
}

/// As [`read`], for tables in their order, in one statement.
pub(crate) async fn read_all(client: &Client, names: &[&TableName]) -> Result<Vec<Option<Table>>> {
    let doing = match names {
        [name] => format!("looking at table {name}"),
        _ => format!("looking at {} tables", names.len()),
    };
    let schemas: Vec<&str> = names.iter().map(|name| name.schema()).collect();
    let tables: Vec<&str> = names.iter().map(|name| name.table()).collect();
    let params: [Param<'_>; 2] = [(&schemas, Type::TEXT_ARRAY), (&tables, Type::TEXT_ARRAY)];
    let Some(text) = one_text(client, &doing, TABLE, &params).await? else {
        return Ok(Vec::new());
    };
    parsed(&doing, &text)
}

/// As [`read`], for a table that has to exist.
pub(crate) async fn needed(client: &Client, name: &TableName) -> Result<Table> {
    let found = read(client, name).await?;
    found.ok_or_else(|| no_table(name, "this database", None))
}
