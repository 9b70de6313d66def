//! What processes used, as the kernel counts it.

use crate::support::process::cpu_ms_of;

/// Milliseconds of CPU all the brokers this bench started have used.
pub(crate) fn brokers_ms() -> u64 {
    let ours = format!("PPid:\t{}\n", std::process::id());
    let processes = std::fs::read_dir("/proc").expect("/proc");
    let pids = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of_file = |pid: u32, file: &str| {
        std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
    };
    pids.filter(|pid| {
        of_file(*pid, "status").contains(&ours) && of_file(*pid, "cmdline").contains("kafka.Kafka")
    })
    .filter_map(cpu_ms_of)
    .sum()
}

/// Milliseconds of CPU that all processes of the machine have used.
pub(crate) fn machine_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").expect("/proc/stat");
    let all = stat.lines().next().unwrap_or_default();
    // user nice system idle iowait irq softirq, in hundredths of a second
    let ticks = all.split_ascii_whitespace().skip(1).take(7);
    let busy = ticks.enumerate().filter(|(at, _)| !matches!(at, 3 | 4));
    busy.filter_map(|(_, ticks)| ticks.parse::<u64>().ok())
        .sum::<u64>()
        * 10
}

/// CPU of a process that may end before anybody asks again: what was seen last, and since when.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Watched {
    pub(crate) pid: Option<u32>,
    first_ms: u64,
    last_ms: u64,
}

impl Watched {
    /// Looks once more.
    pub(crate) fn look(&mut self, pid: Option<u32>) {
        let Some((pid, ms)) = pid.and_then(|pid| Some((pid, cpu_ms_of(pid)?))) else {
            return;
        };
        if self.pid != Some(pid) {
            // What came before the one that is looked at now counts as well; what it did before it
            // was looked at does too, because a walsender is new for whoever connects.
            self.first_ms = 0u64.wrapping_sub(self.used_ms());
            self.pid = Some(pid);
        }
        self.last_ms = ms;
    }

    pub(crate) fn used_ms(&self) -> u64 {
        self.last_ms.wrapping_sub(self.first_ms)
    }
}

/// The machine the figures are of: name, value.
pub(crate) fn machine() -> Vec<(String, String)> {
    let of_file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':'))
            .map(|(_, value)| value.trim().to_owned())
            .unwrap_or_default()
    };
    let cpu = field(&of_file("/proc/cpuinfo"), "model name");
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let memory_kib: u64 = field(&of_file("/proc/meminfo"), "MemTotal")
        .split(' ')
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let kernel = of_file("/proc/sys/kernel/osrelease").trim().to_owned();
    vec![
        (
            "CPU".to_owned(),
            format!("{cpu}, {cores} cores for everything"),
        ),
        (
            "memory".to_owned(),
            format!("{} GiB", memory_kib.div_ceil(1 << 20)),
        ),
        ("kernel".to_owned(), format!("Linux {kernel}")),
    ]
}
