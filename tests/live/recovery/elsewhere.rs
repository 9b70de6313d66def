//! P12: on every version, on another server, and with one of the two out of reach.

use super::{EXIT, streaming, transactions_with_copies};
use crate::support::servers::{Kafka, Postgres};
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

#[test]
fn recovery_polling_and_hand_over_work_on_every_major() {
    for &major in Postgres::majors() {
        eprintln!("Postgres {major}");
        let postgres = Postgres::private(major, &[]);
        let world = World::keeping_on(&postgres, Kafka::shared().brokers());
        world.publish();
        let writers = world.workload(&Plan::default());
        writers.wait_for(300);
        // From the first row, over a slot that is dropped under load and one that is lost while
        // nobody looks, to polling and back.
        let mut relay = world.run().start();
        streaming(&world, &mut relay);
        for _ in 0..2 {
            writers.wait_for(100);
            world.drop_slot();
            let streams = || {
                let made = world.slot("active and confirmed_flush_lsn is not null") == "true";
                made && relay.metric("walrelay_reads_table") == Some(0.0)
            };
            eventually("it streams again", ARRIVAL, streams, |streams| *streams);
        }
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
        world.drop_slot();
        writers.wait_for(100);
        for mode in ["poll", "slot"] {
            let mut relay = world.run().option("--mode", mode).start();
            relay.wait_ready();
            writers.wait_for(100);
            assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
        }
        let mut relay = world.relay();
        writers.stop();
        world.assert_all_delivered();
        let repeated = transactions_with_copies(&world);
        assert!(
            repeated <= 3,
            "the slot was lost three times, and copies of {repeated} transactions\n{}",
            relay.log()
        );
        assert_eq!(relay.terminate(EXIT), Some(0));
    }
}

/// A primary, its standby, and a table that tells everything; URLs name both.
fn pair(major: u32) -> (World, Postgres, Postgres) {
    let primary = Postgres::private(major, &[]);
    let mut world = World::keeping_on(&primary, Kafka::shared().brokers());
    world.publish();
    let standby = Postgres::standby_of(&primary);
    world.database_url = primary.url_of_either(&standby, &world.name);
    (world, primary, standby)
}

#[test]
fn a_poller_continues_on_the_promoted_standby() {
    for mode in ["poll", "auto"] {
        let (world, primary, standby) = pair(15);
        let writers = world.workload(&Plan::default());
        let mut relay = world.run().option("--mode", mode).start();
        relay.wait_ready();
        writers.wait_for(200);
        primary.stop_fast(EXIT);
        standby.promote();
        writers.wait_for(200);
        writers.stop();
        // What a poller had read of a pass that was not finished comes again.
        eprintln!("{mode}: {} copies", world.assert_all_delivered().duplicates);
        assert_eq!(relay.terminate(EXIT), Some(0), "{mode}: {}", relay.log());
    }
}

#[test]
fn a_slot_dropped_over_budget_without_kafka_loses_nothing() {
    let postgres = Postgres::private(15, &[]);
    let kafka = Kafka::private();
    let world = World::keeping_on(&postgres, kafka.brokers());
    world.setup();
    let limits = |command: crate::support::relay::RelayCommand| {
        command
            .option("--max-retained-bytes", "2MiB")
            .option("--over-budget", "give-up")
    };
    let mut relay = limits(world.run()).start();
    streaming(&world, &mut relay);
    let writers = world.workload(&Plan::default());
    writers.wait_for(100);
    kafka.freeze();
    let filling = world.sql();
    let slot = || world.slot("slot_name::text");
    let fill = || {
        filling.run("insert into noise select n, repeat('x', 1500) from generate_series(1, 500) n");
        slot()
    };
    eventually("the slot is gone", ARRIVAL, fill, String::is_empty);
    writers.wait_for(100);
    kafka.thaw();
    relay.wait_ready();
    writers.wait_for(100);
    writers.stop();
    let findings = world.assert_all_delivered();
    eprintln!("{} copies", findings.duplicates);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
