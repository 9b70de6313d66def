//! What `config check` says. Pure.

use serde::Serialize;

use crate::cli::text::{aligned, cell};
use crate::config::{EventSource, OutboxConfig, SourceConfig};
use crate::error::Error;
use crate::event::Shown as Id;
use crate::route::Record;
use crate::sink::is_internal;
use crate::source::catalog::Catalog;
use crate::source::preflight::Facts;
use crate::upkeep::writer;

/// How much of a value is shown in the table; `--json` has all of it.
const SHOWN_CHARS_MAX: usize = 1_001;
/// What stands for a value that only a row in the stream has.
const WHEN_RELAYED: &str = "(known when it is relayed)";

/// The whole report. The fields are the keys of `--json`.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    database: String,
    server_version: String,
    publication: String,
    publication_exists: bool,
    slot: String,
    slot_exists: bool,
    /// Whether `run` would take server, publication, slot and table.
    fit: bool,
    warnings: Vec<String>,
    outboxes: Vec<Outbox>,
}

/// One outbox, and where a row of it goes.
#[derive(Debug, Clone, Serialize)]
struct Outbox {
    /// `None`: messages are events.
    table: Option<String>,
    message_prefix: Option<String>,
    columns_used: Vec<String>,
    columns_not_used: Vec<String>,
    row: Option<RowId>,
    record: Option<Shown>,
    #[serde(skip)]
    found: Found,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct RowId {
    id: String,
    chosen: String,
}

/// What was found of a row.
#[derive(Debug, Clone)]
pub enum Found {
    /// Messages leave nothing behind that could be looked at.
    Messages,
    /// The row that was asked for is not in this table.
    Elsewhere,
    /// The table is empty.
    Nothing,
    /// No row is seen, and row-level security is on.
    Hidden,
    /// This role may not read the table.
    Forbidden(String),
    /// A row that cannot be routed.
    Refused {
        /// Its id; empty where it is NULL.
        id: String,
        /// Why it is this row.
        chosen: String,
        /// Why `run` would refuse it.
        error: Error,
    },
    /// A row and its record.
    Row {
        /// Its id; empty where it is NULL.
        id: String,
        /// Why it is this row.
        chosen: String,
        /// What becomes of it.
        record: Shown,
    },
}

/// A record, to be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shown {
    topic: String,
    key: Option<Text>,
    /// `None`: the key decides.
    partition: Option<i32>,
    /// `None`: when it is produced.
    timestamp_ms: Option<i64>,
    headers: Vec<Header>,
    /// Bytes of the body; `None` is a tombstone.
    body_bytes: Option<usize>,
    /// `None`: it is a tombstone, or not to be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Text>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Header {
    name: String,
    value: Option<Text>,
    /// Its value is another when the row is relayed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    known_when_relayed: bool,
}

/// Bytes as text where they are UTF-8, else as hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Text {
    Text(String),
    Hex(String),
}

impl Text {
    fn of(bytes: &[u8]) -> Text {
        match std::str::from_utf8(bytes) {
            Ok(text) => Text::Text(text.to_owned()),
            Err(_) => Text::Hex(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        }
    }

    /// On one line, harmless for a terminal, and cut.
    fn shown(&self) -> String {
        let (text, prefix) = match self {
            Text::Text(text) => (text, ""),
            Text::Hex(hex) => (hex, "\\x"),
        };
        format!("{prefix}{}", cell(text.as_bytes(), SHOWN_CHARS_MAX))
    }
}

impl Shown {
    /// Copies what is to be shown; the header `position` has no value yet.
    pub fn of(record: &Record<'_>, position: Option<&str>, with_body: bool) -> Shown {
        let header = |(name, value): &(&str, Option<&[u8]>)| {
            let known_when_relayed = position == Some(*name);
            let value = value.filter(|_| !known_when_relayed).map(Text::of);
            Header { name: (*name).to_owned(), value, known_when_relayed }
        };
        Shown {
            topic: record.topic.to_owned(),
            key: record.key.map(Text::of),
            partition: record.partition,
            timestamp_ms: record.timestamp_ms,
            headers: record.headers.iter().map(header).collect(),
            body_bytes: record.value.map(<[u8]>::len),
            body: record.value.filter(|_| with_body).map(Text::of),
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("topic", self.topic.clone())];
        let key = self.key.as_ref().map(Text::shown);
        lines.push(("key", key.unwrap_or_else(|| "(none: no order)".to_owned())));
        let partition = self.partition.map(|number| number.to_string());
        let by_key = if self.key.is_some() { "(by the key)" } else { "(each in turn)" };
        lines.push(("partition", partition.unwrap_or_else(|| by_key.to_owned())));
        let time = self.timestamp_ms.map(|ms| match jiff::Timestamp::from_millisecond(ms) {
            Ok(time) => time.to_string(),
            Err(_) => format!("{ms} ms"),
        });
        lines.push(("timestamp", time.unwrap_or_else(|| "(when it is produced)".to_owned())));
        for Header { name, value, known_when_relayed } in &self.headers {
            let value = match value {
                _ if *known_when_relayed => WHEN_RELAYED.to_owned(),
                Some(value) => value.shown(),
                None => "(without a value)".to_owned(),
            };
            lines.push(("header", format!("{name}: {value}")));
        }
        lines.push(match (self.body_bytes, &self.body) {
            (None, _) => ("body", "(none: a tombstone)".to_owned()),
            (Some(bytes), None) => ("body", format!("({bytes} bytes)")),
            (Some(bytes), Some(body)) => ("body", format!("({bytes} bytes) {}", body.shown())),
        });
        lines
    }
}

/// What stands in the SQL of the configuration and may be a column: more names at worst.
fn used_by_upkeep(outbox: &OutboxConfig) -> Vec<String> {
    let of = &outbox.upkeep;
    let sql = [&of.pending, &of.mark, &of.order_by].into_iter().flatten().flat_map(|sql| writer::names(sql));
    sql.chain(of.time.clone()).collect()
}

impl Report {
    /// What holds for all outboxes.
    pub fn new(source: &SourceConfig, facts: &Facts, fit: bool, warnings: Vec<String>) -> Report {
        Report {
            database: source.database.describe(),
            server_version: facts.server.version.clone(),
            publication: source.publication.clone(),
            publication_exists: facts.publication().is_some(),
            slot: source.slot.to_string(),
            slot_exists: facts.slot.is_some(),
            fit,
            warnings,
            outboxes: Vec::new(),
        }
    }

    /// One outbox more, and what was found of a row.
    pub fn add(&mut self, outbox: &OutboxConfig, catalog: Option<&Catalog>, found: Found) {
        let table = catalog.and_then(|catalog| catalog.table.as_ref());
        let columns: Vec<_> = table.into_iter().flat_map(|table| &table.columns).map(|column| &column.name).collect();
        let (used, not_used): (Vec<_>, Vec<_>) = {
            let by_upkeep = used_by_upkeep(outbox);
            let is_used = |column: &String| outbox.columns.contains(column) || by_upkeep.contains(column);
            columns.into_iter().cloned().partition(is_used)
        };
        // In the order in which they are read, and then in that of the table.
        let more = used.into_iter().filter(|column| !outbox.columns.contains(column));
        let (row, record) = match &found {
            Found::Messages | Found::Elsewhere | Found::Nothing | Found::Hidden | Found::Forbidden(_) => (None, None),
            Found::Refused { id, chosen, .. } => (Some((id, chosen)), None),
            Found::Row { id, chosen, record } => (Some((id, chosen)), Some(record.clone())),
        };
        if let Some(Shown { topic, .. }) = record.as_ref().filter(|record| is_internal(&record.topic)) {
            self.warnings.push(format!(
                "the row goes to {topic}, one of Kafka's own topics, which takes no records: delivery.on_error says what becomes of it"
            ));
        }
        let (table, message_prefix) = match &outbox.source {
            EventSource::Table(table) => (Some(table.to_string()), None),
            EventSource::Messages(prefix) => (None, Some(prefix.clone())),
        };
        self.outboxes.push(Outbox {
            table,
            message_prefix,
            columns_used: outbox.columns.iter().cloned().chain(more).collect(),
            columns_not_used: not_used,
            row: row.map(|(id, chosen)| RowId { id: id.clone(), chosen: chosen.clone() }),
            record,
            found,
        });
    }

    /// The faults of rows that cannot be routed.
    pub(super) fn refused(&self) -> impl Iterator<Item = &Error> {
        self.outboxes.iter().filter_map(|outbox| match &outbox.found {
            Found::Refused { error, .. } => Some(error),
            _ => None,
        })
    }

    /// For people: a line per fact.
    pub fn text(&self) -> String {
        let there = |name: &str, exists: bool| match (exists, self.fit) {
            (true, true) => format!("{name}, fit"),
            (true, false) => name.to_owned(),
            (false, true) => format!("{name} is not there yet: walrelay setup makes it"),
            (false, false) => format!("{name} is not there"),
        };
        let mut lines = vec![
            ("database", format!("{}, PostgreSQL {}", self.database, self.server_version)),
            ("publication", there(&self.publication, self.publication_exists)),
            ("slot", there(&self.slot, self.slot_exists)),
        ];
        lines.extend(self.warnings.iter().map(|warning| ("warning", warning.clone())));
        let mut rows: Vec<[String; 2]> = lines.into_iter().map(|(label, text)| [label.to_owned(), text]).collect();
        rows.extend(self.outboxes.iter().flat_map(Outbox::lines));
        aligned(&rows) + "\n"
    }
}

impl Outbox {
    fn lines(&self) -> Vec<[String; 2]> {
        let listed = |columns: &[String]| if columns.is_empty() { "none".to_owned() } else { columns.join(", ") };
        let mut lines = match (&self.table, &self.message_prefix) {
            (Some(table), _) => vec![("table", table.clone())],
            (None, prefix) => vec![("messages", format!("with prefix {:?}", prefix.as_deref().unwrap_or_default()))],
        };
        lines.push(("used", listed(&self.columns_used)));
        if self.table.is_some() {
            lines.push(("not used", listed(&self.columns_not_used)));
        }
        let (row, record) = match &self.found {
            Found::Messages => ("none: messages leave nothing behind to look at".to_owned(), None),
            Found::Elsewhere => ("not looked at: the id is not in this table".to_owned(), None),
            Found::Nothing => ("none: the table is empty".to_owned(), None),
            Found::Hidden => ("none is seen: the table is empty, or row-level security hides them".to_owned(), None),
            Found::Forbidden(role) => {
                let why = format!("not read: role {role} has no SELECT on the table, which run does not need");
                (why, None)
            }
            Found::Refused { id, chosen, .. } => {
                (format!("{}, {chosen}: cannot be routed", Id::of(id.as_bytes())), None)
            }
            Found::Row { id, chosen, record } => {
                (format!("{}, {chosen}, goes to", Id::of(id.as_bytes())), Some(record))
            }
        };
        lines.push(("row", row));
        let indented = |(label, text): (&str, String)| [format!("  {label}"), text];
        let mut rows: Vec<[String; 2]> = lines.into_iter().map(|(label, text)| [label.to_owned(), text]).collect();
        rows.extend(record.into_iter().flat_map(Shown::lines).map(indented));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::layers::{Flags, Settings};
    use crate::source::catalog::{Column, Table};
    use crate::source::preflight::Server;

    fn report(found: Found, fit: bool) -> Report {
        report_of(&OutboxConfig::default(), found, fit)
    }

    fn report_of(outbox: &OutboxConfig, found: Found, fit: bool) -> Report {
        let given = [("slot.name", "orders"), ("database.url", "postgres://relay@db/shop")];
        let flags: Flags = given.into_iter().map(|(key, text)| (key, text.to_owned())).collect();
        let source = Settings::new(&flags, &Default::default(), None).unwrap().source().unwrap();
        let mut facts =
            Facts { server: Server { version: "17.11".to_owned(), ..Server::default() }, ..Facts::default() };
        let columns = ["id", "aggregatetype", "aggregateid", "payload", "type"];
        let column = |name: &str| Column { name: name.to_owned(), ..Column::default() };
        let table = Some(Table { columns: columns.map(column).to_vec(), ..Table::default() });
        facts.catalogs = vec![Catalog { table, ..Catalog::default() }];
        let mut report = Report::new(&source, &facts, fit, vec!["a warning".to_owned()]);
        report.add(outbox, facts.catalogs.first(), found);
        report
    }

    fn record(value: Option<&[u8]>, with_body: bool) -> Shown {
        let headers: &[(&str, Option<&[u8]>)] =
            &[("id", Some(b"7")), ("tenant", None), ("walrelay-position", Some(b"x"))];
        let record =
            Record { topic: "orders", key: Some(b"o-1"), value, headers, partition: None, timestamp_ms: Some(1_500) };
        Shown::of(&record, Some("walrelay-position"), with_body)
    }

    fn row(record: Shown) -> Found {
        Found::Row { id: "7".to_owned(), chosen: "the newest by id".to_owned(), record }
    }

    #[test]
    fn columns_of_what_is_marked_are_used() {
        let mut outbox = OutboxConfig::default();
        outbox.upkeep.pending = Some("Type = 'no_column'".to_owned());
        let report = report_of(&outbox, Found::Nothing, true);
        assert!(
            report.text().contains("used         id, aggregatetype, aggregateid, payload, type\n"),
            "{}",
            report.text()
        );
        assert!(report.outboxes[0].columns_not_used.is_empty());
    }

    #[test]
    fn where_a_row_goes_lines_up() {
        insta::assert_snapshot!(report(row(record(Some(b"{\"a\":\n 1}"), true)), true).text(), @r#"
        database     db:5432/shop as relay, PostgreSQL 17.11
        publication  walrelay_orders is not there yet: walrelay setup makes it
        slot         orders is not there yet: walrelay setup makes it
        warning      a warning
        table        public.outbox
        used         id, aggregatetype, aggregateid, payload
        not used     type
        row          "7", the newest by id, goes to
          topic      orders
          key        o-1
          partition  (by the key)
          timestamp  1970-01-01T00:00:01.5Z
          header     id: 7
          header     tenant: (without a value)
          header     walrelay-position: (known when it is relayed)
          body       (9 bytes) {"a":\n 1}
        "#);
    }

    #[test]
    fn a_body_is_cut_shown_as_hex_where_it_is_binary_and_left_out_where_told() {
        let body = |value: Option<&[u8]>, with_body| record(value, with_body).lines().pop().unwrap().1;
        assert_eq!(body(Some(b"\x00\xff"), true), "(2 bytes) \\x00ff");
        assert_eq!(body(Some("ü\u{1b}\u{202e}".as_bytes()), true), "(6 bytes) ü\\u{1b}\\u{202e}");
        assert_eq!(body(Some(b"canary"), false), "(6 bytes)");
        assert_eq!(body(None, true), "(none: a tombstone)");
        let long = body(Some("ü".repeat(5_000).as_bytes()), true);
        assert_eq!(long, format!("(10000 bytes) {}…", "ü".repeat(1_000)));
    }

    #[test]
    fn without_a_row_it_says_why() {
        let said = |found| report(found, true).text().lines().last().unwrap().to_owned();
        assert_eq!(said(Found::Nothing), "row          none: the table is empty");
        assert!(said(Found::Hidden).contains("row-level security"));
        assert!(said(Found::Forbidden("relay".to_owned())).contains("role relay has no SELECT"));
    }

    #[test]
    fn each_of_several_outboxes_has_its_row_and_messages_have_none() {
        let mut report = report(row(record(None, true)), true);
        let source = EventSource::Messages("shop".to_owned());
        report.add(&OutboxConfig { source, ..OutboxConfig::default() }, None, Found::Messages);
        let text = report.text();
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        assert_eq!(
            last,
            [
                "row          none: messages leave nothing behind to look at",
                "used         id, aggregatetype, aggregateid, payload",
                "messages     with prefix \"shop\"",
            ]
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["outboxes"][1]["message_prefix"], "shop");
    }

    #[test]
    fn the_json_has_the_whole_body_and_no_position() {
        let long = "x".repeat(3_000);
        let json = serde_json::to_value(report(row(record(Some(long.as_bytes()), true)), true)).unwrap();
        assert_eq!(json["outboxes"][0]["record"]["body"]["text"], long);
        assert_eq!(json["outboxes"][0]["record"]["headers"][2]["known_when_relayed"], true);
        assert_eq!(
            (json["outboxes"][0]["record"]["topic"].as_str(), json["slot_exists"].as_bool()),
            (Some("orders"), Some(false))
        );
        let without = serde_json::to_value(report(row(record(Some(b"canary"), false)), true)).unwrap();
        assert!(!without.to_string().contains("canary") && without["outboxes"][0]["record"]["body_bytes"] == 6);
    }
}
