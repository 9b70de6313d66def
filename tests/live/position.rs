//! P1: the stored position, after crashes, restores and changes of server or slot.

use std::process::Command;

use crate::support::relay::{EXIT, Relay};
use crate::support::seed::from_environment;
use crate::support::servers::{Kafka, Postgres};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

const MISMATCH: Option<i32> = Some(16);

/// Rounds of a server's crash or restart.
fn restarts() -> u64 {
    from_environment("WALRELAY_TEST_RESTARTS", 6)
}

#[test]
fn a_server_crash_that_loses_confirmed_lsns_causes_no_duplicates() {
    let postgres = Postgres::private(15, &[]);
    let world = World::on(&postgres, Kafka::shared().brokers());
    world.create_topics();
    let mut relay = world.relay();
    let mut went_back = 0;
    for _ in 0..restarts() {
        let writers = world.workload(&Plan::default());
        writers.wait_for(40);
        writers.stop();
        world.assert_all_delivered();
        world.wait_confirmed();
        let confirmed = world.confirmed();
        postgres.kill_hard();
        postgres.start();
        went_back += u64::from(world.confirmed() < confirmed);
    }
    assert!(
        relay.process.exited().is_none(),
        "a crash of Postgres ended the relay"
    );
    let findings = world.assert_all_delivered();
    eprintln!(
        "{} crashes, {went_back} of them took the slot back",
        restarts()
    );
    assert_eq!(findings.duplicates, 0);
}

#[test]
fn a_server_crash_under_load_loses_and_reorders_nothing() {
    let postgres = Postgres::private(15, &[]);
    let world = World::on(&postgres, Kafka::shared().brokers());
    let mut relay = world.relay();
    let writers = world.workload(&Plan {
        writers: 6,
        ..Plan::default()
    });
    for _ in 0..restarts() {
        writers.wait_for(80);
        postgres.kill_hard();
        postgres.start();
    }
    writers.stop();
    assert!(
        relay.process.exited().is_none(),
        "a crash of Postgres ended the relay"
    );
    let findings = world.assert_all_delivered();
    eprintln!(
        "{} crashes under load, {} copies",
        restarts(),
        findings.duplicates
    );
}

#[test]
fn a_position_kept_in_postgres_or_in_the_slot_resumes_too() {
    for store in ["postgres", "slot"] {
        let world = World::new();
        let mut relay = world.run().option("--state-store", store).start();
        relay.wait_ready();
        let writers = world.workload(&Plan::default());
        writers.wait_for(100);
        world.end_walsender();
        writers.wait_for(20);
        relay.kill_hard();
        writers.wait_for(20);
        writers.stop();
        let mut relay = world.run().option("--state-store", store).start();
        relay.wait_ready();
        let copies = world.assert_all_delivered().duplicates;
        world.wait_confirmed();
        assert_eq!(relay.terminate(EXIT), Some(0));
        let mut relay = world.run().option("--state-store", store).start();
        relay.wait_ready();
        world.emit(&world.sql(), "a");
        assert_eq!(
            world.assert_all_delivered().duplicates,
            copies,
            "a clean stop made copies in {store}"
        );
    }
}

/// A relay in back-off, which comes back and finds that id, knows that another one was at work.
#[test]
fn a_relay_that_takes_over_stores_its_id_although_it_publishes_nothing() {
    let world = World::new();
    let sql = world.sql();
    let stored = |field: &str| {
        sql.text(&format!(
            "select value::jsonb->>'{field}' from walrelay.position"
        ))
    };
    let start = || {
        let mut relay = world.run().option("--state-store", "postgres").start();
        relay.wait_ready();
        relay
    };
    let mut relay = start();
    world.emit(&sql, "a");
    world.wait_confirmed();
    let first = stored("relay");
    assert_ne!(first, "");
    world.end_walsender();
    world.emit(&sql, "b");
    world.wait_confirmed();
    assert_eq!(stored("relay"), first, "a lost connection ends no turn");
    let position = stored("position");
    relay.kill_hard();
    let _relay = start();
    assert_ne!(stored("relay"), first);
    assert_eq!(stored("position"), position);
}

#[test]
fn a_recreated_slot_is_refused() {
    let world = World::new();
    let mut relay = world.relay();
    let sql = world.sql();
    world.emit(&sql, "a");
    world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0));

    let name = &world.name;
    sql.run(&format!("select pg_drop_replication_slot('{name}')"));
    world.emit(&sql, "lost to the slot");
    sql.run(&format!(
        "select pg_create_logical_replication_slot('{name}', 'pgoutput')"
    ));
    world.emit(&sql, "after");
    let mut relay = world.run().start();
    assert_eq!(relay.wait_exit(EXIT), MISMATCH, "{}", relay.log());
    assert!(
        relay.log().contains("--adopt-slot"),
        "no remedy is named:\n{}",
        relay.log()
    );
    assert_eq!(world.delivered(), 1);
}

#[test]
fn another_server_under_the_same_key_is_refused() {
    let world = World::new();
    let mut relay = world.relay();
    world.emit(&world.sql(), "a");
    world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0));

    let other = Postgres::private(15, &[]);
    let elsewhere = World::on(&other, &world.brokers);
    elsewhere.emit(&elsewhere.sql(), "a");
    let mut relay = elsewhere
        .run()
        .config_file(&format!("[state]\nkey = \"{}\"\n", world.name))
        .start();
    assert_eq!(relay.wait_exit(EXIT), MISMATCH, "{}", relay.log());
    assert_eq!(elsewhere.delivered(), 0);
}

#[test]
fn another_cluster_at_the_brokers_address_stops_the_relay_and_nothing_is_lost_to_the_first() {
    let kafka = Kafka::private();
    let worlds = [(); 2].map(|()| World::on(Postgres::shared(), kafka.brokers()));
    let settings = [
        ("--state-store", "postgres"),
        ("--guarantee", "exactly-once"),
    ];
    let run = |number: usize| {
        worlds[number]
            .run()
            .option(settings[number].0, settings[number].1)
    };
    let mut relays = [0, 1].map(|number| run(number).start());
    relays.iter_mut().for_each(Relay::wait_ready);
    let writers = [0, 1].map(|number| worlds[number].workload(&Plan::default()));
    writers.iter().for_each(|writers| writers.wait_for(40));

    kafka.swap_cluster();
    for relay in &mut relays {
        assert_eq!(relay.wait_exit(ARRIVAL), MISMATCH, "{}", relay.log());
        assert!(relay.log().contains("--adopt-slot"), "{}", relay.log());
    }
    let mut relay = run(0).start();
    assert_eq!(relay.wait_exit(EXIT), MISMATCH, "{}", relay.log());
    writers.into_iter().for_each(|writers| _ = writers.stop());

    kafka.swap_cluster();
    for (number, world) in worlds.iter().enumerate() {
        let mut relay = run(number).start();
        relay.wait_ready();
        world.assert_all_delivered();
        assert_eq!(relay.terminate(EXIT), Some(0));
    }
}

#[test]
fn an_older_copy_of_the_server_is_refused() {
    let postgres = Postgres::private(15, &[]);
    let world = World::on(&postgres, Kafka::shared().brokers());
    let mut relay = world.relay();
    world.emit(&world.sql(), "a");
    world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0));
    postgres.stop_fast(EXIT);
    let backup = postgres.data().with_file_name("backup");
    copy(postgres.data(), &backup);

    postgres.start();
    let mut relay = world.relay();
    let writers = world.workload(&Plan::default());
    writers.wait_for(100);
    writers.stop();
    world.assert_all_delivered();
    world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0));
    let delivered = world.delivered();
    postgres.stop_fast(EXIT);

    std::fs::remove_dir_all(postgres.data()).unwrap();
    copy(&backup, postgres.data());
    postgres.start();
    world.emit(&world.sql(), "after the restore");
    let mut relay = world.run().start();
    assert_eq!(relay.wait_exit(EXIT), MISMATCH, "{}", relay.log());
    assert_eq!(world.delivered(), delivered);
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    let copied = Command::new("cp")
        .arg("-a")
        .args([from, to])
        .status()
        .expect("cp");
    assert!(copied.success());
}
