//! What can be asked of the control session, and how each is answered.

use serde::Deserialize;
use tokio::sync::oneshot;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::config::TableName;
use crate::error::{Error, Kind, Result};
use crate::position::Lsn;
use crate::postgres::query::{QUERY_TIMEOUT, QueryError, bounded, one_json, one_text};
use crate::snapshot::Snapshot;
use crate::source::catalog::{self, Fingerprint};
use crate::source::control::{PendingRow, Watched, pending};
use crate::source::preflight::{SLOT, Slot};

const PAIR: &str = include_str!("../../../sql/source/pair.sql");
const POSITION_EXISTS: &str = include_str!("../../../sql/source/position_exists.sql");
const POSITION_CREATE: &str = include_str!("../../../sql/source/position_create.sql");
const POSITION_LOAD: &str = include_str!("../../../sql/source/position_load.sql");
const POSITION_STORE: &str = include_str!("../../../sql/source/position_store.sql");

/// Where the answer goes. Nobody may be there any more to take it.
pub(super) type Reply<T> = oneshot::Sender<Result<T>>;

/// What can be asked.
#[derive(Debug)]
pub(super) enum Command {
    CheckCatalog { before: Vec<Fingerprint>, reply: Reply<Vec<Fingerprint>> },
    WalPosition { reply: Reply<WalPosition> },
    LookPending { reply: Reply<(Vec<PendingRow>, Lsn)> },
    IsKept { table: TableName, key: Vec<(String, String)>, reply: Reply<Option<bool>> },
    Timeline { reply: Reply<u32> },
    TakePair { reply: Reply<(Snapshot, Lsn)> },
    PreparePositions { reply: Reply<()> },
    LoadPosition { key: String, reply: Reply<Option<String>> },
    StorePosition { key: String, value: String, reply: Reply<()> },
}

/// Where slot and log are at this moment: to look at, never to confirm.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct WalPosition {
    /// End of the flushed log (of the replayed one, on a standby).
    pub wal_end: Lsn,
    /// What was visible then.
    #[serde(default)]
    pub snapshot: Option<Snapshot>,
    /// The slot, unless it is gone. Who holds it is in `active_pid` and `holder`.
    pub slot: Option<Slot>,
    /// The transaction that has been under way for longest.
    #[serde(default)]
    pub oldest_transaction: Option<OldTransaction>,
}

/// A transaction that has been under way for long.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct OldTransaction {
    /// Process id; none for a prepared one.
    pub pid: Option<i32>,
    /// How long it has been open, where the role may know.
    pub open_seconds: Option<i64>,
    /// `application_name`, where it is known.
    pub application: Option<String>,
}

impl WalPosition {
    /// Bytes of log the slot keeps from being removed.
    pub fn retained_bytes(&self) -> Option<u64> {
        let restart = self.slot.as_ref()?.restart_lsn?;
        Some(self.wal_end.bytes_since(restart))
    }

    /// Bytes of log that were not confirmed yet.
    pub fn unconfirmed_bytes(&self) -> Option<u64> {
        let confirmed = self.slot.as_ref()?.confirmed_flush_lsn?;
        Some(self.wal_end.bytes_since(confirmed))
    }
}

impl Command {
    /// Does it and answers. The result is for the session: what the answer was does not matter to it.
    pub(super) async fn carry_out(self, client: &Client, watched: &Watched) -> Result<(), QueryError> {
        match self {
            Command::CheckCatalog { before, reply } => answer(reply, check_catalog(client, watched, &before).await),
            Command::WalPosition { reply } => {
                let params = [(&watched.slot.as_str() as _, Type::TEXT)];
                answer(reply, one_json(client, "reading the position of the log", SLOT, &params).await)
            }
            Command::LookPending { reply } => answer(reply, pending::look(client, &watched.pending).await),
            Command::IsKept { table, key, reply } => answer(reply, pending::is_kept(client, &table, &key).await),
            Command::Timeline { reply } => answer(reply, timeline(client).await),
            Command::TakePair { reply } => answer(reply, take_pair(client).await),
            Command::PreparePositions { reply } => answer(reply, prepare_positions(client).await),
            Command::LoadPosition { key, reply } => {
                let params = [(&key as _, Type::TEXT)];
                answer(reply, one_text(client, "loading the position", POSITION_LOAD, &params).await)
            }
            Command::StorePosition { key, value, reply } => {
                let params = [(&key as _, Type::TEXT), (&value as _, Type::TEXT)];
                let stored =
                    bounded("storing the position", QUERY_TIMEOUT, client.execute_typed(POSITION_STORE, &params)).await;
                answer(reply, stored.and_then(written))
            }
        }
    }
}

async fn check_catalog(
    client: &Client,
    watched: &Watched,
    before: &[Fingerprint],
) -> Result<Vec<Fingerprint>, QueryError> {
    let mut now = Vec::with_capacity(watched.tables.len());
    for (number, table) in watched.tables.iter().enumerate() {
        now.push(catalog::look(client, &watched.publication, table, before.get(number)).await?);
    }
    Ok(now)
}

/// The timeline the server is on.
pub(crate) async fn timeline(client: &Client) -> Result<u32, QueryError> {
    // The name of a segment begins with its timeline.
    let sql = "select pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8)";
    let text = one_text(client, "asking for the timeline", sql, &[]).await?.unwrap_or_default();
    u32::from_str_radix(&text, 16).map_err(|_| {
        QueryError::refused(Error::new(Kind::PostgresUnfit, "while asking for the timeline: the answer is no number"))
    })
}

async fn take_pair(client: &Client) -> Result<(Snapshot, Lsn), QueryError> {
    let text = one_text(client, "taking a snapshot", PAIR, &[]).await?.unwrap_or_default();
    let pair = text.split_once(' ').and_then(|(snapshot, lsn)| Some((snapshot.parse().ok()?, lsn.parse().ok()?)));
    pair.ok_or_else(|| {
        QueryError::refused(Error::new(Kind::PostgresUnfit, "while taking a snapshot: the answer is not as documented"))
    })
}

/// Passes the answer on and keeps what it means for the session.
fn answer<T>(reply: Reply<T>, outcome: Result<T, QueryError>) -> Result<(), QueryError> {
    let (told, session) = match outcome {
        Ok(value) => (Ok(value), Ok(())),
        Err(QueryError::Refused { error, .. }) => (Err(error), Ok(())),
        Err(QueryError::ShuttingDown(error)) => (Err(error.clone()), Err(QueryError::ShuttingDown(error))),
        Err(QueryError::Broken(error)) => (Err(error.clone()), Err(QueryError::Broken(error))),
    };
    if reply.send(told).is_err() {
        tracing::debug!("an answer of the control session was not waited for");
    }
    session
}

/// A trigger or rule can swallow a row without an error: that would be a position nobody kept.
fn written(rows: u64) -> Result<(), QueryError> {
    match rows {
        1 => Ok(()),
        _ => Err(QueryError::refused(
            Error::new(
                Kind::PostgresUnfit,
                format!("while storing the position: {rows} rows were written instead of 1"),
            )
            .remedy("remove the triggers and rules of table walrelay.position"),
        )),
    }
}

async fn prepare_positions(client: &Client) -> Result<(), QueryError> {
    // Asked first: creating what exists needs the right to create it all the same.
    match usable(client).await? {
        Usable::Yes => return Ok(()),
        Usable::Forbidden => return Err(forbidden(client, "table walrelay.position may not be used").await),
        Usable::Missing => {}
    }
    let created =
        bounded("creating table walrelay.position", QUERY_TIMEOUT, client.batch_execute(POSITION_CREATE)).await;
    match created {
        Ok(()) => Ok(()),
        // Another relay may have been faster, which is reported as a duplicate.
        Err(QueryError::Refused { error, .. }) => match usable(client).await? {
            Usable::Yes => Ok(()),
            Usable::Missing | Usable::Forbidden => Err(forbidden(client, error.cause()).await),
        },
        Err(broken) => Err(broken),
    }
}

enum Usable {
    Yes,
    Forbidden,
    Missing,
}

async fn usable(client: &Client) -> Result<Usable, QueryError> {
    let answer = one_text(client, "looking for table walrelay.position", POSITION_EXISTS, &[]).await?;
    Ok(match answer.as_deref() {
        Some("usable") => Usable::Yes,
        Some("forbidden") => Usable::Forbidden,
        _ => Usable::Missing,
    })
}

async fn forbidden(client: &Client, cause: &str) -> QueryError {
    match one_text(client, "asking for the role's name", "select pg_catalog.quote_ident(current_user)", &[]).await {
        Ok(role) => QueryError::refused(may_not_keep(cause, role.as_deref().unwrap_or("current_user"))),
        Err(error) => error,
    }
}

/// `role` as SQL writes it.
fn may_not_keep(cause: &str, role: &str) -> Error {
    let create = POSITION_CREATE.split_whitespace().collect::<Vec<_>>().join(" ");
    Error::new(Kind::PostgresRefused, format!("the position cannot be kept in Postgres: {cause}")).remedy(format!(
        "as a role that may: {create} grant usage on schema walrelay to {role}; grant select, insert, update on \
         walrelay.position to {role}. Or keep the position in Kafka"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_counted_from_what_is_confirmed_and_from_what_is_kept() {
        let slot =
            Slot { confirmed_flush_lsn: Some(Lsn::new(700)), restart_lsn: Some(Lsn::new(400)), ..Slot::default() };
        let gone = WalPosition { wal_end: Lsn::new(900), snapshot: None, slot: None, oldest_transaction: None };
        let position = WalPosition { slot: Some(slot), ..gone.clone() };
        assert_eq!((position.unconfirmed_bytes(), position.retained_bytes()), (Some(200), Some(500)));
        assert_eq!((gone.unconfirmed_bytes(), gone.retained_bytes()), (None, None));
    }

    #[test]
    fn a_position_that_was_swallowed_is_not_stored() {
        assert!(written(1).is_ok());
        for rows in [0, 2] {
            assert!(
                matches!(written(rows), Err(QueryError::Refused { error, .. }) if error.kind() == Kind::PostgresUnfit)
            );
        }
    }

    #[test]
    fn an_answer_tells_the_caller_what_and_the_session_whether_it_goes_on() {
        let error = || Error::new(Kind::PostgresUnreachable, "no");
        let outcome = |outcome| {
            let (reply, mut told) = oneshot::channel::<Result<()>>();
            let session = answer(reply, outcome);
            (told.try_recv().unwrap(), session.is_ok())
        };
        assert_eq!(outcome(Ok(())), (Ok(()), true));
        assert_eq!(outcome(Err(QueryError::refused(error()))), (Err(error()), true));
        assert_eq!(outcome(Err(QueryError::ShuttingDown(error()))), (Err(error()), false));
        assert_eq!(outcome(Err(QueryError::Broken(error()))), (Err(error()), false));
    }

    #[test]
    fn who_may_not_create_the_table_is_told_the_sql_on_one_line() {
        let error = may_not_keep("permission denied for database shop", "\"the relay\"");
        let remedy = error.what_to_do().unwrap();
        assert!(remedy.contains("create table if not exists walrelay.position ( key text primary key"), "{remedy}");
        assert!(remedy.contains("grant select, insert, update on walrelay.position to \"the relay\". "), "{remedy}");
        assert!(!remedy.contains('\n'));
    }
}
