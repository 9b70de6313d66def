//! What would be settled and what was, for people and as JSON. Ids and topics only, never a payload.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Change;
use super::event::{Counts, NAME_CHARS_MAX, name};
use crate::cli::text::{aligned, cell, counted, notes};
use crate::dead_letters::{self as library, Letter};
use crate::error::{Error, Kind, NextCommand, Remedy};

/// How many letters that cannot be sent are named.
const NAMED_MAX: usize = 100;
/// Topics that are counted one by one.
const TOPICS_MAX: usize = 1_000;
/// Under which those beyond are counted: no topic has such a name.
const OTHER_TOPICS: &str = "(others)";

/// A retry or drop of dead letters: what it would do, and what it did.
#[derive(Debug, Serialize)]
pub(super) struct LetterPlan {
    #[serde(rename = "ask")]
    change: Change,
    dry_run: bool,
    #[serde(flatten)]
    pub(super) counts: Counts,
    /// How many go to each topic.
    topics: BTreeMap<String, u64>,
    /// How many cannot be sent as they are.
    unsendable: u64,
    unsendable_letters: Vec<Unsendable>,
    /// How many were sent.
    pub(super) sent: u64,
    /// How many were settled by this.
    pub(super) newly_settled: u64,
    pub(super) notes: Vec<String>,
}

/// What to do about letters that cannot be sent as they are.
fn unsendable_remedy() -> Remedy {
    Remedy::from("where a letter cannot be sent as it is, ")
        .and(NextCommand::new("replay").option("id", "ID"))
        .and(" reads its row again, and walrelay dead-letters drop PARTITION:OFFSET settles the letter")
}

#[derive(Debug, Serialize)]
struct Unsendable {
    letter: String,
    outbox: Option<String>,
    row_id: Option<String>,
    why: String,
}

impl LetterPlan {
    /// Before a letter is looked at.
    pub(super) fn new(topic: &str, change: Change, dry_run: bool) -> LetterPlan {
        LetterPlan {
            change,
            dry_run,
            counts: Counts::of_letters(topic, library::Counts::default()),
            topics: BTreeMap::new(),
            unsendable: 0,
            unsendable_letters: Vec::new(),
            sent: 0,
            newly_settled: 0,
            notes: Vec::new(),
        }
    }

    /// Takes a letter that is meant.
    pub(super) fn letter(&mut self, letter: &Letter<'_>, reserved: &[String]) {
        if self.change == Change::Drop {
            return;
        }
        match letter.sendable(reserved) {
            Ok(topic) => {
                let known = self.topics.contains_key(topic.as_ref()) || self.topics.len() < TOPICS_MAX;
                let topic = if known { topic.as_ref() } else { OTHER_TOPICS };
                *self.topics.entry(topic.to_owned()).or_default() += 1;
            }
            Err(why) => {
                if self.unsendable == 0 {
                    self.notes.push(unsendable_remedy().to_string());
                }
                self.unsendable += 1;
                if self.unsendable_letters.len() < NAMED_MAX {
                    self.unsendable_letters.push(Unsendable {
                        letter: letter.at().to_string(),
                        outbox: letter.outbox().map(|outbox| name(outbox.as_bytes())),
                        row_id: letter.row().map(name),
                        why: why.to_string(),
                    });
                }
            }
        }
    }

    /// Letters that are settled if all goes well.
    pub(super) fn chosen(&self) -> u64 {
        self.counts.matched - self.unsendable
    }

    /// The topics letters go to.
    pub(super) fn topics(&self) -> Vec<&str> {
        self.topics.keys().map(String::as_str).filter(|topic| *topic != OTHER_TOPICS).collect()
    }

    /// Why nothing can be done.
    pub(super) fn fault(&self) -> Option<Error> {
        let cause = format!("none of {} can be sent as it is, and nothing was", counted(self.unsendable, "letter"));
        (self.chosen() == 0).then(|| Error::new(Kind::Event, cause).remedy(unsendable_remedy()))
    }

    /// What is asked before anything is changed.
    pub(super) fn question(&self) -> String {
        let letters = counted(self.chosen(), "letter");
        match self.change {
            Change::Retry => format!("Send {letters} again?"),
            Change::Drop => format!("Drop {letters}? These events are never sent."),
        }
    }

    /// What was done, in one line.
    pub(super) fn said(&self) -> String {
        let (letters, sent, settled) = (counted(self.chosen(), "letter"), self.sent, self.newly_settled);
        let left = match self.unsendable {
            0 => String::new(),
            left => format!("; left, as it cannot be sent: {}", counted(left, "letter")),
        };
        match self.change {
            Change::Retry => format!("of {letters}, {sent} were sent and {settled} settled{left}"),
            Change::Drop => format!("dropped {settled} of {letters}"),
        }
    }

    /// It was told to stop before its end.
    pub(super) fn stopped(&self) -> Error {
        Error::new(Kind::ShutdownTimeout, format!("told to stop: {}", self.said()))
            .remedy("for the rest, give the same command again: what is settled is left out")
    }

    /// What would be done.
    pub(super) fn text(&self) -> String {
        let mut text = self.counts.said() + "\n";
        if !self.topics.is_empty() {
            let topic = |(topic, count): (&String, &u64)| {
                [format!("  {}", cell(topic.as_bytes(), NAME_CHARS_MAX)), count.to_string()]
            };
            text += &format!("to be sent to\n{}\n", aligned(&self.topics.iter().map(topic).collect::<Vec<_>>()));
        }
        if self.unsendable > 0 {
            let rows: Vec<_> = self.unsendable_letters.iter().map(Unsendable::cells).collect();
            let letters = counted(self.unsendable, "letter");
            text += &format!("cannot be sent as it is: {letters}\n{}\n", aligned(&rows));
        }
        text + &notes(&self.notes)
    }
}

impl Unsendable {
    fn cells(&self) -> [String; 4] {
        let cell =
            |text: &Option<String>| text.as_ref().map_or("-".to_owned(), |text| cell(text.as_bytes(), NAME_CHARS_MAX));
        [format!("  {}", self.letter), cell(&self.outbox), format!("id {}", cell(&self.row_id)), self.why.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::dead_letters::Header;
    use crate::dead_letters::letter::Entry;
    use crate::route::dead_letter::{CLASS_HEADER, ROW_HEADER, TOPIC_HEADER};
    use crate::sink::kafka::topic_reader::Message;

    fn plan(change: Change, topics: &[&str]) -> LetterPlan {
        let mut plan = LetterPlan::new("dead", change, true);
        for topic in topics {
            let mut headers: Vec<Header<'_>> = vec![(CLASS_HEADER, Some(b"rejected")), (ROW_HEADER, Some(b"7\n"))];
            headers.extend((!topic.is_empty()).then_some((TOPIC_HEADER, Some(topic.as_bytes()))));
            let headers = Some(headers);
            let record = Message { partition: 0, offset: 3, time_ms: None, key: None, value: None, headers };
            let Entry::Letter(letter) = Entry::of(&record) else { panic!("no letter") };
            plan.letter(&letter, &["dead".to_owned()]);
        }
        let matched = topics.len() as u64;
        let classes = [("rejected".to_owned(), matched)].into();
        plan.counts = Counts::of_letters("dead", library::Counts { matched, classes, ..library::Counts::default() });
        plan
    }

    #[test]
    fn it_says_what_is_sent_and_what_cannot_be() {
        let mut plan = plan(Change::Retry, &["orders", "orders", "users", "", "dead"]);
        assert!(plan.fault().is_none());
        assert_eq!(
            (plan.chosen(), plan.topics(), plan.question().as_str()),
            (3, vec!["orders", "users"], "Send 3 letters again?")
        );
        insta::assert_snapshot!(plan.text(), @r"
        5 letters: 5 rejected
        to be sent to
          orders  2
          users   1
        cannot be sent as it is: 2 letters
          0:3  -  id 7\n  the row made no topic
          0:3  -  id 7\n  what it names as its topic is none that it may go to
        note: where a letter cannot be sent as it is, walrelay replay --id ID reads its row again, and walrelay dead-letters drop PARTITION:OFFSET settles the letter
        ");
        (plan.sent, plan.newly_settled) = (2, 1);
        assert_eq!(
            plan.stopped().cause(),
            "told to stop: of 3 letters, 2 were sent and 1 settled; left, as it cannot be sent: 2 letters"
        );
    }

    #[test]
    fn what_none_of_can_be_sent_is_an_error_and_can_be_dropped() {
        let error = plan(Change::Retry, &[""]).fault().unwrap();
        assert!(error.kind() == Kind::Event && error.what_to_do().unwrap().contains("walrelay replay --id"), "{error}");
        let mut dropped = plan(Change::Drop, &["", "orders"]);
        assert!(dropped.fault().is_none() && dropped.question() == "Drop 2 letters? These events are never sent.");
        dropped.newly_settled = 2;
        assert_eq!(dropped.said(), "dropped 2 of 2 letters");
    }

    #[test]
    fn topics_beyond_count_are_counted_together() {
        let names: Vec<String> = (0..TOPICS_MAX + 7).map(|topic| format!("t{topic}")).collect();
        let plan = plan(Change::Retry, &names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((plan.topics().len(), plan.topics[OTHER_TOPICS]), (TOPICS_MAX, 7));
    }
}
