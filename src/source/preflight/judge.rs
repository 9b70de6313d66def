//! What follows from the facts: a fault with the SQL that mends it, or warnings.

use std::fmt;

use crate::config::{OutboxConfig, SlotName};
use crate::error::{Error, Kind, NextCommand, Remedy, Result};
use crate::postgres::quote::quoted;
use crate::source::preflight::facts::{Facts, Server, Slot};
use crate::source::preflight::published::{Published, at_publication, can_be_streamed};
use crate::source::preflight::warnings::{
    Warning, operations_warning, slot_warnings, strangers, table_warnings, traffic_warning,
};

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

/// Whether a relay can stream from the slot.
///
/// # Errors
/// [`Kind::SlotUnusable`].
pub(crate) fn usable(found: &Slot, slot: &SlotName, server: &Server, setup: &NextCommand) -> Result<()> {
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

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "judge_later_tests.rs"]
mod later_tests;
