//! SQL with a time limit, the effect of a failure on the session, and tables of walrelay's own.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use crate::postgres::fault::{self, While};
use walrelay_core::error::{Error, Kind, Result};

/// The time limit for a statement that reads catalogs or one row. A session that needs longer is
/// stuck.
pub(crate) const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// The server's own limit for a statement and for a wait for a lock, unless the session has
/// another. It is below the client's: the server ends a statement that waits for a lock, and the
/// session stays usable.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(8);

/// A parameter with its type. A statement with typed parameters needs one round trip, and the
/// server keeps none of it.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// The failure of a statement, and its effect on the session.
#[derive(Debug)]
pub(crate) enum QueryError {
    /// The server refused the statement, or the answer cannot be read. The session can be used
    /// further.
    Refused {
        error: Error,
        /// The server's code; none if the answer cannot be read.
        sqlstate: Option<SqlState>,
    },
    /// The server announced its shutdown instead of an answer. The session is over.
    ShuttingDown(Error),
    /// The session is over, or no answer came within the limit.
    Broken(Error),
}

impl QueryError {
    /// Classifies an error of the client; `what` follows "while" in the text.
    pub(crate) fn of(what: &str, error: &tokio_postgres::Error) -> QueryError {
        let reported = fault::query(what, error);
        match error.code() {
            Some(code) if fault::is_shutdown(code.code()) => QueryError::ShuttingDown(reported),
            Some(code) => QueryError::Refused {
                error: reported,
                sqlstate: Some(code.clone()),
            },
            None if reported.kind() == Kind::PostgresUnreachable => QueryError::Broken(reported),
            None => QueryError::refused(reported),
        }
    }

    pub(crate) fn refused(error: Error) -> QueryError {
        QueryError::Refused {
            error,
            sqlstate: None,
        }
    }

    pub(crate) fn error(&self) -> &Error {
        match self {
            QueryError::Refused { error, .. }
            | QueryError::ShuttingDown(error)
            | QueryError::Broken(error) => error,
        }
    }

    pub(crate) fn with(self, error: Error) -> QueryError {
        match self {
            QueryError::Refused { sqlstate, .. } => QueryError::Refused { error, sqlstate },
            QueryError::ShuttingDown(_) => QueryError::ShuttingDown(error),
            QueryError::Broken(_) => QueryError::Broken(error),
        }
    }

    pub(crate) fn sqlstate(&self) -> Option<&str> {
        match self {
            QueryError::Refused { sqlstate, .. } => sqlstate.as_ref().map(SqlState::code),
            QueryError::ShuttingDown(_) | QueryError::Broken(_) => None,
        }
    }

    /// Of a write that the server accepted when the session began: a refusal can be undone while
    /// the relay waits. A table or column that is gone needs a new session, which prepares its
    /// statements again.
    pub(crate) fn of_write(self) -> QueryError {
        let kind = match self.sqlstate() {
            None => return self,
            Some("42703" | "42P01" | "3F000") => Kind::PostgresUnreachable,
            Some(_) => Kind::PostgresUnwritable,
        };
        let error = self.error().clone().with_kind(kind);
        self.with(error)
    }

    /// Whether another session blocked the statement, so that a retry may succeed.
    pub(crate) fn is_passing(&self) -> bool {
        const PASSING: [&str; 4] = ["40001", "40P01", "55P03", "57014"];
        self.sqlstate()
            .is_some_and(|sqlstate| PASSING.contains(&sqlstate))
    }
}

impl From<QueryError> for Error {
    fn from(error: QueryError) -> Error {
        error.error().clone()
    }
}

/// Waits for `answer`, at most for `limit`. `what` names the operation in an error ("reading the
/// slot").
pub(crate) async fn bounded<T>(
    what: &str,
    limit: Duration,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, QueryError> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer.map_err(|error| QueryError::of(what, &error)),
        Err(_) => Err(QueryError::Broken(fault::timeout(
            While::Querying(what),
            limit,
        ))),
    }
}

/// The first column of the first row, as text, within [`QUERY_TIMEOUT`].
pub(crate) async fn one_text(
    client: &Client,
    what: &str,
    sql: &str,
    params: &[Param<'_>],
) -> Result<Option<String>, QueryError> {
    let rows = bounded(what, QUERY_TIMEOUT, client.query_typed(sql, params)).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    row.try_get(0).map_err(|error| QueryError::of(what, &error))
}

/// The JSON text in the first column of the only row, within [`QUERY_TIMEOUT`].
pub(crate) async fn one_json<T: DeserializeOwned>(
    client: &Client,
    what: &str,
    sql: &str,
    params: &[Param<'_>],
) -> Result<T, QueryError> {
    let text = one_text(client, what, sql, params)
        .await?
        .unwrap_or_default();
    parsed(what, &text).map_err(QueryError::refused)
}

/// Parses the JSON of a walrelay statement. Invalid JSON comes from another server than Postgres,
/// or from a bug.
pub(crate) fn parsed<T: DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| {
        Error::new(
            Kind::PostgresUnfit,
            format!(
                "while {what}: the server's answer cannot be read: \
                                                 {error}"
            ),
        )
        .remedy(
            "walrelay needs PostgreSQL 14 or newer; other servers that speak its protocol \
                     are not supported",
        )
    })
}

/// Errors: [`Kind::PostgresUnwritable`] where the server refuses the session's writes, as a standby
/// does.
pub(crate) async fn takes_writes(client: &Client) -> Result<(), QueryError> {
    const DOING: &str = "looking whether the server takes writes";
    const SQL: &str = "select pg_catalog.current_setting('transaction_read_only')";
    if one_text(client, DOING, SQL, &[]).await?.as_deref() != Some("on") {
        return Ok(());
    }
    let cause = "the server takes no writes: transaction_read_only is on";
    let error = Error::new(Kind::PostgresUnwritable, cause).remedy(fault::READ_ONLY);
    Err(QueryError::refused(error))
}

const CREATE_TIMEOUT: Duration = Duration::from_secs(30);

/// A table of walrelay's own, and the texts of its errors.
pub(crate) struct OwnTable {
    pub(crate) name: &'static str,
    /// SQL that gives its state in a word: `usable`, `missing`, `old` for a table that `create`
    /// upgrades, or another.
    pub(crate) state: &'static str,
    pub(crate) create: &'static str,
    pub(crate) privileges: &'static str,
    /// The consequence of a missing table.
    pub(crate) lacking: &'static str,
    /// The alternative, at the end of the remedy.
    pub(crate) otherwise: &'static str,
}

impl OwnTable {
    pub(crate) async fn state(&self, client: &Client) -> Result<String, QueryError> {
        let doing = format!("looking for table {}", self.name);
        Ok(one_text(client, &doing, self.state, &[])
            .await?
            .unwrap_or_default())
    }

    /// Creates the table where it is missing, and makes sure that the role may use it.
    /// Errors: [`Kind::PostgresRefused`] with the SQL for a role that may;
    /// [`Kind::PostgresUnreachable`] where another session blocked it;
    /// [`Kind::PostgresUnwritable`] where the server takes no writes; those of the connection.
    pub(crate) async fn prepare(&self, client: &Client) -> Result<(), QueryError> {
        // The state comes first: creating a table that exists requires the privilege, too.
        match self.state(client).await?.as_str() {
            "usable" => return Ok(()),
            "missing" | "old" => {}
            _ => return Err(QueryError::refused(self.forbidden(client).await)),
        }
        let doing = format!("creating table {}", self.name);
        let failed = match bounded(&doing, CREATE_TIMEOUT, client.batch_execute(self.create)).await
        {
            Ok(()) => return Ok(()),
            Err(failed @ QueryError::Refused { .. }) => failed,
            Err(failed) => return Err(failed),
        };
        let cause = failed.error().cause();
        // Another relay may have created the table meanwhile, which the server reports as a
        // duplicate.
        match self.state(client).await?.as_str() {
            "usable" => Ok(()),
            _ if failed.is_passing() => Err(QueryError::refused(Error::new(
                Kind::PostgresUnreachable,
                cause,
            ))),
            _ if failed.error().kind() == Kind::PostgresUnwritable => Err(failed),
            _ => Err(QueryError::refused(
                self.refusal(cause, &role(client).await),
            )),
        }
    }

    /// Whether the table is there and of this layout. Changes nothing.
    /// Errors: those that [`OwnTable::prepare`] would have.
    pub(crate) async fn check(&self, client: &Client) -> Result<bool, QueryError> {
        // `create schema if not exists` needs the right also where the schema exists.
        const MAY_CREATE: &str = "select pg_catalog.has_database_privilege( \
             pg_catalog.current_database(), 'create')::text";
        match self.state(client).await?.as_str() {
            "usable" => Ok(true),
            "old" => Ok(false),
            "missing" => {
                let may = one_text(
                    client,
                    "looking whether a table may be created",
                    MAY_CREATE,
                    &[],
                )
                .await?;
                if may.as_deref() == Some("true") {
                    return Ok(false);
                }
                let cause = format!(
                    "there is no table {}, and this role may not create it",
                    self.name
                );
                Err(QueryError::refused(
                    self.refusal(&cause, &role(client).await),
                ))
            }
            _ => Err(QueryError::refused(self.forbidden(client).await)),
        }
    }

    pub(crate) async fn forbidden(&self, client: &Client) -> Error {
        self.refusal(
            &format!("table {} may not be used", self.name),
            &role(client).await,
        )
    }

    /// `role` is quoted for SQL.
    pub(crate) fn refusal(&self, cause: &str, role: &str) -> Error {
        let OwnTable {
            name,
            privileges,
            lacking,
            otherwise,
            ..
        } = self;
        let create = self.create.split_whitespace().collect::<Vec<_>>().join(" ");
        Error::new(Kind::PostgresRefused, format!("{lacking}: {cause}")).remedy(format!(
            "as a role that may: {create} grant usage on schema walrelay to {role}; grant \
             {privileges} on {name} to \
             {role}; -- or {otherwise}"
        ))
    }
}

pub(crate) async fn role(client: &Client) -> String {
    const SQL: &str = "select pg_catalog.quote_ident(current_user)";
    let asked = one_text(client, "asking for the role's name", SQL, &[]).await;
    asked
        .ok()
        .flatten()
        .unwrap_or_else(|| "the relay's role".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_query_without_an_answer_fails_as_unreachable_after_ten_seconds() {
        let before = tokio::time::Instant::now();
        let never = std::future::pending::<Result<(), _>>();
        let error = bounded("reading the slot", QUERY_TIMEOUT, never)
            .await
            .unwrap_err();
        assert!(matches!(error, QueryError::Broken(_)), "{error:?}");
        let error = Error::from(error);
        assert_eq!(error.kind(), Kind::PostgresUnreachable);
        assert_eq!(
            error.cause(),
            "while reading the slot: no answer within 10000 ms"
        );
        assert_eq!(before.elapsed(), QUERY_TIMEOUT);
    }
}
