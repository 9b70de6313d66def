//! A real NATS server with JetStream, and a client of the protocol's text that reads streams.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::{directory, free_port, logs_to};
use crate::support::guardian::run_directory;
use crate::support::process::Process;
use crate::support::topic::Record;
use crate::support::wait;

const START_DEADLINE: Duration = Duration::from_secs(90);
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// A server with its files. The process can stop and start again.
pub(crate) struct Nats {
    pub(crate) name: String,
    directory: PathBuf,
    pub(crate) address: String,
    /// What the tests' own client logs in with.
    login: Value,
    process: Option<Process>,
}

/// A message of a stream.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) subject: String,
    pub(crate) sequence: i64,
    /// Where an ack is expected.
    pub(crate) reply: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) payload: Vec<u8>,
}

impl Stored {
    /// A header's value; empty without such a header.
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(found, _)| found == name);
        found.map_or("", |(_, value)| value)
    }
}

impl Nats {
    /// A server of the test's own; none on a machine where `scripts/prerequisites` found no Go.
    #[track_caller]
    pub(crate) fn start() -> Option<Nats> {
        Nats::configured("", &json!({}))
    }

    /// The same with these lines in its configuration, which let the tests in with `login`.
    #[track_caller]
    pub(crate) fn configured(lines: &str, login: &Value) -> Option<Nats> {
        let mut nats = Nats::new(lines, login)?;
        nats.run();
        Some(nats)
    }

    /// Three servers that keep copies of one another's streams.
    #[track_caller]
    pub(crate) fn cluster() -> Option<Vec<Nats>> {
        let ports = [(); 3].map(|()| free_port());
        let routes = ports
            .map(|port| format!("nats://127.0.0.1:{port}"))
            .join(", ");
        let of = |port: &u16| {
            let lines = format!(
                "cluster {{ name: test, listen: \"127.0.0.1:{port}\", routes: [{routes}] }}"
            );
            Nats::new(&lines, &json!({}))
        };
        let mut servers = ports.iter().map(of).collect::<Option<Vec<_>>>()?;
        servers.iter_mut().for_each(Nats::launch);
        servers.iter_mut().for_each(Nats::wait);
        Some(servers)
    }

    fn new(lines: &str, login: &Value) -> Option<Nats> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !directory().join("nats/nats-server").exists() {
            eprintln!(
                "skipped: there is no nats-server; install Go, and run scripts/prerequisites"
            );
            return None;
        }
        let name = format!("nats-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = run_directory().join(&name);
        std::fs::create_dir_all(&directory).expect("a directory");
        let address = format!("127.0.0.1:{}", free_port());
        let nats = Nats {
            name,
            directory,
            address,
            login: login.clone(),
            process: None,
        };
        nats.configure(lines);
        Some(nats)
    }

    fn configure(&self, lines: &str) {
        let (name, address) = (&self.name, &self.address);
        let store = self.directory.join("store").display().to_string();
        // The tests read large streams more slowly than the server sends them.
        let configuration = format!(
            "listen: \"{address}\"\nserver_name: \"{name}\"\nmax_pending: 512MB\njetstream {{ \
             store_dir: {store:?} }}\n{lines}\n"
        );
        std::fs::write(self.directory.join("nats.conf"), configuration).expect("a configuration");
    }

    /// Lets the server that runs read its configuration with these lines.
    pub(crate) fn reload(&mut self, lines: &str) {
        self.configure(lines);
        self.signal("HUP");
    }

    /// Starts it with its files and port, and waits until it answers.
    #[track_caller]
    pub(crate) fn run(&mut self) {
        self.launch();
        self.wait();
    }

    pub(crate) fn launch(&mut self) {
        assert!(self.process.is_none(), "it already runs");
        let mut command = Command::new(directory().join("nats/nats-server"));
        command.arg("-c").arg(self.directory.join("nats.conf"));
        let log = self.directory.join("log");
        logs_to(&self.address, &log);
        self.process = Some(Process::start("nats-server", command, &log));
    }

    #[track_caller]
    fn wait(&mut self) {
        let answered = wait::until(START_DEADLINE, || {
            let info = self.client().ok()?.try_ask("$JS.API.INFO", &json!({}))?;
            info.get("error").is_none().then_some(())
        });
        let tail = || self.process.as_ref().map(|process| process.log_tail(30));
        assert!(
            answered.is_some(),
            "no answer:\n{}",
            tail().unwrap_or_default()
        );
    }

    pub(crate) fn kill_hard(&mut self) {
        self.process.take().expect("it runs").kill_hard();
    }

    /// Sends a signal: `STOP` leaves connections open without answers.
    pub(crate) fn signal(&mut self, name: &str) {
        self.process.as_mut().expect("it runs").signal(name);
    }

    fn client(&self) -> std::io::Result<Client> {
        Client::connect(&self.address, &self.login)
    }

    /// The answer of JetStream to a request.
    #[track_caller]
    pub(crate) fn ask(&self, what: &str, request: &Value) -> Value {
        let mut client = self.client().expect("a connection");
        let answer = client
            .try_ask(&format!("$JS.API.{what}"), request)
            .expect("an answer");
        assert!(answer.get("error").is_none(), "{what}: {answer}");
        answer
    }

    /// What the server says of a stream; null while it does not answer, as during an election.
    pub(crate) fn stream_info(&self, stream: &str) -> Value {
        let asked = self.client().ok().and_then(|mut client| {
            client.try_ask(&format!("$JS.API.STREAM.INFO.{stream}"), &json!({}))
        });
        asked.unwrap_or_default()
    }

    /// Creates a stream, with these settings beside its name and subjects.
    #[track_caller]
    pub(crate) fn add_stream(&self, name: &str, subjects: &[&str], more: Value) {
        let mut config = json!({"name": name, "subjects": subjects, "storage": "file"});
        let settings = config.as_object_mut().expect("an object");
        settings.extend(more.as_object().cloned().unwrap_or_default());
        self.ask(&format!("STREAM.CREATE.{name}"), &config);
    }

    /// The number of messages in a stream.
    #[track_caller]
    pub(crate) fn count(&self, stream: &str) -> i64 {
        let info = self.ask(&format!("STREAM.INFO.{stream}"), &json!({}));
        info["state"]["messages"].as_i64().expect("a count")
    }

    /// Publishes the message once more, as another one.
    #[track_caller]
    pub(crate) fn publish_again(&self, stored: &Stored) {
        let headers = stored.headers.iter();
        let headers = headers.filter(|(name, _)| !name.starts_with("Nats-"));
        let lines = headers.map(|(name, value)| format!("{name}: {value}\r\n"));
        let head = format!("NATS/1.0\r\n{}\r\n", lines.collect::<String>());
        let payload = String::from_utf8_lossy(&stored.payload);
        let total = head.len() + payload.len();
        let mut client = self.client().expect("a connection");
        client.write(&format!(
            "SUB answer.here 8\r\nHPUB {} answer.here {} {total}\r\n{head}{payload}\r\n",
            stored.subject,
            head.len()
        ));
        client.message().expect("an ack");
    }

    /// A subscriber that answers what it is told to, until it is dropped.
    pub(crate) fn subscribe(&self, subject: &str) -> Client {
        let mut client = self.client().expect("a connection");
        client.write(&format!("SUB {subject} 9\r\nPING\r\n"));
        while client.line().expect("an answer").trim() != "PONG" {}
        client
    }

    /// The records of a subject, in the order of its stream; none where no stream has it.
    #[track_caller]
    pub(crate) fn records(&self, subject: &str) -> Vec<Record> {
        let answer = self.ask("STREAM.NAMES", &json!({"subject": subject}));
        let streams = answer["streams"].as_array().into_iter().flatten();
        let stored = streams
            .filter_map(Value::as_str)
            .flat_map(|stream| self.read(stream));
        stored
            .filter(|stored| stored.subject == subject)
            .map(Stored::into_record)
            .collect()
    }

    /// All messages of a stream, in its order.
    #[track_caller]
    pub(crate) fn read(&self, stream: &str) -> Vec<Stored> {
        // The consumer outlives a client by seconds, and goes on with what is published meanwhile.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let place = format!("deliver.{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let count = usize::try_from(self.count(stream)).expect("a count");
        let mut client = self.client().expect("a connection");
        client.write(&format!("SUB {place} 7\r\n"));
        let consumer = json!({"stream_name": stream, "config": {"deliver_subject": place,
            "ack_policy": "none", "deliver_policy": "all", "replay_policy": "instant"}});
        client.publish(
            &format!("$JS.API.CONSUMER.CREATE.{stream}"),
            "deliver.answer",
            &consumer,
        );
        (0..count)
            .map(|_| client.message().expect("a message"))
            .collect()
    }
}

impl Stored {
    /// As a record of Kafka; without the key, and without what is for the server.
    fn into_record(self) -> Record {
        let headers = self.headers.into_iter();
        let headers = headers.filter(|(name, _)| !name.starts_with("Nats-"));
        Record {
            partition: 0,
            offset: self.sequence,
            key: None,
            value: Some(self.payload),
            headers: headers
                .map(|(name, value)| (name, Some(value.into_bytes())))
                .collect(),
            appended_at_ms: 0,
        }
    }
}

pub(crate) struct Client {
    reader: BufReader<TcpStream>,
    stream: TcpStream,
}

impl Client {
    fn connect(address: &str, login: &Value) -> std::io::Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
        let mut client = Client {
            reader: BufReader::new(stream.try_clone()?),
            stream,
        };
        let mut connect = json!({"verbose": false, "pedantic": false, "headers": true,
            "no_responders": true, "lang": "tests", "version": "0", "protocol": 1});
        let settings = connect.as_object_mut().expect("an object");
        settings.extend(login.as_object().cloned().unwrap_or_default());
        client.write(&format!("CONNECT {connect}\r\n"));
        Ok(client)
    }

    fn write(&mut self, text: &str) {
        self.stream
            .write_all(text.as_bytes())
            .expect("a connection");
    }

    fn publish(&mut self, subject: &str, reply: &str, value: &Value) {
        let text = value.to_string();
        self.write(&format!(
            "PUB {subject} {reply} {}\r\n{text}\r\n",
            text.len()
        ));
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        (self.reader.read_line(&mut line).ok()? > 0).then_some(line)
    }

    fn try_ask(&mut self, subject: &str, request: &Value) -> Option<Value> {
        self.write("SUB answer.here 8\r\n");
        self.publish(subject, "answer.here", request);
        serde_json::from_slice(&self.message()?.payload).ok()
    }

    /// Answers a message as a stream does that has stored it.
    pub(crate) fn ack(&mut self, message: &Stored) {
        let ack = json!({"stream": "BY_HAND", "seq": 1});
        self.publish(&message.reply, "", &ack);
    }

    /// The next message; what else the server says is passed over.
    pub(crate) fn message(&mut self) -> Option<Stored> {
        loop {
            let line = self.line()?;
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.first().copied() {
                Some("PING") => self.write("PONG\r\n"),
                Some(operation @ ("MSG" | "HMSG")) => {
                    let total: usize = words.last()?.parse().ok()?;
                    let head: usize = match operation {
                        "HMSG" => words.get(words.len() - 2)?.parse().ok()?,
                        _ => 0,
                    };
                    let mut bytes = vec![0; total + 2];
                    self.reader.read_exact(&mut bytes).ok()?;
                    bytes.truncate(total);
                    let payload = bytes.split_off(head);
                    return Some(Stored {
                        subject: (*words.get(1)?).to_owned(),
                        sequence: sequence(words.get(3)?),
                        reply: (*words.get(3)?).to_owned(),
                        headers: headers(&String::from_utf8_lossy(&bytes)),
                        payload,
                    });
                }
                _ => {}
            }
        }
    }
}

/// Of a reply subject such as `$JS.ACK.STREAM.CONSUMER.1.SEQUENCE.1.TIME.PENDING`.
fn sequence(reply: &str) -> i64 {
    let tokens: Vec<&str> = reply.split('.').collect();
    tokens
        .get(5)
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

fn headers(head: &str) -> Vec<(String, String)> {
    let lines = head.split("\r\n").skip(1);
    let pairs = lines.filter_map(|line| line.split_once(':'));
    pairs
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}
