//! The test environment: real servers, proxies, and writers.

pub(crate) mod certificates;
pub(crate) mod fake;
pub(crate) mod guardian;
#[path = "../../crates/core/tests/simulation/pgoutput.rs"]
pub(crate) mod pgoutput;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod relay;
pub(crate) mod seed;
pub(crate) mod servers;
pub(crate) mod sql;
pub(crate) mod topic;
pub(crate) mod wait;
pub(crate) mod watchdog;
pub(crate) mod workload;
pub(crate) mod world;
