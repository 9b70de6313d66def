//! The values of one event that somebody asked for.

use std::sync::Arc;

use super::content::Content;
use super::mapping::Mapping;
use super::row_id;
use crate::decode::{Tuple, Value};
use crate::template::{ColumnType, TypedValues, Values};

/// One row, or one message, by place: the place of a column is its index in [`crate::config::OutboxConfig::columns`],
/// wherever it stands in the table at the time. Values are the text Postgres sent, borrowed from the receive buffer
/// where that is possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row<'a>(Of<'a>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Of<'a> {
    Table(Tuple<'a>, Arc<Mapping>),
    Message(Content<'a>),
}

impl<'a> Row<'a> {
    /// The row of a tuple that `mapping` fits.
    pub(super) fn new(tuple: Tuple<'a>, mapping: &Arc<Mapping>) -> Self {
        Row(Of::Table(tuple, Arc::clone(mapping)))
    }

    /// What a message comes to.
    pub(super) fn message(content: Content<'a>) -> Self {
        Row(Of::Message(content))
    }

    /// The value in this place; `None` where it is NULL.
    #[inline]
    pub fn get(&self, place: usize) -> Option<&[u8]> {
        match &self.0 {
            Of::Table(tuple, mapping) => match tuple.values().nth(mapping.position(place)?)? {
                Value::Text(text) => Some(text),
                Value::Null | Value::Unchanged | Value::Binary(_) => None,
            },
            Of::Message(content) => content.get(place),
        }
    }

    /// Whether its key names this row and no other. A row that was written before its table had all columns of the key has
    /// none.
    pub fn has_key(&self) -> bool {
        match &self.0 {
            Of::Table(_, mapping) => {
                mapping.row_key().is_some_and(|key| key.places.iter().all(|place| self.get(*place).is_some()))
            }
            // The LSN of a message, or what its writer says is its id.
            Of::Message(_) => true,
        }
    }

    /// Appends what a [`RowId`](super::RowId) of it has: the values of its key up to the first that it lacks.
    #[inline]
    pub fn write_key(&self, into: &mut Vec<u8>) {
        let key = match &self.0 {
            Of::Table(_, mapping) => mapping.row_key(),
            Of::Message(_) => None,
        };
        let places = key.map_or(&[0][..], |key| &key.places);
        let places = places.iter().chain(key.and_then(|key| key.transaction.as_ref()));
        row_id::join(places.map_while(|place| self.get(*place)), into);
    }

    /// The OID of the type of the column in this place; 0 where there is none.
    #[inline]
    pub fn type_oid(&self, place: usize) -> u32 {
        self.column_type(place).oid
    }
}

impl TypedValues for Row<'_> {
    #[inline]
    fn column_type(&self, place: usize) -> ColumnType {
        match &self.0 {
            Of::Table(_, mapping) => mapping.column_type(place),
            Of::Message(content) => content.column_type(place),
        }
    }

    fn is_checked(&self, place: usize) -> bool {
        match &self.0 {
            Of::Table(..) => true,
            Of::Message(content) => content.is_checked(place),
        }
    }
}

impl Values for Row<'_> {
    #[inline]
    fn value(&self, place: usize) -> Option<&[u8]> {
        self.get(place)
    }
}
