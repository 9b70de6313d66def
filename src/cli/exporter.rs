//! `walrelay exporter`: the metrics of a slot while no relay runs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use clap::Args;
use serde::Serialize;

use crate::cli::config::{self, Common};
use crate::cli::output::Outcome;
use crate::cli::slot_watch::SlotWatch;
use crate::config::{Bus, LogFormat};
use crate::relay::stop::{Stop, on_signals};
use crate::telemetry::{Metrics, Telemetry, http, logging};
use walrelay_core::readiness::Side;

const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

#[derive(Debug, Args, Serialize)]
pub(crate) struct ExporterArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// The outbox table; public.outbox by default
    #[arg(long, value_name = "TABLE")]
    pub table: Option<String>,
    /// The address of metrics and health; a port alone means 127.0.0.1; 127.0.0.1:9464 by default
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub http: Option<String>,
}

pub(super) const HELP: &str = "\
Examples:
  walrelay exporter --slot orders
  walrelay exporter --config walrelay.toml --http 9465

It reads the slot, the parked events and the number of rows every 10 s with one session, and \
writes nothing. It has /metrics, /healthz and /readyz; only a relay has the status page. Run it on \
a host other than the relay's that reaches the server: its metrics stay when the relay ends, and \
have the same names.

Exit codes:
  0   told to stop
  2   the configuration is not valid
  4   the address of http.listen cannot be used";

pub(super) async fn exporter(args: &ExporterArgs) -> Outcome {
    let settings = config::read(args, &args.common.file)?;
    let keys = settings.model();
    logging::init(keys.log.format == LogFormat::Json, &keys.log.filter)?;
    let mut stop = on_signals()?;
    let listener = http::bind(keys.http.listen.unwrap_or(ADDRESS)).await?;
    let telemetry = Telemetry {
        metrics: Metrics::of_slot(),
        ..Telemetry::new(Bus::default(), keys.http.ready_within)
    };
    let source = settings.source()?;
    telemetry.metrics.relays(&source, "");
    // There is no bus here that could be away.
    telemetry.health.connection(Side::Bus, true);
    let mut watch = SlotWatch::new(&source, &settings.outboxes()?, telemetry.clone(), true)?;
    tokio::select! {
        () = stop.at_least(Stop::Drain) => {}
        never = http::serve_metrics(listener, telemetry) => match never {},
        never = watch.keep_looking() => match never {},
    }
    Ok(())
}
