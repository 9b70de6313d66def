//! `walrelay replay`: publishes rows of the outbox once more.
//!
//! The command reads and routes the rows first, shows a summary, asks, and then sends them:
//! [`crate::replay`].

use std::time::Duration;

use clap::{ArgGroup, Args};
use serde::Serialize;

use crate::cli::config::{self, RelaySettings, flags};
use crate::cli::output::{Consent, Grid, Outcome, Output, note, notes, or_dash, print_report};
use crate::cli::progress::{Bar, Sending};
use crate::cli::sql::{Range, Times};
use crate::config::Config;
use crate::poll::Reader;
use crate::relay::stop::on_signals;
use crate::replay::{FoundRows, Replay, ReplayProgress, RowFilter, SendEnd, Survey, UpTo};
use crate::sink::{AnySink, BusSink as _};
use walrelay_core::config::TableName;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::event::Shown;
use walrelay_core::printable::counted;

#[derive(Debug, Args, Serialize)]
#[command(
    group = ArgGroup::new("rows")
        .required(true)
        .multiple(true)
        .args(["id", "aggregate", "since", "condition"])
)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub settings: RelaySettings,
    /// Rows with one of these ids; can be repeated
    #[arg(long, value_name = "ID", num_args = 1..)]
    pub id: Vec<String>,
    /// Events of these aggregates, by the column outbox.columns.aggregateid, which is the record's
    /// key unless route.key is set; can be repeated
    #[arg(long, value_name = "KEY", num_args = 1..)]
    pub aggregate: Vec<String>,
    #[command(flatten)]
    #[serde(skip)]
    pub times: Times,
    /// Rows that satisfy this SQL condition over the table's columns
    #[arg(long = "where", value_name = "SQL")]
    pub condition: Option<String>,
    /// The longest wait for acks at a stop
    #[arg(long, value_name = "DURATION")]
    pub shutdown_timeout: Option<String>,
    #[command(flatten)]
    #[serde(skip)]
    pub consent: Consent,
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

A row has to match all conditions. The command publishes the rows in the table's order, with their \
id, key and topic, and with the header walrelay-replay: 1. It changes nothing in the database, and \
a relay may run meanwhile. A replayed event arrives after newer events of its aggregate: consumers \
recognize it by the header, and a duplicate by its id. If a row cannot be routed, the command \
publishes none. docs/how-to/replay.md describes replay.

Exit codes:
  0   all rows are published and acked; or --dry-run showed the plan
  1   no row matches
  2   a condition is not valid, or the answer was not yes
  3   told to stop before all rows were published
  10  Postgres cannot be reached (11: refuses)
  15  the table does not exist, or lacks a required column
  20  a row cannot be routed, and none was published (21: the bus refuses one)
  30  the bus cannot be reached (31: refuses)";

const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
const OTHERWISE: &str = "nothing was published";

pub(crate) async fn replay(args: &ReplayArgs) -> Outcome {
    let config = configured(args)?;
    let reader = Reader::connect(&config.source.database, "walrelay replay").await?;
    let range = Range::read(reader.client(), &args.times).await?;
    let wanted = RowFilter {
        ids: args.id.clone(),
        aggregates: args.aggregate.clone(),
        since: range.since,
        until: range.until,
        sql: args.condition.clone(),
    };
    let mut replay = Replay::open(&config, reader, &wanted).await?;
    let consent = args.consent;
    let output = args.consent.output;
    let mut bar = Bar::new(output);
    let survey = replay
        .survey(&mut |table, read, of| bar.at(read, Some(of), || format!("rows of {table} read")))
        .await?;
    drop(bar);
    let dry_run = consent.dry_run;
    let notes = replay.notes().to_vec();
    let mut report = Report {
        dry_run,
        survey,
        notes,
        ..Report::default()
    };
    if let Some(error) = report.fault(&wanted) {
        print_report(output, &report, &report.text())?;
        return Err(error.into());
    }
    let question = format!("Publish {} again?", report.rows());
    if consent.dry_run {
        consent
            .given(&report, &report.text(), question, OTHERWISE)
            .await?;
        return Ok(());
    }
    let sink = AnySink::connect(&config)?;
    for missing in sink.missing(&report.survey.topics(), CHECK_TIMEOUT).await? {
        report.notes.push(format!(
            "topic {missing} does not exist, or this user may not see it"
        ));
    }
    // The transaction stays open until the answer, and holds back vacuum.
    consent
        .given(&report, &report.text(), question, OTHERWISE)
        .await?;
    let stop = on_signals()?;
    let mut sending = Sending::new(output, "rows published");
    let (published, ended) = replay
        .publish(sink, stop, &mut |published, of, answers| {
            sending.at(published.acked, of, answers)
        })
        .await;
    drop(sending);
    report.published = published;
    print_report(output, &report, "")?;
    let rest = "to publish the rest, repeat the command with a --where that selects the rows after \
                that one; a row that is published \
                twice has the same id twice";
    end(output, ended, &report.result(), rest)
}

/// The end of a command that sends records, with its result. `rest` is the remedy where it was told
/// to stop.
pub(crate) fn end(output: Output, ended: Result<SendEnd>, result: &str, rest: &str) -> Outcome {
    match ended {
        Ok(SendEnd::All) => output.say(result),
        Ok(SendEnd::Stopped) => {
            let cause = format!("told to stop: {}", result.trim_end_matches('.'));
            Err(Error::new(Kind::ShutdownTimeout, cause).remedy(rest).into())
        }
        Err(error) => {
            note(result);
            Err(error.into())
        }
    }
}

/// The configuration; of several outboxes only the one that `--table` names, if it names one.
fn configured(args: &ReplayArgs) -> Result<Config> {
    let file = &args.settings.common.file;
    let mut typed = flags(args);
    let named = typed.remove("outbox.table");
    let settings = config::settings(&typed, file)?;
    let Some(named) = named.filter(|_| settings.has_several_outboxes()) else {
        return Ok(config::read_all(args, file)?.1);
    };
    let refused = |cause: String| {
        Error::new(Kind::Config, format!("--table: {cause}"))
            .remedy("name one of the tables as the file writes it")
    };
    let table: TableName = named
        .parse()
        .map_err(|_| refused("this is not a table name".to_owned()))?;
    let mut config = config::checked(&settings)?;
    config
        .outboxes
        .retain(|outbox| outbox.source.table() == Some(&table));
    if config.outboxes.is_empty() {
        return Err(refused(format!("none of the outboxes is {table}")));
    }
    Ok(config)
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Report {
    dry_run: bool,
    #[serde(flatten)]
    survey: Survey,
    #[serde(flatten)]
    published: ReplayProgress,
    notes: Vec<String>,
}

impl Report {
    pub(crate) fn rows(&self) -> String {
        counted(self.survey.rows, "row")
    }

    pub(crate) fn fault(&mut self, wanted: &RowFilter) -> Option<Error> {
        if self.survey.rows == 0 {
            let error = Error::new(Kind::NothingMatched, "no row matches");
            return Some(
                error.remedy(
                    "a row has to match all conditions; replay cannot publish deleted rows",
                ),
            );
        }
        let given = wanted.ids.len();
        if self.survey.rows < given as u64 {
            self.notes
                .push(format!("{given} ids were given, and {} found", self.rows()));
        }
        (self.survey.unroutable > 0).then(|| {
            let cause = format!(
                "{} cannot be routed, and nothing was published",
                counted(self.survey.unroutable, "row")
            );
            Error::new(Kind::Event, cause)
                .remedy("correct the rows or the template, or leave the rows out with --where")
        })
    }

    pub(crate) fn result(&self) -> String {
        let ReplayProgress { acked, up_to, .. } = &self.published;
        if *acked == self.survey.rows {
            return format!("Published {} again.", self.rows());
        }
        let shown = |row: &UpTo| {
            format!(
                "; all up to row {} of {} are",
                Shown::of(row.id.as_bytes()),
                row.outbox
            )
        };
        format!(
            "{acked} of {} were published{}.",
            self.rows(),
            up_to.as_ref().map(shown).unwrap_or_default()
        )
    }

    pub(crate) fn text(&self) -> String {
        let shown =
            |text: &Option<String>| or_dash(text.as_deref().map(|text| Shown::of(text.as_bytes())));
        let mut tables = Grid::headed("outbox, rows, first, last, from, to, order");
        let mut topics = Grid::headed("topic, rows, outbox");
        let mut unroutable = Grid::default();
        for FoundRows {
            outbox,
            rows,
            first,
            last,
            from,
            to,
            order,
            topics: of,
        } in &self.survey.tables
        {
            let [from, to, order] = [from, to, order].map(|text| or_dash(text.as_ref()));
            tables.row([
                outbox,
                rows,
                &shown(first),
                &shown(last),
                &from,
                &to,
                &order,
            ]);
            of.iter()
                .for_each(|(topic, rows)| topics.row([topic, rows, outbox]));
        }
        for row in &self.survey.unroutable_rows {
            let outbox = format!("  {}", row.outbox);
            let id = format!("id {}", Shown::of(row.id.as_bytes()));
            unroutable.row([&outbox, &id, &row.why]);
        }
        let mut text = tables.text()
            + &topics.section()
            + &unroutable.titled("unroutable", self.survey.unroutable);
        if !self.notes.is_empty() {
            text += "\n";
        }
        text + &notes(&self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::Failure;
    use crate::replay::Unroutable;

    fn survey(unroutable: u64) -> Survey {
        let text = |text: &str| Some(text.to_owned());
        let found = FoundRows {
            outbox: "public.outbox".to_owned(),
            rows: 12,
            order: text("\"seq\""),
            first: text("a-1"),
            last: text("a-9\n"),
            from: text("2026-03-01 12:00:00+00"),
            to: text("2026-03-01 12:30:00+00"),
            topics: [("orders".to_owned(), 11), ("returns".to_owned(), 1)].into(),
        };
        let empty = FoundRows {
            outbox: "b.events".to_owned(),
            ..FoundRows::default()
        };
        let row = Unroutable {
            outbox: "public.outbox".to_owned(),
            id: "a-3".to_owned(),
            why: "column a is NULL".to_owned(),
        };
        let unroutable_rows = if unroutable > 0 {
            vec![row]
        } else {
            Vec::new()
        };
        Survey {
            rows: 12,
            unroutable,
            tables: vec![found, empty],
            unroutable_rows,
        }
    }

    #[test]
    fn a_dry_run_reports_rows_by_table_and_topic_and_unroutable_rows() {
        let mut report = Report {
            dry_run: true,
            survey: survey(2),
            ..Report::default()
        };
        report.notes.push("topic returns does not exist".to_owned());
        let error = report.fault(&RowFilter::default()).unwrap();
        assert_eq!(
            (error.kind(), error.cause()),
            (
                Kind::Event,
                "2 rows cannot be routed, and nothing was published"
            )
        );
        insta::assert_snapshot!(report.text(), @r#"
        outbox         rows  first  last     from                    to                      order
        public.outbox  12    "a-1"  "a-9\n"  2026-03-01 12:00:00+00  2026-03-01 12:30:00+00  "seq"
        b.events       0     -      -        -                       -                       -

        topic    rows  outbox
        orders   11    public.outbox
        returns  1     public.outbox

        unroutable (1 of 2)
          public.outbox  id "a-3"  column a is NULL

        note: topic returns does not exist
        "#);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            (&json["rows"], &json["tables"][0]["topics"]["orders"]),
            (&12.into(), &11.into())
        );
        assert_eq!(
            (&json["unroutable_rows"][0]["id"], &json["dry_run"]),
            (&"a-3".into(), &true.into())
        );
    }

    #[test]
    fn a_partial_result_names_the_row_up_to_which_all_are_published() {
        let mut report = Report {
            survey: survey(0),
            ..Report::default()
        };
        assert!(report.fault(&RowFilter::default()).is_none());
        let up_to = |id: &str| {
            Some(UpTo {
                outbox: "public.outbox".to_owned(),
                id: id.to_owned(),
            })
        };
        report.published = ReplayProgress {
            taken: 9,
            acked: 7,
            up_to: up_to("a-5"),
        };
        assert_eq!(
            report.result(),
            "7 of 12 rows were published; all up to row \"a-5\" of public.outbox are."
        );
        let stopped = end(
            Output::default(),
            Ok(SendEnd::Stopped),
            &report.result(),
            "repeat it",
        )
        .unwrap_err();
        let Failure::Error(stopped) = stopped else {
            panic!("{stopped:?}")
        };
        assert_eq!(stopped.kind(), Kind::ShutdownTimeout);
        assert_eq!(
            stopped.cause(),
            "told to stop: 7 of 12 rows were published; all up to row \"a-5\" of public.outbox are"
        );
        report.published = ReplayProgress {
            taken: 12,
            acked: 12,
            up_to: up_to("a-9"),
        };
        assert_eq!(report.result(), "Published 12 rows again.");
    }

    #[test]
    fn ids_without_a_row_are_noted_and_a_replay_that_finds_no_row_ends_with_1() {
        let wanted = RowFilter {
            ids: vec![String::new(); 13],
            ..RowFilter::default()
        };
        let mut report = Report {
            survey: survey(0),
            ..Report::default()
        };
        assert!(
            report.fault(&wanted).is_none()
                && report
                    .text()
                    .contains("note: 13 ids were given, and 12 rows found")
        );
        let none = Report::default().fault(&wanted).unwrap();
        assert_eq!(
            (none.kind(), none.kind().exit_code()),
            (Kind::NothingMatched, 1)
        );
    }
}
