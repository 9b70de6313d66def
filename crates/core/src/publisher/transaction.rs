//! When a transaction of the bus takes no more events, and when it is committed. No I/O, and no
//! clock of its own.
//!
//! A transaction begins with the first event after a commit. It *closes*, so that nothing is taken
//! in any more, where it is full, has been filled for long enough, or nothing follows; what it has
//! is waited for, and then it is committed with the position behind its last event. So a busy
//! stream shares one commit among many events, and an idle one commits at once.

use std::time::Duration;

use crate::config::TransactionConfig;

/// Nothing follows where nothing came for this long, the delay of an event on an idle stream. Rows
/// of a backlog come sooner.
const QUIET: Duration = Duration::from_millis(2);

#[derive(Debug, Clone, Copy)]
struct Filling {
    /// When it was first seen to be.
    began: Duration,
    /// When it was last seen to have grown.
    grew: Duration,
    /// Events in it then.
    events: u64,
}

/// See the module's documentation. Times are since any fixed instant; `T` is what is known of an
/// event.
#[derive(Debug)]
pub struct Transaction<T> {
    /// None where events are not committed with a position: then no transaction is ever open.
    config: Option<TransactionConfig>,
    /// Events enqueued since the last commit.
    events: u64,
    filling: Option<Filling>,
    closed: bool,
    /// Whether a commit is under way, of a position alone where nothing is open: no event may be
    /// enqueued behind it.
    pub committing: bool,
    /// Events that are delivered and not committed: what is known of them counts when they come
    /// again.
    pub(crate) uncommitted: Vec<T>,
}

impl<T> Transaction<T> {
    /// None is open.
    pub fn new(config: Option<TransactionConfig>) -> Transaction<T> {
        let uncommitted = Vec::new();
        Transaction {
            config,
            events: 0,
            filling: None,
            closed: false,
            committing: false,
            uncommitted,
        }
    }

    /// Whether events are committed together with a position at all.
    pub fn is_used(&self) -> bool {
        self.config.is_some()
    }

    /// An event was enqueued.
    #[inline]
    pub fn enqueued(&mut self) {
        self.events += u64::from(self.config.is_some());
    }

    /// Whether another event may be enqueued.
    #[inline]
    pub fn takes(&self) -> bool {
        self.config.as_ref().is_none_or(|config| {
            !self.closed && !self.committing && self.events < config.max_events
        })
    }

    /// Whether events were enqueued that become visible with a position that is not stored yet.
    pub fn is_open(&self) -> bool {
        self.events > 0
    }

    /// Looks whether it is to close. `inside` says that the last event's transaction in Postgres
    /// has not ended: its rest is on its way, and is taken in where it fits. `follows` says that
    /// there is more to be read.
    pub fn look(&mut self, inside: bool, follows: bool, now: Duration) {
        let (Some(config), true) = (&self.config, self.is_open()) else {
            return;
        };
        let filling = self.filling.get_or_insert(Filling {
            began: now,
            grew: now,
            events: self.events,
        });
        if filling.events != self.events || follows {
            filling.events = self.events;
            filling.grew = now;
        }
        let age = now.saturating_sub(filling.began);
        let quiet = now.saturating_sub(filling.grew) >= QUIET;
        self.closed = self.closed
            || self.events >= config.max_events
            || age >= config.filling_max()
            || !inside && (quiet || age >= config.interval);
    }

    /// Whether it is to be committed once everything in it is acked; `hurry` asks for it although
    /// it is not closed.
    pub fn is_due(&self, hurry: bool) -> bool {
        self.is_open() && !self.committing && (self.closed || hurry)
    }

    /// When [`Transaction::look`] may close it next, if time alone will.
    pub fn wake_at(&self, inside: bool) -> Option<Duration> {
        let (config, filling) = self.config.as_ref().zip(self.filling)?;
        if self.closed || self.committing {
            return None;
        }
        let last = filling.began + config.filling_max();
        Some(if inside {
            last
        } else {
            last.min(filling.began + config.interval)
                .min(filling.grew + QUIET)
        })
    }

    /// It is done, for everything that was enqueued. Gives the events that were in it.
    pub fn committed(&mut self) -> u64 {
        self.filling = None;
        self.closed = false;
        self.committing = false;
        std::mem::take(&mut self.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn transaction() -> Transaction<()> {
        Transaction::new(Some(TransactionConfig {
            id_prefix: "t-".to_owned(),
            max_events: 10,
            interval: ms(100),
            timeout: ms(3_000),
        }))
    }

    /// With these events in it.
    fn of(events: u64) -> Transaction<()> {
        Transaction {
            events,
            ..transaction()
        }
    }

    #[test]
    fn an_event_on_an_idle_stream_is_committed_as_soon_as_nothing_follows() {
        let mut transaction = transaction();
        transaction.look(false, false, ms(0));
        assert!(
            transaction.takes()
                && !transaction.is_due(true)
                && transaction.wake_at(false).is_none()
        );
        transaction.enqueued();
        transaction.look(false, false, ms(5));
        assert!(transaction.takes() && !transaction.is_due(false));
        assert_eq!(transaction.wake_at(false), Some(ms(5) + QUIET));
        transaction.look(false, false, ms(5) + QUIET);
        assert!(!transaction.takes() && transaction.is_due(false));
        transaction.committing = true;
        assert!(
            !transaction.takes() && !transaction.is_due(true),
            "one commit at a time"
        );
        assert_eq!(transaction.committed(), 1);
        assert!(transaction.takes() && !transaction.is_open());
    }

    #[test]
    fn a_transaction_closes_after_the_interval_or_at_once_when_full() {
        let mut transaction = transaction();
        for at in 1..=9 {
            transaction.enqueued();
            transaction.look(false, false, ms(at));
            assert!(transaction.takes());
        }
        transaction.look(true, false, ms(101));
        assert!(
            transaction.takes(),
            "the rest of a transaction is on its way"
        );
        transaction.look(false, false, ms(101));
        assert!(!transaction.takes());
        transaction.committing = true;
        assert_eq!(transaction.committed(), 9);
        // Exactly so many, without a look in between.
        assert!(of(9).takes());
        let mut full = of(10);
        assert!(!full.takes());
        full.look(true, false, ms(102));
        assert!(full.is_due(false));
    }

    #[test]
    fn a_stalled_postgres_transaction_delays_the_commit_by_a_bounded_time() {
        let mut transaction = of(3);
        transaction.look(true, false, ms(0));
        transaction.look(true, false, ms(999));
        assert!(
            transaction.takes() && transaction.is_due(true),
            "a relay that stops commits what there is"
        );
        assert_eq!(transaction.wake_at(true), Some(ms(1_000)));
        transaction.look(true, false, ms(1_000));
        assert!(transaction.is_due(false));
    }
}
