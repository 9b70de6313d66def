//! One connection to Postgres, from the first look to the first byte.
//!
//! The order is load-bearing: look at the catalogs, own the slot by streaming from it, fence other producers where events
//! are to arrive exactly once, and only *then* read the stored position. Read before, it could be that of a relay that still
//! had the slot and went on.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, Mode, OnLoss, OutboxConfig, StoreKind};
use crate::error::{Error, Kind, Result};
use crate::event::BaseTypes;
use crate::ledger::trail::Published;
use crate::position::{Lsn, Position};
use crate::postgres::replication::{TimelineSwitch, WalSession};
use crate::postgres::sql::SqlSession;
use crate::relay::fence;
use crate::relay::fitness;
use crate::relay::lease::TableReason;
use crate::relay::recovery::wants_backlog;
use crate::relay::retention::Known;
use crate::relay::store::{AnyStore, fingerprints, read_position, slot_now, sorted, watched};
use crate::relay::stream_reader::StreamReader;
use crate::sink::{AnySink, SinkHandle};
use crate::source::catalog::Fingerprint;
use crate::source::control::{Control, ControlEnd, WalPosition};
use crate::source::lease::{self, Hold};
use crate::source::preflight::{self, Facts, Slot};
use crate::source::{Status, WalStream};
use crate::state::check::{SlotNow, gap, reconcile};
use crate::state::{ServerIdentity, Stored};
use crate::upkeep::Marker;
use crate::upkeep::parked::Waiting;
use crate::upkeep::parked::{none_left_behind, still_none_left_behind};

/// A session that streams from the slot, and belongs to what is stored.
pub(super) struct Session {
    /// The stream; nothing of it was read yet.
    pub(super) stream: StreamReader,
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
    /// Marks or deletes rows that were acked, where that is configured.
    pub(super) marker: Option<Arc<Marker>>,
    /// Events that wait in the table of parked events.
    pub(super) waiting: Vec<Waiting>,
    /// Whether the table could stand in for the slot.
    pub(super) may_give_up: bool,
    /// The server's side of the stream.
    pub(super) walsender_pid: i32,
    /// The end of the log when the slot was ours.
    pub(super) wal_end: Lsn,
    /// This session's own producer, where it has one.
    pub(super) sink: Option<AnySink>,
    /// What goes with every stored position.
    identity: Stored,
}

/// What a look at server and slot came to.
pub(super) enum Opened {
    Stream(Box<Session>),
    /// The table has to be read first, or instead.
    Table(TableReason),
}

impl Session {
    /// Looks, connects, owns the slot, and finds out where to go on. Without a producer the session gets one of its own.
    /// `polls_instead` is why the table is to be polled for a while, although there may be a slot.
    pub(super) async fn open(
        config: &Config,
        producer: Option<SinkHandle>,
        polls_instead: Option<&str>,
        known: &Known,
        warn: &mut (dyn FnMut(String) + Send),
    ) -> Result<Opened> {
        let source = &config.source;
        let sql = SqlSession::connect(&source.database, &fence::session_name(config)).await?;
        let facts = preflight::inspect(sql.client(), &source.slot, &source.publication, &config.outboxes).await?;
        if let Some(why) = table_instead(config, &facts, polls_instead)? {
            return Ok(Opened::Table(why));
        }
        let vanished = judge(config, &facts, warn)?;
        if source.give_up_over_budget || config.outboxes.iter().any(|outbox| outbox.upkeep.pending.is_some()) {
            fitness::look(config, warn).await?;
        }
        none_left_behind(sql.client(), config).await?;
        if !lease::hold(sql.client(), &source.slot, Hold::Shared, source.wal_sender_timeout).await? {
            let cause = format!("another relay of slot {} is reading the table; standing by", source.slot);
            return Err(Error::new(Kind::SlotActive, cause));
        }
        let fingerprints = fingerprints(config, &facts);
        let control = Control::start(sql, watched(config)).await?;
        let marker = Marker::of(config).await?;
        let mut wal = WalSession::connect(&source.database, source).await?;
        let server = wal.identify_system().await?;
        let server = ServerIdentity { system_identifier: server.system_identifier, timeline: server.timeline };
        let walsender_pid = wal.backend_pid().await?;
        let history = match server.timeline {
            1 => Vec::new(),
            timeline => wal.timeline_history(timeline).await?,
        };
        let mut stream = match WalStream::start(wal, &source.publication, source.max_message_bytes).await {
            // It was there a moment ago. Whoever looks again finds out what has become of it.
            Err(error) if error.kind() == Kind::SlotUnusable && source.on_loss == OnLoss::Recover => {
                return Ok(Opened::Table(TableReason::Gap));
            }
            started => started?,
        };

        let owned = Owned { config, facts: &facts, server, history, control: &control, marker: marker.as_ref() };
        let found = owned.find_start(producer, known, warn);
        let Some(start) = hold(&mut stream, source.wal_sender_timeout / 3, &control, found).await? else {
            return Ok(Opened::Table(TableReason::Gap));
        };
        let base_types = facts.catalogs.iter().flat_map(|catalog| &catalog.base_types);
        let base_types = BaseTypes::new(base_types.map(|(oid, base)| (*oid, *base)).collect(), facts.wal_end);
        let of_tables = config.outboxes.iter().enumerate().filter(|(_, outbox)| outbox.source.table().is_some());
        let table_oids = of_tables.zip(&fingerprints).filter_map(|((number, _), now)| Some((now.table_oid()?, number)));
        let table_oids = table_oids.collect();
        let session = Session {
            stream: StreamReader::new(stream, source.wal_sender_timeout),
            control,
            store: Some(start.store),
            fingerprints,
            base_types,
            table_oids,
            vanished: vanished.map(|error| (start.wal_end, error)),
            marker: marker.map(Arc::new),
            waiting: start.waiting,
            may_give_up: source.give_up_over_budget && start.had_whole_table,
            walsender_pid,
            wal_end: start.wal_end,
            sink: start.sink,
            identity: start.identity,
        };
        Ok(Opened::Stream(Box::new(session)))
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

    /// Rows of this outbox's table do not stay in it: a person is told, and it is remembered.
    pub(super) fn stream_only(&mut self, of: &OutboxConfig) {
        let table = of.source.table().map(ToString::to_string).unwrap_or_default();
        tracing::warn!(
            slot = self.identity.slot,
            table,
            "rows are deleted right after they are written: if the slot is lost, events that were not relayed are lost with it"
        );
        let same = |now: &&Fingerprint| of.source.table().is_some_and(|table| now.is_of(table));
        self.identity.stream_only.extend(self.fingerprints.iter().find(same).and_then(Fingerprint::table_oid));
        self.identity.stream_only = sorted(std::mem::take(&mut self.identity.stream_only).into_iter());
    }

    /// Rows of this outbox's table do stay in it.
    pub(super) fn rows_stay(&mut self, of: &OutboxConfig) {
        let same = |now: &&Fingerprint| of.source.table().is_some_and(|table| now.is_of(table));
        let oid = self.fingerprints.iter().find(same).and_then(Fingerprint::table_oid);
        self.identity.stream_only.retain(|known| Some(*known) != oid);
    }

    /// What to store for `position`, at which `published` is known of the tables.
    pub(super) fn stored_at(&self, position: Position, published: Option<Published>) -> Stored {
        Stored { position, published, ..self.identity.clone() }
    }
}

/// A slot that is ours, because we stream from it.
struct Owned<'a> {
    config: &'a Config,
    facts: &'a Facts,
    server: ServerIdentity,
    /// The timelines of the server up to this one.
    history: Vec<TimelineSwitch>,
    control: &'a Control,
    marker: Option<&'a Marker>,
}

/// Where a stream goes on.
struct Start {
    store: AnyStore,
    sink: Option<AnySink>,
    identity: Stored,
    wal_end: Lsn,
    waiting: Vec<Waiting>,
    /// Whether no table was known from which rows vanish right after they are written.
    had_whole_table: bool,
}

impl Owned<'_> {
    /// Fences other producers, reads what is stored, and finds out where to go on; none where the table has to be read first.
    async fn find_start(
        self,
        producer: Option<SinkHandle>,
        known: &Known,
        warn: &mut (dyn FnMut(String) + Send),
    ) -> Result<Option<Start>> {
        let Owned { config, facts, server, history, control, marker } = self;
        let (producer, sink) = fence::own(config, producer, &server.system_identifier).await?;
        let (mut store, loaded) = read_position(config, producer, control, known).await?;
        // Of the time since the slot is ours: whoever had it before may have gone on while this one connected.
        let now = control.wal_position().await?;
        let confirmed_flush = now.slot.as_ref().and_then(|slot| slot.confirmed_flush_lsn).unwrap_or_default();
        let slot = slot_now(config, facts, confirmed_flush);
        if needs_table(config, loaded.as_ref(), &server, &slot, now.wal_end, &history) {
            return Ok(None);
        }
        let start = reconcile(loaded.as_ref(), &server, &slot, now.wal_end, &history, config.state.adopt_slot)?;
        start.notes.into_iter().for_each(warn);
        let identity = Stored {
            server,
            slot: slot.name,
            position: start.position,
            publication_oid: slot.publication_oid,
            table_oids: slot.table_oids,
            membership_oids: slot.membership_oids,
            message_prefixes: slot.message_prefixes,
            published: start.published.or_else(|| begins(&now, start.position)),
            stream_only: loaded.as_ref().map(|loaded| loaded.stream_only.clone()).unwrap_or_default(),
            catch_up: None,
        };
        known.send_replace(Some(identity.clone()));
        if loaded.as_ref() != Some(&identity) {
            // What follows must not be confirmed against a record of something else.
            store.store(&identity).await?;
        }
        // Before the slot was ours, another relay could still park events.
        let waiting = match marker {
            Some(marker) => {
                marker.none_left_behind(config).await?;
                marker.waiting().await?
            }
            None => still_none_left_behind(config).await.map(|()| Vec::new())?,
        };
        let had_whole_table = loaded.is_none_or(|stored| stored.stream_only.is_empty());
        Ok(Some(Start { store, sink, identity, wal_end: now.wal_end, waiting, had_whole_table }))
    }
}

/// What is known of the tables before anything of a slot was delivered.
fn begins(now: &WalPosition, position: Position) -> Option<Published> {
    let oldest = now.slot.as_ref()?.catalog_xmin.as_ref()?.parse().ok()?;
    Some(Published::from_slot(oldest, now.snapshot.clone()?, position.end_lsn))
}

/// Why the table has to be read first, or instead, as far as server and slot tell.
///
/// # Errors
/// The server cannot have a slot.
fn table_instead(config: &Config, facts: &Facts, instead: Option<&str>) -> Result<Option<TableReason>> {
    if let Some(why) = polls(config, facts, instead) {
        return Ok(Some(TableReason::Poll(why)));
    }
    // One that is being made has no position yet.
    let needs_making = |slot: &Slot| {
        slot.is_ours(&facts.server.database) && (slot.lost().is_some() || slot.confirmed_flush_lsn.is_none())
    };
    if facts.slot.as_ref().is_none_or(needs_making) {
        preflight::judge_server(&facts.server)?;
        return Ok(Some(TableReason::Gap));
    }
    Ok(None)
}

/// Warns of what is not as it should be, and gives what to stop with once everything written so far is relayed.
///
/// # Errors
/// The slot cannot be streamed.
fn judge(config: &Config, facts: &Facts, warn: &mut (dyn FnMut(String) + Send)) -> Result<Option<Error>> {
    let source = &config.source;
    let (warnings, vanished) = preflight::judge_backlog(facts, &source.slot, &source.publication, &config.outboxes)?;
    warnings.iter().for_each(|warning| warn(warning.to_string()));
    if let Some(error) = &vanished {
        warn(format!("{error}; relaying the events from before that, then stopping"));
    }
    Ok(vanished)
}

/// Why there is to be no slot, if there is not.
fn polls(config: &Config, facts: &Facts, instead: Option<&str>) -> Option<String> {
    if let Some(why) = instead {
        return Some(why.to_owned());
    }
    let source = &config.source;
    match source.mode {
        Mode::Slot => None,
        Mode::Poll => Some("slot.mode is poll".to_owned()),
        Mode::Auto => match preflight::judge_server(&facts.server) {
            // A standby has no table to be written to, either.
            Err(error) if error.kind() != Kind::PostgresUnreachable => Some(error.to_string()),
            _ => facts.publication().is_none().then(|| format!("there is no publication {}", source.publication)),
        },
    }
}

/// Whether events are in the table that the slot does not have.
fn needs_table(
    config: &Config,
    loaded: Option<&Stored>,
    now: &ServerIdentity,
    slot: &SlotNow,
    wal_end: Lsn,
    history: &[TimelineSwitch],
) -> bool {
    match loaded {
        None => wants_backlog(config) && config.state.store != StoreKind::Slot,
        Some(stored) if stored.catch_up.is_some() => true,
        // What is stored is given up, and the table is read instead.
        Some(_) if config.state.adopt_slot => config.source.backlog.is_some() && config.state.store != StoreKind::Slot,
        Some(stored) => {
            config.source.on_loss == OnLoss::Recover && matches!(gap(stored, now, slot, wal_end, history), Ok(Some(_)))
        }
    }
}

/// Drives `work` to its end while the server is told every `every` that we are here (P5). Nothing is read.
async fn hold<T>(
    stream: &mut WalStream,
    every: Duration,
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
                // Nothing is confirmed before it is known where delivery goes on.
                stream.queue_status(Status { received: Lsn::ZERO, confirmed: Lsn::ZERO, reply_requested: false });
                stream.flush_output().await?;
            }
        }
    }
}

/// The SQL session ended before the stream began.
fn ended(end: ControlEnd) -> Error {
    match end {
        ControlEnd::ServerShuttingDown => Error::new(Kind::PostgresUnreachable, "Postgres is shutting down"),
        ControlEnd::Lost(error) => error,
    }
}
