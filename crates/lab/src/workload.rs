//! Business transactions as applications make them: a counter per aggregate under its row lock, and
//! an event for every step of it in the outbox. The counter is what makes order checkable: versions
//! follow commit order.
//!
//! The shapes that have found bugs are all there: several events in a transaction, roll-backs,
//! savepoints kept and rolled back, transaction ids taken long before the lock, and changes to
//! tables that are none of the relay's business.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use futures_util::TryStreamExt as _;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_postgres::{Client, Statement};
use tokio_util::task::AbortOnDropHandle;

use crate::postgres::{connect, failed};
use crate::verify::{Committed, fingerprint};
use walrelay_core::error::{Error, Kind, Result};

/// The outbox table.
pub(crate) const OUTBOX_TABLE: &str = "public.outbox";

/// Longest time between a transaction's id and its first lock, where the id is taken early.
const EARLY_MAX: Duration = Duration::from_millis(8);

/// The outbox, the counters, a table of nobody's business, and `emit`, which steps a counter and
/// inserts the event of it. The filling has what goes wrong where text is escaped.
pub const SCHEMA: &str = r#"
create table outbox (id uuid primary key, aggregatetype varchar(255), aggregateid varchar(255),
    type varchar(255), payload jsonb);
create table counter (aggregate text primary key, version bigint not null default 0);
create table noise (n bigint, filling text);
create function emit(kind text, aggregate_ text, filling int) returns bigint language plpgsql as $$
declare v bigint;
begin
    insert into counter values (aggregate_) on conflict do nothing;
    update counter set version = version + 1 where aggregate = aggregate_ returning version into v;
    insert into outbox (id, aggregatetype, aggregateid, type, payload) values (
        gen_random_uuid(), kind, aggregate_, 'Changed',
        jsonb_build_object('v', v, 'of', aggregate_, 'filling',
            left(repeat(E'xxxx plain, "quoted", \\ \n\t\x7f \u00e4 \u20ac ', filling / 20 + 1),
                 filling)));
    return v;
end $$;
"#;

const EMIT: &str = "select emit($1, $2, $3) from generate_series(1, $4::int)";

const NOISE: &str =
    "insert into noise select n, repeat('y', 200) from generate_series(1, $1::int) n";

const LEDGER: &str = "
select id::text, aggregatetype, aggregateid, (payload->>'v')::bigint, payload::text,
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
    /// Longest pause of a writer between two transactions.
    pub pause_max: Duration,
    /// Longest time a transaction holds its locks before it ends.
    pub hold_max: Duration,
    /// Longest filling of a payload, in characters; lengths are spread evenly.
    pub filling_chars_max: i32,
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
            pause_max: Duration::ZERO,
            hold_max: Duration::ZERO,
            filling_chars_max: 200,
            seed: 1,
            reconnect: false,
        }
    }
}

impl Settings {
    fn type_of(&self, aggregate: usize) -> Option<&str> {
        self.types
            .get(aggregate.checked_rem(self.types.len())?)
            .map(String::as_str)
    }

    fn name_of(&self, aggregate: usize) -> String {
        let number = aggregate.checked_div(self.types.len()).unwrap_or(0);
        format!("{}-{number}", self.type_of(aggregate).unwrap_or_default())
    }
}

/// Counts of written events. A commit whose answer was lost is in none of them: only the outbox is
/// exact.
#[derive(Debug, Default)]
pub struct Counts {
    /// Transactions committed.
    pub committed_transactions: AtomicU64,
    /// Events in those.
    pub committed_events: AtomicU64,
}

/// Creates what [`SCHEMA`] has. To be called once.
pub(crate) async fn prepare(client: &Client) -> Result<()> {
    client
        .batch_execute(SCHEMA)
        .await
        .map_err(|error| failed("creating the tables", &error))
}

/// Reads the whole outbox: what has to arrive. Topics are `topic_prefix` and the aggregate's type.
pub async fn ledger(client: &Client, topic_prefix: &str) -> Result<Vec<Committed>> {
    let failed = |error| failed("reading the outbox", &error);
    let mut rows = pin!(
        client
            .query_raw(LEDGER, Vec::<String>::new())
            .await
            .map_err(failed)?
    );
    let mut committed: Vec<Committed> = Vec::new();
    let mut topics = std::collections::HashMap::<String, Arc<str>>::new();
    while let Some(row) = rows.try_next().await.map_err(failed)? {
        let kind: String = row.try_get(1).map_err(failed)?;
        let topic = topics
            .entry(kind)
            .or_insert_with_key(|kind| format!("{topic_prefix}{kind}").into());
        committed.push(Committed {
            id: row.try_get::<_, &str>(0).map_err(failed)?.into(),
            topic: Arc::clone(topic),
            aggregate: row.try_get::<_, &str>(2).map_err(failed)?.into(),
            version: row.try_get(3).map_err(failed)?,
            payload: fingerprint(Some(row.try_get::<_, &str>(4).map_err(failed)?.as_bytes())),
            committed_at_us: row.try_get(5).map_err(failed)?,
        });
    }
    Ok(committed)
}

/// Writers at work. Dropping it abandons them where they are.
#[derive(Debug)]
pub struct Workload {
    counts: Arc<Counts>,
    stop: watch::Sender<bool>,
    writers: Vec<AbortOnDropHandle<Result<()>>>,
}

impl Workload {
    /// Starts the writers against a database that has [`SCHEMA`].
    pub fn start(config: &tokio_postgres::Config, settings: &Settings) -> Self {
        let counts = Arc::new(Counts::default());
        let (stop, stopped) = watch::channel(false);
        let writer = |index: usize| {
            let writer = Writer {
                config: config.clone(),
                settings: settings.clone(),
                rng: Rng::with_seed(
                    settings
                        .seed
                        .wrapping_mul(1_000_003)
                        .wrapping_add(index as u64),
                ),
                counts: Arc::clone(&counts),
                stopped: stopped.clone(),
            };
            AbortOnDropHandle::new(tokio::spawn(writer.run()))
        };
        let writers = (0..settings.writers).map(writer).collect();
        Workload {
            counts,
            stop,
            writers,
        }
    }

    /// Counts so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Whether a writer has ended by itself, which only an error makes it do.
    pub(crate) fn is_broken(&self) -> bool {
        self.writers.iter().any(|writer| writer.is_finished())
    }

    /// Lets each writer end its transaction, and waits for all. Gives the first error that a writer
    /// met.
    pub async fn stop(self) -> Result<Arc<Counts>> {
        self.stop.send_replace(true);
        let mut outcome = Ok(());
        for writer in self.writers {
            let ended = writer
                .await
                .map_err(|error| Error::new(Kind::Bug, format!("a writer panicked: {error}")));
            outcome = outcome.and(ended.and_then(|ended| ended));
        }
        outcome.map(|()| Arc::clone(&self.counts))
    }
}

struct Writer {
    config: tokio_postgres::Config,
    settings: Settings,
    rng: Rng,
    counts: Arc<Counts>,
    stopped: watch::Receiver<bool>,
}

struct Session {
    client: Client,
    emit: Statement,
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
        let failed = |error| failed("preparing to write", &error);
        let emit = client.prepare(EMIT).await.map_err(failed)?;
        let noise = client.prepare(NOISE).await.map_err(failed)?;
        Ok(Session {
            client,
            emit,
            noise,
        })
    }

    async fn write(&mut self, session: &Session) -> Result<()> {
        let mut ticks = self.settings.transactions_per_second.map(|total| {
            let each = self.settings.writers.max(1) as f64 / f64::from(total.max(1));
            let mut ticks = interval(Duration::from_secs_f64(each));
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
                    session
                        .client
                        .batch_execute("rollback")
                        .await
                        .map_err(|error| failed("rolling back", &error))?;
                    if !is_passing(&error) {
                        return Err(failed("writing", &error));
                    }
                }
                Err(error) => return Err(failed("writing", &error)),
            }
            self.sleep_up_to(self.settings.pause_max).await;
        }
        Ok(())
    }

    async fn transaction(
        &mut self,
        session: &Session,
    ) -> std::result::Result<(), tokio_postgres::Error> {
        let client = &session.client;
        client.batch_execute("begin").await?;
        if self.happens(20) {
            // Takes the transaction id long before the locks: its commit may come after those of
            // younger ids.
            client.execute(&session.noise, &[&1]).await?;
            self.sleep_up_to(EARLY_MAX).await;
        }
        // Locks are taken in ascending order, so that writers wait for each other and do not
        // deadlock.
        let mut aggregates: Vec<usize> = (0..self.rng.usize(1..=4))
            .map(|_| self.rng.usize(0..self.settings.aggregates.max(1)))
            .collect();
        aggregates.sort_unstable();
        let mut events = 0;
        for aggregate in aggregates {
            events += self.step(session, aggregate).await?;
        }
        if self.happens(10) {
            client.execute(&session.noise, &[&30]).await?;
        }
        self.sleep_up_to(self.settings.hold_max).await;
        if self.happens(10) {
            client.batch_execute("rollback").await?;
        } else {
            client.batch_execute("commit").await?;
            self.counts
                .committed_transactions
                .fetch_add(1, Ordering::Relaxed);
            self.counts
                .committed_events
                .fetch_add(events, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The step of a transaction for one aggregate; gives the number of events that are left of it.
    async fn step(
        &mut self,
        session: &Session,
        aggregate: usize,
    ) -> std::result::Result<u64, tokio_postgres::Error> {
        let client = &session.client;
        let events = match self.rng.u8(0..100) {
            0..=9 => {
                client.batch_execute("savepoint step").await?;
                self.emit(session, aggregate, 1).await?;
                // Taken back alone, counter and all.
                client.batch_execute("rollback to savepoint step").await?;
                1
            }
            10..=24 => {
                client.batch_execute("savepoint step").await?;
                let emitted = self.emit(session, aggregate, 1).await?;
                client.batch_execute("release savepoint step").await?;
                return Ok(emitted);
            }
            25..=29 => self.rng.i32(2..25),
            _ => 1,
        };
        self.emit(session, aggregate, events).await
    }

    async fn emit(
        &mut self,
        session: &Session,
        aggregate: usize,
        events: i32,
    ) -> std::result::Result<u64, tokio_postgres::Error> {
        let kind = self.settings.type_of(aggregate).unwrap_or_default();
        let filling = self.rng.i32(0..=self.settings.filling_chars_max);
        session
            .client
            .execute(
                &session.emit,
                &[&kind, &self.settings.name_of(aggregate), &filling, &events],
            )
            .await
    }

    fn happens(&mut self, percent: u8) -> bool {
        self.rng.u8(0..100) < percent
    }

    async fn sleep_up_to(&mut self, longest: Duration) {
        if !longest.is_zero() {
            tokio::time::sleep(longest.mul_f64(self.rng.f64())).await;
        }
    }
}

/// Deadlock, serialization failure, lock timeout: the transaction is gone, nothing is wrong.
fn is_passing(error: &tokio_postgres::Error) -> bool {
    error
        .code()
        .is_some_and(|code| code.code().starts_with("40") || code.code() == "55P03")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::{PrivatePostgres, Settings as PostgresSettings};

    #[tokio::test]
    async fn it_leaves_an_outbox_whose_versions_have_no_gaps_and_agree_with_the_counters() {
        let configuration = "track_commit_timestamp = on".to_owned();
        let server = PrivatePostgres::start(PostgresSettings {
            configuration,
            ..Default::default()
        })
        .unwrap();
        let client = server.connect().await.unwrap();
        let settings = Settings {
            writers: 4,
            aggregates: 5,
            reconnect: true,
            ..Settings::default()
        };
        prepare(&client).await.unwrap();
        let workload = Workload::start(&server.client_config().unwrap(), &settings);
        while workload.counts().committed_events.load(Ordering::Relaxed) < 500 {
            assert!(!workload.is_broken());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let counts = workload.stop().await.unwrap();

        let rows = ledger(&client, "outbox.event.").await.unwrap();
        assert_eq!(
            rows.len() as u64,
            counts.committed_events.load(Ordering::Relaxed)
        );
        assert!(rows.iter().all(|row| row.committed_at_us.is_some()));
        let mut versions = std::collections::BTreeMap::<_, Vec<_>>::new();
        for row in &rows {
            versions
                .entry(row.aggregate.to_string())
                .or_default()
                .push(row.version);
        }
        for (aggregate, mut versions) in versions {
            versions.sort_unstable();
            assert!(
                versions.iter().copied().eq(1..=versions.len() as i64),
                "{aggregate}: {versions:?}"
            );
            let query = "select version from counter where aggregate = $1";
            let version: i64 = client.query_one(query, &[&aggregate]).await.unwrap().get(0);
            assert_eq!(version, versions.len() as i64, "{aggregate}");
        }
        let topics: std::collections::BTreeSet<_> =
            rows.iter().map(|row| row.topic.to_string()).collect();
        assert_eq!(
            topics.into_iter().collect::<Vec<_>>(),
            ["outbox.event.invoice", "outbox.event.order"]
        );
    }
}
