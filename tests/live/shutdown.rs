//! P7: a fast shutdown of Postgres is never held up.

use std::time::Duration;

use crate::support::proxy::Way;
use crate::support::servers::{Kafka, Postgres};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

/// Nominally two seconds; the rest is two cores shared with another test.
const PROMPT: Duration = Duration::from_secs(6);
const DRAIN: Duration = Duration::from_secs(3);

#[test]
fn a_fast_shutdown_of_postgres_is_prompt_with_kafka_up() {
    let postgres = Postgres::private(15, &[]);
    let world = World::on(&postgres, Kafka::shared().brokers());
    let mut relay = world.relay();
    let writers = world.workload(&Plan::default());
    writers.wait_for(50);
    writers.stop();
    let took = postgres.stop_fast(PROMPT);
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
    let mut relay = world.run().option("--brokers", &brokers).option("--shutdown-timeout", "3s").start();
    relay.wait_ready();
    world.emit(&world.sql(), "a");
    world.wait_confirmed(ARRIVAL);
    proxy.blackhole(Way::Up);
    proxy.blackhole(Way::Down);
    let writers = world.workload(&Plan::default());
    writers.wait_for(50);
    writers.stop();
    let committed = world.committed();

    let took = postgres.stop_fast(DRAIN + PROMPT);
    eprintln!("fast shutdown with Kafka frozen: {took:?}");
    postgres.start();
    proxy.resume();
    assert_eq!(world.committed(), committed);
    world.assert_all_delivered();
    assert!(relay.process.exited().is_none(), "a shutdown of Postgres ended the relay");
}
