//! `walrelay parked`: lists, shows, retries and drops parked events.
//!
//! Here are the commands, their conditions and their output; [`mod@table`] asks the table
//! `walrelay.parked`.

pub(crate) mod table;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use serde::{Serialize, Serializer};

use crate::cli::config::{AGE_MAX, Common, duration};
use crate::cli::output::{
    Consent, Grid, Outcome, Output, age, cell, labelled, note, or_dash, print_report, table, time,
    width,
};
use crate::cli::sql::Times;
use walrelay_core::config::unit::exact_duration;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::parked::{BEHIND, CLASSES};
use walrelay_core::printable::counted;

const SHOWN_MAX: usize = 20;
const UNCHANGED: &str = "nothing was changed";

pub(super) fn help() -> String {
    GROUP_HELP.to_owned() + CHANGE_EXIT_CODES + "\nEach command's own --help has more."
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Change {
    Retry,
    Drop,
}

impl Change {
    /// The request in the table.
    fn word(self) -> &'static str {
        match self {
            Change::Retry => "retry",
            Change::Drop => "drop",
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ParkedCommand {
    /// List parked events, the oldest first
    #[command(after_help = LIST_HELP.to_owned() + READ_EXIT_CODES)]
    List(ListArgs),
    /// Show all known fields of some events
    #[command(after_help = SHOW_HELP.to_owned() + READ_EXIT_CODES)]
    Show(ShowArgs),
    /// Send events to their topics again
    #[command(after_help = RETRY_HELP.to_owned() + CHANGE_EXIT_CODES)]
    Retry(ChangeArgs),
    /// Drop events: they are never sent
    #[command(after_help = DROP_HELP.to_owned() + CHANGE_EXIT_CODES)]
    Drop(ChangeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct Chosen {
    /// Events of rows with one of these ids, as with --id
    #[arg(value_name = "ID")]
    pub named: Vec<String>,
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub filters: Filters,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub chosen: Chosen,
    /// List also events behind another of their aggregate
    #[arg(long)]
    pub all: bool,
    /// The most events to list; all are counted
    #[arg(
        long,
        value_name = "EVENTS",
        default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub limit: u32,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args([
    "named", "id", "aggregate", "class", "topic", "outbox", "since", "until", "older_than",
]))]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub chosen: Chosen,
    /// Print the event's payload, too
    #[arg(long)]
    pub payload: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    #[command(flatten)]
    pub chosen: Chosen,
    /// Choose all events that are neither delivered nor dropped
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub consent: Consent,
}

impl Chosen {
    /// Whether events are named, or have to match conditions.
    pub(crate) fn is_filtered(&self) -> bool {
        !self.named.is_empty() || !self.filters.is_empty()
    }
}

impl ParkedCommand {
    pub(crate) async fn run(&self) -> Outcome {
        match self {
            ParkedCommand::List(args) => list(args).await,
            ParkedCommand::Show(args) => show(args).await,
            ParkedCommand::Retry(args) => change(args, Change::Retry).await,
            ParkedCommand::Drop(args) => change(args, Change::Drop).await,
        }
    }
}

async fn list(args: &ListArgs) -> Outcome {
    let found = table::list(args).await?;
    let text = if found.why_none.is_none() {
        found.text(width())
    } else {
        String::new()
    };
    print_report(args.output, &found, &text)?;
    match found.why_none {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

async fn show(args: &ShowArgs) -> Outcome {
    let found = table::show(args).await?;
    if let Some(error) = found.why_none {
        return Err(error.into());
    }
    let shown = found.events.len();
    if found.counts.matched > shown as u64 {
        note(format_args!(
            "note: the first {shown} of {} events are shown",
            found.counts.matched
        ));
    }
    let details = found
        .events
        .iter()
        .filter_map(|event| Some(event.details.as_ref()?.text(event)));
    let texts: Vec<_> = details.collect();
    print_report(args.output, &found, &texts.join("\n"))
}

async fn change(args: &ChangeArgs, change: Change) -> Outcome {
    let is_filtered = args.chosen.is_filtered();
    if !is_filtered && !args.all {
        return Err(Error::new(Kind::Config, "no condition selects events")
            .remedy(
                "name them, or select them by --id, --aggregate, --class, --since and so on; \
                     --all selects all",
            )
            .into());
    }
    if is_filtered && args.all {
        let error = Error::new(Kind::Config, "--all is given together with conditions")
            .remedy("leave out one or the other");
        return Err(error.into());
    }
    table::change(args, change).await
}

/// The conditions for events. An event has to match all of them.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Filters {
    /// Events of rows with one of these ids; can be repeated
    #[arg(long, value_name = "ID", num_args = 1.., conflicts_with = "named")]
    pub id: Vec<String>,
    /// Events of these aggregates, by the record's key; can be repeated
    #[arg(long, value_name = "KEY", num_args = 1..)]
    pub aggregate: Vec<String>,
    /// Events of one of these classes: unroutable, too-large, rejected, refused, behind; can be
    /// repeated
    #[arg(long, value_name = "CLASS", num_args = 1..)]
    pub class: Vec<String>,
    /// Events for one of these topics; can be repeated
    #[arg(long, value_name = "TOPIC", num_args = 1..)]
    pub topic: Vec<String>,
    /// Events of one of these outboxes, such as public.outbox; can be repeated
    #[arg(long, value_name = "SCHEMA.TABLE", num_args = 1..)]
    pub outbox: Vec<String>,
    /// Events that became undeliverable at this time or later: a timestamp, in UTC unless it names
    /// a zone, or an age such as 2h
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Events that became undeliverable before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Events that became undeliverable longer ago than this, such as 7d
    #[arg(
        long,
        value_name = "DURATION",
        conflicts_with = "until",
        value_parser = duration(Duration::ZERO..=AGE_MAX, "2h or 7d")
    )]
    pub older_than: Option<Duration>,
}

impl Filters {
    pub(crate) fn is_empty(&self) -> bool {
        let lists = [
            &self.id,
            &self.aggregate,
            &self.class,
            &self.topic,
            &self.outbox,
        ];
        let times = self.times();
        lists.iter().all(|list| list.is_empty()) && times.since.or(times.until).is_none()
    }

    pub(crate) fn has_classes(&self) -> Result<()> {
        let Some(unknown) = self
            .class
            .iter()
            .find(|class| !CLASSES.contains(&class.as_str()))
        else {
            return Ok(());
        };
        Err(Error::new(
            Kind::Config,
            format!(
                "--class: there is no class {}",
                cell(unknown.as_bytes(), 40)
            ),
        )
        .remedy(format!("the classes are {}", CLASSES.join(", "))))
    }

    /// The range of times.
    pub(crate) fn times(&self) -> Times {
        let older = || self.older_than.map(exact_duration);
        Times {
            since: self.since.clone(),
            until: self.until.clone().or_else(older),
        }
    }
}

const ERROR_CHARS_MAX: usize = 1_000;
const CELL_CHARS: usize = 40;

/// A parked event. The fields are the keys of `--json`.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Event {
    pub(crate) row_id: String,
    pub(crate) outbox: String,
    pub(crate) key: Option<String>,
    pub(crate) topic: Option<String>,
    pub(crate) stored_at: Moment,
    pub(crate) class: String,
    pub(crate) error: Option<String>,
    pub(crate) attempts: i32,
    pub(crate) next_try_at: Option<Moment>,
    pub(crate) asked: Option<String>,
    pub(crate) behind: u64,
    #[serde(flatten)]
    pub(crate) details: Option<Details>,
}

/// A time, and when it was read, in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moment {
    pub(crate) ms: i64,
    pub(crate) now_ms: i64,
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        time(self.ms).serialize(to)
    }
}

/// What `show` tells more.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Details {
    pub(crate) committed_at: Option<String>,
    pub(crate) before: u64,
    pub(crate) commit_lsn: String,
    pub(crate) index: i64,
    pub(crate) via: String,
    pub(crate) columns: Vec<Column>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Column {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) type_name: Option<String>,
    pub(crate) bytes: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
}

impl Event {
    /// The next attempt.
    fn state(&self) -> String {
        match (&self.asked, self.next_try_at) {
            (Some(asked), _) => format!("{asked} requested"),
            (None, _) if self.class == BEHIND => "behind".to_owned(),
            (None, None) => "on request".to_owned(),
            (None, Some(Moment { ms, now_ms })) if ms <= now_ms => "now".to_owned(),
            (None, Some(Moment { ms, now_ms })) => format!("in {}", age(now_ms, ms)),
        }
    }

    /// The columns of a list, the most important first: a terminal cuts the others.
    fn cells(&self) -> [(&'static str, Option<String>); 10] {
        [
            ("age", Some(age(self.stored_at.ms, self.stored_at.now_ms))),
            ("class", Some(self.class.clone())),
            ("row id", Some(self.row_id.clone())),
            ("state", Some(self.state())),
            ("behind it", Some(self.behind.to_string())),
            ("attempts", Some(self.attempts.to_string())),
            ("key", self.key.clone()),
            ("topic", self.topic.clone()),
            ("outbox", Some(self.outbox.clone())),
            ("error", self.error.clone()),
        ]
    }
}

impl Details {
    /// All that is known of `event`, for people.
    fn text(&self, event: &Event) -> String {
        let Details {
            committed_at,
            before,
            commit_lsn,
            index,
            via,
            columns,
        } = self;
        let mut lines = event.cells().to_vec();
        lines.retain(|(name, _)| *name != "behind it");
        lines.extend([
            (
                "aggregate",
                Some(format!(
                    "{before} before it, and {} behind it",
                    event.behind
                )),
            ),
            ("stored", time(event.stored_at.ms)),
            (
                "position",
                Some(format!("{commit_lsn}, index {index}, from the {via}")),
            ),
            ("committed", committed_at.clone()),
        ]);
        let lines = lines
            .into_iter()
            .filter_map(|(name, text)| Some((name, cell(text?.as_bytes(), ERROR_CHARS_MAX))));
        let mut grid = Grid::default();
        for Column {
            name,
            type_name,
            bytes,
            ..
        } in columns
        {
            let size = bytes.map_or("NULL".to_owned(), |bytes| format!("{bytes} bytes"));
            grid.row([
                &format_args!("  {name}"),
                &or_dash(type_name.as_ref()),
                &size,
            ]);
        }
        let mut text = format!("{}columns\n{}", labelled(lines), grid.text());
        for Column { name, value, .. } in columns {
            // Control characters of a payload must not reach the terminal.
            let plain =
                |character: char| character.is_control() && !matches!(character, '\n' | '\t');
            let title = name.replace(char::is_control, " ");
            let value = value.iter().map(|value| value.replace(plain, "\u{fffd}"));
            text.extend(value.map(|value| format!("value of {title}\n{value}\n")));
        }
        text
    }
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Counts {
    pub(crate) matched: u64,
    pub(crate) classes: BTreeMap<String, u64>,
    pub(crate) slot: String,
    pub(crate) aggregates: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Found {
    #[serde(flatten)]
    pub(crate) counts: Counts,
    pub(crate) events: Vec<Event>,
    /// Whether the list has the events that only `--all` lists.
    #[serde(skip)]
    pub(crate) is_all: bool,
    /// Whether the list has as many events as `--limit` allows.
    #[serde(skip)]
    pub(crate) is_full: bool,
    #[serde(skip)]
    pub(crate) why_none: Option<Error>,
}

impl Counts {
    pub(crate) fn text(&self) -> String {
        let text = format!(
            "{} of {}",
            counted(self.matched, "event"),
            counted(self.aggregates, "aggregate")
        );
        let class = |(class, count): (&String, &u64)| {
            format!("{count} {}", cell(class.as_bytes(), CELL_CHARS))
        };
        let classes: Vec<_> = self.classes.iter().map(class).collect();
        if classes.is_empty() {
            text
        } else {
            format!("{text}: {}", classes.join(", "))
        }
    }
}

impl Found {
    /// For people: a table whose lines are cut to `width`, the counts, and how to list the others.
    pub(crate) fn text(&self, width: Option<usize>) -> String {
        let events: Vec<_> = self.events.iter().map(Event::cells).collect();
        let known = |place: &usize| {
            events
                .iter()
                .filter_map(|cells| cells.get(*place))
                .any(|(_, text)| text.is_some())
        };
        let head = Event::default()
            .cells()
            .map(|(name, _)| (name, Some(name.to_owned())));
        // A column without a value is left out.
        let shown: Vec<_> = (0..head.len()).filter(known).collect();
        let row = |cells: &[(&str, Option<String>); 10]| {
            let cells = shown.iter().filter_map(|place| cells.get(*place));
            let chars = |name: &str| {
                if name == "error" {
                    ERROR_CHARS_MAX
                } else {
                    CELL_CHARS
                }
            };
            cells
                .map(|(name, text)| {
                    text.as_ref()
                        .map_or("-".to_owned(), |text| cell(text.as_bytes(), chars(name)))
                })
                .collect()
        };
        let rows: Vec<Vec<String>> = std::iter::once(&head).chain(&events).map(row).collect();
        let lines = if self.events.is_empty() {
            String::new()
        } else {
            table(&rows, width) + "\n\n"
        };
        let mut text = match self.counts.matched {
            0 => format!("No events of slot {} are parked.\n", self.counts.slot),
            _ => format!("{lines}{}\n", self.counts.text()),
        };
        let listed = self.events.len() as u64;
        text += &match (listed < self.counts.matched, self.is_full, !self.is_all) {
            (true, true, true) => {
                format!(
                    "The oldest {listed} are listed; --limit lists more, and --all those behind \
                     others, too.\n"
                )
            }
            (true, true, false) => format!("The oldest {listed} are listed; --limit lists more.\n"),
            (true, false, true) => {
                format!("{listed} listed; --all lists those behind others, too.\n")
            }
            (true, false, false) | (false, ..) => String::new(),
        };
        text
    }
}

const GROUP_HELP: &str = "\
Examples:
  walrelay parked list --config walrelay.toml
  walrelay parked show --config walrelay.toml 1017
  walrelay parked retry --config walrelay.toml --class too-large
  walrelay parked drop --config walrelay.toml 1017

A parked event is an undelivered event in the table walrelay.parked of the outbox's database, with \
delivery.on_error = \"park\", or an event behind it of the same aggregate. \
docs/explanation/undeliverable-events.md describes both these and dead letters.
";

const LIST_HELP: &str = "\
Examples:
  walrelay parked list --config walrelay.toml --class refused --older-than 1h
  walrelay parked list --config walrelay.toml --aggregate order-17 --all
  walrelay parked list --config walrelay.toml --json | \\
    jq -r '.events[].row_id'

Lists the first event of each aggregate, with the number of events behind it; --all lists those, \
too. An event has to match all conditions. The command prints no payload and changes nothing. The \
role needs SELECT on the table.
";

const SHOW_HELP: &str = "\
Examples:
  walrelay parked show --config walrelay.toml 1017 --payload
  walrelay parked show --config walrelay.toml --aggregate order-17 --json

Shows the error, the position, and the names, types and sizes of the columns of at most 20 events; \
--payload shows the values, too. The command changes nothing. The role needs SELECT on the table.
";

const RETRY_HELP: &str = "\
Examples:
  walrelay parked retry --config walrelay.toml --class too-large --dry-run
  walrelay parked retry --config walrelay.toml --aggregate order-17
  walrelay parked retry --config walrelay.toml --all --yes --json

The relay of the slot tries the first event of each matching aggregate within a second or so. The \
events behind it follow in order after delivery. The count of attempts goes on. What is to be \
dropped is left, unless its id is named. If no relay runs, the next one carries the request out. \
The role needs SELECT and UPDATE on the table.
";

const DROP_HELP: &str = "\
Examples:
  walrelay parked drop --config walrelay.toml 1017
  walrelay parked drop --config walrelay.toml --class unroutable --dry-run
  walrelay parked drop --config walrelay.toml --aggregate order-17 --yes

The relay never delivers the matching events; events behind them go on. The relay names the first \
ones in its log, and outbox.mark_failed marks the rows; without it outbox.mark does, or \
outbox.delete deletes them. If no relay runs, the next one carries the request out. walrelay \
replay --id publishes a row that is still in the outbox. The role needs SELECT and UPDATE on the \
table.
";

const READ_EXIT_CODES: &str = "
Exit codes:
  0   events were listed or shown; list without conditions: nothing is parked
  1   no event matches
  2   the configuration or a flag is not valid
  10  Postgres cannot be reached (11: refuses)";

const CHANGE_EXIT_CODES: &str = "
Exit codes:
  0   the request is stored for the relay; or --dry-run showed the request
  1   nothing is parked, no event matches, or each is behind one to be dropped
  2   the configuration or a flag is not valid, or the answer was not yes
  10  Postgres cannot be reached (11: refuses)";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOON_MS: i64 = 1_772_366_400_000;

    #[test]
    fn an_unknown_class_is_refused_with_a_list_of_the_known_ones() {
        let of = |class: &str| Filters {
            class: vec!["refused".to_owned(), class.to_owned()],
            ..Filters::default()
        };
        assert!(Filters::default().has_classes().is_ok() && of("too-large").has_classes().is_ok());
        let error = of("toolarge").has_classes().unwrap_err();
        assert_eq!(
            (error.kind(), error.cause()),
            (Kind::Config, "--class: there is no class toolarge")
        );
        assert_eq!(
            error.what_to_do().as_deref(),
            Some("the classes are unroutable, too-large, rejected, refused, behind")
        );
    }

    fn at(ms: i64) -> Moment {
        Moment {
            ms,
            now_ms: NOON_MS,
        }
    }

    fn parked(row_id: &str, class: &str, behind: u64) -> Event {
        Event {
            row_id: row_id.to_owned(),
            outbox: "public.outbox".to_owned(),
            stored_at: at(NOON_MS - 5_000),
            class: class.to_owned(),
            behind,
            ..Event::default()
        }
    }

    fn found() -> Found {
        let error = |text: &str| Some(text.to_owned());
        let large = Event {
            key: Some("order-17".to_owned()),
            error: error("it is too large"),
            attempts: 1,
            ..parked("7", "too-large", 1_203)
        };
        let refused = Event {
            error: error("topic a\u{1b} refuses"),
            attempts: 3,
            next_try_at: Some(at(NOON_MS + 4_000)),
            ..parked("8", "refused", 0)
        };
        let classes = [
            ("behind".to_owned(), 1_203),
            ("refused".to_owned(), 1),
            ("too-large".to_owned(), 1),
        ]
        .into();
        Found {
            counts: Counts {
                matched: 1_205,
                classes,
                slot: "orders".to_owned(),
                aggregates: 2,
            },
            events: vec![large, refused],
            is_all: false,
            is_full: false,
            why_none: None,
        }
    }

    #[test]
    fn the_state_of_a_parked_event_names_its_next_attempt() {
        let next = |class: &str, asked: Option<&str>, next_ms: Option<i64>| {
            let next_try_at = next_ms.map(|ms| Moment {
                ms,
                now_ms: 100_000,
            });
            Event {
                class: class.to_owned(),
                asked: asked.map(str::to_owned),
                next_try_at,
                ..Event::default()
            }
            .state()
        };
        assert_eq!(next("refused", None, Some(104_000)), "in 4s");
        assert_eq!(next("refused", None, Some(400_000)), "in 5m");
        assert_eq!(next("refused", None, Some(99_000)), "now");
        assert_eq!(next("too-large", None, None), "on request");
        assert_eq!(next("behind", None, None), "behind");
        assert_eq!(next("behind", Some("drop"), None), "drop requested");
        assert_eq!(
            next("refused", Some("retry"), Some(104_000)),
            "retry requested"
        );
    }

    #[test]
    fn the_list_has_a_line_for_each_aggregate_and_counts_all_events() {
        insta::assert_snapshot!(found().text(None), @r"
        age  class      row id  state       behind it  attempts  key       outbox         error
        5s   too-large  7       on request  1203       1         order-17  public.outbox  it is too large
        5s   refused    8       in 4s       0          3         -         public.outbox  topic a\u{1b} refuses

        1205 events of 2 aggregates: 1203 behind, 1 refused, 1 too-large
        2 listed; --all lists those behind others, too.
        ");
        let json = serde_json::to_value(found()).unwrap();
        let refused = json!({"row_id": "8", "outbox": "public.outbox",
            "stored_at": "2026-03-01T11:59:55.000Z", "class": "refused", "behind": 0, "key": null,
            "error": "topic a\u{1b} refuses", "attempts": 3, "topic": null,
            "next_try_at": "2026-03-01T12:00:04.000Z", "asked": null});
        assert_eq!(
            (&json["events"][1], &json["matched"]),
            (&refused, &json!(1_205))
        );
        assert!(
            found()
                .text(Some(60))
                .lines()
                .take(3)
                .all(|line| line.chars().count() <= 60)
        );
        let full = Found {
            is_full: true,
            ..found()
        };
        assert!(
            full.text(None)
                .ends_with("--limit lists more, and --all those behind others, too.\n")
        );
        let all = Found {
            is_all: true,
            is_full: true,
            ..found()
        };
        assert!(
            all.text(None)
                .ends_with("The oldest 2 are listed; --limit lists more.\n")
        );
    }
}
