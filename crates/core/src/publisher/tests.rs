//! Tests of a publisher whose bus refuses each record for itself.

use super::*;
use crate::config::DeliveryConfig;
use crate::lanes::{Lanes, Outcome};
use crate::ledger::Limits;
use crate::position::{Lsn, ServerIdentity};
use crate::stored::{Outboxes, Stored};
use crate::testing::{COLUMNS, Lab, outbox};

/// A bus whose queue holds one record.
#[derive(Debug)]
struct Bus(Lanes);

impl Sink for Bus {
    fn enqueue(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        self.0.enqueue(record, ticket)
    }

    fn withdraw(&mut self, refused: Ticket) -> Vec<(Ticket, Arc<OwnedRecord>)> {
        self.0.withdraw(refused)
    }

    async fn deliveries(&mut self, into: &mut Vec<Delivery>) {
        self.0.take_deliveries(into);
    }
}

/// Of one outbox, for a bus that refuses each record.
pub(crate) fn setup(delivery: DeliveryConfig) -> Setup {
    Setup {
        slot: "orders".parse().unwrap(),
        outboxes: vec![outbox()],
        limits: Limits {
            events: 10,
            bytes: 1 << 20,
            each: 0,
        },
        delivery,
        refuses_each: true,
    }
}

/// What is stored of slot `orders` on this timeline, at `lsn`.
pub(crate) fn stored(timeline: u32, lsn: u64) -> Stored {
    Stored {
        server: ServerIdentity {
            system_identifier: "7000".to_owned(),
            timeline,
        },
        slot: "orders".to_owned(),
        relay: String::new(),
        position: Position::at(Lsn::new(lsn)),
        cluster_id: None,
        outboxes: Outboxes {
            publication_oid: 10,
            ..Outboxes::default()
        },
        published: None,
        stream_only: Vec::new(),
        catch_up: None,
    }
}

/// A bus that acks everything.
#[derive(Debug, Default)]
pub(crate) struct AckingBus(Vec<Delivery>);

impl Sink for AckingBus {
    fn enqueue(&mut self, _: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        self.0.push(Delivery::Acked(ticket));
        Ok(())
    }

    async fn deliveries(&mut self, into: &mut Vec<Delivery>) {
        into.append(&mut self.0);
    }
}

fn publisher(on_error: OnError) -> Publisher<Bus> {
    let setup = setup(DeliveryConfig {
        on_error,
        ..DeliveryConfig::default()
    });
    let mut publisher = Publisher::new(&setup, Position::default(), Bus(Lanes::new(1, 1))).unwrap();
    publisher.ledger.begin(Lsn::new(0x64)).unwrap();
    publisher
}

/// An event of aggregate 1.
fn row(id: &str) -> Lab {
    let values = [id, "order", "1", "placed", "{}"].map(Some);
    Lab::new(&outbox(), &COLUMNS, &values)
}

/// The bus refuses the record that is on its way.
fn refuse(publisher: &mut Publisher<Bus>, kind: Kind, now: Instant) -> Result<()> {
    let lanes = &mut publisher.sink.0;
    let attempt = lanes.next(now).expect("a record");
    let error = Error::new(kind, "refused");
    lanes.ended(attempt.id, Outcome::Refused { error, after: None }, now);
    lanes.take_deliveries(&mut publisher.deliveries);
    publisher.delivered()
}

/// P2: who waits for the last acks offers what is pending again.
#[test]
fn a_record_that_waits_for_room_is_not_sent_behind_a_refused_one_that_halts() {
    let now = Instant::now();
    for (on_error, refusals) in [(OnError::Stop, 1), (OnError::DeadLetter, 2)] {
        let mut publisher = publisher(on_error);
        for id in ["a", "b"] {
            publisher.publish(&row(id).event(), now).unwrap();
        }
        assert!(publisher.is_pending());
        for number in 1..=refusals {
            let halted =
                refuse(&mut publisher, Kind::Record, now).is_err_and(|error| error.kind().halts());
            assert_eq!(halted, number == refusals, "{on_error:?}");
            publisher.retry_pending().unwrap();
        }
        assert!(publisher.sink.0.next(now).is_none(), "{on_error:?}");
    }
}

/// How to give the event up is said of those.
#[test]
fn a_record_that_was_tried_often_enough_and_ends_the_relay_is_of_one_event() {
    let now = Instant::now();
    let mut publisher = publisher(OnError::Stop);
    publisher.setup.delivery.retry.attempts = 0;
    publisher.publish(&row("a").event(), now).unwrap();
    let error = refuse(&mut publisher, Kind::TopicRefused, now).unwrap_err();
    assert_eq!(error.kind(), Kind::BusRefused);
    assert!(error.is_of_event);
}

/// A topic that refuses has an answer of the bus: that servers are out of reach is no part of it.
#[test]
fn a_failure_names_the_place_of_a_row_and_what_helps_its_topic() {
    let now = Instant::now();
    for on_error in [OnError::Stop, OnError::Park] {
        let mut publisher = publisher(on_error);
        publisher.publish(&row("a").event(), now).unwrap();
        let error = Error::new(Kind::TopicRefused, "no such topic")
            .of_topic("orders")
            .remedy("create it");
        let first = Ticket(0);
        publisher.deliveries = vec![Delivery::Failed(first, error)];
        let error = publisher.delivered().unwrap_err();
        let said = match on_error {
            OnError::Park => "parking events for topic orders: no such topic",
            OnError::Stop | OnError::DeadLetter | OnError::Skip => {
                "event at 0/64, index 0: no such topic"
            }
        };
        assert_eq!(error.to_string(), said);
        assert_eq!(error.what_to_do().as_deref(), Some("create it"));
    }
}
