//! One question to Postgres: bounded in time, answered by one text, and its errors sorted.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use crate::error::{Error, Kind, Result};
use crate::postgres::fault::{self, While};

/// How long one statement of ours may take. They read catalogs or one row: whoever needs longer is stuck, and a
/// stuck session must not hang the relay.
pub(crate) const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// A parameter with its type: unnamed statements leave nothing behind on the server, and need one round trip.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A statement that failed, and what that means for the session it ran in.
#[derive(Debug)]
pub(crate) enum QueryError {
    /// The server said no; the session goes on.
    Refused(Error),
    /// The server said that it shuts down, instead of an answer: the session is over.
    ShuttingDown(Error),
    /// The session is over, or stuck, which is as good.
    Broken(Error),
}

impl From<QueryError> for Error {
    fn from(error: QueryError) -> Error {
        match error {
            QueryError::Refused(error) | QueryError::ShuttingDown(error) | QueryError::Broken(error) => error,
        }
    }
}

/// The first column of the first row, as text; `what` says in an error what was being done ("reading the slot").
pub(crate) async fn one_text(
    client: &Client,
    what: &str,
    sql: &str,
    params: &[Param<'_>],
) -> Result<Option<String>, QueryError> {
    let rows = bounded(what, client.query_typed(sql, params)).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    row.try_get(0).map_err(|error| failed(what, &error))
}

/// The JSON text in the first column of the only row.
pub(crate) async fn one_json<T: DeserializeOwned>(
    client: &Client,
    what: &str,
    sql: &str,
    params: &[Param<'_>],
) -> Result<T, QueryError> {
    let text = one_text(client, what, sql, params).await?.unwrap_or_default();
    parsed(what, &text).map_err(QueryError::Refused)
}

/// Our own statements build the JSON, so what cannot be read is a server that is not Postgres, or a bug.
pub(crate) fn parsed<T: DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| {
        Error::new(Kind::PostgresUnfit, format!("while {what}: the server's answer cannot be read: {error}"))
            .remedy("walrelay needs PostgreSQL 14 or newer; other servers that speak its protocol are not supported")
    })
}

/// Drives `answer` for as long as [`QUERY_TIMEOUT`].
pub(crate) async fn bounded<T>(
    what: &str,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, QueryError> {
    match tokio::time::timeout(QUERY_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(|error| failed(what, &error)),
        Err(_) => Err(QueryError::Broken(fault::timeout(While::Querying(what), QUERY_TIMEOUT))),
    }
}

fn failed(what: &str, error: &tokio_postgres::Error) -> QueryError {
    let told = fault::sql(While::Querying(what), error);
    match error.code() {
        Some(code) if fault::is_shutdown(code.code()) => QueryError::ShuttingDown(told),
        // The server became a standby under our feet: that heals, elsewhere.
        Some(code) if *code == SqlState::READ_ONLY_SQL_TRANSACTION => {
            QueryError::Refused(Error::new(Kind::PostgresUnreachable, told.cause()))
        }
        Some(_) => QueryError::Refused(told),
        None if told.kind() == Kind::PostgresUnreachable => QueryError::Broken(told),
        None => QueryError::Refused(told),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_never_comes_is_an_unreachable_server_after_ten_seconds() {
        let before = tokio::time::Instant::now();
        let error = bounded("reading the slot", std::future::pending::<Result<(), _>>()).await.unwrap_err();
        assert!(matches!(error, QueryError::Broken(_)), "{error:?}");
        let error = Error::from(error);
        assert_eq!(error.kind(), Kind::PostgresUnreachable);
        assert_eq!(error.cause(), "while reading the slot: no answer within 10000 ms");
        assert_eq!(before.elapsed(), QUERY_TIMEOUT);
    }
}
