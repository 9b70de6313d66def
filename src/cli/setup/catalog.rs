//! What is there already, read from the catalogs. Changes nothing.

use crate::cli::session::{Session, column};
use crate::cli::sql;
use crate::config::{OutboxConfig, SourceConfig};
use crate::error::{Error, Kind, Result};
use crate::source::preflight::{self, Server, Slot};

/// The majors that publish schemas start here.
const PUBLISHES_SCHEMAS_SINCE: u32 = 15;

/// Everything setup looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Server, database and role.
    pub server: Server,
    /// What is left there.
    pub room: Room,
    /// The outbox table.
    pub table: Option<Table>,
    /// The publication.
    pub publication: Option<Publication>,
    /// The slot.
    pub slot: Option<Slot>,
}

/// What is left to the role on the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Replication slots that can still be created.
    pub free_slots: i64,
    /// Walsenders that can still be started.
    pub free_senders: i64,
    /// Whether the role may create publications and schemas in the database.
    pub may_create: bool,
    /// Whether it may create tables in the outbox's schema, where that exists.
    pub may_create_in_schema: Option<bool>,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// `relkind`.
    pub kind: String,
    /// `relpersistence`.
    pub persistence: String,
    /// Whether the role has the rights of its owner.
    pub owned: bool,
    /// Columns that a publication streams: without generated ones.
    pub columns: Vec<String>,
}

/// A publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// Whether the role has the rights of its owner.
    pub owned: bool,
    /// For all tables.
    pub all_tables: bool,
    /// For all tables of some schemas.
    pub publishes_schemas: bool,
    /// Publishes inserts.
    pub inserts: bool,
    /// Publishes updates, deletes or truncates.
    pub other_than_inserts: bool,
    /// Partitions are published as their root.
    pub via_root: bool,
    /// Its tables: schema and name.
    pub tables: Vec<(String, String)>,
    /// A table has a row filter.
    pub row_filter: bool,
    /// A table has a column list.
    pub column_list: bool,
}

/// Reads all of it.
///
/// # Errors
/// What the session gives.
pub async fn look(session: &Session, source: &SourceConfig, outbox: &OutboxConfig) -> Result<Found> {
    let server = preflight::server(session.client()).await?;
    let publication = publication(session, &source.publication, &server).await?;
    Ok(Found {
        table: table(session, outbox).await?,
        publication,
        slot: preflight::slot(session.client(), &source.slot).await?,
        room: room(session, outbox).await?,
        server,
    })
}

async fn room(session: &Session, outbox: &OutboxConfig) -> Result<Room> {
    let row = session.row("asking what is left on the server", sql::ROOM, &[&outbox.table.schema()]).await?;
    let row = row.ok_or_else(|| Error::new(Kind::Bug, "a query that always gives a row gave none"))?;
    Ok(Room {
        free_slots: column(&row, "free_slots")?,
        free_senders: column(&row, "free_senders")?,
        may_create: column(&row, "may_create")?,
        may_create_in_schema: column(&row, "may_create_in_schema")?,
    })
}

async fn table(session: &Session, outbox: &OutboxConfig) -> Result<Option<Table>> {
    let name = &outbox.table;
    let row = session.row("looking at the outbox table", sql::TABLE, &[&name.schema(), &name.table()]).await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(Table {
        kind: column(&row, "kind")?,
        persistence: column(&row, "persistence")?,
        owned: column(&row, "owned")?,
        columns: column(&row, "columns")?,
    }))
}

/// The publication `name`.
///
/// # Errors
/// What the session gives.
pub async fn publication(session: &Session, name: &str, server: &Server) -> Result<Option<Publication>> {
    const DOING: &str = "looking at the publication";
    let Some(row) = session.row(DOING, sql::PUBLICATION, &[&name]).await? else { return Ok(None) };
    let publishes_schemas = match server.major() {
        PUBLISHES_SCHEMAS_SINCE.. => match session.row(DOING, sql::PUBLICATION_SCHEMAS, &[&name]).await? {
            Some(row) => column(&row, "publishes_schemas")?,
            None => false,
        },
        _ => false,
    };
    let schemas: Vec<String> = column(&row, "schemas")?;
    let tables: Vec<String> = column(&row, "tables")?;
    Ok(Some(Publication {
        owned: column(&row, "owned")?,
        all_tables: column(&row, "all_tables")?,
        publishes_schemas,
        inserts: column(&row, "inserts")?,
        other_than_inserts: column(&row, "other_than_inserts")?,
        via_root: column(&row, "via_root")?,
        tables: schemas.into_iter().zip(tables).collect(),
        row_filter: column(&row, "row_filter")?,
        column_list: column(&row, "column_list")?,
    }))
}
