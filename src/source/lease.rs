//! The lease, which decides which relay may publish: an advisory lock of the slot's name, held by
//! the control session.
//!
//! Relays that stream or wait for the slot share it: the slot itself admits one. A relay that reads
//! the table holds it alone, so that table and slot never publish at once. It ends with the session
//! (<https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS>).

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::postgres::query::{QUERY_TIMEOUT, bounded, one_json, one_text};
use crate::postgres::quote::quoted;
use walrelay_core::config::SlotName;
use walrelay_core::error::Result;
use walrelay_core::turn::AtWork;

/// `wrly`: distinguishes these locks from those of other programs.
const CLASS: i32 = 0x7772_6c79;

/// The time for attempts: a session that has just ended may still hold the lease, and a stand-by
/// holds it for moments.
const PATIENCE: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy)]
pub(crate) enum Hold {
    /// By relays that stream or wait for the slot.
    Shared,
    /// By the relay that reads the table.
    Alone,
}

/// Takes the lease until the end of the session. False where another session holds a lease that
/// excludes this one.
///
/// From then on the server ends the session after `silence` without a message. The holder sends
/// messages three times as often, and stops after a standstill that is longer than
/// [`walrelay_core::turn::bearable`].
pub(crate) async fn hold(
    client: &Client,
    slot: &SlotName,
    hold: Hold,
    silence: Duration,
) -> Result<bool> {
    let sql = match hold {
        Hold::Shared => "select pg_catalog.pg_try_advisory_lock_shared($1, $2)::text",
        Hold::Alone => "select pg_catalog.pg_try_advisory_lock($1, $2)::text",
    };
    let (class, key) = keys(slot);
    let until = Instant::now() + PATIENCE;
    let held = loop {
        let answer = one_text(
            client,
            "taking the lease",
            sql,
            &[(&class, Type::INT4), (&key, Type::INT4)],
        )
        .await?;
        let held = answer.as_deref() == Some("true");
        if held || Instant::now() >= until {
            break held;
        }
        tokio::time::sleep(AGAIN).await;
    };
    let limit = format!("set idle_session_timeout = {}", silence.as_millis());
    bounded(
        "bounding the silence of the session",
        QUERY_TIMEOUT,
        client.batch_execute(&limit),
    )
    .await?;
    Ok(held)
}

/// The two halves of the advisory lock's key.
pub(crate) fn keys(slot: &SlotName) -> (i32, i32) {
    (CLASS, key(slot.as_str()))
}

/// FNV-1a, the same on every machine. Two slots with one key exclude each other while one of them
/// reads its table.
fn key(name: &str) -> i32 {
    let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    name.bytes().fold(0x811c_9dc5, hash).cast_signed()
}

const HOLDER: &str = include_str!("../../sql/source/holder.sql");

/// The session that other relays wait for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Holder {
    pub pid: i32,
    /// It streams from the slot, or else reads the table.
    pub streams: bool,
    /// `application_name`, where the role may read it.
    pub application: Option<String>,
    /// The address, likewise; none for a local socket.
    pub client: Option<String>,
    /// Its role, where that has nothing to do with the relay's: no relay of this slot.
    pub stranger: Option<String>,
}

impl Holder {
    /// Who that is to the process whose last stream had this backend.
    pub(crate) fn at_work(&self, walsender_pid: Option<i32>) -> AtWork {
        if walsender_pid == Some(self.pid) {
            AtWork::Own
        } else if self.stranger.is_some() {
            AtWork::Stranger
        } else if self.streams {
            AtWork::Streams
        } else {
            AtWork::Reads
        }
    }

    /// The warning of a lease that is held by somebody else than a relay.
    pub(crate) fn intruder(&self) -> Option<String> {
        let role = self.stranger.as_ref()?;
        Some(format!(
            "role {} holds the advisory lock of the slot, and is no relay ({self}): a relay that \
             reads the table waits for \
             it, one that streams does not; to end it: select pg_terminate_backend({})",
            quoted(role),
            self.pid
        ))
    }
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
        f.write_str(match (&self.stranger, self.streams) {
            (Some(_), _) => ", holds the lease",
            (None, true) => ", streams",
            (None, false) => ", reads the table",
        })
    }
}

pub(crate) async fn holder(client: &Client, slot: &SlotName) -> Result<Option<Holder>> {
    let (class, key) = keys(slot);
    let params = [
        (&slot.as_str() as _, Type::TEXT),
        (&class as _, Type::INT4),
        (&key as _, Type::INT4),
    ];
    Ok(one_json(client, "asking who has the slot", HOLDER, &params).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_key_is_the_fnv_1a_hash_of_the_slot_name() {
        assert_eq!(key("").cast_unsigned(), 0x811c_9dc5);
        assert_eq!(key("foobar").cast_unsigned(), 0xbf9c_f968);
    }

    #[test]
    fn a_lease_holder_is_named_by_what_the_role_may_see() {
        let hidden = Holder {
            pid: 7,
            streams: true,
            application: None,
            client: None,
            stranger: None,
        };
        assert_eq!(hidden.to_string(), "backend pid 7, streams");
        assert_eq!(hidden.intruder(), None);
        let stranger = Holder {
            stranger: Some("x".into()),
            streams: false,
            ..hidden.clone()
        };
        assert!(
            stranger
                .intruder()
                .unwrap()
                .contains("(backend pid 7, holds the lease)")
        );
        let known = Holder {
            application: Some("walrelay/a".into()),
            client: Some("10.0.0.1".into()),
            ..hidden
        };
        assert_eq!(
            known.to_string(),
            "backend pid 7, walrelay/a from 10.0.0.1, streams"
        );
    }
}
