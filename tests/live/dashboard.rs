//! docs/reference/metrics.md: each query of the dashboard returns data from a Prometheus that
//! scrapes relays.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::page::browser::Browser;
use super::page::{keep_picture, pictures};
use crate::support::guardian::run_directory;
use crate::support::process::Process;
use crate::support::relay::Relay;
use crate::support::servers::{Kafka, Postgres, free_port};
use crate::support::topic;
use crate::support::wait::{LIMIT, eventually};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

const OUTBOX: &str = r#"
[delivery]
on_error = "park"
retry_base = "300ms"
[sink]
max_in_flight_events = 50
[outbox]
pending = "status = 'NEW'"
mark = "status = 'SENT', sent_at = now()"
failed = "status = 'FAILED'"
retention = "1d"
"#;

/// The installed one, or that of `scripts/check-alerts`.
fn prometheus() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let unpacked = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/target/check-alerts/usr/bin"
    ));
    let mut programs = std::env::split_paths(&path)
        .chain([unpacked])
        .map(|folder| folder.join("prometheus"));
    programs
        .find(|program| program.is_file())
        .expect("run `make alerts`, which fetches Prometheus")
}

/// A Prometheus that scrapes these ports every second.
fn scraping(ports: &[u16]) -> Relay {
    let folder = run_directory().join("prometheus");
    let port = free_port();
    std::fs::create_dir(&folder).expect("a directory for Prometheus");
    let target = |(number, port): (usize, &u16)| {
        json!({
            "targets": [format!("127.0.0.1:{port}")],
            "labels": {"instance": format!("relay-{}", number + 1)},
        })
    };
    let targets: Vec<Value> = ports.iter().enumerate().map(target).collect();
    let configuration = json!({
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "walrelay", "static_configs": targets}],
    });
    let file = folder.join("prometheus.yml");
    std::fs::write(&file, configuration.to_string()).expect("prometheus.yml");
    let mut command = Command::new(prometheus());
    command.arg(format!("--config.file={}", file.display()));
    command.arg(format!(
        "--storage.tsdb.path={}",
        folder.join("data").display()
    ));
    command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    Relay {
        process: Process::start("prometheus", command, &folder.join("log")),
        port,
    }
}

/// The number of moments at which `query` returned data. None without an answer.
fn moments(prometheus: &Relay, query: &str) -> Option<f64> {
    let counted = format!("count_over_time((count({query}))[10m:1s])");
    let encoded: String = counted.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let (status, body) = prometheus.get(&format!("/api/v1/query?query={encoded}"))?;
    assert!(status == 200 || status == 503, "{query}: {body}");
    let answer: Value = serde_json::from_str(&body).ok()?;
    match answer["data"]["result"].as_array()?.as_slice() {
        [] => Some(0.0),
        [one] => one["value"][1].as_str()?.parse().ok(),
        many => panic!("{query}: {many:?}"),
    }
}

fn dashboard() -> Value {
    serde_json::from_str(include_str!("../../deploy/grafana/walrelay.json")).unwrap()
}

/// Draws the panels at their places, with the data of their queries since `begun`, and keeps the
/// picture.
fn draw(prometheus: &Relay, begun: SystemTime) {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let seconds = |time: SystemTime| {
        time.duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_secs()
    };
    let url = format!("http://127.0.0.1:{}", prometheus.port);
    let given = json!({
        "dashboard": dashboard(), "prometheus": url,
        "from": seconds(begun), "to": seconds(SystemTime::now()),
    });
    let file = run_directory().join("panels.html");
    std::fs::write(
        &file,
        include_str!("dashboard/panels.html").replace("GIVEN", &given.to_string()),
    )
    .unwrap();
    browser.look(1400, 2190, "dark");
    browser.open(&format!("file://{}", file.display()));
    eventually(
        "the panels are drawn",
        LIMIT,
        || browser.evaluate("document.body?.className"),
        |name| name == "done",
    );
    assert_eq!(browser.complaints, [""; 0]);
    keep_picture(&mut browser, "dashboard.png");
}

/// The queries of the dashboard, for all instances.
fn queries() -> Vec<String> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let expressions = targets.map(|target| target["expr"].as_str().unwrap());
    expressions
        .map(|query| {
            query
                .replace("$instance", ".*")
                .replace("$__rate_interval", "10s")
        })
        .collect()
}

#[test]
#[ignore = "long: a minute, and it needs Prometheus"]
fn each_query_of_the_dashboard_returns_data() {
    let postgres = Postgres::private(15, &[("max_slot_wal_keep_size", "8GB")]);
    let (proxy, brokers) = Kafka::shared().behind_proxy();
    let world = World::keeping_on(&postgres, &brokers);
    world.setup();
    let sql = world.sql();
    sql.run("alter table outbox add status text not null default 'NEW', add sent_at timestamptz");
    topic::create(
        &world.brokers,
        &world.topic(0),
        1,
        &[("max.message.bytes", "1000")],
    );
    let mut relay = world.run().config_file(OUTBOX).start();
    relay.wait_ready();
    let once = World::on(&postgres, Kafka::shared().brokers());
    let mut second = once.run().option("--guarantee", "exactly-once").start();
    second.wait_ready();
    let prometheus = scraping(&[relay.port, second.port]);
    let begun = SystemTime::now();

    let plan = Plan {
        pause: Duration::from_millis(50),
        ..Plan::default()
    };
    let writers = world.workload(&plan);
    let others = once.workload(&plan);
    sql.run(&format!(
        "select emit('{}', 'too-large', 3000)",
        world.kind(0)
    ));
    let parked = || relay.metric("walrelay_waiting_events");
    eventually("an event is parked", ARRIVAL, parked, |parked| {
        *parked > Some(0.0)
    });
    // Some time makes a better picture.
    let pause = |seconds| {
        pictures()
            .into_iter()
            .for_each(|_| std::thread::sleep(Duration::from_secs(seconds)))
    };
    pause(60);
    proxy.refuse();
    pause(20);
    // The outage has to last until Prometheus has seen it. A relay with a new producer, too, is not
    // connected for a moment, which is no error.
    let has_data = |query: &str| {
        eventually(
            query,
            LIMIT,
            || moments(&prometheus, query),
            |data| *data > Some(0.0),
        )
    };
    has_data("increase(walrelay_errors_total[10s]) > 0");
    has_data("walrelay_intake_closed == 1");
    proxy.resume();
    eventually("it goes on", LIMIT, || relay.is_ready(), |ready| *ready);
    for query in queries() {
        has_data(&query);
    }
    pause(60);
    draw(&prometheus, begun);
    writers.stop();
    others.stop();
}
