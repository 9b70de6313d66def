//! Checks of what a relay needs, each with what mends it. Postgres and the bus add theirs.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde::Serialize;

use crate::source::preflight::Finding;
use walrelay_core::config::OnError;
use walrelay_core::error::{Error, Errors, Kind, Remedy, Result};
use walrelay_core::route::OwnedRecord;

/// What Postgres says about the bus.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) system_identifier: Option<String>,
    /// Topics of events, with the largest record that was seen.
    pub(crate) topics: BTreeMap<String, Option<Largest>>,
}

/// The largest record for a topic, or one that the bus can never take.
#[derive(Debug, Clone)]
pub(crate) struct Largest {
    pub(crate) record: OwnedRecord,
    /// As the bus counts them.
    pub(crate) bytes: usize,
    /// The id of its row.
    pub(crate) row: String,
    /// Whether the bus can take it, as far as its client tells.
    pub(crate) admitted: Result<()>,
}

/// The names of checks of the bus: whether it answers, has what records need, and lets us write.
pub(crate) const BUS: &str = "bus";
pub(crate) const TOPIC: &str = "topic";
pub(crate) const TOPIC_RIGHTS: &str = "topic-rights";

pub(crate) const OK: &str = "ok";
pub(crate) const WARNING: &str = "warning";
pub(crate) const WRONG: &str = "wrong";

/// The fields are the keys of `--json`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Check {
    pub(crate) check: &'static str,
    /// The table, topic or slot; empty where there is only one subject.
    pub(crate) subject: String,
    pub(crate) state: &'static str,
    pub(crate) found: String,
    pub(crate) fix: Option<String>,
    /// Of a check that is wrong.
    #[serde(skip)]
    pub(crate) error: Option<Error>,
}

#[derive(Default, Serialize)]
pub(crate) struct Survey {
    pub(crate) checks: Vec<Check>,
}

impl Survey {
    /// The first error of a check, with all others.
    pub(crate) fn ended(&self) -> Result<()> {
        let mut errors = Errors::default();
        self.checks
            .iter()
            .filter_map(|check| check.error.clone())
            .for_each(|error| errors.add(error));
        errors.result(Some(()))
    }

    pub(crate) fn ok(&mut self, check: &'static str, subject: impl Display, found: impl Display) {
        let subject = subject.to_string();
        let found = found.to_string();
        self.add(Check {
            check,
            subject,
            state: OK,
            found,
            fix: None,
            error: None,
        });
    }

    pub(crate) fn warning(
        &mut self,
        check: &'static str,
        subject: impl Display,
        found: impl Display,
        fix: Option<Remedy>,
    ) {
        let error = Error::new(Kind::Unhealthy, found);
        self.risk(check, subject, &fix.into_iter().fold(error, Error::remedy));
    }

    pub(crate) fn risk(&mut self, check: &'static str, subject: impl Display, error: &Error) {
        self.add(failed(check, subject, error));
    }

    pub(crate) fn wrong(&mut self, check: &'static str, subject: impl Display, error: &Error) {
        self.add(Check {
            state: WRONG,
            error: Some(error.clone()),
            ..failed(check, subject, error)
        });
    }

    pub(crate) fn judged(
        &mut self,
        check: &'static str,
        subject: impl Display,
        judged: Result<()>,
        fits: &str,
    ) {
        match judged {
            Ok(()) => self.ok(check, subject, fits),
            Err(error) => self.wrong(check, subject, &error),
        }
    }

    /// What was found out about the events of some rows. One that cannot be delivered is a risk
    /// where the relay stops at it.
    pub(crate) fn of_rows(
        &mut self,
        check: &'static str,
        subject: impl Display,
        judged: Result<()>,
        on_error: OnError,
        fits: &str,
    ) {
        match judged {
            Ok(()) => self.ok(check, subject, fits),
            Err(error) if on_error == OnError::Stop => self.risk(check, subject, &error),
            Err(error) => self.ok(
                check,
                subject,
                error.because("delivery.on_error says what becomes of such events"),
            ),
        }
    }

    /// A finding of the relay's start; `fits` tells of one without a fault and without a note.
    pub(crate) fn finding(
        &mut self,
        Finding {
            check,
            subject,
            found,
        }: Finding,
        fits: &str,
    ) {
        let warnings = match found {
            Ok(warnings) => warnings,
            Err(error) => return self.wrong(check, subject, &error),
        };
        let (notes, risks): (Vec<_>, Vec<_>) =
            warnings.into_iter().partition(|warning| warning.is_note);
        let notes: Vec<String> = notes.into_iter().map(|note| note.text).collect();
        self.ok(
            check,
            &subject,
            if notes.is_empty() {
                fits.to_owned()
            } else {
                notes.join("; ")
            },
        );
        for risk in risks {
            self.warning(check, &subject, risk.text, risk.remedy.map(Remedy::from));
        }
    }

    /// Adds a line. Of the lines of one check and subject, those that are not ok replace the one
    /// that is.
    fn add(&mut self, check: Check) {
        let same =
            |known: &&mut Check| known.check == check.check && known.subject == check.subject;
        match self.checks.iter_mut().find(same) {
            Some(known) if known.state == OK => *known = check,
            Some(_) if check.state == OK => {}
            Some(_) | None => self.checks.push(check),
        }
    }
}

fn failed(check: &'static str, subject: impl Display, error: &Error) -> Check {
    Check {
        check,
        subject: subject.to_string(),
        state: WARNING,
        found: error.to_string(),
        fix: error.what_to_do(),
        error: None,
    }
}
