//! Writes to rows of published events: marks, deletes and retention; and the table of parked
//! events.
//!
//! | file | content |
//! |---|---|
//! | [`mark`] | acked rows are marked or deleted |
//! | [`cleanup`] | which rows are published; deletes old ones in batches, or partitions |
//! | `writer` | the statements for marks and deletes |
//! | [`parked`] | the table of parked events |
//! | `owners` | whose code runs in the sessions that write |
//!
//! None of these writes becomes an event: updates and deletes are no events, even if the
//! publication publishes them. Only an update that moves a row to another partition would become
//! one; it is refused at start.

pub mod cleanup;
pub mod mark;
pub(crate) mod owners;
pub mod parked;
pub(crate) mod writer;

pub use mark::Marker;

use std::time::Duration;

use tokio_postgres::Client;

use crate::config::SourceConfig;
use crate::conninfo::ConnInfo;
use crate::postgres::query::{bounded, one_text};
use crate::postgres::sql::SqlSession;
use walrelay_core::error::{Error, Kind, Result};

/// The server's limit for one statement, which writes some thousand rows at most.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(20);
/// The limit for one answer. Longer than the server's own, which does not bound a commit that waits
/// for a standby.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// Opens the session for writes to rows: that of `[upkeep] database`, if it is set.
/// Errors: [`Kind::PostgresUnreachable`] where that is another server or database than the relay's,
/// as for a moment during a failover: rows of another server must not be marked.
pub(crate) async fn connect(source: &SourceConfig, name: &str) -> Result<SqlSession> {
    connect_as(&source.database, source.upkeep.as_ref(), name).await
}

pub(crate) async fn connect_as(
    database: &ConnInfo,
    upkeep: Option<&ConnInfo>,
    name: &str,
) -> Result<SqlSession> {
    let Some(upkeep) = upkeep else {
        return SqlSession::connect(database, name).await;
    };
    let own = SqlSession::connect(database, name).await?;
    connect_at(upkeep, name, &DatabaseIdentity::of(own.client()).await?).await
}

/// Opens a session for writes to rows, which are those of this database.
async fn connect_at(
    database: &ConnInfo,
    name: &str,
    identity: &DatabaseIdentity,
) -> Result<SqlSession> {
    let session = SqlSession::connect(database, name).await?;
    if DatabaseIdentity::of(session.client()).await? == *identity {
        return Ok(session);
    }
    let cause = "the session that writes to rows and that of the relay lead to two servers or \
                 databases: no row is written";
    Err(Error::new(Kind::PostgresUnreachable, cause).remedy(
        "name the same hosts and the same database in database.url and upkeep.database, with \
         target_session_attrs=read-write",
    ))
}

/// The name of a session's database, and the start of its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseIdentity(Option<String>);

impl DatabaseIdentity {
    /// Asks the server. Errors: those of the connection.
    pub async fn of(client: &Client) -> Result<DatabaseIdentity> {
        const SQL: &str = "select pg_catalog.concat_ws(' ', pg_catalog.pg_postmaster_start_time(), \
                           pg_catalog.current_database())";
        Ok(DatabaseIdentity(
            one_text(client, "asking which server this is", SQL, &[]).await?,
        ))
    }
}

/// Sets lock and statement timeouts, so that upkeep neither waits long for other sessions nor
/// blocks them for long.
pub(crate) async fn bound(client: &Client) -> Result<()> {
    const DOING: &str = "bounding statements";
    let bounds = format!(
        "set lock_timeout = {}; set statement_timeout = {}; set \
         idle_in_transaction_session_timeout = '60s'",
        LOCK_TIMEOUT.as_millis(),
        STATEMENT_TIMEOUT.as_millis()
    );
    Ok(bounded(DOING, ANSWER_TIMEOUT, client.batch_execute(&bounds)).await?)
}
