//! What is told of an outage, and how long is waited before the next try.

use std::time::Duration;

use tokio::time::Instant;

use super::{Life, Relay};
use crate::config::OnError;
use crate::error::{Error, Kind, Result};
use crate::position::Position;
use crate::relay::poison::Poison;
use crate::telemetry::Side;

impl Relay {
    /// A producer that ended because events are being found out about ended for a reason: the next one need not wait.
    pub(super) fn note_learned(&mut self) {
        let learned = self.newest_poison().learned();
        if std::mem::replace(&mut self.learned, learned) < learned {
            self.backoff.reset();
        }
    }

    fn newest_poison(&self) -> &Poison {
        match &self.life {
            Some(Life::Running(pipeline)) => &pipeline.publisher.poison,
            Some(Life::New(..)) | None => &self.poison,
        }
    }

    /// What ended a session; another thing, where a record was called too large that may only have been in a batch that is. The
    /// next batches are smaller then.
    pub(super) fn unless_its_batch(&mut self, error: Error) -> Error {
        let in_vain = self.newest_poison().in_vain();
        let is_batch = std::mem::replace(&mut self.in_vain, in_vain) < in_vain;
        let halts = error.kind() == Kind::RecordTooLarge;
        let record_bytes = error.record_bytes().filter(|_| halts).or_else(|| is_batch.then_some(0));
        let Some(bytes) = record_bytes.and_then(|record_bytes| self.batches.refused(record_bytes)) else {
            return error;
        };
        self.batches.apply(&mut self.config.kafka);
        tracing::warn!(
            slot = %self.config.source.slot, batch_bytes = bytes, cause = %error,
            "the broker refuses batches for their size; the next ones are smaller (to begin with that, set batch.size of the \
             Kafka properties below max.message.bytes of the topic)"
        );
        if halts { Error::new(Kind::KafkaUnreachable, format!("trying smaller batches: {error}")) } else { error }
    }

    /// Reports an outage once, and says how long to wait before the next try. None where a topic was tried often enough, and
    /// events for it are to be given up.
    ///
    /// # Errors
    /// The same, where the relay is to stop instead.
    pub(super) fn failed(&mut self, error: &Error) -> Result<Option<Duration>> {
        if error.kind().halts() {
            return Err(error.clone());
        }
        let wait = self.backoff.next_wait();
        let side = if error.kind().ends_producer() { Side::Kafka } else { Side::Postgres };
        self.telemetry.metrics.retry(side);
        self.telemetry.metrics.error(error.kind());
        self.telemetry.connected(side, false);
        let slot = &self.config.source.slot;
        if let Some(topic) = error.topic() {
            let delivery = &self.config.delivery;
            // There is nothing else to be done with a dead letter.
            let is_of_letters = delivery.on_error == OnError::DeadLetter && topic == delivery.dead_letter_topic;
            let max_attempts = if is_of_letters { Some(u32::MAX) } else { error.max_attempts() };
            if self.newest_poison().took(topic) {
                self.refusals.took(topic);
            }
            let retry = delivery.retry.within(max_attempts);
            let (tries, wait) = self.refusals.refused(topic, &retry, Instant::now(), fastrand::f64());
            let wait_ms = wait.map(|wait| wait.as_millis());
            self.failing = Some(error.kind());
            if is_of_letters {
                let fix = error.what_to_do();
                tracing::warn!(%slot, topic, %error, fix, tries, wait_ms, "the topic of dead letters refuses one; everything waits for it");
                self.telemetry.health.dead_letters_refused(Some(topic.to_owned()));
                return Ok(wait);
            }
            if wait.is_none() && delivery.on_error == OnError::Stop {
                return Err(error.clone());
            }
            self.telemetry.health.topic_refused(wait.map(|_| topic.to_owned()));
            tracing::warn!(%slot, %error, fix = error.what_to_do(), tries, wait_ms, "a topic refuses records");
            return Ok(wait);
        }
        if self.failing.replace(error.kind()) == Some(error.kind()) {
            tracing::debug!(%slot, %error, tries = self.backoff.tries(), wait_ms = wait.as_millis(), "still failing");
        } else {
            tracing::warn!(%slot, %error, fix = error.what_to_do(), "interrupted; trying again until it works");
        }
        Ok(Some(wait))
    }

    /// A topic refused a record: whether it takes one is looked out for by the next producer. Where it was tried often enough,
    /// which is where there is no `wait`, events for it are given up for a while.
    pub(super) fn learn_of_topic(&mut self, error: &Error, wait: Option<Duration>) {
        let Some(topic) = error.topic() else { return };
        self.poison.watch(topic);
        if wait.is_none() {
            let told = error.clone().after(self.refusals.tries(topic));
            self.poison.refuse(topic, &told, self.config.delivery.retry.cap);
        }
    }

    pub(super) fn recovered(&mut self, start: Position) {
        self.telemetry.connected(Side::Postgres, true);
        let slot = &self.config.source.slot;
        match self.failing.take() {
            Some(Kind::TopicRefused) => tracing::info!(%slot, position = %start, "streaming, to try the topic again"),
            Some(_) => tracing::info!(%slot, tries = self.backoff.tries(), position = %start, "streaming again"),
            None => tracing::info!(%slot, position = %start, "streaming"),
        }
    }
}

/// What is said at start of a topic of dead letters that is not there.
pub(super) fn no_dead_letters(topic: &str) -> String {
    format!(
        "topic {topic}, for dead letters, is not there, or this Kafka user may not see it: unless the brokers make it with the first \
         one, everything behind an event that is given up waits for it; create it: kafka-topics --create --topic {topic} \
         --partitions … --replication-factor …, and grant Write and Describe on it"
    )
}

#[cfg(test)]
mod tests;
