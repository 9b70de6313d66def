//! How often an event arrives: once at least, or exactly once.

use std::time::Duration;

use super::layers::Settings;
use super::setting::{self, Setting};
use super::{Config, OnError, OutboxConfig, StoreKind};
use crate::error::{Error, Kind, Result};

const WORDS: &str = "at-least-once or exactly-once";
/// The longest prefix: the rest of the id is a system identifier and a slot's name.
const PREFIX_BYTES_MAX: usize = 150;
/// How much of the time a transaction may be open it may be filled for. The rest is for acks and the commit.
const FILLING: u32 = 3;

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

impl Settings {
    /// How events are committed, where they are to arrive exactly once.
    ///
    /// # Errors
    /// As [`Settings::config`].
    pub fn transactions(&self) -> Result<Option<TransactionConfig>> {
        match self.word(&setting::GUARANTEE, WORDS)? {
            "at-least-once" => return Ok(None),
            "exactly-once" => {}
            _ => return Err(self.not_allowed(&setting::GUARANTEE, WORDS)),
        }
        let fits = |prefix: &str| (1..=PREFIX_BYTES_MAX).contains(&prefix.len()) && prefix.bytes().all(is_plain);
        let allowed = format!("1 to {PREFIX_BYTES_MAX} of a-z A-Z 0-9 . _ -");
        let transactions = TransactionConfig {
            id_prefix: self.checked(&setting::TRANSACTIONAL_ID_PREFIX, &allowed, fits)?,
            max_events: self.size(&setting::TRANSACTION_MAX_EVENTS)? as u64,
            interval: self.duration(&setting::TRANSACTION_INTERVAL)?,
            timeout: self.duration(&setting::TRANSACTION_TIMEOUT)?,
        };
        if transactions.interval > transactions.filling_max() {
            let allowed = format!("at most a third of {}", setting::TRANSACTION_TIMEOUT.key);
            return Err(self.not_allowed(&setting::TRANSACTION_INTERVAL, allowed));
        }
        Ok(Some(transactions))
    }

    /// Whether everything that has to be committed with the events can be.
    pub(super) fn fit_for_transactions(&self, config: &Config) -> Result<()> {
        let Some(transactions) = &config.delivery.transactions else { return Ok(()) };
        let told = |setting: &Setting| self.get(setting).map(|given| given.origin.to_string()).unwrap_or_default();
        let refuse = |what: &str, remedy: &str| {
            let cause = format!("{}: exactly-once {what}", told(&setting::GUARANTEE));
            Err(Error::new(Kind::Config, cause).remedy(remedy))
        };
        if config.state.store != StoreKind::Kafka {
            return refuse(
                "needs the position where the events are, so that both are committed together",
                "set state.store to kafka, or delivery.guarantee to at-least-once",
            );
        }
        if config.delivery.on_error == OnError::Park {
            return refuse(
                "commits in Kafka only, and events would be parked in Postgres beside it",
                "set delivery.on_error to stop, dead-letter or skip, or delivery.guarantee to at-least-once",
            );
        }
        let marks = |outbox: &&OutboxConfig| outbox.upkeep.writes_any() || outbox.upkeep.pending.is_some();
        if let Some(outbox) = config.outboxes.iter().find(marks) {
            return refuse(
                &format!("commits in Kafka only, and rows of {} would be marked or deleted beside it", outbox.source),
                "remove outbox.pending, mark, mark_failed, mark_waiting and delete (outbox.retention clears the table), or set \
                 delivery.guarantee to at-least-once",
            );
        }
        let socket_timeout =
            config.kafka.properties.get("socket.timeout.ms").map(|given| given.expose().trim().parse());
        if let Some(Ok(socket_timeout_ms)) = socket_timeout
            && Duration::from_millis(socket_timeout_ms) > transactions.timeout
        {
            return refuse(
                "needs answers within delivery.transaction_timeout, and socket.timeout.ms is longer",
                "remove socket.timeout.ms from the Kafka properties, or raise delivery.transaction_timeout",
            );
        }
        Ok(())
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file;
    use crate::config::layers::{Environment, Flags};

    const LEAST: &str = "database.url = 'postgres://u@h/d'\nslot.name = 'orders'\nkafka.brokers = 'b:9092'\n";

    fn config(lines: &str) -> Result<Config> {
        let file = file::parse("w.toml", &format!("{LEAST}{lines}")).unwrap();
        Settings::new(&Flags::new(), &Environment::new(), Some(&file)).config(false)
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
