//! Events the broker refuses, found one by one. No I/O.
//!
//! A broker that refuses a record refuses what came with it in the same batch, and says the same of each; and after the
//! first refusal the producer is finished. So whatever was refused is *suspect*. The next producer sends suspects alone: one
//! that is acked is cleared, and one that is refused alone is *condemned*, to be given up when it comes again.

use std::collections::{HashMap, HashSet, VecDeque};

use tokio::time::Instant;

use crate::error::Error;
use crate::sink::Ticket;
use crate::upkeep::RowId;

/// Events remembered. What is forgotten is found out again.
const EVENTS_MAX: usize = 100_000;

/// Why an event is given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What the broker said, or what made it no record.
    pub error: Error,
    /// Its dead letter was refused as well, and goes without the value.
    pub without_value: bool,
}

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub struct Poison {
    suspects: HashSet<RowId>,
    condemned: HashMap<RowId, Verdict>,
    /// Events that are in flight, by ascending ticket.
    in_flight: VecDeque<(Ticket, RowId)>,
    /// The one that is in flight alone.
    alone: Option<Ticket>,
    /// How often something was learned.
    learned: u64,
    /// Topics that refuse records, what they said, and until when they are not tried, if they are at all.
    refusing: HashMap<String, (Error, Option<Instant>)>,
}

impl Poison {
    /// Another producer begins, with nothing in flight.
    pub fn begin(&mut self) {
        self.in_flight.clear();
        self.alone = None;
        if self.suspects.len() + self.condemned.len() > EVENTS_MAX {
            self.suspects.clear();
            self.condemned.clear();
        }
    }

    /// How often something was learned of events or topics: with each time it takes fewer producers to know all.
    pub fn learned(&self) -> u64 {
        self.learned
    }

    /// Events for `topic` are given up for this reason until then.
    pub fn refuse(&mut self, topic: &str, error: &Error, until: Instant) {
        self.learned += 1;
        self.refusing.insert(topic.to_owned(), (error.clone(), Some(until)));
    }

    /// The next event for `topic` is given up for this reason; what then becomes of the topic is known elsewhere.
    pub fn refuse_once(&mut self, topic: &str, error: &Error) {
        self.learned += 1;
        self.refusing.insert(topic.to_owned(), (error.clone(), None));
    }

    /// Whether any topic refuses records.
    pub fn has_refusing(&self) -> bool {
        !self.refusing.is_empty()
    }

    /// Why an event for `topic` is given up now, if it is: where `suffices` says that the topic was tried often enough for
    /// it. Where it was not, the event is tried, and what then becomes of the topic is learned anew.
    pub fn refusal(&mut self, topic: &str, now: Instant, suffices: impl FnOnce(u32) -> bool) -> Option<Error> {
        let (error, until) = self.refusing.get(topic)?;
        match until {
            Some(until) if now < *until && suffices(error.attempts()) => Some(error.clone()),
            Some(_) => {
                self.refusing.remove(topic);
                None
            }
            None => self.refusing.remove(topic).map(|(error, _)| error),
        }
    }

    /// Why this event is given up, if it is.
    pub fn verdict(&self, row: &RowId) -> Option<&Verdict> {
        self.condemned.get(row)
    }

    /// Whether this event has to be in flight alone.
    pub fn is_suspect(&self, row: &RowId) -> bool {
        self.suspects.contains(row)
    }

    /// It was enqueued; `alone`, where nothing else was in flight.
    pub fn sent(&mut self, ticket: Ticket, row: RowId, alone: bool) {
        self.alone = alone.then_some(ticket);
        self.in_flight.push_back((ticket, row));
    }

    /// Whether one is in flight alone, and nothing may be enqueued behind it.
    pub fn is_alone(&self) -> bool {
        self.alone.is_some()
    }

    /// Everything up to this ticket was acked: only whether one is in flight alone follows.
    pub fn clear_alone(&mut self, ticket: Ticket) {
        self.alone = self.alone.filter(|alone| *alone >= ticket);
    }

    /// Everything up to this ticket, and not itself, was acked.
    pub fn acked_below(&mut self, ticket: Ticket) {
        self.clear_alone(ticket);
        while self.in_flight.front().is_some_and(|(sent, _)| *sent < ticket)
            && let Some((_, row)) = self.in_flight.pop_front()
        {
            self.suspects.remove(&row);
            // What was acked of it is its dead letter, and when it comes again, somebody wants it tried again.
            self.condemned.remove(&row);
        }
    }

    /// It was given up, and nothing of it is in flight.
    pub fn forget(&mut self, row: &RowId) {
        self.condemned.remove(row);
    }

    /// The broker refused this one. Whether it is known from now on what to do when it comes again.
    pub fn refused(&mut self, ticket: Ticket, error: &Error) -> bool {
        self.learned += 1;
        let Ok(at) = self.in_flight.binary_search_by_key(&ticket, |(sent, _)| *sent) else { return false };
        let Some((_, row)) = self.in_flight.get(at) else { return false };
        if let Some(verdict) = self.condemned.get_mut(row) {
            // That was its dead letter.
            return !std::mem::replace(&mut verdict.without_value, true);
        }
        if self.alone == Some(ticket) {
            self.suspects.remove(row);
            self.condemned.insert(row.clone(), Verdict { error: error.clone(), without_value: false });
        } else {
            self.suspects.insert(row.clone());
        }
        true
    }

    /// It cannot be taken, whatever comes with it. Said twice, it is its dead letter that cannot.
    pub fn condemn(&mut self, row: RowId, error: Error) {
        self.learned += 1;
        match self.condemned.get_mut(&row) {
            Some(verdict) => verdict.without_value = true,
            None => self.condemned.extend([(row, Verdict { error, without_value: false })]),
        }
    }

    /// It is given up for this reason: what is refused of it from now on is its dead letter.
    pub fn give_up(&mut self, row: &RowId, verdict: &Verdict) {
        self.condemned.entry(row.clone()).or_insert_with(|| verdict.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn row(number: u8) -> RowId {
        (0, vec![number])
    }

    fn error(what: &str) -> Error {
        Error::new(Kind::Record, what)
    }

    #[test]
    fn of_a_batch_only_what_is_refused_alone_is_condemned() {
        let mut poison = Poison::default();
        for number in 0..4 {
            poison.sent(Ticket(number.into()), row(number), false);
        }
        poison.acked_below(Ticket(1));
        assert!(poison.refused(Ticket(2), &error("large")) && poison.refused(Ticket(3), &error("large")));
        assert!(!poison.refused(Ticket(0), &error("large")), "it was acked");
        poison.begin();
        assert!(!poison.is_suspect(&row(1)) && poison.is_suspect(&row(2)) && poison.is_suspect(&row(3)));
        poison.sent(Ticket(1), row(2), true);
        assert!(poison.is_alone());
        poison.acked_below(Ticket(2));
        assert!(!poison.is_alone() && !poison.is_suspect(&row(2)));
        poison.sent(Ticket(2), row(3), true);
        assert!(poison.refused(Ticket(2), &error("too large")));
        poison.begin();
        assert!(!poison.is_suspect(&row(3)) && !poison.is_alone());
        assert_eq!(poison.verdict(&row(3)).map(|verdict| verdict.error.cause()), Some("too large"));
        assert_eq!(poison.verdict(&row(2)), None);
    }

    #[test]
    fn what_was_acked_and_not_committed_is_still_known_when_it_comes_again() {
        let mut poison = Poison::default();
        poison.condemn(row(1), error("large"));
        poison.sent(Ticket(0), row(1), true);
        poison.clear_alone(Ticket(1));
        assert!(!poison.is_alone(), "others may follow");
        poison.begin();
        assert!(poison.verdict(&row(1)).is_some());
        poison.sent(Ticket(0), row(1), false);
        poison.acked_below(Ticket(1));
        assert_eq!(poison.verdict(&row(1)), None);
    }

    #[test]
    fn a_dead_letter_that_is_refused_goes_without_its_value_and_then_not_at_all() {
        let mut poison = Poison::default();
        poison.condemn(row(1), error("large"));
        for expected in [true, false] {
            poison.begin();
            poison.sent(Ticket(0), row(1), false);
            assert_eq!(poison.refused(Ticket(0), &error("this, too")), expected);
            assert!(poison.verdict(&row(1)).unwrap().without_value);
        }
        poison.acked_below(Ticket(1));
        assert_eq!(poison.verdict(&row(1)), None, "when it comes again, it is tried again");
    }
}
