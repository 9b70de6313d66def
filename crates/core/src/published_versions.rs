//! The row versions that a poller has published, as far as it finds them again.

use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;

/// Which transaction wrote a row, where its column does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowVersion {
    /// The value of the column.
    pub xid: Option<u64>,
    /// The latest transaction with the 32 bits of its `xmin`.
    pub xmin: u64,
}

/// The file of a table, and the transaction that changed its description last.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TableFile {
    /// OID of the table.
    pub oid: u32,
    /// The number of its file: a rewrite makes another one.
    pub filenode: u32,
    /// The transaction.
    pub changed_by: u64,
}

/// Row versions that a poller finds more than once.
///
/// Of a row whose column does not tell its transaction only `xmin` is known, and it is found as
/// long as some transaction from before it is under way. All versions with
/// one `xmin` become visible at once. A scan that compares the `xmin` of all rows reads all of
/// them, and a bit for each `xmin` remembers that. Other scans read the versions of one transaction
/// column, and remember the pairs.
#[derive(Debug, Default)]
pub struct PublishedVersions {
    /// Read by scans of the column since the last scan of `xmin`.
    pairs: HashSet<RowVersion>,
    /// The `xmin` of versions that scans of `xmin` read.
    read: Xids,
    /// Those of this scan.
    scanned_pairs: HashSet<RowVersion>,
    scanned: Xids,
    /// What this scan compares; none without a poller.
    scan: Option<PollScan>,
    /// The files of the tables at the last look at them.
    files: Vec<TableFile>,
    /// Up to this transaction `xmin` tells no copied row: a table was rewritten since the last
    /// whole scan of `xmin`.
    rewritten_by: Option<u64>,
    /// All published versions with this `xmin` or a later one are remembered; none before the first
    /// scan of `xmin`.
    pub remembers_from: Option<u64>,
}

/// What a poll compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollScan {
    /// The transaction column, by its index.
    Column,
    /// Also the `xmin` of every row.
    Xmin,
}

impl PublishedVersions {
    /// Another scan, which finds none whose `xmin` is below `oldest`.
    pub fn begin(&mut self, scan: PollScan, oldest: u64) {
        self.scan = Some(scan);
        self.scanned_pairs.clear();
        self.scanned = Xids::from(oldest);
        self.read.forget_below(oldest);
    }

    /// A scan of `xmin` begins with these files. Says whether a table was rewritten since the last
    /// look.
    pub fn looked_at(&mut self, files: Vec<TableFile>) -> bool {
        let is_other = |file: &&TableFile| {
            self.files
                .iter()
                .any(|before| before.oid == file.oid && before.filenode != file.filenode)
        };
        let rewritten_by = files
            .iter()
            .filter(is_other)
            .map(|file| file.changed_by)
            .max();
        self.files = files;
        self.rewritten_by = self.rewritten_by.max(rewritten_by);
        rewritten_by.is_some()
    }

    /// Whether a rewrite of its table may have written this version.
    pub fn is_rewritten(&self, version: RowVersion) -> bool {
        self.rewritten_by
            .is_some_and(|rewritten_by| version.xmin <= rewritten_by)
    }

    /// Whether this version was not published, which this scan has found.
    pub fn is_new(&mut self, version: RowVersion) -> bool {
        let Some(scan) = self.scan else { return true };
        if self.read.has(version.xmin) {
            return false;
        }
        match scan {
            PollScan::Column => drop(self.scanned_pairs.insert(version)),
            PollScan::Xmin => self.scanned.add(version.xmin),
        }
        !self.pairs.contains(&version)
    }

    /// The rows of the scan are published, which saw no transaction from `xmax` on.
    pub fn end(&mut self, xmax: u64) {
        match self.scan {
            Some(PollScan::Xmin) => {
                self.rewritten_by = None;
                self.remembers_from.get_or_insert(xmax);
                self.pairs.clear();
                self.read.add_all(&self.scanned);
            }
            Some(PollScan::Column) => self.pairs.extend(self.scanned_pairs.drain()),
            None => {}
        }
    }

    /// The savepoints of published rows since the last scan of `xmin`, with those that an earlier
    /// process stored.
    pub fn savepoints(&self, stored: &[u64]) -> Vec<u64> {
        let mut savepoints: Vec<u64> = self.pairs.iter().map(|version| version.xmin).collect();
        savepoints.extend(stored);
        savepoints.sort_unstable();
        savepoints.dedup();
        savepoints.drain(..savepoints.len().saturating_sub(SAVEPOINTS_MAX));
        savepoints
    }
}

/// Savepoints that are stored at most; rows of earlier ones may be published again after a crash.
const SAVEPOINTS_MAX: usize = 2_000;

/// A set of transaction ids from the first one on: of each 64 ids that have a member, the bits.
#[derive(Debug, Default)]
struct Xids {
    /// No id below is a member. A multiple of 64.
    first: u64,
    words: BTreeMap<u64, u64>,
}

impl Xids {
    fn from(oldest: u64) -> Xids {
        Xids {
            first: oldest / 64 * 64,
            words: BTreeMap::new(),
        }
    }

    fn forget_below(&mut self, oldest: u64) {
        self.first = self.first.max(oldest / 64 * 64);
        self.words = self.words.split_off(&(oldest / 64));
    }

    fn has(&self, xid: u64) -> bool {
        xid >= self.first
            && self
                .words
                .get(&(xid / 64))
                .is_some_and(|word| word & 1 << (xid % 64) != 0)
    }

    fn add(&mut self, xid: u64) {
        if xid >= self.first {
            *self.words.entry(xid / 64).or_default() |= 1 << (xid % 64);
        }
    }

    fn add_all(&mut self, others: &Xids) {
        for (at, word) in &others.words {
            *self.words.entry(*at).or_default() |= word;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(xid: Option<u64>, xmin: u64) -> RowVersion {
        RowVersion { xid, xmin }
    }

    #[test]
    fn a_row_version_is_new_until_a_scan_that_found_it_has_ended() {
        let mut published = PublishedVersions::default();
        let row = version(None, 25);
        assert!(
            published.is_new(row) && published.is_new(row),
            "nobody polls"
        );
        published.begin(PollScan::Column, 10);
        assert!(published.is_new(row));
        // That scan failed.
        published.begin(PollScan::Column, 10);
        assert!(published.is_new(row));
        published.end(30);
        published.begin(PollScan::Xmin, 20);
        assert!(
            !published.is_new(row) && published.is_new(version(Some(3), 25)),
            "a copy by the same transaction"
        );
        published.end(30);
        published.begin(PollScan::Column, 20);
        assert!(
            !published.is_new(row) && !published.is_new(version(Some(4), 25)),
            "all of them were read"
        );
        assert!(published.is_new(version(None, 26)) && published.is_new(version(None, 25 + 640)));
        published.begin(PollScan::Xmin, 20);
        assert!(
            published.is_new(version(None, 25 + 640)),
            "that scan failed, too"
        );
        published.end(30);
        published.begin(PollScan::Column, 600);
        assert!(!published.is_new(version(None, 25 + 640)) && published.is_new(version(None, 670)));
        assert_eq!(
            (
                published.read.words.len(),
                published.read.first,
                published.pairs.len()
            ),
            (1, 576, 0)
        );
    }

    #[test]
    fn a_rewrite_counts_until_a_scan_of_xmin_has_ended() {
        let mut published = PublishedVersions::default();
        let files = |filenode| {
            vec![TableFile {
                oid: 1,
                filenode,
                changed_by: 30,
            }]
        };
        published.begin(PollScan::Xmin, 10);
        assert!(!published.looked_at(files(7)) && !published.is_rewritten(version(None, 25)));
        published.end(30);
        published.begin(PollScan::Xmin, 20);
        assert!(published.looked_at(files(8)));
        assert!(
            published.is_rewritten(version(None, 30)) && !published.is_rewritten(version(None, 31))
        );
        // That scan failed.
        published.begin(PollScan::Xmin, 20);
        assert!(!published.looked_at(files(8)) && published.is_rewritten(version(None, 30)));
        published.end(40);
        assert!(!published.is_rewritten(version(None, 30)));
    }

    #[test]
    fn a_set_of_transactions_forgets_the_old_ones() {
        let mut xids = Xids::from(130);
        [127, 128, 130, 191, 192, 1 << 20]
            .into_iter()
            .for_each(|xid| xids.add(xid));
        assert!(
            !xids.has(127)
                && [128, 130, 191, 192, 1 << 20]
                    .into_iter()
                    .all(|xid| xids.has(xid))
        );
        assert!(!xids.has(129) && !xids.has(1 << 21));
        xids.forget_below(200);
        assert!(!xids.has(191) && xids.has(192) && xids.has(1 << 20));
        xids.forget_below(1 << 30);
        assert!(xids.words.is_empty() && xids.first == 1 << 30);
        xids.forget_below(7);
        assert_eq!(xids.first, 1 << 30);
        let mut far = Xids::from(0);
        far.add(1 << 62);
        assert_eq!(
            (far.has(1 << 62), far.words.len()),
            (true, 1),
            "memory is for what it has"
        );
    }
}
