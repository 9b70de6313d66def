//! What ends a stream, in the operator's words. What the server itself reports is [`crate::postgres::fault`]'s.

use std::io;

use crate::config::SlotName;
use crate::error::{Error, Kind};
use crate::position::Lsn;
use crate::postgres::fault::{self, While};
use crate::postgres::wire::FrameError;

/// A message that cannot be received: malformed, or larger than allowed at this LSN.
pub(super) fn frame(slot: &SlotName, error: FrameError, lsn: Option<Lsn>) -> Error {
    let FrameError::TooLarge { frame_bytes, frame_bytes_max, .. } = error else {
        return fault::protocol(While::Streaming(slot.as_str()), error);
    };
    let place = lsn.filter(|lsn| !lsn.is_zero()).map(|lsn| format!(" at {lsn}")).unwrap_or_default();
    Error::new(
        Kind::Event,
        format_args!(
            "slot {slot}: a message{place} has {frame_bytes} bytes, and at most {frame_bytes_max} are allowed"
        ),
    )
    .remedy(
        "raise max_message_bytes; or deliver that row by hand and move the slot past its transaction with \
         pg_replication_slot_advance. A CHECK on the payload's octet_length keeps such rows out",
    )
}

/// The socket failed.
pub(super) fn connection(slot: &SlotName, error: &io::Error) -> Error {
    fault::io(While::Streaming(slot.as_str()), error)
}

/// The server closed the connection without a word.
pub(super) fn closed(slot: &SlotName) -> Error {
    Error::new(Kind::PostgresUnreachable, format_args!("slot {slot}: the server closed the replication connection"))
}

/// The server did not end the stream in time, or ended it before it was told.
pub(super) fn not_finished(slot: &SlotName) -> Error {
    Error::new(
        Kind::PostgresUnreachable,
        format_args!(
            "slot {slot}: the stream ended without an answer of the server; the last confirmation may not have counted"
        ),
    )
}
