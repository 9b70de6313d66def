//! The batches of a publisher, while somebody asks for them. No I/O.
//!
//! A batch is the events that are enqueued from one store of the position to the next; with
//! exactly-once, a transaction of the bus. A batch ends when its last event is confirmed, or stored
//! where rows come from a table.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crate::clock::now_us;
use crate::error::Error;
use crate::event::Place;
use crate::ledger::Ticket;
use crate::position::Lsn;
use crate::trace::TraceContext;

/// Batches that wait for their end. While there are so many, the newest one grows: a large
/// transaction is confirmed late.
const SEALED_MAX: usize = 32;
/// Links of one batch, as many as OpenTelemetry's own programs send.
const LINKS_MAX: usize = 128;

/// Takes a batch that has ended. Must not wait.
pub type EndedBatches = Arc<dyn Fn(Batch) + Send + Sync>;

/// See the module's documentation. Without a taker there are none.
#[derive(Default)]
pub struct Batches {
    taker: Option<EndedBatches>,
    /// The one that events are added to.
    open: Option<Batch>,
    /// The others, oldest first.
    sealed: VecDeque<Batch>,
}

impl fmt::Debug for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches")
            .field("open", &self.open)
            .field("sealed", &self.sealed)
            .finish_non_exhaustive()
    }
}

/// A batch. Times are in microseconds since the Unix epoch.
#[derive(Debug, Clone)]
pub struct Batch {
    /// When its first event was enqueued.
    pub began_us: i64,
    /// When its last event was acked; none where the producer ended before.
    pub acked_us: Option<i64>,
    /// When it ended.
    pub ended_us: i64,
    /// `confirmed` or `stored`; none where the producer ended before.
    pub ended_by: Option<&'static str>,
    /// Traces of its events.
    pub links: Links,
    /// The commit LSN of its first event.
    pub first_lsn: Lsn,
    /// The commit LSN of its last event.
    pub last_lsn: Lsn,
    /// Its records.
    pub events: u64,
    /// The bytes of their keys, values and headers.
    pub bytes: u64,
    /// Failed deliveries of its events.
    pub failures: Failures,
    first: Ticket,
    last: Ticket,
}

/// Traces of events, without repetition.
#[derive(Debug, Clone, Default)]
pub struct Links {
    /// Those that are kept.
    pub traces: Vec<TraceContext>,
    /// Links that were left out.
    pub left_out: u32,
}

impl Links {
    /// Links the trace of an event. Beyond [`LINKS_MAX`], links are only counted.
    fn add(&mut self, trace: TraceContext) {
        if self.traces.len() >= LINKS_MAX {
            self.left_out = self.left_out.saturating_add(1);
        } else if !self.traces.contains(&trace) {
            self.traces.push(trace);
        }
    }
}

/// Failed deliveries.
#[derive(Debug, Clone, Default)]
pub struct Failures {
    /// Their number.
    pub count: u64,
    /// The cause of the first.
    pub first: Option<String>,
}

impl Batch {
    pub(crate) fn beginning(ticket: Ticket, lsn: Lsn) -> Batch {
        let now_us = now_us();
        Batch {
            began_us: now_us,
            acked_us: None,
            ended_us: now_us,
            ended_by: None,
            links: Links::default(),
            first_lsn: lsn,
            last_lsn: lsn,
            events: 0,
            bytes: 0,
            failures: Failures::default(),
            first: ticket,
            last: ticket,
        }
    }
}

impl Batches {
    /// Gives ended batches to `taker`; none are kept without one.
    pub fn tell(&mut self, taker: Option<EndedBatches>) {
        self.taker = taker;
    }

    /// The record of this event was enqueued; `trace` gives its trace.
    #[inline]
    pub(super) fn enqueued(
        &mut self,
        ticket: Ticket,
        place: Place,
        bytes: usize,
        trace: impl FnOnce() -> Option<TraceContext>,
    ) {
        if self.taker.is_none() {
            return;
        }
        let batch = self.open(ticket, place);
        batch.events += 1;
        batch.bytes += bytes as u64;
        if let Some(trace) = trace() {
            batch.links.add(trace);
        }
    }

    fn open(&mut self, ticket: Ticket, place: Place) -> &mut Batch {
        let batch = self
            .open
            .get_or_insert_with(|| Batch::beginning(ticket, place.commit_lsn));
        batch.last = ticket;
        batch.last_lsn = place.commit_lsn;
        batch.acked_us = None;
        batch
    }

    /// The delivery of this event failed. `place` is known of an event that is given up.
    pub(super) fn failed(&mut self, ticket: Ticket, place: Option<Place>, error: &Error) {
        let is_of = |batch: &&mut Batch| (batch.first..=batch.last).contains(&ticket);
        let found = match self.sealed.iter_mut().chain(&mut self.open).find(is_of) {
            Some(batch) => Some(batch),
            None => place
                .filter(|_| self.taker.is_some())
                .map(|place| self.open(ticket, place)),
        };
        if let Some(batch) = found {
            batch.failures.count += 1;
            batch
                .failures
                .first
                .get_or_insert_with(|| error.to_string());
        }
    }

    /// All events before `next` are acked.
    pub(super) fn acked(&mut self, next: Ticket) {
        let waiting = |batch: &&mut Batch| batch.last < next && batch.acked_us.is_none();
        for batch in self.sealed.iter_mut().chain(&mut self.open).filter(waiting) {
            batch.acked_us = Some(now_us());
        }
    }

    /// A store of the position begins: what is enqueued from here on is in another batch.
    pub fn seal(&mut self) {
        if self.sealed.len() < SEALED_MAX {
            self.sealed.extend(self.open.take());
        }
    }

    /// Postgres has this LSN.
    pub fn confirmed(&mut self, lsn: Lsn) {
        self.end("confirmed", |batch| batch.last_lsn < lsn);
    }

    /// The store ended: it has all events that were acked when it began. Nothing confirms rows of a
    /// table.
    pub fn stored(&mut self) {
        self.end("stored", |_| true);
    }

    fn end(&mut self, word: &'static str, is_over: impl Fn(&Batch) -> bool) {
        let Some(taker) = &self.taker else { return };
        while let Some(batch) = self
            .sealed
            .front()
            .filter(|batch| batch.acked_us.is_some() && is_over(batch))
        {
            taker(Batch {
                ended_by: Some(word),
                ended_us: now_us(),
                ..batch.clone()
            });
            self.sealed.pop_front();
        }
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        const CAUSE: &str = "the producer ended before this was confirmed; events that are not \
                             stored are sent again";
        let Some(taker) = &self.taker else { return };
        for mut batch in self.sealed.drain(..).chain(self.open.take()) {
            batch.failures.first.get_or_insert(CAUSE.to_owned());
            batch.ended_us = now_us();
            taker(batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::error::Kind;
    use crate::event::Via;

    type Ended = Arc<Mutex<Vec<Batch>>>;

    fn batches() -> (Batches, Ended) {
        let ended = Ended::default();
        let into = Arc::clone(&ended);
        let mut batches = Batches::default();
        batches.tell(Some(Arc::new(move |batch| into.lock().push(batch))));
        (batches, ended)
    }

    fn enqueue(batches: &mut Batches, ticket: u64, lsn: u64) {
        let place = Place {
            commit_lsn: Lsn::new(lsn),
            index: 0,
            via: Via::Slot,
        };
        batches.enqueued(Ticket(ticket), place, 10, || None);
    }

    /// Whether it was acked, its end, and its error.
    fn told(batch: &Batch) -> (bool, Option<&str>, Option<&str>) {
        (
            batch.acked_us.is_some(),
            batch.ended_by,
            batch.failures.first.as_deref(),
        )
    }

    fn counts(batch: &Batch) -> [u64; 5] {
        [
            batch.events,
            batch.bytes,
            batch.failures.count,
            batch.first_lsn.as_u64(),
            batch.last_lsn.as_u64(),
        ]
    }

    #[test]
    fn a_batch_ends_once_it_is_acked_and_confirmed() {
        let (mut batches, ended) = batches();
        enqueue(&mut batches, 0, 100);
        enqueue(&mut batches, 1, 200);
        batches.seal();
        enqueue(&mut batches, 2, 300);
        batches.confirmed(Lsn::new(201));
        assert!(ended.lock().is_empty(), "it is not acked");
        batches.acked(Ticket(2));
        batches.confirmed(Lsn::new(200));
        assert!(
            ended.lock().is_empty(),
            "the LSN of a commit is before its end"
        );
        batches.confirmed(Lsn::new(301));
        let batch = ended.lock().pop().unwrap();
        assert_eq!(
            (told(&batch), counts(&batch)),
            ((true, Some("confirmed"), None), [2, 20, 0, 100, 200])
        );
        assert!(ended.lock().is_empty());
    }

    #[test]
    fn a_failed_delivery_and_a_producer_that_ends_are_errors_of_the_batch() {
        let (mut batches, ended) = batches();
        let error = |cause: &str| Error::new(Kind::Record, cause);
        enqueue(&mut batches, 0, 100);
        batches.seal();
        enqueue(&mut batches, 1, 200);
        batches.failed(Ticket(0), None, &error("first"));
        batches.failed(Ticket(0), None, &error("second"));
        batches.failed(Ticket(9), None, &error("of nobody"));
        let place = Place {
            commit_lsn: Lsn::new(300),
            index: 0,
            via: Via::Slot,
        };
        batches.failed(Ticket(2), Some(place), &error("given up"));
        batches.acked(Ticket(1));
        batches.stored();
        drop(batches);
        let [first, second] = std::mem::take(&mut *ended.lock()).try_into().unwrap();
        assert_eq!(
            (told(&first), first.failures.count),
            ((true, Some("stored"), Some("first")), 2)
        );
        assert_eq!(
            (told(&second), counts(&second)),
            ((false, None, Some("given up")), [1, 10, 1, 200, 300])
        );
    }

    #[test]
    fn a_large_transaction_makes_a_bounded_number_of_batches_and_links() {
        let (mut batches, ended) = batches();
        for ticket in 0..100 {
            enqueue(&mut batches, ticket, 500);
            batches.seal();
        }
        let open = batches.open.as_mut().unwrap();
        for number in 1..=LINKS_MAX + 5 {
            let trace = format!("00-{number:032x}-b7ad6b7169203331-01");
            (0..2).for_each(|_| {
                open.links
                    .add(TraceContext::parse(trace.as_bytes()).unwrap())
            });
        }
        batches.acked(Ticket(100));
        batches.confirmed(Lsn::new(501));
        drop(batches);
        let ended = ended.lock();
        assert_eq!((ended.len(), ended[0].events), (SEALED_MAX + 1, 1));
        let last = ended.last().unwrap();
        // A link that is left out may be one of those that were kept.
        assert_eq!(
            (last.links.traces.len(), last.links.left_out),
            (LINKS_MAX, 11)
        );
        assert_eq!(last.events, 100 - SEALED_MAX as u64);
    }
}
