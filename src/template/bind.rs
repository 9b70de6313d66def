//! A template whose columns were found in a table: its value for a row, as text and as JSON.

use std::borrow::Cow;

use super::Part;
use super::function::Function;
use super::json;
use super::value::ColumnType;

/// OIDs of types whose text is JSON, or nearly: <https://github.com/postgres/postgres/blob/master/src/include/catalog/pg_type.dat>
mod oid {
    pub(super) const BOOL: u32 = 16;
    pub(super) const NUMBERS: [u32; 7] = [20, 21, 23, 26, 700, 701, 1700];
    pub(super) const JSON: [u32; 2] = [114, 3802];
}

/// A column the template needs is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("template {template:?} needs column {column:?}, which is not there")]
pub struct UnknownColumn {
    /// The template as it was written.
    pub template: String,
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

/// The values of a row whose types are known.
pub trait TypedValues: Values {
    /// The type of the column in this place.
    fn column_type(&self, place: usize) -> ColumnType;

    /// Whether a value of type `json` in this place was found to be JSON, as Postgres finds for a column.
    fn is_checked(&self, _place: usize) -> bool {
        true
    }
}

/// A template bound to a table: columns are places.
#[derive(Debug, Clone)]
pub struct Bound {
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// Text alone.
    Constant(String),
    /// One column as it is: nothing is copied, and it need not be UTF-8.
    Column(usize),
    Parts(Vec<BoundPart>),
}

#[derive(Debug, Clone)]
enum BoundPart {
    Text(String),
    Field { place: usize, path: Vec<String>, functions: Vec<Function> },
}

impl Bound {
    /// `find` says where a column stands.
    pub(super) fn new(
        parts: &[Part],
        find: impl Fn(&str) -> Result<usize, UnknownColumn>,
    ) -> Result<Bound, UnknownColumn> {
        let bound = |part: &Part| match part {
            Part::Text(text) => Ok(BoundPart::Text(text.clone())),
            Part::Field(field) => Ok(BoundPart::Field {
                place: find(&field.column)?,
                path: field.path.clone(),
                functions: field.functions.clone(),
            }),
        };
        let kind = match parts {
            [] => Kind::Constant(String::new()),
            [Part::Text(text)] => Kind::Constant(text.clone()),
            [Part::Field(field)] if field.path.is_empty() && field.functions.is_empty() => {
                Kind::Column(find(&field.column)?)
            }
            parts => Kind::Parts(parts.iter().map(bound).collect::<Result<_, _>>()?),
        };
        Ok(Bound { kind })
    }

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

    /// Appends the value for a row as JSON: a `json` or `jsonb` column and a member of one as they stand, numbers and
    /// truth values as such, NULL as `null`, everything else as a string.
    ///
    /// # Errors
    /// [`RenderError`]: which value is not what the template needs.
    pub fn append_json(&self, values: &impl TypedValues, into: &mut Vec<u8>) -> Result<(), RenderError> {
        match &self.kind {
            Kind::Column(place) => {
                let as_it_is = |text: &str| stands_alone(values.column_type(*place).oid, text);
                let text = field(values, *place, &[], &[])?;
                if let Some(text) = text.as_deref().filter(|_| !values.is_checked(*place)) {
                    json::valid(text).map_err(|needed| RenderError { place: *place, needed })?;
                }
                append(text.as_deref(), as_it_is, into);
            }
            Kind::Parts(parts) => match parts.as_slice() {
                // What a member is, its own text says.
                [BoundPart::Field { place, path, functions }] if functions.is_empty() => {
                    let text = field(values, *place, &[], &[])?;
                    let member = text.as_deref().map(|text| json::raw_member(text, path));
                    let member = member.transpose().map_err(|_| RenderError { place: *place, needed: "JSON" })?;
                    into.extend_from_slice(member.flatten().unwrap_or("null").as_bytes());
                }
                [BoundPart::Field { place, path, functions }] => {
                    let is_json = functions.last().is_some_and(Function::gives_json);
                    let as_it_is = |_: &str| is_json;
                    append(field(values, *place, path, functions)?.as_deref(), as_it_is, into);
                }
                _ => self.append_text(values, into)?,
            },
            Kind::Constant(_) => self.append_text(values, into)?,
        }
        Ok(())
    }

    fn append_text(&self, values: &impl TypedValues, into: &mut Vec<u8>) -> Result<(), RenderError> {
        let rendered = self.render(values)?;
        let text = rendered.as_deref().map(|bytes| String::from_utf8_lossy(bytes));
        append(text.as_deref(), |_| false, into);
        Ok(())
    }
}

/// What the functions make of the value in `place`, or of a member of it.
fn field<'v>(
    values: &'v impl TypedValues,
    place: usize,
    path: &[String],
    functions: &[Function],
) -> Result<Option<Cow<'v, str>>, RenderError> {
    let not = |needed| RenderError { place, needed };
    let value = values.value(place);
    let value = value.map(|value| std::str::from_utf8(value).map_err(|_| not("UTF-8 text"))).transpose()?;
    let (mut value, mut of) = match value {
        Some(text) if !path.is_empty() => (json::member(text, path).map_err(|_| not("JSON"))?, ColumnType::TEXT),
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

fn append(text: Option<&str>, as_it_is: impl Fn(&str) -> bool, into: &mut Vec<u8>) {
    match text {
        None => into.extend_from_slice(b"null"),
        Some(text) if as_it_is(text) => into.extend_from_slice(truth(text).unwrap_or(text).as_bytes()),
        Some(text) => into.extend_from_slice(json::quoted(text).as_bytes()),
    }
}

/// Whether a value of this type is JSON as it stands, or as [`truth`] has it. `NaN` and `Infinity` are not.
fn stands_alone(type_oid: u32, text: &str) -> bool {
    match type_oid {
        oid::BOOL => truth(text).is_some(),
        number if oid::NUMBERS.contains(&number) => text.ends_with(|c: char| c.is_ascii_digit()),
        other => oid::JSON.contains(&other),
    }
}

/// Postgres' form of a truth value in JSON's.
fn truth(text: &str) -> Option<&'static str> {
    match text {
        "t" => Some("true"),
        "f" => Some("false"),
        _ => None,
    }
}
