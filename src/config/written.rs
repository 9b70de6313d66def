//! Configuration files that walrelay writes: the effective one, and those that commands draft.

use std::fmt::Write;

use super::file::Layer;
use super::layers::{Config, Settings, is_secret_property};
use super::model::{ENVELOPE, HEADERS, KAFKA_PROPERTIES, KEYS, tables};
use walrelay_core::config::outbox::MESSAGE_LSN;

/// Properties whose values are useful and cannot be secrets. Numbers and truth values are always shown.
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

const COMMENT_CHARS_MAX: usize = 98;

const OF_OUTBOX: [&str; 3] = ["outbox", "route", "format"];

/// The effective configuration as a file. The connection string and properties that could be secrets are `***`; a
/// comment names the server of the connection.
pub(crate) fn effective(settings: &Settings, config: &Config) -> String {
    let mut text = format!(
        "# Database: {}\n# Publication: {:?}\n# Position stored under: {:?}\n",
        config.source.database.describe(),
        config.source.publication,
        config.state.key
    );
    let is_of_outbox = |table: &str| OF_OUTBOX.contains(&table.split('.').next().unwrap_or_default());
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
        let plain =
            SHOWN_PROPERTIES.contains(&name.as_str()) || value.parse::<f64>().is_ok() || value.parse::<bool>().is_ok();
        let value = if plain && !is_secret_property(name) { value } else { "***" };
        line(&mut text, format_args!("{} = {}  # {}", one_line(name), one_line(value), given.origin));
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
        line(text, format_args!("{} = {}  # {origin}", one_line(name), one_line(template.source())));
    }
    let of_messages = layer.get("outbox.message_prefix").is_some();
    for key in KEYS.iter().filter(|key| key.parts().0 == table) {
        let name = key.parts().1;
        match (key.path.as_str(), layer.get(&key.path), &key.default) {
            ("database.url" | "upkeep.database" | "otel.headers", Some(given), _) => {
                line(text, format_args!("{name} = \"***\"  # {}", given.origin));
            }
            (_, Some(given), _) => {
                line(text, format_args!("{name} = {}  # {}", one_line(given.text.expose()), given.origin));
            }
            ("outbox.table", None, _) if of_messages => line(text, format_args!("# {name}: messages are events")),
            ("outbox.columns.id", None, _) if of_messages => {
                line(text, format_args!("{name} = {}  # default", one_line(MESSAGE_LSN)));
            }
            (_, None, Some(default)) => line(text, format_args!("{name} = {}  # default", one_line(default))),
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
        "slot.backlog" => "pending rows where outbox.pending is set, else all",
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

#[derive(Debug, Default)]
pub(crate) struct Draft {
    lines: Vec<Line>,
    /// Tables of which each is an `[[outbox]]`.
    outboxes: Vec<String>,
}

#[derive(Debug)]
struct Line {
    table: &'static str,
    text: String,
}

impl Draft {
    pub(crate) fn set(&mut self, path: &'static str, value: &str) {
        self.add(path, |key| format!("{key} = {}", one_line(value)));
    }

    /// Adds the key at `path` with its value as a comment.
    pub(crate) fn propose(&mut self, path: &'static str, value: &str) {
        self.add(path, |key| format!("# {key} = {}", one_line(value)));
    }

    /// Adds a comment on the key at `path`: that it has to be set, or the reason for its value.
    pub(crate) fn note(&mut self, path: &'static str, comment: &str) {
        self.add(path, |_| commented(comment));
    }

    /// Adds a header, a member of the envelope or a property of librdkafka by name; `false` where there is one of that name.
    pub(crate) fn named(&mut self, table: &'static str, name: &str, value: &str) -> bool {
        let start = format!("{} = ", one_line(name));
        if self.lines.iter().any(|line| line.table == table && line.text.starts_with(&start)) {
            return false;
        }
        self.lines.push(Line { table, text: format!("{start}{}", one_line(value)) });
        true
    }

    fn add(&mut self, path: &'static str, text: impl FnOnce(&str) -> String) {
        let (table, key) = path.rsplit_once('.').unwrap_or(("", path));
        self.lines.push(Line { table, text: text(key) });
    }

    /// Has an `[[outbox]]` for each of these tables in place of `[outbox]`, all with what was set for that.
    pub(crate) fn outboxes(&mut self, tables: Vec<String>) {
        self.outboxes = tables;
    }

    pub(crate) fn toml(&self, heading: &str) -> String {
        let mut text = commented(heading) + "\n";
        let is_of_each = |table: &str| !self.outboxes.is_empty() && table.split('.').next() == Some("outbox");
        for table in tables().into_iter().filter(|table| !is_of_each(table)) {
            text.push_str(&self.section(table));
        }
        for outbox in &self.outboxes {
            let own = tables().into_iter().filter(|table| is_of_each(table)).map(|table| self.section(table));
            let own = own.collect::<String>();
            text.push_str(&format!("\n[[outbox]]\ntable = {}\n", one_line(outbox)));
            text.push_str(own.strip_prefix("\n[outbox]\n").unwrap_or(&own));
        }
        text
    }

    fn section(&self, table: &str) -> String {
        let lines: Vec<&str> =
            self.lines.iter().filter(|line| line.table == table).map(|line| line.text.as_str()).collect();
        if lines.is_empty() { String::new() } else { format!("\n[{table}]\n{}\n", lines.join("\n")) }
    }
}

/// The lines of a comment. Control characters become spaces, because they could end a line or hide a part of it.
fn commented(comment: &str) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for word in comment.replace(char::is_control, " ").split(' ') {
        let (is_first, word_width) = (lines.is_empty(), word.chars().count());
        width += 1 + word_width;
        if is_first || width > COMMENT_CHARS_MAX {
            lines.push_str(if is_first { "#" } else { "\n#" });
            width = word_width;
        }
        lines.push(' ');
        lines.push_str(word);
    }
    lines
}

/// A basic string of TOML on one line: <https://toml.io/en/v1.0.0#string>. It is a string of JSON without DEL.
fn one_line(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_configuration_parses_to_the_same_settings_except_secrets() {
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
    fn an_effective_configuration_of_two_outboxes_parses_to_the_same_outboxes() {
        let typed = "database.url = 'postgres://u@h/d'\nslot.name = 'orders'\nkafka.brokers = 'b:9092'\n\
                     [[outbox]]\ntable = 'one'\n[outbox.route.headers]\na = '{a}'\n\
                     [[outbox]]\nmessage_prefix = 'two'\n[outbox.format.envelope]\nx = '{x}'";
        let first = Settings::of(typed).unwrap();
        let text = effective(&first, &first.config(false).unwrap());
        let again = Settings::of(&text).unwrap();
        assert_eq!(format!("{:?}", again.outboxes().unwrap()), format!("{:?}", first.outboxes().unwrap()), "{text}");
    }

    #[test]
    fn a_draft_with_special_characters_parses_to_the_same_values() {
        let odd = "a \"b\" \\ c\nd\te\u{7f}\u{1} ü ''' \"\"\"";
        let mut draft = Draft::default();
        assert!(
            draft.named(HEADERS, odd, odd) && draft.named(HEADERS, "x.y", "{a}") && !draft.named(HEADERS, odd, "again")
        );
        draft.set("otel.service_name", odd);
        draft.note("kafka.brokers", "brokers = …\nlinger = 1");
        assert!(draft.named(KAFKA_PROPERTIES, "linger.ms", "5"));
        let settings = Settings::of(&draft.toml("two\nlines")).unwrap();
        let headers: Vec<_> = settings
            .base
            .model
            .route
            .headers
            .iter()
            .map(|(name, template)| (name.as_str(), template.source()))
            .collect();
        assert_eq!(headers, [(odd, odd), ("x.y", "{a}")]);
        assert_eq!(settings.get("otel.service_name").unwrap().text.expose(), odd);
        assert_eq!(settings.properties["linger.ms"].text.expose(), "5");
    }
}
