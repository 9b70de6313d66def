//! The choice of rows to read from the table before a slot can be streamed, or instead, for this
//! configuration and server; and whether a table can be read. No I/O but where it says so.

use tokio_postgres::Client;

use crate::config::{Config, Mode, StoreKind};
use crate::poll::{NEEDS_ORDER, TableFacts, all_table_facts};
use crate::postgres::quote::quoted;
use crate::source::preflight::{self, Facts, Slot};
use crate::source::row_key::NEEDS_KEY;
use walrelay_core::catch_up::Rows;
use walrelay_core::config::OutboxConfig;
use walrelay_core::error::{Error, Kind, NextCommand, Remedy, Result};
use walrelay_core::recovery::{Rules, SlotIs, TableStart, TableTask};
use walrelay_core::sessions::TableReason;
use walrelay_core::start::Found;

/// The part of the configuration that decides.
pub(crate) fn rules(config: &Config) -> Rules<'_> {
    Rules {
        slot: &config.source.slot,
        on_loss: config.source.on_loss,
        backlog: config.source.backlog.as_ref(),
        adopt_slot: config.state.adopt_slot,
        store_is_slot: config.state.store == StoreKind::Slot,
        outboxes: &config.outboxes,
    }
}

/// How the holder of the lease starts, after the pre-flight checks.
pub(super) fn table_start(
    config: &Config,
    facts: &Facts,
    why: &TableReason,
    found: Found<'_>,
    warn: &mut (dyn FnMut(String) + Send),
) -> Result<TableStart> {
    if *why == TableReason::Gap {
        judge_for_slot(facts, config, warn)?;
    }
    let slot = match facts.slot.as_ref().map(Slot::lost) {
        None => SlotIs::Missing,
        Some(Some(reason)) => SlotIs::Lost(reason.to_owned()),
        Some(None) => SlotIs::There,
    };
    rules(config).table_start(why, found, &slot)
}

/// The pre-flight checks for a slot that does not have to exist.
fn judge_for_slot(
    facts: &Facts,
    config: &Config,
    warn: &mut (dyn FnMut(String) + Send),
) -> Result<()> {
    let source = &config.source;
    let is_not_ours = facts
        .slot
        .as_ref()
        .is_some_and(|slot| !slot.is_ours(&facts.server.database));
    // More likely a name that was mistyped than a first start or a loss.
    let is_nothing = facts.slot.is_none() && facts.publication().is_none();
    if is_not_ours || is_nothing {
        preflight::judge(facts, &source.slot, &source.publication, &config.outboxes)?;
    }
    let (warnings, vanished) = preflight::judge_backlog(
        &facts.with_slot(),
        &source.slot,
        &source.publication,
        &config.outboxes,
    )?;
    if let Some(error) = vanished {
        return Err(error);
    }
    warnings
        .iter()
        .for_each(|warning| warn(warning.to_string()));
    Ok(())
}

/// Whether rows of this table can be read as they have to be.
pub(super) fn fits(
    facts: &TableFacts,
    outbox: &OutboxConfig,
    task: &TableTask,
    config: &Config,
) -> Result<()> {
    let slot = &config.source.slot;
    let table = &facts.name;
    if matches!(task, TableTask::MakeSlot(plan) if plan.rows == Rows::None) {
        return Ok(());
    }
    if !facts.may_select {
        let cause = format!(
            "slot {slot}: the relay must read rows of table {table}, and the role has no right to"
        );
        let user = quoted(&config.source.database.user);
        return Err(Error::new(Kind::PostgresRefused, cause)
            .remedy(format!("grant select on {table} to {user};")));
    }
    // One that is asked for again has no order to keep.
    if facts.order.is_none() && !matches!(task, TableTask::Again(_)) {
        let cause = format!(
            "slot {slot}: the relay must read rows of table {table}, and no column gives their \
             order: the table has no identity or serial column"
        );
        return Err(Error::new(Kind::PositionMismatch, cause).remedy(format!(
            "{NEEDS_ORDER}. To go on without these rows: --adopt-slot"
        )));
    }
    // After a crash, a row that is read again would look like other rows of its id.
    let needs_key = matches!(task, TableTask::Poll(_)) || config.delivery.transactions().is_some();
    if needs_key && outbox.row_key.is_none() {
        let cause = format!(
            "slot {slot}: the relay must read rows of table {table}, and no unique index \
             identifies one row"
        );
        return Err(Error::new(Kind::Config, cause).remedy(NEEDS_KEY));
    }
    match task {
        TableTask::Poll(_) => fits_polling(facts, outbox, config),
        TableTask::MakeSlot(_) | TableTask::GoOn | TableTask::Again(_) => Ok(()),
    }
}

/// Whether a poll can tell which rows of this table were not published.
fn fits_polling(facts: &TableFacts, outbox: &OutboxConfig, config: &Config) -> Result<()> {
    let table = &facts.name;
    if outbox.upkeep.says_for_itself() {
        return Ok(());
    }
    if outbox.upkeep.marks_any() {
        let cause = format!(
            "table {table} cannot be polled: no poll could tell a row that walrelay marked from a \
             copied one"
        );
        return Err(Error::new(Kind::Config, cause).remedy(
            "set outbox.pending to the condition that outbox.mark ends, such as published_at is \
             null; or remove outbox.mark, mark_failed and mark_waiting",
        ));
    }
    if facts.xid_column.is_some() {
        return Ok(());
    }
    let cause =
        format!("table {table} cannot be polled: no column tells which rows were not published");
    let mut setup = NextCommand::new("setup").option("slot", &config.source.slot);
    // Of several tables the file names them all.
    if config.outboxes.len() == 1 {
        setup = setup.option("table", format_args!("'{table}'"));
    }
    if config.source.mode == Mode::Poll {
        setup = setup.option("mode", "poll");
    }
    Err(Error::new(Kind::Config, cause).remedy(
        Remedy::from("`").and(setup.flag("add-xid-column")).and(
            "`, run by the table's owner, adds a column with the transaction's id; or set \
             outbox.pending and outbox.mark, or outbox.delete",
        ),
    ))
}

/// Whether a relay could read the rows of all tables that the slot lacks. Reads no row.
pub(super) async fn can_go_on(client: &Client, config: &Config) -> Result<()> {
    let of_tables = config
        .outboxes
        .iter()
        .filter(|outbox| outbox.source.table().is_some());
    let facts = all_table_facts(client, &config.outboxes).await?;
    facts
        .iter()
        .zip(of_tables)
        .try_for_each(|(facts, outbox)| fits(facts, outbox, &TableTask::GoOn, config))
}

/// Whether a relay could read the rows of this table: those that a lost slot did not deliver, or
/// where it polls, all.
pub(crate) fn can_be_read(
    facts: &TableFacts,
    outbox: &OutboxConfig,
    config: &Config,
    polls: bool,
) -> Result<()> {
    let task = if polls {
        TableTask::Poll(String::new())
    } else {
        TableTask::GoOn
    };
    fits(facts, outbox, &task, config)
}

/// Whether these tables can be polled: they tell which of their rows were published, and there is a
/// place to keep it.
pub(super) fn can_poll<'t>(
    tables: impl Iterator<Item = (&'t TableFacts, &'t OutboxConfig)>,
    config: &Config,
) -> bool {
    let mut tables = tables;
    config.state.store != StoreKind::Slot
        && config
            .outboxes
            .iter()
            .all(|outbox| outbox.source.table().is_some())
        && tables.all(|(facts, outbox)| {
            fits(facts, outbox, &TableTask::Poll(String::new()), config).is_ok()
        })
}
