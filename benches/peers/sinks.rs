//! Each sink beside a loop of a bare client that keeps the order of each key.
//!
//! The loop has no database: it sends records of the same size and with the same keys from memory.
//! Each of its workers waits for the answer to one record, and a key belongs to one worker.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use http_body_util::Full;
use hyper::{Request, StatusCode};
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};

use crate::Asked;
use crate::contestant::WALRELAY;
use crate::cpu;
use crate::lab::{DATABASE, Lab, Seat, announce};
use crate::load::{self, PER_TRANSACTION, Shape, Steady, TEMPLATE};
use crate::results::Run;
use crate::support::process::cpu_ms_of;
use crate::support::relay::{Relay, RelayCommand};
use crate::support::servers::{Nats, Postfix, Rabbitmq};
use crate::support::wait::until;
use crate::table::number;

/// The loop that rates are multiples of.
pub(crate) const BARE: &str = "bare loop";
const WALRELAY_NAME: &str = "walrelay";
/// Of all records: a queue of RabbitMQ, a subject of NATS.
const QUEUE: &str = "bench.order";
const KEYS: u64 = 5_000;
const PAYLOAD_BYTES: usize = 300;
const DEADLINE: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(20);
/// The rate at which latency is measured, and for how long.
const STEADY_PER_S: u64 = 200;
const STEADY_S: u64 = 15;

/// A bus, and how much it is given to do.
struct Lot {
    sink: &'static str,
    rows: u64,
    /// Records on their way, of the loop and of walrelay.
    in_flight: usize,
}

const NATS: Lot = Lot {
    sink: "nats",
    rows: 200_000,
    in_flight: 256,
};
const RABBITMQ: Lot = Lot {
    sink: "rabbitmq",
    rows: 50_000,
    in_flight: 64,
};
const SMTP: Lot = Lot {
    sink: "smtp",
    rows: 5_000,
    in_flight: 8,
};
const WEBHOOK: Lot = Lot {
    sink: "webhook",
    rows: 100_000,
    in_flight: 32,
};

impl Lot {
    /// The rows, in whole transactions.
    fn rows(&self, asked: &Asked) -> u64 {
        let rows = asked.rows.map_or(self.rows, |rows| rows.min(self.rows));
        rows.max(PER_TRANSACTION) / PER_TRANSACTION * PER_TRANSACTION
    }
}

pub(crate) fn run(asked: &Asked, found: &mut dyn FnMut(Run)) {
    let is_asked =
        |lot: &Lot| asked.sinks.is_empty() || asked.sinks.iter().any(|it| it == lot.sink);
    if let Some(nats) = is_asked(&NATS).then(Nats::start).flatten() {
        nats.add_stream("EVENTS", &["bench.>"], json!({}));
        let settings = format!(
            "nats.servers = \"{}\"\nnats.max_in_flight = {}\n",
            nats.address, NATS.in_flight
        );
        let address = nats.address.clone();
        beside(asked, &NATS, &settings, found, |records| {
            bare_nats(&address, records)
        });
    }
    if let Some(rabbitmq) = is_asked(&RABBITMQ).then(Rabbitmq::start).flatten() {
        let address = rabbitmq.address.clone();
        let settings = format!(
            "rabbitmq.servers = \"{address}\"\nrabbitmq.max_in_flight = {}\n",
            RABBITMQ.in_flight
        );
        runtime().block_on(declare_queue(&address));
        beside(asked, &RABBITMQ, &settings, found, |records| {
            bare_rabbitmq(&address, records)
        });
    }
    if let Some(postfix) = is_asked(&SMTP).then(|| Postfix::start("")).flatten() {
        let port = postfix.port;
        let settings = format!(
            "smtp.host = \"127.0.0.1\"\nsmtp.port = {port}\nsmtp.tls = \"off\"\n\
             smtp.from = \"relay@example.org\"\nsmtp.max_in_flight = {}\n\
             route.timestamp = \"created_at\"\n\
             route.headers.To = \"all@example.org\"\n",
            SMTP.in_flight
        );
        beside(asked, &SMTP, &settings, found, |records| {
            bare_smtp(port, records)
        });
    }
    if !is_asked(&WEBHOOK) {
        return;
    }
    let url = format!("http://127.0.0.1:{}/", receiver());
    let settings = format!(
        "webhook.url = \"{url}\"\nwebhook.max_in_flight = {}\n",
        WEBHOOK.in_flight
    );
    beside(asked, &WEBHOOK, &settings, found, |records| {
        bare_webhook(&url, records)
    });
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

/// Rounds of walrelay and of the loop, in turns.
fn beside<F: Future<Output = ()>>(
    asked: &Asked,
    lot: &Lot,
    settings: &str,
    found: &mut dyn FnMut(Run),
    bare: impl Fn(Vec<Records>) -> F,
) {
    let lab = Lab::without_kafka();
    // Mails have a date.
    load::steady_schema(
        &lab.sql,
        ", created_at timestamptz not null default now()",
        Shape::default(),
    );
    load::template(&lab.sql);
    let rows = lot.rows(asked);
    let shape = Shape {
        aggregates: KEYS,
        ..Shape::default()
    };
    let end = load::backlog(&lab.sql, 1..=rows, PER_TRANSACTION, shape);
    let load = format!("{}, {} rows", lot.sink, number(Some(rows as f64), 0));
    let client = runtime();
    for round in 1..=asked.rounds {
        eprintln!("  round {round}: {BARE} at {load} ...");
        let records = Records::of(rows, lot.in_flight);
        let used_ms = || cpu_ms_of(std::process::id()).unwrap_or(0);
        let before_ms = used_ms();
        let machine = cpu::machine_ms();
        let began = Instant::now();
        client.block_on(bare(records));
        let seconds = began.elapsed().as_secs_f64();
        let cpu_ms = used_ms() - before_ms;
        found(
            Run::new(&load, BARE, round)
                .with("events_per_s", rows as f64 / seconds)
                .with("relay_us_per_event", cpu_ms as f64 * 1_000.0 / rows as f64)
                .with("machine_us_per_event", since(machine) / rows as f64),
        );
        announce(WALRELAY, &load, round);
        let run = Run::new(&load, WALRELAY_NAME, round);
        let run = drained(&lab, lot, settings, (rows, &end), run);
        found(steady(&lab, lot, settings, run));
    }
}

/// Microseconds of CPU that all processes have used since then.
fn since(machine_ms: u64) -> f64 {
    (cpu::machine_ms() - machine_ms) as f64 * 1_000.0
}

fn start(lab: &Lab, seat: &Seat, lot: &Lot, settings: &str) -> Relay {
    RelayCommand::new("run")
        .option("--slot", &seat.slot)
        .option("--database-url", &lab.postgres.url(DATABASE))
        .option("--publication", &seat.publication)
        .option("--sink", lot.sink)
        .config_file(&format!("{settings}route.topic = \"{QUEUE}\"\n"))
        .start()
}

/// The backlog of the template's slot.
fn drained(lab: &Lab, lot: &Lot, settings: &str, (rows, end): (u64, &str), run: Run) -> Run {
    let seat = lab.seat(Some(TEMPLATE));
    let machine = cpu::machine_ms();
    let began = Instant::now();
    let mut relay = start(lab, &seat, lot, settings);
    let is_confirmed = format!(
        "select confirmed_flush_lsn >= '{end}' from pg_replication_slots where slot_name = '{}'",
        seat.slot
    );
    let acked = || relay.metric("walrelay_acked_events_total").unwrap_or(0.0);
    let mut seen: Vec<(f64, f64)> = Vec::new();
    let drained = until(DEADLINE, || {
        seen.push((began.elapsed().as_secs_f64(), acked()));
        std::thread::sleep(LOOK);
        (acked() >= rows as f64).then_some(())
    });
    seen.push((began.elapsed().as_secs_f64(), acked()));
    let confirmed = until(DEADLINE, || {
        (lab.sql.text(&is_confirmed) == "true").then_some(())
    });
    let machine_us = since(machine);
    let cpu_ms = relay.process.cpu_ms().unwrap_or(0);
    let peak = relay.process.resident_peak_bytes().unwrap_or(0);
    relay.terminate(DEADLINE);
    lab.clear(&seat);
    if drained.is_none() || confirmed.is_none() {
        return run.faulty("not all rows were acked and confirmed in time");
    }
    let at = |share: f64| {
        let passed = seen.iter().find(|(_, acked)| *acked >= rows as f64 * share);
        passed.map_or((0.0, 0.0), |passed| *passed)
    };
    let first = at(0.1);
    let last = at(0.9);
    run.with("events_per_s", (last.1 - first.1) / (last.0 - first.0))
        .with("relay_us_per_event", cpu_ms as f64 * 1_000.0 / rows as f64)
        .with("machine_us_per_event", machine_us / rows as f64)
        .with("peak_mib", peak as f64 / f64::from(1 << 20))
}

/// From commit to ack at a steady rate, as the relay's own histogram has it.
fn steady(lab: &Lab, lot: &Lot, settings: &str, run: Run) -> Run {
    if !run.fault.is_empty() {
        return run;
    }
    let seat = lab.seat(None);
    let mut relay = start(lab, &seat, lot, settings);
    relay.wait_ready();
    Steady::begin(lab, STEADY_PER_S, STEADY_S).wait();
    let drained = until(DEADLINE, || {
        (relay.metric("walrelay_in_flight_events") == Some(0.0)).then_some(())
    });
    let metrics = relay.metrics();
    relay.terminate(DEADLINE);
    lab.clear(&seat);
    if drained.is_none() {
        return run.faulty("events stayed in flight");
    }
    run.with("p50_ms", percentile_ms(&metrics, 0.5))
        .with("p99_ms", percentile_ms(&metrics, 0.99))
}

/// The upper bound of the bucket in which this share of the events is reached.
fn percentile_ms(metrics: &str, share: f64) -> f64 {
    const BUCKET: &str = "walrelay_commit_to_ack_seconds_bucket{le=\"";
    let buckets = metrics.lines().filter_map(|line| {
        let (bound, count) = line.strip_prefix(BUCKET)?.split_once("\"} ")?;
        let bound = bound.parse().unwrap_or(f64::INFINITY);
        Some((bound, count.trim().parse::<f64>().ok()?))
    });
    let buckets: Vec<(f64, f64)> = buckets.collect();
    let all = buckets.last().map_or(0.0, |(_, count)| *count);
    let reached = buckets.iter().find(|(_, count)| *count >= all * share);
    reached.map_or(f64::NAN, |(bound, _)| bound * 1_000.0)
}

/// What one worker sends, in this order: its keys, each as often as rows have it.
#[derive(Debug, Clone)]
struct Records {
    keys: Vec<String>,
    count: u64,
    payload: String,
}

impl Records {
    /// `rows` records of [`KEYS`] keys for so many workers.
    fn of(rows: u64, workers: usize) -> Vec<Records> {
        let mut keys: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        let workers = u64::try_from(workers).expect("a number");
        for key in 0..KEYS {
            let of_worker = keys.entry(key % workers).or_default();
            of_worker.push(format!("aggregate-{key}"));
        }
        let of_worker = |worker: u64| (rows + workers - 1 - worker) / workers;
        keys.into_iter()
            .map(|(worker, keys)| Records {
                keys,
                count: of_worker(worker),
                payload: "n".repeat(PAYLOAD_BYTES),
            })
            .collect()
    }

    fn keys(&self) -> impl Iterator<Item = &str> {
        let keys = self.keys.iter().map(String::as_str).cycle();
        keys.take(usize::try_from(self.count).expect("a count"))
    }
}

/// With the headers of walrelay, and an id by which the server drops copies.
async fn bare_nats(address: &str, workers: Vec<Records>) {
    let client = async_nats::connect(address).await.expect("a connection");
    let client = &client;
    let work = workers.into_iter().map(|records| async move {
        let payload = Bytes::from(records.payload.clone());
        for (number, key) in records.keys().enumerate() {
            let id = format!("00000000-0000-0000-0000-{number:012}");
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("id", id.as_str());
            headers.insert("walrelay-position", format!("0/{number:X}.{number}"));
            headers.insert("Nats-Msg-Id", format!("0/{number:X}.0 {key} {QUEUE} {id}"));
            let subject = QUEUE;
            let sent = client.request_with_headers(subject, headers, payload.clone());
            let ack = sent.await.expect("an answer");
            assert!(ack.payload.starts_with(b"{\"stream\""), "{ack:?}");
        }
    });
    join_all(work).await;
}

/// A channel for each worker, and one unconfirmed message on each, as the sink has it.
async fn bare_rabbitmq(address: &str, workers: Vec<Records>) {
    let uri = format!("amqp://guest:guest@{address}/%2f");
    let connected = Connection::connect(&uri, ConnectionProperties::default()).await;
    let connection = &connected.expect("a connection");
    let work = workers.into_iter().map(|records| async move {
        let channel = connection.create_channel().await.expect("a channel");
        let confirms = channel.confirm_select(ConfirmSelectOptions::default());
        confirms.await.expect("confirms");
        let mandatory = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        for key in records.keys() {
            let properties = BasicProperties::default()
                .with_delivery_mode(2)
                .with_message_id(key.into());
            let body = records.payload.as_bytes();
            let queue = QUEUE.into();
            let sent = channel.basic_publish("".into(), queue, mandatory, body, properties);
            let confirmed = sent.await.expect("it goes").await.expect("an answer");
            assert_eq!(confirmed, Confirmation::Ack(None));
        }
    });
    join_all(work).await;
}

/// Declares the queue of walrelay and of the loop.
async fn declare_queue(address: &str) {
    let uri = format!("amqp://guest:guest@{address}/%2f");
    let connected = Connection::connect(&uri, ConnectionProperties::default()).await;
    let connection = connected.expect("a connection");
    let channel = connection.create_channel().await.expect("a channel");
    let durable = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let mut quorum = FieldTable::default();
    let kind = AMQPValue::LongString("quorum".into());
    quorum.insert("x-queue-type".into(), kind);
    let declared = channel.queue_declare(QUEUE.into(), durable, quorum);
    declared.await.expect("a queue");
}

async fn bare_smtp(port: u16, workers: Vec<Records>) {
    let work = workers.into_iter().map(|records| async move {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
        let mut stream = tokio::io::BufReader::new(stream.expect("a connection"));
        stream.get_ref().set_nodelay(true).expect("a socket");
        reply(&mut stream, "220").await;
        say(&mut stream, "EHLO bench\r\n", "250").await;
        for key in records.keys() {
            say(&mut stream, "MAIL FROM:<relay@example.org>\r\n", "250").await;
            say(&mut stream, "RCPT TO:<all@example.org>\r\n", "250").await;
            say(&mut stream, "DATA\r\n", "354").await;
            let payload = &records.payload;
            let mail = format!("From: relay@example.org\r\nX-Key: {key}\r\n\r\n{payload}\r\n.\r\n");
            say(&mut stream, &mail, "250").await;
        }
    });
    join_all(work).await;
}

type Lines = tokio::io::BufReader<tokio::net::TcpStream>;

async fn say(stream: &mut Lines, command: &str, code: &str) {
    stream.write_all(command.as_bytes()).await.expect("it goes");
    reply(stream, code).await;
}

async fn reply(stream: &mut Lines, code: &str) {
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.expect("an answer");
        assert!(line.starts_with(code), "{line:?} and not {code}");
        if !line.starts_with(&format!("{code}-")) {
            return;
        }
    }
}

/// By the client of the sink, with the headers of walrelay.
async fn bare_webhook(url: &str, workers: Vec<Records>) {
    let client = legacy::Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let client = &client;
    let work = workers.into_iter().map(|records| async move {
        let payload = Bytes::from(records.payload.clone());
        for (number, key) in records.keys().enumerate() {
            let id = format!("00000000-0000-0000-0000-{number:012}");
            let request = Request::post(url)
                .header("user-agent", "bench")
                .header("content-type", "application/json")
                .header("webhook-id", id.as_str())
                .header("id", id)
                .header("walrelay-position", format!("0/{number:X}.{number}"))
                .header("key", key)
                .body(Full::new(payload.clone()));
            let answer = client.request(request.expect("a request")).await;
            assert_eq!(answer.expect("an answer").status(), StatusCode::OK);
        }
    });
    join_all(work).await;
}

/// A receiver that answers 200 to each request. Gives its port.
fn receiver() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    port
}

fn serve(stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut answers = stream.try_clone().ok()?;
    let mut requests = BufReader::new(stream);
    let mut body = Vec::new();
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if requests.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let (name, value) = line.split_once(':').unwrap_or((line.trim(), ""));
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().ok()?;
            }
            if name.is_empty() {
                break;
            }
        }
        body.resize(length, 0);
        requests.read_exact(&mut body).ok()?;
        answers
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .ok()?;
    }
}
