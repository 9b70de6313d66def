//! The producer of the retries, and the records it sends.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use crate::config::Config;
use crate::relay::stall_watchdog::StallGuard;
use crate::sink::{AnySink, BusSink as _};
use walrelay_core::config::OutboxConfig;
use walrelay_core::error::{Disposition, Error, Kind, NextCommand, Remedy, Result};
use walrelay_core::event::Polled;
use walrelay_core::ledger::Ticket;
use walrelay_core::parked::ParkedRow;
use walrelay_core::position::ServerIdentity;
use walrelay_core::route::{OwnedRecord, Router};
use walrelay_core::sink::{Delivery, EnqueueError, Sink as _};

/// How long acks are waited for: a topic that does not exist is known to be missing after a twelfth
/// of it.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct RetryProducer<'a> {
    config: &'a Config,
    server: &'a ServerIdentity,
    /// Gives the producer up should the process stand still.
    beside: Option<&'a StallGuard>,
    sink: Option<AnySink>,
    /// The ticket of the next record: a sink never sees one twice.
    next: u64,
    /// By outbox: what its records are made with.
    routes: HashMap<usize, (OutboxConfig, Router)>,
    /// Topics that refused a record in this round, and what they said; of a bus that refuses
    /// topics.
    pub(super) refusing: HashMap<String, Error>,
}

/// What to do about an event that cannot be made again of what was kept of it.
pub(super) fn replay_instead() -> Remedy {
    let of_id = |name| NextCommand::new(name).option("id", "ID");
    Remedy::from("with its id in place of ID, drop it with `")
        .and(of_id("parked drop"))
        .and("`, and publish its row: ")
        .and(of_id("replay"))
}

#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) error: Error,
    /// Whether it is known to be about this event, and no other it was sent with.
    pub(super) is_certain: bool,
    /// Whether it was logged, for another event.
    pub(super) is_logged: bool,
}

#[derive(Debug)]
pub(super) struct Sent {
    /// Of each event that has a record, whether the bus has it.
    pub(super) acked: Vec<bool>,
    pub(super) accepting: BTreeSet<String>,
    /// Why the first event that the bus has not was refused; or an error about no record: the bus
    /// is away, or refuses us.
    pub(super) ended: Result<Option<Refusal>>,
}

impl<'a> RetryProducer<'a> {
    pub(super) fn new(
        config: &'a Config,
        server: &'a ServerIdentity,
        beside: Option<&'a StallGuard>,
    ) -> RetryProducer<'a> {
        let routes = HashMap::new();
        let refusing = HashMap::new();
        RetryProducer {
            config,
            server,
            beside,
            sink: None,
            next: 0,
            routes,
            refusing,
        }
    }

    /// Sends these events up to the first that cannot be sent, and waits for the acks.
    /// Errors: what is about the whole outbox. Nothing was sent.
    pub(super) async fn send(&mut self, events: &[ParkedRow]) -> Result<Sent> {
        let mut records = Vec::with_capacity(events.len());
        let mut unfit = None;
        for held in events {
            let record = match self.record(held)? {
                Ok(record) => record,
                Err(error) => {
                    unfit = Some(Refusal {
                        error,
                        is_certain: true,
                        is_logged: false,
                    });
                    break;
                }
            };
            let refused = record.with_record(|record| self.refusing.get(record.topic).cloned());
            if let Some(error) = refused {
                unfit = Some(Refusal {
                    error,
                    is_certain: true,
                    is_logged: true,
                });
                break;
            }
            records.push(record);
        }
        let mut acked = vec![false; records.len()];
        let ended = if records.is_empty() {
            Ok(None)
        } else {
            self.send_all(&records, &mut acked).await
        };
        // A bus that answers for each record may take the next one of the topic.
        if let Ok(Some(Refusal { error, .. })) = &ended
            && let Some(topic) = error.topic().filter(|_| !self.refuses_each())
        {
            self.refusing.insert(topic.to_owned(), error.clone());
        }
        let accepting = records.iter().zip(&acked).filter(|(_, acked)| **acked);
        let accepting = accepting
            .map(|(record, _)| record.with_record(|record| record.topic.to_owned()))
            .collect();
        Ok(Sent {
            acked,
            accepting,
            ended: ended.map(|refusal| refusal.or(unfit)),
        })
    }

    /// The record of an event, or why it has none.
    fn record(&mut self, held: &ParkedRow) -> Result<Result<OwnedRecord>> {
        let event = &held.event;
        if !self.routes.contains_key(&event.row.outbox) {
            self.routes.insert(
                event.row.outbox,
                route_of(self.config, self.server, event.row.outbox)?,
            );
        }
        let Some((outbox, router)) = self.routes.get_mut(&event.row.outbox) else {
            return Err(no_such_outbox());
        };
        let mut polled = match Polled::new(outbox, held.described()) {
            Ok(polled) => polled,
            Err(column) => {
                let cause = format!("column {column} was not kept when the event was parked");
                return Ok(Err(Error::new(Kind::Event, cause).remedy(replay_instead())));
            }
        };
        let texts: Vec<Option<&[u8]>> = event
            .columns
            .iter()
            .map(|column| column.text.as_deref())
            .collect();
        let made = polled.event(event.place, event.row.outbox, texts.into_iter());
        let Ok(mut made) = made else {
            return Ok(Err(Error::new(
                Kind::Event,
                "the stored columns of the event make no row",
            )));
        };
        made.committed_at_us = event.committed_at_us;
        Ok(match router.route(&made) {
            Ok(routed) => Ok(routed.with_record(OwnedRecord::of)),
            Err(error) => Err(error.into_error(&self.config.source.slot)),
        })
    }

    async fn send_all(
        &mut self,
        records: &[OwnedRecord],
        acked: &mut [bool],
    ) -> Result<Option<Refusal>> {
        let until = Instant::now() + SEND_TIMEOUT;
        let mut sink = match self.sink.take() {
            Some(sink) => sink,
            None => {
                let config = self.config.clone();
                // Files are read for it, and all other tasks share the thread.
                let made = spawn_blocking(move || AnySink::connect(&config)).await;
                made.map_err(|error| Error::new(Kind::Bug, error))??
            }
        };
        if let Some(beside) = self.beside {
            beside.guard(Some(sink.handle()));
            // Only what is in a queue is given up, and nothing is put there without this.
            beside.check()?;
        }
        // One record is sent apart, so that the producer goes on when that is refused.
        let is_apart = records.len() == 1 || self.refuses_each();
        let sent = sent(&mut sink, self.next, records, acked, is_apart, until).await;
        self.next += records.len() as u64;
        match &sent {
            Ok((_, true)) => self.sink = Some(sink),
            Ok((_, false)) | Err(_) => sink.close().await,
        }
        sent.map(|(refusal, _)| refusal)
    }

    fn refuses_each(&self) -> bool {
        self.config.sink.kind.bus().refuses_each
    }

    pub(super) async fn end(self) {
        if let Some(sink) = self.sink {
            sink.close().await;
        }
    }
}

fn route_of(
    config: &Config,
    server: &ServerIdentity,
    outbox: usize,
) -> Result<(OutboxConfig, Router)> {
    let outbox = config.outboxes.get(outbox).ok_or_else(no_such_outbox)?;
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

fn no_such_outbox() -> Error {
    Error::new(
        Kind::Bug,
        "a parked event is of an outbox that is not configured",
    )
}

/// Why the first record that the bus has not was refused, and whether the producer goes on.
async fn sent(
    sink: &mut AnySink,
    base: u64,
    records: &[OwnedRecord],
    acked: &mut [bool],
    is_apart: bool,
    until: Instant,
) -> Result<(Option<Refusal>, bool)> {
    let away = || Error::new(Kind::BusUnreachable, "the bus did not ack parked events");
    let mut failure = None;
    let mut deliveries = Vec::new();
    let mut next = 0;
    let handle = sink.handle();
    let mut unusable = pin!(handle.unusable());
    loop {
        while let Some(record) = records.get(next).filter(|_| failure.is_none()) {
            let ticket = Ticket(base + next as u64);
            let enqueued = record.with_record(|record| match is_apart {
                true => sink.enqueue_apart(record, ticket),
                false => sink.enqueue(record, ticket),
            });
            match enqueued {
                Ok(()) => next += 1,
                Err(EnqueueError::Full | EnqueueError::Finished) => break,
                Err(EnqueueError::Refused(error)) => failure = Some(error),
            }
        }
        // Acks of records before a refusal are awaited.
        let first = acked
            .iter()
            .position(|acked| !acked)
            .unwrap_or(records.len());
        if first == next && (failure.is_some() || next == records.len()) {
            return judged(failure, true, true);
        }
        tokio::select! {
            biased;
            error = &mut unusable => return Err(error),
            told = timeout_at(until, sink.deliveries(&mut deliveries)) => {
                told.map_err(|_| away())?;
            }
        }
        let mut ended = None;
        for delivery in deliveries.drain(..) {
            match delivery {
                Delivery::Acked(ticket) => {
                    let place = usize::try_from(ticket.0.wrapping_sub(base)).unwrap_or(usize::MAX);
                    acked
                        .get_mut(place)
                        .into_iter()
                        .for_each(|acked| *acked = true);
                }
                Delivery::Refused(ticket, error) => {
                    // Those behind it are sent again with it.
                    sink.withdraw(ticket);
                    ended.get_or_insert((error, true));
                }
                // The first says most.
                Delivery::Failed(_, error) => _ = ended.get_or_insert((error, false)),
            }
        }
        if let Some((error, goes_on)) = ended {
            return judged(Some(error), is_apart, goes_on);
        }
    }
}

/// An error that concerns no record is no refusal.
fn judged(
    failure: Option<Error>,
    is_certain: bool,
    goes_on: bool,
) -> Result<(Option<Refusal>, bool)> {
    match failure {
        Some(error)
            if matches!(
                error.kind().disposition(),
                Disposition::Retry | Disposition::Halt
            ) =>
        {
            Err(error)
        }
        failure => Ok((
            failure.map(|error| Refusal {
                error,
                is_certain,
                is_logged: false,
            }),
            goes_on,
        )),
    }
}
