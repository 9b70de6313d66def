//! The checks before the first byte of the stream (P1, P8).
//!
//! [`inspect`] reads facts from the server. [`judge()`] decides by the facts alone, so that a table
//! of tests covers every fault.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;

use serde::Deserialize;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::config::SourceConfig;
use crate::postgres::query::{one_json, one_text};
use crate::postgres::quote::{altered, quoted};
use crate::source::catalog::{Catalog, Catalogs, Flags, Member, Publication, PublishedTable, Seen};
use crate::source::synchronous::Synchronous;
use walrelay_core::catalog::{no_column, no_table};
use walrelay_core::config::name::publish_whole;
use walrelay_core::config::{OutboxConfig, SlotName, TableName, tables_of};
use walrelay_core::error::{Error, Kind, NextCommand, Remedy, Result};
use walrelay_core::position::Lsn;
use walrelay_core::template::ColumnType;

/// The oldest supported major version.
pub(crate) const MAJOR_MIN: u32 = 14;
/// The first major version that copies slots to standbys.
pub(crate) const FAILOVER_MAJOR_MIN: u32 = 17;

const SERVER: &str = include_str!("../../sql/source/server.sql");
const SYSTEM: &str = include_str!("../../sql/source/system.sql");
/// The one query of the slot for all callers.
pub(super) const SLOT: &str = include_str!("../../sql/source/slot.sql");

/// Reads all that [`judge()`] needs from the catalogs, without a change and without a wait for a
/// lock.
///
/// Judges the version, because older servers refuse the other queries. One transaction a statement
/// finds a pooler. Errors: [`Kind::PostgresUnreachable`] (retry) and [`Kind::PostgresRefused`] of
/// the connection; [`Kind::PostgresUnfit`] for a server that is too old or behind a transaction
/// pooler. Times out by itself.
pub(crate) async fn inspect(
    client: &Client,
    source: &SourceConfig,
    outboxes: &[OutboxConfig],
) -> Result<Facts> {
    let server = server(client).await?;
    judge_version(&server)?;
    let system_identifier = system_identifier(client, server.may_read_control).await?;
    let found = slot_answer(client, &source.slot).await?;
    let tables: Vec<_> = tables_of(outboxes).map(|(_, name)| name).collect();
    let Catalogs {
        backend_pid,
        of_tables: catalogs,
        base_types,
        ..
    } = Catalogs::read(client, &source.publication, &tables, &Seen::default()).await?;
    if [found.backend_pid, backend_pid]
        .iter()
        .any(|pid| *pid != server.backend_pid)
    {
        return Err(pooled());
    }
    Ok(Facts {
        server,
        system_identifier,
        slot: found.slot,
        wal_end: found.wal_end.unwrap_or_default(),
        synchronous: found.synchronous,
        catalogs,
        base_types,
    })
}

/// The system identifier, where the role may read it.
pub(crate) async fn system_identifier(client: &Client, may_read: bool) -> Result<Option<String>> {
    if !may_read {
        return Ok(None);
    }
    Ok(one_text(client, "reading the system identifier", SYSTEM, &[]).await?)
}

/// The server, its settings and our role. Times out by itself.
pub(crate) async fn server(client: &Client) -> Result<Server> {
    Ok(one_json(client, "reading the server's settings", SERVER, &[]).await?)
}

/// The slot `name`, if there is one. Times out by itself.
pub(crate) async fn slot(client: &Client, name: &SlotName) -> Result<Option<Slot>> {
    Ok(slot_answer(client, name).await?.slot)
}

/// The end of the WAL. Times out by itself.
pub(crate) async fn wal_end(client: &Client, name: &SlotName) -> Result<Lsn> {
    Ok(slot_answer(client, name).await?.wal_end.unwrap_or_default())
}

async fn slot_answer(client: &Client, name: &SlotName) -> Result<SlotAnswer> {
    Ok(one_json(
        client,
        "reading the slot",
        SLOT,
        &[(&name.as_str(), Type::TEXT)],
    )
    .await?)
}

fn pooled() -> Error {
    Error::new(
        Kind::PostgresUnfit,
        "the connection goes through a pooler: its statements ran in \
                                     different sessions",
    )
    .remedy(
        "connect to Postgres itself, or to a pool in session mode: session settings do not \
                 survive the others",
    )
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    pub server: Server,
    /// Where the role may read it.
    pub system_identifier: Option<String>,
    pub slot: Option<Slot>,
    /// The end of the WAL before the catalogs were read.
    pub wal_end: Lsn,
    pub synchronous: Synchronous,
    /// Publication and table, one for each outbox table, in their order; without a table, one with
    /// the publication alone.
    pub catalogs: Vec<Catalog>,
    /// See [`Catalogs::base_types`].
    pub base_types: HashMap<u32, ColumnType>,
}

impl Facts {
    pub(crate) fn publication(&self) -> Option<&Publication> {
        self.catalogs.first()?.publication.as_ref()
    }

    /// Bytes of WAL that the slot retains.
    pub(crate) fn retained_bytes(&self) -> u64 {
        let restart = self.slot.as_ref().and_then(|slot| slot.restart_lsn);
        restart.map_or(0, |restart| self.wal_end.bytes_since(restart))
    }

    /// The outboxes by the OIDs of their tables, for an assembler.
    pub(crate) fn table_oids(&self, outboxes: &[OutboxConfig]) -> HashMap<u32, usize> {
        let tables = outboxes
            .iter()
            .enumerate()
            .filter(|(_, outbox)| outbox.source.table().is_some());
        let oid = |((number, _), catalog): ((usize, _), &Catalog)| {
            Some((catalog.table.as_ref()?.oid, number))
        };
        tables.zip(&self.catalogs).filter_map(oid).collect()
    }

    /// The outbox tables that a crash of the server empties.
    pub(crate) fn unlogged<'a>(
        &self,
        tables: impl Iterator<Item = &'a TableName>,
    ) -> impl Iterator<Item = &'a TableName> {
        let is_unlogged = |catalog: &Catalog| {
            catalog
                .table
                .as_ref()
                .is_some_and(|table| table.persistence == "u")
        };
        tables
            .zip(&self.catalogs)
            .filter(move |(_, catalog)| is_unlogged(catalog))
            .map(|(name, _)| name)
    }

    /// The same with a new slot.
    #[must_use]
    pub(crate) fn with_slot(&self) -> Facts {
        let slot = Slot {
            plugin: Some("pgoutput".to_owned()),
            slot_type: "logical".to_owned(),
            database: Some(self.server.database.clone()),
            confirmed_flush_lsn: Some(Lsn::ZERO),
            ..Slot::default()
        };
        Facts {
            slot: Some(slot),
            ..self.clone()
        }
    }

    /// The same after a `walrelay setup` that makes a missing slot and then a missing publication,
    /// none for an existing slot.
    #[must_use]
    pub(crate) fn as_set_up(&self, tables: &[&TableName]) -> Facts {
        if self.slot.is_some() {
            return self.clone();
        }
        let mut facts = self.with_slot();
        for (number, catalog) in facts.catalogs.iter_mut().enumerate() {
            if catalog.publication.is_none() {
                let flags = Flags {
                    insert: true,
                    via_root: true,
                    ..Flags::default()
                };
                catalog.publication = Some(Publication {
                    flags,
                    ..Publication::default()
                });
                let member = |table: &&TableName| Member {
                    relation: table.to_string(),
                    through: "table".to_owned(),
                    ..Member::default()
                };
                catalog.members = tables.get(number).map(member).into_iter().collect();
            }
        }
        facts
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Server {
    /// Identifies the session, to find a pooler.
    pub backend_pid: i32,
    /// `server_version_num`: 170011 is 17.11.
    pub version_num: u32,
    pub version: String,
    pub wal_level: String,
    /// A standby, or a primary before its promotion.
    pub in_recovery: bool,
    pub database: String,
    pub role: String,
    /// Superuser, `REPLICATION`, or a member of `rds_replication`.
    pub may_replicate: bool,
    /// The right to call `pg_control_system()`.
    pub may_read_control: bool,
    /// `max_slot_wal_keep_size` in MB, where somebody has set it; -1, the default, is without
    /// bound.
    pub max_slot_wal_keep_mb: Option<i64>,
    /// `idle_replication_slot_timeout` (18+) with its unit; `0` is never.
    pub idle_replication_slot_timeout: Option<String>,
    pub standby_slots: StandbySlots,
}

impl Server {
    /// 17 for 17.11.
    pub(crate) fn major(&self) -> u32 {
        self.version_num / 10_000
    }
}

/// The slots of standbys, which delivery may wait for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct StandbySlots {
    /// `synchronized_standby_slots` (17+).
    pub setting: Option<String>,
    /// Names in the setting that are no physical slot of this server, or from which no standby
    /// streams.
    pub absent: Vec<String>,
    /// Connected slots of standbys and other receivers of all WAL. A setting that names another one
    /// stops delivery.
    pub connected: Vec<String>,
}

/// A row of `pg_replication_slots`
/// (<https://www.postgresql.org/docs/current/view-pg-replication-slots.html>).
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Slot {
    /// None for physical slots.
    pub plugin: Option<String>,
    /// `logical` or `physical`.
    pub slot_type: String,
    /// None for physical slots.
    pub database: Option<String>,
    /// Process id of the walsender that streams from it.
    pub active_pid: Option<i32>,
    /// `application_name` of that, where the role may see it.
    pub application: Option<String>,
    /// Dropped at the end of its session.
    pub temporary: bool,
    /// Decodes prepared transactions at `PREPARE`.
    #[serde(default)]
    pub two_phase: bool,
    /// None while the slot is being created, and where it cannot be used: [`UNMADE`].
    pub confirmed_flush_lsn: Option<Lsn>,
    /// The start of the retained WAL.
    pub restart_lsn: Option<Lsn>,
    /// The oldest transaction it may still deliver, 32 bits of it in decimal.
    pub catalog_xmin: Option<String>,
    /// `reserved`, `extended`, `unreserved` (about to be lost) or `lost`.
    pub wal_status: Option<String>,
    /// Bytes that may still be written before the slot is at risk; none without a bound.
    pub safe_wal_size: Option<i64>,
    /// Invalidated by a conflict with recovery (16+).
    pub conflicting: Option<bool>,
    /// Why it was invalidated (17+).
    pub invalidation_reason: Option<String>,
    /// Copied to standbys (17+).
    pub failover: Option<bool>,
    /// A copy, kept by a standby (17+).
    #[serde(default)]
    pub synced: Option<bool>,
}

/// Why a slot is lost that nobody reads and that has no confirmed LSN. One that is being made is
/// active, and is gone if its session ends. So this one was copied or moved without its state.
pub(crate) const UNMADE: &str = "it has no confirmed LSN";

impl Slot {
    /// Whether a relay of this database makes such a slot, and may make it anew.
    pub(crate) fn is_ours(&self, database: &str) -> bool {
        self.slot_type == "logical"
            && self.plugin.as_deref() == Some("pgoutput")
            && self.database.as_deref() == Some(database)
            && !self.temporary
            && !self.two_phase
    }

    pub(crate) fn lost(&self) -> Option<&str> {
        match self.invalidation_reason.as_deref() {
            Some(reason) => Some(reason),
            None if self.conflicting == Some(true) => Some("conflict with recovery"),
            None if self.wal_status.as_deref() == Some("lost") => {
                Some("wal_removed: max_slot_wal_keep_size was exceeded")
            }
            None if self.slot_type == "logical"
                && self.active_pid.is_none()
                && self.confirmed_flush_lsn.is_none() =>
            {
                Some(UNMADE)
            }
            None => None,
        }
    }
}

#[derive(Debug, Deserialize)]
struct SlotAnswer {
    backend_pid: i32,
    wal_end: Option<Lsn>,
    slot: Option<Slot>,
    synchronous: Synchronous,
}

/// A warning: a relay goes on, and logs the text.
#[derive(Debug, Clone)]
pub(crate) struct Warning {
    pub text: String,
    pub remedy: Option<String>,
    /// Whether it names a consequence of a choice, and no risk that is to be removed.
    pub is_note: bool,
}

impl Warning {
    fn risk(text: String, remedy: impl Into<String>) -> Warning {
        Warning {
            text,
            remedy: Some(remedy.into()),
            is_note: false,
        }
    }

    pub(crate) fn note(text: String) -> Warning {
        Warning {
            text,
            remedy: None,
            is_note: true,
        }
    }

    /// A note, unless this is a risk.
    fn only_if(self, is_risk: bool) -> Warning {
        Warning {
            is_note: !is_risk,
            ..self
        }
    }
}

/// What streams from `slot` and is no relay, by its name.
pub(crate) fn stranger(
    slot: impl Display,
    pid: Option<i32>,
    application: Option<&str>,
) -> Option<Warning> {
    let name = application.filter(|name| !name.starts_with("walrelay"))?;
    Some(Warning::risk(
        format!("{name} streams from slot {slot}, and is not a relay: relays wait for it"),
        format!("select pg_terminate_backend({});", pid?),
    ))
}

fn noted(texts: Vec<String>) -> Vec<Warning> {
    texts.into_iter().map(Warning::note).collect()
}

#[derive(Debug, Clone)]
pub(crate) struct Finding {
    /// The name of the check, as `walrelay doctor` prints it. Several findings may have one name
    /// and subject.
    pub check: &'static str,
    pub subject: String,
    pub found: Result<Vec<Warning>>,
}

impl Finding {
    fn new(check: &'static str, subject: impl ToString, found: Result<Vec<Warning>>) -> Finding {
        Finding {
            check,
            subject: subject.to_string(),
            found,
        }
    }
}

const WAL_RETENTION: &str = "wal-retention";
const STANDBY_SLOTS: &str = "standby-slots";

/// Whether the slot can be streamed with every event in the stream. Returns warnings, a sentence
/// each.
///
/// An active slot is no fault: the server decides at the start of the stream. Pass the arguments of
/// [`inspect`].
pub(crate) fn judge(
    facts: &Facts,
    slot: &SlotName,
    publication: &str,
    outboxes: &[OutboxConfig],
) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    for Finding { check, found, .. } in survey(facts, slot, publication, outboxes) {
        // A choice of the server's administrator is for `doctor`, and no warning of each start.
        let is_choice =
            |warning: &Warning| warning.is_note && matches!(check, WAL_RETENTION | STANDBY_SLOTS);
        warnings.extend(
            found?
                .into_iter()
                .filter(|warning| !is_choice(warning))
                .map(|warning| warning.text),
        );
    }
    Ok(warnings)
}

/// Every check of server, role, slot, publication and tables. Pass the arguments of [`inspect`].
///
/// The kinds of faults: [`Kind::PostgresUnfit`], [`Kind::PostgresUnreachable`] (in recovery:
/// retry), [`Kind::PostgresRefused`], [`Kind::SlotUnusable`], [`Kind::Publication`].
pub(crate) fn survey(
    facts: &Facts,
    slot: &SlotName,
    publication: &str,
    outboxes: &[OutboxConfig],
) -> Vec<Finding> {
    let server = &facts.server;
    let database = &server.database;
    let tables: Vec<_> = tables_of(outboxes).collect();
    let names: Vec<_> = tables.iter().map(|(_, name)| *name).collect();
    let mut findings = vec![
        Finding::new("server", "", judge_settings(server).map(|()| Vec::new())),
        Finding::new(
            "role",
            &server.role,
            judge_role(server).map(|()| Vec::new()),
        ),
    ];
    // Before the slot: no slot helps a table that cannot be streamed.
    for (name, catalog) in names.iter().zip(&facts.catalogs) {
        let fault = catalog
            .table
            .as_ref()
            .map_or(Ok(()), |table| can_be_streamed(name, table));
        findings.push(Finding::new("table", name, fault.map(|()| Vec::new())));
    }
    findings.extend(findings_of_slot(facts, slot, publication));
    for ((outbox, name), catalog) in tables.into_iter().zip(&facts.catalogs) {
        let Some(table) = &catalog.table else {
            let setup = NextCommand::new("setup").option("slot", slot);
            let creates = outbox.has_usual_columns().then_some(setup);
            let fault = no_table(name, &format!("database {database}"), creates);
            findings.push(Finding::new("table", name, Err(fault)));
            continue;
        };
        let Some(published) = facts.publication() else {
            continue;
        };
        let published = Published {
            name: publication,
            sql_name: quoted(publication),
            publication: published,
            catalog,
            table,
            table_name: name,
        };
        let has_rows = published
            .has_table(&other_tables(catalog, &names))
            .and_then(|()| published.has_rows());
        findings.push(Finding::new(
            "publication",
            publication,
            has_rows.map(|()| Vec::new()),
        ));
        let notes = published
            .has_columns(outbox, &facts.base_types)
            .map(|()| table_warnings(catalog, table, name, server.major()));
        findings.push(Finding::new("table", name, notes.map(noted)));
    }
    if let Some(published) = facts.publication() {
        let warnings = traffic_warnings(facts, publication, published, &names);
        findings.push(Finding::new("publication", publication, Ok(warnings)));
    }
    findings
}

/// Those of the slot, and of a publication that is missing.
fn findings_of_slot(facts: &Facts, slot: &SlotName, publication: &str) -> Vec<Finding> {
    let server = &facts.server;
    let database = &server.database;
    let setup = NextCommand::new("setup").option("slot", slot);
    let Some(found) = &facts.slot else {
        let fault = no_slot(facts, slot, publication, setup);
        return vec![Finding::new("slot", slot, Err(fault))];
    };
    let judged = judge_slot(found, slot, database, &setup);
    let stranger = stranger(slot, found.active_pid, found.application.as_deref());
    let judged = judged.map(|()| stranger.into_iter().collect());
    let mut findings = vec![Finding::new("slot", slot, judged)];
    // Without both, the slot's fault names the publication.
    if facts.publication().is_none() {
        let fault = no_publication(publication, facts, slot, found, setup);
        findings.push(Finding::new("publication", publication, Err(fault)));
    }
    let retention = retention_warnings(facts, found, slot);
    let standbys = standby_warnings(server, found, slot);
    findings.push(Finding::new(WAL_RETENTION, slot, Ok(retention)));
    findings.push(Finding::new(STANDBY_SLOTS, slot, Ok(standbys)));
    findings
}

fn no_slot(facts: &Facts, slot: &SlotName, publication: &str, setup: NextCommand) -> Error {
    if facts.publication().is_some() {
        let cause = format!("there is no replication slot {slot} on this server");
        return Error::new(Kind::SlotUnusable, cause).remedy(make_slot(slot));
    }
    // A relay makes its slot by itself, and no publication.
    let cause = format!(
        "there is neither replication slot {slot} on this server nor publication {publication} in \
         database {}",
        facts.server.database
    );
    Error::new(Kind::SlotUnusable, cause).remedy(Remedy::from("check the name; `").and(setup).and(
        "` makes both; a relay with a stored position then publishes what was not published, a \
         first one with --backlog all",
    ))
}

/// What to do where there is no slot. The command that may leave events behind stands last.
pub(crate) fn make_slot(slot: impl Display) -> Remedy {
    Remedy::from("check the name; ")
        .and(make_slot_again(&slot))
        .and("; a first relay needs `")
        .and(NextCommand::new("setup").option("slot", slot))
        .and("`")
}

/// What to do where the slot is gone: true whatever is stored or configured.
pub(crate) fn make_slot_again(slot: impl Display) -> Remedy {
    Remedy::from("`")
        .and(NextCommand::new("run").option("slot", slot))
        .and(
            "` publishes what was not published, and makes the slot again, where slot.on_loss and \
             what is stored let it; else it says why not",
        )
}

/// [`judge()`] for a relay that may be behind a change of the table: it can still relay rows with
/// columns that were dropped since.
///
/// Returns the warnings and, where nothing but columns is missing, the fault to stop with after
/// these rows.
pub(crate) fn judge_backlog(
    facts: &Facts,
    slot: &SlotName,
    publication: &str,
    outboxes: &[OutboxConfig],
) -> Result<(Vec<String>, Option<Error>)> {
    let fault = match judge(facts, slot, publication, outboxes) {
        Ok(warnings) => return Ok((warnings, None)),
        Err(fault) => fault,
    };
    let mut left = outboxes.to_vec();
    let of_tables = left
        .iter_mut()
        .filter(|outbox| outbox.source.table().is_some());
    for (outbox, catalog) in of_tables.zip(&facts.catalogs) {
        let there = catalog
            .table
            .as_ref()
            .map(|table| table.columns.as_slice())
            .unwrap_or_default();
        outbox
            .columns
            .retain(|wanted| there.iter().any(|column| column.name == *wanted));
    }
    match judge(facts, slot, publication, &left) {
        Ok(warnings) => Ok((warnings, Some(fault))),
        Err(_) => Err(fault),
    }
}

/// Whether the server is recent enough for the other queries.
pub(crate) fn judge_version(server: &Server) -> Result<()> {
    if server.major() < MAJOR_MIN {
        let cause = format!(
            "the server is PostgreSQL {}, and walrelay needs {MAJOR_MIN} or newer",
            server.version
        );
        return Err(Error::new(Kind::PostgresUnfit, cause).remedy("upgrade the server"));
    }
    Ok(())
}

/// Whether the server could serve a slot to this role.
pub(crate) fn judge_server(server: &Server) -> Result<()> {
    judge_settings(server)?;
    judge_role(server)
}

/// Whether the server could serve a slot.
fn judge_settings(server: &Server) -> Result<()> {
    judge_version(server)?;
    // Before anything a standby may lack: the slot is where the primary is.
    if server.in_recovery {
        let cause = "the server is in recovery: a standby, or a primary to be. walrelay waits for \
                     its promotion";
        return Err(Error::new(Kind::PostgresUnreachable, cause).remedy(
            "if no failover is under way, connect to the primary, for example with \
             target_session_attrs=read-write",
        ));
    }
    if server.wal_level != "logical" {
        let cause = format!(
            "wal_level is {}, and logical replication needs logical",
            server.wal_level
        );
        return Err(Error::new(Kind::PostgresUnfit, cause).remedy(
            "alter system set wal_level = 'logical'; -- then restart Postgres; on RDS set \
             rds.logical_replication = 1",
        ));
    }
    Ok(())
}

fn judge_role(server: &Server) -> Result<()> {
    if !server.may_replicate {
        let role = quoted(&server.role);
        return Err(Error::new(
            Kind::PostgresRefused,
            format!("role {role} may not use replication slots"),
        )
        .remedy(format!(
            "alter role {role} replication; /* on RDS: grant rds_replication to {role} */"
        )));
    }
    Ok(())
}

/// Whether the slot `found` can be read in `database`.
fn judge_slot(found: &Slot, slot: &SlotName, database: &str, setup: &NextCommand) -> Result<()> {
    let unusable =
        |cause: String, remedy: Remedy| Err(Error::new(Kind::SlotUnusable, cause).remedy(remedy));
    let text = format!(
        "name another slot, or, if this one is not needed: select \
         pg_drop_replication_slot('{slot}'), then `"
    );
    let another = Remedy::from(text).and(setup.clone()).and("`");
    let plugin = found.plugin.as_deref().unwrap_or_default();
    let of = found.database.as_deref().unwrap_or_default();
    if found.slot_type != "logical" {
        let kind = &found.slot_type;
        return unusable(
            format!("slot {slot} is a {kind} slot, not a logical one"),
            another,
        );
    }
    if plugin != "pgoutput" {
        return unusable(
            format!("slot {slot} uses the plugin {plugin}, and walrelay reads pgoutput"),
            another,
        );
    }
    if of != database {
        let cause =
            format!("slot {slot} belongs to database {of}, and we are connected to {database}");
        let remedy = format!("connect to {of}, or name another slot");
        return unusable(cause, remedy.into());
    }
    if found.temporary {
        let cause = format!("slot {slot} is temporary: it goes when the session that made it ends");
        let remedy = Remedy::from(
            "name another slot, or end that session and create a permanent one with `",
        );
        return unusable(cause, remedy.and(setup.clone()).and("`"));
    }
    if let Some(reason) = found.lost() {
        return Err(lost(found, reason, slot, setup));
    }
    if found.two_phase {
        return unusable(
            format!(
                "slot {slot} has two_phase: it would hand out prepared transactions that may still \
                 be rolled back"
            ),
            another,
        );
    }
    if found.confirmed_flush_lsn.is_none() {
        let cause = format!(
            "slot {slot} is being created and not ready: its creation waits for open transactions"
        );
        let remedy = "wait for its creation to end, or end what it waits for: select pid, \
                      xact_start, query from pg_stat_activity where backend_xid is not null order \
                      by xact_start; select * from pg_prepared_xacts";
        return unusable(cause, remedy.into());
    }
    Ok(())
}

/// The error for the slot `found`, which is lost for this `reason`.
fn lost(found: &Slot, reason: &str, slot: &SlotName, setup: &NextCommand) -> Error {
    let confirmed = found
        .confirmed_flush_lsn
        .map(|lsn| format!("; it was confirmed up to {lsn}"))
        .unwrap_or_default();
    let cause = format!(
        "slot {slot} is lost ({reason}){confirmed}: part of the WAL after that is gone, and with \
         it the events in it"
    );
    let remedy = Remedy::from("no setting brings it back. ")
        .and(make_slot_again(slot))
        .and(format!(
            "; where nothing was relayed yet, select pg_drop_replication_slot('{slot}'), then `"
        ))
        .and(setup.clone())
        .and(
            "`, and start with --backlog all. So that it does not happen again: a larger \
             max_slot_wal_keep_size (or idle_replication_slot_timeout), and an alert on the slot's \
             lag",
        );
    Error::new(Kind::SlotUnusable, cause).remedy(remedy)
}

fn no_publication(
    publication: &str,
    facts: &Facts,
    slot: &SlotName,
    found: &Slot,
    setup: NextCommand,
) -> Error {
    let cause = format!(
        "there is no publication {publication} in database {}",
        facts.server.database
    );
    let mut others = facts.catalogs.iter();
    let others = others.find_map(|of| of.publications.as_ref());
    // A slot that is still to be made keeps nothing.
    let named = others.map_or(String::new(), |others| {
        format!("name one that publishes the table with --publication: {others}; or ")
    });
    let remedy = match found.restart_lsn {
        None => Remedy::from(format!("{named}check its name; `"))
            .and(setup)
            .and("`, run by the table's owner, makes it"),
        Some(_) => Remedy::from(format!(
            "{named}if it goes by another name, name it with --publication. If it was dropped, slot \
             {slot} cannot be read: `"
        ))
        .and(
            NextCommand::new("teardown")
                .option("slot", slot)
                .flag("force"),
        )
        .and("`, then `")
        .and(setup)
        .and(
            "`, then start again: a relay with a stored position publishes what was not published, \
             a first one with --backlog all",
        ),
    };
    Error::new(Kind::Publication, cause).remedy(remedy)
}

/// A publication, with its name as SQL writes it, leaves out rows of a table.
pub(crate) fn filters_rows(
    publication: &str,
    sql_name: &str,
    table: &TableName,
    filter: &str,
) -> Error {
    let cause = format!(
        "publication {publication} filters rows of {table}: {filter}; the others would be skipped"
    );
    Error::new(Kind::Publication, cause).remedy(publish_whole(sql_name, table))
}

/// What to do where the publication has the outbox `other`, and not `table_name`.
fn other_outbox(table_name: &TableName, other: &str) -> Remedy {
    let setup = NextCommand::new("setup")
        .option("slot", "SLOT")
        .option("table", format_args!("'{table_name}'"));
    Remedy::from(format!(
        "name the table the slot was set up for: --table '{other}', or `table` in [outbox] of the \
         configuration file. For {table_name}, set up a slot of its own, SLOT: "
    ))
    .and(setup)
}

fn unpublished(cause: String, remedy: impl Into<Remedy>) -> Result<()> {
    Err(Error::new(Kind::Publication, cause).remedy(remedy))
}

/// Whether rows that are inserted into the table are in it, and not in other tables.
pub(crate) fn keeps_rows(name: &TableName, table: &PublishedTable) -> Result<()> {
    if table.is_hypertable {
        return unpublished(
            format!(
                "table {name} is a hypertable: its rows are in chunks, which neither stream nor \
                 scan sees"
            ),
            "use an ordinary table, or one partitioned with PARTITION BY RANGE, as the outbox",
        );
    }
    if let Some(child) = table.children.first() {
        return unpublished(
            format!(
                "tables inherit from {name} ({}): neither stream nor scan sees their rows",
                listed(&table.children)
            ),
            format!("alter table {child} no inherit {name}; -- insert its rows into {name}"),
        );
    }
    if let Some(rule) = table.insert_rules.first() {
        return unpublished(
            format!(
                "rules of {name} replace an insert ({}): its rows are not written",
                listed(&table.insert_rules)
            ),
            format!("drop rule {rule}; -- rows that it wrote elsewhere: insert them into {name}"),
        );
    }
    Ok(())
}

/// The first names of a list.
fn listed(names: &[String]) -> String {
    let more = if names.len() > NAMED_MAX {
        " and more"
    } else {
        ""
    };
    names
        .chunks(NAMED_MAX)
        .next()
        .unwrap_or_default()
        .join(", ")
        + more
}

/// What a start refuses of a publication and a table that are there, but for columns.
pub(super) fn judge_published(
    name: &str,
    publication: &Publication,
    catalog: &Catalog,
    table_name: &TableName,
) -> Result<()> {
    let Some(table) = &catalog.table else {
        return Ok(());
    };
    can_be_streamed(table_name, table)?;
    let sql_name = quoted(name);
    let published = Published {
        name,
        sql_name,
        publication,
        catalog,
        table,
        table_name,
    };
    published.has_table(&[])?;
    published.has_rows()
}

/// Whether rows of this table can be in any stream.
pub(crate) fn can_be_streamed(name: &TableName, table: &PublishedTable) -> Result<()> {
    let what = match table.kind.as_str() {
        "r" | "p" => None,
        "v" => Some("a view"),
        "m" => Some("a materialized view"),
        "f" => Some("a foreign table"),
        _ => Some("not a table"),
    };
    match (
        what,
        table.persistence.as_str(),
        table.silent_partitions.first(),
    ) {
        (Some(what), ..) => unpublished(
            format!("{name} is {what}, and only tables are in a replication stream"),
            "name the table that events are inserted into",
        ),
        (None, "u", _) => unpublished(
            format!("table {name} is unlogged: its rows are never in the WAL"),
            format!("alter table {name} set logged;"),
        ),
        (None, "p", None) => match table.access_method.as_deref() {
            Some("heap") | None => keeps_rows(name, table),
            Some(other) => unpublished(
                format!(
                    "table {name} has the access method {other}: only rows of heap tables are in \
                     the stream"
                ),
                format!(
                    "alter table {name} set access method heap; -- before PostgreSQL 15: create it \
                     anew, using heap"
                ),
            ),
        },
        (None, "p", Some(part)) => unpublished(
            format!(
                "partition {part} of {name} is unlogged, foreign or of another access method than \
                 heap: its rows are \
                 never in the stream"
            ),
            format!(
                "alter table {part} set logged; -- or set access method heap, or detach it from \
                 {name}"
            ),
        ),
        (None, ..) => unpublished(
            format!("table {name} is temporary: its rows are never in the WAL"),
            "create a permanent outbox table",
        ),
    }
}

/// The type `oid`, also of `lo`.
const OID: u32 = 26;

/// Whether a routed column is not the payload, or has it, and not the number of a large object.
/// `base_oid` is its base type.
pub(crate) fn has_payload(
    table: &TableName,
    outbox: &OutboxConfig,
    column: &str,
    base_oid: u32,
) -> Result<()> {
    if column != outbox.names.payload || base_oid != OID {
        return Ok(());
    }
    unpublished(
        format!(
            "column {column} of {table} is of type oid: it has the number of a large object, and \
             consumers would get that \
             number"
        ),
        Remedy::from(format!(
            "alter table {table} alter column {0} type bytea using lo_get({0}::oid); -- so that \
             the row has the payload. A \
             slot with events from before has their numbers: drop it with `",
            quoted(column)
        ))
        .and(NextCommand::new("teardown").flag("force"))
        .and("`, and the relay reads these rows from the table"),
    )
}

/// A publication, and an outbox table that must be in it.
struct Published<'a> {
    name: &'a str,
    /// Quoted for SQL.
    sql_name: String,
    publication: &'a Publication,
    catalog: &'a Catalog,
    table: &'a PublishedTable,
    table_name: &'a TableName,
}

impl Published<'_> {
    /// Whether inserts of the table are published, under its own name. `other_tables` are no
    /// outboxes and are published, too.
    fn has_table(&self, other_tables: &[String]) -> Result<()> {
        let Published {
            name,
            sql_name,
            publication,
            catalog,
            table_name,
            ..
        } = self;
        let members = &catalog.members;
        // With this table in the publication, the relay would confirm and so lose the other table's
        // rows.
        if let Some(other) = other_tables.first().filter(|_| members.is_empty()) {
            let others = other_tables.join(", ");
            let cause = format!("publication {name} publishes {others}, and not {table_name}");
            return unpublished(cause, other_outbox(table_name, other));
        }
        if members.is_empty() {
            return unpublished(
                format!(
                    "table {table_name} is not in publication {name}: never added, or dropped and \
                     created again since"
                ),
                format!(
                    "alter publication {sql_name} add table {table_name}; -- rows inserted before \
                     that are not in the stream; where walrelay knows what was published, it reads \
                     them from the table"
                ),
            );
        }
        if !publication.flags.insert {
            let operations = publication.flags.operations();
            return unpublished(
                format!(
                    "publication {name} has publish = '{operations}': without inserts there are no \
                     events"
                ),
                format!("alter publication {sql_name} set (publish = 'insert');"),
            );
        }
        self.has_own_name()
    }

    /// Whether inserts of the table are published under its own name.
    fn has_own_name(&self) -> Result<()> {
        let Published {
            name,
            sql_name,
            publication,
            catalog,
            table,
            table_name,
        } = self;
        let via_root = publication.flags.via_root;
        if table.kind == "p" && !via_root {
            return unpublished(
                format!(
                    "table {table_name} is partitioned, and publication {name} publishes rows \
                     under the names of partitions"
                ),
                format!(
                    "alter publication {sql_name} set (publish_via_partition_root = true); -- and \
                     insert again what was inserted before: in the log it keeps the names of \
                     partitions"
                ),
            );
        }
        let members = catalog.members.iter();
        if let Some(above) = members.rev().find(|member| member.level > 0 && via_root) {
            let above = &above.relation;
            return unpublished(
                format!(
                    "table {table_name} is a partition, and publication {name} publishes its rows \
                     under the name of {above}"
                ),
                format!(
                    "name {above} as the outbox, or alter publication {sql_name} set \
                     (publish_via_partition_root = false)"
                ),
            );
        }
        Ok(())
    }

    /// Filters and column lists above a partition count only via the root, which was refused.
    fn own_members(&self) -> impl Iterator<Item = &Member> {
        self.catalog
            .members
            .iter()
            .filter(|member| member.level == 0)
    }

    fn has_rows(&self) -> Result<()> {
        let Published {
            name,
            sql_name,
            table_name,
            ..
        } = self;
        let Some(filter) = self
            .own_members()
            .find_map(|member| member.row_filter.as_ref())
        else {
            return Ok(());
        };
        Err(filters_rows(name, sql_name, table_name, filter))
    }

    /// `base_types` as in [`Facts`].
    fn has_columns(
        &self,
        outbox: &OutboxConfig,
        base_types: &HashMap<u32, ColumnType>,
    ) -> Result<()> {
        let Published {
            name,
            sql_name,
            publication,
            table,
            table_name,
            ..
        } = self;
        let list = self
            .own_members()
            .find_map(|member| member.columns.as_ref());
        // A row key does without the transaction of its rows where that is not published.
        for wanted in outbox.routed_columns().iter().chain(outbox.index_columns()) {
            let Some(column) = table.columns.iter().find(|column| column.name == *wanted) else {
                return Err(no_column(
                    table_name,
                    wanted,
                    table.columns.iter().map(|column| column.name.as_str()),
                ));
            };
            let base = base_types
                .get(&column.type_oid)
                .map_or(column.type_oid, |base| base.oid);
            has_payload(table_name, outbox, wanted, base)?;
            let is_streamed = match column.generated.as_str() {
                "" => true,
                "s" => publication.generated_columns.as_deref() == Some("s"),
                _ => false,
            };
            match list {
                Some(list) if !list.contains(wanted) => {
                    let listed = list.join(", ");
                    return unpublished(
                        format!(
                            "publication {name} publishes only ({listed}) of {table_name}, without \
                             the column {wanted}"
                        ),
                        publish_whole(sql_name, table_name),
                    );
                }
                None if !is_streamed => {
                    return unpublished(
                        format!(
                            "column {wanted} of {table_name} is generated, and publication {name} \
                             leaves generated columns \
                             out"
                        ),
                        "map a column that is stored by the application, or use a trigger instead \
                         of the expression",
                    );
                }
                Some(_) | None => {}
            }
        }
        Ok(())
    }
}

/// Other tables that an error or a warning names.
const NAMED_MAX: usize = 4;

fn other_tables(catalog: &Catalog, outboxes: &[&TableName]) -> Vec<String> {
    let is_outbox = |name: &&String| {
        name.parse::<TableName>()
            .is_ok_and(|name| outboxes.contains(&&name))
    };
    catalog
        .other_tables
        .iter()
        .filter(|name| !is_outbox(name))
        .take(NAMED_MAX)
        .cloned()
        .collect()
}

/// Warnings of published changes that are no events.
fn traffic_warnings(
    facts: &Facts,
    name: &str,
    publication: &Publication,
    outboxes: &[&TableName],
) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let names: Vec<_> = outboxes.iter().map(ToString::to_string).collect();
    if publication.flags.others() && !names.is_empty() {
        warnings.push(Warning::note(format!(
            "the publication has publish = '{}': what is not an insert costs traffic and is \
             dropped, and Postgres refuses \
             updates and deletes of {} without a replica identity; publish = 'insert' is enough",
            publication.flags.operations(),
            names.join(", ")
        )));
    }
    let mut members = facts.catalogs.iter().flat_map(|catalog| &catalog.members);
    let others: BTreeSet<_> = facts
        .catalogs
        .iter()
        .flat_map(|catalog| other_tables(catalog, outboxes))
        .collect();
    if publication.all_tables || members.any(|member| member.through == "schema") {
        let text = "the publication covers more tables than the outbox: their rows cost traffic \
                    and are dropped";
        warnings.push(Warning::note(text.to_owned()));
        if publication.flags.update || publication.flags.delete {
            let text = format!(
                "publication {name} also publishes updates or deletes of all these tables: an \
                 update or delete in a table \
                 without a primary key or replica identity fails in the application"
            );
            let inserts = format!(
                "alter publication {} set (publish = 'insert');",
                quoted(name)
            );
            warnings.push(Warning::risk(text, inserts));
        }
    } else if !others.is_empty() {
        let names = Vec::from_iter(others).join(", ");
        let text = format!(
            "the publication has other tables ({names}): their rows cost traffic and are dropped"
        );
        warnings.push(Warning::note(text));
    }
    warnings
}

pub(super) fn table_warnings(
    catalog: &Catalog,
    table: &PublishedTable,
    name: &TableName,
    major: u32,
) -> Vec<String> {
    let of = [
        (
            table.row_security,
            format!(
                "row-level security of {name} does not apply to the stream: every row is relayed"
            ),
        ),
        (
            !table.insert_triggers.is_empty(),
            format!(
                "a trigger runs before each insert of a row ({}): a row that it drops or writes to \
                 another table than \
                 {name} is not relayed",
                listed(&table.insert_triggers)
            ),
        ),
        (
            table.kind == "p" && major < 15,
            format!(
                "PostgreSQL 14 publishes a partition of {name} as it was when a row of it was \
                 first streamed: attach and \
                 detach in one transaction with an alter publication … set (publish = 'insert'), \
                 or rows are missing"
            ),
        ),
        (
            catalog.members.iter().any(|member| member.level > 0),
            format!("{name} is a partition: rows of its siblings are not relayed"),
        ),
    ];
    of.into_iter()
        .filter_map(|(holds, text)| holds.then_some(text))
        .collect()
}

/// The least bound on retained WAL that is suggested: a few checkpoints of a server with the
/// default `max_wal_size`.
const WAL_BOUND_MIN_MB: i64 = 4096;

fn retention_warnings(facts: &Facts, found: &Slot, slot: &SlotName) -> Vec<Warning> {
    const RAISE: &str = "or see that a relay works; at most half of the free disk space";
    let server = &facts.server;
    let limit_mb = server
        .max_slot_wal_keep_mb
        .filter(|limit_mb| *limit_mb >= 0);
    let retained_mb = i64::try_from(facts.retained_bytes() / (1024 * 1024)).unwrap_or(i64::MAX);
    // Twice of what is kept now, or may be.
    let bound_mb = limit_mb
        .unwrap_or(WAL_BOUND_MIN_MB)
        .max(retained_mb)
        .saturating_mul(2);
    let bound = |remark| {
        altered(
            "max_slot_wal_keep_size",
            format_args!("{bound_mb}MB"),
            remark,
        )
    };
    let lost = |limit_mb| {
        format!("slot {slot} is lost, and events with it, once it is {limit_mb} MB of WAL behind")
    };
    let mut warnings = vec![match (limit_mb, found.safe_wal_size) {
        (None, _) => {
            let text = format!(
                "max_slot_wal_keep_size is -1: while walrelay is away, slot {slot} keeps WAL until \
                 the disk is full"
            );
            let remark =
                "choose at most half of the free disk space, or '-1' to accept that on purpose";
            Warning::risk(text, bound(remark)).only_if(server.max_slot_wal_keep_mb.is_none())
        }
        (Some(limit_mb), None) => Warning::note(lost(limit_mb)),
        (Some(limit_mb), Some(left)) => {
            let left_mb = left / (1024 * 1024);
            let text = format!("{}; {left_mb} MB are left", lost(limit_mb));
            Warning::risk(text, bound(RAISE)).only_if(left_mb < limit_mb / 2)
        }
    }];
    if found.wal_status.as_deref() == Some("unreserved") {
        let text =
            format!("slot {slot} is about to be lost: the next checkpoint may remove WAL it needs");
        warnings.push(Warning::risk(text, bound(RAISE)));
    }
    if let Some(timeout) = server
        .idle_replication_slot_timeout
        .as_deref()
        .filter(|timeout| *timeout != "0")
    {
        warnings.push(Warning::risk(
            format!("slot {slot} is lost, and events with it, when walrelay is away for {timeout}"),
            altered(
                "idle_replication_slot_timeout",
                0,
                "max_slot_wal_keep_size then still bounds the WAL",
            ),
        ));
    }
    warnings
}

/// Without a physical slot there is, as far as the server tells, no standby that could be promoted.
fn standby_warnings(server: &Server, found: &Slot, slot: &SlotName) -> Vec<Warning> {
    let StandbySlots {
        setting,
        absent,
        connected,
    } = &server.standby_slots;
    let major = server.major();
    let remark = match connected.is_empty() {
        true => "delivery then waits for no standby",
        false => "delivery then waits for the standby of each of these slots",
    };
    let wait = altered("synchronized_standby_slots", connected.join(", "), remark);
    let (text, remedy) = match found.failover {
        Some(false) => (
            format!(
                "slot {slot} has failover off: it does not exist on a standby that is promoted"
            ),
            format!(
                "stop the relay, then: psql 'dbname={} replication=database' -c \
                 'ALTER_REPLICATION_SLOT {slot} (FAILOVER \
                 true)'",
                server.database
            ),
        ),
        Some(true) if setting.as_deref().is_none_or(str::is_empty) => {
            let text = "synchronized_standby_slots is empty: events can be relayed that a promoted \
                        standby never had";
            (text.to_owned(), wait)
        }
        Some(true) if !absent.is_empty() => {
            let text = format!(
                "synchronized_standby_slots names {}, from which no standby streams: all events \
                 wait until one does, or \
                 the name is taken out of the setting",
                absent.join(", ")
            );
            return vec![Warning::risk(text, wait)];
        }
        Some(true) => return Vec::new(),
        // The server does not say so of a slot that is still to be made.
        None if major >= FAILOVER_MAJOR_MIN => return Vec::new(),
        None => (
            format!(
                "PostgreSQL {major} does not copy slots to standbys: slot {slot} does not exist on \
                 one that is promoted"
            ),
            "upgrade to PostgreSQL 17; until then, a relay reads the table after a promotion"
                .to_owned(),
        ),
    };
    vec![Warning::risk(text, remedy).only_if(!connected.is_empty())]
}

/// Why a promotion of a standby, where the slot was `found`, leaves the relay without it. The
/// remedy is for that server.
pub(crate) fn copy_fault(found: Option<&Slot>, slot: &SlotName) -> Option<Warning> {
    let (text, remedy) = match found {
        None => (
            format!("this standby has no copy of slot {slot}"),
            altered(
                "sync_replication_slots",
                "on",
                "see docs/how-to/fail-over-and-restore.md for \
                                                     what else it needs",
            ),
        ),
        Some(own) if own.synced != Some(true) => (
            format!(
                "slot {slot} of this standby is its own and no copy, and keeps Postgres from \
                     making one"
            ),
            format!(
                "select pg_drop_replication_slot('{slot}'); -- on this standby, which then \
                     makes a copy"
            ),
        ),
        Some(copy) if copy.temporary => (
            format!("the copy of slot {slot} is not ready, and is gone after a promotion"),
            "select pg_log_standby_snapshot(); -- on the primary; the copy is ready once the slot \
             has advanced"
                .to_owned(),
        ),
        Some(copy) => (
            format!("the copy of slot {slot} is lost ({})", copy.lost()?),
            "see the log of this standby: it makes the copy again once it can".to_owned(),
        ),
    };
    Some(Warning::risk(text, remedy))
}

#[cfg(test)]
mod tests;
