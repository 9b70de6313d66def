//! The row key of each outbox table: the columns of a unique index, which identify one row together
//! with the event's id.
//!
//! Marks and deletes of acked rows use the row key. So they reach the row that was published, or
//! none.

use tokio_postgres::Client;

use crate::config::{Mode, SourceConfig};
use crate::postgres::quote::{quote_literal, quote_table, quoted};
use crate::postgres::table;
use walrelay_core::catalog::Table;
use walrelay_core::config::{DeliveryConfig, OnError, OutboxConfig, TableName};
use walrelay_core::error::{Error, Kind, Result};

/// The remedy for a table without a row key.
pub(crate) const NEEDS_KEY: &str =
    "give it a primary key, or a unique index over columns that are not null";

/// Finds the row keys of these outboxes. Skips a missing table, which other checks report.
///
/// Columns of the key beside the id are read where rows are marked, deleted, parked, polled, or
/// read for a transaction of the bus. Errors: [`Kind::Config`] with the SQL for a necessary row
/// key, and where one outbox is a partition of another; of the connection.
pub(crate) async fn find(
    client: &Client,
    source: &SourceConfig,
    delivery: &DeliveryConfig,
    outboxes: &mut [OutboxConfig],
) -> Result<()> {
    let parks = delivery.on_error == OnError::Park;
    let may_read = source.mode != Mode::Slot
        || source.gives_up_over_budget()
        || delivery.transactions().is_some();
    let names: Vec<TableName> = outboxes
        .iter()
        .filter_map(|outbox| outbox.source.table().cloned())
        .collect();
    let found = table::read_all(client, &names.iter().collect::<Vec<_>>()).await?;
    let of_tables = outboxes
        .iter_mut()
        .filter(|outbox| outbox.source.table().is_some());
    let mut tables: Vec<(TableName, Table)> = Vec::new();
    for ((outbox, name), table) in of_tables.zip(names).zip(found) {
        let Some(table) = table.filter(Table::is_table) else {
            continue;
        };
        let goes_by_row = outbox.upkeep.writes_any() || parks;
        let transaction = table.xid_column().map(|column| column.name.as_str());
        outbox.xid_column = transaction.map(str::to_owned);
        match table.row_key(&outbox.names.id) {
            Some(columns) if goes_by_row || may_read => outbox.name_rows_by(columns, transaction),
            Some(columns) if *columns == [outbox.names.id.clone()] => {
                outbox.name_rows_by(columns, None)
            }
            None if goes_by_row || source.mode == Mode::Poll || source.gives_up_over_budget() => {
                return Err(no_row_key(outbox, &name, &table, parks)?);
            }
            Some(_) | None => outbox.need_only_routed(),
        }
        tables.push((name, table));
    }
    for (whole, of) in &tables {
        if let Some((part, _)) = tables
            .iter()
            .find(|(_, part)| part.ancestors.contains(&of.oid))
        {
            let cause = format!(
                "{part} is a partition of {whole}, and both are outboxes: its rows would be two \
                 events"
            );
            return Err(Error::new(Kind::Config, cause).remedy(
                "make one of the two: an event has one route, chosen by its columns where need be",
            ));
        }
    }
    Ok(())
}

/// The setting for which rows have to be named, and what it does with them.
fn need_of_key(outbox: &OutboxConfig, parks: bool) -> (&'static str, &'static str) {
    let upkeep = &outbox.upkeep;
    match (
        upkeep.mark.is_some(),
        upkeep.delete,
        upkeep.mark_failed.is_some(),
    ) {
        (true, ..) => ("outbox.mark", "rows are to be marked"),
        (_, true, _) => ("outbox.delete", "rows are to be deleted"),
        (.., true) => ("outbox.mark_failed", "rows are to be marked"),
        _ if upkeep.mark_waiting.is_some() => ("outbox.mark_waiting", "rows are to be marked"),
        _ if parks => ("delivery.on_error", "events are to be parked"),
        _ => (
            "slot.mode",
            "rows are to be polled, now or once the slot is given up",
        ),
    }
}

/// The error for a table without a row key, with the SQL that gives it one.
fn no_row_key(
    outbox: &OutboxConfig,
    name: &TableName,
    table: &Table,
    parks: bool,
) -> Result<Error> {
    let (key, what) = need_of_key(outbox, parks);
    let of = quote_table(name)?;
    let by = table
        .partitioned
        .columns
        .iter()
        .map(|column| quoted(column));
    let by: Vec<String> = by.collect();
    // SQL that makes `column` and the partition columns a row key.
    let unique = |column: &str| {
        let columns: Vec<&str> = std::iter::once(column)
            .chain(by.iter().map(String::as_str))
            .collect();
        let not_null = columns
            .iter()
            .map(|column| format!("alter table {of} alter column {column} set not null; "));
        format!(
            "{}create unique index on {of} ({});",
            not_null.collect::<String>(),
            columns.join(", ")
        )
    };
    let remedy = match table.counters().next() {
        _ if table.partitioned.by_expression => {
            "a table that is partitioned by an expression can have no such index: relay it from a \
             slot, without what goes by row, or partition it by columns"
                .to_owned()
        }
        Some(counter) => format!("give it one: {}", unique(&quoted(&counter.name))),
        None if by.is_empty() => {
            format!(
                "give it one: alter table {of} add column row_number bigint generated always as \
                 identity unique;"
            )
        }
        // Before Postgres 17 a partitioned table has no identity.
        None => {
            let sequence = format!(
                "{}.{}",
                quoted(name.schema()),
                quoted(&format!("{}_row_number", name.table()))
            );
            let default = format!("nextval({})", quote_literal(&sequence)?);
            format!(
                "give it one: create sequence {sequence}; alter table {of} add column row_number \
                 bigint not null default {default}; {}",
                unique("row_number")
            )
        }
    };
    let cause = format!(
        "{key}: {what}, and nothing names exactly one row of table {name}: it has no primary key, \
         and no other unique index over all of its rows and columns that are not null, that is \
         checked at once"
    );
    Ok(Error::new(Kind::Config, cause).remedy(remedy))
}
