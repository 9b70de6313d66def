//! Which rows of the *table* are published, by transactions instead of by a place in the WAL.
//!
//! A position means nothing after its slot is gone. A pair keeps its meaning: a snapshot, and the
//! end of the WAL after it. A transaction that the snapshot sees wrote its commit record before
//! that end. So when the position reaches the end, all rows that the snapshot sees are published.
//! The others can be selected (`not pg_visible_in_snapshot(xid, …)`). With the ids of transactions
//! delivered since, the selection finds exactly the missing rows.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::position::{Lsn, Position};
use crate::snapshot::Snapshot;

/// Transactions kept beside a pair: some seconds of a busy outbox, and a record of at most 20 kB.
/// Older transactions are published again after the slot is lost; none is left out.
pub const TRANSACTIONS_MAX: usize = 2_000;
/// Older pairs, kept for a failover that moves the end of the WAL to before the newest pair.
const EARLIER_MAX: usize = 5;
/// WAL between two of these pairs. They reach back minutes on a busy server, hours on an idle one.
const EARLIER_BYTES: u64 = 4 * 1024 * 1024;
/// A longer snapshot is not kept: thousands of sessions may have running transactions.
const SNAPSHOT_BYTES_MAX: usize = 32 * 1024;

/// Rows of transactions that the snapshot sees are published when everything up to the LSN is
/// delivered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Taken before `lsn`.
    pub snapshot: Snapshot,
    /// The end of the WAL after the snapshot.
    pub lsn: Lsn,
}

/// Which rows of the outbox tables are published, by the transaction that wrote them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The transactions that its snapshot sees are published.
    #[serde(flatten)]
    pub pair: Pair,
    /// Further published transactions, ascending. The snapshot does not see them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<u64>,
    /// No commit record of `also` ends behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub also_end: Option<Lsn>,
    /// The snapshot of the last scan that also compared `xmin`, if that is older: it decides for
    /// copied rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<Snapshot>,
    /// An earlier snapshot, from before all transactions that ran at the one for copied rows. A
    /// transaction that it sees had ended before these began, so none of them is a savepoint of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Snapshot>,
    /// Savepoints with published rows since `copies`, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub savepoints: Vec<u64>,
    /// These transactions may be unpublished, even if `pair` sees them: they are older than the
    /// relay's knowledge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<Snapshot>,
    /// The end of the WAL on disk at that time, if no position is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flushed: Option<Lsn>,
    /// Earlier pairs, newest first, for a promoted server that lost later WAL.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Pair>,
}

impl Published {
    /// The published rows of a slot for which nothing else is known. From `lsn` on, where it was
    /// confirmed, the slot delivers no transaction below its `catalog_xmin` (`oldest`). Rows that
    /// `now` sees may be older than slot or publication.
    pub fn from_slot(oldest: u32, now: Snapshot, lsn: Lsn) -> Published {
        let pair = Pair {
            snapshot: Snapshot::below(now.widen(oldest)),
            lsn,
        };
        Published {
            floor: Some(now),
            ..Published::at(pair)
        }
    }

    /// All rows that the snapshot of `pair` sees are published.
    pub fn at(pair: Pair) -> Published {
        Published {
            pair,
            also: Vec::new(),
            also_end: None,
            copies: None,
            before: None,
            savepoints: Vec::new(),
            floor: None,
            flushed: None,
            earlier: Vec::new(),
        }
    }

    /// The published rows after a promotion at `switch_lsn`. Later transactions are lost, and their
    /// ids used again.
    pub fn until(&self, switch_lsn: Lsn) -> Option<Published> {
        let mut pairs = std::iter::once(&self.pair)
            .chain(&self.earlier)
            .filter(|pair| pair.lsn <= switch_lsn);
        let pair = pairs.next()?.clone();
        let is_newest = pair == self.pair;
        let earlier = pairs.cloned().collect();
        let mut published = Published {
            floor: self.floor.clone(),
            earlier,
            ..Published::at(pair)
        };
        // Those of an earlier pair are not kept.
        if is_newest {
            published.copies.clone_from(&self.copies);
            published.before.clone_from(&self.before);
            published.savepoints.clone_from(&self.savepoints);
            if self.also_end.is_some_and(|end| end <= switch_lsn) {
                published.also.clone_from(&self.also);
                published.also_end = self.also_end;
            }
        }
        Some(published)
    }

    /// Whether the transaction of a row's column is published.
    pub fn has(&self, xid: Option<u64>) -> bool {
        xid.is_some_and(|xid| self.pair.snapshot.sees(xid) || self.also.contains(&xid))
    }

    /// The snapshot that decides by `xmin`.
    pub fn copies(&self) -> &Snapshot {
        self.copies.as_ref().unwrap_or(&self.pair.snapshot)
    }

    /// The value of `before` where `next` decides by `xmin`.
    pub fn before(&self, next: &Snapshot) -> Option<Snapshot> {
        let is_before = self.copies().xmax() <= next.xmin();
        if is_before {
            Some(self.copies().clone())
        } else {
            self.before.clone()
        }
    }
}

/// Follows a stream from pair to pair. Does no I/O; the caller takes the snapshots.
#[derive(Debug, Default)]
pub struct Trail {
    published: Option<Published>,
    /// A pair that the position has not reached.
    next: Option<Pair>,
    /// The open transaction's id.
    open: Option<u32>,
    /// Ids of transactions with events, and the ends of their commit records.
    transactions: VecDeque<(u32, Lsn)>,
}

impl Trail {
    /// Continues from the published rows that are known.
    pub fn new(published: Option<Published>) -> Self {
        Trail {
            published,
            ..Trail::default()
        }
    }

    /// Whether it is known which rows are published.
    pub fn is_known(&self) -> bool {
        self.published.is_some()
    }

    /// Whether a new pair is needed: the position has reached the last one.
    pub fn wants_pair(&self) -> bool {
        self.next.is_none()
    }

    /// Takes a pair: `snapshot`, and `lsn`, the end of the WAL after it.
    pub fn took(&mut self, snapshot: Snapshot, lsn: Lsn) {
        if snapshot.to_string().len() <= SNAPSHOT_BYTES_MAX {
            self.next = Some(Pair { snapshot, lsn });
        }
    }

    /// A transaction begins that is not delivered. After a lost connection the same transaction
    /// begins again.
    pub fn begin(&mut self, xid: u32) {
        self.open = Some(xid);
    }

    /// The open transaction ends. Without events it is ignored.
    pub fn commit(&mut self, end_lsn: Lsn, had_events: bool) {
        let Some(xid) = self.open.take().filter(|_| had_events) else {
            return;
        };
        if self.transactions.len() >= TRANSACTIONS_MAX {
            self.transactions.pop_front();
        }
        self.transactions.push_back((xid, end_lsn));
    }

    /// The published rows when everything up to `position` is.
    pub fn published(&mut self, position: &Position) -> Option<&Published> {
        if let Some(pair) = self.next.take_if(|pair| pair.lsn <= position.end_lsn) {
            self.advance(pair);
        }
        let published = self.published.as_mut()?;
        let seen = |xid: u32| published.pair.snapshot.widen(xid);
        let delivered = self
            .transactions
            .iter()
            .filter(|(_, end_lsn)| *end_lsn <= position.end_lsn);
        let ends = delivered.clone().map(|(_, end_lsn)| *end_lsn);
        published.also_end = ends.chain(published.also_end).max();
        let mut also: Vec<u64> = delivered.map(|(xid, _)| seen(*xid)).collect();
        also.extend(published.also.iter().copied());
        also.retain(|xid| !published.pair.snapshot.sees(*xid));
        also.sort_unstable();
        also.dedup();
        also.drain(..also.len().saturating_sub(TRANSACTIONS_MAX));
        published.also = also;
        Some(published)
    }

    fn advance(&mut self, pair: Pair) {
        let mut earlier = Vec::new();
        let mut also = Vec::new();
        let mut also_end = None;
        let mut older = None;
        // Without earlier knowledge, rows older than this snapshot may be unpublished.
        let mut floor = Some(pair.snapshot.clone());
        if let Some(before) = self.published.take() {
            older = before.before(&pair.snapshot);
            let is_far = before
                .earlier
                .first()
                .is_none_or(|last| before.pair.lsn.bytes_since(last.lsn) >= EARLIER_BYTES);
            earlier = before.earlier;
            if is_far {
                earlier.insert(0, before.pair);
                earlier.truncate(EARLIER_MAX);
            }
            also = before.also;
            also_end = before.also_end;
            floor = before.floor;
        }
        // The snapshot does not see these: a transaction can end between the snapshot and the read
        // of the end of the WAL.
        self.transactions
            .retain(|(xid, _)| !pair.snapshot.sees(pair.snapshot.widen(*xid)));
        self.published = Some(Published {
            also,
            also_end,
            before: older,
            floor,
            earlier,
            ..Published::at(pair)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(lsn: u64) -> Position {
        Position::at(Lsn::new(lsn))
    }

    fn snapshot(text: &str) -> Snapshot {
        text.parse().unwrap()
    }

    #[test]
    fn a_pair_of_snapshot_and_lsn_counts_once_the_position_reaches_the_lsn() {
        let mut trail = Trail::default();
        assert!(trail.wants_pair() && trail.published(&at(500)).is_none());
        trail.took(snapshot("10:12:10"), Lsn::new(100));
        assert!(!trail.wants_pair());
        assert_eq!(trail.published(&at(99)), None);
        let published = trail.published(&at(100)).unwrap();
        assert_eq!(published.pair.snapshot, snapshot("10:12:10"));
        assert_eq!(
            published.floor,
            Some(snapshot("10:12:10")),
            "nobody knows what became of earlier rows"
        );
        assert!(trail.wants_pair());
    }

    #[test]
    fn transactions_are_remembered_until_a_snapshot_sees_them() {
        let mut trail = Trail::default();
        trail.took(snapshot("10:13:10"), Lsn::new(100));
        // 10 ended between the snapshot and the end of the log; 11 was seen; 13 and 14 came later.
        for (xid, end_lsn) in [(10, 90), (11, 95), (13, 120), (14, 130)] {
            trail.begin(xid);
            trail.commit(Lsn::new(end_lsn), true);
        }
        trail.begin(15);
        trail.commit(Lsn::new(140), false);
        assert_eq!(trail.published(&at(120)).unwrap().also, [10, 13]);
        assert_eq!(trail.published(&at(150)).unwrap().also, [10, 13, 14]);
        trail.took(snapshot("14:16:14"), Lsn::new(145));
        let published = trail.published(&at(150)).unwrap();
        assert_eq!(published.also, [14]);
        assert_eq!(published.floor, Some(snapshot("10:13:10")));
    }

    #[test]
    fn a_new_slot_has_published_no_transaction_from_its_first_xid_on() {
        // 4294967290 is from before the wraparound.
        let now = snapshot("4294967300:4294967302:4294967300");
        let begins = Published::from_slot(4_294_967_290, now.clone(), Lsn::new(50));
        assert_eq!(
            (
                begins.pair.snapshot.sees(4_294_967_289),
                begins.pair.snapshot.sees(4_294_967_290)
            ),
            (true, false)
        );
        let mut trail = Trail::new(Some(begins));
        trail.begin(5);
        trail.commit(Lsn::new(60), true);
        let published = trail.published(&at(60)).unwrap();
        assert_eq!(
            (&published.also, &published.floor),
            (&vec![4_294_967_301], &Some(now.clone()))
        );
        trail.took(snapshot("4294967310:4294967310:"), Lsn::new(70));
        assert_eq!(
            trail.published(&at(70)).unwrap().floor,
            Some(now),
            "rows from before it may not be published"
        );
    }

    #[test]
    fn published_transactions_are_bounded_and_survive_a_restart() {
        let mut trail = Trail::default();
        trail.took(snapshot("10:10:"), Lsn::new(1));
        trail.published(&at(1));
        for xid in 10..5_000_u32 {
            trail.begin(xid);
            trail.commit(Lsn::new(u64::from(xid)), true);
        }
        let published = trail.published(&at(10_000)).unwrap().clone();
        assert_eq!(
            (published.also.len(), published.also.last()),
            (TRANSACTIONS_MAX, Some(&4_999))
        );
        let mut again = Trail::new(Some(published.clone()));
        assert_eq!(again.published(&at(10_000)), Some(&published));
        let text = serde_json::to_string(&published).unwrap();
        assert!(text.len() < 20_000);
        assert_eq!(serde_json::from_str::<Published>(&text).unwrap(), published);
    }

    #[test]
    fn after_a_promotion_only_snapshots_from_before_the_switch_count() {
        let mut trail = Trail::default();
        for round in 0..9_u64 {
            let lsn = 1 + round * EARLIER_BYTES / 2;
            trail.took(snapshot(&format!("{0}:{0}:", 10 + round)), Lsn::new(lsn));
            trail.published(&at(lsn));
        }
        let published = trail.published(&at(u64::MAX)).unwrap().clone();
        let before = published
            .until(Lsn::new(1 + 5 * EARLIER_BYTES / 2))
            .unwrap();
        assert!(
            before.pair.lsn <= Lsn::new(1 + 5 * EARLIER_BYTES / 2)
                && before.pair.lsn > Lsn::new(EARLIER_BYTES)
        );
        assert_eq!(
            (published.until(Lsn::ZERO), published.earlier.len()),
            (None, 4)
        );
    }

    #[test]
    fn after_a_promotion_transactions_from_before_the_switch_stay_published() {
        let mut trail = Trail::default();
        trail.took(snapshot("10:10:"), Lsn::new(100));
        trail.published(&at(100));
        for (xid, end) in [(10, 120), (11, 140)] {
            trail.begin(xid);
            trail.commit(Lsn::new(end), true);
        }
        let published = trail.published(&at(140)).unwrap().clone();
        let stays = |switch| published.until(Lsn::new(switch)).unwrap();
        assert_eq!((stays(140).also, stays(139).also), (vec![10, 11], vec![]));
        assert_eq!(stays(140).until(Lsn::new(140)), Some(stays(140)));

        trail.took(snapshot("12:12:"), Lsn::new(150));
        let seen = trail.published(&at(150)).unwrap();
        assert_eq!(seen.until(Lsn::new(150)).unwrap().also, Vec::<u64>::new());
    }
}
