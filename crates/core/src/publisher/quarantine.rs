//! Events that the broker refuses, found one by one, and topics that refuse whatever is sent to
//! them. No I/O.
//!
//! A broker that refuses a record refuses the whole batch, and says the same of each record in it;
//! and after the first refusal the producer is finished. So each of them is a *suspect*. The next
//! producer sends suspects isolated: one that is acked is cleared, and one that is refused while it
//! is isolated is given up. Where that refusal finished a producer all the same, the event is
//! *rejected*: it is given up when it comes again.
//!
//! Events that are refused come in numbers. A record that is like a refused one is isolated before
//! it was ever refused, so that it finishes no producer and takes no others with it, until enough
//! such records were acked in a row.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::config::RetryConfig;
use crate::error::{Error, Kind};
use crate::event::{Event, RowId, Via};
use crate::position::Lsn;
use crate::route::{OwnedRecord, Record};

/// The most remembered events. A forgotten one is found again.
const EVENTS_MAX: usize = 100_000;

/// The identity of an event: its row, and its place if it came by the slot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EventId {
    /// Its row. Two events have the same where an id is used again.
    pub row: RowId,
    /// LSN of its commit and index in the transaction, where it came by the slot.
    at: Option<(Lsn, u64)>,
}

impl EventId {
    /// Of this event.
    pub fn of(event: &Event<'_>) -> EventId {
        let place = event.place;
        let at = (place.via == Via::Slot).then_some((place.commit_lsn, place.index));
        EventId {
            row: event.row_id(),
            at,
        }
    }
}

/// Why an event is given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The broker's error, or the reason why the event has no record.
    pub error: Error,
    /// Its dead letter was refused as well, for its size alone, and goes without the value.
    pub(crate) without_value: bool,
}

impl Verdict {
    /// The event is given up for this error.
    pub fn of(error: Error) -> Verdict {
        Verdict {
            error,
            without_value: false,
        }
    }
}

/// Topics of which it is remembered what they refuse.
const TOPICS_MAX: usize = 1_000;
/// So many of a kind are taken in a row before the next one is no longer suspect.
const TAKEN_MAX: u32 = 100;

fn bytes_of(record: &Record<'_>) -> usize {
    record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len)
}

#[derive(Debug, Clone)]
struct Refused {
    kind: Kind,
    /// The smallest.
    bytes: usize,
    keyed: bool,
    /// How many like it were taken since.
    taken: u32,
}

impl Refused {
    fn is_for_size(&self) -> bool {
        self.kind == Kind::RecordTooLarge
    }

    fn is_like(&self, record: &Record<'_>) -> bool {
        if self.is_for_size() {
            bytes_of(record) >= self.bytes
        } else {
            record.key.is_some() == self.keyed
        }
    }

    /// One like it was taken. Whether the next one is suspect.
    fn is_still_refused(&mut self) -> bool {
        self.taken += 1;
        self.taken < TAKEN_MAX
    }
}

/// An event that is given up when it comes, and when it comes again.
#[derive(Debug, Clone)]
struct Rejected {
    verdict: Verdict,
    /// None until it was given up. Whether its dead letter is sent again: with nothing behind it.
    again: Option<bool>,
}

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub struct Quarantine {
    suspects: HashSet<EventId>,
    rejected: HashMap<EventId, Rejected>,
    refusals: HashMap<String, Vec<Refused>>,
    /// Whether a refusal for size is being looked into, and how often that was in vain: each record
    /// was taken alone.
    looking: bool,
    /// How often a batch was searched and no record was to blame.
    pub in_vain: u64,
    /// How often something was learned of events.
    learned: u64,
    /// Topics that refuse whatever is sent to them.
    pub topics: Topics,
}

impl Quarantine {
    /// All knowledge, for another producer that begins with nothing in flight.
    pub fn take_over(&mut self) -> Quarantine {
        let mut quarantine = std::mem::take(self);
        quarantine.begin();
        quarantine
    }

    fn begin(&mut self) {
        if self.suspects.len() + self.rejected.len() > EVENTS_MAX {
            self.suspects.clear();
            self.rejected.clear();
        }
    }

    /// How often something was learned of events or topics: with each time it takes fewer producers
    /// to know all.
    pub fn learned(&self) -> u64 {
        self.learned + self.topics.learned
    }

    /// Why this event is given up, if it is.
    pub fn verdict(&self, id: &EventId) -> Option<&Verdict> {
        self.rejected.get(id).map(|rejected| &rejected.verdict)
    }

    /// Whether this event has to be in flight alone.
    #[inline]
    pub(crate) fn is_suspect(&self, id: &EventId, record: &Record<'_>) -> bool {
        !(self.suspects.is_empty() && self.refusals.is_empty())
            && (self.suspects.contains(id) || self.is_like(record))
    }

    fn is_like(&self, record: &Record<'_>) -> bool {
        let refused = self.refusals.get(record.topic);
        refused.is_some_and(|refused| refused.iter().any(|refused| refused.is_like(record)))
    }

    /// This record was acked while it was isolated.
    pub(crate) fn took_isolated(&mut self, record: &Record<'_>) {
        let Some(refused) = self.refusals.get_mut(record.topic) else {
            return;
        };
        refused.retain_mut(|refused| !refused.is_like(record) || refused.is_still_refused());
        if refused.is_empty() {
            self.refusals.remove(record.topic);
        }
    }

    /// This event was refused while it was isolated, the producer goes on, and the event is given
    /// up now.
    pub(crate) fn refused_isolated(&mut self, id: &EventId, record: &OwnedRecord, error: &Error) {
        self.learned += 1;
        self.suspects.remove(id);
        self.note_refusal(record, error);
    }

    /// Records like this one are isolated from now on.
    fn note_refusal(&mut self, record: &OwnedRecord, error: &Error) {
        self.looking = false;
        if self.refusals.len() >= TOPICS_MAX {
            self.refusals.clear();
        }
        let kind = error.kind();
        record.with_record(|record| {
            let bytes = bytes_of(record);
            let keyed = record.key.is_some();
            let refused = self.refusals.entry(record.topic.to_owned()).or_default();
            let same = |refused: &&mut Refused| {
                refused.kind == kind && (refused.is_for_size() || refused.keyed == keyed)
            };
            match refused.iter_mut().find(same) {
                Some(refused) => (refused.bytes, refused.taken) = (refused.bytes.min(bytes), 0),
                None => refused.push(Refused {
                    kind,
                    bytes,
                    keyed,
                    taken: 0,
                }),
            }
        });
    }

    /// It was delivered, or its dead letter was, and does not come again by itself.
    pub fn delivered(&mut self, id: &EventId) {
        if self.suspects.remove(id) && self.suspects.is_empty() {
            self.in_vain += u64::from(std::mem::take(&mut self.looking));
        }
        // Where it comes again, somebody wants it tried again.
        self.forget(id);
    }

    /// It was given up, and nothing of it is in flight.
    pub fn forget(&mut self, id: &EventId) {
        self.rejected.remove(id);
    }

    /// The broker refused this one, which finished the producer; `isolated`, where nothing else was
    /// in flight. Whether it is known from now on what to do when the event comes again.
    pub fn refused(&mut self, id: &EventId, isolated: Option<&OwnedRecord>, error: &Error) -> bool {
        self.learned += 1;
        if let Some(Rejected { verdict, again }) = self.rejected.get_mut(id) {
            // That was its dead letter. Only its size is a reason to send less of it, and others in
            // its batch may be why.
            if error.kind() != Kind::RecordTooLarge || verdict.without_value {
                return false;
            }
            verdict.without_value = *again == Some(true);
            return true;
        }
        if let Some(record) = isolated {
            self.suspects.remove(id);
            self.rejected.insert(
                id.clone(),
                Rejected {
                    verdict: Verdict::of(error.clone()),
                    again: None,
                },
            );
            self.note_refusal(record, error);
        } else {
            self.looking |= error.kind() == Kind::RecordTooLarge;
            self.suspects.insert(id.clone());
        }
        true
    }

    /// The next refusal is of a record that was sent with others.
    pub(crate) fn with_others(&mut self) {
        self.rejected
            .values_mut()
            .for_each(|rejected| rejected.again = rejected.again.map(|_| false));
    }

    /// It is given up for this reason, and again where it comes again: what is refused of it from
    /// now on is its dead letter. Whether it was before, and is not delivered or skipped for good.
    pub fn give_up(&mut self, id: &EventId, verdict: &Verdict) -> bool {
        let new = || Rejected {
            verdict: verdict.clone(),
            again: None,
        };
        let rejected = self.rejected.entry(id.clone()).or_insert_with(new);
        let again = rejected.again.is_some();
        rejected.again = Some(again);
        again
    }
}

/// Longer than a server and its client take to find out that a topic refuses.
const TRY: Duration = Duration::from_secs(60);
/// Topics remembered: rows make them.
const REFUSING_MAX: usize = 10_000;

/// Topics that refuse whatever is sent: how often, when each is tried again, and for which of them
/// events are given up.
#[derive(Debug, Clone, Default)]
pub struct Topics {
    /// Topics that refused a record and took none since.
    refusing: HashMap<String, Refusing>,
    /// Topics whose events are given up without a try, and for how long.
    given_up: HashMap<String, GivenUp>,
    /// How often a topic was given up.
    learned: u64,
}

#[derive(Debug, Clone, Copy)]
struct Refusing {
    tries: u32,
    last: Instant,
    /// Whether an event for it is tried again, however long it takes to come to that.
    is_tried: bool,
}

#[derive(Debug, Clone)]
struct GivenUp {
    error: Error,
    spell: Window,
}

/// For how long events for a topic are given up without a try.
#[derive(Debug, Clone, Copy)]
enum Window {
    /// For one event.
    Once,
    /// For so long from the first of them on: to come to it may take longer than that.
    For(Duration),
    Until(Instant),
}

impl Topics {
    /// `topic` refused a record. Gives how often it did in a row, and how long to wait before the
    /// next try; no wait where it was tried often enough. A topic whose events are given up starts
    /// anew after a while.
    pub fn refused(
        &mut self,
        topic: &str,
        retry: &RetryConfig,
        now: Instant,
        chance: f64,
    ) -> (u32, Option<Duration>) {
        if self.refusing.len() >= REFUSING_MAX {
            self.refusing.clear();
        }
        let before = self.refusing.get(topic);
        let before =
            before.filter(|of| of.is_tried || now.duration_since(of.last) < 2 * retry.cap + TRY);
        let tries = before.map_or(0, |of| of.tries).saturating_add(1);
        let wait = retry.wait(tries, chance);
        self.refusing.insert(
            topic.to_owned(),
            Refusing {
                tries,
                last: now,
                is_tried: wait.is_some(),
            },
        );
        (tries, wait)
    }

    /// The name of `topic`, where it refused a record and took none since.
    #[inline]
    pub fn refusing(&self, topic: &str) -> Option<String> {
        if self.refusing.is_empty() {
            return None;
        }
        self.refusing
            .get_key_value(topic)
            .map(|(topic, _)| topic.clone())
    }

    /// `topic` took a record. Whether it refused one before.
    pub fn took(&mut self, topic: &str) -> bool {
        self.refusing.remove(topic).is_some()
    }

    /// The next event for `topic` is given up for this reason, and so are all others for so long
    /// from then on.
    pub fn give_up(&mut self, topic: &str, mut error: Error, lasting: Duration) {
        error.attempts = self.refusing.get(topic).map_or(1, |of| of.tries);
        self.note(
            topic,
            GivenUp {
                error,
                spell: Window::For(lasting),
            },
        );
    }

    /// The next event for `topic` is given up for this reason, and the table of parked events
    /// decides on others. Whether it is new.
    pub(crate) fn give_up_next(&mut self, topic: &str, error: Error) -> bool {
        self.note(
            topic,
            GivenUp {
                error,
                spell: Window::Once,
            },
        )
    }

    fn note(&mut self, topic: &str, given_up: GivenUp) -> bool {
        self.learned += 1;
        self.given_up.insert(topic.to_owned(), given_up).is_none()
    }

    /// Why an event for `topic` is given up now, if it is: where `suffices` says that the topic was
    /// tried often enough for it. Where it was not, the event is tried, and what then becomes of
    /// the topic is learned anew.
    pub fn given_up(
        &mut self,
        topic: &str,
        now: Instant,
        suffices: impl FnOnce(u32) -> bool,
    ) -> Option<Error> {
        if self.given_up.is_empty() {
            return None;
        }
        let GivenUp { error, spell } = self.given_up.get_mut(topic)?;
        let is_over = match spell {
            Window::Once => return self.given_up.remove(topic).map(|given_up| given_up.error),
            Window::For(_) => false,
            Window::Until(until) => now >= *until,
        };
        if is_over || !suffices(error.attempts) {
            self.given_up.remove(topic);
            return None;
        }
        if let Window::For(lasting) = *spell {
            *spell = Window::Until(now + lasting);
        }
        Some(error.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: u8) -> EventId {
        EventId {
            row: RowId {
                outbox: 0,
                key: vec![number],
            },
            at: None,
        }
    }

    fn record(bytes: usize) -> OwnedRecord {
        of_key(Some(b""), bytes)
    }

    fn of_key(key: Option<&[u8]>, bytes: usize) -> OwnedRecord {
        let value = vec![b'x'; bytes];
        OwnedRecord::of(&Record {
            topic: "orders",
            key,
            value: Some(&value),
            ..Record::default()
        })
    }

    fn took(quarantine: &mut Quarantine, bytes: usize) {
        record(bytes).with_record(|record| quarantine.took_isolated(record));
    }

    fn suspect(quarantine: &Quarantine, id: EventId) -> bool {
        // Whatever topics refuse.
        record(1).with_record(|record| {
            quarantine.is_suspect(
                &id,
                &Record {
                    topic: "mail",
                    ..*record
                },
            )
        })
    }

    fn error(what: &str) -> Error {
        Error::new(Kind::Record, what)
    }

    fn too_large() -> Error {
        Error::new(Kind::RecordTooLarge, "too large")
    }

    #[test]
    fn of_a_batch_only_what_is_refused_alone_is_rejected() {
        let mut quarantine = Quarantine::default();
        assert!([2, 3].iter().all(|number| quarantine.refused(
            &row(*number),
            None,
            &error("large")
        )));
        quarantine.begin();
        assert!(
            !suspect(&quarantine, row(1))
                && suspect(&quarantine, row(2))
                && suspect(&quarantine, row(3))
        );
        took(&mut quarantine, 10);
        quarantine.delivered(&row(2));
        assert!(!suspect(&quarantine, row(2)));
        assert!(quarantine.refused(&row(3), Some(&record(20)), &error("too large")));
        quarantine.begin();
        assert!(!suspect(&quarantine, row(3)));
        assert_eq!(
            quarantine
                .verdict(&row(3))
                .map(|verdict| verdict.error.cause()),
            Some("too large")
        );
        assert_eq!(quarantine.verdict(&row(2)), None);
    }

    #[test]
    fn a_batch_of_which_each_record_is_taken_alone_was_too_large_itself() {
        for (bad, in_vain) in [(None, 1), (Some(1), 0)] {
            let mut quarantine = Quarantine::default();
            for number in 0..3 {
                assert!(quarantine.refused(&row(number), None, &too_large()));
            }
            quarantine.begin();
            for number in 0..3 {
                if bad == Some(number) {
                    quarantine.refused_isolated(&row(number), &record(10), &too_large());
                    continue;
                }
                took(&mut quarantine, 10);
                quarantine.delivered(&row(number));
            }
            assert_eq!(quarantine.in_vain, in_vain);
        }
    }

    #[test]
    fn a_dead_letter_that_is_too_large_without_others_goes_without_its_value_and_then_not_at_all() {
        let mut quarantine = Quarantine::default();
        quarantine.give_up(&row(1), &Verdict::of(error("large")));
        assert!(!quarantine.refused(&row(1), None, &error("invalid")));
        assert!(
            !quarantine.verdict(&row(1)).unwrap().without_value,
            "only its size is a reason"
        );
        quarantine = Quarantine::default();
        assert!(quarantine.refused(&row(1), Some(&record(20)), &error("large")));
        // With what may be sent behind it, with what was refused too, alone, and without its value.
        let tries = [
            (false, true, false),
            (true, true, false),
            (false, true, true),
            (false, false, true),
        ];
        for (with_others, is_known, without_value) in tries {
            quarantine.begin();
            let verdict = quarantine.verdict(&row(1)).unwrap().clone();
            quarantine.give_up(&row(1), &verdict);
            if with_others {
                quarantine.with_others();
            }
            assert_eq!(quarantine.refused(&row(1), None, &too_large()), is_known);
            assert_eq!(
                quarantine.verdict(&row(1)).unwrap().without_value,
                without_value
            );
        }
        quarantine.delivered(&row(1));
        assert_eq!(
            quarantine.verdict(&row(1)),
            None,
            "when it comes again, it is tried again"
        );
    }

    #[test]
    fn what_is_as_large_as_what_was_refused_is_suspect_until_enough_was_taken() {
        let mut quarantine = Quarantine::default();
        let sized = |of: &Quarantine, bytes| {
            record(bytes).with_record(|record| of.is_suspect(&row(9), record))
        };
        assert!(!sized(&quarantine, 1_000));
        for bytes in [1_000, 700, 900] {
            quarantine.refused_isolated(&row(1), &record(bytes), &too_large());
            assert!(!suspect(&quarantine, row(1)));
        }
        assert!(sized(&quarantine, 700) && !sized(&quarantine, 699));
        quarantine.begin();
        for number in 0..TAKEN_MAX {
            assert!(sized(&quarantine, 800), "{number}");
            took(&mut quarantine, 800);
        }
        assert!(!sized(&quarantine, 1_000));
    }

    #[test]
    fn of_a_topic_that_refuses_records_without_a_key_only_those_are_suspect() {
        let mut quarantine = Quarantine::default();
        quarantine.refused_isolated(&row(1), &of_key(None, 2), &error("no key"));
        let is_suspect =
            |key| of_key(key, 2).with_record(|record| quarantine.is_suspect(&row(2), record));
        assert!(is_suspect(None) && !is_suspect(Some(b"k")));
        // Refused alone, and so no suspect any more, is the row itself.
        assert!(!suspect(&quarantine, row(1)));
    }

    #[test]
    fn another_event_of_the_same_id_is_judged_by_itself() {
        let at = |commit_lsn, index| EventId {
            at: Some((Lsn::new(commit_lsn), index)),
            ..row(7)
        };
        let mut quarantine = Quarantine::default();
        assert!(quarantine.refused(&at(100, 0), Some(&record(20)), &error("large")));
        assert!(quarantine.refused(&at(200, 3), None, &error("with another")));
        quarantine.begin();
        assert!(quarantine.verdict(&at(100, 0)).is_some() && suspect(&quarantine, at(200, 3)));
        for other in [at(100, 1), at(300, 0)] {
            assert!(quarantine.verdict(&other).is_none() && !suspect(&quarantine, other));
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn retry(attempts: u32, factor: u32, cap: Duration) -> RetryConfig {
        RetryConfig {
            attempts,
            base: SECOND,
            factor,
            cap,
            jitter_percent: 0,
        }
    }

    #[test]
    fn waits_grow_up_to_the_cap_until_the_attempts_are_used_up_and_chance_makes_them_shorter() {
        let mut topics = Topics::default();
        let now = Instant::now();
        let retry = retry(4, 2, 5 * SECOND);
        let mut waits = || {
            topics
                .refused("a", &retry, now, 0.0)
                .1
                .map(|wait| wait.as_secs())
        };
        assert_eq!(
            [(); 6].map(|()| waits()),
            [Some(1), Some(2), Some(4), Some(5), None, None]
        );
        // Another topic is another matter.
        assert_eq!(topics.refused("b", &retry, now, 0.0), (1, Some(SECOND)));
        // As many tries are made, however long each takes. Long after they are used up the topic
        // starts anew.
        let three = self::retry(3, 1, SECOND);
        let mut at = |hours: u32| {
            topics
                .refused("c", &three, now + hours * 3600 * SECOND, 0.0)
                .0
        };
        assert_eq!([at(0), at(1), at(2), at(3), at(4)], [1, 2, 3, 4, 1]);
        topics.took("c");
        assert_eq!(topics.refused("c", &three, now, 0.0), (1, Some(SECOND)));
        // Chance makes waits shorter.
        let random = RetryConfig {
            jitter_percent: 20,
            ..three
        };
        assert_eq!(
            (random.wait(1, 0.5), random.wait(4, 0.5)),
            (Some(SECOND * 9 / 10), None)
        );
    }

    #[test]
    fn a_topic_is_given_up_for_a_while_from_the_first_event_that_comes_however_late_that_is() {
        let mut topics = Topics::default();
        let mut now = Instant::now();
        let error = error("refused");
        topics.give_up("orders", error.clone(), 2 * SECOND);
        for (seconds, is_given_up) in [(100, true), (1, true), (1, false), (1, false)] {
            now += seconds * SECOND;
            assert_eq!(
                topics.given_up("orders", now, |_| true).is_some(),
                is_given_up
            );
        }
        topics.give_up_next("orders", error.clone());
        assert!(
            topics.given_up("orders", now, |_| true).is_some()
                && topics.given_up("orders", now, |_| true).is_none()
        );
        topics.give_up("orders", error, 2 * SECOND);
        assert!(
            topics
                .given_up("orders", now, |attempts| attempts > 1)
                .is_none()
        );
        assert!(topics.given_up("orders", now, |_| true).is_none());
    }

    #[test]
    fn a_topic_takes_records_again_once_for_each_time_it_refused() {
        let mut topics = Topics::default();
        let now = Instant::now();
        let retry = retry(3, 1, SECOND);
        assert!(!topics.took("orders"));
        topics.refused("orders", &retry, now, 0.0);
        assert_eq!(
            (
                topics.refusing("orders").as_deref(),
                topics.refusing("mail")
            ),
            (Some("orders"), None)
        );
        assert_eq!(
            ["mail", "orders", "orders"].map(|topic| topics.took(topic)),
            [false, true, false]
        );
        assert_eq!(topics.refusing("orders"), None);
    }
}
