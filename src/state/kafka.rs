//! The position in a compacted Kafka topic: one partition, one key per relay, the newest record counts.
//!
//! Written through the sink's own producer, so that one connection and one set of credentials serve both.

mod reader;
mod record;
mod topic;

use std::time::Duration;

use super::{Store, Stored};
use crate::config::{KafkaConfig, StateConfig};
use crate::error::{Error, Kind, Result};
use crate::sink::Producer;
use crate::sink::options::Options;

/// How long one question to the brokers may take: metadata, offsets, creating the topic.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// The partition; the topic has no other.
const PARTITION: i32 = 0;

/// [`Store`] in a Kafka topic. One call at a time, which `&mut` sees to.
pub struct KafkaStore {
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
    pub async fn open(config: &KafkaConfig, state: &StateConfig, producer: Producer) -> Result<KafkaStore> {
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
        self.producer.deliver(&self.topic, PARTITION, self.key.as_bytes(), &value).await
    }
}

/// Runs what blocks off the runtime. Where the producer knows that Kafka refuses us, that is the better explanation.
async fn blocking<T: Send + 'static>(
    producer: &Producer,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| Error::new(Kind::Bug, error))?;
    done.map_err(|error| match producer.connection() {
        crate::sink::Connection::Refused(refusal) if error.kind() == Kind::KafkaUnreachable => refusal,
        _ => error,
    })
}

#[cfg(test)]
mod tests;
