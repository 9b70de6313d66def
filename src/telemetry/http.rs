//! Metrics, health and the status page over HTTP: read-only, without payloads, secrets and settings of connections.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use clap::ValueEnum as _;
use hyper::Request;
use hyper::server::conn::http1;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::page::{ClosesAt, Page};
use super::{IntakeClosed, Telemetry};
use crate::config::SlotName;
use crate::error::{Error, Kind, Result};

/// Rest after a connection that could not be accepted, as where there are no file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of a request's head. No body is read.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// The limits of a client: a connection that cannot be held open gets a few kilobytes, a few seconds and one request.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Connections at a time; further ones wait in the listen queue.
    connections: usize,
    /// From accept to close, however slowly either side goes.
    lifetime: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { connections: 64, lifetime: Duration::from_secs(10) }
    }
}

/// The limits of the answer to [`ask_intake`].
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
const ANSWER_BYTES_MAX: usize = 16 << 20;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Takes the address, so that a command can fail before anything else is started.
///
/// # Errors
/// [`Kind::Config`] where `addr` cannot be bound.
pub async fn bind(addr: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(addr).await.map_err(|error| {
        Error::new(Kind::Config, format!("metrics and health cannot be served on {addr}: {error}"))
            .remedy("choose another address for http, or leave it out to serve neither")
    })
}

/// Serves metrics, health and the status page of a relay on what [`bind`] gave, until dropped.
pub(crate) async fn serve(listener: TcpListener, telemetry: Telemetry, page: &Arc<Page>) -> Infallible {
    serve_within(Limits::default(), listener, telemetry, page).await
}

/// Serves metrics and health on what [`bind`] gave, until dropped: for a process that is no relay.
pub(crate) async fn serve_metrics(listener: TcpListener, telemetry: Telemetry) -> Infallible {
    let routes =
        metrics_and_health(telemetry).fallback(|| async { not_found("there are /metrics, /healthz and /readyz") });
    accept(Limits::default(), listener, routes).await
}

async fn serve_within(limits: Limits, listener: TcpListener, telemetry: Telemetry, page: &Arc<Page>) -> Infallible {
    let routes = metrics_and_health(telemetry).merge(page.routes());
    let routes = routes.fallback(|| async { not_found("there are /, /metrics, /healthz and /readyz") });
    tokio::select! {
        never = accept(limits, listener, routes) => never,
        never = page.keep() => never,
    }
}

async fn accept(limits: Limits, listener: TcpListener, routes: Router) -> Infallible {
    let routes = routes.layer(axum::middleware::map_response(guarded));
    let free = Arc::new(Semaphore::new(limits.connections));
    loop {
        // The semaphore is never closed.
        let permit = Arc::clone(&free).acquire_owned().await.ok();
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection for metrics and health was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let closes_at = Instant::now() + limits.lifetime;
        let pages = routes.clone().layer(Extension(ClosesAt(closes_at)));
        let connection = http1::Builder::new()
            .keep_alive(false)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(pages));
        tokio::spawn(async move {
            if let Ok(Err(error)) = tokio::time::timeout_at(closes_at.into(), connection).await {
                tracing::debug!(%error, "a connection for metrics and health failed");
            }
            drop(permit);
        });
    }
}

fn metrics_and_health(telemetry: Telemetry) -> Router {
    Router::new()
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .with_state(telemetry)
}

/// Nothing cached, nothing sniffed or framed. A page that loads something has a policy of its own.
async fn guarded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"));
    response
}

async fn alive() -> &'static str {
    "alive\n"
}

fn not_found(pages: &str) -> (StatusCode, String) {
    (StatusCode::NOT_FOUND, format!("not found; {pages}\n"))
}

async fn metrics_text(State(telemetry): State<Telemetry>) -> Response {
    match telemetry.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn ready(State(telemetry): State<Telemetry>) -> Response {
    let (status, line) = match telemetry.health.not_ready() {
        None => (StatusCode::OK, serde_json::json!({"ready": true})),
        Some(reason) => {
            let line = serde_json::json!({"ready": false, "reason": reason.code(), "detail": reason.to_string()});
            (StatusCode::SERVICE_UNAVAILABLE, line)
        }
    };
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{line}\n")).into_response()
}

/// The reason for which the relay that serves `/metrics` at `addr` accepts no event; `None` if intake is open.
///
/// # Errors
/// The reason why that is not known: nobody answers there, or not the relay that is at work on `slot`.
pub(crate) async fn ask_intake(addr: SocketAddr, slot: &SlotName) -> Result<Option<IntakeClosed>, String> {
    let asked = async {
        let request = Request::get(format!("http://{addr}/metrics")).body(Body::empty())?;
        let answer = Client::builder(TokioExecutor::new()).build_http().request(request).await?;
        anyhow::Ok(to_bytes(Body::new(answer.into_body()), ANSWER_BYTES_MAX).await?)
    };
    let answer = tokio::time::timeout(ANSWER_WITHIN, asked).await;
    let answer = answer.map_err(|_| format!("no answer from {addr} in {} s", ANSWER_WITHIN.as_secs()))?;
    let answer = answer.map_err(|error| format!("no answer from {addr}: {error:#}"))?;
    let text = String::from_utf8_lossy(&answer);
    if !text.contains(&format!("walrelay_relay_info{{slot=\"{slot}\"")) || !text.contains("walrelay_standing_by 0\n") {
        return Err(format!("{addr} is not the address of the relay at work on slot {slot}"));
    }
    let is_it = |why: &&IntakeClosed| text.contains(&format!("{} 1\n", why.sample()));
    Ok(IntakeClosed::value_variants().iter().find(is_it).copied())
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::config::{SourceConfig, StreamConfig};
    use crate::conninfo::ConnInfo;
    use crate::telemetry::Side;
    use crate::telemetry::health::ToDo;

    struct Server {
        addr: SocketAddr,
        telemetry: Telemetry,
    }

    async fn start(limits: Limits) -> Server {
        let telemetry = Telemetry::new(Duration::from_secs(30));
        let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (served, page) = (telemetry.clone(), Page::new(telemetry.clone()));
        tokio::spawn(async move { serve_within(limits, listener, served, &page).await });
        Server { addr, telemetry }
    }

    async fn exchange(addr: SocketAddr, request: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    async fn ask(addr: SocketAddr, method: &str, path: &str) -> (u16, String) {
        let answer = exchange(addr, &format!("{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await.unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    #[tokio::test]
    async fn the_pages_answer_and_nothing_else_does() {
        let server = start(Limits::default()).await;
        server.telemetry.metrics.acked_events.inc_by(42);
        for (method, path, status, text) in [
            ("GET", "/metrics", 200, "walrelay_acked_events_total 42\n"),
            ("GET", "/healthz", 200, "alive\n"),
            ("POST", "/metrics", 405, ""),
            ("GET", "/debug/pprof", 404, "there are /, /metrics"),
            ("GET", "/config", 404, "not found"),
            ("GET", "/metrics/", 404, "not found"),
            ("GET", "/..%2f", 404, "not found"),
        ] {
            let answer = ask(server.addr, method, path).await;
            assert!(answer.0 == status && answer.1.contains(text), "{method} {path}: {answer:?}");
        }
        assert_eq!(ask(server.addr, "HEAD", "/metrics").await, (200, String::new()));
    }

    #[tokio::test]
    async fn the_relay_at_work_on_the_slot_says_why_its_intake_is_closed() {
        let server = start(Limits::default()).await;
        let [orders, mail]: [SlotName; 2] = ["orders", "mail"].map(|slot| slot.parse().unwrap());
        let database = ConnInfo::parse(Some("postgres://u@h/d"), &|_| None).unwrap();
        let source = SourceConfig::sample(database, "orders", "p", StreamConfig::default());
        let not_its = Err(format!("{} is not the address of the relay at work on slot orders", server.addr));
        assert_eq!(ask_intake(server.addr, &orders).await, not_its, "it does not know its slot yet");
        server.telemetry.metrics.relays(&source, "at-least-once");
        assert_eq!(ask_intake(server.addr, &orders).await, Ok(None));
        server.telemetry.metrics.intake_closed(Some(IntakeClosed::QueueFull));
        assert_eq!(ask_intake(server.addr, &orders).await, Ok(Some(IntakeClosed::QueueFull)));
        assert!(ask_intake(server.addr, &mail).await.is_err());
        server.telemetry.standing_by(Some("backend pid 7".to_owned()));
        assert_eq!(ask_intake(server.addr, &orders).await, not_its);
        let silent = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let addr = silent.local_addr().unwrap();
        assert_eq!(ask_intake(addr, &orders).await, Err(format!("no answer from {addr} in 1 s")));
        drop(silent);
        assert!(ask_intake(addr, &orders).await.unwrap_err().starts_with(&format!("no answer from {addr}: ")));
    }

    #[tokio::test]
    async fn without_the_page_only_metrics_and_health_answer() {
        let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(serve_metrics(listener, Telemetry::new(Duration::from_secs(30))));
        for path in ["/", "/events"] {
            let not_found = "not found; there are /metrics, /healthz and /readyz\n".to_owned();
            assert_eq!(ask(addr, "GET", path).await, (404, not_found), "{path}");
        }
        let answer = exchange(addr, "GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        assert!(answer.contains("cache-control: no-store\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn readiness_is_a_status_and_one_line_that_says_why() {
        let server = start(Limits::default()).await;
        let (status, line) = ask(server.addr, "GET", "/readyz").await;
        assert_eq!((status, line.lines().count()), (503, 1));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap()["reason"], "starting");
        Side::ALL.into_iter().for_each(|side| server.telemetry.health.connection(side, true));
        server.telemetry.health.report(ToDo::Nothing);
        assert_eq!(ask(server.addr, "GET", "/readyz").await, (200, "{\"ready\":true}\n".to_owned()));
    }

    #[tokio::test]
    async fn a_client_that_dawdles_or_sends_too_much_is_cut_off_and_the_next_one_served() {
        let limits = Limits { connections: 2, lifetime: Duration::from_millis(300) };
        let server = start(limits).await;
        let started = tokio::time::Instant::now();
        let mut slow = Vec::new();
        for _ in 0..limits.connections {
            let mut stream = TcpStream::connect(server.addr).await.unwrap();
            stream.write_all(b"GET /healthz HTTP/1.1\r\nX-Slow: ").await.unwrap();
            slow.push(stream);
        }
        assert_eq!(ask(server.addr, "GET", "/healthz").await.0, 200);
        assert!(started.elapsed() >= limits.lifetime, "the cap on connections did not hold");
        for mut stream in slow {
            let mut rest = Vec::new();
            drop(stream.read_to_end(&mut rest).await);
            assert!(!String::from_utf8_lossy(&rest).contains("alive"));
        }
        let huge = format!("GET /healthz HTTP/1.1\r\nX-Huge: {}\r\n\r\n", "x".repeat(100_000));
        let answer = exchange(server.addr, &huge).await.unwrap_or_default();
        assert!(!answer.contains("alive"), "{answer}");
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_a_configuration_error_with_a_remedy() {
        let server = start(Limits::default()).await;
        let error = bind(server.addr).await.unwrap_err();
        assert!(error.kind() == Kind::Config && error.what_to_do().is_some(), "{error}");
    }
}
