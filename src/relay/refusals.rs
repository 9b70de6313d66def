//! Topics that refuse records while everything waits for them: how often each was tried. No I/O.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::RetryConfig;

/// Longer than a broker and librdkafka take to find out that a topic refuses.
const TRY: Duration = Duration::from_secs(60);

/// How often topics were tried in a row.
#[derive(Debug, Default)]
pub(super) struct Refusals(HashMap<String, (u32, Instant)>);

impl Refusals {
    /// `topic` refused a record: how often it did in a row, and how long to wait before the next try; no longer than that
    /// where it was tried often enough. One that did not for a while has taken records meanwhile.
    pub(super) fn refused(
        &mut self,
        topic: &str,
        retry: &RetryConfig,
        now: Instant,
        chance: f64,
    ) -> (u32, Option<Duration>) {
        self.0.retain(|_, (_, last)| now.duration_since(*last) < 2 * retry.cap + TRY);
        let (failed, last) = self.0.entry(topic.to_owned()).or_insert((0, now));
        *failed = failed.saturating_add(1);
        *last = now;
        (*failed, retry.wait(*failed, chance))
    }

    /// How often `topic` refused a record in a row.
    pub(super) fn tries(&self, topic: &str) -> u32 {
        self.0.get(topic).map_or(1, |(failed, _)| *failed)
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
    fn chance_makes_waits_shorter_and_never_longer() {
        let retry = RetryConfig { attempts: 1, base: 10 * SECOND, factor: 1, cap: 60 * SECOND, jitter_percent: 20 };
        assert_eq!(retry.wait(1, 0.0), Some(10 * SECOND));
        assert_eq!(retry.wait(1, 0.5), Some(9 * SECOND));
        assert_eq!(retry.wait(2, 0.5), None);
        let no_retry = RetryConfig { attempts: 0, ..retry };
        assert_eq!(no_retry.wait(1, 0.0), None);
    }
}
