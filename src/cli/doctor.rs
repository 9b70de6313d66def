//! `walrelay doctor`: the survey of both ends in one table, each check with what mends it. Reads
//! only.

use clap::Args;

use crate::cli::config::{self, RunSettings, flags};
use crate::cli::output::{Failure, Grid, Outcome, Output, print_report};
use crate::cli::survey::{Asked, look};
use crate::sink::checks;
use crate::survey::{Check, OK, Survey, WARNING, WRONG};
use walrelay_core::error::{Error, Given, Kind};
use walrelay_core::printable::counted;

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

doctor takes the settings of run, asks Postgres and the bus what run needs of them, and prints a \
line for each check: ok, warning or wrong. A line that is not ok is followed by the SQL or the \
command that fixes it. The command changes and creates nothing, and a relay may work meanwhile. It \
learns the topics and the size of records from 1,000 rows of each table, for which the role needs \
SELECT. docs/reference/doctor.md lists the checks.

Exit codes:
  0   every check is ok
  1   nothing is wrong, and at least one check has a warning
  2   the configuration is not valid
The other codes are those with which run would end, or which it would retry, at the first check \
that is wrong:
  10  Postgres cannot be reached (11: refuses)
  12  the server is not fit for logical replication
  14  the slot is not walrelay's, or is missing or lost and run does not make it
  15  publication or table do not fit
  16  server, slot and stored position do not belong together
  21  a row makes a record that is too large
  30  the bus cannot be reached (31: refuses, or a topic does)";

/// Prints the checks of both ends.
pub(super) async fn doctor(args: &DoctorArgs) -> Outcome {
    let settings = config::settings(
        &flags(&args.settings),
        &args.settings.source.relay.common.file,
    )?;
    let config = config::config(&settings, false)?;
    let mut survey = Survey::default();
    survey.ok("configuration", "", "valid");
    for warning in config::warnings(&settings, &config) {
        survey.warning("configuration", "", warning, None);
    }
    Given::name_servers(checks(config.sink.kind).placeholders(&config));
    look(&config, Asked::Both, &mut survey).await;
    print_report(args.output, &survey, &text(&survey))?;
    verdict(&survey)
}

fn count(survey: &Survey, state: &str) -> u64 {
    survey
        .checks
        .iter()
        .filter(|check| check.state == state)
        .count() as u64
}

fn text(survey: &Survey) -> String {
    let mut table = Grid::headed("state, check, subject, found");
    for Check {
        check,
        subject,
        state,
        found,
        fix,
        ..
    } in &survey.checks
    {
        table.row([state, check, subject, found]);
        // A line is what can be pasted alone.
        for (number, line) in fix.iter().flat_map(|fix| fix.lines()).enumerate() {
            let lead = if number == 0 { "fix: " } else { "     " };
            table.row([&"", &"", &"", &format_args!("{lead}{line}")]);
        }
    }
    let warnings = counted(count(survey, WARNING), WARNING);
    format!(
        "{}\n{} ok, {warnings}, {} wrong\n",
        table.text(),
        count(survey, OK),
        count(survey, WRONG)
    )
}

/// The error of the first check that is wrong. Warnings alone are no error, and have an exit code.
fn verdict(survey: &Survey) -> Outcome {
    if let Some((first, kind)) = survey
        .checks
        .iter()
        .find_map(|check| Some((check, check.error.as_ref()?.kind())))
    {
        let wrong = counted(count(survey, WRONG), "fault");
        return Err(Error::new(
            kind,
            format!("{wrong}; first: {} {}", first.check, first.subject).trim_end(),
        )
        .remedy("do what each `fix` says, and run doctor again")
        .into());
    }
    if count(survey, WARNING) == 0 {
        Ok(())
    } else {
        Err(Failure::ExitCode(Kind::Unhealthy.exit_code()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use walrelay_core::error::{NextCommand, Remedy};

    /// The exit code, with which an error is printed only where a check is wrong.
    fn code(survey: &Survey) -> u8 {
        match verdict(survey) {
            Ok(()) => 0,
            Err(Failure::ExitCode(code)) => code,
            Err(Failure::Error(error)) => error.kind().exit_code(),
            Err(Failure::PipeClosed) => panic!("nothing was printed"),
        }
    }

    #[test]
    fn lines_are_aligned_and_a_worse_state_replaces_ok_in_its_place() {
        let mut survey = Survey::default();
        assert_eq!(code(&survey), 0);
        survey.ok("slot", "orders", "fits");
        survey.ok("topic", "t", "1 partition");
        survey.warning(
            "slot",
            "orders",
            "no relay",
            Some(Remedy::from(
                NextCommand::new("status").option("slot", "orders"),
            )),
        );
        assert_eq!(code(&survey), 1);
        survey.wrong(
            "topic",
            "t",
            &Error::new(Kind::TopicRefused, "gone\nnow").remedy("create it;\nuse it"),
        );
        survey.ok("topic", "t", "1 partition");
        assert_eq!(code(&survey), 31);
        insta::assert_snapshot!(text(&survey), @r"
        state    check  subject  found
        warning  slot   orders   no relay
                                 fix: walrelay status --slot orders
        wrong    topic  t        gone now
                                 fix: create it;
                                      use it

        0 ok, 1 warning, 1 wrong
        ");
        assert_eq!(
            serde_json::to_value(&survey).unwrap()["checks"][1],
            serde_json::json!({
                "check": "topic", "subject": "t", "state": "wrong", "found": "gone\nnow",
                "fix": "create it;\nuse it",
            })
        );
    }
}
