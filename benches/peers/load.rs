//! Rows to relay: a backlog that waits, and a rate that is held.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::lab::{DATABASE, KIND, Lab};
use crate::support::guardian::run_directory;
use crate::support::process::Process;
use crate::support::sql::Sql;

pub(crate) const PUBLICATION: &str = "bench";
/// The slot every contestant gets a copy of.
pub(crate) const TEMPLATE: &str = "bench_template";
/// Rows of a transaction of a backlog.
pub(crate) const PER_TRANSACTION: u64 = 100;

/// The columns every relay of an outbox knows, and no others.
pub(crate) const UNKEYED_COLUMNS: &str = "id uuid not null, aggregatetype varchar(255) not null,
    aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb";

/// What rows look like beside the numbers in them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) aggregates: u64,
    /// Bytes of filling. With 110 the payload has some 300.
    pub(crate) filling: u64,
    /// Kinds of events, and so topics. Those of an aggregate are of one kind.
    pub(crate) topics: u64,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            aggregates: 1_000,
            filling: 110,
            topics: 1,
        }
    }
}

/// The outbox, its publication, and a procedure that fills it in transactions.
pub(crate) fn schema(sql: &Sql, more_columns: &str) {
    sql.run(&format!(
        "create table outbox ({UNKEYED_COLUMNS}{more_columns}, primary key (id))"
    ));
    sql.run(&format!(
        "create publication {PUBLICATION} for table outbox with (publish = 'insert')"
    ));
    procedure(sql);
}

pub(crate) fn template(sql: &Sql) {
    sql.run(&format!(
        "select pg_create_logical_replication_slot('{TEMPLATE}', 'pgoutput')"
    ));
}

pub(crate) fn procedure(sql: &Sql) {
    sql.run(&format!(
        "create function kind(aggregate bigint, topics bigint) returns text
         immutable language sql as $$
             select '{KIND}' || case topics when 1 then '' else '-' || aggregate % topics end
         $$;
         create function event(n bigint, aggregates bigint, filling bigint, topics bigint,
             out id uuid, out kind text, out aggregate text, out type text, out payload jsonb)
         language sql as $$
             select gen_random_uuid(), kind(n % aggregates, topics),
                 'aggregate-' || n % aggregates, 'OrderCreated',
                 jsonb_build_object('seq', n, 'orderId', 'ord-' || lpad(n::text, 9, '0'),
                     'customerId', n % 5000, 'amount', (n % 10000) / 100.0, 'currency', 'EUR',
                     'status', 'CREATED', 'items', jsonb_build_array(
                         jsonb_build_object('sku', 'sku-' || n % 777, 'qty', 1 + n % 5)),
                     'note', repeat('n', filling::int))
         $$;
         create procedure fill(first bigint, last bigint, per_transaction bigint,
             aggregates bigint, filling bigint, topics bigint)
         language plpgsql as $$
         begin
             for i in first..last by per_transaction loop
                 insert into outbox select e.*
                     from generate_series(i, least(i + per_transaction - 1, last)) n,
                          event(n, aggregates, filling, topics) e;
                 commit;
             end loop;
         end $$"
    ));
}

/// Inserts the rows with these numbers, and gives the LSN behind them.
pub(crate) fn backlog(
    sql: &Sql,
    numbers: RangeInclusive<u64>,
    per_transaction: u64,
    shape: Shape,
) -> String {
    sql.run("set synchronous_commit = off");
    sql.run(&format!(
        "call fill({}, {}, {per_transaction}, {}, {}, {})",
        numbers.start(),
        numbers.end(),
        shape.aggregates,
        shape.filling,
        shape.topics
    ));
    sql.run("set synchronous_commit = on");
    sql.run("checkpoint");
    sql.text("select pg_current_wal_flush_lsn()")
}

/// What [`Steady`] calls: a transaction of some rows. A client keeps to aggregates of its own, so
/// that the numbers of an aggregate grow in the order of their commits.
pub(crate) fn steady_schema(sql: &Sql, more_columns: &str, shape: Shape) {
    let Shape {
        aggregates,
        filling,
        topics,
    } = shape;
    let of_client = aggregates / CLIENTS;
    schema(sql, more_columns);
    sql.run(&format!(
        "create sequence seq;
         create function emit(client int, rows int) returns void language sql as $$
             insert into outbox select e.id, kind(s.aggregate, {topics}),
                 'aggregate-' || client || '-' || s.aggregate, e.type, e.payload
             from generate_series(1, rows) row,
                  lateral (select nextval('seq') + 0 * row as n,
                      (random() * {of_client})::int + 0 * row as aggregate) s,
                  event(s.n, {aggregates}, {filling}, {topics}) e
         $$"
    ));
}

/// Of `pgbench`.
const CLIENTS: u64 = 4;

/// Transactions at a rate, by `pgbench`: one to three rows each, at random times.
pub(crate) struct Steady {
    process: Process,
    deadline: Duration,
}

impl Steady {
    /// `events_per_s` for `seconds`. It does not wait for anything.
    pub(crate) fn begin(lab: &Lab, events_per_s: u64, seconds: u64) -> Steady {
        Steady::script(
            lab,
            "\\set rows random(1, 3)\nselect emit(:client_id, :rows);\n",
            events_per_s.div_ceil(2),
            seconds,
        )
    }

    /// Any script, so many times a second.
    pub(crate) fn script(lab: &Lab, script: &str, per_s: u64, seconds: u64) -> Steady {
        let file: PathBuf = run_directory().join(format!("pgbench-{per_s}.sql"));
        std::fs::write(&file, script).expect("a script");
        let address = lab.postgres.address();
        let (host, port) = address.rsplit_once(':').expect("host and port");
        let mut command = Command::new(lab.postgres.program("pgbench"));
        command.args([
            "-n",
            "-M",
            "prepared",
            "-c",
            &CLIENTS.to_string(),
            "-j",
            "1",
        ]);
        command.args(["-h", host, "-p", port, "-U", "postgres"]);
        command
            .args(["-T", &seconds.to_string(), "-R", &per_s.to_string(), "-f"])
            .arg(&file)
            .arg(DATABASE);
        let process = Process::start("pgbench", command, &file.with_extension("log"));
        Steady {
            process,
            deadline: Duration::from_secs(seconds + 120),
        }
    }

    pub(crate) fn wait(mut self) {
        let ended = self.process.wait_exit(self.deadline);
        assert!(
            ended.success(),
            "pgbench: {ended}: {}",
            self.process.log_tail(20)
        );
    }
}
