//! An outbox table as the catalogs describe it. Reads no row.

use serde::Deserialize;
use tokio_postgres::Client;

use crate::config::TableName;
use crate::error::{Error, Kind, Result};
use crate::postgres::query::bounded;
use crate::upkeep::ANSWER_TIMEOUT;

const TABLE: &str = include_str!("../../sql/upkeep/table.sql");

/// A table.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Table {
    /// Its OID.
    pub oid: u32,
    /// `relkind`: `p` a partitioned one.
    pub kind: String,
    /// Whether the role has the rights of its owner.
    pub owned: bool,
    /// The role.
    pub role: String,
    /// Its columns, in order.
    pub columns: Vec<Column>,
    /// What it and its partitions are partitioned by, as in `PARTITION BY`.
    pub partition_keys: Vec<String>,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type as SQL writes it, of a domain the type under it. Without length.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Its default, as SQL.
    pub default: Option<String>,
    /// Whether there is an index over all rows that begins with it.
    pub leads_index: bool,
}

impl Table {
    /// Reads `name`.
    ///
    /// # Errors
    /// [`Kind::Publication`] where there is no such table, and those of the connection.
    pub async fn look(client: &Client, name: &TableName) -> Result<Table> {
        let doing = format!("looking at table {name}");
        let rows = bounded(&doing, ANSWER_TIMEOUT, client.query(TABLE, &[&name.schema(), &name.table()])).await?;
        let Some(row) = rows.first() else {
            return Err(Error::new(Kind::Publication, format!("there is no table {name} in the database"))
                .remedy("name the outbox table with outbox.table, in SQL's quotes where it has capitals"));
        };
        let read = row.try_get::<_, &str>(0).map_err(|error| error.to_string());
        let read = read.and_then(|text| serde_json::from_str(text).map_err(|error| error.to_string()));
        read.map_err(|error| Error::new(Kind::Bug, format!("while {doing}: the answer cannot be read: {error}")))
    }

    /// A column by its name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The same, where it has to be there.
    ///
    /// # Errors
    /// [`Kind::Publication`] with the columns there are; `key` is the setting that names it.
    pub fn needed(&self, table: &TableName, name: &str, key: &str) -> Result<&Column> {
        self.column(name).ok_or_else(|| {
            let there_are: Vec<_> = self.columns.iter().map(|column| column.name.as_str()).collect();
            Error::new(Kind::Publication, format!("table {table} has no column {name}"))
                .remedy(format!("name one it has with {key}: {}", there_are.join(", ")))
        })
    }
}
