//! A value in the forms of Kafka Connect's converters, by the type of its column: what Debezium's consumers know.
//!
//! | module | its room |
//! |---|---|
//! | `kind` | a type of Postgres to the type of Debezium, its schema, and its values as Java prints them |
//! | `expand` | the JSON in a text, as JsonConverter writes it again |
//!
//! Seen on the wire of Debezium 3.7 with `SimpleHeaderConverter` and `JsonConverter` of Kafka Connect 4.3, whose
//! defaults these are (`decimal.handling.mode=precise`, `time.precision.mode=adaptive`).

mod expand;
mod kind;

use std::borrow::Cow;

use super::value::{ColumnType, Needed};
use kind::Kind;

pub(super) use expand::expand;

/// How a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As text: `SimpleHeaderConverter`.
    Text,
    /// As JSON: `JsonConverter` without schemas.
    Json,
    /// As JSON with its schema around it.
    Schema {
        /// Whether the schema says so: a column that is NOT NULL.
        required: bool,
        /// Whether a NULL stays one.
        tombstone: bool,
    },
}

impl Form {
    /// Of the arguments of a template's function.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub(super) fn new(arguments: &[String]) -> Result<Form, String> {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        match words.as_slice() {
            [] | ["text"] => Ok(Form::Text),
            ["json"] => Ok(Form::Json),
            ["schema", more @ ..] if more.iter().all(|word| matches!(*word, "required" | "tombstone")) => {
                Ok(Form::Schema { required: more.contains(&"required"), tombstone: more.contains(&"tombstone") })
            }
            _ => {
                Err("connect takes 'text', 'json' or 'schema', and behind 'schema' 'required' and 'tombstone'"
                    .to_owned())
            }
        }
    }

    /// The value of a column of this type; `None` is NULL.
    ///
    /// # Errors
    /// What the value should be.
    pub(super) fn write<'v>(self, value: Option<Cow<'v, str>>, of: ColumnType) -> Result<Option<Cow<'v, str>>, Needed> {
        let kind = Kind::of(of);
        match (self, value) {
            (Form::Text | Form::Json, None) | (Form::Schema { tombstone: true, .. }, None) => Ok(None),
            (Form::Text, Some(text)) if kind.is_text() => Ok(Some(text)),
            (Form::Text, Some(text)) => Ok(Some(Cow::Owned(kind.read(&text)?.text()))),
            (Form::Json, Some(text)) => Ok(Some(Cow::Owned(kind.read(&text)?.json()))),
            (Form::Schema { required, .. }, value) => {
                let payload = match value {
                    Some(text) => kind.read(&text)?.json(),
                    None => "null".to_owned(),
                };
                let schema = kind.schema(!required);
                Ok(Some(Cow::Owned(format!("{{\"schema\":{schema},\"payload\":{payload}}}"))))
            }
        }
    }
}

#[cfg(test)]
mod tests;
