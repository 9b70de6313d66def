//! What becomes of an event that cannot be delivered.

use std::time::Duration;

use super::layers::Settings;
use super::meaning::is_topic;
use super::setting;
use super::unit::exact_duration;
use super::{Config, OutboxConfig, StoreKind, TransactionConfig};
use crate::error::{Error, Kind, Result};

/// What becomes of events that cannot be delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryConfig {
    /// What follows where one cannot.
    pub on_error: OnError,
    /// The topic of dead letters.
    pub dead_letter_topic: String,
    /// How often, and when, what an operator can heal is tried again.
    pub retry: RetryConfig,
    /// Whether topics are read at start for what was published before a crash.
    pub reads_tails: bool,
    /// How events are committed, where they are to arrive exactly once.
    pub transactions: Option<TransactionConfig>,
}

/// When what an operator can heal is tried again, before it counts as for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryConfig {
    /// Tries after the first.
    pub attempts: u32,
    /// Wait before the first of them.
    pub base: Duration,
    /// By how much each wait is longer than the one before.
    pub factor: u32,
    /// No wait is longer.
    pub cap: Duration,
    /// By how much a wait may be shorter by chance, in percent of it.
    pub jitter_percent: u32,
}

impl RetryConfig {
    /// The same for an event that may be tried `max_attempts` times in all, if it says so; once it is tried whatever it says.
    #[must_use]
    pub fn within(self, max_attempts: Option<u32>) -> RetryConfig {
        RetryConfig { attempts: max_attempts.map_or(self.attempts, |max| max.saturating_sub(1)), ..self }
    }

    /// How long to wait after so many tries have failed, the first of all among them; none where that was the last.
    /// `chance` is below 1.
    pub fn wait(&self, failed: u32, chance: f64) -> Option<Duration> {
        if failed > self.attempts {
            return None;
        }
        let longer = self.factor.checked_pow(failed.saturating_sub(1)).unwrap_or(u32::MAX);
        let wait = self.base.checked_mul(longer).unwrap_or(self.cap).min(self.cap);
        Some(wait.mul_f64(1.0 - chance * f64::from(self.jitter_percent.min(100)) / 100.0))
    }
}

/// How often an event may be tried, by the text of its column; none where that is no whole number.
pub fn max_attempts(text: &[u8]) -> Option<u32> {
    let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some(u32::try_from(number.max(0)).unwrap_or(u32::MAX))
}

/// Whether no outbox sends all of its events to a topic of walrelay's own.
pub(super) fn fit_for_events(config: &Config) -> Result<()> {
    for outbox in &config.outboxes {
        let (topic, own) = (&outbox.route.topic, &outbox.route.reserved_topics);
        if topic.columns().next().is_none() && own.iter().any(|own| own == topic.source()) {
            let what = match topic.source() == config.state.topic {
                true => format!("for its position ({})", setting::STATE_TOPIC.key),
                false => format!("for dead letters ({})", setting::DEAD_LETTER_TOPIC.key),
            };
            let (outbox, topic) = (&outbox.source, topic.source());
            let cause = format!("events of {outbox} would go to topic {topic}, which is walrelay's own, {what}");
            return Err(Error::new(Kind::Config, cause).remedy("set route.topic to another one"));
        }
    }
    Ok(())
}

impl Default for DeliveryConfig {
    fn default() -> Self {
        let topic = setting::DEAD_LETTER_TOPIC.default.unwrap_or_default();
        // As the settings' own defaults.
        let second = Duration::from_secs(1);
        let retry = RetryConfig { attempts: 10, base: second, factor: 2, cap: 300 * second, jitter_percent: 20 };
        DeliveryConfig {
            on_error: OnError::Stop,
            dead_letter_topic: topic.to_owned(),
            retry,
            reads_tails: true,
            transactions: None,
        }
    }
}

/// What becomes of an event that cannot be delivered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnError {
    /// The relay stops before it.
    #[default]
    Stop,
    /// It and every later event of its aggregate wait in a table of walrelay's own, and the relay goes on with all others.
    Park,
    /// It goes to the topic of dead letters, and the relay goes on behind it.
    DeadLetter,
    /// It is given up, and the relay goes on behind it.
    Skip,
}

const WORDS: &str = "stop, park, dead-letter or skip";
const READ_TAILS_WORDS: &str = "at-start or never";

impl Settings {
    /// What becomes of events that cannot be delivered.
    ///
    /// # Errors
    /// As [`Settings::config`].
    pub fn delivery(&self) -> Result<DeliveryConfig> {
        let on_error = match self.word(&setting::ON_ERROR, WORDS)? {
            "stop" => OnError::Stop,
            "park" => OnError::Park,
            "dead-letter" => OnError::DeadLetter,
            "skip" => OnError::Skip,
            _ => return Err(self.not_allowed(&setting::ON_ERROR, WORDS)),
        };
        let dead_letter_topic = self.checked(&setting::DEAD_LETTER_TOPIC, "1 to 249 of a-z A-Z 0-9 . _ -", is_topic)?;
        let retry = RetryConfig {
            attempts: self.small(&setting::RETRY_ATTEMPTS)?,
            base: self.duration(&setting::RETRY_BASE)?,
            factor: self.small(&setting::RETRY_FACTOR)?,
            cap: self.duration(&setting::RETRY_CAP)?,
            jitter_percent: self.small(&setting::RETRY_JITTER)?,
        };
        if retry.base > retry.cap {
            let (base, cap) = (exact_duration(retry.base), exact_duration(retry.cap));
            let (key, of) = (setting::RETRY_BASE.key, setting::RETRY_CAP.key);
            let told = |setting| self.get(setting).map(|given| given.origin.to_string()).unwrap_or_default();
            let cause = format!(
                "{}: {key} is {base}, and {of}, the longest wait, is {cap} ({})",
                told(&setting::RETRY_BASE),
                told(&setting::RETRY_CAP)
            );
            return Err(Error::new(Kind::Config, cause).remedy(format!("set {key} to {cap} or less, or raise {of}")));
        }
        let reads_tails = match self.word(&setting::READ_TAILS, READ_TAILS_WORDS)? {
            "at-start" => true,
            "never" => false,
            _ => return Err(self.not_allowed(&setting::READ_TAILS, READ_TAILS_WORDS)),
        };
        Ok(DeliveryConfig { on_error, dead_letter_topic, retry, reads_tails, transactions: self.transactions()? })
    }

    /// Whether what is to become of events and of their rows goes together.
    pub(super) fn fit_to_give_up(&self, config: &Config) -> Result<()> {
        let DeliveryConfig { on_error, dead_letter_topic, .. } = &config.delivery;
        // What is parked is not done with: its row stays as it is.
        if matches!(on_error, OnError::Stop | OnError::Park) {
            return Ok(());
        }
        let told = |setting| self.get(setting).map(|given| given.origin.to_string()).unwrap_or_default();
        if config.state.store == StoreKind::Kafka && config.state.topic == *dead_letter_topic {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(lines: &str) -> Error {
        let least = "database.url = 'postgres://u@h/d'\nslot.name = 'orders'\nkafka.brokers = 'b:9092'\n";
        let file = crate::config::file::parse("w.toml", &format!("{least}{lines}")).unwrap();
        Settings::new(&Default::default(), &Default::default(), Some(&file)).config(false).unwrap_err()
    }

    #[test]
    fn waits_and_topics_that_contradict_each_other_are_refused_with_both() {
        for (lines, cause, remedy) in [
            (
                "delivery.retry_base = '10s'\ndelivery.retry_cap = '5s'",
                "w.toml:4: delivery.retry_base is 10s, and delivery.retry_cap, the longest wait, is 5s (w.toml:5)",
                "set delivery.retry_base to 5s or less, or raise delivery.retry_cap",
            ),
            (
                "route.topic = 'walrelay-dead-letters'",
                "events of public.outbox would go to topic walrelay-dead-letters, which is walrelay's own, for dead letters \
                 (delivery.dead_letter_topic)",
                "set route.topic to another one",
            ),
            (
                "state.store = 'postgres'\nstate.topic = 'all'\nroute.topic = 'all'",
                "events of public.outbox would go to topic all, which is walrelay's own, for its position (state.topic)",
                "set route.topic to another one",
            ),
            (
                "delivery.on_error = 'dead-letter'\ndelivery.dead_letter_topic = 'walrelay-state'",
                "topic walrelay-state is that of the position, and cannot have dead letters",
                "give delivery.dead_letter_topic another name",
            ),
        ] {
            let error = refused(lines);
            assert_eq!(
                (error.kind(), error.cause(), error.what_to_do()),
                (Kind::Config, cause, Some(remedy)),
                "{lines}"
            );
        }
    }

    #[test]
    fn headers_with_walrelays_own_names_are_refused() {
        for (lines, cause) in [
            ("[route.headers]\nWalRelay-replay = 'x'", "w.toml:5: route.headers has \"WalRelay-replay\""),
            ("route.id_header = 'walrelay-row-id'", "w.toml:4: route.id_header has \"walrelay-row-id\""),
            ("route.position_header = 'walrelay-settled'", "w.toml:4: route.position_header has \"walrelay-settled\""),
            ("[[outbox]]\ntable = 'a'\nroute.headers.walrelay-x = '1'", "w.toml:6: route.headers has \"walrelay-x\""),
        ] {
            let error = refused(lines);
            assert!(error.cause().starts_with(cause) && error.what_to_do().is_some(), "{lines}: {error}");
        }
    }

    #[test]
    fn a_row_says_how_often_it_is_tried_in_all_and_once_at_least() {
        let retry = DeliveryConfig::default().retry;
        for (text, tries) in [("3", 2), ("1", 0), ("0", 0), ("-7", 0), ("99999999999", u32::MAX - 1)] {
            assert_eq!(retry.within(max_attempts(text.as_bytes())).attempts, tries, "{text}");
        }
        for text in ["", "three", "2.5", "3 ", "99999999999999999999"] {
            assert_eq!(max_attempts(text.as_bytes()), None, "{text}");
        }
        assert_eq!(max_attempts(b"\xff"), None);
        assert_eq!(retry.within(None), retry);
    }
}
