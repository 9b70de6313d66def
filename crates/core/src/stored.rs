//! The stored value, which the next relay starts from.

use serde::{Deserialize, Serialize};

use crate::catch_up::CatchUp;
use crate::ledger::trail::Published;
use crate::position::{Position, ServerIdentity};
use crate::snapshot::Snapshot;

/// The stored value: a position, and the server, slot, tables and cluster of the bus that it
/// belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// The server whose log the position is in.
    #[serde(flatten)]
    pub server: ServerIdentity,
    /// The name of the slot.
    pub slot: String,
    /// The id of the process that stored it. One that takes over does so before it publishes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub relay: String,
    /// Everything up to here was delivered.
    pub position: Position,
    /// What the position is of.
    #[serde(flatten)]
    pub outboxes: Outboxes,
    /// The id of the cluster that has the events; none where its brokers did not tell.
    #[serde(rename = "kafka_cluster", skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// Which rows of the tables are published, by transaction: what counts once the slot is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<Published>,
    /// OIDs of tables whose rows were seen not to stay: nothing can be read from them once the slot
    /// is gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stream_only: Vec<u32>,
    /// Rows that have to be read from the table before the slot is streamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catch_up: Option<CatchUp>,
}

/// The outboxes of a slot and its publication, as the catalogs tell them from others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outboxes {
    /// OID of the publication, to notice one recreated while the relay was away.
    pub publication_oid: u32,
    /// The version of the publication (`xmin` of its row) up to which every row is in the stream;
    /// empty if not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub publication_version: String,
    /// OIDs of the outbox tables, likewise. Sorted.
    pub table_oids: Vec<u32>,
    /// OIDs of the rows that say the tables are in the publication: removing and adding it makes
    /// others. Sorted.
    #[serde(default)]
    pub membership_oids: Vec<u32>,
    /// Prefixes of the messages that are events: without them, an index in a transaction counts
    /// otherwise. Sorted.
    #[serde(default)]
    pub message_prefixes: Vec<String>,
}

impl Stored {
    /// The snapshot up to which a read of the tables was begun and not finished.
    pub fn begun_until(&self) -> Option<Snapshot> {
        self.catch_up.as_ref()?.until.clone()
    }

    /// Whether what the process `relay` knows counts on `server`, where this is stored: that
    /// process stored it there, and not before `kept`. A server or store that was restored has an
    /// older one. At the table it may have no position, and be newer.
    pub(crate) fn counts(
        &self,
        relay: &str,
        server: &ServerIdentity,
        kept: Option<&Stored>,
    ) -> bool {
        let pair = |of: &Stored| of.published.as_ref().map(|published| published.pair.lsn);
        let is_older = |kept: &Stored| {
            let is_behind = !self.position.is_at_or_after(&kept.position);
            is_behind && !self.is_polled() || pair(self) < pair(kept)
        };
        self.relay == relay && self.server == *server && !kept.is_some_and(is_older)
    }

    /// Whether a poller stored it: no slot may go on from there.
    pub fn is_polled(&self) -> bool {
        self.position == Position::default()
    }

    /// Whether rows of one of its tables were seen not to stay.
    pub(crate) fn rows_vanish(&self) -> bool {
        self.stream_only
            .iter()
            .any(|oid| self.outboxes.table_oids.contains(oid))
    }
}
