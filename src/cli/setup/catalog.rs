//! What is there already, read from the catalogs. Changes nothing.

use crate::cli::session::{Session, column};
use crate::cli::sql;
use crate::config::{OutboxConfig, SourceConfig};
use crate::error::{Error, Kind, Result};

/// The majors that publish schemas start here.
const PUBLISHES_SCHEMAS_SINCE: i32 = 15_00_00;

/// Everything setup looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Server, database and role.
    pub server: Server,
    /// The outbox table.
    pub table: Option<Table>,
    /// The publication.
    pub publication: Option<Publication>,
    /// The slot.
    pub slot: Option<Slot>,
}

/// Server, database and role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// `server_version_num`.
    pub version: i32,
    /// `wal_level`.
    pub wal_level: String,
    /// Whether it is a standby.
    pub in_recovery: bool,
    /// Replication slots that can still be created.
    pub free_slots: i64,
    /// Walsenders that can still be started.
    pub free_senders: i64,
    /// How much WAL a slot may keep, as set; `-1` is any amount.
    pub max_slot_wal_keep_size: String,
    /// Whether the role may create and use slots.
    pub may_replicate: bool,
    /// Whether the role may create publications and schemas in the database.
    pub may_create: bool,
    /// The role.
    pub role: String,
    /// The database.
    pub database: String,
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

/// A replication slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// `logical` or `physical`.
    pub kind: String,
    /// Output plugin.
    pub plugin: Option<String>,
    /// Database.
    pub database: Option<String>,
    /// Goes with its session.
    pub temporary: bool,
    /// Decodes prepared transactions at their prepare.
    pub two_phase: bool,
    /// The backend that uses it, or creates it.
    pub active_pid: Option<i32>,
    /// `None` while it is being created.
    pub confirmed_lsn: Option<String>,
    /// `lost` when it is.
    pub wal_status: Option<String>,
    /// Why it is invalid, on majors that say.
    pub invalidation_reason: Option<String>,
    /// Whether standbys keep a copy, on majors that can.
    pub failover: Option<bool>,
}

/// Reads all of it.
///
/// # Errors
/// What the session gives.
pub async fn look(session: &Session, source: &SourceConfig, outbox: &OutboxConfig) -> Result<Found> {
    let server = server(session).await?;
    let publication = publication(session, &source.publication, &server).await?;
    Ok(Found {
        table: table(session, outbox).await?,
        publication,
        slot: slot(session, source.slot.as_str()).await?,
        server,
    })
}

/// Server, database and role.
///
/// # Errors
/// What the session gives.
pub async fn server(session: &Session) -> Result<Server> {
    let row = session.row("asking what the server can do", sql::SERVER, &[]).await?;
    let row = row.ok_or_else(|| Error::new(Kind::Bug, "the server knows no role for its own session"))?;
    Ok(Server {
        version: column(&row, "version")?,
        wal_level: column(&row, "wal_level")?,
        in_recovery: column(&row, "in_recovery")?,
        free_slots: column(&row, "free_slots")?,
        free_senders: column(&row, "free_senders")?,
        max_slot_wal_keep_size: column(&row, "max_slot_wal_keep_size")?,
        may_replicate: column(&row, "may_replicate")?,
        may_create: column(&row, "may_create")?,
        role: column(&row, "role")?,
        database: column(&row, "database")?,
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
    let publishes_schemas = match server.version {
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

/// The slot `name`.
///
/// # Errors
/// What the session gives.
pub async fn slot(session: &Session, name: &str) -> Result<Option<Slot>> {
    let Some(row) = session.row("looking at the slot", sql::SLOT, &[&name]).await? else { return Ok(None) };
    Ok(Some(Slot {
        kind: column(&row, "kind")?,
        plugin: column(&row, "plugin")?,
        database: column(&row, "database")?,
        temporary: column(&row, "temporary")?,
        two_phase: column(&row, "two_phase")?,
        active_pid: column(&row, "active_pid")?,
        confirmed_lsn: column(&row, "confirmed_lsn")?,
        wal_status: column(&row, "wal_status")?,
        invalidation_reason: column(&row, "invalidation_reason")?,
        failover: column(&row, "failover")?,
    }))
}
