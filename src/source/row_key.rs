//! What names exactly one row of each outbox table: an event's id need not.
//!
//! What is done to a row once its event was acked goes by the row key: the columns of a unique index, and the event's id with
//! them. So an update or a delete reaches the row that was published, or none.

use serde::Deserialize;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::config::{DeliveryConfig, EventSource, Mode, OnError, OutboxConfig, SourceConfig, TableName, setting};
use crate::error::{Error, Kind, Result};
use crate::postgres::quote::{quote_table, quoted};
use crate::source::query::{Param, one_text, parsed};

/// What to do where nothing names a row.
pub const NEEDS_KEY: &str = "give it a primary key, or a unique index over columns that are not null";

const ROW_KEY: &str = include_str!("../../sql/source/row_key.sql");
const DOING: &str = "looking for what names a row of the outbox table";

/// A table, as far as it matters here.
#[derive(Debug, Deserialize)]
struct Table {
    oid: u32,
    /// Those of a unique index over columns that are never NULL.
    columns: Option<Vec<String>>,
    /// The column with the transaction that wrote the row.
    transaction: Option<String>,
    /// The column that counts rows.
    counter: Option<String>,
    /// OIDs of the tables it is a partition of.
    ancestors: Vec<u32>,
    /// What it is partitioned by, as far as that is columns.
    partition_columns: Vec<String>,
}

/// Looks at the tables of these outboxes, and names their rows by what is found. A table that is not there is left to whoever
/// needs it.
///
/// Columns of the key beside the id are read where something may go by row: marks, deletes, parked events, a table that is
/// polled, or read for a transaction of Kafka. A relay that does none of that needs no more columns than its records do.
///
/// # Errors
/// [`Kind::Config`] where rows are to be marked, deleted, parked or polled and nothing names one, with the SQL that does, and
/// where one outbox is a partition of another; those of the connection.
pub async fn find(
    client: &Client,
    source: &SourceConfig,
    delivery: &DeliveryConfig,
    outboxes: &mut [OutboxConfig],
) -> Result<()> {
    let parks = delivery.on_error == OnError::Park;
    let may_read = source.mode != Mode::Slot || source.give_up_over_budget || delivery.transactions.is_some();
    let mut tables: Vec<(TableName, Table)> = Vec::new();
    for outbox in outboxes {
        let name = match &outbox.source {
            EventSource::Table(name) => name.clone(),
            EventSource::Messages(_) => continue,
        };
        let params: [Param<'_>; 3] =
            [(&name.schema(), Type::TEXT), (&name.table(), Type::TEXT), (&outbox.id.as_str(), Type::TEXT)];
        let Some(text) = one_text(client, DOING, ROW_KEY, &params).await? else { continue };
        let table: Table = parsed(DOING, &text)?;
        let goes_by_row = outbox.upkeep.writes_any() || parks;
        match &table.columns {
            Some(columns) if goes_by_row || may_read => outbox.name_rows_by(columns, table.transaction.as_deref()),
            Some(columns) if *columns == [outbox.id.clone()] => outbox.name_rows_by(columns, None),
            None if goes_by_row || source.mode == Mode::Poll => {
                return Err(nameless(outbox, &name, &table, parks)?);
            }
            Some(_) | None => outbox.need_only_routed(),
        }
        tables.push((name, table));
    }
    for (whole, of) in &tables {
        if let Some((part, _)) = tables.iter().find(|(_, part)| part.ancestors.contains(&of.oid)) {
            let cause =
                format!("{part} is a partition of {whole}, and both are outboxes: its rows would be two events");
            return Err(Error::new(Kind::Config, cause)
                .remedy("make one of the two: an event has one route, chosen by its columns where need be"));
        }
    }
    Ok(())
}

/// Something goes by row, and nothing names one.
fn nameless(outbox: &OutboxConfig, name: &TableName, table: &Table, parks: bool) -> Result<Error> {
    let upkeep = &outbox.upkeep;
    let (key, what) = match (upkeep.mark.is_some(), upkeep.delete, upkeep.mark_failed.is_some()) {
        (true, ..) => (setting::MARK.key, "rows are to be marked"),
        (_, true, _) => (setting::DELETE.key, "rows are to be deleted"),
        (.., true) => (setting::MARK_FAILED.key, "rows are to be marked"),
        _ if upkeep.mark_waiting.is_some() => (setting::MARK_WAITING.key, "rows are to be marked"),
        _ if parks => (setting::ON_ERROR.key, "events are to be parked"),
        _ => (setting::MODE.key, "rows are to be polled"),
    };
    let of = quote_table(name)?;
    let partition_by: Vec<String> = table.partition_columns.iter().map(|column| quoted(column)).collect();
    let unique = |column: &str| {
        let columns: Vec<&str> = std::iter::once(column).chain(partition_by.iter().map(String::as_str)).collect();
        format!("alter table {of} add unique ({});", columns.join(", "))
    };
    let sql = match &table.counter {
        Some(counter) => {
            let counter = quoted(counter);
            format!("alter table {of} alter column {counter} set not null; {}", unique(&counter))
        }
        None if partition_by.is_empty() => {
            format!("alter table {of} add column row_number bigint generated always as identity unique;")
        }
        // Before Postgres 17 a partitioned table has no identity.
        None => format!(
            "create sequence row_number; alter table {of} add column row_number bigint not null default \
             nextval('row_number'); {}",
            unique("row_number")
        ),
    };
    let cause = format!(
        "{key}: {what}, and nothing names exactly one row of table {name}: it has no primary key, and no unique index over \
         columns that are not null"
    );
    Ok(Error::new(Kind::Config, cause).remedy(format!("give it one: {sql}")))
}
