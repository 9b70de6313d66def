//! The spans of delivery batches, sent to an OpenTelemetry collector by OTLP/HTTP. Collectors
//! scrape the metrics from `/metrics`.
//!
//! One task gives the spans that [`Spans`] queues to the SDK's exporter, every `otel.interval`. The
//! exporter repeats a request that may succeed later. Nobody waits for the task, and it has no
//! thread. Spans without room are dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use axum::body::{Body, Bytes};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use hyper::{Request, Response};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::OtelConfig;
use crate::conninfo::RootCert;
use crate::postgres::tls;
use walrelay_core::config::SlotName;
use walrelay_core::error::{Error, Kind, Result, with_causes};
use walrelay_core::publisher::{Batch, EndedBatches};
use walrelay_core::trace::TraceContext;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// From the look-up of the name to the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the end of the process waits for the last request.
const LAST_TIMEOUT: Duration = Duration::from_secs(1);
/// Spans in the queue, and spans of one request at most: a minute of a busy relay.
const QUEUE_SPANS: usize = 512;

/// Takes the spans of the batches of a slot. Clones share one queue.
#[derive(Debug, Clone)]
pub(crate) struct Spans {
    slot: String,
    queue: mpsc::Sender<SpanData>,
    dropped: Counter,
}

impl Spans {
    /// A queue, and its other end. `dropped` counts spans for which there was no room.
    pub(crate) fn new(slot: impl ToString, dropped: &Counter) -> (Spans, mpsc::Receiver<SpanData>) {
        let (queue, spans) = mpsc::channel(QUEUE_SPANS);
        (
            Spans {
                slot: slot.to_string(),
                queue,
                dropped: dropped.clone(),
            },
            spans,
        )
    }

    /// Takes ended batches, and queues their spans.
    pub(crate) fn taker(&self) -> EndedBatches {
        let spans = self.clone();
        Arc::new(move |batch| spans.push(batch))
    }

    /// Queues the span of `batch`; or drops and counts it. Never waits.
    fn push(&self, batch: Batch) {
        let integer = |name, value| KeyValue::new(name, i64::try_from(value).unwrap_or(i64::MAX));
        let milestone = |name: &'static str, us| Event::new(name, time(us), vec![], 0);
        let acked = batch.acked_us.map(|us| milestone("acked", us));
        let ended = batch.ended_by.map(|name| milestone(name, batch.ended_us));
        let mut events = SpanEvents::default();
        events.events = acked.into_iter().chain(ended).collect();
        let mut links = SpanLinks::default();
        links.links = batch.links.traces.into_iter().map(link).collect();
        links.dropped_count = batch.links.left_out;
        let trace_id = TraceId::from(fastrand::u128(1..));
        let span_id = SpanId::from(fastrand::u64(1..));
        let span = SpanData {
            span_context: SpanContext::new(
                trace_id,
                span_id,
                TraceFlags::SAMPLED,
                false,
                TraceState::NONE,
            ),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Producer,
            name: format!("deliver {}", self.slot).into(),
            start_time: time(batch.began_us),
            end_time: time(batch.ended_us),
            attributes: vec![
                KeyValue::new("walrelay.slot", self.slot.clone()),
                integer("walrelay.events", batch.events),
                integer("walrelay.bytes", batch.bytes),
                integer("walrelay.failed_events", batch.failures.count),
                KeyValue::new("walrelay.first_lsn", batch.first_lsn.to_string()),
                KeyValue::new("walrelay.last_lsn", batch.last_lsn.to_string()),
            ],
            dropped_attributes_count: 0,
            events,
            links,
            status: batch.failures.first.map_or(Status::Unset, Status::error),
            instrumentation_scope: InstrumentationScope::builder("walrelay")
                .with_version(VERSION)
                .build(),
        };
        if self.queue.try_send(span).is_err() {
            self.dropped.inc();
        }
    }
}

/// Of microseconds since the Unix epoch.
fn time(us: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(us).unwrap_or_default())
}

/// The other end of a link is in another process.
fn link(to: TraceContext) -> Link {
    let flags = TraceFlags::new(to.flags);
    Link::with_context(SpanContext::new(
        to.trace_id.into(),
        to.span_id.into(),
        flags,
        true,
        TraceState::NONE,
    ))
}

#[derive(Debug)]
pub(crate) struct Exporter {
    /// Where spans are queued.
    pub(crate) spans: Spans,
    task: JoinHandle<()>,
    /// Tells the task to send the rest and end.
    stop: CancellationToken,
}

impl Exporter {
    /// Starts the task. `dropped` counts the spans that the collector does not get.
    /// Errors: [`Kind::Config`] where TLS cannot be set up.
    pub(crate) fn start(
        config: &OtelConfig,
        slot: &SlotName,
        dropped: &Counter,
    ) -> Result<Exporter> {
        let (spans, queued) = Spans::new(slot, dropped);
        let stop = CancellationToken::new();
        let exporter = exporter(config, slot, dropped)?;
        let task = tokio::spawn(export(
            exporter,
            queued,
            config.interval,
            dropped.clone(),
            stop.clone(),
        ));
        tracing::info!(event = "otel_started", endpoint = %config.endpoint, "spans are sent to \
            OpenTelemetry");
        Ok(Exporter { spans, task, stop })
    }

    /// Sends what is left, within [`LAST_TIMEOUT`].
    pub(crate) async fn finish(self) {
        self.stop.cancel();
        if tokio::time::timeout(LAST_TIMEOUT, self.task).await.is_err() {
            tracing::debug!("the last spans may not have reached OpenTelemetry");
        }
    }
}

fn exporter(config: &OtelConfig, slot: &SlotName, dropped: &Counter) -> Result<SpanExporter> {
    // A request that may succeed later is repeated until it does.
    let policy = RetryPolicy::default()
        .with_max_retries(usize::MAX)
        .with_max_jitter(Duration::ZERO);
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Client::new(config, dropped)?)
        .with_endpoint(format!(
            "{}/v1/traces",
            config.endpoint.to_string().trim_end_matches('/')
        ))
        .with_timeout(Duration::MAX)
        .with_retry_policy(
            policy
                .with_initial_delay(config.interval)
                .with_max_delay(config.interval),
        )
        .build()
        .map_err(|error| Error::new(Kind::Config, error).about("otel.endpoint"))?;
    let own = [
        KeyValue::new("service.version", VERSION),
        // Two relays of a slot count apart.
        KeyValue::new(
            "service.instance.id",
            format!("{:032x}", fastrand::u128(..)),
        ),
        KeyValue::new("walrelay.slot", slot.to_string()),
    ];
    let given = config
        .attributes
        .iter()
        .map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
    exporter.set_resource(
        &Resource::builder_empty()
            .with_attributes(own)
            .with_attributes(given)
            .build(),
    );
    Ok(exporter)
}

async fn export(
    exporter: SpanExporter,
    mut spans: mpsc::Receiver<SpanData>,
    interval: Duration,
    dropped: Counter,
    stop: CancellationToken,
) {
    let mut batch = Vec::new();
    while !stop.is_cancelled() && !spans.is_closed() {
        let fill = async {
            while batch.len() < QUEUE_SPANS
                && let Some(span) = spans.recv().await
            {
                batch.push(span);
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = fill => {}
            () = tokio::time::sleep(interval) => {}
        }
        if batch.is_empty() {
            continue;
        }
        tokio::select! {
            sent = exporter.export(batch.clone()) => {
                dropped.inc_by(if sent.is_err() { batch.len() as u64 } else { 0 });
                batch.clear();
            }
            // A request that is under way may still be answered.
            () = async { stop.cancelled().await; tokio::time::sleep(LAST_TIMEOUT / 2).await } => {}
        }
    }
    batch.extend(std::iter::from_fn(|| spans.try_recv().ok()));
    if !batch.is_empty() && exporter.export(batch).await.is_err() {
        tracing::debug!("OpenTelemetry refuses the last spans");
    }
}

/// Sends the exporter's requests, and says where they begin or cease to fail.
#[derive(Debug)]
struct Client {
    http: legacy::Client<HttpsConnector<HttpConnector>, Body>,
    headers: HeaderMap,
    is_failing: AtomicBool,
    dropped: Counter,
}

impl Client {
    fn new(config: &OtelConfig, dropped: &Counter) -> Result<Client> {
        let is_https = config.endpoint.scheme_str() == Some("https");
        let remedy = "install ca-certificates, or name a file with the collector's authority in \
                      SSL_CERT_FILE";
        let tls = tls::of_server(RootCert::System, is_https)
            .map_err(|error| error.about("otel.endpoint").remedy(remedy))?;
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .build();
        // Requests are rare, and a connection that was closed meanwhile would fail one.
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build(https);
        let mut headers = config.headers.clone();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/x-protobuf"),
        );
        headers.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("walrelay/", env!("CARGO_PKG_VERSION"))),
        );
        Ok(Client {
            http,
            headers,
            is_failing: AtomicBool::new(false),
            dropped: dropped.clone(),
        })
    }

    /// Logs where requests begin or cease to fail.
    fn tell(&self, failure: Option<&str>) {
        let was_failing = self.is_failing.swap(failure.is_some(), Ordering::Relaxed);
        match failure {
            Some(error) if was_failing => {
                tracing::debug!(error, "OpenTelemetry is still not reached")
            }
            Some(error) => {
                let fix = "check otel.endpoint, otel.headers and the collector";
                tracing::warn!(
                    event = "otel_failed",
                    error,
                    fix,
                    "spans do not reach OpenTelemetry; events are relayed all the same"
                );
            }
            None if was_failing => {
                let dropped_spans = self.dropped.get();
                tracing::info!(
                    event = "otel_reached",
                    dropped_spans,
                    "spans reach OpenTelemetry again"
                );
            }
            None => {}
        }
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut request = request.map(Body::from);
        // The exporter takes headers from variables also where `otel.headers` is set.
        request.headers_mut().clone_from(&self.headers);
        let answer = match tokio::time::timeout(REQUEST_TIMEOUT, self.http.request(request)).await {
            Ok(answer) => answer.map_err(|error| with_causes(&error)),
            Err(_) => Err("no answer in time".to_owned()),
        };
        match &answer {
            Ok(answer) if answer.status().is_success() => self.tell(None),
            Ok(answer) => self.tell(Some(&format!(
                "/v1/traces is answered with {}",
                answer.status()
            ))),
            Err(cause) => self.tell(Some(cause)),
        }
        // Nobody needs the body.
        Ok(answer?.map(|_| Bytes::new()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// An exporter to a collector at this listener, with one span in the queue, and what counts the
    /// dropped ones.
    fn start(listener: &TcpListener) -> (Exporter, Counter) {
        let endpoint = format!("http://{}/base", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let interval = Duration::from_millis(20);
        let config = OtelConfig {
            endpoint,
            headers: HeaderMap::new(),
            attributes: [].into(),
            interval,
        };
        let dropped = Counter::default();
        let exporter = Exporter::start(&config, &"orders".parse().unwrap(), &dropped).unwrap();
        push(&exporter);
        (exporter, dropped)
    }

    fn push(exporter: &Exporter) {
        exporter.spans.push(walrelay_core::testing::batch());
    }

    async fn listener() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").await.unwrap()
    }

    /// Answers one request, and gives it.
    async fn answer(listener: &TcpListener, status: &str) -> Vec<u8> {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 1 << 16];
        let bytes = stream.read(&mut request).await.unwrap();
        request.truncate(bytes);
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.unwrap();
        request
    }

    #[tokio::test]
    async fn a_request_is_sent_again_unless_its_answer_is_final() {
        for status in [
            "429 Too Many Requests",
            "502 Bad Gateway",
            "503 Service Unavailable",
            "504 Gateway Timeout",
        ] {
            let listener = listener().await;
            let (exporter, dropped) = start(&listener);
            let first = answer(&listener, status).await;
            assert!(first.starts_with(b"POST /base/v1/traces "));
            assert_eq!(first, answer(&listener, "200 OK").await, "{status}");
            exporter.finish().await;
            assert_eq!(dropped.get(), 0, "{status}");
        }
        for status in ["404 Not Found", "500 Internal Server Error"] {
            let listener = listener().await;
            let (exporter, dropped) = start(&listener);
            answer(&listener, status).await;
            while dropped.get() == 0 {
                tokio::task::yield_now().await;
            }
            push(&exporter);
            answer(&listener, "200 OK").await;
            exporter.finish().await;
            assert_eq!(dropped.get(), 1, "{status}");
        }
    }

    #[tokio::test]
    async fn a_bounded_number_of_spans_waits_for_a_collector_that_is_away() {
        let (exporter, dropped) = start(&listener().await);
        (1..3 * QUEUE_SPANS).for_each(|_| push(&exporter));
        assert_eq!(dropped.get(), 2 * QUEUE_SPANS as u64);
    }

    #[tokio::test]
    async fn the_end_waits_a_second_at_most_for_a_collector_that_does_not_answer() {
        let listener = listener().await;
        let (exporter, _dropped) = start(&listener);
        let began = Instant::now();
        exporter.finish().await;
        assert!(
            began.elapsed() < LAST_TIMEOUT + Duration::from_secs(1),
            "{:?}",
            began.elapsed()
        );
    }
}
