//! `walrelay parked` and `walrelay dead-letters`: events that were not delivered, listed, shown, tried again, dropped.
//!
//! Both have the same verbs, flags and output. They differ in the [`Store`] that has the events: `parked` is the table
//! `walrelay.parked`, `dead_letters` is the dead-letter topic.

mod dead_letters;
mod event;
pub(in crate::cli) mod parked;

use clap::{ArgGroup, Args, Subcommand};
use event::{Details, Event, Found};
use serde::Serialize;

use crate::cli::output::shown_and_confirmed;
use crate::cli::output::{Outcome, note, print, print_json, print_report};
use crate::cli::text::{cell, width};
use crate::config::unit::parse_duration;
use crate::error::{Error, Kind, Result};

pub use dead_letters::DeadLetters;
pub use parked::Parked;

/// How many events `show` prints.
const SHOWN_MAX: usize = 20;

/// Those of one store.
#[derive(Debug)]
pub struct Help {
    pub(super) group: &'static str,
    pub(super) list: &'static str,
    pub(super) show: &'static str,
    pub(super) retry: &'static str,
    pub(super) drop: &'static str,
    /// Of `list` and `show`.
    pub(super) read_exit_codes: &'static str,
    /// Of `retry` and `drop`, and of all commands together.
    pub(super) change_exit_codes: &'static str,
}

/// Where events are that were not delivered, with the flags that say which store it is.
#[expect(async_fn_in_trait, reason = "both stores are in this module, and no future of theirs is sent to a thread")]
pub trait Store: Args + std::fmt::Debug {
    /// Texts below the flags.
    const HELP: Help;
    /// Classes its events can have.
    const CLASSES: &'static [&'static str];
    /// One of them.
    const NOUN: &'static str;
    /// Flags of `retry` and `drop` that no other store has.
    type ChangeFlags: Args + std::fmt::Debug;

    /// Whether events are named without a flag.
    fn is_named(&self) -> bool;

    /// Reads events, the oldest first, and counts all that match. Changes nothing.
    async fn list(args: &ListArgs<Self>) -> Result<Found<Event>>;

    /// Reads up to `SHOWN_MAX` events with all that is known of them. Changes nothing.
    async fn show(args: &ShowArgs<Self>) -> Result<Found<Details>>;

    /// Shows what `change` would do, asks with `agreed`, and does it.
    async fn change(args: &ChangeArgs<Self>, change: Change) -> Outcome;
}

/// The text below the commands of a store.
pub(super) fn help<S: Store>() -> String {
    S::HELP.group.to_owned() + S::HELP.change_exit_codes + "\nEach command's own --help has more."
}

/// What is done with events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// They are sent to the topics they are for.
    Retry,
    /// They are never sent.
    Drop,
}

/// The commands of `parked` and of `dead-letters`.
#[derive(Debug, Subcommand)]
pub enum UndeliveredCommand<S: Store> {
    /// List them, the oldest first
    #[command(after_help = S::HELP.list.to_owned() + S::HELP.read_exit_codes)]
    List(ListArgs<S>),
    /// Show all that is known of some of them
    #[command(after_help = S::HELP.show.to_owned() + S::HELP.read_exit_codes)]
    Show(ShowArgs<S>),
    /// Send them to their topics again
    #[command(after_help = S::HELP.retry.to_owned() + S::HELP.change_exit_codes)]
    Retry(ChangeArgs<S>),
    /// Drop them: they are never sent
    #[command(after_help = S::HELP.drop.to_owned() + S::HELP.change_exit_codes)]
    Drop(ChangeArgs<S>),
}

/// What all of them take.
#[derive(Debug, Args)]
pub struct Chosen<S: Store> {
    /// Which store.
    #[command(flatten)]
    pub store: S,
    /// Which events.
    #[command(flatten)]
    pub filters: Filters,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// `list`.
#[derive(Debug, Args)]
pub struct ListArgs<S: Store> {
    /// Which events, and how they are printed.
    #[command(flatten)]
    pub chosen: Chosen<S>,
    /// List those, too, that are settled (dead letters) or wait behind another of their aggregate (parked)
    #[arg(long)]
    pub all: bool,
    /// How many are listed; all are counted
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
}

/// `show`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args([
    "named", "id", "aggregate", "class", "topic", "outbox", "since", "until", "older_than",
]))]
pub struct ShowArgs<S: Store> {
    /// Which events, and how they are printed.
    #[command(flatten)]
    pub chosen: Chosen<S>,
    /// Print the event's payload, too
    #[arg(long)]
    pub payload: bool,
}

/// `retry` and `drop`.
#[derive(Debug, Args)]
pub struct ChangeArgs<S: Store> {
    /// Which events, and how they are printed.
    #[command(flatten)]
    pub chosen: Chosen<S>,
    /// All that are neither delivered nor dropped
    #[arg(long)]
    pub all: bool,
    /// Change nothing; say what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// Flags of this store.
    #[command(flatten)]
    pub more: S::ChangeFlags,
}

impl<S: Store> UndeliveredCommand<S> {
    /// Runs it.
    ///
    /// # Errors
    /// [`Kind::NothingMatched`] where no event matches, or there is no such store; [`Kind::Config`] for flags that contradict
    /// each other, and where nobody confirms; what the store gives.
    pub async fn run(&self) -> Outcome {
        match self {
            UndeliveredCommand::List(args) => list(args).await,
            UndeliveredCommand::Show(args) => show(args).await,
            UndeliveredCommand::Retry(args) => change(args, Change::Retry).await,
            UndeliveredCommand::Drop(args) => change(args, Change::Drop).await,
        }
    }
}

async fn list<S: Store>(args: &ListArgs<S>) -> Outcome {
    args.chosen.filters.has_classes(S::CLASSES)?;
    let found = S::list(args).await?;
    if args.chosen.json {
        print_json(&found)?;
    } else if found.why_none.is_none() {
        print(&found.text(width()))?;
    }
    match found.why_none {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

async fn show<S: Store>(args: &ShowArgs<S>) -> Outcome {
    args.chosen.filters.has_classes(S::CLASSES)?;
    let found = S::show(args).await?;
    if let Some(error) = found.why_none {
        return Err(error.into());
    }
    let shown = found.events.len();
    if found.counts.matched > shown as u64 {
        note(format_args!("note: the first {shown} of {} {}s are shown", found.counts.matched, S::NOUN));
    }
    let texts: Vec<_> = found.events.iter().map(|details| details.text(found.now_ms)).collect();
    print_report(args.chosen.json, &found, &texts.join("\n"))
}

async fn change<S: Store>(args: &ChangeArgs<S>, change: Change) -> Outcome {
    let (noun, is_filtered) = (S::NOUN, args.chosen.store.is_named() || !args.chosen.filters.is_empty());
    if !is_filtered && !args.all {
        return Err(Error::new(Kind::Config, format!("nothing says which {noun}s are meant"))
            .remedy("name them, or choose them by --id, --aggregate, --class, --since and so on; --all chooses all")
            .into());
    }
    if is_filtered && args.all {
        let error = Error::new(Kind::Config, "--all, and conditions as well").remedy("leave out the one or the other");
        return Err(error.into());
    }
    args.chosen.filters.has_classes(S::CLASSES)?;
    S::change(args, change).await
}

/// Shows a plan and asks for it. `false` for a dry run, which ends here.
async fn agreed<S: Store>(args: &ChangeArgs<S>, plan: &impl Serialize, text: &str, question: String) -> Outcome<bool> {
    if args.dry_run {
        print_report(args.chosen.json, plan, &format!("{text}\nDry run: nothing was changed.\n"))?;
        return Ok(false);
    }
    shown_and_confirmed(text, (args.chosen.json, args.yes), || question, "nothing was changed").await?;
    Ok(true)
}

/// Which ones are meant. All that is given has to hold.
#[derive(Debug, Clone, Default, Args)]
pub struct Filters {
    /// Of rows with one of these ids; may be given again
    #[arg(long, value_name = "VALUE", num_args = 1.., conflicts_with = "named")]
    pub id: Vec<String>,
    /// With one of these keys; may be given again
    #[arg(long, value_name = "KEY", num_args = 1..)]
    pub aggregate: Vec<String>,
    /// Of one of these classes: unroutable, too-large, rejected, refused, and behind for parked ones; may be given again
    #[arg(long, value_name = "CLASS", num_args = 1..)]
    pub class: Vec<String>,
    /// For one of these topics; may be given again
    #[arg(long, value_name = "TOPIC", num_args = 1..)]
    pub topic: Vec<String>,
    /// Of one of these outboxes, such as public.outbox; may be given again
    #[arg(long, value_name = "TABLE", num_args = 1..)]
    pub outbox: Vec<String>,
    /// Stored as undelivered at this time or later: a timestamp, in UTC unless it names a zone, or a duration for so long ago, such as 2h
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Stored as undelivered before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Stored as undelivered longer ago than this, such as 7d
    #[arg(long, value_name = "DURATION", conflicts_with = "until")]
    pub older_than: Option<String>,
}

/// A range of times, in milliseconds since the Unix epoch; both ends may be open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub since_ms: Option<i64>,
    /// The first behind it.
    pub until_ms: Option<i64>,
}

impl Filters {
    /// Whether nothing is given.
    pub fn is_empty(&self) -> bool {
        let lists = [&self.id, &self.aggregate, &self.class, &self.topic, &self.outbox];
        let times = [&self.since, &self.until, &self.older_than];
        lists.iter().all(|list| list.is_empty()) && times.iter().all(|time| time.is_none())
    }

    /// Whether the classes that are given are among those there are.
    ///
    /// # Errors
    /// [`Kind::Config`] with the list.
    pub fn has_classes(&self, known: &[&str]) -> Result<()> {
        let Some(unknown) = self.class.iter().find(|class| !known.contains(&class.as_str())) else { return Ok(()) };
        Err(Error::new(Kind::Config, format!("--class: there is no class {}", cell(unknown.as_bytes(), 40)))
            .remedy(format!("the classes are {}", known.join(", "))))
    }

    /// The times that are meant, seen from `now_ms`.
    ///
    /// # Errors
    /// [`Kind::Config`] for what is no time, and an end that is not behind the beginning.
    pub fn span(&self, now_ms: i64) -> Result<Span> {
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
                Error::new(Kind::Config, "--older-than: this is no duration")
                    .remedy("write a duration such as 2h or 7d")
            })?),
        };
        let span =
            Span { since_ms: moment("--since", &self.since)?, until_ms: moment("--until", &self.until)?.or(older) };
        if let (Some(since), Some(until)) = (span.since_ms, span.until_ms)
            && until <= since
        {
            let cause = "--until or --older-than is not later than --since: nothing is in between";
            return Err(Error::new(Kind::Config, cause)
                .remedy("a duration is so long ago: the longer one comes first, as in --since 2h --until 1h"));
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
    fn times_are_read_in_utc_or_as_so_long_ago() {
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
    fn what_is_no_time_and_what_is_no_range_is_refused() {
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
    fn a_class_there_is_not_is_refused_with_those_there_are() {
        let of = |class: &str| Filters { class: vec!["refused".to_owned(), class.to_owned()], ..Filters::default() };
        let known = ["refused", "too-large"];
        assert!(Filters::default().has_classes(&known).is_ok() && of("too-large").has_classes(&known).is_ok());
        let error = of("toolarge").has_classes(&known).unwrap_err();
        assert_eq!((error.kind(), error.cause()), (Kind::Config, "--class: there is no class toolarge"));
        assert_eq!(error.what_to_do().as_deref(), Some("the classes are refused, too-large"));
    }
}
