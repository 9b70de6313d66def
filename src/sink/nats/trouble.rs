//! Subjects whose streams do not ack. An election ends by itself, and so does the end of a full
//! stream, so that for a while a record only comes again.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// How long a subject may be without a stream. Servers wait up to 9 s before they elect a leader.
const NO_STREAM_GRACE: Duration = Duration::from_secs(15);
/// How many attempts in a row may stay without an answer while the server answers.
const SILENT_MAX: u32 = 3;
/// An older trouble is over: nothing was sent since.
const OVER_AFTER: Duration = Duration::from_secs(600);
/// More are not remembered: subjects may come from rows.
const SUBJECTS_MAX: usize = 10_000;

/// Why a stream does not ack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// Nobody takes the subject.
    NoStream,
    /// Nobody answers there.
    Silent,
    /// The stream says so: it is full, or its leader is away.
    Later,
}

#[derive(Debug)]
struct Trouble {
    since: Instant,
    last: Instant,
    silent: u32,
}

#[derive(Debug, Default)]
pub(super) struct Troubles(HashMap<String, Trouble>);

impl Troubles {
    /// Notes it. Whether the subject counts as refused by now.
    pub(super) fn add(&mut self, topic: &str, what: What) -> bool {
        let now = Instant::now();
        self.0.retain(|_, trouble| now - trouble.last <= OVER_AFTER);
        if self.0.len() >= SUBJECTS_MAX {
            self.0.clear();
        }
        let trouble = self.0.entry(topic.to_owned()).or_insert(Trouble {
            since: now,
            last: now,
            silent: 0,
        });
        trouble.last = now;
        match what {
            What::NoStream => now - trouble.since >= NO_STREAM_GRACE,
            What::Later => false,
            What::Silent => {
                trouble.silent += 1;
                trouble.silent >= SILENT_MAX
            }
        }
    }

    /// A stream has acked.
    pub(super) fn end(&mut self, topic: &str) {
        self.0.remove(topic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_subject_counts_as_refused_after_a_while() {
        let mut troubles = Troubles::default();
        let mut add = |topic, what| troubles.add(topic, what);
        assert!(!add("a", What::NoStream));
        tokio::time::advance(NO_STREAM_GRACE).await;
        assert!(add("a", What::NoStream));
        assert!(!add("b", What::NoStream), "each subject for itself");
        assert!(!add("a", What::Later), "a full stream is waited for");
        let silent: Vec<bool> = (0..3).map(|_| add("c", What::Silent)).collect();
        assert_eq!(silent, [false, false, true]);
        tokio::time::advance(OVER_AFTER + Duration::from_secs(1)).await;
        assert!(!add("a", What::NoStream));
        assert_eq!(troubles.0.len(), 1);
        troubles.end("a");
        assert!(troubles.0.is_empty());
    }
}
