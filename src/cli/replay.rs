//! `walrelay replay`: publishes rows of the outbox once more.
//!
//! The command reads and routes the rows first, shows a summary, asks, and then sends them: [`crate::replay`].

use std::time::Duration;

use clap::{ArgGroup, Args};
use serde::Serialize;

use crate::cli::load::Loaded;
use crate::cli::output::shown_and_confirmed;
use crate::cli::output::{Outcome, Teller, note, print_json, print_line, print_report, warn};
use crate::cli::text::{aligned, counted, listed, notes};
use crate::cli::verify::range;
use crate::cli::{RelaySettings, flags, put};
use crate::config::layers::Flags;
use crate::config::{Config, TableName};
use crate::error::{Error, Kind, Result};
use crate::event::Shown;
use crate::poll::Reader;
use crate::relay::stop::on_signals;
use crate::replay::{Ended, Published, Replay, Survey, Wanted};
use crate::sink::AnySink;

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

/// What was found, and what came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    dry_run: bool,
    #[serde(flatten)]
    survey: Survey,
    /// How many of the rows were acked.
    published: u64,
    /// The last that was acked with all before it.
    up_to: Option<UpTo>,
    notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct UpTo {
    outbox: String,
    id: String,
}

impl Report {
    /// Before anything is published.
    pub fn new(survey: Survey, dry_run: bool) -> Report {
        Report { dry_run, survey, ..Report::default() }
    }

    /// Adds a remark.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Takes what was published.
    pub fn published(&mut self, published: Published) {
        self.published = published.acked;
        self.up_to = published.up_to.map(|(outbox, id)| UpTo { outbox, id });
    }

    /// `1 row`, `2 rows`.
    pub fn rows(&self) -> String {
        counted(self.survey.rows, "row")
    }

    /// Why nothing can be published.
    pub fn fault(&mut self, wanted: &Wanted) -> Option<Error> {
        if self.survey.rows == 0 {
            let error = Error::new(Kind::NothingMatched, "no row is what was asked for");
            return Some(error.remedy(
                "all conditions have to hold at once; rows that were deleted after they were published cannot come again",
            ));
        }
        let given = wanted.ids.len();
        if self.survey.rows < given as u64 {
            self.note(format!("{given} ids were given, and {} found", self.rows()));
        }
        (self.survey.unroutable > 0).then(|| {
            let cause =
                format!("{} cannot be routed, and nothing was published", counted(self.survey.unroutable, "row"));
            Error::new(Kind::Event, cause).remedy(
                "correct the rows, or the template if it is not the one that was meant; or leave them out with --where",
            )
        })
    }

    /// What was published, in one line.
    pub fn said(&self) -> String {
        let (published, rows) = (self.published, self.survey.rows);
        if published == rows {
            return format!("Published {} again.", self.rows());
        }
        let up_to = self
            .up_to
            .as_ref()
            .map(|row| format!("; all up to row {} of {} are", Shown::of(row.id.as_bytes()), row.outbox));
        format!("{published} of {} were published{}.", self.rows(), up_to.unwrap_or_default())
    }

    /// It was told to stop before its end.
    pub fn stopped(&self) -> Error {
        let said = self.said();
        Error::new(Kind::ShutdownTimeout, format!("told to stop: {}", said.trim_end_matches('.'))).remedy(
            "for the rest, give the same conditions and with --where what is behind that row; rows that come twice carry \
             their id twice",
        )
    }

    /// For people.
    pub fn text(&self) -> String {
        let shown = |text: &Option<String>| text.as_deref().map(|text| Shown::of(text.as_bytes()).to_string());
        let plain = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let mut tables = vec![["outbox", "rows", "first", "last", "from", "to", "order"].map(str::to_owned)];
        let mut topics = vec![["topic", "rows", "outbox"].map(str::to_owned)];
        for found in &self.survey.tables {
            let id = |id| shown(id).unwrap_or_else(|| "-".to_owned());
            tables.push([
                found.outbox.clone(),
                found.rows.to_string(),
                id(&found.first),
                id(&found.last),
                plain(&found.from),
                plain(&found.to),
                plain(&found.order),
            ]);
            let rows = |(topic, rows): (&String, &u64)| [topic.clone(), rows.to_string(), found.outbox.clone()];
            topics.extend(found.topics.iter().map(rows));
        }
        let mut text = aligned(&tables) + "\n";
        if topics.len() > 1 {
            text += &format!("\n{}\n", aligned(&topics));
        }
        if self.survey.unroutable > 0 {
            let rows = self.survey.unroutable_rows.iter();
            let lines: Vec<_> = rows
                .map(|row| {
                    let id = Shown::of(row.id.as_bytes());
                    [format!("  {}", row.outbox), format!("id {id}"), row.why.clone()]
                })
                .collect();
            text += &listed("unroutable", self.survey.unroutable, &lines);
        }
        if !self.notes.is_empty() {
            text += "\n";
        }
        text += &notes(&self.notes);
        if self.dry_run {
            text += "\nDry run: nothing was published.\n";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::Found;
    use crate::replay::Unroutable;

    fn survey(unroutable: u64) -> Survey {
        let text = |text: &str| Some(text.to_owned());
        let found = Found {
            outbox: "public.outbox".to_owned(),
            rows: 12,
            order: text("\"seq\""),
            first: text("a-1"),
            last: text("a-9\n"),
            from: text("2026-03-01 12:00:00+00"),
            to: text("2026-03-01 12:30:00+00"),
            topics: [("orders".to_owned(), 11), ("returns".to_owned(), 1)].into(),
        };
        let empty = Found { outbox: "b.events".to_owned(), ..Found::default() };
        let row =
            Unroutable { outbox: "public.outbox".to_owned(), id: "a-3".to_owned(), why: "column a is NULL".to_owned() };
        let unroutable_rows = if unroutable > 0 { vec![row] } else { Vec::new() };
        Survey { rows: 12, unroutable, tables: vec![found, empty], unroutable_rows }
    }

    #[test]
    fn what_would_be_published_is_told_by_table_and_topic() {
        let mut report = Report::new(survey(2), true);
        report.note("topic returns does not exist".to_owned());
        let error = report.fault(&Wanted::default()).unwrap();
        assert_eq!((error.kind(), error.cause()), (Kind::Event, "2 rows cannot be routed, and nothing was published"));
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

        Dry run: nothing was published.
        "#);
        assert!(!Report::new(survey(0), false).text().contains("Dry run"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["rows"], &json["tables"][0]["topics"]["orders"]), (&12.into(), &11.into()));
        assert_eq!((&json["unroutable_rows"][0]["id"], &json["dry_run"]), (&"a-3".into(), &true.into()));
    }

    #[test]
    fn what_was_published_says_up_to_where() {
        let mut report = Report::new(survey(0), false);
        assert!(report.fault(&Wanted::default()).is_none());
        let up_to = |id: &str| Some(("public.outbox".to_owned(), id.to_owned()));
        report.published(Published { taken: 9, acked: 7, up_to: up_to("a-5") });
        assert_eq!(report.said(), "7 of 12 rows were published; all up to row \"a-5\" of public.outbox are.");
        assert_eq!(report.stopped().kind(), Kind::ShutdownTimeout);
        report.published(Published { taken: 12, acked: 12, up_to: up_to("a-9") });
        assert_eq!(report.said(), "Published 12 rows again.");
    }

    #[test]
    fn ids_without_a_row_are_counted_and_no_row_at_all_is_a_fault() {
        let wanted = Wanted { ids: vec![String::new(); 13], ..Wanted::default() };
        let mut report = Report::new(survey(0), false);
        assert!(
            report.fault(&wanted).is_none() && report.text().contains("note: 13 ids were given, and 12 rows found")
        );
        let none = Report::new(Survey::default(), false).fault(&wanted).unwrap();
        assert_eq!((none.kind(), none.kind().exit_code()), (Kind::NothingMatched, 1));
    }
}
