//! What can be done to a value on its way into a template.

use std::borrow::Cow;

use regex::Regex;

use super::connect::{Form, expand};
use super::json;
use super::value::{ColumnType, Needed, timestamp};

/// A function with its arguments.
#[derive(Debug, Clone)]
pub(super) enum Function {
    Lower,
    Upper,
    Default(String),
    Replace {
        from: String,
        to: String,
    },
    Topic,
    /// JSON to be embedded as it stands.
    Json,
    /// Text to be quoted, whatever the column's type.
    Text,
    /// A JSON object without these members.
    Strip(Vec<String>),
    /// JSON without blanks.
    Compact,
    /// JSON without blanks and with sorted members.
    Sort,
    /// A timestamp of Postgres in the form of RFC 3339.
    Rfc3339,
    Match {
        whole: Regex,
        /// Replaces the first place of a whole that matches, as Java does, and not the whole.
        first: Option<Regex>,
        to: String,
    },
    /// NULL where there are blanks only.
    Filled,
    /// As Kafka Connect writes it.
    Connect(Form),
    /// JSON as Kafka Connect writes it again.
    Expand {
        nulls: bool,
    },
}

const KNOWN: &str = "lower, upper, default('…'), replace('…', '…'), topic, match('…', '…'), json, text, \
                     strip('…', …), compact, sort, rfc3339, filled, connect('…', …), expand";

impl Function {
    /// # Errors
    /// What is wrong, for people.
    pub(super) fn new(name: &str, arguments: Vec<String>) -> Result<Function, String> {
        let count = arguments.len();
        let mut arguments = arguments.into_iter();
        let (function, takes) = match name {
            "lower" => (Function::Lower, 0),
            "upper" => (Function::Upper, 0),
            "topic" => (Function::Topic, 0),
            "json" => (Function::Json, 0),
            "text" => (Function::Text, 0),
            "compact" => (Function::Compact, 0),
            "sort" => (Function::Sort, 0),
            "rfc3339" => (Function::Rfc3339, 0),
            "filled" => (Function::Filled, 0),
            "connect" => (Function::Connect(Form::new(&arguments.by_ref().collect::<Vec<_>>())?), count),
            "expand" => match arguments.next().as_deref() {
                None => (Function::Expand { nulls: false }, 0),
                Some("nulls") => (Function::Expand { nulls: true }, 1),
                Some(_) => return Err("expand takes 'nulls' or nothing".to_owned()),
            },
            "strip" if count > 0 => (Function::Strip(arguments.by_ref().collect()), count),
            "strip" => return Err("strip takes the members to be left out".to_owned()),
            "default" => (Function::Default(arguments.next().unwrap_or_default()), 1),
            "replace" => {
                let (from, to) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
                (Function::Replace { from, to }, 2)
            }
            "match" => {
                let (expression, to) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
                // As a whole, which is what Debezium's route.topic.regex means too.
                let whole = Regex::new(&format!("^(?:{expression})$"));
                let whole = whole.map_err(|error| format!("{expression:?} is no regular expression: {error}"))?;
                let first = match arguments.next().as_deref() {
                    None => None,
                    Some("first") => Regex::new(&expression).ok(),
                    Some(_) => return Err("match takes 'first' or nothing behind its two texts".to_owned()),
                };
                let takes = 2 + usize::from(first.is_some());
                (Function::Match { whole, first, to }, takes)
            }
            _ => return Err(format!("there is no function {name}; there are {KNOWN}")),
        };
        if count != takes {
            let s = if takes == 1 { "" } else { "s" };
            return Err(format!("{name} takes {takes} argument{s}, not {count}"));
        }
        if matches!(&function, Function::Replace { from, .. } if from.is_empty()) {
            return Err("replace needs something to be replaced".to_owned());
        }
        Ok(function)
    }

    /// Applies it to a value of a column `of` this type; `None` is NULL.
    ///
    /// # Errors
    /// What the value should be.
    pub(super) fn apply<'v>(
        &self,
        value: Option<Cow<'v, str>>,
        of: ColumnType,
    ) -> Result<Option<Cow<'v, str>>, Needed> {
        if let Function::Connect(form) = self {
            return form.write(value, of);
        }
        let Some(value) = value else {
            let default = if let Function::Default(text) = self { Some(text) } else { None };
            return Ok(default.map(|text| Cow::Owned(text.clone())));
        };
        Ok(Some(match self {
            Function::Default(_) | Function::Text | Function::Connect(_) => value,
            // As Java trims.
            Function::Filled if value.chars().all(|c| c <= ' ') => return Ok(None),
            Function::Filled => value,
            Function::Expand { nulls } => Cow::Owned(expand(&value, *nulls)?),
            Function::Json => {
                json::valid(&value)?;
                value
            }
            Function::Strip(members) => Cow::Owned(json::without(&value, members)?),
            Function::Compact => Cow::Owned(json::compact(&value)?),
            Function::Sort => Cow::Owned(json::sorted(&value)?),
            Function::Rfc3339 => Cow::Owned(rfc3339(&value)?),
            Function::Lower => Cow::Owned(value.to_lowercase()),
            Function::Upper => Cow::Owned(value.to_uppercase()),
            Function::Replace { from, to } => Cow::Owned(value.replace(from, to)),
            Function::Topic => {
                let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
                Cow::Owned(value.chars().map(|c| if allowed(c) { c } else { '_' }).collect())
            }
            Function::Match { whole, .. } if !whole.is_match(&value) => value,
            Function::Match { whole, first, to } => {
                Cow::Owned(first.as_ref().unwrap_or(whole).replace(&value, to).into_owned())
            }
        }))
    }

    /// Whether it leaves a value that is not NULL as it is, and so of its type.
    pub(super) fn keeps_type(&self) -> bool {
        matches!(self, Function::Filled)
    }

    /// Whether what it gives is JSON to be embedded.
    pub(super) fn gives_json(&self) -> bool {
        if let Function::Connect(form) = self {
            return *form != Form::Text;
        }
        matches!(
            self,
            Function::Json | Function::Strip(_) | Function::Compact | Function::Sort | Function::Expand { .. }
        )
    }
}

fn rfc3339(text: &str) -> Result<String, Needed> {
    timestamp(text).map(|timestamp| timestamp.to_string()).ok_or("a timestamp")
}
