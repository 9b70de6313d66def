//! Events that the broker refuses, found one by one. No I/O.
//!
//! A broker that refuses a record refuses the whole batch, and says the same of each record in it; and after the first
//! refusal the producer is finished. So each of them is a *suspect*. The next producer sends suspects isolated: one that is
//! acked is cleared, and one that is refused while it is isolated is given up. Where that refusal finished a producer all the
//! same, the event is *rejected*: it is given up when it comes again.
//!
//! Events that are refused come in numbers. A record that is like a refused one is isolated before it was ever refused,
//! so that it finishes no producer and takes no others with it, until enough such records were acked in a row.

use std::collections::{HashMap, HashSet};

use crate::error::{Error, Kind};
use crate::event::{Event, RowId, Via};
use crate::position::Lsn;
use crate::relay::topics::Topics;
use crate::route::{OwnedRecord, Record};

/// Events remembered. What is forgotten is found out again.
const EVENTS_MAX: usize = 100_000;

/// An event as it is told from others: by its row, and by its place where that is the same whenever it comes.
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
        EventId { row: event.row_id(), at }
    }
}

/// Why an event is given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What the broker said, or what made it no record.
    pub error: Error,
    /// Its dead letter was refused as well, for its size alone, and goes without the value.
    pub without_value: bool,
}

/// Topics of which it is remembered what they refuse.
const TOPICS_MAX: usize = 1_000;
/// So many of a kind are taken in a row before the next one is no longer suspect.
const TAKEN_MAX: u32 = 100;

fn bytes_of(record: &Record<'_>) -> usize {
    record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len)
}

/// What a topic refused.
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
        if self.is_for_size() { bytes_of(record) >= self.bytes } else { record.key.is_some() == self.keyed }
    }

    /// One like it was taken. Whether the next one is suspect.
    fn is_still_refused(&mut self) -> bool {
        self.taken += 1;
        self.taken < TAKEN_MAX
    }
}

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub struct Quarantine {
    suspects: HashSet<EventId>,
    rejected: HashMap<EventId, Verdict>,
    /// By topic, what it refused.
    unlike: HashMap<String, Vec<Refused>>,
    /// Whether a refusal for size is being looked into, and how often that was in vain: each record was taken alone.
    looking: bool,
    in_vain: u64,
    /// How often something was learned of events.
    learned: u64,
    /// Events with a dead letter that is not delivered yet, and whether it is sent again: with nothing behind it.
    lettered: HashMap<EventId, bool>,
    /// Topics that refuse whatever is sent to them.
    pub topics: Topics,
}

impl Quarantine {
    /// What is known, for another producer that begins with nothing in flight.
    pub(super) fn take_over(&mut self) -> Quarantine {
        let mut quarantine = std::mem::take(self);
        quarantine.begin();
        quarantine
    }

    fn begin(&mut self) {
        self.topics.begin();
        if self.suspects.len() + self.rejected.len() > EVENTS_MAX {
            self.suspects.clear();
            self.rejected.clear();
            self.lettered.clear();
        }
    }

    /// How often the size of a batch was refused, and of no record in it.
    pub fn in_vain(&self) -> u64 {
        self.in_vain
    }

    /// How often something was learned of events or topics: with each time it takes fewer producers to know all.
    pub fn learned(&self) -> u64 {
        self.learned + self.topics.learned()
    }

    /// Why this event is given up, if it is.
    pub fn verdict(&self, id: &EventId) -> Option<&Verdict> {
        self.rejected.get(id)
    }

    /// Whether this event has to be in flight alone.
    #[inline]
    pub fn is_suspect(&self, id: &EventId, record: &Record<'_>) -> bool {
        !(self.suspects.is_empty() && self.unlike.is_empty()) && (self.suspects.contains(id) || self.is_like(record))
    }

    fn is_like(&self, record: &Record<'_>) -> bool {
        let refused = self.unlike.get(record.topic);
        refused.is_some_and(|refused| refused.iter().any(|refused| refused.is_like(record)))
    }

    /// This record was acked while it was isolated.
    pub fn took_isolated(&mut self, record: &Record<'_>) {
        let Some(refused) = self.unlike.get_mut(record.topic) else { return };
        refused.retain_mut(|refused| !refused.is_like(record) || refused.is_still_refused());
        if refused.is_empty() {
            self.unlike.remove(record.topic);
        }
    }

    /// This event was refused while it was isolated, the producer goes on, and the event is given up now.
    pub fn refused_isolated(&mut self, id: &EventId, record: &OwnedRecord, error: &Error) {
        self.learned += 1;
        self.suspects.remove(id);
        self.note_unlike(record, error);
    }

    /// Records like this one are isolated from now on.
    fn note_unlike(&mut self, record: &OwnedRecord, error: &Error) {
        self.looking = false;
        if self.unlike.len() >= TOPICS_MAX {
            self.unlike.clear();
        }
        let kind = error.kind();
        record.with_record(|record| {
            let (bytes, keyed) = (bytes_of(record), record.key.is_some());
            let refused = self.unlike.entry(record.topic.to_owned()).or_default();
            let same =
                |refused: &&mut Refused| refused.kind == kind && (refused.is_for_size() || refused.keyed == keyed);
            match refused.iter_mut().find(same) {
                Some(refused) => (refused.bytes, refused.taken) = (refused.bytes.min(bytes), 0),
                None => refused.push(Refused { kind, bytes, keyed, taken: 0 }),
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
        self.lettered.remove(id);
    }

    /// The broker refused this one, which finished the producer; `isolated`, where nothing else was in flight. Whether it is
    /// known from now on what to do when the event comes again.
    pub fn refused(&mut self, id: &EventId, isolated: Option<&OwnedRecord>, error: &Error) -> bool {
        self.learned += 1;
        if let Some(verdict) = self.rejected.get_mut(id) {
            // That was its dead letter. Only its size is a reason to send less of it, and others in its batch may be why.
            if error.kind() != Kind::RecordTooLarge || verdict.without_value {
                return false;
            }
            verdict.without_value = self.lettered.get(id).is_some_and(|again| *again);
            return true;
        }
        if let Some(record) = isolated {
            self.suspects.remove(id);
            self.rejected.insert(id.clone(), Verdict { error: error.clone(), without_value: false });
            self.note_unlike(record, error);
        } else {
            self.looking |= error.kind() == Kind::RecordTooLarge;
            self.suspects.insert(id.clone());
        }
        true
    }

    /// It cannot be taken, whatever comes with it. Said twice, it is its dead letter that cannot. Whether it is known from now on
    /// what to do when it comes again.
    pub fn reject(&mut self, id: EventId, error: Error) -> bool {
        self.learned += 1;
        match self.rejected.get_mut(&id) {
            Some(verdict) if verdict.without_value || error.kind() != Kind::RecordTooLarge => return false,
            Some(verdict) => verdict.without_value = true,
            None => self.rejected.extend([(id, Verdict { error, without_value: false })]),
        }
        true
    }

    /// What is refused next was not without others.
    pub fn with_others(&mut self) {
        self.lettered.values_mut().for_each(|again| *again = false);
    }

    /// It is given up for this reason: what is refused of it from now on is its dead letter. Whether it was before, and its
    /// dead letter was not delivered.
    pub fn give_up(&mut self, id: &EventId, verdict: &Verdict) -> bool {
        self.rejected.entry(id.clone()).or_insert_with(|| verdict.clone());
        let again = self.lettered.contains_key(id);
        self.lettered.insert(id.clone(), again);
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: u8) -> EventId {
        EventId { row: RowId { outbox: 0, key: vec![number] }, at: None }
    }

    fn record(bytes: usize) -> OwnedRecord {
        let value = vec![b'x'; bytes];
        let (key, value) = (Some(&b""[..]), Some(&value[..]));
        OwnedRecord::of(&Record { topic: "orders", key, value, headers: &[], partition: None, timestamp_ms: None })
    }

    fn took(quarantine: &mut Quarantine, bytes: usize) {
        record(bytes).with_record(|record| quarantine.took_isolated(record));
    }

    fn suspect(quarantine: &Quarantine, id: EventId) -> bool {
        // Whatever topics refuse.
        record(1).with_record(|record| quarantine.is_suspect(&id, &Record { topic: "mail", ..*record }))
    }

    fn error(what: &str) -> Error {
        Error::new(Kind::Record, what)
    }

    #[test]
    fn of_a_batch_only_what_is_refused_alone_is_rejected() {
        let mut quarantine = Quarantine::default();
        assert!([2, 3].iter().all(|number| quarantine.refused(&row(*number), None, &error("large"))));
        quarantine.begin();
        assert!(!suspect(&quarantine, row(1)) && suspect(&quarantine, row(2)) && suspect(&quarantine, row(3)));
        took(&mut quarantine, 10);
        quarantine.delivered(&row(2));
        assert!(!suspect(&quarantine, row(2)));
        assert!(quarantine.refused(&row(3), Some(&record(20)), &error("too large")));
        quarantine.begin();
        assert!(!suspect(&quarantine, row(3)));
        assert_eq!(quarantine.verdict(&row(3)).map(|verdict| verdict.error.cause()), Some("too large"));
        assert_eq!(quarantine.verdict(&row(2)), None);
    }

    #[test]
    fn a_batch_of_which_each_record_is_taken_alone_was_too_large_itself() {
        let too_large = Error::new(Kind::RecordTooLarge, "large");
        for (bad, in_vain) in [(None, 1), (Some(1), 0)] {
            let mut quarantine = Quarantine::default();
            for number in 0..3 {
                assert!(quarantine.refused(&row(number), None, &too_large));
            }
            quarantine.begin();
            for number in 0..3 {
                match bad == Some(number) {
                    true => quarantine.refused_isolated(&row(number), &record(10), &too_large),
                    false => {
                        took(&mut quarantine, 10);
                        quarantine.delivered(&row(number));
                    }
                }
            }
            assert_eq!(quarantine.in_vain(), in_vain);
        }
    }

    #[test]
    fn a_dead_letter_that_is_too_large_without_others_goes_without_its_value_and_then_not_at_all() {
        let too_large = Error::new(Kind::RecordTooLarge, "too large");
        let mut quarantine = Quarantine::default();
        quarantine.reject(row(1), error("large"));
        // With what may be sent behind it, with what was refused too, alone, and without its value.
        let tries = [(false, true, false), (true, true, false), (false, true, true), (false, false, true)];
        for (with_others, is_known, without_value) in tries {
            quarantine.begin();
            let verdict = quarantine.verdict(&row(1)).unwrap().clone();
            quarantine.give_up(&row(1), &verdict);
            if with_others {
                quarantine.with_others();
            }
            assert_eq!(quarantine.refused(&row(1), None, &too_large), is_known);
            assert_eq!(quarantine.verdict(&row(1)).unwrap().without_value, without_value);
        }
        quarantine.delivered(&row(1));
        assert_eq!(quarantine.verdict(&row(1)), None, "when it comes again, it is tried again");
    }

    #[test]
    fn a_dead_letter_that_is_refused_for_anything_but_its_size_keeps_its_value() {
        let mut quarantine = Quarantine::default();
        quarantine.reject(row(1), error("large"));
        for _ in 0..3 {
            quarantine.begin();
            let verdict = quarantine.verdict(&row(1)).unwrap().clone();
            quarantine.give_up(&row(1), &verdict);
            assert!(
                !quarantine.refused(&row(1), None, &error("invalid")) && !quarantine.reject(row(1), error("invalid"))
            );
            assert!(!quarantine.verdict(&row(1)).unwrap().without_value);
        }
        assert!(quarantine.reject(row(1), Error::new(Kind::RecordTooLarge, "more than message.max.bytes")));
        assert!(quarantine.verdict(&row(1)).unwrap().without_value);
    }

    #[test]
    fn what_is_as_large_as_what_was_refused_is_suspect_until_enough_was_taken() {
        let too_large = Error::new(Kind::RecordTooLarge, "too large");
        let (mut quarantine, sized) = (Quarantine::default(), |quarantine: &Quarantine, bytes| {
            record(bytes).with_record(|record| quarantine.is_suspect(&row(9), record))
        });
        assert!(!sized(&quarantine, 1_000));
        for bytes in [1_000, 700, 900] {
            quarantine.refused_isolated(&row(1), &record(bytes), &too_large);
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
        let of_key = |key| {
            let value = Some(&b"{}"[..]);
            OwnedRecord::of(&Record { topic: "orders", key, value, headers: &[], partition: None, timestamp_ms: None })
        };
        quarantine.refused_isolated(&row(1), &of_key(None), &error("no key"));
        let is_suspect = |key| of_key(key).with_record(|record| quarantine.is_suspect(&row(2), record));
        assert!(is_suspect(None) && !is_suspect(Some(b"k")));
        // Refused alone, and so no suspect any more, is the row itself.
        assert!(!suspect(&quarantine, row(1)));
    }

    #[test]
    fn another_event_of_the_same_id_is_judged_by_itself() {
        let at = |commit_lsn, index| EventId {
            row: RowId { outbox: 0, key: b"7".to_vec() },
            at: Some((Lsn::new(commit_lsn), index)),
        };
        let mut quarantine = Quarantine::default();
        quarantine.reject(at(100, 0), error("large"));
        assert!(quarantine.refused(&at(200, 3), None, &error("with another")));
        quarantine.begin();
        assert!(quarantine.verdict(&at(100, 0)).is_some() && suspect(&quarantine, at(200, 3)));
        for other in [at(100, 1), at(300, 0)] {
            assert!(quarantine.verdict(&other).is_none() && !suspect(&quarantine, other));
        }
    }
}
