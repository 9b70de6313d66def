//! The commands: what was typed, and who does it.
//!
//! This file holds only the shape of the command line. What a command needs beyond its flags comes from
//! [`load`], and what it prints goes through [`output`].

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;

use crate::config::layers::Flags;
use crate::config::model::KEYS;
use crate::config::unit::{parse_bytes, parse_duration};
use crate::config::{Guarantee, LogFormat, Mode, OnError, OnLoss, OverBudget, SinkKind, StoreKind};

pub mod check;
pub mod cleanup;
pub mod config;
mod help;
pub mod import;
pub mod init;
pub mod load;
pub mod output;
pub mod prompt;
pub mod replay;
pub mod run;
pub mod session;
pub mod setup;
pub mod sql;
pub mod status;
pub mod teardown;
mod text;
pub mod undelivered;
pub mod verify;

pub use cleanup::CleanupArgs;
pub use config::{CheckArgs, ConfigCommand, ImportArgs, InitArgs};
pub use replay::ReplayArgs;
pub use undelivered::{DeadLetters, Parked, UndeliveredCommand};
pub use verify::VerifyArgs;

use help::{AFTER_HELP, DEMO_HELP, RUN_HELP, SETUP_HELP, STATUS_HELP, TEARDOWN_HELP};

/// Relays an outbox table through a Postgres logical replication slot into Kafka.
#[derive(Debug, Parser)]
#[command(name = "walrelay", version, max_term_width = 110, propagate_version = true, after_help = AFTER_HELP)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Relay events until told to stop
    #[command(after_help = RUN_HELP)]
    Run(RunArgs),
    /// Check the server, then create publication and slot, and table and column if wanted
    #[command(after_help = SETUP_HELP)]
    Setup(SetupArgs),
    /// Drop the slot and its publication; never the table
    #[command(after_help = TEARDOWN_HELP)]
    Teardown(TeardownArgs),
    /// Show how the slot and its relay are doing
    #[command(after_help = STATUS_HELP)]
    Status(StatusArgs),
    /// Delete rows that are published and old, without being in anybody's way
    #[command(after_help = cleanup::CLEANUP_HELP)]
    Cleanup(CleanupArgs),
    /// Compare the outbox with the topics: what is missing, duplicated or out of order
    #[command(after_help = verify::HELP)]
    Verify(VerifyArgs),
    /// Publish rows of the outbox once more, beside a relay or without
    #[command(after_help = replay::HELP)]
    Replay(ReplayArgs),
    /// Undelivered events in the dead-letter topic: list, show, retry or drop them
    #[command(name = "dead-letters", subcommand, after_help = undelivered::help::<DeadLetters>())]
    DeadLetters(UndeliveredCommand<DeadLetters>),
    /// Undelivered events in the table walrelay.parked: list, show, retry or drop them
    #[command(subcommand, after_help = undelivered::help::<Parked>())]
    Parked(UndeliveredCommand<Parked>),
    /// Show the whole thing at work on a private, throw-away Postgres, and verify the result
    #[command(after_help = DEMO_HELP)]
    Demo(crate::demo::Options),
    /// Make a configuration of a table or of another relay's, and check one
    #[command(subcommand, after_help = config::HELP)]
    Config(ConfigCommand),
}

/// What every command that talks to Postgres takes.
#[derive(Debug, Args, Serialize)]
pub struct Common {
    /// The replication slot [env: WALRELAY_SLOT]
    #[arg(long, value_name = "NAME")]
    pub slot: Option<String>,
    /// Connection string of the outbox's database, best without a password: a command line can be read by everybody on
    /// the machine. Without it, PGHOST, PGUSER, PGPASSFILE and so on hold [env: WALRELAY_DATABASE_URL]
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
    /// A configuration file [env: WALRELAY_CONFIG]
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
}

/// `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// What the configuration file may say, too.
    #[command(flatten)]
    pub settings: RunSettings,
    /// Give up what is stored, and start where slot and server stand now. For once, after the server was replaced: events
    /// between the two are not relayed, unless --backlog says which rows of the table are
    #[arg(long)]
    pub adopt_slot: bool,
}

/// Which relay it is about: what every command takes that reads tables and topics.
#[derive(Debug, Args, Serialize)]
pub struct RelaySettings {
    /// Slot, database, file.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// Kafka's bootstrap servers, with commas between [env: WALRELAY_BROKERS]
    #[arg(long, value_name = "HOST:PORT")]
    pub brokers: Option<String>,
    /// The outbox table; public.outbox by default [env: WALRELAY_TABLE]
    #[arg(long, value_name = "TABLE")]
    pub table: Option<String>,
}

/// The settings of `run` that have flags.
#[derive(Debug, Args, Serialize)]
pub struct RunSettings {
    /// Those that are not its alone.
    #[command(flatten)]
    #[serde(flatten)]
    pub relay: RelaySettings,
    /// The publication; walrelay_SLOT by default [env: WALRELAY_PUBLICATION]
    #[arg(long, value_name = "NAME")]
    pub publication: Option<String>,
    /// Where rows come from; slot by default [env: WALRELAY_MODE]
    #[arg(long, value_name = "MODE")]
    pub mode: Option<Mode>,
    /// What to do when the slot is gone; recover by default [env: WALRELAY_ON_SLOT_LOSS]
    #[arg(long, value_name = "WHAT")]
    pub on_slot_loss: Option<OnLoss>,
    /// What to publish of the rows that are there when the first slot is made: all, none, pending, since=TIME; pending
    /// by default where outbox.pending is set, else all [env: WALRELAY_BACKLOG]
    #[arg(long, value_name = "WHICH")]
    pub backlog: Option<String>,
    /// How much log the slot may keep, such as 10GiB; no bound by default [env: WALRELAY_MAX_RETAINED_BYTES]
    #[arg(long, value_name = "BYTES")]
    pub max_retained_bytes: Option<String>,
    /// What to do with a slot that keeps more; unready by default [env: WALRELAY_OVER_BUDGET]
    #[arg(long, value_name = "WHAT")]
    pub over_budget: Option<OverBudget>,
    /// Where records go; kafka by default [env: WALRELAY_SINK]
    #[arg(long, value_name = "SINK")]
    pub sink: Option<SinkKind>,
    /// What to do with an event that cannot be delivered; stop by default [env: WALRELAY_ON_ERROR]
    #[arg(long, value_name = "WHAT")]
    pub on_error: Option<OnError>,
    /// How often an event arrives; at-least-once by default [env: WALRELAY_GUARANTEE]
    #[arg(long, value_name = "HOW")]
    pub guarantee: Option<Guarantee>,
    /// Where the position is kept; kafka by default [env: WALRELAY_STATE_STORE]
    #[arg(long, value_name = "STORE")]
    pub state_store: Option<StoreKind>,
    /// Serve metrics and health here; a port alone means 127.0.0.1; off by default [env: WALRELAY_HTTP]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub http: Option<String>,
    /// How long a stop waits for acks; 30s by default [env: WALRELAY_SHUTDOWN_TIMEOUT]
    #[arg(long, value_name = "DURATION")]
    pub shutdown_timeout: Option<String>,
    /// Form of log lines; text by default [env: WALRELAY_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// What to log, such as info or walrelay=debug; info by default [env: WALRELAY_LOG]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
}

/// `setup`.
#[derive(Debug, Args, Serialize)]
pub struct SetupArgs {
    /// Slot, database, file.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// The publication; walrelay_SLOT by default [env: WALRELAY_PUBLICATION]
    #[arg(long, value_name = "NAME")]
    pub publication: Option<String>,
    /// The outbox table; public.outbox by default [env: WALRELAY_TABLE]
    #[arg(long, value_name = "TABLE")]
    pub table: Option<String>,
    /// What the relay will read. With poll, table and column are all that is made and looked at: no right to replicate is
    /// needed, and no logical wal_level. auto is as slot [env: WALRELAY_MODE]
    #[arg(long, value_name = "MODE")]
    pub mode: Option<Mode>,
    /// Create the table too, where it does not exist
    #[arg(long)]
    pub create_table: bool,
    /// Add a column for the inserting transaction to a table that has none: what is published is then known exactly
    #[arg(long)]
    pub add_xid_column: bool,
    /// Change nothing; print the SQL, ready for psql
    #[arg(long)]
    pub dry_run: bool,
    /// How long a statement may take: creating a slot waits for every transaction that is under way
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub timeout: Duration,
}

/// `teardown`.
#[derive(Debug, Args, Serialize)]
pub struct TeardownArgs {
    /// Slot, database, file.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// The publication; walrelay_SLOT by default [env: WALRELAY_PUBLICATION]
    #[arg(long, value_name = "NAME")]
    pub publication: Option<String>,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// Also where a relay streams from the slot (it is cut off), or events were not relayed yet (the slot will not
    /// deliver them)
    #[arg(long)]
    pub force: bool,
    /// Leave the publication
    #[arg(long)]
    pub keep_publication: bool,
}

/// `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Slot, database, file.
    #[command(flatten)]
    pub common: Common,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Go on, every SECS seconds
    #[arg(long, value_name = "SECS", num_args = 0..=1, default_missing_value = "2", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub watch: Option<u64>,
    /// Unhealthy when more than this is not confirmed; takes 16MiB, too
    #[arg(long, value_name = "N", value_parser = bytes)]
    pub max_lag_bytes: Option<u64>,
    /// Unhealthy when something is not confirmed for longer than this; with a relay it is measured, which
    /// takes as long, so give it ten or more
    #[arg(long, value_name = "N")]
    pub max_lag_seconds: Option<u64>,
}

impl Common {
    /// The settings that were typed.
    pub fn flags(&self) -> Flags {
        flags(self)
    }
}

/// The settings among `args` that were typed: a field is named after its flag.
pub(crate) fn flags(args: &impl Serialize) -> Flags {
    let typed = serde_json::to_value(args).unwrap_or_default();
    let keys = KEYS.iter().filter_map(|key| Some((key, key.flag?.replace('-', "_"))));
    keys.filter_map(|(key, field)| Some((key.path.as_str(), typed.get(field)?.as_str()?.to_owned()))).collect()
}

fn put(flags: &mut Flags, path: &'static str, text: Option<&str>) {
    flags.extend(text.map(|text| (path, text.to_owned())));
}

fn word(value: impl ValueEnum) -> Option<String> {
    Some(value.to_possible_value()?.get_name().to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    let allowed = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);
    let duration = parse_duration(text).filter(|duration| allowed.contains(duration));
    duration.ok_or_else(|| "write a duration up to 24h, such as 60s or 5m".to_owned())
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| "write a number of bytes, or a size such as 16MiB".to_owned())
}

#[cfg(test)]
mod tests;
