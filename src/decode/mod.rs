//! One pgoutput payload to one message.

use crate::position::Lsn;

/// A logical replication message, protocol version 1.
#[derive(Debug, Clone, PartialEq)]
pub enum Message<'a> {
    /// `B`: a transaction begins.
    Begin(Begin),
    /// `C`: it ends.
    Commit(Commit),
    /// `R`: a table, as it is from here on.
    Relation(Relation),
    /// `I`: a row was inserted.
    Insert(Insert<'a>),
    /// `U`, `D`, `T`, `Y`, `O`, `M`: known, and not an event.
    Other(Other),
}

/// `B`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Begin {
    /// LSN of the commit record.
    pub commit_lsn: Lsn,
    /// Commit time, microseconds since the Unix epoch.
    pub committed_at_us: i64,
    /// Transaction id (32 bits, wraps).
    pub xid: u32,
}

/// `C`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Commit {
    /// LSN of the commit record: that of the `Begin`.
    pub commit_lsn: Lsn,
    /// End of the commit record: what may be confirmed.
    pub end_lsn: Lsn,
    /// Commit time, microseconds since the Unix epoch.
    pub committed_at_us: i64,
}

/// `R`.
#[derive(Debug, Clone, PartialEq)]
pub struct Relation {
    /// The table's OID.
    pub oid: u32,
    /// Schema; empty in the wire form means `pg_catalog`.
    pub schema: String,
    /// Table.
    pub table: String,
    /// Columns in the order of a tuple's values.
    pub columns: Vec<Column>,
}

/// A column of a [`Relation`].
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Name.
    pub name: String,
    /// Type OID.
    pub type_oid: u32,
}

/// `I`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Insert<'a> {
    /// The table's OID.
    pub relation: u32,
    /// The row's values, still encoded and already checked to be well formed.
    pub tuple: Tuple<'a>,
}

/// A row's values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuple<'a> {
    columns: u16,
    bytes: &'a [u8],
}

/// One value of a [`Tuple`].
#[derive(Debug, Clone, Copy, PartialEq)]
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

/// A message that carries no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Other {
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
    /// `M`
    LogicalMessage,
}
