//! P14: with `guarantee = "exactly-once"`, who reads what is committed sees every event once and in order, whatever fails.

use std::time::Duration;

use crate::support::checker::Findings;
use crate::support::relay::{Relay, RelayCommand};
use crate::support::seed::{from_environment, generator};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

const EXIT: Duration = Duration::from_secs(30);

fn run(world: &World) -> RelayCommand {
    world.run().option("--guarantee", "exactly-once")
}

fn relay(world: &World) -> Relay {
    let mut relay = run(world).start();
    relay.wait_ready();
    relay
}

/// Every row arrived, and none twice.
#[track_caller]
fn assert_once(world: &World) -> Findings {
    let findings = world.assert_all_delivered();
    assert_eq!(findings.duplicates, 0, "events came twice");
    findings
}

#[test]
fn everything_arrives_once_and_a_restart_goes_on_behind_it() {
    let world = World::new();
    let mut first = relay(&world);
    let writers = world.workload(&Plan::default());
    writers.wait_for(200);
    assert_eq!(first.terminate(EXIT), Some(0), "{}", first.log());
    writers.wait_for(50);
    let mut second = relay(&world);
    writers.wait_for(50);
    writers.stop();
    assert_once(&world);
    world.wait_confirmed(ARRIVAL);
    assert_eq!(second.terminate(EXIT), Some(0), "{}", second.log());
}

#[test]
fn killed_again_and_again_under_load_it_brings_every_event_once() {
    let world = World::new();
    let writers = world.workload(&Plan { writers: 6, ..Plan::default() });
    let mut chance = generator("exactly once");
    for round in 0..from_environment("WALRELAY_TEST_RESTARTS", 10) {
        let mut relay = relay(&world);
        std::thread::sleep(Duration::from_millis(chance.u64(0..1_500)));
        writers.wait_for(chance.u64(1..60));
        relay.kill_hard();
        if round % 3 == 2 {
            writers.wait_for(chance.u64(1..200));
        }
    }
    let mut relay = relay(&world);
    writers.stop();
    assert_once(&world);
    world.wait_confirmed(ARRIVAL);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
