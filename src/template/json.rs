//! One member of a JSON object, without reading more of it than is needed.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

/// An object's members, not looked into. Of members with one name the last counts, as in `jsonb`.
#[derive(Deserialize)]
struct Members<'j>(#[serde(borrow)] BTreeMap<Cow<'j, str>, &'j RawValue>);

/// The member at the end of `path`: a string's text, or anything else as it stands. `None` where it is missing or
/// `null`, or where something on the way is no object.
///
/// # Errors
/// `text` is not JSON.
pub(super) fn member<'j>(text: &'j str, path: &[String]) -> Result<Option<Cow<'j, str>>, serde_json::Error> {
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
    match value.get() {
        "null" => Ok(None),
        text if text.starts_with('"') => Ok(Some(unquoted(text)?)),
        text => Ok(Some(Cow::Borrowed(text))),
    }
}

/// The text of a JSON string; borrowed where nothing in it is escaped.
fn unquoted(text: &str) -> Result<Cow<'_, str>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Text<'j>(#[serde(borrow)] Cow<'j, str>);
    Ok(serde_json::from_str::<Text<'_>>(text)?.0)
}
