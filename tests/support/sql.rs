//! A blocking SQL session, for threads of tests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error, NoTls, Row};

use super::wait::{LIMIT, eventually};

/// The time limit of a statement. No statement of a test needs longer; the panic names one that
/// does not end.
const DEADLINE: Duration = Duration::from_secs(300);

/// Idle sessions for reuse: a check is repeated up to 200 times a second, and a session of Postgres
/// costs a process.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<Vec<(String, Session)>>);

impl Sessions {
    /// A session with the settings that the server has for new sessions.
    #[track_caller]
    pub(crate) fn take(self: &Arc<Sessions>, url: &str) -> Sql {
        let left = || {
            let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            left.iter()
                .position(|(of, _)| of == url)
                .map(|at| left.swap_remove(at).1)
        };
        // A restarted server has ended the idle sessions.
        let alive = std::iter::from_fn(left).find(|session| session.try_run("").is_ok());
        let session = alive.unwrap_or_else(|| Sql::connect(url).session.take().expect("a session"));
        Sql {
            session: Some(session),
            home: Some((Arc::clone(self), url.to_owned())),
        }
    }
}

struct Session {
    runtime: Runtime,
    client: Client,
}

impl Session {
    fn try_run(&self, sql: &str) -> Result<(), Error> {
        self.within(sql, self.client.batch_execute(sql))
    }

    /// Drives `doing`, and panics with `sql` if it does not end.
    fn within<T>(&self, sql: &str, doing: impl Future<Output = T>) -> T {
        let ended = self
            .runtime
            .block_on(async { tokio::time::timeout(DEADLINE, doing).await });
        ended.unwrap_or_else(|_| panic!("no end within {DEADLINE:?}: {sql}"))
    }
}

pub(crate) struct Sql {
    /// Present until the drop.
    session: Option<Session>,
    /// The owner of the session after the drop, and the URL of the session.
    home: Option<(Arc<Sessions>, String)>,
}

impl Drop for Sql {
    fn drop(&mut self) {
        let (Some(session), Some((home, url))) = (self.session.take(), self.home.take()) else {
            return;
        };
        // In a transaction `discard all` fails, and the session ends.
        if !std::thread::panicking() && session.try_run("discard all").is_ok() {
            home.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((url, session));
        }
    }
}

/// The connection settings of the tests for a URL.
pub(crate) fn config(url: &str) -> Result<Config, Error> {
    let mut config: Config = url.parse()?;
    config
        .connect_timeout(Duration::from_secs(5))
        .application_name("walrelay-tests");
    Ok(config)
}

impl Sql {
    pub(crate) fn try_connect(url: &str) -> Result<Sql, Error> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let config = config(url)?;
        let client = runtime.block_on(async {
            let (client, connection) = tokio::time::timeout(DEADLINE, config.connect(NoTls))
                .await
                .expect("an answer to a new session")?;
            tokio::spawn(connection);
            Ok::<_, Error>(client)
        })?;
        Ok(Sql {
            session: Some(Session { runtime, client }),
            home: None,
        })
    }

    fn session(&self) -> &Session {
        self.session.as_ref().expect("a session")
    }

    #[track_caller]
    pub(crate) fn connect(url: &str) -> Sql {
        Sql::try_connect(url).unwrap_or_else(|error| panic!("no connection to Postgres: {error:?}"))
    }

    pub(crate) fn try_run(&self, sql: &str) -> Result<(), Error> {
        self.session().try_run(sql)
    }

    #[track_caller]
    pub(crate) fn run(&self, sql: &str) {
        self.try_run(sql)
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    pub(crate) fn try_rows(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        let session = self.session();
        session.within(sql, session.client.query(sql, parameters))
    }

    #[track_caller]
    pub(crate) fn rows(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<Row> {
        self.try_rows(sql, parameters)
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    /// The value of a single row with one column, as text; empty for NULL or no row.
    #[track_caller]
    pub(crate) fn text(&self, sql: &str) -> String {
        let rows = self.rows(&format!("select ({sql})::text"), &[]);
        rows.first()
            .and_then(|row| row.get::<_, Option<String>>(0))
            .unwrap_or_default()
    }

    /// The value of a single row with one column, as a number.
    #[track_caller]
    pub(crate) fn number(&self, sql: &str) -> i64 {
        let text = self.text(sql);
        text.parse()
            .unwrap_or_else(|_| panic!("{sql}: not a number: {text:?}"))
    }

    /// A number from the statistics of the server, complete: a session reports within a second,
    /// and when it ends. Waits for the end of each session of walrelay's.
    #[track_caller]
    pub(crate) fn statistic(&self, sql: &str) -> i64 {
        let sessions = "select count(*) from pg_stat_activity where datname = current_database() \
                        and application_name like 'walrelay %'";
        eventually(
            "the sessions have ended",
            LIMIT,
            || self.number(sessions),
            |count| *count == 0,
        );
        self.run("select pg_stat_force_next_flush()");
        self.number(sql)
    }
}
