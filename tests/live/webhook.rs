//! P1, P2, P3: webhooks, with a receiver that answers as it is told to.

mod hostile;
mod signed;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio_rustls::rustls::{ServerConnection, StreamOwned};

use super::otel::server_config;
use super::parked;
use crate::support::certificates::{Authority, Identity, LOOPBACK};
use crate::support::relay::{EXIT, RelayCommand};
use crate::support::wait::{eventually, grown, until};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

const BUS_REFUSED: Option<i32> = Some(31);

/// One request, as it came.
#[derive(Debug, Clone)]
pub(super) struct Post {
    method: String,
    pub(super) path: String,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Vec<u8>,
}

impl Post {
    pub(super) fn id(&self) -> &str {
        &self.headers["webhook-id"]
    }

    /// The aggregate and the version of an event of the workload; empty and 0 of another.
    fn event(&self) -> (String, i64) {
        let payload: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let aggregate = payload["of"].as_str().unwrap_or_default().to_owned();
        (aggregate, payload["v"].as_i64().unwrap_or_default())
    }
}

/// What the receiver does with a request.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    /// Answers with these lines behind the status line.
    Status(u16, &'static str),
    /// Keeps the event, and closes the connection without an answer.
    KeptAndClosed,
    /// Closes the connection without having kept it.
    Closed,
    /// Answers 200, and never ends the body.
    Endless,
    /// Answers 200 with a body of this length, and closes the connection after so many bytes.
    Body { length: usize, sent: usize },
}

pub(super) const OK: Reply = Reply::Status(200, "");

type Judge = dyn FnMut(&Post) -> Reply + Send;

/// An HTTP server. What it keeps is what a consumer has.
#[derive(Clone)]
pub(super) struct Receiver(Arc<Mutex<State>>);

pub(super) struct State {
    judge: Box<Judge>,
    asked: Vec<Post>,
    pub(super) kept: Vec<Post>,
    /// Aggregates with a request under way.
    busy: BTreeSet<String>,
    overlaps: u32,
}

impl Receiver {
    /// Gives the receiver and its port.
    pub(super) fn listen(judge: impl FnMut(&Post) -> Reply + Send + 'static) -> (Receiver, u16) {
        Receiver::accept(judge, Receiver::serve)
    }

    /// The same with TLS.
    fn listen_as(
        identity: &Identity,
        judge: impl FnMut(&Post) -> Reply + Send + 'static,
    ) -> (Receiver, u16) {
        let config = server_config(identity);
        Receiver::accept(judge, move |receiver, stream| {
            let connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
            receiver.serve(StreamOwned::new(connection, stream));
        })
    }

    fn accept(
        judge: impl FnMut(&Post) -> Reply + Send + 'static,
        serve: impl Fn(&Receiver, TcpStream) + Send + Clone + 'static,
    ) -> (Receiver, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let receiver = Receiver(Arc::new(Mutex::new(State {
            judge: Box::new(judge),
            asked: Vec::new(),
            kept: Vec::new(),
            busy: BTreeSet::new(),
            overlaps: 0,
        })));
        let shared = receiver.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let receiver = shared.clone();
                let serve = serve.clone();
                std::thread::spawn(move || serve(&receiver, stream));
            }
        });
        (receiver, port)
    }

    pub(super) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.0.lock().expect("the state"))
    }

    fn judge_by(&self, judge: impl FnMut(&Post) -> Reply + Send + 'static) {
        self.with(|state| state.judge = Box::new(judge));
    }

    pub(super) fn kept(&self) -> Vec<Post> {
        self.with(|state| state.kept.clone())
    }

    fn kept_of(&self, aggregate: &str) -> Vec<i64> {
        let events = self.kept().into_iter().map(|post| post.event());
        events
            .filter(|(of, _)| of == aggregate)
            .map(|(_, version)| version)
            .collect()
    }

    fn asked_of(&self, aggregate: &str) -> Vec<Post> {
        self.with(|state| {
            let asked = state.asked.iter();
            asked
                .filter(|post| post.event().0 == aggregate)
                .cloned()
                .collect()
        })
    }

    fn serve(&self, stream: impl Read + Write) {
        let mut reader = BufReader::new(stream);
        while let Some(post) = read(&mut reader) {
            let (aggregate, _) = post.event();
            let reply = self.with(|state| {
                state.overlaps += u32::from(!state.busy.insert(aggregate.clone()));
                state.asked.push(post.clone());
                (state.judge)(&post)
            });
            // The other keys' requests are under way meanwhile.
            std::thread::yield_now();
            self.with(|state| {
                state.busy.remove(&aggregate);
                if matches!(
                    reply,
                    Reply::Status(200..=299, _)
                        | Reply::KeptAndClosed
                        | Reply::Endless
                        | Reply::Body { .. }
                ) {
                    state.kept.push(post);
                }
            });
            let answer = match reply {
                Reply::Status(status, lines) => {
                    format!("HTTP/1.1 {status} Told\r\n{lines}Content-Length: 0\r\n\r\n")
                }
                Reply::Endless => "HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\nx".to_owned(),
                Reply::Body { length, sent } => {
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
                    return answer_at_length(reader.get_mut(), &head, sent);
                }
                Reply::KeptAndClosed | Reply::Closed => return,
            };
            let stream = reader.get_mut();
            let answered = stream.write_all(answer.as_bytes());
            if answered.and_then(|()| stream.flush()).is_err() {
                return;
            }
        }
    }

    /// For tests of one process: a request of a killed one may still be under way.
    #[track_caller]
    fn assert_one_of_a_key_at_once(&self) {
        assert_eq!(self.with(|state| state.overlaps), 0);
    }

    /// Each committed event is kept, and first arrivals of each aggregate are in order. Gives the
    /// number of duplicates.
    #[track_caller]
    fn assert_all_kept(&self, world: &World) -> usize {
        let committed = usize::try_from(world.committed()).expect("a count");
        let ids = || {
            let kept = self.kept();
            let ids: BTreeSet<_> = kept.iter().map(|post| post.id().to_owned()).collect();
            i64::try_from(ids.len()).expect("a count")
        };
        grown("every event has arrived", world.committed(), ids);
        let mut seen = BTreeSet::new();
        let mut newest: HashMap<String, i64> = HashMap::new();
        let kept = self.kept();
        for post in &kept {
            let (aggregate, version) = post.event();
            if seen.insert(post.id()) {
                let before = newest.insert(aggregate.clone(), version).unwrap_or(0);
                assert_eq!(before + 1, version, "{aggregate} is out of order");
            }
        }
        assert_eq!(seen.len(), committed, "ids that were never committed");
        kept.len() - committed
    }
}

/// Writes until the client has enough.
fn answer_at_length(stream: &mut impl Write, head: &str, sent: usize) {
    let piece = [b'x'; 1 << 16];
    let mut written = stream.write_all(head.as_bytes());
    let mut left = sent;
    while left > 0 && written.is_ok() {
        let length = left.min(piece.len());
        left -= length;
        written = stream.write_all(piece.get(..length).unwrap_or_default());
    }
}

fn read(reader: &mut impl BufRead) -> Option<Post> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let (first, rest) = lines.split_first()?;
    let headers: BTreeMap<String, String> = rest
        .iter()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let length = headers
        .get("content-length")
        .map_or(Some(0), |length| length.parse().ok())?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut words = first.split(' ');
    Some(Post {
        method: words.next()?.to_owned(),
        path: words.next()?.to_owned(),
        headers,
        body,
    })
}

fn relay(world: &World, port: u16) -> RelayCommand {
    world
        .command("run")
        .option("--sink", "webhook")
        .option("--log-format", "json")
        .variable(
            "WALRELAY_WEBHOOK_URL",
            &format!("http://127.0.0.1:{port}/in/{{topic}}"),
        )
}

/// Commits so many events of each aggregate in one transaction, in turn.
#[track_caller]
fn emit_together(world: &World, aggregates: &[&str], events: u32) {
    let kind = world.kind(0);
    let emits: Vec<String> = aggregates
        .iter()
        .map(|aggregate| format!("emit('{kind}', '{aggregate}', 20)"))
        .collect();
    let emits = emits.join(", ");
    world
        .sql()
        .run(&format!("select {emits} from generate_series(1, {events})"));
}

/// P1, P2.
#[test]
fn webhooks_arrive_in_order_of_each_key_through_kills_and_outages() {
    let world = World::new();
    let mut random = fastrand::Rng::new();
    let judge = move |_: &Post| match random.u8(..50) {
        0 => Reply::Closed,
        1 => Reply::KeptAndClosed,
        2 => Reply::Status(503, "Retry-After: 0\r\n"),
        3 => Reply::Status(500, ""),
        _ => OK,
    };
    let (receiver, port) = Receiver::listen(judge);
    let command = relay(&world, port).variable("WALRELAY_DELIVERY_RETRY_BASE", "100ms");
    let mut running = command.start();
    running.wait_ready();
    assert!(!running.log().contains("/in/"), "the path may be a secret");
    let workload = world.workload(&Plan::default());
    for round in 1..5 {
        let enough = 200 * round;
        let kept = || receiver.with(|state| state.kept.len());
        eventually("events arrive", ARRIVAL, kept, |kept| *kept > enough);
        running.kill_hard();
        running = command.start();
    }
    workload.stop();
    let duplicates = receiver.assert_all_kept(&world);
    world.wait_confirmed();
    println!("{} events, {duplicates} duplicates", world.committed());
    assert_eq!(running.terminate(EXIT), Some(0));
}

/// P3: with `park`, a refused record takes those of its key with it, and no others.
#[test]
fn a_refused_webhook_is_parked_with_those_behind_it_and_others_flow() {
    let world = World::new();
    let refuses_bad = |post: &Post| match &*post.event().0 {
        "bad" => Reply::Status(422, ""),
        _ => OK,
    };
    let (receiver, port) = Receiver::listen(refuses_bad);
    let mut running = relay(&world, port).option("--on-error", "park").start();
    running.wait_ready();
    emit_together(&world, &["bad", "good"], 5);
    let good = || receiver.kept_of("good");
    eventually("others arrive", ARRIVAL, good, |kept| kept.len() == 5);
    let number = || world.number_parked();
    eventually("the key is parked", ARRIVAL, number, |parked| *parked == 5);
    world.wait_confirmed();
    assert_eq!(receiver.asked_of("bad").len(), 1, "{}", running.log());
    receiver.judge_by(|_| OK);
    parked::command(&world, "retry")
        .flag("--all")
        .flag("--yes")
        .succeed();
    eventually("nothing is parked", ARRIVAL, number, |parked| *parked == 0);
    assert_eq!(receiver.kept_of("bad"), [1, 2, 3, 4, 5]);
    receiver.assert_one_of_a_key_at_once();
    assert_eq!(receiver.assert_all_kept(&world), 0);
    assert_eq!(running.terminate(EXIT), Some(0));
}

/// P3: the receiver takes others, so that the fault is the record's.
#[test]
fn a_webhook_that_crashes_the_receiver_is_parked_and_an_outage_parks_nothing() {
    let world = World::new();
    let sql = world.sql();
    let (receiver, port) = Receiver::listen(|_| Reply::Status(503, ""));
    let mut running = relay(&world, port).option("--on-error", "park").start();
    running.wait_ready();
    emit_together(&world, &["bad", "good"], 3);
    // Nothing is taken: these attempts count for no record.
    let asked = || receiver.asked_of("bad").len();
    eventually("it is tried again", 3 * ARRIVAL, asked, |asked| *asked >= 3);
    assert_eq!(world.number_parked(), 0, "{}", running.log());
    receiver.judge_by(|post: &Post| match &*post.event().0 {
        "bad" => Reply::Status(502, ""),
        _ => OK,
    });
    world.emit(&sql, "good");
    let number = || world.number_parked();
    eventually("the key is parked", 3 * ARRIVAL, number, |parked| {
        *parked == 3
    });
    let good = || receiver.kept_of("good");
    eventually("others arrive", 3 * ARRIVAL, good, |kept| kept.len() == 4);
    receiver.judge_by(|_| OK);
    eventually("nothing is parked", 3 * ARRIVAL, number, |parked| {
        *parked == 0
    });
    assert_eq!(receiver.assert_all_kept(&world), 0);
    assert_eq!(running.terminate(EXIT), Some(0));
}

/// The same id, and a signature of each attempt; the receiver says how long to wait.
#[test]
fn a_webhook_that_waits_holds_up_its_key_alone_and_is_signed_again() {
    let world = World::new();
    let mut refusals = 0;
    let judge = move |post: &Post| match &*post.event().0 {
        "slow" if refusals < 2 => {
            refusals += 1;
            Reply::Status(429, "Retry-After: 10\r\n")
        }
        "endless" => Reply::Endless,
        _ => OK,
    };
    let (receiver, port) = Receiver::listen(judge);
    let secrets = std::env::temp_dir().join(format!("{}.whsec", world.name));
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    std::fs::write(&secrets, secret).expect("a file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&secrets, mode).expect("a file of ours");
    let file = secrets.display();
    let mut running = relay(&world, port)
        .variable("WALRELAY_WEBHOOK_SIGNING_SECRETS_FILE", &file.to_string())
        .start();
    running.wait_ready();
    emit_together(&world, &["slow", "endless", "quick"], 3);
    let others = || (receiver.kept_of("quick"), receiver.kept_of("endless"));
    let expected = (vec![1, 2, 3], vec![1, 2, 3]);
    eventually("others arrive", ARRIVAL, others, |kept| *kept == expected);
    assert_eq!(receiver.kept_of("slow"), [0_i64; 0]);
    assert_eq!(receiver.assert_all_kept(&world), 0);
    receiver.assert_one_of_a_key_at_once();
    let asked = receiver.asked_of("slow");
    assert_eq!(asked.len(), 5);
    let of = |name: &str| {
        let first = asked.iter().take(3);
        first
            .map(|post| post.headers[name].clone())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(of("webhook-id").len(), 1);
    assert_eq!(of("webhook-timestamp").len(), 3);
    assert_eq!(of("webhook-signature").len(), 3);
    assert!(!running.log().contains("MfKQ9r8"), "the secret is logged");
    assert_eq!(running.terminate(EXIT), Some(0));
    std::fs::remove_file(secrets).expect("it is there");
}

#[test]
fn a_receiver_that_is_away_or_refuses_us_is_told_apart() {
    let world = World::new();
    let sql = world.sql();
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = nobody.local_addr().expect("an address").port();
    drop(nobody);
    let running = relay(&world, port).start();
    let told = || running.log().contains("bus_disconnected");
    assert!(until(ARRIVAL, || told().then_some(())).is_some());
    drop(running);

    let (receiver, port) = Receiver::listen(|_| Reply::Status(401, ""));
    let url = format!("http://127.0.0.1:{port}/in");
    let command = relay(&world, port).variable("WALRELAY_WEBHOOK_URL", &url);
    let mut running = command.start();
    running.wait_ready();
    world.emit(&sql, "a");
    assert_eq!(running.wait_exit(3 * EXIT), BUS_REFUSED);
    let log = running.log();
    assert!(
        log.contains("answers 401") && log.contains("webhook.authorization_file"),
        "{log}"
    );

    // Redirects are not followed, and the event is tried again.
    receiver.judge_by(|_| Reply::Status(301, "Location: /in/elsewhere\r\n"));
    let mut running = relay(&world, port)
        .variable("WALRELAY_DELIVERY_RETRY_ATTEMPTS", "2")
        .variable("WALRELAY_DELIVERY_RETRY_BASE", "100ms")
        .start();
    assert_eq!(running.wait_exit(3 * EXIT), BUS_REFUSED);
    let log = running.log();
    assert!(log.contains("redirects are not followed"), "{log}");
    receiver.judge_by(|_| OK);
    let mut running = relay(&world, port).start();
    running.wait_ready();
    assert_eq!(receiver.assert_all_kept(&world), 0);
    assert!(receiver.with(|state| {
        state
            .asked
            .iter()
            .all(|post| !post.path.contains("elsewhere"))
    }));
    assert_eq!(running.terminate(Duration::from_secs(20)), Some(0));
}

#[test]
fn the_certificate_of_the_receiver_is_verified() {
    let world = World::new();
    let sql = world.sql();
    let authority = Authority::new("webhook");
    let identity = authority.certify("receiver", &LOOPBACK);
    let (receiver, port) = Receiver::listen_as(&identity, |_| OK);
    let url = format!("https://127.0.0.1:{port}/in");
    let command = || relay(&world, port).variable("WALRELAY_WEBHOOK_URL", &url);
    world.emit(&sql, "a");
    let mut running = command().start();
    assert_eq!(running.wait_exit(3 * EXIT), BUS_REFUSED);
    let log = running.log();
    assert!(log.contains("webhook.ca_file"), "{log}");
    let trusted = authority.root().display().to_string();
    let mut running = command()
        .variable("WALRELAY_WEBHOOK_CA_FILE", &trusted)
        .start();
    running.wait_ready();
    assert_eq!(receiver.assert_all_kept(&world), 0);
    assert_eq!(running.terminate(EXIT), Some(0));
}
