//! An outbox table and its columns, read from the catalogs. Changes nothing, and reads no row.

use crate::cli::session::{Session, column};
use crate::cli::sql;
use crate::config::TableName;
use crate::error::{Error, Kind, Result};
use crate::source::preflight;
use crate::suggest::Column;

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// `relkind`: `p` a partitioned one.
    pub kind: String,
    /// The table it is a partition of, if it is one.
    pub partition_of: Option<String>,
    /// Its columns, in order.
    pub columns: Vec<Column>,
}

/// Reads `name` and its columns; `None` where there is no such table.
///
/// # Errors
/// What the session gives; [`Kind::PostgresUnfit`] for a server that is too old to answer.
pub async fn look(session: &Session, name: &TableName) -> Result<Option<Table>> {
    const DOING: &str = "looking at the outbox table";
    let server = preflight::server(session.client()).await?;
    if server.major() < preflight::MAJOR_MIN {
        let cause = format!("the server is PostgreSQL {}, and walrelay needs {}", server.version, preflight::MAJOR_MIN);
        return Err(Error::new(Kind::PostgresUnfit, cause).remedy("upgrade the server"));
    }
    let Some(row) = session.row(DOING, sql::COLUMNS, &[&name.schema(), &name.table()]).await? else { return Ok(None) };
    let columns: &str = column(&row, "columns")?;
    let columns = serde_json::from_str(columns);
    let columns = columns.map_err(|error| Error::new(Kind::Bug, format!("columns of a query of ours: {error}")))?;
    Ok(Some(Table { kind: column(&row, "kind")?, partition_of: column(&row, "partition_of")?, columns }))
}

/// Up to ten tables that may be outboxes, likely ones first.
///
/// # Errors
/// What the session gives.
pub async fn candidates(session: &Session) -> Result<Vec<String>> {
    let rows = session.rows("looking for tables", sql::TABLES, &[]).await?;
    rows.iter().map(|row| column(row, "name")).collect()
}
