//! Lines of SMTP on a stream: commands, replies, and the text of a mail.
//!
//! <https://www.rfc-editor.org/rfc/rfc5321>

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::time::timeout;

use walrelay_core::printable::is_harmful;

/// A reply has no more bytes than this. Postfix has the same limit.
const REPLY_BYTES_MAX: usize = 100_000;
/// So much of a reply is shown.
const SHOWN_CHARS: usize = 300;
/// A mail is written in blocks of so many bytes, each within the time of an answer.
const BLOCK_BYTES: usize = 64 << 10;
/// The line that ends a mail.
const END: &[u8] = b".\r\n";

/// What a server answers.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) code: u16,
    /// The text of each line.
    pub(super) lines: Vec<String>,
}

impl Reply {
    pub(super) fn is_positive(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// Code and text for logs and rows, without addresses, which are personal data.
    pub(super) fn shown(&self) -> String {
        let words = self.lines.iter().flat_map(|line| line.split_whitespace());
        let masked = words.map(|word| if word.contains('@') { "…@…" } else { word });
        let text = masked.fold(self.code.to_string(), |text, word| text + " " + word);
        let harmless = text.chars().map(|char| match is_harmful(char) {
            true => '?',
            false => char,
        });
        harmless.take(SHOWN_CHARS).collect()
    }
}

/// Why there is no reply.
#[derive(Debug)]
pub(super) struct NoReply {
    pub(super) cause: String,
    /// Whether the connection ended, and not the time.
    pub(super) is_end: bool,
}

impl NoReply {
    pub(super) fn new(cause: &str) -> NoReply {
        NoReply {
            cause: cause.to_owned(),
            is_end: false,
        }
    }
}

impl From<io::Error> for NoReply {
    fn from(error: io::Error) -> NoReply {
        NoReply {
            cause: format!("the connection failed: {error}"),
            is_end: true,
        }
    }
}

/// A connection, which has the client's part of SMTP.
#[derive(Debug)]
pub(super) struct Wire<S> {
    stream: BufReader<S>,
    limit: Duration,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// Each answer comes, and each block is taken, within `limit`.
    pub(super) fn new(stream: S, limit: Duration) -> Wire<S> {
        Wire {
            stream: BufReader::new(stream),
            limit,
        }
    }

    /// The stream, for TLS to begin on it; none where the server has said more already, which
    /// somebody between may have put there.
    pub(super) fn into_inner(self) -> Option<S> {
        self.stream
            .buffer()
            .is_empty()
            .then(|| self.stream.into_inner())
    }

    /// Waits for a reply.
    pub(super) async fn reply(&mut self) -> Result<Reply, NoReply> {
        let limit = self.limit;
        within(limit, self.read()).await
    }

    /// Sends a command, and waits for the reply. `line` has no line break.
    pub(super) async fn command(&mut self, line: &str) -> Result<Reply, NoReply> {
        let line = format!("{line}\r\n");
        self.write(line.as_bytes()).await?;
        self.reply().await
    }

    /// Sends the text of a mail without its end. `text` has lines of SMTP.
    pub(super) async fn text(&mut self, text: &[u8]) -> Result<(), NoReply> {
        for block in text.chunks(BLOCK_BYTES) {
            self.write(block).await?;
        }
        Ok(())
    }

    /// Sends the end of a mail, and waits for the reply within `limit`. From here on the server may
    /// have the mail.
    pub(super) async fn end(&mut self, limit: Duration) -> Result<Reply, NoReply> {
        let end = async {
            self.stream.write_all(END).await?;
            self.stream.flush().await?;
            self.read().await
        };
        within(limit, end).await
    }

    /// Says that this is the end. Waits for no reply.
    pub(super) async fn quit(&mut self) {
        self.write(b"QUIT\r\n").await.unwrap_or_default();
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), NoReply> {
        let limit = self.limit;
        let write = async {
            self.stream.write_all(bytes).await?;
            Ok(self.stream.flush().await?)
        };
        within(limit, write).await
    }

    async fn read(&mut self) -> Result<Reply, NoReply> {
        let mut reply = Reply {
            code: 0,
            lines: Vec::new(),
        };
        let mut left = REPLY_BYTES_MAX;
        loop {
            let mut line = Vec::new();
            let mut bounded = (&mut self.stream).take(left as u64);
            let read = bounded.read_until(b'\n', &mut line).await?;
            left -= read;
            if !line.ends_with(b"\n") {
                let cause = match left {
                    0 => "the server's answer is too long",
                    _ => "the server closed the connection",
                };
                return Err(NoReply {
                    is_end: left > 0,
                    ..NoReply::new(cause)
                });
            }
            let Some(line) = Line::parse(&line).filter(|line| line.follows(&reply)) else {
                return Err(NoReply::new("the server's answer is none of SMTP"));
            };
            reply.code = line.code;
            reply.lines.push(line.text);
            if line.is_last {
                return Ok(reply);
            }
        }
    }
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, NoReply>>,
) -> Result<T, NoReply> {
    let late = || {
        let seconds = limit.as_secs_f64();
        NoReply::new(&format!("the server does not answer within {seconds} s"))
    };
    timeout(limit, work).await.unwrap_or_else(|_| Err(late()))
}

struct Line {
    code: u16,
    text: String,
    is_last: bool,
}

impl Line {
    /// Of `CODE text`, `CODE-text` or `CODE`. Text in another encoding is read as far as it can be.
    fn parse(bytes: &[u8]) -> Option<Line> {
        let bytes = bytes.strip_suffix(b"\n")?;
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let (code, rest) = bytes.split_at_checked(3)?;
        let code = std::str::from_utf8(code).ok()?;
        if !code.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let is_last = match rest.first() {
            None | Some(b' ') => true,
            Some(b'-') => false,
            Some(_) => return None,
        };
        Some(Line {
            code: code.parse().ok()?,
            text: String::from_utf8_lossy(rest.get(1..).unwrap_or_default()).into_owned(),
            is_last,
        })
    }

    fn follows(&self, reply: &Reply) -> bool {
        reply.lines.is_empty() || reply.code == self.code
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use walrelay_fuzz::fuzz;

    use super::*;

    async fn read(bytes: &[u8]) -> Result<Reply, NoReply> {
        let stream = tokio::io::join(bytes, tokio::io::sink());
        Wire::new(stream, Duration::from_secs(5)).reply().await
    }

    #[tokio::test]
    async fn a_reply_is_read_to_its_last_line_and_no_further() {
        let reply = read(b"250-mail.example.org\r\n250-SIZE 10\r\n250 OK\r\n250 next\r\n").await;
        let reply = reply.unwrap();
        assert_eq!(reply.code, 250);
        assert_eq!(reply.lines, ["mail.example.org", "SIZE 10", "OK"]);
        // Bare codes and line ends, and other encodings than UTF-8, are answers, too.
        for text in [&b"250\r\n"[..], b"250 \n", b"250 \xc4\xe3\r\n"] {
            assert_eq!(read(text).await.unwrap().code, 250, "{text:?}");
        }
    }

    #[tokio::test]
    async fn what_is_no_reply_is_none() {
        let long = [
            b"250-".as_slice(),
            &[b'x'; REPLY_BYTES_MAX],
            b"\r\n250 OK\r\n",
        ]
        .concat();
        let many = b"250-x\r\n".repeat(20_000);
        for text in [
            &b"250-a\r\n251 b\r\n"[..],
            b"25\r\n",
            b"2500\r\n",
            b"HTTP/1.1 400 Bad Request\r\n",
            b"\r\n",
            b"+50 OK\r\n",
            b"\xff\xff\xff OK\r\n",
            &long,
            &many,
        ] {
            assert!(!read(text).await.unwrap_err().is_end, "{}", text.len());
        }
        for text in [&b""[..], b"250", b"250 OK", b"250-a\r\n"] {
            assert!(read(text).await.unwrap_err().is_end, "{text:?}");
        }
    }

    #[tokio::test]
    async fn what_is_shown_of_a_reply_has_no_addresses_and_no_controls() {
        let reply =
            read(b"550 5.1.1 <ann@example.org>: no\x1b[31m such \xe2\x80\xae user\r\n").await;
        assert_eq!(reply.unwrap().shown(), "550 5.1.1 …@… no?[31m such ? user");
        let long = format!("550 {}\r\n", "x ".repeat(2_000));
        let shown = read(long.as_bytes()).await.unwrap().shown();
        assert_eq!(shown.chars().count(), SHOWN_CHARS);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_is_not_waited_for_longer_than_the_limit() {
        let (silent, _server) = tokio::io::duplex(64);
        let mut wire = Wire::new(silent, Duration::from_secs(5));
        let none = wire.command("NOOP").await.unwrap_err();
        assert!(none.cause.contains("within 5 s") && !none.is_end);
        // What the server does not take is bounded likewise.
        let none = wire.text(&[b'x'; 1 << 20]).await.unwrap_err();
        assert!(none.cause.contains("within 5 s"), "{}", none.cause);
        let (silent, _server) = tokio::io::duplex(64);
        let mut wire = Wire::new(silent, Duration::from_secs(5));
        let none = wire.end(Duration::from_secs(7)).await.unwrap_err();
        assert!(none.cause.contains("within 7 s"), "{}", none.cause);
    }

    #[tokio::test]
    async fn what_follows_in_the_clear_keeps_tls_from_beginning() {
        for (text, is_clean) in [
            (&b"220 go\r\n"[..], true),
            (b"220 go\r\n250 more\r\n", false),
        ] {
            let stream = tokio::io::join(text, tokio::io::sink());
            let mut wire = Wire::new(stream, Duration::from_secs(5));
            wire.reply().await.unwrap();
            assert_eq!(wire.into_inner().is_some(), is_clean);
        }
    }

    #[test]
    fn fuzzed_replies() {
        let corpus = [
            "220 mail.example.org ESMTP\r\n250-mail\r\n250-SIZE 10\r\n250 OK\r\n250 next\r\n",
            "550-5.1.1 <a@b.example>:\r\n550 5.1.1 no such user\r\n250\r\n354 go\r\n",
        ];
        fuzz("replies of SMTP", 512 << 10, &corpus, |bytes| {
            let stream = tokio::io::join(bytes, tokio::io::sink());
            let mut wire = Wire::new(stream, Duration::from_secs(5));
            let mut lines = 0;
            while let Ok(reply) = wire.read().now_or_never().unwrap() {
                assert!(reply.code < 1000 && !reply.lines.is_empty());
                lines += reply.lines.len();
                let shown = reply.shown();
                assert!(shown.chars().count() <= SHOWN_CHARS && !shown.contains(is_harmful));
            }
            assert!(lines <= bytes.len() / 4);
        });
    }
}
