//! What is done to rows that were published: mark, delete, retention.
//!
//! | file | its room |
//! |---|---|
//! | [`mark`] | rows are marked or deleted once they were acked |
//! | [`table`] | an outbox table as the catalogs describe it |
//! | [`assignment`] | which columns SQL assignments set |
//!
//! None of it comes back as an event: updates and deletes are no events, whether the publication publishes them or not. The
//! one update that would, one that moves a row to another partition, is refused at start.

pub mod assignment;
pub mod mark;
pub mod table;

pub use mark::Marker;

use std::time::Duration;

use tokio_postgres::Error as SqlError;

use crate::error::{Error, Result};
use crate::postgres::fault::{self, While};

/// How long one statement may take before the server gives it up. They touch some thousand rows at most.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(20);
/// How long one answer is waited for: what the server gives up on is told by the server. A commit that waits for a
/// standby is not bounded by the server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a lock is waited for. Whoever holds one for longer is not held up by us, nor we by them.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// Why a statement failed.
#[derive(Debug)]
enum Failed {
    /// The server said no.
    Refused(SqlError),
    /// The connection, or the answer, is gone.
    Broken(Error),
}

impl Failed {
    /// Whether it may well succeed when it is tried again: somebody else was in the way.
    fn is_passing(&self) -> bool {
        const PASSING: [&str; 4] = ["40001", "40P01", "55P03", "57014"];
        self.sqlstate().is_some_and(|sqlstate| PASSING.contains(&sqlstate))
    }

    fn sqlstate(&self) -> Option<&str> {
        match self {
            Failed::Refused(error) => error.code().map(tokio_postgres::error::SqlState::code),
            Failed::Broken(_) => None,
        }
    }

    /// As an error; `doing` follows "while".
    fn told(&self, doing: &str) -> Error {
        match self {
            // The server became a standby under our feet: that heals, elsewhere.
            Failed::Refused(error) if self.sqlstate() == Some("25006") => {
                let told = fault::sql(While::Querying(doing), error);
                Error::new(crate::error::Kind::PostgresUnreachable, told.cause())
            }
            Failed::Refused(error) => fault::sql(While::Querying(doing), error),
            Failed::Broken(error) => error.clone(),
        }
    }
}

/// Waits for an answer for as long as [`ANSWER_TIMEOUT`].
async fn answered<T>(doing: &str, answer: impl Future<Output = Result<T, SqlError>>) -> Result<T, Failed> {
    match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) if error.as_db_error().is_some() => Err(Failed::Refused(error)),
        Ok(Err(error)) => Err(Failed::Broken(fault::sql(While::Querying(doing), &error))),
        Err(_) => Err(Failed::Broken(fault::timeout(While::Querying(doing), ANSWER_TIMEOUT))),
    }
}
