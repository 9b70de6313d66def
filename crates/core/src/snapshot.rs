//! `pg_snapshot` as a value: the transactions that were visible at one moment.
//!
//! A transaction is visible in a snapshot if it had committed when the snapshot was taken. Neither
//! its id nor the time of its commit shows that; `xmin:xmax:xip,…` does. Transaction ids are the
//! 64-bit ones of `xid8`, which do not wrap
//! (<https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-PG-SNAPSHOT>).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The transactions that had ended: all below `xmin`, none from `xmax` on, and between the two all
/// but the listed ones.
///
/// A transaction that had ended may have rolled back; its rows are never visible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    xmin: u64,
    xmax: u64,
    /// Ascending, each at or above `xmin` and below `xmax`.
    running: Vec<u64>,
}

impl Snapshot {
    /// The oldest running transaction. All transactions below it had ended.
    pub fn xmin(&self) -> u64 {
        self.xmin
    }

    /// One above the highest transaction id that had ended. Transactions from there on may have
    /// begun.
    pub fn xmax(&self) -> u64 {
        self.xmax
    }

    /// The transactions below `xmax` that had not ended, ascending.
    pub fn running(&self) -> &[u64] {
        &self.running
    }

    /// A snapshot that sees exactly the transactions below `xid`.
    pub fn below(xid: u64) -> Snapshot {
        Snapshot {
            xmin: xid,
            xmax: xid,
            running: Vec::new(),
        }
    }

    /// Whether the transaction had ended.
    pub fn sees(&self, xid: u64) -> bool {
        xid < self.xmin || xid < self.xmax && self.running.binary_search(&xid).is_err()
    }

    /// The 64-bit id of a transaction from its lower half, which is all that a `Begin` message has.
    /// The transaction must lie within 2^31 transactions of this snapshot.
    pub fn widen(&self, xid: u32) -> u64 {
        let low = u32::try_from(self.xmax & u64::from(u32::MAX)).unwrap_or_default();
        // Two's complement: the distance from the snapshot, forwards or backwards, on the circle of
        // 32-bit ids.
        let distance = xid.wrapping_sub(low).cast_signed();
        self.xmax.saturating_add_signed(i64::from(distance))
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:", self.xmin, self.xmax)?;
        for (number, xid) in self.running.iter().enumerate() {
            write!(f, "{}{xid}", if number == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// The text is not a snapshot as Postgres writes it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a snapshot of the form 10:20:10,14,15")]
pub struct SnapshotParseError;

impl FromStr for Snapshot {
    type Err = SnapshotParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.splitn(3, ':');
        let mut number = || {
            parts
                .next()
                .and_then(|part| part.parse::<u64>().ok())
                .ok_or(SnapshotParseError)
        };
        let xmin = number()?;
        let xmax = number()?;
        let list = parts.next().ok_or(SnapshotParseError)?;
        let running = match list {
            "" => Vec::new(),
            list => list
                .split(',')
                .map(str::parse)
                .collect::<Result<Vec<u64>, _>>()
                .map_err(|_| SnapshotParseError)?,
        };
        let ascends = running
            .windows(2)
            .all(|pair| matches!(pair, [one, other] if one < other));
        let is_inside = running.iter().all(|xid| (xmin..xmax).contains(xid));
        if xmin == 0 || xmax == 0 || !ascends || !is_inside {
            return Err(SnapshotParseError);
        }
        // A snapshot that a slot exports can have an xmin above its xmax. Postgres compares with
        // xmin first, so such a snapshot sees all transactions below xmin; but Postgres rejects it
        // as text.
        Ok(Snapshot {
            xmin,
            xmax: xmax.max(xmin),
            running,
        })
    }
}

impl Serialize for Snapshot {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Snapshot {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn a_snapshot_has_the_text_form_of_postgres() {
        for text in ["10:20:10,14,15", "7:7:", "1:18446744073709551615:1"] {
            assert_eq!(text.parse::<Snapshot>().unwrap().to_string(), text);
        }
        for bad in [
            "", "1", "1:2", "0:1:", "5:0:", "5:4:4", "1:9:9", "1:9:0", "1:9:3,2", "1:9:3,3",
            "1:9:x", "1:9:,", "a:9:", "-1:9:",
        ] {
            assert_eq!(bad.parse::<Snapshot>(), Err(SnapshotParseError), "{bad:?}");
        }
    }

    #[test]
    fn an_exported_snapshot_may_have_its_xmin_after_its_xmax() {
        let snapshot: Snapshot = "21042:21039:".parse().unwrap();
        assert_eq!(snapshot.to_string(), "21042:21042:");
        assert!(snapshot.sees(21_041) && !snapshot.sees(21_042));
    }

    #[test]
    fn a_snapshot_sees_the_transactions_that_had_ended() {
        let snapshot: Snapshot = "10:20:10,14,15".parse().unwrap();
        let seen: Vec<u64> = (8..23).filter(|xid| snapshot.sees(*xid)).collect();
        assert_eq!(seen, [8, 9, 11, 12, 13, 16, 17, 18, 19]);
    }

    #[test]
    fn a_32_bit_xid_is_widened_to_the_nearest_transaction() {
        let epoch = 1_u64 << 32;
        let at = |xmax: u64| Snapshot {
            xmin: 3,
            xmax,
            running: Vec::new(),
        };
        assert_eq!(at(3 * epoch + 10).widen(9), 3 * epoch + 9);
        assert_eq!(at(3 * epoch + 10).widen(u32::MAX), 3 * epoch - 1);
        assert_eq!(at(3 * epoch - 10).widen(5), 3 * epoch + 5);
        assert_eq!(at(1_000).widen(1_700), 1_700);
        assert_eq!(at(epoch / 2 + 7).widen(8), 8);
    }

    #[test]
    fn fuzzed_snapshots() {
        let corpus = [
            "10:20:10,14,15",
            "7:7:",
            "1:18446744073709551615:1",
            "730:731:730",
        ];
        fuzz_text("snapshots", 128 << 10, &corpus, |text| {
            if let Ok(snapshot) = text.parse::<Snapshot>() {
                assert_eq!(snapshot.to_string().parse(), Ok(snapshot.clone()));
                for xid in [0, snapshot.xmin(), snapshot.xmax(), u64::MAX] {
                    assert!(!snapshot.sees(xid) || xid < snapshot.xmax());
                    let _wide = snapshot.widen(u32::try_from(xid & 0xffff_ffff).unwrap());
                }
            }
        });
    }
}
