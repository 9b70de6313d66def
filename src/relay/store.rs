//! The store of the position, and the part of it that other tasks read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::config::{Config, StoreKind};
use crate::error::{Error, Kind, Result};
use crate::relay::parked_index::RetryMemory;
use crate::sink::SinkHandle;
use crate::source::control::Control;
use crate::state::Stored;
use crate::state::kafka::KafkaStore;
use crate::state::postgres::PostgresStore;

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
    kind: AnyKind,
    pub(super) known: Known,
    /// How long the last store took.
    pub(super) took: Duration,
}

enum AnyKind {
    Kafka(KafkaStore),
    Postgres(PostgresStore),
    /// Keeps nothing: the slot's own position is all there is.
    ///
    /// After a crash of the server, and up to Postgres 16 after every restart, the slot is further back than what was
    /// confirmed, and the events in between are delivered again. Nothing tells a slot that was recreated or advanced.
    Slot,
}

impl AnyStore {
    async fn load(&mut self) -> Result<Option<Stored>> {
        match &mut self.kind {
            AnyKind::Kafka(store) => store.load().await,
            AnyKind::Postgres(store) => store.load().await,
            AnyKind::Slot => Ok(None),
        }
    }

    pub(super) async fn store(&mut self, stored: &Stored) -> Result<()> {
        let began = Instant::now();
        match &mut self.kind {
            AnyKind::Kafka(store) => store.store(stored).await,
            AnyKind::Postgres(store) => store.store(stored).await,
            AnyKind::Slot => Ok(()),
        }?;
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
        let kind = match config.state.store {
            StoreKind::Kafka => {
                AnyKind::Kafka(KafkaStore::open(&config.kafka, &config.state, sink.clone().kafka()?).await?)
            }
            StoreKind::Postgres => {
                AnyKind::Postgres(PostgresStore::open(control.clone(), config.state.key.as_str()).await?)
            }
            StoreKind::Slot => AnyKind::Slot,
        };
        let mut store = AnyStore { kind, known: Arc::clone(known), took: Duration::ZERO };
        let loaded = store.load().await?;
        Ok((store, loaded))
    };
    let tell = |error: &Error| {
        tracing::warn!(event = "position_read_failed", %error, fix = error.what_to_do(),
            "the stored position cannot be read yet; holding the slot until it can");
    };
    once_reachable(read, tell).await
}
