use std::sync::{Arc, Mutex};

use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use prost::Message as _;
use tokio::net::TcpListener;

use super::span::integer;
use super::*;

/// A collector that answers as it is told to.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Received>>);

#[derive(Default)]
struct Received {
    status: StatusCode,
    requests: usize,
    spans: Vec<Span>,
}

impl Collector {
    async fn start() -> (Collector, OtelConfig) {
        let collector = Collector::default();
        let router = axum::Router::new().fallback(take).with_state(collector.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}/base", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(router.clone());
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        let (headers, interval) = (HeaderMap::new(), Duration::from_millis(20));
        (collector, OtelConfig { endpoint, headers, attributes: [].into(), interval })
    }

    fn with<T>(&self, look: impl FnOnce(&mut Received) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    /// Waits until what was received is as `fits` says.
    async fn until(&self, fits: impl Fn(&Received) -> bool) {
        let arrived = async {
            while !self.with(|received| fits(received)) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), arrived).await.expect("it did not arrive");
    }
}

async fn take(State(collector): State<Collector>, request: Request) -> Response {
    let is_spans = request.uri().path() == "/base/v1/traces";
    let body: Bytes = to_bytes(request.into_body(), 1 << 20).await.unwrap();
    collector.with(|received| {
        received.requests += 1;
        if received.status == StatusCode::OK && is_spans {
            let request = ExportTraceServiceRequest::decode(body).unwrap();
            received.spans.extend(request.resource_spans[0].scope_spans[0].spans.clone());
        }
        received.status.into_response()
    })
}

fn start(config: &OtelConfig) -> (Telemetry, Spans, Exporter) {
    let mut telemetry = Telemetry::new(Duration::from_secs(60));
    let exporter = Exporter::start(config, &"orders".parse().unwrap(), &mut telemetry).unwrap();
    let spans = telemetry.spans.clone().unwrap();
    (telemetry, spans, exporter)
}

fn batch(events: u64) -> Span {
    Span { attributes: vec![integer("walrelay.events", events)], ..Span::default() }
}

#[tokio::test]
async fn spans_wait_for_a_collector_that_is_away_and_are_counted_where_they_are_dropped() {
    let (collector, config) = Collector::start().await;
    collector.with(|received| received.status = StatusCode::SERVICE_UNAVAILABLE);
    let (telemetry, spans, exporter) = start(&config);
    let dropped = || telemetry.metrics.dropped_spans.get();
    for number in 0..3 * QUEUE_SPANS as u64 {
        spans.push(batch(number));
        tokio::task::yield_now().await;
    }
    assert_eq!(dropped(), QUEUE_SPANS as u64, "a queue, and as many that wait");
    let asked = collector.with(|received| received.requests);
    collector.until(|received| received.requests > asked + 2).await;
    collector.with(|received| received.status = StatusCode::OK);
    collector.until(|received| received.spans.len() == 2 * QUEUE_SPANS).await;

    collector.with(|received| received.status = StatusCode::NOT_FOUND);
    spans.push(batch(1));
    exporter.finish().await;
    assert_eq!(dropped(), QUEUE_SPANS as u64 + 1, "the collector refuses it for good");
}

#[tokio::test]
async fn the_end_waits_a_second_at_most_for_a_collector_that_does_not_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (_, mut config) = Collector::start().await;
    config.endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (_, spans, exporter) = start(&config);
    spans.push(batch(1));
    let began = tokio::time::Instant::now();
    exporter.finish().await;
    assert!(began.elapsed() < LAST_TIMEOUT + Duration::from_secs(1), "{:?}", began.elapsed());
}
