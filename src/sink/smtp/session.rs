//! One connection: how it begins, and how it takes a mail.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::answer::{Phase, Said, no_tls, not_offered, said, unusable};
use super::mail::Mail;
use super::wire::{NoReply, Reply, Wire};
use crate::config::{SmtpConfig, SmtpTls};
use crate::sink::lanes::{Answer, Away};
use crate::sink::login;
use walrelay_core::config::unit::human_bytes;
use walrelay_core::error::{Error, Kind, Result};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Servers answer a client slowly, and then no more, that was refused more often.
const REFUSALS_MAX: u32 = 8;
/// A connection is not used again after this time without a mail.
const IDLE: Duration = Duration::from_secs(30);

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin + std::fmt::Debug {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + std::fmt::Debug> Stream for T {}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum NotOpen {
    /// The server is there, and takes no more connections now.
    Busy(String),
    Away(Away),
}

impl From<NoReply> for NotOpen {
    fn from(none: NoReply) -> NotOpen {
        NotOpen::Away(Away::Unreachable(none.cause))
    }
}

impl From<Away> for NotOpen {
    fn from(away: Away) -> NotOpen {
        NotOpen::Away(away)
    }
}

impl From<NotOpen> for Away {
    fn from(not_open: NotOpen) -> Away {
        match not_open {
            NotOpen::Busy(cause) => Away::Unreachable(cause),
            NotOpen::Away(away) => away,
        }
    }
}

/// How a mail ended.
#[derive(Debug)]
pub(super) enum Sent {
    Answer(Answer),
    /// The connection ended before the mail did: the server does not have it.
    Not(String),
}

impl From<NoReply> for Sent {
    fn from(none: NoReply) -> Sent {
        match none.is_end {
            true => Sent::Not(none.cause),
            false => Sent::Answer(Answer::Away(Away::Unreachable(none.cause))),
        }
    }
}

/// What a server offers.
#[derive(Debug, Default)]
struct Offers {
    starttls: bool,
    eight_bit: bool,
    plain: bool,
    login: bool,
    /// The largest mail that it takes, where it says so.
    size_max: Option<usize>,
}

impl Offers {
    fn of(reply: &Reply) -> Offers {
        let mut offers = Offers::default();
        for line in reply.lines.iter().skip(1) {
            let line = line.to_ascii_uppercase().replace('=', " ");
            let mut words = line.split_whitespace();
            match words.next() {
                Some("STARTTLS") => offers.starttls = true,
                Some("8BITMIME") => offers.eight_bit = true,
                Some("SIZE") => {
                    let size = words.next().and_then(|size| size.parse().ok());
                    offers.size_max = size.filter(|size| *size > 0);
                }
                Some("AUTH") => {
                    for mechanism in words {
                        offers.plain |= mechanism == "PLAIN";
                        offers.login |= mechanism == "LOGIN";
                    }
                }
                _ => {}
            }
        }
        offers
    }
}

/// See the module's documentation. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Session {
    wire: Wire<Box<dyn Stream>>,
    offers: Offers,
    refusals: u32,
    /// Whether the last mail was refused: the server may still have a part of it.
    has_rest: bool,
    /// Whether the server still speaks SMTP here.
    is_alive: bool,
    used_at: Instant,
}

impl Session {
    /// Connects, and logs in.
    pub(super) async fn open(
        config: &SmtpConfig,
        tls: &Arc<ClientConfig>,
    ) -> Result<Session, NotOpen> {
        let stream = connect(&config.host, config.port()).await?;
        let name = helo_name(config, &stream);
        let stream: Box<dyn Stream> = match config.tls {
            SmtpTls::Implicit => encrypted(&config.host, stream, tls, config.timeout).await?,
            SmtpTls::Off => Box::new(stream),
            SmtpTls::Starttls => {
                let mut wire = Wire::new(stream, config.timeout);
                welcomed(wire.reply().await?)?;
                let offers = Offers::of(&welcomed(wire.command(&format!("EHLO {name}")).await?)?);
                if !offers.starttls {
                    let remedy = "set smtp.tls to implicit, or to off where nobody can listen";
                    return Err(not_offered("STARTTLS", remedy).into());
                }
                welcomed(wire.command("STARTTLS").await?)?;
                let stream = wire.into_inner().ok_or_else(|| {
                    let cause = "the server, or somebody between, sends text before TLS begins";
                    Away::Unreachable(cause.to_owned())
                })?;
                encrypted(&config.host, stream, tls, config.timeout).await?
            }
        };
        let mut wire = Wire::new(stream, config.timeout);
        if config.tls != SmtpTls::Starttls {
            welcomed(wire.reply().await?)?;
        }
        let offers = Offers::of(&welcomed(wire.command(&format!("EHLO {name}")).await?)?);
        if !config.user.is_empty() {
            log_in(config, &mut wire, &offers).await?;
        }
        Ok(Session {
            wire,
            offers,
            refusals: 0,
            has_rest: false,
            is_alive: true,
            used_at: Instant::now(),
        })
    }

    /// Whether the next mail may go here.
    pub(super) fn is_usable(&self) -> bool {
        self.is_alive && self.refusals < REFUSALS_MAX && self.used_at.elapsed() < IDLE
    }

    /// Whether the server still answers.
    pub(super) async fn answers(&mut self) -> bool {
        let reply = self.wire.command("RSET").await;
        self.is_alive = reply.is_ok_and(|reply| reply.is_positive());
        self.has_rest &= !self.is_alive;
        self.is_alive
    }

    pub(super) async fn quit(mut self) {
        if self.is_alive {
            self.wire.quit().await;
        }
    }

    /// Sends a mail once.
    pub(super) async fn send(&mut self, mail: &Mail, config: &SmtpConfig) -> Sent {
        let was_alive = std::mem::take(&mut self.is_alive);
        debug_assert!(was_alive, "a connection that ended takes no mail");
        let sent = self.transfer(mail, config).await;
        self.used_at = Instant::now();
        sent.unwrap_or_else(Sent::from)
    }

    /// `is_alive` is false until the server has answered something that leaves the connection as it
    /// was before.
    async fn transfer(&mut self, mail: &Mail, config: &SmtpConfig) -> Result<Sent, NoReply> {
        if let Err(error) = self.size(mail) {
            self.is_alive = true;
            return Ok(Sent::Answer(Answer::Unfit(error)));
        }
        if self.has_rest && !self.answers().await {
            return Ok(Sent::Not("the server closed the connection".to_owned()));
        }
        self.is_alive = false;
        for (phase, line) in self.commands(mail, config.recipient_wait) {
            let reply = self.wire.command(&line).await?;
            if let Some(sent) = self.judged(phase, &reply) {
                return Ok(sent);
            }
        }
        self.wire.text(&mail.text).await?;
        // From here on the server may have the mail.
        let unknown = |cause: String| Ok(Sent::Answer(Answer::Away(Away::Unreachable(cause))));
        let reply = match self.wire.end(config.final_timeout).await {
            Ok(reply) => reply,
            Err(none) => return unknown(none.cause),
        };
        match self.judged(Phase::End, &reply) {
            Some(Sent::Not(cause)) => unknown(cause),
            Some(sent) => Ok(sent),
            None => {
                self.is_alive = true;
                Ok(Sent::Answer(Answer::Acked))
            }
        }
    }

    /// The size of the mail beside the server's limit, where it tells one. Errors: the server has
    /// said that it would not take the mail.
    pub(super) fn size(&self, mail: &Mail) -> Result<Option<String>> {
        let size = mail.bytes;
        let size_max = self.offers.size_max;
        if let Some(max) = size_max.filter(|max| size > *max) {
            let cause = format!("the mail has {size} bytes, and the mail server takes {max}");
            let remedy = "raise the server's limit, such as message_size_limit of Postfix, or \
                          keep large values out of the outbox with a CHECK";
            return Err(Error::new(Kind::RecordTooLarge, cause).remedy(remedy));
        }
        if mail.is_8bit && !self.offers.eight_bit {
            let cause = "the mail has bytes beyond ASCII, and the mail server has no 8BITMIME";
            let remedy = "encode the parts of the mail as quoted-printable or base64";
            return Err(Error::new(Kind::Record, cause).remedy(remedy));
        }
        let limit = size_max.map(|max| human_bytes(max as u64));
        Ok(limit.map(|limit| format!("it has {}, of {limit}", human_bytes(size as u64))))
    }

    fn commands(&self, mail: &Mail, wait: Duration) -> Vec<(Phase, String)> {
        let size = match self.offers.size_max {
            Some(_) => format!(" SIZE={}", mail.bytes),
            None => String::new(),
        };
        let body = if mail.is_8bit { " BODY=8BITMIME" } else { "" };
        let is_constant = mail.is_sender_constant;
        let from = format!("MAIL FROM:<{}>{size}{body}", mail.sender);
        let mut commands = vec![(Phase::Mail { is_constant }, from)];
        let recipients = mail.recipients.iter();
        let recipients =
            recipients.map(|to| (Phase::Recipient { wait }, format!("RCPT TO:<{to}>")));
        commands.extend(recipients);
        commands.push((Phase::Data, "DATA".to_owned()));
        commands
    }

    /// How the mail ends by this reply; none where it goes on.
    fn judged(&mut self, phase: Phase, reply: &Reply) -> Option<Sent> {
        let cause = || format!("the mail server answers {}", reply.shown());
        let answer = match said(phase, reply) {
            Said::Yes => return None,
            Said::Closing => return Some(Sent::Not(cause())),
            Said::Nonsense => Answer::Away(Away::Unreachable(cause())),
            Said::Unusable(error) => Answer::Away(Away::Unusable(error)),
            Said::Refused { error, after } => {
                self.is_alive = reply.code != 421;
                self.has_rest = true;
                self.refusals += 1;
                Answer::Refused { error, after }
            }
        };
        Some(Sent::Answer(answer))
    }
}

async fn connect(host: &str, port: u16) -> Result<TcpStream, Away> {
    let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect((host, port)));
    let connected = match connecting.await {
        Ok(Ok(stream)) => stream.set_nodelay(true).map(|()| stream),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
    };
    connected.map_err(|error| Away::Unreachable(format!("no connection to {host}:{port}: {error}")))
}

async fn encrypted(
    host: &str,
    stream: TcpStream,
    tls: &Arc<ClientConfig>,
    limit: Duration,
) -> Result<Box<dyn Stream>, Away> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| {
        let cause = format!("{host} cannot be the name in a certificate");
        let error = Error::new(Kind::BusRefused, cause);
        Away::Unusable(error.remedy("set smtp.host to the name in the server's certificate"))
    })?;
    let shaking = TlsConnector::from(Arc::clone(tls)).connect(name, stream);
    match timeout(limit, shaking).await {
        Ok(shaken) => shaken
            .map(|stream| Box::new(stream) as Box<dyn Stream>)
            .map_err(|error| no_tls(&error)),
        Err(_) => Err(no_tls(&std::io::ErrorKind::TimedOut.into())),
    }
}

/// How this client names itself: a name, or the address that the server sees.
/// <https://www.rfc-editor.org/rfc/rfc5321#section-4.1.3>
fn helo_name(config: &SmtpConfig, stream: &TcpStream) -> String {
    if !config.helo_name.is_empty() {
        return config.helo_name.clone();
    }
    match stream
        .local_addr()
        .map(|address| address.ip().to_canonical())
    {
        Ok(std::net::IpAddr::V6(address)) => format!("[IPv6:{address}]"),
        Ok(std::net::IpAddr::V4(address)) => format!("[{address}]"),
        Err(_) => "localhost".to_owned(),
    }
}

/// A reply before the first mail. Errors: the server takes none.
fn welcomed(reply: Reply) -> Result<Reply, NotOpen> {
    match reply.code {
        200..=299 => Ok(reply),
        400..=499 => Err(NotOpen::Busy(format!(
            "the mail server answers {}",
            reply.shown()
        ))),
        500..=599 => Err(Away::Unusable(unusable(&reply)).into()),
        _ => Err(NoReply::new("the server's answer is none of SMTP").into()),
    }
}

async fn log_in<S: AsyncRead + AsyncWrite + Unpin>(
    config: &SmtpConfig,
    wire: &mut Wire<S>,
    offers: &Offers,
) -> Result<(), NotOpen> {
    let given = config.password.as_ref();
    let password = login::password(given, "smtp.password_file", &config.password_file)
        .await
        .map_err(Away::Unusable)?;
    let user = config.user.as_str();
    let encoded = |text: &str| BASE64_STANDARD.encode(text);
    let reply = if offers.plain {
        let both = encoded(&format!("\0{user}\0{}", password.expose()));
        wire.command(&format!("AUTH PLAIN {both}")).await?
    } else if offers.login {
        let mut reply = wire.command("AUTH LOGIN").await?;
        for line in [encoded(user), encoded(password.expose())] {
            if reply.code == 334 {
                reply = wire.command(&line).await?;
            }
        }
        reply
    } else {
        let remedy = "set smtp.tls, where the server offers more with TLS; remove smtp.user, \
                      where it asks for no password";
        return Err(not_offered("AUTH with PLAIN or LOGIN", remedy).into());
    };
    // Some servers repeat the command that they refuse.
    let lines = Vec::new();
    welcomed(Reply { lines, ..reply }).map(drop)
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn what_a_server_offers_is_read_in_any_case() {
        let lines = [
            "mail.example.org",
            "size 1000",
            "8bitmime",
            "AUTH=LOGIN plain",
            "StartTls",
        ];
        let lines = lines.map(str::to_owned).to_vec();
        let offers = Offers::of(&Reply { code: 250, lines });
        assert!(offers.starttls && offers.eight_bit && offers.plain && offers.login);
        assert_eq!(offers.size_max, Some(1000));
        for size in ["SIZE", "SIZE 0", "SIZE many"] {
            let lines = vec!["STARTTLS".to_owned(), size.to_owned()];
            let offers = Offers::of(&Reply { code: 250, lines });
            assert_eq!(offers.size_max, None, "{size}");
            assert!(!offers.starttls, "the first line is a name");
        }
    }

    #[test]
    fn fuzzed_offers() {
        let corpus = ["mail.example.org\nSIZE 1000\n8bitmime\nAUTH=LOGIN plain\nStartTls"];
        fuzz_text("offers of SMTP", 512 << 10, &corpus, |text| {
            let lines = text.lines().map(str::to_owned).collect();
            assert_ne!(Offers::of(&Reply { code: 250, lines }).size_max, Some(0));
        });
    }
}
