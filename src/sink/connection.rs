//! Whether the bus answers: one state, changed and logged once per change. And whether it is the
//! cluster of before.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::config::Bus;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::sink::{Connection, other_cluster};

/// A server that restarts can refuse for a moment; a refusal that lasts longer than this is meant.
const REFUSAL_GRACE: Duration = Duration::from_secs(2);

/// The cause before anything was tried.
const NOT_YET: &str = "not connected yet";

/// The last error about a connection that ended, since a server answered.
#[derive(Debug)]
struct Said {
    reason: String,
    /// Whether it said so in an error, and not only in its log.
    is_error: bool,
}

/// The cluster that a producer writes to. Another one may come to have its address.
///
/// An ack says that one cluster has a record. So once another cluster answers, no ack of the
/// producer counts any more.
#[derive(Debug)]
pub(crate) struct Home {
    bus: Bus,
    id: OnceLock<String>,
    /// Why the producer is finished, once another cluster has answered.
    left: OnceLock<Error>,
}

impl Home {
    /// `id` is the cluster of earlier producers, where it is known.
    pub(crate) fn new(bus: Bus, id: Option<String>) -> Home {
        let home = Home {
            bus,
            id: OnceLock::new(),
            left: OnceLock::new(),
        };
        id.into_iter()
            .for_each(|id| home.id.set(id).unwrap_or_default());
        home
    }

    pub(crate) fn id(&self) -> Option<&String> {
        self.id.get()
    }

    /// Compares the cluster that answers `now`, where servers tell. The first one is the
    /// producer's. Errors: another one answers, or did before.
    pub(crate) fn check(&self, now: Option<String>) -> Result<()> {
        if let Some(now) = now {
            let home = self.id.get_or_init(|| now.clone());
            if *home != now {
                self.left
                    .get_or_init(|| other_cluster(self.bus.name, self.bus.address, home, &now));
            }
        }
        self.left.get().map_or(Ok(()), |left| Err(left.clone()))
    }
}

#[derive(Debug)]
pub(crate) struct Tracker {
    bus: Bus,
    state: watch::Sender<Connection>,
    said: Mutex<Option<Said>>,
    /// Whether the client only asks on behalf of another, and logs at the level debug alone.
    quiet: bool,
}

impl Tracker {
    /// Down until a server answers.
    pub(crate) fn new(bus: Bus, quiet: bool) -> Self {
        let state = Connection::Down {
            since: Instant::now(),
            cause: NOT_YET.to_owned(),
        };
        Tracker {
            bus,
            state: watch::Sender::new(state),
            said: Mutex::default(),
            quiet,
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Connection> {
        self.state.subscribe()
    }

    pub(crate) fn now(&self) -> Connection {
        self.state.borrow().clone()
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(*self.state.borrow(), Connection::Up)
    }

    /// Why a connection ended, in the words of the client.
    pub(crate) fn note(&self, reason: String, is_error: bool) {
        let mut said = self.said.lock();
        let is_error = is_error || said.as_ref().is_some_and(|before| before.is_error);
        *said = Some(Said { reason, is_error });
    }

    pub(crate) fn reason(&self) -> Option<String> {
        self.said.lock().as_ref().map(|said| said.reason.clone())
    }

    /// A server answered. If connections failed since the last answer, they were those of other
    /// servers, or were made again.
    pub(crate) fn up(&self) {
        let said = self
            .said
            .lock()
            .take()
            .filter(|said| said.is_error && !self.quiet && self.is_up());
        if let Some(Said { reason, .. }) = said {
            tracing::warn!(event = "broker_disconnected", error = %reason, fix = "see whether this \
                server runs, and its log",
                "a connection to one server failed; {} still answers", self.bus.name);
        }
        self.state.send_if_modified(|state| {
            if matches!(state, Connection::Up | Connection::Blocked(_)) || is_final(state) {
                return false;
            }
            if self.quiet {
                tracing::debug!("{} answers another client", self.bus.name);
            } else {
                tracing::info!(event = "bus_connected", "{} answers", self.bus.name);
            }
            *state = Connection::Up;
            true
        });
    }

    /// No server answers. A refusal stays: it is the better explanation.
    pub(crate) fn down(&self, cause: String) {
        self.state.send_if_modified(|state| {
            let is_news = match state {
                Connection::Up | Connection::Blocked(_) => {
                    *state = Connection::Down {
                        since: Instant::now(),
                        cause: cause.clone(),
                    };
                    true
                }
                Connection::Down { cause: known, .. } if *known != cause => {
                    std::mem::replace(known, cause.clone()) == NOT_YET
                }
                Connection::Down { .. } | Connection::Refused(_) => return false,
            };
            if is_news && !self.quiet {
                tracing::warn!(event = "bus_disconnected", error = %cause, fix = self.bus.reach,
                    "{} does not answer", self.bus.name);
            } else {
                tracing::debug!(error = cause, "{} does not answer", self.bus.name);
            }
            true
        });
    }

    /// The bus asks its clients to wait, with this error, or no longer does. Only a bus that
    /// answers does so.
    #[cfg(any(
        feature = "nats",
        feature = "rabbitmq",
        feature = "smtp",
        feature = "webhook"
    ))]
    pub(crate) fn blocked(&self, error: Option<Error>) {
        self.state.send_if_modified(|state| match (&*state, error) {
            (Connection::Up, Some(error)) => {
                if !self.quiet {
                    tracing::warn!(event = "bus_blocked", %error, fix = error.what_to_do(),
                        "{} asks to wait", self.bus.name);
                }
                *state = Connection::Blocked(error);
                true
            }
            (Connection::Blocked(_), None) => {
                if !self.quiet {
                    tracing::info!(
                        event = "bus_unblocked",
                        "{} takes records again",
                        self.bus.name
                    );
                }
                *state = Connection::Up;
                true
            }
            _ => false,
        });
    }

    pub(crate) fn refused(&self, error: Error) {
        self.state.send_if_modified(|state| {
            let is_known =
                matches!(state, Connection::Refused(known) if known.kind() == error.kind());
            if is_known {
                return false;
            }
            // Of another cluster, and of changed files, the end of the session tells.
            if error.kind() == Kind::BusRefused {
                tracing::error!(event = "bus_refused", %error, fix = error.what_to_do(),
                    "{} refuses us", self.bus.name);
            }
            *state = Connection::Refused(error);
            true
        });
    }

    /// Waits until a refusal has lasted, and says why.
    pub(crate) async fn unusable(&self) -> Error {
        let refused = |state: &Connection| matches!(state, Connection::Refused(_));
        let mut state = self.subscribe();
        loop {
            // The sender lives as long as `self`.
            if state
                .wait_for(refused)
                .await
                .is_ok_and(|state| is_final(&state))
                && let Connection::Refused(error) = self.now()
            {
                return error;
            }
            let ended =
                tokio::time::timeout(REFUSAL_GRACE, state.wait_for(|state| !refused(state))).await;
            if ended.is_err()
                && let Connection::Refused(error) = self.now()
            {
                return error;
            }
        }
    }
}

/// Whether no answer ends this refusal: another cluster has answered, or the producer has to be
/// replaced.
fn is_final(state: &Connection) -> bool {
    matches!(state, Connection::Refused(error) if error.kind() != Kind::BusRefused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SinkKind;

    const BUS: Bus = SinkKind::Kafka.bus();

    #[test]
    fn a_producer_that_met_another_cluster_never_counts_again() {
        let id = |text: &str| Some(text.to_owned());
        let home = Home::new(BUS, None);
        for known in [None, id("a"), None, id("a")] {
            assert_eq!(home.check(known), Ok(()));
        }
        assert_eq!(home.id(), id("a").as_ref());
        for then in [id("b"), id("a"), None] {
            let error = home.check(then).unwrap_err();
            assert_eq!(error.kind(), Kind::PositionMismatch);
            assert!(
                error.cause().contains("cluster b") && error.cause().contains("cluster a"),
                "{error}"
            );
        }
        assert!(
            Home::new(BUS, id("a")).check(id("b")).is_err(),
            "that of an earlier producer"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn another_cluster_is_reported_at_once_and_no_answer_ends_that() {
        let tracker = Tracker::new(BUS, false);
        let error = other_cluster(BUS.name, BUS.address, "a", "b");
        tracker.refused(error.clone());
        tracker.up();
        assert!(!tracker.is_up());
        assert_eq!(tracker.unusable().await, error);
    }

    #[test]
    fn a_further_cause_does_not_change_the_time_of_the_disconnect() {
        let tracker = Tracker::new(BUS, false);
        tracker.up();
        tracker.down("first".to_owned());
        let Connection::Down { since, .. } = tracker.now() else {
            panic!("not down")
        };
        tracker.down("second".to_owned());
        assert_eq!(
            tracker.now(),
            Connection::Down {
                since,
                cause: "second".to_owned()
            }
        );
    }

    #[test]
    #[cfg(any(
        feature = "nats",
        feature = "rabbitmq",
        feature = "smtp",
        feature = "webhook"
    ))]
    fn only_a_bus_that_answers_blocks_us_and_its_acks_do_not_end_that() {
        let tracker = Tracker::new(BUS, false);
        let error = Error::new(Kind::BusUnreachable, "low on memory");
        tracker.blocked(Some(error.clone()));
        assert!(matches!(tracker.now(), Connection::Down { .. }));
        tracker.up();
        tracker.blocked(Some(error.clone()));
        tracker.up();
        assert_eq!(tracker.now(), Connection::Blocked(error.clone()));
        assert!(tracker.now().answers() && !tracker.is_up());
        tracker.blocked(None);
        assert!(tracker.is_up());
        tracker.blocked(Some(error));
        tracker.down("lost".to_owned());
        tracker.blocked(None);
        assert!(matches!(tracker.now(), Connection::Down { .. }));
    }

    #[test]
    fn what_was_said_before_an_answer_is_no_cause_after_it() {
        let tracker = Tracker::new(BUS, false);
        tracker.note("refused".to_owned(), true);
        tracker.note("closed".to_owned(), false);
        assert_eq!(tracker.reason().as_deref(), Some("closed"));
        assert!(
            tracker
                .said
                .lock()
                .as_ref()
                .is_some_and(|said| said.is_error)
        );
        tracker.up();
        assert_eq!(tracker.reason(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lasting_refusal_is_reported_even_after_a_disconnect() {
        let tracker = Tracker::new(BUS, false);
        let refusal = Error::new(Kind::BusRefused, "wrong password");
        let passing = async {
            tracker.refused(Error::new(Kind::BusRefused, "passing"));
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
