//! Parts of spans, attributes, the trace context of an event, and the queue of spans.

use std::sync::Arc;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;

use walrelay_core::publisher::{Batch, EndedBatches};
use walrelay_core::trace::TraceContext;

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

    /// Takes ended batches, and queues their spans.
    pub(crate) fn taker(&self) -> EndedBatches {
        let spans = self.clone();
        Arc::new(move |batch| spans.push(span(&batch, &spans.slot)))
    }

    /// Queues `span`, or drops and counts it. Never waits.
    pub(super) fn push(&self, span: Span) {
        if self.queue.try_send(span).is_err() {
            self.dropped.inc();
        }
    }
}

/// A link to the trace. The other end of a link is in another process.
fn link(trace: &TraceContext) -> Link {
    Link {
        trace_id: trace.trace_id.to_be_bytes().into(),
        span_id: trace.span_id.to_be_bytes().into(),
        flags: u32::from(trace.flags) | IS_REMOTE,
        ..Link::default()
    }
}

/// The span of a batch.
fn span(batch: &Batch, slot: &str) -> Span {
    let event = |us: i64, name: &str| Event { time_unix_nano: nanos(us), name: name.to_owned(), ..Event::default() };
    let acked = batch.acked_us.map(|us| event(us, "acked"));
    let ended = batch.ended_by.map(|word| event(batch.ended_us, word));
    let failure = |message: &String| Status { message: message.clone(), code: StatusCode::Error.into() };
    Span {
        name: format!("deliver {slot}"),
        trace_id: fastrand::u128(1..).to_be_bytes().into(),
        span_id: fastrand::u64(1..).to_be_bytes().into(),
        kind: SpanKind::Producer.into(),
        start_time_unix_nano: nanos(batch.began_us),
        end_time_unix_nano: nanos(batch.ended_us),
        attributes: vec![
            text("walrelay.slot", slot),
            integer("walrelay.events", batch.events),
            integer("walrelay.bytes", batch.bytes),
            integer("walrelay.failed_events", batch.failed_events),
            text("walrelay.first_lsn", batch.first_lsn.to_string()),
            text("walrelay.last_lsn", batch.last_lsn.to_string()),
        ],
        events: acked.into_iter().chain(ended).collect(),
        links: batch.links.iter().map(link).collect(),
        dropped_links_count: batch.links_left_out,
        status: Some(batch.failure.as_ref().map(failure).unwrap_or_default()),
        ..Span::default()
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
fn nanos(us: i64) -> u64 {
    u64::try_from(us).unwrap_or_default().saturating_mul(1000)
}
