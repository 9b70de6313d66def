//! P12: rows that are read from the table, by a poller and after the loss of a slot.

use std::time::Duration;

use super::{Fate, Lab, TestBus, ready};
use crate::support::relay::EXIT;
use crate::support::seed::{from_environment, generator};
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::ARRIVAL;

pub(super) fn a_poller_killed_under_load_publishes_each_row_in_order<B: TestBus>() {
    let Some(mut lab) = Lab::<B>::keeping(Fate::Shared) else {
        return;
    };
    let mut chance = generator(&format!("deaths of a poller on {}", B::NAME));
    let run = lab.run("").option("--mode", "poll");
    let mut relay = ready(&run);
    let writers = lab.world.workload(&Plan::default());
    let kills = from_environment("WALRELAY_TEST_RESTARTS", 3);
    for _ in 0..kills {
        lab.wait_more(chance.i64(1..200));
        relay.kill_hard();
        relay = run.start();
    }
    writers.stop();
    let found = lab.all_delivered();
    eprintln!(
        "{}: {} rows polled, {kills} kills, {} duplicates",
        B::NAME,
        lab.world.committed(),
        found.duplicates
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

pub(super) fn a_slot_dropped_under_load_loses_and_duplicates_nothing<B: TestBus>() {
    let Some(mut lab) = Lab::<B>::keeping(Fate::Shared) else {
        return;
    };
    let mut relay = ready(&lab.run(""));
    // So slow that a busy server of the bus keeps up: what it does not ack in time comes again.
    let writers = lab.world.workload(&Plan {
        pause: Duration::from_millis(100),
        ..Plan::default()
    });
    // Before anything is stored of what is published, nobody could tell what to recover.
    lab.world.wait_stored(&relay);
    let losses = from_environment("WALRELAY_TEST_RESTARTS", 3);
    for _ in 0..losses {
        writers.wait_for(60);
        lab.world.drop_slot();
        let walsender = || lab.world.walsender();
        eventually("the slot is made anew", ARRIVAL, walsender, |pid| *pid != 0);
    }
    writers.stop();
    let found = lab.all_delivered();
    eprintln!(
        "{}: {} events, {losses} slots lost, {} duplicates",
        B::NAME,
        lab.world.committed(),
        found.duplicates
    );
    let log = relay.log();
    let is_late = ["record_delayed", "producer_failed", "bus_disconnected"];
    let is_late = is_late.iter().any(|event| log.contains(event));
    assert!(found.duplicates == 0 || is_late, "{log}");
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
