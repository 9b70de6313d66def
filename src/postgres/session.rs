//! A session in protocol messages: start-up, authentication, simple queries, and the switch to a
//! copy-both stream.
//!
//! tokio-postgres has no walsender sessions. Generic over the byte stream, so that tests can act as
//! the server. <https://www.postgresql.org/docs/current/protocol-flow.html>

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;

use bytes::{Buf as _, BytesMut};
use pgwire_replication::protocol::messages::{ErrorFields, auth, parse_auth_request};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{
    self, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256,
};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_postgres::config::ChannelBinding;

use crate::postgres::fault::{self, While};
use crate::postgres::wire::{Inbox, parameter_status, take_text};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::secret::Secret;

/// The greatest message before the server is authenticated, and the greatest sum of rows of a
/// simple query.
pub(super) const LOGIN_FRAME_BYTES_MAX: usize = 64 * 1024;
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

#[derive(Debug, Clone)]
pub(crate) struct StartUp<'a> {
    /// `host:port/database as user`, for errors.
    pub place: &'a str,
    pub user: &'a str,
    /// The user's password, sent only on request.
    pub password: Option<Secret>,
    pub channel_binding: ChannelBinding,
    /// The data to bind to, see [`crate::postgres::tls::end_point`]. None without TLS.
    pub end_point: Option<Vec<u8>>,
    pub parameters: &'a [(&'a str, &'a str)],
}

#[derive(Debug)]
pub(crate) struct Session<S> {
    stream: S,
    inbox: Inbox,
    parameters: BTreeMap<String, String>,
}

/// A row of a simple query, in text form; `None` is NULL.
pub(crate) type Row = Vec<Option<Vec<u8>>>;

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Session<S> {
    /// Sends the start-up packet, authenticates and waits until the server is ready.
    ///
    /// Memory is bounded by 64 KiB per message; the caller bounds the time. Notices are dropped.
    pub(crate) async fn log_in(stream: S, start_up: &StartUp<'_>) -> Result<Session<S>> {
        let act = While::Connecting(start_up.place);
        let parameters = start_up
            .parameters
            .iter()
            .map(|(name, _)| ((*name).to_owned(), String::new()))
            .collect();
        let mut session = Session {
            stream,
            inbox: Inbox::new(LOGIN_FRAME_BYTES_MAX),
            parameters,
        };
        let mut packet = BytesMut::new();
        let user = ("user", start_up.user);
        frontend::startup_message(
            std::iter::once(user).chain(start_up.parameters.iter().copied()),
            &mut packet,
        )
        .map_err(|_| {
            Error::new(
                Kind::Config,
                format_args!("while {act}: a setting holds a NUL character"),
            )
        })?;
        session.send(act, &packet).await?;
        authenticate(&mut session, start_up).await?;
        loop {
            let (tag, body) = session.receive(act).await?;
            match tag {
                b'Z' => return Ok(session),
                // The key for a cancel request is not needed: a relay ends its session instead.
                b'K' => {}
                b'E' => return Err(reported(act, &body)),
                other => return Err(unexpected(act, other)),
            }
        }
    }

    /// The server's report of a setting of the start-up packet; empty without a report. Other
    /// settings are not kept.
    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.parameters.get(name).map_or("", String::as_str)
    }

    /// Runs one statement with the simple protocol and returns the rows of all its results.
    ///
    /// The rows are bounded by 16 MiB; the caller bounds the time. Not safe to cancel: do not use
    /// the session afterwards. After an error from the server the session can be used again, unless
    /// the error was fatal.
    pub(crate) async fn query(&mut self, act: While<'_>, statement: &str) -> Result<Vec<Row>> {
        self.send_query(act, statement).await?;
        let mut rows = Vec::new();
        let mut bytes = 0_usize;
        let mut failure = None;
        loop {
            let (tag, body) = match self.receive(act).await {
                Ok(message) => message,
                // After a fatal error the stream ends; the error says more than the end.
                Err(end) => return Err(failure.unwrap_or(end)),
            };
            match tag {
                b'Z' => return failure.map_or(Ok(rows), Err),
                b'D' => {
                    bytes = bytes.saturating_add(body.len());
                    if bytes > ANSWER_BYTES_MAX {
                        return Err(fault::protocol(act, "an answer is too large"));
                    }
                    rows.push(
                        row(&body).ok_or_else(|| fault::protocol(act, "a row is cut short"))?,
                    );
                }
                b'T' | b'C' | b'I' => {}
                b'E' => failure = failure.or_else(|| Some(reported(act, &body))),
                other => return Err(unexpected(act, other)),
            }
        }
    }

    pub(crate) async fn copy_both(mut self, act: While<'_>, statement: &str) -> Result<(S, Inbox)> {
        self.send_query(act, statement).await?;
        match self.receive(act).await? {
            (b'W', _) => Ok((self.stream, self.inbox)),
            (b'E', body) => Err(reported(act, &body)),
            (other, _) => Err(unexpected(act, other)),
        }
    }

    pub(crate) fn set_frame_bytes_max(&mut self, frame_bytes_max: usize) {
        self.inbox.set_frame_bytes_max(frame_bytes_max);
    }

    async fn send_query(&mut self, act: While<'_>, statement: &str) -> Result<()> {
        let mut message = BytesMut::new();
        frontend::query(statement, &mut message).map_err(|_| {
            Error::new(
                Kind::Bug,
                format_args!("while {act}: a statement holds a NUL character"),
            )
        })?;
        self.send(act, &message).await
    }

    async fn send(&mut self, act: While<'_>, message: &[u8]) -> Result<()> {
        self.stream
            .write_all(message)
            .await
            .map_err(|error| fault::io(act, &error))?;
        self.stream
            .flush()
            .await
            .map_err(|error| fault::io(act, &error))
    }

    /// The next message that is neither a notice nor a setting, copied, because there are few of
    /// these.
    async fn receive(&mut self, act: While<'_>) -> Result<(u8, Vec<u8>)> {
        loop {
            if let Some(frame) = self
                .inbox
                .next()
                .map_err(|error| fault::protocol(act, error))?
            {
                let body = self.inbox.body(&frame);
                match frame.tag {
                    b'N' => {}
                    b'S' => {
                        let setting = parameter_status(body);
                        let (name, value) = setting
                            .ok_or_else(|| fault::protocol(act, "a setting is cut short"))?;
                        self.parameters
                            .entry(name)
                            .and_modify(|reported| *reported = value);
                    }
                    tag => return Ok((tag, body.to_vec())),
                }
                continue;
            }
            let filled = poll_fn(|cx| self.inbox.poll_fill(cx, &mut self.stream, false)).await;
            if filled.map_err(|error| fault::io(act, &error))? == 0 {
                return Err(fault::io(act, &io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

pub(crate) fn reported(act: While<'_>, body: &[u8]) -> Error {
    let fields = ErrorFields::parse(body);
    let [routine, code, message] =
        [fields.routine, fields.code, fields.message].map(Option::unwrap_or_default);
    fault::reported(act, &routine, &code, &message)
}

pub(crate) fn unexpected(act: While<'_>, tag: u8) -> Error {
    fault::protocol(
        act,
        format_args!("a message of type {:?} has no place here", char::from(tag)),
    )
}

fn row(mut body: &[u8]) -> Option<Row> {
    let columns = body.try_get_u16().ok()?;
    let mut row = Vec::new();
    for _ in 0..columns {
        row.push(match body.try_get_i32().ok()? {
            -1 => None,
            length => Some(body.split_off(..usize::try_from(length).ok()?)?.to_vec()),
        });
    }
    Some(row)
}

/// The progress of SCRAM. The server's OK counts only after it has proved that it knows the
/// password, too.
enum Scram {
    NotBegun,
    Begun(Box<ScramSha256>),
    Proved,
}

async fn authenticate<S>(session: &mut Session<S>, start_up: &StartUp<'_>) -> Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let act = While::Connecting(start_up.place);
    let mut scram = Scram::NotBegun;
    loop {
        let body = auth_request(session, act).await?;
        let (code, data) = parse_auth_request(&body)
            .map_err(|_| fault::protocol(act, "a request is cut short"))?;
        let mut answer = BytesMut::new();
        match (code, &mut scram) {
            (code, Scram::NotBegun)
                if start_up.channel_binding == ChannelBinding::Require && code != auth::SASL =>
            {
                return Err(unbound(act, "the server asks for no SCRAM"));
            }
            (auth::OK, Scram::NotBegun | Scram::Proved) => return Ok(()),
            (auth::CLEARTEXT_PASSWORD, Scram::NotBegun) => {
                let password = password(act, start_up)?.expose();
                password_message(act, password.as_bytes(), &mut answer)?;
            }
            (auth::MD5_PASSWORD, Scram::NotBegun) => {
                let salt = data
                    .try_into()
                    .map_err(|_| fault::protocol(act, "a salt does not have four bytes"))?;
                let password = password(act, start_up)?.expose();
                let hash = md5_hash(start_up.user.as_bytes(), password.as_bytes(), salt);
                password_message(act, hash.as_bytes(), &mut answer)?;
            }
            (auth::SASL, Scram::NotBegun) => {
                let (mechanism, binding) = choose(act, start_up, &mechanisms(data))?;
                let begun = ScramSha256::new(password(act, start_up)?.expose().as_bytes(), binding);
                frontend::sasl_initial_response(mechanism, begun.message(), &mut answer)
                    .map_err(|error| fault::protocol(act, error))?;
                scram = Scram::Begun(Box::new(begun));
            }
            (auth::SASL_CONTINUE, Scram::Begun(begun)) => {
                begun
                    .update(data)
                    .map_err(|error| refused(act, format_args!("SCRAM failed: {error}")))?;
                frontend::sasl_response(begun.message(), &mut answer)
                    .map_err(|error| fault::protocol(act, error))?;
            }
            (auth::SASL_FINAL, Scram::Begun(begun)) => {
                begun.finish(data).map_err(|error| unproved(act, &error))?;
                scram = Scram::Proved;
            }
            (2, _) => return Err(unknown(act, "Kerberos")),
            (7 | 8, _) => return Err(unknown(act, "GSSAPI")),
            (9, _) => return Err(unknown(act, "SSPI")),
            (other, _) => {
                return Err(fault::protocol(
                    act,
                    format_args!("request {other} of authentication comes out of turn"),
                ));
            }
        }
        if !answer.is_empty() {
            session.send(act, &answer).await?;
        }
    }
}

/// The next request for authentication.
async fn auth_request<S>(session: &mut Session<S>, act: While<'_>) -> Result<Vec<u8>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    loop {
        let (tag, body) = session.receive(act).await?;
        match tag {
            b'R' => return Ok(body),
            b'E' => return Err(reported(act, &body)),
            // The offer of another protocol version, which is ignored.
            b'v' => {}
            other => return Err(unexpected(act, other)),
        }
    }
}

fn password<'a>(act: While<'_>, start_up: &'a StartUp<'_>) -> Result<&'a Secret> {
    start_up.password.as_ref().ok_or_else(|| {
        refused(act, "the server asks for a password and none is given")
            .remedy("set PGPASSWORD, or add a line to the password file")
    })
}

fn password_message(act: While<'_>, password: &[u8], into: &mut BytesMut) -> Result<()> {
    frontend::password_message(password, into).map_err(|_| {
        Error::new(
            Kind::Config,
            format_args!("while {act}: the password holds a NUL character"),
        )
    })
}

fn mechanisms(mut data: &[u8]) -> Vec<String> {
    std::iter::from_fn(|| take_text(&mut data).filter(|name| !name.is_empty())).collect()
}

/// The SCRAM mechanism, and the client's statement about channel binding: used, supported but not
/// offered by the server, or not supported. The second one reveals a man in the middle who hides
/// the offer.
fn choose(
    act: While<'_>,
    start_up: &StartUp<'_>,
    offered: &[String],
) -> Result<(&'static str, sasl::ChannelBinding)> {
    let offers = |mechanism: &str| offered.iter().any(|offered| offered == mechanism);
    let bound = start_up
        .end_point
        .clone()
        .filter(|_| start_up.channel_binding != ChannelBinding::Disable);
    match (bound, start_up.channel_binding) {
        (Some(end_point), _) if offers(SCRAM_SHA_256_PLUS) => Ok((
            SCRAM_SHA_256_PLUS,
            sasl::ChannelBinding::tls_server_end_point(end_point),
        )),
        (Some(_), ChannelBinding::Require) => {
            Err(unbound(act, "the server does not offer SCRAM-SHA-256-PLUS"))
        }
        (None, ChannelBinding::Require) => Err(unbound(
            act,
            "the connection is not TLS, or its certificate's signature has no hash to bind to",
        )),
        _ if !offers(SCRAM_SHA_256) => Err(unknown(act, "SASL without SCRAM-SHA-256")),
        (Some(_), _) => Ok((SCRAM_SHA_256, sasl::ChannelBinding::unrequested())),
        (None, _) => Ok((SCRAM_SHA_256, sasl::ChannelBinding::unsupported())),
    }
}

fn unbound(act: While<'_>, why: &str) -> Error {
    refused(
        act,
        format_args!("channel_binding=require cannot be kept: {why}"),
    )
    .remedy(
        "connect to the server itself with sslmode=require or stricter, and let pg_hba.conf ask \
         for scram-sha-256; or use \
         channel_binding=prefer together with sslmode=verify-full, which authenticates the server \
         as well",
    )
}

fn unproved(act: While<'_>, error: &io::Error) -> Error {
    refused(
        act,
        format_args!("the server does not prove that it knows the password: {error}"),
    )
}

fn unknown(act: While<'_>, what: &str) -> Error {
    refused(
        act,
        format_args!("the server wants {what}, which is not supported"),
    )
    .remedy("let pg_hba.conf ask for scram-sha-256 or cert for this role and address")
}

fn refused(act: While<'_>, what: impl std::fmt::Display) -> Error {
    Error::new(Kind::PostgresRefused, format_args!("while {act}: {what}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use futures_util::FutureExt as _;
    use walrelay_fuzz::fuzz;

    use super::*;
    use crate::conninfo::SslMode;
    use crate::postgres::transport::{answered, request_tls};
    use tokio::io::{AsyncReadExt, DuplexStream};

    /// A server at one end of a pipe.
    pub(crate) struct FakeServer(pub(crate) DuplexStream);

    /// A pipe, and the server at its other end.
    pub(crate) fn pipe() -> (DuplexStream, FakeServer) {
        let (client, server) = tokio::io::duplex(64 * 1024);
        (client, FakeServer(server))
    }

    pub(crate) fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = i32::try_from(body.len() + 4).unwrap();
        [&[tag], length.to_be_bytes().as_slice(), body].concat()
    }

    pub(crate) fn report(sqlstate: &str, text: &str) -> Vec<u8> {
        format!("SERROR\0C{sqlstate}\0M{text}\0Dcanary-detail\0\0").into_bytes()
    }

    pub(crate) fn row(values: &[&str]) -> Vec<u8> {
        let mut body = u16::try_from(values.len()).unwrap().to_be_bytes().to_vec();
        for value in values {
            body.extend(i32::try_from(value.len()).unwrap().to_be_bytes());
            body.extend(value.as_bytes());
        }
        body
    }

    impl FakeServer {
        pub(crate) async fn send(&mut self, tag: u8, body: &[u8]) {
            self.0.write_all(&message(tag, body)).await.unwrap();
        }

        /// A request for authentication; 0 is the end of it.
        async fn request(&mut self, code: i32, data: &[u8]) {
            self.send(b'R', &[&code.to_be_bytes(), data].concat()).await;
        }

        pub(crate) async fn send_raw(&mut self, bytes: &[u8]) {
            self.0.write_all(bytes).await.unwrap();
        }

        async fn body(&mut self) -> Vec<u8> {
            let length = self.0.read_i32().await.unwrap();
            let mut body = vec![0; usize::try_from(length).unwrap() - 4];
            self.0.read_exact(&mut body).await.unwrap();
            body
        }

        /// The settings of the start-up packet.
        pub(crate) async fn start_up(&mut self) -> Vec<(String, String)> {
            let body = self.body().await;
            assert_eq!(body[..4], 0x0003_0000_i32.to_be_bytes());
            let texts: Vec<_> = body[4..]
                .split(|byte| *byte == 0)
                .map(|text| String::from_utf8(text.to_vec()).unwrap())
                .collect();
            let pairs = texts.chunks_exact(2).filter(|pair| !pair[0].is_empty());
            pairs
                .map(|pair| (pair[0].clone(), pair[1].clone()))
                .collect()
        }

        /// The next message of the client, unless it has gone.
        pub(crate) async fn next(&mut self) -> Option<(char, Vec<u8>)> {
            let tag = self.0.read_u8().await.ok()?;
            Some((char::from(tag), self.body().await))
        }

        /// The next message of the client, which must be of this type.
        pub(crate) async fn expect(&mut self, tag: u8) -> Vec<u8> {
            let (got, body) = self.next().await.unwrap();
            assert_eq!(got, char::from(tag));
            body
        }

        pub(crate) async fn expect_query(&mut self) -> String {
            let body = self.expect(b'Q').await;
            String::from_utf8(body[..body.len() - 1].to_vec()).unwrap()
        }

        /// Answers a statement with one row, and is ready for the next statement.
        pub(crate) async fn answer(&mut self, values: &[&str]) {
            self.send(b'D', &row(values)).await;
            self.send(b'C', b"DONE\0").await;
            self.send(b'Z', b"I").await;
        }

        /// Accepts a client without a password, as a server with these settings.
        pub(crate) async fn let_in(&mut self, settings: &[(&str, &str)]) -> Vec<(String, String)> {
            let asked = self.start_up().await;
            self.request(0, b"").await;
            for (name, value) in settings {
                self.send(b'S', format!("{name}\0{value}\0").as_bytes())
                    .await;
            }
            self.send(b'K', &[0; 8]).await;
            self.send(b'Z', b"I").await;
            asked
        }
    }

    const PASSWORD: &str = "canary-password";
    const QUERYING: While<'static> = While::Querying("testing");

    fn start_up(password: bool) -> StartUp<'static> {
        StartUp {
            place: "h:1/d as u",
            user: "u",
            password: password.then(|| Secret::new(PASSWORD)),
            channel_binding: ChannelBinding::Prefer,
            end_point: None,
            parameters: &[("database", "d")],
        }
    }

    async fn log_in(
        start_up: &StartUp<'_>,
        play: impl AsyncFnOnce(&mut FakeServer),
    ) -> (Result<Session<DuplexStream>>, FakeServer) {
        let (client, mut server) = pipe();
        let (session, ()) = tokio::join!(Session::log_in(client, start_up), play(&mut server));
        (session, server)
    }

    /// A login at a server that asks for this, plays on, and closes the connection.
    async fn asked(
        start_up: &StartUp<'_>,
        code: i32,
        data: &[u8],
        play: impl AsyncFnOnce(&mut FakeServer),
    ) -> Result<Session<DuplexStream>> {
        let (session, _) = log_in(start_up, async |server| {
            server.start_up().await;
            server.request(code, data).await;
            play(server).await;
            server.0.shutdown().await.unwrap();
        })
        .await;
        session
    }

    #[tokio::test]
    async fn an_md5_login_sends_the_salted_hash() {
        let start_up = start_up(true);
        let session = asked(&start_up, 5, &[1, 2, 3, 4], async |server| {
            let wanted = postgres_protocol::authentication::md5_hash(
                b"u",
                PASSWORD.as_bytes(),
                [1, 2, 3, 4],
            );
            assert_eq!(
                server.expect(b'p').await,
                [wanted.as_bytes(), b"\0"].concat()
            );
            server.request(0, b"").await;
            server.send(b'Z', b"I").await;
        });
        session.await.unwrap();
    }

    #[tokio::test]
    async fn a_server_that_skips_its_scram_proof_is_refused() {
        let start_up = start_up(true);
        let session = asked(&start_up, 10, b"SCRAM-SHA-256\0\0", async |server| {
            assert!(server.expect(b'p').await.starts_with(b"SCRAM-SHA-256\0"));
            server.request(0, b"").await;
        });
        let error = session.await.unwrap_err();
        assert!(error.cause().contains("out of turn"), "{error}");
    }

    /// The client's answer to a server that offers these mechanisms: its choice and the beginning
    /// of its message.
    async fn chosen(
        wanted: ChannelBinding,
        end_point: Option<&[u8]>,
        offered: &[u8],
    ) -> Option<(String, String)> {
        let end_point = end_point.map(<[u8]>::to_vec);
        let start_up = StartUp {
            channel_binding: wanted,
            end_point,
            ..start_up(true)
        };
        let mut choice = None;
        let session = asked(&start_up, 10, offered, async |server| {
            if let Some(('p', body)) = server.next().await {
                let text =
                    String::from_utf8(body.split(|byte| *byte == 0).next().unwrap().to_vec())
                        .unwrap();
                let message = String::from_utf8_lossy(&body[text.len() + 5..]).into_owned();
                choice = Some((text, message.split_once(",,").unwrap().0.to_owned()));
            }
        });
        drop(session.await);
        choice
    }

    #[tokio::test]
    async fn channel_binding_follows_the_setting_and_what_both_sides_support() {
        use ChannelBinding::{Disable, Prefer, Require};
        const BOTH: &[u8] = b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0";
        const PLAIN: &[u8] = b"SCRAM-SHA-256\0\0";
        let plus = Some(("SCRAM-SHA-256-PLUS", "p=tls-server-end-point"));
        for (wanted, end_point, offered, choice) in [
            (Prefer, Some(&b"hash"[..]), BOTH, plus),
            (Require, Some(b"hash"), BOTH, plus),
            (Disable, Some(b"hash"), BOTH, Some(("SCRAM-SHA-256", "n"))),
            (Prefer, Some(b"hash"), PLAIN, Some(("SCRAM-SHA-256", "y"))),
            (Prefer, None, BOTH, Some(("SCRAM-SHA-256", "n"))),
            (Require, Some(b"hash"), PLAIN, None),
            (Require, None, BOTH, None),
        ] {
            let got = chosen(wanted, end_point, offered).await;
            let got = got
                .as_ref()
                .map(|(mechanism, binding)| (mechanism.as_str(), binding.as_str()));
            assert_eq!(
                got,
                choice,
                "{wanted:?}, {}",
                String::from_utf8_lossy(offered)
            );
        }
    }

    #[tokio::test]
    async fn an_unsupported_login_method_is_refused_with_a_reason() {
        let bound = StartUp {
            channel_binding: ChannelBinding::Require,
            ..start_up(true)
        };
        for (start_up, code, word) in [
            (start_up(false), 3, "password"),
            (start_up(true), 7, "GSSAPI"),
            (start_up(true), 9, "SSPI"),
            (bound.clone(), 10, "channel_binding"),
            (bound, 0, "channel_binding"),
        ] {
            let error = asked(&start_up, code, b"SCRAM-SHA-256\0\0", async |_| ())
                .await
                .unwrap_err();
            assert_eq!(error.kind(), Kind::PostgresRefused);
            assert!(
                error.cause().contains(word) && error.what_to_do().is_some(),
                "{error}"
            );
            assert!(!format!("{error:?}").contains(PASSWORD));
        }
    }

    #[tokio::test]
    async fn invalid_bytes_from_the_server_are_an_error_at_each_step_of_the_login() {
        let hostile: [&[u8]; 7] = [
            b"",
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            b"R\xff\xff\xff\xff",
            b"R\0\0\0\x04",
            b"R\0\0\0\x0a\0\0\0\x05ab",
            b"S\0\0\0\x05a",
            b"E\0\0\0\x05M",
        ];
        for bytes in hostile {
            for greeting in [false, true] {
                let (session, _) = log_in(&start_up(true), async |server| {
                    server.start_up().await;
                    if greeting {
                        server.request(0, b"").await;
                    }
                    server.send_raw(bytes).await;
                    server.0.shutdown().await.unwrap();
                })
                .await;
                assert!(session.is_err(), "{bytes:?} after greeting: {greeting}");
            }
        }
    }

    #[tokio::test]
    async fn the_ssl_mode_and_the_answer_to_the_tls_request_decide_whether_tls_begins() {
        let act = While::Connecting("h:1/d as u");
        for (mode, byte, outcome) in [
            (SslMode::Require, b'S', Ok(true)),
            (SslMode::Prefer, b'S', Ok(true)),
            (SslMode::Prefer, b'N', Ok(false)),
            (SslMode::Require, b'N', Err(Kind::PostgresRefused)),
            (SslMode::VerifyFull, b'N', Err(Kind::PostgresRefused)),
            (SslMode::Require, b'E', Err(Kind::PostgresUnreachable)),
            (SslMode::Prefer, b'E', Err(Kind::PostgresUnreachable)),
            (SslMode::Prefer, b'H', Err(Kind::PostgresUnreachable)),
        ] {
            let (mut client, mut server) = pipe();
            server.send_raw(&[byte, b'x']).await;
            let answer = request_tls(&mut client).await.unwrap();
            assert_eq!(
                answered(act, mode, answer).map_err(|error| error.kind()),
                outcome
            );
            let mut asked = [0; 8];
            server.0.read_exact(&mut asked).await.unwrap();
            assert_eq!(asked, [0, 0, 0, 8, 4, 210, 22, 47]);
            // Bytes after the answer stay in the stream, for the handshake.
            assert_eq!(client.read_u8().await.unwrap(), b'x');
        }
    }

    #[tokio::test]
    async fn a_query_returns_rows_and_an_sql_error_leaves_the_session_usable() {
        let let_in = async |server: &mut FakeServer| drop(server.let_in(&[]).await);
        let (session, mut server) = log_in(&start_up(false), let_in).await;
        let mut session = session.unwrap();
        let play = async {
            assert_eq!(server.expect_query().await, "SELECT 1");
            server.send(b'N', &report("01000", "a notice")).await;
            server.send(b'T', b"\0\0").await;
            server.answer(&["1", ""]).await;
            server.expect_query().await;
            server.send(b'E', &report("42601", "syntax")).await;
            server.send(b'Z', b"I").await;
            server.expect_query().await;
            server.send(b'E', &report("57P01", "going down")).await;
            drop(server);
        };
        let ask = async {
            let rows = session.query(QUERYING, "SELECT 1").await.unwrap();
            assert_eq!(rows, [vec![Some(b"1".to_vec()), Some(vec![])]]);
            assert_eq!(
                session.query(QUERYING, "SELEC").await.unwrap_err().kind(),
                Kind::PostgresUnfit
            );
            let error = session.query(QUERYING, "SELECT 2").await.unwrap_err();
            assert!(error.cause().contains("57P01"), "{error}");
        };
        tokio::join!(play, ask);
    }

    #[test]
    fn a_data_row_with_wrong_lengths_is_refused() {
        assert_eq!(
            super::row(&row(&["a", "bc"])),
            Some(vec![Some(b"a".to_vec()), Some(b"bc".to_vec())])
        );
        assert_eq!(
            super::row(&[0, 1, 0xff, 0xff, 0xff, 0xff]),
            Some(vec![None])
        );
        for bad in ["", "\0\x01", "\0\x01\0\0\0\x02a", "\0\x01\x7f\0\0\0"] {
            assert_eq!(super::row(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(
            [
                super::row(b"\xff\xff"),
                super::row(b"\0\x01\xff\xff\xff\xfe")
            ],
            [None, None]
        );
    }

    #[test]
    fn fuzzed_logins() {
        let request = |code: i32, data: &[u8]| message(b'R', &[&code.to_be_bytes(), data].concat());
        let ready = || message(b'Z', b"I");
        let answer = [
            message(b'T', b"\0\0"),
            message(b'D', &row(&["a", ""])),
            ready(),
        ]
        .concat();
        let corpus = [
            [
                request(0, b""),
                message(b'S', b"database\0d\0"),
                message(b'K', &[0; 8]),
                ready(),
            ],
            [request(3, b""), request(0, b""), ready(), answer.clone()],
            [
                request(5, &[1, 2, 3, 4]),
                request(0, b""),
                ready(),
                answer.clone(),
            ],
            [
                request(10, b"SCRAM-SHA-256\0\0"),
                request(11, b"r=x,s=eA==,i=4096"),
                ready(),
                answer,
            ],
            [
                message(b'v', &[0; 8]),
                message(b'N', b"Mx\0\0"),
                request(0, b""),
                ready(),
            ],
            [
                request(0, b""),
                ready(),
                message(b'E', &report("42601", "syntax")),
                ready(),
            ],
            [
                request(0, b""),
                ready(),
                message(b'D', b"\0\x01\xff\xff\xff\xff"),
                ready(),
            ],
        ];
        let corpus = corpus.map(|messages| messages.concat());
        let start_up = start_up(true);
        fuzz(
            "logins and queries of Postgres",
            512 << 10,
            &corpus,
            |bytes| {
                let mut session = Session {
                    stream: tokio::io::join(bytes, tokio::io::sink()),
                    inbox: Inbox::small(LOGIN_FRAME_BYTES_MAX),
                    parameters: BTreeMap::from([("database".to_owned(), String::new())]),
                };
                let logged_in = authenticate(&mut session, &start_up)
                    .now_or_never()
                    .unwrap();
                let rows = session.query(QUERYING, "SELECT 1").now_or_never().unwrap();
                for error in logged_in.err().into_iter().chain(rows.err()) {
                    assert!(!format!("{error:?}").contains(PASSWORD));
                }
                assert_eq!(session.parameters.len(), 1);
            },
        );
    }
}
