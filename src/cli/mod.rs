//! The command line. Each command has its flags and help in its own file; [`config`] has those of
//! several commands and reads the configuration, and [`output`] prints.

use std::future::pending;
use std::path::absolute;
use std::pin::pin;
use std::sync::{LazyLock, OnceLock};

use clap::{Arg, ArgMatches, Args, CommandFactory as _, Parser, Subcommand, ValueEnum as _};

use crate::config::layers::{CONFIG_VARIABLE, may_hold_password, may_hold_secret};
use crate::config::model::KEYS;
use crate::config::{Config, LogFormat, Settings};
use crate::relay;
use crate::relay::stop::{Stop, on_signals};
use crate::sink::{checks, linked_libraries};
use crate::telemetry::otel::Exporter;
use crate::telemetry::service_manager::ServiceManager;
use crate::telemetry::{Page, Telemetry, http, logging};
use walrelay_core::error::{Error, Flag, Given, Kind, NextCommand, Result};

use walrelay_core::printable::{printable, shell_word};

mod check;
mod cleanup;
mod completions;
mod config;
mod doctor;
mod exporter;
#[cfg(feature = "debezium")]
mod import;
mod init;
mod nagios;
mod output;
mod parked;
mod peek;
mod pending;
mod progress;
mod replay;
mod setup;
mod slot_watch;
mod sql;
mod status;
mod steps;
mod survey;
mod tail;
mod teardown;
mod verify;

use check::CheckArgs;
use cleanup::CleanupArgs;
use completions::{CompletionsArgs, ManArgs};
use config::{FileArgs, RunSettings, flags};
use doctor::DoctorArgs;
use exporter::ExporterArgs;
#[cfg(feature = "debezium")]
use import::ImportArgs;
use init::InitArgs;
pub use output::Output;
use output::{Failure, Form, Outcome, error_in};
use parked::ParkedCommand;
use pending::PendingArgs;
use replay::ReplayArgs;
use setup::SetupArgs;
use slot_watch::SlotWatch;
use status::StatusArgs;
use tail::TailArgs;
use teardown::TeardownArgs;
use verify::VerifyArgs;

/// Relays an outbox table through a Postgres logical replication slot to Kafka or another bus.
#[derive(Debug, Parser)]
#[command(name = "walrelay", version, long_version = long_version())]
#[command(max_term_width = 110, propagate_version = true, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The groups of flags in the help. Other flags are among clap's "Options".
const GROUPS: [(&str, &str); 7] = [
    ("Configuration", "config set"),
    ("Connections", "database-url brokers"),
    (
        "Outbox and slot",
        "slot publication table mode backlog adopt-slot",
    ),
    (
        "Delivery",
        "sink on-error guarantee state-store shutdown-timeout",
    ),
    (
        "Lost slots and WAL",
        "on-slot-loss max-retained-bytes over-budget",
    ),
    (
        "Selection",
        "id aggregate class topic type outbox since until older-than where all",
    ),
    (
        "Output",
        "http json limit log log-format nagios no-body output payload show lines unknown watch",
    ),
];

impl Cli {
    /// The command line for help and manual pages, with groups, variables and defaults. Do not
    /// parse with it: a variable or a default would count as typed.
    #[must_use]
    pub fn documented() -> clap::Command {
        documented(Self::command())
    }
}

fn documented(command: clap::Command) -> clap::Command {
    // Other commands read no variables.
    let reads_settings = command
        .get_arguments()
        .any(|argument| argument.get_long() == Some("config"));
    command
        .mut_args(|argument| documented_flag(argument, reads_settings))
        .mut_subcommands(documented)
}

fn documented_flag(argument: Arg, reads_settings: bool) -> Arg {
    let flag = argument.get_long().unwrap_or_default().to_owned();
    let group = GROUPS
        .iter()
        .find(|(_, flags)| flags.split(' ').any(|of| of == flag))
        .map(|(group, _)| *group);
    let argument = argument.help_heading(group).hide_env_values(true);
    if !reads_settings {
        return argument;
    }
    if flag == "config" {
        return argument.env(CONFIG_VARIABLE);
    }
    let Some(key) = KEYS.iter().find(|key| key.flag == Some(&flag)) else {
        return argument;
    };
    let argument = argument.env(key.variable());
    key.default
        .as_ref()
        .map_or(argument.clone(), |default| argument.default_value(default))
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Relay events until told to stop
    #[command(after_help = RUN_HELP)]
    Run(RunArgs),
    /// Check the server, then create publication and slot, and on request table and column
    #[command(after_help = setup::HELP)]
    Setup(SetupArgs),
    /// Drop the slot and its publication, never the table
    #[command(after_help = teardown::HELP)]
    Teardown(TeardownArgs),
    /// Show the state of the slot and its relay
    #[command(after_help = status::HELP)]
    Status(StatusArgs),
    /// Count and show the events of the slot that are not delivered, without consuming them
    #[command(after_help = pending::HELP)]
    Pending(PendingArgs),
    /// Print records as a relay would publish them, without consuming their events
    #[command(after_help = tail::HELP)]
    Tail(TailArgs),
    /// Check Postgres and the bus for a relay, and print the fix of each fault
    #[command(after_help = doctor::HELP)]
    Doctor(DoctorArgs),
    /// Serve the metrics of the slot while no relay runs
    #[command(after_help = exporter::HELP)]
    Exporter(ExporterArgs),
    /// Delete old published rows without blocking other sessions
    #[command(after_help = cleanup::HELP)]
    Cleanup(CleanupArgs),
    /// Compare the outbox with the topics: find missing, duplicated and misordered events
    #[command(after_help = verify::HELP)]
    Verify(VerifyArgs),
    /// Publish rows of the outbox once more, with or without a running relay
    #[command(after_help = replay::HELP)]
    Replay(ReplayArgs),
    /// Parked events in the table walrelay.parked: list, show, retry or drop them
    #[command(subcommand, after_help = parked::help())]
    Parked(ParkedCommand),
    /// Write a configuration for a table, convert one from Debezium, and check one
    #[command(subcommand, after_help = CONFIG_HELP)]
    Config(ConfigCommand),
    /// Print a script that completes commands and flags in a shell
    #[command(after_help = completions::COMPLETIONS_HELP)]
    Completions(CompletionsArgs),
    /// Write the manual pages of all commands
    #[command(after_help = completions::MAN_HELP)]
    Man(ManArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Write a walrelay.toml for an existing table, with the reason for each guess
    #[command(after_help = init::HELP)]
    Init(InitArgs),
    /// Check a configuration against the database, and show the record of one row
    #[command(after_help = check::HELP)]
    Check(CheckArgs),
    /// Convert the configuration of a Debezium connector, and list the options that have no
    /// equivalent
    #[cfg(feature = "debezium")]
    #[command(after_help = import::HELP)]
    Import(ImportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub settings: RunSettings,
    /// Discard the stored position, and start at the slot's. For one start after the server was
    /// replaced: the relay skips the events between the two positions, unless --backlog selects
    /// rows of the table
    #[arg(long)]
    pub adopt_slot: bool,
}

/// The version, its commit where the build knew it, and the libraries that are linked.
fn long_version() -> String {
    let commit = option_env!("WALRELAY_COMMIT").map(|commit| format!(" ({commit})"));
    // OpenSSL says its name itself.
    let [(client, version), (_, openssl)] = linked_libraries();
    format!(
        "{}{}\n{client} {version}\n{openssl}",
        env!("CARGO_PKG_VERSION"),
        commit.unwrap_or_default()
    )
}

const AFTER_HELP: &str = "\
Start here:
  walrelay setup --slot orders --create-table          # create table and slot
  walrelay run --slot orders --brokers localhost:9092  # relay until Ctrl-C
  walrelay config init --table billing.events          # for an existing table

A setting is a flag, a key with --set, a WALRELAY_* variable, or a key of the
configuration file. The first of these counts.";

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
  4   the address of http.listen cannot be used
  11  Postgres refuses (31: the bus refuses)
  12  the server is not fit for logical replication
  14  the slot is missing, lost, or not walrelay's
  15  publication or table do not fit
  16  server, slot and stored position do not belong together
  20  an event cannot be decoded or routed (21: the bus refuses it)
  70  a bug
The relay retries without limit after a fault that can pass, such as an unreachable server.";

const CONFIG_HELP: &str = "\
Examples:
  walrelay config init --table sales.outbox --output walrelay.toml
  walrelay config check --config walrelay.toml
  walrelay config import connector.json --output walrelay.toml

Exit codes:
  0   done, or `run` would take it
  2   a setting, an argument or a file is not valid
Each command's own --help has more.";

/// Runs the command and gives its exit code. The commands in an error's remedy get those of the
/// `typed` flags that they take.
///
/// # Errors
/// Those of the command. A closed standard output ends it without an error.
pub async fn dispatch(cli: &Cli, typed: &ArgMatches) -> Result<u8> {
    let flags = relay_flags(typed);
    // A relay knows more of itself once it has read its configuration.
    if !matches!(cli.command, Command::Run(_)) {
        Given {
            flags: flags.clone(),
            takes,
            placeholders: OnceLock::new(),
        }
        .set_for_process();
    }
    match done(&cli.command, &flags).await {
        Ok(()) | Err(Failure::PipeClosed) => Ok(0),
        Err(Failure::ExitCode(code)) => Ok(code),
        Err(Failure::Error(error)) => Err(error.with_commands(&|next| with_flags(next, &flags))),
    }
}

/// The error for standard error: two lines, or one object in the form that `--output` asks for.
#[must_use]
pub fn error_text(error: &Error, typed: &ArgMatches) -> String {
    let typed = innermost(typed);
    // Commands that write a file have only --json.
    let json = typed
        .try_get_one::<bool>("json")
        .ok()
        .flatten()
        .is_some_and(|json| *json)
        .then_some(Form::Json);
    let form = typed.try_get_one::<Form>("form").ok().flatten().copied();
    printable(&error_in(json.or(form).unwrap_or_default(), error)).into_owned()
}

/// Whether these are the words of a Nagios check, which has the exit codes of the plugin interface.
#[must_use]
pub fn is_nagios(words: &[String]) -> bool {
    ["status", "--nagios"]
        .iter()
        .all(|needed| words.iter().any(|word| word == needed))
}

/// A usage error in the form that the typed words ask for; none for people, to whom clap shows it.
#[must_use]
pub fn usage_error(error: &clap::Error, words: &[String]) -> Option<String> {
    if is_nagios(words) {
        // A monitoring server keeps and shows the line. A word that was not understood may be a
        // connection URL.
        let error = Error::new(Kind::Config, "a flag or value of the check is not valid");
        return Some(nagios::Check::failed(&error).to_string());
    }
    let text = error.to_string();
    let (cause, usage) = text.split_once("\n\n").unwrap_or((&text, ""));
    let error = Error::new(Kind::Config, cause.trim_start_matches("error: ")).remedy(usage.trim());
    let follows = words.windows(2).filter(|pair| {
        pair.first()
            .is_some_and(|word| ["--output", "-o"].contains(&word.as_str()))
    });
    let values = follows.filter_map(|pair| pair.get(1)).map(String::as_str);
    let values = values.chain(
        words
            .iter()
            .filter_map(|word| word.strip_prefix("--output=")),
    );
    let json = words.iter().any(|word| word == "--json").then_some("json");
    let form = values
        .chain(json)
        .find_map(|value| Form::from_str(value, true).ok())?;
    (form != Form::Table).then(|| printable(&error_in(form, &error)).into_owned())
}

fn innermost(typed: &ArgMatches) -> &ArgMatches {
    typed
        .subcommand()
        .map_or(typed, |(_, nested)| innermost(nested))
}

/// The typed flags that set keys, without those that may hold a secret. The next command reads the
/// environment by itself.
fn relay_flags(typed: &ArgMatches) -> Vec<Flag> {
    let command = innermost(typed);
    let flag = |name: &'static str| {
        let is_shown = |value: &&str| match name {
            "database-url" => !may_hold_password(value),
            "set" => !may_hold_secret(value),
            _ => true,
        };
        let values = command
            .try_get_raw(&name.replace('-', "_"))
            .ok()
            .flatten()
            .into_iter()
            .flatten();
        let shown = values.filter_map(|value| value.to_str()).filter(is_shown);
        shown
            .map(|value| Flag {
                name,
                value: Some(shell_word(value)),
            })
            .collect::<Vec<_>>()
    };
    let keys = KEYS.iter().filter_map(|key| key.flag);
    ["config", "set"]
        .into_iter()
        .chain(keys)
        .flat_map(flag)
        .collect()
}

/// Whether a command takes a flag.
fn takes(command: &str, flag: &str) -> bool {
    // A relay asks for each flag of each remedy that it prints.
    static COMMANDS: LazyLock<clap::Command> = LazyLock::new(|| {
        let mut root = Cli::command();
        root.build();
        root
    });
    let mut names = command.split(' ');
    let found = names.try_fold(&*COMMANDS, |command, name| command.find_subcommand(name));
    found.is_some_and(|command| {
        let mut arguments = command.get_arguments();
        arguments.any(|argument| argument.get_long() == Some(flag))
    })
}

/// `next` with those of `flags` that it takes, so that it concerns the same relay.
fn with_flags(next: NextCommand, flags: &[Flag]) -> NextCommand {
    let name = next.name();
    next.with_missing(flags.iter().filter(|flag| takes(name, flag.name)).cloned())
}

async fn done(command: &Command, typed: &[Flag]) -> Outcome {
    match command {
        Command::Run(args) => Box::pin(run(args, typed)).await,
        Command::Setup(args) => setup::setup(args).await,
        Command::Teardown(args) => Box::pin(teardown::teardown(args)).await,
        Command::Status(args) => status::status(args).await,
        Command::Pending(args) => Box::pin(pending::pending(args)).await,
        Command::Tail(args) => Box::pin(tail::tail(args)).await,
        Command::Doctor(args) => Box::pin(doctor::doctor(args)).await,
        Command::Exporter(args) => exporter::exporter(args).await,
        Command::Cleanup(args) => cleanup::cleanup(args).await,
        Command::Verify(args) => verify::verify(args).await,
        Command::Replay(args) => Box::pin(replay::replay(args)).await,
        Command::Parked(command) => Box::pin(command.run()).await,
        Command::Config(ConfigCommand::Check(args)) => Box::pin(check::check(args)).await,
        Command::Config(ConfigCommand::Init(args)) => init::init(args).await,
        #[cfg(feature = "debezium")]
        Command::Config(ConfigCommand::Import(args)) => import::import(args).await,
        Command::Completions(args) => completions::completions(args, Cli::documented()),
        Command::Man(args) => completions::man(args, Cli::documented()),
    }
}

/// The configuration of `run`. Sets up what logs and errors need of it, and logs where it is from.
fn configured(
    settings: &Settings,
    file: &FileArgs,
    args: &RunArgs,
    typed: &[Flag],
) -> Result<Config> {
    let config = config::config(settings, args.adopt_slot)?;
    Given {
        flags: flags_for_remedies(file, &config, typed),
        takes,
        placeholders: checks(config.sink.kind).placeholders(&config).into(),
    }
    .set_for_process();
    let log = &settings.model().log;
    logging::init(log.format == LogFormat::Json, &log.filter)?;
    if let Some(file) = settings.file() {
        tracing::info!(event = "configuration_read", file, "configuration file");
    }
    for warning in config::warnings(settings, &config) {
        tracing::warn!(event = "configuration_warned", "{warning}");
    }
    Ok(config)
}

/// The flags of commands in remedies, for a shell in another folder and without the environment of
/// this process: those typed, and the file, or the slot where no file is named.
fn flags_for_remedies(file: &FileArgs, config: &Config, typed: &[Flag]) -> Vec<Flag> {
    let mut flags = typed.to_vec();
    let named = file.named();
    let named = named.map(|file| absolute(&file).unwrap_or_else(|_| file.clone()));
    let (name, value) = match named {
        Some(file) => ("config", file.to_string_lossy().into_owned()),
        None => ("slot", config.source.slot.to_string()),
    };
    flags.retain(|flag| flag.name != name);
    flags.insert(
        0,
        Flag {
            name,
            value: Some(shell_word(&value)),
        },
    );
    flags
}

async fn run(args: &RunArgs, typed: &[Flag]) -> Outcome {
    let file = &args.settings.source.relay.common.file;
    let settings = config::settings(&flags(&args.settings), file)?;
    let config = configured(&settings, file, args, typed)?;
    let http = settings.model().http.clone();
    // They have secrets of the environment.
    drop(settings);
    let stop = on_signals()?;
    let mut telemetry = Telemetry::new(config.sink.kind.bus(), http.ready_within);
    let pages = match http.listen {
        Some(addr) => Some(http::bind(addr).await?),
        None => None,
    };
    let guarantee = config.delivery.guarantee.into();
    telemetry.metrics.relays(&config.source, guarantee);
    let slot = &config.source.slot;
    let dropped = &telemetry.metrics.dropped_spans;
    let otel = config
        .otel
        .as_ref()
        .map(|otel| Exporter::start(otel, slot, dropped))
        .transpose()?;
    telemetry.spans = otel.as_ref().map(|otel| otel.spans.clone());
    let mut watch = SlotWatch::new(&config.source, &config.outboxes, telemetry.clone(), false)?;
    let is_watched = pages.is_some();
    let relay = relay::run(config, telemetry.clone(), stop.clone());
    let mut manager = ServiceManager::from_environment(telemetry.clone());
    let mut asked = stop.clone();
    let tell = async {
        match &mut manager {
            Some(manager) => manager.keep_telling(asked.at_least(Stop::Drain)).await,
            None => pending().await,
        }
    };
    let page = pages.as_ref().map(|_| Page::new(telemetry.clone()));
    // Its connections end with it, and show the end of the relay before.
    let mut serve = pin!(async {
        match pages.zip(page.as_ref()) {
            Some((listener, page)) => http::serve(listener, telemetry, page).await,
            None => pending().await,
        }
    });
    let ended = tokio::select! {
        ended = Box::pin(relay) => ended,
        never = tell => match never {},
        never = &mut serve => match never {},
        never = watch.keep_looking(), if is_watched => match never {},
    };
    if let Some(manager) = &mut manager {
        manager.tell_end();
    }
    let may_wait = stop.asked() < Stop::Now;
    if let (Err(_), Some(page)) = (&ended, page.as_ref().filter(|_| may_wait)) {
        page.show_end().await;
    }
    if let Some(otel) = otel.filter(|_| may_wait) {
        otel.finish().await;
    }
    ended?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::layers::Flags;

    #[test]
    fn the_long_version_names_the_linked_libraries_and_the_short_one_is_one_line() {
        let printed = |flag: &str| {
            Cli::try_parse_from(["walrelay", flag])
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            printed("-V"),
            format!("walrelay {}\n", env!("CARGO_PKG_VERSION"))
        );
        let long = printed("--version");
        let lines: Vec<&str> = long.lines().collect();
        assert!(
            lines[0].starts_with(printed("-V").trim_end()) && lines[1].starts_with("librdkafka 2."),
            "{long}"
        );
        assert!(
            lines[2].starts_with("OpenSSL ") && lines.len() == 3,
            "{long}"
        );
    }

    #[test]
    fn every_command_has_a_manual_page_and_is_completed() {
        let folder = tempfile::tempdir().unwrap();
        completions::man(
            &ManArgs {
                directory: folder.path().join("man1"),
            },
            Cli::command(),
        )
        .unwrap();
        for command in commands() {
            let name = command.get_display_name().unwrap_or("walrelay").to_owned();
            let page =
                std::fs::read_to_string(folder.path().join(format!("man1/{name}.1"))).unwrap();
            assert!(page.contains("Exit codes") || name == "walrelay", "{name}");
        }
        let mut script = Vec::new();
        clap_complete::generate(
            clap_complete::Shell::Bash,
            &mut Cli::command(),
            "walrelay",
            &mut script,
        );
        assert!(
            String::from_utf8(script)
                .unwrap()
                .contains("--max-retained-bytes")
        );
    }

    #[test]
    fn no_flag_takes_a_password() {
        let command = Cli::command();
        let nested = command
            .get_subcommands()
            .flat_map(clap::Command::get_subcommands);
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
    fn an_invalid_command_line_ends_with_2() {
        for typed in [
            &["walrelay"][..],
            &["walrelay", "run", "--state-store", "redis"],
            &["walrelay", "setup", "--timeout", "60"],
            &["walrelay", "setup", "--timeout", "0s"],
            &["walrelay", "status", "--watch", "0"],
            &["walrelay", "status", "--watch", "2d"],
            &["walrelay", "status", "--max-lag-seconds", "-1"],
            &["walrelay", "completions", "tcsh"],
            &["walrelay", "status", "--max-lag-bytes", "1.5"],
            &["walrelay", "run", "--password", "x"],
            &["walrelay", "replay"],
            &["walrelay", "replay", "--until", "1h", "--dry-run"],
            &["walrelay", "parked"],
            &["walrelay", "parked", "show"],
            &["walrelay", "parked", "drop", "7", "--id", "8"],
            &["walrelay", "parked", "list", "--limit", "0"],
            &[
                "walrelay",
                "parked",
                "list",
                "--until",
                "1h",
                "--older-than",
                "2h",
            ],
            &["walrelay", "config", "import"],
            &["walrelay", "config", "import", "c.json", "--force"],
            &["walrelay", "config", "init", "--table", "t", "--force"],
            &["walrelay", "config", "check", "--offline", "--json"],
            &[
                "walrelay",
                "config",
                "check",
                "--offline",
                "--output",
                "yaml",
            ],
            &["walrelay", "status", "--json", "--output", "yaml"],
            &["walrelay", "status", "--nagios", "--watch"],
            &["walrelay", "status", "--nagios", "--json"],
            &["walrelay", "status", "--nagios", "--output", "table"],
            &["walrelay", "pending", "--show", "10001"],
            &["walrelay", "tail", "-n", "0"],
        ] {
            let error = Cli::try_parse_from(typed).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{typed:?}");
        }
    }

    #[test]
    fn every_flag_sets_its_setting_and_its_help_names_variable_and_default() {
        let command = Cli::documented();
        let run = command.find_subcommand("run").unwrap();
        for key in KEYS.iter() {
            let Some(flag) = key.flag else { continue };
            let argument = run
                .get_arguments()
                .find(|argument| argument.get_long() == Some(flag))
                .unwrap();
            assert_eq!(
                argument.get_env(),
                Some(std::ffi::OsStr::new(&key.variable())),
                "--{flag}"
            );
            let default = argument
                .get_default_values()
                .first()
                .map(|default| default.to_str().unwrap().to_owned());
            assert_eq!(default, key.default, "--{flag}");
            let value = argument
                .get_possible_values()
                .last()
                .map_or("x".to_owned(), |value| value.get_name().to_owned());
            for command in [&["run"][..], &["config", "check"]] {
                let typed = ["walrelay"]
                    .iter()
                    .chain(command)
                    .copied()
                    .map(str::to_owned);
                let args = Cli::try_parse_from(typed.chain([format!("--{flag}"), value.clone()]))
                    .unwrap()
                    .command;
                let (Command::Run(RunArgs { settings, .. })
                | Command::Config(ConfigCommand::Check(CheckArgs { settings, .. }))) = args
                else {
                    panic!("neither run nor config check")
                };
                assert_eq!(
                    flags(&settings),
                    Flags::from([(key.path.as_str(), value.clone())]),
                    "{command:?} --{flag}"
                );
            }
        }
    }

    #[test]
    fn the_help_groups_flags_and_shows_variables_without_their_values() {
        Cli::documented().debug_assert();
        let mut command = Cli::documented();
        let run = command
            .find_subcommand_mut("run")
            .unwrap()
            .render_help()
            .to_string();
        for text in [
            "Connections:\n",
            "[env: WALRELAY_DATABASE_URL]",
            "--on-slot-loss <REACTION>",
            "[default: 30s]",
        ] {
            assert!(run.contains(text), "{text}: {run}");
        }
        let known: Vec<_> = commands()
            .iter()
            .flat_map(|command| command.get_arguments().cloned().collect::<Vec<_>>())
            .collect();
        let mut grouped = GROUPS.iter().flat_map(|(_, flags)| flags.split(' '));
        assert_eq!(
            grouped.find(|flag| !known.iter().any(|known| known.get_long() == Some(*flag))),
            None
        );
    }

    fn commands() -> Vec<clap::Command> {
        let mut command = Cli::documented();
        command.build();
        let mut all: Vec<clap::Command> = vec![command];
        let mut at = 0;
        while let Some(next) = all
            .get(at)
            .map(|command| command.get_subcommands().cloned().collect::<Vec<_>>())
        {
            all.extend(
                next.into_iter()
                    .filter(|command| command.get_name() != "help"),
            );
            at += 1;
        }
        all
    }

    #[test]
    fn examples_fit_80_columns_without_a_wrap_and_each_help_lists_exit_codes() {
        const COLUMNS: usize = 80;
        for command in commands() {
            let name = command.get_name().to_owned();
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            let (examples, rest) = help.split_once("\n\n").unwrap();
            assert!(
                name == "walrelay" || rest.contains("Exit codes:\n  0 "),
                "{name}"
            );
            assert!(
                examples.starts_with("Examples:\n") || name == "walrelay",
                "{name}"
            );
            for line in examples.lines() {
                assert!(line.chars().count() <= COLUMNS, "{name}: {line}");
            }
            let rendered = command
                .clone()
                .term_width(COLUMNS)
                .render_help()
                .to_string();
            assert!(
                rendered.contains(examples),
                "{name}: wrapped in\n{rendered}"
            );
        }
    }

    #[test]
    fn the_top_level_help_lists_every_command_and_where_to_start() {
        let mut command = Cli::command();
        let help = command.render_long_help().to_string();
        for listed in command.get_subcommands() {
            let about = listed.get_about().unwrap().to_string();
            assert!(
                help.contains(&format!("  {} ", listed.get_name())) && help.contains(&about),
                "{help}"
            );
        }
        assert!(
            help.ends_with(AFTER_HELP) || help.ends_with(&format!("{AFTER_HELP}\n")),
            "{help}"
        );
    }

    #[test]
    fn json_is_short_for_output_json_and_decides_the_form_of_errors() {
        let error = Error::new(Kind::Config, "x");
        for (typed, start) in [
            (&["status"][..], "error: x"),
            (&["status", "--json"], "{\"kind\":\"config\""),
            (
                &["parked", "list", "--output", "json"],
                "{\"kind\":\"config\"",
            ),
            (&["cleanup", "--output", "yaml"], "kind: config\n"),
            (&["config", "init", "--output", "json"], "error: x"),
            (&["config", "init", "--json"], "{\"kind\":\"config\""),
        ] {
            let typed = Cli::command().get_matches_from([&["walrelay"], typed].concat());
            assert!(error_text(&error, &typed).starts_with(start), "{typed:?}");
        }
    }

    #[test]
    fn a_usage_error_is_an_object_where_json_or_yaml_was_asked_for() {
        let told = |line: &[&str]| {
            let words: Vec<_> = ["walrelay"]
                .iter()
                .chain(line)
                .map(|word| (*word).to_owned())
                .collect();
            usage_error(&Cli::try_parse_from(&words).unwrap_err(), &words)
        };
        let object: serde_json::Value =
            serde_json::from_str(&told(&["status", "--nope", "--json"]).unwrap()).unwrap();
        assert_eq!(object["error"], "unexpected argument '--nope' found");
        assert_eq!(object["exit_code"], 2);
        assert!(
            object["remedy"]
                .as_str()
                .unwrap()
                .contains("Usage: walrelay status"),
            "{object}"
        );
        assert!(
            told(&["parked", "lsit", "--output=json"])
                .unwrap()
                .contains("unrecognized subcommand 'lsit'")
        );
        assert!(
            told(&["pending", "--show", "x", "--output", "yaml"])
                .unwrap()
                .starts_with("kind: config\n")
        );
        let line = "WALRELAY UNKNOWN - a flag or value of the check is not valid";
        assert_eq!(
            told(&["status", "--nagios", "postgres://me:secret@db/shop"]).as_deref(),
            Some(line)
        );
        for for_people in [
            &["status", "--nope"][..],
            &["config", "init", "--output", "x.toml", "--nope"],
        ] {
            assert_eq!(told(for_people), None);
        }
    }

    fn flags_of(line: &[&str]) -> Vec<Flag> {
        relay_flags(&Cli::command().try_get_matches_from(line).unwrap())
    }

    #[test]
    fn a_suggested_command_repeats_the_flags_of_the_current_one() {
        let line = [
            "walrelay",
            "setup",
            "--config",
            "my file.toml",
            "--slot",
            "a",
            "--publication",
            "p",
            "--table",
            "s.\"T\"",
        ];
        let flags = flags_of(&line);
        for (next, expected) in [
            (
                NextCommand::new("setup").flag("create-table"),
                "walrelay setup --config 'my file.toml' --slot a --publication p --table 's.\"T\"' \
                 --create-table",
            ),
            (
                NextCommand::new("setup")
                    .option("slot", "b")
                    .option("table", "c"),
                "walrelay setup --config 'my file.toml' --publication p --slot b --table c",
            ),
            (
                NextCommand::new("teardown")
                    .option("slot", "a")
                    .flag("force"),
                "walrelay teardown --config 'my file.toml' --publication p --table 's.\"T\"' --slot a \
                 --force",
            ),
            (
                NextCommand::new("parked list"),
                "walrelay parked list --config 'my file.toml' --slot a",
            ),
        ] {
            assert_eq!(with_flags(next, &flags).to_string(), expected);
        }
        assert_eq!(
            with_flags(
                NextCommand::new("status"),
                &flags_of(&["walrelay", "man", "m"])
            )
            .to_string(),
            "walrelay status"
        );
    }

    #[test]
    fn a_suggested_command_repeats_no_database_url_with_a_password() {
        let repeats = |url: &str| {
            !flags_of(&["walrelay", "parked", "list", "--database-url", url]).is_empty()
        };
        assert!(repeats("postgres://me@db/shop"));
        assert!(!repeats("postgres://me:canary@db/shop") && !repeats("host=db password=canary"));
        assert!(!repeats("postgres://me:c%61nary@db/shop"));
    }

    #[test]
    fn a_suggested_command_sets_the_same_keys_without_secrets() {
        let mut line = vec![
            "walrelay",
            "doctor",
            "--brokers",
            "b:9092,c:9092",
            "--mode",
            "auto",
            "--sink",
            "null",
        ];
        line.extend([
            "--set",
            "state.topic=s",
            "--set",
            "outbox.pending=done is null",
        ]);
        for secret in [
            "kafka.properties.sasl.password=canary",
            "kafka.properties={\"ssl.key.pem\"=\"canary\"}",
            "kafka.properties.\"sasl.pass\\u0077ord\"='canary'",
            "database.url=postgres://me:canary@db/shop",
        ] {
            line.extend(["--set", secret]);
        }
        let next = |name| with_flags(NextCommand::new(name), &flags_of(&line)).to_string();
        assert_eq!(
            next("run"),
            "walrelay run --set state.topic=s --set 'outbox.pending=done is null' --mode auto \
             --sink null --brokers \
             b:9092,c:9092"
        );
        assert_eq!(
            next("status"),
            "walrelay status --set state.topic=s --set 'outbox.pending=done is null'"
        );
    }
}
