//! Sends dead letters to their own topics, and marks them after their acks.
//!
//! There are two producers. The one for dead letters keeps their order and ends with the first refused record. The one
//! for markers can then still mark the dead letters that were acked. The loop waits for several inputs, the most urgent
//! first. The first is its next turn: a stop, a progress report, or a record to offer to a full producer again. Then
//! come deliveries, refusals and, with capacity (P4), the next dead letter.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::time::Duration;

use futures_util::future::select_all;
use tokio::sync::mpsc;

use super::scan::{DeadLetterFilter, DeadLetterScope, Scan};
use super::{At, DeadLetter, Marker, Outcome};
use crate::clock::now_us;
use crate::config::KafkaConfig;
use crate::error::{Error, Kind, Result};
use crate::ledger::Ticket;
use crate::relay::drain::DRAIN_TIMEOUT;
use crate::relay::stop::StopSignal;
use crate::replay::{SendEnd, Turns};
use crate::route::OwnedRecord;
use crate::route::dead_letter::SLOT_HEADER;
use crate::sink::{Connection, Delivery, EnqueueError, KafkaSink, Sink};

pub(crate) const LETTERS_AHEAD: usize = 16;

#[derive(Debug)]
pub(crate) struct Chosen {
    at: At,
    key: Option<Vec<u8>>,
    slot: Option<Vec<u8>>,
    /// The record to send first, for a retry.
    record: Option<OwnedRecord>,
    bytes: usize,
}

impl Chosen {
    fn of(letter: &DeadLetter<'_>, record: Option<OwnedRecord>) -> Chosen {
        Chosen {
            at: letter.at(),
            key: letter.record.key.map(<[u8]>::to_vec),
            slot: letter.reason(SLOT_HEADER).map(<[u8]>::to_vec),
            record,
            bytes: letter.bytes(),
        }
    }
}

/// Reads the dead letters that match `wanted` and are not resolved, and sends each to `into` until the receiver is
/// gone. For a retry, skips those that cannot be sent unchanged. Blocks.
pub(crate) fn choose(
    scan: &Scan,
    wanted: &DeadLetterFilter,
    outcome: Outcome,
    reserved: &[String],
    into: &mpsc::Sender<Result<Chosen>>,
) {
    let read = scan.letters(wanted, DeadLetterScope::Unresolved, &mut |_, _| {}, &mut |letter, _| {
        let record = match outcome {
            Outcome::Dropped => None,
            Outcome::Retried => match letter.sendable(reserved) {
                Ok(topic) => Some(letter.record(&topic)),
                Err(_) => return ControlFlow::Continue(()),
            },
        };
        let chosen = Chosen::of(letter, record);
        if into.blocking_send(Ok(chosen)).is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    if let Err(error) = read {
        // A receiver that is gone needs no error.
        into.blocking_send(Err(error)).ok();
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub sent: u64,
    /// Dead letters whose markers are acked.
    pub resolved: u64,
}

/// Resolves dead letters in the order of their arrival.
pub(crate) struct Resolver<'c> {
    topic: &'c str,
    outcome: Outcome,
    kafka: &'c KafkaConfig,
    /// The producer for dead letters; `None` for a drop.
    letters: Option<KafkaSink>,
    markers: KafkaSink,
    /// Dead letters in flight, without their records.
    flights: BTreeMap<u64, Chosen>,
    bytes: usize,
    next: u64,
    /// A record that its producer had no space for. No other goes before it.
    held: Option<(u64, OwnedRecord)>,
    /// Acked dead letters whose markers are not enqueued.
    unmarked: VecDeque<u64>,
    progress: Progress,
    ended: bool,
    failed: Option<Error>,
    grace: Duration,
}

impl<'c> Resolver<'c> {
    /// Connects, to resolve dead letters of `topic`. A stop waits at most `grace` for records in flight.
    pub(crate) fn new(
        kafka: &'c KafkaConfig,
        topic: &'c str,
        outcome: Outcome,
        grace: Duration,
    ) -> Result<Resolver<'c>> {
        let letters = (outcome == Outcome::Retried).then(|| KafkaSink::connect(kafka)).transpose()?;
        Ok(Resolver {
            topic,
            outcome,
            kafka,
            letters,
            markers: KafkaSink::connect(kafka)?,
            flights: BTreeMap::new(),
            bytes: 0,
            next: 0,
            held: None,
            unmarked: VecDeque::new(),
            progress: Progress::default(),
            ended: false,
            failed: None,
            grace,
        })
    }

    /// The topics among `topics` that the cluster does not have.
    pub(crate) async fn missing(&self, topics: &[&str], timeout: Duration) -> Result<Vec<String>> {
        self.markers.missing(topics, timeout).await
    }

    /// Resolves the dead letters of `incoming` until it ends or a stop is requested. Returns the progress also with an
    /// error. Calls `say` repeatedly with the progress, and whether Kafka answers.
    ///
    /// A dead letter counts as sent after its ack, and its marker is sent then. After a crash in between, the record is
    /// in its topic and the dead letter is not resolved. Memory holds the records in flight
    /// (`kafka.max_in_flight_bytes`) and those in `incoming`.
    /// Errors: the error of `incoming`; the refusal of a dead letter or a marker, with the place of the dead letter. Then
    /// no later dead letter is taken; those that are acked are marked, if Kafka answers.
    pub(crate) async fn run(
        mut self,
        mut incoming: mpsc::Receiver<Result<Chosen>>,
        stop: StopSignal,
        say: &mut dyn FnMut(&Progress, bool),
    ) -> (Progress, Result<SendEnd>) {
        let mut turns = Turns::new(stop, self.grace);
        let ended = self.all(&mut incoming, &mut turns, say).await;
        drop(incoming);
        let ended = self.failed.map_or(ended, Err);
        if !turns.is_abandoned() {
            self.markers.close().await;
            if let Some(letters) = self.letters {
                letters.close().await;
            }
        }
        (self.progress, ended)
    }

    async fn all(
        &mut self,
        incoming: &mut mpsc::Receiver<Result<Chosen>>,
        turns: &mut Turns,
        say: &mut dyn FnMut(&Progress, bool),
    ) -> Result<SendEnd> {
        let producers = self.letters.iter().chain([&self.markers]).map(KafkaSink::producer);
        let mut unusable = select_all(producers.map(|producer| Box::pin(async move { producer.unusable().await })));
        let (mut sent, mut marked) = (Vec::new(), Vec::new());
        loop {
            self.offer();
            if let Some(error) = &self.failed {
                let answers = error.kind() != Kind::KafkaUnreachable;
                turns.leave_within(if answers { DRAIN_TIMEOUT } else { Duration::ZERO });
            }
            let idle = self.flights.is_empty();
            if self.ended && idle {
                return Ok(SendEnd::All);
            }
            if turns.has_to_leave(idle) {
                return Ok(SendEnd::Stopped);
            }
            if turns.is_time_to_tell() {
                say(&self.progress, self.markers.connection() == Connection::Up);
            }
            let retry = self.held.is_some() || !self.unmarked.is_empty();
            let room = turns.leaving.is_none() && self.has_room();
            tokio::select! {
                biased;
                () = turns.next(retry) => {}
                () = self.markers.deliveries(&mut marked) => self.marked(&mut marked),
                () = deliveries(&mut self.letters, &mut sent) => self.sent(&mut sent),
                (error, ..) = &mut unusable, if self.failed.is_none() => self.fail(error),
                next = incoming.recv(), if room => match next {
                    Some(Ok(chosen)) => self.take(chosen),
                    Some(Err(error)) => self.fail(error),
                    None => self.ended = true,
                }
            }
        }
    }

    fn has_room(&self) -> bool {
        let (bytes, events) = (self.kafka.max_in_flight_bytes, self.kafka.max_in_flight_events);
        let in_flight = self.bytes < bytes && self.flights.len() < events;
        !self.ended && self.held.is_none() && (in_flight || self.flights.is_empty())
    }

    fn take(&mut self, mut chosen: Chosen) {
        let number = self.next;
        self.next += 1;
        self.bytes += chosen.bytes;
        match chosen.record.take() {
            Some(record) => self.held = Some((number, record)),
            None => self.unmarked.push_back(number),
        }
        self.flights.insert(number, chosen);
    }

    /// Takes no more dead letters, because of the first error. Those that are acked within [`DRAIN_TIMEOUT`] are
    /// marked, if Kafka answers. Further errors are only logged.
    fn fail(&mut self, error: Error) {
        tracing::debug!(%error, "no more dead letters are taken");
        self.ended = true;
        if let Some((number, _)) = self.held.take() {
            self.land(number);
        }
        self.failed.get_or_insert(error);
    }

    /// Enqueues records and markers, as far as the producers have space.
    fn offer(&mut self) {
        if let (Some((number, record)), Some(sink)) = (self.held.take(), &mut self.letters) {
            match record.with_record(|record| sink.enqueue(record, Ticket(number))) {
                Ok(()) => {}
                // The delivery report names the dead letter that ended the producer.
                Err(EnqueueError::Full | EnqueueError::Finished) => self.held = Some((number, record)),
                Err(EnqueueError::Refused(error)) => self.refused(number, &error),
            }
        }
        while let Some(number) = self.unmarked.front().copied() {
            let Some(flight) = self.flights.get(&number) else {
                self.unmarked.pop_front();
                continue;
            };
            let when = jiff::Timestamp::from_microsecond(now_us()).ok().map(|when| format!("{when:.3}"));
            let marker = Marker { letter: flight.at, outcome: self.outcome, when };
            let record = marker.record(self.topic, flight.key.as_deref(), flight.slot.as_deref());
            match record.with_record(|record| self.markers.enqueue(record, Ticket(number))) {
                Ok(()) => {}
                Err(EnqueueError::Full | EnqueueError::Finished) => return,
                Err(EnqueueError::Refused(error)) => self.refused(number, &error),
            }
            self.unmarked.pop_front();
        }
    }

    /// Takes delivery reports of dead letters. Acked ones are to be marked, even if another one was refused.
    fn sent(&mut self, deliveries: &mut Vec<Delivery>) {
        for delivery in deliveries.drain(..) {
            match delivery {
                Delivery::Acked(Ticket(number)) => {
                    self.progress.sent += 1;
                    self.unmarked.push_back(number);
                }
                Delivery::Refused(Ticket(number), error) | Delivery::Failed(Ticket(number), error) => {
                    self.refused(number, &error);
                }
            }
        }
    }

    fn marked(&mut self, deliveries: &mut Vec<Delivery>) {
        for delivery in deliveries.drain(..) {
            match delivery {
                Delivery::Acked(Ticket(number)) => self.progress.resolved += u64::from(self.land(number)),
                Delivery::Refused(Ticket(number), error) | Delivery::Failed(Ticket(number), error) => {
                    let error = Error::new(error.kind(), format!("the dead letter cannot be resolved: {error}"));
                    self.refused(number, &error);
                }
            }
        }
    }

    /// Records the refusal of a dead letter or of its marker.
    fn refused(&mut self, number: u64, error: &Error) {
        let named = match self.flights.get(&number) {
            Some(flight) => error.clone().about(format_args!("dead letter {}", flight.at)),
            None => error.clone(),
        };
        self.land(number);
        self.fail(named);
    }

    /// Removes a dead letter from those in flight; returns whether it was one of them.
    fn land(&mut self, number: u64) -> bool {
        let landed = self.flights.remove(&number);
        self.bytes = self.bytes.saturating_sub(landed.as_ref().map_or(0, |flight| flight.bytes));
        landed.is_some()
    }
}

async fn deliveries(sink: &mut Option<KafkaSink>, into: &mut Vec<Delivery>) {
    match sink {
        Some(sink) => sink.deliveries(into).await,
        None => std::future::pending().await,
    }
}
