//! One connection to a server, and a pool of channels with one unanswered record each.
//!
//! The client gives a record that was returned to whichever confirmation comes next on the channel.
//! With one record on a channel that is its own. An error that closes a channel ends one record
//! alone, too.
//!
//! The client's own way to connect again is off: what it had not sent yet would follow later,
//! behind newer records of the same key. A lost connection ends the session.

use std::fmt;
use std::future::pending;
use std::io;
use std::net::Shutdown;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures_util::{Stream, StreamExt as _};
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueDeclareOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{
    AsyncTcpStream, Channel, Confirmation, Connection, ConnectionProperties, ConnectionStatus,
    Event, ExchangeKind,
};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::answer::{no_login, no_tls};
use super::reactor::{self, Net, boxed};
use super::record::Message;
use crate::config::RabbitmqConfig;
use crate::config::rabbitmq::SCHEMES;
use crate::config::servers::Server;
use crate::sink::lanes::{Away, ServerState};
use crate::sink::login;
use crate::sink::present;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::secret::Secret;

/// For one server, from the look-up of the name to the end of the login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a server may take to open a channel.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// The password of a new server's own user, `guest`.
const GUEST: &str = "guest";
const PORT: u16 = 5672;
const TLS_PORT: u16 = 5671;

/// Why a record has no confirmation.
#[derive(Debug)]
pub(super) enum Unconfirmed {
    /// There was no answer in time.
    Silent,
    Failed(lapin::Error),
}

/// See the module's documentation. Dropping it ends the connection: nothing is written any more.
pub(super) struct Session {
    connection: Connection,
    /// Channels without a record.
    idle: Mutex<Vec<Channel>>,
    /// Channels that may be opened.
    room: Semaphore,
    told: Arc<watch::Sender<ServerState>>,
    events: JoinHandle<()>,
    socket: Socket,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

/// A second handle on the socket, which the client's thread reads and writes. Dropping it ends the
/// connection, and with it the thread, also where no session was made of it.
struct Socket(std::net::TcpStream);

impl Drop for Socket {
    fn drop(&mut self) {
        self.end();
    }
}

impl Socket {
    fn end(&self) {
        // It fails where the connection has ended by itself.
        self.0.shutdown(Shutdown::Both).unwrap_or_default();
    }
}

/// How to connect.
#[derive(Debug)]
pub(super) struct Dialer {
    pub(super) config: RabbitmqConfig,
    /// None where no server is reached with TLS.
    pub(super) tls: Option<TlsConnectorOf>,
    /// What servers call this client.
    pub(super) name: String,
    /// What the present server says.
    pub(super) told: Arc<watch::Sender<ServerState>>,
}

/// [`TlsConnector`] has no `Debug`.
#[derive(Debug, Clone)]
pub(super) struct TlsConnectorOf(pub(super) Arc<ClientConfig>);

impl Dialer {
    /// Connects to the first server that lets us in. Where none does, a refusal says more than a
    /// server that is away. Where this is dropped, nothing is left running.
    pub(super) async fn connect(&self) -> Result<Session, Away> {
        let password = self.password().await.map_err(Away::Unusable)?;
        let mut away = None;
        for server in self.config.each_server() {
            let connected = timeout(CONNECT_TIMEOUT, self.log_in(server, &password)).await;
            let silent = || {
                let seconds = CONNECT_TIMEOUT.as_secs();
                Away::Unreachable(format!("{server}: no login within {seconds} s"))
            };
            match connected.unwrap_or_else(|_| Err(silent())) {
                Ok(session) => return Ok(session),
                Err(found) if matches!(away, Some(Away::Unusable(_))) => drop(found),
                Err(found) => away = Some(found),
            }
        }
        Err(away.unwrap_or_else(|| Away::Unreachable("rabbitmq.servers is empty".to_owned())))
    }

    async fn password(&self) -> Result<Secret> {
        let config = &self.config;
        if config.password.is_none() && config.password_file.is_empty() {
            return Ok(Secret::new(GUEST));
        }
        let given = config.password.as_ref();
        login::password(given, "rabbitmq.password_file", &config.password_file).await
    }

    async fn log_in(&self, server: &str, password: &Secret) -> Result<Session, Away> {
        let (stream, socket) = self.open(server).await?;
        let stream = Mutex::new(Some(stream));
        let once = async move |_: AMQPUri, _: Runtime<Kit>| {
            let stream = stream.lock().take().map(AsyncTcpStream::Plain);
            stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected).into())
        };
        let runtime = Runtime::new(Kit::new(Tokio::current(), Net));
        let properties =
            ConnectionProperties::default().with_connection_name(self.name.as_str().into());
        let uri = self.uri(password);
        let connected = Box::pin(Connection::connector(uri, runtime, once, properties)).await;
        let connection = connected.map_err(|error| no_login(&error, server))?;
        self.told.send_replace(ServerState::Ready);
        let events = tokio::spawn(tell(
            connection.events_listener(),
            connection.status().clone(),
            Arc::clone(&self.told),
        ));
        // One is for those who ask.
        let channels = usize::from(connection.configuration().channel_max()).saturating_sub(1);
        Ok(Session {
            idle: Mutex::default(),
            room: Semaphore::new(channels.clamp(1, self.config.max_in_flight)),
            connection,
            told: Arc::clone(&self.told),
            events,
            socket,
        })
    }

    /// Opens a socket, with TLS where the server's scheme says so.
    async fn open(&self, text: &str) -> Result<(reactor::Stream, Socket), Away> {
        let unreachable = |error: io::Error| Away::Unreachable(format!("{text}: {error}"));
        let Some(server) = Server::parse(text, &SCHEMES) else {
            return Err(Away::Unreachable(format!("{text} is no server")));
        };
        let tls = self.tls.as_ref().filter(|_| server.scheme == Some("amqps"));
        let host = server.host.trim_matches(['[', ']']);
        let port = server
            .port
            .unwrap_or(if tls.is_some() { TLS_PORT } else { PORT });
        let stream = TcpStream::connect((host, port))
            .await
            .map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let stream = stream.into_std().map_err(unreachable)?;
        let socket = Socket(stream.try_clone().map_err(unreachable)?);
        let stream = TcpStream::from_std(stream).map_err(unreachable)?;
        let Some(TlsConnectorOf(tls)) = tls else {
            return Ok((boxed(stream), socket));
        };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| unreachable(io::Error::other(error)))?;
        let connected = TlsConnector::from(Arc::clone(tls))
            .connect(name, stream)
            .await;
        let stream = connected.map_err(|error| {
            let of_tls = error
                .get_ref()
                .is_some_and(|inner| inner.is::<tokio_rustls::rustls::Error>());
            if of_tls {
                Away::Unusable(no_tls(&error, text))
            } else {
                unreachable(error)
            }
        })?;
        Ok((boxed(stream), socket))
    }

    fn uri(&self, password: &Secret) -> AMQPUri {
        let config = &self.config;
        let seconds = config.heartbeat.as_secs().clamp(1, u16::MAX.into());
        AMQPUri {
            scheme: AMQPScheme::AMQP,
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo {
                    username: config.user.clone(),
                    password: password.expose().to_owned(),
                },
                // The socket is open already.
                host: String::new(),
                port: 0,
            },
            vhost: config.vhost.clone(),
            query: AMQPQueryString {
                heartbeat: u16::try_from(seconds).ok(),
                ..AMQPQueryString::default()
            },
        }
    }
}

type Kit = RuntimeParts<Tokio, Net>;

/// Tells what the server says, until the connection ends.
async fn tell(
    events: impl Stream<Item = Event>,
    status: ConnectionStatus,
    told: Arc<watch::Sender<ServerState>>,
) {
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        if let Event::ConnectionBlocked(reason) = event {
            told.send_replace(ServerState::Blocked(reason));
        } else if matches!(event, Event::ConnectionUnblocked) {
            told.send_replace(ServerState::Ready);
        } else if let Event::Error(error) = event
            && !status.connected()
        {
            // The error of a channel alone is told with its record.
            told.send_replace(ServerState::Lost(Away::Unreachable(error.to_string())));
            return;
        }
    }
}

impl Session {
    /// The longest frame that the server takes.
    pub(super) fn frame_bytes_max(&self) -> usize {
        usize::try_from(self.connection.configuration().frame_max()).unwrap_or(usize::MAX)
    }

    /// Publishes to the exchange, on a channel of its own, and waits for the confirmation. The time
    /// while the server blocks us does not count.
    pub(super) async fn publish(
        &self,
        message: Message,
        body: &[u8],
        limit: Duration,
    ) -> Result<Confirmation, Unconfirmed> {
        let Ok(_room) = self.room.acquire().await else {
            return Err(Unconfirmed::Silent);
        };
        let mandatory = BasicPublishOptions {
            mandatory: true,
            immediate: false,
        };
        let published = async {
            let channel = self.channel().await?;
            let Message {
                exchange,
                routing_key,
                properties,
                ..
            } = message;
            let confirmation = channel
                .basic_publish(exchange, routing_key, mandatory, body, properties)
                .await?
                .await?;
            // A channel whose record has no answer is used no more: a late one would be taken for
            // that of the next record.
            self.idle.lock().push(channel);
            Ok(confirmation)
        };
        tokio::select! {
            biased;
            published = published => published.map_err(Unconfirmed::Failed),
            () = self.elapsed(limit) => Err(Unconfirmed::Silent),
        }
    }

    /// A channel without a record.
    async fn channel(&self) -> lapin::Result<Channel> {
        let idle = || {
            let mut idle = self.idle.lock();
            std::iter::from_fn(|| idle.pop()).find(|channel| channel.status().connected())
        };
        if let Some(channel) = idle() {
            return Ok(channel);
        }
        let channel = self.connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        Ok(channel)
    }

    /// Waits until the server was ready to take records for `limit` on end.
    async fn elapsed(&self, limit: Duration) {
        let mut told = self.told.subscribe();
        // The sender lives as long as `self`.
        while told.wait_for(|server| !is_blocked(server)).await.is_ok() {
            if timeout(limit, told.wait_for(is_blocked)).await.is_err() {
                return;
            }
        }
        pending().await
    }

    /// Whether there is this exchange or, where it has no name, this queue. Declares nothing.
    pub(super) async fn has_place(&self, exchange: &ShortString, queue: &str) -> Result<()> {
        let failed = |error: lapin::Error| Error::new(Kind::TopicRefused, error);
        let looked = async {
            let channel = self.connection.create_channel().await.map_err(failed)?;
            if exchange.as_str().is_empty() {
                let queue = ShortString::try_new(queue)
                    .map_err(|error| Error::new(Kind::TopicRefused, error))?;
                let options = QueueDeclareOptions {
                    passive: true,
                    ..QueueDeclareOptions::default()
                };
                let declared = channel.queue_declare(queue, options, FieldTable::default());
                return declared.await.map(drop).map_err(failed);
            }
            let options = ExchangeDeclareOptions {
                passive: true,
                ..ExchangeDeclareOptions::default()
            };
            // A passive declaration compares no kind.
            let kind = ExchangeKind::Direct;
            let arguments = FieldTable::default();
            let declared = channel.exchange_declare(exchange.clone(), kind, options, arguments);
            declared.await.map_err(failed)
        };
        let silent = || Error::new(Kind::BusUnreachable, "no answer in time");
        timeout(PING_TIMEOUT, looked)
            .await
            .unwrap_or_else(|_| Err(silent()))
    }
}

fn is_blocked(server: &ServerState) -> bool {
    matches!(server, ServerState::Blocked(_))
}

impl present::Connection for Session {
    /// One that blocks us answers.
    async fn ping(&self) -> Result<(), Away> {
        let mut told = self.told.subscribe();
        let opened = timeout(PING_TIMEOUT, self.connection.create_channel());
        tokio::select! {
            biased;
            Ok(_) = told.wait_for(is_blocked) => Ok(()),
            opened = opened => match opened {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(Away::Unreachable(error.to_string())),
                Err(_) => {
                    let seconds = PING_TIMEOUT.as_secs();
                    Err(Away::Unreachable(format!("no answer within {seconds} s")))
                }
            },
        }
    }

    fn end(&self) {
        self.socket.end();
        self.events.abort();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The next session may have begun: what blocks it is not ours to change.
        present::Connection::end(self);
    }
}
