use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::*;
use crate::config::file::ConfigFile;
use crate::config::layers::{Environment, Flags, Settings};
use crate::config::{Config, ValueConfig};
use crate::decode;
use crate::event::{Place, Polled, Via};
use crate::position::Lsn;
use crate::postgres::catalog::{self, BaseType};
use crate::route::{Record, Router};
use crate::sink::kafka::properties::check_properties;
use crate::sink::{hash, partition};

/// As teams register it with Kafka Connect: everything the same to consumers.
const CONNECT_JSON: &str = r#"{
  "name": "orders-outbox",
  "config": {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "tasks.max": 1,
    "plugin.name": "pgoutput",
    "database.hostname": "db.internal",
    "database.port": "5433",
    "database.user": "dbz user",
    "database.password": "canary-database",
    "database.dbname": "shop",
    "database.sslmode": "verify-full",
    "database.sslrootcert": "/etc/ssl/db.pem",
    "topic.prefix": "shop",
    "slot.name": "orders_outbox",
    "publication.name": "orders_pub",
    "publication.autocreate.mode": "filtered",
    "table.include.list": "public\\.outbox",
    "snapshot.mode": "no_data",
    "tombstones.on.delete": "false",
    "extended.headers.enabled": "false",
    "heartbeat.interval.ms": "10000",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "transforms": "outbox",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    "transforms.outbox.table.fields.additional.placement": "type:header:eventType",
    "transforms.outbox.route.topic.replacement": "${routedByValue}.events",
    "producer.override.bootstrap.servers": "k1:9093,k2:9093",
    "producer.override.security.protocol": "SASL_SSL",
    "producer.override.sasl.mechanism": "SCRAM-SHA-512",
    "producer.override.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"relay\" password=\"canary-kafka\";",
    "producer.override.ssl.truststore.location": "/etc/kafka/ca.pem",
    "producer.override.ssl.truststore.type": "PEM",
    "producer.override.ssl.endpoint.identification.algorithm": "",
    "producer.override.compression.type": "zstd",
    "producer.override.linger.ms": "20",
    "producer.override.max.request.size": "2000000",
    "producer.override.acks": "all"
  }
}"#;

/// The bare map, with another table and an envelope.
const BARE_JSON: &str = r#"{
  "connector.class": "PostgresConnector",
  "plugin.name": "pgoutput",
  "database.hostname": "db",
  "database.user": "relay",
  "database.password": "${file:/run/canary-provider:password}",
  "database.dbname": "${env:DATABASE}",
  "slot.name": "billing",
  "table.include.list": "Billing.Events,billing.Outbox",
  "slot.drop.on.stop": "true",
  "key.converter": "org.apache.kafka.connect.json.JsonConverter",
  "key.converter.schemas.enable": "false",
  "value.converter": "org.apache.kafka.connect.json.JsonConverter",
  "value.converter.schemas.enable": "false",
  "transforms": "filter,router",
  "transforms.filter.type": "io.debezium.transforms.Filter",
  "transforms.filter.condition": "canary-condition",
  "transforms.router.type": "io.debezium.transforms.outbox.EventRouter",
  "transforms.router.predicate": "isOutbox",
  "transforms.router.table.field.event.id": "event_id",
  "transforms.router.table.field.event.key": "account id",
  "transforms.router.table.field.event.type": "kind",
  "transforms.router.table.field.event.payload": "body",
  "transforms.router.table.field.event.timestamp": "created_at",
  "transforms.router.table.field.event.schema.version": "version",
  "transforms.router.table.fields.additional.placement": "kind:envelope:eventType,tenant:envelope,region:header,trace:header:region,shard:partition,odd",
  "transforms.router.route.by.field": "kind",
  "transforms.router.route.topic.regex": "(?<topic>.*)Created",
  "transforms.router.route.topic.replacement": "billing.${topic}",
  "transforms.router.route.tombstone.on.empty.payload": "true",
  "transforms.router.table.op.invalid.behavior": "fatal",
  "predicates": "isOutbox",
  "predicates.isOutbox.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
  "predicates.isOutbox.pattern": ".*outbox",
  "some.option": "canary-unknown"
}"#;

/// Kafka Connect standalone, with what its worker says left out.
const CONNECT_PROPERTIES: &str = r"# the outbox of the wallet
name=wallet
connector.class : io.debezium.connector.postgresql.PostgresConnector
plugin.name = pgoutput
database.hostname=localhost
database.user=wallet
database.password=canary\:1
database.dbname=wallet
slot.name=wallet
table.include.list=wallet\\.outbox_events
extended.headers.enabled=false
errors.tolerance=all
max.batch.size=4096
transforms=o
transforms.o.type=io.debezium.transforms.outbox.EventRouter
transforms.o.table.expand.json.payload=true
transforms.o.table.fields.additional.placement=type:header:eventType,\
    tenant_id:header:tenant
transforms.o.route.topic.regex=(?=lookahead).*
transforms.o.route.topic.replacement=x
";

/// Debezium Server with its defaults for everything but key and value.
const SERVER_PROPERTIES: &str = r"
debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector
debezium.source.plugin.name=pgoutput
debezium.source.database.hostname=${DB_HOST:localhost}
debezium.source.database.port=5432
debezium.source.database.user=relay
debezium.source.database.password=${DB_PASSWORD:canary-default}
debezium.source.database.dbname=shop
debezium.source.topic.prefix=shop
debezium.source.slot.name=shop_outbox
debezium.source.publication.name=shop_outbox
debezium.source.table.include.list=public.outboxevent
debezium.source.offset.storage.file.filename=data/offsets.dat
debezium.source.extended.headers.enabled=false
debezium.format.key=simplestring
debezium.format.value=simplestring
debezium.transforms=outbox
debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
debezium.transforms.outbox.route.topic.replacement=outbox.event.$1
debezium.transforms.outbox.table.fields.additional.placement=type:header:eventType
debezium.sink.type=kafka
debezium.sink.kafka.producer.bootstrap.servers=kafka:9092
debezium.sink.kafka.producer.key.serializer=org.apache.kafka.common.serialization.StringSerializer
debezium.sink.kafka.producer.ssl.keystore.password=canary-keystore
debezium.sink.kafka.producer.batch.size=nonsense-canary
quarkus.http.port=8080
quarkus.log.console.json=false
";

fn import(path: &str, text: &str) -> Result<Import> {
    Ok(Connector::read(path, text)?.import(&[]))
}

const ALL: [&str; 4] = [CONNECT_JSON, BARE_JSON, CONNECT_PROPERTIES, SERVER_PROPERTIES];

/// What `run` would make of the import, with brokers for those that have none.
fn config(import: &Import) -> Config {
    let file = ConfigFile::new("walrelay.toml", &import.toml);
    let mut flags = Flags::new();
    if !import.toml.contains("\nbrokers = ") {
        flags.insert("kafka.brokers", "kafka:9092".to_owned());
    }
    let config = Settings::new(&flags, &Environment::new(), Some(&file)).unwrap().config(false).unwrap();
    check_properties(&config.kafka.properties).unwrap();
    config
}

fn templates(config: &Config) -> (&str, Option<&str>, Vec<(&str, &str)>) {
    let headers =
        config.outboxes[0].route.headers.iter().map(|(name, template)| (name.as_str(), template.source())).collect();
    (config.outboxes[0].route.topic.source(), config.outboxes[0].route.key.as_ref().map(|key| key.source()), headers)
}

fn left(import: &Import) -> Vec<(&str, Effect)> {
    import.left.iter().map(|left| (left.option.as_str(), left.effect)).collect()
}

fn value(config: &Config) -> Vec<(&str, &str)> {
    match &config.outboxes[0].route.value {
        ValueConfig::Template(template) => vec![("", template.source())],
        ValueConfig::Envelope { members, .. } => {
            members.iter().map(|(name, template)| (name.as_str(), template.source())).collect()
        }
    }
}

#[test]
fn a_connector_in_json_is_carried_whole() {
    let import = import("c.json", CONNECT_JSON).unwrap();
    let config = config(&import);
    assert_eq!(
        templates(&config),
        ("{aggregatetype}.events", Some("{aggregateid|connect}"), vec![("eventType", "{type}")])
    );
    assert_eq!(value(&config), [("", "{payload|connect}")]);
    assert_eq!(
        (config.outboxes[0].route.id_header.as_deref(), config.outboxes[0].route.position_header.as_deref()),
        (Some("id"), None)
    );
    assert_eq!(config.source.slot.as_str(), "orders_outbox");
    assert_eq!(config.source.publication, "orders_pub");
    assert_eq!(config.outboxes[0].source.to_string(), "public.outbox");
    assert_eq!(config.kafka.brokers, "k1:9093,k2:9093");
    let properties: Vec<_> =
        config.kafka.properties.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
    assert_eq!(
        properties,
        [
            ("compression.type", "zstd"),
            ("linger.ms", "20"),
            ("message.max.bytes", "2000000"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("sasl.username", "relay"),
            ("security.protocol", "SASL_SSL"),
            ("ssl.ca.location", "/etc/kafka/ca.pem"),
            ("ssl.endpoint.identification.algorithm", "none"),
        ]
    );
    assert!(import.toml.contains(
        r#"url = "host=db.internal port=5433 user='dbz user' dbname=shop sslmode=verify-full sslrootcert=/etc/ssl/db.pem""#
    ));
    assert_eq!(
        left(&import),
        [
            ("database.password", Effect::ToDo),
            ("topic.prefix", Effect::NoEffect),
            ("publication.name", Effect::ToDo),
            ("publication.autocreate.mode", Effect::NoEffect),
            ("table.include.list", Effect::ToDo),
            ("tombstones.on.delete", Effect::NoEffect),
            ("heartbeat.interval.ms", Effect::ToDo),
            ("producer.override.sasl.jaas.config", Effect::ToDo),
            ("producer.override.ssl.truststore.type", Effect::NoEffect),
            ("producer.override.acks", Effect::NoEffect),
        ]
    );
    assert_eq!(import.seen(), 0);
}

#[test]
fn another_table_with_an_envelope_is_carried_and_each_doubt_is_listed() {
    let import = import("c.json", BARE_JSON).unwrap();
    let config = config(&import);
    assert_eq!(
        templates(&config),
        (
            "{kind|match('(?<topic>.*)Created', 'billing.${topic}')}",
            Some("{\"account id\"|connect('json')|default('null')}"),
            vec![("region", "{region|connect}")]
        )
    );
    assert_eq!(
        value(&config),
        [
            ("payload", "{body|connect('json')}"),
            ("eventType", "{kind|connect('json')}"),
            ("tenant", "{tenant|connect('json')}")
        ]
    );
    let ValueConfig::Envelope { tombstone, .. } = &config.outboxes[0].route.value else { panic!("no envelope") };
    assert_eq!(tombstone.as_deref(), Some("body"));
    assert_eq!(config.outboxes[0].route.partition.as_deref(), Some("shard"));
    assert_eq!(config.outboxes[0].route.timestamp.as_deref(), Some("created_at"));
    assert_eq!((config.outboxes[0].id.as_str(), config.outboxes[0].payload.as_str()), ("event_id", "body"));
    assert_eq!(config.outboxes[0].source.to_string(), "billing.\"Outbox\"");
    assert_eq!(config.source.publication, "dbz_publication");
    let placement = "transforms.router.table.fields.additional.placement";
    assert_eq!(
        left(&import),
        [
            ("database.password", Effect::ToDo),
            ("database.dbname", Effect::ToDo),
            ("table.include.list", Effect::Differs),
            ("slot.drop.on.stop", Effect::ToDo),
            ("transforms.filter.type", Effect::Differs),
            ("transforms.filter.condition", Effect::Differs),
            ("transforms.router.predicate", Effect::MayDiffer),
            ("transforms.router.table.field.event.id", Effect::ToDo),
            ("transforms.router.table.field.event.timestamp", Effect::MayDiffer),
            ("transforms.router.table.field.event.schema.version", Effect::NoEffect),
            (placement, Effect::Differs),
            (placement, Effect::Differs),
            ("transforms.router.route.tombstone.on.empty.payload", Effect::MayDiffer),
            ("transforms.router.table.op.invalid.behavior", Effect::NoEffect),
            ("predicates", Effect::MayDiffer),
            ("predicates.isOutbox.type", Effect::MayDiffer),
            ("predicates.isOutbox.pattern", Effect::MayDiffer),
            ("some.option", Effect::MayDiffer),
            ("extended.headers.enabled (not set)", Effect::MayDiffer),
            ("publication.name (not set)", Effect::ToDo),
            ("producer.override.bootstrap.servers (not set)", Effect::ToDo),
        ]
    );
}

#[test]
fn properties_of_kafka_connect_are_carried_as_far_as_the_worker_is_not_needed() {
    let import = import("c.properties", CONNECT_PROPERTIES).unwrap();
    let config = config(&import);
    let headers = vec![("eventType", "{type}"), ("tenant", "{tenant_id|connect}")];
    // The expression is Java's own: what stands there is the default, and it is listed.
    assert_eq!(templates(&config), ("outbox.event.{aggregatetype}", Some("{aggregateid|connect}"), headers));
    assert_eq!(config.outboxes[0].source.to_string(), "wallet.outbox_events");
    assert_eq!(
        left(&import),
        [
            ("database.password", Effect::ToDo),
            ("table.include.list", Effect::ToDo),
            ("errors.tolerance", Effect::MayDiffer),
            ("max.batch.size", Effect::NoEffect),
            ("transforms.o.route.topic.regex", Effect::Differs),
            ("publication.name (not set)", Effect::ToDo),
            ("key.converter (not set)", Effect::MayDiffer),
            ("value.converter (not set)", Effect::MayDiffer),
            ("producer.override.bootstrap.servers (not set)", Effect::ToDo),
        ]
    );
}

#[test]
fn debezium_server_has_its_own_names_and_defaults() {
    let import = import("application.properties", SERVER_PROPERTIES).unwrap();
    let config = config(&import);
    let headers = vec![("id", "{id|connect('schema', 'required')}"), ("eventType", "{type|connect('schema')}")];
    assert_eq!(templates(&config), ("outbox.event.{aggregatetype}", Some("{aggregateid|connect}"), headers));
    assert_eq!(config.outboxes[0].route.id_header, None, "the one with a schema stands for it");
    assert_eq!(config.kafka.brokers, "kafka:9092");
    assert_eq!(
        left(&import),
        [
            ("debezium.source.database.hostname", Effect::ToDo),
            ("debezium.source.database.password", Effect::ToDo),
            ("debezium.source.topic.prefix", Effect::NoEffect),
            ("debezium.source.publication.name", Effect::ToDo),
            ("debezium.source.table.include.list", Effect::ToDo),
            ("debezium.source.offset.storage.file.filename", Effect::NoEffect),
            ("debezium.sink.kafka.producer.key.serializer", Effect::NoEffect),
            ("debezium.sink.kafka.producer.ssl.keystore.password", Effect::ToDo),
            ("debezium.sink.kafka.producer.batch.size", Effect::ToDo),
            ("quarkus.http.port", Effect::NoEffect),
            ("quarkus.log.console.json", Effect::NoEffect),
            ("debezium.format.header (not set)", Effect::MayDiffer),
        ]
    );
}

#[test]
fn no_secret_is_in_anything_that_is_written() {
    for text in ALL {
        let import = import("c", text).unwrap();
        assert!(text.contains("canary"));
        let json = serde_json::to_string(&import).unwrap();
        assert!(!json.contains("canary") && !import.toml.contains("canary"), "{json}");
    }
}

#[test]
fn each_line_says_why_and_what_consumers_see_is_never_without_a_remedy() {
    for left in ALL.iter().flat_map(|text| import("c", text).unwrap().left) {
        assert!(!left.why.is_empty(), "{}", left.option);
        assert!(left.effect == Effect::NoEffect || !left.what_to_do.is_empty(), "{}", left.option);
    }
}

/// The least there is, with `more` in it.
fn with(more: &str) -> Import {
    let text = format!(
        "connector.class=PostgresConnector\nplugin.name=pgoutput\nslot.name=s\ntable.include.list=public.outbox\n\
         extended.headers.enabled=false\ntransforms=o\ntransforms.o.type=io.debezium.transforms.outbox.EventRouter\n\
         key.converter=StringConverter\nproducer.override.bootstrap.servers=b:1\n{more}"
    );
    import("c.properties", &text).unwrap()
}

#[test]
fn bytes_that_are_not_the_same_are_listed_with_the_converter_that_made_them() {
    const JSON: &str = "value.converter=org.apache.kafka.connect.json.JsonConverter\n";
    const PLAIN: &str = "value.converter.schemas.enable=false\n";
    const EXPAND: &str = "transforms.o.table.expand.json.payload=true\n";
    const ENVELOPE: &str = "transforms.o.table.fields.additional.placement=type:envelope\n";
    let seen = |more: &[&str]| {
        let import = with(&more.concat());
        config(&import);
        let seen = import.left.iter().filter(|left| left.effect.is_seen());
        seen.map(|left| left.option.clone()).collect::<Vec<_>>()
    };
    assert_eq!(seen(&["value.converter=io.debezium.converters.BinaryDataConverter\n"]), [""; 0]);
    assert_eq!(seen(&["value.converter=org.apache.kafka.connect.converters.ByteArrayConverter\n"]), [""; 0]);
    assert_eq!(seen(&[JSON]), ["value.converter"]);
    assert_eq!(seen(&[JSON, PLAIN]), [""; 0]);
    assert_eq!(seen(&[JSON, PLAIN, EXPAND]), ["transforms.o.table.expand.json.payload"]);
    assert_eq!(seen(&[JSON, EXPAND]), ["value.converter"]);
    assert_eq!(seen(&[JSON, PLAIN, ENVELOPE]), [""; 0]);
    assert_eq!(seen(&[JSON, ENVELOPE]), ["value.converter"]);
    assert_eq!(seen(&["value.converter=StringConverter\n", EXPAND]), ["transforms.o.table.expand.json.payload"]);
    assert_eq!(seen(&["value.converter=io.confluent.connect.avro.AvroConverter\n"]), ["value.converter"]);
    assert_eq!(seen(&["value.converter=StringConverter\n", "header.converter=JsonConverter\n"]), ["header.converter"]);
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
        ("connector.class=PostgresConnector", "f: none of its transforms is Debezium's Outbox Event Router"),
        (
            "connector.class=PostgresConnector\ntransforms=a\ntransforms.b.type=io.debezium.transforms.outbox.EventRouter",
            "f: none of its transforms",
        ),
    ] {
        let error = import("f", text).unwrap_err();
        assert!(error.cause().starts_with(cause) && error.what_to_do().is_some(), "{text}: {error}");
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
        ("outbox.event.{aggregatetype}", Some("{\"k\"\"} {x\"|connect}"), vec![(name, "{type}")])
    );
    assert!(import.toml.contains(r"user='a\\' password=\\'x'"), "{}", import.toml);
}

#[test]
fn a_name_is_carried_where_only_the_password_is_filled_in() {
    let login = |user: &str| {
        let import = with(&format!(
            "value.converter=StringConverter\nproducer.override.sasl.mechanism=PLAIN\n\
             producer.override.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
             username=\"{user}\" password=\"${{file:/run/secrets:canary}}\";\n"
        ));
        assert_eq!(left(&import).last(), Some(&("publication.name (not set)", Effect::ToDo)));
        assert!(left(&import).contains(&("producer.override.sasl.jaas.config", Effect::ToDo)));
        assert!(!import.toml.contains("canary"));
        config(&import).kafka.properties.get("sasl.username").map(|name| name.expose().to_owned())
    };
    assert_eq!(login("relay").as_deref(), Some("relay"));
    assert_eq!(login("${env:KAFKA_USER}"), None);
}

#[test]
fn an_option_that_changes_records_is_not_without_effect() {
    const PLACEMENT: &str = "transforms.o.table.fields.additional.placement";
    for (line, option, effect) in [
        (
            "value.converter=JsonConverter\nvalue.converter.decimal.format=numeric",
            "value.converter.decimal.format",
            Effect::MayDiffer,
        ),
        ("key.converter.converter.encoding=ISO-8859-1", "key.converter.converter.encoding", Effect::Differs),
        ("value.converter.some.other=x", "value.converter.some.other", Effect::MayDiffer),
        ("key.converter=ByteArrayConverter", "key.converter", Effect::Differs),
        (
            "header.converter=StringConverter\ntransforms.o.table.fields.additional.placement=tags:header",
            "header.converter",
            Effect::MayDiffer,
        ),
        (
            "value.converter=BinaryDataConverter\nvalue.converter.delegate.converter.type=JsonConverter",
            "value.converter",
            Effect::MayDiffer,
        ),
        ("table.include.list=Sales.Outbox", "table.include.list", Effect::ToDo),
        ("lsn.flush.mode=manual", "lsn.flush.mode", Effect::ToDo),
        ("slot.stream.params=origin=none", "slot.stream.params", Effect::MayDiffer),
        ("include.unknown.datatypes=true", "include.unknown.datatypes", Effect::MayDiffer),
        ("include.schema.comments=true", "include.schema.comments", Effect::MayDiffer),
        ("heartbeat.action.query=insert into x values (1)", "heartbeat.action.query", Effect::ToDo),
        ("notification.enabled.channels=sink", "notification.enabled.channels", Effect::ToDo),
        ("internal.what.ever=1", "internal.what.ever", Effect::MayDiffer),
        ("transforms.mask.fields=a", "transforms.mask.fields", Effect::Differs),
        ("predicates.p.type=x", "predicates.p.type", Effect::MayDiffer),
        (
            "transforms.o.table.fields.additional.placement=a:envelope\ntransforms.o.table.expand.json.payload=true\n\
             transforms.o.table.field.event.schema.version=version",
            "transforms.o.table.field.event.schema.version",
            Effect::MayDiffer,
        ),
        ("transforms.o.table.field.event.payload.id=x", "transforms.o.table.field.event.payload.id", Effect::MayDiffer),
        (
            "transforms.o.table.json.payload.empty.array.behavior=optional_string",
            "transforms.o.table.json.payload.empty.array.behavior",
            Effect::MayDiffer,
        ),
        (
            "transforms.o.table.field.additional.missing=ignore",
            "transforms.o.table.field.additional.missing",
            Effect::ToDo,
        ),
        ("transforms.o.table.fields.additional.placement=:header", PLACEMENT, Effect::Differs),
        ("transforms.o.table.fields.additional.placement=a:HEADER,b:header:x:y", PLACEMENT, Effect::Differs),
        ("transforms.o.table.fields.additional.placement=a:nowhere", PLACEMENT, Effect::Differs),
    ] {
        assert!(left(&with(line)).contains(&(option, effect)), "{line}");
    }
    for line in [
        "value.converter=JsonConverter\nvalue.converter.decimal.format=base64",
        "value.converter=StringConverter\nvalue.converter.decimal.format=NUMERIC",
        "lsn.flush.mode=connector_and_driver",
        "transforms.o.table.json.payload.empty.array.behavior=ignore",
        "value.converter.delegate.converter.type.schemas.enable=false",
    ] {
        let (option, _) = line.lines().last().unwrap().split_once('=').unwrap();
        assert!(!left(&with(line)).iter().any(|(listed, _)| *listed == option), "{line}");
    }
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
        let base = BaseType { name: (*base).to_owned(), category: category.to_owned(), ..BaseType::default() };
        let default = default.map(str::to_owned);
        catalog::Column {
            name: (*name).to_owned(),
            base,
            type_modifier: *type_modifier,
            default,
            ..catalog::Column::default()
        }
    });
    Found { name: name.parse().unwrap(), table: Table { columns: columns.collect(), ..Table::default() } }
}

/// An outbox with a key and a payload of these types.
fn outbox(name: &str, key: &str, payload: &str) -> Found {
    let columns = [("id", "uuid"), ("aggregatetype", "text"), ("aggregateid", key), ("payload", payload)];
    found(name, &columns.map(|(name, base)| (name, base, -1, None)))
}

#[test]
fn tables_of_the_database_become_outboxes_and_their_types_are_known() {
    const DELEGATED: &str = "value.converter=io.debezium.converters.BinaryDataConverter\n\
                             value.converter.delegate.converter.type=org.apache.kafka.connect.json.JsonConverter\n\
                             value.converter.delegate.converter.type.schemas.enable=false\n";
    const TEXT: &str = "value.converter=StringConverter\n";
    let with = |more: &str, tables: &[Found]| {
        let text = format!(
            "connector.class=PostgresConnector\nplugin.name=pgoutput\nextended.headers.enabled=false\ntransforms=o\n\
             transforms.o.type=io.debezium.transforms.outbox.EventRouter\nkey.converter=StringConverter\n{more}"
        );
        let import = |list: &str| Connector::read("c.properties", &format!("{text}\n{list}")).unwrap().import(tables);
        let pattern =
            import("table.include.list=.*o").left.into_iter().find(|left| left.option == "table.include.list");
        assert!(pattern.unwrap().why.contains("created later"));
        let import = import("table.include.list=a.o, b.o");
        let config = config(&import);
        let seen = import.left.iter().filter(|left| left.effect.is_seen()).map(|left| left.option.clone());
        let outbox = config.outboxes.last().unwrap();
        let ValueConfig::Template(value) = &outbox.route.value else { panic!("{}", import.toml) };
        let key = outbox.route.key.as_ref().unwrap().source().to_owned();
        let tables: Vec<_> = config.outboxes.iter().map(|outbox| outbox.source.to_string()).collect();
        (tables.join(" "), key, value.source().to_owned(), seen.collect::<Vec<_>>().join(" "))
    };
    let named = |text: &str| text.to_owned();
    for (more, tables, wanted) in [
        (
            TEXT,
            vec![outbox("a.outbox", "uuid", "jsonb"), outbox("b.\"Out Box\"", "text", "text")],
            ("a.outbox b.\"Out Box\"", "{aggregateid}", "{payload}", ""),
        ),
        (
            TEXT,
            vec![outbox("a.o", "float8", "bool")],
            ("a.o", "{aggregateid|connect}", "{payload|connect}", "table.include.list"),
        ),
        (
            TEXT,
            vec![outbox("a.o", "numeric", "_text")],
            ("a.o", "{aggregateid|connect}", "{payload|connect}", "key.converter value.converter"),
        ),
        (DELEGATED, vec![outbox("a.o", "text", "bytea")], ("a.o", "{aggregateid}", "{payload}", "")),
        (
            DELEGATED,
            vec![outbox("a.o", "text", "jsonb")],
            ("a.o", "{aggregateid}", "{payload|connect('json')|default('null')}", ""),
        ),
        (
            DELEGATED,
            vec![outbox("a.o", "text", "bytea"), outbox("b.o", "text", "jsonb")],
            ("a.o b.o", "{aggregateid}", "{payload}", "value.converter"),
        ),
        (
            "value.converter=JsonConverter\nvalue.converter.schemas.enable=false\n\
             value.converter.decimal.format=NUMERIC",
            vec![outbox("a.o", "text", "numeric")],
            ("a.o", "{aggregateid}", "{payload|connect|json|default('null')}", ""),
        ),
        (
            "value.converter=JsonConverter\nvalue.converter.schemas.enable=false\n\
             value.converter.decimal.format=NUMERIC",
            vec![outbox("a.o", "text", "numeric"), outbox("b.o", "text", "int4")],
            ("a.o b.o", "{aggregateid}", "{payload|connect('json')|default('null')}", "value.converter.decimal.format"),
        ),
        (
            "value.converter=JsonConverter\nvalue.converter.decimal.format=NUMERIC",
            vec![outbox("a.o", "text", "numeric")],
            ("a.o", "{aggregateid}", "{payload|connect('schema')}", "value.converter.decimal.format"),
        ),
    ] {
        let (tables_of, key, value, seen) = wanted;
        assert_eq!(with(more, &tables), (named(tables_of), named(key), named(value), named(seen)), "{more}");
    }
    let with_default = |sql: Option<&str>| {
        let mut table = outbox("a.o", "text", "jsonb");
        table.table.columns.iter_mut().for_each(|column| {
            column.default = sql.filter(|_| column.name == "payload").map(str::to_owned);
        });
        with(TEXT, &[table]).3
    };
    assert_eq!(with_default(Some("'{}'::jsonb")), "table.include.list");
    assert_eq!(with_default(Some("NULL::jsonb")), "");
    assert_eq!(with_default(None), "");
}

#[test]
fn what_debezium_makes_of_a_columns_type_is_listed_by_column() {
    const OPTIONS: &str = "connector.class=PostgresConnector\nplugin.name=pgoutput\nextended.headers.enabled=false\ntransforms=o\n\
                           transforms.o.type=io.debezium.transforms.outbox.EventRouter\ntable.include.list=a.o\n\
                           key.converter=JsonConverter\nvalue.converter=JsonConverter\nvalue.converter.schemas.enable=false\n";
    let with = |key: &str, change: fn(&mut catalog::Column), more: &str| {
        let mut table = outbox("a.o", key, "jsonb");
        table.table.columns.iter_mut().filter(|column| column.name == "aggregateid").for_each(change);
        let import = Connector::read("c.properties", &format!("{OPTIONS}{more}")).unwrap().import(&[table]);
        let outbox = config(&import).outboxes.remove(0);
        let is_of_column = |left: &&Left| {
            matches!(left.option.as_str(), "table.include.list" | "key.converter") || left.option.ends_with("timestamp")
        };
        let left = import.left.iter().filter(is_of_column).map(|left| (left.option.clone(), left.effect));
        (outbox.route.key.unwrap().source().to_owned(), left.collect::<Vec<_>>())
    };
    const NOTHING: fn(&mut catalog::Column) = |_| ();
    const AS_ARRAY: fn(&mut catalog::Column) = |column| column.base.category = "A".to_owned();
    let listed = |effects: &[Effect]| {
        effects.iter().map(|effect| ("table.include.list".to_owned(), *effect)).collect::<Vec<_>>()
    };
    for (key, change, wanted) in [
        ("text", NOTHING, listed(&[])),
        ("numeric", NOTHING, listed(&[Effect::ToDo])),
        ("timetz", NOTHING, listed(&[Effect::MayDiffer])),
        ("pg_lsn", NOTHING, listed(&[Effect::Differs])),
        ("name", NOTHING, listed(&[Effect::Differs])),
        ("_text", AS_ARRAY, listed(&[Effect::ToDo])),
        ("_price", AS_ARRAY, listed(&[Effect::Differs])),
        ("_timestamptz", AS_ARRAY, listed(&[Effect::ToDo, Effect::MayDiffer])),
    ] {
        let (template, mut left) = with(key, change, "");
        left.retain(|(option, _)| option == "table.include.list");
        assert_eq!((template.as_str(), left), ("{aggregateid|connect('schema')}", wanted), "{key}");
    }
    let (template, left) = with("text", |column| column.not_null = true, "");
    assert_eq!((template.as_str(), left.len()), ("{aggregateid|connect('schema', 'required')}", 0));
    for lacking in [
        |column: &mut catalog::Column| column.default = Some("'x'::text".to_owned()),
        |column: &mut catalog::Column| {
            column.base.category = "E".to_owned();
        },
    ] {
        assert!(with("text", lacking, "").1.contains(&("key.converter".to_owned(), Effect::MayDiffer)));
    }
    let timestamp = "transforms.o.table.field.event.timestamp";
    for (key, effect) in [("timestamp", Effect::ToDo), ("timestamptz", Effect::MayDiffer)] {
        let left = with(key, NOTHING, &format!("{timestamp}=aggregateid")).1;
        assert!(left.contains(&(timestamp.to_owned(), effect)), "{left:?}");
    }
}

#[test]
fn a_connector_takes_the_outboxes_it_captures() {
    let connector =
        Connector::read("c.properties", &SERVER_PROPERTIES.replace("public.outboxevent", "Shop.*")).unwrap();
    assert_eq!(connector.publication(), Ok("shop_outbox"));
    let elsewhere = SERVER_PROPERTIES.replace("publication.name=shop_outbox", "publication.name=${PUBLICATION}");
    let error = Connector::read("c.properties", &elsewhere).unwrap();
    let error = error.publication().unwrap_err();
    assert_eq!(error.kind(), Kind::Config);
    assert!(error.cause().starts_with("debezium.source.publication.name: it is filled in"), "{error}");
    assert_eq!(connector.captures(&"shop.outbox".parse().unwrap()), Ok(true));
    assert_eq!(connector.captures(&"other.outbox".parse().unwrap()), Ok(false));
    assert!(connector.fits(&outbox("shop.outbox", "text", "jsonb").table));
    assert!(!connector.fits(&found("shop.orders", &[("id", "uuid", -1, None)]).table));
}

#[test]
fn debezium_server_sends_records_without_partition_and_timestamp_and_has_options_for_all_converters() {
    let text = SERVER_PROPERTIES.replace("type:header:eventType", "shard:partition").replace("simplestring", "json")
        + "debezium.format.decimal.format=NUMERIC\ndebezium.format.schemas.enable=false\n\
           debezium.transforms.outbox.table.field.event.timestamp=created_at\n";
    let import = import("application.properties", &text).unwrap();
    let config = config(&import);
    assert_eq!((&config.outboxes[0].route.partition, &config.outboxes[0].route.timestamp), (&None, &None));
    assert_eq!(import.left.iter().filter(|left| left.option.contains("decimal.format")).count(), 3);
}

#[test]
fn quarkus_escapes_of_a_group_are_those_of_the_group() {
    for replacement in
        ["$1.events", "$${routedByValue}.events", "\\\\${routedByValue}.events", "${routedByValue}.events"]
    {
        let text = SERVER_PROPERTIES.replace("outbox.event.$1", replacement);
        let import = import("application.properties", &text).unwrap();
        assert_eq!(templates(&config(&import)).0, "{aggregatetype}.events", "{replacement}");
    }
}

const PARTITIONS: i32 = 8;

/// What Debezium's Outbox Event Router put on the wire, byte for byte, against what becomes of the same rows with the
/// same configuration, imported. `tests/debezium/README.md` describes the files.
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
    /// `record` (one has it and the other has not), `topic`, `partition`, `timestamp`, `key`, `value`, `headers` (their
    /// names), or `header NAME`.
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
            let hexadecimal: String = bytes.unwrap_or_default().iter().map(|byte| format!("{byte:02x}")).collect();
            serde_json::json!({ "hex": hexadecimal })
        }
    }
}

fn ours(record: &Record<'_>) -> Captured {
    Captured {
        topic: record.topic.to_owned(),
        partition: record.partition.or_else(|| record.key.map(|key| partition(hash(key), PARTITIONS))),
        timestamp: record.timestamp_ms,
        key: json(record.key),
        value: json(record.value),
        headers: record.headers.iter().map(|(name, value)| ((*name).to_owned(), json(*value))).collect(),
    }
}

/// The event's id, in whatever form the header has; empty without a header.
fn id_of(record: &Captured) -> String {
    let header = record.headers.iter().find(|(name, _)| name == "id").and_then(|(_, id)| id.as_str());
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
    let headers: Vec<_> = captured.headers.iter().filter(|(name, _)| !is_of_debezium(name)).collect();
    let names = |headers: &[&(String, Json)]| headers.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let our_headers: Vec<_> = ours.headers.iter().collect();
    let mut parts = vec![
        ("topic".to_owned(), captured.topic == ours.topic, Json::from(ours.topic.as_str())),
        // Of a record without a key it means nothing.
        (
            "partition".to_owned(),
            captured.key.is_null() || captured.partition == ours.partition,
            Json::from(ours.partition),
        ),
        ("timestamp".to_owned(), captured.timestamp == ours.timestamp, Json::from(ours.timestamp)),
        ("key".to_owned(), captured.key == ours.key, ours.key.clone()),
        ("value".to_owned(), captured.value == ours.value, ours.value.clone()),
        ("headers".to_owned(), names(&headers) == names(&our_headers), Json::from(names(&our_headers))),
    ];
    for ((name, captured), (_, ours)) in headers.into_iter().zip(our_headers) {
        parts.push((format!("header {name}"), captured == ours, ours.clone()));
    }
    parts.into_iter().filter(|(_, same, _)| !same).map(|(part, _, ours)| (part, ours)).collect()
}

impl Captures {
    fn read(folder: &str) -> Captures {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let table = |name: &String| {
            let written: Written =
                serde_json::from_str(&read(folder.join("rows").join(name).with_extension("json"))).unwrap();
            (Found { name: format!("public.{name}").parse().unwrap(), table: written.table.clone() }, written)
        };
        let tables = Captures::names(&folder.join("rows")).iter().map(table).collect();
        Captures { folder, tables }
    }

    /// The files in a folder, without what is behind the point.
    fn names(folder: &Path) -> Vec<String> {
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let mut names: Vec<_> = files.map(|file| file.file_stem().unwrap().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn cases(&self) -> Vec<String> {
        Captures::names(&self.folder.join("connectors"))
    }

    fn connector(&self, case: &str) -> (Connector, bool) {
        let text = read(self.folder.join("connectors").join(case).with_extension("properties"));
        (Connector::read(case, &text).unwrap(), text.contains("errors.tolerance=all"))
    }

    /// The import of a case, and what became of each row. `offline` is an import without the database.
    fn compared(&self, case: &str, offline: bool) -> (Import, Vec<Pair>) {
        let (connector, goes_on) = self.connector(case);
        let is_captured = |found: &Found| connector.captures(&found.name) == Ok(true) && connector.fits(&found.table);
        let tables: Vec<_> = self.tables.iter().filter(|(found, _)| is_captured(found)).collect();
        let of_database: Vec<_> = tables.iter().map(|(found, _)| found.clone()).filter(|_| !offline).collect();
        let import = connector.import(&of_database);
        let config = config(&import);
        let lines = read(self.folder.join("records").join(case).with_extension("jsonl"));
        let captured = lines.lines().map(|line| serde_json::from_str::<Captured>(line).unwrap());
        let mut captured: Vec<_> = captured.map(|record| (id_of(&record), record)).collect();
        let mut pairs = Vec::new();
        for (outbox, (found, written)) in config.outboxes.iter().zip(tables) {
            let mut router = Router::new(outbox).unwrap();
            let columns: Vec<_> = written.table.columns.iter().map(column).collect();
            let id_at = columns.iter().position(|column| column.name == outbox.id).unwrap();
            let mut polled = Polled::new(outbox, columns).unwrap();
            for (number, row) in written.rows.iter().enumerate() {
                let values = row.iter().map(|value| value.as_ref().map(String::as_bytes));
                let place = Place { commit_lsn: Lsn::new(0x64), index: 3, via: Via::Table };
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
                pairs.push(Pair { id, row: Some((found.name.table().to_owned(), number)), captured, ours });
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
        for Pair { id, row, captured, ours } in self.compared(case, offline).1 {
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
fn column(column: &Column) -> decode::Column {
    decode::Column { name: column.name.clone(), type_oid: column.base.oid, type_modifier: column.type_modifier }
}

/// How many cases there were when the last was captured: nothing is compared where there is nothing.
const CASES_MIN: usize = 69;

#[test]
fn every_record_is_debeziums_or_differs_as_documented() {
    let listed: Vec<Difference> = serde_json::from_str(&read("tests/debezium/differences.json")).unwrap();
    let captures = Captures::read("tests/debezium");
    let cases = captures.cases();
    assert!(cases.len() >= CASES_MIN, "{cases:?}");
    let mut found: BTreeMap<(String, String), BTreeMap<String, Json>> = BTreeMap::new();
    for case in &cases {
        let known = captures.differences(case, false);
        let offline =
            captures.differences(case, true).into_iter().filter(|(place, ours)| known.get(place) != Some(ours));
        let offline: Vec<_> = offline.map(|found| (format!("{case} offline"), found)).collect();
        for (case, ((part, id), ours)) in known.into_iter().map(|found| (case.clone(), found)).chain(offline) {
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
        assert!(expected.insert(place.clone(), difference.ours).is_none(), "{place:?} is there twice");
    }
    let places: BTreeSet<_> = found.keys().chain(expected.keys()).cloned().collect();
    let wrong: Vec<_> = places
        .into_iter()
        .filter(|place| found.get(place) != expected.get(place))
        .map(|place| serde_json::json!([place, found.get(&place), expected.get(&place)]).to_string())
        .collect();
    assert!(wrong.is_empty(), "place, found, expected:\n{}", wrong.join("\n"));
}

/// The folder is like `tests/debezium`, without `differences.json`. `compared.jsonl` gets a line for each connector, with
/// what its import lists, and a line for each row: both records, and the parts in which the two differ.
#[test]
#[ignore = "compares the captures of scripts/debezium-differential"]
fn rows_of_random_connectors_are_compared() {
    let folder = std::env::var("WALRELAY_DIFFERENTIAL_DIR").expect("the folder with the captures");
    let captures = Captures::read(&folder);
    let mut lines = String::new();
    for case in Captures::names(&captures.folder.join("records")) {
        let (import, pairs) = captures.compared(&case, false);
        lines.push_str(&serde_json::json!({"case": case, "left": import.left, "toml": import.toml}).to_string());
        lines.push('\n');
        for Pair { id, row, captured, ours } in pairs {
            let parts = match (&captured, &ours) {
                (Some(captured), Ok(ours)) => differing(captured, ours).into_iter().map(|(part, _)| part).collect(),
                (None, Err(_)) => vec![],
                _ => vec!["record".to_owned()],
            };
            let (ours, stopped_by) = match ours {
                Ok(ours) => (Some(ours), None),
                Err(error) => (None, Some(error)),
            };
            let line = serde_json::json!({
                "case": case, "id": id, "row": row, "parts": parts, "debezium": captured, "walrelay": ours, "stopped by": stopped_by,
            });
            lines.push_str(&line.to_string());
            lines.push('\n');
        }
    }
    std::fs::write(Path::new(&folder).join("compared.jsonl"), lines).unwrap();
}
