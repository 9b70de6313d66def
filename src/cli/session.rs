//! SQL for the commands: queries with a name for what they do, rows with errors of ours.

use tokio_postgres::types::{FromSql, ToSql};
use tokio_postgres::{Client, Row};

use crate::conninfo::ConnInfo;
use crate::error::{Error, Kind, Result};
use crate::postgres::fault::{self, While};
use crate::postgres::sql::SqlSession;

/// A session for one command.
#[derive(Debug)]
pub struct Session(SqlSession);

impl Session {
    /// Opens it; `command` is what the server shows as `application_name`.
    ///
    /// # Errors
    /// As [`SqlSession::connect`].
    pub async fn connect(database: &ConnInfo, command: &str) -> Result<Session> {
        Ok(Session(SqlSession::connect(database, &format!("walrelay {command}")).await?))
    }

    /// The client itself, for whoever asks in a way of his own.
    pub fn client(&self) -> &Client {
        self.0.client()
    }

    /// The one row of `sql`, or none. `what` follows "while" in errors.
    ///
    /// # Errors
    /// [`fault::sql`]'s; more than one row is a [`Kind::Bug`].
    pub async fn row(&self, what: &str, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Option<Row>> {
        self.client().query_opt(sql, values).await.map_err(|error| fault::sql(While::Querying(what), &error))
    }

    /// All rows of `sql`.
    ///
    /// # Errors
    /// [`fault::sql`]'s.
    pub async fn rows(&self, what: &str, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        self.client().query(sql, values).await.map_err(|error| fault::sql(While::Querying(what), &error))
    }

    /// Runs statements that give nothing back.
    ///
    /// # Errors
    /// [`fault::sql`]'s.
    pub async fn run(&self, what: &str, sql: &str) -> Result<()> {
        self.client().batch_execute(sql).await.map_err(|error| fault::sql(While::Querying(what), &error))
    }
}

/// A column of a row, by name.
///
/// # Errors
/// [`Kind::Bug`]: the queries are ours, so it is there and of its type.
pub fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &str) -> Result<T> {
    row.try_get(name).map_err(|error| Error::new(Kind::Bug, format!("column {name} of a query of ours: {error}")))
}
