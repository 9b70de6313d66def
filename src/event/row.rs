//! The values of one event, the columns they are found in, and the key of its row.

use std::sync::Arc;

use super::content::Content;
use super::error::Fault;
use crate::config::{OutboxConfig, RowKey};
use crate::decode::{Column, Relation, Tuple, Value};
use crate::template::{ColumnType, Values};

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

    /// Appends what a [`RowId`] of it has: the values of its key up to the first that it lacks.
    #[inline]
    pub fn write_key(&self, into: &mut Vec<u8>) {
        let key = match &self.0 {
            Of::Table(_, mapping) => mapping.row_key(),
            Of::Message(_) => None,
        };
        let places = key.map_or(&[0][..], |key| &key.places);
        let places = places.iter().chain(key.and_then(|key| key.transaction.as_ref()));
        join(places.map_while(|place| self.get(*place)), into);
    }

    /// The OID of the type of the column in this place; 0 where there is none.
    #[inline]
    pub fn type_oid(&self, place: usize) -> u32 {
        self.column_type(place).oid
    }
}

impl Values for Row<'_> {
    #[inline]
    fn value(&self, place: usize) -> Option<&[u8]> {
        self.get(place)
    }

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

/// Between two values of a key: no text of Postgres has it.
const SEPARATOR: u8 = 0;

/// A row, by its outbox and the values of its [row key](crate::config::RowKey). Of a table without one, all rows of an id
/// have the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowId {
    /// Index of the outbox.
    pub outbox: usize,
    /// The values in Postgres' text form, the event's id first, with a NUL between two.
    pub key: Vec<u8>,
}

impl RowId {
    /// The row of these values.
    pub fn new<'v>(outbox: usize, values: impl Iterator<Item = &'v [u8]>) -> RowId {
        let mut key = Vec::new();
        join(values, &mut key);
        RowId { outbox, key }
    }

    /// The event's id.
    pub fn id(&self) -> &[u8] {
        self.values().next().unwrap_or_default()
    }

    /// The values of the key, in its order.
    pub fn values(&self) -> impl Iterator<Item = &[u8]> {
        self.key.split(|byte| *byte == SEPARATOR)
    }
}

/// Appends these values as a [`RowId`] has them.
#[inline]
pub(super) fn join<'v>(values: impl Iterator<Item = &'v [u8]>, into: &mut Vec<u8>) {
    for (number, value) in values.enumerate() {
        if number > 0 {
            into.push(SEPARATOR);
        }
        into.extend_from_slice(value);
    }
}

/// Where the needed columns stand in a tuple of one version of the outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mapping {
    /// How many values a tuple must have.
    columns: usize,
    /// By place: the position in a tuple, and the type. Columns of the row key alone may be missing.
    places: Vec<Option<(usize, ColumnType)>>,
    row_key: Option<RowKey>,
}

impl Mapping {
    /// Finds every column of `outbox` in `relation`. A column of the row key alone may be younger than the row.
    ///
    /// # Errors
    /// The place of the first that is not there.
    pub(super) fn new(outbox: &OutboxConfig, relation: &Relation) -> Result<Self, usize> {
        let routed = outbox.routed_columns().len();
        let find = |(place, name): (usize, &String)| {
            let mut columns = relation.columns.iter().enumerate();
            let found = columns.find(|(_, column)| column.name == *name);
            let of = |column: &Column| ColumnType { oid: column.type_oid, modifier: column.type_modifier };
            match found {
                None if place < routed => Err(place),
                found => Ok(found.map(|(position, column)| (position, of(column)))),
            }
        };
        let places = outbox.columns.iter().enumerate().map(find).collect::<Result<_, _>>()?;
        Ok(Mapping { columns: relation.columns.len(), places, row_key: outbox.row_key.clone() })
    }

    #[inline]
    pub(super) fn row_key(&self) -> Option<&RowKey> {
        self.row_key.as_ref()
    }

    /// How many values a tuple must have.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    #[inline]
    pub(super) fn position(&self, place: usize) -> Option<usize> {
        self.places.get(place)?.map(|(position, _)| position)
    }

    pub(super) fn column_type(&self, place: usize) -> ColumnType {
        self.places.get(place).copied().flatten().map_or(ColumnType { oid: 0, modifier: -1 }, |(_, of)| of)
    }

    /// What is wrong with the needed values of a tuple of the right width, and in which place.
    #[inline]
    pub(super) fn fault(&self, tuple: &Tuple<'_>) -> Option<(usize, Fault)> {
        let odd = tuple.values().enumerate().find_map(|(position, value)| {
            let fault = match value {
                Value::Null | Value::Text(_) => return None,
                Value::Unchanged => Fault::Unchanged,
                Value::Binary(_) => Fault::Binary,
            };
            let place = self.places.iter().position(|of| of.is_some_and(|(at, _)| at == position))?;
            Some((place, fault))
        });
        let id_is_null = || {
            let id = self.position(0).and_then(|position| tuple.values().nth(position));
            matches!(id, Some(Value::Null)).then_some((0, Fault::Null))
        };
        odd.or_else(id_is_null)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::decode::{Insert, Message, decode, wire};
    use crate::event::Row;

    #[test]
    fn a_row_id_gives_back_its_values_the_id_first() {
        for values in [&[&b"7"[..]][..], &[b"o-1", b"2026-01-01 00:00:00+00", b"x"], &[b"", b"5"], &[b""]] {
            let mut key = Vec::new();
            join(values.iter().copied(), &mut key);
            let row = RowId { outbox: 1, key };
            assert_eq!(row.values().collect::<Vec<_>>(), values);
            assert_eq!(row.id(), values[0]);
        }
    }

    fn relation(columns: &[&str]) -> Relation {
        match decode(&wire::relation(1, "public", "outbox", columns)) {
            Ok(Message::Relation(relation)) => relation,
            other => panic!("not a relation: {other:?}"),
        }
    }

    fn insert(bytes: &[u8]) -> Insert<'_> {
        match decode(bytes) {
            Ok(Message::Insert(insert)) => insert,
            other => panic!("not an insert: {other:?}"),
        }
    }

    fn needed(names: &[&str]) -> OutboxConfig {
        let columns = names.iter().map(|name| (*name).to_owned()).collect();
        OutboxConfig { columns, ..OutboxConfig::default() }
    }

    #[test]
    fn columns_are_found_by_name_wherever_they_stand() {
        let columns = ["x", "payload", "id", "y", "aggregatetype"];
        let mapping =
            Arc::new(Mapping::new(&needed(&["id", "payload", "aggregatetype", "id"]), &relation(&columns)).unwrap());
        let bytes = wire::insert(1, &columns.map(|name| Value::Text(name.as_bytes())));
        let row = Row::new(insert(&bytes).tuple, &mapping);
        let values: Vec<_> = (0..5).map(|place| row.get(place)).collect();
        assert_eq!(values, [Some(&b"id"[..]), Some(b"payload"), Some(b"aggregatetype"), Some(b"id"), None]);
    }

    #[test]
    fn null_is_no_value_and_empty_is_one() {
        let mapping = Arc::new(Mapping::new(&needed(&["id", "a", "b"]), &relation(&["b", "a", "id"])).unwrap());
        let bytes = wire::insert(1, &[Value::Null, Value::Text(b""), Value::Text(b"7")]);
        let row = Row::new(insert(&bytes).tuple, &mapping);
        assert_eq!((row.get(0), row.get(1), row.get(2)), (Some(&b"7"[..]), Some(&b""[..]), None));
        assert_eq!(mapping.fault(&insert(&bytes).tuple), None);
    }

    #[test]
    fn what_is_wrong_with_a_needed_value_is_named_and_with_another_is_not() {
        let mapping = Mapping::new(&needed(&["id", "a"]), &relation(&["other", "a", "id"])).unwrap();
        let fault = |values: &[Value<'_>]| mapping.fault(&insert(&wire::insert(1, values)).tuple);
        let id = Value::Text(b"7");
        assert_eq!(fault(&[Value::Unchanged, Value::Null, id]), None);
        assert_eq!(fault(&[Value::Null, Value::Unchanged, id]), Some((1, Fault::Unchanged)));
        assert_eq!(fault(&[Value::Null, Value::Binary(b""), id]), Some((1, Fault::Binary)));
        assert_eq!(fault(&[Value::Null, Value::Null, Value::Null]), Some((0, Fault::Null)));
    }

    #[test]
    fn a_missing_column_is_named_and_case_matters() {
        assert_eq!(Mapping::new(&needed(&["id", "payload"]), &relation(&["id", "Payload"])), Err(1));
    }

    #[test]
    fn a_row_is_named_by_its_key_as_far_as_it_has_the_columns() {
        let mut outbox = needed(&["id", "payload"]);
        outbox.name_rows_by(&["seq".to_owned(), "id".to_owned()], Some("xid"));
        let key = |columns: &[&str]| {
            let mapping = Arc::new(Mapping::new(&outbox, &relation(columns)).unwrap());
            let values: Vec<_> = columns.iter().map(|name| Value::Text(name.as_bytes())).collect();
            let bytes = wire::insert(1, &values);
            let (mut key, row) = (Vec::new(), Row::new(insert(&bytes).tuple, &mapping));
            row.write_key(&mut key);
            (key, row.has_key())
        };
        assert_eq!(key(&["xid", "seq", "payload", "id"]), (b"id\0seq\0xid".to_vec(), true));
        assert_eq!(key(&["seq", "payload", "id"]), (b"id\0seq".to_vec(), true));
        assert_eq!(key(&["xid", "payload", "id"]), (b"id".to_vec(), false));
        assert_eq!(Mapping::new(&outbox, &relation(&["id", "seq"])), Err(1));
    }
}
