//! What is a choice rather than a fault, and should be known to be one.

use std::fmt;

use crate::config::{OutboxConfig, SlotName};
use crate::source::catalog::{Publication, Table};
use crate::source::preflight::facts::{Facts, Server, Slot};

/// What an operator should know and need not mend: one short sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning(String);

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// All there is to say of what was judged to be fit.
pub(super) fn warnings(
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
    if publication.flags.others() {
        warn(format!(
            "the publication has publish = '{}': what is not an insert costs traffic and is dropped, and Postgres refuses \
             updates and deletes of {table_name} where it has no replica identity; publish = 'insert' is enough",
            publication.flags.operations()
        ));
    }
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
        Some(true) if !server.standby_slots_missing.is_empty() => {
            let names = server.standby_slots_missing.join(", ");
            warn(format!(
                "synchronized_standby_slots names {names}, which is no physical slot of this server: events wait until \
                 it is one, or is taken out of the setting"
            ));
        }
        Some(true) => {}
        None => warn(format!(
            "PostgreSQL {} does not copy slots to standbys: slot {slot} does not exist on one that is promoted",
            server.major()
        )),
    }
}
