//! P1: the tests' own client of RabbitMQ, which declares and reads queues.

use std::time::Duration;

use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions,
    ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use futures_util::StreamExt as _;

/// A queue without a message for this long is at its end.
const IDLE: Duration = Duration::from_millis(300);

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
            self.connection = Some(self.runtime.block_on(async {
                let connection = Connection::connect(&uri, ConnectionProperties::default()).await?;
                let channel = connection.create_channel().await?;
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

    /// The number of messages in a queue that were not read yet; 0 without the queue.
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

    /// Reads a queue until nothing comes for a while, and gives how many messages were read so far.
    /// What it reads is gone, but a stream is read from its beginning. The server may be on its
    /// way.
    pub(in crate::live) fn read(&mut self, name: &str, kind: Queue) -> usize {
        let mut read = Vec::new();
        let mut arguments = FieldTable::default();
        if kind == Queue::Stream {
            let first = AMQPValue::LongString(LongString::from("first"));
            arguments.insert("x-stream-offset".into(), first);
            self.stored.clear();
        }
        let ended = self.on(async |channel| {
            channel.basic_qos(1_000, BasicQosOptions::default()).await?;
            let options = BasicConsumeOptions::default();
            let mut consumer = channel
                .basic_consume(name.into(), "tests".into(), options, arguments)
                .await?;
            let mut is_cancelled = false;
            loop {
                let message = match timeout(IDLE, consumer.next()).await {
                    Ok(Some(message)) => message?,
                    // What the server had sent before is here, too.
                    Ok(None) => return Ok(()),
                    Err(_) if is_cancelled => return Ok(()),
                    Err(_) => {
                        let options = BasicCancelOptions::default();
                        channel.basic_cancel("tests".into(), options).await?;
                        is_cancelled = true;
                        continue;
                    }
                };
                message.ack(BasicAckOptions::default()).await?;
                read.push(Stored {
                    routing_key: message.routing_key.to_string(),
                    properties: message.properties,
                    payload: message.data,
                });
            }
        });
        if ended.is_err() {
            self.connection = None;
        }
        self.stored.append(&mut read);
        self.stored.len()
    }
}
