//! Functions of templates.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

use regex::Regex;

use super::java::of_java;
use super::json;
use super::value::{ColumnType, Moment};

/// An error is what the value should be instead.
type OfText = dyn for<'v> Fn(Cow<'v, str>) -> Result<Cow<'v, str>, &'static str> + Send + Sync;

#[derive(Clone)]
pub(super) enum Function {
    /// In place of NULL.
    Default(String),
    /// NULL where there are blanks only, as Java trims.
    Filled,
    /// Of another crate.
    Extended(Extended),
    /// JSON, to be embedded as it stands.
    Json(Arc<OfText>),
    /// Text, to be quoted in JSON, whatever the column's type.
    Text(Arc<OfText>),
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Function")
    }
}

/// A function of templates that another crate provides: see [`extend`].
#[derive(Debug)]
pub struct Extension {
    /// Its name.
    pub name: &'static str,
    /// How it is written, for messages.
    pub usage: &'static str,
    /// Makes it of its arguments; an error is what they should be.
    pub make: fn(&[&str]) -> Result<Extended, String>,
}

/// The text of a value; none of NULL.
pub type Nullable<'v> = Option<Cow<'v, str>>;

/// A value of a column of this type in another form. An error is what the value should be instead.
pub type OfValue =
    dyn for<'v> Fn(Nullable<'v>, ColumnType) -> Result<Nullable<'v>, &'static str> + Send + Sync;

/// A function of an [`Extension`] with its arguments.
#[derive(Clone)]
pub struct Extended {
    /// Whether it gives JSON, to be embedded as it stands.
    pub gives_json: bool,
    /// What it does.
    pub apply: Arc<OfValue>,
}

static EXTENSIONS: OnceLock<&'static [Extension]> = OnceLock::new();

/// Adds functions to those of templates. Call before a template is parsed; only the first call
/// counts.
pub fn extend(with: &'static [Extension]) {
    EXTENSIONS.get_or_init(|| with);
}

fn extensions() -> &'static [Extension] {
    EXTENSIONS.get().copied().unwrap_or_default()
}

fn no_function(name: &str) -> String {
    let forms = FORMS
        .split(' ')
        .chain(extensions().iter().map(|extension| extension.usage));
    format!(
        "there is no function {name}; there are {}",
        forms.collect::<Vec<_>>().join(", ")
    )
}

const FORMS: &str = "lower upper default('…') replace('…','…') topic match('…','…') json text \
                     strip('…',…) compact sort \
                     rfc3339 filled";

fn text(
    of: impl for<'v> Fn(Cow<'v, str>) -> Result<Cow<'v, str>, &'static str> + Send + Sync + 'static,
) -> Function {
    Function::Text(Arc::new(of))
}

fn to_json(of: impl Fn(&str) -> Result<String, &'static str> + Send + Sync + 'static) -> Function {
    Function::Json(Arc::new(move |value| of(&value).map(Cow::Owned)))
}

/// What `match` replaces of a value that matches as a whole.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Replaces {
    Whole,
    /// The first place that matches, as Java does.
    First,
}

/// The function `match`; an error is what is wrong with its expression.
fn matching(expression: &str, to: &str, replaces: Replaces) -> Result<Function, String> {
    // As a whole, which is what Debezium's route.topic.regex means too.
    let whole = Regex::new(&format!("^(?:{expression})$"))
        .map_err(|error| format!("{expression:?} is no regular expression: {error}"))?;
    let replaced = match replaces {
        Replaces::Whole => None,
        Replaces::First => Regex::new(expression).ok(),
    };
    let replaced = replaced.unwrap_or_else(|| whole.clone());
    let to = to.to_owned();
    Ok(text(move |value| match whole.is_match(&value) {
        true => Ok(replaced.replace(&value, &to).into_owned().into()),
        false => Ok(value),
    }))
}

/// The function `name` of another crate; an error is how a known one is written, or which there
/// are.
fn extension(name: &str, words: &[&str]) -> Result<Function, String> {
    if let Some(extension) = extensions().iter().find(|extension| extension.name == name) {
        return Ok(Function::Extended((extension.make)(words)?));
    }
    let form = FORMS
        .split(' ')
        .find(|form| form.split('(').next() == Some(name));
    Err(match form {
        Some(form) => format!("the function {name} is written {form}"),
        None => no_function(name),
    })
}

impl Function {
    pub(super) fn new(name: &str, arguments: Vec<String>) -> Result<Function, String> {
        let texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Ok(match (name, texts.as_slice()) {
            ("default", [text]) => Function::Default((*text).to_owned()),
            ("filled", []) => Function::Filled,
            ("text", []) => text(|value| Ok(value)),
            ("lower", []) => text(|value| Ok(value.to_lowercase().into())),
            ("upper", []) => text(|value| Ok(value.to_uppercase().into())),
            ("topic", []) => {
                let is_forbidden =
                    |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
                text(move |value| Ok(value.replace(is_forbidden, "_").into()))
            }
            ("rfc3339", []) => text(|value| {
                Ok(Moment::read(&value)
                    .and_then(Moment::rfc3339)
                    .ok_or("a timestamp")?
                    .into())
            }),
            ("replace", ["", _]) => return Err("replace needs something to be replaced".to_owned()),
            ("replace", [from, to]) => {
                let from = (*from).to_owned();
                let to = (*to).to_owned();
                text(move |value| Ok(value.replace(&from, &to).into()))
            }
            ("match", [expression, to]) => matching(expression, to, Replaces::Whole)?,
            ("match", [expression, to, "first"]) => matching(expression, to, Replaces::First)?,
            ("match", [expression, to, "java"]) => {
                let expression = of_java(expression).ok_or_else(|| {
                    format!(
                        "{expression:?} has something that only Java's expressions have, such as \
                         (?=…), a++ or \\p{{…}}"
                    )
                })?;
                matching(&expression, to, Replaces::First)?
            }
            ("json", []) => Function::Json(Arc::new(|value| json::valid(&value).map(|()| value))),
            ("compact", []) => to_json(json::compact),
            ("sort", []) => to_json(json::sorted),
            ("strip", [_, ..]) => to_json(move |value| json::without(value, &arguments)),
            (name, words) => extension(name, words)?,
        })
    }

    /// Applies it to a value of a column `of` this type.
    pub(super) fn apply<'v>(
        &self,
        value: Nullable<'v>,
        of: ColumnType,
    ) -> Result<Nullable<'v>, &'static str> {
        match self {
            Function::Default(text) => Ok(Some(value.unwrap_or_else(|| Cow::Owned(text.clone())))),
            Function::Filled => Ok(value.filter(|value| value.chars().any(|c| c > ' '))),
            Function::Extended(function) => (function.apply)(value, of),
            Function::Json(function) | Function::Text(function) => {
                value.map(|value| function(value)).transpose()
            }
        }
    }

    pub(super) fn gives_json(&self) -> bool {
        match self {
            Function::Extended(function) => function.gives_json,
            Function::Json(_) => true,
            Function::Default(_) | Function::Filled | Function::Text(_) => false,
        }
    }
}
