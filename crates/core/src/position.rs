//! LSNs, and the position: how far the relay has delivered.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A log sequence number: a byte position in the WAL of one server and timeline.
///
/// The text form is that of Postgres, `X/Y` in hexadecimal. Zero means "none".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(u64);

impl Lsn {
    /// No position: what Postgres calls an invalid LSN.
    pub const ZERO: Lsn = Lsn(0);

    /// The LSN at this byte position.
    pub const fn new(bytes: u64) -> Self {
        Lsn(bytes)
    }

    /// The byte position, as a number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Whether this is "none".
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Bytes from `earlier` to this LSN; zero if `earlier` is ahead.
    pub const fn bytes_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an LSN of the form `X/Y`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an LSN of the form 16/B374D848")]
pub struct LsnParseError {
    text: String,
}

impl FromStr for Lsn {
    type Err = LsnParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || LsnParseError {
            text: text.to_owned(),
        };
        let half = |part: &str| {
            let digits =
                (1..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            digits
                .then(|| u64::from_str_radix(part, 16).ok())
                .flatten()
                .ok_or_else(error)
        };
        let (high, low) = text.split_once('/').ok_or_else(error)?;
        Ok(Lsn(half(high)? << 32 | half(low)?))
    }
}

impl Serialize for Lsn {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lsn {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The delivered part of one transaction.
///
/// The LSN of the commit record names the transaction. A `Begin` message carries it, so the
/// transaction is recognised before its first event. The end of the record is known only at the
/// `Commit`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Partial {
    /// LSN of the transaction's commit record: at or above [`Position::end_lsn`].
    pub commit_lsn: Lsn,
    /// The number of delivered events, counted from the first. At least 1.
    pub index: u64,
}

/// How far the relay has delivered: a commit end LSN and the index in the next transaction (P1).
///
/// Delivered are all transactions that end at or below `end_lsn`, and the first `index` events of
/// the transaction in `partial`. Never the LSN of a row: rows of later commits can lie below
/// positions that are already confirmed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Position {
    /// End of the last completely delivered transaction, or the LSN of a keepalive after it.
    pub end_lsn: Lsn,
    /// The transaction of which some events, but not all, are delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial: Option<Partial>,
}

impl Position {
    /// Everything up to `end_lsn`, nothing beyond it.
    pub const fn at(end_lsn: Lsn) -> Self {
        Position {
            end_lsn,
            partial: None,
        }
    }

    /// Whether the transaction whose commit record starts at `commit_lsn` is completely delivered.
    ///
    /// Positions are record boundaries: a record ends at or below one if and only if it starts
    /// below it.
    pub fn covers(&self, commit_lsn: Lsn) -> bool {
        commit_lsn < self.end_lsn
    }

    /// The number of delivered events of the transaction at `commit_lsn`, which must not be
    /// covered.
    pub fn delivered_of(&self, commit_lsn: Lsn) -> u64 {
        match self.partial {
            Some(partial) if partial.commit_lsn == commit_lsn => partial.index,
            _ => 0,
        }
    }

    /// Whether the event at `index` of the transaction at `commit_lsn` is delivered.
    pub fn has(&self, commit_lsn: Lsn, index: u64) -> bool {
        self.covers(commit_lsn) || index < self.delivered_of(commit_lsn)
    }

    /// Whether this position includes all that `earlier` includes.
    pub fn is_at_or_after(&self, earlier: &Position) -> bool {
        self.order_key() >= earlier.order_key()
    }

    /// The later one of the two.
    pub fn later_of(self, other: Position) -> Position {
        std::cmp::max_by_key(self, other, Position::order_key)
    }

    /// Orders positions: a later one has a larger key.
    pub(crate) fn order_key(&self) -> (Lsn, Lsn, u64) {
        let partial = self.partial.unwrap_or(Partial {
            commit_lsn: Lsn::ZERO,
            index: 0,
        });
        (self.end_lsn, partial.commit_lsn, partial.index)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partial {
            None => write!(f, "{}", self.end_lsn),
            Some(partial) => {
                let Partial { commit_lsn, index } = partial;
                let s = if index == 1 { "" } else { "s" };
                write!(
                    f,
                    "{} and {index} event{s} of the transaction at {commit_lsn}",
                    self.end_lsn
                )
            }
        }
    }
}

/// A server, and the history of its WAL that it is on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerIdentity {
    /// `system_identifier`: given at initdb, kept by every physical copy.
    pub system_identifier: String,
    /// The timeline: goes up with each promotion.
    pub timeline: u32,
}

/// The end of a timeline in the history of the queried server. WAL of the timeline beyond it does
/// not exist there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelineSwitch {
    /// The timeline that ended.
    pub timeline: u32,
    /// Where it ended.
    pub switch_lsn: Lsn,
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn an_lsn_has_the_text_form_of_postgres() {
        for (text, lsn) in [
            ("16/B374D848", 0x16_B374_D848),
            ("FFFFFFFF/FFFFFFFF", u64::MAX),
        ] {
            assert_eq!(
                (text.parse(), Lsn::new(lsn).to_string().as_str()),
                (Ok(Lsn::new(lsn)), text)
            );
        }
        for bad in [
            "",
            "/",
            "1",
            "1/",
            "/1",
            "g/1",
            "1/123456789",
            "+1/1",
            "1/1/1",
            " 1/1",
        ] {
            assert!(bad.parse::<Lsn>().is_err(), "{bad:?} was taken for an LSN");
        }
    }

    #[test]
    fn a_transaction_that_begins_where_the_position_ends_is_not_covered() {
        let position = Position::at(Lsn::new(100));
        assert!(position.covers(Lsn::new(99)));
        assert!(!position.covers(Lsn::new(100)));
    }

    #[test]
    fn only_the_named_transaction_is_partly_delivered() {
        let partial = Partial {
            commit_lsn: Lsn::new(120),
            index: 7,
        };
        let position = Position {
            end_lsn: Lsn::new(100),
            partial: Some(partial),
        };
        assert_eq!(position.delivered_of(Lsn::new(120)), 7);
        assert_eq!(position.delivered_of(Lsn::new(130)), 0);
        assert!(position.is_at_or_after(&Position::at(Lsn::new(100))));
        assert!(!Position::at(Lsn::new(100)).is_at_or_after(&position));
        assert!(Position::at(Lsn::new(130)).is_at_or_after(&position));
    }

    #[test]
    fn a_position_has_a_readable_text_and_parses_back_from_json() {
        let partial = |index| {
            Some(Partial {
                commit_lsn: Lsn::new(120),
                index,
            })
        };
        for (partial, text) in [
            (None, "0/64"),
            (partial(1), "0/64 and 1 event of the transaction at 0/78"),
            (partial(2), "0/64 and 2 events of the transaction at 0/78"),
        ] {
            let position = Position {
                end_lsn: Lsn::new(100),
                partial,
            };
            assert_eq!(position.to_string(), text);
            let json = serde_json::to_string(&position).unwrap();
            assert_eq!(serde_json::from_str::<Position>(&json).unwrap(), position);
        }
    }

    #[test]
    fn fuzzed_lsns() {
        let corpus = ["16/B374D848", "0/0", "FFFFFFFF/FFFFFFFF", "0/1a2b"];
        fuzz_text("LSNs", 64 << 10, &corpus, |text| {
            if let Ok(lsn) = text.parse::<Lsn>() {
                assert_eq!(lsn.to_string().parse(), Ok(lsn));
            }
        });
    }
}
