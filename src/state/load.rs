//! Reads what a relay stored, for those who are not the relay. Changes nothing.

use crate::config::{Config, StoreKind};
use crate::error::Result;
use crate::state::{Stored, kafka, postgres};

/// What is stored under this configuration's key; none where nothing is, or the store is the slot, which keeps only a
/// position.
///
/// Where the store is Kafka: a consumer that leaves no trace, which needs the right to read and describe the topic. May
/// take half a minute. Nothing is created.
///
/// # Errors
/// Those of Kafka or Postgres; [`KafkaRefused`](crate::error::Kind::KafkaRefused) and [`PositionMismatch`](crate::error::Kind::PositionMismatch) for what cannot be read, and
/// [`PostgresRefused`](crate::error::Kind::PostgresRefused) for a table that may not be.
pub(crate) async fn load(config: &Config) -> Result<Option<Stored>> {
    match config.state.store {
        StoreKind::Kafka => kafka::load(&config.kafka, &config.state).await,
        StoreKind::Postgres => postgres::load(config).await,
        StoreKind::Slot => Ok(None),
    }
}
