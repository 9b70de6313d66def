//! The plan of `setup` and `teardown`: statements that are printed, run and reported.

use std::time::Duration;

use serde::Serialize;

use walrelay_core::error::{Error, Remedy, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Plainly,
    /// Again and again: it changes a table that is in use, and waits for its lock for a short time
    /// only.
    Patiently,
    /// Alone, in no transaction, and without a time limit: it builds an index concurrently.
    Unbounded,
    /// Beside a look at the transactions that it waits for.
    Watched,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Step {
    /// The operation, in words that follow "while".
    #[serde(rename = "step")]
    pub doing: String,
    pub sql: String,
    pub done: bool,
    #[serde(skip)]
    pub how: How,
    #[serde(skip)]
    pub result: String,
}

impl Step {
    pub(crate) fn new(how: How, doing: String, result: String, sql: String) -> Step {
        Step {
            doing,
            sql,
            done: false,
            how,
            result,
        }
    }
}

/// The fields are the keys of `--json`. After an error, the steps before it are done.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Plan {
    pub dry_run: bool,
    /// Statements in their order: table, column, publication, slot, each if it is missing.
    pub steps: Vec<Step>,
    pub present: Vec<String>,
    pub notes: Vec<String>,
    /// Risks that the operator can remove now.
    pub warnings: Vec<String>,
    /// Faults that keep this role on this server from running the steps.
    #[serde(skip)]
    pub obstacles: Vec<Error>,
}

impl Plan {
    pub(crate) fn refusal(&self) -> Result<()> {
        let Some(first) = self.obstacles.first() else {
            return Ok(());
        };
        let causes: Vec<_> = self.obstacles.iter().map(Error::to_string).collect();
        let remedies = self.obstacles.iter().filter_map(Error::any_remedy);
        Err(Error::new(first.kind(), causes.join("; ")).remedy(Remedy::joined(remedies)))
    }

    /// The plan of `command` as a script for `psql`, with a time limit for a statement. Obstacles
    /// are comments: the role that runs the script may have other rights.
    pub(crate) fn script(&self, command: &str, limit: Option<Duration>) -> String {
        let mut lines = vec![
            format!("-- walrelay {command}: stops at the first error."),
            "\\set ON_ERROR_STOP on".to_owned(),
        ];
        let comment = |text: String| {
            text.lines()
                .map(|line| format!("-- {line}"))
                .collect::<Vec<_>>()
                .join("\n")
        };
        for obstacle in &self.obstacles {
            lines.push(comment(format!("OBSTACLE: {obstacle}")));
            lines.extend(
                obstacle
                    .what_to_do()
                    .map(|remedy| comment(format!("    fix: {remedy}"))),
            );
        }
        lines.extend(self.present.iter().chain(&self.notes).cloned().map(comment));
        lines.extend(
            self.warnings
                .iter()
                .map(|warning| comment(format!("warning: {warning}"))),
        );
        if self.steps.is_empty() {
            lines.push(match self.obstacles.is_empty() {
                true => "-- Nothing to do.".to_owned(),
                false => "-- No statements: remove the obstacles first.".to_owned(),
            });
        } else if let Some(limit) = limit {
            lines.push(format!(
                "set lock_timeout = 0;\nset statement_timeout = {};",
                limit.as_millis()
            ));
        }
        for step in &self.steps {
            lines.extend(
                (step.how == How::Unbounded).then(|| "set statement_timeout = 0;".to_owned()),
            );
            lines.push(step.sql.clone());
        }
        lines.join("\n") + "\n"
    }
}
