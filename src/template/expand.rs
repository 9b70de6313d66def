//! The JSON in a text, written as `JsonConverter` writes what `table.expand.json.payload` made of it.
//!
//! Debezium infers a schema and fills it: members without a value go, elements of an array become alike, numbers are
//! of 32 or 64 bits or `double`. What it cannot infer a schema for stays a text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem::replace;

use serde_json::value::RawValue;

use super::connect::{double, quoted, requoted};
use super::json::{tokens, unquoted};

/// JSON that is nested deeper stays a text: Jackson does not read it.
const DEPTH_MAX: usize = 1000;

/// An array in which each object has members of its own comes out with the square of what went in: this much may come
/// of a payload, so that a row cannot exhaust memory (P4, P11).
const BYTES_MAX: usize = 64 << 20;
/// How many members may be looked for while elements of arrays are made alike, likewise.
const WORK_MAX: usize = 4 << 20;
const TOO_MUCH: &str = "JSON whose objects in arrays are more alike: filled with each other's members it is too large";

/// A value of JSON.
enum Node<'j> {
    /// With its quotes and escapes.
    Text(&'j str),
    /// A number, `true`, `false` or `null`.
    Word(&'j str),
    Array(Vec<Node<'j>>),
    /// By name; of several members of one name the last, where the first is.
    Object(Vec<(Cow<'j, str>, Node<'j>)>),
}

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

/// The value in a text that holds JSON: an object or an array as JSON without blanks, any other as a JSON string. Text
/// behind the value is lost.
///
/// With `nulls` members that are `null` stay.
///
/// # Errors
/// The value comes to far more than it is.
pub(super) fn expand(text: &str, nulls: bool) -> Result<String, &'static str> {
    let first = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>().next();
    let value = first.and_then(Result::ok).map(RawValue::get).filter(|_| text.starts_with(['{', '[']));
    let Some(node) = value.and_then(node) else { return Ok(quoted(text)) };
    let mut work = WORK_MAX;
    let Some(shape) = node.shape(nulls, &mut work) else {
        return if work == 0 { Err(TOO_MUCH) } else { Ok(quoted(text)) };
    };
    let mut json = String::with_capacity(text.len());
    // What is only escaped has no more than three times the bytes.
    node.write(&shape, BYTES_MAX.max(text.len().saturating_mul(3)), &mut json)?;
    Ok(json)
}

/// An array or an object that is not closed yet.
struct Open<'j> {
    node: Node<'j>,
    /// The name of the member that comes next.
    name: Option<Cow<'j, str>>,
    /// Where the members are, by name.
    places: BTreeMap<Cow<'j, str>, usize>,
}

/// Reads valid JSON. `None`: it is nested too deep, or a member's name is no text.
fn node(text: &str) -> Option<Node<'_>> {
    let mut open: Vec<Open<'_>> = Vec::new();
    for token in tokens(text) {
        let begun = match token {
            "{" => Some(Node::Object(Vec::new())),
            "[" => Some(Node::Array(Vec::new())),
            _ => None,
        };
        if let Some(node) = begun {
            open.push(Open { node, name: None, places: BTreeMap::new() });
            if open.len() > DEPTH_MAX {
                return None;
            }
            continue;
        }
        let value = match (token, open.last_mut()) {
            ("," | ":", _) => continue,
            ("}" | "]", _) => open.pop()?.node,
            (token, Some(Open { node: Node::Object(_), name: name @ None, .. })) => {
                *name = Some(unquoted(token).ok()?);
                continue;
            }
            (text, _) if text.starts_with('"') => Node::Text(text),
            (word, _) => Node::Word(word),
        };
        let Some(Open { node, name, places }) = open.last_mut() else { return Some(value) };
        match (node, name.take()) {
            (Node::Array(elements), _) => elements.push(value),
            (Node::Object(members), Some(name)) => match places.get(&name).and_then(|at| members.get_mut(*at)) {
                Some((_, known)) => *known = value,
                None => {
                    places.insert(name.clone(), members.len());
                    members.push((name, value));
                }
            },
            _ => return None,
        }
    }
    None
}

impl Node<'_> {
    /// `None`: there is none, or it was too much `work`, of which nothing is left then.
    fn shape(&self, nulls: bool, work: &mut usize) -> Option<Shape> {
        Some(match self {
            Node::Text(_) => Shape::Text,
            Node::Word("true" | "false") => Shape::Truth,
            Node::Word("null") if nulls => Shape::Null,
            Node::Word("null") => return None,
            Node::Word(number) if number.contains(['.', 'e', 'E']) => Shape::Double,
            Node::Word(number) if number.parse::<i32>().is_ok() => Shape::Int,
            Node::Word(_) => Shape::Long,
            Node::Array(elements) => Shape::Array(Box::new(shape_of_all(elements, nulls, work)?)),
            Node::Object(members) => {
                let mut shapes = Vec::with_capacity(members.len());
                for (name, member) in members {
                    if name.is_empty() {
                        return None;
                    }
                    match member.shape(nulls, work) {
                        Some(shape) => shapes.push((name.clone().into_owned(), shape)),
                        // A member is left out if it is null or an empty array.
                        None if *work > 0 && (member.is_null() || member.is_empty_array()) => {}
                        None => return None,
                    }
                }
                Shape::Object(shapes)
            }
        })
    }

    fn is_null(&self) -> bool {
        matches!(self, Node::Word("null"))
    }

    fn is_empty_array(&self) -> bool {
        matches!(self, Node::Array(elements) if elements.is_empty())
    }

    /// # Errors
    /// It comes to more than `bytes_max`.
    fn write(&self, shape: &Shape, bytes_max: usize, json: &mut String) -> Result<(), &'static str> {
        if json.len() > bytes_max {
            return Err(TOO_MUCH);
        }
        match (self, shape) {
            (Node::Object(members), Shape::Object(shapes)) => {
                let members: BTreeMap<_, _> = members.iter().map(|(name, member)| (name.as_ref(), member)).collect();
                json.push('{');
                for (number, (name, shape)) in shapes.iter().enumerate() {
                    if number > 0 {
                        json.push(',');
                    }
                    json.push_str(&quoted(name));
                    json.push(':');
                    members.get(name.as_str()).unwrap_or(&&Node::Word("null")).write(shape, bytes_max, json)?;
                }
                json.push('}');
            }
            (Node::Array(elements), Shape::Array(shape)) => {
                json.push('[');
                for (number, element) in elements.iter().enumerate() {
                    if number > 0 {
                        json.push(',');
                    }
                    element.write(shape, bytes_max, json)?;
                }
                json.push(']');
            }
            (Node::Text(text), _) => json.push_str(&requoted(text)),
            (Node::Word("-0"), Shape::Int) => json.push('0'),
            (Node::Word(number), Shape::Double) if !self.is_null() => match number.parse::<f64>() {
                Ok(infinite) if infinite.is_infinite() => json.push_str(&quoted(&double(infinite))),
                Ok(finite) => json.push_str(&double(finite)),
                Err(_) => json.push_str(number),
            },
            (Node::Word(word), _) => json.push_str(word),
            (Node::Object(_) | Node::Array(_), _) => {}
        }
        Ok(())
    }
}

/// What the elements of an array have in common, likewise. An empty array behind other arrays is like those.
fn shape_of_all(elements: &[Node<'_>], nulls: bool, work: &mut usize) -> Option<Shape> {
    let mut all: Option<Shape> = None;
    for element in elements.iter().filter(|element| !element.is_null()) {
        all = Some(match all {
            None => element.shape(nulls, work)?,
            Some(before) if element.is_empty_array() => merged(before, Shape::Array(Box::new(Shape::Null)), work)?,
            Some(before) => merged(before, element.shape(nulls, work)?, work)?,
        });
    }
    let none_but_nulls = nulls && !elements.is_empty();
    all.or(none_but_nulls.then_some(Shape::Null))
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
                    Some((_, known)) => *known = merged(replace(known, Shape::Null), shape, work)?,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_debezium_expands_them() {
        let deep = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        let (deepest, too_deep) = (deep(DEPTH_MAX), deep(DEPTH_MAX + 1));
        for (text, expected) in [
            ("", None),
            (r#"{"a": 1, "b": 2, "a": 3}"#, Some(r#"{"a":3,"b":2}"#)),
            (r#"{"a": "\ud83d b\ud83d\ude00\/\u00e9\u0007\n"}"#, Some(r#"{"a":"\uD83D b\uD83D\uDE00/é\u0007\n"}"#)),
            (r#"{"a": 1e400, "b": [-1e400, 1.50]}"#, Some(r#"{"a":"Infinity","b":["-Infinity",1.5]}"#)),
            (r#"{"a": -0, "b": -0.0, "c": [-0, 1]}"#, Some(r#"{"a":0,"b":-0.0,"c":[0,1]}"#)),
            ("[[6],[]]", Some("[[6],[]]")),
            (r#"{"a": [[{"b": 1}], [], [{"c": 2}]]}"#, Some(r#"{"a":[[{"b":1,"c":null}],[],[{"b":null,"c":2}]]}"#)),
            ("[[],[6]]", None),
            ("[6,[]]", None),
            (deepest.as_str(), Some(deepest.as_str())),
            (too_deep.as_str(), None),
            (r#"{"a": 1} trailing"#, Some(r#"{"a":1}"#)),
            ("{broken", None),
            ("{", None),
            ("[1,2", None),
            (r#"{"a":NaN}"#, None),
            (r#"{"a":1,}"#, None),
            (r#"{"\ud83d": 1}"#, None),
        ] {
            assert_eq!(expand(text, false).unwrap(), expected.map_or_else(|| quoted(text), str::to_owned));
        }
        let far_too_deep = deep(100_000);
        assert_eq!(expand(&far_too_deep, false), Ok(quoted(&far_too_deep)));
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
