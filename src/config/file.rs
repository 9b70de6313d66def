//! What was typed into `walrelay.toml`: keys with their values and lines.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::setting::{self, ENVELOPE, Form, HEADERS, KAFKA_PROPERTIES, OUTBOX};
use crate::error::{Error, Kind, Result};

/// A value as it was typed, and the line it is on.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The value in text form.
    pub text: String,
    /// Its line, from 1.
    pub line: usize,
}

/// A configuration file, read and known to hold only keys that exist, each once. No `Debug`: it may hold passwords.
#[derive(Default)]
pub struct ConfigFile {
    /// Its name, as given.
    pub path: String,
    /// Settings by key.
    pub settings: BTreeMap<&'static str, Entry>,
    /// librdkafka properties by name.
    pub properties: BTreeMap<String, Entry>,
    /// Templates of headers by the header's name, in the order of the file.
    pub headers: Vec<(String, Entry)>,
    /// Whether there is a set of headers, if only one without any.
    pub has_headers: bool,
    /// Templates of an envelope's members by the member's name, in the order of the file.
    pub envelope: Vec<(String, Entry)>,
    /// What each `[[outbox]]` says, as if it were a file of its own: `outbox.table`, `route.topic` and so on.
    pub outboxes: Vec<ConfigFile>,
    /// Whether group or others may read the file.
    pub readable_by_others: bool,
}

impl ConfigFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`Kind::Config`] with file and line.
    pub fn read(path: &Path) -> Result<ConfigFile> {
        let shown = path.display().to_string();
        let cannot = |error: std::io::Error| {
            Error::new(Kind::Config, format!("{shown} cannot be read: {error}"))
                .remedy("name a readable file with --config or WALRELAY_CONFIG")
        };
        let mut file = File::open(path).map_err(cannot)?;
        let readable_by_others = readable_by_others(&file).map_err(cannot)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(cannot)?;
        let mut parsed = parse(&shown, &text)?;
        parsed.readable_by_others = readable_by_others;
        Ok(parsed)
    }
}

#[cfg(unix)]
fn readable_by_others(file: &File) -> std::io::Result<bool> {
    use std::os::unix::fs::PermissionsExt;
    const GROUP_OR_OTHERS_READ: u32 = 0o044;
    Ok(file.metadata()?.permissions().mode() & GROUP_OR_OTHERS_READ != 0)
}

#[cfg(not(unix))]
fn readable_by_others(_: &File) -> std::io::Result<bool> {
    Ok(false)
}

/// Reads `text`, calling it `path` in errors. Values are checked against the *type* their key wants, not further.
///
/// # Errors
/// [`Kind::Config`] with file and line: not TOML, an unknown key, a key set twice, a value of the wrong type.
pub fn parse(path: &str, text: &str) -> Result<ConfigFile> {
    // Only the message: the error's own display shows the line, and the line may hold a password.
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        let there = text.lines().nth(line.saturating_sub(1)).unwrap_or_default().trim_start();
        let is_outbox = there.starts_with("[outbox]") || there.starts_with("[[outbox]]");
        let remedy = if error.message().contains("duplicate key") && is_outbox && text.contains("[[outbox]]") {
            "with several outboxes each of them is [[outbox]], in double brackets, and there is no [outbox] beside them"
        } else if error.message().contains("duplicate key") {
            "remove one of the two: nobody can tell which one was meant"
        } else {
            "the file has to be TOML, https://toml.io"
        };
        Error::new(Kind::Config, format!("{path}:{line}: {}", error.message())).remedy(remedy)
    })?;
    let mut reader = Reader { text, file: ConfigFile { path: path.to_owned(), ..ConfigFile::default() } };
    reader.table("", table.get_ref())?;
    Ok(reader.file)
}

struct Reader<'a> {
    text: &'a str,
    file: ConfigFile,
}

impl Reader<'_> {
    /// Dotted keys and tables come to the same: `kafka.properties.linger.ms`, however it was cut in two.
    fn table(&mut self, prefix: &str, table: &DeTable<'_>) -> Result<()> {
        let mut in_order: Vec<_> = table.iter().collect();
        in_order.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in in_order {
            let line = line_of(self.text, name.span().start);
            self.below(prefix, line, name.get_ref(), value.get_ref())?;
        }
        Ok(())
    }

    /// One key of the table `prefix`.
    fn below(&mut self, prefix: &str, line: usize, name: &str, value: &DeValue<'_>) -> Result<()> {
        let key = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
        let property = key.strip_prefix(KAFKA_PROPERTIES).and_then(|rest| rest.strip_prefix('.'));
        if matches!(prefix, HEADERS | ENVELOPE) {
            let named = self.named(line, &key, name, value)?;
            if prefix == HEADERS { &mut self.file.headers } else { &mut self.file.envelope }.push(named);
            return Ok(());
        }
        self.file.has_headers |= key == HEADERS;
        match (value, property) {
            (DeValue::Array(several), None) if key == OUTBOX => self.outboxes(line, several),
            (DeValue::Table(inner), Some(_)) => self.table(&key, inner),
            (DeValue::Table(inner), None) if is_table(&key) => self.table(&key, inner),
            (value, Some(property)) => self.property(line, property, value),
            (value, None) => self.setting(line, &key, value),
        }
    }

    /// Each of `several` with keys of its own: what is below `route` and `format` is meant for this one alone.
    fn outboxes(&mut self, line: usize, several: &[toml::Spanned<DeValue<'_>>]) -> Result<()> {
        for outbox in several {
            let DeValue::Table(table) = outbox.get_ref() else {
                return Err(self
                    .error(line, OUTBOX, "is a list of something else than tables")
                    .remedy("write [[outbox]] on a line of its own, and its keys below it"));
            };
            let file = ConfigFile { path: self.file.path.clone(), ..ConfigFile::default() };
            let mut reader = Reader { text: self.text, file };
            for (name, value) in table {
                let line = line_of(self.text, name.span().start);
                match (name.get_ref().as_ref(), value.get_ref()) {
                    (of @ ("route" | "format"), DeValue::Table(inner)) => reader.table(of, inner)?,
                    (_, value) => reader.below(OUTBOX, line, name.get_ref(), value)?,
                }
            }
            self.file.outboxes.push(reader.file);
        }
        Ok(())
    }

    fn property(&mut self, line: usize, name: &str, value: &DeValue<'_>) -> Result<()> {
        let key = format!("{KAFKA_PROPERTIES}.{name}");
        let text = property_text(value).ok_or_else(|| {
            self.error(line, &key, "is neither text nor a number nor true or false")
                .remedy("write the property's value as librdkafka's manual has it, in quotes")
        })?;
        match self.file.properties.insert(name.to_owned(), Entry { text, line }) {
            None => Ok(()),
            // Tables come in the order of their keys, not of the file.
            Some(other) => Err(self.twice(line.max(other.line), &key)),
        }
    }

    /// A template with the name of what it makes.
    fn named(&self, line: usize, key: &str, name: &str, value: &DeValue<'_>) -> Result<(String, Entry)> {
        let DeValue::String(text) = value else {
            let remedy = format!("write \"{name}\" = \"{{column}}\"; a name with a dot in it needs its quotes");
            return Err(self.error(line, key, "must be a template in quotes").remedy(remedy));
        };
        Ok((name.to_owned(), Entry { text: text.to_string(), line }))
    }

    fn setting(&mut self, line: usize, key: &str, value: &DeValue<'_>) -> Result<()> {
        let Some(setting) = setting::ALL.iter().find(|setting| setting.key == key) else {
            return Err(self.unknown(line, key, value));
        };
        let text = match (setting.form, value) {
            (_, DeValue::String(text)) => text.to_string(),
            (Form::Bytes(..) | Form::Count(..), DeValue::Integer(number)) => {
                number_text(number).ok_or_else(|| self.error(line, key, "is not a number that fits"))?
            }
            (form, _) => {
                let (wants, example) = wanted(form);
                return Err(self
                    .error(line, key, &format!("must be {wants}"))
                    .remedy(format!("write it as {} = {example}", last(key))));
            }
        };
        match self.file.settings.insert(setting.key, Entry { text, line }) {
            None => Ok(()),
            Some(other) => Err(self.twice(line.max(other.line), key)),
        }
    }

    fn unknown(&self, line: usize, key: &str, value: &DeValue<'_>) -> Error {
        let (table, _) = key.rsplit_once('.').unwrap_or(("", key));
        let known: Vec<_> = if is_table(key) {
            return self
                .error(line, key, "is a table, not a value")
                .remedy(format!("write [{key}] on a line of its own, and its keys below it"));
        } else if table.is_empty() || matches!(value, DeValue::Table(_)) {
            tables().into_iter().map(|table| format!("[{table}]")).collect()
        } else {
            let keys = setting::ALL.iter().filter_map(|setting| setting.key.strip_prefix(table)?.strip_prefix('.'));
            keys.filter(|key| !key.contains('.')).map(str::to_owned).collect()
        };
        let place = if table.is_empty() { "a configuration file has".to_owned() } else { format!("[{table}] has") };
        self.error(line, key, "does not exist").remedy(format!("{place} {}", known.join(", ")))
    }

    fn twice(&self, line: usize, key: &str) -> Error {
        self.error(line, key, "is set twice").remedy("remove one of the two: nobody can tell which one was meant")
    }

    fn error(&self, line: usize, key: &str, what: &str) -> Error {
        Error::new(Kind::Config, format!("{}:{line}: {key} {what}", self.file.path))
    }
}

/// What a value of this form is called, and one as TOML would have it.
fn wanted(form: Form) -> (&'static str, &'static str) {
    match form {
        Form::Text => ("text in quotes", "\"…\""),
        Form::OneOf(_) => ("a word in quotes", "\"…\""),
        Form::Bytes(..) => ("a size", "\"32MiB\", or a number of bytes"),
        Form::Count(..) => ("a number", "1000"),
        Form::Duration(..) => ("a duration with its unit", "\"10s\""),
    }
}

/// Every table there is, in the order of the file.
fn tables() -> Vec<&'static str> {
    let mut tables = Vec::new();
    for setting in setting::ALL {
        let Some((table, _)) = setting.key.rsplit_once('.') else { continue };
        if !tables.contains(&table) {
            tables.push(table);
        }
    }
    tables.push(HEADERS);
    tables.push(ENVELOPE);
    tables.push(KAFKA_PROPERTIES);
    tables
}

fn is_table(key: &str) -> bool {
    tables().contains(&key)
}

fn last(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

fn number_text(number: &toml::de::DeInteger<'_>) -> Option<String> {
    i64::from_str_radix(number.as_str(), number.radix()).ok().map(|number| number.to_string())
}

fn property_text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => number_text(number),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(value) => Some(value.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

fn line_of(text: &str, byte: usize) -> usize {
    1 + text.bytes().take(byte).filter(|&byte| byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outbox_beside_several_is_told_how_they_are_written() {
        for text in ["[outbox]\n[[outbox]]", "[[outbox]]\n[outbox]"] {
            assert!(refused(text).what_to_do().unwrap().contains("in double brackets"), "{text}");
        }
    }

    fn refused(text: &str) -> Error {
        match parse("w.toml", text) {
            Ok(_) => panic!("taken: {text}"),
            Err(error) => error,
        }
    }

    #[test]
    fn what_is_not_meant_is_refused_with_its_line() {
        let table = [
            ("[slot]\nname = \"a\"\nnmae = \"b\"", "w.toml:3: slot.nmae does not exist"),
            ("[slots]\nname = \"a\"", "w.toml:1: slots does not exist"),
            ("\nbrokers = \"a\"", "w.toml:2: brokers does not exist"),
            ("[outbox.colums]", "w.toml:1: outbox.colums does not exist"),
            ("[slot.name]\nx = 1", "w.toml:1: slot.name must be text in quotes"),
            ("slot = \"a\"", "w.toml:1: slot is a table, not a value"),
            ("[slot]\nname = \"a\"\nname = \"b\"", "w.toml:3: duplicate key"),
            ("[slot]\n[slot]", "w.toml:2: duplicate key"),
            ("[outbox]\n[[outbox]]", "w.toml:2: duplicate key"),
            ("[slot]\nname = 1", "w.toml:2: slot.name must be text in quotes"),
            ("[slot]\nwal_sender_timeout = 10", "w.toml:2: slot.wal_sender_timeout must be a duration with its unit"),
            ("[slot]\nmax_message_bytes = true", "w.toml:2: slot.max_message_bytes must be a size"),
            ("[kafka.properties]\n\"a.b\" = 1\na.b = 2", "w.toml:3: kafka.properties.a.b is set twice"),
            (
                "[kafka.properties]\nx = [1]",
                "w.toml:2: kafka.properties.x is neither text nor a number nor true or false",
            ),
            ("[kafka]\nproperties = 1", "w.toml:2: kafka.properties is a table, not a value"),
            ("outbox = [1]", "w.toml:1: outbox is a list of something else than tables"),
            ("[[outbox]]\ntabel = \"a\"", "w.toml:2: outbox.tabel does not exist"),
            ("[[outbox]]\nroute.topik = \"a\"", "w.toml:2: route.topik does not exist"),
            ("[[slot]]\nname = \"a\"", "w.toml:1: slot is a table, not a value"),
        ];
        for (text, cause) in table {
            let error = refused(text);
            assert_eq!((error.cause(), error.kind()), (cause, Kind::Config), "{text}");
            assert!(error.what_to_do().is_some(), "{text}: nothing to do");
        }
    }

    #[test]
    fn an_unknown_key_is_met_with_those_that_exist() {
        let error = refused("[shutdown]\ntimout = \"1s\"");
        assert_eq!(error.what_to_do(), Some("[shutdown] has timeout"));
    }

    #[test]
    fn a_broken_line_with_a_password_is_not_shown() {
        let error = refused("[database]\nurl = \"postgres://u:canary@h/d");
        assert!(error.cause().starts_with("w.toml:2: "), "{}", error.cause());
        assert!(!format!("{error:?}").contains("canary"));
    }

    #[test]
    fn properties_may_be_written_dotted_quoted_or_as_tables_and_need_no_quotes_around_numbers() {
        let file = parse("w.toml", "[kafka.properties]\n\"linger.ms\" = 5\nsasl.mechanism = \"PLAIN\"\na.b.c = true\n")
            .unwrap();
        let read: Vec<_> =
            file.properties.iter().map(|(name, entry)| (name.as_str(), entry.text.as_str(), entry.line)).collect();
        assert_eq!(read, [("a.b.c", "true", 4), ("linger.ms", "5", 2), ("sasl.mechanism", "PLAIN", 3)]);
    }

    #[test]
    fn a_size_may_be_a_number_or_text() {
        for (text, value) in [("1_048_576", "1048576"), ("0x10", "16"), ("\"32MiB\"", "32MiB")] {
            let file = parse("w.toml", &format!("[kafka]\nmax_in_flight_bytes = {text}")).unwrap();
            assert_eq!(file.settings.get("kafka.max_in_flight_bytes").unwrap().text, value);
        }
    }
}
