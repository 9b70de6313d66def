//! Turns acks in any order into one delivered position.
//!
//! The ledger takes transactions, events and keepalives in order, and acks in any order. It does no
//! I/O and knows no clock, so that `tests/simulation/` can drive it through schedules that no
//! live test reaches.
//!
//! An entry carries what its owner needs of the event until delivery. [`Ledger::take_delivered`]
//! returns that in order.
//!
//! The caller bounds the memory by [`Ledger::has_room`]: an entry per event in flight, a span per
//! transaction of these.

use std::collections::VecDeque;
use std::fmt;

use crate::position::{Lsn, Partial, Position};

pub mod confirm;
pub mod trail;

/// Identifies one event in flight. Tickets increase, and the sink reports acks by ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// The greatest amount in flight (P4).
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The number of events.
    pub events: usize,
    /// Bytes of records that are not acked, with `each` per record, and of what the ledger and its
    /// owner keep of all events in flight.
    pub bytes: usize,
    /// Bytes per record for the structures that hold it until its ack.
    pub each: usize,
}

/// An input contradicts the state: a bug, or a server that changed. The relay stops, and confirms
/// nothing in doubt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LedgerError(String);

impl LedgerError {
    fn outside(what: &str) -> LedgerError {
        LedgerError(format!("{what} outside a transaction"))
    }
}

#[derive(Debug)]
struct Entry<T> {
    bytes: usize,
    acked: bool,
    event: T,
}

/// A range of WAL with one end: a transaction, or a range that a keepalive skips.
#[derive(Debug, Clone, Copy)]
struct Span {
    first: u64,
    /// Ticket number after the last event so far.
    next: u64,
    /// Events of the transaction that were delivered before this ledger began.
    before: u64,
    /// The LSN of the commit record; zero for a keepalive.
    commit_lsn: Lsn,
    /// Commit time, microseconds since the Unix epoch; zero until its first event.
    committed_at_us: i64,
    /// Known after the commit.
    end_lsn: Option<Lsn>,
}

impl Span {
    /// A range without an end, and without events but those `before`.
    fn new(first: Ticket, commit_lsn: Lsn, before: u64) -> Span {
        Span {
            first: first.0,
            next: first.0,
            before,
            commit_lsn,
            committed_at_us: 0,
            end_lsn: None,
        }
    }
}

/// The place of an event in flight, for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InTransaction {
    /// LSN of its transaction's commit record.
    pub commit_lsn: Lsn,
    /// Its index in the transaction.
    pub index: u64,
}

/// True also of a row that was read from the table, in no transaction.
impl fmt::Display for InTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event at {}, index {}", self.commit_lsn, self.index)
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Ledger<T> {
    /// The limits of events in flight.
    pub limits: Limits,
    /// Events in flight, oldest first. The front entry has ticket number `base`.
    entries: VecDeque<Entry<T>>,
    base: u64,
    /// The owner's data of delivered events, oldest first, until taken, and the delivered position
    /// before each.
    done: VecDeque<(Position, T)>,
    /// Of records that are not acked, and what is kept of the other events in flight.
    in_flight_bytes: usize,
    /// Events that are not acked.
    unacked: usize,
    /// The bytes that the owner's data of an event takes.
    kept: fn(&T) -> usize,
    spans: VecDeque<Span>,
    /// The delivered position. `spans` holds everything after it.
    delivered: Position,
    /// Commit times, microseconds since the Unix epoch, of delivered transactions, for the owner to
    /// take away.
    pub finished: Vec<i64>,
}

/// The greatest number of commit times. Beyond it latency is sampled.
const FINISHED_MAX: usize = 1_024;

impl<T> Ledger<T> {
    /// A ledger without events in flight, where everything up to `delivered` is delivered. `kept`
    /// tells how many bytes the owner's data of an event takes.
    pub fn new(delivered: Position, limits: Limits, kept: fn(&T) -> usize) -> Self {
        Ledger {
            limits,
            entries: VecDeque::new(),
            base: 0,
            done: VecDeque::new(),
            in_flight_bytes: 0,
            unacked: 0,
            kept,
            spans: VecDeque::new(),
            delivered,
            finished: Vec::new(),
        }
    }

    /// Whether the limits allow another event. One event may exceed the byte limit, so that a large
    /// event passes.
    pub fn has_room(&self) -> bool {
        self.entries.len() < self.limits.events && self.in_flight_bytes() < self.limits.bytes
    }

    /// A transaction begins. The caller has passed in everything before it.
    ///
    /// After a lost connection, the new connection begins the open transaction again, and the
    /// ledger continues it.
    pub fn begin(&mut self, commit_lsn: Lsn) -> Result<(), LedgerError> {
        if let Some(open) = self.open() {
            if open.commit_lsn == commit_lsn {
                return Ok(());
            }
            let open = open.commit_lsn;
            return Err(LedgerError(format!(
                "transaction {commit_lsn} began inside transaction {open}"
            )));
        }
        let reached = self.received().end_lsn;
        if commit_lsn < reached {
            let what = format!(
                "transaction {commit_lsn} lies below {reached}, which was already received"
            );
            return Err(LedgerError(what));
        }
        let before = self.delivered.delivered_of(commit_lsn);
        self.spans
            .push_back(Span::new(self.next(), commit_lsn, before));
        Ok(())
    }

    /// The ticket of the next event.
    pub fn next(&self) -> Ticket {
        Ticket(self.base + self.entries.len() as u64)
    }

    /// An event of the open transaction was enqueued under [`Ledger::next`]. Without one the ledger
    /// is unchanged.
    pub fn enqueued(
        &mut self,
        bytes: usize,
        committed_at_us: i64,
        event: T,
    ) -> Result<(), LedgerError> {
        let next = self.next().0 + 1;
        let Some(open) = self.open() else {
            return Err(LedgerError::outside("an event"));
        };
        open.next = next;
        open.committed_at_us = committed_at_us;
        self.entries.push_back(Entry {
            bytes,
            acked: false,
            event,
        });
        self.in_flight_bytes += bytes;
        self.unacked += 1;
        Ok(())
    }

    /// The open transaction ends.
    pub fn commit(&mut self, commit_lsn: Lsn, end_lsn: Lsn) -> Result<(), LedgerError> {
        let Some(open) = self.open() else {
            return Err(LedgerError::outside("a commit"));
        };
        if open.commit_lsn != commit_lsn || end_lsn <= commit_lsn {
            let open = open.commit_lsn;
            let what =
                format!("commit of {commit_lsn}, which ends at {end_lsn}, while {open} is open");
            return Err(LedgerError(what));
        }
        if open.next == open.first && self.spans.len() > 1 {
            // Without an event to ack, the transaction is delivered with the span before it, and
            // needs no memory (P4).
            self.spans.pop_back();
        }
        self.end_last(end_lsn);
        Ok(())
    }

    /// The server has sent everything that commits below `wal_end`.
    ///
    /// The keepalive counts after everything in flight. Inside a transaction it is ignored.
    pub fn keepalive(&mut self, wal_end: Lsn) {
        if self.open().is_some() || wal_end <= self.received().end_lsn {
            return;
        }
        if self.spans.is_empty() {
            self.spans.push_back(Span::new(self.next(), Lsn::ZERO, 0));
        }
        // Keepalives extend one span, so they take no memory.
        self.end_last(wal_end);
    }

    /// The broker has the event. Returns its bytes, which are no longer in flight.
    pub fn acked(&mut self, ticket: Ticket) -> Result<usize, LedgerError> {
        let offset = self.offset(ticket);
        let entry = offset
            .and_then(|offset| self.entries.get_mut(offset))
            .filter(|entry| !entry.acked);
        let entry = entry.ok_or_else(|| {
            LedgerError(format!("ack for event {ticket:?}, which is not in flight"))
        })?;
        entry.acked = true;
        let kept = (self.kept)(&entry.event);
        let bytes = std::mem::replace(&mut entry.bytes, kept);
        self.in_flight_bytes = self.in_flight_bytes - bytes + kept;
        self.unacked -= 1;
        if ticket.0 == self.base {
            self.advance();
        }
        Ok(bytes)
    }

    /// The owner's data of an event in flight.
    pub fn event(&self, ticket: Ticket) -> Option<&T> {
        Some(&self.entries.get(self.offset(ticket)?)?.event)
    }

    /// The same, for changes.
    pub(crate) fn event_mut(&mut self, ticket: Ticket) -> Option<&mut T> {
        let offset = self.offset(ticket)?;
        Some(&mut self.entries.get_mut(offset)?.event)
    }

    /// Replaces the owner's data of an event in flight.
    pub(crate) fn set_event(&mut self, ticket: Ticket, event: T) {
        if let Some(known) = self.event_mut(ticket) {
            *known = event;
        }
    }

    /// The owner's data of all events in flight, oldest first.
    pub fn events(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.entries.iter().map(|entry| &entry.event)
    }

    /// Takes the owner's data of the oldest event that is delivered and not taken, and the
    /// delivered position before it.
    pub(crate) fn take_delivered(&mut self) -> Option<(Position, T)> {
        self.done.pop_front()
    }

    /// The position up to which everything is delivered.
    pub fn delivered(&self) -> Position {
        self.delivered
    }

    /// The position up to which everything was taken in. A new connection continues there while
    /// this ledger lives.
    pub fn received(&self) -> Position {
        let Some(last) = self.spans.back() else {
            return self.delivered;
        };
        if let Some(end_lsn) = last.end_lsn {
            return Position::at(end_lsn);
        }
        let before_last = self
            .spans
            .len()
            .checked_sub(2)
            .and_then(|index| self.spans.get(index));
        let end_lsn = before_last
            .and_then(|span| span.end_lsn)
            .unwrap_or(self.delivered.end_lsn);
        Position {
            end_lsn,
            partial: partial(last, last.next),
        }
    }

    /// The number of events in flight.
    pub fn in_flight_events(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of events that are not acked with [`Limits::each`] of these, and what is kept of those
    /// that are acked behind one that is not.
    pub fn in_flight_bytes(&self) -> usize {
        let entries = self.entries.len() * size_of::<Entry<T>>();
        self.in_flight_bytes
            .saturating_add(entries)
            .saturating_add(self.unacked.saturating_mul(self.limits.each))
    }

    /// Commit time of the oldest transaction with an event that is not acked, microseconds since
    /// the Unix epoch.
    pub fn oldest_commit_us(&self) -> Option<i64> {
        self.spans
            .iter()
            .find(|span| span.next > self.base && span.next > span.first)
            .map(|span| span.committed_at_us)
    }

    /// The place of the event with this ticket.
    pub(crate) fn whereabouts(&self, ticket: Ticket) -> Option<InTransaction> {
        let span = self
            .spans
            .iter()
            .find(|span| (span.first..span.next).contains(&ticket.0))?;
        Some(InTransaction {
            commit_lsn: span.commit_lsn,
            index: span.before + (ticket.0 - span.first),
        })
    }

    /// The last span ends at `end_lsn`. Whatever it did not reach before has no events.
    fn end_last(&mut self, end_lsn: Lsn) {
        if let Some(last) = self.spans.back_mut() {
            last.end_lsn = Some(end_lsn);
        }
        self.advance();
    }

    /// The index of the ticket's entry, if the ticket was assigned and the event is not delivered.
    fn offset(&self, ticket: Ticket) -> Option<usize> {
        ticket
            .0
            .checked_sub(self.base)
            .and_then(|offset| usize::try_from(offset).ok())
    }

    fn open(&mut self) -> Option<&mut Span> {
        self.spans.back_mut().filter(|span| span.end_lsn.is_none())
    }

    /// Removes acked entries from the front, and moves the delivered position behind each of them.
    fn advance(&mut self) {
        self.pass_ends();
        while self.entries.front().is_some_and(|entry| entry.acked)
            && let Some(entry) = self.entries.pop_front()
        {
            self.in_flight_bytes -= entry.bytes;
            self.done.push_back((self.delivered, entry.event));
            self.base += 1;
            self.pass_ends();
        }
    }

    /// Moves the delivered position to the furthest end that it has passed.
    fn pass_ends(&mut self) {
        while let Some(span) = self.spans.front() {
            if span.next > self.base {
                break;
            }
            let Some(end_lsn) = span.end_lsn else { break };
            debug_assert!(
                end_lsn > self.delivered.end_lsn,
                "P1: {end_lsn} is not past {}",
                self.delivered
            );
            // A keepalive may come between a restart and the rest of the transaction that was under
            // way.
            let partial = self
                .delivered
                .partial
                .filter(|partial| partial.commit_lsn >= end_lsn);
            self.delivered = Position { end_lsn, partial };
            if span.next > span.first && self.finished.len() < FINISHED_MAX {
                self.finished.push(span.committed_at_us);
            }
            self.spans.pop_front();
        }
        if let Some(front) = self.spans.front() {
            let reached = partial(front, self.base);
            if reached.is_some() {
                self.delivered.partial = reached;
            }
        }
    }
}

/// The delivered part of `span`, if every ticket below `base` is acked.
fn partial(span: &Span, base: u64) -> Option<Partial> {
    let index = span.before + base.clamp(span.first, span.next) - span.first;
    (index > 0).then_some(Partial {
        commit_lsn: span.commit_lsn,
        index,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOMY: Limits = Limits {
        events: 1_000,
        bytes: 1 << 20,
        each: 0,
    };

    fn lsn(value: u64) -> Lsn {
        Lsn::new(value)
    }

    /// A position at 100, and so many events of the transaction at 200 delivered.
    fn at_100(index: u64) -> Position {
        let partial = (index > 0).then_some(Partial {
            commit_lsn: lsn(200),
            index,
        });
        Position {
            end_lsn: lsn(100),
            partial,
        }
    }

    /// A ledger inside the transaction at 200, with one event in flight.
    fn inside(start: Position) -> Ledger<()> {
        let mut ledger = Ledger::new(start, ROOMY, |()| 0);
        ledger.begin(lsn(200)).unwrap();
        ledger.enqueued(1, 0, ()).unwrap();
        ledger
    }

    #[test]
    fn a_transaction_is_not_delivered_before_its_commit_is_seen() {
        let mut ledger = inside(at_100(0));
        ledger.acked(Ticket(0)).unwrap();
        assert_eq!(ledger.delivered(), at_100(1));
        ledger.commit(lsn(200), lsn(210)).unwrap();
        assert_eq!(ledger.delivered(), Position::at(lsn(210)));
        assert_eq!(
            ledger.take_delivered(),
            Some((Position::at(lsn(100)), ())),
            "the position before the event"
        );
    }

    #[test]
    fn the_delivered_position_is_the_end_of_the_acked_prefix() {
        let mut ledger = Ledger::new(Position::at(lsn(100)), ROOMY, |()| 0);
        for commit in [200, 300, 400] {
            ledger.begin(lsn(commit)).unwrap();
            (0..2).for_each(|_| ledger.enqueued(1, 0, ()).unwrap());
            ledger.commit(lsn(commit), lsn(commit + 10)).unwrap();
        }
        ledger.keepalive(lsn(450));
        let inside = |end, commit| Position {
            end_lsn: lsn(end),
            partial: Some(Partial {
                commit_lsn: lsn(commit),
                index: 1,
            }),
        };
        for (ticket, delivered) in [
            (1, at_100(0)),
            (5, at_100(0)),
            (0, Position::at(lsn(210))),
            (2, inside(210, 300)),
            (3, Position::at(lsn(310))),
            (4, Position::at(lsn(450))),
        ] {
            ledger.acked(Ticket(ticket)).unwrap();
            assert_eq!(ledger.delivered(), delivered, "after the ack of {ticket}");
            assert!(ledger.received().is_at_or_after(&delivered));
        }
    }

    #[test]
    fn a_keepalive_inside_a_transaction_moves_no_position() {
        let mut ledger = inside(at_100(0));
        ledger.keepalive(lsn(999));
        assert_eq!(
            [ledger.delivered(), ledger.received()],
            [at_100(0), at_100(1)]
        );
        ledger.acked(Ticket(0)).unwrap();
        ledger.commit(lsn(200), lsn(210)).unwrap();
        assert_eq!(ledger.delivered(), Position::at(lsn(210)));
    }

    #[test]
    fn keepalives_and_empty_transactions_take_no_memory_behind_an_event_in_flight() {
        let mut ledger = inside(at_100(0));
        ledger.commit(lsn(200), lsn(210)).unwrap();
        (300..900).for_each(|wal_end| ledger.keepalive(lsn(wal_end)));
        assert_eq!(ledger.spans.len(), 1);
        for commit in 0..10_000 {
            let commit_lsn = lsn(1_000 + commit * 10);
            ledger.begin(commit_lsn).unwrap();
            ledger.commit(commit_lsn, lsn(1_005 + commit * 10)).unwrap();
        }
        assert!(ledger.spans.len() <= 2, "{} spans", ledger.spans.len());
        assert_eq!(ledger.delivered(), Position::at(lsn(100)));
        ledger.acked(Ticket(0)).unwrap();
        assert_eq!(ledger.delivered(), Position::at(lsn(1_005 + 9_999 * 10)));
    }

    #[test]
    fn a_restart_inside_a_transaction_counts_its_delivered_events() {
        let mut ledger = inside(at_100(5));
        assert_eq!(
            ledger.whereabouts(Ticket(0)),
            Some(InTransaction {
                commit_lsn: lsn(200),
                index: 5
            })
        );
        assert_eq!(
            [ledger.received(), ledger.delivered()],
            [at_100(6), at_100(5)]
        );
        ledger.acked(Ticket(0)).unwrap();
        assert_eq!(ledger.delivered(), at_100(6));
    }

    #[test]
    fn a_keepalive_keeps_the_count_of_a_partly_delivered_transaction() {
        let mut ledger = Ledger::new(at_100(5), ROOMY, |()| 0);
        ledger.keepalive(lsn(150));
        assert_eq!(
            ledger.delivered(),
            Position {
                end_lsn: lsn(150),
                ..at_100(5)
            }
        );
        ledger.begin(lsn(200)).unwrap();
        ledger.enqueued(1, 0, ()).unwrap();
        ledger.acked(Ticket(0)).unwrap();
        assert_eq!(ledger.delivered().delivered_of(lsn(200)), 6);
        ledger.commit(lsn(200), lsn(210)).unwrap();
        assert_eq!(ledger.delivered(), Position::at(lsn(210)));
    }

    #[test]
    fn the_oldest_commit_time_is_that_of_the_oldest_event_in_flight() {
        let mut ledger = Ledger::new(Position::at(lsn(100)), ROOMY, |()| 0);
        for (commit, at_us) in [(200, 7), (300, 9)] {
            ledger.begin(lsn(commit)).unwrap();
            ledger.enqueued(1, at_us, ()).unwrap();
            ledger.commit(lsn(commit), lsn(commit + 10)).unwrap();
        }
        assert_eq!(ledger.oldest_commit_us(), Some(7));
        ledger.acked(Ticket(0)).unwrap();
        assert_eq!(ledger.oldest_commit_us(), Some(9));
        ledger.acked(Ticket(1)).unwrap();
        assert_eq!(ledger.oldest_commit_us(), None);
        assert_eq!(ledger.finished, [7, 9]);
    }

    #[test]
    fn a_begin_event_commit_or_ack_out_of_turn_is_an_error() {
        let mut ledger = inside(at_100(0));
        ledger.commit(lsn(200), lsn(210)).unwrap();
        let says = |done: Result<(), LedgerError>, what: &str| {
            assert!(done.unwrap_err().to_string().contains(what))
        };
        says(ledger.begin(lsn(205)), "already received");
        says(ledger.enqueued(1, 0, ()), "an event outside");
        says(ledger.commit(lsn(200), lsn(210)), "a commit outside");
        says(ledger.acked(Ticket(1)).map(drop), "not in flight");
        ledger.begin(lsn(210)).unwrap();
        says(ledger.begin(lsn(300)), "began inside");
        says(ledger.commit(lsn(211), lsn(220)), "commit of 0/D3");
        says(ledger.commit(lsn(210), lsn(210)), "commit of 0/D2");
        ledger.acked(Ticket(0)).unwrap();
        says(ledger.acked(Ticket(0)).map(drop), "not in flight");
    }

    #[test]
    fn events_in_flight_are_bounded_in_number_and_in_bytes() {
        let mut ledger = Ledger::new(
            Position::default(),
            Limits {
                events: 2,
                bytes: 100,
                each: 0,
            },
            |()| 0,
        );
        ledger.begin(lsn(1)).unwrap();
        ledger.enqueued(10, 0, ()).unwrap();
        assert!(ledger.has_room());
        ledger.enqueued(10, 0, ()).unwrap();
        assert!(!ledger.has_room());
        ledger.acked(Ticket(0)).unwrap();
        assert!(ledger.has_room());
        ledger.enqueued(200, 0, ()).unwrap();
        ledger.acked(Ticket(1)).unwrap();
        assert!(!ledger.has_room());
    }

    #[test]
    fn an_acked_event_behind_one_that_is_not_counts_as_what_is_kept_of_it() {
        const ENTRY: usize = size_of::<Entry<usize>>();
        let limits = Limits {
            events: 1_000,
            bytes: 1_000,
            each: 300,
        };
        let mut ledger = Ledger::new(Position::default(), limits, |kept| *kept);
        ledger.begin(lsn(1)).unwrap();
        [0, 7, 0]
            .into_iter()
            .for_each(|kept| ledger.enqueued(50, 0, kept).unwrap());
        let unacked = ENTRY + 350;
        assert_eq!(ledger.in_flight_bytes(), 3 * unacked);
        assert!(!ledger.has_room());
        ledger.acked(Ticket(1)).unwrap();
        assert_eq!(ledger.in_flight_bytes(), 2 * unacked + ENTRY + 7);
        assert!(ledger.has_room());
        ledger.acked(Ticket(0)).unwrap();
        assert_eq!(ledger.in_flight_bytes(), unacked);
        ledger.acked(Ticket(2)).unwrap();
        assert_eq!(ledger.in_flight_bytes(), 0);
    }
}
