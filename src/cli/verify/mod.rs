//! `walrelay verify`: the outboxes' rows against their topics' records.
//!
//! Rows are read first, in one transaction, and topics to the ends they have afterwards: a row that is compared was
//! committed before anybody looked for its record. [`rows`] reads them, [`range`] says which, [`report`] prints.

pub mod range;
pub mod report;
pub mod rows;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use clap::Args;

use crate::cli::load::Loaded;
use crate::cli::output::{Outcome, Teller, print_report, warn};
use crate::cli::session::Session;
use crate::cli::{RelaySettings, flags};
use crate::config::unit::parse_duration;
use crate::config::{Config, OutboxConfig};
use crate::error::{Error, Kind, Result};
use crate::postgres::catalog::Table;
use crate::sink::kafka::options::Options;
use crate::source::preflight::inspect;
use crate::verify::{Comparison, Outbox, Reader};
use range::Range;
use report::Report;
use rows::Plan;

/// `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Which relay; laid over the file as `run` would.
    #[command(flatten)]
    pub settings: RelaySettings,
    /// Compare only rows of this time or later: a timestamp as SQL reads it, in UTC unless it names a zone, or a duration
    /// for so long ago, such as 2h. The time is that of outbox.time, or of created_at and its like
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Compare only rows before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// How long the records of rows that were just committed are waited for, before they count as missing
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = grace)]
    pub grace: Duration,
    /// Fail where there are duplicates, too
    #[arg(long)]
    pub no_duplicates: bool,
    /// List records that no row has, too: those of rows that were deleted since, and of other producers
    #[arg(long)]
    pub unknown: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
    /// How many examples of each kind are listed
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub limit: usize,
}

pub(super) const HELP: &str = "\
Examples:
  walrelay verify --config walrelay.toml
  walrelay verify --slot orders --brokers localhost:9092 --since 24h
  walrelay verify --config walrelay.toml --since 2026-03-01 --until 2026-03-02
  walrelay verify --config walrelay.toml --json | jq .missing
  walrelay verify --config walrelay.toml --no-duplicates --limit 100

Nothing is changed, no consumer group is joined, and a relay may run meanwhile. Every row is held against its topic's records by the header with its id; the order is that of outbox.order_by, or of the column that is numbered. The role needs SELECT on the table, the Kafka user Read and Describe on the topics. docs/verify.md says what this proves, and what it costs.

Exit codes:
  0   every row has its record, and the order is the table's; also where there are duplicates, which at-least-once delivery allows, unless --no-duplicates is given
  1   a row has no record, or cannot be routed, or an aggregate's records run backwards
  2   the configuration or a flag cannot be meant like this
  10  Postgres cannot be reached (11: refuses)
  15  there is no such table, or it lacks a column that is needed
  30  Kafka cannot be reached (31: refuses)";

/// How far the broker's clock may be behind that of Postgres.
const CLOCKS_APART_MS: i64 = 3_600_000;

fn grace(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).filter(|duration| *duration <= Duration::from_secs(24 * 3600));
    duration.ok_or_else(|| "write a duration up to 24h, such as 10s or 0s".to_owned())
}

/// Compares, and prints what was found. Changes nothing.
///
/// # Errors
/// [`Kind::NotVerified`] where a row has no record or no way, or the order is broken; [`Kind::Config`] for a range without a
/// time column, an outbox without an id header, and where there are only messages; what Postgres and Kafka give.
pub async fn verify(args: &VerifyArgs) -> Outcome {
    let loaded = Loaded::new(&flags(&args.settings), args.settings.common.config.as_deref())?;
    let config = loaded.config(false)?;
    warn(loaded.warnings(&config));
    let id_headers = id_headers(&config)?;
    let source = &config.source;
    let session = Session::connect(&source.database, "verify").await?;
    let range = range::read(session.client(), args.since.as_deref(), args.until.as_deref()).await?;
    let mut report = Report::default();
    let plans = plans(&session, &config, &range, &mut report).await?;
    let outboxes = plans.iter().map(|plan| Outbox { name: plan.name.to_string(), is_ordered: plan.order.is_some() });
    let mut comparison = Comparison::new(outboxes.collect(), args.limit);
    rows::read(&session, &plans, source.database.user(), &mut comparison, &mut Teller::new()).await?;

    let deadline = Instant::now() + args.grace;
    let custom_times = config.outboxes.iter().any(|outbox| outbox.route.timestamp.is_some());
    // A time that the application gives to records says nothing of when they were produced.
    let since_ms = range.records_since_ms(CLOCKS_APART_MS).filter(|_| !custom_times);
    let mut reader = Reader::new(Options::reader(&config.kafka)?, id_headers, since_ms)?;
    let reading = move || {
        let mut teller = Teller::new();
        let mut say = |topic: &str, at: usize, of: usize, records: u64| {
            teller.tell(|| format!("reading topic {topic} ({at} of {of}): {records} records"));
        };
        let read = reader.read(&mut comparison, deadline, &mut say);
        let unreadable = reader.absent_and_cut();
        read.map(|()| (comparison, unreadable))
    };
    let read = tokio::task::spawn_blocking(reading).await;
    let (mut comparison, (absent, cut)) =
        read.map_err(|error| Error::new(Kind::Bug, format!("the reader of topics ended: {error}")))??;
    rows::find_strays(&session, &plans, &mut comparison, &mut Teller::new()).await?;

    report.found(comparison.findings(), &absent, &cut);
    print_report(args.json, &report, &report.text(args.unknown))?;
    Ok(report.verdict(args.no_duplicates)?)
}

/// The headers that carry the ids of rows.
fn id_headers(config: &Config) -> Result<Vec<String>> {
    let tables: Vec<&OutboxConfig> = config.outboxes.iter().filter(|outbox| outbox.source.table().is_some()).collect();
    if tables.is_empty() {
        let cause = "all outboxes are messages, which leave no row behind to be compared";
        return Err(Error::new(Kind::Config, cause).remedy("verify an outbox that is a table"));
    }
    let header = |outbox: &&OutboxConfig| {
        outbox.route.id_header.clone().ok_or_else(|| {
            let cause = format!("records of {} carry no id: route.id_header is empty", outbox.source);
            Error::new(Kind::Config, cause).remedy(
                "set id_header in [route]. Records that are there already cannot be verified: give --since the time of \
                 the change",
            )
        })
    };
    let headers = tables.iter().map(header).collect::<Result<BTreeSet<_>>>()?;
    Ok(headers.into_iter().collect())
}

/// How each outbox that is a table is read.
async fn plans(session: &Session, config: &Config, range: &Range, report: &mut Report) -> Result<Vec<Plan>> {
    let source = &config.source;
    inspect(session.client(), &source.slot, &source.publication, &config.outboxes).await?;
    let mut plans = Vec::new();
    for outbox in &config.outboxes {
        let Some(name) = outbox.source.table() else {
            report.note(format!("{} cannot be verified: there is no row behind a message", outbox.source));
            continue;
        };
        let table = Table::needed(session.client(), name).await?;
        if outbox.upkeep.delete || outbox.upkeep.retention.is_some() {
            report.note(format!("rows of {name} are deleted once they were published: records of those are unknown"));
        }
        let plan = Plan::new(outbox, name, &table, range)?;
        report.note(match &plan.order {
            Some(order) => format!("the order of {name} is that of {order}"),
            None => {
                format!("the order of {name} is not checked: no column is numbered, and outbox.order_by is not set")
            }
        });
        plans.push(plan);
    }
    Ok(plans)
}
