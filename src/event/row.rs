//! The values of one row that somebody asked for.

use std::sync::Arc;

use super::mapping::Mapping;
use crate::decode::{Tuple, Value};
use crate::template::{ColumnType, TypedValues, Values};

/// One row, by place: the place of a column is its index in [`crate::config::OutboxConfig::columns`], wherever it
/// stands in the table at the time. Values are the text Postgres sent, borrowed from the receive buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row<'a> {
    tuple: Tuple<'a>,
    mapping: Arc<Mapping>,
}

impl<'a> Row<'a> {
    /// The row of a tuple that `mapping` fits.
    pub(super) fn new(tuple: Tuple<'a>, mapping: &Arc<Mapping>) -> Self {
        Row { tuple, mapping: Arc::clone(mapping) }
    }

    /// The value in this place; `None` where it is NULL.
    #[inline]
    pub fn get(&self, place: usize) -> Option<&'a [u8]> {
        match self.tuple.values().nth(self.mapping.position(place)?)? {
            Value::Text(text) => Some(text),
            Value::Null | Value::Unchanged | Value::Binary(_) => None,
        }
    }

    /// The OID of the type of the column in this place; 0 where there is none.
    #[inline]
    pub fn type_oid(&self, place: usize) -> u32 {
        self.mapping.column_type(place).oid
    }
}

impl TypedValues for Row<'_> {
    fn column_type(&self, place: usize) -> ColumnType {
        self.mapping.column_type(place)
    }
}

impl Values for Row<'_> {
    #[inline]
    fn value(&self, place: usize) -> Option<&[u8]> {
        self.get(place)
    }
}
