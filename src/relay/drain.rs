//! The wait for acks of what is in flight, where nothing else goes on: before the table is read, after an error, and when a
//! relay is told to stop while Postgres is away (P10).

use std::time::Duration;

use tokio::time::Instant;

use super::publisher::Publisher;
use super::shared_loop::RETRY_INTERVAL;
use super::stop::{Stop, StopSignal};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::sink::Sink;
use crate::upkeep::Marker;

/// Waits until everything taken in is acked, until `until`, or until told to leave at once, and says whether it is. A
/// producer that fails ends it too: of what lies behind the failure nothing will ever be acked.
///
/// Nothing is stored and nothing confirmed: without a stream from the slot another relay may have it already.
///
/// # Errors
/// A delivery that failed in a way that needs a person; see `Publisher::delivered`.
pub(crate) async fn drain<S: Sink>(
    publisher: &mut Publisher<S>,
    until: Instant,
    stop: &mut StopSignal,
) -> Result<bool> {
    loop {
        if let Err(error) = publisher.delivered().and_then(|()| publisher.retry_pending()) {
            if error.kind().halts() {
                return Err(error);
            }
            tracing::warn!(event = "last_acks_failed", %error, "Kafka failed while the last acks were waited for");
            return Ok(false);
        }
        let now = Instant::now();
        if publisher.is_drained() || now >= until {
            return Ok(publisher.is_drained());
        }
        // A sink that is full may have room again without a delivery.
        let again = if publisher.is_pending() { until.min(now + RETRY_INTERVAL) } else { until };
        tokio::select! {
            biased;
            () = stop.at_least(Stop::Now) => return Ok(false),
            () = publisher.receive_deliveries() => {}
            () = tokio::time::sleep_until(again) => {}
        }
    }
}

/// How long marking may take where nothing goes on meanwhile.
const WRITE_BACK_TIMEOUT: Duration = Duration::from_secs(10);

/// Marks or deletes the rows that were acked, where that is configured.
pub(super) async fn write_back<S: Sink>(publisher: &mut Publisher<S>, config: &Config) -> Result<()> {
    if publisher.write_backs.is_empty() {
        return Ok(());
    }
    // What a session did not come to the end of.
    publisher.write_backs.abandon();
    let Some(marker) = Marker::of(config).await? else { return Ok(()) };
    while let Some(batch) = publisher.write_backs.begin(usize::MAX, publisher.ledger.delivered()) {
        let settled = tokio::time::timeout(WRITE_BACK_TIMEOUT, marker.settle(&batch)).await;
        settled
            .map_err(|_| Error::new(Kind::PostgresUnreachable, "rows that were acked could not be marked in time"))??;
        publisher.write_backs.finish();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DeliveryConfig;
    use crate::decode::{Value, wire};
    use crate::event::tests::{COLUMNS, outbox};
    use crate::ledger::{Limits, Ticket};
    use crate::position::{Lsn, Position};
    use crate::relay::pipeline::Pipeline;
    use crate::relay::publisher::Setup;
    use crate::relay::stop::stop_channel;
    use crate::route::Record;
    use crate::sink::{Delivery, EnqueueError};
    use std::sync::{Arc, Mutex};

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// Takes one record at a time, and says of it what the test wants.
    #[derive(Debug, Default, Clone)]
    struct OneAtATime(Arc<Mutex<Queue>>);

    #[derive(Debug, Default)]
    struct Queue {
        taken: Option<(Ticket, Instant)>,
        /// How the next one fails, if it does.
        fails: Option<Kind>,
        /// Whether the broker says anything at all.
        mute: bool,
    }

    impl Sink for OneAtATime {
        fn enqueue(&mut self, _: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
            let mut queue = self.0.lock().unwrap();
            if queue.taken.is_some() {
                return Err(EnqueueError::Full);
            }
            queue.taken = Some((ticket, Instant::now()));
            Ok(())
        }

        /// A second after the record was taken.
        async fn deliveries(&mut self, into: &mut Vec<Delivery>) {
            let taken = self.0.lock().unwrap().taken;
            let Some((ticket, at)) = taken else { return std::future::pending().await };
            tokio::time::sleep_until(at + Duration::from_secs(1)).await;
            let (fails, mute) = {
                let queue = self.0.lock().unwrap();
                (queue.fails, queue.mute)
            };
            if mute {
                return std::future::pending().await;
            }
            self.0.lock().unwrap().taken = None;
            into.push(match fails {
                Some(kind) => Delivery::Failed(ticket, Error::new(kind, "the test failed it")),
                None => Delivery::Acked(ticket),
            });
        }
    }

    /// A pipeline with one event in flight and one pending.
    fn pipeline(sink: &OneAtATime) -> Pipeline<OneAtATime> {
        let setup = Setup {
            slot: "orders".parse().unwrap(),
            outboxes: vec![outbox()],
            limits: Limits { events: 10, bytes: 10_000, each: 0 },
            delivery: DeliveryConfig::default(),
        };
        let mut pipeline =
            Pipeline::new(&setup, Position::default(), Position::default(), None, sink.clone(), Duration::ZERO)
                .unwrap();
        let row = [&b"7"[..], b"order", b"o-1", b"Placed", b"{}"].map(Value::Text);
        let row = wire::insert(16_384, &row);
        for message in [wire::begin(100, 9, 1), wire::relation(16_384, "public", "outbox", &COLUMNS), row.clone(), row]
        {
            pipeline.data(Lsn::new(5), &message).unwrap();
        }
        assert!(pipeline.publisher.is_pending() && pipeline.publisher.ledger.in_flight_events() == 1);
        pipeline
    }

    /// What comes of a drain, and how long it took.
    async fn drained(sink: OneAtATime) -> (Result<bool, Kind>, Duration) {
        let (_stopper, mut stop) = stop_channel();
        let (mut pipeline, began) = (pipeline(&sink), Instant::now());
        let ended = drain(&mut pipeline.publisher, began + TIMEOUT, &mut stop).await.map_err(|error| error.kind());
        (ended, began.elapsed())
    }

    fn sink(fails: Option<Kind>, mute: bool) -> OneAtATime {
        OneAtATime(Arc::new(Mutex::new(Queue { fails, mute, taken: None })))
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_waits_for_acks_of_all_records_until_the_deadline() {
        let (acked, took) = drained(sink(None, false)).await;
        assert_eq!(acked, Ok(true));
        assert!((Duration::from_secs(2)..TIMEOUT).contains(&took), "{took:?}");
        assert_eq!(drained(sink(None, true)).await, (Ok(false), TIMEOUT), "the broker does not answer");
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_at_once_with_a_failed_producer_or_a_refused_record() {
        let (acked, took) = drained(sink(Some(Kind::KafkaUnreachable), false)).await;
        assert_eq!(acked, Ok(false));
        assert!(took < TIMEOUT, "{took:?}");
        assert_eq!(drained(sink(Some(Kind::Record), false)).await.0, Err(Kind::Record));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_ends_the_drain_at_once() {
        let (stopper, mut stop) = stop_channel();
        let (mut pipeline, began) = (pipeline(&sink(None, true)), Instant::now());
        let second = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            stopper.ask(Stop::Now);
        };
        let (acked, ()) = tokio::join!(drain(&mut pipeline.publisher, began + TIMEOUT, &mut stop), second);
        assert_eq!((acked, began.elapsed()), (Ok(false), Duration::from_secs(3)));
    }
}
