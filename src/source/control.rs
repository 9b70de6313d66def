//! The control session: plain SQL beside the stream (P7, P8).
//!
//! A server that shuts down tells ordinary sessions at once, and walsenders not at all: it waits until they have
//! sent everything and it was confirmed. So somebody has to sit in an ordinary session and listen. It is also where
//! catalogs are watched and positions are kept, because the replication session takes no commands while it streams
//! (<https://www.postgresql.org/docs/current/protocol-replication.html>).
//!
//! One task owns the session and does one thing after the other; a [`Control`] is a handle to it.

mod command;
mod pending;

use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

pub(crate) use command::timeline;
use command::{Command, Reply};
pub use command::{OldTransaction, WalPosition};

use crate::config::{SlotName, TableName};
use crate::error::{Error, Kind, Result};
use crate::position::Lsn;
use crate::postgres::query::{QUERY_TIMEOUT, QueryError, bounded};
use crate::postgres::quote::{quote_ident, quote_table};
use crate::postgres::sql::{Ended, SqlSession};
use crate::snapshot::Snapshot;
use crate::source::catalog::Fingerprint;

/// After this much idleness at most the session is asked for a sign of life, so that a dead one is noticed within this and
/// the query timeout.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// The server gives up on a statement before we give up on the server: a statement that waits for somebody's lock
/// ends, the session lives on, and nothing is left waiting on the server where nobody can see it. The wait of a commit
/// for synchronous standbys is not cut short by it.
const STATEMENT_TIMEOUT: &str = "set statement_timeout = '8s'";

/// How long a broken session may take to say why, once its queries fail.
const REASON_TIMEOUT: Duration = Duration::from_secs(1);

/// Commands that may wait for their turn; who sends more, waits.
const COMMANDS_MAX: usize = 16;

/// What the control session looks at.
#[derive(Debug, Clone)]
pub struct Watched {
    /// The slot.
    pub slot: SlotName,
    /// The publication.
    pub publication: String,
    /// The outbox tables.
    pub tables: Vec<TableName>,
    /// Those whose rows say whether they are pending.
    pub pending: Vec<Pending>,
    /// The server ends the session where it hears nothing for this long.
    pub silence: Duration,
}

/// Rows of a table that say whether they are pending.
#[derive(Debug, Clone)]
pub struct Pending {
    /// Which of the outboxes it is.
    pub outbox: usize,
    /// The table.
    pub table: TableName,
    /// The columns that name a row, the id first.
    pub key_columns: Vec<String>,
    /// SQL condition, the operator's.
    pub condition: String,
    /// Rows looked at in one go.
    pub rows_max: usize,
}

/// A row that is pending: its outbox, and the values of its key.
pub type PendingRow = (usize, Vec<String>);

impl Pending {
    /// The statement that gives the outbox's number and the keys of pending rows.
    fn sql(&self) -> Result<String> {
        let table = quote_table(&self.table)?;
        let columns = self.key_columns.iter().map(|column| quote_ident(column)).collect::<Result<Vec<_>>>()?;
        let (id, condition) = (columns.first().cloned().unwrap_or_default(), &self.condition);
        let key: String = columns.iter().map(|column| format!(", {column}")).collect();
        let (outbox, rows_max) = (self.outbox, self.rows_max);
        Ok(format!("select {outbox}{key} from {table} where ({condition}\n) and {id} is not null limit {rows_max}; "))
    }
}

/// Why the control session is over.
#[derive(Debug, Clone)]
pub enum ControlEnd {
    /// The server shuts down, restarts after a crash, or somebody ended this one session: drain and reconnect.
    ServerShuttingDown,
    /// The connection broke, or a statement did not come back.
    Lost(Error),
}

/// A handle to the control session; clones share it, and it ends with the last of them.
///
/// Every method is bounded in time by the session's statements, and answers [`Kind::PostgresUnreachable`] once the
/// session is over. A method that is cancelled may still be carried out, before anything asked for later.
#[derive(Debug, Clone)]
pub struct Control {
    commands: mpsc::Sender<Command>,
    ended: watch::Receiver<Option<ControlEnd>>,
}

impl Control {
    /// Hands the session to a task of its own, on the current runtime.
    pub fn start(session: SqlSession, watched: Watched) -> Control {
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let (ended, ended_receiver) = watch::channel(None);
        tokio::spawn(async move {
            let mut receiver = receiver;
            let end = serve(&session, &watched, &mut receiver).await;
            // In this order: whoever is turned away below finds the reason here.
            ended.send_replace(Some(end));
            drop(receiver);
        });
        Control { commands, ended: ended_receiver }
    }

    /// Waits for the end of the session and says why. Safe to cancel, to call again, and to hold beside anything.
    pub fn closed(&self) -> impl Future<Output = ControlEnd> + Send + 'static {
        let mut ended = self.ended.clone();
        async move {
            let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
            end.unwrap_or_else(|| ControlEnd::Lost(gone()))
        }
    }

    /// Publication and each of the tables as they are now, in their order; [`crate::source::catalog::compare`] says what
    /// that means. With `before`, the answer can name what something was renamed to.
    ///
    /// # Errors
    /// Of the connection only.
    pub async fn check_catalog(&self, before: Vec<Fingerprint>) -> Result<Vec<Fingerprint>> {
        self.ask(|reply| Command::CheckCatalog { before, reply }).await
    }

    /// Where slot and log are, for metrics and `status`. Nothing of it may be confirmed.
    ///
    /// # Errors
    /// Of the connection only; a slot that is not there is none in the answer.
    pub async fn wal_position(&self) -> Result<WalPosition> {
        self.ask(|reply| Command::WalPosition { reply }).await
    }

    /// Rows that are pending, by outbox and the values of their key, and the end of the log after they were looked at.
    ///
    /// # Errors
    /// Of the connection, and of a condition or table that is not what it was.
    pub async fn look_pending(&self) -> Result<(Vec<PendingRow>, Lsn)> {
        self.ask(|reply| Command::LookPending { reply }).await
    }

    /// Whether `table` has a row with these values in these columns; none where the role may not look.
    ///
    /// # Errors
    /// Of the connection only.
    pub async fn is_kept(&self, table: TableName, key: Vec<(String, String)>) -> Result<Option<bool>> {
        self.ask(|reply| Command::IsKept { table, key, reply }).await
    }

    /// The timeline the server is on.
    ///
    /// # Errors
    /// Of the connection only.
    pub async fn timeline(&self) -> Result<u32> {
        self.ask(|reply| Command::Timeline { reply }).await
    }

    /// A snapshot, and the end of the log after it was taken.
    ///
    /// # Errors
    /// Of the connection only.
    pub async fn take_pair(&self) -> Result<(Snapshot, Lsn)> {
        self.ask(|reply| Command::TakePair { reply }).await
    }

    /// Sees to it that the table of positions exists and may be used.
    ///
    /// # Errors
    /// [`Kind::PostgresRefused`] with the SQL for somebody who may, and those of the connection.
    pub async fn prepare_positions(&self) -> Result<()> {
        self.ask(|reply| Command::PreparePositions { reply }).await
    }

    /// The JSON text kept under `key`.
    ///
    /// # Errors
    /// Of the connection, and of a table that is gone or forbidden.
    pub async fn load_position(&self, key: &str) -> Result<Option<String>> {
        self.ask(|reply| Command::LoadPosition { key: key.to_owned(), reply }).await
    }

    /// Keeps `value`, a JSON text, under `key`: durable when this returns, whatever `synchronous_commit` says.
    ///
    /// # Errors
    /// Of the connection, and of a table that is gone or forbidden.
    pub async fn store_position(&self, key: &str, value: String) -> Result<()> {
        self.ask(|reply| Command::StorePosition { key: key.to_owned(), value, reply }).await
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(command(reply)).await.is_ok()
            && let Ok(answer) = answer.await
        {
            return answer;
        }
        Err(match self.closed().await {
            ControlEnd::Lost(error) => error,
            ControlEnd::ServerShuttingDown => Error::new(Kind::PostgresUnreachable, "the server is shutting down"),
        })
    }
}

fn gone() -> Error {
    Error::new(Kind::PostgresUnreachable, "the control session with Postgres is over")
}

/// One command after the other until the session is over or nobody can ask any more.
async fn serve(session: &SqlSession, watched: &Watched, commands: &mut mpsc::Receiver<Command>) -> ControlEnd {
    let closed = session.closed();
    tokio::pin!(closed);
    let idle = (watched.silence / 3).min(IDLE_MAX);
    let mut done =
        bounded("bounding statements", QUERY_TIMEOUT, session.client().batch_execute(STATEMENT_TIMEOUT)).await;
    loop {
        match done {
            Ok(()) | Err(QueryError::Refused { .. }) => {}
            Err(QueryError::ShuttingDown(_)) => return ControlEnd::ServerShuttingDown,
            Err(QueryError::Broken(error)) if session.client().is_closed() => {
                // The connection's own reason is better than "closed", where it has one.
                let reason = tokio::time::timeout(REASON_TIMEOUT, &mut closed).await;
                return reason.map_or(ControlEnd::Lost(error), from_session);
            }
            Err(QueryError::Broken(error)) => return ControlEnd::Lost(error),
        }
        let next = tokio::select! {
            biased;
            ended = &mut closed => return from_session(ended),
            next = tokio::time::timeout(idle, commands.recv()) => next,
        };
        done = match next {
            Ok(Some(command)) => command.carry_out(session.client(), watched).await,
            Ok(None) => return ControlEnd::Lost(gone()),
            // An empty statement: the server answers, and does nothing.
            Err(_) => bounded("asking for a sign of life", QUERY_TIMEOUT, session.client().batch_execute("")).await,
        };
    }
}

fn from_session(ended: Ended) -> ControlEnd {
    match ended {
        Ended::Shutdown(_) => ControlEnd::ServerShuttingDown,
        Ended::Lost(error) => ControlEnd::Lost(error),
    }
}
