//! Whether a producer has lost its way: what it was given gets nowhere, and Kafka is there all the same. No I/O.
//!
//! librdkafka waits for as long as it takes, which is right while Kafka is away, and wrong where only librdkafka does not find
//! it any more. That happens: an answer in which a broker names no brokers, as one does that has just started or was fenced,
//! makes it forget all it knows, and ask nobody ever again (confluentinc/librdkafka#5301). So somebody else asks Kafka. Where
//! it answers, the producer gets some time to find it as well: a broker that is back this moment is no stall.

use std::time::{Duration, Instant};

/// Nothing reported for this long makes one wonder, although this producer reaches a broker. Longer than a leader election or a
/// broker's restart, and as long as a leader waits for a follower that stands still (`replica.lag.time.max.ms`).
const SUSPICIOUS: Duration = Duration::from_secs(30);
/// How long such a producer then has, from an answer of Kafka to somebody else.
const GRACE: Duration = Duration::from_secs(10);
/// Where the producer reaches no broker, it is asked of others so soon.
const UNREACHED: Duration = Duration::from_secs(5);

/// What is seen of a producer at one look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// Whether anything was reported since the last look.
    pub(super) reported: bool,
    /// Whether anything is on its way.
    pub(super) waits: bool,
    /// Whether a broker answers it.
    pub(super) is_up: bool,
    /// Whether it has a broker to ask, which may be slow to answer.
    pub(super) is_reached: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Stall {
    /// How long librdkafka may rest by itself: between two tries to connect, or for more records to send.
    rest: Duration,
    /// Since when it gets nowhere, or since Kafka was asked about it.
    since: Option<Instant>,
    /// Whether it answered, if it was asked.
    answered: Option<bool>,
    /// Whether the producer reached a broker when last looked at. What is asked of others depends on it.
    is_reached: bool,
    /// Whether the stall was spoken of.
    told: bool,
}

impl Stall {
    pub(super) fn new(rest: Duration) -> Stall {
        Stall { rest, since: None, answered: None, is_reached: false, told: false }
    }

    /// How long the producer has got nowhere; none where it gets on, or has nothing to do.
    pub(super) fn look(&mut self, now: Instant, seen: Seen) -> Option<Duration> {
        if seen.reported || seen.is_up && !seen.waits {
            self.begin_anew();
            return None;
        }
        if std::mem::replace(&mut self.is_reached, seen.is_reached) != seen.is_reached {
            self.answered = None;
        }
        Some(now.duration_since(*self.since.get_or_insert(now)))
    }

    /// Nothing is held against the producer any more.
    pub(super) fn begin_anew(&mut self) {
        *self = Stall::new(self.rest);
    }

    /// Whether it is time for somebody else to ask Kafka: again and again while the stall lasts.
    pub(super) fn is_due(&self, now: Instant, is_reached: bool) -> bool {
        let patience = match (is_reached, self.answered) {
            (false, None) => UNREACHED,
            (true, None | Some(false)) => SUSPICIOUS,
            (_, Some(true)) | (false, Some(false)) => GRACE,
        };
        self.since.is_some_and(|since| now.duration_since(since) >= patience + self.rest)
    }

    /// Whether this stall is news: once for each.
    pub(super) fn is_news(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true)
    }

    /// Kafka was asked by somebody else, as suits a producer that reaches a broker or none, and answered or not. Whether the
    /// producer is lost.
    pub(super) fn asked(&mut self, now: Instant, is_reached: bool, answers: bool) -> bool {
        self.since = Some(now);
        // What is known of one says nothing of the other.
        let answers = Some(answers).filter(|_| is_reached == self.is_reached);
        std::mem::replace(&mut self.answered, answers) == Some(true) && answers == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITS: Seen = Seen { reported: false, waits: true, is_up: true, is_reached: true };
    const AWAY: Seen = Seen { reported: false, waits: false, is_up: false, is_reached: false };
    const IDLE: Seen = Seen { reported: false, waits: false, is_up: true, is_reached: true };

    #[test]
    fn kafka_is_asked_once_nothing_on_its_way_was_reported_for_a_while() {
        let start = Instant::now();
        let mut stall = Stall::new(Duration::ZERO);
        assert_eq!(stall.look(start, IDLE), None);
        assert!(!stall.is_due(start + SUSPICIOUS, true), "idle");
        assert_eq!(stall.look(start, WAITS), Some(Duration::ZERO), "it has just begun");
        assert_eq!(stall.look(start + GRACE, Seen { reported: true, ..WAITS }), None, "a report came");
        assert_eq!(stall.look(start + GRACE, WAITS), Some(Duration::ZERO));
        assert!(!stall.is_due(start + SUSPICIOUS, true));
        assert!(stall.is_due(start + SUSPICIOUS + GRACE, true));
        assert!(stall.is_news() && !stall.is_news());
    }

    #[test]
    fn a_producer_is_lost_where_kafka_answers_twice_and_nothing_is_reported_between() {
        for (seen, first, again, second) in [(WAITS, SUSPICIOUS, SUSPICIOUS, GRACE), (AWAY, UNREACHED, GRACE, GRACE)] {
            let mut now = Instant::now();
            let mut stall = Stall::new(Duration::ZERO);
            stall.look(now, seen);
            now += first;
            assert!(stall.is_due(now, seen.is_reached) && !stall.asked(now, seen.is_reached, false), "Kafka is away");
            assert!(!stall.is_due(now, seen.is_reached), "once");
            now += again;
            assert!(
                stall.is_due(now, seen.is_reached) && !stall.asked(now, seen.is_reached, true),
                "Kafka may be back just now"
            );
            now += second / 2;
            assert!(!stall.is_due(now, seen.is_reached), "it has some time");
            now += second / 2;
            assert!(stall.is_due(now, seen.is_reached) && stall.asked(now, seen.is_reached, true));
        }
    }

    #[test]
    fn a_report_between_two_answers_is_a_sign_of_life_and_so_is_an_answer_where_nothing_waits() {
        let now = Instant::now();
        for life in [Seen { reported: true, ..WAITS }, IDLE] {
            let mut stall = Stall::new(Duration::ZERO);
            stall.look(now, AWAY);
            assert!(!stall.asked(now, false, true));
            assert_eq!(stall.look(now, life), None);
            stall.look(now, AWAY);
            assert!(!stall.asked(now, false, true), "the first answer since");
        }
    }

    #[test]
    fn what_librdkafka_rests_by_itself_is_no_stall() {
        let (now, rest) = (Instant::now(), Duration::from_secs(60));
        let mut stall = Stall::new(rest);
        stall.look(now, WAITS);
        assert!(!stall.is_due(now + rest, true) && stall.is_due(now + rest + SUSPICIOUS, true));
    }

    #[test]
    fn an_answer_that_does_not_come_counts_for_those_before_it() {
        let now = Instant::now();
        let mut stall = Stall::new(Duration::ZERO);
        stall.look(now, WAITS);
        assert_eq!(
            [true, false, true, true].map(|answers| stall.asked(now, true, answers)),
            [false, false, false, true]
        );
    }

    /// A broker that waits for its followers is slow to answer its producer, and quick to answer others.
    #[test]
    fn what_answers_a_producer_that_reaches_nobody_is_not_held_against_one_that_does() {
        let now = Instant::now();
        let mut stall = Stall::new(Duration::ZERO);
        stall.look(now, AWAY);
        assert!(!stall.asked(now, false, true));
        stall.look(now, WAITS);
        assert!(!stall.is_due(now + SUSPICIOUS / 2, true) && !stall.asked(now, true, true));
        assert!(!stall.asked(now, false, true), "asked before it was reached");
        assert!(!stall.asked(now, true, true) && stall.asked(now, true, true));
    }
}
