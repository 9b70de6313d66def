//! Metrics, health and the status page over HTTP: read-only, without payloads, secrets and settings
//! of connections.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::{Request as Asked, State};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{BoxError, Extension, Router};
use hyper::Request;
use hyper::server::conn::http1;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray as _};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::doing::remedy;
use super::page::{ClosesAt, Page};
use super::{BUS_BLOCKED, Telemetry, connection_sample, intake_sample};
use walrelay_core::config::SlotName;
use walrelay_core::error::{Error, Kind, Result, with_causes};
use walrelay_core::printable::printable;
use walrelay_core::publisher::IntakeClosed;
use walrelay_core::readiness::Side;

/// Rest after a connection that could not be accepted, as where there are no file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of a request's head. No body is read.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// The limits of a client: a connection that cannot be held open gets a few kilobytes, a few
/// seconds and one request.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Connections at a time. A further one takes the place of another, so that no client keeps a
    /// probe waiting.
    connections: usize,
    /// From accept to the end of the request's head.
    head: Duration,
    /// From accept to close, however slowly either side goes.
    lifetime: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 64,
            head: Duration::from_secs(2),
            lifetime: Duration::from_secs(10),
        }
    }
}

/// The open connections, oldest first. Dropping one closes it.
#[derive(Debug, Default)]
struct Open(Vec<Connection>);

#[derive(Debug)]
struct Connection {
    client: IpAddr,
    task: AbortOnDropHandle<()>,
}

impl Open {
    /// Makes room for one more than `most`: closes the oldest connection of the client that has
    /// most.
    fn make_room(&mut self, most: usize) {
        self.0.retain(|connection| !connection.task.is_finished());
        if self.0.len() < most {
            return;
        }
        let of = |client| {
            self.0
                .iter()
                .filter(|connection| connection.client == client)
                .count()
        };
        // Of equals `max_by_key` takes the last, which is the oldest here.
        let found = self
            .0
            .iter()
            .enumerate()
            .rev()
            .max_by_key(|(_, connection)| of(connection.client));
        if let Some((place, _)) = found {
            self.0.remove(place);
        }
    }
}

/// The limits of the answers to [`ask_relay`].
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
const ANSWER_BYTES_MAX: usize = 16 << 20;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Takes the address, so that a command can fail before anything else is started.
///
/// # Errors
/// [`Kind::Prerequisite`] where `addr` cannot be bound.
pub async fn bind(addr: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(addr).await.map_err(|error| {
        Error::new(
            Kind::Prerequisite,
            format!("metrics and health cannot be served on {addr}: {error}"),
        )
        .remedy("choose another address for http, or leave it out to serve neither")
    })
}

/// Serves metrics, health and the status page of a relay on what [`bind`] gave, until dropped.
pub(crate) async fn serve(
    listener: TcpListener,
    telemetry: Telemetry,
    page: &Arc<Page>,
) -> Infallible {
    serve_within(Limits::default(), listener, telemetry, page).await
}

/// Serves metrics and health on what [`bind`] gave, until dropped: for a process that is no relay.
pub(crate) async fn serve_metrics(listener: TcpListener, telemetry: Telemetry) -> Infallible {
    let routes = metrics_and_health(telemetry)
        .fallback(|| async { not_found("there are /metrics, /healthz and /readyz") });
    accept(Limits::default(), listener, routes).await
}

async fn serve_within(
    limits: Limits,
    listener: TcpListener,
    telemetry: Telemetry,
    page: &Arc<Page>,
) -> Infallible {
    let routes = metrics_and_health(telemetry).merge(page.routes());
    let routes =
        routes.fallback(|| async { not_found("there are /, /metrics, /healthz and /readyz") });
    tokio::select! {
        never = accept(limits, listener, routes) => never,
        never = page.keep() => never,
    }
}

async fn accept(limits: Limits, listener: TcpListener, routes: Router) -> Infallible {
    let routes = routes.layer(middleware::map_response(guarded));
    let mut open = Open::default();
    loop {
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection for metrics and health was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        open.make_room(limits.connections);
        let closes_at = Instant::now() + limits.lifetime;
        let mut pages = routes.clone().layer(Extension(ClosesAt(closes_at)));
        if stream
            .local_addr()
            .is_ok_and(|local| local.ip().to_canonical().is_loopback())
        {
            pages = pages.layer(middleware::from_fn(by_own_name));
        }
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head)
            .keep_alive(false)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(pages));
        let task = tokio::spawn(async move {
            if let Ok(Err(error)) = tokio::time::timeout_at(closes_at.into(), connection).await {
                tracing::debug!(%error, "a connection for metrics and health failed");
            }
        });
        open.0.push(Connection {
            client: client.ip().to_canonical(),
            task: AbortOnDropHandle::new(task),
        });
    }
}

/// Refuses a request for another name. The page of a stranger can have its own name lead to a
/// loopback address, and the browser then takes what is served there for that page's own (DNS
/// rebinding).
async fn by_own_name(request: Asked, next: Next) -> Response {
    let hosts = request
        .headers()
        .get_all(header::HOST)
        .iter()
        .map(|host| host.to_str().unwrap_or_default());
    if hosts
        .chain(request.uri().authority().map(Authority::as_str))
        .all(names_this_machine)
    {
        return next.run(request).await;
    }
    let text = "the request is for another name; ask by address or as localhost, and have a proxy \
                send Host: localhost\n";
    (StatusCode::MISDIRECTED_REQUEST, text).into_response()
}

/// Whether nobody else can own the name: an address, `localhost`, or a name without a dot, which is
/// of this network.
fn names_this_machine(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        return host.is_empty();
    };
    let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
    let is_address = name
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>()
        .is_ok();
    is_address || !name.contains('.') || name.ends_with(".localhost")
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
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static(
            "default-src 'none'; frame-ancestors 'none'",
        ));
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
    let reason = telemetry.health.not_ready();
    let status = if reason.is_none() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let readiness = Readiness {
        ready: reason.is_none(),
        reason: reason.as_ref().map(|reason| reason.code().to_owned()),
        detail: reason.as_ref().map(ToString::to_string),
        fix: reason.and_then(|reason| remedy(&reason, &telemetry)),
    };
    let line = serde_json::to_string(&readiness).unwrap_or_default();
    (
        status,
        [(header::CONTENT_TYPE, "application/json")],
        format!("{}\n", printable(&line)),
    )
        .into_response()
}

/// The answer of `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Readiness {
    pub(crate) ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fix: Option<String>,
}

/// What a relay says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RelayAnswer {
    pub(crate) readiness: Readiness,
    /// The reason for which it accepts no event; `None` if intake is open.
    pub(crate) intake_closed: Option<IntakeClosed>,
    pub(crate) bus: BusState,
}

/// What the bus does, as a relay sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum BusState {
    /// It answers.
    Connected,
    /// It answers, and asks all its clients to wait.
    Blocked,
    /// It does not answer, or refuses the relay.
    Disconnected,
}

/// Asks the relay of `slot` that serves `/metrics` and `/readyz` at `addr`. One is at work if
/// `is_at_work`.
///
/// # Errors
/// The reason why nothing is known: nobody answers there, or not the relay that is at work on
/// `slot`.
pub(crate) async fn ask_relay(
    addr: SocketAddr,
    slot: &SlotName,
    is_at_work: bool,
) -> Result<RelayAnswer, String> {
    let asked = async {
        Ok::<_, BoxError>((
            page_of(addr, "metrics").await?,
            page_of(addr, "readyz").await?,
        ))
    };
    let answer = tokio::time::timeout(ANSWER_WITHIN, asked).await;
    let answer =
        answer.map_err(|_| format!("no answer from {addr} in {} s", ANSWER_WITHIN.as_secs()))?;
    let (metrics, readiness) =
        answer.map_err(|error| format!("no answer from {addr}: {}", with_causes(&*error)))?;
    let has = |sample: &str| metrics.contains(&format!("{sample} 1\n"));
    let is_of_slot = metrics.contains(&format!("walrelay_relay_info{{slot=\"{slot}\""));
    // Where a relay is at work, one without Postgres is another.
    let is_it = is_of_slot && !has("walrelay_standing_by");
    if !is_it || is_at_work && !has(&connection_sample(Side::Postgres)) {
        return Err(format!(
            "{addr} is not the address of the relay at work on slot {slot}"
        ));
    }
    let readiness = serde_json::from_str(&readiness)
        .map_err(|error| format!("no answer from {addr}: {error}"))?;
    let closed = IntakeClosed::VARIANTS
        .iter()
        .find(|why| has(&intake_sample(**why)))
        .copied();
    let bus = match (has(&connection_sample(Side::Bus)), has(BUS_BLOCKED)) {
        (true, false) => BusState::Connected,
        (true, true) => BusState::Blocked,
        (false, _) => BusState::Disconnected,
    };
    Ok(RelayAnswer {
        readiness,
        intake_closed: closed,
        bus,
    })
}

async fn page_of(addr: SocketAddr, page: &str) -> Result<String, BoxError> {
    let request = Request::get(format!("http://{addr}/{page}")).body(Body::empty())?;
    let answer = Client::builder(TokioExecutor::new())
        .build_http()
        .request(request)
        .await?;
    let bytes = to_bytes(Body::new(answer.into_body()), ANSWER_BYTES_MAX).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::config::{Bus, SourceConfig, StreamConfig};
    use crate::conninfo::ConnInfo;
    use walrelay_core::readiness::ToDo;
    use walrelay_core::sink::Connection::Blocked;

    struct Server {
        addr: SocketAddr,
        telemetry: Telemetry,
    }

    async fn start(limits: Limits) -> Server {
        let telemetry = Telemetry::new(Bus::default(), Duration::from_secs(30));
        let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let served = telemetry.clone();
        let page = Page::new(telemetry.clone());
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
        let answer = exchange(
            addr,
            &format!("{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n"),
        )
        .await
        .unwrap();
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
            assert!(
                answer.0 == status && answer.1.contains(text),
                "{method} {path}: {answer:?}"
            );
        }
        assert_eq!(
            ask(server.addr, "HEAD", "/metrics").await,
            (200, String::new())
        );
    }

    #[tokio::test]
    async fn the_relay_at_work_on_the_slot_says_why_it_is_not_ready_and_why_its_intake_is_closed() {
        let server = start(Limits::default()).await;
        let [orders, mail]: [SlotName; 2] = ["orders", "mail"].map(|slot| slot.parse().unwrap());
        let database = ConnInfo::parse(Some("postgres://u@h/d"), &|_| None).unwrap();
        let source = SourceConfig::sample(database, "orders", "p", StreamConfig::default());
        let not_its = Err(format!(
            "{} is not the address of the relay at work on slot orders",
            server.addr
        ));
        let ask = |slot| async move { ask_relay(server.addr, slot, true).await };
        assert_eq!(ask(&orders).await, not_its, "it does not know its slot yet");
        server.telemetry.metrics.relays(&source, "at-least-once");
        assert_eq!(ask(&orders).await, not_its, "another one has the slot");
        let starting = ask_relay(server.addr, &orders, false).await.unwrap();
        assert_eq!(starting.readiness.reason.as_deref(), Some("starting"));
        Side::ALL
            .into_iter()
            .for_each(|side| server.telemetry.connected(side, true));
        server.telemetry.health.report(ToDo::Nothing);
        let good = Readiness {
            ready: true,
            reason: None,
            detail: None,
            fix: None,
        };
        assert_eq!(
            ask(&orders).await,
            Ok(RelayAnswer {
                readiness: good,
                intake_closed: None,
                bus: BusState::Connected,
            })
        );
        let waits = Error::new(Kind::BusUnreachable, "low on memory");
        server.telemetry.bus(&Blocked(waits));
        assert_eq!(ask(&orders).await.map(|it| it.bus), Ok(BusState::Blocked));
        server
            .telemetry
            .metrics
            .intake_closed(Some(IntakeClosed::QueueFull));
        server.telemetry.connected(Side::Bus, false);
        let away = ask(&orders).await.unwrap();
        assert_eq!(away.bus, BusState::Disconnected);
        assert_eq!(away.intake_closed, Some(IntakeClosed::QueueFull));
        assert_eq!(
            away.readiness.detail.as_deref(),
            Some("not connected to Kafka")
        );
        assert!(away.readiness.fix.unwrap().contains("brokers"));
        assert!(ask(&mail).await.is_err());
        server
            .telemetry
            .standing_by(Some("backend pid 7".to_owned()));
        assert_eq!(ask(&orders).await, not_its);
        let silent = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let addr = silent.local_addr().unwrap();
        let asked = ask_relay(addr, &orders, true).await;
        assert_eq!(asked, Err(format!("no answer from {addr} in 3 s")));
        drop(silent);
        let asked = ask_relay(addr, &orders, true).await;
        assert!(
            asked
                .unwrap_err()
                .starts_with(&format!("no answer from {addr}: "))
        );
    }

    #[tokio::test]
    async fn without_the_page_only_metrics_and_health_answer() {
        let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(serve_metrics(
            listener,
            Telemetry::new(Bus::default(), Duration::from_secs(30)),
        ));
        for path in ["/", "/events"] {
            let not_found = "not found; there are /metrics, /healthz and /readyz\n".to_owned();
            assert_eq!(ask(addr, "GET", path).await, (404, not_found), "{path}");
        }
        let answer = exchange(addr, "GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        assert!(answer.contains("cache-control: no-store\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn readiness_is_a_status_and_one_line_that_says_why() {
        let server = start(Limits::default()).await;
        let (status, line) = ask(server.addr, "GET", "/readyz").await;
        assert_eq!((status, line.lines().count()), (503, 1));
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&line).unwrap()["reason"],
            "starting"
        );
        Side::ALL
            .into_iter()
            .for_each(|side| server.telemetry.health.connection(side, true));
        server.telemetry.health.report(ToDo::Nothing);
        assert_eq!(
            ask(server.addr, "GET", "/readyz").await,
            (200, "{\"ready\":true}\n".to_owned())
        );
    }

    #[tokio::test]
    async fn clients_that_dawdle_do_not_keep_others_waiting_and_are_cut_off() {
        // What dawdles stays for longer than the test may take.
        let hour = Duration::from_secs(3_600);
        let limits = Limits {
            connections: 2,
            head: hour,
            lifetime: hour,
        };
        let server = start(limits).await;
        let mut slow = Vec::new();
        for _ in 0..2 * limits.connections {
            let mut stream = TcpStream::connect(server.addr).await.unwrap();
            stream
                .write_all(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
                .await
                .unwrap();
            slow.push(stream);
            assert_eq!(ask(server.addr, "GET", "/healthz").await.0, 200);
        }
        let server = start(Limits {
            head: Duration::from_millis(100),
            ..limits
        })
        .await;
        for begin in ["", "GET /healthz HTTP/1.1\r\nX-Slow: "] {
            assert_eq!(
                exchange(server.addr, begin).await.unwrap_or_default(),
                "",
                "{begin}"
            );
        }
        let server = start(Limits::default()).await;
        let huge = format!(
            "GET /healthz HTTP/1.1\r\nX-Huge: {}\r\n\r\n",
            "x".repeat(100_000)
        );
        let answer = exchange(server.addr, &huge).await.unwrap_or_default();
        assert!(!answer.contains("alive"), "{answer}");
        let two = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2);
        assert_eq!(
            exchange(server.addr, &two)
                .await
                .unwrap()
                .matches("alive")
                .count(),
            1
        );
    }

    #[tokio::test]
    async fn the_oldest_connection_of_the_client_with_most_makes_room() {
        let mut open = Open::default();
        let connection = |client: u8| {
            let task = AbortOnDropHandle::new(tokio::spawn(std::future::pending()));
            Connection {
                client: IpAddr::from([10, 0, 0, client]),
                task,
            }
        };
        let clients = |open: &Open| {
            open.0
                .iter()
                .map(|it| it.client.to_string())
                .collect::<Vec<_>>()
                .join(" ")
        };
        for client in [1, 2, 3, 2] {
            open.make_room(4);
            open.0.push(connection(client));
        }
        open.make_room(4);
        assert_eq!(clients(&open), "10.0.0.1 10.0.0.3 10.0.0.2");
        open.make_room(3);
        assert_eq!(clients(&open), "10.0.0.3 10.0.0.2", "of equals the oldest");
        open.0.push(Connection {
            client: IpAddr::from([10, 0, 0, 4]),
            task: AbortOnDropHandle::new(tokio::spawn(async {})),
        });
        while !open.0.iter().any(|it| it.task.is_finished()) {
            tokio::task::yield_now().await;
        }
        open.make_room(3);
        assert_eq!(
            clients(&open),
            "10.0.0.3 10.0.0.2",
            "one that has ended leaves its place"
        );
    }

    #[tokio::test]
    async fn at_a_loopback_address_only_names_of_this_machine_are_answered() {
        let server = start(Limits::default()).await;
        let of = |host: &str| format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n");
        for own in [
            "127.0.0.1:9464",
            "[::1]:9464",
            "10.1.2.3",
            "localhost:1",
            "LocalHost.",
            "relay",
            "a.localhost",
        ] {
            let answer = exchange(server.addr, &of(own)).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{own}: {answer}");
        }
        let old = exchange(server.addr, "GET /healthz HTTP/1.0\r\n\r\n")
            .await
            .unwrap();
        assert!(old.starts_with("HTTP/1.0 200"), "{old}");
        let two = of("localhost\r\nHost: evil.example");
        let whole =
            "GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned();
        for other in [
            of("evil.example"),
            of("127.0.0.1.evil.example:9464"),
            of("localhost@evil.example"),
            two,
            whole,
        ] {
            let answer = exchange(server.addr, &other).await.unwrap();
            assert!(
                answer.starts_with("HTTP/1.1 421") && answer.contains("Host: localhost"),
                "{other}: {answer}"
            );
        }
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_an_error_of_the_machine_with_a_remedy() {
        let server = start(Limits::default()).await;
        let error = bind(server.addr).await.unwrap_err();
        assert!(
            error.kind() == Kind::Prerequisite && error.what_to_do().is_some(),
            "{error}"
        );
    }
}
