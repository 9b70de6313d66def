//! P1, P3, P11: what rows and receivers may try.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use serde_json::{Value, json};

use super::signed::write_secrets;
use super::{OK, Post, Receiver, Reply, emit_together, relay};
use crate::support::relay::{EXIT, fresh_path};
use crate::support::servers::Postgres;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

/// More than the relay has for itself and what is in flight.
const RESIDENT_BYTES_MAX: u64 = 96 << 20;

/// P3: each redirect is one request, whatever its receiver wants.
#[test]
fn a_redirect_is_a_refusal_and_asks_nobody_else() {
    let world = World::new();
    let other = TcpListener::bind("127.0.0.1:0").expect("a free port");
    other.set_nonblocking(true).expect("a listener");
    let elsewhere = format!(
        "Location: http://{}/\r\n",
        other.local_addr().expect("an address")
    );
    let elsewhere: &'static str = elsewhere.leak();
    let judge = move |post: &Post| match &*post.event().0 {
        "301" => Reply::Status(301, "Location: /in/elsewhere\r\n"),
        "302" => Reply::Status(302, elsewhere),
        "303" => Reply::Status(303, elsewhere),
        "307" => Reply::Status(307, "Location: /in/elsewhere\r\n"),
        "308" => Reply::Status(308, elsewhere),
        _ => OK,
    };
    let (receiver, port) = Receiver::listen(judge);
    let mut running = relay(&world, port)
        .option("--on-error", "park")
        .variable("WALRELAY_DELIVERY_RETRY_ATTEMPTS", "0")
        .start();
    running.wait_ready();
    emit_together(&world, &["301", "302", "303", "307", "308", "good"], 1);
    let parked = || world.number_parked();
    eventually("redirects are refused", ARRIVAL, parked, |parked| {
        *parked == 5
    });
    let good = || receiver.kept_of("good");
    eventually("the other arrives", ARRIVAL, good, |kept| kept.len() == 1);
    let asked = receiver.with(|state| state.asked.clone());
    assert_eq!(asked.len(), 6, "{asked:?}");
    let path = format!("/in/{}", world.topic(0));
    let is_ours = |post: &Post| post.method == "POST" && post.path == path;
    assert!(asked.iter().all(is_ours), "{asked:?}");
    assert!(other.accept().is_err(), "nobody else is asked");
    assert_eq!(running.terminate(EXIT), Some(0), "{}", running.log());
}

/// P1, P4: the head is the answer, and the body is nobody's.
#[test]
fn the_body_of_an_answer_repeats_no_event_and_fills_no_memory() {
    let world = World::new();
    let judge = |post: &Post| match &*post.event().0 {
        "stalls" => Reply::Endless,
        "cut" => Reply::Body {
            length: 1_000,
            sent: 10,
        },
        "huge" => Reply::Body {
            length: 256 << 20,
            sent: 256 << 20,
        },
        _ => OK,
    };
    let (receiver, port) = Receiver::listen(judge);
    let mut running = relay(&world, port).option("--on-error", "park").start();
    running.wait_ready();
    let keys = ["stalls", "cut", "huge", "good"];
    emit_together(&world, &keys, 4);
    assert_eq!(receiver.assert_all_kept(&world), 0);
    world.wait_confirmed();
    let peak = running.process.resident_peak_bytes().expect("it runs");
    println!("4 answers of 256 MiB: {} MiB at most", peak >> 20);
    assert!(peak < RESIDENT_BYTES_MAX, "{} MiB resident", peak >> 20);
    assert_eq!(receiver.with(|state| state.asked.len()), 16);
    assert_eq!(running.terminate(EXIT), Some(0), "{}", running.log());
}

/// The header that asks to wait until then, and to the next full second.
fn until(at: SystemTime) -> &'static str {
    let at = Timestamp::try_from(at + Duration::from_secs(1)).expect("a time");
    let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&at);
    format!("Retry-After: {}\r\n", date.expect("a date")).leak()
}

/// P1, P2: a wait is that of its key.
#[test]
fn a_receiver_that_asks_to_wait_is_obeyed_and_garbage_is_no_wait() {
    const WAIT: Duration = Duration::from_secs(3);
    let world = World::new();
    let mut asked = BTreeSet::new();
    let judge = move |post: &Post| {
        let key = post.event().0;
        let is_first = asked.insert(key.clone());
        match &*key {
            "date" if is_first => Reply::Status(429, until(SystemTime::now() + WAIT)),
            "garbage" if is_first => Reply::Status(429, "Retry-After: soon, -1\r\n"),
            "closed" if is_first => Reply::Closed,
            "hour" => Reply::Status(429, "Retry-After: 3600\r\n"),
            _ => OK,
        }
    };
    let (receiver, port) = Receiver::listen(judge);
    let secrets = fresh_path("whsec");
    write_secrets(&secrets, &["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]);
    let file = secrets.display().to_string();
    let mut running = relay(&world, port)
        .option("--on-error", "park")
        .variable("WALRELAY_WEBHOOK_SIGNING_SECRETS_FILE", &file)
        .variable("WALRELAY_SHUTDOWN_TIMEOUT", "100ms")
        .start();
    running.wait_ready();
    emit_together(&world, &["date", "garbage", "closed", "hour", "good"], 3);
    let kept = || receiver.with(|state| state.kept.len());
    eventually("the others arrive", ARRIVAL, kept, |kept| *kept >= 12);
    for key in ["date", "garbage", "closed", "good"] {
        assert_eq!(receiver.kept_of(key), [1, 2, 3], "{key}");
    }
    receiver.assert_one_of_a_key_at_once();
    for key in ["date", "garbage", "closed"] {
        let asked = receiver.asked_of(key);
        assert_eq!(asked.len(), 4, "{key}");
        assert_eq!(asked[0].id(), asked[1].id(), "{key}");
    }
    let date = receiver.asked_of("date");
    let at = |post: &Post| {
        post.headers["webhook-timestamp"]
            .parse::<u64>()
            .expect("seconds")
    };
    assert!(at(&date[1]) >= at(&date[0]) + WAIT.as_secs(), "{date:?}");
    assert_ne!(
        date[0].headers["webhook-signature"],
        date[1].headers["webhook-signature"]
    );
    assert_eq!(receiver.asked_of("hour").len(), 1, "it waits for an hour");
    assert_eq!(world.number_parked(), 0, "{}", running.log());
    running.kill_hard();
}

/// Values that name another host, by means of a decoy's address. The last six are names of topics.
fn hosts(decoy: &str) -> Vec<String> {
    let of_decoy = [
        "//{}/",
        "/{}/",
        "@{}",
        "u:p@{}",
        "\\\\{}\\",
        "http://{}/",
        "{}",
        ":@{}",
        "?@{}/",
        "#@{}/",
        ".{}",
        "%40{}",
        "%2f%2f{}",
        "\r\nHost: {}",
        " {}",
        "\t{}",
        "x\r\n\r\nPOST / HTTP/1.1\r\nHost: {}",
    ];
    let of_decoy = of_decoy.iter().map(|value| value.replace("{}", decoy));
    let others = [
        "//169.254.169.254/",
        "%2f..%2f",
        "%2e%2e",
        "..",
        ".",
        "../..",
        "\\evil",
        "evil\u{3002}example",
        "\u{2460}\u{2461}\u{2466}.\u{24ea}.\u{24ea}.\u{2460}",
        "",
        "169.254.169.254",
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "localhost",
        "..evil",
    ];
    of_decoy.chain(others.map(str::to_owned)).collect()
}

/// P3: a row cannot name a host, nor end a header, nor sign what is not its own.
#[test]
fn no_row_changes_where_a_request_goes() {
    let world = World::bare(Postgres::shared(), "");
    let sql = world.sql();
    sql.run(
        "create table hostile (id text primary key, topic text, key text default 'k',
         payload text default '{}', metadata jsonb default '{}')",
    );
    let decoy = TcpListener::bind("127.0.0.1:0").expect("a free port");
    decoy.set_nonblocking(true).expect("a listener");
    let decoy_address = decoy.local_addr().expect("an address").to_string();
    let (receiver, port) = Receiver::listen(|_| OK);
    let secrets = fresh_path("whsec");
    write_secrets(&secrets, &["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]);
    let config = |path: &str| {
        format!(
            "[outbox]\ntable = \"hostile\"\n[route]\ntopic = \"{{topic}}\"\nkey = \"\"\n\
             headers_from = \"{{metadata}}\"\n[route.headers]\nkey = \"{{key}}\"\n[webhook]\n\
             url = \"http://127.0.0.1:{port}{path}\"\nsigning_secrets_file = \"{}\"\n",
            secrets.display()
        )
    };
    world.command("setup").config_file(&config("/")).succeed();
    let hosts = hosts(&decoy_address);
    let places: Vec<&String> = hosts.iter().rev().take(6).collect();
    let insert =
        "insert into hostile (id, topic, key, metadata) values ($1, $2, $3, $4::text::jsonb)
                  returning id";
    let mut parked = 0;
    let mut paths = Vec::new();
    // As the whole path, inside of it, and at its end.
    for (round, template) in ["/{topic}", "/in/{topic}/x?a=1", "/in.{topic}"]
        .iter()
        .enumerate()
    {
        let run = world.command("run").config_file(&config(template));
        let run = run.option("--sink", "webhook").option("--on-error", "park");
        let mut running = run.option("--log-format", "json").start();
        running.wait_ready();
        for (at, host) in hosts.iter().enumerate() {
            let id = format!("{round}-{at}");
            sql.rows(insert, &[&id, host, &"k", &"{}"]);
        }
        for (at, (id, key, metadata)) in attempts(&decoy_address).into_iter().enumerate() {
            let id = format!("{round}-h{at}{id}");
            sql.rows(insert, &[&id, &"good", &key, &metadata.to_string()]);
        }
        // A key is a header here, whatever it looks like.
        let id = format!("{round}-key");
        let metadata = json!({"Forwarded": format!("host={decoy_address}"), "X-A": "\u{e9}"});
        sql.rows(insert, &[&id, &"good", &"../admin", &metadata.to_string()]);
        parked += hosts.len() - places.len() + attempts(&decoy_address).len();
        let number = || usize::try_from(world.number_parked()).expect("a count");
        eventually("these are refused", ARRIVAL, number, |number| {
            *number == parked
        });
        let names = places.iter().map(|place| place.as_str()).chain(["good"]);
        paths.extend(names.map(|name| template.replace("{topic}", name)));
        let kept = || receiver.with(|state| state.kept.len());
        eventually("others arrive", ARRIVAL, kept, |kept| *kept == paths.len());
        world.wait_confirmed();
        assert_eq!(running.terminate(EXIT), Some(0), "{}", running.log());
    }
    let asked = receiver.with(|state| state.asked.clone());
    let arrived: BTreeSet<&str> = asked.iter().map(|post| &*post.path).collect();
    assert_eq!(arrived, paths.iter().map(String::as_str).collect());
    assert_eq!(asked.len(), paths.len());
    let host = format!("127.0.0.1:{port}");
    let is_ours = |post: &Post| post.method == "POST" && post.headers["host"] == host;
    assert!(asked.iter().all(is_ours), "{asked:?}");
    let of_key = asked
        .iter()
        .filter(|post| post.headers["key"] == "../admin");
    assert!(of_key.clone().all(|post| post.path.contains("good")));
    assert_eq!(of_key.count(), 3);
    assert!(decoy.accept().is_err(), "nobody else is asked");
}

/// What no request can carry, or may not: the end of an id, a key, and headers.
fn attempts(decoy: &str) -> Vec<(&'static str, String, Value)> {
    let none = || "k".to_owned();
    let header = |name: &str, value: &str| ("", none(), json!({name: value}));
    let line_break = format!("x\r\nHost: {decoy}");
    vec![
        (".x", none(), json!({})),
        ("\r\nHost: evil", none(), json!({})),
        ("\u{e9}", none(), json!({})),
        ("", line_break.clone(), json!({})),
        ("", "\u{e9}\r\n".to_owned(), json!({})),
        header("Host", decoy),
        header("hOsT", decoy),
        header(":authority", decoy),
        header("X-A", &line_break),
        header(&format!("X-A: b\r\nHost: {decoy}\r\nX-B"), "c"),
        header("X-A", "x\nHost: evil"),
        header("Transfer-Encoding", "chunked"),
        header("Content-Length", "0"),
        header("Connection", "host"),
        header("Proxy-Authorization", "x"),
        header("Authorization", "x"),
        header("webhook-id", "x"),
        header("Webhook-Signature", "v1,x"),
    ]
}
