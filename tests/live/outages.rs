//! docs/how-to/runbook.md: page, doctor, log and metrics each name an outage and its remedy.

use std::time::Duration;

use super::doctor::Checks;
use super::page::Viewer;
use crate::support::relay::{EXIT, Relay, RelayCommand, last_words};
use crate::support::servers::{Kafka, Postgres};
use crate::support::topic;
use crate::support::wait::{LIMIT, eventually};
use crate::support::workload::Plan;
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
    eventually("the page names it", LIMIT, page, |html| {
        has_all(html, signs.page)
    });
    eventually(
        "the log names it",
        LIMIT,
        || relay.log(),
        |log| has_all(log, signs.log),
    );
    assert_alert(relay, signs.alert, signs.sample, signs.is_alert);
    signs.check.is_made_by(doctor);
}

/// The relay ends with this code. A page that was open, and the end of the log, have the cause and
/// this remedy, in small letters.
#[track_caller]
fn assert_end_named(relay: &mut Relay, viewer: &Viewer, code: i32, cause: &str, remedy: &str) {
    assert_eq!(relay.wait_exit(EXIT), Some(code), "{}", relay.log());
    let words = ["not ready: halted: ", cause, "fix: ", remedy];
    eventually(
        "the page names the end",
        LIMIT,
        || viewer.last().to_lowercase(),
        |html| has_all(html, &words),
    );
    let log = relay.log().to_lowercase();
    let (error, fix) = last_words(&log);
    assert!(error.contains(cause) && fix.contains(remedy), "{log}");
}

/// The alert is about this metric, whose sample is one for which it fires. `scripts/check-alerts`
/// tests the expression.
#[track_caller]
fn assert_alert(relay: &Relay, alert: &str, sample: &str, is_alert: fn(f64) -> bool) {
    let rules = include_str!("../../deploy/prometheus/alerts.yml");
    let (_, rule) = rules
        .split_once(&format!("alert: {alert}\n"))
        .unwrap_or_else(|| panic!("no alert {alert}"));
    let expression = rule.split("labels:").next().unwrap_or_default();
    let metric = sample.split('{').next().unwrap_or(sample);
    assert!(
        expression.contains(metric),
        "{alert} does not ask for {metric}: {expression}"
    );
    eventually(
        sample,
        LIMIT,
        || relay.metric(sample),
        |value| value.is_some_and(is_alert),
    );
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
    world.wait_confirmed();
    kafka.freeze();
    world.emit(&sql, "a");
    // Sooner than an idle relay, which asks a broker once a minute.
    let log = || relay.log();
    eventually("the log names it soon", LIMIT / 4, log, |log| {
        log.contains("\"event\":\"bus_disconnected\"")
    });
    let signs = Signs {
        alert: "WalrelayNotReady",
        sample: "walrelay_not_ready{reason=\"bus_disconnected\"}",
        is_alert: is_one,
        page: &[
            "Not ready: not connected to Kafka",
            "check that the brokers run",
        ],
        log: &["check that the brokers run"],
        check: Check {
            name: "bus",
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
    let viewer = Viewer::of(&relay);
    postgres.stop_fast(EXIT);
    assert_named(
        &relay,
        &doctor(&world),
        &Signs {
            alert: "WalrelayNotReady",
            sample: "walrelay_not_ready{reason=\"postgres_disconnected\"}",
            is_alert: is_one,
            page: &[
                "Not ready: not connected to Postgres",
                "check that the server runs",
            ],
            log: &["check that the server runs"],
            check: Check {
                name: "postgres",
                state: "wrong",
                found: "while connecting to Postgres",
                fix: "check that the server runs",
            },
        },
    );
    postgres.start();
    eventually("it goes on", LIMIT, || relay.is_ready(), |ready| *ready);
    world.drop_slot();
    assert_end_named(
        &mut relay,
        &viewer,
        14,
        "there is no replication slot",
        "--on-slot-loss recover",
    );
    let exporter = world.command("exporter").start();
    assert_alert(
        &exporter,
        "WalrelaySlotMissing",
        "walrelay_slot_active",
        |value| value == 0.0,
    );
    assert_eq!(
        exporter.metric("walrelay_slot_wal_status{status=\"reserved\"}"),
        Some(0.0)
    );
    let makes = "` makes the slot";
    let missing = Check {
        name: "slot",
        state: "warning",
        found: "there is no replication slot",
        fix: makes,
    };
    missing.is_made_by(&doctor(&world));
}

#[test]
#[ignore = "long: the causes are those of other tests, seen from every side"]
fn a_renamed_table_is_named() {
    let world = World::new();
    let mut relay = world.relay();
    let sql = world.sql();
    let viewer = Viewer::of(&relay);
    sql.run("alter table outbox rename to events");
    sql.run(&format!(
        "insert into events (id, aggregatetype, aggregateid, type, payload)
         values (gen_random_uuid(), '{}', 'a', 'T', '{{}}')",
        world.kind(0)
    ));
    assert_end_named(&mut relay, &viewer, 15, "public.outbox", "rename it back");
    let missing = Check {
        name: "table",
        state: "wrong",
        found: "public.outbox",
        fix: "--create-table",
    };
    missing.is_made_by(&doctor(&world));
    let exporter = world.command("exporter").start();
    assert_alert(
        &exporter,
        "WalrelayNobodyStreams",
        "walrelay_slot_active",
        |value| value == 0.0,
    );
}

#[test]
#[ignore = "long: the causes are those of other tests, seen from every side"]
fn a_record_that_is_too_large_is_named() {
    let world = World::new();
    topic::create(
        &world.brokers,
        &world.topic(0),
        1,
        &[("max.message.bytes", "1000")],
    );
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
            page: &[
                "1 events are parked",
                "walrelay parked list",
                "the log names the refused event",
            ],
            log: &[
                "event_parked",
                "too-large",
                &world.topic(0),
                "raise max.message.bytes of topic",
            ],
            check: Check {
                name: "record-size",
                state: "wrong",
                found: "max.message.bytes is 1000",
                fix: "raise max.message.bytes of topic",
            },
        },
    );
}

#[test]
#[ignore = "long: the causes are those of other tests, seen from every side"]
fn wal_that_an_open_transaction_retains_is_named() {
    let postgres = Postgres::private(15, &[("max_slot_wal_keep_size", "64MB")]);
    let world = World::on(&postgres, Kafka::shared().brokers());
    let limited = |command: RelayCommand| command.option("--max-retained-bytes", "8MiB");
    let mut relay = limited(world.run()).start();
    relay.wait_ready();
    let sql = world.sql();
    let open = world.sql();
    // A transaction without a record in the WAL holds nothing back.
    open.run("begin; insert into noise values (0, '')");
    // Short enough that Postgres does not compress them.
    sql.run("insert into noise select n, repeat('x', 1000) from generate_series(1, 50000) n");
    let holder = format!(
        "\"oldest_transaction_pid\":{}",
        open.number("select pg_backend_pid()")
    );
    let signs = Signs {
        alert: "WalrelayNotReady",
        sample: "walrelay_not_ready{reason=\"over_budget\"}",
        is_alert: is_one,
        page: &[
            "Not ready: the slot retains",
            "and its limit is 8.0 MiB",
            "end a transaction that has been open for long",
        ],
        log: &[
            "retained_wal_grown",
            &holder,
            "end a transaction that has been open for long",
        ],
        check: Check {
            name: "wal-retention",
            state: "warning",
            found: "and its limit is 8.0 MiB",
            fix: "see what holds the slot back: walrelay status",
        },
    };
    assert_named(&relay, &limited(doctor(&world)), &signs);
    assert_alert(
        &relay,
        "WalrelaySlotNearlyLost",
        "walrelay_slot_safe_wal_bytes",
        |safe| safe < 40.0 * 1024.0 * 1024.0,
    );
    assert!(
        relay.metric("walrelay_slot_safe_wal_bytes") < relay.metric("walrelay_retained_wal_bytes")
    );
    Checks::of(&doctor(&world)).has(
        "wal-retention",
        "warning",
        "MB are left",
        "max_slot_wal_keep_size",
    );
    open.run("commit");
    eventually("it goes on", LIMIT, || relay.is_ready(), |ready| *ready);
}

/// Doctor names the missing right, and the exporter's metric fires the alert.
#[track_caller]
fn assert_right_named(world: &World, doctor: &RelayCommand, check: &Check) {
    check.is_made_by(doctor);
    let exporter = world.command("exporter").start();
    assert_alert(
        &exporter,
        "WalrelayNobodyStreams",
        "walrelay_slot_active",
        |value| value == 0.0,
    );
}

#[test]
#[ignore = "long: the causes are those of other tests, seen from every side"]
fn revoked_rights_are_named() {
    let world = World::keeping();
    world.setup();
    let sql = world.sql();
    let role = format!("{}_relay", world.name);
    sql.run(&format!(
        "alter table outbox add sent boolean not null default false; create role {role} login \
         replication;
         grant select, update on outbox to {role}"
    ));
    let url = Postgres::shared().url_as(&role, &world.name);
    let of_role = |command: RelayCommand| {
        command
            .option("--database-url", &url)
            .config_file("[outbox]\nmark = \"sent = true\"\npending = \"not sent\"\n")
    };
    let doctor = of_role(doctor(&world));
    let mut relay = of_role(world.run()).start();
    relay.wait_ready();
    world.emit(&sql, "a");
    let sent = || sql.number("select count(*) from outbox where sent");
    eventually("the row is marked", ARRIVAL, sent, |sent| *sent == 1);

    // It remembers what it published, and goes on once the remedy is pasted.
    sql.run(&format!("revoke update on outbox from {role}"));
    world.emit(&sql, "a");
    let signs = Signs {
        alert: "WalrelayNotReady",
        sample: "walrelay_not_ready{reason=\"postgres_unwritable\"}",
        is_alert: is_one,
        page: &["Not ready: ", "permission denied", "update on"],
        log: &["permission denied", "update on"],
        check: Check {
            name: "upkeep",
            state: "wrong",
            found: "outbox",
            fix: "update on",
        },
    };
    assert_named(&relay, &doctor, &signs);
    sql.run(&Checks::of(&doctor).has("upkeep", "wrong", "outbox", "update on"));
    eventually("it goes on", LIMIT, || relay.is_ready(), |ready| *ready);
    eventually("the row is marked", ARRIVAL, sent, |sent| *sent == 2);
    assert_eq!(
        world.assert_all_delivered().duplicates,
        0,
        "{}",
        relay.log()
    );

    let viewer = Viewer::of(&relay);
    sql.run(&format!(
        "alter role {role} noreplication; select pg_terminate_backend({}::int)",
        world.walsender()
    ));
    let fix = format!("alter role \"{role}\" replication");
    let check = Check {
        name: "role",
        state: "wrong",
        found: "may not use replication slots",
        fix: &fix,
    };
    assert_end_named(&mut relay, &viewer, 11, "replication", "alter role");
    assert_right_named(&world, &doctor, &check);
    sql.run(&format!("drop owned by {role}; drop role {role}"));
}

#[test]
#[ignore = "long: the causes are those of other tests, seen from every side"]
fn a_full_disk_of_a_broker_is_named() {
    let kafka = Kafka::on_small_disk();
    let world = World::on(Postgres::shared(), kafka.brokers()).with_kinds(1);
    let mut relay = world
        .run()
        .config_file("[http]\nready_within = \"5s\"\n")
        .start();
    relay.wait_ready();
    let writers = world.workload(&Plan {
        filling: 4000,
        pause: Duration::ZERO,
        ..Plan::default()
    });
    eventually(
        "the disk is full",
        ARRIVAL,
        || kafka.log().contains("No space left on device"),
        |full| *full,
    );
    writers.stop();
    assert_named(
        &relay,
        &doctor(&world),
        &Signs {
            alert: "WalrelayNotReady",
            sample: "walrelay_not_ready{reason=\"stalled\"}",
            is_alert: is_one,
            page: &[
                "Not ready: events wait, and none was acked",
                "see the logs and the disks of the brokers",
            ],
            log: &[
                "\"event\":\"stalled\"",
                "see the logs and the disks of the brokers",
            ],
            check: Check {
                name: "topic",
                state: "wrong",
                found: "without a leader: a broker is away, or its disk failed",
                fix: "kafka-topics --bootstrap-server",
            },
        },
    );
}

#[test]
#[ignore = "long: the causes are those of other tests, seen from every side"]
fn a_clock_that_is_off_is_named() {
    let postgres = Postgres::with_clock(15, "+1h");
    let world = World::on(&postgres, Kafka::shared().brokers());
    let relay = world.relay();
    assert_named(
        &relay,
        &doctor(&world),
        &Signs {
            alert: "WalrelayClocksDiffer",
            sample: "walrelay_clock_difference_seconds",
            is_alert: |seconds| (3_540.0..3_660.0).contains(&seconds),
            page: &[
                "ahead of that of this host: lag in seconds is wrong by as much",
                "set both hosts by NTP",
            ],
            log: &[
                "clocks_differ",
                "ahead of that of this host",
                "set both hosts by NTP",
            ],
            check: Check {
                name: "clock",
                state: "warning",
                found: "ahead of that of this host",
                fix: "NTP",
            },
        },
    );
    assert_eq!(relay.log().matches("clocks_differ").count(), 1);
}
