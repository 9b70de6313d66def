//! What follows from the facts: a fault with the SQL that mends it, or warnings.

use std::fmt;

use crate::config::{OutboxConfig, SlotName};
use crate::error::{Error, Kind, Result};
use crate::source::catalog::{Column, Member, Publication, Table};
use crate::source::preflight::facts::{Facts, Server, Slot};
use crate::source::query::quoted;

/// The oldest major whose `pgoutput` and catalogs are known here.
const MAJOR_MIN: u32 = 14;

/// What an operator should know and need not mend: one short sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning(String);

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether the slot can be streamed and every event would be in the stream.
///
/// A slot somebody else streams from is no fault here: it may be free by the time streaming starts, and the server
/// decides that. Pass the same names `inspect` was given.
///
/// # Errors
/// The first fault, with what to do: [`Kind::PostgresUnfit`], [`Kind::PostgresUnreachable`] (in recovery: retry),
/// [`Kind::PostgresRefused`], [`Kind::SlotUnusable`], [`Kind::Publication`].
pub fn judge(facts: &Facts, slot: &SlotName, publication: &str, outbox: &OutboxConfig) -> Result<Vec<Warning>> {
    server(&facts.server)?;
    let setup = format!("walrelay setup --slot {slot}");
    let found = facts.slot.as_ref().ok_or_else(|| {
        unusable(format!("there is no replication slot {slot} on this server")).remedy(format!("`{setup}`"))
    })?;
    usable(found, slot, &facts.server, &setup)?;
    let Some(published) = &facts.catalog.publication else {
        return Err(at_publication(format!(
            "there is no publication {publication} in database {}",
            facts.server.database
        ))
        .remedy(format!(
            "`{setup}`, or: create publication {} for table {} with (publish = 'insert'). A slot older than the \
             publication cannot be used with it: create the slot anew",
            quoted(publication),
            outbox.table
        )));
    };
    let Some(table) = &facts.catalog.table else {
        return Err(at_publication(format!(
            "there is no table {} in database {}",
            outbox.table, facts.server.database
        ))
        .remedy("`walrelay setup` prints the SQL that creates an outbox table; check schema, name and database"));
    };
    Published { name: publication, publication: published, table, members: &facts.catalog.members, outbox }.judge()?;
    Ok(warnings(facts, found, published, table, slot, outbox))
}

/// Whether the server is recent enough to answer the rest.
pub(super) fn version(server: &Server) -> Result<()> {
    if server.major() < MAJOR_MIN {
        return Err(Error::new(
            Kind::PostgresUnfit,
            format!("the server is PostgreSQL {}, and walrelay needs {MAJOR_MIN} or newer", server.version),
        )
        .remedy("upgrade the server"));
    }
    Ok(())
}

fn server(server: &Server) -> Result<()> {
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

fn at_publication(cause: impl fmt::Display) -> Error {
    Error::new(Kind::Publication, cause)
}

fn usable(found: &Slot, slot: &SlotName, server: &Server, setup: &str) -> Result<()> {
    let another = format!(
        "name another slot, or, if nobody needs this one: select pg_drop_replication_slot('{slot}'), then `{setup}`"
    );
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
        return Err(unusable(format!("slot {slot} is temporary: it goes when the session that made it ends"))
            .remedy(format!("name another slot, or end that session and create a permanent one with `{setup}`")));
    }
    if let Some(reason) = lost(found) {
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

/// Why the slot can never be read again, if so.
fn lost(found: &Slot) -> Option<&str> {
    match found.invalidation_reason.as_deref() {
        Some(reason) => Some(reason),
        None if found.conflicting == Some(true) => Some("conflict with recovery"),
        None if found.wal_status.as_deref() == Some("lost") => Some("wal_removed: max_slot_wal_keep_size was exceeded"),
        None => None,
    }
}

fn is_lost(found: &Slot, slot: &SlotName, reason: &str, setup: &str) -> Error {
    let confirmed = match found.confirmed_flush_lsn {
        Some(lsn) => format!("; it was confirmed up to {lsn}"),
        None => String::new(),
    };
    unusable(format!(
        "slot {slot} is lost ({reason}){confirmed}: part of the WAL after that is gone, and with it the events in it"
    ))
    .remedy(format!(
        "no setting brings it back. Select from the outbox what was inserted since walrelay last delivered and is not \
         in Kafka, and publish it by hand. Then select pg_drop_replication_slot('{slot}'), `{setup}`, and start \
         walrelay with --adopt-slot. So that it does not happen again: a larger max_slot_wal_keep_size (or \
         idle_replication_slot_timeout), and an alert on the slot's lag"
    ))
}

/// A publication and the outbox in it.
struct Published<'a> {
    name: &'a str,
    publication: &'a Publication,
    table: &'a Table,
    members: &'a [Member],
    outbox: &'a OutboxConfig,
}

impl Published<'_> {
    fn judge(&self) -> Result<()> {
        self.table_can_be_streamed()?;
        self.table_is_in()?;
        self.only_inserts()?;
        self.name_is_kept()?;
        self.no_row_is_hidden()?;
        self.no_column_is_hidden()
    }

    fn sql_name(&self) -> String {
        quoted(self.name)
    }

    fn table_can_be_streamed(&self) -> Result<()> {
        let name = &self.outbox.table;
        if !matches!(self.table.kind.as_str(), "r" | "p") {
            let what = match self.table.kind.as_str() {
                "v" => "a view",
                "m" => "a materialized view",
                "f" => "a foreign table",
                _ => "not a table",
            };
            return Err(at_publication(format!("{name} is {what}, and only tables are in a replication stream"))
                .remedy("name the table that events are inserted into"));
        }
        match self.table.persistence.as_str() {
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
        if let Some(part) = self.table.silent_partitions.first() {
            return Err(at_publication(format!(
                "partition {part} of {name} is unlogged or foreign: its rows are never in the stream"
            ))
            .remedy(format!("alter table {part} set logged, or detach it from {name}")));
        }
        Ok(())
    }

    fn table_is_in(&self) -> Result<()> {
        if self.members.is_empty() {
            let (name, table, publication) = (self.name, &self.outbox.table, self.sql_name());
            return Err(at_publication(format!(
                "table {table} is not in publication {name}: never added, or dropped and created again since"
            ))
            .remedy(format!(
                "alter publication {publication} add table {table}. Rows inserted before that are not in the stream: \
                 publish by hand what is missing in Kafka"
            )));
        }
        Ok(())
    }

    fn only_inserts(&self) -> Result<()> {
        let flags = &self.publication.flags;
        if flags.operations() == "insert" {
            return Ok(());
        }
        let why = if flags.insert {
            "an outbox has only inserts, and with more Postgres refuses the application's deletes and updates of a \
             table without a primary key"
        } else {
            "without inserts there are no events"
        };
        Err(at_publication(format!("publication {} has publish = '{}': {why}", self.name, flags.operations()))
            .remedy(format!("alter publication {} set (publish = 'insert')", self.sql_name())))
    }

    fn name_is_kept(&self) -> Result<()> {
        let (name, table, via_root) = (self.name, &self.outbox.table, self.publication.flags.via_root);
        let publication = self.sql_name();
        if self.table.kind == "p" && !via_root {
            return Err(at_publication(format!(
                "table {table} is partitioned, and publication {name} publishes rows under the names of partitions"
            ))
            .remedy(format!("alter publication {publication} set (publish_via_partition_root = true)")));
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
        let (name, table, publication) = (self.name, &self.outbox.table, self.sql_name());
        Err(at_publication(format!(
            "publication {name} filters rows of {table}: {filter}; the others would be skipped"
        ))
        .remedy(format!("alter publication {publication} set table {table}")))
    }

    fn no_column_is_hidden(&self) -> Result<()> {
        let (name, table, publication) = (self.name, &self.outbox.table, self.sql_name());
        let list = self.own_members().find_map(|member| member.columns.as_ref());
        let outbox = self.outbox;
        let mapped = [&outbox.id, &outbox.aggregate_type, &outbox.aggregate_id, &outbox.event_type, &outbox.payload];
        for wanted in mapped {
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

fn warnings(
    facts: &Facts,
    found: &Slot,
    publication: &Publication,
    table: &Table,
    slot: &SlotName,
    outbox: &OutboxConfig,
) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |text: String| warnings.push(Warning(text));
    slot_warnings(&facts.server, found, slot, &mut warn);
    let table_name = &outbox.table;
    let schemas = facts.catalog.members.iter().any(|member| member.through == "schema");
    if publication.all_tables || schemas {
        warn("the publication covers more tables than the outbox: their rows cost traffic and are dropped".to_owned());
    } else if !facts.catalog.other_tables.is_empty() {
        let names = facts.catalog.other_tables.join(", ");
        warn(format!("the publication has other tables ({names}): their rows cost traffic and are dropped"));
    }
    if table.row_security {
        warn(format!("row-level security of {table_name} does not apply to the stream: every row is relayed"));
    }
    if table.inherited_by > 0 {
        warn(format!("rows of the tables that inherit from {table_name} are not relayed"));
    }
    if facts.catalog.members.iter().any(|member| member.level > 0) {
        warn(format!("{table_name} is a partition: rows of its siblings are not relayed"));
    }
    warnings
}

fn slot_warnings(server: &Server, found: &Slot, slot: &SlotName, warn: &mut impl FnMut(String)) {
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
        Some(true) => {}
        None => warn(format!(
            "PostgreSQL {} does not copy slots to standbys: slot {slot} does not exist on one that is promoted",
            server.major()
        )),
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
