//! What Debezium's Outbox Event Router put on the wire, byte for byte, against what the router makes of the same rows.
//!
//! Captured from Debezium 3.7.0 on Kafka Connect 4.3.1 with PostgreSQL 15 (StringConverter for key and value,
//! BinaryDataConverter for `bytea`, SimpleHeaderConverter). Headers that Debezium adds of itself
//! (`__debezium.context.*`) are left out there, and the position is switched off here.

use super::placement::{hash, partition};
use crate::config::file;
use crate::config::layers::{Environment, Flags, Settings};
use crate::event::lab::Lab;
use crate::route::Router;

const SETUP: &str = "database.url = 'postgres://u@h/d'\nslot.name = 's'\nkafka.brokers = 'b:1'\n\
                     route.position_header = ''\n";

/// A record as it was captured.
struct Captured {
    /// The partition, of how many.
    partition: (Option<i32>, i32),
    topic: &'static str,
    key: Option<&'static [u8]>,
    value: Option<&'static [u8]>,
    headers: &'static [(&'static str, Option<&'static str>)],
}

/// Routes one row by `configuration` and compares.
#[track_caller]
fn conforms(configuration: &str, types: &[u32], columns: &[&str], row: &[Option<&str>], captured: &Captured) {
    let file = file::parse("w.toml", &format!("{SETUP}{configuration}")).unwrap();
    let config = Settings::new(&Flags::new(), &Environment::new(), Some(&file)).config(false).unwrap();
    let mut router = Router::new(&config.outboxes[0]).unwrap();
    let lab = Lab::of_types(types, &config.outboxes[0], columns, row);
    let event = lab.event();
    let routed = router.route(&event).unwrap();
    routed.with_record(|record| {
        assert_eq!(record.topic, captured.topic);
        assert_eq!(record.key, captured.key);
        let text = |value: Option<&[u8]>| value.map(|value| String::from_utf8_lossy(value).into_owned());
        assert_eq!(record.value, captured.value, "{:?} and not {:?}", text(record.value), text(captured.value));
        let headers: Vec<_> = record.headers.iter().map(|(name, value)| ((*name).to_owned(), text(*value))).collect();
        let expected = captured.headers.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)));
        assert_eq!(headers, expected.collect::<Vec<_>>());
        let (expected, count) = captured.partition;
        let placed = record.partition.or_else(|| record.key.map(|key| partition(hash(key), count)));
        // Without a key Debezium's producer chooses for itself.
        assert_eq!(placed, expected, "of {count} partitions");
    });
}

const ID: &str = "00000000-0000-0000-0000-000000000001";
const OUTBOX: [&str; 5] = ["id", "aggregatetype", "aggregateid", "type", "payload"];
/// uuid, varchar, varchar, varchar, jsonb.
const OUTBOX_TYPES: [u32; 5] = [2950, 1043, 1043, 1043, 3802];
const ID_HEADER: &[(&str, Option<&str>)] = &[("id", Some(ID))];

/// c01 and, with tombstones for empty payloads, c06: the defaults.
#[test]
fn the_defaults_conform() {
    const OBJECT: &str = r#"{"flag": true, "name": "Zoë \"q\" € \\ /", "amount": 12.50, "nested": {"a": null, "b": [1, 2, 3]}, "orderId": 1}"#;
    const NUMBERS: &str = r#"{"big": 12345678901234567890, "dec": 1.10, "exp": 1000, "i64": 9007199254740993, "neg": 0.0, "earr": [], "objs": [{"a": 1}, {"b": "s"}], "empty": {}, "mixed": [1, "a", null, {"x": 1}]}"#;
    for (kind, key, payload, placed) in [
        ("order", Some("o-1"), Some(OBJECT), (Some(2), 4)),
        ("customer", Some("c-1"), Some(NUMBERS), (Some(7), 8)),
        ("order", Some("o-2"), None, (Some(3), 4)),
        ("order", Some("o-3"), Some(r#"[{"a": 1}, {"a": 2, "b": "x"}]"#), (Some(0), 4)),
        ("order", Some("o-4"), Some(r#""just text""#), (Some(0), 4)),
        ("order", Some("o-5"), Some("42"), (Some(2), 4)),
        ("order", Some("o-6"), Some("null"), (Some(0), 4)),
        ("order", None, Some(r#"{"a": 1}"#), (None, 4)),
        ("order", Some(""), Some(r#"{"a": 1}"#), (Some(1), 4)),
        ("order", Some("o-9"), Some(r#"{"a": 1}"#), (Some(2), 4)),
    ] {
        let row = [Some(ID), Some(kind), key, Some("OrderCreated"), payload];
        let topic = if kind == "order" { "outbox.event.order" } else { "outbox.event.customer" };
        let key = key.map(str::as_bytes);
        let value = payload.map(str::as_bytes);
        let captured = Captured { partition: placed, topic, key, value, headers: ID_HEADER };
        conforms("", &OUTBOX_TYPES, &OUTBOX, &row, &captured);
    }
}

/// c10 and c11: a text and a `bytea` as they are.
#[test]
fn payloads_that_are_no_json_conform() {
    for (payload_type, payload, value) in
        [(25, "plain text ü", "plain text ü".as_bytes()), (25, "", b""), (17, "\\x0001fe", &[0x00, 0x01, 0xfe])]
    {
        let types = [2950, 1043, 1043, 1043, payload_type];
        let row = [Some(ID), Some("order"), Some("o-1"), Some("x"), Some(payload)];
        let captured = Captured {
            partition: (Some(2), 8),
            topic: "outbox.event.order",
            key: Some(b"o-1"),
            value: Some(value),
            headers: ID_HEADER,
        };
        conforms("", &types, &OUTBOX, &row, &captured);
    }
}

/// c07: columns placed as headers. Those whose text differs are in the list of deviations.
#[test]
fn placed_headers_conform() {
    let columns = [&OUTBOX[..], &["tenant", "version", "amount", "created_at", "trace", "corr"]].concat();
    let types = [&OUTBOX_TYPES[..], &[1043, 23, 1700, 1184, 3802, 2950]].concat();
    let configuration = "[route.headers]\neventType = '{type}'\ntenant = '{tenant}'\naggregateVersion = '{version}'\n\
                         amount = '{amount}'\ncreated_at = '{created_at|rfc3339}'\ntrace = '{trace}'\ncorr = '{corr}'\n";
    let row = [
        Some(ID),
        Some("order"),
        Some("o-1"),
        Some("OrderCreated"),
        Some(r#"{"a": 1}"#),
        Some("acme"),
        Some("7"),
        Some("12.50"),
        Some("2024-05-06 05:08:09.123456+00"),
        Some(r#"{"traceparent": "00-abc"}"#),
        Some("11111111-2222-3333-4444-555555555555"),
    ];
    let captured = Captured {
        partition: (Some(2), 8),
        topic: "outbox.event.order",
        key: Some(b"o-1"),
        value: Some(br#"{"a": 1}"#),
        headers: &[
            ("id", Some(ID)),
            ("eventType", Some("OrderCreated")),
            ("tenant", Some("acme")),
            ("aggregateVersion", Some("7")),
            ("amount", Some("12.50")),
            ("created_at", Some("2024-05-06T05:08:09.123456Z")),
            ("trace", Some(r#"{"traceparent": "00-abc"}"#)),
            ("corr", Some("11111111-2222-3333-4444-555555555555")),
        ],
    };
    conforms(configuration, &types, &columns, &row, &captured);
    let mut nulls = row;
    nulls[2] = Some("o-2");
    nulls[5..].fill(None);
    let captured = Captured {
        partition: (Some(7), 8),
        key: Some(b"o-2"),
        headers: &[
            ("id", Some(ID)),
            ("eventType", Some("OrderCreated")),
            ("tenant", None),
            ("aggregateVersion", None),
            ("amount", None),
            ("created_at", None),
            ("trace", None),
            ("corr", None),
        ],
        ..captured
    };
    conforms(configuration, &types, &columns, &nulls, &captured);
}

/// c09: a column placed as the partition; NULL falls back to the key.
#[test]
fn a_placed_partition_conforms() {
    let columns = [&OUTBOX[..], &["part"]].concat();
    let types = [&OUTBOX_TYPES[..], &[23]].concat();
    for (key, part, placed) in [("o-1", Some("2"), 2), ("o-2", None, 3), ("o-3", Some("3"), 3)] {
        let row = [Some(ID), Some("order"), Some(key), Some("x"), Some("{}"), part];
        let captured = Captured {
            partition: (Some(placed), 4),
            topic: "outbox.event.order",
            key: Some(key.as_bytes()),
            value: Some(b"{}"),
            headers: ID_HEADER,
        };
        conforms("route.partition = 'part'", &types, &columns, &row, &captured);
    }
}

/// c16: routed by another column, with a regular expression, and another column as the key.
#[test]
fn another_route_conforms() {
    let configuration = "route.topic = \"c16.{type|match('(.*)Created', '$1')}\"\nroute.key = '{type}'\n";
    for (event_type, topic, placed) in [
        ("OrderCreated", "c16.Order", 0),
        ("CustomerCreated", "c16.Customer", 1),
        ("OrderArrayCreated", "c16.OrderArray", 5),
    ] {
        let row = [Some(ID), Some("order"), Some("o-1"), Some(event_type), Some("[]")];
        let captured = Captured {
            partition: (Some(placed), 8),
            topic,
            key: Some(event_type.as_bytes()),
            value: Some(b"[]"),
            headers: ID_HEADER,
        };
        conforms(configuration, &OUTBOX_TYPES, &OUTBOX, &row, &captured);
    }
}

/// c17: the id is a number.
#[test]
fn a_numbers_id_conforms() {
    let types = [20, 1043, 1043, 1043, 3802];
    let row = [Some("2"), Some("snap"), Some("s-2"), Some("x"), Some(r#"{"n": 1}"#)];
    let captured = Captured {
        partition: (Some(3), 8),
        topic: "outbox.event.snap",
        key: Some(b"s-2"),
        value: Some(br#"{"n": 1}"#),
        headers: &[("id", Some("2"))],
    };
    conforms("", &types, &OUTBOX, &row, &captured);
}
