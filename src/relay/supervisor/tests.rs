//! Every row of the error tables, by a sink that fails so: what becomes of the event, of the relay,
//! and what is said.

use rdkafka::error::RDKafkaErrorCode::{self, *};
use strum::VariantArray as _;

use super::*;
use crate::config::layers::{Environment, Flags, Settings};
use crate::config::{Bus, Config};
use crate::relay::setup_of;
use crate::relay::shared_loop::RETRY_INTERVAL;
use crate::relay::stop::stop_channel;
use crate::sink::kafka::faults::{Subject, explain, rows};
use crate::telemetry::Telemetry;
use walrelay_core::config::DeliveryConfig;
use walrelay_core::decode::Value;
use walrelay_core::error::{Disposition, Kind};
use walrelay_core::event::RowId;
use walrelay_core::ledger::Ticket;
use walrelay_core::position::{Lsn, Position};
use walrelay_core::publisher::Counts;
use walrelay_core::publisher::pipeline::Pipeline;
use walrelay_core::publisher::write_back::WriteBack;
use walrelay_core::readiness::NotReady;
use walrelay_core::route::Record;
use walrelay_core::sink::{Delivery, EnqueueError, Sink};
use walrelay_core::testing::COLUMNS;
use walrelay_core::testing::wire;

const TOPIC: &str = "outbox.event.order";
/// Tries behind the first.
const ATTEMPTS: usize = 2;
/// Lives of a producer after which it is still tried.
const LIVES: usize = 12;
const PLACED: [Value<'static>; 5] = [
    Value::Text(b"7"),
    Value::Text(b"order"),
    Value::Text(b"o-1"),
    Value::Text(b"Placed"),
    Value::Text(b"{}"),
];
/// Without the value that its topic is made of.
const UNROUTABLE: [Value<'static>; 5] = [PLACED[0], Value::Null, PLACED[2], PLACED[3], PLACED[4]];
const MODES: [&str; 4] = ["stop", "park", "dead-letter", "skip"];

/// The codes of brokers' errors, and their disposition.
const EXPECTED: [(&str, Disposition); 4] = [
    (
        "MessageSizeTooLarge MessageBatchTooLarge InvalidMessageSize InvalidMessage InvalidRecord \
         InvalidTimestamp UnknownPartition InvalidTopic",
        Disposition::GiveUp,
    ),
    (
        "TopicAuthorizationFailed UnknownTopicOrPartition UnknownTopic UnknownTopicId \
         PolicyViolation \
         ThrottlingQuotaExceeded InvalidReplicationFactor InvalidPartitions",
        Disposition::RetryThenGiveUp,
    ),
    (
        "ClusterAuthorizationFailed GroupAuthorizationFailed DelegationTokenAuthorizationFailed \
         TransactionalIdAuthorizationFailed InvalidTransactionTimeout Authentication \
         SaslAuthenticationFailed \
         UnsupportedSASLMechanism IllegalSASLState SecurityDisabled DelegationTokenExpired \
         DelegationTokenNotFound DelegationTokenAuthDisabled SSL InvalidArgument \
         UnsupportedFeature \
         UnsupportedVersion UnsupportedForMessageFormat UnsupportedCompressionType BadCompression \
         InvalidRequiredAcks InvalidConfig NotImplemented",
        Disposition::Halt,
    ),
    (
        "InvalidProducerEpoch InvalidProducerIdMapping ProducerFenced Fenced Fatal \
         GaplessGuarantee \
         Inconsistent OutOfOrderSequenceNumber UnknownProducerId NoOffset PurgeQueue PurgeInflight \
         InvalidDifferentRecord BrokerDestroy DestroyBroker BrokerTransportFailure AllBrokersDown \
         Resolve \
         OperationTimedOut RequestTimedOut NetworkException BrokerNotAvailable TimedOutQueue \
         MessageTimedOut \
         LeaderNotAvailable NotLeaderForPartition NotEnoughReplicas NotEnoughReplicasAfterAppend \
         ISRInsufficient ReplicaNotAvailable KafkaStorageError",
        Disposition::Retry,
    ),
];

/// When a record is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Enqueue,
    Delivery,
    /// There is no room for it at the first two offers, and it is acked.
    Late,
    /// The broker does not answer.
    Never,
}

/// Fails the records of a kind. Notes the topic and the id of all it is offered.
#[derive(Debug)]
struct Failing {
    code: RDKafkaErrorCode,
    at: At,
    /// Which it fails: those of dead letters, or all others.
    letters: bool,
    /// How many it fails.
    left: usize,
    offered: Vec<(String, String)>,
    told: Vec<Delivery>,
}

impl Failing {
    /// Fails every record but dead letters.
    fn new(code: RDKafkaErrorCode, at: At) -> Failing {
        Failing {
            code,
            at,
            letters: false,
            left: usize::MAX,
            offered: Vec::new(),
            told: Vec::new(),
        }
    }
}

impl Sink for Failing {
    fn enqueue(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        let id = record
            .headers
            .first()
            .and_then(|(_, id)| *id)
            .unwrap_or_default();
        self.offered.push((
            record.topic.to_owned(),
            String::from_utf8_lossy(id).into_owned(),
        ));
        let is_letter = record.topic == DeliveryConfig::default().dead_letter_topic;
        if is_letter != self.letters || self.left == 0 {
            self.told.push(Delivery::Acked(ticket));
            return Ok(());
        }
        self.left -= 1;
        let error = explain(
            self.code,
            Subject {
                topic: Some(record.topic),
                ..Subject::default()
            },
        );
        match self.at {
            At::Enqueue => return Err(EnqueueError::Refused(error)),
            At::Delivery => self.told.push(Delivery::Failed(ticket, error)),
            At::Late if self.offered.len() < 3 => return Err(EnqueueError::Full),
            At::Late => self.told.push(Delivery::Acked(ticket)),
            At::Never => {}
        }
        Ok(())
    }

    async fn deliveries(&mut self, into: &mut Vec<Delivery>) {
        if self.told.is_empty() && matches!(self.at, At::Late | At::Never) {
            std::future::pending().await
        }
        into.append(&mut self.told);
    }
}

#[derive(Debug)]
enum Came {
    /// The relay ended.
    Ended(Error),
    /// The relay went on behind the event.
    WentOn(Counts),
    /// It is tried for as long as it takes.
    TriesOn,
}

pub(in crate::relay) fn config(on_error: &str) -> Config {
    let flags = [
        ("database.url", "postgres://relay@127.0.0.1/shop"),
        ("slot.name", "orders"),
        ("kafka.brokers", "127.0.0.1:9092"),
        ("delivery.on_error", on_error),
    ];
    let flags = Flags::from(flags.map(|(key, value)| (key, value.to_owned())));
    Settings::new(&flags, &Environment::new(), None)
        .unwrap()
        .config(false)
        .unwrap()
}

fn relay(on_error: &str) -> Relay {
    let mut config = config(on_error);
    config.delivery.retry.attempts = u32::try_from(ATTEMPTS).unwrap();
    config.outboxes[0] = walrelay_core::testing::outbox();
    Relay::new(
        config,
        Telemetry::new(Bus::default(), Duration::from_secs(60)),
    )
    .unwrap()
}

/// Another producer's life begins.
fn begin<S: Sink>(relay: &mut Relay, sink: S) -> Pipeline<S> {
    let setup = setup_of(&relay.config);
    let start = Position::default();
    let mut pipeline = Pipeline::new(&setup, start, start, None, sink, Duration::ZERO).unwrap();
    pipeline.publisher.judge.quarantine = relay.producer.quarantine.take_over();
    pipeline
}

fn failed(relay: &mut Relay, error: &Error) -> Result<Duration> {
    let (_stopper, stop) = stop_channel();
    match relay.after(Err(error.clone()), &stop)? {
        Next::TryAgain(error) => Ok(relay.failed(&error)?.wait),
        Next::StandBy(_) => Ok(Duration::ZERO),
        next @ (Next::Open | Next::DropSlot | Next::Leave | Next::LeaveWithoutAcks(_)) => {
            panic!("{next:?}")
        }
    }
}

/// The beginning of a transaction with these rows, which may have a value for `max`.
fn take_in<S: Sink>(pipeline: &mut Pipeline<S>, rows: &[&[Value<'_>]]) -> Result<()> {
    let columns = [COLUMNS.as_slice(), &["max"]].concat();
    let described = wire::relation(16_384, "public", "outbox", &columns[..rows[0].len()]);
    let rows = rows.iter().map(|row| wire::insert(16_384, row));
    for message in [wire::begin(100, 9, 1), described].into_iter().chain(rows) {
        pipeline.data(Lsn::new(5), &message, Instant::now().into_std())?;
    }
    Ok(())
}

/// The producer's life ends.
fn end<S: Sink>(relay: &mut Relay, pipeline: &mut Pipeline<S>) {
    relay.producer.quarantine = std::mem::take(&mut pipeline.publisher.judge.quarantine);
}

/// One event through a producer's life: what ended that.
async fn live(pipeline: &mut Pipeline<Failing>, row: &[Value<'_>]) -> Result<()> {
    take_in(pipeline, &[row])?;
    // One that waits to be in flight alone is offered again.
    pipeline.publisher.retry_pending()?;
    pipeline.publisher.receive_deliveries().await;
    pipeline.publisher.delivered()?;
    assert!(pipeline.publisher.is_drained());
    Ok(())
}

/// Lives follow one another as in [`Relay::run`]; gives what came of it, and the waits between.
async fn driven(
    relay: &mut Relay,
    (code, at): (RDKafkaErrorCode, At),
    row: &[Value<'_>],
) -> (Came, Vec<Duration>) {
    let mut waits = Vec::new();
    for _ in 0..LIVES {
        let mut pipeline = begin(relay, Failing::new(code, at));
        let lived = live(&mut pipeline, row).await;
        report_counts(
            &relay.telemetry,
            pipeline.publisher.counts,
            Counts::default(),
        );
        let Err(error) = lived else {
            return (Came::WentOn(pipeline.publisher.counts), waits);
        };
        end(relay, &mut pipeline);
        match failed(relay, &error) {
            Err(error) => return (Came::Ended(error), waits),
            Ok(wait) => {
                waits.extend(Some(wait).filter(|wait| !wait.is_zero()));
                // Longer than any wait: what is counted is tries, and a session may take long to
                // open.
                tokio::time::advance(Duration::from_secs(3_600)).await;
            }
        }
    }
    (Came::TriesOn, waits)
}

/// How many events were given up as `on_error` says, and how many in any way.
fn given_up(on_error: &str, counts: &Counts) -> (u64, u64) {
    let as_said = match on_error {
        "park" => counts.parked,
        "dead-letter" => counts.dead_lettered,
        _ => counts.skipped,
    };
    (
        as_said,
        counts.parked + counts.dead_lettered + counts.skipped,
    )
}

/// P10.
#[tokio::test(start_paused = true)]
async fn a_drain_ends_with_the_last_ack_a_failure_or_at_its_deadline() {
    let mut relay = relay("stop");
    let limit = Duration::from_secs(30);
    let (stopper, mut stop) = stop_channel();
    let ends = [
        (NoError, At::Late, Ok(true), RETRY_INTERVAL),
        (NoError, At::Never, Ok(false), limit),
        (
            BrokerTransportFailure,
            At::Delivery,
            Ok(false),
            Duration::ZERO,
        ),
        (
            InvalidRecord,
            At::Delivery,
            Err(Kind::Record),
            Duration::ZERO,
        ),
    ];
    for (code, at, expected, after) in ends {
        let mut pipeline = begin(&mut relay, Failing::new(code, at));
        let began = Instant::now();
        take_in(&mut pipeline, &[&PLACED]).unwrap();
        let ended = drain::drain(&mut pipeline.publisher, began + limit, &mut stop).await;
        assert_eq!(ended.map_err(|error| error.kind()), expected, "{at:?}");
        assert!(
            (after..=after + RETRY_INTERVAL).contains(&began.elapsed()),
            "{at:?}"
        );
    }
    let mut pipeline = begin(&mut relay, Failing::new(NoError, At::Never));
    let began = Instant::now();
    take_in(&mut pipeline, &[&PLACED]).unwrap();
    stopper.ask(Stop::Now);
    assert_eq!(
        drain::drain(&mut pipeline.publisher, began + limit, &mut stop).await,
        Ok(false)
    );
    assert_eq!(
        began.elapsed(),
        Duration::ZERO,
        "a second signal ends it at once"
    );
}

/// P10.
#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_what_is_asked_about_an_error() {
    let (stopper, mut stop) = stop_channel();
    let error = |cause: &str| Error::new(Kind::TopicRefused, cause);
    let found = until_stopped(&mut stop, error("first"), async { error("found") }).await;
    assert_eq!(found.cause(), "found");
    stopper.ask(Stop::Drain);
    let limit = Duration::from_secs(1);
    let told = tokio::time::timeout(
        limit,
        until_stopped(&mut stop, error("first"), std::future::pending()),
    )
    .await;
    assert_eq!(
        told.map(|told| told.cause().to_owned()),
        Ok("first".to_owned())
    );
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_takes_nothing_in_holds_up_commits_while_they_wait_for_it() {
    let mut relay = relay("stop");
    let mut pipeline = begin(&mut relay, Failing::new(NoError, At::Never));
    pipeline.publisher.ledger.limits.events = 1;
    let row = RowId::new(0, std::iter::once(&b"7"[..]));
    pipeline
        .publisher
        .write_backs
        .push(Position::default(), WriteBack::Acked(row), None, 0);
    // All of it is stored, and rows that wait to be marked are as many as may be in flight.
    assert!(
        !pipeline.publisher.has_room()
            && pipeline.publisher.is_drained()
            && !pipeline.holds_up_commits()
    );
    pipeline.set_synchronous(true).unwrap();
    assert!(pipeline.holds_up_commits());
    pipeline.publisher.ledger.limits.events = 2;
    assert!(!pipeline.holds_up_commits());
    take_in(&mut pipeline, &[&PLACED]).unwrap();
    assert!(pipeline.holds_up_commits(), "an event is not acked");
}

#[tokio::test(start_paused = true)]
async fn each_broker_error_has_the_expected_disposition_and_remedy() {
    let mut seen = 0;
    for (codes, kind, remedy) in rows() {
        let disposition = kind.disposition();
        for code in codes {
            let is_listed = |(codes, _): &&(&str, _)| {
                codes
                    .split(' ')
                    .any(|listed| *listed == format!("{code:?}"))
            };
            assert_eq!(
                EXPECTED
                    .iter()
                    .find(is_listed)
                    .map(|(_, expected)| *expected),
                Some(disposition),
                "{code:?}"
            );
            seen += 1;
        }
        for on_error in MODES {
            for (code, at) in codes
                .iter()
                .flat_map(|code| [(*code, At::Enqueue), (*code, At::Delivery)])
            {
                let of = format!("{code:?} at {at:?} with {on_error}");
                let (came, waits) = driven(&mut relay(on_error), (code, at), &PLACED).await;
                let ends = match disposition {
                    Disposition::Retry => {
                        assert!(
                            matches!(came, Came::TriesOn) && waits.len() == LIVES,
                            "{of}: {came:?}"
                        );
                        continue;
                    }
                    Disposition::Halt => true,
                    Disposition::GiveUp | Disposition::RetryThenGiveUp => on_error == "stop",
                };
                match came {
                    Came::Ended(error) if ends => {
                        assert_eq!(error.kind(), kind, "{of}");
                        let remedy = remedy
                            .replace("{topic}", TOPIC)
                            .replace("{transactional_id}", "ID");
                        let remedy = remedy.replace("{timestamp}", "this host's clock");
                        assert!(
                            error.what_to_do().unwrap().contains(&remedy),
                            "{of}: {error:?}"
                        );
                        assert!(
                            !remedy.is_empty() && error.cause().contains(TOPIC),
                            "{of}: {error}"
                        );
                    }
                    Came::WentOn(counts) if !ends => {
                        assert_eq!(
                            (given_up(on_error, &counts), counts.routed),
                            ((1, 1), 1),
                            "{of}"
                        );
                    }
                    came @ (Came::Ended(_) | Came::WentOn(_) | Came::TriesOn) => {
                        panic!("{of}: {came:?}")
                    }
                }
                // Where an event that is refused waits, its topic is none of the relay's business
                // any more.
                let retried = disposition == Disposition::RetryThenGiveUp
                    && (on_error != "park" || at == At::Enqueue);
                match retried {
                    true => assert_eq!(waits.len(), ATTEMPTS, "{of}: {waits:?}"),
                    // To find out which event it was takes lives, and no attempts.
                    false => assert!(waits.len() <= if ends { 0 } else { 2 }, "{of}: {waits:?}"),
                }
            }
        }
    }
    assert_eq!(
        seen,
        EXPECTED
            .iter()
            .flat_map(|(codes, _)| codes.split(' '))
            .count()
    );
}

#[tokio::test(start_paused = true)]
async fn an_unlisted_broker_error_is_retried_without_end() {
    for on_error in MODES {
        let (came, waits) = driven(&mut relay(on_error), (Unknown, At::Delivery), &PLACED).await;
        assert!(
            matches!(came, Came::TriesOn) && waits.len() == LIVES,
            "{on_error}: {came:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_unroutable_event_ends_the_relay_or_is_given_up_as_configured() {
    for on_error in MODES {
        match driven(&mut relay(on_error), (NoError, At::Delivery), &UNROUTABLE).await {
            (Came::Ended(error), _) if on_error == "stop" => {
                assert_eq!(error.kind(), Kind::Event);
                let fix = error.what_to_do().unwrap();
                assert!(
                    error.cause().contains("aggregatetype")
                        && fix.starts_with("nothing was skipped"),
                    "{error}"
                );
                assert!(
                    fix.contains("--on-error skip`") && !fix.contains("advance"),
                    "{fix}"
                );
            }
            (Came::WentOn(counts), _) => {
                assert_eq!(
                    (given_up(on_error, &counts), counts.routed),
                    ((1, 1), 0),
                    "{on_error}"
                );
            }
            (came, _) => panic!("{on_error}: {came:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_failed_attempt_is_counted_once() {
    let refusals = 1 + ATTEMPTS;
    for (on_error, code, at, class, attempts) in [
        ("skip", MessageSizeTooLarge, At::Delivery, "too-large", 1),
        (
            "dead-letter",
            MessageSizeTooLarge,
            At::Enqueue,
            "too-large",
            1,
        ),
        ("park", MessageSizeTooLarge, At::Delivery, "too-large", 1),
        (
            "skip",
            TopicAuthorizationFailed,
            At::Delivery,
            "refused",
            refusals,
        ),
        (
            "dead-letter",
            TopicAuthorizationFailed,
            At::Enqueue,
            "refused",
            refusals,
        ),
        (
            "park",
            TopicAuthorizationFailed,
            At::Enqueue,
            "refused",
            refusals,
        ),
        // Its event is tried again from the table of parked events.
        ("park", TopicAuthorizationFailed, At::Delivery, "refused", 1),
    ] {
        let mut relay = relay(on_error);
        let (came, _) = driven(&mut relay, (code, at), &PLACED).await;
        assert!(matches!(came, Came::WentOn(_)), "{on_error}: {came:?}");
        let text = relay.telemetry.encode().unwrap();
        let counted = text
            .lines()
            .filter(|line| line.starts_with("walrelay_failed_attempts_total{"));
        let counted: Vec<_> = counted.filter(|line| !line.ends_with(" 0")).collect();
        let expected = format!("walrelay_failed_attempts_total{{class=\"{class}\"}} {attempts}");
        assert_eq!(
            counted,
            [expected.as_str()],
            "{code:?} at {at:?} with {on_error}"
        );
    }
}

#[test]
fn an_event_that_was_given_up_and_comes_again_is_no_further_failed_attempt() {
    let mut relay = relay("dead-letter");
    let mut failed = Vec::new();
    for _ in 0..2 {
        let mut pipeline = begin(&mut relay, Failing::new(NoError, At::Delivery));
        // The connection is lost before its dead letter is acked.
        take_in(&mut pipeline, &[&UNROUTABLE]).unwrap();
        failed.push(pipeline.publisher.counts.failed.iter().sum::<u64>());
        end(&mut relay, &mut pipeline);
    }
    assert_eq!(failed, [1, 0]);
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_error_ends_the_relay_with_its_remedy_or_is_retried() {
    for &kind in Kind::VARIANTS {
        let mut relay = relay("stop");
        let error = Error::new(kind, "the test says so")
            .of_topic(TOPIC)
            .remedy("mend it");
        // Only a topic is tried a number of times.
        let error = if kind == Kind::TopicRefused {
            error
        } else {
            Error::new(kind, error.cause()).remedy("mend it")
        };
        let tries = (0..LIVES)
            .take_while(|_| failed(&mut relay, &error).is_ok())
            .count();
        let ended = failed(&mut relay, &error).err();
        let of_postgres = matches!(
            kind,
            Kind::PostgresUnreachable | Kind::PostgresUnwritable | Kind::SlotActive
        );
        let is_retried = of_postgres || kind == Kind::BusUnreachable;
        let attempts = if kind == Kind::TopicRefused {
            ATTEMPTS
        } else {
            0
        };
        let expected = if is_retried { LIVES } else { attempts };
        assert_eq!(
            (tries, ended.as_ref().map(Error::kind)),
            (expected, (tries < LIVES).then_some(kind)),
            "{kind:?}"
        );
        // Findings of commands are no faults, and no relay comes to them.
        let is_finding = matches!(
            kind,
            Kind::Unhealthy | Kind::NotVerified | Kind::NotCarried | Kind::NothingMatched
        );
        assert_eq!(
            kind.remedy().is_none(),
            is_finding,
            "{kind:?} leaves a person alone"
        );
        assert!(
            is_finding || !kind.halts() || Error::new(kind, "bare").what_to_do().is_some(),
            "{kind:?}"
        );
        assert!(
            ended.is_none_or(|ended| ended.what_to_do().unwrap().contains("mend it")),
            "{kind:?}"
        );
    }
}

/// P10.
#[tokio::test(start_paused = true)]
async fn a_stop_during_a_retry_opens_no_other_session() {
    let mut relay = relay("skip");
    relay.config.delivery.retry.attempts = 0;
    let refused = Error::new(Kind::TopicRefused, "no right to write").of_topic(TOPIC);
    let (stopper, mut stop) = stop_channel();
    stopper.ask(Stop::Drain);
    for _ in 0..LIVES {
        let next = relay.try_again(refused.clone(), &mut stop).await;
        assert_eq!(next, Ok(Next::Leave));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_position_is_tried_again_with_growing_waits_and_gives_up_no_event() {
    for on_error in MODES {
        let mut relay = relay(on_error);
        let topic = relay.config.state.topic.clone();
        let refused = Error::new(Kind::TopicRefused, "no right to write").of_topic(&topic);
        let waits: Vec<_> = (0..LIVES)
            .map(|_| failed(&mut relay, &refused).unwrap())
            .collect();
        assert!(
            waits.iter().all(|wait| !wait.is_zero()) && waits.last() > waits.first(),
            "{on_error}: {waits:?}"
        );
        assert!(
            relay
                .producer
                .newest_quarantine()
                .topics
                .given_up(&topic, Instant::now().into_std(), |_| true)
                .is_none(),
            "{on_error}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_with_max_attempts_is_tried_that_often() {
    for (max, retries) in [
        ("1", 0),
        ("0", 0),
        ("-3", 0),
        ("2", 1),
        ("6", 5),
        ("many", ATTEMPTS),
    ] {
        let mut relay = relay("stop");
        let outbox = &mut relay.config.outboxes[0];
        outbox.names.max_attempts = Some("max".to_owned());
        outbox.need_only_routed();
        let row = [PLACED.as_slice(), &[Value::Text(max.as_bytes())]].concat();
        let (came, waits) = driven(&mut relay, (UnknownTopic, At::Delivery), &row).await;
        let Came::Ended(error) = came else {
            panic!("{max}: {came:?}")
        };
        assert_eq!(
            (waits.len(), error.kind()),
            (retries, Kind::TopicRefused),
            "{max}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusing_dead_letter_topic_delays_all_events_and_none_is_counted_twice() {
    for code in [UnknownTopicOrPartition, TopicAuthorizationFailed] {
        for at in [At::Enqueue, At::Delivery] {
            assert_dead_letters_wait(code, at).await;
        }
    }
}

async fn assert_dead_letters_wait(code: RDKafkaErrorCode, at: At) {
    let mut relay = relay("dead-letter");
    let retry = &mut relay.config.delivery.retry;
    retry.cap = Duration::from_secs(8);
    retry.jitter_percent = 0;
    let health = relay.telemetry.health.clone();
    for side in [Side::Postgres, Side::Bus] {
        health.connection(side, true);
    }
    let refused = || matches!(health.not_ready(), Some(NotReady::DeadLettersRefused(_)));
    let mut sink = Failing {
        letters: true,
        left: 9,
        ..Failing::new(code, at)
    };
    let mut waits = Vec::new();
    let mut letters = 0;
    let mut behind = PLACED;
    behind[0] = Value::Text(b"8");
    loop {
        let mut pipeline = begin(&mut relay, sink);
        let mut failure = take_in(&mut pipeline, &[&UNROUTABLE]).err();
        if pipeline.publisher.has_room() && failure.is_none() {
            failure = pipeline
                .data(
                    Lsn::new(5),
                    &wire::insert(16_384, &behind),
                    Instant::now().into_std(),
                )
                .err();
        }
        pipeline.publisher.receive_deliveries().await;
        failure = failure.or(pipeline.publisher.delivered().err());
        letters += pipeline.publisher.counts.dead_lettered;
        end(&mut relay, &mut pipeline);
        sink = pipeline.publisher.sink;
        sink.told.clear();
        tokio::time::advance(Duration::from_secs(3_600)).await;
        let Some(error) = failure else { break };
        let wait = failed(&mut relay, &error).unwrap();
        waits.push(wait.as_secs());
        assert!(
            refused()
                && error
                    .what_to_do()
                    .is_some_and(|fix| fix.contains("walrelay-dead-letters")),
            "{error:?}"
        );
    }
    assert_eq!(
        (waits.as_slice(), letters),
        (&[1, 2, 4, 8, 8, 8, 8, 8, 8][..], 1)
    );
    let behind = sink
        .offered
        .iter()
        .filter(|(topic, _)| topic == TOPIC)
        .count();
    assert_eq!(
        behind,
        usize::from(at == At::Delivery),
        "a refused letter is offered without it: {:?}",
        sink.offered
    );
}

/// A producer's life with an event and one behind it that has no route: what ended it, and how many
/// were skipped.
async fn skips_one(relay: &mut Relay, sink: impl Sink) -> (Result<()>, u64) {
    let mut pipeline = begin(relay, sink);
    take_in(&mut pipeline, &[&PLACED, &UNROUTABLE]).unwrap();
    pipeline.publisher.receive_deliveries().await;
    let ended = pipeline.publisher.delivered();
    end(relay, &mut pipeline);
    (ended, pipeline.publisher.counts.skipped)
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_skipped_is_logged_and_counted_once_however_often_it_comes() {
    let mut relay = relay("skip");
    let log = tempfile::NamedTempFile::new().unwrap();
    let logs = tracing_subscriber::fmt()
        .with_writer(std::sync::Mutex::new(log.reopen().unwrap()))
        .finish();
    // Whether anybody wants a line is asked once, in the thread that first meets it: that of
    // another test wants all, too.
    static WANTED: std::sync::Once = std::sync::Once::new();
    WANTED.call_once(|| {
        tracing::subscriber::set_global_default(tracing_subscriber::registry()).unwrap()
    });
    let _logs = tracing::subscriber::set_default(logs);
    for _ in 0..3 {
        let (ended, skipped) = skips_one(
            &mut relay,
            Failing::new(BrokerTransportFailure, At::Delivery),
        )
        .await;
        assert!(
            ended.is_err() && skipped == 0,
            "the one before it is not delivered"
        );
    }
    let (ended, skipped) = skips_one(&mut relay, crate::sink::NullSink::default()).await;
    assert!(ended.is_ok() && skipped == 1, "{ended:?}, {skipped}");
    let log = std::fs::read_to_string(log.path()).unwrap();
    assert_eq!(log.matches("an event was given up").count(), 1, "{log}");
}
