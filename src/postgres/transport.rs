//! Sockets to a server, up to the TLS handshake or the decision against TLS.
//!
//! For each message that arrives, the kernel wakes the tasks that are registered for the socket,
//! and the sender pays for that. A walsender sends each row by itself, and so pays once per row. A
//! reader that expects more data soon therefore deregisters its socket, and reads without waiting.
//! A read that finds nothing registers the socket again.

use std::io::{self, Read, Write};
use std::net::TcpStream as BareStream;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_util::either::Either;

use crate::conninfo::{ConnInfo, Host, Keepalive, SslMode, Target};
use crate::postgres::fault::{self, While};
use crate::postgres::tls;
use walrelay_core::error::{Error, Kind, Result};

/// A plain socket, or one with TLS.
pub(crate) type Transport = Either<Socket, Box<TlsStream<Socket>>>;

/// A byte stream whose socket can be deregistered from the reactor.
pub(crate) trait Unwatch {
    /// Deregisters the socket: no data wakes a task until a read or write cannot complete at once.
    fn unwatch(&mut self);

    /// Whether a read below its capacity has returned all data. A further read would only register
    /// the socket again.
    fn is_unwatched(&self) -> bool;
}

/// A connected socket in non-blocking mode. A Unix socket has the same type: it is only read,
/// written and shut down, and these operations are the same for all stream sockets.
#[derive(Debug)]
pub(crate) enum Socket {
    Watched(TcpStream),
    Unwatched(BareStream),
    /// Closed, because the runtime failed to register or deregister the socket. The error is
    /// returned once.
    Lost(Option<io::Error>),
}

/// A socket whose server has answered whether it supports TLS.
#[derive(Debug)]
pub(crate) struct Opened {
    pub socket: Socket,
    /// Set if the TLS handshake comes next: its configuration, and the name that the certificate
    /// should have.
    pub tls: Option<(ClientConfig, String)>,
}

pub(crate) trait Login {
    type Session: Send;

    /// Does the TLS handshake if there is one, then start-up and authentication.
    fn log_in(
        &self,
        target: &Target,
        opened: Opened,
    ) -> impl Future<Output = Result<Self::Session>> + Send;
}

/// Tries the servers of `info` in order and returns the first session.
///
/// Bounded by `connect_timeout` per server. As with libpq, a refusal ends the search; a passing
/// error does not.
pub(crate) async fn connect<L: Login + Sync>(info: &ConnInfo, login: &L) -> Result<L::Session> {
    let config = tls::client_config(&info.tls)?;
    let mut last = Error::new(Kind::Config, "the Postgres connection names no server");
    for target in &info.targets {
        let place = place(info, target);
        let attempt = tokio::time::timeout(
            info.connect_timeout,
            attempt(info, target, config.as_ref(), login),
        );
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
        // As libpq: `prefer` falls back to an unencrypted connection.
        Err(refused) if may_fall_back && refused.kind() == Kind::PostgresRefused => {
            let plain = open(info, target, None).await?;
            login.log_in(target, plain).await.map_err(|_| refused)
        }
        outcome => outcome,
    }
}

pub(super) async fn open(
    info: &ConnInfo,
    target: &Target,
    config: Option<&ClientConfig>,
) -> Result<Opened> {
    let place = place(info, target);
    let act = While::Connecting(&place);
    let mut socket = dial(info, target).await.map_err(|error| {
        let error = fault::io(act, &error);
        if error.kind() == Kind::PostgresUnreachable {
            error.remedy(fault::reach(info.names_server))
        } else {
            error
        }
    })?;
    let tls = match (config, &target.host) {
        (Some(config), Host::Tcp { name, .. }) => {
            let answer = request_tls(&mut socket)
                .await
                .map_err(|error| fault::io(act, &error))?;
            let offered = answered(act, info.tls.mode, answer)?;
            offered.then(|| (config.clone(), name.clone()))
        }
        // libpq: a Unix socket has no TLS, whatever `sslmode` is.
        (_, Host::Unix(_)) | (None, Host::Tcp { .. }) => None,
    };
    Ok(Opened { socket, tls })
}

async fn dial(info: &ConnInfo, target: &Target) -> io::Result<Socket> {
    let (name, address) = match (target.socket_path(), &target.host) {
        (Some(path), _) => {
            let stream = UnixStream::connect(path).await?;
            return Ok(Socket::Watched(over_unix(stream)?));
        }
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
                return Ok(Socket::Watched(stream));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn over_unix(stream: UnixStream) -> io::Result<TcpStream> {
    TcpStream::from_std(BareStream::from(OwnedFd::from(stream.into_std()?)))
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

/// Requests TLS and returns the one byte of the answer. Reads no further byte: data that a man in
/// the middle adds in clear must reach the handshake, not the session.
/// <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-SSL>
pub(super) async fn request_tls<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
) -> io::Result<u8> {
    let mut request = bytes::BytesMut::new();
    postgres_protocol::message::frontend::ssl_request(&mut request);
    stream.write_all(&request).await?;
    stream.flush().await?;
    stream.read_u8().await
}

/// Whether the TLS handshake comes next. An error's text is not authenticated at this point, so it
/// is not shown.
pub(super) fn answered(act: While<'_>, mode: SslMode, answer: u8) -> Result<bool> {
    match answer {
        b'S' => Ok(true),
        b'N' if mode <= SslMode::Prefer => Ok(false),
        b'N' => Err(Error::new(
            Kind::PostgresRefused,
            format_args!("while {act}: the server does not do TLS"),
        )
        .remedy("set ssl = on on the server, or choose an sslmode that does without")),
        b'E' => Err(Error::new(
            Kind::PostgresUnreachable,
            format_args!("while {act}: the server answered the request for TLS with an error"),
        )),
        _ => Err(fault::protocol(
            act,
            "it answered the request for TLS with neither yes nor no",
        )),
    }
}

impl Socket {
    fn watched(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        *self = match std::mem::replace(self, Socket::Lost(None)) {
            Socket::Unwatched(bare) => Socket::Watched(TcpStream::from_std(bare)?),
            other @ (Socket::Watched(_) | Socket::Lost(_)) => other,
        };
        match self {
            Socket::Watched(stream) => Ok(Pin::new(stream)),
            Socket::Lost(error) => Err(error
                .take()
                .unwrap_or_else(|| io::ErrorKind::NotConnected.into())),
            Socket::Unwatched(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The result of `act`, if the socket is deregistered and `act` does not block.
    fn at_once<T>(
        &self,
        mut act: impl FnMut(&BareStream) -> io::Result<T>,
    ) -> Option<io::Result<T>> {
        let Socket::Unwatched(bare) = self else {
            return None;
        };
        loop {
            match act(bare) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                done => return Some(done),
            }
        }
    }
}

impl Unwatch for Socket {
    fn unwatch(&mut self) {
        *self = match std::mem::replace(self, Socket::Lost(None)) {
            Socket::Watched(stream) => stream
                .into_std()
                .map_or_else(|error| Socket::Lost(Some(error)), Socket::Unwatched),
            other @ (Socket::Unwatched(_) | Socket::Lost(_)) => other,
        };
    }

    fn is_unwatched(&self) -> bool {
        matches!(self, Socket::Unwatched(_))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.at_once(|mut bare| bare.read(buffer.initialize_unfilled())) {
            Some(read) => Poll::Ready(read.map(|bytes| buffer.advance(bytes))),
            None => self.watched()?.poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.at_once(|mut bare| bare.write(bytes)) {
            Some(written) => Poll::Ready(written),
            None => self.watched()?.poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket has no buffer to flush.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watched()?.poll_shutdown(cx)
    }
}

impl Unwatch for Transport {
    fn unwatch(&mut self) {
        match self {
            Either::Left(stream) => stream.unwatch(),
            Either::Right(stream) => stream.get_mut().0.unwatch(),
        }
    }

    /// A read returns one TLS record, so more data may be there.
    fn is_unwatched(&self) -> bool {
        matches!(self, Either::Left(stream) if stream.is_unwatched())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    async fn pairs() -> Vec<(Socket, Socket)> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let far = listener.accept().await.unwrap().0;
        let (left, right) = UnixStream::pair().unwrap();
        let unix = |stream| Socket::Watched(over_unix(stream).unwrap());
        vec![
            (Socket::Watched(near), Socket::Watched(far)),
            (unix(left), unix(right)),
        ]
    }

    #[tokio::test]
    async fn an_unwatched_socket_reads_what_has_arrived_and_is_watched_to_wait() {
        for (mut near, mut far) in pairs().await {
            for round in 0..3_u8 {
                far.write_all(&[round; 5]).await.unwrap();
                near.unwatch();
                assert!(near.is_unwatched());
                let mut bytes = [0; 5];
                timeout(SOON, near.read_exact(&mut bytes))
                    .await
                    .unwrap()
                    .unwrap();
                assert_eq!(bytes, [round; 5]);
                // No data is left, so the socket has to be registered.
                let wait = near.read_u8();
                let (read, written) = tokio::join!(timeout(SOON, wait), async {
                    tokio::task::yield_now().await;
                    far.write_all(&[9]).await
                });
                written.unwrap();
                assert_eq!(read.unwrap().unwrap(), 9);
                assert!(!near.is_unwatched());
            }
            near.unwatch();
            far.shutdown().await.unwrap();
            assert_eq!(
                timeout(SOON, near.read(&mut [0; 8]))
                    .await
                    .unwrap()
                    .unwrap(),
                0,
                "the end of the connection"
            );
        }
    }

    #[tokio::test]
    async fn an_unwatched_socket_writes_any_number_of_bytes() {
        for (mut near, mut far) in pairs().await {
            near.unwatch();
            near.write_all(b"status").await.unwrap();
            assert!(near.is_unwatched(), "there was room");
            let much = vec![7; 16 << 20];
            let mut arrived = vec![0; 6 + much.len()];
            let (written, read) = tokio::join!(
                near.write_all(&much),
                timeout(SOON, far.read_exact(&mut arrived))
            );
            written.unwrap();
            read.unwrap().unwrap();
            assert!(arrived.starts_with(b"status") && arrived.ends_with(&much));
        }
    }
}
