//! What would be asked of the relay, and what was, for people and as JSON. No I/O.

use serde::Serialize;

use super::Change;
use super::event::Counts;
use crate::cli::text::counted;
use crate::source::lease::Holder;

/// A retry or drop of parked events: what it would ask, and what it asked.
#[derive(Debug, Serialize)]
pub(super) struct ParkedPlan {
    #[serde(rename = "ask")]
    pub(super) change: Change,
    pub(super) dry_run: bool,
    #[serde(flatten)]
    pub(super) counts: Counts,
    #[serde(skip)]
    pub(super) slot: String,
    /// All events that wait in these aggregates.
    pub(super) waiting: u64,
    /// Rows of the table that this is asked of.
    #[serde(skip)]
    pub(super) ids: Vec<i64>,
    /// How many it was asked of.
    pub(super) asked: u64,
    /// Whether a relay has the slot, or reads its table.
    pub(super) relay_runs: bool,
}

impl ParkedPlan {
    /// What would be done.
    pub(super) fn text(&self) -> String {
        let counts = self.counts.said();
        match self.change {
            Change::Retry => {
                let (tried, behind) = (self.ids.len() as u64, self.waiting.saturating_sub(self.ids.len() as u64));
                format!(
                    "{counts}\nTo be tried: the first event of {}, and {} behind them once it is delivered\n",
                    counted(tried, "aggregate"),
                    counted(behind, "event")
                )
            }
            Change::Drop => {
                let stay = self.waiting.saturating_sub(self.counts.matched);
                format!(
                    "{counts}\nTo be dropped: {}; these events are never delivered by the relay. {} of the same aggregates {}\n",
                    counted(self.ids.len() as u64, "event"),
                    counted(stay, "other event"),
                    if stay == 1 { "stays" } else { "stay" }
                )
            }
        }
    }

    /// What is to be confirmed.
    pub(super) fn question(&self) -> String {
        let count = self.ids.len() as u64;
        match self.change {
            Change::Retry => format!("Have the relay of slot {} try {} again?", self.slot, counted(count, "aggregate")),
            Change::Drop => format!(
                "Drop {}? These events are never delivered by the relay of slot {}.",
                counted(count, "event"),
                self.slot
            ),
        }
    }

    /// What was done, and who does the rest.
    pub(super) fn said(&self, relay: Option<&Holder>) -> String {
        let who = match relay {
            Some(relay) => format!("the relay ({relay}) does it within a second or so"),
            None => format!("no relay has slot {} now: it is done once one is started", self.slot),
        };
        let what = match self.change {
            Change::Retry => format!("asked to try {} again", counted(self.asked, "aggregate")),
            Change::Drop => format!("asked to drop {}", counted(self.asked, "event")),
        };
        let gone = (self.ids.len() as u64).saturating_sub(self.asked);
        let gone = if gone > 0 {
            format!("; {} meanwhile delivered or dropped", counted(gone, "event"))
        } else {
            String::new()
        };
        format!("{what}{gone}; {who}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::StoreCounts;
    use super::*;

    fn plan(change: Change, ids: usize) -> ParkedPlan {
        let classes = [("behind".to_owned(), 3), ("too-large".to_owned(), 2)].into();
        let store = StoreCounts::Parked { slot: "s".to_owned(), aggregates: 2 };
        let counts = Counts { matched: 5, classes, store };
        let ids = (0..).take(ids).collect();
        ParkedPlan {
            slot: "s".to_owned(),
            change,
            dry_run: false,
            counts,
            waiting: 1_205,
            ids,
            asked: 2,
            relay_runs: false,
        }
    }

    #[test]
    fn a_retry_is_of_aggregates_and_a_drop_of_events() {
        insta::assert_snapshot!(plan(Change::Retry, 2).text(), @r"
        5 events of 2 aggregates: 3 behind, 2 too-large
        To be tried: the first event of 2 aggregates, and 1203 events behind them once it is delivered
        ");
        insta::assert_snapshot!(plan(Change::Drop, 5).text(), @r"
        5 events of 2 aggregates: 3 behind, 2 too-large
        To be dropped: 5 events; these events are never delivered by the relay. 1200 other events of the same aggregates stay
        ");
        let question = plan(Change::Drop, 5).question();
        assert_eq!(question, "Drop 5 events? These events are never delivered by the relay of slot s.");
        assert_eq!(plan(Change::Retry, 2).question(), "Have the relay of slot s try 2 aggregates again?");
    }

    #[test]
    fn it_is_said_who_does_it_and_when() {
        let relay = Holder { pid: 7, streams: true, application: None, client: None };
        assert_eq!(
            plan(Change::Retry, 2).said(Some(&relay)),
            "asked to try 2 aggregates again; the relay (backend pid 7, streams) does it within a second or so"
        );
        assert_eq!(
            plan(Change::Drop, 3).said(None),
            "asked to drop 2 events; 1 event meanwhile delivered or dropped; no relay has slot s now: it is done once one is started"
        );
    }
}
