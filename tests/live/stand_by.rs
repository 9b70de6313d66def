//! P2, P9: the slot is the lock. Any number of relays may be started with it: one is at work, the
//! others take over.

mod parked;
mod takeover;
mod zombie;

use std::time::Duration;

use crate::support::proxy::{Proxy, Way};
use crate::support::relay::Relay;
use crate::support::seed::generator;
use crate::support::servers::Postgres;
use crate::support::wait::{eventually, throughout};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

/// How long the server waits for a relay that is silent, in these tests.
const TIMEOUT: &str = "[slot]\nwal_sender_timeout = \"2s\"\n";

/// A relay with a network of its own to Postgres.
struct Node {
    relay: Relay,
    postgres: Proxy,
}

impl Node {
    fn start(world: &World, config: &str, mode: &str) -> Node {
        let postgres = Proxy::before(&Postgres::shared().address());
        let url = world.url_through(&postgres);
        let command = world
            .run()
            .option("--database-url", &url)
            .config_file(config)
            .option("--mode", mode);
        Node {
            relay: command.start(),
            postgres,
        }
    }

    /// Whether it says that it waits for another.
    fn stands_by(&self) -> bool {
        self.relay.metric("walrelay_standing_by") == Some(1.0)
    }

    /// Its network is gone, and nobody is told.
    fn cut_off(&self) {
        self.postgres.blackhole(Way::Up);
        self.postgres.blackhole(Way::Down);
    }
}

#[track_caller]
fn stands_by(node: &Node) {
    eventually(
        "it stands by",
        ARRIVAL,
        || node.stands_by(),
        |stands| *stands,
    );
}

#[test]
fn a_stand_by_waits_for_the_slot_and_takes_over() {
    let world = World::new();
    world.create_topics();
    let mut one = Node::start(&world, "", "slot");
    one.relay.wait_ready();
    let walsender = world.wait_streaming();
    let mut other = Node::start(&world, "", "slot");
    stands_by(&other);

    let (status, body) = other.relay.readiness().expect("an answer");
    assert_eq!(status, 503);
    for word in [
        "\"reason\":\"standing_by\"",
        &format!("backend pid {walsender}"),
        &format!("walrelay/{}", world.name),
    ] {
        assert!(body.contains(word), "{word} is not in {body}");
    }
    let report: serde_json::Value = serde_json::from_str(
        &one.relay
            .asked_by(world.command("status"))
            .flag("--json")
            .succeed(),
    )
    .expect("a report");
    assert_eq!(report["pid"].as_i64(), Some(walsender));
    assert_eq!(report["guarantee"], "at-least-once");
    assert_eq!(
        report["stand_by_pids"].as_array().map(Vec::len),
        Some(1),
        "{report}"
    );

    let cpu_ms = other.relay.process.cpu_ms();
    let connections = other.postgres.accepted();
    let stands = || {
        other.stands_by()
            && other.relay.process.exited().is_none()
            && world.walsender() == walsender
    };
    throughout(
        "it stands by, and the first goes on",
        Duration::from_secs(5),
        stands,
    );
    assert_eq!(
        other.postgres.accepted(),
        connections,
        "it connects again and again"
    );
    eprintln!(
        "CPU before and after five seconds of it: {cpu_ms:?} and {:?} ms",
        other.relay.process.cpu_ms()
    );
    assert_eq!(
        other.relay.log().matches("standing by").count(),
        1,
        "{}",
        other.relay.log()
    );
    let page = || one.relay.get("/");
    let retained = || other.relay.metric("walrelay_retained_wal_bytes");
    let names_it = |page: &Option<(u16, String)>| {
        page.as_ref()
            .is_some_and(|(_, html)| html.contains("1 relay stands by: "))
    };
    eventually("the page names the stand-by", ARRIVAL, page, names_it);
    eventually(
        "the stand-by measures the slot",
        ARRIVAL,
        retained,
        Option::is_some,
    );
    assert_eq!(other.relay.metric("walrelay_received_lsn"), None);

    let sql = world.sql();
    assert_eq!(one.relay.terminate(ARRIVAL), Some(0));
    world.emit(&sql, "a");
    assert_eq!(world.assert_all_delivered().duplicates, 0);
    other.relay.wait_ready();
    assert!(!other.stands_by());
    assert_ne!(world.wait_streaming(), walsender);
}

/// P12.
#[test]
fn a_relay_that_reads_the_table_and_every_other_exclude_each_other() {
    for [first, second] in [["slot", "poll"], ["poll", "slot"]] {
        let world = World::keeping();
        world.setup();
        let mut one = Node::start(&world, "", first);
        one.relay.wait_ready();
        let mut other = Node::start(&world, "", second);
        stands_by(&other);
        world.emit(&world.sql(), "a");
        world.assert_all_delivered();
        assert!(other.stands_by(), "{}", other.relay.log());
        assert_eq!(one.relay.terminate(ARRIVAL), Some(0));
        other.relay.wait_ready();
    }
}

/// Three relays, of which the one at work is killed, stopped or cut off at a random moment, under
/// writers.
fn relays_that_die_and_wake(world: &World, config: &str, mode: &str, faults: u32) {
    let mut chance = generator(&format!("deaths of relays in mode {mode}"));
    let mut nodes: Vec<Node> = (0..3).map(|_| Node::start(world, config, mode)).collect();
    let writers = world.workload(&Plan::default());
    for _ in 0..faults {
        let at_work = || {
            nodes
                .iter()
                .position(|node| !node.stands_by() && node.relay.is_ready())
        };
        let number = eventually("one is at work", ARRIVAL, at_work, Option::is_some).unwrap();
        writers.wait_for(chance.u64(20..200));
        let delivered = world.delivered();
        match chance.u8(..3) {
            0 => nodes[number].relay.kill_hard(),
            1 => nodes[number].relay.process.signal("STOP"),
            _ => nodes[number].cut_off(),
        }
        // All that Kafka had at that moment may be the dead one's, and so may what is on its way;
        // soon it is not.
        writers.wait_for(200);
        eventually(
            "another goes on",
            ARRIVAL,
            || world.delivered(),
            |now| *now > delivered + 400,
        );
        if nodes[number].relay.process.exited().is_some() {
            nodes[number] = Node::start(world, config, mode);
        } else {
            nodes[number].relay.process.signal("CONT");
            nodes[number].postgres.resume();
        }
    }
    writers.stop();
    let findings = world.assert_all_delivered();
    eprintln!(
        "{faults} faults in mode {mode}: {} copies",
        findings.duplicates
    );
    for node in &mut nodes {
        assert!(
            node.relay.process.exited().is_none(),
            "a relay ended:\n{}",
            node.relay.log()
        );
    }
}

#[test]
fn take_overs_among_three_relays_lose_and_reorder_nothing() {
    relays_that_die_and_wake(&World::new(), TIMEOUT, "slot", 6);
}

#[test]
fn take_overs_among_three_pollers_lose_and_reorder_nothing() {
    relays_that_die_and_wake(&World::keeping(), TIMEOUT, "poll", 3);
}
