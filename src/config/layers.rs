//! Four layers of settings: flag over environment over file over default.

use std::collections::BTreeMap;
use std::fmt;

use super::file::{ConfigFile, Entry};
use super::setting::{self, CONFIG_VARIABLE, KAFKA_PROPERTY_VARIABLE, Setting};
use crate::secret::Secret;

/// Where a value is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// This flag.
    Flag(&'static str),
    /// This environment variable.
    Variable(String),
    /// This line of this file.
    File {
        /// The file, as named.
        path: String,
        /// The line, from 1.
        line: usize,
    },
    /// Nobody set it.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(flag) => write!(f, "--{flag}"),
            Origin::Variable(name) => f.write_str(name),
            Origin::File { path, line } => write!(f, "{path}:{line}"),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// A value and where it is from. The text may be a password's, so `Debug` does not show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// The value.
    pub text: Secret,
    /// Where it is from.
    pub origin: Origin,
}

/// What flags set, by the setting's key.
pub type Flags = BTreeMap<&'static str, String>;

/// The environment, as far as it is text.
pub type Environment = BTreeMap<String, String>;

/// What holds for every setting: the uppermost layer that has it.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    values: BTreeMap<&'static str, Given>,
    properties: BTreeMap<String, Given>,
    headers: Vec<(String, Given)>,
    envelope: Vec<(String, Given)>,
    /// What each `[[outbox]]` of the file says instead.
    outboxes: Vec<Layer>,
    warnings: Vec<String>,
    environment: BTreeMap<String, Secret>,
}

/// What an `[[outbox]]` says.
#[derive(Debug, Clone, Default)]
struct Layer {
    values: BTreeMap<&'static str, Given>,
    /// None where it says nothing of headers.
    headers: Option<Vec<(String, Given)>>,
    envelope: Vec<(String, Given)>,
}

impl Layer {
    fn of(file: &ConfigFile) -> Layer {
        let given = |entry: &Entry| {
            let origin = Origin::File { path: file.path.clone(), line: entry.line };
            Given { text: Secret::new(entry.text.clone()), origin }
        };
        let named =
            |named: &[(String, Entry)]| named.iter().map(|(name, entry)| (name.clone(), given(entry))).collect();
        Layer {
            values: file.settings.iter().map(|(key, entry)| (*key, given(entry))).collect(),
            headers: file.has_headers.then(|| named(&file.headers)),
            envelope: named(&file.envelope),
        }
    }
}

impl Settings {
    /// Lays flags over environment over file over defaults. An empty variable is one that is not set.
    pub fn new(flags: &Flags, environment: &Environment, file: Option<&ConfigFile>) -> Settings {
        let hidden = environment.iter().map(|(name, text)| (name.clone(), Secret::new(text.clone())));
        let mut settings = Settings { environment: hidden.collect(), ..Settings::default() };
        for setting in setting::ALL {
            let from_flag = || Some((flags.get(setting.key)?.clone(), Origin::Flag(setting.flag?)));
            let from_environment = || {
                let name = setting.variable();
                let text = environment.get(&name).filter(|text| !text.is_empty())?.clone();
                Some((text, Origin::Variable(name)))
            };
            let from_file = || {
                let (file, entry) = file.and_then(|file| Some((file, file.settings.get(setting.key)?)))?;
                Some((entry.text.clone(), Origin::File { path: file.path.clone(), line: entry.line }))
            };
            let from_default = || Some((setting.default?.to_owned(), Origin::Default));
            let given = from_flag().or_else(from_environment).or_else(from_file).or_else(from_default);
            if let Some((text, origin)) = given {
                settings.values.insert(setting.key, Given { text: Secret::new(text), origin });
            }
        }
        settings.lay_properties(file);
        if let Some(file) = file {
            let Layer { headers, envelope, .. } = Layer::of(file);
            (settings.headers, settings.envelope) = (headers.unwrap_or_default(), envelope);
            settings.outboxes = file.outboxes.iter().map(Layer::of).collect();
        }
        settings.warn_of_unknown_variables();
        settings.warn_of_readable_secrets(flags, file);
        settings
    }

    /// The value of `setting`, if any layer has one.
    pub fn get(&self, setting: &Setting) -> Option<&Given> {
        self.values.get(setting.key)
    }

    /// librdkafka properties by name.
    pub fn properties(&self) -> &BTreeMap<String, Given> {
        &self.properties
    }

    /// Templates of headers by the header's name, in the order of the file.
    pub fn headers(&self) -> &[(String, Given)] {
        &self.headers
    }

    /// Templates of an envelope's members by the member's name, in the order of the file.
    pub fn envelope(&self) -> &[(String, Given)] {
        &self.envelope
    }

    /// Whether the file has `[[outbox]]`, and so what is said of *the* outbox is meant for none.
    pub fn has_several_outboxes(&self) -> bool {
        !self.outboxes.is_empty()
    }

    /// These settings as they are for each outbox: what its `[[outbox]]` says comes before everything else. Without any
    /// there is one, of these settings.
    pub fn of_each_outbox(&self) -> Vec<Settings> {
        if self.outboxes.is_empty() {
            return vec![self.clone()];
        }
        self.outboxes.iter().map(|layer| self.under(layer)).collect()
    }

    fn under(&self, layer: &Layer) -> Settings {
        let mut settings = Settings { outboxes: Vec::new(), ..self.clone() };
        settings.values.extend(layer.values.clone());
        if let Some(headers) = &layer.headers {
            settings.headers.clone_from(headers);
        }
        // A value is a template or an envelope, and the nearer one holds.
        if !layer.envelope.is_empty() {
            settings.envelope.clone_from(&layer.envelope);
            if !layer.values.contains_key(setting::VALUE.key) {
                settings.values.remove(setting::VALUE.key);
            }
        } else if layer.values.contains_key(setting::VALUE.key) {
            settings.envelope.clear();
        }
        settings
    }

    /// What is allowed and yet should be known: for the log, without secrets.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The environment variable `name`, if it is set and not empty.
    pub fn variable(&self, name: &str) -> Option<String> {
        self.environment.get(name).map(|text| text.expose().to_owned()).filter(|text| !text.is_empty())
    }

    fn lay_properties(&mut self, file: Option<&ConfigFile>) {
        for (file, name, entry) in file.into_iter().flat_map(|f| f.properties.iter().map(move |(n, e)| (f, n, e))) {
            let origin = Origin::File { path: file.path.clone(), line: entry.line };
            self.properties.insert(name.clone(), Given { text: Secret::new(entry.text.clone()), origin });
        }
        for (variable, text) in self.environment.iter().filter(|(_, text)| !text.expose().is_empty()) {
            let Some(name) = variable.strip_prefix(KAFKA_PROPERTY_VARIABLE) else { continue };
            let given = Given { text: text.clone(), origin: Origin::Variable(variable.clone()) };
            self.properties.insert(name.to_ascii_lowercase().replace('_', "."), given);
        }
    }

    /// Refusing them would break under Kubernetes, which sets `WALRELAY_…` for a service called `walrelay`.
    fn warn_of_unknown_variables(&mut self) {
        let ours = |name: &str| {
            name == CONFIG_VARIABLE
                || name.starts_with(KAFKA_PROPERTY_VARIABLE)
                || setting::ALL.iter().any(|setting| setting.variable() == name)
        };
        let from_kubernetes = |name: &str| name.starts_with("WALRELAY_SERVICE_") || name.starts_with("WALRELAY_PORT");
        let unknown = self.environment.keys().filter(|name| name.starts_with("WALRELAY_"));
        let unknown = unknown.filter(|name| !ours(name) && !from_kubernetes(name));
        let warnings: Vec<_> = unknown.map(|name| format!("{name} is set and means nothing to walrelay")).collect();
        self.warnings.extend(warnings);
    }

    fn warn_of_readable_secrets(&mut self, flags: &Flags, file: Option<&ConfigFile>) {
        let url = setting::DATABASE_URL.key;
        if flags.get(url).is_some_and(|url| holds_password(url)) {
            self.warnings.push(
                "--database-url holds a password, and everybody on this machine can read a command line: \
                 use a password file (PGPASSFILE) or WALRELAY_DATABASE_URL"
                    .to_owned(),
            );
        }
        let Some(file) = file.filter(|file| file.readable_by_others) else { return };
        let in_url = file.settings.get(url).is_some_and(|entry| holds_password(&entry.text));
        let secret_property = file.properties.keys().find(|name| is_secret_property(name));
        let holder = if in_url { Some(url) } else { secret_property.map(String::as_str) };
        if let Some(holder) = holder {
            self.warnings.push(format!(
                "{} can be read by others and holds a secret ({holder}): chmod 600 {}",
                file.path, file.path
            ));
        }
    }
}

/// Whether a connection string, of either form, holds a password.
pub fn holds_password(url: &str) -> bool {
    let user_and_password = url.split_once("://").and_then(|(_, rest)| rest.split(['/', '?']).next()?.rsplit_once('@'));
    let in_authority =
        user_and_password.and_then(|(user, _)| user.split_once(':')).is_some_and(|(_, word)| !word.is_empty());
    in_authority || url.contains("password=") || url.contains("password =")
}

/// Whether a librdkafka property of this name is a secret.
pub fn is_secret_property(name: &str) -> bool {
    const SECRET: &[&str] = &["password", "secret", "key.pem", "ssl_key", "oauthbearer.config", "token"];
    SECRET.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file;
    use crate::config::setting::{BROKERS, DATABASE_URL, SLOT};

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
        let file = file::parse("w.toml", "[shutdown]\ntimeout = \"3s\"").unwrap();
        let flags = Flags::from([("shutdown.timeout", "1s".to_owned())]);
        let variable = environment(&[("WALRELAY_SHUTDOWN_TIMEOUT", "2s")]);
        let empty = environment(&[("WALRELAY_SHUTDOWN_TIMEOUT", "")]);
        let none = Environment::new();
        let table = [
            (&flags, &variable, Some(&file), "1s", "--shutdown-timeout"),
            (&Flags::new(), &variable, Some(&file), "2s", "WALRELAY_SHUTDOWN_TIMEOUT"),
            (&Flags::new(), &empty, Some(&file), "3s", "w.toml:2"),
            (&Flags::new(), &none, None, "30s", "default"),
        ];
        for (flags, environment, file, text, origin) in table {
            let settings = Settings::new(flags, environment, file);
            let given = settings.get(&setting::SHUTDOWN_TIMEOUT).unwrap();
            assert_eq!((given.text.expose(), given.origin.to_string().as_str()), (text, origin));
        }
    }

    #[test]
    fn what_no_layer_has_is_absent() {
        let settings = Settings::new(&Flags::new(), &Environment::new(), None);
        assert!(settings.get(&SLOT).is_none() && settings.get(&BROKERS).is_none());
    }

    #[test]
    fn a_property_may_come_from_the_environment_and_beats_the_file() {
        let file = file::parse("w.toml", "[kafka.properties]\nsasl.password = \"a\"\nlinger.ms = 5").unwrap();
        let settings =
            Settings::new(&Flags::new(), &environment(&[("WALRELAY_KAFKA_PROPERTY_SASL_PASSWORD", "b")]), Some(&file));
        assert_eq!(settings.properties()["sasl.password"].text.expose(), "b");
        assert_eq!(settings.properties()["linger.ms"].origin.to_string(), "w.toml:3");
    }

    #[test]
    fn an_unknown_variable_is_warned_of_and_one_of_kubernetes_is_not() {
        let set = environment(&[("WALRELAY_SLOTT", "x"), ("WALRELAY_PORT_80_TCP", "x"), ("WALRELAY_CONFIG", "x")]);
        let settings = Settings::new(&Flags::new(), &set, None);
        assert_eq!(settings.warnings(), ["WALRELAY_SLOTT is set and means nothing to walrelay"]);
    }

    #[test]
    fn a_password_others_can_read_is_warned_of_without_showing_it() {
        let mut file = file::parse("w.toml", "[kafka.properties]\nsasl.password = \"canary\"").unwrap();
        file.readable_by_others = true;
        let flags = Flags::from([(DATABASE_URL.key, "postgres://u:canary@h/d".to_owned())]);
        let settings = Settings::new(&flags, &Environment::new(), Some(&file));
        assert_eq!(settings.warnings().len(), 2, "{:?}", settings.warnings());
        assert!(!format!("{settings:?}").contains("canary"));
        file.readable_by_others = false;
        assert!(Settings::new(&Flags::new(), &Environment::new(), Some(&file)).warnings().is_empty());
    }

    #[test]
    fn a_password_is_seen_in_either_form_of_connection_string() {
        for url in ["postgres://u:p@h/d", "postgresql://u:p@h", "host=h password=p", "postgres://h/d?password=p"] {
            assert!(holds_password(url), "{url}");
        }
        for url in ["postgres://u@h:5432/d", "host=h user=u", "postgres://h/d?options=a:b@c", "postgres://u:@h"] {
            assert!(!holds_password(url), "{url}");
        }
    }
}
