//! The slot's stream of changes, and what is told back about it.
//!
//! | file | its room |
//! |---|---|
//! | [`frame`] | what travels inside a replication stream, as bytes |
//! | [`stream`] | a stream over a socket: reading, status updates, the end |
//! | [`feedback`] | when to send a status, when a silent server is dead |
//! | [`fault`] | what ends a stream, in the operator's words |
//! | [`notice`] | what the server says beside the changes |
//! | [`preflight`] | server, slot and publication before the first byte |
//! | [`catalog`] | whether publication and table are still what they were |
//! | [`lease`] | who may publish |
//! | [`holder`] | who does, while another waits |
//! | [`row_key`] | what names exactly one row of an outbox table |
//! | [`control`] | the plain SQL session beside the stream |

use std::future::Future;

use tokio::time::Instant;

use crate::error::Result;
use crate::position::Lsn;

pub(crate) mod catalog;
pub(crate) mod control;
pub(crate) mod fault;
pub(crate) mod feedback;
pub(crate) mod frame;
pub(crate) mod holder;
pub(crate) mod lease;
pub(crate) mod notice;
pub(crate) mod preflight;
pub(crate) mod row_key;
pub(crate) mod stream;

pub(crate) use stream::WalStream;

/// One message of the stream, borrowed from the receive buffer until the source is used again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WalMessage<'a> {
    /// One message of the output plugin.
    Data {
        /// Where it lies in the log; 0/0 for one that lies nowhere, such as a table's description. Not a position to
        /// confirm: of a row it lies below what earlier commits confirmed.
        wal_start: Lsn,
        /// As far as the server reports its log along with it.
        wal_end: Lsn,
        /// The server's clock when it was sent, microseconds since the Unix epoch.
        sent_at_us: i64,
        /// The message.
        body: &'a [u8],
    },
    /// Nothing below `wal_end` is left to send but what was sent.
    Keepalive {
        /// As far as the server has decoded.
        wal_end: Lsn,
        /// Whether it wants a status at once.
        reply_requested: bool,
    },
    /// The server remarks something, such as a publication it does not find and goes on without.
    Notice(Notice),
    /// A setting changed. Those that decide the text of a value were checked already.
    ParameterStatus {
        /// The setting.
        name: String,
        value: String,
    },
    /// The server ends the stream: it has sent everything and is going down, or was asked to.
    CopyDone,
}

/// A remark of the server: severity, SQLSTATE and message, never its details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    /// `NOTICE`, `WARNING`, …, possibly in the server's language: for showing, not for deciding.
    pub severity: String,
    /// What to decide by.
    pub sqlstate: String,
    /// The text, in the server's language.
    pub message: String,
    /// The function of the server that says it: tells apart what has the same SQLSTATE. Empty where it is not sent.
    pub routine: String,
}

/// What the server is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Status {
    /// Up to where bytes have arrived here.
    pub received: Lsn,
    /// Up to where nothing is needed again: acked by the broker, and the position stored (P1).
    pub confirmed: Lsn,
    /// Ask the server for a sign of life.
    pub reply_requested: bool,
}

/// What one turn of [`WalSource::ready_io`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Io {
    /// Bytes that arrived.
    pub received_bytes: usize,
    /// Whether everything queued was written.
    pub flushed: bool,
}

/// A stream of changes that has been started: one task reads it, tells it what is confirmed, and finishes it.
///
/// Nothing here retries; after any error the source is of no use. Memory is bounded by the largest message allowed
/// plus one read, whatever the caller leaves unread.
pub(crate) trait WalSource: Send {
    /// Takes the next message, or `None` until more bytes have arrived. Copies nothing.
    ///
    /// # Errors
    /// What the server reported, a message too large or malformed, or a setting it dropped.
    fn next(&mut self) -> Result<Option<WalMessage<'_>>>;

    /// Bytes that arrived and were not taken: messages, and perhaps a part of one.
    fn buffered_bytes(&self) -> usize;

    /// The highest LSN received on this connection.
    fn received(&self) -> Lsn;

    /// Queues a status, replacing one that is not under way yet. `confirmed` never goes back on this connection and is
    /// cut to what was received on it.
    fn queue_status(&mut self, status: Status);

    /// Whether something is queued.
    fn has_output(&self) -> bool;

    /// Writes what is queued. Safe to cancel: what was written is not written again.
    ///
    /// # Errors
    /// The connection failed.
    fn flush_output(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Waits until bytes arrive (if `read`) or everything queued is written (if something is), whichever is first.
    /// Waits for ever where there is neither to do. Safe to cancel.
    ///
    /// # Errors
    /// The connection failed or ended; messages that arrived before can still be taken. A failed write is told only after
    /// what the server sent before it, which may name the reason.
    fn ready_io(&mut self, read: bool) -> impl Future<Output = Result<Io>> + Send;

    /// Nothing is to be read for a while: what arrives meanwhile wakes nobody.
    fn unwatch(&mut self);

    /// Sends a last status and ends the stream, dropping what still arrives.
    ///
    /// # Errors
    /// The server's end did not come by `deadline`, or the connection failed: the last status may not have counted.
    fn finish(self, last: Status, deadline: Instant) -> impl Future<Output = Result<()>> + Send;
}
