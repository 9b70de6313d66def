//! Points between received and confirmed where a test may stop, slow or kill the process.
//!
//! Built in with the feature `failpoints` only. `FAILPOINTS="stored=3*off->return"` kills the process, as `kill -9`
//! would, the fourth time it gets to `stored`; `sleep(100)` in place of `return` slows it. `tests/live/points.rs` kills
//! it at each.

/// Every point, in the order an event passes them.
pub const POINTS: [&str; 8] =
    ["received", "assembled", "enqueued", "acked", "storing", "stored", "confirming", "confirmed"];

/// Points on the way of rows that are read from the table, of rows that are marked, of those that go, and of events that
/// waited.
pub const TABLE_POINTS: [&str; 10] =
    ["intended", "slot-made", "read", "progress", "marking", "marked", "caught-up", "swept", "detached", "retried"];

/// Where the position is in the open transaction, and nothing is committed yet.
pub const TRANSACTION_POINTS: [&str; 1] = ["committing"];

/// Arms what `FAILPOINTS` names, for as long as the process lives. Nothing else reads the variable, and without the
/// feature nothing does.
///
/// # Panics
/// What is in the variable is no list of points and actions.
pub fn arm() {
    // Dropping it would disarm every point.
    #[cfg(feature = "failpoints")]
    std::mem::forget(fail::FailScenario::setup());
}

/// The process got to `point`.
#[inline]
pub(crate) fn reached(point: &str) {
    let named = POINTS.iter().chain(&TABLE_POINTS).chain(&TRANSACTION_POINTS).any(|named| *named == point);
    debug_assert!(named, "{point} is not a named point");
    fail::fail_point!(point, |_| {
        std::process::abort();
    });
}
