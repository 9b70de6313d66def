//! P9: what heals is retried with back-off; what does not ends with a cause, a remedy and an exit
//! code.

use std::time::{Duration, Instant};

use crate::support::relay::{EXIT, RelayCommand};
use crate::support::servers::postgres::GUARDED_ROLE;
use crate::support::servers::{Kafka, Postgres, free_port};
use crate::support::wait::{eventually, throughout};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

/// `command` ends with `code`, and says why in a line that holds `cause`.
#[track_caller]
fn assert_ends(command: &RelayCommand, code: i32, cause: &str) {
    let mut relay = command.start();
    let exit = relay.wait_exit(EXIT);
    let log = relay.log();
    assert_eq!(exit, Some(code), "{log}");
    assert!(
        log.lines().any(|line| line.contains(cause)),
        "no line names {cause:?}:\n{log}"
    );
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn a_wrong_password_ends_with_11() {
    let postgres = Postgres::private(15, &[]);
    postgres.sql().run(&format!(
        "create role {GUARDED_ROLE} login replication password 'right'"
    ));
    let world = World::on(&postgres, Kafka::shared().brokers());
    let url = postgres.url_as(&format!("{GUARDED_ROLE}:wrong"), &world.name);
    assert_ends(
        &world.run().option("--database-url", &url),
        11,
        GUARDED_ROLE,
    );
}

#[test]
fn a_role_that_may_not_replicate_ends_with_11() {
    let postgres = Postgres::private(15, &[]);
    postgres.sql().run("create role plain login");
    let world = World::on(&postgres, Kafka::shared().brokers());
    assert_ends(
        &world
            .run()
            .option("--database-url", &postgres.url_as("plain", &world.name)),
        11,
        "plain",
    );
}

#[test]
fn a_missing_database_ends_with_11() {
    let world = World::new();
    let url = Postgres::shared().url("there_is_no_such_database");
    assert_ends(
        &world.run().option("--database-url", &url),
        11,
        "there_is_no_such_database",
    );
}

#[test]
fn a_missing_slot_ends_with_14() {
    let world = World::new();
    assert_ends(
        &world.run().option("--slot", "there_is_no_such_slot"),
        14,
        "there_is_no_such_slot",
    );
}

#[test]
fn a_slot_of_another_plugin_ends_with_14() {
    let postgres = Postgres::private(15, &[]);
    let world = World::on(&postgres, Kafka::shared().brokers());
    let name = &world.name;
    let sql = world.sql();
    sql.run(&format!("select pg_drop_replication_slot('{name}')"));
    sql.run(&format!(
        "select pg_create_physical_replication_slot('{name}')"
    ));
    assert_ends(&world.run(), 14, name);
}

#[test]
fn a_wal_level_without_logical_decoding_ends_with_12() {
    let postgres = Postgres::private(15, &[("wal_level", "replica")]);
    let world = World::bare(&postgres, Kafka::shared().brokers());
    assert_ends(&world.run(), 12, "wal_level");
    let output = world.command("setup").output();
    assert_eq!(
        output.status.code(),
        Some(12),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn an_unknown_option_or_a_bad_slot_name_ends_with_2() {
    let world = World::new();
    assert_eq!(
        world.run().flag("--no-such-option").output().status.code(),
        Some(2)
    );
    assert_eq!(
        world
            .run()
            .option("--slot", "Not A Slot")
            .output()
            .status
            .code(),
        Some(2)
    );
}

#[test]
fn the_relay_waits_for_a_postgres_that_is_down() {
    let postgres = Postgres::private(15, &[]);
    let world = World::on(&postgres, Kafka::shared().brokers());
    world.emit(&world.sql(), "a");
    postgres.stop_fast(EXIT);
    let mut relay = world.run().start();
    throughout("the relay waits", Duration::from_secs(3), || {
        relay.process.exited().is_none() && !relay.is_ready()
    });
    postgres.start();
    world.assert_all_delivered();
    relay.wait_ready();
}

/// How soon the relay tries again is shown without a server, in `walrelay_core::sessions`.
#[test]
fn an_event_after_a_restart_of_postgres_arrives() {
    let postgres = Postgres::private(15, &[]);
    let world = World::on(&postgres, Kafka::shared().brokers());
    let mut relay = world.relay();
    for (round, away_s) in [2, 4].into_iter().enumerate() {
        world.emit(&world.sql(), "a");
        world.wait_confirmed();
        postgres.stop_fast(EXIT);
        std::thread::sleep(Duration::from_secs(away_s));
        postgres.start();
        let serves = Instant::now();
        world.emit(&world.sql(), "a");
        let acked = || relay.metric("walrelay_acked_events_total");
        let events = 2.0 * (round as f64 + 1.0);
        eventually("it is acked", ARRIVAL, acked, |acked| {
            *acked == Some(events)
        });
        eprintln!(
            "{away_s} s away, then {:?} until the first record",
            serves.elapsed()
        );
    }
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    let log = relay.log();
    assert_eq!(
        log.matches("the first events of this run are acked")
            .count(),
        1,
        "{log}"
    );
    let first: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&first["message"], &first["slot"]),
        (&"starting".into(), &world.name.as_str().into()),
        "{log}"
    );
}

#[test]
fn the_relay_waits_for_a_broker_that_is_down() {
    let world = World::new();
    world.emit(&world.sql(), "a");
    let nobody = format!("127.0.0.1:{}", free_port());
    let mut relay = world.run().option("--brokers", &nobody).start();
    throughout("the relay waits", Duration::from_secs(4), || {
        relay.process.exited().is_none() && !relay.is_ready()
    });
    let told = || relay.log().contains("Kafka does not answer");
    eventually("the cause is told", ARRIVAL, told, |told| *told);
    let code = relay.terminate(EXIT);
    assert!(
        code.is_some(),
        "it was killed by a signal instead of leaving"
    );
    let log = relay.log();
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let down = lines
        .into_iter()
        .find(|line| line["message"] == "Kafka does not answer");
    let has = |line: serde_json::Value| {
        let error = line["error"].as_str().unwrap_or_default();
        line["event"] == "bus_disconnected"
            && error.contains("Connection refused")
            && line["fix"].is_string()
    };
    assert!(down.is_some_and(has) && !log.contains("[thrd:"), "{log}");
    let _relay = world.relay();
    assert_eq!(world.assert_all_delivered().duplicates, 0);
}

#[test]
fn a_terminated_walsender_is_replaced() {
    let world = World::new();
    let mut relay = world.relay();
    let sql = world.sql();
    let writers = world.workload(&Plan::default());
    for _ in 0..5 {
        writers.wait_for(30);
        let walsender = world.wait_streaming();
        sql.run(&format!("select pg_terminate_backend({walsender})"));
        eventually(
            "another walsender",
            ARRIVAL,
            || world.walsender(),
            |pid| ![0, walsender].contains(pid),
        );
    }
    writers.stop();
    world.assert_all_delivered();
    assert!(relay.process.exited().is_none());
}

#[test]
fn every_command_connects_over_a_unix_socket() {
    let postgres = Postgres::private(15, &[]);
    let world = World::on(&postgres, Kafka::shared().brokers());
    let mut relay = world
        .run()
        .option("--database-url", &postgres.url_by_socket(&world.name))
        .start();
    relay.wait_ready();
    world.emit(&world.sql(), "a");
    world.assert_all_delivered();
    world.wait_confirmed();
    let by_tcp =
        "select count(*) from pg_stat_activity where application_name like 'walrelay%' and \
         client_addr is not null
                  and application_name <> 'walrelay-tests'";
    assert_eq!(
        world.sql().number(by_tcp),
        0,
        "{}",
        world
            .sql()
            .text("select string_agg(application_name, ' ') from pg_stat_activity")
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
