//! `walrelay replay`: rows of the outbox into Kafka once more.
//!
//! What is wanted is read and routed first, shown, confirmed, and then sent: [`crate::replay`]. [`report`] prints.

pub mod report;

use std::time::Duration;

use clap::{ArgGroup, Args};

use crate::cli::load::Loaded;
use crate::cli::output::{Outcome, Teller, note, print_json, print_line, print_report, warn};
use crate::cli::prompt::shown_and_confirmed;
use crate::cli::verify::range;
use crate::cli::{RelaySettings, flags, put};
use crate::config::layers::Flags;
use crate::config::{Config, TableName};
use crate::error::{Error, Kind, Result};
use crate::poll::Reader;
use crate::relay::stop::on_signals;
use crate::replay::{Ended, Replay, Wanted};
use crate::sink::AnySink;
use report::Report;

/// `replay`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("rows").required(true).multiple(true))]
pub struct ReplayArgs {
    /// Which relay, laid over the file as `run` would; with several outboxes, --table says which one.
    #[command(flatten)]
    pub settings: RelaySettings,
    /// Rows with one of these ids; may be given again
    #[arg(long, value_name = "VALUE", num_args = 1.., group = "rows")]
    pub id: Vec<String>,
    /// Rows of these aggregates, by the column that outbox.columns.aggregateid names, as text; may be given again
    #[arg(long, value_name = "KEY", num_args = 1.., group = "rows")]
    pub aggregate: Vec<String>,
    /// Rows of this time or later: a timestamp as SQL reads it, in UTC unless it names a zone, or a duration for so long
    /// ago, such as 2h. The time is that of outbox.time, or of created_at and its like
    #[arg(long, value_name = "TIME", group = "rows")]
    pub since: Option<String>,
    /// And only rows before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Rows for which this SQL condition over the table's columns holds
    #[arg(long = "where", value_name = "SQL", group = "rows")]
    pub condition: Option<String>,
    /// Publish nothing; say what would be published
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// How long a stop waits for acks; 30s by default [env: WALRELAY_SHUTDOWN_TIMEOUT]
    #[arg(long, value_name = "DURATION")]
    pub shutdown_timeout: Option<String>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
}

impl ReplayArgs {
    fn flags(&self) -> Flags {
        let mut flags = flags(&self.settings);
        put(&mut flags, "shutdown.timeout", self.shutdown_timeout.as_deref());
        flags
    }
}

pub(super) const HELP: &str = "\
Examples:
  walrelay replay --config walrelay.toml \\
    --id 6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11
  walrelay replay --config walrelay.toml --aggregate order-17 --dry-run
  walrelay replay --slot orders --brokers localhost:9092 \\
    --since '2026-03-01 12:00' --until '2026-03-01 13:00'
  walrelay replay --config walrelay.toml --aggregate order-17 order-18 \\
    --where \"type = 'OrderPlaced'\" --yes --json

All conditions given have to hold. Rows go out in the table's order, with the id, key and topic they had, and carry the header walrelay-replay: 1. Nothing in the database changes, and a relay may run meanwhile: a replayed event then comes after newer ones of its aggregate, which consumers tell by the header, and drop by its id where they know it. If a row cannot be routed, none is published. docs/replay.md has all of it.

Exit codes:
  0   published and acked; or what --dry-run would publish was shown
  1   no row is what was asked for
  2   a condition cannot be meant like this, or the answer was not yes
  3   told to stop before all rows were published
  10  Postgres cannot be reached (11: refuses)
  15  there is no such table, or it lacks a column that is needed
  20  a row cannot be routed, and none was published (21: Kafka refuses one)
  30  Kafka cannot be reached (31: refuses)";

/// How long Kafka has to answer before anything is asked or sent.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// Shows what would be published, asks, and publishes it. Changes nothing in the database.
///
/// # Errors
/// [`Kind::NothingMatched`] where there is no such row; [`Kind::Config`] for a condition that does not fit, and where
/// nobody confirms; [`Kind::Event`] where a row cannot be routed, before anything is published; [`Kind::ShutdownTimeout`]
/// where it was told to stop; what Postgres and Kafka give.
pub async fn replay(args: &ReplayArgs) -> Outcome {
    let (loaded, config) = configured(args)?;
    warn(loaded.warnings(&config));
    let reader = Reader::connect(&config.source.database, "walrelay replay").await?;
    let range = range::read(reader.client(), args.since.as_deref(), args.until.as_deref()).await?;
    let wanted = Wanted {
        ids: args.id.clone(),
        aggregates: args.aggregate.clone(),
        since: range.since,
        until: range.until,
        sql: args.condition.clone(),
    };
    let mut replay = Replay::open(&config, reader, &wanted).await?;
    let mut teller = Teller::new();
    let survey =
        replay.survey(&mut |table, read, of| teller.tell(|| format!("reading {table}: {read} of {of} rows"))).await?;
    let topics: Vec<String> = survey.topics().into_iter().map(str::to_owned).collect();
    let mut report = Report::new(survey, args.dry_run);
    replay.notes().iter().for_each(|note| report.note(note.clone()));
    if let Some(error) = report.fault(&wanted) {
        print_report(args.json, &report, &report.text())?;
        return Err(error.into());
    }
    if args.dry_run {
        return print_report(args.json, &report, &report.text());
    }
    let sink = AnySink::connect(&config)?;
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    for missing in sink.missing(&topics, CHECK_TIMEOUT).await? {
        report.note(format!("topic {missing} does not exist, or this user may not see it"));
    }
    // Meanwhile a transaction is open, behind which no table is vacuumed.
    let question = || format!("Publish {} again?", report.rows());
    shown_and_confirmed(&report.text(), (args.json, args.yes), question, "nothing was published").await?;
    let stop = on_signals()?;
    let mut teller = Teller::new();
    let (published, ended) = replay
        .publish(sink, stop, &mut |published, of, answers| {
            let silent = if answers { "" } else { "; Kafka does not answer" };
            teller.tell(|| format!("published {} of {of} rows{silent}", published.acked));
        })
        .await;
    report.published(published);
    if args.json {
        print_json(&report)?;
    }
    match ended {
        Ok(Ended::All) if args.json => Ok(()),
        Ok(Ended::All) => print_line(report.said()),
        Ok(Ended::Stopped) => Err(report.stopped().into()),
        Err(error) => {
            note(report.said());
            Err(error.into())
        }
    }
}

/// The configuration; of several outboxes only the one that `--table` names, if it names one.
fn configured(args: &ReplayArgs) -> Result<(Loaded, Config)> {
    let file = args.settings.common.config.as_deref();
    let mut flags = args.flags();
    let named = flags.remove("outbox.table");
    let mut loaded = Loaded::new(&flags, file)?;
    let Some(named) = named.filter(|_| loaded.settings.has_several_outboxes()) else {
        loaded = Loaded::new(&args.flags(), file)?;
        let config = loaded.config(false)?;
        return Ok((loaded, config));
    };
    let refused = |cause: String| {
        Error::new(Kind::Config, format!("--table: {cause}")).remedy("name one of the file's tables as it is there")
    };
    let table: TableName = named.parse().map_err(|_| refused("this is no name of a table".to_owned()))?;
    let mut config = loaded.config(false)?;
    config.outboxes.retain(|outbox| outbox.source.table() == Some(&table));
    if config.outboxes.is_empty() {
        return Err(refused(format!("none of the outboxes is {table}")));
    }
    Ok((loaded, config))
}
