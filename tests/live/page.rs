//! P11: the status page shows the figures of `/metrics`, and turns with an outage.

pub(super) mod browser;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use crate::support::relay::Relay;
use crate::support::servers::{Kafka, Postgres};
use crate::support::wait::{LIMIT, eventually};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

use browser::Browser;

/// The figures of a page, by their samples in `/metrics`.
fn figures(html: &str) -> BTreeMap<String, f64> {
    let figures = html.split("<data value=\"").skip(1);
    let figure = |text: &str| {
        let (value, rest) = text.split_once("\" title=\"")?;
        let sample = rest.split_once('"')?.0.replace("&quot;", "\"");
        Some((sample, value.parse().ok()?))
    };
    figures
        .map(|text| figure(text).unwrap_or_else(|| panic!("no figure: {text}")))
        .collect()
}

/// The figures of the page that are not those of `/metrics`, which go on meanwhile.
fn differences(relay: &Relay, shown: BTreeMap<String, f64>) -> Vec<String> {
    assert!(shown.len() > 15, "{shown:?}");
    let differs = |(sample, value): (String, f64)| {
        let now = relay.metric(&sample);
        (now != Some(value)).then(|| format!("{sample}: {value} and {now:?}"))
    };
    shown.into_iter().filter_map(differs).collect()
}

/// What one open page was sent, one entry per second.
pub(super) struct Viewer(Arc<Mutex<Vec<String>>>);

impl Viewer {
    pub(super) fn of(relay: &Relay) -> Viewer {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let port = relay.port;
        let events = Arc::clone(&seen);
        std::thread::spawn(move || {
            while let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
                if write!(stream, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").is_err() {
                    break;
                }
                let lines = BufReader::new(stream).lines().map_while(Result::ok);
                for event in lines.filter(|line| line.starts_with("data: ")) {
                    events.lock().expect("events").push(event);
                }
            }
        });
        Viewer(seen)
    }

    fn seen(&self) -> usize {
        self.0.lock().expect("events").len()
    }

    /// What the page shows now, also after the end of the relay.
    pub(super) fn last(&self) -> String {
        self.0
            .lock()
            .expect("events")
            .last()
            .cloned()
            .unwrap_or_default()
    }

    /// The first event from `start` on that shows this tone.
    fn first(&self, tone: &str, start: usize) -> Option<usize> {
        let events = self.0.lock().expect("events");
        let tone = format!("<section class=\"{tone}\" id=\"state\"");
        (start..events.len()).find(|index| events[*index].contains(&tone))
    }
}

#[test]
fn the_page_shows_the_figures_of_the_metrics_and_turns_with_an_outage() {
    let kafka = Kafka::private();
    let world = World::on(Postgres::shared(), kafka.brokers());
    let relay = world.relay();
    let sql = world.sql();
    (0..5).for_each(|_| world.emit(&sql, "a"));
    eventually(
        "all are counted",
        ARRIVAL,
        || relay.metric("walrelay_acked_events_total"),
        |acked| *acked == Some(5.0),
    );
    let page = || relay.get("/").map(|(_, html)| html).unwrap_or_default();
    let differing = || differences(&relay, figures(&page()));
    eventually(
        "the figures are those of the metrics",
        ARRIVAL,
        differing,
        Vec::is_empty,
    );
    assert_eq!(
        figures(&page()).get("walrelay_acked_events_total"),
        Some(&5.0)
    );
    let topic = format!("Topic {}", world.topic(0));
    eventually(
        "the topic is on the page",
        ARRIVAL,
        || page().contains(&topic),
        |shown| *shown,
    );

    let viewer = Viewer::of(&relay);
    eventually(
        "the page is shown",
        ARRIVAL,
        || viewer.first("good", 0),
        Option::is_some,
    );
    kafka.kill_hard();
    world.emit(&sql, "a");
    let is_out = || {
        relay
            .readiness()
            .is_some_and(|(_, body)| body.contains("bus_disconnected"))
    };
    eventually("the outage is reported", ARRIVAL, is_out, |out| *out);
    assert!(
        relay.metric(r#"walrelay_errors_total{kind="bus_unreachable"}"#) > Some(0.0),
        "{}",
        relay.metrics()
    );
    // An event each second: the second one after the report shows it at the latest. Those of a
    // few seconds may be on their way.
    let reported = viewer.seen();
    let turned = eventually(
        "the page turns",
        ARRIVAL,
        || viewer.first("bad", 0),
        Option::is_some,
    );
    assert!(
        turned.is_some_and(|turned| turned <= reported + 5),
        "{turned:?} and {reported}"
    );
    let html = page();
    for words in [
        "Not ready: not connected to Kafka",
        "check that the brokers run",
        "<b>Fix: </b>",
    ] {
        assert!(html.contains(words), "{words} is not in {html}");
    }
}

const STATE: &str = "document.querySelector('#state')?.className";

fn shows(browser: &mut Browser, expression: &str, expected: &Value) {
    eventually(
        expression,
        LIMIT,
        || browser.evaluate(expression),
        |value| value == expected,
    );
}

/// The folder that gets pictures, if `WALRELAY_TEST_PICTURES` names one.
pub(super) fn pictures() -> Option<PathBuf> {
    std::env::var_os("WALRELAY_TEST_PICTURES").map(PathBuf::from)
}

pub(super) fn keep_picture(browser: &mut Browser, name: &str) {
    if let Some(folder) = pictures() {
        browser.picture(&folder.join(name));
    }
}

#[test]
fn a_browser_shows_the_page_with_and_without_scripts() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let (proxy, brokers) = Kafka::shared().behind_proxy();
    let world = World::new();
    let mut relay = world.run().option("--brokers", &brokers).start();
    relay.wait_ready();
    let url = format!("http://127.0.0.1:{}/", relay.port);
    browser.look(1000, 1000, "light");
    browser.open(&url);
    shows(&mut browser, STATE, &"good".into());
    let writers = world.workload(&Plan {
        pause: Duration::from_millis(40),
        ..Plan::default()
    });
    // Some minutes of it make a better picture.
    (0..if pictures().is_some() { 80 } else { 1 }).for_each(|_| writers.wait_for(200));
    keep_picture(&mut browser, "status-page.png");
    browser.look(1000, 1000, "dark");
    keep_picture(&mut browser, "status-page-dark.png");
    browser.look(390, 844, "light");
    keep_picture(&mut browser, "status-page-phone.png");
    // It is as wide as the screen.
    shows(
        &mut browser,
        "document.documentElement.scrollWidth",
        &390.into(),
    );
    writers.stop();
    world.wait_confirmed();
    // Without loading the page again.
    let main = "document.querySelector('main').innerHTML";
    let differing = || {
        differences(
            &relay,
            figures(browser.evaluate(main).as_str().unwrap_or_default()),
        )
    };
    eventually(
        "the figures are those of the metrics",
        ARRIVAL,
        differing,
        Vec::is_empty,
    );
    proxy.refuse();
    world.emit(&world.sql(), "a");
    shows(&mut browser, STATE, &"bad".into());
    // The pictures have it from the next second on.
    shows(
        &mut browser,
        "document.querySelector('.out').getAttribute('d') != ''",
        &true.into(),
    );
    browser.look(1000, 1000, "light");
    keep_picture(&mut browser, "status-page-outage.png");
    proxy.resume();
    shows(&mut browser, STATE, &"good".into());
    assert_eq!(browser.complaints, [""; 0], "of the page and its policy");

    browser.allow_scripts(false);
    browser.open(&url);
    let time = "document.querySelector('#about')?.textContent";
    let first = eventually(
        "the page is there",
        LIMIT,
        || browser.evaluate(time),
        Value::is_string,
    );
    eventually(
        "it comes again",
        LIMIT,
        || browser.evaluate(time),
        |now| now.is_string() && *now != first,
    );

    browser.allow_scripts(true);
    browser.open(&url);
    shows(&mut browser, STATE, &"good".into());
    assert_eq!(relay.terminate(ARRIVAL), Some(0));
    shows(&mut browser, "document.body.className", &"gone".into());
}
