use super::*;
use crate::config::ValueConfig;
use crate::config::outbox::RouteConfig;
use crate::error::Kind;
use crate::event::tests::Lab;

/// Rows of a table with the default columns and some more.
const COLUMNS: [&str; 7] = ["id", "aggregatetype", "aggregateid", "type", "payload", "tenant", "metadata"];

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

/// What became of a row: topic, key, value, headers.
type Outcome = (String, Option<String>, Option<String>, Vec<(String, Option<String>)>);

struct Routes {
    outbox: OutboxConfig,
    router: Router,
}

impl Routes {
    fn new(change: impl FnOnce(&mut RouteConfig)) -> Routes {
        let reserved_topics = vec!["outbox.event.state".to_owned()];
        let route = RouteConfig { reserved_topics, ..RouteConfig::default() };
        let mut outbox = OutboxConfig { route, ..OutboxConfig::default() };
        change(&mut outbox.route);
        outbox.need_only_routed();
        let router = Router::new(&outbox).unwrap();
        Routes { outbox, router }
    }

    fn route(&mut self, values: &[Option<&str>]) -> Result<Outcome, RouteError> {
        let lab = Lab::new(&self.outbox, &COLUMNS, values);
        let event = lab.event();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.router.route(&event).map(|routed| {
            routed.with_record(|record| {
                let headers = record.headers.iter().map(|(name, value)| ((*name).to_owned(), value.map(text)));
                (record.topic.to_owned(), record.key.map(text), record.value.map(text), headers.collect())
            })
        })
    }
}

fn with(place: usize, value: Option<&'static str>) -> Values {
    let mut row = ROW;
    row[place] = value;
    row
}

fn template(text: &str) -> Template {
    text.parse().unwrap()
}

#[test]
fn a_record_is_what_debezium_makes_of_the_row() {
    let mut routes = Routes::new(|_| {});
    for _ in 0..2 {
        let (topic, key, value, headers) = routes.route(&ROW).unwrap();
        assert_eq!(topic, "outbox.event.Order.v1");
        assert_eq!((key.as_deref(), value.as_deref()), (Some("o-1"), ROW[4]));
        let header = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
        assert_eq!(headers, [header("id", "7"), header("walrelay-position", "0/64:3")]);
    }
}

#[test]
fn null_is_no_key_and_no_value_and_empty_is_both() {
    let mut routes = Routes::new(|_| {});
    let mut row = with(2, None);
    row[4] = None;
    let (_, key, value, _) = routes.route(&row).unwrap();
    assert_eq!((key, value), (None, None));
    (row[2], row[4]) = (Some(""), Some(""));
    let (_, key, value, _) = routes.route(&row).unwrap();
    assert_eq!((key.as_deref(), value.as_deref()), (Some(""), Some("")));
}

#[test]
fn aggregate_types_are_kept_apart() {
    let mut routes = Routes::new(|_| {});
    for _ in 0..2 {
        for name in ["order", "Order", "", "customer"] {
            assert_eq!(routes.route(&with(1, Some(name))).unwrap().0, format!("outbox.event.{name}"));
        }
    }
}

#[test]
fn topic_key_and_headers_are_what_their_templates_say() {
    let mut routes = Routes::new(|route| {
        route.topic = template("{type|lower}-out-{tenant|default('none')}");
        route.key = Some(template("{aggregatetype}/{aggregateid}"));
        route.position_header = None;
        route.headers = vec![
            ("eventType".to_owned(), template("{type}")),
            ("tenant".to_owned(), template("{tenant}")),
            ("traceparent".to_owned(), template("{metadata.traceparent}")),
        ];
    });
    for _ in 0..2 {
        let (topic, key, _, headers) = routes.route(&ROW).unwrap();
        assert_eq!((topic.as_str(), key.as_deref()), ("placed-out-none", Some("Order.v1/o-1")));
        let header = |name: &str, value: Option<&str>| (name.to_owned(), value.map(str::to_owned));
        let expected = [
            header("id", Some("7")),
            header("eventType", Some("Placed")),
            header("tenant", None),
            header("traceparent", Some("00-ab")),
        ];
        assert_eq!(headers, expected);
    }
    assert_eq!(routes.route(&with(5, Some("acme"))).unwrap().0, "placed-out-acme");
    assert_eq!(routes.route(&with(2, None)).unwrap().1, None, "a NULL in it makes the whole key NULL");
}

#[test]
fn a_topic_may_be_constant_and_a_key_may_be_none() {
    let mut routes = Routes::new(|route| {
        route.topic = template("all-events");
        route.key = None;
    });
    let (topic, key, ..) = routes.route(&ROW).unwrap();
    assert_eq!((topic.as_str(), key), ("all-events", None));
}

#[test]
fn a_type_that_makes_no_topic_is_an_error_that_names_the_row_and_shows_nothing_raw() {
    let hostile = format!("a\n\x1b[2J{}", "x".repeat(100_000));
    let mut row: Vec<Option<&str>> = ROW.to_vec();
    (row[0], row[1]) = (Some("7\x01"), Some(hostile.as_str()));
    let error = Routes::new(|_| {}).route(&row).unwrap_err();
    let RouteProblem::Topic { problem: TopicProblem::TooLong { bytes }, .. } = error.problem else { panic!("{error}") };
    assert_eq!(bytes, 13 + hostile.len());
    let error = error.into_error(&"orders".parse().unwrap());
    assert_eq!(error.kind(), Kind::Event);
    let start = "slot orders: event at index 3 of the transaction at 0/64, row \"7\\u{1}\": template \
                 \"outbox.event.{aggregatetype}\" makes topic \"outbox.event.a\\n\\u{1b}[2Jxxx";
    let text = error.to_string();
    assert!(text.starts_with(start) && text.ends_with(error.cause()), "{text}");
    assert!(text.len() < 500 && !text.contains(char::is_control), "{text}");
    let advance = "select pg_replication_slot_advance('orders', '0/64'::pg_lsn + 1), and start once with --adopt-slot";
    assert!(error.what_to_do().unwrap().contains(advance), "{error}");
}

#[test]
fn what_a_route_needs_and_does_not_get_is_named() {
    let mut routes = Routes::new(|route| route.headers = vec![("n".to_owned(), template("{metadata.n|lower}"))]);
    let error = routes.route(&with(1, None)).unwrap_err();
    let expected = "column aggregatetype is NULL, and template \"outbox.event.{aggregatetype}\" needs it for the topic";
    assert_eq!(error.problem.to_string(), expected);
    let error = routes.route(&with(6, Some("no json"))).unwrap_err();
    assert_eq!(error.problem.to_string(), "column metadata is not JSON, which template \"{metadata.n|lower}\" needs");
    let error = routes.route(&with(1, Some("state"))).unwrap_err();
    assert!(matches!(error.problem, RouteProblem::Topic { problem: TopicProblem::Reserved, .. }), "{error}");
}

#[test]
fn a_column_that_is_not_needed_by_the_table_is_named() {
    let route = RouteConfig { topic: template("{nowhere}"), ..RouteConfig::default() };
    let outbox = OutboxConfig { route, ..OutboxConfig::default() };
    assert_eq!(Router::new(&outbox).unwrap_err().column, "nowhere");
}

#[test]
fn a_value_may_be_a_template() {
    let mut routes = Routes::new(|route| route.value = ValueConfig::Template(template("{payload|strip('b')}")));
    assert_eq!(routes.route(&ROW).unwrap().2.as_deref(), Some(r#"{"a": 12.50}"#));
    assert_eq!(routes.route(&with(4, None)).unwrap().2, None);
    let error = routes.route(&with(4, Some("[]"))).unwrap_err();
    let expected = "column payload is not a JSON object, which template \"{payload|strip('b')}\" needs";
    assert_eq!(error.problem.to_string(), expected);
}

#[test]
fn an_envelope_is_an_object_of_what_was_named_in_its_order() {
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
        route.value = ValueConfig::Envelope { members, tombstone: Some("payload".to_owned()) };
    });
    let expected = r#"{"id":"7","a \"quoted\" name":"Placed","data":{"b": 1, "a": 12.50},"tenant":null,"n":1}"#;
    assert_eq!(routes.route(&ROW).unwrap().2.as_deref(), Some(expected));
    assert_eq!(routes.route(&with(4, None)).unwrap().2, None, "a tombstone was asked for");
}

#[test]
fn a_bytea_is_the_bytes_that_were_written() {
    let mut routes = Routes::new(|_| {});
    let mut route = |payload: &'static str| {
        let lab = Lab::of_type(17, &routes.outbox, &COLUMNS, &with(4, Some(payload)));
        let event = lab.event();
        let routed = routes.router.route(&event).map_err(|error| error.problem.to_string())?;
        Ok::<_, String>(routed.with_record(|record| record.value.map(<[u8]>::to_vec)))
    };
    assert_eq!(route("\\x0001feFF"), Ok(Some(vec![0, 1, 0xfe, 0xff])));
    assert_eq!(route("\\x"), Ok(Some(Vec::new())));
    for bad in ["\\x0", "\\xzz", "\\000", ""] {
        assert!(route(bad).unwrap_err().contains("column payload is not bytea in hexadecimal form"), "{bad}");
    }
}

#[test]
fn every_record_says_where_it_is_from_unless_that_is_switched_off() {
    let mut routes = Routes::new(|_| {});
    routes.router.set_origin("7412345678901234567", 2);
    let last = |routes: &mut Routes| routes.route(&ROW).unwrap().3.pop();
    let expected = Some(("walrelay-position".to_owned(), Some("7412345678901234567:2:0/64:3".to_owned())));
    assert_eq!((last(&mut routes), last(&mut routes)), (expected.clone(), expected));
    let mut silent = Routes::new(|route| (route.id_header, route.position_header) = (None, None));
    assert_eq!(silent.route(&ROW).unwrap().3, []);
}

#[test]
fn partition_and_timestamp_are_taken_from_their_columns() {
    let mut routes = Routes::new(|route| {
        (route.partition, route.timestamp) = (Some("type".to_owned()), Some("tenant".to_owned()));
    });
    let mut route = |type_oid, partition, timestamp| {
        let mut row = with(3, partition);
        row[5] = timestamp;
        let lab = Lab::of_type(type_oid, &routes.outbox, &COLUMNS, &row);
        let event = lab.event();
        let routed = routes.router.route(&event).map_err(|error| error.problem.to_string())?;
        Ok::<_, String>(routed.with_record(|record| (record.partition, record.timestamp_ms)))
    };
    assert_eq!(route(25, Some("3"), Some("2024-05-06 05:08:09.123456+00")), Ok((Some(3), Some(1_714_972_089_123))));
    assert_eq!(route(20, None, Some("1714979289123")), Ok((None, Some(1_714_979_289_123))));
    assert_eq!(route(25, None, None), Ok((None, None)));
    for partition in ["-1", "100000", "x", ""] {
        let error = route(25, Some(partition), None).unwrap_err();
        assert_eq!(error, "column type is not the number of a partition, which template \"{type}\" needs");
    }
    for timestamp in ["infinity", "1969-12-31 00:00:00+00", ""] {
        let error = route(25, None, Some(timestamp)).unwrap_err();
        assert_eq!(error, "column tenant is not a time since 1970, which template \"{tenant}\" needs");
    }
}

#[test]
fn members_of_a_json_object_are_headers_unless_one_of_that_name_is_there() {
    let mut routes = Routes::new(|route| {
        route.headers = vec![("tenant".into(), template("{type}"))];
        route.headers_from = Some(template("{metadata}"));
    });
    let object = r#"{"traceparent": "00-ab", "tenant": "other", "id": "other", "n": 1, "o": {"a": 1}, "n": 12.50, "none": null}"#;
    let headers = routes.route(&with(6, Some(object))).unwrap().3;
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_deref())).collect();
    let expected = [("traceparent", Some("00-ab")), ("o", Some(r#"{"a": 1}"#)), ("n", Some("12.50")), ("none", None)];
    assert_eq!(headers[headers.len() - 4..], expected);
    assert_eq!(headers.iter().filter(|(name, _)| matches!(*name, "id" | "tenant")).count(), 2);
    let fewer = routes.route(&with(6, None)).unwrap().3.len();
    assert_eq!(fewer, headers.len() - 4, "no object, no headers");
    for (object, needed) in [("[1]", "a JSON object"), ("x", "a JSON object"), (r#"{"a\u0000b": 1}"#, "without NUL")] {
        let error = routes.route(&with(6, Some(object))).unwrap_err().to_string();
        assert!(error.contains("column metadata is not a JSON object") && error.contains(needed), "{error}");
    }
}

#[test]
fn no_row_has_a_header_that_is_walrelays_own() {
    let mut routes = Routes::new(|route| {
        route.headers_from = Some(template("{metadata}"));
        // What is not there by name is not to be had that way.
        route.position_header = None;
    });
    let object = r#"{"walrelay-position": "7:1:0/64:3", "a": "1", "Walrelay-Replay": "1", "walrelay-settled": "replayed",
                     "walrelay-error-class": "x", "walrelay": "2", "x-walrelay-replay": "3"}"#;
    let row = with(6, Some(object));
    let headers = routes.route(&row).unwrap().3;
    let names: Vec<_> = headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["id", "a", "walrelay", "x-walrelay-replay"]);
    let lab = Lab::new(&routes.outbox, &COLUMNS, &row);
    let event = lab.event();
    assert_eq!(routes.router.route(&event).unwrap().left_out(), Some("walrelay-position"));
    assert_eq!(routes.router.route(&Lab::new(&routes.outbox, &COLUMNS, &ROW).event()).unwrap().left_out(), None);
}

#[test]
fn headers_that_are_null_may_be_left_out() {
    let mut routes = Routes::new(|route| {
        route.headers = vec![("type".into(), template("{type}")), ("metadata".into(), template("{metadata}"))];
        route.omit_null_headers = true;
    });
    let headers = routes.route(&with(6, None)).unwrap().3;
    assert!(headers.iter().any(|(name, _)| name == "type") && !headers.iter().any(|(name, _)| name == "metadata"));
}

#[test]
fn what_null_makes_is_not_taken_for_what_that_text_makes() {
    for null_first in [true, false] {
        let mut routes = Routes::new(|route| route.topic = template("orders.{tenant|default('none')}"));
        let mut topic = |tenant| routes.route(&with(5, tenant)).unwrap().0;
        for _ in 0..2 {
            let rows = [(None, "orders.none"), (Some("orders.none"), "orders.orders.none")];
            for (tenant, expected) in rows.iter().cycle().skip(usize::from(!null_first)).take(2) {
                assert_eq!(topic(*tenant), *expected);
            }
        }
    }
}
