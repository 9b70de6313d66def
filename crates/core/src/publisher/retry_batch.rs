//! A batch of retries: the records of parked events, what of them the bus has, which event failed,
//! and when that one is tried again. No I/O: the program has a sink for them, waits for its
//! deliveries, and writes to the table what the batch came to.
//!
//! Which events a batch has is in [`super::retry_walk`].

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use super::judge::no_such_outbox;
use super::setup::Setup;
use crate::clock::millis;
use crate::config::{OutboxConfig, max_attempts};
use crate::error::{Disposition, Error, Kind, NextCommand, Remedy, Result};
use crate::event::Polled;
use crate::ledger::Ticket;
use crate::parked::{BEHIND, FailedAgain, Failure, ParkedRow};
use crate::position::ServerIdentity;
use crate::route::{OwnedRecord, Router};
use crate::sink::{Delivery, EnqueueError, Sink};

/// The retries of one pass through the parked events that are due.
#[derive(Debug)]
pub struct Retries {
    setup: Setup,
    server: ServerIdentity,
    /// By outbox: what its records are made with.
    routes: HashMap<usize, (OutboxConfig, Router)>,
    /// Topics that refused a record in this pass, and what they said; of a bus that refuses topics.
    refusing: HashMap<String, Error>,
    /// The ticket of the next record: a sink never sees one twice.
    next: u64,
}

/// Why an event failed once more.
#[derive(Debug)]
pub struct Refusal {
    /// What is wrong with it.
    pub error: Error,
    /// Whether it is known to be about this event, and no other it was sent with.
    pub is_certain: bool,
    /// Whether it was logged, for another event.
    pub is_logged: bool,
}

impl Refusal {
    fn certain(error: Error) -> Refusal {
        Refusal {
            error,
            is_certain: true,
            is_logged: false,
        }
    }
}

/// Events of an aggregate that are sent together, in their order.
#[derive(Debug)]
pub struct RetryBatch {
    /// The ticket of the first record.
    first: u64,
    records: Vec<OwnedRecord>,
    /// Whether a refusal leaves the producer be.
    is_apart: bool,
    enqueued: usize,
    acked: Vec<bool>,
    /// Why the event behind the records has none, or its topic would refuse it.
    unfit: Option<Refusal>,
    stopped: Option<Stopped>,
}

/// Why no further record is enqueued.
#[derive(Debug)]
struct Stopped {
    refusal: Refusal,
    /// Whether acks of the records before it are awaited.
    awaits_acks: bool,
    is_producer_finished: bool,
}

/// What a batch came to.
#[derive(Debug)]
pub struct RetryResult {
    /// Of each event that has a record, whether the bus has it.
    pub acked: Vec<bool>,
    /// Topics that took a record.
    pub accepting: BTreeSet<String>,
    /// Why the first event that the bus has not failed; or an error about no record: the bus is
    /// away, or refuses us.
    pub ended: Result<Option<Refusal>>,
    /// Whether the next batch can have the same producer.
    pub keeps_producer: bool,
}

impl Retries {
    /// Begins a pass; `server` is that of the parked events.
    pub fn new(setup: Setup, server: ServerIdentity) -> Retries {
        Retries {
            setup,
            server,
            routes: HashMap::new(),
            refusing: HashMap::new(),
            next: 0,
        }
    }

    /// An operator, who may have repaired a topic, asks for a retry: topics are tried again.
    pub fn asked(&mut self) {
        self.refusing.clear();
    }

    /// The batch of these events, up to the first that cannot be sent.
    ///
    /// # Errors
    /// They are about the whole outbox, and nothing is sent.
    pub fn batch(&mut self, events: &[ParkedRow]) -> Result<RetryBatch> {
        let mut records = Vec::with_capacity(events.len());
        let mut unfit = None;
        for held in events {
            match self.record(held)? {
                Ok(record) => match self.refusing.get(&record.topic) {
                    None => records.push(record),
                    Some(error) => {
                        unfit = Some(Refusal {
                            is_logged: true,
                            ..Refusal::certain(error.clone())
                        });
                    }
                },
                Err(error) => unfit = Some(Refusal::certain(error)),
            }
            if unfit.is_some() {
                break;
            }
        }
        let first = self.next;
        self.next += records.len() as u64;
        Ok(RetryBatch {
            first,
            // One record is sent apart, so that the producer goes on when that is refused.
            is_apart: records.len() == 1 || self.setup.refuses_each,
            enqueued: 0,
            acked: vec![false; records.len()],
            records,
            unfit,
            stopped: None,
        })
    }

    /// The record of an event, or why it has none.
    fn record(&mut self, held: &ParkedRow) -> Result<Result<OwnedRecord>> {
        let event = &held.event;
        let number = event.row.outbox;
        let (outbox, router) = match self.routes.entry(number) {
            Entry::Occupied(route) => route.into_mut(),
            Entry::Vacant(none) => none.insert(route_of(&self.setup, &self.server, number)?),
        };
        let mut polled = match Polled::new(outbox, held.described()) {
            Ok(polled) => polled,
            Err(column) => {
                let cause = format!("column {column} was not kept when the event was parked");
                return Ok(Err(Error::new(Kind::Event, cause).remedy(replay_instead())));
            }
        };
        let values = event.columns.iter().map(|column| column.text.as_deref());
        let Ok(mut made) = polled.event(event.place, number, values) else {
            let cause = "the stored columns of the event make no row";
            return Ok(Err(Error::new(Kind::Event, cause).remedy(replay_instead())));
        };
        made.committed_at_us = event.committed_at_us;
        Ok(match router.route(&made) {
            Ok(routed) => Ok(routed.with_record(OwnedRecord::of)),
            Err(error) => Err(error.into_error(&self.setup.slot, false)),
        })
    }

    /// The end of a batch that [is over](RetryBatch::is_over), or of one that `gone` ended: its
    /// producer is useless, or does not ack.
    pub fn end(&mut self, batch: RetryBatch, gone: Option<Error>) -> RetryResult {
        let RetryBatch {
            records,
            acked,
            unfit,
            stopped,
            ..
        } = batch;
        let is_finished = stopped.as_ref().is_some_and(|it| it.is_producer_finished);
        let refusal = stopped.map(|stopped| stopped.refusal);
        let whole = |refusal: &Refusal| {
            let disposition = refusal.error.kind().disposition();
            matches!(disposition, Disposition::Retry | Disposition::Halt)
        };
        let ended = match (gone, refusal) {
            (Some(error), _) => Err(error),
            (None, Some(refusal)) if whole(&refusal) => Err(refusal.error),
            (None, refusal) => Ok(refusal),
        };
        // A bus that answers for each record may take the next one of the topic.
        if let Ok(Some(Refusal { error, .. })) = &ended
            && let Some(topic) = error.topic().filter(|_| !self.setup.refuses_each)
        {
            self.refusing.insert(topic.to_owned(), error.clone());
        }
        let taken = records.into_iter().zip(&acked);
        let taken = taken.filter(|(_, acked)| **acked);
        RetryResult {
            accepting: taken.map(|(record, _)| record.topic).collect(),
            keeps_producer: ended.is_ok() && !is_finished,
            ended: ended.map(|refusal| refusal.or(unfit)),
            acked,
        }
    }

    /// What is written of an event that failed again: how often it was tried, and when it is next.
    pub fn failed(&self, held: &ParkedRow, error: &Error) -> FailedAgain {
        let row = &held.event.row;
        let attempts = if held.class == BEHIND {
            1
        } else {
            held.attempts.saturating_add(1)
        };
        let outbox = self.setup.outboxes.get(row.outbox);
        let column = outbox.and_then(|outbox| outbox.names.max_attempts.as_deref());
        let max = column.and_then(|column| held.event.text(column));
        let retry = self.setup.delivery.retry.within(max.and_then(max_attempts));
        let wait = match error.kind().disposition() {
            Disposition::RetryThenGiveUp => retry.wait(attempts, fastrand::f64()),
            Disposition::GiveUp | Disposition::Retry | Disposition::Halt => None,
        };
        let asked = error.retry_after.unwrap_or_default();
        FailedAgain {
            id: held.id,
            version: held.version.clone(),
            row: row.clone(),
            failure: Failure {
                attempts,
                ..Failure::of(error)
            },
            retry_in_ms: wait.map(|wait| millis(wait.max(asked))),
        }
    }
}

impl RetryBatch {
    /// Enqueues the next records, as long as `sink` has room and none was refused.
    pub fn enqueue(&mut self, sink: &mut impl Sink) {
        let stopped = &mut self.stopped;
        while let Some(record) = self
            .records
            .get(self.enqueued)
            .filter(|_| stopped.is_none())
        {
            let ticket = Ticket(self.first + self.enqueued as u64);
            let enqueued = record.with_record(|record| match self.is_apart {
                true => sink.enqueue_apart(record, ticket),
                false => sink.enqueue(record, ticket),
            });
            match enqueued {
                Ok(()) => self.enqueued += 1,
                Err(EnqueueError::Full | EnqueueError::Finished) => return,
                Err(EnqueueError::Refused(error)) => {
                    *stopped = Some(Stopped {
                        refusal: Refusal::certain(error),
                        awaits_acks: true,
                        is_producer_finished: false,
                    });
                }
            }
        }
    }

    /// Takes in delivery reports. A refused record leaves `sink`, with those behind it.
    pub fn delivered(&mut self, told: impl Iterator<Item = Delivery>, sink: &mut impl Sink) {
        let mut failed = None;
        for delivery in told {
            let (error, is_producer_finished) = match delivery {
                Delivery::Acked(ticket) => {
                    let place = usize::try_from(ticket.0.wrapping_sub(self.first));
                    let acked = place.ok().and_then(|place| self.acked.get_mut(place));
                    acked.into_iter().for_each(|acked| *acked = true);
                    continue;
                }
                Delivery::Refused(ticket, error) => {
                    // Those behind it are sent again with it.
                    sink.withdraw(ticket);
                    (error, false)
                }
                Delivery::Failed(_, error) => (error, true),
            };
            // The first says most.
            failed.get_or_insert(Stopped {
                refusal: Refusal {
                    is_certain: self.is_apart,
                    ..Refusal::certain(error)
                },
                awaits_acks: false,
                is_producer_finished,
            });
        }
        self.stopped = failed.or(self.stopped.take());
    }

    /// Whether nothing is sent or awaited any more.
    pub fn is_over(&self) -> bool {
        let acked = acked_first(&self.acked);
        match &self.stopped {
            Some(stopped) if !stopped.awaits_acks => true,
            Some(_) => acked == self.enqueued,
            None => acked == self.records.len(),
        }
    }
}

impl RetryResult {
    /// How many events come before the first that the bus has not.
    pub fn done(&self) -> usize {
        acked_first(&self.acked)
    }
}

/// How many come before the first that is not acked.
fn acked_first(acked: &[bool]) -> usize {
    acked.iter().take_while(|acked| **acked).count()
}

/// What to do about an event that cannot be made again of what was kept of it.
pub fn replay_instead() -> Remedy {
    let of_id = |name| NextCommand::new(name).option("id", "ID");
    Remedy::from("with its id in place of ID, drop it with `")
        .and(of_id("parked drop"))
        .and("`, and publish its row: ")
        .and(of_id("replay"))
}

fn route_of(
    setup: &Setup,
    server: &ServerIdentity,
    outbox: usize,
) -> Result<(OutboxConfig, Router)> {
    let outbox = setup.outboxes.get(outbox).ok_or_else(no_such_outbox)?;
    // These columns are no part of the record, and were not kept of one that was parked before they
    // were asked for.
    let mut outbox = OutboxConfig {
        log_columns: Vec::new(),
        ..outbox.clone()
    };
    outbox.names.max_attempts = None;
    outbox.names.traceparent = None;
    outbox.need_only_routed();
    let mut router = Router::new(&outbox).map_err(|error| Error::new(Kind::Bug, error))?;
    router.set_origin(&server.system_identifier, server.timeline);
    Ok((outbox, router))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DeliveryConfig;
    use crate::parked::ParkedEvent;
    use crate::publisher::tests::setup;
    use crate::route::Record;
    use crate::testing::{COLUMNS, Lab, outbox};

    /// A bus whose client refuses one record before it is sent.
    #[derive(Debug, Default)]
    struct Bus {
        refuses: Option<Ticket>,
        sent: Vec<Ticket>,
        apart: Vec<Ticket>,
        withdrawn: Vec<Ticket>,
    }

    impl Sink for Bus {
        fn enqueue(&mut self, _: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
            if self.refuses == Some(ticket) {
                return Err(EnqueueError::Refused(refused()));
            }
            self.sent.push(ticket);
            Ok(())
        }

        fn enqueue_apart(
            &mut self,
            record: &Record<'_>,
            ticket: Ticket,
        ) -> Result<(), EnqueueError> {
            self.apart.push(ticket);
            self.enqueue(record, ticket)
        }

        fn withdraw(
            &mut self,
            refused: Ticket,
        ) -> Vec<(Ticket, std::sync::Arc<crate::route::OwnedRecord>)> {
            self.withdrawn.push(refused);
            Vec::new()
        }

        async fn deliveries(&mut self, _: &mut Vec<Delivery>) {}
    }

    fn refused() -> Error {
        Error::new(Kind::Record, "refused")
    }

    fn retries() -> Retries {
        let setup = Setup {
            refuses_each: false,
            ..setup(DeliveryConfig::default())
        };
        Retries::new(setup, ServerIdentity::default())
    }

    fn held(id: i64) -> ParkedRow {
        let text = id.to_string();
        let values = [&text, "order", "1", "placed", "{}"].map(Some);
        let lab = Lab::new(&outbox(), &COLUMNS, &values);
        ParkedRow {
            id,
            event: ParkedEvent::of(&lab.event(), &COLUMNS.map(str::to_owned)),
            class: BEHIND.to_owned(),
            error: None,
            attempts: 0,
            is_dropped: false,
            version: String::new(),
        }
    }

    fn acked(ticket: u64) -> Delivery {
        Delivery::Acked(Ticket(ticket))
    }

    #[test]
    fn acks_before_a_record_that_the_client_refuses_are_awaited() {
        let mut retries = retries();
        let mut bus = Bus {
            refuses: Some(Ticket(1)),
            ..Bus::default()
        };
        let mut batch = retries.batch(&[held(1), held(2), held(3)]).unwrap();
        batch.enqueue(&mut bus);
        // None overtakes it.
        assert_eq!(bus.sent, [Ticket(0)]);
        assert!(!batch.is_over());
        batch.delivered([acked(0)].into_iter(), &mut bus);
        batch.enqueue(&mut bus);
        assert_eq!(bus.sent, [Ticket(0)]);
        assert!(batch.is_over());
        let result = retries.end(batch, None);
        assert_eq!(result.done(), 1);
        assert!(result.keeps_producer);
        let refusal = result.ended.unwrap().expect("a refusal");
        assert!(refusal.is_certain && !refusal.is_logged);
        assert!(bus.apart.is_empty());
    }

    #[test]
    fn a_batch_ends_before_an_event_without_a_record() {
        let mut retries = retries();
        let mut bus = Bus::default();
        let mut unfit = held(2);
        unfit.event.columns.clear();
        let mut batch = retries.batch(&[held(1), unfit, held(3)]).unwrap();
        batch.enqueue(&mut bus);
        assert_eq!(bus.sent, [Ticket(0)], "none overtakes it");
        batch.delivered([acked(0)].into_iter(), &mut bus);
        assert!(batch.is_over());
        let result = retries.end(batch, None);
        assert_eq!(result.done(), 1);
        assert!(result.ended.unwrap().is_some_and(|it| it.is_certain));
    }

    #[test]
    fn a_refusal_is_about_one_event_only_where_that_was_sent_apart() {
        for events in [1, 2] {
            let mut retries = retries();
            let mut bus = Bus::default();
            let held: Vec<_> = (1..=events).map(held).collect();
            let mut batch = retries.batch(&held).unwrap();
            batch.enqueue(&mut bus);
            assert_eq!(bus.apart.len(), usize::from(events == 1));
            let told = match events {
                1 => Delivery::Refused(Ticket(0), refused()),
                _ => Delivery::Failed(Ticket(0), refused()),
            };
            batch.delivered([told].into_iter(), &mut bus);
            assert!(batch.is_over());
            assert_eq!(bus.withdrawn.len(), usize::from(events == 1));
            let result = retries.end(batch, None);
            assert_eq!(result.done(), 0);
            assert_eq!(result.keeps_producer, events == 1);
            let refusal = result.ended.unwrap().expect("a refusal");
            assert_eq!(refusal.is_certain, events == 1);
        }
    }

    #[test]
    fn what_the_bus_has_behind_a_refused_record_is_known_and_not_done() {
        let mut retries = retries();
        let mut bus = Bus::default();
        let mut batch = retries.batch(&[held(1), held(2)]).unwrap();
        batch.enqueue(&mut bus);
        let told = [acked(1), Delivery::Failed(Ticket(0), refused())];
        batch.delivered(told.into_iter(), &mut bus);
        let result = retries.end(batch, None);
        assert_eq!(result.acked, [false, true]);
        assert_eq!(result.done(), 0);
    }

    #[test]
    fn a_topic_that_refuses_is_tried_once_until_somebody_asks() {
        let mut retries = retries();
        let mut bus = Bus::default();
        let mut batch = retries.batch(&[held(1)]).unwrap();
        batch.enqueue(&mut bus);
        let topic = batch.records[0].topic.clone();
        let error = Error::new(Kind::TopicRefused, "full").of_topic(&topic);
        batch.delivered([Delivery::Refused(Ticket(0), error)].into_iter(), &mut bus);
        let first = retries.end(batch, None).ended.unwrap().expect("a refusal");
        assert!(!first.is_logged);
        let next = retries.batch(&[held(2)]).unwrap();
        assert!(next.is_over(), "nothing is sent to it");
        let next = retries.end(next, None).ended.unwrap().expect("a refusal");
        assert!(next.is_logged && next.is_certain);
        retries.asked();
        assert!(!retries.batch(&[held(2)]).unwrap().is_over());
    }

    #[test]
    fn an_error_about_no_event_is_no_refusal() {
        let mut retries = retries();
        let mut bus = Bus::default();
        let mut batch = retries.batch(&[held(1)]).unwrap();
        batch.enqueue(&mut bus);
        let away = Error::new(Kind::BusUnreachable, "away");
        batch.delivered([Delivery::Failed(Ticket(0), away)].into_iter(), &mut bus);
        let result = retries.end(batch, None);
        assert_eq!(result.ended.unwrap_err().kind(), Kind::BusUnreachable);
        assert!(!result.keeps_producer);
        // The next producer sees no ticket twice.
        let mut batch = retries.batch(&[held(1)]).unwrap();
        batch.enqueue(&mut bus);
        assert_eq!(bus.sent, [Ticket(0), Ticket(1)]);
    }

    #[test]
    fn an_event_that_cannot_be_made_again_is_dropped_and_its_row_published() {
        for (is_kept, cause) in [(false, "was not kept"), (true, "make no row")] {
            let mut held = held(1);
            held.event.columns.retain_mut(|column| {
                column.text = None;
                is_kept
            });
            let mut retries = retries();
            let batch = retries.batch(&[held]).unwrap();
            assert!(batch.is_over());
            let refusal = retries.end(batch, None).ended.unwrap().expect("a refusal");
            assert!(refusal.error.cause().contains(cause), "{}", refusal.error);
            let fix = refusal.error.what_to_do().unwrap();
            assert!(fix.contains("parked drop --id ID`"), "{fix}");
            assert!(fix.contains("replay --id ID"), "{fix}");
        }
    }

    #[test]
    fn an_event_that_waited_behind_another_has_its_first_attempt_when_it_fails() {
        let retries = retries();
        let topic = Error::new(Kind::TopicRefused, "full");
        let first = retries.failed(&held(1), &topic);
        assert_eq!(first.failure.attempts, 1);
        assert!(first.retry_in_ms.is_some());
        let tried = ParkedRow {
            class: topic.kind().class().to_owned(),
            attempts: 3,
            ..held(1)
        };
        assert_eq!(retries.failed(&tried, &topic).failure.attempts, 4);
        // Nothing but a request heals a record that is refused.
        assert_eq!(retries.failed(&tried, &refused()).retry_in_ms, None);
    }
}
