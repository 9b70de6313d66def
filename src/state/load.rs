//! Reads what a relay stored, for those who are not the relay. Changes nothing.

use crate::config::{Config, StoreKind};
use crate::error::{Error, Kind, Result};
use crate::postgres::fault::{self, While};
use crate::postgres::sql::SqlSession;
use crate::state::{Stored, kafka, postgres};

const EXISTS: &str = include_str!("../../sql/source/position_exists.sql");
const LOAD: &str = include_str!("../../sql/source/position_load.sql");

/// What is stored under this configuration's key; none where nothing is, or the store is the slot, which keeps only a
/// position.
///
/// Where the store is Kafka: a consumer that leaves no trace, which needs the right to read and describe the topic. May
/// take half a minute. Nothing is created.
///
/// # Errors
/// Those of Kafka or Postgres; [`Kind::KafkaRefused`] and [`Kind::PositionMismatch`] for what cannot be read, and
/// [`Kind::PostgresRefused`] for a table that may not be.
pub async fn load(config: &Config) -> Result<Option<Stored>> {
    match config.state.store {
        StoreKind::Kafka => kafka::load(&config.kafka, &config.state).await,
        StoreKind::Postgres => from_postgres(config).await,
        StoreKind::Slot => Ok(None),
    }
}

async fn from_postgres(config: &Config) -> Result<Option<Stored>> {
    const DOING: &str = "reading the stored position";
    let session = SqlSession::connect(&config.source.database, "walrelay").await?;
    let told = |error: tokio_postgres::Error| fault::sql(While::Querying(DOING), &error);
    let row = session.client().query_one(EXISTS, &[]).await.map_err(told)?;
    match row.try_get(0).map_err(told)? {
        "missing" => return Ok(None),
        "usable" => {}
        _ => {
            return Err(Error::new(Kind::PostgresRefused, "table walrelay.position may not be used")
                .remedy("use the relay's role, or grant this one what walrelay.position needs"));
        }
    }
    let key = &config.state.key;
    let row = session.client().query_opt(LOAD, &[key]).await.map_err(told)?;
    let Some(row) = row else { return Ok(None) };
    postgres::read(key, row.try_get(0).map_err(told)?).map(Some)
}
