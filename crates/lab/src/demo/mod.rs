//! The relay's main job, shown and checked: a private Postgres, writers of business transactions, a
//! Kafka, the relay between them, a reader, and a checker that trusts none of them.

mod kafka;
mod report;

use std::fmt;
use std::future::Future;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_util::task::AbortOnDropHandle;
use walrelay::config::{Bus, Environment, Settings};
use walrelay::relay;
use walrelay::relay::stop::{Stop, stop_channel};
use walrelay::telemetry::Telemetry;
use walrelay_core::config::unit::parse_seconds;
use walrelay_core::error::{Error, Kind, Result};

use crate::postgres::{self, PrivatePostgres};
use crate::process::memory_bytes;
use crate::verify;
use crate::workload::{self, OUTBOX_TABLE, Workload};
use kafka::{Broker, Consumer, ID_HEADER};
pub use report::Report;

const TYPES: [&str; 2] = ["order", "invoice"];
const SLOT: &str = "demo";
const PUBLICATION: &str = "walrelay_demo";
const TOPIC_PREFIX: &str = "outbox.event.";

/// Commit times make latencies; a relay that is gone is noticed soon.
const POSTGRES_CONFIGURATION: &str = "track_commit_timestamp = on\nwal_sender_timeout = 5s\n";

/// Events that do not come for this long, with the writers quiet, do not come at all.
const QUIET: Duration = Duration::from_secs(15);

const SAY_EVERY: Duration = Duration::from_secs(5);

/// The flags of `walrelay-demo`.
#[derive(Debug, Clone, clap::Args)]
pub struct DemoRun {
    /// How long to write
    #[arg(long, default_value = "20s", value_name = "DURATION", value_parser = seconds)]
    pub seconds: u64,
    /// Connections that write at the same time
    #[arg(
        long,
        default_value_t = 8,
        value_name = "CONNECTIONS",
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    pub writers: u16,
    /// Aggregates written to; fewer mean more waiting for each other's locks
    #[arg(
        long,
        default_value_t = 100,
        value_name = "AGGREGATES",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub aggregates: u32,
    /// Transactions per second of all writers together; 0 is as many as there can be
    #[arg(long, default_value_t = 400, value_name = "TRANSACTIONS")]
    pub rate: u32,
    /// Kafka brokers to use instead of a mock in this process; topics are made for the run and
    /// deleted after it
    #[arg(long, value_name = "HOST:PORT")]
    pub brokers: Option<String>,
    /// Directory of the programs postgres and initdb; searched for where it is not given
    #[arg(long, value_name = "DIR")]
    pub postgres_bin: Option<PathBuf>,
    /// Seed of the workload; a new one where it is not given
    #[arg(long)]
    pub seed: Option<u64>,
}

fn seconds(text: &str) -> Result<u64, String> {
    let seconds = parse_seconds(text)
        .map(|duration| duration.as_secs())
        .filter(|seconds| (1..=3600).contains(seconds));
    seconds.ok_or_else(|| "write a duration of at most 1h, such as 20s".to_owned())
}

/// Runs the demo, and returns its outcome. A run that ended and did not verify is a report. Once
/// `interrupted` completes, it ends early and cleans up.
pub async fn run(options: &DemoRun, interrupted: impl Future<Output = ()>) -> Result<Report> {
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    // Brokers that outlive the run may hold topics of others: each run has its own types, and so
    // its own topics.
    let types = TYPES.map(|kind| match options.brokers {
        None => kind.to_owned(),
        Some(_) => format!("{kind}-demo-{seed}-{}", std::process::id()),
    });
    let topics = types
        .iter()
        .map(|kind| format!("{TOPIC_PREFIX}{kind}").into())
        .collect();
    let broker = Broker::new(options.brokers.as_deref(), topics)?;
    let load = workload::Settings {
        writers: options.writers.into(),
        aggregates: usize::try_from(options.aggregates).unwrap_or(usize::MAX),
        types: types.to_vec(),
        transactions_per_second: Some(options.rate).filter(|rate| *rate > 0),
        seed,
        ..workload::Settings::default()
    };
    let ran = tokio::select! {
        ran = Box::pin(run_against(options, &broker, &load)) => ran,
        // Dropping the run stops the server, the relay, the writers and the reader, and removes the
        // directory.
        () = interrupted => Err(Error::new(Kind::NotVerified, "interrupted before the run could be \
            checked")),
    };
    let cleaned = broker.delete_topics().await;
    let report = ran?;
    cleaned?;
    Ok(report)
}

async fn run_against(
    options: &DemoRun,
    broker: &Broker,
    load: &workload::Settings,
) -> Result<Report> {
    say("starting a private Postgres");
    let settings = postgres::Settings {
        bin: options.postgres_bin.clone(),
        dir: None,
        configuration: POSTGRES_CONFIGURATION.to_owned(),
    };
    let started = tokio::task::spawn_blocking(|| PrivatePostgres::start(settings)).await;
    let server =
        started.map_err(|error| Error::new(Kind::Bug, format!("starting Postgres: {error}")))??;
    let client = server.connect().await?;
    workload::prepare(&client).await?;
    make_slot(&client).await?;
    broker.create_topics().await?;

    let (kafka, kind) = if options.brokers.is_none() {
        ("a mock Kafka", "mock")
    } else {
        ("Kafka", "named")
    };
    let postgres = server.major();
    let seed = load.seed;
    let writers = options.writers;
    let seconds = options.seconds;
    say(format_args!(
        "Postgres {postgres} and {kafka} are up; {writers} writers for {seconds} s, seed {seed}"
    ));
    let consumer = Consumer::start(broker)?;
    let settings = configure(&server.conninfo(), &broker.brokers)?;
    let (stopper, stop) = stop_channel();
    // Dropping the task abandons the relay where it is, as a crash does.
    let relay = Box::pin(relay::run(
        settings.config(false)?,
        Telemetry::new(Bus::default(), Duration::from_secs(30)),
        stop,
    ));
    let relay = AbortOnDropHandle::new(tokio::spawn(relay));
    let writing = Workload::start(&server.client_config()?, load);
    let seconds = write(options, &writing, &relay, &consumer).await;
    writing.stop().await?;

    let committed = workload::ledger(&client, TOPIC_PREFIX).await?;
    say(format_args!(
        "writers are quiet; waiting for the last of {} events",
        committed.len()
    ));
    if !relay.is_finished() {
        // The checker finds what did not come.
        consumer.read_at_least(committed.len() as u64, QUIET).await;
    }
    stopper.ask(Stop::Drain);
    relay
        .await
        .map_err(|error| Error::new(Kind::Bug, format!("the relay's task: {error}")))??;
    let verdict = verify::verify(&committed, &consumer.finish().await?);
    let peak_memory_bytes = memory_bytes(std::process::id(), "VmHWM:");
    Ok(Report {
        seconds,
        seed,
        postgres,
        broker: kind,
        peak_memory_bytes,
        ..Report::new(verdict)
    })
}

/// Waits for the end of the time to write, and tells the progress now and then. Returns the seconds
/// that passed. Ends early where the relay or a writer has ended.
async fn write(
    options: &DemoRun,
    writing: &Workload,
    relay: &AbortOnDropHandle<Result<()>>,
    consumer: &Consumer,
) -> f64 {
    let started = Instant::now();
    let mut next_line = SAY_EVERY;
    while started.elapsed() < Duration::from_secs(options.seconds)
        && !relay.is_finished()
        && !writing.is_broken()
    {
        if started.elapsed() >= next_line {
            let committed = writing.counts().committed_events.load(Ordering::Relaxed);
            let passed = next_line.as_secs();
            let delivered = consumer.records();
            let seconds = options.seconds;
            say(format_args!(
                "{passed:>3} of {seconds} s: {committed} events committed, {delivered} delivered"
            ));
            next_line += SAY_EVERY;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    started.elapsed().as_secs_f64()
}

/// A line on standard error. A closed standard error is no reason to stop.
fn say(what: impl fmt::Display) {
    drop(writeln!(std::io::stderr(), "{what}"));
}

/// Publication before slot: a slot cannot see a publication made after it.
async fn make_slot(client: &Client) -> Result<()> {
    let publication = format!(
        "create publication {PUBLICATION} for table {OUTBOX_TABLE} with (publish = 'insert')"
    );
    let slot = format!("select pg_create_logical_replication_slot('{SLOT}', 'pgoutput')");
    for statement in [publication, slot] {
        let made = client.batch_execute(&statement).await;
        made.map_err(|error| {
            Error::new(
                Kind::SlotUnusable,
                format!("making publication and slot: {error}"),
            )
        })?;
    }
    Ok(())
}

/// The configuration that `walrelay run` would make of flags for these, with its defaults for the
/// rest.
///
/// The position is kept in Postgres: librdkafka's mock cluster has no admin interface to create a
/// topic with.
fn configure(conninfo: &str, brokers: &str) -> Result<Settings> {
    let given = [
        ("database.url", conninfo),
        ("slot.name", SLOT),
        ("slot.publication", PUBLICATION),
        ("outbox.table", OUTBOX_TABLE),
        ("kafka.brokers", brokers),
        ("route.topic_prefix", TOPIC_PREFIX),
        ("route.id_header", ID_HEADER),
        ("state.store", "postgres"),
    ];
    let flags = given
        .into_iter()
        .map(|(key, text)| (key, text.to_owned()))
        .collect();
    Settings::new(&flags, &Environment::new(), None)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn options() -> DemoRun {
        DemoRun {
            seconds: 1,
            writers: 3,
            aggregates: 10,
            rate: 200,
            brokers: None,
            postgres_bin: None,
            seed: Some(7),
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_run_whose_events_all_arrive_is_verified() {
        let report = run(&options(), pending()).await.unwrap();
        assert!(report.verified, "{report}");
        assert!(report.verdict.committed > 0, "{report}");
        assert!(report.verdict.commit_to_ack_p50_ms.is_some());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_interrupted_run_ends_soon_and_is_not_verified() {
        const SECONDS: u64 = 600;
        let options = DemoRun {
            seconds: SECONDS,
            ..options()
        };
        let started = Instant::now();
        let error = run(&options, tokio::time::sleep(Duration::from_secs(3)))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::NotVerified);
        // Long before its end, however long the servers take to start and to stop.
        assert!(
            started.elapsed() < Duration::from_secs(SECONDS / 2),
            "{:?}",
            started.elapsed()
        );
    }

    #[test]
    fn the_options_are_well_formed_and_bounded() {
        use clap::Parser;

        #[derive(Parser)]
        struct Command {
            #[command(flatten)]
            options: DemoRun,
        }
        let parse = |args: &[&str]| {
            Command::try_parse_from([&["demo"], args].concat()).map(|command| command.options)
        };
        let defaults = parse(&[]).unwrap();
        assert_eq!(
            (defaults.seconds, defaults.writers, defaults.aggregates),
            (20, 8, 100)
        );
        for bad in [
            ["--seconds", "0"],
            ["--writers", "1000"],
            ["--aggregates", "0"],
        ] {
            assert!(parse(&bad).is_err(), "{bad:?}");
        }
    }
}
