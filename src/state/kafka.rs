//! The position in a compacted Kafka topic: one partition, one key per relay, the newest record counts.
//!
//! Written through the sink's own producer, so that one connection and one set of credentials serve both.

mod reader;
mod record;
mod topic;

use super::{Store, Stored};
use crate::config::{KafkaConfig, StateConfig};
use crate::error::{Error, Kind, Result};
use crate::sink::Producer;
use crate::sink::kafka::options::Options;

/// The partition; the topic has no other.
const PARTITION: i32 = 0;

/// [`Store`] in a Kafka topic. Through a producer with transactions, storing commits what was sent before. One call at a time, which `&mut` sees to.
pub(crate) struct KafkaStore {
    config: KafkaConfig,
    topic: String,
    key: String,
    producer: Producer,
}

impl KafkaStore {
    /// Looks at the topic and creates it where it is missing.
    ///
    /// Needs the right to describe and read it, and to create topics only where it is missing. May take up to half a
    /// minute. Nothing is retried.
    ///
    /// # Errors
    /// [`Kind::KafkaUnreachable`]; [`Kind::KafkaRefused`] where the topic is not fit to keep a position or cannot be
    /// created, with the command that helps; [`Kind::Config`] for properties librdkafka cannot work with.
    pub(crate) async fn open(config: &KafkaConfig, state: &StateConfig, producer: Producer) -> Result<KafkaStore> {
        let options = Options::reader(config)?;
        let name = state.topic.clone();
        blocking(&producer, move || topic::prepare(options, &name)).await?;
        Ok(KafkaStore { config: config.clone(), topic: state.topic.clone(), key: state.key.clone(), producer })
    }
}

impl Store for KafkaStore {
    async fn load(&mut self) -> Result<Option<Stored>> {
        let options = Options::reader(&self.config)?;
        let (topic, key) = (self.topic.clone(), self.key.clone());
        let value = blocking(&self.producer, move || reader::newest(options, &topic, key.as_bytes())).await?;
        value.map(|value| record::decode(&value, &self.topic, &self.key)).transpose()
    }

    async fn store(&mut self, stored: &Stored) -> Result<()> {
        let value = record::encode(stored)?;
        let (topic, key) = (&self.topic, self.key.as_bytes());
        match self.producer.is_transactional() {
            true => self.producer.commit(topic, PARTITION, key, &value).await,
            false => self.producer.deliver(topic, PARTITION, key, &value).await,
        }
    }
}

/// The newest record of this key, for those who have no producer; none where there is no topic. Creates nothing.
pub(super) async fn load(config: &KafkaConfig, state: &StateConfig) -> Result<Option<Stored>> {
    let (asking, reading) = (Options::reader(config)?, Options::reader(config)?);
    let (topic, key) = (state.topic.clone(), state.key.clone());
    let read = tokio::task::spawn_blocking(move || match topic::exists(asking, &topic)? {
        true => reader::newest(reading, &topic, key.as_bytes()),
        false => Ok(None),
    });
    let value = read.await.map_err(|error| Error::new(Kind::Bug, error))??;
    value.map(|value| record::decode(&value, &state.topic, &state.key)).transpose()
}

/// Runs what blocks off the runtime. Where Kafka refuses us meanwhile, that is the better explanation; the work then
/// ends by its own deadline.
async fn blocking<T: Send + 'static>(
    producer: &Producer,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::select! {
        done = tokio::task::spawn_blocking(work) => done.map_err(|error| Error::new(Kind::Bug, error))?,
        refusal = producer.unusable() => Err(refusal),
    }
}

#[cfg(test)]
mod tests;
