//! Reads the events of a slot as a relay does, and consumes none: for `pending` and `tail`.
//!
//! The server sends the changes to a walsender session, as it sends them to a relay. A session on
//! the slot of a relay confirms nothing, so the slot stays where it is.
//! `pg_logical_slot_peek_binary_changes` needs the same rights and occupies the slot likewise, and
//! the server would store all changes before it returns the first.

use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::cli::config;
use crate::cli::output::note;
use crate::cli::setup::telling;
use crate::config::layers::Settings;
use crate::config::{Config, SourceConfig};
use crate::postgres::replication::{SystemIdentity, WalSession};
use crate::postgres::sql::SqlSession;
use crate::relay::{rules, slot_now};
use crate::source::preflight::{Facts, inspect, judge, judge_backlog};
use crate::source::{Status, WalMessage, WalStream, judge_notice};
use crate::state;
use walrelay_core::config::unit::human_bytes;
use walrelay_core::config::{OutboxConfig, SlotName};
use walrelay_core::error::{Error, Kind, NextCommand, Remedy, Result, both};
use walrelay_core::event::{Assembler, BaseTypes, Event, Step};
use walrelay_core::position::{Lsn, Position, ServerIdentity};
use walrelay_core::route::Router;
use walrelay_core::start::{Found, Start, reconcile};
use walrelay_core::stored::Stored;

/// The longest wait for the stored position: the operator may ask because the bus is down.
const STORED_TIMEOUT: Duration = Duration::from_secs(10);
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// How often it is looked whether a relay waits for the slot.
const WANTED_INTERVAL: Duration = Duration::from_millis(250);
/// Less WAL than this is read within a second or two, and nobody has to be told before.
const MUCH_WAL_BYTES: u64 = 32 << 20;

/// The slot, with a session on its server and the facts about both.
pub(super) struct Subject {
    pub(super) source: SourceConfig,
    pub(super) outboxes: Vec<OutboxConfig>,
    /// The configuration of the slot's relay. Its faults, such as missing brokers, hide only the
    /// stored position.
    pub(super) relay: Result<Config>,
    pub(super) sql: SqlSession,
    pub(super) facts: Facts,
}

impl Subject {
    pub(super) async fn look(settings: &Settings, command: &str) -> Result<Subject> {
        let relay = config::config(settings, false);
        let (mut source, outboxes) = match &relay {
            Ok(config) => (config.source.clone(), config.outboxes.clone()),
            Err(_) => both(settings.source(), settings.outboxes())?,
        };
        source.messages = outboxes
            .iter()
            .any(|outbox| outbox.source.table().is_none());
        let sql = SqlSession::connect(&source.database, &format!("walrelay {command}")).await?;
        let facts = inspect(sql.client(), &source, &outboxes).await?;
        Ok(Subject {
            source,
            outboxes,
            relay,
            sql,
            facts,
        })
    }

    async fn stored(&self, notes: &mut Vec<String>) -> Option<Stored> {
        let load = async { state::load(self.relay.as_ref().map_err(Clone::clone)?).await };
        let cause = match timeout(STORED_TIMEOUT, load).await {
            Ok(Ok(stored)) => return stored,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the bus does not answer".to_owned(),
        };
        notes.push(format!(
            "the stored position is not known ({cause}): events that are delivered and not \
             confirmed are included"
        ));
        None
    }

    /// The position at which a relay would continue. Without a stored one that fits, the slot's.
    async fn start(
        &self,
        stored: Option<&Stored>,
        wal: &mut WalSession,
        server: &SystemIdentity,
        notes: &mut Vec<String>,
    ) -> Result<Position> {
        let slot = self.facts.slot.as_ref();
        let confirmed = slot
            .and_then(|slot| slot.confirmed_flush_lsn)
            .unwrap_or_default();
        let (Some(stored), Ok(config)) = (stored, &self.relay) else {
            return Ok(Position::at(confirmed));
        };
        let found = Found {
            stored: Some(stored),
            server: &ServerIdentity {
                system_identifier: server.system_identifier.clone(),
                timeline: server.timeline,
            },
            slot: &slot_now(config, &self.facts, confirmed),
            wal_end: server.xlogpos,
            history: &wal.timeline_history(server.timeline).await?,
        };
        if rules(config).needs_table(found) {
            notes.push(
                "a relay first reads rows of the table, and these are not included".to_owned(),
            );
        }
        let start = reconcile(found, false).unwrap_or_else(|error| Start {
            position: Position::at(confirmed),
            published: None,
            notes: vec![format!(
                "the stored position does not fit, and everything in the slot is included: {error}"
            )],
        });
        notes.extend(start.notes);
        Ok(start.position)
    }
}

/// An outbox, and what makes the records of its events.
pub(super) struct Route {
    pub(super) outbox: OutboxConfig,
    pub(super) router: Router,
}

impl Route {
    pub(super) fn new(mut outbox: OutboxConfig) -> Result<Route> {
        if outbox.source.table().is_some() {
            let described = [
                &outbox.names.aggregatetype,
                &outbox.names.aggregateid,
                &outbox.names.event_type,
            ]
            .map(Clone::clone);
            // A table may lack columns that only the row key needs.
            outbox.name_rows_by(&described, None);
        }
        let router = Router::new(&outbox).map_err(|unknown| Error::new(Kind::Bug, unknown))?;
        Ok(Route { outbox, router })
    }
}

/// The value of a column; none where it is NULL, or the table lacks it.
pub(super) fn value<'e>(
    event: &'e Event<'_>,
    outbox: &OutboxConfig,
    column: &str,
) -> Option<&'e [u8]> {
    event.row.get(outbox.index_of(column)?)
}

/// Takes events, each with its outbox.
pub(super) type Take<'t> = &'t mut dyn FnMut(&mut Route, &Event<'_>) -> Result<()>;

/// What follows a read.
pub(super) enum Reading<T> {
    More,
    /// That was the last event.
    Over,
    Stopped(T),
}

/// A stream of the events of one slot. Nothing is consumed from the slot of a relay.
pub(super) struct Peek {
    stream: WalStream,
    assembler: Assembler,
    /// Announces the server's shutdown, which would wait for the stream.
    sql: Arc<SqlSession>,
    source: SourceConfig,
    routes: Vec<Route>,
    pub(super) start: Position,
    /// The events that commit before this LSN are read. Without it, the reading has no end.
    pub(super) until: Option<Lsn>,
}

impl Peek {
    /// Begins to read what the slot has now. With `notes`, without events that are delivered
    /// according to the stored position; adds what is not known of that. Errors:
    /// [`Kind::SlotActive`] while another session has the slot, and those with which a relay would
    /// end.
    pub(super) async fn at_slot(
        subject: Subject,
        mut notes: Option<&mut Vec<String>>,
    ) -> Result<Peek> {
        let source = &subject.source;
        let facts = &subject.facts;
        judge_backlog(facts, &source.slot, &source.publication, &subject.outboxes)?;
        let slot = facts.slot.as_ref();
        if slot.and_then(|slot| slot.active_pid).is_some() {
            return Err(in_use(&source.slot));
        }
        // Before the slot is occupied: the bus may take long to answer.
        let stored = match &mut notes {
            Some(notes) => subject.stored(notes).await,
            None => None,
        };
        let mut wal = WalSession::connect(&source.database, source).await?;
        let server = wal.identify_system().await?;
        let start = subject
            .start(
                stored.as_ref(),
                &mut wal,
                &server,
                notes.unwrap_or(&mut Vec::new()),
            )
            .await?;
        // The server decodes from there on, events or not.
        let restart = slot
            .and_then(|slot| slot.restart_lsn)
            .unwrap_or(server.xlogpos);
        let wal_bytes = server.xlogpos.bytes_since(restart);
        if wal_bytes >= MUCH_WAL_BYTES {
            note(format_args!(
                "the slot has {} of WAL to read, of all tables",
                human_bytes(wal_bytes)
            ));
        }
        Peek::begin(subject, wal, &server, start, Some(server.xlogpos)).await
    }

    /// Begins to read what commits from now on, through a slot that ends with this session.
    pub(super) async fn from_now(subject: Subject) -> Result<Peek> {
        let source = &subject.source;
        judge(
            &subject.facts.with_slot(),
            &source.slot,
            &source.publication,
            &subject.outboxes,
        )?;
        let mut wal = WalSession::connect(&source.database, source).await?;
        let server = wal.identify_system().await?;
        let pid = wal.backend_pid().await?;
        let creating = wal.create_temporary_slot();
        telling(subject.sql.client(), pid, creating, &mut String::new()).await?;
        Peek::begin(subject, wal, &server, Position::default(), None).await
    }

    async fn begin(
        subject: Subject,
        wal: WalSession,
        server: &SystemIdentity,
        start: Position,
        until: Option<Lsn>,
    ) -> Result<Peek> {
        let Subject {
            source,
            outboxes,
            sql,
            facts,
            ..
        } = subject;
        let started = WalStream::start(wal, &source).await;
        let mut stream = started.map_err(|error| {
            if error.kind() == Kind::SlotActive {
                in_use(&source.slot)
            } else {
                error
            }
        })?;
        stream.be_no_standby();
        let mut routes = outboxes
            .into_iter()
            .map(Route::new)
            .collect::<Result<Vec<_>>>()?;
        routes.iter_mut().for_each(|route| {
            route
                .router
                .set_origin(&server.system_identifier, server.timeline)
        });
        let outboxes: Vec<_> = routes.iter().map(|route| route.outbox.clone()).collect();
        let mut assembler = Assembler::new(&outboxes, start);
        // A type that is created meanwhile counts as no domain.
        let base_types = BaseTypes::new(facts.base_types.clone(), Lsn::new(u64::MAX));
        assembler.set_catalog(facts.table_oids(&outboxes), base_types);
        Ok(Peek {
            stream,
            assembler,
            sql: Arc::new(sql),
            source,
            routes,
            start,
            until,
        })
    }

    /// Waits for messages, and gives `take` their events. `false` after the last event. Safe to
    /// cancel. Errors: those of `take`, and those with which a session of a relay would end.
    pub(super) async fn read(&mut self, take: Take<'_>) -> Result<bool> {
        Ok(matches!(
            self.read_unless(pending::<()>(), take).await?,
            Reading::More
        ))
    }

    /// The same, until `stop` is done.
    pub(super) async fn read_unless<T>(
        &mut self,
        stop: impl Future<Output = T>,
        take: Take<'_>,
    ) -> Result<Reading<T>> {
        let waited = self.turn(true, stop).await;
        // Messages that arrived before the end of the connection count, and may name the reason.
        let is_over = self.take(take)?;
        waited.map(|stopped| match stopped {
            _ if is_over => Reading::Over,
            Some(stopped) => Reading::Stopped(stopped),
            None => Reading::More,
        })
    }

    /// Waits for a relay that stands by for the slot. Without a session that answers, for ever.
    pub(super) fn wanted(&self) -> impl Future<Output = ()> + use<> {
        const SQL: &str =
            "select 1 from pg_catalog.pg_stat_activity where application_name = $1 limit 1";
        let sql = Arc::clone(&self.sql);
        let name = format!("walrelay/{}/stand-by", self.source.slot);
        async move {
            loop {
                sleep(WANTED_INTERVAL).await;
                match sql
                    .row("looking for a relay that waits", SQL, &[&name])
                    .await
                {
                    Ok(None) => {}
                    Ok(Some(_)) => return,
                    // The stream says why.
                    Err(_) => pending::<()>().await,
                }
            }
        }
    }

    /// Drives `work`, such as a write to a slow reader, and sends status updates meanwhile.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> Result<T> {
        let mut work = std::pin::pin!(work);
        loop {
            if let Some(done) = self.turn(false, &mut work).await? {
                return Ok(done);
            }
        }
    }

    /// Waits until `work` is done, the socket is ready, or a status update is due, and queues that.
    async fn turn<T>(&mut self, reads: bool, work: impl Future<Output = T>) -> Result<Option<T>> {
        let now = Instant::now();
        let confirmed = self.confirmed();
        let look_at = self.stream.answer(now, confirmed, reads)?.unwrap_or(now);
        tokio::select! {
            biased;
            done = work => Ok(Some(done)),
            ended = self.sql.closed() => Err(ended.error().clone()),
            io = self.stream.ready_io(reads) => io.map(|_| None),
            () = sleep_until(look_at) => Ok(None),
        }
    }

    pub(super) async fn end(self) {
        let last = Status {
            received: self.confirmed(),
            confirmed: self.confirmed(),
            reply_requested: false,
        };
        // A server that does not answer frees the slot by itself, later.
        drop(self.stream.finish(last, Instant::now() + END_TIMEOUT).await);
    }

    /// The LSN that is confirmed: none to a relay's slot, the newest to the slot that ends with the
    /// session.
    fn confirmed(&self) -> Lsn {
        if self.until.is_some() {
            Lsn::ZERO
        } else {
            self.stream.received()
        }
    }

    /// Takes the messages that have arrived. `true` after the last event of the range.
    fn take(&mut self, take: Take<'_>) -> Result<bool> {
        let Peek {
            stream,
            assembler,
            source,
            routes,
            until,
            ..
        } = self;
        let is_end = |lsn: Lsn| until.is_some_and(|until| lsn >= until);
        while let Some(message) = stream.next(assembler.open_transaction())? {
            match message {
                WalMessage::Data {
                    wal_start, body, ..
                } => {
                    match assembler
                        .feed(body, wal_start)
                        .map_err(|error| error.into_error(&source.slot))?
                    {
                        Step::Begin {
                            commit_lsn: lsn, ..
                        }
                        | Step::Commit { end_lsn: lsn, .. }
                            if is_end(lsn) =>
                        {
                            return Ok(true);
                        }
                        Step::Event(event) => match routes.get_mut(event.outbox) {
                            Some(route) => take(route, &event)?,
                            None => {
                                return Err(Error::new(
                                    Kind::Bug,
                                    "an event of no configured outbox",
                                ));
                            }
                        },
                        Step::Nothing
                        | Step::Begin { .. }
                        | Step::Commit { .. }
                        | Step::Relation { .. }
                        | Step::OtherTable { .. } => {}
                    }
                }
                WalMessage::Keepalive { wal_end, .. } => {
                    if is_end(wal_end) {
                        return Ok(true);
                    }
                }
                WalMessage::Notice(notice) => judge_notice(&notice, source)?,
                WalMessage::ParameterStatus { .. } => {}
                WalMessage::CopyDone => {
                    let cause = format!("slot {}: the server ended the stream", source.slot);
                    return Err(Error::new(Kind::PostgresUnreachable, cause));
                }
            }
        }
        Ok(false)
    }
}

fn in_use(slot: &SlotName) -> Error {
    let cause =
        format!("slot {slot} is in use, and Postgres gives a slot to one session at a time");
    Error::new(Kind::SlotActive, cause).remedy(
        Remedy::from("`")
            .and(NextCommand::new("status").option("slot", slot))
            .and("` shows the lag of the relay; `")
            .and(NextCommand::new("tail").option("slot", slot).flag("follow"))
            .and("` prints what commits from now on, beside the relay; or stop the relay first"),
    )
}
