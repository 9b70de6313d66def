//! What has to be right before anything streams (P1, P8).
//!
//! Looking and judging are two things: [`inspect`] asks the server and has no opinion, [`judge()`] has one and asks
//! nobody, so that every fault is a row in a table of tests.

mod facts;
mod judge;
mod published;
mod warnings;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

pub(crate) use facts::{Facts, Server, Slot};
pub(crate) use judge::{
    MAJOR_MIN, judge, judge_backlog, server as judge_server, usable as judge_slot, version as judge_version,
};

use crate::config::{OutboxConfig, SlotName};
use crate::error::{Error, Kind, Result};
use crate::postgres::query::{one_json, one_text};
use crate::source::catalog::Catalog;

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

async fn slot_answer(client: &Client, name: &SlotName) -> Result<facts::SlotAnswer> {
    Ok(one_json(client, "reading the slot", SLOT, &[(&name.as_str(), Type::TEXT)]).await?)
}

fn pooled() -> Error {
    Error::new(Kind::PostgresUnfit, "the connection goes through a pooler: its statements ran in different sessions")
        .remedy("connect to Postgres itself, or to a pool in session mode: session settings do not survive the others")
}
