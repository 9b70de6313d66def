//! The configuration file: a struct per table, a field per key.
//!
//! Each field documents its key and the reason for the default. A variable or a flag may also set a key. A test
//! compares `docs/reference/configuration.md` with these structs.

use std::sync::LazyLock;

use clap::ValueEnum;
use serde::de::IntoDeserializer;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::unit::{Bounded, Bytes, Count, GIB, KIB, MIB, Milliseconds};
use crate::secret::Secret;

const SECOND_MS: u64 = 1000;
const HOUR_MS: u64 = 3600 * SECOND_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// Table whose keys are names of headers, and whose values are templates.
pub(crate) const HEADERS: &str = "route.headers";
/// Table whose keys are the members of an envelope, and whose values are templates.
pub(crate) const ENVELOPE: &str = "format.envelope";
/// Table whose keys are librdkafka's.
pub(crate) const KAFKA_PROPERTIES: &str = "kafka.properties";

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Model {
    pub(super) database: Database,
    pub(super) slot: Slot,
    pub(super) poll: PollConfig,
    pub(super) outbox: Outbox,
    pub(super) route: Route,
    pub(super) format: Format,
    pub(super) sink: Sink,
    pub(super) kafka: Kafka,
    pub(super) delivery: Delivery,
    pub(super) state: StateConfig,
    pub(super) http: Http,
    pub(super) otel: Otel,
    pub(super) log: Log,
    pub(super) shutdown: Shutdown,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Database {
    /// The connection string. No default: without it the `PG*` variables apply, as for `psql`.
    #[serde(serialize_with = "unset")]
    pub(super) url: Option<Secret>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Slot {
    /// The slot. Required: two relays on one slot would disconnect each other, so there is no shared default.
    pub(super) name: String,
    /// The publication. Follows from the slot's name, because `setup` creates both.
    pub(super) publication: String,
    /// `wal_sender_timeout` of the relay's session. Ten seconds: a dead peer is noticed sooner than after Postgres'
    /// sixty.
    pub(super) wal_sender_timeout: Bounded<Milliseconds, { 10 * SECOND_MS }, SECOND_MS, HOUR_MS>,
    /// The largest message from the server. 64 MiB: sixty times a broker's limit, and one row still fits in memory.
    pub(super) max_message_bytes: Bounded<Bytes, { 64 * MIB }, { 64 * KIB }, GIB>,
    /// Where events come from. The slot: polling costs queries.
    pub(super) mode: Mode,
    /// The reaction to the loss of the slot. Recovery: the table still has the events.
    pub(super) on_loss: OnLoss,
    /// The existing rows that are published first. Follows: pending rows where `outbox.pending` is set, else all.
    pub(super) backlog: String,
    /// The greatest amount of WAL that the slot may retain. No bound: the server has its own, `max_slot_wal_keep_size`.
    #[serde(serialize_with = "unset")]
    pub(super) max_retained_bytes: Option<Bounded<Bytes, 0, MIB, { 64 * 1024 * GIB }>>,
    /// The reaction to a slot that retains more. The slot stays: dropping it costs a recovery from the table.
    pub(super) over_budget: OverBudget,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// From the replication slot
    #[default]
    Slot,
    /// From the table, by polling
    Poll,
    /// From the slot where there can be one, else from the table until there can
    Auto,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum OnLoss {
    /// Create it again, and read the unpublished rows from the table
    #[default]
    Recover,
    /// Stop
    Stop,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OverBudget {
    /// The slot stays, and the relay reports that it is not ready
    #[default]
    Unready,
    /// The slot is dropped, and rows are read from the table
    GiveUp,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct PollConfig {
    /// The wait between two reads while rows arrive. A fifth of a second: a short delay, for five small queries.
    pub interval: Bounded<Milliseconds, 200, 10, HOUR_MS>,
    /// The wait after some time without rows. Two seconds: an idle table costs next to nothing.
    pub idle_interval: Bounded<Milliseconds, { 2 * SECOND_MS }, 10, HOUR_MS>,
    /// The interval of checks for pending rows while streaming. Two seconds: an operator waits for a row set to
    /// pending.
    pub pending_interval: Bounded<Milliseconds, { 2 * SECOND_MS }, 100, HOUR_MS>,
}

/// `[outbox]`, and each `[[outbox]]` without its route and format.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Outbox {
    /// The table. `public.outbox`: the one `setup --create-table` creates.
    pub(super) table: String,
    /// Prefix of `pg_logical_emit_message`. None: rows of a table are events, messages are not.
    pub(super) message_prefix: String,
    /// SQL condition for unpublished rows. None: the table has no column for it.
    pub(super) pending: String,
    /// SQL expression for the order of rows. Follows: an identity or serial column, or an integer id.
    pub(super) order_by: String,
    /// Column with the time of the event. Follows: `created_at` and similar names.
    pub(super) time: String,
    /// SQL assignments for the row of an acked event. None: walrelay writes only to tables of its own.
    pub(super) mark: String,
    /// SQL assignments for the row of an event that was given up. None: required where rows show that they are pending.
    pub(super) mark_failed: String,
    /// SQL assignments for the row of a parked event after each attempt. None: the row stays pending.
    pub(super) mark_waiting: String,
    /// SQL condition for rows of events that were given up. None: such rows are not counted.
    pub(super) failed: String,
    /// Whether to delete the row of an acked event. Never: the table is the source of every recovery.
    pub(super) delete: Delete,
    /// How long published rows are kept. For ever: walrelay deletes nothing by default.
    #[serde(deserialize_with = "unless_empty", serialize_with = "unset")]
    pub(super) retention: Option<Bounded<Milliseconds, 0, SECOND_MS, { 3660 * DAY_MS }>>,
    /// Channel of `NOTIFY` for new rows. None: a poller reads at its interval.
    pub(super) notify: String,
    /// Columns for log lines about an event. None: a log has no value of a row but the id.
    pub(super) log_columns: String,
    pub(super) columns: Columns,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Delete {
    #[default]
    Never,
    Acked,
}

/// `[outbox.columns]`. The names are those of Debezium's Outbox Event Router, so that its tables work unchanged.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Columns {
    pub(super) id: String,
    /// Selects the topic.
    pub(super) aggregatetype: String,
    pub(super) aggregateid: String,
    pub(super) r#type: String,
    pub(super) payload: String,
    /// The greatest number of attempts for the event. None: it is the same for all events.
    pub(super) max_attempts: String,
    /// The W3C trace context of the event. None: it is in the record's header `traceparent`.
    pub(super) traceparent: String,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Route {
    /// Text before the aggregate type in the topic. That of the Outbox Event Router: consumers need not change.
    pub(super) topic_prefix: String,
    /// The topic as a template. Follows from the prefix and the column of the aggregate type.
    pub(super) topic: String,
    /// The key as a template. Follows from the column of the aggregate id: events of one aggregate keep their order.
    pub(super) key: String,
    /// Header with the event's id. That of the Outbox Event Router: consumers that drop duplicates need not change.
    pub(super) id_header: String,
    /// Header with the event's place in the WAL. On: it costs sixty bytes, and names the origin of a record.
    pub(super) position_header: String,
    /// A JSON object whose members become headers. None: headers are configured by name.
    pub(super) headers_from: String,
    /// The handling of a header whose value is NULL. Kept without a value, as the Outbox Event Router does.
    pub(super) null_headers: NullHeaders,
    /// Column with the partition. None: the key selects it.
    pub(super) partition: String,
    /// Column with the record's timestamp. None: the time of production, which consumers expect.
    pub(super) timestamp: String,
    #[serde(skip_serializing)]
    pub(super) headers: toml::Table,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum NullHeaders {
    #[default]
    Keep,
    Omit,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Format {
    /// The value as a template. Follows from the column of the payload.
    pub(super) value: String,
    /// Whether a NULL payload makes a tombstone of an envelope. Never: an envelope tells consumers more than its payload.
    pub(super) tombstone: Tombstone,
    #[serde(skip_serializing)]
    pub(super) envelope: toml::Table,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Tombstone {
    #[default]
    Never,
    NullPayload,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Sink {
    /// Where records go. Kafka: the others are for trying walrelay out.
    pub(super) kind: SinkKind,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SinkKind {
    /// To Kafka
    #[default]
    Kafka,
    /// To standard output, one JSON object per record
    Stdout,
    /// Nowhere
    Null,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Kafka {
    /// `bootstrap.servers`. Required: no broker can be guessed.
    pub(super) brokers: String,
    /// Bytes in flight. 32 MiB: 100 MiB/s times an ack of 300 ms, and less than the memory of a small container.
    pub(super) max_in_flight_bytes: Bounded<Bytes, { 32 * MIB }, { 64 * KIB }, { 64 * GIB }>,
    /// Events in flight. 100,000: librdkafka's own bound on its queue.
    pub(super) max_in_flight_events: Bounded<Count, 100_000, 1, 10_000_000>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Delivery {
    /// The reaction to an event that cannot be delivered. The relay stops: an operator decides what may be lost.
    pub(super) on_error: OnError,
    /// Topic of dead letters. One for all relays of a cluster: a dead letter names its relay.
    pub(super) dead_letter_topic: String,
    /// Retries of a topic that refuses records. Ten take a quarter of an hour: enough for an operator to grant a right.
    pub(super) retry_attempts: Bounded<Count, 10, 0, 1_000_000>,
    pub(super) retry_base: Bounded<Milliseconds, SECOND_MS, 100, HOUR_MS>,
    /// The factor from one wait to the next.
    pub(super) retry_factor: Bounded<Count, 2, 1, 10>,
    pub(super) retry_cap: Bounded<Milliseconds, { 300 * SECOND_MS }, SECOND_MS, DAY_MS>,
    /// How much a wait is shortened at random, so that events that failed together are not retried together.
    pub(super) retry_jitter_percent: Bounded<Count, 20, 0, 100>,
    /// Whether the relay reads the tails of topics at start. At start: it avoids nearly all duplicates after a crash.
    pub(super) read_tails: ReadTails,
    /// How often an event is delivered. At least once: consumers need no transactions, and no event waits for a commit.
    pub(super) guarantee: Guarantee,
    /// Start of the transactional id. `walrelay-`: the owner is visible in lists, and one ACL covers all relays.
    pub(super) transactional_id_prefix: String,
    /// Events per Kafka transaction. Ten thousand: more do not lower the cost of a commit per event noticeably.
    pub(super) transaction_max_events: Bounded<Count, 10_000, 1, 1_000_000>,
    /// How long an event waits for others in its transaction. A tenth of a second: many events share the cost of a commit.
    pub(super) transaction_interval: Bounded<Milliseconds, 100, 1, { 300 * SECOND_MS }>,
    /// How long a transaction may be open. Fifteen seconds: longer than a broker's election. Consumers wait as long at
    /// most.
    pub(super) transaction_timeout: Bounded<Milliseconds, { 15 * SECOND_MS }, { 3 * SECOND_MS }, { 900 * SECOND_MS }>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ReadTails {
    #[default]
    AtStart,
    Never,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum OnError {
    /// Stop before the event
    #[default]
    Stop,
    /// Park the event and later ones of its aggregate, and continue
    Park,
    /// Write the event to the dead-letter topic, and continue
    DeadLetter,
    /// Give the event up with a line in the log, and continue
    Skip,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Guarantee {
    /// Each event, and some twice after a crash
    #[default]
    AtLeastOnce,
    /// Each event once, in Kafka transactions, for consumers that read only committed records
    ExactlyOnce,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct StateConfig {
    /// The store of the position. Kafka: it needs no right to write in the database.
    pub store: StoreKind,
    /// Topic of the Kafka store. One for all relays of a cluster; each has its own key.
    pub topic: String,
    /// Key in the store. Follows from the slot's name; two servers with slots of one name need two keys.
    pub key: String,
    /// Whether to accept the slot's position if it does not match the stored one. Only a flag sets this.
    #[serde(skip)]
    pub adopt_slot: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum StoreKind {
    /// In a compacted Kafka topic
    #[default]
    Kafka,
    /// In the table walrelay.position of the outbox's database
    Postgres,
    /// In the slot only: more duplicates after a crash of the server, and no check that slot and server belong together
    Slot,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Http {
    /// Address of metrics and health. Off: walrelay opens no port by default.
    pub(super) listen: String,
    /// Not ready after this long without progress. A minute: longer than a broker's election.
    pub(super) ready_within: Bounded<Milliseconds, { 60 * SECOND_MS }, SECOND_MS, DAY_MS>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Otel {
    /// URL of a collector that takes OTLP/HTTP. Off: walrelay sends nothing by default.
    pub(super) endpoint: String,
    /// Headers of each request, as `NAME=VALUE,NAME=VALUE`. None: a collector beside the relay asks for none.
    #[serde(serialize_with = "unset")]
    pub(super) headers: Option<Secret>,
    /// `service.name`. `walrelay`: the slot is an attribute of its own.
    pub(super) service_name: String,
    /// The wait between two exports. Ten seconds: alerts have metrics of the last minute, and the queue of spans is short.
    pub(super) interval: Bounded<Milliseconds, { 10 * SECOND_MS }, SECOND_MS, { 60 * SECOND_MS }>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Log {
    /// Form of log lines. Text: a system that collects logs can ask for JSON.
    pub(super) format: LogFormat,
    /// The log filter. `info`: start, stop, faults and their end; nothing per event.
    pub(super) filter: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One object per line
    Json,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Shutdown {
    /// How long a stop waits for acks. Thirty seconds: longer than a broker's election.
    pub(super) timeout: Bounded<Milliseconds, { 30 * SECOND_MS }, 0, HOUR_MS>,
}

/// Writes empty text: only defaults are ever written, and this key has none.
fn unset<T, S: Serializer>(_: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str("")
}

/// Reads empty text as `None`, so that an `[[outbox]]` can unset a value that the others have.
fn unless_empty<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Ok(None);
    }
    T::deserialize(text.into_deserializer()).map(Some)
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

/// The defaults that are texts. All other types have a default of their own.
const TEXTS: [(&str, &str); 13] = [
    ("outbox.table", "public.outbox"),
    ("outbox.columns.id", "id"),
    ("outbox.columns.aggregatetype", "aggregatetype"),
    ("outbox.columns.aggregateid", "aggregateid"),
    ("outbox.columns.type", "type"),
    ("outbox.columns.payload", "payload"),
    ("route.topic_prefix", "outbox.event."),
    ("route.id_header", "id"),
    ("route.position_header", "walrelay-position"),
    ("delivery.dead_letter_topic", "walrelay-dead-letters"),
    ("delivery.transactional_id_prefix", "walrelay-"),
    ("state.topic", "walrelay-state"),
    ("log.filter", "info"),
];

impl Key {
    /// The table and the name in it.
    pub(crate) fn parts(&self) -> (&str, &str) {
        self.path.rsplit_once('.').unwrap_or(("", &self.path))
    }

    /// The environment variable: the flag's name in capitals, or the key's where there is no flag.
    pub(crate) fn variable(&self) -> String {
        let name = self.flag.unwrap_or(&self.path);
        format!("WALRELAY_{}", name.replace(['.', '-'], "_").to_ascii_uppercase())
    }
}

pub(super) fn how_to_set(path: &str) -> String {
    let Some(key) = KEYS.iter().find(|key| key.path == path) else { return path.to_owned() };
    let (table, name) = key.parts();
    let flag = key.flag.map(|flag| format!("--{flag}, ")).unwrap_or_default();
    format!("{flag}{} or `{name}` in [{table}] of the configuration file", key.variable())
}

/// Every key with one value, in the order of the structs.
pub(crate) static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let mut keys = Vec::new();
    if let Ok(defaults) = toml::Table::try_from(Model::default()) {
        collect_keys("", defaults, &mut keys);
    }
    keys
});

fn collect_keys(table: &str, defaults: toml::Table, keys: &mut Vec<Key>) {
    for (name, value) in defaults {
        let path = if table.is_empty() { name } else { format!("{table}.{name}") };
        if let toml::Value::Table(defaults) = value {
            collect_keys(&path, defaults, keys);
            continue;
        }
        let of = |list: &[(&'static str, &'static str)]| list.iter().find(|(key, _)| *key == path).map(|(_, of)| *of);
        let (flag, default) = (of(&FLAGS), of(&TEXTS).or(value.as_str()));
        let default = default.filter(|default| !default.is_empty()).map(str::to_owned);
        keys.push(Key { path, flag, default });
    }
}

pub(super) fn tables() -> Vec<&'static str> {
    let mut tables: Vec<&str> = Vec::new();
    for key in KEYS.iter() {
        let (table, _) = key.parts();
        if !tables.contains(&table) {
            tables.push(table);
            tables.extend(
                [HEADERS, ENVELOPE, KAFKA_PROPERTIES].iter().filter(|below| below.starts_with(&format!("{table}."))),
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
            assert_eq!(KEYS.iter().find(|key| key.path == path).unwrap().variable(), variable);
        }
    }

    #[test]
    fn no_two_settings_share_a_key_or_a_variable() {
        let mut seen = std::collections::BTreeSet::new();
        for key in KEYS.iter() {
            assert!(seen.insert(key.path.clone()), "{} is there twice", key.path);
            assert!(seen.insert(key.variable()), "{} is there twice", key.variable());
        }
        assert_eq!(seen.len(), 2 * 73);
        assert!(FLAGS.iter().chain(&TEXTS).all(|(path, _)| seen.contains(*path)), "a flag or a default of no key");
    }

    #[test]
    fn the_manual_names_every_setting_with_its_variable_flag_and_default() {
        let manual = include_str!("../../docs/reference/configuration.md");
        for key in KEYS.iter() {
            let (_, name) = key.parts();
            let row = manual.lines().find(|line| {
                line.starts_with(&format!("| `{name}` |")) && line.contains(&format!("`{}`", key.variable()))
            });
            let row = row.unwrap_or_else(|| panic!("docs/reference/configuration.md has no row for {}", key.path));
            if let Some(flag) = key.flag {
                assert!(row.contains(&format!("`--{flag}`")), "the row of {} lacks its flag", key.path);
            }
            if let Some(default) = &key.default {
                assert!(row.contains(&format!("`{default}`")), "the row of {} lacks its default", key.path);
            }
        }
    }

    #[test]
    fn the_manual_names_no_setting_that_does_not_exist() {
        let manual = include_str!("../../docs/reference/configuration.md");
        for line in manual.lines().filter(|line| line.contains("| `WALRELAY_")) {
            let cells: Vec<&str> = line.split(" | ").map(|cell| cell.trim_matches(['|', ' ', '`'])).collect();
            let is_there = |key: &Key| key.parts().1 == cells[0] && cells.contains(&key.variable().as_str());
            assert!(KEYS.iter().any(is_there), "no setting: {line}");
        }
    }
}
