//! pgoutput messages as bytes, for tests: the server's side of the protocol, written independently of the decoder.

use super::Value;

/// Microseconds from the Unix epoch to 2000-01-01 UTC.
pub(crate) const EPOCH_US: i64 = 946_684_800_000_000;

pub(crate) fn begin(commit_lsn: u64, committed_at_us: i64, xid: u32) -> Vec<u8> {
    [&b"B"[..], &commit_lsn.to_be_bytes(), &committed_at_us.wrapping_sub(EPOCH_US).to_be_bytes(), &xid.to_be_bytes()]
        .concat()
}

pub(crate) fn commit(commit_lsn: u64, end_lsn: u64, committed_at_us: i64) -> Vec<u8> {
    let time = committed_at_us.wrapping_sub(EPOCH_US).to_be_bytes();
    [&b"C\0"[..], &commit_lsn.to_be_bytes(), &end_lsn.to_be_bytes(), &time].concat()
}

/// Every column is of type `text`.
/// Columns of text.
pub(crate) fn relation(oid: u32, schema: &str, table: &str, columns: &[&str]) -> Vec<u8> {
    let columns: Vec<_> = columns.iter().map(|name| (*name, 25)).collect();
    relation_of(oid, schema, table, &columns)
}

/// Columns with the OIDs of their types.
pub(crate) fn relation_of(oid: u32, schema: &str, table: &str, columns: &[(&str, u32)]) -> Vec<u8> {
    let mut bytes = [&b"R"[..], &oid.to_be_bytes(), schema.as_bytes(), b"\0", table.as_bytes(), b"\0d"].concat();
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

pub(crate) fn insert(relation: u32, values: &[Value<'_>]) -> Vec<u8> {
    [&b"I"[..], &relation.to_be_bytes(), b"N", &tuple(values)].concat()
}

/// With a key, without the old row.
pub(crate) fn update(relation: u32, key: &[Value<'_>], values: &[Value<'_>]) -> Vec<u8> {
    [&b"U"[..], &relation.to_be_bytes(), b"K", &tuple(key), b"N", &tuple(values)].concat()
}

pub(crate) fn delete(relation: u32, old: &[Value<'_>]) -> Vec<u8> {
    [&b"D"[..], &relation.to_be_bytes(), b"O", &tuple(old)].concat()
}

pub(crate) fn truncate(relations: &[u32]) -> Vec<u8> {
    let mut bytes = [&b"T"[..], &u32::try_from(relations.len()).unwrap().to_be_bytes(), b"\x01"].concat();
    bytes.extend(relations.iter().flat_map(|relation| relation.to_be_bytes()));
    bytes
}

pub(crate) fn data_type(oid: u32, schema: &str, name: &str) -> Vec<u8> {
    [&b"Y"[..], &oid.to_be_bytes(), schema.as_bytes(), b"\0", name.as_bytes(), b"\0"].concat()
}

pub(crate) fn origin(lsn: u64, name: &str) -> Vec<u8> {
    [&b"O"[..], &lsn.to_be_bytes(), name.as_bytes(), b"\0"].concat()
}

pub(crate) fn logical_message(lsn: u64, prefix: &str, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    [&b"M\x01"[..], &lsn.to_be_bytes(), prefix.as_bytes(), b"\0", &length, content].concat()
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
