//! The router: templates bound to places, the record they make of an event, and the errors.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Write;

use serde_json::Map;

use super::topic::Topics;
use super::{OwnedRecord, Record, TopicProblem};
use crate::config::outbox::is_own_header;
use crate::config::{OutboxConfig, SlotName, ValueConfig};
use crate::error::{Error, Kind};
use crate::event::{Event, Place, Row, Shown, Via};
use crate::template::{Bound, RenderError, Template, UnknownColumn, bytea, members, timestamp};

/// A template and where its columns are.
#[derive(Debug)]
struct Route {
    template: Template,
    bound: Bound,
}

/// Makes records of events.
#[derive(Debug)]
pub struct Router {
    topic: Route,
    /// The one place that makes the topic, if it is one.
    selector: Option<usize>,
    key: Option<Route>,
    headers: Vec<(String, Route)>,
    headers_from: Option<Route>,
    omit_null_headers: bool,
    id_header: Option<String>,
    position_header: Option<String>,
    /// `SYSTEM_IDENTIFIER:TIMELINE:`, and behind it the place of the event that was routed last.
    position: String,
    /// Length of what is the same for every event.
    origin: usize,
    partition: Option<usize>,
    timestamp: Option<usize>,
    value: Value,
    reserved_topics: Vec<String>,
    /// Names of the needed columns by place, for errors.
    columns: Vec<String>,
    topics: Topics,
}

/// Header of an event that was published before and is again because somebody asked for it. Its value is `1`.
pub const REPLAY_HEADER: &str = "walrelay-replay";

/// A header's name and value.
type Header<'s> = (&'s str, Option<&'s [u8]>);

/// A header that may have been put together for this event.
type MadeHeader<'s> = (Cow<'s, str>, Option<Cow<'s, [u8]>>);

/// A routed event, which lends itself as a [`Record`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routed<'s> {
    topic: &'s str,
    key: Option<Cow<'s, [u8]>>,
    value: Option<Cow<'s, [u8]>>,
    /// Those that every event has: most outboxes need no more, and so no allocation.
    fixed: [Header<'s>; 3],
    fixed_count: usize,
    more: Vec<MadeHeader<'s>>,
    partition: Option<i32>,
    timestamp_ms: Option<i64>,
    left_out: Option<String>,
}

impl Routed<'_> {
    /// The name of a header that the row has and the record has not, because such names are walrelay's own: a row could
    /// say with it that it is a replay, or settles a dead letter, or was published before.
    pub fn left_out(&self) -> Option<&str> {
        self.left_out.as_deref()
    }

    /// Hands the record to `take`, as often as it is called.
    #[inline]
    pub fn with_record<T>(&self, take: impl FnOnce(&Record<'_>) -> T) -> T {
        let (topic, key, value) = (self.topic, self.key.as_deref(), self.value.as_deref());
        let (partition, timestamp_ms) = (self.partition, self.timestamp_ms);
        let fixed = self.fixed.get(..self.fixed_count).unwrap_or_default();
        if self.more.is_empty() {
            return take(&Record { topic, key, value, headers: fixed, partition, timestamp_ms });
        }
        let more = self.more.iter().map(|(name, value)| (name.as_ref(), value.as_deref()));
        let headers: Vec<_> = fixed.iter().copied().chain(more).collect();
        take(&Record { topic, key, value, headers: &headers, partition, timestamp_ms })
    }
}

impl Router {
    /// Routes events of `outbox` by its rules.
    ///
    /// # Errors
    /// A template needs a column that `outbox` does not list as needed.
    pub fn new(outbox: &OutboxConfig) -> Result<Self, UnknownColumn> {
        let config = &outbox.route;
        let bind = |template: &Template| {
            let bound = template.bind(|column| outbox.place(column))?;
            Ok(Route { template: template.clone(), bound })
        };
        let topic = bind(&config.topic)?;
        let mut places = topic.bound.places();
        let selector = places.next().filter(|first| places.all(|place| place == *first));
        drop(places);
        let headers = config.headers.iter().map(|(name, template)| Ok((name.clone(), bind(template)?)));
        let place = |column: &str| {
            let unknown = || Template::column(column).source().to_owned();
            outbox.place(column).ok_or_else(|| UnknownColumn { template: unknown(), column: column.to_owned() })
        };
        let value = Value::new(&config.value, |template| Ok(bind(template)?.bound), place)?;
        Ok(Router {
            selector,
            topic,
            key: config.key.as_ref().map(bind).transpose()?,
            headers: headers.collect::<Result<_, _>>()?,
            headers_from: config.headers_from.as_ref().map(bind).transpose()?,
            omit_null_headers: config.omit_null_headers,
            id_header: config.id_header.clone(),
            position_header: config.position_header.clone(),
            position: String::new(),
            origin: 0,
            partition: config.partition.as_deref().map(place).transpose()?,
            timestamp: config.timestamp.as_deref().map(place).transpose()?,
            value,
            reserved_topics: config.reserved_topics.clone(),
            columns: outbox.columns.clone(),
            topics: Topics::default(),
        })
    }

    /// Events come from this server and timeline from here on.
    pub fn set_origin(&mut self, system_identifier: &str, timeline: u32) {
        self.position = format!("{system_identifier}:{timeline}:");
        self.origin = self.position.len();
    }

    /// The record of `event`. By default it allocates nothing for an aggregate type that came before.
    ///
    /// # Errors
    /// [`RouteError`]: there is no topic, Kafka does not take it, or a value does not fit its template.
    #[inline]
    pub fn route<'s>(&'s mut self, event: &'s Event<'s>) -> Result<Routed<'s>, RouteError> {
        if self.position_header.is_some() {
            self.position.truncate(self.origin);
            // Writing to a String does not fail.
            let from_table = if event.place.via == Via::Slot { "" } else { "t" };
            write!(self.position, "{}:{from_table}{}", event.place.commit_lsn, event.place.index).unwrap_or_default();
        }
        let known = self.selector.and_then(|place| self.topics.find(event.row.get(place)));
        let number = match known {
            Some(number) => number,
            None => self.topic(event)?,
        };
        let render = |route: &'s Route| {
            route.bound.render(&event.row).map_err(|error| self.unfit(event, &route.template, error))
        };
        let key = match &self.key {
            Some(route) => render(route)?,
            None => None,
        };
        let mut more = Vec::with_capacity(self.headers.len());
        for (name, route) in &self.headers {
            more.push((Cow::Borrowed(name.as_str()), render(route)?));
        }
        let mut left_out = None;
        if let Some(route) = &self.headers_from {
            more.extend(self.members(route, event, &mut left_out)?);
        }
        if self.omit_null_headers {
            more.retain(|(_, value)| value.is_some());
        }
        let (mut fixed, mut fixed_count) = ([("", None); 3], 0);
        let id = self.id_header.as_deref().map(|name| (name, Some(event.id())));
        let position = self.position_header.as_deref().map(|name| (name, Some(self.position.as_bytes())));
        let replay = (event.place.via == Via::Replay).then_some((REPLAY_HEADER, Some(&b"1"[..])));
        for (slot, header) in fixed.iter_mut().zip(id.into_iter().chain(position).chain(replay)) {
            *slot = header;
            fixed_count += 1;
        }
        let number_in = |place: Option<usize>, needed, read: fn(&Row<'_>, usize) -> Option<i64>| match place {
            Some(place) if event.row.get(place).is_some() => {
                let number = read(&event.row, place);
                number.map(Some).ok_or_else(|| self.unreadable(event, place, needed))
            }
            _ => Ok(None),
        };
        let partition = number_in(self.partition, "the number of a partition", partition_in)?;
        let timestamp_ms = number_in(self.timestamp, "a time since 1970", timestamp_ms_in)?;
        let value = self.value.render(&event.row).map_err(|(template, error)| self.unfit(event, template, error))?;
        let partition = partition.and_then(|partition| i32::try_from(partition).ok());
        let topic = self.topics.name(number);
        Ok(Routed { topic, key, value, fixed, fixed_count, more, partition, timestamp_ms, left_out })
    }

    /// What is known of an event that cannot be routed: its key, if it has one, and for a value the needed columns as a
    /// JSON object of texts. The topic is empty.
    pub fn unrouted(&self, event: &Event<'_>) -> OwnedRecord {
        let key = self.key.as_ref().and_then(|route| route.bound.render(&event.row).ok().flatten());
        let text = |bytes: &[u8]| serde_json::Value::from(String::from_utf8_lossy(bytes));
        let columns = self.columns.iter().enumerate();
        let row: Map<String, serde_json::Value> = columns
            .map(|(place, name)| (name.clone(), event.row.get(place).map_or(serde_json::Value::Null, text)))
            .collect();
        let id = self.id_header.iter().map(|name| (name.clone(), Some(event.id().to_vec())));
        OwnedRecord {
            topic: String::new(),
            key: key.map(|key| key.into_owned()),
            value: Some(serde_json::Value::Object(row).to_string().into_bytes()),
            headers: id.collect(),
            partition: None,
            timestamp_ms: None,
        }
    }

    /// The number of the event's topic, which has not been met before.
    #[cold]
    fn topic(&mut self, event: &Event<'_>) -> Result<usize, RouteError> {
        let template = &self.topic.template;
        let rendered = self.topic.bound.render(&event.row).map_err(|error| self.unfit(event, template, error))?;
        let Some(topic) = rendered else {
            let mut places = self.topic.bound.places();
            let column = self.column(places.find(|place| event.row.get(*place).is_none()).unwrap_or_default());
            let problem = RouteProblem::NoTopic { template: template.source().to_owned(), column };
            return Err(error(event, problem));
        };
        let made_of = self.selector.map_or(Some(topic.as_ref()), |place| event.row.get(place));
        if let Some(number) = self.topics.find(made_of) {
            return Ok(number);
        }
        let learned = self.topics.learn(made_of, &topic, &self.reserved_topics);
        learned.map_err(|problem: TopicProblem| {
            let (template, topic) = (template.source().to_owned(), Shown::of(&topic));
            error(event, RouteProblem::Topic { template, topic, problem })
        })
    }

    /// The headers that are members of a JSON object, without those that are there by name or are walrelay's own.
    fn members(
        &self,
        route: &Route,
        event: &Event<'_>,
        left_out: &mut Option<String>,
    ) -> Result<Vec<MadeHeader<'static>>, RouteError> {
        let unfit = |error| self.unfit(event, &route.template, error);
        let Some(object) = route.bound.render(&event.row).map_err(unfit)? else { return Ok(Vec::new()) };
        let place = route.bound.places().next().unwrap_or_default();
        let members = members(&object).map_err(|needed| unfit(RenderError { place, needed }))?;
        let named = [self.id_header.as_deref(), self.position_header.as_deref()].into_iter().flatten();
        let named: Vec<_> = named.chain(self.headers.iter().map(|(name, _)| name.as_str())).collect();
        let mut headers = Vec::with_capacity(members.len());
        let mut seen = HashSet::with_capacity(members.len());
        // Of members with one name the last counts, as in `jsonb`.
        for (name, value) in members.into_iter().rev() {
            if name.contains('\0') {
                let needed = "a JSON object without NUL in the names of its members";
                return Err(unfit(RenderError { place, needed }));
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

    fn column(&self, place: usize) -> String {
        self.columns.get(place).cloned().unwrap_or_default()
    }

    #[cold]
    fn unreadable(&self, event: &Event<'_>, place: usize, needed: &'static str) -> RouteError {
        let column = self.column(place);
        self.unfit(event, &Template::column(&column), RenderError { place, needed })
    }

    #[cold]
    fn unfit(&self, event: &Event<'_>, template: &Template, problem: RenderError) -> RouteError {
        let RenderError { place, needed } = problem;
        let problem =
            RouteProblem::Value { template: template.source().to_owned(), column: self.column(place), needed };
        error(event, problem)
    }
}

fn error(event: &Event<'_>, problem: RouteProblem) -> RouteError {
    RouteError { place: event.place, id: Shown::of(event.id()), problem }
}

/// OID of `bigint`, which holds milliseconds.
const INT8: u32 = 20;
/// librdkafka's limit, `RD_KAFKAP_PARTITIONS_MAX`.
const PARTITIONS_MAX: i64 = 100_000;

/// The partition in this place.
fn partition_in(row: &Row<'_>, place: usize) -> Option<i64> {
    let number: i64 = std::str::from_utf8(row.get(place)?).ok()?.parse().ok()?;
    (0..PARTITIONS_MAX).contains(&number).then_some(number)
}

/// The time in this place in milliseconds since the Unix epoch: a `bigint` as it is, anything else as a timestamp.
fn timestamp_ms_in(row: &Row<'_>, place: usize) -> Option<i64> {
    let text = std::str::from_utf8(row.get(place)?).ok()?;
    let ms = if row.type_oid(place) == INT8 { text.parse().ok()? } else { timestamp(text)?.as_millisecond() };
    // Kafka knows no time before 1970.
    (ms >= 0).then_some(ms)
}

/// The reason for which an event has no record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteProblem {
    /// Kafka does not take the topic.
    #[error("template {template:?} makes topic {topic}, which {problem}")]
    Topic {
        /// The template as it was written.
        template: String,
        /// What it makes of the row.
        topic: Shown,
        /// What is wrong with that.
        problem: TopicProblem,
    },
    /// There is no topic: a column that selects it is NULL.
    #[error("column {column} is NULL, and template {template:?} needs it for the topic")]
    NoTopic {
        /// The template as it was written.
        template: String,
        /// The column.
        column: String,
    },
    /// A value is not what a template needs.
    #[error("column {column} is not {needed}, which template {template:?} needs")]
    Value {
        /// The template as it was written.
        template: String,
        /// The column.
        column: String,
        /// What it should be.
        needed: &'static str,
    },
}

/// An event cannot be routed. The position stays before it: it is not skipped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}, row {id}: {problem}")]
pub struct RouteError {
    /// The event.
    pub place: Place,
    /// The row's id.
    pub id: Shown,
    /// What is wrong with it.
    pub problem: RouteProblem,
}

/// The part of the remedy that all errors share.
const CORRECT: &str = "If the template or its column is not the one that was meant, correct the configuration; default('…') \
                       gives NULL a value. Otherwise keep such rows out with a CHECK on the column";

impl RouteError {
    /// What an operator reads: what happened, on which slot, and what to do.
    pub fn into_error(self, slot: &SlotName) -> Error {
        Error::new(Kind::Event, self.problem)
            .about(format_args!("slot {slot}: {}, row {}", self.place, self.id))
            .remedy(format_args!(
                "nothing was skipped, and nothing behind this row is delivered. {CORRECT}. To pass this one over, {}; that \
                 gives the whole transaction up",
                self.place.give_up(slot)
            ))
    }

    /// The same of a row that is not in the stream, and whose place is not known.
    pub fn of_sample(self) -> Error {
        Error::new(Kind::Event, self.problem)
            .of_row(self.id)
            .remedy(format_args!("`run` stops at such a row. {CORRECT}"))
    }
}

/// OID of `bytea`, whose text form is not what was written.
const BYTEA: u32 = 17;

/// Templates bound to places.
#[derive(Debug)]
pub(super) enum Value {
    One(Template, Bound),
    Envelope {
        /// A member's name as JSON with its colon, and its template.
        members: Vec<(String, Template, Bound)>,
        /// The place that, where it is NULL, makes a tombstone.
        tombstone: Option<usize>,
    },
}

impl Value {
    /// Binds by `bind`, which binds templates, and `place`, which finds columns.
    ///
    /// # Errors
    /// Those of `bind` and `place`.
    pub(super) fn new<E>(
        config: &ValueConfig,
        bind: impl Fn(&Template) -> Result<Bound, E>,
        place: impl Fn(&str) -> Result<usize, E>,
    ) -> Result<Value, E> {
        Ok(match config {
            ValueConfig::Template(template) => Value::One(template.clone(), bind(template)?),
            ValueConfig::Envelope { members, tombstone } => {
                let member = |(name, template): &(String, Template)| {
                    let name = format!("{}:", serde_json::Value::from(name.as_str()));
                    Ok((name, template.clone(), bind(template)?))
                };
                Value::Envelope {
                    members: members.iter().map(member).collect::<Result<_, E>>()?,
                    tombstone: tombstone.as_deref().map(place).transpose()?,
                }
            }
        })
    }

    /// The value of a row; `None` is a tombstone. A column as it stands is not copied.
    ///
    /// # Errors
    /// The template that a value does not fit.
    #[inline]
    pub(super) fn render<'s>(&'s self, row: &'s Row<'s>) -> Result<Option<Cow<'s, [u8]>>, (&'s Template, RenderError)> {
        match self {
            Value::One(template, bound) => match bound.column() {
                Some(place) if row.type_oid(place) == BYTEA => bytes(row, place).map_err(|error| (template, error)),
                Some(place) => Ok(row.get(place).map(Cow::Borrowed)),
                None => bound.render(row).map_err(|error| (template, error)),
            },
            Value::Envelope { tombstone: Some(place), .. } if row.get(*place).is_none() => Ok(None),
            Value::Envelope { members, .. } => {
                let mut object = vec![b'{'];
                for (number, (name, template, bound)) in members.iter().enumerate() {
                    if number > 0 {
                        object.push(b',');
                    }
                    object.extend_from_slice(name.as_bytes());
                    bound.append_json(row, &mut object).map_err(|error| (template, error))?;
                }
                object.push(b'}');
                Ok(Some(Cow::Owned(object)))
            }
        }
    }
}

/// The bytes of a `bytea`, which are not its text.
fn bytes<'s>(row: &Row<'s>, place: usize) -> Result<Option<Cow<'s, [u8]>>, RenderError> {
    let Some(text) = row.get(place) else { return Ok(None) };
    let needed = "bytea in hexadecimal form";
    bytea(text).map(|bytes| Some(Cow::Owned(bytes))).ok_or(RenderError { place, needed })
}

#[cfg(test)]
mod tests;
