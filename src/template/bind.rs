//! A template whose columns were found in a table.

use std::borrow::Cow;

use super::connect::ColumnType;
use super::function::Function;
use super::json::member;
use super::typed::TypedValues;
use super::{Part, Template};

/// A column the template needs is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("template {template:?} needs column {column:?}, which is not there")]
pub struct UnknownColumn {
    /// The template as it was written.
    pub template: String,
    /// The column.
    pub column: String,
}

/// Why a row does not fit a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderError {
    /// Where the value stands.
    pub place: usize,
    /// What it should be: UTF-8 text, JSON, a timestamp.
    pub needed: &'static str,
}

/// The values of a row: `None` where the one in that place is NULL.
pub trait Values {
    /// The text form of the value in this place, as Postgres sent it.
    fn value(&self, place: usize) -> Option<&[u8]>;
}

/// A template bound to a table: columns are places.
#[derive(Debug, Clone)]
pub struct Bound {
    pub(super) kind: Kind,
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    /// Text alone.
    Constant(String),
    /// One column as it is: nothing is copied, and it need not be UTF-8.
    Column(usize),
    Parts(Vec<BoundPart>),
}

#[derive(Debug, Clone)]
pub(super) enum BoundPart {
    Text(String),
    Field { place: usize, path: Vec<String>, functions: Vec<Function> },
}

impl Template {
    /// Finds the columns: `place` says where one stands.
    ///
    /// # Errors
    /// The first that is not there.
    pub fn bind(&self, place: impl Fn(&str) -> Option<usize>) -> Result<Bound, UnknownColumn> {
        let find = |column: &str| {
            place(column).ok_or_else(|| UnknownColumn { template: self.source.clone(), column: column.to_owned() })
        };
        let kind = match self.parts.as_slice() {
            [] => Kind::Constant(String::new()),
            [Part::Text(text)] => Kind::Constant(text.clone()),
            [Part::Field(field)] if field.path.is_empty() && field.functions.is_empty() => {
                Kind::Column(find(&field.column)?)
            }
            parts => Kind::Parts(
                parts
                    .iter()
                    .map(|part| match part {
                        Part::Text(text) => Ok(BoundPart::Text(text.clone())),
                        Part::Field(field) => Ok(BoundPart::Field {
                            place: find(&field.column)?,
                            path: field.path.clone(),
                            functions: field.functions.clone(),
                        }),
                    })
                    .collect::<Result<_, UnknownColumn>>()?,
            ),
        };
        Ok(Bound { kind })
    }
}

impl Bound {
    /// The place of the one column this is as it stands, if it is that.
    pub fn column(&self) -> Option<usize> {
        if let Kind::Column(place) = self.kind { Some(place) } else { None }
    }

    /// The places it reads.
    pub fn places(&self) -> impl Iterator<Item = usize> {
        let (one, many) = match &self.kind {
            Kind::Constant(_) => (None, [].as_slice()),
            Kind::Column(place) => (Some(*place), [].as_slice()),
            Kind::Parts(parts) => (None, parts.as_slice()),
        };
        one.into_iter().chain(many.iter().filter_map(|part| match part {
            BoundPart::Text(_) => None,
            BoundPart::Field { place, .. } => Some(*place),
        }))
    }

    /// The value for a row; `None` is NULL. Allocates only where it is put together.
    ///
    /// # Errors
    /// [`RenderError`]: which value is not what the template needs.
    pub fn render<'v>(&'v self, values: &'v impl TypedValues) -> Result<Option<Cow<'v, [u8]>>, RenderError> {
        match &self.kind {
            Kind::Constant(text) => Ok(Some(Cow::Borrowed(text.as_bytes()))),
            Kind::Column(place) => Ok(values.value(*place).map(Cow::Borrowed)),
            Kind::Parts(parts) => {
                let mut rendered = String::new();
                for part in parts {
                    match part {
                        BoundPart::Text(text) => rendered.push_str(text),
                        BoundPart::Field { place, path, functions } => match field(values, *place, path, functions)? {
                            Some(text) => rendered.push_str(&text),
                            None => return Ok(None),
                        },
                    }
                }
                Ok(Some(Cow::Owned(rendered.into_bytes())))
            }
        }
    }
}

/// What the functions make of the value in `place`, or of a member of it.
pub(super) fn field<'v>(
    values: &'v impl TypedValues,
    place: usize,
    path: &[String],
    functions: &[Function],
) -> Result<Option<Cow<'v, str>>, RenderError> {
    let not = |needed| RenderError { place, needed };
    let value = values.value(place);
    let value = value.map(|value| std::str::from_utf8(value).map_err(|_| not("UTF-8 text"))).transpose()?;
    let (mut value, mut of) = match value {
        Some(text) if !path.is_empty() => (member(text, path).map_err(|_| not("JSON"))?, ColumnType::TEXT),
        Some(text) => (Some(Cow::Borrowed(text)), values.column_type(place)),
        None => (None, values.column_type(place)),
    };
    for function in functions {
        value = function.apply(value, of).map_err(not)?;
        if !function.keeps_type() {
            of = ColumnType::TEXT;
        }
    }
    Ok(value)
}
