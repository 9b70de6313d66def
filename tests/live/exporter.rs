//! docs/reference/metrics.md: what a relay and `walrelay exporter` show of a slot and its rows.

use std::net::TcpListener;

use crate::support::proxy::Proxy;
use crate::support::relay::{EXIT, Relay, told};
use crate::support::servers::{Postgres, free_port};
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

const OUTBOX: &str = r#"
[outbox]
pending = "status = 'NEW'"
mark = "status = 'SENT'"
failed = "status = 'FAILED'"
"#;

#[track_caller]
fn shows(relay: &Relay, samples: &[(&str, f64)]) {
    let all = || {
        samples
            .iter()
            .map(|(name, _)| relay.metric(name))
            .collect::<Vec<_>>()
    };
    let expected: Vec<_> = samples.iter().map(|(_, value)| Some(*value)).collect();
    eventually("these samples", ARRIVAL, all, |values| *values == expected);
}

#[test]
fn a_relay_and_an_exporter_show_the_slot_and_count_its_rows() {
    let world = World::keeping();
    world.setup();
    let sql = world.sql();
    sql.run("alter table outbox add status text not null default 'NEW'");
    let mut relay = world.run().config_file(OUTBOX).start();
    relay.wait_ready();
    world.emit(&sql, "a");
    let written_back = r#"walrelay_written_back_rows_total{outcome="acked"}"#;
    shows(&relay, &[(written_back, 1.0)]);
    sql.run("update outbox set status = 'FAILED'");
    let info = format!(
        concat!(
            r#"walrelay_relay_info{{slot="{0}",database="{0}",publication="walrelay_{0}","#,
            r#"mode="slot",guarantee="at-least-once"}}"#
        ),
        world.name
    );
    let unpublished = r#"walrelay_unpublished_rows{outbox="public.outbox"}"#;
    let failed = r#"walrelay_failed_rows{outbox="public.outbox"}"#;
    let active = ("walrelay_slot_active", 1.0);
    let reserved = (r#"walrelay_slot_wal_status{status="reserved"}"#, 1.0);
    shows(
        &relay,
        &[
            (&info, 1.0),
            ("walrelay_ready", 1.0),
            active,
            reserved,
            (unpublished, 0.0),
            (failed, 1.0),
        ],
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());

    world.emit(&sql, "b");
    let mut exporter = world.command("exporter").config_file(OUTBOX).start();
    shows(
        &exporter,
        &[
            ("walrelay_slot_active", 0.0),
            reserved,
            (unpublished, 1.0),
            (failed, 1.0),
        ],
    );
    assert!(
        exporter.metric("walrelay_lag_bytes") > Some(0.0),
        "{}",
        exporter.metrics()
    );
    assert!(
        exporter.metric("walrelay_retained_wal_bytes") > Some(0.0),
        "{}",
        exporter.metrics()
    );
    assert_eq!(exporter.metric("walrelay_lag_seconds"), None);
    assert!(exporter.is_ready());
    assert_eq!(
        exporter.get("/").map(|(status, _)| status),
        Some(404),
        "only a relay has a status page"
    );

    // A lock that lasts hides the count and no other metric, and for no longer than it lasts.
    let locker = world.sql();
    let count = || exporter.metric(unpublished);
    locker.run("set idle_in_transaction_session_timeout = '300s'");
    locker.run("begin; lock table outbox in access exclusive mode");
    eventually("the count is absent", ARRIVAL, count, Option::is_none);
    assert_eq!(
        exporter.metric("walrelay_slot_active"),
        Some(0.0),
        "{}",
        exporter.metrics()
    );
    locker.run("rollback");
    eventually("the count is back", ARRIVAL, count, |count| {
        *count == Some(1.0)
    });
    assert!(
        !exporter.log().contains("rows cannot be counted"),
        "{}",
        exporter.log()
    );
    assert_eq!(exporter.terminate(EXIT), Some(0), "{}", exporter.log());
}

#[test]
fn an_exporter_that_cannot_read_the_slot_says_so_once_and_recovers() {
    let world = World::new();
    let proxy = Proxy::before(&Postgres::shared().address());
    proxy.refuse();
    let exporter = world
        .command("exporter")
        .option("--database-url", &world.url_through(&proxy))
        .start();
    let failed = || exporter.metric(r#"walrelay_errors_total{kind="postgres_unreachable"}"#);
    eventually("two looks failed", ARRIVAL, failed, |errors| {
        *errors >= Some(2.0)
    });
    shows(
        &exporter,
        &[(r#"walrelay_connection_state{side="postgres"}"#, 0.0)],
    );
    assert_eq!(exporter.metric("walrelay_slot_active"), None);
    let log = exporter.log();
    let warnings: Vec<_> = log
        .lines()
        .filter(|line| line.contains("metrics of the slot are missing"))
        .collect();
    assert!(
        matches!(warnings[..], [warning] if warning.contains("WARN") && warning.contains("fix=")),
        "{log}"
    );
    proxy.resume();
    shows(
        &exporter,
        &[
            (r#"walrelay_connection_state{side="postgres"}"#, 1.0),
            ("walrelay_slot_active", 0.0),
        ],
    );
}

#[test]
fn an_exporter_of_a_missing_slot_says_so_once() {
    let world = World::keeping();
    let exporter = world.command("exporter").start();
    let failed = || exporter.metric(r#"walrelay_errors_total{kind="slot_unusable"}"#);
    eventually("two looks found none", ARRIVAL, failed, |errors| {
        *errors >= Some(2.0)
    });
    shows(
        &exporter,
        &[(r#"walrelay_connection_state{side="postgres"}"#, 1.0)],
    );
    let log = exporter.log();
    assert_eq!(log.matches("does not exist").count(), 1, "{log}");
}

#[test]
fn an_address_that_is_taken_ends_relay_and_exporter_as_what_a_restart_may_repair() {
    let world = World::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for command in [world.run(), world.command("exporter")] {
        let ended = command.option("--http", &address).output();
        let error = told(&ended.stderr);
        assert_eq!(ended.status.code(), Some(4), "{error}");
        assert!(error.contains(&address), "{error}");
    }
}

#[test]
fn a_relay_without_kafka_shows_the_cause_and_the_wal_that_the_slot_retains() {
    let world = World::new();
    let relay = world
        .run()
        .option("--brokers", &format!("127.0.0.1:{}", free_port()))
        .start();
    world.emit(&world.sql(), "a");
    let retained = || relay.metric("walrelay_retained_wal_bytes");
    eventually("it is measured", ARRIVAL, retained, |bytes| {
        *bytes > Some(0.0)
    });
    let failed = || relay.metric(r#"walrelay_errors_total{kind="bus_unreachable"}"#);
    eventually("the error is counted", ARRIVAL, failed, |errors| {
        *errors > Some(0.0)
    });
    let (_, page) = relay.get("/").expect("a page");
    assert!(
        page.contains(r#"<section class="bad" id="state""#)
            && page.contains("Fix: check that the brokers"),
        "{page}"
    );
}
