//! Writes to the rows of delivered events: which rows, in which order, and how many are done. No
//! I/O.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::config::{CopiedRows, OutboxConfig, SlotName, Upkeep, max_attempts};
use crate::event::{Event, RowId, Shown};
use crate::parked::{Batch, Failure, ParkedEvent};
use crate::position::Position;
use crate::publisher::context::ContextColumns;

/// A write to the row of a delivered event.
#[derive(Debug, Clone)]
pub enum WriteBack {
    /// Its event was acked: it is marked or deleted.
    Acked(RowId),
    /// Its event was given up.
    Failed(RowId, Failure),
    /// Its event is written to `walrelay.parked`; the row is marked as well if `marks`.
    Parked {
        /// The event.
        event: Arc<ParkedEvent>,
        /// Whether its row is marked.
        marks: bool,
    },
}

#[derive(Debug)]
struct Due {
    /// Up to where every event before this one is delivered.
    before: Position,
    write_back: WriteBack,
    /// The transaction that wrote the row.
    xid: Option<u32>,
    committed_at_us: i64,
}

/// The write-backs of delivered events, in the order of the events. One batch is written at a time.
#[derive(Debug, Default)]
pub struct WriteBacks {
    parks: VecDeque<Due>,
    marks: VecDeque<Due>,
    /// How many of the first of both are being written.
    parks_in_progress: usize,
    marks_in_progress: usize,
    /// Whether Postgres refuses to write any.
    pub refused: bool,
    /// Whether commits of other sessions wait for the position: then it does not wait for their
    /// rows, which nobody sees before. Events to park it does wait for, so these wait for no row.
    pub is_synchronous: bool,
    /// Bytes of parked events that are not written, whether their turn has come or not.
    pub(crate) parked_bytes: usize,
    /// How many are written.
    pub written: u64,
}

impl WriteBacks {
    /// How many are not written.
    pub fn len(&self) -> usize {
        self.parks.len() + self.marks.len()
    }

    /// Whether all are written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether none is written any more: all are, or Postgres refuses them.
    pub fn is_over(&self) -> bool {
        self.is_empty() || self.refused
    }

    /// Whether a batch is being written.
    pub fn is_in_progress(&self) -> bool {
        self.parks_in_progress + self.marks_in_progress > 0
    }

    /// An event is parked, and will be pushed once all before it are delivered.
    pub fn expect(&mut self, event: &ParkedEvent) {
        self.parked_bytes += event.bytes();
    }

    /// An event is delivered, and all events up to `before`, which are all before it, are.
    pub fn push(
        &mut self,
        before: Position,
        write_back: WriteBack,
        xid: Option<u32>,
        committed_at_us: i64,
    ) {
        let queue = match &write_back {
            WriteBack::Parked { .. } => &mut self.parks,
            WriteBack::Acked(_) | WriteBack::Failed(..) => &mut self.marks,
        };
        queue.push_back(Due {
            before,
            write_back,
            xid,
            committed_at_us,
        });
    }

    /// Those that an earlier publisher left, for one that begins at `start`, where the position
    /// stays until they are written.
    pub fn behind(mut self, start: Position) -> WriteBacks {
        self.abandon();
        self.written = 0;
        self.parks
            .iter_mut()
            .chain(&mut self.marks)
            .for_each(|due| due.before = start);
        self.parked_bytes = self.parked().map(ParkedEvent::bytes).sum();
        self
    }

    /// Those that a stream left, for a session at the table: no commit waits for one.
    pub fn at_table(self) -> WriteBacks {
        WriteBacks {
            is_synchronous: false,
            ..self.behind(Position::default())
        }
    }

    fn oldest(&self) -> impl Iterator<Item = &Due> {
        self.parks.front().into_iter().chain(self.marks.front())
    }

    /// The commit time of the oldest event that is not written back, in microseconds since the Unix
    /// epoch.
    pub fn oldest_commit_us(&self) -> Option<i64> {
        self.oldest().map(|due| due.committed_at_us).min()
    }

    /// Up to where every event is delivered, which it is up to `delivered`, and written back.
    pub fn completed(&self, delivered: Position) -> Position {
        let counts = |due: &&Due| !self.is_synchronous || due.write_back.parked().is_some();
        earliest(self.oldest().filter(counts), delivered)
    }

    /// As [`WriteBacks::completed`], and the rows are marked, also where the position does not wait
    /// for that.
    pub fn marked(&self, delivered: Position) -> Position {
        earliest(self.oldest(), delivered)
    }

    /// Begins a batch of up to `max` rows; none where there is nothing to write, one is in
    /// progress, or they are refused.
    ///
    /// While commits wait, events are parked alone: other sessions see their rows once the position
    /// is confirmed. The next try of such an event marks its row.
    pub fn begin(&mut self, max: usize) -> Option<Batch> {
        if self.is_in_progress() || self.refused || self.is_empty() {
            return None;
        }
        let parks_alone = self.commits_wait();
        for _ in 0..max {
            let park = self.parks.get(self.parks_in_progress);
            let mark = self
                .marks
                .get(self.marks_in_progress)
                .filter(|_| !parks_alone);
            // A row that is not marked may come again: not behind an event that was after it.
            let is_mark = match (park, mark) {
                (Some(park), Some(mark)) => mark.before.order_key() <= park.before.order_key(),
                _ => mark.is_some(),
            };
            match is_mark {
                true => self.marks_in_progress += 1,
                false if park.is_some() => self.parks_in_progress += 1,
                false => break,
            }
        }
        let mut batch = Batch::default();
        let parks = self.parks.iter().take(self.parks_in_progress);
        for Due {
            write_back, xid, ..
        } in parks.chain(self.marks.iter().take(self.marks_in_progress))
        {
            match write_back {
                WriteBack::Acked(row) => batch.acked.push(row.clone()),
                WriteBack::Failed(row, failure) => {
                    batch.failed.push((row.clone(), failure.clone()))
                }
                WriteBack::Parked { event, marks } => {
                    batch.parked.push(Arc::clone(event));
                    if !marks || parks_alone {
                        continue;
                    }
                    batch.waiting.push(Arc::clone(event));
                }
            }
            batch.xids.extend(xid);
        }
        batch.xids.dedup();
        // The relay may be such a standby, and would wait for itself.
        batch.is_synchronous = self.is_synchronous;
        Some(batch)
    }

    /// The batch in progress is written, and durable. Gives how many of its events were acked,
    /// failed and were parked.
    pub fn finish(&mut self) -> [u64; 3] {
        let [mut acked, mut failed, mut parked] = [0; 3];
        let parks = self.parks.drain(..self.parks_in_progress);
        for Due { write_back, .. } in parks.chain(self.marks.drain(..self.marks_in_progress)) {
            match write_back {
                WriteBack::Acked(_) => acked += 1,
                WriteBack::Failed(..) => failed += 1,
                WriteBack::Parked { event, .. } => {
                    parked += 1;
                    self.parked_bytes -= event.bytes();
                }
            }
        }
        self.abandon();
        self.written += acked + failed + parked;
        [acked, failed, parked]
    }

    /// The batch in progress was not written, or that is not known: its rows are in the next one,
    /// too.
    pub fn abandon(&mut self) {
        self.parks_in_progress = 0;
        self.marks_in_progress = 0;
        self.refused = false;
    }

    /// Postgres refuses the batch in progress for good: none is begun until
    /// [`WriteBacks::abandon`].
    pub fn refuse(&mut self) {
        self.abandon();
        self.refused = true;
    }

    /// Whether commits wait for the next batch, which parks events alone.
    pub fn commits_wait(&self) -> bool {
        self.is_synchronous && !self.parks.is_empty()
    }

    /// Whether the batch in progress parks events alone, while commits wait for it.
    pub fn parks_alone(&self) -> bool {
        self.is_synchronous && self.parks_in_progress > 0
    }

    /// Events that are to be written to `walrelay.parked`.
    pub fn parked(&self) -> impl Iterator<Item = &ParkedEvent> {
        self.parks.iter().filter_map(|due| due.write_back.parked())
    }
}

/// Up to where all is done before the first of `dues`; up to `delivered` where there is none.
fn earliest<'a>(dues: impl Iterator<Item = &'a Due>, delivered: Position) -> Position {
    dues.map(|due| due.before)
        .min_by_key(Position::order_key)
        .unwrap_or(delivered)
}

impl WriteBack {
    /// The event that is to be written to `walrelay.parked`.
    pub fn parked(&self) -> Option<&ParkedEvent> {
        match self {
            WriteBack::Parked { event, .. } => Some(event),
            WriteBack::Acked(_) | WriteBack::Failed(..) => None,
        }
    }
}

/// What is written to the rows of an outbox, and when a row says how often it may be tried.
#[derive(Debug)]
pub struct RowPolicy {
    /// The source, for logs.
    pub outbox: String,
    /// The configured writes.
    pub upkeep: Upkeep,
    /// The place of the column with how often an event may be tried.
    max_attempts: Option<usize>,
    /// Whether a value of that column that is no number was logged.
    logged: bool,
    /// Rows with the transaction of another row, since the last report.
    pub copied: u64,
    /// The columns for logs and spans.
    pub context: ContextColumns,
}

impl RowPolicy {
    /// The policy of this outbox.
    pub fn of(outbox: &OutboxConfig) -> RowPolicy {
        RowPolicy {
            outbox: outbox.source.to_string(),
            upkeep: outbox.upkeep.clone(),
            max_attempts: outbox
                .names
                .max_attempts
                .as_deref()
                .and_then(|column| outbox.index_of(column)),
            logged: false,
            copied: 0,
            context: ContextColumns::of(outbox),
        }
    }

    /// How often `event` may be tried, where its row says so.
    #[inline]
    pub fn max_attempts(&mut self, event: &Event<'_>, slot: &SlotName) -> Option<u32> {
        let text = event.row.get(self.max_attempts?)?;
        let max = max_attempts(text);
        if max.is_none() && !std::mem::replace(&mut self.logged, true) {
            let outbox = self.outbox.as_str();
            let row = Shown::of(event.id());
            tracing::warn!(event = "max_attempts_invalid", %slot, outbox, %row,
                "outbox.columns.max_attempts is no whole number; the row is tried as often as \
                 others");
        }
        max
    }

    /// Counts a row with the transaction of another row, and tells the first one.
    #[cold]
    pub fn copied(&mut self, event: &Event<'_>, slot: &SlotName) {
        /// Outboxes with a warning: a producer does not live long.
        static WARNED: Mutex<BTreeSet<(String, String)>> = Mutex::new(BTreeSet::new());
        self.copied += 1;
        if WARNED
            .lock()
            .insert((slot.to_string(), self.outbox.clone()))
        {
            let outbox = &self.outbox;
            let row = Shown::of(event.id());
            let place = event.place;
            let outcome = match self.upkeep.copied_rows {
                CopiedRows::Publish => "publish",
                CopiedRows::Skip => "skip",
                CopiedRows::Stop => "stop",
            };
            tracing::warn!(event = "rows_copied", %slot, outbox, %row, %place, outcome,
                "another transaction than the row's transaction column says wrote the row: it was \
                 copied, moved, \
                 restored or updated (logged once for each outbox; outbox.copied_rows decides)");
        }
    }

    /// The write to the row of `event` after its ack.
    #[inline]
    pub(crate) fn on_acked(&self, event: &Event<'_>) -> Option<WriteBack> {
        self.upkeep
            .writes()
            .then(|| WriteBack::Acked(event.row_id()))
    }

    /// The write to `row` after its event is given up.
    pub(crate) fn on_failed(&self, row: &RowId, failure: Failure) -> Option<WriteBack> {
        if self.upkeep.mark_failed.is_some() {
            return Some(WriteBack::Failed(row.clone(), failure));
        }
        self.upkeep.delete.then(|| WriteBack::Acked(row.clone()))
    }

    pub(crate) fn on_parked(&self, event: ParkedEvent) -> WriteBack {
        let marks = self.upkeep.mark_waiting.is_some() && event.tried().is_some();
        WriteBack::Parked {
            event: Arc::new(event),
            marks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Place;
    use crate::position::{Lsn, Partial};

    #[test]
    fn the_position_stays_where_the_next_publisher_begins_until_all_that_was_left_is_written() {
        let mut left = WriteBacks::default();
        let at = |lsn| Position::at(Lsn::new(lsn));
        let row = |id: u8| WriteBack::Acked(RowId::new(0, std::iter::once(&[id][..])));
        left.push(at(8), row(0), None, 6);
        left.push(at(10), row(1), None, 7);
        left.push(at(20), row(2), None, 8);
        for written in 0..2 {
            assert_eq!(
                (left.begin(1).unwrap().acked.len(), left.written),
                (1, written)
            );
            if written == 0 {
                left.finish();
            }
        }
        // The session ends, and it is not known whether that was written.
        let mut left = left.behind(at(5));
        // The next pipeline counts from none on: what an earlier one wrote would count as its
        // progress.
        assert_eq!(left.written, 0);
        left.push(at(30), row(3), None, 9);
        assert_eq!(
            (left.completed(at(40)), left.oldest_commit_us(), left.len()),
            (at(5), Some(7), 3)
        );
        assert_eq!(left.begin(2).unwrap().acked.len(), 2);
        assert_eq!(left.finish(), [2, 0, 0]);
        assert_eq!((left.completed(at(40)), left.written), (at(30), 2));
    }

    fn parked(id: u8) -> ParkedEvent {
        ParkedEvent {
            row: RowId::new(0, std::iter::once(&[id][..])),
            key: None,
            topic: None,
            place: Place::default(),
            committed_at_us: 0,
            columns: Vec::new(),
            why: Some(Failure {
                class: "unroutable",
                cause: "no topic".to_owned(),
                attempts: 1,
            }),
            retry_in_ms: None,
        }
    }

    /// A transaction with an event that was acked, and one to park.
    fn acked_and_parked() -> WriteBacks {
        let mut dues = WriteBacks::default();
        let at = |index| {
            let partial = Some(Partial {
                commit_lsn: Lsn::new(50),
                index,
            });
            Position {
                end_lsn: Lsn::new(10),
                partial,
            }
        };
        let event = parked(2);
        dues.expect(&event);
        dues.push(
            at(0),
            WriteBack::Acked(RowId::new(0, std::iter::once(&[1][..]))),
            Some(7),
            1,
        );
        dues.push(
            at(1),
            WriteBack::Parked {
                event: Arc::new(event),
                marks: true,
            },
            Some(7),
            1,
        );
        dues
    }

    #[test]
    fn a_batch_has_marks_and_parked_events_together_while_no_commit_waits() {
        let mut dues = acked_and_parked();
        assert_eq!(
            dues.completed(Position::at(Lsn::new(60)))
                .delivered_of(Lsn::new(50)),
            0,
            "nothing is written"
        );
        let batch = dues.begin(9).unwrap();
        assert_eq!(
            (batch.acked.len(), batch.parked.len(), batch.waiting.len()),
            (1, 1, 1)
        );
        assert!(batch.on_standbys() && batch.xids == [7]);
        assert_eq!(
            (dues.finish(), dues.is_empty(), dues.parked_bytes),
            ([1, 0, 1], true, 0)
        );
    }

    /// P2: its row may come again otherwise, behind the parked one.
    #[test]
    fn a_row_is_marked_before_an_event_behind_it_is_parked() {
        let mut dues = acked_and_parked();
        let first = dues.begin(1).unwrap();
        assert_eq!((first.acked.len(), first.parked.len()), (1, 0));
        assert_eq!(dues.finish(), [1, 0, 0]);
        let second = dues.begin(1).unwrap();
        assert_eq!((second.acked.len(), second.parked.len()), (0, 1));
    }

    #[test]
    fn while_commits_wait_an_event_is_parked_before_a_row_of_its_transaction_has_to_be_seen() {
        let mut dues = acked_and_parked();
        let delivered = Position::at(Lsn::new(60));
        // The rows are not seen: that batch is put off.
        assert!(dues.begin(9).is_some());
        dues.abandon();
        dues.is_synchronous = true;
        assert_eq!(dues.completed(delivered).end_lsn, Lsn::new(10));
        let batch = dues.begin(9).unwrap();
        assert_eq!(
            (batch.parked.len(), batch.acked.len(), batch.waiting.len()),
            (1, 0, 0)
        );
        assert!(
            batch.xids.is_empty() && !batch.on_standbys(),
            "it would wait for its own confirmation"
        );
        // A batch that failed is the same again.
        dues.abandon();
        assert_eq!(dues.begin(9), Some(batch));
        assert_eq!(
            (dues.finish(), dues.completed(delivered)),
            ([0, 0, 1], delivered)
        );
        // A row that is pending because its mark is due is not pending again.
        assert_eq!(dues.marked(delivered).end_lsn, Lsn::new(10));
        // The other row is marked once it is seen; that of the parked event at its next try.
        let batch = dues.begin(9).unwrap();
        assert_eq!(
            (
                batch.parked.len(),
                batch.acked.len(),
                batch.waiting.len(),
                batch.xids
            ),
            (0, 1, 0, vec![7])
        );
        assert_eq!(
            (dues.finish(), dues.is_empty(), dues.written),
            ([1, 0, 0], true, 2)
        );
    }

    #[test]
    fn while_commits_wait_a_batch_has_parked_events_or_marks() {
        let mut dues = acked_and_parked();
        dues.is_synchronous = true;
        dues.push(
            Position::at(Lsn::new(60)),
            WriteBack::Acked(RowId::new(0, std::iter::once(&[3][..]))),
            Some(8),
            2,
        );
        for (parks, marks) in [(1, 0), (0, 2)] {
            assert_eq!(dues.commits_wait(), parks > 0);
            let batch = dues.begin(9).unwrap();
            assert_eq!(
                (batch.parked.len(), batch.acked.len(), dues.parks_alone()),
                (parks, marks, parks > 0)
            );
            dues.finish();
        }
        dues.is_synchronous = false;
        dues.push(
            Position::at(Lsn::new(70)),
            WriteBack::Parked {
                event: Arc::new(parked(4)),
                marks: true,
            },
            None,
            3,
        );
        assert!(!dues.commits_wait() && dues.begin(9).is_some() && !dues.parks_alone());
    }
}
