//! The configured columns, found by name in a table as it is from here on.

use crate::config::OutboxConfig;
use crate::decode::{Relation, Tuple, Value};

/// What a column of the outbox table means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Id,
    AggregateType,
    AggregateId,
    EventType,
    Payload,
}

impl Field {
    const ALL: [Field; 5] = [Field::Id, Field::AggregateType, Field::AggregateId, Field::EventType, Field::Payload];

    /// The name of its column.
    pub(super) fn column(self, outbox: &OutboxConfig) -> &str {
        match self {
            Field::Id => &outbox.id,
            Field::AggregateType => &outbox.aggregate_type,
            Field::AggregateId => &outbox.aggregate_id,
            Field::EventType => &outbox.event_type,
            Field::Payload => &outbox.payload,
        }
    }
}

/// Where the fields stand in a tuple of one version of the outbox table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mapping {
    /// How many values a tuple must have.
    columns: usize,
    /// In the order of a tuple, so that one walk finds them all.
    fields: [(usize, Field); Field::ALL.len()],
}

/// The values of one row's fields, not yet judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row<'a> {
    pub(super) id: Value<'a>,
    pub(super) aggregate_type: Value<'a>,
    pub(super) aggregate_id: Value<'a>,
    pub(super) event_type: Value<'a>,
    pub(super) payload: Value<'a>,
}

impl Mapping {
    /// Finds every configured column of `outbox` in `relation`.
    ///
    /// # Errors
    /// The first field whose column is not there.
    pub(super) fn new(outbox: &OutboxConfig, relation: &Relation) -> Result<Self, Field> {
        let mut fields = Field::ALL.map(|field| (usize::MAX, field));
        for (at, field) in &mut fields {
            let name = field.column(outbox);
            *at = relation.columns.iter().position(|column| column.name == name).ok_or(*field)?;
        }
        fields.sort_by_key(|(at, _)| *at);
        Ok(Mapping { columns: relation.columns.len(), fields })
    }

    /// How many values a tuple must have.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// The fields of a tuple, in one walk that ends at the last of them; `None` if the tuple is of another table.
    #[inline]
    pub(super) fn row<'a>(&self, tuple: &Tuple<'a>) -> Option<Row<'a>> {
        if tuple.len() != self.columns {
            return None;
        }
        let null = Value::Null;
        let mut row = Row { id: null, aggregate_type: null, aggregate_id: null, event_type: null, payload: null };
        let mut values = tuple.values().enumerate();
        let mut current = values.next();
        for (at, field) in &self.fields {
            while current.is_some_and(|(position, _)| position < *at) {
                current = values.next();
            }
            let (_, value) = current?;
            match field {
                Field::Id => row.id = value,
                Field::AggregateType => row.aggregate_type = value,
                Field::AggregateId => row.aggregate_id = value,
                Field::EventType => row.event_type = value,
                Field::Payload => row.payload = value,
            }
        }
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Message, decode, wire};
    use crate::event::replay::outbox;

    fn relation(columns: &[&str]) -> Relation {
        match decode(&wire::relation(1, "public", "outbox", columns)) {
            Ok(Message::Relation(relation)) => relation,
            other => panic!("not a relation: {other:?}"),
        }
    }

    #[test]
    fn columns_are_found_by_name_wherever_they_stand() {
        let columns = ["x", "payload", "id", "y", "type", "aggregateid", "aggregatetype", "z"];
        let mapping = Mapping::new(&outbox(), &relation(&columns)).unwrap();
        let values = columns.map(|name| Value::Text(name.as_bytes()));
        let bytes = wire::insert(1, &values);
        let Ok(Message::Insert(insert)) = decode(&bytes) else { panic!("not an insert") };
        let expected = Row {
            id: Value::Text(b"id"),
            aggregate_type: Value::Text(b"aggregatetype"),
            aggregate_id: Value::Text(b"aggregateid"),
            event_type: Value::Text(b"type"),
            payload: Value::Text(b"payload"),
        };
        assert_eq!(mapping.row(&insert.tuple), Some(expected));
    }

    #[test]
    fn one_column_may_serve_two_fields() {
        let outbox = OutboxConfig { aggregate_id: "id".into(), event_type: "id".into(), ..outbox() };
        let mapping = Mapping::new(&outbox, &relation(&["payload", "id", "aggregatetype"])).unwrap();
        let bytes = wire::insert(1, &[Value::Null, Value::Text(b"7"), Value::Text(b"t")]);
        let Ok(Message::Insert(insert)) = decode(&bytes) else { panic!("not an insert") };
        let row = mapping.row(&insert.tuple).unwrap();
        assert_eq!((row.id, row.aggregate_id, row.event_type), (Value::Text(b"7"), row.id, row.id));
        assert_eq!((row.aggregate_type, row.payload), (Value::Text(b"t"), Value::Null));
    }

    #[test]
    fn a_tuple_of_another_width_is_refused() {
        let mapping =
            Mapping::new(&outbox(), &relation(&["id", "aggregatetype", "aggregateid", "type", "payload"])).unwrap();
        for width in [0, 4, 6] {
            let bytes = wire::insert(1, &vec![Value::Null; width]);
            let Ok(Message::Insert(insert)) = decode(&bytes) else { panic!("not an insert") };
            assert_eq!(mapping.row(&insert.tuple), None, "{width} values");
        }
    }

    #[test]
    fn a_missing_column_is_named_and_case_matters() {
        let missing = Mapping::new(&outbox(), &relation(&["id", "aggregatetype", "aggregateid", "type", "Payload"]));
        assert_eq!(missing, Err(Field::Payload));
    }
}
