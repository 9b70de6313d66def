//! The publication, the outbox table, and whether they are still what they were (P8).
//!
//! Postgres says nothing when a table leaves a publication, is dropped, or is added again: it streams less. So the
//! catalogs are read at start and again every so often, and compared.

mod fingerprint;

use std::collections::HashMap;

use serde::Deserialize;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::config::TableName;
pub(super) use fingerprint::look;
pub(crate) use fingerprint::{Fingerprint, compare, notice};

use crate::postgres::query::{Param, QueryError, one_json};

const SQL: &str = include_str!("../../sql/source/catalog.sql");

/// What the catalogs say of publication and table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Catalog {
    /// Process id of the server's side, to recognise a pooler.
    pub backend_pid: i32,
    /// The publication, if there is one of that name.
    pub publication: Option<Publication>,
    /// What the publication last seen is called by now, if it still exists.
    pub publication_now_called: Option<String>,
    /// The table, if there is one of that name.
    pub table: Option<Table>,
    /// What the table last seen is called by now, if it still exists.
    pub table_now_called: Option<String>,
    /// Every way in which the table, or a partitioned table above it, is in the publication.
    pub members: Vec<Member>,
    /// Up to four tables that were added to the publication by name and are not the outbox.
    pub other_tables: Vec<String>,
    /// OIDs of the types that a column may be of, and of the type under each: of domains one that is none, of the types
    /// of the table's columns themselves.
    #[serde(default)]
    pub base_types: HashMap<u32, u32>,
}

/// A row of `pg_publication` (<https://www.postgresql.org/docs/current/catalog-pg-publication.html>).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Publication {
    pub oid: u32,
    /// Changes with every `ALTER PUBLICATION` of options, owner or name.
    pub row_version: String,
    /// OID of its owner.
    #[serde(rename = "pubowner")]
    pub owner: String,
    #[serde(rename = "puballtables")]
    pub all_tables: bool,
    /// What it publishes.
    #[serde(flatten)]
    pub flags: Flags,
    /// `s` where stored generated columns are published (18+).
    #[serde(rename = "pubgencols", default)]
    pub generated_columns: Option<String>,
}

/// What a publication publishes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Flags {
    /// Inserts: the events.
    #[serde(rename = "pubinsert")]
    pub insert: bool,
    /// Updates.
    #[serde(rename = "pubupdate")]
    pub update: bool,
    /// Deletes.
    #[serde(rename = "pubdelete")]
    pub delete: bool,
    /// Truncates.
    #[serde(rename = "pubtruncate")]
    pub truncate: bool,
    /// Rows of partitions come under the name of the partitioned table.
    #[serde(rename = "pubviaroot")]
    pub via_root: bool,
}

impl Flags {
    /// Whether it publishes anything that is no event.
    pub fn others(&self) -> bool {
        self.update || self.delete || self.truncate
    }

    /// The operations, as `publish = '…'` names them.
    pub fn operations(&self) -> String {
        let all =
            [(self.insert, "insert"), (self.update, "update"), (self.delete, "delete"), (self.truncate, "truncate")];
        let named: Vec<&str> = all.into_iter().filter_map(|(on, name)| on.then_some(name)).collect();
        named.join(", ")
    }
}

/// The outbox table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Table {
    pub oid: u32,
    /// `relkind`: `r` an ordinary table, `p` a partitioned one.
    pub kind: String,
    /// `relpersistence`: `p`, `u` for unlogged, `t` for temporary.
    pub persistence: String,
    /// Whether row-level security is enabled.
    pub row_security: bool,
    /// How many tables inherit from it, partitions not counted.
    pub inherited_by: u32,
    /// Partitions whose rows never reach a stream: unlogged and foreign ones.
    pub silent_partitions: Vec<String>,
    /// Its columns, in order.
    pub columns: Vec<Column>,
}

/// A column of the outbox table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Column {
    pub name: String,
    /// Its type, as SQL writes it.
    #[serde(rename = "type")]
    pub type_name: String,
    /// `s` or `v` for generated ones, else empty.
    pub generated: String,
}

/// One way in which a relation is in the publication.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Member {
    /// 0 for the outbox itself, 1 and up for the partitioned tables above it.
    pub level: u32,
    pub relation: String,
    /// `table`, `schema` or `all tables`.
    pub through: String,
    /// OID of the membership: another one after removing and adding again.
    pub oid: u32,
    /// `WHERE` of the membership.
    pub row_filter: Option<String>,
    /// Column list of the membership.
    pub columns: Option<Vec<String>>,
}

impl Catalog {
    /// Reads it, in one statement; waits for no lock. Without a table it is about the publication alone. `known` are the OIDs of publication and table when last seen.
    ///
    /// # Errors
    /// Of the connection only; what is missing is missing in the result. Times out by itself.
    pub(crate) async fn read(
        client: &Client,
        publication: &str,
        table: Option<&TableName>,
        known: (u32, u32),
    ) -> Result<Catalog, QueryError> {
        let params: [Param<'_>; 5] = [
            (&publication, Type::TEXT),
            (&table.map_or("", TableName::schema), Type::TEXT),
            (&table.map_or("", TableName::table), Type::TEXT),
            (&known.0, Type::OID),
            (&known.1, Type::OID),
        ];
        one_json(client, "reading publication and outbox table", SQL, &params).await
    }
}
