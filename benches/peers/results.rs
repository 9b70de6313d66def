//! What was measured, as it is kept between runs.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cpu;

/// One contestant's turn.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    /// What it was given to do, such as `500/s`.
    pub(crate) load: String,
    pub(crate) contestant: String,
    pub(crate) round: u32,
    /// By name, with the unit in it.
    pub(crate) figures: BTreeMap<String, f64>,
    /// Why it does not count: what was lost, came twice or out of order. Empty where it does.
    #[serde(default)]
    pub(crate) fault: String,
}

impl Run {
    pub(crate) fn new(load: &str, contestant: &str, round: u32) -> Run {
        let load = load.to_owned();
        let contestant = contestant.to_owned();
        Run {
            load,
            contestant,
            round,
            figures: BTreeMap::new(),
            fault: String::new(),
        }
    }

    pub(crate) fn with(mut self, name: &str, value: f64) -> Run {
        self.figures.insert(name.to_owned(), value);
        self
    }

    pub(crate) fn faulty(mut self, fault: &str) -> Run {
        fault.clone_into(&mut self.fault);
        self
    }
}

/// All turns of one bench.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) bench: String,
    pub(crate) machine: Vec<(String, String)>,
    pub(crate) runs: Vec<Run>,
}

impl Results {
    pub(crate) fn new(bench: &str) -> Results {
        Results {
            bench: bench.to_owned(),
            machine: cpu::machine(),
            runs: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, run: Run) {
        self.runs.push(run);
    }

    pub(crate) fn write(&self, directory: &Path) {
        std::fs::create_dir_all(directory).expect("a directory for results");
        let text = serde_json::to_string_pretty(self).expect("results as JSON");
        std::fs::write(directory.join(format!("{}.json", self.bench)), text).expect("results");
    }

    /// What was kept of a bench, if it was ever run.
    pub(crate) fn read(directory: &Path, bench: &str) -> Option<Results> {
        let text = std::fs::read_to_string(directory.join(format!("{bench}.json"))).ok()?;
        Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{bench}.json: {error}")))
    }

    /// Loads in the order they were measured.
    pub(crate) fn loads(&self) -> Vec<&str> {
        in_order(self.runs.iter().map(|run| run.load.as_str()))
    }

    /// Contestants of a load, in the order they had their turns.
    pub(crate) fn contestants(&self, load: &str) -> Vec<&str> {
        in_order(
            self.runs
                .iter()
                .filter(|run| run.load == load)
                .map(|run| run.contestant.as_str()),
        )
    }

    /// The median of a figure over the rounds that count.
    pub(crate) fn median(&self, load: &str, contestant: &str, figure: &str) -> Option<f64> {
        median(
            self.counted(load, contestant)
                .filter_map(|run| run.figures.get(figure).copied())
                .collect(),
        )
    }

    /// The median over rounds of a figure as a multiple of the same round's of another contestant.
    pub(crate) fn ratio(
        &self,
        load: &str,
        contestant: &str,
        figure: &str,
        reference: &str,
    ) -> Option<f64> {
        let of_round = |round| {
            self.counted(load, reference)
                .find(|run| run.round == round)?
                .figures
                .get(figure)
                .copied()
        };
        let ratios = self
            .counted(load, contestant)
            .filter_map(|run| Some(run.figures.get(figure)? / of_round(run.round)?));
        median(ratios.filter(|ratio| ratio.is_finite()).collect())
    }

    /// How many rounds of a contestant count, and how many there were.
    pub(crate) fn rounds(&self, load: &str, contestant: &str) -> (usize, usize) {
        let all = self
            .runs
            .iter()
            .filter(|run| run.load == load && run.contestant == contestant)
            .count();
        (self.counted(load, contestant).count(), all)
    }

    fn counted<'a>(
        &'a self,
        load: &'a str,
        contestant: &'a str,
    ) -> impl Iterator<Item = &'a Run> + 'a {
        self.runs.iter().filter(move |run| {
            run.load == load && run.contestant == contestant && run.fault.is_empty()
        })
    }
}

fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len().is_multiple_of(2) {
        f64::midpoint(values[middle - 1], upper)
    } else {
        upper
    })
}

/// The value that `share` of the sorted ones are at or below.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}
