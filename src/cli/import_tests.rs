use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use walrelay_fuzz::fuzz_text;

use super::*;
use crate::config::Config;
use crate::config::file::ConfigFile;
use crate::config::layers::{Environment, Flags, Settings};
use crate::sink::kafka::partitions::{hash, partition};
use crate::sink::kafka::properties::check_properties;
use walrelay_core::catalog::{self, BaseType, Column, Table};
use walrelay_core::config::ValueConfig;
use walrelay_core::decode;
use walrelay_core::event::{Place, Polled, Via};
use walrelay_core::position::Lsn;
use walrelay_core::route::{Record, Router};

/// Debezium Server with its defaults for everything but key and value.
const SERVER_PROPERTIES: &str = include_str!("../../tests/debezium/imports/server.properties");

fn import(path: &str, text: &str) -> Result<Import> {
    Ok(Connector::read(path, text)?.import(&[], &check_property))
}

/// What `run` would make of the import, with brokers for those that have none.
fn config(import: &Import) -> Config {
    config_of(&toml_of(import))
}

fn config_of(toml: &str) -> Config {
    let file = ConfigFile::new("walrelay.toml", toml);
    let mut flags = Flags::new();
    if !toml.contains("\nbrokers = ") {
        flags.insert("kafka.brokers", "kafka:9092".to_owned());
    }
    let config = Settings::new(&flags, &Environment::new(), Some(&file))
        .unwrap()
        .config(false)
        .unwrap();
    check_properties(&config.kafka.properties).unwrap();
    config
}

fn templates(config: &Config) -> (&str, Option<&str>, Vec<(&str, &str)>) {
    let headers = config.outboxes[0]
        .route
        .headers
        .iter()
        .map(|(name, template)| (name.as_str(), template.source()))
        .collect();
    (
        config.outboxes[0].route.topic.source(),
        config.outboxes[0]
            .route
            .key
            .as_ref()
            .map(|key| key.source()),
        headers,
    )
}

fn left(import: &Import) -> Vec<(&str, Effect)> {
    import
        .left
        .iter()
        .map(|left| (left.option.as_str(), left.effect))
        .collect()
}

fn value(config: &Config) -> Vec<(&str, &str)> {
    match &config.outboxes[0].route.value {
        ValueConfig::Template(template) => vec![("", template.source())],
        ValueConfig::Envelope { members, .. } => members
            .iter()
            .map(|(name, template)| (name.as_str(), template.source()))
            .collect(),
    }
}

/// The least there is, with `more` in it.
fn with(more: &str) -> Import {
    let text = format!(
        "connector.class=PostgresConnector\nplugin.name=pgoutput\nslot.name=s\n\
         table.include.list=public.outbox\n\
         extended.headers.enabled=false\ntransforms=o\n\
         transforms.o.type=io.debezium.transforms.outbox.EventRouter\n\
         key.converter=StringConverter\nproducer.override.bootstrap.servers=b:1\n{more}"
    );
    import("c.properties", &text).unwrap()
}

/// Compares with the snapshot `name` in `tests/debezium/imports`.
fn assert_told(name: &str, told: &str) {
    let path = "../../tests/debezium/imports";
    insta::with_settings!({
        snapshot_path => path,
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        insta::assert_snapshot!(name, told);
    });
}

fn listed<'l>(left: impl IntoIterator<Item = &'l Left>) -> String {
    left.into_iter()
        .map(|left| format!("{}: {}: {}\n", left.option, left.effect.word(), left.why))
        .collect()
}

#[test]
fn a_connector_is_carried_and_each_doubt_is_listed() {
    // Everything the same to consumers; another table and an envelope; what the worker says left
    // out; nearly all defaults.
    for name in [
        "connect.json",
        "bare.json",
        "connect.properties",
        "server.properties",
    ] {
        let text = read(format!("tests/debezium/imports/{name}"));
        let import = import(name, &text).unwrap();
        let written = toml_of(&import).replace("|write_this_by_hand", "");
        assert_eq!(config_of(&written).outboxes.len(), 1);
        let json = serde_json::to_string(&Report {
            toml: &toml_of(&import),
            left: &import.left,
        })
        .unwrap();
        assert!(
            text.contains("canary") && !json.contains("canary"),
            "a secret is written: {json}"
        );
        for left in &import.left {
            assert!(
                !left.why.is_empty()
                    && (left.effect == Effect::NoEffect || !left.what_to_do.is_empty()),
                "{left:?}"
            );
        }
        assert_told(
            name,
            &format!(
                "{}\nListed, of which {} are seen:\n{}",
                toml_of(&import),
                import.seen(),
                listed(&import.left)
            ),
        );
    }
}

#[test]
fn an_option_that_changes_records_is_listed_with_its_effect() {
    const JSON: &str = "value.converter=org.apache.kafka.connect.json.JsonConverter";
    const PLAIN: &str = "value.converter.schemas.enable=false";
    const EXPAND: &str = "transforms.o.table.expand.json.payload=true";
    const PLACEMENT: &str = "transforms.o.table.fields.additional.placement=";
    let before = with("value.converter=StringConverter\n");
    let mut told = String::new();
    for lines in [
        "value.converter=io.debezium.converters.BinaryDataConverter",
        "value.converter=org.apache.kafka.connect.converters.ByteArrayConverter",
        JSON,
        &format!("{JSON}\n{PLAIN}"),
        &format!("{JSON}\n{PLAIN}\n{EXPAND}"),
        &format!("{JSON}\n{EXPAND}"),
        &format!("{JSON}\n{PLAIN}\n{PLACEMENT}type:envelope"),
        &format!("{JSON}\n{PLACEMENT}type:envelope"),
        &format!("value.converter=StringConverter\n{EXPAND}"),
        "value.converter=io.confluent.connect.avro.AvroConverter",
        "value.converter=StringConverter\nheader.converter=JsonConverter",
        "value.converter=JsonConverter\nvalue.converter.decimal.format=numeric",
        "value.converter=JsonConverter\nvalue.converter.decimal.format=base64",
        "value.converter=StringConverter\nvalue.converter.decimal.format=NUMERIC",
        "key.converter.converter.encoding=ISO-8859-1",
        "value.converter.some.other=x",
        "key.converter=ByteArrayConverter",
        &format!("header.converter=StringConverter\n{PLACEMENT}tags:header"),
        "value.converter=BinaryDataConverter\n\
         value.converter.delegate.converter.type=JsonConverter",
        "value.converter.delegate.converter.type.schemas.enable=false",
        "table.include.list=Sales.Outbox",
        "lsn.flush.mode=manual",
        "lsn.flush.mode=connector_and_driver",
        "slot.stream.params=origin=none",
        "include.unknown.datatypes=true",
        "include.schema.comments=true",
        "heartbeat.action.query=insert into x values (1)",
        "notification.enabled.channels=sink",
        "internal.what.ever=1",
        "transforms.mask.fields=a",
        "predicates.p.type=x",
        &format!(
            "{PLACEMENT}a:envelope\n{EXPAND}\ntransforms.o.table.field.event.schema.version=version"
        ),
        "transforms.o.table.field.event.payload.id=x",
        "transforms.o.table.json.payload.empty.array.behavior=optional_string",
        "transforms.o.table.json.payload.empty.array.behavior=ignore",
        "transforms.o.table.field.additional.missing=ignore",
        "transforms.o.table.field.event.timestamp=at",
        "transforms.o.table.op.invalid.behavior=error",
        "transforms.o.table.op.invalid.behavior=fatal",
        "binary.handling.mode=hex",
        "snapshot.mode=Initial",
        "snapshot.mode=no_data",
        "snapshot.mode=when_needed",
        &format!("{PLACEMENT}:header"),
        &format!("{PLACEMENT}a:HEADER,b:header:x:y"),
        &format!("{PLACEMENT}a:nowhere"),
    ] {
        let import = with(&format!("value.converter=StringConverter\n{lines}\n"));
        config(&import);
        told.push_str(&format!("{lines}\n"));
        let added = listed(
            import
                .left
                .iter()
                .filter(|left| !before.left.contains(left)),
        );
        added
            .lines()
            .for_each(|line| told.push_str(&format!("    {line}\n")));
    }
    assert_told("options", &told);
}

#[test]
fn what_is_no_outbox_in_postgres_is_refused() {
    for (text, cause) in [
        ("", "f: there is no connector.class in it"),
        ("{}", "f: there is no connector.class in it"),
        (
            "connector.class=io.debezium.connector.mysql.MySqlConnector",
            "f: it is not a connector of Debezium for Postgres",
        ),
        (
            "connector.class=PostgresConnector",
            "f: none of its transforms is Debezium's Outbox Event Router",
        ),
        (
            "connector.class=PostgresConnector\ntransforms=a\n\
             transforms.b.type=io.debezium.transforms.outbox.EventRouter",
            "f: none of its transforms",
        ),
    ] {
        let error = import("f", text).unwrap_err();
        assert!(
            error.cause().starts_with(cause) && error.what_to_do().is_some(),
            "{text}: {error}"
        );
        assert_eq!(error.kind(), Kind::Config);
    }
}

#[test]
fn names_that_are_hostile_stay_names() {
    let import = with(
        "database.user=a' password='x\nvalue.converter=StringConverter\n\
         transforms.o.table.field.event.key=k\"} {x\n\
         transforms.o.table.fields.additional.placement=type:header:a\"b\\\\n\\u0001]\n",
    );
    let config = config(&import);
    let name = "a\"b\\n\u{1}]";
    assert_eq!(
        templates(&config),
        (
            "outbox.event.{aggregatetype}",
            Some("{\"k\"\"} {x\"|connect}"),
            vec![(name, "{type}")]
        )
    );
    assert!(
        toml_of(&import).contains(r"user='a\\' password=\\'x'"),
        "{}",
        toml_of(&import)
    );
}

#[test]
fn a_name_is_carried_where_only_the_password_is_filled_in() {
    let login = |user: &str| {
        let import = with(&format!(
            "value.converter=StringConverter\nproducer.override.sasl.mechanism=PLAIN\n\
             producer.override.sasl.jaas.config=\
             org.apache.kafka.common.security.plain.PlainLoginModule required \
             username=\"{user}\" password=\"${{file:/run/secrets:canary}}\";\n"
        ));
        assert!(left(&import).contains(&("publication.name (not set)", Effect::ToDo)));
        assert!(left(&import).contains(&("producer.override.sasl.jaas.config", Effect::ToDo)));
        assert!(!toml_of(&import).contains("canary"));
        config(&import)
            .kafka
            .properties
            .get("sasl.username")
            .map(|name| name.expose().to_owned())
    };
    assert_eq!(login("relay").as_deref(), Some("relay"));
    assert_eq!(login("${env:KAFKA_USER}"), None);
}

/// A table of the database: each column with its type, a modifier and a default.
fn found(name: &str, columns: &[(&str, &str, i32, Option<&str>)]) -> Found {
    let columns = columns.iter().map(|(name, base, type_modifier, default)| {
        let category = match *base {
            "text" => "S",
            "_text" => "A",
            "jsonb" | "bytea" | "uuid" => "U",
            "bool" => "B",
            _ => "N",
        };
        let base = BaseType {
            name: (*base).to_owned(),
            category: category.to_owned(),
            ..BaseType::default()
        };
        let default = default.map(str::to_owned);
        catalog::Column {
            name: (*name).to_owned(),
            base,
            type_modifier: *type_modifier,
            default,
            ..catalog::Column::default()
        }
    });
    Found {
        name: name.parse().unwrap(),
        table: Table {
            columns: columns.collect(),
            ..Table::default()
        },
    }
}

/// An outbox with a key and a payload of these types.
fn outbox(name: &str, key: &str, payload: &str) -> Found {
    let columns = [
        ("id", "uuid"),
        ("aggregatetype", "text"),
        ("aggregateid", key),
        ("payload", payload),
    ];
    let mut found = found(name, &columns.map(|(name, base)| (name, base, -1, None)));
    found.table.columns[0].not_null = true;
    found
}

#[test]
fn tables_of_the_database_become_outboxes_and_the_types_of_their_columns_count() {
    const BASE: &str = "connector.class=PostgresConnector\nplugin.name=pgoutput\n\
                        extended.headers.enabled=false\ntransforms=o\n\
                        transforms.o.type=io.debezium.transforms.outbox.EventRouter\n\
                        table.include.list=a.o, b.o\n";
    const TEXT: &str = "key.converter=StringConverter\nvalue.converter=StringConverter\n";
    const DELEGATED: &str = "key.converter=StringConverter\nvalue.converter=BinaryDataConverter\n\
                             value.converter.delegate.converter.type=\
                             org.apache.kafka.connect.json.JsonConverter\n\
                             value.converter.delegate.converter.type.schemas.enable=false\n";
    const DIGITS: &str = "key.converter=StringConverter\nvalue.converter=JsonConverter\n\
                          value.converter.decimal.format=NUMERIC\n";
    const PLAIN: &str = "value.converter.schemas.enable=false\n";
    const SCHEMA: &str = "key.converter=JsonConverter\nvalue.converter=JsonConverter\n\
                          value.converter.schemas.enable=false\n";
    let plain_digits = format!("{DIGITS}{PLAIN}");
    let timestamp = format!("{SCHEMA}transforms.o.table.field.event.timestamp=aggregateid\n");
    let changed = |key: &str, of: &str, change: &dyn Fn(&mut catalog::Column)| {
        let mut table = outbox("a.o", key, "jsonb");
        table
            .table
            .columns
            .iter_mut()
            .filter(|column| column.name == of)
            .for_each(change);
        vec![table]
    };
    let payload_default = |sql: &str| {
        changed("text", "payload", &|column| {
            column.default = Some(sql.to_owned())
        })
    };
    let array = |key: &str| {
        changed(key, "aggregateid", &|column| {
            column.base.category = "A".to_owned()
        })
    };
    let import = |more: &str, tables: &[Found]| {
        Connector::read("c.properties", &format!("{BASE}{more}"))
            .unwrap()
            .import(tables, &check_property)
    };
    let mut told = String::new();
    for (more, tables) in [
        (
            TEXT,
            vec![
                outbox("a.outbox", "uuid", "jsonb"),
                outbox("b.\"Out Box\"", "text", "text"),
            ],
        ),
        (TEXT, vec![outbox("a.o", "float8", "bool")]),
        (TEXT, vec![outbox("a.o", "numeric", "_text")]),
        (TEXT, payload_default("'{}'::jsonb")),
        (TEXT, payload_default("NULL::jsonb")),
        (
            TEXT,
            changed("text", "id", &|column| column.not_null = false),
        ),
        (DELEGATED, vec![outbox("a.o", "text", "bytea")]),
        (DELEGATED, vec![outbox("a.o", "text", "jsonb")]),
        (
            DELEGATED,
            vec![
                outbox("a.o", "text", "bytea"),
                outbox("b.o", "text", "jsonb"),
            ],
        ),
        (&plain_digits, vec![outbox("a.o", "text", "numeric")]),
        (
            &plain_digits,
            vec![
                outbox("a.o", "text", "numeric"),
                outbox("b.o", "text", "int4"),
            ],
        ),
        (DIGITS, vec![outbox("a.o", "text", "numeric")]),
        (SCHEMA, vec![outbox("a.o", "text", "jsonb")]),
        (SCHEMA, vec![outbox("a.o", "numeric", "jsonb")]),
        (SCHEMA, vec![outbox("a.o", "timetz", "jsonb")]),
        (SCHEMA, vec![outbox("a.o", "pg_lsn", "jsonb")]),
        (SCHEMA, array("_text")),
        (SCHEMA, array("_price")),
        (SCHEMA, array("_timestamptz")),
        (
            SCHEMA,
            changed("text", "aggregateid", &|column| column.not_null = true),
        ),
        (
            SCHEMA,
            changed("text", "aggregateid", &|column| {
                column.default = Some("'x'::text".to_owned())
            }),
        ),
        (
            SCHEMA,
            changed("text", "aggregateid", &|column| {
                column.base.category = "E".to_owned()
            }),
        ),
        (&timestamp, vec![outbox("a.o", "timestamp", "jsonb")]),
        (&timestamp, vec![outbox("a.o", "timestamptz", "jsonb")]),
    ] {
        let (import, before) = (import(more, &tables), import(more, &[]));
        let config = config(&import);
        let names = tables.iter().map(|found| {
            let types = found
                .table
                .columns
                .iter()
                .map(|column| column.base.name.as_str());
            format!("{} ({})", found.name, types.collect::<Vec<_>>().join(" "))
        });
        told.push_str(&format!("{more}{}\n", names.collect::<Vec<_>>().join(", ")));
        assert_eq!(config.outboxes.len(), tables.len());
        let (_, key, _) = templates(&config);
        told.push_str(&format!(
            "    key {}, value {}\n",
            key.unwrap_or_default(),
            value(&config)[0].1
        ));
        let added = listed(
            import
                .left
                .iter()
                .filter(|left| !before.left.contains(left)),
        );
        added
            .lines()
            .for_each(|line| told.push_str(&format!("    {line}\n")));
    }
    assert_told("types", &told);
    assert_eq!(import(TEXT, &[outbox("a.o", "text", "jsonb")]).seen(), 0);
    let import = Connector::read(
        "c.properties",
        &format!("{BASE}{TEXT}table.include.list=.*o"),
    )
    .unwrap();
    let left = import
        .import(&[outbox("a.o", "text", "jsonb")], &check_property)
        .left;
    let pattern = left
        .iter()
        .find(|left| left.option == "table.include.list")
        .unwrap();
    assert!(pattern.why.contains("created later"));
}

/// The import of a connector with `more`, whose database has `found`.
fn with_table(more: &str, found: Found) -> Import {
    let text = format!(
        "connector.class=PostgresConnector\nplugin.name=pgoutput\nslot.name=s\npublication.name=p\n\
         extended.headers.enabled=false\ntransforms=o\ntable.include.list=a.o\n\
         snapshot.mode=no_data\n\
         transforms.o.type=io.debezium.transforms.outbox.EventRouter\n\
         key.converter=StringConverter\n\
         value.converter=StringConverter\n{more}"
    );
    Connector::read("c.properties", &text)
        .unwrap()
        .import(&[found], &check_property)
}

#[test]
fn an_event_id_that_debezium_writes_as_another_text_is_a_header_of_its_own() {
    let with_id = |id: &str, category: &str, more: &str| {
        let mut table = outbox("a.o", "text", "jsonb");
        let column = &mut table.table.columns[0];
        column.base.name = id.to_owned();
        column.base.category = category.to_owned();
        with_table(more, table)
    };
    for (id, category) in [("uuid", "U"), ("text", "S"), ("int8", "N"), ("mood", "E")] {
        let import = with_id(id, category, "");
        assert_eq!(
            (import.seen(), templates(&config(&import)).2),
            (0, vec![]),
            "{id}"
        );
    }
    for id in [
        "timestamptz",
        "timestamp",
        "date",
        "time",
        "timetz",
        "float8",
        "numeric",
        "bytea",
        "bool",
        "interval",
    ] {
        let config = config(&with_id(id, "", ""));
        assert_eq!(templates(&config).2, [("id", "{id|connect}")], "{id}");
        assert_eq!(config.outboxes[0].route.id_header, None);
    }
    let of_java = with_id("bytea", "U", "header.converter=StringConverter\n");
    assert!(left(&of_java).contains(&("header.converter", Effect::Differs)));
}

#[test]
fn a_topic_that_cannot_be_carried_makes_the_file_invalid() {
    for (more, why) in [
        (
            "transforms.o.route.topic.regex=(?=a).*\n",
            "only Java's have",
        ),
        (
            "transforms.o.route.topic.regex=${file:/x:y}\n",
            "filled in elsewhere",
        ),
        (
            "transforms.o.route.by.field=${file:/x:y}\n",
            "filled in elsewhere",
        ),
        (
            "transforms.o.route.topic.regex=(.*)\ntransforms.o.route.topic.replacement=$2\n",
            "without a group",
        ),
    ] {
        let import = with(&format!("value.converter=StringConverter\n{more}"));
        let told = import
            .left
            .iter()
            .find(|left| left.effect == Effect::Differs)
            .unwrap();
        assert!(told.why.contains(why), "{told:?}");
        let file = ConfigFile::new("walrelay.toml", &toml_of(&import));
        let error = Settings::new(&Flags::new(), &Environment::new(), Some(&file)).unwrap_err();
        assert!(error.cause().contains("write_this_by_hand"), "{error}");
    }
}

#[test]
fn a_column_of_numbers_that_makes_the_topic_is_told() {
    let of = |name: &str, base: &str| {
        let mut table = outbox("a.o", "text", "jsonb");
        table
            .table
            .columns
            .extend(found("a.o", &[(name, base, -1, None)]).table.columns);
        with_table(&format!("transforms.o.route.by.field={name}\n"), table)
    };
    let told = of("kind", "int4").left;
    assert_eq!(
        (told[0].option.as_str(), told[0].effect),
        ("transforms.o.route.by.field", Effect::MayDiffer)
    );
    assert_eq!(of("kind", "text").seen(), 0);
}

#[test]
fn columns_of_a_kind_share_a_line_and_lines_come_by_consequence() {
    let columns = [
        ("id", "uuid"),
        ("aggregatetype", "text"),
        ("aggregateid", "numeric"),
        ("payload", "numeric"),
    ];
    let table = found(
        "a.o",
        &columns.map(|(name, base)| (name, base, (9 << 16) + 4, None)),
    );
    let digits = "value.converter=JsonConverter\nvalue.converter.decimal.format=NUMERIC\n\
                  database.sslpassword=x\n";
    let told = with_table(digits, table.clone()).left;
    let effects: Vec<_> = told.iter().map(|left| left.effect).collect();
    assert!(
        effects.is_sorted() && effects[0] == Effect::Differs,
        "{told:?}"
    );
    assert!(told[0].option.ends_with("decimal.format"), "{told:?}");
    let infinite: Vec<_> = told
        .iter()
        .filter(|left| left.why.starts_with("NaN and infinity"))
        .collect();
    assert!(
        infinite.len() == 1 && infinite[0].why.ends_with(": aggregateid (), payload ()"),
        "{infinite:?}"
    );
    let without = with_table(digits, outbox("a.o", "text", "jsonb")).left;
    assert!(
        !without
            .iter()
            .any(|left| left.option.ends_with("decimal.format")),
        "{without:?}"
    );
}

#[test]
fn a_connector_takes_the_outboxes_it_captures() {
    let connector = Connector::read(
        "c.properties",
        &SERVER_PROPERTIES.replace("public.outboxevent", "Shop.*"),
    )
    .unwrap();
    assert_eq!(connector.publication(), Ok("shop_outbox"));
    let elsewhere = SERVER_PROPERTIES.replace(
        "publication.name=shop_outbox",
        "publication.name=${PUBLICATION}",
    );
    let error = Connector::read("c.properties", &elsewhere).unwrap();
    let error = error.publication().unwrap_err();
    assert_eq!(error.kind(), Kind::Config);
    assert!(
        error
            .cause()
            .starts_with("debezium.source.publication.name: it is filled in"),
        "{error}"
    );
    assert_eq!(
        connector.captures(&"shop.outbox".parse().unwrap()),
        Ok(true)
    );
    assert_eq!(
        connector.captures(&"other.outbox".parse().unwrap()),
        Ok(false)
    );
    assert!(connector.fits(&outbox("shop.outbox", "text", "jsonb").table));
    assert!(!connector.fits(&found("shop.orders", &[("id", "uuid", -1, None)]).table));
}

#[test]
fn debezium_server_sends_no_partition_and_timestamp_and_has_options_for_all_converters() {
    let text = SERVER_PROPERTIES
        .replace("type:header:eventType", "shard:partition")
        .replace("simplestring", "json")
        + "debezium.format.decimal.format=NUMERIC\ndebezium.format.schemas.enable=false\n\
           debezium.transforms.outbox.table.field.event.timestamp=created_at\n";
    let import = import("application.properties", &text).unwrap();
    let config = config(&import);
    assert_eq!(
        (
            &config.outboxes[0].route.partition,
            &config.outboxes[0].route.timestamp
        ),
        (&None, &None)
    );
    assert_eq!(
        import
            .left
            .iter()
            .filter(|left| left.option.contains("decimal.format"))
            .count(),
        3
    );
}

#[test]
fn quarkus_escapes_of_a_group_are_those_of_the_group() {
    for replacement in [
        "$1.events",
        "$${routedByValue}.events",
        "\\\\${routedByValue}.events",
        "${routedByValue}.events",
    ] {
        let text = SERVER_PROPERTIES.replace("outbox.event.$1", replacement);
        let import = import("application.properties", &text).unwrap();
        assert_eq!(
            templates(&config(&import)).0,
            "{aggregatetype}.events",
            "{replacement}"
        );
    }
}

const PARTITIONS: i32 = 8;

/// What Debezium's Outbox Event Router put on the wire, byte for byte, against what becomes of the
/// same rows with the same configuration, imported. `tests/debezium/README.md` describes the files.
#[derive(Deserialize)]
struct Written {
    /// As `sql/table.sql` describes it.
    table: Table,
    rows: Vec<Vec<Option<String>>>,
}

/// Bytes that are no text are `{"hex": "…"}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Captured {
    topic: String,
    /// Without a key Debezium's producer chooses for itself.
    partition: Option<i32>,
    /// `None` is the time of the processing.
    timestamp: Option<i64>,
    key: Json,
    value: Json,
    headers: Vec<(String, Json)>,
}

/// A difference that stays, and why.
#[derive(Debug, Deserialize)]
struct Difference {
    case: String,
    /// `record` (one has it and the other has not), `topic`, `partition`, `timestamp`, `key`,
    /// `value`, `headers` (their names), or `header NAME`.
    part: String,
    /// The start of a row in the documentation's table.
    because: String,
    /// What we have instead, by the end of the row's id.
    ours: BTreeMap<String, Json>,
}

/// Reads a file of the repository, or one whose path is absolute.
fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A folder like `tests/debezium`, with the tables in it, each with what was written into it.
struct Captures {
    folder: PathBuf,
    records: &'static str,
    tables: Vec<(Found, Written)>,
}

/// What became of a row, or of a record without a row.
struct Pair {
    /// The event's id.
    id: String,
    /// Table and number of the row.
    row: Option<(String, usize)>,
    captured: Option<Captured>,
    /// Or why there is none.
    ours: Result<Captured, String>,
}

fn json(bytes: Option<&[u8]>) -> Json {
    match bytes.map(std::str::from_utf8) {
        None => Json::Null,
        Some(Ok(text)) => Json::from(text),
        Some(Err(_)) => {
            let hexadecimal: String = bytes
                .unwrap_or_default()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            serde_json::json!({ "hex": hexadecimal })
        }
    }
}

fn ours(record: &Record<'_>) -> Captured {
    Captured {
        topic: record.topic.to_owned(),
        partition: record
            .partition
            .or_else(|| record.key.map(|key| partition(hash(key), PARTITIONS))),
        timestamp: record.timestamp_ms,
        key: json(record.key),
        value: json(record.value),
        headers: record
            .headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json(*value)))
            .collect(),
    }
}

/// The event's id, in whatever form the header has; empty without a header.
fn id_of(record: &Captured) -> String {
    let header = record
        .headers
        .iter()
        .find(|(name, _)| name == "id")
        .and_then(|(_, id)| id.as_str());
    match serde_json::from_str::<Json>(header.unwrap_or_default()) {
        Ok(Json::String(id)) => id,
        Ok(Json::Object(with_schema)) => {
            let id = &with_schema["payload"];
            id.as_str().map_or_else(|| id.to_string(), str::to_owned)
        }
        _ => header.unwrap_or_default().to_owned(),
    }
}

/// What Debezium says of itself is in no record of ours, whatever the case.
fn is_of_debezium(name: &str) -> bool {
    name.starts_with("__debezium.context.")
}

/// The parts in which the two differ, each with what we have.
fn differing(captured: &Captured, ours: &Captured) -> Vec<(String, Json)> {
    let headers: Vec<_> = captured
        .headers
        .iter()
        .filter(|(name, _)| !is_of_debezium(name))
        .collect();
    let names = |headers: &[&(String, Json)]| {
        headers
            .iter()
            .map(|(name, _)| name.clone())
            .collect::<Vec<_>>()
    };
    let our_headers: Vec<_> = ours.headers.iter().collect();
    let mut parts = vec![
        (
            "topic".to_owned(),
            captured.topic == ours.topic,
            Json::from(ours.topic.as_str()),
        ),
        // Of a record without a key it means nothing.
        (
            "partition".to_owned(),
            captured.key.is_null() || captured.partition == ours.partition,
            Json::from(ours.partition),
        ),
        (
            "timestamp".to_owned(),
            captured.timestamp == ours.timestamp,
            Json::from(ours.timestamp),
        ),
        ("key".to_owned(), captured.key == ours.key, ours.key.clone()),
        (
            "value".to_owned(),
            captured.value == ours.value,
            ours.value.clone(),
        ),
        (
            "headers".to_owned(),
            names(&headers) == names(&our_headers),
            Json::from(names(&our_headers)),
        ),
    ];
    for ((name, captured), (_, ours)) in headers.into_iter().zip(our_headers) {
        parts.push((format!("header {name}"), captured == ours, ours.clone()));
    }
    parts
        .into_iter()
        .filter(|(_, same, _)| !same)
        .map(|(part, _, ours)| (part, ours))
        .collect()
}

impl Captures {
    fn read(folder: &str) -> Captures {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let table = |name: &String| {
            let written: Written =
                serde_json::from_str(&read(folder.join("rows").join(name).with_extension("json")))
                    .unwrap();
            (
                Found {
                    name: format!("public.{name}").parse().unwrap(),
                    table: written.table.clone(),
                },
                written,
            )
        };
        let tables = Captures::names(&folder.join("rows"))
            .iter()
            .map(table)
            .collect();
        Captures {
            folder,
            records: "records",
            tables,
        }
    }

    /// The files in a folder, without what is behind the point.
    fn names(folder: &Path) -> Vec<String> {
        let files = std::fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().path());
        let mut names: Vec<_> = files
            .map(|file| file.file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    fn cases(&self) -> Vec<String> {
        Captures::names(&self.folder.join("connectors"))
    }

    fn connector(&self, case: &str) -> (Connector, bool) {
        let text = read(
            self.folder
                .join("connectors")
                .join(case)
                .with_extension("properties"),
        );
        (
            Connector::read(case, &text).unwrap(),
            text.contains("errors.tolerance=all"),
        )
    }

    /// The import of a case, and what became of each row. `offline` is an import without the
    /// database.
    fn compared(&self, case: &str, offline: bool) -> (Import, Vec<Pair>) {
        let (connector, goes_on) = self.connector(case);
        let is_captured = |found: &Found| {
            connector.captures(&found.name) == Ok(true) && connector.fits(&found.table)
        };
        let tables: Vec<_> = self
            .tables
            .iter()
            .filter(|(found, _)| is_captured(found))
            .collect();
        let of_database: Vec<_> = tables
            .iter()
            .map(|(found, _)| found.clone())
            .filter(|_| !offline)
            .collect();
        let import = connector.import(&of_database, &check_property);
        let config = config(&import);
        let lines = read(
            self.folder
                .join(self.records)
                .join(case)
                .with_extension("jsonl"),
        );
        let captured = lines
            .lines()
            .map(|line| serde_json::from_str::<Captured>(line).unwrap());
        let mut captured: Vec<_> = captured.map(|record| (id_of(&record), record)).collect();
        let mut pairs = Vec::new();
        for (outbox, (found, written)) in config.outboxes.iter().zip(tables) {
            let mut router = Router::new(outbox).unwrap();
            let columns: Vec<_> = written.table.columns.iter().map(column).collect();
            let id_at = columns
                .iter()
                .position(|column| column.name == outbox.names.id)
                .unwrap();
            let mut polled = Polled::new(outbox, columns).unwrap();
            for (number, row) in written.rows.iter().enumerate() {
                let values = row.iter().map(|value| value.as_ref().map(String::as_bytes));
                let place = Place {
                    commit_lsn: Lsn::new(0x64),
                    index: 3,
                    via: Via::Table,
                };
                let ours = match polled.event(place, 0, values) {
                    Ok(event) => match router.route(&event) {
                        Ok(routed) => Ok(routed.with_record(ours)),
                        Err(error) => Err(format!("{error:?}")),
                    },
                    Err(error) => Err(format!("{error:?}")),
                };
                let id = row[id_at].clone().unwrap_or_default();
                let at = captured.iter().position(|(captured, _)| *captured == id);
                let captured = at.map(|at| captured.remove(at).1);
                // Both end here.
                if captured.is_none() && ours.is_err() && !goes_on {
                    break;
                }
                pairs.push(Pair {
                    id,
                    row: Some((found.name.table().to_owned(), number)),
                    captured,
                    ours,
                });
            }
        }
        let more = captured.into_iter();
        pairs.extend(more.map(|(id, captured)| Pair {
            id,
            row: None,
            captured: Some(captured),
            ours: Err("none".into()),
        }));
        (import, pairs)
    }

    /// Every difference of a case: part, the row's id, and what we have.
    fn differences(&self, case: &str, offline: bool) -> BTreeMap<(String, String), Json> {
        let mut found = BTreeMap::new();
        for Pair {
            id,
            row,
            captured,
            ours,
        } in self.compared(case, offline).1
        {
            match (captured, ours) {
                (Some(captured), Ok(ours)) => {
                    let parts = differing(&captured, &ours).into_iter();
                    found.extend(parts.map(|(part, ours)| ((part, id.clone()), ours)));
                }
                (_, ours) => {
                    let what = match (row, ours) {
                        (None, _) => "none",
                        (_, Ok(_)) => "sent",
                        (_, Err(_)) => "stops",
                    };
                    found.insert(("record".to_owned(), id), Json::from(what));
                }
            }
        }
        found
    }
}

/// A column as the stream describes it, with the base type of a domain.
fn column(column: &Column) -> decode::RelationColumn {
    decode::RelationColumn {
        name: column.name.clone(),
        type_oid: column.base.oid,
        type_modifier: column.type_modifier,
    }
}

/// How many cases there were when the last was captured: nothing is compared where there is
/// nothing.
const CASES_MIN: usize = 70;

#[test]
fn every_record_is_debeziums_or_differs_as_documented() {
    let listed: Vec<Difference> =
        serde_json::from_str(&read("tests/debezium/differences.json")).unwrap();
    let captures = Captures::read("tests/debezium");
    let cases = captures.cases();
    assert!(cases.len() >= CASES_MIN, "{cases:?}");
    let mut found: BTreeMap<(String, String), BTreeMap<String, Json>> = BTreeMap::new();
    for case in &cases {
        let known = captures.differences(case, false);
        let offline = captures
            .differences(case, true)
            .into_iter()
            .filter(|(place, ours)| known.get(place) != Some(ours));
        let offline: Vec<_> = offline
            .map(|found| (format!("{case} offline"), found))
            .collect();
        for (case, ((part, id), ours)) in known
            .into_iter()
            .map(|found| (case.clone(), found))
            .chain(offline)
        {
            let end = id.get(id.len().saturating_sub(2)..).unwrap().to_owned();
            found.entry((case, part)).or_default().insert(end, ours);
        }
    }
    let documented = read("docs/how-to/move-from-debezium.md");
    let mut expected = BTreeMap::new();
    for difference in listed {
        let row = format!("\n| {} ", difference.because);
        assert!(
            documented.contains(&row),
            "{}: no row of the table begins with {:?}",
            difference.case,
            difference.because
        );
        let place = (difference.case, difference.part);
        assert!(
            expected.insert(place.clone(), difference.ours).is_none(),
            "{place:?} is there twice"
        );
    }
    let places: BTreeSet<_> = found.keys().chain(expected.keys()).cloned().collect();
    let wrong: Vec<_> = places
        .into_iter()
        .filter(|place| found.get(place) != expected.get(place))
        .map(|place| {
            serde_json::json!([place, found.get(&place), expected.get(&place)]).to_string()
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "place, found, expected:\n{}",
        wrong.join("\n")
    );
    // Rows from before the slot are told at import, too.
    assert!(left(&captures.compared("c17", true).0).contains(&("snapshot.mode", Effect::ToDo)));
    // With Postgres 18 and Java 25 nothing else differs.
    let newest = Captures {
        records: "records-18-25",
        ..captures
    };
    for case in Captures::names(&newest.folder.join(newest.records)) {
        for (part, id) in newest.differences(&case, false).into_keys() {
            assert!(
                expected.contains_key(&(case.clone(), part.clone())),
                "{case}: {part} of {id}"
            );
        }
    }
}

/// The folder is like `tests/debezium`, without `differences.json`. `compared.jsonl` gets a line
/// for each connector, with what its import lists, and a line for each row: both records, and the
/// parts in which the two differ.
#[test]
#[ignore = "compares the captures of scripts/debezium-differential"]
fn rows_of_random_connectors_are_compared() {
    let folder = std::env::var("WALRELAY_DIFFERENTIAL_DIR").expect("the folder with the captures");
    let captures = Captures::read(&folder);
    let mut lines = String::new();
    for case in Captures::names(&captures.folder.join("records")) {
        let (import, pairs) = captures.compared(&case, false);
        lines.push_str(
            &serde_json::json!({"case": case, "left": import.left, "toml": toml_of(&import)})
                .to_string(),
        );
        lines.push('\n');
        for Pair {
            id,
            row,
            captured,
            ours,
        } in pairs
        {
            let parts = match (&captured, &ours) {
                (Some(captured), Ok(ours)) => differing(captured, ours)
                    .into_iter()
                    .map(|(part, _)| part)
                    .collect(),
                (None, Err(_)) => vec![],
                _ => vec!["record".to_owned()],
            };
            let (ours, stopped_by) = match ours {
                Ok(ours) => (Some(ours), None),
                Err(error) => (None, Some(error)),
            };
            let line = serde_json::json!({
                "case": case, "id": id, "row": row, "parts": parts, "debezium": captured,
                "walrelay": ours, "stopped by": stopped_by,
            });
            lines.push_str(&line.to_string());
            lines.push('\n');
        }
    }
    std::fs::write(Path::new(&folder).join("compared.jsonl"), lines).unwrap();
}

/// Whatever a connector has, what is made of it can be read.
#[test]
fn fuzzed_connectors() {
    let names = [
        "connect.json",
        "bare.json",
        "connect.properties",
        "server.properties",
    ];
    let mut corpus = names
        .map(|name| read(format!("tests/debezium/imports/{name}")))
        .to_vec();
    let cases = ["c16", "c38", "c41"];
    corpus.extend(cases.map(|case| read(format!("tests/debezium/connectors/{case}.properties"))));
    fuzz_text("connectors of Debezium", 32 << 20, &corpus, |text| {
        for path in ["connector", "connector.yaml"] {
            match import(path, text) {
                Ok(import) => {
                    let toml = toml_of(&import);
                    assert!(toml.parse::<toml::Table>().is_ok(), "{toml}");
                }
                Err(error) => assert_eq!(error.kind(), Kind::Config),
            }
        }
    });
}
