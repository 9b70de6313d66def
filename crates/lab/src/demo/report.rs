//! The outcome of a demo, as a table or as JSON.

use std::fmt;

use serde::Serialize;

use crate::verify::{Findings, Verdict};

const EXAMPLES_OF_EACH: usize = 3;

/// The outcome of one run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
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
    /// What the checker found.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Peak resident memory of this process, in bytes: relay, reader, writers and, where there is
    /// one, mock broker.
    pub peak_memory_bytes: Option<u64>,
    /// The first of each kind of defect, in words.
    pub examples: Vec<String>,
}

impl Report {
    /// The fields that follow from the verdict; the rest is empty.
    pub(super) fn new(verdict: Verdict) -> Self {
        // A run in which nothing was committed shows nothing.
        let verified = verdict.findings == Findings::default() && verdict.committed > 0;
        Report {
            verified,
            examples: verdict.findings.examples(EXAMPLES_OF_EACH),
            verdict,
            ..Report::default()
        }
    }

    /// The sentence for the error of a run that did not verify.
    pub fn summary(&self) -> String {
        let Verdict {
            committed,
            delivered,
            ..
        } = self.verdict;
        if committed == 0 {
            return "nothing was committed, so nothing was shown".to_owned();
        }
        let first = self
            .examples
            .first()
            .map(|example| format!("; first: {example}"))
            .unwrap_or_default();
        format!("{delivered} of {committed} events arrived, and not all as they should{first}")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |value: Option<f64>| {
            value.map_or_else(|| "unknown".to_owned(), |ms| format!("{ms:.1} ms"))
        };
        let memory = self.peak_memory_bytes.map_or_else(
            || "unknown".to_owned(),
            |bytes| format!("{} MiB", bytes >> 20),
        );
        let Verdict {
            committed,
            delivered,
            findings: of,
            ..
        } = &self.verdict;
        let mut rows = vec![
            ("committed", committed.to_string()),
            ("delivered", delivered.to_string()),
            ("lost", of.lost.len().to_string()),
            ("duplicated", of.duplicates.to_string()),
            ("out of order", of.out_of_order.len().to_string()),
        ];
        let phantom = of.phantom.len();
        let misplaced = of.misplaced.len();
        let altered = of.altered.len();
        let rare = [
            ("phantom", phantom),
            ("wrong partition", misplaced),
            ("altered", altered),
            ("unread", of.unread),
        ];
        let rare = rare.into_iter().filter(|(_, count)| *count > 0);
        rows.extend(rare.map(|(name, count)| (name, count.to_string())));
        rows.extend([
            (
                "commit to reader, p50",
                millis(self.verdict.commit_to_ack_p50_ms),
            ),
            (
                "commit to reader, p99",
                millis(self.verdict.commit_to_ack_p99_ms),
            ),
            ("peak memory", memory),
            (
                "verified",
                if self.verified { "yes" } else { "NO" }.to_owned(),
            ),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_an_aligned_table_or_json_and_nothing_committed_is_not_verified() {
        let verdict = Verdict {
            committed: 20_000,
            delivered: 20_000,
            ..Verdict::default()
        };
        let report = Report {
            peak_memory_bytes: Some(64 << 20),
            ..Report::new(verdict)
        };
        assert!(report.verified);
        let text = report.to_string();
        let value_ends: Vec<_> = text
            .lines()
            .map(|line| line.split("  whole").next().unwrap().len())
            .collect();
        assert!(
            value_ends.iter().all(|end| *end == value_ends[0]),
            "{value_ends:?}\n{text}"
        );
        assert!(
            text.starts_with("committed ") && text.lines().next().unwrap().ends_with(" 20000"),
            "{text}"
        );
        assert!(
            !text.contains("phantom") && text.contains("64 MiB"),
            "{text}"
        );
        let nothing = Report::new(Verdict::default());
        assert!(!nothing.verified && nothing.summary().contains("nothing was committed"));
        let findings = Findings {
            lost: vec![String::new(); 3],
            ..Findings::default()
        };
        let json = serde_json::to_value(Report::new(Verdict {
            committed: 10,
            findings,
            ..Verdict::default()
        }))
        .unwrap();
        assert_eq!(
            (&json["committed"], &json["lost"], &json["verified"]),
            (&10.into(), &3.into(), &false.into())
        );
        assert!(json["commit_to_ack_p99_ms"].is_null());
    }
}
