//! Numbers that columns hold: a partition, a time.

use crate::event::Row;
use crate::template::timestamp;

/// OID of `bigint`, which holds milliseconds.
const INT8: u32 = 20;
/// librdkafka's limit, `RD_KAFKAP_PARTITIONS_MAX`.
const PARTITIONS_MAX: i64 = 100_000;

/// The partition in this place.
pub(super) fn partition(row: &Row<'_>, place: usize) -> Option<i64> {
    let number: i64 = std::str::from_utf8(row.get(place)?).ok()?.parse().ok()?;
    (0..PARTITIONS_MAX).contains(&number).then_some(number)
}

/// The time in this place in milliseconds since the Unix epoch: a `bigint` as it is, anything else as a timestamp.
pub(super) fn timestamp_ms(row: &Row<'_>, place: usize) -> Option<i64> {
    let text = std::str::from_utf8(row.get(place)?).ok()?;
    let ms = if row.type_oid(place) == INT8 { text.parse().ok()? } else { timestamp(text)?.as_millisecond() };
    // Kafka knows no time before 1970.
    (ms >= 0).then_some(ms)
}
