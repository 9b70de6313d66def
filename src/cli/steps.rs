//! The statements of `setup` and `teardown`, for programs.

use serde::Serialize;

/// A statement that is run, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct StepReport {
    /// The operation, such as `creating slot orders`.
    pub step: String,
    pub sql: String,
    pub done: bool,
}

impl StepReport {
    pub(crate) fn planned(step: &str, sql: &str) -> StepReport {
        StepReport { step: step.to_owned(), sql: sql.to_owned(), done: false }
    }
}

/// The result with `--output json` or `yaml`. After an error, the steps before it are done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct StepsReport {
    pub dry_run: bool,
    pub steps: Vec<StepReport>,
    /// Objects that exist and fit.
    pub present: Vec<String>,
    pub notes: Vec<String>,
    pub warnings: Vec<String>,
}
