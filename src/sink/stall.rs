//! Whether a producer has lost its way: what it was given gets nowhere, and Kafka is there all the same. No I/O.
//!
//! librdkafka waits for as long as it takes, which is right while Kafka is away, and wrong where only librdkafka does not find
//! it any more. That happens: an answer in which a broker names no brokers, as one does that has just started or was fenced,
//! makes it forget all it knows, and ask nobody ever again (confluentinc/librdkafka#5301). So somebody else asks Kafka. Where
//! it answers, the producer gets some time to find it as well: a broker that is back this moment is no stall.

use std::time::{Duration, Instant};

/// Nothing reported for this long makes one wonder, although a broker answers this producer. Longer than a leader election or a
/// broker's restart.
const SUSPICIOUS: Duration = Duration::from_secs(20);
/// How long such a producer then has, from an answer of Kafka to somebody else.
const GRACE: Duration = Duration::from_secs(10);
/// Where no broker answers the producer, it is asked of others so soon.
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
    /// Whether the stall was spoken of.
    told: bool,
}

impl Stall {
    pub(super) fn new(rest: Duration) -> Stall {
        Stall { rest, since: None, answered: None, told: false }
    }

    /// How long the producer has got nowhere; none where it gets on, or has nothing to do.
    pub(super) fn look(&mut self, now: Instant, seen: Seen) -> Option<Duration> {
        if seen.reported || seen.is_up && !seen.waits {
            self.begin_anew();
            return None;
        }
        Some(now.duration_since(*self.since.get_or_insert(now)))
    }

    /// Nothing is held against the producer any more.
    pub(super) fn begin_anew(&mut self) {
        *self = Stall::new(self.rest);
    }

    /// Whether it is time for somebody else to ask Kafka: again and again while the stall lasts.
    pub(super) fn is_due(&self, now: Instant, is_up: bool) -> bool {
        let patience = match (is_up, self.answered) {
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

    /// Kafka was asked by somebody else while the producer got nowhere, and answered or not. Whether the producer is lost.
    pub(super) fn asked(&mut self, now: Instant, answers: bool) -> bool {
        self.since = Some(now);
        self.answered.replace(answers) == Some(true) && answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITS: Seen = Seen { reported: false, waits: true, is_up: true };
    const AWAY: Seen = Seen { reported: false, waits: false, is_up: false };
    const IDLE: Seen = Seen { reported: false, waits: false, is_up: true };

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
            assert!(stall.is_due(now, seen.is_up) && !stall.asked(now, false), "Kafka is away");
            assert!(!stall.is_due(now, seen.is_up), "once");
            now += again;
            assert!(stall.is_due(now, seen.is_up) && !stall.asked(now, true), "Kafka may be back just now");
            now += second / 2;
            assert!(!stall.is_due(now, seen.is_up), "it has some time");
            now += second / 2;
            assert!(stall.is_due(now, seen.is_up) && stall.asked(now, true));
        }
    }

    #[test]
    fn a_report_between_two_answers_is_a_sign_of_life_and_so_is_an_answer_where_nothing_waits() {
        let now = Instant::now();
        for life in [Seen { reported: true, ..WAITS }, IDLE] {
            let mut stall = Stall::new(Duration::ZERO);
            stall.look(now, AWAY);
            assert!(!stall.asked(now, true));
            assert_eq!(stall.look(now, life), None);
            stall.look(now, WAITS);
            assert!(!stall.asked(now, true), "the first answer since");
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
        assert_eq!([true, false, true, true].map(|answers| stall.asked(now, answers)), [false, false, false, true]);
    }
}
