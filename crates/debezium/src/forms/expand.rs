//! The JSON in a text, written as `JsonConverter` writes what `table.expand.json.payload` made of
//! it.
//!
//! Debezium infers a schema and fills it: members without a value go, elements of an array become
//! alike, numbers are of 32 or 64 bits or `double`. A value without an inferred schema stays a
//! text.
//!
//! Two things are not as there. Debezium has the schemas of an array's objects in a `HashSet`, in
//! the order of hash codes that include those of an `enum`, which another Java, collector or
//! machine changes: `JsonSchemaData.toConnectSchemaWithCycles`, `ConnectSchema.hashCode`,
//! `Enum.hashCode`. Here members come in the order in which they first occur. And what does not fit
//! the schema that was inferred is no record there, or is lost; here it is written as it is.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::connect::{double, quoted, requoted};
use walrelay_core::template::tokens;

/// JSON that is nested deeper stays a text, and so does JSON with a number of more digits: Jackson
/// does not read it (`StreamReadConstraints`).
const DEPTH_MAX: usize = 1000;
const DIGITS_MAX: usize = 1000;

/// An array in which each object has members of its own comes out with the square of what went in:
/// this much may come of a payload, so that a row cannot exhaust memory (P4, P11).
const BYTES_MAX: usize = 64 << 20;
const TOO_MUCH: &str =
    "JSON whose objects in arrays are more alike: filled with each other's members it is too large";

enum Node<'j> {
    /// With its quotes and escapes.
    Text(&'j str),
    /// A number, `true`, `false` or `null`.
    Word(&'j str),
    Array(Vec<Node<'j>>),
    /// By name, which is a JSON string as Jackson writes it; of several members of one name the
    /// last, where the first is.
    Object(Vec<(Cow<'j, str>, Node<'j>)>),
}

/// The parts of the objects and arrays in one place. All elements of an array are in one place.
#[derive(Default)]
struct Layout<'n> {
    /// The members of all objects, by name.
    members: Vec<(&'n str, Layout<'n>)>,
    /// Where the members of all objects but the last are, by name.
    places: BTreeMap<&'n str, usize>,
    elements: Option<Box<Layout<'n>>>,
}

/// The value in a text that holds JSON: an object or an array as JSON without blanks, any other as
/// a JSON string. Text behind the value is lost.
///
/// With `nulls` members that are `null` stay.
pub(super) fn expand(text: &str, nulls: bool) -> Result<String, &'static str> {
    let first = serde_json::Deserializer::from_str(text)
        .into_iter::<&RawValue>()
        .next();
    let value = first
        .and_then(Result::ok)
        .map(RawValue::get)
        .filter(|_| text.starts_with(['{', '[']));
    let node = value
        .and_then(node)
        .filter(|node| node.has_schema(nulls) == Some(true));
    let Some(node) = node else {
        return Ok(quoted(text));
    };
    let mut layout = Layout::default();
    layout.add(&node, nulls);
    let mut json = String::with_capacity(text.len());
    // Escapes alone make no more than three times the bytes.
    node.write(
        &layout,
        BYTES_MAX.max(text.len().saturating_mul(3)),
        &mut json,
    )?;
    Ok(json)
}

/// An array or an object that is not closed yet.
struct Open<'j> {
    node: Node<'j>,
    name: Option<Cow<'j, str>>,
    places: BTreeMap<Cow<'j, str>, usize>,
}

/// Reads valid JSON. `None`: it is nested too deep, or a number has too many digits.
fn node(text: &str) -> Option<Node<'_>> {
    let mut open: Vec<Open<'_>> = Vec::new();
    for token in tokens(text) {
        let begun = match token {
            "{" => Some(Node::Object(Vec::new())),
            "[" => Some(Node::Array(Vec::new())),
            _ => None,
        };
        if let Some(node) = begun {
            open.push(Open {
                node,
                name: None,
                places: BTreeMap::new(),
            });
            if open.len() > DEPTH_MAX {
                return None;
            }
            continue;
        }
        let value = match (token, open.last_mut()) {
            ("," | ":", _) => continue,
            ("}" | "]", _) => open.pop()?.node,
            (
                token,
                Some(Open {
                    node: Node::Object(_),
                    name: name @ None,
                    ..
                }),
            ) => {
                let quoted = requoted(token);
                *name = Some(if quoted == token {
                    Cow::Borrowed(token)
                } else {
                    Cow::Owned(quoted)
                });
                continue;
            }
            (text, _) if text.starts_with('"') => Node::Text(text),
            (number, _) if number.bytes().filter(u8::is_ascii_digit).count() > DIGITS_MAX => {
                return None;
            }
            (word, _) => Node::Word(word),
        };
        let Some(Open { node, name, places }) = open.last_mut() else {
            return Some(value);
        };
        match (node, name.take()) {
            (Node::Array(elements), _) => elements.push(value),
            (Node::Object(members), Some(name)) => {
                match places.get(&name).and_then(|at| members.get_mut(*at)) {
                    Some((_, known)) => *known = value,
                    None => {
                        places.insert(name.clone(), members.len());
                        members.push((name, value));
                    }
                }
            }
            _ => return None,
        }
    }
    None
}

impl Node<'_> {
    /// Whether Debezium has a schema for it: `JsonSchemaData.toConnectSchema`. `None`: it fails,
    /// for the whole payload.
    fn has_schema(&self, nulls: bool) -> Option<bool> {
        match self {
            Node::Word("null") => Some(nulls),
            Node::Text(_) | Node::Word(_) => Some(true),
            Node::Array(elements) if elements.is_empty() => Some(false),
            Node::Array(elements) => {
                let mut values = elements.iter().filter(|element| !element.is_null());
                let Some(first) = values.next() else {
                    return nulls.then_some(true);
                };
                let schema_type = first.schema_type();
                if values.any(|other| other.schema_type() != schema_type) {
                    return None;
                }
                if matches!(first, Node::Object(_)) {
                    return elements
                        .iter()
                        .all(|element| element.has_schema(nulls).is_some())
                        .then_some(true);
                }
                // Behind the first, arrays in an array may hold anything.
                first.has_schema(nulls)?.then_some(true)
            }
            Node::Object(members) => {
                for (name, member) in members {
                    // `SchemaBuilder.field` takes no empty name.
                    if member.has_schema(nulls)? && name == "\"\"" {
                        return None;
                    }
                }
                Some(true)
            }
        }
    }

    /// The part that all elements of an array must share: `JsonSchemaData.getFirstArrayElement`.
    fn schema_type(&self) -> &'static str {
        match self {
            Node::Text(_) => "STRING",
            Node::Word("null") => "NULL",
            Node::Word("true" | "false") => "BOOLEAN",
            Node::Word(number) if number.parse::<i32>().is_ok() => "INT32",
            Node::Word(number) if number.parse::<i64>().is_ok() => "INT64",
            Node::Word(_) => "FLOAT64",
            Node::Array(_) => "ARRAY",
            Node::Object(_) => "STRUCT",
        }
    }

    fn is_null(&self) -> bool {
        matches!(self, Node::Word("null"))
    }

    /// Whether it is no member of an object, unless another object in its place has the member.
    fn is_left_out(&self, nulls: bool) -> bool {
        match self {
            Node::Array(elements) => elements.is_empty(),
            Node::Word(_) => self.is_null() && !nulls,
            Node::Text(_) | Node::Object(_) => false,
        }
    }

    fn write(
        &self,
        layout: &Layout<'_>,
        bytes_max: usize,
        json: &mut String,
    ) -> Result<(), &'static str> {
        if json.len() > bytes_max {
            return Err(TOO_MUCH);
        }
        match self {
            Node::Object(members) => {
                let members: BTreeMap<_, _> = members
                    .iter()
                    .map(|(name, member)| (name.as_ref(), member))
                    .collect();
                json.push('{');
                for (number, (name, layout)) in layout.members.iter().enumerate() {
                    if number > 0 {
                        json.push(',');
                    }
                    json.push_str(name);
                    json.push(':');
                    members
                        .get(name)
                        .unwrap_or(&&Node::Word("null"))
                        .write(layout, bytes_max, json)?;
                }
                json.push('}');
            }
            Node::Array(elements) => {
                json.push('[');
                for (number, element) in elements.iter().enumerate() {
                    if number > 0 {
                        json.push(',');
                    }
                    element.write(
                        layout.elements.as_deref().unwrap_or(layout),
                        bytes_max,
                        json,
                    )?;
                }
                json.push(']');
            }
            Node::Text(text) => json.push_str(&requoted(text)),
            Node::Word("-0") => json.push('0'),
            Node::Word(number) if number.contains(['.', 'e', 'E']) => match number.parse::<f64>() {
                Ok(infinite) if infinite.is_infinite() => json.push_str(&quoted(&double(infinite))),
                Ok(finite) => json.push_str(&double(finite)),
                // `true` and `false`.
                Err(_) => json.push_str(number),
            },
            Node::Word(word) => json.push_str(word),
        }
        Ok(())
    }
}

impl<'n> Layout<'n> {
    fn add(&mut self, node: &'n Node<'_>, nulls: bool) {
        match node {
            Node::Text(_) | Node::Word(_) => {}
            Node::Array(elements) => {
                let layout = self.elements.get_or_insert_default();
                elements
                    .iter()
                    .for_each(|element| layout.add(element, nulls));
            }
            Node::Object(members) => {
                // The names of one object differ, so those of the objects before it suffice.
                let added = self.members.iter().enumerate().skip(self.places.len());
                self.places
                    .extend(added.map(|(place, (name, _))| (*name, place)));
                for (name, member) in members
                    .iter()
                    .filter(|(_, member)| !member.is_left_out(nulls))
                {
                    let place = self
                        .places
                        .get(name.as_ref())
                        .copied()
                        .unwrap_or(self.members.len());
                    if place == self.members.len() {
                        self.members.push((name, Layout::default()));
                    }
                    if let Some((_, layout)) = self.members.get_mut(place) {
                        layout.add(member, nulls);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn values_are_written_as_debezium_expands_them() {
        let deep = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        let deepest = deep(DEPTH_MAX);
        let too_deep = deep(DEPTH_MAX + 1);
        for (text, expected) in [
            ("", None),
            (r#"{"a": 1, "b": 2, "a": 3}"#, Some(r#"{"a":3,"b":2}"#)),
            (
                r#"{"a": "\ud83d b\ud83d\ude00\/\u00e9\u0007\n"}"#,
                Some(r#"{"a":"\uD83D b\uD83D\uDE00/é\u0007\n"}"#),
            ),
            (
                r#"{"a": 1e400, "b": [-1e400, 1.50]}"#,
                Some(r#"{"a":"Infinity","b":["-Infinity",1.5]}"#),
            ),
            (
                r#"{"a": -0, "b": -0.0, "c": [-0, 1]}"#,
                Some(r#"{"a":0,"b":-0.0,"c":[0,1]}"#),
            ),
            ("[[6],[]]", Some("[[6],[]]")),
            (
                r#"{"a": [[{"b": 1}], [], [{"c": 2}]]}"#,
                Some(r#"{"a":[[{"b":1,"c":null}],[],[{"b":null,"c":2}]]}"#),
            ),
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
            (
                r#"{"\ud83d": 1, "\u0061": 2}"#,
                Some(r#"{"\uD83D":1,"a":2}"#),
            ),
        ] {
            assert_eq!(
                expand(text, false).unwrap(),
                expected.map_or_else(|| quoted(text), str::to_owned)
            );
        }
        for (digits, is_read) in [(DIGITS_MAX, true), (DIGITS_MAX + 1, false)] {
            let text = format!("[{}]", "7".repeat(digits));
            assert_eq!(
                expand(&text, false).unwrap(),
                if is_read { text } else { quoted(&text) }
            );
        }
        let far_too_deep = deep(100_000);
        assert_eq!(expand(&far_too_deep, false), Ok(quoted(&far_too_deep)));
    }

    /// The result for a text: itself, itself as a JSON string, or this.
    const SAME: &str = "same";
    const STRING: &str = "string";

    fn assert_expanded(text: &str, nulls: bool, expected: &str) {
        let expected = match expected {
            SAME => text.to_owned(),
            STRING => quoted(text),
            json => json.to_owned(),
        };
        assert_eq!(expand(text, nulls), Ok(expected), "{text}, nulls {nulls}");
    }

    #[test]
    fn elements_of_arrays_become_alike_and_nothing_is_lost() {
        for (text, expected) in [
            // Debezium has `a` before `b` or `b` before `a`, by the hash codes of the two schemas.
            (
                r#"{"f":[{"b":1,"a":null},{"a":2}]}"#,
                r#"{"f":[{"b":1,"a":null},{"b":null,"a":2}]}"#,
            ),
            (
                r#"{"f":[{"b":1},{"c":2,"b":3}]}"#,
                r#"{"f":[{"b":1,"c":null},{"b":3,"c":2}]}"#,
            ),
            (r#"{"a":[{"x":[]},{"x":[1]}]}"#, SAME),
            (r#"{"a":[{"x":[]},{"x":[]}]}"#, r#"{"a":[{},{}]}"#),
            (r#"{"a":[null,[]]}"#, STRING),
            // `toConnectSchemaWithCycles` takes the schema of arrays in an array from the first,
            // whatever the others hold.
            (r#"{"a":[[1],[null]]}"#, SAME),
            (r#"{"a":[[[1]],[[]],[]]}"#, SAME),
            (
                r#"{"a":[[{"b":1}],[{"c":[null]}]]}"#,
                r#"{"a":[[{"b":1,"c":null}],[{"b":null,"c":[null]}]]}"#,
            ),
            // `decimalValue` of what is no `long` does not fit FLOAT64, which Debezium finds only
            // after the schema.
            ("[1,2.5]", STRING),
            ("[1,3000000000]", STRING),
            ("[3000000000,12345678901234567890]", STRING),
            ("[1.5,12345678901234567890]", SAME),
            (r#"[1,"a"]"#, STRING),
            ("[true,1]", STRING),
            ("[true,null,false]", SAME),
            // Each object has a schema. Where their members differ in type, `Struct.put` fails.
            (
                r#"{"a":[{"p":10},{"p":9.50}]}"#,
                r#"{"a":[{"p":10},{"p":9.5}]}"#,
            ),
            (r#"[{"x":1},{"x":{"z":1}},{"x":["s"]}]"#, SAME),
            (
                r#"[{"x":{"a":1}},{"x":{"b":2}}]"#,
                r#"[{"x":{"a":1,"b":null}},{"x":{"a":null,"b":2}}]"#,
            ),
            (r#"{"":1}"#, STRING),
        ] {
            assert_expanded(text, false, expected);
            assert_expanded(text, true, expected);
        }
        for (text, without_nulls, with_nulls) in [
            (
                r#"{"a":null,"b":{"c":null},"d":[]}"#,
                r#"{"b":{}}"#,
                r#"{"a":null,"b":{"c":null}}"#,
            ),
            (
                r#"{"a":[null,{"x":null},{}]}"#,
                r#"{"a":[null,{},{}]}"#,
                r#"{"a":[null,{"x":null},{"x":null}]}"#,
            ),
            (r#"{"a":[null]}"#, STRING, SAME),
            (r#"{"a":[{"x":[null]}]}"#, STRING, SAME),
            (r#"{"a":[[null]]}"#, STRING, SAME),
            // A member without a schema is none, and its name does not count.
            (r#"{"":null,"a":1}"#, r#"{"a":1}"#, STRING),
        ] {
            assert_expanded(text, false, without_nulls);
            assert_expanded(text, true, with_nulls);
        }
    }

    #[test]
    fn objects_in_an_array_with_nothing_in_common_do_not_exhaust_memory() {
        let array = |count: usize| {
            let objects: Vec<String> = (0..count)
                .map(|number| format!("{{\"member-{number}\":{number}}}"))
                .collect();
            format!("[{}]", objects.join(","))
        };
        assert!(expand(&array(100), false).unwrap().len() > 100 * 100 * 10);
        for too_many in [2_500, 200_000] {
            assert!(expand(&array(too_many), false).is_err(), "{too_many}");
        }
        let alike = format!(
            "[{}]",
            vec![r#"{"a":1,"b":{"c":"x"},"d":[{"e":1}]}"#; 100_000].join(",")
        );
        assert_eq!(expand(&alike, false).as_deref(), Ok(alike.as_str()));
    }

    #[test]
    fn fuzzed_payloads() {
        let corpus = [
            r#"{"a": [[{"b": 1}], [], [{"c": 2}]], "d": 1e400, "e": [-0.0, 9223372036854775808]}"#,
            r#"{"a": "\ud83d b\ud83d\ude00\/\u00e9\u0007\n", "": null, "b": {"a": 3, "a": true}}"#,
            r#"[null,{"x":null},{"y":[6,[]]}] behind"#,
        ];
        // An array may come to the square of what it was.
        fuzz_text("payloads to expand", 256 << 20, &corpus, |text| {
            for nulls in [false, true] {
                if let Ok(json) = expand(text, nulls) {
                    let read = serde_json::from_str::<serde::de::IgnoredAny>(&json);
                    assert!(read.is_ok(), "{json}");
                }
            }
        });
    }
}
