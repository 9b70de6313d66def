//! P9: a broker that knows of no broker for a moment, not even of itself. librdkafka forgets all
//! brokers then.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::fake::Fake;
use crate::support::relay::{EXIT, Relay, RelayCommand};
use crate::support::wait::{LIMIT, eventually};
use crate::support::world::World;

/// From the moment a broker is back until a relay that has forgotten it has sent something, on a
/// machine that is busy with other tests.
const RECOVERY: Duration = LIMIT;

/// Threads of librdkafka for brokers: one for the broker there is, and one for what has no broker.
const THREADS: usize = 2;

/// A relay whose position and history are not in Kafka: the broker takes records, and gives none.
fn run(world: &World, fake: &Fake) -> RelayCommand {
    let file = "[delivery]\nread_tails = \
                \"never\"\n[kafka.properties]\n\"topic.metadata.refresh.interval.ms\" = \"100\"\n";
    world
        .run()
        .option("--brokers", &fake.brokers())
        .option("--state-store", "postgres")
        .config_file(file)
}

/// The broker is fenced until it has said so many times that there are no brokers.
fn fence(fake: &Fake, times: usize) {
    let told = fake.told();
    fake.fence(true);
    eventually(
        "it is asked for brokers",
        RECOVERY,
        || fake.told(),
        |now| *now >= told + times,
    );
    fake.fence(false);
}

fn emit(world: &World) {
    world
        .sql()
        .run(&format!("select emit('{}', 'a1', 20)", world.kind(0)));
}

#[test]
fn a_relay_started_before_its_broker_registers_streams_afterwards() {
    let world = World::new();
    let fake = Fake::with(&world.topic(0));
    fake.fence(true);
    let mut relay = run(&world, &fake).start();
    eventually(
        "it hears of no broker",
        RECOVERY,
        || fake.told(),
        |told| *told > 0,
    );
    fake.fence(false);
    eventually("it is ready", RECOVERY, || relay.is_ready(), |ready| *ready);
    emit(&world);
    eventually(
        "the event arrives",
        RECOVERY,
        || fake.taken(),
        |taken| *taken > 0,
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_producer_without_known_brokers_is_revived() {
    forgets_its_broker("slot", &World::new());
}

#[test]
fn a_pollers_producer_without_known_brokers_is_revived() {
    forgets_its_broker("poll", &World::keeping());
}

#[track_caller]
fn forgets_its_broker(mode: &str, world: &World) {
    let fake = Fake::with(&world.topic(0));
    let mut relay = run(world, &fake).option("--mode", mode).start();
    relay.wait_ready();
    emit(world);
    eventually(
        "the first event arrives",
        RECOVERY,
        || fake.taken(),
        |taken| *taken > 0,
    );
    eventually(
        "the bootstrap server's thread ends",
        RECOVERY,
        || broker_threads(&relay),
        |threads| *threads == THREADS,
    );
    // A broker that is asked again while it is fenced is one that was not forgotten for good.
    for times in [1, 4, 1, 2] {
        fence(&fake, times);
        let taken = fake.taken();
        let back_at = Instant::now();
        emit(world);
        eventually(
            "the next event arrives",
            RECOVERY,
            || fake.taken(),
            |now| *now > taken,
        );
        eprintln!(
            "{mode}: fenced for {times} answers, back after {} ms",
            back_at.elapsed().as_millis()
        );
    }
    eventually(
        "no thread is left over",
        RECOVERY,
        || broker_threads(&relay),
        |threads| *threads == THREADS,
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{mode}: {}", relay.log());
}

/// How many threads of librdkafka serve brokers.
fn broker_threads(relay: &Relay) -> usize {
    let tasks =
        fs::read_dir(format!("/proc/{}/task", relay.process.pid())).expect("the relay runs");
    let name =
        |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    // A thread may end while it is read.
    tasks
        .filter_map(Result::ok)
        .map(name)
        .filter(|name| name.starts_with("rdk:broker"))
        .count()
}
