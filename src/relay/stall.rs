//! Whether the producer is stuck: events in flight, and none acked for a while.
//!
//! librdkafka waits for as long as it takes, which is right while Kafka is away, and wrong where only librdkafka has
//! lost its way: a broker that was frozen and fenced can be missing from its map for good.

use std::time::Duration;

use tokio::time::Instant;

/// Nothing acked for this long makes one wonder. Longer than a leader election or a broker's restart.
const SUSPICIOUS: Duration = Duration::from_secs(20);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Stall {
    acked: u64,
    since: Instant,
}

impl Stall {
    pub(super) fn new(now: Instant) -> Self {
        Stall { acked: 0, since: now }
    }

    /// Whether it is time to look: again and again while the stall lasts.
    pub(super) fn is_due(&mut self, now: Instant, acked: u64, drained: bool) -> bool {
        let waited = now.duration_since(self.since);
        if self.is_still(acked, drained) && waited < SUSPICIOUS {
            return false;
        }
        let due = self.is_still(acked, drained);
        self.acked = acked;
        self.since = now;
        due
    }

    /// Whether nothing has been acked since the last look that was due.
    pub(super) fn is_still(&self, acked: u64, drained: bool) -> bool {
        !drained && acked == self.acked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_events_in_flight_without_an_ack_are_a_stall() {
        let start = Instant::now();
        let mut stall = Stall::new(start);
        assert!(!stall.is_due(start + SUSPICIOUS, 0, true), "idle");
        assert!(!stall.is_due(start + SUSPICIOUS, 0, false), "it has just begun");
        assert!(!stall.is_due(start + SUSPICIOUS * 2, 1, false), "an ack came");
        assert!(!stall.is_due(start + SUSPICIOUS * 2, 1, false));
        assert!(stall.is_due(start + SUSPICIOUS * 3, 1, false));
        assert!(stall.is_still(1, false));
        assert!(!stall.is_still(2, false));
        assert!(stall.is_due(start + SUSPICIOUS * 4, 1, false), "again");
    }
}
