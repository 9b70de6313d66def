//! [`LaneBus`] on NATS JetStream: a record is a message, and a stream acks it.
//!
//! | file | contents |
//! |---|---|
//! | `session` | one connection and one inbox for all answers |
//! | `login` | user, password, credentials, TLS |
//! | `record` | subject, headers, `Nats-Msg-Id` |
//! | `answer` | what a stream says |
//! | `trouble` | subjects whose streams do not ack |

mod answer;
mod login;
mod record;
mod session;
mod trouble;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio_rustls::rustls::ClientConfig;

use answer::Said;
use record::Messages;
use session::{Reply, Session};
use trouble::{Troubles, What};

use crate::config::{Config, NatsConfig, SinkKind};
use crate::sink::lanes::{Answer, Away, LaneBus, LaneSink};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::route::{OwnedRecord, Record};

/// How soon a subject without a stream is tried again: an election may be on.
const SOON: Duration = Duration::from_millis(500);

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
    troubles: Mutex<Troubles>,
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

    /// What follows where no stream acks `topic`: for a while, a later attempt; then `error`.
    fn troubled(&self, topic: &str, what: What, error: Error) -> Answer {
        if self.troubles.lock().add(topic, what) {
            return Answer::Refused { error, after: None };
        }
        let error = error.with_kind(Kind::BusUnreachable);
        let after = (what == What::NoStream).then_some(SOON);
        Answer::Refused { error, after }
    }

    fn judge(&self, said: Said, topic: &str) -> Answer {
        match said {
            Said::Stored => {
                self.troubles.lock().end(topic);
                Answer::Acked
            }
            Said::NoStream => self.troubled(topic, What::NoStream, answer::no_stream(topic)),
            Said::Later(cause) => {
                let cause = format!("subject {topic}: {cause}");
                let error = Error::new(Kind::BusUnreachable, cause).remedy(
                    "make room in the stream, or raise its limits: nats stream info. The relay \
                     tries again",
                );
                self.troubled(topic, What::Later, error)
            }
            Said::Refused(error) => Answer::Refused { error, after: None },
        }
    }
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
            troubles: Mutex::default(),
        })
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
            Err(error) => return Answer::Refused { error, after: None },
        };
        let value = Bytes::copy_from_slice(record.value.as_deref().unwrap_or_default());
        let limit = self.config.ack_timeout;
        let refused = |error| Answer::Refused { error, after: None };
        match session.request(topic, headers, value, limit).await {
            Reply::Message(message) => self.judge(answer::said(&message, topic, has_id), topic),
            Reply::Denied(said) => refused(answer::denied(topic, &said)),
            Reply::TooLarge(reason) => refused(answer::too_large(topic, &reason)),
            // Whether the record is stored is unknown. It comes again with the same id.
            Reply::Silent => match self.ping(&session).await {
                Ok(()) => self.troubled(topic, What::Silent, answer::silent(topic)),
                Err(away) => Answer::Away(away),
            },
            Reply::Lost => {
                self.end(&session);
                Answer::Away(session.lost())
            }
        }
    }
}
