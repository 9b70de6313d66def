//! The opening of a session: from the first look at Postgres to the slot, or to the lease on the
//! table.
//!
//! The order matters. First the slot, owned by streaming from it, or the lease on the table: it
//! decides which relay may be at work. Then the producer, which with exactly-once fences that of
//! the relay before and aborts its transaction. *Then* the stored position, which no other relay
//! can change any more. A position that was read before could be too old: duplicates.
//!
//! With exactly-once the committed position is exact. The tails of topics say nothing beyond it:
//! they have records of aborted transactions, and to skip events because of those would lose them.

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::Client;

use crate::config::{Config, Mode, SourceConfig, StoreKind};
use crate::poll::{Reader, all_table_facts, missing_indexes};
use crate::postgres::fault;
use crate::postgres::quote::quote_ident;
use crate::postgres::replication::WalSession;
use crate::postgres::sql::SqlSession;
use crate::relay::recovery::{fits, rules, table_start};
use crate::relay::store::{AnyStore, Known, once_reachable, read_position};
use crate::relay::stream_reader::StreamReader;
use crate::sink::{AnySink, BusSink as _, SinkHandle, Transactional};
use crate::source::control::{Control, WalPosition, timeline};
use crate::source::lease::{self, Hold};
use crate::source::preflight::{self, Facts, Slot, Warning};
use crate::source::watch::{
    Fingerprint, Look, altered_and_unread, compare, looks_as_before, notices,
};
use crate::source::{Status, WalStream};
use crate::upkeep::parked::none_left_behind;
use crate::upkeep::{DatabaseIdentity, Marker, owners};
use walrelay_core::config::{OnLoss, OutboxConfig};
use walrelay_core::error::{Error, Kind, NextCommand, Result};
use walrelay_core::event::BaseTypes;
use walrelay_core::failpoint;
use walrelay_core::ledger::trail::Published;
use walrelay_core::parked::ParkedRef;
use walrelay_core::position::{Lsn, Position, ServerIdentity, TimelineSwitch};
use walrelay_core::recovery::{TableStart, TableTask};
use walrelay_core::sessions::TableReason;
use walrelay_core::start::{Found, SlotNow, reconcile, stored_now};
use walrelay_core::stored::{Outboxes, Stored};
use walrelay_core::stream_record::StreamRecord;

/// A session that streams from the slot, and belongs to what is stored.
pub(super) struct Session {
    pub(super) stream: StreamReader,
    pub(super) control: Control,
    /// The publication before the first byte.
    pub(super) fingerprints: Vec<Fingerprint>,
    /// The base types of domains, as they were before the first byte.
    pub(super) base_types: BaseTypes,
    pub(super) table_oids: HashMap<u32, usize>,
    /// A table has lost a column: what to stop with once everything up to here was taken in.
    pub(super) vanished: Option<(Lsn, Error)>,
    /// Marks or deletes rows that were acked, where that is configured.
    pub(super) marker: Option<Arc<Marker>>,
    /// Whether the table could stand in for the slot.
    pub(super) may_give_up: bool,
    pub(super) walsender_pid: i32,
    pub(super) start: Start,
}

/// The result of a look at server and slot.
pub(super) enum Opened {
    Stream(Box<Session>),
    /// The table has to be read first, or instead.
    Table(TableReason),
}

impl Session {
    /// Looks, connects, owns the slot, and finds out where to continue. Without a producer the
    /// session gets one of its own.
    pub(super) async fn open(
        config: &Config,
        producer: Option<SinkHandle>,
        known: &Known,
        warn: &mut (dyn FnMut(String) + Send),
    ) -> Result<Opened> {
        let source = &config.source;
        let sql = connect(config).await?;
        let facts = preflight::inspect(sql.client(), source, &config.outboxes).await?;
        if let Some(why) = table_instead(config, &facts)? {
            return Ok(Opened::Table(why));
        }
        let vanished = judge_stream(sql.client(), config, &facts, warn).await?;
        share_lease(sql.client(), source, warn).await?;
        let fingerprints = fingerprints(config, &facts);
        let database = DatabaseIdentity::of(sql.client()).await?;
        let control = Control::start(sql, config);
        let marker = Marker::of(config, &database).await?;
        let mut wal = WalSession::connect(&source.database, source).await?;
        let (server, history) = identify(&mut wal).await?;
        let walsender_pid = wal.backend_pid().await?;
        let mut stream = match WalStream::start(wal, source).await {
            // It was there a moment ago. The next look finds out what has become of it.
            Err(error)
                if error.kind() == Kind::SlotUnusable && source.on_loss == OnLoss::Recover =>
            {
                return Ok(Opened::Table(TableReason::Gap));
            }
            started => started?,
        };

        let owned = Owned {
            config,
            facts: &facts,
            server,
            history,
            control: &control,
            marker: marker.as_ref(),
        };
        let start = owned.find_start(producer, known, warn);
        let Some(start) =
            keep_alive(&mut stream, source.wal_sender_timeout / 3, &control, start).await?
        else {
            return Ok(Opened::Table(TableReason::Gap));
        };
        let session = Session {
            stream: StreamReader::new(stream),
            control,
            table_oids: facts.table_oids(&config.outboxes),
            fingerprints,
            base_types: BaseTypes::new(facts.base_types.clone(), facts.wal_end),
            vanished: vanished.map(|error| (start.wal_end, error)),
            marker: marker.map(Arc::new),
            may_give_up: source.gives_up_over_budget() && start.had_whole_table,
            walsender_pid,
            start,
        };
        Ok(Opened::Stream(Box::new(session)))
    }

    /// Rows of this outbox's table do not stay in it: that is logged, and stored with each
    /// position.
    pub(super) fn stream_only(&mut self, of: &OutboxConfig) {
        let table = of
            .source
            .table()
            .map(ToString::to_string)
            .unwrap_or_default();
        tracing::warn!(event = "rows_deleted_early", slot = %self.start.record.stored.slot, table,
            "rows are deleted right after they are written: if the slot is lost, events that were \
             not relayed are lost with it");
        let known = std::mem::take(&mut self.start.record.stored.stream_only);
        self.start.record.stored.stream_only = sorted(known.into_iter().chain(self.table_oid(of)));
    }

    /// Rows of this outbox's table do stay in it.
    pub(super) fn rows_stay(&mut self, of: &OutboxConfig) {
        let oid = self.table_oid(of);
        self.start
            .record
            .stored
            .stream_only
            .retain(|known| Some(*known) != oid);
    }

    /// Judges a look at the catalogs; `knows_published`, where it is known which rows of the tables
    /// are published. Says whether the table is to be read, because the publication was altered.
    /// Errors: the outbox is not what it was, or the publication was altered and the table cannot
    /// be read.
    pub(super) fn judge_look(
        &mut self,
        look: &Look,
        config: &Config,
        knows_published: bool,
    ) -> Result<bool> {
        let slot = &config.source.slot;
        let mut looks_same = true;
        for (before, now) in self.fingerprints.iter_mut().zip(&look.now) {
            compare(before, now)?;
            looks_same &= looks_as_before(before, now);
            for notice in notices(before, now) {
                tracing::warn!(event = "table_altered", %slot, "{notice}");
            }
        }
        // One of several memberships may have gone: the rows were published all the while.
        let record = &mut self.start.record;
        record.stored.outboxes.membership_oids = memberships(&look.now);
        if record.reads_table() || !look.is_altered(record.publication_version()) {
            return Ok(false);
        }
        publication_altered(record, look, looks_same, config, knows_published)
    }

    fn table_oid(&self, of: &OutboxConfig) -> Option<u32> {
        let table = of.source.table()?;
        self.fingerprints
            .iter()
            .find(|now| now.is_of(table))?
            .table_oid()
    }
}

/// Has the table read for rows that are missing from the stream, and says whether it is. Where it
/// cannot be read, only a change that looks like none is a reason to stop.
fn publication_altered(
    record: &mut StreamRecord,
    look: &Look,
    looks_same: bool,
    config: &Config,
    knows_published: bool,
) -> Result<bool> {
    let why = rules(config)
        .why_unread(&record.stored, knows_published)
        .map(str::to_owned)
        .or_else(|| look.unreadable.as_ref().map(ToString::to_string));
    let slot = &config.source.slot;
    let publication = &config.source.publication;
    let version = look.publication_version().map(str::to_owned);
    match (why, look.now.first(), version.zip(look.next_xid)) {
        (Some(why), Some(now), _) if looks_same => Err(altered_and_unread(now, why)),
        (Some(why), _, Some((version, _))) => {
            let verify = NextCommand::new("verify");
            tracing::warn!(event = "publication_altered", %slot, publication, why,
                "the publication was altered: if inserts were not published in between, rows of \
                 that time are missing from the stream; `{verify}` names them");
            record.accept(version);
            Ok(false)
        }
        (None, _, Some((version, next_xid))) => {
            let status = NextCommand::new("status");
            tracing::warn!(event = "publication_altered", %slot, publication, next_xid,
                "the publication was altered: rows of that time may be missing from the stream; \
                 reading from the table what was not published, once the transactions that are \
                 open now have ended; `{status}` names the oldest one");
            record.altered(version, next_xid);
            Ok(true)
        }
        (_, _, None) => Ok(false),
    }
}

/// A slot that this relay owns, because it streams from it.
struct Owned<'a> {
    config: &'a Config,
    facts: &'a Facts,
    server: ServerIdentity,
    /// The timelines of the server up to this one.
    history: Vec<TimelineSwitch>,
    control: &'a Control,
    marker: Option<&'a Marker>,
}

pub(super) struct Start {
    pub(super) store: Option<AnyStore>,
    /// This session's own producer, where it has one.
    pub(super) sink: Option<AnySink>,
    /// What is stored with each position; its own is that of the start.
    pub(super) record: StreamRecord,
    /// The end of the log when the slot was ours.
    pub(super) wal_end: Lsn,
    pub(super) waiting: Vec<ParkedRef>,
    /// Whether no table was known from which rows vanish right after they are written.
    had_whole_table: bool,
}

impl Owned<'_> {
    /// Fences other producers, reads the position, and finds out where to continue; none where the
    /// table has to be read first.
    async fn find_start(
        self,
        producer: Option<SinkHandle>,
        known: &Known,
        warn: &mut (dyn FnMut(String) + Send),
    ) -> Result<Option<Start>> {
        let Owned {
            config,
            facts,
            server,
            history,
            control,
            marker,
        } = self;
        failpoint::reached("owned");
        let (producer, sink) =
            producer_of_session(config, producer, &server.system_identifier).await?;
        let cluster_id = producer.cluster_id().await?;
        let (mut store, loaded) = read_position(config, producer, control, known, &server).await?;
        // Read again now that the slot is ours: its previous relay may have continued while this
        // one connected.
        let now = control.wal_position().await?;
        let slot = SlotNow {
            cluster_id,
            ..slot_now(config, facts, confirmed_flush(now.slot.as_ref()))
        };
        let found = Found {
            stored: loaded.as_ref(),
            server: &server,
            slot: &slot,
            wal_end: now.wal_end,
            history: &history,
        };
        // A slot that was dropped ended our stream. The next look judges what is stored.
        let is_gone = now.slot.is_none() && config.source.on_loss == OnLoss::Recover;
        if is_gone || rules(config).needs_table(found) {
            return Ok(None);
        }
        let start = reconcile(found, config.state.adopt_slot)?;
        start.notes.into_iter().for_each(warn);
        let mut identity = Stored {
            position: start.position,
            published: start
                .published
                .or_else(|| published_before_slot(&now, start.position)),
            catch_up: None,
            ..stored_now(found)
        };
        if config.state.adopt_slot {
            identity.outboxes.publication_version = publication_version(facts);
        }
        known.stored.send_replace(Some(identity.clone()));
        if known.left.lock().progress.is_some() || loaded.as_ref() != Some(&identity) {
            // Later LSNs must not be confirmed while the store has another identity.
            store.store(&identity).await?;
        }
        let waiting = waiting_events(config, control, marker).await?;
        Ok(Some(Start {
            store: Some(store),
            sink,
            record: StreamRecord::new(identity),
            wal_end: now.wal_end,
            waiting,
            had_whole_table: loaded.is_none_or(|stored| stored.stream_only.is_empty()),
        }))
    }
}

/// The parked events of the slot that is ours by now.
/// Errors: the configuration leaves parked events behind.
async fn waiting_events(
    config: &Config,
    control: &Control,
    marker: Option<&Marker>,
) -> Result<Vec<ParkedRef>> {
    // Before the slot was ours, another relay could still park events.
    let of = config.clone();
    control
        .ask(async move |session| Ok(none_left_behind(session.client(), &of).await))
        .await??;
    match marker {
        Some(marker) => marker.waiting().await,
        None => Ok(Vec::new()),
    }
}

/// The lease on the table: its holder reads the table alone, and knows what is stored and the state
/// of the slot.
pub(super) struct Lease {
    /// The lease ends with this session.
    pub(super) control: Control,
    /// The database of that session.
    pub(super) database: DatabaseIdentity,
    pub(super) store: AnyStore,
    pub(super) start: TableStart,
    pub(super) notified: Arc<Notify>,
    pub(super) facts: Facts,
    /// A producer that came with the lease, where it is not to outlive it.
    pub(super) sink: Option<AnySink>,
}

impl Lease {
    /// Takes the lease, and finds out what is to be done.
    /// Errors: [`Kind::SlotActive`] where another relay has the lease or the slot, or there is
    /// nothing to be done by now: both heal. Those of [`table_start`] and the sessions.
    pub(super) async fn take(
        config: &Config,
        producer: Option<SinkHandle>,
        why: &TableReason,
        known: &Known,
        warn: &mut (dyn FnMut(String) + Send),
    ) -> Result<Lease> {
        let sql = hold_alone(config).await?;
        listen(sql.client(), config).await?;
        let facts = preflight::inspect(sql.client(), &config.source, &config.outboxes).await?;
        tell_owners(sql.client(), config, warn).await?;
        if matches!(why, TableReason::Poll(_)) {
            tell_missing_indexes(sql.client(), config, warn).await;
        }
        let notified = sql.notified();
        let database = DatabaseIdentity::of(sql.client()).await?;
        let control = Control::start(sql, config);
        let (server, history) = identify_by_any(config, &facts, control.timeline(), why).await?;
        failpoint::reached("leased");
        let (producer, sink) =
            producer_of_session(config, producer, &server.system_identifier).await?;
        let cluster_id = producer.cluster_id().await?;
        let (store, loaded) = read_position(config, producer, &control, known, &server).await?;
        // Read again after the position: while this process stood still, another relay may have
        // had the lease. That ended this session, and the next one finds out what is to be done.
        let facts = Facts {
            wal_end: control.wal_position().await?.wal_end,
            ..facts
        };
        let slot = slot_now(config, &facts, confirmed_flush(facts.slot.as_ref()));
        let taken = control
            .take_pair(slot.outboxes.membership_oids.clone())
            .await?;
        let slot = SlotNow {
            cluster_id,
            is_being_altered: taken.may_differ_from(&slot.outboxes.publication_version),
            ..slot
        };
        let found = Found {
            stored: loaded.as_ref(),
            server: &server,
            slot: &slot,
            wal_end: facts.wal_end,
            history: &history,
        };
        let mut start = table_start(config, &facts, why, found, warn)?;
        start.notes.drain(..).for_each(warn);
        Ok(Lease {
            control,
            database,
            store,
            start,
            notified,
            facts,
            sink,
        })
    }
}

/// A session with the lease on the table.
/// Errors: [`Kind::SlotActive`] where another relay has it, or the slot.
async fn hold_alone(config: &Config) -> Result<SqlSession> {
    let source = &config.source;
    let sql = connect(config).await?;
    let timeout = source.wal_sender_timeout;
    if lease::hold(sql.client(), &source.slot, Hold::Alone, timeout).await? {
        return Ok(sql);
    }
    let cause = format!(
        "another relay of slot {} is at work; standing by",
        source.slot
    );
    Err(Error::new(Kind::SlotActive, cause))
}

/// Takes the lease that the relays of a slot share, unless a stranger has it.
/// Errors: [`Kind::SlotActive`] where another relay reads the table.
async fn share_lease(
    client: &Client,
    source: &SourceConfig,
    warn: &mut (dyn FnMut(String) + Send),
) -> Result<()> {
    let timeout = source.wal_sender_timeout;
    if lease::hold(client, &source.slot, Hold::Shared, timeout).await?
        || is_intruded(client, source, warn).await?
    {
        return Ok(());
    }
    let cause = format!(
        "another relay of slot {} is reading the table; standing by",
        source.slot
    );
    Err(Error::new(Kind::SlotActive, cause))
}

/// Listens for the notifications of new rows.
async fn listen(client: &Client, config: &Config) -> Result<()> {
    for channel in config
        .outboxes
        .iter()
        .filter_map(|outbox| outbox.upkeep.notify.as_deref())
    {
        let listen = format!("listen {}", quote_ident(channel)?);
        let listening = client.batch_execute(&listen).await;
        listening.map_err(|error| fault::query("listening for new rows", &error))?;
    }
    Ok(())
}

/// The checks before a slot is streamed. Gives the error to stop with behind what the slot retains,
/// where a table has lost a column.
async fn judge_stream(
    client: &Client,
    config: &Config,
    facts: &Facts,
    warn: &mut (dyn FnMut(String) + Send),
) -> Result<Option<Error>> {
    let source = &config.source;
    let (warnings, vanished) =
        preflight::judge_backlog(facts, &source.slot, &source.publication, &config.outboxes)?;
    warnings
        .iter()
        .for_each(|warning| warn(warning.to_string()));
    if let Some(error) = &vanished {
        warn(format!(
            "{error}; relaying the events from before that, then stopping"
        ));
    }
    if source.gives_up_over_budget() || has_pending(config) {
        judge_polling(config, warn).await?;
    }
    tell_missing_indexes(client, config, warn).await;
    none_left_behind(client, config).await?;
    tell_owners(client, config, warn).await?;
    Ok(vanished)
}

/// Connects the SQL session that lasts as long as the work. Its name says what is promised.
async fn connect(config: &Config) -> Result<SqlSession> {
    let promised = if config.delivery.transactions().is_some() {
        "exactly-once"
    } else {
        "control"
    };
    SqlSession::connect(
        &config.source.database,
        &format!("walrelay/{}/{promised}", config.source.slot),
    )
    .await
}

/// Whether no relay has the lease, but a stranger. The slot itself then keeps other relays off:
/// none can read the table.
async fn is_intruded(
    client: &Client,
    source: &SourceConfig,
    warn: &mut (dyn FnMut(String) + Send),
) -> Result<bool> {
    let intruder = lease::holder(client, &source.slot)
        .await?
        .and_then(|holder| holder.intruder());
    let is_intruded = intruder.is_some();
    intruder.into_iter().for_each(warn);
    Ok(is_intruded)
}

async fn identify(wal: &mut WalSession) -> Result<(ServerIdentity, Vec<TimelineSwitch>)> {
    let server = wal.identify_system().await?;
    let history = wal.timeline_history(server.timeline).await?;
    Ok((
        ServerIdentity {
            system_identifier: server.system_identifier,
            timeline: server.timeline,
        },
        history,
    ))
}

/// Which server it is, and its timelines. Without the right to replicate, from what SQL tells.
async fn identify_by_any(
    config: &Config,
    facts: &Facts,
    timeline: impl Future<Output = Result<u32>>,
    why: &TableReason,
) -> Result<(ServerIdentity, Vec<TimelineSwitch>)> {
    if !matches!(why, TableReason::Poll(_))
        || facts.server.may_replicate && facts.server.wal_level == "logical"
    {
        let asked = async {
            let mut wal = WalSession::connect(&config.source.database, &config.source).await?;
            identify(&mut wal).await
        };
        match asked.await {
            // A pooler, or no sender left: a poller needs none.
            Err(error) if matches!(why, TableReason::Poll(_)) => {
                tracing::debug!(%error, "no replication connection")
            }
            asked => return asked,
        }
    }
    let timeline = timeline.await?;
    let system_identifier = facts.system_identifier.clone().unwrap_or_default();
    Ok((
        ServerIdentity {
            system_identifier,
            timeline,
        },
        Vec::new(),
    ))
}

/// The producer that outlives sessions, as it was `given`, or one of this session's own, which has
/// fenced all before it. Call only with slot or lease. Waits for the bus as [`once_reachable`]
/// does.
async fn producer_of_session(
    config: &Config,
    given: Option<SinkHandle>,
    system_identifier: &str,
) -> Result<(SinkHandle, Option<AnySink>)> {
    if let Some(producer) = given {
        return Ok((producer, None));
    }
    let slot = &config.source.slot;
    let transactions = config.delivery.transactions();
    let transactions =
        transactions.ok_or_else(|| Error::new(Kind::Bug, "a session without a producer"))?;
    let id = transactions.transactional_id(system_identifier, slot.as_str());
    let of = Transactional {
        id,
        timeout: transactions.timeout,
    };
    let tell = |error: &Error| {
        tracing::warn!(event = "transactions_awaited", %slot, %error,
            "transactions of the bus are not available yet; holding the slot for two minutes at most");
    };
    let sink = once_reachable(|| AnySink::transactional(config, &of), tell).await?;
    tracing::debug!(%slot, id = of.id, "older producers are fenced");
    Ok((sink.handle(), Some(sink)))
}

/// Zero where there is no slot, or it has no position yet.
fn confirmed_flush(slot: Option<&Slot>) -> Lsn {
    slot.and_then(|slot| slot.confirmed_flush_lsn)
        .unwrap_or_default()
}

/// Without the cluster of the bus, which only a client of it knows.
pub(crate) fn slot_now(config: &Config, facts: &Facts, confirmed_flush: Lsn) -> SlotNow {
    let fingerprints = fingerprints(config, facts);
    let bus = config.sink.kind.bus();
    SlotNow {
        name: config.source.slot.to_string(),
        confirmed_flush,
        outboxes: Outboxes {
            publication_oid: facts
                .publication()
                .map(|publication| publication.oid)
                .unwrap_or_default(),
            publication_version: publication_version(facts),
            table_oids: sorted(fingerprints.iter().filter_map(Fingerprint::table_oid)),
            membership_oids: memberships(&fingerprints),
            message_prefixes: sorted(
                config
                    .outboxes
                    .iter()
                    .filter_map(|outbox| outbox.source.prefix().cloned()),
            ),
        },
        is_being_altered: false,
        cluster_id: None,
        bus: bus.name,
        bus_address: bus.address,
    }
}

/// The version of the publication as it is now.
pub(super) fn publication_version(facts: &Facts) -> String {
    facts
        .publication()
        .map(|publication| publication.row_version.clone())
        .unwrap_or_default()
}

fn fingerprints(config: &Config, facts: &Facts) -> Vec<Fingerprint> {
    let tables = config
        .outboxes
        .iter()
        .filter_map(|outbox| outbox.source.table());
    let publication = &config.source.publication;
    facts
        .catalogs
        .iter()
        .zip(tables)
        .map(|(catalog, table)| Fingerprint::of(catalog, publication, table))
        .collect()
}

/// OIDs of the rows that say the tables are in the publication, sorted.
pub(super) fn memberships(fingerprints: &[Fingerprint]) -> Vec<u32> {
    sorted(fingerprints.iter().flat_map(Fingerprint::membership_oids))
}

fn sorted<T: Ord>(all: impl Iterator<Item = T>) -> Vec<T> {
    all.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The published rows before the slot delivered anything.
fn published_before_slot(now: &WalPosition, position: Position) -> Option<Published> {
    let oldest = now.slot.as_ref()?.catalog_xmin.as_ref()?.parse().ok()?;
    Some(Published::from_slot(
        oldest,
        now.snapshot.clone()?,
        position.end_lsn,
    ))
}

pub(crate) fn polls_because(source: &SourceConfig, facts: &Facts) -> Option<String> {
    match source.mode {
        Mode::Slot => None,
        Mode::Poll => Some("slot.mode is poll".to_owned()),
        Mode::Auto => match preflight::judge_server(&facts.server) {
            // A standby has no table to be written to, either.
            Err(error) if error.kind() != Kind::PostgresUnreachable => Some(error.to_string()),
            _ => facts
                .publication()
                .is_none()
                .then(|| format!("there is no publication {}", source.publication)),
        },
    }
}

/// Why the table has to be read first, or instead, as far as server and slot tell.
fn table_instead(config: &Config, facts: &Facts) -> Result<Option<TableReason>> {
    if let Some(why) = polls_because(&config.source, facts) {
        return Ok(Some(TableReason::Poll(why)));
    }
    if needs_slot(facts) {
        preflight::judge_server(&facts.server)?;
        return Ok(Some(TableReason::Gap));
    }
    Ok(None)
}

/// Whether the slot is missing, or is ours and cannot be streamed.
fn needs_slot(facts: &Facts) -> bool {
    // One that is being made has no position yet.
    let needs_making = |slot: &Slot| {
        slot.is_ours(&facts.server.database)
            && (slot.lost().is_some() || slot.confirmed_flush_lsn.is_none())
    };
    facts.slot.as_ref().is_none_or(needs_making)
}

/// Whether a relay makes the slot, unless what is stored forbids it: [`start_from`].
pub(crate) fn makes_slot(config: &Config, facts: &Facts) -> bool {
    needs_slot(facts) && facts.publication().is_some() && config.state.store != StoreKind::Slot
}

/// The notes of a relay that starts now on slot and stored position. Changes nothing. Load the
/// position after `facts` were read: a relay that works has stored it before it confirms.
pub(crate) async fn start_from(
    config: &Config,
    client: &Client,
    facts: &Facts,
    loaded: Option<&Stored>,
    cluster_id: Option<String>,
) -> Result<Vec<Warning>> {
    let source = &config.source;
    let why = polls_because(source, facts).map_or(TableReason::Gap, TableReason::Poll);
    let timeline = async { Ok::<_, Error>(timeline(client).await?) };
    let (server, history) = identify_by_any(config, facts, timeline, &why).await?;
    let facts = &Facts {
        wal_end: preflight::wal_end(client, &source.slot).await?,
        ..facts.clone()
    };
    let slot = &SlotNow {
        cluster_id,
        ..slot_now(config, facts, confirmed_flush(facts.slot.as_ref()))
    };
    let found = Found {
        stored: loaded,
        server: &server,
        slot,
        wal_end: facts.wal_end,
        history: &history,
    };
    if why == TableReason::Gap && !needs_slot(facts) && !rules(config).needs_table(found) {
        let start = reconcile(found, config.state.adopt_slot)?;
        return Ok(start.notes.into_iter().map(Warning::note).collect());
    }
    // The survey of the server has told its warnings.
    let start = table_start(config, facts, &why, found, &mut |_| {})?;
    Ok(vec![match start.task {
        TableTask::Poll(_) => return Ok(Vec::new()),
        TableTask::MakeSlot(plan) => {
            let text = format!(
                "{}: the relay makes the slot, and first reads rows of the table",
                plan.cause
            );
            let remedy =
                Some("nothing: a relay that runs does that, else `walrelay run`".to_owned());
            Warning {
                is_note: loaded.is_none(),
                remedy,
                text,
            }
        }
        TableTask::GoOn | TableTask::Again(_) => Warning::note(
            "the relay continues to read rows of the table, which was interrupted".to_owned(),
        ),
    }])
}

/// Warns where code of others would run in the relay's sessions.
async fn tell_owners(
    client: &Client,
    config: &Config,
    warn: &mut (dyn FnMut(String) + Send),
) -> Result<()> {
    for risk in owners::risks(client, config).await? {
        let fix = risk.what_to_do().unwrap_or_default();
        warn(format!("{risk}: {fix}"));
    }
    Ok(())
}

fn has_pending(config: &Config) -> bool {
    config
        .outboxes
        .iter()
        .any(|outbox| outbox.upkeep.pending.is_some())
}

/// Warns where the tables could not be polled, or are locked.
/// Errors: they could not be polled, and the slot is to be dropped over its limit.
async fn judge_polling(config: &Config, warn: &mut (dyn FnMut(String) + Send)) -> Result<()> {
    let source = &config.source;
    let reader = Reader::connect(
        &source.database,
        &format!("walrelay/{}/reader", source.slot),
    )
    .await?;
    let of_tables = config
        .outboxes
        .iter()
        .filter(|outbox| outbox.source.table().is_some());
    let tables = match all_table_facts(reader.client(), &config.outboxes).await {
        // A change of the table holds its lock, and its commit can wait for this relay.
        Err(error)
            if error.kind() == Kind::PostgresUnreachable
                && !reader.client().is_closed()
                && !source.gives_up_over_budget() =>
        {
            warn(error.to_string());
            return Ok(());
        }
        tables => tables?,
    };
    for (facts, outbox) in tables.into_iter().zip(of_tables) {
        let fit = fits(&facts, outbox, &TableTask::Poll(String::new()), config);
        match fit {
            Err(error) if source.gives_up_over_budget() => return Err(error),
            Err(error) => warn(error.to_string()),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Warns where searches for pending rows read the whole table. Other checks tell why that cannot be
/// found out.
async fn tell_missing_indexes(
    client: &Client,
    config: &Config,
    warn: &mut (dyn FnMut(String) + Send),
) {
    if !has_pending(config) {
        return;
    }
    match missing_indexes(client, &config.outboxes).await {
        Ok(missing) => missing
            .into_iter()
            .for_each(|missing| warn(format!("{}: {}", missing.text, missing.remedy))),
        Err(error) => tracing::debug!(%error, "cannot check whether indexes serve outbox.pending"),
    }
}

/// Drives `work` to its end, and sends a status update every `every` (P5). Nothing is read.
async fn keep_alive<T>(
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
            end = control.closed() => return Err(end.error().clone()),
            _ = tick.tick() => {
                // Nothing is confirmed before it is known where delivery goes on.
                stream.queue_status(Status {
                    received: Lsn::ZERO,
                    confirmed: Lsn::ZERO,
                    reply_requested: false,
                });
                stream.flush_output().await?;
            }
        }
    }
}
