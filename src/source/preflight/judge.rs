//! What follows from the facts: a fault with the SQL that mends it, or warnings.

use std::collections::BTreeSet;
use std::fmt;

use crate::config::{OutboxConfig, SlotName, TableName};
use crate::error::{Error, Kind, NextCommand, Remedy, Result};
use crate::postgres::quote::quoted;
use crate::source::catalog::{Catalog, Column, Member, Publication, Table};
use crate::source::preflight::{Facts, Server, Slot};

/// The oldest major whose `pgoutput` and catalogs are known here.
pub(crate) const MAJOR_MIN: u32 = 14;

/// Whether the slot can be streamed and every event would be in the stream.
///
/// A slot somebody else streams from is no fault here: it may be free by the time streaming starts, and the server
/// decides that. Pass the same names `inspect` was given.
///
/// # Errors
/// The first fault, with what to do: [`Kind::PostgresUnfit`], [`Kind::PostgresUnreachable`] (in recovery: retry),
/// [`Kind::PostgresRefused`], [`Kind::SlotUnusable`], [`Kind::Publication`].
pub(crate) fn judge(
    facts: &Facts,
    slot: &SlotName,
    publication: &str,
    outboxes: &[OutboxConfig],
) -> Result<Vec<Warning>> {
    server(&facts.server)?;
    let tables: Vec<_> = outboxes.iter().filter_map(|outbox| Some((outbox, outbox.source.table()?))).collect();
    // Before the slot: none helps a table that cannot be streamed.
    for ((_, name), catalog) in tables.iter().zip(&facts.catalogs) {
        catalog.table.as_ref().map_or(Ok(()), |table| can_be_streamed(name, table))?;
    }
    let setup = NextCommand::new("setup").option("slot", slot);
    let found = facts.slot.as_ref().ok_or_else(|| {
        let cause = match facts.publication() {
            Some(_) => format!("there is no replication slot {slot} on this server"),
            // A relay makes its slot by itself, and no publication.
            None => format!(
                "there is neither replication slot {slot} on this server nor publication {publication} in database {}",
                facts.server.database
            ),
        };
        unusable(cause).remedy(Remedy::from("check the name; `").and(setup.clone()).and(
            "` makes slot and publication. Rows that are in the table already are published if the first `walrelay run` \
             is given --backlog all",
        ))
    })?;
    usable(found, slot, &facts.server, &setup)?;
    let names: Vec<_> = tables.iter().map(|(_, name)| *name).collect();
    let Some(published) = facts.publication() else {
        return Err(no_publication(publication, &facts.server.database, slot, found, &setup));
    };
    let mut warnings = slot_warnings(&facts.server, found, slot);
    for ((outbox, name), catalog) in tables.into_iter().zip(&facts.catalogs) {
        let Some(table) = &catalog.table else {
            return Err(at_publication(format!("there is no table {name} in database {}", facts.server.database))
                .remedy(
                Remedy::from(
                    "check schema, name and database. A name with capitals needs SQL's quotes within the file's, as \
                         in table = '\"Outbox\"'. `",
                )
                .and(setup.flag("create-table"))
                .and("` makes a table where there is none"),
            ));
        };
        let (members, other_tables) = (&catalog.members, strangers(&catalog.other_tables, &names));
        Published {
            name: publication,
            publication: published,
            table,
            members,
            other_tables: &other_tables,
            outbox,
            outbox_name: name,
        }
        .judge()?;
        warnings.extend(table_warnings(catalog, table, name, facts.server.major()));
    }
    warnings.extend(operations_warning(published, &names));
    warnings.extend(traffic_warning(facts, published, &names));
    Ok(warnings)
}

fn no_publication(publication: &str, database: &str, slot: &SlotName, found: &Slot, setup: &NextCommand) -> Error {
    let error = at_publication(format!("there is no publication {publication} in database {database}"));
    // One that is only to be made keeps nothing.
    if found.restart_lsn.is_none() {
        return error
            .remedy(Remedy::from("check its name; `").and(setup.clone()).and("`, run by the table's owner, makes it"));
    }
    error.remedy(
        Remedy::from(format!(
            "if it goes by another name, name it with --publication. If it was dropped, slot {slot} finds none in what it \
             keeps, however often one is created again: "
        ))
        .and(NextCommand::new("teardown").option("slot", slot).flag("force"))
        .and(", then ")
        .and(setup.clone())
        .and(", then start again: what was not published is read from the table"),
    )
}

/// [`judge()`] for a relay that may be behind a change of the table: with columns that are no longer there it can still
/// relay the rows that were written while they were, and nobody else can.
///
/// Gives the warnings and, where columns are missing and nothing else is wrong, the fault to stop with behind these rows.
pub(crate) fn judge_backlog(
    facts: &Facts,
    slot: &SlotName,
    publication: &str,
    outboxes: &[OutboxConfig],
) -> Result<(Vec<Warning>, Option<Error>)> {
    let fault = match judge(facts, slot, publication, outboxes) {
        Ok(warnings) => return Ok((warnings, None)),
        Err(fault) => fault,
    };
    let mut catalogs = facts.catalogs.iter();
    let mut with_what_is_left = |outbox: &OutboxConfig| {
        let mut left = outbox.clone();
        if outbox.source.table().is_some() {
            let table = catalogs.next().and_then(|catalog| catalog.table.as_ref());
            left.columns.retain(|wanted| table.is_some_and(|table| table.columns.iter().any(|it| it.name == *wanted)));
        }
        left
    };
    let left: Vec<_> = outboxes.iter().map(&mut with_what_is_left).collect();
    match judge(facts, slot, publication, &left) {
        Ok(warnings) => Ok((warnings, Some(fault))),
        Err(_) => Err(fault),
    }
}

/// Whether the server is recent enough to answer the rest.
///
/// # Errors
/// [`Kind::PostgresUnfit`] where it is not.
pub(crate) fn version(server: &Server) -> Result<()> {
    if server.major() < MAJOR_MIN {
        return Err(Error::new(
            Kind::PostgresUnfit,
            format!("the server is PostgreSQL {}, and walrelay needs {MAJOR_MIN} or newer", server.version),
        )
        .remedy("upgrade the server"));
    }
    Ok(())
}

/// Whether the server could serve a slot to us.
///
/// # Errors
/// As [`judge()`] of the server alone.
pub(crate) fn server(server: &Server) -> Result<()> {
    version(server)?;
    // Before anything a standby may lack: the slot is where the primary is.
    if server.in_recovery {
        return Err(Error::new(
            Kind::PostgresUnreachable,
            "the server is in recovery: a standby, or a primary to be. walrelay waits for its promotion",
        )
        .remedy(
            "if no failover is under way, connect to the primary, for example with target_session_attrs=read-write",
        ));
    }
    if server.wal_level != "logical" {
        return Err(Error::new(
            Kind::PostgresUnfit,
            format!("wal_level is {}, and logical replication needs logical", server.wal_level),
        )
        .remedy("alter system set wal_level = 'logical', then restart Postgres (rds.logical_replication = 1 on RDS)"));
    }
    if !server.may_replicate {
        let role = quoted(&server.role);
        return Err(Error::new(Kind::PostgresRefused, format!("role {role} may not use replication slots"))
            .remedy(format!("alter role {role} replication (on RDS: grant rds_replication to {role})")));
    }
    Ok(())
}

fn unusable(cause: impl fmt::Display) -> Error {
    Error::new(Kind::SlotUnusable, cause)
}

fn usable(found: &Slot, slot: &SlotName, server: &Server, setup: &NextCommand) -> Result<()> {
    let another = Remedy::from(format!(
        "name another slot, or, if nobody needs this one: select pg_drop_replication_slot('{slot}'), then `"
    ))
    .and(setup.clone())
    .and("`");
    if found.slot_type != "logical" {
        return Err(unusable(format!("slot {slot} is a {} slot, not a logical one", found.slot_type)).remedy(another));
    }
    let plugin = found.plugin.as_deref().unwrap_or_default();
    if plugin != "pgoutput" {
        return Err(
            unusable(format!("slot {slot} uses the plugin {plugin}, and walrelay reads pgoutput")).remedy(another)
        );
    }
    let database = found.database.as_deref().unwrap_or_default();
    if database != server.database {
        return Err(unusable(format!(
            "slot {slot} belongs to database {database}, and we are connected to {}",
            server.database
        ))
        .remedy(format!("connect to {database}, or name another slot")));
    }
    if found.temporary {
        return Err(unusable(format!("slot {slot} is temporary: it goes when the session that made it ends")).remedy(
            Remedy::from("name another slot, or end that session and create a permanent one with `")
                .and(setup.clone())
                .and("`"),
        ));
    }
    if let Some(reason) = found.lost() {
        return Err(is_lost(found, slot, reason, setup));
    }
    if found.two_phase {
        return Err(unusable(format!(
            "slot {slot} has two_phase: it would hand out prepared transactions that may still be rolled back"
        ))
        .remedy(another));
    }
    if found.confirmed_flush_lsn.is_none() {
        return Err(unusable(format!(
            "slot {slot} is being created and not ready: its creation waits for open transactions"
        ))
        .remedy(
            "wait for its creation to end, or end what it waits for: select pid, xact_start, query from \
                 pg_stat_activity where backend_xid is not null order by xact_start; select * from pg_prepared_xacts",
        ));
    }
    Ok(())
}

fn is_lost(found: &Slot, slot: &SlotName, reason: &str, setup: &NextCommand) -> Error {
    let confirmed = match found.confirmed_flush_lsn {
        Some(lsn) => format!("; it was confirmed up to {lsn}"),
        None => String::new(),
    };
    unusable(format!(
        "slot {slot} is lost ({reason}){confirmed}: part of the WAL after that is gone, and with it the events in it"
    ))
    .remedy(
        Remedy::from(format!(
            "no setting brings it back. `walrelay run` makes it anew and reads from the table what was not published; where \
             nothing was relayed yet, select pg_drop_replication_slot('{slot}'), then `"
        ))
        .and(setup.clone())
        .and(
            "`. So that it does not happen again: a larger max_slot_wal_keep_size (or idle_replication_slot_timeout), and \
             an alert on the slot's lag",
        ),
    )
}

/// A publication and the outbox in it.
struct Published<'a> {
    name: &'a str,
    publication: &'a Publication,
    table: &'a Table,
    members: &'a [Member],
    /// What else it publishes that is no outbox.
    other_tables: &'a [String],
    /// Every table that is an outbox.
    outbox: &'a OutboxConfig,
    outbox_name: &'a TableName,
}

/// Whether rows of this table are in a stream at all, whatever slot and publication there are.
///
/// # Errors
/// [`Kind::Publication`].
fn can_be_streamed(name: &TableName, table: &Table) -> Result<()> {
    if !matches!(table.kind.as_str(), "r" | "p") {
        let what = match table.kind.as_str() {
            "v" => "a view",
            "m" => "a materialized view",
            "f" => "a foreign table",
            _ => "not a table",
        };
        return Err(at_publication(format!("{name} is {what}, and only tables are in a replication stream"))
            .remedy("name the table that events are inserted into"));
    }
    match table.persistence.as_str() {
        "p" => {}
        "u" => {
            return Err(at_publication(format!("table {name} is unlogged: its rows are never in the WAL"))
                .remedy(format!("alter table {name} set logged")));
        }
        _ => {
            return Err(at_publication(format!("table {name} is temporary: its rows are never in the WAL"))
                .remedy("create a permanent outbox table"));
        }
    }
    if let Some(part) = table.silent_partitions.first() {
        return Err(at_publication(format!(
            "partition {part} of {name} is unlogged or foreign: its rows are never in the stream"
        ))
        .remedy(format!("alter table {part} set logged, or detach it from {name}")));
    }
    Ok(())
}

impl Published<'_> {
    /// The first thing that would hide an event or a part of it.
    fn judge(&self) -> Result<()> {
        can_be_streamed(self.outbox_name, self.table)?;
        self.table_is_in()?;
        self.inserts_are_in()?;
        self.name_is_kept()?;
        self.no_row_is_hidden()?;
        self.no_column_is_hidden()
    }

    fn sql_name(&self) -> String {
        quoted(self.name)
    }

    fn table_is_in(&self) -> Result<()> {
        if self.members.is_empty() {
            let (name, table, publication) = (self.name, self.outbox_name, self.sql_name());
            if let Some(other) = self.other_tables.first() {
                // Adding this one would let the relay confirm, and so give up, what is in the stream of the other.
                return Err(at_publication(format!(
                    "publication {name} publishes {}, and not {table}",
                    self.other_tables.join(", ")
                ))
                .remedy(
                    Remedy::from(format!(
                        "name the table the slot was set up for: --table '{other}', or `table` in [outbox] of the \
                         configuration file. For {table}, set up a slot of its own: "
                    ))
                    .and(NextCommand::new("setup").option("slot", "…").option("table", format_args!("'{table}'"))),
                ));
            }
            return Err(at_publication(format!(
                "table {table} is not in publication {name}: never added, or dropped and created again since"
            ))
            .remedy(format!(
                "alter publication {publication} add table {table}. Rows inserted before that are not in the stream; where \
                 walrelay knows what was published, it reads them from the table"
            )));
        }
        Ok(())
    }

    fn inserts_are_in(&self) -> Result<()> {
        let flags = &self.publication.flags;
        if flags.insert {
            return Ok(());
        }
        Err(at_publication(format!(
            "publication {} has publish = '{}': without inserts there are no events",
            self.name,
            flags.operations()
        ))
        .remedy(format!("alter publication {} set (publish = 'insert')", self.sql_name())))
    }

    fn name_is_kept(&self) -> Result<()> {
        let (name, table, via_root) = (self.name, self.outbox_name, self.publication.flags.via_root);
        let publication = self.sql_name();
        if self.table.kind == "p" && !via_root {
            return Err(at_publication(format!(
                "table {table} is partitioned, and publication {name} publishes rows under the names of partitions"
            ))
            .remedy(format!(
                "alter publication {publication} set (publish_via_partition_root = true), and insert again what was \
                 inserted before: in the log it keeps the names of partitions"
            )));
        }
        if let Some(above) = self.members.iter().rev().find(|member| member.level > 0 && via_root) {
            return Err(at_publication(format!(
                "table {table} is a partition, and publication {name} publishes its rows under the name of {}",
                above.relation
            ))
            .remedy(format!(
                "name {} as the outbox, or alter publication {publication} set (publish_via_partition_root = false)",
                above.relation
            )));
        }
        Ok(())
    }

    /// Filters and column lists above a partition count only via the root, which was refused.
    fn own_members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.level == 0)
    }

    fn no_row_is_hidden(&self) -> Result<()> {
        let Some(filter) = self.own_members().find_map(|member| member.row_filter.as_ref()) else { return Ok(()) };
        let (name, table, publication) = (self.name, self.outbox_name, self.sql_name());
        Err(at_publication(format!(
            "publication {name} filters rows of {table}: {filter}; the others would be skipped"
        ))
        .remedy(format!("alter publication {publication} set table {table}")))
    }

    fn no_column_is_hidden(&self) -> Result<()> {
        let (name, table, publication) = (self.name, self.outbox_name, self.sql_name());
        let list = self.own_members().find_map(|member| member.columns.as_ref());
        let outbox = self.outbox;
        // A row key does without the transaction of its rows where that is not published.
        for wanted in outbox.routed_columns().iter().chain(outbox.index_columns()) {
            let Some(column) = self.table.columns.iter().find(|column| column.name == *wanted) else {
                let there: Vec<&str> = self.table.columns.iter().map(|column| column.name.as_str()).collect();
                return Err(at_publication(format!(
                    "table {table} has no column {wanted}; it has {}",
                    there.join(", ")
                ))
                .remedy("say in the configuration which column holds what, or add the column"));
            };
            match list {
                Some(list) if !list.contains(wanted) => {
                    return Err(at_publication(format!(
                        "publication {name} publishes only ({}) of {table}, without the column {wanted}",
                        list.join(", ")
                    ))
                    .remedy(format!("alter publication {publication} set table {table}")));
                }
                Some(_) => {}
                None if self.is_streamed(column) => {}
                None => {
                    return Err(at_publication(format!(
                        "column {wanted} of {table} is generated, and publication {name} leaves generated columns out"
                    ))
                    .remedy(
                        "map a column that is stored by the application, or use a trigger instead of the expression",
                    ));
                }
            }
        }
        Ok(())
    }

    fn is_streamed(&self, column: &Column) -> bool {
        let stored = self.publication.generated_columns.as_deref() == Some("s");
        column.generated.is_empty() || (column.generated == "s" && stored)
    }
}

fn at_publication(cause: impl fmt::Display) -> Error {
    Error::new(Kind::Publication, cause)
}

/// The first major that copies slots to standbys.
const FAILOVER_MAJOR_MIN: u32 = 17;

/// What an operator should know and need not mend: one short sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Warning(String);

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is published and is no event of `outboxes`.
fn traffic_warning(facts: &Facts, publication: &Publication, outboxes: &[&TableName]) -> Option<Warning> {
    let mut members = facts.catalogs.iter().flat_map(|catalog| &catalog.members);
    if publication.all_tables || members.any(|member| member.through == "schema") {
        let what = "the publication covers more tables than the outbox: their rows cost traffic and are dropped";
        return Some(Warning(what.to_owned()));
    }
    let others = facts.catalogs.iter().flat_map(|catalog| strangers(&catalog.other_tables, outboxes));
    let others: BTreeSet<_> = others.collect();
    if others.is_empty() {
        return None;
    }
    let names: Vec<_> = others.into_iter().collect();
    let names = names.join(", ");
    Some(Warning(format!("the publication has other tables ({names}): their rows cost traffic and are dropped")))
}

/// Those of the tables that are no outbox.
fn strangers(tables: &[String], outboxes: &[&TableName]) -> Vec<String> {
    let is_outbox = |name: &&String| name.parse::<TableName>().is_ok_and(|name| outboxes.contains(&&name));
    tables.iter().filter(|name| !is_outbox(name)).cloned().collect()
}

/// What is published and cannot be an event of these tables.
fn operations_warning(publication: &Publication, outboxes: &[&TableName]) -> Option<Warning> {
    let names: Vec<_> = outboxes.iter().map(|table| table.to_string()).collect();
    (publication.flags.others() && !names.is_empty()).then(|| {
        Warning(format!(
            "the publication has publish = '{}': what is not an insert costs traffic and is dropped, and Postgres refuses \
             updates and deletes of {} without a replica identity; publish = 'insert' is enough",
            publication.flags.operations(),
            names.join(", ")
        ))
    })
}

/// What is to be known of an outbox table that was judged to be fit.
fn table_warnings(catalog: &Catalog, table: &Table, table_name: &TableName, major: u32) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |text: String| warnings.push(Warning(text));
    if table.row_security {
        warn(format!("row-level security of {table_name} does not apply to the stream: every row is relayed"));
    }
    if table.inherited_by > 0 {
        warn(format!("rows of the tables that inherit from {table_name} are not relayed"));
    }
    if table.kind == "p" && major < 15 {
        warn(format!(
            "PostgreSQL 14 publishes a partition of {table_name} as it was when a row of it was first streamed: attach and \
             detach in one transaction with an alter publication … set (publish = 'insert'), or rows are missing"
        ));
    }
    if catalog.members.iter().any(|member| member.level > 0) {
        warn(format!("{table_name} is a partition: rows of its siblings are not relayed"));
    }
    warnings
}

/// What is to be known of a slot that was judged to be fit.
fn slot_warnings(server: &Server, found: &Slot, slot: &SlotName) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |text: String| warnings.push(Warning(text));
    match (server.max_slot_wal_keep_mb, found.safe_wal_size) {
        (Some(-1) | None, _) => {
            warn(format!(
                "max_slot_wal_keep_size is -1: while walrelay is away, slot {slot} keeps WAL until the disk is full"
            ));
        }
        (Some(limit_mb), None) => {
            warn(format!("slot {slot} is lost, and events with it, once it is {limit_mb} MB of WAL behind"));
        }
        (Some(limit_mb), Some(left)) => {
            let left_mb = left / (1024 * 1024);
            warn(format!(
                "slot {slot} is lost, and events with it, once it is {limit_mb} MB of WAL behind; {left_mb} MB are left"
            ));
        }
    }
    if found.wal_status.as_deref() == Some("unreserved") {
        warn(format!("slot {slot} is about to be lost: the next checkpoint may remove WAL it needs"));
    }
    if let Some(timeout) = server.idle_replication_slot_timeout.as_deref().filter(|timeout| *timeout != "0") {
        warn(format!("slot {slot} is lost, and events with it, when walrelay is away for {timeout}"));
    }
    match found.failover {
        Some(false) => warn(format!("slot {slot} has failover off: it does not exist on a standby that is promoted")),
        Some(true) if server.synchronized_standby_slots.as_deref().is_none_or(str::is_empty) => {
            warn(
                "synchronized_standby_slots is empty: events can be relayed that a promoted standby never had"
                    .to_owned(),
            );
        }
        Some(true) if !server.standby_slots_missing.is_empty() => {
            let names = server.standby_slots_missing.join(", ");
            warn(format!(
                "synchronized_standby_slots names {names}, which is no physical slot of this server: events wait until \
                 it is one, or is taken out of the setting"
            ));
        }
        Some(true) => {}
        // The server does not say so of a slot that is still to be made.
        None if server.major() >= FAILOVER_MAJOR_MIN => {}
        None => warn(format!(
            "PostgreSQL {} does not copy slots to standbys: slot {slot} does not exist on one that is promoted",
            server.major()
        )),
    }
    warnings
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
