//! The metrics of the process, with the names that Prometheus' client libraries use. Read from `/proc` at each scrape;
//! a value that is not there is not exposed.

use std::fmt;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Ticks of CPU time in a second, as `/proc` has them on all platforms that walrelay runs on.
const TICKS: f64 = 100.0;

/// The metrics of this process.
#[derive(Debug)]
pub(super) struct Process {
    started: f64,
}

impl Default for Process {
    fn default() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Process { started: since_epoch.as_secs_f64() }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauge = |name: &str, help: &str, value: Option<f64>| {
            let Some(value) = value else { return Ok(()) };
            ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        gauge("process_start_time_seconds", "Start of the process since the epoch", Some(self.started))?;
        gauge("process_resident_memory_bytes", "Resident memory", kibibytes("VmRSS:"))?;
        gauge("process_virtual_memory_bytes", "Virtual memory", kibibytes("VmSize:"))?;
        gauge("process_threads", "Threads", field("status", "Threads:"))?;
        gauge("process_max_fds", "Most open file descriptors", field("limits", "Max open files"))?;
        // The one that reads the folder is among them.
        let open = fs::read_dir("/proc/self/fd").ok().map(|found| found.count().saturating_sub(1) as f64);
        gauge("process_open_fds", "Open file descriptors", open)?;
        let Some(seconds) = cpu_seconds() else { return Ok(()) };
        let help = "CPU time of user and system";
        let cpu = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
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

fn cpu_seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may have any characters; utime and stime are the 12th and 13th field after it.
    let (_, fields) = text.rsplit_once(") ")?;
    let ticks: Vec<f64> = fields.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse().ok()).collect();
    (ticks.len() == 2).then(|| ticks.iter().sum::<f64>() / TICKS)
}
