//! The Outbox Event Router and the converters: topic, key, headers, value.

use super::Carrying;
use super::Effect::{Differs, MayDiffer};
use super::converter::Converter;
use super::given::{Form, Given};
use super::placement::{Place, Placed, placements};
use super::topic;
use crate::config::setting;
use crate::template::Template;

const PLACEMENT: &str = "router.table.fields.additional.placement";
const EXPAND: &str = "router.table.expand.json.payload";
const KEY: &str = "key.converter";
const VALUE: &str = "value.converter";
const HEADER: &str = "header.converter";
const ASK_CONSUMERS: &str = "have consumers take the new form, or change the connector to it first and then move";

pub(super) fn carry(given: &Given, carrying: &mut Carrying) {
    let column = |name: &str, default| given.or(&format!("router.{name}"), default).unwrap_or(default);
    let id = column("table.field.event.id", "id");
    let event_type = column("table.field.event.type", "type");
    let payload = column("table.field.event.payload", "payload");
    for (setting, column, default) in [
        (&setting::COLUMN_ID, id, "id"),
        (&setting::COLUMN_TYPE, event_type, "type"),
        (&setting::COLUMN_PAYLOAD, payload, "payload"),
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
        .note(&setting::POSITION_HEADER, "Debezium has no such header; without this line it is walrelay-position.");
    carrying.draft.set(&setting::POSITION_HEADER, "");
    if let Some(timestamp) = given.get("router.table.field.event.timestamp").filter(|column| !column.is_empty()) {
        carrying.draft.set(&setting::TIMESTAMP, timestamp);
    }
    let placed = placed(given, carrying);
    headers(given, carrying, &placed, &[event_type, route_by]);
    value(given, carrying, &placed, payload, &[event_type, route_by]);
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
        Ok(template) => carrying.draft.set(&setting::TOPIC, &template),
        Err(why) => {
            let name = if given.has("router.route.topic.regex") { "router.route.topic.regex" } else { NAME };
            carrying.draft.note(&setting::TOPIC, "topic = …  (the expression could not be carried)");
            let what_to_do = "write route.topic with match('…', '…') or a column that holds the topic";
            carrying.left(given, name, Differs, why, what_to_do);
        }
    }
}

fn key(given: &Given, carrying: &mut Carrying, column: &str) {
    let mut template = Template::column(column).source().to_owned();
    let converter = Converter::of(given, "key");
    match &converter {
        Converter::Text | Converter::Bytes => {}
        Converter::Json { schemas: false } => {
            template = format!("\"{template}\"");
            let why = "carried with quotes around it, as JSON writes a text. A number has none, and a quote or \
                       backslash in a key is not escaped";
            carrying.left(given, KEY, MayDiffer, why, "take the quotes out of route.key where the column is a number");
        }
        Converter::Json { schemas: true } | Converter::Other(_) => {
            let why = format!(
                "the key was {}, and is the column's text. Other bytes go to other partitions",
                converter.shown()
            );
            carrying.left(given, KEY, Differs, why, ASK_CONSUMERS);
        }
        Converter::Unknown => {
            let why = "the worker's configuration says what a key looks like, and this file does not. Carried as if it \
                       were StringConverter";
            carrying.left(given, KEY, MayDiffer, why, "look at key.converter of the worker");
        }
    }
    carrying.draft.set(&setting::KEY, &template);
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
        carrying.draft.set(&setting::PARTITION, &one.column);
    }
    placed
}

fn headers(given: &Given, carrying: &mut Carrying, placed: &[Placed], known_to_be_text: &[&str]) {
    let mut untyped = Vec::new();
    for one in placed.iter().filter(|one| one.place == Place::Header) {
        if !carrying.draft.header(&one.alias, Template::column(&one.column).source()) {
            let why = format!("two columns are to be header {:?}, and a record has one of a name", one.alias);
            carrying.left(given, PLACEMENT, Differs, why, "give one of the two another name");
        } else if !known_to_be_text.contains(&one.column.as_str()) {
            untyped.push(one.column.as_str());
        }
    }
    let converter = Converter::of(given, "header");
    match &converter {
        Converter::Text => {}
        Converter::Json { .. } | Converter::Other(_) | Converter::Bytes | Converter::Unknown => {
            let effect = if converter == Converter::Unknown { MayDiffer } else { Differs };
            let why = format!("headers were {}, the id too, and are text as it is", converter.shown());
            carrying.left(given, HEADER, effect, why, ASK_CONSUMERS);
        }
    }
    if !untyped.is_empty() {
        let why = format!(
            "header of {}: the same for text, uuid, json, numbers and NULL. A boolean is t or f, a timestamp or date as \
             Postgres prints it, a bytea hexadecimal",
            untyped.join(", ")
        );
        let what_to_do = "by type: {column|match('t', 'true')|match('f', 'false')}; {column|rfc3339} for a timestamptz";
        carrying.left(given, PLACEMENT, MayDiffer, why, what_to_do);
    }
}

fn value(given: &Given, carrying: &mut Carrying, placed: &[Placed], payload: &str, known_to_be_text: &[&str]) {
    let expand = given.is_true(EXPAND);
    let converter = Converter::of(given, "value");
    let envelope: Vec<&Placed> = placed.iter().filter(|one| one.place == Place::Envelope).collect();
    let tombstone = given.is_true("router.route.tombstone.on.empty.payload");
    if tombstone {
        let why = "a NULL is a tombstone here, too; a text payload that is empty or blank is sent as it is. A json or \
                   jsonb cannot be that";
        carrying.left(
            given,
            "router.route.tombstone.on.empty.payload",
            MayDiffer,
            why,
            "write NULL instead of an empty text",
        );
    }
    if envelope.is_empty() {
        plain_value(given, carrying, &converter, expand);
        return;
    }
    if tombstone {
        carrying.draft.set(&setting::TOMBSTONE, "null-payload");
    }
    let field = Template::column(payload).source().to_owned();
    let field = if expand { field } else { format!("{}|text}}", field.trim_end_matches('}')) };
    carrying.draft.member("payload", &field);
    let mut untyped = Vec::new();
    for one in envelope {
        if !carrying.draft.member(&one.alias, Template::column(&one.column).source()) {
            let why = format!("two columns are to be member {:?} of the envelope", one.alias);
            carrying.left(given, PLACEMENT, Differs, why, "give one of the two another name");
        } else if !known_to_be_text.contains(&one.column.as_str()) {
            untyped.push(one.column.as_str());
        }
    }
    if !untyped.is_empty() {
        let why = format!(
            "member of {}: the same for text, uuid, integers, booleans and NULL. A numeric is a number, json is embedded, \
             a timestamp or date as Postgres prints it",
            untyped.join(", ")
        );
        let what_to_do = "by type: {column|text} for json, {column|rfc3339} for a timestamptz";
        carrying.left(given, PLACEMENT, MayDiffer, why, what_to_do);
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
    if expand {
        expanded(given, carrying);
    }
}

fn plain_value(given: &Given, carrying: &mut Carrying, converter: &Converter, expand: bool) {
    match converter {
        Converter::Text if expand => {
            let why = "the value was Java's text of a structure (Struct{…}), and is the payload as it stands";
            carrying.left(given, EXPAND, Differs, why, ASK_CONSUMERS);
        }
        Converter::Text | Converter::Bytes => {}
        Converter::Json { schemas: false } if expand => expanded(given, carrying),
        Converter::Json { schemas: false } => {
            let why = "the value was a JSON string that holds the payload (\"{\\\"a\\\": 1}\"), and is the payload as it \
                       stands; for a NULL it was the four letters null, and is a tombstone";
            carrying.left(given, VALUE, Differs, why, ASK_CONSUMERS);
        }
        Converter::Json { schemas: true } | Converter::Other(_) => {
            let why = format!("the value was {}, and is the payload as it stands", converter.shown());
            carrying.left(given, VALUE, Differs, why, ASK_CONSUMERS);
        }
        Converter::Unknown => unknown_value(given, carrying, "StringConverter"),
    }
}

fn unknown_value(given: &Given, carrying: &mut Carrying, as_if: &str) {
    let why = format!(
        "the worker's configuration says what a value looks like, and this file does not. Carried as if it were {as_if}"
    );
    carrying.left(given, VALUE, MayDiffer, why, "look at value.converter of the worker");
}

fn expanded(given: &Given, carrying: &mut Carrying) {
    let keeps_null = given.get("router.table.json.payload.null.behavior") == Some("optional_bytes");
    let nulls = if keeps_null { "" } else { ", members that are null stay" };
    let why = format!(
        "the same JSON in other bytes: there are blanks behind : and , in a jsonb, numbers stay as they were written\
         {nulls}. For a NULL payload it was the four letters null"
    );
    carrying.left(
        given,
        EXPAND,
        Differs,
        why,
        "nothing, where consumers read it with a JSON parser and take null for absent",
    );
}
