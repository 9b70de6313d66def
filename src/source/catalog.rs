//! The publication and the outbox tables, as the catalogs describe them.

use std::collections::HashMap;

use serde::Deserialize;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::postgres::query::{Param, QueryError, one_json};
use walrelay_core::config::TableName;
use walrelay_core::template::ColumnType;

const SQL: &str = include_str!("../../sql/source/catalog.sql");

/// The answer for all outbox tables at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Catalogs {
    /// Identifies the session, to find a pooler.
    pub backend_pid: i32,
    /// One for each table, in their order; without a table, one with the publication alone.
    pub of_tables: Vec<Catalog>,
    /// Base types, with the modifiers of domains, by OID: of domains, arrays of enums, and types of
    /// the tables' columns.
    pub base_types: HashMap<u32, ColumnType>,
}

/// The OIDs that publication and tables had before; 0: never seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub publication_oid: u32,
    pub table_oids: Vec<u32>,
}

#[derive(Deserialize)]
struct Answer {
    backend_pid: i32,
    publication: Option<Publication>,
    publication_now_called: Option<String>,
    tables: Vec<OfTable>,
    publications: Option<String>,
    other_tables: Vec<String>,
    base_types: HashMap<u32, ColumnType>,
}

#[derive(Default, Deserialize)]
struct OfTable {
    table: Option<PublishedTable>,
    table_now_called: Option<String>,
    members: Vec<Member>,
}

/// A publication and one outbox table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Catalog {
    pub publication: Option<Publication>,
    /// The present name of the publication with the OID that was seen before.
    pub publication_now_called: Option<String>,
    pub table: Option<PublishedTable>,
    /// The present name of the table with the OID that was seen before.
    pub table_now_called: Option<String>,
    /// Every way in which the table, or a partitioned table above it, is in the publication.
    pub members: Vec<Member>,
    /// Up to a hundred other tables that were added to the publication by name, and are not above
    /// an outbox.
    pub other_tables: Vec<String>,
    /// Where there is no publication: those that publish an outbox table.
    pub publications: Option<String>,
}

/// A row of `pg_publication`
/// (<https://www.postgresql.org/docs/current/catalog-pg-publication.html>).
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Publication {
    pub oid: u32,
    /// Changes with every `ALTER PUBLICATION` of options, owner or name.
    pub row_version: String,
    /// An OID.
    #[serde(rename = "pubowner")]
    pub owner: String,
    /// Whether the role may alter and drop it.
    pub owned: bool,
    #[serde(rename = "puballtables")]
    pub all_tables: bool,
    /// Whether it publishes whole schemas (15+).
    pub has_schemas: bool,
    #[serde(flatten)]
    pub flags: Flags,
    /// `s` where stored generated columns are published (18+).
    #[serde(rename = "pubgencols", default)]
    pub generated_columns: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Flags {
    #[serde(rename = "pubinsert")]
    pub insert: bool,
    #[serde(rename = "pubupdate")]
    pub update: bool,
    #[serde(rename = "pubdelete")]
    pub delete: bool,
    #[serde(rename = "pubtruncate")]
    pub truncate: bool,
    /// Rows of partitions come under the name of the partitioned table.
    #[serde(rename = "pubviaroot")]
    pub via_root: bool,
}

impl Flags {
    /// Whether changes other than inserts are published.
    pub(crate) fn others(&self) -> bool {
        self.update || self.delete || self.truncate
    }

    /// The operations, as `publish = '…'` names them.
    pub(crate) fn operations(&self) -> String {
        let all = [
            (self.insert, "insert"),
            (self.update, "update"),
            (self.delete, "delete"),
            (self.truncate, "truncate"),
        ];
        let named: Vec<&str> = all
            .into_iter()
            .filter_map(|(on, name)| on.then_some(name))
            .collect();
        named.join(", ")
    }
}

/// The part of a table's description that can be read without a lock: reading a column's default,
/// as [`Table`](walrelay_core::catalog::Table) has it, waits for whoever alters the table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct PublishedTable {
    pub oid: u32,
    /// Changes with `ALTER TABLE`, `GRANT`, `TRUNCATE` and `VACUUM FULL`, not with `VACUUM` and
    /// `ANALYZE`.
    pub row_version: String,
    /// `relkind`: `r` an ordinary table, `p` a partitioned one.
    pub kind: String,
    /// `relpersistence`: `p`, `u` for unlogged, `t` for temporary.
    pub persistence: String,
    /// None where there is none, as for a view.
    pub access_method: Option<String>,
    pub row_security: bool,
    /// Whether TimescaleDB has its rows in other tables.
    pub is_hypertable: bool,
    /// The tables that inherit from it, without partitions.
    pub children: Vec<String>,
    /// Rules of the table and its partitions that replace an insert.
    pub insert_rules: Vec<String>,
    /// Triggers that run before the insert of a row, likewise.
    pub insert_triggers: Vec<String>,
    /// Partitions whose rows are in no stream: unlogged, foreign, or of another access method.
    pub silent_partitions: Vec<String>,
    pub columns: Vec<PublishedColumn>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct PublishedColumn {
    pub name: String,
    /// `s` or `v` for a generated column, else empty.
    pub generated: String,
    /// Its type, which may be a domain.
    #[serde(default)]
    pub type_oid: u32,
}

/// One way in which a relation is in the publication.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Member {
    /// 0 for the outbox itself, 1 and up for the partitioned tables above it.
    pub level: u32,
    pub relation: String,
    /// `table`, `schema` or `all tables`.
    pub through: String,
    /// The membership's OID, which changes when the table is removed and added again.
    pub oid: u32,
    /// `WHERE` of the membership.
    pub row_filter: Option<String>,
    pub columns: Option<Vec<String>>,
}

impl Catalogs {
    /// Reads the catalogs in one statement that waits for no lock, within ten seconds; without a
    /// table, the publication alone. The result has the present names of what was `seen` before.
    pub(crate) async fn read(
        client: &Client,
        publication: &str,
        tables: &[&TableName],
        seen: &Seen,
    ) -> Result<Catalogs, QueryError> {
        let schemas: Vec<&str> = tables.iter().map(|table| table.schema()).collect();
        let names: Vec<&str> = tables.iter().map(|table| table.table()).collect();
        let mut table_oids = seen.table_oids.clone();
        table_oids.resize(tables.len(), 0);
        let params: [Param<'_>; 5] = [
            (&publication, Type::TEXT),
            (&schemas, Type::TEXT_ARRAY),
            (&names, Type::TEXT_ARRAY),
            (&seen.publication_oid, Type::OID),
            (&table_oids, Type::OID_ARRAY),
        ];
        let answer: Answer = one_json(
            client,
            "reading publication and outbox tables",
            SQL,
            &params,
        )
        .await?;
        Ok(Catalogs::from(answer))
    }
}

impl From<Answer> for Catalogs {
    fn from(answer: Answer) -> Catalogs {
        let Answer {
            backend_pid,
            base_types,
            ..
        } = answer;
        let mut tables = answer.tables;
        if tables.is_empty() {
            tables.push(OfTable::default());
        }
        let catalog = |of: OfTable| Catalog {
            publication: answer.publication.clone(),
            publication_now_called: answer.publication_now_called.clone(),
            table: of.table,
            table_now_called: of.table_now_called,
            members: of.members,
            other_tables: answer.other_tables.clone(),
            publications: answer.publications.clone(),
        };
        Catalogs {
            backend_pid,
            of_tables: tables.into_iter().map(catalog).collect(),
            base_types,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A publication with the table `outbox`, nothing can be said against.
    pub(in crate::source) fn fit() -> Catalog {
        let column = |name: &str| PublishedColumn {
            name: name.to_owned(),
            ..PublishedColumn::default()
        };
        Catalog {
            publication: Some(Publication {
                oid: 10,
                row_version: "700".to_owned(),
                owner: "16".to_owned(),
                flags: Flags {
                    insert: true,
                    ..Flags::default()
                },
                ..Publication::default()
            }),
            table: Some(PublishedTable {
                oid: 20,
                kind: "r".to_owned(),
                persistence: "p".to_owned(),
                access_method: Some("heap".to_owned()),
                row_version: "710".to_owned(),
                columns: ["id", "aggregatetype", "aggregateid", "type", "payload"]
                    .map(column)
                    .to_vec(),
                ..PublishedTable::default()
            }),
            table_now_called: Some("outbox".to_owned()),
            members: vec![member(0, "outbox")],
            ..Catalog::default()
        }
    }

    pub(in crate::source) fn member(level: u32, relation: &str) -> Member {
        Member {
            level,
            relation: relation.to_owned(),
            through: "table".to_owned(),
            oid: 30,
            ..Member::default()
        }
    }
}
