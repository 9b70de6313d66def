//! A replication stream over one byte stream, read and written by one task.
//!
//! <https://www.postgresql.org/docs/current/protocol-replication.html#PROTOCOL-REPLICATION-XLOGDATA>

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Buf as _;
use pgwire_replication::protocol::messages::ErrorFields;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};

use crate::config::SourceConfig;
use crate::postgres::fault::{self, WAITS_FOR_STANDBY, While};
use crate::postgres::replication::{WalSession, check_parameter};
use crate::postgres::session::{reported, unexpected};
use crate::postgres::transport::{Transport, Unwatch};
use crate::postgres::wire::{Frame, FrameError, Inbox, parameter_status};
use crate::source::feedback::{Action, Feedback, dead};
use walrelay_core::clock::{POSTGRES_EPOCH_US, now_us};
use walrelay_core::config::SlotName;
use walrelay_core::error::{Error, Kind, NextCommand, Remedy, Result};
use walrelay_core::failpoint;
use walrelay_core::position::Lsn;

/// Type and length.
const COPY_DONE: [u8; 5] = [b'c', 0, 0, 0, 4];
const TERMINATE: [u8; 5] = [b'X', 0, 0, 0, 4];

/// Message header (5) and the head of a change (type, two LSNs, a time): what comes before a
/// change's body.
const DATA_OVERHEAD_BYTES: usize = 5 + 1 + 8 + 8 + 8;
/// Message header (5) and a status update (34).
const STATUS_FRAME_BYTES: usize = 5 + 34;

/// How long a finished stream may take to let go of its slot before the socket is closed all the
/// same.
const RELEASE_PATIENCE: Duration = Duration::from_secs(1);

/// One message of the stream, borrowed from the receive buffer until the source is used again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WalMessage<'a> {
    /// One message of the output plugin.
    Data {
        /// Its LSN, or 0/0 such as for a table's description. Never to be confirmed: it can be
        /// below confirmed LSNs.
        wal_start: Lsn,
        wal_end: Lsn,
        body: &'a [u8],
    },
    /// The server has sent everything below `wal_end`.
    Keepalive {
        wal_end: Lsn,
        /// Whether the server wants a status at once.
        reply_requested: bool,
    },
    /// Such as a publication that the server does not find and goes on without.
    Notice(Notice),
    /// A changed setting. Those that decide the text of a value were checked already.
    ParameterStatus { name: String, value: String },
    /// The server ends the stream: it has sent everything and is going down, or was asked to.
    CopyDone,
}

/// A notice of the server, without its details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    pub sqlstate: String,
    /// In the server's language.
    pub message: String,
    /// The function of the server that reports it: distinguishes notices with the same SQLSTATE.
    /// Empty where it is not sent.
    pub routine: String,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Status {
    pub received: Lsn,
    /// Everything below is acked, and the position is stored (P1).
    pub confirmed: Lsn,
    pub reply_requested: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Io {
    pub received_bytes: usize,
    /// Whether the whole output queue was written.
    pub flushed: bool,
}

/// A started stream of changes. One task reads messages, queues status updates, and finishes the
/// stream.
///
/// Nothing is retried; after an error the stream is of no use. Memory is bounded by the largest
/// allowed message plus one read. Generic over the byte stream, so that tests can play the server.
#[derive(Debug)]
pub(crate) struct WalStream<S = Transport> {
    stream: S,
    slot: SlotName,
    inbox: Inbox,
    /// When the server is answered, and when it is dead.
    feedback: Feedback,
    output: Output,
    received: Lsn,
    confirmed: Lsn,
    /// The part of `confirmed` that the socket has taken.
    confirmed_sent: Lsn,
    end: End,
    /// A write that failed, kept while there may be something to read that says why.
    write_error: Option<io::Error>,
    /// Whether each status is followed by one that confirms nothing.
    is_no_standby: bool,
}

/// How far the server has ended the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Open,
    CopyDone,
    /// The slot is free, and the server accepts statements.
    Ready,
}

/// The output queue: at most a partly written status and one or two after it.
#[derive(Debug, Default)]
struct Output {
    bytes: Vec<u8>,
    written: usize,
    unflushed: bool,
    asks_for_reply: bool,
}

impl<S: AsyncRead + AsyncWrite + Unwatch + Unpin + Send> WalStream<S> {
    /// Starts streaming the session's slot. Messages of more than `slot.max_message_bytes` will be
    /// refused.
    pub(crate) async fn start(session: WalSession<S>, source: &SourceConfig) -> Result<Self> {
        let (stream, mut inbox, slot) = session.start(&source.publication).await?;
        inbox.set_frame_bytes_max(source.max_message_bytes.saturating_add(DATA_OVERHEAD_BYTES));
        Ok(WalStream {
            stream,
            slot,
            inbox,
            feedback: Feedback::new(source.wal_sender_timeout, Instant::now()),
            output: Output::default(),
            received: Lsn::ZERO,
            confirmed: Lsn::ZERO,
            confirmed_sent: Lsn::ZERO,
            end: End::Open,
            write_error: None,
            is_no_standby: false,
        })
    }

    /// Keeps commits from waiting for this stream, for a reader that may be slow: Postgres counts
    /// no walsender as a synchronous standby whose last status confirms nothing, and keeps what it
    /// confirmed before.
    pub(crate) fn be_no_standby(&mut self) {
        self.is_no_standby = true;
    }

    /// Takes the next message, or `None` until more bytes have arrived. Copies nothing.
    /// `open_transaction` is the commit LSN of the transaction that the messages before began, for
    /// an error's remedy. Errors: what the server reported, a message too large or malformed, or a
    /// setting it dropped.
    pub(crate) fn next(&mut self, open_transaction: Option<Lsn>) -> Result<Option<WalMessage<'_>>> {
        let Some(frame) = self.take_frame(open_transaction)? else {
            return Ok(None);
        };
        let act = While::Streaming(self.slot.as_str());
        let body = self.inbox.body(&frame);
        let message = match frame.tag {
            b'd' => copy_data(body).ok_or_else(|| {
                fault::protocol(act, "a message of the stream is cut short or unknown")
            })?,
            b'N' => WalMessage::Notice(notice(body)),
            b'S' => {
                let (name, value) = parameter_status(body)
                    .ok_or_else(|| fault::protocol(act, "a setting is cut short"))?;
                check_parameter(&name, &value)?;
                WalMessage::ParameterStatus { name, value }
            }
            b'E' => {
                return Err(in_transaction(
                    &self.slot,
                    reported(act, body),
                    open_transaction,
                ));
            }
            b'c' | b'C' => WalMessage::CopyDone,
            other => return Err(unexpected(act, other)),
        };
        match message {
            WalMessage::Data {
                wal_start, wal_end, ..
            } => self.received = self.received.max(wal_start).max(wal_end),
            WalMessage::Keepalive {
                wal_end,
                reply_requested,
            } => {
                self.received = self.received.max(wal_end);
                self.feedback.reply_due |= reply_requested;
            }
            WalMessage::CopyDone => self.end = End::CopyDone,
            WalMessage::Notice(_) | WalMessage::ParameterStatus { .. } => {}
        }
        Ok(Some(message))
    }

    /// Bytes that arrived and were not taken: messages, and perhaps a part of one.
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.inbox.buffered_bytes()
    }

    /// The highest LSN received on this connection.
    pub(crate) fn received(&self) -> Lsn {
        self.received
    }

    /// Queues a status in place of one that waits. `confirmed` never goes back, and never exceeds
    /// what was received here.
    pub(crate) fn queue_status(&mut self, status: Status) {
        self.confirmed = self.confirmed.max(status.confirmed.min(self.received));
        let received = status.received.min(self.received).max(self.confirmed);
        // One that is partly written has to be finished; one that is not begun is replaced, its
        // question kept.
        self.output
            .bytes
            .truncate(self.output.written.next_multiple_of(STATUS_FRAME_BYTES));
        self.output.asks_for_reply |= status.reply_requested;
        let status = Status {
            received,
            confirmed: self.confirmed,
            reply_requested: self.output.asks_for_reply,
        };
        self.output.bytes.extend(status_update(status, now_us()));
        if self.is_no_standby {
            let nothing = Status {
                confirmed: Lsn::ZERO,
                reply_requested: false,
                ..status
            };
            self.output.bytes.extend(status_update(nothing, now_us()));
        }
    }

    /// Queues a status update where one is due. Gives when to look again; none where one was
    /// queued. `reads` says whether the caller reads until then. Errors: the server fell silent
    /// (P5).
    pub(crate) fn answer(
        &mut self,
        now: Instant,
        confirmed: Lsn,
        reads: bool,
    ) -> Result<Option<Instant>> {
        self.feedback.set_reading(reads, now);
        match self.feedback.action(now, confirmed) {
            Action::Wait(until) => Ok(Some(until)),
            Action::Send { reply_requested } => {
                failpoint::reached("confirming");
                self.queue_status(Status {
                    received: self.received(),
                    confirmed,
                    reply_requested,
                });
                self.feedback.sent(now, confirmed, reply_requested);
                Ok(None)
            }
            Action::Dead { silence } => Err(dead(silence)),
        }
    }

    /// Whether commits of other sessions wait for statuses: then they go out at once.
    pub(crate) fn set_synchronous(&mut self, is_synchronous: bool) {
        self.feedback.is_synchronous = is_synchronous;
    }

    pub(crate) fn has_output(&self) -> bool {
        self.write_error.is_none() && (!self.output.bytes.is_empty() || self.output.unflushed)
    }

    /// Writes what is queued. Safe to cancel: what was written is not written again.
    pub(crate) async fn flush_output(&mut self) -> Result<()> {
        let flushed = poll_fn(|cx| self.poll_output(cx)).await;
        flushed.map_err(|error| broken(&self.slot, &error))
    }

    /// Waits until bytes arrive (if `read`) or everything queued is written (if something is),
    /// whichever is first. Waits for ever where there is neither to do. Safe to cancel. Errors: the
    /// connection failed or ended; messages that arrived before can still be taken. A failed write
    /// is reported only after what the server sent before it, which may name the reason.
    pub(crate) async fn ready_io(&mut self, read: bool) -> Result<Io> {
        poll_fn(|cx| self.poll_io(cx, read)).await
    }

    /// Stops watching the socket for a while: bytes that arrive do not wake the task.
    pub(crate) fn unwatch(&mut self) {
        self.stream.unwatch();
    }

    /// Sends a last status and ends the stream, dropping what still arrives.
    /// Errors: the server's end did not come by `deadline`, or the connection failed: the last
    /// status may not have counted.
    pub(crate) async fn finish(mut self, last: Status, deadline: Instant) -> Result<()> {
        self.queue_status(last);
        if self.end > End::Open {
            // It ended first, and reads no more.
            return if self.confirmed_sent == self.confirmed {
                Ok(())
            } else {
                Err(not_finished(&self.slot))
            };
        }
        self.output.bytes.extend(COPY_DONE);
        // The server takes messages in order, so its end of the stream answers ours: the status has
        // been processed.
        let answered = timeout_at(deadline, self.drain(End::CopyDone)).await;
        answered.unwrap_or_else(|_| Err(not_finished(&self.slot)))?;
        // By now nothing that can go wrong changes what was confirmed. Once the server is ready
        // again the slot is free for a successor; in the middle of a large transaction that takes
        // it long, and a closed socket is faster.
        let patience = deadline.min(Instant::now() + RELEASE_PATIENCE);
        drop(timeout_at(patience, self.drain(End::Ready)).await);
        self.output.bytes.extend(TERMINATE);
        let goodbye = async {
            poll_fn(|cx| self.poll_output(cx)).await?;
            poll_fn(|cx| Pin::new(&mut self.stream).poll_shutdown(cx)).await
        };
        drop(timeout_at(patience, goodbye).await);
        Ok(())
    }

    #[cfg(test)]
    async fn fill(&mut self) -> Result<usize> {
        poll_fn(|cx| self.poll_fill(cx)).await
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize>> {
        if !self.inbox.has_room() {
            return Poll::Ready(Ok(0));
        }
        let once = self.stream.is_unwatched();
        self.inbox
            .poll_fill(cx, &mut self.stream, once)
            .map(|filled| match filled {
                Ok(0) => Err(match self.write_error.take() {
                    Some(error) => broken(&self.slot, &error),
                    None => closed(&self.slot),
                }),
                Ok(received_bytes) => {
                    self.feedback.heard(Instant::now());
                    Ok(received_bytes)
                }
                Err(error) => Err(broken(&self.slot, &error)),
            })
    }

    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self
            .output
            .bytes
            .get(self.output.written..)
            .filter(|rest| !rest.is_empty())
        {
            match Pin::new(&mut self.stream).poll_write(cx, rest) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => {
                    self.output.written += written;
                    self.output.unflushed = true;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        self.output.bytes.clear();
        self.output.written = 0;
        self.output.asks_for_reply = false;
        if self.output.unflushed {
            std::task::ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.output.unflushed = false;
        }
        self.confirmed_sent = self.confirmed;
        Poll::Ready(Ok(()))
    }

    fn poll_io(&mut self, cx: &mut Context<'_>, read: bool) -> Poll<Result<Io>> {
        let mut io = Io::default();
        if self.has_output() {
            match self.poll_output(cx) {
                Poll::Ready(Ok(())) => io.flushed = true,
                Poll::Ready(Err(error)) if read => self.write_error = Some(error),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(broken(&self.slot, &error))),
                Poll::Pending => {}
            }
        }
        match &self.write_error {
            Some(error) if !read => return Poll::Ready(Err(broken(&self.slot, error))),
            _ => {}
        }
        if read && self.inbox.has_room() {
            match self.poll_fill(cx) {
                Poll::Ready(Ok(received_bytes)) => io.received_bytes = received_bytes,
                // A write that succeeded just now is of no interest any more.
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        if io == Io::default() {
            Poll::Pending
        } else {
            Poll::Ready(Ok(io))
        }
    }

    /// The next message, without what follows the end of the stream: command complete, ready for
    /// query. A walsender that is done because the server shuts down says "command complete" alone.
    fn take_frame(&mut self, open_transaction: Option<Lsn>) -> Result<Option<Frame>> {
        loop {
            match self.inbox.next() {
                Ok(Some(Frame {
                    tag: b'C' | b'Z', ..
                })) if self.end >= End::CopyDone => {}
                Ok(frame) => return Ok(frame),
                Err(error) => return self.refused(error, open_transaction).map(|()| None),
            }
        }
    }

    /// A message that cannot be received, with its LSN; `None` while the LSN is still to arrive.
    fn refused(&self, error: FrameError, open_transaction: Option<Lsn>) -> Result<()> {
        let lsn = match error {
            FrameError::TooLarge { tag: b'd', .. } => match self.inbox.peek(DATA_OVERHEAD_BYTES) {
                Some(beginning) => lsn_of(beginning),
                None => return Ok(()),
            },
            FrameError::TooLarge { .. } | FrameError::Length(_) => None,
        };
        Err(unreceivable(&self.slot, error, lsn, open_transaction))
    }

    /// Reads and drops until the server has come as far as `end`. What arrives is of no interest
    /// any more, however large it is; only an error the server reports is.
    async fn drain(&mut self, end: End) -> Result<()> {
        loop {
            match self.inbox.next() {
                Ok(Some(frame)) => match frame.tag {
                    b'c' | b'C' => self.end = self.end.max(End::CopyDone),
                    b'Z' => self.end = End::Ready,
                    b'E' => {
                        return Err(reported(
                            While::Streaming(self.slot.as_str()),
                            self.inbox.body(&frame),
                        ));
                    }
                    _ => {}
                },
                Ok(None) => {
                    if self.end >= end {
                        return Ok(());
                    }
                    self.ready_io(true).await?;
                }
                Err(FrameError::TooLarge { frame_bytes, .. }) => self.inbox.discard(frame_bytes),
                Err(error @ FrameError::Length(_)) => {
                    return Err(unreceivable(&self.slot, error, None, None));
                }
            }
        }
    }
}

/// The body of a `CopyData` message, or `None` where it is neither a change nor a keepalive.
fn copy_data(mut body: &[u8]) -> Option<WalMessage<'_>> {
    match body.try_get_u8().ok()? {
        b'w' => {
            let wal_start = Lsn::new(body.try_get_u64().ok()?);
            let wal_end = Lsn::new(body.try_get_u64().ok()?);
            body.try_get_i64().ok()?;
            Some(WalMessage::Data {
                wal_start,
                wal_end,
                body,
            })
        }
        b'k' => {
            let wal_end = Lsn::new(body.try_get_u64().ok()?);
            body.try_get_i64().ok()?;
            let reply_requested = body.try_get_u8().ok()? != 0;
            Some(WalMessage::Keepalive {
                wal_end,
                reply_requested,
            })
        }
        _ => None,
    }
}

/// The LSN of a change of which only the beginning, message header included, is there.
fn lsn_of(beginning: &[u8]) -> Option<Lsn> {
    beginning
        .get(5..)?
        .strip_prefix(b"w")?
        .try_get_u64()
        .ok()
        .map(Lsn::new)
}

fn notice(body: &[u8]) -> Notice {
    let fields = ErrorFields::parse(body);
    Notice {
        sqlstate: fields.code.unwrap_or_default(),
        message: fields.message.unwrap_or_default(),
        routine: fields.routine.unwrap_or_default(),
    }
}

/// A status update as a whole message: the confirmed LSN is also the flushed and the applied one.
fn status_update(status: Status, now_us: i64) -> [u8; STATUS_FRAME_BYTES] {
    let mut frame = [0; STATUS_FRAME_BYTES];
    let confirmed = status.confirmed.as_u64().to_be_bytes();
    let length: u32 = 4 + 34;
    let fields: [&[u8]; 8] = [
        b"d",
        &length.to_be_bytes(),
        b"r",
        &status.received.as_u64().to_be_bytes(),
        &confirmed,
        &confirmed,
        &now_us.saturating_sub(POSTGRES_EPOCH_US).to_be_bytes(),
        &[u8::from(status.reply_requested)],
    ];
    for (place, byte) in frame.iter_mut().zip(fields.into_iter().flatten()) {
        *place = *byte;
    }
    frame
}

/// `error`, which the server reported. One of a row names the open transaction, and how to give
/// that up.
fn in_transaction(slot: &SlotName, error: Error, open_transaction: Option<Lsn>) -> Error {
    let Some(lsn) = open_transaction.filter(|_| error.kind() == Kind::Event) else {
        return error;
    };
    let fix = error
        .any_remedy()
        .unwrap_or_else(|| Remedy::from("deliver that row by hand"));
    let give_up = format!(". To pass it over, {}", slot.give_up(lsn));
    error
        .about(format_args!("in the transaction at {lsn}"))
        .remedy(fix.and(give_up))
}

/// A message that cannot be received: malformed, or larger than allowed at this LSN, perhaps inside
/// of a transaction.
fn unreceivable(
    slot: &SlotName,
    error: FrameError,
    lsn: Option<Lsn>,
    open_transaction: Option<Lsn>,
) -> Error {
    let FrameError::TooLarge {
        frame_bytes,
        frame_bytes_max,
        ..
    } = error
    else {
        return fault::protocol(While::Streaming(slot.as_str()), error);
    };
    let known = lsn.filter(|lsn| !lsn.is_zero());
    let place = known.map(|lsn| format!(" at {lsn}")).unwrap_or_default();
    // A change is given up with its transaction. A logical message outside of transactions is
    // decoded by its own LSN.
    let give_up = lsn
        .and(open_transaction.or(known))
        .map(|lsn| slot.give_up(lsn));
    let remedy = match give_up {
        Some(give_up) => format!(
            "raise slot.max_message_bytes; or deliver it by hand, {give_up}. A \
             CHECK on the payload's octet_length keeps such rows out"
        ),
        None => "raise slot.max_message_bytes".to_owned(),
    };
    Error::new(
        Kind::Event,
        format_args!(
            "slot {slot}: a message{place} has {frame_bytes} bytes, and at most {frame_bytes_max} \
             are allowed"
        ),
    )
    .remedy(remedy)
}

fn broken(slot: &SlotName, error: &io::Error) -> Error {
    fault::io(While::Streaming(slot.as_str()), error)
}

/// The server closed the connection without a word.
fn closed(slot: &SlotName) -> Error {
    Error::new(
        Kind::PostgresUnreachable,
        format_args!("slot {slot}: the server closed the replication connection"),
    )
}

/// The server did not end the stream in time, or ended the stream before the last status was sent.
fn not_finished(slot: &SlotName) -> Error {
    Error::new(
        Kind::PostgresUnreachable,
        format_args!(
            "slot {slot}: the stream ended without an answer of the server; the last confirmation \
             may not have counted"
        ),
    )
}

/// SQLSTATE of the warning with which Postgres 18 says that it skips every change of a publication
/// that did not exist when they were written (`object_not_in_prerequisite_state`). Older majors end
/// the stream instead.
const SKIPPED_PUBLICATION: &str = "55000";

/// Judges a notice that came inside the stream. Most are for the log.
/// Errors: [`Kind::Publication`] where it says that changes are being skipped (P8).
pub(crate) fn judge_notice(notice: &Notice, source: &SourceConfig) -> Result<()> {
    // With the same code. Nothing is skipped: the changes come as soon as the standby has them.
    if notice.routine == WAITS_FOR_STANDBY {
        let slot = &source.slot;
        tracing::warn!(event = "standby_awaited", %slot, notice = %notice.message.escape_debug(),
            "Postgres holds events back until a standby has them");
        return Ok(());
    }
    if notice.sqlstate == SKIPPED_PUBLICATION {
        let slot = &source.slot;
        let publication = &source.publication;
        return Err(Error::new(
            Kind::Publication,
            format_args!(
                "slot {slot}: Postgres skips changes, because publication {publication} \
                          did not exist when they were written"
            ),
        )
        .remedy(
            Remedy::from(
                "the rows are in the outbox table and not in the stream; create the publication, \
                 then drop and create the \
                 slot (`",
            )
            .and(NextCommand::new("setup").option("slot", slot))
            .and("`), and publish the rows written in between again"),
        ));
    }
    tracing::warn!(event = "notice_received", sqlstate = ?notice.sqlstate,
        notice = %notice.message.escape_debug(),
        "Postgres sent a notice inside the stream");
    Ok(())
}

#[cfg(test)]
mod tests;
