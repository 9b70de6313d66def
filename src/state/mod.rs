//! Where the position is kept.

use serde::{Deserialize, Serialize};
use tokio_postgres::Client;

use crate::config::{Config, StoreKind};
use crate::sink::SinkHandle;
use crate::source::control::Control;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::stored::Stored;

pub(crate) mod kafka;
mod postgres;

/// The layout written, and the newest one understood.
const LAYOUT: u32 = 3;

/// What is stored: [`Stored`], and what names its layout.
#[derive(Serialize, Deserialize)]
struct Envelope {
    /// The layout: goes up when an older walrelay would misread it.
    version: u32,
    /// For people: when, by the relay's clock.
    written_at: String,
    /// For people: which walrelay.
    walrelay: String,
    #[serde(flatten)]
    stored: Stored,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

fn encode(stored: &Stored) -> Result<String> {
    let written_at = jiff::Timestamp::now().to_string();
    let walrelay = env!("CARGO_PKG_VERSION").to_owned();
    let envelope = Envelope {
        version: LAYOUT,
        written_at,
        walrelay,
        stored: stored.clone(),
    };
    serde_json::to_string(&envelope).map_err(|error| {
        Error::new(
            Kind::Bug,
            format!("a position cannot be written as JSON: {error}"),
        )
    })
}

/// Errors: [`Kind::PositionMismatch`] where the value at `place` is one of another layout, or
/// is not a position, which `remedy` is for.
fn decode(value: &[u8], place: &str, remedy: &str) -> Result<Stored> {
    let foreign = |error: serde_json::Error| {
        // Where, not what: the message can quote the value.
        let at = format!("{:?} at column {}", error.classify(), error.column());
        Error::new(
            Kind::PositionMismatch,
            format!("{place} is not a position ({at})"),
        )
        .remedy(remedy)
    };
    let layout: Version = serde_json::from_slice(value).map_err(foreign)?;
    if !(2..=LAYOUT).contains(&layout.version) {
        let cause = format!(
            "{place} has layout {}; this walrelay reads 2 to {LAYOUT}",
            layout.version
        );
        return Err(Error::new(Kind::PositionMismatch, cause)
            .remedy("run the walrelay of another version that wrote it"));
    }
    let envelope: Envelope = serde_json::from_slice(value).map_err(foreign)?;
    Ok(envelope.stored)
}

/// The store of `state.store`.
pub(crate) enum Store {
    Kafka(kafka::KafkaStore),
    Postgres(postgres::PostgresStore),
    /// Keeps nothing: the slot's own position is all there is.
    ///
    /// After a crash of the server, and up to Postgres 16 after every restart, the slot is further
    /// back than what was confirmed, and the events in between are delivered again. Nothing tells a
    /// slot that was recreated or advanced.
    Slot,
}

impl Store {
    /// Opens it, and makes the topic or table where it is missing.
    pub(crate) async fn open(
        config: &Config,
        sink: &SinkHandle,
        control: &Control,
    ) -> Result<Store> {
        let state = &config.state;
        Ok(match state.store {
            StoreKind::Kafka => {
                Store::Kafka(kafka::KafkaStore::open(&config.kafka, state, sink.producer()?).await?)
            }
            StoreKind::Postgres => Store::Postgres(
                postgres::PostgresStore::open(control.clone(), state.key.as_str()).await?,
            ),
            StoreKind::Slot => Store::Slot,
        })
    }

    pub(crate) async fn load(&mut self) -> Result<Option<Stored>> {
        match self {
            Store::Kafka(store) => store.load().await,
            Store::Postgres(store) => store.load().await,
            Store::Slot => Ok(None),
        }
    }

    /// Replaces it: durable when this returns. Not safe to cancel half-way: drive it to its end.
    pub(crate) async fn store(&mut self, stored: &Stored) -> Result<()> {
        match self {
            Store::Kafka(store) => store.store(stored).await,
            Store::Postgres(store) => store.store(stored).await,
            Store::Slot => Ok(()),
        }
    }
}

/// Whether a relay of the role of `client` could open the store, as far as Postgres tells. Nothing
/// is created.
pub(crate) async fn may_open(config: &Config, client: &Client) -> Result<()> {
    match config.state.store {
        StoreKind::Postgres => postgres::may_open(client).await,
        StoreKind::Kafka | StoreKind::Slot => Ok(()),
    }
}

/// The value stored under this configuration's key; none where nothing is stored, or where the
/// store is the slot, which keeps only a position.
///
/// Of the bus it needs the right to read and describe the topic, and half a minute at most. Nothing
/// is created.
pub(crate) async fn load(config: &Config) -> Result<Option<Stored>> {
    match config.state.store {
        StoreKind::Kafka => kafka::load(&config.kafka, &config.state).await,
        StoreKind::Postgres => postgres::load(config).await,
        StoreKind::Slot => Ok(None),
    }
}
