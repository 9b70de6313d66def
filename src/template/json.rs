//! One member of a JSON object, without reading more of it than is needed.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::function::Needed;

/// An object's members, not looked into. Of members with one name the last counts, as in `jsonb`.
#[derive(Deserialize)]
struct Members<'j>(#[serde(borrow)] BTreeMap<Cow<'j, str>, &'j RawValue>);

/// The member at the end of `path`: a string's text, or anything else as it stands. `None` where it is missing or
/// `null`, or where something on the way is no object.
///
/// # Errors
/// `text` is not JSON.
pub(super) fn member<'j>(text: &'j str, path: &[String]) -> Result<Option<Cow<'j, str>>, serde_json::Error> {
    raw_member(text, path)?.map_or(Ok(None), text_of)
}

/// What a JSON value is as text: a string unquoted, nothing for `null`, anything else as it stands.
///
/// # Errors
/// A string that is none.
pub fn text_of(raw: &str) -> Result<Option<Cow<'_, str>>, serde_json::Error> {
    Ok(match raw {
        "null" => None,
        text if text.starts_with('"') => Some(unquoted(text)?),
        text => Some(Cow::Borrowed(text)),
    })
}

/// The member at the end of `path` as it stands; `None` where it is missing.
///
/// # Errors
/// `text` is not JSON.
pub(super) fn raw_member<'j>(text: &'j str, path: &[String]) -> Result<Option<&'j str>, serde_json::Error> {
    let mut value: &RawValue = serde_json::from_str(text)?;
    for name in path {
        if !value.get().starts_with('{') {
            return Ok(None);
        }
        let members: Members<'j> = serde_json::from_str(value.get())?;
        match members.0.get(name.as_str()) {
            Some(found) => value = found,
            None => return Ok(None),
        }
    }
    Ok(Some(value.get()))
}

/// A member's name, and its text: a string unquoted, nothing for `null`, anything else as it stands.
pub type Member<'j> = (Cow<'j, str>, Option<Cow<'j, str>>);

/// How many members may become headers. Each takes many times its text, and no broker takes so many (P4).
const MEMBERS_MAX: usize = 100_000;

/// The members of an object, in their order.
///
/// # Errors
/// What `text` should be instead.
pub fn members(text: &[u8]) -> Result<Vec<Member<'_>>, &'static str> {
    const NEEDED: Needed = "a JSON object of at most 100000 members";
    let members: Ordered<'_, MEMBERS_MAX> = serde_json::from_slice(text).map_err(|_| NEEDED)?;
    let mut texts = Vec::with_capacity(members.0.len());
    for (name, value) in members.0 {
        texts.push((name, text_of(value.get()).map_err(|_| NEEDED)?));
    }
    Ok(texts)
}

/// # Errors
/// It is not JSON.
pub(super) fn valid(text: &str) -> Result<(), Needed> {
    serde_json::from_str::<&RawValue>(text).map(|_| ()).map_err(|_| "JSON")
}

/// The object without these members; everything else as it stands and in its order.
///
/// # Errors
/// It is no JSON object.
pub(super) fn without(text: &str, left_out: &[String]) -> Result<String, Needed> {
    let members: Ordered<'_> = serde_json::from_str(text).map_err(|_| "a JSON object")?;
    let mut object = String::from("{");
    for (name, value) in members.0.iter().filter(|(name, _)| !left_out.iter().any(|out| out == name.as_ref())) {
        if object.len() > 1 {
            object.push_str(", ");
        }
        object.push_str(&quoted(name));
        object.push_str(": ");
        object.push_str(value.get());
    }
    object.push('}');
    Ok(object)
}

/// A JSON string with this text.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// An object's members in their order, if there are at most so many.
pub(super) struct Ordered<'j, const MAX: usize = { usize::MAX }>(pub(super) Vec<(Cow<'j, str>, &'j RawValue)>);

impl<'de, const MAX: usize> Deserialize<'de> for Ordered<'de, MAX> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<const MAX: usize>;
        impl<'de, const MAX: usize> serde::de::Visitor<'de> for Visitor<MAX> {
            type Value = Ordered<'de, MAX>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((Text(name), value)) = map.next_entry::<Text<'de>, &'de RawValue>()? {
                    if members.len() == MAX {
                        return Err(serde::de::Error::invalid_length(MAX, &self));
                    }
                    members.push((name, value));
                }
                Ok(Ordered(members))
            }
        }
        deserializer.deserialize_map(Visitor::<MAX>)
    }
}

/// A string, borrowed where nothing in it is escaped.
#[derive(Deserialize)]
struct Text<'j>(#[serde(borrow)] Cow<'j, str>);

/// The text of a JSON string; borrowed where nothing in it is escaped.
fn unquoted(text: &str) -> Result<Cow<'_, str>, serde_json::Error> {
    Ok(serde_json::from_str::<Text<'_>>(text)?.0)
}
