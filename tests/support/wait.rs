//! Waiting for a condition, never for a time.

use std::fmt::Debug;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take that is waited for and not measured, on two cores that others use as well.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Pauses between two looks: an eighth of what was waited so far, within these. A look may cost a session or a client.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// The same where something must not happen: what comes and goes again is to be seen.
const STEADY_PAUSE: Duration = Duration::from_millis(20);

/// Tells threads of a scope to end, however the one that holds this ends: the scope waits for them.
pub(crate) struct Stopped<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls `look` until it gives something or `deadline` has passed.
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

/// Calls `look` until what it gives satisfies `enough`; panics at the caller with the last value otherwise.
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
    found.unwrap_or_else(|| panic!("{caller}: not within {deadline:?}: {what}; last seen: {last:?}"))
}

/// Shows that a condition holds for all of `period`: the only wait for a time, for what must *not* happen.
#[track_caller]
pub(crate) fn throughout(what: &str, period: Duration, mut holds: impl FnMut() -> bool) {
    let caller = Location::caller();
    let started = Instant::now();
    loop {
        assert!(holds(), "{caller}: did not hold for {period:?}: {what}");
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
    let failure =
        std::panic::catch_unwind(|| eventually("never", Duration::from_millis(30), || 42, |_| false)).unwrap_err();
    let text = failure.downcast_ref::<String>().unwrap();
    assert!(text.contains("wait.rs") && text.contains("never") && text.contains("42"), "{text}");
}
