//! The span of one delivery batch, the trace context of an event, and the queue of spans.

use opentelemetry_proto::tonic::trace::v1::span::{Event, Link, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};

use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;

use super::attribute::{integer, nanoseconds, text};
use crate::position::Lsn;

/// The header with the trace context of an event: <https://www.w3.org/TR/trace-context/#traceparent-header>
const TRACEPARENT: &str = "traceparent";
/// Links of one span, as many as OpenTelemetry's own programs send.
const LINKS_MAX: usize = 128;
/// The other end of a link is in another process: the flags `HAS_IS_REMOTE` and `IS_REMOTE` of OTLP.
const IS_REMOTE: u32 = 0x300;

/// Spans in the queue, and as many that wait for an answer: a minute of a busy relay.
pub(super) const QUEUE_SPANS: usize = 512;

/// Takes the spans of batches. Clones share one queue.
#[derive(Debug, Clone)]
pub(crate) struct Spans {
    queue: mpsc::Sender<BatchSpan>,
    dropped: Counter,
}

impl Spans {
    /// A queue, and its other end. `dropped` counts spans for which there was no room.
    pub(crate) fn new(dropped: &Counter) -> (Spans, mpsc::Receiver<BatchSpan>) {
        let (queue, spans) = mpsc::channel(QUEUE_SPANS);
        (Spans { queue, dropped: dropped.clone() }, spans)
    }

    /// Queues `span`, or drops and counts it. Never waits.
    pub(crate) fn push(&self, span: BatchSpan) {
        if self.queue.try_send(span).is_err() {
            self.dropped.inc();
        }
    }
}

/// The trace context of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceContext {
    trace_id: u128,
    span_id: u64,
    flags: u8,
}

impl TraceContext {
    /// Reads a `traceparent`; `None` where the text is none.
    pub(crate) fn parse(text: &[u8]) -> Option<TraceContext> {
        let mut parts = std::str::from_utf8(text).ok()?.trim().split('-');
        let mut number = |digits: usize| {
            let part = parts.next().filter(|part| part.len() == digits)?;
            let is_hex = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            u128::from_str_radix(part, 16).ok().filter(|_| is_hex)
        };
        let (version, trace_id, span_id, flags) = (number(2)?, number(32)?, number(16)?, number(2)?);
        // Later versions may have more parts.
        let fits = version != 0xff && (version > 0 || parts.next().is_none());
        let (span_id, flags) = (u64::try_from(span_id).ok()?, u8::try_from(flags).ok()?);
        (fits && trace_id != 0 && span_id != 0).then_some(TraceContext { trace_id, span_id, flags })
    }

    /// Reads the header of a record.
    pub(crate) fn of_headers(headers: &[(&str, Option<&[u8]>)]) -> Option<TraceContext> {
        let (_, value) = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(TRACEPARENT))?;
        TraceContext::parse((*value)?)
    }

    /// The id of the trace, as `traceparent` has it.
    pub(crate) fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }
}

/// What is known of a batch. Times are microseconds since the Unix epoch.
#[derive(Debug, Clone, Default)]
pub(crate) struct BatchSpan {
    /// They stay the same where the span is sent twice.
    trace_id: u128,
    span_id: u64,
    pub(crate) began_us: i64,
    /// All its records are acked.
    pub(crate) acked_us: Option<i64>,
    pub(crate) ended_us: i64,
    /// What it ended with, as the glossary has it; none where it was given up.
    pub(crate) ended_by: Option<&'static str>,
    /// Its records.
    pub(crate) events: u64,
    /// Bytes of their keys, values and headers.
    pub(crate) bytes: u64,
    /// Failed deliveries of its events, and the first error.
    pub(crate) failed: u64,
    pub(crate) error: Option<String>,
    /// Commit LSNs of its first and last event.
    pub(crate) first: Lsn,
    pub(crate) last: Lsn,
    links: Vec<TraceContext>,
    left_out: u32,
}

impl BatchSpan {
    /// Of a batch whose first event has this commit LSN.
    pub(crate) fn beginning(began_us: i64, first: Lsn) -> BatchSpan {
        let (trace_id, span_id) = (fastrand::u128(1..), fastrand::u64(1..));
        BatchSpan { trace_id, span_id, began_us, first, ..BatchSpan::default() }
    }

    /// Links the trace of an event. Beyond [`LINKS_MAX`], links are only counted.
    pub(crate) fn link(&mut self, trace: TraceContext) {
        if self.links.len() >= LINKS_MAX {
            self.left_out = self.left_out.saturating_add(1);
        } else if !self.links.contains(&trace) {
            self.links.push(trace);
        }
    }

    /// The same for a collector, as the root of a trace of its own.
    pub(super) fn to_span(&self, slot: &str) -> Span {
        let event =
            |name: &str, us| Event { time_unix_nano: nanoseconds(us), name: name.to_owned(), ..Event::default() };
        let link = |trace: &TraceContext| Link {
            trace_id: trace.trace_id.to_be_bytes().into(),
            span_id: trace.span_id.to_be_bytes().into(),
            flags: u32::from(trace.flags) | IS_REMOTE,
            ..Link::default()
        };
        let acked = self.acked_us.map(|at_us| event("acked", at_us));
        let code = if self.error.is_some() { StatusCode::Error } else { StatusCode::Unset };
        Span {
            trace_id: self.trace_id.to_be_bytes().into(),
            span_id: self.span_id.to_be_bytes().into(),
            name: format!("deliver {slot}"),
            kind: SpanKind::Producer.into(),
            start_time_unix_nano: nanoseconds(self.began_us),
            end_time_unix_nano: nanoseconds(self.ended_us),
            attributes: vec![
                text("walrelay.slot", slot),
                integer("walrelay.events", self.events),
                integer("walrelay.bytes", self.bytes),
                integer("walrelay.failed_events", self.failed),
                text("walrelay.first_lsn", self.first.to_string()),
                text("walrelay.last_lsn", self.last.to_string()),
            ],
            events: acked.into_iter().chain(self.ended_by.map(|name| event(name, self.ended_us))).collect(),
            links: self.links.iter().map(link).collect(),
            dropped_links_count: self.left_out,
            status: Some(Status { message: self.error.clone().unwrap_or_default(), code: code.into() }),
            ..Span::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    #[test]
    fn a_traceparent_is_read_as_w3c_has_it() {
        let good = format!("00-{TRACE}-b7ad6b7169203331-01");
        let read = TraceContext::parse(good.as_bytes()).unwrap();
        assert_eq!((read.trace_id(), read.span_id, read.flags), (TRACE.to_owned(), 0xb7ad_6b71_6920_3331, 1));
        let headers = [("id", Some(&b"1"[..])), ("Traceparent", Some(good.as_bytes()))];
        assert_eq!(TraceContext::of_headers(&headers), Some(read));
        let later = format!("cc-{TRACE}-b7ad6b7169203331-01-what-later");
        assert_eq!(TraceContext::parse(later.as_bytes()), Some(read));
        for text in [
            String::new(),
            format!("{good}-x"),
            format!("ff-{TRACE}-b7ad6b7169203331-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)),
            format!("00-{}-b7ad6b7169203331-01", TRACE.to_uppercase()),
            format!("00-+{}-b7ad6b7169203331-01", &TRACE[1..]),
            format!("00-{TRACE}-b7ad6b7169203331"),
            "\u{fffd}".repeat(20),
        ] {
            assert_eq!(TraceContext::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(TraceContext::parse(b"\xff"), None);
        assert_eq!(TraceContext::of_headers(&[("traceparent", None)]), None);
    }

    #[test]
    fn links_are_bounded_and_each_is_sent_once() {
        let mut span =
            BatchSpan { acked_us: Some(2), ended_us: 3, ended_by: Some("confirmed"), ..BatchSpan::default() };
        let trace = |number: usize| TraceContext { trace_id: number as u128, span_id: 1, flags: 0 };
        (1..=LINKS_MAX + 5).for_each(|number| (0..2).for_each(|_| span.link(trace(number))));
        let span = span.to_span("orders");
        // What is left out may have come before.
        assert_eq!((span.links.len(), span.dropped_links_count), (LINKS_MAX, 11));
        assert_eq!(span.links[0].trace_id.len() + span.links[0].span_id.len(), 24);
        assert_eq!((span.name.as_str(), span.end_time_unix_nano), ("deliver orders", 3_000));
        let events: Vec<_> = span.events.iter().map(|event| (event.name.as_str(), event.time_unix_nano)).collect();
        assert_eq!(events, [("acked", 2_000), ("confirmed", 3_000)]);
    }
}
