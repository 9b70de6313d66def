//! P1, P2: a cluster of three brokers, replication 3, two in sync, loses a leader every few
//! seconds.

use std::time::{Duration, Instant};

use crate::support::seed::{from_environment, generator};
use crate::support::servers::kafka::PARTITIONS;
use crate::support::servers::{Cluster, Postgres};
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

const ACKED: &str = "walrelay_acked_events_total";

#[test]
fn repeated_leader_failures_under_load_lose_and_reorder_nothing() {
    let chaos = Duration::from_secs(from_environment("WALRELAY_TEST_CHAOS_SECONDS", 8));
    let cluster = Cluster::start();
    let world = World::on(Postgres::shared(), cluster.brokers());
    let mut chance = generator("leaders that are lost");
    let mut relay = world.relay();
    assert!(
        !relay.log().contains("whether the topic is compacted"),
        "{}",
        relay.log()
    );
    let writers = world.workload(&Plan::default());
    let mut topics: Vec<String> = (0..3).map(|kind| world.topic(kind)).collect();
    topics.push("walrelay-state".to_owned());
    eventually(
        "all topics are there",
        ARRIVAL,
        || world.delivered(),
        |records| *records > 100,
    );
    cluster.wait_in_sync(&topics);

    let started = Instant::now();
    let mut lost = Vec::new();
    while started.elapsed() < chaos {
        let topic = &topics[chance.usize(..3)];
        let partition = chance.i32(0..PARTITIONS);
        let leader = || cluster.leader(topic, partition);
        let leader = eventually("it has a leader", ARRIVAL, leader, Option::is_some).unwrap();
        let acked = eventually(
            "it tells what is acked",
            ARRIVAL,
            || relay.metric(ACKED),
            Option::is_some,
        )
        .unwrap();
        // A broker that is stopped in order hands over what it leads; one that is frozen wakes up
        // as the leader it was.
        let how = chance.u8(..4);
        match how {
            0 => cluster.stop(leader),
            1 => cluster.kill_hard(leader),
            _ => cluster.freeze(leader),
        }
        let at = Instant::now();
        // The two that are left go on by themselves.
        let next = || relay.metric(ACKED).unwrap_or_default();
        eventually("the rest goes on", ARRIVAL, next, |now| {
            *now > acked + 100.0
        });
        match how {
            0 | 1 => cluster.spawn(leader),
            _ => cluster.thaw(leader),
        }
        cluster.wait_in_sync(&topics);
        let how = ["stopped", "killed", "frozen", "frozen"][usize::from(how)];
        lost.push(format!("{how} for {:.0} s", at.elapsed().as_secs_f64()));
    }
    let committed = writers.stop();
    let findings = world.assert_all_delivered();
    assert!(
        relay.process.exited().is_none(),
        "the loss of a broker ended the relay"
    );
    let log = relay.log();
    let restarts = log.matches("interrupted").count();
    eprintln!(
        "leaders lost: {}; {committed} transactions, {restarts} producers ended, {} copies",
        lost.join(", "),
        findings.duplicates
    );
    // Copies come of a producer that ended, and of nothing else.
    assert!(
        findings.duplicates == 0 || restarts > 0,
        "{} copies\n{log}",
        findings.duplicates
    );
    assert_eq!(relay.terminate(ARRIVAL), Some(0));
}
