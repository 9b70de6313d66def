//! What is shown on standard error while the demo runs.

use std::fmt;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

const LINE_EVERY: Duration = Duration::from_secs(5);

/// A bar on a terminal, plain lines elsewhere. Dropping it takes the bar away.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    total: Duration,
    line_at: Option<Instant>,
}

impl Progress {
    pub(super) fn new(total: Duration) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(u64::try_from(total.as_millis()).unwrap_or(u64::MAX));
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Progress { bar, total, line_at: None }
    }

    /// A step that is worth a line of its own.
    pub(super) fn say(&self, what: impl fmt::Display) {
        match &self.bar {
            Some(bar) => bar.println(what.to_string()),
            None => line(what),
        }
    }

    /// How far it is; on a terminal always shown, elsewhere every few seconds.
    pub(super) fn tick(&mut self, elapsed: Duration, what: impl fmt::Display) {
        if let Some(bar) = &self.bar {
            bar.set_position(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
            bar.set_message(what.to_string());
        } else if elapsed >= LINE_EVERY && self.line_at.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
            self.line_at = Some(Instant::now());
            line(format_args!("{:>3} of {} s: {what}", elapsed.as_secs(), self.total.as_secs()));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Nobody listening on standard error is no reason to stop.
fn line(what: impl fmt::Display) {
    drop(writeln!(std::io::stderr(), "{what}"));
}
