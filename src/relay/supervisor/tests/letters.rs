//! A topic of dead letters that refuses.

use super::*;
use crate::telemetry::NotReady;

/// Takes what is for other topics than that of dead letters, which refuses as often as this says. Notes all it is offered.
#[derive(Debug)]
struct NoLetters((usize, RDKafkaErrorCode, At), Vec<(String, String)>, Vec<Delivery>);

impl Sink for NoLetters {
    fn enqueue(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        let NoLetters((refusals, code, at), offered, told) = self;
        let id = record.headers.first().and_then(|(_, id)| *id).unwrap_or_default();
        offered.push((record.topic.to_owned(), String::from_utf8_lossy(id).into_owned()));
        if record.topic == DeliveryConfig::default().dead_letter_topic && *refusals > 0 {
            *refusals -= 1;
            let subject = Subject { topic: Some(record.topic), ..Subject::default() };
            let error = explain(*code, subject);
            match at {
                At::Enqueue => return Err(EnqueueError::Refused(error)),
                At::Delivery => told.push(Delivery::Failed(ticket, error)),
            }
        } else {
            told.push(Delivery::Acked(ticket));
        }
        Ok(())
    }

    async fn deliveries(&mut self, into: &mut Vec<Delivery>) {
        into.append(&mut self.2);
    }
}

#[tokio::test(start_paused = true)]
async fn where_the_topic_of_dead_letters_refuses_everything_waits_with_growing_pauses_and_nothing_is_counted_twice() {
    for code in [UnknownTopicOrPartition, TopicAuthorizationFailed] {
        for at in [At::Enqueue, At::Delivery] {
            no_letters(code, at).await;
        }
    }
}

async fn no_letters(code: RDKafkaErrorCode, at: At) {
    let mut relay = relay("dead-letter");
    relay.config.outboxes[0] = crate::event::tests::outbox();
    let retry = &mut relay.config.delivery.retry;
    (retry.cap, retry.jitter_percent) = (Duration::from_secs(8), 0);
    let health = relay.telemetry.health.clone();
    for side in [Side::Postgres, Side::Kafka] {
        health.connection(side, true);
    }
    let refused = || matches!(health.not_ready(), Some(NotReady::DeadLettersRefused(_)));
    let setup = Setup::of(&relay.config);
    let (mut sink, mut waits, mut letters) = (NoLetters((9, code, at), Vec::new(), Vec::new()), Vec::new(), 0);
    let mut behind = PLACED;
    behind[0] = Value::Text(b"8");
    let mut bad = PLACED;
    bad[1] = Value::Null;
    loop {
        let start = Position::default();
        let mut pipeline = Pipeline::new(&setup, start, start, None, sink, Duration::ZERO).unwrap();
        pipeline.publisher.quarantine = relay.producer.quarantine.take_over();
        pipeline.data(Lsn::new(5), &wire::begin(100, 9, 1)).unwrap();
        pipeline.data(Lsn::new(5), &wire::relation(16_384, "public", "outbox", &COLUMNS)).unwrap();
        let mut failure = None;
        for row in [bad, behind] {
            if pipeline.publisher.has_room() && failure.is_none() {
                failure = pipeline.data(Lsn::new(5), &wire::insert(16_384, &row)).err();
            }
        }
        pipeline.publisher.receive_deliveries().await;
        failure = failure.or(pipeline.publisher.delivered().err());
        letters += pipeline.publisher.counts().dead_lettered;
        relay.producer.quarantine = std::mem::take(&mut pipeline.publisher.quarantine);
        sink = pipeline.publisher.sink;
        sink.2.clear();
        tokio::time::advance(Duration::from_secs(3_600)).await;
        let Some(error) = failure else { break };
        let wait = failed(&mut relay, &error).unwrap();
        waits.push(wait.as_secs());
        assert!(refused() && error.what_to_do().is_some_and(|fix| fix.contains("walrelay-dead-letters")), "{error:?}");
    }
    assert_eq!(waits, [1, 2, 4, 8, 8, 8, 8, 8, 8]);
    assert_eq!(letters, 1);
    let behind = sink.1.iter().filter(|(topic, _)| topic == TOPIC).count();
    assert_eq!(
        behind,
        usize::from(at == At::Delivery),
        "what is behind a letter that was refused is not sent with it again: {:?}",
        sink.1
    );
}
