//! What the page shows of one instant, and the last hour.
//!
//! The figures are read from the text of `/metrics`: both pages show the same, and a new metric
//! needs nothing here.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::telemetry::doing::Doing;
use crate::telemetry::failures::Failure;
use crate::telemetry::{Metrics, Telemetry};
use walrelay_core::clock::now_us;
use walrelay_core::readiness::NotReady;

/// The pictures show so many samples; each has the highest of so many ticks, and a tick is a
/// second.
pub(super) const SAMPLES_MAX: usize = 180;
pub(super) const SAMPLE_SECONDS: u64 = 20;
/// Rates are those of the last ten seconds at most. Over less than half a second, a rate would say
/// nothing.
const RATE_WITHIN: Duration = Duration::from_secs(10);
const RATE_SECONDS_MIN: f64 = 0.5;

pub(super) const LAG_SECONDS: &str = "walrelay_lag_seconds";
pub(super) const LAG_BYTES: &str = "walrelay_lag_bytes";
pub(super) const RETAINED: &str = "walrelay_retained_wal_bytes";
pub(super) const DRAWN: [&str; 3] = [LAG_BYTES, LAG_SECONDS, RETAINED];

/// The metrics of one instant, by name and labels as in `/metrics`, without buckets; and flows by
/// their names.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures(BTreeMap<String, f64>);

impl Figures {
    fn of(telemetry: &Telemetry) -> Figures {
        let text = telemetry.encode().unwrap_or_default();
        let lines = text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.contains("_bucket{"));
        let samples = lines.filter_map(|line| line.rsplit_once(' '));
        let samples =
            samples.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)));
        let flows = telemetry.flows.borrow().clone();
        Figures(
            samples
                .chain(
                    flows
                        .into_iter()
                        .map(|flow| (flow.name, flow.events as f64)),
                )
                .collect(),
        )
    }

    pub(super) fn get(&self, sample: &str) -> Option<f64> {
        self.0.get(sample).copied()
    }

    /// The samples of a metric that have this label: the label's value, and the whole name.
    pub(super) fn by_label(&self, metric: &str, label: &str) -> Vec<(String, &str)> {
        let samples = self.0.keys().filter(|name| {
            name.strip_prefix(metric)
                .is_some_and(|rest| rest.starts_with('{'))
        });
        samples
            .filter_map(|name| Some((value_of(name, label)?, name.as_str())))
            .collect()
    }

    pub(super) fn info(&self, metric: &str, label: &str) -> Option<String> {
        self.by_label(metric, label)
            .into_iter()
            .map(|(value, _)| value)
            .next()
    }
}

/// The value of a label in the name of a sample.
fn value_of(sample: &str, label: &str) -> Option<String> {
    let (_, rest) = sample.split_once(&format!("{label}=\""))?;
    let end = rest.find("\",").or_else(|| rest.find("\"}"))?;
    Some(rest.get(..end)?.replace("\\\"", "\""))
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// Of [`DRAWN`]; none where nothing was known.
    pub(super) highest: [Option<f64>; 3],
    /// Whether the relay was not ready at any time, and should have been.
    pub(super) is_out: bool,
}

/// The last hour in samples, and what was looked at in the last seconds in full. Its size is
/// bounded.
#[derive(Debug, Default)]
pub(super) struct History {
    ticks: u64,
    hour: VecDeque<Sample>,
    /// Empty while nobody looks.
    recent: VecDeque<(Instant, Figures)>,
}

impl History {
    /// Takes the figures of a further second, which ends at `now`.
    pub(super) fn tick(&mut self, telemetry: &Telemetry, now: Instant) {
        let not_ready = telemetry.health.not_ready();
        let is_out = !matches!(
            not_ready,
            None | Some(NotReady::Starting | NotReady::StandingBy(_))
        );
        let figures = drawn(&telemetry.metrics);
        match self.hour.back_mut() {
            Some(newest) if !self.ticks.is_multiple_of(SAMPLE_SECONDS) => {
                newest.is_out |= is_out;
                for (highest, figure) in newest.highest.iter_mut().zip(figures) {
                    *highest = [*highest, figure].into_iter().flatten().reduce(f64::max);
                }
            }
            Some(_) | None => self.hour.push_back(Sample {
                highest: figures,
                is_out,
            }),
        }
        self.ticks += 1;
        self.hour
            .drain(..self.hour.len().saturating_sub(SAMPLES_MAX));
        self.forget_old(now);
    }

    /// Keeps what somebody looks at, and gives the figures of some seconds ago.
    fn looked(&mut self, figures: &Figures, now: Instant) -> Option<(f64, Figures)> {
        self.forget_old(now);
        let seconds_since = |then: Instant| now.duration_since(then).as_secs_f64();
        let before = self
            .recent
            .front()
            .map(|(then, figures)| (seconds_since(*then), figures.clone()));
        if self
            .recent
            .back()
            .is_none_or(|(then, _)| seconds_since(*then) >= RATE_SECONDS_MIN)
        {
            self.recent.push_back((now, figures.clone()));
        }
        before
    }

    fn forget_old(&mut self, now: Instant) {
        self.recent
            .retain(|(then, _)| now.duration_since(*then) <= RATE_WITHIN);
    }
}

fn drawn(metrics: &Metrics) -> [Option<f64>; 3] {
    let bytes = |bytes: u64| bytes as f64;
    let lag_seconds = metrics.is_of_relay().then(|| metrics.lag_seconds(now_us()));
    [
        metrics.lag_bytes().map(bytes),
        lag_seconds,
        metrics.retained_wal_bytes().map(bytes),
    ]
}

#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) bus: &'static str,
    pub(super) at: Timestamp,
    pub(super) figures: Figures,
    /// The figures of some seconds ago, and how many seconds.
    before: Option<(f64, Figures)>,
    /// Their names, in order.
    pub(super) flows: Vec<String>,
    /// Oldest first.
    pub(super) hour: Vec<Sample>,
    pub(super) doing: Doing,
    /// Newest first.
    pub(super) failures: Vec<Failure>,
    pub(super) stand_by_pids: Vec<i32>,
}

impl Snapshot {
    pub(super) fn take(telemetry: &Telemetry, history: &mut History, now: Instant) -> Snapshot {
        let figures = Figures::of(telemetry);
        Snapshot {
            bus: telemetry.bus.name,
            at: Timestamp::now(),
            before: history.looked(&figures, now),
            figures,
            flows: telemetry
                .flows
                .borrow()
                .iter()
                .map(|flow| flow.name.clone())
                .collect(),
            hour: history.hour.iter().copied().collect(),
            doing: Doing::of(telemetry),
            failures: telemetry.failures.newest_first(),
            stand_by_pids: telemetry.stand_by_pids.borrow().clone(),
        }
    }

    /// By how much a counter or a flow grew in a second, lately; `None` while unknown, as of a
    /// topic that was not among the busiest.
    pub(super) fn rate(&self, sample: &str) -> Option<f64> {
        let (seconds, before) = self
            .before
            .as_ref()
            .filter(|(seconds, _)| *seconds >= RATE_SECONDS_MIN)?;
        // Flows are counted anew with each producer.
        Some((self.figures.get(sample)? - before.get(sample)?).max(0.0) / seconds)
    }
}
