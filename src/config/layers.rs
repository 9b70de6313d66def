//! Settings: flag over environment over file over default; their checks, and the resulting
//! [`Config`].

use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::Duration;

use super::file::{ConfigFile, Given, Layer, Layers, Origin, Override, toml_of};
use super::model::{
    KEYS, KafkaConfig, Key, Mode, Model, NatsConfig, PollConfig, RabbitmqConfig, Shutdown,
    SinkConfig, Slot, SmtpConfig, StateConfig, StoreKind, StreamConfig, WebhookConfig, how_to_set,
};
use super::nats::nats;
use super::otel::{self, OtelConfig, otel};
use super::rabbitmq::rabbitmq;
use super::sink_kind::SinkKind;
use super::smtp::smtp;
use crate::conninfo::ConnInfo;
use walrelay_core::config::draft::KAFKA_PROPERTIES;
use walrelay_core::config::name::{SlotName, TableName, is_identifier, is_number};
use walrelay_core::config::outbox::{OutboxConfig, TopicNames, Upkeep, ValueConfig};
use walrelay_core::config::unit::exact_duration;
use walrelay_core::config::{Backlog, DeliveryConfig, OnError, OnLoss, ReadTails};
use walrelay_core::error::{Error, Errors, Kind, Result, both};
use walrelay_core::secret::Secret;

/// Keys whose values are secrets as a whole.
pub(super) const SECRETS: [&str; 5] = [
    "otel.headers",
    "nats.password",
    "nats.token",
    "rabbitmq.password",
    "smtp.password",
];

/// That of all our variables.
const VARIABLE_PREFIX: &str = "WALRELAY_";
/// Variables with this prefix set librdkafka properties: `WALRELAY_KAFKA_PROPERTY_SASL_PASSWORD` is
/// `sasl.password`.
const KAFKA_PROPERTY_VARIABLE: &str = "WALRELAY_KAFKA_PROPERTY_";
pub(crate) const CONFIG_VARIABLE: &str = "WALRELAY_CONFIG";
const BROKERS_PROPERTIES: [&str; 2] = ["bootstrap.servers", "metadata.broker.list"];
#[derive(Debug, Clone)]
pub struct Config {
    pub source: SourceConfig,
    /// The sources of events, and their routes. At least one; no two have the same source.
    pub outboxes: Vec<OutboxConfig>,
    /// Where records go, and how many may be on their way.
    pub sink: SinkConfig,
    pub kafka: KafkaConfig,
    #[cfg_attr(not(feature = "nats"), expect(dead_code, reason = "of that sink"))]
    pub(crate) nats: NatsConfig,
    #[cfg_attr(not(feature = "rabbitmq"), expect(dead_code, reason = "of that sink"))]
    pub(crate) rabbitmq: RabbitmqConfig,
    #[cfg_attr(not(feature = "smtp"), expect(dead_code, reason = "of that sink"))]
    pub(crate) smtp: SmtpConfig,
    pub webhook: WebhookConfig,
    pub delivery: DeliveryConfig,
    pub state: StateConfig,
    pub(crate) shutdown: Shutdown,
    /// `None`: no metrics and no spans are sent.
    pub otel: Option<OtelConfig>,
}

impl Config {
    /// The address of the bus; none of a sink of this process.
    pub(crate) fn bus_address(&self) -> Option<&str> {
        match self.sink.kind {
            SinkKind::Kafka => Some(&self.kafka.brokers),
            #[cfg(feature = "nats")]
            SinkKind::Nats => Some(self.nats.servers.as_str()),
            #[cfg(feature = "rabbitmq")]
            SinkKind::Rabbitmq => Some(self.rabbitmq.servers.as_str()),
            #[cfg(feature = "smtp")]
            SinkKind::Smtp => Some(self.smtp.host.as_str()),
            #[cfg(feature = "webhook")]
            SinkKind::Webhook => self.webhook.origin(),
            SinkKind::Stdout | SinkKind::Null => None,
        }
    }
}

/// The slot with its server. The keys of `[slot]` are fields of this, too.
#[derive(Debug, Clone)]
pub struct SourceConfig {
    pub database: ConnInfo,
    /// The connection for writes to rows; `None`: `database`.
    pub(crate) upkeep: Option<ConnInfo>,
    pub slot: SlotName,
    /// The slot's publication. Default: `walrelay_SLOT`, which `walrelay setup` creates.
    pub publication: String,
    /// Whether the stream has messages of `pg_logical_emit_message`. Otherwise the server sends
    /// none.
    pub messages: bool,
    pub poll: PollConfig,
    pub(crate) stream: StreamConfig,
}

impl Deref for SourceConfig {
    type Target = StreamConfig;

    fn deref(&self) -> &StreamConfig {
        &self.stream
    }
}

/// Values of flags, by the key's path.
pub type Flags = BTreeMap<&'static str, String>;

/// The environment variables whose values are text.
pub type Environment = BTreeMap<String, String>;

/// All settings of a process, with their origins.
#[derive(Debug, Clone)]
pub struct Settings {
    pub(super) base: Layer,
    pub(super) outboxes: Vec<Layer>,
    pub(crate) properties: BTreeMap<String, Given>,
    file: String,
    warnings: Vec<String>,
    environment: BTreeMap<String, Secret>,
}

impl Settings {
    /// Puts flags over `--set` over environment over file over defaults. An empty variable counts
    /// as not set.
    ///
    /// # Errors
    /// [`Kind::Config`] with the flag, the variable, or file and line: for an unknown key, a value
    /// that its key does not allow, and an `[[outbox]]` that contradicts a flag or a variable.
    pub fn new(
        flags: &Flags,
        environment: &Environment,
        file: Option<&ConfigFile>,
    ) -> Result<Settings> {
        #[cfg(feature = "debezium")]
        walrelay_debezium::forms::install();
        let none = ConfigFile::default();
        // Most variables of a process are not ours, and need no look at every key.
        let set_variables = environment
            .iter()
            .filter(|(name, text)| name.starts_with(VARIABLE_PREFIX) && !text.is_empty());
        let variables = set_variables.filter_map(|(variable, text)| {
            let origin = Origin::Variable(variable.clone());
            if let Some(name) = variable.strip_prefix(KAFKA_PROPERTY_VARIABLE) {
                let name = name.to_ascii_lowercase().replace('_', ".");
                return Some(Override::new(KAFKA_PROPERTIES, &name, text, origin));
            }
            let (table, name) = KEYS.iter().find(|key| key.variable() == *variable)?.parts();
            Some(Override::new(table, name, text, origin))
        });
        let typed = KEYS.iter().filter_map(|key| {
            let (text, flag) = flags.get(key.path.as_str()).zip(key.flag)?;
            let (table, name) = key.parts();
            Some(Override::new(table, name, text, Origin::Flag(flag)))
        });
        let sets: Vec<String> = file
            .unwrap_or(&none)
            .set
            .iter()
            .map(|set| toml_of(set))
            .collect();
        let mut errors = Errors::default();
        let set: Vec<_> = sets
            .iter()
            .filter_map(|set| errors.keep(Override::all_of(set)))
            .flatten()
            .collect();
        // The last one of a path counts.
        let overrides: BTreeMap<_, _> = variables
            .chain(set)
            .chain(typed)
            .map(|over| (over.path(), over))
            .collect();
        let overrides: Vec<_> = overrides.into_values().collect();
        let layers = errors.keep(Layers::read(file.unwrap_or(&none), &overrides));
        let Layers { base, outboxes } = errors.result(layers)?;
        let properties = base.below(KAFKA_PROPERTIES);
        let warnings = warnings(environment, file, &base, &properties);
        let environment = environment
            .iter()
            .map(|(name, text)| (name.clone(), Secret::new(text)))
            .collect();
        let file = file.unwrap_or(&none).path.clone();
        Ok(Settings {
            base,
            outboxes,
            properties,
            file,
            warnings,
            environment,
        })
    }

    /// The settings of all tables, without what follows from them.
    pub(crate) fn model(&self) -> &Model {
        &self.base.model
    }

    pub(crate) fn get(&self, path: &str) -> Option<&Given> {
        self.base.get(path)
    }

    pub(crate) fn file(&self) -> Option<&str> {
        Some(self.file.as_str()).filter(|file| !file.is_empty())
    }

    pub(crate) fn has_several_outboxes(&self) -> bool {
        !self.outboxes.is_empty()
    }

    /// Notes for the operator on allowed settings. For the log: they have no secrets.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The configuration of `walrelay run`. `adopt_slot` is an argument because it applies to one
    /// start.
    ///
    /// # Errors
    /// [`Kind::Config`] with each required key that is not set, or with each contradiction.
    pub fn config(&self, adopt_slot: bool) -> Result<Config> {
        let Model {
            sink,
            webhook,
            mut delivery,
            shutdown,
            ..
        } = self.base.model.clone();
        if !sink.kind.capabilities().reads_back {
            delivery.read_tails = ReadTails::Never;
        }
        let mut errors = Errors::default();
        let state = errors.or_default(self.state(adopt_slot));
        let mut outboxes = errors.or_default(self.outboxes());
        for outbox in &mut outboxes {
            // This relay may not use them, but another one may.
            outbox.route.topic_names = TopicNames {
                reserved: vec![state.topic.clone(), delivery.dead_letter_topic.clone()],
                rule: sink.kind.bus().topics,
            };
        }
        let source = errors.keep(self.source());
        let address = sink.kind.bus().address;
        if sink.kind.capabilities().delivers {
            let given = self.base.required(address, self.get(address));
            errors.keep(given.map_err(|error| match self.get("sink.kind") {
                Some(_) => error,
                None => error.remedy(format!(
                    "set {}; for another sink than Kafka set WALRELAY_SINK or `kind` in [sink]",
                    how_to_set(address)
                )),
            }));
        }
        let kafka = errors.or_default(self.kafka(&outboxes));
        let nats = errors.or_default(nats(&self.base));
        let rabbitmq = errors.or_default(rabbitmq(&self.base));
        let smtp = errors.or_default(smtp(&self.base));
        let otel = errors.or_default(self.otel());
        let source = errors.result(source)?;
        let messages = outboxes
            .iter()
            .any(|outbox| outbox.source.table().is_none());
        let source = SourceConfig { messages, ..source };
        let config = Config {
            source,
            outboxes,
            sink,
            kafka,
            nats,
            rabbitmq,
            smtp,
            webhook,
            delivery,
            state,
            shutdown,
            otel,
        };
        self.validate(&config)?;
        Ok(config)
    }

    /// The kind of the bus, if it is set, or its address is.
    pub(crate) fn sink(&self) -> Option<SinkKind> {
        let kind = self.base.model.sink.kind;
        let told = self
            .get("sink.kind")
            .or_else(|| self.get(kind.bus().address));
        told.map(|_| kind)
    }

    pub(crate) fn database(&self) -> Result<ConnInfo> {
        let url = self.base.model.database.url.as_ref().map(Secret::expose);
        self.conninfo("database.url", url)
    }

    /// The connection for writes to rows, where it has a role of its own.
    pub(crate) fn upkeep_database(&self) -> Result<Option<ConnInfo>> {
        let url = self.base.model.upkeep.database.as_ref().map(Secret::expose);
        url.map(|url| self.conninfo("upkeep.database", Some(url)))
            .transpose()
    }

    fn conninfo(&self, key: &str, url: Option<&str>) -> Result<ConnInfo> {
        let variable = |name: &str| {
            let text = self.environment.get(name)?.expose();
            (!text.is_empty()).then(|| text.to_owned())
        };
        ConnInfo::parse(url, &variable).map_err(|error| {
            let error = error
                .or_remedy("write it as postgres://USER@HOST:PORT/DATABASE")
                .with_kind(Kind::Config);
            match self.get(key) {
                // The text itself is refused, and not a variable beside it.
                Some(given) if ConnInfo::parse(url, &|_| None).is_err() => {
                    error.about(&given.origin)
                }
                _ => error,
            }
        })
    }

    pub(crate) fn slot(&self) -> Result<SlotName> {
        let of_no_file = |error: Error| match self.file() {
            Some(_) => error,
            None => error.about("no walrelay.toml was found here or in /etc/walrelay"),
        };
        self.base
            .required("slot.name", self.base.model.slot.name.as_ref())
            .map_err(of_no_file)
    }

    pub(crate) fn table(&self) -> &TableName {
        &self.base.model.outbox.table
    }

    pub(crate) fn source(&self) -> Result<SourceConfig> {
        let (slot, database) = both(self.slot(), self.database())?;
        let upkeep = self.upkeep_database()?;
        let Slot {
            publication,
            stream,
            ..
        } = self.base.model.slot.clone();
        let publication = publication.unwrap_or_else(|| format!("walrelay_{slot}"));
        if !is_identifier(&publication) {
            let origin = self.base.origin("slot.name");
            let cause = format!(
                "{origin}: {publication:?} cannot be a publication's name: Postgres allows 1 to 63 \
                 bytes"
            );
            return Err(Error::new(Kind::Config, cause).remedy(format_args!(
                "set a shorter one: {}",
                how_to_set("slot.publication")
            )));
        }
        let poll = self.base.model.poll.clone();
        Ok(SourceConfig {
            database,
            upkeep,
            slot,
            publication,
            messages: false,
            poll,
            stream,
        })
    }

    /// The sources of events and their routes: one for each outbox.
    pub fn outboxes(&self) -> Result<Vec<OutboxConfig>> {
        let one = std::slice::from_ref(&self.base);
        let layers = if self.outboxes.is_empty() {
            one
        } else {
            &self.outboxes
        };
        let mut errors = Errors::default();
        let mut outboxes = Vec::<OutboxConfig>::new();
        for layer in layers {
            let Model {
                outbox,
                route,
                format,
                ..
            } = layer.model.clone();
            let outbox = OutboxConfig::new(outbox, route, format, |path| layer.get(path).is_some());
            errors.keep(validate_outbox(layer, &outbox));
            if outboxes.iter().any(|other| other.source == outbox.source) {
                let cause = format!("two [[outbox]]es are {}", outbox.source);
                let remedy = "make one of the two: an event has one route, chosen by its columns \
                              where need be";
                errors.add(Error::new(Kind::Config, cause).remedy(remedy));
            }
            outboxes.push(outbox);
        }
        errors.result(Some(outboxes))
    }

    fn kafka(&self, outboxes: &[OutboxConfig]) -> Result<KafkaConfig> {
        for name in BROKERS_PROPERTIES {
            if let Some(given) = self.properties.get(name) {
                let both = if self.get("kafka.brokers").is_some() {
                    ", and kafka.brokers is set too"
                } else {
                    ""
                };
                let cause = format!(
                    "{}: {name} is what walrelay calls kafka.brokers{both}",
                    given.origin
                );
                return Err(Error::new(Kind::Config, cause).remedy(format_args!(
                    "remove it and set {}",
                    how_to_set("kafka.brokers")
                )));
            }
        }
        Ok(KafkaConfig {
            properties: self
                .properties
                .iter()
                .map(|(name, given)| (name.clone(), given.text.clone()))
                .collect(),
            id_headers: outboxes
                .iter()
                .filter_map(|outbox| outbox.route.id_header.clone())
                .collect(),
            timestamp_columns: outboxes
                .iter()
                .filter_map(|outbox| outbox.route.timestamp.clone())
                .collect(),
            ..self.base.model.kafka.clone()
        })
    }

    fn state(&self, adopt_slot: bool) -> Result<StateConfig> {
        let mut state = StateConfig {
            adopt_slot,
            ..self.base.model.state.clone()
        };
        if state.key.is_empty() {
            state.key = self.slot()?.to_string();
        }
        if self.get("state.store").is_none()
            && !self.base.model.sink.kind.capabilities().keeps_position
        {
            state.store = StoreKind::Postgres;
        }
        Ok(state)
    }

    pub(crate) fn otel(&self) -> Result<Option<OtelConfig>> {
        otel(&self.base, &self.environment)
    }

    /// Refuses settings that contradict each other. [`validate_outbox`] refuses those of one
    /// outbox.
    fn validate(&self, config: &Config) -> Result<()> {
        let mut errors = Errors::default();
        errors.keep(self.validate_source(config));
        errors.keep(self.validate_delivery(config));
        errors.keep(self.validate_transactions(config));
        errors.keep(validate_topics(config));
        errors.result(Some(()))
    }

    fn validate_source(&self, config: &Config) -> Result<()> {
        let Config {
            source,
            outboxes,
            state,
            ..
        } = config;
        let base = &self.base;
        let reads = match (source.mode, source.gives_up_over_budget()) {
            (Mode::Poll | Mode::Auto, _) => Some("slot.mode"),
            (Mode::Slot, true) => Some("slot.over_budget"),
            (Mode::Slot, false) => None,
        };
        if let Some(reads) = reads {
            let remedy = "relay messages with mode = \"slot\"";
            base.refuse_if(
                source.messages,
                reads,
                "reads tables, and messages are in none",
                remedy,
            )?;
            let remedy = "set state.store to kafka or postgres";
            base.refuse_if(
                state.store == StoreKind::Slot,
                reads,
                "needs a place to keep what is published",
                remedy,
            )?;
        }
        if source.gives_up_over_budget() {
            let has_no_budget = source.max_retained_bytes.is_none();
            let remedy = "set max_retained_bytes, such as 10GiB";
            base.refuse_if(
                has_no_budget,
                "slot.over_budget",
                "is set, and no budget",
                remedy,
            )?;
            let stops = source.on_loss == OnLoss::Stop;
            let remedy = "let on_loss be recover";
            base.refuse_if(
                stops,
                "slot.over_budget",
                "is give-up, and on_loss is stop",
                remedy,
            )?;
        }
        match source.backlog {
            Some(Backlog::None | Backlog::Since(_)) => base.refuse_if(
                outboxes
                    .iter()
                    .any(|outbox| outbox.upkeep.says_for_itself()),
                "slot.backlog",
                "leaves rows out that outbox.pending or outbox.delete would publish",
                "leave it out: what is pending, or in a table rows are deleted from, is published",
            ),
            Some(Backlog::Pending) => base.refuse_if(
                outboxes
                    .iter()
                    .any(|outbox| outbox.upkeep.pending.is_none()),
                "slot.backlog",
                "is pending, and nothing says which rows are",
                "set outbox.pending, such as status = 'PENDING'",
            ),
            Some(Backlog::All) | None => Ok(()),
        }
    }

    fn validate_delivery(&self, config: &Config) -> Result<()> {
        let Config {
            sink,
            state,
            delivery,
            outboxes,
            ..
        } = config;
        let base = &self.base;
        let [wait, cap] = [delivery.retry.base, delivery.retry.cap].map(exact_duration);
        let at = base.origin("delivery.retry_cap");
        base.refuse_if(
            delivery.retry.base > delivery.retry.cap,
            "delivery.retry_base",
            &format!("is {wait}, and delivery.retry_cap, the longest wait, is {cap} ({at})"),
            &format!("set delivery.retry_base to {cap} or less, or raise delivery.retry_cap"),
        )?;
        let has_no_store =
            !sink.kind.capabilities().keeps_position && state.store == StoreKind::Kafka;
        let remedy = "set state.store to postgres, or leave it out";
        base.refuse_if(
            has_no_store,
            "state.store",
            "is kafka, and sink.kind is not",
            remedy,
        )?;
        base.refuse_if(
            !sink.kind.capabilities().partitions
                && outboxes
                    .iter()
                    .any(|outbox| outbox.route.partition.is_some()),
            "route.partition",
            "is set, and this sink has no partitions",
            "leave it out: the order is that of each key",
        )?;
        // A parked event is not given up.
        if matches!(delivery.on_error, OnError::Stop | OnError::Park) {
            return Ok(());
        }
        base.refuse_if(
            delivery.on_error == OnError::DeadLetter && !sink.kind.capabilities().dead_letters,
            "delivery.on_error",
            "is dead-letter, and this sink has no place for dead letters",
            "set it to park: events that cannot be delivered wait in a table",
        )?;
        let letters = &delivery.dead_letter_topic;
        if state.store == StoreKind::Kafka && state.topic == *letters {
            let cause =
                format!("topic {letters} is that of the position, and cannot have dead letters");
            return Err(Error::new(Kind::Config, cause)
                .remedy("give delivery.dead_letter_topic another name"));
        }
        let says = |outbox: &&OutboxConfig| {
            outbox.upkeep.pending.is_some() || outbox.upkeep.mark.is_some()
        };
        if let Some(outbox) = outboxes
            .iter()
            .filter(says)
            .find(|outbox| outbox.upkeep.mark_failed.is_none())
        {
            let cause = format!(
                "gives events up, and nothing says what to set on their rows of {}",
                outbox.source
            );
            let remedy = "set outbox.mark_failed, such as status = 'FAILED', last_error = :error";
            return Err(base.error("delivery.on_error", cause, remedy));
        }
        Ok(())
    }

    /// Refuses exactly-once delivery where something cannot be committed with the events.
    fn validate_transactions(&self, config: &Config) -> Result<()> {
        let Some(transactions) = config.delivery.transactions() else {
            return Ok(());
        };
        let refuse_if = |wrong: bool, what: &str, remedy: &str| {
            let cause = format!(
                "{}: exactly-once {what}",
                self.base.origin("delivery.guarantee")
            );
            if wrong {
                Err(Error::new(Kind::Config, cause).remedy(remedy))
            } else {
                Ok(())
            }
        };
        refuse_if(
            !config.sink.kind.capabilities().transactions,
            "needs transactions of the bus, and this sink.kind has none",
            "set delivery.guarantee to at-least-once",
        )?;
        refuse_if(
            config.state.store != StoreKind::Kafka,
            "needs the position where the events are, so that both are committed together",
            "set state.store to kafka, or delivery.guarantee to at-least-once",
        )?;
        refuse_if(
            config.delivery.on_error == OnError::Park,
            "commits in Kafka only, and events would be parked in Postgres beside it",
            "set delivery.on_error to stop, dead-letter or skip, or delivery.guarantee to \
             at-least-once",
        )?;
        let marks =
            |outbox: &&OutboxConfig| outbox.upkeep.writes_any() || outbox.upkeep.pending.is_some();
        if let Some(outbox) = config.outboxes.iter().find(marks) {
            refuse_if(
                true,
                &format!(
                    "commits in Kafka only, and rows of {} would be marked or deleted beside it",
                    outbox.source
                ),
                "remove outbox.pending, mark, mark_failed, mark_waiting and delete \
                 (outbox.retention clears the table), or set \
                 delivery.guarantee to at-least-once",
            )?;
        }
        let interval = exact_duration(transactions.interval);
        self.base.refuse_if(
            transactions.interval > transactions.filling_max(),
            "delivery.transaction_interval",
            &format!("cannot be {interval:?}"),
            "write at most a third of delivery.transaction_timeout",
        )?;
        let socket_timeout = config.kafka.properties.get("socket.timeout.ms");
        let socket_timeout_ms = socket_timeout.and_then(|text| text.expose().trim().parse().ok());
        refuse_if(
            socket_timeout_ms.map(Duration::from_millis) > Some(transactions.timeout),
            "needs answers within delivery.transaction_timeout, and socket.timeout.ms is longer",
            "remove socket.timeout.ms from the Kafka properties, or raise \
             delivery.transaction_timeout",
        )
    }
}

/// Refuses settings of one outbox that contradict each other.
fn validate_outbox(layer: &Layer, outbox: &OutboxConfig) -> Result<()> {
    let OutboxConfig {
        source,
        upkeep,
        route,
        ..
    } = outbox;
    let is_set = |path| layer.get(path).is_some();
    let mut errors = Errors::default();
    let mut refuse_if =
        |wrong, path, cause: &str, remedy| errors.keep(layer.refuse_if(wrong, path, cause, remedy));
    let at = layer.origin("outbox.message_prefix");
    refuse_if(
        is_set("outbox.table") && is_set("outbox.message_prefix"),
        "outbox.table",
        &format!("is set, and outbox.message_prefix, too ({at})"),
        "remove one of the two, or write an [[outbox]] for each: one takes rows, one takes \
         messages",
    );
    refuse_if(
        upkeep.order_by.as_deref().is_some_and(is_number),
        "outbox.order_by",
        "is a number, which Postgres reads as the position of a column",
        "name the column, or write an expression over columns",
    );
    let and_delete = "is set, and outbox.delete, too";
    refuse_if(
        upkeep.delete && upkeep.mark.is_some(),
        "outbox.mark",
        and_delete,
        "remove one of the two",
    );
    refuse_if(
        upkeep.delete && upkeep.retention.is_some(),
        "outbox.retention",
        and_delete,
        "remove one of the two: rows go when they are acked, or some time later",
    );
    refuse_if(
        upkeep.pending.is_some() && !upkeep.writes(),
        "outbox.pending",
        "is set, and rows would be pending for ever",
        "set outbox.mark to what makes a row no longer pending, such as status = 'PUBLISHED'",
    );
    refuse_if(
        route
            .headers_from
            .as_ref()
            .is_some_and(|template| template.columns().next().is_none()),
        "route.headers_from",
        "names no column",
        "write the column with the JSON object in braces, such as {metadata}, or nothing for none",
    );
    refuse_if(
        is_set("format.value") && matches!(route.value, ValueConfig::Envelope { .. }),
        "format.value",
        "is set, and format.envelope is, too",
        "remove one of the two: a value is one template or an object of several",
    );
    if source.table().is_none() && *upkeep != Upkeep::default() {
        let cause = format!("{source}: pending, mark and the like are for rows of a table");
        errors.add(
            Error::new(Kind::Config, cause).remedy("remove them: there is no row behind a message"),
        );
    }
    errors.result(Some(()))
}

/// Refuses an outbox whose events all go to one of walrelay's own topics.
fn validate_topics(config: &Config) -> Result<()> {
    for outbox in &config.outboxes {
        let topic = &outbox.route.topic;
        if topic.columns().next().is_none()
            && outbox
                .route
                .topic_names
                .reserved
                .iter()
                .any(|own| own == topic.source())
        {
            let what = match topic.source() == config.state.topic {
                true => "for its position (state.topic)",
                false => "for dead letters (delivery.dead_letter_topic)",
            };
            let outbox = &outbox.source;
            let topic = topic.source();
            let cause = format!(
                "events of {outbox} would go to topic {topic}, which is walrelay's own, {what}"
            );
            return Err(Error::new(Kind::Config, cause).remedy("set route.topic to another one"));
        }
    }
    Ok(())
}

/// The variable of another table with the same key, for a sentence about an unknown one.
fn meant(variable: &str) -> String {
    let is_alike = |key: &&Key| {
        let (_, name) = key.parts();
        variable.ends_with(&format!("_{}", name.to_ascii_uppercase())) && name.contains('_')
    };
    let alike = KEYS.iter().find(is_alike);
    alike.map_or_else(String::new, |key| format!("; there is {}", key.variable()))
}

fn warnings(
    environment: &Environment,
    file: Option<&ConfigFile>,
    base: &Layer,
    properties: &BTreeMap<String, Given>,
) -> Vec<String> {
    // Unknown variables are not refused: Kubernetes sets WALRELAY_… for a service called walrelay.
    let is_known = |name: &str| {
        name == CONFIG_VARIABLE
            || [
                "WALRELAY_SERVICE_",
                "WALRELAY_PORT",
                KAFKA_PROPERTY_VARIABLE,
            ]
            .iter()
            .any(|prefix| name.starts_with(prefix))
            || KEYS.iter().any(|key| key.variable() == name)
    };
    let exports = base.get("otel.endpoint").is_some()
        || environment.contains_key("OTEL_EXPORTER_OTLP_ENDPOINT");
    let is_unknown = |name: &&String| {
        (name.starts_with(VARIABLE_PREFIX) && !is_known(name))
            || (exports && name.starts_with("OTEL_") && !otel::VARIABLES.contains(&name.as_str()))
    };
    let unknown = environment.keys().filter(is_unknown);
    let mut warnings: Vec<_> = unknown
        .map(|name| format!("{name} is set and means nothing to walrelay{}", meant(name)))
        .collect();
    let url = |key| {
        base.get(key)
            .filter(|given| holds_password(given.text.expose()))
    };
    let keys = ["database.url", "upkeep.database"].map(|key| (key, url(key)));
    let secrets = SECRETS.map(|key| (key, base.get(key)));
    let keys = keys.into_iter().chain(secrets);
    let keys = keys.filter_map(|(key, given)| Some((key, given?)));
    let properties = properties
        .iter()
        .filter(|(name, _)| is_secret_property(name));
    let secrets: Vec<_> = keys
        .chain(properties.map(|(name, given)| (name.as_str(), given)))
        .collect();
    if let Some((_, given)) = secrets
        .iter()
        .find(|(_, given)| matches!(given.origin, Origin::Flag(_)))
    {
        warnings.push(format!(
            "{} holds a password, and everybody on this machine can read a command line: use a \
             password file (PGPASSFILE), a \
             variable or a configuration file",
            given.origin
        ));
    }
    if let Some(ConfigFile {
        path,
        readable_by_others: true,
        ..
    }) = file
        && let Some((holder, _)) = secrets
            .iter()
            .find(|(_, given)| matches!(given.origin, Origin::File { .. }))
    {
        warnings.push(format!(
            "{path} can be read by others and holds a secret ({holder}): chmod 600 {path}"
        ));
    }
    warnings
}

fn holds_password(url: &str) -> bool {
    let user_and_password = url
        .split_once("://")
        .and_then(|(_, rest)| rest.split(['/', '?']).next()?.rsplit_once('@'));
    let in_authority = user_and_password
        .and_then(|(user, _)| user.split_once(':'))
        .is_some_and(|(_, word)| !word.is_empty());
    in_authority || url.contains("password=") || url.contains("password =")
}

/// Whether a connection string that is to be shown may hold a password: percent-encoding can hide
/// the word.
pub(crate) fn may_hold_password(url: &str) -> bool {
    holds_password(url) || url.contains('%')
}

/// Whether a `--set` that is to be shown may hold a secret: an escape of TOML can hide the word.
pub(crate) fn may_hold_secret(set: &str) -> bool {
    may_hold_password(set) || is_secret_property(set) || set.contains('\\')
}

pub(super) fn is_secret_property(name: &str) -> bool {
    const SECRET: &[&str] = &[
        "password",
        "secret",
        "key.pem",
        "ssl_key",
        "oauthbearer.config",
        "token",
    ];
    SECRET.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect()
    }

    #[test]
    fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
        let file = ConfigFile::new("w.toml", "[shutdown]\ntimeout = \"3s\"");
        let flags = Flags::from([("shutdown.timeout", "1s".to_owned())]);
        let variable = environment(&[("WALRELAY_SHUTDOWN_TIMEOUT", "2s")]);
        let empty = environment(&[("WALRELAY_SHUTDOWN_TIMEOUT", "")]);
        let none = Environment::new();
        let table = [
            (&flags, &variable, Some(&file), "1s", "--shutdown-timeout"),
            (
                &Flags::new(),
                &variable,
                Some(&file),
                "2s",
                "WALRELAY_SHUTDOWN_TIMEOUT",
            ),
            (&Flags::new(), &empty, Some(&file), "3s", "w.toml:2"),
        ];
        for (flags, environment, file, text, origin) in table {
            let settings = Settings::new(flags, environment, file).unwrap();
            let given = settings.get("shutdown.timeout").unwrap();
            assert_eq!(
                (given.text.expose(), given.origin.to_string().as_str()),
                (text, origin)
            );
            assert_eq!(exact_duration(settings.base.model.shutdown.timeout), text);
        }
        let settings = Settings::new(&Flags::new(), &none, None).unwrap();
        assert_eq!(
            settings.base.model.shutdown.timeout,
            Duration::from_secs(30)
        );
        assert_eq!(settings.base.origin("shutdown.timeout"), "default");
    }

    #[test]
    fn an_error_names_a_setting_once_as_it_was_given() {
        let why = "\"Orders\" is not a slot name: only lower-case letters, digits and underscores \
                   are allowed";
        let named = [("slot.name", "Orders".to_owned())];
        let variable = environment(&[("WALRELAY_SLOT", "Orders")]);
        let file = ConfigFile::new("w.toml", "[slot]\nname = \"Orders\"");
        let mut set = ConfigFile::new("w.toml", "");
        set.set = vec!["slot.name=Orders".to_owned()];
        let no_flag = Flags::new();
        let none = Environment::new();
        for (flags, environment, file, origin) in [
            (&Flags::from(named), &none, None, "--slot"),
            (&no_flag, &variable, None, "WALRELAY_SLOT"),
            (&no_flag, &none, Some(&file), "w.toml:2: slot.name"),
            (&no_flag, &none, Some(&set), "--set: slot.name"),
        ] {
            let error = Settings::new(flags, environment, file).unwrap_err();
            assert_eq!(error.to_string(), format!("{origin}: {why}"));
        }
        let mode =
            Settings::new(&no_flag, &environment(&[("WALRELAY_MODE", "pull")]), None).unwrap_err();
        assert_eq!(mode.to_string(), "WALRELAY_MODE cannot be \"pull\"");
    }

    #[test]
    fn a_refused_variable_of_libpq_is_named_without_the_connection_string() {
        let database = |url: &str, variable| {
            let flags = Flags::from([("database.url", url.to_owned())]);
            Settings::new(&flags, &environment(&[variable]), None)
                .unwrap()
                .database()
                .unwrap_err()
                .to_string()
        };
        let refused = database("host=db user=relay", ("PGSERVICE", "shop"));
        assert_eq!(refused, "the variable PGSERVICE cannot be used");
        assert!(
            database("host=db user=relay", ("PGPORT", "x"))
                .starts_with("a port of the Postgres connection is not")
        );
        assert!(
            database("host=db user=relay port=x", ("PGHOST", "a"))
                .starts_with("--database-url: a port")
        );
    }

    #[test]
    fn set_beats_variables_and_the_file_with_the_keys_and_errors_of_the_file() {
        let settings = |set: &[&str]| {
            let text = "[route]\ntopic = 'file'\n[kafka.properties]\nlinger.ms = 1";
            let mut file = ConfigFile::new("w.toml", text);
            file.set = set.iter().map(|text| (*text).to_owned()).collect();
            let variables = [
                ("WALRELAY_ROUTE_TOPIC", "variable"),
                ("WALRELAY_KAFKA_PROPERTY_LINGER_MS", "2"),
            ];
            let flags = Flags::from([("slot.name", "flag".to_owned())]);
            Settings::new(&flags, &environment(&variables), Some(&file))
        };
        let set = [
            "route.topic = 'first'",
            "delivery.retry_attempts=5",
            "slot.name=set",
            "kafka.properties.linger.ms=3",
            "route.headers.\"a.b\"={x}",
            "route.topic=last",
        ];
        let settings_of_all = settings(&set).unwrap();
        let shown = |path| {
            let given = settings_of_all.get(path).unwrap();
            format!("{} {}", given.text.expose(), given.origin)
        };
        let paths = [
            "route.topic",
            "delivery.retry_attempts",
            "slot.name",
            "route.headers.a.b",
        ];
        assert_eq!(
            paths.map(shown),
            ["last --set", "5 --set", "flag --slot", "{x} --set"]
        );
        assert_eq!(settings_of_all.properties["linger.ms"].text.expose(), "3");
        assert_eq!(
            settings(&[]).unwrap().properties["linger.ms"].text.expose(),
            "2"
        );
        for (wrong, cause) in [
            ("slot.nmae=a", "--set: slot.nmae does not exist"),
            ("typo.key=1", "--set: typo does not exist"),
            (
                "slot.max_message_bytes=true",
                "--set: slot.max_message_bytes cannot be true",
            ),
            (
                "slot.wal_sender_timeout=10",
                "--set: slot.wal_sender_timeout cannot be 10",
            ),
            ("slot=a", "--set: slot is a table, not a value"),
            (
                "kafka.properties.x=[1]",
                "--set: kafka.properties.x is neither text nor a number nor true or false",
            ),
            (
                "orders",
                "--set: this is not KEY=VALUE with the key of a configuration file",
            ),
        ] {
            assert_eq!(settings(&[wrong]).unwrap_err().cause(), cause);
        }
        let warnings = settings(&["kafka.properties.sasl.password=canary"])
            .unwrap()
            .warnings()
            .join("");
        assert!(
            warnings.starts_with("--set holds a password") && !warnings.contains("canary"),
            "{warnings}"
        );
    }

    #[test]
    fn all_errors_of_a_configuration_are_reported_together() {
        let causes = |error: Error| -> Vec<String> {
            std::iter::once(&error)
                .chain(error.others())
                .map(|error| error.cause().to_owned())
                .collect()
        };
        let syntax = "[slot]\nname = 'a'\nname = 'b'\n[slot]";
        assert_eq!(
            causes(Settings::of(syntax).unwrap_err()),
            ["w.toml:3: duplicate key", "w.toml:4: duplicate key"]
        );
        let shape = "[slot]\nnmae = 'a'\nwal_sender_timeout = 10\n[log]\nformat = \
                     'xml'\n[kafka.properties]\nx = [1]";
        assert_eq!(
            causes(Settings::of(shape).unwrap_err()),
            [
                "w.toml:2: slot.nmae does not exist",
                "w.toml:3: slot.wal_sender_timeout cannot be 10",
                "w.toml:5: log.format cannot be \"xml\"",
                "w.toml:7: kafka.properties.x is neither text nor a number nor true or false",
            ]
        );
        let values = "[slot]\nname = 'A'\n[outbox.columns]\nid = ''\n[route]\ntopic = \
                      '{'\n[state]\ntopic = ' '\n\
                      [http]\nlisten = 'x'\nready_within = '1ms'";
        let values = causes(Settings::of(values).unwrap_err());
        let keys = [
            "slot.name",
            "outbox.columns.id",
            "route.topic",
            "state.topic",
            "http.listen",
            "http.ready_within",
        ];
        assert_eq!(values.len(), keys.len(), "{values:?}");
        assert!(
            values
                .iter()
                .zip(keys)
                .all(|(cause, key)| cause.contains(key)),
            "{values:?}"
        );
        let missing = "database.url = 'postgres://u@h/d'\n[outbox]\ndelete = 'acked'\nmark = \
                       'a'\nretention = '1d'";
        let missing = Settings::of(missing).unwrap().config(false).unwrap_err();
        let remedy = "set --slot, WALRELAY_SLOT or `name` in [slot] of the configuration file";
        assert_eq!(missing.what_to_do().as_deref(), Some(remedy));
        assert_eq!(
            causes(missing),
            [
                "slot.name is not set",
                "w.toml:4: outbox.mark is set, and outbox.delete, too",
                "w.toml:5: outbox.retention is set, and outbox.delete, too",
                "kafka.brokers is not set",
            ]
        );
        let no_bus = |kind: &str| {
            let text = format!("database.url = 'postgres://u@h/d'\nslot.name = 'a'\n{kind}");
            let error = Settings::of(&text).unwrap().config(false).unwrap_err();
            error.what_to_do().unwrap()
        };
        let other = "; for another sink than Kafka set WALRELAY_SINK or `kind` in [sink]";
        assert!(no_bus("").ends_with(other));
        assert!(
            no_bus("sink.kind = 'kafka'")
                .ends_with("`brokers` in [kafka] of the configuration file")
        );
    }

    #[test]
    fn an_unknown_variable_causes_a_warning_and_one_of_kubernetes_does_not() {
        let set = environment(&[
            ("WALRELAY_SLOTT", "x"),
            ("WALRELAY_KAFKA_MAX_IN_FLIGHT_BYTES", "x"),
            ("WALRELAY_PORT_80_TCP", "x"),
            ("WALRELAY_CONFIG", "x"),
        ]);
        let settings = Settings::new(&Flags::new(), &set, None).unwrap();
        assert_eq!(
            settings.warnings(),
            [
                "WALRELAY_KAFKA_MAX_IN_FLIGHT_BYTES is set and means nothing to walrelay; there is \
                 WALRELAY_SINK_MAX_IN_FLIGHT_BYTES",
                "WALRELAY_SLOTT is set and means nothing to walrelay",
            ]
        );
    }

    #[test]
    fn a_password_that_others_can_read_causes_a_warning_that_hides_its_value() {
        let mut file = ConfigFile::new("w.toml", "[kafka.properties]\nsasl.password = \"canary\"");
        file.readable_by_others = true;
        let flags = Flags::from([("database.url", "postgres://u:canary@h/d".to_owned())]);
        let settings = Settings::new(&flags, &Environment::new(), Some(&file)).unwrap();
        assert_eq!(settings.warnings().len(), 2, "{:?}", settings.warnings());
        assert!(!format!("{settings:?}").contains("canary"));
        file.readable_by_others = false;
        assert!(
            Settings::new(&Flags::new(), &Environment::new(), Some(&file))
                .unwrap()
                .warnings()
                .is_empty()
        );
    }

    #[test]
    fn a_password_is_recognized_in_both_forms_of_connection_string() {
        for url in [
            "postgres://u:p@h/d",
            "postgresql://u:p@h",
            "host=h password=p",
            "postgres://h/d?password=p",
        ] {
            assert!(holds_password(url), "{url}");
        }
        for url in [
            "postgres://u@h:5432/d",
            "host=h user=u",
            "postgres://h/d?options=a:b@c",
            "postgres://u:@h",
        ] {
            assert!(!holds_password(url), "{url}");
        }
    }

    #[test]
    fn an_outbox_that_contradicts_a_variable_or_flag_is_refused() {
        let file = ConfigFile::new(
            "w.toml",
            "[[outbox]]\ntable = 'a'\nroute.topic = 'x'\n[[outbox]]\ntable = 'b'",
        );
        let topic = |text: &str| environment(&[("WALRELAY_ROUTE_TOPIC", text)]);
        let error = Settings::new(&Flags::new(), &topic("y"), Some(&file)).unwrap_err();
        assert_eq!(
            (error.kind(), error.cause()),
            (
                Kind::Config,
                "WALRELAY_ROUTE_TOPIC is \"y\" for every outbox, and this [[outbox]] says \"x\" \
                 (w.toml:3)"
            )
        );
        assert_eq!(error.what_to_do().as_deref(), Some("remove one of the two"));
        // An outbox that sets the same value, or none, has the variable's value.
        let settings = Settings::new(&Flags::new(), &topic("x"), Some(&file)).unwrap();
        let topics: Vec<_> = settings
            .outboxes()
            .unwrap()
            .iter()
            .map(|outbox| outbox.route.topic.source().to_owned())
            .collect();
        assert_eq!(topics, ["x", "x"]);

        let flags = |table: &str| Flags::from([("outbox.table", table.to_owned())]);
        let one = ConfigFile::new("w.toml", "[[outbox]]\ntable = 'a'");
        let outboxes = |flags| Settings::new(&flags, &Environment::new(), Some(&one))?.outboxes();
        let error = outboxes(flags("x")).unwrap_err();
        assert_eq!(
            error.cause(),
            "--table is \"x\" for every outbox, and this [[outbox]] says \"a\" (w.toml:2)"
        );
        assert_eq!(outboxes(flags("a")).unwrap().len(), 1);
    }

    impl SourceConfig {
        pub(crate) fn sample(
            database: ConnInfo,
            slot: &str,
            publication: &str,
            stream: StreamConfig,
        ) -> Self {
            SourceConfig {
                database,
                upkeep: None,
                slot: slot.parse().unwrap(),
                publication: publication.to_owned(),
                messages: false,
                poll: PollConfig::default(),
                stream,
            }
        }
    }

    impl Settings {
        pub(crate) fn of(text: &str) -> Result<Settings> {
            Settings::new(
                &Flags::new(),
                &Environment::new(),
                Some(&ConfigFile::new("w.toml", text)),
            )
        }

        /// The same, with the required settings on its first three lines.
        pub(crate) fn with_least(text: &str) -> Result<Settings> {
            let least = "database.url = 'postgres://u@h/d'\nslot.name = 'orders'\nkafka.brokers = \
                         'b:9092'\n";
            Settings::of(&format!("{least}{text}"))
        }
    }

    fn config(text: &str) -> Result<Config> {
        Settings::with_least(text)?.config(false)
    }

    #[test]
    fn a_minimal_configuration_has_the_defaults() {
        let settings = Settings::with_least("").unwrap();
        let config = settings.config(false).unwrap();
        assert_eq!(config.source.publication, "walrelay_orders");
        assert_eq!(config.source.wal_sender_timeout, Duration::from_secs(10));
        assert_eq!(config.source.max_message_bytes, 64 << 20);
        let [outbox] = config.outboxes.as_slice() else {
            panic!("{:?}", config.outboxes)
        };
        assert_eq!(outbox.source.to_string(), "public.outbox");
        assert_eq!(outbox.names.aggregateid, "aggregateid");
        assert_eq!(outbox.route.topic.source(), "outbox.event.{aggregatetype}");
        assert_eq!(
            outbox.columns,
            ["id", "aggregatetype", "aggregateid", "payload"]
        );
        assert_eq!(
            (
                config.sink.max_in_flight_bytes,
                config.sink.max_in_flight_events
            ),
            (16 << 20, 100_000)
        );
        assert_eq!(
            (config.state.store, config.state.topic.as_str()),
            (StoreKind::Kafka, "walrelay-state")
        );
        assert_eq!(config.state.key, "orders");
        assert_eq!(settings.model().http.listen, None);
        assert_eq!(config.shutdown.timeout, Duration::from_secs(30));
    }

    #[test]
    fn a_sink_other_than_kafka_needs_no_broker_and_stores_positions_in_postgres() {
        let least =
            "database.url = 'postgres://u@h/d'\nslot.name = 'orders'\nsink.kind = 'stdout'\n";
        let of = |text: &str| {
            Settings::of(&format!("{least}{text}"))
                .unwrap()
                .config(false)
                .unwrap()
        };
        let config = of("");
        assert_eq!(
            (config.sink.kind, config.state.store),
            (SinkKind::Stdout, StoreKind::Postgres)
        );
        assert_eq!(config.delivery.read_tails, ReadTails::Never);
        assert_eq!(of("state.store = 'slot'").state.store, StoreKind::Slot);
        let settings = Settings::of(least).unwrap();
        let shown = crate::config::written::effective(&settings, &config);
        assert!(
            shown.contains("\nstore = \"postgres\"  # default\n"),
            "{shown}"
        );
    }

    #[test]
    fn the_effective_configuration_shows_no_secret() {
        let is_secret = |key: &&Key| {
            let name = key.parts().1;
            ["password", "token", "headers"].contains(&name)
        };
        let secrets: Vec<&str> = KEYS
            .iter()
            .filter(is_secret)
            .map(|key| &*key.path)
            .collect();
        assert_eq!(secrets.len(), SECRETS.len(), "{secrets:?}");
        let mut text = "database.url = 'postgres://u:canary@h/d'\nslot.name = 'orders'\n\
                        sink.kind = 'stdout'\n"
            .to_owned();
        for key in secrets {
            assert!(SECRETS.contains(&key), "{key}");
            if key != "nats.token" {
                text.push_str(&format!("{key} = 'a=canary'\n"));
            }
        }
        text.push_str("nats.user = 'u'\nrabbitmq.user = 'u'\nsmtp.user = 'u'\n");
        let settings = Settings::of(&text).unwrap();
        let shown = crate::config::written::effective(&settings, &settings.config(false).unwrap());
        assert!(!shown.contains("canary"), "{shown}");
    }

    #[cfg(feature = "nats")]
    #[test]
    fn a_partition_is_refused_where_a_bus_has_none() {
        let of = |kind: &str| {
            config(&format!(
                "route.partition = 'p'\nnats.servers = 'h'\nsink.kind = '{kind}'"
            ))
        };
        assert!(of("kafka").is_ok());
        let error = of("nats").unwrap_err();
        assert!(
            error
                .cause()
                .ends_with("route.partition is set, and this sink has no partitions"),
            "{error}"
        );
    }

    #[test]
    fn an_invalid_value_is_refused_with_its_line() {
        let table = [
            (
                "slot.wal_sender_timeout = '0s'",
                "w.toml:4: slot.wal_sender_timeout cannot be \"0s\"",
            ),
            (
                "slot.wal_sender_timeout = '10'",
                "w.toml:4: slot.wal_sender_timeout cannot be \"10\"",
            ),
            (
                "slot.max_message_bytes = '2GiB'",
                "w.toml:4: slot.max_message_bytes cannot be \"2GiB\"",
            ),
            (
                "sink.max_in_flight_events = 0",
                "w.toml:4: sink.max_in_flight_events cannot be 0",
            ),
            (
                "sink.max_in_flight_bytes = -1",
                "w.toml:4: sink.max_in_flight_bytes cannot be -1",
            ),
            (
                "state.store = 'redis'",
                "w.toml:4: state.store cannot be \"redis\"",
            ),
            (
                "state.store = 'kafka'\nsink.kind = 'null'",
                "w.toml:4: state.store is kafka, and sink.kind is not",
            ),
            (
                "state.topic = 'a b'",
                "w.toml:4: state.topic cannot be \"a b\"",
            ),
            (
                "log.format = 'xml'",
                "w.toml:4: log.format cannot be \"xml\"",
            ),
            (
                "http.listen = 'somewhere:80'",
                "w.toml:4: http.listen cannot be \"somewhere:80\"",
            ),
            (
                "route.topic_prefix = 'a/b'",
                "w.toml:4: route.topic_prefix cannot be \"a/b\"",
            ),
            ("slot.backlog = ''", "w.toml:4: slot.backlog cannot be \"\""),
            (
                "slot.publication = ''",
                "w.toml:4: slot.publication cannot be \"\"",
            ),
            (
                "outbox.table = 'a.b.c'",
                "w.toml:4: outbox.table: \"a.b.c\" is not a table name: it must be TABLE or \
                 SCHEMA.TABLE",
            ),
            (
                "outbox.columns.id = ''",
                "w.toml:4: outbox.columns.id cannot be \"\"",
            ),
            (
                "[kafka.properties]\nbootstrap.servers = 'x:1'",
                "w.toml:5: bootstrap.servers is what walrelay calls kafka.brokers, and \
                 kafka.brokers is set too",
            ),
            (
                "[route.headers]\nWalRelay-replay = 'x'",
                "w.toml:5: route.headers has \"WalRelay-replay\", which is",
            ),
            (
                "route.id_header = 'walrelay-row-id'",
                "w.toml:4: route.id_header cannot be \"walrelay-row-id\"",
            ),
            (
                "route.position_header = 'walrelay-settled'",
                "w.toml:4: route.position_header cannot be \"walrelay-settled\"",
            ),
            (
                "[[outbox]]\ntable = 'a'\nroute.headers.walrelay-x = '1'",
                "w.toml:6: route.headers has \"walrelay-x\"",
            ),
            (
                "delivery.guarantee = 'twice'",
                "delivery.guarantee cannot be",
            ),
            (
                "delivery.guarantee = 'exactly-once'\nstate.store = 'postgres'",
                "needs the position where the events are",
            ),
            (
                "delivery.guarantee = 'exactly-once'\nsink.kind = 'null'",
                "needs transactions of the bus",
            ),
            (
                "delivery.guarantee = 'exactly-once'\nstate.store = 'slot'",
                "needs the position where the events are",
            ),
            (
                "delivery.guarantee = 'exactly-once'\ndelivery.on_error = 'park'",
                "would be parked in Postgres beside it",
            ),
            (
                "delivery.guarantee = 'exactly-once'\noutbox.delete = 'acked'",
                "would be marked or deleted beside it",
            ),
            (
                "delivery.guarantee = 'exactly-once'\noutbox.mark = 'done = true'",
                "would be marked or deleted beside it",
            ),
            (
                "delivery.guarantee = 'exactly-once'\ndelivery.transaction_interval = '5s'\n\
                 delivery.transaction_timeout = '9s'",
                "delivery.transaction_interval cannot be",
            ),
            (
                "delivery.guarantee = 'exactly-once'\n[kafka.properties]\nsocket.timeout.ms = \
                 '60000'",
                "socket.timeout.ms is longer",
            ),
            (
                "delivery.guarantee = 'exactly-once'\ndelivery.transactional_id_prefix = 'a b'",
                "delivery.transactional_id_prefix cannot be",
            ),
            (
                "[route.headers]\n\"a\\u0000b\" = 'x'",
                "w.toml:5: route.headers has \"a\\0b\"",
            ),
            (
                "[route.headers]\n'' = 'x'",
                "w.toml:5: route.headers has \"\"",
            ),
            (
                "[[outbox]]\ntable = 'a'\n[[outbox]]\ntable = 'public.a'",
                "two [[outbox]]es are public.a",
            ),
            (
                "[[outbox]]\ntable = 'a'\nmessage_prefix = 'b'",
                "w.toml:5: outbox.table is set, and outbox.message_prefix, too (w.toml:6)",
            ),
            (
                "[route]\nheaders_from = 'metadata'",
                "w.toml:5: route.headers_from names no column",
            ),
            (
                "[outbox]\nmessage_prefix = ''",
                "w.toml:5: outbox.message_prefix cannot be \"\"",
            ),
            (
                "[outbox]\nmark = 'a = 1; drop table b'",
                "w.toml:5: outbox.mark cannot be \"a = 1; drop table b\"",
            ),
            (
                "[outbox]\npending = 'a -- b'",
                "w.toml:5: outbox.pending cannot be \"a -- b\"",
            ),
            (
                "[outbox]\npending = 'true) or (true'",
                "w.toml:5: outbox.pending cannot be \"true) or (true\"",
            ),
            (
                "[outbox]\norder_by = '(1)'",
                "w.toml:5: outbox.order_by is a number, which Postgres reads as the position of a \
                 column",
            ),
            (
                "[outbox]\npending = 'not a'",
                "w.toml:5: outbox.pending is set, and rows would be pending for ever",
            ),
            (
                "[outbox]\nmark = 'a = true'\ndelete = 'acked'",
                "w.toml:5: outbox.mark is set, and outbox.delete, too",
            ),
            (
                "[outbox]\nmessage_prefix = 'a'\ndelete = 'acked'",
                "messages with prefix \"a\": pending, mark and the like are for rows of a table",
            ),
            (
                "[[outbox]]\ntable = 'a b'",
                "w.toml:5: outbox.table: \"a b\" is not a table name: there is something behind \
                 the name; quote names with \"…\"",
            ),
            (
                "delivery.retry_base = '10s'\ndelivery.retry_cap = '5s'",
                "w.toml:4: delivery.retry_base is 10s, and delivery.retry_cap, the longest wait, \
                 is 5s (w.toml:5)",
            ),
            (
                "route.topic = 'walrelay-dead-letters'",
                "events of public.outbox would go to topic walrelay-dead-letters, which is \
                 walrelay's own, for dead letters \
                 (delivery.dead_letter_topic)",
            ),
            (
                "state.store = 'postgres'\nstate.topic = 'all'\nroute.topic = 'all'",
                "events of public.outbox would go to topic all, which is walrelay's own, for its \
                 position (state.topic)",
            ),
            (
                "delivery.on_error = 'dead-letter'\ndelivery.dead_letter_topic = 'walrelay-state'",
                "topic walrelay-state is that of the position, and cannot have dead letters",
            ),
        ];
        for (lines, cause) in table {
            let error = config(lines).unwrap_err();
            assert!(
                error.kind() == Kind::Config && error.cause().contains(cause),
                "{lines}: {error}"
            );
            assert!(
                error.what_to_do().is_some_and(|todo| !todo.is_empty()),
                "{lines}: nothing to do"
            );
        }
    }

    #[test]
    fn a_missing_slot_is_told_with_the_places_of_a_file() {
        let without_file = Settings::new(&Flags::new(), &Environment::new(), None)
            .unwrap()
            .slot()
            .unwrap_err();
        let cause = "no walrelay.toml was found here or in /etc/walrelay: slot.name is not set";
        assert_eq!(without_file.to_string(), cause);
    }

    #[test]
    fn the_example_file_is_valid_and_its_commented_keys_show_the_defaults() {
        let example = include_str!("../../walrelay.example.toml");
        let config = Settings::of(example).unwrap().config(false).unwrap();
        assert_eq!(
            (config.source.slot.as_str(), config.kafka.brokers.as_str()),
            ("orders", "localhost:9092")
        );
        for setting in KEYS.iter() {
            let (_, key) = setting.parts();
            let lines = || example.lines().map(|line| line.trim_start_matches("# "));
            assert!(
                lines().any(|line| line.starts_with(&format!("{key} = "))),
                "the example lacks {}",
                setting.path
            );
            if let Some(default) = &setting.default {
                let values = [
                    format!("{key} = \"{default}\""),
                    format!("{key} = {default}"),
                ];
                assert!(
                    lines().any(|line| values.iter().any(|value| value == line)),
                    "another default for {}",
                    setting.path
                );
            }
        }
    }

    #[test]
    fn a_long_slot_name_requires_a_configured_publication_name() {
        let named = format!(
            "database.url = 'postgres://u@h/d'\nslot.name = '{}'\n",
            "s".repeat(60)
        );
        assert!(Settings::of(&named).unwrap().source().is_err());
        assert!(
            Settings::of(&format!("{named}slot.publication = 'p'"))
                .unwrap()
                .source()
                .is_ok()
        );
    }

    #[test]
    fn a_broker_list_with_an_http_url_or_an_empty_host_is_refused() {
        for (brokers, fits) in [
            ("b:9092, c:9092", true),
            ("SASL_SSL://b:9092,c", true),
            ("http://b:9092", false),
            ("b:9092,ssl://", false),
            ("b:9092,,c:9092", false),
        ] {
            let text = format!(
                "database.url = 'postgres://u@h/d'\nslot.name = 'orders'\nkafka.brokers = \
                 '{brokers}'"
            );
            assert_eq!(Settings::of(&text).is_ok(), fits, "{brokers}");
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
            let settings = Settings::with_least(&format!("http.listen = '{text}'")).unwrap();
            assert_eq!(
                settings.model().http.listen.unwrap().to_string(),
                address,
                "{text}"
            );
        }
    }

    #[test]
    fn the_debug_text_of_the_configuration_shows_no_secret() {
        let text = "database.url = 'postgres://u:canary1@h/d'\nslot.name = 'orders'\nkafka.brokers \
                    = 'b:9092'\n\
                    [kafka.properties]\nsasl.password = 'canary2'";
        let config = Settings::of(text).unwrap().config(false).unwrap();
        assert!(
            !format!("{config:?}").contains("canary"),
            "a password is in {config:?}"
        );
        assert_eq!(config.kafka.properties["sasl.password"].expose(), "canary2");
    }

    #[test]
    fn exactly_once_is_off_by_default_and_has_a_transactional_id_per_slot() {
        assert_eq!(config("").unwrap().delivery.transactions(), None);
        let config = config("delivery.guarantee = 'exactly-once'").unwrap();
        let transactions = config.delivery.transactions().unwrap();
        assert_eq!(
            transactions.transactional_id("7300", "orders"),
            "walrelay-7300-orders"
        );
        assert_eq!(transactions.timeout, Duration::from_secs(15));
    }

    fn outboxes(text: &str) -> Result<Vec<OutboxConfig>> {
        Settings::of(text)?.outboxes()
    }

    #[test]
    fn settings_of_an_outbox_override_those_for_all_outboxes() {
        let outboxes = outboxes(
            "[route]\ntopic = 'all'\nkey = '{k}'\n[route.headers]\na = '{a}'\n[format]\nvalue = \
             '{v}'\n\
             [[outbox]]\ntable = 'one'\n\
             [[outbox]]\ntable = 'two'\ncolumns.id = 'number'\nroute.topic = 'second'\n\
             [outbox.route.headers]\nb = '{b}'\n[outbox.format.envelope]\nx = '{x}'\n\
             [[outbox]]\nmessage_prefix = 'shop'\n",
        )
        .unwrap();
        let told: Vec<_> = outboxes
            .iter()
            .map(|outbox| {
                (
                    outbox.source.to_string(),
                    outbox.route.topic.source(),
                    outbox.columns.join(" "),
                )
            })
            .collect();
        let told: Vec<_> = told
            .iter()
            .map(|(source, topic, columns)| (source.as_str(), *topic, columns.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                ("public.one", "all", "id k a v"),
                ("public.two", "second", "number k b x"),
                ("messages with prefix \"shop\"", "all", "message_lsn k a v"),
            ]
        );
    }

    #[test]
    fn an_outbox_clears_a_common_setting_with_an_empty_value() {
        let outboxes = outboxes(
            "[route]\nheaders_from = '{m}'\npartition = 'p'\ntimestamp = 't'\n[route.headers]\na = \
             '{a}'\n\
             [[outbox]]\ntable = 'one'\n\
             [[outbox]]\ntable = 'two'\nroute.headers_from = ''\nroute.partition = \
             ''\nroute.timestamp = ''\n\
             [outbox.route.headers]\n",
        )
        .unwrap();
        let columns: Vec<_> = outboxes
            .iter()
            .map(|outbox| outbox.columns.join(" "))
            .collect();
        assert_eq!(
            columns,
            [
                "id aggregatetype aggregateid m a p t payload",
                "id aggregatetype aggregateid payload"
            ]
        );
        assert!(
            outboxes
                .iter()
                .skip(1)
                .all(|outbox| outbox.route.headers_from.is_none())
        );
    }

    #[test]
    fn the_max_attempts_column_is_read_with_the_row() {
        let text = "[outbox.columns]\nmax_attempts = 'max_retries'\n[outbox]\nmark_waiting = 'n = \
                    :attempts'";
        let outboxes = outboxes(text).unwrap();
        let [outbox] = outboxes.as_slice() else {
            panic!("{}", outboxes.len())
        };
        assert_eq!(outbox.names.max_attempts.as_deref(), Some("max_retries"));
        assert_eq!(
            outbox.columns.join(" "),
            "id aggregatetype aggregateid max_retries payload"
        );
        assert_eq!(outbox.upkeep.mark_waiting.as_deref(), Some("n = :attempts"));
    }
}
