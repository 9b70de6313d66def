//! Real servers: one Kafka and one Postgres for all tests of the process, private ones for tests that hurt them.

pub(crate) mod cluster;
pub(crate) mod kafka;
pub(crate) mod postgres;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};

pub(crate) use cluster::Cluster;
pub(crate) use kafka::Kafka;
pub(crate) use postgres::Postgres;

/// Where `scripts/prerequisites` puts the servers.
fn directory() -> PathBuf {
    match std::env::var_os("WALRELAY_TEST_SERVERS") {
        Some(directory) => directory.into(),
        None => Path::new(crate::ROOT).join("target/test-servers"),
    }
}

/// A loopback port nobody listens on, below the range the kernel hands out to connecting sockets: such a port could
/// be taken by a client between this check and a server's restart.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 14_000;
    const COUNT: u16 = 16_000;
    // Runs that begin together have neighbouring process ids, and are to look in different places.
    const APART: u32 = 401;
    let start = (std::process::id().wrapping_mul(APART) % u32::from(COUNT)) as u16;
    for _ in 0..COUNT {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        if TcpListener::bind(("127.0.0.1", FIRST + offset)).is_ok() {
            return FIRST + offset;
        }
    }
    panic!("no loopback port is free");
}

#[track_caller]
fn missing(what: &str) -> ! {
    panic!("a prerequisite of the tests is missing: {what}; run scripts/prerequisites")
}
