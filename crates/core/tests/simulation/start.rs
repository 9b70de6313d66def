//! What a session finds, and what the core decides by it: `start` and `recovery`.

use walrelay_core::config::OnLoss;
use walrelay_core::error::{Error, Kind};
use walrelay_core::ledger::trail::{Pair, Published};
use walrelay_core::position::Position;
use walrelay_core::recovery::{Rules, SlotIs, TableStart};
use walrelay_core::sessions::TableReason;
use walrelay_core::start::{Found, reconcile, stored_now};
use walrelay_core::stored::Stored;

use super::server::Server;
use super::world::World;

/// What is stored before the first relay starts: all up to where the slot begins is published.
pub(super) fn stored_at_first(server: &Server) -> Stored {
    let position = Position::at(server.confirmed);
    let pair = Pair {
        snapshot: server.snapshot(),
        lsn: server.confirmed,
    };
    let found = Found {
        stored: None,
        server: &server.identity,
        slot: &server.slot_now(),
        wal_end: server.end(),
        history: &server.history,
    };
    Stored {
        position,
        published: Some(Published::at(pair)),
        ..stored_now(found)
    }
}

impl World {
    /// Why the table is read first, or instead, if it is.
    pub(super) fn table_instead(&self) -> Option<TableReason> {
        if self.server.forbids(self.now) {
            return Some(TableReason::Poll("no right to replicate".to_owned()));
        }
        let lacks_rows = self.decide(|rules, found| rules.needs_table(found));
        (lacks_rows || !self.server.has_slot).then_some(TableReason::Gap)
    }

    /// How a session at the table starts.
    pub(super) fn table_start(&self, why: &TableReason) -> Result<TableStart, Error> {
        let slot = match self.server.has_slot {
            true => SlotIs::There,
            false => SlotIs::Missing,
        };
        let start = self.decide(|rules, found| rules.table_start(why, found, &slot));
        start.inspect_err(|error| {
            assert_eq!(error.kind(), Kind::SlotActive, "{error}");
        })
    }

    /// What a stream stores before all else.
    pub(super) fn stream_start(&self) -> Stored {
        self.decide(|_, found| {
            let start =
                reconcile(found, false).unwrap_or_else(|error| panic!("{error}: {found:?}"));
            Stored {
                relay: self.relay.process.left.relay.clone(),
                position: start.position,
                published: start.published,
                catch_up: None,
                ..stored_now(found)
            }
        })
    }

    /// What this process read and could not store counts as stored.
    fn decide<T>(&self, decision: impl FnOnce(Rules<'_>, Found<'_>) -> T) -> T {
        let setup = self.setup();
        let rules = Rules {
            slot: &setup.slot,
            on_loss: OnLoss::Recover,
            backlog: None,
            adopt_slot: false,
            store_is_slot: false,
            outboxes: &setup.outboxes,
        };
        let progress = self.relay.process.left.progress.as_ref();
        let found = Found {
            stored: Some(progress.unwrap_or(&self.stored)),
            server: &self.server.identity,
            slot: &self.server.slot_now(),
            wal_end: self.server.end(),
            history: &self.server.history,
        };
        decision(rules, found)
    }
}
