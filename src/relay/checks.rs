//! What is checked of Postgres while the slot streams. No I/O: the loop asks the SQL session, and tells what it found.

use std::collections::{HashMap, HashSet};

use crate::config::unit::human_bytes;
use crate::config::{Config, SlotName, SourceConfig};
use crate::error::Error;
use crate::event::RowId;
use crate::position::{Lsn, Position};

/// See the module's documentation.
pub(super) struct Checks {
    /// Whether the outbox was found not to be published as it was.
    pub(super) catalog_unsound: bool,
    /// None where rows do not say that they are pending.
    pub(super) requeued: Option<RequeueDetector>,
    pub(super) rows_persist: RowsPersist,
    pub(super) retention: RetentionLimit,
}

impl Checks {
    pub(super) fn new(config: &Config) -> Checks {
        Checks {
            catalog_unsound: false,
            requeued: RequeueDetector::of(config),
            rows_persist: RowsPersist::default(),
            retention: RetentionLimit::new(&config.source),
        }
    }
}

/// Rows that are looked at in one go.
pub(super) const ROWS_MAX: usize = 500;

/// Rows that somebody set to pending again while the slot serves.
///
/// A row is pending until the slot has delivered it and it was marked. So what is pending says nothing, and what *still* is
/// does: a row that was pending when the log was at some place, and is pending after everything up to there was
/// delivered and marked, was set to pending by somebody who wants it published again.
#[derive(Debug, Default)]
pub(super) struct RequeueDetector {
    /// Rows that were pending, and where the log was after they were looked at.
    seen: Option<(HashSet<RowId>, Lsn)>,
    /// Whether a look that failed was logged.
    warned: bool,
}

impl RequeueDetector {
    /// None where rows do not say that they are pending.
    pub(super) fn of(config: &Config) -> Option<RequeueDetector> {
        config.outboxes.iter().any(|outbox| outbox.upkeep.pending.is_some()).then(RequeueDetector::default)
    }

    /// Logs that a look failed, the first time.
    pub(super) fn warn(&mut self, slot: &SlotName, error: &Error) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(%slot, %error, "the search for pending rows failed; an index may help");
        }
    }

    /// These rows are pending, and the log was at `lsn` after that was looked at; everything up to `settled` was delivered
    /// and marked *before* it was. Gives the rows that are to be published again.
    pub(super) fn looked(&mut self, pending: Vec<RowId>, lsn: Lsn, settled: &Position) -> Vec<RowId> {
        let Some((seen, reached)) = &self.seen else {
            self.seen = (!pending.is_empty()).then(|| (pending.into_iter().collect(), lsn));
            return Vec::new();
        };
        if settled.end_lsn < *reached {
            // The slot is not there yet: the first look is still the one that counts.
            return Vec::new();
        }
        let still: Vec<RowId> = pending.iter().filter(|row| seen.contains(*row)).cloned().collect();
        self.seen = (still.is_empty() && !pending.is_empty()).then(|| (pending.into_iter().collect(), lsn));
        still
    }
}

/// So many rows in a row that are gone make one sure.
const GONE_MAX: u32 = 3;

/// Whether rows stay in the table, which is what everything can be recovered from.
///
/// Some applications delete an event in the transaction that inserts it: the slot delivers it all the same, and the table
/// is always empty. That is well as long as the slot is there. Whoever does so should know what it costs.
#[derive(Debug, Default)]
pub(super) struct RowsPersist {
    /// An event that was new at the last look: by now its row is visible to everybody, if there is one.
    waiting: Option<RowId>,
    /// By outbox: rows in a row that were gone.
    gone: HashMap<usize, u32>,
}

impl RowsPersist {
    /// The row to look for now; `newest` is that of an event that came lately, and is looked for the next time.
    pub(super) fn due(&mut self, newest: Option<RowId>) -> Option<RowId> {
        let due = self.waiting.take();
        self.waiting = newest.filter(|newest| due.as_ref() != Some(newest));
        due
    }

    /// The row was there, or was not, or nobody may know. Says whether it is now sure that rows do not stay.
    pub(super) fn found(&mut self, outbox: usize, kept: Option<bool>) -> bool {
        let gone = self.gone.entry(outbox).or_default();
        match kept {
            Some(true) => *gone = 0,
            Some(false) => *gone = gone.saturating_add(1),
            None => {}
        }
        *gone == GONE_MAX && kept == Some(false)
    }
}

/// What a measurement came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is within its limit, or has none.
    Within,
    Over {
        /// Bytes it keeps.
        retained: u64,
        /// Bytes it may keep.
        max: u64,
    },
    /// It is over it, and is to be dropped.
    GiveUp,
}

/// How much WAL the slot may retain.
#[derive(Debug)]
pub(super) struct RetentionLimit {
    max: Option<u64>,
    gives_up: bool,
    /// The last thing a person was told.
    told: Told,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    Nothing,
    Half,
    Over,
}

impl RetentionLimit {
    pub(super) fn new(config: &SourceConfig) -> Self {
        RetentionLimit { max: config.max_retained_bytes, gives_up: config.give_up_over_budget, told: Told::Nothing }
    }

    /// The slot keeps `retained` bytes. Gives what follows, and what a person should be told, once for each step.
    pub(super) fn judge(&mut self, retained: u64) -> (Verdict, Option<String>) {
        let Some(max) = self.max else { return (Verdict::Within, None) };
        let state = match retained {
            _ if retained > max => Told::Over,
            _ if retained > max / 2 => Told::Half,
            _ => Told::Nothing,
        };
        let is_news = state > self.told;
        self.told = state;
        let (kept, may) = (human_bytes(retained), human_bytes(max));
        let news = match state {
            Told::Nothing => None,
            Told::Half => Some(format!("the slot retains {kept} of WAL, more than half of its limit of {may}")),
            Told::Over if self.gives_up => Some(format!(
                "the slot retains {kept} of WAL, and its limit is {may}: dropping the slot, and reading the table"
            )),
            Told::Over => {
                Some(format!("the slot retains {kept} of WAL, and its limit is {may}: not ready until it retains less"))
            }
        };
        let verdict = match state {
            Told::Over if self.gives_up => Verdict::GiveUp,
            Told::Over => Verdict::Over { retained, max },
            Told::Half | Told::Nothing => Verdict::Within,
        };
        (verdict, news.filter(|_| is_news))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(ids: &[&str]) -> Vec<RowId> {
        ids.iter().map(|id| RowId::new(0, std::iter::once(id.as_bytes()))).collect()
    }

    #[test]
    fn what_is_pending_still_after_the_slot_passed_it_was_set_again() {
        let (mut again, at) = (RequeueDetector::default(), |lsn| Position::at(Lsn::new(lsn)));
        let mut look = |ids: &[&str], lsn, settled| again.looked(rows(ids), Lsn::new(lsn), &at(settled));
        assert_eq!(look(&["a", "b"], 100, 50), []);
        // Not there yet, however often it is looked at.
        assert_eq!(look(&["a", "b", "c"], 120, 99), []);
        // "b" was marked, "c" came later.
        assert_eq!(look(&["a", "c"], 130, 100), rows(&["a"]));
        assert_eq!(look(&["c"], 140, 135), []);
        assert_eq!(look(&[], 150, 140), []);
        assert_eq!(look(&["d"], 160, 150), []);
        assert_eq!(look(&[], 170, 160), []);
    }

    #[test]
    fn a_row_is_looked_for_a_while_after_its_event_and_once() {
        let (mut kept, row) = (RowsPersist::default(), |id: u8| Some(RowId { outbox: 0, key: vec![id] }));
        assert_eq!(kept.due(row(1)), None);
        assert_eq!(kept.due(row(1)), row(1));
        assert_eq!(kept.due(row(1)), None);
        assert_eq!(kept.due(None), row(1));
        assert_eq!(kept.due(None), None);
    }

    #[test]
    fn rows_that_are_gone_three_times_in_a_row_are_told_of_once() {
        let mut kept = RowsPersist::default();
        let mut found = |answers: &[Option<bool>]| answers.iter().filter(|answer| kept.found(0, **answer)).count();
        assert_eq!(found(&[Some(false), Some(false), Some(true), Some(false), None, Some(false)]), 0);
        assert_eq!(found(&[Some(false), Some(false), Some(false)]), 1);
    }

    fn judged(gives_up: bool, retained: &[u64]) -> Vec<(Verdict, bool)> {
        let mut limit = RetentionLimit { max: Some(100), gives_up, told: Told::Nothing };
        retained.iter().map(|bytes| limit.judge(*bytes)).map(|(verdict, news)| (verdict, news.is_some())).collect()
    }

    #[test]
    fn each_step_is_told_once_and_again_after_it_was_left() {
        let over = |retained| Verdict::Over { retained, max: 100 };
        assert_eq!(
            judged(false, &[50, 51, 60, 101, 102, 60, 101, 10, 51]),
            [
                (Verdict::Within, false),
                (Verdict::Within, true),
                (Verdict::Within, false),
                (over(101), true),
                (over(102), false),
                (Verdict::Within, false),
                (over(101), true),
                (Verdict::Within, false),
                (Verdict::Within, true),
            ]
        );
        assert_eq!(judged(true, &[101]), [(Verdict::GiveUp, true)]);
    }

    #[test]
    fn without_a_limit_nothing_is_too_much() {
        let mut limit = RetentionLimit { max: None, gives_up: true, told: Told::Nothing };
        assert_eq!(limit.judge(u64::MAX), (Verdict::Within, None));
    }
}
