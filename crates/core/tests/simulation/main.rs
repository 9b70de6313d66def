//! The core under seeded schedules: a model of Postgres, of the bus and of the store, and faults at
//! any point between.
//!
//! No clock, no socket, no thread: a schedule is its seed. `WALRELAY_SIMULATION_SEED=n` replays
//! one, `WALRELAY_SIMULATION_RUNS=n` sets how many are tried.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, and its helpers are tests too"
)]

mod broker;
mod parked;
mod pgoutput;
mod server;
mod world;

use std::cell::Cell;
use std::panic::AssertUnwindSafe;

use world::{Faults, World};

/// Schedules tried in a plain run.
const RUNS: u64 = 250;
/// Steps of one schedule before the faults stop and everything has to settle.
const STEPS: usize = 400;

fn explore(name: &str, faults: Faults, check: impl Fn(&World)) {
    explore_from(name, |seed| World::new(seed, faults), check);
}

/// Whether it tried so many seeds that each path must be reached.
fn explore_from(name: &str, begin: impl Fn(u64) -> World, check: impl Fn(&World)) -> bool {
    let number = |variable: &str| {
        std::env::var(variable)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let seeds = match number("WALRELAY_SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("WALRELAY_SIMULATION_RUNS").unwrap_or(RUNS),
    };
    let is_many = seeds.clone().count() as u64 >= RUNS;
    for seed in seeds {
        let run = std::panic::catch_unwind(AssertUnwindSafe(|| {
            // Waits are shortened at random.
            fastrand::seed(seed);
            let mut world = begin(seed);
            for _ in 0..STEPS {
                world.step();
            }
            world.settle();
            world.check_delivery();
            check(&world);
        }));
        if let Err(panic) = run {
            let what = panic.downcast_ref::<String>().map(String::as_str);
            let what = what
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("a panic");
            panic!("{name}: {what}\nreplay with WALRELAY_SIMULATION_SEED={seed}");
        }
    }
    is_many
}

#[test]
fn nothing_is_lost_or_reordered_whatever_fails() {
    explore("every fault", Faults::ALL, |_| {});
}

#[test]
fn without_faults_every_event_is_delivered_once() {
    explore("no fault", Faults::NONE, |world| {
        assert_eq!(world.duplicates(), 0, "duplicates without a fault")
    });
}

#[test]
fn lost_connections_and_crashed_servers_cause_no_duplicates() {
    let faults = Faults {
        disconnect: true,
        server_crash: true,
        ..Faults::NONE
    };
    explore("server faults", faults, |world| {
        assert_eq!(
            world.duplicates(),
            0,
            "the relay lived, and sent something twice"
        );
    });
}

#[test]
fn committed_together_every_event_is_seen_once_whatever_fails() {
    let check = |world: &World| assert_eq!(world.duplicates(), 0, "P14: an event is seen twice");
    explore_from(
        "exactly once",
        |seed| World::exactly_once(seed, Faults::ALL),
        check,
    );
}

/// Every path that `is_all` asks for is reached, where many seeds are tried.
fn explore_reaching(
    name: &str,
    begin: impl Fn(u64) -> World,
    is_all: impl Fn(&world::Reached) -> bool,
) {
    let reached = Cell::new(world::Reached::default());
    let is_many = explore_from(name, begin, |world| {
        let mut sum = reached.get();
        sum.add(world);
        reached.set(sum);
    });
    let reached = reached.into_inner();
    assert!(
        !is_many || is_all(&reached),
        "a path was not reached: {reached:?}"
    );
}

#[test]
fn lanes_keep_the_order_of_each_key_whatever_is_refused() {
    let begin = |seed| World::on_lanes(seed, Faults::ALL);
    explore_reaching("lanes", begin, world::Reached::all_of_lanes);
}

#[test]
fn events_that_topics_have_do_not_come_again_behind_later_ones() {
    for parks in [false, true] {
        let begin = |seed| {
            let world = match parks {
                true => World::that_parks(seed, Faults::some(seed), false),
                false => World::new(seed, Faults::some(seed)),
            };
            world.that_reads_tails()
        };
        explore_reaching("tails", begin, world::Reached::all_of_tails);
    }
}

#[test]
fn parked_events_keep_the_order_of_each_key_whatever_fails() {
    for lanes in [false, true] {
        let begin = |seed| World::that_parks(seed, Faults::some(seed), lanes);
        explore_reaching("parked events", begin, |reached| reached.retried.all());
    }
}

#[test]
fn lanes_without_faults_deliver_every_event_once() {
    let begin = |seed| World::on_lanes(seed, Faults::NONE);
    explore_from("lanes", begin, |world| {
        assert_eq!(world.duplicates(), 0, "duplicates without a fault")
    });
}

#[test]
fn the_rare_paths_are_reached() {
    let mut reached = world::Reached::default();
    for seed in 0..200 {
        let mut world = World::new(seed, Faults::ALL);
        for _ in 0..STEPS {
            world.step();
        }
        world.settle();
        reached.add(&world);
    }
    assert!(
        reached.all(),
        "a path the simulation is for was not reached: {reached:?}"
    );
}
