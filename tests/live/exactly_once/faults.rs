//! P14: brokers that go, commits nobody hears of, and two relays where one was meant.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use walrelay::config::KafkaConfig;
use walrelay::sink::{BusSink as _, KafkaSink, Transactional};

use super::{EXIT, assert_once, relay, run};
use crate::support::proxy::{Proxy, Way};
use crate::support::relay::Relay;
use crate::support::seed::{from_environment, generator};
use crate::support::servers::{Cluster, Kafka, Postgres};
use crate::support::topic::{self, Record};
use crate::support::wait::{self, LIMIT, eventually};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

/// A slot that is given up soon by a server that hears nothing.
const IMPATIENT: &str =
    "[slot]\nwal_sender_timeout = \"2s\"\n[delivery]\ntransaction_timeout = \"5s\"\n";

fn impatient(world: &World) -> Relay {
    run(world).config_file(IMPATIENT).start()
}

/// Brokers of a cluster: a lone one that is killed while it commits loses the transaction
/// (KAFKA-20734, see docs/explanation/exactly-once.md), and no producer can end that.
#[test]
fn broker_restarts_under_exactly_once_lose_and_duplicate_nothing() {
    let cluster = Cluster::start();
    let world = World::on(Postgres::shared(), cluster.brokers());
    let mut relay = relay(&world);
    let writers = world.workload(&Plan {
        writers: 4,
        ..Plan::default()
    });
    let committed = || {
        relay
            .metric("walrelay_committed_events_total")
            .unwrap_or_default()
    };
    let rounds =
        usize::try_from(from_environment("WALRELAY_TEST_BROKER_RESTARTS", 1)).expect("a count");
    // The one that ends transactions, and the one that has the positions.
    for topic in ["__transaction_state", "walrelay-state"]
        .into_iter()
        .cycle()
        .take(rounds)
    {
        let before = eventually("transactions go on", ARRIVAL, committed, |count| {
            *count > 60.0
        });
        let leader = eventually(
            "it has a leader",
            ARRIVAL,
            || cluster.leader(topic, 0),
            Option::is_some,
        );
        let leader = leader.expect("a leader");
        cluster.kill_hard(leader);
        eventually("the other brokers go on", ARRIVAL, committed, |count| {
            *count > before + 60.0
        });
        cluster.spawn(leader);
        cluster.wait_in_sync(&[
            "__transaction_state".to_owned(),
            "walrelay-state".to_owned(),
        ]);
    }
    writers.wait_for(60);
    writers.stop();
    assert_once(&world);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// Lets the broker hear of nothing for longer than a transaction may be open, once the relay
/// commits transactions. Gives whether the broker gave one up: it has none to give up where the
/// relay was between two of them.
fn is_given_up(relay: &Relay, kafka: &Kafka, proxy: &Proxy) -> bool {
    let committed = || {
        relay
            .metric("walrelay_committed_transactions_total")
            .unwrap_or_default()
    };
    let before = committed();
    eventually("transactions go on", ARRIVAL, committed, |count| {
        *count > before
    });
    let given_up = || {
        kafka
            .log()
            .lines()
            .filter(|line| line.contains("due to timeout"))
            .count()
    };
    let before = given_up();
    proxy.blackhole(Way::Up);
    let seen = wait::until(Duration::from_secs(15), || {
        (given_up() > before).then_some(())
    });
    proxy.resume();
    seen.is_some()
}

#[test]
fn commits_lost_on_the_network_are_resolved_before_the_next_send() {
    let kafka = Kafka::private();
    let (proxy, through) = kafka.behind_proxy();
    let mut world = World::on(Postgres::shared(), kafka.brokers());
    let direct = std::mem::replace(&mut world.brokers, through);
    let mut relay = impatient(&world);
    relay.wait_ready();
    world.brokers = direct;
    let mut chance = generator("lost commits");
    let writers = world.workload(&Plan {
        writers: 4,
        ..Plan::default()
    });
    for round in 0..from_environment("WALRELAY_TEST_RESTARTS", 5) {
        writers.wait_for(chance.u64(20..80));
        std::thread::sleep(Duration::from_millis(chance.u64(0..100)));
        match round % 5 {
            4 => {
                let given_up = || is_given_up(&relay, &kafka, &proxy);
                eventually("one is given up", 2 * ARRIVAL, given_up, |given_up| {
                    *given_up
                });
            }
            // The broker may have committed, and nobody hears of it.
            1 | 3 => {
                proxy.blackhole(Way::Down);
                std::thread::sleep(Duration::from_millis(chance.u64(10..700)));
                proxy.cut();
                proxy.resume();
            }
            _ => proxy.cut(),
        }
    }
    writers.wait_for(60);
    writers.stop();
    assert_once(&world);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn exactly_once_take_overs_lose_and_duplicate_nothing() {
    let world = World::new();
    let writers = world.workload(&Plan {
        writers: 4,
        ..Plan::default()
    });
    let mut chance = generator("two relays");
    let mut one = impatient(&world);
    let mut other = impatient(&world);
    for _ in 0..from_environment("WALRELAY_TEST_RESTARTS", 5) {
        world.wait_streaming();
        writers.wait_for(chance.u64(5..80));
        // Whichever it is that is at work.
        let killed = if chance.bool() { &mut one } else { &mut other };
        killed.kill_hard();
        *killed = impatient(&world);
    }
    writers.stop();
    assert_once(&world);
    drop(one);
    assert_eq!(other.terminate(EXIT), Some(0), "{}", other.log());
}

#[test]
fn a_frozen_relay_under_exactly_once_publishes_nothing_after_a_take_over() {
    let world = World::new();
    let writers = world.workload(&Plan {
        writers: 4,
        ..Plan::default()
    });
    let mut chance = generator("zombie");
    let mut active = impatient(&world);
    active.wait_ready();
    let mut standby = impatient(&world);
    // A relay that waits for a core for 2 s loses the slot to the other: which one has it is asked
    // anew.
    let is_at_work = |relay: &Relay| {
        let metric = |name| relay.metric(name).unwrap_or_default();
        metric("walrelay_connection_state{side=\"postgres\"}") > 0.0
            && metric("walrelay_standing_by") == 0.0
    };
    for _ in 0..4 {
        world.wait_streaming();
        writers.wait_for(chance.u64(20..80));
        if is_at_work(&standby) {
            std::mem::swap(&mut active, &mut standby);
        }
        active.process.signal("STOP");
        eventually(
            "the other takes over",
            ARRIVAL,
            || is_at_work(&standby),
            |takes_over| *takes_over,
        );
        writers.wait_for(40);
        active.process.signal("CONT");
        writers.wait_for(40);
        std::mem::swap(&mut active, &mut standby);
    }
    writers.stop();
    assert_once(&world);
    for mut relay in [active, standby] {
        assert!(relay.process.exited().is_none(), "{}", relay.log());
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    }
}

#[test]
fn a_new_producer_fences_the_older_one_of_its_slot() {
    let brokers = Kafka::shared().brokers();
    let name = format!("fence.{:x}", fastrand::u32(..));
    topic::create(brokers, &name, 1, &[]);
    let config = KafkaConfig {
        brokers: brokers.to_owned(),
        properties: BTreeMap::new(),
        id_headers: Vec::new(),
        ..KafkaConfig::default()
    };
    let of = Transactional {
        id: name.clone(),
        timeout: Duration::from_secs(15),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        // One transaction for each producer: after a slow commit, none begins another.
        let first = KafkaSink::transactional(&config, &of).await.unwrap();
        first
            .producer()
            .commit(&name, 0, b"k", b"before")
            .await
            .unwrap();
        let older = KafkaSink::transactional(&config, &of).await.unwrap();
        older
            .producer()
            .deliver(&name, 0, b"k", b"open")
            .await
            .unwrap();
        let younger = KafkaSink::transactional(&config, &of).await.unwrap();
        let error = older
            .producer()
            .commit(&name, 0, b"k", b"too late")
            .await
            .unwrap_err();
        assert!(
            error
                .cause()
                .contains("another relay of the slot took over"),
            "{error}"
        );
        younger
            .producer()
            .commit(&name, 0, b"k", b"after")
            .await
            .unwrap();
        first.close().await;
        older.close().await;
        younger.close().await;
    });
    let seen: Vec<_> = topic::read(brokers, &name)
        .iter()
        .map(Record::value_text)
        .collect();
    assert_eq!(seen, ["before", "after"]);
}

#[test]
fn the_relay_waits_for_a_position_behind_an_open_kafka_transaction() {
    let world = World::new();
    let topic = format!("{}.state", world.name);
    let file = format!("[state]\ntopic = {topic:?}\n");
    let mut first = run(&world).config_file(&file).start();
    first.wait_ready();
    let neighbour: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &world.brokers)
        .set("transactional.id", format!("{}-neighbour", world.name))
        .set("transaction.timeout.ms", "600000")
        .create()
        .unwrap();
    neighbour.init_transactions(EXIT).unwrap();
    neighbour.begin_transaction().unwrap();
    neighbour
        .send(
            BaseRecord::to(&topic)
                .partition(0)
                .key("neighbour")
                .payload("open"),
        )
        .unwrap();
    neighbour.flush(EXIT).unwrap();
    let writers = world.workload(&Plan::default());
    writers.wait_for(100);
    writers.stop();
    world.assert_all_delivered();
    first.kill_hard();

    let mut second = run(&world).config_file(&file).start();
    let waits = || second.log().contains("waiting for its end");
    eventually("it waits", ARRIVAL, waits, |waits| *waits);
    neighbour.abort_transaction(EXIT).unwrap();
    second.wait_ready();
    world.emit(&world.sql(), "after");
    assert_once(&world);
    topic::close(neighbour);
    assert_eq!(second.terminate(EXIT), Some(0), "{}", second.log());
}

#[test]
fn each_rejected_event_under_exactly_once_is_one_dead_letter_without_duplicates() {
    let world = World::new();
    let letters_topic = format!("{}.dead", world.name);
    topic::create(&world.brokers, &letters_topic, 1, &[]);
    topic::create(
        &world.brokers,
        &world.topic(0),
        6,
        &[("max.message.bytes", "200000")],
    );
    let file = format!("[delivery]\ndead_letter_topic = {letters_topic:?}\n");
    let command = run(&world)
        .option("--on-error", "dead-letter")
        .config_file(&file);
    let mut relay = command.start();
    relay.wait_ready();
    // Each poison takes producers of its own to be found out, each with a fence.
    let pause = Duration::from_millis(20);
    let writers = world.workload(&Plan {
        writers: 4,
        pause,
        ..Plan::default()
    });
    let sql = world.sql();
    let kind = world.kind(0);
    let mut bad = BTreeSet::new();
    for round in 0..2 {
        writers.wait_for(50);
        // Several at once: what is found out of one has to outlast the transaction another one
        // spoils.
        for payload in [
            "(select jsonb_agg(md5(n::text)) from generate_series(1, 12000) n)",
            "to_jsonb(repeat('x', 2000000))",
        ]
        .repeat(2)
        {
            let insert = format!(
                "insert into outbox (id, aggregatetype, aggregateid, type, payload)
                 values (gen_random_uuid(), '{kind}', 'a1', 'Bad', {payload}) returning id::text"
            );
            bad.insert(sql.rows(&insert, &[])[0].get::<_, String>(0));
        }
        if round == 1 {
            writers.wait_for(30);
            relay.kill_hard();
            relay = command.start();
            relay.wait_ready();
        }
    }
    writers.wait_for(50);
    writers.stop();
    let lost = || world.check().lost.len();
    eventually("all others arrive", 4 * ARRIVAL, lost, |lost| *lost == 0);
    let findings = world.assert_all_good_delivered();
    assert_eq!(findings.duplicates, 0);
    let letters = || {
        topic::read(&world.brokers, &letters_topic)
            .iter()
            .map(|letter| letter.header("id"))
            .collect::<Vec<_>>()
    };
    let found = eventually("all dead letters are there", ARRIVAL, letters, |found| {
        found.len() >= bad.len()
    });
    assert_eq!(
        (found.len(), found.into_iter().collect::<BTreeSet<_>>()),
        (bad.len(), bad)
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_producer_with_a_resent_commit_begins_no_further_transaction() {
    let kafka = Kafka::private();
    let (proxy, through) = kafka.behind_proxy();
    let name = format!("late.{:x}", fastrand::u32(..));
    topic::create(kafka.brokers(), &name, 1, &[]);
    let config = KafkaConfig {
        brokers: through,
        properties: BTreeMap::new(),
        id_headers: Vec::new(),
        ..KafkaConfig::default()
    };
    let of = Transactional {
        id: name.clone(),
        timeout: Duration::from_secs(15),
    };
    let seen = || {
        topic::read(kafka.brokers(), &name)
            .iter()
            .map(Record::value_text)
            .collect::<Vec<_>>()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut expected = Vec::new();
    let began = Instant::now();
    runtime.block_on(async {
        let sink = loop {
            assert!(
                began.elapsed() < LIMIT,
                "each commit was answered before the answers ceased"
            );
            let sink = KafkaSink::transactional(&config, &of).await.unwrap();
            sink.producer()
                .commit(&name, 0, b"k", b"first")
                .await
                .unwrap();
            // Acked already, so that the commit is all that is on its way.
            sink.producer()
                .deliver(&name, 0, b"k", b"second")
                .await
                .unwrap();
            let producer = sink.producer();
            let topic = name.clone();
            let commit =
                tokio::spawn(async move { producer.commit(&topic, 0, b"k", b"position").await });
            // From here on nobody hears of anything: whatever of it arrives is done, and asked for
            // once more.
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..20))).await;
            proxy.blackhole(Way::Down);
            tokio::time::sleep(Duration::from_millis(300)).await;
            let was_quick = commit.is_finished();
            proxy.cut();
            proxy.resume();
            commit.await.unwrap().unwrap();
            expected.extend(["first", "second", "position"]);
            // What was done before is not asked for again.
            if !was_quick {
                break sink;
            }
            sink.close().await;
        };
        let error = sink
            .producer()
            .commit(&name, 0, b"k", b"too soon")
            .await
            .unwrap_err();
        assert!(error.cause().contains("may come late"), "{error}");
        let next = KafkaSink::transactional(&config, &of).await.unwrap();
        next.producer()
            .commit(&name, 0, b"k", b"third")
            .await
            .unwrap();
        sink.close().await;
        next.close().await;
    });
    expected.push("third");
    assert_eq!(seen(), expected);
}

#[test]
fn a_broken_connection_under_exactly_once_replaces_the_producer() {
    let kafka = Kafka::private();
    let (proxy, through) = kafka.behind_proxy();
    let mut world = World::on(Postgres::shared(), kafka.brokers());
    let direct = std::mem::replace(&mut world.brokers, through);
    // librdkafka's lines about connections.
    let mut relay = run(&world).option("--log", "info,librdkafka=debug").start();
    relay.wait_ready();
    world.brokers = direct;
    let sql = world.sql();
    world.emit(&sql, "a");
    eventually(
        "it arrives",
        ARRIVAL,
        || world.delivered(),
        |count| *count >= 1,
    );
    proxy.cut();
    eventually(
        "that is noticed",
        ARRIVAL,
        || relay.log(),
        |log| log.contains("in state UP"),
    );
    world.emit(&sql, "a");
    assert_once(&world);
    assert!(relay.log().contains("may come late"), "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
