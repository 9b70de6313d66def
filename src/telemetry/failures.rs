//! The last errors, for the status page.

use std::collections::VecDeque;

use jiff::Timestamp;
use tokio::sync::watch;

use walrelay_core::error::{Error, Kind};

const KEPT_MAX: usize = 8;
/// Longer texts are cut.
const TEXT_CHARS_MAX: usize = 1_000;

#[derive(Debug, Clone)]
pub(crate) struct Failure {
    kind: Kind,
    topic: Option<String>,
    pub(super) at: Timestamp,
    pub(super) times: u64,
    /// The newest one, without payload and secret, like every [`Error`].
    pub(super) what: String,
    pub(super) remedy: Option<String>,
}

/// The last errors, the newest first: one entry for each kind and topic. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failures(watch::Sender<VecDeque<Failure>>);

impl Failures {
    /// Keeps `error`, and forgets the oldest one beyond the limit.
    pub(crate) fn keep(&self, error: &Error) {
        let kind = error.kind();
        let topic = error.topic().map(str::to_owned);
        let remedy = error.what_to_do().map(|remedy| cut(&remedy));
        let at = Timestamp::now();
        let what = cut(&error.to_string());
        self.0.send_modify(|kept| {
            let same = kept
                .iter()
                .position(|known| known.kind == kind && known.topic == topic);
            let times = 1 + same
                .and_then(|index| kept.remove(index))
                .map_or(0, |known| known.times);
            kept.push_front(Failure {
                kind,
                topic,
                at,
                times,
                what,
                remedy,
            });
            kept.truncate(KEPT_MAX);
        });
    }

    pub(crate) fn newest(&self) -> Option<Failure> {
        self.0.borrow().front().cloned()
    }

    pub(super) fn newest_first(&self) -> Vec<Failure> {
        self.0.borrow().iter().cloned().collect()
    }
}

fn cut(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_kept_by_kind_and_topic_newest_first_and_bounded() {
        let failures = Failures::default();
        let refused =
            |topic: usize| Error::new(Kind::TopicRefused, "no topic").of_topic(&topic.to_string());
        (0..20).for_each(|topic| failures.keep(&refused(topic)));
        failures.keep(&Error::new(Kind::BusUnreachable, "x".repeat(5_000)));
        failures.keep(&refused(17));
        let kept = failures.newest_first();
        assert_eq!(kept.len(), KEPT_MAX);
        assert_eq!((kept[0].topic.as_deref(), kept[0].times), (Some("17"), 2));
        assert_eq!(kept[1].what.len(), TEXT_CHARS_MAX);
        // The relay retries, and an operator still has to know what to look at.
        assert!(
            kept[1]
                .remedy
                .as_deref()
                .unwrap()
                .contains("check that the servers of the bus run")
        );
        assert_eq!(kept.last().unwrap().topic.as_deref(), Some("13"));
    }
}
