//! One survey of Postgres and the bus: a list of checks, each with what mends it. `doctor` and
//! `config check` show it. Reads only.

mod kafka;
mod postgres;
mod sample;

use std::fmt::Display;
use std::time::Duration;

use serde::Serialize;

pub(super) use self::kafka::addressed;
pub(super) use self::postgres::Place;
pub(super) use self::sample::{LIMIT as STATEMENT_LIMIT, Sampled, Values, described, readable};
use crate::config::Config;
use crate::source::preflight::Finding;
use walrelay_core::error::{Error, Errors, Kind, NextCommand, Remedy, Result};

/// The limit for all checks. Each question has one of its own, of at most half a minute, but a
/// table more is a question more.
const LIMIT: Duration = Duration::from_secs(120);

/// The checks without which a look at the position says nothing.
const BEFORE_POSITION: [&str; 7] = [
    "server",
    "role",
    "table",
    "slot",
    "publication",
    "kafka",
    "topic-rights",
];

/// The servers that a survey asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// Postgres, as if `walrelay setup` had made what it makes. For `config check`, to which only
    /// that is wrong which stops `run`.
    BeforeSetup,
    /// Postgres and Kafka. For `doctor`.
    Both,
}

impl Asked {
    /// What `pg_stat_activity` shows of the survey.
    fn application_name(self) -> &'static str {
        match self {
            Asked::BeforeSetup => "walrelay config check",
            Asked::Both => "walrelay doctor",
        }
    }
}

pub(super) const OK: &str = "ok";
pub(super) const WARNING: &str = "warning";
pub(super) const WRONG: &str = "wrong";

/// The fields are the keys of `--json`.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Check {
    pub(super) check: &'static str,
    /// The table, topic or slot; empty where there is only one subject.
    pub(super) subject: String,
    pub(super) state: &'static str,
    pub(super) found: String,
    pub(super) fix: Option<String>,
    /// Of a check that is wrong.
    #[serde(skip)]
    pub(super) error: Option<Error>,
}

#[derive(Serialize)]
pub(super) struct Survey<'a> {
    #[serde(skip)]
    complete: &'a dyn Fn(NextCommand) -> NextCommand,
    pub(super) checks: Vec<Check>,
}

impl<'a> Survey<'a> {
    /// `complete` adds the typed flags to a suggested command.
    pub(super) fn new(complete: &'a dyn Fn(NextCommand) -> NextCommand) -> Survey<'a> {
        Survey {
            complete,
            checks: Vec::new(),
        }
    }

    /// Adds the checks of the servers, within [`LIMIT`]. Gives what was read of Postgres, where it
    /// answers in time.
    pub(super) async fn look(&mut self, config: &Config, asked: Asked) -> Option<Place> {
        within_limit(self, async |survey| {
            let seen = postgres::look(config, asked, survey).await;
            if asked == Asked::Both {
                let cluster_id = kafka::look(config, &seen, survey).await;
                let is_unclear =
                    |check: &Check| check.state == WRONG && BEFORE_POSITION.contains(&check.check);
                if let Some(place) = seen
                    .place
                    .as_ref()
                    .filter(|_| !survey.checks.iter().any(is_unclear))
                {
                    postgres::position(config, place, cluster_id, survey).await;
                }
            }
            seen.place
        })
        .await
        .flatten()
    }

    /// The first error of a check, with all others.
    pub(super) fn ended(&self) -> Result<()> {
        let mut errors = Errors::default();
        self.checks
            .iter()
            .filter_map(|check| check.error.clone())
            .for_each(|error| errors.add(error));
        errors.result(Some(()))
    }

    pub(super) fn ok(&mut self, check: &'static str, subject: impl Display, found: impl Display) {
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

    pub(super) fn warning(
        &mut self,
        check: &'static str,
        subject: impl Display,
        found: impl Display,
        fix: Option<Remedy>,
    ) {
        let error = Error::new(Kind::Unhealthy, found);
        self.risk(check, subject, &fix.into_iter().fold(error, Error::remedy));
    }

    pub(super) fn risk(&mut self, check: &'static str, subject: impl Display, error: &Error) {
        self.add(self.failed(check, subject, error));
    }

    pub(super) fn wrong(&mut self, check: &'static str, subject: impl Display, error: &Error) {
        let failed = self.failed(check, subject, error);
        self.add(Check {
            state: WRONG,
            error: Some(error.clone().with_commands(self.complete)),
            ..failed
        });
    }

    fn failed(&self, check: &'static str, subject: impl Display, error: &Error) -> Check {
        let fix = error.clone().with_commands(self.complete).what_to_do();
        Check {
            check,
            subject: subject.to_string(),
            state: WARNING,
            found: error.to_string(),
            fix,
            error: None,
        }
    }

    pub(super) fn judged(
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

    /// A finding of the relay's start; `fits` tells of one without a fault and without a note.
    pub(super) fn finding(
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

async fn within_limit<T>(
    survey: &mut Survey<'_>,
    look: impl AsyncFnOnce(&mut Survey<'_>) -> T,
) -> Option<T> {
    if let Ok(found) = tokio::time::timeout(LIMIT, look(survey)).await {
        return Some(found);
    }
    let found = format!(
        "the checks took longer than {} s: what is not in this table was not asked",
        LIMIT.as_secs()
    );
    survey.warning("time", "", found, None);
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn checks_that_take_too_long_end_at_the_limit_and_those_made_are_shown() {
        let mut survey = Survey::new(&|next| next);
        let began = tokio::time::Instant::now();
        let looked = within_limit(&mut survey, async |survey| {
            survey.ok("postgres", "", "PostgreSQL 18");
            std::future::pending().await
        });
        assert_eq!(looked.await, None::<()>);
        assert_eq!(began.elapsed(), LIMIT);
        let states: Vec<_> = survey
            .checks
            .iter()
            .map(|check| (check.check, check.state))
            .collect();
        assert_eq!(states, [("postgres", OK), ("time", WARNING)]);
        assert!(
            survey.checks[1]
                .found
                .contains("longer than 120 s: what is not in this table was not asked")
        );
    }
}
