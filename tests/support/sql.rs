//! A blocking SQL session, for threads that write and look.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error, NoTls, Row};

/// How long a statement may take. None of a test's waits for longer, and one that waits for ever is to be named.
const DEADLINE: Duration = Duration::from_secs(300);

/// One connection with the small runtime that drives it.
pub(crate) struct Sql {
    runtime: Runtime,
    client: Client,
}

impl Sql {
    /// Connects, or says why not.
    pub(crate) fn try_connect(url: &str) -> Result<Sql, Error> {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut config: Config = url.parse()?;
        config.connect_timeout(Duration::from_secs(5)).application_name("walrelay-tests");
        let client = runtime.block_on(async {
            let (client, connection) =
                tokio::time::timeout(DEADLINE, config.connect(NoTls)).await.expect("an answer to a new session")?;
            tokio::spawn(connection);
            Ok::<_, Error>(client)
        })?;
        Ok(Sql { runtime, client })
    }

    #[track_caller]
    pub(crate) fn connect(url: &str) -> Sql {
        Sql::try_connect(url).unwrap_or_else(|error| panic!("no connection to Postgres: {error:?}"))
    }

    /// Runs statements without parameters.
    pub(crate) fn try_run(&self, sql: &str) -> Result<(), Error> {
        self.within(sql, self.client.batch_execute(sql))
    }

    #[track_caller]
    pub(crate) fn run(&self, sql: &str) {
        self.try_run(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    pub(crate) fn try_rows(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        self.within(sql, self.client.query(sql, parameters))
    }

    /// Drives what `sql` does, and panics where that does not end.
    fn within<T>(&self, sql: &str, doing: impl Future<Output = T>) -> T {
        let ended = self.runtime.block_on(async { tokio::time::timeout(DEADLINE, doing).await });
        ended.unwrap_or_else(|_| panic!("no end within {DEADLINE:?}: {sql}"))
    }

    #[track_caller]
    pub(crate) fn rows(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<Row> {
        self.try_rows(sql, parameters).unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    /// The one value of the one row, as text; empty for NULL or no row.
    #[track_caller]
    pub(crate) fn text(&self, sql: &str) -> String {
        let rows = self.rows(&format!("select ({sql})::text"), &[]);
        rows.first().and_then(|row| row.get::<_, Option<String>>(0)).unwrap_or_default()
    }

    /// The one value of the one row, as a number.
    #[track_caller]
    pub(crate) fn number(&self, sql: &str) -> i64 {
        let text = self.text(sql);
        text.parse().unwrap_or_else(|_| panic!("{sql}: not a number: {text:?}"))
    }
}
