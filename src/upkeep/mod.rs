//! Writes to rows of published events: marks, deletes and retention; and the table of parked events.
//!
//! | file | content |
//! |---|---|
//! | [`mark`] | acked rows are marked or deleted |
//! | [`cleanup`] | which rows are published; old ones are deleted in batches, or with their partitions |
//! | `writer` | the statements for marks and deletes |
//! | [`parked`] | the table of parked events |
//!
//! None of these writes becomes an event: updates and deletes are no events, even if the publication publishes them.
//! Only an update that moves a row to another partition would become one; it is refused at start.

pub mod cleanup;
pub mod mark;
pub mod parked;
pub(crate) mod writer;

pub use mark::{Batch, Marker};
pub use parked::{FailedAgain, Failure, Parking};

use std::time::Duration;

use tokio_postgres::Client;

use crate::error::Result;
use crate::postgres::query::bounded;

/// The server's limit for one statement, which writes some thousand rows at most.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(20);
/// The limit for one answer. Longer than the server's own, which does not bound a commit that waits for a standby.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// Sets lock and statement timeouts, so that upkeep neither waits long for other sessions nor blocks them for long.
pub(crate) async fn bound(client: &Client) -> Result<()> {
    const DOING: &str = "bounding statements";
    let bounds = format!(
        "set lock_timeout = {}; set statement_timeout = {}; set idle_in_transaction_session_timeout = '60s'",
        LOCK_TIMEOUT.as_millis(),
        STATEMENT_TIMEOUT.as_millis()
    );
    Ok(bounded(DOING, ANSWER_TIMEOUT, client.batch_execute(&bounds)).await?)
}
