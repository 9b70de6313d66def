//! The table of events that wait, through the session that marks rows.

use std::sync::atomic::Ordering;

use tokio::sync::MutexGuard;
use tokio_postgres::Client;

use crate::error::Result;
use crate::postgres::query::{QueryError, bounded};
use crate::upkeep::ANSWER_TIMEOUT;
use crate::upkeep::mark::Marker;
use crate::upkeep::parked::Failure;
use crate::upkeep::parked::{DOING, Head, Held, Limit, Room, Waiting, get};

const STILL: &str = include_str!("../../sql/parked/still.sql");

impl Marker {
    /// Which events wait; none where none do.
    ///
    /// # Errors
    /// Those of the connection, and of a table that is gone or forbidden.
    pub async fn waiting(&self) -> Result<Vec<Waiting>> {
        self.in_room(async |room, client| room.index(client).await).await
    }

    /// The first event of each aggregate that may be tried now, `limit` at most, without those in `except`.
    ///
    /// # Errors
    /// As [`Marker::waiting`].
    pub async fn due(&self, limit: i64, except: &[i64]) -> Result<Vec<Head>> {
        self.in_room(async |room, client| room.due(client, limit, except).await).await
    }

    /// Events of an aggregate from `head` on, in their order, one at least and no more than `limit` says.
    ///
    /// # Errors
    /// As [`Marker::waiting`], and of what stands in the table and makes no event.
    pub async fn held(&self, head: &Head, limit: Limit) -> Result<Vec<Held>> {
        self.in_room(async |room, client| room.events(client, head, limit).await).await
    }

    /// Outboxes in which setting a row to pending asks for a try of the event that waits.
    pub fn asked_by_pending(&self) -> impl Iterator<Item = &str> {
        self.asks.iter().map(|(outbox, _)| outbox.as_str())
    }

    /// Asks for a try of the events of such an outbox that wait and whose rows somebody set to pending; gives how many.
    ///
    /// # Errors
    /// As [`Marker::waiting`], and those of `outbox.pending`.
    pub async fn ask_for_pending(&self, outbox: &str) -> Result<u64> {
        const DOING: &str = "looking for rows that wait and are pending";
        let Some((_, statement)) = self.asks.iter().find(|(of, _)| of == outbox) else { return Ok(0) };
        let ask = async |room: &Room, client: &Client| {
            bounded(DOING, ANSWER_TIMEOUT, client.execute(statement, &[&room.slot(), &outbox])).await
        };
        self.in_room(ask).await
    }

    /// Events that somebody asked to be dropped, without those in `except`: row of the table, what waits, and why.
    ///
    /// # Errors
    /// As [`Marker::waiting`].
    pub async fn dropped(&self, limit: i64, except: &[i64]) -> Result<Vec<(i64, Waiting, Failure)>> {
        self.in_room(async |room, client| room.dropped(client, limit, except).await).await
    }

    /// How many events of outboxes that are not configured [`Marker::waiting`] has dropped since this was asked last.
    pub fn take_dropped(&self) -> u64 {
        self.room.as_ref().map_or(0, |room| room.dropped.swap(0, Ordering::Relaxed))
    }

    /// Which of these rows of the table are there.
    ///
    /// # Errors
    /// As [`Marker::waiting`].
    pub async fn still(&self, ids: &[i64]) -> Result<Vec<i64>> {
        let still = async |_: &Room, client: &Client| {
            let rows = bounded(DOING, ANSWER_TIMEOUT, client.query(STILL, &[&ids])).await?;
            rows.iter().map(|row| get(row, 0)).collect()
        };
        self.in_room(still).await
    }

    /// Whether the session answers, after an error of another call: with no transaction left over.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn answers(&self) -> Result<()> {
        const DOING: &str = "asking for a sign of life";
        let mut open = self.open.lock().await;
        let answered = match self.end_left_over(&mut open).await {
            Ok(()) => bounded(DOING, ANSWER_TIMEOUT, self.session.client().batch_execute("select 1")).await,
            Err(failed) => Err(failed),
        };
        Ok(answered?)
    }

    async fn in_room<T: Default>(&self, ask: impl AsyncFnOnce(&Room, &Client) -> Result<T, QueryError>) -> Result<T> {
        let Some(room) = &self.room else { return Ok(T::default()) };
        let mut open = self.open.lock().await;
        let ended = self.end_left_over(&mut open).await;
        let asked = match ended {
            Ok(()) => ask(room, self.session.client()).await,
            Err(failed) => Err(failed),
        };
        Ok(asked?)
    }

    /// A call that was cancelled may have left a transaction.
    pub(super) async fn end_left_over(&self, open: &mut MutexGuard<'_, bool>) -> Result<(), QueryError> {
        if **open {
            bounded("giving up a transaction", ANSWER_TIMEOUT, self.session.client().batch_execute("rollback")).await?;
            **open = false;
        }
        Ok(())
    }
}
