//! [`Sink`] on standard output: one JSON object per record and line, to look at what would be sent.

use serde::Serialize;
use serde_json::{Map, Value};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{
    Receiver, Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel,
};
use tokio::task::JoinSet;
use tokio::time::{Duration, timeout};

use walrelay_core::error::{Error, Kind};
use walrelay_core::ledger::Ticket;
use walrelay_core::printable::printable;
use walrelay_core::route::Record;
use walrelay_core::sink::{Delivery, EnqueueError, Sink};

use super::BusSink;
use crate::config::Config;

/// Lines that may wait for the reader of standard output.
const LINES_MAX: usize = 1_024;
/// How soon the same record is offered again while that many wait.
const FULL_RETRY: Duration = Duration::from_millis(1);
/// Two sinks of one process write whole lines, one after the other.
static WRITES: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Writes each record as a line, and acks the record once the line is flushed. Made in a Tokio
/// runtime, which runs the task that writes: a reader that is slow delays acks and nothing else.
#[derive(Debug)]
pub struct StdoutSink {
    lines: Sender<Line>,
    deliveries: UnboundedReceiver<Delivery>,
    /// The task that writes, which ends with the sink.
    _writer: JoinSet<()>,
    full: bool,
}

#[derive(Debug)]
struct Line {
    ticket: Ticket,
    text: Vec<u8>,
}

/// A record as it is printed. Bytes that are not UTF-8 are an object with hexadecimal digits.
#[derive(Serialize)]
struct Printed<'a> {
    topic: &'a str,
    /// None leaves the partition to the key.
    partition: Option<i32>,
    key: Value,
    headers: Map<String, Value>,
    value: Value,
    timestamp_ms: Option<i64>,
}

impl StdoutSink {
    /// Writes to standard output.
    pub fn open() -> StdoutSink {
        StdoutSink::on(tokio::io::stdout())
    }

    fn on(output: impl AsyncWrite + Send + Unpin + 'static) -> StdoutSink {
        let (lines, queue) = channel(LINES_MAX);
        let (report, deliveries) = unbounded_channel();
        let writer = JoinSet::from_iter([write(queue, report, output)]);
        StdoutSink {
            lines,
            deliveries,
            _writer: writer,
            full: false,
        }
    }
}

impl Sink for StdoutSink {
    fn enqueue(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        let text = printed(record).map_err(EnqueueError::Refused)?;
        self.lines
            .try_send(Line { ticket, text })
            .map_err(|error| match error {
                TrySendError::Full(_) => {
                    self.full = true;
                    EnqueueError::Full
                }
                TrySendError::Closed(_) => EnqueueError::Finished,
            })
    }

    async fn deliveries(&mut self, into: &mut Vec<Delivery>) {
        let reported = self.deliveries.recv_many(into, LINES_MAX);
        let reports = if std::mem::take(&mut self.full) {
            timeout(FULL_RETRY, reported).await.ok()
        } else {
            Some(reported.await)
        };
        if reports == Some(0) {
            // The writer is gone, and has said why.
            std::future::pending().await
        }
    }
}

impl BusSink for StdoutSink {
    fn connect(_: &Config) -> Result<StdoutSink, Error> {
        Ok(StdoutSink::open())
    }
}

/// Writes all lines that are there at once, then acks them.
async fn write(
    mut queue: Receiver<Line>,
    report: UnboundedSender<Delivery>,
    mut output: impl AsyncWrite + Unpin,
) {
    let mut lines = Vec::new();
    while queue.recv_many(&mut lines, LINES_MAX).await > 0 {
        let text: Vec<u8> = lines.iter().flat_map(|line| &line.text).copied().collect();
        let written = async {
            let _alone = WRITES.lock().await;
            output.write_all(&text).await?;
            output.flush().await
        };
        let failed = written.await.err();
        for line in lines.drain(..) {
            let delivery = match &failed {
                None => Delivery::Acked(line.ticket),
                Some(error) => Delivery::Failed(line.ticket, unwritable(error)),
            };
            // Nobody listens where the sink is dropped.
            report.send(delivery).unwrap_or_default();
        }
        if failed.is_some() {
            return;
        }
    }
}

fn unwritable(error: &std::io::Error) -> Error {
    Error::new(
        Kind::Prerequisite,
        format!("standard output cannot be written to: {error}"),
    )
    .remedy(
        "start walrelay again with a reader that stays; it writes the events that are not \
                 confirmed",
    )
}

/// The line of a record.
pub(crate) fn printed(record: &Record<'_>) -> Result<Vec<u8>, Error> {
    let header = |(name, value): &(&str, Option<&[u8]>)| ((*name).to_owned(), json_of(*value));
    let printed = Printed {
        topic: record.topic,
        partition: record.partition,
        key: json_of(record.key),
        headers: record.headers.iter().map(header).collect(),
        value: json_of(record.value),
        timestamp_ms: record.timestamp_ms,
    };
    let line = serde_json::to_string(&printed).map_err(|error| Error::new(Kind::Bug, error))?;
    Ok((printable(&line).into_owned() + "\n").into_bytes())
}

/// Bytes as JSON: text, an object with hexadecimal digits, or `null`.
pub(crate) fn json_of(bytes: Option<&[u8]>) -> Value {
    let Some(bytes) = bytes else {
        return Value::Null;
    };
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            Value::Object(Map::from_iter([("hex".to_owned(), digits.into())]))
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt as _, BufReader, duplex};

    use super::*;

    fn record<'a>(key: &'a [u8], value: Option<&'a [u8]>) -> Record<'a> {
        const HEADERS: &[(&str, Option<&[u8]>)] = &[("id", Some(b"7")), ("empty", None)];
        Record {
            topic: "orders",
            key: Some(key),
            value,
            headers: HEADERS,
            partition: None,
            timestamp_ms: Some(5),
        }
    }

    #[tokio::test]
    async fn a_record_is_a_line_and_is_acked_once_the_line_is_written() {
        let (output, reader) = duplex(16);
        let mut sink = StdoutSink::on(output);
        sink.enqueue(&record(b"a\"b", Some(b"{\"n\":1}\n")), Ticket(1))
            .unwrap();
        sink.enqueue(&record(&[0xff, 0x01], None), Ticket(2))
            .unwrap();
        let mut reports = Vec::new();
        assert!(
            timeout(Duration::from_millis(50), sink.deliveries(&mut reports))
                .await
                .is_err(),
            "nobody has read it"
        );
        let mut lines = BufReader::new(reader).lines();
        let expected = [
            concat!(
                r#"{"topic":"orders","partition":null,"key":"a\"b","headers":{"empty":null,"#,
                r#""id":"7"},"value":"{\"n\":1}\n","timestamp_ms":5}"#
            ),
            concat!(
                r#"{"topic":"orders","partition":null,"key":{"hex":"ff01"},"#,
                r#""headers":{"empty":null,"id":"7"},"value":null,"timestamp_ms":5}"#
            ),
        ];
        for line in expected {
            assert_eq!(lines.next_line().await.unwrap().as_deref(), Some(line));
        }
        while reports.len() < 2 {
            sink.deliveries(&mut reports).await;
        }
        assert!(
            matches!(
                reports[..],
                [Delivery::Acked(Ticket(1)), Delivery::Acked(Ticket(2))]
            ),
            "{reports:?}"
        );
    }

    #[tokio::test]
    async fn a_full_queue_and_a_closed_output_are_reported() {
        let (output, reader) = duplex(1);
        let mut sink = StdoutSink::on(output);
        let mut taken = 0;
        let refused = loop {
            match sink.enqueue(&record(b"k", None), Ticket(taken)) {
                Ok(()) => taken += 1,
                Err(error) => break error,
            }
        };
        assert!(
            matches!(refused, EnqueueError::Full) && taken == LINES_MAX as u64,
            "{refused:?} {taken}"
        );
        let mut reports = Vec::new();
        sink.deliveries(&mut reports).await;
        assert!(reports.is_empty(), "it may be offered again");
        drop(reader);
        sink.deliveries(&mut reports).await;
        let Some(Delivery::Failed(Ticket(0), error)) = reports.first() else {
            panic!("{reports:?}")
        };
        assert!(
            error.kind().halts() && error.to_string().contains("standard output"),
            "{error}"
        );
        while !matches!(
            sink.enqueue(&record(b"k", None), Ticket(taken)),
            Err(EnqueueError::Finished)
        ) {
            tokio::task::yield_now().await;
        }
    }
}
