//! The configuration that `walrelay run` uses: checked, in types that hold only values that make sense.
//!
//! | module | contents |
//! |---|---|
//! | `model` | every key of the configuration file, its default and the reason for it |
//! | [`mod@file`] | the file and the values over it, read into the model; the origin of each value |
//! | [`layers`] | flag over environment over file over default, and from the model to a [`Config`] |
//! | `outbox` | the same for one outbox |
//! | `written` | configuration files that walrelay writes |
//! | `name`, `unit` | the types of values |

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

pub mod file;
pub mod layers;
pub(crate) mod model;
pub(crate) mod name;
pub(crate) mod outbox;
pub(crate) mod unit;
pub(crate) mod written;

pub(crate) use model::{
    Guarantee, LogFormat, Mode, OnError, OnLoss, OverBudget, PollConfig, SinkKind, StateConfig, StoreKind,
};
pub(crate) use name::{SlotName, TableName, is_topic};

use crate::conninfo::ConnInfo;
use crate::secret::Secret;
use crate::template::Template;

/// Everything `walrelay run` needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the outboxes are.
    pub source: SourceConfig,
    /// Which of what the slot streams is an event, and where it goes. At least one; no two take the same events.
    pub outboxes: Vec<OutboxConfig>,
    /// Where records go.
    pub sink: SinkKind,
    /// How they get there.
    pub kafka: KafkaConfig,
    /// What becomes of those that cannot.
    pub delivery: DeliveryConfig,
    /// Where the position is kept.
    pub state: StateConfig,
    /// How the process behaves.
    pub process: ProcessConfig,
}

/// The server, the slot and the publication.
#[derive(Debug, Clone)]
pub struct SourceConfig {
    /// How to reach the server, for SQL and for replication alike.
    pub database: ConnInfo,
    /// The replication slot.
    pub slot: SlotName,
    /// The publication the slot streams. Default: `walrelay_SLOT`, the one `walrelay setup` creates.
    pub publication: String,
    /// `wal_sender_timeout` for our own session. The relay reports three times as often and declares the server
    /// dead after this much silence.
    pub wal_sender_timeout: Duration,
    /// Whether messages of `pg_logical_emit_message` are wanted. Without it the server sends none.
    pub messages: bool,
    /// Upper bound on one message from the server; a larger row stops the relay with its LSN.
    pub max_message_bytes: usize,
    /// Whether rows come from the slot or are read from the table.
    pub mode: Mode,
    /// What becomes of events whose slot is gone.
    pub on_loss: OnLoss,
    /// What of the rows that are there first is published; `None`: those pending where that is configured, else all.
    pub backlog: Option<Backlog>,
    /// How much log the slot may keep.
    pub max_retained_bytes: Option<u64>,
    /// Whether a slot that keeps more is given up.
    pub give_up_over_budget: bool,
    /// How often the table is looked at.
    pub poll: PollConfig,
}

#[cfg(test)]
impl SourceConfig {
    /// The defaults, with these.
    pub(crate) fn sample(database: ConnInfo, slot: &str, publication: &str, max_message_bytes: usize) -> Self {
        SourceConfig {
            database,
            slot: slot.parse().unwrap(),
            publication: publication.to_owned(),
            wal_sender_timeout: Duration::from_secs(10),
            messages: false,
            max_message_bytes,
            mode: Mode::Slot,
            on_loss: OnLoss::Recover,
            backlog: None,
            max_retained_bytes: None,
            give_up_over_budget: false,
            poll: PollConfig::default(),
        }
    }
}

/// Which of the rows that are there first are published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backlog {
    /// All.
    All,
    /// None.
    None,
    /// Those that are pending.
    Pending,
    /// Those whose time is this or later: a timestamp as SQL reads it.
    Since(String),
}

/// What a column is called that every message has: where it stands in the log, `16/B374D848`. No two have the same.
pub const MESSAGE_LSN: &str = "message_lsn";
/// What a column is called that every message has: its prefix.
pub const MESSAGE_PREFIX: &str = "message_prefix";
/// What a column is called that every message has: its content, whatever it is.
pub const MESSAGE_CONTENT: &str = "message_content";

/// Where events are from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventSource {
    /// Rows that are inserted into this table.
    Table(TableName),
    /// Messages of `pg_logical_emit_message(true, prefix, content)` with this prefix.
    Messages(String),
}

impl EventSource {
    /// The table, if it is one.
    pub fn table(&self) -> Option<&TableName> {
        match self {
            EventSource::Table(table) => Some(table),
            EventSource::Messages(_) => None,
        }
    }

    /// The prefix of the messages, if it is messages.
    pub fn prefix(&self) -> Option<&String> {
        match self {
            EventSource::Table(_) => None,
            EventSource::Messages(prefix) => Some(prefix),
        }
    }
}

impl fmt::Display for EventSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EventSource::Table(table) => write!(f, "{table}"),
            EventSource::Messages(prefix) => write!(f, "messages with prefix {prefix:?}"),
        }
    }
}

/// One source of events, its columns, by the names of Debezium's Outbox Event Router unless told otherwise, and what
/// becomes of an event.
#[derive(Debug, Clone)]
pub struct OutboxConfig {
    /// The table, or the messages.
    pub source: EventSource,
    /// Column with the event's id.
    pub id: String,
    /// Column that selects the topic, unless the route says otherwise.
    pub aggregate_type: String,
    /// Column with the record's key, unless the route says otherwise.
    pub aggregate_id: String,
    /// Column with the event's type.
    pub event_type: String,
    /// Column with the record's value.
    pub payload: String,
    /// Column with how often the event is tried in all; NULL and none: as often as all others.
    pub max_attempts: Option<String>,
    /// Every column that is needed, each once. A column's index is its *place*; place 0 is the id's. Those of the row key
    /// alone come last.
    pub columns: Vec<String>,
    /// What names exactly one row of the table; none where nothing does, or nobody looked.
    pub row_key: Option<RowKey>,
    /// How the table itself is read and kept.
    pub upkeep: Upkeep,
    /// Where events go.
    pub route: RouteConfig,
}

/// What names one row of a table and the event it is: the event's id, the columns of a unique index, and the transaction that
/// wrote the row, where a column has it.
///
/// The id and the transaction are among them also where the index would do: a row whose key was used again is another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowKey {
    /// Places of the id and of the index' columns, the id's first.
    pub places: Vec<usize>,
    /// Place of the column with the transaction.
    pub transaction: Option<usize>,
    /// How many of the outbox's columns are there for this alone.
    pub added: usize,
}

/// How an outbox table itself is read and kept. SQL is the operator's own, and put into statements as it stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Upkeep {
    /// SQL condition: which rows were not published yet.
    pub pending: Option<String>,
    /// SQL expressions as in `ORDER BY`: the order of events of one aggregate.
    pub order_by: Option<String>,
    /// Column with the event's time.
    pub time: Option<String>,
    /// SQL assignments as in `UPDATE … SET`, once a row was acked.
    pub mark: Option<String>,
    /// SQL assignments for a row whose event was given up; `:error`, `:class` and `:attempts` are put in.
    pub mark_failed: Option<String>,
    /// SQL assignments for a row whose event was tried and waits; `:next_attempt_at` is put in, too.
    pub mark_waiting: Option<String>,
    /// Whether a row is deleted once it was acked.
    pub delete: bool,
    /// How long published rows are kept.
    pub retention: Option<Duration>,
    /// Channel that says there are new rows.
    pub notify: Option<String>,
}

impl Upkeep {
    /// Whether something is done to a row once it was acked.
    pub fn writes(&self) -> bool {
        self.delete || self.mark.is_some()
    }

    /// Whether the table itself tells which of its rows were not published.
    pub fn says_for_itself(&self) -> bool {
        self.pending.is_some() || self.delete
    }

    /// Whether anything is ever done to a row.
    pub fn writes_any(&self) -> bool {
        self.writes() || self.mark_failed.is_some() || self.mark_waiting.is_some()
    }
}

impl OutboxConfig {
    /// The place of a column, if it is needed.
    pub fn place(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|known| known == column)
    }

    /// This column is needed too.
    pub fn need(&mut self, column: &str) {
        if self.place(column).is_none() {
            self.columns.push(column.to_owned());
        }
    }

    /// Rows are named by these columns, of a unique index, the id, and the column with their transaction, if there is one.
    pub fn name_rows_by(&mut self, index: &[String], transaction: Option<&str>) {
        self.columns.truncate(self.routed_columns().len());
        let (routed, mut places) = (self.columns.len(), vec![0]);
        for column in index {
            self.need(column);
            places.extend(self.place(column).filter(|place| *place > 0));
        }
        let transaction = transaction.and_then(|column| {
            self.need(column);
            self.place(column)
        });
        self.row_key = Some(RowKey { places, transaction, added: self.columns.len() - routed });
    }

    /// The columns that the id and the route need.
    pub fn routed_columns(&self) -> &[String] {
        let added = self.row_key.as_ref().map_or(0, |key| key.added);
        self.columns.get(..self.columns.len().saturating_sub(added)).unwrap_or_default()
    }

    /// The columns that name a row, the id first and its transaction last: the id alone where there is no row key.
    pub fn key_columns(&self) -> impl Iterator<Item = &String> {
        self.index_columns().chain(self.transaction_column())
    }

    /// Those without the transaction.
    pub fn index_columns(&self) -> impl Iterator<Item = &String> {
        self.key_places().iter().filter_map(|place| self.columns.get(*place))
    }

    /// Their places.
    pub fn key_places(&self) -> &[usize] {
        self.row_key.as_ref().map_or(&[0], |key| &key.places)
    }

    /// The column with the transaction that wrote a row, where it is part of the row key.
    pub fn transaction_column(&self) -> Option<&String> {
        self.columns.get(self.row_key.as_ref()?.transaction?)
    }

    /// The columns that the id and the route need are those that are needed.
    pub fn need_only_routed(&mut self) {
        self.row_key = None;
        self.columns = vec![self.id.clone()];
        let route = &self.route;
        let templates = [Some(&route.topic), route.key.as_ref(), route.headers_from.as_ref()].into_iter().flatten();
        let headers = route.headers.iter().map(|(_, template)| template);
        let columns = templates.chain(headers).flat_map(Template::columns).map(str::to_owned);
        let columns = columns.chain(route.partition.clone()).chain(route.timestamp.clone());
        let columns = columns.chain(self.max_attempts.clone());
        for column in columns.chain(route.value.columns().into_iter().map(str::to_owned)).collect::<Vec<_>>() {
            self.need(&column);
        }
    }
}

/// How an event becomes a record.
#[derive(Debug, Clone)]
pub struct RouteConfig {
    /// The topic: `outbox.event.{aggregatetype}` by default.
    pub topic: Template,
    /// The key: `{aggregateid}` by default. `None`: no record has one, and no order is kept.
    pub key: Option<Template>,
    /// Name of the header that carries the event's id: `id` by default. `None`: there is none.
    pub id_header: Option<String>,
    /// Name of the header that carries where the event is from: `walrelay-position` by default. `None`: there is none.
    pub position_header: Option<String>,
    /// Column with the partition; NULL leaves it to the key.
    pub partition: Option<String>,
    /// Column with the record's timestamp; NULL is when it is produced.
    pub timestamp: Option<String>,
    /// Further headers, in this order. No name holds NUL.
    pub headers: Vec<(String, Template)>,
    /// A JSON object whose members become headers behind those, unless one of that name is there.
    pub headers_from: Option<Template>,
    /// Whether a header whose value is NULL is left out.
    pub omit_null_headers: bool,
    /// The record's value.
    pub value: ValueConfig,
    /// Topics no event may go to: walrelay's own, for its position and for dead letters.
    pub reserved_topics: Vec<String>,
}

/// What a record's value is made of.
#[derive(Debug, Clone)]
pub enum ValueConfig {
    /// One template, `{payload}` by default; NULL is a tombstone.
    Template(Template),
    /// A JSON object with these members, in this order.
    Envelope {
        /// Names and templates.
        members: Vec<(String, Template)>,
        /// The column that, where it is NULL, makes the record a tombstone.
        tombstone: Option<String>,
    },
}

impl ValueConfig {
    /// The columns it needs.
    pub fn columns(&self) -> Vec<&str> {
        match self {
            ValueConfig::Template(template) => template.columns().collect(),
            ValueConfig::Envelope { members, tombstone } => {
                let members = members.iter().flat_map(|(_, template)| template.columns());
                members.chain(tombstone.as_deref()).collect()
            }
        }
    }
}

/// How much of the time a transaction may be open it may be filled for. The rest is for acks and the commit.
const FILLING: u32 = 3;

/// What becomes of events that cannot be delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryConfig {
    /// What follows where one cannot.
    pub on_error: OnError,
    /// The topic of dead letters.
    pub dead_letter_topic: String,
    /// How often, and when, what an operator can heal is tried again.
    pub retry: RetryConfig,
    /// Whether topics are read at start for what was published before a crash.
    pub reads_tails: bool,
    /// How events are committed, where they are to arrive exactly once.
    pub transactions: Option<TransactionConfig>,
}

/// When what an operator can heal is tried again, before it counts as for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryConfig {
    /// Tries after the first.
    pub attempts: u32,
    /// Wait before the first of them.
    pub base: Duration,
    /// By how much each wait is longer than the one before.
    pub factor: u32,
    /// No wait is longer.
    pub cap: Duration,
    /// By how much a wait may be shorter by chance, in percent of it.
    pub jitter_percent: u32,
}

impl RetryConfig {
    /// The same for an event that may be tried `max_attempts` times in all, if it says so; once it is tried whatever it says.
    #[must_use]
    pub fn within(self, max_attempts: Option<u32>) -> RetryConfig {
        RetryConfig { attempts: max_attempts.map_or(self.attempts, |max| max.saturating_sub(1)), ..self }
    }

    /// How long to wait after so many tries have failed, the first of all among them; none where that was the last.
    /// `chance` is below 1.
    pub fn wait(&self, failed: u32, chance: f64) -> Option<Duration> {
        if failed > self.attempts {
            return None;
        }
        let longer = self.factor.checked_pow(failed.saturating_sub(1)).unwrap_or(u32::MAX);
        let wait = self.base.checked_mul(longer).unwrap_or(self.cap).min(self.cap);
        Some(wait.mul_f64(1.0 - chance * f64::from(self.jitter_percent.min(100)) / 100.0))
    }
}

/// How often an event may be tried, by the text of its column; none where that is no whole number.
pub fn max_attempts(text: &[u8]) -> Option<u32> {
    let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some(u32::try_from(number.max(0)).unwrap_or(u32::MAX))
}

impl Default for DeliveryConfig {
    fn default() -> Self {
        DeliveryConfig::from(&model::Delivery::default())
    }
}

impl From<&model::Delivery> for DeliveryConfig {
    /// Delivery without transactions.
    fn from(model: &model::Delivery) -> Self {
        DeliveryConfig {
            on_error: model.on_error,
            dead_letter_topic: model.dead_letter_topic.clone(),
            retry: RetryConfig {
                attempts: model.retry_attempts.number(u32::MAX),
                base: model.retry_base.duration(),
                factor: model.retry_factor.number(u32::MAX),
                cap: model.retry_cap.duration(),
                jitter_percent: model.retry_jitter_percent.number(100),
            },
            reads_tails: model.read_tails == model::ReadTails::AtStart,
            transactions: None,
        }
    }
}

/// Where events and the position behind them are committed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionConfig {
    /// What the transactional id begins with. The server's system identifier and the slot follow.
    pub id_prefix: String,
    /// Events of one Kafka transaction.
    pub max_events: u64,
    /// How long events may wait for others that are committed with them.
    pub interval: Duration,
    /// How long the broker lets one be open: what readers wait for at most where a relay is gone and none takes over.
    pub timeout: Duration,
}

impl TransactionConfig {
    /// How long one may be filled at most, whatever comes.
    pub fn filling_max(&self) -> Duration {
        self.timeout / FILLING
    }

    /// The transactional id of the relays of this slot.
    pub fn transactional_id(&self, system_identifier: &str, slot: &str) -> String {
        format!("{}{system_identifier}-{slot}", self.id_prefix)
    }
}

/// The producer.
#[derive(Debug, Clone)]
pub struct KafkaConfig {
    /// `bootstrap.servers`.
    pub brokers: String,
    /// librdkafka properties as given, already checked against those that would break a promise.
    pub properties: BTreeMap<String, Secret>,
    /// Names of headers whose value is an event's id: what an error may name a row by. Other headers are never shown.
    pub id_headers: Vec<String>,
    /// Bytes of payload and key that may be in flight: the bound on memory (P4).
    pub max_in_flight_bytes: usize,
    /// Events that may be in flight.
    pub max_in_flight_events: usize,
}

/// Logs, HTTP and stopping.
#[derive(Debug, Clone)]
pub struct ProcessConfig {
    /// Where metrics and health are served, if anywhere.
    pub http: Option<SocketAddr>,
    /// How long a stop waits for acks.
    pub shutdown_timeout: Duration,
    /// Not ready when nothing was acked or confirmed for this long while there was something to do.
    pub ready_within: Duration,
    /// Log as JSON instead of text.
    pub log_json: bool,
    /// What to log, in `tracing`'s filter syntax.
    pub log_filter: String,
}

impl Default for OutboxConfig {
    /// The table and columns of Debezium's Outbox Event Router, so that its tables work as they are.
    fn default() -> Self {
        let columns = model::Columns::default();
        let mut outbox = OutboxConfig {
            source: EventSource::Table(TableName::debezium()),
            id: columns.id,
            aggregate_type: columns.aggregatetype,
            aggregate_id: columns.aggregateid,
            event_type: columns.r#type,
            payload: columns.payload,
            max_attempts: None,
            columns: Vec::new(),
            row_key: None,
            upkeep: Upkeep::default(),
            route: RouteConfig::default(),
        };
        outbox.need_only_routed();
        outbox
    }
}

impl Default for RouteConfig {
    /// The topics, keys and the header of Debezium's Outbox Event Router, so that its consumers work as they are.
    fn default() -> Self {
        let (columns, route) = (model::Columns::default(), model::Route::default());
        RouteConfig {
            topic: Template::prefixed(&route.topic_prefix, &columns.aggregatetype),
            key: Some(Template::column(&columns.aggregateid)),
            id_header: Some(route.id_header),
            position_header: Some(route.position_header),
            partition: None,
            timestamp: None,
            headers: Vec::new(),
            headers_from: None,
            omit_null_headers: false,
            value: ValueConfig::Template(Template::column(&columns.payload)),
            reserved_topics: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::layers::Settings;
    use crate::error::{Error, Kind, Result};

    fn config(lines: &str) -> Result<Config> {
        Settings::with_least(lines)?.config(false)
    }

    fn refused(lines: &str) -> Error {
        config(lines).unwrap_err()
    }

    #[test]
    fn waits_and_topics_that_contradict_each_other_are_refused_with_both() {
        for (lines, cause, remedy) in [
            (
                "delivery.retry_base = '10s'\ndelivery.retry_cap = '5s'",
                "w.toml:4: delivery.retry_base is 10s, and delivery.retry_cap, the longest wait, is 5s (w.toml:5)",
                "set delivery.retry_base to 5s or less, or raise delivery.retry_cap",
            ),
            (
                "route.topic = 'walrelay-dead-letters'",
                "events of public.outbox would go to topic walrelay-dead-letters, which is walrelay's own, for dead letters \
                 (delivery.dead_letter_topic)",
                "set route.topic to another one",
            ),
            (
                "state.store = 'postgres'\nstate.topic = 'all'\nroute.topic = 'all'",
                "events of public.outbox would go to topic all, which is walrelay's own, for its position (state.topic)",
                "set route.topic to another one",
            ),
            (
                "delivery.on_error = 'dead-letter'\ndelivery.dead_letter_topic = 'walrelay-state'",
                "topic walrelay-state is that of the position, and cannot have dead letters",
                "give delivery.dead_letter_topic another name",
            ),
        ] {
            let error = refused(lines);
            assert_eq!(
                (error.kind(), error.cause(), error.what_to_do().as_deref()),
                (Kind::Config, cause, Some(remedy)),
                "{lines}"
            );
        }
    }

    #[test]
    fn headers_with_walrelays_own_names_are_refused() {
        for (lines, cause) in [
            ("[route.headers]\nWalRelay-replay = 'x'", "w.toml:5: route.headers has \"WalRelay-replay\""),
            ("route.id_header = 'walrelay-row-id'", "w.toml:4: route.id_header has \"walrelay-row-id\""),
            ("route.position_header = 'walrelay-settled'", "w.toml:4: route.position_header has \"walrelay-settled\""),
            ("[[outbox]]\ntable = 'a'\nroute.headers.walrelay-x = '1'", "w.toml:6: route.headers has \"walrelay-x\""),
        ] {
            let error = refused(lines);
            assert!(error.cause().starts_with(cause) && error.what_to_do().is_some(), "{lines}: {error}");
        }
    }

    #[test]
    fn a_row_says_how_often_it_is_tried_in_all_and_once_at_least() {
        let retry = DeliveryConfig::default().retry;
        for (text, tries) in [("3", 2), ("1", 0), ("0", 0), ("-7", 0), ("99999999999", u32::MAX - 1)] {
            assert_eq!(retry.within(max_attempts(text.as_bytes())).attempts, tries, "{text}");
        }
        for text in ["", "three", "2.5", "3 ", "99999999999999999999"] {
            assert_eq!(max_attempts(text.as_bytes()), None, "{text}");
        }
        assert_eq!(max_attempts(b"\xff"), None);
        assert_eq!(retry.within(None), retry);
    }

    #[test]
    fn exactly_once_is_asked_for_and_says_who_it_is() {
        assert_eq!(config("").unwrap().delivery.transactions, None);
        let transactions = config("delivery.guarantee = 'exactly-once'").unwrap().delivery.transactions.unwrap();
        assert_eq!(transactions.transactional_id("7300", "orders"), "walrelay-7300-orders");
        assert_eq!(transactions.timeout, Duration::from_secs(15));
    }

    #[test]
    fn what_cannot_be_committed_together_is_refused_with_what_to_do() {
        for (line, what) in [
            ("delivery.guarantee = 'twice'", "delivery.guarantee cannot be"),
            (
                "delivery.guarantee = 'exactly-once'\nstate.store = 'postgres'",
                "needs the position where the events are",
            ),
            ("delivery.guarantee = 'exactly-once'\nsink.kind = 'null'", "is done by Kafka's transactions"),
            ("delivery.guarantee = 'exactly-once'\nstate.store = 'slot'", "needs the position where the events are"),
            (
                "delivery.guarantee = 'exactly-once'\ndelivery.on_error = 'park'",
                "would be parked in Postgres beside it",
            ),
            ("delivery.guarantee = 'exactly-once'\noutbox.delete = 'acked'", "would be marked or deleted beside it"),
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
                "delivery.guarantee = 'exactly-once'\n[kafka.properties]\nsocket.timeout.ms = '60000'",
                "socket.timeout.ms is longer",
            ),
            (
                "delivery.guarantee = 'exactly-once'\ndelivery.transactional_id_prefix = 'a b'",
                "delivery.transactional_id_prefix cannot be",
            ),
        ] {
            let error = config(line).unwrap_err();
            assert!(error.kind() == Kind::Config && error.cause().contains(what), "{line}: {error}");
            assert!(error.what_to_do().is_some_and(|todo| !todo.is_empty()), "{line}: nothing to do");
        }
    }
}
