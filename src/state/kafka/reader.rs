//! Reads the topic once, from its beginning to the end it has now. Blocks; meant for a thread of its own.

use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use super::PARTITION;
use crate::error::{Error, Kind, Result};
use crate::sink::kafka::options::Options;
use crate::sink::kafka::topic_reader::{Isolation, TopicReader};

/// How long transactions of others are waited for.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// How often it is looked whether transactions of others have ended.
const OPEN_RETRY: Duration = Duration::from_millis(20);

/// The newest value under `key` below the partition's end at the time of the call; a tombstone is none.
pub(super) fn newest(options: Options, topic: &str, key: &[u8]) -> Result<Option<Vec<u8>>> {
    // No event waits for the topic.
    let refused =
        |error: Error| if error.kind() == Kind::TopicRefused { error.with_kind(Kind::KafkaRefused) } else { error };
    read_newest(options, topic, key).map_err(refused)
}

fn read_newest(options: Options, topic: &str, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let everything = TopicReader::open(options.clone(), Isolation::ReadUncommitted, None)?;
    let end = everything.span(topic, PARTITION)?.end;
    let reader = TopicReader::open(options, Isolation::ReadCommitted, None)?;
    let spans = [(PARTITION, extent(&reader, topic, end)?)].into();
    let mut newest = None;
    reader.read(topic, &spans, &mut |message| {
        if message.key == Some(key) {
            newest = message.value.map(<[u8]>::to_vec);
        }
        ControlFlow::Continue(())
    })?;
    Ok(newest)
}

/// Where the partition begins, and where it ends for readers of what is committed, once that is at least `end`.
///
/// Relays share the topic. What one has committed behind a transaction that another has open is hidden until that ends,
/// and an older record of ours is not to be taken for the newest.
fn extent(reader: &TopicReader, topic: &str, end: i64) -> Result<Range<i64>> {
    let began = Instant::now();
    let mut told = false;
    loop {
        let span = reader.span(topic, PARTITION)?;
        let high = span.end;
        if high >= end {
            return Ok(span);
        }
        if began.elapsed() > OPEN_TIMEOUT {
            let cause =
                format!("topic {topic} could not be read: somebody has a transaction open in it at offset {high}");
            return Err(Error::new(Kind::KafkaUnreachable, cause)
                .remedy(format!(
                    "it ends by its timeout, unless Kafka has lost it (KAFKA-20734): kafka-transactions.sh find-hanging lists \
                     such transactions, and kafka-transactions.sh abort --topic {topic} --partition {PARTITION} --start-offset \
                     {high} ends this one; see docs/exactly-once.md"
                )));
        }
        if !std::mem::replace(&mut told, true) {
            tracing::info!(topic, "somebody has a transaction open in the topic of the positions; waiting for its end");
        }
        std::thread::sleep(OPEN_RETRY);
    }
}
