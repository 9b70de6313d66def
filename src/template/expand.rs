//! The JSON in a text, written as `JsonConverter` writes what `table.expand.json.payload` made of it.
//!
//! Debezium infers a schema and fills it: members without a value go, elements of an array become alike, numbers are
//! of 32 or 64 bits or `double`. What it cannot infer a schema for stays a text.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::connect::{double, quoted};
use super::json::Ordered;

/// What is nested deeper stays a text. Each level is read again by the one above it.
const DEPTH_MAX: usize = 200;

/// An array in which each object has members of its own comes out with the square of what went in: this much may come
/// of a payload, so that a row cannot exhaust memory (P4, P11).
const BYTES_MAX: usize = 64 << 20;
/// How many members may be looked for while elements of arrays are made alike, likewise.
const WORK_MAX: usize = 4 << 20;
const TOO_MUCH: &str =
    "JSON whose objects in arrays are more alike: filled with each other's members it is too large";

/// What all values in one place have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shape {
    Text,
    Truth,
    Int,
    Long,
    Double,
    Null,
    Array(Box<Shape>),
    Object(Vec<(String, Shape)>),
}

/// The value in a text that holds JSON: an object or an array as JSON without blanks, any other as a JSON string.
///
/// With `nulls` members that are `null` stay.
///
/// # Errors
/// It is an object or array that is not JSON, or comes to far more than it is.
pub(super) fn expand(text: &str, nulls: bool) -> Result<String, &'static str> {
    if !text.starts_with(['{', '[']) {
        return Ok(quoted(text));
    }
    let value: &RawValue = serde_json::from_str(text).map_err(|_| "JSON")?;
    let mut work = WORK_MAX;
    let Some(shape) = shape(value, nulls, DEPTH_MAX, &mut work) else {
        return if work == 0 { Err(TOO_MUCH) } else { Ok(quoted(text)) };
    };
    let mut json = String::with_capacity(text.len());
    // What is only escaped has no more than three times the bytes.
    write(value, &shape, BYTES_MAX.max(text.len().saturating_mul(3)), &mut json)?;
    Ok(json)
}

/// `None`: there is none, or it was too much `work`, of which nothing is left then.
fn shape(value: &RawValue, nulls: bool, depth: usize, work: &mut usize) -> Option<Shape> {
    let depth = depth.checked_sub(1)?;
    let text = value.get();
    Some(match text.as_bytes().first()? {
        b'"' => Shape::Text,
        b't' | b'f' => Shape::Truth,
        b'n' if nulls => Shape::Null,
        b'n' => return None,
        b'[' => return array(text, nulls, depth, work),
        b'{' => {
            let mut shapes: Vec<(String, Shape)> = Vec::new();
            for (name, member) in members(text) {
                if name.is_empty() {
                    return None;
                }
                match shape(member, nulls, depth, work) {
                    Some(shape) => shapes.push((name.into_owned(), shape)),
                    None if *work > 0 && is_left_out(member, nulls) => {}
                    None => return None,
                }
            }
            Shape::Object(shapes)
        }
        _ if text.contains(['.', 'e', 'E']) => Shape::Double,
        _ if text.parse::<i32>().is_ok() => Shape::Int,
        _ => Shape::Long,
    })
}

/// Whether a member is left out where it has no shape: it is null, or an empty array.
fn is_left_out(member: &RawValue, nulls: bool) -> bool {
    let text = member.get();
    (text == "null" && !nulls) || (text.starts_with('[') && elements(text).is_empty())
}

fn array(text: &str, nulls: bool, depth: usize, work: &mut usize) -> Option<Shape> {
    let mut all: Option<Shape> = None;
    let elements = elements(text);
    for element in elements.iter().filter(|element| element.get() != "null") {
        let one = shape(element, nulls, depth, work)?;
        all = Some(match all {
            None => one,
            Some(before) => merged(before, one, work)?,
        });
    }
    let none_but_nulls = nulls && !elements.is_empty();
    let all = all.or(none_but_nulls.then_some(Shape::Null))?;
    Some(Shape::Array(Box::new(all)))
}

/// `None`: the two have nothing in common, or it was too much `work`.
fn merged(before: Shape, other: Shape, work: &mut usize) -> Option<Shape> {
    Some(match (before, other) {
        (Shape::Object(mut before), Shape::Object(other)) => {
            let mut places: Option<BTreeMap<String, usize>> = None;
            for (at, (name, shape)) in other.into_iter().enumerate() {
                // Mostly they have the same members in the same order, and nothing has to be looked for.
                let here = before.get(at).is_some_and(|(known, _)| *known == name);
                let place = if here {
                    Some(at)
                } else {
                    if places.is_none() {
                        *work = work.saturating_sub(before.len());
                    }
                    if *work == 0 {
                        return None;
                    }
                    let names = || before.iter().enumerate().map(|(place, (name, _))| (name.clone(), place)).collect();
                    places.get_or_insert_with(names).get(&name).copied()
                };
                match place.and_then(|place| before.get_mut(place)) {
                    Some((_, known)) => *known = merged(std::mem::replace(known, Shape::Null), shape, work)?,
                    None => before.push((name, shape)),
                }
            }
            Shape::Object(before)
        }
        (Shape::Array(before), Shape::Array(other)) => Shape::Array(Box::new(merged(*before, *other, work)?)),
        (Shape::Null, one) | (one, Shape::Null) => one,
        (before, other) if before == other => before,
        _ => return None,
    })
}

/// # Errors
/// It comes to more than `bytes_max`.
fn write(value: &RawValue, shape: &Shape, bytes_max: usize, json: &mut String) -> Result<(), &'static str> {
    let text = value.get();
    if json.len() > bytes_max {
        return Err(TOO_MUCH);
    }
    match shape {
        _ if text == "null" => json.push_str("null"),
        Shape::Object(shapes) => {
            let members: BTreeMap<_, _> = members(text).into_iter().collect();
            for (number, (name, shape)) in shapes.iter().enumerate() {
                if json.len() > bytes_max {
                    return Err(TOO_MUCH);
                }
                json.push(if number == 0 { '{' } else { ',' });
                json.push_str(&quoted(name));
                json.push(':');
                match members.get(name.as_str()) {
                    Some(member) => write(member, shape, bytes_max, json)?,
                    None => json.push_str("null"),
                }
            }
            json.push_str(if shapes.is_empty() { "{}" } else { "}" });
        }
        Shape::Array(shape) => {
            for (number, element) in elements(text).iter().enumerate() {
                json.push(if number == 0 { '[' } else { ',' });
                write(element, shape, bytes_max, json)?;
            }
            json.push_str(if text == "[]" { "[]" } else { "]" });
        }
        Shape::Text => json.push_str(&quoted(&serde_json::from_str::<String>(text).unwrap_or_default())),
        Shape::Double => json.push_str(&text.parse().map_or_else(|_| text.to_owned(), double)),
        Shape::Truth | Shape::Int | Shape::Long | Shape::Null => json.push_str(text),
    }
    Ok(())
}

/// Of several of one name the last, where the first is.
fn members(text: &str) -> Vec<(Cow<'_, str>, &RawValue)> {
    let mut members: Vec<(Cow<'_, str>, &RawValue)> = Vec::new();
    let mut places: BTreeMap<Cow<'_, str>, usize> = BTreeMap::new();
    for (name, value) in serde_json::from_str::<Ordered<'_>>(text).map(|Ordered(all)| all).unwrap_or_default() {
        match places.get(&name).and_then(|place| members.get_mut(*place)) {
            Some((_, known)) => *known = value,
            None => {
                places.insert(name.clone(), members.len());
                members.push((name, value));
            }
        }
    }
    members
}

fn elements(text: &str) -> Vec<&RawValue> {
    serde_json::from_str(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

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

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in r#"[\[{][\[\]{}:, "a\\u1-]{0,40}|\PC*"#) {
            let _expanded = expand(&text, true);
        }
    }
}
