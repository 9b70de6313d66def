//! Whether the tables can stand in for the slot, and the server can have one.

use tokio_postgres::types::Type;

use crate::config::{Config, Mode, OutboxConfig, StoreKind};
use crate::error::{Error, Kind, NextCommand, Remedy, Result};
use crate::poll::{NEEDS_ORDER, Reader, TableFacts, table_facts};
use crate::postgres::fault::{self, While};
use crate::postgres::quote::quoted;
use crate::relay::lease::TableTask;
use crate::source::preflight;
use crate::source::row_key::NEEDS_KEY;
use crate::state::Rows;

/// Looks whether the tables could be polled, where that may come to be needed: best known before.
///
/// # Errors
/// A slot is to be given up one day, and then they could not. Where rows are only set to pending again, a person is told.
pub(super) async fn look(config: &Config, warn: &mut (dyn FnMut(String) + Send)) -> Result<()> {
    let source = &config.source;
    let reader = Reader::connect(&source.database, &format!("walrelay/{}/reader", source.slot)).await?;
    for outbox in config.outboxes.iter().filter(|outbox| outbox.source.table().is_some()) {
        let facts = table_facts(reader.client(), outbox).await?;
        let fit = fits(&facts, outbox, &TableTask::Poll(String::new()), config);
        match fit {
            Err(error) if source.give_up_over_budget => return Err(error),
            Err(error) => warn(error.to_string()),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Whether rows of this table can be read as they have to be.
pub(super) fn fits(facts: &TableFacts, outbox: &OutboxConfig, task: &TableTask, config: &Config) -> Result<()> {
    let (slot, table) = (&config.source.slot, &facts.name);
    if matches!(task, TableTask::MakeSlot(plan) if plan.rows == Rows::None) {
        return Ok(());
    }
    if !facts.may_select {
        let cause = format!("slot {slot}: the relay must read rows of table {table}, and the role has no right to");
        let user = quoted(&config.source.database.user);
        return Err(Error::new(Kind::PostgresRefused, cause).remedy(format!("grant select on {table} to {user}")));
    }
    // One that is asked for again has no order to keep.
    if facts.order.is_none() && !matches!(task, TableTask::Again(_)) {
        let cause = format!(
            "slot {slot}: the relay must read rows of table {table}, and no column gives their order: the table has no \
             identity or serial column"
        );
        return Err(Error::new(Kind::PositionMismatch, cause)
            .remedy(format!("{NEEDS_ORDER}. To go on without these rows: --adopt-slot")));
    }
    // What is read again behind a crash could not be told from other rows of its id.
    let needs_key = matches!(task, TableTask::Poll(_)) || config.delivery.transactions.is_some();
    if needs_key && outbox.row_key.is_none() {
        let cause =
            format!("slot {slot}: the relay must read rows of table {table}, and no unique index identifies one row");
        return Err(Error::new(Kind::Config, cause).remedy(NEEDS_KEY));
    }
    let tells = facts.xid_column.is_some() || outbox.upkeep.says_for_itself();
    if matches!(task, TableTask::Poll(_)) && !tells {
        let cause = format!("table {table} cannot be polled: no column tells which rows were not published");
        let mut setup = NextCommand::new("setup").option("slot", slot);
        // Of several tables the file names them all.
        if config.outboxes.len() == 1 {
            setup = setup.option("table", format_args!("'{table}'"));
        }
        if config.source.mode == Mode::Poll {
            setup = setup.option("mode", "poll");
        }
        return Err(Error::new(Kind::Config, cause).remedy(Remedy::from("`").and(setup.flag("add-xid-column")).and(
            "`, run by the table's owner, adds a column with the transaction's id; or set outbox.pending and \
                 outbox.mark, or outbox.delete",
        )));
    }
    Ok(())
}

/// Whether these tables can be polled: they tell which of their rows were published, and there is a place to keep it.
pub(super) fn can_poll<'t>(tables: impl Iterator<Item = (&'t TableFacts, &'t OutboxConfig)>, config: &Config) -> bool {
    let mut tables = tables;
    config.state.store != StoreKind::Slot
        && config.outboxes.iter().all(|outbox| outbox.source.table().is_some())
        && tables.all(|(facts, outbox)| fits(facts, outbox, &TableTask::Poll(String::new()), config).is_ok())
}

/// Whether the server could serve a slot by now, and there is a publication for it.
pub(super) async fn can_have_slot(client: &tokio_postgres::Client, config: &Config) -> Result<bool> {
    let server = preflight::server(client).await?;
    let sql = "select pg_catalog.count(*) from pg_catalog.pg_publication where pubname = $1";
    let act = While::Querying("looking for the publication");
    let row = client.query_typed(sql, &[(&config.source.publication, Type::TEXT)]).await;
    let row = row.map_err(|error| fault::sql(act, &error))?;
    let is_published = row.first().and_then(|row| row.try_get::<_, i64>(0).ok()).is_some_and(|count| count > 0);
    Ok(is_published && preflight::judge_server(&server).is_ok())
}
