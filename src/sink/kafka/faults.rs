//! From librdkafka's error codes to what becomes of the relay: the one table.

use rdkafka::error::KafkaError;
use rdkafka::error::RDKafkaErrorCode::{self, *};

use crate::config::{Bus, SinkKind};
use walrelay_core::error::{Error, Kind};

/// How texts name it.
pub(super) const BUS: Bus = SinkKind::Kafka.bus();

/// Kafka's own topics, which take no records from anybody. Brokers deny them to a transaction as
/// without a right.
const INTERNAL_TOPICS: [&str; 3] = [
    "__consumer_offsets",
    "__transaction_state",
    "__share_group_state",
];

/// Whether `topic` is one of Kafka's own.
pub(super) fn is_internal(topic: &str) -> bool {
    INTERNAL_TOPICS.contains(&topic)
}

/// The record and producer that an error code is about, as far as they are known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Subject<'a> {
    pub(crate) topic: Option<&'a str>,
    /// Negative where none was chosen yet.
    pub(crate) partition: Option<i32>,
    /// Bytes of the record's key and value.
    pub(crate) record_bytes: Option<usize>,
    /// Whether the record was sent without others, so that the code is about this one.
    pub(crate) alone: bool,
    pub(crate) transactional_id: Option<&'a str>,
    /// The record's time, in milliseconds since the Unix epoch.
    pub(crate) time_ms: Option<i64>,
    /// Columns that the times of records are from; empty where they are the times of production.
    pub(crate) timestamp_columns: &'a str,
}

impl<'a> Subject<'a> {
    pub(crate) fn of_record(topic: &'a str, partition: i32, record_bytes: usize) -> Subject<'a> {
        let topic = Some(topic);
        let partition = Some(partition);
        let record_bytes = Some(record_bytes);
        Subject {
            topic,
            partition,
            record_bytes,
            ..Subject::default()
        }
    }
}

/// Codes that mean the same to an operator. [`explain`] fills in `{or_another}`, `{topic}` and
/// `{transactional_id}`.
struct Fault {
    codes: &'static [RDKafkaErrorCode],
    kind: Kind,
    what: &'static str,
    remedy: &'static str,
}

/// What to do where no broker answers. One that wants TLS or a password closes other connections
/// without a word.
pub(crate) const REACH: &str = BUS.reach;

/// Stands for `{or_another}` unless the record was sent without others.
const OR_ANOTHER: &str = " (this one, or one sent together with it)";

/// How the error of a topic begins that no broker knows, as far as librdkafka was told.
const NO_TOPIC: &str = "the topic does not exist";

/// Whether `error` says that its topic does not exist.
pub(crate) fn is_of_missing_topic(error: &Error) -> bool {
    error.kind() == Kind::TopicRefused && error.cause().starts_with(NO_TOPIC)
}

/// A code that is not listed counts as a fault that a new producer may repair: another attempt
/// loses nothing.
const FAULTS: &[Fault] = &[
    Fault {
        codes: &[
            MessageSizeTooLarge,
            MessageBatchTooLarge,
            InvalidMessageSize,
        ],
        kind: Kind::RecordTooLarge,
        what: "the broker takes no record this large{or_another}",
        remedy: "raise max.message.bytes of topic {topic}, or keep large payloads out of the \
                 outbox with a CHECK",
    },
    Fault {
        codes: &[InvalidMessage, InvalidRecord],
        kind: Kind::Record,
        what: "the broker found the record invalid{or_another}",
        remedy: "the broker's log says why; a compacted topic takes no record without a key",
    },
    Fault {
        codes: &[InvalidTimestamp],
        kind: Kind::Record,
        what: "the topic takes no record of this time{or_another}",
        remedy: "the time is that of {timestamp}: correct it, or change what the topic takes: \
                 kafka-configs \
                 --bootstrap-server … --alter --entity-type topics --entity-name {topic} \
                 --add-config \
                 message.timestamp.after.max.ms=… (for times that are ahead) or \
                 message.timestamp.before.max.ms=… (for old ones)",
    },
    Fault {
        codes: &[TopicAuthorizationFailed],
        kind: Kind::TopicRefused,
        what: "the Kafka user may not use the topic",
        remedy: "grant it: kafka-acls --bootstrap-server … --add --allow-principal User:… \
                 --operation Write --operation Describe --topic {topic}",
    },
    Fault {
        codes: &[ClusterAuthorizationFailed],
        kind: Kind::BusRefused,
        what: "the Kafka user may not do this on the cluster",
        remedy: "grant it: kafka-acls --bootstrap-server … --add --allow-principal User:… \
                 --operation IdempotentWrite --cluster; creating \
                 topics needs Create",
    },
    Fault {
        codes: &[GroupAuthorizationFailed, DelegationTokenAuthorizationFailed],
        kind: Kind::BusRefused,
        what: "the Kafka user is not authorised",
        remedy: "look at the user's ACLs: kafka-acls --bootstrap-server … --list \
                 --principal User:…",
    },
    Fault {
        codes: &[TransactionalIdAuthorizationFailed],
        kind: Kind::BusRefused,
        what: "the Kafka user may not use the transactional id",
        remedy: "grant it: kafka-acls --bootstrap-server … --add --allow-principal User:… \
                 --operation Write --operation Describe \
                 --transactional-id {transactional_id}",
    },
    Fault {
        codes: &[InvalidTransactionTimeout],
        kind: Kind::BusRefused,
        what: "the broker allows no transaction to last this long",
        remedy: "lower delivery.transaction_timeout, or raise the brokers' \
                 transaction.max.timeout.ms",
    },
    Fault {
        codes: &[
            InvalidProducerEpoch,
            InvalidProducerIdMapping,
            ProducerFenced,
            Fenced,
        ],
        kind: Kind::BusUnreachable,
        what: "Kafka takes nothing more of this producer: another relay of the slot took over, a \
               transaction lasted \
               longer than it may, or there was none for so long that Kafka forgot the \
               transactional id \
               (transactional.id.expiration.ms)",
        remedy: "",
    },
    Fault {
        codes: &[
            Authentication,
            SaslAuthenticationFailed,
            UnsupportedSASLMechanism,
            IllegalSASLState,
            SecurityDisabled,
            DelegationTokenExpired,
            DelegationTokenNotFound,
            DelegationTokenAuthDisabled,
        ],
        kind: Kind::BusRefused,
        what: "Kafka refuses our credentials",
        remedy: "check sasl.mechanism, sasl.username, sasl.password and security.protocol of the \
                 Kafka properties",
    },
    Fault {
        codes: &[SSL],
        kind: Kind::BusRefused,
        what: "the TLS connection to Kafka fails",
        remedy: "check ssl.ca.location, the name in the broker's certificate and security.protocol",
    },
    Fault {
        codes: &[UnknownTopicOrPartition, UnknownTopic, UnknownTopicId],
        kind: Kind::TopicRefused,
        what: NO_TOPIC,
        remedy: "create it: kafka-topics --bootstrap-server … --create --topic {topic}",
    },
    Fault {
        codes: &[UnknownPartition],
        kind: Kind::Record,
        what: "the topic has no such partition",
        remedy: "correct the column that `partition` in [route] names, or give the topic more: \
                 kafka-topics --bootstrap-server … --alter \
                 --topic {topic} --partitions …",
    },
    Fault {
        codes: &[
            PolicyViolation,
            ThrottlingQuotaExceeded,
            InvalidReplicationFactor,
            InvalidPartitions,
        ],
        kind: Kind::TopicRefused,
        what: "the brokers do not make the topic: a quota, a policy or their defaults for new \
               topics forbid it",
        remedy: "change what forbids it (the controller's log says what), or create the topic with \
                 a number of partitions and \
                 replicas that is allowed: kafka-topics --bootstrap-server … --create --topic \
                 {topic}",
    },
    Fault {
        codes: &[InvalidTopic],
        kind: Kind::Record,
        what: "the broker allows no records in this topic",
        remedy: "{topic} is one of Kafka's own topics, or its name collides with another's (a.b \
                 and a_b): correct the columns \
                 or the template that make it",
    },
    Fault {
        codes: &[InvalidArgument],
        kind: Kind::BusRefused,
        what: "librdkafka does not take what is asked of it",
        remedy: "look at the Kafka properties; if they are plain, please report it with the log",
    },
    Fault {
        codes: &[
            UnsupportedFeature,
            UnsupportedVersion,
            UnsupportedForMessageFormat,
            UnsupportedCompressionType,
            BadCompression,
            InvalidRequiredAcks,
            InvalidConfig,
            NotImplemented,
        ],
        kind: Kind::BusRefused,
        what: "the broker does not support or allow what is asked of it",
        remedy: "compare the broker's version and policies with the Kafka properties",
    },
    Fault {
        codes: &[
            Fatal,
            GaplessGuarantee,
            Inconsistent,
            OutOfOrderSequenceNumber,
            UnknownProducerId,
        ],
        kind: Kind::BusUnreachable,
        what: "the producer could not go on without risking order or loss",
        remedy: "",
    },
    Fault {
        codes: &[NoOffset],
        kind: Kind::BusUnreachable,
        what: "the record was acked without an offset, so nobody knows whether Kafka has it; \
               sending it again",
        remedy: "",
    },
    Fault {
        codes: &[
            PurgeQueue,
            PurgeInflight,
            InvalidDifferentRecord,
            BrokerDestroy,
            DestroyBroker,
        ],
        kind: Kind::BusUnreachable,
        what: "the record was given up together with another one",
        remedy: "",
    },
    Fault {
        codes: &[
            BrokerTransportFailure,
            AllBrokersDown,
            Resolve,
            OperationTimedOut,
            RequestTimedOut,
            NetworkException,
            BrokerNotAvailable,
            TimedOutQueue,
            MessageTimedOut,
        ],
        kind: Kind::BusUnreachable,
        what: "no Kafka broker answers",
        remedy: REACH,
    },
    Fault {
        codes: &[
            LeaderNotAvailable,
            NotLeaderForPartition,
            NotEnoughReplicas,
            NotEnoughReplicasAfterAppend,
            ISRInsufficient,
            ReplicaNotAvailable,
            KafkaStorageError,
        ],
        kind: Kind::BusUnreachable,
        what: "the partition cannot be written or read now",
        remedy: "check that enough brokers run for the topic's min.insync.replicas, and their \
                 disks",
    },
];

/// The error for a topic that this client may not read.
pub(crate) fn may_not_read(topic: &str) -> Error {
    let error = explain(
        TopicAuthorizationFailed,
        Subject {
            topic: Some(topic),
            ..Subject::default()
        },
    );
    error.remedy(format!(
        "grant what reading needs: {}",
        grant(&["Read", "Describe"], topic)
    ))
}

pub(crate) fn grant(operations: &[&str], topic: &str) -> String {
    let operations: String = operations
        .iter()
        .map(|operation| format!(" --operation {operation}"))
        .collect();
    format!(
        "kafka-acls --bootstrap-server … --add --allow-principal User:…{operations} --topic {topic}"
    )
}

/// The code of an error; errors without one are faults of the client.
pub(crate) fn code(error: &KafkaError) -> RDKafkaErrorCode {
    // The library keeps this one to itself.
    if let KafkaError::AdminOp(code) = error {
        return *code;
    }
    error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)
}

pub(crate) fn kind(code: RDKafkaErrorCode) -> Kind {
    find(code).map_or(Kind::BusUnreachable, |fault| fault.kind)
}

/// The meaning of a code for a record. A record that chose no partition was given one of the topic:
/// the topic is gone.
pub(crate) fn of_record(code: RDKafkaErrorCode, chosen: bool) -> RDKafkaErrorCode {
    if code == UnknownPartition && !chosen {
        UnknownTopic
    } else {
        code
    }
}

/// The meaning of a code for a known partition of the topic. librdkafka calls a partition without a
/// leader unknown.
pub(crate) fn of_known(code: RDKafkaErrorCode) -> RDKafkaErrorCode {
    if code == UnknownPartition {
        LeaderNotAvailable
    } else {
        code
    }
}

/// A code in the operator's words: what happened, to which topic, what to do.
pub(crate) fn explain(code: RDKafkaErrorCode, subject: Subject<'_>) -> Error {
    let place = place(Subject {
        time_ms: subject.time_ms.filter(|_| code == InvalidTimestamp),
        ..subject
    });
    let Some(fault) = find(code) else {
        return Error::new(Kind::BusUnreachable, format!("Kafka failed{place}: {code}"));
    };
    let what = fault
        .what
        .replace("{or_another}", if subject.alone { "" } else { OR_ANOTHER });
    let mut error = Error::new(fault.kind, format!("{what}{place}: {code}"));
    if fault.kind == Kind::TopicRefused
        && let Some(topic) = subject.topic
    {
        error = error.of_topic(topic);
    }
    if fault.kind == Kind::RecordTooLarge {
        error.record_bytes = subject.record_bytes;
    }
    if fault.remedy.is_empty() {
        return error;
    }
    let remedy = fault
        .remedy
        .replace("{topic}", subject.topic.unwrap_or("TOPIC"));
    let timestamp = match subject.timestamp_columns {
        "" => "this host's clock".to_owned(),
        columns => format!("column {columns} (route.timestamp)"),
    };
    let remedy = remedy.replace("{timestamp}", &timestamp);
    error.remedy(remedy.replace(
        "{transactional_id}",
        subject.transactional_id.unwrap_or("ID"),
    ))
}

/// TLS alerts about a certificate: bad, unsupported, revoked, expired, unknown, of an unknown
/// authority, required. <https://www.rfc-editor.org/rfc/rfc8446#section-6>
const CERTIFICATE_ALERTS: &[&str] = &["42", "43", "44", "45", "46", "48", "116"];

/// The refusal in what librdkafka says about a connection, if it is one of our certificate.
///
/// Read from OpenSSL's text, because no code tells: in TLS 1.3 a broker judges our certificate only
/// after the handshake is over for us, and to librdkafka that is a connection that broke.
pub(crate) fn certificate_refusal(reason: &str) -> Option<Error> {
    let (_, after) = reason.split_once("SSL alert number ")?;
    let number = after
        .split(|character: char| !character.is_ascii_digit())
        .next()?;
    CERTIFICATE_ALERTS.contains(&number).then(|| {
        let cause = format!(
            "Kafka does not take our TLS certificate, or wants one and is shown \
                             none: {reason}"
        );
        Error::new(Kind::BusRefused, cause).remedy(
            "check ssl.certificate.location and ssl.key.location of the Kafka properties, and that \
             the broker's \
             truststore has the certificate's authority",
        )
    })
}

/// Codes, kind and remedy of each row.
#[cfg(test)]
pub(crate) fn rows() -> impl Iterator<Item = (&'static [RDKafkaErrorCode], Kind, &'static str)> {
    FAULTS
        .iter()
        .map(|fault| (fault.codes, fault.kind, fault.remedy))
}

fn find(code: RDKafkaErrorCode) -> Option<&'static Fault> {
    FAULTS.iter().find(|fault| fault.codes.contains(&code))
}

fn place(subject: Subject<'_>) -> String {
    let mut place = String::new();
    if let Some(topic) = subject.topic {
        place.push_str(&format!(" (topic {topic}"));
        if let Some(partition) = subject.partition.filter(|partition| *partition >= 0) {
            place.push_str(&format!(", partition {partition}"));
        }
        if let Some(bytes) = subject.record_bytes {
            place.push_str(&format!(", {bytes} bytes"));
        }
        if let Some(time) = subject
            .time_ms
            .and_then(|time_ms| jiff::Timestamp::from_millisecond(time_ms).ok())
        {
            place.push_str(&format!(", time {time}"));
        }
        place.push(')');
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most of them are those of events that are given up, and the relay goes on.
    #[test]
    fn no_remedy_wants_a_start() {
        for fault in FAULTS {
            assert!(!fault.remedy.contains("start walrelay"), "{}", fault.what);
        }
    }

    #[test]
    fn no_code_is_in_the_table_twice() {
        let mut seen = Vec::new();
        for code in FAULTS.iter().flat_map(|fault| fault.codes) {
            assert!(!seen.contains(code), "{code:?} is listed twice");
            seen.push(*code);
        }
    }

    #[test]
    fn each_fault_that_stops_the_relay_has_a_remedy() {
        for fault in FAULTS.iter().filter(|fault| fault.kind.halts()) {
            assert!(
                !fault.remedy.is_empty(),
                "{} leaves the operator alone",
                fault.what
            );
        }
    }

    #[test]
    fn an_unknown_partition_is_a_missing_topic_unless_named_by_the_record() {
        assert_eq!(kind(of_record(UnknownPartition, false)), Kind::TopicRefused);
        assert_eq!(kind(of_record(UnknownPartition, true)), Kind::Record);
        for chosen in [false, true] {
            assert_eq!(of_record(MessageSizeTooLarge, chosen), MessageSizeTooLarge);
        }
        assert_eq!(
            kind(of_known(UnknownPartition)),
            Kind::BusUnreachable,
            "a partition that was seen comes back"
        );
        assert_eq!(of_known(UnknownTopicOrPartition), UnknownTopicOrPartition);
    }

    #[test]
    fn a_certificate_refused_by_the_broker_is_no_mere_disconnect() {
        for reason in [
            "ssl://b:1/bootstrap: Receive failed: error:0A000412:SSL routines::ssl/tls alert bad \
             certificate: SSL alert \
             number 42 (after 2ms in state APIVERSION_QUERY)",
            "ssl://b:1/1: SSL handshake failed: error:0A000418:SSL routines::tlsv1 alert unknown \
             ca: SSL alert number 48",
            "Receive failed: tlsv13 alert certificate required: SSL alert number 116",
        ] {
            let refusal = certificate_refusal(reason).unwrap();
            assert_eq!(refusal.kind(), Kind::BusRefused);
            assert!(refusal.cause().ends_with(reason), "{refusal}");
        }
        for reason in [
            "ssl://b:1/1: Disconnected: connection closed by peer",
            "Receive failed: tlsv1 alert internal error: SSL alert number 80",
            "SSL alert number 4",
            "SSL alert number ",
        ] {
            assert_eq!(certificate_refusal(reason), None, "{reason}");
        }
    }

    #[test]
    fn an_error_names_topic_partition_size_and_what_to_do() {
        let subject = Subject::of_record("outbox.event.order", 3, 2_000_000);
        let error = explain(MessageSizeTooLarge, subject);
        assert!(
            error
                .cause()
                .contains("(topic outbox.event.order, partition 3, 2000000 bytes)"),
            "{error}"
        );
        assert!(
            error
                .what_to_do()
                .unwrap()
                .contains("max.message.bytes of topic outbox.event.order")
        );
        for code in [MessageSizeTooLarge, InvalidRecord] {
            assert!(explain(code, subject).cause().contains("together"));
            assert!(
                !explain(
                    code,
                    Subject {
                        alone: true,
                        ..subject
                    }
                )
                .cause()
                .contains("together")
            );
        }
        let timed = Subject {
            time_ms: Some(0),
            timestamp_columns: "written_at",
            ..subject
        };
        let error = explain(InvalidTimestamp, timed);
        assert!(
            error.cause().contains("time 1970-01-01T00:00:00Z)"),
            "{error}"
        );
        let remedy = error.what_to_do().unwrap();
        assert!(
            remedy.contains("column written_at (route.timestamp)"),
            "{remedy}"
        );
        assert!(
            remedy.contains("message.timestamp.before.max.ms"),
            "{remedy}"
        );
        assert!(!explain(InvalidRecord, timed).cause().contains("1970"));
        let nowhere = explain(
            AllBrokersDown,
            Subject {
                partition: Some(-1),
                ..Subject::default()
            },
        );
        assert!(!nowhere.cause().contains("partition"), "{nowhere}");
    }
}
