//! Connections that cannot be held open: each one is worth a few kilobytes, a few seconds and one request.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// What one connection may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Connections at a time; further ones wait in the listen queue.
    pub(super) connections: usize,
    /// Bytes a client may send: its request head, and it needs no body.
    pub(super) received_bytes: usize,
    /// From accept to close, however slowly either side goes.
    pub(super) lifetime: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { connections: 64, received_bytes: 16 * 1024, lifetime: Duration::from_secs(10) }
    }
}

/// A listener whose connections have [`Limits`].
pub(super) struct LimitedListener {
    listener: TcpListener,
    limits: Limits,
    free: Arc<Semaphore>,
}

impl LimitedListener {
    pub(super) fn new(listener: TcpListener, limits: Limits) -> Self {
        LimitedListener { listener, limits, free: Arc::new(Semaphore::new(limits.connections)) }
    }
}

impl Listener for LimitedListener {
    type Io = LimitedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (LimitedStream, SocketAddr) {
        loop {
            let Ok(permit) = Arc::clone(&self.free).acquire_owned().await else {
                // The semaphore is never closed; without a permit nothing is accepted.
                std::future::pending::<()>().await;
                continue;
            };
            let (stream, peer) = Listener::accept(&mut self.listener).await;
            let stream = LimitedStream {
                stream,
                budget_bytes: self.limits.received_bytes,
                deadline: Box::pin(tokio::time::sleep_until(Instant::now() + self.limits.lifetime)),
                _permit: permit,
            };
            return (stream, peer);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends with an error once it is too old or sent too much.
pub(super) struct LimitedStream {
    stream: TcpStream,
    budget_bytes: usize,
    deadline: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl LimitedStream {
    fn check_deadline(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::Error::new(io::ErrorKind::TimedOut, "the connection is too old")),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for LimitedStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check_deadline(context)?;
        if self.budget_bytes == 0 {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "the request is too large")));
        }
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
        let read = into.filled().len().saturating_sub(before);
        self.budget_bytes = self.budget_bytes.saturating_sub(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for LimitedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check_deadline(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_deadline(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_deadline(context)?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
