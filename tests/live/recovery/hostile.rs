//! P12: what operators and tables do to it: rewrites, policies, values nobody expected,
//! transactions that stay open, an older copy of the server.

use std::time::Duration;

use super::{EXIT, streaming};
use crate::support::relay::Relay;
use crate::support::servers::{Kafka, Postgres};
use crate::support::wait::{eventually, throughout};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

fn poller(world: &World) -> Relay {
    let mut relay = world.run().option("--mode", "poll").start();
    relay.wait_ready();
    relay
}

#[test]
fn a_table_rewritten_while_polled_loses_nothing() {
    let world = World::keeping();
    world.create_topics();
    let mut relay = poller(&world);
    let sql = world.sql();
    let rewriter = world.sql();
    for round in 0..4 {
        for _ in 0..3 {
            world.emit(&sql, "a");
        }
        // Looks begin, and wait for its lock.
        rewriter.run(
            "begin; alter table outbox alter aggregatetype type varchar(255) using \
             lower(aggregatetype); select pg_sleep(1); commit",
        );
        eprintln!("round {round}");
    }
    assert_eq!(
        world.assert_all_delivered().duplicates,
        0,
        "{}",
        relay.log()
    );
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn a_table_rewritten_during_slot_creation_loses_nothing() {
    let world = World::keeping();
    world.setup();
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    let sql = world.sql();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stopped = crate::support::wait::Stopped(&stop);
        scope.spawn(|| {
            let rewriter = world.sql();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let rewrite = "alter table outbox alter aggregatetype type varchar(255) using \
                               lower(aggregatetype)";
                rewriter.try_run(rewrite).unwrap_or_default();
                rewriter.run("select pg_sleep(0.1)");
            }
        });
        for _ in 0..6 {
            for _ in 0..3 {
                world.emit(&sql, "a");
            }
            world.drop_slot();
        }
    });
    world.emit(&sql, "a");
    world.assert_all_delivered();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_poller_decides_its_backlog_before_it_is_ready() {
    let world = World::keeping();
    let sql = world.sql();
    world.emit(&sql, "before");
    let none = || {
        world
            .run()
            .option("--mode", "poll")
            .option("--backlog", "none")
            .start()
    };
    let mut relay = none();
    relay.wait_ready();
    relay.kill_hard();
    world.emit(&sql, "after");
    let mut relay = none();
    relay.wait_ready();
    eventually(
        "what came after is published",
        ARRIVAL,
        || world.delivered(),
        |records| *records == 1,
    );
    assert_eq!(world.records(0)[0].key_text(), "after");
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn rows_without_a_transaction_column_are_polled_once_beside_open_transactions() {
    let world = World::keeping();
    let sql = world.sql();
    let open = world.sql();
    sql.run("alter table outbox alter column xid drop not null");
    let mut relay = poller(&world);
    open.run("begin; select pg_current_xact_id()");
    let insert = |xid: &str| {
        sql.run(&format!(
            "insert into outbox (id, aggregatetype, aggregateid, type, payload, xid)
             values (gen_random_uuid(), '{}', 'b', 'Odd', '{{}}', {xid})",
            world.kind(0)
        ));
    };
    insert("null");
    // As of another server, which had more transactions.
    insert("'900000000000'::xid8");
    eventually(
        "both are published",
        ARRIVAL,
        || world.delivered(),
        |records| *records == 2,
    );
    world.emit(&sql, "a");
    eventually(
        "what comes then as well",
        ARRIVAL,
        || world.delivered(),
        |records| *records == 3,
    );
    throughout(
        "they are not published again",
        Duration::from_secs(2),
        || world.delivered() == 3,
    );
    open.run("commit");
    world.emit(&sql, "a");
    eventually(
        "it goes on",
        ARRIVAL,
        || world.delivered(),
        |records| *records == 4,
    );
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn the_table_is_polled_while_a_transaction_delays_slot_creation() {
    let postgres = Postgres::private(15, &[]);
    let world = World::keeping_on(&postgres, Kafka::shared().brokers());
    world.publish();
    // In another database: making a slot waits for it all the same.
    let open = postgres.sql();
    open.run("begin; select pg_current_xact_id()");
    let sql = world.sql();
    world.emit(&sql, "a");
    let mut relay = world.run().start();
    eventually(
        "it is polled",
        ARRIVAL,
        || world.delivered(),
        |records| *records == 1,
    );
    world.emit(&sql, "a");
    eventually(
        "what comes then as well",
        ARRIVAL,
        || world.delivered(),
        |records| *records == 2,
    );
    assert!(
        relay.log().contains("a slot would have to wait for pid"),
        "{}",
        relay.log()
    );
    assert!(
        world.slot("slot_name::text").is_empty(),
        "what was begun is gone"
    );
    relay.kill_hard();
    world.emit(&sql, "a");
    let mut relay = world.run().start();
    let begun = || relay.log().contains("slot_creation_started");
    eventually("the slot is waited for again", ARRIVAL, begun, |is| *is);
    open.run("commit");
    world.wait_streaming();
    world.emit(&sql, "a");
    world.assert_all_delivered();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn rows_hidden_by_row_level_security_are_an_error() {
    let world = World::keeping();
    let sql = world.sql();
    let role = format!("{}_blind", world.name);
    let name = &world.name;
    sql.run(&format!(
        "create role {role} login; grant select on outbox to {role}; alter table outbox enable row \
         level security;
         create policy seen on outbox using (aggregateid = 'seen')"
    ));
    let url = Postgres::shared().url_as(&role, name);
    let mut relay = world
        .run()
        .option("--mode", "poll")
        .option("--database-url", &url)
        .start();
    assert_eq!(relay.wait_exit(EXIT), Some(11), "{}", relay.log());
    assert!(
        relay.log().contains("row-level security"),
        "{}",
        relay.log()
    );
    sql.run(&format!("drop owned by {role}; drop role {role}"));
}

#[test]
fn an_older_copy_of_the_server_is_not_polled() {
    let postgres = Postgres::private(15, &[]);
    let world = World::keeping_on(&postgres, Kafka::shared().brokers());
    let sql = world.sql();
    world.emit(&sql, "a");
    let mut relay = poller(&world);
    world.assert_all_delivered();
    assert_eq!(relay.terminate(EXIT), Some(0));
    drop(sql);
    postgres.stop_fast(EXIT);
    let copy = postgres.data().with_extension("copy");
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([postgres.data(), &copy])
        .status()
        .unwrap();
    assert!(copied.success());
    postgres.start();
    let mut relay = poller(&world);
    let writers = world.workload(&Plan::default());
    writers.wait_for(200);
    writers.stop();
    world.assert_all_delivered();
    assert_eq!(relay.terminate(EXIT), Some(0));

    postgres.stop_fast(EXIT);
    std::fs::remove_dir_all(postgres.data()).unwrap();
    std::fs::rename(&copy, postgres.data()).unwrap();
    postgres.start();
    world.emit(&world.sql(), "b");
    let mut relay = world.run().option("--mode", "poll").start();
    assert_eq!(relay.wait_exit(EXIT), Some(16), "{}", relay.log());
    assert!(
        relay.log().contains("--backlog since=TIME"),
        "{}",
        relay.log()
    );
}

/// Transaction ids that are left to servers whose ids soon wrap.
const XIDS_LEFT: u32 = 600;

/// Waits until the writers are so many transactions past the wrap of [`Postgres::before_wraparound`].
fn wait_wrapped(world: &World, past: i64) {
    let sql = world.sql();
    let next = || sql.number("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint");
    let is_past = |next: &i64| *next >= (4 << 32) + past;
    eventually("transaction ids wrap", ARRIVAL, next, is_past);
}

#[test]
fn transaction_ids_that_wrap_are_recovered_in_order() {
    let Some(postgres) = Postgres::before_wraparound(XIDS_LEFT) else {
        return;
    };
    let world = World::keeping_on(&postgres, Kafka::shared().brokers());
    world.setup();
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    let writers = world.workload(&Plan::default());
    writers.wait_for(100);
    // The stored snapshot is from before, the table has rows from either side.
    wait_wrapped(&world, -200);
    world.wait_stored(&relay);
    relay.kill_hard();
    world.drop_slot();
    wait_wrapped(&world, 100);
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    writers.wait_for(100);
    writers.stop();
    let findings = world.assert_all_delivered();
    eprintln!("{} copies after kill -9", findings.duplicates);
    assert!(relay.log().contains("reading_table"), "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn transaction_ids_that_wrap_are_polled_once() {
    let Some(postgres) = Postgres::before_wraparound(XIDS_LEFT) else {
        return;
    };
    let world = World::keeping_on(&postgres, Kafka::shared().brokers());
    world.create_topics();
    let mut relay = poller(&world);
    let writers = world.workload(&Plan::default());
    wait_wrapped(&world, 200);
    writers.stop();
    assert_eq!(world.assert_all_delivered().duplicates, 0);
    assert_eq!(relay.terminate(EXIT), Some(0));
}
