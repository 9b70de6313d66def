//! The brokers' description of themselves, of topics, and of the rights of this client. Creates
//! nothing.

use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode;
use rdkafka::util::get_rdkafka_version;

use super::faults::{self, Subject};
use super::native::{Answer, Described, Resource, Settings, describe};
use super::options::Options;
use super::topic_reader::{ADMIN_TIMEOUT, HIDDEN, TopicAdmin};
use crate::config::KafkaConfig;
use walrelay_core::error::{Error, Kind, Result};

/// The brokers, as one of them describes the cluster. Settings are known where the client may see
/// them.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// librdkafka's version, and what is known of that of the brokers.
    pub versions: String,
    /// `auto.create.topics.enable`.
    pub creates_topics: Option<bool>,
    /// `transaction.max.timeout.ms`.
    transaction_max_ms: Option<u128>,
    /// In the order in which they were asked for.
    pub topics: Vec<Topic>,
}

#[derive(Debug)]
pub(crate) enum Topic {
    Exists(Description),
    /// It does not exist. Whether the brokers would create it for this client.
    Missing(Result<()>),
    Refused(Error),
}

#[derive(Debug)]
pub(crate) struct Description {
    pub partitions: usize,
    /// Partitions without a leader: they take no record.
    pub leaderless: usize,
    /// Replicas of the first partition.
    pub replicas: usize,
    /// Whether this client may read the topic, and write to it. Brokers before 2.3 do not tell.
    pub may_read: bool,
    pub may_write: bool,
    /// `max.message.bytes`; none where the client may not see the topic's settings.
    pub message_max_bytes: Option<usize>,
    /// `min.insync.replicas`, likewise.
    pub in_sync_min: Option<usize>,
    /// `cleanup.policy`, likewise.
    pub cleanup_policy: Option<String>,
    /// Settings with which acked records can be lost, each as `NAME=VALUE`, likewise.
    pub unsafe_settings: Vec<String>,
    pub times: TimeLimits,
}

/// The times of records that a topic takes, as far as this client may see its settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TimeLimits {
    /// `message.timestamp.after.max.ms` and `message.timestamp.before.max.ms`. None where the
    /// brokers set the time.
    pub after_max_ms: Option<i64>,
    pub before_max_ms: Option<i64>,
    /// `retention.ms`, where it is limited and the topic deletes.
    pub retention_ms: Option<i64>,
}

impl TimeLimits {
    fn of(setting: impl Fn(&str) -> Option<String>) -> TimeLimits {
        let limit = |name| {
            setting(name)?
                .parse()
                .ok()
                .filter(|limit| *limit >= 0 && *limit < i64::MAX)
        };
        if setting("message.timestamp.type").as_deref() == Some("LogAppendTime") {
            return TimeLimits::default();
        }
        let deletes = setting("cleanup.policy").is_some_and(|policy| policy.contains("delete"));
        TimeLimits {
            after_max_ms: limit("message.timestamp.after.max.ms"),
            before_max_ms: limit("message.timestamp.before.max.ms"),
            retention_ms: limit("retention.ms").filter(|_| deletes),
        }
    }

    /// Whether a record of this time is taken now.
    pub(crate) fn take(&self, time_ms: i64, now_ms: i64) -> bool {
        let age_ms = now_ms.saturating_sub(time_ms);
        self.after_max_ms
            .is_none_or(|max| age_ms >= max.saturating_neg())
            && self.before_max_ms.is_none_or(|max| age_ms <= max)
    }

    /// Whether a record of this time is older than what the topic keeps.
    pub(crate) fn is_expired(&self, time_ms: i64, now_ms: i64) -> bool {
        self.retention_ms
            .is_some_and(|kept| now_ms.saturating_sub(time_ms) > kept)
    }
}

impl Cluster {
    /// Asks `broker` about itself and these topics, of which no two may be the same, with three
    /// questions whatever their number. Blocks; for a thread of its own in a Tokio runtime.
    pub(crate) fn read(config: &KafkaConfig, broker: i32, topics: &[String]) -> Result<Cluster> {
        let admin = TopicAdmin::open(&Options::reader(config)?)?;
        let cluster = Cluster::ask(&admin, broker, topics);
        admin.close();
        cluster.map_err(|code| faults::explain(code, Subject::default()))
    }

    fn ask(
        admin: &TopicAdmin,
        broker: i32,
        topics: &[String],
    ) -> Result<Cluster, RDKafkaErrorCode> {
        let described = describe(admin.0.inner(), topics, broker, ADMIN_TIMEOUT)?;
        let missing = topics
            .iter()
            .zip(&described)
            .filter(|(_, answer)| is_missing(answer));
        let missing: Vec<&str> = missing.map(|(topic, _)| topic.as_str()).collect();
        let mut creations = admin.may_create(&missing).into_iter();
        let mut asked = vec![Resource::Broker(broker)];
        asked.extend(topics.iter().map(|topic| Resource::Topic(topic)));
        let settings = admin.settings(&asked, Some(broker));
        let (settings, why) =
            settings.map_or_else(|why| (Vec::new(), why), |all| (all, HIDDEN.to_owned()));
        let mut settings = settings.iter();
        let of_broker = settings.next().filter(|settings| !settings.is_empty());
        let of = |name: &str| of_broker?.get(name).cloned();
        // Brokers have this setting up to 3.9.
        let of_brokers = of("inter.broker.protocol.version").unwrap_or_else(|| match of_broker {
            Some(_) => "4.0 or newer".to_owned(),
            None => format!("not known, because {why}"),
        });
        Ok(Cluster {
            versions: format!(
                "librdkafka {}; protocol of the brokers: {of_brokers}",
                get_rdkafka_version().1
            ),
            creates_topics: of("auto.create.topics.enable").map(|value| value == "true"),
            transaction_max_ms: of("transaction.max.timeout.ms")
                .and_then(|value| value.parse().ok()),
            topics: topics
                .iter()
                .zip(described)
                .map(|(name, answer)| {
                    let settings = settings.next();
                    match answer {
                        Ok(described) => Topic::Exists(Description::of(&described, settings)),
                        Err(_) if is_missing(&answer) => {
                            Topic::Missing(creations.next().unwrap_or(Ok(())))
                        }
                        Err(code) => Topic::Refused(faults::explain(code, of_topic(name))),
                    }
                })
                .collect(),
        })
    }

    /// Whether the brokers keep a transaction open for this long, as far as they tell.
    pub(crate) fn allows_transaction(&self, timeout: Duration) -> Result<()> {
        let Some(max) = self
            .transaction_max_ms
            .filter(|max| timeout.as_millis() > *max)
        else {
            return Ok(());
        };
        let error = faults::explain(
            RDKafkaErrorCode::InvalidTransactionTimeout,
            Subject::default(),
        );
        Err(error.because(format_args!("transaction.max.timeout.ms is {max}")))
    }
}

fn is_missing(answer: &Answer) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        answer,
        Err(Code::UnknownTopicOrPartition | Code::UnknownTopic)
    )
}

impl Description {
    fn of(described: &Described, settings: Option<&Settings>) -> Description {
        let of = |name: &str| settings?.get(name).cloned();
        let Described {
            partitions,
            leaderless,
            replicas,
            may_read,
            may_write,
        } = *described;
        Description {
            partitions,
            leaderless,
            replicas,
            may_read,
            may_write,
            message_max_bytes: of("max.message.bytes").and_then(|value| value.parse().ok()),
            in_sync_min: of("min.insync.replicas").and_then(|value| value.parse().ok()),
            cleanup_policy: of("cleanup.policy"),
            unsafe_settings: unsafe_settings(of, replicas),
            times: TimeLimits::of(of),
        }
    }

    /// Whether topic `name` takes a record of this size.
    pub(crate) fn takes(&self, name: &str, record_bytes: usize) -> Result<()> {
        let Some(limit) = self.message_max_bytes.filter(|limit| record_bytes > *limit) else {
            return Ok(());
        };
        let subject = Subject {
            record_bytes: Some(record_bytes),
            ..of_topic(name)
        };
        let error = faults::explain(RDKafkaErrorCode::MessageSizeTooLarge, subject);
        Err(error.because(format_args!("max.message.bytes is {limit}")))
    }
}

/// Settings with which records can be lost that all replicas in sync had acked.
fn unsafe_settings(setting: impl Fn(&str) -> Option<String>, replicas: usize) -> Vec<String> {
    // `write.caching` is one of Redpanda: brokers ack what no disk has.
    let risks = [
        ("unclean.leader.election.enable", "true"),
        ("write.caching", "true"),
        ("min.insync.replicas", "1"),
    ];
    let is_set = |(name, value): &(&str, &str)| {
        let matters = *name == "write.caching" || replicas > 1;
        matters && setting(name).is_some_and(|given| given == *value)
    };
    risks
        .into_iter()
        .filter(is_set)
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

/// The error for a record of this time, which a topic does not take.
pub(crate) fn takes_no_time(topic: &str, time_ms: i64, config: &KafkaConfig) -> Error {
    let columns = config.timestamp_columns.join(" or ");
    let subject = Subject {
        time_ms: Some(time_ms),
        timestamp_columns: &columns,
        ..of_topic(topic)
    };
    faults::explain(RDKafkaErrorCode::InvalidTimestamp, subject)
}

pub(crate) fn no_topic(topic: &str) -> Error {
    faults::explain(RDKafkaErrorCode::UnknownTopicOrPartition, of_topic(topic))
}

/// The error for a topic that this client may not write to.
pub(crate) fn may_not_write(topic: &str) -> Error {
    faults::explain(RDKafkaErrorCode::TopicAuthorizationFailed, of_topic(topic))
}

fn of_topic(topic: &str) -> Subject<'_> {
    Subject {
        topic: Some(topic),
        alone: true,
        ..Subject::default()
    }
}

/// `error`, where it refuses the topic, as one of the topic that keeps the position.
pub(crate) fn refused_position(error: Error, topic: &str) -> Error {
    if error.kind() != Kind::TopicRefused {
        return error;
    }
    // No event waits for the topic.
    let needs = faults::grant(&["Read", "Write", "Describe"], topic);
    error
        .with_kind(Kind::BusRefused)
        .remedy(format!("grant what the position needs: {needs}"))
}

/// Whether a topic with this number of partitions and, where it is known, `cleanup.policy` keeps a
/// position.
pub(crate) fn judge_of_position(
    topic: &str,
    partitions: usize,
    cleanup_policy: Option<&str>,
) -> Result<()> {
    if partitions != 1 {
        let cause =
            format!("topic {topic} has {partitions} partitions; a position needs a topic with one");
        return Err(Error::new(Kind::BusRefused, cause)
            .remedy("configure another state topic: walrelay creates it with one partition"));
    }
    let deletes = |policy: &&str| !policy.split(',').any(|part| part.trim() == "compact");
    let Some(policy) = cleanup_policy.filter(deletes) else {
        return Ok(());
    };
    let cause =
        format!("topic {topic} has cleanup.policy={policy}: it would delete the position one day");
    Err(Error::new(Kind::BusRefused, cause).remedy(format!(
        "kafka-configs --bootstrap-server … --alter --entity-type topics --entity-name {topic} \
         --add-config cleanup.policy=compact"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings<'s>(
        given: &'s [(&'s str, &'s str)],
    ) -> impl Fn(&str) -> Option<String> + Copy + 's {
        |name| {
            given
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        }
    }

    #[test]
    fn a_setting_is_unsafe_where_there_are_replicas_to_lose_records_with() {
        let given = [
            ("unclean.leader.election.enable", "true"),
            ("min.insync.replicas", "1"),
            ("write.caching", "true"),
            ("retention.ms", "1"),
        ];
        let of = settings(&given);
        let all = [
            "unclean.leader.election.enable=true",
            "write.caching=true",
            "min.insync.replicas=1",
        ];
        assert_eq!(unsafe_settings(of, 3), all);
        assert_eq!(unsafe_settings(of, 1), ["write.caching=true"]);
        let safe = [
            ("unclean.leader.election.enable", "false"),
            ("min.insync.replicas", "2"),
        ];
        assert!(unsafe_settings(settings(&safe), 3).is_empty());
    }

    #[test]
    fn a_topic_takes_times_within_its_limits_and_any_time_where_brokers_set_it() {
        let given = [
            ("message.timestamp.after.max.ms", "100"),
            ("message.timestamp.before.max.ms", "1000"),
            ("retention.ms", "500"),
            ("cleanup.policy", "delete"),
        ];
        let limits = TimeLimits::of(settings(&given));
        let taken = [9_000, 9_001, 10_000, 10_100].map(|time| limits.take(time, 10_000));
        assert!(taken.iter().all(|taken| *taken), "{taken:?}");
        assert!(!limits.take(10_101, 10_000) && !limits.take(8_999, 10_000));
        assert!(limits.is_expired(9_499, 10_000) && !limits.is_expired(9_500, 10_000));
        let by_brokers = [&given[..], &[("message.timestamp.type", "LogAppendTime")]].concat();
        assert_eq!(TimeLimits::of(settings(&by_brokers)), TimeLimits::default());
        let unlimited = [
            ("message.timestamp.before.max.ms", "9223372036854775807"),
            ("retention.ms", "-1"),
        ];
        assert_eq!(TimeLimits::of(settings(&unlimited)), TimeLimits::default());
    }

    #[test]
    fn a_topic_that_is_not_compacted_or_has_several_partitions_keeps_no_position() {
        let error = judge_of_position("t", 2, None).unwrap_err();
        assert!(
            error.kind() == Kind::BusRefused && error.cause().contains("2 partitions"),
            "{error}"
        );
        for fit in [None, Some("compact"), Some("delete, compact")] {
            assert_eq!(judge_of_position("t", 1, fit), Ok(()));
        }
        let error = judge_of_position("t", 1, Some("delete")).unwrap_err();
        assert_eq!(error.kind(), Kind::BusRefused);
        assert!(
            error
                .what_to_do()
                .unwrap()
                .ends_with("--entity-name t --add-config cleanup.policy=compact")
        );
    }
}
