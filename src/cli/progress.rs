//! The progress of a command, as a bar at the terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::output::{Output, note};
use walrelay_core::printable::printable;

/// A command that ends sooner shows no bar.
const SHOWN_AFTER: Duration = Duration::from_millis(500);
const REDRAW: Duration = Duration::from_millis(100);

const OF_ALL: &str = "[{bar:24}] {human_pos}/{human_len} {msg}, {eta} left";
const OF_UNKNOWN: &str = "{spinner} {human_pos} {msg}, {elapsed}";

/// A bar on standard error, without colours. Dropping it clears its line: drop it before the
/// command prints or asks.
#[derive(Debug)]
pub(crate) struct Bar {
    may_show: bool,
    shown: Option<ProgressBar>,
    next: Instant,
}

impl Bar {
    /// Shows nothing if standard error is no terminal, or if the result is for a program.
    pub(crate) fn new(output: Output) -> Bar {
        let may_show = !output.is_data() && !ProgressDrawTarget::stderr().is_hidden();
        Bar {
            may_show,
            shown: None,
            next: Instant::now() + SHOWN_AFTER,
        }
    }

    /// Shows that `done` of `of` are done; `what` says of which things, such as `rows of
    /// public.outbox read`. `of` is `None` if the number of all is not known. Most calls do
    /// nothing, and do not call `what`.
    pub(crate) fn at(&mut self, done: u64, of: Option<u64>, what: impl FnOnce() -> String) {
        if !self.may_show || Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + REDRAW;
        let goes_on = |bar: &ProgressBar| bar.length() == of && bar.position() <= done;
        let bar = match self.shown.take().filter(goes_on) {
            Some(bar) => bar,
            None => begun(of),
        };
        bar.set_position(done);
        bar.set_message(printable(&what()).into_owned());
        self.shown = Some(bar);
    }

    /// Prints a line as [`note`], above the bar.
    fn note(&self, text: &str) {
        match &self.shown {
            Some(bar) => bar.suspend(|| note(text)),
            None => note(text),
        }
    }
}

/// A bar for records that are sent. A line says when the bus does not answer, also where there is
/// no terminal.
#[derive(Debug)]
pub(crate) struct Sending {
    bar: Bar,
    what: &'static str,
    is_answered: bool,
}

impl Sending {
    pub(crate) fn new(output: Output, what: &'static str) -> Sending {
        Sending {
            bar: Bar::new(output),
            what,
            is_answered: true,
        }
    }

    /// As [`Bar::at`]. `is_answered` tells whether the bus answers.
    pub(crate) fn at(&mut self, done: u64, of: u64, is_answered: bool) {
        if self.is_answered && !is_answered {
            self.bar.note("note: the bus does not answer");
        }
        self.is_answered = is_answered;
        self.bar.at(done, Some(of), || self.what.to_owned());
    }
}

fn begun(of: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(of, ProgressDrawTarget::stderr());
    let template = if of.is_some() { OF_ALL } else { OF_UNKNOWN };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        // A test has these templates: the default style is for nobody.
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::Form;

    #[test]
    fn the_templates_of_the_bars_are_valid() {
        for template in [OF_ALL, OF_UNKNOWN] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn no_bar_is_shown_beside_output_for_a_program() {
        for form in [Form::Json, Form::Yaml] {
            let mut bar = Bar::new(Output { form, json: false });
            bar.next = Instant::now();
            bar.at(1, Some(2), || panic!("asked for words that nobody reads"));
            assert!(bar.shown.is_none());
        }
    }

    #[test]
    fn a_bar_is_shown_after_half_a_second_and_begins_again_with_another_total() {
        let mut bar = Bar {
            may_show: true,
            shown: None,
            next: Instant::now() + SHOWN_AFTER,
        };
        bar.at(1, Some(20), || panic!("asked too soon"));
        let mut at = |done, of| {
            bar.next = Instant::now();
            bar.at(done, of, || "rows".to_owned());
            bar.shown
                .as_ref()
                .map(|bar| (bar.position(), bar.length(), bar.message()))
        };
        assert_eq!(at(10, Some(20)), Some((10, Some(20), "rows".to_owned())));
        assert_eq!(at(20, Some(20)), Some((20, Some(20), "rows".to_owned())));
        assert_eq!(at(3, None), Some((3, None, "rows".to_owned())));
    }
}
