//! Looks after a producer, on a thread of its own: whether a broker answers it, and where it gets nowhere, who is to blame.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rdkafka::producer::Producer as _;

use super::connection::Connection;
use super::kafka::KafkaSink;
use super::options::Options;
use super::producer::Inner;
use super::stall::{Seen, Stall};
use crate::error::{Error, Kind};

/// How often a broker is asked while none answers.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked whether what is on its way gets anywhere.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long nothing may be heard of a producer that has nothing to do before it is looked whether it still finds Kafka.
const IDLE: Duration = Duration::from_secs(30);
/// How long the answer may take. Closing waits for it; a connection that takes longer is there the next time.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long Kafka has to answer somebody else.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// What is said of a producer that is lost.
const LOST: &str = "Kafka answers others, and this producer gets nowhere; starting with a new one";

/// See the module's documentation.
pub(super) struct Probe {
    pub(super) inner: Weak<Inner>,
    /// Somebody doubts whether a broker answers.
    pub(super) suspicion: Receiver<()>,
    /// What somebody else is made of, who asks Kafka; none for somebody else.
    pub(super) others: Option<Options>,
}

/// What is known of the producer.
struct Known {
    stall: Stall,
    /// When it was last heard of it.
    heard: Instant,
}

impl Probe {
    /// Goes on until the producer is gone.
    pub(super) fn run(self) {
        let mut known = Known { stall: Stall::default(), heard: Instant::now() };
        let mut suspected = true;
        loop {
            let wait = match self.look(&mut known, suspected) {
                None => return,
                Some(true) => LOOK_EVERY,
                Some(false) => PROBE_EVERY,
            };
            suspected = match self.suspicion.recv_timeout(wait) {
                Ok(()) => true,
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => return,
            };
        }
    }

    /// Whether a broker answers; none once the producer is gone. What takes long is done without holding the producer.
    fn look(&self, Known { stall, heard }: &mut Known, suspected: bool) -> Option<bool> {
        let alive = self.alive()?;
        let (now, seen) = (Instant::now(), alive.seen());
        let silent = stall.look(now, seen);
        let is_lost = || now.duration_since(*heard) >= IDLE && !alive.finds_a_leader();
        let doubtful = suspected || silent >= Some(LOOK_EVERY) || !seen.is_up || !seen.reported && is_lost();
        if doubtful && let Err(error) = alive.metadata(PROBE_TIMEOUT) {
            alive.tracker.down(error.cause().to_owned());
        }
        if doubtful || seen.reported || now.duration_since(*heard) >= IDLE {
            *heard = Instant::now();
        }
        match alive.tracker.now() {
            Connection::Up | Connection::Down { .. } => {}
            // To ask again and again with credentials that are wrong locks accounts.
            Connection::Refused(_) => *stall = Stall::default(),
            Connection::Lost(_) => {
                alive.give_up();
                return Some(false);
            }
        }
        let is_up = alive.tracker.is_up();
        let Some(others) = self.others.as_ref().filter(|_| stall.is_due(Instant::now(), is_up)) else {
            return Some(is_up);
        };
        let topics = alive.shared.topics();
        drop(alive);
        tracing::debug!(?topics, "nothing was acked for a while, or no broker answers; somebody else asks Kafka");
        let answers = answers(others, &topics);
        let alive = self.alive()?;
        if stall.look(Instant::now(), alive.seen()).is_some() && stall.asked(Instant::now(), answers) {
            alive.tracker.lost(Error::new(Kind::KafkaUnreachable, LOST));
            alive.give_up();
        }
        Some(alive.tracker.is_up())
    }

    fn alive(&self) -> Option<Arc<Inner>> {
        self.inner.upgrade().filter(|inner| !inner.closing.load(Ordering::Relaxed))
    }
}

impl Inner {
    /// Whether the broker that leads some partition answers. A question as small as there is, for it is asked of those that are
    /// well.
    fn finds_a_leader(&self) -> bool {
        let topic = self.shared.topics().into_iter().next();
        topic.is_some_and(|topic| self.client.client().fetch_watermarks(&topic, 0, PROBE_TIMEOUT).is_ok())
    }

    fn seen(&self) -> Seen {
        Seen {
            reported: self.shared.reported.swap(false, Ordering::Relaxed),
            waits: self.shared.outstanding.load(Ordering::Relaxed) > 0,
            is_up: self.tracker.is_up(),
        }
    }
}

/// Whether brokers answer a client of its own, and those that lead these topics do. Blocks.
fn answers(options: &Options, topics: &[String]) -> bool {
    let Ok(sink) = KafkaSink::with_options(options.clone().asking(), true, None) else { return false };
    sink.inner().metadata(ASK_TIMEOUT).is_ok() && sink.inner().leaders_answer(topics, ASK_TIMEOUT)
}
