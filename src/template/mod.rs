//! Text made of columns: `outbox.event.{aggregatetype|lower}`.
//!
//! What a template may hold, outside braces text as it is (`{{` and `}}` are braces), inside braces one field:
//!
//! | form | its value |
//! |---|---|
//! | `{column}` | the column's text |
//! | `{"Odd Column"}` | a column whose name is not made of letters, digits and `_` alone; `""` is a quote |
//! | `{metadata.tenant}` | the member `tenant` of the JSON object in column `metadata`: a string unquoted, anything else as JSON |
//! | `{column\|lower}`, `\|upper` | in lower or upper case, as Unicode has it |
//! | `{column\|default('none')}` | `none` where the column is NULL |
//! | `{column\|replace('/', '-')}` | with every `/` as `-` |
//! | `{column\|topic}` | with every character that Kafka forbids in a topic as `_` |
//! | `{column\|match('(.*)Created', '$1')}` | where the whole value matches the expression, the second text instead |
//! | `{column\|strip('a', 'b')}` | the JSON object without these members |
//! | `{column\|compact}` | the JSON without blanks between its parts |
//! | `{column\|sort}` | the same, and the members of its objects in the order of their names |
//! | `{column\|rfc3339}` | the timestamp as `2024-05-06T05:08:09.123456Z` |
//! | `{column\|filled}` | NULL where there is nothing but blanks |
//! | `{column\|connect('json')}` | the value as a converter of Kafka Connect writes it, by the column's type |
//! | `{column\|expand}` | the JSON as Kafka Connect writes it again |
//! | `{column\|json}`, `\|text` | in an envelope: embedded as JSON, or quoted, whatever the column's type is |
//!
//! A NULL without a `default` makes the whole value NULL: no key, a header without a value, and no topic at all.
//! Parsing needs no table; [`Template::bind`] finds the columns in one.

mod bind;
mod connect;
mod function;
mod json;
mod parse;
mod value;

use std::str::FromStr;

pub(crate) use bind::{Bound, RenderError, TypedValues, UnknownColumn, Values};
use function::Function;
pub(crate) use json::{members, text_of};
pub(crate) use value::{ColumnType, bytea, timestamp};

/// A parsed template.
#[derive(Debug, Clone)]
pub struct Template {
    source: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
enum Part {
    Text(String),
    Field(Field),
}

#[derive(Debug, Clone)]
struct Field {
    column: String,
    /// Members to go down to, where the column holds a JSON object.
    path: Vec<String>,
    functions: Vec<Function>,
}

/// The text is no template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("template {template:?}, at character {at}: {what}")]
pub struct TemplateError {
    template: String,
    /// Counted from 1.
    at: usize,
    what: String,
}

impl Template {
    /// A template that is one column as it is.
    pub fn column(name: &str) -> Template {
        let field = Field { column: name.to_owned(), path: Vec::new(), functions: Vec::new() };
        Template { source: field.to_string(), parts: vec![Part::Field(field)] }
    }

    /// A template that is `prefix`, as it stands, and a column.
    pub fn prefixed(prefix: &str, column: &str) -> Template {
        let mut template = Template::column(column);
        if !prefix.is_empty() {
            template.source.insert_str(0, &prefix.replace('{', "{{").replace('}', "}}"));
            template.parts.insert(0, Part::Text(prefix.to_owned()));
        }
        template
    }

    /// The template as it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The columns it needs, in order of appearance.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Field(field) => Some(field.column.as_str()),
        })
    }

    /// Finds the columns: `place` says where one stands.
    ///
    /// # Errors
    /// The first that is not there.
    pub fn bind(&self, place: impl Fn(&str) -> Option<usize>) -> Result<Bound, UnknownColumn> {
        let unknown = |column: &str| UnknownColumn { template: self.source.clone(), column: column.to_owned() };
        Bound::new(&self.parts, |column| place(column).ok_or_else(|| unknown(column)))
    }
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let parts = parse::Parser::new(text).template()?;
        Ok(Template { source: text.to_owned(), parts })
    }
}

impl std::fmt::Display for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plain = self.column.chars().all(parse::is_plain) && !self.column.is_empty();
        if plain { write!(f, "{{{}}}", self.column) } else { write!(f, "{{\"{}\"}}", self.column.replace('"', "\"\"")) }
    }
}

#[cfg(test)]
mod tests;
