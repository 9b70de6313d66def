//! What a configuration comes to, for people: TOML again, with where each value is from and without secrets.

use std::fmt::Write;

use super::layers::{Origin, Settings};
use super::setting::{self, ENVELOPE, HEADERS, KAFKA_PROPERTIES, OUTBOX, Setting};
use super::{Config, MESSAGE_LSN};

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

/// Tables of which each `[[outbox]]` has its own.
const OF_OUTBOX: &[&str] = &["outbox.", "route.", "format."];

/// The effective configuration as a file would have it. The database's connection string and properties that could be
/// secrets are `***`; where the connection leads is in a comment.
pub fn effective(settings: &Settings, config: &Config) -> String {
    let mut text = format!(
        "# Database: {}\n# Publication: {:?}\n# Position stored under: {:?}\n",
        config.source.database.describe(),
        config.source.publication,
        config.state.key
    );
    let several = settings.has_several_outboxes();
    let of_outbox = |setting: &Setting| OF_OUTBOX.iter().any(|table| setting.key.starts_with(table));
    for (table, members) in by_table(|setting| !(several && of_outbox(setting))) {
        line(&mut text, format_args!("\n[{table}]"));
        write_settings(&mut text, settings, &members);
        if !several {
            write_templates(&mut text, settings, table, "");
        }
    }
    if several {
        for outbox in settings.of_each_outbox() {
            line(&mut text, format_args!("\n[[{OUTBOX}]]"));
            for (table, members) in by_table(of_outbox) {
                if table != OUTBOX {
                    let below = table.strip_prefix("outbox.").unwrap_or(table);
                    line(&mut text, format_args!("\n[{OUTBOX}.{below}]"));
                }
                write_settings(&mut text, &outbox, &members);
                write_templates(&mut text, &outbox, table, "outbox.");
            }
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

/// The settings for which `wanted`, by the table they are in.
fn by_table(wanted: impl Fn(&Setting) -> bool) -> Vec<(&'static str, Vec<&'static Setting>)> {
    let mut tables: Vec<(&str, Vec<&Setting>)> = Vec::new();
    for setting in setting::ALL.iter().filter(|setting| wanted(setting)) {
        let of = setting.key.rsplit_once('.').map_or("", |(of, _)| of);
        match tables.last_mut().filter(|(table, _)| *table == of) {
            Some((_, members)) => members.push(setting),
            None => tables.push((of, vec![setting])),
        }
    }
    tables
}

fn write_settings(text: &mut String, settings: &Settings, members: &[&Setting]) {
    let of_messages = settings.get(&setting::MESSAGE_PREFIX).is_some();
    for setting in members {
        let key = setting.key.rsplit('.').next().unwrap_or(setting.key);
        match settings.get(setting) {
            Some(given) if of_messages && given.origin == Origin::Default && setting.key == setting::TABLE.key => {
                line(text, format_args!("# {key}: messages are events"));
            }
            Some(given) if of_messages && given.origin == Origin::Default && setting.key == setting::COLUMN_ID.key => {
                line(text, format_args!("{key} = {}  # default", quoted(MESSAGE_LSN)));
            }
            Some(given) => {
                let value = shown(setting, given.text.expose());
                line(text, format_args!("{key} = {value}  # {}", given.origin));
            }
            None => line(text, format_args!("# {key}: {}", unset(setting))),
        }
    }
}

/// The templates with names of their own that belong behind `table`.
fn write_templates(text: &mut String, settings: &Settings, table: &str, above: &str) {
    for (of, templates) in [(HEADERS, settings.headers()), (ENVELOPE, settings.envelope())] {
        if of.rsplit_once('.').is_none_or(|(of, _)| of != table) || templates.is_empty() {
            continue;
        }
        line(text, format_args!("\n[{above}{of}]"));
        for (name, given) in templates {
            line(text, format_args!("{} = {}  # {}", quoted(name), quoted(given.text.expose()), given.origin));
        }
    }
}

fn shown(setting: &Setting, value: &str) -> String {
    if setting.key == setting::DATABASE_URL.key { quoted("***") } else { quoted(value) }
}

fn unset(setting: &Setting) -> &'static str {
    match setting.key {
        key if key == setting::DATABASE_URL.key => "from the PG* variables and their defaults",
        key if key == setting::PUBLICATION.key || key == setting::STATE_KEY.key => "follows from the slot's name",
        key if key == setting::HTTP.key => "off",
        key if key == setting::MESSAGE_PREFIX.key => "rows of the table are events",
        key if key == setting::TOPIC.key => "follows from topic_prefix and the column aggregatetype",
        key if key == setting::KEY.key => "follows from the column aggregateid",
        key if key == setting::HEADERS_FROM.key => "none",
        key if key == setting::PARTITION.key => "follows from the key",
        key if key == setting::TIMESTAMP.key => "when the record is produced",
        key if key == setting::VALUE.key => "follows from the column payload",
        key if key == setting::BACKLOG.key => "pending rows where outbox.pending is set, else all",
        key if key == setting::MAX_RETAINED_BYTES.key => "without bound",
        key if key == setting::ORDER_BY.key || key == setting::TIME.key => "follows from the table's columns",
        key if key == setting::RETENTION.key => "for ever",
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

    #[test]
    fn several_outboxes_are_shown_each_with_all_that_holds_for_it() {
        let typed = "database.url = 'postgres://u@h/d'\nslot.name = 'orders'\nkafka.brokers = 'b:9092'\n\
                     [[outbox]]\ntable = 'one'\n[outbox.route.headers]\na = '{a}'\n\
                     [[outbox]]\nmessage_prefix = 'two'\n[outbox.format.envelope]\nx = '{x}'";
        let parsed = |text: &str| {
            let file = file::parse("w.toml", text).unwrap();
            Settings::new(&Flags::new(), &Environment::new(), Some(&file))
        };
        let settings = parsed(typed);
        let text = effective(&settings, &settings.config(false).unwrap());
        let again = parsed(&text);
        assert_eq!(format!("{:?}", again.outboxes().unwrap()), format!("{:?}", settings.outboxes().unwrap()), "{text}");
    }
}
