//! `walrelay parked`: lists, shows, retries and drops parked events.
//!
//! Here are the commands, their conditions and their output; [`mod@table`] asks the table `walrelay.parked`.

pub(crate) mod table;

use std::collections::BTreeMap;

use clap::{ArgGroup, Args, Subcommand};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::cli::config::Common;
use crate::cli::output::{
    Consent, Outcome, Output, age, cell, counted, cut, labelled, note, print_report, table, time, width,
};
use walrelay_core::config::unit::parse_duration;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::parked::CLASSES;

const SHOWN_MAX: usize = 20;
const UNCHANGED: &str = "nothing was changed";

pub(super) fn help() -> String {
    GROUP_HELP.to_owned() + CHANGE_EXIT_CODES + "\nEach command's own --help has more."
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Change {
    Retry,
    Drop,
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
    #[arg(long, value_name = "EVENTS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
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
    args.chosen.filters.has_classes(&CLASSES)?;
    let found = table::list(args).await?;
    let text = if found.why_none.is_none() { found.text(width()) } else { String::new() };
    print_report(args.output, &found, &text)?;
    match found.why_none {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

async fn show(args: &ShowArgs) -> Outcome {
    args.chosen.filters.has_classes(&CLASSES)?;
    let found = table::show(args).await?;
    if let Some(error) = found.why_none {
        return Err(error.into());
    }
    let shown = found.events.len();
    if found.counts.matched > shown as u64 {
        note(format_args!("note: the first {shown} of {} events are shown", found.counts.matched));
    }
    let texts: Vec<_> = found.events.iter().map(Event::text).collect();
    print_report(args.output, &found, &texts.join("\n"))
}

async fn change(args: &ChangeArgs, change: Change) -> Outcome {
    let is_filtered = args.chosen.is_filtered();
    if !is_filtered && !args.all {
        return Err(Error::new(Kind::Config, "no condition selects events")
            .remedy("name them, or select them by --id, --aggregate, --class, --since and so on; --all selects all")
            .into());
    }
    if is_filtered && args.all {
        let error =
            Error::new(Kind::Config, "--all is given together with conditions").remedy("leave out one or the other");
        return Err(error.into());
    }
    args.chosen.filters.has_classes(&CLASSES)?;
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
    /// Events of one of these classes: unroutable, too-large, rejected, refused, behind; can be repeated
    #[arg(long, value_name = "CLASS", num_args = 1..)]
    pub class: Vec<String>,
    /// Events for one of these topics; can be repeated
    #[arg(long, value_name = "TOPIC", num_args = 1..)]
    pub topic: Vec<String>,
    /// Events of one of these outboxes, such as public.outbox; can be repeated
    #[arg(long, value_name = "SCHEMA.TABLE", num_args = 1..)]
    pub outbox: Vec<String>,
    /// Events that became undeliverable at this time or later: a timestamp, in UTC unless it names a zone, or an age such as 2h
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Events that became undeliverable before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Events that became undeliverable longer ago than this, such as 7d
    #[arg(long, value_name = "DURATION", conflicts_with = "until")]
    pub older_than: Option<String>,
}

/// A range of times, in milliseconds since the Unix epoch; both ends may be open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub since_ms: Option<i64>,
    pub until_ms: Option<i64>,
}

impl Filters {
    pub(crate) fn is_empty(&self) -> bool {
        let lists = [&self.id, &self.aggregate, &self.class, &self.topic, &self.outbox];
        let times = [&self.since, &self.until, &self.older_than];
        lists.iter().all(|list| list.is_empty()) && times.iter().all(|time| time.is_none())
    }

    pub(crate) fn has_classes(&self, known: &[&str]) -> Result<()> {
        let Some(unknown) = self.class.iter().find(|class| !known.contains(&class.as_str())) else { return Ok(()) };
        Err(Error::new(Kind::Config, format!("--class: there is no class {}", cell(unknown.as_bytes(), 40)))
            .remedy(format!("the classes are {}", known.join(", "))))
    }

    /// The range; ages count from `now_ms`.
    pub(crate) fn span(&self, now_ms: i64) -> Result<Span> {
        let moment = |flag: &str, given: &Option<String>| {
            let Some(text) = given else { return Ok(None) };
            moment_ms(text, now_ms).map(Some).ok_or_else(|| {
                Error::new(Kind::Config, format!("{flag}: this is neither a timestamp nor a duration"))
                    .remedy("write '2026-03-01 12:00', '2026-03-01T12:00:00+01:00' or 2h")
            })
        };
        let older = match &self.older_than {
            None => None,
            Some(text) => Some(ago_ms(text, now_ms).ok_or_else(|| {
                Error::new(Kind::Config, "--older-than: this is not a duration")
                    .remedy("write a duration such as 2h or 7d")
            })?),
        };
        let span =
            Span { since_ms: moment("--since", &self.since)?, until_ms: moment("--until", &self.until)?.or(older) };
        if let (Some(since), Some(until)) = (span.since_ms, span.until_ms)
            && until <= since
        {
            let cause = "--until or --older-than is not later than --since: the range is empty";
            return Err(Error::new(Kind::Config, cause)
                .remedy("a duration is an age: give --since the longer one, as in --since 2h --until 1h"));
        }
        Ok(span)
    }
}

fn ago_ms(text: &str, now_ms: i64) -> Option<i64> {
    let ago = i64::try_from(parse_duration(text)?.as_millis()).ok()?;
    now_ms.checked_sub(ago)
}

fn moment_ms(text: &str, now_ms: i64) -> Option<i64> {
    let utc = |time: jiff::civil::DateTime| time.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|time| time.timestamp());
    ago_ms(text, now_ms).or_else(|| {
        let instant = text.parse::<jiff::Timestamp>().ok();
        let local = || utc(text.parse::<jiff::civil::DateTime>().ok()?);
        let day = || utc(text.parse::<jiff::civil::Date>().ok()?.at(0, 0, 0, 0));
        instant.or_else(local).or_else(day).map(jiff::Timestamp::as_millisecond)
    })
}

const NAME_CHARS_MAX: usize = 200;
const ERROR_CHARS_MAX: usize = 1_000;
const CELL_CHARS: usize = 40;
/// The columns of a list, the most important first: a terminal cuts the others. A column without a value is left out.
const COLUMNS: [&str; 10] =
    ["age", "class", "row id", "state", "behind it", "attempts", "key", "topic", "outbox", "error"];

/// A value of an event: its key for programs, its name and text for people. One of the two may be empty.
#[derive(Debug, Clone)]
struct Field {
    key: &'static str,
    value: Value,
    name: &'static str,
    text: Option<String>,
}

/// A parked event.
#[derive(Debug, Clone, Default)]
pub(crate) struct Event {
    fields: Vec<Field>,
    /// For people only: a title, and lines below it.
    parts: Vec<(String, String)>,
}

impl Event {
    /// A value for both. Where it is not known, it is null for programs, and left out for people.
    pub(crate) fn add<T: Serialize + ToString>(&mut self, key: &'static str, name: &'static str, value: Option<T>) {
        let text = value.as_ref().map(ToString::to_string);
        self.fields.push(Field { key, value: json!(value), name, text });
    }

    pub(crate) fn add_data(&mut self, key: &'static str, value: impl Serialize) {
        self.fields.push(Field { key, value: json!(value), name: "", text: None });
    }

    pub(crate) fn add_text(&mut self, name: &'static str, text: Option<String>) {
        self.fields.push(Field { key: "", value: Value::Null, name, text });
    }

    pub(crate) fn add_part(&mut self, title: impl Into<String>, lines: String) {
        self.parts.push((title.into(), lines));
    }

    /// When the event was parked.
    pub(crate) fn add_times(&mut self, stored_ms: Option<i64>, now_ms: i64) {
        self.add("stored_at", "stored", stored_ms.and_then(time));
        self.add_text("age", stored_ms.map(|stored_ms| age(stored_ms, now_ms)));
    }

    fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.fields.iter().filter_map(|field| Some((field.name, field.text.as_deref()?)))
    }

    /// All that is known, for people.
    fn text(&self) -> String {
        let mut text = labelled(self.texts().map(|(name, text)| (name, cell(text.as_bytes(), ERROR_CHARS_MAX))));
        for (title, lines) in &self.parts {
            // Control characters of a payload must not reach the terminal.
            let plain = |character: char| character.is_control() && !matches!(character, '\n' | '\t');
            text += &format!("{title}\n{}\n", lines.replace(plain, "\u{fffd}"));
        }
        text
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = self.fields.iter().filter(|field| !field.key.is_empty());
        serializer.collect_map(fields.map(|field| (field.key, &field.value)))
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

pub(crate) fn name(bytes: &[u8]) -> String {
    head(bytes, NAME_CHARS_MAX)
}

pub(crate) fn error_text(text: &str) -> String {
    head(text.as_bytes(), ERROR_CHARS_MAX)
}

fn head(bytes: &[u8], chars: usize) -> String {
    let head = bytes.get(..chars.saturating_add(1).saturating_mul(4)).unwrap_or(bytes);
    cut(&String::from_utf8_lossy(head), chars)
}

impl Counts {
    pub(crate) fn text(&self) -> String {
        let text = format!("{} of {}", counted(self.matched, "event"), counted(self.aggregates, "aggregate"));
        let class = |(class, count): (&String, &u64)| format!("{count} {}", cell(class.as_bytes(), CELL_CHARS));
        let classes: Vec<_> = self.classes.iter().map(class).collect();
        if classes.is_empty() { text } else { format!("{text}: {}", classes.join(", ")) }
    }
}

impl Found {
    /// For people: a table whose lines are cut to `width`, the counts, and how to list the others.
    pub(crate) fn text(&self, width: Option<usize>) -> String {
        let known: Vec<BTreeMap<_, _>> = self.events.iter().map(|event| event.texts().collect()).collect();
        let has_one = |column: &&str| known.iter().any(|fields| fields.contains_key(column));
        let columns: Vec<_> = COLUMNS.into_iter().filter(has_one).collect();
        let mut rows: Vec<Vec<String>> = vec![columns.iter().map(|column| (*column).to_owned()).collect()];
        for fields in &known {
            let text = |column: &&str| {
                let chars = if *column == "error" { ERROR_CHARS_MAX } else { CELL_CHARS };
                fields.get(column).map_or("-".to_owned(), |text| cell(text.as_bytes(), chars))
            };
            rows.push(columns.iter().map(text).collect());
        }
        let lines = if self.events.is_empty() { String::new() } else { table(&rows, width) + "\n\n" };
        let mut text = match self.counts.matched {
            0 => format!("No events of slot {} are parked.\n", self.counts.slot),
            _ => format!("{lines}{}\n", self.counts.text()),
        };
        let listed = self.events.len() as u64;
        text += &match (listed < self.counts.matched, self.is_full, !self.is_all) {
            (true, true, true) => {
                format!("The oldest {listed} are listed; --limit lists more, and --all those behind others, too.\n")
            }
            (true, true, false) => format!("The oldest {listed} are listed; --limit lists more.\n"),
            (true, false, true) => format!("{listed} listed; --all lists those behind others, too.\n"),
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

A parked event is an undelivered event in the table walrelay.parked of the outbox's database, with delivery.on_error = \"park\", or an event behind it of the same aggregate. docs/explanation/undeliverable-events.md describes both these and dead letters.
";

const LIST_HELP: &str = "\
Examples:
  walrelay parked list --config walrelay.toml --class refused --older-than 1h
  walrelay parked list --config walrelay.toml --aggregate order-17 --all
  walrelay parked list --config walrelay.toml --json | \\
    jq -r '.events[].row_id'

Lists the first event of each aggregate, with the number of events behind it; --all lists those, too. An event has to match all conditions. The command prints no payload and changes nothing. The role needs SELECT on the table.
";

const SHOW_HELP: &str = "\
Examples:
  walrelay parked show --config walrelay.toml 1017 --payload
  walrelay parked show --config walrelay.toml --aggregate order-17 --json

Shows the error, the position, and the names, types and sizes of the columns of at most 20 events; --payload shows the values, too. The command changes nothing. The role needs SELECT on the table.
";

const RETRY_HELP: &str = "\
Examples:
  walrelay parked retry --config walrelay.toml --class too-large --dry-run
  walrelay parked retry --config walrelay.toml --aggregate order-17
  walrelay parked retry --config walrelay.toml --all --yes --json

The relay of the slot tries the first event of each matching aggregate within a second or so. The events behind it follow in order after delivery. The count of attempts goes on. If no relay runs, the next one carries the request out. The role needs SELECT and UPDATE on the table.
";

const DROP_HELP: &str = "\
Examples:
  walrelay parked drop --config walrelay.toml 1017
  walrelay parked drop --config walrelay.toml --class unroutable --dry-run
  walrelay parked drop --config walrelay.toml --aggregate order-17 --yes

The relay never delivers the matching events; events behind them go on. The relay names the first ones in its log, and outbox.mark_failed marks the rows. If no relay runs, the next one carries the request out. walrelay replay --id publishes a row that is still in the outbox. The role needs SELECT and UPDATE on the table.
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
  1   no event matches, or nothing is parked
  2   the configuration or a flag is not valid, or the answer was not yes
  10  Postgres cannot be reached (11: refuses)";

#[cfg(test)]
mod tests {
    use super::*;

    const NOON_MS: i64 = 1_772_366_400_000;

    fn span(since: &str, until: &str, older_than: &str) -> Result<Span> {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let filters =
            Filters { since: some(since), until: some(until), older_than: some(older_than), ..Filters::default() };
        assert_eq!(filters.is_empty(), since.is_empty() && until.is_empty() && older_than.is_empty());
        filters.span(NOON_MS)
    }

    #[test]
    fn times_are_read_in_utc_or_as_ages() {
        let since = |text: &str| span(text, "", "").unwrap().since_ms;
        for noon in ["2026-03-01 12:00", "2026-03-01T12:00:00Z", "2026-03-01T13:00:00+01:00", "0s"] {
            assert_eq!(since(noon), Some(NOON_MS), "{noon}");
        }
        assert_eq!(since("2026-03-01"), Some(NOON_MS - 12 * 3_600_000));
        assert_eq!(since("2h"), Some(NOON_MS - 7_200_000));
        assert_eq!(span("", "", "1d").unwrap(), Span { since_ms: None, until_ms: Some(NOON_MS - 86_400_000) });
        assert_eq!(span("2h", "1h", "").unwrap().until_ms, Some(NOON_MS - 3_600_000));
    }

    #[test]
    fn an_invalid_time_and_an_empty_range_are_refused() {
        for (since, until, older_than) in [
            ("yesterday", "", ""),
            ("", "5", ""),
            ("", "", "2026-03-01"),
            ("", "", "99999999999y"),
            ("1h", "2h", ""),
            ("1h", "1h", ""),
            ("1h", "", "1h"),
        ] {
            let error = span(since, until, older_than).unwrap_err();
            assert!(error.kind() == Kind::Config && error.what_to_do().is_some(), "{since} {until} {older_than}");
        }
    }

    #[test]
    fn an_unknown_class_is_refused_with_a_list_of_the_known_ones() {
        let of = |class: &str| Filters { class: vec!["refused".to_owned(), class.to_owned()], ..Filters::default() };
        let known = ["refused", "too-large"];
        assert!(Filters::default().has_classes(&known).is_ok() && of("too-large").has_classes(&known).is_ok());
        let error = of("toolarge").has_classes(&known).unwrap_err();
        assert_eq!((error.kind(), error.cause()), (Kind::Config, "--class: there is no class toolarge"));
        assert_eq!(error.what_to_do().as_deref(), Some("the classes are refused, too-large"));
    }

    fn parked(row_id: &str, class: &str, behind: u64, state: &str) -> Event {
        let mut event = Event::default();
        event.add("row_id", "row id", Some(row_id));
        event.add("outbox", "outbox", Some("public.outbox"));
        event.add_times(Some(NOON_MS - 5_000), NOON_MS);
        event.add("class", "class", Some(class));
        event.add_text("state", Some(state.to_owned()));
        event.add("behind", "behind it", Some(behind));
        event
    }

    fn found() -> Found {
        let (mut large, mut refused) =
            (parked("7", "too-large", 1_203, "on request"), parked("8", "refused", 0, "in 4s"));
        for (event, key, error, attempts) in
            [(&mut large, Some("order-17"), "it is too large", 1), (&mut refused, None, "topic a\u{1b} refuses", 3)]
        {
            event.add("key", "key", key);
            event.add("error", "error", Some(error));
            event.add("attempts", "attempts", Some(attempts));
        }
        let classes = [("behind".to_owned(), 1_203), ("refused".to_owned(), 1), ("too-large".to_owned(), 1)].into();
        Found {
            counts: Counts { matched: 1_205, classes, slot: "orders".to_owned(), aggregates: 2 },
            events: vec![large, refused],
            is_all: false,
            is_full: false,
            why_none: None,
        }
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
        let refused = json!({"row_id": "8", "outbox": "public.outbox", "stored_at": "2026-03-01T11:59:55.000Z",
            "class": "refused", "behind": 0, "key": null, "error": "topic a\u{1b} refuses", "attempts": 3});
        assert_eq!((&json["events"][1], &json["matched"]), (&refused, &json!(1_205)));
        assert!(found().text(Some(60)).lines().take(3).all(|line| line.chars().count() <= 60));
        let full = Found { is_full: true, ..found() };
        assert!(full.text(None).ends_with("--limit lists more, and --all those behind others, too.\n"));
        let all = Found { is_all: true, is_full: true, ..found() };
        assert!(all.text(None).ends_with("The oldest 2 are listed; --limit lists more.\n"));
    }
}
