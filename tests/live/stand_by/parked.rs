//! P2, P9: a poller that loses its lease in the midst of what has waited: none of it comes behind
//! what its successor publishes.

use std::time::Duration;

use crate::live::parked::command;
use crate::support::proxy::{Conditions, Way};
use crate::support::relay::Relay;
use crate::support::servers::Kafka;
use crate::support::wait::{eventually, throughout};
use crate::support::world::{ARRIVAL, World};

/// Events behind the one that cannot be delivered.
const EVENTS: i64 = 1_200;
/// Those that are sent at once: a frozen process had them with librdkafka by then.
const SENT_AT_ONCE: i64 = 200;
/// Records in a request, so that these are several.
const BATCH: i64 = 10;

fn stands(relay: &Relay) -> bool {
    relay.metric("walrelay_standing_by") == Some(1.0)
}

/// `lose` makes the first relay lose its lease while it waits for Kafka, and `wake` is what it
/// finds afterwards.
fn nothing_old_comes_late(lose: impl FnOnce(&World, &mut Relay), wake: impl FnOnce(&mut Relay)) {
    let world = World::keeping();
    let (kafka, brokers) = Kafka::shared().behind_proxy();
    let config = format!(
        "[slot]\nwal_sender_timeout = \"2s\"\n[kafka.properties]\n\"batch.num.messages\" = \
         \"{BATCH}\"\n"
    );
    let run = world
        .run()
        .option("--mode", "poll")
        .option("--on-error", "park")
        .config_file(&config);
    let mut first = run.clone().option("--brokers", &brokers).start();
    first.wait_ready();
    let sql = world.sql();
    let kind = world.kind(0);
    sql.run(&format!(
        "select emit('not a topic', 'a', 20); select emit('{kind}', 'a', 20) from \
         generate_series(1, {EVENTS})"
    ));
    let parked = || world.number_parked();
    eventually("all wait", ARRIVAL, parked, |count| *count == EVENTS + 1);
    let mut successor = run.start();
    eventually(
        "it stands by",
        ARRIVAL,
        || stands(&successor),
        |stands| *stands,
    );

    // Of what is sent at once Kafka takes what librdkafka sends, and its answers do not come. They
    // are slow before, so that there is much left: whenever they cease, what is sent then waits for
    // them, or what is sent next does.
    kafka.set(
        Way::Down,
        Conditions {
            latency: Duration::from_millis(200),
            ..Conditions::default()
        },
    );
    command(&world, "drop")
        .option("--class", "unroutable")
        .flag("--yes")
        .succeed();
    eventually(
        "some are sent",
        ARRIVAL,
        || world.delivered(),
        |sent| *sent > 1,
    );
    kafka.blackhole(Way::Down);
    lose(&world, &mut first);

    successor.wait_ready();
    eventually("none waits", ARRIVAL, parked, |count| *count == 0);
    world.emit(&sql, "a");
    let newest = format!("\"v\": {}", EVENTS + 2);
    let arrived = || {
        world
            .records(0)
            .last()
            .is_some_and(|record| record.value_text().contains(&newest))
    };
    eventually("what is newer arrives", ARRIVAL, arrived, |arrived| {
        *arrived
    });
    let before = world.delivered();
    kafka.resume();
    wake(&mut first);
    eventually("it stands by", ARRIVAL, || stands(&first), |stands| *stands);
    let after = world.delivered();
    throughout("nothing more comes", Duration::from_secs(1), || {
        world.delivered() == after
    });
    let late = after - before;
    assert!(
        late <= SENT_AT_ONCE,
        "{late} events came behind what is newer:\n{}",
        first.log()
    );
}

#[test]
fn a_poller_frozen_during_a_take_over_drops_its_retries() {
    nothing_old_comes_late(
        |_, first| first.process.signal("STOP"),
        |first| first.process.signal("CONT"),
    );
}

#[test]
fn a_poller_without_its_lease_drops_its_retries() {
    let lose = |world: &World, _: &mut Relay| {
        world.sql().run(
            "select pg_terminate_backend(pid) from pg_locks
             where locktype = 'advisory' and mode = 'ExclusiveLock' and granted
                 and database = (select oid from pg_database where datname = current_database())",
        );
    };
    nothing_old_comes_late(lose, |_| ());
}
