//! What a configuration comes to, for people: TOML again, with where each value is from and without secrets.

use std::fmt::Write;

use super::Config;
use super::layers::Settings;
use super::setting::{self, ENVELOPE, HEADERS, KAFKA_PROPERTIES, Setting};

/// Properties whose values are worth seeing and cannot be secrets. Numbers and truth values are shown anyway.
const SHOWN_PROPERTIES: &[&str] = &[
    "acks",
    "client.id",
    "compression.codec",
    "compression.type",
    "partitioner",
    "sasl.mechanism",
    "sasl.mechanisms",
    "security.protocol",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.endpoint.identification.algorithm",
];

/// The effective configuration as a file would have it. The database's connection string and properties that could be
/// secrets are `***`; where the connection leads is in a comment.
pub fn effective(settings: &Settings, config: &Config) -> String {
    let mut text = format!(
        "# Database: {}\n# Publication: {:?}\n# Position stored under: {:?}\n",
        config.source.database.describe(),
        config.source.publication,
        config.state.key
    );
    let mut table = "";
    for setting in setting::ALL {
        let (of, key) = setting.key.rsplit_once('.').unwrap_or(("", setting.key));
        if of != table {
            line(&mut text, format_args!("\n[{of}]"));
            table = of;
        }
        match settings.get(setting) {
            Some(given) => {
                let value = shown(setting, given.text.expose());
                line(&mut text, format_args!("{key} = {value}  # {}", given.origin));
            }
            None => line(&mut text, format_args!("# {key}: {}", unset(setting))),
        }
    }
    for (table, templates) in [(HEADERS, settings.headers()), (ENVELOPE, settings.envelope())] {
        if !templates.is_empty() {
            line(&mut text, format_args!("\n[{table}]"));
        }
        for (name, given) in templates {
            line(&mut text, format_args!("{} = {}  # {}", quoted(name), quoted(given.text.expose()), given.origin));
        }
    }
    if !settings.properties().is_empty() {
        line(&mut text, format_args!("\n[{KAFKA_PROPERTIES}]"));
    }
    for (name, given) in settings.properties() {
        let value = given.text.expose();
        let plain =
            SHOWN_PROPERTIES.contains(&name.as_str()) || value.parse::<f64>().is_ok() || value.parse::<bool>().is_ok();
        let value = if plain && !super::layers::is_secret_property(name) { value } else { "***" };
        line(&mut text, format_args!("{} = {}  # {}", quoted(name), quoted(value), given.origin));
    }
    text
}

fn shown(setting: &Setting, value: &str) -> String {
    if setting.key == setting::DATABASE_URL.key { quoted("***") } else { quoted(value) }
}

fn unset(setting: &Setting) -> &'static str {
    match setting.key {
        key if key == setting::DATABASE_URL.key => "from the PG* variables and their defaults",
        key if key == setting::PUBLICATION.key || key == setting::STATE_KEY.key => "follows from the slot's name",
        key if key == setting::HTTP.key => "off",
        key if key == setting::TOPIC.key => "follows from topic_prefix and the column aggregatetype",
        key if key == setting::KEY.key => "follows from the column aggregateid",
        key if key == setting::PARTITION.key => "follows from the key",
        key if key == setting::TIMESTAMP.key => "when the record is produced",
        key if key == setting::VALUE.key => "follows from the column payload",
        _ => "not set",
    }
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    writeln!(text, "{what}").unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file;
    use crate::config::layers::{Environment, Flags};

    #[test]
    fn the_effective_configuration_is_a_file_that_means_the_same_apart_from_secrets() {
        let typed = "database.url = 'postgres://u:canary@h/d'\nslot.name = 'orders'\nkafka.brokers = 'b:9092'\n\
                     [kafka.properties]\n'sasl.password' = 'canary'\n'linger.ms' = 5\n'ssl.key.pem' = '12345'";
        let file = file::parse("w.toml", typed).unwrap();
        let settings = Settings::new(&Flags::new(), &Environment::new(), Some(&file));
        let text = effective(&settings, &settings.config(false).unwrap());
        assert!(!text.contains("canary") && !text.contains("12345"), "{text}");
        assert!(text.contains("\"linger.ms\" = \"5\"  # w.toml:6"), "{text}");
        assert!(text.contains("timeout = \"30s\"  # default"), "{text}");
        let again = file::parse("again.toml", &text).unwrap();
        let again = Settings::new(&Flags::new(), &Environment::new(), Some(&again));
        for setting in setting::ALL.iter().filter(|setting| setting.key != setting::DATABASE_URL.key) {
            let text_of = |settings: &Settings| settings.get(setting).map(|given| given.text.expose().to_owned());
            assert_eq!(text_of(&settings), text_of(&again), "{}", setting.key);
        }
    }
}
