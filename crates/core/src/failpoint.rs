//! Points between received and confirmed where a test can stop, slow or kill the process.
//!
//! Compiled in only with the feature `failpoints`. `FAILPOINTS="stored=3*off->return"` kills the
//! process, as `kill -9` would, when it reaches `stored` for the fourth time. `sleep(100)` instead
//! of `return` slows it. `return(FILE)` creates the file and waits until a test removes it.
//! `tests/live/points.rs` kills the process at each point. `FAILPOINTS_REACHED` names a file to
//! which a process appends each point that it reaches, once.

/// Points of each event, in order.
pub const POINTS: [&str; 8] = [
    "received",
    "assembled",
    "enqueued",
    "acked",
    "storing",
    "stored",
    "confirming",
    "confirmed",
];

/// Points of the slot and the table's lease, before the position is read; of rows: read from the
/// table, marked, deleted; and of parked events.
pub(crate) const TABLE_POINTS: [&str; 12] = [
    "owned",
    "leased",
    "intended",
    "slot-made",
    "read",
    "progress",
    "marking",
    "marked",
    "caught-up",
    "swept",
    "detached",
    "retried",
];

/// The point where the open transaction of the bus contains the position and is not committed.
pub const TRANSACTION_POINTS: [&str; 1] = ["committing"];

/// Arms the points that `FAILPOINTS` names, until the process ends. Without the feature, nothing
/// reads the variable.
///
/// # Panics
/// The variable is not a list of points and actions.
pub fn arm() {
    // Dropping the scenario would disarm every point.
    #[cfg(feature = "failpoints")]
    std::mem::forget(fail::FailScenario::setup());
}

/// Runs the action of `point`, if it is armed.
#[inline]
pub fn reached(point: &str) {
    let named = POINTS
        .iter()
        .chain(&TABLE_POINTS)
        .chain(&TRANSACTION_POINTS)
        .any(|named| *named == point);
    debug_assert!(named, "{point} is not a named point");
    #[cfg(feature = "failpoints")]
    note(point);
    fail::fail_point!(point, |file: Option<String>| match file {
        None => std::process::abort(),
        Some(file) => hold(std::path::Path::new(&file)),
    });
}

/// Appends the point to the file of the reached ones, unless it is there.
#[cfg(feature = "failpoints")]
fn note(point: &str) {
    use std::{collections::BTreeSet, fs::File, io::Write, sync::Mutex};
    static REACHED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if let Some(path) = std::env::var_os("FAILPOINTS_REACHED")
        && let Ok(mut reached) = REACHED.lock()
        && !reached.contains(point)
    {
        let file = File::options().append(true).create(true).open(path);
        if file.is_ok_and(|mut file| file.write_all(format!("{point}\n").as_bytes()).is_ok()) {
            reached.insert(point.to_owned());
        }
    }
}

/// Creates the file, and waits until it is removed.
#[cfg(feature = "failpoints")]
fn hold(file: &std::path::Path) {
    let made = std::fs::write(file, "");
    while made.is_ok() && file.exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
