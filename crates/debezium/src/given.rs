//! The options of a file by one set of names, whichever form it has: Kafka Connect's JSON, YAML or
//! properties, or Debezium Server's properties or YAML.
//!
//! Names are Kafka Connect's. Those of the Outbox Event Router start with `router.` instead of its
//! alias, and those of the producer with `producer.override.`.

use yaml_serde::Value as Yaml;

use walrelay_core::error::{Error, Kind, Result};

const ROUTER: &str = "io.debezium.transforms.outbox.EventRouter";
pub(crate) const ROUTER_PREFIX: &str = "router.";
pub(crate) const PRODUCER_PREFIX: &str = "producer.override.";
/// The option with the login's name and password in it.
pub(crate) const LOGIN: &str = "producer.override.sasl.jaas.config";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Connect,
    Server,
}

pub(crate) struct Written {
    /// Its name by our set of names.
    pub(crate) name: String,
    pub(crate) written: String,
    pub(crate) value: String,
}

/// All of them. No `Debug`: any value may be a password.
pub(crate) struct Given {
    pub(crate) form: Form,
    pub(crate) options: Vec<Written>,
    router: Option<String>,
}

impl Given {
    /// Reads a file called `path`. An error has the line and no value.
    pub(crate) fn read(path: &str, text: &str) -> Result<Given> {
        let mut lines = text
            .lines()
            .map(str::trim_end)
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let begins_yaml =
            |line: &str| line == "---" || line.ends_with(':') || line.starts_with("apiVersion:");
        let document: Result<Yaml, usize> = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|error| error.line())
        } else if path.ends_with(".yaml")
            || path.ends_with(".yml")
            || lines.next().is_some_and(begins_yaml)
        {
            yaml_serde::from_str(text).map_err(|error| error.location().map_or(1, |at| at.line()))
        } else {
            return Ok(Given::new(of_properties(path, text)?));
        };
        // Only the line: the error's own text may quote a value.
        let document = document.map_err(|line| {
            Error::new(
                Kind::Config,
                format!("{path}:{line}: this is neither JSON nor YAML, or more than one document"),
            )
            .remedy("name a file with one connector's options, or with its name and config")
        })?;
        Ok(Given::new(of_document(path, &document)?))
    }

    fn new(options: Vec<(String, String)>) -> Given {
        let is_server = options
            .iter()
            .any(|(name, _)| name.starts_with("debezium."));
        let form = if is_server {
            Form::Server
        } else {
            Form::Connect
        };
        let options = options.into_iter().map(|(written, value)| {
            let name = match form {
                Form::Connect => written.clone(),
                Form::Server => name_of_server(&written),
            };
            Written {
                name,
                written,
                value: value.trim().to_owned(),
            }
        });
        let mut given = Given {
            form,
            options: options.collect(),
            router: None,
        };
        let chain = given.get("transforms").unwrap_or_default();
        let aliases = chain
            .split(',')
            .map(str::trim)
            .filter(|alias| !alias.is_empty());
        let router = aliases
            .into_iter()
            .find(|alias| given.get(&format!("transforms.{alias}.type")) == Some(ROUTER));
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

    pub(crate) fn router(&self) -> Option<&str> {
        self.router.as_deref()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// An option's value, if the file says what it is: one that is filled in elsewhere is not
    /// known.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.find(name)
            .filter(|option| !self.is_filled_in(option))
            .map(|option| option.value.as_str())
    }

    /// An option's value, whether something is still to be put into it or not.
    pub(crate) fn as_written(&self, name: &str) -> Option<&str> {
        self.find(name).map(|option| option.value.as_str())
    }

    /// As [`Given::get`]; the default holds where the option is not in the file, not where its
    /// value is not known.
    pub(crate) fn or<'g>(&'g self, name: &str, default: &'g str) -> Option<&'g str> {
        if self.has(name) {
            self.get(name).filter(|value| !value.is_empty())
        } else {
            Some(default)
        }
    }

    pub(crate) fn is_true(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    pub(crate) fn written(&self, name: &str) -> String {
        match self.find(name) {
            Some(option) => option.written.clone(),
            None => format!("{} (not set)", self.would_be_written(name)),
        }
    }

    /// Where in the file an option stands that is `written` so; the end for one that does not.
    pub(crate) fn place(&self, written: &str) -> usize {
        self.options
            .iter()
            .position(|option| option.written == written)
            .unwrap_or(usize::MAX)
    }

    /// Whether Kafka Connect's providers (`${file:…:…}`) or Quarkus (`${VARIABLE}`) put something
    /// in when it starts.
    pub(crate) fn is_filled_in(&self, option: &Written) -> bool {
        // Groups of a regular expression look the same.
        if option.name == "router.route.topic.replacement" {
            return false;
        }
        let mut references = option
            .value
            .split("${")
            .skip(1)
            .filter_map(|rest| rest.split_once('}'));
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
        let found = prefixes
            .filter_map(|(theirs, ours)| Some((*theirs, connect.strip_prefix(ours)?)))
            .next();
        let (theirs, rest) = found.unwrap_or(("debezium.source.", &connect));
        format!("{theirs}{rest}")
    }
}

/// How names of Debezium Server begin, and what stands for that in our set of names. The first that
/// fits counts.
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
    let of =
        |(theirs, ours): &(&str, &str)| Some(format!("{ours}{}", written.strip_prefix(theirs)?));
    SERVER_PREFIXES
        .iter()
        .find_map(of)
        .unwrap_or_else(|| written.to_owned())
}

/// The options of JSON or YAML in the order of the file: Kafka Connect's map alone, `{"name": …,
/// "config": {…}}`, Strimzi's `{"kind": "KafkaConnector", "spec": {"class": …, "config": {…}}}`, or
/// Debezium Server's, whose names are nested. `null` is an option that is not set.
fn of_document(path: &str, document: &Yaml) -> Result<Vec<(String, String)>> {
    let mut options = Vec::new();
    let spec = document.get("spec").filter(|spec| spec.is_mapping());
    if let Some(class) = spec.and_then(|spec| spec.get("class")) {
        flatten(path, "connector.class", class, &mut options)?;
    }
    let outside = spec.unwrap_or(document);
    let config = outside.get("config").filter(|config| config.is_mapping());
    flatten(path, "", config.unwrap_or(outside), &mut options)?;
    Ok(options)
}

fn flatten(
    path: &str,
    name: &str,
    value: &Yaml,
    options: &mut Vec<(String, String)>,
) -> Result<()> {
    let value = match value {
        Yaml::Mapping(members) => {
            return members.iter().try_for_each(|(inner, value)| {
                // A name that has members as well has its value under `~`.
                let name = format!("{name}.{}", inner.as_str().unwrap_or_default());
                flatten(path, name.trim_matches('.'), value, options)
            });
        }
        Yaml::Null => return Ok(()),
        Yaml::String(value) => value.clone(),
        Yaml::Bool(value) => value.to_string(),
        Yaml::Number(value) => value.to_string(),
        Yaml::Sequence(_) | Yaml::Tagged(_) => {
            return Err(Error::new(
                Kind::Config,
                format!("{path}: {name} is neither text nor a number"),
            )
            .remedy("an option is a text, a number, or true or false"));
        }
    };
    options.push((name.to_owned(), value));
    Ok(())
}

/// The options of Java's `.properties` in the order of the file; of two with one name the second
/// counts, as in Java:
/// <https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/Properties.html>.
fn of_properties(path: &str, text: &str) -> Result<Vec<(String, String)>> {
    let mut options: Vec<(String, String)> = Vec::new();
    for (number, line) in logical_lines(text) {
        let malformed = || {
            Error::new(
                Kind::Config,
                format!("{path}:{number}: \\u is not followed by four hexadecimal digits"),
            )
            .remedy("write a backslash as \\\\")
        };
        let (name, value) = split(&line);
        let name = unescaped(name).ok_or_else(malformed)?;
        let value = unescaped(value).ok_or_else(malformed)?;
        options.retain(|(known, _)| *known != name);
        options.push((name, value));
    }
    Ok(options)
}

const BLANKS: [char; 3] = [' ', '\t', '\u{c}'];

/// Lines without comments and blank ones, with those that a backslash continues put together, still
/// escaped.
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
        let line = if goes_on {
            line.get(..line.len() - 1).unwrap_or_default()
        } else {
            line
        };
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
                let hexadecimal =
                    digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                units.push(
                    hexadecimal
                        .then(|| u16::from_str_radix(&digits, 16).ok())
                        .flatten()?,
                );
            }
            Some(other) => push(&mut units, other),
        }
    }
    // Two halves of one character may have been written apart.
    Some(String::from_utf16_lossy(&units))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_yaml_are_read_in_the_order_of_the_file() {
        for (path, text) in [
            (
                "f",
                r#"{"connector.class": "C", "z": 1, "a.b": true, "none": null, "m": "${x:y}"}"#,
            ),
            (
                "f",
                concat!(
                    r#"{"name": "n", "config": {"connector.class": "C", "z": "1", "a.b": "true", "#,
                    r#""m": "${x:y}"}, "tasks": []}"#
                ),
            ),
            (
                "f",
                concat!(
                    r#"{"kind": "KafkaConnector", "spec": {"class": "C", "config": "#,
                    r#"{"z": 1, "a.b": true, "m": "${x:y}"}}, "status": [1]}"#
                ),
            ),
            (
                "f",
                "# Strimzi\n---\nmetadata: {x: [a]}\nspec:\n  class: C\n  \
                 tasksMax: 1\n  config:\n    z: 1\n    a.b: true\n    m: '${x:y}'\n",
            ),
            (
                "f.yml",
                "name: n\nconfig:\n  connector.class: C\n  z: 1\n  a.b: true\n  none: null\n  m: \
                 ${x:y}\n",
            ),
            (
                "f",
                "connector:\n  class: C\nz: {~: 1}\na:\n  b: true\nm: ${x:y}\n",
            ),
        ] {
            let Ok(given) = Given::read(path, text) else {
                panic!("{text}")
            };
            let options: Vec<_> = given
                .options
                .iter()
                .map(|one| (one.name.as_str(), one.value.as_str()))
                .collect();
            assert_eq!(
                options,
                [
                    ("connector.class", "C"),
                    ("z", "1"),
                    ("a.b", "true"),
                    ("m", "${x:y}")
                ],
                "{text}"
            );
        }
        let Ok(given) = Given::read(
            "f",
            "debezium:\n  format:\n    key: {~: json, schemas.enable: false}\n",
        ) else {
            panic!()
        };
        assert_eq!(
            (given.form, given.get("key.converter")),
            (Form::Server, Some("json"))
        );
        assert!(Given::read("f", "# x\nname=a\nb:1").is_ok());
    }

    #[test]
    fn what_is_no_configuration_is_refused_without_a_value() {
        for text in [
            "{\"database.password\": \"canary\"",
            r#"{"a": [{"b": "canary"}]}"#,
            r#"{"config": "canary", "a": ["canary"]}"#,
            "a:\n  b: [canary]\n",
            "a:\n  b: canary: canary\n",
            "---\na: 1\n---\na: canary\n",
        ] {
            let Err(error) = Given::read("f", text) else {
                panic!("{text}")
            };
            assert!(
                error.kind() == Kind::Config && error.cause().starts_with("f:"),
                "{error:?}"
            );
            assert!(
                !format!("{error:?}").contains("canary") && error.what_to_do().is_some(),
                "{error:?}"
            );
        }
    }

    #[test]
    fn properties_are_read_as_java_reads_them() {
        for (text, wanted) in [
            (
                "a=1\nb:2\nc 3\nd = 4\ne\t:\t5\n",
                &[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5")][..],
            ),
            (
                "a==1\nb=:2\nc: =3\nd",
                &[("a", "=1"), ("b", ":2"), ("c", "=3"), ("d", "")],
            ),
            (r"a\=b\:c\ d=e=f:g", &[("a=b:c d", "e=f:g")]),
            (
                "jaas=x required user=\"u\";",
                &[("jaas", "x required user=\"u\";")],
            ),
            (
                "trailing = blanks stay  \n",
                &[("trailing", "blanks stay  ")],
            ),
            // Comments and blank lines.
            (
                "# a=1\n  ! b=2\n\n \t\n#c\\\nd=4\r\ne=5\rf=6",
                &[("d", "4"), ("e", "5"), ("f", "6")],
            ),
            ("a=1 # no comment", &[("a", "1 # no comment")]),
            // A backslash at the end of a line.
            ("a=x,\\\n   y,\\\n\tz\nb=2", &[("a", "x,y,z"), ("b", "2")]),
            ("a=x\\\n#y\nb=2", &[("a", "x#y"), ("b", "2")]),
            (
                "a=ends with \\\\\nb=2",
                &[("a", "ends with \\"), ("b", "2")],
            ),
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
            let read: Vec<_> = read
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect();
            assert_eq!(read, wanted, "{text:?}");
        }
        let error = of_properties("f.properties", "x=1\na=canary\\u00g0").unwrap_err();
        assert!(
            error.cause().starts_with("f.properties:2: ")
                && !format!("{error:?}").contains("canary"),
            "{error:?}"
        );
    }
}
