//! docs/explanation/exactly-once.md: what exactly-once costs, beside at-least-once: events a second
//! of a backlog, and the time from commit to a reader.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::support::relay::Relay;
use crate::support::seed::from_environment;
use crate::support::servers::{Kafka, Postgres};
use crate::support::topic;
use crate::support::wait::eventually;
use crate::support::world::World;

/// A consumer that sees what is committed, from the topic's beginning.
fn reader(world: &World) -> BaseConsumer {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &world.brokers)
        .set("group.id", &world.name)
        .set("auto.offset.reset", "earliest");
    config
        .set("isolation.level", "read_committed")
        .set("fetch.wait.max.ms", "5");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    // Without a group, which takes seconds to form.
    let mut assignment = TopicPartitionList::new();
    for partition in 0..6 {
        assignment
            .add_partition_offset(&world.topic(0), partition, Offset::Beginning)
            .expect("an offset");
    }
    consumer.assign(&assignment).expect("assign");
    consumer
}

fn start(world: &World, guarantee: &str, interval: &str) -> Relay {
    let file = format!("[delivery]\ntransaction_interval = {interval:?}\n");
    world
        .run()
        .option("--guarantee", guarantee)
        .config_file(&file)
        .start()
}

/// Events a second that a reader got, from the 10th to the 90th of a hundred.
fn drained(
    postgres: &Postgres,
    brokers: &str,
    rows: u64,
    (guarantee, interval): (&str, &str),
) -> f64 {
    let world = World::on(postgres, brokers);
    topic::create(brokers, &world.topic(0), 6, &[]);
    let sql = world.sql();
    sql.run("set synchronous_commit = off");
    for first in (0..rows).step_by(100) {
        sql.run(&format!(
            "insert into outbox select gen_random_uuid(), '{}', 'aggregate-' || n % 1000, \
             'OrderCreated',
                jsonb_build_object('seq', n, 'orderId', 'ord-' || n, 'note', repeat('n', 250))
             from generate_series({first}, {}) n",
            world.kind(0),
            first + 99
        ));
    }
    let consumer = reader(&world);
    let relay = start(&world, guarantee, interval);
    let mut seen = 0;
    let mut from = None;
    let deadline = Instant::now() + Duration::from_secs(300);
    while seen < rows * 9 / 10 {
        assert!(Instant::now() < deadline, "only {seen} of {rows} came");
        if let Some(Ok(_)) = consumer.poll(Duration::from_millis(100)) {
            seen += 1;
            if seen == rows / 10 {
                from = Some(Instant::now());
            }
        }
    }
    let rate = (rows * 8 / 10) as f64 / from.expect("a tenth").elapsed().as_secs_f64();
    topic::close(consumer);
    drop(relay);
    world.drop_slot();
    rate
}

/// Milliseconds from a commit to a reader at this rate: the median, and that of 99 in 100.
fn latency(
    postgres: &Postgres,
    brokers: &str,
    per_second: u64,
    (guarantee, interval): (&str, &str),
) -> (f64, f64) {
    let world = World::on(postgres, brokers);
    topic::create(brokers, &world.topic(0), 6, &[]);
    let consumer = reader(&world);
    let mut relay = start(&world, guarantee, interval);
    relay.wait_ready();
    let sql = world.sql();
    let kind = world.kind(0).to_owned();
    let name = world.name.clone();
    let events = (per_second * 5).max(60);
    let writer = std::thread::spawn(move || {
        let began = Instant::now();
        for number in 0..events {
            let due = began + Duration::from_secs_f64(number as f64 / per_second as f64);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            sql.run(&format!(
                "insert into outbox select gen_random_uuid(), '{kind}', '{name}' || {number} % 50, \
                 'T',
                    jsonb_build_object('at', (extract(epoch from clock_timestamp()) * \
                    1000000)::bigint)"
            ));
        }
    });
    let mut took = Vec::new();
    eventually(
        "all events are there",
        Duration::from_secs(60),
        || {
            while let Some(Ok(message)) = consumer.poll(Duration::from_millis(20)) {
                let now = std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .expect("a clock");
                let text =
                    String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned();
                let digits: String = text.chars().filter(char::is_ascii_digit).collect();
                let at: f64 = digits.parse().expect("a time");
                took.push(now.as_micros() as f64 / 1_000.0 - at / 1_000.0);
            }
            took.len() as u64
        },
        |seen| *seen >= events,
    );
    writer.join().expect("a writer");
    topic::close(consumer);
    drop(relay);
    world.drop_slot();
    // The first ones find out where partitions are.
    let mut took = took.split_off(took.len() / 5);
    took.sort_by(f64::total_cmp);
    (took[took.len() / 2], took[took.len() * 99 / 100])
}

#[test]
#[ignore = "a measurement of minutes: make exactly-once"]
fn exactly_once_beside_at_least_once() {
    let rows = from_environment("WALRELAY_TEST_ROWS", 200_000) / 100 * 100;
    let rounds = from_environment("WALRELAY_TEST_ROUNDS", 1);
    let postgres = Postgres::private(15, &[("max_wal_size", "8GB"), ("shared_buffers", "256MB")]);
    let kafka = Kafka::private();
    let modes = [
        ("at-least-once", "100ms"),
        ("exactly-once", "20ms"),
        ("exactly-once", "100ms"),
        ("exactly-once", "500ms"),
    ];
    println!(
        "{rows} events in transactions of 100; latency from commit to a read_committed reader, \
         median / 99 in 100, in ms"
    );
    println!(
        "{:<14} {:>8} {:>10} {:>6} {:>16} {:>16} {:>16}",
        "guarantee", "interval", "events/s", "ratio", "10/s", "200/s", "1000/s"
    );
    for _ in 0..rounds {
        let mut first = None;
        for mode in modes {
            let rate = drained(&postgres, kafka.brokers(), rows, mode);
            let ratio = rate / *first.get_or_insert(rate);
            let waits = [10, 200, 1_000].map(|per_second| {
                let (median, most) = latency(&postgres, kafka.brokers(), per_second, mode);
                format!("{median:.1} / {most:.1}")
            });
            println!(
                "{:<14} {:>8} {rate:>10.0} {ratio:>6.2} {:>16} {:>16} {:>16}",
                mode.0, mode.1, waits[0], waits[1], waits[2]
            );
        }
    }
}
