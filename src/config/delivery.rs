//! What becomes of an event that cannot be delivered.

use super::layers::Settings;
use super::meaning::is_topic;
use super::setting;
use super::{Config, OutboxConfig};
use crate::error::{Error, Kind, Result};

/// What becomes of events that cannot be delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryConfig {
    /// What follows where one cannot.
    pub on_error: OnError,
    /// The topic of dead letters.
    pub dead_letter_topic: String,
}

impl Default for DeliveryConfig {
    fn default() -> Self {
        let topic = setting::DEAD_LETTER_TOPIC.default.unwrap_or_default();
        DeliveryConfig { on_error: OnError::Stop, dead_letter_topic: topic.to_owned() }
    }
}

/// What becomes of an event that cannot be delivered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnError {
    /// The relay stops before it.
    #[default]
    Stop,
    /// It goes to the topic of dead letters, and the relay goes on behind it.
    DeadLetter,
    /// It is given up, and the relay goes on behind it.
    Skip,
}

const WORDS: &str = "stop, dead-letter or skip";

impl Settings {
    /// What becomes of events that cannot be delivered.
    ///
    /// # Errors
    /// As [`Settings::config`].
    pub fn delivery(&self) -> Result<DeliveryConfig> {
        let on_error = match self.word(&setting::ON_ERROR, WORDS)? {
            "stop" => OnError::Stop,
            "dead-letter" => OnError::DeadLetter,
            "skip" => OnError::Skip,
            _ => return Err(self.not_allowed(&setting::ON_ERROR, WORDS)),
        };
        let dead_letter_topic = self.checked(&setting::DEAD_LETTER_TOPIC, "1 to 249 of a-z A-Z 0-9 . _ -", is_topic)?;
        Ok(DeliveryConfig { on_error, dead_letter_topic })
    }

    /// Whether what is to become of events and of their rows goes together.
    pub(super) fn fit_to_give_up(&self, config: &Config) -> Result<()> {
        let DeliveryConfig { on_error, dead_letter_topic } = &config.delivery;
        if *on_error == OnError::Stop {
            return Ok(());
        }
        let told = |setting| self.get(setting).map(|given| given.origin.to_string()).unwrap_or_default();
        let reserved = |outbox: &OutboxConfig| outbox.route.reserved_topic.as_ref() == Some(dead_letter_topic);
        if config.outboxes.iter().any(reserved) {
            let cause = format!("topic {dead_letter_topic} is that of the position, and cannot have dead letters");
            return Err(Error::new(Kind::Config, cause).remedy("give delivery.dead_letter_topic another name"));
        }
        let says = |outbox: &&OutboxConfig| outbox.upkeep.pending.is_some() || outbox.upkeep.mark.is_some();
        if let Some(outbox) = config.outboxes.iter().filter(says).find(|outbox| outbox.upkeep.mark_failed.is_none()) {
            let cause = format!(
                "{}: {} gives events up, and nothing says what to set on their rows of {}",
                told(&setting::ON_ERROR),
                setting::ON_ERROR.key,
                outbox.source
            );
            return Err(Error::new(Kind::Config, cause)
                .remedy("set outbox.mark_failed, such as status = 'FAILED', last_error = :error"));
        }
        Ok(())
    }
}
