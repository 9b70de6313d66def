//! Tables of walrelay's own beside the outbox: `walrelay.position` and `walrelay.parked`.

use std::time::Duration;

use tokio_postgres::Client;

use crate::error::{Error, Kind, Result};
use crate::postgres::query::{QueryError, bounded, one_text};

/// How long creating or changing the table may take.
const CREATE_TIMEOUT: Duration = Duration::from_secs(30);

/// A table, and what to say where the role may not use it.
pub(crate) struct OwnTable {
    /// Its name with its schema.
    pub(crate) name: &'static str,
    /// SQL that gives its state in a word: `usable`, `missing`, `old` for one that `create` changes, or another.
    pub(crate) state: &'static str,
    /// SQL that creates it where it is missing.
    pub(crate) create: &'static str,
    /// What the role has to be granted on it.
    pub(crate) privileges: &'static str,
    /// What cannot be done without it.
    pub(crate) lacking: &'static str,
    /// What else there is to do, behind the remedy.
    pub(crate) otherwise: &'static str,
}

impl OwnTable {
    /// The state in a word.
    pub(crate) async fn state(&self, client: &Client) -> Result<String, QueryError> {
        let doing = format!("looking for table {}", self.name);
        Ok(one_text(client, &doing, self.state, &[]).await?.unwrap_or_default())
    }

    /// Creates the table where it is missing, and makes sure that the role may use it.
    ///
    /// # Errors
    /// [`Kind::PostgresRefused`] with the SQL for a role that may; [`Kind::PostgresUnreachable`] where another session was in
    /// the way; those of the connection.
    pub(crate) async fn prepare(&self, client: &Client) -> Result<(), QueryError> {
        // Asked first: creating what exists needs the right to create it all the same.
        match self.state(client).await?.as_str() {
            "usable" => return Ok(()),
            "missing" | "old" => {}
            _ => return Err(QueryError::refused(self.forbidden(client).await)),
        }
        let doing = format!("creating table {}", self.name);
        let failed = match bounded(&doing, CREATE_TIMEOUT, client.batch_execute(self.create)).await {
            Ok(()) => return Ok(()),
            Err(failed @ QueryError::Refused { .. }) => failed,
            Err(failed) => return Err(failed),
        };
        let cause = failed.error().cause();
        // Another relay may have been faster, which is reported as a duplicate.
        match self.state(client).await?.as_str() {
            "usable" => Ok(()),
            _ if failed.is_passing() => Err(QueryError::refused(Error::new(Kind::PostgresUnreachable, cause))),
            _ => Err(QueryError::refused(self.refusal(cause, &role(client).await))),
        }
    }

    /// The role may not use the table that is there.
    pub(crate) async fn forbidden(&self, client: &Client) -> Error {
        self.refusal(&format!("table {} may not be used", self.name), &role(client).await)
    }

    /// `role` as SQL writes it.
    pub(crate) fn refusal(&self, cause: &str, role: &str) -> Error {
        let OwnTable { name, privileges, lacking, otherwise, .. } = self;
        let create = self.create.split_whitespace().collect::<Vec<_>>().join(" ");
        Error::new(Kind::PostgresRefused, format!("{lacking}: {cause}")).remedy(format!(
            "as a role that may: {create} grant usage on schema walrelay to {role}; grant {privileges} on {name} to \
             {role}{otherwise}"
        ))
    }
}

/// The role of the session as SQL writes it, for a GRANT.
pub(crate) async fn role(client: &Client) -> String {
    const SQL: &str = "select pg_catalog.quote_ident(current_user)";
    let asked = one_text(client, "asking for the role's name", SQL, &[]).await;
    asked.ok().flatten().unwrap_or_else(|| "the relay's role".to_owned())
}
