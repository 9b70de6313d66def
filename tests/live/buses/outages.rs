//! P1, P2, P3: a server that is killed, absent when a relay starts, or stands still costs nothing
//! but time.

use std::time::Duration;

use super::{Fate, Lab, TestServer, ready};
use crate::support::relay::{EXIT, Relay, RelayCommand};
use crate::support::seed::{from_environment, generator};
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::ARRIVAL;

pub(super) fn a_server_killed_absent_and_frozen_loses_and_reorders_nothing<B: TestServer>() {
    let Some(mut lab) = Lab::<B>::new(Fate::Killed) else {
        return;
    };
    let run = lab.run("").option("--on-error", "park");
    let relay = ready(&run);
    let mut relay = lab.while_stored_is_ahead(|lab| outages(lab, &run, relay));
    let found = lab.all_delivered();
    eprintln!(
        "{}: {} events, {} kills of the server, 2 freezes, {} duplicates",
        B::NAME,
        lab.world.committed(),
        kills(),
        found.duplicates
    );
    lab.world.wait_confirmed();
    assert_eq!(lab.world.number_parked(), 0, "an outage parks nothing");
    lab.bus.kill_hard();
    let is_ready = || relay.is_ready();
    eventually("it notices without an event", ARRIVAL, is_ready, |ready| {
        !ready
    });
    lab.bus.run();
    relay.wait_ready();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// Gives the relay that is at work at the end.
fn outages<B: TestServer>(lab: &mut Lab<B>, run: &RelayCommand, mut relay: Relay) -> Relay {
    let mut chance = generator(&format!("outages of {}", B::NAME));
    let writers = lab.world.workload(&Plan {
        writers: 2,
        pause: Duration::from_millis(30),
        ..Plan::default()
    });
    for _ in 0..kills() {
        lab.wait_more(chance.i64(1..200));
        lab.bus.kill_hard();
        let is_ready = || relay.is_ready();
        eventually("it notices", ARRIVAL, is_ready, |ready| !ready);
        writers.wait_for(50);
        relay.kill_hard();
        relay = run.start();
        let waits = || relay.log().contains("\"event\":\"producer_failed\"");
        eventually("it looks for the server", ARRIVAL, waits, |waits| *waits);
        assert!(!relay.is_ready());
        relay.kill_hard();
        lab.bus.run();
        lab.assert_confirmed_is_delivered();
        relay = ready(run);
    }
    for _ in 0..2 {
        lab.wait_more(chance.i64(1..200));
        lab.bus.freeze();
        writers.wait_for(chance.u64(20..100));
        lab.bus.thaw();
    }
    relay.kill_hard();
    lab.assert_confirmed_is_delivered();
    relay = run.start();
    writers.stop();
    relay
}

fn kills() -> u64 {
    from_environment("WALRELAY_TEST_BROKER_RESTARTS", 1)
}
