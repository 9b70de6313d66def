//! P14, P12: rows that are read from the table: before a slot, instead of one, and after one was
//! lost.

use super::{EXIT, assert_once, run};
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

/// Many small transactions, so that a relay is killed between them.
const SMALL: &str = "[delivery]\ntransaction_max_events = 150\n";

#[test]
fn exactly_once_publishes_a_backlog_once_across_kills() {
    let world = World::keeping();
    world.publish();
    let sql = world.sql();
    for _ in 0..15 {
        sql.run(&format!(
            "select emit('{0}', '{0}-' || n % 40, 40) from generate_series(1, 200) n",
            world.kind(0)
        ));
    }
    let writers = world.workload(&Plan::default());
    for (point, passings) in [
        ("read", 200),
        ("committing", 4),
        ("caught-up", 0),
        ("stored", 1),
    ] {
        run(&world)
            .config_file(SMALL)
            .killed_at(point, passings)
            .start()
            .wait_killed();
    }
    let mut relay = run(&world).config_file(SMALL).start();
    relay.wait_ready();
    world.wait_streaming();
    writers.wait_for(100);
    writers.stop();
    assert_once(&world);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_slot_dropped_under_exactly_once_loses_and_duplicates_nothing() {
    let world = World::keeping();
    world.setup();
    let mut relay = run(&world).start();
    relay.wait_ready();
    let writers = world.workload(&Plan {
        writers: 4,
        ..Plan::default()
    });
    world.wait_stored(&relay);
    for _ in 0..5 {
        writers.wait_for(60);
        world.drop_slot();
        eventually(
            "the slot is made anew",
            ARRIVAL,
            || world.walsender(),
            |pid| *pid != 0,
        );
    }
    writers.wait_for(60);
    writers.stop();
    assert_once(&world);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn an_exactly_once_poller_publishes_each_row_once_across_kills() {
    let world = World::keeping();
    let writers = world.workload(&Plan {
        writers: 4,
        ..Plan::default()
    });
    for _ in 0..4 {
        let mut relay = run(&world).option("--mode", "poll").start();
        relay.wait_ready();
        writers.wait_for(fastrand::u64(10..200));
        relay.kill_hard();
    }
    let mut relay = run(&world).option("--mode", "poll").start();
    relay.wait_ready();
    writers.stop();
    assert_once(&world);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
