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

use tokio::sync::watch;

use answer::Said;
use record::{Message, Messages};
use session::{Dialer, Session, TlsConnectorOf, Unconfirmed};

use crate::config::rabbitmq::SCHEMES;
use crate::config::servers::in_clear;
use crate::config::{Config, SinkKind};
use crate::sink::lanes::{Answer, Away, LaneBus, LaneSink, Need, ServerState};
use crate::sink::present::Present;
use crate::sink::{login, not_encrypted};
use walrelay_core::config::unit::human_bytes;
use walrelay_core::error::Result;
use walrelay_core::route::{OwnedRecord, Record};

/// The sink of RabbitMQ.
pub(super) type RabbitmqSink = LaneSink<Rabbitmq>;

/// See the module's documentation.
#[derive(Debug)]
pub struct Rabbitmq {
    dialer: Dialer,
    messages: Messages,
    session: Present<Session>,
}

impl Rabbitmq {
    /// Errors: no message can be this record, or this server takes none with such headers.
    fn fit(&self, session: &Session, record: &OwnedRecord) -> Result<Message> {
        let message = record.with_record(|record| self.messages.message(record))?;
        record::check_size(&message, session.frame_bytes_max())?;
        Ok(message)
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
                told: Arc::new(watch::Sender::new(ServerState::Ready)),
            },
            messages: Messages::new(config)?,
            session: Present::default(),
        })
    }

    fn weakness(config: &Config) -> Option<String> {
        let server = in_clear(&config.rabbitmq.servers, &SCHEMES)?;
        let setting = "rabbitmq.servers, where amqps:// has TLS";
        Some(not_encrypted(Self::KIND, server, setting))
    }

    fn sent_max(&self) -> usize {
        self.dialer.config.max_in_flight
    }

    fn check(&self, record: &Record<'_>) -> Result<()> {
        self.messages.message(record).map(drop)
    }

    fn check_topic(&self, topic: &str) -> Result<()> {
        self.messages.routing_key(topic).map(drop)
    }

    fn check_header(&self, name: &str, value: Option<&[u8]>) -> Result<()> {
        record::check_header(name, value)
    }

    fn watch_server(&self) -> watch::Receiver<ServerState> {
        self.dialer.told.subscribe()
    }

    async fn probe(&self) -> Result<(), Away> {
        self.session.probe(self.dialer.connect()).await
    }

    async fn send(&self, record: &OwnedRecord) -> Answer {
        let Some(session) = self.session.get() else {
            return Answer::Away(Away::Unreachable("not connected".to_owned()));
        };
        let refused = |error| Answer::Refused { error, after: None };
        let topic = record.topic.as_str();
        let message = match self.fit(&session, record) {
            Ok(message) => message,
            Err(error) => return Answer::Unfit(error),
        };
        let body = record.value.as_deref().unwrap_or_default();
        let limit = self.dialer.config.ack_timeout;
        let said = match session.publish(message, body, limit).await {
            Ok(confirmation) => answer::confirmed(&confirmation, topic),
            Err(Unconfirmed::Failed(error)) => answer::failed(&error, topic),
            // Whether its queues have the record is unknown. It comes again.
            Err(Unconfirmed::Silent) => match self.session.ping(&session).await {
                Ok(()) => Said::Later(answer::silent(topic)),
                Err(away) => return Answer::Away(away),
            },
        };
        match said {
            Said::Acked => Answer::Acked,
            Said::Full(error) => Answer::Full(error),
            Said::Later(error) | Said::Refused(error) => refused(error),
            Said::Lost(cause) => {
                self.session.end(&session);
                Answer::Away(Away::Unreachable(cause))
            }
        }
    }

    async fn size(&self, record: &OwnedRecord) -> Result<Option<String>> {
        let Some(session) = self.session.get() else {
            return Ok(None);
        };
        let headers = human_bytes(self.fit(&session, record)?.header_bytes as u64);
        let limit = human_bytes(session.frame_bytes_max() as u64);
        Ok(Some(format!(
            "its headers have {headers}, of {limit}; no server tells its max_message_size"
        )))
    }

    async fn needs(&self, topics: &[&str]) -> Vec<Need> {
        let Some(session) = self.session.get() else {
            return Vec::new();
        };
        let exchange = self.messages.exchange();
        let (names, fits) = match exchange.as_str() {
            "" => (topics, "the queue exists"),
            name => (
                &[name][..],
                "the exchange exists; AMQP does not tell whether a queue is bound to it for each \
                 topic: rabbitmqctl list_bindings",
            ),
        };
        let mut needs = Vec::new();
        for name in names {
            let found = session.has_place(exchange, name).await;
            needs.push(Need {
                name: (*name).to_owned(),
                found: found.map(|()| fits.to_owned()).map_err(answer::no_place),
            });
        }
        needs
    }
}
