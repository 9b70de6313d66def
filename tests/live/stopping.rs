//! P10: SIGTERM, SIGINT and SIGHUP stop intake, wait for acks, confirm, leave; a second SIGTERM or
//! SIGINT leaves at once.

use std::time::{Duration, Instant};

use crate::support::proxy::{Proxy, Way};
use crate::support::relay::{EXIT, Relay};
use crate::support::servers::{Kafka, Postgres};
use crate::support::wait::{eventually, throughout};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

const SHUTDOWN_TIMEOUT: i32 = 3;

#[test]
fn a_stop_under_load_drains_and_confirms_without_duplicates() {
    let world = World::new();
    world.create_topics();
    for signal in ["TERM", "INT", "TERM"] {
        let mut relay = world.relay();
        let writers = world.workload(&Plan {
            writers: 6,
            ..Plan::default()
        });
        writers.wait_for(60);
        relay.process.signal(signal);
        assert_eq!(relay.wait_exit(EXIT), Some(0), "{}", relay.log());
        writers.stop();
    }
    let _relay = world.relay();
    assert_eq!(world.assert_all_delivered().duplicates, 0);
}

#[test]
fn a_hangup_stops_the_relay_in_order_unless_it_was_ignored_at_the_start() {
    let world = World::new();
    world.create_topics();
    let mut ignoring = world.run().under_env("--ignore-signal=HUP").start();
    ignoring.wait_ready();
    ignoring.process.signal("HUP");
    throughout("it goes on", Duration::from_secs(2), || {
        ignoring.process.exited().is_none() && ignoring.is_ready()
    });
    assert_eq!(ignoring.terminate(EXIT), Some(0), "{}", ignoring.log());
    let mut relay = world.run().under_env("--default-signal=HUP").start();
    relay.wait_ready();
    let writers = world.workload(&Plan {
        writers: 6,
        ..Plan::default()
    });
    writers.wait_for(60);
    // A closed terminal sends it twice.
    relay.process.signal("HUP");
    relay.process.signal("HUP");
    assert_eq!(relay.wait_exit(EXIT), Some(0), "{}", relay.log());
    writers.stop();
    let _relay = world.relay();
    assert_eq!(world.assert_all_delivered().duplicates, 0);
}

#[test]
fn a_stop_confirms_all_delivered_events() {
    let world = World::new();
    let mut relay = world.relay();
    let sql = world.sql();
    for _ in 0..10 {
        world.emit(&sql, "a");
    }
    let end = world.wal();
    eventually(
        "they arrive",
        ARRIVAL,
        || world.delivered(),
        |records| *records == 10,
    );
    assert_eq!(relay.terminate(EXIT), Some(0));
    let pending = sql.number(&format!(
        "select count(*) from pg_logical_slot_peek_binary_changes('{0}', null, null,
            'proto_version', '1', 'publication_names', 'walrelay_{0}') where get_byte(data, 0) = \
            ascii('I')",
        world.name
    ));
    assert_eq!(pending, 0, "confirmed {} of {end}", world.confirmed());
}

/// A relay that may take `shutdown_timeout` to stop and has an event in flight, whose ack the proxy
/// swallows.
fn with_an_event_that_is_never_acked(shutdown_timeout: &str) -> (World, Proxy, Relay) {
    let world = World::new();
    let (proxy, brokers) = Kafka::shared().behind_proxy();
    let mut relay = world
        .run()
        .option("--brokers", &brokers)
        .option("--shutdown-timeout", shutdown_timeout)
        .start();
    relay.wait_ready();
    let sql = world.sql();
    world.emit(&sql, "a");
    world.wait_confirmed();
    proxy.blackhole(Way::Down);
    world.emit(&sql, "a");
    eventually(
        "it is in flight",
        ARRIVAL,
        || relay.metric("walrelay_in_flight_events"),
        |n| *n == Some(1.0),
    );
    (world, proxy, relay)
}

#[test]
fn a_stop_with_kafka_frozen_ends_at_its_deadline_with_code_3() {
    let (world, _proxy, mut relay) = with_an_event_that_is_never_acked("2s");
    let started = Instant::now();
    assert_eq!(
        relay.terminate(EXIT),
        Some(SHUTDOWN_TIMEOUT),
        "{}",
        relay.log()
    );
    assert!(
        started.elapsed() >= Duration::from_secs(2),
        "it did not wait: {:?}",
        started.elapsed()
    );
    let _relay = world.relay();
    world.assert_all_delivered();
}

#[test]
fn a_second_signal_ends_the_relay_at_once() {
    let (world, _proxy, mut relay) = with_an_event_that_is_never_acked("300s");
    relay.process.signal("TERM");
    eventually(
        "intake has stopped",
        ARRIVAL,
        || relay.is_ready(),
        |ready| !ready,
    );
    assert!(
        relay.process.exited().is_none(),
        "the first signal did not wait for acks"
    );
    relay.process.signal("TERM");
    // Less than half of what it would wait for acks.
    assert_ne!(
        relay.wait_exit(EXIT),
        Some(0),
        "events in flight were called delivered"
    );
    let _relay = world.relay();
    world.assert_all_delivered();
}

#[test]
fn a_stop_while_postgres_is_down_waits_for_the_acks_of_what_is_in_flight() {
    let postgres = Postgres::private(15, &[]);
    let (proxy, brokers) = Kafka::shared().behind_proxy();
    let world = World::on(&postgres, Kafka::shared().brokers());
    let mut relay = world
        .run()
        .option("--brokers", &brokers)
        .option("--shutdown-timeout", "300s")
        .start();
    relay.wait_ready();
    let sql = world.sql();
    world.emit(&sql, "a");
    world.wait_confirmed();
    proxy.blackhole(Way::Down);
    world.emit(&sql, "a");
    eventually(
        "it is in flight",
        ARRIVAL,
        || relay.metric("walrelay_in_flight_events"),
        |n| *n == Some(1.0),
    );
    drop(sql);
    postgres.stop_fast(EXIT);

    relay.process.signal("TERM");
    let waits = |log: &String| log.contains("stopping without Postgres");
    eventually("it waits for the ack", ARRIVAL, || relay.log(), waits);
    assert!(relay.process.exited().is_none(), "{}", relay.log());
    proxy.resume();
    assert_eq!(relay.wait_exit(EXIT), Some(0), "{}", relay.log());
    assert!(relay.log().contains("are not confirmed"), "{}", relay.log());

    postgres.start();
    let _relay = world.relay();
    world.assert_all_delivered();
}

/// P10: what is left of a read batch when intake ends is nobody's turn any more.
#[test]
fn a_stop_inside_a_read_batch_of_a_cut_stream_ends_at_its_deadline() {
    let world = World::new();
    let (proxy, brokers) = Kafka::shared().behind_proxy();
    let command = world
        .run()
        .option("--brokers", &brokers)
        .option("--shutdown-timeout", "12s");
    // The loop stands still in a backlog while the signal comes and the stream is cut. The second
    // status update, after 8 s, fails: before the deadline.
    let (command, held) = command.held_at("received", 3_000);
    let mut relay = command
        .variable("WALRELAY_SLOT_WAL_SENDER_TIMEOUT", "12s")
        .start();
    relay.wait_ready();
    let sql = world.sql();
    world.emit(&sql, "a");
    world.wait_confirmed();
    proxy.blackhole(Way::Down);
    let kind = world.kind(0);
    // No more of it than the sockets take from a server that nobody listens to.
    sql.run(&format!(
        "select emit('{kind}', 'b-' || n % 7, 10) from generate_series(1, 6000) n"
    ));
    held.wait();
    let slot = |column: &str| {
        format!(
            "select {column} from pg_replication_slots where slot_name = '{}'",
            world.name
        )
    };
    let sent = format!(
        "select sent_lsn - '0/0' >= {} from pg_stat_replication where pid = ({})",
        world.flushed(),
        slot("active_pid")
    );
    eventually(
        "all is sent",
        ARRIVAL,
        || sql.text(&sent),
        |sent| sent == "true",
    );
    relay.process.signal("TERM");
    sql.run(&format!(
        "select pg_terminate_backend(({}))",
        slot("active_pid")
    ));
    eventually(
        "the stream is cut",
        ARRIVAL,
        || world.walsender(),
        |pid| *pid == 0,
    );
    held.release();
    assert_eq!(
        relay.wait_exit(EXIT),
        Some(SHUTDOWN_TIMEOUT),
        "{}",
        relay.log()
    );
    let _relay = world.relay();
    world.assert_all_delivered();
}

#[test]
fn a_stop_ends_before_its_deadline_where_its_transaction_has_timed_out() {
    let kafka = Kafka::never_fenced();
    let world = World::on(Postgres::shared(), kafka.brokers());
    let run = world
        .run()
        .option("--guarantee", "exactly-once")
        .option("--shutdown-timeout", "300s");
    let (run, held) = run
        .config_file("[delivery]\ntransaction_timeout = \"3s\"\n")
        .held_at("storing", 0);
    let mut relay = run.start();
    relay.wait_ready();
    world.emit(&world.sql(), "a");
    held.wait();
    // The record is acked, and its commit never will be.
    kafka.freeze();
    held.release();
    // Less than half of what it would wait for acks.
    assert_eq!(
        relay.terminate(EXIT),
        Some(SHUTDOWN_TIMEOUT),
        "{}",
        relay.log()
    );
    kafka.thaw();
    let _relay = world.relay();
    world.assert_all_delivered();
}

#[test]
fn a_stop_that_a_topic_ends_says_why() {
    let world = World::new();
    let missing = "[kafka.properties]\n\"allow.auto.create.topics\" = \"false\"\n\
                   \"topic.metadata.propagation.max.ms\" = \"8000\"\n";
    let mut relay = world.run().config_file(missing).start();
    relay.wait_ready();
    world.emit(&world.sql(), "a");
    let in_flight = || relay.metric("walrelay_in_flight_events");
    eventually("it is in flight", ARRIVAL, in_flight, |events| {
        *events == Some(1.0)
    });
    assert_eq!(relay.terminate(EXIT), Some(3), "{}", relay.log());
    let log = relay.log();
    for part in [
        "last_acks_failed",
        "the topic does not exist",
        "1 event of slot",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
}
