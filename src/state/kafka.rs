//! The position in a compacted Kafka topic: one partition, one key per relay, the newest record
//! counts.
//!
//! Written through the sink's own producer, so that one connection and one set of credentials serve
//! both.

use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use crate::config::{KafkaConfig, StateConfig};
use crate::sink::BusHandle as _;
use crate::sink::Producer;
use crate::sink::kafka::cluster::{judge_of_position, refused_position};
use crate::sink::kafka::options::Options;
use crate::sink::kafka::topic_reader::{Isolation, Layout, TopicAdmin, TopicReader, off_runtime};
use crate::state::encode;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::stored::Stored;

const PARTITION: i32 = 0;

/// Keeps one [`Stored`] in a Kafka topic. With a transactional producer, a store commits the
/// records that were sent before.
pub(crate) struct KafkaStore {
    config: KafkaConfig,
    topic: String,
    key: String,
    producer: Producer,
}

impl KafkaStore {
    /// Looks at the topic and creates it where it is missing. May take up to half a minute. Nothing
    /// is retried.
    ///
    /// Needs the right to describe and read the topic, and to create topics only where it is
    /// missing. Errors: [`Kind::BusRefused`] for a topic that is not fit or cannot be created, with
    /// the command that helps.
    pub(crate) async fn open(
        config: &KafkaConfig,
        state: &StateConfig,
        producer: Producer,
    ) -> Result<KafkaStore> {
        let options = Options::reader(config)?;
        let name = state.topic.clone();
        blocking(&producer, move || prepare(options, &name)).await?;
        Ok(KafkaStore {
            config: config.clone(),
            topic: state.topic.clone(),
            key: state.key.clone(),
            producer,
        })
    }

    pub(crate) async fn load(&mut self) -> Result<Option<Stored>> {
        let options = Options::reader(&self.config)?;
        let topic = self.topic.clone();
        let key = self.key.clone();
        blocking(&self.producer, move || newest(options, &topic, &key)).await
    }

    /// Replaces it: durable when this returns. Not safe to cancel half-way: drive it to its end.
    pub(crate) async fn store(&mut self, stored: &Stored) -> Result<()> {
        let value = encode(stored)?;
        let topic = &self.topic;
        let key = self.key.as_bytes();
        match self.producer.is_transactional() {
            true => {
                self.producer
                    .commit(topic, PARTITION, key, value.as_bytes())
                    .await
            }
            false => {
                self.producer
                    .deliver(topic, PARTITION, key, value.as_bytes())
                    .await
            }
        }
    }
}

/// The newest record of this key, for those who have no producer; none where there is no topic.
/// Creates nothing.
pub(super) async fn load(config: &KafkaConfig, state: &StateConfig) -> Result<Option<Stored>> {
    let options = Options::reader(config)?;
    let topic = state.topic.clone();
    let key = state.key.clone();
    off_runtime(move || {
        let reader = TopicReader::open(options.clone(), Isolation::ReadCommitted, None)?;
        match look(&reader, &topic)?.partitions.is_empty() {
            true => Ok(None),
            false => newest(options, &topic, &key),
        }
    })
    .await
}

/// Runs `work`, which blocks and ends by its own deadline, off the runtime. Where Kafka refuses us,
/// that explains more.
async fn blocking<T: Send + 'static>(
    producer: &Producer,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::select! {
        done = off_runtime(work) => done,
        refusal = producer.unusable() => Err(refusal),
    }
}

/// How long a topic that was created may stay unknown to the brokers, and the pause before they are
/// asked again.
const KNOWN_TIMEOUT: Duration = Duration::from_secs(10);
const KNOWN_RETRY: Duration = Duration::from_millis(10);

/// Replicas of a topic we create, where there are as many brokers.
const REPLICAS_MAX: usize = 3;

/// Small segments and an eager cleaner keep the topic short, so that a start reads little.
const SETTINGS: &[(&str, &str)] = &[
    ("cleanup.policy", "compact"),
    ("segment.bytes", "16777216"),
    ("min.cleanable.dirty.ratio", "0.1"),
];

/// Creates the topic where it is missing; otherwise says whether it is fit.
fn prepare(options: Options, topic: &str) -> Result<()> {
    let admin = TopicAdmin::open(&options)?;
    let prepared = TopicReader::open(options, Isolation::ReadCommitted, None)
        .and_then(|reader| create_missing(&admin, &reader, topic));
    admin.close();
    prepared
}

fn create_missing(admin: &TopicAdmin, reader: &TopicReader, topic: &str) -> Result<()> {
    let mut seen = look(reader, topic)?;
    let is_new = seen.partitions.is_empty();
    if is_new {
        create(admin, topic, seen.brokers.len())?;
    }
    let deadline = Instant::now() + KNOWN_TIMEOUT;
    while seen.partitions.is_empty() {
        if Instant::now() >= deadline {
            let cause = format!("topic {topic} was created and no broker knows of it");
            return Err(Error::new(Kind::BusUnreachable, cause));
        }
        std::thread::sleep(KNOWN_RETRY);
        seen = look(reader, topic)?;
    }
    verify(admin, topic, &seen, is_new.then_some(deadline))
}

/// The answer of one of the brokers, each asked in its turn once, and then up to `until`: a broker
/// may know nothing of a topic that was just made, and librdkafka's client says the same of that as
/// of a missing right.
fn asked<T, E>(
    brokers: &[i32],
    until: Option<Instant>,
    mut ask: impl FnMut(Option<i32>) -> Result<T, E>,
) -> Result<T, E> {
    let mut left = brokers.len();
    let mut brokers = brokers.iter().copied().cycle();
    loop {
        let answer = ask(brokers.next());
        left = left.saturating_sub(1);
        match answer {
            Err(_) if left > 0 || until.is_some_and(|until| Instant::now() < until) => {
                std::thread::sleep(KNOWN_RETRY)
            }
            answer => return answer,
        }
    }
}

fn look(reader: &TopicReader, topic: &str) -> Result<Layout> {
    reader
        .layout(topic)
        .map_err(|error| refused_position(error, topic))
}

fn create(admin: &TopicAdmin, topic: &str, brokers: usize) -> Result<()> {
    let replicas = brokers.clamp(1, REPLICAS_MAX);
    let in_sync = (replicas >= 3).then_some(("min.insync.replicas", "2"));
    let settings: Vec<_> = SETTINGS.iter().copied().chain(in_sync).collect();
    let created = admin.create(topic, replicas, &settings).map_err(|known| {
        if known.kind() == Kind::BusUnreachable {
            return known;
        }
        let cause = format!("the topic that keeps the position cannot be created: {known}");
        let settings: String = SETTINGS
            .iter()
            .map(|(name, value)| {
                format!(
                    " --config \
            {name}={value}"
                )
            })
            .collect();
        Error::new(known.kind(), cause).remedy(format!(
            "create it as a user who may: kafka-topics --bootstrap-server … --create --topic \
             {topic} --partitions 1 --replication-factor \
             {replicas}{settings}"
        ))
    })?;
    if created {
        tracing::info!(
            event = "state_topic_created",
            topic,
            replicas,
            "created the state topic"
        );
    }
    Ok(())
}

/// Says whether the topic is fit. Brokers may not know its settings before `until`.
fn verify(admin: &TopicAdmin, topic: &str, seen: &Layout, until: Option<Instant>) -> Result<()> {
    let partitions = seen.partitions.len();
    judge_of_position(topic, partitions, None)?;
    if seen.replicas < REPLICAS_MAX.min(seen.brokers.len()) {
        let replicas = seen.replicas;
        let brokers = seen.brokers.len();
        tracing::warn!(event = "state_topic_underreplicated", %topic, replicas, brokers,
            "the state topic has few replicas");
    }
    match asked(&seen.brokers, until, |broker| {
        admin.setting(topic, "cleanup.policy", broker)
    }) {
        Ok(policy) => judge_of_position(topic, partitions, Some(&policy)),
        Err(why) => {
            let fix = "make sure that cleanup.policy=compact";
            tracing::warn!(event = "state_topic_unchecked", %topic, error = why, fix,
                "cannot see whether the topic is compacted");
            Ok(())
        }
    }
}

/// How long the relay waits for transactions of others.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// The pause before the next check whether transactions of others have ended.
const OPEN_RETRY: Duration = Duration::from_millis(20);

/// The newest value under `key` below the partition's end at the time of the call; a tombstone is
/// none.
fn newest(options: Options, topic: &str, key: &str) -> Result<Option<Stored>> {
    let read = || {
        let everything = TopicReader::open(options.clone(), Isolation::ReadUncommitted, None)?;
        let end = everything.span(topic, PARTITION)?.end;
        let reader = TopicReader::open(options, Isolation::ReadCommitted, None)?;
        let spans = [(PARTITION, extent(&reader, topic, end)?)].into();
        let mut newest = None;
        reader.read(topic, &spans, &mut |message| {
            if message.key == Some(key.as_bytes()) {
                newest = message.value.map(<[u8]>::to_vec);
            }
            ControlFlow::Continue(())
        })?;
        Ok(newest)
    };
    // No event waits for the topic.
    let refused = |error: Error| {
        if error.kind() == Kind::TopicRefused {
            error.with_kind(Kind::BusRefused)
        } else {
            error
        }
    };
    let value = read().map_err(refused)?;
    value.map(|value| decode(&value, topic, key)).transpose()
}

/// Where the partition begins, and where it ends for readers of what is committed, once that is at
/// least `end`.
///
/// Relays share the topic. Records behind the open transaction of another relay are hidden until
/// that transaction ends, and an older record of ours is not to be taken for the newest.
fn extent(reader: &TopicReader, topic: &str, end: i64) -> Result<Range<i64>> {
    let began = Instant::now();
    let mut is_logged = false;
    loop {
        let span = reader.span(topic, PARTITION)?;
        let high = span.end;
        if high >= end {
            return Ok(span);
        }
        if began.elapsed() > OPEN_TIMEOUT {
            let cause = format!(
                "topic {topic} could not be read: another producer has a transaction open in it at \
                 offset {high}"
            );
            return Err(Error::new(Kind::BusUnreachable, cause).remedy(format!(
                "it ends by its timeout, unless Kafka has lost it (KAFKA-20734): \
                     kafka-transactions.sh find-hanging lists \
                     such transactions, and kafka-transactions.sh abort --topic {topic} \
                     --partition {PARTITION} --start-offset \
                     {high} ends this one; see docs/explanation/exactly-once.md"
            )));
        }
        if !std::mem::replace(&mut is_logged, true) {
            tracing::info!(event = "open_transaction_awaited", %topic,
                "another producer has a transaction open in the state topic; waiting for its end");
        }
        std::thread::sleep(OPEN_RETRY);
    }
}

/// Errors: [`Kind::BusRefused`] where the record is not a position, or one of another layout.
fn decode(value: &[u8], topic: &str, key: &str) -> Result<Stored> {
    let place = format!("the record with key {key:?} in topic {topic}");
    let remedy = "use another state topic or key; if the record was damaged, remove it and start \
                  with --adopt-slot, which \
                  publishes again whatever the slot still holds";
    super::decode(value, &place, remedy).map_err(|error| error.with_kind(Kind::BusRefused))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rdkafka::ClientConfig;
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
    use walrelay_fuzz::fuzz;

    use super::*;
    use crate::config::StoreKind;
    use crate::sink::KafkaSink;
    use walrelay_core::position::ServerIdentity;
    use walrelay_core::position::{Lsn, Partial, Position};
    use walrelay_core::stored::Outboxes;

    fn stored(end_lsn: u64) -> Stored {
        let partial = Partial {
            commit_lsn: Lsn::new(end_lsn + 8),
            index: 3,
        };
        Stored {
            server: ServerIdentity {
                system_identifier: "7480000000000000001".to_owned(),
                timeline: 2,
            },
            slot: "orders".to_owned(),
            relay: String::new(),
            position: Position {
                end_lsn: Lsn::new(end_lsn),
                partial: Some(partial),
            },
            outboxes: Outboxes {
                publication_oid: 16_400,
                table_oids: vec![16_390],
                membership_oids: vec![16_401],
                ..Outboxes::default()
            },
            cluster_id: Some("nirvana".to_owned()),
            published: None,
            stream_only: Vec::new(),
            catch_up: None,
        }
    }

    #[test]
    fn a_position_reads_back_as_it_was_written() {
        let value = encode(&stored(0x16_B374_D848)).unwrap();
        assert_eq!(
            decode(value.as_bytes(), "t", "k"),
            Ok(stored(0x16_B374_D848))
        );
        let text: serde_json::Value = serde_json::from_str(&value).unwrap();
        assert_eq!(text["version"], 3);
        assert_eq!(text["walrelay"], env!("CARGO_PKG_VERSION"));
        assert_eq!(text["slot"], "orders");
        assert_eq!(text["system_identifier"], "7480000000000000001");
        assert_eq!(text["position"]["end_lsn"], "16/B374D848");
        assert!(
            text["written_at"]
                .as_str()
                .unwrap()
                .parse::<jiff::Timestamp>()
                .is_ok()
        );
    }

    #[test]
    fn a_record_of_somebody_else_is_refused_without_being_quoted() {
        for value in [
            "",
            "{}",
            "hello canary",
            r#"{"version":1,"slot":"canary"}"#,
            r#"{"version":"canary"}"#,
            "[1]",
        ] {
            let error = decode(value.as_bytes(), "walrelay.state", "orders").unwrap_err();
            assert_eq!(error.kind(), Kind::BusRefused);
            assert!(
                error
                    .cause()
                    .contains(r#""orders" in topic walrelay.state"#),
                "{error}"
            );
            assert!(!error.cause().contains("canary"), "{error}");
            assert!(error.what_to_do().is_some());
        }
    }

    #[test]
    fn a_newer_layout_is_refused() {
        let value = encode(&stored(1)).unwrap();
        let newer = value.replace("\"version\":3", "\"version\":4");
        let error = decode(newer.as_bytes(), "t", "k").unwrap_err();
        assert_eq!(error.kind(), Kind::BusRefused);
        assert!(error.cause().contains("layout 4"), "{error}");
    }

    #[test]
    fn each_broker_is_asked_about_the_topic_and_again_about_a_new_one() {
        for (is_new, expected, questions) in [
            (true, Ok("compact"), vec![Some(1), Some(2), Some(1)]),
            (false, Err(()), vec![Some(1), Some(2)]),
        ] {
            let until = is_new.then(|| Instant::now() + KNOWN_TIMEOUT);
            let mut brokers = Vec::new();
            let answer = asked(&[1, 2], until, |broker| {
                brokers.push(broker);
                if brokers.len() == 3 {
                    Ok("compact")
                } else {
                    Err(())
                }
            });
            assert_eq!((answer, brokers), (expected, questions));
        }
    }

    const TOPIC: &str = "walrelay.state";

    #[tokio::test(flavor = "multi_thread")]
    async fn a_damaged_record_is_an_error_until_the_next_store_and_a_tombstone_forgets_it() {
        // The mock cluster creates no topics on request and describes no settings; a real broker
        // does both.
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic(TOPIC, 1, 1).unwrap();
        let config = KafkaConfig {
            id_headers: Vec::new(),
            brokers: cluster.bootstrap_servers(),
            properties: BTreeMap::new(),
            ..KafkaConfig::default()
        };
        let topic = TOPIC.to_owned();
        let key = "orders".to_owned();
        let state = StateConfig {
            store: StoreKind::Kafka,
            topic,
            key,
            adopt_slot: false,
        };
        let sink = KafkaSink::connect(&config).unwrap();
        let mut store = KafkaStore::open(&config, &state, sink.producer())
            .await
            .unwrap();
        sink.producer()
            .deliver(TOPIC, PARTITION, b"orders", b"damaged")
            .await
            .unwrap();
        assert_eq!(store.load().await.unwrap_err().kind(), Kind::BusRefused);
        store.store(&stored(7)).await.unwrap();
        assert_eq!(store.load().await, Ok(Some(stored(7))));
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", &config.brokers)
            .create()
            .unwrap();
        producer
            .send(
                BaseRecord::<[u8], [u8]>::to(TOPIC)
                    .partition(PARTITION)
                    .key(b"orders"),
            )
            .unwrap();
        producer.flush(Duration::from_secs(30)).unwrap();
        assert_eq!(store.load().await, Ok(None));
    }

    #[test]
    fn fuzzed_positions() {
        let plain = encode(&stored(0x16_B374_D848)).unwrap();
        let more = concat!(
            r#","published":{"snapshot":"10:20:10,14","lsn":"0/7","also":[21],"copies":"9:9:","#,
            r#""earlier":[{"snapshot":"7:7:","lsn":"0/1"}]},"stream_only":[7],"catch_up":"#,
            r#"{"rows":{"since":"2024-05-06"},"until":"10:20:10,14","table_oid":16390,"#,
            r#""order":"id","after":{"order":null,"id":"7","rest":["x"]}}}"#,
        );
        let rich = format!("{}{more}", plain.strip_suffix('}').unwrap());
        assert!(decode(rich.as_bytes(), "t", "k").is_ok());
        let corpus = [plain.replace("\"version\":3", "\"version\":1"), plain, rich];
        fuzz("stored positions", 1 << 20, &corpus, |bytes| {
            match decode(bytes, "t", "k") {
                Ok(stored) => {
                    let again = encode(&stored).unwrap();
                    assert_eq!(decode(again.as_bytes(), "t", "k"), Ok(stored));
                }
                Err(error) => assert_eq!(error.kind(), Kind::BusRefused),
            }
        });
    }
}
