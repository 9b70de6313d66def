//! `walrelay run`, and who does each of the other commands.

use crate::cli::load::Loaded;
use crate::cli::output::Outcome;
use crate::cli::{Command, RunArgs, check_config, setup, status, teardown};
use crate::config::{Config, ProcessConfig};
use crate::error::{Error, Kind, Result};

/// Does `command`. `demo` is not among them: it stands below this module, and `main` hands it over.
///
/// # Errors
/// What the command says.
pub async fn dispatch(command: &Command) -> Outcome {
    match command {
        Command::Run(args) => run(args).await,
        Command::Setup(args) => setup::setup(args).await,
        Command::Teardown(args) => teardown::teardown(args).await,
        Command::Status(args) => status::status(args).await,
        Command::CheckConfig(args) => check_config::check_config(args),
        Command::Demo(_) => Err(Error::new(Kind::Bug, "demo was given to the wrong place").into()),
    }
}

async fn run(args: &RunArgs) -> Outcome {
    let loaded = Loaded::new(&args.settings.flags(), args.settings.common.config.as_deref())?;
    let config = loaded.config(args.adopt_slot)?;
    start_logging(&config.process)?;
    for warning in loaded.warnings(&config) {
        tracing::warn!("{warning}");
    }
    Ok(relay(config).await?)
}

// TEMPORARY until the branches meet: becomes `telemetry::logging::init(process.log_json, &process.log_filter)`.
fn start_logging(_process: &ProcessConfig) -> Result<()> {
    Ok(())
}

// TEMPORARY until the branches meet: becomes `relay::run(config).await`.
async fn relay(_config: Config) -> Result<()> {
    std::future::ready(Err(Error::new(Kind::Bug, "the relay is not linked into this build"))).await
}
