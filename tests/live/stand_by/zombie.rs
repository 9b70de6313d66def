//! P2: a relay that was stopped with a full queue, and wakes up: after another has published all of
//! it, or alone.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::proxy::{Proxy, Way};
use crate::support::relay::{Relay, RelayCommand};
use crate::support::servers::Kafka;
use crate::support::topic;
use crate::support::wait::{eventually, throughout};
use crate::support::world::{ARRIVAL, World};

/// Records in a request.
const BATCH: i64 = 50;
const EVENTS: i64 = 4_000;

/// A relay that sends small requests and is given up by the server soon.
fn run(world: &World) -> RelayCommand {
    let config = format!(
        "[slot]\nwal_sender_timeout = \"2s\"\n[kafka.properties]\n\"batch.num.messages\" = \
         \"{BATCH}\"\n"
    );
    world.run().config_file(&config)
}

fn emit(world: &World, number: i64) {
    let kind = world.kind(0);
    world.sql().run(&format!(
        "select emit('{kind}', 'a' || n % 6, 20) from generate_series(1, {number}) n"
    ));
}

/// One that has delivered something, and the way to Kafka it has.
fn at_work(world: &World) -> (Proxy, Relay) {
    let (kafka, brokers) = Kafka::shared().behind_proxy();
    let mut relay = run(world).option("--brokers", &brokers).start();
    relay.wait_ready();
    emit(world, 60);
    world.assert_all_delivered();
    world.wait_confirmed();
    (kafka, relay)
}

/// Kafka takes what is on the wire, and its answers do not come: the rest waits in the relay, which
/// stands still then. The answers lie ready for it when it wakes once Kafka is resumed: it could go
/// on with the next requests at once.
fn stop_with_a_full_queue(world: &World, kafka: &Proxy, relay: &mut Relay) {
    kafka.blackhole(Way::Down);
    emit(world, EVENTS);
    let in_flight = || relay.metric("walrelay_in_flight_events");
    eventually("all are in flight", ARRIVAL, in_flight, |events| {
        *events == Some(EVENTS as f64)
    });
    relay.process.signal("STOP");
}

#[test]
fn a_relay_frozen_for_a_moment_publishes_no_event_again_that_is_in_its_topic() {
    let world = World::new();
    let (kafka, mut relay) = at_work(&world);
    stop_with_a_full_queue(&world, &kafka, &mut relay);
    let sql = world.sql();
    let active = format!(
        "select active from pg_replication_slots where slot_name = '{}'",
        world.name
    );
    eventually(
        "the server gives it up",
        ARRIVAL,
        || sql.text(&active),
        |active| active == "false",
    );
    kafka.resume();
    let woken_ms = topic::now_ms();
    relay.process.signal("CONT");
    let copies = world.assert_all_delivered().duplicates;
    assert!(
        relay
            .log()
            .contains("records that the bus has not acked are dropped"),
        "{}",
        relay.log()
    );
    let skipped = || {
        relay
            .metric("walrelay_delivered_before_events_total")
            .unwrap_or_default()
    };
    let again = eventually("it is found in its topic", ARRIVAL, skipped, |events| {
        *events > 0.0
    });
    eprintln!("{copies} copies, {again} not published again");
    // What the system sends by itself while the topic is read already may come late, and nothing
    // else comes again.
    let known = world.appended_again(&[woken_ms]);
    assert!(
        known.is_empty(),
        "in the topic when it woke, and published again: {known:?}"
    );
}

#[test]
fn a_relay_frozen_during_a_take_over_drops_its_queue() {
    let world = World::new();
    let (kafka, mut zombie) = at_work(&world);
    let mut successor = run(&world).start();
    let stands = |relay: &Relay| relay.metric("walrelay_standing_by") == Some(1.0);
    eventually(
        "it stands by",
        ARRIVAL,
        || stands(&successor),
        |stands| *stands,
    );

    stop_with_a_full_queue(&world, &kafka, &mut zombie);
    kafka.resume();

    successor.wait_ready();
    world.assert_all_delivered();
    world.wait_confirmed();
    let before = world.delivered();
    zombie.process.signal("CONT");
    eventually(
        "it stands by",
        ARRIVAL,
        || stands(&zombie),
        |stands| *stands,
    );
    for sample in [
        "walrelay_lag_seconds",
        "walrelay_in_flight_events",
        "walrelay_in_flight_bytes",
    ] {
        assert_eq!(
            zombie.metric(sample),
            Some(0.0),
            "{sample}: the other relay has the events"
        );
    }
    let after = world.delivered();
    throughout("nothing more comes", Duration::from_secs(1), || {
        world.delivered() == after
    });
    let late = after - before;
    eprintln!("{late} of {EVENTS} records came late");
    world.check().assert_sound();
    // librdkafka's threads wake with ours, and send a round of requests with each answer until the
    // purge reaches them. How many rounds fit in depends on the scheduler; a queue that is not
    // given up is sent to its end.
    let log = zombie.log();
    assert!(
        log.contains("records that the bus has not acked are dropped"),
        "{log}"
    );
    assert!(
        late < EVENTS,
        "{late} records of the zombie came behind those of its successor"
    );

    // Whoever keeps the newest position of each key passes the rest over.
    let mut newest: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut kept: BTreeMap<String, i64> = BTreeMap::new();
    for record in world.records(0) {
        let place = place(&record.header("walrelay-position"));
        let before = newest.entry(record.key_text()).or_default();
        if place > *before {
            *before = place;
            let payload: serde_json::Value = serde_json::from_str(&record.value_text()).unwrap();
            let version = payload["v"].as_i64().unwrap();
            assert!(
                kept.insert(record.key_text(), version)
                    .is_none_or(|last| last < version)
            );
        }
    }
    let last: i64 = world
        .sql()
        .number("select sum(version)::bigint from counter");
    assert_eq!(kept.values().sum::<i64>(), last);
}

/// Nobody has the slot any more, which would tell who is at work. The lease on the table does.
#[test]
fn a_relay_that_lost_its_slot_waits_for_acks_while_no_other_reads_the_table() {
    let world = World::keeping();
    world.setup();
    let config = "[slot]\nwal_sender_timeout = \"30s\"\n[state]\nstore = \"postgres\"\n";
    let (kafka, brokers) = Kafka::shared().behind_proxy();
    let run = world.run().config_file(config);
    let mut zombie = run.option("--brokers", &brokers).start();
    zombie.wait_ready();
    emit(&world, 60);
    world.assert_all_delivered();
    world.wait_confirmed();
    kafka.blackhole(Way::Down);
    emit(&world, EVENTS);
    let in_flight = || zombie.metric("walrelay_in_flight_events");
    eventually("all are in flight", ARRIVAL, in_flight, |events| {
        *events == Some(EVENTS as f64)
    });
    world.drop_slot();

    let sql = world.sql();
    let lease = format!(
        "select count(*) from pg_locks join pg_stat_activity using (pid)
         where locktype = 'advisory' and mode = 'ExclusiveLock' and granted and application_name like 'walrelay/{}/%'",
        world.name
    );
    let holds = || sql.number(&lease);
    eventually("it has the lease", ARRIVAL, holds, |count| *count == 1);
    kafka.resume();
    world.assert_all_delivered();
    let log = zombie.log();
    assert!(!log.contains("reading the table without them"), "{log}");
}

/// LSN and index of `SYSTEM_IDENTIFIER:TIMELINE:COMMIT_LSN:INDEX`.
fn place(header: &str) -> (u64, u64) {
    let parts: Vec<&str> = header.split(':').collect();
    let [_, _, lsn, index] = parts.as_slice() else {
        panic!("{header}")
    };
    let (high, low) = lsn.split_once('/').unwrap();
    let half = |text| u64::from_str_radix(text, 16).unwrap();
    (half(high) << 32 | half(low), index.parse().unwrap())
}

/// What the server's log had when the relay took its lease says nothing of a position that another
/// relay stored since.
#[test]
fn a_poller_that_lost_its_lease_before_it_read_the_position_goes_on() {
    let world = World::keeping();
    let run = run(&world).option("--mode", "poll");
    let publish = |relay: &mut Relay| {
        relay.wait_ready();
        emit(&world, 60);
        world.assert_all_delivered();
    };
    let stop = |relay: &mut Relay| {
        assert_eq!(relay.terminate(ARRIVAL), Some(0), "{}", relay.log());
    };
    let mut before = run.start();
    publish(&mut before);
    stop(&mut before);
    let (command, held) = run.clone().held_at("leased", 0);
    let mut first = command.start();
    held.wait();
    world.sql().run(
        "select pg_terminate_backend(pid) from pg_locks
         where locktype = 'advisory' and mode = 'ExclusiveLock' and granted
             and database = (select oid from pg_database where datname = current_database())",
    );
    let mut successor = run.start();
    publish(&mut successor);
    stop(&mut successor);
    held.release();
    publish(&mut first);
}
