//! Reads the stream of one session: when to read again, and what was read and is not taken in yet.

use std::time::Duration;

use tokio::time::Instant;

use crate::source::{Io, Notice, WalStream};

/// Bytes that arrive this soon after the reader was ready came at once.
const AT_ONCE: Duration = Duration::from_micros(300);
/// So many reads in a row that came at once mean a backlog: by chance, at 2,000 events a second,
/// that happens to one in 500.
const BACKLOG: u32 = 8;
/// A backlog that paused continues after two of them.
const RESUMED: u32 = BACKLOG - 2;
/// How long the next read then waits: latency where there is a backlog, and nothing elsewhere. A
/// Unix socket holds 160 rows by default, which a walsender takes some 700 µs for; it should not
/// have to wait.
const REST: Duration = Duration::from_micros(500);
/// A rest is worth its latency where it brings some dozen rows.
const WORTH_BYTES: usize = 8 * 1024;
/// A read batch: some two thousand rows. The bus's partitions share it, and small batches cost a
/// broker as much as large ones.
const READ_BATCH_BYTES: usize = 1 << 20;
/// A read batch of this much is no chance: 10,000 events a second take as long for it as
/// [`GATHERED_WITHIN`]. A rest that adds little to it is followed by another, up to [`DRY_AFTER`].
const BEGUN_BYTES: usize = 64 * 1024;
/// How long a walsender that has a backlog may have nothing for us, since others had its core.
const DRY_AFTER: Duration = Duration::from_millis(3);
/// How long a read batch is gathered for at most.
const GATHERED_WITHIN: Duration = Duration::from_millis(20);
/// So many reads in a row without an event mean that only others are busy.
const CHATTER: u32 = 20;
/// How long each of them is waited for at most.
const CHATTER_WITHIN: Duration = Duration::from_millis(20);
/// As much as a keepalive or an empty transaction of each of some dozens. More is a backlog of what
/// is known already.
const CHATTER_BYTES: usize = 8 * 1024;
/// How long the next read then waits: a hundred wake-ups a second are some tenths of a percent of a
/// core. An event that comes meanwhile, the first after many keepalives, is that much later.
const CHATTER_REST: Duration = Duration::from_millis(8);
/// After so long without an event an outbox is idle, and the next read waits for longer still.
const IDLE_AFTER: Duration = Duration::from_secs(10);
/// Twenty wake-ups a second, and what an event after ten seconds without one may be late.
const IDLE_REST: Duration = Duration::from_millis(50);
/// Some 130 keepalives. A Unix socket holds 160, and a walsender that finds it full falls behind
/// the busy neighbour: where a rest brought more than this, the next one is a short one.
const IDLE_BYTES: usize = 3 * 1024;

/// The inputs that a wait for the socket may yield.
#[derive(Debug, Clone, Copy)]
pub(super) struct Readiness {
    pub(super) reads: bool,
    /// Whether messages are left to be taken in at once.
    pub(super) has_more: bool,
    /// Whether deliveries are waited for beside it.
    pub(super) delivers: bool,
}

pub(super) struct StreamReader {
    pub(super) wal: WalStream,
    /// Whether messages were left in the buffer for the next turn.
    pub(super) has_more: bool,
    /// The last notice since the last change: a server that waits for a standby repeats it.
    pub(super) noticed: Option<Notice>,
    pub(super) pacer: ReadPacer,
    pub(super) alarm: Alarm,
}

impl StreamReader {
    pub(super) fn new(wal: WalStream) -> StreamReader {
        StreamReader {
            wal,
            has_more: false,
            noticed: None,
            pacer: ReadPacer::new(Instant::now()),
            alarm: Alarm::new(),
        }
    }

    /// Whether the bytes that were read wait for more: larger read batches make larger batches for
    /// the bus. Not without `room` for more: whether the socket is dry is not known then.
    pub(super) fn gathers(&mut self, room: bool) -> bool {
        room && !self.has_more
            && self
                .pacer
                .gathers(Instant::now(), self.wal.buffered_bytes())
    }

    /// Whether the next wait ends at once.
    pub(super) fn is_busy(&self, rests: bool) -> bool {
        self.has_more || !rests && self.pacer.is_backlog()
    }

    /// The inputs that the next wait may yield, where there is `room` for events or none.
    pub(super) fn prepare(&mut self, room: bool, rests: bool) -> Readiness {
        let has_more = room && self.has_more;
        // A full Unix socket keeps the walsender waiting. Its bytes fit beside those that were left
        // for this turn.
        let reads = room && !rests && (!has_more || self.wal.buffered_bytes() < READ_BATCH_BYTES);
        if !reads || self.pacer.is_backlog() {
            self.wal.unwatch();
        }
        if reads && !has_more {
            self.pacer.ready(Instant::now());
        }
        // Where more is read in a moment, and there is room for it, deliveries can wait for that:
        // one wake-up instead of many.
        Readiness {
            reads,
            has_more,
            delivers: reads || !room || !self.pacer.is_backlog(),
        }
    }

    /// The socket was read; `events` were taken in before.
    pub(super) fn was_read(&mut self, io: Io, events: u64) {
        if io.received_bytes > 0 {
            self.pacer.read(
                Instant::now(),
                io.received_bytes,
                self.wal.buffered_bytes(),
                events,
            );
        }
    }

    pub(super) fn is_dry(&mut self) {
        self.pacer.dry(Instant::now(), self.wal.buffered_bytes());
    }
}

/// How soon to read again. The walsender sends each row by itself, and may send a keepalive for
/// each transaction of other tables. To wake a sleeping reader for each of them costs both sides
/// more than the read.
///
/// - Several reads without a pause mean a backlog. The next read waits for half a millisecond, and
///   gets more bytes for one wake-up. The waits go on while they bring many bytes; otherwise they
///   are not worth their latency.
/// - Several small reads without an event mean that other tables are busy. The next read waits for
///   longer, and for longer still once the outbox has been idle for a while. The first event ends
///   that.
///
/// Bytes that arrive meanwhile wait in the socket. Read bytes are taken in at once; in a backlog, a
/// read batch is gathered first.
#[derive(Debug)]
pub(super) struct ReadPacer {
    last_read: Instant,
    /// The last look for more: a read, or one that found nothing.
    last_look: Instant,
    /// Since when the next read has been waited for.
    ready_since: Option<Instant>,
    /// Whether the next read was put off.
    rested: bool,
    /// How many reads in a row came at once.
    at_once: u32,
    /// Since when a read batch is gathered.
    gathers_since: Option<Instant>,
    /// Events there had been before the last read, and how many reads in a row brought none.
    events: u64,
    idle_reads: u32,
    /// Events there are, and since when there are so many.
    newest: (u64, Instant),
    last_bytes: usize,
}

impl ReadPacer {
    fn new(now: Instant) -> Self {
        ReadPacer {
            last_read: now,
            last_look: now,
            ready_since: None,
            rested: false,
            at_once: 0,
            gathers_since: None,
            events: 0,
            idle_reads: 0,
            newest: (0, now),
            last_bytes: 0,
        }
    }

    /// From now on a read is waited for, if it was not before.
    fn ready(&mut self, now: Instant) {
        self.ready_since.get_or_insert(now);
    }

    /// `bytes` were read, and so many are not taken in by now. The others had `events` in all.
    fn read(&mut self, now: Instant, bytes: usize, buffered_bytes: usize, events: u64) {
        let waited = now.duration_since(self.ready_since.take().unwrap_or(now));
        let chatters = events == self.events && waited < CHATTER_WITHIN && bytes < CHATTER_BYTES;
        self.idle_reads = if chatters {
            self.idle_reads.saturating_add(1)
        } else {
            0
        };
        let vain =
            std::mem::take(&mut self.rested) && bytes < WORTH_BYTES && buffered_bytes < BEGUN_BYTES;
        // In a backlog, a walsender that was late had lost its core for a moment.
        let (soon, late) = if self.is_backlog() {
            (DRY_AFTER, RESUMED)
        } else {
            (AT_ONCE, 0)
        };
        self.at_once = match vain {
            true => 0,
            false if waited < soon => self.at_once.saturating_add(1),
            false => late,
        };
        self.events = events;
        self.last_read = now;
        self.last_look = now;
        self.last_bytes = bytes;
    }

    /// Until when the next read waits, if it does; `events` is what there are by now.
    pub(super) fn rests_until(&mut self, now: Instant, events: u64) -> Option<Instant> {
        if events != self.newest.0 {
            self.newest = (events, now);
        }
        let is_idle = self.last_bytes < IDLE_BYTES
            && self.last_read.duration_since(self.newest.1) >= IDLE_AFTER;
        let rest = match self.idle_reads >= CHATTER && events == self.events {
            true if is_idle => IDLE_REST,
            true => CHATTER_REST,
            false if self.is_backlog() => REST,
            false => return None,
        };
        let until = Some(self.last_look + rest).filter(|until| *until > now);
        self.rested |= until.is_some();
        until
    }

    /// The socket has nothing more: `buffered_bytes` are all there is, or a walsender that has a
    /// backlog gets some more time.
    fn dry(&mut self, now: Instant, buffered_bytes: usize) {
        if buffered_bytes < BEGUN_BYTES {
            self.at_once = 0;
        } else if now.duration_since(self.last_read) >= DRY_AFTER {
            self.at_once = RESUMED;
        }
        self.last_look = now;
        self.ready_since = None;
    }

    /// Whether these bytes, which were read and not taken in yet, wait for more. The caller looks
    /// for more each time a rest is over, and calls [`ReadPacer::dry`] where there is none.
    fn gathers(&mut self, now: Instant, buffered_bytes: usize) -> bool {
        let since = *self.gathers_since.get_or_insert(now);
        let is_small = (1..READ_BATCH_BYTES).contains(&buffered_bytes);
        let gathers = self.is_backlog() && is_small && now.duration_since(since) < GATHERED_WITHIN;
        if !gathers {
            self.gathers_since = None;
        }
        gathers
    }

    /// Whether reads follow each other at once and bring much.
    fn is_backlog(&self) -> bool {
        self.at_once >= BACKLOG
    }
}

/// A timer that rings within a part of a millisecond; where the system has none, Tokio's own, which
/// is coarser.
#[derive(Debug)]
pub(super) struct Alarm(#[cfg(target_os = "linux")] Option<linux::Timer>);

impl Alarm {
    /// Made in a Tokio runtime.
    #[cfg(target_os = "linux")]
    fn new() -> Self {
        Alarm(
            linux::Timer::new()
                .inspect_err(|error| tracing::debug!(%error, "no timer to be had"))
                .ok(),
        )
    }

    /// Made in a Tokio runtime.
    #[cfg(not(target_os = "linux"))]
    fn new() -> Self {
        Alarm()
    }

    /// Waits until then. Safe to cancel.
    pub(super) async fn at(&mut self, until: Instant) {
        #[cfg(target_os = "linux")]
        if let Some(timer) = &mut self.0
            && timer
                .set(until.saturating_duration_since(Instant::now()))
                .is_ok()
            && timer.rung().await.is_ok()
        {
            return;
        }
        tokio::time::sleep_until(until).await;
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::unix::AsyncFd;

    /// <https://man7.org/linux/man-pages/man2/timerfd_create.2.html>
    #[derive(Debug)]
    pub(super) struct Timer(AsyncFd<OwnedFd>);

    impl Timer {
        #[expect(
            deprecated,
            reason = "what replaces it is unsafe, for descriptors that change; this one is owned"
        )]
        pub(super) fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            Ok(Timer(AsyncFd::new(timerfd_create(
                TimerfdClockId::Monotonic,
                flags,
            )?)?))
        }

        /// Replaces the time it was set to before.
        pub(super) fn set(&mut self, after: Duration) -> io::Result<()> {
            // Zero would mean never.
            let after =
                Timespec::try_from(after.max(Duration::from_nanos(1))).map_err(io::Error::other)?;
            let never = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let once = Itimerspec {
                it_interval: never,
                it_value: after,
            };
            timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
            Ok(())
        }

        pub(super) async fn rung(&self) -> io::Result<()> {
            loop {
                let mut guard = self.0.readable().await?;
                let read = rustix::io::read(self.0.get_ref(), &mut [0; 8]);
                // It rings once.
                guard.clear_ready();
                match read {
                    Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                    read => return read.map(|_| ()).map_err(io::Error::from),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    const SHORT: Duration = Duration::from_micros(10);
    /// Between two keepalives of a busy server.
    const HALF: Duration = Duration::from_micros(500);

    /// A reader, and its time.
    struct Reader {
        pace: ReadPacer,
        now: Instant,
    }

    impl Reader {
        fn new() -> Reader {
            let now = Instant::now();
            Reader {
                pace: ReadPacer::new(now),
                now,
            }
        }

        /// In a backlog of events.
        fn behind() -> Reader {
            let mut reader = Reader::new();
            reader.reads(BACKLOG, SHORT, 50_000, u64::from);
            reader
        }

        /// Reads as soon as it may, each time `bytes` that come `apart` after the reader was ready;
        /// gives the time of all.
        fn reads(
            &mut self,
            count: u32,
            apart: Duration,
            bytes: usize,
            events: impl Fn(u32) -> u64,
        ) -> Duration {
            let began = self.now;
            for read in 0..count {
                self.pace.ready(self.now);
                self.now += apart;
                self.pace.read(self.now, bytes, bytes, events(read));
                self.now = self
                    .pace
                    .rests_until(self.now, events(read + 1))
                    .unwrap_or(self.now);
            }
            self.now - began
        }
    }

    #[test]
    fn a_backlog_is_read_twice_a_millisecond_even_if_delivered_before() {
        let mut reader = Reader::new();
        let took = reader.reads(100, SHORT, 50_000, |read| u64::from(read) * 50);
        assert!(
            reader.pace.is_backlog() && took >= 46 * MS && took < 49 * MS,
            "{took:?}"
        );
        let took = Reader::new().reads(100, SHORT, CHATTER_BYTES, |_| 7);
        assert!(took < 49 * MS, "{took:?}");
    }

    #[test]
    fn sparse_messages_and_slow_rows_are_read_without_a_rest() {
        // Rows that take longer than a rest; events now and then; keepalives far apart.
        for (before, bytes, after, events) in [
            (Duration::ZERO, 50_000, 2 * MS, 50),
            (AT_ONCE, 300, Duration::ZERO, 1),
            (CHATTER_WITHIN, 23, Duration::ZERO, 0),
        ] {
            let Reader { mut pace, mut now } = Reader::new();
            for read in 0..100 {
                pace.ready(now);
                now += before;
                pace.read(now, bytes, bytes, read * events);
                now += after;
                assert_eq!(pace.rests_until(now, (read + 1) * events), None, "{bytes}");
            }
            assert_eq!(pace.is_backlog(), bytes == 50_000);
        }
    }

    #[test]
    fn a_rest_that_gathers_few_bytes_is_not_followed_by_another() {
        // 2,000 events a second, of which some come close together.
        let took = Reader::new().reads(9 * 11, SHORT, 500, u64::from);
        assert!(took < 8 * MS, "{took:?}");
    }

    #[test]
    fn a_read_batch_grows_until_large_or_old_or_all_has_been_read() {
        let Reader { mut pace, now } = Reader::new();
        assert!(!pace.gathers(now, 100), "one row is no backlog");
        let Reader { mut pace, now } = Reader::behind();
        assert!(pace.gathers(now, 50_000) && !pace.gathers(now, READ_BATCH_BYTES));
        assert!(pace.gathers(now, 50_000) && pace.gathers(now + GATHERED_WITHIN / 2, 100_000));
        assert!(!pace.gathers(now + GATHERED_WITHIN, 150_000));
        assert!(
            pace.gathers(now + GATHERED_WITHIN, 50_000),
            "the next one has its own time"
        );
        pace.dry(now, 50_000);
        assert!(
            !pace.gathers(now + GATHERED_WITHIN, 50_000),
            "no large one, and all there is"
        );
    }

    #[test]
    fn a_large_read_batch_grows_through_a_short_pause_of_the_walsender() {
        let mut reader = Reader::behind();
        let Reader { pace, now } = &mut reader;
        let paused = *now;
        while *now < paused + DRY_AFTER - REST {
            pace.ready(*now);
            pace.dry(*now, BEGUN_BYTES);
            assert!(pace.gathers(*now, BEGUN_BYTES));
            *now = pace.rests_until(*now, 8).unwrap();
        }
        // Little by itself, and late, it adds to much.
        pace.ready(*now);
        *now += DRY_AFTER / 2;
        pace.read(*now, 300, BEGUN_BYTES + 300, 8);
        assert!(pace.gathers(*now, BEGUN_BYTES + 300));
        *now += DRY_AFTER;
        pace.dry(*now, BEGUN_BYTES + 300);
        assert!(!pace.gathers(*now, BEGUN_BYTES + 300));
        // It was a pause all the same.
        reader.reads(2, SHORT, 50_000, |_| 8);
        assert!(reader.pace.is_backlog());
        // Or the end: what trickles in is read as it comes.
        reader.pace.dry(reader.now, 300);
        reader.reads(2, SHORT, 300, |_| 8);
        assert!(!reader.pace.is_backlog());
    }

    #[test]
    fn keepalives_are_read_in_groups_until_an_event_arrives() {
        let mut reader = Reader::new();
        reader.reads(CHATTER, HALF, 23, |_| 7);
        let took = reader.reads(100, HALF, 23, |_| 7);
        assert!(took >= 790 * MS, "{took:?}");
        // The read that has an event in it is followed by others as soon as ever.
        let Reader { mut pace, mut now } = reader;
        pace.ready(now);
        now += MS;
        pace.read(now, 300, 300, 7);
        assert_eq!(pace.rests_until(now, 8), None);
    }

    #[test]
    fn an_idle_outbox_beside_a_busy_table_is_read_twenty_times_a_second() {
        let mut reader = Reader::new();
        // The first event, and a while in which there is nothing to be read at all.
        assert_eq!(reader.pace.rests_until(reader.now, 7), None);
        reader.now += IDLE_AFTER;
        reader.reads(CHATTER + 1, HALF, 23, |_| 7);
        let took = reader.reads(20, HALF, 23 * 100, |_| 7);
        assert!(took >= 990 * MS, "{took:?}");
        // A neighbour that fills a small buffer meanwhile is not kept waiting.
        let took = reader.reads(20, HALF, IDLE_BYTES, |_| 7);
        assert!(took < 190 * MS, "{took:?}");
        // After an event it is as if nothing had been.
        reader.reads(CHATTER + 1, HALF, 23, |_| 8);
        let took = reader.reads(20, HALF, 23, |_| 8);
        assert!(took < 190 * MS, "{took:?}");
    }

    #[tokio::test]
    async fn an_alarm_does_not_fire_before_its_time_nor_at_an_earlier_one_when_set_again() {
        let mut alarm = Alarm::new();
        let at_once = tokio::time::timeout(Duration::from_secs(10), alarm.at(Instant::now()));
        at_once.await.expect("a time that has come");
        for _ in 0..20 {
            let soon = Instant::now() + Duration::from_micros(100);
            // Polled once, so that it is set; it may have rung by the time it is set anew.
            tokio::select! {
                biased;
                () = alarm.at(soon) => {},
                () = tokio::task::yield_now() => {}
            }
            while Instant::now() < soon {
                tokio::task::yield_now().await;
            }
            let until = Instant::now() + Duration::from_millis(2);
            alarm.at(until).await;
            assert!(Instant::now() >= until);
        }
    }
}
