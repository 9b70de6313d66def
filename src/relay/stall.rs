//! Whether the producer is stuck: events in flight, none acked for a while, and Kafka there all the same.
//!
//! librdkafka waits for as long as it takes, which is right while Kafka is away, and wrong where only librdkafka has
//! lost its way. So somebody else asks Kafka. Where it answers, the producer gets some time to find it as well: a
//! broker that is back this moment is no stall.

use std::time::Duration;

use tokio::time::Instant;

/// Nothing acked for this long makes one wonder. Longer than a leader election or a broker's restart.
const SUSPICIOUS: Duration = Duration::from_secs(20);

/// How long the producer then has, from an answer of Kafka to somebody else. Some times librdkafka's longest wait
/// between two tries to connect.
const GRACE: Duration = Duration::from_secs(10);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Stall {
    acked: u64,
    since: Instant,
    /// Whether Kafka has answered somebody else since the last ack.
    answered: bool,
    /// Whether the stall was spoken of.
    told: bool,
}

impl Stall {
    pub(super) fn new(now: Instant) -> Self {
        Stall { acked: 0, since: now, answered: false, told: false }
    }

    /// Whether it is time to ask Kafka: again and again while the stall lasts.
    pub(super) fn is_due(&mut self, now: Instant, acked: u64, drained: bool) -> bool {
        if drained || acked != self.acked {
            *self = Stall { acked, ..Stall::new(now) };
            return false;
        }
        let patience = if self.answered { GRACE } else { SUSPICIOUS };
        let due = now.duration_since(self.since) >= patience;
        if due {
            self.since = now;
        }
        due
    }

    /// Whether this stall is news: once for each.
    pub(super) fn is_news(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true)
    }

    /// Kafka was asked, and answered or not. Whether the producer is stuck.
    pub(super) fn is_stuck(&mut self, now: Instant, kafka_answers: bool, acked: u64, drained: bool) -> bool {
        let stuck = kafka_answers && self.answered && !drained && acked == self.acked;
        self.answered = kafka_answers;
        self.since = now;
        stuck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kafka_is_asked_once_nothing_in_flight_was_acked_for_a_while() {
        let start = Instant::now();
        let mut stall = Stall::new(start);
        assert!(!stall.is_due(start + SUSPICIOUS, 0, true), "idle");
        assert!(!stall.is_due(start + SUSPICIOUS, 0, false), "it has just begun");
        assert!(!stall.is_due(start + SUSPICIOUS * 2, 1, false), "an ack came");
        assert!(!stall.is_due(start + SUSPICIOUS * 3 - GRACE, 1, false));
        assert!(stall.is_due(start + SUSPICIOUS * 3, 1, false));
        assert!(stall.is_news() && !stall.is_news());
        assert!(!stall.is_due(start + SUSPICIOUS * 3, 1, false), "once");
        assert!(stall.is_due(start + SUSPICIOUS * 4, 1, false), "and again");
    }

    #[test]
    fn a_producer_is_stuck_where_kafka_answers_twice_and_nothing_is_acked_between() {
        let start = Instant::now();
        let mut stall = Stall::new(start);
        let mut now = start + SUSPICIOUS;
        assert!(stall.is_due(now, 0, false));
        assert!(!stall.is_stuck(now, false, 0, false), "Kafka is away");
        now += SUSPICIOUS;
        assert!(stall.is_due(now, 0, false));
        assert!(!stall.is_stuck(now, true, 0, false), "Kafka may be back just now");
        assert!(!stall.is_due(now + GRACE / 2, 0, false));
        now += GRACE;
        assert!(stall.is_due(now, 0, false));
        assert!(stall.is_stuck(now, true, 0, false));
    }

    #[test]
    fn an_ack_between_two_answers_is_a_sign_of_life() {
        let start = Instant::now();
        let mut stall = Stall::new(start);
        assert!(!stall.is_stuck(start, true, 0, false));
        assert!(!stall.is_due(start + GRACE, 1, false));
        assert!(!stall.is_stuck(start + GRACE, true, 1, false), "the first answer since");
        assert!(!stall.is_stuck(start + GRACE, true, 2, false), "acked while Kafka was asked");
        assert!(!stall.is_stuck(start + GRACE, true, 1, true), "nothing is in flight");
    }
}
