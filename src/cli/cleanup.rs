//! `walrelay cleanup`: deletes old published rows.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio_postgres::Client;

use crate::cli::config::{self, AGE_MAX, RelaySettings, duration, one_of};
use crate::cli::output::{Consent, Grid, Outcome, note, print_report};
use crate::cli::progress::Bar;
use crate::config::StoreKind;
use crate::state;
use crate::upkeep::cleanup::{Partition, Sweeper, old_partitions, published_of, sweep_all};
use crate::upkeep::{bound, connect_as};
use walrelay_core::config::unit::exact_duration;
use walrelay_core::config::{OutboxConfig, tables_of};
use walrelay_core::error::{Error, Kind, Result, both};
use walrelay_core::ledger::trail::Published;
use walrelay_core::printable::counted;
use walrelay_core::stored::Stored;

const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// Where the seconds of a time end in the text form of Postgres.
const SECONDS_END: usize = "2026-03-01 12:00:00".len();

#[derive(Debug, Args, Serialize)]
pub(crate) struct CleanupArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub relay: RelaySettings,
    /// The store of the position
    #[arg(long, value_name = "STORE", value_parser = one_of::<StoreKind>())]
    pub state_store: Option<StoreKind>,
    /// Delete rows older than this, such as 7d; outbox.retention by default
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = duration(Duration::ZERO..=AGE_MAX, "7d or 12h")
    )]
    pub older_than: Option<Duration>,
    /// Rows per transaction
    #[arg(
        long,
        value_name = "ROWS",
        default_value_t = 1_000,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub batch_rows: u32,
    /// The pause between two transactions
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "50ms",
        value_parser = duration(Duration::ZERO..=PAUSE_MAX, "50ms or 0s")
    )]
    pub pause: Duration,
    #[command(flatten)]
    #[serde(skip)]
    pub consent: Consent,
}

/// The deletions of a table, or those of a dry run. The fields are the keys of `--json`.
#[derive(Debug, Clone, Default, Serialize)]
struct Report {
    table: String,
    /// The basis for "published": `pending`, `xid` or `xmin`.
    published_by: &'static str,
    older_than_seconds: u64,
    before: String,
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

#[derive(Debug)]
struct Doomed {
    sweeper: Sweeper,
    published: Option<Published>,
    /// Those that can be dropped.
    partitions: Vec<Partition>,
    plan: Report,
}

/// Deletes published rows older than the retention, after a question: whole partitions first, then
/// batch by batch. Prints the counts.
pub(crate) async fn cleanup(args: &CleanupArgs) -> Outcome {
    let settings = config::read(args, &args.relay.common.file)?;
    let (database, outboxes) = both(settings.database(), settings.outboxes())?;
    let wanted = wanted(&outboxes, args.older_than)?;
    let upkeep = settings.upkeep_database()?;
    let session = connect_as(&database, upkeep.as_ref(), "walrelay cleanup").await?;
    let client = session.client();
    bound(client).await?;
    let mut sweepers = Vec::new();
    for (outbox, retention) in wanted {
        sweepers.extend(Sweeper::look_to_delete(client, outbox, retention).await?);
    }
    let known = match sweepers
        .iter()
        .any(|sweeper| sweeper.basis.needs_published())
    {
        true => state::load(&config::config(&settings, false)?).await?,
        false => None,
    };
    let mut doomed = Vec::new();
    for sweeper in sweepers {
        doomed.push(Doomed::look(client, sweeper, known.as_ref()).await?);
    }
    let plans: Vec<_> = doomed.iter().map(|doomed| doomed.plan.clone()).collect();
    let plan = Answer {
        dry_run: true,
        tables: &plans,
    };
    let question = plan.question(&database.describe());
    let output = args.consent.output;
    if (question.is_some() || args.consent.dry_run)
        && !args
            .consent
            .given(
                &plan,
                &plan.text(),
                question.unwrap_or_default(),
                "nothing was deleted",
            )
            .await?
    {
        return Ok(());
    }
    let mut reports = Vec::new();
    for doomed in doomed {
        reports.push(doomed.delete(client, args).await?);
    }
    let answer = Answer {
        dry_run: false,
        tables: &reports,
    };
    print_report(output, &answer, &answer.text())
}

fn wanted(
    outboxes: &[OutboxConfig],
    older_than: Option<Duration>,
) -> Result<Vec<(&OutboxConfig, Duration)>> {
    let tables = tables_of(outboxes);
    if tables.clone().next().is_none() {
        return Err(Error::new(
            Kind::Config,
            "all outboxes are messages: there is no table to clean up",
        ));
    }
    let with =
        tables.filter_map(|(outbox, _)| Some((outbox, older_than.or(outbox.upkeep.retention)?)));
    let with: Vec<_> = with.collect();
    if with.is_empty() {
        return Err(Error::new(Kind::Config, "no retention is set")
            .remedy("set --older-than 7d, or outbox.retention"));
    }
    Ok(with)
}

impl Doomed {
    /// Reads all old rows. Changes nothing.
    async fn look(client: &Client, sweeper: Sweeper, known: Option<&Stored>) -> Result<Doomed> {
        let name = &sweeper.name;
        if sweeper.reads_all() {
            note(format_args!(
                "note: {name} has no btree that begins with {}, so every batch reads the whole \
                 table: create an index, or \
                 use larger batches with --batch-rows",
                sweeper.time
            ));
        }
        let published = match known.filter(|_| sweeper.basis.needs_published()) {
            Some(known) => Some(published_of(client, known.clone(), sweeper.table.oid).await?),
            None => None,
        };
        let is_polled = known.is_some_and(Stored::is_polled);
        let mut partitions = Vec::new();
        for partition in old_partitions(client, &sweeper, published.as_ref(), is_polled).await? {
            match &partition.stays {
                None => partitions.push(partition),
                Some(why) => stays(&partition, why),
            }
        }
        let counted = sweeper.count(client, published.as_ref()).await?;
        let rows_dropped = partitions
            .iter()
            .filter_map(|partition| partition.rows)
            .sum();
        let plan = Report {
            table: name.to_string(),
            published_by: sweeper.basis.word(),
            older_than_seconds: sweeper.retention.as_secs(),
            before: sweeper.before.clone(),
            partitions: partitions
                .iter()
                .map(|partition| partition.name.clone())
                .collect(),
            rows_dropped,
            rows_deleted: counted.published.saturating_sub(rows_dropped),
            rows_left: 0,
            rows_unpublished: counted.unpublished,
        };
        Ok(Doomed {
            sweeper,
            published,
            partitions,
            plan,
        })
    }

    async fn delete(self, client: &Client, args: &CleanupArgs) -> Result<Report> {
        let Doomed {
            sweeper,
            published,
            partitions,
            plan,
        } = self;
        let published = published.as_ref();
        let expected = plan.rows_deleted;
        let mut report = Report {
            partitions: Vec::new(),
            rows_dropped: 0,
            ..plan
        };
        for partition in &partitions {
            match partition.drop(client, &sweeper, published).await? {
                Ok(()) => {
                    let rows = partition.rows.unwrap_or_default();
                    note(format_args!(
                        "partition {} dropped, with {rows} rows",
                        partition.name
                    ));
                    report.rows_dropped += rows;
                    report.partitions.push(partition.name.clone());
                }
                Err(why) => stays(partition, &why),
            }
        }
        let mut bar = Bar::new(args.consent.output);
        let rows = &mut report.rows_deleted;
        *rows = 0;
        let each = |deleted| {
            *rows += deleted;
            bar.at(*rows, Some(expected), || {
                format!("rows of {} deleted", sweeper.name)
            });
        };
        sweep_all(
            client,
            &sweeper,
            published,
            args.batch_rows,
            args.pause,
            each,
        )
        .await?;
        let left = sweeper.count(client, published).await?;
        report.rows_left = left.published;
        report.rows_unpublished = left.unpublished;
        Ok(report)
    }
}

fn stays(partition: &Partition, why: &str) {
    note(format_args!(
        "note: partition {} is not dropped: {why}",
        partition.name
    ));
}

impl Answer<'_> {
    /// The question before the deletion; none if there is nothing to delete.
    fn question(&self, database: &str) -> Option<String> {
        let sum = |count: fn(&Report) -> u64| self.tables.iter().map(count).sum::<u64>();
        let rows = sum(|report| report.rows_deleted);
        let dropped = sum(|report| report.rows_dropped);
        let rows = counted(rows, "row");
        match sum(|report| report.partitions.len() as u64) {
            0 if rows == counted(0, "row") => None,
            0 => Some(format!("Delete {rows} at {database}?")),
            partitions => Some(format!(
                "Delete {rows}, and {} with {}, at {database}?",
                counted(partitions, "partition"),
                counted(dropped, "row")
            )),
        }
    }

    /// The counts; before a deletion the names of the partitions, too.
    fn text(&self) -> String {
        let (deleted, dropped) = match self.dry_run {
            true => ("to delete", "partitions to drop"),
            false => ("deleted", "partitions dropped"),
        };
        let head = format!(
            "table, older than, before (UTC), {deleted}, {dropped}, rows in them, locked, not \
             published"
        );
        let mut tables = Grid::headed(&head);
        let mut partitions = Grid::default();
        for report in self.tables {
            let Report {
                table,
                rows_deleted,
                rows_dropped,
                rows_left,
                rows_unpublished,
                before,
                ..
            } = report;
            let age = exact_duration(Duration::from_secs(report.older_than_seconds));
            let before = before.get(..SECONDS_END).unwrap_or(before);
            let dropped = report.partitions.len();
            tables.row([
                table,
                &age,
                &before,
                rows_deleted,
                &dropped,
                rows_dropped,
                rows_left,
                rows_unpublished,
            ]);
            let names = report.partitions.iter().filter(|_| self.dry_run);
            names.for_each(|name| partitions.row([&format_args!("  {name}")]));
        }
        tables.text() + &partitions.titled(dropped, 0)
    }
}

pub(super) const HELP: &str = "\
Examples:
  walrelay cleanup --config walrelay.toml --dry-run
  walrelay cleanup --config walrelay.toml --older-than 7d
  walrelay cleanup --slot orders --brokers localhost:9092 \\
    --older-than 12h --yes

cleanup deletes old published rows. It shows what it will delete, and asks. Without a terminal, as \
in a cron job, it needs --yes. Unpublished rows stay, whatever their age, but those of parked \
events, which the relay has; and so do rows that another session has locked. cleanup drops a \
partition that has only old published rows.

Exit codes:
  0   done, or nothing to do
  2   the configuration is not valid or sets no retention, or the answer was not yes
  10  Postgres cannot be reached (11: refuses)
  15  the table does not exist, or foreign keys refer to its rows
  16  the published rows are not known
  30  the bus has the position and cannot be reached (31: refuses)";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::json_line;
    use walrelay_core::config::EventSource;

    fn report() -> Report {
        Report {
            table: "public.outbox".to_owned(),
            published_by: "xid",
            older_than_seconds: 7 * 24 * 3600,
            before: "2026-03-01 12:00:00.123456+00".to_owned(),
            partitions: vec!["\"public\".\"outbox_1\"".to_owned()],
            rows_dropped: 20,
            rows_deleted: 1_234,
            rows_left: 1,
            rows_unpublished: 0,
        }
    }

    #[test]
    fn the_report_is_an_aligned_table_or_one_json_object() {
        let tables = [
            report(),
            Report {
                table: "shop.events".to_owned(),
                rows_deleted: 7,
                ..report()
            },
        ];
        let answer = Answer {
            dry_run: false,
            tables: &tables,
        };
        insta::assert_snapshot!(answer.text(), @r"
        table          older than  before (UTC)         deleted  partitions dropped  rows in them  locked  not published
        public.outbox  7d          2026-03-01 12:00:00  1234     1                   20            1       0
        shop.events    7d          2026-03-01 12:00:00  7        1                   20            1       0
        ");
        let json: serde_json::Value = serde_json::from_str(&json_line(&answer).unwrap()).unwrap();
        assert_eq!(
            (&json["tables"][1]["rows_deleted"], &json["dry_run"]),
            (&7.into(), &false.into())
        );
        assert_eq!(json["tables"][0]["before"], "2026-03-01 12:00:00.123456+00");
    }

    #[test]
    fn the_plan_names_the_partitions_and_the_question_counts_what_goes() {
        let kept = Report {
            partitions: Vec::new(),
            rows_dropped: 0,
            ..report()
        };
        let none = Report {
            rows_deleted: 0,
            ..kept.clone()
        };
        let question = |tables: &[Report]| {
            Answer {
                dry_run: true,
                tables,
            }
            .question("db:5432/shop")
        };
        let tables = [
            report(),
            Report {
                rows_deleted: 0,
                ..report()
            },
        ];
        let both = "Delete 1234 rows, and 2 partitions with 40 rows, at db:5432/shop?";
        assert_eq!(question(&tables).as_deref(), Some(both));
        assert_eq!(
            question(&[none.clone(), kept]).as_deref(),
            Some("Delete 1234 rows at db:5432/shop?")
        );
        assert_eq!(question(&[none]), None);
        let text = Answer {
            dry_run: true,
            tables: &tables[..1],
        }
        .text();
        assert!(
            text.contains("  to delete  ")
                && text.ends_with("\npartitions to drop\n  \"public\".\"outbox_1\"\n"),
            "{text}"
        );
    }

    #[test]
    fn cleanup_needs_an_age_and_skips_tables_without_one() {
        let messages = OutboxConfig {
            source: EventSource::Messages("a".to_owned()),
            ..OutboxConfig::default()
        };
        let mut kept = OutboxConfig::default();
        assert_eq!(
            wanted(std::slice::from_ref(&messages), None)
                .unwrap_err()
                .kind(),
            Kind::Config
        );
        assert!(
            wanted(std::slice::from_ref(&kept), None)
                .unwrap_err()
                .what_to_do()
                .unwrap()
                .contains("--older-than")
        );
        let day = Duration::from_secs(24 * 3600);
        assert_eq!(
            wanted(&[messages, kept.clone()], Some(day)).unwrap().len(),
            1
        );
        kept.upkeep.retention = Some(day);
        let both = [kept, OutboxConfig::default()];
        assert_eq!(wanted(&both, None).unwrap().len(), 1);
    }
}
