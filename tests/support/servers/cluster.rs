//! Three nodes, each broker and controller: replication factor 3, `min.insync.replicas` 2. Any
//! single one may stop.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::kafka::{ABORTS_MS, INDEX_BYTES, LOG, PARTITIONS, copy_formatted, launch, metadata};
use super::{free_port, logs_to};
use crate::support::guardian::run_directory;
use crate::support::process::Process;
use crate::support::wait::{self, eventually};

const START_DEADLINE: Duration = Duration::from_secs(120);

/// How long one look at the brokers may take.
const ANSWER: Duration = Duration::from_secs(2);

const NODES: [i32; 3] = [1, 2, 3];

/// The time until a killed broker is fenced. Until then it counts as leader, and its partitions do
/// not answer. The interval of heartbeats is a quarter of it.
const SESSION_MS: u32 = 4_000;

/// See the module's documentation. Dropping it kills the brokers.
pub(crate) struct Cluster {
    nodes: Vec<Node>,
    brokers: String,
}

struct Node {
    id: i32,
    directory: PathBuf,
    process: Mutex<Option<Process>>,
}

impl Cluster {
    /// Starts a cluster, and waits until the metadata has all brokers.
    #[track_caller]
    pub(crate) fn start() -> Cluster {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let base =
            run_directory().join(format!("cluster-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir(&base).expect("directory of a cluster");
        let ports: Vec<(u16, u16)> = NODES.iter().map(|_| (free_port(), free_port())).collect();
        let voters: Vec<String> = NODES
            .iter()
            .zip(&ports)
            .map(|(id, (_, controller))| format!("{id}@127.0.0.1:{controller}"))
            .collect();
        let addresses: Vec<String> = ports
            .iter()
            .map(|(port, _)| format!("127.0.0.1:{port}"))
            .collect();
        let nodes = NODES.iter().zip(&ports).map(|(id, ports)| {
            let directory = base.join(id.to_string());
            std::fs::create_dir(&directory).expect("directory of a broker");
            format_log(*id, &directory);
            let text = configuration(*id, &directory.join("log"), *ports, &voters.join(","));
            std::fs::write(directory.join("server.properties"), text).expect("server.properties");
            Node {
                id: *id,
                directory,
                process: Mutex::new(None),
            }
        });
        let cluster = Cluster {
            nodes: nodes.collect(),
            brokers: addresses.join(","),
        };
        cluster
            .nodes
            .iter()
            .for_each(|node| logs_to(&cluster.brokers, &node.directory.join(LOG)));
        NODES.iter().for_each(|id| cluster.spawn(*id));
        let seen = || {
            metadata(&cluster.brokers, None, ANSWER).map_or(0, |metadata| metadata.brokers().len())
        };
        let whole = wait::until(START_DEADLINE, || (seen() == NODES.len()).then_some(()));
        assert!(
            whole.is_some(),
            "the cluster did not start:\n{}",
            cluster.log_tails()
        );
        cluster
    }

    pub(crate) fn brokers(&self) -> &str {
        &self.brokers
    }

    /// The leader of a partition of `topic`, if it has one at present.
    pub(crate) fn leader(&self, topic: &str, partition: i32) -> Option<i32> {
        let metadata = metadata(&self.brokers, Some(topic), ANSWER)?;
        let mut partitions = metadata
            .topics()
            .iter()
            .flat_map(|topic| topic.partitions());
        Some(partitions.find(|found| found.id() == partition)?.leader())
            .filter(|leader| *leader > 0)
    }

    pub(crate) fn kill_hard(&self, id: i32) {
        if let Some(mut process) = self.node(id).process.lock().expect("process").take() {
            process.kill_hard();
        }
    }

    /// Sends SIGTERM and waits for the end: the broker first hands its leaderships over.
    #[track_caller]
    pub(crate) fn stop(&self, id: i32) {
        if let Some(mut process) = self.node(id).process.lock().expect("process").take() {
            process.signal("TERM");
            process.wait_exit(START_DEADLINE);
        }
    }

    /// Sends SIGSTOP: connections stay open, and other brokers become leaders after the session
    /// timeout.
    pub(crate) fn freeze(&self, id: i32) {
        self.signal(id, "STOP");
    }

    pub(crate) fn thaw(&self, id: i32) {
        self.signal(id, "CONT");
    }

    fn signal(&self, id: i32, name: &str) {
        if let Some(process) = self.node(id).process.lock().expect("process").as_mut() {
            process.signal(name);
        }
    }

    /// Starts it with its log directory and ports; does not wait.
    #[track_caller]
    pub(crate) fn spawn(&self, id: i32) {
        let node = self.node(id);
        // Three brokers on two cores: the time of the start matters more than the speed afterwards.
        let process = launch("-Xmx256m", &node.directory);
        let before = node.process.lock().expect("process").replace(process);
        assert!(before.is_none(), "broker {id} already runs");
    }

    /// Waits until each partition of these topics has a leader, and all brokers are in sync.
    #[track_caller]
    pub(crate) fn wait_in_sync(&self, topics: &[String]) {
        let look = || {
            let in_sync = |topic: &String| {
                let metadata = metadata(&self.brokers, Some(topic), ANSWER)?;
                let partitions: Vec<_> = metadata
                    .topics()
                    .iter()
                    .flat_map(|topic| topic.partitions())
                    .collect();
                let least = partitions
                    .iter()
                    .map(|found| {
                        if found.leader() > 0 {
                            found.isr().len()
                        } else {
                            0
                        }
                    })
                    .min();
                least.filter(|least| *least == NODES.len())
            };
            topics.iter().all(|topic| in_sync(topic).is_some())
        };
        eventually("all are in sync", START_DEADLINE, look, |in_sync| *in_sync);
    }

    fn node(&self, id: i32) -> &Node {
        self.nodes
            .iter()
            .find(|node| node.id == id)
            .expect("a broker of this cluster")
    }

    fn log_tails(&self) -> String {
        let tail = |node: &Node| {
            let process = node.process.lock().expect("process");
            process
                .as_ref()
                .map_or_else(String::new, |process| process.log_tail(15))
        };
        self.nodes
            .iter()
            .map(tail)
            .collect::<Vec<_>>()
            .join("\n---\n")
    }
}

/// Makes a formatted log directory for node `id`: a copy of another one, with ids of its own.
fn format_log(id: i32, directory: &std::path::Path) {
    copy_formatted(1, &directory.join("log"));
    let path = directory.join("log/meta.properties");
    let text = std::fs::read_to_string(&path).expect("meta.properties");
    // Sixteen bytes as base64: the last letter encodes two bits only.
    let letters: String = std::iter::repeat_with(fastrand::alphanumeric)
        .take(21)
        .chain(['A'])
        .collect();
    let line = |line: &str| match line.split_once('=') {
        Some(("node.id", _)) => format!("node.id={id}\n"),
        Some(("directory.id", _)) => format!("directory.id={letters}\n"),
        _ => format!("{line}\n"),
    };
    std::fs::write(&path, text.lines().map(line).collect::<String>()).expect("meta.properties");
}

fn configuration(
    id: i32,
    log: &std::path::Path,
    (port, controller): (u16, u16),
    voters: &str,
) -> String {
    format!(
        "process.roles=broker,controller\nnode.id={id}\ncontroller.quorum.voters={voters}\n\
         listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n\
         listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
         controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n\
         log.dirs={log}\n\
         num.partitions={PARTITIONS}\nauto.create.topics.enable=true\nnum.network.threads=1\n\
         num.io.threads=2\n\
         default.replication.factor=3\nmin.insync.replicas=2\noffsets.topic.num.partitions=1\n\
         transaction.state.log.num.partitions=1\nlog.message.timestamp.type=LogAppendTime\n\
         transaction.abort.timed.out.transaction.cleanup.interval.ms={ABORTS_MS}\n\
         broker.session.timeout.ms={SESSION_MS}\nbroker.heartbeat.interval.ms={}\n\
         replica.lag.time.max.ms=10000\nlog.index.size.max.bytes={INDEX_BYTES}\n",
        SESSION_MS / 4,
        log = log.display()
    )
}
