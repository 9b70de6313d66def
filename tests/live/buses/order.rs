//! P1, P2: a relay that is killed or stands still loses nothing, and keeps the order of each key.

use super::{Fate, Lab, TestBus, ready};
use crate::support::relay::EXIT;
use crate::support::seed::{from_environment, generator};
use crate::support::workload::Plan;

pub(super) fn a_relay_killed_and_frozen_loses_and_reorders_nothing<B: TestBus>() {
    let Some(mut lab) = Lab::<B>::new(Fate::Shared) else {
        return;
    };
    let mut chance = generator(&format!("deaths of a relay on {}", B::NAME));
    let run = lab.run("");
    let mut relay = ready(&run);
    let writers = lab.world.workload(&Plan::default());
    let kills = from_environment("WALRELAY_TEST_RESTARTS", 3);
    for _ in 0..kills {
        lab.wait_more(chance.i64(1..200));
        relay.process.signal("STOP");
        writers.wait_for(chance.u64(20..60));
        relay.process.signal("CONT");
        lab.wait_more(chance.i64(1..200));
        relay.kill_hard();
        lab.assert_confirmed_is_delivered();
        relay = run.start();
    }
    writers.stop();
    let found = lab.all_delivered();
    eprintln!(
        "{}: {} events, {kills} kills and freezes of the relay, {} duplicates",
        B::NAME,
        lab.world.committed(),
        found.duplicates
    );
    lab.world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
