//! librdkafka's callbacks: delivery reports, errors, logs. They run on the producer's polling
//! thread.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::producer::{DeliveryResult, ProducerContext};
use serde::Deserialize;
use tokio::sync::{Notify, oneshot};

use super::faults::{self, BUS, Subject, code};
use super::options::Options;
use super::partitions::KeyPartitioner;
use super::properties::Redactor;
use crate::sink::connection::{Home, Tracker};
use walrelay_core::error::{Disposition, Error, Kind, Remedy, Result};

use walrelay_core::event::Shown;

use walrelay_core::ledger::Ticket;

use walrelay_core::route::Record;

/// An ack without an offset: librdkafka infers one from the ack of a later batch, or from Kafka
/// taking the record for a copy. Both are guesses, and a guess is no delivery (P1).
const UNKNOWN_OFFSET: RDKafkaErrorCode = RDKafkaErrorCode::NoOffset;

/// Marks the opaque of a record whose sender waits for it itself; all others are tickets.
const AWAITED: usize = 1 << (usize::BITS - 1);
/// Marks the opaque of a record that chose its partition itself.
const CHOSEN: usize = 1 << (usize::BITS - 2);

#[derive(Debug)]
pub(super) struct Failure {
    pub(super) ticket: Ticket,
    pub(super) code: RDKafkaErrorCode,
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) record_bytes: usize,
    /// The event's id, where the record has it in a header.
    pub(super) label: Option<Shown>,
    pub(super) time_ms: Option<i64>,
}

/// Delivery reports that the sink has not taken yet.
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

/// How far the life of a producer has come. No state is ever left for an earlier one.
#[derive(Debug, Clone, Copy)]
pub(super) enum Life {
    Running,
    /// A record was not delivered, or a transaction is not known to be committed: nothing behind it
    /// is taken.
    Failed,
    /// The sink is gone, and the producer is being freed.
    Closing,
}

/// Of the last interval of statistics.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The average time that the slowest broker took to answer; 0 if unknown.
    pub(super) round_trip_us: AtomicU64,
    throttle: Mutex<Option<Throttle>>,
    /// Requests with records since the beginning, at each of the intervals.
    #[cfg(test)]
    pub(super) produced: Mutex<Vec<u64>>,
}

/// A broker that makes this client wait for its quota.
#[derive(Debug, Clone, Copy)]
struct Throttle {
    /// The average time for which it does.
    time: Duration,
    /// The end of it. A broker tells before it waits, and one interval may bring nothing but the
    /// wait.
    until: Instant,
}

impl Pace {
    #[cfg(test)]
    fn produced(&self, requests: u64) {
        self.produced.lock().push(requests);
    }

    pub(super) fn throttle(&self) -> Option<Duration> {
        self.throttle.lock().map(|throttle| throttle.time)
    }

    /// Takes the average of an interval, 0 where nothing was throttled. Says whether the client is
    /// throttled from now on.
    fn throttled(&self, time: Duration, now: Instant) -> bool {
        let mut throttle = self.throttle.lock();
        let was_throttled = throttle.is_some();
        if !time.is_zero() {
            *throttle = Some(Throttle {
                time,
                until: now + time,
            });
        } else if throttle.is_some_and(|throttle| throttle.until <= now) {
            *throttle = None;
        }
        throttle.is_some() && !was_throttled
    }
}

/// Shared between the sink and the polling threads.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) tracker: Tracker,
    /// librdkafka asks a broker for its cluster at the beginning of a connection, and sends the
    /// first record after the answer. But its main thread takes that answer in, and another thread
    /// the acks. An ack of another cluster would count if the main thread stood still for as long
    /// as the first record takes from there to its ack, and to the relay's loop.
    pub(super) home: Home,
    life: AtomicU8,
    pub(super) reports: Mutex<Reports>,
    /// Woken by the first report; one task waits.
    pub(super) wake: Notify,
    /// Why a record of this producer may reach a broker late. The first doubt stays.
    pub(super) doubt: OnceLock<Doubt>,
    denied: Denied,
    pub(super) outstanding: Outstanding,
    /// Asks the probe whether a broker still answers.
    pub(super) suspicion: Notify,
    pub(super) pace: Pace,
    /// The first topic a record was sent to.
    pub(super) topic: OnceLock<String>,
    pub(super) awaited: Awaited,
}

/// What librdkafka has to report.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    /// Records it has taken and not reported on. Its own count includes log lines nobody has
    /// polled.
    pub(super) records: AtomicUsize,
    /// Whether anything was reported since the probe looked.
    pub(super) reported: AtomicBool,
}

/// Records whose senders wait for them themselves.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    senders: Mutex<HashMap<usize, oneshot::Sender<Result<()>>>>,
    next: AtomicUsize,
}

impl Awaited {
    /// An opaque for a record whose delivery is told to the receiver.
    pub(super) fn begin(&self) -> (usize, oneshot::Receiver<Result<()>>) {
        let (sender, receiver) = oneshot::channel();
        let opaque = AWAITED | self.next.fetch_add(1, Ordering::Relaxed);
        self.senders.lock().insert(opaque, sender);
        (opaque, receiver)
    }

    /// The record with this opaque is not awaited any more, or was not taken after all.
    pub(super) fn end(&self, opaque: usize) -> Option<oneshot::Sender<Result<()>>> {
        self.senders.lock().remove(&opaque)
    }
}

impl Shared {
    /// `cluster_id` is the cluster of earlier producers, where it is known.
    pub(super) fn new(quiet: bool, cluster_id: Option<String>) -> Shared {
        Shared {
            tracker: Tracker::new(BUS, quiet),
            home: Home::new(BUS, cluster_id),
            life: AtomicU8::new(Life::Running as u8),
            reports: Mutex::default(),
            wake: Notify::new(),
            doubt: OnceLock::new(),
            denied: Denied::default(),
            outstanding: Outstanding::default(),
            suspicion: Notify::new(),
            pace: Pace::default(),
            topic: OnceLock::new(),
            awaited: Awaited::default(),
        }
    }

    /// Goes on to `life`, unless the producer is further already.
    pub(super) fn advance(&self, life: Life) {
        self.life.fetch_max(life as u8, Ordering::AcqRel);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.life.load(Ordering::Acquire) >= Life::Failed as u8
    }

    pub(super) fn is_closing(&self) -> bool {
        self.life.load(Ordering::Acquire) == Life::Closing as u8
    }

    pub(super) fn note_doubt(&self, doubt: Option<Doubt>) {
        if let Some(doubt) = doubt {
            self.doubt.set(doubt).ok();
        }
    }

    pub(super) fn sends_to(&self, topic: &str) {
        self.topic.get_or_init(|| topic.to_owned());
    }
}

/// The opaque of an event's record, which may have chosen its partition itself.
/// Errors: the ticket is one no ledger ever gives out: of all numbers a quarter is theirs.
pub(super) fn opaque(ticket: Ticket, chosen: bool) -> Result<usize> {
    let opaque = usize::try_from(ticket.0)
        .ok()
        .filter(|opaque| opaque & (AWAITED | CHOSEN) == 0);
    opaque
        .map(|opaque| if chosen { opaque | CHOSEN } else { opaque })
        .ok_or_else(|| Error::new(Kind::Bug, "tickets have run out"))
}

/// The producer's callbacks. They only note what happened.
pub(super) struct Context {
    pub(super) shared: Arc<Shared>,
    pub(super) options: Options,
    pub(super) partitioner: KeyPartitioner,
    /// Whether a refused record leaves the producer running.
    is_apart: bool,
}

impl Context {
    pub(super) fn new(shared: Arc<Shared>, options: Options) -> Context {
        Context {
            shared,
            options,
            partitioner: KeyPartitioner::default(),
            is_apart: false,
        }
    }

    /// The context of a second producer, for records that may be refused.
    pub(super) fn apart(&self) -> Context {
        let shared = Arc::clone(&self.shared);
        let options = self.options.clone().apart();
        Context {
            is_apart: true,
            ..Context::new(shared, options)
        }
    }

    /// Brokers refuse this client. Where files of the properties were replaced since it was made, a
    /// new one is made of them.
    fn refused(&self, refusal: Error) {
        let refusal = if self.options.files.have_changed() {
            outdated()
        } else {
            refusal
        };
        self.shared.tracker.refused(refusal);
    }

    /// No broker answers. Where files of the properties were replaced, a broker may have closed the
    /// connection for that.
    pub(super) fn is_down(&self, cause: String) {
        if self.options.files.have_changed() {
            self.shared.tracker.refused(outdated());
        } else {
            self.shared.tracker.down(cause);
        }
    }

    /// Why librdkafka did not take `record` after it was enqueued.
    pub(super) fn failure(
        &self,
        record: &Record<'_>,
        ticket: Ticket,
        error: &KafkaError,
    ) -> Failure {
        Failure {
            ticket,
            code: faults::of_record(code(error), record.partition.is_some()),
            topic: record.topic.to_owned(),
            partition: record.partition.unwrap_or(-1),
            record_bytes: record.value.map_or(0, <[u8]>::len) + record.key.map_or(0, <[u8]>::len),
            label: record
                .headers
                .first()
                .and_then(|(name, value)| self.label(name, *value)),
            time_ms: record.timestamp_ms,
        }
    }

    /// The event's id in a record's first header: it comes first where it comes at all, and no
    /// other header is shown (P11).
    fn label(&self, name: &str, value: Option<&[u8]>) -> Option<Shown> {
        value
            .filter(|_| self.options.id_headers.iter().any(|id| id == name))
            .map(Shown::of)
    }
}

impl ProducerContext<KeyPartitioner> for Context {
    type DeliveryOpaque = usize;

    fn get_custom_partitioner(&self) -> Option<&KeyPartitioner> {
        Some(&self.partitioner)
    }

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let Outstanding { records, reported } = &self.shared.outstanding;
        records.fetch_sub(1, Ordering::Relaxed);
        reported.store(true, Ordering::Relaxed);
        let (code, message) = match result {
            Ok(message) if message.offset() >= 0 => (None, message),
            Ok(message) => (Some(UNKNOWN_OFFSET), message),
            Err((error, message)) => (Some(code(error)), message),
        };
        let record_bytes = message.payload_len() + message.key_len();
        if opaque & AWAITED != 0 {
            // The record's partition is one that was seen.
            let subject = || Subject::of_record(message.topic(), message.partition(), record_bytes);
            let error = code.map(|code| faults::explain(faults::of_known(code), subject()));
            if let Some(sender) = self.shared.awaited.end(opaque) {
                // The sender of the record may have gone; the record is where it is.
                sender.send(error.map_or(Ok(()), Err)).ok();
            }
            return;
        }
        let ticket = Ticket((opaque & !CHOSEN) as u64);
        let mut reports = self.shared.reports.lock();
        let first = reports.is_empty();
        if let Some(code) = code {
            let id = message
                .headers()
                .filter(|headers| headers.count() > 0)
                .map(|headers| headers.get(0));
            let failure = Failure {
                ticket,
                code: faults::of_record(
                    self.shared.denied.reason(message.topic(), code),
                    opaque & CHOSEN != 0,
                ),
                topic: message.topic().to_owned(),
                partition: message.partition(),
                record_bytes,
                label: id.and_then(|header| self.label(header.key, header.value)),
                time_ms: message.timestamp().to_millis(),
            };
            if self.is_apart && faults::kind(failure.code).disposition() == Disposition::GiveUp {
                reports.refused.push(failure);
            } else {
                self.shared.advance(Life::Failed);
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
        // Lines for debugging say the same of connections that were ended on purpose.
        if (level as i32) < RDKafkaLogLevel::Debug as i32 {
            self.shared.note_doubt(Doubt::of_line(facility, text));
            self.shared.denied.note(facility, text);
            if let Some(reason) = reason_in(facility, text) {
                self.shared
                    .tracker
                    .note(self.options.redactor.clean(reason), false);
            }
        }
        // The one property librdkafka calls experimental is set on purpose; warning of it at each
        // start alarms for nothing.
        let known = facility == "CONFWARN" && text.contains("enable.gapless.guarantee");
        // The records that a closing producer gives up are known, and sound like a disaster in
        // librdkafka's words.
        let unheard = known
            || self.options.quiet
            || level as i32 > self.options.heard as i32
            || self.shared.is_closing();
        write_log(
            &self.options.redactor,
            if unheard {
                RDKafkaLogLevel::Debug
            } else {
                level
            },
            facility,
            text,
        );
    }

    fn stats_raw(&self, statistics: &[u8]) {
        tracing::trace!(target: "librdkafka", statistics = %String::from_utf8_lossy(statistics));
        let Ok(Statistics { brokers }) = serde_json::from_slice(statistics) else {
            return;
        };
        let pace = &self.shared.pace;
        #[cfg(test)]
        pace.produced(
            brokers
                .values()
                .filter_map(|broker| broker.req.get("Produce"))
                .sum(),
        );
        pace.round_trip_us
            .store(longest(&brokers, |broker| broker.rtt), Ordering::Relaxed);
        let throttle_ms = longest(&brokers, |broker| broker.throttle);
        if pace.throttled(Duration::from_millis(throttle_ms), Instant::now()) && !self.options.quiet
        {
            let fix = Remedy::from(
                "raise the quota of this user or client: kafka-configs --bootstrap-server … \
                 --describe --entity-type users \
                 --entity-type clients",
            );
            tracing::warn!(
                event = "kafka_throttled",
                throttle_ms,
                %fix,
                "Kafka slows down this client: its quota is used up"
            );
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if self.shared.is_closing() {
            return;
        }
        let reason = self.options.redactor.clean(reason);
        if let Some(refusal) = faults::certificate_refusal(&reason) {
            return self.refused(refusal);
        }
        let code = code(&error);
        if refuses_connection(code) {
            return self.refused(faults::explain(code, Subject::default()).because(reason));
        }
        // That all are down says less than why one of them is.
        if code != RDKafkaErrorCode::AllBrokersDown {
            self.shared.tracker.note(reason, true);
        }
        self.shared.suspicion.notify_one();
    }
}

/// The error of a producer whose files were replaced: the next one reads them.
fn outdated() -> Error {
    let cause = "Kafka does not answer, and a file that the Kafka properties name has changed: \
                 making a producer with it";
    Error::new(Kind::BusUnreachable, cause)
}

#[derive(Deserialize)]
struct Statistics {
    brokers: HashMap<String, BrokerStatistics>,
}

#[derive(Deserialize)]
struct BrokerStatistics {
    /// Times from requests to their answers, in microseconds.
    rtt: Window,
    /// Times for which requests had to wait for a quota, in milliseconds.
    throttle: Window,
    /// Requests of each kind since the beginning.
    #[cfg(test)]
    #[serde(default)]
    req: HashMap<String, u64>,
}

#[derive(Deserialize, Clone, Copy)]
struct Window {
    avg: u64,
    cnt: u64,
}

/// The longest average time of a broker; 0 where there was nothing to measure in this interval.
fn longest(
    brokers: &HashMap<String, BrokerStatistics>,
    of: impl Fn(&BrokerStatistics) -> Window,
) -> u64 {
    brokers
        .values()
        .map(of)
        .filter(|window| window.cnt > 0)
        .map(|window| window.avg)
        .max()
        .unwrap_or_default()
}

/// Whether a broker answered and would not have us, so that waiting alone does not help.
fn refuses_connection(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    let of_sasl = [
        Code::SaslAuthenticationFailed,
        Code::UnsupportedSASLMechanism,
        Code::IllegalSASLState,
    ];
    code == Code::Authentication || code == Code::SSL || of_sasl.contains(&code)
}

/// Facilities of the lines whose news is in lines of walrelay, with librdkafka's reason:
/// connections that ended (`broker_disconnected`, `bus_disconnected`, `bus_refused`), requests that
/// timed out, which end a connection, and failed transactions (`producer_failed`, `topic_refused`).
const TOLD: [&str; 4] = [ENDED_FACILITY, "REQTMOUT", "TXNERR", DENIED_FACILITY];

/// Whether walrelay tells by itself what this line tells.
fn is_told(level: RDKafkaLogLevel, facility: &str) -> bool {
    level as i32 > RDKafkaLogLevel::Critical as i32 && TOLD.contains(&facility)
}

/// Writes a line of librdkafka's log to ours, with secrets taken out. An error of librdkafka is a
/// warning here, because librdkafka goes on. Lines with news that walrelay logs itself are written
/// at the level debug.
pub(super) fn write_log(redactor: &Redactor, level: RDKafkaLogLevel, facility: &str, text: &str) {
    use RDKafkaLogLevel as Level;
    let event = "librdkafka_reported";
    match if is_told(level, facility) {
        Level::Debug
    } else {
        level
    } {
        Level::Emerg | Level::Alert | Level::Critical => {
            tracing::error!(target: "librdkafka", event, facility, "{}", redactor.clean(text));
        }
        Level::Error | Level::Warning => {
            tracing::warn!(target: "librdkafka", event, facility, "{}", redactor.clean(text));
        }
        Level::Notice | Level::Info => {
            tracing::info!(target: "librdkafka", event, facility, "{}", redactor.clean(text));
        }
        Level::Debug => tracing::debug!(target: "librdkafka", facility, "{}", redactor.clean(text)),
    }
}

/// Why a connection ended, in a line of librdkafka's log: the text behind the name of the thread.
pub(super) fn reason_in<'t>(facility: &str, text: &'t str) -> Option<&'t str> {
    let reason = || {
        text.split_once("]: ")
            .filter(|(thread, _)| thread.starts_with("[thrd:"))
            .map_or(text, |(_, rest)| rest)
    };
    (facility == ENDED_FACILITY).then(reason)
}

/// Facility of the lines that say of a topic that a transaction may not have it.
const DENIED_FACILITY: &str = "ADDPARTS";
/// The text in front of the topic's name, and the text behind it.
const AROUND: (&str, &str) = ("Failed to add partition \"", "\" [");
/// The end of such a line.
const DENIED: &str = "Topic authorization failed";

/// Topics that were denied to a producer: the brokers keep their partitions out of a transaction.
///
/// librdkafka then gives the transaction up, and calls every record in it purged. Only a line of
/// its log names the topic.
#[derive(Debug, Default)]
struct Denied(Mutex<HashSet<String>>);

impl Denied {
    fn note(&self, facility: &str, line: &str) {
        if facility == DENIED_FACILITY
            && line.ends_with(DENIED)
            && let Some((_, after)) = line.split_once(AROUND.0)
            && let Some((topic, _)) = after.split_once(AROUND.1)
        {
            self.0.lock().insert(topic.to_owned());
        }
    }

    /// Why a record for `topic` was not delivered, where librdkafka's reason is `code`.
    fn reason(&self, topic: &str, code: RDKafkaErrorCode) -> RDKafkaErrorCode {
        use RDKafkaErrorCode as Code;
        let is_purged = matches!(code, Code::PurgeQueue | Code::PurgeInflight);
        if !is_purged || !self.0.lock().contains(topic) {
            return code;
        }
        if faults::is_internal(topic) {
            Code::InvalidTopic
        } else {
            Code::TopicAuthorizationFailed
        }
    }
}

/// A commit is answered within milliseconds. One that took this long may have been sent twice, and
/// no line says so.
const SLOW: Duration = Duration::from_secs(5);

/// Facility of the lines in which librdkafka says that a connection has ended.
const ENDED_FACILITY: &str = "FAIL";
/// How the end of such a line says that the connection was one over which requests went.
const IN_USE: [&str; 2] = ["in state UP", "in state REAUTH"];
/// A part of all such lines.
const IN_STATE: &str = "in state ";

/// Why a producer is not to begin another transaction although its last is committed: a request of
/// that may be on its way.
///
/// librdkafka sends a commit again when the connection breaks before the answer. The request that
/// went down with that connection may reach the coordinator late. Without KIP-890 nothing tells it
/// from the commit of the transaction which that producer has open by then: it would end that one,
/// half done. A new producer has a new epoch, which fences late requests.
///
/// librdkafka does not say which requests it sends again. It says that a connection broke, in a
/// line of its log, and the second time within half a minute it says nothing. So one such line is
/// enough for all that comes after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubt {
    /// A connection broke that requests may have gone down with.
    Broke,
    /// A commit took this long.
    Slow(Duration),
}

impl Doubt {
    /// The doubt that follows from a line of librdkafka's log.
    fn of_line(facility: &str, line: &str) -> Option<Doubt> {
        let in_use = || !line.contains(IN_STATE) || IN_USE.iter().any(|state| line.contains(state));
        (facility == ENDED_FACILITY && in_use()).then_some(Doubt::Broke)
    }

    /// The doubt that follows from a commit that took so long.
    pub(super) fn of_commit(took: Duration) -> Option<Doubt> {
        (took >= SLOW).then_some(Doubt::Slow(took))
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::Broke => f.write_str("a connection to a broker broke"),
            Doubt::Slow(took) => write!(f, "a commit took {} ms", took.as_millis()),
        }
    }
}

#[cfg(test)]
mod tests {
    use RDKafkaErrorCode::{
        InvalidTopic, MessageSizeTooLarge, PurgeInflight, PurgeQueue,
        TopicAuthorizationFailed as Denial,
    };

    use super::*;

    #[test]
    fn tickets_and_awaited_records_never_share_an_opaque() {
        let (awaited, _) = Awaited::default().begin();
        assert_ne!(awaited & AWAITED, 0);
        assert_eq!(opaque(Ticket(7), false).unwrap(), 7);
        assert_eq!(opaque(Ticket(7), true).unwrap(), 7 | CHOSEN);
        for ticket in [u64::MAX, AWAITED as u64, CHOSEN as u64] {
            assert_eq!(opaque(Ticket(ticket), false).unwrap_err().kind(), Kind::Bug);
        }
    }

    #[test]
    fn a_producer_that_ended_never_runs_again() {
        let shared = Shared::new(false, None);
        for (life, has_ended, is_closing) in [
            (Life::Running, false, false),
            (Life::Failed, true, false),
            (Life::Running, true, false),
            (Life::Closing, true, true),
            (Life::Failed, true, true),
        ] {
            shared.advance(life);
            assert_eq!(
                (shared.has_ended(), shared.is_closing()),
                (has_ended, is_closing),
                "{life:?}"
            );
        }
    }

    #[test]
    fn a_client_is_throttled_until_an_interval_without_it_after_its_end() {
        let pace = Pace::default();
        let start = Instant::now();
        let told = |after_s, time_s| {
            let begins = pace.throttled(
                Duration::from_secs(time_s),
                start + Duration::from_secs(after_s),
            );
            (begins, pace.throttle().map(|time| time.as_secs()))
        };
        assert_eq!(told(0, 0), (false, None));
        assert_eq!(told(30, 50), (true, Some(50)));
        assert_eq!(told(60, 0), (false, Some(50)), "it still waits");
        assert_eq!(told(90, 0), (false, None));
        assert_eq!(told(120, 1), (true, Some(1)));
        assert_eq!(told(150, 2), (false, Some(2)));
    }

    #[test]
    fn round_trip_and_throttle_are_those_of_the_slowest_broker_that_was_measured() {
        let window = |avg, cnt| serde_json::json!({"min": 1, "avg": avg, "cnt": cnt});
        let broker = |avg, cnt| {
            let throttle = window(avg / 100, cnt);
            serde_json::json!({"nodeid": 1, "rtt": window(avg, cnt), "throttle": throttle})
        };
        let of = |brokers| {
            let statistics = serde_json::json!({"brokers": brokers, "ts": 1}).to_string();
            let Statistics { brokers } = serde_json::from_str(&statistics).unwrap();
            [
                longest(&brokers, |broker| broker.rtt),
                longest(&brokers, |broker| broker.throttle),
            ]
        };
        assert_eq!(
            of(
                serde_json::json!({"a": broker(700, 2), "b": broker(1200, 1), "c": broker(9000, 0)})
            ),
            [1200, 12]
        );
        assert_eq!(of(serde_json::json!({"a": broker(700, 0)})), [0, 0]);
    }

    #[test]
    fn a_line_is_told_by_walrelay_unless_it_is_fatal_or_of_another_kind() {
        use RDKafkaLogLevel::{Alert, Error, Info, Warning};
        for (level, facility, expected) in [
            (Error, "FAIL", true),
            (Info, "FAIL", true),
            (Error, "TXNERR", true),
            (Alert, "TXNERR", false),
            (Warning, "CONFWARN", false),
        ] {
            assert_eq!(is_told(level, facility), expected, "{level:?} {facility}");
        }
        let line = "[thrd:[::1]:9092/1]: [::1]:9092/1: Connect to ipv6#[::1]:9092 failed: refused";
        assert_eq!(
            reason_in("FAIL", line),
            Some("[::1]:9092/1: Connect to ipv6#[::1]:9092 failed: refused")
        );
        assert_eq!(
            (reason_in("FAIL", "cut"), reason_in("CONFWARN", line)),
            (Some("cut"), None)
        );
    }

    #[test]
    fn purged_records_of_a_denied_topic_fail_with_the_denial() {
        let denied = Denied::default();
        let line = |topic: &str, why: &str| {
            format!(
                "[thrd:main]: TxnCoordinator/1: Failed to add partition \"{topic}\" [0] to \
                 transaction: Broker: {why}"
            )
        };
        denied.note("ADDPARTS", &line("mail", "Operation not attempted"));
        denied.note("TXNERR", &line("mail", DENIED));
        denied.note("ADDPARTS", "Topic authorization failed");
        denied.note("ADDPARTS", &line("orders", DENIED));
        denied.note("ADDPARTS", &line("__consumer_offsets", DENIED));
        for (topic, code, reason) in [
            ("orders", PurgeQueue, Denial),
            ("orders", PurgeInflight, Denial),
            ("orders", MessageSizeTooLarge, MessageSizeTooLarge),
            ("__consumer_offsets", PurgeQueue, InvalidTopic),
            ("mail", PurgeQueue, PurgeQueue),
        ] {
            assert_eq!(denied.reason(topic, code), reason, "{topic} {code:?}");
        }
    }

    #[test]
    fn a_broken_connection_or_a_slow_commit_is_a_doubt_and_a_failed_connect_is_not() {
        for line in [
            "[thrd:TxnCoordinator]: TxnCoordinator: 127.0.0.1:9092: Disconnected: connection \
             closed by peer (after 7ms in state UP)",
            "[thrd:b:1/1]: b:1/1: 1 request(s) timed out: disconnect (average rtt 1.2ms) (after \
             60009ms in state UP)",
            "[thrd:b:1/1]: b:1/1: Receive failed: Connection reset by peer (after 9ms in state UP, \
             3 identical error(s) suppressed)",
            "[thrd:b:1/1]: b:1/1: Disconnected (after 9ms in state REAUTH)",
            "a line that was cut off",
        ] {
            assert_eq!(Doubt::of_line("FAIL", line), Some(Doubt::Broke), "{line}");
            assert_eq!(Doubt::of_line("CONFWARN", line), None);
        }
        for line in [
            "[thrd:b:1/1]: b:1/1: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after \
             0ms in state CONNECT)",
            "[thrd:b:1/1]: b:1/1: Failed to resolve 'b:1': Name or service not known (after 1ms in \
             state TRY_CONNECT)",
            "[thrd:b:1/1]: b:1/1: Disconnected: verify that security.protocol is right (after 1ms \
             in state APIVERSION_QUERY)",
        ] {
            assert_eq!(Doubt::of_line("FAIL", line), None, "{line}");
        }
        assert_eq!(Doubt::of_commit(SLOW - Duration::from_millis(1)), None);
        assert_eq!(Doubt::of_commit(SLOW), Some(Doubt::Slow(SLOW)));
    }
}
