//! P3: a topic that has no place on the bus holds up its own events, and no others.

use super::{Fate, Lab, TestBus, ready};
use crate::support::relay::EXIT;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

/// Of a topic that will have a place soon. After its attempts an event is not tried by itself.
const RETRIES: &str =
    "[delivery]\nretry_attempts = 1000\nretry_base = \"200ms\"\nretry_cap = \"1s\"\n";

/// Commits so many events of kind 0, and as many of kind 1, in turn.
fn commit(world: &World, of_each: u32) {
    let kinds = [world.kind(0), world.kind(1)];
    world.sql().run(&format!(
        "select emit('{0}', '{0}-' || n % 3, 20), emit('{1}', '{1}-' || n % 3, 20)
         from generate_series(1, {of_each}) n",
        kinds[0], kinds[1]
    ));
}

pub(super) fn a_topic_without_a_place_waits_until_there_is_one<B: TestBus>() {
    let Some(mut lab) = Lab::<B>::new(Fate::Shared) else {
        return;
    };
    let topic = lab.world.topic(1);
    lab.bus.unmake(&topic);
    let mut relay = ready(&lab.run(RETRIES));
    commit(&lab.world, 9);
    let told =
        |line: &str| line.contains(&topic) && B::NO_PLACE.iter().all(|words| line.contains(words));
    let told = || relay.log().lines().any(told);
    eventually("it is told", ARRIVAL, told, |told| *told);
    let others = [lab.world.topic(0)];
    let count = || lab.bus.count(&others);
    eventually("others arrive", ARRIVAL, count, |count| *count >= 9);
    lab.bus.make(&topic);
    let found = lab.all_delivered();
    eprintln!("{}: {} duplicates", B::NAME, found.duplicates);
    lab.world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

pub(super) fn events_of_a_topic_without_a_place_are_parked_and_delivered_in_order<B: TestBus>() {
    let Some(mut lab) = Lab::<B>::new(Fate::Shared) else {
        return;
    };
    let topic = lab.world.topic(1);
    let mut relay = ready(&lab.run(RETRIES).option("--on-error", "park"));
    commit(&lab.world, 3);
    lab.all_delivered();
    lab.world.wait_confirmed();
    // The place goes, and what was in it.
    let went = format!(
        "delete from outbox where aggregatetype = '{}'",
        lab.world.kind(1)
    );
    lab.world.sql().run(&went);
    lab.bus.unmake(&topic);
    commit(&lab.world, 9);
    lab.wait_parked(9);
    let count = || lab.count();
    eventually("the others arrive", ARRIVAL, count, |count| *count >= 12);
    lab.world.wait_confirmed();
    commit(&lab.world, 6);
    lab.wait_parked(15);
    lab.bus.make(&topic);
    let found = lab.all_delivered();
    lab.wait_parked(0);
    eprintln!("{}: {} duplicates", B::NAME, found.duplicates);
    lab.world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
