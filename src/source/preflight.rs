//! What has to be right before anything streams (P1, P8).
//!
//! Looking and judging are two things: [`inspect`] asks the server and has no opinion, [`judge()`] has one and asks
//! nobody, so that every fault is a row in a table of tests.

use serde::Deserialize;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::config::{OutboxConfig, SlotName, TableName};
use crate::error::{Error, Kind, Result};
use crate::position::Lsn;
use crate::postgres::query::{one_json, one_text};
use crate::source::catalog::{Catalog, Flags, Member, Publication};

mod judge;

pub(crate) use judge::{MAJOR_MIN, judge, judge_backlog, server as judge_server, version as judge_version};

const SERVER: &str = include_str!("../../sql/source/server.sql");
const SYSTEM: &str = include_str!("../../sql/source/system.sql");
/// One question for everybody who asks about the slot; each takes of the answer what it needs.
pub(super) const SLOT: &str = include_str!("../../sql/source/slot.sql");

/// Gathers all that [`judge()`] needs, from the catalogs alone: nothing is changed, no lock is waited for.
///
/// The version is judged on the way, because older servers cannot answer the rest. The statements are autocommitted,
/// one transaction each, so that a pooler that hands out servers by transaction shows itself.
///
/// # Errors
/// [`Kind::PostgresUnreachable`] (retry) and [`Kind::PostgresRefused`] of the connection; [`Kind::PostgresUnfit`]
/// for a server that is too old or behind a transaction pooler. Times out by itself.
pub(crate) async fn inspect(
    client: &Client,
    slot: &SlotName,
    publication: &str,
    outboxes: &[OutboxConfig],
) -> Result<Facts> {
    let server = server(client).await?;
    judge::version(&server)?;
    let system_identifier = match server.may_read_control {
        true => one_text(client, "reading the system identifier", SYSTEM, &[]).await?,
        false => None,
    };
    let found = slot_answer(client, slot).await?;
    let mut catalogs = Vec::new();
    for table in outboxes.iter().filter_map(|outbox| outbox.source.table()) {
        catalogs.push(Catalog::read(client, publication, Some(table), (0, 0)).await?);
    }
    if catalogs.is_empty() {
        catalogs.push(Catalog::read(client, publication, None, (0, 0)).await?);
    }
    let elsewhere = |catalog: &Catalog| catalog.backend_pid != server.backend_pid;
    if found.backend_pid != server.backend_pid || catalogs.iter().any(elsewhere) {
        return Err(pooled());
    }
    let wal_end = found.wal_end.unwrap_or_default();
    Ok(Facts { server, system_identifier, slot: found.slot, wal_end, catalogs })
}

/// The server, its settings and our role. Times out by itself.
pub(crate) async fn server(client: &Client) -> Result<Server> {
    Ok(one_json(client, "reading the server's settings", SERVER, &[]).await?)
}

/// The slot `name`, if there is one. Times out by itself.
pub(crate) async fn slot(client: &Client, name: &SlotName) -> Result<Option<Slot>> {
    Ok(slot_answer(client, name).await?.slot)
}

async fn slot_answer(client: &Client, name: &SlotName) -> Result<SlotAnswer> {
    Ok(one_json(client, "reading the slot", SLOT, &[(&name.as_str(), Type::TEXT)]).await?)
}

fn pooled() -> Error {
    Error::new(Kind::PostgresUnfit, "the connection goes through a pooler: its statements ran in different sessions")
        .remedy("connect to Postgres itself, or to a pool in session mode: session settings do not survive the others")
}

/// Everything [`super::inspect`] found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The server and its settings.
    pub server: Server,
    /// `system_identifier`, where the role may read it. `IDENTIFY_SYSTEM` tells it, too.
    pub system_identifier: Option<String>,
    /// The slot, if there is one of that name.
    pub slot: Option<Slot>,
    /// The end of the log before the catalogs were read.
    pub wal_end: Lsn,
    /// Publication and table, and how they hang together: one for each outbox table, in the order of the
    /// configuration. Where there is no table, one that knows of the publication alone.
    pub catalogs: Vec<Catalog>,
}

impl Facts {
    /// The publication, if there is one of that name.
    pub fn publication(&self) -> Option<&Publication> {
        self.catalogs.first()?.publication.as_ref()
    }
    /// Those of the outbox tables, in the order of the configuration, that do not outlast a crash of the server.
    pub fn unlogged<'a>(&self, tables: impl Iterator<Item = &'a TableName>) -> impl Iterator<Item = &'a TableName> {
        let is_unlogged = |catalog: &Catalog| catalog.table.as_ref().is_some_and(|table| table.persistence == "u");
        tables.zip(&self.catalogs).filter(move |(_, catalog)| is_unlogged(catalog)).map(|(name, _)| name)
    }

    /// The same with a new slot in the place of the one there is, or is not.
    #[must_use]
    pub fn with_slot(&self) -> Facts {
        let slot = Slot {
            plugin: Some("pgoutput".to_owned()),
            slot_type: "logical".to_owned(),
            database: Some(self.server.database.clone()),
            confirmed_flush_lsn: Some(Lsn::ZERO),
            ..Slot::default()
        };
        Facts { slot: Some(slot), ..self.clone() }
    }

    /// The same after a `walrelay setup` that would make what is missing: a slot, or a publication and a slot. What is
    /// there is left as it is, and a publication is not made for a slot that is older.
    #[must_use]
    pub fn as_set_up(&self, tables: &[&TableName]) -> Facts {
        if self.slot.is_some() {
            return self.clone();
        }
        let mut facts = self.with_slot();
        for (number, catalog) in facts.catalogs.iter_mut().enumerate() {
            if catalog.publication.is_none() {
                let flags = Flags { insert: true, via_root: true, ..Flags::default() };
                catalog.publication = Some(Publication { flags, ..Publication::default() });
                let member = |table: &&TableName| Member {
                    relation: table.to_string(),
                    through: "table".to_owned(),
                    ..Member::default()
                };
                catalog.members = tables.get(number).map(member).into_iter().collect();
            }
        }
        facts
    }
}

/// The server and its settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Server {
    /// Process id of the server's side, to recognise a pooler.
    pub backend_pid: i32,
    /// `server_version_num`: 170011 is 17.11.
    pub version_num: u32,
    /// `server_version`, for people.
    pub version: String,
    /// `wal_level`.
    pub wal_level: String,
    /// A standby, or a primary that has not been promoted yet.
    pub in_recovery: bool,
    /// The database we are connected to.
    pub database: String,
    /// The role we are.
    pub role: String,
    /// Superuser, `REPLICATION`, or a member of `rds_replication`.
    pub may_replicate: bool,
    /// Whether `pg_control_system()` may be called.
    pub may_read_control: bool,
    /// `max_slot_wal_keep_size` in MB; -1 is without bound.
    pub max_slot_wal_keep_mb: Option<i64>,
    /// `wal_sender_timeout` of this session in milliseconds; 0 is never.
    pub wal_sender_timeout_ms: Option<i64>,
    /// `idle_replication_slot_timeout` (18+) with its unit; `0` is never.
    pub idle_replication_slot_timeout: Option<String>,
    /// `synchronized_standby_slots` (17+).
    pub synchronized_standby_slots: Option<String>,
    /// Those of them that are no physical slot of this server.
    pub standby_slots_missing: Vec<String>,
}

impl Server {
    /// 17 for 17.11.
    pub fn major(&self) -> u32 {
        self.version_num / 10_000
    }
}

/// A row of `pg_replication_slots` (<https://www.postgresql.org/docs/current/view-pg-replication-slots.html>).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Slot {
    /// Output plugin; none for physical slots.
    pub plugin: Option<String>,
    /// `logical` or `physical`.
    pub slot_type: String,
    /// The database it decodes; none for physical slots.
    pub database: Option<String>,
    /// Somebody streams from it.
    pub active: bool,
    /// Process id of the walsender that does.
    pub active_pid: Option<i32>,
    /// `application_name` of who does.
    pub holder: Option<String>,
    /// Gone when its session ends.
    pub temporary: bool,
    /// Decodes prepared transactions at `PREPARE`.
    #[serde(default)]
    pub two_phase: bool,
    /// Up to where it was confirmed; none while it is being created.
    pub confirmed_flush_lsn: Option<Lsn>,
    /// From where WAL is kept.
    pub restart_lsn: Option<Lsn>,
    /// The oldest transaction it may still deliver, 32 bits of it in decimal.
    pub catalog_xmin: Option<String>,
    /// `reserved`, `extended`, `unreserved` (about to be lost) or `lost`.
    pub wal_status: Option<String>,
    /// Bytes that may still be written before the slot is at risk; none without a bound.
    pub safe_wal_size: Option<i64>,
    /// Invalidated by a conflict with recovery (16+).
    pub conflicting: Option<bool>,
    /// Why it was invalidated (17+).
    pub invalidation_reason: Option<String>,
    /// Copied to standbys (17+).
    pub failover: Option<bool>,
    /// Came from a primary (17+).
    pub synced: Option<bool>,
}

impl Slot {
    /// Whether it is one that a relay of this database makes, and may make anew.
    pub fn is_ours(&self, database: &str) -> bool {
        self.slot_type == "logical"
            && self.plugin.as_deref() == Some("pgoutput")
            && self.database.as_deref() == Some(database)
            && !self.temporary
            && !self.two_phase
    }

    /// Why it can never be read again, if so.
    pub fn lost(&self) -> Option<&str> {
        match self.invalidation_reason.as_deref() {
            Some(reason) => Some(reason),
            None if self.conflicting == Some(true) => Some("conflict with recovery"),
            None if self.wal_status.as_deref() == Some("lost") => {
                Some("wal_removed: max_slot_wal_keep_size was exceeded")
            }
            None => None,
        }
    }
}

/// What `slot.sql` answers.
#[derive(Debug, Deserialize)]
struct SlotAnswer {
    backend_pid: i32,
    wal_end: Option<Lsn>,
    slot: Option<Slot>,
}
