//! What is done to rows that were published: mark, delete, retention.
//!
//! | file | its room |
//! |---|---|
//! | [`mark`] | rows are marked or deleted once they were acked |
//! | [`cleanup`] | rows that are published and old are deleted in batches, or with their partitions |
//! | `writer` | the statements that do that |
//! | [`parked`] | where events wait that cannot be delivered yet |
//! | [`published`] | which rows are published: what a relay stored of that, as a condition in SQL |
//!
//! None of it comes back as an event: updates and deletes are no events, whether the publication publishes them or not. The
//! one update that would, one that moves a row to another partition, is refused at start.

pub mod cleanup;
pub mod mark;
pub mod parked;
pub mod published;
pub(crate) mod writer;

pub use mark::{Batch, Marker};
pub use parked::{FailedAgain, Failure, Parking};

use std::time::Duration;

use tokio_postgres::Client;

use crate::error::Result;
use crate::postgres::query::bounded;

/// How long one statement may take before the server gives it up. They touch some thousand rows at most.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(20);
/// How long one answer is waited for: what the server gives up on is told by the server. A commit that waits for a
/// standby is not bounded by the server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a lock is waited for. Whoever holds one for longer is not held up by us, nor we by them.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// Bounds the statements of a session that is for upkeep alone: nobody is waited for long, and nobody waits long for us.
///
/// # Errors
/// Those of the connection.
pub async fn bound(client: &Client) -> Result<()> {
    const DOING: &str = "bounding statements";
    let bounds = format!(
        "set lock_timeout = {}; set statement_timeout = {}; set idle_in_transaction_session_timeout = '60s'",
        LOCK_TIMEOUT.as_millis(),
        STATEMENT_TIMEOUT.as_millis()
    );
    Ok(bounded(DOING, ANSWER_TIMEOUT, client.batch_execute(&bounds)).await?)
}
