//! The spans of batches, sent to an OpenTelemetry collector by OTLP/HTTP. Collectors scrape the metrics from `/metrics`.
//!
//! One task sends the spans that [`Spans`] queues, every `otel.interval`. Nobody waits for the task, and it has no thread.
//! Without a collector, spans are dropped and counted.

mod client;
pub(crate) mod span;

use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use self::client::{Client, Failure};
use self::span::{QUEUE_SPANS, Spans, text};
use super::Telemetry;
use crate::config::OtelConfig;
use walrelay_core::config::SlotName;
use walrelay_core::error::Result;

/// How long the end of the process waits for the last request.
const LAST_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Exporter {
    task: JoinHandle<()>,
    /// Dropped when the task is to send the rest and end.
    stop: oneshot::Sender<()>,
}

impl Exporter {
    /// Starts the task, and lets `telemetry` take spans.
    /// Errors: [`Kind::Config`](walrelay_core::error::Kind::Config) where TLS cannot be set up.
    pub(crate) fn start(config: &OtelConfig, slot: &SlotName, telemetry: &mut Telemetry) -> Result<Exporter> {
        let (queue, spans) = Spans::new(slot, &telemetry.metrics.dropped_spans);
        telemetry.spans = Some(queue);
        let (stop, stopped) = oneshot::channel();
        let export = Export {
            client: Client::new(config)?,
            resource: resource(config, slot),
            dropped_spans: telemetry.metrics.dropped_spans.clone(),
            spans,
            waiting: Vec::new(),
            is_failing: false,
        };
        let task = tokio::spawn(export.run(config.interval, stopped));
        tracing::info!(event = "otel_started", endpoint = %config.endpoint, "spans are sent to OpenTelemetry");
        Ok(Exporter { task, stop })
    }

    /// Sends what is left, within [`LAST_TIMEOUT`].
    pub(crate) async fn finish(self) {
        drop(self.stop);
        if tokio::time::timeout(LAST_TIMEOUT, self.task).await.is_err() {
            tracing::debug!("the last spans may not have reached OpenTelemetry");
        }
    }
}

fn resource(config: &OtelConfig, slot: &SlotName) -> Resource {
    let mut attributes = config.attributes.clone();
    for (name, value) in [
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        // Two relays of a slot count apart.
        ("service.instance.id", format!("{:032x}", fastrand::u128(..))),
        ("walrelay.slot", slot.to_string()),
    ] {
        attributes.entry(name.to_owned()).or_insert(value);
    }
    let attributes = attributes.into_iter().map(|(name, value)| text(&name, value)).collect();
    Resource { attributes, ..Resource::default() }
}

struct Export {
    client: Client,
    resource: Resource,
    dropped_spans: Counter,
    spans: mpsc::Receiver<Span>,
    /// Spans that the collector does not have.
    waiting: Vec<Span>,
    /// Whether the last request failed, which was logged.
    is_failing: bool,
}

impl Export {
    async fn run(mut self, interval: Duration, mut stopped: oneshot::Receiver<()>) {
        let mut tick = tokio::time::interval(interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let room = QUEUE_SPANS.saturating_sub(self.waiting.len());
            tokio::select! {
                biased;
                _ended = &mut stopped => break,
                _ = tick.tick() => {}
                _ = self.spans.recv_many(&mut self.waiting, room), if room > 0 => {
                    if self.is_failing || self.waiting.len() < QUEUE_SPANS / 2 {
                        continue;
                    }
                }
            }
            self.export().await;
        }
        self.waiting.extend(std::iter::from_fn(|| self.spans.try_recv().ok()));
        self.export().await;
    }

    /// Sends the spans that wait, and says where that begins or ceases to fail.
    async fn export(&mut self) {
        match (self.export_spans().await, self.is_failing) {
            (Ok(()), false) => {}
            (Ok(()), true) => {
                let dropped_spans = self.dropped_spans.get();
                tracing::info!(event = "otel_reached", dropped_spans, "spans reach OpenTelemetry again");
                self.is_failing = false;
            }
            (Err(Failure { cause, .. }), false) => {
                let fix = "check otel.endpoint, otel.headers and the collector";
                tracing::warn!(
                    event = "otel_failed",
                    error = cause,
                    fix,
                    "spans do not reach OpenTelemetry; events are relayed all the same"
                );
                self.is_failing = true;
            }
            (Err(Failure { cause, .. }), true) => tracing::debug!(error = cause, "OpenTelemetry is still not reached"),
        }
    }

    async fn export_spans(&mut self) -> Result<(), Failure> {
        // Where spans were refused, a request without any shows whether they still are.
        if self.waiting.is_empty() && !self.is_failing {
            return Ok(());
        }
        let spans = self.waiting.clone();
        let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans, ..ScopeSpans::default() }];
        let resource = Some(self.resource.clone());
        let resource_spans = vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }];
        let sent = self.client.post("/v1/traces", &ExportTraceServiceRequest { resource_spans }).await;
        if sent.as_ref().is_err_and(|failure| failure.is_final) {
            self.dropped_spans.inc_by(self.waiting.len() as u64);
        }
        if sent.as_ref().err().is_none_or(|failure| failure.is_final) {
            self.waiting.clear();
        }
        sent
    }
}

fn scope() -> InstrumentationScope {
    let (name, version) = ("walrelay".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    InstrumentationScope { name, version, ..InstrumentationScope::default() }
}

#[cfg(test)]
mod tests;
