//! Whose code runs in the relay's sessions: owners of the tables that it writes to can add
//! triggers, which run with the rights of the relay's role. That role may stream every table, and
//! drop any slot.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

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
    let rows = bounded(
        DOING,
        QUERY_TIMEOUT,
        client.query_typed(OWNERS, &[(&role, Type::TEXT)]),
    )
    .await?;
    let mut risks = Vec::new();
    for row in &rows {
        let text = |column: usize| {
            row.try_get::<_, String>(column)
                .map_err(|error| QueryError::of(DOING, &error))
        };
        risks.push(of_own_table(&text(0)?, &text(1)?, &text(2)?));
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
        let rows = bounded(
            DOING,
            QUERY_TIMEOUT,
            client.query_typed(CODE, &[(&name, Type::TEXT)]),
        )
        .await?;
        for row in &rows {
            let text = |column: usize| {
                row.try_get::<_, String>(column)
                    .map_err(|error| QueryError::of(DOING, &error))
            };
            risks.push(of_outbox(&name, &text(0)?, &text(1)?));
        }
    }
    Ok(risks)
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
