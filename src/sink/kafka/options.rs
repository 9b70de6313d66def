//! From the configuration to librdkafka's properties.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;

use crate::config::{KafkaConfig, SinkKind, servers};
use crate::sink::not_encrypted;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::printable::shell_word;
use walrelay_core::secret::Secret;

use super::properties::{
    Files, Redactor, check_files, check_properties, is_encrypted, with_password,
};

/// Properties on which the promises rest; no operator may change them.
const FIXED: &[(&str, &str)] = &[
    // The limits of `[kafka]` bound what is in flight, and so the queue: librdkafka's own limit is
    // never reached.
    ("queue.buffering.max.kbytes", "2147483647"),
    ("queue.buffering.max.messages", "0"),
    // Each request has one partition (librdkafka#1700): with one under way, the rate over many
    // partitions would be that of round trips. Idempotence keeps the order of five.
    ("max.in.flight", "5"),
    // Retries neither duplicate nor reorder.
    ("enable.idempotence", "true"),
    // A record that is refused ends the producer instead of letting the next ones pass (P2).
    ("enable.gapless.guarantee", "true"),
    // An ack means every in-sync replica has it (P1).
    ("acks", "all"),
    // Records never expire: an expired one is a gap that later ones have passed already (P2).
    ("message.timeout.ms", "0"),
    // Where Java clients put the same key; librdkafka's own default differs for nine keys in ten.
    // The sink's partitioner does the same, and is asked for records without a key only where none
    // is sticky.
    ("partitioner", "murmur2_random"),
    ("sticky.partitioning.linger.ms", "0"),
];

/// Defaults, open to change by a property.
const DEFAULTS: &[(&str, &str)] = &[
    ("client.id", "walrelay"),
    // Long enough to fill batches while draining, short enough not to be seen in the latency of one
    // event.
    ("linger.ms", "1"),
    // Firewalls forget silent connections, and an idle outbox is silent.
    ("socket.keepalive.enable", "true"),
    // A topic that does not exist, and may not be made on the fly, is reported after 5 s instead of
    // 30. A topic that brokers make on the fly has to be known to all of them by then.
    ("topic.metadata.propagation.max.ms", "5000"),
    // A transaction with a record for a topic that was deleted is retried until the metadata says
    // so, and nothing else asks for them: every 10 s instead of every 5 minutes.
    ("topic.metadata.refresh.interval.ms", "10000"),
    // A broker that is back is noticed after 2 s instead of 10 s.
    ("reconnect.backoff.max.ms", "2000"),
    // For one metric, the round trip. The document has a kilobyte for each partition, once in 30 s.
    ("statistics.interval.ms", "30000"),
    // The limit of a broker by default: the client refuses no record that the topic accepts.
    ("message.max.bytes", "1048588"),
];

/// Beginnings of properties that say how to reach a broker: all that a reader needs of a producer's
/// properties.
const CONNECTION_PREFIXES: &[&str] = &[
    "api.",
    "broker.",
    "client.",
    "connections.",
    "debug",
    "enable.sasl.",
    "enable.ssl.",
    "https.",
    "log",
    "metadata.",
    "reconnect.",
    "sasl.",
    "security.",
    "socket.",
    "ssl.",
];

/// Who a transactional producer is.
#[derive(Debug, Clone)]
pub struct Transactional {
    /// `transactional.id`: the same for all relays of a slot, and for these only.
    pub id: String,
    /// `transaction.timeout.ms`: the coordinator gives up a transaction that is open for longer.
    pub timeout: Duration,
}

/// The properties of a client, and the settings of the sink beside them.
#[derive(Clone)]
pub(crate) struct Options {
    pub(super) client: ClientConfig,
    pub(super) servers: CString,
    /// The largest record taken, in bytes: key, value, headers and what Kafka adds.
    pub(super) message_max_bytes: usize,
    pub(super) redactor: Redactor,
    /// Lines of librdkafka's log beyond this level are written at the level debug.
    pub(super) heard: RDKafkaLogLevel,
    /// Whether the client only asks on behalf of another, and logs at the level debug alone.
    pub(super) quiet: bool,
    /// Names of headers that hold an event's id.
    pub(super) id_headers: Vec<String>,
    pub(super) transactional: Option<Transactional>,
    /// The cluster of earlier producers, where it is known.
    pub(super) cluster_id: Option<String>,
    pub(super) files: Files,
    /// Columns with the time of records, for an error about one.
    pub(super) timestamp_columns: String,
}

impl Options {
    pub(super) fn producer(config: &KafkaConfig) -> Result<Options> {
        check_properties(&config.properties)?;
        let mut client = ClientConfig::new();
        for (name, value) in DEFAULTS {
            client.set(*name, *value);
        }
        // A change after this is noticed.
        let files = Files::of(&config.properties);
        let given = with_password(&config.properties)?;
        for (name, value) in &given {
            client.set(name, value.expose());
        }
        for (name, value) in FIXED {
            client.set(*name, *value);
        }
        Ok(Options {
            files,
            ..finish(client, config, &given)?
        })
    }

    /// The same for a producer that writes in transactions.
    pub(super) fn transactional(config: &KafkaConfig, of: &Transactional) -> Result<Options> {
        let mut options = Options::producer(config)?;
        options.client.set("transactional.id", &of.id);
        options
            .client
            .set("transaction.timeout.ms", of.timeout.as_millis().to_string());
        // A line of the log says that a connection broke: see `Doubt`.
        options.client.set("log.connection.close", "true");
        if (options.client.log_level as i32) < RDKafkaLogLevel::Info as i32 {
            options.client.set_log_level(RDKafkaLogLevel::Info);
        }
        options.transactional = Some(of.clone());
        Ok(options)
    }

    /// The same for a producer that sends one record at a time, and goes on where one is refused:
    /// nothing is behind it.
    pub(super) fn apart(mut self) -> Options {
        self.client
            .set("enable.gapless.guarantee", "false")
            .set("linger.ms", "0");
        self
    }

    /// Options for a client that only reads, describes and creates.
    pub(crate) fn reader(config: &KafkaConfig) -> Result<Options> {
        check_properties(&config.properties)?;
        let mut client = ClientConfig::new();
        client.set("client.id", "walrelay");
        client.set("socket.keepalive.enable", "true");
        let files = Files::of(&config.properties);
        let given = with_password(&config.properties)?;
        for (name, value) in &given {
            if CONNECTION_PREFIXES
                .iter()
                .any(|prefix| name.starts_with(prefix))
            {
                client.set(name, value.expose());
            }
        }
        Ok(Options {
            files,
            ..finish(client, config, &given)?
        })
    }

    /// The error where librdkafka cannot make a client of these options.
    pub(super) fn creation_error(&self, error: &KafkaError) -> Error {
        // The library's own text for a property holds its value.
        let cause = if let KafkaError::ClientConfig(_, text, name, _) = error {
            format!("{name}: {text}")
        } else if let KafkaError::ClientCreation(text) = error {
            text.clone()
        } else {
            error.to_string()
        };
        let cause = self.redactor.clean(&cause);
        let cause = format!("no Kafka client can be made of this configuration: {cause}");
        Error::new(Kind::Config, cause).remedy("check the Kafka properties and the files they name")
    }
}

/// `given` are the properties of `config`, with the password itself.
fn finish(
    mut client: ClientConfig,
    config: &KafkaConfig,
    given: &BTreeMap<String, Secret>,
) -> Result<Options> {
    check_files(&config.properties)?;
    let servers = CString::new(config.brokers.as_str())
        .ok()
        .filter(|_| !config.brokers.trim().is_empty());
    let servers = servers.ok_or_else(|| {
        Error::new(Kind::Config, "no Kafka broker is given").remedy("set brokers to HOST:PORT, …")
    })?;
    client.set("bootstrap.servers", &config.brokers);
    let level = match (client.get("debug"), client.get("log_level")) {
        (Some(debug), _) if !debug.is_empty() => RDKafkaLogLevel::Debug,
        (_, Some("0" | "1" | "2" | "3")) => RDKafkaLogLevel::Error,
        (_, Some("4")) => RDKafkaLogLevel::Warning,
        (_, Some("7")) => RDKafkaLogLevel::Debug,
        _ => RDKafkaLogLevel::Info,
    };
    client.set_log_level(level);
    let redactor = Redactor::new(given);
    let mut options = Options {
        client,
        servers,
        message_max_bytes: 0,
        redactor,
        heard: level,
        quiet: false,
        id_headers: config.id_headers.clone(),
        transactional: None,
        cluster_id: config.cluster_id.clone(),
        files: Files::default(),
        timestamp_columns: config.timestamp_columns.join(" or "),
    };
    let native = options
        .client
        .create_native_config()
        .map_err(|error| options.creation_error(&error))?;
    let limit = native
        .get("message.max.bytes")
        .map_err(|error| options.creation_error(&error))?;
    options.message_max_bytes = limit
        .parse()
        .map_err(|_| Error::new(Kind::Bug, "librdkafka's message.max.bytes is not a number"))?;
    Ok(options)
}

/// librdkafka's property, and its default in bytes.
const BATCH_SIZE: &str = "batch.size";
const BATCH_BYTES: usize = 1_000_000;
/// How much smaller the next batches are: few tries, and not many more batches than it takes.
const SMALLER: usize = 8;

/// Makes the batches of the next producers smaller, after one with a record of this size was
/// refused, and gives their size in bytes; none where the record itself is too large.
///
/// librdkafka makes batches of up to `batch.size`, a topic takes them up to its
/// `max.message.bytes`, and a broker says of a batch the same as of a record: too large. So before
/// a record is called that, it has to have been alone. A record that is as large as batches may be
/// always is: nothing else fits in with it.
pub(crate) fn reduce_batches(config: &mut KafkaConfig, record_bytes: usize) -> Option<usize> {
    let given = config
        .properties
        .get(BATCH_SIZE)
        .and_then(|size| size.expose().trim().parse().ok());
    let before = given.unwrap_or(BATCH_BYTES);
    let bytes = (record_bytes < before && before > 1).then(|| (before / SMALLER).max(1))?;
    config
        .properties
        .insert(BATCH_SIZE.to_owned(), Secret::new(bytes.to_string()));
    Some(bytes)
}

/// The placeholders in commands of Kafka's tools, with the brokers and the user of `config`.
pub(super) fn tool_placeholders(config: &KafkaConfig) -> Vec<(&'static str, String)> {
    let value = |names: &[&str]| {
        names
            .iter()
            .find_map(|name| config.properties.get(*name))
            .map(Secret::expose)
    };
    let mechanism = value(&["sasl.mechanism", "sasl.mechanisms"]).unwrap_or_default();
    // With other mechanisms, the user's name is in a ticket, a token or a certificate.
    let has_name = mechanism == "PLAIN" || mechanism.starts_with("SCRAM-");
    let user = value(&["sasl.username"]).filter(|_| has_name);
    let brokers = (
        "--bootstrap-server …",
        format!("--bootstrap-server {}", shell_word(&config.brokers)),
    );
    let user = user.map(|user| ("User:…", shell_word(&format!("User:{user}"))));
    std::iter::once(brokers).chain(user).collect()
}

/// What makes the connections weaker than they look, for warnings at start.
pub(super) fn weaknesses(config: &KafkaConfig) -> Vec<String> {
    let unverified = weakened(config)
        .into_iter()
        .map(|weak| format!("Kafka's server is not verified: {weak}"));
    let unencrypted = unencrypted(config).into_iter().take(1).map(|broker| {
        not_encrypted(
            SinkKind::Kafka,
            broker,
            "security.protocol of the Kafka properties",
        )
    });
    unverified.chain(unencrypted).collect()
}

/// The brokers on other hosts to which connections are not encrypted.
fn unencrypted(config: &KafkaConfig) -> Vec<&str> {
    let brokers = config
        .brokers
        .split(',')
        .map(str::trim)
        .filter(|broker| !broker.is_empty());
    brokers
        .filter(|broker| !is_encrypted(&config.properties) && !is_here(broker))
        .collect()
}

/// Whether `HOST:PORT`, perhaps with a protocol in front, is this host.
fn is_here(broker: &str) -> bool {
    let address = broker
        .split_once("://")
        .map_or(broker, |(_, address)| address);
    let host = match address.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => address,
    };
    servers::is_here(host)
}

/// Names the settings with which the server is not verified.
fn weakened(config: &KafkaConfig) -> Vec<String> {
    let weak = [
        ("ssl.endpoint.identification.algorithm", "none"),
        ("enable.ssl.certificate.verification", "false"),
    ];
    let is_set = |(name, value): &&(&str, &str)| {
        config
            .properties
            .get(*name)
            .is_some_and(|given| given.expose().eq_ignore_ascii_case(value))
    };
    weak.iter()
        .filter(is_set)
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use walrelay_core::error::filled;

    fn config(properties: &[(&str, &str)]) -> KafkaConfig {
        let properties = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Secret::new(*value)))
            .collect();
        KafkaConfig {
            id_headers: Vec::new(),
            brokers: "127.0.0.1:9".to_owned(),
            properties,
            ..KafkaConfig::default()
        }
    }

    #[test]
    fn properties_do_not_change_the_fixed_options() {
        let options =
            Options::producer(&config(&[("linger.ms", "20"), ("client.id", "mine")])).unwrap();
        for (name, value) in FIXED {
            assert_eq!(options.client.get(name), Some(*value));
        }
        assert_eq!(options.client.get("linger.ms"), Some("20"));
        assert_eq!(options.client.get("client.id"), Some("mine"));
        assert_eq!(
            options.client.get("topic.metadata.propagation.max.ms"),
            Some("5000")
        );
        let native = options.client.create_native_config().unwrap();
        assert_eq!(
            native.get("ssl.endpoint.identification.algorithm").unwrap(),
            "https"
        );
        assert_eq!(native.get("request.required.acks").unwrap(), "-1");
    }

    #[test]
    fn the_record_size_limit_is_the_default_of_brokers_or_the_given_one() {
        assert_eq!(
            Options::producer(&config(&[])).unwrap().message_max_bytes,
            1_048_588
        );
        let options = Options::producer(&config(&[("message.max.bytes", "2000")])).unwrap();
        assert_eq!(options.message_max_bytes, 2000);
    }

    #[test]
    fn a_reader_gets_connection_properties_and_no_producer_properties() {
        let given = [
            ("security.protocol", "ssl"),
            ("compression.type", "lz4"),
            ("linger.ms", "9"),
            ("client.id", "x"),
        ];
        let options = Options::reader(&config(&given)).unwrap();
        assert_eq!(options.client.get("security.protocol"), Some("ssl"));
        assert_eq!(options.client.get("client.id"), Some("x"));
        for name in [
            "compression.type",
            "linger.ms",
            "acks",
            "queue.buffering.max.kbytes",
        ] {
            assert_eq!(options.client.get(name), None);
        }
    }

    #[test]
    fn batches_become_smaller_until_a_record_is_alone() {
        for (record_bytes, first, sizes) in [
            (2_000, None, &[125_000, 15_625, 1_953][..]),
            (BATCH_BYTES, None, &[]),
            (0, Some("9"), &[1]),
        ] {
            let given: Vec<_> = first.map(|size| (BATCH_SIZE, size)).into_iter().collect();
            let mut config = config(&given);
            let next = std::iter::from_fn(|| reduce_batches(&mut config, record_bytes));
            assert_eq!(next.collect::<Vec<_>>(), sizes);
        }
    }

    #[test]
    fn a_broker_on_another_host_without_tls_is_named() {
        let brokers = "localhost:9092, 127.0.0.2:1,[::1]:9092,PLAINTEXT://localhost, \
                       kafka-1:9092,[fd00::1]:9092";
        let of = |properties: &[(&str, &str)]| KafkaConfig {
            brokers: brokers.to_owned(),
            ..config(properties)
        };
        assert_eq!(unencrypted(&of(&[])), ["kafka-1:9092", "[fd00::1]:9092"]);
        assert_eq!(
            unencrypted(&of(&[("security.protocol", "SASL_PLAINTEXT")])).len(),
            2
        );
        assert_eq!(
            unencrypted(&of(&[("security.protocol", "sasl_ssl")])),
            Vec::<&str>::new()
        );
    }

    #[test]
    fn a_property_that_disables_certificate_checks_is_named() {
        assert_eq!(weakened(&config(&[])), Vec::<String>::new());
        let named = weakened(&config(&[("enable.ssl.certificate.verification", "false")]));
        assert_eq!(named, ["enable.ssl.certificate.verification=false"]);
    }

    #[test]
    fn commands_of_kafka_name_the_brokers_and_a_user_with_a_password() {
        let property = |(name, value): (&str, &str)| (name.to_owned(), Secret::new(value));
        let said = |fix: &str, properties: &[(&str, &str)]| {
            let properties = properties.iter().copied().map(property).collect();
            let brokers = "a:1,b:1".to_owned();
            let id_headers = Vec::new();
            filled(
                fix,
                &tool_placeholders(&KafkaConfig {
                    brokers,
                    properties,
                    id_headers,
                    ..KafkaConfig::default()
                }),
            )
        };
        let grant =
            "grant it: kafka-acls --bootstrap-server … --add --allow-principal User:… --topic t";
        let named = [
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("sasl.username", "the relay"),
        ];
        assert_eq!(
            said(grant, &named),
            "grant it: kafka-acls --bootstrap-server a:1,b:1 --add --allow-principal 'User:the \
             relay' --topic t"
        );
        // The certificate has the name, or a ticket.
        assert!(
            said(
                grant,
                &[("sasl.mechanism", "GSSAPI"), ("sasl.username", "x")]
            )
            .contains(" User:… --topic t")
        );
        assert!(said(grant, &[]).contains(" User:… --topic t"));
        assert_eq!(
            said("create it: kafka-topics --bootstrap-server … --create", &[]),
            "create it: kafka-topics --bootstrap-server a:1,b:1 --create"
        );
    }
}
