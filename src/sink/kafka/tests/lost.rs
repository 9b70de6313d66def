//! A producer that librdkafka has made forget every broker.

use super::*;
use crate::sink::fake::Fake;

/// A sink that has delivered to a broker, and has one more record for it, which was fenced until it was asked for the brokers.
async fn forgetful() -> (Fake, KafkaSink) {
    let fake = Fake::with(TOPIC);
    let mut sink =
        KafkaSink::connect(&config(fake.brokers(), &[("topic.metadata.refresh.interval.ms", "100")])).unwrap();
    acked(&open(&mut sink).await);
    fake.fence(true);
    enqueue_numbers(&mut sink, OPENED..OPENED + 1);
    let heard = async {
        while fake.told() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, heard).await.expect("nobody asked");
    fake.fence(false);
    (fake, sink)
}

/// What a version of librdkafka that finds its way by itself may do as well: deliver.
#[tokio::test]
async fn what_waits_in_a_producer_that_knows_of_no_broker_any_more_is_given_up() {
    let (fake, mut sink) = forgetful().await;
    let delivery = delivered(&mut sink, 1).await.remove(0);
    match &delivery {
        Delivery::Acked(_) => return,
        Delivery::Refused(..) => panic!("{delivery:?}"),
        Delivery::Failed(ticket, error) => {
            assert_eq!((*ticket, error.kind()), (Ticket(OPENED), Kind::KafkaUnreachable))
        }
    }
    let why = tokio::time::timeout(PATIENCE, sink.producer().unusable()).await.expect("it says why");
    assert_eq!(why.kind(), Kind::KafkaUnreachable);
    assert!(why.to_string().contains("answers others"), "{why}");
    // Whatever is handed to it all the same is not kept.
    let reply = tokio::time::timeout(PATIENCE, sink.producer().deliver(TOPIC, 0, b"k", b"v")).await.expect("an answer");
    assert_eq!(reply.unwrap_err().kind(), Kind::KafkaUnreachable);
    let taken = fake.taken();
    let mut next = KafkaSink::connect(&config(fake.brokers(), &[])).unwrap();
    acked(&open(&mut next).await);
    assert_eq!(fake.taken(), taken + OPENED.cast_signed());
}
