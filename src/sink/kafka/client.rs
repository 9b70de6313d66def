//! librdkafka's clients: a producer with the thread that takes its reports, and letting go of a client.
//!
//! `rdkafka`'s own `ThreadedProducer` polls for 100 ms at a time whether or not anything is on its way, and asks the clock
//! without a pause for the last millisecond of each: a hundredth of a core, idle or not. Here nothing is polled while nothing
//! is on its way, but for a producer with transactions: what it says of a connection that broke under a commit has to be heard
//! before the next transaction begins (see [`Doubt`](super::log_lines::Doubt)), and after the acks nothing counts as on its way.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdkafka::bindings;
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use super::context::Context;
use super::partitions::KeyPartitioner;

/// How long reports are waited for in one go, which nothing interrupts. Dropping the producer waits for the end of it.
const POLL: Duration = Duration::from_millis(100);
/// How often it is looked for errors of a client that has no record on its way.
const LOOK: Duration = Duration::from_millis(100);

type Client = BaseProducer<Context, KeyPartitioner>;

/// librdkafka's producer, whose reports are given to its [`Context`] on a thread of its own. Dropping it gives up what was not
/// acked, and waits for the thread.
pub(super) struct PolledProducer {
    client: Arc<Client>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PolledProducer {
    pub(super) fn new(context: Context) -> Result<PolledProducer, KafkaError> {
        let always = context.options.transactional.is_some();
        let config = context.options.client.clone();
        let client: Arc<Client> = Arc::new(config.create_with_context(context)?);
        let ends = Arc::new(AtomicBool::new(false));
        let (polled, told) = (Arc::clone(&client), Arc::clone(&ends));
        let thread = thread::Builder::new()
            .name("kafka-poll".to_owned())
            .spawn(move || poll(&polled, always, &told))
            .map_err(|error| KafkaError::ClientCreation(format!("no thread can be started: {error}")))?;
        Ok(PolledProducer { client, ends, thread: Some(thread) })
    }

    /// Hands one record to librdkafka, which copies it.
    pub(super) fn send(&self, record: BaseRecord<'_, [u8], [u8], usize>) -> Result<(), KafkaError> {
        self.client.send(record).map_err(|(error, _)| error)?;
        self.wake();
        Ok(())
    }

    /// Whether librdkafka knows of no broker of the cluster: none has answered yet, or all are forgotten.
    ///
    /// An answer in which a broker names no brokers, as one does that has just started or was fenced, makes librdkafka drop
    /// every broker, bootstrap servers included. Its own recovery then does not start, whatever `metadata.recovery.*` says,
    /// and nobody is asked ever again (confluentinc/librdkafka#5301). Records stay in the queue meanwhile with their sequence
    /// numbers, and are sent once a broker is known.
    #[expect(unsafe_code, reason = "the rdkafka crate has no safe call for these functions of librdkafka")]
    pub(super) fn knows_no_broker(&self) -> bool {
        let handle = self.client.client().native_ptr();
        let mut count = 0;
        // SAFETY: the handle is valid while the client is borrowed. The ids are an allocation of librdkafka that nobody else
        // has, and are freed once, by librdkafka.
        unsafe {
            let ids = bindings::rd_kafka_brokers_learned_ids(handle, &raw mut count);
            bindings::rd_kafka_mem_free(handle, ids.cast());
        }
        count == 0
    }

    /// Gives librdkafka its bootstrap servers once more. A server that is known already gets no second thread.
    ///
    /// librdkafka keeps a copy of the list for each call: do not call this all the time.
    #[expect(unsafe_code, reason = "the rdkafka crate has no safe call for this function of librdkafka")]
    pub(super) fn add_servers(&self) {
        let (handle, servers) = (self.client.client().native_ptr(), &self.client.context().options.servers);
        // SAFETY: the handle is valid while the client is borrowed, and may be used by any thread. librdkafka copies the list.
        unsafe {
            bindings::rd_kafka_brokers_add(handle, servers.as_ptr());
        }
    }

    fn wake(&self) {
        self.thread.iter().for_each(|thread| thread.thread().unpark());
    }
}

impl Deref for PolledProducer {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for PolledProducer {
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

/// Ends a Kafka client on a thread of its own. Closing a consumer waits for librdkafka's threads, and those were seen to
/// wait for ever now and then (confluentinc/librdkafka#3470, #4884); nobody who has read what they wanted is to wait with
/// them. Where no thread can be had the client is closed here.
pub(crate) fn close_aside<C: Send + 'static>(client: C) {
    let started = std::thread::Builder::new().name("kafka-close".to_owned()).spawn(move || drop(client));
    if let Err(error) = started {
        tracing::debug!(%error, "a Kafka client was closed without a thread of its own");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::close_aside;

    /// Cannot be dropped before it is told.
    struct Stuck(mpsc::Receiver<()>, mpsc::Sender<()>);

    impl Drop for Stuck {
        fn drop(&mut self) {
            self.0.recv().unwrap();
            self.1.send(()).unwrap();
        }
    }

    #[test]
    fn nobody_waits_for_a_client_that_does_not_end() {
        let (tell, told) = mpsc::channel();
        let (done, ended) = mpsc::channel();
        close_aside(Stuck(told, done));
        assert!(ended.try_recv().is_err());
        tell.send(()).unwrap();
        ended.recv().unwrap();
    }
}
