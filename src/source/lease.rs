//! Who may publish, and who does while another waits: an advisory lock of the slot's name, held by the control session.
//!
//! While the slot streams, the slot itself is the lock, and whoever streams holds this one shared: several may, and one
//! gets the slot. Whoever reads the table holds it alone, so that table and slot never publish at once. It goes with the
//! session, whatever becomes of the process
//! (<https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS>).

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::config::SlotName;
use crate::error::Result;
use crate::postgres::query::{QUERY_TIMEOUT, bounded, one_json, one_text};

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

/// Takes the lease for as long as the session lives. False: another session holds a lease that excludes this one.
///
/// From here on the server ends the session where it is silent for longer than `silence`. Whoever holds it says
/// something three times as often, and does nothing more once it stood still for longer than is [`bearable`].
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

/// How long the relay's process may stand still and still rely on its lease. The server ends the session after `silence`
/// without a message, and the last message is at most a third of `silence` older than the standstill.
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

const HOLDER: &str = include_str!("../../sql/source/holder.sql");

/// The session others wait for. `Display` names it for people.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Holder {
    /// Process id of the server's side.
    pub pid: i32,
    /// It streams from the slot; else it reads the table.
    pub streams: bool,
    /// `application_name`, where the role may see it.
    pub application: Option<String>,
    /// Its address, likewise; none for a local socket.
    pub client: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backend pid {}", self.pid)?;
        if let Some(application) = &self.application {
            write!(f, ", {application}")?;
        }
        if let Some(client) = &self.client {
            write!(f, " from {client}")?;
        }
        f.write_str(if self.streams { ", streams" } else { ", reads the table" })
    }
}

/// The session that keeps other relays of `slot` waiting, if there is one. One small query, bounded in time.
pub(crate) async fn holder(client: &Client, slot: &SlotName) -> Result<Option<Holder>> {
    let (class, key) = keys(slot);
    let params = [(&slot.as_str() as _, Type::TEXT), (&class as _, Type::INT4), (&key as _, Type::INT4)];
    Ok(one_json(client, "asking who has the slot", HOLDER, &params).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_fnv_1a() {
        assert_eq!(key("").cast_unsigned(), 0x811c_9dc5);
        assert_eq!(key("foobar").cast_unsigned(), 0xbf9c_f968);
    }

    #[test]
    fn a_holder_is_named_as_far_as_the_role_may_see_it() {
        let hidden = Holder { pid: 7, streams: true, application: None, client: None };
        assert_eq!(hidden.to_string(), "backend pid 7, streams");
        let known = Holder { application: Some("walrelay/a".into()), client: Some("10.0.0.1".into()), ..hidden };
        assert_eq!(known.to_string(), "backend pid 7, walrelay/a from 10.0.0.1, streams");
    }
}
