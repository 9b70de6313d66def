//! Whether Kafka answers: one state, changed and logged once per change.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::faults;
use crate::error::Error;
use crate::sink::Connection;

/// A broker that restarts can refuse for a moment; a refusal that lasts longer than this is meant.
const REFUSAL_GRACE: Duration = Duration::from_secs(2);

/// The cause before anything was tried.
const NOT_YET: &str = "not connected yet";

/// Holds the state for any number of readers.
#[derive(Debug)]
pub(super) struct Tracker {
    state: watch::Sender<Connection>,
    /// The last thing librdkafka said about why no broker answers.
    last_error: Mutex<Option<String>>,
    /// Whether the client only asks on behalf of another, and logs at the level debug alone.
    quiet: bool,
}

impl Tracker {
    /// Down until a broker answers.
    pub(super) fn new(quiet: bool) -> Self {
        let state = Connection::Down { since: Instant::now(), cause: NOT_YET.to_owned() };
        Tracker { state: watch::Sender::new(state), last_error: Mutex::default(), quiet }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Connection> {
        self.state.subscribe()
    }

    pub(super) fn now(&self) -> Connection {
        self.state.borrow().clone()
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(*self.state.borrow(), Connection::Up)
    }

    pub(super) fn note_error(&self, reason: String) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    }

    pub(super) fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A broker answered.
    pub(super) fn up(&self) {
        self.state.send_if_modified(|state| {
            if matches!(state, Connection::Up) {
                return false;
            }
            if self.quiet {
                tracing::debug!("Kafka answers another client");
            } else {
                tracing::info!(event = "kafka_connected", "Kafka answers");
            }
            *state = Connection::Up;
            true
        });
    }

    /// No broker answers. A refusal stays: it is the better explanation.
    pub(super) fn down(&self, cause: String) {
        self.state.send_if_modified(|state| {
            let is_news = match state {
                Connection::Up => {
                    *state = Connection::Down { since: Instant::now(), cause: cause.clone() };
                    true
                }
                Connection::Down { cause: known, .. } if *known != cause => {
                    std::mem::replace(known, cause.clone()) == NOT_YET
                }
                Connection::Down { .. } | Connection::Refused(_) => return false,
            };
            if is_news && !self.quiet {
                tracing::warn!(event = "kafka_disconnected", error = %cause, fix = faults::REACH,
                    "Kafka does not answer");
            } else {
                tracing::debug!(error = cause, "Kafka does not answer");
            }
            true
        });
    }

    /// A broker answers and refuses us.
    pub(super) fn refused(&self, error: Error) {
        self.state.send_if_modified(|state| {
            let is_known = matches!(state, Connection::Refused(known) if known.kind() == error.kind());
            if is_known {
                return false;
            }
            tracing::error!(event = "kafka_refused", %error, fix = error.what_to_do(), "Kafka refuses us");
            *state = Connection::Refused(error);
            true
        });
    }

    /// Waits until a refusal has lasted, and says why.
    pub(super) async fn unusable(&self) -> Error {
        let refused = |state: &Connection| matches!(state, Connection::Refused(_));
        let mut state = self.subscribe();
        loop {
            // The sender lives as long as `self`.
            state.wait_for(refused).await.ok();
            let ended = tokio::time::timeout(REFUSAL_GRACE, state.wait_for(|state| !refused(state))).await;
            if ended.is_err()
                && let Connection::Refused(error) = self.now()
            {
                return error;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn a_further_cause_does_not_change_the_time_of_the_disconnect() {
        let tracker = Tracker::new(false);
        tracker.up();
        tracker.down("first".to_owned());
        let Connection::Down { since, .. } = tracker.now() else { panic!("not down") };
        tracker.down("second".to_owned());
        assert_eq!(tracker.now(), Connection::Down { since, cause: "second".to_owned() });
    }

    #[tokio::test(start_paused = true)]
    async fn a_lasting_refusal_is_reported_even_after_a_disconnect() {
        let tracker = Tracker::new(false);
        let refusal = Error::new(Kind::KafkaRefused, "wrong password");
        let passing = async {
            tracker.refused(Error::new(Kind::KafkaRefused, "passing"));
            tokio::time::sleep(REFUSAL_GRACE / 2).await;
            tracker.up();
            assert!(tracker.is_up(), "an answer ends a refusal");
            tokio::time::sleep(REFUSAL_GRACE).await;
            tracker.refused(refusal.clone());
            tracker.down("disconnected".to_owned());
        };
        let (reported, ()) = tokio::join!(tracker.unusable(), passing);
        assert_eq!(reported, refusal);
    }
}
