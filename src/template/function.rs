//! What can be done to a value on its way into a template.

use std::borrow::Cow;

use regex::Regex;

/// A function with its arguments.
#[derive(Debug, Clone)]
pub(super) enum Function {
    Lower,
    Upper,
    Default(String),
    Replace { from: String, to: String },
    Topic,
    Match { whole: Regex, to: String },
}

const KNOWN: &str = "lower, upper, default('…'), replace('…', '…'), topic, match('…', '…')";

impl Function {
    /// # Errors
    /// What is wrong, for people.
    pub(super) fn new(name: &str, arguments: Vec<String>) -> Result<Function, String> {
        let count = arguments.len();
        let mut arguments = arguments.into_iter();
        let mut next = || arguments.next().unwrap_or_default();
        let (function, takes) = match name {
            "lower" => (Function::Lower, 0),
            "upper" => (Function::Upper, 0),
            "topic" => (Function::Topic, 0),
            "default" => (Function::Default(next()), 1),
            "replace" => (Function::Replace { from: next(), to: next() }, 2),
            "match" => {
                let (expression, to) = (next(), next());
                // As a whole, which is what Debezium's route.topic.regex means too.
                let whole = Regex::new(&format!("^(?:{expression})$"));
                let whole = whole.map_err(|error| format!("{expression:?} is no regular expression: {error}"))?;
                (Function::Match { whole, to }, 2)
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

    /// Applies it; `None` is NULL.
    pub(super) fn apply<'v>(&self, value: Option<Cow<'v, str>>) -> Option<Cow<'v, str>> {
        let Some(value) = value else {
            return match self {
                Function::Default(text) => Some(Cow::Owned(text.clone())),
                _ => None,
            };
        };
        Some(match self {
            Function::Default(_) => value,
            Function::Lower => Cow::Owned(value.to_lowercase()),
            Function::Upper => Cow::Owned(value.to_uppercase()),
            Function::Replace { from, to } => Cow::Owned(value.replace(from, to)),
            Function::Topic => {
                let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
                Cow::Owned(value.chars().map(|c| if allowed(c) { c } else { '_' }).collect())
            }
            Function::Match { whole, to } => match whole.captures(&value) {
                None => value,
                Some(captures) => {
                    let mut text = String::new();
                    captures.expand(to, &mut text);
                    Cow::Owned(text)
                }
            },
        })
    }
}
