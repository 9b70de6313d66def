//! JSON as text: a member of an object without reading more than is needed, and the same value in
//! another form.
//!
//! An error is what the text should be instead.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer as _};
use serde_json::Error;
use serde_json::value::RawValue;

/// The member at the end of `path`: a string's text, or anything else as it stands. `None` where it
/// is missing or `null`, or where something on the way is no object.
pub(super) fn member<'j>(text: &'j str, path: &[String]) -> Result<Option<Cow<'j, str>>, Error> {
    raw_member(text, path)?.map_or(Ok(None), text_of)
}

/// A JSON value as text: a string unquoted, nothing for `null`, anything else unchanged.
pub fn text_of(raw: &str) -> Result<Option<Cow<'_, str>>, Error> {
    Ok(match raw {
        "null" => None,
        text if text.starts_with('"') => Some(unquoted(text)?),
        text => Some(Cow::Borrowed(text)),
    })
}

/// The member at the end of `path` as it stands; `None` where it is missing.
pub(super) fn raw_member<'j>(text: &'j str, path: &[String]) -> Result<Option<&'j str>, Error> {
    let mut value: &RawValue = serde_json::from_str(text)?;
    for name in path {
        if !value.get().starts_with('{') {
            return Ok(None);
        }
        let mut member = None;
        each_member(value.get().as_bytes(), |found, value| {
            // Of members with one name the last counts, as in `jsonb`.
            member = if found == *name { Some(value) } else { member };
            Ok(())
        })?;
        let Some(member) = member else {
            return Ok(None);
        };
        value = member;
    }
    Ok(Some(value.get()))
}

/// A member's name, and its text: a string unquoted, nothing for `null`, anything else as it
/// stands.
pub(super) type Member<'j> = (Cow<'j, str>, Option<Cow<'j, str>>);

/// How many members may become headers. Each takes many times its text, and no broker takes so many
/// (P4).
const MEMBERS_MAX: usize = 100_000;

/// The members of an object, in their order.
pub fn members(text: &[u8]) -> Result<Vec<Member<'_>>, &'static str> {
    let mut members = Vec::new();
    let read = each_member(text, |name, value| {
        members.push((name, text_of(value.get())?));
        if members.len() > MEMBERS_MAX {
            Err(Error::custom("too many members"))
        } else {
            Ok(())
        }
    });
    read.map(|()| members)
        .map_err(|_| "a JSON object of at most 100000 members")
}

/// Calls `take` with the name and the value of each member of a JSON object, in their order.
pub(crate) fn each_member<'j>(
    text: &'j [u8],
    take: impl FnMut(Cow<'j, str>, &'j RawValue) -> Result<(), Error>,
) -> Result<(), Error> {
    struct Members<F>(F);

    impl<'j, F: FnMut(Cow<'j, str>, &'j RawValue) -> Result<(), Error>> Visitor<'j> for Members<F> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'j>>(mut self, mut map: A) -> Result<(), A::Error> {
            while let Some((Text(name), value)) = map.next_entry::<Text<'j>, &'j RawValue>()? {
                (self.0)(name, value).map_err(A::Error::custom)?;
            }
            Ok(())
        }
    }

    let mut json = serde_json::Deserializer::from_slice(text);
    json.deserialize_map(Members(take))?;
    json.end()
}

pub(super) fn valid(text: &str) -> Result<(), &'static str> {
    serde_json::from_str::<&RawValue>(text)
        .map(|_| ())
        .map_err(|_| "JSON")
}

/// The object without these members; everything else as it stands and in its order.
pub(super) fn without(text: &str, left_out: &[String]) -> Result<String, &'static str> {
    let mut kept = Vec::new();
    let read = each_member(text.as_bytes(), |name, value| {
        if !left_out.iter().any(|out| *out == name) {
            kept.push(format!("{}: {}", quoted(&name), value.get()));
        }
        Ok(())
    });
    read.map(|()| format!("{{{}}}", kept.join(", ")))
        .map_err(|_| "a JSON object")
}

pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A string, borrowed where nothing in it is escaped.
#[derive(Deserialize)]
struct Text<'j>(#[serde(borrow)] Cow<'j, str>);

/// The text of a JSON string; borrowed where nothing in it is escaped.
pub(super) fn unquoted(text: &str) -> Result<Cow<'_, str>, Error> {
    Ok(serde_json::from_str::<Text<'_>>(text)?.0)
}

/// The JSON without the blanks between its parts; everything else as it stands.
pub(super) fn compact(text: &str) -> Result<String, &'static str> {
    valid(text)?;
    Ok(tokens(text).collect())
}

/// The same with the members of every object in the order of their names, byte by byte.
pub(super) fn sorted(text: &str) -> Result<String, &'static str> {
    valid(text)?;
    let mut sorted = String::with_capacity(text.len());
    // With a list of its own, no depth of nesting is too much. Of an object that is open, the names
    // and the ranges in the outcome of its members; an array has none.
    let mut open: Vec<Option<Vec<NamedRange>>> = Vec::new();
    let mut before = "";
    for token in tokens(text) {
        let at = sorted.len();
        if let Some(Some(members)) = open.last_mut() {
            match token {
                "," | "}" => members
                    .last_mut()
                    .into_iter()
                    .for_each(|(_, member)| member.end = at),
                name if matches!(before, "{" | ",") => {
                    members.push((
                        unquoted(name).map_or_else(|_| name.to_owned(), Cow::into_owned),
                        at..at,
                    ));
                }
                _ => {}
            }
        }
        match token {
            "{" => open.push(Some(Vec::new())),
            "[" => open.push(None),
            "}" | "]" => put_in_order(open.pop().flatten().unwrap_or_default(), &mut sorted),
            _ => {}
        }
        sorted.push_str(token);
        before = token;
    }
    Ok(sorted)
}

/// The name of a member, and where it is in a text.
type NamedRange = (String, Range<usize>);

/// Puts the members, which are the end of `text`, in the order of their names.
fn put_in_order(mut members: Vec<NamedRange>, text: &mut String) {
    let Some(start) = members.first().map(|(_, member)| member.start) else {
        return;
    };
    if members.is_sorted_by(|(one, _), (other, _)| one <= other) {
        return;
    }
    members.sort_by(|(one, _), (other, _)| one.cmp(other));
    let members: Vec<&str> = members
        .iter()
        .filter_map(|(_, member)| text.get(member.clone()))
        .collect();
    let members = members.join(",");
    text.truncate(start);
    text.push_str(&members);
}

const BLANKS: [char; 4] = [' ', '\t', '\n', '\r'];

/// The tokens of JSON, without the blanks between them.
pub fn tokens(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text.trim_start_matches(BLANKS);
    std::iter::from_fn(move || {
        let (token, behind) = split(rest);
        rest = behind.trim_start_matches(BLANKS);
        Some(token).filter(|token| !token.is_empty())
    })
}

/// The first token of JSON, and what is behind it: a string, a sign, or a number or word up to the
/// next of those.
fn split(text: &str) -> (&str, &str) {
    let length = match text.as_bytes() {
        [b'"', inside @ ..] => {
            let mut escaped = false;
            let quote = inside.iter().position(|byte| {
                let ends = *byte == b'"' && !escaped;
                escaped = *byte == b'\\' && !escaped;
                ends
            });
            quote.map_or(text.len(), |quote| quote + 2)
        }
        [b'{' | b'}' | b'[' | b']' | b',' | b':', ..] => 1,
        _ => text
            .find(|c| BLANKS.contains(&c) || "{}[],:\"".contains(c))
            .unwrap_or(text.len()),
    };
    text.split_at_checked(length).unwrap_or((text, ""))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use walrelay_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn blanks_go_and_members_are_sorted_at_every_depth() {
        for (text, expected, in_order) in [
            (
                r#"{"b": {"d": [{"f": 1, "e": 2}], "c": ","}, "a": "{ \" \\"}"#,
                r#"{"b":{"d":[{"f":1,"e":2}],"c":","},"a":"{ \" \\"}"#,
                r#"{"a":"{ \" \\","b":{"c":",","d":[{"e":2,"f":1}]}}"#,
            ),
            (
                " \t\n\r[3, -2e+3, {}, [ ], { \"b\": 1.50, \"a\": [2, 1]}, \"\\\\\", true]",
                r#"[3,-2e+3,{},[],{"b":1.50,"a":[2,1]},"\\",true]"#,
                r#"[3,-2e+3,{},[],{"a":[2,1],"b":1.50},"\\",true]"#,
            ),
            (
                r#"{"b": 1, "\u0061": 2, "ü": "\u00e4 ä", "B": 3, "": 4}"#,
                r#"{"b":1,"\u0061":2,"ü":"\u00e4 ä","B":3,"":4}"#,
                r#"{"":4,"B":3,"\u0061":2,"b":1,"ü":"\u00e4 ä"}"#,
            ),
            (
                r#"{"b": 1, "a": 2, "b": 0}"#,
                r#"{"b":1,"a":2,"b":0}"#,
                r#"{"a":2,"b":1,"b":0}"#,
            ),
            (" null ", "null", "null"),
        ] {
            assert_eq!(compact(text).as_deref(), Ok(expected));
            assert_eq!(sorted(text).as_deref(), Ok(in_order));
        }
    }

    #[test]
    fn what_is_not_json_is_refused_and_depth_is_not_counted() {
        for bad in ["", "{", "{\"a\"}", "[1,]", "x", "\"", "{} {}"] {
            assert_eq!(
                (compact(bad), sorted(bad)),
                (Err("JSON"), Err("JSON")),
                "{bad}"
            );
        }
        let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
        assert_eq!(sorted(&deep).as_deref(), Ok(deep.as_str()));
    }

    #[test]
    fn an_object_of_any_number_of_members_makes_no_headers_without_bound() {
        let object = |count: usize| {
            let members: Vec<String> = (0..count).map(|number| format!("\"{number}\":1")).collect();
            format!("{{{}}}", members.join(","))
        };
        assert_eq!(
            members(object(MEMBERS_MAX).as_bytes()).map(|members| members.len()),
            Ok(MEMBERS_MAX)
        );
        assert!(
            members(object(MEMBERS_MAX + 1).as_bytes())
                .unwrap_err()
                .contains("at most 100000")
        );
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<i64>().prop_map(serde_json::Value::from),
            any::<String>().prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
                proptest::collection::btree_map(any::<String>(), inner, 0..6)
                    .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_value_stays_the_same(value in any_json()) {
            let plain = value.to_string();
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            prop_assert_eq!(compact(&pretty).unwrap(), plain);
            let sorted = sorted(&pretty).unwrap();
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&sorted).unwrap(), value);
        }
    }

    #[test]
    fn fuzzed_json() {
        let corpus = [
            r#"{"b": {"d": [{"f": 1, "e": 2}], "c": ","}, "a": "{ \" \\", "ü": "\u00e4 ä"}"#,
            " \t\n\r[3, -2e+3, {}, [ ], { \"b\": 1.50, \"a\": [2, 1]}, true, null]",
            r#"{"b": 1, "\u0061": 2, "b": 0}"#,
        ];
        let path = ["a", "b"].map(str::to_owned);
        fuzz_text("JSON of a row", 2 << 20, &corpus, |text| {
            let compact = compact(text);
            assert_eq!(compact.is_ok(), sorted(text).is_ok());
            if let Ok(compact) = compact {
                assert!(compact.len() <= text.len());
                assert_eq!(super::compact(&compact).as_ref(), Ok(&compact));
                assert!(valid(&sorted(text).unwrap()).is_ok());
            }
            if let Ok(without) = without(text, &path) {
                assert!(valid(&without).is_ok());
            }
            drop((member(text, &path), members(text.as_bytes()), text_of(text)));
            assert!(tokens(text).map(str::len).sum::<usize>() <= text.len());
        });
    }
}
