//! What the sessions of a process leave to the next one.

use std::mem::take;
use std::time::Duration;

use crate::error::Result;
use crate::event::RowId;
use crate::ledger::trail::Published;
use crate::position::{Position, ServerIdentity};
use crate::published_versions::PublishedVersions;
use crate::publisher::Setup;
use crate::publisher::pipeline::{Delivered, OpenTransaction, Pipeline};
use crate::publisher::write_back::WriteBacks;
use crate::recovery::TableStart;
use crate::sessions::TableReason;
use crate::sink::Sink;
use crate::stored::Stored;
use crate::turn::Turn;

/// The knowledge of a process between two sessions. The next one publishes nothing of it again, and
/// writes to Postgres what is still to be written.
#[derive(Debug, Default)]
pub struct Left {
    /// The id of this process, which no other one has.
    pub relay: String,
    /// The last record that the store took of this process.
    pub kept: Option<Stored>,
    /// Writes to rows, of a session at the table, or of a producer that ended.
    pub write_backs: WriteBacks,
    /// What that producer had delivered of what the slot sent.
    pub delivered: Option<Delivered>,
    /// Delivered rows of the transaction that the position is inside of, until the table was read.
    pub inside: Vec<RowId>,
    /// The transaction that the last stream was inside of.
    begun: OpenTransaction,
    /// How far the table was read and published, where that is not stored.
    pub progress: Option<Stored>,
    /// The row versions that were published with it.
    pub found: PublishedVersions,
    /// Whether another relay was at work.
    pub turn: Turn,
}

impl Left {
    /// A process with this id begins, which knows nothing.
    pub fn of(relay: String) -> Left {
        Left {
            relay,
            ..Left::default()
        }
    }

    /// Nothing counts but what is stored.
    pub fn forget(&mut self) {
        *self = Left {
            kept: self.kept.take(),
            turn: take(&mut self.turn),
            ..Left::of(take(&mut self.relay))
        };
    }

    /// A session on `server` has the slot or the lease, and has `loaded` this. Whether all that the
    /// process knows counts. If not, nothing is left, and its id has to be stored before anything
    /// is published.
    pub fn resume(&mut self, loaded: Option<&Stored>, server: &ServerIdentity) -> bool {
        let kept = self.kept.as_ref();
        // The slot alone keeps no record.
        let last = loaded.or(kept);
        let counts = last.is_some_and(|last| last.counts(&self.relay, server, kept));
        let counts = self.turn.resume(counts);
        if !counts {
            self.forget();
        }
        counts
    }

    /// The store took this of this process.
    pub fn stored(&mut self, stored: Stored) {
        self.progress = None;
        self.kept = Some(stored);
    }

    /// The producer of `pipeline` ends.
    pub fn ended<S: Sink>(&mut self, pipeline: &mut Pipeline<S>) {
        if pipeline.publisher.transaction.is_used() {
            // Nothing counts but what is committed, which is stored.
            let stored = pipeline.confirm.stored_position();
            self.inside = pipeline.delivered_at(stored).inside;
        } else {
            let position = pipeline.publisher.ledger.delivered();
            self.delivered = Some(pipeline.delivered_at(position));
        }
        self.write_backs = take(&mut pipeline.publisher.write_backs);
        self.begun = take(&mut pipeline.begun);
        // Topics may have what was not found in them yet.
        if pipeline.publisher.judge.before.is_some() {
            self.turn.doubt();
        }
    }

    /// A session opens. After another relay was at work, nothing is left.
    pub fn open(&mut self) {
        if self.turn.open() {
            self.forget();
        }
    }

    /// The pipeline of a producer that begins at `now`, where `stored` is stored and `published`
    /// there. The error is that of [`Pipeline::new`].
    pub fn begin<S: Sink>(
        &mut self,
        setup: &Setup,
        stored: Position,
        published: Option<Published>,
        sink: S,
        now: Duration,
    ) -> Result<Pipeline<S>> {
        self.open();
        let delivered = self.delivered.take();
        let (start, published) = match delivered.filter(|of| of.position.is_at_or_after(&stored)) {
            Some(of) => (of.position, of.published),
            None => (stored, published),
        };
        let mut pipeline = Pipeline::new(setup, start, stored, published, sink, now)?;
        pipeline.publisher.write_backs = take(&mut self.write_backs).behind(stored);
        pipeline.begun = take(&mut self.begun);
        Ok(pipeline)
    }

    /// A session at the table begins, which then knows what a stream of this process delivered.
    /// Gives the rows that are delivered, whatever else is known.
    pub fn tell(&mut self, start: &mut TableStart, why: &TableReason) -> Vec<RowId> {
        self.open();
        let is_asked = matches!(why, TableReason::Asked(_));
        let delivered = if is_asked {
            // The next stream begins behind it.
            self.delivered.clone()
        } else {
            self.delivered.take()
        };
        if let Some(of) = delivered
            && of.position.is_at_or_after(&start.stored.position)
        {
            self.inside.clone_from(&of.inside);
            start.knows(of);
        }
        let published = start.stored.published.as_ref();
        let forgets = published.is_some_and(|it| it.forgotten.is_some());
        if is_asked || forgets {
            // Rows that an operator requests again are published, delivered or not. So are these
            // behind earlier ones that come again (P2).
            Vec::new()
        } else {
            self.inside.clone()
        }
    }

    /// A session at the table failed, which had read so far. The next one there stores that before
    /// all else. A stream, to which a session of requested rows gives way, stores nothing first: it
    /// begins at what is stored.
    pub fn table_failed(&mut self, read: &Stored, found: PublishedVersions, gives_way: bool) {
        if !gives_way {
            self.progress = Some(read.clone());
            self.found = found;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::config::{DeliveryConfig, Guarantee};
    use crate::ledger::trail::Pair;
    use crate::position::Lsn;
    use crate::published_versions::TableFile;
    use crate::publisher::pipeline::tests::take_in;
    use crate::publisher::tests::{AckingBus, setup, stored};
    use crate::publisher::write_back::WriteBack;
    use crate::recovery::TableTask;
    use crate::snapshot::Snapshot;
    use crate::testing::wire;

    fn process() -> Left {
        Left::of("a".to_owned())
    }

    /// What that process stores at `lsn`.
    fn stored_by(left: &Left, lsn: u64) -> Stored {
        Stored {
            relay: left.relay.clone(),
            ..stored(1, lsn)
        }
    }

    /// What counts for a session on `server` that `loaded` this.
    fn counting(left: &mut Left, loaded: &Stored, server: &ServerIdentity) -> Position {
        left.resume(Some(loaded), server);
        let progress = left.progress.clone();
        progress.unwrap_or_else(|| loaded.clone()).position
    }

    #[test]
    fn a_session_of_requested_rows_that_fails_leaves_no_progress_to_the_stream() {
        for (gives_way, expected) in [(false, 3), (true, 1)] {
            let mut left = process();
            let read = stored_by(&left, 3);
            let found = PublishedVersions::default();
            left.table_failed(&read, found, gives_way);
            let loaded = stored_by(&left, 1);
            assert_eq!(
                counting(&mut left, &loaded, &loaded.server),
                Position::at(Lsn::new(expected)),
                "{gives_way}"
            );
        }
    }

    fn file(filenode: u32, changed_by: u64) -> TableFile {
        TableFile {
            oid: 5,
            filenode,
            changed_by,
        }
    }

    #[test]
    fn a_table_rewritten_between_sessions_is_noticed_unless_another_relay_or_server_worked() {
        let here = stored(1, 0).server;
        let there = stored(2, 0).server;
        for (is_own, server, expected) in [
            (true, &here, true),
            (false, &here, false),
            (true, &there, false),
        ] {
            let mut left = process();
            let own = stored_by(&left, 1);
            let mut found = PublishedVersions::default();
            assert!(
                !found.looked_at(vec![file(10, 20)]),
                "the first look tells nothing"
            );
            left.table_failed(&own, found, false);
            let loaded = if is_own { own } else { stored(1, 1) };
            left.resume(Some(&loaded), server);
            assert_eq!(
                take(&mut left.found).looked_at(vec![file(11, 30)]),
                expected
            );
        }
    }

    /// A process that read on to 3, and stored less.
    fn with_progress() -> Left {
        let mut left = process();
        left.progress = Some(stored_by(&left, 3));
        left.delivered = Some(Delivered {
            position: Position::at(Lsn::new(3)),
            published: None,
            inside: Vec::new(),
        });
        left
    }

    #[test]
    fn progress_that_was_not_stored_counts_unless_another_relay_or_server_was_at_work() {
        let here = stored(1, 0).server;
        let there = stored(2, 0).server;
        let mut left = with_progress();
        let own = stored_by(&left, 1);
        assert_eq!(counting(&mut left, &own, &here), Position::at(Lsn::new(3)));
        assert!(!left.turn.is_past());
        // Another one that took over where this one was, and stored nothing else.
        let of_other = stored(1, 1);
        for (is_own, server) in [(false, &here), (true, &there)] {
            let mut left = with_progress();
            let loaded = if is_own {
                stored_by(&left, 1)
            } else {
                of_other.clone()
            };
            assert_eq!(
                counting(&mut left, &loaded, server),
                Position::at(Lsn::new(1))
            );
            assert!(left.turn.is_past() && left.turn.take_doubt());
            assert!(left.delivered.is_none());
        }
    }

    /// P1: the position of a server or store that was restored is behind.
    #[test]
    fn nothing_counts_where_the_store_went_back() {
        let here = stored(1, 0).server;
        for (lsn, counts) in [(2, true), (3, true), (1, false)] {
            let mut left = with_progress();
            left.kept = Some(stored_by(&left, 2));
            let loaded = stored_by(&left, lsn);
            assert_eq!(left.resume(Some(&loaded), &here), counts, "{lsn}");
            assert_eq!(left.progress.is_some(), counts);
        }
    }

    #[test]
    fn without_a_record_what_was_kept_tells_the_server() {
        let here = stored(1, 0).server;
        let there = stored(2, 0).server;
        for (server, counts) in [(&here, true), (&there, false)] {
            let mut left = with_progress();
            assert!(!with_progress().resume(None, server), "nothing was kept");
            left.kept = Some(stored_by(&left, 2));
            assert_eq!(left.resume(None, server), counts);
        }
    }

    /// A session at the table goes on from here.
    fn table_start(position: Position) -> TableStart {
        TableStart {
            task: TableTask::GoOn,
            stored: Stored {
                position,
                ..stored(1, 0)
            },
            is_altered: false,
            notes: Vec::new(),
        }
    }

    fn row(id: &str) -> RowId {
        RowId::new(0, std::iter::once(id.as_bytes()))
    }

    /// P14: where a slot is lost inside of a transaction, its rest alone is read from the table.
    #[test]
    fn rows_of_an_open_transaction_are_known_at_the_table_however_many_producers_there_were() {
        for guarantee in [Guarantee::AtLeastOnce, Guarantee::ExactlyOnce] {
            let delivery = DeliveryConfig {
                guarantee,
                ..DeliveryConfig::default()
            };
            let setup = Setup {
                refuses_each: false,
                ..setup(delivery)
            };
            let mut left = process();
            let mut at = Position::default();
            for ids in [&["a", "b"][..], &["a", "b", "c"]] {
                let now = Duration::ZERO;
                let begun = left.begin(&setup, at, None, AckingBus::default(), now);
                let mut pipeline = begun.unwrap();
                take_in(&mut pipeline, ids);
                at = pipeline.publisher.ledger.delivered();
                pipeline.store_begun(now);
                pipeline.stored(at);
                left.ended(&mut pipeline);
            }
            assert_eq!(
                left.tell(&mut table_start(at), &TableReason::Gap),
                ["a", "b", "c"].map(row),
                "{guarantee:?}"
            );
        }
    }

    /// P2: rows of its aggregate that are before it may come again.
    #[test]
    fn a_row_that_only_waits_to_be_marked_is_not_left_out_at_the_table() {
        let mut left = process();
        let at = Position::default();
        let acked = WriteBack::Acked(row("a"));
        left.write_backs.push(at, acked, None, 0);
        let delivered = left.tell(&mut table_start(at), &TableReason::Gap);
        assert_eq!((delivered, left.write_backs.len()), (Vec::new(), 1));
    }

    #[test]
    fn a_delivered_transaction_that_is_not_stored_counts_as_published_at_the_table() {
        let mut left = process();
        let stored = Position::default();
        let known = Published::at(Pair {
            snapshot: Snapshot::below(1),
            lsn: Lsn::ZERO,
        });
        let setup = setup(DeliveryConfig::default());
        let now = Duration::ZERO;
        let begun = left.begin(&setup, stored, Some(known), AckingBus::default(), now);
        let mut pipeline = begun.unwrap();
        take_in(&mut pipeline, &["a"]);
        let commit = wire::commit(100, 110, 9);
        pipeline.data(Lsn::new(5), &commit, Instant::now()).unwrap();
        left.ended(&mut pipeline);
        let mut start = table_start(stored);
        left.tell(&mut start, &TableReason::Gap);
        let published = start.stored.published;
        assert_eq!(published.map(|it| it.also), Some(vec![1]));
    }
}
