//! One outbox: turns its settings into an [`OutboxConfig`].

use std::fmt;
use std::time::Duration;

use super::file::Layer;
use super::model::{Delete, KEYS, NullHeaders, Tombstone};
use super::name::{
    IDENTIFIER_BYTES_MAX, TABLE_NAME, TOPIC_BYTES_MAX, TableName, is_closed, is_identifier, is_number, is_plain,
};
use crate::error::{Error, Errors, Kind, Result};
use crate::template::Template;

const TEMPLATE_REMEDY: &str =
    "text with columns in braces, such as orders.{type|lower}; docs/reference/templates.md has all of it";

/// The column of every message with its LSN, such as `16/B374D848`. No two messages have the same one.
pub(crate) const MESSAGE_LSN: &str = "message_lsn";
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
    pub(crate) fn table(&self) -> Option<&TableName> {
        match self {
            EventSource::Table(table) => Some(table),
            EventSource::Messages(_) => None,
        }
    }

    pub(crate) fn prefix(&self) -> Option<&String> {
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

/// One source of events with columns, upkeep and route. The default columns are those of Debezium's Outbox Event
/// Router.
#[derive(Debug, Clone)]
pub struct OutboxConfig {
    /// The table, or the messages.
    pub source: EventSource,
    /// Column with the event's id.
    pub id: String,
    /// Column that selects the topic, unless the route has a template.
    pub aggregate_type: String,
    /// Column with the record's key, unless the route has a template.
    pub aggregate_id: String,
    /// Column with the event's type.
    pub event_type: String,
    /// Column with the record's value.
    pub payload: String,
    /// Column with the greatest number of attempts for the event; without a value the general number applies.
    pub max_attempts: Option<String>,
    /// Column with the event's trace context; without one, the record's header `traceparent` has it.
    pub traceparent: Option<String>,
    /// Columns for log lines about an event.
    pub log_columns: Vec<String>,
    /// All needed columns. A column's index is its *place*; the id has place 0. Columns for the row key alone come
    /// last.
    pub columns: Vec<String>,
    /// The columns that identify one row of the table; none if there are none, or the table was not read.
    pub row_key: Option<RowKey>,
    /// How to read and to maintain the table.
    pub upkeep: Upkeep,
    /// The route of events.
    pub route: RouteConfig,
}

/// The columns that identify one row of a table and its event: the event's id, the columns of a unique index, and the
/// column with the transaction that wrote the row, if there is one.
///
/// Id and transaction are included even if the index would be enough: a row whose key was used again is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowKey {
    /// The places of the id and of the index' columns, the id's first.
    pub places: Vec<usize>,
    pub transaction: Option<usize>,
    /// The number of columns that only the row key needs.
    pub added: usize,
}

/// How to read and to maintain an outbox table. SQL is the operator's own, and used unchanged in statements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Upkeep {
    pub pending: Option<String>,
    /// One SQL expression, as in `ORDER BY`, for the order of an aggregate's events.
    pub order_by: Option<String>,
    pub time: Option<String>,
    /// SQL assignments, as in `UPDATE … SET`, for the row of an acked event.
    pub mark: Option<String>,
    /// SQL assignments for the row of an event that was given up, with values for `:error`, `:class` and `:attempts`.
    pub mark_failed: Option<String>,
    /// SQL assignments for the row of a parked event after an attempt. `:next_attempt_at` is also replaced by a value.
    pub mark_waiting: Option<String>,
    /// SQL condition for rows of events that were given up. They are counted.
    pub failed: Option<String>,
    pub delete: bool,
    pub retention: Option<Duration>,
    /// Channel of `NOTIFY` for new rows.
    pub notify: Option<String>,
}

impl Upkeep {
    /// Whether the row of an acked event is written to.
    pub fn writes(&self) -> bool {
        self.delete || self.mark.is_some()
    }

    /// Whether the table itself shows which of its rows are unpublished.
    pub(crate) fn says_for_itself(&self) -> bool {
        self.pending.is_some() || self.delete
    }

    /// Whether any row is ever written to.
    pub(crate) fn writes_any(&self) -> bool {
        self.writes() || self.mark_failed.is_some() || self.mark_waiting.is_some()
    }
}

impl OutboxConfig {
    pub(crate) fn index_of(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|known| known == column)
    }

    /// Whether its columns have the names that `setup --create-table` gives them.
    pub(crate) fn has_usual_columns(&self) -> bool {
        let columns =
            |of: &Self| [&of.id, &of.aggregate_type, &of.aggregate_id, &of.event_type, &of.payload].map(Clone::clone);
        columns(self) == columns(&Self::default())
    }

    /// Adds a column to the needed ones.
    pub fn need(&mut self, column: &str) {
        if self.index_of(column).is_none() {
            self.columns.push(column.to_owned());
        }
    }

    /// Sets the row key: the id, these columns of a unique index, and the column with the transaction, if there is one.
    pub fn name_rows_by(&mut self, index: &[String], transaction: Option<&str>) {
        self.columns.truncate(self.routed_columns().len());
        let (routed, mut places) = (self.columns.len(), vec![0]);
        for column in index {
            self.need(column);
            places.extend(self.index_of(column).filter(|place| *place > 0));
        }
        let transaction = transaction.and_then(|column| {
            self.need(column);
            self.index_of(column)
        });
        self.row_key = Some(RowKey { places, transaction, added: self.columns.len() - routed });
    }

    /// The columns that the id and the route need.
    pub(crate) fn routed_columns(&self) -> &[String] {
        let added = self.row_key.as_ref().map_or(0, |key| key.added);
        self.columns.get(..self.columns.len().saturating_sub(added)).unwrap_or_default()
    }

    /// The columns that identify a row, the id first and its transaction last; the id alone without a row key.
    pub(crate) fn key_columns(&self) -> impl Iterator<Item = &String> {
        self.index_columns().chain(self.transaction_column())
    }

    /// The same without the transaction.
    pub(crate) fn index_columns(&self) -> impl Iterator<Item = &String> {
        self.key_places().iter().filter_map(|place| self.columns.get(*place))
    }

    pub(crate) fn key_places(&self) -> &[usize] {
        self.row_key.as_ref().map_or(&[0], |key| &key.places)
    }

    /// The column of the row key with the transaction that wrote the row.
    pub(crate) fn transaction_column(&self) -> Option<&String> {
        self.columns.get(self.row_key.as_ref()?.transaction?)
    }

    /// Restricts the needed columns to those of the id and the route.
    pub(crate) fn need_only_routed(&mut self) {
        self.row_key = None;
        self.columns = vec![self.id.clone()];
        let route = &self.route;
        let templates = [Some(&route.topic), route.key.as_ref(), route.headers_from.as_ref()].into_iter().flatten();
        let headers = route.headers.iter().map(|(_, template)| template);
        let columns = templates.chain(headers).flat_map(Template::columns).map(str::to_owned);
        let columns = columns.chain(route.partition.clone()).chain(route.timestamp.clone());
        let columns = columns.chain(self.max_attempts.clone()).chain(self.traceparent.clone());
        let columns = columns.chain(self.log_columns.clone());
        for column in columns.chain(route.value.columns().into_iter().map(str::to_owned)).collect::<Vec<_>>() {
            self.need(&column);
        }
    }
}

#[derive(Debug, Clone)]
pub struct RouteConfig {
    /// The topic: `outbox.event.{aggregatetype}` by default.
    pub topic: Template,
    /// The key: `{aggregateid}` by default. `None`: records have no key, and events no order.
    pub key: Option<Template>,
    /// Name of the header with the event's id: `id` by default. `None`: no such header.
    pub id_header: Option<String>,
    /// Name of the header with the event's place: `walrelay-position` by default. `None`: no such header.
    pub position_header: Option<String>,
    /// Column with the partition; NULL selects it by the key.
    pub partition: Option<String>,
    /// Column with the record's timestamp; NULL selects the time of production.
    pub timestamp: Option<String>,
    /// Further headers, in this order. No name holds NUL.
    pub headers: Vec<(String, Template)>,
    /// A JSON object whose members become headers after those, unless a header of that name exists.
    pub headers_from: Option<Template>,
    pub omit_null_headers: bool,
    pub value: ValueConfig,
    /// Topics that no event may go to: walrelay's own, for its position and for dead letters.
    pub reserved_topics: Vec<String>,
}

#[derive(Debug, Clone)]
pub enum ValueConfig {
    /// One template, `{payload}` by default; NULL makes a tombstone.
    Template(Template),
    /// A JSON object with these members, in this order.
    Envelope {
        members: Vec<(String, Template)>,
        /// The column whose NULL makes a tombstone.
        tombstone: Option<String>,
    },
}

impl ValueConfig {
    pub(crate) fn columns(&self) -> Vec<&str> {
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
    #[expect(clippy::expect_used, reason = "the defaults are constants")]
    fn default() -> Self {
        outbox(&Layer::default()).expect("valid defaults")
    }
}

impl Default for RouteConfig {
    /// The topics, keys and the header of Debezium's Outbox Event Router, so that its consumers work unchanged.
    fn default() -> Self {
        OutboxConfig::default().route
    }
}

pub(super) fn outbox(layer: &Layer) -> Result<OutboxConfig> {
    let mut errors = Errors::default();
    let source = errors.keep(event_source(layer)).unwrap_or_else(|| EventSource::Table(TableName::debezium()));
    let id = match &source {
        // Every message has an LSN, and no two have the same one.
        EventSource::Messages(_) if layer.get("outbox.columns.id").is_none() => MESSAGE_LSN.to_owned(),
        EventSource::Messages(_) | EventSource::Table(_) => errors.or_default(column(layer, "outbox.columns.id")),
    };
    let upkeep = errors.or_default(upkeep(layer, &source));
    let mut outbox = OutboxConfig {
        source,
        id,
        aggregate_type: errors.or_default(column(layer, "outbox.columns.aggregatetype")),
        aggregate_id: errors.or_default(column(layer, "outbox.columns.aggregateid")),
        event_type: errors.or_default(column(layer, "outbox.columns.type")),
        payload: errors.or_default(column(layer, "outbox.columns.payload")),
        max_attempts: errors.or_default(optional_column(layer, "outbox.columns.max_attempts")),
        traceparent: errors.or_default(optional_column(layer, "outbox.columns.traceparent")),
        log_columns: errors.or_default(log_columns(layer)),
        columns: Vec::new(),
        row_key: None,
        upkeep,
        route: errors.or_default(route(layer)),
    };
    outbox.need_only_routed();
    errors.result(Some(outbox))
}

fn event_source(layer: &Layer) -> Result<EventSource> {
    if layer.get("outbox.message_prefix").is_none() {
        return Ok(EventSource::Table(layer.parsed("outbox.table", TABLE_NAME)?));
    }
    if layer.get("outbox.table").is_some() {
        let at = layer.origin("outbox.message_prefix");
        return Err(layer.error(
            "outbox.table",
            format_args!("is set, and outbox.message_prefix, too ({at})"),
            "remove one of the two, or write an [[outbox]] for each: one takes rows, one takes messages",
        ));
    }
    let allowed = "the prefix that messages are emitted with";
    let fits = |prefix: &str| !prefix.is_empty() && !prefix.contains('\0');
    Ok(EventSource::Messages(layer.checked("outbox.message_prefix", allowed, fits)?))
}

fn upkeep(layer: &Layer, source: &EventSource) -> Result<Upkeep> {
    let (model, mut errors) = (&layer.model.outbox, Errors::default());
    let upkeep = Upkeep {
        pending: errors.or_default(sql(layer, "outbox.pending")),
        order_by: errors.or_default(sql(layer, "outbox.order_by")),
        time: errors.or_default(optional_column(layer, "outbox.time")),
        mark: errors.or_default(sql(layer, "outbox.mark")),
        mark_failed: errors.or_default(sql(layer, "outbox.mark_failed")),
        mark_waiting: errors.or_default(sql(layer, "outbox.mark_waiting")),
        failed: errors.or_default(sql(layer, "outbox.failed")),
        delete: model.delete == Delete::Acked,
        retention: model.retention.map(|retention| retention.duration()),
        notify: errors.or_default(optional_column(layer, "outbox.notify")),
    };
    let upkeep = errors.result(Some(upkeep))?;
    if source.table().is_none() && upkeep != Upkeep::default() {
        let cause = format!("{source}: pending, mark and the like are for rows of a table");
        return Err(Error::new(Kind::Config, cause).remedy("remove them: there is no row behind a message"));
    }
    let is_position = upkeep.order_by.as_deref().is_some_and(is_number);
    let cause = "is a number, which Postgres reads as the position of a column";
    layer.refuse_if(is_position, "outbox.order_by", cause, "name the column, or write an expression over columns")?;
    if upkeep.delete {
        let and_delete = "is set, and outbox.delete, too";
        layer.refuse_if(upkeep.mark.is_some(), "outbox.mark", and_delete, "remove one of the two")?;
        let remedy = "remove one of the two: rows go when they are acked, or some time later";
        layer.refuse_if(upkeep.retention.is_some(), "outbox.retention", and_delete, remedy)?;
    }
    let stays_pending = upkeep.pending.is_some() && !upkeep.writes();
    let remedy = "set outbox.mark to what makes a row no longer pending, such as status = 'PUBLISHED'";
    layer.refuse_if(stays_pending, "outbox.pending", "is set, and rows would be pending for ever", remedy)?;
    Ok(upkeep)
}

fn route(layer: &Layer) -> Result<RouteConfig> {
    let model = &layer.model.route;
    let allowed = "fewer than 249 letters, digits, dots, underscores and hyphens";
    let mut errors = Errors::default();
    let prefix = errors.or_default(layer.checked("route.topic_prefix", allowed, |prefix| {
        prefix.len() < TOPIC_BYTES_MAX && prefix.bytes().all(is_plain)
    }));
    let topic = errors.or_default(template(layer, "route.topic"));
    let key = errors.or_default(template(layer, "route.key"));
    let route = RouteConfig {
        topic: topic.unwrap_or_else(|| Template::prefixed(&prefix, layer.text("outbox.columns.aggregatetype"))),
        key: match key {
            Some(key) => Some(key).filter(|key| !key.source().is_empty()),
            None => Some(Template::column(layer.text("outbox.columns.aggregateid"))),
        },
        id_header: errors.or_default(header_name(layer, "route.id_header")),
        position_header: errors.or_default(header_name(layer, "route.position_header")),
        partition: errors.or_default(optional_column(layer, "route.partition")),
        timestamp: errors.or_default(optional_column(layer, "route.timestamp")),
        headers: errors.or_default(headers(layer)),
        headers_from: errors.or_default(headers_from(layer)),
        omit_null_headers: model.null_headers == NullHeaders::Omit,
        value: errors.keep(value(layer)).unwrap_or_else(|| ValueConfig::Template(Template::column(""))),
        reserved_topics: Vec::new(),
    };
    errors.result(Some(route))
}

/// The name of one of walrelay's own headers; `None` if it is set to empty text.
fn header_name(layer: &Layer, path: &str) -> Result<Option<String>> {
    let name = layer.checked(path, "a header's name, or nothing for no header", |name| !name.contains('\0'))?;
    let is_default = KEYS.iter().any(|key| key.path == path && key.default.as_deref() == Some(&name));
    if is_own_header(&name) && !is_default {
        return Err(own_header(layer, path, path, &name));
    }
    Ok(Some(name).filter(|name| !name.is_empty()))
}

fn headers_from(layer: &Layer) -> Result<Option<Template>> {
    let path = "route.headers_from";
    let Some(template) = template(layer, path)?.filter(|template| !template.source().is_empty()) else {
        return Ok(None);
    };
    if template.columns().next().is_none() {
        let remedy = "write the column with the JSON object in braces, such as {metadata}, or nothing for none";
        return Err(layer.error(path, "names no column", remedy));
    }
    Ok(Some(template))
}

fn headers(layer: &Layer) -> Result<Vec<(String, Template)>> {
    let mut errors = Errors::default();
    for name in layer.model.route.headers.keys() {
        let path = format!("route.headers.{name}");
        if name.is_empty() || name.contains('\0') {
            let cause = format!("{}: {name:?} is no header's name", layer.origin(&path));
            let remedy = "a header's name has one character or more, and no NUL among them";
            errors.add(Error::new(Kind::Config, cause).remedy(remedy));
        }
        if is_own_header(name) {
            errors.add(own_header(layer, &path, "route.headers", name));
        }
    }
    let headers = errors.keep(named_templates(layer, "route.headers", &layer.model.route.headers));
    errors.result(headers)
}

fn value(layer: &Layer) -> Result<ValueConfig> {
    let model = &layer.model.format;
    let template = template(layer, "format.value")?;
    let members = named_templates(layer, "format.envelope", &model.envelope)?;
    let payload = layer.text("outbox.columns.payload");
    match (template, members.is_empty()) {
        (template, true) => Ok(ValueConfig::Template(template.unwrap_or_else(|| Template::column(payload)))),
        (None, false) => {
            let tombstone = (model.tombstone == Tombstone::NullPayload).then(|| payload.to_owned());
            Ok(ValueConfig::Envelope { members, tombstone })
        }
        (Some(_), false) => Err(layer.error(
            "format.value",
            "is set, and format.envelope is, too",
            "remove one of the two: a value is one template or an object of several",
        )),
    }
}

/// The prefix of walrelay's own headers: place, replay, dead letter.
const OWN_HEADERS: &str = "walrelay-";

/// Whether a header of this name is one of walrelay's own, which a row cannot set.
pub(crate) fn is_own_header(name: &str) -> bool {
    name.get(..OWN_HEADERS.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(OWN_HEADERS))
}

fn own_header(layer: &Layer, path: &str, of: &str, name: &str) -> Error {
    let origin = layer.origin(path);
    let cause = format!("{origin}: {of} has {name:?}, and names that begin with {OWN_HEADERS} are walrelay's own");
    Error::new(Kind::Config, cause).remedy("give the header another name")
}

fn named_templates(layer: &Layer, table: &str, named: &toml::Table) -> Result<Vec<(String, Template)>> {
    let (mut errors, mut templates) = (Errors::default(), Vec::new());
    for (name, text) in named {
        let path = format!("{table}.{name}");
        let template = if text.is_str() {
            layer.parsed(&path, TEMPLATE_REMEDY)
        } else {
            let remedy = format!("write \"{name}\" = \"{{column}}\"; a name with a dot in it needs its quotes");
            Err(layer.error(&path, "must be a template in quotes", remedy))
        };
        templates.extend(errors.keep(template).map(|template| (name.clone(), template)));
    }
    errors.result(Some(templates))
}

fn template(layer: &Layer, path: &str) -> Result<Option<Template>> {
    layer.get(path).map(|_| layer.parsed(path, TEMPLATE_REMEDY)).transpose()
}

fn column(layer: &Layer, path: &str) -> Result<String> {
    layer.checked(path, "a column's name, 1 to 63 bytes, without SQL quotes", is_identifier)
}

/// A column; none if its name is empty, so that an `[[outbox]]` can unset a value that the others have.
fn optional_column(layer: &Layer, path: &str) -> Result<Option<String>> {
    if layer.text(path).is_empty() { Ok(None) } else { column(layer, path).map(Some) }
}

fn log_columns(layer: &Layer) -> Result<Vec<String>> {
    let path = "outbox.log_columns";
    let columns = || layer.text(path).split(',').map(str::trim).filter(|column| !column.is_empty());
    let allowed = "names of columns with commas between, without SQL quotes";
    layer.checked(path, allowed, |_| {
        columns().all(|column| column.len() <= IDENTIFIER_BYTES_MAX && !column.contains(['\0', '"']))
    })?;
    Ok(columns().map(str::to_owned).collect())
}

/// SQL for the middle of a statement. Refuses text that ends a statement or hides the rest of one.
fn sql(layer: &Layer, path: &str) -> Result<Option<String>> {
    let allowed = "SQL without semicolons, comments and NUL, and with its brackets and quotes closed";
    let hidden = [";", "\0", "--", "/*"];
    let fits = |text: &str| !hidden.iter().any(|part| text.contains(part)) && is_closed(text);
    Ok(Some(layer.checked(path, allowed, fits)?).filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::layers::Settings;

    fn outboxes(text: &str) -> Result<Vec<OutboxConfig>> {
        Settings::of(text)?.outboxes()
    }

    #[test]
    fn settings_of_an_outbox_override_those_for_all_outboxes() {
        let outboxes = outboxes(
            "[route]\ntopic = 'all'\nkey = '{k}'\n[route.headers]\na = '{a}'\n[format]\nvalue = '{v}'\n\
             [[outbox]]\ntable = 'one'\n\
             [[outbox]]\ntable = 'two'\ncolumns.id = 'number'\nroute.topic = 'second'\n\
             [outbox.route.headers]\nb = '{b}'\n[outbox.format.envelope]\nx = '{x}'\n\
             [[outbox]]\nmessage_prefix = 'shop'\n",
        )
        .unwrap();
        let told: Vec<_> = outboxes
            .iter()
            .map(|outbox| (outbox.source.to_string(), outbox.route.topic.source(), outbox.columns.join(" ")))
            .collect();
        let told: Vec<_> =
            told.iter().map(|(source, topic, columns)| (source.as_str(), *topic, columns.as_str())).collect();
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
            "[route]\nheaders_from = '{m}'\npartition = 'p'\ntimestamp = 't'\n[route.headers]\na = '{a}'\n\
             [[outbox]]\ntable = 'one'\n\
             [[outbox]]\ntable = 'two'\nroute.headers_from = ''\nroute.partition = ''\nroute.timestamp = ''\n\
             [outbox.route.headers]\n",
        )
        .unwrap();
        let columns: Vec<_> = outboxes.iter().map(|outbox| outbox.columns.join(" ")).collect();
        assert_eq!(columns, ["id aggregatetype aggregateid m a p t payload", "id aggregatetype aggregateid payload"]);
        assert!(outboxes.iter().skip(1).all(|outbox| outbox.route.headers_from.is_none()));
    }

    #[test]
    fn the_max_attempts_column_is_read_with_the_row() {
        let text = "[outbox.columns]\nmax_attempts = 'max_retries'\n[outbox]\nmark_waiting = 'n = :attempts'";
        let outboxes = outboxes(text).unwrap();
        let [outbox] = outboxes.as_slice() else { panic!("{}", outboxes.len()) };
        assert_eq!(outbox.max_attempts.as_deref(), Some("max_retries"));
        assert_eq!(outbox.columns.join(" "), "id aggregatetype aggregateid max_retries payload");
        assert_eq!(outbox.upkeep.mark_waiting.as_deref(), Some("n = :attempts"));
    }
}
