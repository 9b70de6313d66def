//! The record that a stream stores with each position, and what follows where the publication was
//! altered (P1, P8).
//!
//! Postgres does not report that a publication was altered. Its version shows it: `xmin` of its
//! row. Rows that were written meanwhile may be missing from the stream, also single rows of a
//! transaction that the stream has: each change is decoded with the catalogs of its time
//! (<https://www.postgresql.org/docs/current/logicaldecoding-explanation.html>). So the table is
//! read, with two rules:
//!
//! - A transaction that ran when the new version was first seen may have written such rows. The
//!   snapshot up to which the table is read was taken after all of these ended.
//! - A transaction counts as published only where a snapshot sees it that sees the version before,
//!   at a time at which no transaction had begun to write another one. Such a transaction may have
//!   its commit record in the WAL, and wait for a standby: the slot heeds it, and no snapshot sees
//!   it, but later transactions that do not wait. The rows of all others, up to the snapshot of the
//!   read, are published again, whether or not the stream had them: in their order, so that the
//!   newest of an aggregate comes last.

use std::time::Duration;

use crate::catch_up::{CatchUp, Rows};
use crate::ledger::confirm::Due;
use crate::ledger::trail::{Pair, Published, Trail};
use crate::position::Position;
use crate::publisher::pipeline::Pipeline;
use crate::sink::Sink;
use crate::stored::Stored;

/// A pair, and the version of the publication that its snapshot sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// The pair.
    pub pair: Pair,
    /// Empty where the snapshot sees no such publication, or a membership is gone.
    pub publication_version: String,
    /// The transactions and savepoints that had begun to write another version, also those that
    /// rolled back: `xmax` of the rows.
    pub alterations: Vec<u32>,
}

impl Versioned {
    /// Whether the publication may be of another version than this one, which was seen before the
    /// pair was taken.
    pub fn may_differ_from(&self, publication_version: &str) -> bool {
        self.is_being_altered() || self.publication_version != publication_version
    }

    /// Whether the snapshot may not see what is being done to the publication. A savepoint has an
    /// id above that of its transaction, and snapshots do not list it. So one that rolled back
    /// counts until all older transactions have ended, which costs duplicates at most.
    fn is_being_altered(&self) -> bool {
        let snapshot = &self.pair.snapshot;
        let may_run = |xid: &u32| snapshot.widen(*xid) >= snapshot.xmin();
        self.alterations.iter().any(may_run)
    }
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub struct StreamRecord {
    /// What is stored with each position; its own position is that of the start.
    pub stored: Stored,
    altered: Option<Altered>,
}

/// The publication has another version than the one that is known.
#[derive(Debug, Clone)]
struct Altered {
    version: String,
    /// Above the id of each transaction that ran when it was first seen.
    next_xid: u64,
    /// The table is read up to its snapshot, once everything up to its LSN is stored.
    until: Option<Pair>,
}

/// What a pair is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PairUse {
    /// Rows that its snapshot sees are published once the stream has reached its LSN.
    Published(Pair),
    /// The publication was altered since the last look at the catalogs: look again.
    Look,
    /// Nothing more.
    Nothing,
}

impl StreamRecord {
    /// A stream begins with what is `stored`.
    pub fn new(stored: Stored) -> StreamRecord {
        StreamRecord {
            stored,
            altered: None,
        }
    }

    /// The version of the publication at the last look at the catalogs.
    pub fn publication_version(&self) -> &str {
        match &self.altered {
            Some(altered) => &altered.version,
            None => &self.stored.outboxes.publication_version,
        }
    }

    /// Whether the table is read next: the stream ends once that is stored.
    pub fn reads_table(&self) -> bool {
        self.stored.catch_up.is_some()
    }

    /// Whether a pair is to be taken, for `trail` or to read the table up to.
    pub fn wants_pair(&self, trail: &Trail) -> bool {
        match &self.altered {
            Some(altered) => altered.until.is_none() && !self.reads_table(),
            None => trail.wants_pair(),
        }
    }

    /// A look at the catalogs found this other version, and the table is to be read for it.
    /// `next_xid` is a transaction id that was assigned after the look. The `xmax` of a snapshot is
    /// none: transactions above it may run.
    pub fn altered(&mut self, publication_version: String, next_xid: u64) {
        self.altered = Some(Altered {
            version: publication_version,
            next_xid,
            until: None,
        });
    }

    /// A look found this other version, and the table is not to be read.
    pub fn accept(&mut self, publication_version: String) {
        self.stored.outboxes.publication_version = publication_version;
        self.altered = None;
    }

    /// A pair was taken.
    pub fn took(&mut self, taken: Versioned) -> PairUse {
        if self.reads_table() {
            return PairUse::Nothing;
        }
        // Without a table, no row can be missing.
        let has_table = !self.stored.outboxes.table_oids.is_empty();
        let is_known = taken.publication_version == self.publication_version();
        let is_being_altered = taken.is_being_altered();
        let Versioned { pair, .. } = taken;
        match &mut self.altered {
            // It may see rows that were not published.
            _ if has_table && !is_known => PairUse::Look,
            None if has_table && is_being_altered => PairUse::Nothing,
            None => PairUse::Published(pair),
            Some(altered) => {
                let have_ended = pair.snapshot.xmin() >= altered.next_xid;
                if altered.until.is_none() && have_ended {
                    altered.until = Some(pair);
                }
                PairUse::Nothing
            }
        }
    }

    /// As [`Pipeline::due`]. Also the stored position is due again, where that is to say that the
    /// table is read: a server that is idle sends nothing more to store a position for.
    pub fn due<S: Sink>(&self, pipeline: &Pipeline<S>, now: Duration, hurry: bool) -> Due {
        let due = pipeline.due(now, hurry);
        let stored = pipeline.confirm.stored_position();
        if due == Due::Nothing && pipeline.is_settled() && self.is_reached(stored) {
            return Due::Progress(stored);
        }
        due
    }

    /// Whether the table is to be read once `position` is stored: everything up to there is
    /// delivered.
    fn is_reached(&self, position: Position) -> bool {
        let until = self.altered.as_ref().and_then(|it| it.until.as_ref());
        until.is_some_and(|until| until.lsn <= position.end_lsn)
    }

    /// What to store for `position`, at which `published` is known of the tables.
    pub fn at(&mut self, position: Position, published: Option<Published>) -> Stored {
        if self.is_reached(position)
            && let Some(Altered { version, until, .. }) = &mut self.altered
            && let Some(until) = until.take()
        {
            self.stored.catch_up = Some(CatchUp::new(Rows::Unpublished, Some(until.snapshot)));
            self.stored.outboxes.publication_version.clone_from(version);
        }
        let published = match self.reads_table() {
            true => published.map(Published::in_snapshots),
            false => published,
        };
        Stored {
            position,
            published,
            ..self.stored.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DeliveryConfig;
    use crate::position::{Lsn, ServerIdentity};
    use crate::publisher::tests::{AckingBus, setup};
    use crate::stored::Outboxes;

    fn record() -> StreamRecord {
        StreamRecord::new(Stored {
            server: ServerIdentity {
                system_identifier: "7000".to_owned(),
                timeline: 1,
            },
            slot: "orders".to_owned(),
            relay: String::new(),
            position: Position::default(),
            outboxes: Outboxes {
                publication_oid: 11,
                publication_version: "7".to_owned(),
                table_oids: vec![12],
                membership_oids: vec![13],
                message_prefixes: Vec::new(),
            },
            cluster_id: None,
            published: None,
            stream_only: Vec::new(),
            catch_up: None,
        })
    }

    fn versioned(snapshot: &str, lsn: u64, version: &str) -> Versioned {
        Versioned {
            pair: pair(snapshot, lsn),
            publication_version: version.to_owned(),
            alterations: Vec::new(),
        }
    }

    fn pair(snapshot: &str, lsn: u64) -> Pair {
        Pair {
            snapshot: snapshot.parse().unwrap(),
            lsn: Lsn::new(lsn),
        }
    }

    fn published() -> Option<Published> {
        Some(Published {
            also: vec![15],
            ..Published::at(pair("10:10:", 100))
        })
    }

    #[test]
    fn a_pair_counts_only_where_it_sees_the_publication_that_is_known() {
        let mut record = record();
        let known = versioned("20:20:", 200, "7");
        assert_eq!(
            record.took(known.clone()),
            PairUse::Published(known.pair.clone())
        );
        for version in ["8", ""] {
            let other = versioned("20:20:", 200, version);
            assert_eq!(record.took(other.clone()), PairUse::Look);
        }
        record.altered("8".to_owned(), 22);
        assert_eq!(record.took(known), PairUse::Look);
        record.accept("9".to_owned());
        let accepted = versioned("20:20:", 200, "9");
        let counts = PairUse::Published(accepted.pair.clone());
        assert_eq!(record.took(accepted), counts);

        let mut record = self::record();
        record.stored.outboxes.table_oids.clear();
        let other = versioned("20:20:", 200, "8");
        let counts = PairUse::Published(other.pair.clone());
        assert_eq!(record.took(other), counts, "messages are in no table");
    }

    #[test]
    fn no_pair_counts_while_the_publication_is_being_altered() {
        let mut record = record();
        let mut use_of = |alterations: &[u32]| {
            record.took(Versioned {
                alterations: alterations.to_vec(),
                ..versioned("20:25:20,22", 200, "7")
            })
        };
        let counts = PairUse::Published(pair("20:25:20,22", 200));
        assert_eq!(use_of(&[18, 19]), counts, "they rolled back");
        // 21 may be a savepoint of 20.
        for running in [20, 21, 22, 25] {
            assert_eq!(use_of(&[19, running]), PairUse::Nothing);
        }
        // The table is read up to any snapshot.
        record.altered("7".to_owned(), 20);
        record.took(Versioned {
            alterations: vec![22],
            ..versioned("20:25:20,22", 200, "7")
        });
        assert!(record.is_reached(Position::at(Lsn::new(200))));
        record.stored.outboxes.table_oids.clear();
        record.accept("7".to_owned());
        let of_messages = Versioned {
            alterations: vec![22],
            ..versioned("20:25:20,22", 200, "8")
        };
        assert_eq!(record.took(of_messages), counts, "messages are in no table");
    }

    #[test]
    fn a_pair_tells_whether_the_publication_may_be_another_one_by_then() {
        let seen = versioned("20:25:20,22", 200, "7");
        assert!(!seen.may_differ_from("7") && seen.may_differ_from("6"));
        let altered = Versioned {
            alterations: vec![22],
            ..seen
        };
        assert!(altered.may_differ_from("7"));
    }

    #[test]
    fn the_table_is_read_once_what_ran_at_the_look_has_ended_and_is_delivered() {
        let mut record = record();
        let at = |lsn| Position::at(Lsn::new(lsn));
        record.altered("8".to_owned(), 24);
        let trail = Trail::default();
        // 23 runs, which the first snapshot does not tell; 24 began later.
        for (snapshot, waits) in [("23:23:", true), ("23:25:23", true), ("24:25:24", false)] {
            assert!(record.wants_pair(&trail));
            let nothing = record.took(versioned(snapshot, 300, "8"));
            assert_eq!(nothing, PairUse::Nothing);
            assert_eq!(record.is_reached(at(300)), !waits);
        }
        assert!(!record.wants_pair(&trail) && !record.is_reached(at(299)));
        let before = record.at(at(299), published());
        assert_eq!((before.catch_up, before.published), (None, published()));
        let stored = record.at(at(300), published());
        let until = stored.catch_up.unwrap().until.unwrap();
        assert_eq!(until, pair("24:25:24", 300).snapshot);
        assert_eq!(stored.outboxes.publication_version, "8");
        let told = stored.published.unwrap();
        assert_eq!((told.also, told.forgotten), (Vec::new(), Some(15)));
        assert!(record.reads_table() && !record.is_reached(at(400)));
    }

    #[test]
    fn an_alteration_after_another_one_is_waited_for_anew() {
        let mut record = record();
        record.altered("8".to_owned(), 20);
        record.took(versioned("21:21:", 210, "8"));
        assert!(record.is_reached(Position::at(Lsn::new(300))));
        record.altered("9".to_owned(), 25);
        assert_eq!(record.publication_version(), "9");
        assert!(!record.is_reached(Position::at(Lsn::new(300))));
    }

    #[test]
    fn an_idle_server_keeps_no_table_from_being_read() {
        let at = Position::at(Lsn::new(300));
        let setup = setup(DeliveryConfig::default());
        let bus = AckingBus::default();
        let now = Duration::ZERO;
        let pipeline = Pipeline::new(&setup, at, at, None, bus, now).unwrap();
        let mut record = record();
        record.altered("8".to_owned(), 24);
        assert_eq!(record.due(&pipeline, now, false), Due::Nothing);
        record.took(versioned("24:24:", 300, "8"));
        assert_eq!(record.due(&pipeline, now, false), Due::Progress(at));
        assert!(record.at(at, None).catch_up.is_some());
        assert_eq!(record.due(&pipeline, now, false), Due::Nothing);
    }
}
