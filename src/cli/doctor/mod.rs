//! `walrelay doctor`: both ends in one table of checks, each with what mends it. Reads only.

mod kafka;
mod postgres;

use std::fmt::Display;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::cli::config::{self, RunSettings, flags};
use crate::cli::output::{Failure, Grid, Outcome, Output, counted, print_report};
use crate::config::Config;
use crate::source::preflight::Finding;
use walrelay_core::error::{Error, Kind, NextCommand, Remedy, Result};

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub settings: RunSettings,
    #[command(flatten)]
    pub output: Output,
}

pub(super) const HELP: &str = "\
Examples:
  walrelay doctor --config walrelay.toml
  walrelay doctor --slot orders --brokers localhost:9092
  walrelay doctor --config walrelay.toml --json | \\
    jq '.checks[] | select(.state != \"ok\")'

doctor takes the settings of run, asks Postgres and Kafka what run needs of them, and prints a line for each check: ok, warning or wrong. A line that is not ok is followed by the SQL or the command that fixes it. The command changes and creates nothing, and a relay may work meanwhile. It learns the topics and the size of records from 1,000 rows of each table, for which the role needs SELECT. docs/reference/doctor.md lists the checks.

Exit codes:
  0   every check is ok
  1   nothing is wrong, and at least one check has a warning
  2   the configuration is not valid
The other codes are those with which run would end, or which it would retry, at the first check that is wrong:
  10  Postgres cannot be reached (11: refuses)
  12  the server is not fit for logical replication
  14  the slot is not walrelay's, or is missing or lost and run does not make it
  15  publication or table do not fit
  16  server, slot and stored position do not belong together
  21  a row makes a record that is too large
  30  Kafka cannot be reached (31: refuses, or a topic does)";

/// Prints the checks of both ends. `complete` adds the typed flags to a suggested command.
pub(super) async fn doctor(args: &DoctorArgs, complete: &dyn Fn(NextCommand) -> NextCommand) -> Outcome {
    let settings = config::settings(&flags(&args.settings), &args.settings.source.relay.common.file)?;
    let config = config::config(&settings, false)?;
    let mut report = Report { complete, checks: Vec::new() };
    report.ok("configuration", "", "valid");
    for warning in config::warnings(&settings, &config) {
        report.warning("configuration", "", warning, None);
    }
    within_limit(&mut report, async |report| look(&config, report).await).await;
    for fix in report.checks.iter_mut().filter_map(|check| check.fix.as_mut()) {
        *fix = kafka::addressed(fix, &config.kafka);
    }
    print_report(args.output, &report, &report.text())?;
    report.verdict()
}

/// The limit for all checks. Each question has one of its own, of at most half a minute, but a table more is a question more.
const LIMIT: Duration = Duration::from_secs(120);

async fn within_limit(report: &mut Report<'_>, look: impl AsyncFnOnce(&mut Report<'_>)) {
    if tokio::time::timeout(LIMIT, look(report)).await.is_err() {
        let found =
            format!("the checks took longer than {} s: what is not in this table was not asked", LIMIT.as_secs());
        report.warning("time", "", found, None);
    }
}

/// The checks without which a look at the position says nothing.
const BEFORE_POSITION: [&str; 7] = ["server", "role", "table", "slot", "publication", "kafka", "topic-rights"];

async fn look(config: &Config, report: &mut Report<'_>) {
    let seen = postgres::look(config, report).await;
    let kafka_cluster = kafka::look(config, &seen, report).await;
    if let Some(place) = seen.place
        && !report.checks.iter().any(|check| check.state == WRONG && BEFORE_POSITION.contains(&check.check))
    {
        postgres::position(config, &place, kafka_cluster, report).await;
    }
}

const OK: &str = "ok";
const WARNING: &str = "warning";
const WRONG: &str = "wrong";

/// The fields are the keys of `--json`.
#[derive(Debug, Clone, Serialize)]
struct Check {
    check: &'static str,
    /// The table, topic or slot; empty where there is only one subject.
    subject: String,
    state: &'static str,
    found: String,
    fix: Option<String>,
    #[serde(skip)]
    kind: Option<Kind>,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(skip)]
    complete: &'a dyn Fn(NextCommand) -> NextCommand,
    checks: Vec<Check>,
}

impl Report<'_> {
    fn ok(&mut self, check: &'static str, subject: impl Display, found: impl Display) {
        let (subject, found) = (subject.to_string(), found.to_string());
        self.add(Check { check, subject, state: OK, found, fix: None, kind: None });
    }

    fn warning(&mut self, check: &'static str, subject: impl Display, found: impl Display, fix: Option<Remedy>) {
        let error = Error::new(Kind::Unhealthy, found);
        self.risk(check, subject, &fix.into_iter().fold(error, Error::remedy));
    }

    fn risk(&mut self, check: &'static str, subject: impl Display, error: &Error) {
        self.add(self.failed(check, subject, error));
    }

    fn wrong(&mut self, check: &'static str, subject: impl Display, error: &Error) {
        let failed = self.failed(check, subject, error);
        self.add(Check { state: WRONG, kind: Some(error.kind()), ..failed });
    }

    fn failed(&self, check: &'static str, subject: impl Display, error: &Error) -> Check {
        let fix = error.clone().with_commands(self.complete).what_to_do();
        Check { check, subject: subject.to_string(), state: WARNING, found: error.to_string(), fix, kind: None }
    }

    fn judged(&mut self, check: &'static str, subject: impl Display, judged: Result<()>, fits: &str) {
        match judged {
            Ok(()) => self.ok(check, subject, fits),
            Err(error) => self.wrong(check, subject, &error),
        }
    }

    /// A finding of the relay's start; `fits` tells of one without a fault and without a note.
    fn finding(&mut self, Finding { check, subject, found }: Finding, fits: &str) {
        let warnings = match found {
            Ok(warnings) => warnings,
            Err(error) => return self.wrong(check, subject, &error),
        };
        let (notes, risks): (Vec<_>, Vec<_>) = warnings.into_iter().partition(|warning| warning.is_note);
        let notes: Vec<String> = notes.into_iter().map(|note| note.text).collect();
        self.ok(check, &subject, if notes.is_empty() { fits.to_owned() } else { notes.join("; ") });
        for risk in risks {
            self.warning(check, &subject, risk.text, risk.remedy.map(Remedy::from));
        }
    }

    /// Adds a line. Of the lines of one check and subject, those that are not ok replace the one that is.
    fn add(&mut self, check: Check) {
        let same = |known: &&mut Check| known.check == check.check && known.subject == check.subject;
        match self.checks.iter_mut().find(same) {
            Some(known) if known.state == OK => *known = check,
            Some(_) if check.state == OK => {}
            Some(_) | None => self.checks.push(check),
        }
    }

    fn count(&self, state: &str) -> u64 {
        self.checks.iter().filter(|check| check.state == state).count() as u64
    }

    fn text(&self) -> String {
        let mut table = Grid::headed("state, check, subject, found");
        for Check { check, subject, state, found, fix, .. } in &self.checks {
            table.row([state, check, subject, found]);
            // A line is what can be pasted alone.
            for (number, line) in fix.iter().flat_map(|fix| fix.lines()).enumerate() {
                let lead = if number == 0 { "fix: " } else { "     " };
                table.row([&"", &"", &"", &format_args!("{lead}{line}")]);
            }
        }
        let warnings = counted(self.count(WARNING), WARNING);
        format!("{}\n{} ok, {warnings}, {} wrong\n", table.text(), self.count(OK), self.count(WRONG))
    }

    /// The error of the first check that is wrong. Warnings alone are no error, and have an exit code.
    fn verdict(&self) -> Outcome {
        if let Some((first, kind)) = self.checks.iter().find_map(|check| Some((check, check.kind?))) {
            let wrong = counted(self.count(WRONG), "fault");
            return Err(Error::new(kind, format!("{wrong}; first: {} {}", first.check, first.subject).trim_end())
                .remedy("do what the table names after `fix:`, and run doctor again")
                .into());
        }
        if self.count(WARNING) == 0 { Ok(()) } else { Err(Failure::ExitCode(Kind::Unhealthy.exit_code())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exit code, with which an error is printed only where a check is wrong.
    fn code(report: &Report<'_>) -> u8 {
        match report.verdict() {
            Ok(()) => 0,
            Err(Failure::ExitCode(code)) => code,
            Err(Failure::Error(error)) => error.kind().exit_code(),
            Err(Failure::PipeClosed) => panic!("nothing was printed"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn checks_that_take_too_long_end_at_the_limit_and_those_made_are_shown() {
        let mut report = Report { complete: &|next| next, checks: Vec::new() };
        let began = tokio::time::Instant::now();
        let looked = within_limit(&mut report, async |report| {
            report.ok("postgres", "", "PostgreSQL 18");
            std::future::pending().await
        });
        looked.await;
        assert_eq!(began.elapsed(), LIMIT);
        let states: Vec<_> = report.checks.iter().map(|check| (check.check, check.state)).collect();
        assert_eq!(states, [("postgres", OK), ("time", WARNING)]);
        assert!(report.text().contains("longer than 120 s: what is not in this table was not asked"));
        assert_eq!(code(&report), 1);
    }

    #[test]
    fn lines_are_aligned_and_a_worse_state_replaces_ok_in_its_place() {
        let complete = |next: NextCommand| next.option("slot", "orders");
        let mut report = Report { complete: &complete, checks: Vec::new() };
        assert_eq!(code(&report), 0);
        report.ok("slot", "orders", "fits");
        report.ok("topic", "t", "1 partition");
        report.warning("slot", "orders", "no relay", Some(Remedy::from(NextCommand::new("status"))));
        assert_eq!(code(&report), 1);
        report.wrong("topic", "t", &Error::new(Kind::TopicRefused, "gone\nnow").remedy("create it;\nuse it"));
        report.ok("topic", "t", "1 partition");
        assert_eq!(code(&report), 31);
        insta::assert_snapshot!(report.text(), @r"
        state    check  subject  found
        warning  slot   orders   no relay
                                 fix: walrelay status --slot orders
        wrong    topic  t        gone now
                                 fix: create it;
                                      use it

        0 ok, 1 warning, 1 wrong
        ");
        assert_eq!(
            serde_json::to_value(&report).unwrap()["checks"][1],
            serde_json::json!({"check": "topic", "subject": "t", "state": "wrong", "found": "gone\nnow", "fix": "create it;\nuse it"})
        );
    }
}
