//! `walrelay run`, and who does each of the other commands.

use clap::{ArgMatches, CommandFactory as _};

use crate::cli::load::Loaded;
use crate::cli::output::{Failure, Outcome, shell_word};
use crate::cli::{
    Cli, Command, ConfigCommand, RunArgs, check, cleanup, flags, import, init, replay, setup, status, teardown, verify,
};
use crate::config::layers::holds_password;
use crate::demo;
use crate::error::{Flag, NextCommand};
use crate::relay;
use crate::relay::stop::on_signals;
use crate::telemetry::{Telemetry, http, logging};

/// Does `command`. The commands in an error's remedy get those of `flags` that they take.
///
/// # Errors
/// What the command says.
pub async fn dispatch(command: &Command, flags: &[Flag]) -> Outcome {
    done(command).await.map_err(|failure| match failure {
        Failure::Error(error) => Failure::Error(error.with_commands(|next| with_flags(next, flags))),
        Failure::PipeClosed => Failure::PipeClosed,
    })
}

/// The flags among what was typed that say which relay is meant. What the environment says, the next command finds by
/// itself.
pub fn relay_flags(typed: &ArgMatches) -> Vec<Flag> {
    let mut command = typed;
    while let Some((_, nested)) = command.subcommand() {
        command = nested;
    }
    let value_of = |name: &str| {
        let id = name.replace('-', "_");
        command.try_get_raw(&id).ok()??.next()?.to_str()
    };
    // What is written with % may be a password by another name.
    let shows_password =
        |name: &str, value: &str| name == "database-url" && (holds_password(value) || value.contains('%'));
    let all = ["config", "database-url", "slot", "publication", "table"].into_iter();
    all.filter_map(|name| {
        let value = value_of(name).filter(|value| !shows_password(name, value))?;
        Some(Flag { name, value: Some(shell_word(value)) })
    })
    .collect()
}

/// `next` with those of `flags` that it takes: without them it would be about another relay.
fn with_flags(next: NextCommand, flags: &[Flag]) -> NextCommand {
    let mut root = Cli::command();
    root.build();
    let found = next.name().split(' ').try_fold(&root, |command, name| command.find_subcommand(name));
    let takes = |flag: &Flag| {
        found.is_some_and(|command| command.get_arguments().any(|argument| argument.get_long() == Some(flag.name)))
    };
    next.with_missing(flags.iter().filter(|flag| takes(flag)).cloned())
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
            let serve = http::serve(listener, telemetry);
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
    use super::*;

    fn flags_of(line: &[&str]) -> Vec<Flag> {
        relay_flags(&Cli::command().try_get_matches_from(line).unwrap())
    }

    #[test]
    fn the_next_command_has_the_flags_of_this_one() {
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
                "walrelay setup --config 'my file.toml' --slot a --publication p --table 's.\"T\"' --create-table",
            ),
            (
                NextCommand::new("setup").option("slot", "b").option("table", "c"),
                "walrelay setup --config 'my file.toml' --publication p --slot b --table c",
            ),
            (
                NextCommand::new("teardown").option("slot", "a").flag("force"),
                "walrelay teardown --config 'my file.toml' --publication p --slot a --force",
            ),
            (NextCommand::new("parked list"), "walrelay parked list --config 'my file.toml' --slot a"),
            (NextCommand::new("dead-letters list"), "walrelay dead-letters list --config 'my file.toml' --slot a"),
        ] {
            assert_eq!(with_flags(next, &flags).to_string(), expected);
        }
        assert_eq!(
            with_flags(NextCommand::new("status"), &flags_of(&["walrelay", "demo"])).to_string(),
            "walrelay status"
        );
    }

    #[test]
    fn a_url_is_repeated_unless_it_has_a_password() {
        let repeats = |url: &str| !flags_of(&["walrelay", "parked", "list", "--database-url", url]).is_empty();
        assert!(repeats("postgres://me@db/shop"));
        assert!(!repeats("postgres://me:canary@db/shop") && !repeats("host=db password=canary"));
        assert!(!repeats("postgres://me:c%61nary@db/shop"));
    }
}
