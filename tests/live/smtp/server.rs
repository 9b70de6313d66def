//! P1, P3: a mail server that answers as a test tells it to, and keeps what it has accepted.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::live::otel::server_config;
use crate::support::certificates::Identity;

/// A mail, as far as it came.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mail {
    pub(super) sender: String,
    pub(super) recipients: Vec<String>,
    /// Lines with CRLF, without the dots of SMTP.
    pub(super) text: String,
}

impl Mail {
    /// The value of a field, with its folds undone; empty without such a field.
    pub(super) fn field(&self, name: &str) -> &str {
        let head = self.text.split("\r\n\r\n").next().unwrap_or_default();
        let mut lines = head.split("\r\n");
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.unwrap_or_default()
    }

    pub(super) fn id(&self) -> &str {
        self.field("Message-ID")
    }
}

/// What a client has said.
pub(super) struct Step<'a> {
    /// `GREETING`, the command, or `END` after a whole mail.
    pub(super) verb: &'a str,
    pub(super) line: &'a str,
    pub(super) mail: &'a Mail,
    /// The connections that are open.
    pub(super) open: usize,
}

#[derive(Debug, Clone)]
pub(super) enum Reply {
    Say(String),
    Close,
    /// Keeps the mail, and closes the connection without an answer.
    KeepAndClose,
    /// Says nothing more.
    Hang,
}

impl Reply {
    pub(super) fn say(text: &str) -> Option<Reply> {
        Some(Reply::Say(text.to_owned()))
    }
}

type Script = dyn FnMut(&Step<'_>) -> Option<Reply> + Send;

struct State {
    script: Box<Script>,
    /// What the server took.
    kept: Vec<Mail>,
    /// Whole mails, whatever became of them.
    asked: Vec<Mail>,
    commands: Vec<String>,
    open: usize,
    /// Keys with a mail under way.
    busy: BTreeSet<String>,
    overlaps: u32,
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

#[derive(Clone)]
pub(super) struct Server {
    state: Arc<Mutex<State>>,
    pub(super) port: u16,
    tls: Option<Arc<ServerConfig>>,
}

impl Server {
    /// In the clear. Where the script says nothing, the answer is that of a server that takes all.
    pub(super) fn listen(
        script: impl FnMut(&Step<'_>) -> Option<Reply> + Send + 'static,
    ) -> Server {
        Server::accept(None, false, script)
    }

    /// With TLS: from the first byte, or by STARTTLS.
    pub(super) fn listen_as(
        identity: &Identity,
        is_implicit: bool,
        script: impl FnMut(&Step<'_>) -> Option<Reply> + Send + 'static,
    ) -> Server {
        Server::accept(Some(server_config(identity)), is_implicit, script)
    }

    fn accept(
        tls: Option<Arc<ServerConfig>>,
        is_implicit: bool,
        script: impl FnMut(&Step<'_>) -> Option<Reply> + Send + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let state = State {
            script: Box::new(script),
            kept: Vec::new(),
            asked: Vec::new(),
            commands: Vec::new(),
            open: 0,
            busy: BTreeSet::new(),
            overlaps: 0,
        };
        let server = Server {
            state: Arc::new(Mutex::new(state)),
            port: listener.local_addr().expect("an address").port(),
            tls,
        };
        let shared = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = shared.clone();
                std::thread::spawn(move || {
                    stream.set_nodelay(true).expect("an option");
                    server.with(|state| state.open += 1);
                    let stream: Box<dyn Stream> = Box::new(stream);
                    let stream = if is_implicit {
                        server.encrypt(stream)
                    } else {
                        stream
                    };
                    server.serve(stream, true);
                    server.with(|state| state.open -= 1);
                });
            }
        });
        server
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().expect("the state"))
    }

    pub(super) fn script(&self, script: impl FnMut(&Step<'_>) -> Option<Reply> + Send + 'static) {
        self.with(|state| state.script = Box::new(script));
    }

    pub(super) fn kept(&self) -> Vec<Mail> {
        self.with(|state| state.kept.clone())
    }

    pub(super) fn kept_count(&self) -> usize {
        self.with(|state| state.kept.len())
    }

    pub(super) fn asked(&self) -> Vec<Mail> {
        self.with(|state| state.asked.clone())
    }

    pub(super) fn commands(&self) -> Vec<String> {
        self.with(|state| state.commands.clone())
    }

    /// Mails of one key that were under way at one time.
    pub(super) fn overlaps(&self) -> u32 {
        self.with(|state| state.overlaps)
    }

    fn encrypt(&self, stream: Box<dyn Stream>) -> Box<dyn Stream> {
        let config = Arc::clone(self.tls.as_ref().expect("an identity"));
        let connection = ServerConnection::new(config).expect("a connection");
        Box::new(StreamOwned::new(connection, stream))
    }

    fn serve(&self, stream: Box<dyn Stream>, is_new: bool) {
        let mut reader = BufReader::new(stream);
        let mut mail = Mail::default();
        let greeting = is_new.then(|| self.answer("GREETING", "", &mail));
        if let Some(reply) = greeting
            && !said(&mut reader, reply, "220 mail.test ESMTP")
        {
            return;
        }
        while let Some(line) = line(&mut reader) {
            let verb = line
                .split([' ', ':'])
                .next()
                .unwrap_or_default()
                .to_ascii_uppercase();
            let reply = self.answer(&verb, &line, &mail);
            let is_yes = !matches!(&reply, Some(Reply::Say(text)) if !text.starts_with(['2', '3']));
            match verb.as_str() {
                "RSET" => mail = Mail::default(),
                "MAIL" => mail.sender = address(&line),
                "RCPT" if is_yes => mail.recipients.push(address(&line)),
                _ => {}
            }
            if !said(&mut reader, reply.clone(), default(&verb)) || verb == "QUIT" {
                return;
            }
            if verb == "STARTTLS" && reply.is_none() {
                return self.serve(self.encrypt(reader.into_inner()), false);
            }
            if verb == "DATA" && reply.is_none() {
                let Some(text) = text(&mut reader) else {
                    return;
                };
                mail.text = text;
                let reply = self.ended(&mail);
                if !said(&mut reader, reply, "250 queued") {
                    return;
                }
                mail = Mail::default();
            }
        }
    }

    fn answer(&self, verb: &str, line: &str, mail: &Mail) -> Option<Reply> {
        self.with(|state| {
            state.commands.push(line.to_owned());
            let open = state.open;
            (state.script)(&Step {
                verb,
                line,
                mail,
                open,
            })
        })
    }

    fn ended(&self, mail: &Mail) -> Option<Reply> {
        let key = mail.field("X-Aggregate").to_owned();
        self.with(|state| {
            state.overlaps += u32::from(!key.is_empty() && !state.busy.insert(key.clone()));
            state.asked.push(mail.clone());
        });
        // Mails of other keys are under way meanwhile.
        std::thread::yield_now();
        let reply = self.answer("END", "", mail);
        self.with(|state| {
            state.busy.remove(&key);
            let is_kept = match &reply {
                None | Some(Reply::KeepAndClose) => true,
                Some(Reply::Say(text)) => text.starts_with('2'),
                Some(Reply::Close | Reply::Hang) => false,
            };
            state.kept.extend(is_kept.then(|| mail.clone()));
        });
        reply
    }
}

/// Answers; whether the connection goes on.
fn said(reader: &mut BufReader<Box<dyn Stream>>, reply: Option<Reply>, default: &str) -> bool {
    let text = match reply {
        None => default.to_owned(),
        Some(Reply::Say(text)) => text,
        Some(Reply::Hang) => {
            while reader.read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
            return false;
        }
        Some(Reply::Close | Reply::KeepAndClose) => return false,
    };
    let stream = reader.get_mut();
    let written = stream.write_all(format!("{text}\r\n").as_bytes());
    written.and_then(|()| stream.flush()).is_ok()
}

fn default(verb: &str) -> &'static str {
    match verb {
        "EHLO" => {
            "250-mail.test\r\n250-SIZE 1000000\r\n250-STARTTLS\r\n250-AUTH PLAIN LOGIN\r\n250 \
             8BITMIME"
        }
        "STARTTLS" => "220 go",
        "AUTH" => "235 welcome",
        "DATA" => "354 go",
        "QUIT" => "221 bye",
        _ => "250 OK",
    }
}

fn line(reader: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    (reader.read_line(&mut line).ok()? > 0 && line.ends_with("\r\n")).then(|| {
        line.truncate(line.len() - 2);
        line
    })
}

/// A mail up to its end, as a server reads it that takes each LF for the end of a line.
fn text(reader: &mut impl BufRead) -> Option<String> {
    let mut text = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end_matches(['\r', '\n']) {
            "." => return Some(text),
            _ => text += line.strip_prefix('.').unwrap_or(&line),
        }
    }
}

fn address(line: &str) -> String {
    let inner = line
        .split_once('<')
        .and_then(|(_, rest)| rest.split_once('>'));
    inner
        .map(|(address, _)| address)
        .unwrap_or_default()
        .to_owned()
}
