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

impl Pair {
    /// The earlier pairs of the one that follows this one, which had `earlier`.
    pub(crate) fn before(self, mut earlier: Vec<Pair>) -> Vec<Pair> {
        let last = earlier.first();
        if last.is_none_or(|last| self.lsn.bytes_since(last.lsn) >= EARLIER_BYTES) {
            earlier.insert(0, self);
            earlier.truncate(EARLIER_MAX);
        }
        earlier
    }
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub also_end: Option<Lsn>,
    /// Delivered transactions up to this one may be missing in `also`, which is empty until the
    /// snapshot sees them: what is published again is what was delivered last (P2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forgotten: Option<u64>,
    /// The snapshot of the last scan that also compared `xmin`, if that is older: it decides for
    /// copied rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<Snapshot>,
    /// An earlier snapshot, from before all transactions that ran at the one for copied rows. A
    /// transaction that it sees had ended before these began, so none of them is a savepoint of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Snapshot>,
    /// Savepoints with published rows since `copies`, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub savepoints: Vec<u64>,
    /// These transactions may be unpublished, even if `pair` sees them: they are older than the
    /// relay's knowledge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<Snapshot>,
    /// The end of the WAL on disk at that time, if no position is known.
    #[serde(skip_serializing_if = "Option::is_none")]
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
            forgotten: None,
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
        let forgotten = self.forgotten.max(self.also.last().copied());
        if self.pair.lsn <= switch_lsn {
            let mut published = Published {
                flushed: None,
                ..self.clone()
            };
            if self.also_end.is_none_or(|end| end > switch_lsn) {
                published.forgotten = forgotten;
                published.trim();
            }
            return Some(published);
        }
        let earlier = self.earlier.iter().cloned();
        let mut earlier = earlier.skip_while(|pair| pair.lsn > switch_lsn);
        let pair = earlier.next()?;
        Some(Published {
            floor: self.floor.clone(),
            forgotten: forgotten.max(Some(self.pair.snapshot.xmax())),
            earlier: earlier.collect(),
            ..Published::at(pair)
        })
    }

    /// The same, without transactions that no snapshot sees: rows of them may be unpublished.
    pub(crate) fn in_snapshots(mut self) -> Published {
        self.forgotten = self.forgotten.max(self.also.last().copied());
        self.trim();
        self
    }

    /// Leaves in `also` what the snapshot does not see; nothing, where transactions are missing.
    pub fn trim(&mut self) {
        let snapshot = &self.pair.snapshot;
        self.also.retain(|xid| !snapshot.sees(*xid));
        self.also.sort_unstable();
        self.also.dedup();
        if self.also.len() > TRANSACTIONS_MAX {
            self.forgotten = self.forgotten.max(self.also.last().copied());
        }
        self.forgotten.take_if(|xid| *xid < snapshot.xmin());
        if self.forgotten.is_some() {
            self.also.clear();
        }
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
            // No pair came in time. None of them is remembered, until one sees them.
            let forgotten = self.transactions.drain(..);
            if let Some(published) = &mut self.published {
                let snapshot = &published.pair.snapshot;
                let newest = forgotten.map(|(xid, _)| snapshot.widen(xid)).max();
                published.forgotten = published.forgotten.max(newest);
            } else {
                // One that is taken now does.
                self.next = None;
            }
        }
        self.transactions.push_back((xid, end_lsn));
    }

    /// The published rows when everything up to `position` is.
    pub fn published(&mut self, position: &Position) -> Option<Published> {
        if let Some(pair) = self.next.take_if(|pair| pair.lsn <= position.end_lsn) {
            self.advance(pair);
        }
        let published = self.published.as_mut()?;
        let mut newest = None;
        for (xid, end_lsn) in &self.transactions {
            if *end_lsn <= position.end_lsn {
                let xid = published.pair.snapshot.widen(*xid);
                newest = newest.max(Some(xid));
                published.also.push(xid);
                published.also_end = published.also_end.max(Some(*end_lsn));
            }
        }
        published.trim();
        let mut published = published.clone();
        if published.forgotten.is_some() {
            // This trail has them, and a later one that begins with this has not.
            published.forgotten = published.forgotten.max(newest);
        }
        Some(published)
    }

    fn advance(&mut self, pair: Pair) {
        // The snapshot does not see these: a transaction can end between the snapshot and the read
        // of the end of the WAL.
        self.transactions
            .retain(|(xid, _)| !pair.snapshot.sees(pair.snapshot.widen(*xid)));
        let mut published = Published::at(pair);
        if let Some(before) = self.published.take() {
            published.before = before.before(&published.pair.snapshot);
            published.also = before.also;
            published.also_end = before.also_end;
            published.forgotten = before.forgotten;
            published.floor = before.floor;
            published.earlier = before.pair.before(before.earlier);
        } else {
            // Rows older than this snapshot may be unpublished.
            published.floor = Some(published.pair.snapshot.clone());
        }
        self.published = Some(published);
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

    /// A trail at 1, with these transactions delivered since.
    fn delivered(xids: std::ops::Range<u32>) -> Trail {
        let mut trail = Trail::default();
        trail.took(snapshot("10:10:"), Lsn::new(1));
        trail.published(&at(1));
        for xid in xids {
            trail.begin(xid);
            trail.commit(Lsn::new(u64::from(xid)), true);
        }
        trail
    }

    #[test]
    fn published_transactions_are_bounded_and_survive_a_restart() {
        let published = delivered(10..2_010).published(&at(10_000));
        let published = published.unwrap();
        assert_eq!(published.also.len(), TRANSACTIONS_MAX);
        let mut again = Trail::new(Some(published.clone()));
        assert_eq!(again.published(&at(10_000)), Some(published.clone()));
        let text = serde_json::to_string(&published).unwrap();
        assert!(text.len() < 20_000);
        assert_eq!(serde_json::from_str::<Published>(&text).unwrap(), published);
    }

    /// P2: an event is not published again behind a later one that is not.
    #[test]
    fn of_more_transactions_than_are_remembered_none_is_until_a_snapshot_sees_them() {
        let mut trail = delivered(10..5_000);
        let published = trail.published(&at(10_000)).unwrap();
        assert_eq!(
            (&published.also, published.forgotten),
            (&vec![], Some(4_999))
        );
        // Also after a restart, and a pair that sees some of them.
        let mut trail = Trail::new(Some(published.clone()));
        for (seen, lsn, also) in [(3_000, 20_000, vec![]), (5_000, 30_000, vec![7_000, 7_001])] {
            let xid = 7_000 + u32::from(lsn == 30_000);
            trail.begin(xid);
            trail.commit(Lsn::new(lsn - 1), true);
            trail.took(snapshot(&format!("{seen}:7000:{seen}")), Lsn::new(lsn));
            let published = trail.published(&at(lsn)).unwrap();
            assert_eq!(published.also, also, "{seen}");
            assert_eq!(published.forgotten.is_some(), also.is_empty());
        }
    }

    #[test]
    fn what_is_published_again_was_delivered_last_at_any_rate() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut trail = Trail::new(Some(Published::at(Pair {
                snapshot: snapshot("10:10:"),
                lsn: Lsn::new(1),
            })));
            // Each takes 10 bytes of the log.
            let end = |xid: u32| Lsn::new(u64::from(xid) * 10);
            let mut received = 10;
            let mut acked = 10;
            for _ in 0..200 {
                for _ in 0..random.u32(0..400) {
                    trail.begin(received);
                    trail.commit(end(received), true);
                    received += 1;
                }
                acked += random.u32(0..=received - acked);
                if trail.wants_pair() && random.u8(0..8) == 0 {
                    // More had committed than was received by then.
                    let seen = received + random.u32(0..900);
                    let then = seen + random.u32(0..100);
                    trail.took(snapshot(&format!("{seen}:{seen}:")), end(then));
                }
                if random.u8(0..20) == 0 {
                    let stored = trail.published(&Position::at(end(acked - 1)));
                    trail = Trail::new(stored);
                    received = acked;
                }
                let published = trail.published(&Position::at(end(acked - 1))).unwrap();
                let is_known = |xid: &u32| published.has(Some(u64::from(*xid)));
                let known = (10..acked).take_while(is_known).count();
                let others = (10..acked).skip(known);
                assert_eq!(others.filter(is_known).count(), 0, "seed {seed}");
            }
        }
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
        let forgotten = |switch| stays(switch).forgotten;
        assert_eq!((forgotten(140), forgotten(139)), (None, Some(11)));
        assert_eq!(stays(140).until(Lsn::new(140)), Some(stays(140)));

        trail.took(snapshot("12:12:"), Lsn::new(150));
        let seen = trail.published(&at(150)).unwrap();
        assert_eq!(seen.until(Lsn::new(150)).unwrap().also, Vec::<u64>::new());
    }
}
