//! Functions of templates.

use std::borrow::Cow;

use regex::Regex;

use super::connect::{ColumnType, Form, Moment};
use super::expand::expand;
use super::json;

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
    Strip(Vec<String>),
    Compact,
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

const FORMS: &str = "lower upper default('…') replace('…','…') topic match('…','…') json text strip('…',…) compact sort \
                     rfc3339 filled connect('…',…) expand";

impl Function {
    pub(super) fn new(name: &str, arguments: Vec<String>) -> Result<Function, String> {
        let texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Ok(match (name, texts.as_slice()) {
            ("lower", []) => Function::Lower,
            ("upper", []) => Function::Upper,
            ("topic", []) => Function::Topic,
            ("json", []) => Function::Json,
            ("text", []) => Function::Text,
            ("compact", []) => Function::Compact,
            ("sort", []) => Function::Sort,
            ("rfc3339", []) => Function::Rfc3339,
            ("filled", []) => Function::Filled,
            ("connect", words) => Function::Connect(Form::new(words)?),
            ("expand", []) => Function::Expand { nulls: false },
            ("expand", ["nulls"]) => Function::Expand { nulls: true },
            ("strip", [_, ..]) => Function::Strip(arguments),
            ("default", [text]) => Function::Default((*text).to_owned()),
            ("replace", ["", _]) => return Err("replace needs something to be replaced".to_owned()),
            ("replace", [from, to]) => Function::Replace { from: (*from).to_owned(), to: (*to).to_owned() },
            ("match", [expression, to, rest @ ..]) if matches!(rest, [] | ["first"]) => {
                // As a whole, which is what Debezium's route.topic.regex means too.
                let whole = Regex::new(&format!("^(?:{expression})$"));
                let whole = whole.map_err(|error| format!("{expression:?} is no regular expression: {error}"))?;
                let first = if rest.is_empty() { None } else { Regex::new(expression).ok() };
                Function::Match { whole, first, to: (*to).to_owned() }
            }
            _ => {
                let form = FORMS.split(' ').find(|form| form.split('(').next() == Some(name));
                return Err(match form {
                    Some(form) => format!("the function {name} is written {form}"),
                    None => format!("there is no function {name}; there are {}", FORMS.replace(' ', ", ")),
                });
            }
        })
    }

    /// Applies it to a value of a column `of` this type; `None` is NULL.
    pub(super) fn apply<'v>(
        &self,
        value: Option<Cow<'v, str>>,
        of: ColumnType,
    ) -> Result<Option<Cow<'v, str>>, &'static str> {
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
            Function::Rfc3339 => Cow::Owned(Moment::read(&value).and_then(Moment::rfc3339).ok_or("a timestamp")?),
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
