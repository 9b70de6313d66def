//! The slot is not there, or not what it was: what it does not have is read from the table, once and in order.

use std::time::Duration;

use crate::support::relay::Relay;
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

const EXIT: Duration = Duration::from_secs(30);

/// A database with publication, without slot.
fn without_slot() -> World {
    let world = World::keeping();
    world.publish();
    world
}

/// Waits until the relay streams, and from this slot.
fn streaming(world: &World, relay: &mut Relay) {
    relay.wait_ready();
    world.wait_streaming();
}

#[test]
fn a_first_start_publishes_what_is_in_the_table_and_goes_on_with_the_slot() {
    let world = without_slot();
    let writers = world.workload(&Plan { writers: 4, ..Plan::default() });
    writers.wait_for(400);
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    writers.wait_for(400);
    writers.stop();
    let findings = world.assert_all_delivered();
    assert_eq!(findings.duplicates, 0, "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0));

    // From here on it is a slot like any other.
    let mut relay = world.relay();
    world.emit(&world.sql(), "later");
    assert_eq!(world.assert_all_delivered().duplicates, 0);
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn a_slot_dropped_under_load_costs_no_event_and_no_copy() {
    let world = World::keeping();
    world.setup();
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    let writers = world.workload(&Plan { writers: 4, ..Plan::default() });
    for round in 0..10 {
        writers.wait_for(60);
        world.drop_slot();
        eventually("the slot is made anew", ARRIVAL, || world.walsender(), |pid| *pid != 0);
        eprintln!("round {round}");
    }
    writers.wait_for(60);
    writers.stop();
    let findings = world.assert_all_delivered();
    assert_eq!(findings.duplicates, 0, "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn a_slot_dropped_while_the_relay_was_away_costs_no_event() {
    let world = World::keeping();
    world.setup();
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    let writers = world.workload(&Plan { writers: 4, ..Plan::default() });
    writers.wait_for(100);
    relay.kill_hard();
    writers.wait_for(100);
    world.drop_slot();
    writers.wait_for(100);
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    writers.wait_for(100);
    writers.stop();
    let findings = world.assert_all_delivered();
    eprintln!("{} copies after kill -9", findings.duplicates);
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn polling_publishes_each_event_once_and_gives_way_to_a_slot() {
    let world = without_slot();
    let writers = world.workload(&Plan { writers: 4, ..Plan::default() });
    writers.wait_for(100);
    let mut relay = world.run().option("--mode", "poll").start();
    relay.wait_ready();
    writers.wait_for(500);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    let mut relay = world.run().option("--mode", "poll").start();
    relay.wait_ready();
    writers.wait_for(100);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    writers.wait_for(100);
    writers.stop();
    assert_eq!(world.assert_all_delivered().duplicates, 0, "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0));
}
