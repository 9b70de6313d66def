//! Parts of spans, attributes, the trace context of an event, and the queue of spans.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;

use crate::clock::now_us;

/// The header with the trace context of an event: <https://www.w3.org/TR/trace-context/#traceparent-header>
const TRACEPARENT: &str = "traceparent";
/// The flags `HAS_IS_REMOTE` and `IS_REMOTE` of OTLP.
const IS_REMOTE: u32 = 0x300;

/// Spans in the queue, and as many that wait for an answer: a minute of a busy relay.
pub(super) const QUEUE_SPANS: usize = 512;

/// Takes the spans of the batches of a slot. Clones share one queue.
#[derive(Debug, Clone)]
pub(crate) struct Spans {
    slot: String,
    queue: mpsc::Sender<Span>,
    dropped: Counter,
}

impl Spans {
    /// A queue, and its other end. `dropped` counts spans for which there was no room.
    pub(crate) fn new(slot: impl ToString, dropped: &Counter) -> (Spans, mpsc::Receiver<Span>) {
        let (queue, spans) = mpsc::channel(QUEUE_SPANS);
        (Spans { slot: slot.to_string(), queue, dropped: dropped.clone() }, spans)
    }

    pub(crate) fn slot(&self) -> &str {
        &self.slot
    }

    /// Queues `span`, or drops and counts it. Never waits.
    pub(crate) fn push(&self, span: Span) {
        if self.queue.try_send(span).is_err() {
            self.dropped.inc();
        }
    }
}

/// An event of a span, of now.
pub(crate) fn event(name: &str) -> Event {
    Event { time_unix_nano: now(), name: name.to_owned(), ..Event::default() }
}

/// The status of a span that has an error.
pub(crate) fn failure(message: String) -> Status {
    Status { message, code: StatusCode::Error.into() }
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

    /// A link to the trace. The other end of a link is in another process.
    pub(crate) fn link(&self) -> Link {
        let (trace_id, span_id) = (self.trace_id.to_be_bytes().into(), self.span_id.to_be_bytes().into());
        Link { trace_id, span_id, flags: u32::from(self.flags) | IS_REMOTE, ..Link::default() }
    }

    /// The id of the trace, as `traceparent` has it.
    pub(crate) fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }
}

pub(crate) fn text(name: &str, value: impl Into<String>) -> KeyValue {
    attribute(name, Value::StringValue(value.into()))
}

pub(crate) fn integer(name: &str, value: u64) -> KeyValue {
    attribute(name, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn attribute(name: &str, value: Value) -> KeyValue {
    KeyValue { key: name.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// Nanoseconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    u64::try_from(now_us()).unwrap_or_default().saturating_mul(1000)
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
        assert_eq!((read.link().trace_id.len(), read.link().span_id.len(), read.link().flags), (16, 8, 0x301));
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
}
