//! P1: the tests' own client of RabbitMQ, which declares and reads queues.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer, ExchangeKind};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use futures_util::StreamExt as _;

/// A queue without a message for this long is at its end.
const IDLE: Duration = Duration::from_millis(300);
/// For how long a queue is read that others write to meanwhile.
const READ_MAX: Duration = Duration::from_millis(500);

/// A message that was in a queue.
#[derive(Debug, Clone)]
pub(in crate::live) struct Stored {
    pub(in crate::live) routing_key: String,
    pub(in crate::live) properties: BasicProperties,
    pub(in crate::live) payload: Vec<u8>,
}

impl Stored {
    /// A header's text; empty without such a header, or if it has no value.
    pub(in crate::live) fn header(&self, name: &str) -> String {
        let headers = self.properties.headers().as_ref();
        let value = headers.and_then(|headers| headers.inner().get(name));
        let text = value.and_then(AMQPValue::as_long_string);
        text.map(ToString::to_string).unwrap_or_default()
    }
}

/// One connection, and what it has read so far.
pub(in crate::live) struct Client {
    runtime: Runtime,
    uri: String,
    connection: Option<(Connection, Channel)>,
    /// Of the connection, by queue. None is cancelled: a quorum queue returns what it sends to a
    /// cancelled consumer, and the message would be read behind a later one.
    consumers: HashMap<String, Consumer>,
    pub(in crate::live) stored: Vec<Stored>,
}

/// The kind of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::live) enum Queue {
    Classic,
    Quorum,
    Stream,
}

impl Client {
    pub(in crate::live) fn new(address: &str, vhost: &str) -> Client {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        Client {
            runtime,
            uri: format!("amqp://guest:guest@{address}/{vhost}"),
            connection: None,
            consumers: HashMap::new(),
            stored: Vec::new(),
        }
    }

    /// Runs on a channel. A connection that was lost is made again.
    fn on<T>(&mut self, run: impl AsyncFnOnce(&Channel) -> lapin::Result<T>) -> lapin::Result<T> {
        let is_open = |(connection, channel): &(Connection, Channel)| {
            connection.status().connected() && channel.status().connected()
        };
        let uri = self.uri.clone();
        if !self.connection.as_ref().is_some_and(is_open) {
            self.consumers.clear();
            self.connection = Some(self.runtime.block_on(async {
                let connection = Connection::connect(&uri, ConnectionProperties::default()).await?;
                let channel = connection.create_channel().await?;
                channel.basic_qos(1_000, BasicQosOptions::default()).await?;
                lapin::Result::Ok((connection, channel))
            })?);
        }
        let (_, channel) = self.connection.as_ref().expect("a connection");
        self.runtime.block_on(run(channel))
    }

    pub(in crate::live) fn declare_queue(&mut self, name: &str, kind: Queue) {
        self.declare_with(name, kind, &[]);
    }

    pub(in crate::live) fn declare_with(
        &mut self,
        name: &str,
        kind: Queue,
        more: &[(&str, AMQPValue)],
    ) {
        let text = match kind {
            Queue::Classic => "classic",
            Queue::Quorum => "quorum",
            Queue::Stream => "stream",
        };
        let mut arguments = FieldTable::default();
        let text = AMQPValue::LongString(LongString::from(text));
        arguments.insert("x-queue-type".into(), text);
        for (name, value) in more {
            arguments.insert((*name).into(), value.clone());
        }
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        self.on(async |channel| channel.queue_declare(name.into(), durable, arguments).await)
            .expect("a queue");
    }

    /// The number of messages in a queue that nothing has read from; 0 without the queue.
    pub(in crate::live) fn waiting(&mut self, name: &str) -> u32 {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let declared = self.on(async |channel| {
            let arguments = FieldTable::default();
            channel.queue_declare(name.into(), options, arguments).await
        });
        declared.map_or(0, |queue| queue.message_count())
    }

    pub(in crate::live) fn declare_exchange(&mut self, name: &str, internal: bool) {
        let options = ExchangeDeclareOptions {
            durable: true,
            internal,
            ..ExchangeDeclareOptions::default()
        };
        self.on(async |channel| {
            let arguments = FieldTable::default();
            channel
                .exchange_declare(name.into(), ExchangeKind::Topic, options, arguments)
                .await
        })
        .expect("an exchange");
    }

    pub(in crate::live) fn bind(&mut self, queue: &str, exchange: &str, key: &str) {
        self.on(async |channel| {
            let options = QueueBindOptions::default();
            let arguments = FieldTable::default();
            channel
                .queue_bind(
                    queue.into(),
                    exchange.into(),
                    key.into(),
                    options,
                    arguments,
                )
                .await
        })
        .expect("a binding");
    }

    /// Reads a queue until nothing comes for a while, but not for ever while others write, and gives
    /// how many messages were read so far. What it reads is gone, but a stream is read from its
    /// beginning on a new connection. The server may be on its way.
    pub(in crate::live) fn read(&mut self, name: &str, kind: Queue) -> usize {
        if self.consume(name, kind).is_err() {
            self.connection = None;
        }
        self.stored.len()
    }

    fn consume(&mut self, name: &str, kind: Queue) -> lapin::Result<()> {
        // A lost connection takes its consumers with it.
        self.on(async |_| Ok(()))?;
        let mut consumer = match self.consumers.remove(name) {
            Some(consumer) => consumer,
            None => self.add_consumer(name, kind)?,
        };
        let start = Instant::now();
        while start.elapsed() < READ_MAX
            && let Ok(next) = self
                .runtime
                .block_on(async { timeout(IDLE, consumer.next()).await })
        {
            // The server has ended it, as it does when the queue is deleted.
            let Some(message) = next else {
                return Ok(());
            };
            let message = message?;
            self.runtime
                .block_on(message.ack(BasicAckOptions::default()))?;
            self.stored.push(Stored {
                routing_key: message.routing_key.to_string(),
                properties: message.properties,
                payload: message.data,
            });
        }
        self.consumers.insert(name.to_owned(), consumer);
        Ok(())
    }

    fn add_consumer(&mut self, name: &str, kind: Queue) -> lapin::Result<Consumer> {
        let mut arguments = FieldTable::default();
        if kind == Queue::Stream {
            let first = AMQPValue::LongString(LongString::from("first"));
            arguments.insert("x-stream-offset".into(), first);
            self.stored.clear();
        }
        self.on(async |channel| {
            let options = BasicConsumeOptions::default();
            let tag = name.into();
            channel
                .basic_consume(name.into(), tag, options, arguments)
                .await
        })
    }
}
