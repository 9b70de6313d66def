//! One connection to Postgres, from the first look to the first byte.
//!
//! The order is load-bearing: look at the catalogs, own the slot by streaming from it, and only *then* read the stored
//! position. Read before, it could be that of a relay that still had the slot and went on.

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::time::Duration;

use crate::config::{Config, StoreKind, TableName};
use crate::error::{Error, Kind, Result};
use crate::event::BaseTypes;
use crate::ledger::trail::Published;
use crate::position::{Lsn, Position};
use crate::postgres::replication::WalSession;
use crate::postgres::sql::SqlSession;
use crate::sink::Producer;
use crate::source::catalog::{Catalog, Fingerprint};
use crate::source::control::{Control, ControlEnd, Watched};
use crate::source::preflight;
use crate::source::{Status, WalSource, WalStream};
use crate::state::check::{SlotNow, reconcile};
use crate::state::kafka::KafkaStore;
use crate::state::postgres::{PostgresStore, SlotStore};
use crate::state::{ServerIdentity, Store, Stored};

/// A session that streams from the slot, and belongs to what is stored.
pub(super) struct Session {
    /// The stream; nothing of it was read yet.
    pub(super) stream: WalStream,
    /// The plain SQL session beside it.
    pub(super) control: Control,
    /// Where the position is kept.
    pub(super) store: Option<AnyStore>,
    /// What the publication looked like before the first byte.
    pub(super) fingerprints: Vec<Fingerprint>,
    /// What is under the types of columns, as it was before the first byte.
    pub(super) base_types: BaseTypes,
    /// Which outbox a table is, by its OID.
    pub(super) table_oids: HashMap<u32, usize>,
    /// A table has lost a column: what to stop with once everything up to here was taken in.
    pub(super) vanished: Option<(Lsn, Error)>,
    /// What goes with every stored position.
    identity: Stored,
}

/// The configured [`Store`].
pub(super) enum AnyStore {
    Kafka(KafkaStore),
    Postgres(PostgresStore),
    Slot(SlotStore),
}

impl AnyStore {
    async fn load(&mut self) -> Result<Option<Stored>> {
        match self {
            AnyStore::Kafka(store) => store.load().await,
            AnyStore::Postgres(store) => store.load().await,
            AnyStore::Slot(store) => store.load().await,
        }
    }

    pub(super) async fn store(&mut self, stored: &Stored) -> Result<()> {
        match self {
            AnyStore::Kafka(store) => store.store(stored).await,
            AnyStore::Postgres(store) => store.store(stored).await,
            AnyStore::Slot(store) => store.store(stored).await,
        }
    }
}

impl Session {
    /// Looks, connects, owns the slot, and finds out where to go on. `confirmed` is repeated to the server meanwhile.
    pub(super) async fn open(
        config: &Config,
        producer: Producer,
        confirmed: Lsn,
        warn: &mut (dyn FnMut(String) + Send),
    ) -> Result<Session> {
        let source = &config.source;
        let sql = SqlSession::connect(&source.database, &format!("walrelay/{}/control", source.slot)).await?;
        let facts = preflight::inspect(sql.client(), &source.slot, &source.publication, &config.outboxes).await?;
        let (warnings, vanished) =
            preflight::judge_backlog(&facts, &source.slot, &source.publication, &config.outboxes)?;
        warnings.iter().for_each(|warning| warn(warning.to_string()));
        if let Some(error) = &vanished {
            warn(format!("{error}; relaying what was written while it had it, then stopping"));
        }
        let watched = Watched {
            slot: source.slot.clone(),
            publication: source.publication.clone(),
            tables: config.outboxes.iter().filter_map(|outbox| outbox.source.table().cloned()).collect(),
        };
        let fingerprint = |(catalog, table): (&Catalog, &TableName)| catalog.fingerprint(&source.publication, table);
        let fingerprints: Vec<_> = facts.catalogs.iter().zip(&watched.tables).map(fingerprint).collect();
        let control = Control::start(sql, watched);
        let mut wal = WalSession::connect(&source.database, source).await?;
        let server = wal.identify_system().await?;
        let history = match server.timeline {
            1 => Vec::new(),
            timeline => wal.timeline_history(timeline).await?,
        };
        let mut stream = WalStream::start(wal, &source.publication, source.max_message_bytes).await?;

        let status = Status { received: confirmed, confirmed, reply_requested: false };
        let read = read_position(config, producer, &control);
        let (mut store, loaded) = hold(&mut stream, source.wal_sender_timeout / 3, status, &control, read).await?;
        // Of the time since the slot is ours: whoever had it before may have gone on while this one connected.
        let now = hold(&mut stream, source.wal_sender_timeout / 3, status, &control, control.wal_position()).await?;
        let confirmed_flush = now.slot.and_then(|slot| slot.confirmed_flush_lsn).unwrap_or_default();
        let identity = ServerIdentity { system_identifier: server.system_identifier, timeline: server.timeline };
        let base_types = facts.catalogs.iter().flat_map(|catalog| &catalog.base_types);
        let base_types = BaseTypes::new(base_types.map(|(oid, base)| (*oid, *base)).collect(), facts.wal_end);
        let of_tables = config.outboxes.iter().enumerate().filter(|(_, outbox)| outbox.source.table().is_some());
        let table_oids = of_tables.zip(&fingerprints).filter_map(|((number, _), now)| Some((now.table_oid()?, number)));
        let table_oids = table_oids.collect();
        let slot = SlotNow {
            name: source.slot.to_string(),
            confirmed_flush,
            publication_oid: facts.publication().map(|publication| publication.oid).unwrap_or_default(),
            table_oids: sorted(fingerprints.iter().filter_map(Fingerprint::table_oid)),
            membership_oids: sorted(fingerprints.iter().flat_map(Fingerprint::membership_oids)),
            message_prefixes: sorted(config.outboxes.iter().filter_map(|outbox| outbox.source.prefix().cloned())),
        };
        let start = reconcile(loaded.as_ref(), &identity, &slot, now.wal_end, &history, config.state.adopt_slot)?;
        start.notes.into_iter().for_each(warn);
        let identity = Stored {
            server: identity,
            slot: slot.name,
            position: start.position,
            publication_oid: slot.publication_oid,
            table_oids: slot.table_oids,
            membership_oids: slot.membership_oids,
            message_prefixes: slot.message_prefixes,
            published: start.published,
            catch_up: None,
        };
        if loaded.as_ref() != Some(&identity) {
            // What follows must not be confirmed against a record of something else.
            let write = store.store(&identity);
            hold(&mut stream, source.wal_sender_timeout / 3, status, &control, write).await?;
        }
        let vanished = vanished.map(|error| (now.wal_end, error));
        Ok(Session { stream, control, store: Some(store), fingerprints, base_types, table_oids, vanished, identity })
    }

    /// The server and timeline that answered.
    pub(super) fn server(&self) -> &ServerIdentity {
        &self.identity.server
    }

    /// Where delivery goes on, and what the store holds.
    pub(super) fn start_position(&self) -> Position {
        self.identity.position
    }

    /// What is known of the tables where delivery goes on.
    pub(super) fn published(&self) -> Option<Published> {
        self.identity.published.clone()
    }

    /// What to store for `position`, at which `published` is known of the tables.
    pub(super) fn stored_at(&self, position: Position, published: Option<Published>) -> Stored {
        Stored { position, published, ..self.identity.clone() }
    }
}

/// Opens the store and reads it; while Kafka cannot be reached, for as long as it takes.
async fn read_position(config: &Config, producer: Producer, control: &Control) -> Result<(AnyStore, Option<Stored>)> {
    let mut told = false;
    loop {
        let read = async {
            let mut store = match config.state.store {
                StoreKind::Kafka => {
                    AnyStore::Kafka(KafkaStore::open(&config.kafka, &config.state, producer.clone()).await?)
                }
                StoreKind::Postgres => {
                    AnyStore::Postgres(PostgresStore::open(control.clone(), config.state.key.as_str()).await?)
                }
                StoreKind::Slot => AnyStore::Slot(SlotStore),
            };
            let loaded = store.load().await?;
            Ok::<_, Error>((store, loaded))
        };
        match read.await {
            Err(error) if error.kind() == Kind::KafkaUnreachable => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(%error, "the stored position cannot be read yet; holding the slot until it can");
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            other => return other,
        }
    }
}

/// Drives `work` to its end while the server is told every `every` that we are here (P5). Nothing is read.
async fn hold<T>(
    stream: &mut WalStream,
    every: Duration,
    status: Status,
    control: &Control,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::pin!(work);
    let mut tick = tokio::time::interval(every);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            end = control.closed() => return Err(ended(end)),
            _ = tick.tick() => {
                stream.queue_status(status);
                stream.flush_output().await?;
            }
        }
    }
}

fn sorted<T: Ord>(all: impl Iterator<Item = T>) -> Vec<T> {
    all.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The SQL session ended before the stream began.
fn ended(end: ControlEnd) -> Error {
    match end {
        ControlEnd::ServerShuttingDown => Error::new(Kind::PostgresUnreachable, "Postgres is shutting down"),
        ControlEnd::Lost(error) => error,
    }
}
