//! A session in protocol messages: start-up, authentication, simple queries, and the way into a copy-both stream.
//!
//! For what tokio-postgres has no room for. Generic over the byte stream, so that tests can play the server.
//! <https://www.postgresql.org/docs/current/protocol-flow.html>

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;

use bytes::BytesMut;
use pgwire_replication::protocol::messages::{ErrorFields, auth, parse_auth_request};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::conninfo::ChannelBinding;
use crate::error::{Error, Kind, Result};
use crate::postgres::fault::{self, While};
use crate::postgres::wire::{Cursor, Inbox, parameter_status};
use crate::secret::Secret;

/// Bound on a message before the server is authenticated, and on the rows of a simple query in all.
const LOGIN_FRAME_BYTES_MAX: usize = 64 * 1024;
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Who logs in, and how the session is to be.
#[derive(Debug, Clone)]
pub(crate) struct StartUp<'a> {
    /// `host:port/database as user`, for errors.
    pub place: &'a str,
    pub user: &'a str,
    /// Its password, sent only if asked for.
    pub password: Option<Secret>,
    /// Whether the login is bound to the TLS channel.
    pub channel_binding: ChannelBinding,
    /// What it would be bound to: see [`crate::postgres::tls::end_point`]. None without TLS.
    pub end_point: Option<Vec<u8>>,
    /// The rest of the start-up packet.
    pub parameters: &'a [(&'a str, &'a str)],
}

/// A logged-in session, between queries.
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
    /// Bounded in memory by 64 KiB per message, in time by the caller. Notices are dropped.
    ///
    /// # Errors
    /// [`fault`]'s kinds; [`Kind::PostgresRefused`] for a way to authenticate that is not known here.
    pub(crate) async fn log_in(stream: S, start_up: &StartUp<'_>) -> Result<Session<S>> {
        let act = While::Connecting(start_up.place);
        let mut session = Session { stream, inbox: Inbox::new(LOGIN_FRAME_BYTES_MAX), parameters: BTreeMap::new() };
        let mut packet = BytesMut::new();
        let user = ("user", start_up.user);
        frontend::startup_message(std::iter::once(user).chain(start_up.parameters.iter().copied()), &mut packet)
            .map_err(|_| Error::new(Kind::Config, format_args!("while {act}: a setting holds a NUL character")))?;
        session.send(act, &packet).await?;
        authenticate(&mut session, start_up).await?;
        loop {
            let (tag, body) = session.receive(act).await?;
            match tag {
                b'Z' => return Ok(session),
                // The key for cancelling: a relay ends its session instead.
                b'K' | b'N' => {}
                b'S' => session.note_parameter(act, &body)?,
                b'E' => return Err(reported(act, &body)),
                other => return Err(unexpected(act, other)),
            }
        }
    }

    /// What the server last said about a setting it reports.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// Runs one statement by the simple protocol and gives the rows of all its results.
    ///
    /// Bounded by 16 MiB of rows; in time by the caller. Not safe to cancel: the session is of no use afterwards.
    ///
    /// # Errors
    /// [`fault`]'s kinds. After an error the server reported, the session can be used again unless it was fatal.
    pub(crate) async fn query(&mut self, act: While<'_>, statement: &str) -> Result<Vec<Row>> {
        self.send_query(act, statement).await?;
        let mut rows = Vec::new();
        let mut bytes = 0_usize;
        let mut failure = None;
        loop {
            let (tag, body) = match self.receive(act).await {
                Ok(message) => message,
                // A fatal error is followed by the end of the stream; the error says more.
                Err(end) => return Err(failure.unwrap_or(end)),
            };
            match tag {
                b'Z' => return failure.map_or(Ok(rows), Err),
                b'D' => {
                    bytes = bytes.saturating_add(body.len());
                    if bytes > ANSWER_BYTES_MAX {
                        return Err(fault::protocol(act, "an answer is too large"));
                    }
                    rows.push(row(&body).ok_or_else(|| fault::protocol(act, "a row is cut short"))?);
                }
                b'T' | b'C' | b'I' | b'N' => {}
                b'S' => self.note_parameter(act, &body)?,
                b'E' => failure = failure.or_else(|| Some(reported(act, &body))),
                other => return Err(unexpected(act, other)),
            }
        }
    }

    /// Runs a statement that turns the session into a stream in both directions, and hands over the stream and what
    /// has already arrived of it.
    pub(crate) async fn copy_both(mut self, act: While<'_>, statement: &str) -> Result<(S, Inbox)> {
        self.send_query(act, statement).await?;
        loop {
            let (tag, body) = self.receive(act).await?;
            match tag {
                b'W' => return Ok((self.stream, self.inbox)),
                b'N' => {}
                b'S' => self.note_parameter(act, &body)?,
                b'E' => return Err(reported(act, &body)),
                other => return Err(unexpected(act, other)),
            }
        }
    }

    /// Changes the bound on one message.
    pub(crate) fn set_frame_bytes_max(&mut self, frame_bytes_max: usize) {
        self.inbox.set_frame_bytes_max(frame_bytes_max);
    }

    async fn send_query(&mut self, act: While<'_>, statement: &str) -> Result<()> {
        let mut message = BytesMut::new();
        frontend::query(statement, &mut message)
            .map_err(|_| Error::new(Kind::Bug, format_args!("while {act}: a statement holds a NUL character")))?;
        self.send(act, &message).await
    }

    async fn send(&mut self, act: While<'_>, message: &[u8]) -> Result<()> {
        self.stream.write_all(message).await.map_err(|error| fault::io(act, &error))?;
        self.stream.flush().await.map_err(|error| fault::io(act, &error))
    }

    /// The next message, copied: there are few of these.
    async fn receive(&mut self, act: While<'_>) -> Result<(u8, Vec<u8>)> {
        loop {
            if let Some(frame) = self.inbox.next().map_err(|error| fault::protocol(act, error))? {
                return Ok((frame.tag, self.inbox.body(&frame).to_vec()));
            }
            let filled = poll_fn(|cx| self.inbox.poll_fill(cx, &mut self.stream, false)).await;
            if filled.map_err(|error| fault::io(act, &error))? == 0 {
                return Err(fault::io(act, &io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    fn note_parameter(&mut self, act: While<'_>, body: &[u8]) -> Result<()> {
        let (name, value) = parameter_status(body).ok_or_else(|| fault::protocol(act, "a setting is cut short"))?;
        self.parameters.insert(name, value);
        Ok(())
    }
}

/// The error in an `ErrorResponse`.
pub(crate) fn reported(act: While<'_>, body: &[u8]) -> Error {
    let fields = ErrorFields::parse(body);
    let [routine, code, message] = [fields.routine, fields.code, fields.message].map(Option::unwrap_or_default);
    fault::reported(act, &routine, &code, &message)
}

/// A message that has no place here.
pub(crate) fn unexpected(act: While<'_>, tag: u8) -> Error {
    fault::protocol(act, format_args!("a message of type {:?} has no place here", char::from(tag)))
}

fn row(body: &[u8]) -> Option<Row> {
    let mut cursor = Cursor(body);
    let columns = cursor.u16()?;
    let mut row = Vec::new();
    for _ in 0..columns {
        row.push(match cursor.i32()? {
            -1 => None,
            length => Some(cursor.take(usize::try_from(length).ok()?)?.to_vec()),
        });
    }
    Some(row)
}

/// How far SCRAM has come. The server has to prove that it knows the password too before its OK counts.
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
        let (tag, body) = session.receive(act).await?;
        match tag {
            b'R' => {}
            b'E' => return Err(reported(act, &body)),
            // A notice, or the offer of another protocol version than asked for, which is not made use of.
            b'N' | b'v' => continue,
            other => return Err(unexpected(act, other)),
        }
        let (code, data) = parse_auth_request(&body).map_err(|_| fault::protocol(act, "a request is cut short"))?;
        let mut answer = BytesMut::new();
        match (code, &mut scram) {
            (code, Scram::NotBegun) if start_up.channel_binding == ChannelBinding::Require && code != auth::SASL => {
                return Err(unbound(act, "the server asks for no SCRAM"));
            }
            (auth::OK, Scram::NotBegun | Scram::Proved) => return Ok(()),
            (auth::CLEARTEXT_PASSWORD, Scram::NotBegun) => {
                password_message(act, password(act, start_up)?.expose().as_bytes(), &mut answer)?;
            }
            (auth::MD5_PASSWORD, Scram::NotBegun) => {
                let salt = data.try_into().map_err(|_| fault::protocol(act, "a salt does not have four bytes"))?;
                let hash = md5_hash(start_up.user.as_bytes(), password(act, start_up)?.expose().as_bytes(), salt);
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
                begun.update(data).map_err(|error| refused(act, format_args!("SCRAM failed: {error}")))?;
                frontend::sasl_response(begun.message(), &mut answer).map_err(|error| fault::protocol(act, error))?;
            }
            (auth::SASL_FINAL, Scram::Begun(begun)) => {
                begun.finish(data).map_err(|error| {
                    refused(act, format_args!("the server does not prove that it knows the password: {error}"))
                })?;
                scram = Scram::Proved;
            }
            (2, _) => return Err(unknown(act, "Kerberos")),
            (7 | 8, _) => return Err(unknown(act, "GSSAPI")),
            (9, _) => return Err(unknown(act, "SSPI")),
            (other, _) => {
                return Err(fault::protocol(act, format_args!("request {other} of authentication comes out of turn")));
            }
        }
        if !answer.is_empty() {
            session.send(act, &answer).await?;
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
    frontend::password_message(password, into)
        .map_err(|_| Error::new(Kind::Config, format_args!("while {act}: the password holds a NUL character")))
}

fn mechanisms(data: &[u8]) -> Vec<String> {
    let mut cursor = Cursor(data);
    std::iter::from_fn(|| cursor.text().filter(|name| !name.is_empty())).collect()
}

/// The way to do SCRAM, and what the server is told of binding: that we do, that we could if it could (so that nobody
/// in the middle can have hidden its offer), or that we cannot.
fn choose(act: While<'_>, start_up: &StartUp<'_>, offered: &[String]) -> Result<(&'static str, sasl::ChannelBinding)> {
    let offers = |mechanism: &str| offered.iter().any(|offered| offered == mechanism);
    let bound = start_up.end_point.clone().filter(|_| start_up.channel_binding != ChannelBinding::Disable);
    match (bound, start_up.channel_binding) {
        (Some(end_point), _) if offers(SCRAM_SHA_256_PLUS) => {
            Ok((SCRAM_SHA_256_PLUS, sasl::ChannelBinding::tls_server_end_point(end_point)))
        }
        (Some(_), ChannelBinding::Require) => Err(unbound(act, "the server does not offer SCRAM-SHA-256-PLUS")),
        (None, ChannelBinding::Require) => {
            Err(unbound(act, "the connection is not TLS, or its certificate's signature has no hash to bind to"))
        }
        _ if !offers(SCRAM_SHA_256) => Err(unknown(act, "SASL without SCRAM-SHA-256")),
        (Some(_), _) => Ok((SCRAM_SHA_256, sasl::ChannelBinding::unrequested())),
        (None, _) => Ok((SCRAM_SHA_256, sasl::ChannelBinding::unsupported())),
    }
}

fn unbound(act: While<'_>, why: &str) -> Error {
    refused(act, format_args!("channel_binding=require cannot be kept: {why}")).remedy(
        "connect to the server itself with sslmode=require or stricter, and let pg_hba.conf ask for scram-sha-256; or use \
         channel_binding=prefer together with sslmode=verify-full, which authenticates the server as well",
    )
}

fn unknown(act: While<'_>, what: &str) -> Error {
    refused(act, format_args!("the server wants {what}, which is not supported"))
        .remedy("let pg_hba.conf ask for scram-sha-256 or cert for this role and address")
}

fn refused(act: While<'_>, what: impl std::fmt::Display) -> Error {
    Error::new(Kind::PostgresRefused, format_args!("while {act}: {what}"))
}

#[cfg(test)]
pub(crate) mod tests;
