//! A real Kafka: one node that is broker and controller, and a second broker where a test needs
//! one.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rdkafka::consumer::Consumer;
use rdkafka::metadata::Metadata;

use super::{directory, free_port, logs_to, missing};
use crate::support::guardian::run_directory;
use crate::support::process::{Process, output_of, text_of};
use crate::support::proxy::Proxy;
use crate::support::topic;
use crate::support::wait;

const START_DEADLINE: Duration = Duration::from_secs(180);

/// The partitions of a topic that is created automatically.
pub(crate) const PARTITIONS: i32 = 6;

pub(crate) const SECOND: i32 = 2;

/// The time until a killed broker is fenced. A new process on the same log has to wait for it.
const SESSION_MS: u32 = 6000;

/// The interval at which a broker aborts transactions past their time-out. The default is ten
/// seconds.
pub(super) const ABORTS_MS: u32 = 1_000;
/// A broker maps two indexes of this size for each partition. Where the disk is read far ahead, the
/// kernel fills all of them with zeros: 16 MiB of the default size at the first record.
pub(super) const INDEX_BYTES: u32 = 262_144;

/// The number of proxies before the shared broker, and before one of a test's own. Each proxy takes
/// threads.
const SHARED_DOORS: usize = 32;
const DOORS: usize = 2;

/// A broker with its log directory. The process can stop and start again.
pub(crate) struct Kafka {
    directory: PathBuf,
    node: i32,
    brokers: String,
    /// Listeners that advertise the port of a proxy. Otherwise a client would use the proxy for its
    /// first request only.
    doors: Vec<Door>,
    doors_taken: AtomicUsize,
    secured: Vec<(&'static str, u16)>,
    process: Mutex<Option<Process>>,
}

/// An additional listener, for TLS or for authentication.
pub(crate) struct Listener {
    pub(crate) name: &'static str,
    pub(crate) protocol: &'static str,
    /// The settings of this listener, without their prefix.
    pub(crate) settings: Vec<(&'static str, String)>,
}

struct Door {
    listens: u16,
    advertised: u16,
}

impl Kafka {
    /// The broker for all tests, which no test stops. `WALRELAY_TEST_BROKERS` names another one.
    pub(crate) fn shared() -> &'static Kafka {
        static SHARED: OnceLock<Kafka> = OnceLock::new();
        SHARED.get_or_init(|| match std::env::var("WALRELAY_TEST_BROKERS") {
            Ok(brokers) => Kafka {
                directory: PathBuf::new(),
                node: 1,
                brokers,
                doors: Vec::new(),
                doors_taken: AtomicUsize::new(0),
                secured: Vec::new(),
                process: Mutex::new(None),
            },
            // It must not be fenced while other tests keep the machine busy.
            Err(_) => Kafka::node(1, free_port(), 10 * SESSION_MS, &[], "", SHARED_DOORS),
        })
    }

    #[track_caller]
    pub(crate) fn private() -> Kafka {
        Kafka::secured(&[])
    }

    /// A broker of the test's own, with these additional listeners.
    #[track_caller]
    pub(crate) fn secured(listeners: &[Listener]) -> Kafka {
        Kafka::configured(SESSION_MS, listeners, "")
    }

    /// The same with ACLs. Operations without an ACL are allowed, and an anonymous client may do
    /// everything.
    #[track_caller]
    pub(crate) fn guarded(listeners: &[Listener]) -> Kafka {
        Kafka::guarded_with(listeners, "")
    }

    /// The same with these lines in `server.properties` instead of the usual ones.
    #[track_caller]
    pub(crate) fn guarded_with(listeners: &[Listener], lines: &str) -> Kafka {
        let rights = "authorizer.class.name=\
                      org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
                      super.users=User:ANONYMOUS\nallow.everyone.if.no.acl.found=true\n";
        Kafka::configured(SESSION_MS, listeners, &format!("{rights}{lines}"))
    }

    /// A broker of the test's own, with these lines in `server.properties` instead of the usual
    /// ones.
    #[track_caller]
    pub(crate) fn configured(session_ms: u32, listeners: &[Listener], lines: &str) -> Kafka {
        Kafka::node(1, free_port(), session_ms, listeners, lines, DOORS)
    }

    /// A broker of the test's own that stays leader even while it is frozen: its session outlasts
    /// any test. For the same reason it cannot be restarted.
    #[track_caller]
    pub(crate) fn never_fenced() -> Kafka {
        Kafka::configured(10 * SESSION_MS, &[], "")
    }

    /// A broker of the test's own with two log directories, of which one is a file system of a few
    /// MiB. Partitions of a topic are spread over both.
    #[track_caller]
    pub(crate) fn on_small_disk() -> Kafka {
        // Without an entry in the index of a segment, the log of a partition fills the disk, and
        // not its index.
        let lines = format!(
            "log.dirs=log,{SMALL_DISK}\nmetadata.log.dir=log\nlog.index.interval.bytes=100000000\n"
        );
        Kafka::configured(SESSION_MS, &[], &lines)
    }

    /// A cluster of two brokers: partitions of the second one can stall while the others work. A
    /// frozen second broker stays leader, because its session outlasts any test. For the same
    /// reason neither can be restarted.
    #[track_caller]
    pub(crate) fn pair() -> (Kafka, Kafka) {
        let controller = free_port();
        let node = |number, doors| Kafka::node(number, controller, 10 * SESSION_MS, &[], "", doors);
        (node(1, DOORS), node(SECOND, 0))
    }

    #[track_caller]
    fn node(
        node: i32,
        controller: u16,
        session_ms: u32,
        listeners: &[Listener],
        others: &str,
        doors: usize,
    ) -> Kafka {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let base = run_directory().join(format!("kafka-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir(&base).expect("directory of a Kafka");
        copy_formatted(node, &base.join("log"));

        let port = free_port();
        let doors: Vec<Door> = (0..doors)
            .map(|_| Door {
                listens: free_port(),
                advertised: free_port(),
            })
            .collect();
        let secured: Vec<_> = listeners
            .iter()
            .map(|listener| (listener.name, free_port()))
            .collect();
        let text = configuration(node, &base, port, controller, session_ms, &doors);
        let text = with_listeners(&text, listeners, &secured) + others;
        std::fs::write(base.join("server.properties"), text).expect("server.properties");
        let kafka = Kafka {
            directory: base,
            node,
            brokers: format!("127.0.0.1:{port}"),
            doors,
            doors_taken: AtomicUsize::new(0),
            secured,
            process: Mutex::new(None),
        };
        logs_to(&kafka.brokers, &kafka.log_path());
        kafka.start();
        kafka
    }

    fn log_path(&self) -> PathBuf {
        self.directory.join(LOG)
    }

    /// The text of the broker's log.
    pub(crate) fn log(&self) -> String {
        text_of(&self.log_path())
    }

    /// `bootstrap.servers`.
    pub(crate) fn brokers(&self) -> &str {
        &self.brokers
    }

    #[track_caller]
    pub(crate) fn brokers_of(&self, listener: &str) -> String {
        let found = self.secured.iter().find(|(name, _)| *name == listener);
        format!("127.0.0.1:{}", found.expect("a listener of this broker").1)
    }

    /// Sets a password of `user` for SCRAM-SHA-512, with Kafka's own tool.
    #[track_caller]
    pub(crate) fn add_scram_user(&self, user: &str, password: &str) {
        let mut tool = java(&["-Xmx128m"]);
        tool.args([
            "kafka.admin.ConfigCommand",
            "--bootstrap-server",
            self.brokers(),
            "--alter",
        ]);
        tool.args(["--entity-type", "users", "--entity-name", user]);
        tool.arg("--add-config")
            .arg(format!("SCRAM-SHA-512=[password={password}]"));
        let output = output_of(tool, START_DEADLINE);
        assert!(
            output.status.success(),
            "no SCRAM user: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Allows `user` to write, describe and create topics that begin with `prefix`, and denies
    /// everything else on them.
    #[track_caller]
    pub(crate) fn allow_writing(&self, user: &str, prefix: &str) {
        const CREATE_ACLS: u16 = 30;
        const TOPIC: u8 = 2;
        const PREFIXED: u8 = 4;
        const WRITE_CREATE_DESCRIBE: [u8; 3] = [4, 5, 8];
        const ALLOW: u8 = 3;
        // Version 1 of the request has lengths of fixed size.
        let mut request = [
            &CREATE_ACLS.to_be_bytes()[..],
            &[0, 1, 0, 0, 0, 7],
            &text("tests"),
            &[0, 0, 0, 3],
        ]
        .concat();
        for operation in WRITE_CREATE_DESCRIBE {
            request.push(TOPIC);
            request.extend(
                [
                    text(prefix),
                    vec![PREFIXED],
                    text(&format!("User:{user}")),
                    text("*"),
                ]
                .concat(),
            );
            request.extend([operation, ALLOW]);
        }
        let answer = self.ask(&request);
        // Correlation id, throttle time and count; then for each ACL no error code and no message.
        assert_eq!(answer[12..], [0; 12], "no rights: {answer:?}");
    }

    /// Lets clients with this `client.id` write so many bytes a second.
    #[track_caller]
    pub(crate) fn limit_writing(&self, client_id: &str, bytes_per_second: f64) {
        const ALTER_CLIENT_QUOTAS: u16 = 49;
        let one = [0, 0, 0, 1];
        // Version 0 of the request has lengths of fixed size.
        let mut request = [
            &ALTER_CLIENT_QUOTAS.to_be_bytes()[..],
            &[0, 0, 0, 0, 0, 7],
            &text("tests"),
        ]
        .concat();
        request.extend(
            [
                &one[..],
                &one,
                &text("client-id"),
                &text(client_id),
                &one,
                &text("producer_byte_rate"),
            ]
            .concat(),
        );
        request.extend(bytes_per_second.to_be_bytes());
        // Neither removed, nor only validated.
        request.extend([0, 0]);
        let answer = self.ask(&request);
        // Correlation id, throttle time and count; then no error code.
        assert_eq!(answer[12..14], [0; 2], "no quota: {answer:?}");
    }

    /// The answer to a request that librdkafka's bindings lack.
    #[track_caller]
    fn ask(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.brokers()).expect("a connection");
        stream
            .set_read_timeout(Some(START_DEADLINE))
            .expect("a deadline");
        stream
            .write_all(&(request.len() as u32).to_be_bytes())
            .and_then(|()| stream.write_all(request))
            .expect("asked");
        let mut length = [0; 4];
        stream.read_exact(&mut length).expect("an answer");
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut answer).expect("an answer");
        answer
    }

    /// A proxy for all connections of a client, and its `bootstrap.servers`.
    #[track_caller]
    pub(crate) fn behind_proxy(&self) -> (Proxy, String) {
        let door = self
            .doors
            .get(self.doors_taken.fetch_add(1, Ordering::Relaxed));
        let door = door.expect(
            "this broker has no door left (a given broker has none: unset WALRELAY_TEST_BROKERS)",
        );
        let proxy = Proxy::listen(door.advertised, &format!("127.0.0.1:{}", door.listens));
        (proxy, format!("127.0.0.1:{}", door.advertised))
    }

    /// Starts it with its log directory and ports, and waits until it answers.
    #[track_caller]
    pub(crate) fn start(&self) {
        let mut slot = self.process.lock().expect("process");
        assert!(slot.is_none(), "it already runs");
        let mut process = launch("-Xmx384m", &self.directory);
        let answered = wait::until(START_DEADLINE, || {
            if process.exited().is_some() {
                return Some(false);
            }
            // Whether the node is in its own metadata.
            let metadata = metadata(&self.brokers, None, Duration::from_millis(500));
            metadata
                .is_some_and(|known| known.brokers().iter().any(|one| one.id() == self.node))
                .then_some(true)
        });
        assert!(
            answered == Some(true),
            "Kafka did not start:\n{}",
            process.log_tail(30)
        );
        *slot = Some(process);
    }

    pub(crate) fn kill_hard(&self) {
        if let Some(mut process) = self.process.lock().expect("process").take() {
            process.kill_hard();
        }
    }

    /// Stops it, and starts a broker of another cluster at its addresses: the second time, it is
    /// the first cluster again, which would wait for the session of a broker that was killed.
    #[track_caller]
    pub(crate) fn swap_cluster(&self) {
        if let Some(mut process) = self.process.lock().expect("process").take() {
            process.signal("TERM");
            process.wait_exit(START_DEADLINE);
        }
        let [log, other, aside] =
            ["log", "log-other", "log-aside"].map(|name| self.directory.join(name));
        if !other.exists() {
            copy_formatted(self.node, &other);
            let properties = other.join("meta.properties");
            let lines = text_of(&properties);
            let kept = lines
                .lines()
                .filter(|line| !line.starts_with("cluster.id="));
            let text: String = kept
                .chain(["cluster.id=YW5vdGhlci1jbHVzdGVyLQ"])
                .map(|line| format!("{line}\n"))
                .collect();
            std::fs::write(&properties, text).expect("meta.properties");
        }
        for (from, to) in [(&log, &aside), (&other, &log), (&aside, &other)] {
            std::fs::rename(from, to).expect("rename a log directory");
        }
        self.start();
    }

    /// Sends SIGSTOP: connections stay open without answers.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
    }

    pub(crate) fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        if let Some(process) = self.process.lock().expect("process").as_mut() {
            process.signal(name);
        }
    }
}

/// A text in a request of Kafka, with its length.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat()
}

/// `java` with Kafka's classes; the caller adds the class to run. The quick compiler alone and the
/// class archive of `scripts/prerequisites` cut the CPU time of a start to a quarter. Without the
/// archive, Java silently reads the jars. A bench has both compilers, as a broker in use.
fn java(options: &[&str]) -> Command {
    let kafka = directory().join("kafka");
    let mut command = Command::new("java");
    command
        .args(options)
        .args(["-XX:+UseSerialGC", "-XX:-UsePerfData"]);
    if cfg!(debug_assertions) {
        command.arg("-XX:TieredStopAtLevel=1");
    }
    command.arg(format!(
        "-XX:SharedArchiveFile={}",
        kafka.join("classes.jsa").display()
    ));
    command.arg(format!(
        "-Dlog4j2.configurationFile={}",
        kafka.join("log4j2.xml").display()
    ));
    command
        .arg("-cp")
        .arg(format!("{}/libs/*", kafka.display()));
    command
}

/// The folder of a small disk, in the directory of its broker.
const SMALL_DISK: &str = "small-disk";

/// `broker` with a file system of its own at [`SMALL_DISK`], which ends with the process.
fn mounted(broker: &Command) -> Command {
    let script = format!(
        "mkdir -p {SMALL_DISK} && mount -t tmpfs -o size=6m small {SMALL_DISK} &&
         grep -v directory.id log/meta.properties >{SMALL_DISK}/meta.properties && exec \"$@\""
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", &script, "sh"]);
    command.arg(broker.get_program()).args(broker.get_args());
    command
}

/// The log of a broker, in its directory.
pub(super) const LOG: &str = "server.log";

/// Starts a broker with this Java option and the `server.properties` of its directory. Does not
/// wait.
pub(super) fn launch(option: &str, directory: &Path) -> Process {
    let mut broker = java(&[option]);
    let properties = directory.join("server.properties");
    broker.arg("kafka.Kafka").arg(&properties);
    let mut command = if text_of(&properties).contains(SMALL_DISK) {
        mounted(&broker)
    } else {
        broker
    };
    command.current_dir(directory);
    Process::start("kafka", command, &directory.join(LOG))
}

/// Copies the formatted log directory of a node.
#[track_caller]
pub(super) fn copy_formatted(node: i32, to: &Path) {
    let formatted = directory().join(format!("kafka/formatted-{node}"));
    if !formatted.exists() {
        missing("Kafka");
    }
    let copied = Command::new("cp")
        .arg("-r")
        .arg(&formatted)
        .arg(to)
        .status()
        .expect("cp");
    assert!(copied.success(), "could not copy {}", formatted.display());
}

/// The metadata of the brokers, with that of a topic if one is given; none without an answer in
/// time.
pub(super) fn metadata(brokers: &str, of: Option<&str>, patience: Duration) -> Option<Metadata> {
    let consumer = topic::consumer(brokers);
    let metadata = consumer.fetch_metadata(of, patience).ok();
    topic::close(consumer);
    metadata
}

/// A configuration with listeners added to those it has.
fn with_listeners(configuration: &str, listeners: &[Listener], ports: &[(&str, u16)]) -> String {
    let mut text = String::new();
    for line in configuration.lines() {
        text.push_str(line);
        for (listener, (name, port)) in listeners.iter().zip(ports) {
            match line.split_once('=').map_or("", |(key, _)| key) {
                "listeners" | "advertised.listeners" => {
                    text.push_str(&format!(",{name}://127.0.0.1:{port}"))
                }
                "listener.security.protocol.map" => {
                    text.push_str(&format!(",{name}:{}", listener.protocol))
                }
                _ => {}
            }
        }
        text.push('\n');
    }
    for listener in listeners {
        let prefix = format!("listener.name.{}", listener.name.to_lowercase());
        text.extend(
            listener
                .settings
                .iter()
                .map(|(name, value)| format!("{prefix}.{name}={value}\n")),
        );
    }
    text
}

fn configuration(
    node: i32,
    base: &Path,
    port: u16,
    controller: u16,
    session_ms: u32,
    doors: &[Door],
) -> String {
    let mut listeners = format!("PLAINTEXT://127.0.0.1:{port}");
    let mut advertised = listeners.clone();
    let mut protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned();
    for (number, door) in doors.iter().enumerate() {
        listeners.push_str(&format!(",DOOR{number}://127.0.0.1:{}", door.listens));
        advertised.push_str(&format!(",DOOR{number}://127.0.0.1:{}", door.advertised));
        protocols.push_str(&format!(",DOOR{number}:PLAINTEXT"));
    }
    let roles = if node == SECOND {
        "broker"
    } else {
        "broker,controller"
    };
    if node != SECOND {
        listeners.push_str(&format!(",CONTROLLER://127.0.0.1:{controller}"));
    }
    format!(
        "process.roles={roles}\nnode.id={node}\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n\
         listeners={listeners}\nadvertised.listeners={advertised}\n\
         listener.security.protocol.map={protocols}\n\
         controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n\
         log.dirs={log}\n\
         num.partitions={PARTITIONS}\nauto.create.topics.enable=true\nnum.network.threads=1\n\
         default.replication.factor=1\noffsets.topic.replication.factor=1\n\
         offsets.topic.num.partitions=1\n\
         transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n\
         transaction.state.log.num.partitions=1\nlog.message.timestamp.type=LogAppendTime\n\
         transaction.abort.timed.out.transaction.cleanup.interval.ms={ABORTS_MS}\n\
         broker.session.timeout.ms={session_ms}\nlog.index.size.max.bytes={INDEX_BYTES}\n",
        log = base.join("log").display()
    )
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::message::DeliveryResult;
    use rdkafka::producer::{BaseProducer, BaseRecord, ProducerContext};

    use super::*;
    use crate::support::wait::eventually;

    struct Acks(std::sync::Arc<AtomicUsize>);

    impl rdkafka::ClientContext for Acks {}

    impl ProducerContext for Acks {
        type DeliveryOpaque = ();

        fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
            self.0
                .fetch_add(usize::from(result.is_ok()), Ordering::Relaxed);
        }
    }

    /// A producer that retries without a limit, and its number of acks.
    fn producer(brokers: &str) -> (BaseProducer<Acks>, std::sync::Arc<AtomicUsize>) {
        let acks = std::sync::Arc::new(AtomicUsize::new(0));
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", brokers)
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", "0");
        config
            .set("log_level", "0")
            .set("reconnect.backoff.max.ms", "500");
        (
            config
                .create_with_context(Acks(acks.clone()))
                .expect("a producer"),
            acks,
        )
    }

    fn acked(producer: &BaseProducer<Acks>, acks: &AtomicUsize) -> usize {
        producer.poll(Duration::ZERO);
        acks.load(Ordering::Relaxed)
    }

    fn send(producer: &BaseProducer<Acks>, topic: &str) {
        producer
            .send(BaseRecord::<(), str>::to(topic).payload("x"))
            .expect("a record");
    }

    #[test]
    fn a_client_behind_the_proxy_does_not_go_around_it() {
        let kafka = Kafka::shared();
        let (proxy, brokers) = kafka.behind_proxy();
        // A name of its own for each run, on brokers that outlive a run.
        let topic = &*format!("lab-proxied.{:x}", fastrand::u32(..));
        topic::create(kafka.brokers(), topic, 2, &[]);
        let (producer, acks) = producer(&brokers);
        send(&producer, topic);
        eventually(
            "an ack",
            START_DEADLINE,
            || acked(&producer, &acks),
            |acks| *acks == 1,
        );
        proxy.blackhole(crate::support::proxy::Way::Down);
        send(&producer, topic);
        // The record arrives, and the ack does not.
        eventually(
            "two records",
            START_DEADLINE,
            || topic::count(kafka.brokers(), topic),
            |n| *n == 2,
        );
        assert_eq!(acked(&producer, &acks), 1);
        proxy.cut();
        proxy.resume();
        eventually(
            "the ack comes",
            START_DEADLINE,
            || acked(&producer, &acks),
            |acks| *acks == 2,
        );
        assert_eq!(topic::count(kafka.brokers(), topic), 2);
    }
}
