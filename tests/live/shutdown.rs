//! P7: a fast shutdown of Postgres is never held up.

use crate::support::proxy::Way;
use crate::support::relay::RelayCommand;
use crate::support::servers::{Kafka, Postgres};
use crate::support::wait::{LIMIT, eventually};
use crate::support::workload::Plan;
use crate::support::world::World;

/// A relay that holds up a shutdown does so for much longer than [`LIMIT`]: the server waits for
/// its walsender as long as this, and longer where it is heard of.
fn run(world: &World) -> RelayCommand {
    world
        .run()
        .variable("WALRELAY_SLOT_WAL_SENDER_TIMEOUT", "300s")
}

#[test]
fn a_fast_shutdown_of_postgres_is_prompt_with_kafka_up() {
    let postgres = Postgres::private(15, &[]);
    let world = World::on(&postgres, Kafka::shared().brokers());
    let mut relay = run(&world).option("--shutdown-timeout", "300s").start();
    relay.wait_ready();
    let writers = world.workload(&Plan::default());
    writers.wait_for(50);
    writers.stop();
    let took = postgres.stop_fast(LIMIT);
    eprintln!("fast shutdown with Kafka up: {took:?}");
    postgres.start();
    world.assert_all_delivered();
    assert!(
        relay.process.exited().is_none(),
        "a shutdown of Postgres ended the relay"
    );
    world.wait_confirmed();
}

#[test]
fn a_fast_shutdown_of_postgres_with_kafka_frozen_ends_at_the_drain_deadline() {
    let postgres = Postgres::private(15, &[]);
    let (proxy, brokers) = Kafka::shared().behind_proxy();
    let world = World::on(&postgres, Kafka::shared().brokers());
    let mut relay = run(&world)
        .option("--brokers", &brokers)
        .option("--shutdown-timeout", "3s")
        .start();
    relay.wait_ready();
    world.emit(&world.sql(), "a");
    world.wait_confirmed();
    proxy.blackhole(Way::Up);
    proxy.blackhole(Way::Down);
    let writers = world.workload(&Plan::default());
    writers.wait_for(50);
    writers.stop();
    let committed = world.committed();
    // The server announces the shutdown as the answer to a query, where there is one.
    let blocking = world.sql();
    blocking.run("begin; lock table pg_authid in access exclusive mode");
    let waits =
        "select count(*) from pg_locks where relation = 'pg_authid'::regclass and not granted";
    eventually(
        "the relay's query waits",
        LIMIT,
        || blocking.text(waits),
        |count| count == "1",
    );

    let took = postgres.stop_fast(LIMIT);
    eprintln!("fast shutdown with Kafka frozen: {took:?}");
    assert!(
        relay.log().contains("postgres_shutting_down"),
        "{}",
        relay.log()
    );
    postgres.start();
    proxy.resume();
    assert_eq!(world.committed(), committed);
    world.assert_all_delivered();
    assert!(
        relay.process.exited().is_none(),
        "a shutdown of Postgres ended the relay"
    );
}
