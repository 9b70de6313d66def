//! One question to Postgres: bounded in time, answered by one text, and its errors sorted.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use crate::error::{Error, Kind, Result};

/// How long one statement of ours may take. They read catalogs or one row: whoever needs longer is stuck, and a
/// stuck session must not hang the relay.
pub(crate) const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// A parameter with its type: unnamed statements leave nothing behind on the server, and need one round trip.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// The first column of the only row, as text; `what` says in an error what the question was about.
pub(crate) async fn one_text(client: &Client, what: &str, sql: &str, params: &[Param<'_>]) -> Result<Option<String>> {
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
) -> Result<T> {
    let text = one_text(client, what, sql, params).await?.unwrap_or_default();
    parsed(what, &text)
}

/// Our own statements build the JSON, so what cannot be read is a server that is not Postgres, or a bug.
pub(crate) fn parsed<T: DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| {
        Error::new(Kind::PostgresUnfit, format!("{what}: the server's answer cannot be read: {error}"))
            .remedy("walrelay needs PostgreSQL 14 or newer; other servers that speak its protocol are not supported")
    })
}

/// Drives `answer` for as long as [`QUERY_TIMEOUT`].
pub(crate) async fn bounded<T>(
    what: &str,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T> {
    match tokio::time::timeout(QUERY_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(|error| failed(what, &error)),
        Err(_) => Err(timed_out(what)),
    }
}

fn timed_out(what: &str) -> Error {
    let seconds = QUERY_TIMEOUT.as_secs();
    Error::new(Kind::PostgresUnreachable, format!("{what}: no answer from Postgres within {seconds} s"))
}

/// What follows from a statement that failed: by SQLSTATE, never by text, which is translated (`lc_messages`).
pub(crate) fn failed(what: &str, error: &tokio_postgres::Error) -> Error {
    let Some(db) = error.as_db_error() else {
        return Error::new(Kind::PostgresUnreachable, format!("{what}: the connection to Postgres failed: {error}"));
    };
    let code = db.code().code();
    let cause = format!("{what}: Postgres says: {} (SQLSTATE {code})", db.message());
    match kind_of(db.code()) {
        Kind::PostgresRefused => Error::new(Kind::PostgresRefused, cause)
            .remedy("grant the role walrelay connects as what the message asks for, or connect as another role"),
        kind => Error::new(kind, cause),
    }
}

/// Classes of <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
fn kind_of(code: &SqlState) -> Kind {
    if *code == SqlState::INSUFFICIENT_PRIVILEGE || *code == SqlState::INVALID_PASSWORD {
        return Kind::PostgresRefused;
    }
    match code.code().get(..2) {
        // Connection lost; resources gone for now; somebody's lock, cancel, or shutdown; the server's disk.
        Some("08" | "53" | "57" | "58" | "40" | "55") => Kind::PostgresUnreachable,
        // The transaction is read-only: the server is a standby, or about to become one.
        Some("25") => Kind::PostgresUnreachable,
        Some("28") => Kind::PostgresRefused,
        _ => Kind::PostgresUnfit,
    }
}

/// A name as SQL wants it in a remedy somebody may paste.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_heals_is_retried_and_what_does_not_is_not() {
        for code in ["57P01", "57P02", "57P03", "57014", "08006", "53300", "40P01", "55P03", "25006", "58030"] {
            assert_eq!(kind_of(&SqlState::from_code(code)), Kind::PostgresUnreachable, "{code}");
        }
        for code in ["42501", "28000", "28P01"] {
            assert_eq!(kind_of(&SqlState::from_code(code)), Kind::PostgresRefused, "{code}");
        }
        for code in ["42P01", "42601", "22P02", "XX000"] {
            assert_eq!(kind_of(&SqlState::from_code(code)), Kind::PostgresUnfit, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_never_comes_is_an_unreachable_server_after_ten_seconds() {
        let before = tokio::time::Instant::now();
        let error = bounded("reading the slot", std::future::pending::<Result<(), _>>()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::PostgresUnreachable);
        assert_eq!(error.cause(), "reading the slot: no answer from Postgres within 10 s");
        assert_eq!(before.elapsed(), QUERY_TIMEOUT);
    }

    #[test]
    fn a_quote_in_a_name_does_not_end_it() {
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
