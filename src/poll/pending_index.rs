//! Whether an index serves the searches for pending rows, and the SQL that creates one.

use tokio_postgres::{Client, SimpleQueryMessage};

use crate::poll::reader::all_table_facts;
use crate::poll::select::{TableFacts, from};
use crate::postgres::query::{QUERY_TIMEOUT, bounded};
use crate::postgres::quote::{quote_ident, quote_literal, quote_table};
use walrelay_core::config::{OutboxConfig, tables_of};
use walrelay_core::error::Result;

/// No index serves `outbox.pending`: each search for pending rows reads the whole table.
#[derive(Debug, Clone)]
pub(crate) struct MissingIndex {
    pub text: String,
    /// SQL for psql.
    pub remedy: String,
}

/// Has Postgres plan the search without sequential scans: a plan that has one all the same has no
/// index for it. So the size of the table and its statistics do not matter. Reads no row.
pub(crate) async fn missing_index(
    client: &Client,
    outbox: &OutboxConfig,
    facts: &TableFacts,
) -> Result<Option<MissingIndex>> {
    const DOING: &str = "explaining the search for pending rows";
    let Some(pending) = outbox
        .upkeep
        .pending
        .as_deref()
        .filter(|_| facts.may_select)
    else {
        return Ok(None);
    };
    // One query string is one transaction, and the setting ends with it.
    let explain = format!(
        "set local enable_seqscan = off; explain select 1 from {} where ({pending}\n)",
        from(facts)?
    );
    let plan = bounded(DOING, QUERY_TIMEOUT, client.simple_query(&explain)).await?;
    let is_scan = |message: &SimpleQueryMessage| {
        let SimpleQueryMessage::Row(row) = message else {
            return false;
        };
        row.get(0).is_some_and(|line| line.contains("Seq Scan on "))
    };
    let reads_all = plan.iter().any(is_scan);
    if !reads_all {
        return Ok(None);
    }
    let text = format!(
        "no index serves outbox.pending of table {}: each search for pending rows reads the whole \
         table",
        facts.name
    );
    Ok(Some(MissingIndex {
        text,
        remedy: created(outbox, facts, pending)?,
    }))
}

/// As [`missing_index`], for all outboxes that are tables.
pub(crate) async fn missing_indexes(
    client: &Client,
    outboxes: &[OutboxConfig],
) -> Result<Vec<MissingIndex>> {
    let mut missing = Vec::new();
    for (facts, (outbox, _)) in all_table_facts(client, outboxes)
        .await?
        .iter()
        .zip(tables_of(outboxes))
    {
        missing.extend(missing_index(client, outbox, facts).await?);
    }
    Ok(missing)
}

/// The SQL that creates the index. An index over a partitioned table takes in those of the
/// partitions that fit.
fn created(outbox: &OutboxConfig, facts: &TableFacts, pending: &str) -> Result<String> {
    // The predicate of an index is immutable.
    const CHANGING: [&str; 7] = [
        "now(",
        "current_",
        "timestamp(",
        "localtime",
        "random(",
        "select",
        "timeofday(",
    ];
    let lower = pending.to_lowercase();
    if CHANGING.iter().any(|changing| lower.contains(changing)) {
        return Ok(format!(
            "create an index over the columns of the condition: {pending}"
        ));
    }
    let column = match facts.order.as_ref().filter(|order| order.is_found) {
        Some(order) => order.sql.clone(),
        None => quote_ident(&outbox.names.id)?,
    };
    let table = quote_table(&facts.name)?;
    let of = format!("({column}) where ({pending})");
    if !facts.with_children {
        return Ok(format!("create index concurrently on {table} {of};"));
    }
    let each = quote_literal(&format!(
        "create index concurrently on %s {}",
        of.replace('%', "%%")
    ))?;
    Ok(format!(
        "select format({each}, relid) from pg_partition_tree({}) where isleaf \\gexec\ncreate \
         index on {table} {of};",
        quote_literal(&table)?
    ))
}
