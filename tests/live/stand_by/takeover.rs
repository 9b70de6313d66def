//! P9: how long it takes from the end of one relay to the first record of the next.

use std::time::Duration;

use super::{Node, stands_by};
use crate::support::seed::from_environment;
use crate::support::topic::now_ms;
use crate::support::wait::eventually;
use crate::support::world::World;

const DEADLINE: Duration = Duration::from_secs(90);

/// What happens to the relay that is at work.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill,
    Stop,
    Cut,
}

/// Milliseconds from the fault to the append, by the broker's clock, of an event that is committed
/// right after it.
fn takeovers(world: &World, config: &str, mode: &str, fault: Fault, rounds: u64) -> Vec<i64> {
    let sql = world.sql();
    let start = || Node::start(world, config, mode);
    let mut one = start();
    one.relay.wait_ready();
    let mut took = Vec::new();
    for _ in 0..rounds {
        let mut other = start();
        stands_by(&other);
        let before = world.delivered();
        let at = now_ms();
        match fault {
            Fault::Kill => one.relay.kill_hard(),
            Fault::Stop => one.relay.process.signal("STOP"),
            Fault::Cut => one.cut_off(),
        }
        world.emit(&sql, "a");
        eventually(
            "it arrives",
            DEADLINE,
            || world.delivered(),
            |records| *records > before,
        );
        let appended = world
            .records(0)
            .iter()
            .map(|record| record.appended_at_ms)
            .max()
            .unwrap();
        took.push(appended - at);
        other.relay.wait_ready();
        one.relay.kill_hard();
        one = other;
    }
    took.sort_unstable();
    took
}

/// A line for each fault.
fn measure(mode: &str, timeout: &str) {
    let rounds = from_environment("WALRELAY_TEST_ROUNDS", 10);
    eprintln!(
        "{:<5} {:<18} {:<9} {:>8} {:>8} {:>8}",
        "mode", "wal_sender_timeout", "fault", "min s", "median s", "max s"
    );
    for (fault, name) in [
        (Fault::Kill, "kill -9"),
        (Fault::Stop, "SIGSTOP"),
        (Fault::Cut, "cut"),
    ] {
        let world = if mode == "slot" {
            World::new()
        } else {
            World::keeping()
        };
        let config = format!("[slot]\nwal_sender_timeout = \"{timeout}\"\n");
        let took = takeovers(&world, &config, mode, fault, rounds);
        let at = |index: usize| took[index] as f64 / 1000.0;
        eprintln!(
            "{mode:<5} {timeout:<18} {name:<9} {:>8.2} {:>8.2} {:>8.2}",
            at(0),
            at(took.len() / 2),
            at(took.len() - 1)
        );
    }
}

#[test]
#[ignore = "a measurement of minutes: make takeover"]
fn a_stand_by_takes_over_a_slot_in() {
    measure("slot", "10s");
    measure("slot", "2s");
}

#[test]
#[ignore = "a measurement of minutes: make takeover"]
fn a_stand_by_takes_over_a_table_in() {
    measure("poll", "10s");
    measure("poll", "2s");
}
