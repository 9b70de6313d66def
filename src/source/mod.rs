//! The slot's stream of changes, the status updates to the server, and the checks before and beside the stream.
//!
//! | file | content |
//! |---|---|
//! | [`frame`] | what travels inside a replication stream, as bytes |
//! | [`stream`] | a stream over a socket: reading, status updates, notices, the end |
//! | [`feedback`] | when to send a status, when a silent server is dead |
//! | [`preflight`] | server, slot and publication before the first byte |
//! | [`catalog`] | whether publication and table are still what they were |
//! | [`lease`] | who may publish, and who does while another waits |
//! | [`row_key`] | what names exactly one row of an outbox table |
//! | [`control`] | the plain SQL session beside the stream |

use crate::position::Lsn;

pub(crate) mod catalog;
pub(crate) mod control;
pub(crate) mod feedback;
pub(crate) mod frame;
pub(crate) mod lease;
pub(crate) mod preflight;
pub(crate) mod row_key;
pub(crate) mod stream;

pub(crate) use stream::{WalStream, judge_notice};

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
        body: &'a [u8],
    },
    /// The server has sent everything below `wal_end`.
    Keepalive {
        /// As far as the server has decoded.
        wal_end: Lsn,
        /// Whether it wants a status at once.
        reply_requested: bool,
    },
    /// The server remarks something, such as a publication it does not find and goes on without.
    Notice(Notice),
    /// A setting changed. Those that decide the text of a value were checked already.
    ParameterStatus { name: String, value: String },
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

/// A status update for the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Status {
    /// Up to where bytes have arrived here.
    pub received: Lsn,
    /// Up to where nothing is needed again: acked by the broker, and the position stored (P1).
    pub confirmed: Lsn,
    /// Ask the server for a sign of life.
    pub reply_requested: bool,
}

/// What one turn of [`WalStream::ready_io`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Io {
    /// Bytes that arrived.
    pub received_bytes: usize,
    /// Whether everything queued was written.
    pub flushed: bool,
}
