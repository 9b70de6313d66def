//! docs/reference/metrics.md: what a collector of OpenTelemetry gets, and what the log says of an
//! event.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message as _;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::support::certificates::{Authority, Identity, LOOPBACK};
use crate::support::relay::EXIT;
use crate::support::servers::free_port;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

const SECRET: &str = "canary-header-81c2";

/// For a server that presents this certificate.
pub(super) fn server_config(identity: &Identity) -> Arc<ServerConfig> {
    let certificates = CertificateDer::pem_file_iter(&identity.certificate).expect("a file");
    let certificates = certificates
        .collect::<Result<_, _>>()
        .expect("certificates");
    let key = PrivateKeyDer::from_pem_file(&identity.key).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions of TLS");
    let config = config
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .expect("an identity");
    Arc::new(config)
}

/// A receiver of OTLP/HTTP.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Received>>);

#[derive(Default)]
struct Received {
    /// What it answers spans with, if not with success.
    refuses_spans: bool,
    heads: Vec<String>,
    spans: Vec<Span>,
}

impl Collector {
    /// On this port, or on a free one for 0; gives the port.
    fn listen(port: u16) -> (Collector, u16) {
        Collector::accept(port, |collector, stream| collector.serve(stream))
    }

    /// The same with TLS, on a free port.
    fn listen_as(identity: &Identity) -> (Collector, u16) {
        let config = server_config(identity);
        Collector::accept(0, move |collector, stream| {
            let connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
            collector.serve(StreamOwned::new(connection, stream));
        })
    }

    fn accept(
        port: u16,
        serve: impl Fn(&Collector, TcpStream) + Send + 'static,
    ) -> (Collector, u16) {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let collector = Collector::default();
        let received = collector.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(&received, stream);
            }
        });
        (collector, port)
    }

    fn with<T>(&self, look: impl FnOnce(&mut Received) -> T) -> T {
        look(&mut self.0.lock().expect("what was received"))
    }

    /// Answers one request, and closes the connection.
    fn serve(&self, stream: impl Read + Write) {
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while reader.read_line(&mut head).is_ok_and(|bytes| bytes > 2) {}
        let length = head.lines().find_map(|line| {
            line.to_lowercase()
                .strip_prefix("content-length: ")?
                .parse()
                .ok()
        });
        let mut body = vec![0; length.unwrap_or_default()];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let is_refused = self.with(|received| received.take(head, &body));
        let status = if is_refused {
            "400 Bad Request"
        } else {
            "200 OK"
        };
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        // A relay that is killed hears no answer.
        reader
            .get_mut()
            .write_all(answer.as_bytes())
            .and_then(|()| reader.get_mut().flush())
            .unwrap_or_default();
    }

    fn spans(&self) -> Vec<Span> {
        self.with(|received| received.spans.clone())
    }

    /// The records in all spans.
    fn events(&self) -> i64 {
        self.spans()
            .iter()
            .map(|span| integer(span, "walrelay.events"))
            .sum()
    }

    /// Trace ids of all links.
    fn traces(&self) -> BTreeSet<String> {
        let spans = self.spans();
        spans
            .iter()
            .flat_map(|span| &span.links)
            .map(|link| hex(&link.trace_id))
            .collect()
    }
}

impl Received {
    /// Whether the request is refused.
    fn take(&mut self, head: String, body: &[u8]) -> bool {
        assert!(head.starts_with("POST /v1/traces "), "{head}");
        self.heads.push(head);
        if self.refuses_spans {
            return true;
        }
        let request = ExportTraceServiceRequest::decode(body).expect("spans");
        let scopes = request
            .resource_spans
            .into_iter()
            .flat_map(|of| of.scope_spans);
        // Spans that were answered late come again.
        for span in scopes.flat_map(|of| of.spans) {
            if self.spans.iter().all(|known| known.span_id != span.span_id) {
                self.spans.push(span);
            }
        }
        false
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn value(attribute: &KeyValue) -> Option<&Value> {
    attribute.value.as_ref()?.value.as_ref()
}

fn integer(span: &Span, name: &str) -> i64 {
    let attribute = span
        .attributes
        .iter()
        .find(|attribute| attribute.key == name);
    let Some(Value::IntValue(number)) = attribute.and_then(value) else {
        panic!("{span:?}")
    };
    *number
}

fn traceparent(number: u32) -> String {
    format!("00-{number:032x}-{number:016x}-01")
}

fn trace_ids(numbers: std::ops::Range<u32>) -> BTreeSet<String> {
    numbers.map(|number| format!("{number:032x}")).collect()
}

/// A world whose rows have a trace and a tenant, and the settings for a collector at this port.
fn world(port: u16, more: &str) -> (World, String) {
    let world = World::new();
    world
        .sql()
        .run("alter table outbox add column traceparent text, add column tenant text");
    let otel = format!(
        "[otel]\nendpoint = \"http://127.0.0.1:{port}\"\ninterval = \"1s\"\nheaders = \
         \"api-key={SECRET}\""
    );
    (world, format!("{otel}\n{more}"))
}

/// Commits an event for each number, in one transaction.
fn emit(world: &World, numbers: std::ops::Range<u32>) {
    let rows: Vec<_> = numbers
        .map(|number| {
            let kind = world.kind(0);
            let trace = traceparent(number);
            format!("(gen_random_uuid(), '{kind}', 'a', 'T', '{{}}', '{trace}', 'acme')")
        })
        .collect();
    let columns = "id, aggregatetype, aggregateid, type, payload, traceparent, tenant";
    world.sql().run(&format!(
        "insert into outbox ({columns}) values {}",
        rows.join(", ")
    ));
}

const COLUMN: &str = "[outbox.columns]\ntraceparent = \"traceparent\"";
const HEADER: &str = "[route.headers]\ntraceparent = \"{traceparent}\"";

#[test]
fn a_collector_gets_a_span_per_batch_with_links() {
    let (collector, port) = Collector::listen(0);
    let (world, toml) = world(port, COLUMN);
    let run = world.run().config_file(&toml).option("--log", "trace");
    // The SDK reads it as well.
    let mut relay = run
        .variable("OTEL_EXPORTER_OTLP_HEADERS", "other=of-variable")
        .start();
    relay.wait_ready();
    emit(&world, 1..200);
    eventually(
        "all events are in spans",
        ARRIVAL,
        || collector.events(),
        |events| *events == 199,
    );
    let spans = collector.spans();
    for span in &spans {
        let events: Vec<_> = span
            .events
            .iter()
            .map(|event| event.name.as_str())
            .collect();
        assert_eq!(events, ["acked", "confirmed"], "{span:?}");
        let times = [
            span.start_time_unix_nano,
            span.events[0].time_unix_nano,
            span.end_time_unix_nano,
        ];
        assert!(times.is_sorted() && times[0] > 0, "{times:?}");
        assert_eq!(
            (span.name.clone(), span.trace_id.len()),
            (format!("deliver {}", world.name), 16)
        );
        assert_eq!(
            span.status.as_ref().map(|status| status.code()),
            Some(StatusCode::Unset)
        );
    }
    let left_out: u32 = spans.iter().map(|span| span.dropped_links_count).sum();
    let traces = collector.traces();
    assert!(
        traces.is_subset(&trace_ids(1..200)) && traces.len() as u32 + left_out >= 199,
        "{traces:?}"
    );
    assert!(left_out > 0 || spans.len() > 1, "128 links at most");

    assert_eq!(relay.metric("walrelay_dropped_spans_total"), Some(0.0));
    assert!(collector.with(|received| {
        received
            .heads
            .iter()
            .all(|head| head.contains(&format!("api-key: {SECRET}")))
    }));
    assert!(!relay.log().contains(SECRET), "a header is in the log");
    let is_of_variable = |head: &String| head.contains("of-variable");
    assert!(
        !collector.with(|received| received.heads.iter().any(is_of_variable)),
        "the key beats the variable"
    );

    // What is delivered just before the end comes, too.
    emit(&world, 300..303);
    eventually(
        "they arrive",
        ARRIVAL,
        || world.delivered(),
        |records| *records == 202,
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    eventually(
        "the last spans are there",
        ARRIVAL,
        || collector.events(),
        |events| *events == 202,
    );
    assert!(collector.traces().is_superset(&trace_ids(300..303)));
}

#[test]
fn events_go_on_without_a_collector_and_spans_wait_or_are_counted() {
    let port = free_port();
    let (world, toml) = world(port, HEADER);
    let mut relay = world.run().config_file(&toml).start();
    relay.wait_ready();
    emit(&world, 1..4);
    world.wait_confirmed();
    assert_eq!(world.delivered(), 3);
    let warned = || relay.log().matches("do not reach OpenTelemetry").count();
    eventually("it is logged", ARRIVAL, warned, |times| *times == 1);
    let (collector, _) = Collector::listen(port);
    eventually(
        "the spans waited",
        ARRIVAL,
        || collector.traces(),
        |traces| *traces == trace_ids(1..4),
    );
    eventually(
        "that is logged",
        ARRIVAL,
        || relay.log().contains("reach OpenTelemetry again"),
        |told| *told,
    );
    assert_eq!(relay.metric("walrelay_dropped_spans_total"), Some(0.0));

    collector.with(|received| received.refuses_spans = true);
    emit(&world, 4..7);
    let dropped = || relay.metric("walrelay_dropped_spans_total");
    eventually("a refused span is counted", ARRIVAL, dropped, |spans| {
        *spans > Some(0.0)
    });
    world.wait_confirmed();
    assert_eq!(world.delivered(), 6);
    collector.with(|received| received.refuses_spans = false);
    emit(&world, 7..10);
    let has_newest = || collector.traces().is_superset(&trace_ids(7..10));
    eventually("later spans arrive", ARRIVAL, has_newest, |arrived| {
        *arrived
    });
    assert_eq!(warned(), 2, "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn rows_of_a_table_are_in_spans_that_end_when_progress_is_stored_and_go_over_tls() {
    let authority = Authority::new("otel");
    let (collector, port) = Collector::listen_as(&authority.certify("collector", &LOOPBACK));
    let world = World::keeping();
    world
        .sql()
        .run("alter table outbox add column traceparent text");
    let rows = "select gen_random_uuid(), 'k', 'a', 'T', '{}', '00-' || lpad('7', 32, '0') || '-' \
                || lpad('7', 16, '0') || '-00'";
    let rows = rows.replace("'k'", &format!("'{}'", world.kind(0)));
    world.sql().run(&format!(
        "insert into outbox (id, aggregatetype, aggregateid, type, payload, traceparent) {rows} \
         from generate_series(1, 50)"
    ));
    let endpoint = format!("https://localhost:{port}");
    let run = world
        .run()
        .option("--mode", "poll")
        .option("--state-store", "postgres");
    // The variable of OpenTelemetry's own programs.
    let run = run
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)
        .variable("WALRELAY_OTEL_INTERVAL", "1s");
    let run = run.variable("SSL_CERT_FILE", &authority.root().to_string_lossy());
    let mut relay = run.config_file(COLUMN).start();
    relay.wait_ready();
    eventually(
        "all rows are in spans",
        ARRIVAL,
        || collector.events(),
        |events| *events == 50,
    );
    for span in collector.spans() {
        assert_eq!(
            span.events.last().map(|event| event.name.as_str()),
            Some("stored"),
            "{span:?}"
        );
        assert_eq!(span.links.len(), 1, "{span:?}");
    }
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_failed_delivery_is_an_error_of_its_span_and_its_log_line_names_trace_and_columns() {
    for (on_error, message) in [
        ("skip", "an event was given up"),
        ("park", "an event cannot be delivered"),
    ] {
        let (collector, port) = Collector::listen(0);
        let (world, toml) = world(
            port,
            &format!("{HEADER}\n[outbox]\nlog_columns = \"tenant, aggregateid\"\n"),
        );
        let mut relay = world
            .run()
            .config_file(&toml)
            .option("--on-error", on_error)
            .start();
        relay.wait_ready();
        let trace = traceparent(9);
        world.sql().run(&format!(
            "insert into outbox (id, aggregatetype, aggregateid, type, payload, traceparent, tenant)
             values (gen_random_uuid(), '{}', 'a', 'T', to_jsonb(repeat('x', 2000000)), '{trace}', \
             E'ac\\nme')",
            world.kind(0)
        ));
        let failed = || {
            collector
                .spans()
                .into_iter()
                .find(|span| integer(span, "walrelay.failed_events") > 0)
        };
        let span = eventually("the failure is in a span", ARRIVAL, failed, Option::is_some)
            .expect("a span");
        let status = span.status.expect("a status");
        assert_eq!(status.code(), StatusCode::Error);
        assert!(
            status.message.contains("message.max.bytes"),
            "{}",
            status.message
        );
        let log = relay.log();
        let lines: Vec<serde_json::Value> = log
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let line = lines.iter().find(|line| {
            line["message"]
                .as_str()
                .is_some_and(|text| text.starts_with(message))
        });
        let line = line.unwrap_or_else(|| panic!("no line:\n{log}"));
        assert_eq!(line["trace_id"], format!("{:032x}", 9));
        assert_eq!(line["columns"], r#"tenant="ac\nme" aggregateid="a""#);
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    }
}
