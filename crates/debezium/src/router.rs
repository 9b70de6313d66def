//! The Outbox Event Router and the converters: topic, key, headers, value.

use regex::Regex;

use crate::Carrying;
use crate::Effect::{Differs, MayDiffer, NoEffect, ToDo};
use crate::columns::{ASK_CONSUMERS, has_plain_schema, is_bytea, is_structure, is_text, unlike};
use crate::given::{Form, Given};
use walrelay_core::catalog::{self, Column};
use walrelay_core::config::draft::{ENVELOPE, HEADERS};
use walrelay_core::template::{Template, of_java};

const REGEX: &str = "(?<routedByValue>.*)";
const REPLACEMENT: &str = "outbox.event.${routedByValue}";
const PLACEMENT: &str = "router.table.fields.additional.placement";
const EXPAND: &str = "router.table.expand.json.payload";
const KEY: &str = "key.converter";
const VALUE: &str = "value.converter";
const HEADER: &str = "header.converter";
const SCHEMA_VERSION: &str = "router.table.field.event.schema.version";
const TOMBSTONE: &str = "router.route.tombstone.on.empty.payload";
const NOT_NULL: &str = "carried as of a column that may be NULL: the schema of one that is NOT \
                        NULL says so, and has the column's \
                        default in it, if there is one; that of an enum has its labels, and that \
                        of an ltree its name";
const NOT_IN_SCHEMA: &str = "the schema has neither the column's default, nor the labels of an \
                             enum, nor the name of an ltree";
const OTHER_MEMBERS: &str =
    "Debezium has no record of a payload with other members than the first of its version";
const GIVE_DATABASE: &str = "give --database-url: then the column's type is known";

/// The columns without which there is no record: id, what the topic is made of, key, payload.
pub(crate) fn needed_columns(given: &Given) -> [&str; 4] {
    [
        ("router.table.field.event.id", "id"),
        ("router.route.by.field", "aggregatetype"),
        ("router.table.field.event.key", "aggregateid"),
        ("router.table.field.event.payload", "payload"),
    ]
    .map(|(option, default)| given.or(option, default).unwrap_or(default))
}

pub(crate) fn carry(carrying: &mut Carrying<'_>) {
    let given = carrying.given;
    let [id, route_by, key_column, payload] = needed_columns(given);
    let event_type = given
        .or("router.table.field.event.type", "type")
        .unwrap_or("type");
    for (setting, column, default) in [
        ("outbox.columns.id", id, "id"),
        ("outbox.columns.type", event_type, "type"),
        ("outbox.columns.payload", payload, "payload"),
    ] {
        if column != default {
            carrying.draft.set(setting, column);
        }
    }
    id_that_may_be_null(carrying, id);
    route(carrying, route_by);
    key(carrying, key_column);
    carrying.draft.note(
        "route.position_header",
        "Debezium has no such header; without this line it is walrelay-position.",
    );
    carrying.draft.set("route.position_header", "");
    let placed = placed(carrying);
    // Debezium Server sends records without timestamp and partition of their own:
    // `KafkaChangeConsumer.handle`.
    if given.form == Form::Connect {
        let timestamp = given
            .get("router.table.field.event.timestamp")
            .filter(|column| !column.is_empty());
        timestamp
            .into_iter()
            .for_each(|column| record_timestamp(carrying, column));
        let partition = placed
            .iter()
            .find(|one| one.placement == Placement::Partition);
        partition
            .into_iter()
            .for_each(|one| carrying.draft.set("route.partition", &one.column));
    }
    headers(carrying, &placed, id, &[event_type, route_by]);
    value(carrying, &placed, payload);
    let of_placed = |one: &Placed| {
        if one.placement == Placement::Header {
            "header"
        } else {
            "value"
        }
    };
    let written = placed
        .iter()
        .map(|one| (of_placed(one), one.column.as_str()));
    let written: Vec<_> = [("key", key_column), ("header", id), ("value", payload)]
        .into_iter()
        .chain(written)
        .collect();
    decimals(carrying, &written);
    let columns = [id, key_column, payload]
        .into_iter()
        .chain(placed.iter().map(|one| one.column.as_str()));
    unlike(carrying, columns);
}

/// Lists the column of the event's id, where it may be NULL.
fn id_that_may_be_null(carrying: &mut Carrying<'_>, id: &str) {
    let is_doubtful = if carrying.tables.is_empty() {
        id != "id"
    } else {
        !carrying.is_known(id, Column::is_never_null)
    };
    if is_doubtful {
        let why = "carried. A row whose event id is NULL stops the relay; Debezium sends a record \
                   whose header has no value";
        carrying.left(
            "router.table.field.event.id",
            ToDo,
            why,
            "make the column NOT NULL",
        );
    }
}

fn record_timestamp(carrying: &mut Carrying<'_>, column: &str) {
    const NAME: &str = "router.table.field.event.timestamp";
    const TIMES: &str = "a time before 1970 ends Debezium's task, and infinity the relay; \
                         1970-01-01 00:00:00 becomes 1 ms, and \
                         years after 294246 are themselves";
    carrying.draft.set("route.timestamp", column);
    if carrying.is_known(column, |column| column.base.name == "timestamp") {
        carrying.left(
            NAME,
            ToDo,
            format!("carried; {TIMES}"),
            "let no row have such a time",
        );
    } else {
        let why = format!(
            "carried; of a timestamptz, a date or a bigint Debezium makes no record, and walrelay \
             one; {TIMES}"
        );
        carrying.left(NAME, MayDiffer, why, "find out whether events were lost");
    }
}

/// Lists `decimal.format=NUMERIC` where its digits are not written: in a schema, of a column whose
/// type is not known, or of one that is numeric in some outboxes only. `written` has the columns of
/// each converter.
fn decimals(carrying: &mut Carrying<'_>, written: &[(&str, &str)]) {
    for of in ["key", "value", "header"] {
        // Of a numeric without precision, the format is not asked.
        let is_fixed = |column: &&Column| is_numeric(column) && column.type_modifier >= 0;
        let columns: Vec<&str> = written
            .iter()
            .filter(|one| one.0 == of)
            .map(|one| one.1)
            .collect();
        let has = |fits: &dyn Fn(&str) -> bool| columns.iter().any(|column| fits(column));
        let is_mixed = has(&|column| {
            carrying.columns(column).into_iter().any(is_numeric)
                && !carrying.is_known(column, is_numeric)
        });
        let is_in_schema = Converter::of(carrying.given, of) == Converter::Json { schemas: true };
        let schemas = is_in_schema && has(&|column| carrying.columns(column).iter().any(is_fixed));
        let is_unknown = carrying.tables.is_empty();
        if is_in_digits(carrying.given, of) && (schemas || is_unknown || is_mixed) {
            let effect = if is_unknown || !schemas {
                MayDiffer
            } else {
                Differs
            };
            let why = "a numeric(p,s) is written in base64, which is Kafka Connect's default";
            let what_to_do = match (is_in_schema, is_unknown) {
                (true, _) => ASK_CONSUMERS,
                (false, true) => GIVE_DATABASE,
                (false, false) => {
                    "write {COLUMN|connect|json} for the outboxes whose column is numeric"
                }
            };
            carrying.left(
                &format!("{of}.converter.decimal.format"),
                effect,
                why,
                what_to_do,
            );
        }
    }
}

fn route(carrying: &mut Carrying<'_>, column: &str) {
    const BY: &str = "router.route.by.field";
    const EXPRESSION: &str = "router.route.topic.regex";
    const NAME: &str = "router.route.topic.replacement";
    let given = carrying.given;
    if let Some(other) = carrying
        .columns(column)
        .into_iter()
        .find(|column| !is_text(column))
    {
        let why = format!(
            "column {column} is of type {}. Debezium makes no record of a value that is not text, \
             and walrelay one",
            other.type_name
        );
        carrying.left(BY, MayDiffer, why, "find out whether events were lost");
    }
    let regex = given.or(EXPRESSION, REGEX);
    let replacement = given.or(NAME, REPLACEMENT).unwrap_or(REPLACEMENT);
    // Quarkus takes ${…} for a variable unless it is escaped.
    let replacement = match given.form {
        Form::Server => replacement.replace("$${", "${").replace("\\${", "${"),
        Form::Connect => replacement.to_owned(),
    };
    let is_elsewhere = given.has(BY) && given.get(BY).is_none();
    let made = regex
        .filter(|_| !is_elsewhere)
        .ok_or_else(|| "its value is filled in elsewhere".to_owned());
    let made = made.and_then(|regex| topic(column, regex, &replacement));
    let template = made.unwrap_or_else(|why| {
        let name = match given.has(EXPRESSION) {
            _ if is_elsewhere => BY,
            true => EXPRESSION,
            false => NAME,
        };
        let what_to_do = "write route.topic with match('…', '…') or a column that holds the topic";
        carrying.draft.note(
            "route.topic",
            &format!("WRITE THIS: {why}. Until then no relay starts with this file."),
        );
        carrying.left(name, Differs, why, what_to_do);
        // No function: with a line that is left out, all events would go to the default topic.
        Template::written(column, "|write_this_by_hand")
    });
    carrying.draft.set("route.topic", &template);
}

fn key(carrying: &mut Carrying<'_>, column: &str) {
    let converter = Converter::of_column(carrying, "key", Some(column));
    let functions = match &converter {
        Converter::Text => printed(carrying, KEY, column),
        Converter::Bytes => {
            let why = "a key of bytes was these bytes, and is Postgres' text of a bytea (\\x…). \
                       Other bytes go to other \
                       partitions";
            carrying.left(KEY, Differs, why, ASK_CONSUMERS);
            ""
        }
        Converter::Json { schemas: false } => "connect('json')|default('null')",
        Converter::Json { schemas: true } => {
            let what_to_do =
                "connect('schema', 'required') in route.key for a column that is NOT NULL";
            schema(carrying, KEY, &[column], what_to_do);
            with_schema(carrying, column)
        }
        Converter::Other(_) => {
            let why = format!(
                "the key was {}, and is the column's text. Other bytes go to other partitions",
                converter.shown()
            );
            carrying.left(KEY, Differs, why, ASK_CONSUMERS);
            ""
        }
        Converter::Unknown => {
            let why = "the worker's configuration says what a key looks like, and this file does \
                       not. Carried as if it \
                       were StringConverter";
            carrying.left(KEY, MayDiffer, why, "look at key.converter of the worker");
            "connect"
        }
    };
    carrying
        .draft
        .set("route.key", &written(carrying, "key", column, functions));
}

/// The function that writes a column with its schema.
fn with_schema(carrying: &Carrying<'_>, column: &str) -> &'static str {
    if carrying.is_known(column, |column| column.not_null) {
        "connect('schema', 'required')"
    } else {
        "connect('schema')"
    }
}

/// Lists, under `option`, columns whose schemas lack something.
fn schema(carrying: &mut Carrying<'_>, option: &str, columns: &[&str], what_to_do: &str) {
    if carrying.tables.is_empty() {
        carrying.left(option, MayDiffer, NOT_NULL, what_to_do);
        return;
    }
    let is_whole = |column: &&&str| {
        let is_one = carrying.is_known(column, |column| column.not_null)
            || carrying.is_known(column, |column| !column.not_null);
        is_one && carrying.is_known(column, has_plain_schema)
    };
    let lacking: Vec<_> = columns
        .iter()
        .filter(|column| !is_whole(column))
        .copied()
        .collect();
    if !lacking.is_empty() {
        let why = format!(
            "carried for {}: {NOT_IN_SCHEMA}, and a column is NOT NULL in all outboxes or in none",
            lacking.join(", ")
        );
        carrying.left(option, MayDiffer, why, ASK_CONSUMERS);
    }
}

/// The function that writes a column as StringConverter does: `toString` of the value. None where
/// Postgres prints the same.
///
/// Lists a column of which neither does, under `option`.
fn printed(carrying: &mut Carrying<'_>, option: &str, name: &str) -> &'static str {
    let has_java_text = |column: &&Column| {
        is_structure(column)
            || column.base.category == "A"
            || column.base.name == "bytea"
            || (column.base.name == "numeric" && column.type_modifier < 0 && !column.base.domain)
    };
    if let Some(column) = carrying.columns(name).into_iter().find(has_java_text) {
        let of = &column.type_name;
        let java = "[a, b] or java.nio.HeapByteBuffer[…]";
        let why = format!(
            "column {name} is of type {of}, of which the text was Java's, such as {java}, and is \
             another"
        );
        carrying.left(option, Differs, why, ASK_CONSUMERS);
    }
    if carrying.is_known(name, is_printed_alike) {
        ""
    } else {
        "connect"
    }
}

/// Whether Postgres prints a value as `toString` of Debezium's does.
fn is_printed_alike(column: &Column) -> bool {
    let is_other = matches!(column.form(), catalog::Form::Bytea | catalog::Form::Numeric);
    !is_other && (column.can_name() || column.can_hold_event())
}

fn is_numeric(column: &Column) -> bool {
    matches!(column.base.name.as_str(), "numeric" | "_numeric")
}

/// Whether a converter writes a `Decimal` as its digits: `JsonConverter.LOGICAL_CONVERTERS` of
/// Kafka Connect.
fn is_in_digits(given: &Given, of: &str) -> bool {
    let format = converter_option(given, of, "decimal.format").unwrap_or_default();
    format.eq_ignore_ascii_case("NUMERIC")
        && matches!(Converter::of(given, of), Converter::Json { .. })
}

/// A template of a column and functions behind it, which write a `numeric` in digits if the
/// converter of `of` does.
fn written(carrying: &Carrying<'_>, of: &str, column: &str, functions: &str) -> String {
    if functions.is_empty() {
        return Template::written(column, "");
    }
    let is_in_digits = is_in_digits(carrying.given, of) && carrying.is_known(column, is_numeric);
    let json = if is_in_digits {
        "connect|json"
    } else {
        "connect('json')"
    };
    Template::written(
        column,
        &format!("|{}", functions.replace("connect('json')", json)),
    )
}

/// The columns of `table.fields.additional.placement`, which has commas between them.
fn placed(carrying: &mut Carrying<'_>) -> Vec<Placed> {
    let mut placed = Vec::new();
    let list = carrying.given.get(PLACEMENT).unwrap_or_default();
    for text in list
        .split(',')
        .map(str::trim)
        .filter(|text| !text.is_empty())
    {
        match Placed::of(text) {
            Some(one) => placed.push(one),
            None => {
                let why =
                    format!("{text:?} is no column:header, column:envelope or column:partition");
                carrying.left(
                    PLACEMENT,
                    Differs,
                    why,
                    "place the column in walrelay.toml by hand",
                );
            }
        }
    }
    placed
}

fn headers(carrying: &mut Carrying<'_>, placed: &[Placed], id: &str, known_to_be_text: &[&str]) {
    let converter = Converter::of(carrying.given, "header");
    let functions = match &converter {
        Converter::Text | Converter::Other(_) | Converter::Bytes | Converter::Unknown => "connect",
        Converter::Json { schemas: false } => "connect('json')|default('null')",
        Converter::Json { schemas: true } => "connect('schema')",
    };
    let has_schemas = converter == Converter::Json { schemas: true };
    let is_text = carrying
        .given
        .get(HEADER)
        .is_some_and(|class| class.ends_with("StringConverter"));
    if is_text {
        printed(carrying, HEADER, id);
    }
    let is_as_printed = functions == "connect"
        && (carrying.tables.is_empty() || carrying.is_known(id, is_printed_alike));
    if !is_as_printed {
        // The event's id is a header like the others.
        carrying.draft.set("route.id_header", "");
        let of_id = match has_schemas {
            true if carrying.tables.is_empty() => "connect('schema', 'required')",
            true => with_schema(carrying, id),
            false => functions,
        };
        carrying
            .draft
            .named(HEADERS, "id", &written(carrying, "header", id, of_id));
    }
    let of_headers = placed
        .iter()
        .filter(|one| one.placement == Placement::Header);
    for one in of_headers.clone() {
        if is_text {
            printed(carrying, HEADER, &one.column);
        }
        let is_plain = functions == "connect" && known_to_be_text.contains(&one.column.as_str());
        let functions = match is_plain {
            true => "",
            false if has_schemas => with_schema(carrying, &one.column),
            false => functions,
        };
        let template = written(carrying, "header", &one.column, functions);
        if !carrying.draft.named(HEADERS, &one.alias, &template) {
            let why = format!(
                "two columns are to be header {:?}, and a record has one of a name",
                one.alias
            );
            carrying.left(PLACEMENT, Differs, why, "give one of the two another name");
        }
    }
    let columns: Vec<_> = of_headers.map(|one| one.column.as_str()).collect();
    if is_text && carrying.tables.is_empty() && !columns.is_empty() {
        let why = "carried as SimpleHeaderConverter. Java's text of an array, a bytea or a numeric \
                   without precision ([a, b], java.nio.HeapByteBuffer[…], Struct{…}) is another";
        carrying.left(HEADER, MayDiffer, why, GIVE_DATABASE);
    }
    converter_of_headers(carrying, &converter, id, &columns);
}

/// Lists the converter of headers, where they differ. The event's id is a header like these
/// `columns`.
fn converter_of_headers(
    carrying: &mut Carrying<'_>,
    converter: &Converter,
    id: &str,
    columns: &[&str],
) {
    match converter {
        Converter::Text | Converter::Json { schemas: false } => {}
        Converter::Json { schemas: true } => {
            let what_to_do =
                "connect('schema', 'required') in [route.headers] for columns that are NOT NULL";
            schema(carrying, HEADER, &[&[id], columns].concat(), what_to_do);
        }
        Converter::Other(_) | Converter::Bytes | Converter::Unknown => {
            let effect = if *converter == Converter::Unknown {
                MayDiffer
            } else {
                Differs
            };
            let why = format!(
                "headers were {}, the id too, and are text",
                converter.shown()
            );
            carrying.left(HEADER, effect, why, ASK_CONSUMERS);
        }
    }
}

/// The function that expands the payload.
fn expansion(given: &Given) -> &'static str {
    match given.get("router.table.json.payload.null.behavior") {
        Some(behavior) if behavior.trim().eq_ignore_ascii_case("optional_bytes") => {
            "expand('nulls')"
        }
        _ => "expand",
    }
}

fn value(carrying: &mut Carrying<'_>, placed: &[Placed], payload: &str) {
    let given = carrying.given;
    let envelope: Vec<&Placed> = placed
        .iter()
        .filter(|one| one.placement == Placement::Envelope)
        .collect();
    let tombstone = given.is_true(TOMBSTONE);
    let expand = given.is_true(EXPAND).then(|| expansion(given));
    // A structure is nothing that a converter for bytes writes itself.
    let is_structure = !envelope.is_empty() || expand.is_some();
    if given.has(SCHEMA_VERSION) {
        let (effect, why) = match !envelope.is_empty() && expand.is_some() {
            true => (MayDiffer, OTHER_MEMBERS),
            false => (NoEffect, "no envelope has a schema here"),
        };
        let what_to_do = "find out whether events were lost";
        carrying.left(SCHEMA_VERSION, effect, why, what_to_do);
    }
    let converter =
        Converter::of_column(carrying, "value", Some(payload).filter(|_| !is_structure));
    if envelope.is_empty() {
        plain_value(carrying, &converter, payload, expand, tombstone);
        return;
    }
    if tombstone {
        carrying.draft.set("format.tombstone", "null-payload");
        let why = "a NULL is a tombstone, a text payload that is empty or blank is not. A json or \
                   jsonb cannot be that";
        carrying.left(
            TOMBSTONE,
            MayDiffer,
            why,
            "write NULL instead of an empty text",
        );
    }
    let template = written(
        carrying,
        "value",
        payload,
        expand.unwrap_or("connect('json')"),
    );
    carrying.draft.named(ENVELOPE, "payload", &template);
    for one in envelope {
        let template = written(carrying, "value", &one.column, "connect('json')");
        if !carrying.draft.named(ENVELOPE, &one.alias, &template) {
            let why = format!(
                "two columns are to be member {:?} of the envelope",
                one.alias
            );
            carrying.left(PLACEMENT, Differs, why, "give one of the two another name");
        }
    }
    match &converter {
        Converter::Json { schemas: false } => {}
        Converter::Unknown => unknown_value(carrying, "JsonConverter without schemas"),
        Converter::Text | Converter::Json { .. } | Converter::Bytes | Converter::Other(_) => {
            another_value(carrying, VALUE, &converter, "a JSON object");
        }
    }
    if expand.is_some() {
        expanded(carrying);
    }
}

fn plain_value(
    carrying: &mut Carrying<'_>,
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
            expanded(carrying);
            json(expand)
        }
        (Converter::Json { schemas: false }, None) => json("connect('json')"),
        (Converter::Json { schemas: true }, None) => {
            let what_to_do =
                "connect('schema', 'required') in format.value where the payload is NOT NULL";
            schema(carrying, VALUE, &[payload], what_to_do);
            let connect = with_schema(carrying, payload);
            if tombstone {
                format!("filled|{}, 'tombstone')", connect.trim_end_matches(')'))
            } else {
                connect.to_owned()
            }
        }
        (Converter::Text, None) => {
            let connect = printed(carrying, VALUE, payload);
            if tombstone {
                format!("filled|{connect}").trim_end_matches('|').to_owned()
            } else {
                connect.to_owned()
            }
        }
        (Converter::Text | Converter::Unknown, _) if tombstone => "filled".to_owned(),
        _ => String::new(),
    };
    if !functions.is_empty() {
        carrying.draft.set(
            "format.value",
            &written(carrying, "value", payload, &functions),
        );
    }
    match (converter, expand) {
        (Converter::Text, Some(_)) => {
            another_value(carrying, EXPAND, converter, "the payload as it stands")
        }
        (Converter::Json { schemas: true }, Some(_)) | (Converter::Other(_), _) => {
            another_value(carrying, VALUE, converter, "the payload as it stands");
        }
        (Converter::Unknown, _) => unknown_value(carrying, "StringConverter"),
        (Converter::Text | Converter::Bytes | Converter::Json { .. }, _) => {}
    }
}

fn another_value(carrying: &mut Carrying<'_>, option: &str, converter: &Converter, what: &str) {
    carrying.left(
        option,
        Differs,
        format!("the value was {}, and is {what}", converter.shown()),
        ASK_CONSUMERS,
    );
}

fn unknown_value(carrying: &mut Carrying<'_>, as_if: &str) {
    let why = format!(
        "the worker's configuration says what a value looks like, and this file does not. Carried \
         as if it were {as_if}"
    );
    carrying.left(
        VALUE,
        MayDiffer,
        why,
        "look at value.converter of the worker",
    );
}

fn expanded(carrying: &mut Carrying<'_>) {
    let why = "carried. If objects of an array have different members, Debezium orders the members \
               by hash codes, which \
               another Java, garbage collector or machine may change; walrelay orders them by \
               first occurrence. What Debezium \
               fails on is sent, and what it loses in objects nested in arrays is kept. Some \
               numbers have other digits \
               where Debezium runs on a Java before 19";
    carrying.left(
        EXPAND,
        MayDiffer,
        why,
        "do not let consumers depend on the order of members",
    );
}

/// The template of the topic for the values of `column`, of `route.topic.regex` and
/// `route.topic.replacement`, which are Java's. A value that the expression matches as a whole is
/// replaced, any other stays as it is:
/// <https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/regex/Matcher.html>.
fn topic(column: &str, regex: &str, replacement: &str) -> Result<String, String> {
    let only_javas = || {
        "the regular expression has something only Java's have, such as (?=…), a++ or \\p{…}"
            .to_owned()
    };
    let compiled = of_java(regex)
        .and_then(|regex| Regex::new(&format!("^(?:{regex})$")).ok())
        .ok_or_else(only_javas)?;
    let whole = Template::written(column, "");
    let template = replaced(replacement, &compiled, &['{', '}'], |_| whole.clone())?;
    // A value that Java does not match, for it has several lines, stays in the topic, which Kafka
    // then refuses.
    let template = if is_everything(regex) && template.contains(&whole) {
        template
    } else {
        let to = replaced(replacement, &compiled, &['$'], |group| {
            format!("${{{group}}}")
        })?;
        let quoted = |text: &str| text.replace('\'', "''");
        Template::written(
            column,
            &format!("|match('{}', '{}', 'java')", quoted(regex), quoted(&to)),
        )
    };
    template
        .parse::<Template>()
        .map(|_| template)
        .map_err(|error| error.to_string())
}

/// Whether it matches any text, and every group it has is the whole of it.
fn is_everything(regex: &str) -> bool {
    let inside = regex
        .strip_prefix('(')
        .and_then(|rest| rest.strip_suffix(')'))
        .unwrap_or(regex);
    let inside = match inside
        .strip_prefix("?<")
        .and_then(|rest| rest.split_once('>'))
    {
        Some((name, rest)) if name.chars().all(char::is_alphanumeric) => rest,
        _ => inside,
    };
    inside == ".*"
}

/// A replacement with each group as `group` writes it, and in the text between them the characters
/// `doubled` twice.
///
/// `$1` takes as many digits as there are groups for, `${name}` a name, and a backslash makes the
/// next character plain.
fn replaced(
    replacement: &str,
    regex: &Regex,
    doubled: &[char],
    group: impl Fn(&str) -> String,
) -> Result<String, String> {
    let groups = regex.captures_len();
    let mut out = String::new();
    let mut characters = replacement.chars().peekable();
    while let Some(c) = characters.next() {
        let plain = match c {
            '\\' => characters.next(),
            '$' => None,
            c => Some(c),
        };
        if c != '$' {
            out.extend(
                plain
                    .into_iter()
                    .flat_map(|c| std::iter::repeat_n(c, 1 + usize::from(doubled.contains(&c)))),
            );
            continue;
        }
        if characters.next_if_eq(&'{').is_some() {
            let name: String = characters.by_ref().take_while(|&c| c != '}').collect();
            if !regex.capture_names().flatten().any(|known| known == name) {
                return Err(format!(
                    "the replacement names a group {name:?}, which is not there"
                ));
            }
            out.push_str(&group(&name));
            continue;
        }
        let mut number: Option<usize> = None;
        while let Some(digit) = characters.peek().and_then(|c| c.to_digit(10)) {
            let longer = number
                .unwrap_or(0)
                .saturating_mul(10)
                .saturating_add(digit as usize);
            if number.is_some() && longer >= groups {
                break;
            }
            number = Some(longer);
            characters.next();
        }
        let number = number.filter(|number| *number < groups);
        let number = number.ok_or("the replacement has a $ without a group that is there")?;
        out.push_str(&group(&number.to_string()));
    }
    Ok(out)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placement {
    Header,
    Envelope,
    Partition,
}

/// A column, where it goes, and what it is called there.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Placed {
    column: String,
    placement: Placement,
    alias: String,
}

impl Placed {
    /// Of `column:placement` or `column:placement:alias`.
    fn of(text: &str) -> Option<Placed> {
        let mut parts = text.split(':').map(str::trim);
        let column = parts.next().filter(|column| !column.is_empty())?;
        let placement = parts.next()?;
        let alias = parts.next();
        let placement = match placement.to_lowercase().as_str() {
            "header" => Placement::Header,
            "envelope" => Placement::Envelope,
            "partition" => Placement::Partition,
            _ => return None,
        };
        let (column, alias) = (column.to_owned(), alias.unwrap_or(column).to_owned());
        parts.next().is_none().then_some(Placed {
            column,
            placement,
            alias,
        })
    }
}

/// What makes bytes of a key, a value or a header.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Converter {
    Text,
    Bytes,
    /// JSON, with or without its schema around it.
    Json {
        schemas: bool,
    },
    /// Anything else, by the last part of its name.
    Other(String),
    /// Nobody knows: the worker's configuration says it.
    Unknown,
}

impl Converter {
    /// The one of `of`: `key`, `value` or `header`.
    fn of(given: &Given, of: &str) -> Converter {
        let name = format!("{of}.converter");
        let schemas = converter_option(given, of, "schemas.enable");
        let class = match (given.form, of) {
            (Form::Server, _) => given.or(&name, "json"),
            (Form::Connect, "header") => given.or(&name, "SimpleHeaderConverter"),
            (Form::Connect, _) => given.get(&name),
        };
        class.map_or(Converter::Unknown, |class| named(class, schemas))
    }

    /// The one of a column's values; none is a structure. Debezium's own for bytes gives a delegate
    /// what is none: `BinaryDataConverter.fromConnectData`.
    fn of_column(carrying: &mut Carrying<'_>, of: &str, column: Option<&str>) -> Converter {
        let given = carrying.given;
        let converter = Converter::of(given, of);
        let delegate = converter_option(given, of, "delegate.converter.type");
        let Some(class) = delegate.filter(|_| converter == Converter::Bytes) else {
            return converter;
        };
        let is_bytes = match column {
            Some(column) if carrying.is_known(column, is_bytea) => true,
            Some(column) if !carrying.is_known(column, |column| !is_bytea(column)) => {
                let is_value = of == "value";
                let carried = if is_value {
                    "the bytes of a bytea"
                } else {
                    "what the delegate makes of other types"
                };
                let why = format!(
                    "a bytea was its bytes, and another type what the delegate makes. Carried as \
                     {carried}"
                );
                carrying.left(&format!("{of}.converter"), MayDiffer, why, GIVE_DATABASE);
                is_value
            }
            Some(_) | None => false,
        };
        if is_bytes {
            return converter;
        }
        let is_decimal =
            |column: &&Column| column.base.name == "numeric" && column.type_modifier >= 0;
        if column.is_some_and(|name| carrying.columns(name).iter().any(is_decimal)) {
            let why = "NULL in a numeric(p,s) was NULL, and is JSON's null";
            carrying.left(
                &format!("{of}.converter"),
                MayDiffer,
                why,
                "make the column NOT NULL",
            );
        }
        named(
            class,
            converter_option(given, of, "delegate.converter.type.schemas.enable"),
        )
    }

    fn shown(&self) -> String {
        match self {
            // The text of a single value is carried.
            Converter::Text => "Java's text of a structure (Struct{…})".to_owned(),
            Converter::Bytes => "bytes".to_owned(),
            Converter::Json { schemas: true } => "JSON with its schema around it".to_owned(),
            Converter::Json { schemas: false } => "JSON".to_owned(),
            Converter::Other(name) => format!("what {name} makes"),
            Converter::Unknown => "what the worker's converter makes".to_owned(),
        }
    }
}

/// An option of the converter of `of`. Debezium Server has each also for all three.
fn converter_option<'g>(given: &'g Given, of: &str, option: &str) -> Option<&'g str> {
    given
        .get(&format!("{of}.converter.{option}"))
        .or_else(|| given.get(&format!("format.{option}")))
}

fn named(class: &str, schemas: Option<&str>) -> Converter {
    let schemas = !schemas.is_some_and(|value| value.eq_ignore_ascii_case("false"));
    match class.rsplit('.').next().unwrap_or(class) {
        "StringConverter" | "SimpleHeaderConverter" | "simplestring" => Converter::Text,
        "ByteArrayConverter" | "BinaryDataConverter" | "ByteBufferConverter" | "binary" => {
            Converter::Bytes
        }
        "JsonConverter" | "json" | "jsonbytearray" => Converter::Json { schemas },
        // A name of a class or a format; anything else might be a value in the wrong place.
        other if other.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            Converter::Other(other.to_owned())
        }
        _ => Converter::Other("another converter".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_of_java_is_a_template() {
        for (column, regex, replacement, wanted) in [
            // What replaces everything is text around the column.
            (
                "aggregatetype",
                REGEX,
                REPLACEMENT,
                "outbox.event.{aggregatetype}",
            ),
            ("type", "(.*)", "outbox.event.$1", "outbox.event.{type}"),
            ("type", "(.*)", "$1-v1.{x}", "{type}-v1.{{x}}"),
            ("type", "(.*)", "$12", "{type}2"),
            ("type", ".*", "all", "{type|match('.*', 'all', 'java')}"),
            ("type", ".*", "a\\$b.$0", "a$b.{type}"),
            ("Odd Col", "(.*)", "$1", "{\"Odd Col\"}"),
            // What matches a part is a match.
            (
                "type",
                "(.*)Created",
                "c16.$1",
                "{type|match('(.*)Created', 'c16.${1}', 'java')}",
            ),
            (
                "type",
                "(?<a>.*)_(?<b>.*)",
                "${b}.${a}x",
                "{type|match('(?<a>.*)_(?<b>.*)', '${b}.${a}x', 'java')}",
            ),
            (
                "type",
                "(.*)'s",
                "$1's\\$",
                "{type|match('(.*)''s', '${1}''s$$', 'java')}",
            ),
            (
                "type",
                "(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)(k)",
                "$11$12",
                "{type|match('(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)(k)', '${11}${1}2', 'java')}",
            ),
            (
                "type",
                r"(\w+)\.v",
                "x",
                r"{type|match('(\w+)\.v', 'x', 'java')}",
            ),
            ("type", r"\\d", "x", r"{type|match('\\d', 'x', 'java')}"),
            ("type", "a|ab", "x", "{type|match('a|ab', 'x', 'java')}"),
            ("type", "(.*?)", "x", "{type|match('(.*?)', 'x', 'java')}"),
            (
                "type",
                "a?(ab)?",
                "x",
                "{type|match('a?(ab)?', 'x', 'java')}",
            ),
        ] {
            assert_eq!(
                topic(column, regex, replacement).as_deref(),
                Ok(wanted),
                "{regex} {replacement}"
            );
        }
        for (regex, replacement) in [
            ("(?=a).*", "x"),
            ("a++b", "x"),
            ("[a]*+", "x"),
            ("(.*)", "$2"),
            ("(.*)", "${x}"),
            ("(.*)", "a$"),
            ("(", "x"),
        ] {
            assert!(
                topic("c", regex, replacement).is_err(),
                "{regex} {replacement}"
            );
        }
    }
}
