//! `walrelay run`, and who does each of the other commands.

use std::path::Path;

use crate::cli::load::Loaded;
use crate::cli::output::{Failure, Outcome, shell_word};
use crate::cli::{
    CheckArgs, Command, ConfigCommand, ReplayArgs, RunArgs, VerifyArgs, check, cleanup, flags, import, init, replay,
    setup, status, teardown, verify,
};
use crate::config::layers::holds_password;
use crate::demo;
use crate::relay;
use crate::relay::stop::on_signals;
use crate::telemetry::{Telemetry, http, logging};

/// Does `command`.
///
/// # Errors
/// What the command says.
pub async fn dispatch(command: &Command) -> Outcome {
    let outcome = done(command).await;
    let typed = typed(command);
    outcome.map_err(|failure| match failure {
        Failure::Error(error) => match error.what_to_do().map(|remedy| with_flags(remedy, &typed)) {
            Some(remedy) => Failure::Error(error.remedy(remedy)),
            None => Failure::Error(error),
        },
        Failure::PipeClosed => Failure::PipeClosed,
    })
}

/// A flag and what was typed behind it.
pub(super) type Typed<'a> = (&'static str, &'a str);

/// What was named by a flag, and the next command does not know of: the environment it has itself.
fn typed(command: &Command) -> Vec<Typed<'_>> {
    let (common, publication, table) = match command {
        Command::Run(RunArgs { settings, .. }) | Command::Config(ConfigCommand::Check(CheckArgs { settings, .. })) => {
            (&settings.relay.common, settings.publication.as_deref(), settings.relay.table.as_deref())
        }
        Command::Verify(VerifyArgs { settings, .. }) | Command::Replay(ReplayArgs { settings, .. }) => {
            (&settings.common, None, settings.table.as_deref())
        }
        Command::Setup(args) => (&args.common, args.publication.as_deref(), args.table.as_deref()),
        Command::Teardown(args) => (&args.common, args.publication.as_deref(), None),
        Command::Status(args) => (&args.common, None, None),
        Command::Cleanup(args) => (&args.common, None, args.table.as_deref()),
        Command::Parked(command) => (&command.store().common, None, None),
        Command::DeadLetters(command) => return command.store().typed(),
        Command::Config(ConfigCommand::Init(_) | ConfigCommand::Import(_)) | Command::Demo(_) => return Vec::new(),
    };
    let file = common.config.as_deref().and_then(Path::to_str);
    // What is written with % may be a password by another name.
    let url = common.database_url.as_deref().filter(|url| !holds_password(url) && !url.contains('%'));
    let all = [
        ("config", file),
        ("database-url", url),
        ("slot", common.slot.as_deref()),
        ("publication", publication),
        ("table", table),
    ];
    all.into_iter().filter_map(|(flag, value)| Some((flag, value?))).collect()
}

/// What each command takes of it.
const TAKES: [(&str, &[&str]); 13] = [
    ("run", &["config", "database-url", "slot", "publication", "table"]),
    ("setup", &["config", "database-url", "slot", "publication", "table"]),
    ("teardown", &["config", "database-url", "slot", "publication"]),
    ("status", &["config", "database-url", "slot"]),
    ("cleanup", &["config", "database-url", "slot", "table"]),
    ("verify", &["config", "database-url", "slot", "table"]),
    ("replay", &["config", "database-url", "slot", "table"]),
    ("dead-letters list", &["config", "slot"]),
    ("dead-letters retry", &["config", "slot"]),
    ("dead-letters drop", &["config", "slot"]),
    ("parked list", &["config", "database-url", "slot"]),
    ("parked retry", &["config", "database-url", "slot"]),
    ("parked drop", &["config", "database-url", "slot"]),
];

/// The commands in `remedy` with the flags this one has: without them they would be about another table. A command is
/// one where a flag follows its name.
fn with_flags(remedy: &str, typed: &[Typed<'_>]) -> String {
    let mut pieces = remedy.split("walrelay ");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        text.push_str("walrelay ");
        let named = TAKES.iter().find_map(|(command, takes)| Some((command, takes, piece.strip_prefix(command)?)));
        let Some((command, takes, rest)) = named.filter(|(.., rest)| rest.starts_with(" --")) else {
            text.push_str(piece);
            continue;
        };
        let own = rest.split(['`', ',', ';']).next().unwrap_or_default();
        let missing = typed.iter().filter(|(flag, _)| takes.contains(flag) && !own.contains(&format!(" --{flag} ")));
        let flags: String = missing.map(|(flag, value)| format!(" --{flag} {}", shell_word(value))).collect();
        text.push_str(&format!("{command}{flags}{rest}"));
    }
    text
}

async fn done(command: &Command) -> Outcome {
    match command {
        Command::Run(args) => run(args).await,
        Command::Setup(args) => setup::setup(args).await,
        Command::Teardown(args) => teardown::teardown(args).await,
        Command::Status(args) => status::status(args).await,
        Command::Cleanup(args) => cleanup::cleanup(args).await,
        Command::Verify(args) => verify::verify(args).await,
        Command::Replay(args) => Box::pin(replay::replay(args)).await,
        Command::DeadLetters(command) => Box::pin(command.run()).await,
        Command::Parked(command) => Box::pin(command.run()).await,
        Command::Config(ConfigCommand::Check(args)) => check::check(args).await,
        Command::Config(ConfigCommand::Init(args)) => init::init(args).await,
        Command::Config(ConfigCommand::Import(args)) => import::import(args),
        Command::Demo(options) => Ok(demo::run(options).await?),
    }
}

async fn run(args: &RunArgs) -> Outcome {
    let loaded = Loaded::new(&flags(&args.settings), args.settings.relay.common.config.as_deref())?;
    let config = loaded.config(args.adopt_slot)?;
    logging::init(config.process.log_json, &config.process.log_filter)?;
    for warning in loaded.warnings(&config) {
        tracing::warn!("{warning}");
    }
    let stop = on_signals()?;
    let telemetry = Telemetry::new(config.process.ready_within);
    let pages = match config.process.http {
        Some(addr) => Some(http::bind(addr).await?),
        None => None,
    };
    let relay = relay::run(config, telemetry.clone(), stop);
    match pages {
        None => relay.await?,
        Some(listener) => {
            let serve = http::serve_bound(listener, telemetry.metrics, telemetry.health, std::future::pending());
            tokio::select! {
                ended = Box::pin(relay) => ended?,
                ended = serve => ended?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn the_next_command_has_the_flags_of_this_one() {
        let remedy = "`walrelay setup --slot a`, then walrelay run --slot a --adopt-slot; walrelay status is no hint";
        assert_eq!(
            with_flags(remedy, &[("config", "my file.toml"), ("slot", "a")]),
            "`walrelay setup --config 'my file.toml' --slot a`, then walrelay run --config 'my file.toml' --slot a \
             --adopt-slot; walrelay status is no hint"
        );
        let remedy = "`walrelay setup --create-table` makes one, or `walrelay setup --slot a --table 'b' --mode poll`, or \
                      walrelay teardown --slot a --force, walrelay verify";
        assert_eq!(
            with_flags(remedy, &[("slot", "a"), ("publication", "p"), ("table", "s.\"T\"")]),
            "`walrelay setup --slot a --publication p --table 's.\"T\"' --create-table` makes one, or `walrelay setup \
             --publication p --slot a --table 'b' --mode poll`, or walrelay teardown --publication p --slot a --force, \
             walrelay verify"
        );
    }

    #[test]
    fn a_url_is_repeated_unless_it_has_a_password() {
        let typed_in = |url: &str| {
            let line = ["walrelay", "status", "--slot", "a", "--database-url", url];
            let command = Cli::try_parse_from(line).unwrap().command;
            typed(&command).iter().any(|(flag, _)| *flag == "database-url")
        };
        assert!(typed_in("postgres://me@db/shop"));
        assert!(!typed_in("postgres://me:canary@db/shop") && !typed_in("host=db password=canary"));
    }
}
