//! From the first byte of a payload to the message it is.
//!
//! Layouts: <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>, without the fields
//! that protocol versions above 1 add.

use super::cursor::{Cursor, DecodeError, Problem};
use super::{Begin, Column, Commit, Insert, LogicalMessage, Message, Other, Relation, Tuple};
use crate::clock::POSTGRES_EPOCH_US;

/// Decodes one pgoutput payload, which must be one whole message of protocol version 1 and nothing else.
///
/// Borrows values from `bytes`; allocates only for `R`, and never by a length the bytes merely declare.
///
/// # Errors
/// [`DecodeError`] at the first byte that does not fit: unknown tags and kinds, short or trailing bytes, negative
/// lengths, names that are not UTF-8, times beyond the range of microseconds since the Unix epoch.
pub(crate) fn decode(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
    let mut cursor = Cursor::new(bytes);
    let message = match cursor.u8("a message's tag")? {
        b'I' => Message::Insert(insert(&mut cursor)?),
        b'B' => Message::Begin(begin(&mut cursor)?),
        b'C' => Message::Commit(commit(&mut cursor)?),
        b'R' => Message::Relation(relation(&mut cursor)?),
        b'U' => update(&mut cursor).map(|()| Message::Other(Other::Update))?,
        b'D' => delete(&mut cursor).map(|()| Message::Other(Other::Delete))?,
        b'T' => truncate(&mut cursor).map(|()| Message::Other(Other::Truncate))?,
        b'Y' => data_type(&mut cursor).map(|()| Message::Other(Other::Type))?,
        b'O' => origin(&mut cursor).map(|()| Message::Other(Other::Origin))?,
        b'M' => Message::Logical(logical_message(&mut cursor)?),
        found => return Err(cursor.error(1, "a message's tag", Problem::Unknown { found })),
    };
    cursor.end("a message")?;
    Ok(message)
}

fn begin(cursor: &mut Cursor<'_>) -> Result<Begin, DecodeError> {
    Ok(Begin {
        commit_lsn: cursor.lsn("a begin's commit LSN")?,
        committed_at_us: time(cursor, "a begin's commit time")?,
        xid: cursor.u32("a begin's transaction id")?,
    })
}

fn commit(cursor: &mut Cursor<'_>) -> Result<Commit, DecodeError> {
    match cursor.u8("a commit's flags")? {
        0 => {}
        found => return Err(cursor.error(1, "a commit's flags", Problem::Unknown { found })),
    }
    Ok(Commit {
        commit_lsn: cursor.lsn("a commit's LSN")?,
        end_lsn: cursor.lsn("a commit's end LSN")?,
        committed_at_us: time(cursor, "a commit's time")?,
    })
}

fn relation(cursor: &mut Cursor<'_>) -> Result<Relation, DecodeError> {
    let oid = cursor.u32("a relation's OID")?;
    let schema = match cursor.name("a relation's schema")? {
        "" => "pg_catalog",
        schema => schema,
    };
    let table = cursor.name("a relation's table")?;
    cursor.u8("a relation's replica identity")?;
    let count = cursor.count16("a relation's number of columns")?;
    let mut columns = Vec::new();
    for _ in 0..count {
        columns.push(column(cursor)?);
    }
    Ok(Relation { oid, schema: schema.to_owned(), table: table.to_owned(), columns })
}

fn column(cursor: &mut Cursor<'_>) -> Result<Column, DecodeError> {
    cursor.u8("a column's flags")?;
    let name = cursor.name("a column's name")?;
    let type_oid = cursor.u32("a column's type OID")?;
    let type_modifier = cursor.u32("a column's type modifier")?.cast_signed();
    Ok(Column { name: name.to_owned(), type_oid, type_modifier })
}

#[inline]
fn insert<'a>(cursor: &mut Cursor<'a>) -> Result<Insert<'a>, DecodeError> {
    let relation = cursor.u32("an insert's relation OID")?;
    match cursor.u8("an insert's kind")? {
        b'N' => Ok(Insert { relation, tuple: Tuple::read(cursor)? }),
        found => Err(cursor.error(1, "an insert's kind", Problem::Unknown { found })),
    }
}

/// `K` or `O` with the old row, if the replica identity wants it, then `N` with the new one.
fn update(cursor: &mut Cursor<'_>) -> Result<(), DecodeError> {
    const KIND: &str = "an update's kind";
    cursor.u32("an update's relation OID")?;
    let mut kind = cursor.u8(KIND)?;
    if matches!(kind, b'K' | b'O') {
        Tuple::read(cursor)?;
        kind = cursor.u8(KIND)?;
    }
    match kind {
        b'N' => Tuple::read(cursor).map(|_| ()),
        found => Err(cursor.error(1, KIND, Problem::Unknown { found })),
    }
}

fn delete(cursor: &mut Cursor<'_>) -> Result<(), DecodeError> {
    const KIND: &str = "a delete's kind";
    cursor.u32("a delete's relation OID")?;
    match cursor.u8(KIND)? {
        b'K' | b'O' => Tuple::read(cursor).map(|_| ()),
        found => Err(cursor.error(1, KIND, Problem::Unknown { found })),
    }
}

fn truncate(cursor: &mut Cursor<'_>) -> Result<(), DecodeError> {
    let count = cursor.count32("a truncate's number of tables")?;
    cursor.u8("a truncate's options")?;
    for _ in 0..count {
        cursor.u32("a truncate's relation OID")?;
    }
    Ok(())
}

fn data_type(cursor: &mut Cursor<'_>) -> Result<(), DecodeError> {
    cursor.u32("a type's OID")?;
    cursor.until_zero("a type's schema")?;
    cursor.until_zero("a type's name")?;
    Ok(())
}

fn origin(cursor: &mut Cursor<'_>) -> Result<(), DecodeError> {
    cursor.lsn("an origin's LSN")?;
    cursor.until_zero("an origin's name")?;
    Ok(())
}

fn logical_message<'a>(cursor: &mut Cursor<'a>) -> Result<LogicalMessage<'a>, DecodeError> {
    const FLAGS: &str = "a logical message's flags";
    let transactional = match cursor.u8(FLAGS)? {
        flag @ (0 | 1) => flag == 1,
        found => return Err(cursor.error(1, FLAGS, Problem::Unknown { found })),
    };
    let lsn = cursor.lsn("a logical message's LSN")?;
    let prefix = cursor.until_zero("a logical message's prefix")?;
    let length = cursor.count32("a logical message's length")?;
    let content = cursor.take(length, "a logical message's content")?;
    Ok(LogicalMessage { transactional, lsn, prefix, content })
}

/// Microseconds since the Unix epoch.
fn time(cursor: &mut Cursor<'_>, what: &'static str) -> Result<i64, DecodeError> {
    let found = cursor.i64(what)?;
    found.checked_add(POSTGRES_EPOCH_US).ok_or_else(|| cursor.error(8, what, Problem::OutOfRange { found }))
}
