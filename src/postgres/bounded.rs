//! A byte stream that ends at a message no server sends. The SQL client keeps what arrives until a
//! message is complete, and would keep two gigabytes of whoever answers at the server's address.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as RustlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::postgres::session::LOGIN_FRAME_BYTES_MAX;
use crate::postgres::tls;
use crate::postgres::transport::Socket;
use crate::postgres::wire::FrameError;

/// The greatest message after the login: Postgres makes none of more than a gigabyte.
const FRAME_BYTES_MAX: usize = 1 << 30;
const HEADER_BYTES: usize = 5;
const READY_FOR_QUERY: u8 = b'Z';

/// Reads and writes as `S` does, until a message is announced that is too large.
#[derive(Debug)]
pub(crate) struct Bounded<S> {
    stream: S,
    frames: Frames,
}

impl<S> Bounded<S> {
    pub(crate) fn new(stream: S) -> Bounded<S> {
        Bounded {
            stream,
            frames: Frames::default(),
        }
    }
}

/// The beginnings of messages in a stream of bytes.
#[derive(Debug, Default)]
struct Frames {
    /// The beginning of the next header.
    header: Vec<u8>,
    /// Bytes that are left of the present message.
    body_bytes: usize,
    is_logged_in: bool,
}

impl Frames {
    fn take(&mut self, mut bytes: &[u8]) -> Result<(), FrameError> {
        while !bytes.is_empty() {
            if self.body_bytes > 0 {
                let skipped = self.body_bytes.min(bytes.len());
                self.body_bytes -= skipped;
                bytes = bytes.get(skipped..).unwrap_or_default();
                continue;
            }
            let missing = HEADER_BYTES
                .saturating_sub(self.header.len())
                .min(bytes.len());
            let Some((more, rest)) = bytes.split_at_checked(missing) else {
                return Ok(());
            };
            self.header.extend_from_slice(more);
            bytes = rest;
            if let Some([tag, length @ ..]) = self.header.first_chunk::<HEADER_BYTES>().copied() {
                self.header.clear();
                self.begin(tag, i32::from_be_bytes(length))?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, tag: u8, length: i32) -> Result<(), FrameError> {
        let body_bytes = usize::try_from(length)
            .ok()
            .and_then(|length| length.checked_sub(4));
        let body_bytes = body_bytes.ok_or(FrameError::Length(length))?;
        let frame_bytes = body_bytes + HEADER_BYTES;
        let frame_bytes_max = if self.is_logged_in {
            FRAME_BYTES_MAX
        } else {
            LOGIN_FRAME_BYTES_MAX
        };
        if frame_bytes > frame_bytes_max {
            return Err(FrameError::TooLarge {
                tag,
                frame_bytes,
                frame_bytes_max,
            });
        }
        self.is_logged_in |= tag == READY_FOR_QUERY;
        self.body_bytes = body_bytes;
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let taken = self
            .frames
            .take(buffer.filled().get(before..).unwrap_or_default());
        Poll::Ready(taken.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl TlsStream for Bounded<TlsSocket> {
    fn channel_binding(&self) -> ChannelBinding {
        let (_, session) = self.stream.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        certificate
            .and_then(tls::end_point)
            .map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

type TlsSocket = Box<RustlsStream<Socket>>;

/// TLS whose contents are [`Bounded`], with a server of this name.
pub(crate) struct BoundedTls {
    pub(crate) config: ClientConfig,
    pub(crate) name: String,
}

impl TlsConnect<Socket> for BoundedTls {
    type Stream = Bounded<TlsSocket>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Stream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let name = ServerName::try_from(self.name)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            let connector = TlsConnector::from(Arc::new(self.config));
            let stream = connector.connect(name, socket).await?;
            Ok(Bounded::new(Box::new(stream)))
        })
    }
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz;

    use super::*;
    use crate::postgres::wire::tests::fill;
    use crate::postgres::wire::{Frame, Inbox};

    fn frame(tag: u8, length: i32) -> Vec<u8> {
        [&[tag][..], &length.to_be_bytes()].concat()
    }

    #[test]
    fn a_message_of_two_gigabytes_is_refused_at_its_header_before_and_after_the_login() {
        let huge = frame(b'R', i32::MAX);
        assert!(matches!(
            Frames::default().take(&huge),
            Err(FrameError::TooLarge { .. })
        ));
        let mut frames = Frames::default();
        let ready = [frame(READY_FOR_QUERY, 5), b"I".to_vec()].concat();
        assert_eq!(frames.take(&ready), Ok(()));
        assert!(matches!(
            frames.take(&huge),
            Err(FrameError::TooLarge { .. })
        ));
        assert_eq!(
            Frames::default().take(&frame(b'R', 3)),
            Err(FrameError::Length(3))
        );
    }

    #[test]
    fn messages_are_followed_however_they_are_cut_and_large_rows_pass_after_the_login() {
        let row_bytes = LOGIN_FRAME_BYTES_MAX * 3;
        let row = [
            frame(b'D', i32::try_from(row_bytes).unwrap() + 4),
            vec![0xff; row_bytes],
        ]
        .concat();
        let ready = [frame(READY_FOR_QUERY, 5), b"I".to_vec()].concat();
        let all = [ready.clone(), row.clone(), ready, row].concat();
        for cut in [1, 3, 5, 7, 4096, all.len()] {
            let mut frames = Frames::default();
            assert!(
                all.chunks(cut).all(|part| frames.take(part).is_ok()),
                "in parts of {cut}"
            );
            assert_eq!(
                (frames.body_bytes, frames.header.len()),
                (0, 0),
                "in parts of {cut}"
            );
        }
        assert!(
            Frames::default()
                .take(&frame(b'D', i32::try_from(row_bytes).unwrap()))
                .is_err()
        );
    }

    /// The same messages as [`Inbox`], which follows the same rules, however they are cut.
    #[test]
    fn fuzzed_reads_of_sql_sessions() {
        let ready = [frame(READY_FOR_QUERY, 5), b"I".to_vec()].concat();
        let streams = [
            [
                frame(b'R', 8),
                vec![0; 4],
                ready.clone(),
                frame(b'D', 12),
                vec![7; 8],
            ]
            .concat(),
            [ready, frame(b'D', 0x1_0004), frame(b'Z', 5)].concat(),
            frame(b'N', 0x1_0000),
        ];
        let corpus = streams.map(|stream| [vec![3], stream].concat());
        fuzz("messages of SQL sessions", 512 << 10, &corpus, |bytes| {
            let Some((size, stream)) = bytes.split_first() else {
                return;
            };
            let mut frames = Frames::default();
            let mut parts = stream.chunks(usize::from(*size) % 16 + 1);
            let found = parts.find_map(|part| frames.take(part).err());
            assert!(frames.header.len() < HEADER_BYTES);
            let mut inbox = Inbox::small(LOGIN_FRAME_BYTES_MAX);
            fill(&mut inbox, stream);
            let error = loop {
                match inbox.next() {
                    Ok(Some(Frame {
                        tag: READY_FOR_QUERY,
                        ..
                    })) => {
                        inbox.set_frame_bytes_max(FRAME_BYTES_MAX);
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            };
            assert_eq!(found, error);
        });
    }
}
