//! Dead letters sent to their own topics, and marked once they are there.
//!
//! Two producers: one for dead letters, which keeps their order and ends with the first that is refused; one for
//! markers, which can still mark what had arrived then. The loop waits, most urgent first, for a stop; for the time to
//! report the progress; for deliveries; for refusals; and, while there is capacity (P4), for the next dead letter.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::At;
use super::letter::Letter;
use super::scan::{Scan, Wanted, Which};
use super::settled::{Marker, Outcome};
use crate::clock::now_us;
use crate::config::KafkaConfig;
use crate::error::{Error, Kind, Result};
use crate::ledger::Ticket;
use crate::relay::stop::{Stop, StopSignal};
use crate::route::OwnedRecord;
use crate::sink::{Connection, Delivery, EnqueueError, KafkaSink, Producer, Sink};

/// Time between two attempts to enqueue a record that found the producer full.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Time between two reports of the progress.
const TELL_INTERVAL: Duration = Duration::from_secs(1);
/// Time for records in flight to arrive, where no more dead letters can be read.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Dead letters that are read ahead of their sending.
pub(crate) const LETTERS_AHEAD: usize = 16;

/// A dead letter to be resolved.
#[derive(Debug)]
pub(crate) struct Chosen {
    at: At,
    key: Option<Vec<u8>>,
    slot: Option<Vec<u8>>,
    /// What is sent first, where it is to be sent.
    record: Option<OwnedRecord>,
    bytes: usize,
}

impl Chosen {
    /// To be sent to `topic`, and resolved then.
    pub(crate) fn to_send(letter: &Letter<'_>, topic: &str) -> Chosen {
        Chosen { record: Some(letter.record(topic)), ..Chosen::to_drop(letter) }
    }

    /// To be resolved.
    pub(crate) fn to_drop(letter: &Letter<'_>) -> Chosen {
        Chosen {
            at: letter.at(),
            key: letter.key().map(<[u8]>::to_vec),
            slot: letter.slot_bytes().map(<[u8]>::to_vec),
            record: None,
            bytes: letter.bytes(),
        }
    }
}

/// Reads the dead letters that fit `wanted` and are not resolved, and hands each to `into` until the receiver is gone.
/// Those that cannot be sent as they are stay where they are, unless they are to be dropped. Blocks.
pub(crate) fn choose(
    scan: &Scan,
    wanted: &Wanted,
    outcome: Outcome,
    reserved: &[String],
    into: &mpsc::Sender<Result<Chosen>>,
) {
    let read = scan.letters(wanted, Which::Unsettled, &mut |_, _| {}, &mut |letter, _| {
        let chosen = match outcome {
            Outcome::Dropped => Chosen::to_drop(letter),
            Outcome::Retried => match letter.sendable(reserved) {
                Ok(topic) => Chosen::to_send(letter, &topic),
                Err(_) => return ControlFlow::Continue(()),
            },
        };
        if into.blocking_send(Ok(chosen)).is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    if let Err(error) = read {
        // The receiver is gone, and the error with it.
        into.blocking_send(Err(error)).ok();
    }
}

/// The progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Dead letters that their topics have.
    pub sent: u64,
    /// Dead letters that are marked as resolved.
    pub settled: u64,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All dead letters are resolved.
    All,
    /// It was told to stop.
    Stopped,
}

/// Resolves dead letters as they come.
pub(crate) struct Settling<'c> {
    topic: &'c str,
    outcome: Outcome,
    kafka: &'c KafkaConfig,
    /// For dead letters; `None` where they are dropped.
    letters: Option<KafkaSink>,
    markers: KafkaSink,
    /// Those in flight, without their records.
    flights: BTreeMap<u64, Chosen>,
    bytes: usize,
    next: u64,
    /// A dead letter that found its producer full: no other goes before it.
    held: Option<(u64, OwnedRecord)>,
    /// Markers that are not enqueued yet.
    unmarked: VecDeque<u64>,
    progress: Progress,
    ended: bool,
    leaving: Option<Instant>,
    grace: Duration,
}

impl<'c> Settling<'c> {
    /// Connects to resolve dead letters of `topic`. A stop waits up to `grace` for records in flight.
    pub(crate) fn new(
        kafka: &'c KafkaConfig,
        topic: &'c str,
        outcome: Outcome,
        grace: Duration,
    ) -> Result<Settling<'c>> {
        let letters = (outcome == Outcome::Retried).then(|| KafkaSink::connect(kafka)).transpose()?;
        Ok(Settling {
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
            leaving: None,
            grace,
        })
    }

    /// Which of `topics` the cluster does not have.
    pub(crate) async fn missing(&self, topics: &[&str], timeout: Duration) -> Result<Vec<String>> {
        self.markers.missing(topics, timeout).await
    }

    /// Resolves the dead letters of `incoming` until it ends, or until `stop` is asked for. Returns the progress also
    /// with an error. `say` gets the progress now and then, and whether Kafka answers.
    ///
    /// A dead letter counts as sent when the broker has it, and its marker is sent then: after a crash in between, the
    /// record is in its topic and the dead letter not resolved. Memory holds the records in flight
    /// (`kafka.max_in_flight_bytes`) and those in `incoming`.
    ///
    /// # Errors
    /// The error of `incoming`; the refusal of a dead letter or a marker, with the place of the dead letter. No later
    /// dead letter is taken then; those that had arrived are marked, if Kafka answers.
    pub(crate) async fn run(
        mut self,
        mut incoming: mpsc::Receiver<Result<Chosen>>,
        mut stop: StopSignal,
        say: &mut dyn FnMut(&Progress, bool),
    ) -> (Progress, Result<Ended>) {
        let ended = self.all(&mut incoming, &mut stop, say).await;
        drop(incoming);
        if ended.as_ref().is_err_and(|error| error.kind() != Kind::KafkaUnreachable) {
            let drained = tokio::time::timeout(DRAIN_TIMEOUT, self.mark_what_arrived()).await;
            tracing::debug!(in_time = drained.is_ok(), "resolved the dead letters that had arrived");
        }
        let Settling { letters, markers, progress, .. } = self;
        if stop.asked() < Stop::Now {
            markers.close().await;
            if let Some(letters) = letters {
                letters.close().await;
            }
        }
        (progress, ended)
    }

    async fn all(
        &mut self,
        incoming: &mut mpsc::Receiver<Result<Chosen>>,
        stop: &mut StopSignal,
        say: &mut dyn FnMut(&Progress, bool),
    ) -> Result<Ended> {
        let mut unusable = Box::pin(unusable(self.letters.as_ref().map(KafkaSink::producer), self.markers.producer()));
        let (mut sent, mut marked) = (Vec::new(), Vec::new());
        let mut next_tell = Instant::now() + TELL_INTERVAL;
        loop {
            self.offer()?;
            let (now, idle) = (Instant::now(), self.flights.is_empty());
            if self.ended && idle {
                return Ok(Ended::All);
            }
            if let Some(until) = self.leaving
                && (idle || until <= now)
            {
                return Ok(Ended::Stopped);
            }
            if next_tell <= now {
                next_tell = now + TELL_INTERVAL;
                say(&self.progress, self.markers.connection() == Connection::Up);
            }
            let retry = (self.held.is_some() || !self.unmarked.is_empty()).then_some(now + RETRY_INTERVAL);
            let wake = [retry, self.leaving].into_iter().flatten().fold(next_tell, Instant::min);
            let asked = if self.leaving.is_some() { Stop::Now } else { Stop::Drain };
            let room = self.has_room();
            tokio::select! {
                biased;
                () = stop.at_least(asked) => {
                    let grace = if stop.asked() == Stop::Now { Duration::ZERO } else { self.grace };
                    self.leaving = Some(Instant::now() + grace);
                }
                () = tokio::time::sleep_until(wake) => {}
                () = self.markers.deliveries(&mut marked) => self.marked(&mut marked)?,
                () = deliveries(&mut self.letters, &mut sent) => self.sent(&mut sent)?,
                error = &mut unusable => return Err(error),
                next = incoming.recv(), if room => match next {
                    Some(chosen) => self.take(chosen?)?,
                    None => self.ended = true,
                }
            }
        }
    }

    fn has_room(&self) -> bool {
        let (bytes, events) = (self.kafka.max_in_flight_bytes, self.kafka.max_in_flight_events);
        let in_flight = self.bytes < bytes && self.flights.len() < events;
        !self.ended && self.leaving.is_none() && self.held.is_none() && (in_flight || self.flights.is_empty())
    }

    fn take(&mut self, mut chosen: Chosen) -> Result<()> {
        let number = self.next;
        self.next += 1;
        self.bytes += chosen.bytes;
        match chosen.record.take() {
            Some(record) => self.held = Some((number, record)),
            None => self.unmarked.push_back(number),
        }
        self.flights.insert(number, chosen);
        self.offer()
    }

    /// Enqueues the records that wait, as far as the producers take them.
    fn offer(&mut self) -> Result<()> {
        if let (Some((number, record)), Some(sink)) = (self.held.take(), &mut self.letters) {
            match record.with_record(|record| sink.enqueue(record, Ticket(number))) {
                Ok(()) => {}
                // A delivery names the dead letter that ended the producer.
                Err(EnqueueError::Full | EnqueueError::Finished) => self.held = Some((number, record)),
                Err(EnqueueError::Refused(error)) => {
                    let error = self.named(number, &error);
                    self.land(number);
                    return Err(error);
                }
            }
        }
        self.mark()
    }

    fn mark(&mut self) -> Result<()> {
        while let Some(number) = self.unmarked.front().copied() {
            let Some(flight) = self.flights.get(&number) else {
                self.unmarked.pop_front();
                continue;
            };
            let when = jiff::Timestamp::from_microsecond(now_us()).ok().map(|when| format!("{when:.3}"));
            let marker = Marker { letter: flight.at, outcome: self.outcome, when };
            let record = marker.record(self.topic, flight.key.as_deref(), flight.slot.as_deref());
            match record.with_record(|record| self.markers.enqueue(record, Ticket(number))) {
                Ok(()) => {
                    self.unmarked.pop_front();
                }
                Err(EnqueueError::Full | EnqueueError::Finished) => break,
                Err(EnqueueError::Refused(error)) => return Err(self.named(number, &error)),
            }
        }
        Ok(())
    }

    /// Takes deliveries of dead letters. Those that arrived are to be marked, also where another was refused.
    fn sent(&mut self, deliveries: &mut Vec<Delivery>) -> Result<()> {
        let mut failed = None;
        for delivery in deliveries.drain(..) {
            match delivery {
                Delivery::Acked(Ticket(number)) => {
                    self.progress.sent += 1;
                    self.unmarked.push_back(number);
                }
                Delivery::Refused(Ticket(number), error) | Delivery::Failed(Ticket(number), error) => {
                    failed = failed.or_else(|| Some(self.named(number, &error)));
                    self.land(number);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// The dead letter is in flight no more.
    fn land(&mut self, number: u64) -> bool {
        let landed = self.flights.remove(&number);
        self.bytes = self.bytes.saturating_sub(landed.as_ref().map_or(0, |flight| flight.bytes));
        landed.is_some()
    }

    fn marked(&mut self, deliveries: &mut Vec<Delivery>) -> Result<()> {
        let mut failed = None;
        for delivery in deliveries.drain(..) {
            match delivery {
                Delivery::Acked(Ticket(number)) => {
                    self.progress.settled += u64::from(self.land(number));
                }
                Delivery::Refused(Ticket(number), error) | Delivery::Failed(Ticket(number), error) => {
                    let error = Error::new(error.kind(), format!("the dead letter cannot be resolved: {error}"));
                    failed = failed.or_else(|| Some(self.named(number, &error)));
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Sends no more dead letters: waits until those in flight have arrived and are marked. Further refusals go to the
    /// log alone.
    async fn mark_what_arrived(&mut self) {
        if let Some((number, _)) = self.held.take() {
            self.land(number);
        }
        let (mut sent, mut marked) = (Vec::new(), Vec::new());
        while !self.flights.is_empty() {
            if self.mark().is_err() {
                return;
            }
            tokio::select! {
                biased;
                () = self.markers.deliveries(&mut marked) => if self.marked(&mut marked).is_err() { return },
                () = deliveries(&mut self.letters, &mut sent) => {
                    let refused = self.sent(&mut sent).err();
                    tracing::debug!(?refused, "dead letters in flight");
                }
                () = tokio::time::sleep(RETRY_INTERVAL), if !self.unmarked.is_empty() => {}
            }
        }
    }

    fn named(&self, number: u64, error: &Error) -> Error {
        let Some(flight) = self.flights.get(&number) else { return error.clone() };
        error.clone().about(format_args!("dead letter {}", flight.at))
    }
}

/// Waits until one of the two producers can be used no more, and returns the reason.
async fn unusable(letters: Option<Producer>, markers: Producer) -> Error {
    let letters = async {
        match &letters {
            Some(letters) => letters.unusable().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        error = letters => error,
        error = markers.unusable() => error,
    }
}

async fn deliveries(sink: &mut Option<KafkaSink>, into: &mut Vec<Delivery>) {
    match sink {
        Some(sink) => sink.deliveries(into).await,
        None => std::future::pending().await,
    }
}
