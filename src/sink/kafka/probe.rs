//! Looks after a producer, on a thread of its own: whether a broker answers, and whether librdkafka knows of one to ask.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::producer::Inner;

/// How often a broker is asked while none answers.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked whether brokers are known and records are acked.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A broker is asked after so long without a report, while records wait for one.
const SILENT: Duration = Duration::from_secs(5);
/// The same while none waits: the answer may hold every topic of the cluster.
const IDLE: Duration = Duration::from_secs(60);
/// How long the answer may take. Closing waits for it; a connection that takes longer is there the next time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait before the bootstrap servers are given a second time. Each wait is twice as long as the one before.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait. librdkafka keeps each list it is given: some 200 KB in a day.
const LONGEST_WAIT: Duration = Duration::from_secs(32);

/// What looks after a producer. Holds it only while looking.
pub(super) struct Probe {
    inner: Weak<Inner>,
    /// Somebody doubts whether a broker answers.
    suspicion: Receiver<()>,
    /// When something was last reported, or a broker asked.
    heard: Instant,
    /// When the servers may be given again, while no broker is known.
    next_add: Instant,
    wait: Duration,
}

impl Probe {
    pub(super) fn new(inner: &Arc<Inner>, suspicion: Receiver<()>) -> Probe {
        let (inner, now) = (Arc::downgrade(inner), Instant::now());
        Probe { inner, suspicion, heard: now, next_add: now + FIRST_WAIT, wait: FIRST_WAIT }
    }

    /// Goes on until the producer is gone.
    pub(super) fn run(mut self) {
        let mut is_suspected = true;
        while let Some(alive) = self.alive() {
            self.look(&alive, is_suspected);
            let wait = if alive.shared.tracker.is_up() { LOOK_EVERY } else { ASK_EVERY };
            drop(alive);
            is_suspected = match self.suspicion.recv_timeout(wait) {
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
        let waits = inner.shared.outstanding.load(Ordering::Relaxed) > 0;
        let is_silent = !reported && self.heard.elapsed() >= if waits { SILENT } else { IDLE };
        let is_doubtful = is_suspected || is_silent || knows_no_broker || !inner.shared.tracker.is_up();
        // One topic, where there is one: a cluster may have very many.
        if is_doubtful && let Err(error) = inner.metadata(inner.shared.topic(), ANSWER_TIMEOUT) {
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
            (self.next_add, self.wait) = (now, FIRST_WAIT);
        } else if self.next_add <= now {
            inner.add_servers();
            self.next_add = now + self.wait;
            self.wait = LONGEST_WAIT.min(self.wait * 2);
        }
    }

    fn alive(&self) -> Option<Arc<Inner>> {
        self.inner.upgrade().filter(|inner| !inner.shared.closing.load(Ordering::Relaxed))
    }
}
