//! The slot's stream of changes, the status updates to the server, and the checks before and beside
//! the stream.
//!
//! | file | content |
//! |---|---|
//! | [`stream`] | a stream over a socket: messages, status updates, notices, the end |
//! | [`feedback`] | when to send a status, when a silent server is dead |
//! | [`preflight`] | server, slot and publication before the first byte |
//! | [`catalog`] | publication and tables, as the catalogs describe them |
//! | [`watch`] | whether publication and tables changed |
//! | [`lease`] | which relay may publish |
//! | [`row_key`] | the columns that identify one row of an outbox table |
//! | [`control`] | the plain SQL session beside the stream |
//! | [`synchronous`] | whether commits wait for the relay |

pub(crate) mod catalog;
pub(crate) mod control;
pub(crate) mod feedback;
pub(crate) mod lease;
pub(crate) mod preflight;
pub(crate) mod row_key;
pub(crate) mod stream;
pub(crate) mod synchronous;
pub(crate) mod watch;

pub(crate) use stream::{Io, Notice, Status, WalMessage, WalStream, judge_notice};
