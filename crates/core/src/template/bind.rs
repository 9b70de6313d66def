//! A template whose columns were found in a table: its value for a row, as text and as JSON.

use std::borrow::Cow;

use super::function::Function;
use super::value::ColumnType;
use super::{Field, Part, json};

/// The values of a row and their types, by place.
pub trait Values {
    /// The text form of the value, as Postgres sent it; `None` is NULL.
    fn value(&self, place: usize) -> Option<&[u8]>;

    /// The type of the column.
    fn column_type(&self, place: usize) -> ColumnType;

    /// Whether a value of type `json` was found to be JSON, as Postgres finds for a column.
    fn is_checked(&self, _place: usize) -> bool {
        true
    }
}

/// A template needs a column that the table lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("template {template:?} needs column {column:?}, which is not there")]
pub struct UnknownColumn {
    /// The template.
    pub template: String,
    /// The column.
    pub column: String,
}

/// A value is not what a template needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderError {
    /// The template.
    pub template: String,
    /// The place of the column.
    pub place: usize,
    /// The expected form: UTF-8 text, JSON, a timestamp.
    pub needed: &'static str,
}

/// A template bound to a table: columns are places.
#[derive(Debug, Clone)]
pub struct Bound {
    source: String,
    parts: Vec<Part<usize>>,
}

impl Bound {
    pub(super) fn new(
        source: &str,
        parts: &[Part<String>],
        place: impl Fn(&str) -> Option<usize>,
    ) -> Result<Bound, UnknownColumn> {
        let bound = |part: &Part<String>| match part {
            Part::Text(text) => Ok(Part::Text(text.clone())),
            Part::Field(Field {
                column,
                path,
                functions,
            }) => {
                let unknown = || UnknownColumn {
                    template: source.to_owned(),
                    column: column.clone(),
                };
                let column = place(column).ok_or_else(unknown)?;
                Ok(Part::Field(Field {
                    column,
                    path: path.clone(),
                    functions: functions.clone(),
                }))
            }
        };
        Ok(Bound {
            source: source.to_owned(),
            parts: parts.iter().map(bound).collect::<Result<_, _>>()?,
        })
    }

    /// The text of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The place of the one column this is as it stands, if it is that.
    pub fn column(&self) -> Option<usize> {
        match self.parts.as_slice() {
            [Part::Field(field)] if field.path.is_empty() && field.functions.is_empty() => {
                Some(field.column)
            }
            _ => None,
        }
    }

    /// The places of its columns.
    pub fn places(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Field(field) => Some(field.column),
        })
    }

    /// The error of a value that is not `needed`.
    pub fn error(&self, place: usize, needed: &'static str) -> RenderError {
        RenderError {
            template: self.source.clone(),
            place,
            needed,
        }
    }

    /// The value for a row; `None` is NULL. Allocates only where it is put together: a column as it
    /// is need not be UTF-8. Errors: [`RenderError`]: which value is not what the template needs.
    pub fn render<'v>(
        &'v self,
        values: &'v impl Values,
    ) -> Result<Option<Cow<'v, [u8]>>, RenderError> {
        if let Some(place) = self.column() {
            return Ok(values.value(place).map(Cow::Borrowed));
        }
        if let [Part::Text(text)] = self.parts.as_slice() {
            return Ok(Some(Cow::Borrowed(text.as_bytes())));
        }
        let mut rendered = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => rendered.push_str(text),
                Part::Field(field) => match self.field(field, values)? {
                    Some(text) => rendered.push_str(&text),
                    None => return Ok(None),
                },
            }
        }
        Ok(Some(Cow::Owned(rendered.into_bytes())))
    }

    /// Appends the value for a row as JSON: a `json` or `jsonb` column and a member of one as they
    /// stand, numbers and truth values as such, NULL as `null`, everything else as a string.
    /// Errors: [`RenderError`]: which value is not what the template needs.
    pub(crate) fn append_json(
        &self,
        values: &impl Values,
        into: &mut Vec<u8>,
    ) -> Result<(), RenderError> {
        let [Part::Field(field)] = self.parts.as_slice() else {
            let rendered = self.render(values)?;
            append(
                rendered.as_deref().map(String::from_utf8_lossy).as_deref(),
                false,
                into,
            );
            return Ok(());
        };
        let place = field.column;
        if let Some(last) = field.functions.last() {
            append(
                self.field(field, values)?.as_deref(),
                last.gives_json(),
                into,
            );
            return Ok(());
        }
        let Some(text) = self.text(place, values)? else {
            append(None, true, into);
            return Ok(());
        };
        if !field.path.is_empty() {
            // A member has no type but that of its own text.
            append(
                json::raw_member(text, &field.path).map_err(|_| self.error(place, "JSON"))?,
                true,
                into,
            );
            return Ok(());
        }
        if !values.is_checked(place) {
            json::valid(text).map_err(|needed| self.error(place, needed))?;
        }
        let json = as_json(values.column_type(place).oid, text);
        append(Some(json.unwrap_or(text)), json.is_some(), into);
        Ok(())
    }

    fn text<'v>(
        &self,
        place: usize,
        values: &'v impl Values,
    ) -> Result<Option<&'v str>, RenderError> {
        let text = values.value(place).map(std::str::from_utf8).transpose();
        text.map_err(|_| self.error(place, "UTF-8 text"))
    }

    fn field<'v>(
        &self,
        field: &Field<usize>,
        values: &'v impl Values,
    ) -> Result<Option<Cow<'v, str>>, RenderError> {
        let place = field.column;
        let not = |needed: &'static str| self.error(place, needed);
        let mut of = values.column_type(place);
        let mut value = match self.text(place, values)? {
            Some(text) if !field.path.is_empty() => {
                of = ColumnType::TEXT;
                json::member(text, &field.path).map_err(|_| not("JSON"))?
            }
            text => text.map(Cow::Borrowed),
        };
        for function in &field.functions {
            value = function.apply(value, of).map_err(not)?;
            // Any other leaves a text.
            if !matches!(function, Function::Filled) {
                of = ColumnType::TEXT;
            }
        }
        Ok(value)
    }
}

fn append(text: Option<&str>, is_json: bool, into: &mut Vec<u8>) {
    match text {
        None => into.extend_from_slice(b"null"),
        Some(text) if is_json => into.extend_from_slice(text.as_bytes()),
        Some(text) => into.extend_from_slice(json::quoted(text).as_bytes()),
    }
}

/// A value of this type as JSON; `None` where it has to be a string, such as `NaN` and `Infinity`.
/// OIDs: <https://github.com/postgres/postgres/blob/master/src/include/catalog/pg_type.dat>.
fn as_json(oid: u32, text: &str) -> Option<&str> {
    match (oid, text) {
        (16, "t") => Some("true"),
        (16, "f") => Some("false"),
        (20 | 21 | 23 | 26 | 700 | 701 | 1700, number) => {
            Some(number).filter(|_| number.ends_with(|c: char| c.is_ascii_digit()))
        }
        (114 | 3802, json) => Some(json),
        _ => None,
    }
}
