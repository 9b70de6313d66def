//! Real servers: one Kafka and one Postgres for all tests of the process, and private ones for tests that disturb them.

pub(crate) mod cluster;
pub(crate) mod kafka;
pub(crate) mod postgres;

use std::path::{Path, PathBuf};

pub(crate) use cluster::Cluster;
pub(crate) use kafka::Kafka;
pub(crate) use postgres::Postgres;

/// The directory in which `scripts/prerequisites` puts the servers.
fn directory() -> PathBuf {
    match std::env::var_os("WALRELAY_TEST_SERVERS") {
        Some(directory) => directory.into(),
        None => Path::new(crate::ROOT).join("target/test-servers"),
    }
}

#[track_caller]
pub(crate) fn free_port() -> u16 {
    walrelay::demo::postgres::free_port().expect("a free port")
}

#[track_caller]
fn missing(what: &str) -> ! {
    panic!("a prerequisite of the tests is missing: {what}; run scripts/prerequisites")
}
