//! Reads the stream of one session: when to read again, what was read and is not taken in yet, and when to answer the server.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, Kind, Result};
use crate::failpoint;
use crate::position::Lsn;
use crate::relay::alarm::Alarm;
use crate::relay::read_pacer::ReadPacer;
use crate::source::feedback::{Action, Feedback};
use crate::source::{Io, Notice, Status, WalStream};

/// What a wait for the socket may do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Readiness {
    /// Whether the socket is read.
    pub(super) reads: bool,
    /// Whether messages are left to be taken in at once.
    pub(super) has_more: bool,
    /// Whether deliveries are waited for beside it.
    pub(super) delivers: bool,
}

/// See the module's documentation.
pub(super) struct StreamReader {
    /// The stream.
    pub(super) wal: WalStream,
    /// When the server is answered, and when it is dead.
    pub(super) feedback: Feedback,
    /// Whether messages were left in the buffer for the next turn.
    pub(super) has_more: bool,
    /// What the server last said beside the changes, since the last change: one that waits for a standby repeats itself.
    pub(super) noticed: Option<Notice>,
    pacer: ReadPacer,
    /// Ends a rest.
    pub(super) alarm: Alarm,
}

impl StreamReader {
    /// Nothing of `wal` was read yet.
    pub(super) fn new(wal: WalStream, wal_sender_timeout: Duration) -> StreamReader {
        let now = Instant::now();
        StreamReader {
            wal,
            feedback: Feedback::new(wal_sender_timeout, now),
            has_more: false,
            noticed: None,
            pacer: ReadPacer::new(now),
            alarm: Alarm::new(),
        }
    }

    /// Whether what was read waits for more of it: fewer and larger read batches make fewer and larger batches for Kafka. Not
    /// where there is no `room` for more: that the socket is dry could not be told then.
    pub(super) fn gathers(&mut self, room: bool) -> bool {
        room && !self.has_more && self.pacer.gathers(Instant::now(), self.wal.buffered_bytes())
    }

    /// Until when the next read waits, if it does; `events` were taken in by now.
    pub(super) fn rests_until(&mut self, now: Instant, events: u64) -> Option<Instant> {
        self.pacer.rests_until(now, events)
    }

    /// Whether the next wait ends at once.
    pub(super) fn is_busy(&self, rests: bool) -> bool {
        self.has_more || !rests && self.pacer.is_backlog()
    }

    /// What the next wait may do, where there is `room` for events or none.
    pub(super) fn prepare(&mut self, room: bool, rests: bool) -> Readiness {
        let has_more = room && self.has_more;
        // What waits in the socket keeps the walsender waiting. There is room for it beside what was left for this turn.
        let reads = room && !rests && (!has_more || self.pacer.reads_beside(self.wal.buffered_bytes()));
        if !reads || self.pacer.is_backlog() {
            self.wal.unwatch();
        }
        if reads && !has_more {
            self.pacer.ready(Instant::now());
        }
        // Where more is read in a moment, and there is room for it, deliveries can wait for that: one wake-up instead of many.
        Readiness { reads, has_more, delivers: reads || !room || !self.pacer.is_backlog() }
    }

    /// The socket was read; `events` were taken in before.
    pub(super) fn was_read(&mut self, io: Io, events: u64) {
        if io.received_bytes > 0 {
            let now = Instant::now();
            self.feedback.heard(now);
            self.pacer.read(now, (io.received_bytes, self.wal.buffered_bytes()), events);
        }
    }

    /// There is nothing more to be read just now.
    pub(super) fn is_dry(&mut self) {
        self.pacer.dry(Instant::now(), self.wal.buffered_bytes());
    }

    /// Puts a status update into the socket's way where one is due. Gives when to look again; none where one was put there.
    ///
    /// # Errors
    /// The server fell silent (P5).
    pub(super) fn answer(&mut self, now: Instant, confirmed: Lsn, room: bool) -> Result<Option<Instant>> {
        self.feedback.set_reading(room, now);
        match self.feedback.action(now, confirmed) {
            Action::Wait(until) => Ok(Some(until)),
            Action::Send { reply_requested } => {
                failpoint::reached("confirming");
                let received = self.wal.received();
                self.wal.queue_status(Status { received, confirmed, reply_requested });
                self.feedback.sent(now, confirmed, reply_requested);
                Ok(None)
            }
            Action::Dead { silence } => Err(Error::new(
                Kind::PostgresUnreachable,
                format_args!(
                    "Postgres has sent nothing for {} ms, although a reply was requested",
                    silence.as_millis()
                ),
            )),
        }
    }
}
