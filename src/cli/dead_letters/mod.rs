//! `walrelay dead-letters`: what was given up, listed, sent again, settled.
//!
//! Nothing is asked of Postgres. [`list`] and [`show`] read the topic, [`settle`] sends and marks: [`crate::dead_letters`].

pub mod help;
pub mod list;
pub mod report;
pub mod settle;
pub mod show;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::cli::given_up::Filters;
use crate::cli::load::Loaded;
use crate::cli::output::{Outcome, note};
use crate::cli::put;
use crate::cli::run::Typed;
use crate::clock::now_us;
use crate::config::Config;
use crate::config::layers::Flags;
use crate::dead_letters::{At, Counts, Outcome as Settles, Wanted};
use crate::error::{Error, Kind, Result};
use crate::sink::options::weakened;
use crate::upkeep::parked::{BEHIND, CLASSES};

pub(super) use help::HELP;

/// The commands of `dead-letters`.
#[derive(Debug, Subcommand)]
pub enum DeadLettersCommand {
    /// List them, the oldest first
    #[command(after_help = help::LIST)]
    List(ListArgs),
    /// Show all that is known of one
    #[command(after_help = help::SHOW)]
    Show(ShowArgs),
    /// Send them to the topics they were for, and settle them
    #[command(after_help = help::REPLAY)]
    Replay(SettleArgs),
    /// Settle them without sending them
    #[command(after_help = help::DISCARD)]
    Discard(SettleArgs),
}

/// Whose letters.
#[derive(Debug, Args)]
pub struct TopicSettings {
    /// The replication slot whose letters are meant [env: WALRELAY_SLOT]
    #[arg(long, value_name = "NAME")]
    pub slot: Option<String>,
    /// A configuration file; delivery.dead_letter_topic in it names the topic [env: WALRELAY_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Kafka's bootstrap servers, with commas between [env: WALRELAY_BROKERS]
    #[arg(long, value_name = "HOST:PORT")]
    pub brokers: Option<String>,
    /// Letters of all slots
    #[arg(long)]
    pub all_slots: bool,
}

/// `dead-letters list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Which topic, whose letters.
    #[command(flatten)]
    pub settings: TopicSettings,
    /// Which of them.
    #[command(flatten)]
    pub filters: Filters,
    /// List those that are settled, too
    #[arg(long)]
    pub settled: bool,
    /// How many are listed; all are counted
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

/// `dead-letters show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Which letter, as `list` names it; may be given again
    #[arg(value_name = "PARTITION:OFFSET", required_unless_present = "id")]
    pub letter: Vec<At>,
    /// Which topic, whose letters.
    #[command(flatten)]
    pub settings: TopicSettings,
    /// Letters of the row with this id; may be given again
    #[arg(long, value_name = "VALUE", num_args = 1.., conflicts_with = "letter")]
    pub id: Vec<String>,
    /// Print the value, too, which is the event's payload
    #[arg(long)]
    pub payload: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// `dead-letters replay` and `dead-letters discard`.
#[derive(Debug, Args)]
pub struct SettleArgs {
    /// Which letters, as `list` names them
    #[arg(value_name = "PARTITION:OFFSET")]
    pub letter: Vec<At>,
    /// Which topic, whose letters.
    #[command(flatten)]
    pub settings: TopicSettings,
    /// Which of them.
    #[command(flatten)]
    pub filters: Filters,
    /// All that are not settled
    #[arg(long)]
    pub all: bool,
    /// Change nothing; say what would be done
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

/// Does one of them.
///
/// # Errors
/// [`Kind::NothingMatched`] where no letter is what was asked for; [`Kind::Config`] for what cannot be meant, and where nobody
/// confirms; what Kafka gives; [`settle::settle`] has more.
pub async fn dead_letters(command: &DeadLettersCommand) -> Outcome {
    match command {
        DeadLettersCommand::List(args) => list::list(args).await,
        DeadLettersCommand::Show(args) => show::show(args).await,
        DeadLettersCommand::Replay(args) => settle::settle(args, Settles::Replayed).await,
        DeadLettersCommand::Discard(args) => settle::settle(args, Settles::Discarded).await,
    }
}

impl DeadLettersCommand {
    /// What was named by a flag, for the next command.
    pub(super) fn typed(&self) -> Vec<Typed<'_>> {
        let settings = match self {
            DeadLettersCommand::List(ListArgs { settings, .. })
            | DeadLettersCommand::Show(ShowArgs { settings, .. })
            | DeadLettersCommand::Replay(SettleArgs { settings, .. })
            | DeadLettersCommand::Discard(SettleArgs { settings, .. }) => settings,
        };
        let all = [("config", settings.config.as_deref().and_then(Path::to_str)), ("slot", settings.slot.as_deref())];
        all.into_iter().filter_map(|(flag, value)| Some((flag, value?))).collect()
    }
}

impl TopicSettings {
    fn flags(&self) -> Flags {
        let mut flags = Flags::new();
        put(&mut flags, "slot.name", self.slot.as_deref());
        put(&mut flags, "kafka.brokers", self.brokers.as_deref());
        flags
    }

    /// The configuration that `run` would have, with these flags and `more`.
    fn load(&self, more: Flags) -> Result<Config> {
        let mut flags = self.flags();
        flags.extend(more);
        let config = Loaded::new(&flags, self.config.as_deref())?.config(false)?;
        for weak in weakened(&config.kafka) {
            note(format_args!("warning: Kafka's server is not verified: {weak}"));
        }
        Ok(config)
    }

    /// All letters that are meant without any filter.
    fn wanted(&self, config: &Config) -> Wanted {
        let slot = (!self.all_slots).then(|| config.source.slot.as_str().to_owned());
        Wanted { slot, ..Wanted::default() }
    }
}

fn filtered(wanted: Wanted, filters: &Filters, now_ms: i64) -> Result<Wanted> {
    let known: Vec<_> = CLASSES.into_iter().filter(|class| *class != BEHIND).collect();
    filters.has_classes(&known)?;
    let span = filters.span(now_ms)?;
    Ok(Wanted {
        ids: filters.id.clone(),
        aggregates: filters.aggregate.clone(),
        classes: filters.class.clone(),
        topics: filters.topic.clone(),
        since_ms: span.since_ms,
        until_ms: span.until_ms,
        ..wanted
    })
}

fn now_ms() -> i64 {
    now_us() / 1_000
}

/// There is no such topic.
fn no_topic(topic: &str) -> Error {
    Error::new(Kind::NothingMatched, format!("topic {topic} does not exist, or this user may not see it"))
        .remedy(format!(
            "where the relay's log says that the topic of dead letters refuses one, a letter waits for it: kafka-topics --create \
             --topic {topic} --partitions … --replication-factor …; otherwise nothing was given up yet, or \
             delivery.dead_letter_topic is not what the relay has"
        ))
}

/// No letter is what was asked for.
fn nothing(topic: &str, counts: &Counts) -> Error {
    let error = Error::new(Kind::NothingMatched, format!("no dead letter in topic {topic} is what was asked for"));
    if counts.settled > 0 {
        return error.remedy(format!("{} settled already: list them with --settled", are(counts.settled)));
    }
    if counts.other_slots > 0 {
        return error.remedy(format!(
            "{} of other slots: name one with --slot, or all with --all-slots",
            are(counts.other_slots)
        ));
    }
    error.remedy("all conditions have to hold at once; what the topic's retention has deleted cannot come again")
}

fn are(count: u64) -> String {
    if count == 1 { "1 is".to_owned() } else { format!("{count} are") }
}

/// Reads on a thread that may wait.
async fn aside<T: Send + 'static>(read: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let read = tokio::task::spawn_blocking(read).await;
    read.map_err(|error| Error::new(Kind::Bug, format!("the reader of dead letters ended: {error}")))?
}
