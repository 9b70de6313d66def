//! How soon to read again. The walsender sends each row by itself, and for each transaction of somebody else's it may send
//! a keepalive: waking a sleeping reader for every one of them costs both sides more than what is read.
//!
//! - Reads that follow each other at once mean a backlog: the next one waits for a millisecond, and gets more for less.
//! - Read after read of a little without an event means a busy neighbour: the next one waits for longer. The first event ends
//!   that.
//!
//! What was read is dealt with at once in any case; what comes meanwhile waits in the socket.

use std::time::Duration;

use tokio::time::Instant;

/// Reads that follow each other this fast, apart from the rest between them, mean a backlog.
const BUSY_WITHIN: Duration = Duration::from_micros(300);
/// How long the next read then waits: latency where there is a backlog, and nothing elsewhere.
const REST: Duration = Duration::from_millis(1);
/// So many reads in a row without an event mean that only others are busy.
const CHATTER: u32 = 20;
/// What lies between two of them at most.
const CHATTER_WITHIN: Duration = Duration::from_millis(20);
/// As much as a keepalive or an empty transaction of each of some dozens. More is a backlog of what is known already.
const CHATTER_BYTES: usize = 8 * 1024;
/// How long the next read then waits: a hundred wake-ups a second are some tenths of a percent of a core. An event that
/// comes meanwhile, the first after many keepalives, is that much later.
const CHATTER_REST: Duration = Duration::from_millis(8);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Pace {
    last_read: Instant,
    /// Whether the last read came at once after the one before.
    busy: bool,
    /// Events there had been before the last read, and how many reads in a row brought none.
    events: u64,
    idle_reads: u32,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Pace { last_read: now, busy: false, events: 0, idle_reads: 0 }
    }

    /// `bytes` were read. What was read before had `events` in all.
    pub(super) fn read(&mut self, now: Instant, bytes: usize, events: u64) {
        let since = now.duration_since(self.last_read);
        let chatters = events == self.events && since < CHATTER_WITHIN && bytes < CHATTER_BYTES;
        self.idle_reads = if chatters { self.idle_reads.saturating_add(1) } else { 0 };
        self.busy = since < BUSY_WITHIN + REST;
        (self.events, self.last_read) = (events, now);
    }

    /// Until when the next read waits, if it does; `events` is what there are by now.
    pub(super) fn rests_until(&self, now: Instant, events: u64) -> Option<Instant> {
        let rest = match self.idle_reads >= CHATTER && events == self.events {
            true => CHATTER_REST,
            false if self.busy => REST,
            false => return None,
        };
        Some(self.last_read + rest).filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Reads as soon as it may, each time something that was there; gives how long all of it took.
    fn reads(
        pace: &mut Pace,
        now: &mut Instant,
        count: u32,
        apart: Duration,
        (bytes, events): (usize, impl Fn(u32) -> u64),
    ) -> Duration {
        let began = *now;
        for read in 0..count {
            *now += apart;
            pace.read(*now, bytes, events(read));
            *now = pace.rests_until(*now, events(read + 1)).unwrap_or(*now);
        }
        *now - began
    }

    #[test]
    fn a_backlog_is_read_once_a_millisecond() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        let took = reads(&mut pace, &mut now, 100, Duration::from_micros(10), (50_000, |read| u64::from(read) * 50));
        assert!(took >= 99 * MS && took < 105 * MS, "{took:?}");
    }

    #[test]
    fn what_comes_now_and_then_is_read_at_once() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        for number in 0..100 {
            now += 3 * MS;
            pace.read(now, 300, number);
            assert_eq!(pace.rests_until(now, number + 1), None);
        }
    }

    #[test]
    fn keepalives_alone_are_read_in_heaps_until_there_is_an_event() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        reads(&mut pace, &mut now, CHATTER, Duration::from_micros(500), (23, |_| 7));
        let took = reads(&mut pace, &mut now, 100, Duration::from_micros(500), (23, |_| 7));
        assert!(took >= 790 * MS, "{took:?}");
        // The read that has an event in it is followed by others as soon as ever.
        now += MS;
        pace.read(now, 300, 7);
        assert!(pace.rests_until(now, 8).is_none_or(|until| until - now <= REST));
        pace.read(now + MS, 300, 8);
        assert!(pace.rests_until(now + MS, 9).is_none_or(|until| until - now <= 2 * MS));
    }

    #[test]
    fn what_was_delivered_before_is_read_as_fast_as_a_backlog() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        let took = reads(&mut pace, &mut now, 100, Duration::from_micros(10), (CHATTER_BYTES, |_| 7));
        assert!(took < 105 * MS, "{took:?}");
    }

    #[test]
    fn keepalives_far_apart_are_read_at_once() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        for _ in 0..100 {
            now += CHATTER_WITHIN;
            pace.read(now, 23, 0);
            assert_eq!(pace.rests_until(now, 0), None);
        }
    }
}
