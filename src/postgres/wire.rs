//! Turns a server's bytes into protocol messages: one bounded buffer, no copy per message.
//!
//! <https://www.postgresql.org/docs/current/protocol-message-formats.html>

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

/// The bytes of one read, and the size of the buffer while messages are smaller.
const READ_BYTES: usize = 2 << 20;
/// The least free space before a read. Only below it are the unread bytes moved, which for each
/// read would cost more.
const ROOM_BYTES: usize = READ_BYTES / 4;
const HEADER_BYTES: usize = 5;
/// After so many empty buffers without a large message, the memory for large messages is released.
const SHRINK_AFTER: u32 = 64;

#[derive(Debug)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    frame_bytes_max: usize,
    small_rounds: u32,
    discard_bytes: usize,
}

/// One message: its type and the range of its body. Take the body before the next
/// [`Inbox::poll_fill`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub tag: u8,
    body: Range<usize>,
}

/// The bytes are not a message, or the message is too large. The following bytes cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// A length smaller than the length field.
    #[error("a message has the length {0}")]
    Length(i32),
    /// A length above the bound; refused before the message is received.
    #[error("a message has {frame_bytes} bytes, and at most {frame_bytes_max} are allowed")]
    TooLarge {
        tag: u8,
        frame_bytes: usize,
        frame_bytes_max: usize,
    },
}

impl Inbox {
    /// An empty inbox that refuses messages of more than `frame_bytes_max`, headers included.
    pub(crate) fn new(frame_bytes_max: usize) -> Self {
        Inbox {
            bytes: vec![0; READ_BYTES],
            start: 0,
            end: 0,
            frame_bytes_max,
            small_rounds: 0,
            discard_bytes: 0,
        }
    }

    pub(crate) fn set_frame_bytes_max(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = frame_bytes_max;
    }

    pub(crate) fn buffered_bytes(&self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Whether [`Inbox::poll_fill`] has free space. False only while received messages are not
    /// taken.
    pub(crate) fn has_room(&self) -> bool {
        self.start > 0 || self.end < self.limit()
    }

    /// The next `bytes` bytes, without taking them; `None` until all of them are there.
    pub(crate) fn peek(&self, bytes: usize) -> Option<&[u8]> {
        self.bytes.get(self.start..self.end)?.get(..bytes)
    }

    /// Reads data from the socket into the free space. With `once`, a read below its capacity is
    /// the last one. Zero bytes despite free space mean the end of the stream.
    pub(crate) fn poll_fill<R: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut R,
        once: bool,
    ) -> Poll<io::Result<usize>> {
        self.make_room();
        let mut received = 0;
        while let Some(room) = self
            .bytes
            .get_mut(self.end..)
            .filter(|room| !room.is_empty())
        {
            let mut buffer = ReadBuf::new(room);
            match Pin::new(&mut *source).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => break,
                Poll::Ready(Ok(())) => {
                    let left = buffer.remaining() > 0;
                    received += buffer.filled().len();
                    self.end += buffer.filled().len();
                    if once && left {
                        break;
                    }
                }
                // Return the bytes that were read; the next read gets the same error.
                Poll::Ready(Err(_)) | Poll::Pending if received > 0 => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(received))
    }

    /// Takes the next message, if it is complete.
    /// Errors: [`FrameError`], as soon as the header is there, and again at every later call.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let discarded = self.discard_bytes.min(self.end.saturating_sub(self.start));
        self.start += discarded;
        self.discard_bytes -= discarded;
        if self.discard_bytes > 0 {
            return Ok(None);
        }
        let Some(header) = self
            .bytes
            .get(self.start..self.end)
            .and_then(<[u8]>::first_chunk::<HEADER_BYTES>)
        else {
            return Ok(None);
        };
        let [tag, length @ ..] = *header;
        let length = i32::from_be_bytes(length);
        let frame_bytes = match usize::try_from(length) {
            Ok(counted @ 4..) => counted.saturating_add(1),
            Ok(_) | Err(_) => return Err(FrameError::Length(length)),
        };
        if frame_bytes > self.frame_bytes_max {
            return Err(FrameError::TooLarge {
                tag,
                frame_bytes,
                frame_bytes_max: self.frame_bytes_max,
            });
        }
        if frame_bytes > READ_BYTES {
            self.small_rounds = 0;
        }
        if frame_bytes > self.end.saturating_sub(self.start) {
            return Ok(None);
        }
        let body = self.start + HEADER_BYTES..self.start + frame_bytes;
        self.start += frame_bytes;
        Ok(Some(Frame { tag, body }))
    }

    /// Skips a message that [`Inbox::next`] refused for its size.
    pub(crate) fn discard(&mut self, frame_bytes: usize) {
        self.discard_bytes = frame_bytes;
    }

    pub(crate) fn body(&self, frame: &Frame) -> &[u8] {
        self.bytes.get(frame.body.clone()).unwrap_or_default()
    }

    fn limit(&self) -> usize {
        self.frame_bytes_max.saturating_add(READ_BYTES)
    }

    /// Grows by doubling, and only when the buffer is full: an announced length allocates nothing.
    fn make_room(&mut self) {
        let room = self.bytes.len().saturating_sub(self.end);
        if self.start > 0 && (room < ROOM_BYTES || self.start == self.end) {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == 0 && self.bytes.len() > READ_BYTES {
            self.small_rounds += 1;
            if self.small_rounds >= SHRINK_AFTER {
                self.bytes = vec![0; READ_BYTES];
                self.small_rounds = 0;
            }
        }
        if self.end == self.bytes.len() {
            let larger = self.bytes.len().saturating_mul(2).min(self.limit());
            self.bytes.resize(larger.max(self.end), 0);
        }
    }
}

/// Takes a text up to its NUL off `bytes`. Invalid UTF-8 is replaced: for names and messages, not
/// for values.
pub(crate) fn take_text(bytes: &mut &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let text = bytes.split_off(..=end)?.strip_suffix(b"\0")?;
    Some(String::from_utf8_lossy(text).into_owned())
}

pub(crate) fn parameter_status(mut body: &[u8]) -> Option<(String, String)> {
    Some((take_text(&mut body)?, take_text(&mut body)?))
}

#[cfg(test)]
pub(crate) mod tests {
    use walrelay_fuzz::fuzz;

    use super::*;
    use crate::postgres::session::tests::message as frame;

    impl Inbox {
        /// One whose buffer grows with the first bytes, which saves the time of a large one.
        pub(crate) fn small(frame_bytes_max: usize) -> Inbox {
            Inbox {
                bytes: vec![0; 16],
                start: 0,
                end: 0,
                frame_bytes_max,
                small_rounds: 0,
                discard_bytes: 0,
            }
        }

        /// At most the bound of a message plus one read, rounded up by growth.
        pub(crate) fn capacity_bytes(&self) -> usize {
            self.bytes.len()
        }
    }

    pub(crate) fn fill(inbox: &mut Inbox, mut bytes: &[u8]) -> usize {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut total = 0;
        while !bytes.is_empty() && inbox.has_room() {
            let Poll::Ready(received) = inbox.poll_fill(&mut cx, &mut bytes, false) else {
                panic!("never pending")
            };
            total += received.unwrap();
        }
        total
    }

    fn take(inbox: &mut Inbox) -> Option<(u8, Vec<u8>)> {
        let frame = inbox.next().unwrap()?;
        Some((frame.tag, inbox.body(&frame).to_vec()))
    }

    #[test]
    fn messages_are_read_from_slices_of_any_size() {
        let stream = [
            frame(b'd', b"one"),
            frame(b'Z', b""),
            frame(b'd', &[7; 1000]),
        ]
        .concat();
        for size in [1, 2, 4, 5, 7, stream.len()] {
            let mut inbox = Inbox::new(2000);
            let mut taken = Vec::new();
            for slice in stream.chunks(size) {
                fill(&mut inbox, slice);
                taken.extend(std::iter::from_fn(|| take(&mut inbox)));
            }
            let wanted = [
                (b'd', b"one".to_vec()),
                (b'Z', vec![]),
                (b'd', vec![7; 1000]),
            ];
            assert_eq!(taken, wanted, "slices of {size} bytes");
        }
    }

    #[test]
    fn a_message_length_below_four_is_an_error() {
        for length in [3, 0, -1, i32::MIN] {
            let mut inbox = Inbox::new(2000);
            fill(&mut inbox, &[&b"d"[..], &length.to_be_bytes()].concat());
            assert_eq!(inbox.next(), Err(FrameError::Length(length)));
            assert_eq!(inbox.next(), Err(FrameError::Length(length)));
        }
    }

    #[test]
    fn a_discarded_message_takes_no_memory_and_the_next_one_is_read() {
        let mut inbox = Inbox::new(2000);
        let stream = [frame(b'd', &vec![1; 3 << 20]), frame(b'c', b"")].concat();
        let mut taken = Vec::new();
        for slice in stream.chunks(100_000) {
            fill(&mut inbox, slice);
            loop {
                match inbox.next() {
                    Ok(None) => break,
                    Ok(Some(frame)) => taken.push(frame.tag),
                    Err(FrameError::TooLarge { frame_bytes, .. }) => inbox.discard(frame_bytes),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        assert_eq!(taken, [b'c']);
        assert!(inbox.capacity_bytes() <= inbox.limit());
    }

    #[test]
    fn an_announced_length_allocates_nothing_before_its_bytes_arrive() {
        let mut inbox = Inbox::new(64 << 20);
        fill(
            &mut inbox,
            &[&b"d"[..], &(50_i32 << 20).to_be_bytes()].concat(),
        );
        assert_eq!(inbox.next(), Ok(None));
        assert_eq!(inbox.capacity_bytes(), READ_BYTES);
        fill(&mut inbox, &vec![0; READ_BYTES]);
        assert!(inbox.capacity_bytes() <= 2 * READ_BYTES);
    }

    #[test]
    fn reading_stops_while_received_messages_are_not_taken() {
        let mut inbox = Inbox::new(2000);
        let small = frame(b'd', &[0; 95]).repeat(30_000);
        let received = fill(&mut inbox, &small);
        assert_eq!(received, inbox.limit());
        assert!(!inbox.has_room());
        assert!(take(&mut inbox).is_some());
        assert!(inbox.has_room());
    }

    #[test]
    fn the_memory_of_a_large_message_is_freed_after_small_ones() {
        let mut inbox = Inbox::new(8 << 20);
        fill(&mut inbox, &frame(b'd', &vec![1; 4 << 20]));
        assert_eq!(take(&mut inbox).unwrap().1.len(), 4 << 20);
        assert!(inbox.capacity_bytes() >= 4 << 20);
        for _ in 0..SHRINK_AFTER {
            fill(&mut inbox, &frame(b'd', b"small"));
            assert!(take(&mut inbox).is_some());
        }
        assert_eq!(inbox.capacity_bytes(), READ_BYTES);
    }

    /// Messages up to the end or the first error, from reads of so many bytes.
    fn cut(stream: &[u8], read_bytes: usize) -> (Vec<(u8, Vec<u8>)>, Option<FrameError>) {
        let mut inbox = Inbox::small(100);
        let mut taken = Vec::new();
        for slice in stream.chunks(read_bytes) {
            fill(&mut inbox, slice);
            loop {
                match inbox.next() {
                    Ok(Some(frame)) => taken.push((frame.tag, inbox.body(&frame).to_vec())),
                    Ok(None) => break,
                    Err(FrameError::TooLarge {
                        tag: b'd',
                        frame_bytes,
                        ..
                    }) => {
                        inbox.discard(frame_bytes);
                    }
                    Err(error) => return (taken, Some(error)),
                }
            }
        }
        (taken, None)
    }

    #[test]
    fn fuzzed_reads() {
        let streams = [
            [frame(b'd', b"one"), frame(b'Z', b""), frame(b'd', &[7; 90])].concat(),
            [frame(b'd', &[7; 120]), frame(b'S', b"TimeZone\0UTC\0")].concat(),
            frame(b'D', &[7; 95]),
        ];
        let corpus = streams.map(|stream| [vec![3], stream].concat());
        fuzz("messages of a server", 512 << 10, &corpus, |bytes| {
            let Some((size, stream)) = bytes.split_first() else {
                return;
            };
            let whole = cut(stream, stream.len().max(1));
            assert_eq!(cut(stream, usize::from(*size) % 16 + 1), whole);
            for (_, body) in whole.0 {
                assert!(body.len() <= 95);
                let read = parameter_status(&body);
                assert!(
                    read.is_none_or(|(name, value)| body.len() * 3 >= name.len() + value.len())
                );
            }
        });
    }
}
