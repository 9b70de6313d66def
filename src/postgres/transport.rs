//! Sockets to a server, up to the point where TLS is agreed on or ruled out.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;

use crate::conninfo::{ConnInfo, Host, Keepalive, SslMode, Target};
use crate::error::{Error, Kind, Result};
use crate::postgres::fault::{self, While};
use crate::postgres::socket::{Socket, Unwatch, Watching};
use crate::postgres::tls;

/// A byte stream to a server.
#[derive(Debug)]
pub(crate) enum Transport {
    /// As it is.
    Plain(Socket),
    /// Encrypted.
    Tls(Box<TlsStream<Socket>>),
}

/// A socket whose server has said whether it does TLS.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The socket; nothing but the negotiation has passed it.
    pub socket: Socket,
    /// Set where the TLS handshake comes next: its configuration, and the name the certificate should have.
    pub tls: Option<(ClientConfig, String)>,
}

/// Makes a session out of an open socket.
pub(crate) trait Login {
    type Session: Send;

    /// Does the TLS handshake where one is due, then start-up and authentication.
    fn log_in(&self, target: &Target, opened: Opened) -> impl Future<Output = Result<Self::Session>> + Send;
}

/// Tries the servers of `info` in order and gives the first session that comes about.
///
/// Bounded by `connect_timeout` per server. A refusal ends the search, as with libpq; what a retry may heal does not.
pub(crate) async fn connect<L: Login + Sync>(info: &ConnInfo, login: &L) -> Result<L::Session> {
    let config = tls::client_config(&info.tls)?;
    let mut last = Error::new(Kind::Config, "the Postgres connection names no server");
    for target in &info.targets {
        let place = place(info, target);
        let attempt = tokio::time::timeout(info.connect_timeout, attempt(info, target, config.as_ref(), login));
        match attempt.await {
            Ok(Ok(session)) => return Ok(session),
            Ok(Err(error)) if error.kind().halts() => return Err(error),
            Ok(Err(error)) => last = error,
            Err(_) => {
                let error = fault::timeout(While::Connecting(&place), info.connect_timeout);
                last = error.remedy(fault::reach(info.names_server));
            }
        }
    }
    Err(last)
}

/// `host:port/database as user`.
pub(crate) fn place(info: &ConnInfo, target: &Target) -> String {
    format!("{target}/{} as {}", info.database, info.user)
}

async fn attempt<L: Login + Sync>(
    info: &ConnInfo,
    target: &Target,
    config: Option<&ClientConfig>,
    login: &L,
) -> Result<L::Session> {
    let opened = open(info, target, config).await?;
    let may_fall_back = opened.tls.is_some() && info.tls.mode == SslMode::Prefer;
    match login.log_in(target, opened).await {
        // As libpq: `prefer` means rather unencrypted than not at all.
        Err(refused) if may_fall_back && refused.kind() == Kind::PostgresRefused => {
            let plain = open(info, target, None).await?;
            login.log_in(target, plain).await.map_err(|_| refused)
        }
        outcome => outcome,
    }
}

async fn open(info: &ConnInfo, target: &Target, config: Option<&ClientConfig>) -> Result<Opened> {
    let place = place(info, target);
    let act = While::Connecting(&place);
    let mut socket = dial(info, target).await.map_err(|error| {
        let error = fault::io(act, &error);
        if error.kind() == Kind::PostgresUnreachable { error.remedy(fault::reach(info.names_server)) } else { error }
    })?;
    let tls = match (config, &target.host) {
        (Some(config), Host::Tcp { name, .. }) => {
            let answer = request_tls(&mut socket).await.map_err(|error| fault::io(act, &error))?;
            let offered = answered(act, info.tls.mode, answer)?;
            offered.then(|| (config.clone(), name.clone()))
        }
        // libpq: there is no TLS on a Unix socket, whatever `sslmode` says.
        (_, Host::Unix(_)) | (None, Host::Tcp { .. }) => None,
    };
    Ok(Opened { socket, tls })
}

async fn dial(info: &ConnInfo, target: &Target) -> io::Result<Socket> {
    let (name, address) = match (target.socket_path(), &target.host) {
        (Some(path), _) => return UnixStream::connect(path).await.map(|stream| Socket::Unix(Watching::On(stream))),
        (None, Host::Tcp { name, address }) => (name.as_str(), *address),
        (None, Host::Unix(_)) => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let addresses = match address {
        Some(address) => vec![(address, target.port).into()],
        None => lookup_host((name, target.port)).await?.collect(),
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host's name has no address");
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                keep_alive(&stream, info.keepalive)?;
                return Ok(Socket::Tcp(Watching::On(stream)));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn keep_alive(stream: &TcpStream, keepalive: Keepalive) -> io::Result<()> {
    let socket = SockRef::from(stream);
    if keepalive.enabled {
        let probes = TcpKeepalive::new()
            .with_time(keepalive.idle)
            .with_interval(keepalive.interval)
            .with_retries(keepalive.retries);
        socket.set_tcp_keepalive(&probes)?;
    }
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(keepalive.user_timeout))?;
    Ok(())
}

/// Asks for TLS and gives the one byte of the answer. Not one more is read: what a man in the middle adds in clear
/// must meet the handshake, not the session.
/// <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-SSL>
pub(super) async fn request_tls<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> io::Result<u8> {
    let mut request = bytes::BytesMut::new();
    postgres_protocol::message::frontend::ssl_request(&mut request);
    stream.write_all(&request).await?;
    stream.flush().await?;
    stream.read_u8().await
}

/// Whether TLS comes next. The text of an error at this point is not authenticated, so it is not shown.
pub(super) fn answered(act: While<'_>, mode: SslMode, answer: u8) -> Result<bool> {
    match answer {
        b'S' => Ok(true),
        b'N' if mode <= SslMode::Prefer => Ok(false),
        b'N' => Err(Error::new(Kind::PostgresRefused, format_args!("while {act}: the server does not do TLS"))
            .remedy("set ssl = on on the server, or choose an sslmode that does without")),
        b'E' => Err(Error::new(
            Kind::PostgresUnreachable,
            format_args!("while {act}: the server answered the request for TLS with an error"),
        )),
        _ => Err(fault::protocol(act, "it answered the request for TLS with neither yes nor no")),
    }
}

impl Unwatch for Transport {
    fn unwatch(&mut self) {
        match self {
            Transport::Plain(stream) => stream.unwatch(),
            Transport::Tls(stream) => stream.get_mut().0.unwatch(),
        }
    }

    /// TLS gives a record at a time.
    fn is_unwatched(&self) -> bool {
        matches!(self, Transport::Plain(stream) if stream.is_unwatched())
    }
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Transport::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Transport::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
