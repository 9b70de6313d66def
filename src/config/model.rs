//! The configuration file: a struct per table, a field per key.
//!
//! Each field documents its key and the reason for the default. A variable or a flag may also set a
//! key. A test compares `docs/reference/configuration.md` with these structs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use smart_default::SmartDefault;

use crate::config::servers;
use crate::config::sink_kind::SinkKind;
use walrelay_core::choices;
use walrelay_core::config::draft::{ENVELOPE, HEADERS, KAFKA_PROPERTIES};
use walrelay_core::config::outbox::{Format, Outbox, RouteConfig};
use walrelay_core::config::text;
use walrelay_core::config::unit::{Bytes, Count, GIB, KIB, Lasting, MIB, Within};
use walrelay_core::config::{Backlog, DeliveryConfig, OnLoss, SlotName};
use walrelay_core::secret::Secret;
use walrelay_core::watch::RetentionLimit;

const SECOND_MS: u64 = 1000;
const HOUR_MS: u64 = 3600 * SECOND_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Model {
    pub database: Database,
    pub slot: Slot,
    pub poll: PollConfig,
    pub outbox: Outbox,
    pub upkeep: UpkeepSession,
    pub route: RouteConfig,
    pub format: Format,
    pub sink: SinkConfig,
    pub kafka: KafkaConfig,
    pub nats: NatsConfig,
    pub rabbitmq: RabbitmqConfig,
    pub smtp: SmtpConfig,
    pub webhook: WebhookConfig,
    pub delivery: DeliveryConfig,
    pub state: StateConfig,
    pub http: Http,
    pub otel: Otel,
    pub log: Log,
    pub shutdown: Shutdown,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Database {
    /// The connection string. No default: without it the `PG*` variables apply, as for `psql`.
    #[serde(serialize_with = "text::no_default")]
    pub url: Option<Secret>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct UpkeepSession {
    /// The connection string for writes to rows and to `walrelay.parked`. No default: the relay's
    /// own role writes. A role of its own keeps triggers of the table from running as the
    /// replication role.
    #[serde(serialize_with = "text::no_default")]
    pub database: Option<Secret>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Slot {
    /// The slot. Required: two relays on one slot would disconnect each other, so there is no
    /// shared default.
    #[serde(
        deserialize_with = "text::optional",
        serialize_with = "text::no_default"
    )]
    pub name: Option<SlotName>,
    /// The publication. Follows from the slot's name, because `setup` creates both.
    #[serde(deserialize_with = "text::optional")]
    pub publication: Option<String>,
    #[serde(flatten)]
    pub stream: StreamConfig,
}

/// How a slot is read, and what is done about one that is lost or retains too much.
#[derive(Debug, Clone, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub struct StreamConfig {
    /// `wal_sender_timeout` of the relay's session. The relay sends at least three status updates
    /// in this time, and counts the server as dead after this much silence. Ten seconds: a dead
    /// peer is noticed sooner than after Postgres' sixty.
    #[default(Duration::from_secs(10))]
    #[serde(with = "Lasting::<SECOND_MS, HOUR_MS>")]
    pub wal_sender_timeout: Duration,
    /// The largest message from the server. A larger row stops the relay, which names its LSN. 64
    /// MiB: sixty times a broker's limit, and one row still fits in memory.
    #[default(64 << 20)]
    #[serde(with = "Within::<Bytes, { 64 * KIB }, GIB>")]
    pub max_message_bytes: usize,
    /// Where events come from. The slot: polling costs queries.
    pub mode: Mode,
    /// The reaction to the loss of the slot. Recovery: the table still has the events.
    pub on_loss: OnLoss,
    /// The existing rows that are published first. Follows: pending rows where `outbox.pending` is
    /// set, else all.
    #[serde(
        deserialize_with = "text::optional",
        serialize_with = "text::no_default"
    )]
    pub backlog: Option<Backlog>,
    /// The greatest amount of WAL that the slot may retain. No bound: the server has its own,
    /// `max_slot_wal_keep_size`.
    #[serde(deserialize_with = "retained_bytes")]
    pub max_retained_bytes: Option<u64>,
    /// The reaction to a slot that retains more. The slot stays: dropping it costs a recovery from
    /// the table.
    pub over_budget: OverBudget,
}

impl StreamConfig {
    /// Whether a slot that retains too much is dropped.
    pub fn gives_up_over_budget(&self) -> bool {
        self.over_budget == OverBudget::GiveUp
    }

    /// The judge of what the slot retains.
    pub(crate) fn retention_limit(&self) -> RetentionLimit {
        RetentionLimit::new(self.max_retained_bytes, self.gives_up_over_budget())
    }
}

fn retained_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    Within::<Bytes, MIB, { 64 * 1024 * GIB }>::deserialize(from).map(Some)
}

choices! {
    pub enum Mode {
        /// From the replication slot
        #[default]
        Slot,
        /// From the table, by polling
        Poll,
        /// From the slot where there can be one, else from the table until there can
        Auto,
    }

    pub enum OverBudget {
        /// The slot stays, and the relay reports that it is not ready
        #[default]
        Unready,
        /// The slot is dropped, and rows are read from the table
        GiveUp,
    }
}

#[derive(Debug, Clone, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub struct PollConfig {
    /// The wait between two reads while rows arrive. A fifth of a second: a short delay, for five
    /// small queries.
    #[default(Duration::from_millis(200))]
    #[serde(with = "Lasting::<10, HOUR_MS>")]
    pub interval: Duration,
    /// The wait after some time without rows. Two seconds: an idle table costs next to nothing.
    #[default(Duration::from_secs(2))]
    #[serde(with = "Lasting::<10, HOUR_MS>")]
    pub idle_interval: Duration,
    /// The interval of checks for pending rows while streaming. Two seconds: an operator waits for
    /// a row set to pending.
    #[default(Duration::from_secs(2))]
    #[serde(with = "Lasting::<100, HOUR_MS>")]
    pub pending_interval: Duration,
}

/// Where records go, and how many may be on their way.
#[derive(Debug, Clone, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub struct SinkConfig {
    /// Where records go. Kafka: the others are for trying walrelay out.
    pub kind: SinkKind,
    /// Bytes of keys, values and headers in flight: the bound on memory (P4). 16 MiB: 100 MiB/s
    /// times an ack of 150 ms. Over 8 partitions of a near broker, 8 to 32 MiB give the same
    /// throughput, and 32 MiB cost 14 MiB more memory.
    #[default(16 << 20)]
    #[serde(with = "Within::<Bytes, { 64 * KIB }, { 64 * GIB }>")]
    pub max_in_flight_bytes: usize,
    /// Events in flight. 100,000: as many as librdkafka takes.
    #[default(100_000)]
    #[serde(with = "Within::<Count, 1, 10_000_000>")]
    pub max_in_flight_events: usize,
}

/// The settings of the producer.
#[derive(Debug, Clone, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub struct KafkaConfig {
    /// `bootstrap.servers`. Required: no broker can be guessed.
    pub brokers: String,
    /// librdkafka properties, already checked against those that would break a promise. Read from
    /// [`KAFKA_PROPERTIES`].
    #[serde(skip)]
    pub properties: BTreeMap<String, Secret>,
    /// Names of the headers with an event's id. Errors name rows by them; the values of other
    /// headers are never shown.
    #[serde(skip)]
    pub id_headers: Vec<String>,
    /// Columns with the time of records, for errors about one.
    #[serde(skip)]
    pub timestamp_columns: Vec<String>,
    /// The cluster that this process delivers to, once it is known: no producer counts an ack of
    /// another one.
    #[serde(skip)]
    pub cluster_id: Option<String>,
}

/// The servers, and what this client says to them.
#[derive(Debug, Clone, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct NatsConfig {
    /// The servers, separated by commas. Required with that sink: no server can be guessed.
    pub servers: String,
    /// A file with the user's JWT and seed, as `nsc generate creds` writes it. None: a server may
    /// ask for nothing.
    pub credentials_file: String,
    /// A file with the seed of the user's nkey. None, as above.
    pub nkey_file: String,
    /// The user. None, as above.
    pub user: String,
    /// The user's password.
    #[serde(serialize_with = "text::no_default")]
    pub password: Option<Secret>,
    /// The file with the user's password. It is read at each connection.
    pub password_file: String,
    /// A token instead of user and password.
    #[serde(serialize_with = "text::no_default")]
    pub token: Option<Secret>,
    /// The authorities that may have signed the servers' certificates. Those of the system, as for
    /// other programs.
    pub ca_file: String,
    /// The only stream that may take the records. Any: the subjects name it.
    pub stream: String,
    /// The wait for an ack. Five seconds: longer than an election of a stream's leader.
    #[default(Duration::from_secs(5))]
    #[serde(with = "Lasting::<100, 300_000>")]
    pub ack_timeout: Duration,
    /// Records on their way. 256: as many keys at once, and more add delay and no rate.
    #[default(256)]
    #[serde(with = "Within::<Count, 1, 65_536>")]
    pub max_in_flight: usize,
}

impl NatsConfig {
    pub(crate) fn each_server(&self) -> impl Iterator<Item = &str> {
        servers::each(&self.servers)
    }
}

/// The servers, and what this client says to them.
#[derive(Debug, Clone, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct RabbitmqConfig {
    /// The servers, separated by commas, tried in turn. Required with that sink: no server can be
    /// guessed.
    pub servers: String,
    /// The virtual host. That of a new server.
    #[default("/")]
    pub vhost: String,
    /// The exchange. The default exchange: a topic is the name of a queue.
    pub exchange: String,
    /// The user. That of a new server, which lets it in from its own machine alone.
    #[default("guest")]
    pub user: String,
    /// The user's password. No default, but that of a new server for its own user.
    #[serde(serialize_with = "text::no_default")]
    pub password: Option<Secret>,
    /// The file with the user's password. It is read at each connection.
    pub password_file: String,
    /// The authorities that may have signed the servers' certificates. Those of the system, as for
    /// other programs.
    pub ca_file: String,
    /// The wait for an ack while the server takes records. Thirty seconds: longer than an election
    /// of a queue's leader.
    #[default(Duration::from_secs(30))]
    #[serde(with = "Lasting::<100, 300_000>")]
    pub ack_timeout: Duration,
    /// A server that says nothing for twice as long is dead. Ten seconds: a frozen server is
    /// noticed sooner than after the sixty that servers propose.
    #[default(Duration::from_secs(10))]
    #[serde(with = "Lasting::<SECOND_MS, HOUR_MS>")]
    pub heartbeat: Duration,
    /// Records on their way, each on a channel of its own. 64: more keys at once add little rate,
    /// and a server allows 2,047 channels for a connection.
    #[default(64)]
    #[serde(with = "Within::<Count, 1, 2_000>")]
    pub max_in_flight: usize,
}

impl RabbitmqConfig {
    pub(crate) fn each_server(&self) -> impl Iterator<Item = &str> {
        servers::each(&self.servers)
    }
}

/// The mail server, and what mails have in common.
#[derive(Debug, Clone, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct SmtpConfig {
    /// The server that takes mails for delivery. Required with that sink: no server can be guessed.
    pub host: String,
    /// Its port. Follows from `tls`: 587, 465 or 25.
    #[serde(deserialize_with = "port", serialize_with = "text::no_default")]
    pub port: Option<u16>,
    /// How the connection is encrypted. STARTTLS: submission servers offer it.
    pub tls: SmtpTls,
    /// The user. None: a server may know its clients by their addresses.
    pub user: String,
    /// The user's password.
    #[serde(serialize_with = "text::no_default")]
    pub password: Option<Secret>,
    /// The file with the user's password. It is read at each connection.
    pub password_file: String,
    /// The authorities that may have signed the server's certificate. Those of the system, as for
    /// other programs.
    pub ca_file: String,
    /// The author of each mail. None: the header `From` of each record says it.
    pub from: String,
    /// Where the server reports mails that it could not deliver later. The address of the author.
    pub envelope_from: String,
    /// The name that this client gives itself. Its address: that is always known.
    pub helo_name: String,
    /// What the value of a record is. The body: headers of the record are the fields.
    pub value: MailValue,
    /// The wait for each answer before the end of a mail, and for each block of it. Five minutes:
    /// RFC 5321 asks for as much.
    #[default(Duration::from_secs(300))]
    #[serde(with = "Lasting::<100, HOUR_MS>")]
    pub timeout: Duration,
    /// The wait for the answer to a whole mail. Ten minutes, as RFC 5321: a server that has taken a
    /// mail may be slow to say so, and an early end sends it twice.
    #[default(Duration::from_secs(600))]
    #[serde(with = "Lasting::<100, HOUR_MS>")]
    pub final_timeout: Duration,
    /// The wait before a mail is sent again whose recipient the server does not take now. Five
    /// minutes: greylisting takes as long.
    #[default(Duration::from_secs(300))]
    #[serde(with = "Lasting::<100, DAY_MS>")]
    pub recipient_wait: Duration,
    /// Connections, with one mail each. Eight: servers allow a client some tens.
    #[default(8)]
    #[serde(with = "Within::<Count, 1, 1_000>")]
    pub max_in_flight: usize,
}

impl SmtpConfig {
    #[cfg_attr(not(feature = "smtp"), expect(dead_code, reason = "of that sink"))]
    pub(crate) fn port(&self) -> u16 {
        self.port.unwrap_or(match self.tls {
            SmtpTls::Starttls => 587,
            SmtpTls::Implicit => 465,
            SmtpTls::Off => 25,
        })
    }
}

fn port<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    Within::<Count, 1, 65_535>::deserialize(from).map(Some)
}

choices! {
    pub enum SmtpTls {
        /// By the command STARTTLS; without it no mail is sent
        #[default]
        Starttls,
        /// From the first byte
        Implicit,
        /// Not at all
        Off,
    }

    pub enum MailValue {
        /// The text of a mail
        #[default]
        Body,
        /// A whole mail as RFC 5322 has it, with its fields
        Message,
    }
}

/// The receiver of webhooks.
#[derive(Debug, Clone, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub struct WebhookConfig {
    /// Where records are posted to. Required with that sink: no receiver can be guessed. Path and
    /// query may be secrets of the receiver's.
    #[serde(serialize_with = "text::no_default")]
    pub url: Option<Secret>,
    /// The secrets that requests are signed with, one in each line. No default: the receiver has to
    /// know them.
    #[serde(
        deserialize_with = "text::optional",
        serialize_with = "text::no_default"
    )]
    pub signing_secrets_file: Option<String>,
    /// The value of the header `Authorization`. No default: not each receiver asks for one.
    #[serde(
        deserialize_with = "text::optional",
        serialize_with = "text::no_default"
    )]
    pub authorization_file: Option<String>,
    /// The authorities that may have signed the receiver's certificate. No default: those of the
    /// system.
    #[serde(
        deserialize_with = "text::optional",
        serialize_with = "text::no_default"
    )]
    pub ca_file: Option<String>,
    /// From the request to the head of the answer. Twenty seconds: as Standard Webhooks recommends.
    #[default(Duration::from_secs(20))]
    #[serde(with = "Lasting::<100, HOUR_MS>")]
    pub timeout: Duration,
    /// Requests at one time. 32: as many connections, which most receivers take.
    #[default(32)]
    #[serde(with = "Within::<Count, 1, 10_000>")]
    pub max_in_flight: usize,
}

#[cfg(feature = "webhook")]
impl WebhookConfig {
    /// Scheme, host and port of the URL, which may be shown.
    pub(crate) fn origin(&self) -> Option<&str> {
        let url = self.url.as_ref()?.expose();
        let (scheme, rest) = url.split_once("://")?;
        let host = rest.split(['/', '?', '#']).next()?;
        url.get(..scheme.len() + "://".len() + host.len())
            .filter(|_| !host.contains('@'))
    }
}

#[derive(Debug, Clone, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub struct StateConfig {
    /// The store of the position. Kafka: it needs no right to write in the database.
    pub store: StoreKind,
    /// Topic of the Kafka store. One for all relays of a cluster; each has its own key.
    #[default("walrelay-state")]
    pub topic: String,
    /// Key in the store. Follows from the slot's name; two servers with slots of one name need two
    /// keys.
    pub key: String,
    /// Whether to accept the slot's position if it does not match the stored one. Only a flag sets
    /// this.
    #[serde(skip)]
    pub adopt_slot: bool,
}

choices! {
    pub enum StoreKind {
        /// In a compacted Kafka topic
        #[default]
        Kafka,
        /// In the table walrelay.position of the outbox's database
        Postgres,
        /// In the slot only: more duplicates after a crash of the server, and no check that slot
        /// and server belong together
        Slot,
    }
}

#[derive(Debug, Clone, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Http {
    /// Address of metrics and health. Off: walrelay opens no port by default.
    #[serde(deserialize_with = "text::address")]
    pub listen: Option<SocketAddr>,
    /// Not ready after this long with work and without an ack or a confirmed LSN. A minute: longer
    /// than a broker's election.
    #[default(Duration::from_secs(60))]
    #[serde(with = "Lasting::<SECOND_MS, DAY_MS>")]
    pub ready_within: Duration,
}

#[derive(Debug, Clone, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Otel {
    /// URL of a collector that takes OTLP/HTTP. Off: walrelay sends nothing by default.
    pub endpoint: String,
    /// Headers of each request, as `NAME=VALUE,NAME=VALUE`. None: a collector beside the relay asks
    /// for none.
    #[serde(serialize_with = "text::no_default")]
    pub headers: Option<Secret>,
    /// `service.name`. `walrelay`: the slot is an attribute of its own.
    pub service_name: String,
    /// The wait between two exports. Ten seconds: the queue of spans is short.
    #[default(Duration::from_secs(10))]
    #[serde(with = "Lasting::<SECOND_MS, { 60 * SECOND_MS }>")]
    pub interval: Duration,
}

#[derive(Debug, Clone, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Log {
    /// Form of log lines. Text: a system that collects logs can ask for JSON.
    pub format: LogFormat,
    /// The log filter. `info`: start, stop, faults and their end; nothing per event.
    #[default("info")]
    pub filter: String,
}

choices! {
    pub enum LogFormat {
        /// For people
        #[default]
        Text,
        /// One object per line
        Json,
    }
}

#[derive(Debug, Clone, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Shutdown {
    /// How long a stop waits for acks. Thirty seconds: longer than a broker's election.
    #[default(Duration::from_secs(30))]
    #[serde(with = "Lasting::<0, HOUR_MS>")]
    pub timeout: Duration,
}

/// A key of the file with one value.
#[derive(Debug)]
pub(crate) struct Key {
    /// The key with its tables: `slot.name`.
    pub path: String,
    /// Its flag without dashes, if it has one.
    pub flag: Option<&'static str>,
    /// Its default; `None` where it is required or follows from other settings.
    pub default: Option<String>,
}

const FLAGS: [(&str, &str); 18] = [
    ("database.url", "database-url"),
    ("slot.name", "slot"),
    ("slot.publication", "publication"),
    ("slot.mode", "mode"),
    ("slot.on_loss", "on-slot-loss"),
    ("slot.backlog", "backlog"),
    ("slot.max_retained_bytes", "max-retained-bytes"),
    ("slot.over_budget", "over-budget"),
    ("outbox.table", "table"),
    ("sink.kind", "sink"),
    ("kafka.brokers", "brokers"),
    ("delivery.on_error", "on-error"),
    ("delivery.guarantee", "guarantee"),
    ("state.store", "state-store"),
    ("http.listen", "http"),
    ("log.format", "log-format"),
    ("log.filter", "log"),
    ("shutdown.timeout", "shutdown-timeout"),
];

impl Key {
    /// The table and the name in it.
    pub(crate) fn parts(&self) -> (&str, &str) {
        self.path.rsplit_once('.').unwrap_or(("", &self.path))
    }

    /// The environment variable: the flag's name in capitals, or the key's where there is no flag.
    pub(crate) fn variable(&self) -> String {
        let name = self.flag.unwrap_or(&self.path);
        format!(
            "WALRELAY_{}",
            name.replace(['.', '-'], "_").to_ascii_uppercase()
        )
    }
}

pub(crate) fn how_to_set(path: &str) -> String {
    let Some(key) = KEYS.iter().find(|key| key.path == path) else {
        return path.to_owned();
    };
    let (table, name) = key.parts();
    let flag = key
        .flag
        .map(|flag| format!("--{flag}, "))
        .unwrap_or_default();
    format!(
        "{flag}{} or `{name}` in [{table}] of the configuration file",
        key.variable()
    )
}

/// Every key with one value, in the order of the structs.
pub(crate) static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let mut keys = Vec::new();
    // Of the formats with an order of keys, YAML has a value for none.
    if let Ok(yaml_serde::Value::Mapping(defaults)) = yaml_serde::to_value(Model::default()) {
        collect_keys("", defaults, &mut keys);
    }
    keys
});

fn collect_keys(table: &str, defaults: yaml_serde::Mapping, keys: &mut Vec<Key>) {
    for (name, value) in defaults {
        let name = name.as_str().unwrap_or_default();
        let path = if table.is_empty() {
            name.to_owned()
        } else {
            format!("{table}.{name}")
        };
        if let yaml_serde::Value::Mapping(defaults) = value {
            collect_keys(&path, defaults, keys);
            continue;
        }
        let flag = FLAGS
            .iter()
            .find(|(key, _)| *key == path)
            .map(|(_, flag)| *flag);
        let default = value
            .as_str()
            .filter(|default| !default.is_empty())
            .map(str::to_owned);
        keys.push(Key {
            path,
            flag,
            default,
        });
    }
}

pub(crate) fn tables() -> Vec<&'static str> {
    let mut tables: Vec<&str> = Vec::new();
    for key in KEYS.iter() {
        let (table, _) = key.parts();
        if !tables.contains(&table) {
            tables.push(table);
            tables.extend(
                [HEADERS, ENVELOPE, KAFKA_PROPERTIES]
                    .iter()
                    .filter(|below| below.starts_with(&format!("{table}."))),
            );
        }
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_named_after_the_flag_or_else_the_key() {
        for (path, variable) in [
            ("database.url", "WALRELAY_DATABASE_URL"),
            ("kafka.brokers", "WALRELAY_BROKERS"),
            ("state.store", "WALRELAY_STATE_STORE"),
            ("slot.max_message_bytes", "WALRELAY_SLOT_MAX_MESSAGE_BYTES"),
        ] {
            assert_eq!(
                KEYS.iter().find(|key| key.path == path).unwrap().variable(),
                variable
            );
        }
    }

    #[test]
    fn no_two_settings_share_a_key_or_a_variable() {
        let mut seen = std::collections::BTreeSet::new();
        for key in KEYS.iter() {
            assert!(seen.insert(key.path.clone()), "{} is there twice", key.path);
            assert!(
                seen.insert(key.variable()),
                "{} is there twice",
                key.variable()
            );
        }
        assert_eq!(seen.len(), 2 * 117);
        let ruled = text::RULES.iter().flat_map(|rule| rule.keys.split(' '));
        assert!(
            FLAGS
                .iter()
                .map(|(path, _)| *path)
                .chain(ruled)
                .all(|path| seen.contains(path)),
            "a rule of no key"
        );
    }

    #[test]
    fn the_manual_names_every_setting_with_its_variable_flag_and_default() {
        let manual = include_str!("../../docs/reference/configuration.md");
        for key in KEYS.iter() {
            let (_, name) = key.parts();
            let row = manual.lines().find(|line| {
                line.starts_with(&format!("| `{name}` |"))
                    && line.contains(&format!("`{}`", key.variable()))
            });
            let row = row.unwrap_or_else(|| {
                panic!(
                    "docs/reference/configuration.md has no row for {}",
                    key.path
                )
            });
            if let Some(flag) = key.flag {
                assert!(
                    row.contains(&format!("`--{flag}`")),
                    "the row of {} lacks its flag",
                    key.path
                );
            }
            if let Some(default) = &key.default {
                assert!(
                    row.contains(&format!("`{default}`")),
                    "the row of {} lacks its default",
                    key.path
                );
            }
        }
    }

    #[test]
    fn the_manual_names_no_setting_that_does_not_exist() {
        let manual = include_str!("../../docs/reference/configuration.md");
        for line in manual.lines().filter(|line| line.contains("| `WALRELAY_")) {
            let cells: Vec<&str> = line
                .split(" | ")
                .map(|cell| cell.trim_matches(['|', ' ', '`']))
                .collect();
            let is_there =
                |key: &Key| key.parts().1 == cells[0] && cells.contains(&key.variable().as_str());
            assert!(KEYS.iter().any(is_there), "no setting: {line}");
        }
    }
}
