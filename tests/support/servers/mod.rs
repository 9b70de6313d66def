//! Real servers: one Kafka and one Postgres for all tests of the process, and private ones for
//! tests that disturb them.

pub(crate) mod cluster;
pub(crate) mod kafka;
pub(crate) mod postgres;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

pub(crate) use cluster::Cluster;
pub(crate) use kafka::Kafka;
pub(crate) use postgres::Postgres;

use super::process::tail_of;

/// The directory in which `scripts/prerequisites` puts the servers.
fn directory() -> PathBuf {
    match std::env::var_os("WALRELAY_TEST_SERVERS") {
        Some(directory) => directory.into(),
        None => Path::new(crate::ROOT).join("target/test-servers"),
    }
}

/// The lowest port of [`free_port`].
const LOWEST_PORT: u16 = 10_000;

/// A loopback port without a listener. It is below the kernel's range for outgoing connections, and
/// no call returns it twice: nothing else uses the port before the caller does.
#[track_caller]
pub(crate) fn free_port() -> u16 {
    static BEYOND: LazyLock<u16> = LazyLock::new(|| {
        let range =
            std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
        range
            .split_whitespace()
            .next()
            .and_then(|first| first.parse().ok())
            .unwrap_or(32_768)
    });
    // Random: runs at the same time use different ports.
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(fastrand::u16(..)));
    let count = BEYOND.saturating_sub(LOWEST_PORT);
    for _ in 0..count {
        let port = LOWEST_PORT + NEXT.fetch_add(1, Ordering::Relaxed) % count;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    // The kernel's range begins below the lowest port.
    walrelay::demo::postgres::free_port().expect("a free port")
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
