//! [`LaneBus`] on NATS JetStream: a record is a message, and a stream acks it.
//!
//! | file | contents |
//! |---|---|
//! | `session` | one connection and one inbox for all answers |
//! | `login` | user, password, credentials, TLS |
//! | `record` | subject, headers, `Nats-Msg-Id` |
//! | `answer` | what a stream says |
//! | `reader` | messages read back, for `verify` |

mod answer;
mod login;
mod reader;
mod record;
mod session;

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio_rustls::rustls::ClientConfig;

use answer::{Said, Taking};
use reader::StreamReader;
use record::Messages;
use session::{Reply, Session};

use crate::config::{Config, NatsConfig, SinkKind};
use crate::sink::ReadTopics;
use crate::sink::lanes::{Answer, Away, LaneBus, LaneSink};
use walrelay_core::error::{Error, Result};
use walrelay_core::route::{OwnedRecord, Record};

/// The sink of NATS.
pub(super) type NatsSink = LaneSink<Nats>;

/// See the module's documentation.
#[derive(Debug)]
pub struct Nats {
    config: NatsConfig,
    tls: Option<ClientConfig>,
    messages: Messages,
    session: Mutex<Option<Arc<Session>>>,
    /// One connects at a time.
    connecting: tokio::sync::Mutex<()>,
}

impl Nats {
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

    /// What follows where no stream acks `topic`: a later attempt where one takes it, as during an
    /// election of its leader; otherwise `refused`.
    async fn not_acked(&self, session: &Arc<Session>, topic: &str, refused: Error) -> Answer {
        let refused = Answer::Refused {
            error: refused,
            after: None,
        };
        match session.ask_for_streams(topic).await {
            Reply::Message(message) => match answer::taking(&message) {
                Taking::Nobody => refused,
                Taking::Stream(stream) => later(
                    topic,
                    &format!("stream {stream} takes it, and does not ack"),
                ),
                Taking::Unknown(cause) => later(topic, &cause),
            },
            // A user may be without the right to ask.
            Reply::Denied(_) | Reply::TooLarge(_) => refused,
            // The servers elect one that answers.
            Reply::Silent => match self.ping(session).await {
                Ok(()) => later(topic, "JetStream does not answer"),
                Err(away) => Answer::Away(away),
            },
            Reply::Lost => self.lost(session),
        }
    }

    fn lost(&self, session: &Arc<Session>) -> Answer {
        self.end(session);
        Answer::Away(session.lost())
    }
}

/// The record is tried again.
fn later(topic: &str, cause: &str) -> Answer {
    let error = answer::later(topic, cause);
    Answer::Refused { error, after: None }
}

impl LaneBus for Nats {
    const KIND: SinkKind = SinkKind::Nats;

    fn new(config: &Config) -> Result<Nats> {
        Ok(Nats {
            config: config.nats.clone(),
            tls: login::tls(&config.nats)?,
            messages: Messages::new(config)?,
            session: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        })
    }

    fn reader(config: &Config) -> Result<Option<Box<dyn ReadTopics>>> {
        Ok(Some(Box::new(StreamReader::new(config)?)))
    }

    fn sent_max(&self) -> usize {
        self.config.max_in_flight
    }

    fn check(&self, record: &Record<'_>) -> Result<()> {
        record::check_subject(record.topic)?;
        for (name, value) in record.headers {
            record::check_name(name)?;
            value.map(|value| record::text(name, value)).transpose()?;
        }
        Ok(())
    }

    async fn probe(&self) -> Result<(), Away> {
        let _one = self.connecting.lock().await;
        if let Some(session) = self.session() {
            return self.ping(&session).await;
        }
        let session = Arc::new(Session::connect(&self.config, self.tls.as_ref()).await?);
        session.ping().await?;
        *self.session.lock() = Some(session);
        Ok(())
    }

    async fn send(&self, record: &OwnedRecord) -> Answer {
        let Some(session) = self.session() else {
            return Answer::Away(Away::Unreachable("not connected".to_owned()));
        };
        let topic = record.topic.as_str();
        let (headers, has_id) = match self.messages.headers(record) {
            Ok(headers) => headers,
            Err(error) => return Answer::Unfit(error),
        };
        let value = Bytes::copy_from_slice(record.value.as_deref().unwrap_or_default());
        let limit = self.config.ack_timeout;
        let refused = |error| Answer::Refused { error, after: None };
        match session.request(topic, headers, value, limit).await {
            Reply::Message(message) => match answer::said(&message, topic, has_id) {
                Said::Stored => Answer::Acked,
                Said::NoStream => {
                    self.not_acked(&session, topic, answer::no_stream(topic))
                        .await
                }
                Said::Refused(error) => refused(error),
            },
            Reply::Denied(said) => refused(answer::denied(topic, &said)),
            Reply::TooLarge(reason) => Answer::Unfit(answer::too_large(topic, &reason)),
            // Whether the record is stored is unknown. It comes again with the same id.
            Reply::Silent => match self.ping(&session).await {
                Ok(()) => self.not_acked(&session, topic, answer::silent(topic)).await,
                Err(away) => Answer::Away(away),
            },
            Reply::Lost => self.lost(&session),
        }
    }
}
