//! The store of the position, and the part of it that other tasks read.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::Config;
use crate::sink::SinkHandle;
use crate::source::control::Control;
use crate::state::Store;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::left::Left;
use walrelay_core::position::ServerIdentity;
use walrelay_core::publisher::parked_index::RetryMemory;
use walrelay_core::stored::Stored;

/// The knowledge of this process, which outlives its sessions.
pub(super) type Known = Arc<Knowledge>;

#[derive(Debug, Default)]
pub(super) struct Knowledge {
    /// The stored position of a relay that has the slot or the lease; none while it has neither.
    pub(super) stored: watch::Sender<Option<Stored>>,
    /// Results of retries of parked events.
    pub(super) tried: Mutex<RetryMemory>,
    pub(super) left: Mutex<Left>,
}

/// The configured store, which keeps [`Known`] up to date.
pub(super) struct AnyStore {
    store: Store,
    pub(super) known: Known,
    /// How long the last store took.
    pub(super) took: Duration,
}

impl AnyStore {
    pub(super) async fn store(&mut self, stored: &Stored) -> Result<()> {
        let began = Instant::now();
        let stored = Stored {
            relay: self.known.left.lock().relay.clone(),
            ..stored.clone()
        };
        self.store.store(&stored).await?;
        self.known.left.lock().stored(stored.clone());
        self.took = began.elapsed();
        // While rows are still to be read from the table, the snapshot does not tell which are
        // published.
        self.known
            .stored
            .send_replace(Some(stored).filter(|stored| stored.catch_up.is_none()));
        Ok(())
    }
}

/// How soon the bus is asked again where it cannot be reached.
const RETRY: Duration = Duration::from_secs(1);
/// How long slot or lease are held meanwhile; the last attempt may take another minute. The next
/// session asks the bus before it takes them: a relay that cannot deliver leaves them to one that
/// can.
const HELD_MAX: Duration = Duration::from_secs(60);

/// Repeats `attempt` while the bus cannot be reached, for [`HELD_MAX`], and calls `tell` with the
/// first such error.
pub(super) async fn once_reachable<T, F: Future<Output = Result<T>>>(
    attempt: impl Fn() -> F,
    tell: impl FnOnce(&Error),
) -> Result<T> {
    let mut tell = Some(tell);
    let until = Instant::now() + HELD_MAX;
    loop {
        match attempt().await {
            Err(error) if error.kind() == Kind::BusUnreachable => {
                if let Some(tell) = tell.take() {
                    tell(&error);
                }
                if Instant::now() >= until {
                    return Err(error);
                }
                tokio::time::sleep(RETRY).await;
            }
            done => return done,
        }
    }
}

/// Opens the store and reads it; while the bus cannot be reached, for [`HELD_MAX`]. Stores
/// that this process has taken over. What this process could not store counts as stored.
pub(super) async fn read_position(
    config: &Config,
    sink: SinkHandle,
    control: &Control,
    known: &Known,
    server: &ServerIdentity,
) -> Result<(AnyStore, Option<Stored>)> {
    let sink = &sink;
    let read = || async move {
        let mut store = Store::open(config, sink, control).await?;
        let loaded = store.load().await?;
        Ok((
            AnyStore {
                store,
                known: Arc::clone(known),
                took: Duration::ZERO,
            },
            loaded,
        ))
    };
    let tell = |error: &Error| {
        tracing::warn!(event = "position_read_failed", %error, fix = error.what_to_do(),
            "the stored position cannot be read yet; holding the slot for two minutes at most");
    };
    let (mut store, loaded) = once_reachable(read, tell).await?;
    let counts = known.left.lock().resume(loaded.as_ref(), server);
    if !counts && let Some(loaded) = &loaded {
        // Another relay may be at work, if this process stood still: that ended this session. A
        // producer that fails ends with it, too.
        control.wal_position().await?;
        store.store(loaded).await?;
    }
    let progress = known.left.lock().progress.clone();
    Ok((store, progress.or(loaded)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test(start_paused = true)]
    async fn the_slot_is_held_for_a_while_where_the_bus_cannot_be_reached() {
        for (attempt_seconds, tries_expected, held_seconds) in
            [(0, 61, 60), (59, 2, 119), (60, 1, 60)]
        {
            let began = Instant::now();
            let tries = Cell::new(0);
            let told = Cell::new(0);
            let attempt = || async {
                tries.set(tries.get() + 1);
                tokio::time::sleep(Duration::from_secs(attempt_seconds)).await;
                Err::<(), _>(Error::new(Kind::BusUnreachable, "nobody answers"))
            };
            let ended = once_reachable(attempt, |_| told.set(told.get() + 1)).await;
            assert_eq!(ended.unwrap_err().kind(), Kind::BusUnreachable);
            assert_eq!(began.elapsed().as_secs(), held_seconds);
            assert_eq!((tries.get(), told.get()), (tries_expected, 1));
        }
    }
}
