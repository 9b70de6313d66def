//! Events for the tests of whoever takes them.

use std::sync::Arc;

use super::row::Mapping;
use super::{Event, Place, Row};
use crate::config::OutboxConfig;
use crate::decode::{Message, Value, decode, wire};
use crate::position::Lsn;

/// One row of a table, as a message.
pub(crate) struct Lab {
    mapping: Arc<Mapping>,
    insert: Vec<u8>,
}

impl Lab {
    /// A row with these values of a table with these columns, all of type `text`.
    pub(crate) fn new(outbox: &OutboxConfig, columns: &[&str], values: &[Option<&str>]) -> Lab {
        const TEXT: u32 = 25;
        Lab::of_type(TEXT, outbox, columns, values)
    }

    /// The same, with every column of another type.
    pub(crate) fn of_type(type_oid: u32, outbox: &OutboxConfig, columns: &[&str], values: &[Option<&str>]) -> Lab {
        Lab::of_types(&vec![type_oid; columns.len()], outbox, columns, values)
    }

    /// The same, with a type for each column.
    pub(crate) fn of_types(types: &[u32], outbox: &OutboxConfig, columns: &[&str], values: &[Option<&str>]) -> Lab {
        let types: Vec<_> = types.iter().map(|oid| (*oid, -1)).collect();
        Lab::of_modified(&types, outbox, columns, values)
    }

    /// The same, with a type and its modifier for each column.
    pub(crate) fn of_modified(
        types: &[(u32, i32)],
        outbox: &OutboxConfig,
        columns: &[&str],
        values: &[Option<&str>],
    ) -> Lab {
        let described = wire::relation(1, "public", "outbox", columns);
        let Ok(Message::Relation(mut relation)) = decode(&described) else { panic!("not a relation") };
        for (column, of) in relation.columns.iter_mut().zip(types) {
            (column.type_oid, column.type_modifier) = *of;
        }
        let mapping = Arc::new(Mapping::new(outbox, &relation).unwrap());
        let values: Vec<_> =
            values.iter().map(|value| value.map_or(Value::Null, |text| Value::Text(text.as_bytes()))).collect();
        Lab { mapping, insert: wire::insert(1, &values) }
    }

    /// The row as the event at index 3 of the transaction at 0/64.
    pub(crate) fn event(&self) -> Event<'_> {
        let Ok(Message::Insert(insert)) = decode(&self.insert) else { panic!("not an insert") };
        let place = Place { commit_lsn: Lsn::new(0x64), index: 3, via: crate::event::Via::Slot };
        Event { place, committed_at_us: 0, xid: None, outbox: 0, row: Row::new(insert.tuple, &self.mapping) }
    }
}
