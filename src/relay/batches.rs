//! The batches of a publisher, while there is a collector to tell of them. No I/O.
//!
//! A batch is the events that are enqueued from one store of the position to the next; with exactly-once, a Kafka
//! transaction. A batch ends when its last event is confirmed, or stored where rows come from a table.

use std::collections::VecDeque;

use crate::clock::now_us;
use crate::error::Error;
use crate::event::Place;
use crate::ledger::Ticket;
use crate::position::Lsn;
use crate::telemetry::otel::span::{BatchSpan, Spans, TraceContext};

/// Batches that wait for their end. While there are so many, the newest one grows: a large transaction is confirmed late.
const SEALED_MAX: usize = 32;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Batches {
    spans: Spans,
    /// The one that events are added to.
    open: Option<Batch>,
    /// The others, oldest first.
    sealed: VecDeque<Batch>,
}

#[derive(Debug)]
struct Batch {
    span: BatchSpan,
    first: Ticket,
    last: Ticket,
}

impl Batches {
    pub(super) fn new(spans: Spans) -> Batches {
        Batches { spans, open: None, sealed: VecDeque::new() }
    }

    /// The record of this event was enqueued.
    pub(super) fn enqueued(&mut self, ticket: Ticket, place: Place, bytes: usize, trace: Option<TraceContext>) {
        let span = &mut self.open(ticket, place).span;
        span.events += 1;
        span.bytes += bytes as u64;
        if let Some(trace) = trace {
            span.link(trace);
        }
    }

    fn open(&mut self, ticket: Ticket, place: Place) -> &mut Batch {
        let first = place.commit_lsn;
        let new = || Batch { span: BatchSpan::beginning(now_us(), first), first: ticket, last: ticket };
        let batch = self.open.get_or_insert_with(new);
        (batch.last, batch.span.last, batch.span.acked_us) = (ticket, first, None);
        batch
    }

    /// The delivery of this event failed. `place` is known of an event that is given up.
    pub(super) fn failed(&mut self, ticket: Ticket, place: Option<Place>, error: &Error) {
        let is_of = |batch: &&mut Batch| (batch.first..=batch.last).contains(&ticket);
        let found = match self.sealed.iter_mut().chain(&mut self.open).find(is_of) {
            Some(batch) => Some(batch),
            None => place.map(|place| self.open(ticket, place)),
        };
        if let Some(Batch { span, .. }) = found {
            span.failed += 1;
            span.error.get_or_insert_with(|| error.to_string());
        }
    }

    /// All events before `next` are acked.
    pub(super) fn acked(&mut self, next: Ticket) {
        let acked = self.sealed.iter_mut().chain(&mut self.open).filter(|batch| batch.last < next);
        for batch in acked {
            batch.span.acked_us.get_or_insert_with(now_us);
        }
    }

    /// A store of the position begins: what is enqueued from here on is in another batch.
    pub(super) fn seal(&mut self) {
        if self.sealed.len() < SEALED_MAX {
            self.sealed.extend(self.open.take());
        }
    }

    /// Postgres has this LSN.
    pub(super) fn confirmed(&mut self, lsn: Lsn) {
        self.end("confirmed", |span| span.last < lsn);
    }

    /// What was acked when the store began is stored, and nothing confirms it.
    pub(super) fn stored(&mut self) {
        self.end("stored", |_| true);
    }

    fn end(&mut self, ended_by: &'static str, is_over: impl Fn(&BatchSpan) -> bool) {
        while self.sealed.front().is_some_and(|batch| batch.span.acked_us.is_some() && is_over(&batch.span))
            && let Some(Batch { mut span, .. }) = self.sealed.pop_front()
        {
            (span.ended_us, span.ended_by) = (now_us(), Some(ended_by));
            self.spans.push(span);
        }
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        for Batch { mut span, .. } in self.sealed.drain(..).chain(self.open.take()) {
            span.ended_us = now_us();
            span.error.get_or_insert_with(|| {
                "the producer ended before this was confirmed; events that are not stored are sent again".to_owned()
            });
            self.spans.push(span);
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;
    use crate::error::Kind;
    use crate::event::Via;

    fn batches() -> (Batches, tokio::sync::mpsc::Receiver<BatchSpan>) {
        let (spans, ended) = Spans::new(&Counter::default());
        (Batches::new(spans), ended)
    }

    fn enqueue(batches: &mut Batches, ticket: u64, lsn: u64) {
        let place = Place { commit_lsn: Lsn::new(lsn), index: 0, via: Via::Slot };
        batches.enqueued(Ticket(ticket), place, 10, None);
    }

    #[test]
    fn a_batch_ends_once_it_is_acked_and_confirmed() {
        let (mut batches, mut ended) = batches();
        enqueue(&mut batches, 0, 100);
        enqueue(&mut batches, 1, 200);
        batches.seal();
        enqueue(&mut batches, 2, 300);
        batches.confirmed(Lsn::new(201));
        assert!(ended.try_recv().is_err(), "it is not acked");
        batches.acked(Ticket(2));
        batches.confirmed(Lsn::new(200));
        assert!(ended.try_recv().is_err(), "the LSN of a commit is before its end");
        batches.confirmed(Lsn::new(301));
        let span = ended.try_recv().unwrap();
        assert_eq!((span.events, span.bytes, span.ended_by, span.error), (2, 20, Some("confirmed"), None));
        assert_eq!((span.first, span.last), (Lsn::new(100), Lsn::new(200)));
        assert!(span.acked_us.is_some_and(|acked| acked >= span.began_us && span.ended_us >= acked));
        assert!(ended.try_recv().is_err());
    }

    #[test]
    fn a_failed_delivery_and_a_producer_that_ends_are_errors_of_the_span() {
        let (mut batches, mut ended) = batches();
        let error = |cause: &str| Error::new(Kind::Record, cause);
        enqueue(&mut batches, 0, 100);
        batches.seal();
        enqueue(&mut batches, 1, 200);
        batches.failed(Ticket(0), None, &error("first"));
        batches.failed(Ticket(0), None, &error("second"));
        batches.failed(Ticket(9), None, &error("of nobody"));
        let place = Place { commit_lsn: Lsn::new(300), index: 0, via: Via::Slot };
        batches.failed(Ticket(2), Some(place), &error("given up"));
        batches.acked(Ticket(1));
        batches.stored();
        drop(batches);
        let first = ended.try_recv().unwrap();
        assert_eq!((first.error.as_deref(), first.failed, first.ended_by), (Some("first"), 2, Some("stored")));
        let second = ended.try_recv().unwrap();
        assert_eq!((second.error.as_deref(), second.events, second.last), (Some("given up"), 1, Lsn::new(300)));
        assert_eq!(second.ended_by, None);
    }

    #[test]
    fn a_large_transaction_makes_a_bounded_number_of_batches() {
        let (mut batches, mut ended) = batches();
        for ticket in 0..100 {
            enqueue(&mut batches, ticket, 500);
            batches.seal();
        }
        batches.acked(Ticket(100));
        batches.confirmed(Lsn::new(501));
        drop(batches);
        let spans: Vec<BatchSpan> = std::iter::from_fn(|| ended.try_recv().ok()).collect();
        assert_eq!((spans.len(), spans.iter().map(|span| span.events).sum::<u64>()), (SEALED_MAX + 1, 100));
    }
}
