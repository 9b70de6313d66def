//! One outbox: from its settings to an [`OutboxConfig`].

use super::file::Layer;
use super::model::{Delete, KEYS, NullHeaders, Tombstone};
use super::name::{IDENTIFIER_BYTES_MAX, TABLE_NAME, TOPIC_BYTES_MAX, is_closed, is_number, is_plain};
use super::{EventSource, MESSAGE_LSN, OutboxConfig, RouteConfig, Upkeep, ValueConfig};
use crate::error::{Error, Kind, Result};
use crate::template::Template;

const TEMPLATE_REMEDY: &str = "text with columns in braces, such as orders.{type|lower}; docs/mapping.md has all of it";

/// Where events of one outbox are from, and where they go.
pub(super) fn outbox(layer: &Layer) -> Result<OutboxConfig> {
    let source = event_source(layer)?;
    let id = match &source {
        // Every message has one, and no two have the same.
        EventSource::Messages(_) if layer.get("outbox.columns.id").is_none() => MESSAGE_LSN.to_owned(),
        EventSource::Messages(_) | EventSource::Table(_) => column(layer, "outbox.columns.id")?,
    };
    let upkeep = upkeep(layer, &source)?;
    let mut outbox = OutboxConfig {
        source,
        id,
        aggregate_type: column(layer, "outbox.columns.aggregatetype")?,
        aggregate_id: column(layer, "outbox.columns.aggregateid")?,
        event_type: column(layer, "outbox.columns.type")?,
        payload: column(layer, "outbox.columns.payload")?,
        max_attempts: optional_column(layer, "outbox.columns.max_attempts")?,
        columns: Vec::new(),
        row_key: None,
        upkeep,
        route: route(layer)?,
    };
    outbox.need_only_routed();
    Ok(outbox)
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
    let model = &layer.model.outbox;
    let upkeep = Upkeep {
        pending: sql(layer, "outbox.pending")?,
        order_by: sql(layer, "outbox.order_by")?,
        time: optional_column(layer, "outbox.time")?,
        mark: sql(layer, "outbox.mark")?,
        mark_failed: sql(layer, "outbox.mark_failed")?,
        mark_waiting: sql(layer, "outbox.mark_waiting")?,
        delete: model.delete == Delete::Acked,
        retention: model.retention.map(|retention| retention.duration()),
        notify: optional_column(layer, "outbox.notify")?,
    };
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
    let prefix = layer.checked("route.topic_prefix", allowed, |prefix| {
        prefix.len() < TOPIC_BYTES_MAX && prefix.bytes().all(is_plain)
    })?;
    let topic = template(layer, "route.topic")?;
    let key = template(layer, "route.key")?;
    Ok(RouteConfig {
        topic: topic.unwrap_or_else(|| Template::prefixed(&prefix, layer.text("outbox.columns.aggregatetype"))),
        key: match key {
            Some(key) => Some(key).filter(|key| !key.source().is_empty()),
            None => Some(Template::column(layer.text("outbox.columns.aggregateid"))),
        },
        id_header: header_name(layer, "route.id_header")?,
        position_header: header_name(layer, "route.position_header")?,
        partition: optional_column(layer, "route.partition")?,
        timestamp: optional_column(layer, "route.timestamp")?,
        headers: headers(layer)?,
        headers_from: headers_from(layer)?,
        omit_null_headers: model.null_headers == NullHeaders::Omit,
        value: value(layer)?,
        reserved_topics: Vec::new(),
    })
}

/// The name of a header of walrelay's own; `None` where it is empty.
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

/// Templates of headers, if each has a name.
fn headers(layer: &Layer) -> Result<Vec<(String, Template)>> {
    for name in layer.model.route.headers.keys() {
        let path = format!("route.headers.{name}");
        if name.is_empty() || name.contains('\0') {
            let cause = format!("{}: {name:?} is no header's name", layer.origin(&path));
            return Err(Error::new(Kind::Config, cause)
                .remedy("a header's name has one character or more, and no NUL among them"));
        }
        if is_own_header(name) {
            return Err(own_header(layer, &path, "route.headers", name));
        }
    }
    named_templates(layer, "route.headers", &layer.model.route.headers)
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

/// How the headers begin that say something to walrelay itself: a place in the log, a replay, a dead letter.
const OWN_HEADERS: &str = "walrelay-";

/// Whether a header of this name is walrelay's own. None that a row brings is.
pub(crate) fn is_own_header(name: &str) -> bool {
    name.get(..OWN_HEADERS.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(OWN_HEADERS))
}

fn own_header(layer: &Layer, path: &str, of: &str, name: &str) -> Error {
    let origin = layer.origin(path);
    let cause = format!("{origin}: {of} has {name:?}, and names that begin with {OWN_HEADERS} are walrelay's own");
    Error::new(Kind::Config, cause).remedy("give the header another name")
}

fn named_templates(layer: &Layer, table: &str, named: &toml::Table) -> Result<Vec<(String, Template)>> {
    let mut templates = Vec::new();
    for (name, text) in named {
        let path = format!("{table}.{name}");
        if !text.is_str() {
            let remedy = format!("write \"{name}\" = \"{{column}}\"; a name with a dot in it needs its quotes");
            return Err(layer.error(&path, "must be a template in quotes", remedy));
        }
        templates.push((name.clone(), layer.parsed(&path, TEMPLATE_REMEDY)?));
    }
    Ok(templates)
}

/// The template that was given, if any was.
fn template(layer: &Layer, path: &str) -> Result<Option<Template>> {
    layer.get(path).map(|_| layer.parsed(path, TEMPLATE_REMEDY)).transpose()
}

fn column(layer: &Layer, path: &str) -> Result<String> {
    let fits = |name: &str| (1..=IDENTIFIER_BYTES_MAX).contains(&name.len()) && !name.contains('\0');
    layer.checked(path, "a column's name, 1 to 63 bytes, without SQL quotes", fits)
}

/// A column, unless its name is empty: so an `[[outbox]]` does without a value that the others have.
fn optional_column(layer: &Layer, path: &str) -> Result<Option<String>> {
    if layer.text(path).is_empty() { Ok(None) } else { column(layer, path).map(Some) }
}

/// SQL for the middle of a statement: text that ends a statement, or hides the rest of one, is refused.
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
    fn several_outboxes_have_what_is_said_for_all_unless_they_say_it_themselves() {
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
    fn an_outbox_does_without_what_the_others_have() {
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
    fn how_often_an_event_may_be_tried_is_read_with_it() {
        let text = "[outbox.columns]\nmax_attempts = 'max_retries'\n[outbox]\nmark_waiting = 'n = :attempts'";
        let outboxes = outboxes(text).unwrap();
        let [outbox] = outboxes.as_slice() else { panic!("{}", outboxes.len()) };
        assert_eq!(outbox.max_attempts.as_deref(), Some("max_retries"));
        assert_eq!(outbox.columns.join(" "), "id aggregatetype aggregateid max_retries payload");
        assert_eq!(outbox.upkeep.mark_waiting.as_deref(), Some("n = :attempts"));
    }

    #[test]
    fn what_is_meant_for_one_outbox_and_for_none_is_refused() {
        let table = [
            ("[route.headers]\n\"a\\u0000b\" = 'x'", "w.toml:2: \"a\\0b\" is no header's name"),
            ("[route.headers]\n'' = 'x'", "w.toml:2: \"\" is no header's name"),
            ("[[outbox]]\ntable = 'a'\n[[outbox]]\ntable = 'public.a'", "two [[outbox]]es are public.a"),
            (
                "[[outbox]]\ntable = 'a'\nmessage_prefix = 'b'",
                "w.toml:2: outbox.table is set, and outbox.message_prefix, too (w.toml:3)",
            ),
            ("[route]\nheaders_from = 'metadata'", "w.toml:2: route.headers_from names no column"),
            ("[outbox]\nmessage_prefix = ''", "w.toml:2: outbox.message_prefix cannot be \"\""),
            ("[outbox]\nmark = 'a = 1; drop table b'", "w.toml:2: outbox.mark cannot be \"a = 1; drop table b\""),
            ("[outbox]\npending = 'a -- b'", "w.toml:2: outbox.pending cannot be \"a -- b\""),
            ("[outbox]\npending = 'true) or (true'", "w.toml:2: outbox.pending cannot be \"true) or (true\""),
            (
                "[outbox]\norder_by = '(1)'",
                "w.toml:2: outbox.order_by is a number, which Postgres reads as the position of a column",
            ),
            ("[outbox]\npending = 'not a'", "w.toml:2: outbox.pending is set, and rows would be pending for ever"),
            ("[outbox]\nmark = 'a = true'\ndelete = 'acked'", "w.toml:2: outbox.mark is set, and outbox.delete, too"),
            (
                "[outbox]\nmessage_prefix = 'a'\ndelete = 'acked'",
                "messages with prefix \"a\": pending, mark and the like are for rows of a table",
            ),
            (
                "[[outbox]]\ntable = 'a b'",
                "w.toml:2: outbox.table: \"a b\" is not a table name: there is something behind the name; quote names with \"…\"",
            ),
        ];
        for (text, cause) in table {
            let error = outboxes(text).unwrap_err();
            assert_eq!((error.cause(), error.kind()), (cause, Kind::Config), "{text}");
            assert!(error.what_to_do().is_some(), "{text}: nothing to do");
        }
    }
}
