//! The position in Postgres: in a table of its own, or nowhere but in the slot.

use std::sync::Arc;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::config::Config;
use crate::postgres::query::{
    OwnTable, Param, QUERY_TIMEOUT, QueryError, bounded, one_text, takes_writes,
};
use crate::postgres::sql::SqlSession;
use crate::source::control::Control;
use crate::state::{decode, encode};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::stored::Stored;

const LOAD: &str = include_str!("../../sql/position/load.sql");
const STORE: &str = include_str!("../../sql/position/store.sql");
const POSITIONS: OwnTable = OwnTable {
    name: "walrelay.position",
    state: include_str!("../../sql/position/exists.sql"),
    create: include_str!("../../sql/position/create.sql"),
    privileges: "select, insert, update",
    lacking: "the position cannot be kept in Postgres",
    otherwise: "choose another state.store",
};

/// Keeps the position in `walrelay.position` of the outbox's database, one row per key.
///
/// Each store writes WAL, too. A caller that stores because the log moved on has to do so at
/// intervals.
#[derive(Debug)]
pub(crate) struct PostgresStore {
    control: Control,
    key: String,
}

impl PostgresStore {
    /// Opens the store, and creates the table where it is missing and the role may.
    pub(crate) async fn open(control: Control, key: impl Into<String>) -> Result<PostgresStore> {
        control
            .ask(|session| async move { POSITIONS.prepare(session.client()).await })
            .await?;
        Ok(PostgresStore {
            control,
            key: key.into(),
        })
    }

    pub(crate) async fn load(&mut self) -> Result<Option<Stored>> {
        let key = self.key.clone();
        let text = self
            .control
            .ask(|session| async move { text(session.client(), &key).await })
            .await?;
        text.map(|text| read(&self.key, &text)).transpose()
    }

    /// Replaces it: durable on this server when this returns.
    pub(crate) async fn store(&mut self, stored: &Stored) -> Result<()> {
        const DOING: &str = "storing the position";
        let value = encode(stored)?;
        let key = self.key.clone();
        let store = |session: Arc<SqlSession>| async move {
            let params: [Param<'_>; 2] = [(&key, Type::TEXT), (&value, Type::TEXT)];
            let stored = session.client().execute_typed(STORE, &params);
            written(
                bounded(DOING, QUERY_TIMEOUT, stored)
                    .await
                    .map_err(QueryError::of_write)?,
            )
        };
        self.control.ask(store).await
    }
}

/// Whether a relay of the role of `client` could open the store. Creates nothing.
pub(super) async fn may_open(client: &Client) -> Result<()> {
    takes_writes(client).await?;
    POSITIONS.check(client).await?;
    Ok(())
}

/// The stored value, for commands beside the relay. Creates nothing.
pub(super) async fn load(config: &Config) -> Result<Option<Stored>> {
    let session = SqlSession::connect(&config.source.database, "walrelay").await?;
    match POSITIONS.state(session.client()).await?.as_str() {
        "missing" => Ok(None),
        "usable" => {
            let key = &config.state.key;
            text(session.client(), key)
                .await?
                .map(|text| read(key, &text))
                .transpose()
        }
        _ => Err(Error::new(
            Kind::PostgresRefused,
            "table walrelay.position may not be used",
        )
        .remedy("use the relay's role, or grant this one what walrelay.position needs")),
    }
}

async fn text(client: &Client, key: &str) -> Result<Option<String>, QueryError> {
    one_text(
        client,
        "loading the position",
        LOAD,
        &[(&key as _, Type::TEXT)],
    )
    .await
}

/// A trigger or rule can drop a row without an error: the position would not be stored.
fn written(rows: u64) -> Result<(), QueryError> {
    if rows == 1 {
        return Ok(());
    }
    let cause = format!("while storing the position: {rows} rows were written instead of 1");
    let remedy = "remove the triggers and rules of table walrelay.position";
    Err(QueryError::refused(
        Error::new(Kind::PostgresUnwritable, cause).remedy(remedy),
    ))
}

fn read(key: &str, text: &str) -> Result<Stored> {
    let remedy = "a person wrote it; once the row is deleted, walrelay starts where the slot was \
                  confirmed, which repeats \
                  events and loses none";
    decode(
        text.as_bytes(),
        &format!("the value under {key:?} in walrelay.position"),
        remedy,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_stored_position_is_a_mismatch() {
        for (text, remedy) in [
            ("", "a person"),
            ("{}", "a person"),
            (r#"{"version": 4}"#, "of another version"),
        ] {
            let error = read("orders", text).unwrap_err();
            assert_eq!(error.kind(), Kind::PositionMismatch, "{text}");
            assert!(error.cause().contains("\"orders\""), "{}", error.cause());
            assert!(error.what_to_do().unwrap().contains(remedy), "{error}");
        }
    }

    #[test]
    fn a_position_is_stored_only_if_exactly_one_row_was_written() {
        assert!(written(1).is_ok());
        for rows in [0, 2] {
            let refused = Error::from(written(rows).unwrap_err());
            assert_eq!(refused.kind(), Kind::PostgresUnwritable);
        }
    }

    #[test]
    fn a_role_that_may_not_create_the_table_gets_the_sql_on_one_line() {
        let error = POSITIONS.refusal("permission denied for database shop", "\"the relay\"");
        let remedy = error.what_to_do().unwrap();
        assert!(
            remedy.contains("create table if not exists walrelay.position ( key text primary key"),
            "{remedy}"
        );
        assert!(
            remedy.contains(
                "grant select, insert, update on walrelay.position to \"the relay\"; -- or choose"
            ),
            "{remedy}"
        );
        assert!(!remedy.contains('\n'));
    }
}
