//! The options of a file by one set of names, whichever form it has: Kafka Connect's JSON, YAML or properties, or Debezium
//! Server's properties or YAML.
//!
//! Names are Kafka Connect's. Those of the Outbox Event Router start with `router.` instead of its alias, and those of
//! the producer with `producer.override.`.

use std::borrow::Cow;

use serde_json::value::RawValue;
use yaml_serde::Value as Yaml;

use crate::error::{Error, Kind, Result};
use crate::template::{each_member, text_of};

const ROUTER: &str = "io.debezium.transforms.outbox.EventRouter";
pub(super) const ROUTER_PREFIX: &str = "router.";
pub(super) const PRODUCER_PREFIX: &str = "producer.override.";
/// The option with the login's name and password in it.
pub(super) const LOGIN: &str = "producer.override.sasl.jaas.config";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Connect,
    Server,
}

pub(super) struct Written {
    /// Its name by our set of names.
    pub(super) name: String,
    pub(super) written: String,
    pub(super) value: String,
}

/// All of them. No `Debug`: any value may be a password.
pub(super) struct Given {
    pub(super) form: Form,
    pub(super) options: Vec<Written>,
    router: Option<String>,
}

impl Given {
    /// Reads a file called `path`. An error has the line and no value.
    pub(super) fn read(path: &str, text: &str) -> Result<Given> {
        let mut lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let begins_yaml = |line: &str| line == "---" || line.ends_with(':') || line.starts_with("apiVersion:");
        Ok(Given::new(if text.trim_start().starts_with('{') {
            of_json(path, text)?
        } else if path.ends_with(".yaml") || path.ends_with(".yml") || lines.next().is_some_and(begins_yaml) {
            of_yaml(path, text)?
        } else {
            of_properties(path, text)?
        }))
    }

    fn new(options: Vec<(String, String)>) -> Given {
        let is_server = options.iter().any(|(name, _)| name.starts_with("debezium."));
        let form = if is_server { Form::Server } else { Form::Connect };
        let options = options.into_iter().map(|(written, value)| {
            let name = match form {
                Form::Connect => written.clone(),
                Form::Server => name_of_server(&written),
            };
            Written { name, written, value: value.trim().to_owned() }
        });
        let mut given = Given { form, options: options.collect(), router: None };
        let chain = given.get("transforms").unwrap_or_default();
        let aliases = chain.split(',').map(str::trim).filter(|alias| !alias.is_empty());
        let router = aliases.into_iter().find(|alias| given.get(&format!("transforms.{alias}.type")) == Some(ROUTER));
        given.router = router.map(str::to_owned);
        if let Some(alias) = &given.router {
            let prefix = format!("transforms.{alias}.");
            for option in &mut given.options {
                if let Some(rest) = option.name.strip_prefix(&prefix) {
                    option.name = format!("{ROUTER_PREFIX}{rest}");
                }
            }
        }
        given
    }

    pub(super) fn router(&self) -> Option<&str> {
        self.router.as_deref()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// An option's value, if the file says what it is: one that is filled in elsewhere is not known.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.find(name).filter(|option| !self.is_filled_in(option)).map(|option| option.value.as_str())
    }

    /// An option's value, whether something is still to be put into it or not.
    pub(super) fn as_written(&self, name: &str) -> Option<&str> {
        self.find(name).map(|option| option.value.as_str())
    }

    /// As [`Given::get`]; the default holds where the option is not in the file, not where its value is not known.
    pub(super) fn or<'g>(&'g self, name: &str, default: &'g str) -> Option<&'g str> {
        if self.has(name) { self.get(name).filter(|value| !value.is_empty()) } else { Some(default) }
    }

    pub(super) fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    pub(super) fn written(&self, name: &str) -> String {
        match self.find(name) {
            Some(option) => option.written.clone(),
            None => format!("{} (not set)", self.would_be_written(name)),
        }
    }

    /// Where in the file an option stands that is `written` so; the end for one that does not.
    pub(super) fn place(&self, written: &str) -> usize {
        self.options.iter().position(|option| option.written == written).unwrap_or(usize::MAX)
    }

    /// Whether Kafka Connect's providers (`${file:…:…}`) or Quarkus (`${VARIABLE}`) put something in when it starts.
    pub(super) fn is_filled_in(&self, option: &Written) -> bool {
        // Groups of a regular expression look the same.
        if option.name == "router.route.topic.replacement" {
            return false;
        }
        let mut references = option.value.split("${").skip(1).filter_map(|rest| rest.split_once('}'));
        match self.form {
            Form::Connect => references.any(|(inside, _)| inside.contains(':')),
            Form::Server => references.next().is_some(),
        }
    }

    fn find(&self, name: &str) -> Option<&Written> {
        self.options.iter().find(|option| option.name == name)
    }

    fn would_be_written(&self, name: &str) -> String {
        let alias = self.router().unwrap_or("outbox");
        let rest = name.strip_prefix(ROUTER_PREFIX);
        let connect = rest.map_or(name.to_owned(), |rest| format!("transforms.{alias}.{rest}"));
        if self.form == Form::Connect {
            return connect;
        }
        let prefixes = SERVER_PREFIXES.iter().filter(|(_, ours)| !ours.is_empty());
        let found = prefixes.filter_map(|(theirs, ours)| Some((*theirs, connect.strip_prefix(ours)?))).next();
        let (theirs, rest) = found.unwrap_or(("debezium.source.", &connect));
        format!("{theirs}{rest}")
    }
}

/// How names of Debezium Server begin, and what stands for that in our set of names. The first that fits counts.
const SERVER_PREFIXES: [(&str, &str); 7] = [
    ("debezium.source.", ""),
    ("debezium.sink.kafka.producer.", PRODUCER_PREFIX),
    ("debezium.format.key", "key.converter"),
    ("debezium.format.value", "value.converter"),
    ("debezium.format.header", "header.converter"),
    ("debezium.transforms.", "transforms."),
    ("debezium.", ""),
];

fn name_of_server(written: &str) -> String {
    let of = |(theirs, ours): &(&str, &str)| Some(format!("{ours}{}", written.strip_prefix(theirs)?));
    SERVER_PREFIXES.iter().find_map(of).unwrap_or_else(|| written.to_owned())
}

/// The options of Kafka Connect's JSON in the order of the file: the map alone, `{"name": …, "config": {…}}`, or Strimzi's
/// `{"kind": "KafkaConnector", "spec": {"class": …, "config": {…}}}`. `null` is an option that is not set.
fn of_json(path: &str, text: &str) -> Result<Vec<(String, String)>> {
    // Only the line: the error's own text may quote a value.
    let not_json = |error: serde_json::Error| {
        Error::new(Kind::Config, format!("{path}:{}: this is not JSON as Kafka Connect takes it", error.line()))
            .remedy("name a file with one object: the connector's options, or its name and config")
    };
    let mut members = members_of(text).map_err(not_json)?;
    let mut class = None;
    for (outer, inner) in [("spec", "class"), ("config", "")] {
        let object = members.iter().find(|(name, value)| name == outer && value.get().starts_with('{'));
        if let Some((_, object)) = object {
            members = members_of(object.get()).map_err(not_json)?;
            class = class.or(members.iter().find(|(name, _)| name == inner).map(|(_, class)| *class));
        }
    }
    let class = class.map(|class| ("connector.class".into(), class));
    let mut options = Vec::new();
    for (name, value) in class.into_iter().chain(members) {
        if value.get().starts_with(['{', '[']) {
            return Err(no_option(path, &name));
        }
        let value = text_of(value.get()).map_err(not_json)?;
        options.extend(value.map(|value| (name.into_owned(), value.into_owned())));
    }
    Ok(options)
}

fn no_option(path: &str, name: &str) -> Error {
    Error::new(Kind::Config, format!("{path}: {name} is neither text nor a number"))
        .remedy("an option is a text, a number, or true or false")
}

/// The options of YAML in the order of the file: what [`of_json`] reads, or Debezium Server's, whose names are nested.
fn of_yaml(path: &str, text: &str) -> Result<Vec<(String, String)>> {
    let not_yaml = |error: yaml_serde::Error| {
        // Only the line: the error's own text may quote a value.
        let line = error.location().map_or(1, |at| at.line());
        Error::new(Kind::Config, format!("{path}:{line}: this is not YAML as Kubernetes or Quarkus takes it"))
            .remedy("name a file with one document: Strimzi's KafkaConnector, or Debezium Server's application.yaml")
    };
    let mut options = Vec::new();
    flatten(path, "", yaml_serde::from_str(text).map_err(not_yaml)?, &mut options)?;
    let is_inside = |prefix: &&str| options.iter().any(|(name, _)| name.starts_with(*prefix));
    let Some(prefix) = ["spec.config.", "config."].into_iter().find(is_inside) else { return Ok(options) };
    let option = |(name, value): (String, String)| match name.strip_prefix(prefix) {
        None => (name == "spec.class").then(|| ("connector.class".to_owned(), value)),
        Some(name) => Some((name.to_owned(), value)),
    };
    Ok(options.into_iter().filter_map(option).collect())
}

fn flatten(path: &str, name: &str, value: Yaml, options: &mut Vec<(String, String)>) -> Result<()> {
    let value = match value {
        Yaml::Mapping(members) => {
            return members.into_iter().try_for_each(|(inner, value)| {
                // A name that has members as well has its value under `~`.
                let name = format!("{name}.{}", inner.as_str().unwrap_or_default());
                flatten(path, name.trim_matches('.'), value, options)
            });
        }
        Yaml::Null => return Ok(()),
        Yaml::String(value) => value,
        Yaml::Bool(value) => value.to_string(),
        Yaml::Number(value) => value.to_string(),
        // Of Strimzi: what the cluster says of the connector.
        Yaml::Sequence(_) | Yaml::Tagged(_) if name.starts_with("status.") || name.starts_with("metadata.") => {
            return Ok(());
        }
        Yaml::Sequence(_) | Yaml::Tagged(_) => return Err(no_option(path, name)),
    };
    options.push((name.to_owned(), value));
    Ok(())
}

fn members_of(text: &str) -> serde_json::Result<Vec<(Cow<'_, str>, &RawValue)>> {
    let mut members = Vec::new();
    each_member(text.as_bytes(), |name, value| {
        members.push((name, value));
        Ok(())
    })?;
    Ok(members)
}

/// The options of Java's `.properties` in the order of the file; of two with one name the second counts, as in Java:
/// <https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/Properties.html>.
fn of_properties(path: &str, text: &str) -> Result<Vec<(String, String)>> {
    let mut options: Vec<(String, String)> = Vec::new();
    for (number, line) in logical_lines(text) {
        let malformed = || {
            Error::new(Kind::Config, format!("{path}:{number}: \\u is not followed by four hexadecimal digits"))
                .remedy("write a backslash as \\\\")
        };
        let (name, value) = split(&line);
        let (name, value) = (unescaped(name).ok_or_else(malformed)?, unescaped(value).ok_or_else(malformed)?);
        options.retain(|(known, _)| *known != name);
        options.push((name, value));
    }
    Ok(options)
}

const BLANKS: [char; 3] = [' ', '\t', '\u{c}'];

/// Lines without comments and blank ones, with those that a backslash continues put together, still escaped.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut continues = false;
    for (number, line) in (1..).zip(text.split('\n')) {
        let line = line.trim_start_matches(BLANKS);
        if !continues && (line.is_empty() || line.starts_with(['#', '!'])) {
            continue;
        }
        let slashes = line.chars().rev().take_while(|&c| c == '\\').count();
        let goes_on = slashes % 2 == 1;
        let line = if goes_on { line.get(..line.len() - 1).unwrap_or_default() } else { line };
        match lines.last_mut() {
            Some((_, before)) if continues => before.push_str(line),
            _ => lines.push((number, line.to_owned())),
        }
        continues = goes_on;
    }
    lines
}

/// Name and value: between them one `=` or `:`, or blanks alone.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line.find(|c| {
        let ends = !escaped && (matches!(c, '=' | ':') || BLANKS.contains(&c));
        escaped = !escaped && c == '\\';
        ends
    });
    let (name, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = rest.trim_start_matches(BLANKS);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (name, rest.trim_start_matches(BLANKS))
}

/// `None`: a `\u` without its four digits.
fn unescaped(text: &str) -> Option<String> {
    let mut units: Vec<u16> = Vec::new();
    let mut characters = text.chars();
    let push = |units: &mut Vec<u16>, c: char| units.extend_from_slice(c.encode_utf16(&mut [0; 2]));
    while let Some(c) = characters.next() {
        if c != '\\' {
            push(&mut units, c);
            continue;
        }
        match characters.next() {
            None => {}
            Some('t') => units.push(0x09),
            Some('n') => units.push(0x0a),
            Some('r') => units.push(0x0d),
            Some('f') => units.push(0x0c),
            Some('u') => {
                let digits: String = characters.by_ref().take(4).collect();
                let hexadecimal = digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                units.push(hexadecimal.then(|| u16::from_str_radix(&digits, 16).ok()).flatten()?);
            }
            Some(other) => push(&mut units, other),
        }
    }
    // Two halves of one character may have been written apart.
    Some(String::from_utf16_lossy(&units))
}

/// The expression with Java's ASCII classes written out, which have all of Unicode here. `None`: a quantifier is
/// possessive, which the engine here would take for a repetition of a repetition.
pub(super) fn of_java(regex: &str) -> Option<String> {
    let mut out = String::with_capacity(regex.len());
    let mut characters = regex.chars();
    let (mut in_class, mut after_quantifier) = (false, false);
    while let Some(c) = characters.next() {
        let is_quantifier = !in_class && matches!(c, '*' | '+' | '?' | '}');
        if after_quantifier && c == '+' {
            return None;
        }
        after_quantifier = is_quantifier && !out.ends_with('(');
        match c {
            '\\' => match characters.next() {
                Some('d') => out.push_str("[0-9]"),
                Some('D') => out.push_str("[^0-9]"),
                Some('w') => out.push_str("[0-9A-Za-z_]"),
                Some('W') => out.push_str("[^0-9A-Za-z_]"),
                Some('s') => out.push_str(r"[ \t\n\x0B\f\r]"),
                Some('S') => out.push_str(r"[^ \t\n\x0B\f\r]"),
                other => {
                    out.push('\\');
                    out.extend(other);
                }
            },
            c => {
                in_class = c == '[' || (in_class && c != ']');
                out.push(c);
            }
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_in_the_order_of_the_file() {
        let wanted = [("z", "1"), ("a", "true"), ("m", "x")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        for text in [
            r#"{"z": 1, "a": true, "none": null, "m": "x"}"#,
            r#"{"name": "n", "config": {"z": "1", "a": "true", "m": "x"}, "tasks": []}"#,
        ] {
            assert_eq!(of_json("f", text).unwrap(), wanted, "{text}");
        }
        let strimzi = r#"{"apiVersion": "kafka.strimzi.io/v1beta2", "kind": "KafkaConnector", "metadata": {"name": "n"},
            "spec": {"class": "C", "tasksMax": 1, "config": {"m": "x"}}, "status": {"conditions": []}}"#;
        let wanted = [("connector.class", "C"), ("m", "x")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(of_json("f", strimzi).unwrap(), wanted);
    }

    #[test]
    fn yaml_of_strimzi_connect_and_debezium_server_is_read_in_the_order_of_the_file() {
        for (path, text) in [
            (
                "f",
                "# Strimzi\n---\napiVersion: kafka.strimzi.io/v1beta2\nkind: KafkaConnector\nmetadata:\n  finalizers: [a]\nspec:\n  \
                   class: C\n  tasksMax: 1\n  config:\n    z: 1\n    a.b: true\n    none: null\n    m: '${x:y}'\nstatus:\n  topics: [b]\n",
            ),
            ("f.yml", "name: n\nconfig:\n  connector.class: C\n  z: 1\n  a.b: true\n  m: ${x:y}\n"),
            ("f", "connector:\n  class: C\nz: {~: 1}\na:\n  b: true\nm: ${x:y}\n"),
        ] {
            let Ok(given) = Given::read(path, text) else { panic!("{text}") };
            let options: Vec<_> = given.options.iter().map(|one| (one.name.as_str(), one.value.as_str())).collect();
            assert_eq!(options, [("connector.class", "C"), ("z", "1"), ("a.b", "true"), ("m", "${x:y}")], "{text}");
        }
        let server = "debezium:\n  format:\n    key:\n      ~: json\n      schemas.enable: false\nquarkus:\n  log: {level: INFO}\n";
        let Ok(given) = Given::read("f", server) else { panic!("{server}") };
        assert_eq!((given.form, given.get("key.converter")), (Form::Server, Some("json")));
        assert_eq!(given.get("key.converter.schemas.enable"), Some("false"));
        for text in ["a:\n  b: [canary]\n", "a:\n  b: canary: canary\n", "---\na: 1\n---\na: canary\n"] {
            let Err(error) = Given::read("f.yaml", text) else { panic!("{text}") };
            assert!(error.cause().starts_with("f.yaml:") && error.what_to_do().is_some(), "{error:?}");
            assert!(!format!("{error:?}").contains("canary"), "{error:?}");
        }
        assert!(Given::read("f", "# x\nname=a\nb:1").is_ok());
    }

    #[test]
    fn what_is_no_configuration_is_refused_without_a_value() {
        for text in [
            "{\"database.password\": \"canary\"",
            "{\"database.password\": \"canary\"]}",
            r#"{"a": {"b": "canary"}}"#,
            r#"{"config": "canary", "a": ["canary"]}"#,
        ] {
            let error = of_json("f.json", text).unwrap_err();
            assert_eq!(error.kind(), Kind::Config);
            assert!(!format!("{error:?}").contains("canary"), "{error:?}");
            assert!(error.what_to_do().is_some());
        }
    }

    #[test]
    fn properties_are_read_as_java_reads_them() {
        for (text, wanted) in [
            ("a=1\nb:2\nc 3\nd = 4\ne\t:\t5\n", &[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5")][..]),
            ("a==1\nb=:2\nc: =3\nd", &[("a", "=1"), ("b", ":2"), ("c", "=3"), ("d", "")]),
            (r"a\=b\:c\ d=e=f:g", &[("a=b:c d", "e=f:g")]),
            ("jaas=x required user=\"u\";", &[("jaas", "x required user=\"u\";")]),
            ("trailing = blanks stay  \n", &[("trailing", "blanks stay  ")]),
            // Comments and blank lines.
            ("# a=1\n  ! b=2\n\n \t\n#c\\\nd=4\r\ne=5\rf=6", &[("d", "4"), ("e", "5"), ("f", "6")]),
            ("a=1 # no comment", &[("a", "1 # no comment")]),
            // A backslash at the end of a line.
            ("a=x,\\\n   y,\\\n\tz\nb=2", &[("a", "x,y,z"), ("b", "2")]),
            ("a=x\\\n#y\nb=2", &[("a", "x#y"), ("b", "2")]),
            ("a=ends with \\\\\nb=2", &[("a", "ends with \\"), ("b", "2")]),
            ("a=1\\", &[("a", "1")]),
            ("a=\\\r\n  b", &[("a", "b")]),
            // Escapes.
            (r"a=\t\n\f\r\\\q", &[("a", "\t\n\u{c}\r\\q")]),
            (r"a=public\\.outbox", &[("a", r"public\.outbox")]),
            ("a=public\\.outbox", &[("a", "public.outbox")]),
            (r"a=\u00e4\ud83d\ude00", &[("a", "ä😀")]),
            ("a=1\nb=2\na=3", &[("b", "2"), ("a", "3")]),
        ] {
            let read = of_properties("f", text).unwrap();
            let read: Vec<_> = read.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            assert_eq!(read, wanted, "{text:?}");
        }
        let error = of_properties("f.properties", "x=1\na=canary\\u00g0").unwrap_err();
        assert!(error.cause().starts_with("f.properties:2: ") && !format!("{error:?}").contains("canary"), "{error:?}");
    }
}
