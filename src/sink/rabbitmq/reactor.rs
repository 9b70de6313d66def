//! What the client's thread needs of Tokio, with sockets that are open already.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use futures_core::Stream as FuturesStream;
use futures_io::{AsyncRead, AsyncWrite};
use tokio::time::Sleep;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

/// A socket, with TLS or without.
pub(super) type Stream = Compat<Box<dyn Duplex>>;

pub(super) trait Duplex:
    tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static
{
}

impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static> Duplex for T {}

pub(super) fn boxed(stream: impl Duplex) -> Stream {
    let stream: Box<dyn Duplex> = Box::new(stream);
    stream.compat()
}

/// Opens no sockets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Net;

impl Reactor for Net {
    type TcpStream = Stream;
    type Sleep = Sleep;

    fn register<H: Read + Write + Send + 'static>(
        &self,
        _: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<Stream, _>(io::ErrorKind::Unsupported.into())
    }

    /// Called in a task of the runtime, for heartbeats.
    fn sleep(&self, wait: Duration) -> Sleep {
        tokio::time::sleep(wait)
    }

    fn interval(&self, _: Duration) -> impl FuturesStream<Item = Instant> + Send + 'static {
        futures_util::stream::pending()
    }

    fn tcp_connect_addr(
        &self,
        _: SocketAddr,
    ) -> impl Future<Output = io::Result<Stream>> + Send + 'static {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
