//! A result as a Nagios plugin gives it: one line with figures, and an exit code of the plugin
//! interface.

use std::fmt;

use crate::cli::output::{Failure, on_one_line};
use walrelay_core::error::{Error, Kind};

/// The state of a service. Its number is the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Ok = 0,
    Warning = 1,
    Critical = 2,
    Unknown = 3,
}

/// A figure for graphs; none where the value is not known. The unit is `B`, `s`, or empty for a
/// number of things. Above the limit, the state is a warning.
pub(super) fn figure(
    name: &str,
    value: Option<f64>,
    unit: &str,
    limit: Option<f64>,
) -> Option<String> {
    let limit = limit.map(|limit| limit.to_string()).unwrap_or_default();
    value.map(|value| format!("{name}={value}{unit};{limit};;0"))
}

#[derive(Debug, Clone)]
pub(super) struct Check {
    pub state: State,
    pub text: String,
    pub figures: Vec<String>,
}

impl Check {
    /// A fault of the service is critical. After any other error the state is unknown: the check
    /// itself does not work.
    pub(super) fn failed(error: &Error) -> Check {
        let is_of_service = matches!(error.kind(), Kind::PostgresUnreachable | Kind::SlotUnusable);
        let state = if is_of_service {
            State::Critical
        } else {
            State::Unknown
        };
        let all = std::iter::once(error)
            .chain(error.others())
            .map(Error::to_string)
            .collect::<Vec<_>>();
        Check {
            state,
            text: all.join("; "),
            figures: Vec::new(),
        }
    }

    /// The end of the command after the line is printed.
    pub(super) fn end(&self) -> Failure {
        Failure::ExitCode(self.state as u8)
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.state {
            State::Ok => "OK",
            State::Warning => "WARNING",
            State::Critical => "CRITICAL",
            State::Unknown => "UNKNOWN",
        };
        // A bar begins the figures, and a line end other output.
        let text = on_one_line(&self.text).replace('|', "/");
        write!(f, "WALRELAY {word} - {text}")?;
        let figures = self.figures.join(" ");
        if figures.is_empty() {
            Ok(())
        } else {
            write!(f, " | {figures}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_one_line_with_the_known_figures_and_their_limits() {
        let figures = [
            figure("lag_bytes", Some(12_345.0), "B", Some(1_048_576.0)),
            figure("lag_seconds", None, "s", Some(5.0)),
            figure("retained_bytes", Some(17_825_792_000.0), "B", None),
            figure("parked_events", Some(0.0), "", None),
        ];
        let figures = figures.into_iter().flatten().collect();
        let check = Check {
            state: State::Warning,
            text: "a | b\n  c".to_owned(),
            figures,
        };
        assert_eq!(
            check.to_string(),
            "WALRELAY WARNING - a / b c | lag_bytes=12345B;1048576;;0 \
             retained_bytes=17825792000B;;;0 parked_events=0;;;0"
        );
        let check = Check {
            state: State::Ok,
            figures: Vec::new(),
            ..check
        };
        assert_eq!(check.to_string(), "WALRELAY OK - a / b c");
    }

    #[test]
    fn a_fault_of_the_service_is_critical_and_one_of_the_check_unknown() {
        for (kind, code, word) in [
            (Kind::PostgresUnreachable, 2, "CRITICAL"),
            (Kind::SlotUnusable, 2, "CRITICAL"),
            (Kind::PostgresRefused, 3, "UNKNOWN"),
            (Kind::Config, 3, "UNKNOWN"),
            (Kind::Bug, 3, "UNKNOWN"),
        ] {
            let check = Check::failed(&Error::new(kind, "it is so").remedy("mend it"));
            assert_eq!(check.to_string(), format!("WALRELAY {word} - it is so"));
            assert!(
                matches!(check.end(), Failure::ExitCode(ended) if ended == code),
                "{kind:?}"
            );
        }
    }
}
