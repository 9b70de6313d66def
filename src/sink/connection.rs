//! Whether Kafka answers: one state, changed and logged once per change.

use std::time::Instant;

use tokio::sync::watch;

use crate::error::Error;

/// Whether Kafka answers, as far as anybody knows.
///
/// Records are never given up because of it: they wait in the queue. Whether to wait or to stop is the reader's choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Connection {
    /// A broker answers.
    Up,
    /// None does.
    Down {
        /// Since when.
        since: Instant,
        /// The last thing librdkafka said about it.
        cause: String,
    },
    /// A broker answers and refuses us: credentials, TLS. librdkafka goes on trying, so this can end by itself.
    Refused(Error),
}

/// Holds the state for any number of readers.
#[derive(Debug)]
pub(super) struct Tracker {
    state: watch::Sender<Connection>,
}

impl Tracker {
    /// Down until something answers.
    pub(super) fn new() -> Self {
        let state = Connection::Down { since: Instant::now(), cause: "not connected yet".to_owned() };
        Tracker { state: watch::Sender::new(state) }
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

    /// A broker answered.
    pub(super) fn up(&self) {
        self.change(|state| {
            if *state == Connection::Up {
                return false;
            }
            tracing::info!("Kafka answers");
            *state = Connection::Up;
            true
        });
    }

    /// No broker answers. A refusal stays: it is the better explanation.
    pub(super) fn down(&self, cause: String) {
        self.change(|state| match state {
            Connection::Up => {
                tracing::warn!(cause, "Kafka does not answer");
                *state = Connection::Down { since: Instant::now(), cause };
                true
            }
            Connection::Down { cause: known, .. } if *known != cause => {
                tracing::debug!(cause, "Kafka does not answer");
                *known = cause;
                true
            }
            Connection::Down { .. } | Connection::Refused(_) => false,
        });
    }

    /// A broker answers and refuses us.
    pub(super) fn refused(&self, error: Error) {
        self.change(|state| {
            if matches!(state, Connection::Refused(known) if known.kind() == error.kind()) {
                return false;
            }
            tracing::error!(cause = error.cause(), remedy = error.what_to_do(), "Kafka refuses us");
            *state = Connection::Refused(error);
            true
        });
    }

    fn change(&self, change: impl FnOnce(&mut Connection) -> bool) {
        self.state.send_if_modified(change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn the_time_of_going_down_survives_new_causes() {
        let tracker = Tracker::new();
        tracker.up();
        tracker.down("first".to_owned());
        let Connection::Down { since, .. } = tracker.now() else { panic!("not down") };
        tracker.down("second".to_owned());
        assert_eq!(tracker.now(), Connection::Down { since, cause: "second".to_owned() });
    }

    #[test]
    fn a_refusal_is_not_hidden_by_a_broken_connection_and_ends_with_an_answer() {
        let tracker = Tracker::new();
        let refusal = Error::new(Kind::KafkaRefused, "wrong password");
        tracker.refused(refusal.clone());
        tracker.down("disconnected".to_owned());
        assert_eq!(tracker.now(), Connection::Refused(refusal));
        tracker.up();
        assert!(tracker.is_up());
    }

    #[test]
    fn readers_are_woken_once_per_change() {
        let tracker = Tracker::new();
        let mut reader = tracker.subscribe();
        tracker.up();
        assert!(reader.has_changed().unwrap());
        reader.mark_unchanged();
        tracker.up();
        assert!(!reader.has_changed().unwrap());
    }
}
