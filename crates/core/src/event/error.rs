//! Errors in the stream of messages, with their remedies, and texts of rows for a log line.

use std::fmt;

use super::Place;
use crate::config::{EventSource, MESSAGE_CONTENT, MESSAGE_LSN, MESSAGE_PREFIX, SlotName};
use crate::decode::DecodeError;
use crate::error::{Error, Kind};
use crate::position::{Lsn, Position};

/// The place in the stream at which a message was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The message's LSN according to the server; zero for some.
    pub wal_start: Lsn,
    /// The commit LSN of the open transaction, and the number of its outbox events before the
    /// message.
    pub transaction: Option<(Lsn, u64)>,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transaction {
            None => write!(f, "at {}, between transactions", self.wal_start),
            Some((commit_lsn, events)) => {
                let s = if events == 1 { "" } else { "s" };
                write!(
                    f,
                    "at {}, after {events} event{s} of the transaction at {commit_lsn}",
                    self.wal_start
                )
            }
        }
    }
}

/// The fault of a column's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// NULL where a value is needed.
    #[error("is NULL")]
    Null,
    /// The value was not sent. Never in an insert.
    #[error("was not sent by the server")]
    Unchanged,
    /// A message's content, of which a member is needed.
    #[error("is a member of the content, which is no JSON object")]
    NoMembers,
    /// The value is not in text form, which was not asked for.
    #[error("came in binary form, which was not asked for")]
    Binary,
}

/// No event can be made of a message, or the message cannot be counted. The position stays before
/// it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    #[error("a message cannot be decoded ({seen}): {source}")]
    Undecodable { seen: Seen, source: DecodeError },
    #[error("the server sent {what} ({seen})")]
    Protocol { seen: Seen, what: String },
    #[error(
        "{place}: table {table} had no column {column} when the event was written; it had \
         {there_are}"
    )]
    ColumnMissing {
        place: Place,
        table: String,
        column: String,
        there_are: String,
    },
    /// The type of a column was created after the types were read. They have to be read again.
    #[error(
        "transaction at {commit_lsn}: column {column} of {of} is of a type made since; looking at \
         types again"
    )]
    TypeUnknown {
        commit_lsn: Lsn,
        of: EventSource,
        column: Shown,
    },
    #[error("{place}{}: column {column} of {of} {fault}", of_row(id.as_ref()))]
    Value {
        place: Place,
        id: Option<Shown>,
        of: EventSource,
        column: String,
        fault: Fault,
    },
    #[error(
        "position {position} ends inside the commit record of the transaction at {commit_lsn}, \
         which ends at {end_lsn}"
    )]
    PositionInside {
        /// Where the relay resumed.
        position: Position,
        commit_lsn: Lsn,
        end_lsn: Lsn,
    },
    #[error(
        "position {position} is not one of this slot: the transaction at {commit_lsn} came with \
         {events} events"
    )]
    PartialMissing {
        /// Where the relay resumed.
        position: Position,
        /// The transaction that came: the partly delivered one, or a later one.
        commit_lsn: Lsn,
        events: u64,
    },
}

/// How a row is named behind its place.
fn of_row(id: Option<&Shown>) -> String {
    id.map(|id| format!(", row {id}")).unwrap_or_default()
}

impl EventError {
    /// The error for an operator, with its remedy.
    pub fn into_error(self, slot: &SlotName) -> Error {
        let kind = match &self {
            EventError::TypeUnknown { .. } => Kind::PostgresUnreachable,
            EventError::ColumnMissing { .. } => Kind::Publication,
            EventError::Undecodable { .. }
            | EventError::Protocol { .. }
            | EventError::Value { .. } => Kind::Event,
            EventError::PositionInside { .. } | EventError::PartialMissing { .. } => {
                Kind::PositionMismatch
            }
        };
        let error = Error::new(kind, format!("slot {slot}: {self}"));
        match self.remedy(slot) {
            Some(remedy) => error.remedy(remedy),
            None => error,
        }
    }

    /// What an operator can do, if anything.
    fn remedy(&self, slot: &SlotName) -> Option<String> {
        Some(match self {
            EventError::TypeUnknown { .. } => return None,
            EventError::Undecodable { .. } | EventError::Protocol { .. } => {
                "nothing was skipped. Restart the relay; if it stops here again, check that \
                 nothing between it and Postgres changes the stream and that the server is an \
                 unmodified Postgres 14 or later, then report this message"
                    .to_owned()
            }
            EventError::ColumnMissing { place, column, .. } => format!(
                "an event keeps the names from when it was written. Name the column that had the \
                 place of {column} in the configuration, and its later name once the relay stops \
                 again; the publication must have no column list. To pass the event over, {}",
                slot.give_up(place.commit_lsn)
            ),
            EventError::Value {
                place,
                of: EventSource::Table(table),
                column,
                fault: Fault::Null,
                ..
            } => format!(
                "nothing was skipped, and nothing behind this row is delivered. Declare column \
                 {column} of {table} NOT NULL, so that no further row can be like this one. To \
                 pass it over, correct or delete the row, {}",
                slot.give_up(place.commit_lsn)
            ),
            EventError::Value {
                place,
                fault: Fault::Null | Fault::NoMembers,
                ..
            } => format!(
                "nothing was skipped, and nothing behind this message is delivered. Emit a JSON \
                 object that has the members the configuration names, or configure {MESSAGE_LSN}, \
                 {MESSAGE_PREFIX} and {MESSAGE_CONTENT} instead. To pass it over, {}",
                slot.give_up(place.commit_lsn)
            ),
            EventError::Value { .. } => {
                "nothing was skipped. The server sends what no Postgres sends for an insert; \
                 restart the relay, and report this message if it is repeated"
                    .to_owned()
            }
            EventError::PositionInside { .. } | EventError::PartialMissing { .. } => {
                "the stored position was written for another server, timeline or slot. Find out \
                 which, and what of the outbox was delivered from there; to go on from where the \
                 slot is, let the relay adopt the slot's position"
                    .to_owned()
            }
        })
    }
}

const SHOWN_CHARS_MAX: usize = 100;

/// Text from a row, made harmless for a terminal or a log: quoted, escaped, cut after about 100
/// characters (P11). For ids and names. Payloads and keys are never shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown(String);

impl Shown {
    /// Makes `bytes` showable; what is not UTF-8 becomes U+FFFD.
    pub fn of(bytes: &[u8]) -> Self {
        // A character is at most four bytes, so this holds one more than is shown, however long the
        // text.
        let head = bytes.get(..(SHOWN_CHARS_MAX + 1) * 4).unwrap_or(bytes);
        let text = String::from_utf8_lossy(head);
        let mut shown = String::from("\"");
        let mut chars = 0;
        for character in text.chars() {
            let escaped = character.escape_debug();
            chars += escaped.len();
            if chars > SHOWN_CHARS_MAX {
                shown.push('…');
                break;
            }
            shown.extend(escaped);
        }
        shown.push('"');
        Shown(shown)
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_forge_a_log_line_is_escaped() {
        let shown = Shown::of(b"a\n2026 ERROR \x1b[2J\0\"\xff\xe2\x80\xaeb").to_string();
        assert_eq!(
            shown,
            "\"a\\n2026 ERROR \\u{1b}[2J\\0\\\"\u{fffd}\\u{202e}b\""
        );
        assert_eq!(Shown::of("größe".as_bytes()).to_string(), "\"größe\"");
    }

    #[test]
    fn a_long_text_is_cut_and_says_so() {
        for long in [
            "x".repeat(1_000_000),
            "\n".repeat(101),
            "ß".repeat(101),
            "🦀".repeat(1_000),
        ] {
            let shown = Shown::of(long.as_bytes()).to_string();
            assert!(
                shown.chars().count() <= 103 && shown.ends_with("…\""),
                "{shown}"
            );
        }
        assert_eq!(
            Shown::of("x".repeat(100).as_bytes()).to_string(),
            format!("\"{}\"", "x".repeat(100))
        );
    }
}
