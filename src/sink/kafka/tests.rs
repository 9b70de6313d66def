use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, Headers, Message};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{Offset, TopicPartitionList};

use super::topic_reader::ANSWER_MAX;
use super::*;
use walrelay_core::secret::Secret;

type Cluster = MockCluster<'static, DefaultProducerContext>;

const TOPIC: &str = "outbox.event.order";
/// Numbers up to here were used to open the partition.
const OPENED: u64 = 2;
const PATIENCE: Duration = Duration::from_secs(120);

fn cluster(partitions: i32) -> Cluster {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(TOPIC, partitions, 1).unwrap();
    cluster
}

fn config(brokers: String, properties: &[(&str, &str)]) -> KafkaConfig {
    let properties = properties
        .iter()
        .map(|(name, value)| ((*name).to_owned(), Secret::new(*value)))
        .collect();
    KafkaConfig {
        brokers,
        properties,
        id_headers: vec!["id".to_owned()],
        ..KafkaConfig::default()
    }
}

fn sink(cluster: &Cluster) -> KafkaSink {
    KafkaSink::connect(&config(cluster.bootstrap_servers(), &[])).unwrap()
}

fn record<'a>(key: &'a [u8], value: &'a [u8]) -> Record<'a> {
    Record {
        topic: TOPIC,
        key: Some(key),
        value: Some(value),
        ..Record::default()
    }
}

fn enqueue_numbers(sink: &mut KafkaSink, numbers: std::ops::Range<u64>) {
    for number in numbers {
        sink.enqueue(
            &record(b"o-1", number.to_string().as_bytes()),
            Ticket(number),
        )
        .unwrap();
    }
}

/// Opens the partition of the key that the numbers have, with the numbers 0 and 1: one finds out
/// how many partitions the topic has, the other opens its own.
async fn open(sink: &mut KafkaSink) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    for number in 0..OPENED {
        enqueue_numbers(sink, number..number + 1);
        deliveries.append(&mut delivered(sink, 1).await);
    }
    deliveries
}

/// Waits for this many deliveries.
async fn delivered(sink: &mut KafkaSink, count: usize) -> Vec<Delivery> {
    delivered_too(sink, Vec::new(), count).await
}

/// Waits until there are this many deliveries.
async fn delivered_too(
    sink: &mut KafkaSink,
    mut deliveries: Vec<Delivery>,
    count: usize,
) -> Vec<Delivery> {
    let all = async {
        while deliveries.len() < count {
            sink.deliveries(&mut deliveries).await;
        }
    };
    tokio::time::timeout(PATIENCE, all)
        .await
        .expect("not all was delivered in time");
    deliveries
}

/// Tickets of acked records, in ascending order; panics at a failure.
fn acked(deliveries: &[Delivery]) -> Vec<u64> {
    let ticket = |delivery: &Delivery| match delivery {
        Delivery::Acked(ticket) => ticket.0,
        Delivery::Refused(ticket, error) | Delivery::Failed(ticket, error) => {
            panic!("{ticket:?} failed: {error}")
        }
    };
    let mut tickets: Vec<u64> = deliveries.iter().map(ticket).collect();
    tickets.sort_unstable();
    tickets
}

struct Read {
    partition: i32,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
    timestamp_ms: Option<i64>,
}

/// The first `count` records of the topic; in order per partition.
fn read(cluster: &Cluster, partitions: i32, count: usize) -> Vec<Read> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .set("group.id", "test")
        .create()
        .unwrap();
    let mut assignment = TopicPartitionList::new();
    for partition in 0..partitions {
        assignment
            .add_partition_offset(TOPIC, partition, Offset::Beginning)
            .unwrap();
    }
    consumer.assign(&assignment).unwrap();
    let mut records = Vec::new();
    let deadline = std::time::Instant::now() + PATIENCE;
    while records.len() < count && std::time::Instant::now() < deadline {
        let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) else {
            continue;
        };
        let headers = message.headers().map(|headers| {
            let owned = |header: Header<'_, &[u8]>| {
                (header.key.to_owned(), header.value.map(<[u8]>::to_vec))
            };
            headers.iter().map(owned).collect()
        });
        records.push(Read {
            partition: message.partition(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers: headers.unwrap_or_default(),
            timestamp_ms: message.timestamp().to_millis(),
        });
    }
    assert_eq!(records.len(), count, "the topic holds fewer records");
    records
}

/// Records librdkafka has and has not reported on.
fn in_librdkafka(sink: &KafkaSink) -> usize {
    sink.inner
        .shared
        .outstanding
        .records
        .load(Ordering::Relaxed)
}

fn numbers(records: &[Read]) -> Vec<u64> {
    let number = |record: &Read| {
        String::from_utf8(record.value.clone().unwrap())
            .unwrap()
            .parse()
            .unwrap()
    };
    records.iter().map(number).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_parts_of_a_record_arrive_and_null_and_empty_differ() {
    let cluster = cluster(3);
    let mut sink = sink(&cluster);
    let headers: &[(&str, Option<&[u8]>)] =
        &[("id", Some(b"1")), ("empty", Some(b"")), ("null", None)];
    let given = Record {
        topic: TOPIC,
        partition: Some(2),
        ..Record::default()
    };
    sink.enqueue(&given, Ticket(0)).unwrap();
    delivered(&mut sink, 1).await;
    let full = Record {
        headers,
        timestamp_ms: Some(1_714_979_289_123),
        partition: Some(2),
        ..record(b"", b"")
    };
    sink.enqueue(&full, Ticket(1)).unwrap();
    delivered(&mut sink, 1).await;
    let records = read(&cluster, 3, 2);
    assert_eq!(
        (&records[0].key, &records[0].value, records[0].headers.len()),
        (&None, &None, 0)
    );
    assert_eq!(
        (&records[1].key, &records[1].value),
        (&Some(Vec::new()), &Some(Vec::new()))
    );
    let expected = [
        ("id", Some(b"1".to_vec())),
        ("empty", Some(Vec::new())),
        ("null", None),
    ];
    assert_eq!(
        records[1].headers,
        expected.map(|(name, value)| (name.to_owned(), value))
    );
    assert_eq!((records[0].partition, records[1].partition), (2, 2));
    assert_eq!(records[1].timestamp_ms, Some(1_714_979_289_123));
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_that_pass_are_retried_in_order_without_loss() {
    let cluster = cluster(1);
    let mut sink = sink(&cluster);
    let deliveries = open(&mut sink).await;
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        ],
    );
    enqueue_numbers(&mut sink, OPENED..500);
    assert_eq!(
        acked(&delivered_too(&mut sink, deliveries, 500).await),
        (0..500).collect::<Vec<_>>()
    );
    assert_eq!(
        numbers(&read(&cluster, 1, 500)),
        (0..500).collect::<Vec<_>>()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_refused_record_ends_the_producer_and_nothing_behind_it_is_delivered() {
    let cluster = cluster(1);
    let mut sink = sink(&cluster);
    let deliveries = open(&mut sink).await;
    enqueue_numbers(&mut sink, OPENED..10);
    assert_eq!(
        acked(&delivered_too(&mut sink, deliveries, 10).await).len(),
        10
    );
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE],
    );
    enqueue_numbers(&mut sink, 10..20);
    let failed = delivered(&mut sink, 10).await;
    let Delivery::Failed(_, first) = &failed[0] else {
        panic!("acked")
    };
    assert_eq!(first.kind(), Kind::RecordTooLarge);
    assert!(first.cause().contains(TOPIC), "{first}");
    assert!(
        failed
            .iter()
            .all(|delivery| matches!(delivery, Delivery::Failed(..)))
    );
    assert!(matches!(
        sink.enqueue(&record(b"o-1", b"20"), Ticket(20)),
        Err(EnqueueError::Finished)
    ));
    sink.close().await;
    assert_eq!(numbers(&read(&cluster, 1, 10)), (0..10).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_in_a_batch_behind_the_refused_one_is_not_delivered() {
    let cluster = cluster(1);
    let one_by_one = [("batch.num.messages", "1")];
    let mut sink = KafkaSink::connect(&config(cluster.bootstrap_servers(), &one_by_one)).unwrap();
    open(&mut sink).await;
    // Slow enough that all are enqueued before the first is refused.
    cluster
        .broker_round_trip_time(1, Duration::from_millis(300))
        .unwrap();
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE],
    );
    enqueue_numbers(&mut sink, 2..22);
    let deliveries = delivered(&mut sink, 20).await;
    // The mock takes the four requests that are under way behind it, which a broker does not: their
    // sequence numbers are not the next.
    let failed = |number| {
        deliveries
            .iter()
            .any(|it| matches!(it, Delivery::Failed(Ticket(at), _) if *at == number))
    };
    assert!(failed(2) && (7..22).all(failed), "{deliveries:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_names_the_row_by_the_events_id_and_by_no_other_header() {
    let cluster = cluster(1);
    for (name, shown) in [("id", true), ("email", false)] {
        let mut sink = sink(&cluster);
        cluster.request_errors(
            RDKafkaApiKey::Produce,
            &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE],
        );
        let headers: &[(&str, Option<&[u8]>)] = &[(name, Some(b"canary"))];
        sink.enqueue(
            &Record {
                headers,
                ..record(b"o-1", b"x")
            },
            Ticket(0),
        )
        .unwrap();
        let failed = delivered(&mut sink, 1).await;
        let Delivery::Failed(_, error) = &failed[0] else {
            panic!("acked")
        };
        assert_eq!(error.to_string().contains("canary"), shown, "{error}");
        sink.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_go_where_java_puts_them() {
    let cluster = cluster(8);
    let mut sink = sink(&cluster);
    let golden = [
        ("o-1", 2),
        ("o-2", 7),
        ("o-3", 4),
        ("o-4", 4),
        ("o-5", 2),
        ("o-7", 0),
        ("o-9", 6),
        ("", 1),
        ("c-1", 7),
    ];
    for (ticket, (key, _)) in golden.iter().enumerate() {
        sink.enqueue(&record(key.as_bytes(), b""), Ticket(ticket as u64))
            .unwrap();
        delivered(&mut sink, 1).await;
    }
    let placed = read(&cluster, 8, golden.len()).into_iter();
    let placed: BTreeMap<_, _> = placed
        .map(|read| {
            (
                String::from_utf8(read.key.unwrap()).unwrap(),
                read.partition,
            )
        })
        .collect();
    assert_eq!(
        placed,
        golden
            .iter()
            .map(|(key, partition)| ((*key).to_owned(), *partition))
            .collect()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_record_is_acked_once_and_in_order_however_often_waiting_is_cancelled() {
    let cluster = cluster(1);
    let mut sink = sink(&cluster);
    let mut deliveries = open(&mut sink).await;
    enqueue_numbers(&mut sink, OPENED..200);
    let all = async {
        while deliveries.len() < 200 {
            tokio::select! {
                biased;
                () = sink.deliveries(&mut deliveries) => {}
                () = tokio::task::yield_now() => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, all).await.unwrap();
    assert_eq!(acked(&deliveries), (0..200).collect::<Vec<_>>());
    assert_eq!(
        numbers(&read(&cluster, 1, 200)),
        (0..200).collect::<Vec<_>>()
    );
    assert_eq!(*sink.watch_connection().borrow(), Connection::Up);
    sink.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_does_not_wait_for_a_broker_that_is_down_and_ends_every_handle() {
    let cluster = cluster(1);
    let mut sink = sink(&cluster);
    open(&mut sink).await;
    cluster.broker_down(-1).unwrap();
    enqueue_numbers(&mut sink, 0..100);
    let producer = sink.producer();
    let waiting = tokio::spawn({
        let producer = producer.clone();
        async move { producer.deliver(TOPIC, 0, b"k", b"v").await }
    });
    let all_there = async {
        while in_librdkafka(&sink) < 101 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, all_there)
        .await
        .expect("not all was handed over in time");
    let started = Instant::now();
    sink.close().await;
    assert!(
        started.elapsed() < CLOSE_TIMEOUT,
        "closing took {:?}",
        started.elapsed()
    );
    assert_eq!(
        waiting.await.unwrap().unwrap_err().kind(),
        Kind::BusUnreachable
    );
    assert_eq!(
        producer
            .deliver(TOPIC, 0, b"k", b"v")
            .await
            .unwrap_err()
            .kind(),
        Kind::BusUnreachable
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_record_of_a_partition_travels_alone() {
    let cluster = cluster(2);
    let mut sink = sink(&cluster);
    // "o-1" belongs to one partition of two, "o-2" to the other.
    for ticket in 0..50 {
        let key = if ticket % 2 == 0 { "o-1" } else { "o-2" };
        sink.enqueue(
            &record(key.as_bytes(), ticket.to_string().as_bytes()),
            Ticket(ticket),
        )
        .unwrap();
    }
    assert_eq!(
        in_librdkafka(&sink),
        1,
        "how many partitions there are is not known"
    );
    let mut deliveries = delivered(&mut sink, 1).await;
    assert_eq!(in_librdkafka(&sink), 2, "one for each partition");
    deliveries.append(&mut delivered(&mut sink, 49).await);
    assert_eq!(acked(&deliveries), (0..50).collect::<Vec<_>>());
    let read = read(&cluster, 2, 50);
    for partition in 0..2 {
        let numbers: Vec<u64> = numbers(&read)
            .into_iter()
            .zip(&read)
            .filter(|(_, it)| it.partition == partition)
            .map(|(n, _)| n)
            .collect();
        assert!(numbers.is_sorted() && numbers.len() == 25, "{numbers:?}");
    }
    // What is acked is no longer in librdkafka.
    cluster.broker_down(-1).unwrap();
    for ticket in 50..100 {
        sink.enqueue(&record(b"o-1", b""), Ticket(ticket)).unwrap();
    }
    assert_eq!(in_librdkafka(&sink), 50, "open from now on");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_that_does_not_say_where_the_record_lies_is_no_delivery() {
    let cluster = cluster(1);
    let mut sink = sink(&cluster);
    open(&mut sink).await;
    // librdkafka takes this for a success.
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_DUPLICATE_SEQUENCE_NUMBER],
    );
    enqueue_numbers(&mut sink, 2..3);
    let failed = delivered(&mut sink, 1).await;
    let Delivery::Failed(Ticket(2), error) = &failed[0] else {
        panic!("acked")
    };
    assert_eq!(error.kind(), Kind::BusUnreachable);
    assert!(error.cause().contains("without an offset"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_without_a_key_go_to_every_partition() {
    let cluster = cluster(3);
    let mut sink = sink(&cluster);
    for ticket in 0..30 {
        sink.enqueue(
            &Record {
                key: None,
                ..record(b"", b"x")
            },
            Ticket(ticket),
        )
        .unwrap();
    }
    delivered(&mut sink, 30).await;
    let placed = read(&cluster, 3, 30);
    for partition in 0..3 {
        assert!(
            placed.iter().any(|record| record.partition == partition),
            "none in partition {partition}"
        );
    }
}

async fn transactional(cluster: &Cluster) -> Result<KafkaSink> {
    let of = Transactional {
        id: "walrelay-7-orders".to_owned(),
        timeout: Duration::from_secs(10),
    };
    KafkaSink::transactional(&config(cluster.bootstrap_servers(), &[]), &of).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_is_refused_ends_the_producer_and_says_who_took_over() {
    let cluster = cluster(1);
    let mut sink = transactional(&cluster).await.unwrap();
    enqueue_numbers(&mut sink, 0..1);
    delivered(&mut sink, 1).await;
    cluster.request_errors(
        RDKafkaApiKey::EndTxn,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_PRODUCER_FENCED],
    );
    let error = sink
        .producer()
        .commit(TOPIC, 0, b"position", b"behind it")
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::BusUnreachable);
    assert!(
        error
            .cause()
            .contains("another relay of the slot took over"),
        "{error}"
    );
    let refused = sink
        .enqueue(&record(b"o-1", b"later"), Ticket(1))
        .unwrap_err();
    assert!(matches!(refused, EnqueueError::Finished), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_we_may_not_use_is_a_refusal_with_the_acl_it_needs() {
    let cluster = cluster(1);
    let refusal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
    cluster.request_errors(RDKafkaApiKey::InitProducerId, &[refusal]);
    let error = transactional(&cluster).await.err().unwrap();
    assert_eq!(error.kind(), Kind::BusRefused);
    assert!(
        error
            .what_to_do()
            .unwrap()
            .ends_with("--transactional-id walrelay-7-orders"),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_property_bounds_how_long_a_missing_topic_is_waited_for() {
    const BOUND: Duration = Duration::from_secs(1);
    let cluster = cluster(1);
    let bound = BOUND.as_millis().to_string();
    let properties = [
        ("allow.auto.create.topics", "false"),
        ("topic.metadata.propagation.max.ms", bound.as_str()),
    ];
    let mut sink = KafkaSink::connect(&config(cluster.bootstrap_servers(), &properties)).unwrap();
    let missing = Record {
        topic: "nowhere",
        ..record(b"o-1", b"1")
    };
    let began = Instant::now();
    sink.enqueue(&missing, Ticket(0)).unwrap();
    let [Delivery::Failed(_, error)] = &delivered(&mut sink, 1).await[..] else {
        panic!("it was not refused")
    };
    assert_eq!(error.kind(), Kind::TopicRefused, "{error}");
    assert!(
        (BOUND..4 * BOUND).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_a_broker_knows_was_not_refused_as_missing() {
    let cluster = cluster(1);
    let config = config(cluster.bootstrap_servers(), &[]);
    let of = |topic: &str, code| {
        faults::explain(
            code,
            Subject {
                topic: Some(topic),
                ..Subject::default()
            },
        )
    };
    let known = unless_there(of(TOPIC, RDKafkaErrorCode::UnknownTopic), &config).await;
    assert_eq!(known.kind(), Kind::BusUnreachable, "{known}");
    for error in [
        of("elsewhere", RDKafkaErrorCode::UnknownTopic),
        of(TOPIC, RDKafkaErrorCode::TopicAuthorizationFailed),
    ] {
        assert_eq!(unless_there(error.clone(), &config).await, error);
    }
}

/// Requests with records that the sink has sent, once the statistics tell of all of them.
async fn produced(sink: &KafkaSink) -> u64 {
    let told = &sink.inner.shared.pace.produced;
    let before = told.lock().len();
    let all = async {
        // The next statistics may have been made before the last request.
        while told.lock().len() < before + 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, all)
        .await
        .expect("no statistics");
    told.lock().last().copied().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_grow_with_partitions_and_not_with_what_waits_for_their_opening() {
    const EACH: i32 = 50;
    for partitions in [4, 64] {
        let cluster = cluster(partitions);
        let servers = cluster.bootstrap_servers();
        let mut options = Options::producer(&config(servers, &[])).unwrap();
        // Longer than the sink takes to hand over what has waited.
        options.client.set("linger.ms", "50");
        options.client.set("statistics.interval.ms", "100");
        let mut sink = KafkaSink::with_options(options).unwrap();
        let records = partitions * EACH;
        for number in 0..records {
            let to = Record {
                partition: Some(number % partitions),
                ..record(b"k", b"v")
            };
            sink.enqueue(&to, Ticket(u64::try_from(number).unwrap()))
                .unwrap();
        }
        delivered(&mut sink, usize::try_from(records).unwrap()).await;
        let requests = produced(&sink).await;
        // One opens a partition, the next has the rest; now and then the rest is in two.
        let most = 3 * u64::try_from(partitions).unwrap();
        assert!(requests <= most, "{requests} for {partitions} partitions");
        sink.close().await;
    }
}

/// What waits for a time of day waits for long once the clock was set back.
#[tokio::test(start_paused = true)]
async fn a_question_that_does_not_end_is_left() {
    let (ends, ended) = std::sync::mpsc::channel();
    let question = tokio::spawn(off_runtime(move || {
        ended.recv().unwrap();
        Ok(())
    }));
    tokio::task::yield_now().await;
    tokio::time::advance(ANSWER_MAX - Duration::from_secs(1)).await;
    assert!(!question.is_finished());
    tokio::time::advance(Duration::from_secs(2)).await;
    let error = question.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::BusUnreachable);
    assert!(error.what_to_do().is_some_and(|fix| fix.contains("clock")));
    ends.send(()).unwrap();
    off_runtime(|| Ok(())).await.unwrap();
}
