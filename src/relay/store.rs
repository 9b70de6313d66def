//! Where the position is kept, and what of server, slot and tables is stored with it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::{Config, OutboxConfig, StoreKind};
use crate::error::{Error, Kind, Result};
use crate::position::Lsn;
use crate::relay::checks;
use crate::relay::retention::Known;
use crate::sink::SinkHandle;
use crate::source::catalog::Fingerprint;
use crate::source::control::{Control, Pending, Watched};
use crate::source::preflight::Facts;
use crate::state::Stored;
use crate::state::check::SlotNow;
use crate::state::kafka::KafkaStore;
use crate::state::postgres::PostgresStore;

/// The configured store; what it has is known to [`super::retention`].
pub(super) struct AnyStore {
    kind: AnyKind,
    known: Known,
    /// How long the last store took.
    pub(super) took: Duration,
}

enum AnyKind {
    Kafka(KafkaStore),
    Postgres(PostgresStore),
    /// Keeps nothing: the slot's own position is all there is.
    ///
    /// After a crash of the server, and up to Postgres 16 after every restart, the slot is further back than what was
    /// confirmed, and the events in between are delivered again. Nothing tells a slot that was recreated or advanced.
    Slot,
}

impl AnyStore {
    /// What it has, as far as it counts.
    pub(super) fn known(&self) -> &Known {
        &self.known
    }

    async fn load(&mut self) -> Result<Option<Stored>> {
        match &mut self.kind {
            AnyKind::Kafka(store) => store.load().await,
            AnyKind::Postgres(store) => store.load().await,
            AnyKind::Slot => Ok(None),
        }
    }

    pub(super) async fn store(&mut self, stored: &Stored) -> Result<()> {
        let began = Instant::now();
        match &mut self.kind {
            AnyKind::Kafka(store) => store.store(stored).await,
            AnyKind::Postgres(store) => store.store(stored).await,
            AnyKind::Slot => Ok(()),
        }?;
        self.took = began.elapsed();
        // What is still to be caught up with is not published, whatever the snapshot says.
        self.known.send_replace(Some(stored.clone()).filter(|_| stored.catch_up.is_none()));
        Ok(())
    }
}

/// Opens the store and reads it; while Kafka cannot be reached, for as long as it takes.
pub(super) async fn read_position(
    config: &Config,
    sink: SinkHandle,
    control: &Control,
    known: &Known,
) -> Result<(AnyStore, Option<Stored>)> {
    let mut told = false;
    loop {
        let read = async {
            let kind = match config.state.store {
                StoreKind::Kafka => {
                    AnyKind::Kafka(KafkaStore::open(&config.kafka, &config.state, sink.clone().kafka()?).await?)
                }
                StoreKind::Postgres => {
                    AnyKind::Postgres(PostgresStore::open(control.clone(), config.state.key.as_str()).await?)
                }
                StoreKind::Slot => AnyKind::Slot,
            };
            let mut store = AnyStore { kind, known: Arc::clone(known), took: Duration::ZERO };
            let loaded = store.load().await?;
            Ok::<_, Error>((store, loaded))
        };
        match read.await {
            Err(error) if error.kind() == Kind::KafkaUnreachable => {
                if !std::mem::replace(&mut told, true) {
                    let fix = error.what_to_do();
                    tracing::warn!(%error, fix, "the stored position cannot be read yet; holding the slot until it can");
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            other => return other,
        }
    }
}

/// What slot and catalogs say now.
pub(super) fn slot_now(config: &Config, facts: &Facts, confirmed_flush: Lsn) -> SlotNow {
    let fingerprints = fingerprints(config, facts);
    SlotNow {
        name: config.source.slot.to_string(),
        confirmed_flush,
        publication_oid: facts.publication().map(|publication| publication.oid).unwrap_or_default(),
        table_oids: sorted(fingerprints.iter().filter_map(Fingerprint::table_oid)),
        membership_oids: sorted(fingerprints.iter().flat_map(Fingerprint::membership_oids)),
        message_prefixes: sorted(config.outboxes.iter().filter_map(|outbox| outbox.source.prefix().cloned())),
    }
}

pub(super) fn fingerprints(config: &Config, facts: &Facts) -> Vec<Fingerprint> {
    let tables = config.outboxes.iter().filter_map(|outbox| outbox.source.table());
    let publication = &config.source.publication;
    facts.catalogs.iter().zip(tables).map(|(catalog, table)| Fingerprint::of(catalog, publication, table)).collect()
}

/// What the control session looks at.
pub(super) fn watched(config: &Config) -> Watched {
    Watched {
        slot: config.source.slot.clone(),
        publication: config.source.publication.clone(),
        tables: config.outboxes.iter().filter_map(|outbox| outbox.source.table().cloned()).collect(),
        pending: config.outboxes.iter().enumerate().filter_map(pending).collect(),
        silence: config.source.wal_sender_timeout,
    }
}

fn pending((outbox, of): (usize, &OutboxConfig)) -> Option<Pending> {
    let (table, condition) = (of.source.table()?.clone(), of.upkeep.pending.clone()?);
    Some(Pending {
        outbox,
        table,
        key_columns: of.key_columns().cloned().collect(),
        condition,
        rows_max: checks::ROWS_MAX,
    })
}

pub(super) fn sorted<T: Ord>(all: impl Iterator<Item = T>) -> Vec<T> {
    all.collect::<BTreeSet<_>>().into_iter().collect()
}
