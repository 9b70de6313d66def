//! The control session: plain SQL beside the stream (P7, P8).
//!
//! A server that shuts down ends ordinary sessions at once, and waits until walsenders have sent
//! everything and the receivers have confirmed it. So the relay keeps an ordinary session open, to
//! notice a shutdown. The same session reads catalogs and stores positions, because the replication
//! session takes no commands while it streams
//! (<https://www.postgresql.org/docs/current/protocol-replication.html>).

use std::sync::{Arc, Weak};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::{Mutex, watch};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::config::{Config, SourceConfig};
use crate::postgres::query::{Param, QUERY_TIMEOUT, QueryError, bounded, one_json, one_text};
use crate::postgres::quote::{quote_ident, quote_literal, quote_table};
use crate::postgres::sql::{Ended, SqlSession};
use crate::source::catalog::Catalogs;
use crate::source::preflight::{SLOT, Slot};
use crate::source::synchronous::Synchronous;
use crate::source::watch::{Fingerprint, Look, seen};
use walrelay_core::config::{OutboxConfig, TableName};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::ledger::trail::Pair;
use walrelay_core::position::Lsn;
use walrelay_core::snapshot::Snapshot;
use walrelay_core::stream_record::Versioned;

const PAIR: &str = include_str!("../../sql/source/pair.sql");

/// The longest interval of pings: a dead session is noticed within this and the query timeout.
const PING_INTERVAL_MAX: Duration = Duration::from_secs(5);

/// The objects that the control session reads.
#[derive(Debug)]
struct Watched {
    source: SourceConfig,
    outboxes: Vec<OutboxConfig>,
}

/// The greatest number of pending rows that one query of an outbox gives.
const PENDING_ROWS_MAX: usize = 500;

/// A pending row: its outbox, and the values of its key.
pub(crate) type PendingRow = (usize, Vec<String>);

/// Selects the index of `outbox`, and the keys of its pending rows; none where rows do not say that
/// they are pending.
fn pending_sql(number: usize, outbox: &OutboxConfig) -> Result<Option<String>> {
    let (Some(table), Some(condition)) = (outbox.source.table(), &outbox.upkeep.pending) else {
        return Ok(None);
    };
    let table = quote_table(table)?;
    // The id comes first.
    let columns = outbox
        .key_columns()
        .map(|column| quote_ident(column))
        .collect::<Result<Vec<_>>>()?;
    let id = columns.first().cloned().unwrap_or_default();
    let key: String = columns.iter().map(|column| format!(", {column}")).collect();
    Ok(Some(format!(
        "select {number}{key} from {table} where ({condition}\n) and {id} is not null limit \
         {PENDING_ROWS_MAX}; "
    )))
}

/// The present state of slot and WAL, never to be confirmed.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct WalPosition {
    /// The end of the flushed WAL, or of the replayed WAL on a standby.
    pub wal_end: Lsn,
    pub snapshot: Option<Snapshot>,
    pub slot: Option<Slot>,
    pub synchronous: Synchronous,
    pub oldest_transaction: Option<OldTransaction>,
}

/// The oldest open transaction.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct OldTransaction {
    /// None for a prepared transaction.
    pub pid: Option<i32>,
    /// Where the role may read it.
    pub open_seconds: Option<i64>,
    /// `application_name`, likewise.
    pub application: Option<String>,
}

impl WalPosition {
    pub(crate) fn retained_bytes(&self) -> Option<u64> {
        let restart = self.slot.as_ref()?.restart_lsn?;
        Some(self.wal_end.bytes_since(restart))
    }
}

/// A handle to the control session; clones share it, and it ends with the last of them.
///
/// One statement runs at a time, in the order of the calls, each within ten seconds. Every method
/// answers [`Kind::PostgresUnreachable`] once the session is over. A call that is cancelled is
/// still carried out.
#[derive(Debug, Clone)]
pub(crate) struct Control(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Locked for each statement; none after the end of the session.
    session: Mutex<Option<Arc<SqlSession>>>,
    watched: Arc<Watched>,
    ended: watch::Sender<Option<Ended>>,
}

impl Control {
    /// Keeps the session alive from a task on the current runtime.
    pub(crate) fn start(session: SqlSession, config: &Config) -> Control {
        let closed = session.closed();
        let interval = (config.source.wal_sender_timeout / 3).min(PING_INTERVAL_MAX);
        let (ended, receiver) = watch::channel(None);
        let session = Mutex::new(Some(Arc::new(session)));
        let watched = Arc::new(Watched {
            source: config.source.clone(),
            outboxes: config.outboxes.clone(),
        });
        let shared = Arc::new(Shared {
            session,
            watched,
            ended,
        });
        tokio::spawn(keep_alive(
            Arc::downgrade(&shared),
            interval,
            closed,
            receiver,
        ));
        Control(shared)
    }

    /// Waits for the end of the session, which is lost also where a statement got no answer. Safe
    /// to cancel and to call again.
    pub(crate) fn closed(&self) -> impl Future<Output = Ended> + Send + 'static {
        let mut ended = self.0.ended.subscribe();
        async move {
            let end = ended
                .wait_for(Option::is_some)
                .await
                .ok()
                .and_then(|end| end.clone());
            end.unwrap_or_else(|| Ended::Lost(gone()))
        }
    }

    /// Whether the session has ended, and [`Control::closed`] says why.
    pub(crate) fn is_over(&self) -> bool {
        self.0.ended.borrow().is_some()
    }

    /// Publication and each table as they are now. With `before`, the answer has new names after a
    /// rename.
    pub(crate) async fn check_catalog(&self, before: Vec<Fingerprint>) -> Result<Look> {
        let watched = Arc::clone(&self.0.watched);
        let look = |session: Arc<SqlSession>| async move {
            let tables: Vec<_> = watched
                .outboxes
                .iter()
                .filter_map(|outbox| outbox.source.table())
                .collect();
            let publication = &watched.source.publication;
            let found =
                Catalogs::read(session.client(), publication, &tables, &seen(&before)).await?;
            let catalogs = found.of_tables.iter().zip(tables);
            let now = catalogs
                .map(|(catalog, table)| Fingerprint::of(catalog, publication, table))
                .collect();
            Ok(Look {
                now,
                next_xid: None,
                unreadable: None,
            })
        };
        self.ask(look).await
    }

    /// Assigns a transaction id: all that were assigned before are lower.
    pub(crate) async fn next_xid(&self) -> Result<Option<u64>> {
        const DOING: &str = "assigning a transaction id";
        const SQL: &str = "select pg_catalog.pg_current_xact_id()::text";
        let ask = |session: Arc<SqlSession>| async move {
            one_text(session.client(), DOING, SQL, &[]).await
        };
        Ok(self.ask(ask).await?.and_then(|text| text.parse().ok()))
    }

    /// The state of slot and WAL, for metrics and `status`.
    pub(crate) async fn wal_position(&self) -> Result<WalPosition> {
        let watched = Arc::clone(&self.0.watched);
        let position = |session: Arc<SqlSession>| async move {
            let params = [(&watched.source.slot.as_str() as _, Type::TEXT)];
            one_json(
                session.client(),
                "reading the position of the log",
                SLOT,
                &params,
            )
            .await
        };
        self.ask(position).await
    }

    /// Keys of pending rows, and the end of the WAL after they were read. An error can be about a
    /// changed table or condition.
    pub(crate) async fn look_pending(&self) -> Result<(Vec<PendingRow>, Lsn)> {
        const DOING: &str = "looking for pending rows";
        let mut sql = String::new();
        for (number, outbox) in self.0.watched.outboxes.iter().enumerate() {
            sql.extend(pending_sql(number, outbox)?);
        }
        // In statements of their own, one after the other: each sees what committed before it.
        sql.push_str("select pg_catalog.pg_current_wal_insert_lsn()::text");
        let look = |session: Arc<SqlSession>| async move {
            bounded(DOING, QUERY_TIMEOUT, session.client().simple_query(&sql)).await
        };
        let mut rows = Vec::new();
        let mut lsn = None;
        for message in &self.ask(look).await? {
            let SimpleQueryMessage::Row(row) = message else {
                continue;
            };
            let text = |at| row.try_get(at).ok().flatten();
            // A row that is older than the column with its transaction has none.
            let key = (1..row.len())
                .map_while(|at| text(at).map(str::to_owned))
                .collect::<Vec<_>>();
            match (text(0), key.is_empty()) {
                (Some(number), false) => {
                    rows.extend(number.parse().ok().map(|outbox| (outbox, key)))
                }
                (Some(end), true) => lsn = end.parse().ok(),
                (None, _) => {}
            }
        }
        let lsn = lsn.ok_or_else(|| {
            Error::new(
                Kind::PostgresUnfit,
                format!("while {DOING}: the log has no end"),
            )
        })?;
        Ok((rows, lsn))
    }

    /// Whether `table` has a row with these values in these columns; none without the privilege to
    /// read it.
    pub(crate) async fn is_kept(
        &self,
        table: TableName,
        key: Vec<(String, String)>,
    ) -> Result<Option<bool>> {
        let of = |(column, value): &(String, String)| {
            Ok(format!(
                "{} = {}",
                quote_ident(column)?,
                quote_literal(value)?
            ))
        };
        let key = key
            .iter()
            .map(of)
            .collect::<Result<Vec<_>>>()?
            .join(" and ");
        let sql = format!(
            "select (exists (select from {} where {key}))::text",
            quote_table(&table)?
        );
        let look = |session: Arc<SqlSession>| async move {
            match one_text(session.client(), "looking for a row", &sql, &[]).await {
                Ok(text) => Ok(text.map(|text| text == "true")),
                Err(QueryError::Refused { error, .. }) => {
                    tracing::debug!(%error, "cannot check whether rows stay in the table");
                    Ok(None)
                }
                Err(other) => Err(other),
            }
        };
        self.ask(look).await
    }

    pub(crate) async fn timeline(&self) -> Result<u32> {
        self.ask(|session| async move { timeline(session.client()).await })
            .await
    }

    /// A snapshot, the end of the WAL after it was taken, and the publication that it sees with
    /// these memberships.
    pub(crate) async fn take_pair(&self, membership_oids: Vec<u32>) -> Result<Versioned> {
        const DOING: &str = "taking a snapshot";
        let watched = Arc::clone(&self.0.watched);
        let take = |session: Arc<SqlSession>| async move {
            let params: [Param<'_>; 2] = [
                (&watched.source.publication, Type::TEXT),
                (&membership_oids, Type::OID_ARRAY),
            ];
            one_text(session.client(), DOING, PAIR, &params).await
        };
        let text = self.ask(take).await?.unwrap_or_default();
        let mut parts = text.split(' ');
        let mut part = || parts.next().unwrap_or_default();
        let snapshot = part().parse();
        let lsn = part().parse();
        let publication_version = part().to_owned();
        let alterations = parts.map(str::parse).collect();
        let (Ok(snapshot), Ok(lsn), Ok(alterations)) = (snapshot, lsn, alterations) else {
            return Err(Error::new(
                Kind::PostgresUnfit,
                format!("while {DOING}: the answer is not as documented"),
            ));
        };
        Ok(Versioned {
            pair: Pair { snapshot, lsn },
            publication_version,
            alterations,
        })
    }

    /// Runs `question` in a task of its own, so that a caller that is not polled does not block
    /// other callers. Errors: those of the question; [`Kind::PostgresUnreachable`] once the session
    /// is over.
    pub(crate) async fn ask<T, F>(
        &self,
        question: impl FnOnce(Arc<SqlSession>) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, QueryError>> + Send + 'static,
    {
        let shared = Arc::clone(&self.0);
        let asked = tokio::spawn(async move { shared.answer(question).await });
        asked.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl Shared {
    /// The answer to `question`, once those before it were answered. Ends the session where the
    /// error says so.
    async fn answer<T, F>(&self, question: impl FnOnce(Arc<SqlSession>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, QueryError>>,
    {
        let mut turn = self.session.lock().await;
        let is_over = self.ended.borrow().is_some();
        let Some(session) = turn.clone().filter(|_| !is_over) else {
            return Err(self
                .ended
                .borrow()
                .as_ref()
                .map_or_else(gone, |end| end.error().clone()));
        };
        let answer = question(Arc::clone(&session)).await;
        let end = match &answer {
            Ok(_) | Err(QueryError::Refused { .. }) => None,
            Err(QueryError::ShuttingDown(error)) => Some(Ended::Shutdown(error.clone())),
            // The connection says why it is closed, and better.
            Err(QueryError::Broken(_)) if session.client().is_closed() => None,
            Err(QueryError::Broken(error)) => Some(Ended::Lost(error.clone())),
        };
        if let Some(end) = end {
            *turn = None;
            self.end(end);
        }
        Ok(answer?)
    }

    /// Passes `end` to all that wait for the end of the session. Only the first call has an effect.
    fn end(&self, end: Ended) {
        let end = match end {
            Ended::Shutdown(_) => Ended::Shutdown(Error::new(
                Kind::PostgresUnreachable,
                "Postgres is shutting down",
            )),
            Ended::Lost(error) => Ended::Lost(error),
        };
        self.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert(end);
            is_first
        });
    }
}

fn gone() -> Error {
    Error::new(
        Kind::PostgresUnreachable,
        "the control session with Postgres is over",
    )
}

/// Pings the session every `interval` and passes its end on, until the session has ended or all
/// handles are dropped.
async fn keep_alive(
    control: Weak<Shared>,
    interval: Duration,
    closed: impl Future<Output = Ended>,
    mut ended: watch::Receiver<Option<Ended>>,
) {
    tokio::pin!(closed);
    loop {
        let end = tokio::select! {
            biased;
            _ = ended.changed() => return,
            end = &mut closed => Some(end),
            () = tokio::time::sleep(interval) => None,
        };
        let Some(control) = control.upgrade() else {
            return;
        };
        if let Some(end) = end {
            return control.end(end);
        }
        // An empty statement: the server answers, and does nothing.
        let ping = |session: Arc<SqlSession>| async move {
            bounded(
                "asking for a sign of life",
                QUERY_TIMEOUT,
                session.client().batch_execute(""),
            )
            .await
        };
        if let Err(error) = control.answer(ping).await {
            tracing::debug!(%error, "the control session did not answer a ping");
        }
    }
}

pub(crate) async fn timeline(client: &Client) -> Result<u32, QueryError> {
    // The name of a segment begins with its timeline.
    let sql = "select pg_catalog.left( \
         pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8)";
    let text = one_text(client, "asking for the timeline", sql, &[])
        .await?
        .unwrap_or_default();
    u32::from_str_radix(&text, 16).map_err(|_| {
        QueryError::refused(Error::new(
            Kind::PostgresUnfit,
            "while asking for the timeline: the answer is no number",
        ))
    })
}
