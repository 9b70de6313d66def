//! Who takes part, and how each is started on a seat.

use std::process::Command;

use crate::lab::{DATABASE, Lab, Seat};
use crate::support::process::Process;
use crate::support::relay::{Relay, RelayCommand};
use crate::support::servers::free_port;

/// How Postgres is reached. A peer on a JVM cannot use a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Tcp,
    Socket,
}

/// One of those that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contestant {
    /// The reference: it writes what it reads to nowhere, or to a pipe.
    Recvlogical(Way),
    Walrelay(Way),
    /// A kind of `scripts/bench-peer`.
    Peer(&'static str),
}

/// The reference that rates are multiples of.
pub(crate) const REFERENCE: &str = "pg_recvlogical";

pub(crate) const RECVLOGICAL: Contestant = Contestant::Recvlogical(Way::Tcp);
pub(crate) const WALRELAY: Contestant = Contestant::Walrelay(Way::Tcp);
pub(crate) const WALRELAY_SOCKET: Contestant = Contestant::Walrelay(Way::Socket);
pub(crate) const CONNECT: Contestant = Contestant::Peer("connect-default");
pub(crate) const CONNECT_TUNED: Contestant = Contestant::Peer("connect-tuned");
pub(crate) const CONNECT_LATENCY: Contestant = Contestant::Peer("connect-latency");
pub(crate) const SERVER: Contestant = Contestant::Peer("server-default");
pub(crate) const SERVER_TUNED: Contestant = Contestant::Peer("server-tuned");
pub(crate) const SERVER_LATENCY: Contestant = Contestant::Peer("server-latency");
/// Whatever `PEER_COMMAND` runs; it takes part where it is set.
const COMMAND: Contestant = Contestant::Peer("command");

const ALL: [Contestant; 11] = [
    RECVLOGICAL,
    Contestant::Recvlogical(Way::Socket),
    WALRELAY,
    WALRELAY_SOCKET,
    CONNECT,
    CONNECT_TUNED,
    CONNECT_LATENCY,
    SERVER,
    SERVER_TUNED,
    SERVER_LATENCY,
    COMMAND,
];

/// A contestant at work. Dropping it kills it with -9.
pub(crate) enum Running {
    Relay(Relay),
    Peer(Process),
}

impl Running {
    pub(crate) fn process(&mut self) -> &mut Process {
        match self {
            Running::Relay(relay) => &mut relay.process,
            Running::Peer(process) => process,
        }
    }
}

impl Contestant {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Contestant::Recvlogical(Way::Tcp) => REFERENCE,
            Contestant::Recvlogical(Way::Socket) => "pg_recvlogical-socket",
            Contestant::Walrelay(Way::Tcp) => "walrelay",
            Contestant::Walrelay(Way::Socket) => "walrelay-socket",
            Contestant::Peer(kind) => kind,
        }
    }

    pub(crate) fn named(name: &str) -> Option<Contestant> {
        ALL.into_iter().find(|contestant| contestant.name() == name)
    }

    pub(crate) fn names() -> String {
        ALL.map(Contestant::name).join(", ")
    }

    /// These, and what somebody else brought along.
    pub(crate) fn and_guest(mut these: Vec<Contestant>) -> Vec<Contestant> {
        if std::env::var_os("PEER_COMMAND").is_some() {
            these.push(COMMAND);
        }
        these
    }

    /// Starts it. walrelay is given `settings`, lines of its configuration, and `options` of its
    /// command line.
    pub(crate) fn start(
        self,
        lab: &Lab,
        seat: &Seat,
        settings: &str,
        options: &[(&str, &str)],
    ) -> Running {
        match self {
            Contestant::Walrelay(way) => {
                let url = match way {
                    Way::Tcp => lab.postgres.url(DATABASE),
                    Way::Socket => lab.postgres.url_by_socket(DATABASE),
                };
                let outboxes: String = seat
                    .tables
                    .iter()
                    .map(|table| format!("[[outbox]]\ntable = {table:?}\n"))
                    .collect();
                let command = RelayCommand::new("run")
                    .option("--slot", &seat.slot)
                    .option("--database-url", &url)
                    .option("--brokers", lab.brokers())
                    .option("--publication", &seat.publication)
                    .config_file(&format!(
                        "[route]\ntopic_prefix = {:?}\n{settings}\n{outboxes}",
                        seat.prefix
                    ));
                Running::Relay(
                    options
                        .iter()
                        .fold(command, |command, (name, value)| {
                            command.option(name, value)
                        })
                        .start(),
                )
            }
            Contestant::Peer(kind) => Running::Peer(peer(kind, lab, seat)),
            Contestant::Recvlogical(_) => panic!("it publishes nothing"),
        }
    }
}

fn peer(kind: &str, lab: &Lab, seat: &Seat) -> Process {
    let mut command = Command::new("scripts/bench-peer");
    command.arg(kind);
    let address = lab.postgres.address();
    let (host, port) = address.rsplit_once(':').expect("host and port");
    command
        .env("PEER_DIR", &seat.directory)
        .env("PEER_SLOT", &seat.slot)
        .env("PEER_PUBLICATION", &seat.publication);
    command
        .env("PEER_HOST", host)
        .env("PEER_PORT", port)
        .env("PEER_USER", "postgres")
        .env("PEER_PASSWORD", "");
    command
        .env("PEER_DATABASE", DATABASE)
        .env("PEER_TABLE", seat.tables.join(","))
        .env("PEER_BROKERS", lab.brokers());
    command.env("PEER_TOPIC", format!("{}${{routedByValue}}", seat.prefix));
    command.env("PEER_HTTP_PORT", free_port().to_string());
    Process::start(kind, command, &seat.directory.join("log"))
}

/// `pg_recvlogical` on a slot, up to `end` where that is given, into `file`.
pub(crate) fn recvlogical(
    lab: &Lab,
    seat: &Seat,
    way: Way,
    file: &str,
    end: Option<&str>,
) -> Command {
    let mut command = Command::new(lab.postgres.program("pg_recvlogical"));
    let url = match way {
        Way::Tcp => lab.postgres.url(DATABASE),
        Way::Socket => lab.postgres.url_by_socket(DATABASE),
    };
    command
        .arg("-d")
        .arg(url)
        .args(["--slot", &seat.slot, "--start", "--no-loop", "-f", file]);
    command.args([
        "-o",
        "proto_version=1",
        "-o",
        &format!("publication_names={}", seat.publication),
    ]);
    if let Some(end) = end {
        command.args(["--endpos", end]);
    }
    command
}
