//! Rows of events that wait: published now, they come twice, and before what waits of their aggregates.

use crate::config::SlotName;
use crate::error::Result;
use crate::poll::Reader;
use crate::postgres::quote::{quote_ident, quote_literal, quote_own_rows};
use crate::replay::Table;
use crate::upkeep::left_behind::may_look;

/// What has to be said of rows of these tables, where the role may see what waits. Inside the reader's transaction.
///
/// # Errors
/// What the session gives.
pub(super) async fn notes(reader: &Reader, slot: &SlotName, tables: &[Table<'_>]) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    if !may_look(reader.client()).await? {
        return Ok(notes);
    }
    for table in tables {
        let (slot, outbox) = (quote_literal(slot.as_str())?, quote_literal(&table.outbox.source.to_string())?);
        let waiting = format!("select w.row_id from walrelay.parked w where w.slot = {slot} and w.outbox = {outbox}");
        if reader.count(&format!("select count(*) from ({waiting} limit 1) of")).await? == 0 {
            continue;
        }
        let (from, id) =
            (quote_own_rows(&table.facts.name, table.facts.is_partitioned)?, quote_ident(&table.outbox.id)?);
        let condition = &table.condition;
        let count = reader
            .count(&format!(
                "select count(*) from {from} where ({condition}\n) and pg_catalog.convert_to({id}::text, 'UTF8') in ({waiting})"
            ))
            .await?;
        if count > 0 {
            notes.push(format!(
                "events of {count} of these rows of {} are parked: they are published now, before what waits of their \
                 aggregates, and again when their turn comes, unless walrelay parked drop gives them up",
                table.facts.name
            ));
        }
    }
    Ok(notes)
}
