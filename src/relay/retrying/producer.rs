//! The producer of a pass over events that wait, and the records it sends.

use std::collections::HashMap;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use crate::config::{Config, OutboxConfig, RetryConfig, max_attempts};
use crate::error::{Disposition, Error, Kind, NextCommand, Remedy, Result};
use crate::event::RowId;
use crate::event::{Place, Polled};
use crate::ledger::Ticket;
use crate::relay::stall_watchdog::StallGuard;
use crate::route::{OwnedRecord, Router};
use crate::sink::{AnySink, Delivery, EnqueueError, Sink as _};
use crate::state::Stored;
use crate::upkeep::parked::{BEHIND, Held};

/// How long acks are waited for: a topic that is not there is known to be missing after half of it.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// See the module's documentation.
pub(super) struct RetryProducer<'a> {
    config: &'a Config,
    stored: &'a Stored,
    /// Gives the producer up should the process stand still.
    beside: Option<&'a StallGuard>,
    sink: Option<AnySink>,
    /// The ticket of the next record: a sink never sees one twice.
    next: u64,
    /// By outbox: what its records are made with.
    routes: HashMap<usize, (OutboxConfig, Router)>,
    /// Topics that refused a record in this round, and what they said.
    refusing: HashMap<String, Error>,
}

/// What is known of an event that waits once its record is made.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) id: i64,
    pub(super) version: String,
    pub(super) row: RowId,
    pub(super) key: Option<Vec<u8>>,
    pub(super) place: Place,
    /// How often it was tried.
    pub(super) attempts: u32,
    /// When it is tried again.
    pub(super) retry: RetryConfig,
}

/// What to do about an event that cannot be made again of what was kept of it.
pub(super) fn replay_instead() -> Remedy {
    Remedy::from("drop it with ")
        .and(NextCommand::new("parked drop"))
        .and(", and publish its row with ")
        .and(NextCommand::new("replay").flag("id"))
}

/// Why the next of some records was not sent.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) error: Error,
    /// Whether it is known to be about this one, and no other it was sent with.
    pub(super) is_certain: bool,
    /// Whether a person has been told that of another.
    pub(super) is_told: bool,
}

/// What came of sending records.
#[derive(Debug)]
pub(super) struct Sent {
    /// Of each whether Kafka has it.
    pub(super) acked: Vec<bool>,
    /// Why the first that it has not was refused; or what is about no record: Kafka is away, or refuses us.
    pub(super) ended: Result<Option<Refusal>>,
}

impl<'a> RetryProducer<'a> {
    pub(super) fn new(config: &'a Config, stored: &'a Stored, beside: Option<&'a StallGuard>) -> RetryProducer<'a> {
        let (routes, refusing) = (HashMap::new(), HashMap::new());
        RetryProducer { config, stored, beside, sink: None, next: 0, routes, refusing }
    }

    /// From here on it is up to the topics again.
    pub(super) fn forget_refusals(&mut self) {
        self.refusing.clear();
    }

    pub(super) fn item(&self, held: &Held) -> Candidate {
        let event = &held.event;
        let column = self.config.outboxes.get(event.row.outbox).and_then(|outbox| outbox.max_attempts.as_deref());
        let max = column.and_then(|column| event.text(column)).and_then(max_attempts);
        Candidate {
            id: held.id,
            version: held.version.clone(),
            row: event.row.clone(),
            key: event.key.clone(),
            place: event.place,
            attempts: if held.class == BEHIND { 0 } else { held.attempts },
            retry: self.config.delivery.retry.within(max),
        }
    }

    /// The records of these events up to the first that cannot be sent, and why. What was read is let go of one by one.
    ///
    /// # Errors
    /// What is about the whole outbox.
    pub(super) fn route(&mut self, held: Vec<Held>) -> Result<(Vec<OwnedRecord>, Option<Refusal>)> {
        let mut records = Vec::with_capacity(held.len());
        for held in held {
            let unfit = match self.record(&held)? {
                Err(error) => Some(Refusal { error, is_certain: true, is_told: false }),
                Ok(record) => {
                    let refused = record.with_record(|record| self.refusing.get(record.topic).cloned());
                    if refused.is_none() {
                        records.push(record);
                    }
                    refused.map(|error| Refusal { error, is_certain: true, is_told: true })
                }
            };
            if unfit.is_some() {
                return Ok((records, unfit));
            }
        }
        Ok((records, None))
    }

    fn record(&mut self, held: &Held) -> Result<Result<OwnedRecord>> {
        let event = &held.event;
        if !self.routes.contains_key(&event.row.outbox) {
            self.routes.insert(event.row.outbox, route_of(self.config, self.stored, event.row.outbox)?);
        }
        let Some((outbox, router)) = self.routes.get_mut(&event.row.outbox) else { return Err(no_such_outbox()) };
        let mut polled = match Polled::new(outbox, held.described()) {
            Ok(polled) => polled,
            Err(column) => {
                let cause = format!("column {column} was not kept when the event was parked");
                return Ok(Err(Error::new(Kind::Event, cause).remedy(replay_instead())));
            }
        };
        let texts: Vec<Option<&[u8]>> = event.columns.iter().map(|column| column.text.as_deref()).collect();
        let made = polled.event(event.place, event.row.outbox, texts.into_iter());
        let Ok(mut made) = made else {
            return Ok(Err(Error::new(Kind::Event, "the stored columns of the event make no row")));
        };
        made.committed_at_us = event.committed_at_us;
        Ok(match router.route(&made) {
            Ok(routed) => Ok(routed.with_record(OwnedRecord::of)),
            Err(error) => Err(error.into_error(&self.config.source.slot)),
        })
    }

    /// Sends records and waits for their acks.
    pub(super) async fn send(&mut self, records: &[OwnedRecord]) -> Sent {
        let mut acked = vec![false; records.len()];
        let ended = if records.is_empty() { Ok(None) } else { self.send_all(records, &mut acked).await };
        if let Ok(Some(Refusal { error, .. })) = &ended {
            self.refusing.extend(error.topic().map(|topic| (topic.to_owned(), error.clone())));
        }
        Sent { acked, ended }
    }

    async fn send_all(&mut self, records: &[OwnedRecord], acked: &mut [bool]) -> Result<Option<Refusal>> {
        let until = Instant::now() + SEND_TIMEOUT;
        let mut sink = match self.sink.take() {
            Some(sink) => sink,
            None => {
                let config = self.config.clone();
                // Files are read for it, and everybody else shares the thread.
                let made = spawn_blocking(move || AnySink::connect(&config)).await;
                made.map_err(|error| Error::new(Kind::Bug, error))??
            }
        };
        if let Some(beside) = self.beside {
            beside.guard(Some(sink.handle()));
            // Only what is in a queue is given up, and nothing is put there without this.
            beside.check()?;
        }
        let sent = sent(&mut sink, self.next, records, acked, until).await;
        self.next += records.len() as u64;
        match &sent {
            Ok((_, true)) => self.sink = Some(sink),
            Ok((_, false)) | Err(_) => sink.close().await,
        }
        sent.map(|(refusal, _)| refusal)
    }

    pub(super) async fn end(self) {
        if let Some(sink) = self.sink {
            sink.close().await;
        }
    }
}

/// What records of an outbox are made with.
fn route_of(config: &Config, stored: &Stored, outbox: usize) -> Result<(OutboxConfig, Router)> {
    let outbox = config.outboxes.get(outbox).ok_or_else(no_such_outbox)?;
    // How often it may be tried is no part of the record, and was not kept of one that waited before that was asked for.
    let mut outbox = OutboxConfig { max_attempts: None, ..outbox.clone() };
    outbox.need_only_routed();
    let mut router = Router::new(&outbox).map_err(|error| Error::new(Kind::Bug, error))?;
    router.set_origin(&stored.server.system_identifier, stored.server.timeline);
    Ok((outbox, router))
}

fn no_such_outbox() -> Error {
    Error::new(Kind::Bug, "a parked event is of an outbox that is not configured")
}

/// As [`RetryProducer::send`], and whether the producer goes on. One record is sent apart, so that it does when that is refused.
async fn sent(
    sink: &mut AnySink,
    base: u64,
    records: &[OwnedRecord],
    acked: &mut [bool],
    until: Instant,
) -> Result<(Option<Refusal>, bool)> {
    let away = || Error::new(Kind::KafkaUnreachable, "Kafka did not ack parked events");
    let (mut failure, mut deliveries, mut next) = (None, Vec::new(), 0);
    loop {
        while let Some(record) = records.get(next).filter(|_| failure.is_none()) {
            let ticket = Ticket(base + next as u64);
            let enqueued = record.with_record(|record| match records.len() {
                1 => sink.enqueue_apart(record, ticket),
                _ => sink.enqueue(record, ticket),
            });
            match enqueued {
                Ok(()) => next += 1,
                Err(EnqueueError::Full | EnqueueError::Finished) => break,
                Err(EnqueueError::Refused(error)) => failure = Some(error),
            }
        }
        // What was enqueued before a refusal is still waited for.
        let first = acked.iter().position(|acked| !acked).unwrap_or(records.len());
        if first == next && (failure.is_some() || next == records.len()) {
            return judged(failure, true, true);
        }
        timeout_at(until, sink.deliveries(&mut deliveries)).await.map_err(|_| away())?;
        let mut ended = None;
        for delivery in deliveries.drain(..) {
            match delivery {
                Delivery::Acked(ticket) => {
                    let place = usize::try_from(ticket.0.wrapping_sub(base)).unwrap_or(usize::MAX);
                    acked.get_mut(place).into_iter().for_each(|acked| *acked = true);
                }
                Delivery::Refused(_, error) => _ = ended.get_or_insert((error, true)),
                // The first says most.
                Delivery::Failed(_, error) => _ = ended.get_or_insert((error, false)),
            }
        }
        if let Some((error, goes_on)) = ended {
            return judged(Some(error), records.len() == 1, goes_on);
        }
    }
}

/// What is about no record is no refusal of one.
fn judged(failure: Option<Error>, is_certain: bool, goes_on: bool) -> Result<(Option<Refusal>, bool)> {
    match failure {
        Some(error) if matches!(error.kind().disposition(), Disposition::Retry | Disposition::Halt) => Err(error),
        failure => Ok((failure.map(|error| Refusal { error, is_certain, is_told: false }), goes_on)),
    }
}
