use std::collections::BTreeMap;

use super::*;

/// A row by the order of its columns.
struct Row(BTreeMap<usize, Option<&'static [u8]>>);

impl Values for Row {
    fn value(&self, place: usize) -> Option<&[u8]> {
        self.0.get(&place).copied().flatten()
    }
}

impl TypedValues for Row {
    fn column_type(&self, _: usize) -> ColumnType {
        ColumnType::TEXT
    }
}

const COLUMNS: &[(&str, Option<&[u8]>)] = &[
    ("type", Some(b"OrderCreated")),
    ("none", None),
    ("path", Some(b"a/b c")),
    ("metadata", Some(br#"{"tenant": "acme", "n": 12.50, "o": {"a b": ["x"], "\u0061": "\u00e4"}, "null": null}"#)),
    ("Odd \"Col", Some(b"odd")),
    ("bytes", Some(b"\xff")),
    ("empty", Some(b"")),
];

fn bind(template: &str) -> Result<Bound, UnknownColumn> {
    let template: Template = template.parse().unwrap();
    template.bind(|name| COLUMNS.iter().position(|(column, _)| *column == name))
}

fn render(template: &str) -> Result<Option<String>, RenderError> {
    let row = Row(COLUMNS.iter().enumerate().map(|(place, (_, value))| (place, *value)).collect());
    let bound = bind(template).unwrap();
    let rendered = bound.render(&row)?;
    Ok(rendered.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

#[track_caller]
fn gives(template: &str, expected: &str) {
    assert_eq!(render(template).unwrap().as_deref(), Some(expected), "{template}");
}

#[test]
fn text_and_columns_are_put_together() {
    gives("", "");
    gives("just text", "just text");
    gives("{type}", "OrderCreated");
    gives("outbox.event.{type}", "outbox.event.OrderCreated");
    gives("{ type }-{path}.{{x}}", "OrderCreated-a/b c.{x}");
    gives(r#"{"Odd ""Col"}!"#, "odd!");
    gives("ü{type}ü", "üOrderCreatedü");
}

#[test]
fn functions_apply_from_left_to_right() {
    gives("{type|lower}", "ordercreated");
    gives("{type | upper | replace('ORDER', 'x''y')}", "x'yCREATED");
    gives("{path|topic}", "a_b_c");
    gives("{path|replace('/','-')|topic}", "a-b_c");
    gives("{none|default('x')|upper}", "X");
    gives("{none|lower|default('')}", "");
    gives("{type|default('x')}", "OrderCreated");
    gives("{empty|default('x')}", "");
}

#[test]
fn a_match_takes_the_whole_value_or_leaves_it() {
    gives("c16.{type|match('(.*)Created', '$1')}", "c16.Order");
    gives("{type|match('Order', 'x')}", "OrderCreated");
    gives("{type|match('(?<kind>Order).*', '${kind}s')}", "Orders");
    gives("{type|match('Order|OrderCreated', 'x', 'first')}", "xCreated");
    gives("{type|match('Order', 'x', 'first')}", "OrderCreated");
    gives("{type|match('x|OrderCreated', 'both ends of an alternative')}", "both ends of an alternative");
}

#[test]
fn members_of_a_json_object_are_text_or_json() {
    gives("{metadata.tenant}", "acme");
    gives("{metadata.n}", "12.50");
    gives(r#"{metadata.o."a b"}"#, r#"["x"]"#);
    gives("{metadata.o.a}", "ä");
    gives("{metadata.missing|default('none')}", "none");
    gives("{metadata.null|default('none')}", "none");
    gives("{metadata.tenant.deeper|default('none')}", "none");
    assert_eq!(render("{metadata.missing}"), Ok(None));
}

#[test]
fn an_object_is_stripped_of_members_and_of_nothing_else() {
    gives(r#"{metadata|strip('o', 'null')}"#, r#"{"tenant": "acme", "n": 12.50}"#);
    gives("{metadata|strip('tenant','n','o','null')}", "{}");
    assert_eq!(render("{none|strip('a')}"), Ok(None));
}

#[test]
fn timestamps_of_postgres_become_those_of_the_rest_of_the_world() {
    for (postgres, expected) in [
        ("2024-05-06 05:08:09.123456+00", "2024-05-06T05:08:09.123456Z"),
        ("2024-05-06 05:08:09+00", "2024-05-06T05:08:09Z"),
        ("2024-05-06 07:08:09.5+02", "2024-05-06T05:08:09.5Z"),
        ("2024-05-06 10:38:09+05:30", "2024-05-06T05:08:09Z"),
        ("2024-05-06 05:08:09.123456", "2024-05-06T05:08:09.123456Z"),
        ("2024-05-06", "2024-05-06T00:00:00Z"),
    ] {
        let function = function::Function::new("rfc3339", Vec::new()).unwrap();
        assert_eq!(
            function.apply(Some(postgres.into()), ColumnType::TEXT).unwrap().as_deref(),
            Some(expected),
            "{postgres}"
        );
    }
    for bad in ["", "infinity", "2024-05-06 05:08:09.123456+00 BC", "now"] {
        let function = function::Function::new("rfc3339", Vec::new()).unwrap();
        assert_eq!(function.apply(Some(bad.into()), ColumnType::TEXT), Err("a timestamp"), "{bad}");
    }
}

#[test]
fn null_makes_the_whole_value_null() {
    assert_eq!(render("{none}"), Ok(None));
    assert_eq!(render("a{none}b"), Ok(None));
    assert_eq!(render("a{none.member}b"), Ok(None));
}

#[test]
fn a_value_that_does_not_fit_is_named_by_its_place() {
    let not = |place, needed| Err(RenderError { place, needed });
    assert_eq!(render("x{bytes}"), not(5, "UTF-8 text"));
    assert_eq!(render("{path.member}"), not(2, "JSON"));
    assert_eq!(render("{path|json}"), not(2, "JSON"));
    assert_eq!(render("{path|compact}"), not(2, "JSON"));
    assert_eq!(render("{path|sort}"), not(2, "JSON"));
    assert_eq!(render("{path|strip('a')}"), not(2, "a JSON object"));
    assert_eq!(render("{path|rfc3339}"), not(2, "a timestamp"));
    // As it is, it may be any bytes.
    assert_eq!(render("{bytes}"), Ok(Some("\u{fffd}".to_owned())));
}

#[test]
fn a_column_that_is_not_there_is_named() {
    let error = bind("a.{typ}").unwrap_err();
    assert_eq!(error.to_string(), r#"template "a.{typ}" needs column "typ", which is not there"#);
    assert_eq!(bind("{type}").unwrap().places().collect::<Vec<_>>(), [0]);
    assert_eq!(bind("{path}/{type}").unwrap().places().collect::<Vec<_>>(), [2, 0]);
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
        assert_eq!(format!("{:?}", parsed.parts), format!("{:?}", template.parts));
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
        ("ü{a|nope}", 5, "there is no function nope; there are lower, upper"),
        ("{a|lower('x')}", 4, "lower takes 0 arguments, not 1"),
        ("{a|default}", 4, "default takes 1 argument, not 0"),
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

/// Types by the order of the columns: text, unless a test says otherwise.
struct Typed<'r>(&'r [(u32, Option<&'r str>)]);

impl Values for Typed<'_> {
    fn value(&self, place: usize) -> Option<&[u8]> {
        self.0.get(place).and_then(|(_, value)| value.map(str::as_bytes))
    }
}

impl TypedValues for Typed<'_> {
    fn column_type(&self, place: usize) -> ColumnType {
        ColumnType { oid: self.0.get(place).map_or(0, |(oid, _)| *oid), modifier: -1 }
    }
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
        ("{c|strip('a')}", 25, Some(r#"{"a": 1, "b": 2}"#), r#"{"b": 2}"#),
        ("{c|compact}", 3802, Some(r#"{"b": 1, "a": [1, 2]}"#), r#"{"b":1,"a":[1,2]}"#),
        ("{c|sort}", 3802, Some(r#"{"b": 1, "a": [1, 2]}"#), r#"{"a":[1,2],"b":1}"#),
        ("{c.o|sort}", 3802, Some(r#"{"o": {"b": 1, "a": null}}"#), r#"{"a":null,"b":1}"#),
        ("{c|strip('a')|compact}", 25, Some(r#"{"a": 1, "c": 3, "b": 2}"#), r#"{"c":3,"b":2}"#),
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
        let bound = template.parse::<Template>().unwrap().bind(|_| Some(0)).unwrap();
        let mut json = Vec::new();
        bound.append_json(&Typed(&[(oid, value)]), &mut json).unwrap();
        assert_eq!(String::from_utf8(json).unwrap(), expected, "{template} of {value:?}");
    }
}

#[test]
fn an_object_of_any_number_of_members_makes_no_headers_without_bound() {
    let object = |count: usize| {
        let members: Vec<String> = (0..count).map(|number| format!("\"{number}\":1")).collect();
        format!("{{{}}}", members.join(","))
    };
    assert_eq!(members(object(100_000).as_bytes()).map(|members| members.len()), Ok(100_000));
    assert!(members(object(100_001).as_bytes()).unwrap_err().contains("at most 100000"));
}

/// A value that calls itself JSON.
struct Unchecked<'r>(Typed<'r>);

impl Values for Unchecked<'_> {
    fn value(&self, place: usize) -> Option<&[u8]> {
        self.0.value(place)
    }
}

impl TypedValues for Unchecked<'_> {
    fn column_type(&self, place: usize) -> ColumnType {
        self.0.column_type(place)
    }

    fn is_checked(&self, _: usize) -> bool {
        false
    }
}

#[test]
fn what_nobody_checked_is_embedded_only_if_it_is_json() {
    let bound = "{c}".parse::<Template>().unwrap().bind(|_| Some(0)).unwrap();
    for (value, expected) in [(Some("[1, 2]"), Ok("[1, 2]")), (None, Ok("null")), (Some("{torn"), Err("JSON"))] {
        let mut json = Vec::new();
        let appended = bound.append_json(&Unchecked(Typed(&[(114, value)])), &mut json).map_err(|error| error.needed);
        assert_eq!(appended.map(|()| String::from_utf8(json).unwrap()), expected.map(str::to_owned));
    }
}
