//! Text made of columns: `outbox.event.{aggregatetype|lower}`.
//!
//! Text outside braces is copied; `{{` and `}}` are braces. Braces contain one field:
//!
//! | form | value |
//! |---|---|
//! | `{column}` | the column's text |
//! | `{"Odd Column"}` | a column with other characters than letters, digits, `_`; `""` is a quote |
//! | `{metadata.tenant}` | member `tenant` of the JSON in column `metadata`; strings unquoted |
//! | `{column\|lower}`, `\|upper` | in lower or upper case, as Unicode has it |
//! | `{column\|default('none')}` | `none` where the column is NULL |
//! | `{column\|replace('/', '-')}` | with every `/` as `-` |
//! | `{column\|topic}` | with every character that the bus forbids in a topic as `_` |
//! | `{column\|match('(.*)Created', '$1')}` | the second text, where the whole value matches |
//! | `{column\|match('(?i)(.*)created', '$1', 'java')}` | the same with an expression of Java |
//! | `{column\|strip('a', 'b')}` | the JSON object without these members |
//! | `{column\|compact}` | the JSON without blanks between its parts |
//! | `{column\|sort}` | the same, and the members of its objects in the order of their names |
//! | `{column\|rfc3339}` | the timestamp as `2024-05-06T05:08:09.123456Z` |
//! | `{column\|filled}` | NULL where there is nothing but blanks |
//! | `{column\|json}`, `\|text` | in an envelope: embedded as JSON, or quoted, for any type |
//!
//! A NULL without a `default` makes the whole value NULL: no key, a header without a value, and no
//! topic at all. Another crate may add functions: [`extend`]. Parsing needs no table;
//! [`Template::bind`] finds the columns in one.

mod bind;
mod function;
mod java;
mod json;
mod value;

use std::str::FromStr;

pub use bind::{Bound, RenderError, UnknownColumn, Values};
use function::Function;
pub use function::{Extended, Extension, Nullable, OfValue, extend};
pub use java::of_java;
pub(crate) use json::each_member;
pub use json::{members, text_of, tokens};
pub use value::{ColumnType, Moment, bytea, micros_of_day, offset_micros};

/// A template; see the module's documentation.
#[derive(Debug, Clone)]
pub struct Template {
    source: String,
    parts: Vec<Part<String>>,
}

/// A part of a template. Columns are names, or places where the template is bound.
#[derive(Debug, Clone)]
enum Part<C> {
    Text(String),
    Field(Field<C>),
}

#[derive(Debug, Clone)]
struct Field<C> {
    column: C,
    /// Members to go down to, where the column holds a JSON object.
    path: Vec<String>,
    functions: Vec<Function>,
}

/// A text that is no template, and where.
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
        let plain = name.chars().all(is_plain) && !name.is_empty();
        let source = if plain {
            format!("{{{name}}}")
        } else {
            format!("{{\"{}\"}}", name.replace('"', "\"\""))
        };
        let field = Field {
            column: name.to_owned(),
            path: Vec::new(),
            functions: Vec::new(),
        };
        Template {
            source,
            parts: vec![Part::Field(field)],
        }
    }

    /// The text of a template of one column, with what is `behind` the column's name: members and
    /// functions.
    pub fn written(name: &str, behind: &str) -> String {
        let column = Template::column(name);
        format!(
            "{}{behind}}}",
            column.source.strip_suffix('}').unwrap_or_default()
        )
    }

    /// A template that is `prefix`, as it stands, and a column.
    pub fn prefixed(prefix: &str, column: &str) -> Template {
        let mut template = Template::column(column);
        if !prefix.is_empty() {
            template
                .source
                .insert_str(0, &prefix.replace('{', "{{").replace('}', "}}"));
            template.parts.insert(0, Part::Text(prefix.to_owned()));
        }
        template
    }

    /// The text of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text of each event; none where a column makes it.
    pub fn constant(&self) -> Option<String> {
        let text = |part: &Part<String>| match part {
            Part::Text(text) => Some(text.clone()),
            Part::Field(_) => None,
        };
        self.parts.iter().map(text).collect()
    }

    /// The names of its columns.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Field(field) => Some(field.column.as_str()),
        })
    }

    /// Finds the columns: `place` gives the place of one.
    ///
    /// # Errors
    /// The first that is not there.
    pub fn bind(&self, place: impl Fn(&str) -> Option<usize>) -> Result<Bound, UnknownColumn> {
        Bound::new(&self.source, &self.parts, place)
    }
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let parts = Parser {
            template: text,
            rest: text,
        }
        .parts()?;
        Ok(Template {
            source: text.to_owned(),
            parts,
        })
    }
}

/// Whether a column's name may have this character without quotes.
fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

struct Parser<'t> {
    template: &'t str,
    rest: &'t str,
}

impl Parser<'_> {
    fn parts(mut self) -> Result<Vec<Part<String>>, TemplateError> {
        let mut parts = Vec::new();
        let mut text = String::new();
        while let Some(c) = self.rest.chars().next() {
            if self.take("{{") {
                text.push('{');
            } else if self.take("}}") {
                text.push('}');
            } else if self.take("{") {
                if !text.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut text)));
                }
                parts.push(Part::Field(self.field()?));
            } else if c == '}' {
                return Err(self.wrong("a } without its {; write }} for the character"));
            } else {
                text.push(c);
                self.advance(c);
            }
        }
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        Ok(parts)
    }

    fn field(&mut self) -> Result<Field<String>, TemplateError> {
        let column = self.name("a column")?;
        let mut field = Field {
            column,
            path: Vec::new(),
            functions: Vec::new(),
        };
        while self.take(".") {
            field.path.push(self.name("a member of the JSON object")?);
        }
        loop {
            self.blanks();
            if self.take("}") {
                return Ok(field);
            }
            if !self.take("|") {
                return Err(self.wrong(
                    "a | or } is expected here; a name with other characters than letters, digits \
                     and _ is in double quotes, as \
                     in {\"Event Id\"}",
                ));
            }
            self.blanks();
            field.functions.push(self.function()?);
        }
    }

    fn function(&mut self) -> Result<Function, TemplateError> {
        let before = self.rest;
        let name = self.name("a function")?;
        let mut arguments = Vec::new();
        if self.take("(") {
            loop {
                self.blanks();
                arguments.push(self.quoted("'", "a text in single quotes is expected here")?);
                self.blanks();
                if self.take(")") {
                    break;
                }
                if !self.take(",") {
                    return Err(self.wrong("a , or ) is expected here"));
                }
            }
        }
        Function::new(&name, arguments).map_err(|what| {
            self.rest = before;
            self.wrong(&what)
        })
    }

    /// A name, in double quotes where it is odd.
    fn name(&mut self, what: &str) -> Result<String, TemplateError> {
        self.blanks();
        if self.rest.starts_with('"') {
            return self.quoted("\"", "a name is expected here");
        }
        let end = self.rest.find(|c| !is_plain(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        if name.is_empty() {
            return Err(self.wrong(&format!("the name of {what} is expected here")));
        }
        self.rest = rest;
        Ok(name.to_owned())
    }

    /// A text between quotes; two of them in a row are one.
    fn quoted(&mut self, quote: &str, missing: &str) -> Result<String, TemplateError> {
        let before = self.rest;
        if !self.take(quote) {
            return Err(self.wrong(missing));
        }
        let mut text = String::new();
        while let Some(c) = self.rest.chars().next() {
            if self.take(quote) {
                if !self.take(quote) {
                    return Ok(text);
                }
                text.push_str(quote);
            } else {
                text.push(c);
                self.advance(c);
            }
        }
        self.rest = before;
        Err(self.wrong("the quote that begins here does not end"))
    }

    fn blanks(&mut self) {
        self.rest = self.rest.trim_start_matches(' ');
    }

    fn take(&mut self, token: &str) -> bool {
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn advance(&mut self, c: char) {
        self.rest = self.rest.get(c.len_utf8()..).unwrap_or_default();
    }

    fn wrong(&self, what: &str) -> TemplateError {
        let passed = self.template.len() - self.rest.len();
        let at = self
            .template
            .get(..passed)
            .map_or(0, |before| before.chars().count())
            + 1;
        TemplateError {
            template: self.template.to_owned(),
            at,
            what: what.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
