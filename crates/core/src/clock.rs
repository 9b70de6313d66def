//! The wall clock, the two instants it is counted from, and milliseconds of durations.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// 2000-01-01 00:00 UTC, from where Postgres counts, in microseconds since the Unix epoch.
///
/// <https://www.postgresql.org/docs/current/protocol-replication.html#PROTOCOL-REPLICATION-XLOGDATA>
pub const POSTGRES_EPOCH_US: i64 = 946_684_800_000_000;

/// Microseconds since the Unix epoch, now. For people and for lags: it may jump either way.
pub fn now_us() -> i64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX)
}

/// Whole milliseconds; the greatest number for more than fit.
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
