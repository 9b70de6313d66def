//! A session for ordinary SQL, which reports a shutdown of the server.

use std::time::Duration;

use std::future::poll_fn;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};
use tokio_postgres::config::{SslMode as Mode, SslNegotiation};
use tokio_postgres::types::ToSql;
use tokio_postgres::{
    AsyncMessage, CancelToken, Client, Connection, NoTls, Row, SimpleQueryMessage,
};

use crate::conninfo::{ConnInfo, Target};
use crate::postgres::bounded::{Bounded, BoundedTls};
use crate::postgres::fault::{self, While};
use crate::postgres::query::{QueryError, STATEMENT_TIMEOUT};
use crate::postgres::tls;
use crate::postgres::transport::{self, Login, Opened};
use walrelay_core::error::{Error, Kind, Result};

/// Settings for the text of values, for time limits, and for what a session may do to others. They
/// override role and database; the server skips unknown ones.
///
/// - A commit is durable on this server, and waits for no standby: the relay may be one itself
///   (`synchronous_standby_names = '*'`).
/// - Rows that a policy hides are an error.
/// - No statement waits longer for a lock than its caller for an answer, and the server notices a
///   client that is gone.
/// - The estimates of batches are far above their cost, and would have each of them compiled.
/// - Names are looked up in `pg_catalog` alone, so that no function of a schema that others may
///   write to is called.
const SETTINGS: &str = "SELECT pg_catalog.set_config(name, value, false) FROM (VALUES \
    ('DateStyle', 'ISO'), ('TimeZone', 'UTC'), ('IntervalStyle', 'postgres'), ('bytea_output', \
    'hex'), \
    ('extra_float_digits', '1'), ('synchronous_commit', 'local'), ('row_security', 'off'), ('jit', \
    'off'), \
    ('lock_timeout', $limit), ('statement_timeout', $limit), ('client_connection_check_interval', \
    '2s'), \
    ('idle_session_timeout', '0'), ('idle_in_transaction_session_timeout', '0'), \
    ('transaction_timeout', '0'), \
    ('search_path', '')) AS wanted (name, value) JOIN pg_catalog.pg_settings USING (name) \
    WHERE name <> 'client_connection_check_interval' OR pg_catalog.version() LIKE '%linux%'";

/// The time in which a dropped session may end in order: the rest of an unread answer can be as
/// long as a table.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a dropped session may take to end before its statement is cancelled.
const CANCEL_AFTER: Duration = Duration::from_millis(100);

/// A session for SQL. Dropping it ends the session, also during an answer.
#[derive(Debug)]
pub(crate) struct SqlSession {
    client: Client,
    ended: watch::Receiver<Option<Ended>>,
    notified: Arc<Notify>,
}

#[derive(Debug, Clone)]
pub enum Ended {
    /// The server ended the session: it shuts down, or an operator terminated the session. A new
    /// session shows which.
    Shutdown(Error),
    /// The connection broke, or this process closed it.
    Lost(Error),
}

impl Ended {
    pub fn error(&self) -> &Error {
        match self {
            Ended::Shutdown(error) | Ended::Lost(error) => error,
        }
    }
}

impl SqlSession {
    /// Opens a session with the first server of `info` that accepts one.
    ///
    /// Text is UTF-8, dates are ISO, times are UTC. Names outside `pg_catalog` need their schema.
    /// The server ends a statement after [`STATEMENT_TIMEOUT`]. Bounded by `connect_timeout` per
    /// server. Nothing is retried. Errors: [`fault`]'s kinds, [`Kind::Config`] for unreadable
    /// certificate or password files.
    pub(crate) async fn connect(info: &ConnInfo, application_name: &str) -> Result<SqlSession> {
        transport::connect(
            info,
            &SqlLogin {
                info,
                application_name,
            },
        )
        .await
    }

    /// Lets statements take as long as they need. Their waits for locks stay bounded.
    pub(crate) async fn allow_long_statements(&self) -> Result<()> {
        self.run("setting time limits", "set statement_timeout = 0")
            .await
    }

    /// The client. Convert its errors with [`fault::sql`].
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The only row of `sql`, or none. `what` follows "while" in errors.
    pub(crate) async fn row(
        &self,
        what: &str,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, QueryError> {
        self.client
            .query_opt(sql, values)
            .await
            .map_err(|error| QueryError::of(what, &error))
    }

    pub(crate) async fn rows(
        &self,
        what: &str,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        self.client
            .query(sql, values)
            .await
            .map_err(|error| fault::query(what, &error))
    }

    /// All rows of `sql`, with values as in the stream. A cast to text gives other values (`true`
    /// for `t`).
    pub(crate) async fn texts(
        &self,
        sql: &str,
    ) -> Result<Vec<Vec<Option<String>>>, tokio_postgres::Error> {
        let messages = self.client.simple_query(sql).await?;
        let rows = messages.iter().filter_map(|message| {
            if let SimpleQueryMessage::Row(row) = message {
                Some(row)
            } else {
                None
            }
        });
        rows.map(|row| {
            (0..row.len())
                .map(|at| Ok(row.try_get(at)?.map(str::to_owned)))
                .collect()
        })
        .collect()
    }

    pub(crate) async fn run(&self, what: &str, sql: &str) -> Result<()> {
        self.client
            .batch_execute(sql)
            .await
            .map_err(|error| fault::query(what, &error))
    }

    /// Notifies at each `NOTIFY` on a channel that this session listens on. Keeps one notification
    /// while no task waits.
    pub(crate) fn notified(&self) -> Arc<Notify> {
        Arc::clone(&self.notified)
    }

    /// Waits for the end of the session and returns the reason. Safe to cancel, to repeat, and to
    /// hold while querying.
    ///
    /// A fast shutdown of the server is announced here while its walsenders still run and wait for
    /// the relay. If a query is under way, the query gets the announcement, and this returns
    /// [`Ended::Lost`].
    pub(crate) fn closed(&self) -> impl Future<Output = Ended> + Send + 'static {
        let mut ended = self.ended.clone();
        async move {
            let outcome = ended
                .wait_for(Option::is_some)
                .await
                .ok()
                .and_then(|ended| ended.clone());
            outcome.unwrap_or_else(|| {
                Ended::Lost(Error::new(
                    Kind::PostgresUnreachable,
                    "the SQL session is over",
                ))
            })
        }
    }

    /// Runs the connection in a task of its own, which ends with the session and publishes the
    /// reason. Where the session is dropped during a statement, the server is asked to cancel that.
    fn driven<S, T>(
        client: Client,
        mut connection: Connection<S, T>,
        place: &str,
        info: &ConnInfo,
        target: &Target,
    ) -> SqlSession
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let canceller = Canceller {
            token: client.cancel_token(),
            info: info.clone(),
            target: target.clone(),
        };
        let (sender, receiver) = watch::channel(None);
        let what = format!("the SQL session with {place} was open");
        let notified = Arc::new(Notify::new());
        let waker = Arc::clone(&notified);
        tokio::spawn(async move {
            let act = While::Querying(&what);
            let abandoned = async {
                sender.closed().await;
                tokio::time::sleep(CANCEL_AFTER).await;
                drop(tokio::time::timeout(LEAVE_TIMEOUT, canceller.cancel()).await);
                tokio::time::sleep(LEAVE_TIMEOUT).await;
            };
            let driven = async {
                while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
                    if let AsyncMessage::Notification(_) = message? {
                        waker.notify_one();
                    }
                }
                Ok::<(), tokio_postgres::Error>(())
            };
            let outcome = tokio::select! {
                outcome = driven => outcome,
                () = abandoned => return,
            };
            let ended = match outcome {
                Ok(()) => Ended::Lost(Error::new(
                    Kind::PostgresUnreachable,
                    format_args!("while {act}: it was closed"),
                )),
                Err(error)
                    if error
                        .code()
                        .is_some_and(|code| fault::is_shutdown(code.code())) =>
                {
                    Ended::Shutdown(fault::sql(act, &error))
                }
                Err(error) => Ended::Lost(fault::sql(act, &error)),
            };
            sender.send_replace(Some(ended));
        });
        SqlSession {
            client,
            ended: receiver,
            notified,
        }
    }
}

/// Where the server of a session is asked to cancel its statement.
struct Canceller {
    token: CancelToken,
    info: ConnInfo,
    target: Target,
}

impl Canceller {
    /// Asks once. The server does not say whether there was a statement.
    async fn cancel(&self) {
        if let Err(error) = self.ask().await {
            tracing::debug!(%error, "the server could not be asked to cancel a statement");
        }
    }

    async fn ask(&self) -> Result<()> {
        let config = tls::client_config(&self.info.tls)?;
        let Opened { socket, tls } =
            transport::open(&self.info, &self.target, config.as_ref()).await?;
        let asked = match tls {
            None => self.token.cancel_query_raw(socket, NoTls).await,
            Some((config, name)) => {
                let tls = BoundedTls { config, name };
                self.token.cancel_query_raw(socket, tls).await
            }
        };
        asked.map_err(|error| fault::query("cancelling a statement", &error))
    }
}

struct SqlLogin<'a> {
    info: &'a ConnInfo,
    application_name: &'a str,
}

impl Login for SqlLogin<'_> {
    type Session = SqlSession;

    async fn log_in(&self, target: &Target, opened: Opened) -> Result<SqlSession> {
        let place = transport::place(self.info, target);
        let act = While::Connecting(&place);
        let mut config = self.config(target)?;
        let session = match opened.tls {
            None => {
                config.ssl_mode(Mode::Disable);
                let connected = config.connect_raw(Bounded::new(opened.socket), NoTls).await;
                let (client, connection) = connected.map_err(|error| fault::sql(act, &error))?;
                SqlSession::driven(client, connection, &place, self.info, target)
            }
            Some((tls_config, name)) => {
                // The server has already agreed to TLS: "direct" makes the library begin with the
                // handshake.
                config
                    .ssl_mode(Mode::Require)
                    .ssl_negotiation(SslNegotiation::Direct);
                let tls = BoundedTls {
                    config: tls_config,
                    name,
                };
                let connected = config.connect_raw(opened.socket, tls).await;
                let (client, connection) = connected.map_err(|error| fault::sql(act, &error))?;
                SqlSession::driven(client, connection, &place, self.info, target)
            }
        };
        let limit = format!("'{}'", STATEMENT_TIMEOUT.as_millis());
        let settings = SETTINGS.replace("$limit", &limit);
        session
            .client
            .batch_execute(&settings)
            .await
            .map_err(|error| fault::sql(act, &error))?;
        if self.info.primary_only {
            let row = session
                .client
                .query_one("SELECT pg_catalog.pg_is_in_recovery()", &[])
                .await;
            let in_recovery = row
                .and_then(|row| row.try_get::<_, bool>(0))
                .map_err(|error| fault::sql(act, &error))?;
            if in_recovery {
                return Err(in_recovery_error(act));
            }
        }
        Ok(session)
    }
}

/// The server is a standby and a primary is required. Another server of the list may be one.
pub(super) fn in_recovery_error(act: While<'_>) -> Error {
    Error::new(
        Kind::PostgresUnreachable,
        format_args!("while {act}: the server is a standby"),
    )
}

impl SqlLogin<'_> {
    fn config(&self, target: &Target) -> Result<tokio_postgres::Config> {
        let mut config = tokio_postgres::Config::new();
        config
            .user(&self.info.user)
            .dbname(&self.info.database)
            .application_name(self.application_name);
        if let Some(options) = &self.info.options {
            config.options(options);
        }
        if let Some(password) = self.info.password_for(target)? {
            config.password(password.expose());
        }
        config.channel_binding(self.info.tls.channel_binding);
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const READY: &[u8] = b"C\0\0\0\x07OK\0Z\0\0\0\x05I";
    /// Process id and secret key.
    const KEY: [u8; 8] = [0, 0, 0, 7, 1, 2, 3, 4];

    async fn message(stream: &mut TcpStream) -> Vec<u8> {
        let length = stream.read_u32().await.unwrap();
        let mut body = vec![0; usize::try_from(length).unwrap() - 4];
        stream.read_exact(&mut body).await.unwrap();
        body
    }

    /// A server that lets a client in, takes its settings, and leaves its next statement without an
    /// answer.
    async fn answered(listener: &TcpListener) -> TcpStream {
        let mut stream = listener.accept().await.unwrap().0;
        message(&mut stream).await;
        stream
            .write_all(b"R\0\0\0\x08\0\0\0\0K\0\0\0\x0c")
            .await
            .unwrap();
        stream.write_all(&KEY).await.unwrap();
        stream.write_all(b"Z\0\0\0\x05I").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'Q');
        let settings = String::from_utf8(message(&mut stream).await).unwrap();
        let limit = format!(
            "('lock_timeout', '{0}'), ('statement_timeout', '{0}')",
            STATEMENT_TIMEOUT.as_millis()
        );
        assert!(
            settings.contains(&limit) && settings.contains("('synchronous_commit', 'local')"),
            "{settings}"
        );
        stream.write_all(READY).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'Q');
        message(&mut stream).await;
        stream
    }

    #[tokio::test]
    async fn a_session_that_is_dropped_during_a_statement_has_the_server_cancel_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!(
            "postgres://u@{}/d?sslmode=disable",
            listener.local_addr().unwrap()
        );
        let info = ConnInfo::parse(Some(&url), &|_| None).unwrap();
        let (session, stream) = tokio::join!(
            async {
                let session = SqlSession::connect(&info, "test").await.unwrap();
                let waits = tokio::time::timeout(
                    Duration::from_millis(50),
                    session.run("waiting", "select 1"),
                )
                .await;
                assert!(waits.is_err(), "nobody answers");
                session
            },
            answered(&listener)
        );
        drop(session);
        let mut cancel = listener.accept().await.unwrap().0;
        assert_eq!(
            message(&mut cancel).await,
            [&80_877_102_u32.to_be_bytes()[..], &KEY].concat()
        );
        drop(stream);
    }
}
