//! Whose code runs in the relay's sessions: owners of the tables that it writes to can add
//! triggers, which run with the rights of the relay's role. That role may stream every table, and
//! drop any slot.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::config::Config;
use crate::postgres::query::{QUERY_TIMEOUT, QueryError, bounded};
use crate::postgres::quote::quote_table;
use walrelay_core::error::{Error, Kind, Result};

const OWNERS: &str = include_str!("../../sql/upkeep/owners.sql");
const CODE: &str = include_str!("../../sql/upkeep/code.sql");
const DOING: &str = "looking who owns what the relay writes to";

/// The risks, each with its remedy.
pub(crate) async fn risks(client: &Client, config: &Config) -> Result<Vec<Error>> {
    let upkeep = config.source.upkeep.as_ref();
    let role = upkeep.map(|upkeep| upkeep.user.clone());
    let mut risks = Vec::new();
    for row in &asked(client, OWNERS, &role).await? {
        risks.push(of_own_table(&text(row, 0)?, &text(row, 1)?, &text(row, 2)?));
    }
    let writes = config
        .outboxes
        .iter()
        .filter(|outbox| outbox.upkeep.writes_any() || outbox.upkeep.retention.is_some());
    for table in writes
        .filter(|_| upkeep.is_none())
        .filter_map(|outbox| outbox.source.table())
    {
        let name = quote_table(table)?;
        for row in &asked(client, CODE, &name).await? {
            risks.push(of_outbox(&name, &text(row, 0)?, &text(row, 1)?));
        }
    }
    Ok(risks)
}

async fn asked(client: &Client, sql: &str, value: &(dyn ToSql + Sync)) -> Result<Vec<Row>> {
    let value = [(value, Type::TEXT)];
    let rows = client.query_typed(sql, &value);
    Ok(bounded(DOING, QUERY_TIMEOUT, rows).await?)
}

fn text(row: &Row, column: usize) -> Result<String, QueryError> {
    row.try_get(column)
        .map_err(|error| QueryError::of(DOING, &error))
}

fn of_own_table(object: &str, owner: &str, role: &str) -> Error {
    let cause = format!(
        "{object} belongs to role {owner}, whose triggers would run with the rights of the relay's \
         role"
    );
    Error::new(Kind::PostgresRefused, cause)
        .remedy(format!("as a superuser: alter {object} owner to {role};"))
}

fn of_outbox(table: &str, owner: &str, code: &str) -> Error {
    let cause = format!(
        "the relay writes to rows of {table}: code of its owner, role {owner}, runs with the \
         rights of the relay's role ({code})"
    );
    Error::new(Kind::PostgresRefused, cause).remedy(
        "write with a role of its own: [upkeep] database, see docs/how-to/upkeep.md; or \
                 accept that the owner is trusted",
    )
}
