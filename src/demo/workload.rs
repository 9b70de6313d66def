//! Business transactions as applications make them: a counter per aggregate under its row lock, and an event for every
//! step of it in the outbox. The counter is what makes order checkable: versions follow commit order.
//!
//! The shapes that have found bugs are all there: several events in a transaction, roll-backs, savepoints kept and
//! rolled back, transaction ids taken long before the lock, and changes to tables that are none of the relay's
//! business.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_postgres::{Client, Statement};

use super::postgres::connect;
use super::verify::{Committed, fingerprint};
use crate::error::{Error, Kind, Result};

/// The outbox table.
pub const OUTBOX_TABLE: &str = "public.outbox";

/// Rows fetched at a time when the outbox is read.
const LEDGER_BATCH: i32 = 10_000;

const SCHEMA: &str = "
create table account (
    aggregate text primary key,
    aggregatetype text not null,
    version bigint not null default 0,
    balance bigint not null default 0
);
create table outbox (
    id uuid primary key default gen_random_uuid(),
    aggregatetype text not null,
    aggregateid text not null,
    type text not null,
    payload jsonb not null
);
create table noise (at timestamptz not null default clock_timestamp(), text text);
";

const STEP: &str = "
with step as (
    update account set version = version + 1, balance = balance + $2
    where aggregate = $1 returning aggregatetype, aggregate, version
)
insert into outbox (aggregatetype, aggregateid, type, payload)
select aggregatetype, aggregate, $3, jsonb_build_object(
    'aggregate', aggregate, 'version', version, 'committed_by', $4::bigint, 'at', clock_timestamp(), 'text', $5::text)
from step";

const NOISE: &str = "insert into noise (text) values ($1)";

const LEDGER: &str = "
select id::text, aggregatetype, aggregateid, (payload->>'version')::bigint, payload::text,
       case when current_setting('track_commit_timestamp')::bool
            then (extract(epoch from pg_xact_commit_timestamp(xmin)) * 1000000)::bigint end
from public.outbox";

/// What to write, and how fast.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Connections writing at a time.
    pub writers: usize,
    /// How many aggregates there are, shared out among the types.
    pub aggregates: usize,
    /// Aggregate types: one topic each.
    pub types: Vec<String>,
    /// Transactions per second of all writers together; as fast as it goes where `None`.
    pub transactions_per_second: Option<u32>,
    /// Longest filler text in a payload, in characters; lengths are spread evenly.
    pub filler_chars_max: usize,
    /// The same seed makes the same sequence of decisions in each writer.
    pub seed: u64,
    /// Go on through lost connections, for as long as it takes, rather than end with an error.
    pub reconnect: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            writers: 8,
            aggregates: 100,
            types: vec!["order".to_owned(), "invoice".to_owned()],
            transactions_per_second: None,
            filler_chars_max: 200,
            seed: 1,
            reconnect: false,
        }
    }
}

impl Settings {
    fn type_of(&self, aggregate: usize) -> Option<&str> {
        self.types.get(aggregate.checked_rem(self.types.len())?).map(String::as_str)
    }

    fn name_of(&self, aggregate: usize) -> String {
        format!("{}-{aggregate}", self.type_of(aggregate).unwrap_or_default())
    }
}

/// What was written so far. A commit whose answer was lost is in none of them: the outbox itself is the truth.
#[derive(Debug, Default)]
pub struct Counts {
    /// Transactions committed.
    pub committed_transactions: AtomicU64,
    /// Events in those.
    pub committed_events: AtomicU64,
    /// Transactions rolled back, on purpose or by the server.
    pub rolled_back: AtomicU64,
    /// Connections lost.
    pub disconnects: AtomicU64,
}

/// Creates the tables and one row for each aggregate. To be called once.
///
/// # Errors
/// What Postgres says.
pub async fn prepare(client: &Client, settings: &Settings) -> Result<()> {
    client.batch_execute(SCHEMA).await.map_err(|error| refused("creating the tables", &error))?;
    let (names, types): (Vec<_>, Vec<_>) =
        (0..settings.aggregates).map(|index| (settings.name_of(index), settings.type_of(index))).unzip();
    let insert = "insert into account (aggregate, aggregatetype) select * from unnest($1::text[], $2::text[])";
    client.execute(insert, &[&names, &types]).await.map_err(|error| refused("creating the aggregates", &error))?;
    Ok(())
}

/// Reads the whole outbox: what has to arrive. Topics are `topic_prefix` and the aggregate's type.
///
/// # Errors
/// What Postgres says.
pub async fn ledger(client: &mut Client, topic_prefix: &str) -> Result<Vec<Committed>> {
    let failed = |error| refused("reading the outbox", &error);
    let transaction = client.transaction().await.map_err(failed)?;
    let portal = transaction.bind(LEDGER, &[]).await.map_err(failed)?;
    let mut committed: Vec<Committed> = Vec::new();
    let mut topics = std::collections::HashMap::<String, Arc<str>>::new();
    loop {
        let rows = transaction.query_portal(&portal, LEDGER_BATCH).await.map_err(failed)?;
        if rows.is_empty() {
            return Ok(committed);
        }
        for row in rows {
            let kind: String = row.try_get(1).map_err(failed)?;
            let topic = topics.entry(kind).or_insert_with_key(|kind| format!("{topic_prefix}{kind}").into());
            committed.push(Committed {
                id: row.try_get::<_, &str>(0).map_err(failed)?.into(),
                topic: Arc::clone(topic),
                aggregate: row.try_get::<_, &str>(2).map_err(failed)?.into(),
                version: row.try_get(3).map_err(failed)?,
                payload: fingerprint(Some(row.try_get::<_, &str>(4).map_err(failed)?.as_bytes())),
                committed_at_us: row.try_get(5).map_err(failed)?,
            });
        }
    }
}

/// Writers at work. Dropping it abandons them where they are.
#[derive(Debug)]
pub struct Workload {
    counts: Arc<Counts>,
    stop: watch::Sender<bool>,
    writers: Vec<JoinHandle<Result<()>>>,
}

impl Workload {
    /// Starts the writers against a database where [`prepare`] was called with the same settings.
    pub fn start(config: &tokio_postgres::Config, settings: &Settings) -> Self {
        let counts = Arc::new(Counts::default());
        let (stop, stopped) = watch::channel(false);
        let writer = |index: usize| {
            let writer = Writer {
                index,
                config: config.clone(),
                settings: settings.clone(),
                rng: Rng::with_seed(settings.seed.wrapping_mul(1_000_003).wrapping_add(index as u64)),
                counts: Arc::clone(&counts),
                stopped: stopped.clone(),
            };
            tokio::spawn(writer.run())
        };
        let writers = (0..settings.writers).map(writer).collect();
        Workload { counts, stop, writers }
    }

    /// What was written so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Whether a writer has ended by itself, which only an error makes it do.
    pub fn is_broken(&self) -> bool {
        self.writers.iter().any(JoinHandle::is_finished)
    }

    /// Lets each writer end its transaction, and waits for all.
    ///
    /// # Errors
    /// The first writer's that met one.
    pub async fn stop(mut self) -> Result<Arc<Counts>> {
        self.stop.send_replace(true);
        let mut outcome = Ok(());
        for writer in std::mem::take(&mut self.writers) {
            let ended = writer.await.map_err(|error| Error::new(Kind::Bug, format!("a writer panicked: {error}")));
            outcome = outcome.and(ended.and_then(|ended| ended));
        }
        outcome.map(|()| Arc::clone(&self.counts))
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        for writer in &self.writers {
            writer.abort();
        }
    }
}

struct Writer {
    index: usize,
    config: tokio_postgres::Config,
    settings: Settings,
    rng: Rng,
    counts: Arc<Counts>,
    stopped: watch::Receiver<bool>,
}

struct Session {
    client: Client,
    step: Statement,
    noise: Statement,
}

impl Writer {
    async fn run(mut self) -> Result<()> {
        while !self.is_stopped() {
            let outcome = match self.connect().await {
                Ok(session) => self.write(&session).await,
                Err(error) => Err(error),
            };
            match outcome {
                Ok(()) => return Ok(()),
                Err(error) if !self.settings.reconnect => return Err(error),
                Err(_) => {
                    self.counts.disconnects.fetch_add(1, Ordering::Relaxed);
                    // The server is down or starting: it has no way to call us back.
                    let mut stopped = self.stopped.clone();
                    let pause = Duration::from_millis(self.rng.u64(20..100));
                    drop(tokio::time::timeout(pause, stopped.wait_for(|stopped| *stopped)).await);
                }
            }
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    async fn connect(&self) -> Result<Session> {
        let client = connect(&self.config).await?;
        let prepared = |sql| client.prepare(sql);
        let step = prepared(STEP).await.map_err(|error| refused("preparing to write", &error))?;
        let noise = prepared(NOISE).await.map_err(|error| refused("preparing to write", &error))?;
        Ok(Session { client, step, noise })
    }

    async fn write(&mut self, session: &Session) -> Result<()> {
        let per_writer =
            |total: u32| Duration::from_secs_f64(self.settings.writers.max(1) as f64 / f64::from(total.max(1)));
        let mut ticks = self.settings.transactions_per_second.map(|total| {
            let mut ticks = interval(per_writer(total));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        while !self.is_stopped() {
            if let Some(ticks) = &mut ticks {
                ticks.tick().await;
            }
            match self.transaction(session).await {
                Ok(()) => {}
                // The server chose this transaction to give way; the next one is as good.
                Err(error) if error.code().is_some() && !session.client.is_closed() => {
                    session.client.batch_execute("rollback").await.map_err(|error| refused("rolling back", &error))?;
                    self.counts.rolled_back.fetch_add(1, Ordering::Relaxed);
                    if !is_passing(&error) {
                        return Err(refused("writing", &error));
                    }
                }
                Err(error) => return Err(refused("writing", &error)),
            }
        }
        Ok(())
    }

    async fn transaction(&mut self, session: &Session) -> std::result::Result<(), tokio_postgres::Error> {
        let client = &session.client;
        let [early, inner_rollback, inner_commit, rollback] =
            [15, 10, 10, 10].map(|percent| self.rng.u8(0..100) < percent);
        // Locks are taken in ascending order, so that writers wait for each other and do not deadlock.
        let mut aggregates: Vec<usize> =
            (0..self.rng.usize(1..=4)).map(|_| self.rng.usize(0..self.settings.aggregates.max(1))).collect();
        aggregates.sort_unstable();
        let last = aggregates.pop().filter(|_| aggregates.len() == 3 || inner_commit || inner_rollback);

        client.batch_execute("begin").await?;
        if early {
            // Takes the transaction id long before the locks: its commit may come after those of younger ids.
            client.execute(&session.noise, &[&"early"]).await?;
            tokio::time::sleep(Duration::from_millis(self.rng.u64(0..5))).await;
        }
        let mut events = 0;
        for aggregate in aggregates {
            events += self.step(session, aggregate).await?;
        }
        if let Some(last) = last.or((events == 0).then_some(0)) {
            client.batch_execute("savepoint inner_part").await?;
            let inner_events = self.step(session, last).await?;
            if inner_rollback {
                client.batch_execute("rollback to savepoint inner_part").await?;
            } else {
                client.batch_execute("release savepoint inner_part").await?;
                events += inner_events;
            }
        }
        if self.rng.u8(0..100) < 20 {
            client.execute(&session.noise, &[&"late"]).await?;
        }
        if rollback {
            client.batch_execute("rollback").await?;
            self.counts.rolled_back.fetch_add(1, Ordering::Relaxed);
        } else {
            client.batch_execute("commit").await?;
            self.counts.committed_transactions.fetch_add(1, Ordering::Relaxed);
            self.counts.committed_events.fetch_add(events, Ordering::Relaxed);
        }
        Ok(())
    }

    /// One step of one aggregate and its event; gives the number of events.
    async fn step(&mut self, session: &Session, aggregate: usize) -> std::result::Result<u64, tokio_postgres::Error> {
        let name = self.settings.name_of(aggregate);
        let amount = self.rng.i64(-100..100);
        let event_type = if amount < 0 { "withdrawn" } else { "deposited" };
        let filler: String = (0..self.rng.usize(0..=self.settings.filler_chars_max)).map(|_| self.filler()).collect();
        let by = self.index as i64;
        session.client.execute(&session.step, &[&name, &amount, &event_type, &by, &filler]).await
    }

    /// Mostly plain, and now and then what escaping goes wrong on.
    fn filler(&mut self) -> char {
        const AWKWARD: [char; 8] = ['"', '\\', '\n', '\t', 'ä', '€', '🦀', '\u{7f}'];
        match self.rng.u8(0..20) {
            0 => self.rng.choice(AWKWARD).unwrap_or('x'),
            _ => self.rng.alphanumeric(),
        }
    }
}

/// Deadlock, serialization failure, lock timeout: the transaction is gone, nothing is wrong.
fn is_passing(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("40") || code.code() == "55P03")
}

/// SQLSTATE and message, not the detail: that may hold values of a row.
fn refused(doing: &str, error: &tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(db) => {
            let what = format!("{doing}: {} (SQLSTATE {})", db.message(), db.code().code());
            Error::new(Kind::PostgresRefused, what)
        }
        None => Error::new(Kind::PostgresUnreachable, format!("{doing}: {error}")),
    }
}

/// Waits until this many events are committed; false where `deadline` passes first or a writer is broken.
pub async fn committed_at_least(workload: &Workload, events: u64, deadline: Instant) -> bool {
    while workload.counts().committed_events.load(Ordering::Relaxed) < events {
        if workload.is_broken() || Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::postgres::{PrivatePostgres, Settings as PostgresSettings};

    #[tokio::test]
    async fn it_leaves_an_outbox_whose_versions_have_no_gaps_and_agree_with_the_counters() {
        let configuration = "track_commit_timestamp = on".to_owned();
        let server = PrivatePostgres::start(PostgresSettings { configuration, ..Default::default() }).unwrap();
        let mut client = server.connect().await.unwrap();
        let settings = Settings { writers: 4, aggregates: 5, reconnect: true, ..Settings::default() };
        prepare(&client, &settings).await.unwrap();
        let workload = Workload::start(&server.client_config(), &settings);
        assert!(committed_at_least(&workload, 500, Instant::now() + Duration::from_secs(60)).await);
        let counts = workload.stop().await.unwrap();

        let rows = ledger(&mut client, "outbox.event.").await.unwrap();
        assert_eq!(rows.len() as u64, counts.committed_events.load(Ordering::Relaxed));
        assert!(counts.rolled_back.load(Ordering::Relaxed) > 0);
        assert_eq!(counts.disconnects.load(Ordering::Relaxed), 0);
        assert!(rows.iter().all(|row| row.committed_at_us.is_some()));
        let mut versions = std::collections::BTreeMap::<_, Vec<_>>::new();
        for row in &rows {
            versions.entry(row.aggregate.to_string()).or_default().push(row.version);
        }
        for (aggregate, mut versions) in versions {
            versions.sort_unstable();
            assert!(versions.iter().copied().eq(1..=versions.len() as i64), "{aggregate}: {versions:?}");
            let query = "select version from account where aggregate = $1";
            let version: i64 = client.query_one(query, &[&aggregate]).await.unwrap().get(0);
            assert_eq!(version, versions.len() as i64, "{aggregate}");
        }
        let topics: std::collections::BTreeSet<_> = rows.iter().map(|row| row.topic.to_string()).collect();
        assert_eq!(topics.into_iter().collect::<Vec<_>>(), ["outbox.event.invoice", "outbox.event.order"]);
    }

    #[tokio::test]
    async fn it_goes_on_after_a_crash_of_the_server_when_told_to() {
        let mut server = PrivatePostgres::start(PostgresSettings::default()).unwrap();
        let settings = Settings { writers: 2, reconnect: true, ..Settings::default() };
        prepare(&server.connect().await.unwrap(), &settings).await.unwrap();
        let workload = Workload::start(&server.client_config(), &settings);
        let deadline = Instant::now() + Duration::from_secs(60);
        assert!(committed_at_least(&workload, 50, deadline).await);
        server.kill().unwrap();
        server.launch().unwrap();
        let before = workload.counts().committed_events.load(Ordering::Relaxed);
        assert!(committed_at_least(&workload, before + 50, deadline).await);
        let counts = workload.stop().await.unwrap();
        assert!(counts.disconnects.load(Ordering::Relaxed) > 0);
    }
}
