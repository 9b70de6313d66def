//! The record's value: a template, or a JSON object of several.

use std::borrow::Cow;

use crate::config::ValueConfig;
use crate::event::Row;
use crate::template::{Bound, RenderError, Template};

/// OID of `bytea`, whose text form is not what was written.
const BYTEA: u32 = 17;

/// Templates bound to places.
#[derive(Debug)]
pub(super) enum Value {
    One(Template, Bound),
    Envelope {
        /// A member's name as JSON with its colon, and its template.
        members: Vec<(String, Template, Bound)>,
        /// The place that, where it is NULL, makes a tombstone.
        tombstone: Option<usize>,
    },
}

impl Value {
    /// Binds by `bind`, which binds templates, and `place`, which finds columns.
    ///
    /// # Errors
    /// Those of `bind` and `place`.
    pub(super) fn new<E>(
        config: &ValueConfig,
        bind: impl Fn(&Template) -> Result<Bound, E>,
        place: impl Fn(&str) -> Result<usize, E>,
    ) -> Result<Value, E> {
        Ok(match config {
            ValueConfig::Template(template) => Value::One(template.clone(), bind(template)?),
            ValueConfig::Envelope { members, tombstone } => {
                let member = |(name, template): &(String, Template)| {
                    let name = format!("{}:", serde_json::Value::from(name.as_str()));
                    Ok((name, template.clone(), bind(template)?))
                };
                Value::Envelope {
                    members: members.iter().map(member).collect::<Result<_, E>>()?,
                    tombstone: tombstone.as_deref().map(place).transpose()?,
                }
            }
        })
    }

    /// The value of a row; `None` is a tombstone. A column as it stands is not copied.
    ///
    /// # Errors
    /// The template that a value does not fit.
    #[inline]
    pub(super) fn render<'s>(&'s self, row: &'s Row<'s>) -> Result<Option<Cow<'s, [u8]>>, (&'s Template, RenderError)> {
        match self {
            Value::One(template, bound) => match bound.column() {
                Some(place) if row.type_oid(place) == BYTEA => bytes(row, place).map_err(|error| (template, error)),
                Some(place) => Ok(row.get(place).map(Cow::Borrowed)),
                None => bound.render(row).map_err(|error| (template, error)),
            },
            Value::Envelope { tombstone: Some(place), .. } if row.get(*place).is_none() => Ok(None),
            Value::Envelope { members, .. } => {
                let mut object = vec![b'{'];
                for (number, (name, template, bound)) in members.iter().enumerate() {
                    if number > 0 {
                        object.push(b',');
                    }
                    object.extend_from_slice(name.as_bytes());
                    bound.append_json(row, &mut object).map_err(|error| (template, error))?;
                }
                object.push(b'}');
                Ok(Some(Cow::Owned(object)))
            }
        }
    }
}

/// The bytes of a `bytea`, which Postgres prints as `\x` and hexadecimal digits (`bytea_output`, which the session sets).
fn bytes<'s>(row: &Row<'s>, place: usize) -> Result<Option<Cow<'s, [u8]>>, RenderError> {
    let Some(text) = row.get(place) else { return Ok(None) };
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    let decoded: Option<Vec<u8>> = text.strip_prefix(b"\\x").and_then(|hex| hex.chunks(2).map(pair).collect());
    decoded.map(|bytes| Some(Cow::Owned(bytes))).ok_or(RenderError { place, needed: "bytea in hexadecimal form" })
}
