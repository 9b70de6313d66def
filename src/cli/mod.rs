//! The command line: commands, flags and help. [`load`] reads the configuration, and [`output`] prints.

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
pub mod import;
pub mod init;
pub mod load;
pub mod output;
pub mod replay;
pub mod run;
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

/// Relays an outbox table through a Postgres logical replication slot into Kafka.
#[derive(Debug, Parser)]
#[command(name = "walrelay", version, max_term_width = 110, propagate_version = true, after_help = AFTER_HELP)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Relay events until told to stop
    #[command(after_help = RUN_HELP)]
    Run(RunArgs),
    /// Check the server, then create publication and slot, and on request table and column
    #[command(after_help = SETUP_HELP)]
    Setup(SetupArgs),
    /// Drop the slot and its publication, never the table
    #[command(after_help = TEARDOWN_HELP)]
    Teardown(TeardownArgs),
    /// Show the state of the slot and its relay
    #[command(after_help = STATUS_HELP)]
    Status(StatusArgs),
    /// Delete old published rows without blocking other sessions
    #[command(after_help = cleanup::CLEANUP_HELP)]
    Cleanup(CleanupArgs),
    /// Compare the outbox with the topics: find missing, duplicated and misordered events
    #[command(after_help = verify::HELP)]
    Verify(VerifyArgs),
    /// Publish rows of the outbox once more, with or without a running relay
    #[command(after_help = replay::HELP)]
    Replay(ReplayArgs),
    /// Undelivered events in the dead-letter topic: list, show, retry or drop them
    #[command(name = "dead-letters", subcommand, after_help = undelivered::help::<DeadLetters>())]
    DeadLetters(UndeliveredCommand<DeadLetters>),
    /// Undelivered events in the table walrelay.parked: list, show, retry or drop them
    #[command(subcommand, after_help = undelivered::help::<Parked>())]
    Parked(UndeliveredCommand<Parked>),
    /// Run walrelay on a private, temporary Postgres, and verify the result
    #[command(after_help = DEMO_HELP)]
    Demo(crate::demo::Options),
    /// Write a configuration for a table, convert one from Debezium, and check one
    #[command(subcommand, after_help = config::HELP)]
    Config(ConfigCommand),
}

/// The flags of every command that connects to Postgres.
#[derive(Debug, Args, Serialize)]
pub struct Common {
    /// The replication slot [env: WALRELAY_SLOT]
    #[arg(long, value_name = "NAME")]
    pub slot: Option<String>,
    /// Connection string of the outbox's database. Leave the password out: every user of the machine can read a command
    /// line. The default comes from PGHOST, PGUSER, PGPASSFILE and so on [env: WALRELAY_DATABASE_URL]
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
    /// The settings.
    #[command(flatten)]
    pub settings: RunSettings,
    /// Discard the stored position, and start at the slot's. For one start after the server was replaced: the relay skips
    /// the events between the two positions, unless --backlog selects rows of the table
    #[arg(long)]
    pub adopt_slot: bool,
}

/// The flags of every command that reads tables and topics.
#[derive(Debug, Args, Serialize)]
pub struct RelaySettings {
    /// Slot, database, file.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// Kafka's bootstrap servers, separated by commas [env: WALRELAY_BROKERS]
    #[arg(long, value_name = "HOST:PORT")]
    pub brokers: Option<String>,
    /// The outbox table; public.outbox by default [env: WALRELAY_TABLE]
    #[arg(long, value_name = "TABLE")]
    pub table: Option<String>,
}

/// The settings of `run` that have flags.
#[derive(Debug, Args, Serialize)]
pub struct RunSettings {
    /// The relay.
    #[command(flatten)]
    #[serde(flatten)]
    pub relay: RelaySettings,
    /// The publication; walrelay_SLOT by default [env: WALRELAY_PUBLICATION]
    #[arg(long, value_name = "NAME")]
    pub publication: Option<String>,
    /// The source of the rows; slot by default [env: WALRELAY_MODE]
    #[arg(long, value_name = "MODE")]
    pub mode: Option<Mode>,
    /// The reaction to a lost slot; recover by default [env: WALRELAY_ON_SLOT_LOSS]
    #[arg(long, value_name = "WHAT")]
    pub on_slot_loss: Option<OnLoss>,
    /// The existing rows to publish when the relay creates its first slot: all, none, pending, since=TIME; by default
    /// pending if outbox.pending is set, else all [env: WALRELAY_BACKLOG]
    #[arg(long, value_name = "WHICH")]
    pub backlog: Option<String>,
    /// The most WAL that the slot may retain, such as 10GiB; no limit by default [env: WALRELAY_MAX_RETAINED_BYTES]
    #[arg(long, value_name = "BYTES")]
    pub max_retained_bytes: Option<String>,
    /// The reaction to a slot that retains more; unready by default [env: WALRELAY_OVER_BUDGET]
    #[arg(long, value_name = "WHAT")]
    pub over_budget: Option<OverBudget>,
    /// The destination of the records; kafka by default [env: WALRELAY_SINK]
    #[arg(long, value_name = "SINK")]
    pub sink: Option<SinkKind>,
    /// The reaction to an event that cannot be delivered; stop by default [env: WALRELAY_ON_ERROR]
    #[arg(long, value_name = "WHAT")]
    pub on_error: Option<OnError>,
    /// The delivery guarantee; at-least-once by default [env: WALRELAY_GUARANTEE]
    #[arg(long, value_name = "HOW")]
    pub guarantee: Option<Guarantee>,
    /// The store of the position; kafka by default [env: WALRELAY_STATE_STORE]
    #[arg(long, value_name = "STORE")]
    pub state_store: Option<StoreKind>,
    /// The address of metrics and health; a port alone means 127.0.0.1; off by default [env: WALRELAY_HTTP]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub http: Option<String>,
    /// The longest wait for acks at a stop; 30s by default [env: WALRELAY_SHUTDOWN_TIMEOUT]
    #[arg(long, value_name = "DURATION")]
    pub shutdown_timeout: Option<String>,
    /// The format of log lines; text by default [env: WALRELAY_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// The log filter, such as info or walrelay=debug; info by default [env: WALRELAY_LOG]
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
    /// The source of the relay's rows. With poll, setup creates and checks only table and column: it needs neither the
    /// right to replicate nor a logical wal_level. auto is as slot [env: WALRELAY_MODE]
    #[arg(long, value_name = "MODE")]
    pub mode: Option<Mode>,
    /// Create the table, too, if it does not exist
    #[arg(long)]
    pub create_table: bool,
    /// Add a column for the inserting transaction, if the table has none: walrelay then knows exactly which rows are published
    #[arg(long)]
    pub add_xid_column: bool,
    /// Change nothing; print the SQL for psql
    #[arg(long)]
    pub dry_run: bool,
    /// The time limit of a statement: creating a slot waits for every open transaction
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
    /// Also drop a slot that a relay streams from (this ends the relay's session), or that has unrelayed events (no relay
    /// will receive them from the slot)
    #[arg(long)]
    pub force: bool,
    /// Keep the publication
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
    /// Repeat every SECS seconds
    #[arg(long, value_name = "SECS", num_args = 0..=1, default_missing_value = "2", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub watch: Option<u64>,
    /// Unhealthy if more bytes than this are not confirmed; accepts sizes such as 16MiB
    #[arg(long, value_name = "N", value_parser = bytes)]
    pub max_lag_bytes: Option<u64>,
    /// Unhealthy if WAL is not confirmed for longer than this. With a relay, the command measures for as long: give it ten
    /// or more
    #[arg(long, value_name = "N")]
    pub max_lag_seconds: Option<u64>,
}

const AFTER_HELP: &str = "\
Start here:
  walrelay demo                                        # on a private Postgres
  walrelay setup --slot orders --create-table          # create table and slot
  walrelay run --slot orders --brokers localhost:9092  # relay until Ctrl-C
  walrelay config init --table billing.events          # for an existing table

A setting may be a flag, a WALRELAY_* variable or a key of the configuration file;
the first of these counts.";

const RUN_HELP: &str = "\
Examples:
  walrelay run --slot orders --brokers localhost:9092
  walrelay run --config walrelay.toml --http 9464
  PGHOST=db PGUSER=relay walrelay run --slot orders --brokers kafka:9092
  walrelay run --slot trial --sink stdout

Exit codes:
  0   told to stop; all acked events are confirmed
  2   the configuration is not valid
  3   told to stop, and events were not acked in time; the next start sends them
  11  Postgres refuses (31: Kafka refuses)
  12  the server is not fit for logical replication
  14  the slot is missing, lost, or not walrelay's
  15  publication or table do not fit
  16  server, slot and stored position do not belong together
  20  an event cannot be decoded or routed (21: Kafka refuses it)
  70  a bug
The relay retries without limit after a fault that can pass, such as an unreachable server.";

const SETUP_HELP: &str = "\
Examples:
  walrelay setup --slot orders --create-table
  walrelay setup --slot orders --table sales.outbox --add-xid-column
  walrelay setup --slot orders --mode poll --add-xid-column
  walrelay setup --slot orders --dry-run | psql \"$WALRELAY_DATABASE_URL\"

setup leaves existing objects alone if they fit. It creates table and column first, then the publication, then the slot: a slot cannot decode changes from before its publication. With --mode poll, setup creates neither publication nor slot.

Exit codes:
  0   all objects exist
  2   the configuration is not valid
  10  Postgres cannot be reached (11: refuses)
  12  the server does not fit, or creating the slot waited for transactions for longer than --timeout
  14  a slot of this name does not fit
  15  publication or table do not fit";

const TEARDOWN_HELP: &str = "\
Examples:
  walrelay teardown --slot orders
  walrelay teardown --slot orders --yes

The stored position stays: a relay of a later slot of the same name first publishes the unpublished rows.

Exit codes:
  0   slot and publication are dropped
  2   the configuration is not valid, or the answer was not yes
  10  Postgres cannot be reached (11: refuses, or another role owns the publication)
  13  a relay streams from the slot
  14  the slot has unrelayed events, or is not walrelay's
  15  the publication has neither exactly one table nor exactly the tables of the configuration";

const STATUS_HELP: &str = "\
Examples:
  walrelay status --slot orders
  walrelay status --slot orders --json --max-lag-bytes 64MiB
  walrelay status --slot orders --watch 5

Exit codes:
  0   healthy
  1   no relay streams from the slot, the slot is lost or about to be, or a limit is exceeded
  2   the configuration is not valid
  10  Postgres cannot be reached (11: refuses)
  14  the slot does not exist";

const DEMO_HELP: &str = "\
Examples:
  walrelay demo
  walrelay demo --seconds 30 --writers 8 --brokers localhost:9092

\"Commit to reader\" is the p50/p99 time from the commit to the arrival of the event at a consumer. It is a little longer than the commit-to-ack latency.

Exit codes:
  0   every event was verified
  1   not verified
  2   the flags are not valid
  4   Postgres' programs are missing";

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
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_flag_takes_a_password() {
        let command = Cli::command();
        let nested = command.get_subcommands().flat_map(clap::Command::get_subcommands);
        for command in command.get_subcommands().chain(nested) {
            for argument in command.get_arguments() {
                let long = argument.get_long().unwrap_or_default();
                assert!(
                    !long.contains("password") && !long.contains("secret"),
                    "--{long} would show on the command line"
                );
            }
        }
    }

    #[test]
    fn what_was_typed_becomes_settings() {
        let typed =
            ["walrelay", "run", "--slot", "orders", "--state-store", "slot", "--log-format", "json", "--http", "9464"];
        let Command::Run(args) = Cli::try_parse_from(typed).unwrap().command else { panic!("not run") };
        let flags = flags(&args.settings);
        let read: Vec<_> = flags.iter().map(|(key, text)| (*key, text.as_str())).collect();
        assert_eq!(
            read,
            [("http.listen", "9464"), ("log.format", "json"), ("slot.name", "orders"), ("state.store", "slot")]
        );
    }

    #[test]
    fn nonsense_is_refused_at_once() {
        for typed in [
            &["walrelay"][..],
            &["walrelay", "run", "--state-store", "redis"],
            &["walrelay", "setup", "--timeout", "60"],
            &["walrelay", "setup", "--timeout", "0s"],
            &["walrelay", "status", "--watch", "0"],
            &["walrelay", "status", "--max-lag-bytes", "1.5"],
            &["walrelay", "demo", "--writers", "0"],
            &["walrelay", "run", "--password", "x"],
            &["walrelay", "replay"],
            &["walrelay", "replay", "--until", "1h", "--dry-run"],
            &["walrelay", "dead-letters"],
            &["walrelay", "dead-letters", "show"],
            &["walrelay", "dead-letters", "show", "17"],
            &["walrelay", "dead-letters", "show", "0:1", "--id", "7"],
            &["walrelay", "dead-letters", "list", "--limit", "0"],
            &["walrelay", "dead-letters", "list", "--until", "1h", "--older-than", "2h"],
            &["walrelay", "dead-letters", "retry", "0:-1"],
            &["walrelay", "parked"],
            &["walrelay", "parked", "show"],
            &["walrelay", "parked", "drop", "7", "--id", "8"],
            &["walrelay", "parked", "list", "--limit", "0"],
            &["walrelay", "config", "import"],
            &["walrelay", "config", "import", "c.json", "--force"],
            &["walrelay", "config", "init", "--table", "t", "--force"],
            &["walrelay", "config", "check", "--offline", "--json"],
        ] {
            let error = Cli::try_parse_from(typed).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{typed:?}");
        }
    }

    #[test]
    fn every_flag_of_a_setting_is_read() {
        let command = Cli::command();
        let run = command.find_subcommand("run").unwrap();
        for key in KEYS.iter() {
            let Some(flag) = key.flag else { continue };
            let argument = run.get_arguments().find(|argument| argument.get_long() == Some(flag)).unwrap();
            let help = argument.get_help().unwrap().to_string();
            assert!(
                help.contains(&format!("[env: {}]", key.variable())),
                "--{flag} does not name its variable: {help}"
            );
            let value =
                argument.get_possible_values().last().map_or("x".to_owned(), |value| value.get_name().to_owned());
            for command in [&["run"][..], &["config", "check"]] {
                let typed = ["walrelay"].iter().chain(command).copied().map(str::to_owned);
                let args = Cli::try_parse_from(typed.chain([format!("--{flag}"), value.clone()])).unwrap().command;
                let (Command::Run(RunArgs { settings, .. })
                | Command::Config(ConfigCommand::Check(CheckArgs { settings, .. }))) = args
                else {
                    panic!("neither run nor config check")
                };
                assert_eq!(flags(&settings), Flags::from([(key.path.as_str(), value.clone())]), "{command:?} --{flag}");
            }
        }
    }

    /// Every command, by its names.
    fn commands() -> Vec<clap::Command> {
        let mut command = Cli::command();
        command.build();
        let mut all: Vec<clap::Command> = vec![command];
        let mut at = 0;
        while let Some(next) = all.get(at).map(|command| command.get_subcommands().cloned().collect::<Vec<_>>()) {
            all.extend(next.into_iter().filter(|command| command.get_name() != "help"));
            at += 1;
        }
        all
    }

    #[test]
    fn every_example_is_of_one_piece_on_a_narrow_terminal_and_no_help_is_without_exit_codes() {
        const COLUMNS: usize = 80;
        for command in commands() {
            let name = command.get_name().to_owned();
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let (examples, rest) = help.split_once("\n\n").unwrap();
            assert!(name == "walrelay" || rest.contains("Exit codes:\n  0 "), "{name}");
            assert!(examples.starts_with("Examples:\n") || name == "walrelay", "{name}");
            for line in examples.lines() {
                assert!(line.chars().count() <= COLUMNS, "{name}: {line}");
            }
            let rendered = command.clone().term_width(COLUMNS).render_help().to_string();
            assert!(rendered.contains(examples), "{name}: wrapped in\n{rendered}");
        }
    }

    #[test]
    fn a_command_has_no_flag_that_means_nothing_to_it() {
        let command = Cli::command();
        let has = |name: &str, flag: &str| {
            let command = command.find_subcommand(name).unwrap();
            command.get_arguments().any(|argument| argument.get_long() == Some(flag))
        };
        let of_run =
            ["mode", "on-slot-loss", "backlog", "max-retained-bytes", "over-budget", "http", "log", "log-format"];
        for name in ["verify", "replay"] {
            for flag in of_run {
                assert!(has("run", flag) && !has(name, flag), "{name} --{flag}");
            }
            assert!(
                ["slot", "database-url", "config", "brokers", "table"].iter().all(|flag| has(name, flag)),
                "{name}"
            );
        }
        assert!(has("replay", "shutdown-timeout") && !has("verify", "shutdown-timeout") && has("setup", "mode"));
    }

    #[test]
    fn the_overview_names_every_command_and_where_to_start() {
        insta::assert_snapshot!(Cli::command().term_width(100).render_long_help(), @r#"
        Relays an outbox table through a Postgres logical replication slot into Kafka

        Usage: walrelay <COMMAND>

        Commands:
          run           Relay events until told to stop
          setup         Check the server, then create publication and slot, and on request table and column
          teardown      Drop the slot and its publication, never the table
          status        Show the state of the slot and its relay
          cleanup       Delete old published rows without blocking other sessions
          verify        Compare the outbox with the topics: find missing, duplicated and misordered events
          replay        Publish rows of the outbox once more, with or without a running relay
          dead-letters  Undelivered events in the dead-letter topic: list, show, retry or drop them
          parked        Undelivered events in the table walrelay.parked: list, show, retry or drop them
          demo          Run walrelay on a private, temporary Postgres, and verify the result
          config        Write a configuration for a table, convert one from Debezium, and check one
          help          Print this message or the help of the given subcommand(s)

        Options:
          -h, --help
                  Print help

          -V, --version
                  Print version

        Start here:
          walrelay demo                                        # on a private Postgres
          walrelay setup --slot orders --create-table          # create table and slot
          walrelay run --slot orders --brokers localhost:9092  # relay until Ctrl-C
          walrelay config init --table billing.events          # for an existing table

        A setting may be a flag, a WALRELAY_* variable or a key of the configuration file;
        the first of these counts.
        "#);
    }
}
