//! Configuration files that walrelay writes: the effective one.

use std::fmt::Write;

use super::file::Layer;
use super::layers::{Config, SECRETS, Settings, is_secret_property};
use super::model::{KEYS, tables};
use walrelay_core::config::draft::{ENVELOPE, HEADERS, KAFKA_PROPERTIES, one_line};
use walrelay_core::config::outbox::MESSAGE_LSN;

/// Properties whose values are useful and cannot be secrets. Numbers and truth values are always
/// shown.
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

/// Keys whose values may have a secret inside.
pub(crate) const URLS: [&str; 3] = ["database.url", "upkeep.database", "webhook.url"];

const OF_OUTBOX: [&str; 3] = ["outbox", "route", "format"];

/// The effective configuration as a file. The connection string and properties that could be
/// secrets are `***`; a comment names the server of the connection.
pub(crate) fn effective(settings: &Settings, config: &Config) -> String {
    let mut text = format!(
        "# Database: {}\n# Publication: {:?}\n# Position stored under: {:?}\n",
        config.source.database.describe(),
        config.source.publication,
        config.state.key
    );
    let is_of_outbox =
        |table: &str| OF_OUTBOX.contains(&table.split('.').next().unwrap_or_default());
    for table in tables() {
        if settings.outboxes.is_empty() || !is_of_outbox(table) {
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
        let plain = SHOWN_PROPERTIES.contains(&name.as_str())
            || value.parse::<f64>().is_ok()
            || value.parse::<bool>().is_ok();
        let value = if plain && !is_secret_property(name) {
            value
        } else {
            "***"
        };
        line(
            &mut text,
            format_args!(
                "{} = {}  # {}",
                one_line(name),
                one_line(value),
                given.origin
            ),
        );
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
    if named.is_some_and(Vec::is_empty) {
        return;
    }
    line(text, format_args!("\n{heading}"));
    for (name, template) in named.into_iter().flatten() {
        let origin = layer.origin(&format!("{table}.{name}"));
        line(
            text,
            format_args!(
                "{} = {}  # {origin}",
                one_line(name),
                one_line(template.source())
            ),
        );
    }
    let of_messages = layer.get("outbox.message_prefix").is_some();
    let keeps_position = layer.model.sink.kind.capabilities().keeps_position;
    for key in KEYS.iter().filter(|key| key.parts().0 == table) {
        let name = key.parts().1;
        match (key.path.as_str(), layer.get(&key.path), &key.default) {
            (path, Some(given), _) if SECRETS.contains(&path) || URLS.contains(&path) => {
                line(text, format_args!("{name} = \"***\"  # {}", given.origin));
            }
            (_, Some(given), _) => {
                line(
                    text,
                    format_args!(
                        "{name} = {}  # {}",
                        one_line(given.text.expose()),
                        given.origin
                    ),
                );
            }
            ("outbox.table", None, _) if of_messages => {
                line(text, format_args!("# {name}: messages are events"))
            }
            ("outbox.columns.id", None, _) if of_messages => {
                line(
                    text,
                    format_args!("{name} = {}  # default", one_line(MESSAGE_LSN)),
                );
            }
            ("state.store", None, _) if !keeps_position => {
                line(text, format_args!("{name} = \"postgres\"  # default"));
            }
            (_, None, Some(default)) => line(
                text,
                format_args!("{name} = {}  # default", one_line(default)),
            ),
            (path, None, None) => line(text, format_args!("# {name}: {}", unset(path))),
        }
    }
}

/// The effect of the key at `path` if it is not set and has no default.
fn unset(path: &str) -> &'static str {
    match path {
        "database.url" => "from the PG* variables and their defaults",
        "upkeep.database" => "the relay's own connection",
        "slot.publication" | "state.key" => "follows from the slot's name",
        "http.listen" => "off",
        "otel.endpoint" => "from OTEL_EXPORTER_OTLP_ENDPOINT, else off",
        "otel.headers" => "from OTEL_EXPORTER_OTLP_HEADERS",
        "otel.service_name" => "from OTEL_SERVICE_NAME, else walrelay",
        "outbox.message_prefix" => "rows of the table are events",
        "route.topic" => "follows from topic_prefix and the column aggregatetype",
        "route.key" => "follows from the column aggregateid",
        "route.headers_from" => "none",
        "route.partition" => "follows from the key",
        "route.timestamp" => "when the record is produced",
        "format.value" => "follows from the column payload",
        "slot.backlog" => "pending rows where outbox.pending is set, else all, or none after setup",
        "slot.max_retained_bytes" => "without bound",
        "outbox.order_by" | "outbox.time" => "follows from the table's columns",
        "outbox.retention" => "for ever",
        _ => "not set",
    }
}

fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    writeln!(text, "{what}").unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use walrelay_core::config::draft::Draft;

    use super::*;

    #[test]
    fn the_effective_configuration_parses_to_the_same_settings_except_secrets() {
        let typed = "database.url = 'postgres://u:canary@h/d'\nslot.name = 'orders'\nkafka.brokers \
                     = 'b:9092'\n\
                     [kafka.properties]\n'sasl.password' = 'canary'\n'linger.ms' = \
                     5\n'ssl.key.pem' = '12345'";
        let first = Settings::of(typed).unwrap();
        let text = effective(&first, &first.config(false).unwrap());
        assert!(
            !text.contains("canary") && !text.contains("12345"),
            "{text}"
        );
        assert!(text.contains("\"linger.ms\" = \"5\"  # w.toml:6"), "{text}");
        assert!(text.contains("timeout = \"30s\"  # default"), "{text}");
        let again = Settings::of(&text).unwrap();
        for key in KEYS.iter().filter(|key| key.path != "database.url") {
            let text_of = |settings: &Settings| {
                settings
                    .get(&key.path)
                    .map(|given| given.text.expose().to_owned())
                    .or_else(|| key.default.clone())
            };
            assert_eq!(text_of(&first), text_of(&again), "{}", key.path);
        }
    }

    #[test]
    fn an_effective_configuration_of_two_outboxes_parses_to_the_same_outboxes() {
        let typed = "database.url = 'postgres://u@h/d'\nslot.name = 'orders'\nkafka.brokers = \
                     'b:9092'\n\
                     [[outbox]]\ntable = 'one'\n[outbox.route.headers]\na = '{a}'\n\
                     [[outbox]]\nmessage_prefix = 'two'\n[outbox.format.envelope]\nx = '{x}'";
        let first = Settings::of(typed).unwrap();
        let text = effective(&first, &first.config(false).unwrap());
        let again = Settings::of(&text).unwrap();
        assert_eq!(
            format!("{:?}", again.outboxes().unwrap()),
            format!("{:?}", first.outboxes().unwrap()),
            "{text}"
        );
    }

    #[test]
    fn a_draft_with_special_characters_parses_to_the_same_values() {
        let odd = "a \"b\" \\ c\nd\te\u{7f}\u{1} ü ''' \"\"\"";
        let mut draft = Draft::default();
        assert!(
            draft.named(HEADERS, odd, odd)
                && draft.named(HEADERS, "x.y", "{a}")
                && !draft.named(HEADERS, odd, "again")
        );
        draft.set("otel.service_name", odd);
        draft.note("kafka.brokers", "brokers = …\nlinger = 1");
        assert!(draft.named(KAFKA_PROPERTIES, "linger.ms", "5"));
        let settings = Settings::of(&draft.toml("two\nlines", &tables())).unwrap();
        let headers: Vec<_> = settings
            .base
            .model
            .route
            .headers
            .iter()
            .map(|(name, template)| (name.as_str(), template.source()))
            .collect();
        assert_eq!(headers, [(odd, odd), ("x.y", "{a}")]);
        assert_eq!(
            settings.get("otel.service_name").unwrap().text.expose(),
            odd
        );
        assert_eq!(settings.properties["linger.ms"].text.expose(), "5");
    }
}
