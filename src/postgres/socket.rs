//! A connected socket that may be left unwatched.
//!
//! The kernel wakes whoever waits for events of a socket at each message that arrives, wanted or not, and the sender pays
//! for it: a walsender, which sends each row by itself, once per row. A reader that knows that more will be there in a
//! moment has its socket unwatched, looks by itself, and has it watched again where it finds nothing.

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A byte stream that can be left unwatched.
pub(crate) trait Unwatch {
    /// From now on nothing that arrives wakes anybody, up to the first read or write that cannot be done at once.
    fn unwatch(&mut self);

    /// Whether a read that gives less than it could has given all there is: to ask again would only have it watched.
    fn is_unwatched(&self) -> bool;
}

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(Watching<TcpStream>),
    Unix(Watching<UnixStream>),
}

/// A socket, and whether the runtime watches it.
#[derive(Debug)]
pub(crate) enum Watching<W: Watched> {
    /// It does.
    On(W),
    /// It does not. The socket does not block either way.
    Off(W::Bare),
    /// It is closed, for the runtime would not take it or let it go. Why is told once.
    Lost(Option<io::Error>),
}

/// A socket of the runtime, which can be had without it.
pub(crate) trait Watched: Sized {
    /// The same without the runtime.
    type Bare;

    /// Takes it from the runtime.
    ///
    /// # Errors
    /// What the operating system says; the socket is closed then.
    fn let_go(self) -> io::Result<Self::Bare>;

    /// Gives it to the runtime.
    fn take_up(bare: Self::Bare) -> io::Result<Self>;
}

impl Watched for TcpStream {
    type Bare = std::net::TcpStream;

    fn let_go(self) -> io::Result<Self::Bare> {
        self.into_std()
    }

    fn take_up(bare: Self::Bare) -> io::Result<Self> {
        TcpStream::from_std(bare)
    }
}

impl Watched for UnixStream {
    type Bare = std::os::unix::net::UnixStream;

    fn let_go(self) -> io::Result<Self::Bare> {
        self.into_std()
    }

    fn take_up(bare: Self::Bare) -> io::Result<Self> {
        UnixStream::from_std(bare)
    }
}

impl<W: Watched> Watching<W>
where
    W: AsyncRead + AsyncWrite + Unpin,
    for<'a> &'a W::Bare: Read + Write,
{
    fn unwatch(&mut self) {
        *self = match std::mem::replace(self, Watching::Lost(None)) {
            Watching::On(stream) => stream.let_go().map_or_else(|error| Watching::Lost(Some(error)), Watching::Off),
            other @ (Watching::Off(_) | Watching::Lost(_)) => other,
        };
    }

    fn watched(&mut self) -> io::Result<Pin<&mut W>> {
        *self = match std::mem::replace(self, Watching::Lost(None)) {
            Watching::Off(bare) => Watching::On(W::take_up(bare)?),
            other @ (Watching::On(_) | Watching::Lost(_)) => other,
        };
        match self {
            Watching::On(stream) => Ok(Pin::new(stream)),
            Watching::Lost(error) => Err(error.take().unwrap_or_else(|| io::ErrorKind::NotConnected.into())),
            Watching::Off(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// What `act` does at once, where the socket is unwatched and that can be done.
    fn at_once<T>(&self, mut act: impl FnMut(&W::Bare) -> io::Result<T>) -> Option<io::Result<T>> {
        let Watching::Off(bare) = self else { return None };
        loop {
            match act(bare) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                done => return Some(done),
            }
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = self.at_once(|mut bare| bare.read(buffer.initialize_unfilled()));
        match read {
            Some(Ok(bytes)) => {
                buffer.advance(bytes);
                Poll::Ready(Ok(()))
            }
            Some(Err(error)) => Poll::Ready(Err(error)),
            None => self.watched()?.poll_read(cx, buffer),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.at_once(|mut bare| bare.write(bytes)) {
            Some(written) => Poll::Ready(written),
            None => self.watched()?.poll_write(cx, bytes),
        }
    }
}

impl Unwatch for Socket {
    fn unwatch(&mut self) {
        match self {
            Socket::Tcp(stream) => stream.unwatch(),
            Socket::Unix(stream) => stream.unwatch(),
        }
    }

    fn is_unwatched(&self) -> bool {
        matches!(self, Socket::Tcp(Watching::Off(_)) | Socket::Unix(Watching::Off(_)))
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => stream.poll_read(cx, buffer),
            Socket::Unix(stream) => stream.poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Tcp(stream) => stream.poll_write(cx, bytes),
            Socket::Unix(stream) => stream.poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket holds nothing back.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => stream.watched()?.poll_shutdown(cx),
            Socket::Unix(stream) => stream.watched()?.poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    async fn pairs() -> Vec<(Socket, Socket)> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let far = listener.accept().await.unwrap().0;
        let (left, right) = UnixStream::pair().unwrap();
        let tcp = |stream| Socket::Tcp(Watching::On(stream));
        let unix = |stream| Socket::Unix(Watching::On(stream));
        vec![(tcp(near), tcp(far)), (unix(left), unix(right))]
    }

    #[tokio::test]
    async fn what_arrives_unwatched_is_read_and_what_is_to_come_is_waited_for() {
        for (mut near, mut far) in pairs().await {
            for round in 0..3_u8 {
                far.write_all(&[round; 5]).await.unwrap();
                near.unwatch();
                assert!(near.is_unwatched());
                let mut bytes = [0; 5];
                timeout(SOON, near.read_exact(&mut bytes)).await.unwrap().unwrap();
                assert_eq!(bytes, [round; 5]);
                // Nothing is there any more, so it has to be told of what comes.
                let wait = near.read_u8();
                let (read, written) = tokio::join!(timeout(SOON, wait), async {
                    tokio::task::yield_now().await;
                    far.write_all(&[9]).await
                });
                written.unwrap();
                assert_eq!(read.unwrap().unwrap(), 9);
                assert!(!near.is_unwatched());
            }
        }
    }

    #[tokio::test]
    async fn what_is_written_unwatched_arrives_however_much_it_is() {
        for (mut near, mut far) in pairs().await {
            near.unwatch();
            near.write_all(b"status").await.unwrap();
            assert!(near.is_unwatched(), "there was room");
            let much = vec![7; 16 << 20];
            let mut arrived = vec![0; 6 + much.len()];
            let (written, read) = tokio::join!(near.write_all(&much), timeout(SOON, far.read_exact(&mut arrived)));
            written.unwrap();
            read.unwrap().unwrap();
            assert!(arrived.starts_with(b"status") && arrived.ends_with(&much));
        }
    }

    #[tokio::test]
    async fn the_end_is_seen_unwatched() {
        for (mut near, mut far) in pairs().await {
            near.unwatch();
            far.shutdown().await.unwrap();
            drop(far);
            assert_eq!(timeout(SOON, near.read(&mut [0; 8])).await.unwrap().unwrap(), 0);
        }
    }
}
