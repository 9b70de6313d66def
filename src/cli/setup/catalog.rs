//! What is there already, read from the catalogs. Changes nothing.

use crate::cli::session::{Session, column};
use crate::cli::sql;
use crate::config::{OutboxConfig, SourceConfig};
use crate::error::{Error, Kind, Result};
use crate::postgres::catalog::Table;
use crate::source::preflight::{self, Server, Slot};

/// Everything setup looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Server, database and role.
    pub server: Server,
    /// What is left there.
    pub room: Room,
    /// What there is of each outbox table, in the order of the configuration.
    pub outboxes: Vec<Place>,
    /// The publication.
    pub publication: Option<Publication>,
    /// The slot.
    pub slot: Option<Slot>,
}

impl Found {
    /// The outbox tables that are there.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.outboxes.iter().filter_map(|place| place.table.as_ref())
    }
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
}

/// What there is of an outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The table.
    pub table: Option<Table>,
    /// Whether the role may create tables in its schema, where that exists.
    pub may_create_in_schema: Option<bool>,
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
pub async fn look(session: &Session, source: &SourceConfig, outboxes: &[OutboxConfig]) -> Result<Found> {
    let server = preflight::server(session.client()).await?;
    let publication = publication(session, &source.publication).await?;
    let (room, _) = room(session, "").await?;
    let mut places = Vec::new();
    for name in outboxes.iter().filter_map(|outbox| outbox.source.table()) {
        let (_, may_create_in_schema) = self::room(session, name.schema()).await?;
        places.push(Place { table: Table::read(session.client(), name).await?, may_create_in_schema });
    }
    Ok(Found {
        outboxes: places,
        publication,
        slot: preflight::slot(session.client(), &source.slot).await?,
        room,
        server,
    })
}

/// What is left on the server, and whether the role may create in `schema`, where that exists.
async fn room(session: &Session, schema: &str) -> Result<(Room, Option<bool>)> {
    let row = session.row("asking what is left on the server", sql::ROOM, &[&schema]).await?;
    let row = row.ok_or_else(|| Error::new(Kind::Bug, "a query that always gives a row gave none"))?;
    let room = Room {
        free_slots: column(&row, "free_slots")?,
        free_senders: column(&row, "free_senders")?,
        may_create: column(&row, "may_create")?,
    };
    Ok((room, column(&row, "may_create_in_schema")?))
}

/// The publication `name`.
///
/// # Errors
/// What the session gives.
pub async fn publication(session: &Session, name: &str) -> Result<Option<Publication>> {
    let Some(row) = session.row("looking at the publication", sql::PUBLICATION, &[&name]).await? else {
        return Ok(None);
    };
    let schemas: Vec<String> = column(&row, "schemas")?;
    let tables: Vec<String> = column(&row, "tables")?;
    Ok(Some(Publication {
        owned: column(&row, "owned")?,
        all_tables: column(&row, "all_tables")?,
        publishes_schemas: column(&row, "publishes_schemas")?,
        inserts: column(&row, "inserts")?,
        other_than_inserts: column(&row, "other_than_inserts")?,
        via_root: column(&row, "via_root")?,
        tables: schemas.into_iter().zip(tables).collect(),
        row_filter: column(&row, "row_filter")?,
        column_list: column(&row, "column_list")?,
    }))
}
