//! A producer with the thread that takes its reports.
//!
//! `rdkafka`'s own `ThreadedProducer` polls for 100 ms at a time whether or not anything is on its way, and asks the clock
//! without a pause for the last millisecond of each: a hundredth of a core, idle or not. Here nothing is polled while nothing
//! is on its way, but for a producer with transactions: what it says of a connection that broke under a commit has to be heard
//! before the next transaction begins (see `doubt`), and after the acks nothing counts as on its way.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use super::context::Context;
use super::placement::Placement;

/// How long reports are waited for in one go, which nothing interrupts. Dropping the producer waits for the end of it.
const POLL: Duration = Duration::from_millis(100);
/// How often it is looked for errors of a client that has no record on its way.
const LOOK: Duration = Duration::from_millis(100);

type Client = BaseProducer<Context, Placement>;

/// librdkafka's producer, whose reports are given to its [`Context`] on a thread of its own. Dropping it gives up what was not
/// acked, and waits for the thread.
pub(super) struct Polled {
    client: Arc<Client>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Polled {
    pub(super) fn new(context: Context) -> Result<Polled, KafkaError> {
        let always = context.options.transactional.is_some();
        let config = context.options.client.clone();
        let client: Arc<Client> = Arc::new(config.create_with_context(context)?);
        let ends = Arc::new(AtomicBool::new(false));
        let (polled, told) = (Arc::clone(&client), Arc::clone(&ends));
        let thread = thread::Builder::new()
            .name("kafka-poll".to_owned())
            .spawn(move || poll(&polled, always, &told))
            .map_err(|error| KafkaError::ClientCreation(format!("no thread can be started: {error}")))?;
        Ok(Polled { client, ends, thread: Some(thread) })
    }

    /// Hands one record to librdkafka, which copies it.
    pub(super) fn send(&self, record: BaseRecord<'_, [u8], [u8], usize>) -> Result<(), KafkaError> {
        self.client.send(record).map_err(|(error, _)| error)?;
        self.wake();
        Ok(())
    }

    fn wake(&self) {
        self.thread.iter().for_each(|thread| thread.thread().unpark());
    }
}

impl Deref for Polled {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.wake();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that polls a Kafka producer has panicked");
        }
    }
}

/// A wake-up before the look at what is on its way is not lost: it ends the next wait at once.
fn poll(client: &Client, always: bool, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        // Errors and whatever else librdkafka has to say are counted among them once they are there.
        if always || client.in_flight_count() > 0 {
            client.poll(POLL);
        } else {
            thread::park_timeout(LOOK);
        }
    }
}
