//! What a record is as a mail: sender, recipients, fields and body.
//!
//! The same record makes the same bytes at each attempt, in each process.

use std::collections::BTreeSet;

use jiff::fmt::rfc2822;
use jiff::{Timestamp, tz};
use lettre::Address;
use lettre::message::header::{
    self, ContentTransferEncoding, ContentType, HeaderName, HeaderValue, Headers,
};
use lettre::message::{Body, Mailbox, Mailboxes};
use sha2::{Digest as _, Sha256};

use crate::config::{Config, MailValue, SmtpConfig};
use walrelay_core::config::outbox::RouteConfig;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::event::Shown;
use walrelay_core::route::Record;

/// Fields that records may have beside `X-…`. They come from `[route.headers]` alone.
const FIELDS: [&str; 11] = [
    "from",
    "to",
    "cc",
    "bcc",
    "reply-to",
    "subject",
    "in-reply-to",
    "references",
    "list-unsubscribe",
    "list-unsubscribe-post",
    "content-type",
];
/// Those that a record has whose value is the whole mail.
const ENVELOPE: [&str; 4] = ["from", "to", "cc", "bcc"];
const RECIPIENTS: [&str; 3] = ["to", "cc", "bcc"];
const X_BYTES_MAX: usize = 62;
/// Servers take as many. <https://www.rfc-editor.org/rfc/rfc5321#section-4.5.3.1.8>
const RECIPIENTS_MAX: usize = 100;
/// <https://www.rfc-editor.org/rfc/rfc5322#section-2.1.1>
const LINE_BYTES_MAX: usize = 998;
/// walrelay's own headers, which stay here.
const OWN: &str = "walrelay-";
const TEXT: &str = "text/plain; charset=utf-8";
const ROUTE_HEADERS: &str = "correct the header in [route.headers], or the column that it is from";

/// A mail, ready to be sent.
#[derive(Debug)]
pub(super) struct Mail {
    pub(super) sender: Address,
    /// Whether each mail has this sender.
    pub(super) is_sender_constant: bool,
    pub(super) recipients: Vec<Address>,
    /// The size, as servers count it.
    pub(super) bytes: usize,
    /// The lines, with a dot more where one begins with a dot.
    pub(super) text: Vec<u8>,
    /// Whether there are bytes beyond ASCII.
    pub(super) is_8bit: bool,
}

/// Makes mails of records.
#[derive(Debug)]
pub(super) struct Mails {
    from: Option<Mailbox>,
    envelope_from: Option<Address>,
    value: MailValue,
    /// The names in `[route.headers]`, in lower case.
    named: BTreeSet<String>,
    id_headers: Vec<String>,
    position_headers: Vec<String>,
    /// The relay's own key: no two relays have the same.
    relay: String,
}

/// The fields of one mail.
#[derive(Debug, Default)]
struct Fields<'a> {
    id: &'a str,
    from: Option<Mailbox>,
    to: Option<Mailboxes>,
    cc: Option<Mailboxes>,
    bcc: Option<Mailboxes>,
    /// A valid one.
    content_type: Option<&'a str>,
    more: Headers,
}

impl Mails {
    pub(super) fn new(config: &Config) -> Result<Mails> {
        let SmtpConfig {
            from,
            envelope_from,
            value,
            ..
        } = &config.smtp;
        let routes = || config.outboxes.iter().map(|outbox| &outbox.route);
        let names = routes().flat_map(|route| &route.headers);
        let mails = Mails {
            from: constant(from, "smtp.from")?,
            envelope_from: constant(envelope_from, "smtp.envelope_from")?
                .map(|mailbox| mailbox.email),
            value: *value,
            named: names.map(|(name, _)| name.to_ascii_lowercase()).collect(),
            id_headers: routes()
                .filter_map(|route| route.id_header.clone())
                .collect(),
            position_headers: routes()
                .filter_map(|route| route.position_header.clone())
                .collect(),
            relay: config.state.key.clone(),
        };
        let names = |route: &RouteConfig, fields: &[&str]| {
            let is_one =
                |name: &String| fields.iter().any(|field| name.eq_ignore_ascii_case(field));
            route.headers.iter().any(|(name, _)| is_one(name))
        };
        let without = |fields: &[&str]| {
            let outbox = config.outboxes.iter().find(|it| !names(&it.route, fields));
            outbox.map(|outbox| &outbox.source)
        };
        if let Some(source) = without(&RECIPIENTS) {
            let cause = format!("no header gives the mails of {source} their recipients");
            return Err(Error::new(Kind::Config, cause)
                .remedy("set To, Cc or Bcc in [route.headers], such as To = \"{payload.to}\""));
        }
        if let Some(source) = without(&["from"]).filter(|_| from.is_empty()) {
            let cause = format!(
                "smtp.from is not set, and no header gives the mails of {source} an author"
            );
            return Err(
                Error::new(Kind::Config, cause).remedy("set smtp.from, or From in [route.headers]")
            );
        }
        if *value == MailValue::Body && routes().any(|route| route.timestamp.is_none()) {
            let cause = "route.timestamp is not set, and each mail has a date";
            return Err(Error::new(Kind::Config, cause)
                .remedy("set it to the column with the time of each row, such as created_at"));
        }
        Ok(mails)
    }

    /// Errors: the record can be no mail.
    pub(super) fn mail(&self, record: &Record<'_>) -> Result<Mail> {
        let fields = self.fields(record)?;
        let lists = [&fields.to, &fields.cc, &fields.bcc];
        let recipients = lists.into_iter().flatten().flat_map(Mailboxes::iter);
        let recipients: Vec<Address> = recipients.map(|mailbox| mailbox.email.clone()).collect();
        if !(1..=RECIPIENTS_MAX).contains(&recipients.len()) {
            let cause = format!("the mail has {} recipients", recipients.len());
            let remedy = "let To, Cc or Bcc of [route.headers] have one, and 100 at most";
            return Err(Error::new(Kind::Record, cause).remedy(remedy));
        }
        let author = self.from.as_ref().or(fields.from.as_ref());
        let author = author.ok_or_else(|| {
            Error::new(Kind::Record, "the mail has no author")
                .remedy("set smtp.from, or From in [route.headers]")
        })?;
        let sender = self.envelope_from.as_ref().unwrap_or(&author.email);
        let value = record.value.unwrap_or_default();
        let content = match self.value {
            MailValue::Body => fields.written(author, value)?,
            MailValue::Message => message(value)?,
        };
        let is_sender_constant = self.envelope_from.is_some() || self.from.is_some();
        let id = self.message_id(record.topic, fields.id, &content);
        let head = head(record, &format!("{id}@{}", author.email.domain()), &content)?;
        let lines = [head.as_bytes(), &content].concat();
        check_lines(&lines)?;
        Ok(Mail {
            sender: sender.clone(),
            is_sender_constant,
            recipients,
            bytes: lines.len(),
            is_8bit: !lines.is_ascii(),
            text: with_dots(&lines),
        })
    }

    fn fields<'a>(&self, record: &Record<'a>) -> Result<Fields<'a>> {
        let mut fields = Fields::default();
        let mut seen = BTreeSet::new();
        for (at, (name, value)) in record.headers.iter().enumerate() {
            let Some(value) = value else { continue };
            // The id is the first header.
            if at == 0 && is_one(name, &self.id_headers) {
                fields.id = std::str::from_utf8(value).unwrap_or_default();
                continue;
            }
            if is_one(name, &self.position_headers) || name.starts_with(OWN) {
                continue;
            }
            self.check_name(name)?;
            let lower = name.to_ascii_lowercase();
            let is_field = FIELDS.contains(&lower.as_str());
            if is_field && !self.named.contains(&lower) {
                let remedy = "set it in [route.headers]: members of route.headers_from can only \
                              be X-…";
                return Err(refused(name, "is none that a row may choose", remedy));
            }
            let text = line(name, value)?;
            if !seen.insert(lower.clone()) {
                return Err(refused(name, "is there twice", ROUTE_HEADERS));
            }
            fields.add(name, &lower, text)?;
        }
        Ok(fields)
    }

    /// `value` is none where it is not known. Errors: no mail can have this header.
    pub(super) fn check_header(&self, name: &str, value: Option<&[u8]>) -> Result<()> {
        if is_one(name, &self.id_headers) || is_one(name, &self.position_headers) {
            return Ok(());
        }
        self.check_name(name)?;
        let Some(value) = value else { return Ok(()) };
        Fields::default().add(name, &name.to_ascii_lowercase(), line(name, value)?)
    }

    /// Errors: no mail can have a field of this name.
    fn check_name(&self, name: &str) -> Result<()> {
        let lower = name.to_ascii_lowercase();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let rest = lower.strip_prefix("x-");
        let is_x = rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(is_plain));
        let is_whole = self.value == MailValue::Message;
        if is_whole && !ENVELOPE.contains(&lower.as_str()) {
            let remedy = "put it into the value, which is the whole mail (smtp.value)";
            return Err(refused(name, "has no place beside a whole mail", remedy));
        }
        if lower == "from" && self.from.is_some() {
            let remedy = "remove smtp.from, or From from [route.headers]";
            return Err(refused(name, "is set, and smtp.from, too", remedy));
        }
        if FIELDS.contains(&lower.as_str()) || (is_x && name.len() <= X_BYTES_MAX) {
            return Ok(());
        }
        let remedy = "name it X-… with ASCII letters, digits and hyphens, or leave it out; \
                      docs/reference/smtp.md lists the fields";
        Err(refused(name, "is no field of a mail", remedy))
    }

    /// What names this mail: the event's id, where it may be there, and a hash of the whole. So an
    /// event with the same id in another outbox has another one, and so has a corrected mail.
    fn message_id(&self, topic: &str, id: &str, content: &[u8]) -> String {
        let mut hash = Sha256::new();
        for part in [
            self.relay.as_bytes(),
            topic.as_bytes(),
            id.as_bytes(),
            content,
        ] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let hash: String = hash
            .finalize()
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if (1..=36).contains(&id.len()) && id.bytes().all(is_plain) {
            format!("{id}.{}", hash.split_at(16).0)
        } else {
            hash
        }
    }
}

impl<'a> Fields<'a> {
    fn add(&mut self, name: &str, lower: &str, text: &'a str) -> Result<()> {
        match lower {
            "from" => self.from = Some(mailbox(text).ok_or_else(|| no_address(name))?),
            "to" => self.to = Some(mailboxes(text).ok_or_else(|| no_address(name))?),
            "cc" => self.cc = Some(mailboxes(text).ok_or_else(|| no_address(name))?),
            "bcc" => self.bcc = Some(mailboxes(text).ok_or_else(|| no_address(name))?),
            "reply-to" => {
                let list = mailboxes(text).ok_or_else(|| no_address(name))?;
                self.more.set(header::ReplyTo::from(list));
            }
            "content-type" => {
                let is_single = !begins(text, "multipart/") && !begins(text, "message/");
                if !is_single || ContentType::parse(text).is_err() {
                    let remedy = "write one such as text/html; charset=utf-8; for several parts \
                                  let the value be the whole mail (smtp.value)";
                    return Err(refused(name, "is no type of one body", remedy));
                }
                self.content_type = Some(text);
            }
            _ => self.more.insert_raw(raw(name, text)?),
        }
        Ok(())
    }

    /// Fields and body.
    fn written(&self, author: &Mailbox, value: &[u8]) -> Result<Vec<u8>> {
        let mut headers = Headers::new();
        headers.set(header::From::from(Mailboxes::from(author.clone())));
        if let Some(to) = &self.to {
            headers.set(header::To::from(to.clone()));
        }
        if let Some(cc) = &self.cc {
            headers.set(header::Cc::from(cc.clone()));
        }
        let more = self.more.to_string();
        let mut rest = Headers::new();
        rest.insert_raw(raw("Auto-Submitted", "auto-generated")?);
        rest.set(header::MIME_VERSION_1_0);
        let content_type = self.content_type.unwrap_or(TEXT);
        rest.insert_raw(raw("Content-Type", content_type)?);
        let body = body(value, begins(content_type, "text/"));
        rest.set(body.encoding());
        let head = format!("{headers}{more}{rest}\r\n");
        let mut written = [head.as_bytes(), &body.into_vec()].concat();
        if !written.ends_with(b"\r\n") {
            written.extend_from_slice(b"\r\n");
        }
        Ok(written)
    }
}

fn is_one(name: &str, of: &[String]) -> bool {
    of.iter().any(|one| one == name)
}

/// The text of a field.
fn line<'a>(name: &str, value: &'a [u8]) -> Result<&'a str> {
    let text = std::str::from_utf8(value).ok();
    let text = text.filter(|text| !text.contains(['\r', '\n', '\0']));
    text.ok_or_else(|| refused(name, "has a line break or is no text", ROUTE_HEADERS))
}

/// What names and dates the mail, where `content` does not say it.
fn head(record: &Record<'_>, id: &str, content: &[u8]) -> Result<String> {
    let has = |name| names_of(content).any(|field| field.eq_ignore_ascii_case(name));
    let mut head = String::new();
    if !has("message-id") {
        head += &format!("Message-ID: <{id}>\r\n");
    }
    if !has("date") {
        let date = record.timestamp_ms.and_then(date).ok_or_else(|| {
            Error::new(Kind::Record, "the row has no time for the date of the mail")
                .remedy("let route.timestamp name a column that always has a time")
        })?;
        head += &format!("Date: {date}\r\n");
    }
    Ok(head)
}

/// A body in lines of ASCII: text with its line ends as mails have them, all else byte for byte.
fn body(value: &[u8], is_text: bool) -> Body {
    let text = std::str::from_utf8(value).ok();
    match text.filter(|text| is_text && !text.contains('\0')) {
        Some(text) => Body::new(with_line_ends(text)),
        None => Body::new_with_encoding(value.to_vec(), ContentTransferEncoding::Base64)
            .unwrap_or_else(Body::new),
    }
}

/// A whole mail, with its line ends as mails have them. Errors: it is none.
fn message(value: &[u8]) -> Result<Vec<u8>> {
    let wrong = |what: &str| {
        let cause = format!("the value is no mail: {what}");
        Error::new(Kind::Record, cause).remedy(
            "let format.value give a whole mail as RFC 5322 has it, or set smtp.value to body",
        )
    };
    let text = with_line_ends_of(value);
    let text = match text.ends_with(b"\r\n") {
        true => text,
        false => [&text, b"\r\n".as_slice()].concat(),
    };
    let head = head_of(&text);
    if head.is_empty() || !head.is_ascii() {
        return Err(wrong("it has no fields, or a field beyond ASCII"));
    }
    let mut lines = head.split_inclusive(|byte| *byte == b'\n');
    let is_folded = |line: &[u8]| line.starts_with(b" ") || line.starts_with(b"\t");
    if is_folded(head) || !lines.all(|line| is_folded(line) || name_of(line).is_some()) {
        return Err(wrong("a line above the first empty one is no field"));
    }
    if !names_of(&text).any(|name| name.eq_ignore_ascii_case("from")) {
        return Err(wrong("it has no field From"));
    }
    if names_of(&text).any(|name| name.eq_ignore_ascii_case("bcc")) {
        return Err(wrong("a field Bcc would show; put it into [route.headers]"));
    }
    Ok(text)
}

/// The lines above the first empty one.
fn head_of(text: &[u8]) -> &[u8] {
    let end = text.windows(4).position(|four| four == b"\r\n\r\n");
    match end {
        _ if text.starts_with(b"\r\n") => &[],
        Some(at) => text.get(..at + 2).unwrap_or_default(),
        None => text,
    }
}

/// The names of the fields of a mail.
fn names_of(text: &[u8]) -> impl Iterator<Item = &str> {
    let lines = head_of(text).split(|byte| *byte == b'\n');
    lines.filter_map(name_of)
}

fn name_of(line: &[u8]) -> Option<&str> {
    let end = line.iter().position(|byte| *byte == b':')?;
    let name = std::str::from_utf8(line.get(..end)?).ok()?;
    (!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic())).then_some(name)
}

/// CR, LF and CRLF become CRLF: a server that takes another one for the end of a line would read
/// the rest as commands.
fn with_line_ends_of(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + text.len() / 32);
    let mut bytes = text.iter().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\r' => {
                bytes.next_if(|next| **next == b'\n');
                out.extend_from_slice(b"\r\n");
            }
            b'\n' => out.extend_from_slice(b"\r\n"),
            other => out.push(*other),
        }
    }
    out
}

fn with_line_ends(text: &str) -> String {
    text.replace("\r\n", "\n")
        .replace('\r', "\n")
        .replace('\n', "\r\n")
}

/// A dot before each line that begins with one: a dot alone is the end of a mail.
fn with_dots(lines: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(lines.len() + 16);
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(b".") {
            out.push(b'.');
        }
        out.extend_from_slice(line);
    }
    out
}

/// Errors: a server could read something else than these lines.
fn check_lines(lines: &[u8]) -> Result<()> {
    let fits = lines.split_inclusive(|byte| *byte == b'\n').all(|line| {
        let line = line.strip_suffix(b"\r\n");
        line.is_some_and(|line| {
            line.len() <= LINE_BYTES_MAX && !line.iter().any(|byte| b"\r\n\0".contains(byte))
        })
    });
    if fits {
        return Ok(());
    }
    let cause = "the mail has a line of more than 998 bytes, or with NUL";
    let remedy = "shorten the header, such as Subject; fold lines of a whole mail";
    Err(Error::new(Kind::Record, cause).remedy(remedy))
}

/// Whether a type of a body begins so.
fn begins(content_type: &str, with: &str) -> bool {
    let begin = content_type.get(..with.len());
    begin.is_some_and(|begin| begin.eq_ignore_ascii_case(with))
}

fn mailbox(text: &str) -> Option<Mailbox> {
    let mailbox: Mailbox = text.parse().ok()?;
    is_plain(&mailbox).then_some(mailbox)
}

fn mailboxes(text: &str) -> Option<Mailboxes> {
    let list: Mailboxes = text.parse().ok()?;
    list.iter().all(is_plain).then_some(list)
}

/// Whether each server takes such an address: it is ASCII, without controls.
fn is_plain(mailbox: &Mailbox) -> bool {
    let address: &str = mailbox.email.as_ref();
    address.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

fn constant(text: &str, key: &str) -> Result<Option<Mailbox>> {
    if text.is_empty() {
        return Ok(None);
    }
    mailbox(text).map(Some).ok_or_else(|| {
        Error::new(Kind::Config, format!("{key} is no address"))
            .remedy("write it as NAME@DOMAIN, or as Some Name <NAME@DOMAIN>")
    })
}

fn raw(name: &str, text: &str) -> Result<HeaderValue> {
    let name = HeaderName::new_from_ascii(name.to_owned())
        .map_err(|_| refused(name, "is no field of a mail", ROUTE_HEADERS))?;
    Ok(HeaderValue::new(name, text.to_owned()))
}

/// As RFC 5322 writes it, in UTC; none of a time that it cannot write.
fn date(timestamp_ms: i64) -> Option<String> {
    let timestamp = Timestamp::from_millisecond(timestamp_ms).ok()?;
    rfc2822::to_string(&timestamp.to_zoned(tz::TimeZone::UTC)).ok()
}

fn no_address(name: &str) -> Error {
    let remedy = "let the column have NAME@DOMAIN in ASCII, or several with commas between";
    refused(name, "has something that is no address", remedy)
}

fn refused(name: &str, why: &str, remedy: &str) -> Error {
    let name = Shown::of(name.as_bytes());
    Error::new(Kind::Record, format!("header {name} {why}")).remedy(remedy)
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz;

    use super::*;
    use crate::config::Settings;

    fn mails(lines: &str) -> Result<Mails> {
        let text = format!(
            "database.url = 'postgres://u@h/d'\nslot.name = 'mails'\nsink.kind = 'smtp'\n\
             smtp.host = 'localhost'\n{lines}"
        );
        Mails::new(&Settings::of(&text)?.config(false)?)
    }

    const TIMED: &str = "route.timestamp = 'at'\nroute.headers.To = '{to}'\n";

    #[test]
    fn what_no_row_could_be_a_mail_with_is_refused_at_the_start() {
        for (lines, cause) in [
            (
                "route.headers.To = 'a@b.c'\nsmtp.from = 'a@b.c'",
                "route.timestamp is not set",
            ),
            ("route.timestamp = 'at'\nsmtp.from = 'a@b.c'", "recipients"),
            (
                "route.timestamp = 'at'\nroute.headers.bcc = '{to}'",
                "author",
            ),
            (
                "route.timestamp = 'at'\nsmtp.from = 'nobody'",
                "smtp.from is no address",
            ),
            (
                "route.timestamp = 'at'\nsmtp.envelope_from = 'a b'",
                "is no address",
            ),
        ] {
            let error = mails(lines).unwrap_err();
            assert_eq!(error.kind(), Kind::Config, "{lines}");
            assert!(error.to_string().contains(cause), "{lines}: {error}");
        }
        let whole = "smtp.value = 'message'\nsmtp.from = 'a@b.c'\nroute.headers.To = '{to}'";
        assert!(mails(whole).is_ok());
    }

    fn record<'a>(headers: &'a [(&'a str, Option<&'a [u8]>)], value: &'a [u8]) -> Record<'a> {
        Record {
            topic: "mail",
            key: None,
            value: Some(value),
            headers,
            partition: None,
            timestamp_ms: Some(0),
        }
    }

    fn id_of(mail: &Mail) -> String {
        let text = String::from_utf8(mail.text.clone()).unwrap();
        let line = text.lines().next().unwrap().to_owned();
        line.strip_prefix("Message-ID: ").unwrap().to_owned()
    }

    #[test]
    fn an_id_names_one_mail_and_stays_the_same() {
        let mails = mails(&format!("{TIMED}smtp.from = 'shop@example.org'")).unwrap();
        let of = |id: &str, position: &str, value: &[u8]| {
            let headers = [
                ("id", Some(id.as_bytes())),
                ("walrelay-position", Some(position.as_bytes())),
                ("To", Some(&b"ann@example.org"[..])),
            ];
            id_of(&mails.mail(&record(&headers, value)).unwrap())
        };
        let first = of("17", "a", b"text");
        assert!(
            first.starts_with("<17.") && first.ends_with("@example.org>"),
            "{first}"
        );
        assert_eq!(
            of("17", "b", b"text"),
            first,
            "the place is none of the mail"
        );
        assert_ne!(of("17", "a", b"other"), first);
        assert_ne!(of("18", "a", b"text"), first);
        for id in ["a@b", "", "a b", "<>", "\u{fc}", &"x".repeat(300)] {
            let hashed = of(id, "a", b"text");
            let left = hashed.trim_matches(['<', '>']).split('@').next().unwrap();
            assert!(
                left.len() == 32 && left.bytes().all(|byte| byte.is_ascii_hexdigit()),
                "{id}"
            );
        }
    }

    #[test]
    fn times_that_no_mail_can_have_refuse_the_record() {
        let mails = mails(&format!("{TIMED}smtp.from = 'shop@example.org'")).unwrap();
        let headers = [("To", Some(&b"ann@example.org"[..]))];
        for (timestamp_ms, is_taken) in [
            (Some(-1_000_000), true),
            (Some(253_402_300_799_000 - 86_400_000 * 2), true),
            (None, false),
            (Some(i64::MIN), false),
            (Some(i64::MAX), false),
            (Some(-377_705_116_800_000), false),
        ] {
            let record = Record {
                timestamp_ms,
                ..record(&headers, b"text")
            };
            assert_eq!(mails.mail(&record).is_ok(), is_taken, "{timestamp_ms:?}");
        }
    }

    #[test]
    fn line_ends_and_dots_are_those_of_smtp() {
        assert_eq!(
            with_line_ends_of(b"a\rb\nc\r\nd\r\r\n\n"),
            b"a\r\nb\r\nc\r\nd\r\n\r\n\r\n"
        );
        assert_eq!(with_line_ends("a\rb\nc\r\n"), "a\r\nb\r\nc\r\n");
        assert_eq!(with_dots(b".\r\na.\r\n..b\r\n"), b"..\r\na.\r\n...b\r\n");
        for wrong in [
            "a",
            "a\n",
            "a\rb\r\n",
            "a\0\r\n",
            &format!("{}\r\n", "x".repeat(999)),
        ] {
            assert!(check_lines(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
        assert!(check_lines(format!("{}\r\n", "x".repeat(998)).as_bytes()).is_ok());
    }

    /// No record comes to a mail that a server could take for two, or for a command.
    #[test]
    fn fuzzed_mails() {
        let body = mails(&format!("{TIMED}smtp.from = 'shop@example.org'")).unwrap();
        let whole = "smtp.value = 'message'\nsmtp.from = 'a@b.c'\nroute.headers.To = '{to}'";
        let whole = mails(whole).unwrap();
        let corpus = [
            "a@b.example, Some Name <c@d.example>\nHello\r\n.\r\nbody\n",
            "a@b.example\nFrom: a@b.c\r\nSubject: x\n y\r\n\r\n..body\r\n.\r\nRCPT",
            "\"a b\"@[127.0.0.1]\ntext/html; charset=utf-8",
        ];
        fuzz("mails", 2 << 20, &corpus, |bytes| {
            let mut parts = bytes.splitn(2, |byte| *byte == b'\n');
            let first = parts.next();
            let value = parts.next().unwrap_or_default();
            let headers = [("id", Some(&b"7"[..])), ("To", first)];
            let more = [
                ("To", Some(&b"a@b.example"[..])),
                ("Content-Type", first),
                ("X-A", first),
            ];
            for (mails, headers) in [(&body, &headers[..]), (&whole, &headers), (&body, &more)] {
                let Ok(mail) = mails.mail(&record(headers, value)) else {
                    continue;
                };
                assert!(mail.text.ends_with(b"\r\n") && !mail.text.contains(&0));
                for line in mail.text.split_inclusive(|byte| *byte == b'\n') {
                    let line = line.strip_suffix(b"\r\n").unwrap();
                    assert!(line != b"." && !line.contains(&b'\r'));
                }
                for recipient in &mail.recipients {
                    assert!(!recipient.to_string().contains(['\r', '\n', '\0']));
                }
            }
        });
    }
}
