//! P9: a broker that knows of no broker for a moment, not even of itself, which librdkafka never gets over.

use std::time::Duration;

use crate::support::fake::Fake;
use crate::support::relay::{EXIT, RelayCommand};
use crate::support::wait::eventually;
use crate::support::world::World;

/// From the moment a broker is back until a relay that has forgotten it has made another producer and sent something, on a
/// machine that is busy with other tests.
const RECOVERY: Duration = Duration::from_secs(120);

/// A relay whose position and history are not in Kafka: the broker takes records, and gives none.
fn run(world: &World, fake: &Fake) -> RelayCommand {
    let file =
        "[delivery]\nread_tails = \"never\"\n[kafka.properties]\n\"topic.metadata.refresh.interval.ms\" = \"100\"\n";
    world.run().option("--brokers", &fake.brokers()).option("--state-store", "postgres").config_file(file)
}

/// The broker is fenced until somebody was told that there are no brokers.
fn fence(fake: &Fake) {
    let told = fake.told();
    fake.fence(true);
    eventually("somebody hears of no broker", RECOVERY, || fake.told(), |now| *now > told);
    fake.fence(false);
}

fn emit(world: &World) {
    world.sql().run(&format!("select emit('{}', 'a1', 20)", world.kind(0)));
}

#[test]
fn a_relay_that_is_started_before_its_broker_knows_of_any_begins_once_it_does() {
    let world = World::new();
    let fake = Fake::with(&world.topic(0));
    fake.fence(true);
    let mut relay = run(&world, &fake).start();
    eventually("it hears of no broker", RECOVERY, || fake.told(), |told| *told > 0);
    fake.fence(false);
    eventually("it is ready", RECOVERY, || relay.is_ready(), |ready| *ready);
    emit(&world);
    eventually("the event arrives", RECOVERY, || fake.taken(), |taken| *taken > 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_relay_that_has_forgotten_its_broker_delivers_by_another_producer() {
    forgets_its_broker("slot", &World::new());
}

#[test]
fn a_poller_that_has_forgotten_its_broker_delivers_by_another_producer() {
    forgets_its_broker("poll", &World::keeping());
}

#[track_caller]
fn forgets_its_broker(mode: &str, world: &World) {
    let fake = Fake::with(&world.topic(0));
    let mut relay = run(world, &fake).option("--mode", mode).start();
    relay.wait_ready();
    emit(world);
    eventually("the first event arrives", RECOVERY, || fake.taken(), |taken| *taken > 0);
    fence(&fake);
    let taken = fake.taken();
    emit(world);
    eventually("the second event arrives", RECOVERY, || fake.taken(), |now| *now > taken);
    // A librdkafka that finds its way by itself is as good.
    eprintln!("{mode}: another producer: {}", relay.log().contains("a Kafka producer is given up"));
    assert_eq!(relay.terminate(EXIT), Some(0), "{mode}: {}", relay.log());
}
