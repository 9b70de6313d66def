//! `walrelay run`, and who does each of the other commands.

use crate::cli::load::Loaded;
use crate::cli::output::Outcome;
use crate::cli::{Command, ConfigCommand, RunArgs, check, check_config, import, init, setup, status, teardown};
use crate::demo;
use crate::relay;
use crate::relay::stop::on_signals;
use crate::telemetry::{Telemetry, http, logging};

/// Does `command`.
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
