//! The router: binds templates to columns and makes the records of events. Its errors.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use serde_json::Map;

use super::{OwnedRecord, Record};
use crate::config::outbox::{RouteConfig, TopicNames, TopicRule};
use crate::config::text::is_own_header;
use crate::config::{NullHeaders, OnError, OutboxConfig, SlotName, ValueConfig};
use crate::error::{Error, Kind};
use crate::event::{Event, Place, Row, Shown, Via};
use crate::template::{Bound, Moment, RenderError, Template, UnknownColumn, bytea, members};

/// Makes records of events.
#[derive(Debug)]
pub struct Router {
    topics: Topics,
    key: Option<Bound>,
    headers: Headers,
    partition: Option<Bound>,
    timestamp: Option<Bound>,
    value: Value,
    /// Names of the needed columns by place, for errors.
    columns: Vec<String>,
    /// Events that were to be routed.
    pub events: u64,
}

#[derive(Debug)]
struct Headers {
    id: Option<String>,
    position: Option<String>,
    /// `SYSTEM_IDENTIFIER:TIMELINE:`, followed by the place of the last routed event.
    position_value: String,
    /// The length of the part that is the same for every event.
    origin_bytes: usize,
    named: Vec<(String, Bound)>,
    /// The JSON object whose members are headers.
    members: Option<Bound>,
    omit_null: bool,
}

/// The header of a record that was published again on request. Its value is `1`.
pub const REPLAY_HEADER: &str = "walrelay-replay";

type Header<'s> = (&'s str, Option<&'s [u8]>);

/// A header whose name or value may be made for one event.
type MadeHeader<'s> = (Cow<'s, str>, Option<Cow<'s, [u8]>>);

/// A routed event; [`Routed::with_record`] lends it as a [`Record`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routed<'s> {
    topic: &'s str,
    key: Option<Cow<'s, [u8]>>,
    value: Option<Cow<'s, [u8]>>,
    /// The headers of every event. Most outboxes have no others, which saves an allocation.
    fixed: [Header<'s>; 3],
    fixed_count: usize,
    more: Vec<MadeHeader<'s>>,
    partition: Option<i32>,
    timestamp_ms: Option<i64>,
    left_out: Option<String>,
}

impl Routed<'_> {
    /// The name of a reserved header in the row, which the record omits. With such a header, a row
    /// could claim to be a replay, to resolve a dead letter, or to be published already.
    pub fn left_out(&self) -> Option<&str> {
        self.left_out.as_deref()
    }

    /// Calls `take` with the record.
    #[inline]
    pub fn with_record<T>(&self, take: impl FnOnce(&Record<'_>) -> T) -> T {
        let topic = self.topic;
        let key = self.key.as_deref();
        let value = self.value.as_deref();
        let partition = self.partition;
        let timestamp_ms = self.timestamp_ms;
        let fixed = self.fixed.get(..self.fixed_count).unwrap_or_default();
        if self.more.is_empty() {
            return take(&Record {
                topic,
                key,
                value,
                headers: fixed,
                partition,
                timestamp_ms,
            });
        }
        let more = self
            .more
            .iter()
            .map(|(name, value)| (name.as_ref(), value.as_deref()));
        let headers: Vec<_> = fixed.iter().copied().chain(more).collect();
        take(&Record {
            topic,
            key,
            value,
            headers: &headers,
            partition,
            timestamp_ms,
        })
    }
}

impl Router {
    /// A router for the events of `outbox`.
    ///
    /// # Errors
    /// A template uses a column that is not among the needed columns of `outbox`.
    pub fn new(outbox: &OutboxConfig) -> Result<Self, UnknownColumn> {
        let config = &outbox.route;
        let bind = |template: &Template| template.bind(|column| outbox.index_of(column));
        let bind_column = |column: &str| bind(&Template::column(column));
        let bind_named =
            |(name, template): &(String, Template)| Ok((name.clone(), bind(template)?));
        let value = match &config.value {
            ValueConfig::Template(template) => Value::One(bind(template)?),
            ValueConfig::Envelope { members, tombstone } => {
                let member = |(name, template): &(String, Template)| {
                    Ok((
                        format!("{}:", serde_json::Value::from(name.as_str())),
                        bind(template)?,
                    ))
                };
                Value::Envelope {
                    members: members.iter().map(member).collect::<Result<_, _>>()?,
                    tombstone: tombstone.as_deref().map(bind_column).transpose()?,
                }
            }
        };
        Ok(Router {
            topics: Topics::new(bind(&config.topic)?, config),
            key: config.key.as_ref().map(bind).transpose()?,
            headers: Headers {
                id: config.id_header.clone(),
                position: config.position_header.clone(),
                position_value: String::new(),
                origin_bytes: 0,
                named: config
                    .headers
                    .iter()
                    .map(bind_named)
                    .collect::<Result<_, _>>()?,
                members: config.headers_from.as_ref().map(bind).transpose()?,
                omit_null: config.null_headers == NullHeaders::Omit,
            },
            partition: config.partition.as_deref().map(bind_column).transpose()?,
            timestamp: config.timestamp.as_deref().map(bind_column).transpose()?,
            value,
            columns: outbox.columns.clone(),
            events: 0,
        })
    }

    /// Sets the server and timeline of the following events.
    pub fn set_origin(&mut self, system_identifier: &str, timeline: u32) {
        self.headers.position_value = format!("{system_identifier}:{timeline}:");
        self.headers.origin_bytes = self.headers.position_value.len();
    }

    /// The record of `event`. With the default templates, an aggregate type that is already known
    /// causes no allocation.
    ///
    /// # Errors
    /// [`RouteError`]: the event has no topic, the bus does not allow the topic, or a value does
    /// not fit its template.
    #[inline]
    pub fn route<'s>(&'s mut self, event: &'s Event<'s>) -> Result<Routed<'s>, RouteError> {
        self.events += 1;
        self.headers.set_place(event.place);
        let known = self
            .topics
            .selector
            .and_then(|place| self.topics.find(event.row.get(place)));
        let number = match known {
            Some(number) => number,
            None => self.topic(event)?,
        };
        self.record(event, number)
            .map_err(|error| self.unfit(event, error))
    }

    fn record<'s>(&'s self, event: &'s Event<'s>, topic: usize) -> Result<Routed<'s>, RenderError> {
        let row = &event.row;
        let key = match &self.key {
            Some(bound) => bound.render(row)?,
            None => None,
        };
        let headers = &self.headers;
        let mut more = Vec::with_capacity(headers.named.len());
        for (name, bound) in &headers.named {
            more.push((Cow::Borrowed(name.as_str()), bound.render(row)?));
        }
        let mut left_out = None;
        if let Some(bound) = &headers.members {
            more.extend(headers.of_members(bound, row, &mut left_out)?);
        }
        if headers.omit_null {
            more.retain(|(_, value)| value.is_some());
        }
        let mut fixed = [("", None); 3];
        let mut fixed_count = 0;
        let id = headers.id.as_deref().map(|name| (name, Some(event.id())));
        let position = headers
            .position
            .as_deref()
            .map(|name| (name, Some(headers.position_value.as_bytes())));
        let replay = (event.place.via == Via::Replay).then_some((REPLAY_HEADER, Some(&b"1"[..])));
        for (slot, header) in fixed
            .iter_mut()
            .zip(id.into_iter().chain(position).chain(replay))
        {
            *slot = header;
            fixed_count += 1;
        }
        let partition = number(
            self.partition.as_ref(),
            row,
            "the number of a partition",
            partition_in,
        )?;
        let timestamp_ms = number(
            self.timestamp.as_ref(),
            row,
            "a time since 1970",
            timestamp_ms_in,
        )?;
        Ok(Routed {
            topic: self.topics.name(topic),
            key,
            value: self.value.render(row)?,
            fixed,
            fixed_count,
            more,
            partition: partition.and_then(|partition| i32::try_from(partition).ok()),
            timestamp_ms,
            left_out,
        })
    }

    /// The record of an event without a route: its key, if any, and as value its columns as a JSON
    /// object. The topic is empty.
    pub(crate) fn unrouted(&self, event: &Event<'_>) -> OwnedRecord {
        let key = self
            .key
            .as_ref()
            .and_then(|bound| bound.render(&event.row).ok().flatten());
        let text = |bytes: &[u8]| serde_json::Value::from(String::from_utf8_lossy(bytes));
        let columns = self.columns.iter().enumerate();
        let row: Map<String, serde_json::Value> = columns
            .map(|(place, name)| {
                (
                    name.clone(),
                    event.row.get(place).map_or(serde_json::Value::Null, text),
                )
            })
            .collect();
        let id = self
            .headers
            .id
            .iter()
            .map(|name| (name.clone(), Some(event.id().to_vec())));
        OwnedRecord {
            topic: String::new(),
            key: key.map(|key| key.into_owned()),
            value: Some(serde_json::Value::Object(row).to_string().into_bytes()),
            headers: id.collect(),
            partition: None,
            timestamp_ms: None,
        }
    }

    /// The number of a topic that is not known yet.
    #[cold]
    fn topic(&mut self, event: &Event<'_>) -> Result<usize, RouteError> {
        let bound = &self.topics.bound;
        let rendered = bound
            .render(&event.row)
            .map_err(|error| self.unfit(event, error))?;
        let Some(topic) = rendered else {
            let null = bound.places().find(|place| event.row.get(*place).is_none());
            let column = self.column(null.unwrap_or_default());
            return Err(error(
                event,
                RouteProblem::NoTopic {
                    template: bound.source().to_owned(),
                    column,
                },
            ));
        };
        let selected = self.topics.selector.map(|place| event.row.get(place));
        if let Some(number) = self.topics.find(selected.unwrap_or(Some(topic.as_ref()))) {
            return Ok(number);
        }
        let topic = topic.into_owned();
        self.topics
            .learn(selected.unwrap_or(Some(topic.as_slice())), &topic)
            .map_err(|problem| {
                let template = self.topics.bound.source().to_owned();
                error(
                    event,
                    RouteProblem::Topic {
                        template,
                        topic: Shown::of(&topic),
                        problem,
                    },
                )
            })
    }

    fn column(&self, place: usize) -> String {
        self.columns.get(place).cloned().unwrap_or_default()
    }

    #[cold]
    fn unfit(&self, event: &Event<'_>, problem: RenderError) -> RouteError {
        let RenderError {
            template,
            place,
            needed,
        } = problem;
        error(
            event,
            RouteProblem::Value {
                template,
                column: self.column(place),
                needed,
            },
        )
    }
}

impl Headers {
    /// Writes the place of an event into the position header.
    #[inline]
    fn set_place(&mut self, place: Place) {
        if self.position.is_some() {
            self.position_value.truncate(self.origin_bytes);
            // Writing to a String does not fail.
            let from_table = if place.via == Via::Slot { "" } else { "t" };
            write!(
                self.position_value,
                "{}:{from_table}{}",
                place.commit_lsn, place.index
            )
            .unwrap_or_default();
        }
    }

    /// The headers that are members of a JSON object, without those that have a header's name or a
    /// reserved name.
    fn of_members(
        &self,
        bound: &Bound,
        row: &Row<'_>,
        left_out: &mut Option<String>,
    ) -> Result<Vec<MadeHeader<'static>>, RenderError> {
        let Some(object) = bound.render(row)? else {
            return Ok(Vec::new());
        };
        let not = |needed| bound.error(bound.places().next().unwrap_or_default(), needed);
        let members = members(&object).map_err(not)?;
        let named = [self.id.as_deref(), self.position.as_deref()]
            .into_iter()
            .flatten();
        let named: Vec<_> = named
            .chain(self.named.iter().map(|(name, _)| name.as_str()))
            .collect();
        let mut headers = Vec::with_capacity(members.len());
        let mut seen = HashSet::with_capacity(members.len());
        // Of members with one name the last counts, as in `jsonb`.
        for (name, value) in members.into_iter().rev() {
            if name.contains('\0') {
                return Err(not("a JSON object without NUL in the names of its members"));
            }
            if is_own_header(&name) {
                *left_out = Some(name.into_owned());
                continue;
            }
            if !named.contains(&name.as_ref()) && seen.insert(name.clone()) {
                let value = value.map(|value| Cow::Owned(value.into_owned().into_bytes()));
                headers.push((Cow::Owned(name.into_owned()), value));
            }
        }
        headers.reverse();
        Ok(headers)
    }
}

/// The number that `read` finds in the column; `None` for NULL, or without a column.
fn number(
    column: Option<&Bound>,
    row: &Row<'_>,
    needed: &'static str,
    read: fn(&Row<'_>, usize) -> Option<i64>,
) -> Result<Option<i64>, RenderError> {
    let Some((bound, place)) = column.and_then(|bound| Some((bound, bound.column()?))) else {
        return Ok(None);
    };
    match row.get(place) {
        Some(_) => read(row, place)
            .map(Some)
            .ok_or_else(|| bound.error(place, needed)),
        None => Ok(None),
    }
}

fn error(event: &Event<'_>, problem: RouteProblem) -> RouteError {
    RouteError {
        place: event.place,
        id: Shown::of(event.id()),
        problem,
    }
}

/// OID of `bigint`, which holds milliseconds.
const INT8: u32 = 20;
/// librdkafka's limit, `RD_KAFKAP_PARTITIONS_MAX`.
const PARTITIONS_MAX: i64 = 100_000;

fn partition_in(row: &Row<'_>, place: usize) -> Option<i64> {
    let number: i64 = std::str::from_utf8(row.get(place)?).ok()?.parse().ok()?;
    (0..PARTITIONS_MAX).contains(&number).then_some(number)
}

/// The time in the column at `place`, in Unix milliseconds: a `bigint` unchanged, any other type as
/// a timestamp.
fn timestamp_ms_in(row: &Row<'_>, place: usize) -> Option<i64> {
    let text = std::str::from_utf8(row.get(place)?).ok()?;
    let ms: i64 = if row.type_oid(place) == INT8 {
        text.parse().ok()?
    } else {
        Moment::read(text)?.millis()?
    };
    // The bus knows no time before 1970, and for librdkafka 0 is the time of production
    // (`rd_kafka_msg_new0`).
    (ms >= 0).then_some(ms.max(1))
}

/// The reason for which an event has no record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteProblem {
    #[error("template {template:?} makes topic {topic}, which {problem}")]
    Topic {
        template: String,
        topic: Shown,
        problem: TopicProblem,
    },
    /// A column that selects the topic is NULL.
    #[error("column {column} is NULL, and template {template:?} needs it for the topic")]
    NoTopic { template: String, column: String },
    #[error("column {column} is not {needed}, which template {template:?} needs")]
    Value {
        template: String,
        column: String,
        needed: &'static str,
    },
}

/// An event cannot be routed. The position stays before it: it is not skipped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}, row {id}: {problem}")]
pub struct RouteError {
    place: Place,
    id: Shown,
    pub problem: RouteProblem,
}

/// The shared part of all remedies.
const CORRECT: &str = "If the template or its column is not the one that was meant, correct the \
                       configuration; default('…') \
                       gives NULL a value. Otherwise keep such rows out with a CHECK on the column";

impl RouteError {
    /// The error for an operator, with slot and remedy. `ends`: it ends the relay, or the replay.
    pub fn into_error(self, slot: &SlotName, ends: bool) -> Error {
        // The slot sends the row as it was inserted, and a parked event has it as it was.
        let row = if ends && self.place.via != Via::Slot {
            "Correct the row in the table, or delete it. "
        } else {
            ""
        };
        let mut error = Error::new(Kind::Event, self.problem)
            .about(format_args!("slot {slot}: {}, row {}", self.place, self.id))
            .remedy(format_args!("{row}{CORRECT}"));
        error.is_of_event = true;
        error
    }

    /// The error for a row that is read from the table, and has no place.
    pub fn of_sample(self, on_error: OnError) -> Error {
        let run = match on_error {
            OnError::Stop => "stops at such a row",
            OnError::Park => "parks the event of such a row",
            OnError::DeadLetter => "makes a dead letter of such a row",
            OnError::Skip => "publishes no event of such a row",
        };
        Error::new(Kind::Event, self.problem)
            .of_row(self.id)
            .remedy(format_args!("`run` {run}. {CORRECT}"))
    }
}

/// OID of `bytea`, whose text form is not what was written.
const BYTEA: u32 = 17;

#[derive(Debug)]
enum Value {
    One(Bound),
    Envelope {
        /// The name of a member as JSON, with its colon; and its template.
        members: Vec<(String, Bound)>,
        /// The column whose NULL makes a tombstone.
        tombstone: Option<Bound>,
    },
}

impl Value {
    /// The value of a row; `None` is a tombstone. A value that is one unchanged column is not
    /// copied.
    #[inline]
    fn render<'s>(&'s self, row: &'s Row<'s>) -> Result<Option<Cow<'s, [u8]>>, RenderError> {
        match self {
            Value::One(bound) => match bound.column() {
                Some(place) if row.type_oid(place) == BYTEA => {
                    let bytes = row.get(place).map(bytea).transpose();
                    Ok(bytes
                        .map_err(|needed| bound.error(place, needed))?
                        .map(Cow::Owned))
                }
                _ => bound.render(row),
            },
            Value::Envelope {
                tombstone: Some(column),
                ..
            } if column.render(row)?.is_none() => Ok(None),
            Value::Envelope { members, .. } => {
                let mut object = vec![b'{'];
                for (number, (name, bound)) in members.iter().enumerate() {
                    if number > 0 {
                        object.push(b',');
                    }
                    object.extend_from_slice(name.as_bytes());
                    bound.append_json(row, &mut object)?;
                }
                object.push(b'}');
                Ok(Some(Cow::Owned(object)))
            }
        }
    }
}

/// The reason why a name is not a valid topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopicProblem {
    #[error("is empty")]
    Empty,
    #[error("is a name that no topic may have")]
    Refused,
    #[error("is one of walrelay's own topics, for its position and for dead letters")]
    Reserved,
    #[error("has {bytes} bytes, and a topic may have {bytes_max}")]
    TooLong { bytes: usize, bytes_max: usize },
    #[error(
        "holds other characters than a-z, A-Z, 0-9 and {0}, which are all that a topic may have"
    )]
    Characters(&'static str),
}

/// `name` as a topic, if the bus takes it by its `rule`.
fn checked(name: &[u8], rule: TopicRule) -> Result<&str, TopicProblem> {
    let bytes = name.len();
    let TopicRule {
        bytes_max,
        punctuation,
        refused,
    } = rule;
    if bytes > bytes_max {
        return Err(TopicProblem::TooLong { bytes, bytes_max });
    }
    let is_legal =
        |byte: &u8| byte.is_ascii_alphanumeric() || punctuation.as_bytes().contains(byte);
    if !name.iter().all(is_legal) {
        return Err(TopicProblem::Characters(punctuation));
    }
    match std::str::from_utf8(name) {
        Err(_) => Err(TopicProblem::Characters(punctuation)),
        Ok("") => Err(TopicProblem::Empty),
        Ok(topic) if refused.contains(&topic) => Err(TopicProblem::Refused),
        Ok(topic) => Ok(topic),
    }
}

/// The greatest number of known topics. At this number all are forgotten and learned again: topics
/// come from rows, and rows must not grow memory (P4, P11). Far more than the topics of one outbox.
const TOPICS_MAX: usize = 1024;

/// Topics by the value of the template's only column, or by the topic itself if the template has
/// several columns.
#[derive(Debug)]
struct Topics {
    bound: Bound,
    /// The only column of the template, if it has one.
    selector: Option<usize>,
    names: TopicNames,
    topics: Vec<String>,
    known: HashMap<Box<[u8]>, usize>,
    /// The topic that NULL makes.
    of_null: Option<usize>,
}

impl Topics {
    fn new(bound: Bound, config: &RouteConfig) -> Topics {
        let mut places = bound.places();
        let selector = places
            .next()
            .filter(|first| places.all(|place| place == *first));
        drop(places);
        Topics {
            bound,
            selector,
            names: config.topic_names.clone(),
            topics: Vec::new(),
            known: HashMap::new(),
            of_null: None,
        }
    }

    /// The number of the topic that this text makes, if it is known; `None` is NULL.
    #[inline]
    fn find(&self, made_of: Option<&[u8]>) -> Option<usize> {
        match made_of {
            Some(made_of) => self.known.get(made_of).copied(),
            None => self.of_null,
        }
    }

    #[inline]
    fn name(&self, number: usize) -> &str {
        self.topics.get(number).map_or("", String::as_str)
    }

    /// Adds `topic`, made of `made_of`, if the bus allows it.
    #[cold]
    fn learn(&mut self, made_of: Option<&[u8]>, topic: &[u8]) -> Result<usize, TopicProblem> {
        let topic = checked(topic, self.names.rule)?;
        if self.names.reserved.iter().any(|own| own == topic) {
            return Err(TopicProblem::Reserved);
        }
        if self.topics.len() >= TOPICS_MAX {
            self.topics.clear();
            self.known.clear();
            self.of_null = None;
        }
        let number = self.topics.len();
        self.topics.push(topic.to_owned());
        match made_of {
            Some(made_of) => {
                self.known.insert(made_of.into(), number);
            }
            None => self.of_null = Some(number),
        }
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Lab;

    /// Rows of a table with the default columns and some more.
    const COLUMNS: [&str; 7] = [
        "id",
        "aggregatetype",
        "aggregateid",
        "type",
        "payload",
        "tenant",
        "metadata",
    ];

    type Values = [Option<&'static str>; COLUMNS.len()];

    const ROW: Values = [
        Some("7"),
        Some("Order.v1"),
        Some("o-1"),
        Some("Placed"),
        Some(r#"{"b": 1, "a": 12.50}"#),
        None,
        Some(r#"{"traceparent": "00-ab", "n": 1}"#),
    ];

    /// The record of a row.
    #[derive(Debug)]
    struct Sent {
        topic: String,
        key: Option<String>,
        value: Option<String>,
        partition: Option<i32>,
        timestamp_ms: Option<i64>,
        /// Each as `name=value`.
        headers: Vec<String>,
    }

    struct Routes {
        outbox: OutboxConfig,
        router: Router,
    }

    impl Routes {
        fn new(change: impl FnOnce(&mut RouteConfig)) -> Routes {
            let topic_names = TopicNames {
                reserved: vec!["outbox.event.state".to_owned()],
                ..TopicNames::default()
            };
            let route = RouteConfig {
                topic_names,
                ..RouteConfig::default()
            };
            let mut outbox = OutboxConfig {
                route,
                ..OutboxConfig::default()
            };
            change(&mut outbox.route);
            outbox.need_only_routed();
            let router = Router::new(&outbox).unwrap();
            Routes { outbox, router }
        }

        fn try_route(
            &mut self,
            type_oid: u32,
            values: &[Option<&str>],
        ) -> Result<Sent, RouteError> {
            let lab = Lab::of_type(type_oid, &self.outbox, &COLUMNS, values);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let header = |(name, value): &(&str, Option<&[u8]>)| {
                format!("{name}={}", value.map_or("NULL".into(), text))
            };
            let sent = |record: &Record<'_>| Sent {
                topic: record.topic.to_owned(),
                key: record.key.map(text),
                value: record.value.map(text),
                partition: record.partition,
                timestamp_ms: record.timestamp_ms,
                headers: record.headers.iter().map(header).collect(),
            };
            self.router
                .route(&lab.event())
                .map(|routed| routed.with_record(sent))
        }

        fn route(&mut self, values: &[Option<&str>]) -> Sent {
            self.try_route(TEXT, values).unwrap()
        }

        fn problem(&mut self, values: &[Option<&str>]) -> String {
            self.try_route(TEXT, values)
                .unwrap_err()
                .problem
                .to_string()
        }
    }

    const TEXT: u32 = 25;
    const BYTEA: u32 = 17;
    const BIGINT: u32 = 20;

    fn with(place: usize, value: Option<&'static str>) -> Values {
        let mut row = ROW;
        row[place] = value;
        row
    }

    fn template(text: &str) -> Template {
        text.parse().unwrap()
    }

    #[test]
    fn the_default_record_equals_that_of_debezium() {
        let mut routes = Routes::new(|_| {});
        for _ in 0..2 {
            let sent = routes.route(&ROW);
            assert_eq!(sent.topic, "outbox.event.Order.v1");
            assert_eq!(
                (sent.key.as_deref(), sent.value.as_deref()),
                (Some("o-1"), ROW[4])
            );
            assert_eq!(sent.headers, ["id=7", "walrelay-position=0/64:3"]);
        }
    }

    #[test]
    fn null_makes_no_key_and_no_value_and_empty_text_makes_empty_ones() {
        for text in [None, Some("")] {
            let mut row = with(2, text);
            row[4] = text;
            let sent = Routes::new(|_| {}).route(&row);
            assert_eq!((sent.key.as_deref(), sent.value.as_deref()), (text, text));
            let sent =
                Routes::new(|route| (route.topic, route.key) = (template("all-events"), None))
                    .route(&row);
            assert_eq!((sent.topic.as_str(), sent.key), ("all-events", None));
        }
    }

    #[test]
    fn topic_key_and_headers_follow_their_templates() {
        let mut routes = Routes::new(|route| {
            route.topic = template("{type|lower}-out-{tenant|default('none')}");
            route.key = Some(template("{aggregatetype}/{aggregateid}"));
            route.position_header = None;
            let headers = [
                ("eventType", "{type}"),
                ("tenant", "{tenant}"),
                ("traceparent", "{metadata.traceparent}"),
            ];
            route.headers = headers
                .map(|(name, text)| (name.to_owned(), template(text)))
                .to_vec();
        });
        for _ in 0..2 {
            let sent = routes.route(&ROW);
            assert_eq!(
                (sent.topic.as_str(), sent.key.as_deref()),
                ("placed-out-none", Some("Order.v1/o-1"))
            );
            assert_eq!(
                sent.headers,
                [
                    "id=7",
                    "eventType=Placed",
                    "tenant=NULL",
                    "traceparent=00-ab"
                ]
            );
        }
        routes.outbox.route.null_headers = NullHeaders::Omit;
        let mut fewer = Routes::new(|route| *route = routes.outbox.route.clone());
        assert_eq!(
            fewer.route(&ROW).headers,
            ["id=7", "eventType=Placed", "traceparent=00-ab"]
        );
        assert_eq!(
            routes.route(&with(5, Some("acme"))).topic,
            "placed-out-acme"
        );
        assert_eq!(
            routes.route(&with(2, None)).key,
            None,
            "a NULL in it makes the whole key NULL"
        );
    }

    #[test]
    fn a_type_that_makes_no_topic_is_an_error_with_the_row_id_in_escaped_text() {
        let hostile = format!("a\n\x1b[2J{}", "x".repeat(100_000));
        let mut row: Vec<Option<&str>> = ROW.to_vec();
        row[0] = Some("7\x01");
        row[1] = Some(hostile.as_str());
        let error = Routes::new(|_| {})
            .try_route(TEXT, &row)
            .unwrap_err()
            .into_error(&"orders".parse().unwrap(), true);
        assert_eq!(error.kind(), Kind::Event);
        let start = "slot orders: event at index 3 of the transaction at 0/64, row \"7\\u{1}\": \
                     template \
                     \"outbox.event.{aggregatetype}\" makes topic \"outbox.event.a\\n\\u{1b}[2Jxxx";
        let text = error.to_string();
        assert!(
            text.starts_with(start) && text.ends_with(error.cause()),
            "{text}"
        );
        assert!(
            text.len() < 500 && !text.contains(char::is_control),
            "{text}"
        );
        assert!(
            error.is_of_event && error.what_to_do().unwrap().starts_with("If the template"),
            "{error:?}"
        );
    }

    /// Of a row with NULL in column `a`, of which the topic is made.
    fn no_topic(via: Via) -> RouteError {
        RouteError {
            place: Place {
                via,
                ..Place::default()
            },
            id: Shown::of(b"7"),
            problem: RouteProblem::NoTopic {
                template: "{a}".to_owned(),
                column: "a".to_owned(),
            },
        }
    }

    #[test]
    fn a_sampled_row_says_what_run_does_at_such_a_row() {
        for (on_error, does) in [
            (OnError::Stop, "`run` stops at such a row. "),
            (OnError::Park, "`run` parks the event of such a row. "),
            (
                OnError::DeadLetter,
                "`run` makes a dead letter of such a row. ",
            ),
            (OnError::Skip, "`run` publishes no event of such a row. "),
        ] {
            let fix = no_topic(Via::Slot)
                .of_sample(on_error)
                .what_to_do()
                .unwrap();
            assert_eq!(fix, format!("{does}{CORRECT}"));
        }
    }

    /// One that is given up may be deleted by then, and a parked event is tried as it was.
    #[test]
    fn a_row_of_the_table_is_to_be_corrected_where_it_ends_the_relay() {
        let error = |via, ends| no_topic(via).into_error(&"orders".parse().unwrap(), ends);
        for (via, ends, start) in [
            (Via::Table, true, "Correct the row in the table"),
            (Via::Replay, true, "Correct the row in the table"),
            (Via::Table, false, CORRECT),
            (Via::Slot, true, CORRECT),
        ] {
            let fix = error(via, ends).what_to_do().unwrap();
            assert!(fix.starts_with(start), "{via:?}, {ends}: {fix}");
        }
    }

    #[test]
    fn a_route_error_names_the_column_and_its_template() {
        let mut routes = Routes::new(|route| {
            route.headers = vec![("n".to_owned(), template("{metadata.n|lower}"))];
            route.value = ValueConfig::Template(template("{payload|strip('b')}"));
            route.partition = Some("type".to_owned());
        });
        let partition =
            "column type is not the number of a partition, which template \"{type}\" needs";
        for (place, value, problem) in [
            (
                1,
                None,
                "column aggregatetype is NULL, and template \"outbox.event.{aggregatetype}\" needs \
                 it for the topic",
            ),
            (
                1,
                Some("state"),
                "template \"outbox.event.{aggregatetype}\" makes topic \"outbox.event.state\"",
            ),
            (3, Some("-1"), partition),
            (3, Some("100000"), partition),
            (3, Some("x"), partition),
            (3, Some(""), partition),
            (
                4,
                Some("[]"),
                "column payload is not a JSON object, which template \"{payload|strip('b')}\" \
                 needs",
            ),
            (
                6,
                Some("no json"),
                "column metadata is not JSON, which template \"{metadata.n|lower}\" needs",
            ),
        ] {
            let mut row = with(3, Some("3"));
            row[place] = value;
            let found = routes.problem(&row);
            assert!(found.starts_with(problem), "{value:?}: {found}");
        }
    }

    #[test]
    fn a_template_column_that_is_not_selected_is_an_error() {
        let route = RouteConfig {
            topic: template("{nowhere}"),
            ..RouteConfig::default()
        };
        let outbox = OutboxConfig {
            route,
            ..OutboxConfig::default()
        };
        assert_eq!(Router::new(&outbox).unwrap_err().column, "nowhere");
    }

    #[test]
    fn a_value_may_be_a_template() {
        let mut routes = Routes::new(|route| {
            route.value = ValueConfig::Template(template("{payload|strip('b')}"))
        });
        assert_eq!(routes.route(&ROW).value.as_deref(), Some(r#"{"a": 12.50}"#));
        assert_eq!(routes.route(&with(4, None)).value, None);
    }

    #[test]
    fn an_envelope_is_a_json_object_of_its_members_in_order() {
        let member = |(name, text): (&str, &str)| (name.to_owned(), template(text));
        let members = [
            ("id", "{id}"),
            ("a \"quoted\" name", "{type}"),
            ("data", "{payload|json}"),
            ("tenant", "{tenant}"),
            ("n", "{metadata.n}"),
        ];
        let mut routes = Routes::new(|route| {
            let members = members.map(member).to_vec();
            route.value = ValueConfig::Envelope {
                members,
                tombstone: Some("payload".to_owned()),
            };
        });
        let expected = concat!(
            r#"{"id":"7","a \"quoted\" name":"Placed","data":{"b": 1, "a": 12.50},"#,
            r#""tenant":null,"n":1}"#
        );
        assert_eq!(routes.route(&ROW).value.as_deref(), Some(expected));
        assert_eq!(
            routes.route(&with(4, None)).value,
            None,
            "a tombstone was asked for"
        );
    }

    #[test]
    fn a_bytea_payload_is_published_as_its_bytes() {
        let mut routes = Routes::new(|_| {});
        let mut route = |payload| routes.try_route(BYTEA, &with(4, Some(payload)));
        assert_eq!(
            route("\\x00014a4A").unwrap().value.as_deref(),
            Some("\0\x01JJ")
        );
        assert_eq!(route("\\x").unwrap().value.as_deref(), Some(""));
        for bad in ["\\x0", "\\xzz", "\\000", ""] {
            let problem = route(bad).unwrap_err().to_string();
            assert!(
                problem.contains("column payload is not bytea in hexadecimal form"),
                "{bad}: {problem}"
            );
        }
    }

    #[test]
    fn a_record_has_id_and_position_headers_unless_switched_off() {
        let mut routes = Routes::new(|_| {});
        routes.router.set_origin("7412345678901234567", 2);
        for _ in 0..2 {
            assert_eq!(
                routes.route(&ROW).headers[1],
                "walrelay-position=7412345678901234567:2:0/64:3"
            );
        }
        let mut silent =
            Routes::new(|route| (route.id_header, route.position_header) = (None, None));
        assert_eq!(silent.route(&ROW).headers, [""; 0]);
    }

    #[test]
    fn partition_and_timestamp_are_taken_from_their_columns() {
        let mut routes = Routes::new(|route| {
            route.partition = Some("type".to_owned());
            route.timestamp = Some("tenant".to_owned());
        });
        let mut route = |type_oid, partition, timestamp| {
            let mut row = with(3, partition);
            row[5] = timestamp;
            routes.try_route(type_oid, &row)
        };
        for (type_oid, partition, timestamp, expected) in [
            (
                TEXT,
                Some("3"),
                Some("2024-05-06 05:08:09.123456+00"),
                (Some(3), Some(1_714_972_089_123)),
            ),
            (
                BIGINT,
                None,
                Some("1714979289123"),
                (None, Some(1_714_979_289_123)),
            ),
            (TEXT, None, None, (None, None)),
            // librdkafka takes 0 for the time of production.
            (TEXT, None, Some("1970-01-01 00:00:00"), (None, Some(1))),
            (BIGINT, None, Some("0"), (None, Some(1))),
            (
                TEXT,
                None,
                Some("9999-12-31 23:59:59.999+00"),
                (None, Some(253_402_300_799_999)),
            ),
            (
                TEXT,
                None,
                Some("12026-01-01 00:00:00"),
                (None, Some(317_336_745_600_000)),
            ),
        ] {
            let sent = route(type_oid, partition, timestamp).unwrap();
            assert_eq!(
                (sent.partition, sent.timestamp_ms),
                expected,
                "{timestamp:?}"
            );
        }
        for timestamp in [
            "infinity",
            "1969-12-31 00:00:00+00",
            "0044-03-15 00:00:00+00 BC",
            "",
        ] {
            let problem = route(TEXT, None, Some(timestamp))
                .unwrap_err()
                .problem
                .to_string();
            assert_eq!(
                problem,
                "column tenant is not a time since 1970, which template \"{tenant}\" needs"
            );
        }
    }

    #[test]
    fn members_of_a_json_object_become_headers_unless_the_name_exists() {
        let mut routes = Routes::new(|route| {
            route.headers = vec![("tenant".into(), template("{type}"))];
            route.headers_from = Some(template("{metadata}"));
        });
        let object = concat!(
            r#"{"traceparent": "00-ab", "tenant": "other", "id": "other", "n": 1, "#,
            r#""o": {"a": 1}, "n": 12.50, "none": null}"#
        );
        let own = ["id=7", "walrelay-position=0/64:3", "tenant=Placed"];
        let members = ["traceparent=00-ab", r#"o={"a": 1}"#, "n=12.50", "none=NULL"];
        assert_eq!(
            routes.route(&with(6, Some(object))).headers,
            [&own[..], &members].concat()
        );
        assert_eq!(
            routes.route(&with(6, None)).headers,
            own,
            "no object, no headers"
        );
        for (object, needed) in [
            ("[1]", "a JSON object"),
            ("x", "a JSON object"),
            (r#"{"a\u0000b": 1}"#, "without NUL"),
        ] {
            let error = routes.problem(&with(6, Some(object)));
            assert!(
                error.contains("column metadata is not a JSON object") && error.contains(needed),
                "{error}"
            );
        }
    }

    #[test]
    fn headers_from_a_row_leave_out_names_reserved_for_walrelay() {
        let mut routes = Routes::new(|route| {
            route.headers_from = Some(template("{metadata}"));
            // A reserved header cannot come from a member, even if it is not configured.
            route.position_header = None;
        });
        let object = r#"{"walrelay-position": "7:1:0/64:3", "a": "1", "Walrelay-Replay": "1",
                         "walrelay-settled": "replayed",
                         "walrelay-error-class": "x", "walrelay": "2", "x-walrelay-replay": "3"}"#;
        let row = with(6, Some(object));
        assert_eq!(
            routes.route(&row).headers,
            ["id=7", "a=1", "walrelay=2", "x-walrelay-replay=3"]
        );
        for (row, left_out) in [(row, Some("walrelay-position")), (ROW, None)] {
            let lab = Lab::new(&routes.outbox, &COLUMNS, &row);
            assert_eq!(
                routes.router.route(&lab.event()).unwrap().left_out(),
                left_out
            );
        }
    }

    #[test]
    fn a_topic_remembered_for_null_is_not_used_for_an_equal_text() {
        for null_first in [true, false] {
            let mut routes =
                Routes::new(|route| route.topic = template("orders.{tenant|default('none')}"));
            let mut rows = [
                (None, "orders.none"),
                (Some("orders.none"), "orders.orders.none"),
            ]
            .repeat(2);
            rows.rotate_left(usize::from(!null_first));
            for (tenant, expected) in rows {
                assert_eq!(routes.route(&with(5, tenant)).topic, expected);
            }
        }
    }

    #[test]
    fn a_topic_name_that_the_bus_does_not_allow_is_refused() {
        const RULE: TopicRule = TopicRule::DEFAULT;
        for good in [
            "outbox.event.Order.v2_a-1",
            "outbox.event.",
            "...",
            &"y".repeat(249),
        ] {
            assert_eq!(checked(good.as_bytes(), RULE), Ok(good));
        }
        assert_eq!(checked(b"", RULE), Err(TopicProblem::Empty));
        assert_eq!(checked(b".", RULE), Err(TopicProblem::Refused));
        assert_eq!(checked(b"..", RULE), Err(TopicProblem::Refused));
        let too_long = TopicProblem::TooLong {
            bytes: 250,
            bytes_max: 249,
        };
        assert_eq!(checked("y".repeat(250).as_bytes(), RULE), Err(too_long));
        for bad in [
            &b"a b"[..],
            b"a/b",
            b"a\0",
            b"a\n",
            "ä".as_bytes(),
            b"\xff",
            b"../x",
            b"a:b",
            b"a,b",
        ] {
            assert_eq!(
                checked(bad, RULE),
                Err(TopicProblem::Characters("._-")),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn the_number_of_remembered_topics_is_bounded_and_refused_ones_are_not_kept() {
        let mut topics = Topics::new(
            template("all").bind(|_| None).unwrap(),
            &RouteConfig::default(),
        );
        for round in 0..2 {
            for number in 0..10_000 {
                let name = format!("type-{number}");
                let at = topics.find(Some(name.as_bytes()));
                let at = at.unwrap_or_else(|| {
                    topics
                        .learn(Some(name.as_bytes()), name.as_bytes())
                        .unwrap()
                });
                assert_eq!(topics.name(at), name, "round {round}");
                assert!(
                    topics.topics.len() <= TOPICS_MAX && topics.known.len() == topics.topics.len()
                );
                topics
                    .learn(Some(format!("{name}!").as_bytes()), b"a b")
                    .unwrap_err();
            }
        }
    }
}
