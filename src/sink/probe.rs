//! Looks after a producer, on a thread of its own: whether a broker answers it, and where it gets nowhere, who is to blame.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rdkafka::metadata::{MetadataPartition, MetadataTopic};
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
/// Nothing heard for this long, of a producer that something waits in, and the broker is asked. As long as the first wait of
/// [`Stall`], so that it is known by then whether one answers.
const SILENT: Duration = Duration::from_secs(5);
/// The same of one that nothing waits in: the answer may hold every topic of the cluster.
const IDLE: Duration = Duration::from_secs(60);
/// How long the answer may take. Closing waits for it; a connection that takes longer is there the next time.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long somebody else has to hear of all topics there are.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the leader of a partition has to answer somebody else.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// How many of them are asked where one is enough.
const ASKED: usize = 3;

/// What is said of a producer that is lost.
const LOST: &str = "Kafka answers others, and this producer gets nowhere";

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
    /// When it was last heard of it, or asked.
    heard: Instant,
}

impl Probe {
    /// Goes on until the producer is gone.
    pub(super) fn run(self) {
        let rest = self.others.as_ref().map(Options::rest).unwrap_or_default();
        let mut known = Known { stall: Stall::new(rest), heard: Instant::now() };
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
        if let Connection::Lost(_) = alive.tracker.now() {
            alive.give_up();
            return Some(false);
        }
        let (now, seen) = (Instant::now(), alive.seen());
        let silent_for = if stall.look(now, seen).is_some() { SILENT } else { IDLE };
        let is_silent = !seen.reported && now.duration_since(*heard) >= silent_for;
        let doubtful = suspected || is_silent || !seen.is_up;
        let topics = alive.shared.topics();
        // One of its own, where there is one: a cluster may have very many.
        if doubtful && let Err(error) = alive.metadata(topics.first().map(String::as_str), PROBE_TIMEOUT) {
            alive.tracker.down(error.to_string());
        }
        if doubtful || seen.reported {
            *heard = Instant::now();
        }
        // To ask again and again with credentials that are wrong locks accounts.
        if let Connection::Refused(_) = alive.tracker.now() {
            stall.begin_anew();
        }
        let (is_up, is_reached) = (alive.tracker.is_up(), alive.is_reached());
        let Some(others) = self.others.as_ref().filter(|_| stall.is_due(Instant::now(), is_reached)) else {
            return Some(is_up);
        };
        let waiting = alive.shared.outstanding.load(Ordering::Relaxed);
        drop(alive);
        // Where no broker answers, that was said.
        if is_up && stall.is_news() {
            tracing::warn!(waiting, "nothing was acked for a while; asking the partitions' leaders");
        }
        let answers = answers(others, &topics, is_reached);
        let alive = self.alive()?;
        if stall.look(Instant::now(), alive.seen()).is_some() && stall.asked(Instant::now(), is_reached, answers) {
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
    fn seen(&self) -> Seen {
        Seen {
            reported: self.shared.reported.swap(false, Ordering::Relaxed),
            waits: self.shared.outstanding.load(Ordering::Relaxed) > 0,
            is_up: self.tracker.is_up(),
            is_reached: self.is_reached(),
        }
    }

    fn is_reached(&self) -> bool {
        self.tracker.is_up() || self.shared.is_reached.load(Ordering::Relaxed)
    }
}

/// Whether Kafka answers a client of its own, which gets no more time than the producer has. Blocks.
///
/// Where the producer reaches a broker, what it waits for may be any partition of its topics: all of them have to have leaders
/// that answer. Where it reaches none, a leader of any partition will do, but there has to be one: brokers that only answer at
/// the addresses we were given, and not at those they advertise, answer nobody.
fn answers(options: &Options, topics: &[String], is_reached: bool) -> bool {
    let Ok(sink) = KafkaSink::with_options(options.clone().asking(), true, None) else { return false };
    let Ok(metadata) = sink.inner().metadata(None, ANSWER_TIMEOUT) else { return false };
    let client = sink.inner().client.client();
    let mut asked = BTreeMap::new();
    // One question to each broker: where records end is only known to the one that takes them.
    let mut leads = |topic: &MetadataTopic, partition: &MetadataPartition| {
        let leader = partition.leader();
        let ask = || client.fetch_watermarks(topic.name(), partition.id(), ASK_TIMEOUT).is_ok();
        let is_spared = !is_reached && asked.len() >= ASKED && !asked.contains_key(&leader);
        leader >= 0 && !is_spared && *asked.entry(leader).or_insert_with(ask)
    };
    let (ours, others): (Vec<_>, Vec<_>) =
        metadata.topics().iter().partition(|topic| topics.iter().any(|ours| ours == topic.name()));
    if !is_reached {
        return ours.into_iter().chain(others).any(|of| of.partitions().iter().any(|partition| leads(of, partition)));
    }
    // A topic that is not there, or has no partitions yet, is not the producer's fault.
    let is_led = |of: &MetadataTopic| {
        !of.partitions().is_empty() && of.partitions().iter().all(|partition| leads(of, partition))
    };
    ours.len() == topics.len() && ours.into_iter().all(is_led)
}
