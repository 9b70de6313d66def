//! `[delivery]`: how events are delivered, and what becomes of those that cannot be.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::unit::{Count, DAY_MS, HOUR_MS, Lasting, SECOND_MS, Within};

/// How events are delivered, and the reaction to events that cannot be delivered.
#[derive(Debug, Clone, PartialEq, Eq, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub struct DeliveryConfig {
    /// The reaction to an event that cannot be delivered. The relay stops: an operator decides what
    /// may be lost.
    pub on_error: OnError,
    /// Topic of dead letters. One for all relays of a cluster: a dead letter names its relay.
    #[default("walrelay-dead-letters")]
    pub dead_letter_topic: String,
    /// The retries after a fault that an operator can repair.
    #[serde(flatten)]
    pub retry: RetryConfig,
    /// Whether the relay reads the tails of topics at start. At start: it avoids nearly all
    /// duplicates after a crash.
    pub read_tails: ReadTails,
    /// How often an event is delivered. At least once: consumers need no transactions, and no event
    /// waits for a commit.
    pub guarantee: Guarantee,
    /// The transactions of the bus, which only delivery exactly once has:
    /// [`DeliveryConfig::transactions`].
    #[serde(flatten)]
    pub transaction: TransactionConfig,
}

impl DeliveryConfig {
    /// The transactions of the bus, for delivery exactly once.
    pub fn transactions(&self) -> Option<&TransactionConfig> {
        (self.guarantee == Guarantee::ExactlyOnce).then_some(&self.transaction)
    }
}

/// The retries before events are given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub struct RetryConfig {
    /// Attempts after the first. Ten take a quarter of an hour: enough for an operator to grant a
    /// right.
    #[default(10)]
    #[serde(rename = "retry_attempts", with = "Within::<Count, 0, 1_000_000>")]
    pub attempts: u32,
    /// The wait before the first retry. A second: an election often ends within it.
    #[default(Duration::from_secs(1))]
    #[serde(rename = "retry_base", with = "Lasting::<100, HOUR_MS>")]
    pub base: Duration,
    /// The factor from one wait to the next.
    #[default(2)]
    #[serde(rename = "retry_factor", with = "Within::<Count, 1, 10>")]
    pub factor: u32,
    /// The longest wait. Five minutes: an operator may have mended the fault.
    #[default(Duration::from_secs(300))]
    #[serde(rename = "retry_cap", with = "Lasting::<SECOND_MS, DAY_MS>")]
    pub cap: Duration,
    /// How much a wait is shortened at random, so that events that failed together are not retried
    /// together.
    #[default(20)]
    #[serde(rename = "retry_jitter_percent", with = "Within::<Count, 0, 100>")]
    pub jitter_percent: u32,
}

impl RetryConfig {
    /// The same for an event with `max_attempts`, which counts all attempts. The first attempt is
    /// always made.
    #[must_use]
    pub fn within(self, max_attempts: Option<u32>) -> RetryConfig {
        RetryConfig {
            attempts: max_attempts.map_or(self.attempts, |max| max.saturating_sub(1)),
            ..self
        }
    }

    /// The wait after `failed` attempts, which include the first; none after the last one. `chance`
    /// is below 1.
    pub fn wait(&self, failed: u32, chance: f64) -> Option<Duration> {
        if failed > self.attempts {
            return None;
        }
        let longer = self
            .factor
            .checked_pow(failed.saturating_sub(1))
            .unwrap_or(u32::MAX);
        let wait = self
            .base
            .checked_mul(longer)
            .unwrap_or(self.cap)
            .min(self.cap);
        Some(wait.mul_f64(1.0 - chance * f64::from(self.jitter_percent.min(100)) / 100.0))
    }
}

/// The greatest number of attempts of an event, from the text of its column; none if the text is
/// not an integer.
pub fn max_attempts(text: &[u8]) -> Option<u32> {
    let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some(u32::try_from(number.max(0)).unwrap_or(u32::MAX))
}

/// A transaction of the bus takes events for its timeout divided by this. The rest of the time is
/// for acks and the commit.
const FILLING: u32 = 3;

/// The transactions of the bus, which commit events together with the position after them.
#[derive(Debug, Clone, PartialEq, Eq, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub struct TransactionConfig {
    /// The beginning of the transactional id. The server's system identifier and the slot's name
    /// follow. `walrelay-`: the owner is visible in lists, and one ACL covers all relays.
    #[default("walrelay-")]
    #[serde(rename = "transactional_id_prefix")]
    pub id_prefix: String,
    /// Events per transaction of the bus. Ten thousand: more do not lower the cost of a commit per
    /// event noticeably.
    #[default(10_000)]
    #[serde(
        rename = "transaction_max_events",
        with = "Within::<Count, 1, 1_000_000>"
    )]
    pub max_events: u64,
    /// How long an event waits for others in its transaction. A tenth of a second: many events
    /// share the cost of a commit.
    #[default(Duration::from_millis(100))]
    #[serde(
        rename = "transaction_interval",
        with = "Lasting::<1, { 300 * SECOND_MS }>"
    )]
    pub interval: Duration,
    /// How long the broker keeps a transaction open. Fifteen seconds: longer than a broker's
    /// election. Consumers wait at most this long after the end of the last relay.
    #[default(Duration::from_secs(15))]
    #[serde(
        rename = "transaction_timeout",
        with = "Lasting::<{ 3 * SECOND_MS }, { 900 * SECOND_MS }>"
    )]
    pub timeout: Duration,
}

impl TransactionConfig {
    /// The longest time in which one transaction takes events.
    pub fn filling_max(&self) -> Duration {
        self.timeout / FILLING
    }

    /// The transactional id of the relays of this slot.
    pub fn transactional_id(&self, system_identifier: &str, slot: &str) -> String {
        format!("{}{system_identifier}-{slot}", self.id_prefix)
    }
}

/// When the relay reads the tails of topics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadTails {
    /// Before the first event is published.
    #[default]
    AtStart,
    /// Never: the relay publishes again what an earlier process may have published.
    Never,
}

choices! {
    /// The reaction to an event that cannot be delivered.
    pub enum OnError {
        /// Stop before the event
        #[default]
        Stop,
        /// Park the event and later ones of its aggregate, and continue
        Park,
        /// Write the event to the dead-letter topic, and continue
        DeadLetter,
        /// Give the event up with a line in the log, and continue
        Skip,
    }

    /// How often an event is delivered.
    pub enum Guarantee {
        /// Each event, and some twice after a crash
        #[default]
        AtLeastOnce,
        /// Each event once, in transactions of the bus, for consumers that read only committed
        /// records
        ExactlyOnce,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_max_attempts_of_a_row_include_the_first_and_are_at_least_one() {
        let retry = DeliveryConfig::default().retry;
        for (text, tries) in [
            ("3", 2),
            ("1", 0),
            ("0", 0),
            ("-7", 0),
            ("99999999999", u32::MAX - 1),
        ] {
            assert_eq!(
                retry.within(max_attempts(text.as_bytes())).attempts,
                tries,
                "{text}"
            );
        }
        for text in ["", "three", "2.5", "3 ", "99999999999999999999"] {
            assert_eq!(max_attempts(text.as_bytes()), None, "{text}");
        }
        assert_eq!(max_attempts(b"\xff"), None);
        assert_eq!(retry.within(None), retry);
    }
}
