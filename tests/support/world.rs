//! The resources of one test: a database, a slot and topics, on servers that other tests use, too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio_postgres::Row;
use walrelay_lab::verify::{Committed, Findings, Topics, fingerprint, verify};
use walrelay_lab::workload::SCHEMA;

use super::proxy::Proxy;
use super::relay::{Relay, RelayCommand};
use super::seed::Witness;
use super::servers::kafka::PARTITIONS;
use super::servers::{Kafka, Postgres, log_tails};
use super::sql::{Sessions, Sql};
use super::topic::{self, Record};
use super::wait::{self, LIMIT, eventually};
use super::watchdog::Watched;
use super::workload::{Plan, Workload};

/// The time limit until all committed events have arrived, without a fault.
pub(crate) const ARRIVAL: Duration = LIMIT;

/// The number of lines of each server's log that a failing test prints.
const LOG_LINES: usize = 30;

/// A row of id, aggregate, version and payload, whose record belongs into `topic`.
pub(crate) fn committed(topic: &str, row: &Row) -> Committed {
    let [id, aggregate, payload] = [0, 1, 3].map(|column| row.get::<_, &str>(column));
    Committed {
        id: id.into(),
        topic: topic.into(),
        aggregate: aggregate.into(),
        version: row.get(2),
        payload: fingerprint(Some(payload.as_bytes())),
        committed_at_us: None,
    }
}

pub(crate) struct World {
    /// The name of database and slot, and the prefix of every aggregate type.
    pub(crate) name: String,
    pub(crate) database_url: String,
    pub(crate) brokers: String,
    /// The aggregate types, which `kind(n)` and `topic(n)` index.
    kinds: Vec<String>,
    sessions: Arc<Sessions>,
    /// Host and port of Postgres.
    postgres: String,
    /// The server on which to drop the slots at the end: each would retain WAL and rows of the
    /// catalog for later tests.
    shared_url: Option<String>,
    _witness: Witness,
    _watched: Watched,
}

impl World {
    /// On the shared servers, after `walrelay setup`.
    #[track_caller]
    pub(crate) fn new() -> World {
        let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
        world.setup();
        world
    }

    /// On these servers, after `walrelay setup`.
    #[track_caller]
    pub(crate) fn on(postgres: &Postgres, brokers: &str) -> World {
        let world = World::bare(postgres, brokers);
        world.setup();
        world
    }

    /// With database, tables and names only: no publication, no slot.
    #[track_caller]
    pub(crate) fn bare(postgres: &Postgres, brokers: &str) -> World {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Runs on servers that outlive them must not share a name: the position of an earlier run
        // would not match.
        static RUN: LazyLock<u32> = LazyLock::new(|| fastrand::u32(..0x0100_0000));
        let name = format!("t{:06x}_{}", *RUN, COUNT.fetch_add(1, Ordering::Relaxed));
        postgres.sql().run(&format!("create database {name}"));
        let world = World {
            database_url: postgres.url(&name),
            postgres: postgres.address(),
            brokers: brokers.to_owned(),
            kinds: (0..3)
                .map(|number| format!("{name}.kind{number}"))
                .collect(),
            sessions: Arc::default(),
            shared_url: postgres.is_shared().then(|| postgres.url("postgres")),
            name,
            _witness: Witness,
            _watched: Watched::new(),
        };
        Sql::connect(&world.database_url).run(SCHEMA);
        world
    }

    /// On the shared servers, with a table that has the transaction and the order of its rows. No
    /// publication, no slot.
    #[track_caller]
    pub(crate) fn keeping() -> World {
        World::keeping_on(Postgres::shared(), Kafka::shared().brokers())
    }

    #[track_caller]
    pub(crate) fn keeping_on(postgres: &Postgres, brokers: &str) -> World {
        let world = World::bare(postgres, brokers);
        world.sql().run(
            "alter table outbox add column seq bigint not null generated always as identity,
             add column xid xid8 not null default pg_current_xact_id()",
        );
        world
    }

    #[track_caller]
    pub(crate) fn publish(&self) {
        self.sql().run(&format!(
            "create publication walrelay_{} for table outbox with (publish = 'insert', \
             publish_via_partition_root = true)",
            self.name
        ));
    }

    /// Drops the slot, and ends a session that streams from it.
    #[track_caller]
    pub(crate) fn drop_slot(&self) {
        let sql = self.sql();
        eventually(
            "the slot is dropped",
            3 * ARRIVAL,
            || {
                let pid = self.walsender();
                if pid != 0 {
                    sql.run(&format!("select pg_terminate_backend({pid}::int)"));
                }
                sql.try_run(&format!("select pg_drop_replication_slot('{}')", self.name))
                    .is_ok()
            },
            |dropped| *dropped,
        );
    }

    #[track_caller]
    pub(crate) fn setup(&self) {
        self.command("setup").succeed();
    }

    /// A command for the slot and the database.
    pub(crate) fn command(&self, command: &str) -> RelayCommand {
        RelayCommand::new(command)
            .option("--slot", &self.name)
            .option("--database-url", &self.database_url)
    }

    pub(crate) fn run(&self) -> RelayCommand {
        self.command("run")
            .option("--brokers", &self.brokers)
            .option("--log-format", "json")
    }

    #[track_caller]
    pub(crate) fn relay(&self) -> Relay {
        let mut relay = self.run().start();
        relay.wait_ready();
        relay
    }

    #[track_caller]
    pub(crate) fn sql(&self) -> Sql {
        self.sessions.take(&self.database_url)
    }

    pub(crate) fn with_kinds(mut self, count: usize) -> World {
        self.kinds = (0..count)
            .map(|number| format!("{}.kind{number}", self.name))
            .collect();
        self
    }

    /// The same with the aggregate types, and so the topics, of `other`.
    pub(crate) fn sharing_topics_of(mut self, other: &World) -> World {
        self.kinds = other.kinds.clone();
        self
    }

    pub(crate) fn kind(&self, number: usize) -> &str {
        &self.kinds[number]
    }

    /// Creates the topics of all kinds. A busy broker that creates a topic for a first record tells
    /// of the topic late, which refuses records and sends others again.
    pub(crate) fn create_topics(&self) {
        let topics: Vec<String> = (0..self.kinds.len()).map(|kind| self.topic(kind)).collect();
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        topic::create_all(&self.brokers, &topics, PARTITIONS, &[]);
    }

    pub(crate) fn topic(&self, number: usize) -> String {
        format!("outbox.event.{}", self.kinds[number])
    }

    pub(crate) fn workload(&self, plan: &Plan) -> Workload {
        Workload::start(&self.database_url, &self.kinds, plan)
    }

    #[track_caller]
    pub(crate) fn emit(&self, sql: &Sql, aggregate: &str) {
        self.emit_to(sql, 0, aggregate);
    }

    #[track_caller]
    pub(crate) fn emit_to(&self, sql: &Sql, kind: usize, aggregate: &str) {
        sql.run(&format!(
            "select emit('{}', '{aggregate}', 20)",
            self.kinds[kind]
        ));
    }

    pub(crate) fn records(&self, kind: usize) -> Vec<Record> {
        topic::read(&self.brokers, &self.topic(kind))
    }

    pub(crate) fn delivered(&self) -> i64 {
        (0..self.kinds.len())
            .map(|kind| topic::count(&self.brokers, &self.topic(kind)))
            .sum()
    }

    #[track_caller]
    pub(crate) fn committed(&self) -> i64 {
        self.sql().number("select count(*) from outbox")
    }

    /// The checker's findings for the present state. Stop the writers first.
    #[track_caller]
    pub(crate) fn check(&self) -> Findings {
        let rows = "select id::text, aggregateid, (payload->>'v')::bigint, payload::text, \
                    aggregatetype from outbox
             where payload ? 'v'";
        let row = |row: &Row| committed(&format!("outbox.event.{}", row.get::<_, &str>(4)), row);
        let rows: Vec<Committed> = self.sql().rows(rows, &[]).iter().map(row).collect();
        let topics: Vec<String> = (0..self.kinds.len()).map(|kind| self.topic(kind)).collect();
        self.verify(&rows, &topics, |record| record.header("id"))
    }

    /// The checker's findings for `rows` in these topics, with `id` as the id of each record.
    #[track_caller]
    pub(crate) fn verify(
        &self,
        rows: &[Committed],
        topics: &[String],
        id: impl Fn(&Record) -> String,
    ) -> Findings {
        let ids: BTreeSet<&str> = rows.iter().map(|row| &*row.id).collect();
        assert_eq!(ids.len(), rows.len(), "ids of rows are unique");
        let mut found = Topics::default();
        for topic in topics {
            let (partitions, records) = topic::read_whole(&self.brokers, topic);
            found.records.extend(topic::delivered(topic, records, &id));
            found.partitions.insert(
                topic.as_str().into(),
                i32::try_from(partitions).expect("a count of partitions"),
            );
        }
        verify(rows, &found).findings
    }

    /// Waits until every row that can be delivered has arrived: a row without a version in its
    /// payload cannot be. Returns the findings, which are sound.
    #[track_caller]
    pub(crate) fn assert_all_good_delivered(&self) -> Findings {
        wait::none_lost(|| self.check())
    }

    /// Waits until every committed row has arrived, and returns the findings, which are sound.
    #[track_caller]
    pub(crate) fn assert_all_delivered(&self) -> Findings {
        let committed = self.committed();
        // Counting is cheap. With duplicates, as many records as rows does not mean all rows.
        wait::grown("as many records as rows", committed, || self.delivered());
        wait::none_lost(|| self.check())
    }

    /// Ids of events with a record from before one of these moments and a record from after it, by
    /// the broker's clock.
    pub(crate) fn appended_again(&self, moments_ms: &[i64]) -> BTreeSet<String> {
        let mut appended: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for record in (0..self.kinds.len()).flat_map(|kind| self.records(kind)) {
            appended
                .entry(record.header("id"))
                .or_default()
                .push(record.appended_at_ms);
        }
        let around = |times: &[i64], moment| {
            times.iter().any(|at| *at < moment) && times.iter().any(|at| *at > moment)
        };
        appended.retain(|_, times| moments_ms.iter().any(|moment| around(times, *moment)));
        appended.into_keys().collect()
    }

    /// The number of rows in `walrelay.parked`.
    #[track_caller]
    pub(crate) fn number_parked(&self) -> i64 {
        self.sql().number("select count(*) from walrelay.parked")
    }

    /// `confirmed_flush_lsn` as a number of bytes; 0 without a slot.
    #[track_caller]
    pub(crate) fn confirmed(&self) -> i64 {
        self.slot("coalesce((confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, 0)")
            .parse()
            .unwrap_or(0)
    }

    /// An expression over the slot's row in `pg_replication_slots`, as text.
    #[track_caller]
    pub(crate) fn slot(&self, expression: &str) -> String {
        self.sql().text(&format!(
            "select {expression} from pg_replication_slots where slot_name = '{}'",
            self.name
        ))
    }

    /// The walsender's pid; 0 if no session streams.
    #[track_caller]
    pub(crate) fn walsender(&self) -> i64 {
        self.slot("coalesce(active_pid, 0)").parse().unwrap_or(0)
    }

    /// Ends the session that streams, and waits until another one does.
    #[track_caller]
    pub(crate) fn end_walsender(&self) {
        let walsender = self.walsender();
        let end = format!("select pg_terminate_backend({walsender}::int)");
        self.sql().run(&end);
        eventually(
            "it streams again",
            ARRIVAL,
            || self.walsender(),
            |pid| *pid != 0 && *pid != walsender,
        );
    }

    /// Waits until a session streams from the slot, and returns the walsender's pid. The relay need
    /// not be ready.
    #[track_caller]
    pub(crate) fn wait_streaming(&self) -> i64 {
        // A session that creates a slot holds the slot, too.
        let pid = "coalesce((select pid from pg_stat_replication r where r.pid = active_pid
             and state in ('catchup', 'streaming')), 0)";
        eventually(
            "somebody streams",
            ARRIVAL,
            || self.slot(pid).parse().unwrap_or(0),
            |pid| *pid != 0,
        )
    }

    /// The start of the next WAL record, in bytes: after everything that was written, and after the
    /// header of a full page.
    #[track_caller]
    pub(crate) fn wal(&self) -> i64 {
        self.sql()
            .number("select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")
    }

    /// The end of the last flushed record. Sent and confirmed LSNs reach it, also at the end of a
    /// page.
    #[track_caller]
    pub(crate) fn flushed(&self) -> i64 {
        self.sql()
            .number("select (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint")
    }

    /// The URL of this database through the proxy.
    pub(crate) fn url_through(&self, proxy: &Proxy) -> String {
        let (credentials, rest) = self
            .database_url
            .split_once('@')
            .expect("a user in the URL");
        let path = rest.split_once('/').map_or("", |(_, path)| path);
        format!("{credentials}@{}/{path}", proxy.address())
    }

    /// Waits until positions are stored of what a workload publishes.
    #[track_caller]
    pub(crate) fn wait_stored(&self, relay: &Relay) {
        let stored = || {
            relay
                .metric("walrelay_positions_stored_total")
                .unwrap_or_default()
        };
        let what = format!("what {} publishes is stored", self.name);
        eventually(&what, ARRIVAL, stored, |stored| *stored >= 15.0);
    }

    /// Waits until the slot is confirmed up to the present end of the flushed WAL.
    #[track_caller]
    pub(crate) fn wait_confirmed(&self) {
        let goal = self.flushed();
        wait::grown("the slot is confirmed", goal, || self.confirmed());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell();
            Postgres::spoil();
        } else if let Some(url) = self.shared_url.take() {
            self.drop_slots(&url);
        }
    }
}

impl World {
    /// Prints the servers' state of this test, to help find the cause of a failure.
    fn tell(&self) {
        let server = Sql::try_connect(&self.database_url);
        let told = server.map_err(|error| error.to_string()).and_then(|sql| {
            // The failed test may hold a lock on the outbox.
            let _limited = sql.try_run("set lock_timeout = '5s'");
            let rows = "select 'slot ' || s::text from pg_replication_slots s where database = \
                        current_database()
                union all select 'session ' || concat_ws(', ', pid, application_name, state, \
                wait_event_type, wait_event,
                    left(query, 200)) from pg_stat_activity where datname = current_database() and \
                    pid <> pg_backend_pid()
                union all select 'rows in the outbox: ' || count(*) from outbox
                union all select 'log: ' || pg_current_wal_insert_lsn()";
            let rows = sql
                .try_rows(rows, &[])
                .map_err(|error| format!("{error:?}"))?;
            Ok(rows
                .iter()
                .map(|row| row.get::<_, String>(0))
                .collect::<Vec<_>>()
                .join("\n"))
        });
        eprintln!(
            "--- Postgres ---\n{}\n---",
            told.unwrap_or_else(|error| error)
        );
        eprintln!(
            "--- its log ---\n{}\n---",
            log_tails(&self.postgres, LOG_LINES)
        );
        if self.brokers.is_empty() {
            return;
        }
        eprintln!("--- Kafka ---");
        for kind in 0..self.kinds.len() {
            let topic = self.topic(kind);
            eprintln!("{topic}: {}", topic::offsets(&self.brokers, &topic));
        }
        eprintln!(
            "---\n--- its log ---\n{}\n---",
            log_tails(&self.brokers, LOG_LINES)
        );
    }

    fn drop_slots(&self, url: &str) {
        let Ok(sql) = Sql::try_connect(url) else {
            return;
        };
        let slots = format!("from pg_replication_slots where database = '{}'", self.name);
        // The walsender of a relay that was just killed ends a moment later.
        let _dropped = wait::until(Duration::from_secs(5), || {
            let _ended = sql.try_run(&format!(
                "select pg_terminate_backend(active_pid) {slots} and active"
            ));
            let _dropped = sql.try_run(&format!(
                "select pg_drop_replication_slot(slot_name) {slots} and not active"
            ));
            sql.try_rows(&format!("select 1 {slots}"), &[])
                .is_ok_and(|left| left.is_empty())
                .then_some(())
        });
    }
}

#[test]
fn the_lab_reads_back_what_it_wrote_and_the_checker_agrees() {
    use rdkafka::ClientConfig;
    use rdkafka::message::{Header, OwnedHeaders};
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    let writers = world.workload(&Plan {
        writers: 3,
        ..Plan::default()
    });
    writers.wait_for(100);
    writers.stop();

    // A minimal relay: rows by version, directly from the table.
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &world.brokers)
        .set("partitioner", "murmur2_random")
        // A repeated batch, to a topic that is being created, keeps its order.
        .set("enable.idempotence", "true")
        .create()
        .unwrap();
    let rows = world.sql().rows(
        "select id::text, aggregatetype, aggregateid, payload::text from outbox order by \
         (payload->>'v')::bigint",
        &[],
    );
    for row in &rows {
        let id: String = row.get(0);
        let kind: String = row.get(1);
        let key: String = row.get(2);
        let value: String = row.get(3);
        let headers = OwnedHeaders::new().insert(Header {
            key: "id",
            value: Some(&id),
        });
        let topic = format!("outbox.event.{kind}");
        producer
            .send(
                BaseRecord::to(&topic)
                    .key(&key)
                    .payload(&value)
                    .headers(headers),
            )
            .unwrap();
        producer.poll(Duration::ZERO);
    }
    producer.flush(LIMIT).unwrap();

    assert!(rows.len() >= 100);
    let findings = world.assert_all_delivered();
    assert_eq!(findings.duplicates, 0);
    assert_eq!(
        topic::partitions(&world.brokers, &world.topic(0)),
        super::servers::kafka::PARTITIONS as usize
    );
}
