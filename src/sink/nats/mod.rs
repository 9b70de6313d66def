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

use async_nats::HeaderMap;
use bytes::Bytes;
use tokio::sync::watch;
use tokio_rustls::rustls::ClientConfig;

use answer::{Said, Taking};
use reader::StreamReader;
use record::Messages;
use session::{API, API_TIMEOUT, Reply, Session};

use crate::config::nats::SCHEMES;
use crate::config::servers::in_clear;
use crate::config::{Config, NatsConfig, SinkKind};
use crate::sink::lanes::{Answer, Away, LaneBus, LaneSink, Need, ServerState};
use crate::sink::present::{Connection as _, Present};
use crate::sink::{ReadTopics, not_encrypted};
use walrelay_core::config::unit::human_bytes;
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
    session: Present<Session>,
    /// What the present server says.
    told: Arc<watch::Sender<ServerState>>,
}

impl Nats {
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
            Reply::Silent => match Box::pin(self.session.ping(session)).await {
                Ok(()) => later(topic, "JetStream does not answer"),
                Err(away) => Answer::Away(away),
            },
            Reply::Lost => self.lost(session),
        }
    }

    /// Which stream takes records for `topic`.
    async fn place(&self, session: &Session, topic: &str) -> Result<String> {
        record::check_subject(topic)?;
        let wanted = self.config.stream.as_str();
        let cause = match session.ask_for_streams(topic).await {
            Reply::Message(message) => match answer::taking(&message) {
                Taking::Stream(name) if wanted.is_empty() || name == wanted => {
                    return Ok(format!("stream {name} has this subject"));
                }
                Taking::Stream(name) => return Err(answer::other_stream(topic, &name, wanted)),
                Taking::Nobody => return Err(answer::no_stream(topic)),
                Taking::Unknown(cause) => cause,
            },
            Reply::Denied(_) | Reply::TooLarge(_) => {
                return Ok(format!(
                    "not asked which stream takes it: this user may not publish to \
                     {API}STREAM.NAMES"
                ));
            }
            Reply::Silent => "JetStream does not answer".to_owned(),
            Reply::Lost => session
                .lost()
                .into_error(Self::KIND.bus().reach)
                .to_string(),
        };
        Err(answer::later(topic, &cause))
    }

    /// The stream of `nats.stream`.
    async fn stream(&self, session: &Session) -> Need {
        let name = self.config.stream.clone();
        let subject = format!("{API}STREAM.INFO.{name}");
        let asked = session.request(&subject, HeaderMap::new(), Bytes::new(), API_TIMEOUT);
        let found = match asked.await {
            Reply::Message(message) => answer::existing(&message, &name),
            Reply::Denied(_) | Reply::TooLarge(_) => Ok(format!(
                "not asked whether it exists: this user may not publish to {subject}"
            )),
            Reply::Silent | Reply::Lost => Err(answer::no_jetstream(&name)),
        };
        Need { name, found }
    }

    fn lost(&self, session: &Arc<Session>) -> Answer {
        self.session.end(session);
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
            session: Present::default(),
            told: Arc::new(watch::Sender::new(ServerState::Ready)),
        })
    }

    fn reader(config: &Config) -> Result<Option<Box<dyn ReadTopics>>> {
        Ok(Some(Box::new(StreamReader::new(config)?)))
    }

    fn weakness(config: &Config) -> Option<String> {
        let server = in_clear(&config.nats.servers, &SCHEMES)?;
        let setting = "nats.servers, where tls:// always has TLS";
        Some(not_encrypted(Self::KIND, server, setting))
    }

    fn sent_max(&self) -> usize {
        self.config.max_in_flight
    }

    fn check(&self, record: &Record<'_>) -> Result<()> {
        self.check_topic(record.topic)?;
        let mut headers = record.headers.iter();
        headers.try_for_each(|(name, value)| self.check_header(name, *value))
    }

    fn check_topic(&self, topic: &str) -> Result<()> {
        record::check_subject(topic)
    }

    fn check_header(&self, name: &str, value: Option<&[u8]>) -> Result<()> {
        record::check_name(name)?;
        value.map_or(Ok(()), |value| record::text(name, value).map(drop))
    }

    fn watch_server(&self) -> watch::Receiver<ServerState> {
        self.told.subscribe()
    }

    async fn probe(&self) -> Result<(), Away> {
        let connect = Box::pin(async {
            let told = Arc::clone(&self.told);
            let session = Session::connect(&self.config, self.tls.as_ref(), told).await?;
            session.ping().await?;
            Ok(session)
        });
        self.session.probe(connect).await
    }

    async fn size(&self, record: &OwnedRecord) -> Result<Option<String>> {
        let Some(session) = self.session.get() else {
            return Ok(None);
        };
        let headers = self.messages.headers(record)?;
        let bytes = record::bytes(&headers.0) + record.value.as_ref().map_or(0, Vec::len);
        let max = session.payload_bytes_max();
        let said = format!(
            "it has {}, of {}",
            human_bytes(bytes as u64),
            human_bytes(max as u64)
        );
        if bytes > max {
            return Err(answer::too_large(&record.topic, &said));
        }
        Ok(Some(said))
    }

    async fn needs(&self, topics: &[&str]) -> Vec<Need> {
        let Some(session) = self.session.get() else {
            return Vec::new();
        };
        let mut needs = Vec::new();
        if !self.config.stream.is_empty() {
            needs.push(self.stream(&session).await);
        }
        for topic in topics {
            needs.push(Need {
                name: (*topic).to_owned(),
                found: self.place(&session, topic).await,
            });
        }
        needs
    }

    async fn send(&self, record: &OwnedRecord) -> Answer {
        let Some(session) = self.session.get() else {
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
                    Box::pin(self.not_acked(&session, topic, answer::no_stream(topic))).await
                }
                Said::Refused(error) => refused(error),
                Said::Full(error) => Answer::Full(error),
            },
            Reply::Denied(said) => refused(answer::denied(topic, &said)),
            Reply::TooLarge(reason) => Answer::Unfit(answer::too_large(topic, &reason)),
            // Whether the record is stored is unknown. It comes again with the same id.
            Reply::Silent => match Box::pin(self.session.ping(&session)).await {
                Ok(()) => Box::pin(self.not_acked(&session, topic, answer::silent(topic))).await,
                Err(away) => Answer::Away(away),
            },
            Reply::Lost => self.lost(&session),
        }
    }
}
