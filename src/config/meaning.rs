//! From settings to what they mean: every value is checked here, once, and an error names where it was typed.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use super::delivery::fit_for_events;
use super::layers::{Given, Settings};
use super::setting::{self, Form, Setting};
use super::unit::{exact_bytes, exact_duration, parse_bytes, parse_duration};
use super::{
    Backlog, Config, KafkaConfig, Mode, OnLoss, OutboxConfig, PollConfig, ProcessConfig, SlotName, SourceConfig,
    StateConfig, StoreKind,
};
use crate::conninfo::ConnInfo;
use crate::error::{Error, Kind, Result};
use crate::secret::Secret;

/// `NAMEDATALEN` - 1: Postgres cuts longer names without a word.
pub(super) const IDENTIFIER_BYTES_MAX: usize = 63;
/// Longest topic name Kafka takes.
pub(super) const TOPIC_BYTES_MAX: usize = 249;
/// What a broker's address may begin with.
const BROKER_PROTOCOLS: [&str; 4] = ["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"];
/// Properties that are `kafka.brokers` by another name.
const BROKERS_PROPERTIES: &[&str] = &["bootstrap.servers", "metadata.broker.list"];

impl Settings {
    /// Everything `walrelay run` needs. `adopt_slot` is an argument because it is a decision of one start.
    ///
    /// # Errors
    /// [`Kind::Config`]: what was typed where, and what is allowed.
    pub fn config(&self, adopt_slot: bool) -> Result<Config> {
        let state = self.state(adopt_slot)?;
        let delivery = self.delivery()?;
        let mut outboxes = self.outboxes()?;
        for outbox in &mut outboxes {
            // Whatever this relay does with them: another one may.
            outbox.route.reserved_topics = vec![state.topic.clone(), delivery.dead_letter_topic.clone()];
        }
        let messages = outboxes.iter().any(|outbox| outbox.source.table().is_none());
        let source = SourceConfig { messages, ..self.source()? };
        self.fit_for_the_table(&source, &outboxes, state.store)?;
        let id_headers = outboxes.iter().filter_map(|outbox| outbox.route.id_header.clone()).collect();
        let kafka = KafkaConfig { id_headers, ..self.kafka()? };
        let config = Config { source, outboxes, kafka, delivery, state, process: self.process()? };
        self.fit_to_give_up(&config)?;
        fit_for_events(&config)?;
        self.fit_for_transactions(&config)?;
        Ok(config)
    }

    /// What reads the table has to have one, and a place to keep what is published.
    fn fit_for_the_table(&self, source: &SourceConfig, outboxes: &[OutboxConfig], store: StoreKind) -> Result<()> {
        let told = |setting: &Setting| self.get(setting).map(|given| given.origin.to_string()).unwrap_or_default();
        let refuse = |setting: &Setting, what: &str, remedy: &str| {
            let cause = format!("{}: {} {what}", told(setting), setting.key);
            Err(Error::new(Kind::Config, cause).remedy(remedy))
        };
        let reads = match (source.mode, source.give_up_over_budget) {
            (Mode::Poll | Mode::Auto, _) => Some(&setting::MODE),
            (Mode::Slot, true) => Some(&setting::OVER_BUDGET),
            (Mode::Slot, false) => None,
        };
        if let Some(reads) = reads {
            if outboxes.iter().any(|outbox| outbox.source.table().is_none()) {
                return refuse(reads, "reads tables, and messages are in none", "relay messages with mode = \"slot\"");
            }
            if store == StoreKind::Slot {
                return refuse(
                    reads,
                    "needs a place to keep what is published",
                    "set state.store to kafka or postgres",
                );
            }
        }
        if source.give_up_over_budget && source.max_retained_bytes.is_none() {
            return refuse(&setting::OVER_BUDGET, "is set, and no budget", "set max_retained_bytes, such as 10GiB");
        }
        if source.give_up_over_budget && source.on_loss == OnLoss::Stop {
            return refuse(&setting::OVER_BUDGET, "is give-up, and on_loss is stop", "let on_loss be recover");
        }
        let decides = outboxes.iter().any(|outbox| outbox.upkeep.says_for_itself());
        if decides && matches!(source.backlog, Some(Backlog::None | Backlog::Since(_))) {
            let remedy = "leave it out: what is pending, or in a table rows are deleted from, is published";
            return refuse(
                &setting::BACKLOG,
                "leaves rows out that outbox.pending or outbox.delete would publish",
                remedy,
            );
        }
        if source.backlog == Some(Backlog::Pending) && outboxes.iter().any(|outbox| outbox.upkeep.pending.is_none()) {
            let remedy = "set outbox.pending, such as status = 'PENDING'";
            return refuse(&setting::BACKLOG, "is pending, and nothing says which rows are", remedy);
        }
        Ok(())
    }

    /// How to reach the database.
    ///
    /// # Errors
    /// As [`Settings::config`].
    pub fn database(&self) -> Result<ConnInfo> {
        let given = self.get(&setting::DATABASE_URL);
        ConnInfo::parse(given.map(|given| given.text.expose()), &|name| self.variable(name)).map_err(|error| {
            let cause = given.map(|given| format!("{}: {}", given.origin, error.cause()));
            let again = Error::new(Kind::Config, cause.unwrap_or_else(|| error.cause().to_owned()));
            again.remedy(error.own_remedy().unwrap_or("write it as postgres://USER@HOST:PORT/DATABASE"))
        })
    }

    /// The slot's name.
    ///
    /// # Errors
    /// As [`Settings::config`].
    pub fn slot(&self) -> Result<SlotName> {
        self.parsed(&setting::SLOT, "lower-case letters, digits and underscores, 63 at most")
    }

    /// The server, the slot and the publication.
    ///
    /// # Errors
    /// As [`Settings::config`].
    pub fn source(&self) -> Result<SourceConfig> {
        let slot = self.slot()?;
        let publication = match self.get(&setting::PUBLICATION) {
            Some(given) => given.text.expose().to_owned(),
            None => format!("walrelay_{slot}"),
        };
        if !(1..=IDENTIFIER_BYTES_MAX).contains(&publication.len()) || publication.contains('\0') {
            let origin = self.get(&setting::PUBLICATION).or_else(|| self.get(&setting::SLOT));
            let origin = origin.map(|given| format!("{}: ", given.origin)).unwrap_or_default();
            return Err(Error::new(
                Kind::Config,
                format!("{origin}{publication:?} cannot be a publication's name: Postgres allows 1 to 63 bytes"),
            )
            .remedy(format!("set a shorter one: {}", setting::PUBLICATION.how_to_set())));
        }
        Ok(SourceConfig {
            database: self.database()?,
            slot,
            publication,
            wal_sender_timeout: self.duration(&setting::WAL_SENDER_TIMEOUT)?,
            messages: false,
            max_message_bytes: self.size(&setting::MAX_MESSAGE_BYTES)?,
            mode: match self.word(&setting::MODE, "slot, poll or auto")? {
                "slot" => Mode::Slot,
                "poll" => Mode::Poll,
                "auto" => Mode::Auto,
                _ => return Err(self.not_allowed(&setting::MODE, "slot, poll or auto")),
            },
            on_loss: match self.word(&setting::ON_SLOT_LOSS, "recover or stop")? {
                "recover" => OnLoss::Recover,
                "stop" => OnLoss::Stop,
                _ => return Err(self.not_allowed(&setting::ON_SLOT_LOSS, "recover or stop")),
            },
            backlog: self.backlog()?,
            max_retained_bytes: match self.get(&setting::MAX_RETAINED_BYTES) {
                Some(_) => Some(self.size(&setting::MAX_RETAINED_BYTES)? as u64),
                None => None,
            },
            give_up_over_budget: match self.word(&setting::OVER_BUDGET, "unready or give-up")? {
                "unready" => false,
                "give-up" => true,
                _ => return Err(self.not_allowed(&setting::OVER_BUDGET, "unready or give-up")),
            },
            poll: PollConfig {
                interval: self.duration(&setting::POLL_INTERVAL)?,
                idle_interval: self.duration(&setting::POLL_IDLE_INTERVAL)?,
                pending_interval: self.duration(&setting::PENDING_INTERVAL)?,
            },
        })
    }

    fn backlog(&self) -> Result<Option<Backlog>> {
        const ALLOWED: &str = "all, none, pending, or since= and a time such as since=2026-11-01T00:00:00Z";
        let Some(given) = self.get(&setting::BACKLOG) else { return Ok(None) };
        let since =
            |text: &str| Some(text.strip_prefix("since=")?.trim()).filter(|time| is_time(time)).map(str::to_owned);
        match given.text.expose() {
            "all" => Ok(Some(Backlog::All)),
            "none" => Ok(Some(Backlog::None)),
            "pending" => Ok(Some(Backlog::Pending)),
            text => match since(text) {
                Some(time) => Ok(Some(Backlog::Since(time))),
                None => Err(self.not_allowed(&setting::BACKLOG, ALLOWED)),
            },
        }
    }

    pub(super) fn word(&self, setting: &Setting, allowed: &str) -> Result<&str> {
        Ok(self.get(setting).ok_or_else(|| self.not_allowed(setting, allowed))?.text.expose())
    }

    fn kafka(&self) -> Result<KafkaConfig> {
        for name in BROKERS_PROPERTIES {
            if let Some(given) = self.properties().get(*name) {
                let both = if self.get(&setting::BROKERS).is_some() { ", and kafka.brokers is set too" } else { "" };
                let cause = format!("{}: {name} is what walrelay calls kafka.brokers{both}", given.origin);
                return Err(Error::new(Kind::Config, cause)
                    .remedy(format!("remove it and set {}", setting::BROKERS.how_to_set())));
            }
        }
        let host_and_port = |broker: &str| {
            // librdkafka takes a protocol in front, and means by it what security.protocol says.
            let (protocol, address) = broker.trim().split_once("://").unwrap_or(("plaintext", broker.trim()));
            let is_known = BROKER_PROTOCOLS.iter().any(|known| known.eq_ignore_ascii_case(protocol));
            is_known && !address.is_empty() && !address.contains(char::is_whitespace)
        };
        let brokers = self.checked(&setting::BROKERS, "HOST:PORT, or several with commas between", |text| {
            text.split(',').all(host_and_port)
        })?;
        let properties = self.properties().iter().map(|(name, given)| (name.clone(), given.text.clone()));
        Ok(KafkaConfig {
            brokers,
            id_headers: Vec::new(),
            properties: properties.collect::<BTreeMap<String, Secret>>(),
            max_in_flight_bytes: self.size(&setting::MAX_IN_FLIGHT_BYTES)?,
            max_in_flight_events: self.size(&setting::MAX_IN_FLIGHT_EVENTS)?,
        })
    }

    fn state(&self, adopt_slot: bool) -> Result<StateConfig> {
        let store = match self.checked(&setting::STATE_STORE, "kafka, postgres or slot", |_| true)?.as_str() {
            "kafka" => StoreKind::Kafka,
            "postgres" => StoreKind::Postgres,
            "slot" => StoreKind::Slot,
            _ => return Err(self.not_allowed(&setting::STATE_STORE, "kafka, postgres or slot")),
        };
        let key_fits = |key: &str| (1..=255).contains(&key.len()) && !key.contains(char::is_control);
        let key = match self.get(&setting::STATE_KEY) {
            None => self.slot()?.to_string(),
            Some(_) => self.checked(&setting::STATE_KEY, "1 to 255 bytes without control characters", key_fits)?,
        };
        Ok(StateConfig {
            store,
            topic: self.checked(&setting::STATE_TOPIC, "a topic's name", is_topic)?,
            key,
            adopt_slot,
        })
    }

    fn process(&self) -> Result<ProcessConfig> {
        Ok(ProcessConfig {
            http: self.http()?,
            shutdown_timeout: self.duration(&setting::SHUTDOWN_TIMEOUT)?,
            ready_within: self.duration(&setting::READY_WITHIN)?,
            log_json: self.log_json()?,
            log_filter: self.checked(&setting::LOG_FILTER, "a filter such as info or walrelay=debug", |text| {
                !text.trim().is_empty()
            })?,
        })
    }

    fn log_json(&self) -> Result<bool> {
        match self.checked(&setting::LOG_FORMAT, "text or json", |_| true)?.as_str() {
            "json" => Ok(true),
            "text" => Ok(false),
            _ => Err(self.not_allowed(&setting::LOG_FORMAT, "text or json")),
        }
    }

    /// A port alone listens on loopback only; whoever wants more writes the address out.
    fn http(&self) -> Result<Option<SocketAddr>> {
        const ALLOWED: &str = "a PORT (on 127.0.0.1 only), or ADDRESS:PORT such as 0.0.0.0:9464 or [::1]:9464";
        let Some(given) = self.get(&setting::HTTP) else { return Ok(None) };
        let text = given.text.expose();
        let port = text.strip_prefix("localhost:").or_else(|| text.strip_prefix(':')).unwrap_or(text);
        let loopback = || Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port.parse().ok()?));
        match text.parse().ok().or_else(loopback) {
            Some(address) => Ok(Some(address)),
            None => Err(self.not_allowed(&setting::HTTP, ALLOWED)),
        }
    }

    pub(super) fn duration(&self, setting: &Setting) -> Result<Duration> {
        let Form::Duration(least, most) = setting.form else { return Err(bug(setting)) };
        let allowed = format!("a duration from {} to {}, such as 10s", exact_duration(least), exact_duration(most));
        let value = parse_duration(self.required(setting)?.text.expose());
        value.filter(|value| (least..=most).contains(value)).ok_or_else(|| self.not_allowed(setting, allowed))
    }

    /// A number that is small.
    pub(super) fn small(&self, setting: &Setting) -> Result<u32> {
        u32::try_from(self.size(setting)?).map_err(|_| bug(setting))
    }

    pub(super) fn size(&self, setting: &Setting) -> Result<usize> {
        let text = self.required(setting)?.text.expose();
        let (value, (least, most), allowed) = match setting.form {
            Form::Bytes(least, most) => (
                parse_bytes(text),
                (least, most),
                format!("a size from {} to {}, such as 32MiB", exact_bytes(least), exact_bytes(most)),
            ),
            Form::Count(least, most) => (text.parse().ok(), (least, most), format!("a number from {least} to {most}")),
            Form::Text | Form::Duration(..) | Form::OneOf(_) => return Err(bug(setting)),
        };
        let value = value.filter(|value| (least..=most).contains(value)).and_then(|value| value.try_into().ok());
        value.ok_or_else(|| self.not_allowed(setting, allowed))
    }

    pub(super) fn parsed<T>(&self, setting: &Setting, allowed: &str) -> Result<T>
    where
        T: FromStr<Err: Display>,
    {
        let given = self.required(setting)?;
        given.text.expose().parse().map_err(|error| {
            Error::new(Kind::Config, format!("{}: {}: {error}", given.origin, setting.key))
                .remedy(format!("write {allowed}"))
        })
    }

    pub(super) fn checked(&self, setting: &Setting, allowed: &str, fits: impl Fn(&str) -> bool) -> Result<String> {
        let text = self.required(setting)?.text.expose();
        if fits(text) { Ok(text.to_owned()) } else { Err(self.not_allowed(setting, allowed)) }
    }

    pub(super) fn required(&self, setting: &Setting) -> Result<&Given> {
        self.get(setting).ok_or_else(|| {
            Error::new(Kind::Config, format!("{} is not set", setting.key))
                .remedy(format!("set {}", setting.how_to_set()))
        })
    }

    pub(super) fn not_allowed(&self, setting: &Setting, allowed: impl Display) -> Error {
        let (origin, text) = match self.get(setting) {
            Some(given) => (given.origin.to_string(), given.text.expose()),
            None => (String::new(), ""),
        };
        Error::new(Kind::Config, format!("{origin}: {} cannot be {text:?}", setting.key))
            .remedy(format!("write {allowed}"))
    }
}

fn bug(setting: &Setting) -> Error {
    Error::new(Kind::Bug, format!("{} is read as something else than it is", setting.key))
}

/// Whether SQL may read it as a time: an instant, or a date and time without a zone, or a date.
pub fn is_time(text: &str) -> bool {
    text.parse::<jiff::Timestamp>().is_ok()
        || text.parse::<jiff::civil::DateTime>().is_ok()
        || text.parse::<jiff::civil::Date>().is_ok()
}

/// Whether Kafka takes it as a topic's name.
pub fn is_topic(name: &str) -> bool {
    (1..=TOPIC_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_topic_byte) && !matches!(name, "." | "..")
}

pub(super) fn is_topic_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file;
    use crate::config::layers::{Environment, Flags};

    fn settings(file_text: &str) -> Settings {
        let file = file::parse("w.toml", file_text).unwrap();
        Settings::new(&Flags::new(), &Environment::new(), Some(&file))
    }

    const LEAST: &str = "database.url = 'postgres://u@h/d'\nslot.name = 'orders'\nkafka.brokers = 'b:9092'\n";

    #[test]
    fn the_least_configuration_gets_the_defaults() {
        let config = settings(LEAST).config(false).unwrap();
        assert_eq!(config.source.publication, "walrelay_orders");
        assert_eq!(config.source.wal_sender_timeout, Duration::from_secs(10));
        assert_eq!(config.source.max_message_bytes, 64 << 20);
        let [outbox] = config.outboxes.as_slice() else { panic!("{:?}", config.outboxes) };
        assert_eq!(outbox.source.to_string(), "public.outbox");
        assert_eq!(outbox.aggregate_id, "aggregateid");
        assert_eq!(outbox.route.topic.source(), "outbox.event.{aggregatetype}");
        assert_eq!(outbox.columns, ["id", "aggregatetype", "aggregateid", "payload"]);
        assert_eq!((config.kafka.max_in_flight_bytes, config.kafka.max_in_flight_events), (32 << 20, 100_000));
        assert_eq!((config.state.store, config.state.topic.as_str()), (StoreKind::Kafka, "walrelay-state"));
        assert_eq!(config.state.key, "orders");
        assert_eq!(config.process.http, None);
        assert_eq!(config.process.shutdown_timeout, Duration::from_secs(30));
    }

    #[test]
    fn a_value_that_makes_no_sense_is_refused_where_it_was_typed() {
        let table = [
            ("slot.wal_sender_timeout = '0s'", "w.toml:4: slot.wal_sender_timeout cannot be \"0s\""),
            ("slot.wal_sender_timeout = '10'", "w.toml:4: slot.wal_sender_timeout cannot be \"10\""),
            ("slot.max_message_bytes = '2GiB'", "w.toml:4: slot.max_message_bytes cannot be \"2GiB\""),
            ("kafka.max_in_flight_events = 0", "w.toml:4: kafka.max_in_flight_events cannot be \"0\""),
            ("kafka.max_in_flight_bytes = -1", "w.toml:4: kafka.max_in_flight_bytes cannot be \"-1\""),
            ("state.store = 'redis'", "w.toml:4: state.store cannot be \"redis\""),
            ("state.topic = 'a b'", "w.toml:4: state.topic cannot be \"a b\""),
            ("log.format = 'xml'", "w.toml:4: log.format cannot be \"xml\""),
            ("http.listen = 'somewhere:80'", "w.toml:4: http.listen cannot be \"somewhere:80\""),
            ("route.topic_prefix = 'a/b'", "w.toml:4: route.topic_prefix cannot be \"a/b\""),
            ("slot.publication = ''", "w.toml:4: \"\" cannot be a publication's name: Postgres allows 1 to 63 bytes"),
            (
                "outbox.table = 'a.b.c'",
                "w.toml:4: outbox.table: \"a.b.c\" is not a table name: it must be TABLE or SCHEMA.TABLE",
            ),
            ("outbox.columns.id = ''", "w.toml:4: outbox.columns.id cannot be \"\""),
        ];
        for (line, cause) in table {
            let error = settings(&format!("{LEAST}{line}")).config(false).unwrap_err();
            assert_eq!((error.cause(), error.kind()), (cause, Kind::Config), "{line}");
            assert!(error.what_to_do().is_some_and(|todo| !todo.is_empty()), "{line}: nothing to do");
        }
    }

    #[test]
    fn what_is_required_says_how_to_set_it() {
        let error = settings("database.url = 'postgres://u@h/d'").config(false).unwrap_err();
        assert_eq!(error.cause(), "slot.name is not set");
        assert_eq!(error.what_to_do(), Some("set --slot, WALRELAY_SLOT or `name` in [slot] of the configuration file"));
    }

    #[test]
    fn the_example_can_be_used_and_its_commented_keys_are_the_defaults() {
        let example = include_str!("../../walrelay.example.toml");
        let plain = settings(example);
        let config = plain.config(false).unwrap();
        assert_eq!((config.source.slot.as_str(), config.kafka.brokers.as_str()), ("orders", "localhost:9092"));
        for setting in setting::ALL {
            let key = setting.key.rsplit('.').next().unwrap();
            let lines = || example.lines().map(|line| line.trim_start_matches("# "));
            assert!(lines().any(|line| line.starts_with(&format!("{key} = "))), "the example lacks {}", setting.key);
            if let Some(default) = setting.default {
                let values = [format!("{key} = \"{default}\""), format!("{key} = {default}")];
                assert!(
                    lines().any(|line| values.iter().any(|value| value == line)),
                    "another default for {}",
                    setting.key
                );
            }
        }
    }

    #[test]
    fn a_long_slot_name_needs_a_publication_of_its_own() {
        let slot = "s".repeat(60);
        let least = LEAST.replace("orders", &slot);
        assert!(settings(&least).source().is_err());
        assert!(settings(&format!("{least}slot.publication = 'p'")).source().is_ok());
    }

    #[test]
    fn brokers_are_not_set_twice_over() {
        let error =
            settings(&format!("{LEAST}[kafka.properties]\nbootstrap.servers = 'x:1'")).config(false).unwrap_err();
        assert_eq!(
            error.cause(),
            "w.toml:5: bootstrap.servers is what walrelay calls kafka.brokers, and kafka.brokers is set too"
        );
    }

    #[test]
    fn a_broker_is_no_page_of_the_web() {
        for (brokers, fits) in [
            ("b:9092, c:9092", true),
            ("SASL_SSL://b:9092,c", true),
            ("http://b:9092", false),
            ("b:9092,ssl://", false),
            ("b:9092,,c:9092", false),
        ] {
            let config = settings(&LEAST.replace("b:9092", brokers)).config(false);
            assert_eq!(config.is_ok(), fits, "{brokers}");
        }
    }

    #[test]
    fn a_port_alone_listens_on_loopback() {
        for (text, address) in [
            ("9464", "127.0.0.1:9464"),
            (":9464", "127.0.0.1:9464"),
            ("localhost:9464", "127.0.0.1:9464"),
            ("0.0.0.0:9464", "0.0.0.0:9464"),
            ("[::1]:9464", "[::1]:9464"),
        ] {
            let config = settings(&format!("{LEAST}http.listen = '{text}'")).config(false).unwrap();
            assert_eq!(config.process.http.unwrap().to_string(), address, "{text}");
        }
    }

    #[test]
    fn a_header_has_a_name() {
        for name in ["''", r#""a\u0000b""#] {
            let error = settings(&format!("{LEAST}[route.headers]\n{name} = 'x'")).config(false).unwrap_err();
            assert!(
                error.cause().starts_with("w.toml:5: ") && error.cause().ends_with("is no header's name"),
                "{error}"
            );
        }
    }

    #[test]
    fn no_secret_is_in_the_debug_form() {
        let text = LEAST.replace("u@h", "u:canary1@h") + "[kafka.properties]\nsasl.password = 'canary2'";
        let config = settings(&text).config(true).unwrap();
        assert!(!format!("{config:?}").contains("canary"), "a password is in {config:?}");
        assert_eq!(config.kafka.properties["sasl.password"].expose(), "canary2");
    }
}
