//! The batches of a publisher, while there is a collector to tell of them. No I/O.
//!
//! A batch is the events that are enqueued from one store of the position to the next; with exactly-once, a Kafka
//! transaction. A batch ends when its last event is confirmed, or stored where rows come from a table. Its span is the root
//! of a trace of its own, with links to the traces of its events.

use std::collections::VecDeque;

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;

use crate::error::Error;
use crate::event::Place;
use crate::ledger::Ticket;
use crate::position::Lsn;
use crate::telemetry::otel::span::{Spans, TraceContext, event, failure, integer, now, text};

/// Batches that wait for their end. While there are so many, the newest one grows: a large transaction is confirmed late.
const SEALED_MAX: usize = 32;
/// Links of one span, as many as OpenTelemetry's own programs send.
const LINKS_MAX: usize = 128;

/// See the module's documentation. Without a collector there are none.
#[derive(Debug, Default)]
pub(super) struct Batches {
    spans: Option<Spans>,
    /// The one that events are added to.
    open: Option<Batch>,
    /// The others, oldest first.
    sealed: VecDeque<Batch>,
}

#[derive(Debug)]
struct Batch {
    /// Has an event once all its records are acked.
    span: Span,
    links: Vec<TraceContext>,
    first: Ticket,
    last: Ticket,
    /// Commit LSNs of its first and last event.
    first_lsn: Lsn,
    last_lsn: Lsn,
    /// Its records, and the bytes of their keys, values and headers.
    events: u64,
    bytes: u64,
    /// Failed deliveries of its events.
    failed: u64,
}

impl Batch {
    fn beginning(ticket: Ticket, lsn: Lsn) -> Batch {
        let span = Span {
            // They stay the same where the span is sent twice.
            trace_id: fastrand::u128(1..).to_be_bytes().into(),
            span_id: fastrand::u64(1..).to_be_bytes().into(),
            kind: SpanKind::Producer.into(),
            start_time_unix_nano: now(),
            ..Span::default()
        };
        let (first, last, first_lsn, last_lsn) = (ticket, ticket, lsn, lsn);
        Batch { span, links: Vec::new(), first, last, first_lsn, last_lsn, events: 0, bytes: 0, failed: 0 }
    }

    /// Links the trace of an event. Beyond [`LINKS_MAX`], links are only counted.
    fn link(&mut self, trace: TraceContext) {
        if self.links.len() >= LINKS_MAX {
            self.span.dropped_links_count = self.span.dropped_links_count.saturating_add(1);
        } else if !self.links.contains(&trace) {
            self.links.push(trace);
        }
    }

    fn is_acked(&self) -> bool {
        !self.span.events.is_empty()
    }

    /// The span, which ends now.
    fn ended(self, slot: &str) -> Span {
        let attributes = vec![
            text("walrelay.slot", slot),
            integer("walrelay.events", self.events),
            integer("walrelay.bytes", self.bytes),
            integer("walrelay.failed_events", self.failed),
            text("walrelay.first_lsn", self.first_lsn.to_string()),
            text("walrelay.last_lsn", self.last_lsn.to_string()),
        ];
        let (name, status) = (format!("deliver {slot}"), Some(self.span.status.unwrap_or_default()));
        let links = self.links.iter().map(TraceContext::link).collect();
        Span { name, end_time_unix_nano: now(), attributes, status, links, ..self.span }
    }
}

impl Batches {
    /// Where the batches are told of.
    pub(super) fn tell(&mut self, spans: Option<&Spans>) {
        self.spans = spans.cloned();
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
        if self.spans.is_none() {
            return;
        }
        let batch = self.open(ticket, place);
        batch.events += 1;
        batch.bytes += bytes as u64;
        if let Some(trace) = trace() {
            batch.link(trace);
        }
    }

    fn open(&mut self, ticket: Ticket, place: Place) -> &mut Batch {
        let batch = self.open.get_or_insert_with(|| Batch::beginning(ticket, place.commit_lsn));
        (batch.last, batch.last_lsn) = (ticket, place.commit_lsn);
        batch.span.events.clear();
        batch
    }

    /// The delivery of this event failed. `place` is known of an event that is given up.
    pub(super) fn failed(&mut self, ticket: Ticket, place: Option<Place>, error: &Error) {
        let is_of = |batch: &&mut Batch| (batch.first..=batch.last).contains(&ticket);
        let found = match self.sealed.iter_mut().chain(&mut self.open).find(is_of) {
            Some(batch) => Some(batch),
            None => place.filter(|_| self.spans.is_some()).map(|place| self.open(ticket, place)),
        };
        if let Some(batch) = found {
            batch.failed += 1;
            batch.span.status.get_or_insert_with(|| failure(error.to_string()));
        }
    }

    /// All events before `next` are acked.
    pub(super) fn acked(&mut self, next: Ticket) {
        let waiting = |batch: &&mut Batch| batch.last < next && !batch.is_acked();
        for batch in self.sealed.iter_mut().chain(&mut self.open).filter(waiting) {
            batch.span.events.push(event("acked"));
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
        self.end("confirmed", |batch| batch.last_lsn < lsn);
    }

    /// The store ended: it has all events that were acked when it began. Nothing confirms rows of a table.
    pub(super) fn stored(&mut self) {
        self.end("stored", |_| true);
    }

    fn end(&mut self, word: &str, is_over: impl Fn(&Batch) -> bool) {
        while self.sealed.front().is_some_and(|batch| batch.is_acked() && is_over(batch))
            && let Some((mut batch, spans)) = self.sealed.pop_front().zip(self.spans.as_ref())
        {
            batch.span.events.push(event(word));
            spans.push(batch.ended(spans.slot()));
        }
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        const CAUSE: &str = "the producer ended before this was confirmed; events that are not stored are sent again";
        let Some(spans) = &self.spans else { return };
        for mut batch in self.sealed.drain(..).chain(self.open.take()) {
            batch.span.status.get_or_insert_with(|| failure(CAUSE.to_owned()));
            spans.push(batch.ended(spans.slot()));
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::common::v1::KeyValue;
    use prometheus_client::metrics::counter::Counter;
    use tokio::sync::mpsc::Receiver;

    use super::*;
    use crate::error::Kind;
    use crate::event::Via;

    fn batches() -> (Batches, Receiver<Span>) {
        let (spans, ended) = Spans::new("orders", &Counter::default());
        let mut batches = Batches::default();
        batches.tell(Some(&spans));
        (batches, ended)
    }

    fn enqueue(batches: &mut Batches, ticket: u64, lsn: u64) {
        let place = Place { commit_lsn: Lsn::new(lsn), index: 0, via: Via::Slot };
        batches.enqueued(Ticket(ticket), place, 10, || None);
    }

    /// Names of a span's events, and its error.
    fn told(span: &Span) -> (Vec<&str>, Option<&str>) {
        let names = span.events.iter().map(|event| event.name.as_str()).collect();
        (names, span.status.as_ref().map(|status| status.message.as_str()).filter(|message| !message.is_empty()))
    }

    fn counts(events: u64, bytes: u64, failed: u64, first: u64, last: u64) -> Vec<KeyValue> {
        let lsn = |name, lsn| text(name, Lsn::new(lsn).to_string());
        vec![
            text("walrelay.slot", "orders"),
            integer("walrelay.events", events),
            integer("walrelay.bytes", bytes),
            integer("walrelay.failed_events", failed),
            lsn("walrelay.first_lsn", first),
            lsn("walrelay.last_lsn", last),
        ]
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
        assert_eq!((told(&span), &span.attributes), ((vec!["acked", "confirmed"], None), &counts(2, 20, 0, 100, 200)));
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
        let (first, second) = (ended.try_recv().unwrap(), ended.try_recv().unwrap());
        assert_eq!(
            (told(&first), first.attributes[3].clone()),
            ((vec!["acked", "stored"], Some("first")), integer("walrelay.failed_events", 2))
        );
        assert_eq!((told(&second), &second.attributes), ((vec![], Some("given up")), &counts(1, 10, 1, 200, 300)));
    }

    #[test]
    fn a_large_transaction_makes_a_bounded_number_of_batches_and_links() {
        let (mut batches, mut ended) = batches();
        for ticket in 0..100 {
            enqueue(&mut batches, ticket, 500);
            batches.seal();
        }
        let open = batches.open.as_mut().unwrap();
        for number in 1..=LINKS_MAX + 5 {
            let trace = format!("00-{number:032x}-b7ad6b7169203331-01");
            (0..2).for_each(|_| open.link(TraceContext::parse(trace.as_bytes()).unwrap()));
        }
        batches.acked(Ticket(100));
        batches.confirmed(Lsn::new(501));
        drop(batches);
        let spans: Vec<Span> = std::iter::from_fn(|| ended.try_recv().ok()).collect();
        assert_eq!((spans.len(), spans[0].attributes[1].clone()), (SEALED_MAX + 1, integer("walrelay.events", 1)));
        let last = spans.last().unwrap();
        // A link that is left out may be one of those that were kept.
        assert_eq!((last.links.len(), last.dropped_links_count), (LINKS_MAX, 11));
        assert_eq!(last.attributes[1], integer("walrelay.events", 100 - SEALED_MAX as u64));
    }
}
