//! Whether Kafka answers: one state, changed and logged once per change, and the thread that asks.
//!
//! librdkafka reports no connection that was made, and does not recover by itself where it forgot all brokers (see
//! [`PolledProducer::knows_no_broker`](super::producer::PolledProducer)).

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::faults;
use super::producer::Inner;
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
                tracing::info!("Kafka answers");
            }
            *state = Connection::Up;
            true
        });
    }

    /// No broker answers. A refusal stays: it is the better explanation.
    fn down(&self, cause: String) {
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
                tracing::warn!(cause, remedy = faults::REACH, "Kafka does not answer");
            } else {
                tracing::debug!(cause, "Kafka does not answer");
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
            tracing::error!(cause = %error, remedy = error.what_to_do(), "Kafka refuses us");
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

/// How often a broker is asked while none answers.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How often the probe looks whether brokers are known and records are acked.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A broker is asked after so long without a report, while records are in flight.
const SILENT: Duration = Duration::from_secs(5);
/// The same while none is in flight: the answer may hold every topic of the cluster.
const IDLE: Duration = Duration::from_secs(60);
/// How long the answer may take. Closing waits for it; a connection that takes longer is there the next time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause before the bootstrap servers are given a second time. Each pause is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause. librdkafka keeps each list it is given: some 200 KB in a day.
const LONGEST_PAUSE: Duration = Duration::from_secs(32);

/// Looks after a producer, on a thread of its own: whether a broker answers, and whether librdkafka knows of one to ask.
/// Holds the producer only while looking.
pub(super) struct Probe {
    inner: Weak<Inner>,
    /// librdkafka has reported an error.
    suspicion: Receiver<()>,
    /// When a delivery was last reported, or a broker asked.
    heard: Instant,
    /// When the servers may be given again, while no broker is known.
    next_add: Instant,
    pause: Duration,
}

impl Probe {
    pub(super) fn new(inner: &Arc<Inner>, suspicion: Receiver<()>) -> Probe {
        let (inner, now) = (Arc::downgrade(inner), Instant::now());
        Probe { inner, suspicion, heard: now, next_add: now + FIRST_PAUSE, pause: FIRST_PAUSE }
    }

    /// Goes on until the producer is gone.
    pub(super) fn run(mut self) {
        let mut is_suspected = true;
        while let Some(alive) = self.inner.upgrade().filter(|inner| !inner.shared.is_closing()) {
            self.look(&alive, is_suspected);
            let pause = if alive.shared.tracker.is_up() { LOOK_EVERY } else { ASK_EVERY };
            drop(alive);
            is_suspected = match self.suspicion.recv_timeout(pause) {
                Ok(()) => true,
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => return,
            };
        }
    }

    fn look(&mut self, inner: &Inner, is_suspected: bool) {
        let knows_no_broker = inner.knows_no_broker();
        self.give_servers(inner, knows_no_broker);
        let reported = inner.shared.reported.swap(false, Ordering::Relaxed);
        let in_flight = inner.shared.outstanding.load(Ordering::Relaxed) > 0;
        let is_silent = !reported && self.heard.elapsed() >= if in_flight { SILENT } else { IDLE };
        let is_doubtful = is_suspected || is_silent || knows_no_broker || !inner.shared.tracker.is_up();
        // One topic, where there is one: a cluster may have very many.
        let topic = inner.shared.topic.get().map(String::as_str);
        if is_doubtful && let Err(error) = inner.metadata(topic, ANSWER_TIMEOUT) {
            inner.shared.tracker.down(error.to_string());
        }
        if is_doubtful || reported {
            self.heard = Instant::now();
        }
    }

    /// Gives librdkafka its bootstrap servers where it has forgotten them.
    fn give_servers(&mut self, inner: &Inner, knows_no_broker: bool) {
        let now = Instant::now();
        if !knows_no_broker {
            (self.next_add, self.pause) = (now, FIRST_PAUSE);
        } else if self.next_add <= now {
            inner.add_servers();
            self.next_add = now + self.pause;
            self.pause = LONGEST_PAUSE.min(self.pause * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn the_time_of_going_down_survives_new_causes() {
        let tracker = Tracker::new(false);
        tracker.up();
        tracker.down("first".to_owned());
        let Connection::Down { since, .. } = tracker.now() else { panic!("not down") };
        tracker.down("second".to_owned());
        assert_eq!(tracker.now(), Connection::Down { since, cause: "second".to_owned() });
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_that_lasts_is_reported_and_not_hidden_by_a_broken_connection() {
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
