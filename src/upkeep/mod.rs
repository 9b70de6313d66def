//! Writes to rows of published events: marks, deletes and retention; and the table of parked events.
//!
//! | file | content |
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
/// How long the relay waits for one answer. Longer than the server's own limit, which does not bound a commit that waits
/// for a standby.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a statement waits for a lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// Sets lock and statement timeouts for a session of upkeep, so that it neither waits long for other sessions nor blocks
/// them for long.
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
