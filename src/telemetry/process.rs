//! The metrics of the process, with the names that Prometheus' client libraries use. Read from
//! `/proc` at each scrape; a value that is not there is not exposed.

use std::fmt;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use rustix::time::{ClockId, clock_gettime};

#[derive(Debug)]
pub(super) struct Process {
    started: f64,
}

impl Default for Process {
    fn default() -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Process {
            started: since_epoch.as_secs_f64(),
        }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauge = |name: &str, help: &str, value: Option<f64>| {
            let Some(value) = value else { return Ok(()) };
            ConstGauge::new(value).encode(encoder.encode_descriptor(
                name,
                help,
                None,
                MetricType::Gauge,
            )?)
        };
        gauge(
            "process_start_time_seconds",
            "Start of the process since the epoch",
            Some(self.started),
        )?;
        gauge(
            "process_resident_memory_bytes",
            "Resident memory",
            kibibytes("VmRSS:"),
        )?;
        gauge(
            "process_virtual_memory_bytes",
            "Virtual memory",
            kibibytes("VmSize:"),
        )?;
        gauge("process_threads", "Threads", field("status", "Threads:"))?;
        gauge(
            "process_max_fds",
            "Most open file descriptors",
            field("limits", "Max open files"),
        )?;
        // The one that reads the folder is among them.
        let open = fs::read_dir("/proc/self/fd")
            .ok()
            .map(|found| found.count().saturating_sub(1) as f64);
        gauge("process_open_fds", "Open file descriptors", open)?;
        let used = clock_gettime(ClockId::ProcessCPUTime);
        let seconds = used.tv_sec as f64 + used.tv_nsec as f64 / 1e9;
        let help = "CPU time of user and system";
        let cpu =
            encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
        ConstCounter::new(seconds).encode(cpu)
    }
}

/// The number after `name` in a file of `/proc/self`.
fn field(file: &str, name: &str) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/self/{file}")).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

fn kibibytes(name: &str) -> Option<f64> {
    Some(field("status", name)? * 1024.0)
}
