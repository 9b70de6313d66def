//! How the demo tells what came of it: one table, or one JSON object.

use std::fmt;
use std::fs;

use serde::Serialize;

use super::verify::{Findings, Verdict};

/// Defects of each kind that are named.
const EXAMPLES_OF_EACH: usize = 3;

/// How many of each there are.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Defects {
    /// Committed, never delivered.
    pub lost: usize,
    /// Records beyond the first of an event.
    pub duplicated: usize,
    /// First deliveries behind a later version of the same aggregate.
    pub out_of_order: usize,
    /// Delivered, never committed, or without an id.
    pub phantom: usize,
    /// In another topic or partition than the event's type and key call for.
    pub wrong_partition: usize,
    /// Key or value differ from the row.
    pub altered: usize,
    /// Offsets that exist and were not read.
    pub unread: usize,
}

/// The outcome of one run.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Report {
    /// Whether every committed event arrived once, whole, in order and in its place.
    pub verified: bool,
    /// Seconds the writers wrote.
    pub seconds: f64,
    /// Seed of the workload.
    pub seed: u64,
    /// Major version of Postgres.
    pub postgres: u32,
    /// `mock` or `named`.
    pub broker: &'static str,
    /// Committed events.
    pub committed: u64,
    /// Of those, how many arrived.
    pub delivered: u64,
    /// What is wrong.
    #[serde(flatten)]
    pub defects: Defects,
    /// Half of the events took at most this from their commit's time to a reader of the topic, in milliseconds: an upper
    /// bound of the time from commit to ack.
    pub commit_to_ack_p50_ms: Option<f64>,
    /// 99 of 100 events took at most this.
    pub commit_to_ack_p99_ms: Option<f64>,
    /// Peak resident memory of this process, in bytes: relay, reader, writers and, where there is one, mock broker.
    pub peak_memory_bytes: Option<u64>,
    /// The first defects in words.
    pub examples: Vec<String>,
}

impl Report {
    /// What follows from the verdict; the rest is empty.
    pub(super) fn new(verdict: &Verdict) -> Self {
        let findings = &verdict.findings;
        let defects = Defects {
            lost: findings.lost.len(),
            duplicated: findings.duplicates,
            out_of_order: findings.out_of_order.len(),
            phantom: findings.phantom.len(),
            wrong_partition: findings.misplaced.len(),
            altered: findings.altered.len(),
            unread: findings.unread,
        };
        Report {
            // A run in which nothing was committed shows nothing.
            verified: *findings == Findings::default() && verdict.committed > 0,
            committed: verdict.committed,
            delivered: verdict.delivered,
            commit_to_ack_p50_ms: verdict.latency_ms(0.50),
            commit_to_ack_p99_ms: verdict.latency_ms(0.99),
            defects,
            examples: findings.examples(EXAMPLES_OF_EACH),
            ..Report::default()
        }
    }

    /// The sentence for the error of a run that did not verify.
    pub(super) fn summary(&self) -> String {
        if self.committed == 0 {
            return "nothing was committed, so nothing was shown".to_owned();
        }
        let first = self.examples.first().map(|example| format!("; first: {example}")).unwrap_or_default();
        format!("{} of {} events arrived, and not all as they should{first}", self.delivered, self.committed)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |value: Option<f64>| value.map_or_else(|| "unknown".to_owned(), |ms| format!("{ms:.1} ms"));
        let memory =
            self.peak_memory_bytes.map_or_else(|| "unknown".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
        let Defects { lost, duplicated, out_of_order, phantom, wrong_partition, altered, unread } = &self.defects;
        let mut rows = vec![
            ("committed", self.committed.to_string()),
            ("delivered", self.delivered.to_string()),
            ("lost", lost.to_string()),
            ("duplicated", duplicated.to_string()),
            ("out of order", out_of_order.to_string()),
        ];
        let rare =
            [("phantom", phantom), ("wrong partition", wrong_partition), ("altered", altered), ("unread", unread)];
        let rare = rare.into_iter().filter(|(_, count)| **count > 0);
        rows.extend(rare.map(|(name, count)| (name, count.to_string())));
        rows.extend([
            ("commit to reader, p50", millis(self.commit_to_ack_p50_ms)),
            ("commit to reader, p99", millis(self.commit_to_ack_p99_ms)),
            ("peak memory", memory),
            ("verified", if self.verified { "yes" } else { "NO" }.to_owned()),
        ]);
        let name_width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let value_width = rows.iter().map(|(_, value)| value.len()).max().unwrap_or(0);
        for (name, value) in &rows {
            let note = match (*name, self.broker) {
                ("peak memory", "mock") => "  whole process, mock Kafka included",
                ("peak memory", _) => "  whole process",
                _ => "",
            };
            writeln!(f, "{name:<name_width$}  {value:>value_width$}{note}")?;
        }
        for example in &self.examples {
            writeln!(f, "  {example}")?;
        }
        Ok(())
    }
}

/// A size that the kernel tells in `/proc/PID/status`, such as `VmHWM:` (the peak of resident memory), in bytes.
pub fn memory_bytes(pid: u32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_aligned_and_a_clean_run_shows_no_rare_defects() {
        let verdict =
            Verdict { committed: 20_000, delivered: 20_000, latencies_us: vec![5_000; 9], ..Verdict::default() };
        let report = Report { peak_memory_bytes: Some(64 << 20), ..Report::new(&verdict) };
        assert!(report.verified);
        let text = report.to_string();
        let value_ends: Vec<_> = text.lines().map(|line| line.split("  whole").next().unwrap().len()).collect();
        assert!(value_ends.iter().all(|end| *end == value_ends[0]), "{value_ends:?}\n{text}");
        assert!(text.starts_with("committed ") && text.lines().next().unwrap().ends_with(" 20000"), "{text}");
        assert!(!text.contains("phantom") && text.contains("64 MiB"), "{text}");
    }

    #[test]
    fn nothing_committed_is_not_verified_and_says_so() {
        let report = Report::new(&Verdict::default());
        assert!(!report.verified);
        assert!(report.summary().contains("nothing was committed"));
    }

    #[test]
    fn the_json_object_has_the_numbers_at_its_top_level() {
        let findings = Findings { lost: vec![String::new(); 3], ..Findings::default() };
        let verdict = Verdict { committed: 10, delivered: 7, findings, ..Verdict::default() };
        let json = serde_json::to_value(Report::new(&verdict)).unwrap();
        assert_eq!((&json["committed"], &json["lost"], &json["verified"]), (&10.into(), &3.into(), &false.into()));
        assert!(json["commit_to_ack_p99_ms"].is_null());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_kernel_tells_our_peak_memory() {
        assert!(memory_bytes(std::process::id(), "VmHWM:").unwrap() > 1 << 20);
    }
}
