//! P1: nothing is confirmed that was not acked.

use crate::support::proxy::Way;
use crate::support::relay::EXIT;
use crate::support::servers::kafka::{PARTITIONS, SECOND};
use crate::support::servers::{Kafka, Postgres};
use crate::support::topic;
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

#[test]
fn a_relay_killed_while_one_topic_stalls_loses_nothing() {
    let (kafka, second) = Kafka::pair();
    let world = World::on(Postgres::shared(), kafka.brokers());
    let nodes = [1; PARTITIONS as usize];
    topic::create_on(
        &world.brokers,
        "walrelay-state",
        &[1],
        &[("cleanup.policy", "compact")],
    );
    topic::create_on(&world.brokers, &world.topic(0), &nodes, &[]);
    topic::create_on(&world.brokers, &world.topic(1), &nodes.map(|_| SECOND), &[]);
    topic::create_on(&world.brokers, &world.topic(2), &nodes, &[]);
    let mut relay = world.relay();
    let sql = world.sql();
    for aggregate in ["a", "b", "c", "d"] {
        world.emit_to(&sql, 1, aggregate);
    }
    world.wait_confirmed();
    assert_eq!(world.delivered(), 4);

    second.freeze();
    world.emit_to(&sql, 1, "a");
    let behind = world.wal();
    let writers = world.workload(&Plan {
        writers: 6,
        ..Plan::default()
    });
    eventually(
        "other topics go on",
        ARRIVAL,
        || {
            topic::count(&world.brokers, &world.topic(0))
                + topic::count(&world.brokers, &world.topic(2))
        },
        |records| *records >= 300,
    );
    assert!(
        world.confirmed() < behind,
        "confirmed behind an event that was never acked"
    );

    relay.kill_hard();
    assert!(
        world.confirmed() < behind,
        "confirmed behind an event that was never acked"
    );
    writers.stop();
    second.thaw();
    let _relay = world.relay();
    world.assert_all_delivered();
    world.wait_confirmed();
}

#[test]
fn a_relay_killed_without_any_ack_loses_nothing() {
    let (proxy, brokers) = Kafka::shared().behind_proxy();
    let world = World::new();
    let mut relay = world.run().option("--brokers", &brokers).start();
    relay.wait_ready();
    let sql = world.sql();
    // The producer knows all topics: without answers, it cannot ask for one.
    (0..3).for_each(|kind| world.emit_to(&sql, kind, "a"));
    world.wait_confirmed();
    let acked = world.delivered();

    // Requests arrive, acks do not: the broker has records nobody was told about.
    proxy.blackhole(Way::Down);
    let writers = world.workload(&Plan::default());
    writers.wait_for(150);
    writers.stop();
    let goal = world.wal();
    eventually(
        "records without acks",
        ARRIVAL,
        || world.delivered(),
        |records| *records > acked,
    );
    assert!(world.confirmed() < goal, "confirmed without an ack");
    relay.kill_hard();

    // One that looks into the topics finds them there.
    let _relay = world
        .run()
        .variable("WALRELAY_DELIVERY_READ_TAILS", "never")
        .start();
    let findings = world.assert_all_delivered();
    assert!(
        findings.duplicates > 0,
        "records that were in the topic without an ack have to come again"
    );
}

#[test]
fn rows_committed_while_no_relay_runs_are_published_at_its_start() {
    let world = World::on(Postgres::shared(), Kafka::shared().brokers());
    let writers = world.workload(&Plan::default());
    writers.wait_for(200);
    writers.stop();
    let mut relay = world.relay();
    let findings = world.assert_all_delivered();
    assert_eq!(findings.duplicates, 0);
    world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0));
}
