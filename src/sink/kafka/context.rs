//! What librdkafka calls back into: delivery reports, errors, logs. Runs on the producer's polling thread.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::producer::{DeliveryResult, ProducerContext};
use tokio::sync::{Notify, oneshot};

use super::faults::{self, Subject, code};
use super::log_lines::{self, Denied, Doubt};
use super::options::Options;
use super::partitions::KeyPartitioner;
use super::tracker::Tracker;
use crate::error::{Disposition, Error, Kind, Result};
use crate::event::Shown;
use crate::ledger::Ticket;

/// What an ack without an offset stands for: librdkafka infers one from the ack of a later batch, or from Kafka taking
/// the record for a copy. Both are guesses, and a guess is no delivery (P1).
const UNKNOWN_OFFSET: RDKafkaErrorCode = RDKafkaErrorCode::NoOffset;

/// Marks the opaque of a record whose sender waits for it itself; all others are tickets.
const AWAITED: usize = 1 << (usize::BITS - 1);
/// Marks that of a record which chose its partition itself.
const CHOSEN: usize = 1 << (usize::BITS - 2);

/// One record that was not delivered.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) ticket: Ticket,
    pub(super) code: RDKafkaErrorCode,
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) record_bytes: usize,
    /// What the record is found by, if it says.
    pub(super) label: Option<Shown>,
}

impl Failure {
    pub(super) fn subject(&self) -> Subject<'_> {
        let (topic, record_bytes) = (Some(self.topic.as_str()), Some(self.record_bytes));
        Subject { topic, partition: Some(self.partition), record_bytes, ..Subject::default() }
    }
}

/// Delivery reports nobody has taken yet.
#[derive(Debug, Default)]
pub(super) struct Reports {
    pub(super) acked: Vec<Ticket>,
    pub(super) failed: Vec<Failure>,
    /// Records that were sent apart, and are refused for what they are.
    pub(super) refused: Vec<Failure>,
}

impl Reports {
    fn is_empty(&self) -> bool {
        self.acked.is_empty() && self.failed.is_empty() && self.refused.is_empty()
    }
}

/// Shared between the sink and the polling threads.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) tracker: Tracker,
    /// The last thing librdkafka said about why no broker answers.
    last_error: Mutex<Option<String>>,
    /// The producer is on its way to its end.
    pub(super) closing: AtomicBool,
    reports: Mutex<Reports>,
    /// Woken when the first report lies there; one task waits.
    pub(super) wake: Notify,
    /// A record was not delivered: none behind it may be taken.
    pub(super) failed: AtomicBool,
    /// Why something of this producer may reach a broker late. The first doubt stays.
    pub(super) doubt: OnceLock<Doubt>,
    /// Topics that no transaction of this producer may have.
    denied: Denied,
    /// Records librdkafka has taken and not reported on. Its own count includes log lines nobody has polled.
    pub(super) outstanding: AtomicUsize,
    /// Whether anything was reported since somebody looked.
    pub(super) reported: AtomicBool,
    /// The first topic a record was sent to.
    topic: OnceLock<String>,
    awaited: Mutex<HashMap<usize, oneshot::Sender<Result<()>>>>,
    next_awaited: AtomicUsize,
}

impl Shared {
    pub(super) fn new(quiet: bool) -> Shared {
        Shared { tracker: Tracker::new(quiet), ..Shared::default() }
    }

    pub(super) fn last_error(&self) -> MutexGuard<'_, Option<String>> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note_doubt(&self, doubt: Option<Doubt>) {
        if let Some(doubt) = doubt {
            self.doubt.set(doubt).ok();
        }
    }

    pub(super) fn reports(&self) -> MutexGuard<'_, Reports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An opaque for a record whose delivery is told to the receiver.
    pub(super) fn await_one(&self) -> (usize, oneshot::Receiver<Result<()>>) {
        let (sender, receiver) = oneshot::channel();
        let opaque = AWAITED | self.next_awaited.fetch_add(1, Ordering::Relaxed);
        self.awaited().insert(opaque, sender);
        (opaque, receiver)
    }

    /// A record is to be sent to this topic.
    pub(super) fn sends_to(&self, topic: &str) {
        self.topic.get_or_init(|| topic.to_owned());
    }

    /// A topic that records are sent to, once there was one.
    pub(super) fn topic(&self) -> Option<&str> {
        self.topic.get().map(String::as_str)
    }

    /// The record with this opaque was not taken after all.
    pub(super) fn forget(&self, opaque: usize) {
        self.awaited().remove(&opaque);
    }

    fn awaited(&self) -> MutexGuard<'_, HashMap<usize, oneshot::Sender<Result<()>>>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The opaque of an event's record, which may have chosen its partition itself.
///
/// # Errors
/// The ticket is one no ledger ever gives out: of all numbers a quarter is theirs.
pub(super) fn opaque(ticket: Ticket, chosen: bool) -> Result<usize> {
    let opaque = usize::try_from(ticket.0).ok().filter(|opaque| opaque & (AWAITED | CHOSEN) == 0);
    opaque
        .map(|opaque| if chosen { opaque | CHOSEN } else { opaque })
        .ok_or_else(|| Error::new(Kind::Bug, "tickets have run out"))
}

/// The producer's callbacks. They only note what happened.
pub(super) struct Context {
    pub(super) shared: Arc<Shared>,
    pub(super) options: Options,
    /// Asks the probe to look whether a broker still answers; dropped with the producer, which ends the probe.
    pub(super) suspicion: SyncSender<()>,
    pub(super) partitioner: KeyPartitioner,
    /// Whether what is refused ends nothing.
    is_apart: bool,
}

impl Context {
    pub(super) fn new(shared: Arc<Shared>, options: Options, suspicion: SyncSender<()>) -> Context {
        Context { shared, options, suspicion, partitioner: KeyPartitioner::default(), is_apart: false }
    }

    /// The context of a second producer, for records that may be refused.
    pub(super) fn apart(&self) -> Context {
        let (shared, options) = (Arc::clone(&self.shared), self.options.clone().apart());
        Context { is_apart: true, ..Context::new(shared, options, self.suspicion.clone()) }
    }

    fn label(&self, message: &BorrowedMessage<'_>) -> Option<Shown> {
        let headers = message.headers()?;
        let first = (headers.count() > 0).then(|| headers.get(0))?;
        self.label_in(first.key, first.value)
    }

    /// What a person finds the row by, in a record's first header: the event's id comes first where it comes at all, and
    /// no other header is shown (P11).
    pub(super) fn label_in(&self, name: &str, value: Option<&[u8]>) -> Option<Shown> {
        value.filter(|_| self.options.id_headers.iter().any(|id| id == name)).map(Shown::of)
    }
}

impl ProducerContext<KeyPartitioner> for Context {
    type DeliveryOpaque = usize;

    fn get_custom_partitioner(&self) -> Option<&KeyPartitioner> {
        Some(&self.partitioner)
    }

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        self.shared.outstanding.fetch_sub(1, Ordering::Relaxed);
        self.shared.reported.store(true, Ordering::Relaxed);
        let (code, message) = match result {
            Ok(message) if message.offset() >= 0 => (None, message),
            Ok(message) => (Some(UNKNOWN_OFFSET), message),
            Err((error, message)) => (Some(code(error)), message),
        };
        if opaque & AWAITED != 0 {
            // The record's partition is one that was seen.
            let error = code.map(|code| faults::explain(faults::of_known(code), subject(message)));
            let outcome = error.map_or(Ok(()), Err);
            if let Some(sender) = self.shared.awaited().remove(&opaque) {
                // Whoever waited has gone; the record is where it is.
                sender.send(outcome).ok();
            }
            return;
        }
        let ticket = Ticket((opaque & !CHOSEN) as u64);
        let mut reports = self.shared.reports();
        let first = reports.is_empty();
        if let Some(code) = code {
            let record_bytes = message.payload_len() + message.key_len();
            let (topic, partition) = (message.topic().to_owned(), message.partition());
            let code = faults::of_record(self.shared.denied.reason(&topic, code), opaque & CHOSEN != 0);
            let failure = Failure { ticket, code, topic, partition, record_bytes, label: self.label(message) };
            if self.is_apart && faults::kind(code).disposition() == Disposition::GiveUp {
                reports.refused.push(failure);
            } else {
                self.shared.failed.store(true, Ordering::Release);
                reports.failed.push(failure);
            }
        } else {
            reports.acked.push(ticket);
        }
        drop(reports);
        if first {
            self.shared.wake.notify_one();
            if result.is_ok() && !self.shared.tracker.is_up() {
                self.shared.tracker.up();
            }
        }
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        // What is for debugging says it of connections that were ended on purpose.
        if (level as i32) < RDKafkaLogLevel::Debug as i32 {
            self.shared.note_doubt(Doubt::of_line(facility, text));
            self.shared.denied.note(facility, text);
        }
        // The one property librdkafka calls experimental is set on purpose; warning of it at each start alarms for nothing.
        let known = facility == "CONFWARN" && text.contains("enable.gapless.guarantee");
        // What is given up when a producer ends is known, and sounds like a disaster in librdkafka's words.
        let unheard = known
            || self.options.quiet
            || level as i32 > self.options.heard as i32
            || self.shared.closing.load(Ordering::Relaxed);
        log_lines::write(&self.options.redactor, if unheard { RDKafkaLogLevel::Debug } else { level }, facility, text);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        tracing::debug!(target: "librdkafka", statistics = %String::from_utf8_lossy(statistics));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if self.shared.closing.load(Ordering::Relaxed) {
            return;
        }
        let reason = self.options.redactor.clean(reason);
        if let Some(refusal) = faults::certificate_refusal(&reason) {
            return self.shared.tracker.refused(refusal);
        }
        let code = code(&error);
        if refuses_connection(code) {
            return self.shared.tracker.refused(faults::explain(code, Subject::default()).because(reason));
        }
        // That all are down says less than why one of them is.
        if code != RDKafkaErrorCode::AllBrokersDown {
            *self.shared.last_error() = Some(reason);
        }
        // Full means that the probe has been asked already.
        self.suspicion.try_send(()).ok();
    }
}

/// Whether a broker answered and would not have us, so that waiting alone does not help.
fn refuses_connection(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    let of_sasl = [Code::SaslAuthenticationFailed, Code::UnsupportedSASLMechanism, Code::IllegalSASLState];
    code == Code::Authentication || code == Code::SSL || of_sasl.contains(&code)
}

fn subject<'a>(message: &'a BorrowedMessage<'_>) -> Subject<'a> {
    let record_bytes = Some(message.payload_len() + message.key_len());
    Subject { topic: Some(message.topic()), partition: Some(message.partition()), record_bytes, ..Subject::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_and_awaited_records_never_share_an_opaque() {
        let shared = Shared::new(false);
        let (awaited, _) = shared.await_one();
        assert_ne!(awaited & AWAITED, 0);
        assert_eq!(opaque(Ticket(7), false).unwrap(), 7);
        assert_eq!(opaque(Ticket(7), true).unwrap(), 7 | CHOSEN);
        for ticket in [u64::MAX, AWAITED as u64, CHOSEN as u64] {
            assert_eq!(opaque(Ticket(ticket), false).unwrap_err().kind(), Kind::Bug);
        }
    }
}
