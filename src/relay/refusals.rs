//! Topics that refuse records while everything waits for them: how often each was tried. No I/O.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::RetryConfig;

/// Longer than a broker and librdkafka take to find out that a topic refuses.
const TRY: Duration = Duration::from_secs(60);
/// Topics remembered: rows make them.
const TOPICS_MAX: usize = 10_000;

/// How often topics were tried in a row.
#[derive(Debug, Default)]
pub(super) struct Refusals(HashMap<String, Refused>);

#[derive(Debug)]
struct Refused {
    tries: u32,
    last: Instant,
    /// Whether an event for it is tried again, however long it takes to come to that.
    is_tried: bool,
}

impl Refusals {
    /// `topic` refused a record: how often it did in a row, and how long to wait before the next try; no longer than that
    /// where it was tried often enough. One whose events are given up is another matter after a while.
    pub(super) fn refused(
        &mut self,
        topic: &str,
        retry: &RetryConfig,
        now: Instant,
        chance: f64,
    ) -> (u32, Option<Duration>) {
        self.0.retain(|_, of| of.is_tried || now.duration_since(of.last) < 2 * retry.cap + TRY);
        if self.0.len() >= TOPICS_MAX {
            self.0.clear();
        }
        let of = self.0.entry(topic.to_owned()).or_insert(Refused { tries: 0, last: now, is_tried: true });
        let tries = of.tries.saturating_add(1);
        let wait = retry.wait(tries, chance);
        *of = Refused { tries, last: now, is_tried: wait.is_some() };
        (tries, wait)
    }

    /// `topic` took a record.
    pub(super) fn took(&mut self, topic: &str) {
        self.0.remove(topic);
    }

    /// How often `topic` refused a record in a row.
    pub(super) fn tries(&self, topic: &str) -> u32 {
        self.0.get(topic).map_or(1, |of| of.tries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn waits_grow_up_to_the_cap_until_the_attempts_are_used_up() {
        let retry = RetryConfig { attempts: 4, base: SECOND, factor: 2, cap: 5 * SECOND, jitter_percent: 0 };
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        let mut waits = || refusals.refused("a", &retry, now, 0.0).1.map(|wait| wait.as_secs());
        assert_eq!([(); 6].map(|()| waits()), [Some(1), Some(2), Some(4), Some(5), None, None]);
        // Another topic is another matter, and so is the same one much later.
        assert_eq!(refusals.refused("b", &retry, now, 0.0), (1, Some(SECOND)));
        assert_eq!(refusals.refused("a", &retry, now + 100 * SECOND, 0.0), (1, Some(SECOND)));
    }

    #[test]
    fn as_many_tries_are_made_as_are_configured_however_long_each_takes_to_come_to() {
        let retry = RetryConfig { attempts: 3, base: SECOND, factor: 1, cap: SECOND, jitter_percent: 0 };
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        let mut at = |hours: u32| refusals.refused("a", &retry, now + hours * 3600 * SECOND, 0.0).0;
        assert_eq!([at(0), at(1), at(2), at(3)], [1, 2, 3, 4]);
        assert_eq!(at(4), 1, "events for it were given up for long");
        refusals.took("a");
        assert_eq!(refusals.refused("a", &retry, now, 0.0), (1, Some(SECOND)));
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
}
