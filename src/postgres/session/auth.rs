//! Authentication: password in clear or as MD5, SCRAM-SHA-256 with or without the TLS channel, or none asked for.
//!
//! <https://www.postgresql.org/docs/current/sasl-authentication.html>

use bytes::BytesMut;
use pgwire_replication::protocol::messages::{auth, parse_auth_request};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Session, StartUp, reported, unexpected};
use crate::conninfo::ChannelBinding as Wanted;
use crate::error::{Error, Kind, Result};
use crate::postgres::fault::{self, While};
use crate::postgres::wire::Cursor;
use crate::secret::Secret;

/// How far SCRAM has come. The server has to prove that it knows the password too before its OK counts.
enum Scram {
    NotBegun,
    Begun(Box<ScramSha256>),
    Proved,
}

pub(super) async fn authenticate<S>(session: &mut Session<S>, start_up: &StartUp<'_>) -> Result<()>
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
            (code, Scram::NotBegun) if start_up.channel_binding == Wanted::Require && code != auth::SASL => {
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
fn choose(act: While<'_>, start_up: &StartUp<'_>, offered: &[String]) -> Result<(&'static str, ChannelBinding)> {
    let offers = |mechanism: &str| offered.iter().any(|offered| offered == mechanism);
    let bound = start_up.end_point.clone().filter(|_| start_up.channel_binding != Wanted::Disable);
    match (bound, start_up.channel_binding) {
        (Some(end_point), _) if offers(SCRAM_SHA_256_PLUS) => {
            Ok((SCRAM_SHA_256_PLUS, ChannelBinding::tls_server_end_point(end_point)))
        }
        (Some(_), Wanted::Require) => Err(unbound(act, "the server does not offer SCRAM-SHA-256-PLUS")),
        (None, Wanted::Require) => {
            Err(unbound(act, "the connection is not TLS, or its certificate's signature has no hash to bind to"))
        }
        _ if !offers(SCRAM_SHA_256) => Err(unknown(act, "SASL without SCRAM-SHA-256")),
        (Some(_), _) => Ok((SCRAM_SHA_256, ChannelBinding::unrequested())),
        (None, _) => Ok((SCRAM_SHA_256, ChannelBinding::unsupported())),
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
