//! The checks of Kafka: brokers, topics, and the rights of this client.

use std::time::Duration;

use futures_util::future::LocalBoxFuture;

use super::cluster::{
    Cluster, Description, Topic, judge_of_position, may_not_write, no_topic, refused_position,
    takes_no_time,
};
use super::faults::may_not_read;
use super::options::{Options, tool_placeholders, weaknesses};
use super::topic_reader::{Isolation, TopicReader, off_runtime};
use super::{KafkaSink, fits_client, record_bytes};
use crate::config::{Config, KafkaConfig, SinkKind, StoreKind};
use crate::sink::{Admission, BusChecks, BusHandle as _, BusSink as _, ReadTopics};
use crate::survey::{BUS, Largest, Seen, Survey, TOPIC, TOPIC_RIGHTS};
use walrelay_core::clock::now_us;
use walrelay_core::config::unit::human_bytes;
use walrelay_core::config::{OnError, ReadTails};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::printable::{counted, shell_word};
use walrelay_core::route::Record;

const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Events,
    DeadLetters,
    Position,
}

impl Purpose {
    /// `error`, with what the relay needs of a topic for this purpose.
    fn refused(self, error: Error, topic: &str) -> Error {
        if self == Purpose::Position {
            refused_position(error, topic)
        } else {
            error
        }
    }
}

/// What Kafka tells commands.
pub(in crate::sink) struct KafkaChecks;

impl BusChecks for KafkaChecks {
    fn weaknesses(&self, config: &Config) -> Vec<String> {
        weaknesses(&config.kafka)
    }

    fn placeholders(&self, config: &Config) -> Vec<(&'static str, String)> {
        tool_placeholders(&config.kafka)
    }

    fn record_bytes(&self, record: &Record<'_>) -> usize {
        record_bytes(record)
    }

    fn admission(&self, config: &Config) -> Result<Admission> {
        let limit_bytes = Options::producer(&config.kafka)?.message_max_bytes;
        Ok(Box::new(move |record| fits_client(record, limit_bytes)))
    }

    fn reader(&self, config: &Config) -> Result<Option<Box<dyn ReadTopics>>> {
        let options = Options::reader(&config.kafka)?;
        let reader = TopicReader::open(options, Isolation::ReadCommitted, None)?;
        Ok(Some(Box::new(reader)))
    }

    fn survey<'a>(
        &self,
        config: &'a Config,
        seen: &'a Seen,
        survey: &'a mut Survey,
    ) -> LocalBoxFuture<'a, Option<String>> {
        Box::pin(look(config, seen, survey))
    }
}

/// Adds the checks of Kafka to `survey`, for the topics that were seen in Postgres and those of the
/// configuration. Gives the id of the cluster, if a broker tells.
async fn look(config: &Config, seen: &Seen, survey: &mut Survey) -> Option<String> {
    let answer = match answering(&config.kafka).await {
        Ok(answer) => answer,
        Err(error) => {
            survey.wrong(BUS, &config.kafka.brokers, &error);
            return None;
        }
    };
    let brokers = counted(answer.brokers.len() as u64, "broker");
    let of = answer
        .cluster_id
        .iter()
        .map(|id| format!(" of cluster {id}"))
        .collect::<String>();
    survey.ok(
        BUS,
        &config.kafka.brokers,
        format!("answers, with {brokers}{of}"),
    );
    let broker = answer.brokers.first().copied().unwrap_or_default();
    described(config, seen, broker, survey).await;
    answer.cluster_id
}

/// Adds the checks of what this broker tells.
async fn described(config: &Config, seen: &Seen, broker: i32, survey: &mut Survey) {
    let mut topics: Vec<_> = seen
        .topics
        .keys()
        .map(|name| (Purpose::Events, name))
        .collect();
    if config.delivery.on_error == OnError::DeadLetter {
        topics.push((Purpose::DeadLetters, &config.delivery.dead_letter_topic));
    }
    if config.state.store == StoreKind::Kafka {
        topics.push((Purpose::Position, &config.state.topic));
    }
    let names: Vec<String> = topics.iter().map(|(_, name)| (*name).clone()).collect();
    let kafka = config.kafka.clone();
    let cluster = match off_runtime(move || Cluster::read(&kafka, broker, &names)).await {
        Ok(cluster) => cluster,
        Err(error) => return survey.wrong(TOPIC, "", &error),
    };
    survey.ok("kafka-version", "", &cluster.versions);
    for (found, (purpose, name)) in cluster.topics.iter().zip(topics) {
        match found {
            Topic::Exists(found) => {
                exists(config, found, purpose, name, survey);
                if let Some(Some(largest)) = seen.topics.get(name) {
                    record_size(config, found, name, largest, survey);
                    record_time(config, found, name, largest, survey);
                }
            }
            Topic::Missing(creation) => {
                missing(cluster.creates_topics, creation, purpose, name, survey)
            }
            Topic::Refused(error) => {
                survey.wrong(TOPIC_RIGHTS, name, &purpose.refused(error.clone(), name))
            }
        }
    }
    if let Some((of, system)) = config
        .delivery
        .transactions()
        .zip(seen.system_identifier.as_ref())
    {
        let id = of.transactional_id(system, config.source.slot.as_str());
        // No request asks for the right without fencing the relay that uses the id.
        let brokers = shell_word(&config.kafka.brokers);
        let found = format!(
            "its ACLs were not asked: kafka-acls --bootstrap-server {brokers} --list \
             --transactional-id {id}"
        );
        survey.judged(
            "transactional-id",
            &id,
            cluster.allows_transaction(of.timeout),
            &found,
        );
    }
}

/// What the first broker tells that answers.
struct Answer {
    brokers: Vec<i32>,
    cluster_id: Option<String>,
}

async fn answering(config: &KafkaConfig) -> Result<Answer> {
    let sink = KafkaSink::for_asking(config)?;
    let asked = async {
        let brokers = sink.brokers(CHECK_TIMEOUT).await?;
        Ok(Answer {
            brokers,
            cluster_id: sink.producer().cluster_id().await?,
        })
    };
    let answer = asked.await;
    sink.close().await;
    answer
}

/// A topic that does not exist is no fault where somebody creates it.
fn missing(
    by_brokers: Option<bool>,
    creation: &Result<()>,
    of: Purpose,
    topic: &str,
    survey: &mut Survey,
) {
    let error = no_topic(topic);
    match (creation, by_brokers, of) {
        (Ok(()), _, Purpose::Position) => survey.ok(
            TOPIC,
            topic,
            "does not exist; the relay creates it at its start",
        ),
        (Err(error), _, Purpose::Position) => survey.wrong(TOPIC, topic, error),
        (Ok(()), Some(true), _) => survey.ok(
            TOPIC,
            topic,
            "does not exist; the brokers create it with the first record",
        ),
        (Ok(()), None, _) => {
            survey.risk(
                TOPIC,
                topic,
                &error.because("this user may not see whether the brokers create topics"),
            );
        }
        (.., Purpose::DeadLetters) => {
            let cause = SinkKind::Kafka.bus().no_dead_letters(topic);
            survey.wrong(TOPIC, topic, &error.because(cause))
        }
        (.., Purpose::Events) => survey.wrong(TOPIC, topic, &error),
    }
}

fn exists(config: &Config, found: &Description, of: Purpose, name: &str, survey: &mut Survey) {
    let [partitions, replicas] = [(found.partitions, "partition"), (found.replicas, "replica")]
        .map(|(count, what)| counted(count as u64, what));
    survey.ok(TOPIC, name, format!("{partitions}, {replicas} each"));
    if found.leaderless > 0 {
        let text = format!(
            "{} of {partitions} without a leader: a broker is away, or its disk failed",
            found.leaderless
        );
        survey.wrong(
            TOPIC,
            name,
            &Error::new(Kind::BusUnreachable, text).remedy(config.sink.kind.bus().stalled),
        );
    }
    if of == Purpose::Position
        && let Err(error) =
            judge_of_position(name, found.partitions, found.cleanup_policy.as_deref())
    {
        survey.wrong(TOPIC, name, &error);
    }
    if let Some(min) = found.in_sync_min.filter(|min| *min > found.replicas) {
        let text = format!(
            "min.insync.replicas is {min}, and the topic has {replicas}: brokers before Kafka 3.7 \
             refuse every record, and \
             newer ones ack a record that only {replicas} has"
        );
        let setting = format!("--add-config min.insync.replicas={}", found.replicas);
        let fix = format!(
            "kafka-configs --bootstrap-server … --alter --entity-type topics --entity-name {name} \
             {setting}"
        );
        survey.warning(
            TOPIC,
            name,
            text,
            Some(format!("add replicas, or: {fix}").into()),
        );
    }
    if let [first, ..] = found.unsafe_settings.as_slice() {
        let text = format!(
            "{}: an acked record can be lost with one broker",
            found.unsafe_settings.join(", ")
        );
        let safer = match first.split_once('=') {
            Some(("min.insync.replicas", _)) => "min.insync.replicas=2",
            Some(("write.caching", _)) => "write.caching=false",
            _ => "unclean.leader.election.enable=false",
        };
        let alter =
            format!("--alter --entity-type topics --entity-name {name} --add-config {safer}");
        let fix = format!("kafka-configs --bootstrap-server … {alter}");
        survey.warning("topic-safety", name, text, Some(fix.into()));
    }
    rights(config, found, of, name, survey);
}

fn rights(config: &Config, found: &Description, of: Purpose, name: &str, survey: &mut Survey) {
    let reads_tails = config.delivery.read_tails == ReadTails::AtStart
        && config.delivery.transactions().is_none();
    match (found.may_write, found.may_read) {
        (true, false) if of == Purpose::Position => survey.wrong(
            TOPIC_RIGHTS,
            name,
            &refused_position(may_not_read(name), name),
        ),
        (false, _) => survey.wrong(TOPIC_RIGHTS, name, &of.refused(may_not_write(name), name)),
        (true, false) if of == Purpose::Events && reads_tails => {
            let why = "after a crash, events that were published before come again";
            survey.risk(TOPIC_RIGHTS, name, &may_not_read(name).because(why));
        }
        (true, _) => survey.ok(
            TOPIC_RIGHTS,
            name,
            "the relay may do what it does with the topic",
        ),
    }
}

/// The largest record, of this row, against the limits of librdkafka and of the topic.
fn record_size(
    config: &Config,
    found: &Description,
    name: &str,
    largest: &Largest,
    survey: &mut Survey,
) {
    const CHECK: &str = "record-size";
    let Largest {
        bytes,
        row,
        admitted,
        ..
    } = largest;
    let bytes = *bytes;
    let limit = found
        .message_max_bytes
        .map(|limit| human_bytes(limit as u64));
    let limit = limit
        .as_deref()
        .unwrap_or("a limit that this user may not see (DescribeConfigs)");
    let fits = format!("the largest has {}, of {limit}", human_bytes(bytes as u64));
    let codecs = ["compression.type", "compression.codec"];
    let given = codecs
        .iter()
        .find_map(|codec| config.kafka.properties.get(*codec));
    match admitted
        .clone()
        .and_then(|()| found.takes(name, bytes))
        .map_err(|error| error.of_row(row))
    {
        Err(error) if given.is_some_and(|codec| codec.expose() != "none") => {
            survey.risk(
                CHECK,
                name,
                &error.because("unless compression makes it smaller"),
            );
        }
        judged => survey.judged(CHECK, name, judged, &fits),
    }
}

/// The time of the same record, where a column says it, against the times that the topic takes.
fn record_time(
    config: &Config,
    found: &Description,
    name: &str,
    largest: &Largest,
    survey: &mut Survey,
) {
    const CHECK: &str = "record-time";
    let Some(time_ms) = largest.record.timestamp_ms else {
        return;
    };
    let now_ms = now_us() / 1_000;
    if !found.times.take(time_ms, now_ms) {
        let error = takes_no_time(name, time_ms, &config.kafka).of_row(&largest.row);
        // An old row may have been published when it was new.
        return if time_ms > now_ms {
            survey.wrong(CHECK, name, &error)
        } else {
            survey.risk(CHECK, name, &error)
        };
    }
    let is_expired = found.times.is_expired(time_ms, now_ms);
    let expires = if is_expired {
        "; it is older than retention.ms: Kafka deletes such a record soon"
    } else {
        ""
    };
    survey.ok(
        CHECK,
        name,
        format!("the topic takes the time of row {}{expires}", largest.row),
    );
}
