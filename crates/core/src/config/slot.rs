//! `[slot]`: what is read from the table where the slot is new or lost.

use std::str::FromStr;

/// The existing rows that are published first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backlog {
    /// All rows.
    All,
    /// No row.
    None,
    /// Rows for which `outbox.pending` holds.
    Pending,
    /// Rows of this time or later: a timestamp as SQL reads it.
    Since(String),
}

impl FromStr for Backlog {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // SQL may read an instant, or a date with or without a time of day.
        let is_time = |text: &str| {
            text.parse::<jiff::Timestamp>().is_ok()
                || text.parse::<jiff::civil::DateTime>().is_ok()
                || text.parse::<jiff::civil::Date>().is_ok()
        };
        match (text, text.strip_prefix("since=").map(str::trim)) {
            ("all", _) => Ok(Backlog::All),
            ("none", _) => Ok(Backlog::None),
            ("pending", _) => Ok(Backlog::Pending),
            (_, Some(time)) if is_time(time) => Ok(Backlog::Since(time.to_owned())),
            _ => Err(format!("{text:?} names no rows")),
        }
    }
}

choices! {
    /// The reaction to the loss of the slot.
    pub enum OnLoss {
        /// Create it again, and read the unpublished rows from the table
        #[default]
        Recover,
        /// Stop
        Stop,
    }
}
