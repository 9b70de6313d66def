//! Who may publish: an advisory lock of the slot's name, held by the control session.
//!
//! While the slot streams, the slot itself is the lock, and whoever streams holds this one shared: several may, and one
//! gets the slot. Whoever reads the table holds it alone, so that table and slot never publish at once. It goes with the
//! session, whatever becomes of the process
//! (<https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS>).

use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::config::SlotName;
use crate::error::Result;
use crate::postgres::query::{QUERY_TIMEOUT, bounded, one_text};

/// Keeps our locks from those of others: `wrly`.
const CLASS: i32 = 0x7772_6c79;

/// How long it is tried: a session that has just ended may not have let go of it yet, and one that stands by holds it for
/// a moment now and then.
const PATIENCE: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(20);

/// How the lease is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// By everybody who streams, or waits for the slot.
    Shared,
    /// By the one who reads the table.
    Alone,
}

/// Takes the lease for as long as the session lives. False: somebody else has it the other way.
///
/// From here on the server ends the session where it is silent for longer than `silence`. Whoever holds it says
/// something three times as often, and does nothing more once it stood still for longer than is [`bearable`].
///
/// # Errors
/// Of the connection only.
pub(crate) async fn hold(client: &Client, slot: &SlotName, hold: Hold, silence: Duration) -> Result<bool> {
    let sql = match hold {
        Hold::Shared => "select pg_catalog.pg_try_advisory_lock_shared($1, $2)::text",
        Hold::Alone => "select pg_catalog.pg_try_advisory_lock($1, $2)::text",
    };
    let (class, key) = keys(slot);
    let until = Instant::now() + PATIENCE;
    let held = loop {
        let answer = one_text(client, "taking the lease", sql, &[(&class, Type::INT4), (&key, Type::INT4)]).await?;
        let held = answer.as_deref() == Some("true");
        if held || Instant::now() >= until {
            break held;
        }
        tokio::time::sleep(AGAIN).await;
    };
    let limit = format!("set idle_session_timeout = {}", silence.as_millis());
    bounded("bounding the silence of the session", QUERY_TIMEOUT, client.batch_execute(&limit)).await?;
    Ok(held)
}

/// How long a relay may stand still and know that nobody else has what it holds. The server, which gives it to another once
/// it has heard nothing for `silence`, has heard of the relay a third of that before it stood still, at the earliest.
pub(crate) fn bearable(silence: Duration) -> Duration {
    silence * 2 / 3
}

/// The two halves of the advisory lock that is the lease on the table of this slot's outboxes.
pub(crate) fn keys(slot: &SlotName) -> (i32, i32) {
    (CLASS, key(slot.as_str()))
}

/// FNV-1a: the same on every machine. Two slots with one key wait for each other where one of them reads its table.
fn key(name: &str) -> i32 {
    let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    name.bytes().fold(0x811c_9dc5, hash).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_fnv_1a() {
        assert_eq!(key("").cast_unsigned(), 0x811c_9dc5);
        assert_eq!(key("foobar").cast_unsigned(), 0xbf9c_f968);
    }
}
