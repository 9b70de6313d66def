//! Old rows go while the relay runs: a task of its own, off the path of events.

use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use crate::config::Config;
use crate::error::{Disposition, Result};
use crate::postgres::sql::SqlSession;
use crate::relay::retrying::Memory;
use crate::state::Stored;
use crate::upkeep::bound;
use crate::upkeep::cleanup::{Sweeper, old_partitions, published_of, sweep};

/// How often it is looked for rows whose time has come.
const INTERVAL: Duration = Duration::from_secs(60);
/// Rows of one transaction, and the pause between two.
const BATCH_ROWS: u32 = 1_000;
const PAUSE: Duration = Duration::from_millis(50);

/// What this process knows, whatever becomes of its sessions.
pub(super) type Known = Arc<Knowledge>;

/// What is stored of what is published, by the relay that has the slot or the lease; none while it has neither.
#[derive(Debug, Default)]
pub(super) struct Knowledge {
    stored: watch::Sender<Option<Stored>>,
    /// What came of tries of events that wait.
    pub(super) tried: Mutex<Memory>,
    /// How many that waited were delivered, and dropped, which the metrics were not told yet.
    pub(super) unparked: AtomicU64,
    pub(super) dropped: AtomicU64,
}

impl Deref for Knowledge {
    type Target = watch::Sender<Option<Stored>>;

    fn deref(&self) -> &Self::Target {
        &self.stored
    }
}

/// Deletes old rows for as long as this is driven. Faults are told and tried again the next time: events are not held up.
pub(super) async fn keep(config: &Config, known: &Known) {
    if !config.outboxes.iter().any(|outbox| outbox.upkeep.retention.is_some()) {
        return std::future::pending().await;
    }
    let mut tick = tokio::time::interval(INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut known = known.subscribe();
    loop {
        tick.tick().await;
        if known.wait_for(Option::is_some).await.is_err() {
            return std::future::pending().await;
        }
        let stored = known.borrow().clone();
        match once(config, stored.as_ref()).await {
            Ok(0) => {}
            Ok(rows) => tracing::info!(slot = %config.source.slot, rows, "old rows were deleted"),
            Err(error) if error.kind().disposition() == Disposition::Retry => {
                tracing::debug!(%error, "old rows could not be deleted; trying again in a minute");
            }
            Err(error) => {
                tracing::warn!(slot = %config.source.slot, %error, fix = error.what_to_do(), "old rows could not be deleted");
            }
        }
    }
}

/// Partitions and rows that are old and published go; gives how many rows.
async fn once(config: &Config, stored: Option<&Stored>) -> Result<u64> {
    let source = &config.source;
    let session = SqlSession::connect(&source.database, &format!("walrelay/{}/retention", source.slot)).await?;
    let client = session.client();
    bound(client).await?;
    let mut deleted = 0;
    for outbox in &config.outboxes {
        let Some(retention) = outbox.upkeep.retention else { continue };
        let Some(sweeper) = Sweeper::look(client, outbox, retention).await? else { continue };
        // Of this server, timeline and table, or it says nothing.
        let published = match stored.filter(|_| sweeper.basis.needs_published()) {
            Some(stored) => Some(published_of(client, stored.clone(), sweeper.table.oid).await?),
            None => None,
        };
        let published = published.as_ref();
        let is_polled = stored.is_some_and(Stored::is_polled);
        for old in old_partitions(client, &sweeper, published, is_polled).await? {
            if old.stays.is_some() {
                continue;
            }
            match old.drop(client, &sweeper, published).await? {
                Ok(()) => deleted += old.rows.unwrap_or_default(),
                Err(why) => tracing::info!(partition = old.name, why, "an old partition stays"),
            }
        }
        let mut after = None;
        loop {
            let swept = sweep(client, &sweeper, published, after.as_deref(), BATCH_ROWS).await?;
            deleted += swept.deleted;
            if swept.found < u64::from(BATCH_ROWS) {
                break;
            }
            after = swept.last;
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(deleted)
}
