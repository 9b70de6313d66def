//! Looks at rows of the outbox tables from beside the stream.

use tokio_postgres::{Client, SimpleQueryMessage};

use crate::config::TableName;
use crate::error::{Error, Kind};
use crate::position::Lsn;
use crate::postgres::query::{QUERY_TIMEOUT, QueryError, bounded};
use crate::postgres::quote::{quote_ident, quote_literal, quote_table};
use crate::source::control::{Pending, PendingRow};

/// Rows that are pending, a bounded number of each outbox, and then the end of the log.
pub(super) async fn look(client: &Client, watched: &[Pending]) -> Result<(Vec<PendingRow>, Lsn), QueryError> {
    let (mut sql, doing) = (String::new(), "looking for pending rows");
    for pending in watched {
        sql.push_str(&pending.sql().map_err(QueryError::refused)?);
    }
    // In statements of their own, one after the other: each sees what committed before it.
    sql.push_str("select pg_catalog.pg_current_wal_insert_lsn()::text");
    let messages = bounded(doing, QUERY_TIMEOUT, client.simple_query(&sql)).await?;
    let (mut rows, mut lsn) = (Vec::new(), None);
    for message in &messages {
        let SimpleQueryMessage::Row(row) = message else { continue };
        let text = |at| row.try_get(at).ok().flatten();
        // A row that is older than the column with its transaction has none.
        let key = (1..row.len()).map_while(|at| text(at).map(str::to_owned)).collect::<Vec<_>>();
        match (text(0), key.is_empty()) {
            (Some(number), false) => rows.extend(number.parse().ok().map(|outbox| (outbox, key))),
            (Some(end), true) => lsn = end.parse().ok(),
            (None, _) => {}
        }
    }
    let unread = || Error::new(Kind::PostgresUnfit, format!("while {doing}: the end of the log cannot be read"));
    Ok((rows, lsn.ok_or_else(|| QueryError::refused(unread()))?))
}

/// Whether there is a row with these values in these columns; none where the role may not look.
pub(super) async fn is_kept(
    client: &Client,
    table: &TableName,
    key: &[(String, String)],
) -> Result<Option<bool>, QueryError> {
    let sql = || {
        let of =
            |(column, value): &(String, String)| Ok(format!("{} = {}", quote_ident(column)?, quote_literal(value)?));
        let (table, key) = (quote_table(table)?, key.iter().map(of).collect::<Result<Vec<_>, Error>>()?);
        Ok(format!("select (exists (select from {table} where {}))::text", key.join(" and ")))
    };
    let sql = sql().map_err(QueryError::refused)?;
    match bounded("looking for a row", QUERY_TIMEOUT, client.simple_query(&sql)).await {
        Ok(messages) => Ok(messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.try_get(0).ok().flatten().map(|text| text == "true"),
            SimpleQueryMessage::CommandComplete(_) | SimpleQueryMessage::RowDescription(_) => None,
            _ => None,
        })),
        Err(QueryError::Refused { error, .. }) => {
            tracing::debug!(%error, "whether rows stay in the table is not known");
            Ok(None)
        }
        Err(other) => Err(other),
    }
}
