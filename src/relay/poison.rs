//! Events the broker refuses, found one by one. No I/O.
//!
//! A broker that refuses a record refuses what came with it in the same batch, and says the same of each; and after the
//! first refusal the producer is finished. So whatever was refused is *suspect*. The next producer sends suspects alone: one
//! that is acked is cleared, and one that is refused alone is given up. Where sending it has finished a producer all the same,
//! it is *condemned*, to be given up when it comes again.
//!
//! One that was refused is seldom the last of its kind. What is [`Like`] it is suspect before it was ever sent, so that it
//! finishes no producer and takes none with it, until enough of those were taken in a row.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, Kind};
use crate::event::RowId;
use crate::event::{Event, Via};
use crate::ledger::Ticket;
use crate::position::Lsn;
use crate::route::Record;

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

/// What of a record may be why it is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Like {
    topic: String,
    bytes: usize,
    keyed: bool,
}

impl Like {
    /// Of this record.
    pub fn of(record: &Record<'_>) -> Like {
        Like { topic: record.topic.to_owned(), bytes: bytes_of(record), keyed: record.key.is_some() }
    }
}

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

    fn is_like(&self, bytes: usize, keyed: bool) -> bool {
        if self.is_for_size() { bytes >= self.bytes } else { keyed == self.keyed }
    }

    /// One like it was taken. Whether the next one is suspect.
    fn is_still_refused(&mut self) -> bool {
        self.taken += 1;
        self.taken < TAKEN_MAX
    }
}

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub struct Poison {
    suspects: HashSet<EventId>,
    condemned: HashMap<EventId, Verdict>,
    /// The one that is in flight alone.
    alone: Option<(Ticket, Like)>,
    /// By topic, what is refused by it.
    unlike: HashMap<String, Vec<Refused>>,
    /// Whether a refusal for size is being looked into, and how often that was in vain: each record was taken alone.
    looking: bool,
    in_vain: u64,
    /// How often something was learned.
    learned: u64,
    /// Topics that refuse records, what they said, and for how long they are not tried.
    refusing: HashMap<String, (Error, Spell)>,
    /// Topics that refused a record, the first ticket that was sent to each since, and whether that was taken.
    watched: HashMap<String, (Option<Ticket>, bool)>,
    /// How many of them took one from this producer.
    taken: u64,
    /// Events with a dead letter that is not delivered yet, and whether it is sent again: with nothing behind it.
    lettered: HashMap<EventId, bool>,
}

/// For how long events for a topic are given up without a try.
#[derive(Debug, Clone, Copy)]
enum Spell {
    /// For one event.
    Once,
    /// For so long from the first of them on: to come to it may take longer than that.
    For(Duration),
    /// Until then.
    Until(Instant),
}

impl Poison {
    /// Another producer begins, with nothing in flight.
    pub fn begin(&mut self) {
        self.alone = None;
        self.taken = 0;
        self.watched.values_mut().for_each(|(first, _)| *first = None);
        if self.suspects.len() + self.condemned.len() > EVENTS_MAX {
            self.suspects.clear();
            self.condemned.clear();
            self.lettered.clear();
        }
    }

    /// How often the size of a batch was refused, and of no record in it.
    pub fn in_vain(&self) -> u64 {
        self.in_vain
    }

    /// How often something was learned of events or topics: with each time it takes fewer producers to know all.
    pub fn learned(&self) -> u64 {
        self.learned
    }

    /// The next event for `topic` is given up for this reason, and so are all others for so long from then on.
    pub fn refuse(&mut self, topic: &str, error: &Error, lasting: Duration) {
        self.learned += 1;
        self.refusing.insert(topic.to_owned(), (error.clone(), Spell::For(lasting)));
    }

    /// The next event for `topic` is given up for this reason; what then becomes of the topic is known elsewhere.
    pub fn refuse_once(&mut self, topic: &str, error: &Error) {
        self.learned += 1;
        self.refusing.insert(topic.to_owned(), (error.clone(), Spell::Once));
    }

    /// `topic` refused a record: from the next producer on it is looked out for whether it takes one.
    pub fn watch(&mut self, topic: &str) {
        if self.watched.len() >= TOPICS_MAX {
            self.watched.clear();
        }
        self.watched.insert(topic.to_owned(), (None, false));
    }

    /// A record for `topic` was enqueued.
    #[inline]
    pub fn sent_to(&mut self, topic: &str, ticket: Ticket) {
        if !self.watched.is_empty()
            && let Some((first, _)) = self.watched.get_mut(topic)
        {
            first.get_or_insert(ticket);
        }
    }

    /// Whether `topic` took a record since it refused one.
    pub fn took(&self, topic: &str) -> bool {
        self.watched.get(topic).is_some_and(|(_, took)| *took)
    }

    /// How many topics that refused a record took one from this producer.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Whether any topic refuses records.
    pub fn has_refusing(&self) -> bool {
        !self.refusing.is_empty()
    }

    /// Why an event for `topic` is given up now, if it is: where `suffices` says that the topic was tried often enough for
    /// it. Where it was not, the event is tried, and what then becomes of the topic is learned anew.
    pub fn refusal(&mut self, topic: &str, now: Instant, suffices: impl FnOnce(u32) -> bool) -> Option<Error> {
        let (error, spell) = self.refusing.get_mut(topic)?;
        let is_over = match spell {
            Spell::Once => return self.refusing.remove(topic).map(|(error, _)| error),
            Spell::For(_) => false,
            Spell::Until(until) => now >= *until,
        };
        if is_over || !suffices(error.attempts()) {
            self.refusing.remove(topic);
            return None;
        }
        if let Spell::For(lasting) = *spell {
            *spell = Spell::Until(now + lasting);
        }
        Some(error.clone())
    }

    /// Why this event is given up, if it is.
    pub fn verdict(&self, id: &EventId) -> Option<&Verdict> {
        self.condemned.get(id)
    }

    /// Whether this event has to be in flight alone.
    #[inline]
    pub fn is_suspect(&self, id: &EventId, record: &Record<'_>) -> bool {
        !(self.suspects.is_empty() && self.unlike.is_empty()) && (self.suspects.contains(id) || self.is_like(record))
    }

    fn is_like(&self, record: &Record<'_>) -> bool {
        let refused = self.unlike.get(record.topic);
        refused.is_some_and(|refused| {
            refused.iter().any(|refused| refused.is_like(bytes_of(record), record.key.is_some()))
        })
    }

    /// A record like this was enqueued, nothing else was in flight, and nothing will be until it is acked or refused.
    pub fn sent_alone(&mut self, ticket: Ticket, like: Like) {
        self.alone = Some((ticket, like));
    }

    /// Whether one is in flight alone, and nothing may be enqueued behind it.
    pub fn is_alone(&self) -> bool {
        self.alone.is_some()
    }

    /// Everything up to this ticket was acked: only whether one is in flight alone follows.
    pub fn clear_alone(&mut self, ticket: Ticket) {
        let Some((_, taken)) = self.alone.take_if(|(alone, _)| *alone < ticket) else { return };
        if let Some(refused) = self.unlike.get_mut(&taken.topic) {
            refused.retain_mut(|refused| !refused.is_like(taken.bytes, taken.keyed) || refused.is_still_refused());
            if refused.is_empty() {
                self.unlike.remove(&taken.topic);
            }
        }
    }

    /// The one that was in flight alone is refused, and nothing of it is in flight any more: it is given up now.
    pub fn refused_alone(&mut self, ticket: Ticket, id: &EventId, error: &Error) {
        self.learned += 1;
        self.suspects.remove(id);
        self.note_unlike(ticket, error);
    }

    /// What is like the one that was in flight alone is suspect from now on.
    fn note_unlike(&mut self, ticket: Ticket, error: &Error) {
        let Some((_, like)) = self.alone.take_if(|(alone, _)| *alone == ticket) else { return };
        self.looking = false;
        if self.unlike.len() >= TOPICS_MAX {
            self.unlike.clear();
        }
        let refused = self.unlike.entry(like.topic.clone()).or_default();
        let kind = error.kind();
        let same =
            |refused: &&mut Refused| refused.kind == kind && (refused.is_for_size() || refused.keyed == like.keyed);
        match refused.iter_mut().find(same) {
            Some(refused) => (refused.bytes, refused.taken) = (refused.bytes.min(like.bytes), 0),
            None => refused.push(Refused { kind, bytes: like.bytes, keyed: like.keyed, taken: 0 }),
        }
    }

    /// Everything up to this ticket, and not itself, was acked.
    pub fn acked_below(&mut self, ticket: Ticket) {
        self.clear_alone(ticket);
        for (first, took) in self.watched.values_mut() {
            let takes = first.is_some_and(|first| first < ticket);
            self.taken += u64::from(takes && !*took);
            *took |= takes;
        }
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
        self.condemned.remove(id);
        self.lettered.remove(id);
    }

    /// The broker refused this one. Whether it is known from now on what to do when it comes again.
    pub fn refused(&mut self, ticket: Ticket, id: &EventId, error: &Error) -> bool {
        self.learned += 1;
        if let Some(verdict) = self.condemned.get_mut(id) {
            // That was its dead letter. Only its size is a reason to send less of it, and others in its batch may be why.
            if error.kind() != Kind::RecordTooLarge || verdict.without_value {
                return false;
            }
            verdict.without_value = self.lettered.get(id).is_some_and(|again| *again);
            return true;
        }
        if self.alone.as_ref().is_some_and(|(alone, _)| *alone == ticket) {
            self.suspects.remove(id);
            self.condemned.insert(id.clone(), Verdict { error: error.clone(), without_value: false });
            self.note_unlike(ticket, error);
        } else {
            self.looking |= error.kind() == Kind::RecordTooLarge;
            self.suspects.insert(id.clone());
        }
        true
    }

    /// It cannot be taken, whatever comes with it. Said twice, it is its dead letter that cannot. Whether it is known from now on
    /// what to do when it comes again.
    pub fn condemn(&mut self, id: EventId, error: Error) -> bool {
        self.learned += 1;
        match self.condemned.get_mut(&id) {
            Some(verdict) if verdict.without_value || error.kind() != Kind::RecordTooLarge => return false,
            Some(verdict) => verdict.without_value = true,
            None => self.condemned.extend([(id, Verdict { error, without_value: false })]),
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
        self.condemned.entry(id.clone()).or_insert_with(|| verdict.clone());
        let again = self.lettered.contains_key(id);
        self.lettered.insert(id.clone(), again);
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::OwnedRecord;

    fn row(number: u8) -> EventId {
        EventId { row: RowId { outbox: 0, key: vec![number] }, at: None }
    }

    fn record(bytes: usize) -> OwnedRecord {
        let value = vec![b'x'; bytes];
        let (key, value) = (Some(&b""[..]), Some(&value[..]));
        OwnedRecord::of(&Record { topic: "orders", key, value, headers: &[], partition: None, timestamp_ms: None })
    }

    fn like(bytes: usize) -> Like {
        record(bytes).with_record(Like::of)
    }

    fn suspect(poison: &Poison, id: EventId) -> bool {
        // Whatever topics refuse.
        record(1).with_record(|record| poison.is_suspect(&id, &Record { topic: "mail", ..*record }))
    }

    fn error(what: &str) -> Error {
        Error::new(Kind::Record, what)
    }

    #[test]
    fn of_a_batch_only_what_is_refused_alone_is_condemned() {
        let mut poison = Poison::default();
        assert!([2, 3].iter().all(|number| poison.refused(Ticket(9), &row(*number), &error("large"))));
        poison.begin();
        assert!(!suspect(&poison, row(1)) && suspect(&poison, row(2)) && suspect(&poison, row(3)));
        poison.sent_alone(Ticket(1), like(10));
        assert!(poison.is_alone());
        poison.acked_below(Ticket(2));
        poison.delivered(&row(2));
        assert!(!poison.is_alone() && !suspect(&poison, row(2)));
        poison.sent_alone(Ticket(2), like(20));
        assert!(poison.refused(Ticket(2), &row(3), &error("too large")));
        poison.begin();
        assert!(!suspect(&poison, row(3)) && !poison.is_alone());
        assert_eq!(poison.verdict(&row(3)).map(|verdict| verdict.error.cause()), Some("too large"));
        assert_eq!(poison.verdict(&row(2)), None);
    }

    #[test]
    fn a_batch_of_which_each_record_is_taken_alone_was_too_large_itself() {
        let too_large = Error::new(Kind::RecordTooLarge, "large");
        for (bad, in_vain) in [(None, 1), (Some(1), 0)] {
            let mut poison = Poison::default();
            for number in 0..3 {
                assert!(poison.refused(Ticket(number.into()), &row(number), &too_large));
            }
            poison.begin();
            for number in 0..3 {
                let ticket = Ticket(number.into());
                poison.sent_alone(ticket, like(10));
                match bad == Some(number) {
                    true => poison.refused_alone(ticket, &row(number), &too_large),
                    false => {
                        poison.acked_below(Ticket(ticket.0 + 1));
                        poison.delivered(&row(number));
                    }
                }
            }
            assert_eq!(poison.in_vain(), in_vain);
        }
    }

    #[test]
    fn a_topic_is_given_up_for_a_while_from_the_first_event_that_comes_however_late_that_is() {
        let (mut poison, now, second) = (Poison::default(), Instant::now(), Duration::from_secs(1));
        let refusal =
            |poison: &mut Poison, after: u32| poison.refusal("orders", now + after * second, |_| true).is_some();
        poison.refuse("orders", &error("refused"), 2 * second);
        assert_eq!([100, 101, 102, 103].map(|after| refusal(&mut poison, after)), [true, true, false, false]);
        poison.refuse_once("orders", &error("refused"));
        assert_eq!([200, 201].map(|after| refusal(&mut poison, after)), [true, false]);
        poison.refuse("orders", &error("refused"), 2 * second);
        assert!(poison.refusal("orders", now, |attempts| attempts > 1).is_none() && !poison.has_refusing());
    }

    #[test]
    fn a_topic_took_a_record_once_one_that_was_sent_since_is_acked() {
        let mut poison = Poison::default();
        poison.sent_to("orders", Ticket(0));
        poison.watch("orders");
        assert!(!poison.took("orders"));
        poison.sent_to("orders", Ticket(3));
        poison.acked_below(Ticket(3));
        // It was refused with the producer.
        poison.begin();
        poison.sent_to("mail", Ticket(4));
        poison.acked_below(Ticket(5));
        assert!(!poison.took("orders") && !poison.took("mail"));
        poison.sent_to("orders", Ticket(5));
        poison.acked_below(Ticket(6));
        assert!(poison.took("orders") && poison.taken() == 1);
        poison.acked_below(Ticket(7));
        assert_eq!(poison.taken(), 1);
        poison.watch("orders");
        assert!(!poison.took("orders"));
        poison.begin();
        assert_eq!(poison.taken(), 0);
    }

    #[test]
    fn what_was_acked_and_not_committed_is_still_known_when_it_comes_again() {
        let mut poison = Poison::default();
        poison.condemn(row(1), error("large"));
        poison.sent_alone(Ticket(0), like(10));
        poison.clear_alone(Ticket(1));
        assert!(!poison.is_alone(), "others may follow");
        poison.begin();
        assert!(poison.verdict(&row(1)).is_some());
        poison.delivered(&row(1));
        assert_eq!(poison.verdict(&row(1)), None);
    }

    #[test]
    fn a_dead_letter_that_is_too_large_without_others_goes_without_its_value_and_then_not_at_all() {
        let too_large = Error::new(Kind::RecordTooLarge, "too large");
        let mut poison = Poison::default();
        poison.condemn(row(1), error("large"));
        // With what may be sent behind it, with what was refused too, alone, and without its value.
        let tries = [(false, true, false), (true, true, false), (false, true, true), (false, false, true)];
        for (with_others, is_known, without_value) in tries {
            poison.begin();
            let verdict = poison.verdict(&row(1)).unwrap().clone();
            poison.give_up(&row(1), &verdict);
            if with_others {
                poison.with_others();
            }
            assert_eq!(poison.refused(Ticket(0), &row(1), &too_large), is_known);
            assert_eq!(poison.verdict(&row(1)).unwrap().without_value, without_value);
        }
        poison.delivered(&row(1));
        assert_eq!(poison.verdict(&row(1)), None, "when it comes again, it is tried again");
    }

    #[test]
    fn a_dead_letter_that_is_refused_for_anything_but_its_size_keeps_its_value() {
        let mut poison = Poison::default();
        poison.condemn(row(1), error("large"));
        for _ in 0..3 {
            poison.begin();
            let verdict = poison.verdict(&row(1)).unwrap().clone();
            poison.give_up(&row(1), &verdict);
            assert!(
                !poison.refused(Ticket(0), &row(1), &error("invalid")) && !poison.condemn(row(1), error("invalid"))
            );
            assert!(!poison.verdict(&row(1)).unwrap().without_value);
        }
        assert!(poison.condemn(row(1), Error::new(Kind::RecordTooLarge, "more than message.max.bytes")));
        assert!(poison.verdict(&row(1)).unwrap().without_value);
    }

    #[test]
    fn what_is_as_large_as_what_was_refused_is_suspect_until_enough_was_taken() {
        let too_large = Error::new(Kind::RecordTooLarge, "too large");
        let (mut poison, sized) = (Poison::default(), |poison: &Poison, bytes| {
            record(bytes).with_record(|record| poison.is_suspect(&row(9), record))
        });
        assert!(!sized(&poison, 1_000));
        for (ticket, bytes) in [(0, 1_000), (1, 700), (2, 900)] {
            poison.sent_alone(Ticket(ticket), like(bytes));
            poison.refused_alone(Ticket(ticket), &row(1), &too_large);
            assert!(!poison.is_alone() && !suspect(&poison, row(1)));
        }
        assert!(sized(&poison, 700) && !sized(&poison, 699));
        poison.begin();
        for ticket in 0..u64::from(TAKEN_MAX) {
            assert!(sized(&poison, 800), "{ticket}");
            poison.sent_alone(Ticket(ticket), like(800));
            poison.acked_below(Ticket(ticket + 1));
        }
        assert!(!sized(&poison, 1_000));
    }

    #[test]
    fn of_a_topic_that_refuses_records_without_a_key_only_those_are_suspect() {
        let mut poison = Poison::default();
        let keyless = Like { topic: "orders".to_owned(), bytes: 5, keyed: false };
        poison.sent_alone(Ticket(0), keyless);
        poison.refused_alone(Ticket(0), &row(1), &error("no key"));
        let is_suspect = |key| {
            let value = Some(&b"{}"[..]);
            let record = Record { topic: "orders", key, value, headers: &[], partition: None, timestamp_ms: None };
            poison.is_suspect(&row(2), &record)
        };
        assert!(is_suspect(None) && !is_suspect(Some(b"k")));
        // Refused alone, and so no suspect any more, is the row itself.
        assert!(!suspect(&poison, row(1)));
    }

    #[test]
    fn another_event_of_the_same_id_is_judged_by_itself() {
        let at = |commit_lsn, index| EventId {
            row: RowId { outbox: 0, key: b"7".to_vec() },
            at: Some((Lsn::new(commit_lsn), index)),
        };
        let mut poison = Poison::default();
        poison.condemn(at(100, 0), error("large"));
        assert!(poison.refused(Ticket(0), &at(200, 3), &error("with another")));
        poison.begin();
        assert!(poison.verdict(&at(100, 0)).is_some() && suspect(&poison, at(200, 3)));
        for other in [at(100, 1), at(300, 0)] {
            assert!(poison.verdict(&other).is_none() && !suspect(&poison, other));
        }
    }
}
