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

const AFTER_HELP: &str = "\
Start here:
  walrelay demo                                        # see it work
  walrelay setup --slot orders --create-table          # table and slot of yours
  walrelay run --slot orders --brokers localhost:9092  # relay until Ctrl-C
  walrelay config init --table billing.events          # for a table of yours

A setting may be a flag, a WALRELAY_* variable or a key of the configuration file;
the first of these counts.";

const RUN_HELP: &str = "\
Examples:
  walrelay run --slot orders --brokers localhost:9092
  walrelay run --config walrelay.toml --http 9464
  PGHOST=db PGUSER=relay walrelay run --slot orders --brokers kafka:9092
  walrelay run --slot trial --sink stdout

Exit codes:
  0   told to stop, and everything acked was confirmed
  2   the configuration is not valid
  3   told to stop, and events were not acked in time; they are sent at the next start
  11  Postgres refuses (31: Kafka refuses)
  12  the server is not fit for logical replication
  14  the slot is missing, lost, or not ours
  15  publication or table are not as events need them
  16  server, slot and stored position do not belong together
  20  an event cannot be decoded or routed (21: Kafka refuses it)
  70  a bug
What heals by itself, such as a server that cannot be reached, is tried again for as long as it takes.";

const SETUP_HELP: &str = "\
Examples:
  walrelay setup --slot orders --create-table
  walrelay setup --slot orders --table sales.outbox --add-xid-column
  walrelay setup --slot orders --mode poll --add-xid-column
  walrelay setup --slot orders --dry-run | psql \"$WALRELAY_DATABASE_URL\"

What is there already and fits is left alone. Table and column come first, then the publication, then the slot, which cannot decode what was written before its publication existed. With --mode poll there is neither.

Exit codes:
  0   all there
  2   the configuration is not valid
  10  Postgres cannot be reached (11: refuses)
  12  the server is not fit, or transactions kept the slot waiting for longer than --timeout
  14  a slot of this name does not fit
  15  publication or table do not fit";

const TEARDOWN_HELP: &str = "\
Examples:
  walrelay teardown --slot orders
  walrelay teardown --slot orders --yes

What is stored stays where it is: a relay of a later slot of the same name publishes first what was not published.

Exit codes:
  0   gone
  2   the configuration is not valid, or the answer was not yes
  10  Postgres cannot be reached (11: refuses, or the publication is another role's)
  13  a relay streams from the slot
  14  events were not relayed yet, or the slot is not walrelay's
  15  the publication is neither for one table only nor for those of the configuration";

const STATUS_HELP: &str = "\
Examples:
  walrelay status --slot orders
  walrelay status --slot orders --json --max-lag-bytes 64MiB
  walrelay status --slot orders --watch 5

Exit codes:
  0   healthy
  1   no relay streams from it, it is lost or about to be, or it is over a limit
  2   the configuration is not valid
  10  Postgres cannot be reached (11: refuses)
  14  no such slot";

const DEMO_HELP: &str = "\
Examples:
  walrelay demo
  walrelay demo --seconds 30 --writers 8 --brokers localhost:9092

What is called \"commit to reader\" is the p50/p99 commit-to-ack latency and a little more: from the time of the commit to the event's arrival at a reader of the topic.

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
    fn every_flag_of_a_setting_exists_on_the_command_line() {
        let command = Cli::command();
        let run = command.find_subcommand("run").unwrap();
        for (flag, variable) in KEYS.iter().filter_map(|key| Some((key.flag?, key.variable()))) {
            let help =
                run.get_arguments().find(|argument| argument.get_long() == Some(flag)).and_then(clap::Arg::get_help);
            let help = help.unwrap_or_else(|| panic!("run has no --{flag}")).to_string();
            assert!(help.contains(&format!("[env: {variable}]")), "--{flag} does not name {variable}");
        }
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

    fn help(of: &str) -> String {
        let mut command = Cli::command().term_width(100);
        command.build();
        if of.is_empty() {
            return command.render_long_help().to_string();
        }
        command.find_subcommand_mut(of).unwrap().clone().term_width(100).render_help().to_string()
    }

    #[test]
    fn the_overview_names_every_command_and_where_to_start() {
        insta::assert_snapshot!(help(""), @r#"
        Relays an outbox table through a Postgres logical replication slot into Kafka

        Usage: walrelay <COMMAND>

        Commands:
          run           Relay events until told to stop
          setup         Check the server, then create publication and slot, and table and column if wanted
          teardown      Drop the slot and its publication; never the table
          status        Show how the slot and its relay are doing
          cleanup       Delete rows that are published and old, without being in anybody's way
          verify        Compare the outbox with the topics: what is missing, duplicated or out of order
          replay        Publish rows of the outbox once more, beside a relay or without
          dead-letters  Undelivered events in the dead-letter topic: list, show, retry or drop them
          parked        Undelivered events in the table walrelay.parked: list, show, retry or drop them
          demo          Show the whole thing at work on a private, throw-away Postgres, and verify the
                        result
          config        Make a configuration of a table or of another relay's, and check one
          help          Print this message or the help of the given subcommand(s)

        Options:
          -h, --help
                  Print help

          -V, --version
                  Print version

        Start here:
          walrelay demo                                        # see it work
          walrelay setup --slot orders --create-table          # table and slot of yours
          walrelay run --slot orders --brokers localhost:9092  # relay until Ctrl-C
          walrelay config init --table billing.events          # for a table of yours

        A setting may be a flag, a WALRELAY_* variable or a key of the configuration file;
        the first of these counts.
        "#);
    }

    #[test]
    fn the_help_of_status_has_examples_and_exit_codes() {
        insta::assert_snapshot!(help("status"), @r#"
        Show how the slot and its relay are doing

        Usage: walrelay status [OPTIONS]

        Options:
              --slot <NAME>          The replication slot [env: WALRELAY_SLOT]
              --database-url <URL>   Connection string of the outbox's database, best without a password: a
                                     command line can be read by everybody on the machine. Without it,
                                     PGHOST, PGUSER, PGPASSFILE and so on hold [env: WALRELAY_DATABASE_URL]
              --config <FILE>        A configuration file [env: WALRELAY_CONFIG]
              --json                 Print one JSON object instead of a table
              --watch [<SECS>]       Go on, every SECS seconds
              --max-lag-bytes <N>    Unhealthy when more than this is not confirmed; takes 16MiB, too
              --max-lag-seconds <N>  Unhealthy when something is not confirmed for longer than this; with a
                                     relay it is measured, which takes as long, so give it ten or more
          -h, --help                 Print help
          -V, --version              Print version

        Examples:
          walrelay status --slot orders
          walrelay status --slot orders --json --max-lag-bytes 64MiB
          walrelay status --slot orders --watch 5

        Exit codes:
          0   healthy
          1   no relay streams from it, it is lost or about to be, or it is over a limit
          2   the configuration is not valid
          10  Postgres cannot be reached (11: refuses)
          14  no such slot
        "#);
    }

    #[test]
    fn the_help_of_run_has_examples_and_exit_codes() {
        insta::assert_snapshot!(help("run"), @r#"
        Relay events until told to stop

        Usage: walrelay run [OPTIONS]

        Options:
              --slot <NAME>                  The replication slot [env: WALRELAY_SLOT]
              --database-url <URL>           Connection string of the outbox's database, best without a
                                             password: a command line can be read by everybody on the
                                             machine. Without it, PGHOST, PGUSER, PGPASSFILE and so on hold
                                             [env: WALRELAY_DATABASE_URL]
              --config <FILE>                A configuration file [env: WALRELAY_CONFIG]
              --brokers <HOST:PORT>          Kafka's bootstrap servers, with commas between [env:
                                             WALRELAY_BROKERS]
              --table <TABLE>                The outbox table; public.outbox by default [env:
                                             WALRELAY_TABLE]
              --publication <NAME>           The publication; walrelay_SLOT by default [env:
                                             WALRELAY_PUBLICATION]
              --mode <MODE>                  Where rows come from; slot by default [env: WALRELAY_MODE]
                                             [possible values: slot, poll, auto]
              --on-slot-loss <WHAT>          What to do when the slot is gone; recover by default [env:
                                             WALRELAY_ON_SLOT_LOSS] [possible values: recover, stop]
              --backlog <WHICH>              What to publish of the rows that are there when the first slot
                                             is made: all, none, pending, since=TIME; pending by default
                                             where outbox.pending is set, else all [env: WALRELAY_BACKLOG]
              --max-retained-bytes <BYTES>   How much log the slot may keep, such as 10GiB; no bound by
                                             default [env: WALRELAY_MAX_RETAINED_BYTES]
              --over-budget <WHAT>           What to do with a slot that keeps more; unready by default
                                             [env: WALRELAY_OVER_BUDGET] [possible values: unready, give-up]
              --sink <SINK>                  Where records go; kafka by default [env: WALRELAY_SINK]
                                             [possible values: kafka, stdout, null]
              --on-error <WHAT>              What to do with an event that cannot be delivered; stop by
                                             default [env: WALRELAY_ON_ERROR] [possible values: stop, park,
                                             dead-letter, skip]
              --guarantee <HOW>              How often an event arrives; at-least-once by default [env:
                                             WALRELAY_GUARANTEE] [possible values: at-least-once,
                                             exactly-once]
              --state-store <STORE>          Where the position is kept; kafka by default [env:
                                             WALRELAY_STATE_STORE] [possible values: kafka, postgres, slot]
              --http <ADDRESS:PORT>          Serve metrics and health here; a port alone means 127.0.0.1;
                                             off by default [env: WALRELAY_HTTP]
              --shutdown-timeout <DURATION>  How long a stop waits for acks; 30s by default [env:
                                             WALRELAY_SHUTDOWN_TIMEOUT]
              --log-format <FORMAT>          Form of log lines; text by default [env: WALRELAY_LOG_FORMAT]
                                             [possible values: text, json]
              --log <FILTER>                 What to log, such as info or walrelay=debug; info by default
                                             [env: WALRELAY_LOG]
              --adopt-slot                   Give up what is stored, and start where slot and server stand
                                             now. For once, after the server was replaced: events between
                                             the two are not relayed, unless --backlog says which rows of
                                             the table are
          -h, --help                         Print help (see more with '--help')
          -V, --version                      Print version

        Examples:
          walrelay run --slot orders --brokers localhost:9092
          walrelay run --config walrelay.toml --http 9464
          PGHOST=db PGUSER=relay walrelay run --slot orders --brokers kafka:9092
          walrelay run --slot trial --sink stdout

        Exit codes:
          0   told to stop, and everything acked was confirmed
          2   the configuration is not valid
          3   told to stop, and events were not acked in time; they are sent at the next start
          11  Postgres refuses (31: Kafka refuses)
          12  the server is not fit for logical replication
          14  the slot is missing, lost, or not ours
          15  publication or table are not as events need them
          16  server, slot and stored position do not belong together
          20  an event cannot be decoded or routed (21: Kafka refuses it)
          70  a bug
        What heals by itself, such as a server that cannot be reached, is tried again for as long as it
        takes.
        "#);
    }
}
