use super::*;
use crate::sink::Transactional;

fn of() -> Transactional {
    Transactional { id: "walrelay-7-orders".to_owned(), timeout: Duration::from_secs(10) }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_committed_ends_one_transaction_and_the_next_record_begins_another() {
    let cluster = cluster(1);
    let config = config(cluster.bootstrap_servers(), &[]);
    let mut sink = KafkaSink::transactional(&config, &of()).await.unwrap();
    for number in 0..3 {
        enqueue_numbers(&mut sink, number..number + 1);
        assert_eq!(acked(&delivered(&mut sink, 1).await), [number]);
        sink.producer().commit(TOPIC, 0, b"position", b"behind it").await.unwrap();
    }
    // A position alone.
    sink.producer().commit(TOPIC, 0, b"position", b"alone").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_is_refused_ends_the_producer_and_says_who_took_over() {
    let cluster = cluster(1);
    let config = config(cluster.bootstrap_servers(), &[]);
    let mut sink = KafkaSink::transactional(&config, &of()).await.unwrap();
    enqueue_numbers(&mut sink, 0..1);
    delivered(&mut sink, 1).await;
    cluster.request_errors(RDKafkaApiKey::EndTxn, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_PRODUCER_FENCED]);
    let error = sink.producer().commit(TOPIC, 0, b"position", b"behind it").await.unwrap_err();
    assert_eq!(error.kind(), Kind::KafkaUnreachable);
    assert!(error.cause().contains("another relay of the slot took over"), "{error}");
    let refused = sink.enqueue(&record(b"o-1", b"later"), Ticket(1)).unwrap_err();
    assert!(matches!(refused, EnqueueError::Finished), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_we_may_not_use_is_a_refusal_with_the_acl_it_needs() {
    let cluster = cluster(1);
    let config = config(cluster.bootstrap_servers(), &[]);
    let refusal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
    cluster.request_errors(RDKafkaApiKey::InitProducerId, &[refusal]);
    let error = KafkaSink::transactional(&config, &of()).await.err().unwrap();
    assert_eq!(error.kind(), Kind::KafkaRefused);
    assert!(error.what_to_do().unwrap().ends_with("--transactional-id walrelay-7-orders"), "{error:?}");
}
