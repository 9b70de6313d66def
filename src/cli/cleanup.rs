//! `walrelay cleanup`: deletes old published rows.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio_postgres::Client;

use crate::cli::config::{self, AGE_MAX, Common, duration, flags};
use crate::cli::output::{Outcome, Output, ProgressReporter, aligned, note, print, warn};
use crate::cli::sql::Session;
use crate::config::unit::exact_duration;
use crate::config::{OutboxConfig, StoreKind};
use crate::error::{Error, Kind, Result, both};
use crate::ledger::trail::Published;
use crate::source::preflight;
use crate::state::{self, Stored};
use crate::upkeep::bound;
use crate::upkeep::cleanup::{Partition, Sweeper, old_partitions, published_of, sweep};

const PAUSE_MAX: Duration = Duration::from_secs(3600);

#[derive(Debug, Args, Serialize)]
pub(crate) struct CleanupArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// The outbox table
    #[arg(long, value_name = "SCHEMA.TABLE")]
    pub table: Option<String>,
    /// Kafka's bootstrap servers, if Kafka stores the position
    #[arg(long, value_name = "HOST:PORT")]
    pub brokers: Option<String>,
    /// The store of the position
    #[arg(long, value_name = "STORE")]
    pub state_store: Option<StoreKind>,
    /// Delete rows older than this, such as 7d; outbox.retention by default
    #[arg(long, value_name = "DURATION", value_parser = duration(Duration::ZERO..=AGE_MAX, "7d or 12h"))]
    pub older_than: Option<Duration>,
    /// Rows per transaction
    #[arg(long, value_name = "ROWS", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub batch_rows: u32,
    /// The pause between two transactions
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = duration(Duration::ZERO..=PAUSE_MAX, "50ms or 0s"))]
    pub pause: Duration,
    /// Delete nothing; count the rows
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    #[serde(skip)]
    pub output: Output,
}

/// The deletions of a table, or those of a dry run. The fields are the keys of `--json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
struct Report {
    table: String,
    /// The basis for "published": `pending`, `xid` or `xmin`.
    published_by: &'static str,
    older_than_seconds: u64,
    partitions: Vec<String>,
    rows_dropped: u64,
    rows_deleted: u64,
    /// Old published rows that another session had locked.
    rows_left: u64,
    /// Old rows that are not published, or not known to be.
    rows_unpublished: u64,
}

#[derive(Debug, Serialize)]
struct Answer<'a> {
    dry_run: bool,
    tables: &'a [Report],
}

/// Deletes published rows older than the retention: whole partitions first, then batch by batch. Prints the counts.
pub(crate) async fn cleanup(args: &CleanupArgs) -> Outcome {
    let settings = config::settings(&flags(args), &args.common.file)?;
    warn(settings.warnings());
    let (database, outboxes) = both(settings.database(), settings.outboxes())?;
    let wanted = wanted(&outboxes, args.older_than)?;
    let session = Session::connect(&database, "cleanup").await?;
    let client = session.client();
    bound(client).await?;
    if preflight::server(client).await?.in_recovery {
        let cause = "the server is in recovery, and accepts no deletes";
        return Err(Error::new(Kind::PostgresUnreachable, cause)
            .remedy("connect to the primary, for example with target_session_attrs=read-write")
            .into());
    }
    let mut sweepers = Vec::new();
    for (outbox, retention) in wanted {
        sweepers.extend(Sweeper::look(client, outbox, retention).await?);
    }
    let known = match sweepers.iter().any(|sweeper| sweeper.basis.needs_published()) {
        true => state::load(&config::config(&settings, false)?).await?,
        false => None,
    };
    let mut reports = Vec::new();
    for sweeper in &sweepers {
        let published = match known.clone().filter(|_| sweeper.basis.needs_published()) {
            Some(known) => Some(published_of(client, known, sweeper.table.oid).await?),
            None => None,
        };
        let is_polled = known.as_ref().is_some_and(Stored::is_polled);
        reports.push(table(client, sweeper, published.as_ref(), is_polled, args).await?);
    }
    let answer = Answer { dry_run: args.dry_run, tables: &reports };
    print(&args.output.line(&answer, &answer.table())?)
}

fn wanted(outboxes: &[OutboxConfig], older_than: Option<Duration>) -> Result<Vec<(&OutboxConfig, Duration)>> {
    let tables = || outboxes.iter().filter(|outbox| outbox.source.table().is_some());
    if tables().next().is_none() {
        return Err(Error::new(Kind::Config, "all outboxes are messages: there is no table to clean up"));
    }
    let with = tables().filter_map(|outbox| Some((outbox, older_than.or(outbox.upkeep.retention)?)));
    let with: Vec<_> = with.collect();
    if with.is_empty() {
        return Err(Error::new(Kind::Config, "no retention is set").remedy("set --older-than 7d, or outbox.retention"));
    }
    Ok(with)
}

async fn table(
    client: &Client,
    sweeper: &Sweeper,
    published: Option<&Published>,
    is_polled: bool,
    args: &CleanupArgs,
) -> Result<Report> {
    let name = &sweeper.name;
    let mut report = Report {
        table: name.to_string(),
        published_by: sweeper.basis.word(),
        older_than_seconds: sweeper.retention.as_secs(),
        ..Report::default()
    };
    if sweeper.reads_all() {
        note(format_args!(
            "note: {name} has no index that begins with {}, so every batch reads the whole table: create an index, or use \
             larger batches with --batch-rows",
            sweeper.time
        ));
    }
    for partition in old_partitions(client, sweeper, published, is_polled).await? {
        let stays = match (&partition.stays, args.dry_run) {
            (Some(stays), _) => Err(stays.clone()),
            (None, true) => Ok(()),
            (None, false) => partition.drop(client, sweeper, published).await?,
        };
        match stays {
            Ok(()) => dropped(&mut report, &partition, args.dry_run),
            Err(why) => note(format_args!("note: partition {} is not dropped: {why}", partition.name)),
        }
    }
    if !args.dry_run {
        report.rows_deleted = batches(client, sweeper, published, args).await?;
    }
    let counted = sweeper.count(client, published).await?;
    report.rows_unpublished = counted.unpublished;
    match args.dry_run {
        true => report.rows_deleted = counted.published.saturating_sub(report.rows_dropped),
        false => report.rows_left = counted.published,
    }
    Ok(report)
}

fn dropped(report: &mut Report, partition: &Partition, dry_run: bool) {
    let rows = partition.rows.unwrap_or_default();
    report.rows_dropped += rows;
    report.partitions.push(partition.name.clone());
    if !dry_run {
        note(format_args!("partition {} dropped, with {rows} rows", partition.name));
    }
}

async fn batches(client: &Client, sweeper: &Sweeper, published: Option<&Published>, args: &CleanupArgs) -> Result<u64> {
    let (mut deleted, mut after, mut reporter) = (0, None::<String>, ProgressReporter::new());
    loop {
        let swept = sweep(client, sweeper, published, after.as_deref(), args.batch_rows).await?;
        deleted += swept.deleted;
        if swept.found < u64::from(args.batch_rows) {
            return Ok(deleted);
        }
        after = swept.last;
        reporter.report(|| format!("{}: {deleted} rows deleted", sweeper.name));
        tokio::time::sleep(args.pause).await;
    }
}

impl Answer<'_> {
    fn table(&self) -> String {
        let (deleted, dropped) = match self.dry_run {
            true => ("to delete", "partitions to drop"),
            false => ("deleted", "partitions dropped"),
        };
        let head = ["table", "older than", deleted, dropped, "rows in them", "locked", "not published"];
        let row = |report: &Report| {
            [
                report.table.clone(),
                exact_duration(Duration::from_secs(report.older_than_seconds)),
                report.rows_deleted.to_string(),
                report.partitions.len().to_string(),
                report.rows_dropped.to_string(),
                report.rows_left.to_string(),
                report.rows_unpublished.to_string(),
            ]
        };
        let rows: Vec<_> = std::iter::once(head.map(str::to_owned)).chain(self.tables.iter().map(row)).collect();
        aligned(&rows)
    }
}

pub(super) const HELP: &str = "\
Examples:
  walrelay cleanup --config walrelay.toml --dry-run
  walrelay cleanup --config walrelay.toml --older-than 7d
  walrelay cleanup --slot orders --brokers localhost:9092 --older-than 12h

cleanup deletes old published rows. Unpublished rows stay, whatever their age, and so do rows that another session has locked. cleanup drops a partition that has only old published rows.

Exit codes:
  0   done, or nothing to do
  2   the configuration is not valid, or sets no retention
  10  Postgres cannot be reached (11: refuses)
  15  the table does not exist, or foreign keys refer to its rows
  16  the published rows are not known
  30  Kafka has the position and cannot be reached (31: refuses)";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::json_line;
    use crate::config::EventSource;

    fn report() -> Report {
        Report {
            table: "public.outbox".to_owned(),
            published_by: "xid",
            older_than_seconds: 7 * 24 * 3600,
            partitions: vec!["\"public\".\"outbox_1\"".to_owned()],
            rows_dropped: 20,
            rows_deleted: 1_234,
            rows_left: 1,
            rows_unpublished: 0,
        }
    }

    #[test]
    fn the_report_is_an_aligned_table_or_one_json_object() {
        let tables = [report(), Report { table: "shop.events".to_owned(), rows_deleted: 7, ..report() }];
        let answer = Answer { dry_run: false, tables: &tables };
        insta::assert_snapshot!(answer.table(), @r"
        table          older than  deleted  partitions dropped  rows in them  locked  not published
        public.outbox  7d          1234     1                   20            1       0
        shop.events    7d          7        1                   20            1       0
        ");
        let json: serde_json::Value = serde_json::from_str(&json_line(&answer).unwrap()).unwrap();
        assert_eq!((&json["tables"][1]["rows_deleted"], &json["dry_run"]), (&7.into(), &false.into()));
        assert!(Answer { dry_run: true, ..answer }.table().contains("to delete"));
    }

    #[test]
    fn cleanup_needs_an_age_and_skips_tables_without_one() {
        let messages = OutboxConfig { source: EventSource::Messages("a".to_owned()), ..OutboxConfig::default() };
        let mut kept = OutboxConfig::default();
        assert_eq!(wanted(std::slice::from_ref(&messages), None).unwrap_err().kind(), Kind::Config);
        assert!(wanted(std::slice::from_ref(&kept), None).unwrap_err().what_to_do().unwrap().contains("--older-than"));
        let day = Duration::from_secs(24 * 3600);
        assert_eq!(wanted(&[messages, kept.clone()], Some(day)).unwrap().len(), 1);
        kept.upkeep.retention = Some(day);
        let both = [kept, OutboxConfig::default()];
        assert_eq!(wanted(&both, None).unwrap().len(), 1);
    }
}
