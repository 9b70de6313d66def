//! What becomes of events that cannot be delivered, and how the others are committed.

use std::time::Duration;

use super::model::{Delivery, OnError, ReadTails};

/// How much of the time a transaction may be open it may be filled for. The rest is for acks and the commit.
const FILLING: u32 = 3;

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

impl Default for DeliveryConfig {
    fn default() -> Self {
        DeliveryConfig::from(&Delivery::default())
    }
}

impl From<&Delivery> for DeliveryConfig {
    /// Delivery without transactions.
    fn from(model: &Delivery) -> Self {
        DeliveryConfig {
            on_error: model.on_error,
            dead_letter_topic: model.dead_letter_topic.clone(),
            retry: RetryConfig {
                attempts: model.retry_attempts.number(u32::MAX),
                base: model.retry_base.duration(),
                factor: model.retry_factor.number(u32::MAX),
                cap: model.retry_cap.duration(),
                jitter_percent: model.retry_jitter_percent.number(100),
            },
            reads_tails: model.read_tails == ReadTails::AtStart,
            transactions: None,
        }
    }
}

/// Where events and the position behind them are committed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionConfig {
    /// What the transactional id begins with. The server's system identifier and the slot follow.
    pub id_prefix: String,
    /// Events of one Kafka transaction.
    pub max_events: u64,
    /// How long events may wait for others that are committed with them.
    pub interval: Duration,
    /// How long the broker lets one be open: what readers wait for at most where a relay is gone and none takes over.
    pub timeout: Duration,
}

impl TransactionConfig {
    /// How long one may be filled at most, whatever comes.
    pub fn filling_max(&self) -> Duration {
        self.timeout / FILLING
    }

    /// The transactional id of the relays of this slot.
    pub fn transactional_id(&self, system_identifier: &str, slot: &str) -> String {
        format!("{}{system_identifier}-{slot}", self.id_prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::layers::Settings;
    use crate::error::{Error, Kind, Result};

    fn config(lines: &str) -> Result<Config> {
        Settings::with_least(lines)?.config(false)
    }

    fn refused(lines: &str) -> Error {
        config(lines).unwrap_err()
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
                (error.kind(), error.cause(), error.what_to_do().as_deref()),
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

    #[test]
    fn exactly_once_is_asked_for_and_says_who_it_is() {
        assert_eq!(config("").unwrap().delivery.transactions, None);
        let transactions = config("delivery.guarantee = 'exactly-once'").unwrap().delivery.transactions.unwrap();
        assert_eq!(transactions.transactional_id("7300", "orders"), "walrelay-7300-orders");
        assert_eq!(transactions.timeout, Duration::from_secs(15));
    }

    #[test]
    fn what_cannot_be_committed_together_is_refused_with_what_to_do() {
        for (line, what) in [
            ("delivery.guarantee = 'twice'", "delivery.guarantee cannot be"),
            (
                "delivery.guarantee = 'exactly-once'\nstate.store = 'postgres'",
                "needs the position where the events are",
            ),
            ("delivery.guarantee = 'exactly-once'\nsink.kind = 'null'", "is done by Kafka's transactions"),
            ("delivery.guarantee = 'exactly-once'\nstate.store = 'slot'", "needs the position where the events are"),
            (
                "delivery.guarantee = 'exactly-once'\ndelivery.on_error = 'park'",
                "would be parked in Postgres beside it",
            ),
            ("delivery.guarantee = 'exactly-once'\noutbox.delete = 'acked'", "would be marked or deleted beside it"),
            (
                "delivery.guarantee = 'exactly-once'\noutbox.mark = 'done = true'",
                "would be marked or deleted beside it",
            ),
            (
                "delivery.guarantee = 'exactly-once'\ndelivery.transaction_interval = '5s'\n\
                 delivery.transaction_timeout = '9s'",
                "delivery.transaction_interval cannot be",
            ),
            (
                "delivery.guarantee = 'exactly-once'\n[kafka.properties]\nsocket.timeout.ms = '60000'",
                "socket.timeout.ms is longer",
            ),
            (
                "delivery.guarantee = 'exactly-once'\ndelivery.transactional_id_prefix = 'a b'",
                "delivery.transactional_id_prefix cannot be",
            ),
        ] {
            let error = config(line).unwrap_err();
            assert!(error.kind() == Kind::Config && error.cause().contains(what), "{line}: {error}");
            assert!(error.what_to_do().is_some_and(|todo| !todo.is_empty()), "{line}: nothing to do");
        }
    }
}
