//! P2: per aggregate, Kafka order is commit order.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::parked::small;
use crate::support::proxy::{Conditions, Proxy, Way};
use crate::support::relay::EXIT;
use crate::support::seed::{from_environment, generator};
use crate::support::servers::{Kafka, Postgres, kafka::PARTITIONS};
use crate::support::topic;
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

fn chaos() -> Duration {
    Duration::from_secs(from_environment("WALRELAY_TEST_CHAOS_SECONDS", 8))
}

#[test]
fn the_first_events_of_auto_created_topics_arrive_in_order() {
    const TOPICS: usize = 40;
    const EVENTS: usize = 200;
    let world = World::new().with_kinds(TOPICS);
    // A busy broker may take longer than five seconds to make a topic known, which is a refusal
    // then.
    let known_in = "WALRELAY_KAFKA_PROPERTY_TOPIC_METADATA_PROPAGATION_MAX_MS";
    let mut relay = world.run().variable(known_in, "60000").start();
    relay.wait_ready();
    let sql = world.sql();
    let aggregates = PARTITIONS as usize * 2;
    for kind in 0..TOPICS {
        // One transaction each, so that there is more for every partition while its broker still
        // learns of the topic.
        let emits = format!(
            "select emit('{0}', '{0}-' || n % {aggregates}, 20)",
            world.kind(kind)
        );
        sql.run(&format!("{emits} from generate_series(1, {EVENTS}) n"));
    }
    assert_eq!(world.assert_all_delivered().duplicates, 0);
}

#[test]
fn no_event_arrives_before_a_refused_one_of_its_aggregate() {
    // At first the broker does not know the producer. Later, several requests are under way.
    for opened in [0, 1] {
        let world = small();
        let (kafka, brokers) = Kafka::shared().behind_proxy();
        // Each record is a batch. librdkafka sends the next ones although the first is refused.
        let mut relay = world
            .run()
            .option("--brokers", &brokers)
            .option("--on-error", "park")
            .variable("WALRELAY_KAFKA_PROPERTY_BATCH_SIZE", "1")
            .start();
        relay.wait_ready();
        let sql = world.sql();
        let of = format!("'{0}', '{0}-0'", world.kind(0));
        sql.run(&format!(
            "select emit({of}, 20) from generate_series(1, {opened})"
        ));
        let delivered = || world.delivered();
        eventually("it is open", ARRIVAL, delivered, |count| *count == opened);
        kafka.set(
            Way::Down,
            Conditions {
                latency: Duration::from_millis(100),
                ..Conditions::default()
            },
        );
        sql.run(&format!(
            "begin; select emit_large({of}); select emit({of}, 20) from generate_series(1, 8); \
             commit"
        ));
        let parked = || world.number_parked();
        eventually("all wait", ARRIVAL, parked, |count| *count == 9);
        assert_eq!(world.delivered(), opened);
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    }
}

#[test]
fn broken_connections_of_every_kind_lose_and_reorder_nothing() {
    let world = World::new();
    let postgres = Proxy::before(&Postgres::shared().address());
    let (kafka, brokers) = Kafka::shared().behind_proxy();
    let mut chance = generator("broken connections");
    let mut relay = world
        .run()
        .option("--brokers", &brokers)
        .option("--database-url", &world.url_through(&postgres))
        .config_file("[slot]\nwal_sender_timeout = \"2s\"\n")
        .start();
    relay.wait_ready();
    let writers = world.workload(&Plan::default());
    let started = Instant::now();
    let mut faults = 0;
    while started.elapsed() < chaos() {
        let proxy = if chance.bool() { &postgres } else { &kafka };
        let way = if chance.bool() { Way::Up } else { Way::Down };
        match chance.u8(..6) {
            0 => proxy.cut(),
            1 => proxy.refuse(),
            2 => proxy.half_close(way),
            3 => proxy.blackhole(way),
            4 => proxy.set(
                way,
                Conditions {
                    slice_bytes: chance.usize(1..40),
                    ..Conditions::default()
                },
            ),
            _ => proxy.set(
                way,
                Conditions {
                    latency: Duration::from_millis(60),
                    ..Conditions::default()
                },
            ),
        }
        faults += 1;
        std::thread::sleep(Duration::from_millis(chance.u64(100..1500)));
        proxy.resume();
        std::thread::sleep(Duration::from_millis(chance.u64(0..500)));
    }
    writers.stop();
    assert!(
        relay.process.exited().is_none(),
        "a broken connection ended the relay"
    );
    let findings = world.assert_all_delivered();
    eprintln!("{faults} faults, {} copies", findings.duplicates);
}

/// A request has one partition: one at a time would make the rate that of round trips.
#[test]
fn requests_of_several_partitions_are_under_way() {
    let world = World::new();
    let (kafka, brokers) = Kafka::shared().behind_proxy();
    let mut relay = world.run().option("--brokers", &brokers).start();
    relay.wait_ready();
    let emits = format!(
        "select emit('{0}', '{0}-' || n, 20) from generate_series(1, 100) n",
        world.kind(0)
    );
    let sql = world.sql();
    sql.run(&emits);
    world.assert_all_delivered();
    let by_partition = || {
        let records = topic::read(Kafka::shared().brokers(), &world.topic(0));
        let mut counts = [0; PARTITIONS as usize];
        for record in records {
            counts[usize::try_from(record.partition).expect("a partition")] += 1;
        }
        counts
    };
    let before = by_partition();
    assert!(before.iter().all(|records| *records > 0), "{before:?}");
    kafka.blackhole(Way::Down);
    sql.run(&emits);
    let taken = || {
        let now = by_partition();
        (0..now.len()).filter(|at| now[*at] > before[*at]).count()
    };
    eventually("more than one has more", ARRIVAL, taken, |partitions| {
        *partitions > 1
    });
    kafka.resume();
    assert_eq!(world.assert_all_delivered().duplicates, 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

const CHANGES: &str = "walrelay_partition_changes_total";

/// Java's `Utils.murmur2` of each key; its default partitioner takes the positive part modulo the
/// partitions.
const JAVA_MURMUR2: [(&str, i32); 8] = [
    ("21", -973_932_308),
    ("foobar", -790_332_482),
    ("a-little-bit-long-string", -985_981_536),
    ("a-little-bit-longer-string", -1_486_304_829),
    (
        "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
        -58_897_971,
    ),
    ("abc", 479_470_107),
    ("", 275_646_681),
    ("grün-ключ", 2_123_814_092),
];

#[test]
fn keys_are_partitioned_as_by_the_java_producer_also_after_a_topic_grew() {
    let world = World::new();
    topic::create(&world.brokers, &world.topic(1), 2, &[]);
    let often = "[kafka.properties]\n\"topic.metadata.refresh.interval.ms\" = \"100\"\n";
    let mut relay = world.run().config_file(often).start();
    relay.wait_ready();
    let sql = world.sql();
    for (key, _) in JAVA_MURMUR2 {
        world.emit(&sql, key);
    }
    world.assert_all_delivered();
    let records = world.records(0);
    for (key, hash) in JAVA_MURMUR2 {
        let record = records
            .iter()
            .find(|record| record.key.as_deref() == Some(key.as_bytes()));
        let record = record.unwrap_or_else(|| panic!("no record with the key {key:?}"));
        assert_eq!(
            record.partition,
            (hash & 0x7fff_ffff) % PARTITIONS,
            "{key:?}"
        );
    }

    let (key, hash) = JAVA_MURMUR2[0];
    world.emit_to(&sql, 1, key);
    world.assert_all_delivered();
    assert_eq!(relay.metric(CHANGES), Some(0.0));
    topic::grow(&world.brokers, &world.topic(1), 8);
    let changes = || {
        world.emit_to(&sql, 1, key);
        relay.metric(CHANGES)
    };
    eventually("the relay counts it", ARRIVAL, changes, |changes| {
        *changes == Some(1.0)
    });
    let moved = || {
        world
            .records(1)
            .iter()
            .map(|record| record.partition)
            .collect::<BTreeSet<_>>()
    };
    let expected = BTreeSet::from([2, 8].map(|count| (hash & 0x7fff_ffff) % count));
    eventually("the key moves", ARRIVAL, moved, |partitions| {
        *partitions == expected
    });
    let log = relay.log();
    let lines: Vec<_> = log
        .lines()
        .filter(|line| line.contains(r#""event":"partitions_changed""#))
        .collect();
    let words = [
        r#""level":"WARN""#,
        &world.topic(1),
        r#""before":2,"now":8"#,
    ];
    assert!(
        matches!(lines[..], [line] if words.iter().all(|words| line.contains(words))),
        "{log}"
    );
}
