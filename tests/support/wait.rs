//! Waits for a condition, never for a time.

use std::fmt::Debug;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use walrelay_lab::verify::Findings;

/// The time limit of every wait without a limit of its own, on two cores that others use as well.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// The pause between two checks is an eighth of the time so far, within these bounds. A check may
/// cost a session.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// The pause where a condition must not occur, so that a short occurrence is noticed.
const STEADY_PAUSE: Duration = Duration::from_millis(20);

/// Makes the threads of a scope end when it is dropped, also by a panic: the scope waits for them.
pub(crate) struct Stopped<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls `look` until it returns a value or `deadline` has passed.
pub(crate) fn until<T>(deadline: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if started.elapsed() >= deadline {
            return None;
        }
        std::thread::sleep((started.elapsed() / 8).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
    }
}

/// Calls `look` until its value satisfies `enough`; after `deadline`, panics at the caller with the
/// last value.
#[track_caller]
pub(crate) fn eventually<T: Debug>(
    what: &str,
    deadline: Duration,
    mut look: impl FnMut() -> T,
    enough: impl Fn(&T) -> bool,
) -> T {
    let caller = Location::caller();
    let mut last = None;
    let found = until(deadline, || {
        let value = look();
        if enough(&value) {
            return Some(value);
        }
        last = Some(value);
        None
    });
    found
        .unwrap_or_else(|| panic!("{caller}: not within {deadline:?}: {what}; last seen: {last:?}"))
}

/// Waits until a count is at `goal`, however long that takes. Panics at the caller when the count
/// has not grown for [`LIMIT`]. For backlogs: a slow machine makes them longer.
#[track_caller]
pub(crate) fn grown(what: &str, goal: i64, count: impl FnMut() -> i64) {
    let most = most(goal, count);
    assert!(most >= goal, "{what}: {most} of {goal}, and no more come");
}

/// The largest count, at `goal` or when it has not grown for [`LIMIT`].
fn most(goal: i64, mut count: impl FnMut() -> i64) -> i64 {
    let mut most = i64::MIN;
    let mut since = Instant::now();
    until(Duration::MAX, || {
        let now = count();
        if now > most {
            most = now;
            since = Instant::now();
        }
        (most >= goal || since.elapsed() >= LIMIT).then_some(())
    });
    most
}

/// Waits until no row is lost, however long that takes while fewer are, and gives the findings,
/// which are sound.
#[track_caller]
pub(crate) fn none_lost(mut look: impl FnMut() -> Findings) -> Findings {
    let mut found = Findings::default();
    most(0, || {
        found = look();
        -i64::try_from(found.lost.len()).expect("a count")
    });
    found.assert_sound();
    found
}

/// Checks that a condition holds during all of `period`. The only wait for a time: for what must
/// *not* happen.
#[track_caller]
pub(crate) fn throughout(what: &str, period: Duration, mut holds: impl FnMut() -> bool) {
    let caller = Location::caller();
    let started = Instant::now();
    loop {
        assert!(
            holds(),
            "{caller}: did not hold for {period:?}, but for {:?}: {what}",
            started.elapsed()
        );
        if started.elapsed() >= period {
            return;
        }
        std::thread::sleep(STEADY_PAUSE);
    }
}

#[test]
fn a_wait_ends_with_what_was_found() {
    let mut looks = 0;
    let seen = eventually(
        "three looks",
        Duration::from_secs(5),
        || {
            looks += 1;
            looks
        },
        |looks| *looks == 3,
    );
    assert_eq!(seen, 3);
}

#[test]
fn a_wait_that_fails_names_the_caller_and_the_last_value() {
    let failure = std::panic::catch_unwind(|| {
        eventually("never", Duration::from_millis(30), || 42, |_| false)
    })
    .unwrap_err();
    let text = failure.downcast_ref::<String>().unwrap();
    assert!(
        text.contains("wait.rs") && text.contains("never") && text.contains("42"),
        "{text}"
    );
}
