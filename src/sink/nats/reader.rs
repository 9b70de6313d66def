//! Reads the messages of a subject back, one by one, by the API of JetStream.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_rustls::rustls::ClientConfig;

use super::answer::{self, Failure, MESSAGE_BYTES_MAX, Taking};
use super::login;
use super::session::{API, API_TIMEOUT, Reply, Session};
use crate::config::{Bus, Config, NatsConfig, SinkKind};
use crate::sink::lanes::ServerState;
use crate::sink::{Extent, ReadTopics, Step, TopicRecord};
use walrelay_core::error::{Error, Kind, Result};

const BUS: Bus = SinkKind::Nats.bus();
/// How soon a message or a stream that is not there is looked for again.
const PAUSE: Duration = Duration::from_millis(300);
/// `JSNoMessageFoundErr`
const NO_MESSAGE: u32 = 10037;

/// See the module's documentation.
pub(super) struct StreamReader {
    config: NatsConfig,
    tls: Option<ClientConfig>,
}

/// What the API answers.
#[derive(Deserialize)]
struct Answer {
    error: Option<Failure>,
    state: Option<State>,
    message: Option<Stored>,
}

/// Of a stream.
#[derive(Deserialize)]
struct State {
    first_seq: u64,
    last_seq: u64,
    #[serde(default)]
    num_deleted: u64,
    /// The messages of each subject that was asked for.
    #[serde(default)]
    subjects: HashMap<String, u64>,
}

/// A message, in base64.
#[derive(Deserialize)]
struct Stored {
    seq: u64,
    time: String,
    #[serde(default)]
    hdrs: String,
}

impl StreamReader {
    pub(super) fn new(config: &Config) -> Result<StreamReader> {
        Ok(StreamReader {
            config: config.nats.clone(),
            tls: login::tls(&config.nats)?,
        })
    }

    async fn read(
        &self,
        topic: &str,
        since_ms: Option<i64>,
        take: &mut dyn FnMut(Step<'_>) -> ControlFlow<()>,
    ) -> Result<Extent> {
        let told = Arc::new(watch::Sender::new(ServerState::Ready));
        let connected = Session::connect(&self.config, self.tls.as_ref(), told).await;
        let session = connected.map_err(|away| away.into_error(BUS.reach))?;
        let stream = loop {
            match stream_of(&session, topic).await? {
                Some(name) => {
                    break Stream {
                        session,
                        name,
                        topic,
                    };
                }
                None if take(Step::Nothing).is_break() => {
                    return Ok(Extent {
                        is_absent: true,
                        is_cut: false,
                    });
                }
                None => sleep(PAUSE).await,
            }
        };
        let state = stream.state().await?;
        let mut next = match since_ms {
            None => state.first_seq,
            Some(since_ms) => stream.since(&state, since_ms).await?,
        };
        let is_cut = next == state.first_seq && (next > 1 || state.num_deleted > 0);
        let mut end = None;
        if take(Step::Begin(state.subjects.values().sum())).is_break() {
            end = Some(state.last_seq);
        }
        loop {
            match stream.message(next).await? {
                Some(message) if end.is_none_or(|end| message.seq <= end) => {
                    next = message.seq.saturating_add(1);
                    let is_over = message.give(take).is_break();
                    if is_over && end.is_none() {
                        end = Some(stream.state().await?.last_seq);
                    }
                }
                None if end.is_none() && take(Step::Nothing).is_continue() => sleep(PAUSE).await,
                Some(_) | None => break,
            }
        }
        Ok(Extent {
            is_absent: false,
            is_cut,
        })
    }
}

impl ReadTopics for StreamReader {
    fn read_topic(
        &mut self,
        topic: &str,
        since_ms: Option<i64>,
        take: &mut dyn FnMut(Step<'_>) -> ControlFlow<()>,
    ) -> Result<Extent> {
        Handle::current().block_on(self.read(topic, since_ms, take))
    }
}

/// A subject in its stream.
struct Stream<'a> {
    session: Session,
    name: String,
    topic: &'a str,
}

impl Stream<'_> {
    async fn state(&self) -> Result<State> {
        let question = json!({"subjects_filter": self.topic});
        let state = self
            .ask("INFO", &question)
            .await?
            .and_then(|answer| answer.state);
        state.ok_or_else(|| unreadable(&self.name))
    }

    /// The first message of the subject from this sequence number on.
    async fn message(&self, seq: u64) -> Result<Option<Stored>> {
        let question = json!({"seq": seq, "next_by_subj": self.topic});
        match self.ask("MSG.GET", &question).await? {
            None => Ok(None),
            Some(Answer { message, .. }) => {
                let message = message.filter(|message| message.seq >= seq);
                message.map(Some).ok_or_else(|| unreadable(&self.name))
            }
        }
    }

    /// Where the messages begin that are as young as this.
    async fn since(&self, state: &State, since_ms: i64) -> Result<u64> {
        let mut low = state.first_seq;
        let mut high = state.last_seq.saturating_add(1);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.message(middle).await? {
                Some(message) if message.is_before(since_ms) => {
                    low = message.seq.saturating_add(1);
                }
                Some(_) | None => high = middle,
            }
        }
        Ok(low)
    }

    /// None where there is no such message.
    async fn ask(&self, what: &str, question: &Value) -> Result<Option<Answer>> {
        let subject = format!("{API}STREAM.{what}.{}", self.name);
        let question = question.to_string().into();
        let asked = self
            .session
            .request(&subject, HeaderMap::new(), question, API_TIMEOUT);
        let answer = match asked.await {
            Reply::Message(message) => answer::read(&message, MESSAGE_BYTES_MAX),
            Reply::Denied(said) => return Err(denied(&subject, &said)),
            Reply::Silent | Reply::Lost | Reply::TooLarge(_) => return Err(silent(self.topic)),
        };
        match answer.ok_or_else(|| unreadable(&self.name))? {
            Answer {
                error:
                    Some(Failure {
                        err_code: NO_MESSAGE,
                        ..
                    }),
                ..
            } => Ok(None),
            Answer {
                error: Some(failure),
                ..
            } => {
                let cause = format!("stream {}: {failure}", self.name);
                Err(Error::new(Kind::BusUnreachable, cause).remedy(BUS.stalled))
            }
            answer => Ok(Some(answer)),
        }
    }
}

impl Stored {
    fn is_before(&self, ms: i64) -> bool {
        let time = self.time.parse::<Timestamp>();
        time.is_ok_and(|time| time.as_millisecond() < ms)
    }

    fn give(&self, take: &mut dyn FnMut(Step<'_>) -> ControlFlow<()>) -> ControlFlow<()> {
        let head = BASE64_STANDARD.decode(&self.hdrs).unwrap_or_default();
        let head = String::from_utf8_lossy(&head);
        // The first line is the version.
        let headers = head.split("\r\n").skip(1);
        let headers = headers.filter_map(|line| line.split_once(':'));
        take(Step::Record(&TopicRecord {
            partition: 0,
            offset: i64::try_from(self.seq).unwrap_or(i64::MAX),
            key: None,
            value: None,
            headers: Some(
                headers
                    .map(|(name, value)| (name, Some(value.trim_start().as_bytes())))
                    .collect(),
            ),
        }))
    }
}

/// The stream that has a subject.
async fn stream_of(session: &Session, topic: &str) -> Result<Option<String>> {
    match session.ask_for_streams(topic).await {
        Reply::Message(message) => match answer::taking(&message) {
            Taking::Nobody => Ok(None),
            Taking::Stream(name) => Ok(Some(name)),
            Taking::Unknown(cause) => {
                Err(Error::new(Kind::BusUnreachable, cause).remedy(BUS.stalled))
            }
        },
        Reply::Denied(said) => Err(denied(&format!("{API}STREAM.NAMES"), &said)),
        Reply::Silent | Reply::Lost | Reply::TooLarge(_) => Err(silent(topic)),
    }
}

fn denied(subject: &str, said: &str) -> Error {
    let remedy = format!("allow this user to publish to {subject}");
    Error::new(Kind::BusRefused, said).remedy(remedy)
}

fn silent(topic: &str) -> Error {
    let cause = format!("JetStream does not answer a question about subject {topic}");
    Error::new(Kind::BusUnreachable, cause).remedy(BUS.stalled)
}

fn unreadable(stream: &str) -> Error {
    let cause = format!("JetStream answers what is no message of stream {stream}");
    Error::new(Kind::BusUnreachable, cause).remedy(BUS.stalled)
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn fuzzed_messages_of_streams() {
        let corpus = [
            concat!(
                r#"{"message":{"subject":"a","seq":7,"hdrs":"TkFUUy8xLjANCmlkOiA3DQoNCg==","#,
                r#""data":"e30=","time":"2024-05-06T05:08:09.123456789Z"}}"#
            ),
            r#"{"state":{"first_seq":1,"last_seq":9,"num_deleted":2,"subjects":{"a":3}}}"#,
            r#"{"error":{"code":404,"err_code":10037,"description":"no message found"}}"#,
        ];
        fuzz_text("messages of JetStream", 1 << 20, &corpus, |text| {
            let Ok(answer) = serde_json::from_str::<Answer>(text) else {
                return;
            };
            if let Some(message) = answer.message {
                let _before = message.is_before(0);
                let flow = message.give(&mut |step| {
                    let Step::Record(record) = step else {
                        panic!("no record")
                    };
                    assert!(record.headers.as_ref().unwrap().len() <= text.len());
                    ControlFlow::Break(())
                });
                assert!(flow.is_break());
            }
        });
    }
}
