//! The effective configuration for people: TOML with where each value is from, and without secrets.

use std::fmt::Write;

use super::file::Layer;
use super::layers::{Settings, is_secret_property};
use super::model::{ENVELOPE, HEADERS, KAFKA_PROPERTIES, KEYS, tables};
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
const OF_OUTBOX: [&str; 3] = ["outbox", "route", "format"];

/// The effective configuration as a file would have it. The database's connection string and properties that could be
/// secrets are `***`; where the connection leads is in a comment.
pub fn effective(settings: &Settings, config: &Config) -> String {
    let mut text = format!(
        "# Database: {}\n# Publication: {:?}\n# Position stored under: {:?}\n",
        config.source.database.describe(),
        config.source.publication,
        config.state.key
    );
    let is_of_outbox = |table: &str| OF_OUTBOX.contains(&table.split('.').next().unwrap_or_default());
    for table in tables() {
        if !(settings.has_several_outboxes() && is_of_outbox(table)) {
            write_table(&mut text, &settings.base, table, &format!("[{table}]"));
        }
    }
    for outbox in &settings.outboxes {
        for table in tables().into_iter().filter(|table| is_of_outbox(table)) {
            let heading = match table.strip_prefix("outbox") {
                Some("") => "[[outbox]]".to_owned(),
                Some(below) => format!("[outbox{below}]"),
                None => format!("[outbox.{table}]"),
            };
            write_table(&mut text, outbox, table, &heading);
        }
    }
    if !settings.properties.is_empty() {
        line(&mut text, format_args!("\n[{KAFKA_PROPERTIES}]"));
    }
    for (name, given) in &settings.properties {
        let value = given.text.expose();
        let plain =
            SHOWN_PROPERTIES.contains(&name.as_str()) || value.parse::<f64>().is_ok() || value.parse::<bool>().is_ok();
        let value = if plain && !is_secret_property(name) { value } else { "***" };
        line(&mut text, format_args!("{} = {}  # {}", quoted(name), quoted(value), given.origin));
    }
    text
}

fn write_table(text: &mut String, layer: &Layer, table: &str, heading: &str) {
    let named = match table {
        HEADERS => Some(&layer.model.route.headers),
        ENVELOPE => Some(&layer.model.format.envelope),
        KAFKA_PROPERTIES => return,
        _ => None,
    };
    if named.is_some_and(toml::Table::is_empty) {
        return;
    }
    line(text, format_args!("\n{heading}"));
    for (name, template) in named.into_iter().flatten() {
        let origin = layer.origin(&format!("{table}.{name}"));
        line(text, format_args!("{} = {template}  # {origin}", quoted(name)));
    }
    let of_messages = layer.get("outbox.message_prefix").is_some();
    for key in KEYS.iter().filter(|key| key.parts().0 == table) {
        let name = key.parts().1;
        match (key.path.as_str(), layer.get(&key.path), &key.default) {
            ("database.url", Some(given), _) => line(text, format_args!("{name} = \"***\"  # {}", given.origin)),
            (_, Some(given), _) => {
                line(text, format_args!("{name} = {}  # {}", quoted(given.text.expose()), given.origin));
            }
            ("outbox.table", None, _) if of_messages => line(text, format_args!("# {name}: messages are events")),
            ("outbox.columns.id", None, _) if of_messages => {
                line(text, format_args!("{name} = {}  # default", quoted(MESSAGE_LSN)));
            }
            (_, None, Some(default)) => line(text, format_args!("{name} = {}  # default", quoted(default))),
            (path, None, None) => line(text, format_args!("# {name}: {}", unset(path))),
        }
    }
}

/// What holds where nobody sets the key at `path`, and it has no default of its own.
fn unset(path: &str) -> &'static str {
    match path {
        "database.url" => "from the PG* variables and their defaults",
        "slot.publication" | "state.key" => "follows from the slot's name",
        "http.listen" => "off",
        "outbox.message_prefix" => "rows of the table are events",
        "route.topic" => "follows from topic_prefix and the column aggregatetype",
        "route.key" => "follows from the column aggregateid",
        "route.headers_from" => "none",
        "route.partition" => "follows from the key",
        "route.timestamp" => "when the record is produced",
        "format.value" => "follows from the column payload",
        "slot.backlog" => "pending rows where outbox.pending is set, else all",
        "slot.max_retained_bytes" => "without bound",
        "outbox.order_by" | "outbox.time" => "follows from the table's columns",
        "outbox.retention" => "for ever",
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

    #[test]
    fn the_effective_configuration_is_a_file_that_means_the_same_apart_from_secrets() {
        let typed = "database.url = 'postgres://u:canary@h/d'\nslot.name = 'orders'\nkafka.brokers = 'b:9092'\n\
                     [kafka.properties]\n'sasl.password' = 'canary'\n'linger.ms' = 5\n'ssl.key.pem' = '12345'";
        let first = Settings::of(typed).unwrap();
        let text = effective(&first, &first.config(false).unwrap());
        assert!(!text.contains("canary") && !text.contains("12345"), "{text}");
        assert!(text.contains("\"linger.ms\" = \"5\"  # w.toml:6"), "{text}");
        assert!(text.contains("timeout = \"30s\"  # default"), "{text}");
        let again = Settings::of(&text).unwrap();
        for key in KEYS.iter().filter(|key| key.path != "database.url") {
            let text_of = |settings: &Settings| {
                settings.get(&key.path).map(|given| given.text.expose().to_owned()).or_else(|| key.default.clone())
            };
            assert_eq!(text_of(&first), text_of(&again), "{}", key.path);
        }
    }

    #[test]
    fn several_outboxes_are_shown_each_with_all_that_holds_for_it() {
        let typed = "database.url = 'postgres://u@h/d'\nslot.name = 'orders'\nkafka.brokers = 'b:9092'\n\
                     [[outbox]]\ntable = 'one'\n[outbox.route.headers]\na = '{a}'\n\
                     [[outbox]]\nmessage_prefix = 'two'\n[outbox.format.envelope]\nx = '{x}'";
        let first = Settings::of(typed).unwrap();
        let text = effective(&first, &first.config(false).unwrap());
        let again = Settings::of(&text).unwrap();
        assert_eq!(format!("{:?}", again.outboxes().unwrap()), format!("{:?}", first.outboxes().unwrap()), "{text}");
    }
}
