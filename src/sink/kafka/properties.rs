//! librdkafka's properties: those an operator may not set, each with the promise it would break,
//! and secrets among their values.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;

use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::secret::Secret;

/// Shorter statistics intervals cost more than they tell: the document grows with brokers times
/// partitions.
const STATISTICS_INTERVAL_MS_MIN: u64 = 5_000;

/// Property names and what would go wrong. Every alias of a name is listed with it.
/// Names: <https://github.com/confluentinc/librdkafka/blob/v2.12.1/CONFIGURATION.md>.
const REFUSED: &[(&[&str], &str)] = &[
    (
        &["acks", "request.required.acks"],
        "walrelay confirms an LSN only after all in-sync replicas have the event, so it is always \
         `all`",
    ),
    (
        &["enable.idempotence"],
        "without it a retry can duplicate events or change their order, so it is always `true`",
    ),
    (
        &["enable.gapless.guarantee"],
        "without it events behind a failed one would be published before it, so it is always \
         `true`",
    ),
    (
        &["max.in.flight", "max.in.flight.requests.per.connection"],
        "a broker handles requests one after the other, and those that wait are larger, so it is \
         always 1",
    ),
    (
        &["message.timeout.ms", "delivery.timeout.ms"],
        "an event that expires leaves a gap which the events behind it have already passed, so \
         events never expire",
    ),
    (
        &["retries", "message.send.max.retries"],
        "an event given up after some retries leaves a gap, so retries never end",
    ),
    (
        &["partitioner", "sticky.partitioning.linger.ms"],
        "keys must go to the partitions where Java clients put them, so it is always \
         `murmur2_random`",
    ),
    (
        &["transactional.id", "transaction.timeout.ms"],
        "the id follows from server and slot, so that two relays of one slot never write at once; \
         set delivery.guarantee to \
         exactly-once, and delivery.transactional_id_prefix or delivery.transaction_timeout",
    ),
    (
        &[
            "queue.buffering.max.messages",
            "queue.buffering.max.kbytes",
            "queue.buffering.max.ms",
            "queue.buffering.backpressure.threshold",
        ],
        "the queue is sized from max_in_flight_bytes and max_in_flight_events, which bound memory; \
         for \
         queue.buffering.max.ms use linger.ms",
    ),
    (
        &["bootstrap.servers", "metadata.broker.list"],
        "the brokers are given once, as `brokers` of the kafka section",
    ),
    (
        &["delivery.report.only.error"],
        "without reports of success nothing could ever be confirmed",
    ),
    (
        &["queuing.strategy", "msg_order_cmp"],
        "it changes the order in which events leave the queue",
    ),
    (
        &["topic.blacklist"],
        "events for a topic that is blacked out would wait for ever",
    ),
    (
        &["builtin.features", "plugin.library.paths", "interceptors"],
        "what is linked into walrelay is fixed when it is built",
    ),
    (
        &[
            "opaque",
            "default_topic_conf",
            "enabled_events",
            "log.queue",
            "ssl_key",
            "ssl_certificate",
            "ssl_ca",
        ],
        "it cannot be given as text",
    ),
];

/// Beginnings of names, likewise.
const REFUSED_PREFIXES: &[(&str, &str)] = &[
    (
        "test.",
        "events would be delivered to a broker inside the process and be lost with it",
    ),
    ("internal.", "it belongs to librdkafka itself"),
];

/// Ends of names, likewise.
const REFUSED_SUFFIXES: &[(&str, &str)] =
    &[("_cb", "it is a callback and cannot be given as text")];

/// A property of walrelay's own: the file with the password. librdkafka takes the password only as
/// text.
const PASSWORD_LOCATION: &str = "sasl.password.location";
const PASSWORD: &str = "sasl.password";

/// Two names of one property: which of the two would win is not defined.
const ALIASES: &[[&str; 2]] = &[
    ["compression.type", "compression.codec"],
    ["sasl.mechanism", "sasl.mechanisms"],
    [PASSWORD, PASSWORD_LOCATION],
    [
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.credentials.client.id",
    ],
    [
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.secret",
    ],
];

/// Whether these librdkafka properties can be passed on: none breaks a promise, all exist, all
/// values are valid. Errors: [`Kind::Config`] naming the property and the reason, never its value.
/// Files are opened when the producer is created.
pub(crate) fn check_properties(properties: &BTreeMap<String, Secret>) -> Result<()> {
    for (name, value) in properties {
        if let Some(why) = refusal(name, value) {
            return Err(Error::new(
                Kind::Config,
                format!("the Kafka property {name} cannot be set: {why}"),
            )
            .remedy(format!("remove {name} from the Kafka properties")));
        }
        if name != PASSWORD_LOCATION {
            known_and_valid(name, value)?;
        }
    }
    for [name, alias] in ALIASES {
        if properties.contains_key(*name) && properties.contains_key(*alias) {
            let cause =
                format!("the Kafka properties {name} and {alias} are two names of one property");
            return Err(Error::new(Kind::Config, cause).remedy("keep one of them"));
        }
    }
    Ok(())
}

fn refusal(name: &str, value: &Secret) -> Option<String> {
    if name == "statistics.interval.ms" {
        let interval_ms: u64 = value.expose().trim().parse().ok()?;
        return (1..STATISTICS_INTERVAL_MS_MIN)
            .contains(&interval_ms)
            .then(|| {
                format!(
                    "below {STATISTICS_INTERVAL_MS_MIN} ms it slows down the producer; 0 \
                              switches it off"
                )
            });
    }
    let listed = REFUSED
        .iter()
        .find(|(names, _)| names.contains(&name))
        .map(|(_, why)| *why);
    let prefixed = || {
        REFUSED_PREFIXES
            .iter()
            .find(|(prefix, _)| name.starts_with(prefix))
            .map(|(_, why)| *why)
    };
    let suffixed = || {
        REFUSED_SUFFIXES
            .iter()
            .find(|(suffix, _)| name.ends_with(suffix))
            .map(|(_, why)| *why)
    };
    listed
        .or_else(prefixed)
        .or_else(suffixed)
        .map(str::to_owned)
}

/// Asks librdkafka itself. Its message quotes the value, which may be a secret in the wrong place.
fn known_and_valid(name: &str, value: &Secret) -> Result<()> {
    match ClientConfig::new()
        .set(name, value.expose())
        .create_native_config()
    {
        Ok(_) => Ok(()),
        Err(KafkaError::ClientConfig(_, description, _, _)) => {
            let description = Redactor::of([value]).clean(&description);
            Err(Error::new(
                Kind::Config,
                format!("the Kafka property {name} is not valid: {description}"),
            )
            .remedy("see librdkafka's CONFIGURATION.md for names and values"))
        }
        Err(_) => Err(Error::new(
            Kind::Config,
            format!("the Kafka property {name:?} or its value holds a NUL character"),
        )),
    }
}

/// The properties for librdkafka: the password itself in place of its file.
/// Errors: [`Kind::Config`]: the file cannot be read.
pub(super) fn with_password(
    properties: &BTreeMap<String, Secret>,
) -> Result<BTreeMap<String, Secret>> {
    let mut given = properties.clone();
    if let Some(path) = given.remove(PASSWORD_LOCATION) {
        let path = path.expose();
        let password = fs::read_to_string(path).map_err(|error| {
            Error::new(
                Kind::Config,
                format!("{path}, which the Kafka property {PASSWORD_LOCATION} names: {error}"),
            )
            .remedy(format!(
                "correct {PASSWORD_LOCATION}, or let the user that runs walrelay read the file"
            ))
        })?;
        // Editors and `echo` end a file with a line end.
        given.insert(
            PASSWORD.to_owned(),
            Secret::new(password.trim_end_matches(['\r', '\n'])),
        );
    }
    Ok(given)
}

/// Properties that name a file, read where the connection is encrypted.
const LOCATIONS: &[&str] = &[
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.crl.location",
    "ssl.key.location",
    "ssl.keystore.location",
];

/// Longest text that is taken for a path, in bytes: Linux has no longer ones.
const PATH_BYTES_MAX: usize = 4096;

/// Whether the files that TLS needs can be opened. librdkafka's error names no file and no cause,
/// and librdkafka's log shows a key that was given where a path belongs. librdkafka judges the
/// content of the files. Errors: [`Kind::Config`] naming the property and the file; of what cannot
/// be a path, such as the key itself, only the property.
pub(super) fn check_files(properties: &BTreeMap<String, Secret>) -> Result<()> {
    if !is_encrypted(properties) {
        return Ok(());
    }
    for name in LOCATIONS {
        let Some(path) = properties.get(*name).map(Secret::expose) else {
            continue;
        };
        // librdkafka's own word for looking where operating systems keep their authorities.
        if path.is_empty() || *name == "ssl.ca.location" && path == "probe" {
            continue;
        }
        if path.len() > PATH_BYTES_MAX || path.contains(char::is_control) {
            return Err(Error::new(
                Kind::Config,
                format!(
                    "the Kafka property {name} is not the path \
                                                         of a file"
                ),
            )
            .remedy(
                "give the path; certificates and keys as text belong into ssl.ca.pem, \
                         ssl.certificate.pem, ssl.key.pem",
            ));
        }
        if let Err(error) = File::open(path) {
            return Err(Error::new(
                Kind::Config,
                format!("{path}, which the Kafka property {name} names: {error}"),
            )
            .remedy(format!(
                "correct {name}, or let the user that runs walrelay read the file"
            )));
        }
    }
    Ok(())
}

/// Whether connections use TLS.
pub(crate) fn is_encrypted(properties: &BTreeMap<String, Secret>) -> bool {
    let protocol = properties
        .get("security.protocol")
        .map(|given| given.expose().to_ascii_lowercase());
    protocol.is_some_and(|protocol| protocol.ends_with("ssl"))
}

/// The files of TLS and of the password, as they were when a client was made of them. They are read
/// only then.
#[derive(Clone, Default)]
pub(super) struct Files {
    paths: Vec<String>,
    digest: u64,
}

impl Files {
    /// Call it before the files are read: a change in between is noticed.
    pub(super) fn of(properties: &BTreeMap<String, Secret>) -> Files {
        let named = LOCATIONS
            .iter()
            .filter_map(|name| properties.get(*name))
            .filter(|_| is_encrypted(properties));
        let paths = named.chain(properties.get(PASSWORD_LOCATION));
        let paths: Vec<String> = paths.map(|path| path.expose().to_owned()).collect();
        Files {
            digest: digest(&paths),
            paths,
        }
    }

    /// Whether one of them has another content by now.
    pub(super) fn have_changed(&self) -> bool {
        digest(&self.paths) != self.digest
    }
}

fn digest(paths: &[String]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for path in paths {
        match fs::read(path) {
            Ok(content) => content.hash(&mut hasher),
            // A directory, or a file that is being replaced.
            Err(_) => fs::metadata(path)
                .and_then(|found| found.modified())
                .ok()
                .hash(&mut hasher),
        }
    }
    hasher.finish()
}

/// Parts of a property's name that make its value a secret.
const SECRET_PARTS: [&str; 6] = [
    "password",
    "secret",
    "passphrase",
    ".pem",
    "oauthbearer.config",
    "oauthbearer.extensions",
];

/// Shorter values are taken out in quotes only: bare ones would be found in every word, and they
/// protect nothing.
const SECRET_CHARS_MIN: usize = 4;

/// Replaces the values of secret properties in any text by `***`. Costs nothing where no secret is
/// configured.
#[derive(Clone, Default)]
pub(crate) struct Redactor {
    /// Longest first, so that a secret inside another one does not leave the rest of it visible.
    secrets: Vec<Secret>,
}

impl Redactor {
    pub(crate) fn new(properties: &BTreeMap<String, Secret>) -> Self {
        let is_secret = |name: &str| SECRET_PARTS.iter().any(|part| name.contains(part));
        Redactor::of(
            properties
                .iter()
                .filter(|(name, _)| is_secret(name))
                .map(|(_, value)| value),
        )
    }

    fn of<'s>(values: impl IntoIterator<Item = &'s Secret>) -> Self {
        // A message can quote one line of a PEM block or one element of a list.
        let parts = |value: &'s Secret| {
            value
                .expose()
                .split(['\n', ',', ' '])
                .map(str::trim)
                .chain([value.expose()])
        };
        let parts = values
            .into_iter()
            .flat_map(parts)
            .filter(|part| !part.is_empty());
        let hide = |part: &str| {
            if part.len() < SECRET_CHARS_MIN {
                format!("\"{part}\"")
            } else {
                part.to_owned()
            }
        };
        let mut secrets: Vec<Secret> = parts.map(|part| Secret::new(hide(part))).collect();
        secrets.sort_by_key(|value| std::cmp::Reverse(value.expose().len()));
        Redactor { secrets }
    }

    pub(crate) fn clean(&self, text: &str) -> String {
        let mut clean = text.to_owned();
        for secret in &self.secrets {
            if clean.contains(secret.expose()) {
                clean = clean.replace(secret.expose(), "***");
            }
        }
        clean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, value: &str) -> Result<()> {
        check_properties(&BTreeMap::from([(name.to_owned(), Secret::new(value))]))
    }

    #[test]
    fn a_property_that_would_break_a_guarantee_is_refused_with_the_reason() {
        let names = REFUSED.iter().flat_map(|(names, _)| names.iter().copied());
        for name in names.chain([
            "test.mock.num.brokers",
            "internal.termination.signal",
            "dr_cb",
            "dr_msg_cb",
        ]) {
            let error = check(name, "1").unwrap_err();
            assert_eq!(error.kind(), Kind::Config);
            assert!(
                error.cause().contains(&format!("{name} cannot be set: ")),
                "{error}"
            );
            assert!(error.what_to_do().is_some());
        }
    }

    #[test]
    fn an_unknown_or_invalid_property_is_named_without_its_value() {
        let unknown = check("sasl.pasword", "canary-secret").unwrap_err();
        assert!(unknown.cause().contains("sasl.pasword"), "{unknown}");
        let invalid = check("security.protocol", "canary-secret").unwrap_err();
        assert!(invalid.cause().contains("security.protocol"), "{invalid}");
        let list = check("debug", "broker,canary-secret").unwrap_err();
        let number = check("linger.ms", "canary-secret").unwrap_err();
        let nul = check("sasl.password", "canary-secret\0").unwrap_err();
        for error in [unknown, invalid, list, number, nul] {
            assert_eq!(error.kind(), Kind::Config);
            assert!(!error.cause().contains("canary"), "{error}");
        }
    }

    #[test]
    fn one_property_under_two_names_is_refused() {
        let properties = [("sasl.mechanism", "PLAIN"), ("sasl.mechanisms", "PLAIN")];
        let properties = properties.map(|(name, value)| (name.to_owned(), Secret::new(value)));
        let error = check_properties(&BTreeMap::from(properties)).unwrap_err();
        assert!(
            error.cause().contains("sasl.mechanism and sasl.mechanisms"),
            "{error}"
        );
    }

    #[test]
    fn a_short_statistics_interval_is_refused() {
        assert!(check("statistics.interval.ms", "1000").is_err());
        assert_eq!(check("statistics.interval.ms", "5000"), Ok(()));
    }

    #[test]
    fn values_of_secret_properties_are_removed_from_texts() {
        let properties = BTreeMap::from([
            ("sasl.password".to_owned(), Secret::new("hunter22")),
            (
                "ssl.key.pem".to_owned(),
                Secret::new("-----BEGIN\nMIIEabcd\n-----END"),
            ),
            ("sasl.username".to_owned(), Secret::new("relay")),
        ]);
        let redactor = Redactor::new(&properties);
        assert_eq!(
            redactor.clean("user relay, password=hunter22!"),
            "user relay, password=***!"
        );
        assert_eq!(redactor.clean("bad line MIIEabcd"), "bad line ***");
        let short = BTreeMap::from([("sasl.password".to_owned(), Secret::new("a"))]);
        assert_eq!(
            Redactor::new(&short).clean("a broker"),
            "a broker",
            "a short value protects nothing"
        );
    }

    fn checked_files(given: &[(&str, &str)]) -> Result<()> {
        check_files(
            &given
                .iter()
                .map(|(name, value)| ((*name).to_owned(), Secret::new(*value)))
                .collect(),
        )
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_with_its_property() {
        for name in LOCATIONS {
            let error = checked_files(&[
                ("security.protocol", "SASL_SSL"),
                (name, "/nonexistent/x.pem"),
            ])
            .unwrap_err();
            assert_eq!(error.kind(), Kind::Config);
            assert!(error.cause().starts_with(&format!(
                "/nonexistent/x.pem, which the Kafka property {name} names: "
            )));
            assert!(error.what_to_do().unwrap().contains(name));
        }
    }

    #[test]
    fn files_that_can_be_opened_or_are_not_used_are_accepted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let directory = tempfile::tempdir().unwrap();
        for path in [file.path(), directory.path()] {
            checked_files(&[
                ("security.protocol", "ssl"),
                ("ssl.ca.location", path.to_str().unwrap()),
            ])
            .unwrap();
        }
        checked_files(&[("security.protocol", "ssl"), ("ssl.ca.location", "probe")]).unwrap();
        checked_files(&[("security.protocol", "ssl")]).unwrap();
        for unencrypted in ["plaintext", "sasl_plaintext"] {
            checked_files(&[
                ("security.protocol", unencrypted),
                ("ssl.ca.location", "/nonexistent"),
            ])
            .unwrap();
        }
        checked_files(&[("ssl.ca.location", "/nonexistent")]).unwrap();
    }

    #[test]
    fn another_content_of_a_file_that_tls_needs_is_a_change() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let of = |protocol: &str| {
            let given = [("security.protocol", protocol), ("ssl.key.location", path)];
            Files::of(
                &given
                    .map(|(name, value)| (name.to_owned(), Secret::new(value)))
                    .into(),
            )
        };
        let encrypted = of("SASL_SSL");
        let plain = of("plaintext");
        assert!(!encrypted.have_changed());
        fs::write(path, "another key").unwrap();
        assert!(encrypted.have_changed() && !plain.have_changed());
        assert!(!of("ssl").have_changed());
    }

    #[test]
    fn a_password_is_read_from_its_file_and_hidden_like_one_that_was_given() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "canary in a file\n").unwrap();
        let path = file.path().to_str().unwrap();
        let given: BTreeMap<_, _> = [(PASSWORD_LOCATION.to_owned(), Secret::new(path))].into();
        check_properties(&given).unwrap();
        let read = with_password(&given).unwrap();
        assert_eq!(read.keys().collect::<Vec<_>>(), [PASSWORD]);
        assert_eq!(read[PASSWORD].expose(), "canary in a file");
        assert_eq!(Redactor::new(&read).clean("is canary in a file"), "is ***");
        let files = Files::of(&given);
        fs::write(file.path(), "another").unwrap();
        assert!(files.have_changed());
        let both = [given, [(PASSWORD.to_owned(), Secret::new("x"))].into()]
            .into_iter()
            .flatten()
            .collect();
        assert!(
            check_properties(&both)
                .unwrap_err()
                .cause()
                .contains("two names")
        );
        let missing = [(PASSWORD_LOCATION.to_owned(), Secret::new("/nowhere"))].into();
        let error = with_password(&missing).unwrap_err();
        assert!(
            error.kind() == Kind::Config && error.cause().contains("/nowhere"),
            "{error}"
        );
    }

    #[test]
    fn a_private_key_in_place_of_its_path_is_not_shown() {
        let key = "-----BEGIN PRIVATE KEY-----\ncanary\n-----END PRIVATE KEY-----";
        let error =
            checked_files(&[("security.protocol", "ssl"), ("ssl.key.location", key)]).unwrap_err();
        assert!(!format!("{error:?}").contains("canary"), "{error:?}");
        assert!(error.what_to_do().unwrap().contains("ssl.key.pem"));
    }
}
