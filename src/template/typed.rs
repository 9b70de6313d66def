//! A template's value as JSON, by the type of its column.

use super::bind::{Bound, BoundPart, Kind, RenderError, Values, field};
use super::connect::ColumnType;
use super::function::Function;
use super::json;

/// OIDs of types whose text is JSON, or nearly: <https://github.com/postgres/postgres/blob/master/src/include/catalog/pg_type.dat>
mod oid {
    pub(super) const BOOL: u32 = 16;
    pub(super) const NUMBERS: [u32; 7] = [20, 21, 23, 26, 700, 701, 1700];
    pub(super) const JSON: [u32; 2] = [114, 3802];
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

impl Bound {
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
