//! One outbox: `[outbox]`, `[route]` and `[format]` of the configuration file, and the
//! [`OutboxConfig`] that follows from them.

use std::fmt;
use std::time::Duration;

use serde::de::IntoDeserializer;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smart_default::SmartDefault;

use super::name::TableName;
use super::text;
use super::unit::Lasting;
use crate::template::Template;

/// The column of every message with its LSN, such as `16/B374D848`. No two messages have the same
/// one.
pub const MESSAGE_LSN: &str = "message_lsn";
pub(crate) const MESSAGE_PREFIX: &str = "message_prefix";
/// The column of every message with its content, in any format.
pub(crate) const MESSAGE_CONTENT: &str = "message_content";

/// The source of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventSource {
    /// Rows that are inserted into this table.
    Table(TableName),
    /// Messages of `pg_logical_emit_message(true, prefix, content)` with this prefix.
    Messages(String),
}

impl EventSource {
    /// The table; none of messages.
    pub fn table(&self) -> Option<&TableName> {
        match self {
            EventSource::Table(table) => Some(table),
            EventSource::Messages(_) => None,
        }
    }

    /// The prefix of the messages; none of a table.
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

/// The outboxes that are tables, each with its table.
pub fn tables_of(
    outboxes: &[OutboxConfig],
) -> impl Iterator<Item = (&OutboxConfig, &TableName)> + Clone {
    outboxes
        .iter()
        .filter_map(|outbox| Some((outbox, outbox.source.table()?)))
}

/// One source of events with columns, upkeep and route. The default columns are those of Debezium's
/// Outbox Event Router.
#[derive(Debug, Clone)]
pub struct OutboxConfig {
    /// The table, or the messages.
    pub source: EventSource,
    /// The names of the columns with one meaning each.
    pub names: Columns,
    /// Columns for log lines about an event.
    pub log_columns: Vec<String>,
    /// All needed columns. A column's index is its *place*; the id has place 0. Columns for the row
    /// key alone come last.
    pub columns: Vec<String>,
    /// The columns that identify one row of the table; none if there are none, or the table was not
    /// read.
    pub row_key: Option<RowKey>,
    /// The `xid8` column of the table that defaults to `pg_current_xact_id()`; none if the table
    /// was not read.
    pub xid_column: Option<String>,
    /// How to read and to maintain the table.
    pub upkeep: Upkeep,
    /// The route of events.
    pub route: RouteConfig,
}

/// The columns that identify one row of a table and its event: the event's id, the columns of a
/// unique index, and the column with the transaction that wrote the row, if there is one.
///
/// Id and transaction are included even if the index would be enough: a row whose key was used
/// again is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowKey {
    /// The places of the id and of the index' columns, the id's first.
    pub places: Vec<usize>,
    /// The place of the column with the id of the transaction that wrote the row.
    pub transaction: Option<usize>,
    /// The number of columns that only the row key needs.
    pub added: usize,
}

/// `[outbox]`, and each `[[outbox]]` without its route and format.
#[derive(Debug, Clone, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub struct Outbox {
    /// The table. `public.outbox`: the one `setup --create-table` creates.
    #[default(TableName::debezium())]
    #[serde(deserialize_with = "text::parsed", serialize_with = "shown")]
    pub table: TableName,
    /// Prefix of `pg_logical_emit_message`. None: rows of a table are events, messages are not.
    #[serde(deserialize_with = "text::optional")]
    pub message_prefix: Option<String>,
    #[serde(flatten)]
    upkeep: Upkeep,
    /// Columns for log lines about an event. None: a log has no value of a row but the id.
    #[serde(deserialize_with = "text::list", serialize_with = "text::no_default")]
    log_columns: Vec<String>,
    columns: Columns,
}

fn shown<S: Serializer>(value: &impl fmt::Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

/// `[outbox.columns]`. The names are those of Debezium's Outbox Event Router, so that its tables
/// work unchanged.
#[derive(Debug, Clone, PartialEq, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub struct Columns {
    /// The event's id.
    #[default("id")]
    pub id: String,
    /// Selects the topic, unless the route has a template.
    #[default("aggregatetype")]
    pub aggregatetype: String,
    /// The record's key, unless the route has a template.
    #[default("aggregateid")]
    pub aggregateid: String,
    /// The event's type.
    #[default("type")]
    #[serde(rename = "type")]
    pub event_type: String,
    /// The record's value.
    #[default("payload")]
    pub payload: String,
    /// The greatest number of attempts for the event. None: it is the same for all events.
    #[serde(deserialize_with = "text::optional")]
    pub max_attempts: Option<String>,
    /// The W3C trace context of the event. None: it is in the record's header `traceparent`.
    #[serde(deserialize_with = "text::optional")]
    pub traceparent: Option<String>,
}

/// How to read and to maintain an outbox table. SQL is the operator's own, and used unchanged in
/// statements.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Upkeep {
    /// SQL condition for unpublished rows. None: the table has no column for it.
    #[serde(deserialize_with = "text::optional")]
    pub pending: Option<String>,
    /// One SQL expression, as in `ORDER BY`, for the order of an aggregate's events. Follows: an
    /// identity or serial column, or an integer id.
    #[serde(deserialize_with = "text::optional")]
    pub order_by: Option<String>,
    /// Column with the time of the event. Follows: `created_at` and similar names.
    #[serde(deserialize_with = "text::optional")]
    pub time: Option<String>,
    /// What happens to rows with the `xid` of another transaction. Published: no row is lost.
    pub copied_rows: CopiedRows,
    /// SQL assignments, as in `UPDATE … SET`, for the row of an acked event. None: walrelay writes
    /// only to tables of its own.
    #[serde(deserialize_with = "text::optional")]
    pub mark: Option<String>,
    /// SQL assignments for the row of an event that was given up, with values for `:error`,
    /// `:class` and `:attempts`. None: required where rows show that they are pending.
    #[serde(deserialize_with = "text::optional")]
    pub mark_failed: Option<String>,
    /// SQL assignments for the row of a parked event after an attempt. `:next_attempt_at` is also
    /// replaced by a value. None: the row stays pending.
    #[serde(deserialize_with = "text::optional")]
    pub mark_waiting: Option<String>,
    /// SQL condition for rows of events that were given up. They are counted. None: such rows are
    /// not counted.
    #[serde(deserialize_with = "text::optional")]
    pub failed: Option<String>,
    /// Whether to delete the row of an acked event. Never: the table is the source of every
    /// recovery.
    #[serde(with = "Delete")]
    pub delete: bool,
    /// How long published rows are kept. For ever: walrelay deletes nothing by default.
    #[serde(deserialize_with = "retention")]
    pub retention: Option<Duration>,
    /// Channel of `NOTIFY` for new rows. None: a poller reads at its interval.
    #[serde(deserialize_with = "text::optional")]
    pub notify: Option<String>,
}

/// What happens to a row whose transaction column has another transaction than the one that wrote
/// the row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopiedRows {
    /// It is published.
    #[default]
    Publish,
    /// It is skipped, as delivered.
    Skip,
    /// The relay stops before it.
    Stop,
}

/// For `#[serde(with)]`: when rows are deleted.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Delete {
    Never,
    Acked,
}

impl Delete {
    fn serialize<S: Serializer>(delete: &bool, to: S) -> Result<S::Ok, S::Error> {
        Serialize::serialize(
            if *delete {
                &Delete::Acked
            } else {
                &Delete::Never
            },
            to,
        )
    }

    fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
        Ok(matches!(Deserialize::deserialize(from)?, Delete::Acked))
    }
}

/// Empty text is no retention, so that an `[[outbox]]` can unset a value that the others have.
fn retention<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    let retention = || {
        Lasting::<1_000, { 3660 * 24 * 3600 * 1000 }>::deserialize(
            text.as_str().into_deserializer(),
        )
    };
    if text.is_empty() {
        Ok(None)
    } else {
        retention().map(Some)
    }
}

impl Upkeep {
    /// Whether the row of an acked event is written to.
    pub fn writes(&self) -> bool {
        self.delete || self.mark.is_some()
    }

    /// Whether the table itself shows which of its rows are unpublished.
    pub fn says_for_itself(&self) -> bool {
        self.pending.is_some() || self.delete
    }

    /// Whether rows are updated: `xmin` then does not tell a copied row from a marked one.
    pub fn marks_any(&self) -> bool {
        self.mark.is_some() || self.mark_failed.is_some() || self.mark_waiting.is_some()
    }

    /// Whether any row is ever written to.
    pub fn writes_any(&self) -> bool {
        self.delete || self.marks_any()
    }
}

impl OutboxConfig {
    /// What follows from the settings of an outbox. `is_set` tells whether the key of a path is
    /// set.
    pub fn new(
        outbox: Outbox,
        mut route: RouteConfig,
        format: Format,
        is_set: impl Fn(&str) -> bool,
    ) -> OutboxConfig {
        let Outbox {
            table,
            message_prefix,
            upkeep,
            log_columns,
            columns: mut names,
        } = outbox;
        let source = message_prefix.map_or(EventSource::Table(table), EventSource::Messages);
        if !is_set("route.topic") {
            route.topic = Template::prefixed(&route.topic_prefix, &names.aggregatetype);
        }
        if !is_set("route.key") {
            route.key = Some(Template::column(&names.aggregateid));
        }
        let Format {
            value,
            tombstone,
            envelope: members,
        } = format;
        route.value = if !members.is_empty() {
            let tombstone = (tombstone == Tombstone::NullPayload).then(|| names.payload.clone());
            ValueConfig::Envelope { members, tombstone }
        } else if is_set("format.value") {
            ValueConfig::Template(value)
        } else {
            ValueConfig::Template(Template::column(&names.payload))
        };
        // Every message has an LSN, and no two have the same one.
        if source.table().is_none() && !is_set("outbox.columns.id") {
            MESSAGE_LSN.clone_into(&mut names.id);
        }
        let mut outbox = OutboxConfig {
            source,
            names,
            log_columns,
            columns: Vec::new(),
            row_key: None,
            xid_column: None,
            upkeep,
            route,
        };
        outbox.need_only_routed();
        outbox
    }

    /// The place of a column in a row, if the outbox reads the column.
    pub fn index_of(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|known| known == column)
    }

    /// Whether its columns have the names that `setup --create-table` gives them.
    pub fn has_usual_columns(&self) -> bool {
        let usual = Columns {
            max_attempts: self.names.max_attempts.clone(),
            traceparent: self.names.traceparent.clone(),
            ..Columns::default()
        };
        self.names == usual
    }

    /// Adds a column to the needed ones.
    pub fn need(&mut self, column: &str) {
        if self.index_of(column).is_none() {
            self.columns.push(column.to_owned());
        }
    }

    /// Sets the row key: the id, these columns of a unique index, and the column with the
    /// transaction, if there is one.
    pub fn name_rows_by(&mut self, index: &[String], transaction: Option<&str>) {
        self.columns.truncate(self.routed_columns().len());
        let routed = self.columns.len();
        let mut places = vec![0];
        for column in index {
            self.need(column);
            places.extend(self.index_of(column).filter(|place| *place > 0));
        }
        let transaction = transaction.and_then(|column| {
            self.need(column);
            self.index_of(column)
        });
        self.row_key = Some(RowKey {
            places,
            transaction,
            added: self.columns.len() - routed,
        });
    }

    /// The columns that the id and the route need.
    pub fn routed_columns(&self) -> &[String] {
        let added = self.row_key.as_ref().map_or(0, |key| key.added);
        self.columns
            .get(..self.columns.len().saturating_sub(added))
            .unwrap_or_default()
    }

    /// The columns that identify a row, the id first and its transaction last; the id alone without
    /// a row key.
    pub fn key_columns(&self) -> impl Iterator<Item = &String> {
        self.index_columns().chain(self.transaction_column())
    }

    /// The same without the transaction.
    pub fn index_columns(&self) -> impl Iterator<Item = &String> {
        self.key_places()
            .iter()
            .filter_map(|place| self.columns.get(*place))
    }

    /// The places of the columns of the row key.
    pub fn key_places(&self) -> &[usize] {
        self.row_key.as_ref().map_or(&[0], |key| &key.places)
    }

    /// The column of the row key with the transaction that wrote the row.
    pub fn transaction_column(&self) -> Option<&String> {
        self.columns.get(self.row_key.as_ref()?.transaction?)
    }

    /// Restricts the needed columns to those of the id and the route.
    pub fn need_only_routed(&mut self) {
        self.row_key = None;
        self.columns = vec![self.names.id.clone()];
        let route = &self.route;
        let templates = [
            Some(&route.topic),
            route.key.as_ref(),
            route.headers_from.as_ref(),
        ]
        .into_iter()
        .flatten();
        let headers = route.headers.iter().map(|(_, template)| template);
        let columns = templates
            .chain(headers)
            .flat_map(Template::columns)
            .map(str::to_owned);
        let columns = columns
            .chain(route.partition.clone())
            .chain(route.timestamp.clone());
        let columns = columns
            .chain(self.names.max_attempts.clone())
            .chain(self.names.traceparent.clone());
        let columns = columns.chain(self.log_columns.clone());
        for column in columns
            .chain(route.value.columns().into_iter().map(str::to_owned))
            .collect::<Vec<_>>()
        {
            self.need(&column);
        }
    }
}

/// `[route]`.
#[derive(Debug, Clone, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub struct RouteConfig {
    /// Text before the aggregate type in the topic. That of the Outbox Event Router: consumers need
    /// not change.
    #[default("outbox.event.")]
    pub topic_prefix: String,
    /// The topic. Follows from the prefix and the column of the aggregate type.
    #[default(Template::prefixed("outbox.event.", "aggregatetype"))]
    #[serde(deserialize_with = "text::parsed", serialize_with = "text::no_default")]
    pub topic: Template,
    /// The key. Follows from the column of the aggregate id: events of one aggregate keep their
    /// order. `None`: records have no key, and events no order.
    #[default(Some(Template::column("aggregateid")))]
    #[serde(
        deserialize_with = "text::optional",
        serialize_with = "text::no_default"
    )]
    pub key: Option<Template>,
    /// Header with the event's id. That of the Outbox Event Router: consumers that drop duplicates
    /// need not change.
    #[default(Some("id".to_owned()))]
    #[serde(deserialize_with = "text::optional")]
    pub id_header: Option<String>,
    /// Header with the event's place in the WAL. On: it costs sixty bytes, and names the origin of
    /// a record.
    #[default(Some(text::POSITION_HEADER.to_owned()))]
    #[serde(deserialize_with = "text::optional")]
    pub position_header: Option<String>,
    /// A JSON object whose members become headers after `headers`, unless a header of that name
    /// exists. None: headers are configured by name.
    #[serde(
        deserialize_with = "text::optional",
        serialize_with = "text::no_default"
    )]
    pub headers_from: Option<Template>,
    /// The handling of a header whose value is NULL. Kept without a value, as the Outbox Event
    /// Router does.
    pub(crate) null_headers: NullHeaders,
    /// Column with the partition; NULL selects it by the key. None: the key selects it.
    #[serde(deserialize_with = "text::optional")]
    pub partition: Option<String>,
    /// Column with the record's timestamp; NULL selects the time of production. None: that time,
    /// which consumers expect.
    #[serde(deserialize_with = "text::optional")]
    pub timestamp: Option<String>,
    /// Further headers, in this order. No name holds NUL.
    #[serde(deserialize_with = "text::templates", skip_serializing)]
    pub headers: Vec<(String, Template)>,
    /// From [`Format`].
    #[default(ValueConfig::Template(Template::column("payload")))]
    #[serde(skip)]
    pub value: ValueConfig,
    /// The topics that events may go to.
    #[serde(skip)]
    pub topic_names: TopicNames,
}

/// The names of topics that events may go to.
#[derive(Debug, Clone, Default)]
pub struct TopicNames {
    /// Topics that no event may go to: walrelay's own, for its position and for dead letters.
    pub reserved: Vec<String>,
    /// The names that the bus takes.
    pub rule: TopicRule,
}

/// The names of topics that a bus takes: ASCII letters, digits and some punctuation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicRule {
    /// The greatest length.
    pub bytes_max: usize,
    /// Allowed characters beside letters and digits.
    pub punctuation: &'static str,
    /// Names that are refused all the same.
    pub refused: &'static [&'static str],
}

impl TopicRule {
    /// That of `org.apache.kafka.common.internals.Topic`.
    pub const DEFAULT: TopicRule = TopicRule {
        bytes_max: 249,
        punctuation: "._-",
        refused: &[".", ".."],
    };
}

impl Default for TopicRule {
    fn default() -> TopicRule {
        TopicRule::DEFAULT
    }
}

/// What becomes of a header whose template is NULL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NullHeaders {
    /// The record has the header without a value.
    #[default]
    Keep,
    /// The record has no such header.
    Omit,
}

/// `[format]`: the value of the record.
#[derive(Debug, Clone, SmartDefault, Deserialize, Serialize)]
#[serde(default)]
pub struct Format {
    /// The value as a template. Follows from the column of the payload.
    #[default(Template::column("payload"))]
    #[serde(deserialize_with = "text::parsed", serialize_with = "text::no_default")]
    value: Template,
    /// Whether a NULL payload makes a tombstone of an envelope. Never: an envelope tells consumers
    /// more than its payload.
    tombstone: Tombstone,
    /// The members of a JSON object that is the value, in order; `format.envelope`.
    #[serde(deserialize_with = "text::templates", skip_serializing)]
    pub envelope: Vec<(String, Template)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Tombstone {
    #[default]
    Never,
    NullPayload,
}

/// The value of the record.
#[derive(Debug, Clone)]
pub enum ValueConfig {
    /// One template, `{payload}` by default; NULL makes a tombstone.
    Template(Template),
    /// A JSON object with these members, in this order.
    Envelope {
        /// Names and templates, in order.
        members: Vec<(String, Template)>,
        /// The column whose NULL makes a tombstone.
        tombstone: Option<String>,
    },
}

impl ValueConfig {
    /// The columns that it reads.
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

impl Default for OutboxConfig {
    /// The table and columns of Debezium's Outbox Event Router, so that its tables work unchanged.
    fn default() -> Self {
        OutboxConfig::new(
            Outbox::default(),
            RouteConfig::default(),
            Format::default(),
            |_| false,
        )
    }
}
