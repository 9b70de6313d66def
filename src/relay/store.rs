//! The store of the position, and the part of it that other tasks read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::relay::parked_index::RetryMemory;
use crate::sink::SinkHandle;
use crate::source::control::Control;
use crate::state::{Store, Stored};

/// The knowledge of this process, which outlives its sessions.
pub(super) type Known = Arc<Knowledge>;

/// The stored position of a relay that has the slot or the lease; none while it has neither.
#[derive(Debug, Default)]
pub(super) struct Knowledge {
    pub(super) stored: watch::Sender<Option<Stored>>,
    /// Results of retries of parked events.
    pub(super) tried: Mutex<RetryMemory>,
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
        self.store.store(stored).await?;
        self.took = began.elapsed();
        // While rows are still to be read from the table, the snapshot does not tell which are published.
        self.known.stored.send_replace(Some(stored.clone()).filter(|_| stored.catch_up.is_none()));
        Ok(())
    }
}

/// How soon Kafka is asked again where it cannot be reached.
const RETRY: Duration = Duration::from_secs(1);

/// Repeats `attempt` for as long as Kafka cannot be reached, and calls `tell` with the first such error.
pub(super) async fn once_reachable<T, F: Future<Output = Result<T>>>(
    attempt: impl Fn() -> F,
    tell: impl FnOnce(&Error),
) -> Result<T> {
    let mut tell = Some(tell);
    loop {
        match attempt().await {
            Err(error) if error.kind() == Kind::KafkaUnreachable => {
                if let Some(tell) = tell.take() {
                    tell(&error);
                }
                tokio::time::sleep(RETRY).await;
            }
            done => return done,
        }
    }
}

/// Opens the store and reads it; while Kafka cannot be reached, for as long as it takes.
pub(super) async fn read_position(
    config: &Config,
    sink: SinkHandle,
    control: &Control,
    known: &Known,
) -> Result<(AnyStore, Option<Stored>)> {
    let sink = &sink;
    let read = || async move {
        let mut store = Store::open(config, sink, control).await?;
        let loaded = store.load().await?;
        Ok((AnyStore { store, known: Arc::clone(known), took: Duration::ZERO }, loaded))
    };
    let tell = |error: &Error| {
        tracing::warn!(event = "position_read_failed", %error, fix = error.what_to_do(),
            "the stored position cannot be read yet; holding the slot until it can");
    };
    once_reachable(read, tell).await
}
