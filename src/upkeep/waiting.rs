//! The table of events that wait, through the session that marks rows.

use tokio::sync::MutexGuard;
use tokio_postgres::Client;

use crate::error::Result;
use crate::upkeep::mark::{Failure, Marker};
use crate::upkeep::parked::{Head, Held, Room, Waiting};
use crate::upkeep::{Failed, answered};

impl Marker {
    /// Which events wait; none where none do.
    ///
    /// # Errors
    /// Those of the connection, and of a table that is gone or forbidden.
    pub async fn waiting(&self) -> Result<Vec<Waiting>> {
        self.in_room(async |room, client| room.index(client).await).await
    }

    /// The first event of each aggregate that may be tried now, `limit` at most.
    ///
    /// # Errors
    /// As [`Marker::waiting`].
    pub async fn due(&self, limit: i64) -> Result<Vec<Head>> {
        self.in_room(async |room, client| room.due(client, limit).await).await
    }

    /// Events of an aggregate from `head` on, in their order, `limit` at most.
    ///
    /// # Errors
    /// As [`Marker::waiting`].
    pub async fn held(&self, head: &Head, limit: i64) -> Result<Vec<Held>> {
        self.in_room(async |room, client| room.events(client, head, limit).await).await
    }

    /// Asks for a try of events that wait and whose rows somebody set to pending; gives how many.
    ///
    /// # Errors
    /// As [`Marker::waiting`], and those of `outbox.pending`.
    pub async fn ask_for_pending(&self) -> Result<u64> {
        let mut asked = 0;
        for (outbox, statement) in &self.asks {
            let ask = async |room: &Room, client: &Client| {
                answered(
                    "looking for rows that wait and are pending",
                    client.execute(statement, &[&room.slot(), outbox]),
                )
                .await
            };
            asked += self.in_room(ask).await?;
        }
        Ok(asked)
    }

    /// Events that somebody asked to be dropped: row of the table, what waits, and why.
    ///
    /// # Errors
    /// As [`Marker::waiting`].
    pub async fn dropped(&self, limit: i64) -> Result<Vec<(i64, Waiting, Failure)>> {
        self.in_room(async |room, client| room.dropped(client, limit).await).await
    }

    async fn in_room<T: Default>(&self, ask: impl AsyncFnOnce(&Room, &Client) -> Result<T, Failed>) -> Result<T> {
        let Some(room) = &self.room else { return Ok(T::default()) };
        let mut open = self.open.lock().await;
        let ended = self.end_left_over(&mut open).await;
        let asked = match ended {
            Ok(()) => ask(room, self.session.client()).await,
            Err(failed) => Err(failed),
        };
        asked.map_err(|failed| failed.told("using table walrelay.parked"))
    }

    /// A call that was cancelled may have left a transaction.
    pub(super) async fn end_left_over(&self, open: &mut MutexGuard<'_, bool>) -> Result<(), Failed> {
        if **open {
            answered("giving up a transaction", self.session.client().batch_execute("rollback")).await?;
            **open = false;
        }
        Ok(())
    }
}
