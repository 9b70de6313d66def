//! `walrelay parked`: events that wait, listed, tried again, dropped.
//!
//! The commands only look at the table `walrelay.parked` and write down what is asked. The relay that has the slot does it.

mod ask;
mod chosen;
pub mod help;
pub mod list;
mod plan;
mod show;

use clap::{Args, Subcommand};
use tokio_postgres::Row;

use crate::cli::Common;
use crate::cli::given_up::Filters;
use crate::cli::load::Loaded;
use crate::cli::output::{Outcome, note};
use crate::cli::session::{Session, column};
use crate::config::SlotName;
use crate::error::{Error, Kind, Result};

pub(super) use help::HELP;

const THERE: &str = include_str!("../../../sql/parked/there.sql");

/// The commands of `parked`.
#[derive(Debug, Subcommand)]
pub enum ParkedCommand {
    /// List them, the oldest first
    #[command(after_help = help::LIST)]
    List(ListArgs),
    /// Show all that is known of one
    #[command(after_help = help::SHOW)]
    Show(ShowArgs),
    /// Have the relay try their aggregates again, from the first event of each on
    #[command(after_help = help::RETRY)]
    Retry(AskArgs),
    /// Have the relay drop them: they are never delivered by it
    #[command(after_help = help::DROP)]
    Drop(AskArgs),
}

/// Which events are meant.
#[derive(Debug, Args)]
pub struct Choice {
    /// What is asked of dead letters, too.
    #[command(flatten)]
    pub filters: Filters,
    /// Of one of these outboxes, such as public.outbox; may be given again
    #[arg(long, value_name = "TABLE", num_args = 1..)]
    pub outbox: Vec<String>,
}

/// `parked list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Slot, database, file.
    #[command(flatten)]
    pub common: Common,
    /// Which of them.
    #[command(flatten)]
    pub choice: Choice,
    /// List those that wait behind another of their aggregate, too
    #[arg(long)]
    pub all: bool,
    /// How many are listed; all are counted
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

/// `parked show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The id of its row, as `list` names it
    #[arg(value_name = "ID")]
    pub id: String,
    /// Slot, database, file.
    #[command(flatten)]
    pub common: Common,
    /// Print the values of its columns, too, which are the event's payload
    #[arg(long)]
    pub payload: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// `parked retry` and `parked drop`.
#[derive(Debug, Args)]
pub struct AskArgs {
    /// Slot, database, file.
    #[command(flatten)]
    pub common: Common,
    /// Which of them.
    #[command(flatten)]
    pub choice: Choice,
    /// All that wait
    #[arg(long)]
    pub all: bool,
    /// Change nothing; say what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// Does one of them.
///
/// # Errors
/// [`Kind::NothingMatched`] where no event is what was asked for, or none is parked; [`Kind::Config`] for what cannot be meant,
/// and where nobody confirms; what Postgres gives.
pub async fn parked(command: &ParkedCommand) -> Outcome {
    match command {
        ParkedCommand::List(args) => list::list(args).await,
        ParkedCommand::Show(args) => show::show(args).await,
        ParkedCommand::Retry(args) => ask::ask(args, plan::Ask::Retry).await,
        ParkedCommand::Drop(args) => ask::ask(args, plan::Ask::Drop).await,
    }
}

impl ParkedCommand {
    /// What names the slot.
    pub(super) fn common(&self) -> &Common {
        match self {
            ParkedCommand::List(ListArgs { common, .. })
            | ParkedCommand::Show(ShowArgs { common, .. })
            | ParkedCommand::Retry(AskArgs { common, .. })
            | ParkedCommand::Drop(AskArgs { common, .. }) => common,
        }
    }
}

/// A session beside the table of parked events.
async fn opened(common: &Common) -> Result<(SlotName, Session)> {
    let loaded = Loaded::new(&common.flags(), common.config.as_deref())?;
    for warning in loaded.settings.warnings() {
        note(format_args!("warning: {warning}"));
    }
    let (slot, database) = (loaded.settings.slot()?, loaded.settings.database()?);
    let session = Session::connect(&database, "parked").await?;
    let row = session.row("looking for table walrelay.parked", THERE, &[]).await?;
    let is_there = row.is_some_and(|row| row.try_get(0).unwrap_or(false));
    if !is_there {
        let cause = format!("nothing is parked for slot {slot}: this database has no table walrelay.parked");
        return Err(Error::new(Kind::NothingMatched, cause)
            .remedy("a relay with delivery.on_error = \"park\" makes it; or this is not the relay's database"));
    }
    Ok((slot, session))
}

fn slot_of(common: &Common) -> Result<SlotName> {
    Loaded::new(&common.flags(), common.config.as_deref())?.settings.slot()
}

/// No event is what was asked for.
fn nothing(slot: &SlotName, is_filtered: bool) -> Error {
    match is_filtered {
        false => Error::new(Kind::NothingMatched, format!("nothing is parked for slot {slot}")),
        true => Error::new(Kind::NothingMatched, format!("no parked event of slot {slot} is what was asked for"))
            .remedy(
                "all conditions have to hold at once; what was delivered or dropped meanwhile is not parked any more",
            ),
    }
}

/// When an event is tried next.
fn next_try(class: &str, asked: Option<&str>, next_ms: Option<i64>, now_ms: i64) -> String {
    match (asked, class, next_ms) {
        (Some(asked), ..) => format!("asked to {asked}"),
        (None, crate::upkeep::parked::BEHIND, _) => "behind".to_owned(),
        (None, _, None) => "when asked".to_owned(),
        (None, _, Some(next_ms)) if next_ms <= now_ms => "now".to_owned(),
        (None, _, Some(next_ms)) => format!("in {}", crate::cli::given_up::age(now_ms, next_ms)),
    }
}

fn count(row: &Row, name: &str) -> Result<u64> {
    column::<i64>(row, name).map(|count| u64::try_from(count).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_when_an_event_is_tried_next() {
        let next = |class, asked, next_ms| next_try(class, asked, next_ms, 100_000);
        assert_eq!(next("refused", None, Some(104_000)), "in 4s");
        assert_eq!(next("refused", None, Some(400_000)), "in 5m");
        assert_eq!(next("refused", None, Some(99_000)), "now");
        assert_eq!(next("too-large", None, None), "when asked");
        assert_eq!(next("behind", None, None), "behind");
        assert_eq!(next("behind", Some("drop"), None), "asked to drop");
        assert_eq!(next("refused", Some("retry"), Some(104_000)), "asked to retry");
    }

    #[test]
    fn what_is_asked_for_and_not_there_is_told_from_nothing() {
        let slot: SlotName = "orders".parse().unwrap();
        assert_eq!(nothing(&slot, false).cause(), "nothing is parked for slot orders");
        assert!(nothing(&slot, true).cause().starts_with("no parked event of slot orders is"));
    }
}
