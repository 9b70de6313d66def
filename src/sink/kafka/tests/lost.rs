//! A producer that librdkafka has made forget every broker.

use super::*;
use crate::sink::fake::Fake;

/// A sink that has delivered a record to a broker, which then was fenced until every client had heard of no broker.
async fn forgetful(waiting: Option<u64>) -> (Fake, KafkaSink) {
    let fake = Fake::with(TOPIC);
    let mut sink =
        KafkaSink::connect(&config(fake.brokers(), &[("topic.metadata.refresh.interval.ms", "100")])).unwrap();
    acked(&open(&mut sink).await);
    fake.fence(true);
    if let Some(number) = waiting {
        enqueue_numbers(&mut sink, number..number + 1);
    }
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
    let (fake, mut sink) = forgetful(Some(OPENED)).await;
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
    assert!(why.to_string().contains("starting with a new one"), "{why}");
    // Whatever is handed to it all the same is not kept.
    let reply = tokio::time::timeout(PATIENCE, sink.producer().deliver(TOPIC, 0, b"k", b"v")).await.expect("an answer");
    assert_eq!(reply.unwrap_err().kind(), Kind::KafkaUnreachable);
    let mut next = KafkaSink::connect(&config(fake.brokers(), &[])).unwrap();
    acked(&open(&mut next).await);
}

#[tokio::test]
async fn a_producer_that_has_nothing_to_do_says_that_it_is_lost() {
    let (_fake, mut sink) = forgetful(None).await;
    let unusable = sink.producer();
    let lost = tokio::time::timeout(PATIENCE, unusable.unusable());
    let heals = async {
        // The same record, until it finds its way: not before somebody could have noticed that it does not.
        tokio::time::sleep(PATIENCE - Duration::from_secs(5)).await;
        enqueue_numbers(&mut sink, OPENED..OPENED + 1);
        delivered(&mut sink, 1).await
    };
    tokio::select! {
        why = lost => assert_eq!(why.expect("it is noticed").kind(), Kind::KafkaUnreachable),
        deliveries = heals => assert_eq!(acked(&deliveries), [OPENED]),
    }
}
