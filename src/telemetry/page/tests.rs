use super::snapshot::{SAMPLES_MAX, Snapshot};
use super::*;
use crate::config::Bus;
use crate::telemetry::Flow;
use walrelay_core::error::{Error, Kind};
use walrelay_core::position::Lsn;
use walrelay_core::readiness::{Side, ToDo};

/// What the page shows after so many ticks.
fn page(telemetry: &Telemetry, ticks: u64) -> Snapshot {
    let mut history = History::default();
    let start = Instant::now();
    for tick in 0..ticks {
        let now = start + TICK * u32::try_from(tick).unwrap();
        Snapshot::take(telemetry, &mut history, now);
        history.tick(telemetry, now);
    }
    Snapshot::take(
        telemetry,
        &mut history,
        start + TICK * u32::try_from(ticks).unwrap(),
    )
}

/// Connected, and with a first report; not ready when nothing is acked for this long.
fn connected(ready_within: Duration, has_work: bool) -> Telemetry {
    let telemetry = Telemetry::new(Bus::default(), ready_within);
    Side::ALL
        .into_iter()
        .for_each(|side| telemetry.connected(side, true));
    telemetry.health.report(if has_work {
        ToDo::Events { progressed: false }
    } else {
        ToDo::Nothing
    });
    telemetry
}

fn ready() -> Telemetry {
    let telemetry = connected(Duration::from_secs(30), false);
    telemetry.metrics.confirmed_lsn.set(Lsn::new(1_000));
    telemetry.metrics.server_wal_end_lsn.set(Lsn::new(6_000));
    telemetry
}

#[track_caller]
fn assert_shows(telemetry: &Telemetry, ticks: u64, texts: &[&str]) {
    let html = html(&page(telemetry, ticks));
    for text in texts {
        assert!(html.contains(text), "{text} is not in {html}");
    }
}

#[test]
fn a_relay_that_cannot_start_draws_nothing_and_shows_the_cause_and_the_fix() {
    let telemetry = Telemetry::new(Bus::default(), Duration::from_secs(30));
    let nothing = [
        concat!(
            r#"<section class="wait" id="state" role="status">"#,
            "<h2>Not at work: not connected to both ends yet"
        ),
        r#"<span class="soft" title="walrelay_lag_bytes">not known</span>"#,
        r#"<path class="bars" d=""></path>"#,
        "None since the start.",
    ];
    assert_shows(&telemetry, 0, &nothing);
    telemetry.failed(&Error::new(Kind::BusUnreachable, "no broker answers"));
    let bad = r#"<section class="bad" id="state" role="status"><h2>Not at work: not connected"#;
    assert_shows(
        &telemetry,
        0,
        &[
            bad,
            "<p>no broker answers. Fix: check that the servers of the bus run",
        ],
    );
}

#[test]
fn an_outage_is_shaded_in_the_pictures() {
    let telemetry = ready();
    telemetry.connected(Side::Bus, false);
    assert_shows(
        &telemetry,
        3,
        &[r#"<path class="out" d="M14 0v101h1V0"></path>"#],
    );
}

#[test]
fn a_relay_that_stands_still_blames_the_brokers_only_for_events_in_flight() {
    let telemetry = connected(Duration::ZERO, true);
    let blocked = "Fix: see walrelay_intake_closed and the last warnings of the log, and what \
                   blocks walrelay in Postgres";
    assert_shows(&telemetry, 1, &[blocked]);
    telemetry.metrics.in_flight_events.set(1);
    assert_shows(
        &telemetry,
        1,
        &["Fix: see the logs and the disks of the brokers"],
    );
}

#[test]
fn a_slot_that_is_far_behind_is_shown_in_large_units() {
    let telemetry = ready();
    telemetry.metrics.slot_restart_lsn.set(Lsn::new(1_000));
    let end = Lsn::new(1_000 + (100 << 30));
    telemetry.metrics.server_wal_end_lsn.set(end);
    telemetry.metrics.oldest_transaction_seconds.set(3 * 86_400);
    let shown = [
        r#"title="walrelay_lag_bytes">100 GiB</data>"#,
        r#"<data value="107374182400" title="walrelay_retained_wal_bytes">100 GiB</data>"#,
        r#"title="walrelay_oldest_transaction_seconds">72.0 h</data>"#,
    ];
    assert_shows(&telemetry, 0, &shown);
}

#[test]
fn stand_bys_are_shown_with_their_pids() {
    let telemetry = ready();
    assert!(!html(&page(&telemetry, 0)).contains("stand by:"));
    telemetry.stand_by_pids.send_replace(vec![17, 18]);
    assert_shows(
        &telemetry,
        0,
        &["2 relays stand by: backend pid 17, 18. <code>walrelay status"],
    );
}

#[test]
fn whatever_comes_from_outside_is_escaped() {
    let hostile = "<script>alert('\"&')</script>";
    let telemetry = ready();
    telemetry.failed(&Error::new(Kind::BusRefused, hostile).remedy(hostile));
    telemetry.flows.send_replace(vec![Flow {
        name: hostile.to_owned(),
        events: 1,
    }]);
    telemetry.standing_by(Some(hostile.to_owned()));
    let html = html(&page(&telemetry, 1));
    assert!(!html.contains("<script>alert"), "{html}");
    assert!(
        html.matches("&lt;script&gt;alert('&quot;&amp;')&lt;/script&gt;")
            .count()
            >= 4,
        "{html}"
    );
}

#[test]
fn the_history_is_bounded_and_rates_are_those_of_the_last_seconds() {
    let telemetry = ready();
    let mut history = History::default();
    let start = Instant::now();
    for second in 0..5_000 {
        telemetry.metrics.acked_events.inc_by(7);
        telemetry.flows.send_replace(vec![Flow {
            name: "Topic orders".to_owned(),
            events: second * 3,
        }]);
        let now = start + TICK * u32::try_from(second).unwrap();
        let is_looked_at = second % 100 < 30;
        if is_looked_at {
            let snapshot = Snapshot::take(&telemetry, &mut history, now);
            let is_known = second % 100 > 0;
            assert_eq!(
                snapshot.rate("walrelay_acked_events_total"),
                is_known.then_some(7.0),
                "{second}"
            );
            assert_eq!(
                snapshot.rate("Topic orders"),
                is_known.then_some(3.0),
                "{second}"
            );
        }
        history.tick(&telemetry, now);
    }
    Snapshot::take(&telemetry, &mut history, start + TICK * 5_000);
    telemetry.flows.send_replace(vec![Flow {
        name: "Topic mail".to_owned(),
        events: 9_000,
    }]);
    let snapshot = Snapshot::take(&telemetry, &mut history, start + TICK * 5_001);
    assert_eq!(snapshot.rate("walrelay_acked_events_total"), Some(0.0));
    assert_eq!(
        snapshot.rate("Topic mail"),
        None,
        "it was not among the busiest topics"
    );
    assert_eq!(snapshot.hour.len(), SAMPLES_MAX);
    assert!(
        snapshot
            .hour
            .iter()
            .all(|sample| sample.highest[0] == Some(5_000.0))
    );
    assert!(
        html(&snapshot).len() < 60_000,
        "{} bytes",
        html(&snapshot).len()
    );
}
