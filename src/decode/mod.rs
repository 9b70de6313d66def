//! One pgoutput payload to one message.
//!
//! Pure, and safe for any bytes whatever: a payload is the message it claims to be, whole and nothing else, or a
//! [`DecodeError`] that names the byte (P11). A row's values are borrowed from the payload, nothing is allocated for it.

mod cursor;
mod message;
mod tuple;

#[cfg(test)]
mod hostile;
#[cfg(test)]
pub(crate) mod wire;

pub(crate) use cursor::DecodeError;
#[cfg(test)]
use cursor::Problem;
pub(crate) use message::decode;
pub(crate) use tuple::{Tuple, Value};

use crate::position::Lsn;

/// A logical replication message, protocol version 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// `B`: a transaction begins.
    Begin(Begin),
    /// `C`: it ends.
    Commit(Commit),
    /// `R`: a table, as it is from here on.
    Relation(Relation),
    /// `I`: a row was inserted.
    Insert(Insert<'a>),
    /// `M`: content somebody put into the log.
    Logical(LogicalMessage<'a>),
    /// `U`, `D`, `T`, `Y`, `O`: known, and not an event.
    Other(Other),
}

/// `B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Begin {
    /// LSN of the commit record.
    pub commit_lsn: Lsn,
    /// Commit time, microseconds since the Unix epoch.
    pub committed_at_us: i64,
    /// Transaction id (32 bits, wraps).
    pub xid: u32,
}

/// `C`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Commit {
    /// LSN of the commit record: that of the `Begin`.
    pub commit_lsn: Lsn,
    /// End of the commit record: what may be confirmed.
    pub end_lsn: Lsn,
    /// Commit time, microseconds since the Unix epoch.
    pub committed_at_us: i64,
}

/// `R`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Relation {
    /// The table's OID.
    pub oid: u32,
    /// Schema. Empty in the wire form means `pg_catalog`, and is that here.
    pub schema: String,
    pub table: String,
    /// Columns in the order of a tuple's values.
    pub columns: Vec<Column>,
}

/// A column of a [`Relation`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    pub type_oid: u32,
    /// Type modifier (`atttypmod`): length, precision or scale; -1 without.
    pub type_modifier: i32,
}

/// `I`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Insert<'a> {
    /// The table's OID.
    pub relation: u32,
    /// The row's values, still encoded and already checked to be well formed.
    pub tuple: Tuple<'a>,
}

/// `M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogicalMessage<'a> {
    /// Whether it belongs to the transaction that is open; the others stand anywhere.
    pub transactional: bool,
    /// Where it stands in the log.
    pub lsn: Lsn,
    /// The prefix, in the encoding of the session.
    pub prefix: &'a [u8],
    /// The content: any bytes.
    pub content: &'a [u8],
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
    /// `M`, emitted outside of transactions or with another prefix.
    LogicalMessage,
}
