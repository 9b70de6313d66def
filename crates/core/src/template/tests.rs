use walrelay_fuzz::{fuzz, fuzz_text};

use super::*;

/// Values by place, with the OID of each one's type.
struct Row<'r>(&'r [(u32, Option<&'r [u8]>)]);

impl Values for Row<'_> {
    fn value(&self, place: usize) -> Option<&[u8]> {
        self.0.get(place).and_then(|(_, value)| *value)
    }

    fn column_type(&self, place: usize) -> ColumnType {
        ColumnType {
            oid: self.0.get(place).map_or(0, |(oid, _)| *oid),
            modifier: -1,
        }
    }
}

const COLUMNS: [&str; 7] = [
    "type",
    "none",
    "path",
    "metadata",
    "Odd \"Col",
    "bytes",
    "empty",
];
const ROW: Row<'_> = Row(&[
    (25, Some(b"OrderCreated")),
    (25, None),
    (25, Some(b"a/b c")),
    (
        25,
        Some(
            concat!(
                r#"{"tenant": "acme", "n": 12.50, "o": {"a b": ["x"], "\u0061": "\u00e4"}, "#,
                r#""null": null}"#
            )
            .as_bytes(),
        ),
    ),
    (25, Some(b"odd")),
    (25, Some(b"\xff")),
    (25, Some(b"")),
]);

fn bind(template: &str) -> Result<Bound, UnknownColumn> {
    let template: Template = template.parse().unwrap();
    template.bind(|name| COLUMNS.iter().position(|column| *column == name))
}

fn render(template: &str) -> Result<Option<String>, RenderError> {
    let bound = bind(template).unwrap();
    let rendered = bound.render(&ROW)?;
    Ok(rendered.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

#[test]
fn text_columns_members_and_functions_are_put_together() {
    for (template, expected) in [
        ("", ""),
        ("just text", "just text"),
        ("{type}", "OrderCreated"),
        ("outbox.event.{type}", "outbox.event.OrderCreated"),
        ("{ type }-{path}.{{x}}", "OrderCreated-a/b c.{x}"),
        (r#"{"Odd ""Col"}!"#, "odd!"),
        ("ü{type}ü", "üOrderCreatedü"),
        // As it is, it may be any bytes.
        ("{bytes}", "\u{fffd}"),
        // From left to right.
        ("{type|lower}", "ordercreated"),
        ("{type | upper | replace('ORDER', 'x''y')}", "x'yCREATED"),
        ("{path|topic}", "a_b_c"),
        ("{path|replace('/','-')|topic}", "a-b_c"),
        ("{none|default('x')|upper}", "X"),
        ("{none|lower|default('')}", ""),
        ("{type|default('x')}", "OrderCreated"),
        ("{empty|default('x')}", ""),
        // The whole value, or none of it.
        ("c16.{type|match('(.*)Created', '$1')}", "c16.Order"),
        ("{type|match('Order', 'x')}", "OrderCreated"),
        ("{type|match('(?<kind>Order).*', '${kind}s')}", "Orders"),
        (
            "{type|match('Order|OrderCreated', 'x', 'first')}",
            "xCreated",
        ),
        ("{type|match('Order', 'x', 'first')}", "OrderCreated"),
        (
            "{type|match('(?i)order|(o\\w+)created', 'x$1', 'java')}",
            "xCreated",
        ),
        (
            "{type|match('x|OrderCreated', 'both ends of an alternative')}",
            "both ends of an alternative",
        ),
        ("{metadata.tenant}", "acme"),
        ("{metadata.n}", "12.50"),
        (r#"{metadata.o."a b"}"#, r#"["x"]"#),
        ("{metadata.o.a}", "ä"),
        ("{metadata.missing|default('none')}", "none"),
        ("{metadata.null|default('none')}", "none"),
        ("{metadata.tenant.deeper|default('none')}", "none"),
        (
            r#"{metadata|strip('o', 'null')}"#,
            r#"{"tenant": "acme", "n": 12.50}"#,
        ),
        ("{metadata|strip('tenant','n','o','null')}", "{}"),
    ] {
        assert_eq!(
            render(template).unwrap().as_deref(),
            Some(expected),
            "{template}"
        );
    }
    for null in [
        "{none}",
        "a{none}b",
        "a{none.member}b",
        "{metadata.missing}",
        "{none|strip('a')}",
    ] {
        assert_eq!(render(null), Ok(None), "{null}");
    }
}

#[test]
fn timestamps_of_postgres_become_those_of_the_rest_of_the_world() {
    let bound = "{c|rfc3339}"
        .parse::<Template>()
        .unwrap()
        .bind(|_| Some(0))
        .unwrap();
    for (postgres, expected) in [
        (
            "2024-05-06 05:08:09.123456+00",
            Some("2024-05-06T05:08:09.123456Z"),
        ),
        ("2024-05-06 05:08:09+00", Some("2024-05-06T05:08:09Z")),
        ("2024-05-06 07:08:09.5+02", Some("2024-05-06T05:08:09.5Z")),
        ("2024-05-06 10:38:09+05:30", Some("2024-05-06T05:08:09Z")),
        (
            "2024-05-06 05:08:09.123456",
            Some("2024-05-06T05:08:09.123456Z"),
        ),
        ("2024-05-06", Some("2024-05-06T00:00:00Z")),
        (
            "2024-05-06T05:08:09.123456789Z",
            Some("2024-05-06T05:08:09.123456789Z"),
        ),
        ("2024-05-06T05:08:09+0530", Some("2024-05-05T23:38:09Z")),
        (
            "2024-05-06T05:08:09+02:00[Europe/Berlin]",
            Some("2024-05-06T03:08:09Z"),
        ),
        ("20240506T050809Z", Some("2024-05-06T05:08:09Z")),
        ("9999-12-31 23:59:59+00", Some("9999-12-31T23:59:59Z")),
        ("10000-01-01 00:00:00+00", None),
        ("2024-13-06", None),
        ("", None),
        ("infinity", None),
        ("2024-05-06 05:08:09.123456+00 BC", None),
        ("now", None),
    ] {
        let row = Row(&[(25, Some(postgres.as_bytes()))]);
        match (bound.render(&row), expected) {
            (Ok(rendered), Some(expected)) => {
                assert_eq!(rendered.as_deref(), Some(expected.as_bytes()))
            }
            (rendered, _) => assert_eq!(rendered, Err(bound.error(0, "a timestamp")), "{postgres}"),
        }
    }
}

#[test]
fn a_value_that_does_not_fit_is_named_by_its_place() {
    for (template, place, needed) in [
        ("x{bytes}", 5, "UTF-8 text"),
        ("{path.member}", 2, "JSON"),
        ("{path|json}", 2, "JSON"),
        ("{path|compact}", 2, "JSON"),
        ("{path|sort}", 2, "JSON"),
        ("{path|strip('a')}", 2, "a JSON object"),
    ] {
        assert_eq!(
            render(template),
            Err(RenderError {
                template: template.to_owned(),
                place,
                needed
            })
        );
    }
}

#[test]
fn a_column_that_is_not_there_is_named() {
    let error = bind("a.{typ}").unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"template "a.{typ}" needs column "typ", which is not there"#
    );
    assert_eq!(
        bind("{path}/{type}").unwrap().places().collect::<Vec<_>>(),
        [2, 0]
    );
}

#[test]
fn a_template_without_columns_is_constant() {
    for (template, constant) in [
        ("", Some("")),
        ("a {{b}}", Some("a {b}")),
        ("a {type}", None),
    ] {
        let template: Template = template.parse().unwrap();
        assert_eq!(template.constant().as_deref(), constant);
    }
}

#[test]
fn a_template_made_of_names_is_what_it_looks_like() {
    for (template, source) in [
        (Template::column("type"), "{type}"),
        (Template::column("Odd \"Col"), r#"{"Odd ""Col"}"#),
        (Template::prefixed("a{b}.", "type"), "a{{b}}.{type}"),
        (Template::prefixed("", "type"), "{type}"),
    ] {
        assert_eq!(template.source(), source);
        let parsed: Template = source.parse().unwrap();
        assert_eq!(
            format!("{:?}", parsed.parts),
            format!("{:?}", template.parts)
        );
    }
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    for (template, at, what) in [
        ("a}", 2, "a } without its {"),
        ("{", 2, "the name of a column"),
        ("{}", 2, "the name of a column"),
        ("{a", 3, "a | or }"),
        ("{a b}", 4, "a | or }"),
        (
            "ü{a|nope}",
            5,
            "there is no function nope; there are lower, upper",
        ),
        ("{a|lower('x')}", 4, "the function lower is written lower"),
        (
            "{a|default}",
            4,
            "the function default is written default('…')",
        ),
        ("{a|default(x)}", 12, "a text in single quotes"),
        ("{a|default('x'}", 15, "a , or )"),
        ("{a|default('x)}", 12, "does not end"),
        ("{a|replace('', 'x')}", 4, "something to be replaced"),
        ("{a|match('(', 'x')}", 4, "no regular expression"),
        ("{a.}", 4, "a member of the JSON object"),
        ("{\"a}", 2, "does not end"),
    ] {
        let error = template.parse::<Template>().unwrap_err();
        assert_eq!(error.at, at, "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
}

fn json(template: &str, values: &impl Values) -> Result<String, &'static str> {
    let bound = template
        .parse::<Template>()
        .unwrap()
        .bind(|_| Some(0))
        .unwrap();
    let mut json = Vec::new();
    bound
        .append_json(values, &mut json)
        .map_err(|error| error.needed)?;
    Ok(String::from_utf8(json).unwrap())
}

#[test]
fn a_value_is_json_by_the_type_of_its_column() {
    for (template, oid, value, expected) in [
        ("{c}", 25, Some("a \"b\"\n"), r#""a \"b\"\n""#),
        ("{c}", 3802, Some(r#"{"a": 1.50}"#), r#"{"a": 1.50}"#),
        ("{c}", 114, Some("[1]"), "[1]"),
        ("{c}", 20, Some("-7"), "-7"),
        ("{c}", 1700, Some("12.50"), "12.50"),
        ("{c}", 1700, Some("NaN"), r#""NaN""#),
        ("{c}", 701, Some("-Infinity"), r#""-Infinity""#),
        ("{c}", 701, Some("1e+20"), "1e+20"),
        ("{c}", 16, Some("t"), "true"),
        ("{c}", 16, Some("f"), "false"),
        ("{c}", 2950, Some("x"), r#""x""#),
        ("{c}", 25, None, "null"),
        ("{c|text}", 20, Some("7"), r#""7""#),
        ("{c|json}", 25, Some("[1, 2]"), "[1, 2]"),
        (
            "{c|strip('a')}",
            25,
            Some(r#"{"a": 1, "b": 2}"#),
            r#"{"b": 2}"#,
        ),
        (
            "{c|compact}",
            3802,
            Some(r#"{"b": 1, "a": [1, 2]}"#),
            r#"{"b":1,"a":[1,2]}"#,
        ),
        (
            "{c|sort}",
            3802,
            Some(r#"{"b": 1, "a": [1, 2]}"#),
            r#"{"a":[1,2],"b":1}"#,
        ),
        (
            "{c.o|sort}",
            3802,
            Some(r#"{"o": {"b": 1, "a": null}}"#),
            r#"{"a":null,"b":1}"#,
        ),
        (
            "{c|strip('a')|compact}",
            25,
            Some(r#"{"a": 1, "c": 3, "b": 2}"#),
            r#"{"c":3,"b":2}"#,
        ),
        ("{c|sort}", 3802, None, "null"),
        ("{c|default('none')}", 25, None, r#""none""#),
        ("{c|default('{}')|json}", 25, None, "{}"),
        ("{c.a}", 25, Some(r#"{"a": "x"}"#), r#""x""#),
        ("{c.a}", 25, Some(r#"{"a": [1.50]}"#), "[1.50]"),
        ("{c.b}", 25, Some(r#"{"a": 1}"#), "null"),
        ("{c.a}", 25, None, "null"),
        ("v{c}", 20, Some("7"), r#""v7""#),
        ("v{c}", 20, None, "null"),
        ("constant", 20, None, r#""constant""#),
    ] {
        let row = Row(&[(oid, value.map(str::as_bytes))]);
        assert_eq!(
            json(template, &row).as_deref(),
            Ok(expected),
            "{template} of {value:?}"
        );
    }
}

/// A value that calls itself JSON.
struct Unchecked(Option<&'static [u8]>);

impl Values for Unchecked {
    fn value(&self, _: usize) -> Option<&[u8]> {
        self.0
    }

    fn column_type(&self, _: usize) -> ColumnType {
        ColumnType {
            oid: 114,
            modifier: -1,
        }
    }

    fn is_checked(&self, _: usize) -> bool {
        false
    }
}

#[test]
fn what_nobody_checked_is_embedded_only_if_it_is_json() {
    let cases = [
        (Some(&b"[1, 2]"[..]), Ok("[1, 2]")),
        (None, Ok("null")),
        (Some(b"{torn"), Err("JSON")),
    ];
    for (value, expected) in cases {
        assert_eq!(
            json("{c}", &Unchecked(value)).as_deref(),
            expected.as_ref().copied()
        );
    }
}

#[test]
fn fuzzed_templates() {
    let corpus = [
        r#"outbox.event.{type|lower}-{"Odd ""Col"}.{{x}}"#,
        r#"{metadata.o."a b"|default('x''y')|upper}"#,
        "{path|replace('/', '-')|topic}{none|filled}",
        r"{type|match('(?i)order|(o\w+)created', 'x$1', 'java')}",
        r"{type|match('(?<kind>Order).*', '${kind}s', 'first')}",
        "{metadata|strip('tenant','n')|compact|sort|json|text}{bytes|rfc3339}",
    ];
    fuzz_text("templates", 64 << 20, &corpus, |text| {
        let Ok(template) = text.parse::<Template>() else {
            return;
        };
        assert_eq!(template.source(), text);
        let place = |name: &str| COLUMNS.iter().position(|column| *column == name);
        if let Ok(bound) = template.bind(place) {
            drop(bound.render(&ROW));
            drop(bound.append_json(&ROW, &mut Vec::new()));
        }
    });
}

#[test]
fn fuzzed_values() {
    let bound = |functions: &str| {
        let template: Template = format!("{{c{functions}}}").parse().unwrap();
        template.bind(|_| Some(0)).unwrap()
    };
    // What gives JSON of any text, and what does not.
    let to_json = [
        "|compact",
        "|sort",
        "|strip('a')",
        "|json",
        ".a",
        "|text",
        "|filled|lower",
    ];
    let to_json = to_json.map(bound);
    let to_text = [
        "|rfc3339",
        "|topic|upper",
        "|match('(.*)a', '$1$1')",
        "|replace('a', 'b')",
    ];
    let to_text = to_text.map(bound);
    let corpus: [&[u8]; 6] = [
        b"OrderCreated",
        "größe\u{130}".as_bytes(),
        br#"{"a": "x", "n": 12.50, "o": {"a b": ["x"], "\u0061": "\u00e4"}, "null": null}"#,
        b"2024-05-06 07:08:09.5+02",
        b"[1, {\"b\": 1, \"a\": -2e+3}]",
        b"\xff",
    ];
    fuzz("values of rows", 2 << 20, &corpus, |bytes| {
        for bound in &to_json {
            let mut json = Vec::new();
            if bound
                .append_json(&Row(&[(25, Some(bytes))]), &mut json)
                .is_ok()
            {
                let json = std::str::from_utf8(&json).unwrap();
                assert_eq!(json::valid(json), Ok(()), "{} gave {json}", bound.source());
            }
        }
        for bound in &to_text {
            drop(bound.render(&Row(&[(25, Some(bytes))])));
        }
    });
}

#[test]
fn fuzzed_times() {
    let corpus = [
        "2024-05-06 05:08:09.123456+00",
        "2024-05-06T10:38:09+05:30[Europe/Berlin]",
        "0044-03-15 12:00:00-01:02:03 BC",
        "294276-12-31 23:59:59.999999+15:59",
        "4713-01-01 BC",
        "20240506T050809Z",
        "23:59:60",
        "+05:30",
        r"\x00ff61",
    ];
    fuzz_text("times of Postgres", 256 << 10, &corpus, |text| {
        if let Some(moment) = Moment::read(text) {
            let _numbers = (moment.micros(), moment.millis(), moment.days());
            drop((moment.rfc3339(), moment.iso(Some(6))));
        }
        let _micros = (micros_of_day(text), offset_micros(text));
        if let Ok(bytes) = bytea(text.as_bytes()) {
            assert!(bytes.len() <= text.len() / 2);
        }
    });
}
