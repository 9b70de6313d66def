//! How fast a backlog drains, beside what `pg_recvlogical` needs to throw the same bytes away.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::relay::RelayCommand;
use crate::support::seed::from_environment;
use crate::support::servers::{Kafka, Postgres};
use crate::support::sql::Sql;
use crate::support::topic;
use crate::support::wait::eventually;

const PUBLICATION: &str = "walrelay_drain";
const TEMPLATE: &str = "drain_template";

/// A database with `rows` events waiting in the slot [`TEMPLATE`], of which every round drains a copy.
fn backlog(sql: &Sql, rows: u64) {
    sql.run(&format!(
        "create table outbox (id uuid primary key, aggregatetype varchar(255), aggregateid varchar(255),
            type varchar(255), payload jsonb);
         create publication {PUBLICATION} for table outbox with (publish = 'insert')"
    ));
    sql.run(&format!("select pg_create_logical_replication_slot('{TEMPLATE}', 'pgoutput')"));
    sql.run("set synchronous_commit = off");
    for first in (0..rows).step_by(100) {
        sql.run(&format!(
            "insert into outbox select gen_random_uuid(), 'drain', 'aggregate-' || n % 1000, 'OrderCreated',
                jsonb_build_object('seq', n, 'orderId', 'ord-' || lpad(n::text, 9, '0'), 'customerId', n % 5000,
                    'amount', (n % 10000) / 100.0, 'currency', 'EUR', 'status', 'CREATED', 'items', jsonb_build_array(
                    jsonb_build_object('sku', 'sku-' || n % 777, 'qty', 1 + n % 5)), 'note', repeat('n', 110))
             from generate_series({first}, {}) n",
            first + 99
        ));
    }
    sql.run("checkpoint");
}

/// Events a second, and what it took.
struct Drained {
    per_second: f64,
    cpu_ms: u64,
    peak_mib: u64,
}

/// `walrelay` to Kafka, measured on the broker: from the 10th to the 90th percentile of append times.
fn by_walrelay(postgres: &Postgres, sql: &Sql, brokers: &str, rows: u64, round: u64) -> Drained {
    let slot = format!("drain_{round}");
    let prefix = format!("{}.", fastrand::u32(..));
    let topic = format!("{prefix}drain");
    topic::create(brokers, &topic, 6, &[]);
    sql.run(&format!("select pg_copy_logical_replication_slot('{TEMPLATE}', '{slot}')"));
    let mut relay = RelayCommand::new("run")
        .option("--slot", &slot)
        .option("--database-url", &postgres.url("drain"))
        .option("--brokers", brokers)
        .option("--publication", PUBLICATION)
        .config_file(&format!("[route]\ntopic_prefix = \"{prefix}\"\n"))
        .start();
    let goal = i64::try_from(rows).unwrap();
    let deadline = Duration::from_secs(300);
    let look = || (topic::count(brokers, &topic), relay.process.exited());
    let (records, exited) =
        eventually("the backlog is drained", deadline, look, |seen| seen.0 >= goal || seen.1.is_some());
    assert!(records >= goal, "the relay ended ({exited:?}) at {records}:\n{}", relay.process.log_tail(20));
    let cpu_ms = relay.process.cpu_ms().unwrap();
    let peak_mib = relay.process.resident_peak_bytes().unwrap() >> 20;
    drop(relay);
    let mut appended: Vec<i64> = topic::read(brokers, &topic).iter().map(|record| record.appended_at_ms).collect();
    appended.sort_unstable();
    assert_eq!(appended.len() as u64, rows, "not every event exactly once");
    let at = |share: usize| appended[(appended.len() - 1) * share / 100];
    let per_second = rows as f64 * 0.8 / ((at(90) - at(10)).max(1) as f64 / 1000.0);
    drop_slot(sql, &slot);
    Drained { per_second, cpu_ms, peak_mib }
}

/// `pg_recvlogical` to nowhere, by the wall clock.
fn by_recvlogical(postgres: &Postgres, sql: &Sql, rows: u64, end: &str) -> f64 {
    let slot = "drain_floor";
    sql.run(&format!("select pg_copy_logical_replication_slot('{TEMPLATE}', '{slot}')"));
    let mut command = Command::new(postgres.program("pg_recvlogical"));
    command.arg("-d").arg(postgres.url("drain")).args(["--slot", slot, "--start", "--no-loop", "-f", "/dev/null"]);
    command.args(["-o", "proto_version=1", "-o", &format!("publication_names={PUBLICATION}"), "--endpos", end]);
    let started = Instant::now();
    let ended = command.stdin(Stdio::null()).status().expect("pg_recvlogical");
    assert!(ended.success(), "pg_recvlogical: {ended}");
    let per_second = rows as f64 / started.elapsed().as_secs_f64();
    drop_slot(sql, slot);
    per_second
}

/// Drops it once its walsender has noticed that nobody listens any more.
fn drop_slot(sql: &Sql, slot: &str) {
    let drop = format!("select pg_drop_replication_slot('{slot}')");
    eventually("the slot can be dropped", Duration::from_secs(20), || sql.try_run(&drop).is_ok(), |done| *done);
}

#[test]
#[ignore = "a measurement of minutes: make drain"]
fn a_backlog_drains_at_a_rate_beside_that_of_pg_recvlogical() {
    let rows = from_environment("WALRELAY_TEST_ROWS", 300_000) / 100 * 100;
    let rounds = from_environment("WALRELAY_TEST_ROUNDS", 3);
    let postgres = Postgres::private(15, &[("max_wal_size", "8GB"), ("shared_buffers", "256MB")]);
    let kafka = Kafka::private();
    postgres.sql().run("create database drain");
    let sql = postgres_sql(&postgres);
    backlog(&sql, rows);
    let end = sql.text("select pg_current_wal_flush_lsn()");
    println!(
        "{rows} events in transactions of 100, {} bytes of payload on average",
        sql.text("select round(avg(octet_length(payload::text))) from outbox")
    );
    println!(
        "{:>5} {:>16} {:>18} {:>6} {:>11} {:>9}",
        "round", "walrelay 1/s", "pg_recvlogical 1/s", "ratio", "CPU us/event", "peak MiB"
    );
    let mut ratios = Vec::new();
    for round in 1..=rounds {
        let floor_before = by_recvlogical(&postgres, &sql, rows, &end);
        let drained = by_walrelay(&postgres, &sql, kafka.brokers(), rows, round);
        let floor = f64::midpoint(floor_before, by_recvlogical(&postgres, &sql, rows, &end));
        let ratio = drained.per_second / floor;
        ratios.push(ratio);
        println!(
            "{round:>5} {:>16.0} {floor:>18.0} {ratio:>6.2} {:>11.2} {:>9}",
            drained.per_second,
            drained.cpu_ms as f64 * 1000.0 / rows as f64,
            drained.peak_mib
        );
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.2}", ratios[ratios.len() / 2]);
}

fn postgres_sql(postgres: &Postgres) -> Sql {
    Sql::connect(&postgres.url("drain"))
}
