//! Messages and rows for tests, of this crate and of the program. Only with feature `testing`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    reason = "a test that panics has failed"
)]

use std::sync::Arc;

use crate::catalog::{BaseType, Column};
use crate::config::{EventSource, OutboxConfig};
use crate::decode::{Message, Value, decode};
use crate::event::{Event, Mapping, Place, Row, Via};
use crate::ledger::Ticket;
use crate::position::Lsn;
use crate::publisher::Batch;

pub const COLUMNS: [&str; 5] = ["id", "aggregatetype", "aggregateid", "type", "payload"];

/// The default columns of table `public.outbox`.
pub fn outbox() -> OutboxConfig {
    OutboxConfig {
        source: EventSource::Table("outbox".parse().unwrap()),
        ..OutboxConfig::default()
    }
}

/// One row of a table, as a message.
pub struct Lab {
    mapping: Arc<Mapping>,
    insert: Vec<u8>,
}

impl Lab {
    /// A row with these values of a table with these columns, all of type `text`.
    pub fn new(outbox: &OutboxConfig, columns: &[&str], values: &[Option<&str>]) -> Lab {
        const TEXT: u32 = 25;
        Lab::of_type(TEXT, outbox, columns, values)
    }

    /// All of the columns have this type.
    pub fn of_type(
        type_oid: u32,
        outbox: &OutboxConfig,
        columns: &[&str],
        values: &[Option<&str>],
    ) -> Lab {
        Lab::of_types(&vec![type_oid; columns.len()], outbox, columns, values)
    }

    pub fn of_types(
        types: &[u32],
        outbox: &OutboxConfig,
        columns: &[&str],
        values: &[Option<&str>],
    ) -> Lab {
        let described = wire::relation(1, "public", "outbox", columns);
        let Ok(Message::Relation(mut relation)) = decode(&described) else {
            panic!("not a relation")
        };
        for (column, of) in relation.columns.iter_mut().zip(types) {
            column.type_oid = *of;
        }
        let mapping = Arc::new(Mapping::new(outbox, &relation).unwrap());
        let values: Vec<_> = values
            .iter()
            .map(|value| value.map_or(Value::Null, |text| Value::Text(text.as_bytes())))
            .collect();
        Lab {
            mapping,
            insert: wire::insert(1, &values),
        }
    }

    /// The row as the event at index 3 of the transaction at 0/64.
    pub fn event(&self) -> Event<'_> {
        let Ok(Message::Insert(insert)) = decode(&self.insert) else {
            panic!("not an insert")
        };
        let place = Place {
            commit_lsn: Lsn::new(0x64),
            index: 3,
            via: Via::Slot,
        };
        Event {
            place,
            committed_at_us: 0,
            xid: None,
            outbox: 0,
            row: Row::new(insert.tuple, &self.mapping),
        }
    }
}

/// pgoutput messages as bytes: the server's side of the protocol, written independently of the
/// decoder.
pub mod wire {
    use crate::decode::Value;

    /// Microseconds from the Unix epoch to 2000-01-01 UTC.
    pub const EPOCH_US: i64 = 946_684_800_000_000;

    pub fn begin(commit_lsn: u64, committed_at_us: i64, xid: u32) -> Vec<u8> {
        let time = committed_at_us.wrapping_sub(EPOCH_US).to_be_bytes();
        [
            &b"B"[..],
            &commit_lsn.to_be_bytes(),
            &time,
            &xid.to_be_bytes(),
        ]
        .concat()
    }

    pub fn commit(commit_lsn: u64, end_lsn: u64, committed_at_us: i64) -> Vec<u8> {
        let time = committed_at_us.wrapping_sub(EPOCH_US).to_be_bytes();
        [
            &b"C\0"[..],
            &commit_lsn.to_be_bytes(),
            &end_lsn.to_be_bytes(),
            &time,
        ]
        .concat()
    }

    /// Columns of type `text`.
    pub fn relation(oid: u32, schema: &str, table: &str, columns: &[&str]) -> Vec<u8> {
        let columns: Vec<_> = columns.iter().map(|name| (*name, 25)).collect();
        relation_of(oid, schema, table, &columns)
    }

    /// Columns with the OIDs of their types.
    pub fn relation_of(oid: u32, schema: &str, table: &str, columns: &[(&str, u32)]) -> Vec<u8> {
        let mut bytes = [
            &b"R"[..],
            &oid.to_be_bytes(),
            schema.as_bytes(),
            b"\0",
            table.as_bytes(),
            b"\0d",
        ]
        .concat();
        bytes.extend(i16::try_from(columns.len()).unwrap().to_be_bytes());
        for (name, type_oid) in columns {
            bytes.push(0);
            bytes.extend(name.as_bytes());
            bytes.push(0);
            bytes.extend(type_oid.to_be_bytes());
            bytes.extend((-1_i32).to_be_bytes());
        }
        bytes
    }

    pub fn insert(relation: u32, values: &[Value<'_>]) -> Vec<u8> {
        [&b"I"[..], &relation.to_be_bytes(), b"N", &tuple(values)].concat()
    }

    /// With a key, without the old row.
    pub fn update(relation: u32, key: &[Value<'_>], values: &[Value<'_>]) -> Vec<u8> {
        [
            &b"U"[..],
            &relation.to_be_bytes(),
            b"K",
            &tuple(key),
            b"N",
            &tuple(values),
        ]
        .concat()
    }

    pub fn delete(relation: u32, old: &[Value<'_>]) -> Vec<u8> {
        [&b"D"[..], &relation.to_be_bytes(), b"O", &tuple(old)].concat()
    }

    pub fn truncate(relations: &[u32]) -> Vec<u8> {
        let mut bytes = [
            &b"T"[..],
            &u32::try_from(relations.len()).unwrap().to_be_bytes(),
            b"\x01",
        ]
        .concat();
        bytes.extend(relations.iter().flat_map(|relation| relation.to_be_bytes()));
        bytes
    }

    pub fn data_type(oid: u32, schema: &str, name: &str) -> Vec<u8> {
        [
            &b"Y"[..],
            &oid.to_be_bytes(),
            schema.as_bytes(),
            b"\0",
            name.as_bytes(),
            b"\0",
        ]
        .concat()
    }

    pub fn origin(lsn: u64, name: &str) -> Vec<u8> {
        [&b"O"[..], &lsn.to_be_bytes(), name.as_bytes(), b"\0"].concat()
    }

    pub fn logical_message(lsn: u64, prefix: &str, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        [
            &b"M\x01"[..],
            &lsn.to_be_bytes(),
            prefix.as_bytes(),
            b"\0",
            &length,
            content,
        ]
        .concat()
    }

    fn tuple(values: &[Value<'_>]) -> Vec<u8> {
        let mut bytes = i16::try_from(values.len()).unwrap().to_be_bytes().to_vec();
        for value in values {
            let (kind, content) = match value {
                Value::Null => (b'n', None),
                Value::Unchanged => (b'u', None),
                Value::Text(content) => (b't', Some(content)),
                Value::Binary(content) => (b'b', Some(content)),
            };
            bytes.push(kind);
            if let Some(content) = content {
                bytes.extend(u32::try_from(content.len()).unwrap().to_be_bytes());
                bytes.extend(*content);
            }
        }
        bytes
    }
}

/// A column of the type `base`.
pub fn column_of(name: &str, base: &str) -> Column {
    let (base_oid, base_type) = match base {
        "int8" => (20, "bigint"),
        "int4" => (23, "integer"),
        "text" => (25, "text"),
        "date" => (1082, "date"),
        "timestamp" => (1114, "timestamp without time zone"),
        "timestamptz" => (1184, "timestamp with time zone"),
        "uuid" => (2950, "uuid"),
        "xid8" => (5069, "xid8"),
        other => panic!("{other}"),
    };
    let name = name.to_owned();
    let type_name = base_type.to_owned();
    let sql = type_name.clone();
    let base = base.to_owned();
    let base = BaseType {
        name: base,
        oid: base_oid,
        sql,
        is_ordered: true,
        ..BaseType::default()
    };
    Column {
        written: name.clone(),
        name,
        type_name,
        type_modifier: -1,
        base,
        ..Column::default()
    }
}

/// `column` with this default.
pub fn with_default(column: Column, sql: &str) -> Column {
    Column {
        default: Some(sql.to_owned()),
        ..column
    }
}

/// A batch of one event that was not delivered.
pub fn batch() -> Batch {
    Batch::beginning(Ticket(0), Lsn::new(1))
}
