//! One pgoutput payload to one message.
//!
//! Pure, and safe for any bytes: a payload is exactly one message, or a [`DecodeError`] that names
//! the byte (P11). A row's values are borrowed from the payload. Layouts, of which protocol version
//! 1 has a part: <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>

mod cursor;
#[cfg(test)]
mod tests;

pub use cursor::DecodeError;

use strum::{IntoStaticStr, VariantArray};

use crate::clock::POSTGRES_EPOCH_US;
use crate::position::Lsn;
use cursor::{Cursor, Problem};

/// A logical replication message, protocol version 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// `B`: a transaction begins.
    Begin(Begin),
    /// `C`: the transaction ends.
    Commit(Commit),
    /// `R`: the description of a table for the rows that follow.
    Relation(Relation),
    /// `I`: a row was inserted.
    Insert(Insert<'a>),
    /// `M`: the content of a `pg_logical_emit_message`.
    Logical(LogicalMessage<'a>),
    /// `U`, `D`, `T`, `Y`, `O`: no event.
    Other(Other),
}

/// `B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// LSN of the commit record.
    pub commit_lsn: Lsn,
    /// Commit time, microseconds since the Unix epoch.
    pub committed_at_us: i64,
    /// Transaction id (32 bits, wraps).
    pub xid: u32,
}

/// `C`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// LSN of the commit record: that of the `Begin`.
    pub commit_lsn: Lsn,
    /// End of the commit record: what may be confirmed.
    pub end_lsn: Lsn,
    /// Commit time, microseconds since the Unix epoch.
    pub committed_at_us: i64,
}

/// `R`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation {
    /// The OID of the table.
    pub oid: u32,
    /// `pg_catalog` where the wire form is empty.
    pub schema: String,
    /// The name of the table.
    pub table: String,
    /// In the order of a tuple's values.
    pub columns: Vec<RelationColumn>,
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelationColumn {
    /// The name of the column.
    pub name: String,
    /// The OID of its type.
    pub type_oid: u32,
    /// Type modifier (`atttypmod`): length, precision or scale; -1 without.
    pub type_modifier: i32,
}

/// `I`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insert<'a> {
    /// The OID of the table.
    pub relation: u32,
    /// The row's values, still encoded and already checked to be well formed.
    pub(crate) tuple: Tuple<'a>,
}

/// `M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogicalMessage<'a> {
    /// Whether it belongs to the open transaction.
    pub transactional: bool,
    /// The LSN of the message.
    pub lsn: Lsn,
    /// In the encoding of the session.
    pub prefix: &'a [u8],
    /// The content, as the application wrote it.
    pub content: &'a [u8],
}

/// A message that carries no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Other {
    /// `I`, of a table that is no outbox.
    Insert,
    /// `U`
    Update,
    /// `D`
    Delete,
    /// `T`
    Truncate,
    /// `Y`
    Type,
    /// `O`
    Origin,
    /// `M`, emitted outside of transactions or with another prefix.
    #[strum(serialize = "message")]
    LogicalMessage,
}

/// Decodes one pgoutput payload, which must be one whole message of protocol version 1 and nothing
/// else.
///
/// Borrows values from `bytes`; allocates only for `R`, and never by a length the bytes merely
/// declare. Errors: [`DecodeError`] at the first byte that does not fit: unknown tags and kinds,
/// short or trailing bytes, negative lengths, names that are not UTF-8, times beyond the range of
/// microseconds since the Unix epoch.
pub fn decode(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
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
    Ok(Relation {
        oid,
        schema: schema.to_owned(),
        table: table.to_owned(),
        columns,
    })
}

fn column(cursor: &mut Cursor<'_>) -> Result<RelationColumn, DecodeError> {
    cursor.u8("a column's flags")?;
    let name = cursor.name("a column's name")?;
    let type_oid = cursor.u32("a column's type OID")?;
    let type_modifier = cursor.u32("a column's type modifier")?.cast_signed();
    Ok(RelationColumn {
        name: name.to_owned(),
        type_oid,
        type_modifier,
    })
}

#[inline]
fn insert<'a>(cursor: &mut Cursor<'a>) -> Result<Insert<'a>, DecodeError> {
    let relation = cursor.u32("an insert's relation OID")?;
    match cursor.u8("an insert's kind")? {
        b'N' => Ok(Insert {
            relation,
            tuple: Tuple::read(cursor)?,
        }),
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
    Ok(LogicalMessage {
        transactional,
        lsn,
        prefix,
        content,
    })
}

/// Microseconds since the Unix epoch.
fn time(cursor: &mut Cursor<'_>, what: &'static str) -> Result<i64, DecodeError> {
    let found = cursor.i64(what)?;
    found
        .checked_add(POSTGRES_EPOCH_US)
        .ok_or_else(|| cursor.error(8, what, Problem::OutOfRange { found }))
}

/// A row's values: a number of columns and their still encoded bytes, which were checked to hold
/// exactly that many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple<'a> {
    columns: u16,
    bytes: &'a [u8],
}

/// One value of a [`Tuple`], borrowed from the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// SQL NULL.
    Null,
    /// A toasted value that did not change: never in an insert.
    Unchanged,
    /// In text form.
    Text(&'a [u8]),
    /// In binary form.
    Binary(&'a [u8]),
}

impl<'a> Tuple<'a> {
    /// Reads a whole tuple, so that walking it cannot fail.
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let columns = cursor.count16("a row's number of columns")?;
        let before = cursor.rest();
        for _ in 0..columns {
            value(cursor)?;
        }
        // The read part is a prefix of the rest, so the difference is its length.
        let length = before.len().saturating_sub(cursor.rest().len());
        let bytes = before.get(..length).unwrap_or_default();
        Ok(Tuple { columns, bytes })
    }

    /// Its values in the order of the relation's columns. Allocates nothing.
    pub fn values(&self) -> Values<'a> {
        Values {
            left: self.columns,
            cursor: Cursor::new(self.bytes),
        }
    }

    /// How many values it has.
    pub(crate) fn len(&self) -> usize {
        self.columns.into()
    }
}

/// The values of a [`Tuple`], in order.
#[derive(Debug, Clone)]
pub struct Values<'a> {
    left: u16,
    cursor: Cursor<'a>,
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    #[inline]
    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        value(&mut self.cursor).ok()
    }
}

#[inline]
fn value<'a>(cursor: &mut Cursor<'a>) -> Result<Value<'a>, DecodeError> {
    match cursor.u8("a value's kind")? {
        b'n' => Ok(Value::Null),
        b'u' => Ok(Value::Unchanged),
        b't' => sized(cursor).map(Value::Text),
        b'b' => sized(cursor).map(Value::Binary),
        found => Err(cursor.error(1, "a value's kind", Problem::Unknown { found })),
    }
}

#[inline]
fn sized<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], DecodeError> {
    let length = cursor.count32("a value's length")?;
    cursor.take(length, "a value")
}
