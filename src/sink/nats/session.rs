//! One connection to a server, and one inbox for all answers.
//!
//! The client's own way to connect again is switched off: what it had not sent yet would follow
//! later, behind newer records of the same key. A lost connection ends the session, and
//! `super::Nats::probe` makes another one.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::future::ready;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_nats::client::PublishErrorKind;
use async_nats::{Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, HeaderMap};
use async_nats::{Message, ServerAddr, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::rustls::ClientConfig;

use super::answer::head;
use super::login;
use crate::config::NatsConfig;
use crate::sink::lanes::{Away, ServerState};
use crate::sink::present;
use walrelay_core::error::{Error, Kind};

/// For one address, from the look-up of the name to the server's greeting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For all addresses.
const CONNECT_ALL_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a server may take to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// How often an idle connection is tested.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Nobody listens on port 0: the client gives up where it would connect again.
const NOWHERE: &str = "nats://127.0.0.1:0";
/// How questions to JetStream begin.
pub(super) const API: &str = "$JS.API.";
/// How long JetStream may take to answer one.
pub(super) const API_TIMEOUT: Duration = Duration::from_secs(2);
const DENIED_SUBSCRIPTION: &str = "permissions violation for subscription";
const DENIED_PUBLISH: &str = "permissions violation for publish";

/// How one request ended.
#[derive(Debug)]
pub(super) enum Reply {
    /// Somebody answered.
    Message(Message),
    /// The server says that this user may not publish to the subject.
    Denied(String),
    /// It is longer than the server takes, for this reason. Nothing was sent.
    TooLarge(String),
    /// Nobody answered in time.
    Silent,
    /// The session is over.
    Lost,
}

#[derive(Debug)]
struct Open {
    subject: String,
    reply: oneshot::Sender<Reply>,
}

/// The requests that wait for an answer.
#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    open: HashMap<u64, Open>,
    is_over: bool,
    /// What the server said last.
    error: Option<String>,
    /// Why the session is of no use.
    unusable: Option<Error>,
}

impl Waiting {
    fn end(&mut self) {
        self.is_over = true;
        self.open.clear();
    }

    /// Why the session is over.
    fn lost(&self) -> Away {
        if let Some(error) = &self.unusable {
            return Away::Unusable(error.clone());
        }
        let said = self.error.as_deref();
        unreachable(said.unwrap_or("the connection was lost"))
    }

    fn answered(&mut self, inbox: &str, message: Message) {
        let number = message.subject.strip_prefix(inbox);
        let number = number.and_then(|rest| rest.strip_prefix('.')?.parse().ok());
        // Of an attempt that no longer waits there is nothing left.
        if let Some(open) = number.and_then(|number: u64| self.open.remove(&number)) {
            open.reply.send(Reply::Message(message)).unwrap_or_default();
        }
    }

    fn told(&mut self, error: &str) {
        let lower = error.to_ascii_lowercase();
        let said = head(error);
        if lower.contains(DENIED_SUBSCRIPTION) {
            let error = Error::new(Kind::BusRefused, format!("NATS refuses the inbox: {said}"));
            let remedy = "allow this user to subscribe to _INBOX.>: acks come there";
            self.unusable = Some(error.remedy(remedy));
            self.end();
        } else if lower.contains(DENIED_PUBLISH) {
            let subject = error.split('"').nth(1).unwrap_or_default();
            let denied = self.open.extract_if(|_, open| open.subject == subject);
            for (_, open) in denied {
                let reply = Reply::Denied(said.clone());
                open.reply.send(reply).unwrap_or_default();
            }
        } else {
            self.error = Some(said);
        }
    }
}

/// See the module's documentation. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    inbox: String,
    waiting: Arc<Mutex<Waiting>>,
    answers: JoinHandle<()>,
}

impl Session {
    /// Connects to one of the servers. Where this fails or is dropped, nothing is left running.
    /// `told` gets the end of the connection.
    pub(super) async fn connect(
        config: &NatsConfig,
        tls: Option<&ClientConfig>,
        told: Arc<watch::Sender<ServerState>>,
    ) -> Result<Session, Away> {
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let of_errors = Arc::clone(&waiting);
        let mut options = login::options(config)
            .await
            .map_err(Away::Unusable)?
            .name("walrelay")
            .connection_timeout(CONNECT_TIMEOUT)
            .ping_interval(PING_INTERVAL)
            .ignore_discovered_servers()
            .max_reconnects(config.each_server().count())
            .reconnect_delay_callback(|_| Duration::ZERO)
            .event_callback(move |event| {
                if let Event::ServerError(error) = event {
                    of_errors.lock().told(&error.to_string());
                }
                ready(())
            });
        if let Some(tls) = tls {
            options = options.tls_client_config(tls.clone());
        }
        let connected = timeout(CONNECT_ALL_TIMEOUT, connect(config, options)).await;
        let client = connected.unwrap_or_else(|_| Err(unreachable("no server answers in time")))?;
        let inbox = client.new_inbox();
        let subscribed = client.subscribe(format!("{inbox}.*")).await;
        let answers = subscribed.map_err(|error| unreachable(&error.to_string()))?;
        told.send_replace(ServerState::Ready);
        let answers = tokio::spawn(read(answers, inbox.clone(), Arc::clone(&waiting), told));
        Ok(Session {
            client,
            inbox,
            waiting,
            answers,
        })
    }

    /// Publishes to `subject`, and waits for an answer.
    pub(super) async fn request(
        &self,
        subject: &str,
        headers: HeaderMap,
        payload: Bytes,
        limit: Duration,
    ) -> Reply {
        let Some((number, answer)) = self.open(|_| subject.to_owned()) else {
            return Reply::Lost;
        };
        let to = format!("{}.{number}", self.inbox);
        let publish = async {
            let subject = subject.to_owned();
            let client = &self.client;
            client
                .publish_with_reply_and_headers(subject, to, headers, payload)
                .await
        };
        let reply = async {
            match publish.await {
                Ok(()) => answer.await.unwrap_or(Reply::Lost),
                Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                    Reply::TooLarge(error.to_string())
                }
                Err(_) => Reply::Lost,
            }
        };
        self.within(number, limit, reply).await
    }

    /// The most that the server takes of headers and payload together.
    pub(super) fn payload_bytes_max(&self) -> usize {
        self.client.max_payload()
    }

    /// Asks JetStream which streams have `subject`.
    pub(super) async fn ask_for_streams(&self, subject: &str) -> Reply {
        let question = serde_json::json!({ "subject": subject }).to_string();
        let to = format!("{API}STREAM.NAMES");
        self.request(&to, HeaderMap::new(), question.into(), API_TIMEOUT)
            .await
    }

    /// Why the session is over.
    pub(super) fn lost(&self) -> Away {
        self.waiting.lock().lost()
    }

    fn open(&self, subject: impl Fn(u64) -> String) -> Option<(u64, oneshot::Receiver<Reply>)> {
        let mut waiting = self.waiting.lock();
        if waiting.is_over {
            return None;
        }
        let number = waiting.next;
        waiting.next += 1;
        let subject = subject(number);
        let (reply, answer) = oneshot::channel();
        waiting.open.insert(number, Open { subject, reply });
        Some((number, answer))
    }

    /// Waits for `reply`. Nothing stays of the request, however it ends.
    async fn within(
        &self,
        number: u64,
        limit: Duration,
        reply: impl Future<Output = Reply>,
    ) -> Reply {
        let _forget = Forget(&self.waiting, number);
        timeout(limit, reply).await.unwrap_or(Reply::Silent)
    }
}

impl present::Connection for Session {
    /// By a message to ourselves, or by its refusal.
    async fn ping(&self) -> Result<(), Away> {
        let inbox = |number: u64| format!("{}.{number}", self.inbox);
        let Some((number, answer)) = self.open(inbox) else {
            return Err(self.lost());
        };
        let reply = async {
            match self.client.publish(inbox(number), Bytes::new()).await {
                Ok(()) => answer.await.unwrap_or(Reply::Lost),
                Err(_) => Reply::Lost,
            }
        };
        match self.within(number, PING_TIMEOUT, reply).await {
            Reply::Message(_) | Reply::Denied(_) => Ok(()),
            Reply::TooLarge(_) | Reply::Lost => Err(self.lost()),
            Reply::Silent => {
                let limit = PING_TIMEOUT.as_secs();
                Err(unreachable(&format!("no answer within {limit} s")))
            }
        }
    }

    fn end(&self) {
        self.waiting.lock().end();
        // The next session may have begun, which this end says nothing of.
        self.answers.abort();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.answers.abort();
    }
}

struct Forget<'a>(&'a Mutex<Waiting>, u64);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.lock().open.remove(&self.1);
    }
}

async fn connect(config: &NatsConfig, options: ConnectOptions) -> Result<Client, Away> {
    let servers = config.each_server().map(str::parse);
    let servers: Result<Vec<ServerAddr>, _> = servers.collect();
    let servers = servers.map_err(|error| refused(&error.to_string()))?;
    let client = options
        .connect(servers)
        .await
        .map_err(|error| away(&error))?;
    let ended = client.set_server_pool(NOWHERE).await;
    ended.map_err(|error| unreachable(&error.to_string()))?;
    Ok(client)
}

/// Hands out the answers until the connection ends.
async fn read(
    mut answers: Subscriber,
    inbox: String,
    waiting: Arc<Mutex<Waiting>>,
    told: Arc<watch::Sender<ServerState>>,
) {
    while let Some(message) = answers.next().await {
        waiting.lock().answered(&inbox, message);
    }
    let mut waiting = waiting.lock();
    waiting.end();
    told.send_replace(ServerState::Lost(waiting.lost()));
}

fn away(error: &ConnectError) -> Away {
    let said = error.to_string();
    let mut of_tls = false;
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = cause {
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        of_tls |= inner.is_some_and(|inner| inner.is::<tokio_rustls::rustls::Error>());
        cause = error.source();
    }
    match error.kind() {
        ConnectErrorKind::Authentication
        | ConnectErrorKind::AuthorizationViolation
        | ConnectErrorKind::Tls => refused(&said),
        ConnectErrorKind::ServerParse
        | ConnectErrorKind::Dns
        | ConnectErrorKind::TimedOut
        | ConnectErrorKind::Io
        | ConnectErrorKind::MaxReconnects => {
            // The server's words: an expired user, an account that is not there.
            if of_tls || said.to_ascii_lowercase().contains("authentication") {
                refused(&said)
            } else {
                unreachable(&said)
            }
        }
    }
}

fn unreachable(cause: &str) -> Away {
    Away::Unreachable(cause.to_owned())
}

fn refused(said: &str) -> Away {
    let error = Error::new(
        Kind::BusRefused,
        format!("NATS refuses the connection: {said}"),
    );
    Away::Unusable(error.remedy(
        "correct nats.credentials_file, nkey_file, user, password or token, and nats.ca_file; see \
         the log of the server",
    ))
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz_text;

    use super::*;

    fn waiting(subjects: &[&str]) -> (Waiting, Vec<oneshot::Receiver<Reply>>) {
        let mut waiting = Waiting::default();
        let mut answers = Vec::new();
        for subject in subjects {
            let (reply, answer) = oneshot::channel();
            let subject = (*subject).to_owned();
            waiting.open.insert(waiting.next, Open { subject, reply });
            waiting.next += 1;
            answers.push(answer);
        }
        (waiting, answers)
    }

    fn message(subject: &str) -> Message {
        Message {
            subject: subject.into(),
            reply: None,
            payload: Bytes::new(),
            headers: None,
            status: None,
            description: None,
            length: 0,
        }
    }

    #[test]
    fn an_answer_reaches_its_attempt_alone() {
        let (mut waiting, mut answers) = waiting(&["a", "a"]);
        for stale in [
            "in.7",
            "in.x",
            "in",
            "other.0",
            "in.0.0",
            "in.18446744073709551616",
        ] {
            waiting.answered("in", message(stale));
        }
        waiting.answered("in", message("in.1"));
        waiting.answered("in", message("in.1"));
        assert!(matches!(answers[1].try_recv(), Ok(Reply::Message(_))));
        assert!(answers[0].try_recv().is_err());
        assert_eq!(waiting.open.len(), 1);
    }

    #[test]
    fn a_denied_subject_ends_its_own_requests() {
        let (mut waiting, mut answers) = waiting(&["a.b", "a", "a.b"]);
        waiting.told("nats: Permissions Violation for Publish to \"a.b\"");
        let denied = answers
            .iter_mut()
            .map(|answer| matches!(answer.try_recv(), Ok(Reply::Denied(_))));
        assert_eq!(denied.collect::<Vec<_>>(), [true, false, true]);
        waiting.told("nats: Permissions Violation for Subscription to \"_INBOX.x.*\"");
        assert!(waiting.is_over && waiting.open.is_empty() && waiting.unusable.is_some());
    }

    #[test]
    fn fuzzed_subjects_and_errors() {
        let corpus = [
            "in.0",
            "in.18446744073709551615",
            "nats: Permissions Violation for Publish to \"a.b\"",
            "nats: Permissions Violation for Subscription to \"_INBOX.x.*\"",
        ];
        fuzz_text("subjects and errors of NATS", 256 << 10, &corpus, |text| {
            let (mut waiting, mut answers) = waiting(&["a.b", "a"]);
            waiting.answered("in", message(text));
            let answered = answers
                .iter_mut()
                .filter_map(|answer| answer.try_recv().ok());
            assert_eq!(answered.count(), 2 - waiting.open.len());
            waiting.told(text);
            let lost = match waiting.lost() {
                Away::Unreachable(cause) => cause,
                Away::Unusable(error) => error.cause().to_owned(),
            };
            assert!(lost.chars().count() < 500);
        });
    }
}
