//! The producer of one session, where events are to arrive exactly once.
//!
//! The order is load-bearing. First the slot, or the lease on the table: it decides which relay may be at work. Then the
//! producer, which fences that of whoever was at work before and ends what it left open. Then the position, which nobody
//! else can change any more. Read before that, it could be followed by another, and its events would come twice.
//!
//! The committed position is exact. What stands at the ends of topics says nothing beyond it: records of a transaction that
//! was given up are among them, and skipping events because of those would lose them.

use std::time::Duration;

use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::sink::{AnySink, SinkHandle, Transactional};

/// How soon Kafka is asked again where it cannot be reached.
const RETRY: Duration = Duration::from_secs(1);

/// The producer that outlives sessions, as it was `given`, or one of this session's own, which has fenced all before it.
/// Call only with slot or lease. Waits for Kafka for as long as it takes.
///
/// # Errors
/// Those of [`AnySink::transactional`] that do not heal.
pub(super) async fn own(
    config: &Config,
    given: Option<SinkHandle>,
    system_identifier: &str,
) -> Result<(SinkHandle, Option<AnySink>)> {
    if let Some(producer) = given {
        return Ok((producer, None));
    }
    let slot = &config.source.slot;
    let transactions = config.delivery.transactions.as_ref();
    let transactions = transactions.ok_or_else(|| Error::new(Kind::Bug, "a session without a producer"))?;
    let id = transactions.transactional_id(system_identifier, slot.as_str());
    let of = Transactional { id, timeout: transactions.timeout };
    let mut told = false;
    loop {
        match AnySink::transactional(config, &of).await {
            Err(error) if error.kind() == Kind::KafkaUnreachable => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(%slot, %error, "Kafka transactions are not available yet; holding the slot until they are");
                }
                tokio::time::sleep(RETRY).await;
            }
            made => {
                let sink = made?;
                tracing::debug!(%slot, id = of.id, "older producers are fenced");
                return Ok((sink.handle(), Some(sink)));
            }
        }
    }
}

/// What the session is called that lasts as long as the work: it says what is promised.
pub(super) fn session_name(config: &Config) -> String {
    let what = if config.delivery.transactions.is_some() { "exactly-once" } else { "control" };
    format!("walrelay/{}/{what}", config.source.slot)
}
