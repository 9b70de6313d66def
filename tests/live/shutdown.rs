//! P7: a fast shutdown of Postgres is never held up.

use crate::support::proxy::Way;
use crate::support::relay::RelayCommand;
use crate::support::servers::{Kafka, Postgres};
use crate::support::wait::LIMIT;
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

/// A relay that holds up a shutdown does so for much longer than [`LIMIT`]: the server waits for its walsender as long as
/// this, and longer where it is heard of.
fn run(world: &World) -> RelayCommand {
    world.run().variable("WALRELAY_SLOT_WAL_SENDER_TIMEOUT", "300s")
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
    assert!(relay.process.exited().is_none(), "a shutdown of Postgres ended the relay");
    world.wait_confirmed(ARRIVAL);
}

#[test]
fn a_fast_shutdown_of_postgres_with_kafka_frozen_ends_at_the_drain_deadline() {
    let postgres = Postgres::private(15, &[]);
    let (proxy, brokers) = Kafka::shared().behind_proxy();
    let world = World::on(&postgres, Kafka::shared().brokers());
    let mut relay = run(&world).option("--brokers", &brokers).option("--shutdown-timeout", "3s").start();
    relay.wait_ready();
    world.emit(&world.sql(), "a");
    world.wait_confirmed(ARRIVAL);
    proxy.blackhole(Way::Up);
    proxy.blackhole(Way::Down);
    let writers = world.workload(&Plan::default());
    writers.wait_for(50);
    writers.stop();
    let committed = world.committed();

    let took = postgres.stop_fast(LIMIT);
    eprintln!("fast shutdown with Kafka frozen: {took:?}");
    postgres.start();
    proxy.resume();
    assert_eq!(world.committed(), committed);
    world.assert_all_delivered();
    assert!(relay.process.exited().is_none(), "a shutdown of Postgres ended the relay");
}
