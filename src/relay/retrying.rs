//! Events that wait are tried again: when their time has come, or when somebody asked.
//!
//! It has a producer of its own, so that what is refused here ends nothing but this try, and it is the only one that publishes
//! events of an aggregate that waits: the relay itself parks them until the last one is gone (P2).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::config::delivery::max_attempts;
use crate::config::{Config, OutboxConfig};
use crate::error::{Disposition, Error, Kind, Result};
use crate::event::{Place, Polled, Shown, Via};
use crate::failpoint;
use crate::relay::pulse::Beside;
use crate::relay::retention::Known;
use crate::route::{OwnedRecord, Router};
use crate::sink::{Delivery, EnqueueError, KafkaSink, Sink as _, Ticket};
use crate::state::Stored;
use crate::upkeep::parked::{BEHIND, Head, Held, Waiting};
use crate::upkeep::{Batch, FailedAgain, Failure, Marker, RowId};

/// How often it is looked whether any is due, while any waits.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// After a try that could not be made.
const PAUSE: Duration = Duration::from_secs(5);
/// Looks take this small a part of the time, however many events wait. The tries that follow have waits of their own.
const LOOK_SHARE: u32 = 20;
/// Aggregates of one pass.
const HEADS_MAX: i64 = 200;
/// Events sent before their acks are waited for.
const BATCH_EVENTS: i64 = 200;
/// How long acks are waited for: a topic that is not there is known to be missing after half of it.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the end of a session waits for a pass.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// What a pass came to.
#[derive(Debug, Default)]
pub(super) struct Tried {
    /// Events that wait no more: sent or dropped.
    pub(super) released: Vec<Waiting>,
    /// Topics that took records.
    pub(super) accepting: Vec<String>,
    /// Events that were sent.
    pub(super) sent: u64,
    /// What it took to find out which are due.
    looked: Duration,
}

/// The passes, one at a time.
#[derive(Debug)]
pub(super) struct Retrying {
    of: Arc<(Config, Known, Option<Beside>)>,
    pass: Option<Pass>,
    next: Instant,
    told: bool,
}

/// Ends with whoever holds it.
#[derive(Debug)]
struct Pass(JoinHandle<Result<Tried>>);

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Retrying {
    /// `beside`, where the loop has a pulse.
    pub(super) fn new(config: &Config, known: &Known, beside: Option<Beside>) -> Retrying {
        let now = Instant::now();
        let of = Arc::new((config.clone(), Arc::clone(known), beside));
        Retrying { of, pass: None, next: now, told: false }
    }

    /// Begins a pass where one is due: `waiting` events wait.
    pub(super) fn begin_due(&mut self, marker: Option<&Arc<Marker>>, waiting: usize, now: Instant) {
        let Some(marker) = marker.filter(|_| waiting > 0 && self.pass.is_none() && self.next <= now) else { return };
        let (marker, of) = (Arc::clone(marker), Arc::clone(&self.of));
        self.pass = Some(Pass(tokio::spawn(async move { pass(&marker, &of).await })));
    }

    /// The session ends. What a pass has written down by then, and only that, is in the table when the next one reads it.
    pub(super) async fn finish(&mut self) {
        if self.pass.is_some() && timeout(FINISH_TIMEOUT, self.end()).await.is_err() {
            tracing::debug!("a try of events that wait was given up");
        }
        self.pass = None;
    }

    /// Waits for the end of the pass. Safe to cancel; without one, for ever.
    pub(super) async fn end(&mut self) -> Tried {
        let ended = match &mut self.pass {
            Some(pass) => (&mut pass.0).await,
            None => std::future::pending().await,
        };
        self.pass = None;
        let now = Instant::now();
        let slot = &self.of.0.source.slot;
        match ended.unwrap_or_else(|error| Err(Error::new(Kind::Bug, error))) {
            Ok(tried) => {
                self.next =
                    now + if tried.sent > 0 { Duration::ZERO } else { LOOK_INTERVAL.max(tried.looked * LOOK_SHARE) };
                self.told = false;
                if tried.sent > 0 {
                    tracing::info!(%slot, events = tried.sent, "events that waited were delivered");
                }
                tried
            }
            Err(error) => {
                self.next = now + PAUSE;
                if std::mem::replace(&mut self.told, true) {
                    tracing::debug!(%slot, %error, "events that wait cannot be tried again now");
                } else {
                    tracing::warn!(%slot, %error, fix = error.what_to_do(), "events that wait cannot be tried again now");
                }
                Tried::default()
            }
        }
    }
}

async fn pass(marker: &Marker, (config, known, beside): &(Config, Known, Option<Beside>)) -> Result<Tried> {
    let mut tried = Tried::default();
    let Some(stored) = known.borrow().clone() else { return Ok(tried) };
    let began = Instant::now();
    drop_asked(marker, config, &mut tried).await?;
    let asked = marker.ask_for_pending().await?;
    if asked > 0 {
        tracing::info!(slot = %config.source.slot, events = asked, "rows of events that wait are pending again; trying them");
    }
    let mut line = Line { config, beside: beside.as_ref(), sink: None, next: 0, refusing: HashMap::new() };
    let due = marker.due(HEADS_MAX).await?;
    tried.looked = began.elapsed();
    for head in due {
        let ended = aggregate(marker, &mut line, (head, &stored), &mut tried).await;
        if let Err(error) = ended {
            // What was sent before is to be told all the same.
            if tried.released.is_empty() {
                return Err(error);
            }
            break;
        }
    }
    line.end().await;
    Ok(tried)
}

/// What somebody asked to be dropped goes, and its row counts as given up.
async fn drop_asked(marker: &Marker, config: &Config, tried: &mut Tried) -> Result<()> {
    let dropped = marker.dropped(BATCH_EVENTS).await?;
    if dropped.is_empty() {
        return Ok(());
    }
    let mut batch = Batch::default();
    for (id, waiting, failure) in &dropped {
        let (slot, row) = (&config.source.slot, Shown::of(&waiting.row.1));
        tracing::warn!(%slot, %row, class = failure.class, cause = failure.cause, "an event that waited is dropped, as was asked");
        batch.unparked.push(*id);
        let Some(outbox) = config.outboxes.get(waiting.row.0) else { continue };
        if outbox.upkeep.mark_failed.is_some() {
            batch.failed.push((waiting.row.clone(), failure.clone()));
        } else if outbox.upkeep.writes() {
            batch.acked.push(waiting.row.clone());
        }
    }
    marker.settle(&batch).await?;
    tried.released.extend(dropped.into_iter().map(|(_, waiting, _)| waiting));
    Ok(())
}

/// Sends the events of an aggregate from its first on, in their order, until one fails or none is left.
async fn aggregate(
    marker: &Marker,
    line: &mut Line<'_>,
    (mut head, stored): (Head, &Stored),
    tried: &mut Tried,
) -> Result<()> {
    let outbox = head.outbox;
    // The first one alone: a batch is refused as a whole.
    let mut alone = true;
    loop {
        let mut held = marker.held(&head, if alone { 1 } else { BATCH_EVENTS }).await?;
        held.truncate(held.iter().take_while(|held| is_stored(held.event.place, stored)).count());
        let Some(last) = held.last().map(|held| held.id) else { return Ok(()) };
        let (records, unfit) = line.route(&held, stored)?;
        let refused = records.iter().position(|record| line.refuses(record).is_some());
        let sendable = refused.unwrap_or(records.len());
        let (acked, failure) = line.send(records.get(..sendable).unwrap_or_default()).await?;
        let failure = match failure {
            None if refused.is_some() => records.get(sendable).and_then(|record| line.refuses(record)),
            None => unfit,
            failure => failure,
        };
        let done = held.get(..acked).unwrap_or_default();
        let writes = line.config.outboxes.get(outbox).is_some_and(|outbox| outbox.upkeep.writes());
        let rows: Vec<RowId> = done.iter().map(|held| held.event.row.clone()).filter(|_| writes).collect();
        let unparked = done.iter().map(|held| held.id).collect();
        failpoint::reached("retried");
        marker.settle(&Batch { acked: rows, unparked, ..Batch::default() }).await?;
        tried.sent += done.len() as u64;
        tried.accepting.extend(records.iter().take(acked).map(|record| record.with_record(|of| of.topic.to_owned())));
        tried.accepting.sort_unstable();
        tried.accepting.dedup();
        let released = |held: &Held| Waiting {
            row: held.event.row.clone(),
            place: held.event.place,
            key: held.event.key.clone(),
            refused_by: None,
        };
        tried.released.extend(done.iter().map(released));
        match (failure, held.get(acked)) {
            (Some(error), Some(failed)) if acked == 0 && alone => {
                // What its topic said of another was told.
                return fail(marker, line.config, (failed, refused.is_none()), &error).await;
            }
            (Some(_), Some(failed)) => (head.id, alone) = (failed.id, true),
            _ if head.key.is_none() => return Ok(()),
            _ => (head.id, alone) = (last + 1, false),
        }
    }
}

/// Notes that it failed once more, and when it is tried again.
async fn fail(marker: &Marker, config: &Config, (held, is_told): (&Held, bool), error: &Error) -> Result<()> {
    let attempts = if held.class == BEHIND { 1 } else { held.attempts.saturating_add(1) };
    let failure = Failure { class: error.kind().class(), cause: error.cause().to_owned(), attempts };
    let wait = match error.kind().disposition() {
        Disposition::RetryThenGiveUp => {
            let column = config.outboxes.get(held.event.row.0).and_then(|outbox| outbox.max_attempts.as_deref());
            let max = column.and_then(|column| held.event.text(column)).and_then(max_attempts);
            config.delivery.retry.within(max).wait(attempts, fastrand::f64())
        }
        Disposition::GiveUp | Disposition::Retry | Disposition::Halt => None,
    };
    let (slot, row) = (&config.source.slot, Shown::of(&held.event.row.1));
    let wait_ms = wait.map(|wait| i64::try_from(wait.as_millis()).unwrap_or(i64::MAX));
    if is_told {
        tracing::warn!(%slot, %row, class = failure.class, cause = failure.cause, attempts, wait_ms, "an event that waits failed again");
    }
    let row = held.event.row.clone();
    let again = FailedAgain { id: held.id, row, failure, retry_in_ms: wait_ms };
    marker.settle(&Batch { failed_again: vec![again], ..Batch::default() }).await.map(|_| ())
}

/// Whether an event is behind the stored position: it does not come again, and so not behind those that were parked later.
fn is_stored(place: Place, stored: &Stored) -> bool {
    let position = &stored.position;
    place.via != Via::Slot || position.covers(place.commit_lsn) || place.index < position.delivered_of(place.commit_lsn)
}

/// The producer of a pass.
struct Line<'a> {
    config: &'a Config,
    /// Gives the producer up should the process stand still.
    beside: Option<&'a Beside>,
    sink: Option<KafkaSink>,
    /// The ticket of the next record: a sink never sees one twice.
    next: u64,
    /// Topics that refused a record in this pass, and what they said.
    refusing: HashMap<String, Error>,
}

impl Line<'_> {
    /// The records of these events up to the first that has none, and why it has none.
    fn route(&self, held: &[Held], stored: &Stored) -> Result<(Vec<OwnedRecord>, Option<Error>)> {
        let mut records = Vec::with_capacity(held.len());
        for held in held {
            match self.record(held, stored)? {
                Ok(record) => records.push(record),
                Err(error) => return Ok((records, Some(error))),
            }
        }
        Ok((records, None))
    }

    fn record(&self, held: &Held, stored: &Stored) -> Result<Result<OwnedRecord>> {
        let event = &held.event;
        let outbox = self.config.outboxes.get(event.row.0);
        let outbox =
            outbox.ok_or_else(|| Error::new(Kind::Bug, "an event waits of an outbox that is not configured"))?;
        // How often it may be tried is no part of the record, and was not kept of one that waited before that was asked for.
        let mut outbox = OutboxConfig { max_attempts: None, ..outbox.clone() };
        outbox.need_only_routed();
        let mut router = Router::new(&outbox).map_err(|error| Error::new(Kind::Bug, error))?;
        router.set_origin(&stored.server.system_identifier, stored.server.timeline);
        let mut polled = match Polled::new(&outbox.columns, held.described()) {
            Ok(polled) => polled,
            Err(column) => {
                let cause = format!("column {column} was not kept when the event was parked");
                let remedy = "drop it with walrelay parked drop, and publish its row with walrelay replay --id";
                return Ok(Err(Error::new(Kind::Event, cause).remedy(remedy)));
            }
        };
        let texts: Vec<Option<&[u8]>> = event.columns.iter().map(|column| column.text.as_deref()).collect();
        let made = polled.event(event.place, event.row.0, texts.into_iter());
        let Ok(mut made) = made else {
            return Ok(Err(Error::new(Kind::Event, "what was kept of the event makes no row")));
        };
        made.committed_at_us = event.committed_at_us;
        Ok(match router.route(&made) {
            Ok(routed) => Ok(routed.with_record(OwnedRecord::of)),
            Err(error) => Err(error.into_error(&self.config.source.slot)),
        })
    }

    fn refuses(&self, record: &OwnedRecord) -> Option<Error> {
        record.with_record(|record| self.refusing.get(record.topic).cloned())
    }

    /// Sends records and waits for their acks: how many of the first were acked, and what happened to the next.
    ///
    /// # Errors
    /// What is about no record: Kafka is away, or refuses us. What was acked may come twice.
    async fn send(&mut self, records: &[OwnedRecord]) -> Result<(usize, Option<Error>)> {
        if records.is_empty() {
            return Ok((0, None));
        }
        let until = Instant::now() + SEND_TIMEOUT;
        let mut sink = match self.sink.take() {
            Some(sink) => sink,
            None => KafkaSink::connect(&self.config.kafka)?,
        };
        if let Some(beside) = self.beside {
            beside.guard(Some(sink.producer()));
            // Only what is in a queue is given up, and nothing is put there without this.
            beside.check()?;
        }
        let sent = sent(&mut sink, (self.next, records), until).await;
        self.next += records.len() as u64;
        if let Ok((_, Some(error), _)) = &sent {
            self.refusing.extend(error.topic().map(|topic| (topic.to_owned(), error.clone())));
        }
        match &sent {
            Ok((.., true)) => self.sink = Some(sink),
            Ok((.., false)) | Err(_) => sink.close().await,
        }
        sent.map(|(acked, failure, _)| (acked, failure))
    }

    async fn end(self) {
        if let Some(sink) = self.sink {
            sink.close().await;
        }
    }
}

/// As [`Line::send`], and whether the producer goes on. One record is sent apart, so that it does when that is refused.
async fn sent(
    sink: &mut KafkaSink,
    (base, records): (u64, &[OwnedRecord]),
    until: Instant,
) -> Result<(usize, Option<Error>, bool)> {
    let away = || Error::new(Kind::KafkaUnreachable, "Kafka did not ack events that waited");
    let (mut acked, mut failure, mut deliveries) = (vec![false; records.len()], None, Vec::new());
    let mut next = 0;
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
        let first = acked.iter().position(|acked| !acked).unwrap_or(records.len());
        // What was enqueued before a refusal is still waited for.
        if first == next && (failure.is_some() || next == records.len()) {
            return judged(first, failure, true);
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
            let first = acked.iter().position(|acked| !acked).unwrap_or(records.len());
            return judged(first, Some(error), goes_on);
        }
    }
}

/// What is about no record is no failure of one.
fn judged(acked: usize, failure: Option<Error>, goes_on: bool) -> Result<(usize, Option<Error>, bool)> {
    match failure {
        Some(error) if matches!(error.kind().disposition(), Disposition::Retry | Disposition::Halt) => Err(error),
        failure => Ok((acked, failure, goes_on)),
    }
}
