//! Real servers: one Kafka and one Postgres for all tests of the process, and private ones for
//! tests that disturb them.

pub(crate) mod cluster;
pub(crate) mod kafka;
pub(crate) mod nats;
pub(crate) mod postfix;
pub(crate) mod postgres;
pub(crate) mod rabbitmq;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub(crate) use cluster::Cluster;
pub(crate) use kafka::Kafka;
pub(crate) use nats::Nats;
pub(crate) use postfix::Postfix;
pub(crate) use postgres::Postgres;
pub(crate) use rabbitmq::Rabbitmq;

use super::process::tail_of;

/// The directory in which `scripts/prerequisites` puts the servers.
fn directory() -> PathBuf {
    match std::env::var_os("WALRELAY_TEST_SERVERS") {
        Some(directory) => directory.into(),
        None => Path::new(crate::ROOT).join("target/test-servers"),
    }
}

#[track_caller]
pub(crate) fn free_port() -> u16 {
    walrelay_lab::process::free_port().expect("a free port")
}

/// The log files of the servers of this run, by address.
static LOGS: Mutex<BTreeMap<String, Vec<PathBuf>>> = Mutex::new(BTreeMap::new());

/// Records the log file of the server at `address`.
fn logs_to(address: &str, log: &Path) {
    let mut logs = LOGS.lock().unwrap_or_else(PoisonError::into_inner);
    let of_server = logs.entry(address.to_owned()).or_default();
    if !of_server.iter().any(|known| known == log) {
        of_server.push(log.to_owned());
    }
}

/// The last lines of each log of the servers at `address`.
pub(crate) fn log_tails(address: &str, lines: usize) -> String {
    let logs = LOGS.lock().unwrap_or_else(PoisonError::into_inner);
    let tail = |log: &PathBuf| format!("{}:\n{}", log.display(), tail_of(log, lines));
    logs.get(address)
        .into_iter()
        .flatten()
        .map(tail)
        .collect::<Vec<_>>()
        .join("\n")
}

#[track_caller]
fn missing(what: &str) -> ! {
    panic!("a prerequisite of the tests is missing: {what}; run scripts/prerequisites")
}
