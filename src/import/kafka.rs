//! Options of Kafka's Java producer to properties of librdkafka.

use std::collections::BTreeMap;

use super::Carrying;
use super::Effect::{NoEffect, ToDo};
use super::given::PRODUCER_PREFIX;
use crate::secret::Secret;
use crate::sink::kafka::properties::check_properties;

/// Options of the producer and librdkafka's names for them, where the values mean the same.
const SAME: &[(&str, &str)] = &[
    ("security.protocol", "security.protocol"),
    ("sasl.mechanism", "sasl.mechanism"),
    ("compression.type", "compression.type"),
    ("linger.ms", "linger.ms"),
    ("batch.size", "batch.size"),
    ("client.id", "client.id"),
    ("request.timeout.ms", "request.timeout.ms"),
    ("max.request.size", "message.max.bytes"),
    ("metadata.max.age.ms", "metadata.max.age.ms"),
    ("connections.max.idle.ms", "connections.max.idle.ms"),
    ("client.dns.lookup", "client.dns.lookup"),
    ("sasl.kerberos.service.name", "sasl.kerberos.service.name"),
    ("ssl.truststore.certificates", "ssl.ca.pem"),
];

/// The option with the login's name and password in it.
pub(super) const LOGIN: &str = "producer.override.sasl.jaas.config";

/// Whether [`carry`] does something with this option of the producer.
pub(super) fn is_carried(name: &str) -> bool {
    const HERE: [&str; 5] = [
        "bootstrap.servers",
        "sasl.jaas.config",
        "ssl.endpoint.identification.algorithm",
        "ssl.truststore.location",
        "ssl.keystore.location",
    ];
    HERE.contains(&name) || SAME.iter().any(|(java, _)| *java == name)
}

pub(super) fn carry(carrying: &mut Carrying<'_>) {
    let given = carrying.given;
    let of = |name: &str| given.get(&format!("{PRODUCER_PREFIX}{name}"));
    match of("bootstrap.servers") {
        Some(brokers) => carrying.draft.set("kafka.brokers", brokers),
        None => {
            carrying.draft.note("kafka.brokers", "brokers = \"HOST:PORT\"  (the worker's bootstrap.servers)");
            let name = format!("{PRODUCER_PREFIX}bootstrap.servers");
            if !given.has(&name) {
                let why = "the worker's configuration says where Kafka is, and how to log in there; this file does not";
                carrying.left(&name, ToDo, why, "set kafka.brokers, and kafka.properties as the worker has them");
            }
        }
    }
    for (java, ours) in SAME {
        if let Some(value) = of(java) {
            property(carrying, java, ours, value);
        }
    }
    if let Some(value) = of("ssl.endpoint.identification.algorithm") {
        let ours = if value.is_empty() { "none" } else { value };
        property(carrying, "ssl.endpoint.identification.algorithm", "ssl.endpoint.identification.algorithm", ours);
    }
    stores(carrying);
    // Mostly it is the password in it that is filled in elsewhere, and the name is there.
    if let Some(value) = given.as_written(LOGIN) {
        login(carrying, value);
    }
}

fn property(carrying: &mut Carrying<'_>, java: &str, ours: &str, value: &str) {
    let one = BTreeMap::from([(ours.to_owned(), Secret::new(value))]);
    match check_properties(&one) {
        Ok(()) => {
            carrying.draft.property(ours, value);
        }
        Err(error) => {
            let name = format!("{PRODUCER_PREFIX}{java}");
            carrying.left(&name, ToDo, error.cause(), "set in kafka.properties what librdkafka has for it");
        }
    }
}

/// Files of certificates: PEM is read by both, PKCS #12 for the client's own, and Java's own form by Java alone.
fn stores(carrying: &mut Carrying<'_>) {
    let given = carrying.given;
    let of = |name: &str| given.get(&format!("{PRODUCER_PREFIX}{name}"));
    let is = |name: &str, form: &str| of(name).is_some_and(|value| value.eq_ignore_ascii_case(form));
    if let Some(path) = of("ssl.truststore.location") {
        if is("ssl.truststore.type", "PEM") {
            carrying.draft.property("ssl.ca.location", path);
        } else {
            let why = "librdkafka reads authorities from a PEM file";
            let what_to_do = "keytool -exportcert -rfc … > ca.pem, and set ssl.ca.location in kafka.properties";
            carrying.left("producer.override.ssl.truststore.location", ToDo, why, what_to_do);
        }
    }
    if let Some(path) = of("ssl.keystore.location") {
        if is("ssl.keystore.type", "PEM") {
            carrying.draft.property("ssl.certificate.location", path);
            carrying.draft.property("ssl.key.location", path);
        } else if is("ssl.keystore.type", "PKCS12") {
            carrying.draft.property("ssl.keystore.location", path);
        } else {
            let why = "librdkafka reads its certificate from a PEM or PKCS #12 file";
            let what_to_do = "keytool -importkeystore -deststoretype PKCS12 …, and set ssl.keystore.location in \
                              kafka.properties";
            carrying.left("producer.override.ssl.keystore.location", ToDo, why, what_to_do);
        }
    }
}

fn login(carrying: &mut Carrying<'_>, jaas: &str) {
    let module = jaas.split_whitespace().next().unwrap_or_default();
    let by_password = module.ends_with(".PlainLoginModule") || module.ends_with(".ScramLoginModule");
    match jaas_option(jaas, "username").filter(|user| by_password && !user.contains("${")) {
        Some(user) => {
            carrying.draft.property("sasl.username", &user);
            let why = "the name is carried as sasl.username; a password never is";
            carrying.left(LOGIN, ToDo, why, "set WALRELAY_KAFKA_PROPERTY_SASL_PASSWORD");
        }
        None => {
            let why = "it is no login with name and password that could be told apart";
            carrying.left(LOGIN, ToDo, why, "set librdkafka's sasl.* properties in kafka.properties");
        }
    }
}

/// An option of a login module, `name="value"`; `None` also where its end cannot be told.
fn jaas_option(jaas: &str, wanted: &str) -> Option<String> {
    // Behind the module's name and its flag.
    let mut rest = jaas.trim().splitn(3, char::is_whitespace).nth(2)?.trim_start();
    while let Some((name, after)) = rest.split_once('=') {
        let after = after.trim_start();
        let (value, behind) = match after.chars().next().filter(|quote| matches!(quote, '"' | '\'')) {
            Some(quote) => quoted_value(after.get(1..)?, quote)?,
            None => {
                let end = after.find(|c: char| c.is_whitespace() || c == ';').unwrap_or(after.len());
                let (value, behind) = after.split_at(end);
                (value.to_owned(), behind)
            }
        };
        if name.trim() == wanted {
            return Some(value);
        }
        rest = behind.trim_start();
    }
    None
}

/// The value up to `quote`, and what follows it. A backslash makes the next character plain.
fn quoted_value(text: &str, quote: char) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '\\' => value.push(characters.next()?.1),
            c if c == quote => return Some((value, text.get(at + 1..)?)),
            c => value.push(c),
        }
    }
    None
}

/// What a producer's option is to walrelay, where [`carry`] does nothing with it.
pub(super) fn left(carrying: &mut Carrying<'_>, name: &str, option: &str) {
    let (effect, why, what_to_do) = match option {
        "acks"
        | "enable.idempotence"
        | "retries"
        | "delivery.timeout.ms"
        | "max.in.flight.requests.per.connection"
        | "retry.backoff.ms"
        | "retry.backoff.max.ms" => {
            (NoEffect, "walrelay always waits for all replicas, and tries again in order for as long as it takes", "")
        }
        "key.serializer" | "value.serializer" => {
            (NoEffect, "there is nothing to choose: keys and values are bytes", "")
        }
        "buffer.memory" | "max.block.ms" => (NoEffect, "memory is bounded by kafka.max_in_flight_bytes", ""),
        "ssl.truststore.type" | "ssl.keystore.type" => {
            (NoEffect, "it belongs to the location, and was read with it", "")
        }
        "partitioner.class" | "partitioner.ignore.keys" => (
            super::Effect::Differs,
            "keys always go where Java's default puts them",
            "place a column that holds the partition: route.partition",
        ),
        "transactional.id" => (
            super::Effect::MayDiffer,
            "walrelay writes outside of Kafka's transactions",
            "consumers that read committed records only read its records, too",
        ),
        "interceptor.classes" => {
            (super::Effect::MayDiffer, "code of Java is not run", "find out what it does to records")
        }
        _ if ["password", "ssl.key", "secret", "ssl.keystore.certificate"].iter().any(|part| option.contains(part)) => {
            (
                ToDo,
                "a secret is not carried",
                "set it with WALRELAY_KAFKA_PROPERTY_…: ssl.keystore.password, ssl.key.password, ssl.key.pem",
            )
        }
        _ if option.starts_with("ssl.") || option.starts_with("sasl.") => (
            ToDo,
            "librdkafka has no option of this name and meaning",
            "see librdkafka's CONFIGURATION.md for its own ssl.* and sasl.*",
        ),
        _ => (NoEffect, "it tunes Java's producer; librdkafka has settings of its own", ""),
    };
    carrying.left(name, effect, why, what_to_do);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_among_a_login_modules_options() {
        for (jaas, user) in [
            (r#"x.PlainLoginModule required username="relay" password="canary";"#, Some("relay")),
            (r#"x.ScramLoginModule required password="a username=\"no\"" username='re"lay';"#, Some("re\"lay")),
            (r"x.PlainLoginModule required username = relay password=canary;", Some("relay")),
            (r#"x.PlainLoginModule required password="username=canary"#, None),
            (r"x.PlainLoginModule required;", None),
            ("", None),
        ] {
            assert_eq!(jaas_option(jaas, "username").as_deref(), user, "{jaas}");
        }
    }

    #[test]
    fn what_is_carried_exists_in_librdkafka() {
        for (java, ours) in
            SAME.iter().filter(|(java, _)| !matches!(*java, "sasl.mechanism" | "ssl.truststore.certificates"))
        {
            let value = match *java {
                "security.protocol" => "SASL_SSL",
                "compression.type" => "zstd",
                "client.dns.lookup" => "use_all_dns_ips",
                "client.id" | "sasl.kerberos.service.name" => "kafka",
                _ => "5000",
            };
            let one = BTreeMap::from([((*ours).to_owned(), Secret::new(value))]);
            assert_eq!(check_properties(&one), Ok(()), "{ours}");
        }
    }
}
