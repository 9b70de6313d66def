//! Reads topics back, all of them from their beginning, on a thread of its own. It is in no consumer group and commits
//! nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::verify::{Delivered, Topics, fingerprint};
use crate::clock::now_us;
use crate::error::{Error, Kind, Result};

/// How often new topics are looked for.
const METADATA_EVERY: Duration = Duration::from_millis(500);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// A look for topics holds up reading and stopping.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(50);

/// A consumer at work. Dropping it stops it.
#[derive(Debug)]
pub struct Consumer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<Topics>>>,
}

#[derive(Debug, Default)]
struct Shared {
    records: AtomicU64,
    finish: AtomicBool,
    abandon: AtomicBool,
}

impl Consumer {
    /// Starts reading every topic whose name starts with one of `prefixes`, as they appear. `id_header` names the header that
    /// carries the event's id.
    ///
    /// # Errors
    /// [`Kind::Prerequisite`] where no thread or client can be had.
    pub fn start(brokers: &str, prefixes: Vec<String>, id_header: &str) -> Result<Self> {
        let failed = |error: String| Error::new(Kind::Prerequisite, format!("the consumer does not start: {error}"));
        let client = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            // Required by the client, and used for nothing.
            .set("group.id", "walrelay-reader")
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest")
            .set("allow.auto.create.topics", "false")
            // Arrival stands for the ack in the latencies, so fetches must not add to it.
            .set("fetch.wait.max.ms", "10")
            .set("fetch.error.backoff.ms", "20")
            .create::<BaseConsumer>();
        let client = client.map_err(|error| failed(error.to_string()))?;
        let shared = Arc::new(Shared::default());
        let reader = Reader {
            client,
            prefixes,
            id_header: id_header.to_owned(),
            shared: Arc::clone(&shared),
            topics: Topics::default(),
            next: BTreeMap::new(),
        };
        let thread = std::thread::Builder::new().name("reader".to_owned()).spawn(move || reader.run());
        Ok(Consumer { shared, thread: Some(thread.map_err(|error| failed(error.to_string()))?) })
    }

    /// Records read so far.
    pub fn records(&self) -> u64 {
        self.shared.records.load(Ordering::Relaxed)
    }

    /// Waits until this many records were read; false where `quiet` passes without a new one.
    pub async fn read_at_least(&self, records: u64, quiet: Duration) -> bool {
        let mut last = (self.records(), Instant::now());
        while self.records() < records {
            if self.records() != last.0 {
                last = (self.records(), Instant::now());
            }
            if last.1.elapsed() > quiet {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        true
    }

    /// Reads on to the ends that the topics have now, and gives all that was read. To be called when nobody produces
    /// any more.
    ///
    /// # Errors
    /// [`Kind::KafkaUnreachable`] where the ends cannot be asked for or reached.
    pub async fn finish(mut self) -> Result<Topics> {
        self.shared.finish.store(true, Ordering::Relaxed);
        let thread = self.thread.take().ok_or_else(|| Error::new(Kind::Bug, "the consumer is finished already"))?;
        let ended = tokio::task::spawn_blocking(move || thread.join()).await;
        match ended {
            Ok(Ok(read)) => read,
            Ok(Err(_)) | Err(_) => Err(Error::new(Kind::Bug, "the consumer's thread panicked")),
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.shared.abandon.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

struct Reader {
    client: BaseConsumer,
    prefixes: Vec<String>,
    id_header: String,
    shared: Arc<Shared>,
    topics: Topics,
    /// Next offset by topic and partition: what is assigned.
    next: BTreeMap<(Arc<str>, i32), i64>,
}

impl Reader {
    fn run(mut self) -> Result<Topics> {
        let mut looked: Option<Instant> = None;
        while !self.shared.finish.load(Ordering::Relaxed) {
            if self.shared.abandon.load(Ordering::Relaxed) {
                return Ok(self.topics);
            }
            if looked.is_none_or(|at| at.elapsed() > METADATA_EVERY) {
                // A broker that is away comes back, or the caller's own waiting ends.
                drop(self.look_for_topics());
                looked = Some(Instant::now());
            }
            self.poll();
        }
        self.read_to_the_ends().map_err(|error| {
            Error::new(Kind::KafkaUnreachable, format!("reading the topics to their ends: {error}"))
        })?;
        Ok(self.topics)
    }

    fn look_for_topics(&mut self) -> Result<(), KafkaError> {
        let metadata = self.client.fetch_metadata(None, METADATA_TIMEOUT)?;
        let mut is_new = false;
        for topic in
            metadata.topics().iter().filter(|topic| self.prefixes.iter().any(|prefix| topic.name().starts_with(prefix)))
        {
            let name: Arc<str> = topic.name().into();
            self.topics.partitions.insert(Arc::clone(&name), i32::try_from(topic.partitions().len()).unwrap_or(0));
            for partition in topic.partitions() {
                self.next.entry((Arc::clone(&name), partition.id())).or_insert_with(|| {
                    is_new = true;
                    0
                });
            }
        }
        if is_new { self.assign() } else { Ok(()) }
    }

    fn assign(&self) -> Result<(), KafkaError> {
        let mut list = TopicPartitionList::new();
        for ((topic, partition), next) in &self.next {
            let from = if *next == 0 { Offset::Beginning } else { Offset::Offset(*next) };
            list.add_partition_offset(topic, *partition, from)?;
        }
        self.client.assign(&list)
    }

    /// Takes one record, if there is one soon. Errors are those of connections, which the client makes again.
    fn poll(&mut self) {
        let Some(Ok(message)) = self.client.poll(POLL) else { return };
        let Some((key, next)) = self
            .next
            .iter_mut()
            .find(|((topic, partition), _)| **topic == *message.topic() && *partition == message.partition())
        else {
            return;
        };
        *next = message.offset() + 1;
        let record = delivered(&message, Arc::clone(&key.0), &self.id_header);
        self.topics.records.push(record);
        self.shared.records.fetch_add(1, Ordering::Relaxed);
    }

    fn read_to_the_ends(&mut self) -> Result<(), KafkaError> {
        self.look_for_topics()?;
        for (topic, partition) in self.next.keys() {
            let (_, end) = self.client.fetch_watermarks(topic, *partition, REQUEST_TIMEOUT)?;
            self.topics.ends.insert((Arc::clone(topic), *partition), end);
        }
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        while self.topics.ends.iter().any(|(partition, end)| self.next.get(partition).is_none_or(|next| next < end)) {
            if Instant::now() > deadline || self.shared.abandon.load(Ordering::Relaxed) {
                // The checker counts what is missing.
                break;
            }
            self.poll();
        }
        Ok(())
    }
}

fn delivered(message: &BorrowedMessage<'_>, topic: Arc<str>, id_header: &str) -> Delivered {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into();
    let id = message.headers().and_then(|headers| headers.iter().find(|header| header.key == id_header)?.value);
    Delivered {
        topic,
        partition: message.partition(),
        offset: message.offset(),
        id: id.map(text),
        key: message.key().map(text),
        payload: fingerprint(message.payload()),
        arrived_at_us: now_us(),
    }
}
