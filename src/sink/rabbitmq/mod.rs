//! [`LaneBus`] on RabbitMQ, by AMQP 0-9-1: a record is a persistent, mandatory message, and the
//! server confirms it once all its queues have it.
//!
//! | file | contents |
//! |---|---|
//! | `session` | one connection and its pool of channels |
//! | `reactor` | what the client's thread needs of Tokio |
//! | `record` | routing key, properties, headers, limits |
//! | `answer` | the class of each answer |

mod answer;
mod reactor;
mod record;
mod session;

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use answer::Said;
use record::Messages;
use session::{Dialer, Session, TlsConnectorOf, Unconfirmed};

use crate::config::{Config, SinkKind};
use crate::sink::lanes::{Answer, Away, LaneBus, LaneSink, Place};
use crate::sink::login;
use walrelay_core::error::Result;
use walrelay_core::route::{OwnedRecord, Record};

/// The sink of RabbitMQ.
pub(super) type RabbitmqSink = LaneSink<Rabbitmq>;

/// See the module's documentation.
#[derive(Debug)]
pub struct Rabbitmq {
    dialer: Dialer,
    messages: Messages,
    session: Mutex<Option<Arc<Session>>>,
    /// One connects at a time.
    connecting: tokio::sync::Mutex<()>,
}

impl Rabbitmq {
    fn session(&self) -> Option<Arc<Session>> {
        self.session.lock().clone()
    }

    /// Ends this session, where it is still the present one.
    fn end(&self, session: &Arc<Session>) {
        session.end();
        let mut present = self.session.lock();
        if present
            .as_ref()
            .is_some_and(|present| Arc::ptr_eq(present, session))
        {
            *present = None;
        }
    }

    async fn ping(&self, session: &Arc<Session>) -> Result<(), Away> {
        let answered = session.ping().await;
        if answered.is_err() {
            self.end(session);
        }
        answered
    }
}

impl LaneBus for Rabbitmq {
    const KIND: SinkKind = SinkKind::Rabbitmq;

    fn new(config: &Config) -> Result<Rabbitmq> {
        let rabbitmq = config.rabbitmq.clone();
        let is_tls = rabbitmq
            .each_server()
            .any(|server| server.starts_with("amqps://"));
        let tls = is_tls
            .then(|| login::tls("rabbitmq", &rabbitmq.ca_file, true))
            .transpose()?;
        Ok(Rabbitmq {
            dialer: Dialer {
                name: format!("walrelay {}", config.state.key),
                tls: tls.map(|tls| TlsConnectorOf(Arc::new(tls))),
                config: rabbitmq,
                blocked: Arc::default(),
            },
            messages: Messages::new(config)?,
            session: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        })
    }

    fn sent_max(&self) -> usize {
        self.dialer.config.max_in_flight
    }

    fn check(&self, record: &Record<'_>) -> Result<()> {
        self.messages.message(record).map(drop)
    }

    fn watch_blocked(&self) -> watch::Receiver<Option<String>> {
        self.dialer.blocked.subscribe()
    }

    async fn probe(&self) -> Result<(), Away> {
        let _one = self.connecting.lock().await;
        if let Some(session) = self.session() {
            return self.ping(&session).await;
        }
        let session = Arc::new(self.dialer.connect().await?);
        *self.session.lock() = Some(session);
        Ok(())
    }

    async fn send(&self, record: &OwnedRecord) -> Answer {
        let Some(session) = self.session() else {
            return Answer::Away(Away::Unreachable("not connected".to_owned()));
        };
        let refused = |error| Answer::Refused { error, after: None };
        let topic = record.topic.as_str();
        let checked = self.messages.of_copy(record).and_then(|message| {
            record::check_size(&message, session.frame_bytes_max())?;
            Ok(message)
        });
        let message = match checked {
            Ok(message) => message,
            Err(error) => return refused(error),
        };
        let body = record.value.as_deref().unwrap_or_default();
        let limit = self.dialer.config.ack_timeout;
        let said = match session.publish(message, body, limit).await {
            Ok(confirmation) => answer::confirmed(&confirmation, topic),
            Err(Unconfirmed::Failed(error)) => answer::failed(&error, topic),
            // Whether its queues have the record is unknown. It comes again.
            Err(Unconfirmed::Silent) => match self.ping(&session).await {
                Ok(()) => Said::Later(answer::silent(topic)),
                Err(away) => return Answer::Away(away),
            },
        };
        match said {
            Said::Acked => Answer::Acked,
            Said::Later(error) | Said::Refused(error) => refused(error),
            Said::Lost(cause) => {
                self.end(&session);
                Answer::Away(Away::Unreachable(cause))
            }
        }
    }

    async fn places(&self, topics: &[&str]) -> Vec<Place> {
        let Some(session) = self.session() else {
            return Vec::new();
        };
        let exchange = self.messages.exchange();
        let (names, fits) = match exchange.as_str() {
            "" => (topics, "the queue exists"),
            name => (
                &[name][..],
                "the exchange exists; bindings cannot be asked for",
            ),
        };
        let mut places = Vec::new();
        for name in names {
            let found = session.has_place(exchange, name).await;
            places.push(Place {
                name: (*name).to_owned(),
                found: found.map(|()| fits).map_err(answer::no_place),
            });
        }
        places
    }
}
