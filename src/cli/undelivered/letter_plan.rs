//! What would be settled and what was, for people and as JSON. Ids and topics only, never a payload.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Change;
use super::event::Counts;
use super::text::{cell, counted, cut};
use crate::cli::output::aligned;
use crate::dead_letters::{self as library, Letter, Progress};
use crate::error::{Error, Kind};

/// How many letters that cannot be sent are named.
const NAMED_MAX: usize = 100;
/// Topics that are counted one by one.
const TOPICS_MAX: usize = 1_000;
/// Under which those beyond are counted: no topic has such a name.
const OTHER_TOPICS: &str = "(others)";
const NAME_CHARS_MAX: usize = 200;

/// What was found, and what came of it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    #[serde(rename = "ask")]
    change: Change,
    dry_run: bool,
    #[serde(flatten)]
    counts: Counts,
    /// How many go to each topic.
    topics: BTreeMap<String, u64>,
    /// How many cannot be sent as they are.
    unsendable: u64,
    unsendable_letters: Vec<Named>,
    /// How many were sent.
    sent: u64,
    /// How many were settled by this.
    newly_settled: u64,
    notes: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
struct Named {
    letter: String,
    outbox: Option<String>,
    row_id: Option<String>,
    why: String,
}

impl Report {
    /// Before anything is looked at.
    pub(super) fn new(topic: &str, change: Change, dry_run: bool) -> Report {
        Report {
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
                self.unsendable += 1;
                if self.unsendable_letters.len() < NAMED_MAX {
                    self.unsendable_letters.push(Named {
                        letter: letter.at().to_string(),
                        outbox: letter.outbox().map(|outbox| cut(&outbox, NAME_CHARS_MAX)),
                        row_id: letter.row().map(|row| cut(&String::from_utf8_lossy(row), NAME_CHARS_MAX)),
                        why: why.to_string(),
                    });
                }
            }
        }
    }

    /// All letters were looked at.
    pub(super) fn found(&mut self, counts: Counts) {
        self.counts = counts;
        if self.unsendable > 0 {
            self.note(
                "what cannot be sent as it is stays: walrelay replay --id ID reads its row again, and dead-letters drop \
                 settles the letter then"
                    .to_owned(),
            );
        }
    }

    /// Adds a remark.
    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Takes what was settled.
    pub(super) fn settled(&mut self, progress: Progress) {
        self.sent = progress.sent;
        self.newly_settled = progress.settled;
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
        (self.chosen() == 0).then(|| {
            let letters = counted(self.unsendable, "letter");
            Error::new(Kind::Event, format!("none of {letters} can be sent as it is, and nothing was")).remedy(
                "`walrelay replay --id ID` reads a row again, as it is by now; `walrelay dead-letters drop \
                 PARTITION:OFFSET` settles its letter",
            )
        })
    }

    /// What is asked before anything is changed.
    pub(super) fn question(&self) -> String {
        let letters = counted(self.chosen(), "letter");
        match self.change {
            Change::Retry => format!("Send {letters} again?"),
            Change::Drop => format!("Drop {letters}? These events are never sent."),
        }
    }

    /// What was settled, in one line.
    pub(super) fn said(&self) -> String {
        let letters = counted(self.chosen(), "letter");
        let all = self.newly_settled >= self.chosen();
        let left = match self.unsendable {
            0 => String::new(),
            1 => " 1 cannot be sent as it is, and was left.".to_owned(),
            left => format!(" {left} cannot be sent as they are, and were left."),
        };
        match self.change {
            Change::Retry if all => format!("Sent and settled {letters}.{left}"),
            Change::Retry => {
                let (sent, settled) = (self.sent, self.newly_settled);
                format!("Of {letters}, {sent} were sent and {settled} settled.{left}")
            }
            Change::Drop if all => format!("Dropped {letters}."),
            Change::Drop => format!("Of {letters}, {} were dropped.", self.newly_settled),
        }
    }

    /// It was told to stop before its end.
    pub(super) fn stopped(&self) -> Error {
        let said = self.said();
        Error::new(Kind::ShutdownTimeout, format!("told to stop. {}", said.trim_end_matches('.')))
            .remedy("for the rest, give the same command again: what is settled is left out")
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let table = |head: [&str; 2], counts: &BTreeMap<String, u64>| {
            let row = |(name, count): (&String, &u64)| [cell(name.as_bytes(), NAME_CHARS_MAX), count.to_string()];
            let rows: Vec<_> = std::iter::once(head.map(str::to_owned)).chain(counts.iter().map(row)).collect();
            aligned(&rows) + "\n"
        };
        let mut text = table(["class", "letters"], &self.counts.classes);
        if !self.topics.is_empty() {
            text += &format!("\n{}", table(["topic", "letters"], &self.topics));
        }
        if self.unsendable > 0 {
            let rows: Vec<_> = self.unsendable_letters.iter().map(Named::row).collect();
            let (named, of) = (rows.len() as u64, self.unsendable);
            let head = if named < of { format!(" ({named} of {of})") } else { String::new() };
            text += &format!("\ncannot be sent as it is{head}\n{}\n", aligned(&rows));
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for note in &self.notes {
            text += &format!("note: {}\n", note.replace(char::is_control, " "));
        }
        text
    }
}

impl Named {
    fn row(&self) -> [String; 4] {
        let plain =
            |text: &Option<String>| text.as_ref().map_or("-".to_owned(), |text| cell(text.as_bytes(), NAME_CHARS_MAX));
        [format!("  {}", self.letter), plain(&self.outbox), format!("id {}", plain(&self.row_id)), self.why.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letters::Entry;
    use crate::dead_letters::letter::{Header, Incoming};
    use crate::route::dead_letter::{CLASS_HEADER, ROW_HEADER, TOPIC_HEADER};

    fn report(change: Change, topics: &[&str]) -> Report {
        let mut report = Report::new("dead", change, true);
        for topic in topics {
            let mut headers: Vec<Header<'_>> = vec![(CLASS_HEADER, Some(b"rejected")), (ROW_HEADER, Some(b"7\n"))];
            headers.extend((!topic.is_empty()).then_some((TOPIC_HEADER, Some(topic.as_bytes()))));
            let at = "0:3".parse().unwrap();
            let record = Incoming { at, time_ms: None, key: None, value: None, headers: Some(headers) };
            let Entry::Letter(letter) = Entry::of(&record) else { panic!("no letter") };
            report.letter(&letter, &["dead".to_owned()]);
        }
        let matched = topics.len() as u64;
        let classes = [("rejected".to_owned(), matched)].into();
        report.found(Counts::of_letters("dead", library::Counts { matched, classes, ..library::Counts::default() }));
        report
    }

    #[test]
    fn it_says_what_is_sent_and_what_cannot_be() {
        let mut report = report(Change::Retry, &["orders", "orders", "users", "", "dead"]);
        assert!(report.fault().is_none());
        assert_eq!(
            (report.chosen(), report.topics(), report.question().as_str()),
            (3, vec!["orders", "users"], "Send 3 letters again?")
        );
        insta::assert_snapshot!(report.text(), @r"
        class     letters
        rejected  5

        topic   letters
        orders  2
        users   1

        cannot be sent as it is
          0:3  -  id 7\n  the row made no topic
          0:3  -  id 7\n  what it names as its topic is none that it may go to

        note: what cannot be sent as it is stays: walrelay replay --id ID reads its row again, and dead-letters drop settles the letter then
        ");
        report.settled(Progress { sent: 2, settled: 1 });
        assert!(report.said().starts_with("Of 3 letters, 2 were sent and 1 settled."), "{}", report.said());
        assert!(report.stopped().cause().starts_with("told to stop. Of 3 letters"));
        report.settled(Progress { sent: 3, settled: 3 });
        assert_eq!(report.said(), "Sent and settled 3 letters. 2 cannot be sent as they are, and were left.");
    }

    #[test]
    fn what_none_of_can_be_sent_is_an_error_and_can_be_dropped() {
        let error = report(Change::Retry, &[""]).fault().unwrap();
        assert!(error.kind() == Kind::Event && error.what_to_do().unwrap().contains("walrelay replay --id"), "{error}");
        let mut dropped = report(Change::Drop, &["", "orders"]);
        assert!(dropped.fault().is_none() && dropped.question() == "Drop 2 letters? These events are never sent.");
        dropped.settled(Progress { sent: 0, settled: 2 });
        assert_eq!(dropped.said(), "Dropped 2 letters.");
    }

    #[test]
    fn topics_beyond_count_are_counted_together() {
        let names: Vec<String> = (0..TOPICS_MAX + 7).map(|topic| format!("t{topic}")).collect();
        let report = report(Change::Retry, &names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((report.topics().len(), report.topics[OTHER_TOPICS]), (TOPICS_MAX, 7));
    }
}
