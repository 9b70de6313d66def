//! `[slot]`: what is read from the table where the slot is new or lost.

use std::str::FromStr;

use jiff::Timestamp;

use super::unit::parse_duration;

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
            text.parse::<Timestamp>().is_ok()
                || text.parse::<jiff::civil::DateTime>().is_ok()
                || text.parse::<jiff::civil::Date>().is_ok()
        };
        match (text, text.strip_prefix("since=").map(str::trim)) {
            ("all", _) => Ok(Backlog::All),
            ("none", _) => Ok(Backlog::None),
            ("pending", _) => Ok(Backlog::Pending),
            (_, Some(time)) if is_time(time) => Ok(Backlog::Since(time.to_owned())),
            (_, since) => since
                .and_then(|age| Timestamp::now().checked_sub(parse_duration(age)?).ok())
                .map(|time| Backlog::Since(time.to_string()))
                .ok_or_else(|| format!("{text:?} names no rows")),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_a_backlog_begin_at_a_time_or_at_an_age_of_now() {
        let since = |text: &str| match text.parse() {
            Ok(Backlog::Since(time)) => Some(time),
            Ok(_) | Err(_) => None,
        };
        assert_eq!(since("since=2026-11-01").as_deref(), Some("2026-11-01"));
        let before = Timestamp::now();
        let time: Timestamp = since("since=2h").unwrap().parse().unwrap();
        let age = before.duration_since(time).as_secs();
        assert!((7_190..=7_200).contains(&age), "{age}");
        for text in [
            "since=2",
            "since=",
            "since=soon",
            "2h",
            "since=99999999999h",
        ] {
            assert_eq!(since(text), None, "{text}");
        }
    }
}
