//! `walrelay parked` and `walrelay dead-letters`: events that were not delivered, listed, shown, tried again, dropped.
//!
//! Both have the same verbs, flags and output. They differ in the [`Store`] that has the events: `parked` is the table
//! `walrelay.parked`, `dead_letters` is the dead-letter topic.

mod dead_letters;
mod event;
mod filters;
mod help;
mod letter_plan;
mod parked;
mod parked_plan;

use clap::{ArgGroup, Args, Subcommand};
use serde::Serialize;

use crate::cli::output::{Outcome, note, print, print_json, print_report};
use crate::cli::prompt::shown_and_confirmed;
use crate::cli::text::width;
use crate::error::{Error, Kind, Result};
use event::{Details, Event, Found};
use filters::Filters;
use help::Help;

pub use dead_letters::DeadLetters;
pub use parked::Parked;

/// How many events `show` prints.
const SHOWN_MAX: usize = 20;

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
