use std::collections::BTreeMap;

use rdkafka::ClientConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer as _};

use super::record::tests::stored;
use super::*;
use crate::config::StoreKind;
use crate::sink::KafkaSink;

const TOPIC: &str = "walrelay.state";

struct Lab {
    _cluster: MockCluster<'static, DefaultProducerContext>,
    config: KafkaConfig,
    sink: KafkaSink,
}

/// The mock cluster creates no topics on request and describes no settings; a real broker does both.
fn lab(partitions: i32) -> Lab {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(TOPIC, partitions, 1).unwrap();
    let config = KafkaConfig {
        id_headers: Vec::new(),
        brokers: cluster.bootstrap_servers(),
        properties: BTreeMap::new(),
        max_in_flight_bytes: 1 << 20,
        max_in_flight_events: 100,
    };
    let sink = KafkaSink::connect(&config).unwrap();
    Lab { _cluster: cluster, config, sink }
}

fn state(key: &str) -> StateConfig {
    StateConfig { store: StoreKind::Kafka, topic: TOPIC.to_owned(), key: key.to_owned(), adopt_slot: false }
}

async fn open(lab: &Lab, key: &str) -> Result<KafkaStore> {
    KafkaStore::open(&lab.config, &state(key), lab.sink.producer()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_position_of_each_key_is_read_back() {
    let lab = lab(1);
    let mut orders = open(&lab, "orders").await.unwrap();
    let mut others = open(&lab, "others").await.unwrap();
    assert_eq!(orders.load().await, Ok(None));
    for end_lsn in 1..=50 {
        orders.store(&stored(end_lsn)).await.unwrap();
        others.store(&stored(end_lsn * 1000)).await.unwrap();
    }
    assert_eq!(orders.load().await, Ok(Some(stored(50))));
    assert_eq!(others.load().await, Ok(Some(stored(50_000))));
    assert_eq!(open(&lab, "third").await.unwrap().load().await, Ok(None));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_follows_a_damaged_record_heals_it() {
    let lab = lab(1);
    let mut store = open(&lab, "orders").await.unwrap();
    lab.sink.producer().deliver(TOPIC, PARTITION, b"orders", b"damaged").await.unwrap();
    assert_eq!(store.load().await.unwrap_err().kind(), Kind::KafkaRefused);
    store.store(&stored(7)).await.unwrap();
    assert_eq!(store.load().await, Ok(Some(stored(7))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_with_more_than_one_partition_keeps_no_position() {
    let lab = lab(2);
    let error = open(&lab, "orders").await.err().unwrap();
    assert_eq!(error.kind(), Kind::KafkaRefused);
    assert!(error.cause().contains("2 partitions"), "{error}");
    assert!(error.what_to_do().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_forgets_the_position() {
    let lab = lab(1);
    let mut store = open(&lab, "orders").await.unwrap();
    store.store(&stored(7)).await.unwrap();
    let producer: BaseProducer = ClientConfig::new().set("bootstrap.servers", &lab.config.brokers).create().unwrap();
    producer.send(BaseRecord::<[u8], [u8]>::to(TOPIC).partition(PARTITION).key(b"orders")).unwrap();
    producer.flush(std::time::Duration::from_secs(30)).unwrap();
    assert_eq!(store.load().await, Ok(None));
}

#[tokio::test(flavor = "multi_thread")]
async fn storing_fails_when_the_producer_is_finished_and_the_last_position_stands() {
    let lab = lab(1);
    let mut store = open(&lab, "orders").await.unwrap();
    store.store(&stored(7)).await.unwrap();
    lab.sink.close().await;
    assert_eq!(store.store(&stored(8)).await.unwrap_err().kind(), Kind::KafkaUnreachable);
    assert_eq!(store.load().await, Ok(Some(stored(7))));
}
