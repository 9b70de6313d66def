//! docs/how-to/runbook.md: page, doctor, log and metrics each name an outage and its remedy.

use super::doctor::Checks;
use crate::support::relay::{EXIT, Relay, RelayCommand};
use crate::support::servers::{Kafka, Postgres};
use crate::support::topic;
use crate::support::wait::{LIMIT, eventually};
use crate::support::world::{ARRIVAL, World};

/// What has to name an outage, and with which words.
struct Signs<'a> {
    /// The alert, and the sample of `/metrics` for which its expression holds.
    alert: &'a str,
    sample: &'a str,
    is_alert: fn(f64) -> bool,
    /// On the status page.
    page: &'a [&'a str],
    /// In the log.
    log: &'a [&'a str],
    check: Check<'a>,
}

/// A check of `walrelay doctor`.
struct Check<'a> {
    name: &'a str,
    state: &'a str,
    found: &'a str,
    fix: &'a str,
}

impl Check<'_> {
    #[track_caller]
    fn is_made_by(&self, doctor: &RelayCommand) {
        Checks::of(doctor).has(self.name, self.state, self.found, self.fix);
    }
}

fn has_all(text: &str, words: &[&str]) -> bool {
    words.iter().all(|word| text.contains(word))
}

fn doctor(world: &World) -> RelayCommand {
    world.command("doctor").option("--brokers", &world.brokers)
}

/// Waits until page, log, metrics and doctor have the signs.
#[track_caller]
fn assert_named(relay: &Relay, doctor: &RelayCommand, signs: &Signs) {
    let page = || relay.get("/").map(|(_, html)| html).unwrap_or_default();
    eventually("the page names it", LIMIT, page, |html| has_all(html, signs.page));
    eventually("the log names it", LIMIT, || relay.log(), |log| has_all(log, signs.log));
    assert_alert(relay, signs.alert, signs.sample, signs.is_alert);
    signs.check.is_made_by(doctor);
}

/// The alert is about this metric, whose sample is one for which it fires. `scripts/check-alerts` tests the expression.
#[track_caller]
fn assert_alert(relay: &Relay, alert: &str, sample: &str, is_alert: fn(f64) -> bool) {
    let rules = include_str!("../../deploy/prometheus/alerts.yml");
    let (_, rule) = rules.split_once(&format!("alert: {alert}\n")).unwrap_or_else(|| panic!("no alert {alert}"));
    let expression = rule.split("labels:").next().unwrap_or_default();
    let metric = sample.split('{').next().unwrap_or(sample);
    assert!(expression.contains(metric), "{alert} does not ask for {metric}: {expression}");
    eventually(sample, LIMIT, || relay.metric(sample), |value| value.is_some_and(is_alert));
}

const fn is_one(value: f64) -> bool {
    value == 1.0
}

#[test]
#[ignore = "long: the causes are those of other tests, seen from every side"]
fn a_dead_and_a_frozen_broker_are_named() {
    let kafka = Kafka::never_fenced();
    let world = World::on(Postgres::shared(), kafka.brokers());
    let relay = world.relay();
    let sql = world.sql();
    world.emit(&sql, "a");
    world.wait_confirmed(ARRIVAL);
    kafka.freeze();
    world.emit(&sql, "a");
    let signs = Signs {
        alert: "WalrelayNotReady",
        sample: "walrelay_not_ready{reason=\"kafka_disconnected\"}",
        is_alert: is_one,
        page: &["Not ready: not connected to kafka", "check that the brokers run"],
        log: &["check that the brokers run"],
        check: Check {
            name: "kafka",
            state: "wrong",
            found: "no Kafka broker answers",
            fix: "check that the brokers run",
        },
    };
    assert_named(&relay, &doctor(&world), &signs);
    kafka.thaw();
    eventually("it goes on", LIMIT, || relay.is_ready(), |ready| *ready);
    world.assert_all_delivered();
    kafka.kill_hard();
    world.emit(&sql, "a");
    assert_named(&relay, &doctor(&world), &signs);
}

#[test]
#[ignore = "long: the causes are those of other tests, seen from every side"]
fn a_postgres_that_is_down_and_a_slot_that_is_dropped_are_named() {
    let postgres = Postgres::private(15, &[]);
    let world = World::on(&postgres, Kafka::shared().brokers());
    let mut relay = world.run().option("--on-slot-loss", "stop").start();
    relay.wait_ready();
    postgres.stop_fast(EXIT);
    assert_named(
        &relay,
        &doctor(&world),
        &Signs {
            alert: "WalrelayNotReady",
            sample: "walrelay_not_ready{reason=\"postgres_disconnected\"}",
            is_alert: is_one,
            page: &["Not ready: not connected to postgres", "check that the server runs"],
            log: &["check that the server runs"],
            check: Check { name: "postgres", state: "wrong", found: "", fix: "check that the server runs" },
        },
    );
    postgres.start();
    eventually("it goes on", LIMIT, || relay.is_ready(), |ready| *ready);
    world.drop_slot();
    assert_eq!(relay.wait_exit(EXIT), Some(14), "{}", relay.log());
    let log = relay.log();
    assert!(has_all(&log, &["there is no replication slot", "fix: "]), "{log}");
    let exporter = world.command("exporter").start();
    assert_alert(&exporter, "WalrelayNobodyStreams", "walrelay_slot_active", |value| value == 0.0);
    let missing = Check { name: "slot", state: "warning", found: "there is no replication slot", fix: "" };
    missing.is_made_by(&doctor(&world));
}

#[test]
#[ignore = "long: the causes are those of other tests, seen from every side"]
fn a_renamed_table_is_named() {
    let world = World::new();
    let mut relay = world.relay();
    let sql = world.sql();
    sql.run("alter table outbox rename to events");
    sql.run(&format!(
        "insert into events (id, aggregatetype, aggregateid, type, payload)
         values (gen_random_uuid(), '{}', 'a', 'T', '{{}}')",
        world.kind(0)
    ));
    let code = relay.wait_exit(EXIT);
    let log = relay.log();
    assert!(code.is_some_and(|code| code > 1) && has_all(&log, &["public.outbox", "fix: "]), "{code:?}: {log}");
    let missing = Check { name: "table", state: "wrong", found: "public.outbox", fix: "" };
    missing.is_made_by(&doctor(&world));
    let exporter = world.command("exporter").start();
    assert_alert(&exporter, "WalrelayNobodyStreams", "walrelay_slot_active", |value| value == 0.0);
}

#[test]
#[ignore = "long: the causes are those of other tests, seen from every side"]
fn a_record_that_is_too_large_is_named() {
    let world = World::new();
    topic::create(&world.brokers, &world.topic(0), 1, &[("max.message.bytes", "1000")]);
    let mut relay = world.run().option("--on-error", "park").start();
    relay.wait_ready();
    let sql = world.sql();
    sql.run(&format!("select emit('{}', 'a', 3000)", world.kind(0)));
    assert_named(
        &relay,
        &doctor(&world),
        &Signs {
            alert: "WalrelayRetries",
            sample: "walrelay_failed_attempts_total{class=\"too-large\"}",
            is_alert: |value| value >= 1.0,
            page: &["1 events are parked", "walrelay parked list", "the log names the refused event"],
            log: &["event_parked", "too-large", &world.topic(0)],
            check: Check {
                name: "record-size",
                state: "wrong",
                found: "max.message.bytes is 1000",
                fix: "raise max.message.bytes of topic",
            },
        },
    );
}
