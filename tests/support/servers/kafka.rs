//! A real Kafka: one node that is broker and controller.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};

use super::{directory, free_port, missing};
use crate::support::guardian::run_directory;
use crate::support::process::Process;
use crate::support::proxy::Proxy;
use crate::support::wait;

const START_DEADLINE: Duration = Duration::from_secs(90);

/// Partitions of a topic nobody made beforehand.
pub(crate) const PARTITIONS: i32 = 6;

/// How many tests can have a proxy before one broker.
const DOORS: usize = 8;

/// A broker with its log directory; the process comes and goes.
pub(crate) struct Kafka {
    directory: PathBuf,
    brokers: String,
    /// Listeners that tell clients to come back to another port: the proxy's. Without that a client would ask once
    /// through the proxy and then go around it.
    doors: Vec<Door>,
    doors_taken: AtomicUsize,
    process: Mutex<Option<Process>>,
}

struct Door {
    listens: u16,
    advertised: u16,
}

impl Kafka {
    /// The one for all tests: never stopped by any. `WALRELAY_TEST_BROKERS` names another.
    pub(crate) fn shared() -> &'static Kafka {
        static SHARED: OnceLock<Kafka> = OnceLock::new();
        SHARED.get_or_init(|| match std::env::var("WALRELAY_TEST_BROKERS") {
            Ok(brokers) => Kafka {
                directory: PathBuf::new(),
                brokers,
                doors: Vec::new(),
                doors_taken: AtomicUsize::new(0),
                process: Mutex::new(None),
            },
            Err(_) => Kafka::private(),
        })
    }

    /// One of its own.
    #[track_caller]
    pub(crate) fn private() -> Kafka {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let formatted = directory().join("kafka/formatted-1");
        if !formatted.exists() {
            missing("Kafka");
        }
        let base = run_directory().join(format!("kafka-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir(&base).expect("directory of a Kafka");
        let copied = Command::new("cp").arg("-r").arg(&formatted).arg(base.join("log")).status().expect("cp");
        assert!(copied.success(), "could not copy {}", formatted.display());

        let port = free_port();
        let doors: Vec<Door> = (0..DOORS).map(|_| Door { listens: free_port(), advertised: free_port() }).collect();
        let text = configuration(&base, port, free_port(), &doors);
        std::fs::write(base.join("server.properties"), text).expect("server.properties");
        let brokers = format!("127.0.0.1:{port}");
        let doors_taken = AtomicUsize::new(0);
        let kafka = Kafka { directory: base, brokers, doors, doors_taken, process: Mutex::new(None) };
        kafka.start();
        kafka
    }

    /// `bootstrap.servers`.
    pub(crate) fn brokers(&self) -> &str {
        &self.brokers
    }

    /// A proxy all of a client's connections go through, and the `bootstrap.servers` that lead to it.
    #[track_caller]
    pub(crate) fn behind_proxy(&self) -> (Proxy, String) {
        let door = self.doors.get(self.doors_taken.fetch_add(1, Ordering::Relaxed));
        let door = door.expect("this broker has no door left (a given broker has none: unset WALRELAY_TEST_BROKERS)");
        let proxy = Proxy::listen(door.advertised, &format!("127.0.0.1:{}", door.listens));
        (proxy, format!("127.0.0.1:{}", door.advertised))
    }

    /// Starts it on the log and ports it has, and waits until it answers.
    #[track_caller]
    pub(crate) fn start(&self) {
        let mut slot = self.process.lock().expect("process");
        assert!(slot.is_none(), "it already runs");
        let kafka = directory().join("kafka");
        let mut command = Command::new("java");
        command.args(["-Xmx384m", "-XX:+UseSerialGC", "-XX:-UsePerfData"]);
        command.arg(format!("-Dlog4j2.configurationFile={}", kafka.join("log4j2.xml").display()));
        command.arg("-cp").arg(format!("{}/libs/*", kafka.display())).arg("kafka.Kafka");
        command.arg(self.directory.join("server.properties")).current_dir(&self.directory);
        let mut process = Process::start("kafka", command, &self.directory.join("server.log"));
        let answered = wait::until(START_DEADLINE, || {
            if process.exited().is_some() {
                return Some(false);
            }
            answers(&self.brokers).then_some(true)
        });
        assert!(answered == Some(true), "Kafka did not start:\n{}", process.log_tail(30));
        *slot = Some(process);
    }

    /// SIGKILL.
    pub(crate) fn kill_hard(&self) {
        if let Some(mut process) = self.process.lock().expect("process").take() {
            process.kill_hard();
        }
    }

    /// SIGSTOP: connections stay open, nothing answers.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
    }

    /// SIGCONT.
    pub(crate) fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        if let Some(process) = self.process.lock().expect("process").as_mut() {
            process.signal(name);
        }
    }
}

fn configuration(base: &Path, port: u16, controller: u16, doors: &[Door]) -> String {
    let mut listeners = format!("PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}");
    let mut advertised = format!("PLAINTEXT://127.0.0.1:{port}");
    let mut protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned();
    for (number, door) in doors.iter().enumerate() {
        listeners.push_str(&format!(",DOOR{number}://127.0.0.1:{}", door.listens));
        advertised.push_str(&format!(",DOOR{number}://127.0.0.1:{}", door.advertised));
        protocols.push_str(&format!(",DOOR{number}:PLAINTEXT"));
    }
    format!(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n\
         listeners={listeners}\nadvertised.listeners={advertised}\nlistener.security.protocol.map={protocols}\n\
         controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\nlog.dirs={log}\n\
         num.partitions={PARTITIONS}\nauto.create.topics.enable=true\nnum.network.threads=1\n\
         default.replication.factor=1\noffsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n\
         transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n\
         transaction.state.log.num.partitions=1\nlog.message.timestamp.type=LogAppendTime\n",
        log = base.join("log").display()
    )
}

fn answers(brokers: &str) -> bool {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("log_level", "0");
    let consumer: Result<BaseConsumer, _> = config.create();
    consumer.is_ok_and(|consumer| {
        let metadata = consumer.fetch_metadata(None, Duration::from_millis(500));
        metadata.is_ok_and(|metadata| !metadata.brokers().is_empty())
    })
}
