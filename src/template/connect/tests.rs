use super::*;

fn written(form: Form, oid: u32, modifier: i32, text: Option<&str>) -> Result<Option<String>, Needed> {
    let value = form.write(text.map(Cow::Borrowed), ColumnType { oid, modifier })?;
    Ok(value.map(Cow::into_owned))
}

/// Most of it is in the conformance test; here is what no capture has.
#[test]
fn values_are_written_by_the_type_of_their_column() {
    for (oid, modifier, text, as_text, as_json) in [
        (1184, -1, "2024-05-06 05:08:09.1+05:30", "2024-05-05T23:38:09.100000Z", r#""2024-05-05T23:38:09.100000Z""#),
        (1184, 0, "2024-05-06 05:08:09+00", "2024-05-06T05:08:09Z", r#""2024-05-06T05:08:09Z""#),
        (1114, -1, "1969-12-31 23:59:59.999999", "-1", "-1"),
        (1114, 3, "1969-12-31 23:59:59.999", "-1", "-1"),
        (1082, -1, "1969-12-31", "-1", "-1"),
        (1083, -1, "24:00:00", "86400000000", "86400000000"),
        (1266, -1, "01:00:00.25-05:30", "06:30:00.25Z", r#""06:30:00.25Z""#),
        (1186, -1, "-1 days +00:00:01", "-86399000000", "-86399000000"),
        (1186, -1, "00:00:00", "0", "0"),
        (701, -1, "NaN", "NaN", r#""NaN""#),
        (700, -1, "-Infinity", "-Infinity", r#""-Infinity""#),
        (1700, 655_366, "-2.56", "-2.56", r#""/wA=""#),
        (1700, 655_366, "1.27", "1.27", r#""fw==""#),
        (1700, -1, "12345678901234567890123", "{\"scale\":0,\"value\":\"Ap1Ctk52cUJEyw==\"}", ""),
        (17, -1, "\\x", "", r#""""#),
        (1001, -1, r#"{"\\xff"}"#, r#"["/w=="]"#, r#"["/w=="]"#),
        (1009, -1, r#"{"a\\b",c}"#, r#"["a\\b","c"]"#, r#"["a\\b","c"]"#),
        (16, -1, "f", "false", "false"),
        (25, -1, "t", "t", r#""t""#),
    ] {
        assert_eq!(written(Form::Text, oid, modifier, Some(text)), Ok(Some(as_text.to_owned())), "{text}");
        if !as_json.is_empty() {
            assert_eq!(written(Form::Json, oid, modifier, Some(text)), Ok(Some(as_json.to_owned())), "{text}");
        }
    }
}

#[test]
fn what_is_not_of_its_type_is_refused() {
    for (oid, text) in [
        (1184, "infinity"),
        (1114, "-infinity"),
        (1082, "infinity"),
        (1083, "x"),
        (1186, "infinity"),
        (1266, "05:00:00"),
        (1700, "NaN"),
        (17, "\\000"),
        (1007, "{{1},{2}}"),
        (1007, "[0:1]={1,2}"),
        (701, "x"),
    ] {
        assert!(written(Form::Json, oid, -1, Some(text)).is_err(), "{oid} {text}");
    }
}

#[test]
fn null_is_in_the_schema_or_stays_null() {
    assert_eq!(written(Form::Text, 16, -1, None), Ok(None));
    assert_eq!(written(Form::Json, 16, -1, None), Ok(None));
    let schema = |tombstone| written(Form::Schema { required: true, tombstone }, 16, -1, None);
    let expected = r#"{"schema":{"type":"boolean","optional":false},"payload":null}"#;
    assert_eq!((schema(false), schema(true)), (Ok(Some(expected.to_owned())), Ok(None)));
}

#[test]
fn arguments_are_words() {
    let of = |words: &[&str]| Form::new(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
    assert_eq!((of(&[]), of(&["text"]), of(&["json"])), (Ok(Form::Text), Ok(Form::Text), Ok(Form::Json)));
    let schema = of(&["schema", "tombstone", "required"]);
    assert_eq!(schema, Ok(Form::Schema { required: true, tombstone: true }));
    for wrong in [&["avro"][..], &["json", "required"], &["schema", "x"]] {
        assert!(of(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn json_that_is_not_or_too_deep_does_no_harm() {
    assert_eq!(expand("{", false), Err("JSON"));
    assert_eq!(expand("", false).as_deref(), Ok("\"\""));
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(expand(&deep, false).unwrap(), format!("\"{deep}\""));
    let shallow = format!("{}1{}", "[".repeat(100), "]".repeat(100));
    assert_eq!(expand(&shallow, false), Ok(shallow));
    assert_eq!(expand(r#"{"a": 1, "b": 2, "a": 3}"#, false).as_deref(), Ok(r#"{"a":3,"b":2}"#));
}

#[test]
fn objects_in_an_array_with_nothing_in_common_do_not_exhaust_memory() {
    let array = |count: usize| {
        let objects: Vec<String> = (0..count).map(|number| format!("{{\"member-{number}\":{number}}}")).collect();
        format!("[{}]", objects.join(","))
    };
    assert!(expand(&array(100), false).unwrap().len() > 100 * 100 * 10);
    for too_many in [2_500, 200_000] {
        assert!(expand(&array(too_many), false).is_err(), "{too_many}");
    }
    let alike = format!("[{}]", vec![r#"{"a":1,"b":{"c":"x"},"d":[{"e":1}]}"#; 100_000].join(","));
    assert_eq!(expand(&alike, false).as_deref(), Ok(alike.as_str()));
}

#[test]
fn a_time_or_a_precision_that_is_too_large_is_no_panic() {
    for text in
        ["2562047788:00:54.775807", "-2562047788:00:54.775808", "9223372036854775807:59:59", "1 day -99999999999:00:00"]
    {
        for oid in [1083, 1186, 1266] {
            let _written = written(Form::Text, oid, -1, Some(text));
        }
    }
    let _zoned = written(Form::Text, 1266, -1, Some("00:00:00+9223372036854775807"));
    let instant = written(Form::Text, 1184, i32::MAX, Some("2024-05-06 05:08:09.5+00"));
    assert_eq!(instant, Ok(Some("2024-05-06T05:08:09.500000Z".to_owned())));
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in proptest::prelude::any::<String>(), oid in 0_u32..4000, modifier in -1_i32..700_000) {
        for form in [Form::Text, Form::Json, Form::Schema { required: false, tombstone: false }] {
            let _written = written(form, oid, modifier, Some(&text));
        }
        let _expanded = expand(&text, true);
    }
}
