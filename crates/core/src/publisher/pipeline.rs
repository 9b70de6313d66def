//! One producer's way from pgoutput messages to confirmable positions, without I/O.
//!
//! Messages and keepalives, acks and stores go in; positions to store and to confirm come out. The
//! loop in `replication` feeds the pipeline and carries out what it decides. `tests/simulation`
//! feeds it from a model of Postgres and the bus instead.

use std::time::{Duration, Instant};

use crate::error::{Error, Kind, Result};
use crate::event::{Assembler, Event, RowId, Step};
use crate::ledger::confirm::{Confirm, Due};
use crate::ledger::trail::{Published, Trail};
use crate::position::{Lsn, Position};
use crate::publisher::held_commits::HeldCommits;
use crate::publisher::{Publisher, Setup, contradiction};
use crate::sink::Sink;

/// The result for a message from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It was taken in, and there may be room for more.
    Done,
    /// It was taken in, and described a table: the catalog should be looked at.
    Relation,
}

/// See the module's documentation. It lives as long as its producer: from the position it began at
/// to the last ack.
#[derive(Debug)]
pub struct Pipeline<S> {
    /// Messages to events.
    pub assembler: Assembler,
    /// Events on their way.
    pub publisher: Publisher<S>,
    /// The stored position, which may be confirmed to Postgres.
    pub confirm: Confirm,
    /// The published transactions.
    pub trail: Trail,
    /// The events of the open transaction.
    pub begun: OpenTransaction,
    held_commits: HeldCommits,
}

/// What a pipeline delivered.
#[derive(Debug, Clone)]
pub struct Delivered {
    /// Everything up to here.
    pub position: Position,
    /// The published rows there; none where that is not known.
    pub published: Option<Published>,
    /// Rows of the transaction that the position is inside of. None where earlier transactions may
    /// come again, behind which these do, too (P2).
    pub inside: Vec<RowId>,
}

impl<S: Sink> Pipeline<S> {
    /// Begins behind `start`; the store holds `stored` at `now`, a time since any fixed instant;
    /// `published` is of the tables.
    pub fn new(
        setup: &Setup,
        start: Position,
        stored: Position,
        published: Option<Published>,
        sink: S,
        now: Duration,
    ) -> Result<Self> {
        Ok(Pipeline {
            assembler: Assembler::new(&setup.outboxes, start),
            publisher: Publisher::new(setup, start, sink)?,
            confirm: Confirm::new(stored, now),
            trail: Trail::new(published),
            begun: OpenTransaction::default(),
            held_commits: HeldCommits::default(),
        })
    }

    /// A new connection to the server begins: it sends again what was not confirmed, and what was
    /// taken in is dropped. Call [`Pipeline::set_synchronous`] with what is known of it.
    pub fn reconnected(&mut self) {
        self.assembler.resume_at(self.publisher.ledger.received());
        let publisher = &mut self.publisher;
        // An event without a ticket was not taken in, so the server sends it again.
        publisher
            .pending
            .take_if(|pending| pending.event.ticket.is_none());
        publisher.write_backs.abandon();
        self.confirm.abandoned();
        self.held_commits = HeldCommits::default();
    }

    /// Takes in one pgoutput message at `now`. Call only while [`Publisher::has_room`].
    ///
    /// # Errors
    /// The event cannot be decoded, routed or produced (P3), or the stream contradicts itself.
    /// Nothing of it was enqueued, and the pipeline takes no further messages.
    pub fn data(&mut self, wal_start: Lsn, body: &[u8], now: Instant) -> Result<Taken> {
        let publisher = &mut self.publisher;
        debug_assert!(publisher.has_room(), "P4: taken in without room");
        publisher.counts.decoded += 1;
        match self
            .assembler
            .feed(body, wal_start)
            .map_err(|error| error.into_error(&publisher.setup.slot))?
        {
            Step::Nothing => {}
            Step::Begin { commit_lsn, xid } => {
                publisher.ledger.begin(commit_lsn).map_err(contradiction)?;
                self.trail.begin(xid);
                self.begun.begin(commit_lsn);
                self.sent_below(commit_lsn);
            }
            Step::Commit {
                commit_lsn,
                end_lsn,
            } => {
                // Also those that an earlier process or connection has taken in.
                let had_events = publisher.ledger.received().partial.is_some();
                publisher
                    .ledger
                    .commit(commit_lsn, end_lsn)
                    .map_err(contradiction)?;
                self.trail.commit(end_lsn, had_events);
            }
            Step::Event(event) => {
                self.begun.event(&event);
                publisher.publish(&event, now)?;
            }
            Step::OtherTable { name: table } => {
                tracing::warn!(event = "other_table_found", slot = %publisher.setup.slot, table,
                "the publication has a table that is no outbox: its rows are counted, confirmed \
                 and dropped")
            }
            Step::Relation { outbox, .. } => {
                return Ok(if outbox { Taken::Relation } else { Taken::Done });
            }
        }
        Ok(Taken::Done)
    }

    /// The server has sent everything that commits below `wal_end`.
    pub fn keepalive(&mut self, wal_end: Lsn) {
        self.publisher.ledger.keepalive(wal_end);
        self.sent_below(wal_end);
    }

    /// Everything that commits below `lsn` was sent: what was published before may have come to its
    /// end.
    #[inline]
    fn sent_below(&mut self, lsn: Lsn) {
        let Publisher {
            judge,
            counts,
            setup,
            ..
        } = &mut self.publisher;
        let events = counts.delivered_before;
        let ended = judge.before.take_if(|before| before.is_over(lsn));
        if ended.is_some() && events > 0 {
            tracing::info!(event = "duplicates_prevented", slot = %setup.slot, events,
                "events that were delivered before were not published again");
        }
    }

    /// Everything that came was taken in, as far as there was room; `follows`, where more is known
    /// to come. Where events are committed together, this is when it is decided that they are
    /// enough.
    pub fn look(&mut self, now: Duration, follows: bool) {
        let inside = self.is_inside();
        self.publisher.transaction.look(inside, follows, now);
    }

    /// Whether a transaction of Postgres is under way, and an event of it was taken in.
    fn is_inside(&self) -> bool {
        self.publisher.ledger.received().partial.is_some()
    }

    /// The position to store now; see [`Confirm::due`].
    ///
    /// Where events are committed together: what stands behind the last event of the transaction,
    /// once all in it are acked.
    pub fn due(&self, now: Duration, hurry: bool) -> Due {
        let completed = self.publisher.completed();
        if !self.publisher.transaction.is_open() {
            return self
                .confirm
                .due(completed, self.events_delivered(), now, hurry);
        }
        let is_acked = self.publisher.is_drained() && !self.confirm.is_busy();
        let due = is_acked && self.publisher.transaction.is_due(hurry);
        if due {
            Due::Progress(completed)
        } else {
            Due::Nothing
        }
    }

    /// When to ask [`Pipeline::due`] again, if time alone will change its answer.
    pub fn wake_at(&self) -> Option<Duration> {
        if self.publisher.transaction.is_open() {
            return self.publisher.transaction.wake_at(self.is_inside());
        }
        self.confirm
            .wake_at(self.publisher.completed(), self.events_delivered())
    }

    /// Counts whatever moves the position: acks, also those of an earlier process, and write-backs.
    fn events_delivered(&self) -> u64 {
        let Publisher {
            counts,
            write_backs,
            ..
        } = &self.publisher;
        counts.acked + counts.delivered_before + write_backs.written
    }

    /// What was due is to be stored, perhaps after a look at the catalogs.
    pub fn store_begun(&mut self, now: Duration) {
        self.confirm.begun(self.events_delivered(), now);
    }

    /// The store is given `position`, with the events that are committed together with it. Gives
    /// the rows of the tables that are published there.
    pub fn storing(&mut self, position: Position) -> Option<Published> {
        self.confirm.storing(position);
        self.publisher.batches.seal();
        self.publisher.transaction.committing = true;
        self.trail.published(&position)
    }

    /// The store has `position`. Gives the number of events that were committed with it, where
    /// events are.
    pub fn stored(&mut self, position: Position) -> Option<u64> {
        self.confirm.stored(position);
        self.publisher.committed()
    }

    /// Commits of other sessions wait for the confirmed LSN, or do no longer. If so, the relay
    /// confirms as soon as it can.
    ///
    /// # Errors
    /// What is being written may wait for this relay, or for a session that does. The next session
    /// begins anew.
    pub fn set_synchronous(&mut self, is_synchronous: bool) -> Result<()> {
        let begins = is_synchronous && !self.is_synchronous();
        self.confirm.set_synchronous(is_synchronous);
        self.publisher.write_backs.is_synchronous = is_synchronous;
        if begins && self.publisher.write_backs.is_in_progress() {
            let what = "commits wait for this relay since it began to write to rows: beginning \
                        with other sessions";
            return Err(Error::new(Kind::PostgresUnreachable, what));
        }
        Ok(())
    }

    /// Whether commits of other sessions wait for the confirmed LSN.
    pub fn is_synchronous(&self) -> bool {
        self.publisher.write_backs.is_synchronous
    }

    /// Whether commits of other sessions wait for something that was taken in and is not acked, not
    /// parked or not stored, or that is not taken in: what is not read is not confirmed, either.
    pub fn holds_up_commits(&self) -> bool {
        let delivered = self.publisher.ledger.delivered();
        let is_stored = self.confirm.stored_position().is_at_or_after(&delivered);
        self.is_synchronous()
            && !(self.publisher.has_room() && self.publisher.is_drained() && is_stored)
    }

    /// Looks for how long it has held up commits.
    ///
    /// # Errors
    /// For three seconds, in which nothing was acked or stored: the stream is to be left.
    pub fn look_at_held_commits(&mut self, now: Duration) -> Result<()> {
        let holds = self.holds_up_commits();
        let acked = self.publisher.counts.acked;
        if self
            .held_commits
            .is_too_long(holds, acked, self.confirm.confirmable(), now)
        {
            return Err(HeldCommits::error(self.publisher.is_drained()));
        }
        Ok(())
    }

    /// Whether it is known at the stored position which rows of the tables are published: without
    /// that, the slot is not to be dropped.
    pub fn knows_published(&mut self) -> bool {
        let stored = self.confirm.stored_position();
        self.trail.published(&stored).is_some()
    }

    /// What is delivered up to `position`, which no later store is behind.
    pub fn delivered_at(&mut self, position: Position) -> Delivered {
        let published = self.trail.published(&position);
        let forgets = published.as_ref().is_some_and(|it| it.forgotten.is_some());
        Delivered {
            position,
            published,
            inside: if forgets {
                Vec::new()
            } else {
                self.begun.delivered(&position)
            },
        }
    }

    /// The LSN that may be confirmed to Postgres.
    pub fn confirmable(&self) -> Lsn {
        self.confirm.confirmable()
    }

    /// Whether everything taken in is acked, written back, stored, and so confirmable.
    pub fn is_settled(&self) -> bool {
        self.publisher.write_backs.is_empty() && self.is_stored_as_far_as_written_back()
    }

    /// Whether a relay that leaves still has something to do: something received is not acked, not
    /// stored or not confirmable. Keepalives alone are stored only after a look at the catalogs,
    /// and `may_look` says whether one can tell anything.
    pub fn has_left_over(&self, now: Duration, may_look: bool) -> bool {
        if self.publisher.write_backs.is_over() && self.is_stored_as_far_as_written_back() {
            return false;
        }
        may_look || !self.publisher.is_drained() || !matches!(self.due(now, true), Due::Idle(_))
    }

    /// Whether everything taken in is acked, and what of it is written back is stored.
    pub fn is_stored_as_far_as_written_back(&self) -> bool {
        let stored = self.confirm.stored_position();
        let is_stored =
            !self.confirm.is_busy() && stored.is_at_or_after(&self.publisher.completed());
        self.publisher.is_drained() && is_stored
    }
}

/// Bytes of row ids that are kept. Of a larger transaction nothing is known, and all of it comes
/// again.
const BYTES_MAX: usize = 256 * 1024;

/// The events of the transaction that is under way, by their rows: should its slot be lost inside
/// of it, the delivered ones are not read from the table again. Allocates nothing once it has grown
/// to the size of a transaction.
#[derive(Debug, Default)]
pub struct OpenTransaction {
    commit_lsn: Lsn,
    ids: Vec<u8>,
    /// The outbox of each event, and where its row id ends.
    ends: Vec<(usize, usize)>,
    is_unknown: bool,
}

impl OpenTransaction {
    /// A transaction begins, or goes on after a lost connection.
    pub fn begin(&mut self, commit_lsn: Lsn) {
        if self.commit_lsn != commit_lsn {
            self.commit_lsn = commit_lsn;
            self.ids.clear();
            self.ends.clear();
            self.is_unknown = false;
        }
    }

    /// An event of it was taken in.
    #[inline]
    pub fn event(&mut self, event: &Event<'_>) {
        self.row(event.place.index, event.outbox, |ids| {
            event.row.write_key(ids)
        });
    }

    #[inline]
    fn row(&mut self, index: u64, outbox: usize, write_key: impl FnOnce(&mut Vec<u8>)) {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        if index < self.ends.len() {
            // It was taken in, and comes again after a lost connection.
            self.ends.truncate(index);
            self.ids
                .truncate(self.ends.last().map_or(0, |(_, end)| *end));
        } else if index > self.ends.len() {
            // The first ones were delivered before this process was.
            self.is_unknown = true;
        }
        if self.is_unknown {
            return;
        }
        let before = self.ids.len();
        write_key(&mut self.ids);
        if self.ids.len() > BYTES_MAX {
            self.ids.truncate(before);
            self.is_unknown = true;
        } else {
            self.ends.push((outbox, self.ids.len()));
        }
    }

    /// The row of its newest event.
    pub fn newest(&self) -> Option<RowId> {
        let (outbox, end) = *self.ends.last()?;
        let start = self
            .ends
            .len()
            .checked_sub(2)
            .and_then(|at| self.ends.get(at))
            .map_or(0, |(_, end)| *end);
        Some(RowId {
            outbox,
            key: self.ids.get(start..end)?.to_vec(),
        })
    }

    /// The events of the transaction that `position` is inside of and that are delivered; none
    /// where they are not known.
    ///
    /// A relay that was started inside of it has not seen its first ones.
    pub fn delivered(&self, position: &Position) -> Vec<RowId> {
        let index = usize::try_from(position.delivered_of(self.commit_lsn)).unwrap_or(usize::MAX);
        if self.is_unknown || index > self.ends.len() {
            return Vec::new();
        }
        let mut start = 0;
        let id = |&(outbox, end): &(usize, usize)| {
            let key = self.ids.get(start..end).unwrap_or_default().to_vec();
            start = end;
            RowId { outbox, key }
        };
        self.ends.iter().take(index).map(id).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::config::DeliveryConfig;
    use crate::decode::Value;
    use crate::ledger::trail::Pair;
    use crate::position::Partial;
    use crate::publisher::tests::{AckingBus, setup};
    use crate::snapshot::Snapshot;
    use crate::testing::{COLUMNS, wire};

    /// Takes in the rows of these ids, of the transaction at 100, which does not end.
    pub(crate) fn take_in(pipeline: &mut Pipeline<AckingBus>, ids: &[&str]) {
        pipeline.reconnected();
        let row = |id: &&str| {
            let values = [id, "order", "1", "placed", "{}"];
            wire::insert(1, &values.map(|text| Value::Text(text.as_bytes())))
        };
        let described = wire::relation(1, "public", "outbox", &COLUMNS);
        let rows = ids.iter().map(row);
        for message in [wire::begin(100, 9, 1), described].into_iter().chain(rows) {
            let now = Instant::now();
            pipeline.data(Lsn::new(5), &message, now).unwrap();
        }
        let publisher = &mut pipeline.publisher;
        let mut context = Context::from_waker(Waker::noop());
        assert!(
            pin!(publisher.receive_deliveries())
                .poll(&mut context)
                .is_ready()
        );
        publisher.delivered().unwrap();
    }

    fn row(outbox: usize, id: &[u8]) -> RowId {
        RowId::new(outbox, std::iter::once(id))
    }

    fn put(begun: &mut OpenTransaction, index: u64, outbox: usize, id: &[u8]) {
        begun.row(index, outbox, |ids| ids.extend_from_slice(id));
    }

    fn inside(commit_lsn: u64, index: u64) -> Position {
        Position {
            end_lsn: Lsn::new(5),
            partial: Some(Partial {
                commit_lsn: Lsn::new(commit_lsn),
                index,
            }),
        }
    }

    #[test]
    fn delivered_rows_of_an_open_transaction_are_known_after_a_reconnect() {
        let mut begun = OpenTransaction::default();
        begun.begin(Lsn::new(10));
        put(&mut begun, 0, 0, b"a");
        put(&mut begun, 1, 1, b"bc");
        begun.begin(Lsn::new(10));
        put(&mut begun, 2, 0, b"x");
        // It was not sent, and comes again.
        put(&mut begun, 2, 0, b"d");
        assert_eq!(
            begun.delivered(&inside(10, 2)),
            [row(0, b"a"), row(1, b"bc")]
        );
        assert_eq!(begun.delivered(&inside(10, 3)).len(), 3);
        // Of another transaction, and of one of which more is delivered than was seen.
        assert!(begun.delivered(&inside(20, 2)).is_empty());
        assert!(begun.delivered(&inside(10, 4)).is_empty());
        assert!(begun.delivered(&Position::at(Lsn::new(5))).is_empty());
        begun.begin(Lsn::new(20));
        assert!(begun.delivered(&inside(20, 1)).is_empty());
        // A process that was started inside of it has not seen its first ones.
        put(&mut begun, 1, 0, b"b");
        assert!(begun.delivered(&inside(20, 1)).is_empty());
    }

    #[test]
    fn row_ids_of_a_huge_open_transaction_are_not_kept() {
        let mut begun = OpenTransaction::default();
        begun.begin(Lsn::new(10));
        let id = vec![b'x'; BYTES_MAX / 2];
        (0..3).for_each(|index| put(&mut begun, index, 0, &id));
        assert!(begun.delivered(&inside(10, 1)).is_empty());
        assert_eq!(begun.ids.len(), BYTES_MAX);
    }

    /// P2: transactions before it may come again.
    #[test]
    fn no_row_of_an_open_transaction_counts_as_delivered_behind_forgotten_transactions() {
        for (forgotten, expected) in [
            (None, vec![row(0, b"a"), row(0, b"b")]),
            (Some(15), Vec::new()),
        ] {
            let known = Published {
                forgotten,
                ..Published::at(Pair {
                    snapshot: Snapshot::below(10),
                    lsn: Lsn::ZERO,
                })
            };
            let at = Position::default();
            let setup = setup(DeliveryConfig::default());
            let bus = AckingBus::default();
            let now = Duration::ZERO;
            let begun = Pipeline::new(&setup, at, at, Some(known), bus, now);
            let mut pipeline = begun.unwrap();
            take_in(&mut pipeline, &["a", "b"]);
            let position = pipeline.publisher.ledger.delivered();
            let inside = pipeline.delivered_at(position).inside;
            assert_eq!(inside, expected, "{forgotten:?}");
        }
    }
}
