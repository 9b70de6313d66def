//! Topics that refuse records: how often each did, when it is tried again, and for which of them events are given up. No I/O.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::RetryConfig;
use crate::error::Error;

/// Longer than a broker and librdkafka take to find out that a topic refuses.
const TRY: Duration = Duration::from_secs(60);
/// Topics remembered: rows make them.
const TOPICS_MAX: usize = 10_000;

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub struct Topics {
    /// Topics that refused a record and took none since.
    refusing: HashMap<String, Refusing>,
    /// Topics whose events are given up without a try, and for how long.
    given_up: HashMap<String, GivenUp>,
    /// How many took a record again from this producer.
    taking: u64,
    /// How often a topic was given up.
    learned: u64,
}

#[derive(Debug, Clone, Copy)]
struct Refusing {
    /// How often it refused in a row.
    tries: u32,
    last: Instant,
    /// Whether an event for it is tried again, however long it takes to come to that.
    is_tried: bool,
}

#[derive(Debug, Clone)]
struct GivenUp {
    error: Error,
    spell: Window,
}

/// For how long events for a topic are given up without a try.
#[derive(Debug, Clone, Copy)]
enum Window {
    /// For one event.
    Once,
    /// For so long from the first of them on: to come to it may take longer than that.
    For(Duration),
    /// Until then.
    Until(Instant),
}

impl Topics {
    /// Another producer begins.
    pub fn begin(&mut self) {
        self.taking = 0;
    }

    /// `topic` refused a record. Gives how often it did in a row, and how long to wait before the next try; no wait where it
    /// was tried often enough. A topic whose events are given up starts anew after a while.
    pub fn refused(&mut self, topic: &str, retry: &RetryConfig, now: Instant, chance: f64) -> (u32, Option<Duration>) {
        if self.refusing.len() >= TOPICS_MAX {
            self.refusing.clear();
        }
        let before = self.refusing.get(topic);
        let before = before.filter(|of| of.is_tried || now.duration_since(of.last) < 2 * retry.cap + TRY);
        let tries = before.map_or(0, |of| of.tries).saturating_add(1);
        let wait = retry.wait(tries, chance);
        self.refusing.insert(topic.to_owned(), Refusing { tries, last: now, is_tried: wait.is_some() });
        (tries, wait)
    }

    /// The name of `topic`, where it refused a record and took none since.
    #[inline]
    pub fn refusing(&self, topic: &str) -> Option<String> {
        if self.refusing.is_empty() {
            return None;
        }
        self.refusing.get_key_value(topic).map(|(topic, _)| topic.clone())
    }

    /// `topic` took a record.
    pub fn took(&mut self, topic: &str) {
        self.taking += u64::from(self.refusing.remove(topic).is_some());
    }

    /// How many topics that refused a record took one from this producer.
    pub fn taking(&self) -> u64 {
        self.taking
    }

    /// How often something was learned of a topic.
    pub fn learned(&self) -> u64 {
        self.learned
    }

    /// The next event for `topic` is given up for this reason, and so are all others for so long from then on.
    pub fn give_up(&mut self, topic: &str, mut error: Error, lasting: Duration) {
        let tries = self.refusing.get(topic).map_or(1, |of| of.tries);
        error.attempts = tries;
        self.note(topic, GivenUp { error, spell: Window::For(lasting) });
    }

    /// The next event for `topic` is given up for this reason; the table of parked events says what becomes of others.
    pub fn give_up_next(&mut self, topic: &str, error: Error) {
        self.note(topic, GivenUp { error, spell: Window::Once });
    }

    fn note(&mut self, topic: &str, given_up: GivenUp) {
        self.learned += 1;
        self.given_up.insert(topic.to_owned(), given_up);
    }

    /// Why an event for `topic` is given up now, if it is: where `suffices` says that the topic was tried often enough for
    /// it. Where it was not, the event is tried, and what then becomes of the topic is learned anew.
    pub fn given_up(&mut self, topic: &str, suffices: impl FnOnce(u32) -> bool) -> Option<Error> {
        if self.given_up.is_empty() {
            return None;
        }
        let GivenUp { error, spell } = self.given_up.get_mut(topic)?;
        let now = Instant::now();
        let is_over = match spell {
            Window::Once => return self.given_up.remove(topic).map(|given_up| given_up.error),
            Window::For(_) => false,
            Window::Until(until) => now >= *until,
        };
        if is_over || !suffices(error.attempts) {
            self.given_up.remove(topic);
            return None;
        }
        if let Window::For(lasting) = *spell {
            *spell = Window::Until(now + lasting);
        }
        Some(error.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    const SECOND: Duration = Duration::from_secs(1);

    fn retry(attempts: u32, factor: u32, cap: Duration) -> RetryConfig {
        RetryConfig { attempts, base: SECOND, factor, cap, jitter_percent: 0 }
    }

    #[test]
    fn waits_grow_up_to_the_cap_until_the_attempts_are_used_up() {
        let (mut topics, now, retry) = (Topics::default(), Instant::now(), retry(4, 2, 5 * SECOND));
        let mut waits = || topics.refused("a", &retry, now, 0.0).1.map(|wait| wait.as_secs());
        assert_eq!([(); 6].map(|()| waits()), [Some(1), Some(2), Some(4), Some(5), None, None]);
        // Another topic is another matter, and so is the same one much later.
        assert_eq!(topics.refused("b", &retry, now, 0.0), (1, Some(SECOND)));
        assert_eq!(topics.refused("a", &retry, now + 100 * SECOND, 0.0), (1, Some(SECOND)));
    }

    #[test]
    fn as_many_tries_are_made_as_are_configured_however_long_each_takes_to_come_to() {
        let (mut topics, now, retry) = (Topics::default(), Instant::now(), retry(3, 1, SECOND));
        let mut at = |hours: u32| topics.refused("a", &retry, now + hours * 3600 * SECOND, 0.0).0;
        assert_eq!([at(0), at(1), at(2), at(3)], [1, 2, 3, 4]);
        assert_eq!(at(4), 1, "events for it were given up for long");
        topics.took("a");
        assert_eq!(topics.refused("a", &retry, now, 0.0), (1, Some(SECOND)));
    }

    #[test]
    fn chance_makes_waits_shorter_and_never_longer() {
        let retry = RetryConfig { attempts: 1, base: 10 * SECOND, factor: 1, cap: 60 * SECOND, jitter_percent: 20 };
        assert_eq!(retry.wait(1, 0.0), Some(10 * SECOND));
        assert_eq!(retry.wait(1, 0.5), Some(9 * SECOND));
        assert_eq!(retry.wait(2, 0.5), None);
        let no_retry = RetryConfig { attempts: 0, ..retry };
        assert_eq!(no_retry.wait(1, 0.0), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_topic_is_given_up_for_a_while_from_the_first_event_that_comes_however_late_that_is() {
        let (mut topics, error) = (Topics::default(), Error::new(Kind::Record, "refused"));
        topics.give_up("orders", error.clone(), 2 * SECOND);
        for (seconds, is_given_up) in [(100, true), (1, true), (1, false), (1, false)] {
            tokio::time::advance(seconds * SECOND).await;
            assert_eq!(topics.given_up("orders", |_| true).is_some(), is_given_up);
        }
        topics.give_up_next("orders", error.clone());
        assert!(topics.given_up("orders", |_| true).is_some() && topics.given_up("orders", |_| true).is_none());
        topics.give_up("orders", error, 2 * SECOND);
        assert!(topics.given_up("orders", |attempts| attempts > 1).is_none());
        assert!(topics.given_up("orders", |_| true).is_none());
    }

    #[test]
    fn a_topic_takes_records_again_once_for_each_time_it_refused() {
        let (mut topics, now, retry) = (Topics::default(), Instant::now(), retry(3, 1, SECOND));
        topics.took("orders");
        assert_eq!(topics.taking(), 0);
        topics.refused("orders", &retry, now, 0.0);
        topics.begin();
        assert_eq!((topics.refusing("orders").as_deref(), topics.refusing("mail")), (Some("orders"), None));
        topics.took("mail");
        topics.took("orders");
        topics.took("orders");
        assert_eq!((topics.refusing("orders"), topics.taking()), (None, 1));
        topics.begin();
        assert_eq!(topics.taking(), 0);
    }
}
