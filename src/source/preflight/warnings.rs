//! What is a choice rather than a fault, and should be known to be one.

use std::collections::BTreeSet;
use std::fmt;

use crate::config::{SlotName, TableName};
use crate::source::catalog::{Catalog, Publication, Table};
use crate::source::preflight::facts::{Facts, Server, Slot};

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
pub(super) fn traffic_warning(facts: &Facts, publication: &Publication, outboxes: &[&TableName]) -> Option<Warning> {
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
pub(super) fn strangers(tables: &[String], outboxes: &[&TableName]) -> Vec<String> {
    let is_outbox = |name: &&String| name.parse::<TableName>().is_ok_and(|name| outboxes.contains(&&name));
    tables.iter().filter(|name| !is_outbox(name)).cloned().collect()
}

/// What is published and cannot be an event of these tables.
pub(super) fn operations_warning(publication: &Publication, outboxes: &[&TableName]) -> Option<Warning> {
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
pub(super) fn table_warnings(catalog: &Catalog, table: &Table, table_name: &TableName, major: u32) -> Vec<Warning> {
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
pub(super) fn slot_warnings(server: &Server, found: &Slot, slot: &SlotName) -> Vec<Warning> {
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
