//! The configuration file, with variables and flags over its keys: read into a `Model` that
//! remembers origins.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::model::{KEYS, Key, Model, how_to_set, tables};
use walrelay_core::config::draft::{ENVELOPE, HEADERS, KAFKA_PROPERTIES};
use walrelay_core::config::text::{RULES, TEMPLATE, is_own_header};
use walrelay_core::error::{Error, Errors, Kind, Remedy, Result};
use walrelay_core::secret::Secret;

const SET: &str = "set";

#[derive(Debug, Clone)]
pub(crate) enum Origin {
    Flag(&'static str),
    Variable(String),
    File { path: String, line: usize },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(flag) => write!(f, "--{flag}"),
            Origin::Variable(name) => f.write_str(name),
            Origin::File { path, line } => write!(f, "{path}:{line}"),
        }
    }
}

impl Origin {
    /// The origin with the key at `path`, for people. A flag and a variable of the key stand for
    /// the key.
    pub(super) fn of(&self, path: &str) -> String {
        match self {
            Origin::Flag(SET) | Origin::File { .. } => format!("{self}: {path}"),
            Origin::Flag(_) | Origin::Variable(_) => self.to_string(),
        }
    }
}

/// A value and its origin. The text may be a password, so `Debug` does not show it.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    pub text: Secret,
    pub origin: Origin,
}

/// A value from a flag, a `--set` or a variable, which overrides the file's.
pub(super) struct Override<'a> {
    /// The names of the tables, then that of the key.
    names: Vec<String>,
    value: DeValue<'a>,
    origin: Origin,
}

impl<'a> Override<'a> {
    /// `text` for the key with this `name` in `table`.
    pub(super) fn new(table: &str, name: &str, text: &'a str, origin: Origin) -> Override<'a> {
        let names = table.split('.').chain([name]).map(str::to_owned).collect();
        Override {
            names,
            value: DeValue::String(text.into()),
            origin,
        }
    }

    pub(super) fn path(&self) -> String {
        self.names.join(".")
    }

    /// The values of a `--set`, as [`toml_of`] returns it.
    pub(super) fn all_of(toml: &'a str) -> Result<Vec<Override<'a>>> {
        let table = DeTable::parse(toml).map_err(|_| {
            Error::new(
                Kind::Config,
                "--set: this is not KEY=VALUE with the key of a configuration file",
            )
            .remedy("write it as --set delivery.retry_attempts=5 or --set route.topic=orders")
        })?;
        let over = |entry: Entry<'_, 'a>| {
            let Entry {
                mut names, value, ..
            } = entry;
            if names.join(".").starts_with(KAFKA_PROPERTIES) && names.len() > 3 {
                names = vec![names.remove(0), names.remove(0), names.join(".")];
            }
            Override {
                names,
                value: value.get_ref().clone(),
                origin: Origin::Flag(SET),
            }
        };
        Ok(entries(&[], table.get_ref(), |_| true)
            .into_iter()
            .map(over)
            .collect())
    }
}

/// The `KEY=VALUE` of a `--set` as TOML. A value that is not TOML is text.
pub(super) fn toml_of(set: &str) -> String {
    match set.split_once('=') {
        Some((key, value)) if DeTable::parse(set).is_err() => {
            format!("{key} = {}", toml::Value::from(value.trim()))
        }
        _ => set.to_owned(),
    }
}

/// The text of a configuration file, before parsing. No `Debug`: it may hold passwords.
#[derive(Default)]
pub struct ConfigFile {
    pub(super) path: String,
    text: String,
    /// `KEY=VALUE` of each `--set`, over the file's values and the variables'.
    pub(crate) set: Vec<String>,
    /// Whether others may read the file, or its group, unless root owns it.
    pub readable_by_others: bool,
}

impl ConfigFile {
    /// A file with this text; `path` is its name in errors.
    pub fn new(path: &str, text: &str) -> ConfigFile {
        ConfigFile {
            path: path.to_owned(),
            text: text.to_owned(),
            ..ConfigFile::default()
        }
    }

    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`Kind::Config`] where the file cannot be read.
    pub fn read(path: &Path) -> Result<ConfigFile> {
        let shown = path.display().to_string();
        let cannot = |error: std::io::Error| {
            Error::new(Kind::Config, format!("{shown} cannot be read: {error}"))
                .remedy("name a readable file with --config or WALRELAY_CONFIG")
        };
        let mut file = File::open(path).map_err(cannot)?;
        let metadata = file.metadata().map_err(cannot)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(cannot)?;
        // A file of root's may be readable by the group of its reader: systemd and Kubernetes
        // provide secrets in this way.
        let others = if metadata.uid() == 0 { 0o004 } else { 0o044 };
        let readable_by_others = metadata.mode() & others != 0;
        Ok(ConfigFile {
            path: shown,
            text,
            set: Vec::new(),
            readable_by_others,
        })
    }
}

/// Settings: all of them, or those of one outbox in `outbox`, `route` and `format`.
#[derive(Debug, Clone, Default)]
pub(super) struct Layer {
    pub(super) model: Model,
    given: BTreeMap<String, Given>,
}

impl Layer {
    pub(super) fn get(&self, path: &str) -> Option<&Given> {
        self.given.get(path)
    }

    /// Whether the key has a value that is not empty.
    pub(super) fn has(&self, path: &str) -> bool {
        let given = self.get(path);
        given.is_some_and(|given| !given.text.expose().is_empty())
    }

    /// The values of a table whose keys may have any name.
    pub(super) fn below(&self, table: &str) -> BTreeMap<String, Given> {
        let name = |path: &str| Some(path.strip_prefix(table)?.strip_prefix('.')?.to_owned());
        self.given
            .iter()
            .filter_map(|(path, given)| Some((name(path)?, given.clone())))
            .collect()
    }

    pub(super) fn origin(&self, path: &str) -> String {
        self.get(path)
            .map_or_else(|| "default".to_owned(), |given| given.origin.to_string())
    }

    pub(super) fn error(
        &self,
        path: &str,
        cause: impl fmt::Display,
        remedy: impl Into<Remedy>,
    ) -> Error {
        Error::new(Kind::Config, format!("{} {cause}", self.named(path))).remedy(remedy)
    }

    /// The key at `path` with the origin of its value, for people.
    fn named(&self, path: &str) -> String {
        self.get(path)
            .map_or_else(|| format!("default: {path}"), |given| given.origin.of(path))
    }

    /// Refuses the key at `path` if its value is `wrong` in combination with other keys.
    pub(super) fn refuse_if(
        &self,
        wrong: bool,
        path: &str,
        cause: &str,
        remedy: &str,
    ) -> Result<()> {
        if wrong {
            Err(self.error(path, cause, remedy))
        } else {
            Ok(())
        }
    }

    /// The value of the key at `path`, which is required.
    pub(super) fn required<T: Clone>(&self, path: &str, value: Option<&T>) -> Result<T> {
        let remedy = format_args!("set {}", how_to_set(path));
        value
            .cloned()
            .ok_or_else(|| Error::new(Kind::Config, format!("{path} is not set")).remedy(remedy))
    }
}

pub(super) struct Layers {
    /// All settings except those of an `[[outbox]]`.
    pub(super) base: Layer,
    pub(super) outboxes: Vec<Layer>,
}

impl Layers {
    /// Lays `overrides` over `file`. Reports all errors of the TOML, or all unknown keys and values
    /// of a wrong type.
    pub(super) fn read(file: &ConfigFile, overrides: &[Override<'_>]) -> Result<Layers> {
        let reader = Reader { file, overrides };
        let mut root = reader.parse()?;
        let mut errors = Errors::default();
        if let Some(DeValue::Table(kafka)) = root.get_mut("kafka").map(Spanned::get_mut)
            && let Some(DeValue::Table(properties)) =
                kafka.get_mut("properties").map(Spanned::get_mut)
        {
            *properties = errors.or_default(reader.flat(properties));
        }
        let mut outboxes = Vec::new();
        if let Some(DeValue::Array(several)) = root.get("outbox").map(Spanned::get_ref) {
            let several = several.clone();
            root.remove("outbox");
            for outbox in several.iter() {
                outboxes.extend(errors.keep(reader.outbox(&root, outbox)));
            }
        }
        let base = errors.keep(reader.layer(root));
        errors.result(base.map(|base| Layers { base, outboxes }))
    }
}

/// Reads tables, and resolves spans. A span within the text belongs to the file, a span after the
/// text to an override.
struct Reader<'a> {
    file: &'a ConfigFile,
    overrides: &'a [Override<'a>],
}

impl<'a> Reader<'a> {
    fn parse(&self) -> Result<DeTable<'a>> {
        let text = &self.file.text;
        let (table, refused) = DeTable::parse_recoverable(text);
        let mut errors = Errors::default();
        // Only the message: the error's `Display` shows the line, and the line may hold a password.
        for error in refused {
            let start = error.span().map_or(0, |span| span.start);
            let there = text
                .lines()
                .nth(self.line(start).saturating_sub(1))
                .unwrap_or_default()
                .trim_start();
            let is_outbox = there.starts_with("[outbox]") || there.starts_with("[[outbox]]");
            let is_duplicate = error.message().contains("duplicate key");
            let remedy = if is_duplicate && is_outbox && text.contains("[[outbox]]") {
                "with several outboxes each of them is [[outbox]], in double brackets, and there \
                 is no [outbox] beside them"
            } else if is_duplicate {
                "remove one of the two"
            } else {
                "write TOML, https://toml.io: text is in quotes, as in name = \"orders\""
            };
            errors.add(self.error(start, error.message()).remedy(remedy));
        }
        errors.result(Some(table.into_inner()))
    }

    /// The settings of one `[[outbox]]`: its keys, `route` and `format` over those of `base`.
    fn outbox(&self, base: &DeTable<'a>, outbox: &Spanned<DeValue<'a>>) -> Result<Layer> {
        let DeValue::Table(mut own) = outbox.get_ref().clone() else {
            return Err(self
                .error(
                    outbox.span().start,
                    "outbox is a list of something else than tables",
                )
                .remedy("write [[outbox]] on a line of its own, and its keys below it"));
        };
        let mut root = DeTable::new();
        let mut below = DeTable::new();
        for table in ["route", "format"] {
            root.extend(
                base.get_key_value(table)
                    .map(|(name, value)| (name.clone(), value.clone())),
            );
            below.extend(own.remove_entry(table));
        }
        below.insert(
            Spanned::new(outbox.span(), "outbox".into()),
            Spanned::new(outbox.span(), DeValue::Table(own)),
        );
        for over in self.overrides {
            let text = text_of(&over.value).unwrap_or_default();
            let own = value_at(&below, &over.names);
            if let Some(own) =
                own.filter(|own| text_of(own.get_ref()).is_some_and(|own| own != text))
            {
                let cause = format!(
                    "{} is {text:?} for every outbox, and this [[outbox]] says {} ({})",
                    over.origin.of(&over.path()),
                    shown(own.get_ref()),
                    self.origin(own.span().start)
                );
                return Err(Error::new(Kind::Config, cause).remedy("remove one of the two"));
            }
        }
        for (name, value) in below {
            match (
                root.get_mut(name.get_ref().as_ref()).map(Spanned::get_mut),
                value.get_ref(),
            ) {
                (Some(DeValue::Table(shared)), DeValue::Table(own)) => {
                    // A value is a template or an envelope. The outbox's own form replaces the
                    // other form of `base`.
                    for (one, other) in [("value", "envelope"), ("envelope", "value")] {
                        if own.contains_key(one) && !own.contains_key(other) {
                            shared.remove(other);
                        }
                    }
                    shared.extend(own.clone());
                }
                _ => drop(root.insert(name, value)),
            }
        }
        self.layer(root)
    }

    fn layer(&self, mut root: DeTable<'a>) -> Result<Layer> {
        for (at, over) in (self.file.text.len() + 1..).zip(self.overrides) {
            set(
                &mut root,
                &over.names,
                Spanned::new(at..at, over.value.clone()),
            );
        }
        let mut errors = Errors::default();
        let mut given = BTreeMap::new();
        for entry in entries(&[], &root, |name| tables().contains(&name)) {
            errors.keep(self.check(&entry));
            if let Some(text) = text_of(entry.value.get_ref()) {
                let origin = self.origin(entry.value.span().start);
                given.insert(
                    entry.names.join("."),
                    Given {
                        text: Secret::new(text),
                        origin,
                    },
                );
            }
        }
        let model = model_of(root).ok();
        errors.result(model.map(|model| Layer { model, given }))
    }

    /// Reads the entry alone, so that a refusal is one of its value.
    fn check(&self, entry: &Entry<'_, '_>) -> Result<()> {
        let Entry {
            names,
            start,
            value,
        } = entry;
        let path = names.join(".");
        if tables().contains(&path.as_str()) {
            return Err(self.no_value(*start, &path));
        }
        let mut alone = DeTable::new();
        set(&mut alone, names, (*value).clone());
        if path.starts_with(&format!("{KAFKA_PROPERTIES}.")) {
            let cause = format_args!("{path} is neither text nor a number nor true or false");
            let remedy = "write the property's value as librdkafka's manual has it, in quotes";
            return text_of(value.get_ref())
                .filter(|_| model_of(alone).is_ok())
                .map(drop)
                .ok_or_else(|| self.error(*start, cause).remedy(remedy));
        }
        let header = path
            .strip_prefix(HEADERS)
            .and_then(|name| name.strip_prefix('.'));
        let is_named = header.is_some() || path.starts_with(&format!("{ENVELOPE}."));
        if !is_named && !KEYS.iter().any(|key| key.path == path) {
            let cause = format_args!("{path} does not exist");
            return Err(self
                .error(*start, cause)
                .remedy(existing(&path, value.get_ref())));
        }
        if let Some(name) =
            header.filter(|name| name.is_empty() || name.contains('\0') || is_own_header(name))
        {
            let cause = format_args!(
                "{HEADERS} has {name:?}, which is no header's name or one of walrelay's own"
            );
            let remedy = "write a name of one character or more, without NUL, that does not begin \
                          with walrelay-";
            return Err(self.error(*start, cause).remedy(remedy));
        }
        let rule = RULES
            .iter()
            .find(|rule| rule.keys.split(' ').any(|key| key == path));
        let allowed = if is_named {
            Some(TEMPLATE)
        } else {
            rule.map(|rule| rule.allowed)
        };
        let refusal = match (rule, value.get_ref()) {
            (Some(rule), DeValue::String(text)) if !(rule.fits)(text) => "invalid value".to_owned(),
            _ => match model_of(alone) {
                Ok(_) => return Ok(()),
                Err(error) => error.message().to_owned(),
            },
        };
        Err(self.refused(&path, value, &refusal, allowed))
    }

    /// Dotted names and tables mean the same: `linger.ms`, `"linger.ms"`, and `ms` in a table
    /// `linger`.
    fn flat(&self, properties: &DeTable<'a>) -> Result<DeTable<'a>> {
        let mut errors = Errors::default();
        let mut flat = DeTable::new();
        for Entry { names, value, .. } in entries(&[], properties, |_| true) {
            let name = names.join(".");
            let span = value.span();
            if flat.contains_key(name.as_str()) {
                let cause = format_args!("{KAFKA_PROPERTIES}.{name} is set twice");
                errors.add(
                    self.error(span.start, cause)
                        .remedy("remove one of the two"),
                );
            }
            flat.insert(Spanned::new(span, name.into()), value.clone());
        }
        errors.result(Some(flat))
    }

    /// The error for a value that serde or a rule refused. Their message would show the value,
    /// which may be a secret.
    fn refused(
        &self,
        path: &str,
        value: &Spanned<DeValue<'_>>,
        why: &str,
        allowed: Option<&str>,
    ) -> Error {
        let named = self.origin(value.span().start).of(path);
        let name = path.rsplit('.').next().unwrap_or_default();
        let remedy = match (why.rsplit_once(", expected "), allowed) {
            (Some((_, "a string")), _) | (None, None) => {
                format!("write text in quotes: {name} = \"…\"")
            }
            (_, Some(allowed)) => format!("write {allowed}"),
            (Some((_, expected)), None) => format!("write {expected}"),
        };
        let is_of_type = ["invalid ", "unknown variant", "wanted "]
            .iter()
            .any(|of| why.starts_with(of));
        // A number may be the password of a connection string.
        let cause = match (
            ["database.url", "upkeep.database", "otel.headers"].contains(&path),
            is_of_type,
        ) {
            (true, _) => format!("{named} cannot be anything but text"),
            (false, true) => format!("{named} cannot be {}", shown(value.get_ref())),
            (false, false) => format!("{named}: {why}"),
        };
        Error::new(Kind::Config, cause).remedy(remedy)
    }

    fn no_value(&self, start: usize, path: &str) -> Error {
        self.error(start, format_args!("{path} is a table, not a value"))
            .remedy(format_args!(
                "write [{path}] on a line of its own, and its keys below it"
            ))
    }

    fn error(&self, start: usize, cause: impl fmt::Display) -> Error {
        Error::new(Kind::Config, format!("{}: {cause}", self.origin(start)))
    }

    fn origin(&self, start: usize) -> Origin {
        let over = start
            .checked_sub(self.file.text.len() + 1)
            .and_then(|index| self.overrides.get(index));
        match over {
            Some(over) => over.origin.clone(),
            None => Origin::File {
                path: self.file.path.clone(),
                line: self.line(start),
            },
        }
    }

    fn line(&self, start: usize) -> usize {
        1 + self
            .file
            .text
            .bytes()
            .take(start)
            .filter(|&byte| byte == b'\n')
            .count()
    }
}

fn existing(path: &str, value: &DeValue<'_>) -> String {
    let (table, _) = path.rsplit_once('.').unwrap_or(("", path));
    let is_table = tables().contains(&table);
    if !is_table || matches!(value, DeValue::Table(_)) {
        let place = if is_table {
            format!("[{table}]")
        } else {
            "a configuration file".to_owned()
        };
        let known: Vec<_> = tables().iter().map(|table| format!("[{table}]")).collect();
        return format!("{place} has {}", known.join(", "));
    }
    let known: Vec<_> = KEYS
        .iter()
        .map(Key::parts)
        .filter(|(of, _)| *of == table)
        .map(|(_, name)| name)
        .collect();
    let has = format!("[{table}] has {}", known.join(", "));
    let name = path.rsplit_once('.').map_or(path, |(_, name)| name);
    let elsewhere = KEYS
        .iter()
        .map(Key::parts)
        .find(|(_, other)| *other == name);
    match elsewhere {
        Some((other, _)) => format!("{name} is a key of [{other}]; {has}"),
        None => has,
    }
}

fn model_of(table: DeTable<'_>) -> std::result::Result<Model, toml::de::Error> {
    Model::deserialize(toml::de::Deserializer::from(Spanned::new(0..0, table)))
}

/// A key with its value, or what stands where a key could be.
struct Entry<'t, 'v> {
    /// The names of the tables, then that of the key.
    names: Vec<String>,
    /// Where the key is.
    start: usize,
    value: &'t Spanned<DeValue<'v>>,
}

/// The entries in `table` and in the tables below it that `descends` names.
fn entries<'t, 'v>(
    above: &[String],
    table: &'t DeTable<'v>,
    descends: fn(&str) -> bool,
) -> Vec<Entry<'t, 'v>> {
    let mut found = Vec::new();
    for (name, value) in table {
        let names = [above, &[name.get_ref().clone().into_owned()]].concat();
        match value.get_ref().as_table() {
            Some(below) if descends(&names.join(".")) => {
                found.extend(entries(&names, below, descends))
            }
            _ => found.push(Entry {
                names,
                start: name.span().start,
                value,
            }),
        }
    }
    found
}

fn value_at<'t, 'v>(table: &'t DeTable<'v>, names: &[String]) -> Option<&'t Spanned<DeValue<'v>>> {
    match names {
        [] => None,
        [name] => table.get(name.as_str()),
        [name, rest @ ..] => value_at(table.get(name.as_str())?.get_ref().as_table()?, rest),
    }
}

/// Sets the value at the path of `names`. Does nothing if another value than a table is on the
/// path: the model refuses that value.
fn set<'v>(table: &mut DeTable<'v>, names: &[String], value: Spanned<DeValue<'v>>) {
    let Some((name, rest)) = names.split_first() else {
        return;
    };
    let key = Spanned::new(value.span(), name.clone().into());
    if rest.is_empty() {
        table.insert(key, value);
        return;
    }
    let empty = Spanned::new(value.span(), DeValue::Table(DeTable::new()));
    if let DeValue::Table(inner) = table.entry(key).or_insert(empty).get_mut() {
        set(inner, rest, value);
    }
}

/// A single value as text; none for dates, arrays and tables.
fn text_of(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .ok()
            .map(|number| number.to_string()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(value) => Some(value.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

fn shown(value: &DeValue<'_>) -> String {
    match (value, text_of(value)) {
        (DeValue::String(text), _) => format!("{text:?}"),
        (_, Some(text)) => text,
        (_, None) => format!("of type {}", value.type_str()),
    }
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz_text;

    use super::*;
    use crate::config::{Environment, Flags, Settings};

    #[test]
    fn one_outbox_beside_a_list_of_outboxes_is_refused_with_the_right_syntax() {
        for text in ["[outbox]\n[[outbox]]", "[[outbox]]\n[outbox]"] {
            assert!(
                refused(text)
                    .what_to_do()
                    .unwrap()
                    .contains("in double brackets"),
                "{text}"
            );
        }
    }

    fn read(text: &str) -> Result<Layers> {
        Layers::read(&ConfigFile::new("w.toml", text), &[])
    }

    fn refused(text: &str) -> Error {
        match read(text) {
            Ok(_) => panic!("taken: {text}"),
            Err(error) => error,
        }
    }

    #[test]
    fn an_unknown_key_or_a_wrong_type_is_refused_with_its_line() {
        let table = [
            (
                "[slot]\nname = \"a\"\nnmae = \"b\"",
                "w.toml:3: slot.nmae does not exist",
            ),
            ("[slots]\nname = \"a\"", "w.toml:1: slots does not exist"),
            ("\nbrokers = \"a\"", "w.toml:2: brokers does not exist"),
            ("[outbox.colums]", "w.toml:1: outbox.colums does not exist"),
            (
                "[slot.name]\nx = 1",
                "w.toml:1: slot.name cannot be of type table",
            ),
            ("slot = \"a\"", "w.toml:1: slot is a table, not a value"),
            (
                "[slot]\nname = \"a\"\nname = \"b\"",
                "w.toml:3: duplicate key",
            ),
            ("[slot]\n[slot]", "w.toml:2: duplicate key"),
            ("[outbox]\n[[outbox]]", "w.toml:2: duplicate key"),
            ("[slot]\nname = 1", "w.toml:2: slot.name cannot be 1"),
            (
                "[database]\nurl = 12345",
                "w.toml:2: database.url cannot be anything but text",
            ),
            (
                "[log]\nformat = ['x']",
                "w.toml:2: log.format cannot be of type array",
            ),
            (
                "[slot]\nwal_sender_timeout = 10",
                "w.toml:2: slot.wal_sender_timeout cannot be 10",
            ),
            (
                "[slot]\nmax_message_bytes = true",
                "w.toml:2: slot.max_message_bytes cannot be true",
            ),
            (
                "[kafka.properties]\n\"a.b\" = 1\na.b = 2",
                "w.toml:3: kafka.properties.a.b is set twice",
            ),
            (
                "[kafka.properties]\nx = [1]",
                "w.toml:2: kafka.properties.x is neither text nor a number nor true or false",
            ),
            (
                "[kafka.properties]\nx = 1e400",
                "w.toml:2: kafka.properties.x is neither text nor a number nor true or false",
            ),
            (
                "[kafka]\nproperties = 1",
                "w.toml:2: kafka.properties is a table, not a value",
            ),
            (
                "outbox = [1]",
                "w.toml:1: outbox is a list of something else than tables",
            ),
            (
                "[[outbox]]\ntabel = \"a\"",
                "w.toml:2: outbox.tabel does not exist",
            ),
            (
                "[[outbox]]\nroute.topik = \"a\"",
                "w.toml:2: route.topik does not exist",
            ),
            (
                "[[slot]]\nname = \"a\"",
                "w.toml:1: slot is a table, not a value",
            ),
        ];
        for (text, cause) in table {
            let error = refused(text);
            assert_eq!(
                (error.cause(), error.kind()),
                (cause, Kind::Config),
                "{text}"
            );
            assert!(error.what_to_do().is_some(), "{text}: nothing to do");
        }
    }

    #[test]
    fn the_remedy_for_an_unknown_key_lists_the_existing_ones() {
        let error = refused("[shutdown]\ntimout = \"1s\"");
        assert_eq!(
            error.what_to_do().as_deref(),
            Some("[shutdown] has timeout")
        );
    }

    #[test]
    fn a_syntax_error_in_a_line_with_a_password_does_not_show_the_line() {
        let error = refused("[database]\nurl = \"postgres://u:canary@h/d");
        assert!(error.cause().starts_with("w.toml:2: "), "{}", error.cause());
        assert!(!format!("{error:?}").contains("canary"));
    }

    #[test]
    fn kafka_properties_may_have_dotted_or_quoted_names_and_unquoted_numbers() {
        let layers = read(
            "[kafka.properties]\n\"linger.ms\" = 5\nsasl.mechanism = \"PLAIN\"\na.b.c = true\n",
        )
        .unwrap();
        let shown = |(name, given): (&String, &Given)| {
            format!("{name} {} {}", given.text.expose(), given.origin)
        };
        let properties: Vec<_> = layers
            .base
            .below(KAFKA_PROPERTIES)
            .iter()
            .map(shown)
            .collect();
        assert_eq!(
            properties,
            [
                "a.b.c true w.toml:4",
                "linger.ms 5 w.toml:2",
                "sasl.mechanism PLAIN w.toml:3"
            ]
        );
    }

    #[test]
    fn a_size_may_be_a_number_or_text() {
        for (text, bytes) in [
            ("1_048_576", 1 << 20),
            ("0x10000", 1 << 16),
            ("\"32MiB\"", 32 << 20),
        ] {
            let layers = read(&format!("[sink]\nmax_in_flight_bytes = {text}")).unwrap();
            assert_eq!(layers.base.model.sink.max_in_flight_bytes, bytes);
        }
    }

    #[test]
    fn fuzzed_configurations() {
        let of_bus =
            |bus: &str| format!("database.url = 'postgres://u@h/d'\nslot.name = 'orders'\n{bus}\n");
        let corpus = [
            include_str!("../../walrelay.example.toml").to_owned(),
            of_bus("kafka.brokers = 'b:9092'\n[kafka.properties]\nlinger.ms = 5"),
            of_bus("sink.kind = 'webhook'\nwebhook.url = 'https://h/{topic}'"),
            of_bus("sink.kind = 'nats'\nnats.servers = 'tls://a,[::1]:4222'"),
            of_bus("sink.kind = 'rabbitmq'\nrabbitmq.servers = 'amqps://a:5671'"),
            of_bus(
                "sink.kind = 'smtp'\nsmtp.host = 'h'\nsmtp.from = 'a@b.c'\nroute.headers.To = '{to}'",
            ),
            of_bus(
                "kafka.brokers = 'b'\n[[outbox]]\ntable = 'a'\nroute.topic = '{type}'\n[[outbox]]\nmessages = 'p'",
            ),
            of_bus(
                "kafka.brokers = 'b'\nsink.max_in_flight_bytes = '1MiB'\notel.endpoint = 'http://c:4318'",
            ),
        ];
        fuzz_text("configurations", 8 << 20, &corpus, |text| {
            let file = ConfigFile::new("w.toml", text);
            let settings = Settings::new(&Flags::new(), &Environment::new(), Some(&file));
            let read =
                settings.and_then(|settings| Ok((settings.config(false)?, settings.otel()?)));
            if let Err(error) = read {
                assert_eq!(error.kind(), Kind::Config, "{error}");
            }
        });
    }
}
