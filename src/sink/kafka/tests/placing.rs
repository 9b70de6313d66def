//! Records with a partition of their own, or without a key.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn records_without_a_key_go_to_every_partition() {
    let cluster = cluster(3);
    let mut sink = sink(&cluster);
    let mut deliveries = Vec::new();
    for ticket in 0..30 {
        let record = Record { topic: TOPIC, key: None, value: Some(b"x"), headers: &[], ..Record::default() };
        while sink.enqueue(&record, Ticket(ticket)).is_err() {
            tokio::time::timeout(PATIENCE, sink.deliveries(&mut deliveries)).await.unwrap();
        }
    }
    delivered_too(&mut sink, deliveries, 30).await;
    let placed = read(&cluster, 3, 30);
    for partition in 0..3 {
        assert!(placed.iter().any(|record| record.partition == partition), "none in partition {partition}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_may_have_a_partition_and_a_timestamp_of_its_own() {
    let cluster = cluster(3);
    let mut sink = sink(&cluster);
    let mut deliveries = Vec::new();
    for ticket in 0..10 {
        let own = Record { partition: Some(2), timestamp_ms: Some(1_714_979_289_123), ..record(b"o-1", b"x") };
        while sink.enqueue(&own, Ticket(ticket)).is_err() {
            tokio::time::timeout(PATIENCE, sink.deliveries(&mut deliveries)).await.unwrap();
        }
    }
    delivered_too(&mut sink, deliveries, 10).await;
    for read in read(&cluster, 3, 10) {
        assert_eq!((read.partition, read.timestamp_ms), (2, Some(1_714_979_289_123)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_is_not_there_is_a_refusal() {
    let cluster = cluster(1);
    let mut sink = sink(&cluster);
    open(&mut sink).await;
    let nowhere = Record { partition: Some(7), ..record(b"o-1", b"x") };
    let error = match sink.enqueue(&nowhere, Ticket(9)) {
        Err(EnqueueError::Refused(error)) => error,
        Err(error) => panic!("{error:?}"),
        Ok(()) => match delivered(&mut sink, 1).await.remove(0) {
            Delivery::Refused(_, error) | Delivery::Failed(_, error) => error,
            Delivery::Acked(_) => panic!("acked"),
        },
    };
    assert_eq!(error.kind(), Kind::Record);
}
