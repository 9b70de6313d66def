//! When a Kafka transaction takes no more events, and when it is committed. No I/O, and no clock of its own.
//!
//! A transaction begins with the first event after a commit. It *closes*, so that nothing is taken in any more, where it is
//! full, has been filled for long enough, or nothing follows; what it has is waited for, and then it is committed with the
//! position behind its last event. So a busy stream shares one commit among many events, and an idle one waits for none.

use std::time::Duration;

use crate::config::TransactionConfig;

/// Nothing follows where nothing came for this long. The rows of a backlog come some microseconds after each other; this is
/// what an event on an idle stream waits for nothing.
const QUIET: Duration = Duration::from_millis(2);

#[derive(Debug, Clone, Copy)]
struct Open {
    /// When it was first seen to be.
    began: Duration,
    /// When it was last seen to have grown.
    grew: Duration,
    /// Events enqueued in all then.
    enqueued: u64,
}

/// See the module's documentation. Times are since any fixed instant; events are counted since the producer began.
#[derive(Debug)]
pub(super) struct Transaction {
    max_events: u64,
    interval: Duration,
    filling_max: Duration,
    /// Events enqueued in all when the last one was committed.
    committed: u64,
    open: Option<Open>,
    closed: bool,
    committing: bool,
}

impl Transaction {
    /// None is open.
    pub(super) fn new(config: &TransactionConfig) -> Transaction {
        Transaction {
            max_events: config.max_events,
            interval: config.interval,
            filling_max: config.filling_max(),
            committed: 0,
            open: None,
            closed: false,
            committing: false,
        }
    }

    /// Whether another event may be enqueued behind those.
    #[inline]
    pub(super) fn takes(&self, enqueued: u64) -> bool {
        !self.closed && !self.committing && enqueued - self.committed < self.max_events
    }

    /// Whether events were enqueued that are not committed.
    pub(super) fn is_open(&self, enqueued: u64) -> bool {
        enqueued > self.committed
    }

    /// Looks whether it is to close. `inside` says that the last event's transaction in Postgres has not ended: its rest is
    /// on its way, and is taken in where it fits, so that seldom one is spread over several. `follows` says that there is
    /// more to be read.
    pub(super) fn look(&mut self, enqueued: u64, inside: bool, follows: bool, now: Duration) {
        if !self.is_open(enqueued) {
            return;
        }
        let open = self.open.get_or_insert(Open { began: now, grew: now, enqueued });
        if open.enqueued != enqueued || follows {
            (open.enqueued, open.grew) = (enqueued, now);
        }
        let (age, quiet) = (now.saturating_sub(open.began), now.saturating_sub(open.grew) >= QUIET);
        self.closed = self.closed
            || enqueued - self.committed >= self.max_events
            || age >= self.filling_max
            || !inside && (quiet || age >= self.interval);
    }

    /// Whether it is to be committed once everything in it is acked; `hurry` asks for it although it is not closed.
    pub(super) fn is_due(&self, enqueued: u64, hurry: bool) -> bool {
        self.is_open(enqueued) && !self.committing && (self.closed || hurry)
    }

    /// When [`Transaction::look`] may close it next, if time alone will.
    pub(super) fn wake_at(&self, inside: bool) -> Option<Duration> {
        let open = self.open.filter(|_| !self.closed && !self.committing)?;
        let last = open.began + self.filling_max;
        Some(if inside { last } else { last.min(open.began + self.interval).min(open.grew + QUIET) })
    }

    /// The commit begins, of a position alone where nothing is open.
    pub(super) fn commit_begun(&mut self) {
        self.committing = true;
    }

    /// It is done, for everything that was enqueued. Gives the events that were in it.
    pub(super) fn committed(&mut self, enqueued: u64) -> u64 {
        let events = enqueued - self.committed;
        (self.committed, self.open, self.closed, self.committing) = (enqueued, None, false, false);
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn transaction() -> Transaction {
        Transaction::new(&TransactionConfig {
            id_prefix: "t-".to_owned(),
            max_events: 10,
            interval: ms(100),
            timeout: ms(3_000),
        })
    }

    #[test]
    fn one_event_on_an_idle_stream_is_committed_as_soon_as_nothing_follows() {
        let mut transaction = transaction();
        transaction.look(0, false, false, ms(0));
        assert!(transaction.takes(0) && !transaction.is_due(0, true) && transaction.wake_at(false).is_none());
        transaction.look(1, false, false, ms(5));
        assert!(transaction.takes(1) && !transaction.is_due(1, false));
        assert_eq!(transaction.wake_at(false), Some(ms(5) + QUIET));
        transaction.look(1, false, false, ms(5) + QUIET);
        assert!(!transaction.takes(1) && transaction.is_due(1, false));
        transaction.commit_begun();
        assert!(!transaction.takes(1) && !transaction.is_due(1, true), "one commit at a time");
        transaction.committed(1);
        assert!(transaction.takes(1) && !transaction.is_open(1));
    }

    #[test]
    fn a_stream_that_never_pauses_closes_after_the_interval_and_one_that_is_full_at_once() {
        let mut transaction = transaction();
        for at in 1..=9 {
            transaction.look(at, false, false, ms(at));
            assert!(transaction.takes(at));
        }
        transaction.look(9, true, false, ms(101));
        assert!(transaction.takes(9), "the rest of a transaction is on its way");
        transaction.look(9, false, false, ms(101));
        assert!(!transaction.takes(9));
        transaction.commit_begun();
        transaction.committed(9);
        // Exactly so many, without a look in between.
        assert!(transaction.takes(18) && !transaction.takes(19));
        transaction.look(19, true, false, ms(102));
        assert!(transaction.is_due(19, false));
    }

    #[test]
    fn a_transaction_of_postgres_that_stalls_is_not_waited_for_longer_than_the_broker_allows() {
        let mut transaction = transaction();
        transaction.look(3, true, false, ms(0));
        transaction.look(3, true, false, ms(999));
        assert!(transaction.takes(3));
        assert_eq!(transaction.wake_at(true), Some(ms(1_000)));
        transaction.look(3, true, false, ms(1_000));
        assert!(transaction.is_due(3, false));
    }

    #[test]
    fn who_is_about_to_leave_commits_what_there_is() {
        let mut transaction = transaction();
        transaction.look(3, false, false, ms(0));
        assert!(transaction.is_due(3, true) && !transaction.is_due(3, false));
    }
}
