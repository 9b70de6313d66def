//! `walrelay run`, and who does each of the other commands.

use std::path::Path;

use crate::cli::load::Loaded;
use crate::cli::output::{Failure, Outcome, shell_word};
use crate::cli::{
    Command, ConfigCommand, RunArgs, check, check_config, cleanup, import, init, replay, setup, status, teardown,
    verify,
};
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
    let Some(file) = config_of(command) else { return outcome };
    outcome.map_err(|failure| match failure {
        Failure::Error(error) => match error.what_to_do().map(|remedy| with_config(remedy, file)) {
            Some(remedy) => Failure::Error(error.remedy(remedy)),
            None => Failure::Error(error),
        },
        Failure::PipeClosed => Failure::PipeClosed,
    })
}

/// The file that was named by a flag, which the next command does not know of.
fn config_of(command: &Command) -> Option<&Path> {
    match command {
        Command::Run(args) => args.settings.common.config.as_deref(),
        Command::Setup(args) => args.common.config.as_deref(),
        Command::Teardown(args) => args.common.config.as_deref(),
        Command::Status(args) => args.common.config.as_deref(),
        Command::Cleanup(args) => args.common.config.as_deref(),
        Command::Verify(args) => args.settings.common.config.as_deref(),
        Command::Replay(args) => args.settings.common.config.as_deref(),
        Command::CheckConfig(args) => args.settings.common.config.as_deref(),
        Command::Config(ConfigCommand::Check(args)) => args.settings.common.config.as_deref(),
        Command::Config(ConfigCommand::Init(_) | ConfigCommand::Import(_)) | Command::Demo(_) => None,
    }
}

/// The commands in `remedy` with the file this one has: without it they would be about another table.
fn with_config(remedy: &str, file: &Path) -> String {
    let file = shell_word(&file.display().to_string());
    ["run", "setup", "teardown", "status"].iter().fold(remedy.to_owned(), |remedy, command| {
        remedy.replace(&format!("walrelay {command} --slot "), &format!("walrelay {command} --config {file} --slot "))
    })
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
        Command::CheckConfig(args) => check_config::check_config(args),
        Command::Config(ConfigCommand::Check(args)) => check::check(args).await,
        Command::Config(ConfigCommand::Init(args)) => init::init(args).await,
        Command::Config(ConfigCommand::Import(args)) => import::import(args),
        Command::Demo(options) => Ok(demo::run(options).await?),
    }
}

async fn run(args: &RunArgs) -> Outcome {
    let loaded = Loaded::new(&args.settings.flags(), args.settings.common.config.as_deref())?;
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
    use super::*;

    #[test]
    fn the_next_command_has_the_file_of_this_one() {
        let remedy = "`walrelay setup --slot a`, then walrelay run --slot a --adopt-slot; walrelay status is no hint";
        assert_eq!(
            with_config(remedy, Path::new("my file.toml")),
            "`walrelay setup --config 'my file.toml' --slot a`, then walrelay run --config 'my file.toml' --slot a \
             --adopt-slot; walrelay status is no hint"
        );
    }
}
