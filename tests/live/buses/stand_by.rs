//! P2, P9: a relay that takes over from one that was killed, or that stands still and wakes up
//! behind its successor.

use super::{Fate, Lab, TestBus, ready};
use crate::support::relay::Relay;
use crate::support::seed::generator;
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

#[track_caller]
fn stands_by(relay: &Relay) {
    let stands = || relay.metric("walrelay_standing_by");
    eventually("it stands by", ARRIVAL, stands, |stands| {
        *stands == Some(1.0)
    });
}

/// The server gives up the session of a relay that is silent.
#[track_caller]
fn give_up(world: &World) {
    let walsender = world.wait_streaming();
    let end = format!("select pg_terminate_backend({walsender}::int)");
    world.sql().run(&end);
}

pub(super) fn a_relay_killed_or_frozen_during_a_take_over_reorders_nothing<B: TestBus>() {
    let Some(mut lab) = Lab::<B>::new(Fate::Shared) else {
        return;
    };
    let mut chance = generator(&format!("take-overs on {}", B::NAME));
    let run = lab.run("");
    let mut one = ready(&run);
    let mut other = run.start();
    let writers = lab.world.workload(&Plan::default());
    for is_kill in [false, true, false] {
        stands_by(&other);
        lab.wait_more(chance.i64(1..200));
        if is_kill {
            one.kill_hard();
            other.wait_ready();
            one = run.start();
        } else {
            one.process.signal("STOP");
            give_up(&lab.world);
            other.wait_ready();
            lab.wait_more(chance.i64(100..200));
            one.process.signal("CONT");
        }
        std::mem::swap(&mut one, &mut other);
    }
    stands_by(&other);
    writers.stop();
    let found = lab.all_delivered();
    eprintln!(
        "{}: {} events, a relay killed once and frozen twice, {} duplicates",
        B::NAME,
        lab.world.committed(),
        found.duplicates
    );
    lab.world.wait_confirmed();
}
