//! The Outbox Event Router and the converters: topic, key, headers, value.

use super::Carrying;
use super::Effect::{Differs, MayDiffer, NoEffect};
use super::converter::Converter;
use super::given::{Form, Given};
use super::placement::{Place, Placed, placements};
use super::topic;
use crate::template::Template;

const PLACEMENT: &str = "router.table.fields.additional.placement";
const EXPAND: &str = "router.table.expand.json.payload";
const KEY: &str = "key.converter";
const VALUE: &str = "value.converter";
const HEADER: &str = "header.converter";
const TOMBSTONE: &str = "router.route.tombstone.on.empty.payload";
const NOT_NULL: &str = "carried as of a column that may be NULL: the schema of one that is NOT NULL says so, and has the column's \
                        default in it, if there is one; that of an enum has its labels";
const ASK_CONSUMERS: &str = "have consumers take the new form, or change the connector to it first and then move";

pub(super) fn carry(given: &Given, carrying: &mut Carrying) {
    let column = |name: &str, default| given.or(&format!("router.{name}"), default).unwrap_or(default);
    let id = column("table.field.event.id", "id");
    let event_type = column("table.field.event.type", "type");
    let payload = column("table.field.event.payload", "payload");
    for (setting, column, default) in [
        ("outbox.columns.id", id, "id"),
        ("outbox.columns.type", event_type, "type"),
        ("outbox.columns.payload", payload, "payload"),
    ] {
        if column != default {
            carrying.draft.set(setting, column);
        }
    }
    let route_by = column("route.by.field", "aggregatetype");
    route(given, carrying, route_by);
    key(given, carrying, column("table.field.event.key", "aggregateid"));
    carrying
        .draft
        .note("route.position_header", "Debezium has no such header; without this line it is walrelay-position.");
    carrying.draft.set("route.position_header", "");
    if let Some(timestamp) = given.get("router.table.field.event.timestamp").filter(|column| !column.is_empty()) {
        carrying.draft.set("route.timestamp", timestamp);
    }
    let placed = placed(given, carrying);
    headers(given, carrying, &placed, id, &[event_type, route_by]);
    value(given, carrying, &placed, payload);
}

fn route(given: &Given, carrying: &mut Carrying, column: &str) {
    const NAME: &str = "router.route.topic.replacement";
    let regex = given.or("router.route.topic.regex", topic::REGEX);
    let replacement = given.or(NAME, topic::REPLACEMENT).unwrap_or(topic::REPLACEMENT);
    // Quarkus takes ${…} for a variable unless it is escaped.
    let replacement = match given.form {
        Form::Server => replacement.replace("$${", "${").replace("\\${", "${"),
        Form::Connect => replacement.to_owned(),
    };
    let Some(regex) = regex else { return };
    match topic::template(column, regex, &replacement) {
        Ok(template) => carrying.draft.set("route.topic", &template),
        Err(why) => {
            let name = if given.has("router.route.topic.regex") { "router.route.topic.regex" } else { NAME };
            carrying.draft.note("route.topic", "topic = …  (the expression could not be carried)");
            let what_to_do = "write route.topic with match('…', '…') or a column that holds the topic";
            carrying.left(given, name, Differs, why, what_to_do);
        }
    }
}

fn key(given: &Given, carrying: &mut Carrying, column: &str) {
    let plain = Template::column(column).source().to_owned();
    let converter = Converter::of(given, "key");
    let template = match &converter {
        Converter::Text | Converter::Bytes => plain,
        Converter::Json { schemas: false } => piped(column, "connect('json')|default('null')"),
        Converter::Json { schemas: true } => {
            let what_to_do = "connect('schema', 'required') in route.key for a column that is NOT NULL";
            carrying.left(given, KEY, MayDiffer, NOT_NULL, what_to_do);
            piped(column, "connect('schema')")
        }
        Converter::Other(_) => {
            let why = format!(
                "the key was {}, and is the column's text. Other bytes go to other partitions",
                converter.shown()
            );
            carrying.left(given, KEY, Differs, why, ASK_CONSUMERS);
            plain
        }
        Converter::Unknown => {
            let why = "the worker's configuration says what a key looks like, and this file does not. Carried as if it \
                       were StringConverter";
            carrying.left(given, KEY, MayDiffer, why, "look at key.converter of the worker");
            plain
        }
    };
    carrying.draft.set("route.key", &template);
}

/// A template of a column and functions behind it.
fn piped(column: &str, functions: &str) -> String {
    let column = Template::column(column);
    format!("{}|{functions}}}", column.source().trim_end_matches('}'))
}

fn placed(given: &Given, carrying: &mut Carrying) -> Vec<Placed> {
    let mut placed = Vec::new();
    for one in placements(given.get(PLACEMENT).unwrap_or_default()) {
        match one {
            Ok(one) => placed.push(one),
            Err(text) => {
                let why = format!("{text:?} is no column:header, column:envelope or column:partition");
                carrying.left(given, PLACEMENT, Differs, why, "place the column in walrelay.toml by hand");
            }
        }
    }
    for one in placed.iter().filter(|one| one.place == Place::Partition).take(1) {
        carrying.draft.set("route.partition", &one.column);
    }
    placed
}

fn headers(given: &Given, carrying: &mut Carrying, placed: &[Placed], id: &str, known_to_be_text: &[&str]) {
    let converter = Converter::of(given, "header");
    let functions = match &converter {
        Converter::Text | Converter::Other(_) | Converter::Bytes | Converter::Unknown => "connect",
        Converter::Json { schemas: false } => "connect('json')|default('null')",
        Converter::Json { schemas: true } => "connect('schema')",
    };
    if let Converter::Json { schemas } = &converter {
        // The event's id is a header like the others.
        carrying.draft.set("route.id_header", "");
        let of_id = if *schemas { "connect('schema', 'required')" } else { functions };
        carrying.draft.header("id", &piped(id, of_id));
    }
    for one in placed.iter().filter(|one| one.place == Place::Header) {
        let is_plain = functions == "connect" && known_to_be_text.contains(&one.column.as_str());
        let plain = || Template::column(&one.column).source().to_owned();
        let template = if is_plain { plain() } else { piped(&one.column, functions) };
        if !carrying.draft.header(&one.alias, &template) {
            let why = format!("two columns are to be header {:?}, and a record has one of a name", one.alias);
            carrying.left(given, PLACEMENT, Differs, why, "give one of the two another name");
        }
    }
    match &converter {
        Converter::Text | Converter::Json { schemas: false } => {}
        Converter::Json { schemas: true } => {
            let what_to_do = "connect('schema', 'required') in [route.headers] for columns that are NOT NULL";
            carrying.left(given, HEADER, MayDiffer, NOT_NULL, what_to_do);
        }
        Converter::Other(_) | Converter::Bytes | Converter::Unknown => {
            let effect = if converter == Converter::Unknown { MayDiffer } else { Differs };
            let why = format!("headers were {}, the id too, and are text", converter.shown());
            carrying.left(given, HEADER, effect, why, ASK_CONSUMERS);
        }
    }
}

fn value(given: &Given, carrying: &mut Carrying, placed: &[Placed], payload: &str) {
    let converter = Converter::of(given, "value");
    let envelope: Vec<&Placed> = placed.iter().filter(|one| one.place == Place::Envelope).collect();
    let tombstone = given.is_true(TOMBSTONE);
    let expand = given.is_true(EXPAND).then(|| match given.get("router.table.json.payload.null.behavior") {
        Some("optional_bytes") => "expand('nulls')",
        _ => "expand",
    });
    if envelope.is_empty() {
        plain_value(given, carrying, &converter, payload, expand, tombstone);
        return;
    }
    if tombstone {
        carrying.draft.set("format.tombstone", "null-payload");
        let why = "a NULL is a tombstone, a text payload that is empty or blank is not. A json or jsonb cannot be that";
        carrying.left(given, TOMBSTONE, MayDiffer, why, "write NULL instead of an empty text");
    }
    carrying.draft.member("payload", &piped(payload, expand.unwrap_or("connect('json')")));
    for one in envelope {
        if !carrying.draft.member(&one.alias, &piped(&one.column, "connect('json')")) {
            let why = format!("two columns are to be member {:?} of the envelope", one.alias);
            carrying.left(given, PLACEMENT, Differs, why, "give one of the two another name");
        }
    }
    match &converter {
        Converter::Json { schemas: false } => {}
        Converter::Unknown => unknown_value(given, carrying, "JsonConverter without schemas"),
        Converter::Text => {
            let why = "the value was Java's text of a structure (Struct{…}), and is a JSON object";
            carrying.left(given, VALUE, Differs, why, ASK_CONSUMERS);
        }
        Converter::Json { schemas: true } | Converter::Bytes | Converter::Other(_) => {
            let why = format!("the value was {}, and is a JSON object", converter.shown());
            carrying.left(given, VALUE, Differs, why, ASK_CONSUMERS);
        }
    }
    if expand.is_some() {
        expanded(given, carrying);
    }
}

fn plain_value(
    given: &Given,
    carrying: &mut Carrying,
    converter: &Converter,
    payload: &str,
    expand: Option<&str>,
    tombstone: bool,
) {
    let json = |functions: &str| match tombstone {
        true => format!("filled|{functions}"),
        false => format!("{functions}|default('null')"),
    };
    let functions = match (converter, expand) {
        (Converter::Json { schemas: false }, Some(expand)) => {
            expanded(given, carrying);
            json(expand)
        }
        (Converter::Json { schemas: false }, None) => json("connect('json')"),
        (Converter::Json { schemas: true }, None) => {
            let what_to_do = "connect('schema', 'required') in format.value where the payload is NOT NULL";
            carrying.left(given, VALUE, MayDiffer, NOT_NULL, what_to_do);
            if tombstone { "filled|connect('schema', 'tombstone')" } else { "connect('schema')" }.to_owned()
        }
        (Converter::Text | Converter::Unknown, _) if tombstone => "filled".to_owned(),
        _ => String::new(),
    };
    if !functions.is_empty() {
        carrying.draft.set("format.value", &piped(payload, &functions));
    }
    match (converter, expand) {
        (Converter::Text, Some(_)) => {
            let why = "the value was Java's text of a structure (Struct{…}), and is the payload as it stands";
            carrying.left(given, EXPAND, Differs, why, ASK_CONSUMERS);
        }
        (Converter::Json { schemas: true }, Some(_)) | (Converter::Other(_), _) => {
            let why = format!("the value was {}, and is the payload as it stands", converter.shown());
            carrying.left(given, VALUE, Differs, why, ASK_CONSUMERS);
        }
        (Converter::Unknown, _) => unknown_value(given, carrying, "StringConverter"),
        (Converter::Text | Converter::Bytes | Converter::Json { .. }, _) => {}
    }
}

fn unknown_value(given: &Given, carrying: &mut Carrying, as_if: &str) {
    let why = format!(
        "the worker's configuration says what a value looks like, and this file does not. Carried as if it were {as_if}"
    );
    carrying.left(given, VALUE, MayDiffer, why, "look at value.converter of the worker");
}

fn expanded(given: &Given, carrying: &mut Carrying) {
    let why = "carried. What Debezium fails on (an array of several at the top, a number of more than 64 bits) is sent, \
               and what it loses in objects nested in arrays is kept";
    carrying.left(given, EXPAND, NoEffect, why, "");
}
